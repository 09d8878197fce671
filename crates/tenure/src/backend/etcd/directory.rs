//! The path of people.

use async_trait::async_trait;
use tenure_core::port::{
    Directory, ElectionView, Finding, Pause, Promises, SessionView, StoreError, Term, Trouble, Verdict,
};
use tenure_core::{ElectionKey, Name, SessionId};

use super::Etcd;
use super::read::Which;
use crate::runtime;

/// What it promises.
pub const PROMISES: Promises = Promises {
    backend: "etcd",
    at_most_one: "yes, for clock rates within 1.2x",
    netsplit: "the minority has none",
    after_crash: "a lease",
};

#[async_trait]
impl Directory for Etcd {
    fn promises(&self) -> Promises {
        PROMISES
    }

    async fn identity(&self) -> Result<String, StoreError> {
        let cluster = match self.memo.cluster() {
            Some(cluster) => cluster,
            None => {
                self.read(Which::These(&[]), &[]).await.map(|_| self.memo.cluster().unwrap_or_default())?
            }
        };
        Ok(format!("etcd {cluster:016x}"))
    }

    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError> {
        Ok(self.read(Which::All, &[]).await?.book(runtime::wall_ms()).elections(namespace))
    }

    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError> {
        let reading = self.read(Which::These(std::slice::from_ref(key)), &[]).await?;
        Ok(reading.book(runtime::wall_ms()).election(key))
    }

    async fn history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError> {
        let reading = self.read(Which::These(std::slice::from_ref(key)), &[]).await?;
        Ok(reading.book(runtime::wall_ms()).history(key, limit))
    }

    async fn set_paused(&self, key: &ElectionKey, pause: Option<&Pause>) -> Result<bool, StoreError> {
        let keys = [key.clone()];
        let (changed, _) =
            self.change(&keys, None, &[], |book, _, _| (book.set_paused(key, pause), None)).await?;
        changed.ok_or_else(|| StoreError::new(Trouble::Request, format!("there is no election {key}")))
    }

    async fn sessions(&self, which: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError> {
        let Some(ids) = which else { return self.sessions_alive().await };
        let mut sessions = self.read(Which::These(&[]), ids).await?.book(runtime::wall_ms()).sessions(which);
        if sessions.len() < ids.len() {
            sessions.extend(self.ended().await?.into_iter().filter(|session| ids.contains(&session.id)));
            sessions.sort_by(|a, b| a.id.cmp(&b.id));
        }
        Ok(sessions)
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        let mut findings = Vec::new();
        let statuses = self.gateway.statuses().await;
        for (place, status) in &statuses {
            findings.push(match status {
                Ok(status) if status.leader == 0 => Finding::new(
                    "member",
                    place,
                    Verdict::Bad,
                    "it knows no leader of its cluster: it is cut off, or most members are down",
                ),
                Ok(status) => {
                    let value = format!("{place}: etcd {}, {} MiB", status.version, status.db_size >> 20);
                    Finding::new("member", value, Verdict::Good, "")
                }
                Err(error) => Finding::new("member", place, Verdict::Bad, error.message.clone()),
            });
        }
        if statuses.len() < 3 {
            let advice = "with one member named, its end is the end; name all: etcd://A:2379,B:2379,C:2379";
            findings.push(Finding::new("members", statuses.len().to_string(), Verdict::Fair, advice));
        }
        let advice = "every beat is a revision: start etcd with --auto-compaction-retention=1h, or its database grows for ever";
        findings.push(Finding::new("compaction", "not to be seen from here", Verdict::Fair, advice));
        Ok(findings)
    }
}
