//! Topics, groups and what failed, in the browser.

use std::time::Duration;

use tenure::port::{Begin, Bureau, GroupView, NewEvent, Payload};
use tenure::{HandlerError, Tenure};

use crate::DESK;
use crate::chrome::{Browser, Look, Page};
use crate::stream::{event, group, topic};
use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn every_page_about_events_fits_every_screen() {
    let (world, browser) = tokio::join!(World::eventful(), Browser::start());
    let page = browser.page(DESK).await;
    let last = world
        .events("orders")
        .await
        .into_iter()
        .find(|event| event.headers.contains_key("trace"))
        .unwrap()
        .id;
    let dead = world.asides("orders/billing", true).await;
    let parked = dead.iter().find(|aside| aside.behind > 0).unwrap().event.id;
    let billing = "/topics/orders/groups/billing";
    let fixed = [
        ("topics", "/topics".into(), "All topics"),
        ("topics-filtered", "/topics?namespace=prod&q=led".into(), "1 of 5 topics"),
        ("topics-none", "/topics?q=nonesuch".into(), "No topic matches"),
        ("topic", "/topics/orders?namespace=default".into(), "The last events"),
        ("topic-slot", "/topics/orders?namespace=default&slot=3".into(), "of slot 3"),
        ("topic-empty", "/topics/empty?namespace=default".into(), "Nobody reads it"),
        ("topic-new", "/new-topic?namespace=default".into(), "Make a topic"),
        ("topic-settings", "/topics/orders/settings?namespace=default".into(), "Keep events for"),
        ("topic-group", "/topics/orders/group?namespace=default".into(), "Add a group to orders"),
        ("topic-publish", "/topics/orders/publish?namespace=default".into(), "Publish to orders"),
        ("topic-delete", "/topics/orders/delete?namespace=default".into(), "This can not be undone"),
        ("event", format!("/topics/orders/events/{last}?namespace=default"), "What became of it"),
        ("group", format!("{billing}?namespace=default"), "Whose slot is whose"),
        (
            "group-found",
            format!("{billing}?namespace=default&find=customer-12&slots=all"),
            "The key customer-12 lies in slot",
        ),
        ("group-aside", format!("{billing}?namespace=default&aside=all"), "timed out after 30 s"),
        ("group-key", format!("{billing}?namespace=default&aside=all&key=customer-13"), "divide by zero"),
        (
            "group-paused",
            "/topics/orders/groups/mailer?namespace=default".into(),
            "the <mail> provider is down",
        ),
        (
            "group-alone",
            "/topics/orders/groups/search?namespace=default".into(),
            "Nobody is in this group now",
        ),
        ("group-256", "/topics/clicks/groups/heatmap?namespace=default".into(), "heat-e"),
        ("group-1024", "/topics/ledger/groups/audit?namespace=prod".into(), "auditor-14"),
        (
            "group-push",
            "/topics/quiet/groups/hooks?namespace=default".into(),
            "https://example.org/hooks/quiet?…",
        ),
        ("group-settings", format!("{billing}/settings?namespace=default"), "Try at most"),
        ("group-pause", format!("{billing}/pause?namespace=default"), "Reason"),
        ("group-reset", format!("{billing}/reset?namespace=default"), "Where shall it go on?"),
        (
            "group-reset-trial",
            format!("{billing}/reset?namespace=default&to=earliest"),
            "Nothing is done yet",
        ),
        ("group-push-form", format!("{billing}/push?namespace=default"), "Standard Webhooks"),
        ("group-delete", format!("{billing}/delete?namespace=default"), "Delete billing?"),
        ("dead", format!("{billing}/aside/{parked}?namespace=default"), "Waiting behind it"),
        ("dead-replay", format!("{billing}/aside/{parked}/replay?namespace=default"), "Replay event"),
        (
            "dead-drop-all",
            format!("{billing}/dead/drop?namespace=default"),
            "What dies from now on is not meant",
        ),
        ("front-events", "/".into(), "unread"),
    ];
    let mut links = std::collections::BTreeSet::new();
    for (name, path, text) in &fixed {
        page.open(&format!("{}{path}", world.url)).await;
        page.shows(text).await;
        page.fits_every_screen(name).await;
        // What is folded away has to fit, too.
        page.eval("document.querySelectorAll('details').forEach(folded => folded.open = true)").await;
        for look in Look::every() {
            page.look(look).await;
            page.calm().await;
        }
        page.screenshot(&format!("{name}-unfolded")).await;
        assert_eq!(page.eval("document.body.innerHTML.includes('hidden-in-here')").await, false, "{name}");
        let found = page.eval("[...new Set([...document.querySelectorAll('a')].map(a => new URL(a.href.baseVal ?? a.href, location).href.split('#')[0]))]").await;
        links.extend(found.as_array().unwrap().iter().map(|href| href.as_str().unwrap().to_owned()));
    }
    for link in &links {
        assert!(link.starts_with(&world.url), "{link} leads away");
        assert_eq!(page.eval(&format!("fetch({link:?}).then(answer => answer.status)")).await, 200, "{link}");
    }
    assert!(links.len() > 80, "{links:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn nothing_yet_teaches_the_first_topic_and_shows_it() {
    let (world, browser) = tokio::join!(World::empty(), Browser::start());
    let page = browser.page(DESK).await;
    for look in Look::all() {
        page.look(look).await;
        page.open(&format!("{}/topics", world.url)).await;
        page.shows("There is no topic yet").await;
        page.screenshot(&format!("empty-topics-{}", look.name())).await;
        page.calm().await;
    }
    let command = page.eval("document.getElementById('make').textContent").await;
    assert_eq!(command, format!("tenure events topics create orders --store {}", world.url));
    // Whoever does that sees it, without touching the page.
    world.topic("orders", 64).await;
    page.until("document.querySelector('#topics tbody th')?.innerText == 'orders'").await;
    page.calm().await;
}

/// What a page says of something, by its name.
fn fact(name: &str) -> String {
    format!(
        "[...document.querySelectorAll('.counts div')].find(d => d.querySelector('dt').innerText == '{name}').querySelector('dd').innerText"
    )
}

/// Whose the slots are, by letters, sorted and without repeats.
const LETTERS: &str =
    "[...new Set([...document.querySelectorAll('.slots .cell b')].map(b => b.innerText))].sort().join('')";

async fn member(world: &World, name: &str) -> (Tenure, tenure::Consumer) {
    let builder = Tenure::builder().store(world.store.clone()).name(name).lease(Duration::from_secs(9));
    let tenure = builder.open().await.unwrap();
    let handler = |batch: tenure::Batch| async move {
        match batch.iter().find(|event| event.kind == "poison") {
            Some(event) => Err(HandlerError::fail_for_good(format!("event {} is <poison>", event.id))),
            None => Ok(()),
        }
    };
    let consumer = tenure.consumer("orders", "billing").member(name).handler(handler).start().await.unwrap();
    (tenure, consumer)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn a_group_of_events_is_seen_falling_behind_and_catching_up() {
    let (world, browser) = tokio::join!(World::empty(), Browser::start());
    world.topic("orders", 64).await;
    world.store.set_group(&group("orders/billing"), &Default::default(), Begin::Earliest).await.unwrap();
    let page = browser.page(DESK).await;
    page.open(&format!("{}/topics/orders/groups/billing?namespace=default", world.url)).await;
    page.until("document.getElementById('live').innerText == 'live'").await;
    page.until(&format!("{LETTERS} == '–' && {} == '0'", fact("Unread"))).await;
    // It falls behind ...
    let events: Vec<_> = (0..300).map(|n| event("order.paid", &format!("customer-{n}"), "{}")).collect();
    world.publish("orders", &events).await;
    page.until(&format!("{} == '300'", fact("Unread"))).await;
    page.until("document.querySelector('#state').innerText.trim() == 'nobody reads'").await;
    // ... until somebody comes, who has every slot, and reads all of it.
    let _first = member(&world, "billing-a").await;
    page.until(&format!("{LETTERS} == 'A' && {} == '0'", fact("Unread"))).await;
    page.until("document.querySelector('#state').innerText.trim() == 'all read'").await;
    // The picture has the height that it had, and the way down.
    let lows = "document.querySelector('.line.f-unread').getAttribute('d').split(/[ML]/).filter(Boolean).map(p => Number(p.split(' ')[1]))";
    page.until(&format!("Math.min(...{lows}) < 50 && {lows}.at(-1) == 99")).await;
    // A second one gets its share, and the map shows it.
    let second = member(&world, "billing-b").await;
    page.until(&format!("{LETTERS} == 'AB'")).await;
    page.until("[...document.querySelectorAll('#members tbody .load .small')].map(e => e.innerText).join() == '32 slots,32 slots'").await;
    page.screenshot("group-shared").await;
    // What fails is told, to those who listen, too.
    world
        .publish(
            "orders",
            &[event("poison", "customer-5", r#"{"n": 1}"#), event("order.paid", "customer-5", "{}")],
        )
        .await;
    page.shows("is <poison>").await;
    page.until("document.getElementById('news').innerText.includes('orders/billing has 1 dead event')").await;
    page.until(&format!("{} == '1' && {} == '1'", fact("Dead"), fact("Aside"))).await;
    // Whoever goes is gone from the map.
    second.1.drain().await.unwrap();
    second.0.close().await.unwrap();
    page.until(&format!("{LETTERS} == 'A'")).await;
    page.calm().await;
}

/// Fills a field of a dialog anew.
async fn fill(page: &Page, field: &str, text: &str) {
    page.click(&format!("dialog {field}")).await;
    page.eval(&format!("document.querySelector('dialog {field}').value = ''")).await;
    page.type_text(text).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn buttons_of_topics_of_events_reach_the_store() {
    let browser = Browser::start().await;
    for look in Look::all() {
        let world = World::eventful().await;
        let page = browser.page(look).await;
        page.open(&format!("{}/topics", world.url)).await;
        // Several namespaces, none chosen: the usual one is meant.
        page.click("[data-key=new]").await;
        fill(&page, "#name", "invoices").await;
        fill(&page, "#slots", "16").await;
        fill(&page, "#keep", "36h").await;
        fill(&page, "#keep_unread", "30d").await;
        page.screenshot(&format!("dialog-topic-{}", look.name())).await;
        page.follow("dialog button").await;
        page.shows("Made. It is empty").await;
        let view = world.store.topic(&topic("invoices")).await.unwrap().unwrap();
        assert_eq!((view.settings.slots, view.settings.keep_ms), (16, 36 * 3_600_000));
        assert_eq!(view.settings.keep_unread_ms, Some(30 * 86_400_000));

        // What makes no sense is told, and nothing is changed.
        page.click("[data-key=settings]").await;
        fill(&page, "#keep_unread", "1h").await;
        page.follow("dialog button").await;
        page.shows("keep_unread_ms is 3600000, which is less than keep_ms").await;
        page.forgive();
        page.open(&format!("{}/topics/invoices?namespace=default", world.url)).await;
        page.click("[data-key=settings]").await;
        fill(&page, "#keep_unread", "").await;
        fill(&page, "#max_bytes", "2000").await;
        page.follow("dialog button").await;
        page.shows("Set.").await;
        page.shows("until every group has read them").await;
        let settings = world.store.topic(&topic("invoices")).await.unwrap().unwrap().settings;
        assert_eq!((settings.slots, settings.keep_unread_ms, settings.max_bytes), (16, None, 2000));

        // An event by hand, seen at once; its payload on demand, and what became of it.
        page.click("[data-key=publish]").await;
        fill(&page, "#type", "invoice.sent").await;
        fill(&page, "#key", "customer <7>").await;
        fill(&page, "#payload", r#"{"sum": 12345678901234567890.10}"#).await;
        page.click("dialog #more summary").await;
        fill(&page, "#headers", "trace: 42:1").await;
        page.screenshot(&format!("dialog-publish-{}", look.name())).await;
        page.follow("dialog button").await;
        page.shows("Published.").await;
        let made = world.events("invoices").await;
        assert_eq!((made[0].kind.as_str(), made[0].key.as_deref()), ("invoice.sent", Some("customer <7>")));
        assert_eq!(made[0].headers["trace"], "42:1");
        assert_eq!(made[0].payload, Payload::Json(r#"{"sum": 12345678901234567890.10}"#.parse().unwrap()));
        page.until("!document.querySelector('#events .laid').checkVisibility()").await;
        page.click("#events summary").await;
        page.until("document.querySelector('#events .laid').innerText.includes('  \"sum\": 12345678901234567890.10')").await;
        // It stays open while the page goes on.
        world.publish("invoices", &[event("invoice.paid", "customer-8", "{}")]).await;
        page.until("document.querySelectorAll('#events tbody tr').length == 2").await;
        page.until("document.querySelector('#events details[open] .laid')?.checkVisibility()").await;
        // What is too large is refused, and told.
        page.click("[data-key=publish]").await;
        fill(&page, "#payload", &format!("\"{}\"", "x".repeat(3000))).await;
        page.follow("dialog button").await;
        page.shows("this topic takes at most 2000").await;
        page.forgive();
        assert_eq!(world.events("invoices").await.len(), 2);

        // A group by hand, which begins with the next event.
        page.open(&format!("{}/topics/invoices?namespace=default", world.url)).await;
        page.click("[data-key=group]").await;
        fill(&page, "#name", "ledger").await;
        page.click("dialog input[value=latest]").await;
        fill(&page, "#max_attempts", "4").await;
        page.follow("dialog button").await;
        page.shows("Made. Its members share the slots").await;
        let made = world.group("invoices/ledger").await;
        assert_eq!((made.lag(), made.settings.max_attempts), ((0, true), 4));
        page.open(&format!("{}/topics/invoices?namespace=default", world.url)).await;
        page.follow("#events tbody th a").await;
        page.shows("handled").await;
        page.calm().await;

        // Deleted by who can say its name, and not while it is read.
        page.open(&format!("{}/topics/orders?namespace=default", world.url)).await;
        page.click("[data-key=delete]").await;
        fill(&page, "#name", "orders").await;
        page.follow("dialog button").await;
        page.shows("Conflict").await;
        page.forgive();
        page.open(&format!("{}/topics/invoices?namespace=default", world.url)).await;
        page.click("[data-key=delete]").await;
        fill(&page, "#name", "invoices").await;
        page.follow("dialog button").await;
        page.shows("Deleted, with all that was in it").await;
        // The page before may have looked once more, at what was gone.
        page.forgive();
        assert!(world.store.topic(&topic("invoices")).await.unwrap().is_none());
        assert!(world.store.topic(&topic("orders")).await.unwrap().is_some());
        page.calm().await;
        let deeds = world.deeds().await;
        let done: Vec<_> =
            deeds.iter().rev().map(|deed| deed.split(' ').take(3).collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            done,
            [
                "local topic.set invoices",
                "local topic.set invoices",
                "local topic.publish invoices",
                "local group.set invoices/ledger",
                "local topic.delete invoices"
            ]
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn buttons_of_groups_of_events_reach_the_store() {
    let browser = Browser::start().await;
    for look in Look::all() {
        let world = World::eventful().await;
        let page = browser.page(look).await;
        let search = format!("{}/topics/orders/groups/search?namespace=default", world.url);
        page.open(&search).await;

        page.click("[data-key=pause]").await;
        page.click("dialog #reason").await;
        page.type_text("a <b>break</b>").await;
        page.follow("dialog button").await;
        page.shows("“a <b>break</b>”").await;
        let paused = world.group("orders/search").await.paused.expect("paused");
        assert_eq!((paused.by.as_str(), paused.reason.as_str()), ("local", "a <b>break</b>"));
        page.click("[data-key=resume]").await;
        page.follow("dialog button").await;
        page.shows("Resumed.").await;
        assert!(world.group("orders/search").await.paused.is_none());

        page.click("[data-key=settings]").await;
        fill(&page, "#max_attempts", "7").await;
        fill(&page, "#most", "2min").await;
        page.follow("dialog button").await;
        page.shows("Set.").await;
        let settings = world.group("orders/search").await.settings;
        assert_eq!((settings.max_attempts, settings.backoff.most_ms), (7, 120_000));

        // A trial first: nothing has moved until it is said twice.
        let before = world.group("orders/search").await;
        page.click("[data-key=reset]").await;
        page.click("dialog input[value=latest]").await;
        page.screenshot(&format!("dialog-reset-{}", look.name())).await;
        page.follow("dialog button").await;
        page.shows("Nothing is done yet").await;
        let positions =
            |view: &GroupView| view.slots.iter().map(|slot| slot.share.clone()).collect::<Vec<_>>();
        assert_eq!(positions(&world.group("orders/search").await), positions(&before));
        page.screenshot(&format!("reset-trial-{}", look.name())).await;
        page.follow("[data-key=do]").await;
        page.shows("Moved.").await;
        assert_eq!(world.group("orders/search").await.lag(), (0, true));
        // And back to a time, of one slot.
        let slot = before.slots.iter().find(|slot| slot.lag > 3).unwrap().share.slot;
        page.click("[data-key=reset]").await;
        page.click("dialog input[value=time]").await;
        fill(&page, "[name=ago]", "1h").await;
        fill(&page, "#slot", &slot.to_string()).await;
        page.follow("dialog button").await;
        page.shows(&format!("slot {slot} only")).await;
        page.follow("[data-key=do]").await;
        page.shows("Moved.").await;
        let after = world.group("orders/search").await;
        let behind: Vec<_> = after.slots.iter().filter(|slot| slot.lag > 0).collect();
        assert_eq!(behind.iter().map(|slot| slot.share.slot).collect::<Vec<_>>(), [slot]);
        assert!(
            behind[0].lag < before.slots[slot as usize].lag && behind[0].lag_ms <= 3_700_000,
            "{behind:?}"
        );

        // Where a key lies.
        page.click("#find").await;
        page.type_text("customer-7").await;
        page.follow("#slots header button").await;
        page.shows("The key customer-7 lies in slot").await;
        let lies = tenure_core::event::slot_of("customer-7", 64);
        page.until(&format!("document.querySelector('.cell.here').dataset.key == 'slot-{lies}'")).await;
        page.calm().await;

        // A push, by the rules of the API: not into a network of our own ...
        page.click("[data-key=push]").await;
        fill(&page, "#url", "http://127.0.0.1:9/hook?key=hidden-in-here").await;
        page.follow("dialog button").await;
        page.shows("an address of a private network").await;
        page.forgive();
        assert!(world.group("orders/search").await.push.is_none());
        // ... and with a secret that is shown once and never again.
        page.open(&search).await;
        page.click("[data-key=push]").await;
        fill(&page, "#url", "https://hooks.example.org/orders?key=hidden-in-here").await;
        fill(&page, "#timeout", "3s").await;
        page.screenshot(&format!("dialog-push-{}", look.name())).await;
        page.follow("dialog button").await;
        page.shows("Copy it now").await;
        let shown = "document.getElementById('secret').textContent";
        let secret = page.eval(shown).await;
        assert!(secret.as_str().unwrap().starts_with("whsec_"));
        page.screenshot(&format!("push-secret-{}", look.name())).await;
        let push = async || {
            let pushes = world.store.pushes().await.unwrap();
            pushes.into_iter().find(|(key, _)| *key == group("orders/search")).unwrap().1
        };
        assert_eq!((secret.as_str(), push().await.timeout_ms), (Some(push().await.secret.as_str()), 3000));
        page.shows("https://hooks.example.org/orders?…").await;
        page.open(&search).await;
        for hidden in [secret.as_str().unwrap(), "hidden-in-here"] {
            assert_eq!(page.eval(&format!("document.body.innerHTML.includes({hidden:?})")).await, false);
        }
        // Changed, it keeps its secret; until somebody wants another.
        page.click("[data-key=push]").await;
        fill(&page, "#timeout", "4s").await;
        page.follow("dialog button").await;
        page.shows("Set. The servers push its events").await;
        assert_eq!((push().await.secret.as_str(), push().await.timeout_ms), (secret.as_str().unwrap(), 4000));
        page.click("[data-key=push]").await;
        page.click("dialog input[name=rotate]").await;
        page.follow("dialog button").await;
        page.shows("Copy it now").await;
        assert_eq!(page.eval(shown).await, push().await.secret.as_str());
        assert_ne!(Some(push().await.secret.as_str()), secret.as_str());
        page.click("[data-key=unset]").await;
        page.follow("dialog button").await;
        page.shows("The servers push its events no more").await;
        assert!(world.group("orders/search").await.push.is_none());

        page.open(&format!("{}/topics/orders/groups/mailer?namespace=default", world.url)).await;
        page.click("[data-key=delete]").await;
        fill(&page, "#name", "mailer").await;
        page.follow("dialog button").await;
        page.shows("The group is deleted").await;
        // The page before may have looked once more, at what was gone.
        page.forgive();
        assert!(world.store.group(&group("orders/mailer")).await.unwrap().is_none());
        page.open(&format!("{}/audit", world.url)).await;
        page.shows("group.reset").await;
        page.screenshot(&format!("audit-events-{}", look.name())).await;
        page.calm().await;
        let deeds = world.deeds().await.join("\n");
        assert!(!deeds.contains("hidden-in-here") && !deeds.contains("whsec_"), "{deeds}");
        assert!(deeds.contains("local push.set orders/search https://hooks.example.org/orders"), "{deeds}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn dead_events_are_replayed_and_dropped() {
    let browser = Browser::start().await;
    for look in Look::all() {
        let world = World::eventful().await;
        let page = browser.page(look).await;
        let billing = format!("{}/topics/orders/groups/billing?namespace=default", world.url);
        let dead = world.asides("orders/billing", true).await;
        let behind = world.asides("orders/billing", false).await.len() - dead.len();
        assert_eq!(dead.len(), 2);
        page.open(&billing).await;
        page.until("document.querySelectorAll('#aside tbody tr').length == 2").await;
        // Escape leads back, and nothing has happened.
        let row = format!("[data-key=aside-{}]", dead[0].event.id);
        page.click(&format!("{row} [data-key=replay]")).await;
        page.until("document.querySelector('dialog[open] #confirm')").await;
        page.shows(dead[0].error.lines().next().unwrap()).await;
        page.press("Escape").await;
        page.until("!document.querySelector('dialog')").await;
        assert_eq!(world.asides("orders/billing", true).await, dead);

        // One is tried again: due at once, those behind it stay there until it is done.
        page.click(&format!("{row} [data-key=replay]")).await;
        page.until("document.querySelector('dialog[open] #confirm')").await;
        page.screenshot(&format!("dialog-replay-{}", look.name())).await;
        page.follow("dialog button").await;
        page.shows("Replayed: tried again at once").await;
        let all = world.asides("orders/billing", false).await;
        let replayed = all.iter().find(|aside| aside.event.id == dead[0].event.id).unwrap();
        assert_eq!((replayed.dead, replayed.attempts, replayed.due_in_ms), (false, 0, Some(0)));
        assert_eq!(world.asides("orders/billing", true).await.len(), 1);
        page.until("document.querySelectorAll('#aside tbody tr').length == 1").await;

        // The other is dropped, from its own page.
        page.follow("#aside tbody th a").await;
        page.shows(dead[1].error.lines().next().unwrap()).await;
        page.click("[data-key=drop]").await;
        page.follow("dialog button").await;
        page.shows("Dropped.").await;
        assert!(world.asides("orders/billing", true).await.is_empty());
        assert!(
            !world
                .asides("orders/billing", false)
                .await
                .iter()
                .any(|aside| aside.event.id == dead[1].event.id)
        );
        page.follow(".tabs a[href*='aside=all']").await;
        page.until(&format!("document.querySelectorAll('#aside tbody tr').length == {}", behind + 1)).await;
        page.calm().await;
        let deeds = world.deeds().await;
        assert!(
            deeds[0].starts_with(&format!("local dead.drop orders/billing events {}", dead[1].event.id)),
            "{deeds:?}"
        );
        assert!(
            deeds[1].starts_with(&format!("local dead.replay orders/billing events {}", dead[0].event.id)),
            "{deeds:?}"
        );
        page.shows("dead.drop").await;

        // All at once.
        let world = World::eventful().await;
        page.open(&format!("{}/topics/orders/groups/billing?namespace=default", world.url)).await;
        let both = world.asides("orders/billing", true).await;
        page.click("[data-key=replay-all]").await;
        page.shows("Replay 2 dead events?").await;
        page.follow("dialog button").await;
        page.shows("Replayed").await;
        // What is not dead any more is shown among all that is aside.
        page.until("[...document.querySelectorAll('.tabs a')].map(a => a.innerText.trim()).join() == 'dead 0,all that is aside 9'").await;
        for aside in &both {
            page.until(&format!("document.querySelector('[data-key=aside-{}] .state.next')", aside.event.id))
                .await;
        }
        assert!(world.asides("orders/billing", true).await.is_empty());
        page.calm().await;
        let world = World::eventful().await;
        page.open(&format!("{}/topics/orders/groups/billing?namespace=default&key=customer-12", world.url))
            .await;
        page.click("[data-key=drop-all]").await;
        page.shows("Drop 1 dead event?").await;
        page.until("document.querySelector('dialog[open] #confirm')").await;
        page.screenshot(&format!("dialog-drop-{}", look.name())).await;
        page.follow("dialog button").await;
        page.shows("Dropped.").await;
        let left = world.asides("orders/billing", true).await;
        assert_eq!(
            left.iter().map(|aside| aside.event.key.as_deref()).collect::<Vec<_>>(),
            [Some("customer-13")]
        );
        page.calm().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn who_may_only_look_at_events_sees_no_buttons_and_no_other_namespace() {
    let (mut world, browser) = tokio::join!(World::with(|settings| settings.auth = true), Browser::start());
    world.stand("nightly", "node-a", 0).await;
    for of in ["orders", "prod/ledger"] {
        world.topic(of, 8).await;
        world.publish(of, &[NewEvent::new("it.happened")]).await;
        world
            .store
            .set_group(&group(&format!("{of}/readers")), &Default::default(), Begin::Earliest)
            .await
            .unwrap();
    }
    let reader = world.token("reader", &["default:read"]).await;
    let page = browser.page(DESK).await;
    page.open(&format!("{}/topics", world.url)).await;
    page.click("#token").await;
    page.type_text(&reader).await;
    page.follow("main form button").await;
    page.shows("All topics").await;
    assert_eq!(page.eval("document.body.innerText.includes('ledger')").await, false);
    for path in
        ["/topics", "/topics/orders?namespace=default", "/topics/orders/groups/readers?namespace=default"]
    {
        page.open(&format!("{}{path}", world.url)).await;
        page.shows("orders").await;
        assert_eq!(page.eval("document.querySelectorAll('[data-confirm]').length").await, 0, "{path}");
        page.calm().await;
    }
    page.screenshot("events-reader").await;
    for path in [
        "/topics/ledger?namespace=prod",
        "/topics/ledger/groups/readers?namespace=prod",
        "/topics/orders/publish?namespace=default",
        "/topics/orders/groups/readers/reset?namespace=default&to=latest",
        "/topics/orders/groups/readers/dead/drop?namespace=default",
    ] {
        page.open(&format!("{}{path}", world.url)).await;
        page.shows("Forbidden").await;
    }
    page.forgive();
}
