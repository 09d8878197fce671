//! Whatever is sent, there is an answer, and it is never the server's fault.

use axum::body::Body;
use http::Request;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use super::support::{Inside, candidate, inside};

/// Names, good and bad, as they would be put into a path or a query.
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
    // What is encoded already stays so.
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

/// Bodies that look like those that are expected, with one field or another gone wrong.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let fields = prop::sample::select(vec![
        "id",
        "session",
        "token",
        "lease_ms",
        "priority",
        "observer",
        "slots",
        "capabilities",
        "requires",
        "metadata",
        "to",
        "reason",
        "stand",
        "slot",
        "election",
        "kind",
        "by",
        "name",
        "epoch",
        "beat",
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

async fn never_its_fault(inside: &Inside, request: http::request::Builder, body: Vec<u8>) {
    let Ok(request) = request.header("host", "localhost").body(Body::from(body)) else { return };
    let what = format!("{} {}", request.method(), request.uri());
    // Pages tell people what is wrong.
    let api = request.uri().path().starts_with("/v1/");
    // Streams that begin are all right, and have no end.
    let Some(answer) = inside.send_unless_stream(request).await else { return };
    assert!(answer.status.as_u16() < 500, "{what}: {answer:?}");
    if api && answer.status.is_client_error() {
        assert_eq!(answer.header("content-type"), "application/problem+json", "{what}");
        assert!(answer.json()["code"].is_string());
    }
}

/// Every route of the table, with whatever comes to mind.
#[test]
fn no_name_and_no_body_is_answered_with_a_mistake_of_the_servers() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let inside = runtime.block_on(async { inside() });
    runtime.block_on(inside.campaign("nightly", candidate("web-1"), true));
    let routes = inside.app.routes();
    // A server without sockets is never ready, and says so.
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
            runtime.block_on(never_its_fault(&inside, request, body));
            Ok(())
        })
        .unwrap();
}

#[test]
fn no_query_is_answered_with_a_mistake_of_the_servers() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let inside = runtime.block_on(async { inside() });
    runtime.block_on(inside.campaign("nightly", candidate("web-1"), true));
    let paths = [
        "/v1/elections",
        "/v1/elections/nightly",
        "/v1/elections/nightly/leader",
        "/v1/elections/nightly/history",
    ];
    let words = ["namespace", "limit", "after", "consistent", "slot", "colour", "limit=1&limit"];
    let pairs = prop::collection::vec((prop::sample::select(words.to_vec()), name()), 0..4);
    let mut runner = TestRunner::new(Config { cases: 500, failure_persistence: None, ..Config::default() });
    runner
        .run(&(prop::sample::select(paths.to_vec()), pairs), |(path, pairs)| {
            let query: Vec<_> =
                pairs.iter().map(|(word, value)| format!("{word}={}", encoded(value))).collect();
            let request = Request::get(format!("{path}?{}", query.join("&")));
            runtime.block_on(never_its_fault(&inside, request, Vec::new()));
            Ok(())
        })
        .unwrap();
}

/// Times that people write, and some that nobody would.
fn when() -> impl Strategy<Value = Value> {
    let field = "(\\*|[0-9]{1,2}|[0-9]{1,2}-[0-9]{1,2}|\\*/[0-9]{1,3}|L|[0-9]{1,2}W|MON#[0-9]|JAN)";
    prop_oneof![
        "every [0-9]{1,12}(ms|s|m|h|d)( from start)?".prop_map(Value::from),
        prop::string::string_regex(&format!("({field} ){{4,5}}{field}")).unwrap().prop_map(Value::from),
        Just(json!("@daily")),
        json_value(),
    ]
}

/// Every instant that a number can say, and those that may be meant.
fn instant() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<i64>().prop_map(Value::from),
        (-10i64..300_000_000_000_000).prop_map(Value::from),
        (0i64..3_000_000_000_000).prop_map(Value::from),
    ]
}

#[test]
fn no_definition_and_no_range_is_answered_with_a_mistake_of_the_servers() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let inside = runtime.block_on(async { inside() });
    let zones =
        ["UTC", "Europe/Berlin", "America/St_Johns", "Antarctica/Troll", "Pacific/Apia", "Nowhere/Land"];
    let targets = [
        json!({"task": {"queue": "q"}}),
        json!({"event": {"topic": "none"}}),
        json!({"call": {"url": "https://example.org/"}}),
        json!({"call": {}}),
    ];
    let policies =
        ["skip", "fire_once", "fire_all(7)", "fire_all(99999999999)", "within(1h)", "within(-1s)", ""];
    let definition = (
        (when(), prop::sample::select(zones.to_vec()), prop::sample::select(targets.to_vec())),
        (instant(), instant(), any::<u64>(), prop::sample::select(policies.to_vec())),
        prop::collection::vec(prop::sample::select(vec!["start_ms", "end_ms", "jitter_ms", "misfire"]), 0..3),
    );
    let ranges = prop::collection::vec((instant(), instant(), any::<bool>()), 1..3);
    let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
    runner
        .run(&(definition, ranges), |(definition, ranges)| {
            let ((when, zone, target), (start, end, jitter, misfire), said) = definition;
            let mut body = json!({"when": when, "zone": zone, "target": target});
            for field in said {
                body[field] = match field {
                    "start_ms" => start.clone(),
                    "end_ms" => end.clone(),
                    "jitter_ms" => json!(jitter),
                    _ => json!(misfire),
                };
            }
            let ask = |method: http::Method, path: &str, body: Value| {
                let request = Request::builder().method(method).uri(format!("/v1/schedules/s{path}"));
                let request = request.header("content-type", "application/json");
                runtime.block_on(never_its_fault(&inside, request, body.to_string().into_bytes()));
            };
            ask(http::Method::POST, "/check?next=100", body.clone());
            ask(http::Method::PUT, "", body);
            for (from, to, dry_run) in ranges {
                let range = json!({"from_ms": from, "to_ms": to, "dry_run": dry_run});
                ask(http::Method::POST, "/backfill", range);
                ask(http::Method::POST, "/backfill", json!({"ticks": [from, to]}));
                ask(http::Method::GET, &format!("/ticks?before={from}"), json!({}));
            }
            ask(http::Method::GET, "?next=1000", json!({}));
            ask(http::Method::DELETE, "", json!({}));
            Ok(())
        })
        .unwrap();
}

/// The parsers that everything else stands on.
#[test]
fn names_and_addresses_of_stores_are_parsed_or_refused() {
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
                let _ = tenure::backend::migration_sql(&text);
                Ok(())
            },
        )
        .unwrap();
}
