//! Schedules over plain HTTP: set, looked at, changed by two at once, paused, and fired by hand.

use axum::body::Body;
use http::{Method, Request};
use serde_json::{Value, json};

use super::support::{Answer, Inside, inside};

const NIGHTLY: &str = "/v1/schedules/nightly";
/// 2020-01-01T00:00:00Z.
const PAST_MS: i64 = 1_577_836_800_000;
const HOUR_MS: i64 = 3_600_000;

async fn send(
    inside: &Inside,
    method: Method,
    path: &str,
    header: Option<(&str, &str)>,
    body: Option<Value>,
) -> Answer {
    let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
    if let Some((name, value)) = header {
        request = request.header(name, value);
    }
    let request = match body {
        Some(body) => request.header("content-type", "application/json").body(Body::from(body.to_string())),
        None => request.body(Body::empty()),
    };
    inside.send(request.unwrap()).await
}

async fn put(inside: &Inside, path: &str, body: Value) -> Answer {
    send(inside, Method::PUT, path, None, Some(body)).await
}

/// Every night, a task.
fn nightly() -> Value {
    json!({"when": "30 2 * * *", "zone": "Europe/Berlin", "target": {"task": {"queue": "reports"}}})
}

/// Every hour of a day that is long over: nothing of it is ever due.
fn over(target: Value) -> Value {
    json!({"when": "every 1h", "start_ms": PAST_MS, "end_ms": PAST_MS + 24 * HOUR_MS, "target": target})
}

fn task() -> Value {
    json!({"task": {"queue": "reports", "task": {"kind": "nightly"}}})
}

fn call() -> Value {
    json!({"call": {"url": "https://example.org/hook?token=private"}})
}

#[tokio::test]
async fn a_schedule_is_made_shown_listed_and_deleted() {
    let inside = inside();
    let made = put(&inside, NIGHTLY, nightly()).await;
    assert_eq!(made.header("etag"), "\"1\"");
    let made = made.of(201);
    assert_eq!((&made["outcome"], &made["version"]), (&json!("created"), &json!(1)));
    assert_eq!(made["definition"]["name"], "nightly");
    assert_eq!(made["updated_by"], "local");
    assert!(made.get("secret").is_none());
    let again = put(&inside, NIGHTLY, nightly()).await.of(200);
    assert_eq!((&again["outcome"], &again["version"]), (&json!("same"), &json!(1)));
    let shown = inside.get(&format!("{NIGHTLY}?next=3")).await;
    assert_eq!(shown.header("etag"), "\"1\"");
    let shown = shown.of(200);
    let upcoming = shown["upcoming"].as_array().unwrap();
    assert_eq!(upcoming.len(), 3);
    assert_eq!(upcoming[0]["at_ms"], shown["progress"]["next_at_ms"]);
    for tick in upcoming {
        let at = tick["at"].as_str().unwrap();
        // In its own zone; on the night that has no 02:30, an hour later.
        assert!(at.contains("T02:30:00+0") || at.contains("T03:30:00+02:00"), "{at}");
        assert_eq!(tick["at_ms"], tick["due_ms"]);
    }
    // What is shown can be sent back as it is.
    let back = put(&inside, NIGHTLY, shown["definition"].clone()).await.of(200);
    assert_eq!(back["outcome"], "same");
    put(&inside, "/v1/schedules/nightly?namespace=acme", nightly()).await.of(201);
    put(&inside, "/v1/schedules/yearly", json!({"when": "@yearly", "source": "f.toml", "target": task()}))
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
    let first = inside.get("/v1/schedules?limit=2").await.of(200);
    assert_eq!(names(&first), ["acme/nightly", "default/nightly"]);
    let next = first["next"].as_str().unwrap();
    let last = inside.get(&format!("/v1/schedules?limit=2&after={next}")).await.of(200);
    assert_eq!((names(&last), &last["next"]), (vec!["default/yearly".to_owned()], &Value::Null));
    let sourced = inside.get("/v1/schedules?source=f.toml").await.of(200);
    assert_eq!(names(&sourced), ["default/yearly"]);
    let calendar = inside.get("/v1/calendar").await.of(200);
    let counts: Vec<_> =
        calendar["namespaces"].as_array().unwrap().iter().map(|one| &one["schedules"]).collect();
    assert_eq!(counts, [1, 2]);
    send(&inside, Method::DELETE, NIGHTLY, None, None).await.of(204);
    inside.get(NIGHTLY).await.problem(404, "no-such-schedule", Some("schedule"));
    send(&inside, Method::DELETE, NIGHTLY, None, None).await.problem(
        404,
        "no-such-schedule",
        Some("schedule"),
    );
}

