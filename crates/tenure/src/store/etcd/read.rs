//! Reads of elections with their sessions, and compare-and-write changes.
//!
//! A read includes only the sessions that the elections name. Those names are known only after the elections are read,
//! so the first call requests the sessions known from the last read, and a second call reads missing ones at the same
//! revision. Usually no session is missing, and one call suffices.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_core::model::elections::Elections;
use tenure_core::port::{ErrorKind, Notification, SessionView, StoreError};
use tenure_core::{ElectionKey, SessionId};

use super::EtcdStore;
use super::message::{Compare, Op, Put, Range, Txn, TxnAnswer};
use super::records::{
    ELECTIONS, ENDED, MIN_TOKEN, SESSIONS, StoreReading, candidacies_of, election_key, election_of_candidacy,
    named, session_key, value,
};
use crate::runtime;

/// Maximum number of attempts of a change that conflicts with other changes. Each conflict means progress of another
/// process, so this many in a row indicate an overloaded store.
pub(super) const TRIES: u32 = 64;

/// Maximum number of attempts of a read whose revision was compacted.
const READS: u32 = 8;

/// Operations per transaction; etcd allows 128.
const OPS_MAX: usize = 100;

/// Above this number of keys, all keys are read.
const KEYS_MAX: usize = 1_000;

/// Number of revisions consumed per call to exceed the tokens granted before a restore.
const REVISIONS_PER_CALL: u32 = 500;

/// Which elections to read.
#[derive(Clone, Copy)]
pub(super) enum ReadScope<'a> {
    Listed(&'a [ElectionKey]),
    All,
}

impl EtcdStore {
    /// Run a transaction and return its response with the epoch of the cluster.
    pub(super) async fn txn(&self, txn: &Txn) -> Result<(TxnAnswer, u32), StoreError> {
        let mark = self.cache.mark_revision();
        let answer = self.gateway.txn(txn).await?;
        let epoch = self.cache.epoch_of_response(mark, &answer.header);
        Ok((answer, epoch))
    }

    /// Read elections, all sessions that they name, and the sessions in `also`, at one revision.
    pub(super) async fn read(
        &self,
        scope: ReadScope<'_>,
        also: &[SessionId],
    ) -> Result<StoreReading, StoreError> {
        let mut last = StoreError::new(
            ErrorKind::Unavailable,
            "etcd compacted the revision during every attempt to read it; retry",
        );
        for _ in 0..READS {
            match self.read_once(scope, also).await {
                Err(error) if is_compacted(&error) => last = error,
                done => return done,
            }
        }
        Err(last)
    }

    async fn read_once(&self, scope: ReadScope<'_>, also: &[SessionId]) -> Result<StoreReading, StoreError> {
        let mut reading = StoreReading::default();
        let keys = match scope {
            ReadScope::Listed(keys) if keys.len() <= KEYS_MAX => keys,
            _ => {
                let all = vec![Range::below(ELECTIONS), Range::below(SESSIONS), Range::one(MIN_TOKEN)];
                self.read_ranges(all, &mut reading).await?;
                return Ok(reading);
            }
        };
        let mut requested: BTreeSet<SessionId> = also.iter().cloned().collect();
        requested.extend(keys.iter().flat_map(|key| self.cache.candidates_of(key)));
        let elections = keys.iter().map(|key| Range::one(&election_key(key)));
        let ranges = elections.chain([Range::one(MIN_TOKEN)]).chain(session_ranges(&requested));
        self.read_ranges(ranges.collect(), &mut reading).await?;
        let mut missing = BTreeSet::new();
        for (key, (_, election)) in &reading.elections {
            let candidates = named(election);
            missing.extend(candidates.difference(&requested).cloned());
            self.cache.remember_candidates(key, candidates);
        }
        if !missing.is_empty() {
            self.read_ranges(session_ranges(&missing), &mut reading).await?;
        }
        Ok(reading)
    }

    /// Read ranges in chunks, all at the revision of the first chunk.
    async fn read_ranges(&self, ranges: Vec<Range>, reading: &mut StoreReading) -> Result<(), StoreError> {
        for chunk in ranges.chunks(OPS_MAX) {
            let ops = chunk.iter().map(|range| Op::Range(range.at(reading.revision))).collect();
            let (answer, epoch) = self.txn(&Txn { success: ops, ..Txn::default() }).await?;
            if reading.revision == 0 {
                (reading.revision, reading.epoch) = (answer.header.revision, epoch);
            } else if epoch != reading.epoch {
                return Err(StoreError::new(
                    ErrorKind::Unavailable,
                    "etcd was restored from a backup during a read; retry",
                ));
            }
            for kv in answer.reads().flatten() {
                reading.add(&kv)?;
            }
        }
        Ok(())
    }

