//! The dashboard in a real browser: every page, every button through to its effect in the store, in light and dark, on a
//! phone and on a desk. Any console error and anything that the content security policy blocks fails the test.
//!
//! `scripts/test browser` runs these; they need Chromium. Pictures are kept in `target/screenshots/`, to be looked at.

mod chrome;
mod world;

use chrome::{Browser, Look};
use tenure::leaders;
use world::World;

const DESK: Look = Look { width: Look::DESKTOP, dark: false };

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn every_page_fits_every_screen() {
    let (world, browser) = tokio::join!(World::full(), Browser::start());
    let page = browser.page(DESK).await;
    let pages = [
        ("front", "/", "render-farm"),
        ("filtered", "/?namespace=prod&q=led", "1 of 6 elections"),
        ("nothing-matches", "/?q=nonesuch", "No election matches"),
        ("election", "/elections/nightly?namespace=default", "node-a"),
        ("slots", "/elections/render-farm?namespace=prod", "Slot"),
        ("paused", "/elections/ledger?namespace=prod", "moving to the new database"),
        ("silent", "/elections/import?namespace=staging", "silent"),
        ("nobody-stands", "/elections/clean-up?namespace=staging", "Nobody stands"),
        ("transfer", "/elections/nightly/transfer?namespace=default", "Who shall lead?"),
        ("pause", "/elections/nightly/pause?namespace=default", "Reason"),
        ("login", "/login", "asks nobody"),
    ];
    for (name, path, text) in pages {
        for look in Look::all() {
            page.look(look).await;
            page.open(&format!("{}{path}", world.url)).await;
            page.shows(text).await;
            page.screenshot(&format!("{name}-{}", look.name())).await;
            page.calm().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn an_empty_store_teaches_the_first_command() {
    let (mut world, browser) = tokio::join!(World::empty(), Browser::start());
    let page = browser.page(DESK).await;
    for look in Look::all() {
        page.look(look).await;
        page.open(&world.url).await;
        page.shows("Nobody has stood for an election yet").await;
        page.screenshot(&format!("empty-{}", look.name())).await;
        page.calm().await;
    }
    let command = page.eval("document.getElementById('run').textContent").await;
    assert_eq!(command, format!("tenure run nightly --store {} -- sh -c 'echo hello; sleep 60'", world.url));
    // Whoever does that sees it, without touching the page.
    world.stand("nightly", "me", 0).await;
    page.until("document.querySelector('#elections tbody th')?.innerText == 'nightly'").await;
    page.calm().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn buttons_reach_the_store() {
    let (world, browser) = tokio::join!(World::full(), Browser::start());
    for look in Look::all() {
        let page = browser.page(look).await;
        let first = leaders(&world.view("nightly").await)[0].id.clone();
        page.open(&format!("{}/elections/nightly?namespace=default", world.url)).await;

        page.click("[data-key=transfer]").await;
        page.until("document.querySelector('dialog[open] #confirm')").await;
        page.screenshot(&format!("dialog-{}", look.name())).await;
        // Escape and Cancel lead back, and nothing has happened.
        page.press("Escape").await;
        page.until("!document.querySelector('dialog') && document.activeElement.dataset.key == 'transfer'")
            .await;
        page.click("[data-key=transfer]").await;
        page.click("dialog [data-cancel]").await;
        page.until("!document.querySelector('dialog')").await;
        assert_eq!(leaders(&world.view("nightly").await)[0].id, first);

        // The second of those who may follow.
        page.click("[data-key=transfer]").await;
        page.until("document.querySelectorAll('dialog input[name=to]').length > 1").await;
        let to = page
            .eval("document.querySelectorAll('dialog .choices label')[1].querySelector('.strong').innerText")
            .await;
        page.click("dialog .choices label:nth-child(2)").await;
        page.follow("dialog button").await;
        let moved = world.led_by("nightly", to.as_str().unwrap()).await;
        page.shows("Asked.").await;
        page.until(&format!("document.querySelector('#leaders .who').innerText == {to}")).await;
        page.calm().await;

        page.click("[data-key=resign]").await;
        page.follow("dialog button").await;
        let token = moved.leases[0].token;
        world.until("nightly", |view| view.holders().any(|(lease, _)| lease.token > token)).await;
        page.calm().await;

        page.click("[data-key=pause]").await;
        page.click("dialog #reason").await;
        page.type_text("a <b>break</b> & more").await;
        page.follow("dialog button").await;
        let paused =
            world.until("nightly", |view| view.paused.is_some() && view.holders().count() == 0).await;
        let pause = paused.paused.unwrap();
        assert_eq!((pause.by.as_str(), pause.reason.as_str()), ("local", "a <b>break</b> & more"));
        page.shows("“a <b>break</b> & more”").await;
        page.screenshot(&format!("just-paused-{}", look.name())).await;

        page.click("[data-key=resume]").await;
        page.follow("dialog button").await;
        let resumed =
            world.until("nightly", |view| view.paused.is_none() && view.holders().count() == 1).await;

        // One click beside a candidate proposes that one.
        page.until("document.querySelector('tr.leads')").await;
        let other =
            "[...document.querySelectorAll('#candidates tbody tr')].find(row => row.querySelector('a'))";
        let id = page.eval(&format!("{other}.querySelector('th').innerText")).await;
        page.click("#candidates td a").await;
        page.until(&format!(
            "document.querySelector('dialog :checked').closest('label').innerText.includes({id})"
        ))
        .await;
        page.follow("dialog button").await;
        world.led_by("nightly", id.as_str().unwrap()).await;
        assert!(resumed.leases[0].token < world.view("nightly").await.leases[0].token);
        page.calm().await;
    }
}
