//! Elections for sessions. Each call is one transaction with the behaviour of the reference model in `tenure-core`.

use std::os::fd::OwnedFd;

use async_trait::async_trait;
use sqlx::Row;
use tenure_core::port::{
    AdoptLeaseRequest, BoxNotificationSource, Candidacy, ElectionStore, ElectionsObservation,
    ExpireSessionRequest, HeartbeatResponse, JoinElectionResponse, LeaderRequest, LeaderRequestKind,
    Notification, ObserveScope, OpenSessionRequest, ReleaseLeaseRequest, StoreError, TakeLeaseRequest,
    TakeoverMode,
};
use tenure_core::{ElectionKey, SessionId, Token};

use super::connection::{Explain, decode_error, election_of, query};
use super::lock::LockState;
use super::write_transaction::{number, of_key};
use super::{SqliteStore, error, fifo};
use crate::runtime;

/// How long ended sessions are kept for display.
const ENDED_SESSION_RETENTION_MS: i64 = 24 * 60 * 60 * 1000;

impl SqliteStore {
    /// Open a session and return the epoch; `None` if a session with this id exists.
    async fn open_session(&self, session: &OpenSessionRequest) -> sqlx::Result<Option<u32>> {
        self.verify_epoch().await?;
        let mut tx = self.begin_write().await?;
        let takeover = match session.takeover {
            TakeoverMode::Lease => "lease",
            TakeoverMode::Connection => "connection",
        };
        let insert = query(self.queries.get("session_open"))
            .bind(session.id.as_str())
            .bind(&session.name)
            .bind(i64::try_from(session.lease.as_millis()).unwrap_or(i64::MAX))
            .bind(takeover)
            .bind(tx.wall_ms)
            .bind(session.owner.as_deref());
        let opened = tx.transaction.execute(insert).await?.rows_affected() > 0;
        let prune = query(self.queries.get("session_prune")).bind(tx.wall_ms - ENDED_SESSION_RETENTION_MS);
        tx.transaction.execute(prune).await?;
        let counted = tx.transaction.one(query(self.queries.get("epoch_count_write"))).await?;
        let counted = counted.ok_or(sqlx::Error::RowNotFound)?;
        tx.commit().await?;
        let epoch = self.record_epoch(&counted)?;
        self.write_epoch_mark(counted.try_get("write_count")?);
        Ok(opened.then_some(epoch))
    }

    async fn heartbeat_session(
        &self,
        session: &SessionId,
    ) -> sqlx::Result<Option<(u32, Vec<LeaderRequest>)>> {
        self.check_epoch_periodically().await?;
        // Two transactions are enough: a leader request that arrives between them is included.
        // A session whose process can outlive this machine uses the pool with full durability.
        let pools = &self.inner.pools;
        let pool = if self.inner.session_locks.contains(session) { &pools.heartbeats } else { &pools.writes };
        let mut connection = pool.acquire().await?;
        let heartbeat =
            query(self.queries.get("session_heartbeat")).bind(session.as_str()).bind(runtime::wall_ms());
        let Some(row) = heartbeat.fetch_optional(&mut *connection).await? else { return Ok(None) };
        let epoch = self.record_epoch(&row)?;
        let requests = query(self.queries.get("session_leader_requests")).bind(session.as_str());
        let rows = requests.fetch_all(&mut *connection).await?;
        rows.iter()
            .map(leader_request_of)
            .collect::<sqlx::Result<_>>()
            .map(|requests| Some((epoch, requests)))
    }

    async fn join_election(&self, candidacy: &Candidacy) -> sqlx::Result<JoinElectionResponse> {
        let (mut tx, key) = (self.begin_write().await?, &candidacy.election);
        let session = candidacy.session.as_str();
        if tx.transaction.one(query(self.queries.get("session_is_live")).bind(session)).await?.is_none() {
            tx.commit().await?;
            return Ok(JoinElectionResponse::SessionEnded);
        }
        let found = tx.transaction.one(of_key!(self, "election_slots", key).bind(session)).await?;
        // A candidate that requires no capabilities does not change what the other candidates require.
        let mut keep = false;
        if let Some(row) = found {
            let (slots, others): (u32, bool) = (row.try_get("slots")?, row.try_get("others")?);
            keep = others && candidacy.required_capabilities.is_empty();
            if slots != candidacy.slots && slots != 0 && others {
                tx.commit().await?;
                return Ok(JoinElectionResponse::SlotsDiffer { slots });
            }
        }
        let upsert = of_key!(self, "election_upsert", key)
            .bind(candidacy.slots)
            .bind(json(&candidacy.required_capabilities)?)
            .bind(tx.wall_ms)
            .bind(keep);
        tx.transaction.execute(upsert).await?;
        tx.transaction.execute(of_key!(self, "lease_create", key).bind(candidacy.slots)).await?;
        let join = of_key!(self, "candidate_join", key)
            .bind(session)
            .bind(&candidacy.name)
            .bind(candidacy.priority)
            .bind(candidacy.observer)
            .bind(json(&candidacy.capabilities)?)
            .bind(json(&candidacy.metadata)?)
            .bind(tx.wall_ms);
        tx.transaction.execute(join).await?;
        tx.notifications.push(Notification::ElectionChanged(key.clone()));
        tx.commit().await?;
        Ok(JoinElectionResponse::Joined)
    }

