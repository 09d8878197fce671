//! Implementation of [`ElectionStore`] on etcd.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::port::{
    BoxNotificationSource, Candidacy, ElectionStore, ElectionsObservation, ErrorKind, ExpireSessionRequest,
    HeartbeatResponse, JoinElectionResponse, LeaderRequest, ObserveScope, OpenSessionRequest,
    ReleaseLeaseRequest, SessionView, StoreError, TakeLeaseRequest, TakeoverMode,
};
use tenure_core::{BootInstant, ElectionKey, SessionId, Token};

use super::cache::CachedSession;
use super::message::{Compare, Kv, Op, Put, Range, Txn};
use super::read::{ReadScope, TRIES};
use super::records::{ended_key, requests_of, session_key, value};
use super::{EtcdStore, watch};
use crate::runtime;

/// Length of the etcd lease as a multiple of the Tenure lease, and its minimum. It only removes abandoned keys; it does
/// not decide takeovers.
const ETCD_LEASE: (u32, Duration) = (5, Duration::from_secs(60));

/// Maximum number of elections changed by one transaction.
const ELECTIONS_PER_TRANSACTION: usize = 20;

/// Maximum number of attempts of a grant after revisions were consumed.
const GRANT_ATTEMPTS: u32 = 3;

/// TTL in seconds of the keys of a silent session.
fn etcd_ttl_seconds(lease: Duration) -> u64 {
    (lease * ETCD_LEASE.0).max(ETCD_LEASE.1).as_secs()
}

#[async_trait]
impl ElectionStore for EtcdStore {
    async fn open_session(&self, session: &OpenSessionRequest) -> Result<HeartbeatResponse, StoreError> {
        session.check()?;
        if session.takeover == TakeoverMode::Connection {
            return Err(StoreError::new(
                ErrorKind::Request,
                "the etcd store does not support the takeover mode `connection`: etcd does not bind sessions to connections; use `lease`",
            ));
        }
        let lease = self.gateway.grant(etcd_ttl_seconds(session.lease)).await?;
        let view = SessionView {
            id: session.id.clone(),
            name: session.name.clone(),
            heartbeat_count: 0,
            lease_ms: u64::try_from(session.lease.as_millis()).unwrap_or(u64::MAX),
            live: true,
            heartbeat_at_ms: runtime::wall_ms(),
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
            // The id is in use, possibly because of an earlier attempt of this call whose response was lost. The id is
            // not used again.
            let _ = self.gateway.revoke(lease).await;
            return Ok(HeartbeatResponse::SessionEnded);
        }
        let (revision, lease_kept_at) = (answer.header.revision, runtime::now());
        let known = CachedSession { revision, lease, lease_kept_at, view, elections: BTreeSet::new() };
        self.cache.sessions().insert(session.id.clone(), known);
        Ok(HeartbeatResponse::Live { epoch, leader_requests: Vec::new() })
    }

    async fn heartbeat(&self, session: &SessionId) -> Result<HeartbeatResponse, StoreError> {
        let at = session_key(session);
        let read = || Op::Range(Range::one(&at));
        let mut known = self.cache.session(session);
        for _ in 0..TRIES {
            let Some(mut last) = known.take() else {
                let txn = Txn { success: vec![read()], ..Txn::default() };
                let (answer, _) = self.txn(&txn).await?;
                known = answer.reads().flatten().next().map(|kv| cached_from(&kv)).transpose()?;
                if known.is_none() {
                    self.cache.sessions().remove(session);
                    return Ok(HeartbeatResponse::SessionEnded);
                }
                continue;
            };
            let (counted, mark) = (last.view.heartbeat_count, self.cache.mark_revision());
            last.view.heartbeat_count += 1;
            last.view.heartbeat_at_ms = runtime::wall_ms();
            // The comparison ensures that an expired session never reappears.
            let txn = Txn {
                compare: vec![Compare::unchanged(&at, last.revision)],
                success: vec![
                    Op::Put(Put::new(&at, &last.view, Some(last.lease))),
                    Op::Range(Range::below(&requests_of(session))),
                ],
                failure: vec![read()],
            };
            let (answer, epoch) = self.txn(&txn).await?;
            let (succeeded, revision) = (answer.succeeded, answer.header.revision);
            let kvs: Vec<Kv> = answer.reads().flatten().collect();
            if !succeeded {
                // Another server wrote a heartbeat for the session, or the response of an earlier attempt was lost.
                known = kvs.first().map(cached_from).transpose()?;
                if known.as_ref().is_some_and(|known| known.view.heartbeat_count < counted) {
                    self.cache.mark_restored(mark);
                }
                continue;
            }
            last.revision = revision;
            self.record_heartbeat(session, last).await;
            let leader_requests = kvs.iter().map(value).collect::<Result<Vec<LeaderRequest>, _>>()?;
            return Ok(HeartbeatResponse::Live { epoch, leader_requests });
        }
        Err(StoreError::new(
            ErrorKind::Unavailable,
            "all attempts to write a heartbeat to etcd conflicted with other changes; check the load of etcd",
        ))
    }

    async fn end_session(&self, session: &SessionId) -> Result<(), StoreError> {
        let own_elections = self.cache.elections(session);
        let keys = match own_elections {
            Some(keys) => keys,
            None => self.candidacies(session).await?,
        };
        // Withdraw from the elections in chunks, because the size of a transaction is limited; then end the session.
        for chunk in keys.chunks(ELECTIONS_PER_TRANSACTION) {
            self.change(chunk, None, &[], |elections, _, wall| {
                for key in chunk {
                    elections.withdraw(key, session, wall);
                }
                ((), None)
            })
            .await?;
        }
        let ending = std::slice::from_ref(session);
        self.change(&[], None, ending, |elections, _, wall| (elections.end_session(session, wall), None))
            .await?;
        self.cache.sessions().remove(session);
        Ok(())
    }

