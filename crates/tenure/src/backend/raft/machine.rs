//! The state that all members come to, by the same changes in the same order: the reference store itself.
//!
//! A grant's token is the index of the entry that granted it: it was agreed on by a majority before anybody heard of it, and indexes only grow.
//! The state lives in memory; what is durable is the log, and from time to time a snapshot of the state, after which the log may be cut.

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
use tenure_core::book::Book;
use tenure_core::cabinet::Cabinet;
use tenure_core::port::{StoreError, Trouble, Wake};
use tokio::sync::broadcast;

use super::ground::{Disk, Witness};
use super::types::{Change, Entry, Folder, IDENTITY, Look, NodeId, Outcome, Put, Types};
use crate::backend::memory::no_such_election;

/// For how long a session that is over is remembered: long enough that its own late calls find it gone.
const REMEMBERED_MS: i64 = 600_000;

/// Of how many values that were written it is remembered that they were.
const WRITTEN_KEPT: usize = 1024;

/// The file that the state is written down in.
const SNAPSHOT: &str = "snapshot.json";

type Failed = StorageError<NodeId>;
type Membership = StoredMembership<NodeId, openraft::BasicNode>;

/// All that is agreed on.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct State {
    applied: Option<LogId<NodeId>>,
    membership: Membership,
    book: Book,
    cabinet: Cabinet,
    table: BTreeMap<String, String>,
    /// What was drawn for the last values that were written.
    #[serde(default)]
    written: VecDeque<u64>,
    /// The folder of each member.
    folders: BTreeMap<NodeId, Folder>,
}

impl State {
    /// Looks; nothing changes.
    pub(super) fn look(&self, look: &Look) -> Outcome {
        match look {
            Look::Observe(session, scope) => Outcome::of(&self.book.observe(session, scope)),
            Look::Elections(namespace) => Outcome::of(&self.book.elections(namespace.as_ref())),
            Look::Election(key) => Outcome::of(&self.book.election(key)),
            Look::History(key, limit) => Outcome::of(&self.book.history(key, *limit)),
            Look::Sessions(which) => Outcome::of(&self.book.sessions(which.as_deref())),
            Look::Credentials => Outcome::of(&self.cabinet.credentials()),
            Look::Deeds(namespace, before, limit) => {
                Outcome::of(&self.cabinet.deeds(namespace.as_ref(), *before, *limit))
            }
            Look::Get(key) => Outcome::of(&self.table.get(key)),
        }
    }

    fn change(&mut self, entry: &Entry, index: u64) -> Outcome {
        let wall = entry.wall_ms;
        match &entry.change {
            Change::Open(session) => {
                self.book.forget_sessions(wall - REMEMBERED_MS);
                Outcome::of(&self.book.open(session, wall))
            }
            Change::Beat(session) => Outcome::of(&self.book.beat(session, wall)),
            Change::End(session) => Outcome::of(&self.book.end(session, wall)),
            Change::Join(candidacy) => Outcome::of(&self.book.join(candidacy, wall)),
            Change::Leave(session, key) => Outcome::of(&self.book.leave(session, key)),
            Change::Take(take) => Outcome::of(&self.book.take_as(take, Token::from_u64(index), wall)),
            Change::Release(release) => Outcome::of(&self.book.release(release, wall)),
            Change::Expire(expire) => {
                self.book.expire(expire, wall);
                Outcome::nothing()
            }
            Change::Ask(ask) => Outcome::of(&self.book.ask(ask)),
            Change::SetPaused(key, pause) => match self.book.set_paused(key, pause.as_ref()) {
                Some(changed) => Outcome::of(&changed),
                None => Outcome::refused(no_such_election(key)),
            },
            Change::PutCredential(credential) => match self.cabinet.put_credential(credential) {
                Ok(()) => Outcome::nothing(),
                Err(error) => Outcome::refused(error),
            },
            Change::Record(deed) => Outcome::of(&self.cabinet.record(deed)),
            Change::Forget(before_ms) => Outcome::of(&self.cabinet.forget(*before_ms)),
            Change::Put(put) => self.put(put),
            Change::Identify(name) => {
                Outcome::of(self.table.entry(IDENTITY.into()).or_insert_with(|| name.clone()))
            }
            Change::Register(node, folder) => {
                let kept = self.folders.entry(*node).or_insert_with(|| folder.clone());
                if kept.made == folder.made {
                    kept.started = kept.started.max(folder.started);
                }
                Outcome::of(kept)
            }
        }
    }

