//! Reading elections with those who take part in them, working out changes, writing them.
//!
//! Of sessions, only those are read that the elections name. Who that is is known when the elections are read; so those are asked for that it
//! was the last time, and whoever is new is read after that, at the same revision. Mostly there is nobody new, and it is one call.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_core::book::Book;
use tenure_core::port::{SessionView, StoreError, Trouble, Wake};
use tenure_core::{ElectionKey, SessionId};

use super::Etcd;
use super::message::{Compare, Op, Put, Range, Txn, TxnAnswer};
use super::records::{
    ELECTIONS, ENDED, FLOOR, Reading, SESSIONS, election_key, named, part_of, parts_of, session_key, value,
};
use crate::runtime;

/// How often a change is worked out anew because something moved. Everybody who moved something got ahead, so this many in a row
/// means a store that hardly answers.
pub(super) const TRIES: u32 = 64;

/// How often something is read again because it was compacted away while it was read.
const READS: u32 = 8;

/// How many operations a transaction has: etcd allows 128.
const OPS_MAX: usize = 100;

/// For more keys than that, all are read.
const KEYS_MAX: usize = 1_000;

/// How many revisions are used up at once to come above those that were granted before a restore.
const CLIMB: u32 = 500;

/// Which elections are read.
#[derive(Clone, Copy)]
pub(super) enum Which<'a> {
    These(&'a [ElectionKey]),
    All,
}

impl Etcd {
    /// A transaction, and the time of the cluster that it was made in.
    pub(super) async fn txn(&self, txn: &Txn) -> Result<(TxnAnswer, u32), StoreError> {
        let asked = self.memo.asking();
        let answer = self.gateway.txn(txn).await?;
        let epoch = self.memo.told(asked, &answer.header);
        Ok((answer, epoch))
    }

    /// Reads elections, all sessions that they name, and some more, at one revision.
    pub(super) async fn read(&self, which: Which<'_>, also: &[SessionId]) -> Result<Reading, StoreError> {
        let mut last = StoreError::new(Trouble::Unavailable, "nothing was read");
        for _ in 0..READS {
            match self.read_once(which, also).await {
                Err(error) if is_compacted(&error) => last = error,
                done => return done,
            }
        }
        Err(last)
    }

    async fn read_once(&self, which: Which<'_>, also: &[SessionId]) -> Result<Reading, StoreError> {
        let mut reading = Reading::default();
        let keys = match which {
            Which::These(keys) if keys.len() <= KEYS_MAX => keys,
            _ => {
                let all = vec![Range::below(ELECTIONS), Range::below(SESSIONS), Range::one(FLOOR)];
                self.gather(all, &mut reading).await?;
                return Ok(reading);
            }
        };
        let mut asked: BTreeSet<SessionId> = also.iter().cloned().collect();
        asked.extend(keys.iter().flat_map(|key| self.memo.cast(key)));
        let elections = keys.iter().map(|key| Range::one(&election_key(key)));
        let ranges = elections.chain([Range::one(FLOOR)]).chain(of_sessions(&asked));
        self.gather(ranges.collect(), &mut reading).await?;
        let mut missing = BTreeSet::new();
        for (key, (_, election)) in &reading.elections {
            let cast = named(election);
            missing.extend(cast.difference(&asked).cloned());
            self.memo.remember_cast(key, cast);
        }
        if !missing.is_empty() {
            self.gather(of_sessions(&missing), &mut reading).await?;
        }
        Ok(reading)
    }

    /// Reads some keys, a few at a time, all at the revision of the first.
    async fn gather(&self, ranges: Vec<Range>, reading: &mut Reading) -> Result<(), StoreError> {
        for few in ranges.chunks(OPS_MAX) {
            let ops = few.iter().map(|range| Op::Range(range.at(reading.revision))).collect();
            let (answer, epoch) = self.txn(&Txn { success: ops, ..Txn::default() }).await?;
            if reading.revision == 0 {
                (reading.revision, reading.epoch) = (answer.header.revision, epoch);
            } else if epoch != reading.epoch {
                return Err(StoreError::new(Trouble::Unavailable, "etcd was restored while it was read"));
            }
            for kv in answer.reads().flatten() {
                reading.take_in(&kv)?;
            }
        }
        Ok(())
    }

    /// All sessions that live.
    pub(super) async fn sessions_alive(&self) -> Result<Vec<SessionView>, StoreError> {
        let mut reading = Reading::default();
        self.gather(vec![Range::below(SESSIONS)], &mut reading).await?;
        Ok(reading.sessions.into_values().map(|seen| seen.view).collect())
    }

