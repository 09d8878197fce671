//! Groups that servers push: each server is a member, and `POST`s every event to the group's address.
//!
//! What a receiver sees is a Standard Webhook: `webhook-id` is the group's name and the event's number, the same at every attempt;
//! `webhook-timestamp` is when it was sent; `webhook-signature` signs both and the body. A `2xx` in time is done. `410` says that nothing
//! more is wanted: the group is paused, and nothing has failed. All else is a failure, and what becomes of it the group's settings say, as for any other consumer: it is tried again, then dead, and its key waits while others flow.
//!
//! Keys are pushed beside one another, the events of one key strictly one after the other. Events come at least once: again if a
//! server dies, or loses its slots, between the answer of the receiver and the commit.

mod calls;
mod post;
mod resolve;
mod sign;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tenure::port::{Backend, EventId, GroupKey, Pause, Push, Trouble, Wake};
use tenure::runtime::wall_ms;
use tenure::{Batch, Consumer, Error, HandlerError, Tenure, Token};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;

pub(crate) use self::calls::Calls;
use self::post::{Poster, Undelivered};
pub use self::resolve::host_is_private;
use crate::App;
use crate::board::Hint;

/// How often it is looked what is to be pushed, while nothing is heard.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How soon it is looked again at most.
const NOT_BEFORE: Duration = Duration::from_millis(300);
/// How often a store is asked that keeps no events.
const UNFIT: Duration = Duration::from_secs(60);
/// How many events are read at once, and how many keys are pushed beside one another.
const BATCH: (usize, usize) = (64, 16);
/// How long one call of the handler may take: longer than any push, of which one call has few.
const CALL_LIMIT: Duration = Duration::from_secs(600);
/// How long a server that ends waits for what it pushes.
const GRACE: Duration = Duration::from_secs(5);

/// The pushing of one server.
pub(crate) struct Webhooks {
    task: JoinHandle<()>,
    over: watch::Receiver<bool>,
}

impl Webhooks {
    /// Pushes until the server closes.
    pub(crate) fn start(app: App, tenure: Tenure) -> Webhooks {
        let (ended, over) = watch::channel(false);
        let task = tokio::spawn(async move {
            run(&app, &tenure).await;
            ended.send_replace(true);
        });
        Webhooks { task, over }
    }

    /// Waits until all is given up that was pushed. The server must be closing.
    pub(crate) async fn over(&self) {
        let mut over = self.over.clone();
        // The sender is gone if the task is.
        let _ = tokio::time::timeout(GRACE * 2, over.wait_for(|over| *over)).await;
    }
}

