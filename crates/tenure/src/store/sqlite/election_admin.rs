//! Administration of elections, and the conversion of rows to views.

use std::collections::BTreeMap;

use async_trait::async_trait;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::port::{
    CandidateView, ElectionAdmin, ElectionView, ElectionsObservation, EpochBump, EpochView, Finding,
    FindingStatus, LeaderRequest, LeaderRequestKind, LeaseView, Notification, ObserveScope, Pause,
    SessionView, StartReason, StoreError, StoreGuarantees, Term,
};
use tenure_core::{ElectionKey, Name, SessionId, Token};

use super::SqliteStore;
use super::connection::{Explain, Transaction, decode_error, election_of, parsed, query};
use super::write_transaction::of_key;
use crate::store::memory::no_such_election;
use crate::store::migrations::SchemaMigrator;
use crate::store::schema;

/// The guarantees of the SQLite store.
pub const GUARANTEES: StoreGuarantees = StoreGuarantees {
    backend: "sqlite",
    at_most_one: "on this machine (kernel locks detect a dead leader)",
    netsplit: "not applicable (one machine, one file)",
    after_crash: "at once; after the lease if the process is stopped",
};

impl SqliteStore {
    /// Read what a session observes, in one snapshot.
    pub(super) async fn observation(
        &self,
        session: &SessionId,
        scope: &ObserveScope,
    ) -> sqlx::Result<ElectionsObservation> {
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let select = match scope {
            ObserveScope::Contested => query(self.queries.get("observe_contested")).bind(session.as_str()),
            ObserveScope::Own => query(self.queries.get("observe_candidacies")).bind(session.as_str()),
            ObserveScope::Listed(keys) => query(self.queries.get("observe_named")).bind(keys_json(keys)),
            ObserveScope::All => query(self.queries.get("observe_all")).bind(None::<&str>),
        };
        let row = transaction.one(query(self.queries.get("epoch_get"))).await?;
        let epoch = self.record_epoch(&row.ok_or(sqlx::Error::RowNotFound)?)?;
        let rows = transaction.all(select).await?;
        let elections = self.views(&mut transaction, &rows).await?;
        let rows = transaction
            .all(query(self.queries.get("observe_orphaned_leases")).bind(session.as_str()))
            .await?;
        let orphaned = |row: &SqliteRow| Ok((election_of(row)?, row.try_get("slot")?, token(row)?));
        let orphaned_leases = rows.iter().map(orphaned).collect::<sqlx::Result<_>>()?;
        transaction.commit().await?;
        Ok(ElectionsObservation { epoch, elections, orphaned_leases })
    }

    async fn list_elections(&self, namespace: Option<&Name>) -> sqlx::Result<Vec<ElectionView>> {
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let select = query(self.queries.get("observe_all")).bind(namespace.map(Name::as_str));
        let rows = transaction.all(select).await?;
        let views = self.views(&mut transaction, &rows).await?;
        transaction.commit().await?;
        Ok(views)
    }

    async fn get_election(&self, key: &ElectionKey) -> sqlx::Result<Option<ElectionView>> {
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let select = query(self.queries.get("observe_named")).bind(keys_json(std::slice::from_ref(key)));
        let rows = transaction.all(select).await?;
        let views = self.views(&mut transaction, &rows).await?;
        transaction.commit().await?;
        Ok(views.into_iter().next())
    }

    /// Add leases and candidates to the rows of elections. Keeps the order.
    async fn views(
        &self,
        transaction: &mut Transaction,
        rows: &[SqliteRow],
    ) -> sqlx::Result<Vec<ElectionView>> {
        let mut views = rows.iter().map(election_view).collect::<sqlx::Result<Vec<_>>>()?;
        if views.is_empty() {
            return Ok(views);
        }
        let keys = keys_json(views.iter().map(|view| &view.key));
        let leases = transaction.all(query(self.queries.get("observe_leases")).bind(&keys)).await?;
        let candidates = transaction.all(query(self.queries.get("observe_candidates")).bind(&keys)).await?;
        let index: BTreeMap<ElectionKey, usize> =
            views.iter().enumerate().map(|(index, view)| (view.key.clone(), index)).collect();
        for row in &leases {
            if let Some(index) = index.get(&election_of(row)?) {
                views[*index].leases.push(lease_view(row)?);
            }
        }
        for row in &candidates {
            if let Some(index) = index.get(&election_of(row)?) {
                views[*index].candidates.push(candidate_view(row)?);
            }
        }
        Ok(views)
    }

    async fn terms(&self, key: &ElectionKey, limit: u32) -> sqlx::Result<Vec<Term>> {
        let select = of_key!(self, "term_list", key).bind(limit);
        let rows = select.fetch_all(&self.inner.pools.reads).await?;
        rows.iter().map(term).collect()
    }