    /// Sessions that are over, as far as etcd remembers them.
    pub(super) async fn ended(&self) -> Result<Vec<SessionView>, StoreError> {
        let txn = Txn { success: vec![Op::Range(Range::below(ENDED))], ..Txn::default() };
        self.txn(&txn).await?.0.reads().flatten().map(|kv| value(&kv)).collect()
    }

    /// The elections that a session takes part in.
    pub(super) async fn parts(&self, id: &SessionId) -> Result<Vec<ElectionKey>, StoreError> {
        let txn = Txn { success: vec![Op::Range(Range::below(&parts_of(id)))], ..Txn::default() };
        let (answer, _) = self.txn(&txn).await?;
        Ok(answer.reads().flatten().filter_map(|kv| part_of(&kv.key, id)).collect())
    }

    /// Works out a change on what is there, and writes it if that is still so; else once more. `acting` must live until then, and is read,
    /// as those in `also` are. The revision of the change, if there was one.
    pub(super) async fn change<T>(
        &self,
        keys: &[ElectionKey],
        acting: Option<&SessionId>,
        also: &[SessionId],
        mut work: impl FnMut(&mut Book, &Reading, i64) -> (T, Option<(ElectionKey, u32)>),
    ) -> Result<(T, Option<i64>), StoreError> {
        let also: Vec<SessionId> = acting.into_iter().chain(also).cloned().collect();
        for tried in 0..TRIES {
            let reading = self.read(Which::These(keys), &also).await?;
            let mut book = reading.book(runtime::wall_ms());
            let (result, granted) = work(&mut book, &reading, runtime::wall_ms());
            let granted = granted.as_ref().map(|(key, slot)| (key, *slot));
            let touched = touched(keys, &book.drain_wakes());
            let Some(txn) = reading.change(&book, &touched, acting, granted) else {
                return Ok((result, None));
            };
            let (answer, _) = self.txn(&txn).await?;
            if answer.succeeded {
                return Ok((result, Some(answer.header.revision)));
            }
            // Whoever got ahead is done: a short while, and not the same for all.
            let pause = Duration::from_micros(500 << tried.min(6));
            runtime::sleep_until(runtime::now() + runtime::jittered(pause)).await;
        }
        Err(StoreError::new(
            Trouble::Unavailable,
            format!("etcd has changed under each of {TRIES} tries to write; is it overloaded?"),
        ))
    }

    /// Uses up revisions until they are greater than all that were seen before etcd was restored, so that no token is granted twice. Tells
    /// the others, who may not have been there, by which revision that is.
    pub(super) async fn climb(&self, floor: i64) -> Result<(), StoreError> {
        let (answer, _) =
            self.txn(&Txn { success: vec![Op::Range(Range::one(FLOOR))], ..Txn::default() }).await?;
        let mut last = answer.reads().flatten().next().map_or(0, |kv| kv.mod_revision);
        for _ in 0..CLIMB {
            let txn = Txn {
                compare: vec![Compare::unchanged(FLOOR, last)],
                success: vec![Op::Put(Put::new(FLOOR, &floor, None))],
                failure: Vec::new(),
            };
            let (answer, _) = self.txn(&txn).await?;
            if !answer.succeeded {
                // Somebody else climbs.
                break;
            }
            last = answer.header.revision;
            if last >= floor {
                return Ok(());
            }
        }
        Err(StoreError::new(
            Trouble::Unavailable,
            format!(
                "etcd was restored from a backup and is at revision {last}, while tokens up to {floor} were granted before: its revisions \
                 are being used up; `etcdutl snapshot restore --bump-revision` saves that"
            ),
        ))
    }
}

/// The elections that may have changed, and whether there is something to be heard of them.
fn touched(keys: &[ElectionKey], wakes: &[Wake]) -> BTreeMap<ElectionKey, bool> {
    let heard: BTreeSet<_> = wakes
        .iter()
        .filter_map(|wake| if let Wake::Changed(key) = wake { Some(key.clone()) } else { None })
        .collect();
    keys.iter().map(|key| (key.clone(), heard.contains(key))).collect()
}

fn of_sessions(ids: &BTreeSet<SessionId>) -> Vec<Range> {
    match ids.len() <= KEYS_MAX {
        true => ids.iter().map(|id| Range::one(&session_key(id))).collect(),
        false => vec![Range::below(SESSIONS)],
    }
}

fn is_compacted(error: &StoreError) -> bool {
    error.message.contains("has been compacted")
}
