//! Missed ticks are never duplicated or lost, and always counted.

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;

const MINUTE: i64 = 60_000;
const DAY: i64 = 1_440 * MINUTE;

fn at(text: &str) -> i64 {
    text.parse::<Timestamp>().unwrap().as_millisecond()
}

fn timetable(expression: &str, zone: &str, jitter_ms: u64) -> Timetable {
    let rule =
        RecurrenceRule::new(expression.parse::<ScheduleExpression>().unwrap()).in_zone(zone.parse().unwrap());
    Timetable::new(&RecurrenceRule { jitter_ms, ..rule }, "default/test")
}

fn stored(next_at_ms: i64) -> ScheduleTickState {
    ScheduleTickState { next_tick_at_ms: next_at_ms, last_tick_at_ms: None }
}

#[test]
fn a_tick_that_is_decided_late_is_not_lost_under_any_policy() {
    let hourly = timetable("0 * * * *", "UTC", 0);
    let next = at("2026-01-01T10:00:00Z");
    for misfire in [
        MisfirePolicy::Skip,
        MisfirePolicy::FireOnce,
        MisfirePolicy::FireAll { cap: 1 },
        MisfirePolicy::Within { grace_ms: 8_000 },
    ] {
        assert!(decide(&hourly, misfire, stored(next), next - 1).fire.is_empty());
        for late_ms in [0, 1, 999, 8_000] {
            let decision = decide(&hourly, misfire, stored(next), next + late_ms);
            assert_eq!((decision.fire, decision.skipped), (vec![next], None), "{misfire}");
            assert_eq!(
                decision.tick_state,
                Some(ScheduleTickState { next_tick_at_ms: next + 60 * MINUTE, last_tick_at_ms: Some(next) })
            );
        }
    }
}

#[test]
fn each_policy_handles_an_outage() {
    let hourly = timetable("0 * * * *", "UTC", 0);
    let (next, now) = (at("2026-01-01T00:00:00Z"), at("2026-01-01T05:30:00Z"));
    let outcome = |misfire: &str| {
        let decision = decide(&hourly, misfire.parse().unwrap(), stored(next), now);
        assert_eq!(decision.tick_state.unwrap().next_tick_at_ms, at("2026-01-01T06:00:00Z"));
        assert_eq!(decision.next_due_at_ms, Some(at("2026-01-01T06:00:00Z")));
        let hours: Vec<i64> = decision.fire.iter().map(|tick| (tick - next) / (60 * MINUTE)).collect();
        (hours, decision.skipped.map_or(0, |it| it.tick_count))
    };
    assert_eq!(outcome("skip"), (vec![], 6));
    assert_eq!(outcome("fire_once"), (vec![5], 5));
    assert_eq!(outcome("fire_all(4)"), (vec![2, 3, 4, 5], 2));
    assert_eq!(outcome("fire_all(100)"), (vec![0, 1, 2, 3, 4, 5], 0));
    assert_eq!(outcome("within(2h)"), (vec![4, 5], 4));
    assert_eq!(outcome("within(29m)"), (vec![], 6));
}

#[test]
fn hundreds_of_millions_of_missed_ticks_cost_no_more_than_the_cap() {
    for (expression, zone) in
        [("* * * * * *", "Europe/Berlin"), ("every 1ms", "UTC"), ("*/7 * * * * *", "Australia/Lord_Howe")]
    {
        let dense = timetable(expression, zone, 0);
        let (next, now) = (at("1990-01-01T00:00:00Z"), at("2026-01-01T00:00:00Z"));
        let next = dense.first_from(next).unwrap();
        let decision = decide(&dense, MisfirePolicy::FireAll { cap: 100 }, stored(next), now);
        let skipped = decision.skipped.unwrap();
        assert_eq!(decision.fire.len(), 100);
        assert_eq!(
            (skipped.first_tick_at_ms, dense.next_after(skipped.last_tick_at_ms)),
            (next, decision.fire.first().copied())
        );
        let seconds = (now - next) / 1_000;
        match expression {
            // Berlin's clock shows every second; each second of a DST overlap counts twice.
            "* * * * * *" => assert_eq!(skipped.tick_count + 100, seconds as u64 + 1),
            "every 1ms" => assert_eq!(skipped.tick_count + 100, (now - next) as u64 + 1),
            _ => assert!(skipped.tick_count > 150_000_000),
        }
    }
}

