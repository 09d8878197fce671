//! One event, sent to its receiver.

use std::error::Error;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::Serialize;
use tenure::port::{Event, GroupKey, Push};
use tenure::runtime::Runtime;
use tenure::{HandlerError, Name};

use super::sign::signature;
use crate::metrics::{self, PushResult};

/// How long a receiver may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a connection is kept for the next event, and how many to one receiver.
const IDLE: (Duration, usize) = (Duration::from_secs(30), 16);
/// How much of an answer's body is read, so that its connection may be used again. Nobody is told what it says.
const ANSWER_MAX: usize = 64 * 1024;
/// The longest that a receiver may put an event off for.
const PUT_OFF_MAX: Duration = Duration::from_secs(24 * 3600);

type Line = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Sends events.
pub(super) struct Poster {
    runtime: Arc<dyn Runtime>,
    /// Made when it is first needed: it reads the system's certificates.
    line: OnceLock<Result<Line, String>>,
}

/// What is sent: the event as the API shows it, and where it is from.
#[derive(Serialize)]
struct Message<'a> {
    namespace: &'a Name,
    topic: &'a Name,
    group: &'a Name,
    #[serde(flatten)]
    event: &'a Event,
}

impl Poster {
    pub(super) fn new(runtime: Arc<dyn Runtime>) -> Poster {
        Poster { runtime, line: OnceLock::new() }
    }

    /// Sends an event. That it arrived is all that counts as done.
    pub(super) async fn post(
        &self,
        push: &Push,
        group: &GroupKey,
        event: &Event,
    ) -> Result<(), HandlerError> {
        let limit = Duration::from_millis(push.timeout_ms);
        let begun = self.runtime.now();
        let place = shown(&push.url);
        let (result, outcome) = match tokio::time::timeout(limit, self.answer(push, group, event)).await {
            Ok(Ok((status, _))) if status.is_success() => (PushResult::Done, Ok(())),
            Ok(Ok((status, headers))) => (PushResult::Refused, Err(refusal(&place, status, &headers))),
            Ok(Err(error)) => {
                (PushResult::Unreachable, Err(HandlerError::fail(format!("no answer from {place}: {error}"))))
            }
            Err(_) => (
                PushResult::Late,
                Err(HandlerError::fail(format!("no answer from {place} within {limit:?}"))),
            ),
        };
        metrics::pushed(group, result, self.runtime.now().since(begun));
        outcome
    }

    async fn answer(
        &self,
        push: &Push,
        group: &GroupKey,
        event: &Event,
    ) -> Result<(StatusCode, HeaderMap), String> {
        // The receiver compares it with its own clock: it is when this attempt was made.
        let request = message(push, group, event, self.runtime.wall_ms() / 1000)?;
        let line = self.line.get_or_init(line).as_ref().map_err(Clone::clone)?;
        let response = line.request(request).await.map_err(|error| root(&error))?;
        let (head, body) = response.into_parts();
        drain(body).await;
        Ok((head.status, head.headers))
    }
}

/// The request that carries an event.
fn message(
    push: &Push,
    group: &GroupKey,
    event: &Event,
    seconds: i64,
) -> Result<Request<Full<Bytes>>, String> {
    let GroupKey { topic, name } = group;
    let message = Message { namespace: &topic.namespace, topic: &topic.name, group: name, event };
    let body = serde_json::to_vec(&message).map_err(|error| error.to_string())?;
    let id = event.id.to_string();
    Request::builder()
        .method(Method::POST)
        .uri(&push.url)
        .header(CONTENT_TYPE, "application/json")
        .header(USER_AGENT, concat!("tenure/", env!("CARGO_PKG_VERSION")))
        .header("webhook-signature", signature(&push.secret, &id, seconds, &body))
        .header("webhook-id", id)
        .header("webhook-timestamp", seconds)
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| error.to_string())
}

/// What a status that is no success means.
fn refusal(place: &str, status: StatusCode, headers: &HeaderMap) -> HandlerError {
    if status.is_redirection() {
        return HandlerError::fail(format!(
            "{place} answered {status}; redirects are not followed: push to where it leads"
        ));
    }
    let told = format!("{place} answered {status}");
    let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    match seconds.map(Duration::from_secs).filter(|after| *after <= PUT_OFF_MAX) {
        Some(after) => HandlerError::retry_after(after, told),
        None => HandlerError::fail(told),
    }
}

/// Reads an answer to its end, so that its connection may be used again.
async fn drain(body: Incoming) {
    // What it says is nobody's business here, nor whether it could be read: the status has said it all.
    let _ = Limited::new(body, ANSWER_MAX).collect().await;
}

/// HTTP/1.1, with the system's certificates; no proxies, no redirects, no cookies.
fn line() -> Result<Line, String> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT));
    let https = HttpsConnectorBuilder::new()
        .with_provider_and_native_roots(rustls::crypto::ring::default_provider())
        .map_err(|error| format!("this server can not read the system's certificates: {error}"))?;
    let https = https.https_or_http().enable_http1().wrap_connector(tcp);
    let mut builder = Client::builder(TokioExecutor::new());
    builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE.0).pool_max_idle_per_host(IDLE.1);
    Ok(builder.build(https))
}

/// An address as it may be read by others: its query may be a secret.
fn shown(url: &str) -> String {
    match url.parse::<Uri>() {
        Ok(uri) => format!(
            "{}://{}{}",
            uri.scheme_str().unwrap_or_default(),
            uri.authority().map(|authority| authority.as_str()).unwrap_or_default(),
            uri.path()
        ),
        Err(_) => "an address that can not be read".into(),
    }
}

/// What broke, down to its cause.
fn root(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_where_and_what_and_when_to_come_again() {
        let none = HeaderMap::new();
        let place = shown("https://example.org:8443/hook?token=secret");
        assert_eq!(place, "https://example.org:8443/hook");
        let told = refusal(&place, StatusCode::INTERNAL_SERVER_ERROR, &none).to_string();
        assert_eq!(told, "https://example.org:8443/hook answered 500 Internal Server Error");
        assert!(refusal(&place, StatusCode::FOUND, &none).to_string().contains("redirects are not followed"));
        let mut later = HeaderMap::new();
        later.insert(RETRY_AFTER, 7.into());
        let after = HandlerError::retry_after(
            Duration::from_secs(7),
            format!("{place} answered 429 Too Many Requests"),
        );
        assert_eq!(refusal(&place, StatusCode::TOO_MANY_REQUESTS, &later), after);
    }
}
