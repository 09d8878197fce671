//! Which sessions are dead, as far as a command that only reads can see.
//!
//! The store counts a session as live until another process has watched its lease run out. Where no other process is on the store,
//! nobody does that, and a leader that died is shown as leading for ever. So the reader looks for itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure::SessionId;
use tenure::port::{Backend, ElectionView, SessionView, StoreError, Wake};
use tenure::runtime::wall_ms;

/// How long the store may take to tell that a process is gone. SQLite asks the kernel, which knows.
const TOLD: Duration = Duration::from_millis(300);
/// How long a heartbeat that is older than its lease is watched before its session counts as dead. Heartbeats are at most this far
/// apart, unless somebody chose otherwise.
const WATCHED: Duration = Duration::from_millis(2500);
/// How many sessions are asked after at most.
const ASKED_MAX: usize = 100;

/// Marks the sessions that are dead as such: no leader of these elections is one that this process saw silent for longer than its lease.
pub(crate) async fn mark_dead(store: &dyn Backend, views: &mut [ElectionView]) -> Result<(), StoreError> {
    let late = |session: &SessionView| wall_ms() - session.beat_at_ms > ms(session.lease() / 10) + 1000;
    let suspects: BTreeMap<SessionId, (u64, bool)> = sessions(views)
        .filter(|session| session.live && late(session))
        .map(|session| {
            let silent = wall_ms() - session.beat_at_ms > ms(session.lease() * 21 / 20);
            (session.id.clone(), (session.beat, silent))
        })
        .collect();
    if suspects.is_empty() {
        return Ok(());
    }
    let mut dead = told_dead(store, &suspects).await;
    let silent: Vec<SessionId> = suspects
        .iter()
        .filter(|(id, (_, silent))| *silent && !dead.contains(*id))
        .map(|(id, _)| id.clone())
        .collect();
    if !silent.is_empty() {
        // By the store's clock its lease is over. Clocks differ, so its heartbeat is also watched on our own.
        tokio::time::sleep(WATCHED).await;
        let now: BTreeMap<SessionId, SessionView> = store
            .sessions(Some(&silent))
            .await?
            .into_iter()
            .map(|session| (session.id.clone(), session))
            .collect();
        dead.extend(silent.into_iter().filter(|id| {
            now.get(id)
                .is_none_or(|now| !now.live || suspects.get(id).is_some_and(|(beat, _)| now.beat == *beat))
        }));
    }
    for view in views {
        let holders = view.leases.iter_mut().filter_map(|lease| lease.holder.as_mut());
        let candidates = view.candidates.iter_mut().map(|candidate| &mut candidate.session);
        holders
            .chain(candidates)
            .filter(|session| dead.contains(&session.id))
            .for_each(|session| session.live = false);
    }
    Ok(())
}

/// Those that the store itself knows to be dead.
async fn told_dead(store: &dyn Backend, suspects: &BTreeMap<SessionId, (u64, bool)>) -> BTreeSet<SessionId> {
    let mut dead = BTreeSet::new();
    let mut wakes = store.wakes();
    let asked: Vec<SessionId> = suspects.keys().take(ASKED_MAX).cloned().collect();
    store.watch(&asked);
    let listen = async {
        while let Some(wake) = wakes.next().await {
            if let Wake::Died(session) = wake
                && suspects.contains_key(&session)
            {
                dead.insert(session);
                if dead.len() == asked.len() {
                    return;
                }
            }
        }
    };
    let _ = tokio::time::timeout(TOLD, listen).await;
    dead
}

fn sessions(views: &[ElectionView]) -> impl Iterator<Item = &SessionView> {
    views.iter().flat_map(|view| {
        let holders = view.leases.iter().filter_map(|lease| lease.holder.as_ref());
        holders.chain(view.candidates.iter().map(|candidate| &candidate.session))
    })
}

fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
