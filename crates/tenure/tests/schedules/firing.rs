//! Firing without faults: on time, once, under the token of the leader.

use tenure::port::*;
use tenure::rules::schedule::{MisfirePolicy, SCHEDULE_HEADER, TICK_HEADER};
use tenure::{Error, ScheduleBuilder};
use tenure_testkit::block_on;

use crate::support::*;

#[test]
fn each_tick_fires_once_at_its_time_under_the_leaders_token() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (_tenure, _, scheduler) = firing(&clock, &store, "a").await;
        scheduler.set(tasks("minutely", "* * * * *")).await.unwrap();
        assert!(scheduler.is_leader());
        clock.advance(5 * MINUTE).await;
        let fired = ticks(&store, "minutely", TickOutcome::Fired).await;
        assert_eq!(fired_s(&store, "minutely").await, [60, 120, 180, 240, 300]);
        assert!(fired.iter().all(|tick| tick.lateness_ms == 0 && tick.decided_by == "a"), "{fired:?}");
        let election = store.election(&scheduler_election()).await.unwrap().unwrap();
        assert!(fired.iter().all(|tick| tick.token == Some(election.leases[0].token)));
        let task =
            store.task(&tenure::Name::default_namespace(), fired[0].task_id.unwrap()).await.unwrap().unwrap();
        assert_eq!(
            (task.leader_token, task.idempotency_key.as_deref()),
            (fired[0].token, Some("default/minutely@2026-11-15T00:01:00Z"))
        );
        let view = view(&store, "minutely").await;
        assert_eq!((view.fired_count, view.skipped_count, view.last_error), (5, 0, None));
    });
}

#[test]
fn an_event_carries_its_schedule_its_tick_and_the_token() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (tenure, _, scheduler) = firing(&clock, &store, "a").await;
        let topic = tenure.topic("reports").unwrap();
        let set = scheduler.set(ScheduleBuilder::new("nightly", "every 1m").event("reports")).await;
        assert!(
            matches!(set, Err(Error::Store(error)) if error.kind == ErrorKind::Request),
            "the topic does not exist"
        );
        store.set_topic(&topic, &TopicSettings::default()).await.unwrap();
        let nightly = ScheduleBuilder::new("nightly", "every 1m").payload(&[1, 2]).event("reports");
        assert_eq!(scheduler.set(nightly).await.unwrap(), SetScheduleOutcome::Created(1));
        clock.advance(MINUTE).await;
        let fired = ticks(&store, "nightly", TickOutcome::Fired).await;
        let event = store.event(&topic, fired[0].event_id.unwrap()).await.unwrap().unwrap();
        assert_eq!(event.headers[SCHEDULE_HEADER], "nightly");
        assert_eq!(event.headers[TICK_HEADER], "2026-11-15T00:01:00Z");
        assert_eq!((event.key.as_deref(), event.leader_token), (Some("nightly"), fired[0].token));
        assert!(fired[0].token.is_some());
    });
}

/// Without a notification the leader would sleep for a heartbeat interval and fire late.
#[test]
fn a_schedule_set_while_the_leader_sleeps_fires_on_time() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (_tenure, _, scheduler) = firing(&clock, &store, "a").await;
        clock.advance(500 * MS).await;
        scheduler.set(tasks("often", "every 100ms")).await.unwrap();
        clock.advance(300 * MS).await;
        let fired = ticks(&store, "often", TickOutcome::Fired).await;
        assert_eq!(
            fired.iter().map(|tick| (tick.tick_at_ms - start_ms(), tick.lateness_ms)).collect::<Vec<_>>(),
            [(600, 0), (700, 0), (800, 0)]
        );
    });
}

/// A read returns when the first of the *other* schedules is due; a schedule that has just fired may be due
/// before that.
#[test]
fn a_frequent_schedule_is_not_delayed_by_a_rare_one() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (_tenure, _, scheduler) = firing(&clock, &store, "a").await;
        scheduler.set(tasks("seldom", "every 1500ms")).await.unwrap();
        scheduler.set(tasks("often", "every 100ms")).await.unwrap();
        clock.advance(3 * SECOND).await;
        let often = ticks(&store, "often", TickOutcome::Fired).await;
        assert_eq!((often.len(), often.iter().map(|tick| tick.lateness_ms).max()), (30, Some(0)));
        assert_eq!(ticks(&store, "seldom", TickOutcome::Fired).await.len(), 2);
    });
}

#[test]
fn an_idle_scheduler_polls_once_per_heartbeat_interval_for_any_number_of_schedules() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (tenure, instrumented, scheduler) = firing(&clock, &store, "a").await;
        for n in 0..500 {
            scheduler.set(tasks(&format!("yearly-{n}"), "0 0 1 1 *")).await.unwrap();
        }
        clock.advance(SECOND).await;
        let (polls, fires) = (instrumented.calls("due_schedules"), instrumented.calls("fire"));
        clock.advance(10 * MINUTE).await;
        let intervals = 600 / tenure.timing().heartbeat_interval().as_secs();
        let polled = instrumented.calls("due_schedules") - polls;
        assert!(
            (intervals - 1..=intervals + 1).contains(&polled),
            "{polled} polls in {intervals} heartbeat intervals"
        );
        assert_eq!(instrumented.calls("fire"), fires);
    });
}

