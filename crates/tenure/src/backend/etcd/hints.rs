//! Hints: what etcd says happens to our keys.
//!
//! One watch, of elections, of requests, and of sessions that end; not of sessions that beat. It begins wherever etcd is, so the
//! first thing that is said is that something may have been missed; a watch that breaks, or whose revision was compacted away, begins
//! anew in the same way.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tenure_core::SessionId;
use tenure_core::port::{Wake, Wakes};
use tokio::sync::mpsc;

use super::gateway::Gateway;
use super::message::{Happened, Range, WatchLine};
use super::records::{ASKS, ELECTIONS, SESSIONS, election, election_of};
use crate::backend::told::Told;
use crate::runtime;

/// How many hints wait for their reader.
const HINTS_KEPT: usize = 256;
/// How long we wait before we watch again, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// The longest line that is read.
const LINE_MAX: usize = 16 << 20;

/// Listens until the receiver is dropped.
pub(super) fn open(gateway: Arc<Gateway>) -> Wakes {
    let (sender, receiver) = mpsc::channel(HINTS_KEPT);
    for ask in asks() {
        let (gateway, sender) = (gateway.clone(), sender.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = sender.closed() => {}
                () = listen(&gateway, &ask, &sender) => {}
            }
        });
    }
    Box::new(Told(receiver))
}

/// What is watched.
fn asks() -> [Value; 3] {
    let watch = |prefix: &str, filters: Value| {
        let Range { key, range_end, .. } = Range::below(prefix);
        json!({ "create_request": {
            "key": key, "range_end": range_end, "prev_kv": true, "progress_notify": true, "filters": filters,
        } })
    };
    [
        watch(ELECTIONS, json!([])),
        watch(ASKS, json!(["NODELETE"])),
        // Of sessions only that they end.
        watch(SESSIONS, json!(["NOPUT"])),
    ]
}

async fn listen(gateway: &Gateway, ask: &Value, sender: &mpsc::Sender<Wake>) {
    let mut pause = PAUSE.0;
    loop {
        match gateway.watch(ask).await {
            Ok(body) => {
                pause = PAUSE.0;
                follow(body, sender).await;
            }
            Err(error) => tracing::debug!("no hints from etcd: {error}"),
        }
        runtime::sleep_until(runtime::now() + runtime::jittered(pause)).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Passes on what is said, until it ends.
async fn follow(mut body: Incoming, sender: &mpsc::Sender<Wake>) {
    let mut rest = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        let Some(bytes) = frame.data_ref() else { continue };
        rest.extend_from_slice(bytes);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            let Ok(line) = serde_json::from_slice::<WatchLine>(&line) else { return };
            let Some(answer) = line.result else { return };
            if answer.canceled {
                return;
            }
            // The first answer says that it has begun: what was before is not told. And of what we can not read, looking will tell.
            let began = answer.events.is_empty();
            let wakes =
                if began { vec![Wake::Resync] } else { answer.events.iter().flat_map(wakes).collect() };
            for wake in wakes {
                if sender.send(wake).await.is_err() {
                    return;
                }
            }
        }
        if rest.len() > LINE_MAX {
            return;
        }
    }
}

/// What an event of etcd's means to us.
fn wakes(event: &Happened) -> Vec<Wake> {
    let key = &event.kv.key;
    if let Some(id) = key.strip_prefix(SESSIONS) {
        return vec![Wake::Ended(SessionId::from_stored(id))];
    }
    if let Some(rest) = key.strip_prefix(ASKS) {
        let id = rest.split('/').next().unwrap_or_default();
        return vec![Wake::Asked(SessionId::from_stored(id))];
    }
    let Some(key) = election_of(key) else { return Vec::new() };
    let mut wakes = released(event, &key).unwrap_or_default();
    wakes.push(Wake::Changed(key));
    wakes
}

/// The leases that were given back.
fn released(event: &Happened, key: &tenure_core::ElectionKey) -> Option<Vec<Wake>> {
    if event.kind == "DELETE" {
        return None;
    }
    let (before, after) = (election(event.prev_kv.as_ref()?).ok()?, election(&event.kv).ok()?);
    let slots = before.leases.iter().zip(&after.leases).zip(0..);
    let freed = slots.filter_map(|((before, after), slot)| {
        let by = before.session.clone().filter(|_| after.session.is_none())?;
        let (election, token) = (key.clone(), before.token);
        Some(Wake::Released { election, slot, token, by, successor: after.reserved.clone(), via: after.via })
    });
    Some(freed.collect())
}
