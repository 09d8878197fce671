//! HTTP requests of the fake API server.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, Method, Response, StatusCode};
use axum::routing::{any, get, post};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use super::TOKEN;
use super::faults::{Faults, KubeFault};
use super::selector::Selector;
use super::state::{ApiReply, ApiState, status, unreadable};

/// Interval of bookmarks for watches that request them.
const BOOKMARKS: Duration = Duration::from_millis(300);

pub(super) struct Shared {
    pub(super) world: Mutex<ApiState>,
    pub(super) faults: Mutex<Faults>,
    /// Changes whenever an object changes.
    pub(super) moved: watch::Sender<u64>,
    /// Number of watch events sent.
    pub(super) sent_watch_events: AtomicU64,
    /// Changes when all watches must close.
    pub(super) closed: watch::Sender<u64>,
}

impl Shared {
    /// Notifies the watches of a change.
    pub(super) fn notify_watchers(&self) {
        self.moved.send_modify(|count| *count += 1);
    }

    fn with<T>(&self, act: impl FnOnce(&mut ApiState) -> T) -> T {
        let answer = act(&mut self.world.lock().unwrap_or_else(PoisonError::into_inner));
        self.notify_watchers();
        answer
    }
}

type ApiQuery = Query<BTreeMap<String, String>>;

pub(super) async fn serve(listener: std::net::TcpListener, shared: Arc<Shared>) {
    let leases = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases";
    let router = Router::new()
        .route(
            "/version",
            get(|| async { answer(ApiReply { status: 200, body: json!({ "gitVersion": "v1.99.0-rig" }) }) }),
        )
        .route("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", post(review))
        .route("/api/v1/namespaces/{namespace}/pods/{name}", any(pod))
        .route(leases, any(many))
        .route(&format!("{leases}/{{name}}"), any(one))
        .with_state(shared);
    if let Ok(listener) = tokio::net::TcpListener::from_std(listener) {
        let _ = axum::serve(listener, router).await;
    }
}

fn answer(reply: ApiReply) -> Response<Body> {
    respond(reply, None)
}

fn respond(reply: ApiReply, retry_after: Option<u64>) -> Response<Body> {
    let mut response = Response::new(Body::from(reply.body.to_string()));
    *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert("content-type", axum::http::HeaderValue::from_static("application/json"));
    if let Some(seconds) = retry_after {
        headers.insert("retry-after", seconds.into());
    }
    response
}

/// Authenticates and authorizes a request; `Err` is the error response.
async fn admit(
    shared: &Shared,
    headers: &HeaderMap,
    (verb, resource, name): (&str, &str, &str),
) -> Result<Option<u16>, Response<Body>> {
    let hook = {
        let mut faults = shared.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.hook_of(verb, name)
    };
    if let Some(hook) = hook {
        // Run the action on another thread, because it may send requests to this server and wait for the responses.
        let (done, waits) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            hook();
            let _ = done.send(());
        });
        let _ = waits.await;
    }
    let fault = {
        let mut faults = shared.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let token = headers.get("authorization").and_then(|value| value.to_str().ok());
        if faults.locked || token != Some(&format!("Bearer {TOKEN}")) {
            return Err(answer(status(401, "Unauthorized", "Unauthorized")));
        }
        if faults.is_denied(verb, resource) {
            let message =
                format!("{resource} {name:?} is forbidden: User \"rig\" cannot {verb} resource {resource:?}");
            return Err(answer(status(403, "Forbidden", message)));
        }
        faults.of(verb, name)
    };
    match fault {
        None => Ok(None),
        Some(KubeFault::LoseResponse(code)) => Ok(Some(code)),
        Some(KubeFault::Reject(code)) => Err(answer(status(code, "InternalError", "injected fault"))),
        Some(KubeFault::RetryAfter(seconds)) => Err(respond(
            status(429, "TooManyRequests", "too many requests, please try again later"),
            Some(seconds),
        )),
        Some(KubeFault::Hang) => std::future::pending().await,
    }
}

fn finish(reply: ApiReply, forgotten: Option<u16>) -> Response<Body> {
    match forgotten {
        Some(code) => answer(status(code, "InternalError", "the response was lost")),
        None => answer(reply),
    }
}

/// Checks the content type of a body.
fn typed(verb: &str, headers: &HeaderMap) -> Result<(), ApiReply> {
    let expected = match verb {
        "create" | "update" => "application/json",
        "patch" => "application/merge-patch+json",
        _ => return Ok(()),
    };
    let content_type = headers.get("content-type").and_then(|value| value.to_str().ok());
    match content_type == Some(expected) {
        true => Ok(()),
        false => Err(status(
            415,
            "UnsupportedMediaType",
            format!(
                "the body of the request was in an unknown format - accepted media types include: {expected}"
            ),
        )),
    }
}

/// The field manager of a writer: the name of its program.
fn manager(headers: &HeaderMap) -> String {
    let agent = headers.get("user-agent").and_then(|value| value.to_str().ok()).unwrap_or_default();
    agent.split('/').next().unwrap_or_default().to_owned()
}

fn parse(body: &Bytes) -> Result<Value, ApiReply> {
    serde_json::from_slice(body).map_err(|error| status(400, "BadRequest", error.to_string()))
}