    fn put(&mut self, put: &Put) -> Outcome {
        if let Some((key, slot, token)) = &put.under {
            let lease = self.book.kept(key).and_then(|election| election.leases.get(*slot as usize));
            if lease.is_none_or(|lease| lease.token != *token || lease.session.is_none()) {
                let message =
                    format!("{key} is not held under the token {token} any more: nothing was written");
                return Outcome::refused(StoreError::new(Trouble::Request, message));
            }
        }
        // Entries of older versions have no number.
        if put.once != 0 && self.written.contains(&put.once) {
            return Outcome::nothing();
        }
        self.written.push_back(put.once);
        if self.written.len() > WRITTEN_KEPT {
            self.written.pop_front();
        }
        match &put.value {
            Some(value) => self.table.insert(put.key.clone(), value.clone()),
            None => self.table.remove(&put.key),
        };
        Outcome::nothing()
    }
}

/// The state of this member, and its last snapshot.
#[derive(Clone)]
pub(super) struct Machine {
    shelf: Arc<Mutex<Shelf>>,
    wakes: broadcast::Sender<Wake>,
    disk: Arc<dyn Disk>,
    witness: Option<Witness>,
}

#[derive(Default)]
struct Shelf {
    state: State,
    snapshot: Option<Kept>,
}

/// A snapshot, as it is kept.
#[derive(Clone, Serialize, Deserialize)]
struct Kept {
    meta: SnapshotMeta<NodeId, openraft::BasicNode>,
    state: State,
}

impl Machine {
    /// The state as its last snapshot on this disk has it.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        wakes: broadcast::Sender<Wake>,
        witness: Option<Witness>,
    ) -> Result<Machine, StoreError> {
        let unfit = |error: String| {
            let message = format!(
                "{} can not be read: {error}; this member has lost its state: remove it from the cluster, empty its folder, and \
                 add it under another number",
                disk.place(SNAPSHOT)
            );
            StoreError::new(Trouble::Unfit, message)
        };
        let mut shelf = Shelf::default();
        if let Some(text) = disk.read(SNAPSHOT).map_err(|error| unfit(error.to_string()))? {
            let kept: Kept = serde_json::from_slice(&text).map_err(|error| unfit(error.to_string()))?;
            shelf = Shelf { state: kept.state.clone(), snapshot: Some(kept) };
        }
        Ok(Machine { shelf: Arc::new(Mutex::new(shelf)), wakes, disk, witness })
    }

    fn locked(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn look(&self, look: &Look) -> Outcome {
        self.locked().state.look(look)
    }

    /// The folder of a member, as far as this one has heard.
    pub(super) fn folder_of(&self, node: NodeId) -> Option<Folder> {
        self.locked().state.folders.get(&node).cloned()
    }

    /// The index of the last entry that is in the state.
    pub(super) fn applied(&self) -> u64 {
        self.locked().state.applied.map_or(0, |applied| applied.index)
    }

    async fn keep(&self, kept: Kept) -> Result<(), Failed> {
        let bytes = serde_json::to_vec(&kept).map_err(|error| failed(ErrorVerb::Write, error))?;
        let disk = self.disk.clone();
        let written = self.disk.during(Box::new(move || disk.replace(SNAPSHOT, &bytes))).await;
        written.map_err(|error| failed(ErrorVerb::Write, error))?;
        self.locked().snapshot = Some(kept);
        Ok(())
    }
}

fn failed(verb: ErrorVerb, error: impl std::error::Error + 'static) -> Failed {
    StorageIOError::new(ErrorSubject::Snapshot(None), verb, AnyError::new(&error)).into()
}

