//! Arbitrary requests never cause a server error.

use axum::body::Body;
use http::Request;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use super::support::{TestApp, candidate, test_app};

/// Valid and invalid names for paths and queries.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{1,3}",
        Just("nightly".to_owned()),
        "[A-Za-z0-9][A-Za-z0-9._:-]{0,130}",
        "\\PC{0,20}",
        any::<Vec<u8>>().prop_map(|bytes| bytes.iter().map(|byte| format!("%{byte:02X}")).collect()),
    ]
}

fn encoded(text: &str) -> String {
    // Keep existing percent-encoding.
    const KEPT: &percent_encoding::AsciiSet = &percent_encoding::NON_ALPHANUMERIC.remove(b'%').remove(b'.');
    percent_encoding::utf8_percent_encode(text, KEPT).to_string()
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[0-9a-f]{32}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z_]{1,8}", inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// Campaign bodies with some invalid fields.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let fields = prop::sample::select(vec![
        "name",
        "session",
        "token",
        "lease_ms",
        "priority",
        "observer",
        "slots",
        "capabilities",
        "required_capabilities",
        "metadata",
        "to",
        "reason",
        "remain_candidate",
        "slot",
        "election",
        "kind",
        "on_behalf_of",
        "task_kinds",
        "epoch",
        "heartbeat_count",
        "colour",
    ]);
    let wrong = prop::collection::vec((fields, json_value()), 0..4);
    let close = wrong.prop_map(|wrong| {
        let mut body = candidate("web-1");
        body["wait_ms"] = json!(0);
        wrong.into_iter().for_each(|(field, value)| body[field] = value);
        body.to_string().into_bytes()
    });
    prop_oneof![close, json_value().prop_map(|value| value.to_string().into_bytes()), any::<Vec<u8>>()]
}

async fn assert_no_server_error(app: &TestApp, request: http::request::Builder, body: Vec<u8>) {
    let Ok(request) = request.header("host", "localhost").body(Body::from(body)) else { return };
    let what = format!("{} {}", request.method(), request.uri());
    // Pages return HTML errors.
    let path = request.uri().path();
    let api = path.starts_with("/v1/") || path.starts_with("/internal/");
    // An event stream is a valid response and has no end to read.
    let Some(answer) = app.send_unless_stream(request).await else { return };
    assert!(answer.status.as_u16() < 500, "{what}: {answer:?}");
    if api && answer.status.is_client_error() {
        assert_eq!(answer.header("content-type"), "application/problem+json", "{what}");
        assert!(answer.json()["code"].is_string());
    }
}

/// Every route of the table with arbitrary names and bodies.
#[test]
fn no_name_or_body_causes_a_server_error() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let app = runtime.block_on(async { test_app() });
    runtime.block_on(app.campaign("nightly", candidate("web-1"), true));
    let routes = app.app.routes();
    // An app without sockets is never ready.
    let served = routes.table().iter().filter(|entry| entry.path != "/readyz");
    let table: Vec<_> = served.map(|entry| (entry.method.clone(), entry.path.clone())).collect();
    let cases = (prop::sample::select(table), name(), name(), name(), body());
    let mut runner = TestRunner::new(Config { cases: 1000, failure_persistence: None, ..Config::default() });
    runner
        .run(&cases, |((method, path), one, two, namespace, body)| {
            let mut names = [one, two].into_iter();
            let path: String = path
                .split('/')
                .map(|part| match part.starts_with('{') {
                    true => encoded(&names.next().unwrap_or_default()),
                    false => part.to_owned(),
                })
                .collect::<Vec<_>>()
                .join("/");
            let uri = format!("{path}?namespace={}", encoded(&namespace));
            let request =
                Request::builder().method(method).uri(uri).header("content-type", "application/json");
            runtime.block_on(assert_no_server_error(&app, request, body));
            Ok(())
        })
        .unwrap();
}

#[test]
fn no_query_causes_a_server_error() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let app = runtime.block_on(async { test_app() });
    runtime.block_on(app.campaign("nightly", candidate("web-1"), true));
    let paths = [
        "/v1/elections",
        "/v1/elections/nightly",
        "/v1/elections/nightly/leader",
        "/v1/elections/nightly/terms",
    ];
    let words = ["namespace", "limit", "cursor", "consistent", "slot", "colour", "limit=1&limit"];
    let pairs = prop::collection::vec((prop::sample::select(words.to_vec()), name()), 0..4);
    let mut runner = TestRunner::new(Config { cases: 500, failure_persistence: None, ..Config::default() });
    runner
        .run(&(prop::sample::select(paths.to_vec()), pairs), |(path, pairs)| {
            let query: Vec<_> =
                pairs.iter().map(|(word, value)| format!("{word}={}", encoded(value))).collect();
            let request = Request::get(format!("{path}?{}", query.join("&")));
            runtime.block_on(assert_no_server_error(&app, request, Vec::new()));
            Ok(())
        })
        .unwrap();
}

