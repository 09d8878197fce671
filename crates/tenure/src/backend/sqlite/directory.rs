//! The path of people, and how rows become views.

use std::collections::BTreeMap;

use async_trait::async_trait;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::port::{
    Ask, AskKind, CandidateView, Directory, ElectionView, EpochBump, EpochView, Finding, LeaseView,
    Observation, Pause, Promises, Scope, SessionView, StoreError, Term, Verdict, Via, Wake,
};
use tenure_core::{ElectionKey, Name, SessionId, Token};

use super::Sqlite;
use super::change::of_key;
use super::connection::{Explain, Transaction, broken, election_of, parsed, query};
use crate::backend::memory::no_such_election;
use crate::backend::migrations::Migrate;
use crate::backend::schema;

/// What it promises.
pub const PROMISES: Promises = Promises {
    backend: "sqlite",
    at_most_one: "on this machine (kernel lock: a dead holder is known dead)",
    netsplit: "none can happen: one machine, one file",
    after_crash: "at once; a stopped process is waited out for its lease",
};

impl Sqlite {
    /// What a session sees in one snapshot.
    pub(super) async fn observation(&self, session: &SessionId, scope: &Scope) -> sqlx::Result<Observation> {
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let select = match scope {
            Scope::Contested => query(self.queries.get("observe_contested")).bind(session.as_str()),
            Scope::Standing => query(self.queries.get("observe_standing")).bind(session.as_str()),
            Scope::Only(keys) => query(self.queries.get("observe_only")).bind(keys_json(keys)),
            Scope::All => query(self.queries.get("observe_all")).bind(None::<&str>),
        };
        let row = transaction.one(query(self.queries.get("epoch_read"))).await?;
        let epoch = self.saw_epoch(&row.ok_or(sqlx::Error::RowNotFound)?)?;
        let rows = transaction.all(select).await?;
        let elections = self.views(&mut transaction, &rows).await?;
        let strays =
            transaction.all(query(self.queries.get("observe_strays")).bind(session.as_str())).await?;
        let stray = |row: &SqliteRow| Ok((election_of(row)?, row.try_get("slot")?, token(row)?));
        let strays = strays.iter().map(stray).collect::<sqlx::Result<_>>()?;
        transaction.commit().await?;
        Ok(Observation { epoch, elections, strays })
    }

    async fn list(&self, namespace: Option<&Name>) -> sqlx::Result<Vec<ElectionView>> {
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let select = query(self.queries.get("observe_all")).bind(namespace.map(Name::as_str));
        let rows = transaction.all(select).await?;
        let views = self.views(&mut transaction, &rows).await?;
        transaction.commit().await?;
        Ok(views)
    }

    async fn only(&self, key: &ElectionKey) -> sqlx::Result<Option<ElectionView>> {
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let select = query(self.queries.get("observe_only")).bind(keys_json(std::slice::from_ref(key)));
        let rows = transaction.all(select).await?;
        let views = self.views(&mut transaction, &rows).await?;
        transaction.commit().await?;
        Ok(views.into_iter().next())
    }

    /// Completes the rows of some elections, in their order.
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
        let place: BTreeMap<ElectionKey, usize> =
            views.iter().enumerate().map(|(place, view)| (view.key.clone(), place)).collect();
        for row in &leases {
            if let Some(place) = place.get(&election_of(row)?) {
                views[*place].leases.push(lease_view(row)?);
            }
        }
        for row in &candidates {
            if let Some(place) = place.get(&election_of(row)?) {
                views[*place].candidates.push(candidate_view(row)?);
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
            Some(ids) => query(self.queries.get("session_show")).bind(ids_json(ids)),
            None => query(self.queries.get("session_list")),
        };
        let rows = select.fetch_all(&self.inner.pools.reads).await?;
        rows.iter().map(session_view).collect()
    }

    /// `None` if there is no such election.
    async fn pause(&self, key: &ElectionKey, pause: Option<&Pause>) -> sqlx::Result<Option<bool>> {
        let mut change = self.change().await?;
        let found = change.transaction.one(of_key!(self, "election_paused", key)).await?;
        let Some(row) = found else {
            change.commit().await?;
            return Ok(None);
        };
        if row.try_get::<bool, _>(0)? == pause.is_some() {
            change.commit().await?;
            return Ok(Some(false));
        }
        match pause {
            Some(pause) => {
                let update = of_key!(self, "election_pause", key);
                let update = update.bind(&pause.by).bind(&pause.reason).bind(pause.at_ms);
                change.transaction.execute(update).await?;
                for row in change.transaction.all(of_key!(self, "lease_held", key)).await? {
                    let (slot, token) = (row.try_get("slot")?, token(&row)?);
                    let ask = Ask {
                        election: key.clone(),
                        slot,
                        token,
                        kind: AskKind::Pause,
                        by: pause.by.clone(),
                    };
                    change.put(&ask, row.try_get("session")?).await?;
                }
            }
            None => {
                change.transaction.execute(of_key!(self, "election_resume", key)).await?;
                change.transaction.execute(of_key!(self, "request_clear_pause", key)).await?;
            }
        }
        change.wakes.push(Wake::Changed(key.clone()));
        change.commit().await?;
        Ok(Some(true))
    }
}

#[async_trait]
impl Directory for Sqlite {
    fn promises(&self) -> Promises {
        PROMISES
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
        self.in_place()?;
        self.list(namespace).await.explain(self.path(), "listing elections")
    }

    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError> {
        self.in_place()?;
        self.only(key).await.explain(self.path(), "looking at an election")
    }

