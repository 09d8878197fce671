//! The replicated state machine: the reference implementation of elections and credentials.
//!
//! All members apply the same entries in the same order and reach the same state. The token of a grant is the index of
//! its entry. A majority has stored the entry before any caller learns of the grant, and indexes only grow. The state
//! is in memory. The log is durable, and from time to time a snapshot of the state is written, after which the log may
//! be truncated.

use std::collections::{BTreeMap, VecDeque};
use std::io::Cursor;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::storage::RaftStateMachine;
use openraft::{
    AnyError, EntryPayload, ErrorSubject, ErrorVerb, LogId, RaftSnapshotBuilder, Snapshot, SnapshotMeta,
    StorageError, StorageIOError, StoredMembership,
};
use serde::{Deserialize, Serialize};
use tenure_core::Token;
use tenure_core::model::credentials::Credentials;
use tenure_core::model::elections::Elections;
use tenure_core::port::{ErrorKind, Notification, StoreError};
use tokio::sync::{broadcast, watch};

use super::env::{Disk, EntryObserver};
use super::types::{
    IDENTITY, LogDirectoryId, NodeId, PutValue, RaftRead, RaftResponse, RaftWrite, TimedWrite, Types,
};
use crate::store::memory::no_such_election;

/// How long an ended session is remembered, so that its late calls still find it ended.
const ENDED_SESSION_RETENTION_MS: i64 = 600_000;

/// Number of recent write ids that are remembered to detect retries.
const WRITE_IDS_KEPT: usize = 1024;

/// File name of the snapshot.
const SNAPSHOT: &str = "snapshot.json";

type StorageFailure = StorageError<NodeId>;
type RaftMembership = StoredMembership<NodeId, openraft::BasicNode>;

/// The replicated state.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct State {
    applied: Option<LogId<NodeId>>,
    membership: RaftMembership,
    elections: Elections,
    credentials: Credentials,
    values: BTreeMap<String, String>,
    /// Ids of the most recent key-value writes.
    #[serde(default)]
    write_ids: VecDeque<u64>,
    /// Registered log directory of each member.
    directories: BTreeMap<NodeId, LogDirectoryId>,
}

impl State {
    /// Execute a read.
    pub(super) fn read(&self, read: &RaftRead) -> RaftResponse {
        match read {
            RaftRead::Observe(session, scope) => RaftResponse::ok(&self.elections.observe(session, scope)),
            RaftRead::Elections(namespace) => RaftResponse::ok(&self.elections.elections(namespace.as_ref())),
            RaftRead::Election(key) => RaftResponse::ok(&self.elections.election(key)),
            RaftRead::TermHistory(key, limit) => RaftResponse::ok(&self.elections.term_history(key, *limit)),
            RaftRead::Sessions(which) => RaftResponse::ok(&self.elections.sessions(which.as_deref())),
            RaftRead::Credentials => RaftResponse::ok(&self.credentials.credentials()),
            RaftRead::AuditEntries(namespace, before, limit) => {
                RaftResponse::ok(&self.credentials.audit_entries(namespace.as_ref(), *before, *limit))
            }
            RaftRead::Get(key) => RaftResponse::ok(&self.values.get(key)),
        }
    }

    fn apply(&mut self, entry: &TimedWrite, index: u64) -> RaftResponse {
        let wall = entry.wall_ms;
        match &entry.change {
            RaftWrite::OpenSession(session) => {
                self.elections.prune_sessions(wall - ENDED_SESSION_RETENTION_MS);
                RaftResponse::ok(&self.elections.open_session(session, wall))
            }
            RaftWrite::Heartbeat(session) => RaftResponse::ok(&self.elections.heartbeat(session, wall)),
            RaftWrite::EndSession(session) => RaftResponse::ok(&self.elections.end_session(session, wall)),
            RaftWrite::JoinElection(candidacy) => {
                RaftResponse::ok(&self.elections.join_election(candidacy, wall))
            }
            RaftWrite::LeaveElection(session, key) => {
                RaftResponse::ok(&self.elections.leave_election(session, key))
            }
            RaftWrite::TakeLease(take) => {
                RaftResponse::ok(&self.elections.take_lease_as(take, Token::from_u64(index), wall))
            }
            RaftWrite::ReleaseLease(release) => {
                RaftResponse::ok(&self.elections.release_lease(release, wall))
            }
            RaftWrite::ExpireSession(expire) => {
                self.elections.expire_session(expire, wall);
                RaftResponse::empty()
            }
            RaftWrite::RequestLeader(request) => RaftResponse::ok(&self.elections.request_leader(request)),
            RaftWrite::SetElectionPaused(key, pause) => {
                match self.elections.set_election_paused(key, pause.as_ref()) {
                    Some(changed) => RaftResponse::ok(&changed),
                    None => RaftResponse::error(no_such_election(key)),
                }
            }
            RaftWrite::PutCredential(credential) => match self.credentials.put_credential(credential) {
                Ok(()) => RaftResponse::empty(),
                Err(error) => RaftResponse::error(error),
            },
            RaftWrite::AppendAudit(entry) => RaftResponse::ok(&self.credentials.append_audit(entry)),
            RaftWrite::PruneAccess(before_ms) => RaftResponse::ok(&self.credentials.prune_access(*before_ms)),
            RaftWrite::Put(put) => self.put(put),
            RaftWrite::SetIdentity(name) => {
                RaftResponse::ok(self.values.entry(IDENTITY.into()).or_insert_with(|| name.clone()))
            }
            RaftWrite::Register(node, directory) => {
                let known = self.directories.entry(*node).or_insert_with(|| directory.clone());
                if known.id == directory.id {
                    known.started = known.started.max(directory.started);
                }
                RaftResponse::ok(known)
            }
        }
    }

