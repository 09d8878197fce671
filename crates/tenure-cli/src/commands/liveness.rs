//! Detection of dead sessions by a command that only reads.
//!
//! The store counts a session as live until another process has observed that its lease expired. If no other process
//! uses the store, a dead leader would be shown as leading forever. So the reader checks heartbeats itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure::SessionId;
use tenure::port::{ElectionView, Notification, SessionView, Store, StoreError};
use tenure::runtime::wall_ms;

/// Time for the store to report dead processes. SQLite asks the kernel.
const REPORT_TIMEOUT: Duration = Duration::from_millis(300);
/// How long an expired heartbeat is observed before its session counts as dead. Longer than the default heartbeat
/// interval.
const OBSERVATION: Duration = Duration::from_millis(2500);
/// Maximum number of sessions to check with the store.
const CHECKED_MAX: usize = 100;

/// Marks dead sessions in the views as not live: those the store reports as dead, and those without a heartbeat for
/// longer than their lease.
pub(crate) async fn mark_dead(store: &dyn Store, views: &mut [ElectionView]) -> Result<(), StoreError> {
    let late = |session: &SessionView| wall_ms() - session.heartbeat_at_ms > ms(session.lease() / 10) + 1000;
    let suspects: BTreeMap<SessionId, (u64, bool)> = sessions(views)
        .filter(|session| session.live && late(session))
        .map(|session| {
            let silent = wall_ms() - session.heartbeat_at_ms > ms(session.lease() * 21 / 20);
            (session.id.clone(), (session.heartbeat_count, silent))
        })
        .collect();
    if suspects.is_empty() {
        return Ok(());
    }
    let mut dead = reported_dead(store, &suspects).await;
    let silent: Vec<SessionId> = suspects
        .iter()
        .filter(|(id, (_, silent))| *silent && !dead.contains(*id))
        .map(|(id, _)| id.clone())
        .collect();
    if !silent.is_empty() {
        // The lease has expired by the clock of the store. Clocks differ, so also observe the heartbeat on the local
        // clock.
        tokio::time::sleep(OBSERVATION).await;
        let now: BTreeMap<SessionId, SessionView> = store
            .sessions(Some(&silent))
            .await?
            .into_iter()
            .map(|session| (session.id.clone(), session))
            .collect();
        dead.extend(silent.into_iter().filter(|id| {
            now.get(id).is_none_or(|now| {
                !now.live || suspects.get(id).is_some_and(|(beat, _)| now.heartbeat_count == *beat)
            })
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

/// Sessions that the store itself reports as dead.
async fn reported_dead(
    store: &dyn Store,
    suspects: &BTreeMap<SessionId, (u64, bool)>,
) -> BTreeSet<SessionId> {
    let mut dead = BTreeSet::new();
    let mut wakes = store.notifications();
    let checked: Vec<SessionId> = suspects.keys().take(CHECKED_MAX).cloned().collect();
    store.watch_sessions(&checked);
    let listen = async {
        while let Some(wake) = wakes.next().await {
            if let Notification::SessionExpired(session) = wake
                && suspects.contains_key(&session)
            {
                dead.insert(session);
                if dead.len() == checked.len() {
                    return;
                }
            }
        }
    };
    let _ = tokio::time::timeout(REPORT_TIMEOUT, listen).await;
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
