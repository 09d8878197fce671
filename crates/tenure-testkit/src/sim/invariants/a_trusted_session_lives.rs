//! A session that its own process trusts is live in the store: a live follower is never cleared away, and what was
//! expired never comes back.

use tenure_core::lease::Command;

use super::super::world::{Checked, World};

const NAME: &str = "a_trusted_session_lives";

/// Whenever a process has made a step.
pub(super) fn check(world: &World, node: usize) -> Checked {
    let Some(session) = world.nodes[node].trusts(world.now).filter(|_| !excused(world)) else {
        return Ok(());
    };
    if world.store.is_live(session) {
        return Ok(());
    }
    super::broken(NAME, format!("n{node} trusts its session {}, which is over", session.short()))
}

/// Whenever the store has expired somebody.
pub(in super::super) fn after_expiry(world: &mut World, command: &Command) -> Checked {
    let expire = match command {
        Command::Expire(expire) => expire,
        Command::Take(take) => match &take.expire {
            Some(expire) => expire,
            None => return Ok(()),
        },
        _ => return Ok(()),
    };
    if world.store.is_live(&expire.session) {
        return Ok(());
    }
    world.stats.sessions_expired += 1;
    let trusting = |n: &usize| world.nodes[*n].trusts(world.now) == Some(&expire.session);
    match (0..world.nodes.len()).find(trusting).filter(|_| !excused(world)) {
        Some(node) => {
            super::broken(NAME, format!("n{node} lives, and was expired as {}", expire.session.short()))
        }
        None => Ok(()),
    }
}

/// A promoted copy may not know the youngest sessions.
fn excused(world: &World) -> bool {
    world.promoted_at.is_some_and(|at| world.now < at + world.plan.lease)
}
