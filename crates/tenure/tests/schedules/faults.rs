//! Fault injection: leader changes, late, silent or rejecting stores, clock jumps, and interrupted calls must
//! neither lose nor double a tick.

use tenure::ScheduleBuilder;
use tenure::port::*;
use tenure::rules::schedule::MisfirePolicy;
use tenure_testkit::block_on;

use crate::instrumented_store::{Fault, Poison};
use crate::support::*;

const ALL: MisfirePolicy = MisfirePolicy::FireAll { cap: 10_000 };

/// Every tick up to this second has fired once, with its own task.
async fn all_once(store: &tenure::store::memory::MemoryStore, name: &str, every_s: i64, until_s: i64) {
    let due: Vec<i64> = (1..=until_s / every_s).map(|n| n * every_s).collect();
    assert_eq!(fired_s(store, name).await, due);
    let tasks: Vec<i64> = submitted(store, name).await.iter().map(|at| (at - start_ms()) / 1_000).collect();
    assert_eq!(tasks, due);
}

/// The old leader has read and planned ticks, and its fire call is delayed. Meanwhile another leader fires them.
#[test]
fn a_leader_delayed_between_reading_and_firing_fires_nothing_twice() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (old, held_up, scheduler) = firing(&clock, &store, "a").await;
        let (_new, _, _second) = firing(&clock, &store, "b").await;
        scheduler.set(tasks("x", "every 10s").misfire_policy(ALL)).await.unwrap();
        clock.advance(15 * SECOND).await;
        held_up.fault("fire", Some(Fault::TakesEffectLate));
        // The old leader cannot reconnect at once.
        held_up.fault("open_session", Some(Fault::Fails));
        clock.advance(5 * SECOND).await;
        expire(&store, &old.session().unwrap()).await;
        clock.advance(15 * SECOND).await;
        // Now the delayed call of the old leader arrives.
        held_up.fault("fire", None);
        held_up.fault("open_session", None);
        clock.advance(25 * SECOND).await;
        all_once(&store, "x", 10, 60).await;
        let by: Vec<String> =
            ticks(&store, "x", TickOutcome::Fired).await.into_iter().map(|tick| tick.decided_by).collect();
        assert_eq!(by.first().map(String::as_str), Some("a"));
        assert!(by.iter().any(|by| by == "b"), "{by:?}");
        let tokens: Vec<_> =
            ticks(&store, "x", TickOutcome::Fired).await.iter().map(|tick| tick.token).collect();
        assert!(tokens.is_sorted(), "{tokens:?}");
    });
}

#[test]
fn the_next_leader_continues_where_the_last_one_stopped() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (_a, _, first) = firing(&clock, &store, "a").await;
        let (_b, _, second) = firing(&clock, &store, "b").await;
        first.set(tasks("x", "every 1s").misfire_policy(ALL)).await.unwrap();
        clock.advance(10 * SECOND + 500 * MS).await;
        assert!(first.is_leader() && !second.is_leader());
        // After a graceful stop there is no lease to wait for, and nothing is late.
        let stopped = tokio::spawn(first.stop());
        clock.advance(10 * SECOND).await;
        stopped.await.unwrap().unwrap();
        assert!(second.is_leader());
        all_once(&store, "x", 1, 20).await;
        assert!(ticks(&store, "x", TickOutcome::Fired).await.iter().all(|tick| tick.lateness_ms == 0));
    });
}

#[test]
fn a_silent_leader_is_replaced_and_missed_ticks_fire() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (_a, instrumented, first) = firing(&clock, &store, "a").await;
        let (_b, _, second) = firing(&clock, &store, "b").await;
        first.set(tasks("x", "every 1s").misfire_policy(ALL)).await.unwrap();
        clock.advance(10 * SECOND).await;
        for call in ["heartbeat", "due_schedules", "fire", "observe"] {
            instrumented.fault(call, Some(Fault::Waits));
        }
        clock.advance(30 * SECOND).await;
        assert!(!first.is_leader() && second.is_leader());
        for call in ["heartbeat", "due_schedules", "fire", "observe"] {
            instrumented.fault(call, None);
        }
        clock.advance(20 * SECOND).await;
        all_once(&store, "x", 1, 60).await;
    });
}

/// After a lost response the leader does not know whether the call took effect. The next tick in the store
/// prevents that a repeated call fires the tick again.
#[test]
fn a_lost_response_does_not_fire_a_tick_twice() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (_a, instrumented, scheduler) = firing(&clock, &store, "a").await;
        scheduler.set(tasks("x", "every 1s").misfire_policy(ALL)).await.unwrap();
        for _ in 0..5 {
            instrumented.fault("fire", Some(Fault::ResponseLost));
            clock.advance(3 * SECOND).await;
            instrumented.fault("fire", None);
            clock.advance(3 * SECOND).await;
        }
        all_once(&store, "x", 1, 30).await;
    });
}