#[tokio::test]
async fn two_who_edit_do_not_overwrite_each_other() {
    let inside = inside();
    let with = |method: Method, header: (&'static str, &'static str), when: Option<&str>| {
        let body = when.map(|when| json!({"when": when, "target": task()}));
        let inside = inside.clone();
        async move { send(&inside, method, NIGHTLY, Some(header), body).await }
    };
    with(Method::PUT, ("if-match", "*"), Some("@daily")).await.problem(
        412,
        "schedule-changed",
        Some("expect"),
    );
    with(Method::PUT, ("if-none-match", "*"), Some("@daily")).await.of(201);
    let there = with(Method::PUT, ("if-none-match", "*"), Some("@weekly")).await;
    assert_eq!(there.header("etag"), "\"1\"");
    there.problem(412, "schedule-changed", Some("expect"));
    assert_eq!(with(Method::PUT, ("if-match", "\"1\""), Some("@weekly")).await.of(200)["version"], 2);
    let late = with(Method::PUT, ("if-match", "\"1\""), Some("@monthly")).await;
    assert_eq!(late.header("etag"), "\"2\"");
    late.problem(412, "schedule-changed", Some("expect"));
    // Who compresses on the way makes a tag weak.
    assert_eq!(with(Method::PUT, ("if-match", "W/\"2\""), Some("@monthly")).await.of(200)["version"], 3);
    assert_eq!(with(Method::PUT, ("if-match", "*"), Some("@yearly")).await.of(200)["version"], 4);
    assert_eq!(inside.get(NIGHTLY).await.of(200)["definition"]["when"], "@yearly");
    for (name, value) in [("if-match", "\"1\", \"2\""), ("if-none-match", "\"1\"")] {
        with(Method::PUT, (name, value), Some("@daily")).await.problem(400, "malformed-header", Some(name));
    }
    put(&inside, &format!("{NIGHTLY}?expect=4"), nightly()).await.of(200);
    put(&inside, &format!("{NIGHTLY}?expect=4"), nightly()).await.problem(
        412,
        "schedule-changed",
        Some("expect"),
    );
    put(&inside, &format!("{NIGHTLY}?expect=old"), nightly()).await.problem(
        400,
        "malformed-query",
        Some("expect"),
    );
    with(Method::DELETE, ("if-match", "\"4\""), None).await.problem(412, "schedule-changed", Some("expect"));
    with(Method::DELETE, ("if-match", "\"5\""), None).await.of(204);
}

#[tokio::test]
async fn what_makes_no_sense_is_told_with_the_field_to_blame() {
    let inside = inside();
    let mut wrong = Vec::new();
    let mut but = |field: &str, value: Value, blamed: &'static str, word: &'static str| {
        let mut body = nightly();
        body[field] = value;
        wrong.push((body, blamed, word));
    };
    but("when", json!("61 * * * *"), "when", "61");
    but("when", json!("0 0 31 2 *"), "when", "31");
    but("when", json!("every 0s"), "when", "0s");
    but("zone", json!("Europe/Belrin"), "zone", "Europe/Berlin");
    but("misfire", json!("fire_all(0)"), "misfire", "0");
    but("jitter_ms", json!(86_400_001), "jitter_ms", "86400000");
    but("overlap", json!("sometimes"), "overlap", "sometimes");
    but("colour", json!("blue"), "colour", "colour");
    but("name", json!("other"), "name", "other");
    but("secret", json!("0123456789abcdef"), "secret", "calls");
    but("target", json!({"call": {"url": "https://u:p@example.org/"}}), "target.call.url", "credentials");
    but("target", json!({"call": {"url": "http://169.254.169.254/x"}}), "target.call.url", "private");
    but("target", json!({"event": {"topic": "bells"}}), "target.event.topic", "bells");
    but("target", json!({"task": {"queue": "q", "task": {"key": "k"}}}), "target.task.task.key", "key");
    for (body, blamed, word) in wrong {
        for path in [NIGHTLY.to_owned(), format!("{NIGHTLY}/check")] {
            let method = if path == NIGHTLY { Method::PUT } else { Method::POST };
            // Only who sets it has a secret to set.
            if blamed == "secret" && method == Method::POST {
                continue;
            }
            let answer = send(&inside, method, &path, None, Some(body.clone())).await;
            let told = answer.json();
            assert_eq!(
                (answer.status.as_u16(), told["field"].as_str()),
                (422, Some(blamed)),
                "{body}: {told}"
            );
            let all = format!("{} {}", told["detail"], told["remedy"]);
            assert!(all.contains(word), "{all}");
        }
    }
    let backwards = json!({"when": "@daily", "start_ms": 2000, "end_ms": 1000, "target": task()});
    put(&inside, NIGHTLY, backwards).await.problem(422, "unfit", Some("end_ms"));
    inside.get(NIGHTLY).await.problem(404, "no-such-schedule", Some("schedule"));
}

