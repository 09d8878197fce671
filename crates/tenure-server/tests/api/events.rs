//! Events over plain HTTP: topics, publishing, groups, and what fails.

mod failing;
mod pulling;
mod scraped;
mod topics;

use axum::body::Body;
use http::{Method, Request};
use serde_json::{Value, json};

use crate::support::{Answer, Inside, inside};

async fn send(inside: &Inside, method: Method, path: &str, body: Option<Value>) -> Answer {
    let request = Request::builder().method(method).uri(path).header("host", "localhost");
    let request = match body {
        Some(body) => request.header("content-type", "application/json").body(Body::from(body.to_string())),
        None => request.body(Body::empty()),
    };
    inside.send(request.unwrap()).await
}

async fn put(inside: &Inside, path: &str, body: Value) -> Answer {
    send(inside, Method::PUT, path, Some(body)).await
}

async fn delete(inside: &Inside, path: &str) -> Answer {
    send(inside, Method::DELETE, path, None).await
}

/// A server with a topic of so many slots.
async fn with_topic(slots: u32) -> Inside {
    let inside = inside();
    put(&inside, "/v1/topics/orders", json!({"slots": slots})).await.of(201);
    inside
}

/// Publishes events of these keys; their numbers. What they carry is their place.
async fn publish(inside: &Inside, keys: &[&str]) -> Vec<u64> {
    let events: Vec<_> =
        keys.iter().enumerate().map(|(n, key)| json!({"type": "t", "key": key, "payload": n})).collect();
    let published = inside.post("/v1/topics/orders/events", json!({"events": events})).await.of(201);
    published["events"].as_array().unwrap().iter().map(|one| one["id"].as_u64().unwrap()).collect()
}

/// Publishes events one by one, each a unit of its own.
async fn publish_each(inside: &Inside, keys: &[&str]) -> Vec<u64> {
    let mut ids = Vec::new();
    for key in keys {
        ids.extend(publish(inside, &[key]).await);
    }
    ids
}

const GROUP: &str = "/v1/topics/orders/groups/mailer";

async fn pull(inside: &Inside, body: Value) -> Value {
    inside.post(&format!("{GROUP}/pull"), body).await.of(200)
}

fn ids(pulled: &Value) -> Vec<u64> {
    pulled["events"].as_array().unwrap().iter().map(|event| event["id"].as_u64().unwrap()).collect()
}

async fn ack(inside: &Inside, pulled: &Value) -> Value {
    let body = json!({"session": pulled["session"], "shares": pulled["shares"]});
    inside.post(&format!("{GROUP}/ack"), body).await.of(200)
}

async fn fail(inside: &Inside, pulled: &Value, event: usize, more: Value) -> Answer {
    let event = &pulled["events"][event];
    let mut body = json!({
        "session": pulled["session"], "slot": event["slot"], "token": event["token"],
        "position": event["position"], "event": event["id"], "error": "no",
    });
    more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
    inside.post(&format!("{GROUP}/nack"), body).await
}