    async fn session_views(&self, which: Option<&[SessionId]>) -> sqlx::Result<Vec<SessionView>> {
        let select = match which {
            Some(ids) => query(self.queries.get("session_get")).bind(ids_json(ids)),
            None => query(self.queries.get("session_list")),
        };
        let rows = select.fetch_all(&self.inner.pools.reads).await?;
        rows.iter().map(session_view).collect()
    }

    /// Pause or resume an election. `None` if the election does not exist.
    async fn pause(&self, key: &ElectionKey, pause: Option<&Pause>) -> sqlx::Result<Option<bool>> {
        let mut tx = self.begin_write().await?;
        let found = tx.transaction.one(of_key!(self, "election_is_paused", key)).await?;
        let Some(row) = found else {
            tx.commit().await?;
            return Ok(None);
        };
        if row.try_get::<bool, _>(0)? == pause.is_some() {
            tx.commit().await?;
            return Ok(Some(false));
        }
        match pause {
            Some(pause) => {
                let update = of_key!(self, "election_pause", key);
                let update = update.bind(&pause.paused_by).bind(&pause.reason).bind(pause.paused_at_ms);
                tx.transaction.execute(update).await?;
                for row in tx.transaction.all(of_key!(self, "lease_list_held", key)).await? {
                    let (slot, token) = (row.try_get("slot")?, token(&row)?);
                    let ask = LeaderRequest {
                        election: key.clone(),
                        slot,
                        token,
                        kind: LeaderRequestKind::Pause,
                        requested_by: pause.paused_by.clone(),
                    };
                    tx.put(&ask, row.try_get("session")?).await?;
                }
            }
            None => {
                tx.transaction.execute(of_key!(self, "election_resume", key)).await?;
                tx.transaction.execute(of_key!(self, "leader_request_delete_pause", key)).await?;
            }
        }
        tx.notifications.push(Notification::ElectionChanged(key.clone()));
        tx.commit().await?;
        Ok(Some(true))
    }
}

#[async_trait]
impl ElectionAdmin for SqliteStore {
    fn guarantees(&self) -> StoreGuarantees {
        GUARANTEES
    }

    async fn identity(&self) -> Result<String, StoreError> {
        Ok(format!("sqlite {}", self.path().display()))
    }

    async fn epoch(&self) -> Result<Option<EpochView>, StoreError> {
        self.epoch_view().await.map(Some)
    }

    async fn bump_epoch(&self, bump: &EpochBump) -> Result<EpochView, StoreError> {
        self.begin_epoch(bump).await
    }

    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError> {
        self.check_file()?;
        self.list_elections(namespace).await.explain(self.path(), "listing elections")
    }

    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError> {
        self.check_file()?;
        self.get_election(key).await.explain(self.path(), "reading an election")
    }

    async fn term_history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError> {
        self.check_file()?;
        self.terms(key, limit).await.explain(self.path(), "reading the terms of an election")
    }

