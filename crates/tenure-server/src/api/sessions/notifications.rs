//! Notifications of the store as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{self, Stream, StreamExt};
use tenure::port::{GroupKey, Notification, Permission, PoolKey, QueueKey, TopicKey};
use tokio::sync::broadcast::error::RecvError;

use super::may_see;
use crate::App;
use crate::access::Principal;
use crate::snapshot::elections::ReceivedNotification;

/// Keep-alive interval, so that both ends detect a lost connection.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Maximum life of a stream. Clients reconnect and so discover new servers.
const STREAM_LIFE: Duration = Duration::from_secs(300);

/// Stream notifications of the store: server-sent events whose data is one notification each.
///
/// Notifications may be lost, duplicated or spurious. The first one, and each one after a gap, is `"resync"`:
/// read everything again. The stream ends from time to time; open it again.
#[utoipa::path(get, path = "/internal/v1/notifications", tag = "internal",
    responses((status = 200, body = Notification, content_type = "text/event-stream")))]
pub(super) async fn stream_notifications(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let notifications = app.elections.notifications();
    let received =
        stream::unfold((notifications, app, principal), |(mut notifications, app, principal)| async move {
            loop {
                let notification = match notifications.recv().await {
                    Ok(received) => shown(&app, &principal, received),
                    Err(RecvError::Lagged(_)) => Some(Notification::Resync),
                    Err(RecvError::Closed) => return None,
                };
                if let Some(notification) = notification {
                    return Some((notification, (notifications, app, principal)));
                }
            }
        });
    let events = stream::once(async { Notification::Resync }).chain(received).map(|notification| {
        let data = serde_json::to_string(&notification).unwrap_or_else(|_| "\"resync\"".into());
        Ok(Event::default().data(data))
    });
    let over = tokio::time::sleep(STREAM_LIFE);
    Sse::new(events.take_until(over)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
}

/// Filter a notification by what the principal may see.
fn shown(
    app: &App,
    principal: &Principal,
    ReceivedNotification { notification, namespaces: places }: ReceivedNotification,
) -> Option<Notification> {
    if principal.may(Permission::Read, None) {
        return Some(notification);
    }
    match &notification {
        Notification::LeaseReleased { election, .. } | Notification::ElectionChanged(election) => {
            may_see(principal, &election.namespace).then_some(notification)
        }
        // If the server never observed the session, `places` is empty and the client is not notified. It
        // finds the end of the session when it reads.
        Notification::SessionEnded(_) => {
            places.iter().any(|namespace| may_see(principal, namespace)).then_some(notification)
        }
        Notification::LeaderRequested(session) => {
            let snapshot = app.elections.snapshot();
            let mut holders = snapshot.elections.values().flat_map(|election| election.holders());
            let own = |(_, holder): (_, &tenure::port::SessionView)| {
                holder.id == *session && holder.owner.as_deref() == Some(&*principal.name)
            };
            holders.any(own).then_some(notification)
        }
        Notification::QueueReady(QueueKey { namespace, .. })
        | Notification::PoolChanged(PoolKey { namespace, .. })
        | Notification::TopicPublished(TopicKey { namespace, .. })
        | Notification::GroupChanged(GroupKey { topic: TopicKey { namespace, .. }, .. }) => {
            let works = principal.may(Permission::Claim, Some(namespace)) || may_see(principal, namespace);
            works.then_some(notification)
        }
        // If the server has not observed the session yet, the client is not notified. It finds the
        // cancellation when it reads.
        Notification::ClaimCancelled(session) => {
            let snapshot = app.elections.snapshot();
            let owner =
                snapshot.sessions.get(session).and_then(|heartbeat| heartbeat.session.owner.as_deref());
            (owner == Some(&*principal.name)).then_some(notification)
        }
        // These notifications name no object, so every principal may see them.
        Notification::SchedulesChanged | Notification::Resync => Some(notification),
        Notification::SessionExpired(_) | Notification::ConnectionLost(_) => None,
    }
}
