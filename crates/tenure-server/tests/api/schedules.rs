//! Schedules over plain HTTP.

use axum::body::Body;
use http::{Method, Request};
use serde_json::{Value, json};

use super::support::{TestApp, TestResponse, test_app};

const NIGHTLY: &str = "/v1/schedules/nightly";
/// 2020-01-01T00:00:00Z.
const PAST_MS: i64 = 1_577_836_800_000;
const HOUR_MS: i64 = 3_600_000;

async fn send(
    app: &TestApp,
    method: Method,
    path: &str,
    header: Option<(&str, &str)>,
    body: Option<Value>,
) -> TestResponse {
    let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
    if let Some((name, value)) = header {
        request = request.header(name, value);
    }
    let request = match body {
        Some(body) => request.header("content-type", "application/json").body(Body::from(body.to_string())),
        None => request.body(Body::empty()),
    };
    app.send(request.unwrap()).await
}

async fn put(app: &TestApp, path: &str, body: Value) -> TestResponse {
    send(app, Method::PUT, path, None, Some(body)).await
}

/// Schedule that submits a task every night.
fn nightly() -> Value {
    json!({"expression": "30 2 * * *", "time_zone": "Europe/Berlin", "target": {"task": {"queue": "reports"}}})
}

/// Hourly schedule of a past day: no tick is due.
fn over(target: Value) -> Value {
    json!({"expression": "every 1h", "start_at_ms": PAST_MS, "end_at_ms": PAST_MS + 24 * HOUR_MS, "target": target})
}

fn task() -> Value {
    json!({"task": {"queue": "reports", "task": {"kind": "nightly"}}})
}

fn webhook() -> Value {
    json!({"webhook": {"url": "https://example.org/hook?token=private"}})
}

#[tokio::test]
async fn a_schedule_is_created_read_listed_and_deleted() {
    let app = test_app();
    let created = put(&app, NIGHTLY, nightly()).await;
    assert_eq!(created.header("etag"), "\"1\"");
    let created = created.of(201);
    assert_eq!((&created["outcome"], &created["version"]), (&json!("created"), &json!(1)));
    assert_eq!(created["definition"]["name"], "nightly");
    assert_eq!(created["updated_by"], "local");
    assert!(created.get("secret").is_none());
    let again = put(&app, NIGHTLY, nightly()).await.of(200);
    assert_eq!((&again["outcome"], &again["version"]), (&json!("unchanged"), &json!(1)));
    let shown = app.get(&format!("{NIGHTLY}?upcoming=3")).await;
    assert_eq!(shown.header("etag"), "\"1\"");
    let shown = shown.of(200);
    let upcoming = shown["upcoming"].as_array().unwrap();
    assert_eq!(upcoming.len(), 3);
    assert_eq!(upcoming[0]["tick_at_ms"], shown["tick_state"]["next_tick_at_ms"]);
    for tick in upcoming {
        let at = tick["local_time"].as_str().unwrap();
        // Ticks are in the schedule's time zone. In the night whose DST gap skips 02:30, the tick is an hour
        // later.
        assert!(at.contains("T02:30:00+0") || at.contains("T03:30:00+02:00"), "{at}");
        assert_eq!(tick["tick_at_ms"], tick["due_at_ms"]);
    }
    // A response can be sent back unchanged.
    let back = put(&app, NIGHTLY, shown["definition"].clone()).await.of(200);
    assert_eq!(back["outcome"], "unchanged");
    put(&app, "/v1/schedules/nightly?namespace=acme", nightly()).await.of(201);
    put(&app, "/v1/schedules/yearly", json!({"expression": "@yearly", "source": "f.toml", "target": task()}))
        .await
        .of(201);
    let names = |page: &Value| -> Vec<String> {
        let name = |view: &Value| {
            format!(
                "{}/{}",
                view["namespace"].as_str().unwrap(),
                view["definition"]["name"].as_str().unwrap()
            )
        };
        page["schedules"].as_array().unwrap().iter().map(name).collect()
    };
    let first = app.get("/v1/schedules?limit=2").await.of(200);
    assert_eq!(names(&first), ["acme/nightly", "default/nightly"]);
    let next = first["next_cursor"].as_str().unwrap();
    let last = app.get(&format!("/v1/schedules?limit=2&cursor={next}")).await.of(200);
    assert_eq!((names(&last), &last["next_cursor"]), (vec!["default/yearly".to_owned()], &Value::Null));
    let sourced = app.get("/v1/schedules?source=f.toml").await.of(200);
    assert_eq!(names(&sourced), ["default/yearly"]);
    let stats = app.get("/v1/schedule-stats").await.of(200);
    let counts: Vec<_> =
        stats["namespaces"].as_array().unwrap().iter().map(|one| &one["schedule_count"]).collect();
    assert_eq!(counts, [1, 2]);
    send(&app, Method::DELETE, NIGHTLY, None, None).await.of(204);
    app.get(NIGHTLY).await.problem(404, "no-such-schedule", Some("schedule"));
    send(&app, Method::DELETE, NIGHTLY, None, None).await.problem(404, "no-such-schedule", Some("schedule"));
}

