//! Requests to the Kubernetes API server.
//!
//! A request is sent once, with a deadline. A temporary rejection (429, 5xx) is an error with unknown outcome. If the
//! response has a `Retry-After`, no further request is sent until then.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::{Method, Request, StatusCode};
use kube::client::Body;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tenure_core::BootInstant;
use tenure_core::port::{ErrorKind, StoreError};

use super::names::election_label;
use super::object::{ELECTION_LABEL, KIND, LeaseObject, SEVERAL};
use super::watch_scope::WatchScope;
use crate::runtime;

/// Time limit of a request. The election driver uses shorter limits of its own.
const DEADLINE: Duration = Duration::from_secs(10);
/// Maximum number of objects per response.
const CHUNK: u32 = 500;
/// Maximum number of attempts of a list.
const LIST_ATTEMPTS: u32 = 8;
/// Maximum accepted `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);
/// Seconds after which the API server ends a watch.
const WATCH_SECONDS: u32 = 290;

/// Client for the Leases of a namespace.
pub(super) struct Api {
    client: kube::Client,
    pub(super) namespace: String,
    /// Time until which reads and writes are throttled by the API server. They are tracked separately: reads are more
    /// expensive for the server, and a throttled read must not delay a heartbeat, which is a write.
    throttled: Mutex<ThrottleState>,
}

#[derive(Clone, Copy)]
struct ThrottleState {
    reads: BootInstant,
    writes: BootInstant,
}

impl ThrottleState {
    fn of(&mut self, method: &Method) -> &mut BootInstant {
        if method == Method::GET { &mut self.reads } else { &mut self.writes }
    }
}

/// Objects at one resource version.
pub(super) struct List {
    pub(super) objects: Vec<LeaseObject>,
    pub(super) version: String,
}

struct ApiResponse {
    status: StatusCode,
    body: Value,
}

impl Api {
    pub(super) fn new(client: kube::Client, namespace: String) -> Api {
        let never = BootInstant::from_nanos(0);
        Api { client, namespace, throttled: Mutex::new(ThrottleState { reads: never, writes: never }) }
    }