    fn put(&mut self, put: &PutValue) -> RaftResponse {
        if let Some((key, slot, token)) = &put.lease {
            let lease = self.elections.record(key).and_then(|election| election.leases.get(*slot as usize));
            if lease.is_none_or(|lease| lease.token != *token || lease.session.is_none()) {
                let message = format!("{key} is no longer held under token {token}; nothing was written");
                return RaftResponse::error(StoreError::new(ErrorKind::Request, message));
            }
        }
        // Entries of older versions have no write id.
        if put.write_id != 0 && self.write_ids.contains(&put.write_id) {
            return RaftResponse::empty();
        }
        self.write_ids.push_back(put.write_id);
        if self.write_ids.len() > WRITE_IDS_KEPT {
            self.write_ids.pop_front();
        }
        match &put.value {
            Some(value) => self.values.insert(put.key.clone(), value.clone()),
            None => self.values.remove(&put.key),
        };
        RaftResponse::empty()
    }
}

/// The state machine of this member with its last snapshot.
#[derive(Clone)]
pub(super) struct StateMachine {
    inner: Arc<Mutex<StateMachineInner>>,
    notifications: broadcast::Sender<Notification>,
    disk: Arc<dyn Disk>,
    witness: Option<EntryObserver>,
    /// Number of entries covered by the last snapshot on disk; `None` after a snapshot could not be written.
    covered: Arc<watch::Sender<Option<u64>>>,
}

#[derive(Default)]
struct StateMachineInner {
    state: State,
    snapshot: Option<StoredSnapshot>,
}

/// A snapshot as it is stored.
#[derive(Clone, Serialize, Deserialize)]
struct StoredSnapshot {
    meta: SnapshotMeta<NodeId, openraft::BasicNode>,
    state: State,
}

impl StoredSnapshot {
    /// Number of entries the snapshot covers.
    fn covers(&self) -> u64 {
        self.meta.last_log_id.map_or(0, |last| last.index + 1)
    }
}

impl StateMachine {
    /// Load the state from the last snapshot on the disk.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        notifications: broadcast::Sender<Notification>,
        witness: Option<EntryObserver>,
    ) -> Result<StateMachine, StoreError> {
        let misconfigured = |error: String| {
            let message = format!(
                "cannot read {}: {error}; this Raft member has lost its state: remove it from the cluster, empty its data directory, and \
                 add it under a new node id",
                disk.display_path(SNAPSHOT)
            );
            StoreError::new(ErrorKind::Misconfigured, message)
        };
        let mut inner = StateMachineInner::default();
        if let Some(text) = disk.read(SNAPSHOT).map_err(|error| misconfigured(error.to_string()))? {
            let stored: StoredSnapshot =
                serde_json::from_slice(&text).map_err(|error| misconfigured(error.to_string()))?;
            inner = StateMachineInner { state: stored.state.clone(), snapshot: Some(stored) };
        }
        let covered =
            Arc::new(watch::Sender::new(Some(inner.snapshot.as_ref().map_or(0, StoredSnapshot::covers))));
        Ok(StateMachine { inner: Arc::new(Mutex::new(inner)), notifications, disk, witness, covered })
    }

    fn locked(&self) -> MutexGuard<'_, StateMachineInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn read(&self, read: &RaftRead) -> RaftResponse {
        self.locked().state.read(read)
    }

    /// Registered log directory of a member, as far as this member knows.
    pub(super) fn directory_of(&self, node: NodeId) -> Option<LogDirectoryId> {
        self.locked().state.directories.get(&node).cloned()
    }

    /// Number of entries covered by the last snapshot on disk.
    pub(super) fn covered(&self) -> watch::Receiver<Option<u64>> {
        self.covered.subscribe()
    }

    /// Index of the last applied entry.
    pub(super) fn applied(&self) -> u64 {
        self.locked().state.applied.map_or(0, |applied| applied.index)
    }

    async fn store_snapshot(&self, snapshot: StoredSnapshot) -> Result<(), StorageFailure> {
        let bytes = serde_json::to_vec(&snapshot).map_err(|error| failed(ErrorVerb::Write, error))?;
        let disk = self.disk.clone();
        let written = self.disk.run_blocking(Box::new(move || disk.replace(SNAPSHOT, &bytes))).await;
        self.covered.send_replace(written.is_ok().then(|| snapshot.covers()));
        written.map_err(|error| failed(ErrorVerb::Write, error))?;
        self.locked().snapshot = Some(snapshot);
        Ok(())
    }
}

