//! One message, sent to its receiver: an event that is pushed, or a call of a schedule.

use std::error::Error;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::Serialize;
use tenure::port::{Event, GroupKey, Push};
use tenure::runtime::Runtime;
use tenure::{HandlerError, Name, TaskError};

use super::resolve::{PRIVATE, Resolver, host_is_private};
use super::sign::signature;
use crate::api::push_address;
use crate::metrics::{self, PushResult};

/// How long a receiver may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a connection is kept for the next event, and how many to one receiver.
const IDLE: (Duration, usize) = (Duration::from_secs(30), 16);
/// How much of an answer's body is read, so that its connection may be used again. Nobody is told what it says.
const ANSWER_MAX: usize = 64 * 1024;
/// The longest that a receiver may put an event off for.
const PUT_OFF_MAX: Duration = Duration::from_secs(24 * 3600);

/// For how long the rest of an answer is read.
const DRAIN: Duration = Duration::from_secs(1);

type Line = Client<HttpsConnector<HttpConnector<Resolver>>, Full<Bytes>>;

/// Sends messages.
pub(crate) struct Poster {
    /// Made when it is first needed: it reads the system's certificates.
    line: OnceLock<Result<Line, String>>,
    runtime: Arc<dyn Runtime>,
    /// Whether it sends to private addresses too.
    private: bool,
}

/// What is sent.
pub(super) struct Parcel<'a> {
    pub(super) url: &'a str,
    /// What it is signed with, if it is.
    pub(super) secret: Option<&'a str>,
    /// The same at every attempt.
    pub(super) id: String,
    /// JSON.
    pub(super) body: Vec<u8>,
    /// How long an answer may take.
    pub(super) limit: Duration,
}

/// Why something did not arrive, and after how long the receiver wants to be asked again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Undelivered {
    pub(super) told: String,
    pub(super) after: Option<Duration>,
    /// The receiver wants nothing any more.
    pub(super) gone: bool,
}

impl Undelivered {
    fn because(told: String) -> Undelivered {
        Undelivered { told, after: None, gone: false }
    }
}

impl From<Undelivered> for HandlerError {
    fn from(Undelivered { told, after, .. }: Undelivered) -> HandlerError {
        match after {
            Some(after) => HandlerError::retry_after(after, told),
            None => HandlerError::fail(told),
        }
    }
}

impl From<Undelivered> for TaskError {
    fn from(Undelivered { told, after, .. }: Undelivered) -> TaskError {
        match after {
            Some(after) => TaskError::retry_after(after, told),
            None => TaskError::fail(told),
        }
    }
}

/// What is sent of an event: the event as the API shows it, and where it is from.
#[derive(Serialize)]
struct Message<'a> {
    namespace: &'a Name,
    topic: &'a Name,
    group: &'a Name,
    #[serde(flatten)]
    event: &'a Event,
}

impl Poster {
    pub(crate) fn new(runtime: Arc<dyn Runtime>, private: bool) -> Poster {
        Poster { line: OnceLock::new(), runtime, private }
    }

    /// Sends an event. That it arrived is all that counts as done.
    pub(super) async fn post(&self, push: &Push, group: &GroupKey, event: &Event) -> Result<(), Undelivered> {
        let GroupKey { topic, name } = group;
        let message = Message { namespace: &topic.namespace, topic: &topic.name, group: name, event };
        let parcel = Parcel {
            url: &push.url,
            secret: Some(&push.secret),
            // Two groups may push one event to one receiver, which drops what it has heard. A standard id has no dots.
            id: format!("{}-{}", name.as_str().replace('.', "%2e"), event.id),
            body: serde_json::to_vec(&message).map_err(|error| Undelivered::because(error.to_string()))?,
            limit: Duration::from_millis(push.timeout_ms),
        };
        let (result, took, outcome) = self.send(parcel).await;
        metrics::pushed(group, result, took);
        outcome
    }

    /// Sends a message: what came of it, and how long that took.
    pub(super) async fn send(&self, parcel: Parcel<'_>) -> (PushResult, Duration, Result<(), Undelivered>) {
        let begun = self.runtime.now();
        let (place, limit) = (shown(parcel.url), parcel.limit);
        let (result, outcome) = match tokio::time::timeout(limit, self.answer(parcel)).await {
            Ok(Ok((status, _))) if status.is_success() => (PushResult::Done, Ok(())),
            Ok(Ok((status, headers))) => (PushResult::Refused, Err(refusal(&place, status, &headers))),
            Ok(Err(error)) => (
                PushResult::Unreachable,
                Err(Undelivered::because(format!("no answer from {place}: {error}"))),
            ),
            Err(_) => (
                PushResult::Late,
                Err(Undelivered::because(format!("no answer from {place} within {limit:?}"))),
            ),
        };
        (result, self.runtime.now().since(begun), outcome)
    }

