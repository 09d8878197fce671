//! Much at once: in several rounds, in bounded memory, each once.

use std::collections::BTreeSet;

use tenure::port::*;
use tenure::schedule::Misfire;
use tenure_testkit::block_on;

use crate::support::*;

#[test]
fn ten_thousand_that_fall_due_at_once_all_fire_once_in_several_rounds() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (_tenure, spy, scheduler) = firing(&clock, &store, "a").await;
        for n in 0..12_000 {
            scheduler.set(tasks(&format!("s{n}"), "0 * * * *")).await.unwrap();
        }
        clock.advance(HOUR).await;
        let all = store.schedules(&ScheduleFilter::default()).await.unwrap();
        assert!(all.iter().all(|view| view.fired == 1), "some fired never, or twice");
        let fired = spy.fired();
        assert_eq!(fired.iter().sum::<usize>(), 12_000);
        assert!(fired.len() > 1 && fired.iter().all(|ticks| *ticks <= DUE_MAX as usize), "{fired:?}");
        let stats = store.schedule_stats().await.unwrap();
        assert_eq!((stats[0].overdue, stats[0].schedules), (0, 12_000));
    });
}

/// Were all that is missed planned at once, three times ten thousand ticks of a payload each would be in memory.
#[test]
fn many_missed_ticks_fire_in_parcels_that_have_a_bound() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (_tenure, spy, scheduler) = firing(&clock, &store, "a").await;
        let cap = Misfire::FireAll { cap: 2_000 };
        for n in 0..3 {
            let heavy = tasks(&format!("s{n}"), "every 1s").misfire(cap).payload(&"x".repeat(100_000));
            scheduler.set(heavy).await.unwrap();
        }
        spy.fault("due", Some(crate::spy::Fault::Fails));
        clock.advance(300 * SECOND).await;
        spy.fault("due", None);
        clock.advance(5 * SECOND).await;
        let fired = spy.fired();
        assert!(fired.iter().all(|ticks| ticks * 100_000 <= 17 << 20), "{fired:?}");
        for n in 0..3 {
            let name = format!("s{n}");
            let due: Vec<i64> = (1..=305).collect();
            assert_eq!(fired_s(&store, &name).await, due);
            assert_eq!(view(&store, &name).await.skipped, 0);
        }
    });
}

/// More was missed than the policy lets fire, and more than fits into a parcel: the policy's number holds.
#[test]
fn parcels_do_not_change_what_the_policy_says() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (_tenure, spy, scheduler) = firing(&clock, &store, "a").await;
        let cap = Misfire::FireAll { cap: 300 };
        let heavy = tasks("heavy", "every 1s").misfire(cap).payload(&"x".repeat(200_000));
        scheduler.set(heavy).await.unwrap();
        spy.fault("due", Some(crate::spy::Fault::Fails));
        clock.advance(HOUR).await;
        spy.fault("due", None);
        clock.advance(2 * SECOND).await;
        let at = fired_s(&store, "heavy").await;
        let missed: BTreeSet<i64> = (1..=at[0] - 1).collect();
        // The newest three hundred when it could look again, and those that fell due since.
        assert_eq!(view(&store, "heavy").await.skipped, missed.len() as u64);
        assert_eq!(at, (at[0]..=3_602).collect::<Vec<_>>());
        assert!((300..=302).contains(&at.len()), "{} fired", at.len());
    });
}

#[test]
fn old_ticks_are_forgotten_by_who_leads() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (tenure, _) = leased(&clock, &store, "a", DAY).await;
        let scheduler = tenure.scheduler().start().await.unwrap();
        scheduler.set(tasks("hourly", "0 * * * *")).await.unwrap();
        clock.advance(60 * DAY).await;
        let kept = ticks(&store, "hourly", TickState::Fired).await;
        let oldest_ms = start_ms() + 60 * 86_400_000 - kept[0].at_ms;
        // Forgotten every thirty beats, give or take a fifth: of a lease of a day that is a week.
        assert!((TICKS_KEPT_MS..TICKS_KEPT_MS + 8 * 86_400_000).contains(&oldest_ms), "{oldest_ms}");
        assert_eq!(view(&store, "hourly").await.fired, 60 * 24);
    });
}
