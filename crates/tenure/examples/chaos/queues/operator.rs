//! Operator actions on queues: modes, pauses, cancels, retries, and resignation of the broker.
//!
//! Each call opens the store and has a limit of two seconds, because the store may be down.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tenure::Name;
use tenure::port::{
    AssignmentMode, LeaderRequest, LeaderRequestKind, Pause, QueueSettings, Store, TaskAction, TaskFilter,
    TaskState, TaskView, broker_election,
};
use tenure::store::StoreOptions;
use tenure_core::{Entropy, SplitMix};
use tokio::runtime::Handle;

use super::oracles::Epoch;
use super::plan::{MIXED, ORDERS};
use super::submitter::key;
use crate::Failed;

/// An operator that records the modes of [`ORDERS`].
pub(crate) struct Operator {
    pub(crate) url: String,
    pub(crate) runtime: Handle,
    epochs: Vec<Epoch>,
}

impl Operator {
    pub(crate) fn new(url: String, runtime: Handle) -> Self {
        Self { url, runtime, epochs: Vec::new() }
    }

    /// Open a store connection.
    pub(crate) async fn store(&self) -> Result<Arc<dyn Store>, Failed> {
        let options = StoreOptions { url: self.url.clone(), ..StoreOptions::default() };
        Ok(tenure::store::open(&options).await?)
    }

    /// Switch the mode of the queue. If the outcome is unknown, no period is recorded.
    pub(crate) fn flip(&mut self) -> Result<(), Failed> {
        let exclusive = !self.epochs.last().is_some_and(|epoch| epoch.exclusive);
        let sent_ms = tenure::runtime::wall_ms();
        if let Some(epoch) = self.epochs.last_mut() {
            epoch.to_ms = epoch.to_ms.min(sent_ms);
        }
        let mode = if exclusive { AssignmentMode::Exclusive } else { AssignmentMode::Distributed };
        let set = self.within(async {
            let settings = QueueSettings { mode, ..QueueSettings::default() };
            self.store().await?.set_queue(&key(ORDERS), &settings).await?;
            Ok(())
        });
        let from_ms = if set.is_ok() { tenure::runtime::wall_ms() } else { i64::MAX };
        self.epochs.push(Epoch { exclusive, from_ms, to_ms: i64::MAX });
        set
    }

    /// Periods in which the mode was known.
    pub(crate) fn epochs(&self) -> &[Epoch] {
        &self.epochs
    }

    /// Pause or resume a queue.
    pub(crate) fn pause(&self, queue: &str, paused: bool) -> Result<(), Failed> {
        self.within(async {
            let at_ms = tenure::runtime::wall_ms();
            let pause = Pause { paused_by: "chaos".into(), reason: "chaos test".into(), paused_at_ms: at_ms };
            let key = key(queue);
            let store = self.store().await?;
            store.set_queue_paused(&key.namespace, Some(&key.name), paused.then_some(&pause)).await?;
            Ok(())
        })
    }

    /// Cancel or retry a few tasks of [`MIXED`].
    pub(crate) fn order(&self, order: TaskAction, entropy: &mut SplitMix) -> Result<(), Failed> {
        self.within(async {
            let store = self.store().await?;
            let states = match order {
                TaskAction::Cancel => vec![TaskState::Claimed, TaskState::Waiting, TaskState::Ready],
                TaskAction::Retry => vec![TaskState::Dead, TaskState::Cancelled, TaskState::Scheduled],
            };
            let filter = TaskFilter {
                namespace: Some(Name::default_namespace()),
                queue: Some(key(MIXED).name),
                states,
                limit: 40,
                ..TaskFilter::default()
            };
            let tasks = store.tasks(&filter).await?;
            let drawn: Vec<_> =
                tasks.iter().filter(|_| entropy.next_u64().is_multiple_of(4)).map(|task| task.id).collect();
            store.apply_task_action(&Name::default_namespace(), &drawn, order).await?;
            Ok(())
        })
    }

    /// Ask the broker to resign.
    pub(crate) fn resign(&self) -> Result<(), Failed> {
        self.within(async {
            let store = self.store().await?;
            let election = broker_election();
            let view = store.election(&election).await?.ok_or("no candidate for broker yet")?;
            for (lease, _) in view.holders() {
                let (slot, token, kind) = (lease.slot, lease.token, LeaderRequestKind::Resign);
                store
                    .request_leader(&LeaderRequest {
                        election: election.clone(),
                        slot,
                        token,
                        kind,
                        requested_by: "chaos".into(),
                    })
                    .await?;
            }
            Ok(())
        })
    }

    /// Name of the process that is the broker.
    pub(crate) fn leader(&self) -> Result<String, Failed> {
        self.within(async {
            let store = self.store().await?;
            let view = store.election(&broker_election()).await?.ok_or("no candidate for broker yet")?;
            let name = view.holders().map(|(_, holder)| holder.name.clone()).next();
            Ok(name.ok_or("there is no broker")?)
        })
    }

    /// Number of unfinished tasks.
    pub(crate) fn unfinished(&self) -> Result<u64, Failed> {
        self.within(async {
            let queues = self.store().await?.queues(Some(&Name::default_namespace())).await?;
            let counts = queues.iter().flat_map(|view| &view.counts);
            Ok(counts.filter(|(state, _)| !state.is_final()).map(|(_, count)| count).sum())
        })
    }

    /// All tasks.
    pub(crate) async fn tasks(&self) -> Result<Vec<TaskView>, Failed> {
        let store = self.store().await?;
        let mut all: Vec<TaskView> = Vec::new();
        loop {
            let filter = TaskFilter {
                namespace: Some(Name::default_namespace()),
                before: all.last().map(|task| task.id),
                limit: 500,
                ..TaskFilter::default()
            };
            let page = store.tasks(&filter).await?;
            if page.is_empty() {
                return Ok(all);
            }
            all.extend(page);
        }
    }

    fn within<T>(&self, work: impl Future<Output = Result<T, Failed>>) -> Result<T, Failed> {
        self.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(2), work).await? })
    }
}
