//! A bounded, exhaustively checked model of the lease protocol.
//!
//! The model states the lease protocol a second time and uses no production code. To review it, read `model/store.rs`
//! and `model/node.rs`.
//!
//! **Protocol.** A *session* is one start of a process. It sends *heartbeats* to the store, and everything it holds
//! is trusted for ⅔ of a lease, counted from a clock reading before the heartbeat was sent. A candidate may *take*
//! the lease when it is free, when its holder's session is not live, or when it has observed an unchanged heartbeat
//! of the holder for a whole lease on its own clock, counted from when the first read returned. A take is one step of
//! the store: expire the holder if its heartbeat is the observed one, take the lease if its token and holder are the
//! observed ones, and give it a greater token. A *release* comes after the work. Writes are *guarded* (in the same
//! store: the lease row is locked until the commit) or *fenced* (anywhere: a token lower than one already seen is
//! rejected).
//!
//! **Faults.** A request is served late, after its node gave up or its process died, or never; it is served and its
//! response is lost; it is never duplicated. A node may be suspended between any two steps for any time. It may crash
//! or leave, and restart as a new session. A lagging standby may be promoted: commits are lost, sessions and
//! heartbeats go back, and the epoch grows.
//!
//! **Time** is not bounded. In one tick of real time, a local clock advances by 5 or 6 units, so two clocks differ by
//! at most the factor 1.2 that Tenure allows (the *envelope*). A lease is 18 units, its trust 12. No state has an absolute time: deadlines are stored as the remaining
//! time and waits as the elapsed time, both bounded, so the state space is finite. By default every deadline runs on
//! the slowest clock and every wait on the fastest ([`Clocks::Worst`]): a node *may* act while it has trust and *may*
//! take once it has waited, so these rates allow everything that other rates allow. One test lets every clock choose
//! its rate at every tick instead.
//!
//! **Not covered.** One lease, one lease duration, one promotion with the old primary gone; a node waits for one
//! response at a time, and at most one of its requests is late. Requests take no time unless a test makes them slow
//! ([`Slow`]). A late response gives no more trust, and a wait that starts later ends later, so fast requests allow
//! every behaviour that slow ones allow; the tests with slow heartbeats, reads and takes verify this. The numbers of
//! grants and restarts are limited; within these bounds every state is visited.
//!
//! **Negative controls.** Each injected [`Bug`] must violate the property that its test names.
//!
//! **Longer runs.** By default the tests take about 40 s of processor time. `TENURE_MODEL_DEPTH=n`, up to 4, adds n −
//! 1 grants and n − 1 restarts to every run, each with about ten times the states. With 2, the run of two nodes has
//! 1.3 million states (40 s, 170 MB in the debug profile); those with three nodes, slow heartbeats or a promotion
//! take many minutes, so use `--release`. With 1, the bounds are the defaults, but the one test that
//! limits its number of steps visits every state. `-- --nocapture` prints the counts and the counterexamples.

#[path = "model/checker.rs"]
mod checker;
#[path = "model/node.rs"]
mod node;
#[path = "model/properties.rs"]
mod properties;
#[path = "model/rules.rs"]
mod rules;
#[path = "model/state.rs"]
mod state;
#[path = "model/store.rs"]
mod store;

use std::collections::BTreeSet;

use stateright::{Checker, HasDiscoveries, Model};

use properties::{EPOCH_ENDS_TRUST, GUARD_HOLDS, ONE_LEADER, ONE_WORKER, TOKENS_GROW, WRITES_IN_ORDER};
use rules::{Bug, Clocks, Rules, Slow};

const PROMPT: Slow = Slow { beats: false, reads: false, takes: false };
const SLOW_BEATS: Slow = Slow { beats: true, ..PROMPT };
const SLOW_READS: Slow = Slow { reads: true, ..PROMPT };
const SLOW_TAKES: Slow = Slow { takes: true, ..PROMPT };

