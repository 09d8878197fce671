//! The straight path: on time, once, under the leader's token.

use tenure::port::*;
use tenure::schedule::{Misfire, SCHEDULE_HEADER, TICK_HEADER};
use tenure::{Error, ScheduleBuilder};
use tenure_testkit::block_on;

use crate::support::*;

#[test]
fn each_tick_fires_once_at_its_time_under_the_leaders_token() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (_tenure, _, scheduler) = firing(&clock, &store, "a").await;
        scheduler.set(tasks("minutely", "* * * * *")).await.unwrap();
        assert!(scheduler.fires());
        clock.advance(5 * MINUTE).await;
        let fired = ticks(&store, "minutely", TickState::Fired).await;
        assert_eq!(fired_s(&store, "minutely").await, [60, 120, 180, 240, 300]);
        assert!(fired.iter().all(|tick| tick.late_ms == 0 && tick.by == "a"), "{fired:?}");
        let election = store.election(&scheduler_election()).await.unwrap().unwrap();
        assert!(fired.iter().all(|tick| tick.token == Some(election.leases[0].token)));
        let task =
            store.task(&tenure::Name::default_namespace(), fired[0].task.unwrap()).await.unwrap().unwrap();
        assert_eq!(
            (task.leader_token, task.key.as_deref()),
            (fired[0].token, Some("default/minutely@2026-11-15T00:01:00Z"))
        );
        let view = view(&store, "minutely").await;
        assert_eq!((view.fired, view.skipped, view.trouble), (5, 0, None));
    });
}

#[test]
fn an_event_carries_its_schedule_its_tick_and_the_token() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (tenure, _, scheduler) = firing(&clock, &store, "a").await;
        let topic = tenure.topic("reports").unwrap();
        let set = scheduler.set(ScheduleBuilder::new("nightly", "every 1m").event("reports")).await;
        assert!(
            matches!(set, Err(Error::Store(error)) if error.kind == Trouble::Request),
            "there is no such topic"
        );
        store.set_topic(&topic, &TopicSettings::default()).await.unwrap();
        let nightly = ScheduleBuilder::new("nightly", "every 1m").payload(&[1, 2]).event("reports");
        assert_eq!(scheduler.set(nightly).await.unwrap(), ScheduleSet::Created(1));
        clock.advance(MINUTE).await;
        let fired = ticks(&store, "nightly", TickState::Fired).await;
        let event = store.event(&topic, fired[0].event.unwrap()).await.unwrap().unwrap();
        assert_eq!(event.headers[SCHEDULE_HEADER], "nightly");
        assert_eq!(event.headers[TICK_HEADER], "2026-11-15T00:01:00Z");
        assert_eq!((event.key.as_deref(), event.leader_token), (Some("nightly"), fired[0].token));
        assert!(fired[0].token.is_some());
    });
}

/// Without the bell the leader would sleep on for a beat, and fire late.
#[test]
fn a_schedule_that_is_set_while_the_leader_sleeps_fires_on_time() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (_tenure, _, scheduler) = firing(&clock, &store, "a").await;
        clock.advance(500 * MS).await;
        scheduler.set(tasks("often", "every 100ms")).await.unwrap();
        clock.advance(300 * MS).await;
        let fired = ticks(&store, "often", TickState::Fired).await;
        assert_eq!(
            fired.iter().map(|tick| (tick.at_ms - start_ms(), tick.late_ms)).collect::<Vec<_>>(),
            [(600, 0), (700, 0), (800, 0)]
        );
    });
}

/// The look tells when the first of the *others* is due; what has just fired is due again before that.
#[test]
fn what_fires_often_is_not_held_up_by_what_fires_seldom() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (_tenure, _, scheduler) = firing(&clock, &store, "a").await;
        scheduler.set(tasks("seldom", "every 1500ms")).await.unwrap();
        scheduler.set(tasks("often", "every 100ms")).await.unwrap();
        clock.advance(3 * SECOND).await;
        let often = ticks(&store, "often", TickState::Fired).await;
        assert_eq!((often.len(), often.iter().map(|tick| tick.late_ms).max()), (30, Some(0)));
        assert_eq!(ticks(&store, "seldom", TickState::Fired).await.len(), 2);
    });
}

#[test]
fn an_idle_scheduler_looks_once_a_beat_however_many_schedules_there_are() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (tenure, spy, scheduler) = firing(&clock, &store, "a").await;
        for n in 0..500 {
            scheduler.set(tasks(&format!("yearly-{n}"), "0 0 1 1 *")).await.unwrap();
        }
        clock.advance(SECOND).await;
        let (looks, fires) = (spy.calls("due"), spy.calls("fire"));
        clock.advance(10 * MINUTE).await;
        let beats = 600 / tenure.timing().beat().as_secs();
        let looked = spy.calls("due") - looks;
        assert!((beats - 1..=beats + 1).contains(&looked), "{looked} looks in {beats} beats");
        assert_eq!(spy.calls("fire"), fires);
    });
}

