//! The path of the machine, call by call.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::book::Book;
use tenure_core::port::{
    Ask, Candidacy, Expire, Joined, NewSession, Observation, Pulse, Release, Scope, SessionView, Store,
    StoreError, Take, Takeover, Trouble, Wake, Wakes,
};
use tenure_core::{ElectionKey, Moment, SessionId, Token};

use super::message::{Compare, Kv, Op, Put, Range, Txn, TxnAnswer};
use super::records::{
    ELECTIONS, ENDED, Reading, SESSIONS, asks_of, election_key, ended_key, session_key, value,
};
use super::{Etcd, hints};
use crate::runtime;

/// How often a change is worked out anew because something moved. Everybody who moved something got ahead, so this many in a row
/// means a store that hardly answers.
const TRIES: u32 = 64;

/// How many keys are read one by one; for more, all are read. A transaction has at most 128 operations.
const KEYS_MAX: usize = 100;

/// An etcd lease is this many times as long as ours, and at least a minute: it sweeps up, it does not judge.
const SWEEP: (u32, Duration) = (5, Duration::from_secs(60));

/// How many elections one transaction changes.
const FEW: usize = 20;

/// What this process knows of its own sessions: it saves looking, and is never needed. And which clusters it has seen.
#[derive(Default)]
pub(super) struct Memo {
    sessions: Mutex<HashMap<SessionId, Known>>,
    clusters: Mutex<Vec<u64>>,
}

#[derive(Clone)]
struct Known {
    /// The revision of its last beat.
    revision: i64,
    /// The etcd lease it hangs on, and when that was last kept.
    lease: i64,
    kept: Moment,
    view: SessionView,
    /// The elections that it ever had to do with.
    elections: BTreeSet<ElectionKey>,
}

impl Memo {
    fn locked(&self) -> MutexGuard<'_, HashMap<SessionId, Known>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cluster that answered last. One that was restored from a backup is another.
    pub(super) fn cluster(&self) -> Option<u64> {
        self.clusters.lock().unwrap_or_else(PoisonError::into_inner).last().copied()
    }

    /// Another cluster is another time: one that was restored from a backup does not know the last grants. The first that is seen
    /// is of time 0.
    fn timeline(&self, answer: &TxnAnswer) -> u32 {
        let mut seen = self.clusters.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.last() != Some(&answer.header.cluster_id) {
            seen.push(answer.header.cluster_id);
        }
        u32::try_from(seen.len() - 1).unwrap_or(u32::MAX)
    }

    fn known(&self, id: &SessionId) -> Option<Known> {
        self.locked().get(id).cloned()
    }

    fn elections(&self, id: &SessionId) -> Option<Vec<ElectionKey>> {
        self.locked().get(id).map(|known| known.elections.iter().cloned().collect())
    }

    fn saw(&self, id: &SessionId, key: &ElectionKey) {
        if let Some(known) = self.locked().get_mut(id) {
            known.elections.insert(key.clone());
        }
    }
}

/// Which elections are read.
#[derive(Clone, Copy)]
pub(super) enum Which<'a> {
    These(&'a [ElectionKey]),
    All,
}

impl Etcd {
    /// Reads elections and all sessions, at one revision.
    pub(super) async fn read(&self, which: Which<'_>) -> Result<Reading, StoreError> {
        let ranges = match which {
            Which::These(keys) if keys.len() <= KEYS_MAX => {
                keys.iter().map(|key| Range::one(&election_key(key))).collect()
            }
            _ => vec![Range::below(ELECTIONS)],
        };
        let count = ranges.len();
        let ranges = ranges.into_iter().chain([Range::below(SESSIONS)]);
        let txn = Txn { success: ranges.map(Op::Range).collect(), ..Txn::default() };
        let answer = self.gateway.txn(&txn).await?;
        let mut reading = Reading { timeline: self.memo.timeline(&answer), ..Reading::default() };
        for (i, kvs) in answer.reads().enumerate() {
            match i < count {
                true => reading.take_in_elections(kvs)?,
                false => reading.take_in_sessions(kvs)?,
            }
        }
        Ok(reading)
    }

