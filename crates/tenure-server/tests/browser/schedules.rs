//! Schedules in the browser: every page, what is written, what is done.

use tenure::port::{Calendar, Cause, TickState};
use tenure_core::schedule::{Misfire, Overlap, Target};

use crate::DESK;
use crate::calendar::schedule;
use crate::chrome::{Browser, Look, Page};
use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn every_page_about_schedules_fits_every_screen() {
    let (world, browser) = tokio::join!(World::scheduled(), Browser::start());
    let page = browser.page(DESK).await;
    let task = world.ticks("minutely").await.iter().find_map(|tick| tick.task).unwrap();
    let event = world.ticks("skipping").await.iter().find_map(|tick| tick.event).unwrap();
    let pages = [
        ("schedules", "/schedules".into(), "All schedules"),
        ("schedules-filtered", "/schedules?namespace=prod&q=book".into(), "Schedules that match"),
        ("schedule", "/schedules/nightly?namespace=default".into(), "A column is a day"),
        ("schedule-hours", "/schedules/skipping?namespace=default".into(), "A column is an hour"),
        ("schedule-months", "/schedules/monthly?namespace=default".into(), "A column is a month"),
        ("schedule-late", "/schedules/minutely?namespace=default".into(), "Late, of the last"),
        (
            "schedule-overlap",
            "/schedules/overlapping?namespace=default".into(),
            "an earlier run was under way",
        ),
        ("schedule-stuck", "/schedules/stuck?namespace=default".into(), "It could not fire"),
        ("schedule-paused", "/schedules/ledger?namespace=prod".into(), "the <books> are closed"),
        ("schedule-over", "/schedules/over?namespace=default".into(), "No tick is left"),
        ("schedule-edit", "/schedules/nightly/edit?namespace=default".into(), "What it would mean"),
        (
            "schedule-backfill",
            "/schedules/skipping/backfill?namespace=default".into(),
            "You see which before it is done",
        ),
        ("schedule-tick", format!("/tasks/{task}?namespace=default"), "Tick of"),
        ("front-schedules", "/".into(), "can not fire"),
    ];
    let mut links = std::collections::BTreeSet::new();
    for (name, path, text) in &pages {
        // One visit, seen in every light and width: nothing here asks the server for another page by these.
        page.open(&format!("{}{path}", world.url)).await;
        page.shows(text).await;
        // What is folded away has to fit, too.
        page.eval("document.querySelectorAll('details').forEach(folded => folded.open = true)").await;
        page.fits_every_screen(name).await;
        assert_eq!(
            page.eval(
                "document.querySelector('.strip, .ticks')?.innerHTML.includes('hidden-in-here') ?? false"
            )
            .await,
            false
        );
        let found = page.eval("[...new Set([...document.links].map(a => a.href.split('#')[0]))]").await;
        links.extend(found.as_array().unwrap().iter().map(|href| href.as_str().unwrap().to_owned()));
    }
    links.insert(format!("{}/topics/reports/events/{event}?namespace=default", world.url));
    // A topic that is gone, and queues that are made by their first task.
    let missing = ["/topics/gone", "/queues/books", "/queues/calls"];
    for link in links.iter().filter(|link| !missing.iter().any(|path| link.contains(path))) {
        assert!(link.starts_with(&world.url), "{link} leads away");
        assert_eq!(page.eval(&format!("fetch({link:?}).then(answer => answer.status)")).await, 200, "{link}");
    }
    // From a task and from an event back to the tick, which is marked.
    for path in [format!("tasks/{task}"), format!("topics/reports/events/{event}")] {
        page.look(DESK).await;
        page.open(&format!("{}/{path}?namespace=default", world.url)).await;
        page.follow("[data-key=tick]").await;
        page.until("document.querySelectorAll('tr.meant').length == 1 && document.querySelector('#history tbody tr').matches('.meant')").await;
    }
    page.screenshot("schedule-meant").await;
    page.calm().await;
}

