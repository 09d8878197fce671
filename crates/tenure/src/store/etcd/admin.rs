//! Administrative operations on an etcd store.

use async_trait::async_trait;
use tenure_core::port::{
    ElectionAdmin, ElectionView, ErrorKind, Finding, FindingStatus, Pause, SessionView, StoreError,
    StoreGuarantees, Term,
};
use tenure_core::{ElectionKey, Name, SessionId};

use super::EtcdStore;
use super::read::ReadScope;
use crate::runtime;

/// Guarantees of the etcd store.
pub const GUARANTEES: StoreGuarantees = StoreGuarantees {
    backend: "etcd",
    at_most_one: "yes, for clock rates within 1.2x",
    netsplit: "the minority side has no leader",
    after_crash: "a lease",
};

#[async_trait]
impl ElectionAdmin for EtcdStore {
    fn guarantees(&self) -> StoreGuarantees {
        GUARANTEES
    }

    async fn identity(&self) -> Result<String, StoreError> {
        let cluster = match self.cache.cluster() {
            Some(cluster) => cluster,
            None => self
                .read(ReadScope::Listed(&[]), &[])
                .await
                .map(|_| self.cache.cluster().unwrap_or_default())?,
        };
        Ok(format!("etcd {cluster:016x}"))
    }

    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError> {
        Ok(self.read(ReadScope::All, &[]).await?.to_model(runtime::wall_ms()).elections(namespace))
    }

    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError> {
        let reading = self.read(ReadScope::Listed(std::slice::from_ref(key)), &[]).await?;
        Ok(reading.to_model(runtime::wall_ms()).election(key))
    }

    async fn term_history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError> {
        let reading = self.read(ReadScope::Listed(std::slice::from_ref(key)), &[]).await?;
        Ok(reading.to_model(runtime::wall_ms()).term_history(key, limit))
    }

    async fn set_election_paused(
        &self,
        key: &ElectionKey,
        pause: Option<&Pause>,
    ) -> Result<bool, StoreError> {
        let keys = [key.clone()];
        let (changed, _) = self
            .change(&keys, None, &[], |elections, _, _| (elections.set_election_paused(key, pause), None))
            .await?;
        changed.ok_or_else(|| {
            StoreError::new(
                ErrorKind::Request,
                format!("election {key} does not exist; list elections with `tenure elections list`"),
            )
        })
    }

    async fn sessions(&self, which: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError> {
        let Some(ids) = which else { return self.live_sessions().await };
        let mut sessions =
            self.read(ReadScope::Listed(&[]), ids).await?.to_model(runtime::wall_ms()).sessions(which);
        if sessions.len() < ids.len() {
            sessions.extend(self.ended().await?.into_iter().filter(|session| ids.contains(&session.id)));
            sessions.sort_by(|a, b| a.id.cmp(&b.id));
        }
        Ok(sessions)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, StoreError> {
        let mut findings = Vec::new();
        let statuses = self.gateway.statuses().await;
        for (address, status) in &statuses {
            findings.push(match status {
                Ok(status) if status.leader == 0 => Finding::new(
                    "member",
                    address,
                    FindingStatus::Error,
                    "the member knows no etcd leader: it is disconnected, or most members are down",
                ),
                Ok(status) => {
                    let value = format!("{address}: etcd {}, {} MiB", status.version, status.db_size >> 20);
                    Finding::new("member", value, FindingStatus::Ok, "")
                }
                Err(error) => Finding::new("member", address, FindingStatus::Error, error.message.clone()),
            });
        }
        if statuses.len() < 3 {
            let advice = "if this member fails, the store is unreachable; list all members: etcd://A:2379,B:2379,C:2379";
            findings.push(Finding::new(
                "members",
                statuses.len().to_string(),
                FindingStatus::Warning,
                advice,
            ));
        }
        let advice = "every heartbeat adds a revision; start etcd with --auto-compaction-retention=1h, or its database grows without bound";
        findings.push(Finding::new("compaction", "unknown to clients", FindingStatus::Warning, advice));
        Ok(findings)
    }
}
