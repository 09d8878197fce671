//! Many due ticks: in several rounds, with bounded memory, each once.

use std::collections::BTreeSet;

use tenure::port::*;
use tenure::rules::schedule::MisfirePolicy;
use tenure_testkit::block_on;

use crate::support::*;

#[test]
fn ten_thousand_schedules_due_at_once_fire_once_in_several_rounds() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (_tenure, instrumented, scheduler) = firing(&clock, &store, "a").await;
        for n in 0..12_000 {
            scheduler.set(tasks(&format!("s{n}"), "0 * * * *")).await.unwrap();
        }
        clock.advance(HOUR).await;
        let all = store.schedules(&ScheduleFilter::default()).await.unwrap();
        assert!(all.iter().all(|view| view.fired_count == 1), "a schedule did not fire exactly once");
        let fired = instrumented.fired();
        assert_eq!(fired.iter().sum::<usize>(), 12_000);
        assert!(fired.len() > 1 && fired.iter().all(|ticks| *ticks <= DUE_MAX as usize), "{fired:?}");
        let stats = store.schedule_stats().await.unwrap();
        assert_eq!((stats[0].overdue_count, stats[0].schedule_count), (0, 12_000));
    });
}

/// If all missed ticks were planned at once, three times ten thousand ticks with payloads would be in memory.
#[test]
fn many_missed_ticks_fire_in_batches_of_bounded_size() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (_tenure, instrumented, scheduler) = firing(&clock, &store, "a").await;
        let cap = MisfirePolicy::FireAll { cap: 2_000 };
        for n in 0..3 {
            let heavy = tasks(&format!("s{n}"), "every 1s").misfire_policy(cap).payload(&"x".repeat(100_000));
            scheduler.set(heavy).await.unwrap();
        }
        instrumented.fault("due_schedules", Some(crate::instrumented_store::Fault::Fails));
        clock.advance(300 * SECOND).await;
        instrumented.fault("due_schedules", None);
        clock.advance(5 * SECOND).await;
        let fired = instrumented.fired();
        assert!(fired.iter().all(|ticks| ticks * 100_000 <= 17 << 20), "{fired:?}");
        for n in 0..3 {
            let name = format!("s{n}");
            let due: Vec<i64> = (1..=305).collect();
            assert_eq!(fired_s(&store, &name).await, due);
            assert_eq!(view(&store, &name).await.skipped_count, 0);
        }
    });
}

/// More ticks were missed than the policy allows, and more than fit into a batch: the limit of the policy
/// holds.
#[test]
fn batches_do_not_change_the_misfire_policy() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (_tenure, instrumented, scheduler) = firing(&clock, &store, "a").await;
        let cap = MisfirePolicy::FireAll { cap: 300 };
        let heavy = tasks("heavy", "every 1s").misfire_policy(cap).payload(&"x".repeat(200_000));
        scheduler.set(heavy).await.unwrap();
        instrumented.fault("due_schedules", Some(crate::instrumented_store::Fault::Fails));
        clock.advance(HOUR).await;
        instrumented.fault("due_schedules", None);
        clock.advance(2 * SECOND).await;
        let at = fired_s(&store, "heavy").await;
        let missed: BTreeSet<i64> = (1..=at[0] - 1).collect();
        // The newest three hundred at recovery, and those that fell due since.
        assert_eq!(view(&store, "heavy").await.skipped_count, missed.len() as u64);
        assert_eq!(at, (at[0]..=3_602).collect::<Vec<_>>());
        assert!((300..=302).contains(&at.len()), "{} fired", at.len());
    });
}

#[test]
fn the_leader_prunes_old_ticks() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (tenure, _) = leased(&clock, &store, "a", DAY).await;
        let scheduler = tenure.scheduler().start().await.unwrap();
        scheduler.set(tasks("hourly", "0 * * * *")).await.unwrap();
        clock.advance(60 * DAY).await;
        let kept = ticks(&store, "hourly", TickOutcome::Fired).await;
        let oldest_ms = start_ms() + 60 * 86_400_000 - kept[0].tick_at_ms;
        // Pruned every thirty heartbeat intervals, with jitter: with a lease of a day that is a week.
        assert!((TICK_RETENTION_MS..TICK_RETENTION_MS + 8 * 86_400_000).contains(&oldest_ms), "{oldest_ms}");
        assert_eq!(view(&store, "hourly").await.fired_count, 60 * 24);
    });
}
