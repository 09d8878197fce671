//! A few runs of every scenario. `tenure-sim` runs millions.

use tenure_testkit::sim::{self, InjectedBug, Scenario, Stats};

/// Runs of each scenario.
const RUNS: u64 = 150;

fn run_seeds(scenario: Scenario) -> Stats {
    let mut stats = Stats::default();
    for seed in 0..RUNS {
        match sim::run(scenario, seed) {
            Ok(run) => stats.add(&run),
            Err(failure) => panic!("{failure}"),
        }
    }
    stats
}

#[test]
fn runs_without_faults_have_leaders_and_no_takeovers() {
    let stats = run_seeds(Scenario::Calm);
    assert!(stats.elected >= RUNS && stats.takeovers == 0, "{stats}");
}

#[test]
fn a_lossy_network_violates_no_invariant() {
    let stats = run_seeds(Scenario::Network);
    assert!(stats.requests_lost > 0 && stats.answers_lost > 0 && stats.applied_late > 0, "{stats}");
    assert!(stats.granted_late > 0 && stats.stale_refused > 0, "{stats}");
}

#[test]
fn suspended_and_crashed_processes_violate_no_invariant() {
    let stats = run_seeds(Scenario::Processes);
    assert!(stats.pauses > 0 && stats.crashes > 0 && stats.takeovers > 0, "{stats}");
}

#[test]
fn store_outages_violate_no_invariant() {
    let stats = run_seeds(Scenario::Store);
    assert!(stats.outages > 0 && stats.lost > 0, "{stats}");
}

#[test]
fn operator_requests_violate_no_invariant() {
    let stats = run_seeds(Scenario::Operators);
    assert!(stats.operator_requests > 0 && stats.leader_requests > 0, "{stats}");
}

#[test]
fn candidate_changes_violate_no_invariant() {
    let stats = run_seeds(Scenario::Churn);
    assert!(stats.withdrawals > 0 && stats.ends > 0, "{stats}");
}

#[test]
fn all_faults_together_violate_no_invariant() {
    let stats = run_seeds(Scenario::Everything);
    assert!(stats.guarded_refused > 0 && stats.stale_refused > 0, "{stats}");
}

#[test]
fn a_promoted_older_copy_leaves_tokens_in_order() {
    let stats = run_seeds(Scenario::Promotion);
    assert!(stats.promotions > 0, "{stats}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = || sim::run(Scenario::Everything, 11).unwrap();
    assert_eq!(run(), run());
}

/// With the bug some seed violates the invariant; without it the same seed violates nothing.
fn is_found(bug: InjectedBug, scenario: Scenario, invariant: &str) {
    let found = |seed: u64| sim::run_with(scenario, seed, Some(bug)).err();
    let failure = (0..3000).find_map(found).unwrap_or_else(|| panic!("{bug} was not found"));
    assert_eq!(failure.violation.invariant, invariant, "{failure}");
    if let Err(failure) = sim::run(scenario, failure.seed) {
        panic!("{failure}");
    }
}

#[test]
fn a_clock_read_after_the_response_is_found() {
    is_found(InjectedBug::ClockReadAfterTheResponse, Scenario::Processes, "a_trusted_session_lives");
}

#[test]
fn trust_kept_as_a_flag_is_found() {
    is_found(InjectedBug::TrustWithoutDeadline, Scenario::Processes, "at_most_one_trusted_leader");
}

#[test]
fn a_take_without_compare_and_swap_is_found() {
    is_found(InjectedBug::TakeWithoutCompareAndSwap, Scenario::Everything, "a_trusted_session_lives");
}

#[test]
fn a_heartbeat_that_revives_an_expired_session_is_found() {
    is_found(InjectedBug::HeartbeatRevivesAnExpiredSession, Scenario::Processes, "a_trusted_session_lives");
}

#[test]
fn an_expiry_that_ignores_the_heartbeat_is_found() {
    is_found(InjectedBug::ExpiryIgnoresTheHeartbeat, Scenario::Everything, "a_trusted_session_lives");
}

#[test]
fn a_guard_that_takes_no_lock_is_found() {
    is_found(InjectedBug::GuardTakesNoLock, Scenario::Everything, "guarded_writes_only_by_the_holder");
}

#[test]
fn a_release_before_the_work_ended_is_found() {
    is_found(InjectedBug::ReleaseBeforeTheWorkEnded, Scenario::Everything, "a_released_lease_was_not_in_use");
}

#[test]
fn tokens_that_forget_the_epoch_are_found() {
    is_found(InjectedBug::TokensForgetTheEpoch, Scenario::Promotion, "tokens_only_grow");
}

#[test]
fn a_hostname_as_session_id_is_found() {
    is_found(InjectedBug::HostnameAsSessionId, Scenario::Processes, "at_most_one_trusted_leader");
}

#[test]
fn a_clock_that_stops_in_suspend_is_found() {
    is_found(InjectedBug::ClockStopsInSuspend, Scenario::Processes, "a_trusted_session_lives");
}
