//! The document that describes the API: gathered from the handlers, and completed with what holds for all of them.

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

use super::shape;
use crate::App;
use crate::access::Access;
use crate::problem::Problem;
use crate::route::{Entry, Need};

const PROBLEM: &str = "application/problem+json";

/// What may go wrong anywhere; and, where there is a body, with bodies.
const ANYWHERE: [(&str, &str); 9] = [
    ("400", "The path or the query makes no sense."),
    ("401", "Nobody, or not whom they claim to be."),
    ("403", "Not allowed to this principal, or from this page."),
    ("404", "There is no such thing."),
    ("410", "The session is over, and all that it held is lost."),
    ("422", "What was given is well formed and makes no sense; `field` says where."),
    ("429", "Too much at once: try again after `Retry-After`."),
    ("503", "The store cannot be reached, or this server is ending. Whether it happened is unknown."),
    ("504", "No answer in time. Whether it happened is unknown."),
];
const WITH_A_BODY: [(&str, &str); 4] = [
    ("408", "The body came too slowly."),
    ("409", "The namespace has as many objects of the kind as it may have (`quota-exceeded`)."),
    ("413", "The body is too large."),
    ("415", "The body is not said to be JSON."),
];

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Tenure",
        description = "One leads, many share: elections with fencing tokens, over plain HTTP.\n\n\
            Errors are `application/problem+json` with a stable `code`, the `field` to blame and a `remedy`. \
            Times in `_ms` are milliseconds; those that end in `at_ms` and `since_ms` are of the store's wall clock, for people. \
            What is read comes from memory and says its age (`Tenure-Age-Ms`); `consistent=true` asks the store.",
        license(name = "MIT OR Apache-2.0")
    ),
    components(schemas(Problem)),
    tags(
        (name = "elections", description = "Who leads, who stands, who led."),
        (name = "campaign", description = "Leading, with nothing but requests."),
        (name = "watch", description = "What changes, as it changes: server-sent events."),
        (name = "operators", description = "Moving leaders about."),
        (name = "names", description = "Which process has which name."),
        (name = "queues", description = "Where tasks wait: how queues are set, what stands in them, how fast it moves."),
        (name = "tasks", description = "Work: submitted, claimed under a token, and finished."),
        (name = "workers", description = "Who works, and who may."),
        (name = "pools", description = "Resources, and requests that wait for one."),
        (name = "topics", description = "Where events are published: how topics are set, and what is in them."),
        (name = "events", description = "What happened: published in order, read, streamed."),
        (name = "groups", description = "Who reads a topic and how far; what failed; pull, push and reset."),
        (name = "schedules", description = "What fires when: how schedules are set, paused and fired by hand, and what has become of their ticks."),
        (name = "store", description = "The database behind this server."),
        (name = "server", description = "The servers of this store, and what was done through them."),
        (name = "gossip", description = "Who is there, as gossip tells, and who leads softly."),
        (name = "access", description = "Who may do what: tokens."),
        (name = "sessions", description = "The machine's protocol: what `http://` as a store speaks."),
        (name = "claims", description = "The workers' protocol: what `http://` as a store speaks, by the batch."),
        (name = "members", description = "The members' protocol: what `http://` as a store speaks for groups."),
    )
)]
struct Document;

/// The document without its paths.
pub(crate) fn bare() -> OpenApi {
    Document::openapi()
}

/// The whole document. The routes are the same in every server of this version; whether they ask who asks is not.
fn whole(app: &App) -> &'static (Value, Bytes) {
    static WHOLE: [OnceLock<(Value, Bytes)>; 2] = [const { OnceLock::new() }; 2];
    let guarded = !matches!(*app.access, Access::Open);
    WHOLE[usize::from(guarded)].get_or_init(|| {
        let routes = app.routes();
        let mut document = routes.document(bare());
        if guarded {
            let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
            document.components.get_or_insert_default().add_security_scheme("token", bearer);
        }
        for (path, item) in &mut document.paths.paths {
            let entries = routes.table().iter().filter(|entry| entry.path == *path);
            entries.for_each(|entry| complete(item, entry, guarded));
        }
        let mut value = serde_json::to_value(&document).unwrap_or_default();
        unsigned(&mut value);
        let closed = closed_shapes(&value);
        exact(&mut value, &closed);
        let bytes = shape::json(&value);
        (value, bytes)
    })
}

