//! Topics, consumer groups and parked events in the browser.

use std::time::Duration;

use tenure::port::{EventAdmin, GroupView, NewEvent, Payload, StartOffset};
use tenure::{HandlerError, Tenure};

use crate::DESKTOP_LIGHT;
use crate::chrome::{Browser, Page, Screen};
use crate::event_data::{event, group, topic};
use crate::fixture::Fixture;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn every_page_of_events_fits_every_screen() {
    let (fixture, browser) = tokio::join!(Fixture::with_events(), Browser::start());
    let page = browser.page(DESKTOP_LIGHT).await;
    let last = fixture
        .events("orders")
        .await
        .into_iter()
        .find(|event| event.headers.contains_key("trace"))
        .unwrap()
        .id;
    let dead = fixture.parked_events("orders/billing", true).await;
    let parked = dead.iter().find(|parked| parked.waiting_behind_count > 0).unwrap().event.id;
    let billing = "/topics/orders/groups/billing";
    let fixed = [
        ("topics", "/topics".into(), "Topics and consumer groups"),
        ("topics-filtered", "/topics?namespace=prod&q=acc".into(), "1 of 5 topics"),
        ("topics-none", "/topics?q=nonesuch".into(), "No matching topics"),
        ("topic", "/topics/orders?namespace=default".into(), "Recent events"),
        ("topic-partition", "/topics/orders?namespace=default&partition=3".into(), "of partition 3"),
        ("topic-empty", "/topics/empty?namespace=default".into(), "No groups."),
        ("topic-new", "/new-topic?namespace=default".into(), "Create topic"),
        ("topic-settings", "/topics/orders/settings?namespace=default".into(), "Retention of unread events"),
        ("topic-group", "/topics/orders/group?namespace=default".into(), "Create a group of orders"),
        ("topic-publish", "/topics/orders/publish?namespace=default".into(), "Publish to orders"),
        ("topic-delete", "/topics/orders/delete?namespace=default".into(), "This cannot be undone"),
        ("event", format!("/topics/orders/events/{last}?namespace=default"), "Delivery status"),
        ("group", format!("{billing}?namespace=default"), "Partition assignment"),
        (
            "group-found",
            format!("{billing}?namespace=default&find=customer-12&partitions=all"),
            "Key customer-12 is in partition",
        ),
        ("group-parked", format!("{billing}?namespace=default&parked=all"), "timed out after 30 s"),
        ("group-key", format!("{billing}?namespace=default&parked=all&key=customer-13"), "divide by zero"),
        (
            "group-paused",
            "/topics/orders/groups/mailer?namespace=default".into(),
            "the <mail> provider is down",
        ),
        (
            "group-alone",
            "/topics/orders/groups/search?namespace=default".into(),
            "No members. Published events accumulate",
        ),
        ("group-256", "/topics/clicks/groups/heatmap?namespace=default".into(), "heat-e"),
        ("group-1024", "/topics/accounting/groups/audit?namespace=prod".into(), "auditor-14"),
        (
            "group-webhook",
            "/topics/quiet/groups/hooks?namespace=default".into(),
            "https://example.org/hooks/quiet?…",
        ),
        ("group-settings", format!("{billing}/settings?namespace=default"), "Maximum attempts"),
        ("group-pause", format!("{billing}/pause?namespace=default"), "Reason"),
        ("group-reset", format!("{billing}/reset?namespace=default"), "Choose the new offsets."),
        (
            "group-reset-preview",
            format!("{billing}/reset?namespace=default&to=earliest"),
            "Nothing has changed yet",
        ),
        ("group-webhook-form", format!("{billing}/webhook?namespace=default"), "Standard Webhooks"),
        ("group-delete", format!("{billing}/delete?namespace=default"), "Delete billing?"),
        (
            "parked",
            format!("{billing}/parked-events/{parked}?namespace=default"),
            "Waiting behind it, in order",
        ),
        (
            "dead-letter-replay",
            format!("{billing}/parked-events/{parked}/replay?namespace=default"),
            "Replay event",
        ),
        (
            "dead-letters-drop",
            format!("{billing}/dead-letters/drop?namespace=default"),
            "Later dead letters are not affected",
        ),
        ("front-events", "/".into(), "Lag:"),
    ];
    let mut links = std::collections::BTreeSet::new();
    for (name, path, text) in &fixed {
        page.open(&format!("{}{path}", fixture.url)).await;
        page.shows(text).await;
        page.fits_every_screen(name).await;
        // Folded content must fit too.
        page.eval("document.querySelectorAll('details').forEach(folded => folded.open = true)").await;
        for screen in Screen::every() {
            page.set_screen(screen).await;
            page.assert_no_problems().await;
        }
        page.screenshot(&format!("{name}-unfolded")).await;
        assert_eq!(page.eval("document.body.innerHTML.includes('hidden-in-here')").await, false, "{name}");
        let found = page.eval("[...new Set([...document.querySelectorAll('a')].map(a => new URL(a.href.baseVal ?? a.href, location).href.split('#')[0]))]").await;
        links.extend(found.as_array().unwrap().iter().map(|href| href.as_str().unwrap().to_owned()));
    }
    for link in &links {
        assert!(link.starts_with(&fixture.url), "{link} leads to another site");
        assert_eq!(page.eval(&format!("fetch({link:?}).then(answer => answer.status)")).await, 200, "{link}");
    }
    assert!(links.len() > 80, "{links:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn an_empty_topic_list_shows_the_first_command_and_its_result() {
    let (fixture, browser) = tokio::join!(Fixture::empty(), Browser::start());
    let page = browser.page(DESKTOP_LIGHT).await;
    for screen in Screen::all() {
        page.set_screen(screen).await;
        page.open(&format!("{}/topics", fixture.url)).await;
        page.shows("No topics yet").await;
        page.screenshot(&format!("empty-topics-{}", screen.name())).await;
        page.assert_no_problems().await;
    }
    let command = page.eval("document.getElementById('create').textContent").await;
    assert_eq!(command, format!("tenure events topics create orders --store {}", fixture.url));
    // The page shows the new topic without a reload.
    fixture.topic("orders", 64).await;
    page.until("document.querySelector('#topics tbody th')?.innerText == 'orders'").await;
    page.assert_no_problems().await;
}

/// An expression for the value of a fact.
fn fact(name: &str) -> String {
    format!(
        "[...document.querySelectorAll('.counts div')].find(d => d.querySelector('dt').innerText == '{name}').querySelector('dd').innerText"
    )
}

/// The distinct letters of the partition assignment, sorted.
const LETTERS: &str = "[...new Set([...document.querySelectorAll('.partitions .cell b')].map(b => b.innerText))].sort().join('')";

async fn member(fixture: &Fixture, name: &str) -> (Tenure, tenure::Consumer) {
    let builder = Tenure::builder().store(fixture.store.clone()).name(name).lease(Duration::from_secs(9));
    let tenure = builder.open().await.unwrap();
    let handler = |batch: tenure::EventBatch| async move {
        match batch.iter().find(|event| event.event_type == "poison") {
            Some(event) => Err(HandlerError::permanent(format!("event {} is <poison>", event.id))),
            None => Ok(()),
        }
    };
    let consumer = tenure.consumer("orders", "billing").member(name).handler(handler).start().await.unwrap();
    (tenure, consumer)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn the_group_page_shows_how_lag_grows_and_shrinks() {
    let (fixture, browser) = tokio::join!(Fixture::empty(), Browser::start());
    fixture.topic("orders", 64).await;
    fixture
        .store
        .set_group(&group("orders/billing"), &Default::default(), StartOffset::Earliest)
        .await
        .unwrap();
    let page = browser.page(DESKTOP_LIGHT).await;
    page.open(&format!("{}/topics/orders/groups/billing?namespace=default", fixture.url)).await;
    page.until("document.getElementById('live').innerText == 'live'").await;
    page.until(&format!("{LETTERS} == '–' && {} == '0'", fact("Lag (events)"))).await;
    // The lag grows ...
    let events: Vec<_> = (0..300).map(|n| event("order.paid", &format!("customer-{n}"), "{}")).collect();
    fixture.publish("orders", &events).await;
    page.until(&format!("{} == '300'", fact("Lag (events)"))).await;
    page.until("document.querySelector('#state').innerText.trim() == 'No members'").await;
    // ... until a member joins, gets all partitions and reads all events.
    let _first = member(&fixture, "billing-a").await;
    page.until(&format!("{LETTERS} == 'A' && {} == '0'", fact("Lag (events)"))).await;
    page.until("document.querySelector('#state').innerText.trim() == 'Up to date'").await;
    // The chart shows the peak and the decrease.
    let lows = "document.querySelector('.line.f-lag').getAttribute('d').split(/[ML]/).filter(Boolean).map(p => Number(p.split(' ')[1]))";
    page.until(&format!("Math.min(...{lows}) < 50 && {lows}.at(-1) == 99")).await;
    // A second member gets half of the partitions.
    let second = member(&fixture, "billing-b").await;
    page.until(&format!("{LETTERS} == 'AB'")).await;
    page.until("[...document.querySelectorAll('#members tbody .load .small')].map(e => e.innerText).join() == '32 partitions,32 partitions'").await;
    page.screenshot("group-shared").await;
    // A failed event is shown and announced to screen readers.
    fixture
        .publish(
            "orders",
            &[event("poison", "customer-5", r#"{"n": 1}"#), event("order.paid", "customer-5", "{}")],
        )
        .await;
    page.shows("is <poison>").await;
    page.until("document.getElementById('news').innerText.includes('orders/billing has 1 dead letter')")
        .await;
    page.until(&format!("{} == '1' && {} == '1'", fact("Dead letters"), fact("Parked"))).await;
    // A member that leaves disappears from the chart.
    second.1.drain().await.unwrap();
    second.0.close().await.unwrap();
    page.until(&format!("{LETTERS} == 'A'")).await;
    page.assert_no_problems().await;
}

/// Replace the value of a field of a dialog.
async fn fill(page: &Page, field: &str, text: &str) {
    page.click(&format!("dialog {field}")).await;
    page.eval(&format!("document.querySelector('dialog {field}').value = ''")).await;
    page.type_text(text).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn actions_on_topics_change_the_store() {
    let browser = Browser::start().await;
    for screen in Screen::all() {
        let fixture = Fixture::with_events().await;
        let page = browser.page(screen).await;
        page.open(&format!("{}/topics", fixture.url)).await;
        // Without a selected namespace the default one is used.
        page.click("[data-key=new]").await;
        fill(&page, "#name", "invoices").await;
        fill(&page, "#partitions", "16").await;
        fill(&page, "#retention", "36h").await;
        fill(&page, "#unread_retention", "30d").await;
        page.screenshot(&format!("dialog-topic-{}", screen.name())).await;
        page.follow("dialog button").await;
        page.shows("Topic created.").await;
        let view = fixture.store.topic(&topic("invoices")).await.unwrap().unwrap();
        assert_eq!((view.settings.partitions, view.settings.retention_ms), (16, 36 * 3_600_000));
        assert_eq!(view.settings.unread_retention_ms, Some(30 * 86_400_000));

        // Invalid settings are rejected.
        page.click("[data-key=settings]").await;
        fill(&page, "#unread_retention", "1h").await;
        page.follow("dialog button").await;
        page.shows("unread_retention_ms is 3600000, less than retention_ms").await;
        page.clear_complaints();
        page.open(&format!("{}/topics/invoices?namespace=default", fixture.url)).await;
        page.click("[data-key=settings]").await;
        fill(&page, "#unread_retention", "").await;
        fill(&page, "#max_payload_bytes", "2000").await;
        page.follow("dialog button").await;
        page.shows("Settings saved.").await;
        page.shows("until every group has read them").await;
        let settings = fixture.store.topic(&topic("invoices")).await.unwrap().unwrap().settings;
        assert_eq!(
            (settings.partitions, settings.unread_retention_ms, settings.max_payload_bytes),
            (16, None, 2000)
        );

        // Publish an event; its payload unfolds on demand.
        page.click("[data-key=publish]").await;
        fill(&page, "#type", "invoice.sent").await;
        fill(&page, "#key", "customer <7>").await;
        fill(&page, "#payload", r#"{"sum": 12345678901234567890.10}"#).await;
        page.click("dialog #more summary").await;
        fill(&page, "#headers", "trace: 42:1").await;
        page.screenshot(&format!("dialog-publish-{}", screen.name())).await;
        page.follow("dialog button").await;
        page.shows("Event published.").await;
        let made = fixture.events("invoices").await;
        assert_eq!(
            (made[0].event_type.as_str(), made[0].key.as_deref()),
            ("invoice.sent", Some("customer <7>"))
        );
        assert_eq!(made[0].headers["trace"], "42:1");
        assert_eq!(made[0].payload, Payload::Json(r#"{"sum": 12345678901234567890.10}"#.parse().unwrap()));
        page.until("!document.querySelector('#events .payload').checkVisibility()").await;
        page.click("#events summary").await;
        page.until("document.querySelector('#events .payload').innerText.includes('  \"sum\": 12345678901234567890.10')").await;
        // It stays unfolded when the page updates.
        fixture.publish("invoices", &[event("invoice.paid", "customer-8", "{}")]).await;
        page.until("document.querySelectorAll('#events tbody tr').length == 2").await;
        page.until("document.querySelector('#events details[open] .payload')?.checkVisibility()").await;
        // An event that is too large is rejected.
        page.click("[data-key=publish]").await;
        fill(&page, "#payload", &format!("\"{}\"", "x".repeat(3000))).await;
        page.follow("dialog button").await;
        page.shows("this topic allows at most 2000").await;
        page.clear_complaints();
        assert_eq!(fixture.events("invoices").await.len(), 2);

        // Create a group that starts with new events.
        page.open(&format!("{}/topics/invoices?namespace=default", fixture.url)).await;
        page.click("[data-key=group]").await;
        fill(&page, "#name", "accounting").await;
        page.click("dialog input[value=latest]").await;
        fill(&page, "#max_attempts", "4").await;
        page.follow("dialog button").await;
        page.shows("Group created.").await;
        let made = fixture.group("invoices/accounting").await;
        assert_eq!((made.lag(), made.settings.max_attempts), ((0, true), 4));
        page.open(&format!("{}/topics/invoices?namespace=default", fixture.url)).await;
        page.follow("#events tbody th a").await;
        page.shows("Processed").await;
        page.assert_no_problems().await;

        // Deleting requires the name, and no active members.
        page.open(&format!("{}/topics/orders?namespace=default", fixture.url)).await;
        page.click("[data-key=delete]").await;
        fill(&page, "#name", "orders").await;
        page.follow("dialog button").await;
        page.shows("Conflict").await;
        page.clear_complaints();
        page.open(&format!("{}/topics/invoices?namespace=default", fixture.url)).await;
        page.click("[data-key=delete]").await;
        fill(&page, "#name", "invoices").await;
        page.follow("dialog button").await;
        page.shows("Topic deleted, with its events and groups.").await;
        // The previous page may have refreshed after the deletion.
        page.clear_complaints();
        assert!(fixture.store.topic(&topic("invoices")).await.unwrap().is_none());
        assert!(fixture.store.topic(&topic("orders")).await.unwrap().is_some());
        page.assert_no_problems().await;
        let entries = fixture.audit_log().await;
        let done: Vec<_> = entries
            .iter()
            .rev()
            .map(|entry| entry.split(' ').take(3).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            done,
            [
                "local topic.set invoices",
                "local topic.set invoices",
                "local event.publish invoices",
                "local group.set invoices/accounting",
                "local topic.delete invoices"
            ]
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn actions_on_groups_change_the_store() {
    let browser = Browser::start().await;
    for screen in Screen::all() {
        let fixture = Fixture::with_events().await;
        let page = browser.page(screen).await;
        let search = format!("{}/topics/orders/groups/search?namespace=default", fixture.url);
        page.open(&search).await;

        page.click("[data-key=pause]").await;
        page.click("dialog #reason").await;
        page.type_text("a <b>break</b>").await;
        page.follow("dialog button").await;
        page.shows("“a <b>break</b>”").await;
        let paused = fixture.group("orders/search").await.paused.expect("paused");
        assert_eq!((paused.paused_by.as_str(), paused.reason.as_str()), ("local", "a <b>break</b>"));
        page.click("[data-key=resume]").await;
        page.follow("dialog button").await;
        page.shows("Resumed from").await;
        assert!(fixture.group("orders/search").await.paused.is_none());

        page.click("[data-key=settings]").await;
        fill(&page, "#max_attempts", "7").await;
        fill(&page, "#max_backoff", "2min").await;
        page.follow("dialog button").await;
        page.shows("Settings saved.").await;
        let settings = fixture.group("orders/search").await.settings;
        assert_eq!((settings.max_attempts, settings.backoff.max_ms), (7, 120_000));

        // The preview changes nothing.
        let before = fixture.group("orders/search").await;
        page.click("[data-key=reset]").await;
        page.click("dialog input[value=latest]").await;
        page.screenshot(&format!("dialog-reset-{}", screen.name())).await;
        page.follow("dialog button").await;
        page.shows("Nothing has changed yet").await;
        let leases = |view: &GroupView| {
            view.partitions.iter().map(|partition| partition.partition_lease.clone()).collect::<Vec<_>>()
        };
        assert_eq!(leases(&fixture.group("orders/search").await), leases(&before));
        page.screenshot(&format!("reset-preview-{}", screen.name())).await;
        page.follow("[data-key=do]").await;
        page.shows("Offsets reset.").await;
        assert_eq!(fixture.group("orders/search").await.lag(), (0, true));
        // Reset one partition to a time.
        let partition = before
            .partitions
            .iter()
            .find(|partition| partition.lag_events > 3)
            .unwrap()
            .partition_lease
            .partition;
        page.click("[data-key=reset]").await;
        page.click("dialog input[value=time]").await;
        fill(&page, "[name=age]", "1h").await;
        fill(&page, "#partition", &partition.to_string()).await;
        page.follow("dialog button").await;
        page.shows(&format!("partition {partition} only")).await;
        page.follow("[data-key=do]").await;
        page.shows("Offsets reset.").await;
        let after = fixture.group("orders/search").await;
        let behind: Vec<_> = after.partitions.iter().filter(|partition| partition.lag_events > 0).collect();
        assert_eq!(
            behind.iter().map(|partition| partition.partition_lease.partition).collect::<Vec<_>>(),
            [partition]
        );
        assert!(
            behind[0].lag_events < before.partitions[partition as usize].lag_events
                && behind[0].lag_ms <= 3_700_000,
            "{behind:?}"
        );

        // Find the partition of a key.
        page.click("#find").await;
        page.type_text("customer-7").await;
        page.follow("#partitions header button").await;
        page.shows("Key customer-7 is in partition").await;
        let lies = tenure_core::rules::event::partition_for_key("customer-7", 64);
        page.until(&format!("document.querySelector('.cell.current').dataset.key == 'partition-{lies}'"))
            .await;
        page.assert_no_problems().await;

        // A webhook, by the rules of the API: not into a private network ...
        page.click("[data-key=webhook]").await;
        fill(&page, "#url", "http://127.0.0.1:9/hook?key=hidden-in-here").await;
        page.follow("dialog button").await;
        page.shows("the URL has a private or local address").await;
        page.clear_complaints();
        assert!(fixture.group("orders/search").await.webhook.is_none());
        // ... and with a secret that is shown once and never again.
        page.open(&search).await;
        page.click("[data-key=webhook]").await;
        fill(&page, "#url", "https://hooks.example.org/orders?key=hidden-in-here").await;
        fill(&page, "#timeout", "3s").await;
        page.screenshot(&format!("dialog-webhook-{}", screen.name())).await;
        page.follow("dialog button").await;
        page.shows("Copy it now").await;
        let shown = "document.getElementById('secret').textContent";
        let secret = page.eval(shown).await;
        assert!(secret.as_str().unwrap().starts_with("whsec_"));
        page.screenshot(&format!("webhook-secret-{}", screen.name())).await;
        let webhook = async || {
            let webhooks = fixture.store.webhooks().await.unwrap();
            webhooks.into_iter().find(|(key, _)| *key == group("orders/search")).unwrap().1
        };
        assert_eq!(
            (secret.as_str(), webhook().await.timeout_ms),
            (Some(webhook().await.secret.as_str()), 3000)
        );
        page.shows("https://hooks.example.org/orders?…").await;
        page.open(&search).await;
        for hidden in [secret.as_str().unwrap(), "hidden-in-here"] {
            assert_eq!(page.eval(&format!("document.body.innerHTML.includes({hidden:?})")).await, false);
        }
        // A change keeps the secret, unless it is rotated.
        page.click("[data-key=webhook]").await;
        fill(&page, "#timeout", "4s").await;
        page.follow("dialog button").await;
        page.shows("Webhook saved.").await;
        assert_eq!(
            (webhook().await.secret.as_str(), webhook().await.timeout_ms),
            (secret.as_str().unwrap(), 4000)
        );
        page.click("[data-key=webhook]").await;
        page.click("dialog input[name=rotate_secret]").await;
        page.follow("dialog button").await;
        page.shows("Copy it now").await;
        assert_eq!(page.eval(shown).await, webhook().await.secret.as_str());
        assert_ne!(Some(webhook().await.secret.as_str()), secret.as_str());
        page.click("[data-key=webhook-delete]").await;
        page.follow("dialog button").await;
        page.shows("Webhook deleted.").await;
        assert!(fixture.group("orders/search").await.webhook.is_none());

        page.open(&format!("{}/topics/orders/groups/mailer?namespace=default", fixture.url)).await;
        page.click("[data-key=delete]").await;
        fill(&page, "#name", "mailer").await;
        page.follow("dialog button").await;
        page.shows("Group deleted").await;
        // The previous page may have refreshed after the deletion.
        page.clear_complaints();
        assert!(fixture.store.group(&group("orders/mailer")).await.unwrap().is_none());
        page.open(&format!("{}/audit", fixture.url)).await;
        page.shows("group.reset").await;
        page.screenshot(&format!("audit-events-{}", screen.name())).await;
        page.assert_no_problems().await;
        let entries = fixture.audit_log().await.join("\n");
        assert!(!entries.contains("hidden-in-here") && !entries.contains("whsec_"), "{entries}");
        assert!(
            entries.contains("local webhook.set orders/search https://hooks.example.org/orders"),
            "{entries}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn dead_letters_are_replayed_and_dropped() {
    let browser = Browser::start().await;
    for screen in Screen::all() {
        let fixture = Fixture::with_events().await;
        let page = browser.page(screen).await;
        let billing = format!("{}/topics/orders/groups/billing?namespace=default", fixture.url);
        let dead = fixture.parked_events("orders/billing", true).await;
        let behind = fixture.parked_events("orders/billing", false).await.len() - dead.len();
        assert_eq!(dead.len(), 2);
        page.open(&billing).await;
        page.until("document.querySelectorAll('#parked tbody tr').length == 2").await;
        // Escape closes the dialog without an effect.
        let row = format!("[data-key=parked-{}]", dead[0].event.id);
        page.click(&format!("{row} [data-key=replay]")).await;
        page.until("document.querySelector('dialog[open] #confirm')").await;
        page.shows(dead[0].last_error.lines().next().unwrap()).await;
        page.press("Escape").await;
        page.until("!document.querySelector('dialog')").await;
        assert_eq!(fixture.parked_events("orders/billing", true).await, dead);

        // Replay one: it is due at once, and the events behind it wait.
        page.click(&format!("{row} [data-key=replay]")).await;
        page.until("document.querySelector('dialog[open] #confirm')").await;
        page.screenshot(&format!("dialog-replay-{}", screen.name())).await;
        page.follow("dialog button").await;
        page.shows("Replayed with all attempts restored.").await;
        let all = fixture.parked_events("orders/billing", false).await;
        let replayed = all.iter().find(|parked| parked.event.id == dead[0].event.id).unwrap();
        assert_eq!((replayed.dead, replayed.attempts, replayed.retry_in_ms), (false, 0, Some(0)));
        assert_eq!(fixture.parked_events("orders/billing", true).await.len(), 1);
        page.until("document.querySelectorAll('#parked tbody tr').length == 1").await;

        // Drop the other one on its own page.
        page.follow("#parked tbody th a").await;
        page.shows(dead[1].last_error.lines().next().unwrap()).await;
        page.click("[data-key=drop]").await;
        page.follow("dialog button").await;
        page.shows("Dropped.").await;
        assert!(fixture.parked_events("orders/billing", true).await.is_empty());
        assert!(
            !fixture
                .parked_events("orders/billing", false)
                .await
                .iter()
                .any(|parked| parked.event.id == dead[1].event.id)
        );
        page.follow(".tabs a[href*='parked=all']").await;
        page.until(&format!("document.querySelectorAll('#parked tbody tr').length == {}", behind + 1)).await;
        page.assert_no_problems().await;
        let entries = fixture.audit_log().await;
        assert!(
            entries[0]
                .starts_with(&format!("local dead_letter.drop orders/billing events {}", dead[1].event.id)),
            "{entries:?}"
        );
        assert!(
            entries[1]
                .starts_with(&format!("local dead_letter.replay orders/billing events {}", dead[0].event.id)),
            "{entries:?}"
        );
        page.shows("dead_letter.drop").await;

        // All at once.
        let fixture = Fixture::with_events().await;
        page.open(&format!("{}/topics/orders/groups/billing?namespace=default", fixture.url)).await;
        let both = fixture.parked_events("orders/billing", true).await;
        page.click("[data-key=replay-all]").await;
        page.shows("Replay 2 dead letters?").await;
        page.follow("dialog button").await;
        page.shows("Replayed").await;
        // Replayed events are still parked.
        page.until("[...document.querySelectorAll('.tabs a')].map(a => a.innerText.trim()).join() == 'Dead letters 0,All parked 9'").await;
        for parked in &both {
            page.until(&format!(
                "document.querySelector('[data-key=parked-{}] .state.next')",
                parked.event.id
            ))
            .await;
        }
        assert!(fixture.parked_events("orders/billing", true).await.is_empty());
        page.assert_no_problems().await;
        let fixture = Fixture::with_events().await;
        page.open(&format!("{}/topics/orders/groups/billing?namespace=default&key=customer-12", fixture.url))
            .await;
        page.click("[data-key=drop-all]").await;
        page.shows("Drop 1 dead letter?").await;
        page.until("document.querySelector('dialog[open] #confirm')").await;
        page.screenshot(&format!("dialog-drop-{}", screen.name())).await;
        page.follow("dialog button").await;
        page.shows("Dropped.").await;
        let left = fixture.parked_events("orders/billing", true).await;
        assert_eq!(
            left.iter().map(|parked| parked.event.key.as_deref()).collect::<Vec<_>>(),
            [Some("customer-13")]
        );
        page.assert_no_problems().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn a_reader_of_events_sees_no_buttons_and_no_other_namespace() {
    let (mut fixture, browser) =
        tokio::join!(Fixture::with(|settings| settings.auth = true), Browser::start());
    fixture.join("nightly", "node-a", 0).await;
    for of in ["orders", "prod/accounting"] {
        fixture.topic(of, 8).await;
        fixture.publish(of, &[NewEvent::new("it.happened")]).await;
        fixture
            .store
            .set_group(&group(&format!("{of}/readers")), &Default::default(), StartOffset::Earliest)
            .await
            .unwrap();
    }
    let reader = fixture.token("reader", &["default:read"]).await;
    let page = browser.page(DESKTOP_LIGHT).await;
    page.open(&format!("{}/topics", fixture.url)).await;
    page.click("#access_token").await;
    page.type_text(&reader).await;
    page.follow("main form button").await;
    page.shows("Topics and consumer groups").await;
    assert_eq!(page.eval("document.body.innerText.includes('accounting')").await, false);
    for path in
        ["/topics", "/topics/orders?namespace=default", "/topics/orders/groups/readers?namespace=default"]
    {
        page.open(&format!("{}{path}", fixture.url)).await;
        page.shows("orders").await;
        assert_eq!(page.eval("document.querySelectorAll('[data-confirm]').length").await, 0, "{path}");
        page.assert_no_problems().await;
    }
    page.screenshot("events-reader").await;
    for path in [
        "/topics/accounting?namespace=prod",
        "/topics/accounting/groups/readers?namespace=prod",
        "/topics/orders/publish?namespace=default",
        "/topics/orders/groups/readers/reset?namespace=default&to=latest",
        "/topics/orders/groups/readers/dead-letters/drop?namespace=default",
    ] {
        page.open(&format!("{}{path}", fixture.url)).await;
        page.shows("Forbidden").await;
    }
    page.clear_complaints();
}
