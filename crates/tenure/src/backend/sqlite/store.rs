//! The path of the machine: each call one transaction, as [`Book`](tenure_core::book::Book) does it.

use std::os::fd::OwnedFd;

use async_trait::async_trait;
use sqlx::Row;
use tenure_core::port::{
    Adopt, Ask, AskKind, Candidacy, Expire, Joined, NewSession, Observation, Pulse, Release, Scope, Store,
    StoreError, Take, Takeover, Wake, Wakes,
};
use tenure_core::{ElectionKey, SessionId, Token};

use super::change::{number, of_key};
use super::connection::{Explain, broken, election_of, query};
use super::lock::Life;
use super::{Sqlite, error, wake};
use crate::runtime;

/// How long a session that is over is remembered, for people.
const REMEMBERED_MS: i64 = 24 * 60 * 60 * 1000;

impl Sqlite {
    /// The epoch, if there was no session of this id.
    async fn open_session(&self, session: &NewSession) -> sqlx::Result<Option<u32>> {
        self.verify_epoch().await?;
        let mut change = self.change().await?;
        let takeover = match session.takeover {
            Takeover::Lease => "lease",
            Takeover::Connection => "connection",
        };
        let insert = query(self.queries.get("session_open"))
            .bind(session.id.as_str())
            .bind(&session.name)
            .bind(i64::try_from(session.lease.as_millis()).unwrap_or(i64::MAX))
            .bind(takeover)
            .bind(change.wall_ms)
            .bind(session.owner.as_deref());
        let opened = change.transaction.execute(insert).await?.rows_affected() > 0;
        let prune = query(self.queries.get("session_prune")).bind(change.wall_ms - REMEMBERED_MS);
        change.transaction.execute(prune).await?;
        let note = change.transaction.one(query(self.queries.get("epoch_note"))).await?;
        let note = note.ok_or(sqlx::Error::RowNotFound)?;
        change.commit().await?;
        let epoch = self.saw_epoch(&note)?;
        self.mark_epoch(note.try_get("writes")?);
        Ok(opened.then_some(epoch))
    }

    async fn beat_session(&self, session: &SessionId) -> sqlx::Result<Option<(u32, Vec<Ask>)>> {
        self.note_epoch_now_and_then().await?;
        // Two statements, each a transaction of its own: an ask that arrives between them is an ask that arrived.
        // One that does not die with this machine must not be missed for a beat that it was told counts.
        let pools = &self.inner.pools;
        let pool = if self.inner.held.contains(session) { &pools.beats } else { &pools.writes };
        let mut connection = pool.acquire().await?;
        let beat = query(self.queries.get("session_beat")).bind(session.as_str()).bind(runtime::wall_ms());
        let Some(row) = beat.fetch_optional(&mut *connection).await? else { return Ok(None) };
        let epoch = self.saw_epoch(&row)?;
        let asks = query(self.queries.get("session_asks")).bind(session.as_str());
        let rows = asks.fetch_all(&mut *connection).await?;
        rows.iter().map(ask_of).collect::<sqlx::Result<_>>().map(|asks| Some((epoch, asks)))
    }

    async fn join_election(&self, candidacy: &Candidacy) -> sqlx::Result<Joined> {
        let (mut change, key) = (self.change().await?, &candidacy.election);
        let session = candidacy.session.as_str();
        if change.transaction.one(query(self.queries.get("session_live")).bind(session)).await?.is_none() {
            change.commit().await?;
            return Ok(Joined::Gone);
        }
        let found = change.transaction.one(of_key!(self, "election_slots", key).bind(session)).await?;
        // Who requires nothing leaves what others require as it is.
        let mut keep = false;
        if let Some(row) = found {
            let (slots, others): (u32, bool) = (row.try_get("slots")?, row.try_get("others")?);
            keep = others && candidacy.requires.is_empty();
            if slots != candidacy.slots && slots != 0 && others {
                change.commit().await?;
                return Ok(Joined::SlotsDiffer { slots });
            }
        }
        let upsert = of_key!(self, "election_upsert", key)
            .bind(candidacy.slots)
            .bind(json(&candidacy.requires)?)
            .bind(change.wall_ms)
            .bind(keep);
        change.transaction.execute(upsert).await?;
        change.transaction.execute(of_key!(self, "lease_make", key).bind(candidacy.slots)).await?;
        let join = of_key!(self, "candidate_join", key)
            .bind(session)
            .bind(&candidacy.id)
            .bind(candidacy.priority)
            .bind(candidacy.observer)
            .bind(json(&candidacy.capabilities)?)
            .bind(json(&candidacy.metadata)?)
            .bind(change.wall_ms);
        change.transaction.execute(join).await?;
        change.wakes.push(Wake::Changed(key.clone()));
        change.commit().await?;
        Ok(Joined::Standing)
    }