#[test]
fn jitter_puts_a_tick_off_and_does_not_make_it_late() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (_tenure, _, scheduler) = firing(&clock, &store, "a").await;
        let late = view_of(scheduler.set(tasks("spread", "every 1h").jitter(30 * MINUTE)).await);
        assert_eq!(late, ScheduleSet::Created(1));
        clock.advance(3 * HOUR).await;
        let fired = ticks(&store, "spread", TickState::Fired).await;
        assert!(fired.len() >= 2);
        assert!(fired.iter().all(|tick| tick.late_ms == 0), "{fired:?}");
        assert!(fired.iter().any(|tick| tick.decided_ms > tick.at_ms), "{fired:?}");
    });
}

fn view_of(set: Result<ScheduleSet, Error>) -> ScheduleSet {
    set.unwrap()
}

#[test]
fn a_schedule_that_is_paused_is_silent_and_its_policy_decides_when_it_goes_on() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (_tenure, _, scheduler) = firing(&clock, &store, "a").await;
        scheduler.set(tasks("all", "* * * * *").misfire(Misfire::FireAll { cap: 3 })).await.unwrap();
        scheduler.set(tasks("skips", "* * * * *").misfire(Misfire::Skip)).await.unwrap();
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
        assert_eq!((view(&store, "all").await.skipped, view(&store, "skips").await.skipped), (2, 4));
        assert_eq!(fired_s(&store, "skips").await, [300]);
        assert!(matches!(schedules.resume("nobody").await, Err(Error::Store(_))));
    });
}

#[test]
fn one_is_fired_now_and_what_did_not_fire_is_fired_after_all() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (_tenure, _, scheduler) = firing(&clock, &store, "a").await;
        scheduler.set(tasks("skips", "* * * * *").misfire(Misfire::Skip)).await.unwrap();
        let schedules = scheduler.schedules();
        schedules.pause("skips", "").await.unwrap();
        clock.advance(10 * MINUTE).await;
        schedules.resume("skips").await.unwrap();
        clock.advance(SECOND).await;
        assert_eq!(fired_s(&store, "skips").await, [600]);
        let HandFired { outcome: HandOutcome::Fired { task: Some(_), .. }, .. } =
            schedules.trigger("skips", None).await.unwrap()
        else {
            panic!("it did not fire")
        };
        let range = start_ms() + 1..start_ms() + 1_200_000;
        let would = schedules.backfill("skips", range.clone(), true).await.unwrap();
        let did = schedules.backfill("skips", range.clone(), false).await.unwrap();
        let count = |all: &[HandFired]| {
            all.iter().filter(|one| matches!(one.outcome, HandOutcome::Fired { .. })).count()
        };
        assert_eq!((count(&would), count(&did)), (9, 9));
        assert_eq!(count(&schedules.backfill("skips", range, false).await.unwrap()), 0);
        // The tenth by the clock, and the trigger.
        assert_eq!(ticks(&store, "skips", TickState::Fired).await.len(), 11);
        assert_eq!(submitted(&store, "skips").await.len(), 11);
        let ever = schedules.backfill("skips", 0..i64::MAX, true).await.unwrap_err().to_string();
        assert!(ever.contains("100000 at a time"), "{ever}");
    });
}

#[test]
fn two_who_change_a_schedule_do_not_undo_each_others_changes() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (_tenure, _, scheduler) = firing(&clock, &store, "a").await;
        let schedules = scheduler.schedules();
        scheduler.set(tasks("x", "every 1m")).await.unwrap();
        let mine = schedules.set_if(tasks("x", "every 2m"), Expect::Version(1)).await.unwrap();
        let theirs = schedules.set_if(tasks("x", "every 3m"), Expect::Version(1)).await.unwrap();
        assert_eq!((mine, theirs), (ScheduleSet::Changed(2), ScheduleSet::Conflict(Some(2))));
        assert!(schedules.delete("x").await.unwrap() && !schedules.delete("x").await.unwrap());
    });
}

#[test]
fn a_process_runs_one_scheduler() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (tenure, _, _scheduler) = firing(&clock, &store, "a").await;
        let second = tenure.scheduler().start().await;
        assert!(matches!(&second, Err(Error::Scheduler(why)) if why.contains("second Tenure")));
        let idle = tenure.scheduler().fires(false).start().await;
        assert!(matches!(&idle, Err(Error::Scheduler(why)) if why.contains(".run(")));
    });
}