#[tokio::test]
async fn concurrent_edits_do_not_overwrite_each_other() {
    let app = test_app();
    let with = |method: Method, header: (&'static str, &'static str), when: Option<&str>| {
        let body = when.map(|when| json!({"expression": when, "target": task()}));
        let app = app.clone();
        async move { send(&app, method, NIGHTLY, Some(header), body).await }
    };
    with(Method::PUT, ("if-match", "*"), Some("@daily")).await.problem(
        412,
        "schedule-changed",
        Some("if_version"),
    );
    with(Method::PUT, ("if-none-match", "*"), Some("@daily")).await.of(201);
    let there = with(Method::PUT, ("if-none-match", "*"), Some("@weekly")).await;
    assert_eq!(there.header("etag"), "\"1\"");
    there.problem(412, "schedule-changed", Some("if_version"));
    assert_eq!(with(Method::PUT, ("if-match", "\"1\""), Some("@weekly")).await.of(200)["version"], 2);
    let late = with(Method::PUT, ("if-match", "\"1\""), Some("@monthly")).await;
    assert_eq!(late.header("etag"), "\"2\"");
    late.problem(412, "schedule-changed", Some("if_version"));
    // A compressing proxy weakens the tag.
    assert_eq!(with(Method::PUT, ("if-match", "W/\"2\""), Some("@monthly")).await.of(200)["version"], 3);
    assert_eq!(with(Method::PUT, ("if-match", "*"), Some("@yearly")).await.of(200)["version"], 4);
    assert_eq!(app.get(NIGHTLY).await.of(200)["definition"]["expression"], "@yearly");
    for (name, value) in [("if-match", "\"1\", \"2\""), ("if-none-match", "\"1\"")] {
        with(Method::PUT, (name, value), Some("@daily")).await.problem(400, "malformed-header", Some(name));
    }
    put(&app, &format!("{NIGHTLY}?if_version=4"), nightly()).await.of(200);
    put(&app, &format!("{NIGHTLY}?if_version=4"), nightly()).await.problem(
        412,
        "schedule-changed",
        Some("if_version"),
    );
    put(&app, &format!("{NIGHTLY}?if_version=old"), nightly()).await.problem(
        400,
        "malformed-query",
        Some("if_version"),
    );
    with(Method::DELETE, ("if-match", "\"4\""), None).await.problem(
        412,
        "schedule-changed",
        Some("if_version"),
    );
    with(Method::DELETE, ("if-match", "\"5\""), None).await.of(204);
}