    async fn leave_election(&self, session: &SessionId, key: &ElectionKey) -> sqlx::Result<()> {
        let mut change = self.change().await?;
        let leave = of_key!(self, "candidate_leave", key).bind(session.as_str());
        if change.transaction.execute(leave).await?.rows_affected() > 0 {
            change.wakes.push(Wake::Changed(key.clone()));
        }
        change.commit().await
    }

    async fn release_lease(&self, release: &Release) -> sqlx::Result<()> {
        let (mut change, key) = (self.change().await?, &release.election);
        if release.leave {
            let leave = of_key!(self, "candidate_leave", key).bind(release.session.as_str());
            change.transaction.execute(leave).await?;
        }
        let free = of_key!(self, "lease_release", key)
            .bind(release.slot)
            .bind(number(release.token))
            .bind(release.session.as_str())
            .bind(release.successor.as_ref().map(SessionId::as_str))
            .bind(release.via.as_str());
        if change.transaction.execute(free).await?.rows_affected() > 0 {
            let clear = of_key!(self, "request_clear", key).bind(release.slot).bind(number(release.token));
            change.transaction.execute(clear).await?;
            let end = of_key!(self, "term_end", key)
                .bind(release.slot)
                .bind(number(release.token))
                .bind(change.wall_ms)
                .bind("released");
            change.transaction.execute(end).await?;
            change.wakes.push(Wake::Released {
                election: key.clone(),
                slot: release.slot,
                token: release.token,
                by: release.session.clone(),
                successor: release.successor.clone(),
                via: release.via,
            });
        }
        change.commit().await
    }

    async fn ask_holder(&self, ask: &Ask) -> sqlx::Result<bool> {
        let mut change = self.change().await?;
        let find = of_key!(self, "lease_holder", ask.election).bind(ask.slot).bind(number(ask.token));
        let row = change.transaction.one(find).await?;
        let holder: Option<String> = row.map(|row| row.try_get(0)).transpose()?;
        if let Some(holder) = &holder {
            change.put(ask, holder).await?;
        }
        change.commit().await?;
        Ok(holder.is_some())
    }

    async fn adopt_lease(&self, adopt: &Adopt) -> sqlx::Result<bool> {
        let (mut change, key) = (self.change().await?, &adopt.election);
        change.transaction.execute(of_key!(self, "lease_adopt_make", key).bind(adopt.slot)).await?;
        let wall_ms = change.wall_ms;
        macro_rules! of_lease {
            ($name:literal) => {
                of_key!(self, $name, key)
                    .bind(adopt.slot)
                    .bind(number(adopt.token))
                    .bind(adopt.session.as_str())
                    .bind(&adopt.by)
                    .bind(wall_ms)
            };
        }
        let adopted = change.transaction.execute(of_lease!("lease_adopt")).await?.rows_affected() > 0;
        if adopted {
            change.transaction.execute(of_lease!("lease_adopt_remember")).await?;
        }
        change.commit().await?;
        Ok(adopted)
    }

