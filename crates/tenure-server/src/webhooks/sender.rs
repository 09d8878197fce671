//! Sender of webhook requests for events and ticks.

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
use tenure::port::{Event, GroupKey, WebhookSettings};
use tenure::runtime::Runtime;
use tenure::{HandlerError, Name, TaskError};

use super::dns::{PRIVATE, PublicDnsResolver, host_is_private};
use super::sign::signature;
use crate::api::push_address;
use crate::metrics::{self, WebhookResult};

/// Timeout of connecting to a receiver.
const CONNECT: Duration = Duration::from_secs(5);
/// Idle timeout of connections, and their maximum number per receiver.
const IDLE: (Duration, usize) = (Duration::from_secs(30), 16);
/// Maximum bytes of a response body that are read, so that the connection can be reused. Its content is
/// ignored.
const RESPONSE_BYTES_MAX: usize = 64 * 1024;
/// Maximum `Retry-After` of a receiver.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);

/// Timeout of reading the rest of a response.
const DRAIN: Duration = Duration::from_secs(1);

type HttpsClient = Client<HttpsConnector<HttpConnector<PublicDnsResolver>>, Full<Bytes>>;

/// Sender of webhook requests.
pub(crate) struct WebhookSender {
    /// Created on first use: it reads the system's certificates.
    line: OnceLock<Result<HttpsClient, String>>,
    runtime: Arc<dyn Runtime>,
    /// Whether private addresses are allowed.
    private: bool,
}

/// Webhook request.
pub(super) struct WebhookRequest<'a> {
    pub(super) url: &'a str,
    /// Signing secret, if any.
    pub(super) secret: Option<&'a str>,
    /// Id, the same at every attempt.
    pub(super) id: String,
    /// JSON body.
    pub(super) body: Vec<u8>,
    /// Timeout of the response.
    pub(super) limit: Duration,
}

/// Reason why a request failed, and the retry delay that the receiver asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WebhookError {
    pub(super) message: String,
    pub(super) retry_in: Option<Duration>,
    /// The receiver wants no more requests.
    pub(super) unsubscribed: bool,
}

impl WebhookError {
    fn new(message: String) -> WebhookError {
        WebhookError { message, retry_in: None, unsubscribed: false }
    }
}

impl From<WebhookError> for HandlerError {
    fn from(WebhookError { message, retry_in: after, .. }: WebhookError) -> HandlerError {
        match after {
            Some(after) => HandlerError::retry_in(after, message),
            None => HandlerError::fail(message),
        }
    }
}

impl From<WebhookError> for TaskError {
    fn from(WebhookError { message, retry_in: after, .. }: WebhookError) -> TaskError {
        match after {
            Some(after) => TaskError::retry_in(after, message),
            None => TaskError::fail(message),
        }
    }
}

/// Body of an event webhook: the event as in the API, with its namespace, topic and group.
#[derive(Serialize)]
struct EventWebhookBody<'a> {
    namespace: &'a Name,
    topic: &'a Name,
    group: &'a Name,
    #[serde(flatten)]
    event: &'a Event,
}

impl WebhookSender {
    pub(crate) fn new(runtime: Arc<dyn Runtime>, private: bool) -> WebhookSender {
        WebhookSender { line: OnceLock::new(), runtime, private }
    }

    /// Send an event. A response in time with `2xx` means processed.
    pub(super) async fn send_event(
        &self,
        settings: &WebhookSettings,
        group: &GroupKey,
        event: &Event,
    ) -> Result<(), WebhookError> {
        let GroupKey { topic, name } = group;
        let message =
            EventWebhookBody { namespace: &topic.namespace, topic: &topic.name, group: name, event };
        let webhook = WebhookRequest {
            url: &settings.url,
            secret: Some(&settings.secret),
            // Two groups may send one event to one receiver, which drops duplicate ids. Standard Webhooks ids
            // contain no dots.
            id: format!("{}-{}", name.as_str().replace('.', "%2e"), event.id),
            body: serde_json::to_vec(&message).map_err(|error| WebhookError::new(error.to_string()))?,
            limit: Duration::from_millis(settings.timeout_ms),
        };
        let (result, took, outcome) = self.send(webhook).await;
        metrics::group_webhook_sent(group, result, took);
        outcome
    }

    /// Send a request. Returns its result for the metrics, its duration, and the error if it failed.
    pub(super) async fn send(
        &self,
        webhook: WebhookRequest<'_>,
    ) -> (WebhookResult, Duration, Result<(), WebhookError>) {
        let begun = self.runtime.now();
        let (place, limit) = (shown(webhook.url), webhook.limit);
        let (result, outcome) = match tokio::time::timeout(limit, self.answer(webhook)).await {
            Ok(Ok((status, _))) if status.is_success() => (WebhookResult::Delivered, Ok(())),
            Ok(Ok((status, headers))) => (WebhookResult::Rejected, Err(refusal(&place, status, &headers))),
            Ok(Err(error)) => (
                WebhookResult::Unreachable,
                Err(WebhookError::new(format!("no response from {place}: {error}"))),
            ),
            Err(_) => (
                WebhookResult::Timeout,
                Err(WebhookError::new(format!("no response from {place} within {limit:?}"))),
            ),
        };
        (result, self.runtime.now().since(begun), outcome)
    }

