//! What must not lose a tick, nor double one: leaders that change in between, a store that is late, silent or picky, clocks that
//! jump, and an end in the middle.

use tenure::ScheduleBuilder;
use tenure::port::*;
use tenure::schedule::Misfire;
use tenure_testkit::block_on;

use crate::spy::{Fault, Poison};
use crate::support::*;

const ALL: Misfire = Misfire::FireAll { cap: 10_000 };

/// Every tick up to so many seconds has fired once, with a task of its own.
async fn all_once(store: &tenure::backend::memory::Memory, name: &str, every_s: i64, until_s: i64) {
    let due: Vec<i64> = (1..=until_s / every_s).map(|n| n * every_s).collect();
    assert_eq!(fired_s(store, name).await, due);
    let tasks: Vec<i64> = submitted(store, name).await.iter().map(|at| (at - start_ms()) / 1_000).collect();
    assert_eq!(tasks, due);
}

/// The old leader has looked, and decided, and is held up; meanwhile another leads, and fires.
#[test]
fn a_leader_that_is_held_up_between_looking_and_firing_fires_nothing_twice() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (old, held_up, scheduler) = firing(&clock, &store, "a").await;
        let (_new, _, _second) = firing(&clock, &store, "b").await;
        scheduler.set(tasks("x", "every 10s").misfire(ALL)).await.unwrap();
        clock.advance(15 * SECOND).await;
        held_up.fault("fire", Some(Fault::HappensLate));
        // Nor does it come back at once.
        held_up.fault("open", Some(Fault::Fails));
        clock.advance(5 * SECOND).await;
        expire(&store, &old.session().unwrap()).await;
        clock.advance(15 * SECOND).await;
        // Now what the old leader wanted arrives.
        held_up.fault("fire", None);
        held_up.fault("open", None);
        clock.advance(25 * SECOND).await;
        all_once(&store, "x", 10, 60).await;
        let by: Vec<String> =
            ticks(&store, "x", TickState::Fired).await.into_iter().map(|tick| tick.by).collect();
        assert_eq!(by.first().map(String::as_str), Some("a"));
        assert!(by.iter().any(|by| by == "b"), "{by:?}");
        let tokens: Vec<_> =
            ticks(&store, "x", TickState::Fired).await.iter().map(|tick| tick.token).collect();
        assert!(tokens.is_sorted(), "{tokens:?}");
    });
}

#[test]
fn whoever_leads_next_goes_on_where_the_last_one_was() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (_a, _, first) = firing(&clock, &store, "a").await;
        let (_b, _, second) = firing(&clock, &store, "b").await;
        first.set(tasks("x", "every 1s").misfire(ALL)).await.unwrap();
        clock.advance(10 * SECOND + 500 * MS).await;
        assert!(first.fires() && !second.fires());
        // In good order there is no lease to wait for, and nothing is late.
        let stopped = tokio::spawn(first.stop());
        clock.advance(10 * SECOND).await;
        stopped.await.unwrap().unwrap();
        assert!(second.fires());
        all_once(&store, "x", 1, 20).await;
        assert!(ticks(&store, "x", TickState::Fired).await.iter().all(|tick| tick.late_ms == 0));
    });
}

#[test]
fn a_leader_that_falls_silent_is_replaced_and_what_it_missed_fires() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (_a, spy, first) = firing(&clock, &store, "a").await;
        let (_b, _, second) = firing(&clock, &store, "b").await;
        first.set(tasks("x", "every 1s").misfire(ALL)).await.unwrap();
        clock.advance(10 * SECOND).await;
        for call in ["beat", "due", "fire", "observe"] {
            spy.fault(call, Some(Fault::Waits));
        }
        clock.advance(30 * SECOND).await;
        assert!(!first.fires() && second.fires());
        for call in ["beat", "due", "fire", "observe"] {
            spy.fault(call, None);
        }
        clock.advance(20 * SECOND).await;
        all_once(&store, "x", 1, 60).await;
    });
}

/// It is not known whether it fired. To fire it again as it was would double it, were it not for the stored tick.
#[test]
fn an_answer_that_is_lost_does_not_double_what_fired() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (_a, spy, scheduler) = firing(&clock, &store, "a").await;
        scheduler.set(tasks("x", "every 1s").misfire(ALL)).await.unwrap();
        for _ in 0..5 {
            spy.fault("fire", Some(Fault::AnswerLost));
            clock.advance(3 * SECOND).await;
            spy.fault("fire", None);
            clock.advance(3 * SECOND).await;
        }
        all_once(&store, "x", 1, 30).await;
    });
}

