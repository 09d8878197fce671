//! Invariants, and situations that must occur for the check to be meaningful.

use stateright::Property;

use crate::rules::Rules;
use crate::state::{Life, Node, World};

pub(crate) const ONE_LEADER: &str = "at most one node trusts that it leads";
pub(crate) const ONE_WORKER: &str = "at most one node works";
pub(crate) const TOKENS_GROW: &str = "every grant has a greater token";
pub(crate) const WRITES_IN_ORDER: &str = "no write is accepted after one of a later grant";
pub(crate) const GUARD_HOLDS: &str = "no guarded commit without the lease";
pub(crate) const EPOCH_ENDS_TRUST: &str = "no grant is renewed in another epoch";

pub(crate) fn all(rules: &Rules) -> Vec<Property<Rules>> {
    let mut all = vec![
        Property::always(ONE_LEADER, one_leader),
        Property::always(ONE_WORKER, |rules, world: &World| {
            rules.promotion || count(rules, world, |node| node.working) <= 1
        }),
        Property::always(TOKENS_GROW, |_, world: &World| !world.harm.token_did_not_grow),
        Property::always(WRITES_IN_ORDER, |_, world: &World| !world.harm.stale_write_accepted),
        Property::always(GUARD_HOLDS, |_, world: &World| !world.harm.commit_without_lease),
        Property::always(EPOCH_ENDS_TRUST, |rules, world: &World| {
            count(rules, world, |node| {
                node.believes(rules) && node.held.is_some_and(|held| held.epoch() < node.epoch)
            }) == 0
        }),
        Property::sometimes("a node leads", |rules, world| leaders(rules, world) == 1),
        Property::sometimes("a takeover happens", |rules, world: &World| {
            world.store.sessions.iter().any(|session| session.life == Life::Expired)
                && leaders(rules, world) == 1
        }),
        Property::sometimes("a handover happens", |rules, world: &World| {
            let all_live =
                world.store.sessions[..rules.nodes].iter().all(|session| session.life == Life::Live);
            world.granted.serial == 2 && all_live && leaders(rules, world) == 1
        }),
        Property::sometimes("a take is applied and its response is lost", |rules, world: &World| {
            count(rules, world, |node| {
                world.store.holder == Some(node.session) && node.held.is_none() && node.flight.is_none()
            }) > 0
        }),
    ];
    if rules.fenced {
        all.push(Property::sometimes("a stale write arrives and is rejected", |rules, world: &World| {
            count(rules, world, |node| node.write.is_some_and(|write| write.token < world.accepted.token)) > 0
        }));
    }
    if rules.guarded {
        all.push(Property::sometimes("a transaction outlives its leader's trust", |rules, world: &World| {
            count(rules, world, |node| node.transaction.is_some() && !node.believes(rules)) > 0
        }));
    }
    if rules.promotion {
        all.push(Property::sometimes("a promotion loses a grant that was confirmed", |_, world: &World| {
            world.store.epoch > 0 && world.store.lease.serial < world.granted.serial
        }));
        all.push(Property::sometimes("a node leads in the new epoch", |rules, world: &World| {
            count(rules, world, |node| node.epoch > 0 && node.believes(rules)) > 0
        }));
        if !rules.promotion_waited_out {
            all.push(Property::sometimes("leaders of two epochs overlap", |rules, world| {
                leaders(rules, world) > 1
            }));
        }
    }
    all
}

/// Leaders of different epochs may overlap, because a promoted standby may not know the last grant, unless the
/// stronger rule applies. Leaders of one epoch never overlap.
fn one_leader(rules: &Rules, world: &World) -> bool {
    let epochs = if rules.promotion_waited_out { 0..1 } else { 0..2 };
    epochs.into_iter().all(|epoch| {
        count(rules, world, |node| {
            let grant = node.held.filter(|_| node.believes(rules));
            grant.is_some_and(|grant| rules.promotion_waited_out || grant.epoch() == epoch)
        }) <= 1
    })
}

fn leaders(rules: &Rules, world: &World) -> usize {
    count(rules, world, |node| node.believes(rules))
}

fn count(rules: &Rules, world: &World, is: impl Fn(&Node) -> bool) -> usize {
    world.nodes[..rules.nodes].iter().filter(|node| is(node)).count()
}