    async fn answer(&self, parcel: Parcel<'_>) -> Result<(StatusCode, HeaderMap), String> {
        if !self.private && host_is_private(parcel.url) {
            return Err(PRIVATE.into());
        }
        // The receiver compares it with its own clock: it is when this attempt was made.
        let request = request(parcel, self.runtime.wall_ms() / 1000)?;
        let line = self.line.get_or_init(|| line(self.private)).as_ref().map_err(Clone::clone)?;
        let response = line.request(request).await.map_err(|error| root(&error))?;
        let (head, body) = response.into_parts();
        // The status has said it all: whoever is slow with the rest has taken it, or not, all the same.
        tokio::spawn(tokio::time::timeout(DRAIN, drain(body)));
        Ok((head.status, head.headers))
    }
}

/// The request that carries a message.
fn request(parcel: Parcel<'_>, seconds: i64) -> Result<Request<Full<Bytes>>, String> {
    let Parcel { url, secret, id, body, .. } = parcel;
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(url)
        .header(CONTENT_TYPE, "application/json")
        .header(USER_AGENT, concat!("tenure/", env!("CARGO_PKG_VERSION")))
        .header("webhook-timestamp", seconds);
    if let Some(secret) = secret {
        request = request.header("webhook-signature", signature(secret, &id, seconds, &body));
    }
    request.header("webhook-id", id).body(Full::new(Bytes::from(body))).map_err(|error| error.to_string())
}

/// What a status that is no success means.
fn refusal(place: &str, status: StatusCode, headers: &HeaderMap) -> Undelivered {
    if status.is_redirection() {
        return Undelivered::because(format!(
            "{place} answered {status}; redirects are not followed: give the address to which it leads"
        ));
    }
    let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let after = seconds.map(Duration::from_secs).filter(|after| *after <= PUT_OFF_MAX);
    Undelivered { told: format!("{place} answered {status}"), after, gone: status == StatusCode::GONE }
}

/// Reads an answer to its end, so that its connection may be used again.
async fn drain(body: Incoming) {
    // What it says is nobody's business here, nor whether it could be read: the status has said it all.
    let _ = Limited::new(body, ANSWER_MAX).collect().await;
}

/// HTTP/1.1, with the system's certificates; no proxies, no redirects, no cookies.
fn line(private: bool) -> Result<Line, String> {
    let mut tcp = HttpConnector::new_with_resolver(Resolver::new(private));
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

/// An address as it may be read by others.
fn shown(url: &str) -> String {
    push_address(url).unwrap_or_else(|_| "an address that can not be read".into())
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
        let told = refusal(&place, StatusCode::INTERNAL_SERVER_ERROR, &none);
        assert_eq!(told.told, "https://example.org:8443/hook answered 500 Internal Server Error");
        assert!(refusal(&place, StatusCode::FOUND, &none).told.contains("redirects are not followed"));
        let mut later = HeaderMap::new();
        later.insert(RETRY_AFTER, 7.into());
        let refused = refusal(&place, StatusCode::TOO_MANY_REQUESTS, &later);
        let (told, after) = (format!("{place} answered 429 Too Many Requests"), Duration::from_secs(7));
        assert_eq!(HandlerError::from(refused.clone()), HandlerError::retry_after(after, &told));
        assert_eq!(TaskError::from(refused), TaskError::retry_after(after, told));
    }

    #[test]
    fn what_has_no_secret_is_not_signed() {
        let parcel = |secret| Parcel {
            url: "https://example.org/hook",
            secret,
            id: "call-7".into(),
            body: b"{}".to_vec(),
            limit: Duration::ZERO,
        };
        let signed = request(parcel(Some("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")), 9).unwrap();
        assert!(signed.headers()["webhook-signature"].to_str().unwrap().starts_with("v1,"));
        assert_eq!(
            (&signed.headers()["webhook-id"], &signed.headers()["webhook-timestamp"]),
            (&"call-7".parse().unwrap(), &"9".parse().unwrap())
        );
        assert!(!request(parcel(None), 9).unwrap().headers().contains_key("webhook-signature"));
    }
}