    async fn answer(&self, webhook: WebhookRequest<'_>) -> Result<(StatusCode, HeaderMap), String> {
        if !self.private && host_is_private(webhook.url) {
            return Err(PRIVATE.into());
        }
        // Time of this attempt; the receiver compares it with its own clock.
        let request = request(webhook, self.runtime.wall_ms() / 1000)?;
        let line = self.line.get_or_init(|| line(self.private)).as_ref().map_err(Clone::clone)?;
        let response = line.request(request).await.map_err(|error| root(&error))?;
        let (head, body) = response.into_parts();
        // The status decides; the rest of the body is read in the background.
        tokio::spawn(tokio::time::timeout(DRAIN, drain(body)));
        Ok((head.status, head.headers))
    }
}

/// Build the HTTP request.
fn request(webhook: WebhookRequest<'_>, seconds: i64) -> Result<Request<Full<Bytes>>, String> {
    let WebhookRequest { url, secret, id, body, .. } = webhook;
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

/// Error for a status other than `2xx`.
fn refusal(place: &str, status: StatusCode, headers: &HeaderMap) -> WebhookError {
    if status.is_redirection() {
        return WebhookError::new(format!(
            "{place} responded with {status}; redirects are not followed: use the target URL"
        ));
    }
    let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let after = seconds.map(Duration::from_secs).filter(|after| *after <= RETRY_AFTER_MAX);
    WebhookError {
        message: format!("{place} responded with {status}"),
        retry_in: after,
        unsubscribed: status == StatusCode::GONE,
    }
}

/// Read a response to its end, so that the connection can be reused.
async fn drain(body: Incoming) {
    // Neither the content nor a read error matters: the status has decided.
    let _ = Limited::new(body, RESPONSE_BYTES_MAX).collect().await;
}

/// Client for HTTP/1.1 with the system's certificates; no proxies, redirects or cookies.
fn line(private: bool) -> Result<HttpsClient, String> {
    let mut tcp = HttpConnector::new_with_resolver(PublicDnsResolver::new(private));
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT));
    let https = HttpsConnectorBuilder::new()
        .with_provider_and_native_roots(rustls::crypto::ring::default_provider())
        .map_err(|error| format!("reading the system's certificates failed: {error}"))?;
    let https = https.https_or_http().enable_http1().wrap_connector(tcp);
    let mut builder = Client::builder(TokioExecutor::new());
    builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE.0).pool_max_idle_per_host(IDLE.1);
    Ok(builder.build(https))
}

/// URL for display.
fn shown(url: &str) -> String {
    push_address(url).unwrap_or_else(|_| "an invalid URL".into())
}

/// Innermost cause of an error.
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
    fn a_webhook_error_contains_url_status_and_retry_delay() {
        let none = HeaderMap::new();
        let place = shown("https://example.org:8443/hook?token=secret");
        assert_eq!(place, "https://example.org:8443/hook");
        let message = refusal(&place, StatusCode::INTERNAL_SERVER_ERROR, &none);
        assert_eq!(message.message, "https://example.org:8443/hook responded with 500 Internal Server Error");
        assert!(refusal(&place, StatusCode::FOUND, &none).message.contains("redirects are not followed"));
        let mut later = HeaderMap::new();
        later.insert(RETRY_AFTER, 7.into());
        let refused = refusal(&place, StatusCode::TOO_MANY_REQUESTS, &later);
        let (message, after) =
            (format!("{place} responded with 429 Too Many Requests"), Duration::from_secs(7));
        assert_eq!(HandlerError::from(refused.clone()), HandlerError::retry_in(after, &message));
        assert_eq!(TaskError::from(refused), TaskError::retry_in(after, message));
    }

    #[test]
    fn a_webhook_without_secret_is_not_signed() {
        let webhook = |secret| WebhookRequest {
            url: "https://example.org/hook",
            secret,
            id: "tick-7".into(),
            body: b"{}".to_vec(),
            limit: Duration::ZERO,
        };
        let signed = request(webhook(Some("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")), 9).unwrap();
        assert!(signed.headers()["webhook-signature"].to_str().unwrap().starts_with("v1,"));
        assert_eq!(
            (&signed.headers()["webhook-id"], &signed.headers()["webhook-timestamp"]),
            (&"tick-7".parse().unwrap(), &"9".parse().unwrap())
        );
        assert!(!request(webhook(None), 9).unwrap().headers().contains_key("webhook-signature"));
    }
}
