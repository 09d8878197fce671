//! Operations of operators on elections and the store.

use async_trait::async_trait;
use tenure_core::port::{
    ElectionAdmin, ElectionView, EpochBump, EpochView, Finding, Notification, Pause, SessionView, StoreError,
    StoreGuarantees, Term,
};
use tenure_core::{ElectionKey, Name, SessionId};

use super::error::unexpected_response;
use super::message::Message;
use super::store::{json, key, notify_payload, number};
use super::value::Value;
use super::{PostgresStore, from_json, get};
use crate::store::memory::no_such_election;

/// The guarantees of this store.
pub const GUARANTEES: StoreGuarantees = StoreGuarantees {
    backend: "PostgreSQL",
    at_most_one: "yes, for clock rates within 1.2×; after a failover, if the old primary is gone",
    netsplit: "the side without the database has none",
    after_crash: "a lease; mode `connection`: at once",
};

#[async_trait]
impl ElectionAdmin for PostgresStore {
    fn guarantees(&self) -> StoreGuarantees {
        GUARANTEES
    }

    async fn identity(&self) -> Result<String, StoreError> {
        let rows = self.call("store_identity", &[]).await?;
        let row = rows.first().ok_or_else(|| unexpected_response("the identity", "no row"))?;
        get(row, "identity")
    }

    async fn epoch(&self) -> Result<Option<EpochView>, StoreError> {
        let rows = self.call("epoch_get", &[]).await?;
        let row = rows.first().ok_or_else(|| unexpected_response("the epoch", "no row"))?;
        let epoch = number(get::<i64>(row, "epoch")?, "the epoch")?;
        Ok(Some(EpochView::new(
            epoch,
            get(row, "changed_at_ms")?,
            get(row, "reason")?,
            get(row, "identity")?,
        )))
    }

    async fn bump_epoch(&self, bump: &EpochBump) -> Result<EpochView, StoreError> {
        let stored = self.epoch().await?.map_or(1, |view| view.epoch);
        // The server computes its own lower bound, by its own clock.
        let wanted = bump.after(stored, 0)?;
        self.call("epoch_bump", &[wanted.into(), bump.reason.as_str().into()]).await?;
        self.epoch().await?.ok_or_else(|| unexpected_response("the epoch", "no row"))
    }

    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError> {
        Ok(self.observe_scope("all", "", &[], namespace.map(Name::as_str)).await?.elections)
    }

    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError> {
        Ok(self.observe_scope("listed", "", std::slice::from_ref(key), None).await?.elections.pop())
    }

    async fn term_history(&self, election: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError> {
        let [namespace, name] = key(election);
        let rows = self.call("term_list", &[namespace, name, limit.into()]).await?;
        rows.iter().map(|row| from_json(row, "term")).collect()
    }

    async fn sessions(&self, ids: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError> {
        let rows = match ids {
            Some(ids) => self.call("session_get", &[json(ids)?]).await?,
            None => self.call("session_list", &[]).await?,
        };
        rows.iter().map(|row| from_json(row, "session")).collect()
    }

    async fn set_election_paused(
        &self,
        election: &ElectionKey,
        pause: Option<&Pause>,
    ) -> Result<bool, StoreError> {
        let payload = notify_payload(&Notification::ElectionChanged(election.clone()));
        let message = Message::fresh(&self.queries).then("election_lock", &key(election))?;
        let [namespace, name] = key(election);
        let message = match pause {
            Some(Pause { paused_by, reason, paused_at_ms }) => {
                let (paused_by, reason) = (paused_by.as_str().into(), reason.as_str().into());
                let values =
                    [namespace, name, paused_by, reason, Value::Int(*paused_at_ms), payload.as_str().into()];
                message.then("election_pause", &values)?
            }
            None => message.then("election_resume", &[namespace, name, payload.as_str().into()])?,
        };
        let rows = self.shared.calls.run(message).await?;
        let row = rows.first().ok_or_else(|| unexpected_response("a pause", "no row"))?;
        if get(row, "known")? { get(row, "changed") } else { Err(no_such_election(election)) }
    }

    async fn clock_seconds(&self) -> Result<Option<f64>, StoreError> {
        self.server_seconds().await.map(Some)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, StoreError> {
        self.findings().await
    }

    async fn remove_probe(&self, election: &Name, sessions: &[SessionId]) -> Result<(), StoreError> {
        let sessions: Vec<&str> = sessions.iter().map(SessionId::as_str).collect();
        self.call("probe_delete", &[election.as_str().into(), json(&sessions)?]).await.map(drop)
    }
}
