//! A session that its own process trusts is live in the store. The store never removes a live follower and never
//! revives an expired session.

use tenure_core::rules::lease::StoreCommand;

use super::super::simulation::{CheckResult, ElectionSimulation};

const NAME: &str = "a_trusted_session_lives";

/// Checked after every step of a process.
pub(super) fn check(simulation: &ElectionSimulation, node: usize) -> CheckResult {
    let Some(session) = simulation.nodes[node].trusts(simulation.now).filter(|_| !excused(simulation)) else {
        return Ok(());
    };
    if simulation.store.is_live(session) {
        return Ok(());
    }
    super::broken(NAME, format!("n{node} trusts its session {}, which has ended", session.short()))
}

/// Checked after the store expired a session.
pub(in super::super) fn after_expiry(
    simulation: &mut ElectionSimulation,
    command: &StoreCommand,
) -> CheckResult {
    let expire = match command {
        StoreCommand::Expire(expire) => expire,
        StoreCommand::Take(take) => match &take.expire {
            Some(expire) => expire,
            None => return Ok(()),
        },
        _ => return Ok(()),
    };
    if simulation.store.is_live(&expire.session) {
        return Ok(());
    }
    simulation.stats.sessions_expired += 1;
    let trusting = |n: &usize| simulation.nodes[*n].trusts(simulation.now) == Some(&expire.session);
    match (0..simulation.nodes.len()).find(trusting).filter(|_| !excused(simulation)) {
        Some(node) => {
            super::broken(NAME, format!("n{node} is live and was expired as {}", expire.session.short()))
        }
        None => Ok(()),
    }
}

/// Whether the store was promoted within the last lease: a promoted copy may not know the latest sessions.
fn excused(simulation: &ElectionSimulation) -> bool {
    simulation.promoted_at.is_some_and(|at| simulation.now < at + simulation.plan.lease)
}
