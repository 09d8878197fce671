//! Behaviour of an open page: refreshes, dialogs, and an unavailable store.

use serde_json::json;
use tenure::port::{EventAdmin, NewTask, TopicSettings};

use crate::DESKTOP_LIGHT;
use crate::chrome::Browser;
use crate::event_data::topic;
use crate::fixture::Fixture;

/// Regression: The Copy button disappeared at the first refresh.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn the_copy_button_survives_refreshes() {
    let (fixture, browser) = tokio::join!(Fixture::empty(), Browser::start());
    let id = fixture.submit("mail", vec![NewTask::new("welcome")]).await[0];
    let page = browser.page(DESKTOP_LIGHT).await;
    page.open(&format!("{}/tasks/{id}?namespace=default", fixture.url)).await;
    let shown = "document.querySelector('[data-copy=payload]').checkVisibility()";
    page.until(shown).await;
    // At the second refresh the result of the first one is shown.
    page.eval("window.fetched = 0; const plain = fetch; fetch = (...all) => (fetched++, plain(...all)); 0")
        .await;
    page.until("fetched >= 2").await;
    assert_eq!(page.eval(shown).await, true);
    page.assert_no_problems().await;
}

/// Regression: The dialog of a bulk action focused the button that cancels all tasks.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn a_dangerous_dialog_focuses_cancel() {
    let (fixture, browser) = tokio::join!(Fixture::empty(), Browser::start());
    fixture.submit("mail", vec![NewTask::new("welcome"), NewTask::new("other")]).await;
    let page = browser.page(DESKTOP_LIGHT).await;
    page.open(&format!("{}/queues/mail?namespace=default&kind=welcome", fixture.url)).await;
    page.click("[data-key=cancel]").await;
    page.until("document.querySelector('dialog[open]')").await;
    page.until("document.activeElement.matches('dialog [data-cancel]')").await;
    assert_eq!(page.eval("document.querySelector('#confirm-title').innerText").await, "Cancel one task?");
    page.press("Enter").await;
    page.until("!document.querySelector('dialog')").await;
    assert_eq!(fixture.queue("mail").await.count(tenure::port::TaskState::Ready), 2);
    page.assert_no_problems().await;
}

/// Regression: The pattern of the confirmation was invalid for names with a hyphen.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn a_name_with_a_hyphen_can_be_confirmed() {
    let (fixture, browser) = tokio::join!(Fixture::empty(), Browser::start());
    fixture.store.set_topic(&topic("order-events"), &TopicSettings::default()).await.unwrap();
    let page = browser.page(DESKTOP_LIGHT).await;
    page.open(&format!("{}/topics/order-events?namespace=default", fixture.url)).await;
    page.click("[data-key=delete]").await;
    page.click("dialog #name").await;
    page.type_text("order_events").await;
    page.until("!document.querySelector('dialog #name').validity.valid").await;
    page.eval("document.querySelector('dialog #name').value = ''").await;
    page.type_text("order-events").await;
    page.until("document.querySelector('dialog #name').validity.valid").await;
    page.assert_no_problems().await;
    page.follow("dialog button").await;
    page.shows("Topic deleted, with its events and groups.").await;
    page.assert_no_problems().await;
}

/// Regression: A busy page refreshed itself fourteen times in ten seconds.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn a_busy_page_refreshes_at_most_every_two_seconds() {
    let (fixture, browser) = tokio::join!(Fixture::with_elections(), Browser::start());
    let page = browser.page(DESKTOP_LIGHT).await;
    page.open(&format!("{}/", fixture.url)).await;
    let watch = "window.at = []; const plain = fetch; fetch = (...all) => (at.push(performance.now()), plain(...all)); 0";
    page.eval(watch).await;
    page.until("at.length >= 6").await;
    // Five refreshes after the first take ten seconds, or eight if the first was late.
    let took = page.eval("at[5] - at[0]").await.as_f64().unwrap();
    assert!(took > 7_900.0, "six refreshes in {took} ms");
    page.assert_no_problems().await;
}

/// Regression: While the database was unavailable, pages still showed "live" or "reconnecting", and some did
/// not recover.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn every_page_turns_stale_while_the_store_is_unavailable_and_recovers() {
    let (fixture, browser) = tokio::join!(Fixture::with_elections(), Browser::start());
    let id = fixture.submit("mail", vec![NewTask::new("welcome")]).await[0];
    // A page from a snapshot, a page that reads the store, and a form.
    let paths = ["/".to_owned(), format!("/tasks/{id}?namespace=default"), "/schedules/new".into()];
    let mut pages = Vec::new();
    for path in &paths {
        let page = browser.page(DESKTOP_LIGHT).await;
        page.open(&format!("{}{path}", fixture.url)).await;
        page.until("document.getElementById('live').innerText == 'live'").await;
        pages.push(page);
    }
    let late = browser.page(DESKTOP_LIGHT).await;
    fixture.link.cut(true);
    for (page, path) in pages.iter().zip(&paths) {
        page.until("document.getElementById('live').innerText == 'stale'").await;
        page.until("document.querySelectorAll('[data-stale]').length == 1").await;
        page.shows("The store is unavailable.").await;
        page.shows("Data is up to").await;
        page.screenshot(&format!("store-unavailable{}", path.replace(['/', '?', '='], "-"))).await;
    }
    assert_eq!(pages[1].eval("document.querySelector('h1').innerText").await, json!(format!("Task {id}")));
    late.open(&format!("{}/tasks/{id}?namespace=default", fixture.url)).await;
    late.shows("This page cannot be shown.").await;
    late.until("document.getElementById('live').innerText == 'stale'").await;
    assert_eq!(late.eval("document.body.innerText.includes('unknown')").await, false);
    late.screenshot("store-unavailable-unreadable").await;
    fixture.link.cut(false);
    for page in pages.iter().chain([&late]) {
        page.until(
            "document.getElementById('live').innerText == 'live' && !document.querySelector('[data-stale]')",
        )
        .await;
        // The browser logs each 503.
        page.clear_complaints();
    }
    late.shows("Timeline").await;
    assert_eq!(pages[2].eval("document.querySelector('h1').innerText").await, "Create schedule");
}
