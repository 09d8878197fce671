//! Notifications from etcd watches.
//!
//! Three watches cover elections, leader requests and ended sessions, but not heartbeats. A watch starts at the current
//! revision, so its first message is a `Resync`: earlier changes may have been missed. A watch that breaks, or whose
//! revision was compacted, starts again in the same way.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tenure_core::SessionId;
use tenure_core::port::{BoxNotificationSource, Notification};
use tokio::sync::mpsc;

use super::gateway::Gateway;
use super::message::{Range, WatchEvent, WatchMessage};
use super::records::{ELECTIONS, LEADER_REQUESTS, SESSIONS, election, election_of};
use crate::runtime;
use crate::store::notification_channel::ChannelNotificationSource;

/// Capacity of the notification channel.
const NOTIFICATIONS_MAX: usize = 256;
/// Delay before a watch is reopened: initial and maximum.
const RECONNECT_DELAY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// Maximum line length.
const LINE_MAX: usize = 16 << 20;

/// Watch until the receiver is dropped.
pub(super) fn open(gateway: Arc<Gateway>) -> BoxNotificationSource {
    let (sender, receiver) = mpsc::channel(NOTIFICATIONS_MAX);
    for request in watch_requests() {
        let (gateway, sender) = (gateway.clone(), sender.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = sender.closed() => {}
                () = listen(&gateway, &request, &sender) => {}
            }
        });
    }
    Box::new(ChannelNotificationSource(receiver))
}

/// The watch requests.
fn watch_requests() -> [Value; 3] {
    let watch = |prefix: &str, filters: Value| {
        let Range { key, range_end, .. } = Range::below(prefix);
        json!({ "create_request": {
            "key": key, "range_end": range_end, "prev_kv": true, "progress_notify": true, "filters": filters,
        } })
    };
    [
        watch(ELECTIONS, json!([])),
        watch(LEADER_REQUESTS, json!(["NODELETE"])),
        // Only the end of a session matters.
        watch(SESSIONS, json!(["NOPUT"])),
    ]
}

async fn listen(gateway: &Gateway, request: &Value, sender: &mpsc::Sender<Notification>) {
    let mut pause = RECONNECT_DELAY.0;
    loop {
        match gateway.watch(request).await {
            Ok(body) => {
                pause = RECONNECT_DELAY.0;
                follow(body, sender).await;
            }
            Err(error) => tracing::debug!("etcd watch failed: {error}"),
        }
        runtime::sleep_until(runtime::now() + runtime::jittered(pause)).await;
        pause = (pause * 2).min(RECONNECT_DELAY.1);
    }
}

/// Forward the messages of a watch until it ends.
async fn follow(mut body: Incoming, sender: &mpsc::Sender<Notification>) {
    let mut rest = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        let Some(bytes) = frame.data_ref() else { continue };
        rest.extend_from_slice(bytes);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            let Ok(line) = serde_json::from_slice::<WatchMessage>(&line) else { return };
            let Some(answer) = line.result else { return };
            if answer.canceled {
                return;
            }
            // The first message has no events and reports the start of the watch; changes before it are not reported.
            let began = answer.events.is_empty();
            let notifications = if began {
                vec![Notification::Resync]
            } else {
                answer.events.iter().flat_map(to_notifications).collect()
            };
            for notification in notifications {
                if sender.send(notification).await.is_err() {
                    return;
                }
            }
        }
        if rest.len() > LINE_MAX {
            return;
        }
    }
}

/// Convert an etcd event to notifications.
fn to_notifications(event: &WatchEvent) -> Vec<Notification> {
    let key = &event.kv.key;
    if let Some(id) = key.strip_prefix(SESSIONS) {
        return vec![Notification::SessionEnded(SessionId::from_stored(id))];
    }
    if let Some(rest) = key.strip_prefix(LEADER_REQUESTS) {
        let id = rest.split('/').next().unwrap_or_default();
        return vec![Notification::LeaderRequested(SessionId::from_stored(id))];
    }
    let Some(key) = election_of(key) else { return Vec::new() };
    let mut notifications = released(event, &key).unwrap_or_default();
    notifications.push(Notification::ElectionChanged(key));
    notifications
}

/// Notifications for the leases that were released.
fn released(event: &WatchEvent, key: &tenure_core::ElectionKey) -> Option<Vec<Notification>> {
    if event.kind == "DELETE" {
        return None;
    }
    let (before, after) = (election(event.prev_kv.as_ref()?).ok()?, election(&event.kv).ok()?);
    let slots = before.leases.iter().zip(&after.leases).zip(0..);
    let freed = slots.filter_map(|((before, after), slot)| {
        let by = before.session.clone().filter(|_| after.session.is_none())?;
        let (election, token) = (key.clone(), before.token);
        Some(Notification::LeaseReleased {
            election,
            slot,
            token,
            released_by: by,
            successor: after.reserved_for.clone(),
            start_reason: after.start_reason,
        })
    });
    Some(freed.collect())
}
