//! A few runs of every Raft scenario. `tenure-sim raft` runs more.

use tenure_testkit::sim::raft::{self, RaftInjectedBug, RaftScenario, RaftStats};

/// Runs of each scenario.
const RUNS: u64 = 2;

fn run_seeds(scenario: RaftScenario) -> RaftStats {
    let mut stats = RaftStats::default();
    for seed in 0..RUNS {
        match raft::run(scenario, seed, None) {
            Ok(run) => stats.add(&run),
            Err(failure) => panic!("{failure}"),
        }
    }
    stats
}

#[test]
fn a_cut_and_lossy_network_violates_no_invariant() {
    let stats = run_seeds(RaftScenario::Network);
    assert!(stats.cuts_both_ways + stats.cuts_one_way > 0 && stats.requests_duplicated > 0, "{stats}");
    assert!(stats.elected > 0 && stats.writes > 0 && stats.reads > 0, "{stats}");
}

#[test]
fn crashes_violate_no_invariant() {
    let stats = run_seeds(RaftScenario::Crashes);
    assert!(stats.crashes > 0 && stats.leaders > RUNS, "{stats}");
}

#[test]
fn suspended_machines_violate_no_invariant() {
    let stats = run_seeds(RaftScenario::Pauses);
    assert!(stats.pauses + stats.users_paused > 0, "{stats}");
}

#[test]
fn membership_changes_violate_no_invariant() {
    let stats = run_seeds(RaftScenario::Members);
    assert!(stats.admitted + stats.dismissed + stats.transfers > 0, "{stats}");
}

#[test]
fn all_faults_together_violate_no_invariant() {
    let stats = run_seeds(RaftScenario::Everything);
    assert!(stats.elected > 0 && stats.fenced > 0, "{stats}");
}

/// Runs seeds until one of these invariants finds the bug; other invariants may find it first.
fn is_found_by(invariants: &[&str], bug: RaftInjectedBug, scenario: RaftScenario) {
    let mut failures = (0..40).filter_map(|seed| raft::run(scenario, seed, Some(bug)).err());
    let found = failures.any(|failure| invariants.contains(&failure.violation.invariant));
    assert!(found, "{bug} was not found by {invariants:?}");
}

#[test]
fn a_log_that_is_not_synced_is_found() {
    let by = ["logs_agree", "reads_are_linearizable", "tokens_only_grow"];
    is_found_by(&by, RaftInjectedBug::NothingIsSynced, RaftScenario::Crashes);
}

#[test]
fn a_clock_that_stops_in_suspend_is_found() {
    is_found_by(&["at_most_one_trusted_leader"], RaftInjectedBug::ClockStopsInSuspend, RaftScenario::Pauses);
}

#[test]
fn clocks_that_are_too_far_apart_are_found() {
    is_found_by(&["at_most_one_trusted_leader"], RaftInjectedBug::ClocksOfAnyRate, RaftScenario::Everything);
}

#[test]
fn a_stale_read_is_found() {
    is_found_by(&["reads_are_linearizable"], RaftInjectedBug::ResponsesFromMemory, RaftScenario::Network);
}

/// A leader that crashed and restarted at once continued without an election and served reads from its last snapshot,
/// without later confirmed writes. Now it is elected again, and waits until the first entry of its term is committed.
#[test]
fn a_restarted_leader_reads_all_confirmed_writes() {
    for _ in 0..3 {
        raft::run(RaftScenario::Crashes, 1, None).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// A client stayed forever with a member that responded but knew no leader, although the other members had one.
#[test]
fn a_client_leaves_a_member_that_does_not_take_part() {
    raft::run(RaftScenario::Everything, 3, None).unwrap_or_else(|failure| panic!("{failure}"));
}