async fn many(
    State(shared): State<Arc<Shared>>,
    Path(namespace): Path<String>,
    Query(query): ApiQuery,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let is_watch = query.get("watch").is_some_and(|watch| watch == "true" || watch == "1");
    let verb = match method {
        Method::POST => "create",
        Method::GET if is_watch => "watch",
        Method::GET => "list",
        _ => return answer(status(405, "MethodNotAllowed", "the server does not allow this method")),
    };
    if let Err(refused) = typed(verb, &headers) {
        return answer(refused);
    }
    let object = match parse(&body) {
        Ok(object) => object,
        Err(refused) if verb == "create" => return answer(refused),
        Err(_) => Value::Null,
    };
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let forgotten = match admit(&shared, &headers, (verb, "leases", &name)).await {
        Ok(forgotten) => forgotten,
        Err(refused) => return refused,
    };
    match verb {
        "create" => {
            finish(shared.with(|world| world.create(&namespace, object, &manager(&headers))), forgotten)
        }
        "list" => finish(shared.with(|world| world.list(&namespace, &query)), forgotten),
        _ => follow(shared, namespace, &query),
    }
}

async fn one(
    State(shared): State<Arc<Shared>>,
    Path((namespace, name)): Path<(String, String)>,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let verb = match method {
        Method::GET => "get",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => return answer(status(405, "MethodNotAllowed", "the server does not allow this method")),
    };
    let forgotten = match admit(&shared, &headers, (verb, "leases", &name)).await {
        Ok(forgotten) => forgotten,
        Err(refused) => return refused,
    };
    if let Err(refused) = typed(verb, &headers) {
        return answer(refused);
    }
    let object = match (verb, parse(&body)) {
        ("update" | "patch", Err(refused)) => return answer(refused),
        (_, object) => object.unwrap_or_default(),
    };
    let reply = shared.with(|world| match verb {
        "get" => world.get(&namespace, &name),
        "update" => world.update(&namespace, &name, object, &manager(&headers)),
        "patch" => world.patch(&namespace, &name, &object, &manager(&headers)),
        _ => world.delete(&namespace, &name),
    });
    finish(reply, forgotten)
}

async fn pod(
    State(shared): State<Arc<Shared>>,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    if let Err(refused) = admit(&shared, &headers, ("patch", "pods", &name)).await {
        return refused;
    }
    match typed("patch", &headers).and_then(|()| parse(&body)) {
        Ok(patch) => answer(shared.with(|world| world.patch_pod(&namespace, &name, &patch))),
        Err(refused) => answer(refused),
    }
}

async fn review(State(shared): State<Arc<Shared>>, body: Bytes) -> Response<Body> {
    let Ok(mut review) = parse(&body) else { return answer(status(400, "BadRequest", "no review")) };
    let requested = &review["spec"]["resourceAttributes"];
    let (verb, resource) =
        (requested["verb"].as_str().unwrap_or_default(), requested["resource"].as_str().unwrap_or_default());
    let faults = shared.faults.lock().unwrap_or_else(PoisonError::into_inner);
    let is_allowed = !faults.is_denied(verb, resource);
    review["status"] = json!({ "allowed": is_allowed });
    answer(ApiReply { status: 201, body: review })
}

/// A watch: changes since a version, then further changes until it is closed.
fn follow(shared: Arc<Shared>, namespace: String, query: &BTreeMap<String, String>) -> Response<Body> {
    let text = query.get("labelSelector").map_or("", String::as_str);
    let Some(selector) = Selector::read(text) else { return answer(unreadable(text)) };
    let mut version = query.get("resourceVersion").and_then(|version| version.parse().ok()).unwrap_or(0);
    let seconds = query.get("timeoutSeconds").and_then(|seconds| seconds.parse().ok()).unwrap_or(1800);
    let marks = query.get("allowWatchBookmarks").is_some_and(|marks| marks == "true");
    let (mut moved, mut closed) = (shared.moved.subscribe(), shared.closed.subscribe());
    closed.mark_unchanged();
    let next_events = move |shared: &Shared, version: &mut u64| {
        let world = shared.world.lock().unwrap_or_else(PoisonError::into_inner);
        let events = world.since(*version, &namespace, &selector);
        *version = (*version).max(world.version);
        events
    };
    let first = match next_events(&shared, &mut version) {
        Ok(events) => events,
        Err(expired) => return answer(expired),
    };
    let (sender, receiver) = mpsc::channel::<Result<String, Infallible>>(64);
    tokio::spawn(async move {
        let end = tokio::time::sleep(Duration::from_secs(seconds));
        tokio::pin!(end);
        let mut events = first;
        loop {
            for event in events.drain(..) {
                shared.sent_watch_events.fetch_add(u64::from(event["type"] != "BOOKMARK"), Ordering::Relaxed);
                if sender.send(Ok(format!("{event}\n"))).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                _ = closed.changed() => return,
                () = &mut end => return,
                () = sender.closed() => return,
                _ = moved.changed() => {}
                () = tokio::time::sleep(BOOKMARKS), if marks => {
                    let object = json!({
                        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                        "metadata": { "resourceVersion": version.to_string(), "creationTimestamp": null }, "spec": {},
                    });
                    events.push(json!({ "type": "BOOKMARK", "object": object }));
                    continue;
                }
            }
            match next_events(&shared, &mut version) {
                Ok(more) => events = more,
                Err(expired) => {
                    let _ = sender
                        .send(Ok(format!("{}\n", json!({ "type": "ERROR", "object": expired.body }))))
                        .await;
                    return;
                }
            }
        }
    });
    Response::new(Body::from_stream(ReceiverStream::new(receiver)))
}