#[tokio::test]
async fn invalid_definitions_name_the_field() {
    let app = test_app();
    let mut wrong = Vec::new();
    let mut but = |field: &str, value: Value, blamed: &'static str, word: &'static str| {
        let mut body = nightly();
        body[field] = value;
        wrong.push((body, blamed, word));
    };
    but("expression", json!("61 * * * *"), "expression", "61");
    but("expression", json!("0 0 31 2 *"), "expression", "31");
    but("expression", json!("every 0s"), "expression", "0s");
    but("time_zone", json!("Europe/Belrin"), "time_zone", "Europe/Berlin");
    but("misfire_policy", json!("fire_all(0)"), "misfire_policy", "0");
    but("jitter_ms", json!(86_400_001), "jitter_ms", "86400000");
    but("overlap_policy", json!("sometimes"), "overlap_policy", "sometimes");
    but("colour", json!("blue"), "colour", "colour");
    but("name", json!("other"), "name", "other");
    but("secret", json!("0123456789abcdef"), "secret", "webhook");
    but(
        "target",
        json!({"webhook": {"url": "https://u:p@example.org/"}}),
        "target.webhook.url",
        "credentials",
    );
    but("target", json!({"webhook": {"url": "http://169.254.169.254/x"}}), "target.webhook.url", "private");
    but("target", json!({"event": {"topic": "bells"}}), "target.event.topic", "bells");
    but(
        "target",
        json!({"task": {"queue": "q", "task": {"idempotency_key": "k"}}}),
        "target.task.task.idempotency_key",
        "idempotency",
    );
    for (body, blamed, word) in wrong {
        for path in [NIGHTLY.to_owned(), format!("{NIGHTLY}/preview")] {
            let method = if path == NIGHTLY { Method::PUT } else { Method::POST };
            // A preview does not validate the secret.
            if blamed == "secret" && method == Method::POST {
                continue;
            }
            let answer = send(&app, method, &path, None, Some(body.clone())).await;
            let text = answer.json();
            assert_eq!(
                (answer.status.as_u16(), text["field"].as_str()),
                (422, Some(blamed)),
                "{body}: {text}"
            );
            let all = format!("{} {}", text["detail"], text["remedy"]);
            assert!(all.contains(word), "{all}");
        }
    }
    let backwards = json!({"expression": "@daily", "start_at_ms": 2000, "end_at_ms": 1000, "target": task()});
    put(&app, NIGHTLY, backwards).await.problem(422, "invalid-value", Some("end_at_ms"));
    app.get(NIGHTLY).await.problem(404, "no-such-schedule", Some("schedule"));
}

#[tokio::test]
async fn a_preview_stores_nothing() {
    let app = test_app();
    let check = format!("{NIGHTLY}/preview?upcoming=4");
    let checked = app.post(&check, nightly()).await.of(200);
    assert_eq!((&checked["outcome"], &checked["version"]), (&json!("created"), &Value::Null));
    assert_eq!((&checked["dst_gap"], &checked["dst_overlap"]), (&json!("shift"), &json!("first")));
    assert_eq!(checked["upcoming"].as_array().unwrap().len(), 4);
    assert!(checked["tzdb_version"].as_str().unwrap().starts_with("20"));
    app.get(NIGHTLY).await.problem(404, "no-such-schedule", Some("schedule"));
    let created = put(&app, NIGHTLY, nightly()).await.of(201);
    assert_eq!(created["upcoming"][0], checked["upcoming"][0], "same as in the preview");
    assert_eq!(app.post(&check, nightly()).await.of(200)["outcome"], "unchanged");
    let mut other = nightly();
    other["time_zone"] = json!("America/New_York");
    let checked = app.post(&check, other).await.of(200);
    assert_eq!((&checked["outcome"], &checked["version"]), (&json!("updated"), &json!(1)));
    assert_ne!(checked["upcoming"][0], created["upcoming"][0]);
    assert_eq!(app.get(NIGHTLY).await.of(200)["definition"]["time_zone"], "Europe/Berlin");
}

