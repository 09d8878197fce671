//! Hints: a stream of events from one server, and from another when it ends.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tenure_core::port::{Wake, Wakes};
use tokio::sync::mpsc;

use super::caller::{Caller, get};
use crate::backend::told::Told;
use crate::runtime::jittered;

/// How many hints wait for their reader. When it is slower, the server waits, and tells it to look at everything instead.
const HINTS_KEPT: usize = 256;
/// How long a server may say nothing at all: three of its signs of life.
const SILENCE_LIMIT: Duration = Duration::from_secs(15);
/// How long we wait before we listen again, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// The longest event that is read.
const EVENT_MAX: usize = 1024 * 1024;

/// Listens until the receiver is dropped.
pub(super) fn open(caller: Arc<Caller>) -> Wakes {
    let (sender, receiver) = mpsc::channel(HINTS_KEPT);
    tokio::spawn(async move {
        tokio::select! {
            () = sender.closed() => {}
            () = listen(&caller, &sender) => {}
        }
    });
    Box::new(Told(receiver))
}

async fn listen(caller: &Caller, sender: &mpsc::Sender<Wake>) {
    let mut pause = PAUSE.0;
    loop {
        if follow(caller, sender).await {
            pause = PAUSE.0;
        }
        tokio::time::sleep(jittered(pause)).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Passes on what one server says, until it stops. Whether it said anything.
async fn follow(caller: &Caller, sender: &mpsc::Sender<Wake>) -> bool {
    let Some(server) = caller.in_order().into_iter().next() else { return false };
    let response = match server.stream(&get("/v1/wakes"), caller.proof()).await {
        Ok(response) if response.status() == StatusCode::OK => response,
        Ok(response) => {
            if response.status() == StatusCode::UNAUTHORIZED {
                caller.renew_proof();
            } else if response.status().is_server_error() {
                caller.failed(&server);
            }
            tracing::debug!(server = server.base.place(), status = %response.status(), "no hints");
            return false;
        }
        Err(error) => {
            caller.failed(&server);
            tracing::debug!("no hints: {error}");
            return false;
        }
    };
    // What was said while nobody listened is unknown.
    if sender.send(Wake::Resync).await.is_err() {
        return true;
    }
    // Who the others are may have changed since.
    caller.look_around().await;
    if !read(response.into_body(), sender).await {
        // Beats find another server before they would find this one dead.
        caller.failed(&server);
    }
    true
}

/// Reads events until they end; `false` if they broke off.
async fn read(mut body: Incoming, sender: &mpsc::Sender<Wake>) -> bool {
    let mut events = Events::default();
    loop {
        let frame = match tokio::time::timeout(SILENCE_LIMIT, body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(None) => return true,
            Ok(Some(Err(_))) | Err(_) => return false,
        };
        let Some(bytes) = frame.data_ref() else { continue };
        let Some(heard) = events.take_in(bytes) else { return false };
        for wake in heard {
            if sender.send(wake).await.is_err() {
                return true;
            }
        }
    }
}

/// Events, as they come in.
#[derive(Default)]
struct Events {
    line: Vec<u8>,
    data: Vec<u8>,
}

impl Events {
    /// The hints that are whole now; `None` if one is too long to be one.
    fn take_in(&mut self, bytes: &[u8]) -> Option<Vec<Wake>> {
        let mut heard = Vec::new();
        for &byte in bytes {
            if byte != b'\n' {
                self.line.push(byte);
            } else {
                let line = std::mem::take(&mut self.line);
                heard.extend(self.line_ends(line.strip_suffix(b"\r").unwrap_or(&line)));
            }
        }
        (self.line.len() + self.data.len() <= EVENT_MAX).then_some(heard)
    }

    fn line_ends(&mut self, line: &[u8]) -> Option<Wake> {
        if let Some(data) = line.strip_prefix(b"data:") {
            self.data.extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
            return None;
        }
        // Everything else but an empty line is a comment, or a field that says nothing to us.
        if !line.is_empty() || self.data.is_empty() {
            return None;
        }
        // What a newer server says, and we do not understand, may have been anything.
        match serde_json::from_slice(&std::mem::take(&mut self.data)) {
            // These are never sent from one process to another, and would be believed.
            Ok(Wake::Died(_) | Wake::Severed(_)) | Err(_) => Some(Wake::Resync),
            Ok(wake) => Some(wake),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::SessionId;

    #[test]
    fn events_are_read_however_they_are_cut() {
        let text =
            b": alive\n\ndata: \"resync\"\n\nid: 7\nevent: wake\r\ndata: {\"ended\":\r\ndata: \"s\"}\r\n\r\n\
                     data: {\"new\": 1}\n\n";
        let expected = [Wake::Resync, Wake::Ended(SessionId::from_stored("s")), Wake::Resync];
        for size in 1..text.len() {
            let mut events = Events::default();
            let heard: Vec<_> = text.chunks(size).flat_map(|chunk| events.take_in(chunk).unwrap()).collect();
            assert_eq!(heard, expected, "cut into {size}");
        }
    }

    #[test]
    fn an_event_without_end_is_given_up() {
        let mut events = Events::default();
        let endless = vec![b'x'; EVENT_MAX];
        assert!(events.take_in(b"data: ").is_some());
        assert!(events.take_in(&endless).is_none());
    }
}