#[test]
fn a_backward_clock_step_fires_nothing_again() {
    let minutely = timetable("* * * * *", "UTC", 0);
    let all = MisfirePolicy::FireAll { cap: 1_000 };
    let first = decide(&minutely, all, stored(0), 10 * MINUTE);
    assert_eq!(first.fire.len(), 11);
    let back = decide(&minutely, all, first.tick_state.unwrap(), -DAY);
    assert_eq!((back.fire, back.tick_state), (vec![], first.tick_state));
}

#[test]
fn an_ended_request_stays_ended() {
    let rule = RecurrenceRule {
        end_ms: Some(3 * MINUTE),
        ..RecurrenceRule::new("* * * * *".parse::<ScheduleExpression>().unwrap())
    };
    let short = Timetable::new(&rule, "");
    let decision = decide(&short, MisfirePolicy::FireAll { cap: 10 }, stored(MINUTE), DAY);
    assert_eq!(
        (decision.fire, decision.tick_state, decision.next_due_at_ms),
        (vec![MINUTE, 2 * MINUTE], None, None)
    );
    assert_eq!(decide(&short, MisfirePolicy::Skip, stored(3 * MINUTE), DAY).tick_state, None);
}

#[test]
fn lateness_counts_from_the_jittered_due_time() {
    let jittered = timetable("0 * * * *", "UTC", 30 * 60_000);
    let next = at("2026-01-01T10:00:00Z");
    let due = jittered.due_at(next);
    assert!(due > next + MINUTE);
    for misfire in [MisfirePolicy::Skip, MisfirePolicy::FireOnce] {
        let early = decide(&jittered, misfire, stored(next), due - 1);
        assert_eq!((early.fire, early.next_due_at_ms), (vec![], Some(due)));
        assert_eq!(decide(&jittered, misfire, stored(next), due).fire, [next]);
    }
}

#[test]
fn months_pass_in_milliseconds() {
    let nightly = timetable("30 2 * * *", "Europe/Berlin", 5_000);
    let (from, to) = (at("2026-01-01T00:00:00Z"), at("2027-01-01T00:00:00Z"));
    let mut progress = stored(nightly.first_from(from).unwrap());
    let mut now = from;
    let mut fired = Vec::new();
    while now < to {
        let decision = decide(&nightly, MisfirePolicy::Skip, progress, now);
        fired.extend(decision.fire);
        progress = decision.tick_state.unwrap();
        now = decision.next_due_at_ms.unwrap();
    }
    assert_eq!(fired.len(), 365);
    assert!(fired.iter().copied().eq(nightly.ticks_between(from, to)));
}

#[test]
fn policies_round_trip() {
    for text in ["skip", "fire_once", "fire_all(100)", "within(1h30m)", "within(250ms)"] {
        assert_eq!(text.parse::<MisfirePolicy>().unwrap().to_string(), text);
    }
    assert_eq!("within(2d)".parse(), Ok(MisfirePolicy::Within { grace_ms: 172_800_000 }));
    for (text, problem) in [
        ("", "use skip, fire_once"),
        ("fire_all", "use skip, fire_once"),
        ("fire_all(x)", "use skip, fire_once"),
        ("within(5 parsecs)", "within(15m)"),
        ("fire_all(0)", "use 1 to 10000"),
        ("fire_all(5000000000)", "fire_all(5000000000) is out of range"),
        ("within(0s)", "within(0ms) is out of range"),
    ] {
        let error = text.parse::<MisfirePolicy>().unwrap_err().to_string();
        assert!(error.contains(problem), "{text}: {error}");
    }
}

