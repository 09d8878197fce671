//! Calls of schedules: what their ticks have put into the queue of calls, servers make.
//!
//! A call is a task, and what becomes of it is what becomes of any: any `2xx` in time completes it, all else is a failure, and is
//! tried again by the task's own settings. It is at least one call for each tick: again if a server dies between the answer of the
//! receiver and the store's. `webhook-id` is the same at every attempt.
//!
//! The queue is a queue like any other, and whoever may submit to it could write there what they like, in anybody's name. So a call
//! is made only if the schedule that it names says of that very tick that this is its task; then the store itself has written what
//! is in it. A schedule that is gone makes no calls any more: nobody knows what to sign them with.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tenure::port::{CALL_TIMEOUT_MS, Cause, Json, ScheduleKey, StoreError, TickFilter, Trouble, calls_queue};
use tenure::{Error, Name, TaskContext, TaskError, Tenure, Token, Worker};
use tenure_core::schedule::{CALL_KIND, Call, in_utc};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::post::{Parcel, Poster};
use super::{GRACE, UNFIT};
use crate::App;
use crate::metrics;

/// How many calls one server makes at once.
const AT_ONCE: usize = 64;
/// How soon it is tried again to work after that failed.
const AGAIN: Duration = Duration::from_secs(1);
/// How many ticks at one instant are looked at: the clock's and those by hand.
const ALIKE: u32 = 16;

/// The calls that one server makes.
pub(crate) struct Calls {
    task: JoinHandle<()>,
    over: watch::Receiver<bool>,
}

/// What is sent.
#[derive(Serialize)]
struct Message<'a> {
    namespace: &'a Name,
    schedule: &'a Name,
    /// The tick, as text in UTC.
    tick: String,
    tick_ms: i64,
    cause: Cause,
    /// The token of the leader that fired it; `null` by hand.
    token: Option<Token>,
    /// Which attempt this is, counted from 1.
    attempt: u32,
    payload: &'a Json,
}

impl Calls {
    /// Makes calls until the server closes.
    pub(crate) fn start(app: App, tenure: Tenure) -> Calls {
        let (ended, over) = watch::channel(false);
        let task = tokio::spawn(async move {
            run(&app, &tenure).await;
            ended.send_replace(true);
        });
        Calls { task, over }
    }

    /// Waits until what is under way is done or given back. The server must be closing.
    pub(crate) async fn over(&self) {
        let mut over = self.over.clone();
        // The sender is gone if the task is.
        let _ = tokio::time::timeout(GRACE * 2, over.wait_for(|over| *over)).await;
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(app: &App, tenure: &Tenure) {
    if !app.store.keeps_work() {
        return;
    }
    let poster = Arc::new(Poster::new(app.runtime.clone(), app.push_private));
    let mut closing = app.closing.subscribe();
    while !*closing.borrow() {
        let wait = match begin(app, tenure, &poster).await {
            Ok(worker) => {
                // The sender lives in the app.
                let _ = closing.wait_for(|closing| *closing).await;
                if let Err(error) = worker.drain().await {
                    tracing::warn!("calls of schedules were left in the middle: {error}");
                }
                return;
            }
            // A schema that is not what it must be, say: somebody has to see to it.
            Err(Error::Store(error)) if error.kind == Trouble::Unfit => UNFIT,
            Err(Error::Closed) => return,
            Err(error) => {
                tracing::warn!("calls of schedules can not be made yet: {error}");
                AGAIN
            }
        };
        tokio::select! {
            () = app.runtime.sleep_until(app.runtime.now() + wait) => {}
            _ = closing.wait_for(|closing| *closing) => {}
        }
    }
}

async fn begin(app: &App, tenure: &Tenure, poster: &Arc<Poster>) -> Result<Worker, Error> {
    let queue = calls_queue();
    let (app, poster) = (app.clone(), poster.clone());
    let worker = tenure.worker(queue.name.as_str()).namespace(queue.namespace.as_str());
    // It is a server, and shown as one.
    let worker = worker.unlisted().concurrency(AT_ONCE).grace(GRACE).kind(CALL_KIND, move |task| {
        let (app, poster) = (app.clone(), poster.clone());
        async move { make(&app, &poster, &task).await }
    });
    worker.start().await
}

/// Makes a call.
async fn make(app: &App, poster: &Poster, task: &TaskContext) -> Result<(), TaskError> {
    let call: Call = task
        .payload()
        .map_err(|error| TaskError::fail_for_good(format!("this is no call of a schedule: {error}")))?;
    let secret = allowed(app, &call, task).await?;
    let message = Message {
        namespace: &call.key.namespace,
        schedule: &call.key.name,
        tick: in_utc(call.tick_ms),
        tick_ms: call.tick_ms,
        cause: call.cause,
        token: call.token,
        attempt: task.attempt(),
        payload: &call.payload,
    };
    let parcel = Parcel {
        url: &call.url,
        secret: secret.as_deref(),
        // Not to be mistaken for an event's number by whoever receives both.
        id: format!("call-{}", task.id()),
        body: serde_json::to_vec(&message)?,
        limit: Duration::from_millis(CALL_TIMEOUT_MS),
    };
    let (result, took, outcome) = poster.send(parcel).await;
    metrics::called(&call.key, result, took);
    outcome.map_err(TaskError::from)
}

/// What a call is signed with, if its schedule has made it.
async fn allowed(app: &App, call: &Call, task: &TaskContext) -> Result<Option<String>, TaskError> {
    // The clock's tick and those by hand may be at one instant.
    let before_ms = Some(call.tick_ms.saturating_add(1));
    let filter = TickFilter { key: call.key.clone(), before_ms, limit: ALIKE };
    let ticks = app.store.ticks(&filter).await.map_err(|error| unanswered(&error))?;
    let is_its = ticks.iter().any(|tick| tick.at_ms == call.tick_ms && tick.task == Some(task.id()));
    if !is_its {
        return Err(TaskError::fail_for_good(not_its(&call.key)));
    }
    app.store.call_secret(&call.key).await.map_err(|error| unanswered(&error))
}

/// What the store says of itself names hosts and users: it is for the log.
fn unanswered(error: &StoreError) -> TaskError {
    tracing::warn!("a call of a schedule was put off: {error}");
    TaskError::fail("the server could not ask its store about this call")
}

fn not_its(key: &ScheduleKey) -> String {
    format!("{key} does not know of this call; it was deleted, or somebody else has put the call here")
}
