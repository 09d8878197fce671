//! Months of schedules in milliseconds, compared with the calendar.

use tenure::port::*;
use tenure::rules::schedule::{MisfirePolicy, ScheduleDefinition};
use tenure_testkit::block_on;

use crate::support::*;

const SCHEDULES: [(&str, &str); 7] = [
    ("30 2 * * *", "Europe/Berlin"),
    ("0 */6 * * *", "America/New_York"),
    ("15 1,3 * * SUN", "Australia/Lord_Howe"),
    ("0 9 L * *", "Asia/Kolkata"),
    ("0 12 15W * *", "America/Sao_Paulo"),
    ("every 3d", "Africa/Casablanca"),
    ("every 90m", "UTC"),
];

/// The leader changes every few days; the ticks are still those of the timetable.
#[test]
fn a_year_of_changing_leaders_fires_exactly_the_expected_ticks() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (a, _) = leased(&clock, &store, "a", DAY).await;
        let first = a.scheduler().start().await.unwrap();
        for (n, (expression, time_zone)) in SCHEDULES.iter().enumerate() {
            let schedule = tasks(&format!("s{n}"), expression)
                .time_zone(*time_zone)
                .misfire_policy(MisfirePolicy::FireAll { cap: 100 });
            first.set(schedule).await.unwrap();
        }
        let mut leading = Some((a, first));
        for month in 0..12 {
            clock.advance(30 * DAY).await;
            let (next, _) = leased(&clock, &store, &format!("m{month}"), DAY).await;
            let scheduler = next.scheduler().start().await.unwrap();
            let (old, its) = leading.replace((next, scheduler)).unwrap();
            let closed = tokio::spawn(async move {
                its.stop().await.unwrap();
                old.close().await.unwrap();
            });
            clock.advance(SECOND).await;
            closed.await.unwrap();
        }
        let now_ms = start_ms() + 360 * 86_400_000 + 12_000;
        for (n, (expression, time_zone)) in SCHEDULES.iter().enumerate() {
            let name = format!("s{n}");
            let view = view(&store, &name).await;
            let ticks = submitted(&store, &name).await;
            assert_eq!(ticks, expected(&view.definition, now_ms), "{expression} in {time_zone}");
            assert_eq!((view.fired_count, view.skipped_count), (ticks.len() as u64, 0));
        }
    });
}

fn expected(definition: &ScheduleDefinition, until_ms: i64) -> Vec<i64> {
    let timetable = definition.timetable(&key("x").namespace);
    timetable.ticks_between(start_ms() + 1, until_ms).collect()
}

/// No leader for two months: the policy limits the number of ticks that fire.
#[test]
fn after_months_without_a_leader_each_misfire_policy_applies() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (a, _) = leased(&clock, &store, "a", DAY).await;
        let schedules = a.schedules();
        let policies = ["skip", "fire_once", "fire_all(10)", "within(90s)"];
        for policy in policies {
            let name = policy.split('(').next().unwrap().replace('_', "-");
            schedules.set(tasks(&name, "every 1s").misfire_policy(policy.parse().unwrap())).await.unwrap();
        }
        clock.advance(60 * DAY).await;
        let scheduler = a.scheduler().start().await.unwrap();
        clock.settle().await;
        assert!(scheduler.is_leader());
        let seconds = 60 * 86_400;
        for (name, fired) in [("skip", 1), ("fire-once", 1), ("fire-all", 10), ("within", 90)] {
            let view = view(&store, name).await;
            assert_eq!((view.fired_count, view.skipped_count), (fired, seconds - fired), "{name}");
            let history =
                store.ticks(&TickFilter { key: key(name), before_ms: None, limit: 1_000 }).await.unwrap();
            assert_eq!(history.iter().map(|tick| tick.tick_count).sum::<u64>(), seconds, "{name}");
        }
    });
}