    /// Return all live sessions.
    pub(super) async fn live_sessions(&self) -> Result<Vec<SessionView>, StoreError> {
        let mut reading = StoreReading::default();
        self.read_ranges(vec![Range::below(SESSIONS)], &mut reading).await?;
        Ok(reading.sessions.into_values().map(|session| session.view).collect())
    }

    /// Return the ended sessions that etcd still keeps.
    pub(super) async fn ended(&self) -> Result<Vec<SessionView>, StoreError> {
        let txn = Txn { success: vec![Op::Range(Range::below(ENDED))], ..Txn::default() };
        self.txn(&txn).await?.0.reads().flatten().map(|kv| value(&kv)).collect()
    }

    /// Return the elections in which a session takes part.
    pub(super) async fn candidacies(&self, id: &SessionId) -> Result<Vec<ElectionKey>, StoreError> {
        let txn = Txn { success: vec![Op::Range(Range::below(&candidacies_of(id)))], ..Txn::default() };
        let (answer, _) = self.txn(&txn).await?;
        Ok(answer.reads().flatten().filter_map(|kv| election_of_candidacy(&kv.key, id)).collect())
    }

    /// Compute a change from the current state and write it if the state is unchanged; otherwise retry. `acting` must
    /// stay alive until the write, and is read like the sessions in `also`. Returns the revision of the write, if there
    /// was one.
    pub(super) async fn change<T>(
        &self,
        keys: &[ElectionKey],
        acting: Option<&SessionId>,
        also: &[SessionId],
        mut work: impl FnMut(&mut Elections, &StoreReading, i64) -> (T, Option<(ElectionKey, u32)>),
    ) -> Result<(T, Option<i64>), StoreError> {
        let also: Vec<SessionId> = acting.into_iter().chain(also).cloned().collect();
        for tried in 0..TRIES {
            let reading = self.read(ReadScope::Listed(keys), &also).await?;
            let mut elections = reading.to_model(runtime::wall_ms());
            let (result, granted) = work(&mut elections, &reading, runtime::wall_ms());
            let granted = granted.as_ref().map(|(key, slot)| (key, *slot));
            let touched = touched(keys, &elections.drain_notifications());
            let Some(txn) = reading.change(&elections, &touched, acting, granted) else {
                return Ok((result, None));
            };
            let (answer, _) = self.txn(&txn).await?;
            if answer.succeeded {
                return Ok((result, Some(answer.header.revision)));
            }
            // Wait a short, random time before the retry.
            let pause = Duration::from_micros(500 << tried.min(6));
            runtime::sleep_until(runtime::now() + runtime::jittered(pause)).await;
        }
        Err(StoreError::new(
            ErrorKind::Unavailable,
            format!(
                "all {TRIES} attempts to write to etcd conflicted with other changes; check the load of etcd"
            ),
        ))
    }

    /// Write to etcd until its revision reaches `min_token`, the highest revision seen before a restore, so that no
    /// token is granted twice. Also stores `min_token` for processes that did not see the revisions before the
    /// restore.
    pub(super) async fn consume_revisions(&self, min_token: i64) -> Result<(), StoreError> {
        let (answer, _) =
            self.txn(&Txn { success: vec![Op::Range(Range::one(MIN_TOKEN))], ..Txn::default() }).await?;
        let mut last = answer.reads().flatten().next().map_or(0, |kv| kv.mod_revision);
        for _ in 0..REVISIONS_PER_CALL {
            let txn = Txn {
                compare: vec![Compare::unchanged(MIN_TOKEN, last)],
                success: vec![Op::Put(Put::new(MIN_TOKEN, &min_token, None))],
                failure: Vec::new(),
            };
            let (answer, _) = self.txn(&txn).await?;
            if !answer.succeeded {
                // Another process consumes revisions.
                break;
            }
            last = answer.header.revision;
            if last >= min_token {
                return Ok(());
            }
        }
        Err(StoreError::new(
            ErrorKind::Unavailable,
            format!(
                "etcd was restored from a backup and is at revision {last}, but tokens up to {min_token} were granted before. Tenure consumes revisions \
                 until new tokens are greater; `etcdutl snapshot restore --bump-revision` avoids the delay"
            ),
        ))
    }
}

/// The elections that may have changed, each with whether watchers must be notified.
fn touched(keys: &[ElectionKey], notifications: &[Notification]) -> BTreeMap<ElectionKey, bool> {
    let changed: BTreeSet<_> = notifications
        .iter()
        .filter_map(|notification| {
            if let Notification::ElectionChanged(key) = notification { Some(key.clone()) } else { None }
        })
        .collect();
    keys.iter().map(|key| (key.clone(), changed.contains(key))).collect()
}

fn session_ranges(ids: &BTreeSet<SessionId>) -> Vec<Range> {
    match ids.len() <= KEYS_MAX {
        true => ids.iter().map(|id| Range::one(&session_key(id))).collect(),
        false => vec![Range::below(SESSIONS)],
    }
}

fn is_compacted(error: &StoreError) -> bool {
    error.message.contains("has been compacted")
}