/// Valid and invalid schedule expressions.
fn expression() -> impl Strategy<Value = Value> {
    let field = "(\\*|[0-9]{1,2}|[0-9]{1,2}-[0-9]{1,2}|\\*/[0-9]{1,3}|L|[0-9]{1,2}W|MON#[0-9]|JAN)";
    prop_oneof![
        "every [0-9]{1,12}(ms|s|m|h|d)( from start)?".prop_map(Value::from),
        prop::string::string_regex(&format!("({field} ){{4,5}}{field}")).unwrap().prop_map(Value::from),
        Just(json!("@daily")),
        json_value(),
    ]
}

/// Arbitrary and plausible instants.
fn instant() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<i64>().prop_map(Value::from),
        (-10i64..300_000_000_000_000).prop_map(Value::from),
        (0i64..3_000_000_000_000).prop_map(Value::from),
    ]
}

#[test]
fn no_definition_or_range_causes_a_server_error() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let app = runtime.block_on(async { test_app() });
    let zones =
        ["UTC", "Europe/Berlin", "America/St_Johns", "Antarctica/Troll", "Pacific/Apia", "Nowhere/Land"];
    let targets = [
        json!({"task": {"queue": "q"}}),
        json!({"event": {"topic": "none"}}),
        json!({"webhook": {"url": "https://example.org/"}}),
        json!({"webhook": {}}),
    ];
    let policies =
        ["skip", "fire_once", "fire_all(7)", "fire_all(99999999999)", "within(1h)", "within(-1s)", ""];
    let definition = (
        (expression(), prop::sample::select(zones.to_vec()), prop::sample::select(targets.to_vec())),
        (instant(), instant(), any::<u64>(), prop::sample::select(policies.to_vec())),
        prop::collection::vec(
            prop::sample::select(vec!["start_at_ms", "end_at_ms", "jitter_ms", "misfire_policy"]),
            0..3,
        ),
    );
    let ranges = prop::collection::vec((instant(), instant(), any::<bool>()), 1..3);
    let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
    runner
        .run(&(definition, ranges), |(definition, ranges)| {
            let ((when, zone, target), (start, end, jitter, misfire), output) = definition;
            let mut body = json!({"expression": when, "time_zone": zone, "target": target});
            for field in output {
                body[field] = match field {
                    "start_at_ms" => start.clone(),
                    "end_at_ms" => end.clone(),
                    "jitter_ms" => json!(jitter),
                    _ => json!(misfire),
                };
            }
            let ask = |method: http::Method, path: &str, body: Value| {
                let request = Request::builder().method(method).uri(format!("/v1/schedules/s{path}"));
                let request = request.header("content-type", "application/json");
                runtime.block_on(assert_no_server_error(&app, request, body.to_string().into_bytes()));
            };
            ask(http::Method::POST, "/preview?upcoming=100", body.clone());
            ask(http::Method::PUT, "", body);
            for (from, to, dry_run) in ranges {
                let range = json!({"from_at_ms": from, "to_at_ms": to, "dry_run": dry_run});
                ask(http::Method::POST, "/backfill", range);
                ask(http::Method::POST, "/backfill", json!({"ticks": [from, to]}));
                ask(http::Method::GET, &format!("/ticks?cursor={from}"), json!({}));
            }
            ask(http::Method::GET, "?upcoming=1000", json!({}));
            ask(http::Method::DELETE, "", json!({}));
            Ok(())
        })
        .unwrap();
}

/// The basic parsers.
#[test]
fn names_and_store_urls_are_parsed_or_rejected() {
    let mut runner = TestRunner::new(Config { cases: 5000, failure_persistence: None, ..Config::default() });
    runner
        .run(
            &prop_oneof![
                "\\PC{0,40}".boxed(),
                any::<String>().boxed(),
                "(sqlite|postgres|https?|memory):\\PC{0,30}".boxed()
            ],
            |text| {
                if let Ok(name) = text.parse::<tenure::Name>() {
                    prop_assert_eq!(name.as_str(), &text);
                }
                let _ = text.parse::<tenure::Token>();
                let _ = text.parse::<tenure::port::Grant>();
                let _ = tenure::store::migration_sql(&text);
                Ok(())
            },
        )
        .unwrap();
}
