//! The OpenAPI document: collected from the handlers and completed with the responses that every route
//! shares.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use axum::extract::State;
use axum::response::{IntoResponse, Response as Answer};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use serde_json::Value;
use utoipa::OpenApi as _;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::response::Response;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{Content, OpenApi, Ref, RefOr, SecurityRequirement};

use super::election_types;
use crate::App;
use crate::access::AccessMode;
use crate::problem::Problem;
use crate::route::{RequiredPermission, RouteEntry};

const PROBLEM: &str = "application/problem+json";

/// Problem responses of every route; then those of routes with a body.
const COMMON_PROBLEMS: [(&str, &str); 9] = [
    ("400", "The path or query is malformed."),
    ("401", "Missing or invalid credential."),
    ("403", "The principal lacks the permission, or the request came from another site."),
    ("404", "The resource does not exist."),
    ("410", "The session ended and lost all its leases."),
    ("422", "A value is invalid; `field` names it."),
    ("429", "Rate or concurrency limit reached; retry after `Retry-After`."),
    ("503", "The store is unreachable or the server is shutting down. The outcome is unknown."),
    ("504", "Timed out. The outcome is unknown."),
];
const BODY_PROBLEMS: [(&str, &str); 4] = [
    ("408", "The body did not arrive in time."),
    ("409", "The namespace has reached its quota for this kind of object (`quota-exceeded`)."),
    ("413", "The body is too large."),
    ("415", "The Content-Type is not application/json."),
];

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Tenure",
        description = "HTTP API of Tenure: elections, queues, pools, events and schedules on one store.\n\n\
            Errors are `application/problem+json` with a stable `code`, the invalid `field` and a `remedy`. \
            Fields ending in `_at_ms` are instants (milliseconds since 1970, store clock); other fields ending in `_ms` are durations. \
            Reads are answered from a snapshot; the header `Tenure-Snapshot-Age-Ms` has its age. `consistent=true` reads the store.",
        license(name = "MIT OR Apache-2.0")
    ),
    components(schemas(Problem)),
    tags(
        (name = "elections", description = "Elections: candidates, leaders and terms; campaign, transfer, resign and pause."),
        (name = "watch", description = "Changes of elections as server-sent events."),
        (name = "queues", description = "Queues: settings, task counts and throughput."),
        (name = "tasks", description = "Tasks: submit, claim, settle, cancel and retry."),
        (name = "workers", description = "Workers and their approval."),
        (name = "pools", description = "Resources, and requests for them."),
        (name = "topics", description = "Topics: settings and offsets."),
        (name = "events", description = "Events: publish, read and stream."),
        (name = "groups", description = "Consumer groups: offsets, lag, parked events, pull and webhook."),
        (name = "schedules", description = "Schedules: definition, preview, trigger, backfill and ticks."),
        (name = "store", description = "The store behind this server."),
        (name = "servers", description = "The servers of this store, and the audit log."),
        (name = "cluster", description = "Registered names, gossip members and soft elections."),
        (name = "credentials", description = "Access tokens and client certificates."),
    )
)]
struct Document;

/// The document without paths.
pub(crate) fn empty() -> OpenApi {
    Document::openapi()
}

/// The complete document, built once per access mode: the security requirements depend on whether the server
/// requires credentials.
fn complete_document(app: &App) -> &'static (Value, Bytes) {
    static WHOLE: [OnceLock<(Value, Bytes)>; 2] = [const { OnceLock::new() }; 2];
    let guarded = !matches!(*app.access, AccessMode::Open);
    WHOLE[usize::from(guarded)].get_or_init(|| {
        let routes = app.routes();
        let mut document = routes.document(empty());
        if guarded {
            let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
            document.components.get_or_insert_default().add_security_scheme("access_token", bearer);
        }
        for (path, item) in &mut document.paths.paths {
            let entries = routes.table().iter().filter(|entry| entry.path == *path);
            entries.for_each(|entry| complete_operation(item, entry, guarded));
        }
        let mut value = serde_json::to_value(&document).unwrap_or_default();
        declare_unsigned(&mut value);
        let closed = closed_shapes(&value);
        correct_schemas(&mut value, &closed);
        let bytes = election_types::json(&value);
        (value, bytes)
    })
}

/// The document as a JSON value, for the reference page.
pub(super) fn value(app: &App) -> &'static Value {
    &complete_document(app).0
}

/// Serve `/openapi.json`.
pub(super) async fn serve(State(app): State<App>) -> Answer {
    let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-cache")];
    (headers, complete_document(&app).1.clone()).into_response()
}

/// Add the required permission and the common problem responses to an operation.
fn complete_operation(item: &mut PathItem, entry: &RouteEntry, guarded: bool) {
    let operation = match entry.method.as_str() {
        "GET" => &mut item.get,
        "PUT" => &mut item.put,
        "POST" => &mut item.post,
        "DELETE" => &mut item.delete,
        "PATCH" => &mut item.patch,
        _ => return,
    };
    let Some(operation) = operation else { return };
    let description = operation.description.take().unwrap_or_default();
    operation.description =
        Some(format!("{description}\n\nRequires: {}.", describe_permission(entry.need)).trim().to_owned());
    if guarded && entry.need != RequiredPermission::None {
        operation.security = Some(vec![SecurityRequirement::new("access_token", [""; 0])]);
    }
    let bodies = operation.request_body.is_some().then_some(BODY_PROBLEMS);
    for (status, description) in COMMON_PROBLEMS.iter().chain(bodies.iter().flatten()) {
        operation.responses.responses.entry((*status).into()).or_insert_with(|| problem(description).into());
    }
    declare_problems(operation);
}

