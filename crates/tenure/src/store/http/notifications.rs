//! Notifications: a stream of one server, and of another one when it ends.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tenure_core::port::{BoxNotificationSource, Notification};
use tokio::sync::mpsc;

use super::client::{ServerClient, get};
use crate::runtime::jittered;
use crate::store::notification_channel::ChannelNotificationSource;

/// Number of buffered notifications. With a slower reader the server waits and sends `resync` instead.
const NOTIFICATIONS_MAX: usize = 256;
/// Maximum silence of a server: three keep-alive intervals.
const SILENCE_LIMIT: Duration = Duration::from_secs(15);
/// First and maximum delay before reconnecting.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// Maximum size of a notification.
const EVENT_MAX: usize = 1024 * 1024;

/// Receive notifications until the receiver is dropped.
pub(super) fn open(client: Arc<ServerClient>) -> BoxNotificationSource {
    let (sender, receiver) = mpsc::channel(NOTIFICATIONS_MAX);
    tokio::spawn(async move {
        tokio::select! {
            () = sender.closed() => {}
            () = listen(&client, &sender) => {}
        }
    });
    Box::new(ChannelNotificationSource(receiver))
}

async fn listen(client: &ServerClient, sender: &mpsc::Sender<Notification>) {
    let mut pause = PAUSE.0;
    loop {
        if follow(client, sender).await {
            pause = PAUSE.0;
        }
        tokio::time::sleep(jittered(pause)).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Forward the notifications of one server until its stream ends. Returns whether the stream was opened.
async fn follow(client: &ServerClient, sender: &mpsc::Sender<Notification>) -> bool {
    let Some(server) = client.in_order().into_iter().next() else { return false };
    let response = match server.stream(&get("/internal/v1/notifications"), client.access_token()).await {
        Ok(response) if response.status() == StatusCode::OK => response,
        Ok(response) => {
            if response.status() == StatusCode::UNAUTHORIZED {
                client.reload_access_token();
            } else if response.status().is_server_error() {
                client.failed(&server);
            }
            tracing::debug!(server = server.base.place(), status = %response.status(), "notification stream rejected");
            return false;
        }
        Err(error) => {
            client.failed(&server);
            tracing::debug!(%error, "opening the notification stream failed");
            return false;
        }
    };
    // Notifications before the stream was opened are lost.
    if sender.send(Notification::Resync).await.is_err() {
        return true;
    }
    // The set of servers may have changed.
    client.discover_servers().await;
    if !read(response.into_body(), sender).await {
        // Heartbeats use another server from now on, instead of discovering the failure themselves.
        client.failed(&server);
    }
    true
}

/// Read notifications until the stream ends; `false` if it failed.
async fn read(mut body: Incoming, sender: &mpsc::Sender<Notification>) -> bool {
    let mut events = SseParser::default();
    loop {
        let frame = match tokio::time::timeout(SILENCE_LIMIT, body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(None) => return true,
            Ok(Some(Err(_))) | Err(_) => return false,
        };
        let Some(bytes) = frame.data_ref() else { continue };
        let Some(notifications) = events.push(bytes) else { return false };
        for notification in notifications {
            if sender.send(notification).await.is_err() {
                return true;
            }
        }
    }
}

/// Parser of server-sent events.
#[derive(Default)]
struct SseParser {
    line: Vec<u8>,
    data: Vec<u8>,
}

impl SseParser {
    /// Complete notifications in these bytes; `None` if one is too large.
    fn push(&mut self, bytes: &[u8]) -> Option<Vec<Notification>> {
        let mut notifications = Vec::new();
        for &byte in bytes {
            if byte != b'\n' {
                self.line.push(byte);
            } else {
                let line = std::mem::take(&mut self.line);
                notifications.extend(self.end_line(line.strip_suffix(b"\r").unwrap_or(&line)));
            }
        }
        (self.line.len() + self.data.len() <= EVENT_MAX).then_some(notifications)
    }

    fn end_line(&mut self, line: &[u8]) -> Option<Notification> {
        if let Some(data) = line.strip_prefix(b"data:") {
            self.data.extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
            return None;
        }
        // Other lines are comments, or fields that are not used here.
        if !line.is_empty() || self.data.is_empty() {
            return None;
        }
        // A notification of a newer server that this client cannot parse counts as `resync`.
        match serde_json::from_slice(&std::mem::take(&mut self.data)) {
            // These are never sent between processes; a forged one would be trusted.
            Ok(Notification::SessionExpired(_) | Notification::ConnectionLost(_)) | Err(_) => {
                Some(Notification::Resync)
            }
            Ok(notification) => Some(notification),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::SessionId;

    #[test]
    fn notifications_are_parsed_across_chunks() {
        let text =
            b": alive\n\ndata: \"resync\"\n\nid: 7\nevent: notification\r\ndata: {\"session_ended\":\r\ndata: \"s\"}\r\n\r\n\
                     data: {\"new\": 1}\n\n";
        let expected = [
            Notification::Resync,
            Notification::SessionEnded(SessionId::from_stored("s")),
            Notification::Resync,
        ];
        for size in 1..text.len() {
            let mut events = SseParser::default();
            let received: Vec<_> = text.chunks(size).flat_map(|chunk| events.push(chunk).unwrap()).collect();
            assert_eq!(received, expected, "cut into {size}");
        }
    }

    #[test]
    fn an_oversized_notification_is_rejected() {
        let mut events = SseParser::default();
        let endless = vec![b'x'; EVENT_MAX];
        assert!(events.push(b"data: ").is_some());
        assert!(events.push(&endless).is_none());
    }
}