fn timetables() -> impl Strategy<Value = Timetable> {
    let whens = [
        "*/10 * * * *",
        "30 2 * * *",
        "0 */3 * * *",
        "every 7m",
        "every 1d",
        "0 0 L * *",
        "15 1,2,3 * * SUN",
    ];
    let zones = ["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Africa/Casablanca"];
    let jitters = [0, 1_000, 3_600_000];
    (0..whens.len(), 0..zones.len(), 0..jitters.len())
        .prop_map(move |(w, z, j)| timetable(whens[w], zones[z], jitters[j]))
}

fn policies() -> impl Strategy<Value = MisfirePolicy> {
    prop_oneof![
        Just(MisfirePolicy::Skip),
        Just(MisfirePolicy::FireOnce),
        (1..50_u32).prop_map(|cap| MisfirePolicy::FireAll { cap }),
        (1..200_000_000_u64).prop_map(|grace_ms| MisfirePolicy::Within { grace_ms }),
    ]
}

/// Decisions at irregular times: soon after each other, after an outage, sometimes earlier than before.
fn observation_times() -> impl Strategy<Value = Vec<i64>> {
    let step = prop_oneof![0..2 * MINUTE, -30 * MINUTE..90 * MINUTE, 0..20 * DAY];
    (0..20_000_i64, proptest::collection::vec(step, 1..30)).prop_map(|(day, steps)| {
        let mut now = day * DAY;
        steps
            .into_iter()
            .map(|step| {
                now += step;
                now
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_tick_is_fired_or_skipped_exactly_once(timetable in timetables(), misfire in policies(), observation_times in observation_times()) {
        let first = timetable.first_from(observation_times[0]).unwrap();
        let mut progress = stored(first);
        let (mut last, mut decided) = (i64::MIN, 0);
        for now in observation_times {
            let decision = decide(&timetable, misfire, progress, now);
            // A second decision, as by a leader that was wrongly taken for dead, gives the same result.
            prop_assert_eq!(&decision, &decide(&timetable, misfire, progress, now));
            if let Some(skipped) = decision.skipped {
                prop_assert!(skipped.first_tick_at_ms == progress.next_tick_at_ms && skipped.last_tick_at_ms > last);
                last = skipped.last_tick_at_ms;
                decided += skipped.tick_count;
            }
            for tick in &decision.fire {
                prop_assert!(*tick > last && timetable.is_tick(*tick) && timetable.due_at(*tick) <= now);
                last = *tick;
            }
            decided += decision.fire.len() as u64;
            let next = decision.tick_state.unwrap();
            prop_assert!(next.next_tick_at_ms == progress.next_tick_at_ms || Some(next.next_tick_at_ms) == timetable.next_after(last));
            prop_assert_eq!(decided, timetable.count(first, next.next_tick_at_ms));
            prop_assert!(timetable.due_at(next.next_tick_at_ms) > now);
            progress = next;
        }
    }

    #[test]
    fn below_the_cap_no_tick_is_lost_however_often_due_ticks_are_decided(timetable in timetables(), observation_times in observation_times()) {
        let all = MisfirePolicy::FireAll { cap: FIRE_MAX };
        let first = timetable.first_from(observation_times[0]).unwrap();
        let end = *observation_times.iter().max().unwrap();
        prop_assume!(timetable.count(first, end) < FIRE_MAX.into());
        let mut progress = stored(first);
        let mut fired = Vec::new();
        for now in observation_times.iter().copied().chain([end]) {
            let decision = decide(&timetable, all, progress, now);
            prop_assert_eq!(decision.skipped, None);
            fired.extend(decision.fire);
            progress = decision.tick_state.unwrap();
        }
        let once = decide(&timetable, all, stored(first), end);
        prop_assert_eq!(&fired, &once.fire);
        prop_assert_eq!(Some(progress.next_tick_at_ms), once.tick_state.map(|it| it.next_tick_at_ms));
        let due = timetable.ticks_between(first, end + 1).filter(|tick| timetable.due_at(*tick) <= end);
        prop_assert!(due.eq(fired));
    }
}
