//! Hints: what the API server says happens to the objects that this process has to do with.
//!
//! A list, then a watch from there on, with bookmarks, so that one that is closed goes on from where it was. One whose place is forgotten (410) begins
//! anew, and what may have been missed is said. Each change is compared with what the object was before; a Lease that was merely renewed is no news.
//! When this process has to do with more, another watch begins.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::Value;
use tenure_core::ElectionKey;
use tenure_core::port::{StoreError, Wake, Wakes};
use tokio::sync::{mpsc, watch};

use super::api::Api;
use super::interest::Watched;
use super::object::{Object, SESSION};
use super::reading::{holder_noted, slot_of, token_of};
use super::record::{RECORD, Record, SessionRecord, Standing};
use crate::backend::told::Told;
use crate::runtime;

/// How many hints wait for their reader.
const HINTS_KEPT: usize = 256;
/// How long we wait before we watch again, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// The longest line that is read.
const LINE_MAX: usize = 16 << 20;
/// The longest silence of a watch: bookmarks come every minute.
const SILENCE: Duration = Duration::from_secs(300);

/// Listens until the receiver is dropped.
pub(super) fn open(api: Arc<Api>, mut watched: watch::Receiver<Watched>) -> Wakes {
    let (sender, receiver) = mpsc::channel(HINTS_KEPT);
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
    Box::new(Told(receiver))
}

/// How a watch came to its end.
enum End {
    /// It was closed: it may go on from this version.
    Closed,
    /// Its place is forgotten, or it said what we do not understand.
    Lost,
    /// Nobody listens any more.
    Unheard,
}

async fn listen(api: &Api, watched: &Watched, sender: &mpsc::Sender<Wake>) {
    let mut pause = PAUSE.0;
    loop {
        match watch_from_list(api, watched, sender, &mut pause).await {
            Ok(()) => return,
            Err(Some(error)) => tracing::debug!("no hints from Kubernetes: {error}"),
            Err(None) => {}
        }
        runtime::sleep_until(runtime::now() + runtime::jittered(pause)).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Watches for as long as it can go on from where it was. `Ok` when nobody listens.
async fn watch_from_list(
    api: &Api,
    watched: &Watched,
    sender: &mpsc::Sender<Wake>,
    pause: &mut Duration,
) -> Result<(), Option<StoreError>> {
    let list = api.list(watched).await?;
    let objects = list.objects.into_iter().map(|object| (object.name().to_owned(), object));
    let mut watch = Watch { objects: objects.collect(), version: list.version };
    if sender.send(Wake::Resync).await.is_err() {
        return Ok(());
    }
    loop {
        let Some(body) = api.watch(watched, &watch.version).await? else { return Err(None) };
        let began = watch.version.clone();
        match watch.follow(body, sender).await {
            End::Unheard => return Ok(()),
            End::Lost => return Err(None),
            End::Closed => {}
        }
        if watch.version != began {
            *pause = PAUSE.0;
        }
        runtime::sleep_until(runtime::now() + runtime::jittered(*pause)).await;
    }
}

struct Watch {
    objects: BTreeMap<String, Object>,
    version: String,
}

impl Watch {
    /// Passes on what is said, until it ends.
    async fn follow(&mut self, mut body: Body, sender: &mpsc::Sender<Wake>) -> End {
        let mut rest = Vec::new();
        while let Ok(Some(Ok(frame))) = tokio::time::timeout(SILENCE, body.frame()).await {
            let Some(bytes) = frame.data_ref() else { continue };
            rest.extend_from_slice(bytes);
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                let Some(wakes) = serde_json::from_slice(&line).ok().and_then(|line| self.hear(line)) else {
                    return End::Lost;
                };
                for wake in wakes {
                    if sender.send(wake).await.is_err() {
                        return End::Unheard;
                    }
                }
            }
            if rest.len() > LINE_MAX {
                return End::Lost;
            }
        }
        End::Closed
    }

    /// What a line means to us; `None` if the watch can not go on.
    fn hear(&mut self, mut line: Value) -> Option<Vec<Wake>> {
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
        let object = Object::read(object)?;
        let before = match kind.as_str() {
            "DELETED" => self.objects.remove(object.name()),
            _ => self.objects.insert(object.name().to_owned(), object.clone()),
        };
        Some(match (kind.as_str(), object.kind()) {
            // It may as well have left what we watch.
            ("DELETED", Some(SESSION)) => {
                let mut wakes = session_wakes(before.as_ref(), None);
                wakes.retain(|wake| !matches!(wake, Wake::Ended(_)));
                wakes
            }
            (_, Some(SESSION)) => session_wakes(before.as_ref(), Some(&object)),
            ("DELETED", _) => slot_of(&object).map(|(key, _)| Wake::Changed(key)).into_iter().collect(),
            _ => lease_wakes(before.as_ref(), &object),
        })
    }
}

/// A session joined, left, or ended.
fn session_wakes(before: Option<&Object>, after: Option<&Object>) -> Vec<Wake> {
    let record = |object: Option<&Object>| object.and_then(SessionRecord::of);
    let (before, after) = (record(before), record(after));
    let mut wakes = Vec::new();
    let id = |record: &Option<SessionRecord>| {
        record.as_ref().filter(|record| record.view.live).map(|record| record.view.id.clone())
    };
    if let Some(over) = id(&before).filter(|over| id(&after).as_ref() != Some(over)) {
        wakes.push(Wake::Ended(over));
    }
    let standing =
        |record: Option<SessionRecord>| record.map(|record| record.candidacies).unwrap_or_default();
    let (before, after) = (standing(before), standing(after));
    let differs = |all: &[Standing], one: &Standing| !all.contains(one);
    let moved =
        before.iter().filter(|s| differs(&after, s)).chain(after.iter().filter(|s| differs(&before, s)));
    let keys: BTreeSet<ElectionKey> = moved.map(|standing| standing.candidacy.election.clone()).collect();
    wakes.extend(keys.into_iter().map(Wake::Changed));
    wakes
}

/// A Lease changed hands, or what is noted of it did.
fn lease_wakes(before: Option<&Object>, after: &Object) -> Vec<Wake> {
    let Some((key, slot)) = slot_of(after) else { return Vec::new() };
    let noted = |object: &Object| Record { holder: None, ..object.note(RECORD).unwrap_or_default() };
    let (was, is) = (before.map(noted).unwrap_or_default(), noted(after));
    let holder = |object: &Object| (object.holder().map(str::to_owned), object.transitions());
    let is_moved = before.map(holder) != Some(holder(after));
    let mut wakes = Vec::new();
    if let Some(before) = before.filter(|before| before.holder().is_some() && after.holder().is_none()) {
        let last = is.last.as_ref();
        wakes.extend(holder_noted(before).map(|holder| Wake::Released {
            election: key.clone(),
            slot,
            token: token_of(before),
            by: holder.session.id,
            successor: last.and_then(|last| last.reserved.clone()),
            via: last.map(|last| last.via).unwrap_or_default(),
        }));
    }
    if is.asks.iter().any(|ask| !was.asks.contains(ask)) {
        wakes.extend(holder_noted(after).map(|holder| Wake::Asked(holder.session.id)));
    }
    if is_moved || was != is {
        wakes.push(Wake::Changed(key));
    }
    wakes
}