#[test]
fn jitter_delays_a_tick_without_making_it_late() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (_tenure, _, scheduler) = firing(&clock, &store, "a").await;
        let late = view_of(scheduler.set(tasks("spread", "every 1h").jitter(30 * MINUTE)).await);
        assert_eq!(late, SetScheduleOutcome::Created(1));
        clock.advance(3 * HOUR).await;
        let fired = ticks(&store, "spread", TickOutcome::Fired).await;
        assert!(fired.len() >= 2);
        assert!(fired.iter().all(|tick| tick.lateness_ms == 0), "{fired:?}");
        assert!(fired.iter().any(|tick| tick.decided_at_ms > tick.tick_at_ms), "{fired:?}");
    });
}

fn view_of(set: Result<SetScheduleOutcome, Error>) -> SetScheduleOutcome {
    set.unwrap()
}

#[test]
fn a_paused_schedule_does_not_fire_and_its_misfire_policy_applies_when_resumed() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (_tenure, _, scheduler) = firing(&clock, &store, "a").await;
        scheduler
            .set(tasks("all", "* * * * *").misfire_policy(MisfirePolicy::FireAll { cap: 3 }))
            .await
            .unwrap();
        scheduler.set(tasks("skips", "* * * * *").misfire_policy(MisfirePolicy::Skip)).await.unwrap();
        let schedules = scheduler.schedules();
        for name in ["all", "skips"] {
            assert!(schedules.pause(name, "maintenance").await.unwrap());
        }
        clock.advance(5 * MINUTE + 10 * SECOND).await;
        assert_eq!(fired_s(&store, "all").await, [0; 0]);
        for name in ["all", "skips"] {
            assert!(schedules.resume(name).await.unwrap());
        }
        clock.advance(SECOND).await;
        assert_eq!(fired_s(&store, "all").await, [180, 240, 300]);
        assert_eq!(
            (view(&store, "all").await.skipped_count, view(&store, "skips").await.skipped_count),
            (2, 4)
        );
        assert_eq!(fired_s(&store, "skips").await, [300]);
        assert!(matches!(schedules.resume("missing").await, Err(Error::Store(_))));
    });
}

#[test]
fn a_trigger_fires_now_and_a_backfill_fires_skipped_ticks() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (_tenure, _, scheduler) = firing(&clock, &store, "a").await;
        scheduler.set(tasks("skips", "* * * * *").misfire_policy(MisfirePolicy::Skip)).await.unwrap();
        let schedules = scheduler.schedules();
        schedules.pause("skips", "").await.unwrap();
        clock.advance(10 * MINUTE).await;
        schedules.resume("skips").await.unwrap();
        clock.advance(SECOND).await;
        assert_eq!(fired_s(&store, "skips").await, [600]);
        let ManualFireResult { outcome: ManualFireOutcome::Fired { task_id: Some(_), .. }, .. } =
            schedules.trigger("skips", None).await.unwrap()
        else {
            panic!("the trigger did not fire")
        };
        let range = start_ms() + 1..start_ms() + 1_200_000;
        let would = schedules.backfill("skips", range.clone(), true).await.unwrap();
        let did = schedules.backfill("skips", range.clone(), false).await.unwrap();
        let count = |all: &[ManualFireResult]| {
            all.iter().filter(|one| matches!(one.outcome, ManualFireOutcome::Fired { .. })).count()
        };
        assert_eq!((count(&would), count(&did)), (9, 9));
        assert_eq!(count(&schedules.backfill("skips", range, false).await.unwrap()), 0);
        // Nine ticks by the backfill, one by the schedule and one by the trigger.
        assert_eq!(ticks(&store, "skips", TickOutcome::Fired).await.len(), 11);
        assert_eq!(submitted(&store, "skips").await.len(), 11);
        let ever = schedules.backfill("skips", 0..i64::MAX, true).await.unwrap_err().to_string();
        assert!(ever.contains("100000 at a time"), "{ever}");
    });
}

#[test]
fn concurrent_changes_of_a_schedule_are_not_lost() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (_tenure, _, scheduler) = firing(&clock, &store, "a").await;
        let schedules = scheduler.schedules();
        scheduler.set(tasks("x", "every 1m")).await.unwrap();
        let mine = schedules.set_if(tasks("x", "every 2m"), Precondition::Version(1)).await.unwrap();
        let theirs = schedules.set_if(tasks("x", "every 3m"), Precondition::Version(1)).await.unwrap();
        assert_eq!((mine, theirs), (SetScheduleOutcome::Updated(2), SetScheduleOutcome::Conflict(Some(2))));
        assert!(schedules.delete("x").await.unwrap() && !schedules.delete("x").await.unwrap());
    });
}

#[test]
fn a_process_runs_one_scheduler() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (tenure, _, _scheduler) = firing(&clock, &store, "a").await;
        let second = tenure.scheduler().start().await;
        assert!(matches!(&second, Err(Error::Scheduler(why)) if why.contains("second Tenure")));
        let idle = tenure.scheduler().may_fire(false).start().await;
        assert!(matches!(&idle, Err(Error::Scheduler(why)) if why.contains(".run(")));
    });
}
