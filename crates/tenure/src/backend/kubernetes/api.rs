//! The API server, call by call.
//!
//! A call is made once, and has a deadline. What the server refuses for now (429, 5xx) is an error whose outcome is not known, and if it
//! says for how long, nothing more is sent until then.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::{Method, Request, StatusCode};
use kube::client::Body;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tenure_core::Moment;
use tenure_core::port::{StoreError, Trouble};

use super::interest::Watched;
use super::names::about;
use super::object::{ABOUT, KIND, Object, SEVERAL};
use crate::runtime;

/// How long an answer may take. The machine gives up its own calls sooner.
const DEADLINE: Duration = Duration::from_secs(10);
/// How many objects come in one answer.
const CHUNK: u32 = 500;
/// How often a list is begun anew.
const LISTS: u32 = 8;
/// The longest that we let ourselves be told to wait.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// After how many seconds the server ends a watch.
const WATCH_SECONDS: u32 = 290;

/// The Leases of a namespace.
pub(super) struct Api {
    client: kube::Client,
    pub(super) namespace: String,
    /// Before this, nothing is read, and nothing written: the server asked for it. Reading costs it more, so one does not stand for the other: a beat is a write.
    paused: Mutex<Paused>,
}

#[derive(Clone, Copy)]
struct Paused {
    reads: Moment,
    writes: Moment,
}

impl Paused {
    fn of(&mut self, method: &Method) -> &mut Moment {
        if method == Method::GET { &mut self.reads } else { &mut self.writes }
    }
}

/// Objects as they were at one moment.
pub(super) struct List {
    pub(super) objects: Vec<Object>,
    pub(super) version: String,
}

struct Answer {
    status: StatusCode,
    body: Value,
}

impl Api {
    pub(super) fn new(client: kube::Client, namespace: String) -> Api {
        let never = Moment::from_nanos(0);
        Api { client, namespace, paused: Mutex::new(Paused { reads: never, writes: never }) }
    }

