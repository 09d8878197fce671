//! A slice of days of every kind, for every change. `tenure-sim` lives millions.

use tenure_testkit::sim::{self, Mistake, Scenario, Stats};

/// Days of each scenario.
const DAYS: u64 = 150;

fn live(scenario: Scenario) -> Stats {
    let mut stats = Stats::default();
    for seed in 0..DAYS {
        match sim::run(scenario, seed) {
            Ok(day) => stats.add(&day),
            Err(failure) => panic!("{failure}"),
        }
    }
    stats
}

#[test]
fn calm_days_have_leaders_and_no_takeovers() {
    let stats = live(Scenario::Calm);
    assert!(stats.elected >= DAYS && stats.takeovers == 0, "{stats}");
}

#[test]
fn a_lossy_network_breaks_nothing() {
    let stats = live(Scenario::Network);
    assert!(stats.requests_lost > 0 && stats.answers_lost > 0 && stats.applied_late > 0, "{stats}");
    assert!(stats.granted_late > 0 && stats.stale_refused > 0, "{stats}");
}

#[test]
fn stopped_and_crashed_processes_break_nothing() {
    let stats = live(Scenario::Processes);
    assert!(stats.pauses > 0 && stats.crashes > 0 && stats.takeovers > 0, "{stats}");
}

#[test]
fn a_store_that_goes_away_breaks_nothing() {
    let stats = live(Scenario::Store);
    assert!(stats.outages > 0 && stats.lost > 0, "{stats}");
}

#[test]
fn operators_break_nothing() {
    let stats = live(Scenario::Operators);
    assert!(stats.operator_asks > 0 && stats.asked > 0, "{stats}");
}

#[test]
fn candidates_that_come_and_go_break_nothing() {
    let stats = live(Scenario::Churn);
    assert!(stats.withdrawals > 0 && stats.ends > 0, "{stats}");
}

#[test]
fn everything_at_once_breaks_nothing() {
    let stats = live(Scenario::Everything);
    assert!(stats.guarded_refused > 0 && stats.stale_refused > 0, "{stats}");
}

#[test]
fn a_promoted_older_copy_leaves_tokens_in_order() {
    let stats = live(Scenario::Promotion);
    assert!(stats.promotions > 0, "{stats}");
}

#[test]
fn the_same_seed_is_the_same_day() {
    let day = || sim::run(Scenario::Everything, 11).unwrap();
    assert_eq!(day(), day());
}

/// With the mistake some seed breaks the invariant; without it the same seed breaks nothing.
fn is_found(mistake: Mistake, scenario: Scenario, invariant: &str) {
    let found = |seed: u64| sim::run_with(scenario, seed, Some(mistake)).err();
    let failure = (0..3000).find_map(found).unwrap_or_else(|| panic!("{mistake} was not found"));
    assert_eq!(failure.violation.invariant, invariant, "{failure}");
    if let Err(failure) = sim::run(scenario, failure.seed) {
        panic!("{failure}");
    }
}

#[test]
fn a_clock_read_after_the_answer_is_found() {
    is_found(Mistake::ClockReadAfterTheAnswer, Scenario::Processes, "a_trusted_session_lives");
}

#[test]
fn trust_kept_as_a_flag_is_found() {
    is_found(Mistake::TrustKeptAsAFlag, Scenario::Processes, "at_most_one_believes");
}

#[test]
fn a_take_without_compare_and_swap_is_found() {
    is_found(Mistake::TakeWithoutCompareAndSwap, Scenario::Everything, "a_trusted_session_lives");
}

#[test]
fn a_beat_that_revives_an_expired_session_is_found() {
    is_found(Mistake::BeatRevivesAnExpiredSession, Scenario::Processes, "a_trusted_session_lives");
}

#[test]
fn an_expiry_that_ignores_the_beat_is_found() {
    is_found(Mistake::ExpiryIgnoresTheBeat, Scenario::Everything, "a_trusted_session_lives");
}

#[test]
fn a_guard_that_takes_no_lock_is_found() {
    is_found(Mistake::GuardTakesNoLock, Scenario::Everything, "guarded_writes_only_by_the_holder");
}

#[test]
fn a_release_before_the_work_ended_is_found() {
    is_found(Mistake::ReleaseBeforeTheWorkEnded, Scenario::Everything, "a_released_lease_was_not_in_use");
}

#[test]
fn tokens_that_forget_the_epoch_are_found() {
    is_found(Mistake::TokensForgetTheEpoch, Scenario::Promotion, "tokens_only_grow");
}

#[test]
fn a_hostname_as_session_id_is_found() {
    is_found(Mistake::HostnameAsSessionId, Scenario::Processes, "at_most_one_believes");
}

#[test]
fn a_clock_that_stops_in_suspend_is_found() {
    is_found(Mistake::ClockStopsInSuspend, Scenario::Processes, "a_trusted_session_lives");
}