#[tokio::test]
async fn a_check_says_what_would_be_and_stores_nothing() {
    let inside = inside();
    let check = format!("{NIGHTLY}/check?next=4");
    let checked = inside.post(&check, nightly()).await.of(200);
    assert_eq!((&checked["outcome"], &checked["version"]), (&json!("created"), &Value::Null));
    assert_eq!((&checked["gap"], &checked["fold"]), (&json!("shift"), &json!("first")));
    assert_eq!(checked["upcoming"].as_array().unwrap().len(), 4);
    assert!(checked["tzdb"].as_str().unwrap().starts_with("20"));
    inside.get(NIGHTLY).await.problem(404, "no-such-schedule", Some("schedule"));
    let made = put(&inside, NIGHTLY, nightly()).await.of(201);
    assert_eq!(made["upcoming"][0], checked["upcoming"][0], "it is as it was foretold");
    assert_eq!(inside.post(&check, nightly()).await.of(200)["outcome"], "same");
    let mut other = nightly();
    other["zone"] = json!("America/New_York");
    let checked = inside.post(&check, other).await.of(200);
    assert_eq!((&checked["outcome"], &checked["version"]), (&json!("changed"), &json!(1)));
    assert_ne!(checked["upcoming"][0], made["upcoming"][0]);
    assert_eq!(inside.get(NIGHTLY).await.of(200)["definition"]["zone"], "Europe/Berlin");
}