    /// Expires every session whose process is dead, and removes what dead processes left behind in the folder. Death
    /// needs no watcher to be noticed then: not that of a candidate that held nothing, nor one before a restart.
    async fn sweep(&self) -> sqlx::Result<()> {
        let folder = &self.inner.folder;
        wake::sweep(folder);
        // In this order: a session has its file before it has its row.
        let with_files = folder.sessions();
        let rows = query(self.queries.get("session_list")).fetch_all(&self.inner.pools.reads).await?;
        let live = rows.iter().map(|row| row.try_get(0)).collect::<sqlx::Result<Vec<String>>>()?;
        for session in with_files {
            if !live.iter().any(|id| id == session.as_str()) {
                folder.remove_if_abandoned(&session);
            } else if folder.life(&session) == Life::Dead {
                self.expire_session(&Expire { session, epoch: self.last_epoch(), beat: None }).await?;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Store for Sqlite {
    async fn open(&self, session: &NewSession) -> Result<Pulse, StoreError> {
        session.check()?;
        self.in_place()?;
        // A session that a server opens for somebody has no lock at all: the end of this process says nothing about it.
        // Otherwise the lock comes first: a row whose lock can be had is a dead session's.
        let epoch = if session.owner.is_none() && !self.inner.held.contains(&session.id) {
            let lock = self.inner.folder.lock(&session.id).await;
            let lock = lock
                .map_err(|error| error::io(self.inner.folder.path(), "locking a session's file", &error))?;
            let Some(lock) = lock else { return Ok(Pulse::Gone) };
            // Without an answer the lock is given up, and its file removed: if the row is there after all, nobody can
            // tell whether the process lives, and it is waited out.
            let opened = self.open_session(session).await.explain(self.path(), "opening a session")?;
            if opened.is_some() {
                self.inner.held.keep(&session.id, lock);
            }
            opened
        } else {
            self.open_session(session).await.explain(self.path(), "opening a session")?
        };
        let Some(epoch) = epoch else { return Ok(Pulse::Gone) };
        let store = self.clone();
        tokio::spawn(async move {
            if let Err(error) = store.sweep().await {
                tracing::debug!(%error, "could not clear away dead sessions");
            }
        });
        Ok(Pulse::Alive { epoch, asks: Vec::new() })
    }

    async fn beat(&self, session: &SessionId) -> Result<Pulse, StoreError> {
        self.in_place()?;
        let asks = self.beat_session(session).await.explain(self.path(), "a beat")?;
        Ok(match asks {
            Some((epoch, asks)) => Pulse::Alive { epoch, asks },
            None => {
                self.inner.held.give_up(session);
                Pulse::Gone
            }
        })
    }

    async fn end(&self, session: &SessionId) -> Result<(), StoreError> {
        self.in_place()?;
        self.end_session(session).await.explain(self.path(), "ending a session")?;
        self.inner.held.give_up(session);
        Ok(())
    }

    async fn join(&self, candidacy: &Candidacy) -> Result<Joined, StoreError> {
        self.in_place()?;
        self.join_election(candidacy).await.explain(self.path(), "joining an election")
    }

    async fn leave(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        self.in_place()?;
        self.leave_election(session, election).await.explain(self.path(), "leaving an election")
    }

    async fn observe(&self, session: &SessionId, scope: &Scope) -> Result<Observation, StoreError> {
        self.in_place()?;
        self.observation(session, scope).await.explain(self.path(), "looking at elections")
    }

    async fn take(&self, take: &Take) -> Result<Option<Token>, StoreError> {
        self.in_place()?;
        self.take_lease(take).await.explain(self.path(), "taking a lease")
    }

    async fn release(&self, release: &Release) -> Result<(), StoreError> {
        self.in_place()?;
        self.release_lease(release).await.explain(self.path(), "releasing a lease")
    }

    async fn expire(&self, expire: &Expire) -> Result<(), StoreError> {
        self.in_place()?;
        self.expire_session(expire).await.explain(self.path(), "expiring a session")
    }

    async fn ask(&self, ask: &Ask) -> Result<bool, StoreError> {
        self.in_place()?;
        self.ask_holder(ask).await.explain(self.path(), "asking a holder")
    }

    fn adopts(&self) -> bool {
        true
    }

    async fn adopt(&self, adopt: &Adopt) -> Result<bool, StoreError> {
        self.in_place()?;
        self.adopt_lease(adopt).await.explain(self.path(), "holding a lease that was granted elsewhere")
    }

    fn watch(&self, sessions: &[SessionId]) {
        self.inner.watchers.watch(sessions);
    }

    fn kernel_lock(&self, session: &SessionId) -> Option<OwnedFd> {
        self.lock_fd(session)
    }

    fn wakes(&self) -> Wakes {
        let id = format!("{:016x}{:016x}", runtime::random(), runtime::random());
        Box::new(wake::Ear::new(&self.inner.folder, &id, self.inner.watchers.deaths()))
    }
}

fn ask_of(row: &sqlx::sqlite::SqliteRow) -> sqlx::Result<Ask> {
    let to = || row.try_get::<String, _>("successor").map(SessionId::from);
    let kind = match row.try_get("kind")? {
        "preempt" => AskKind::Preempt(to()?),
        "transfer" => AskKind::Transfer(to()?),
        "pause" => AskKind::Pause,
        _ => AskKind::Resign,
    };
    let token: i64 = row.try_get("token")?;
    Ok(Ask {
        election: election_of(row)?,
        slot: row.try_get("slot")?,
        token: Token::from_u64(token.cast_unsigned()),
        kind,
        by: row.try_get("asked_by")?,
    })
}

fn json(value: &impl serde::Serialize) -> sqlx::Result<String> {
    serde_json::to_string(value).map_err(|error| broken("json", error))
}