/// Visits every state within the bounds: all invariants hold, and all expected situations occur.
fn holds(rules: Rules) {
    let more = depth().unwrap_or(1) - 1;
    let rules = Rules { grants: rules.grants + more, restarts: rules.restarts + more, ..rules };
    let checked = rules.checker().threads(2).spawn_bfs().join();
    println!("{} states, {} deep: {rules:?}", checked.unique_state_count(), checked.max_depth());
    checked.assert_properties();
}

/// As `holds`, for a limited number of steps, where visiting every state would take minutes. With
/// `TENURE_MODEL_DEPTH` set, visits every state.
fn holds_for(steps: usize, rules: Rules) {
    if depth().is_some() {
        return holds(rules);
    }
    // With one thread, states are visited in the order of their depth, and none is missed.
    let checked = rules.checker().threads(1).target_max_depth(steps).spawn_bfs().join();
    println!("{} states in {steps} steps: {rules:?}", checked.unique_state_count());
    checked.assert_properties();
}

fn depth() -> Option<u8> {
    std::env::var("TENURE_MODEL_DEPTH").ok()?.parse().ok().map(|depth: u8| depth.clamp(1, 4))
}

/// Finds a violation of the property.
fn breaks(rules: Rules, property: &'static str) {
    let found = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checked = rules.checker().finish_when(found).spawn_bfs().join();
    println!("{} states until \"{property}\" was violated: {rules:?}", checked.unique_state_count());
    for step in checked.assert_any_discovery(property).into_actions() {
        println!("    {step:?}");
    }
}

#[test]
fn at_most_one_node_trusts_that_it_leads() {
    holds(Rules { grants: 3, restarts: 1, work: true, ..Rules::new() });
}

#[test]
fn at_most_one_of_three_nodes_trusts_that_it_leads() {
    holds(Rules { nodes: 3, grants: 2, restarts: 0, ..Rules::new() });
}

#[test]
fn rates_that_change_within_the_envelope_give_one_leader() {
    holds(Rules { clocks: Clocks::AnyRate, grants: 2, restarts: 0, ..Rules::new() });
}

#[test]
fn slow_heartbeats_do_not_extend_trust() {
    holds(Rules { slow: SLOW_BEATS, grants: 2, restarts: 0, ..Rules::new() });
}

#[test]
fn slow_reads_do_not_shorten_the_wait() {
    holds(Rules { slow: SLOW_READS, grants: 2, restarts: 0, ..Rules::new() });
}

#[test]
fn late_takes_are_rejected_or_detected() {
    holds(Rules { slow: SLOW_TAKES, grants: 3, restarts: 0, ..Rules::new() });
}

#[test]
fn a_guarded_commit_is_made_only_by_the_holder() {
    holds(Rules { guarded: true, grants: 3, restarts: 0, work: true, ..Rules::new() });
}

#[test]
fn fenced_writes_are_accepted_in_the_order_of_grants() {
    holds(Rules { fenced: true, grants: 2, restarts: 0, ..Rules::new() });
}

#[test]
fn tokens_grow_over_a_promotion_that_loses_grants() {
    holds(Rules { promotion: true, grants: 2, restarts: 0, ..Rules::new() });
}

#[test]
fn tokens_order_the_writes_over_a_promotion() {
    let rules = Rules { promotion: true, fenced: true, grants: 2, restarts: 0, ..Rules::new() };
    holds_for(15, rules);
}

/// A stronger rule than the implemented one: see `promotion_waited_out`. Leaders of two epochs do not overlap either.
#[test]
fn waiting_for_a_lease_after_a_promotion_leaves_one_leader() {
    holds(Rules { promotion: true, promotion_waited_out: true, grants: 2, restarts: 0, ..Rules::new() });
}

#[test]
fn reading_the_clock_after_the_response_gives_two_leaders() {
    breaks(Rules { slow: SLOW_BEATS, ..Rules::new().with(Bug::ClockReadAfterResponse) }, ONE_LEADER);
}

