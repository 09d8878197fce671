//! A model of the lease protocol, checked exhaustively within bounds.
//!
//! This is the protocol of DESIGN.md, section 3, stated a second time and with none of the production code: what a
//! reader must know to trust it fits in `model/store.rs` and `model/node.rs`.
//!
//! **The protocol.** A *session* is one start of a process. It *beats* in the store, and whatever it holds is trusted
//! for ⅔ of a lease from when its clock was read, before the beat was sent. A candidate may *take* the lease when it is
//! free, when its holder's session is not live, or when it has seen the holder's beat unchanged for a whole lease on
//! its own clock, counted from when the first read returned. Taking is one step of the store: expire the holder if its
//! beat is still the one that was seen, take the lease if its token and holder are, and give it a greater token.
//! *Release* comes after the work. Writes are *guarded* (in the same store: the lease row is locked until the commit)
//! or *fenced* (anywhere: a token lower than one already seen is refused).
//!
//! **What can go wrong in it.** A request is served late, after its node gave up or its process died, or never; it is
//! served and its answer lost; it is never doubled. A node may stop between any two steps for any time. It may crash,
//! or leave, and come back as a new session. A standby that lags may be promoted: commits are lost, sessions and
//! beats go back, and the epoch grows.
//!
//! **Time** is not bounded. A tick is true time; a local clock advances by 5 or 6 units in it, the 1.2 of the promise.
//! A lease is 18 units, its trust 12. No state has an absolute time: deadlines are kept as what is left, waits as what
//! has passed, both with an end, so the states are finite. By default every deadline runs on the slowest clock and
//! every wait on the fastest ([`Clocks::Worst`]): a node *may* act while it believes and *may* take once it has waited,
//! so what any other rates allow, these allow. One test lets every clock choose its rate at every tick instead.
//!
//! **What is left out.** One lease, one lease time, one promotion, with the old primary gone for good; a node waits for
//! one answer at a time, and at most one of its requests is late. Exchanges take no time unless a test makes them
//! ([`Slow`]): an answer that comes later gives no more trust, and a wait that begins later ends later, so prompt ones
//! allow the most; the tests with slow beats, reads and takes check just that. Grants and restarts are counted, and a
//! run ends with them; within these bounds every state is visited.
//!
//! **Negative controls.** Each [`Mistake`], put in, must break the property that its test names.
//!
//! **Longer.** By default the tests take about 40 s of processor time. `TENURE_MODEL_DEPTH=n`, up to 4, adds n − 1 grants
//! and n − 1 restarts to every run, each about ten times the states. With 2, the run of two nodes has 1.3 million states
//! (40 s, 170 MB in the debug profile); those with three nodes, slow beats or a promotion take many minutes, so use
//! `--release`. With 1, the bounds are the default ones and the one run that is cut short by steps is not.
//! `-- --nocapture` prints the counts and the counterexamples.

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
use rules::{Clocks, Mistake, Rules, Slow};

const PROMPT: Slow = Slow { beats: false, reads: false, takes: false };
const SLOW_BEATS: Slow = Slow { beats: true, ..PROMPT };
const SLOW_READS: Slow = Slow { reads: true, ..PROMPT };
const SLOW_TAKES: Slow = Slow { takes: true, ..PROMPT };

/// Visits every state within the bounds: all that must hold does, and all that must happen does.
fn holds(rules: Rules) {
    let more = depth().unwrap_or(1) - 1;
    let rules = Rules { grants: rules.grants + more, restarts: rules.restarts + more, ..rules };
    let checked = rules.checker().threads(2).spawn_bfs().join();
    println!("{} states, {} deep: {rules:?}", checked.unique_state_count(), checked.max_depth());
    checked.assert_properties();
}

/// As `holds`, for the first so many steps only, where to visit every state would take minutes. With
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

/// Finds a way to break the property.
fn breaks(rules: Rules, property: &'static str) {
    let found = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checked = rules.checker().finish_when(found).spawn_bfs().join();
    println!("{} states until \"{property}\" broke: {rules:?}", checked.unique_state_count());
    for step in checked.assert_any_discovery(property).into_actions() {
        println!("    {step:?}");
    }
}

#[test]
fn at_most_one_node_believes_it_leads() {
    holds(Rules { grants: 3, restarts: 1, work: true, ..Rules::new() });
}

#[test]
fn at_most_one_of_three_nodes_believes_it_leads() {
    holds(Rules { nodes: 3, grants: 2, restarts: 0, ..Rules::new() });
}

#[test]
fn rates_that_change_within_the_envelope_give_one_leader() {
    holds(Rules { clocks: Clocks::AnyRate, grants: 2, restarts: 0, ..Rules::new() });
}

