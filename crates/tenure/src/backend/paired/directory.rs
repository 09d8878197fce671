//! The path of people.

use std::collections::BTreeMap;

use async_trait::async_trait;
use tenure_core::port::{
    Directory, ElectionView, Finding, MemberOrder, Membership, Pause, Promises, SessionView, StoreError,
    Term, Verdict,
};
use tenure_core::{ElectionKey, Name, SessionId, Timing};

use super::Paired;

#[async_trait]
impl Directory for Paired {
    /// What the elector promises: who leads is its affair alone.
    fn promises(&self) -> Promises {
        self.elector.promises()
    }

    async fn identity(&self) -> Result<String, StoreError> {
        self.elector.identity().await
    }

    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError> {
        self.elector.elections(namespace).await
    }

    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError> {
        self.elector.election(key).await
    }

    async fn history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError> {
        self.elector.history(key, limit).await
    }

    async fn set_paused(&self, key: &ElectionKey, pause: Option<&Pause>) -> Result<bool, StoreError> {
        self.elector.set_paused(key, pause).await
    }

    /// Whom the elector knows is seen by its beats there, as in elections; who has only work, by those where the work is.
    async fn sessions(&self, which: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError> {
        let kept = self.keeper.sessions(which).await?;
        let mut all: BTreeMap<_, _> = match which {
            None => self.elector.sessions(None).await?,
            Some(_) => Vec::new(),
        }
        .into_iter()
        .map(|view| (view.id.clone(), view))
        .collect();
        let ids: Vec<SessionId> = match which {
            Some(ids) => ids.to_vec(),
            None => kept.iter().map(|view| view.id.clone()).filter(|id| !all.contains_key(id)).collect(),
        };
        let known = if ids.is_empty() { Vec::new() } else { self.elector.sessions(Some(&ids)).await? };
        all.extend(known.into_iter().map(|view| (view.id.clone(), view)));
        for view in kept {
            match all.get_mut(&view.id) {
                Some(seen) => seen.live &= view.live,
                None => drop(all.insert(view.id.clone(), view)),
            }
        }
        if which.is_none() {
            // Over for the elector is over, and where the work is it is only not known yet.
            all.values().filter(|view| !view.live).for_each(|view| self.bury_later(&view.id));
            all.retain(|_, view| view.live);
        }
        Ok(all.into_values().collect())
    }

    async fn membership(&self) -> Result<Option<Membership>, StoreError> {
        self.elector.membership().await
    }

    async fn order_member(&self, order: &MemberOrder) -> Result<(), StoreError> {
        self.elector.order_member(order).await
    }

    async fn clock_seconds(&self) -> Result<Option<f64>, StoreError> {
        match self.elector.clock_seconds().await? {
            Some(seconds) => Ok(Some(seconds)),
            None => self.keeper.clock_seconds().await,
        }
    }

    fn pace(&self) -> Option<Timing> {
        self.elector.pace()
    }

    async fn failed(&self) -> StoreError {
        tokio::select! {
            error = self.elector.failed() => error,
            error = self.keeper.failed() => error,
        }
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        let mut findings = self.elector.examine().await?;
        let kept = format!(
            "{}, fenced by the tokens of {}",
            self.keeper.promises().backend,
            self.elector.promises().backend
        );
        findings.push(Finding::new("work is kept in", kept, Verdict::Good, ""));
        findings.extend(self.keeper.examine().await?);
        Ok(findings)
    }
}
