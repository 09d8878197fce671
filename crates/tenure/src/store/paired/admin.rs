//! Administration of elections.

use std::collections::BTreeMap;

use async_trait::async_trait;
use tenure_core::port::{
    ElectionAdmin, ElectionView, Finding, FindingStatus, Pause, RaftMemberAction, RaftStatus, SessionView,
    StoreError, StoreGuarantees, Term,
};
use tenure_core::{ElectionKey, Name, SessionId, Timing};

use super::PairedStore;

#[async_trait]
impl ElectionAdmin for PairedStore {
    /// The guarantees of the election store, which alone decides on leaders.
    fn guarantees(&self) -> StoreGuarantees {
        self.election_store.guarantees()
    }

    async fn identity(&self) -> Result<String, StoreError> {
        self.election_store.identity().await
    }

    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError> {
        self.election_store.elections(namespace).await
    }

    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError> {
        self.election_store.election(key).await
    }

    async fn term_history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError> {
        self.election_store.term_history(key, limit).await
    }

    async fn set_election_paused(
        &self,
        key: &ElectionKey,
        pause: Option<&Pause>,
    ) -> Result<bool, StoreError> {
        self.election_store.set_election_paused(key, pause).await
    }

    /// Sessions of both stores. A session in the election store has the heartbeat count of that store, as in election views;
    /// any other session has the count of the data store.
    async fn sessions(&self, which: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError> {
        let in_data_store = self.data_store.sessions(which).await?;
        let mut all: BTreeMap<_, _> = match which {
            None => self.election_store.sessions(None).await?,
            Some(_) => Vec::new(),
        }
        .into_iter()
        .map(|view| (view.id.clone(), view))
        .collect();
        let ids: Vec<SessionId> = match which {
            Some(ids) => ids.to_vec(),
            None => {
                in_data_store.iter().map(|view| view.id.clone()).filter(|id| !all.contains_key(id)).collect()
            }
        };
        let known =
            if ids.is_empty() { Vec::new() } else { self.election_store.sessions(Some(&ids)).await? };
        all.extend(known.into_iter().map(|view| (view.id.clone(), view)));
        for view in in_data_store {
            match all.get_mut(&view.id) {
                Some(view_in_election_store) => view_in_election_store.live &= view.live,
                None => drop(all.insert(view.id.clone(), view)),
            }
        }
        if which.is_none() {
            // A session that ended in the election store has ended; the data store may not know yet.
            all.values().filter(|view| !view.live).for_each(|view| self.expire_in_data_store_later(&view.id));
            all.retain(|_, view| view.live);
        }
        Ok(all.into_values().collect())
    }

    async fn raft_status(&self) -> Result<Option<RaftStatus>, StoreError> {
        self.election_store.raft_status().await
    }

    async fn change_raft_members(&self, action: &RaftMemberAction) -> Result<(), StoreError> {
        self.election_store.change_raft_members(action).await
    }

    async fn clock_seconds(&self) -> Result<Option<f64>, StoreError> {
        match self.election_store.clock_seconds().await? {
            Some(seconds) => Ok(Some(seconds)),
            None => self.data_store.clock_seconds().await,
        }
    }

    fn default_timing(&self) -> Option<Timing> {
        self.election_store.default_timing()
    }

    async fn failed(&self) -> StoreError {
        tokio::select! {
            error = self.election_store.failed() => error,
            error = self.data_store.failed() => error,
        }
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, StoreError> {
        let mut findings = self.election_store.diagnose().await?;
        let in_data_store = format!(
            "{}, fenced by the tokens of {}",
            self.data_store.guarantees().backend,
            self.election_store.guarantees().backend
        );
        findings.push(Finding::new("data store", in_data_store, FindingStatus::Ok, ""));
        findings.extend(self.data_store.diagnose().await?);
        Ok(findings)
    }

    async fn remove_probe(&self, election: &Name, sessions: &[SessionId]) -> Result<(), StoreError> {
        self.election_store.remove_probe(election, sessions).await?;
        self.data_store.remove_probe(election, sessions).await
    }
}
