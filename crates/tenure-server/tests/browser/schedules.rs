//! Schedules in the browser: pages, the form and actions.

use tenure::port::{ScheduleAdmin, TickCause, TickOutcome};
use tenure_core::rules::schedule::{MisfirePolicy, OverlapPolicy, ScheduleTarget};

use crate::DESKTOP_LIGHT;
use crate::chrome::{Browser, Page, Screen};
use crate::fixture::Fixture;
use crate::schedule_data::schedule;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn every_page_of_schedules_fits_every_screen() {
    let (fixture, browser) = tokio::join!(Fixture::with_schedules(), Browser::start());
    let page = browser.page(DESKTOP_LIGHT).await;
    let task = fixture.ticks("minutely").await.iter().find_map(|tick| tick.task_id).unwrap();
    let event = fixture.ticks("skipping").await.iter().find_map(|tick| tick.event_id).unwrap();
    let pages = [
        ("schedules", "/schedules".into(), "All schedules. Each tick fires once."),
        ("schedules-filtered", "/schedules?namespace=prod&q=book".into(), "Matching schedules"),
        ("schedule", "/schedules/nightly?namespace=default".into(), "Columns: days"),
        ("schedule-hours", "/schedules/skipping?namespace=default".into(), "Columns: hours"),
        ("schedule-months", "/schedules/monthly?namespace=default".into(), "Columns: months"),
        ("schedule-late", "/schedules/minutely?namespace=default".into(), "Lateness of the last"),
        (
            "schedule-overlap",
            "/schedules/overlapping?namespace=default".into(),
            "an earlier run was unfinished",
        ),
        ("schedule-failing", "/schedules/stuck?namespace=default".into(), "The last firing failed:"),
        ("schedule-paused", "/schedules/accounting?namespace=prod".into(), "the <books> are closed"),
        ("schedule-over", "/schedules/over?namespace=default".into(), "No upcoming ticks"),
        ("schedule-edit", "/schedules/nightly/edit?namespace=default".into(), "Preview"),
        (
            "schedule-backfill",
            "/schedules/skipping/backfill?namespace=default".into(),
            "The next page previews them",
        ),
        ("schedule-tick", format!("/tasks/{task}?namespace=default"), "Schedule tick"),
        ("front-schedules", "/".into(), "failing"),
    ];
    let mut links = std::collections::BTreeSet::new();
    for (name, path, text) in &pages {
        // One request per page: theme and width do not change the response.
        page.open(&format!("{}{path}", fixture.url)).await;
        page.shows(text).await;
        // Folded content must fit too.
        page.eval("document.querySelectorAll('details').forEach(folded => folded.open = true)").await;
        page.fits_every_screen(name).await;
        assert_eq!(
            page.eval(
                "document.querySelector('.calendar, .ticks')?.innerHTML.includes('hidden-in-here') ?? false"
            )
            .await,
            false
        );
        let found = page.eval("[...new Set([...document.links].map(a => a.href.split('#')[0]))]").await;
        links.extend(found.as_array().unwrap().iter().map(|href| href.as_str().unwrap().to_owned()));
    }
    links.insert(format!("{}/topics/reports/events/{event}?namespace=default", fixture.url));
    // A deleted topic, and queues that their first task creates.
    let missing = ["/topics/gone", "/queues/books", "/queues/webhooks"];
    for link in links.iter().filter(|link| !missing.iter().any(|path| link.contains(path))) {
        assert!(link.starts_with(&fixture.url), "{link} leads to another site");
        assert_eq!(page.eval(&format!("fetch({link:?}).then(answer => answer.status)")).await, 200, "{link}");
    }
    // Tasks and events link to their tick, which is highlighted.
    for path in [format!("tasks/{task}"), format!("topics/reports/events/{event}")] {
        page.set_screen(DESKTOP_LIGHT).await;
        page.open(&format!("{}/{path}?namespace=default", fixture.url)).await;
        page.follow("[data-key=tick]").await;
        page.until("document.querySelectorAll('tr.highlight').length == 1 && document.querySelector('#history tbody tr').matches('.highlight')").await;
    }
    page.screenshot("schedule-highlight").await;
    page.assert_no_problems().await;
}

