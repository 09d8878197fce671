//! Webhooks of groups: each server is a member of the group and sends every event by `POST` to the URL.
//!
//! Requests follow Standard Webhooks: `webhook-id` is the name of the group and the id of the event, the same
//! at every attempt; `webhook-timestamp` is the time of the attempt; `webhook-signature` signs both and the
//! body. A `2xx` response in time means processed. `410` means that the receiver wants no more events: the
//! group is paused, and no event has failed. Any other response is a failed attempt, which is handled by the
//! group's settings as for any consumer.
//!
//! Events of different keys are sent concurrently, events of one key strictly in order. Delivery is at least
//! once: an event is sent again if a server dies or loses its partitions between the response and the commit.

mod dns;
mod schedules;
mod sender;
mod sign;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tenure::port::{ErrorKind, EventId, GroupKey, Notification, Pause, Store, WebhookSettings};
use tenure::runtime::wall_ms;
use tenure::{Consumer, Error, EventBatch, HandlerError, Tenure, Token};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;

pub use self::dns::host_is_private;
pub(crate) use self::schedules::ScheduleWebhooks;
use self::sender::{WebhookError, WebhookSender};
use crate::App;
use crate::snapshot::elections::ReceivedNotification;

/// Poll interval without notifications.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Minimum interval between polls.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(300);
/// Poll interval for a store without events.
const UNSUPPORTED_INTERVAL: Duration = Duration::from_secs(60);
/// Number of events per read, and of keys sent concurrently.
const BATCH: (usize, usize) = (64, 16);
/// Maximum duration of one handler call. It exceeds the timeout of a webhook request, and one call sends only
/// a few requests.
const HANDLER_TIMEOUT: Duration = Duration::from_secs(600);
/// How long a stopping server waits for its requests.
const GRACE: Duration = Duration::from_secs(5);

/// Group webhooks of one server.
pub(crate) struct GroupWebhooks {
    task: JoinHandle<()>,
    over: watch::Receiver<bool>,
}

impl GroupWebhooks {
    /// Send webhooks until the server shuts down.
    pub(crate) fn start(app: App, tenure: Tenure) -> GroupWebhooks {
        let (ended, over) = watch::channel(false);
        let task = tokio::spawn(async move {
            run(&app, &tenure).await;
            ended.send_replace(true);
        });
        GroupWebhooks { task, over }
    }

    /// Wait until all groups are left. The server must be shutting down.
    pub(crate) async fn wait_until_stopped(&self) {
        let mut over = self.over.clone();
        // The sender is dropped if the task has ended.
        let _ = tokio::time::timeout(GRACE * 2, over.wait_for(|over| *over)).await;
    }
}