fn describe_permission(need: RequiredPermission) -> String {
    match need {
        RequiredPermission::None => "no authentication".into(),
        RequiredPermission::AnyCredential => {
            "a credential; the response is limited to what the principal may read".into()
        }
        RequiredPermission::In(verb) => format!("`{verb}` in the namespace"),
        RequiredPermission::InAny(verbs) => {
            let verbs: Vec<_> = verbs.iter().map(|verb| format!("`{verb}`")).collect();
            format!("{} in the namespace", verbs.join(" or "))
        }
        RequiredPermission::InAll(verb) => format!("`{verb}` in `*`"),
        RequiredPermission::Session => "ownership of the session".into(),
        RequiredPermission::Campaign => "`lead` in the namespace".into(),
        RequiredPermission::SessionIn(verb) => {
            format!("ownership of the session, and `{verb}` in the namespace")
        }
    }
}

fn problem(description: &str) -> Response {
    let content = Content::new(Some(RefOr::Ref(Ref::from_schema_name("Problem"))));
    let mut response = Response::new(description);
    response.content.insert(PROBLEM.into(), content);
    response
}

/// Declare every response with a status of 400 or more as a problem document.
fn declare_problems(operation: &mut Operation) {
    for (status, response) in &mut operation.responses.responses {
        let RefOr::T(response) = response else { continue };
        if status.as_str() >= "400" {
            let described = COMMON_PROBLEMS.iter().chain(&BODY_PROBLEMS).find(|(known, _)| known == status);
            let described = described.map_or("", |(_, description)| description);
            let description = std::mem::take(&mut response.description);
            *response = problem(if description.is_empty() { described } else { &description });
        }
    }
}

/// Declare unsigned integers as such: the generator writes them as signed integers of the same width.
fn declare_unsigned(part: &mut Value) {
    match part {
        Value::Array(parts) => parts.iter_mut().for_each(declare_unsigned),
        Value::Object(fields) => {
            if fields.get("minimum").and_then(Value::as_f64).is_some_and(|least| least >= 0.0) {
                let wide = match fields.get("format").and_then(Value::as_str) {
                    Some("int32") => Some(("uint32", u64::from(u32::MAX))),
                    Some("int64") => Some(("uint64", u64::MAX)),
                    _ => None,
                };
                if let Some((format, most)) = wide {
                    fields.insert("format".into(), format.into());
                    fields.entry("maximum").or_insert(most.into());
                }
            }
            fields.values_mut().for_each(declare_unsigned);
        }
        _ => {}
    }
}

/// Schemas with `additionalProperties: false`, without that keyword: an `allOf` that extends them must allow
/// more fields.
fn closed_shapes(document: &Value) -> BTreeMap<String, Value> {
    let shapes = document.pointer("/components/schemas").and_then(Value::as_object);
    let closed = shapes.into_iter().flatten().filter(|(_, shape)| shape["additionalProperties"] == false);
    closed.map(|(name, shape)| (format!("#/components/schemas/{name}"), without_closed(shape))).collect()
}

fn without_closed(shape: &Value) -> Value {
    let mut shape = shape.clone();
    if let Some(fields) = shape.as_object_mut() {
        fields.remove("additionalProperties");
    }
    shape
}

/// Correct the generated schemas. An `allOf` of closed schemas allows the fields of all parts. `oneOf` with
/// `null` becomes `anyOf`, because a value of any JSON type may be `null` too. A tuple (`prefixItems`)
/// becomes a list with a fixed length, which older tools understand.
fn correct_schemas(part: &mut Value, closed: &BTreeMap<String, Value>) {
    match part {
        Value::Array(parts) => parts.iter_mut().for_each(|part| correct_schemas(part, closed)),
        Value::Object(fields) => {
            if let Some(Value::Array(parts)) = fields.get_mut("allOf") {
                for part in parts {
                    let named = part.get("$ref").and_then(Value::as_str).and_then(|name| closed.get(name));
                    *part = named.cloned().unwrap_or_else(|| without_closed(part));
                }
            }
            if fields.get("oneOf").and_then(Value::as_array).is_some_and(|of| of.iter().any(is_nothing)) {
                let either = fields.remove("oneOf").unwrap_or_default();
                fields.insert("anyOf".into(), either);
            }
            if let Some(Value::Array(places)) = fields.remove("prefixItems") {
                fields.insert("minItems".into(), places.len().into());
                fields.insert("maxItems".into(), places.len().into());
                fields.insert("items".into(), serde_json::json!({ "anyOf": places }));
            }
            fields.values_mut().for_each(|part| correct_schemas(part, closed));
        }
        _ => {}
    }
}

fn is_nothing(shape: &Value) -> bool {
    shape["type"] == "null"
}