/// Replace the value of a field.
async fn fill(page: &Page, field: &str, text: &str) {
    page.click(field).await;
    page.eval(&format!("document.querySelector({field:?}).select?.()")).await;
    page.type_text(text).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn a_schedule_is_previewed_and_created() {
    let (fixture, browser) = tokio::join!(Fixture::without_scheduler(), Browser::start());
    for (n, screen) in [Screen::all()[0], Screen::all()[3]].into_iter().enumerate() {
        let page = browser.page(screen).await;
        page.open(&format!("{}/schedules", fixture.url)).await;
        if n == 0 {
            page.shows("No schedules yet").await;
            page.screenshot("empty-schedules").await;
        }
        page.follow("[data-key=new]").await;
        fill(&page, "#name", &format!("nightly-{n}")).await;
        // While the user types, errors are shown with their position ...
        fill(&page, "#expression", "30 25 * * *").await;
        page.shows("the hour 25 is out of range; hours are 0 to 23").await;
        page.until("document.querySelector('#expression').getAttribute('aria-invalid') == 'true'").await;
        page.until("document.querySelector('#preview .position').textContent == '30 25 * * *\\n   ^'").await;
        fill(&page, "#expression", "30 2 * * *").await;
        fill(&page, "#time_zone", "Europe/Belrin").await;
        page.shows("did you mean Europe/Berlin?").await;
        page.screenshot(&format!("schedule-wrong-{}", screen.name())).await;
        // ... and the ticks of a valid expression; input is kept.
        fill(&page, "#time_zone", "Europe/Berlin").await;
        // Empty fields are not errors yet and do not hide the ticks.
        page.until("document.querySelectorAll('#preview .ticks li').length == 10 && !document.querySelector('#preview [data-error-field], [aria-invalid]')").await;
        fill(&page, "#queue", "no queue").await;
        page.until("document.querySelector('#preview [data-error-field=queue]') && document.querySelector('#queue').getAttribute('aria-invalid') == 'true'").await;
        fill(&page, "#queue", "reports").await;
        page.until("document.querySelectorAll('#preview .ticks li').length == 10 && !document.querySelector('[aria-invalid]')").await;
        page.until("[...document.querySelectorAll('#preview .ticks .strong')].every(tick => tick.innerText.endsWith(', 02:30') || tick.innerText.endsWith(', 03:30'))").await;
        fill(&page, "#kind", "night").await;
        fill(&page, "#payload", r#"{"sum": 12345678901234567890.10}"#).await;
        page.click("#more summary").await;
        page.eval("(() => { const misfire = document.querySelector('#misfire_policy'); misfire.value = 'fire_all'; misfire.dispatchEvent(new Event('input', {bubbles: true})) })()").await;
        page.until("document.querySelector('#cap').checkVisibility() && !document.querySelector('#grace').checkVisibility()").await;
        fill(&page, "#cap", "0").await;
        page.shows("fire_all(0) is out of range").await;
        fill(&page, "#cap", "7").await;
        page.eval("document.querySelector('#overlap_policy').value = 'queue'").await;
        page.screenshot(&format!("schedule-form-{}", screen.name())).await;
        page.assert_no_problems().await;
        page.follow("[data-key=save]").await;
        page.shows("Schedule created.").await;
        let made = fixture.planned(&format!("nightly-{n}")).await;
        assert_eq!(
            (made.definition.misfire_policy, made.definition.overlap_policy),
            (MisfirePolicy::FireAll { cap: 7 }, OverlapPolicy::Queue)
        );
        assert_eq!(made.definition.payload.as_str(), r#"{"sum": 12345678901234567890.10}"#);
        let ScheduleTarget::Task { queue, task } = &made.definition.target else { panic!("{made:?}") };
        assert_eq!(
            (queue.as_str(), task.kind.as_str(), made.updated_by.as_str()),
            ("reports", "night", "local")
        );

        // A second schedule with this name is rejected; input is kept.
        page.open(&format!("{}/schedules/new", fixture.url)).await;
        fill(&page, "#name", &format!("nightly-{n}")).await;
        fill(&page, "#expression", "@hourly").await;
        fill(&page, "#queue", "reports").await;
        page.follow("[data-key=save]").await;
        page.shows("exists; choose another name").await;
        assert_eq!(page.eval("document.querySelector('#expression').value").await, "@hourly");
        page.clear_complaints();

        // Of two concurrent edits, the second is rejected.
        page.open(&format!("{}/schedules/nightly-{n}?namespace=default", fixture.url)).await;
        page.follow("[data-key=edit]").await;
        fill(&page, "#expression", "every 90s").await;
        page.follow("[data-key=save]").await;
        page.shows("Schedule saved.").await;
        let edited = fixture.planned(&format!("nightly-{n}")).await;
        assert_eq!(
            (edited.definition.expression.to_string().as_str(), edited.version),
            ("every 1m30s", made.version + 1)
        );
        assert_eq!(edited.definition.payload.as_str(), made.definition.payload.as_str());
        page.follow("[data-key=edit]").await;
        fixture
            .schedule(
                &format!("nightly-{n}"),
                r#"{"expression": "every 2h", "target": {"task": {"queue": "reports"}}}"#,
            )
            .await;
        fill(&page, "#expression", "every 3h").await;
        page.follow("[data-key=save]").await;
        page.shows("not the expected one; nothing was changed").await;
        page.clear_complaints();
        assert_eq!(
            fixture.planned(&format!("nightly-{n}")).await.definition.expression.to_string(),
            "every 2h"
        );
    }
    // Without the script there is a preview button.
    let page = browser.page(DESKTOP_LIGHT).await;
    page.call("Emulation.setScriptExecutionDisabled", serde_json::json!({"value": true})).await;
    page.open(&format!("{}/schedules/new", fixture.url)).await;
    fill(&page, "#expression", "0 0 31 2 *").await;
    page.follow("[data-key=preview]").await;
    page.until("document.querySelector('#preview [data-error-field=expression]')").await;
    assert_eq!(page.eval("document.querySelector('#expression').value").await, "0 0 31 2 *");
    page.assert_no_problems().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn actions_on_schedules_change_the_store() {
    let (fixture, browser) = tokio::join!(Fixture::with_schedules(), Browser::start());
    for screen in [Screen::all()[1], Screen::all()[2]] {
        let page = browser.page(screen).await;
        let before = fixture.planned("nightly").await;
        // Trigger from the list.
        page.open(&format!("{}/schedules", fixture.url)).await;
        page.click("[data-key=trigger-nightly]").await;
        fill(&page, "dialog #payload", r#"{"this": "once"}"#).await;
        page.screenshot(&format!("dialog-trigger-{}", screen.name())).await;
        page.follow("dialog button").await;
        page.shows("Triggered: one tick fired.").await;
        let ticks = fixture.ticks("nightly").await;
        assert_eq!(
            (ticks[0].cause, ticks[0].state, ticks[0].decided_by.as_str(), ticks[0].token),
            (TickCause::Trigger, TickOutcome::Fired, "local", None)
        );
        let id = ticks[0].event_id.expect("an event");
        let event = fixture.events("reports").await.into_iter().find(|event| event.id == id).unwrap();
        assert_eq!(event.payload, tenure::port::Payload::Json(r#"{"this": "once"}"#.parse().unwrap()));
        assert_eq!(
            fixture.planned("nightly").await.tick_state,
            before.tick_state,
            "upcoming ticks are unchanged"
        );
        page.until("document.querySelector('#history tbody tr').innerText.includes('trigger')").await;

        page.click("[data-key=pause]").await;
        page.click("dialog #reason").await;
        page.type_text("a <b>break</b>").await;
        page.follow("dialog button").await;
        page.shows("“a <b>break</b>”").await;
        page.shows("no tick fires until it is resumed").await;
        let paused = fixture.planned("nightly").await;
        assert_eq!((paused.paused.unwrap().reason.as_str(), paused.due_at_ms), ("a <b>break</b>", None));
        page.click("[data-key=resume]").await;
        page.follow("dialog button").await;
        page.shows("Resumed.").await;
        assert!(fixture.planned("nightly").await.paused.is_none());
        page.assert_no_problems().await;
    }

    // Backfill skipped ticks: preview first, then fire.
    let page = browser.page(DESKTOP_LIGHT).await;
    let skipped = fixture.planned("skipping").await.skipped_count;
    let fired = |ticks: Vec<tenure::port::TickView>| {
        ticks.iter().filter(|tick| tick.cause == TickCause::Backfill).count()
    };
    page.open(&format!("{}/schedules/skipping?namespace=default", fixture.url)).await;
    page.click("[data-key=backfill]").await;
    page.follow("dialog button").await;
    page.shows("Nothing has fired yet").await;
    page.screenshot("schedule-backfill-preview").await;
    page.assert_no_problems().await;
    assert_eq!(fired(fixture.ticks("skipping").await), 0);
    let text = page.eval("document.querySelector('[data-key=do]').innerText").await;
    let previewed: u64 = text.as_str().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    assert!(previewed >= skipped && skipped > 0, "{previewed} of {skipped}");
    page.follow("[data-key=do]").await;
    page.shows("Backfill completed.").await;
    assert_eq!(fired(fixture.ticks("skipping").await) as u64, previewed);
    page.click("[data-key=backfill]").await;
    page.follow("dialog button").await;
    page.shows("No ticks to fire").await;

    // Deleting requires the name.
    page.open(&format!("{}/schedules/leap?namespace=default", fixture.url)).await;
    page.click("[data-key=delete]").await;
    page.click("dialog #name").await;
    page.type_text("leap").await;
    assert_eq!(page.complaints(), Vec::<String>::new());
    page.follow("dialog button").await;
    page.shows("Schedule deleted, with its history.").await;
    // The previous page may have refreshed after the deletion.
    page.clear_complaints();
    assert!(fixture.store.schedule(&schedule("leap")).await.unwrap().is_none());
    page.assert_no_problems().await;
    let entries = fixture.audit_log().await;
    assert!(entries[0].starts_with("local schedule.delete leap"), "{entries:?}");
    assert!(entries[1].starts_with("local schedule.backfill skipping"), "{entries:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn the_schedule_page_shows_a_fired_tick() {
    let (mut fixture, browser) = tokio::join!(Fixture::without_scheduler(), Browser::start());
    let leader = fixture.leader().await;
    fixture.schedule("pulse", r#"{"expression": "every 1s", "target": {"task": {"queue": "beats"}}}"#).await;
    let page = browser.page(DESKTOP_LIGHT).await;
    page.open(&format!("{}/schedules/pulse?namespace=default", fixture.url)).await;
    page.until("document.getElementById('live').innerText == 'live'").await;
    page.shows("No ticks yet").await;
    // The page shows the tick and its token without a reload.
    let token = loop {
        fixture.fire(&leader).await;
        if let Some(tick) = fixture.ticks("pulse").await.first() {
            break tick.token.expect("a leader's");
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    page.until(&format!("document.querySelector('#history tbody .token')?.innerText == '{token}'")).await;
    page.follow("#history tbody td a").await;
    page.until(&format!("document.querySelector('#timeline').innerText.includes('with token {token}')"))
        .await;
    page.assert_no_problems().await;
}
