//! Webhooks of schedules: ticks submit tasks to the queue `tenure/webhooks`, and servers send them.
//!
//! A webhook is a task: any `2xx` in time completes it, anything else is a failed attempt, which is retried
//! by the task's settings. Delivery is at least once per tick: a request is sent again if a server dies
//! between the response and the settlement. `webhook-id` is the same at every attempt.
//!
//! Every client with `claim` in the namespace could submit a forged task to that queue. So a server sends a
//! webhook only if the schedule that it names has recorded this task for this tick. The record proves that
//! the store itself wrote the content of the task. A deleted schedule sends no webhooks, because its secret
//! is unknown.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tenure::port::{
    ErrorKind, RawJson, ScheduleKey, StoreError, TickCause, TickFilter, WEBHOOK_TIMEOUT_MS, webhook_queue,
};
use tenure::{Error, Name, TaskContext, TaskError, Tenure, Token, Worker};
use tenure_core::rules::schedule::{WEBHOOK_TASK_KIND, WebhookCall, to_rfc3339};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::sender::{WebhookRequest, WebhookSender};
use super::{GRACE, UNSUPPORTED_INTERVAL};
use crate::App;
use crate::metrics;

/// Number of concurrent webhook requests of one server.
const CONCURRENCY: usize = 64;
/// Delay before the worker starts again after a failure.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Number of ticks at one instant that are checked: the scheduled one and manual ones.
const TICKS_PER_INSTANT_MAX: u32 = 16;

/// Schedule webhooks of one server.
pub(crate) struct ScheduleWebhooks {
    task: JoinHandle<()>,
    over: watch::Receiver<bool>,
}

/// Body of a webhook request.
#[derive(Serialize)]
struct TickWebhookBody<'a> {
    namespace: &'a Name,
    schedule: &'a Name,
    /// Tick as text in UTC.
    tick: String,
    tick_at_ms: i64,
    cause: TickCause,
    /// Token of the scheduler that fired the tick; `null` for a manual one.
    token: Option<Token>,
    /// Number of this attempt, counted from 1.
    attempt: u32,
    payload: &'a RawJson,
}

impl ScheduleWebhooks {
    /// Send webhooks until the server shuts down.
    pub(crate) fn start(app: App, tenure: Tenure) -> ScheduleWebhooks {
        let (ended, over) = watch::channel(false);
        let task = tokio::spawn(async move {
            run(&app, &tenure).await;
            ended.send_replace(true);
        });
        ScheduleWebhooks { task, over }
    }

    /// Wait until running requests are finished or released. The server must be shutting down.
    pub(crate) async fn wait_until_stopped(&self) {
        let mut over = self.over.clone();
        // The sender is dropped if the task has ended.
        let _ = tokio::time::timeout(GRACE * 2, over.wait_for(|over| *over)).await;
    }
}

impl Drop for ScheduleWebhooks {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(app: &App, tenure: &Tenure) {
    if !app.store.supports_work() {
        return;
    }
    let sender = Arc::new(WebhookSender::new(app.runtime.clone(), app.allow_private_webhooks));
    let mut closing = app.closing.subscribe();
    while !*closing.borrow() {
        let wait = match begin(app, tenure, &sender).await {
            Ok(worker) => {
                // The sender is part of the app, so the wait cannot fail.
                let _ = closing.wait_for(|closing| *closing).await;
                if let Err(error) = worker.drain().await {
                    tracing::warn!(%error, "stopping schedule webhooks failed");
                }
                return;
            }
            // An operator must fix the store, for example its schema.
            Err(Error::Store(error)) if error.kind == ErrorKind::Misconfigured => UNSUPPORTED_INTERVAL,
            Err(Error::Closed) => return,
            Err(error) => {
                tracing::warn!(%error, "starting schedule webhooks failed; retrying");
                RETRY_DELAY
            }
        };
        tokio::select! {
            () = app.runtime.sleep_until(app.runtime.now() + wait) => {}
            _ = closing.wait_for(|closing| *closing) => {}
        }
    }
}

async fn begin(app: &App, tenure: &Tenure, sender: &Arc<WebhookSender>) -> Result<Worker, Error> {
    let queue = webhook_queue();
    let (app, sender) = (app.clone(), sender.clone());
    let worker = tenure.worker(queue.name.as_str()).namespace(queue.namespace.as_str());
    // Do not list the worker: it is part of a server, and the pages show it as a server.
    let worker =
        worker.unlisted().concurrency(CONCURRENCY).grace(GRACE).kind(WEBHOOK_TASK_KIND, move |task| {
            let (app, sender) = (app.clone(), sender.clone());
            async move { send(&app, &sender, &task).await }
        });
    worker.start().await
}

/// Send a webhook.
async fn send(app: &App, sender: &WebhookSender, task: &TaskContext) -> Result<(), TaskError> {
    let call: WebhookCall = task
        .payload()
        .map_err(|error| TaskError::permanent(format!("the task is not a schedule webhook: {error}")))?;
    let secret = verified_secret(app, &call, task).await?;
    let message = TickWebhookBody {
        namespace: &call.key.namespace,
        schedule: &call.key.name,
        tick: to_rfc3339(call.tick_at_ms),
        tick_at_ms: call.tick_at_ms,
        cause: call.cause,
        token: call.token,
        attempt: task.attempt(),
        payload: &call.payload,
    };
    let webhook = WebhookRequest {
        url: &call.url,
        secret: secret.as_deref(),
        // The prefix distinguishes it from the ids of event webhooks.
        id: format!("tick-{}", task.id()),
        body: serde_json::to_vec(&message)?,
        limit: Duration::from_millis(WEBHOOK_TIMEOUT_MS),
    };
    let (result, took, outcome) = sender.send(webhook).await;
    metrics::schedule_webhook_sent(&call.key, result, took);
    outcome.map_err(TaskError::from)
}

/// Secret of the webhook, if its schedule recorded this task.
async fn verified_secret(
    app: &App,
    call: &WebhookCall,
    task: &TaskContext,
) -> Result<Option<String>, TaskError> {
    // The scheduled tick and manual ones may share an instant.
    let before_ms = Some(call.tick_at_ms.saturating_add(1));
    let filter = TickFilter { key: call.key.clone(), before_ms, limit: TICKS_PER_INSTANT_MAX };
    let ticks = app.store.ticks(&filter).await.map_err(|error| store_unavailable(&error))?;
    let is_its =
        ticks.iter().any(|tick| tick.tick_at_ms == call.tick_at_ms && tick.task_id == Some(task.id()));
    if !is_its {
        return Err(TaskError::permanent(unknown_webhook(&call.key)));
    }
    app.store.webhook_secret(&call.key).await.map_err(|error| store_unavailable(&error))
}

/// Task error for a store error. The message of the store may contain host and user names, so it is only
/// logged.
fn store_unavailable(error: &StoreError) -> TaskError {
    tracing::warn!(%error, "schedule webhook postponed");
    TaskError::fail("the server could not verify the webhook in its store")
}

fn unknown_webhook(key: &ScheduleKey) -> String {
    format!(
        "schedule {key} has no record of this webhook; the schedule was deleted, or another client submitted the task"
    )
}