#[test]
fn calls_to_an_unresponsive_store_are_retried_and_no_tick_is_lost() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (_a, instrumented, scheduler) = firing(&clock, &store, "a").await;
        scheduler.set(tasks("x", "every 1s").misfire_policy(ALL)).await.unwrap();
        for call in ["due_schedules", "fire"] {
            instrumented.fault(call, Some(Fault::Waits));
            clock.advance(25 * SECOND).await;
            instrumented.fault(call, None);
            clock.advance(5 * SECOND).await;
        }
        for call in ["due_schedules", "fire"] {
            instrumented.fault(call, Some(Fault::Fails));
            clock.advance(25 * SECOND).await;
            instrumented.fault(call, None);
            clock.advance(5 * SECOND).await;
        }
        all_once(&store, "x", 1, 120).await;
        assert_eq!(view(&store, "x").await.last_error, None);
    });
}

/// The store names the schedule that cannot fire, and why. The others fire on time.
#[test]
fn a_rejected_schedule_is_postponed_alone_and_fires_later() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (tenure, _, scheduler) = firing(&clock, &store, "a").await;
        let topic = tenure.topic("gone").unwrap();
        store.set_topic(&topic, &TopicSettings::default()).await.unwrap();
        scheduler
            .set(ScheduleBuilder::new("bad", "every 1m").misfire_policy(ALL).event("gone"))
            .await
            .unwrap();
        for n in 0..3 {
            scheduler.set(tasks(&format!("good-{n}"), "every 1m")).await.unwrap();
        }
        store.delete_topic(&topic).await.unwrap();
        clock.advance(5 * MINUTE).await;
        for n in 0..3 {
            let fired = ticks(&store, &format!("good-{n}"), TickOutcome::Fired).await;
            assert_eq!((fired.len(), fired.iter().map(|tick| tick.lateness_ms).max()), (5, Some(0)));
        }
        let bad = view(&store, "bad").await;
        assert_eq!(bad.fired_count, 0);
        assert!(bad.last_error.as_deref().is_some_and(|why| why.contains("gone")), "{:?}", bad.last_error);
        assert_eq!(store.schedule_stats().await.unwrap()[0].failing_count, 1);
        store.set_topic(&topic, &TopicSettings::default()).await.unwrap();
        clock.advance(5 * MINUTE).await;
        let bad = view(&store, "bad").await;
        assert_eq!((bad.fired_count, bad.last_error), (10, None));
    });
}

/// The store rejects a whole call because of one schedule, without naming it.
#[test]
fn a_schedule_that_fails_a_batch_is_found_and_the_others_fire_on_time() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (_a, instrumented, scheduler) = firing(&clock, &store, "a").await;
        for n in 0..100 {
            scheduler.set(tasks(&format!("s{n}"), "every 1m").misfire_policy(ALL)).await.unwrap();
        }
        instrumented.poison(Some(Poison {
            schedules: &["s37"],
            kind: ErrorKind::Request,
            postponing_too: false,
        }));
        clock.advance(MINUTE + SECOND).await;
        for n in (0..100).filter(|n| *n != 37) {
            let fired = ticks(&store, &format!("s{n}"), TickOutcome::Fired).await;
            assert_eq!((fired.len(), fired[0].lateness_ms), (1, 0), "s{n}");
        }
        let calls = instrumented.calls("fire");
        assert!(calls < 30, "{calls} calls to find one of a hundred");
        let spoilt = view(&store, "s37").await;
        assert!(spoilt.last_error.is_some() && spoilt.fired_count == 0);
        instrumented.poison(None);
        clock.advance(10 * MINUTE).await;
        assert_eq!((view(&store, "s37").await.fired_count, view(&store, "s37").await.last_error), (11, None));
    });
}

/// Whenever this schedule is in a batch, the store does not respond in time.
#[test]
fn a_schedule_that_causes_timeouts_does_not_block_the_others() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (_a, instrumented, scheduler) = firing(&clock, &store, "a").await;
        for n in 0..100 {
            scheduler.set(tasks(&format!("s{n}"), "every 1h").misfire_policy(ALL)).await.unwrap();
        }
        instrumented.poison(Some(Poison {
            schedules: &["s37"],
            kind: ErrorKind::Timeout,
            postponing_too: false,
        }));
        clock.advance(HOUR + MINUTE).await;
        for n in (0..100).filter(|n| *n != 37) {
            assert_eq!(fired_s(&store, &format!("s{n}")).await, [3_600], "s{n}");
        }
        assert!(view(&store, "s37").await.last_error.is_some());
        instrumented.poison(None);
        clock.advance(10 * MINUTE).await;
        assert_eq!(fired_s(&store, "s37").await, [3_600]);
    });
}

