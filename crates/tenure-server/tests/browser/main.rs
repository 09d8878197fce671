//! The dashboard in a real browser: every page, and every button with its effect in the store, in both
//! themes, on a phone and on a desktop. A console error or a violation of the content security policy fails
//! the test.
//!
//! `scripts/test browser` runs these tests; they need Chromium. Screenshots are written to
//! `target/screenshots/` for review.

mod chrome;
mod event_data;
mod events;
mod fixture;
mod live;
mod queue_data;
mod queues;
mod schedule_data;
mod schedules;

use chrome::{Browser, Screen};
use fixture::Fixture;
use tenure::leaders;

pub(crate) const DESKTOP_LIGHT: Screen = Screen { width: Screen::DESKTOP, dark: false };

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn every_page_fits_every_screen() {
    let (fixture, browser) = tokio::join!(Fixture::with_elections(), Browser::start());
    let page = browser.page(DESKTOP_LIGHT).await;
    let pages = [
        ("front", "/", "render-farm"),
        ("filtered", "/?namespace=prod&q=acc", "1 of 6 elections"),
        ("nothing-matches", "/?q=nonesuch", "No matching elections"),
        ("election", "/elections/nightly?namespace=default", "node-a"),
        ("slots", "/elections/render-farm?namespace=prod", "Slot"),
        ("paused", "/elections/accounting?namespace=prod", "moving to the new database"),
        ("unresponsive", "/elections/import?namespace=staging", "import-7"),
        ("no-candidates", "/elections/clean-up?namespace=staging", "No candidates"),
        ("transfer", "/elections/nightly/transfer?namespace=default", "New leader"),
        ("pause", "/elections/nightly/pause?namespace=default", "Reason"),
        ("login", "/login", "requires no credentials"),
        ("credentials-off", "/credentials", "requires no credentials"),
        ("api", "/docs", "campaign"),
        ("names", "/names", "Registered names"),
        ("audit", "/audit", "Audit log"),
    ];
    let mut links = std::collections::BTreeSet::new();
    for (name, path, text) in pages {
        page.open(&format!("{}{path}", fixture.url)).await;
        page.shows(text).await;
        // Folded content must fit too.
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
    // Every link of every page works.
    for link in &links {
        assert!(link.starts_with(&fixture.url), "{link} leads to another site");
        assert_eq!(page.eval(&format!("fetch({link:?}).then(answer => answer.status)")).await, 200, "{link}");
    }
    assert!(links.len() > 20, "{links:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn an_empty_election_list_shows_the_first_command_and_its_result() {
    let (mut fixture, browser) = tokio::join!(Fixture::empty(), Browser::start());
    let page = browser.page(DESKTOP_LIGHT).await;
    for screen in Screen::all() {
        page.set_screen(screen).await;
        page.open(&fixture.url).await;
        page.shows("No elections yet").await;
        page.screenshot(&format!("empty-{}", screen.name())).await;
        page.assert_no_problems().await;
    }
    let command = page.eval("document.getElementById('run').textContent").await;
    assert_eq!(
        command,
        format!("tenure run nightly --store {} -- sh -c 'echo hello; sleep 60'", fixture.url)
    );
    // The page shows the new election without a reload.
    fixture.join("nightly", "me", 0).await;
    page.until("document.querySelector('#elections tbody th')?.innerText == 'nightly'").await;
    page.assert_no_problems().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn actions_on_elections_change_the_store() {
    let (fixture, browser) = tokio::join!(Fixture::with_elections(), Browser::start());
    for screen in Screen::all() {
        let page = browser.page(screen).await;
        let first = leaders(&fixture.view("nightly").await)[0].name.clone();
        page.open(&format!("{}/elections/nightly?namespace=default", fixture.url)).await;

        page.click("[data-key=transfer]").await;
        page.until("document.querySelector('dialog[open] #confirm')").await;
        page.screenshot(&format!("dialog-{}", screen.name())).await;
        // Escape and Cancel close the dialog without an effect.
        page.press("Escape").await;
        page.until("!document.querySelector('dialog') && document.activeElement.dataset.key == 'transfer'")
            .await;
        page.click("[data-key=transfer]").await;
        page.click("dialog [data-cancel]").await;
        page.until("!document.querySelector('dialog')").await;
        assert_eq!(leaders(&fixture.view("nightly").await)[0].name, first);

        // Choose the second candidate.
        page.click("[data-key=transfer]").await;
        page.until("document.querySelectorAll('dialog input[name=to]').length > 1").await;
        let to = page
            .eval("document.querySelectorAll('dialog .choices label')[1].querySelector('.strong').innerText")
            .await;
        page.click("dialog .choices label:nth-child(2)").await;
        page.follow("dialog button").await;
        let moved = fixture.until_led_by("nightly", to.as_str().unwrap()).await;
        page.shows("Transfer requested.").await;
        page.until(&format!("document.querySelector('#leaders .name').innerText == {to}")).await;
        page.assert_no_problems().await;

        page.click("[data-key=resign]").await;
        page.follow("dialog button").await;
        let token = moved.leases[0].token;
        fixture.until("nightly", |view| view.holders().any(|(lease, _)| lease.token > token)).await;
        page.assert_no_problems().await;

        page.click("[data-key=pause]").await;
        page.click("dialog #reason").await;
        page.type_text("a <b>break</b> & more").await;
        page.follow("dialog button").await;
        let paused =
            fixture.until("nightly", |view| view.paused.is_some() && view.holders().count() == 0).await;
        let pause = paused.paused.unwrap();
        assert_eq!((pause.paused_by.as_str(), pause.reason.as_str()), ("local", "a <b>break</b> & more"));
        page.shows("“a <b>break</b> & more”").await;
        page.screenshot(&format!("just-paused-{}", screen.name())).await;

        page.click("[data-key=resume]").await;
        page.follow("dialog button").await;
        // The candidate with the highest priority leads in the end.
        let resumed = fixture.until_led_by("nightly", "node-a").await;
        assert!(resumed.paused.is_none());

        // The button of a candidate preselects it.
        page.until("document.querySelector('#leaders .name').innerText == 'node-a'").await;
        page.until("document.querySelector('tr.leader th').innerText == 'node-a'").await;
        let other =
            "[...document.querySelectorAll('#candidates tbody tr')].find(row => row.querySelector('a'))";
        let id = page.eval(&format!("{other}.querySelector('th').innerText")).await;
        page.click("#candidates td a").await;
        page.until(&format!(
            "document.querySelector('dialog :checked').closest('label').innerText.includes({id})"
        ))
        .await;
        page.follow("dialog button").await;
        fixture.until_led_by("nightly", id.as_str().unwrap()).await;
        assert!(resumed.leases[0].token < fixture.view("nightly").await.leases[0].token);
        page.assert_no_problems().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn actions_are_recorded_in_the_audit_log() {
    let (fixture, browser) = tokio::join!(Fixture::with_elections(), Browser::start());
    let page = browser.page(DESKTOP_LIGHT).await;
    page.open(&format!("{}/audit", fixture.url)).await;
    page.shows("No entries yet").await;
    for n in 0..60 {
        page.eval(&format!(
            "fetch('/elections/cache-warmer/{}?namespace=default', {{method: 'POST', redirect: 'manual', \
             body: new URLSearchParams({{expected_token: '0', reason: 'round {n}'}})}}).then(() => 0)",
            if n % 2 == 0 { "pause" } else { "resume" }
        ))
        .await;
    }
    // An open page updates by itself.
    page.shows("round 58").await;
    assert_eq!(fixture.audit_log().await[0], "local election.resume cache-warmer ");
    fixture.until_led_by("cache-warmer", "warmer-eu").await;
    for screen in Screen::all() {
        page.set_screen(screen).await;
        page.open(&format!("{}/audit", fixture.url)).await;
        page.screenshot(&format!("audit-{}", screen.name())).await;
        page.follow(".pager a").await;
        page.shows("round 0").await;
        page.follow(".pager a").await;
        page.shows("round 58").await;
        page.assert_no_problems().await;
    }
    page.open(&format!("{}/elections/cache-warmer?namespace=default", fixture.url)).await;
    page.shows("Activity").await;
    page.screenshot("election-with-activity").await;
    page.follow("#activity header a").await;
    page.shows("Changes made by operators and clients").await;
    page.assert_no_problems().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn access_tokens_are_required_created_and_revoked() {
    let (mut fixture, browser) =
        tokio::join!(Fixture::with(|settings| settings.auth = true), Browser::start());
    fixture.join("nightly", "node-a", 0).await.join("prod/accounting", "accounting-1", 0).await;
    fixture.until_led_by("prod/accounting", "accounting-1").await;
    let root = fixture.token("ada", &["*:admin"]).await;
    for screen in Screen::all() {
        let page = browser.page(screen).await;
        page.open(&format!("{}/credentials", fixture.url)).await;
        page.until("location.pathname == '/login'").await;
        page.assert_no_problems().await;
        page.click("#access_token").await;
        page.type_text("tenure_nonsense").await;
        page.follow("main form button").await;
        page.shows("the access token is unknown").await;
        page.screenshot(&format!("login-refused-{}", screen.name())).await;
        // The browser logs the 401.
        page.clear_complaints();
        page.click("#access_token").await;
        page.type_text(&root).await;
        page.follow("main form button").await;
        page.until("location.pathname == '/credentials'").await;
        assert_eq!(page.eval("document.cookie").await, "", "scripts cannot read the cookie");

        let name = format!("reader-{}", screen.name());
        page.click("#name").await;
        page.type_text(&name).await;
        page.follow(".form button").await;
        page.shows("Copy it now").await;
        page.screenshot(&format!("credentials-{}", screen.name())).await;
        page.assert_no_problems().await;
        let secret = page.eval("document.getElementById('secret').textContent").await;
        page.open(&format!("{}/credentials", fixture.url)).await;
        page.shows(&name).await;
        assert_eq!(page.eval(&format!("document.body.innerHTML.includes({secret})")).await, false);

        // A principal with read permission in one namespace sees only that one, and no buttons.
        let other = browser.page(screen).await;
        other.open(&format!("{}/", fixture.url)).await;
        other.click("#access_token").await;
        other.type_text(secret.as_str().unwrap()).await;
        other.follow("main form button").await;
        other.shows("nightly").await;
        assert_eq!(other.eval("document.body.innerText.includes('accounting')").await, false);
        assert_eq!(other.eval("document.body.innerText.includes('Credentials')").await, false);
        other.follow("#elections tbody a").await;
        assert_eq!(other.eval("document.querySelectorAll('[data-confirm]').length").await, 0);
        other.screenshot(&format!("reader-{}", screen.name())).await;
        other.assert_no_problems().await;
        for path in [
            "/credentials",
            "/elections/accounting?namespace=prod",
            "/elections/nightly/pause?namespace=default",
        ] {
            other.open(&format!("{}{path}", fixture.url)).await;
            other.shows("Forbidden").await;
        }
        other.screenshot(&format!("forbidden-{}", screen.name())).await;
        let post = "fetch('/elections/nightly/pause?namespace=default', {method: 'POST', body: new URLSearchParams({expected_token: '0'})})\
            .then(answer => answer.status)";
        assert_eq!(other.eval(post).await, 403);
        assert!(fixture.view("nightly").await.paused.is_none());
        other.clear_complaints();
        other.open(&format!("{}/", fixture.url)).await;

        // A revoked access token also loses its access on open pages.
        page.click("tr:has(th:first-child) a[data-confirm]").await;
        page.shows("This cannot be undone").await;
        page.screenshot(&format!("revoke-{}", screen.name())).await;
        page.follow("dialog button").await;
        page.shows("Revoked").await;
        page.assert_no_problems().await;
        other.until("location.pathname == '/login'").await;

        page.follow("form[action='/logout'] button").await;
        page.until("location.pathname == '/login'").await;
        page.open(&format!("{}/audit", fixture.url)).await;
        page.until("location.pathname == '/login'").await;
        page.assert_no_problems().await;
    }
    let entries = fixture.audit_log().await;
    assert!(entries[0].starts_with("ada credential.revoke"), "{entries:?}");
    assert!(entries[1].starts_with("ada credential.create"), "{entries:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn a_live_page_updates_and_keeps_focus_and_input() {
    let (mut fixture, browser) = tokio::join!(Fixture::with_elections(), Browser::start());
    let page = browser.page(DESKTOP_LIGHT).await;
    page.open(&format!("{}/", fixture.url)).await;
    page.until("document.getElementById('live').innerText == 'live'").await;
    // The lease remaining decreases between heartbeats and increases with each.
    page.eval(
        "window.seen = []; setInterval(() => seen.push(Number(document.querySelector('[data-key=\"row-default/nightly\"] progress')?.value)), 50)",
    )
    .await;
    page.until("seen.some((left, n) => left < seen[n - 1]) && seen.some((left, n) => left > seen[n - 1])")
        .await;
    // Keyboard users can skip the navigation and see the focus.
    page.press("Tab").await;
    page.until(
        "document.activeElement.matches('.skip') && document.activeElement.getBoundingClientRect().top >= 0",
    )
    .await;
    page.press("Enter").await;
    page.until("document.activeElement.id == 'main'").await;
    // Input and focus survive updates of the page.
    page.click("#q").await;
    page.type_text("ware").await;
    fixture.join("another", "newcomer", 0).await;
    page.until("document.querySelector('[data-key=\"row-default/another\"] .state.good')").await;
    assert_eq!(page.eval("document.activeElement.id + document.activeElement.value").await, "qware");
    page.until("document.getElementById('news').innerText.includes('another: newcomer')").await;
    page.press("Enter").await;
    page.until("location.search.includes('q=ware') && !document.querySelector('#elections tbody')").await;

    page.open(&format!("{}/elections/nightly?namespace=default", fixture.url)).await;
    page.click("[data-key=pause]").await;
    page.click("dialog #reason").await;
    page.type_text("half a rea").await;
    fixture.join("nightly", "node-z", 1).await;
    page.until("[...document.querySelectorAll('#candidates th')].some(th => th.innerText == 'node-z')").await;
    assert_eq!(page.eval("document.querySelector('dialog[open] #reason').value").await, "half a rea");
    page.assert_no_problems().await;

    // After the server stops, the page shows that it reconnects and keeps its content.
    fixture.server.shutdown().await;
    page.until("document.getElementById('live').innerText == 'reconnecting…'").await;
    assert_eq!(page.eval("document.querySelector('#leaders .name').innerText").await, "node-a");
    page.press("Escape").await;
    // Without a connection the lease remaining is unknown, not expired.
    page.until("document.querySelector('#leaders output').innerText == 'unknown'").await;
    page.screenshot("reconnecting").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn elections_work_without_the_script() {
    let (fixture, browser) = tokio::join!(Fixture::with_elections(), Browser::start());
    let page = browser.page(DESKTOP_LIGHT).await;
    page.call("Emulation.setScriptExecutionDisabled", serde_json::json!({"value": true})).await;
    page.open(&format!("{}/?namespace=prod", fixture.url)).await;
    page.until("document.querySelector('noscript a')?.innerText == 'Refresh'").await;
    page.follow("#elections tbody tr:nth-child(2) a").await;
    page.shows("render-farm").await;
    page.open(&format!("{}/elections/nightly?namespace=default", fixture.url)).await;
    page.screenshot("without-script").await;
    page.follow("[data-key=pause]").await;
    page.click("#reason").await;
    page.type_text("manual stop").await;
    page.follow("#confirm button").await;
    page.shows("“manual stop”").await;
    fixture
        .until("nightly", |view| view.paused.as_ref().is_some_and(|pause| pause.reason == "manual stop"))
        .await;
    page.follow("form[action='/theme'] button").await;
    page.until(
        "document.documentElement.dataset.theme == 'dark' && location.pathname == '/elections/nightly'",
    )
    .await;
    page.screenshot("dark-theme").await;
    page.assert_no_problems().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn inline_code_is_blocked_and_reported() {
    let (fixture, browser) = tokio::join!(Fixture::empty(), Browser::start());
    let plants = [
        "document.body.insertAdjacentHTML('beforeend', '<p style=\"color: red\">x</p>')",
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))",
        "document.body.append(Object.assign(new Image(), {src: 'https://elsewhere.example/x.png'}))",
    ];
    for plant in plants {
        let page = browser.page(DESKTOP_LIGHT).await;
        page.open(&fixture.url).await;
        page.assert_no_problems().await;
        page.eval(&format!("{{ {plant} }} 0")).await;
        let deadline = tenure::runtime::now() + std::time::Duration::from_secs(10);
        while page.complaints().is_empty() {
            assert!(tenure::runtime::now() < deadline, "no complaint about {plant}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        assert!(page.complaints().iter().any(|said| said.contains("olicy")), "{:?}", page.complaints());
        assert_eq!(page.eval("window.ran ?? 0").await, 0);
    }
}