#[tokio::test]
async fn webhooks_are_signed_and_the_secret_is_shown_once() {
    let app = test_app();
    let body = |more: Value| {
        let mut body = over(webhook());
        more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
        body
    };
    let created = put(&app, NIGHTLY, body(json!({}))).await.of(201);
    let secret = created["secret"].as_str().expect("it is shown").to_owned();
    assert!(secret.starts_with("whsec_"));
    assert_eq!(created["webhook_signed"], true);
    let stored = async || app.store.webhook_secret(&key()).await.unwrap();
    assert_eq!(stored().await, Some(secret.clone()));
    for path in [NIGHTLY, "/v1/schedules", "/v1/schedules/nightly/ticks"] {
        let text = String::from_utf8(app.get(path).await.bytes).unwrap();
        assert!(!text.contains(&secret), "{text}");
    }
    // The secret stays until it is rotated.
    let same = put(&app, NIGHTLY, body(json!({}))).await.of(200);
    assert_eq!((&same["outcome"], same.get("secret")), (&json!("unchanged"), None));
    let rotated = put(&app, NIGHTLY, body(json!({"rotate_secret": true}))).await.of(200);
    assert_ne!(rotated["secret"], json!(secret));
    assert_eq!(rotated["version"], 2, "the version changes");
    let given = put(&app, NIGHTLY, body(json!({"secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}))).await;
    assert_eq!(given.of(200).get("secret"), None, "a given secret is not returned");
    for secret in ["short", "whsec_MfKQ9r8GKYqrTwjUPD8ILP!!!!!!!!"] {
        put(&app, NIGHTLY, body(json!({"secret": secret}))).await.problem(
            422,
            "invalid-value",
            Some("secret"),
        );
    }
    let both = body(json!({"secret": "0123456789abcdef", "rotate_secret": true}));
    put(&app, NIGHTLY, both).await.problem(422, "invalid-value", Some("rotate_secret"));
    let open = put(&app, "/v1/schedules/open", body(json!({"webhook_unsigned": true}))).await.of(201);
    assert_eq!((&open["webhook_signed"], open.get("secret")), (&json!(false), None));
    // A rejected definition returns no secret.
    let late = put(&app, "/v1/schedules/open?if_version=new", body(json!({"rotate_secret": true}))).await;
    assert!(late.json().get("secret").is_none());
    late.problem(412, "schedule-changed", Some("if_version"));
    // The audit log contains the change without secrets.
    let audit = String::from_utf8(app.get("/v1/audit").await.bytes).unwrap();
    assert!(audit.contains("schedule.set") && audit.contains("https://example.org/hook"), "{audit}");
    assert!(!audit.contains("token=private") && !audit.contains("whsec_"), "{audit}");
}

fn key() -> tenure::port::ScheduleKey {
    tenure::port::ScheduleKey::new("default".parse().unwrap(), "nightly".parse().unwrap())
}

#[tokio::test]
async fn a_pause_has_principal_and_reason_and_is_idempotent() {
    let app = test_app();
    put(&app, NIGHTLY, nightly()).await.of(201);
    let pause = format!("{NIGHTLY}/pause");
    let body = json!({"reason": "the press is broken", "on_behalf_of": "ada"});
    assert_eq!(app.post(&pause, body.clone()).await.of(200)["changed"], true);
    assert_eq!(app.post(&pause, body).await.of(200)["changed"], false);
    let shown = app.get(NIGHTLY).await.of(200);
    assert_eq!((&shown["paused"]["paused_by"], &shown["due_at_ms"]), (&json!("ada"), &Value::Null));
    assert_eq!(shown["paused"]["reason"], "the press is broken");
    assert_eq!(app.get("/v1/schedule-stats").await.of(200)["namespaces"][0]["paused_count"], 1);
    let resume = format!("{NIGHTLY}/resume");
    for changed in [true, false] {
        assert_eq!(send(&app, Method::POST, &resume, None, None).await.of(200)["changed"], changed);
    }
    assert_eq!(app.get(NIGHTLY).await.of(200)["paused"], Value::Null);
    for act in ["pause", "resume", "trigger"] {
        let path = format!("/v1/schedules/none/{act}");
        send(&app, Method::POST, &path, None, None).await.problem(404, "no-such-schedule", Some("schedule"));
    }
}

#[tokio::test]
async fn a_trigger_fires_now_and_is_listed() {
    let app = test_app();
    put(&app, NIGHTLY, nightly()).await.of(201);
    let trigger = format!("{NIGHTLY}/trigger");
    let would = app.post(&trigger, json!({"dry_run": true})).await.of(200);
    assert_eq!((&would["outcome"], would.get("task_id")), (&json!("fired"), None));
    let fired = app.post(&trigger, json!({"payload": {"why": "now"}, "on_behalf_of": "ada"})).await.of(200);
    let id = fired["task_id"].as_u64().expect("a task");
    let task = app.get(&format!("/v1/tasks/{id}")).await.of(200);
    assert_eq!((&task["queue"], &task["payload"]), (&json!("reports"), &json!({"why": "now"})));
    let ticks = app.get(&format!("{NIGHTLY}/ticks")).await.of(200);
    let ticks = ticks["ticks"].as_array().unwrap();
    assert_eq!(ticks.len(), 1);
    assert_eq!((&ticks[0]["cause"], &ticks[0]["decided_by"]), (&json!("trigger"), &json!("ada")));
    assert_eq!((&ticks[0]["task_id"], &ticks[0]["token"]), (&json!(id), &Value::Null));
    app.get("/v1/schedules/none/ticks").await.problem(404, "no-such-schedule", Some("schedule"));
}

#[tokio::test]
async fn a_range_is_backfilled_in_parts_each_tick_once() {
    let app = test_app();
    let mut body = over(task());
    // 1440 ticks, one per minute.
    body["expression"] = json!("every 1m");
    put(&app, NIGHTLY, body).await.of(201);
    let backfill = format!("{NIGHTLY}/backfill");
    let range = |from_ms: i64, dry_run: bool| {
        let to_ms = PAST_MS + 48 * HOUR_MS;
        json!({"from_at_ms": from_ms, "to_at_ms": to_ms, "dry_run": dry_run})
    };
    let would = app.post(&backfill, range(PAST_MS - HOUR_MS, true)).await.of(200);
    assert_eq!((would["ticks"].as_array().unwrap().len(), &would["remaining_count"]), (1000, &json!(440)));
    assert_eq!(app.get(NIGHTLY).await.of(200)["fired_count"], 0, "a dry run fires nothing");
    let (mut from_ms, mut fired) = (PAST_MS - HOUR_MS, Vec::new());
    loop {
        let part = app.post(&backfill, range(from_ms, false)).await.of(200);
        let ticks = part["ticks"].as_array().unwrap();
        assert!(ticks.iter().all(|tick| tick["outcome"] == "fired" && tick["task_id"].is_u64()));
        fired.extend(ticks.iter().map(|tick| tick["tick_at_ms"].as_i64().unwrap()));
        match part["next_from_at_ms"].as_i64() {
            Some(next) => from_ms = next,
            None => break,
        }
    }
    assert_eq!(fired, (0..1440).map(|n| PAST_MS + n * 60_000).collect::<Vec<_>>());
    let again = app.post(&backfill, range(PAST_MS, false)).await.of(200);
    assert!(again["ticks"].as_array().unwrap().iter().all(|tick| tick["outcome"] == "already_fired"));
    assert_eq!(app.get(NIGHTLY).await.of(200)["fired_count"], 1440);
    // The ticks page by page, newest first.
    let (mut before, mut seen) = (String::new(), Vec::new());
    loop {
        let page = app.get(&format!("{NIGHTLY}/ticks?limit=1000{before}")).await.of(200);
        seen.extend(
            page["ticks"].as_array().unwrap().iter().map(|tick| tick["tick_at_ms"].as_i64().unwrap()),
        );
        match page["next_cursor"].as_i64() {
            Some(next) => before = format!("&cursor={next}"),
            None => break,
        }
    }
    fired.reverse();
    assert_eq!(seen, fired);
    for wrong in [json!({}), json!({"from_at_ms": 1}), json!({"from_at_ms": 1, "to_at_ms": 2, "ticks": [1]})]
    {
        app.post(&backfill, wrong).await.problem(422, "invalid-value", Some("from_at_ms"));
    }
    app.post(&backfill, json!({"from_at_ms": 2, "to_at_ms": 2})).await.problem(
        422,
        "invalid-value",
        Some("to_at_ms"),
    );
    let many: Vec<i64> = (0..10_001).collect();
    app.post(&backfill, json!({"ticks": many})).await.problem(422, "invalid-value", Some("ticks"));
}

#[tokio::test]
async fn future_ticks_are_not_backfilled() {
    let app = test_app();
    let soon = tenure::runtime::wall_ms() + 30 * 24 * HOUR_MS;
    put(&app, NIGHTLY, json!({"expression": "every 1h", "start_at_ms": soon, "target": task()}))
        .await
        .of(201);
    let range = json!({"from_at_ms": 0, "to_at_ms": soon + 1_000 * HOUR_MS});
    let none = app.post(&format!("{NIGHTLY}/backfill"), range).await.of(200);
    assert_eq!(
        (&none["ticks"], &none["next_from_at_ms"], &none["remaining_count"]),
        (&json!([]), &Value::Null, &json!(0))
    );
    let named = json!({"ticks": [soon - soon % HOUR_MS + HOUR_MS, soon + 1]});
    let text = app.post(&format!("{NIGHTLY}/backfill"), named).await.of(200);
    let outcomes: Vec<_> = text["ticks"].as_array().unwrap().iter().map(|tick| &tick["outcome"]).collect();
    assert_eq!(outcomes[0], "in_future");
}

#[tokio::test]
async fn metrics_contain_schedules() {
    let app = test_app();
    put(&app, NIGHTLY, nightly()).await.of(201);
    put(&app, "/v1/schedules/other", nightly()).await.of(201);
    app.post("/v1/schedules/other/pause", json!({})).await.of(200);
    app.post(&format!("{NIGHTLY}/trigger"), json!({})).await.of(200);
    let text = String::from_utf8(app.get("/metrics").await.bytes).unwrap();
    let figure = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    };
    assert_eq!(figure("tenure_schedules{namespace=\"default\"}"), 2.0);
    assert_eq!(figure("tenure_schedules_paused{namespace=\"default\"}"), 1.0);
    assert_eq!(figure("tenure_schedules_overdue{namespace=\"default\"}"), 0.0);
    assert_eq!(figure("tenure_schedules_failing{namespace=\"default\"}"), 0.0);
    let now = tenure::runtime::wall_ms() as f64 / 1000.0;
    assert!(
        (now - figure("tenure_schedules_last_fired_timestamp_seconds{namespace=\"default\"}")).abs() < 600.0
    );
    let of = |name: &str, schedule: &str| format!("{name}{{namespace=\"default\",schedule=\"{schedule}\"}}");
    assert_eq!(figure(&of("tenure_schedule_ticks_fired_total", "nightly")), 1.0);
    assert_eq!(figure(&of("tenure_schedule_ticks_skipped_total", "nightly")), 0.0);
    assert_eq!(figure(&of("tenure_schedule_paused", "other")), 1.0);
    assert!(figure(&of("tenure_schedule_next_due_timestamp_seconds", "nightly")) > now);
    assert!(
        !text.contains(&of("tenure_schedule_next_due_timestamp_seconds", "other")),
        "a paused schedule is not due"
    );
}