/// Fills a field anew, of a dialog or of a page.
async fn fill(page: &Page, field: &str, text: &str) {
    page.click(field).await;
    page.eval(&format!("document.querySelector({field:?}).select?.()")).await;
    page.type_text(text).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn a_schedule_is_written_checked_and_made() {
    let (world, browser) = tokio::join!(World::quiet(), Browser::start());
    for (n, look) in [Look::all()[0], Look::all()[3]].into_iter().enumerate() {
        let page = browser.page(look).await;
        page.open(&format!("{}/schedules", world.url)).await;
        if n == 0 {
            page.shows("There is no schedule yet").await;
            page.screenshot("empty-schedules").await;
        }
        page.follow("[data-key=new]").await;
        fill(&page, "#name", &format!("nightly-{n}")).await;
        // While it is written, what is wrong is told with its place ...
        fill(&page, "#when", "30 25 * * *").await;
        page.shows("the hour 25 does not exist; hours are 0 to 23").await;
        page.until("document.querySelector('#when').getAttribute('aria-invalid') == 'true'").await;
        page.until("document.querySelector('#preview .where').textContent == '30 25 * * *\\n   ^'").await;
        fill(&page, "#when", "30 2 * * *").await;
        fill(&page, "#zone", "Europe/Belrin").await;
        page.shows("did you mean Europe/Berlin?").await;
        page.screenshot(&format!("schedule-wrong-{}", look.name())).await;
        // ... and what is right, by its next ticks; what was written stays.
        fill(&page, "#zone", "Europe/Berlin").await;
        // What is still empty is no mistake yet, and keeps no tick from being shown.
        page.until("document.querySelectorAll('#preview .ticks li').length == 10 && !document.querySelector('#preview [data-wrong], [aria-invalid]')").await;
        fill(&page, "#queue", "no queue").await;
        page.until("document.querySelector('#preview [data-wrong=queue]') && document.querySelector('#queue').getAttribute('aria-invalid') == 'true'").await;
        fill(&page, "#queue", "reports").await;
        page.until("document.querySelectorAll('#preview .ticks li').length == 10 && !document.querySelector('[aria-invalid]')").await;
        page.until("[...document.querySelectorAll('#preview .ticks .strong')].every(tick => tick.innerText.endsWith(', 02:30') || tick.innerText.endsWith(', 03:30'))").await;
        fill(&page, "#kind", "night").await;
        fill(&page, "#payload", r#"{"sum": 12345678901234567890.10}"#).await;
        page.click("#more summary").await;
        page.eval("(() => { const misfire = document.querySelector('#misfire'); misfire.value = 'fire_all'; misfire.dispatchEvent(new Event('input', {bubbles: true})) })()").await;
        page.until("document.querySelector('#cap').checkVisibility() && !document.querySelector('#grace').checkVisibility()").await;
        fill(&page, "#cap", "0").await;
        page.shows("fire_all(0) is out of range").await;
        fill(&page, "#cap", "7").await;
        page.eval("document.querySelector('#overlap').value = 'queue'").await;
        page.screenshot(&format!("schedule-form-{}", look.name())).await;
        page.calm().await;
        page.follow("[data-key=save]").await;
        page.shows("Made. It fires by itself").await;
        let made = world.planned(&format!("nightly-{n}")).await;
        assert_eq!(
            (made.definition.misfire, made.definition.overlap),
            (Misfire::FireAll { cap: 7 }, Overlap::Queue)
        );
        assert_eq!(made.definition.payload.as_str(), r#"{"sum": 12345678901234567890.10}"#);
        let Target::Task { queue, task } = &made.definition.target else { panic!("{made:?}") };
        assert_eq!(
            (queue.as_str(), task.kind.as_str(), made.updated_by.as_str()),
            ("reports", "night", "local")
        );

        // Made once more, it is refused, and nothing that was written is lost.
        page.open(&format!("{}/schedules/new", world.url)).await;
        fill(&page, "#name", &format!("nightly-{n}")).await;
        fill(&page, "#when", "@hourly").await;
        fill(&page, "#queue", "reports").await;
        page.follow("[data-key=save]").await;
        page.shows("already; choose another name").await;
        assert_eq!(page.eval("document.querySelector('#when').value").await, "@hourly");
        page.forgive();

        // Edited by two: the second is told, and changes nothing.
        page.open(&format!("{}/schedules/nightly-{n}?namespace=default", world.url)).await;
        page.follow("[data-key=edit]").await;
        fill(&page, "#when", "every 90s").await;
        page.follow("[data-key=save]").await;
        page.shows("Set.").await;
        let edited = world.planned(&format!("nightly-{n}")).await;
        assert_eq!(
            (edited.definition.when.to_string().as_str(), edited.version),
            ("every 1m30s", made.version + 1)
        );
        assert_eq!(edited.definition.payload.as_str(), made.definition.payload.as_str());
        page.follow("[data-key=edit]").await;
        world
            .schedule(
                &format!("nightly-{n}"),
                r#"{"when": "every 2h", "target": {"task": {"queue": "reports"}}}"#,
            )
            .await;
        fill(&page, "#when", "every 3h").await;
        page.follow("[data-key=save]").await;
        page.shows("which is not what was expected; nothing was changed").await;
        page.forgive();
        assert_eq!(world.planned(&format!("nightly-{n}")).await.definition.when.to_string(), "every 2h");
    }
    // Without a script there is a button that checks.
    let page = browser.page(DESK).await;
    page.call("Emulation.setScriptExecutionDisabled", serde_json::json!({"value": true})).await;
    page.open(&format!("{}/schedules/new", world.url)).await;
    fill(&page, "#when", "0 0 31 2 *").await;
    page.follow("[data-key=check]").await;
    page.until("document.querySelector('#preview [data-wrong=when]')").await;
    assert_eq!(page.eval("document.querySelector('#when').value").await, "0 0 31 2 *");
    page.calm().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn buttons_of_schedules_reach_the_store() {
    let (world, browser) = tokio::join!(World::scheduled(), Browser::start());
    for look in [Look::all()[1], Look::all()[2]] {
        let page = browser.page(look).await;
        let before = world.planned("nightly").await;
        // From the list: one now, and none any more.
        page.open(&format!("{}/schedules", world.url)).await;
        page.click("[data-key=trigger-nightly]").await;
        fill(&page, "dialog #payload", r#"{"this": "once"}"#).await;
        page.screenshot(&format!("dialog-trigger-{}", look.name())).await;
        page.follow("dialog button").await;
        page.shows("Triggered: one tick has fired").await;
        let ticks = world.ticks("nightly").await;
        assert_eq!(
            (ticks[0].cause, ticks[0].state, ticks[0].by.as_str(), ticks[0].token),
            (Cause::Trigger, TickState::Fired, "local", None)
        );
        let id = ticks[0].event.expect("an event");
        let event = world.events("reports").await.into_iter().find(|event| event.id == id).unwrap();
        assert_eq!(event.payload, tenure::port::Payload::Json(r#"{"this": "once"}"#.parse().unwrap()));
        assert_eq!(
            world.planned("nightly").await.progress,
            before.progress,
            "the ticks to come are as they were"
        );
        page.until("document.querySelector('#history tbody tr').innerText.includes('trigger')").await;

        page.click("[data-key=pause]").await;
        page.click("dialog #reason").await;
        page.type_text("a <b>break</b>").await;
        page.follow("dialog button").await;
        page.shows("“a <b>break</b>”").await;
        page.shows("none of these fires until it is resumed").await;
        let paused = world.planned("nightly").await;
        assert_eq!((paused.paused.unwrap().reason.as_str(), paused.due_ms), ("a <b>break</b>", None));
        page.click("[data-key=resume]").await;
        page.follow("dialog button").await;
        page.shows("Resumed.").await;
        assert!(world.planned("nightly").await.paused.is_none());
        page.calm().await;
    }

    // What was skipped is filled in: first told, then done.
    let page = browser.page(DESK).await;
    let skipped = world.planned("skipping").await.skipped;
    let fired = |ticks: Vec<tenure::port::TickView>| {
        ticks.iter().filter(|tick| tick.cause == Cause::Backfill).count()
    };
    page.open(&format!("{}/schedules/skipping?namespace=default", world.url)).await;
    page.click("[data-key=backfill]").await;
    page.follow("dialog button").await;
    page.shows("Nothing is done yet").await;
    page.screenshot("schedule-backfill-trial").await;
    page.calm().await;
    assert_eq!(fired(world.ticks("skipping").await), 0);
    let text = page.eval("document.querySelector('[data-key=do]').innerText").await;
    let meant: u64 = text.as_str().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    assert!(meant >= skipped && skipped > 0, "{meant} of {skipped}");
    page.follow("[data-key=do]").await;
    page.shows("Filled in").await;
    assert_eq!(fired(world.ticks("skipping").await) as u64, meant);
    page.click("[data-key=backfill]").await;
    page.follow("dialog button").await;
    page.shows("There is nothing to fill in").await;

    // Deleted by who can say its name.
    page.open(&format!("{}/schedules/leap?namespace=default", world.url)).await;
    page.click("[data-key=delete]").await;
    page.click("dialog #name").await;
    page.type_text("leap").await;
    assert_eq!(page.complaints(), Vec::<String>::new());
    page.follow("dialog button").await;
    page.shows("Deleted, with its history").await;
    // The page of what is gone may have asked for itself once more before it made way.
    page.forgive();
    assert!(world.store.schedule(&schedule("leap")).await.unwrap().is_none());
    page.calm().await;
    let deeds = world.deeds().await;
    assert!(deeds[0].starts_with("local schedule.delete leap"), "{deeds:?}");
    assert!(deeds[1].starts_with("local schedule.backfill skipping"), "{deeds:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn a_schedule_is_seen_firing() {
    let (mut world, browser) = tokio::join!(World::quiet(), Browser::start());
    let leader = world.leader().await;
    world.schedule("pulse", r#"{"when": "every 1s", "target": {"task": {"queue": "beats"}}}"#).await;
    let page = browser.page(DESK).await;
    page.open(&format!("{}/schedules/pulse?namespace=default", world.url)).await;
    page.until("document.getElementById('live').innerText == 'live'").await;
    page.shows("It has not fired yet").await;
    // Whoever watches sees it, without touching the page, and under whose token.
    let token = loop {
        world.fire(&leader).await;
        if let Some(tick) = world.ticks("pulse").await.first() {
            break tick.token.expect("a leader's");
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    page.until(&format!("document.querySelector('#history tbody .token')?.innerText == '{token}'")).await;
    page.follow("#history tbody td a").await;
    page.until(&format!("document.querySelector('#life').innerText.includes('under token {token}')")).await;
    page.calm().await;
}
