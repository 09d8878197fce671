//! Events over plain HTTP: topics, publishing, groups and failures.

mod failures;
mod metrics;
mod pull;
mod topics;

use axum::body::Body;
use http::{Method, Request};
use serde_json::{Value, json};

use crate::support::{TestApp, TestResponse, test_app};

async fn send(app: &TestApp, method: Method, path: &str, body: Option<Value>) -> TestResponse {
    let request = Request::builder().method(method).uri(path).header("host", "localhost");
    let request = match body {
        Some(body) => request.header("content-type", "application/json").body(Body::from(body.to_string())),
        None => request.body(Body::empty()),
    };
    app.send(request.unwrap()).await
}

async fn put(app: &TestApp, path: &str, body: Value) -> TestResponse {
    send(app, Method::PUT, path, Some(body)).await
}

async fn delete(app: &TestApp, path: &str) -> TestResponse {
    send(app, Method::DELETE, path, None).await
}

/// App with a topic that has this number of partitions.
async fn with_topic(partitions: u32) -> TestApp {
    let app = test_app();
    put(&app, "/v1/topics/orders", json!({"partitions": partitions})).await.of(201);
    app
}

/// Publish events with these keys and return their ids. Each payload is the index.
async fn publish(app: &TestApp, keys: &[&str]) -> Vec<u64> {
    let events: Vec<_> =
        keys.iter().enumerate().map(|(n, key)| json!({"type": "t", "key": key, "payload": n})).collect();
    let published = app.post("/v1/topics/orders/events", json!({"events": events})).await.of(201);
    published["events"].as_array().unwrap().iter().map(|one| one["id"].as_u64().unwrap()).collect()
}

/// Publish events one by one, each in its own commit batch.
async fn publish_each(app: &TestApp, keys: &[&str]) -> Vec<u64> {
    let mut ids = Vec::new();
    for key in keys {
        ids.extend(publish(app, &[key]).await);
    }
    ids
}

const GROUP: &str = "/v1/topics/orders/groups/mailer";

async fn pull(app: &TestApp, body: Value) -> Value {
    app.post(&format!("{GROUP}/pull"), body).await.of(200)
}

fn ids(pulled: &Value) -> Vec<u64> {
    pulled["events"].as_array().unwrap().iter().map(|event| event["id"].as_u64().unwrap()).collect()
}

async fn ack(app: &TestApp, pulled: &Value) -> Value {
    let body = json!({"session": pulled["session"], "partitions": pulled["partitions"]});
    app.post(&format!("{GROUP}/ack"), body).await.of(200)
}

async fn fail(app: &TestApp, pulled: &Value, event: usize, more: Value) -> TestResponse {
    let event = &pulled["events"][event];
    let mut body = json!({
        "session": pulled["session"], "partition": event["partition"], "token": event["token"],
        "offset": event["offset"], "event_id": event["id"], "error": "no",
    });
    more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
    app.post(&format!("{GROUP}/nack"), body).await
}
