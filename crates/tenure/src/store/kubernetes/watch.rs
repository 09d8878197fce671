//! Notifications from a watch on the Leases.
//!
//! A list is followed by a watch with bookmarks, so a closed watch resumes at its last version. A watch whose version
//! has expired (410) starts again with a list and reports `Resync`. Each event is compared with the previous object; a
//! mere renewal causes no notification. When the watch scope grows, a new watch starts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::Value;
use tenure_core::ElectionKey;
use tenure_core::port::{BoxNotificationSource, Notification, StoreError};
use tokio::sync::{mpsc, watch};

use super::api::Api;
use super::decode::{holder_noted, slot_key, token_of};
use super::object::{LeaseObject, SESSION};
use super::record::{CandidacyRecord, RECORD, SessionRecord, SlotRecord};
use super::watch_scope::WatchScope;
use crate::runtime;
use crate::store::notification_channel::ChannelNotificationSource;

/// Capacity of the notification channel.
const NOTIFICATIONS_MAX: usize = 256;
/// Delay before a watch is reopened: initial and maximum.
const RECONNECT_DELAY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// Maximum line length.
const LINE_MAX: usize = 16 << 20;
/// Maximum silence of a watch; bookmarks arrive every minute.
const SILENCE: Duration = Duration::from_secs(300);

/// Watch until the receiver is dropped.
pub(super) fn open(api: Arc<Api>, mut watched: watch::Receiver<WatchScope>) -> BoxNotificationSource {
    let (sender, receiver) = mpsc::channel(NOTIFICATIONS_MAX);
    tokio::spawn(async move {
        let mut is_open = true;
        while is_open {
            let now = watched.borrow_and_update().clone();
            is_open = tokio::select! {
                () = sender.closed() => false,
                () = listen(&api, &now, &sender) => false,
                more = watched.changed() => more.is_ok(),
            };
        }
    });
    Box::new(ChannelNotificationSource(receiver))
}

/// Why a watch ended.
enum WatchEnd {
    /// The server closed it; it can resume at the current version.
    Closed,
    /// The version has expired, or an event could not be decoded.
    Lost,
    /// The receiver was dropped.
    Unheard,
}

async fn listen(api: &Api, watched: &WatchScope, sender: &mpsc::Sender<Notification>) {
    let mut pause = RECONNECT_DELAY.0;
    loop {
        match watch_from_list(api, watched, sender, &mut pause).await {
            Ok(()) => return,
            Err(Some(error)) => tracing::debug!("kubernetes watch failed: {error}"),
            Err(None) => {}
        }
        runtime::sleep_until(runtime::now() + runtime::jittered(pause)).await;
        pause = (pause * 2).min(RECONNECT_DELAY.1);
    }
}

/// Watch as long as the watch can be resumed. `Ok` when the receiver was dropped.
async fn watch_from_list(
    api: &Api,
    watched: &WatchScope,
    sender: &mpsc::Sender<Notification>,
    pause: &mut Duration,
) -> Result<(), Option<StoreError>> {
    let list = api.list(watched).await?;
    let objects = list.objects.into_iter().map(|object| (object.name().to_owned(), object));
    let mut watch = LeaseWatch { objects: objects.collect(), version: list.version };
    if sender.send(Notification::Resync).await.is_err() {
        return Ok(());
    }
    loop {
        let Some(body) = api.watch(watched, &watch.version).await? else { return Err(None) };
        let began = watch.version.clone();
        match watch.follow(body, sender).await {
            WatchEnd::Unheard => return Ok(()),
            WatchEnd::Lost => return Err(None),
            WatchEnd::Closed => {}
        }
        if watch.version != began {
            *pause = RECONNECT_DELAY.0;
        }
        runtime::sleep_until(runtime::now() + runtime::jittered(*pause)).await;
    }
}

struct LeaseWatch {
    objects: BTreeMap<String, LeaseObject>,
    version: String,
}