    /// Works out a change on what is there, and writes it if that is still so; else once more. The revision of the change, if there
    /// was one.
    pub(super) async fn change<T>(
        &self,
        which: Which<'_>,
        acting: Option<&SessionId>,
        mut work: impl FnMut(&mut Book, &Reading, i64) -> (T, Option<(ElectionKey, u32)>),
    ) -> Result<(T, Option<i64>), StoreError> {
        for tried in 0..TRIES {
            let reading = self.read(which).await?;
            let mut book = reading.book(runtime::wall_ms());
            let (result, granted) = work(&mut book, &reading, runtime::wall_ms());
            let granted = granted.as_ref().map(|(key, slot)| (key, *slot));
            let touched = touched(which, &book.drain_wakes());
            let Some(txn) = reading.change(&book, &touched, acting, granted) else {
                return Ok((result, None));
            };
            let answer = self.gateway.txn(&txn).await?;
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
}

/// The elections that may have changed, and whether there is something to be heard of them. Of all, only some are written at once: the
/// others are tidied by whoever reads them next, as what hangs on no session is free.
fn touched(which: Which<'_>, wakes: &[Wake]) -> BTreeMap<ElectionKey, bool> {
    let heard: BTreeSet<_> = wakes
        .iter()
        .filter_map(|wake| if let Wake::Changed(key) = wake { Some(key.clone()) } else { None })
        .collect();
    match which {
        Which::These(keys) => keys.iter().map(|key| (key.clone(), heard.contains(key))).collect(),
        Which::All => heard.into_iter().take(FEW).map(|key| (key, true)).collect(),
    }
}

/// For how many seconds etcd keeps what a silent session left.
fn sweep_after(lease: Duration) -> u64 {
    (lease * SWEEP.0).max(SWEEP.1).as_secs()
}

#[async_trait]
impl Store for Etcd {
    async fn open(&self, session: &NewSession) -> Result<Pulse, StoreError> {
        session.check()?;
        if session.takeover == Takeover::Connection {
            return Err(StoreError::new(
                Trouble::Request,
                "etcd has no take-over mode `connection`: it does not know whose connection is whose; use `lease`",
            ));
        }
        let lease = self.gateway.grant(sweep_after(session.lease)).await?;
        let view = SessionView {
            id: session.id.clone(),
            name: session.name.clone(),
            beat: 0,
            lease_ms: u64::try_from(session.lease.as_millis()).unwrap_or(u64::MAX),
            live: true,
            beat_at_ms: runtime::wall_ms(),
            owner: session.owner.clone(),
        };
        let at = session_key(&session.id);
        let txn = Txn {
            compare: vec![Compare::unchanged(&at, 0), Compare::unchanged(&ended_key(&session.id), 0)],
            success: vec![Op::Put(Put::new(&at, &view, Some(lease)))],
            failure: Vec::new(),
        };
        let answer = self.gateway.txn(&txn).await?;
        if !answer.succeeded {
            // The id was used, possibly by our own first try, whose answer was lost: it is never used then.
            let _ = self.gateway.revoke(lease).await;
            return Ok(Pulse::Gone);
        }
        let (revision, kept) = (answer.header.revision, runtime::now());
        let known = Known { revision, lease, kept, view, elections: BTreeSet::new() };
        self.memo.locked().insert(session.id.clone(), known);
        Ok(Pulse::Alive { timeline: self.memo.timeline(&answer), asks: Vec::new() })
    }

    async fn beat(&self, session: &SessionId) -> Result<Pulse, StoreError> {
        let at = session_key(session);
        let look = || Op::Range(Range::one(&at));
        let mut known = self.memo.known(session);
        for _ in 0..TRIES {
            let Some(mut last) = known.take() else {
                let txn = Txn { success: vec![look()], ..Txn::default() };
                known = self
                    .gateway
                    .txn(&txn)
                    .await?
                    .reads()
                    .flatten()
                    .next()
                    .map(|kv| found(&kv))
                    .transpose()?;
                if known.is_none() {
                    self.memo.locked().remove(session);
                    return Ok(Pulse::Gone);
                }
                continue;
            };
            last.view.beat += 1;
            last.view.beat_at_ms = runtime::wall_ms();
            // Only a session that is there beats: one that was expired must never come back.
            let txn = Txn {
                compare: vec![Compare::unchanged(&at, last.revision)],
                success: vec![
                    Op::Put(Put::new(&at, &last.view, Some(last.lease))),
                    Op::Range(Range::below(&asks_of(session))),
                ],
                failure: vec![look()],
            };
            let answer = self.gateway.txn(&txn).await?;
            let (succeeded, timeline, revision) =
                (answer.succeeded, self.memo.timeline(&answer), answer.header.revision);
            let kvs: Vec<Kv> = answer.reads().flatten().collect();
            if !succeeded {
                // Somebody else has beaten for it: another server, or our own call whose answer was lost.
                known = kvs.first().map(found).transpose()?;
                continue;
            }
            last.revision = revision;
            self.kept(session, last).await;
            let asks = kvs.iter().map(value).collect::<Result<Vec<Ask>, _>>()?;
            return Ok(Pulse::Alive { timeline, asks });
        }
        Err(StoreError::new(
            Trouble::Unavailable,
            "etcd has changed under each try to beat; is it overloaded?",
        ))
    }

    async fn end(&self, session: &SessionId) -> Result<(), StoreError> {
        let mine = self.memo.elections(session);
        let keys = match mine {
            Some(keys) => keys,
            None => self.read(Which::All).await?.elections.into_keys().collect(),
        };
        // The elections first, a few at a time, as a transaction has its limit; with the last of them, the session.
        for few in keys.chunks(FEW) {
            self.change(Which::These(few), None, |book, _, wall| {
                for key in few {
                    book.withdraw(key, session, wall);
                }
                ((), None)
            })
            .await?;
        }
        self.change(Which::These(&[]), None, |book, _, wall| (book.end(session, wall), None)).await?;
        self.memo.locked().remove(session);
        Ok(())
    }

    async fn join(&self, candidacy: &Candidacy) -> Result<Joined, StoreError> {
        self.memo.saw(&candidacy.session, &candidacy.election);
        let keys = [candidacy.election.clone()];
        let joined = self
            .change(Which::These(&keys), Some(&candidacy.session), |book, _, wall| {
                (book.join(candidacy, wall), None)
            })
            .await?;
        Ok(joined.0)
    }

    async fn leave(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        let keys = [election.clone()];
        self.change(Which::These(&keys), None, |book, _, _| (book.leave(session, election), None))
            .await
            .map(drop)
    }

    async fn observe(&self, session: &SessionId, scope: &Scope) -> Result<Observation, StoreError> {
        let mine = self.memo.elections(session);
        let reading = match (scope, &mine) {
            (Scope::Only(keys), _) => self.read(Which::These(keys)).await?,
            (Scope::Contested | Scope::Standing, Some(mine)) => self.read(Which::These(mine)).await?,
            _ => self.read(Which::All).await?,
        };
        let seen = reading.book(runtime::wall_ms()).observe(session, scope);
        Ok(Observation { timeline: reading.timeline, ..seen })
    }

    async fn take(&self, take: &Take) -> Result<Option<Token>, StoreError> {
        self.memo.saw(&take.session, &take.election);
        let keys = [take.election.clone()];
        let (granted, revision) = self
            .change(Which::These(&keys), Some(&take.session), |book, reading, wall| {
                if reading.timeline != take.timeline {
                    return (false, None);
                }
                let granted = book.take(&of_the_book(take), wall).is_some();
                (granted, granted.then(|| (take.election.clone(), take.slot)))
            })
            .await?;
        Ok(revision.filter(|_| granted).map(|revision| Token::from_u64(revision.unsigned_abs())))
    }

    async fn release(&self, release: &Release) -> Result<(), StoreError> {
        let keys = [release.election.clone()];
        self.change(Which::These(&keys), None, |book, _, wall| (book.release(release, wall), None))
            .await
            .map(drop)
    }

    async fn expire(&self, expire: &Expire) -> Result<(), StoreError> {
        self.change(Which::All, None, |book, reading, wall| {
            if reading.timeline == expire.timeline {
                book.expire(&Expire { timeline: 0, ..expire.clone() }, wall);
            }
            ((), None)
        })
        .await
        .map(drop)
    }

    async fn ask(&self, ask: &Ask) -> Result<bool, StoreError> {
        let keys = [ask.election.clone()];
        self.change(Which::These(&keys), None, |book, _, _| (book.ask(ask), None))
            .await
            .map(|(asked, _)| asked)
    }

    fn wakes(&self) -> Wakes {
        hints::open(self.gateway.clone())
    }
}

impl Etcd {
    /// Sessions that are over, as far as etcd remembers them.
    pub(super) async fn ended(&self) -> Result<Vec<SessionView>, StoreError> {
        let txn = Txn { success: vec![Op::Range(Range::below(ENDED))], ..Txn::default() };
        self.gateway.txn(&txn).await?.reads().flatten().map(|kv| value(&kv)).collect()
    }

    /// Remembers a beat that counted, and keeps the etcd lease from time to time.
    async fn kept(&self, session: &SessionId, mut last: Known) {
        let now = runtime::now();
        let every = Duration::from_secs(sweep_after(last.view.lease())) / 4;
        if now >= last.kept + every && self.gateway.keep(last.lease).await.is_ok() {
            last.kept = now;
        }
        let mut memo = self.memo.locked();
        if let Some(known) = memo.get(session) {
            last.elections.extend(known.elections.iter().cloned());
        }
        memo.insert(session.clone(), last);
    }
}

/// A session that this process has not opened, or not beaten last.
fn found(kv: &Kv) -> Result<Known, StoreError> {
    let view: SessionView = value(kv)?;
    Ok(Known {
        revision: kv.mod_revision,
        lease: kv.lease,
        // Long ago: nobody knows.
        kept: Moment::from_nanos(0),
        view,
        elections: BTreeSet::new(),
    })
}

/// The book is always of the same timeline: which one it was read on is compared before.
fn of_the_book(take: &Take) -> Take {
    let expire = take.expire.clone().filter(|expire| expire.timeline == take.timeline);
    Take { timeline: 0, expire: expire.map(|expire| Expire { timeline: 0, ..expire }), ..take.clone() }
}
