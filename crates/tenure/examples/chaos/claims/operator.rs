//! What people do while work goes on: modes, pauses, cancels, retries, a leader that shall step down.
//!
//! Each call opens the store anew and is given two seconds: it may be broken just now, and then nothing was asked.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tenure::Name;
use tenure::backend::StoreOptions;
use tenure::port::{
    Ask, AskKind, Backend, Mode, Order, Pause, QueueSettings, TaskFilter, TaskState, TaskView,
    claims_election,
};
use tenure_core::{Entropy, SplitMix};
use tokio::runtime::Handle;

use super::oracles::Epoch;
use super::plan::{MIXED, ORDERS};
use super::submitter::key;
use crate::Failed;

/// An operator, and what it knows of the mode of [`ORDERS`].
pub(crate) struct Operator {
    pub(crate) url: String,
    pub(crate) runtime: Handle,
    epochs: Vec<Epoch>,
}

impl Operator {
    pub(crate) fn new(url: String, runtime: Handle) -> Self {
        Self { url, runtime, epochs: Vec::new() }
    }

    /// A store of our own.
    pub(crate) async fn store(&self) -> Result<Arc<dyn Backend>, Failed> {
        let options = StoreOptions { url: self.url.clone(), ..StoreOptions::default() };
        Ok(tenure::backend::open(&options).await?)
    }

    /// Hands out in the other mode from now on. If it is not known whether that was done, no epoch is.
    pub(crate) fn flip(&mut self) -> Result<(), Failed> {
        let exclusive = !self.epochs.last().is_some_and(|epoch| epoch.exclusive);
        let sent_ms = tenure::runtime::wall_ms();
        if let Some(epoch) = self.epochs.last_mut() {
            epoch.to_ms = epoch.to_ms.min(sent_ms);
        }
        let mode = if exclusive { Mode::Exclusive } else { Mode::Distributed };
        let set = self.within(async {
            let settings = QueueSettings { mode, ..QueueSettings::default() };
            self.store().await?.set_queue(&key(ORDERS), &settings).await?;
            Ok(())
        });
        let from_ms = if set.is_ok() { tenure::runtime::wall_ms() } else { i64::MAX };
        self.epochs.push(Epoch { exclusive, from_ms, to_ms: i64::MAX });
        set
    }

    /// When the queue was in which mode.
    pub(crate) fn epochs(&self) -> &[Epoch] {
        &self.epochs
    }

    /// Hands out nothing of a queue, or again.
    pub(crate) fn pause(&self, queue: &str, paused: bool) -> Result<(), Failed> {
        self.within(async {
            let at_ms = tenure::runtime::wall_ms();
            let pause = Pause { by: "chaos".into(), reason: "to see what happens".into(), at_ms };
            let key = key(queue);
            let store = self.store().await?;
            store.set_queue_paused(&key.namespace, Some(&key.name), paused.then_some(&pause)).await?;
            Ok(())
        })
    }

    /// Cancels or retries a few tasks of [`MIXED`].
    pub(crate) fn order(&self, order: Order, entropy: &mut SplitMix) -> Result<(), Failed> {
        self.within(async {
            let store = self.store().await?;
            let states = match order {
                Order::Cancel => vec![TaskState::Claimed, TaskState::Waiting, TaskState::Ready],
                Order::Retry => vec![TaskState::Dead, TaskState::Cancelled, TaskState::Scheduled],
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
            store.order(&Name::default_namespace(), &drawn, order).await?;
            Ok(())
        })
    }

    /// Asks the leader to step down.
    pub(crate) fn resign(&self) -> Result<(), Failed> {
        self.within(async {
            let store = self.store().await?;
            let election = claims_election();
            let view = store.election(&election).await?.ok_or("nobody stands yet")?;
            for (lease, _) in view.holders() {
                let (slot, token, kind) = (lease.slot, lease.token, AskKind::Resign);
                store.ask(&Ask { election: election.clone(), slot, token, kind, by: "chaos".into() }).await?;
            }
            Ok(())
        })
    }

    /// The name of the process that leads.
    pub(crate) fn leader(&self) -> Result<String, Failed> {
        self.within(async {
            let store = self.store().await?;
            let view = store.election(&claims_election()).await?.ok_or("nobody stands yet")?;
            let name = view.holders().map(|(_, holder)| holder.name.clone()).next();
            Ok(name.ok_or("nobody leads")?)
        })
    }

    /// How many tasks are not finished.
    pub(crate) fn unfinished(&self) -> Result<u64, Failed> {
        self.within(async {
            let queues = self.store().await?.queues(Some(&Name::default_namespace())).await?;
            let counts = queues.iter().flat_map(|view| &view.counts);
            Ok(counts.filter(|(state, _)| !state.is_final()).map(|(_, count)| count).sum())
        })
    }

    /// All tasks there are.
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