    async fn join_election(&self, candidacy: &Candidacy) -> Result<JoinElectionResponse, StoreError> {
        self.cache.add_election(&candidacy.session, &candidacy.election);
        let keys = [candidacy.election.clone()];
        let joined = self
            .change(&keys, Some(&candidacy.session), &[], |elections, _, wall| {
                (elections.join_election(candidacy, wall), None)
            })
            .await?;
        Ok(joined.0)
    }

    async fn leave_election(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        let keys = [election.clone()];
        self.change(&keys, None, &[], |elections, _, _| (elections.leave_election(session, election), None))
            .await
            .map(drop)
    }

    async fn observe(
        &self,
        session: &SessionId,
        scope: &ObserveScope,
    ) -> Result<ElectionsObservation, StoreError> {
        let reading = match scope {
            ObserveScope::Listed(keys) => self.read(ReadScope::Listed(keys), &[]).await?,
            ObserveScope::All => self.read(ReadScope::All, &[]).await?,
            ObserveScope::Contested | ObserveScope::Own => {
                let own_elections = match self.cache.elections(session) {
                    Some(own_elections) => own_elections,
                    None => self.candidacies(session).await?,
                };
                self.read(ReadScope::Listed(&own_elections), &[]).await?
            }
        };
        let observation = reading.to_model(runtime::wall_ms()).observe(session, scope);
        Ok(ElectionsObservation { epoch: reading.epoch, ..observation })
    }

    async fn take_lease(&self, take: &TakeLeaseRequest) -> Result<Option<Token>, StoreError> {
        self.cache.add_election(&take.session, &take.election);
        let keys = [take.election.clone()];
        let also: Vec<_> = take.expire.iter().map(|expire| expire.session.clone()).collect();
        for _ in 0..GRANT_ATTEMPTS {
            let mut min_token = None;
            let (granted, revision) = self
                .change(&keys, Some(&take.session), &also, |elections, reading, wall| {
                    if reading.epoch != take.epoch {
                        return (false, None);
                    }
                    // The token is the next revision, which must be greater than all tokens granted before a restore.
                    let required = self.cache.min_token().max(reading.min_token);
                    min_token = (reading.revision < required).then_some(required);
                    if min_token.is_some() {
                        return (false, None);
                    }
                    let granted = elections.take_lease(&with_epoch_zero(take), wall).is_some();
                    (granted, granted.then(|| (take.election.clone(), take.slot)))
                })
                .await?;
            match min_token {
                Some(min_token) => self.consume_revisions(min_token).await?,
                None => {
                    return Ok(revision
                        .filter(|_| granted)
                        .map(|revision| Token::from_u64(revision.unsigned_abs())));
                }
            }
        }
        Ok(None)
    }

    async fn release_lease(&self, release: &ReleaseLeaseRequest) -> Result<(), StoreError> {
        let keys = [release.election.clone()];
        self.change(&keys, None, &[], |elections, _, wall| (elections.release_lease(release, wall), None))
            .await
            .map(drop)
    }

    async fn expire_session(&self, expire: &ExpireSessionRequest) -> Result<(), StoreError> {
        // Only some elections are cleaned up here. Readers clean up the others: a lease of a missing session is free.
        let mut keys = self.candidacies(&expire.session).await?;
        keys.truncate(ELECTIONS_PER_TRANSACTION);
        let also = std::slice::from_ref(&expire.session);
        self.change(&keys, None, also, |elections, reading, wall| {
            if reading.epoch == expire.epoch {
                elections.expire_session(&ExpireSessionRequest { epoch: 0, ..expire.clone() }, wall);
            }
            ((), None)
        })
        .await
        .map(drop)
    }

    async fn request_leader(&self, request: &LeaderRequest) -> Result<bool, StoreError> {
        let keys = [request.election.clone()];
        self.change(&keys, None, &[], |elections, _, _| (elections.request_leader(request), None))
            .await
            .map(|(accepted, _)| accepted)
    }

    fn notifications(&self) -> BoxNotificationSource {
        watch::open(self.gateway.clone())
    }
}

impl EtcdStore {
    /// Cache a confirmed heartbeat, and keep the etcd lease alive from time to time.
    async fn record_heartbeat(&self, session: &SessionId, mut last: CachedSession) {
        let now = runtime::now();
        let every = Duration::from_secs(etcd_ttl_seconds(last.view.lease())) / 4;
        if now >= last.lease_kept_at + every && self.gateway.keep(last.lease).await.is_ok() {
            last.lease_kept_at = now;
        }
        let mut cache = self.cache.sessions();
        if let Some(known) = cache.get(session) {
            last.elections.extend(known.elections.iter().cloned());
        }
        cache.insert(session.clone(), last);
    }
}

/// A session that this process did not open, or whose last heartbeat another process wrote.
fn cached_from(kv: &Kv) -> Result<CachedSession, StoreError> {
    let view: SessionView = value(kv)?;
    Ok(CachedSession {
        revision: kv.mod_revision,
        lease: kv.lease,
        // The time of the last keep-alive is unknown.
        lease_kept_at: BootInstant::from_nanos(0),
        view,
        elections: BTreeSet::new(),
    })
}

/// The reference implementation always has epoch 0; the caller has compared the real epoch.
fn with_epoch_zero(take: &TakeLeaseRequest) -> TakeLeaseRequest {
    let expire = take.expire.clone().filter(|expire| expire.epoch == take.epoch);
    TakeLeaseRequest {
        epoch: 0,
        expire: expire.map(|expire| ExpireSessionRequest { epoch: 0, ..expire }),
        ..take.clone()
    }
}