#[test]
fn a_store_that_does_not_answer_is_asked_again_and_nothing_is_lost() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (_a, spy, scheduler) = firing(&clock, &store, "a").await;
        scheduler.set(tasks("x", "every 1s").misfire(ALL)).await.unwrap();
        for call in ["due", "fire"] {
            spy.fault(call, Some(Fault::Waits));
            clock.advance(25 * SECOND).await;
            spy.fault(call, None);
            clock.advance(5 * SECOND).await;
        }
        for call in ["due", "fire"] {
            spy.fault(call, Some(Fault::Fails));
            clock.advance(25 * SECOND).await;
            spy.fault(call, None);
            clock.advance(5 * SECOND).await;
        }
        all_once(&store, "x", 1, 120).await;
        assert_eq!(view(&store, "x").await.trouble, None);
    });
}

/// The store names who can not fire, and why. The others fire on time.
#[test]
fn what_is_refused_is_put_off_alone_and_fires_when_it_can() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (tenure, _, scheduler) = firing(&clock, &store, "a").await;
        let topic = tenure.topic("gone").unwrap();
        store.set_topic(&topic, &TopicSettings::default()).await.unwrap();
        scheduler.set(ScheduleBuilder::new("bad", "every 1m").misfire(ALL).event("gone")).await.unwrap();
        for n in 0..3 {
            scheduler.set(tasks(&format!("good-{n}"), "every 1m")).await.unwrap();
        }
        store.delete_topic(&topic).await.unwrap();
        clock.advance(5 * MINUTE).await;
        for n in 0..3 {
            let fired = ticks(&store, &format!("good-{n}"), TickState::Fired).await;
            assert_eq!((fired.len(), fired.iter().map(|tick| tick.late_ms).max()), (5, Some(0)));
        }
        let bad = view(&store, "bad").await;
        assert_eq!(bad.fired, 0);
        assert!(bad.trouble.as_deref().is_some_and(|why| why.contains("gone")), "{:?}", bad.trouble);
        assert_eq!(store.schedule_stats().await.unwrap()[0].troubled, 1);
        store.set_topic(&topic, &TopicSettings::default()).await.unwrap();
        clock.advance(5 * MINUTE).await;
        let bad = view(&store, "bad").await;
        assert_eq!((bad.fired, bad.trouble), (10, None));
    });
}

/// A store that refuses a whole call for one of its parts, and does not say which.
#[test]
fn one_that_spoils_a_call_is_found_and_the_others_fire_on_time() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (_a, spy, scheduler) = firing(&clock, &store, "a").await;
        for n in 0..100 {
            scheduler.set(tasks(&format!("s{n}"), "every 1m").misfire(ALL)).await.unwrap();
        }
        spy.poison(Some(Poison { schedules: &["s37"], kind: Trouble::Request, put_off_too: false }));
        clock.advance(MINUTE + SECOND).await;
        for n in (0..100).filter(|n| *n != 37) {
            let fired = ticks(&store, &format!("s{n}"), TickState::Fired).await;
            assert_eq!((fired.len(), fired[0].late_ms), (1, 0), "s{n}");
        }
        let calls = spy.calls("fire");
        assert!(calls < 30, "{calls} calls to find one of a hundred");
        let spoilt = view(&store, "s37").await;
        assert!(spoilt.trouble.is_some() && spoilt.fired == 0);
        spy.poison(None);
        clock.advance(10 * MINUTE).await;
        assert_eq!((view(&store, "s37").await.fired, view(&store, "s37").await.trouble), (11, None));
    });
}

/// Worse: whenever it is among them, no answer comes in time.
#[test]
fn one_that_makes_the_store_fall_silent_does_not_hold_up_the_others_for_ever() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (_a, spy, scheduler) = firing(&clock, &store, "a").await;
        for n in 0..100 {
            scheduler.set(tasks(&format!("s{n}"), "every 1h").misfire(ALL)).await.unwrap();
        }
        spy.poison(Some(Poison { schedules: &["s37"], kind: Trouble::Timeout, put_off_too: false }));
        clock.advance(HOUR + MINUTE).await;
        for n in (0..100).filter(|n| *n != 37) {
            assert_eq!(fired_s(&store, &format!("s{n}")).await, [3_600], "s{n}");
        }
        assert!(view(&store, "s37").await.trouble.is_some());
        spy.poison(None);
        clock.advance(10 * MINUTE).await;
        assert_eq!(fired_s(&store, "s37").await, [3_600]);
    });
}

/// Somebody holds their rows, and does not let go: they can not even be put off. They are the longest due, too.
#[test]
fn those_that_can_neither_fire_nor_be_put_off_come_last() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (_a, spy, scheduler) = firing(&clock, &store, "a").await;
        let held = ["a0", "a1", "a2", "a3", "a4"];
        for name in held {
            scheduler.set(tasks(name, "every 1m").misfire(ALL)).await.unwrap();
        }
        for n in 0..100 {
            scheduler.set(tasks(&format!("s{n}"), "1 * * * * *").misfire(ALL)).await.unwrap();
        }
        let kind = Trouble::Timeout;
        spy.poison(Some(Poison { schedules: &["a0", "a1", "a2", "a3", "a4"], kind, put_off_too: true }));
        clock.advance(3 * MINUTE).await;
        for n in 0..100 {
            assert_eq!(fired_s(&store, &format!("s{n}")).await, [1, 61, 121], "s{n}");
        }
        spy.poison(None);
        clock.advance(MINUTE).await;
        for name in held {
            all_once(&store, name, 60, 240).await;
        }
    });
}