    fn leases(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace)
    }

    /// Whether we are let in.
    pub(super) async fn knock(&self) -> Result<(), StoreError> {
        let answer =
            self.call(Method::GET, "list", "leases", &format!("{}?limit=1", self.leases()), None).await?;
        self.done("list", "leases", answer).map(drop)
    }

    /// What is about these elections, or all objects of ours, at one moment.
    pub(super) async fn list(&self, of: &Watched) -> Result<List, StoreError> {
        let selector = selector(of);
        for _ in 0..LISTS {
            // Else what the rest of the list would be read from is forgotten: from the beginning.
            if let Some(list) = self.list_once(&selector).await? {
                return Ok(list);
            }
        }
        let message = "the API server forgets its lists before they can be read; is it overloaded?";
        Err(StoreError::new(Trouble::Unavailable, message))
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
                objects.extend(items.into_iter().filter_map(Object::read));
            }
            let metadata = &body["metadata"];
            from = metadata["continue"].as_str().unwrap_or_default().into();
            if from.is_empty() {
                let version = metadata["resourceVersion"].as_str().unwrap_or_default().into();
                return Ok(Some(List { objects, version }));
            }
        }
    }

    /// One object, if it is there.
    pub(super) async fn get(&self, name: &str) -> Result<Option<Object>, StoreError> {
        let answer =
            self.call(Method::GET, "get", "leases", &format!("{}/{name}", self.leases()), None).await?;
        match answer.status {
            StatusCode::NOT_FOUND => Ok(None),
            _ => Ok(Object::read(self.done("get", "leases", answer)?)),
        }
    }

    /// Makes or changes an object, if it is still what it was; `None` if it is not.
    pub(super) async fn put(&self, object: &Object) -> Result<Option<Object>, StoreError> {
        let is_new = object.version().is_empty();
        let (method, verb, path) = match is_new {
            true => (Method::POST, "create", self.leases()),
            false => (Method::PUT, "update", format!("{}/{}", self.leases(), object.name())),
        };
        let answer = self.call(method, verb, "leases", &path, Some(object.json())).await?;
        match answer.status {
            StatusCode::CONFLICT => Ok(None),
            // It was deleted.
            StatusCode::NOT_FOUND if !is_new => Ok(None),
            StatusCode::NOT_FOUND if answer.body["details"]["kind"] == "namespaces" => Err(StoreError::new(
                Trouble::Request,
                format!(
                    "there is no namespace {ns:?} in this cluster; make it with `kubectl create namespace {ns}`, or name another: k8s:NAMESPACE",
                    ns = self.namespace
                ),
            )),
            _ => Ok(Object::read(self.done(verb, "leases", answer)?)),
        }
    }

    /// What happens after a version to what [`list`](Self::list) lists, line by line; `None` if that version is forgotten.
    pub(super) async fn watch(&self, of: &Watched, version: &str) -> Result<Option<Body>, StoreError> {
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

    /// Changes a pod's labels.
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

    /// The server's version.
    pub(super) async fn server(&self) -> Result<String, StoreError> {
        let answer = self.call(Method::GET, "get", "version", "/version", None).await?;
        Ok(self.done("get", "version", answer)?["gitVersion"].as_str().unwrap_or("unknown").into())
    }

    /// Whether we may do this.
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
    ) -> Result<Answer, StoreError> {
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

    async fn read(&self, asked: &Method, response: http::Response<Body>) -> Result<Answer, StoreError> {
        let status = response.status();
        let after = response.headers().get(http::header::RETRY_AFTER);
        let after = after.and_then(|after| after.to_str().ok()?.trim().parse().ok()).map(Duration::from_secs);
        if let Some(after) = after.filter(|_| !status.is_success()) {
            let until = runtime::now() + after.min(PAUSE_MAX);
            let mut paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
            let paused = paused.of(asked);
            *paused = (*paused).max(until);
        }
        let bytes = response.into_body().collect_bytes().await.map_err(unreachable)?;
        // Whoever stands in front of the server may answer in plain text.
        let text = || json!({ "message": String::from_utf8_lossy(&bytes).trim().chars().take(300).collect::<String>() });
        Ok(Answer { status, body: serde_json::from_slice(&bytes).unwrap_or_else(|_| text()) })
    }

    /// Until the server wants to be asked again.
    async fn wait(&self, method: &Method) {
        let until = *self.paused.lock().unwrap_or_else(PoisonError::into_inner).of(method);
        runtime::sleep_until(until).await;
    }

    fn done(&self, verb: &str, resource: &str, answer: Answer) -> Result<Value, StoreError> {
        if answer.status.is_success() { Ok(answer.body) } else { Err(self.refusal(verb, resource, &answer)) }
    }

    fn refusal(&self, verb: &str, resource: &str, answer: &Answer) -> StoreError {
        let said = answer.body["message"].as_str().unwrap_or_default();
        let namespace = &self.namespace;
        let (kind, message) = match answer.status.as_u16() {
            401 => (
                Trouble::Denied,
                format!(
                    "the API server does not know us ({said}); in a pod, check its service account and that its token is mounted; elsewhere, your \
                     kubeconfig: `kubectl auth whoami`"
                ),
            ),
            403 => (
                Trouble::Denied,
                format!(
                    "the API server does not let us {verb} {resource} in the namespace {namespace} ({said}); grant the verb `{verb}` on `{resource}`: \
                     deploy/kubernetes/rbac.yaml has a role with all that is needed, and `kubectl auth can-i {verb} {resource} -n {namespace}` tells \
                     whether it is there"
                ),
            ),
            429 => (
                Trouble::Unavailable,
                format!("the API server has too much to do ({said}); it will be asked again later"),
            ),
            500.. => (
                Trouble::Unavailable,
                format!("the API server failed to {verb} {resource}: {} ({said})", answer.status),
            ),
            _ => (
                Trouble::Request,
                format!(
                    "the API server refuses to {verb} {resource} in the namespace {namespace}: {} ({said})",
                    answer.status
                ),
            ),
        };
        StoreError::new(kind, message)
    }
}

/// What is about these elections, or everything of ours, as part of an address.
fn selector(of: &Watched) -> String {
    match of {
        Some(keys) if !keys.is_empty() => {
            let named: String = keys.iter().map(|key| about(key) + ",").collect();
            encoded(&format!("{ABOUT} in ({named}{SEVERAL})"))
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
        .map_err(|error| StoreError::new(Trouble::Request, format!("{path} can not be asked for: {error}")))
}

async fn within<T>(work: impl Future<Output = T>) -> Result<T, StoreError> {
    tokio::time::timeout(DEADLINE, work).await.map_err(|_| {
        StoreError::new(
            Trouble::Timeout,
            format!("the API server has not answered for {} s", DEADLINE.as_secs()),
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
        Trouble::Unreachable,
        format!(
            "the API server can not be reached: {text}; does `kubectl get --raw /readyz` work from here?"
        ),
    )
}