#[tokio::test]
async fn calls_are_signed_and_the_secret_is_shown_once() {
    let inside = inside();
    let wish = |more: Value| {
        let mut body = over(call());
        more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
        body
    };
    let made = put(&inside, NIGHTLY, wish(json!({}))).await.of(201);
    let secret = made["secret"].as_str().expect("it is shown").to_owned();
    assert!(secret.starts_with("whsec_"));
    assert_eq!(made["signed"], true);
    let stored = async || inside.store.call_secret(&key()).await.unwrap();
    assert_eq!(stored().await, Some(secret.clone()));
    for path in [NIGHTLY, "/v1/schedules", "/v1/schedules/nightly/ticks"] {
        let told = String::from_utf8(inside.get(path).await.bytes).unwrap();
        assert!(!told.contains(&secret), "{told}");
    }
    // Set anew, it stays; rotated, it is another.
    let same = put(&inside, NIGHTLY, wish(json!({}))).await.of(200);
    assert_eq!((&same["outcome"], same.get("secret")), (&json!("same"), None));
    let rotated = put(&inside, NIGHTLY, wish(json!({"rotate": true}))).await.of(200);
    assert_ne!(rotated["secret"], json!(secret));
    assert_eq!(rotated["version"], 2, "who edits it meanwhile finds out");
    let given =
        put(&inside, NIGHTLY, wish(json!({"secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}))).await;
    assert_eq!(given.of(200).get("secret"), None, "who gave it knows it");
    for secret in ["short", "whsec_MfKQ9r8GKYqrTwjUPD8ILP!!!!!!!!"] {
        put(&inside, NIGHTLY, wish(json!({"secret": secret}))).await.problem(422, "unfit", Some("secret"));
    }
    let both = wish(json!({"secret": "0123456789abcdef", "rotate": true}));
    put(&inside, NIGHTLY, both).await.problem(422, "unfit", Some("rotate"));
    let open = put(&inside, "/v1/schedules/open", wish(json!({"unsigned": true}))).await.of(201);
    assert_eq!((&open["signed"], open.get("secret")), (&json!(false), None));
    // A definition that was not taken has no secret that anybody should keep.
    let late = put(&inside, "/v1/schedules/open?expect=new", wish(json!({"rotate": true}))).await;
    assert!(late.json().get("secret").is_none());
    late.problem(412, "schedule-changed", Some("expect"));
    // What was done is on record, without what may be secret.
    let audit = String::from_utf8(inside.get("/v1/audit").await.bytes).unwrap();
    assert!(audit.contains("schedule.set") && audit.contains("https://example.org/hook"), "{audit}");
    assert!(!audit.contains("token=private") && !audit.contains("whsec_"), "{audit}");
}

fn key() -> tenure::port::ScheduleKey {
    tenure::port::ScheduleKey::new("default".parse().unwrap(), "nightly".parse().unwrap())
}

#[tokio::test]
async fn a_pause_says_who_and_why_and_happens_once() {
    let inside = inside();
    put(&inside, NIGHTLY, nightly()).await.of(201);
    let pause = format!("{NIGHTLY}/pause");
    let wish = json!({"reason": "the press is broken", "by": "ada"});
    assert_eq!(inside.post(&pause, wish.clone()).await.of(200)["changed"], true);
    assert_eq!(inside.post(&pause, wish).await.of(200)["changed"], false);
    let shown = inside.get(NIGHTLY).await.of(200);
    assert_eq!((&shown["paused"]["by"], &shown["due_ms"]), (&json!("ada"), &Value::Null));
    assert_eq!(shown["paused"]["reason"], "the press is broken");
    assert_eq!(inside.get("/v1/calendar").await.of(200)["namespaces"][0]["paused"], 1);
    let resume = format!("{NIGHTLY}/resume");
    for changed in [true, false] {
        assert_eq!(send(&inside, Method::POST, &resume, None, None).await.of(200)["changed"], changed);
    }
    assert_eq!(inside.get(NIGHTLY).await.of(200)["paused"], Value::Null);
    for act in ["pause", "resume", "trigger"] {
        let path = format!("/v1/schedules/none/{act}");
        send(&inside, Method::POST, &path, None, None).await.problem(
            404,
            "no-such-schedule",
            Some("schedule"),
        );
    }
}

#[tokio::test]
async fn a_trigger_fires_now_and_is_in_the_history() {
    let inside = inside();
    put(&inside, NIGHTLY, nightly()).await.of(201);
    let trigger = format!("{NIGHTLY}/trigger");
    let would = inside.post(&trigger, json!({"dry_run": true})).await.of(200);
    assert_eq!((&would["outcome"], would.get("task")), (&json!("fired"), None));
    let fired = inside.post(&trigger, json!({"payload": {"why": "now"}, "by": "ada"})).await.of(200);
    let id = fired["task"].as_u64().expect("a task");
    let task = inside.get(&format!("/v1/tasks/{id}")).await.of(200);
    assert_eq!((&task["queue"], &task["payload"]), (&json!("reports"), &json!({"why": "now"})));
    let ticks = inside.get(&format!("{NIGHTLY}/ticks")).await.of(200);
    let ticks = ticks["ticks"].as_array().unwrap();
    assert_eq!(ticks.len(), 1);
    assert_eq!((&ticks[0]["cause"], &ticks[0]["by"]), (&json!("trigger"), &json!("ada")));
    assert_eq!((&ticks[0]["task"], &ticks[0]["token"]), (&json!(id), &Value::Null));
    inside.get("/v1/schedules/none/ticks").await.problem(404, "no-such-schedule", Some("schedule"));
}

#[tokio::test]
async fn a_range_is_backfilled_in_parts_each_tick_once() {
    let inside = inside();
    let mut wish = over(task());
    // 1,440 ticks, one a minute.
    wish["when"] = json!("every 1m");
    put(&inside, NIGHTLY, wish).await.of(201);
    let backfill = format!("{NIGHTLY}/backfill");
    let range = |from_ms: i64, dry_run: bool| {
        let to_ms = PAST_MS + 48 * HOUR_MS;
        json!({"from_ms": from_ms, "to_ms": to_ms, "dry_run": dry_run})
    };
    let would = inside.post(&backfill, range(PAST_MS - HOUR_MS, true)).await.of(200);
    assert_eq!((would["ticks"].as_array().unwrap().len(), &would["left"]), (1000, &json!(440)));
    assert_eq!(inside.get(NIGHTLY).await.of(200)["fired"], 0, "that was no more than asked");
    let (mut from_ms, mut fired) = (PAST_MS - HOUR_MS, Vec::new());
    loop {
        let part = inside.post(&backfill, range(from_ms, false)).await.of(200);
        let ticks = part["ticks"].as_array().unwrap();
        assert!(ticks.iter().all(|tick| tick["outcome"] == "fired" && tick["task"].is_u64()));
        fired.extend(ticks.iter().map(|tick| tick["at_ms"].as_i64().unwrap()));
        match part["next_ms"].as_i64() {
            Some(next) => from_ms = next,
            None => break,
        }
    }
    assert_eq!(fired, (0..1440).map(|n| PAST_MS + n * 60_000).collect::<Vec<_>>());
    let again = inside.post(&backfill, range(PAST_MS, false)).await.of(200);
    assert!(again["ticks"].as_array().unwrap().iter().all(|tick| tick["outcome"] == "already"));
    assert_eq!(inside.get(NIGHTLY).await.of(200)["fired"], 1440);
    // The history, page by page, the newest first.
    let (mut before, mut seen) = (String::new(), Vec::new());
    loop {
        let page = inside.get(&format!("{NIGHTLY}/ticks?limit=1000{before}")).await.of(200);
        seen.extend(page["ticks"].as_array().unwrap().iter().map(|tick| tick["at_ms"].as_i64().unwrap()));
        match page["next"].as_i64() {
            Some(next) => before = format!("&before={next}"),
            None => break,
        }
    }
    fired.reverse();
    assert_eq!(seen, fired);
    for wrong in [json!({}), json!({"from_ms": 1}), json!({"from_ms": 1, "to_ms": 2, "ticks": [1]})] {
        inside.post(&backfill, wrong).await.problem(422, "unfit", Some("from_ms"));
    }
    inside.post(&backfill, json!({"from_ms": 2, "to_ms": 2})).await.problem(422, "unfit", Some("to_ms"));
    let many: Vec<i64> = (0..10_001).collect();
    inside.post(&backfill, json!({"ticks": many})).await.problem(422, "unfit", Some("ticks"));
}

#[tokio::test]
async fn what_is_to_come_is_not_backfilled() {
    let inside = inside();
    let soon = tenure::runtime::wall_ms() + 30 * 24 * HOUR_MS;
    put(&inside, NIGHTLY, json!({"when": "every 1h", "start_ms": soon, "target": task()})).await.of(201);
    let range = json!({"from_ms": 0, "to_ms": soon + 1_000 * HOUR_MS});
    let none = inside.post(&format!("{NIGHTLY}/backfill"), range).await.of(200);
    assert_eq!((&none["ticks"], &none["next_ms"], &none["left"]), (&json!([]), &Value::Null, &json!(0)));
    let named = json!({"ticks": [soon - soon % HOUR_MS + HOUR_MS, soon + 1]});
    let told = inside.post(&format!("{NIGHTLY}/backfill"), named).await.of(200);
    let outcomes: Vec<_> = told["ticks"].as_array().unwrap().iter().map(|tick| &tick["outcome"]).collect();
    assert_eq!(outcomes[0], "ahead");
}

#[tokio::test]
async fn metrics_tell_how_it_stands() {
    let inside = inside();
    put(&inside, NIGHTLY, nightly()).await.of(201);
    put(&inside, "/v1/schedules/other", nightly()).await.of(201);
    inside.post("/v1/schedules/other/pause", json!({})).await.of(200);
    inside.post(&format!("{NIGHTLY}/trigger"), json!({})).await.of(200);
    let text = String::from_utf8(inside.get("/metrics").await.bytes).unwrap();
    let figure = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    };
    assert_eq!(figure("tenure_schedules{namespace=\"default\"}"), 2.0);
    assert_eq!(figure("tenure_schedules_paused{namespace=\"default\"}"), 1.0);
    assert_eq!(figure("tenure_schedules_overdue{namespace=\"default\"}"), 0.0);
    assert_eq!(figure("tenure_schedules_troubled{namespace=\"default\"}"), 0.0);
    let now = tenure::runtime::wall_ms() as f64 / 1000.0;
    assert!(
        (now - figure("tenure_schedules_last_fired_timestamp_seconds{namespace=\"default\"}")).abs() < 600.0
    );
    let of = |name: &str, schedule: &str| format!("{name}{{namespace=\"default\",schedule=\"{schedule}\"}}");
    assert_eq!(figure(&of("tenure_schedule_ticks_fired", "nightly")), 1.0);
    assert_eq!(figure(&of("tenure_schedule_ticks_skipped", "nightly")), 0.0);
    assert_eq!(figure(&of("tenure_schedule_paused", "other")), 1.0);
    assert!(figure(&of("tenure_schedule_next_due_timestamp_seconds", "nightly")) > now);
    assert!(!text.contains(&of("tenure_schedule_next_due_timestamp_seconds", "other")), "it is never due");
}
