//! What happens to a page that is open: refreshes, dialogs, a store that goes away and comes back.

use serde_json::json;
use tenure::port::{Bureau, NewTask, TopicSettings};

use crate::DESK;
use crate::chrome::Browser;
use crate::stream::topic;
use crate::world::World;

/// The copy button disappeared at the first refresh.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn the_copy_button_outlives_refreshes() {
    let (world, browser) = tokio::join!(World::empty(), Browser::start());
    let id = world.submit("mail", vec![NewTask::new("welcome")]).await[0];
    let page = browser.page(DESK).await;
    page.open(&format!("{}/tasks/{id}?namespace=default", world.url)).await;
    let shown = "document.querySelector('[data-copy=payload]').checkVisibility()";
    page.until(shown).await;
    // By the second time that it fetches itself, what came the first time is shown.
    page.eval("window.fetched = 0; const plain = fetch; fetch = (...all) => (fetched++, plain(...all)); 0")
        .await;
    page.until("fetched >= 2").await;
    assert_eq!(page.eval(shown).await, true);
    page.calm().await;
}

/// The dialog for many tasks had the focus on the button that cancels all of them.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn a_dangerous_dialog_begins_with_the_way_out() {
    let (world, browser) = tokio::join!(World::empty(), Browser::start());
    world.submit("mail", vec![NewTask::new("welcome"), NewTask::new("other")]).await;
    let page = browser.page(DESK).await;
    page.open(&format!("{}/queues/mail?namespace=default&kind=welcome", world.url)).await;
    page.click("[data-key=cancel]").await;
    page.until("document.querySelector('dialog[open]')").await;
    page.until("document.activeElement.matches('dialog [data-cancel]')").await;
    assert_eq!(page.eval("document.querySelector('#confirm-title').innerText").await, "Cancel one task?");
    page.press("Enter").await;
    page.until("!document.querySelector('dialog')").await;
    assert_eq!(world.queue("mail").await.count(tenure::port::TaskState::Ready), 2);
    page.calm().await;
}

/// The pattern of the confirmation was invalid for names with a hyphen, and the browser complained.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn a_name_with_a_hyphen_can_be_confirmed() {
    let (world, browser) = tokio::join!(World::empty(), Browser::start());
    world.store.set_topic(&topic("order-events"), &TopicSettings::default()).await.unwrap();
    let page = browser.page(DESK).await;
    page.open(&format!("{}/topics/order-events?namespace=default", world.url)).await;
    page.click("[data-key=delete]").await;
    page.click("dialog #name").await;
    page.type_text("order_events").await;
    page.until("!document.querySelector('dialog #name').validity.valid").await;
    page.eval("document.querySelector('dialog #name').value = ''").await;
    page.type_text("order-events").await;
    page.until("document.querySelector('dialog #name').validity.valid").await;
    page.calm().await;
    page.follow("dialog button").await;
    page.shows("Deleted, with all that was in it").await;
    page.calm().await;
}

/// A page on which much happens fetched itself fourteen times in ten seconds.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn a_busy_page_fetches_itself_every_two_seconds_at_most() {
    let (world, browser) = tokio::join!(World::full(), Browser::start());
    let page = browser.page(DESK).await;
    page.open(&format!("{}/", world.url)).await;
    let watch = "window.at = []; const plain = fetch; fetch = (...all) => (at.push(performance.now()), plain(...all)); 0";
    page.eval(watch).await;
    page.until("at.length >= 6").await;
    // Five after the first take ten seconds; two less, should the first have come late.
    let took = page.eval("at[5] - at[0]").await.as_f64().unwrap();
    assert!(took > 7_900.0, "six in {took} ms");
    page.calm().await;
}

/// While the database was away, pages went on to say "live", or "reconnecting", and some did not come back.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn a_store_that_goes_away_makes_every_page_stale_and_all_recover() {
    let (world, browser) = tokio::join!(World::full(), Browser::start());
    let id = world.submit("mail", vec![NewTask::new("welcome")]).await[0];
    // From memory; read anew each time; a form; one that is opened while the store is away.
    let paths = ["/".to_owned(), format!("/tasks/{id}?namespace=default"), "/schedules/new".into()];
    let mut pages = Vec::new();
    for path in &paths {
        let page = browser.page(DESK).await;
        page.open(&format!("{}{path}", world.url)).await;
        page.until("document.getElementById('live').innerText == 'live'").await;
        pages.push(page);
    }
    let late = browser.page(DESK).await;
    world.link.cut(true);
    for (page, path) in pages.iter().zip(&paths) {
        page.until("document.getElementById('live').innerText == 'stale'").await;
        page.until("document.querySelectorAll('[data-stale]').length == 1").await;
        page.shows("The store is unavailable.").await;
        page.shows("Data is up to").await;
        page.screenshot(&format!("store-away{}", path.replace(['/', '?', '='], "-"))).await;
    }
    assert_eq!(pages[1].eval("document.querySelector('h1').innerText").await, json!(format!("Task {id}")));
    late.open(&format!("{}/tasks/{id}?namespace=default", world.url)).await;
    late.shows("This page cannot be shown.").await;
    late.until("document.getElementById('live').innerText == 'stale'").await;
    assert_eq!(late.eval("document.body.innerText.includes('unknown')").await, false);
    late.screenshot("store-away-unreadable").await;
    world.link.cut(false);
    for page in pages.iter().chain([&late]) {
        page.until(
            "document.getElementById('live').innerText == 'live' && !document.querySelector('[data-stale]')",
        )
        .await;
        // The browser notes each 503.
        page.forgive();
    }
    late.shows("Its life").await;
    assert_eq!(pages[2].eval("document.querySelector('h1').innerText").await, "Make a schedule");
}
