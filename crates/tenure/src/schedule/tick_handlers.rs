//! Tick handlers: each tick is a task in a separate queue. The leader of a separate election processes the tasks.
//!
//! The process that fires may be a server or another program without these handlers, so it does not run them.
//! The ticks wait in the store: a tick that fires while there is no leader runs later, and a handler that is
//! interrupted, because its process dies or loses leadership, is run again by the next leader. So a handler
//! runs at least once for each tick, and never in two processes that both lead.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use tenure_core::Name;
use tenure_core::port::RawJson;
use tokio::sync::watch;

use super::fire_loop::stop_requested;
use super::tick::TickContext;
use crate::worker::{TaskContext, TaskError, Worker};
use crate::{Elector, Error, Leadership, Tenure};

pub(super) type TickHandler =
    Arc<dyn Fn(TickContext) -> BoxFuture<'static, Result<Option<RawJson>, TaskError>> + Send + Sync>;

/// The tick handlers of a scheduler, and how they run.
pub(super) struct TickHandlers {
    pub(super) tenure: Tenure,
    pub(super) namespace: Name,
    pub(super) queue: Name,
    pub(super) concurrency: usize,
    pub(super) grace: Duration,
    /// By schedule name.
    pub(super) handlers: BTreeMap<String, TickHandler>,
}

impl TickHandlers {
    /// Joins their election.
    pub(super) async fn join_election(&self) -> Result<Elector, Error> {
        let elector = self.tenure.elector(self.queue.as_str()).namespace(self.namespace.as_str());
        elector.grace(self.grace).start().await
    }

    /// Runs the handlers whenever this process leads, until it is told to stop.
    pub(super) async fn run(self, elector: Arc<Elector>, mut stop: watch::Receiver<bool>) {
        loop {
            let leadership = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                elected = elector.elected() => match elected {
                    Ok(leadership) => leadership,
                    Err(error) => {
                        tracing::debug!("tick handlers left the election: {error}");
                        return;
                    }
                },
            };
            tracing::info!(token = %leadership.token(), queue = %self.queue, "tick handlers started");
            tokio::select! {
                biased;
                // Running handlers are dropped, and their tasks released.
                _ = leadership.lost() => {}
                () = self.work(&leadership, &mut stop) => {}
            }
        }
    }

    /// Runs a worker until it must stop, and then drains it.
    async fn work(&self, leadership: &Leadership, stop: &mut watch::Receiver<bool>) {
        let worker = tokio::select! {
            biased;
            () = stop_requested(leadership, stop) => return,
            worker = self.worker() => worker,
        };
        stop_requested(leadership, stop).await;
        if let Err(error) = worker.drain().await {
            tracing::warn!("draining tick handlers failed: {error}");
        }
    }

    /// Starts a worker; retries until it succeeds.
    async fn worker(&self) -> Worker {
        let ctx = self.tenure.ctx();
        loop {
            let mut builder = self
                .tenure
                .worker(self.queue.as_str())
                .namespace(self.namespace.as_str())
                // Distinct from the name of another worker of this process.
                .name(format!("{}/{}", self.tenure.name(), self.queue))
                .concurrency(self.concurrency)
                // No other process could run a prefetched task.
                .prefetch(0)
                .grace(self.grace);
            for (name, handler) in &self.handlers {
                let handler = handler.clone();
                builder = builder.kind(name, move |task| tick(task, handler.clone()));
            }
            match builder.start().await {
                Ok(worker) => return worker,
                Err(error) => {
                    tracing::warn!(queue = %self.queue, "starting tick handlers failed, retrying: {error}")
                }
            }
            ctx.pause(ctx.timing.retry()).await;
        }
    }
}

async fn tick(task: TaskContext, handler: TickHandler) -> Result<Option<RawJson>, TaskError> {
    handler(TickContext::of(task)?).await
}
