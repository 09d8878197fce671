//! The path of the machine, call by call.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::port::{
    Ask, Candidacy, Expire, Joined, NewSession, Observation, Pulse, Release, Scope, SessionView, Store,
    StoreError, Take, Takeover, Trouble, Wakes,
};
use tenure_core::{ElectionKey, Moment, SessionId, Token};

use super::memo::Known;
use super::message::{Compare, Kv, Op, Put, Range, Txn};
use super::read::{TRIES, Which};
use super::records::{asks_of, ended_key, session_key, value};
use super::{Etcd, hints};
use crate::runtime;

/// An etcd lease is this many times as long as ours, and at least a minute: it sweeps up, it does not judge.
const SWEEP: (u32, Duration) = (5, Duration::from_secs(60));

/// How many elections one transaction changes.
const FEW: usize = 20;

/// How often a grant is tried again after revisions were used up.
const CLIMBS: u32 = 3;

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
        let (answer, epoch) = self.txn(&txn).await?;
        if !answer.succeeded {
            // The id was used, possibly by our own first try, whose answer was lost: it is never used then.
            let _ = self.gateway.revoke(lease).await;
            return Ok(Pulse::Gone);
        }
        let (revision, kept) = (answer.header.revision, runtime::now());
        let known = Known { revision, lease, kept, view, elections: BTreeSet::new() };
        self.memo.sessions().insert(session.id.clone(), known);
        Ok(Pulse::Alive { epoch, asks: Vec::new() })
    }

    async fn beat(&self, session: &SessionId) -> Result<Pulse, StoreError> {
        let at = session_key(session);
        let look = || Op::Range(Range::one(&at));
        let mut known = self.memo.known(session);
        for _ in 0..TRIES {
            let Some(mut last) = known.take() else {
                let txn = Txn { success: vec![look()], ..Txn::default() };
                let (answer, _) = self.txn(&txn).await?;
                known = answer.reads().flatten().next().map(|kv| found(&kv)).transpose()?;
                if known.is_none() {
                    self.memo.sessions().remove(session);
                    return Ok(Pulse::Gone);
                }
                continue;
            };
            let (counted, asked) = (last.view.beat, self.memo.asking());
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
            let (answer, epoch) = self.txn(&txn).await?;
            let (succeeded, revision) = (answer.succeeded, answer.header.revision);
            let kvs: Vec<Kv> = answer.reads().flatten().collect();
            if !succeeded {
                // Somebody else has beaten for it: another server, or our own call whose answer was lost.
                known = kvs.first().map(found).transpose()?;
                if known.as_ref().is_some_and(|known| known.view.beat < counted) {
                    self.memo.went_back(asked);
                }
                continue;
            }
            last.revision = revision;
            self.kept(session, last).await;
            let asks = kvs.iter().map(value).collect::<Result<Vec<Ask>, _>>()?;
            return Ok(Pulse::Alive { epoch, asks });
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
            None => self.parts(session).await?,
        };
        // The elections first, a few at a time, as a transaction has its limit; with the last of them, the session.
        for few in keys.chunks(FEW) {
            self.change(few, None, &[], |book, _, wall| {
                for key in few {
                    book.withdraw(key, session, wall);
                }
                ((), None)
            })
            .await?;
        }
        let ending = std::slice::from_ref(session);
        self.change(&[], None, ending, |book, _, wall| (book.end(session, wall), None)).await?;
        self.memo.sessions().remove(session);
        Ok(())
    }

    async fn join(&self, candidacy: &Candidacy) -> Result<Joined, StoreError> {
        self.memo.saw(&candidacy.session, &candidacy.election);
        let keys = [candidacy.election.clone()];
        let joined = self
            .change(&keys, Some(&candidacy.session), &[], |book, _, wall| (book.join(candidacy, wall), None))
            .await?;
        Ok(joined.0)
    }

    async fn leave(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        let keys = [election.clone()];
        self.change(&keys, None, &[], |book, _, _| (book.leave(session, election), None)).await.map(drop)
    }

    async fn observe(&self, session: &SessionId, scope: &Scope) -> Result<Observation, StoreError> {
        let reading = match scope {
            Scope::Only(keys) => self.read(Which::These(keys), &[]).await?,
            Scope::All => self.read(Which::All, &[]).await?,
            Scope::Contested | Scope::Standing => {
                let mine = match self.memo.elections(session) {
                    Some(mine) => mine,
                    None => self.parts(session).await?,
                };
                self.read(Which::These(&mine), &[]).await?
            }
        };
        let seen = reading.book(runtime::wall_ms()).observe(session, scope);
        Ok(Observation { epoch: reading.epoch, ..seen })
    }

    async fn take(&self, take: &Take) -> Result<Option<Token>, StoreError> {
        self.memo.saw(&take.session, &take.election);
        let keys = [take.election.clone()];
        let also: Vec<_> = take.expire.iter().map(|expire| expire.session.clone()).collect();
        for _ in 0..CLIMBS {
            let mut floor = None;
            let (granted, revision) = self
                .change(&keys, Some(&take.session), &also, |book, reading, wall| {
                    if reading.epoch != take.epoch {
                        return (false, None);
                    }
                    // The token will be the next revision, and must be greater than all that were granted before a restore.
                    let lost = self.memo.lost().max(reading.floor);
                    floor = (reading.revision < lost).then_some(lost);
                    if floor.is_some() {
                        return (false, None);
                    }
                    let granted = book.take(&of_the_book(take), wall).is_some();
                    (granted, granted.then(|| (take.election.clone(), take.slot)))
                })
                .await?;
            match floor {
                Some(floor) => self.climb(floor).await?,
                None => {
                    return Ok(revision
                        .filter(|_| granted)
                        .map(|revision| Token::from_u64(revision.unsigned_abs())));
                }
            }
        }
        Ok(None)
    }

    async fn release(&self, release: &Release) -> Result<(), StoreError> {
        let keys = [release.election.clone()];
        self.change(&keys, None, &[], |book, _, wall| (book.release(release, wall), None)).await.map(drop)
    }

    async fn expire(&self, expire: &Expire) -> Result<(), StoreError> {
        // Of many elections only some are tidied at once: the others are by whoever reads them next, as what hangs on no session is free.
        let mut keys = self.parts(&expire.session).await?;
        keys.truncate(FEW);
        let also = std::slice::from_ref(&expire.session);
        self.change(&keys, None, also, |book, reading, wall| {
            if reading.epoch == expire.epoch {
                book.expire(&Expire { epoch: 0, ..expire.clone() }, wall);
            }
            ((), None)
        })
        .await
        .map(drop)
    }

    async fn ask(&self, ask: &Ask) -> Result<bool, StoreError> {
        let keys = [ask.election.clone()];
        self.change(&keys, None, &[], |book, _, _| (book.ask(ask), None)).await.map(|(asked, _)| asked)
    }

    fn wakes(&self) -> Wakes {
        hints::open(self.gateway.clone())
    }
}

impl Etcd {
    /// Remembers a beat that counted, and keeps the etcd lease from time to time.
    async fn kept(&self, session: &SessionId, mut last: Known) {
        let now = runtime::now();
        let every = Duration::from_secs(sweep_after(last.view.lease())) / 4;
        if now >= last.kept + every && self.gateway.keep(last.lease).await.is_ok() {
            last.kept = now;
        }
        let mut memo = self.memo.sessions();
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

/// The book is always of the same epoch: which one it was read on is compared before.
fn of_the_book(take: &Take) -> Take {
    let expire = take.expire.clone().filter(|expire| expire.epoch == take.epoch);
    Take { epoch: 0, expire: expire.map(|expire| Expire { epoch: 0, ..expire }), ..take.clone() }
}