/// The document as a value, for those who render it.
pub(super) fn value(app: &App) -> &'static Value {
    &whole(app).0
}

/// The document itself.
pub(super) async fn serve(State(app): State<App>) -> Answer {
    let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-cache")];
    (headers, whole(&app).1.clone()).into_response()
}

/// Adds to an operation what its route needs, and what may go wrong with any.
fn complete(item: &mut PathItem, entry: &Entry, guarded: bool) {
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
        Some(format!("{description}\n\nNeeds: {}.", needed(entry.need)).trim().to_owned());
    if guarded && entry.need != Need::Nothing {
        operation.security = Some(vec![SecurityRequirement::new("token", [""; 0])]);
    }
    let bodies = operation.request_body.is_some().then_some(WITH_A_BODY);
    for (status, description) in ANYWHERE.iter().chain(bodies.iter().flatten()) {
        operation.responses.responses.entry((*status).into()).or_insert_with(|| problem(description).into());
    }
    problems(operation);
}

fn needed(need: Need) -> String {
    match need {
        Need::Nothing => "nothing".into(),
        Need::Known => "to be somebody; what is shown is what they may see".into(),
        Need::In(verb) => format!("`{verb}` in the namespace"),
        Need::InAny(verbs) => {
            let verbs: Vec<_> = verbs.iter().map(|verb| format!("`{verb}`")).collect();
            format!("{} in the namespace", verbs.join(" or "))
        }
        Need::Over(verb) => format!("`{verb}` in `*`"),
        Need::Session => "to have opened the session".into(),
        Need::Stand => "`lead` in the namespace".into(),
        Need::SessionIn(verb) => format!("to have opened the session, and `{verb}` in the namespace"),
    }
}

fn problem(description: &str) -> Response {
    let content = Content::new(Some(RefOr::Ref(Ref::from_schema_name("Problem"))));
    let mut response = Response::new(description);
    response.content.insert(PROBLEM.into(), content);
    response
}

/// Whatever goes wrong is told as a problem.
fn problems(operation: &mut Operation) {
    for (status, response) in &mut operation.responses.responses {
        let RefOr::T(response) = response else { continue };
        if status.as_str() >= "400" {
            let told = ANYWHERE.iter().chain(&WITH_A_BODY).find(|(known, _)| known == status);
            let told = told.map_or("", |(_, description)| description);
            let description = std::mem::take(&mut response.description);
            *response = problem(if description.is_empty() { told } else { &description });
        }
    }
}

/// Numbers that are never negative reach further than the signed ones of as many bits, which is how they are written.
fn unsigned(part: &mut Value) {
    match part {
        Value::Array(parts) => parts.iter_mut().for_each(unsigned),
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
            fields.values_mut().for_each(unsigned);
        }
        _ => {}
    }
}

/// The shapes that allow no other fields, without that word: in an answer that has their fields and more, they stand like this.
fn closed_shapes(document: &Value) -> BTreeMap<String, Value> {
    let shapes = document.pointer("/components/schemas").and_then(Value::as_object);
    let closed = shapes.into_iter().flatten().filter(|(_, shape)| shape["additionalProperties"] == false);
    closed.map(|(name, shape)| (format!("#/components/schemas/{name}"), opened(shape))).collect()
}

fn opened(shape: &Value) -> Value {
    let mut shape = shape.clone();
    if let Some(fields) = shape.as_object_mut() {
        fields.remove("additionalProperties");
    }
    shape
}

/// Mends what the generator says less exactly than we mean: what is made of several shapes has the fields of all; "this or
/// nothing" may be both where *this* is any JSON; and a list whose places differ is told in words that every reader of such documents
/// knows.
fn exact(part: &mut Value, closed: &BTreeMap<String, Value>) {
    match part {
        Value::Array(parts) => parts.iter_mut().for_each(|part| exact(part, closed)),
        Value::Object(fields) => {
            if let Some(Value::Array(parts)) = fields.get_mut("allOf") {
                for part in parts {
                    let named = part.get("$ref").and_then(Value::as_str).and_then(|name| closed.get(name));
                    *part = named.cloned().unwrap_or_else(|| opened(part));
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
            fields.values_mut().for_each(|part| exact(part, closed));
        }
        _ => {}
    }
}

fn is_nothing(shape: &Value) -> bool {
    shape["type"] == "null"
}