impl Drop for GroupWebhooks {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Group with a webhook.
struct WebhookGroup {
    /// Webhook settings. Changes apply to the next request.
    settings: Arc<RwLock<WebhookSettings>>,
    consumer: Consumer,
}

async fn run(app: &App, tenure: &Tenure) {
    let sender = Arc::new(WebhookSender::new(app.runtime.clone(), app.allow_private_webhooks));
    let mut closing = app.closing.subscribe();
    let mut notifications = app.elections.notifications();
    let mut running: BTreeMap<GroupKey, WebhookGroup> = BTreeMap::new();
    while !*closing.borrow() {
        let wait = match app.store.webhooks().await {
            Ok(wanted) => {
                let failed = adjust(tenure, &sender, &mut running, wanted).await;
                if failed { POLL_INTERVAL / 5 } else { POLL_INTERVAL }
            }
            Err(error) if matches!(error.kind, ErrorKind::Misconfigured | ErrorKind::Unsupported) => {
                UNSUPPORTED_INTERVAL
            }
            // Running consumers continue: they see the same error and retry on their own.
            Err(_) => POLL_INTERVAL,
        };
        let again = async {
            // Limit the poll rate, however many notifications arrive.
            app.runtime.sleep_until(app.runtime.now() + MIN_POLL_INTERVAL).await;
            wait_for_notification(&mut notifications).await;
        };
        tokio::select! {
            () = app.runtime.sleep_until(app.runtime.now() + wait) => {}
            () = again => {}
            _ = closing.wait_for(|closing| *closing) => {}
        }
    }
    let drained = running.into_values().map(|running| running.consumer.drain());
    for drained in futures_util::future::join_all(drained).await {
        if let Err(error) = drained {
            tracing::warn!(%error, "leaving a group failed");
        }
    }
}

/// Start and stop consumers to match the webhooks in the store. Returns whether some could not be started.
async fn adjust(
    tenure: &Tenure,
    sender: &Arc<WebhookSender>,
    running: &mut BTreeMap<GroupKey, WebhookGroup>,
    wanted: Vec<(GroupKey, WebhookSettings)>,
) -> bool {
    let wanted: BTreeMap<GroupKey, WebhookSettings> = wanted.into_iter().collect();
    let over: Vec<GroupKey> = running.keys().filter(|group| !wanted.contains_key(group)).cloned().collect();
    for group in over {
        let Some(left) = running.remove(&group) else { continue };
        tracing::info!(%group, "webhook stopped");
        // Wait before the webhook may start again under the same session: a late leave would remove the new
        // membership.
        if let Err(error) = left.consumer.drain().await {
            tracing::warn!(%group, %error, "leaving the group failed");
        }
    }
    let mut failed = false;
    for (group, settings) in wanted {
        if let Some(known) = running.get(&group) {
            *known.settings.write().unwrap_or_else(PoisonError::into_inner) = settings;
            continue;
        }
        let settings = Arc::new(RwLock::new(settings));
        match begin(tenure, sender, &group, &settings).await {
            Ok(consumer) => {
                tracing::info!(%group, "webhook started");
                running.insert(group, WebhookGroup { settings, consumer });
            }
            Err(error) => {
                tracing::warn!(%group, %error, "starting the webhook failed; retrying");
                failed = true;
            }
        }
    }
    failed
}

async fn begin(
    tenure: &Tenure,
    sender: &Arc<WebhookSender>,
    group: &GroupKey,
    settings: &Arc<RwLock<WebhookSettings>>,
) -> Result<Consumer, Error> {
    let (sender, settings, sent) =
        (sender.clone(), settings.clone(), Arc::new(UncommittedDeliveries::default()));
    let store = tenure.store().clone();
    tenure
        .consumer(group.topic.name.as_str(), group.name.as_str())
        .namespace(group.topic.namespace.as_str())
        .batch(BATCH.0)
        .concurrency(BATCH.1)
        .timeout(HANDLER_TIMEOUT)
        .grace(GRACE)
        .handler(move |batch| {
            let (sender, settings, sent, store) =
                (sender.clone(), settings.clone(), sent.clone(), store.clone());
            async move {
                match deliver(&sender, &settings, &sent, &batch).await {
                    Err(undelivered) if undelivered.unsubscribed => {
                        Err(pause_group(store.as_ref(), batch.group(), undelivered.message).await)
                    }
                    delivered => delivered.map_err(HandlerError::from),
                }
            }
        })
        .start()
        .await
}

/// Send the events of a batch one after the other. Stops at the first failure.
async fn deliver(
    sender: &WebhookSender,
    settings: &RwLock<WebhookSettings>,
    sent: &UncommittedDeliveries,
    batch: &EventBatch,
) -> Result<(), WebhookError> {
    for event in batch {
        let token = batch.token(event.partition);
        if !sent.has(event.id, token) {
            let now = settings.read().unwrap_or_else(PoisonError::into_inner).clone();
            sender.send_event(&now, batch.group(), event).await?;
            // Remember the event at once: if a later event fails or the call is interrupted, this event is
            // delivered again.
            sent.remember(event.id, token);
        }
    }
    sent.forget(batch.iter().map(|event| event.id));
    Ok(())
}

/// The receiver responded with 410: pause the group until an operator resumes it. No event has failed.
async fn pause_group(store: &dyn Store, group: &GroupKey, message: String) -> HandlerError {
    tracing::warn!(%group, reason = %message, "group paused");
    let pause = Pause { paused_by: "webhook".into(), reason: message.clone(), paused_at_ms: wall_ms() };
    if let Err(error) = store.set_group_paused(group, Some(&pause)).await {
        tracing::warn!(%group, %error, "pausing the group failed");
    }
    HandlerError::transient(message)
}

/// Events that were sent in a call that failed later. They are not sent again if they are delivered again
/// under the same token.
#[derive(Default)]
struct UncommittedDeliveries(Mutex<HashMap<EventId, Token>>);

impl UncommittedDeliveries {
    /// Maximum number of remembered events; beyond it the set is cleared, and some are sent twice.
    const KEPT: usize = 10_000;

    /// Whether the event was sent.
    fn has(&self, event: EventId, token: Option<Token>) -> bool {
        // Under another token the group was reset, or another server had the partition: send again.
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

/// Wait for a notification that webhooks changed.
async fn wait_for_notification(notifications: &mut broadcast::Receiver<ReceivedNotification>) {
    loop {
        match notifications.recv().await {
            Ok(ReceivedNotification {
                notification: Notification::GroupChanged(_) | Notification::Resync,
                ..
            })
            | Err(RecvError::Lagged(_)) => return,
            Ok(_) => {}
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_events_are_skipped_only_under_the_same_token() {
        let (sent, one, two) =
            (UncommittedDeliveries::default(), Some(Token::from_u64(1)), Some(Token::from_u64(2)));
        for (event, token) in [(7, one), (8, one), (9, None)] {
            sent.remember(EventId(event), token);
        }
        assert!(sent.has(EventId(7), one), "it was");
        assert!(sent.has(EventId(7), one), "and still is, until the call ends well");
        assert!(!sent.has(EventId(8), two), "after a reset the event is sent again");
        assert!(!sent.has(EventId(9), None));
        sent.forget([EventId(7)].into_iter());
        assert!(!sent.has(EventId(7), one));
    }
}