    async fn leave_election(&self, session: &SessionId, key: &ElectionKey) -> sqlx::Result<()> {
        let mut tx = self.begin_write().await?;
        let leave = of_key!(self, "candidate_leave", key).bind(session.as_str());
        if tx.transaction.execute(leave).await?.rows_affected() > 0 {
            tx.notifications.push(Notification::ElectionChanged(key.clone()));
        }
        tx.commit().await
    }

    async fn release_lease(&self, release: &ReleaseLeaseRequest) -> sqlx::Result<()> {
        let (mut tx, key) = (self.begin_write().await?, &release.election);
        if release.leave {
            let leave = of_key!(self, "candidate_leave", key).bind(release.session.as_str());
            tx.transaction.execute(leave).await?;
        }
        let free = of_key!(self, "lease_release", key)
            .bind(release.slot)
            .bind(number(release.token))
            .bind(release.session.as_str())
            .bind(release.successor.as_ref().map(SessionId::as_str))
            .bind(release.start_reason.as_str());
        if tx.transaction.execute(free).await?.rows_affected() > 0 {
            let clear =
                of_key!(self, "leader_request_delete", key).bind(release.slot).bind(number(release.token));
            tx.transaction.execute(clear).await?;
            let end = of_key!(self, "term_end", key)
                .bind(release.slot)
                .bind(number(release.token))
                .bind(tx.wall_ms)
                .bind("released");
            tx.transaction.execute(end).await?;
            tx.notifications.push(Notification::LeaseReleased {
                election: key.clone(),
                slot: release.slot,
                token: release.token,
                released_by: release.session.clone(),
                successor: release.successor.clone(),
                start_reason: release.start_reason,
            });
        }
        tx.commit().await
    }

    async fn put_leader_request(&self, request: &LeaderRequest) -> sqlx::Result<bool> {
        let mut tx = self.begin_write().await?;
        let find =
            of_key!(self, "lease_holder", request.election).bind(request.slot).bind(number(request.token));
        let row = tx.transaction.one(find).await?;
        let holder: Option<String> = row.map(|row| row.try_get(0)).transpose()?;
        if let Some(holder) = &holder {
            tx.put(request, holder).await?;
        }
        tx.commit().await?;
        Ok(holder.is_some())
    }

    async fn adopt_lease(&self, adopt: &AdoptLeaseRequest) -> sqlx::Result<bool> {
        let (mut tx, key) = (self.begin_write().await?, &adopt.election);
        tx.transaction.execute(of_key!(self, "lease_adopt_create", key).bind(adopt.slot)).await?;
        let wall_ms = tx.wall_ms;
        macro_rules! of_lease {
            ($name:literal) => {
                of_key!(self, $name, key)
                    .bind(adopt.slot)
                    .bind(number(adopt.token))
                    .bind(adopt.session.as_str())
                    .bind(&adopt.granted_by)
                    .bind(wall_ms)
            };
        }
        let adopted = tx.transaction.execute(of_lease!("lease_adopt")).await?.rows_affected() > 0;
        if adopted {
            tx.transaction.execute(of_lease!("lease_adopt_record")).await?;
        }
        tx.commit().await?;
        Ok(adopted)
    }