    fn leases(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace)
    }

    /// Check that the API server accepts our credentials.
    pub(super) async fn check_access(&self) -> Result<(), StoreError> {
        let answer =
            self.call(Method::GET, "list", "leases", &format!("{}?limit=1", self.leases()), None).await?;
        self.done("list", "leases", answer).map(drop)
    }

    /// List the objects of the given elections, or all objects of Tenure, at one resource version.
    pub(super) async fn list(&self, of: &WatchScope) -> Result<List, StoreError> {
        let selector = selector(of);
        for _ in 0..LIST_ATTEMPTS {
            // The continuation of the list has expired; start again.
            if let Some(list) = self.list_once(&selector).await? {
                return Ok(list);
            }
        }
        let message = "the API server expired every list before it was read completely; check its load";
        Err(StoreError::new(ErrorKind::Unavailable, message))
    }

    async fn list_once(&self, selector: &str) -> Result<Option<List>, StoreError> {
        let mut objects = Vec::new();
        let mut from = String::new();
        loop {
            let mut path = format!("{}?labelSelector={selector}&limit={CHUNK}", self.leases());
            if !from.is_empty() {
                path.push_str(&format!("&continue={}", encoded(&from)));
            }
            let answer = self.call(Method::GET, "list", "leases", &path, None).await?;
            if answer.status == StatusCode::GONE {
                return Ok(None);
            }
            let mut body = self.done("list", "leases", answer)?;
            if let Value::Array(items) = body["items"].take() {
                objects.extend(items.into_iter().filter_map(LeaseObject::read));
            }
            let metadata = &body["metadata"];
            from = metadata["continue"].as_str().unwrap_or_default().into();
            if from.is_empty() {
                let version = metadata["resourceVersion"].as_str().unwrap_or_default().into();
                return Ok(Some(List { objects, version }));
            }
        }
    }

    /// Get an object, or `None` if it does not exist.
    pub(super) async fn get(&self, name: &str) -> Result<Option<LeaseObject>, StoreError> {
        let answer =
            self.call(Method::GET, "get", "leases", &format!("{}/{name}", self.leases()), None).await?;
        match answer.status {
            StatusCode::NOT_FOUND => Ok(None),
            _ => Ok(LeaseObject::read(self.done("get", "leases", answer)?)),
        }
    }

    /// Create or update an object if its version is unchanged; `None` on a conflict.
    pub(super) async fn put(&self, object: &LeaseObject) -> Result<Option<LeaseObject>, StoreError> {
        let is_new = object.version().is_empty();
        let (method, verb, path) = match is_new {
            true => (Method::POST, "create", self.leases()),
            false => (Method::PUT, "update", format!("{}/{}", self.leases(), object.name())),
        };
        let answer = self.call(method, verb, "leases", &path, Some(object.json())).await?;
        match answer.status {
            StatusCode::CONFLICT => Ok(None),
            // The object was deleted.
            StatusCode::NOT_FOUND if !is_new => Ok(None),
            StatusCode::NOT_FOUND if answer.body["details"]["kind"] == "namespaces" => Err(StoreError::new(
                ErrorKind::Request,
                format!(
                    "the namespace {ns:?} does not exist in this cluster; create it with `kubectl create namespace {ns}`, or use another one: k8s:NAMESPACE",
                    ns = self.namespace
                ),
            )),
            _ => Ok(LeaseObject::read(self.done(verb, "leases", answer)?)),
        }
    }

    /// Watch the objects that [`list`](Self::list) returns, from a version on, one JSON event per line; `None` if the
    /// version has expired.
    pub(super) async fn watch(&self, of: &WatchScope, version: &str) -> Result<Option<Body>, StoreError> {
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&labelSelector={}&resourceVersion={}&timeoutSeconds={WATCH_SECONDS}",
            self.leases(),
            selector(of),
            encoded(version)
        );
        self.wait(&Method::GET).await;
        let sent = self.client.send(request(Method::GET, &path, None)?);
        let response = within(sent).await?.map_err(unreachable)?;
        match response.status() {
            StatusCode::OK => Ok(Some(response.into_body())),
            StatusCode::GONE => Ok(None),
            _ => {
                let answer = self.read(&Method::GET, response).await?;
                Err(self.refusal("watch", "leases", &answer))
            }
        }
    }

    /// Change the labels of a pod.
    pub(super) async fn label_pod(
        &self,
        pod: &str,
        key: &str,
        value: Option<&str>,
    ) -> Result<(), StoreError> {
        let path = format!("/api/v1/namespaces/{}/pods/{pod}", self.namespace);
        let change = json!({ "metadata": { "labels": { key: value } } });
        let answer = self.call(Method::PATCH, "patch", "pods", &path, Some(&change)).await?;
        self.done("patch", "pods", answer).map(drop)
    }

    /// Version of the API server.
    pub(super) async fn server(&self) -> Result<String, StoreError> {
        let answer = self.call(Method::GET, "get", "version", "/version", None).await?;
        Ok(self.done("get", "version", answer)?["gitVersion"].as_str().unwrap_or("unknown").into())
    }

    /// Whether RBAC permits an operation.
    pub(super) async fn may(&self, verb: &str, group: &str, resource: &str) -> Result<bool, StoreError> {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": { "resourceAttributes": {
                "namespace": self.namespace, "verb": verb, "group": group, "resource": resource,
            } },
        });
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let answer =
            self.call(Method::POST, "create", "selfsubjectaccessreviews", path, Some(&review)).await?;
        Ok(self.done("create", "selfsubjectaccessreviews", answer)?["status"]["allowed"] == json!(true))
    }

    async fn call(
        &self,
        method: Method,
        verb: &str,
        resource: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<ApiResponse, StoreError> {
        self.wait(&method).await;
        let request = request(method.clone(), path, body)?;
        let answer = within(async {
            let response = self.client.send(request).await.map_err(unreachable)?;
            self.read(&method, response).await
        })
        .await??;
        match answer.status.as_u16() {
            401 | 403 | 429 | 500.. => Err(self.refusal(verb, resource, &answer)),
            _ => Ok(answer),
        }
    }

    async fn read(&self, method: &Method, response: http::Response<Body>) -> Result<ApiResponse, StoreError> {
        let status = response.status();
        let after = response.headers().get(http::header::RETRY_AFTER);
        let after = after.and_then(|after| after.to_str().ok()?.trim().parse().ok()).map(Duration::from_secs);
        if let Some(after) = after.filter(|_| !status.is_success()) {
            let until = runtime::now() + after.min(RETRY_AFTER_MAX);
            let mut throttled = self.throttled.lock().unwrap_or_else(PoisonError::into_inner);
            let throttled = throttled.of(method);
            *throttled = (*throttled).max(until);
        }
        let bytes = response.into_body().collect_bytes().await.map_err(unreachable)?;
        // A proxy in front of the server may answer in plain text.
        let text = || json!({ "message": String::from_utf8_lossy(&bytes).trim().chars().take(300).collect::<String>() });
        Ok(ApiResponse { status, body: serde_json::from_slice(&bytes).unwrap_or_else(|_| text()) })
    }

    /// Wait until the server accepts requests again.
    async fn wait(&self, method: &Method) {
        let until = *self.throttled.lock().unwrap_or_else(PoisonError::into_inner).of(method);
        runtime::sleep_until(until).await;
    }

    fn done(&self, verb: &str, resource: &str, answer: ApiResponse) -> Result<Value, StoreError> {
        if answer.status.is_success() { Ok(answer.body) } else { Err(self.refusal(verb, resource, &answer)) }
    }

    fn refusal(&self, verb: &str, resource: &str, answer: &ApiResponse) -> StoreError {
        let reason = answer.body["message"].as_str().unwrap_or_default();
        let namespace = &self.namespace;
        let (kind, message) = match answer.status.as_u16() {
            401 => (
                ErrorKind::Denied,
                format!(
                    "the API server rejects the credentials ({reason}); in a pod, check that the service account token is mounted; elsewhere, check the \
                     kubeconfig: `kubectl auth whoami`"
                ),
            ),
            403 => (
                ErrorKind::Denied,
                format!(
                    "the API server denies {verb} {resource} in namespace {namespace} ({reason}); grant the verb `{verb}` on `{resource}`: \
                     deploy/kubernetes/rbac.yaml has a role with all required permissions, and `kubectl auth can-i {verb} {resource} -n {namespace}` \
                     checks them"
                ),
            ),
            429 => (
                ErrorKind::Unavailable,
                format!("the API server throttles requests ({reason}); Tenure retries later"),
            ),
            500.. => (
                ErrorKind::Unavailable,
                format!("the API server failed to {verb} {resource}: {} ({reason})", answer.status),
            ),
            _ => (
                ErrorKind::Request,
                format!(
                    "the API server rejects {verb} {resource} in namespace {namespace}: {} ({reason})",
                    answer.status
                ),
            ),
        };
        StoreError::new(kind, message)
    }
}

