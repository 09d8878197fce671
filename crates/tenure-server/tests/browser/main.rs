//! The dashboard in a real browser: every page, every button through to its effect in the store, in light and dark, on a
//! phone and on a desk. Any console error and anything that the content security policy blocks fails the test.
//!
//! `scripts/test browser` runs these; they need Chromium. Pictures are kept in `target/screenshots/`, to be looked at.

mod calendar;
mod chrome;
mod claims;
mod events;
mod live;
mod schedules;
mod stream;
mod work;
mod world;

use chrome::{Browser, Look};
use tenure::leaders;
use world::World;

pub(crate) const DESK: Look = Look { width: Look::DESKTOP, dark: false };

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
        ("access-off", "/access", "asks nobody"),
        ("api", "/docs", "campaign"),
        ("names", "/names", "Names"),
        ("audit", "/audit", "Audit"),
    ];
    let mut links = std::collections::BTreeSet::new();
    for (name, path, text) in pages {
        page.open(&format!("{}{path}", world.url)).await;
        page.shows(text).await;
        // What is folded away has to fit, too.
        page.eval("document.querySelectorAll('details').forEach(folded => folded.open = true)").await;
        page.fits_every_screen(name).await;
        for href in page
            .eval("[...new Set([...document.links].map(a => a.href.split('#')[0]))]")
            .await
            .as_array()
            .unwrap()
        {
            links.insert(href.as_str().unwrap().to_owned());
        }
    }
    // Every link of every page leads somewhere.
    for link in &links {
        assert!(link.starts_with(&world.url), "{link} leads away");
        assert_eq!(page.eval(&format!("fetch({link:?}).then(answer => answer.status)")).await, 200, "{link}");
    }
    assert!(links.len() > 20, "{links:?}");
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
        // Whoever was first makes way for the highest priority.
        let resumed = world.led_by("nightly", "node-a").await;
        assert!(resumed.paused.is_none());

        // One click beside a candidate proposes that one.
        page.until("document.querySelector('#leaders .who').innerText == 'node-a'").await;
        page.until("document.querySelector('tr.leads th').innerText == 'node-a'").await;
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

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn deeds_are_written_down_and_shown() {
    let (world, browser) = tokio::join!(World::full(), Browser::start());
    let page = browser.page(DESK).await;
    page.open(&format!("{}/audit", world.url)).await;
    page.shows("Nobody has done anything yet").await;
    for n in 0..60 {
        page.eval(&format!(
            "fetch('/elections/cache-warmer/{}?namespace=default', {{method: 'POST', redirect: 'manual', \
             body: new URLSearchParams({{seen: '0', reason: 'round {n}'}})}}).then(() => 0)",
            if n % 2 == 0 { "pause" } else { "resume" }
        ))
        .await;
    }
    // A page that is open shows it by itself.
    page.shows("round 58").await;
    assert_eq!(world.deeds().await[0], "local resume cache-warmer ");
    world.led_by("cache-warmer", "warmer-eu").await;
    for look in Look::all() {
        page.look(look).await;
        page.open(&format!("{}/audit", world.url)).await;
        page.screenshot(&format!("audit-{}", look.name())).await;
        page.follow(".pager a").await;
        page.shows("round 0").await;
        page.follow(".pager a").await;
        page.shows("round 58").await;
        page.calm().await;
    }
    page.open(&format!("{}/elections/cache-warmer?namespace=default", world.url)).await;
    page.shows("Who did what here").await;
    page.screenshot("election-with-deeds").await;
    page.follow("#deeds header a").await;
    page.shows("Who did what, the newest first").await;
    page.calm().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn access_is_asked_for_granted_and_taken_away() {
    let (mut world, browser) = tokio::join!(World::with(|settings| settings.auth = true), Browser::start());
    world.stand("nightly", "node-a", 0).await.stand("prod/ledger", "ledger-1", 0).await;
    world.led_by("prod/ledger", "ledger-1").await;
    let root = world.token("ada", &["*:admin"]).await;
    for look in Look::all() {
        let page = browser.page(look).await;
        page.open(&format!("{}/access", world.url)).await;
        page.until("location.pathname == '/login'").await;
        page.calm().await;
        page.click("#token").await;
        page.type_text("tenure_nonsense").await;
        page.follow("main form button").await;
        page.shows("no token of this server").await;
        page.screenshot(&format!("login-refused-{}", look.name())).await;
        // The browser notes that the answer was a 401.
        page.forgive();
        page.click("#token").await;
        page.type_text(&root).await;
        page.follow("main form button").await;
        page.until("location.pathname == '/access'").await;
        assert_eq!(page.eval("document.cookie").await, "", "the token is out of reach of scripts");

        let name = format!("reader-{}", look.name());
        page.click("#name").await;
        page.type_text(&name).await;
        page.follow(".form button").await;
        page.shows("Copy it now").await;
        page.screenshot(&format!("access-{}", look.name())).await;
        page.calm().await;
        let secret = page.eval("document.getElementById('secret').textContent").await;
        page.open(&format!("{}/access", world.url)).await;
        page.shows(&name).await;
        assert_eq!(page.eval(&format!("document.body.innerHTML.includes({secret})")).await, false);

        // Whoever may only read one namespace sees that one, and no buttons.
        let other = browser.page(look).await;
        other.open(&format!("{}/", world.url)).await;
        other.click("#token").await;
        other.type_text(secret.as_str().unwrap()).await;
        other.follow("main form button").await;
        other.shows("nightly").await;
        assert_eq!(other.eval("document.body.innerText.includes('ledger')").await, false);
        assert_eq!(other.eval("document.body.innerText.includes('Access')").await, false);
        other.follow("#elections tbody a").await;
        assert_eq!(other.eval("document.querySelectorAll('[data-confirm]').length").await, 0);
        other.screenshot(&format!("reader-{}", look.name())).await;
        other.calm().await;
        for path in
            ["/access", "/elections/ledger?namespace=prod", "/elections/nightly/pause?namespace=default"]
        {
            other.open(&format!("{}{path}", world.url)).await;
            other.shows("Forbidden").await;
        }
        other.screenshot(&format!("forbidden-{}", look.name())).await;
        let post = "fetch('/elections/nightly/pause?namespace=default', {method: 'POST', body: new URLSearchParams({seen: '0'})})\
            .then(answer => answer.status)";
        assert_eq!(other.eval(post).await, 403);
        assert!(world.view("nightly").await.paused.is_none());
        other.forgive();
        other.open(&format!("{}/", world.url)).await;

        // Revoked, the token is worth nothing on pages that are open already.
        page.click("tr:has(th:first-child) a[data-confirm]").await;
        page.shows("This can not be undone").await;
        page.screenshot(&format!("revoke-{}", look.name())).await;
        page.follow("dialog button").await;
        page.shows("revoked").await;
        page.calm().await;
        other.until("location.pathname == '/login'").await;

        page.follow("form[action='/logout'] button").await;
        page.until("location.pathname == '/login'").await;
        page.open(&format!("{}/audit", world.url)).await;
        page.until("location.pathname == '/login'").await;
        page.calm().await;
    }
    let deeds = world.deeds().await;
    assert!(deeds[0].starts_with("ada token.revoke"), "{deeds:?}");
    assert!(deeds[1].starts_with("ada token.create"), "{deeds:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn a_page_keeps_up_and_keeps_its_place() {
    let (mut world, browser) = tokio::join!(World::full(), Browser::start());
    let page = browser.page(DESK).await;
    page.open(&format!("{}/", world.url)).await;
    page.until("document.getElementById('live').innerText == 'live'").await;
    // Trust runs down between beats, and back up with each.
    page.eval(
        "window.seen = []; setInterval(() => seen.push(Number(document.querySelector('[data-key=\"row-default/nightly\"] progress')?.value)), 50)",
    )
    .await;
    page.until("seen.some((left, n) => left < seen[n - 1]) && seen.some((left, n) => left > seen[n - 1])")
        .await;
    // Who has only a keyboard gets past the menu, and sees where they are.
    page.press("Tab").await;
    page.until(
        "document.activeElement.matches('.skip') && document.activeElement.getBoundingClientRect().top >= 0",
    )
    .await;
    page.press("Enter").await;
    page.until("document.activeElement.id == 'main'").await;
    // What somebody types, and where they are, outlives changes around it.
    page.click("#q").await;
    page.type_text("ware").await;
    world.stand("another", "newcomer", 0).await;
    page.until("document.querySelector('[data-key=\"row-default/another\"] .state.good')").await;
    assert_eq!(page.eval("document.activeElement.id + document.activeElement.value").await, "qware");
    page.until("document.getElementById('news').innerText.includes('another is led by newcomer')").await;
    page.press("Enter").await;
    page.until("location.search.includes('q=ware') && !document.querySelector('#elections tbody')").await;

    page.open(&format!("{}/elections/nightly?namespace=default", world.url)).await;
    page.click("[data-key=pause]").await;
    page.click("dialog #reason").await;
    page.type_text("half a rea").await;
    world.stand("nightly", "node-z", 1).await;
    page.until("[...document.querySelectorAll('#candidates th')].some(th => th.innerText == 'node-z')").await;
    assert_eq!(page.eval("document.querySelector('dialog[open] #reason').value").await, "half a rea");
    page.calm().await;

    // The server is gone: the page says so, and stays.
    world.server.shutdown().await;
    page.until("document.getElementById('live').innerText == 'reconnecting…'").await;
    assert_eq!(page.eval("document.querySelector('#leaders .who').innerText").await, "node-a");
    page.press("Escape").await;
    // Time runs on without the server; that nothing is heard is not the leader's fault.
    page.until("document.querySelector('#leaders output').innerText == 'unknown'").await;
    page.screenshot("reconnecting").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn everything_works_without_a_script() {
    let (world, browser) = tokio::join!(World::full(), Browser::start());
    let page = browser.page(DESK).await;
    page.call("Emulation.setScriptExecutionDisabled", serde_json::json!({"value": true})).await;
    page.open(&format!("{}/?namespace=prod", world.url)).await;
    page.until("document.querySelector('noscript a')?.innerText == 'Refresh'").await;
    page.follow("#elections tbody tr:nth-child(2) a").await;
    page.shows("render-farm").await;
    page.open(&format!("{}/elections/nightly?namespace=default", world.url)).await;
    page.screenshot("without-script").await;
    page.follow("[data-key=pause]").await;
    page.click("#reason").await;
    page.type_text("by hand").await;
    page.follow("#confirm button").await;
    page.shows("“by hand”").await;
    world.until("nightly", |view| view.paused.as_ref().is_some_and(|pause| pause.reason == "by hand")).await;
    page.follow("form[action='/theme'] button").await;
    page.until(
        "document.documentElement.dataset.theme == 'dark' && location.pathname == '/elections/nightly'",
    )
    .await;
    page.screenshot("dark-by-hand").await;
    page.calm().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn what_is_inline_is_blocked_and_noticed() {
    let (world, browser) = tokio::join!(World::empty(), Browser::start());
    let plants = [
        "document.body.insertAdjacentHTML('beforeend', '<p style=\"color: red\">x</p>')",
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))",
        "document.body.append(Object.assign(new Image(), {src: 'https://elsewhere.example/x.png'}))",
    ];
    for plant in plants {
        let page = browser.page(DESK).await;
        page.open(&world.url).await;
        page.calm().await;
        page.eval(&format!("{{ {plant} }} 0")).await;
        let deadline = tenure::runtime::now() + std::time::Duration::from_secs(10);
        while page.complaints().is_empty() {
            assert!(tenure::runtime::now() < deadline, "nobody complained about {plant}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        assert!(page.complaints().iter().any(|said| said.contains("olicy")), "{:?}", page.complaints());
        assert_eq!(page.eval("window.ran ?? 0").await, 0);
    }
}