/// The rows of these schedules are locked for a long time, so they cannot be postponed either. They are due before
/// all others, and must still not delay them.
#[test]
fn schedules_that_can_neither_fire_nor_be_postponed_come_last() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (_a, instrumented, scheduler) = firing(&clock, &store, "a").await;
        let held = ["a0", "a1", "a2", "a3", "a4"];
        for name in held {
            scheduler.set(tasks(name, "every 1m").misfire_policy(ALL)).await.unwrap();
        }
        for n in 0..100 {
            scheduler.set(tasks(&format!("s{n}"), "1 * * * * *").misfire_policy(ALL)).await.unwrap();
        }
        let kind = ErrorKind::Timeout;
        instrumented.poison(Some(Poison {
            schedules: &["a0", "a1", "a2", "a3", "a4"],
            kind,
            postponing_too: true,
        }));
        clock.advance(3 * MINUTE).await;
        for n in 0..100 {
            assert_eq!(fired_s(&store, &format!("s{n}")).await, [1, 61, 121], "s{n}");
        }
        instrumented.poison(None);
        clock.advance(MINUTE).await;
        for name in held {
            all_once(&store, name, 60, 240).await;
        }
    });
}

/// A year of missed ticks is too much for one call, and the store times out; smaller batches succeed.
#[test]
fn too_many_missed_ticks_for_one_call_fire_in_smaller_batches() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (_a, instrumented, scheduler) = firing(&clock, &store, "a").await;
        scheduler.set(tasks("x", "every 1s").misfire_policy(ALL)).await.unwrap();
        instrumented.fault("due_schedules", Some(Fault::Fails));
        clock.advance(HOUR).await;
        instrumented.too_many(500);
        instrumented.fault("due_schedules", None);
        clock.advance(MINUTE).await;
        all_once(&store, "x", 1, 3_660).await;
        assert_eq!(view(&store, "x").await.last_error, None);
    });
}

#[test]
fn setting_the_clock_ahead_fires_early_and_once() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (tenure, _, scheduler) = firing(&clock, &store, "a").await;
        scheduler.set(tasks("all", "every 10m").misfire_policy(ALL)).await.unwrap();
        scheduler.set(tasks("once", "every 10m").misfire_policy(MisfirePolicy::FireOnce)).await.unwrap();
        scheduler.set(tasks("skips", "every 10m").misfire_policy(MisfirePolicy::Skip)).await.unwrap();
        clock.advance(MINUTE).await;
        // While it sleeps; it notices within a heartbeat interval.
        clock.step_wall(3_600_000);
        clock.advance(tenure.timing().heartbeat_interval()).await;
        assert_eq!(fired_s(&store, "all").await, [600, 1_200, 1_800, 2_400, 3_000, 3_600]);
        assert_eq!(fired_s(&store, "once").await, [3_600]);
        // More than a minute late is a misfire.
        assert_eq!(fired_s(&store, "skips").await, [0; 0]);
        assert_eq!(view(&store, "skips").await.skipped_count, 6);
        clock.advance(HOUR).await;
        assert_eq!(fired_s(&store, "all").await.len(), 12);
    });
}

#[test]
fn setting_the_clock_back_fires_nothing_twice() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (_tenure, _, scheduler) = firing(&clock, &store, "a").await;
        scheduler.set(tasks("x", "every 10m").misfire_policy(ALL)).await.unwrap();
        clock.advance(65 * MINUTE).await;
        clock.step_wall(-3_600_000);
        clock.advance(60 * MINUTE).await;
        assert_eq!(fired_s(&store, "x").await.len(), 6);
        clock.advance(60 * MINUTE).await;
        all_once(&store, "x", 600, 7_200).await;
    });
}

/// A running call either takes effect or not when the process closes; the next leader continues from there.
#[test]
fn a_process_that_closes_while_firing_leaves_nothing_half_done() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (closing, instrumented, scheduler) = firing(&clock, &store, "a").await;
        let (_b, _, second) = firing(&clock, &store, "b").await;
        scheduler.set(tasks("x", "every 1s").misfire_policy(ALL)).await.unwrap();
        clock.advance(10 * SECOND).await;
        instrumented.fault("fire", Some(Fault::Waits));
        clock.advance(2 * SECOND).await;
        let closed = tokio::spawn(async move { closing.close().await });
        clock.advance(SECOND).await;
        instrumented.fault("fire", None);
        clock.advance(SECOND).await;
        closed.await.unwrap().unwrap();
        assert!(!scheduler.is_leader() && second.is_leader());
        clock.advance(16 * SECOND).await;
        all_once(&store, "x", 1, 30).await;
        let stopped = tokio::spawn(scheduler.stop());
        clock.advance(SECOND).await;
        stopped.await.unwrap().unwrap();
    });
}

/// The store does not respond when the process closes: closing gives up, and the next leader waits for the
/// lease.
#[test]
fn a_process_with_an_unresponsive_store_still_closes() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (closing, instrumented, _scheduler) = firing(&clock, &store, "a").await;
        let (_b, _, second) = firing(&clock, &store, "b").await;
        second.set(tasks("x", "every 1s").misfire_policy(ALL)).await.unwrap();
        clock.advance(10 * SECOND).await;
        instrumented.fault("fire", Some(Fault::Waits));
        clock.advance(2 * SECOND).await;
        let closed = tokio::spawn(async move { closing.close().await });
        clock.advance(MINUTE).await;
        closed.await.unwrap().unwrap();
        assert!(second.is_leader());
        instrumented.fault("fire", None);
        clock.advance(18 * SECOND).await;
        all_once(&store, "x", 1, 90).await;
    });
}