/// Label selector of the given elections, or of all objects of Tenure, URL-encoded.
fn selector(of: &WatchScope) -> String {
    match of {
        Some(keys) if !keys.is_empty() => {
            let named: String = keys.iter().map(|key| election_label(key) + ",").collect();
            encoded(&format!("{ELECTION_LABEL} in ({named}{SEVERAL})"))
        }
        _ => encoded(KIND),
    }
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn request(method: Method, path: &str, body: Option<&Value>) -> Result<Request<Body>, StoreError> {
    let content = match method {
        Method::PATCH => "application/merge-patch+json",
        _ => "application/json",
    };
    let body = body.map(|body| Body::from(body.to_string().into_bytes())).unwrap_or_else(Body::empty);
    Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::CONTENT_TYPE, content)
        .header(http::header::ACCEPT, "application/json")
        .body(body)
        .map_err(|error| {
            StoreError::new(ErrorKind::Request, format!("cannot build a request for {path}: {error}"))
        })
}

async fn within<T>(work: impl Future<Output = T>) -> Result<T, StoreError> {
    tokio::time::timeout(DEADLINE, work).await.map_err(|_| {
        StoreError::new(
            ErrorKind::Timeout,
            format!("the API server did not answer within {} s", DEADLINE.as_secs()),
        )
    })
}

fn unreachable(error: kube::Error) -> StoreError {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    StoreError::new(
        ErrorKind::Unreachable,
        format!("cannot reach the API server: {text}; check with `kubectl get --raw /readyz`"),
    )
}