/// A year of missed ticks is too much for one call, and the store does not answer: with less at a time it does.
#[test]
fn one_whose_missed_ticks_are_too_many_for_one_call_fires_them_by_and_by() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (_a, spy, scheduler) = firing(&clock, &store, "a").await;
        scheduler.set(tasks("x", "every 1s").misfire(ALL)).await.unwrap();
        spy.fault("due", Some(Fault::Fails));
        clock.advance(HOUR).await;
        spy.too_many(500);
        spy.fault("due", None);
        clock.advance(MINUTE).await;
        all_once(&store, "x", 1, 3_660).await;
        assert_eq!(view(&store, "x").await.trouble, None);
    });
}

#[test]
fn a_clock_that_is_set_ahead_fires_early_and_once() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (tenure, _, scheduler) = firing(&clock, &store, "a").await;
        scheduler.set(tasks("all", "every 10m").misfire(ALL)).await.unwrap();
        scheduler.set(tasks("once", "every 10m").misfire(Misfire::FireOnce)).await.unwrap();
        scheduler.set(tasks("skips", "every 10m").misfire(Misfire::Skip)).await.unwrap();
        clock.advance(MINUTE).await;
        // While it sleeps; it notices within a beat.
        clock.step_wall(3_600_000);
        clock.advance(tenure.timing().beat()).await;
        assert_eq!(fired_s(&store, "all").await, [600, 1_200, 1_800, 2_400, 3_000, 3_600]);
        assert_eq!(fired_s(&store, "once").await, [3_600]);
        // A minute and more late is not on time.
        assert_eq!(fired_s(&store, "skips").await, [0; 0]);
        assert_eq!(view(&store, "skips").await.skipped, 6);
        clock.advance(HOUR).await;
        assert_eq!(fired_s(&store, "all").await.len(), 12);
    });
}

#[test]
fn a_clock_that_is_set_back_brings_silence_and_nothing_twice() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (_tenure, _, scheduler) = firing(&clock, &store, "a").await;
        scheduler.set(tasks("x", "every 10m").misfire(ALL)).await.unwrap();
        clock.advance(65 * MINUTE).await;
        clock.step_wall(-3_600_000);
        clock.advance(60 * MINUTE).await;
        assert_eq!(fired_s(&store, "x").await.len(), 6);
        clock.advance(60 * MINUTE).await;
        all_once(&store, "x", 600, 7_200).await;
    });
}

/// What is under way when the process is to close counts, or does not; the next one goes on from there.
#[test]
fn a_process_that_closes_in_the_middle_leaves_nothing_half_done() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (closing, spy, scheduler) = firing(&clock, &store, "a").await;
        let (_b, _, second) = firing(&clock, &store, "b").await;
        scheduler.set(tasks("x", "every 1s").misfire(ALL)).await.unwrap();
        clock.advance(10 * SECOND).await;
        spy.fault("fire", Some(Fault::Waits));
        clock.advance(2 * SECOND).await;
        let closed = tokio::spawn(async move { closing.close().await });
        clock.advance(SECOND).await;
        spy.fault("fire", None);
        clock.advance(SECOND).await;
        closed.await.unwrap().unwrap();
        assert!(!scheduler.fires() && second.fires());
        clock.advance(16 * SECOND).await;
        all_once(&store, "x", 1, 30).await;
        let stopped = tokio::spawn(scheduler.stop());
        clock.advance(SECOND).await;
        stopped.await.unwrap().unwrap();
    });
}

/// The store does not answer any more when the process is to close: it gives up, and the next one waits for the lease.
#[test]
fn a_process_that_can_not_finish_what_it_began_closes_all_the_same() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (closing, spy, _scheduler) = firing(&clock, &store, "a").await;
        let (_b, _, second) = firing(&clock, &store, "b").await;
        second.set(tasks("x", "every 1s").misfire(ALL)).await.unwrap();
        clock.advance(10 * SECOND).await;
        spy.fault("fire", Some(Fault::Waits));
        clock.advance(2 * SECOND).await;
        let closed = tokio::spawn(async move { closing.close().await });
        clock.advance(MINUTE).await;
        closed.await.unwrap().unwrap();
        assert!(second.fires());
        spy.fault("fire", None);
        clock.advance(18 * SECOND).await;
        all_once(&store, "x", 1, 90).await;
    });
}