fn failed(verb: ErrorVerb, error: impl std::error::Error + 'static) -> StorageFailure {
    StorageIOError::new(ErrorSubject::Snapshot(None), verb, AnyError::new(&error)).into()
}

#[allow(clippy::result_large_err)] // The error is openraft's.
fn encode_snapshot(stored: &StoredSnapshot) -> Result<Snapshot<Types>, StorageFailure> {
    let bytes = serde_json::to_vec(&stored.state).map_err(|error| failed(ErrorVerb::Read, error))?;
    Ok(Snapshot { meta: stored.meta.clone(), snapshot: Box::new(Cursor::new(bytes)) })
}

impl RaftSnapshotBuilder<Types> for StateMachine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, StorageFailure> {
        let state = self.locked().state.clone();
        let id = state
            .applied
            .map_or_else(|| "empty".into(), |applied| format!("{}-{}", applied.leader_id, applied.index));
        let meta = SnapshotMeta {
            last_log_id: state.applied,
            last_membership: state.membership.clone(),
            snapshot_id: id,
        };
        let stored = StoredSnapshot { meta, state };
        self.store_snapshot(stored.clone()).await?;
        encode_snapshot(&stored)
    }
}

impl RaftStateMachine<Types> for StateMachine {
    type SnapshotBuilder = StateMachine;

    async fn applied_state(&mut self) -> Result<(Option<LogId<NodeId>>, RaftMembership), StorageFailure> {
        let inner = self.locked();
        Ok((inner.state.applied, inner.state.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<RaftResponse>, StorageFailure>
    where
        I: IntoIterator<Item = openraft::Entry<Types>> + Send,
        I::IntoIter: Send,
    {
        let mut inner = self.locked();
        let mut outcomes = Vec::new();
        for entry in entries {
            inner.state.applied = Some(entry.log_id);
            if let Some(witness) = &self.witness {
                let bytes = serde_json::to_vec(&entry).map_err(|error| failed(ErrorVerb::Read, error))?;
                witness(entry.log_id.index, &bytes);
            }
            outcomes.push(match entry.payload {
                EntryPayload::Blank => RaftResponse::empty(),
                EntryPayload::Normal(change) => inner.state.apply(&change, entry.log_id.index),
                EntryPayload::Membership(membership) => {
                    inner.state.membership = StoredMembership::new(Some(entry.log_id), membership);
                    RaftResponse::empty()
                }
            });
        }
        for notification in inner.state.elections.drain_notifications() {
            // A send without receivers fails, which is harmless.
            let _ = self.notifications.send(notification);
        }
        Ok(outcomes)
    }

    async fn get_snapshot_builder(&mut self) -> StateMachine {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>, StorageFailure> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<NodeId, openraft::BasicNode>,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<(), StorageFailure> {
        let state: State =
            serde_json::from_slice(snapshot.get_ref()).map_err(|error| failed(ErrorVerb::Read, error))?;
        self.store_snapshot(StoredSnapshot { meta: meta.clone(), state: state.clone() }).await?;
        self.locked().state = state;
        // The notifications of the skipped entries were never sent.
        let _ = self.notifications.send(Notification::Resync);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, StorageFailure> {
        let stored = self.locked().snapshot.clone();
        stored.as_ref().map(encode_snapshot).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(value: &str, write_id: u64) -> TimedWrite {
        let put = PutValue { key: "k".into(), value: Some(value.into()), write_id, lease: None };
        TimedWrite { change: RaftWrite::Put(put), wall_ms: 0 }
    }

    fn value(state: &State) -> Option<String> {
        state.read(&RaftRead::Get("k".into())).read().unwrap()
    }

    /// A retry after a lost reply must not overwrite a value that another client wrote in between.
    #[test]
    fn a_retried_write_does_not_overwrite_a_later_one() {
        let mut state = State::default();
        for (index, entry) in [put("a", 7), put("b", 8), put("a", 7)].iter().enumerate() {
            state.apply(entry, index as u64).read::<()>().unwrap();
        }
        assert_eq!(value(&state).as_deref(), Some("b"));
    }

    #[test]
    fn entries_without_a_write_id_are_all_applied() {
        let mut state = State::default();
        for (index, entry) in [put("a", 0), put("b", 0)].iter().enumerate() {
            let text = serde_json::to_string(entry).unwrap().replace(",\"write_id\":0", "");
            state.apply(&serde_json::from_str(&text).unwrap(), index as u64).read::<()>().unwrap();
        }
        assert_eq!(value(&state).as_deref(), Some("b"));
    }
}