    async fn sessions(&self, which: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError> {
        self.check_file()?;
        self.session_views(which).await.explain(self.path(), "reading sessions")
    }

    async fn set_election_paused(
        &self,
        key: &ElectionKey,
        pause: Option<&Pause>,
    ) -> Result<bool, StoreError> {
        self.check_file()?;
        let changed = self.pause(key, pause).await.explain(self.path(), "pausing or resuming an election")?;
        changed.ok_or_else(|| no_such_election(key))
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, StoreError> {
        self.check_file()?;
        let file = Finding::new("file", self.path().display().to_string(), FindingStatus::Ok, "");
        let epoch = self.epoch_view().await?;
        let epoch =
            Finding::new("epoch", format!("{} ({})", epoch.epoch, epoch.reason), FindingStatus::Ok, "");
        let kernel = "held by each session; the death of a process is detected at once";
        let mut findings = vec![file, epoch, Finding::new("kernel lock", kernel, FindingStatus::Ok, "")];
        let exposed = self.exposed();
        if exposed.is_empty() {
            findings.push(Finding::new(
                "file modes",
                "only the owner can access the files",
                FindingStatus::Ok,
                "",
            ));
        }
        findings.extend(exposed.into_iter().map(|(path, mode)| {
            let found = format!("{} has mode {mode:03o}: other users can access it", path.display());
            let advice = format!("the file holds payloads and secrets; run chmod go= {}", path.display());
            Finding::new("file modes", found, FindingStatus::Warning, advice)
        }));
        findings.extend(schema::findings(&self.schema_status().await?));
        Ok(findings)
    }

    async fn remove_probe(&self, election: &Name, sessions: &[SessionId]) -> Result<(), StoreError> {
        self.check_file()?;
        let remove = async {
            let mut tx = self.begin_write().await?;
            let sessions = query(self.queries.get("probe_delete_sessions")).bind(ids_json(sessions));
            tx.transaction.execute(sessions).await?;
            for name in [
                "probe_delete_candidates",
                "probe_delete_leader_requests",
                "probe_delete_terms",
                "probe_delete_adopted_leases",
                "probe_delete_leases",
                "probe_delete_elections",
            ] {
                tx.transaction.execute(query(self.queries.get(name)).bind(election.as_str())).await?;
            }
            tx.commit().await
        };
        remove.await.explain(self.path(), "removing the rows of the probe")
    }
}

/// `[["namespace","name"],…]` for `json_each`.
fn keys_json<'a>(keys: impl IntoIterator<Item = &'a ElectionKey>) -> String {
    let pairs = keys.into_iter().map(|key| [key.namespace.as_str(), key.name.as_str()]);
    serde_json::Value::from_iter(pairs.map(|pair| serde_json::json!(pair))).to_string()
}

/// `["session",…]` for `json_each`.
fn ids_json(ids: &[SessionId]) -> String {
    serde_json::Value::from_iter(ids.iter().map(SessionId::as_str)).to_string()
}

fn election_view(row: &SqliteRow) -> sqlx::Result<ElectionView> {
    let paused = |at_ms: i64| -> sqlx::Result<Pause> {
        let text = |column| row.try_get::<Option<String>, _>(column).map(Option::unwrap_or_default);
        Ok(Pause { paused_by: text("paused_by")?, reason: text("paused_reason")?, paused_at_ms: at_ms })
    };
    Ok(ElectionView {
        key: ElectionKey::new(parsed(row, "namespace")?, parsed(row, "name")?),
        slots: row.try_get("slots")?,
        required_capabilities: json(row, "required_capabilities")?,
        paused: row.try_get::<Option<i64>, _>("paused_at_ms")?.map(paused).transpose()?,
        leases: Vec::new(),
        candidates: Vec::new(),
    })
}

fn lease_view(row: &SqliteRow) -> sqlx::Result<LeaseView> {
    let held = row.try_get::<Option<&str>, _>("session_id")?.is_some();
    Ok(LeaseView {
        slot: row.try_get("slot")?,
        token: token(row)?,
        holder: held.then(|| session_view(row)).transpose()?,
        reserved_for: row.try_get::<Option<String>, _>("reserved_for")?.map(SessionId::from),
        start_reason: StartReason::from_name(row.try_get("start_reason")?),
        granted_at_ms: row.try_get("granted_at_ms")?,
    })
}

fn candidate_view(row: &SqliteRow) -> sqlx::Result<CandidateView> {
    Ok(CandidateView {
        name: row.try_get("name")?,
        session: session_view(row)?,
        priority: row.try_get("priority")?,
        observer: row.try_get("observer")?,
        capabilities: json(row, "capabilities")?,
        metadata: json(row, "metadata")?,
        joined_at_ms: row.try_get("joined_at_ms")?,
    })
}

fn session_view(row: &SqliteRow) -> sqlx::Result<SessionView> {
    Ok(SessionView {
        id: SessionId::from_stored(row.try_get("session_id")?),
        name: row.try_get("session_name")?,
        heartbeat_count: row.try_get::<i64, _>("heartbeat_count")?.cast_unsigned(),
        lease_ms: row.try_get::<i64, _>("lease_ms")?.cast_unsigned(),
        live: row.try_get("live")?,
        heartbeat_at_ms: row.try_get("heartbeat_at_ms")?,
        owner: row.try_get("owner")?,
    })
}

fn term(row: &SqliteRow) -> sqlx::Result<Term> {
    Ok(Term {
        slot: row.try_get("slot")?,
        token: token(row)?,
        candidate_name: row.try_get("candidate_name")?,
        session: SessionId::from_stored(row.try_get("session")?),
        start_reason: StartReason::from_name(row.try_get("start_reason")?),
        started_at_ms: row.try_get("started_at_ms")?,
        ended_at_ms: row.try_get("ended_at_ms")?,
        end_reason: row.try_get("end_reason")?,
    })
}

fn token(row: &SqliteRow) -> sqlx::Result<Token> {
    row.try_get::<i64, _>("token").map(|token| Token::from_u64(token.cast_unsigned()))
}

pub(super) fn json<T: serde::de::DeserializeOwned>(row: &SqliteRow, column: &str) -> sqlx::Result<T> {
    serde_json::from_str(row.try_get(column)?).map_err(|error| decode_error(column, error))
}