impl Drop for Webhooks {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A group that is pushed.
struct Pushed {
    /// Where to, and with which secret. Changes are heard of by the next call.
    push: Arc<RwLock<Push>>,
    consumer: Consumer,
}

async fn run(app: &App, tenure: &Tenure) {
    let poster = Arc::new(Poster::new(app.runtime.clone(), app.push_private));
    let mut closing = app.closing.subscribe();
    let mut hints = app.board.hints();
    let mut pushed: BTreeMap<GroupKey, Pushed> = BTreeMap::new();
    while !*closing.borrow() {
        let wait = match app.store.pushes().await {
            Ok(wanted) => {
                let failed = adjust(tenure, &poster, &mut pushed, wanted).await;
                if failed { LOOK_EVERY / 5 } else { LOOK_EVERY }
            }
            Err(error) if matches!(error.kind, Trouble::Unfit | Trouble::Unsupported) => UNFIT,
            // What is pushed goes on: it has the same trouble, and waits itself.
            Err(_) => LOOK_EVERY,
        };
        let again = async {
            // However much is heard, it is not looked more often than this.
            app.runtime.sleep_until(app.runtime.now() + NOT_BEFORE).await;
            heard(&mut hints).await;
        };
        tokio::select! {
            () = app.runtime.sleep_until(app.runtime.now() + wait) => {}
            () = again => {}
            _ = closing.wait_for(|closing| *closing) => {}
        }
    }
    let drained = pushed.into_values().map(|pushed| pushed.consumer.drain());
    for drained in futures_util::future::join_all(drained).await {
        if let Err(error) = drained {
            tracing::warn!("a group that was pushed was left in the middle: {error}");
        }
    }
}

/// Pushes what is to be pushed, and nothing else; whether some of it could not be begun.
async fn adjust(
    tenure: &Tenure,
    poster: &Arc<Poster>,
    pushed: &mut BTreeMap<GroupKey, Pushed>,
    wanted: Vec<(GroupKey, Push)>,
) -> bool {
    let wanted: BTreeMap<GroupKey, Push> = wanted.into_iter().collect();
    let over: Vec<GroupKey> = pushed.keys().filter(|group| !wanted.contains_key(group)).cloned().collect();
    for group in over {
        let Some(left) = pushed.remove(&group) else { continue };
        tracing::info!(%group, "is not pushed any more");
        // Before it may be pushed anew under the same session: who leaves late would take that along.
        if let Err(error) = left.consumer.drain().await {
            tracing::warn!(%group, "left in the middle: {error}");
        }
    }
    let mut failed = false;
    for (group, push) in wanted {
        if let Some(known) = pushed.get(&group) {
            *known.push.write().unwrap_or_else(PoisonError::into_inner) = push;
            continue;
        }
        let push = Arc::new(RwLock::new(push));
        match begin(tenure, poster, &group, &push).await {
            Ok(consumer) => {
                tracing::info!(%group, "is pushed");
                pushed.insert(group, Pushed { push, consumer });
            }
            Err(error) => {
                tracing::warn!(%group, "can not be pushed yet: {error}");
                failed = true;
            }
        }
    }
    failed
}

async fn begin(
    tenure: &Tenure,
    poster: &Arc<Poster>,
    group: &GroupKey,
    push: &Arc<RwLock<Push>>,
) -> Result<Consumer, Error> {
    let (poster, push, sent) = (poster.clone(), push.clone(), Arc::new(Sent::default()));
    let store = tenure.store().clone();
    tenure
        .consumer(group.topic.name.as_str(), group.name.as_str())
        .namespace(group.topic.namespace.as_str())
        .batch(BATCH.0)
        .concurrency(BATCH.1)
        .timeout(CALL_LIMIT)
        .grace(GRACE)
        .handler(move |batch| {
            let (poster, push, sent, store) = (poster.clone(), push.clone(), sent.clone(), store.clone());
            async move {
                match deliver(&poster, &push, &sent, &batch).await {
                    Err(undelivered) if undelivered.gone => {
                        Err(stopped(store.as_ref(), batch.group(), undelivered.told).await)
                    }
                    delivered => delivered.map_err(HandlerError::from),
                }
            }
        })
        .start()
        .await
}

/// Pushes events, one after the other.
async fn deliver(
    poster: &Poster,
    push: &RwLock<Push>,
    sent: &Sent,
    batch: &Batch,
) -> Result<(), Undelivered> {
    for event in batch {
        let token = batch.token(event.slot);
        if !sent.has(event.id, token) {
            let now = push.read().unwrap_or_else(PoisonError::into_inner).clone();
            poster.post(&now, batch.group(), event).await?;
            // At once: should a later one fail, or the call be cut off, they are given again.
            sent.remember(event.id, token);
        }
    }
    sent.forget(batch.iter().map(|event| event.id));
    Ok(())
}

/// The receiver has said that it is gone, and wants nothing any more: the group is paused, until somebody has seen to that. Nothing has
/// failed for it.
async fn stopped(store: &dyn Backend, group: &GroupKey, told: String) -> HandlerError {
    tracing::warn!(%group, "paused: {told}");
    let pause = Pause { by: "push".into(), reason: told.clone(), at_ms: wall_ms() };
    if let Err(error) = store.set_group_paused(group, Some(&pause)).await {
        tracing::warn!(%group, "can not be paused: {error}");
    }
    HandlerError::passing(told)
}

/// What was pushed in a call that did not end well: it is not pushed again when it is given again, under the same token.
#[derive(Default)]
struct Sent(Mutex<HashMap<EventId, Token>>);

impl Sent {
    /// How many are remembered; then it begins anew, and some are pushed twice.
    const KEPT: usize = 10_000;

    /// Whether it was pushed.
    fn has(&self, event: EventId, token: Option<Token>) -> bool {
        // Under another token it was reset, or somebody else had it: that is another time.
        self.sent().get(&event).is_some_and(|known| Some(*known) == token)
    }

    fn remember(&self, event: EventId, token: Option<Token>) {
        let mut sent = self.sent();
        if sent.len() >= Self::KEPT {
            sent.clear();
        }
        sent.extend(token.map(|token| (event, token)));
    }

    fn forget(&self, events: impl Iterator<Item = EventId>) {
        let mut sent = self.sent();
        events.for_each(|event| {
            sent.remove(&event);
        });
    }

    fn sent(&self) -> MutexGuard<'_, HashMap<EventId, Token>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for a hint that something else is to be pushed, or otherwise, or no more.
async fn heard(hints: &mut broadcast::Receiver<Hint>) {
    loop {
        match hints.recv().await {
            Ok(Hint { wake: Wake::Group(_) | Wake::Resync, .. }) | Err(RecvError::Lagged(_)) => return,
            Ok(_) => {}
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_pushed_is_not_pushed_again_under_the_same_token_only() {
        let (sent, one, two) = (Sent::default(), Some(Token::from_u64(1)), Some(Token::from_u64(2)));
        for (event, token) in [(7, one), (8, one), (9, None)] {
            sent.remember(EventId(event), token);
        }
        assert!(sent.has(EventId(7), one), "it was");
        assert!(sent.has(EventId(7), one), "and still is, until the call ends well");
        assert!(!sent.has(EventId(8), two), "reset, it is pushed again");
        assert!(!sent.has(EventId(9), None));
        sent.forget([EventId(7)].into_iter());
        assert!(!sent.has(EventId(7), one));
    }
}