#[allow(clippy::result_large_err)] // The error is openraft's.
fn sent(kept: &Kept) -> Result<Snapshot<Types>, Failed> {
    let bytes = serde_json::to_vec(&kept.state).map_err(|error| failed(ErrorVerb::Read, error))?;
    Ok(Snapshot { meta: kept.meta.clone(), snapshot: Box::new(Cursor::new(bytes)) })
}

impl RaftSnapshotBuilder<Types> for Machine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, Failed> {
        let state = self.locked().state.clone();
        let id = state
            .applied
            .map_or_else(|| "empty".into(), |applied| format!("{}-{}", applied.leader_id, applied.index));
        let meta = SnapshotMeta {
            last_log_id: state.applied,
            last_membership: state.membership.clone(),
            snapshot_id: id,
        };
        let kept = Kept { meta, state };
        self.keep(kept.clone()).await?;
        sent(&kept)
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = Machine;

    async fn applied_state(&mut self) -> Result<(Option<LogId<NodeId>>, Membership), Failed> {
        let shelf = self.locked();
        Ok((shelf.state.applied, shelf.state.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Outcome>, Failed>
    where
        I: IntoIterator<Item = openraft::Entry<Types>> + Send,
        I::IntoIter: Send,
    {
        let mut shelf = self.locked();
        let mut outcomes = Vec::new();
        for entry in entries {
            shelf.state.applied = Some(entry.log_id);
            if let Some(witness) = &self.witness {
                let said = serde_json::to_vec(&entry).map_err(|error| failed(ErrorVerb::Read, error))?;
                witness(entry.log_id.index, &said);
            }
            outcomes.push(match entry.payload {
                EntryPayload::Blank => Outcome::nothing(),
                EntryPayload::Normal(change) => shelf.state.change(&change, entry.log_id.index),
                EntryPayload::Membership(membership) => {
                    shelf.state.membership = StoredMembership::new(Some(entry.log_id), membership);
                    Outcome::nothing()
                }
            });
        }
        for wake in shelf.state.book.drain_wakes() {
            // Nobody listening is no trouble.
            let _ = self.wakes.send(wake);
        }
        Ok(outcomes)
    }

    async fn get_snapshot_builder(&mut self) -> Machine {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>, Failed> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<NodeId, openraft::BasicNode>,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<(), Failed> {
        let state: State =
            serde_json::from_slice(snapshot.get_ref()).map_err(|error| failed(ErrorVerb::Read, error))?;
        self.keep(Kept { meta: meta.clone(), state: state.clone() }).await?;
        self.locked().state = state;
        // What happened in between was not heard.
        let _ = self.wakes.send(Wake::Resync);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, Failed> {
        let kept = self.locked().snapshot.clone();
        kept.as_ref().map(sent).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(value: &str, once: u64) -> Entry {
        let put = Put { key: "k".into(), value: Some(value.into()), once, under: None };
        Entry { change: Change::Put(put), wall_ms: 0 }
    }

    fn value(state: &State) -> Option<String> {
        state.look(&Look::Get("k".into())).read().unwrap()
    }

    /// The answer was lost, and meanwhile somebody else has written.
    #[test]
    fn a_value_that_is_asked_for_again_is_not_written_again() {
        let mut state = State::default();
        for (index, entry) in [put("a", 7), put("b", 8), put("a", 7)].iter().enumerate() {
            state.change(entry, index as u64).read::<()>().unwrap();
        }
        assert_eq!(value(&state).as_deref(), Some("b"));
    }

    #[test]
    fn entries_of_older_versions_have_no_number_and_are_all_written() {
        let mut state = State::default();
        for (index, entry) in [put("a", 0), put("b", 0)].iter().enumerate() {
            let text = serde_json::to_string(entry).unwrap().replace(",\"once\":0", "");
            state.change(&serde_json::from_str(&text).unwrap(), index as u64).read::<()>().unwrap();
        }
        assert_eq!(value(&state).as_deref(), Some("b"));
    }
}
