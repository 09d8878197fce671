//! Closures as targets: each tick is a task in a queue of their own, worked off by the leader of an election of their own.
//!
//! Not by who fires: that may be a server, or another program, which has no such closures. The ticks wait in the store, so one that
//! fired while nobody led runs when somebody does; and a closure that is cut short, as its process dies or leads no longer, is run
//! again by the next leader. So a closure runs at least once for each tick, and never in two processes that believe they lead.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use tenure_core::Name;
use tenure_core::port::Json;
use tokio::sync::watch;

use super::duty::over;
use super::tick::Tick;
use crate::worker::{TaskContext, TaskError, Worker};
use crate::{Elector, Error, Leadership, Tenure};

pub(super) type Closure =
    Arc<dyn Fn(Tick) -> BoxFuture<'static, Result<Option<Json>, TaskError>> + Send + Sync>;

/// The closures of a scheduler, and what it takes to run them.
pub(super) struct Closures {
    pub(super) tenure: Tenure,
    pub(super) namespace: Name,
    pub(super) queue: Name,
    pub(super) concurrency: usize,
    pub(super) grace: Duration,
    /// By the names of their schedules.
    pub(super) closures: BTreeMap<String, Closure>,
}

impl Closures {
    /// Stands for their election.
    pub(super) async fn stand(&self) -> Result<Elector, Error> {
        let elector = self.tenure.elector(self.queue.as_str()).namespace(self.namespace.as_str());
        elector.grace(self.grace).start().await
    }

    /// Works whenever this process leads, until it is told to halt.
    pub(super) async fn run(self, elector: Arc<Elector>, mut halt: watch::Receiver<bool>) {
        loop {
            let leadership = tokio::select! {
                biased;
                _ = halt.wait_for(|halt| *halt) => return,
                elected = elector.elected() => match elected {
                    Ok(leadership) => leadership,
                    Err(error) => {
                        tracing::debug!("closures: no longer a candidate: {error}");
                        return;
                    }
                },
            };
            tracing::info!(token = %leadership.token(), queue = %self.queue, "runs the closures of schedules");
            tokio::select! {
                biased;
                // What runs is dropped, and given back.
                _ = leadership.lost() => {}
                () = self.work(&leadership, &mut halt) => {}
            }
        }
    }

    /// Works until somebody asks, and then finishes what is begun.
    async fn work(&self, leadership: &Leadership, halt: &mut watch::Receiver<bool>) {
        let worker = tokio::select! {
            biased;
            () = over(leadership, halt) => return,
            worker = self.worker() => worker,
        };
        over(leadership, halt).await;
        if let Err(error) = worker.drain().await {
            tracing::warn!("closures: {error}");
        }
    }

    /// A worker, as soon as there can be one.
    async fn worker(&self) -> Worker {
        let hub = self.tenure.hub();
        loop {
            let mut builder = self
                .tenure
                .worker(self.queue.as_str())
                .namespace(self.namespace.as_str())
                // Another than the name of a worker that this process may have beside.
                .name(format!("{}/{}", self.tenure.name(), self.queue))
                .concurrency(self.concurrency)
                // What waits here could be begun by nobody else.
                .prefetch(0)
                .grace(self.grace);
            for (name, closure) in &self.closures {
                let closure = closure.clone();
                builder = builder.kind(name, move |task| tick(task, closure.clone()));
            }
            match builder.start().await {
                Ok(worker) => return worker,
                Err(error) => tracing::warn!(queue = %self.queue, "closures: can not work yet: {error}"),
            }
            hub.pause(hub.timing.retry()).await;
        }
    }
}

async fn tick(task: TaskContext, closure: Closure) -> Result<Option<Json>, TaskError> {
    closure(Tick::of(task)?).await
}