#[test]
fn slow_beats_do_not_lengthen_trust() {
    holds(Rules { slow: SLOW_BEATS, grants: 2, restarts: 0, ..Rules::new() });
}

#[test]
fn slow_reads_do_not_shorten_the_wait() {
    holds(Rules { slow: SLOW_READS, grants: 2, restarts: 0, ..Rules::new() });
}

#[test]
fn late_takes_are_refused_or_found_again() {
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

/// Stronger than the design: see `promotion_waited_out`. Leaders of two epochs do not overlap either.
#[test]
fn waiting_out_a_lease_after_a_promotion_leaves_one_leader() {
    holds(Rules { promotion: true, promotion_waited_out: true, grants: 2, restarts: 0, ..Rules::new() });
}

#[test]
fn clock_read_after_the_answer_gives_two_leaders() {
    breaks(Rules { slow: SLOW_BEATS, ..Rules::new().with(Mistake::ClockReadAfterAnswer) }, ONE_LEADER);
}

#[test]
fn trust_for_a_whole_lease_gives_two_leaders() {
    breaks(Rules::new().with(Mistake::TrustTheWholeLease), ONE_LEADER);
}

#[test]
fn clocks_outside_the_envelope_give_two_leaders() {
    breaks(Rules { clocks: Clocks::OutsideTheEnvelope, ..Rules::new() }, ONE_LEADER);
}

#[test]
fn trust_kept_as_a_flag_gives_two_leaders() {
    breaks(Rules::new().with(Mistake::TrustIsAFlag), ONE_LEADER);
}

#[test]
fn a_grant_that_extends_trust_with_no_beat_gives_two_leaders() {
    breaks(Rules::new().with(Mistake::TakeExtendsTrust), ONE_LEADER);
}

#[test]
fn a_take_over_without_compare_and_swap_gives_two_leaders() {
    breaks(Rules::new().with(Mistake::TakeWithoutCas), ONE_LEADER);
}

#[test]
fn an_expiry_that_ignores_the_beat_gives_two_leaders() {
    breaks(Rules::new().with(Mistake::ExpireWithoutBeatCas), ONE_LEADER);
}

#[test]
fn a_wait_counted_from_before_the_read_gives_two_leaders() {
    let rules = Rules { slow: SLOW_READS, ..Rules::new().with(Mistake::ExpiryCountedFromBeforeRead) };
    breaks(rules, ONE_LEADER);
}

#[test]
fn a_beat_that_revives_an_expired_session_gives_two_leaders() {
    breaks(Rules::new().with(Mistake::BeatRevivesExpired), ONE_LEADER);
}

#[test]
fn one_identity_on_every_replica_gives_two_leaders() {
    breaks(Rules::new().with(Mistake::SameIdentityEverywhere), ONE_LEADER);
}

/// A release whose answer was lost arrives after its node has found itself in the lease and gone on.
#[test]
fn going_on_with_a_token_that_was_released_gives_two_leaders() {
    breaks(Rules::new().with(Mistake::AdoptsOwnLeaseAsFound), ONE_LEADER);
}

#[test]
fn a_guard_that_takes_no_lock_lets_a_stale_commit_through() {
    breaks(Rules { guarded: true, ..Rules::new().with(Mistake::GuardTakesNoLock) }, GUARD_HOLDS);
}

#[test]
fn a_release_before_the_work_has_ended_gives_two_workers() {
    breaks(Rules { work: true, ..Rules::new().with(Mistake::ReleaseBeforeWorkEnded) }, ONE_WORKER);
}

#[test]
fn without_a_fence_a_stale_write_is_accepted() {
    breaks(Rules { fenced: true, ..Rules::new().with(Mistake::NoFence) }, WRITES_IN_ORDER);
}

#[test]
fn tokens_counted_in_memory_are_given_twice() {
    breaks(Rules::new().with(Mistake::TokenFromMemoryOnly), TOKENS_GROW);
}

#[test]
fn tokens_without_the_epoch_are_given_twice() {
    let rules = Rules { promotion: true, restarts: 0, ..Rules::new().with(Mistake::TokenForgetsEpoch) };
    breaks(rules, TOKENS_GROW);
}

#[test]
fn tokens_without_the_epoch_let_a_stale_write_through() {
    let rules = Rules { promotion: true, fenced: true, restarts: 0, grants: 2, ..Rules::new() };
    breaks(rules.with(Mistake::TokenForgetsEpoch), WRITES_IN_ORDER);
}

#[test]
fn a_beat_on_another_epoch_must_not_renew_a_lost_grant() {
    let rules = Rules { promotion: true, restarts: 0, ..Rules::new().with(Mistake::BeatIgnoresEpoch) };
    breaks(rules, EPOCH_ENDS_TRUST);
}