#[test]
fn trust_for_a_whole_lease_gives_two_leaders() {
    breaks(Rules::new().with(Bug::TrustTheWholeLease), ONE_LEADER);
}

#[test]
fn clocks_outside_the_envelope_give_two_leaders() {
    breaks(Rules { clocks: Clocks::OutsideTheEnvelope, ..Rules::new() }, ONE_LEADER);
}

#[test]
fn trust_kept_as_a_flag_gives_two_leaders() {
    breaks(Rules::new().with(Bug::TrustIsAFlag), ONE_LEADER);
}

#[test]
fn a_grant_that_extends_trust_without_a_heartbeat_gives_two_leaders() {
    breaks(Rules::new().with(Bug::TakeExtendsTrust), ONE_LEADER);
}

#[test]
fn a_takeover_without_compare_and_swap_gives_two_leaders() {
    breaks(Rules::new().with(Bug::TakeWithoutCas), ONE_LEADER);
}

#[test]
fn an_expiry_that_ignores_the_heartbeat_gives_two_leaders() {
    breaks(Rules::new().with(Bug::ExpireWithoutHeartbeatCas), ONE_LEADER);
}

#[test]
fn a_wait_counted_from_before_the_read_gives_two_leaders() {
    let rules = Rules { slow: SLOW_READS, ..Rules::new().with(Bug::ExpiryCountedFromBeforeRead) };
    breaks(rules, ONE_LEADER);
}

#[test]
fn a_heartbeat_that_revives_an_expired_session_gives_two_leaders() {
    breaks(Rules::new().with(Bug::HeartbeatRevivesExpired), ONE_LEADER);
}

#[test]
fn one_identity_on_every_replica_gives_two_leaders() {
    breaks(Rules::new().with(Bug::SameIdentityEverywhere), ONE_LEADER);
}

/// A node gets no response to its release, reads that it still holds the lease, and continues. Then the release arrives.
#[test]
fn continuing_with_a_released_token_gives_two_leaders() {
    breaks(Rules::new().with(Bug::AdoptsOwnLeaseAsFound), ONE_LEADER);
}

#[test]
fn a_guard_that_takes_no_lock_lets_a_stale_commit_through() {
    breaks(Rules { guarded: true, ..Rules::new().with(Bug::GuardTakesNoLock) }, GUARD_HOLDS);
}

#[test]
fn a_release_before_the_work_has_ended_gives_two_workers() {
    breaks(Rules { work: true, ..Rules::new().with(Bug::ReleaseBeforeWorkEnded) }, ONE_WORKER);
}

#[test]
fn without_a_fence_a_stale_write_is_accepted() {
    breaks(Rules { fenced: true, ..Rules::new().with(Bug::NoFence) }, WRITES_IN_ORDER);
}

#[test]
fn tokens_counted_in_memory_repeat() {
    breaks(Rules::new().with(Bug::TokenFromMemoryOnly), TOKENS_GROW);
}

#[test]
fn tokens_without_the_epoch_repeat() {
    let rules = Rules { promotion: true, restarts: 0, ..Rules::new().with(Bug::TokenForgetsEpoch) };
    breaks(rules, TOKENS_GROW);
}

#[test]
fn tokens_without_the_epoch_let_a_stale_write_through() {
    let rules = Rules { promotion: true, fenced: true, restarts: 0, grants: 2, ..Rules::new() };
    breaks(rules.with(Bug::TokenForgetsEpoch), WRITES_IN_ORDER);
}

#[test]
fn a_heartbeat_that_ignores_the_epoch_renews_a_lost_grant() {
    let rules = Rules { promotion: true, restarts: 0, ..Rules::new().with(Bug::HeartbeatIgnoresEpoch) };
    breaks(rules, EPOCH_ENDS_TRUST);
}