impl LeaseWatch {
    /// Forward the events of a watch until it ends.
    async fn follow(&mut self, mut body: Body, sender: &mpsc::Sender<Notification>) -> WatchEnd {
        let mut rest = Vec::new();
        while let Ok(Some(Ok(frame))) = tokio::time::timeout(SILENCE, body.frame()).await {
            let Some(bytes) = frame.data_ref() else { continue };
            rest.extend_from_slice(bytes);
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                let Some(notifications) =
                    serde_json::from_slice(&line).ok().and_then(|line| self.decode_event(line))
                else {
                    return WatchEnd::Lost;
                };
                for notification in notifications {
                    if sender.send(notification).await.is_err() {
                        return WatchEnd::Unheard;
                    }
                }
            }
            if rest.len() > LINE_MAX {
                return WatchEnd::Lost;
            }
        }
        WatchEnd::Closed
    }

    /// Convert an event to notifications; `None` if the watch cannot continue.
    fn decode_event(&mut self, mut line: Value) -> Option<Vec<Notification>> {
        let kind = line["type"].as_str()?.to_owned();
        let object = line["object"].take();
        if kind == "ERROR" {
            return None;
        }
        if let Some(version) = object["metadata"]["resourceVersion"].as_str() {
            self.version = version.into();
        }
        if kind == "BOOKMARK" {
            return Some(Vec::new());
        }
        let object = LeaseObject::read(object)?;
        let before = match kind.as_str() {
            "DELETED" => self.objects.remove(object.name()),
            _ => self.objects.insert(object.name().to_owned(), object.clone()),
        };
        Some(match (kind.as_str(), object.kind()) {
            // A deletion event also means that the object no longer matches the selector.
            ("DELETED", Some(SESSION)) => {
                let mut notifications = session_notifications(before.as_ref(), None);
                notifications.retain(|notification| !matches!(notification, Notification::SessionEnded(_)));
                notifications
            }
            (_, Some(SESSION)) => session_notifications(before.as_ref(), Some(&object)),
            ("DELETED", _) => {
                slot_key(&object).map(|(key, _)| Notification::ElectionChanged(key)).into_iter().collect()
            }
            _ => lease_notifications(before.as_ref(), &object),
        })
    }
}

/// Notifications for a session that joined, left or ended.
fn session_notifications(before: Option<&LeaseObject>, after: Option<&LeaseObject>) -> Vec<Notification> {
    let record = |object: Option<&LeaseObject>| object.and_then(SessionRecord::of);
    let (before, after) = (record(before), record(after));
    let mut notifications = Vec::new();
    let id = |record: &Option<SessionRecord>| {
        record.as_ref().filter(|record| record.view.live).map(|record| record.view.id.clone())
    };
    if let Some(ended) = id(&before).filter(|ended| id(&after).as_ref() != Some(ended)) {
        notifications.push(Notification::SessionEnded(ended));
    }
    let candidacies =
        |record: Option<SessionRecord>| record.map(|record| record.candidacies).unwrap_or_default();
    let (before, after) = (candidacies(before), candidacies(after));
    let differs = |all: &[CandidacyRecord], one: &CandidacyRecord| !all.contains(one);
    let moved =
        before.iter().filter(|s| differs(&after, s)).chain(after.iter().filter(|s| differs(&before, s)));
    let keys: BTreeSet<ElectionKey> = moved.map(|record| record.candidacy.election.clone()).collect();
    notifications.extend(keys.into_iter().map(Notification::ElectionChanged));
    notifications
}

/// Notifications for a Lease whose holder or record changed.
fn lease_notifications(before: Option<&LeaseObject>, after: &LeaseObject) -> Vec<Notification> {
    let Some((key, slot)) = slot_key(after) else { return Vec::new() };
    let noted = |object: &LeaseObject| SlotRecord { holder: None, ..object.note(RECORD).unwrap_or_default() };
    let (was, is) = (before.map(noted).unwrap_or_default(), noted(after));
    let holder = |object: &LeaseObject| (object.holder().map(str::to_owned), object.transitions());
    let is_moved = before.map(holder) != Some(holder(after));
    let mut notifications = Vec::new();
    if let Some(before) = before.filter(|before| before.holder().is_some() && after.holder().is_none()) {
        let last = is.last_term.as_ref();
        notifications.extend(holder_noted(before).map(|holder| Notification::LeaseReleased {
            election: key.clone(),
            slot,
            token: token_of(before),
            released_by: holder.session.id,
            successor: last.and_then(|last| last.reserved_for.clone()),
            start_reason: last.map(|last| last.start_reason).unwrap_or_default(),
        }));
    }
    if is.leader_requests.iter().any(|request| !was.leader_requests.contains(request)) {
        notifications
            .extend(holder_noted(after).map(|holder| Notification::LeaderRequested(holder.session.id)));
    }
    if is_moved || was != is {
        notifications.push(Notification::ElectionChanged(key));
    }
    notifications
}