    /// Expire every session whose process is dead, and remove the files of dead processes. This also finds candidates that held no lease
    /// and processes that died before this one started.
    async fn expire_dead_sessions(&self) -> sqlx::Result<()> {
        let directory = &self.inner.directory;
        fifo::remove_unread(directory);
        // List the files first: a session creates its file before its row.
        let with_files = directory.sessions();
        let rows = query(self.queries.get("session_list")).fetch_all(&self.inner.pools.reads).await?;
        let live = rows.iter().map(|row| row.try_get(0)).collect::<sqlx::Result<Vec<String>>>()?;
        for session in with_files {
            if !live.iter().any(|id| id == session.as_str()) {
                directory.remove_if_abandoned(&session);
            } else if directory.lock_state(&session) == LockState::Dead {
                self.expire_session(&ExpireSessionRequest {
                    session,
                    epoch: self.last_epoch(),
                    heartbeat_count: None,
                })
                .await?;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl ElectionStore for SqliteStore {
    async fn open_session(&self, session: &OpenSessionRequest) -> Result<HeartbeatResponse, StoreError> {
        session.check()?;
        self.check_file()?;
        // A session that a server opens for a client has no lock, because it survives the server process.
        // Any other session takes its lock before its row appears: a row with a free lock means a dead process.
        let epoch = if session.owner.is_none() && !self.inner.session_locks.contains(&session.id) {
            let lock = self.inner.directory.lock(&session.id).await;
            let lock = lock
                .map_err(|error| error::io(self.inner.directory.path(), "locking a session file", &error))?;
            let Some(lock) = lock else { return Ok(HeartbeatResponse::SessionEnded) };
            // On an error the lock is dropped and its file removed. If the row was written nevertheless, the session has no
            // lock file and expires after its lease.
            let opened = self.open_session(session).await.explain(self.path(), "opening a session")?;
            if opened.is_some() {
                self.inner.session_locks.keep(&session.id, lock);
            }
            opened
        } else {
            self.open_session(session).await.explain(self.path(), "opening a session")?
        };
        let Some(epoch) = epoch else { return Ok(HeartbeatResponse::SessionEnded) };
        let store = self.clone();
        tokio::spawn(async move {
            if let Err(error) = store.expire_dead_sessions().await {
                tracing::debug!(%error, "removing dead sessions failed");
            }
        });
        Ok(HeartbeatResponse::Live { epoch, leader_requests: Vec::new() })
    }

    async fn heartbeat(&self, session: &SessionId) -> Result<HeartbeatResponse, StoreError> {
        self.check_file()?;
        let requests = self.heartbeat_session(session).await.explain(self.path(), "sending a heartbeat")?;
        Ok(match requests {
            Some((epoch, requests)) => HeartbeatResponse::Live { epoch, leader_requests: requests },
            None => {
                self.inner.session_locks.give_up(session);
                HeartbeatResponse::SessionEnded
            }
        })
    }

    async fn end_session(&self, session: &SessionId) -> Result<(), StoreError> {
        self.check_file()?;
        self.end_session(session).await.explain(self.path(), "ending a session")?;
        self.inner.session_locks.give_up(session);
        Ok(())
    }

    async fn join_election(&self, candidacy: &Candidacy) -> Result<JoinElectionResponse, StoreError> {
        self.check_file()?;
        self.join_election(candidacy).await.explain(self.path(), "joining an election")
    }

    async fn leave_election(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        self.check_file()?;
        self.leave_election(session, election).await.explain(self.path(), "leaving an election")
    }

    async fn observe(
        &self,
        session: &SessionId,
        scope: &ObserveScope,
    ) -> Result<ElectionsObservation, StoreError> {
        self.check_file()?;
        self.observation(session, scope).await.explain(self.path(), "observing elections")
    }

    async fn take_lease(&self, take: &TakeLeaseRequest) -> Result<Option<Token>, StoreError> {
        self.check_file()?;
        self.take_lease(take).await.explain(self.path(), "taking a lease")
    }

    async fn release_lease(&self, release: &ReleaseLeaseRequest) -> Result<(), StoreError> {
        self.check_file()?;
        self.release_lease(release).await.explain(self.path(), "releasing a lease")
    }

    async fn expire_session(&self, expire: &ExpireSessionRequest) -> Result<(), StoreError> {
        self.check_file()?;
        self.expire_session(expire).await.explain(self.path(), "expiring a session")
    }

    async fn request_leader(&self, request: &LeaderRequest) -> Result<bool, StoreError> {
        self.check_file()?;
        self.put_leader_request(request).await.explain(self.path(), "requesting a leader to release")
    }

    fn supports_adoption(&self) -> bool {
        true
    }

    async fn adopt_lease(&self, adopt: &AdoptLeaseRequest) -> Result<bool, StoreError> {
        self.check_file()?;
        self.adopt_lease(adopt).await.explain(self.path(), "adopting a lease")
    }

    fn watch_sessions(&self, sessions: &[SessionId]) {
        self.inner.watchers.watch(sessions);
    }

    fn kernel_lock(&self, session: &SessionId) -> Option<OwnedFd> {
        self.lock_fd(session)
    }

    fn notifications(&self) -> BoxNotificationSource {
        let id = format!("{:016x}{:016x}", runtime::random(), runtime::random());
        Box::new(fifo::FifoNotificationSource::new(&self.inner.directory, &id, self.inner.watchers.deaths()))
    }
}

fn leader_request_of(row: &sqlx::sqlite::SqliteRow) -> sqlx::Result<LeaderRequest> {
    let to = || row.try_get::<String, _>("successor").map(SessionId::from);
    let kind = match row.try_get("kind")? {
        "preempt" => LeaderRequestKind::Preempt(to()?),
        "transfer" => LeaderRequestKind::Transfer(to()?),
        "pause" => LeaderRequestKind::Pause,
        _ => LeaderRequestKind::Resign,
    };
    let token: i64 = row.try_get("token")?;
    Ok(LeaderRequest {
        election: election_of(row)?,
        slot: row.try_get("slot")?,
        token: Token::from_u64(token.cast_unsigned()),
        kind,
        requested_by: row.try_get("requested_by")?,
    })
}

fn json(value: &impl serde::Serialize) -> sqlx::Result<String> {
    serde_json::to_string(value).map_err(|error| decode_error("json", error))
}
