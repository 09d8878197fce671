//! A few days of Raft clusters of every kind. `tenure-sim raft` lives as many as you like.

use tenure_testkit::sim::raft::{self, RaftMistake, RaftScenario, RaftStats};

/// Days of each scenario.
const DAYS: u64 = 2;

fn live(scenario: RaftScenario) -> RaftStats {
    let mut stats = RaftStats::default();
    for seed in 0..DAYS {
        match raft::run(scenario, seed, None) {
            Ok(day) => stats.add(&day),
            Err(failure) => panic!("{failure}"),
        }
    }
    stats
}

#[test]
fn a_network_that_is_cut_and_lossy_breaks_nothing() {
    let stats = live(RaftScenario::Network);
    assert!(stats.cuts_both_ways + stats.cuts_one_way > 0 && stats.questions_doubled > 0, "{stats}");
    assert!(stats.elected > 0 && stats.writes > 0 && stats.reads > 0, "{stats}");
}

#[test]
fn crashes_break_nothing() {
    let stats = live(RaftScenario::Crashes);
    assert!(stats.crashes > 0 && stats.leaders > DAYS, "{stats}");
}

#[test]
fn machines_that_stand_still_break_nothing() {
    let stats = live(RaftScenario::Pauses);
    assert!(stats.pauses + stats.users_paused > 0, "{stats}");
}

#[test]
fn other_members_break_nothing() {
    let stats = live(RaftScenario::Members);
    assert!(stats.admitted + stats.dismissed + stats.transfers > 0, "{stats}");
}

#[test]
fn everything_at_once_breaks_nothing() {
    let stats = live(RaftScenario::Everything);
    assert!(stats.elected > 0 && stats.fenced > 0, "{stats}");
}

/// Lives days until one of these invariants finds the mistake; on the way there, others may find it.
fn is_found_by(invariants: &[&str], mistake: RaftMistake, scenario: RaftScenario) {
    let mut days = (0..40).filter_map(|seed| raft::run(scenario, seed, Some(mistake)).err());
    let found = days.any(|failure| invariants.contains(&failure.violation.invariant));
    assert!(found, "{mistake} was not found by {invariants:?}");
}

#[test]
fn a_log_that_is_not_synced_is_found() {
    let by = ["logs_agree", "reads_are_linearizable", "tokens_only_grow"];
    is_found_by(&by, RaftMistake::NothingIsSynced, RaftScenario::Crashes);
}

#[test]
fn a_clock_that_stops_in_suspend_is_found() {
    is_found_by(&["at_most_one_believes"], RaftMistake::ClockStopsInSuspend, RaftScenario::Pauses);
}

#[test]
fn clocks_that_are_too_far_apart_are_found() {
    is_found_by(&["at_most_one_believes"], RaftMistake::ClocksOfAnyRate, RaftScenario::Everything);
}

#[test]
fn what_is_read_stale_is_found() {
    is_found_by(&["reads_are_linearizable"], RaftMistake::AnswersFromMemory, RaftScenario::Network);
}

/// A leader that crashed and came back at once led on without an election, and answered from its last snapshot: what had been confirmed since was not to be
/// seen. Now it is elected anew, and waits until the first entry of its term is agreed on.
#[test]
fn a_leader_that_comes_back_at_once_reads_all_that_was_confirmed() {
    for _ in 0..3 {
        raft::run(RaftScenario::Crashes, 1, None).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// A client stayed for ever with a member that answered but knew no leader, though the others had one.
#[test]
fn who_asks_a_member_that_takes_no_part_asks_another_the_next_time() {
    raft::run(RaftScenario::Everything, 3, None).unwrap_or_else(|failure| panic!("{failure}"));
}