    async fn history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError> {
        self.in_place()?;
        self.terms(key, limit).await.explain(self.path(), "reading the terms of an election")
    }

    async fn sessions(&self, which: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError> {
        self.in_place()?;
        self.session_views(which).await.explain(self.path(), "reading sessions")
    }

    async fn set_paused(&self, key: &ElectionKey, pause: Option<&Pause>) -> Result<bool, StoreError> {
        self.in_place()?;
        let changed = self.pause(key, pause).await.explain(self.path(), "pausing or resuming an election")?;
        changed.ok_or_else(|| no_such_election(key))
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        self.in_place()?;
        let file = Finding::new("file", self.path().display().to_string(), Verdict::Good, "");
        let epoch = self.epoch_view().await?;
        let epoch = Finding::new("epoch", format!("{} ({})", epoch.epoch, epoch.reason), Verdict::Good, "");
        let kernel = "held by each session; a dead process is known dead at once";
        let mut findings = vec![file, epoch, Finding::new("kernel lock", kernel, Verdict::Good, "")];
        let exposed = self.exposed();
        if exposed.is_empty() {
            findings.push(Finding::new(
                "file modes",
                "only their owner may use the files",
                Verdict::Good,
                "",
            ));
        }
        findings.extend(exposed.into_iter().map(|(path, mode)| {
            let found = format!("{} has mode {mode:03o}: other users may use it", path.display());
            let advice = format!("it holds payloads and secrets: chmod go= {}", path.display());
            Finding::new("file modes", found, Verdict::Fair, advice)
        }));
        findings.extend(schema::findings(&self.schema_status().await?));
        Ok(findings)
    }

    async fn remove_probe(&self, election: &Name, sessions: &[SessionId]) -> Result<(), StoreError> {
        self.in_place()?;
        let remove = async {
            let mut change = self.change().await?;
            let sessions = query(self.queries.get("probe_sessions")).bind(ids_json(sessions));
            change.transaction.execute(sessions).await?;
            for name in [
                "probe_candidates",
                "probe_requests",
                "probe_terms",
                "probe_adoptions",
                "probe_leases",
                "probe_elections",
            ] {
                change.transaction.execute(query(self.queries.get(name)).bind(election.as_str())).await?;
            }
            change.commit().await
        };
        remove.await.explain(self.path(), "removing a probe")
    }
}

/// `[["namespace","name"],…]`, which `json_each` turns into rows.
fn keys_json<'a>(keys: impl IntoIterator<Item = &'a ElectionKey>) -> String {
    let pairs = keys.into_iter().map(|key| [key.namespace.as_str(), key.name.as_str()]);
    serde_json::Value::from_iter(pairs.map(|pair| serde_json::json!(pair))).to_string()
}

/// `["session",…]`, likewise.
fn ids_json(ids: &[SessionId]) -> String {
    serde_json::Value::from_iter(ids.iter().map(SessionId::as_str)).to_string()
}

fn election_view(row: &SqliteRow) -> sqlx::Result<ElectionView> {
    let paused = |at_ms: i64| -> sqlx::Result<Pause> {
        let text = |column| row.try_get::<Option<String>, _>(column).map(Option::unwrap_or_default);
        Ok(Pause { by: text("paused_by")?, reason: text("paused_reason")?, at_ms })
    };
    Ok(ElectionView {
        key: ElectionKey::new(parsed(row, "namespace")?, parsed(row, "name")?),
        slots: row.try_get("slots")?,
        requires: json(row, "requires")?,
        paused: row.try_get::<Option<i64>, _>("paused_at")?.map(paused).transpose()?,
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
        reserved: row.try_get::<Option<String>, _>("reserved")?.map(SessionId::from),
        via: Via::from_word(row.try_get("via")?),
        granted_at_ms: row.try_get("granted_at")?,
    })
}

fn candidate_view(row: &SqliteRow) -> sqlx::Result<CandidateView> {
    Ok(CandidateView {
        id: row.try_get("id")?,
        session: session_view(row)?,
        priority: row.try_get("priority")?,
        observer: row.try_get("observer")?,
        capabilities: json(row, "capabilities")?,
        metadata: json(row, "metadata")?,
        joined_at_ms: row.try_get("joined_at")?,
    })
}

fn session_view(row: &SqliteRow) -> sqlx::Result<SessionView> {
    Ok(SessionView {
        id: SessionId::from_stored(row.try_get("session_id")?),
        name: row.try_get("session_name")?,
        beat: row.try_get::<i64, _>("beat")?.cast_unsigned(),
        lease_ms: row.try_get::<i64, _>("lease_ms")?.cast_unsigned(),
        live: row.try_get("live")?,
        beat_at_ms: row.try_get("beat_at")?,
        owner: row.try_get("owner")?,
    })
}

fn term(row: &SqliteRow) -> sqlx::Result<Term> {
    Ok(Term {
        slot: row.try_get("slot")?,
        token: token(row)?,
        id: row.try_get("id")?,
        session: SessionId::from_stored(row.try_get("session")?),
        via: Via::from_word(row.try_get("via")?),
        began_at_ms: row.try_get("began_at")?,
        ended_at_ms: row.try_get("ended_at")?,
        end: row.try_get("end_reason")?,
    })
}

fn token(row: &SqliteRow) -> sqlx::Result<Token> {
    row.try_get::<i64, _>("token").map(|token| Token::from_u64(token.cast_unsigned()))
}

pub(super) fn json<T: serde::de::DeserializeOwned>(row: &SqliteRow, column: &str) -> sqlx::Result<T> {
    serde_json::from_str(row.try_get(column)?).map_err(|error| broken(column, error))
}
