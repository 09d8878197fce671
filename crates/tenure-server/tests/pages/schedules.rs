//! Pages about schedules without a browser: what is refused, what is meant, and what is escaped.

use std::sync::Arc;

use axum::body::Body;
use http::header::{AUTHORIZATION, LOCATION};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use tenure::Name;
use tenure::backend::memory::Memory;
use tenure::port::{
    Bureau, Calendar, Credential, Expect, Office, Proof, ScheduleKey, SetSchedule, TickFilter, TopicKey,
    TopicSettings,
};
use tenure::runtime::System;
use tenure_core::schedule::{Definition, Target};
use tenure_server::App;
use tenure_server::access::Access;
use tenure_server::access::token::Token;
use tower::ServiceExt as _;

use crate::work::hidden;
use crate::{follow, open, send, told};

const SCRIPT: &str = "<script>alert(1)</script>";

pub(crate) fn key(name: &str) -> ScheduleKey {
    ScheduleKey::new(Name::default_namespace(), name.parse().unwrap())
}

pub(crate) async fn set(store: &Memory, json: &str) {
    let definition: Definition = serde_json::from_str(json).unwrap();
    let set = SetSchedule {
        namespace: Name::default_namespace(),
        definition,
        secret: None,
        expect: Expect::Any,
        source: Some(SCRIPT.into()),
        by: SCRIPT.into(),
    };
    store.set_schedule(&set).await.unwrap();
}

async fn definition(store: &Memory, name: &str) -> Definition {
    store.schedule(&key(name)).await.unwrap().expect(name).definition
}

async fn get(app: &App, path: &str) -> String {
    let answer = send(app, "GET", path, "").await;
    assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text);
    answer.text
}

/// The value of a field of a form, unescaped as far as these tests need it.
fn value(page: &str, name: &str) -> String {
    let at = page.find(&format!("name=\"{name}\"")).unwrap_or_else(|| panic!("{name}: {page}"));
    let tag = &page[at..at + page[at..].find('>').unwrap()];
    let value = tag.split_once("value=\"").map_or("", |(_, rest)| rest.split_once('"').unwrap().0);
    value.replace("&quot;", "\"").replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")
}

/// What a form has, but for what is changed, as a browser posts it.
fn posted(page: &str, fields: &[&str], change: &[(&str, &str)]) -> String {
    let plain = |text: &str| -> String {
        text.bytes()
            .map(|byte| {
                if byte.is_ascii_alphanumeric() {
                    char::from(byte).to_string()
                } else {
                    format!("%{byte:02X}")
                }
            })
            .collect()
    };
    let kept = fields.iter().filter(|field| change.iter().all(|(name, _)| name != *field));
    let kept = kept.map(|field| format!("{field}={}", plain(&value(page, field))));
    let changed = change.iter().map(|(name, value)| format!("{name}={}", plain(value)));
    kept.chain(changed).collect::<Vec<_>>().join("&")
}

const INPUTS: [&str; 8] = ["version", "when", "zone", "start", "end", "jitter", "queue", "kind"];

#[tokio::test]
async fn what_a_form_does_not_ask_for_stays_as_it_is() {
    let store = Memory::new();
    let app = open(&store).await;
    // Everything that a task can ask for, a start between two seconds, and a payload as somebody wrote it.
    set(&store, r#"{"name": "a", "when": "every 90s from start", "zone": "Europe/Berlin", "start_ms": 1792890000123, "overlap": "queue",
        "misfire": "within(2h)", "dst": {"gap": "skip"}, "payload": {"a":  [1,
        2]}, "target": {"task": {"queue": "q", "task": {"kind": "k", "requires": ["gpu"], "max_run_ms": 5000, "priority": 3}}}}"#).await;
    let before = definition(&store, "a").await;
    let page = get(&app, "/schedules/a/edit").await;
    assert_eq!(
        (value(&page, "start").as_str(), value(&page, "zone").as_str()),
        ("2026-10-25T02:00:00.123", "Europe/Berlin")
    );
    let rest = [
        ("target", "task"),
        ("priority", "3"),
        ("attempts", "20"),
        ("misfire", "within"),
        ("grace", "2h"),
        ("gap", "skip"),
        ("overlap", "queue"),
        ("payload", "{\"a\":  [1,\r\n        2]}"),
        ("step", "save"),
    ];
    let same = send(&app, "POST", "/schedules/a/edit", &posted(&page, &INPUTS, &rest)).await;
    assert_eq!(same.status, StatusCode::SEE_OTHER, "{}", same.text);
    assert_eq!(told(&same), "already", "{:?}", same.headers);
    assert_eq!(definition(&store, "a").await, before);
    // Another kind, and nothing but that.
    let change: Vec<_> = rest.into_iter().chain([("kind", "other")]).collect();
    let answer = send(&app, "POST", "/schedules/a/edit", &posted(&page, &INPUTS, &change)).await;
    assert_eq!(told(&answer), "set", "{}", answer.text);
    let mut wanted = before.clone();
    if let Target::Task { task, .. } = &mut wanted.target {
        task.kind = "other".into();
    }
    assert_eq!(definition(&store, "a").await, wanted);
    // Whoever looked before that is told so, and a check does not mind.
    let answer = send(&app, "POST", "/schedules/a/edit", &posted(&page, &INPUTS, &rest)).await;
    assert_eq!(answer.status, StatusCode::PRECONDITION_FAILED, "{}", answer.text);
    let check: Vec<_> = rest[..8].iter().copied().chain([("step", "check")]).collect();
    assert_eq!(
        send(&app, "POST", "/schedules/a/edit", &posted(&page, &INPUTS, &check)).await.status,
        StatusCode::OK
    );
    assert_eq!(definition(&store, "a").await, wanted);
    let view = store.schedule(&key("a")).await.unwrap().unwrap();
    assert_eq!(view.source.as_deref(), Some(SCRIPT));
}

#[tokio::test]
async fn a_form_tells_all_that_is_wrong_and_a_check_makes_nothing() {
    let store = Memory::new();
    let app = open(&store).await;
    for (form, fields) in [
        ("name=&when=*&zone=Mars&target=task&queue=", vec!["name", "when", "zone", "queue"]),
        ("name=a&when=0+0+31+2+*&zone=UTC&target=event&topic=none", vec!["when"]),
        ("name=a&when=@daily&zone=UTC&target=event&topic=none", vec!["topic"]),
        ("name=a&when=@daily&target=task&queue=q&jitter=2d", vec!["jitter"]),
        ("name=a&when=@daily&target=task&queue=q&start=2026-02-30T00:00&end=soon", vec!["start", "end"]),
        ("name=a&when=@daily&target=task&queue=q&start=2027-01-02T00:00&end=2027-01-01T00:00", vec!["end"]),
        ("name=a&when=@daily&target=task&queue=q&misfire=fire_all&cap=99999", vec!["cap"]),
        ("name=a&when=@daily&target=task&queue=q&misfire=within&grace=soon", vec!["grace"]),
        ("name=a&when=@daily&target=task&queue=q&payload=%7B", vec!["payload"]),
        ("name=a&when=@daily&target=task&queue=q&priority=high&attempts=20", vec!["priority"]),
        ("name=a&when=@daily&target=call&url=ftp://h.example/x", vec!["url"]),
        ("name=a&when=@daily&target=call&url=http://169.254.169.254/latest", vec!["url"]),
        ("name=a&when=@daily&target=call&url=https://h.example/&secret=short", vec!["secret"]),
    ] {
        for (step, status) in [("check", StatusCode::OK), ("save", StatusCode::UNPROCESSABLE_ENTITY)] {
            // A secret is looked at when it is set.
            if step == "check" && form.contains("secret") {
                continue;
            }
            let answer = send(&app, "POST", "/schedules/new", &format!("{form}&step={step}")).await;
            assert_eq!(answer.status, status, "{form}: {}", answer.text);
            // What is still empty is no mistake while somebody writes.
            let is_told = |field: &&&str| step == "save" || !matches!(**field, "name" | "queue");
            let fields: Vec<_> = fields.iter().filter(is_told).collect();
            for field in &fields {
                assert!(
                    answer.text.contains(&format!("data-wrong=\"{field}\"")),
                    "{form} {field}: {}",
                    answer.text
                );
            }
            assert_eq!(answer.text.matches("data-wrong=").count(), fields.len(), "{form}: {}", answer.text);
        }
    }
    let fine =
        send(&app, "POST", "/schedules/new", "name=a&when=@daily&target=task&queue=q&step=check").await;
    assert!(fine.text.contains("class=\"strip days\"") && !fine.text.contains("data-wrong"), "{}", fine.text);
    assert!(store.schedule(&key("a")).await.unwrap().is_none());
    for (path, status) in [
        ("/schedules/none", StatusCode::NOT_FOUND),
        ("/schedules/none/edit", StatusCode::NOT_FOUND),
        ("/schedules/none/backfill", StatusCode::NOT_FOUND),
        ("/schedules/none/pause", StatusCode::NOT_FOUND),
        ("/schedules?after=nonsense", StatusCode::OK),
        ("/schedules/none?before=yesterday", StatusCode::BAD_REQUEST),
    ] {
        assert_eq!(send(&app, "GET", path, "").await.status, status, "{path}");
    }
}

#[tokio::test]
async fn a_secret_is_shown_once_and_an_address_never_whole() {
    let store = Memory::new();
    let app = open(&store).await;
    let form = "name=hook&when=@daily&target=call&url=https%3A%2F%2Fh.example%2Fx%3Fk%3Dhidden&step=save";
    let made = send(&app, "POST", "/schedules/new", form).await;
    // Reloading the page that shows it neither shows it again nor makes another.
    let shown = follow(&app, &made).await;
    assert!(shown.headers.get_all(http::header::SET_COOKIE).iter().count() == 2, "{:?}", shown.headers);
    let secret = shown
        .text
        .split("whsec_")
        .nth(1)
        .and_then(|rest| rest.split('<').next())
        .expect("a secret")
        .to_owned();
    assert_eq!(store.call_secret(&key("hook")).await.unwrap(), Some(format!("whsec_{secret}")));
    for path in
        ["/schedules", "/schedules/hook", "/schedules/hook/delete", "/schedules/hook/trigger", "/", "/audit"]
    {
        let page = get(&app, path).await;
        assert!(!page.contains(&secret) && !page.contains("k=hidden"), "{path}: {page}");
    }
    // Whoever may change it sees the address, and never the secret. Saved as it is, it stays signed as it is.
    let page = get(&app, "/schedules/hook/edit").await;
    assert!(page.contains("k=hidden") && !page.contains(&secret), "{page}");
    let form = posted(&page, &["version", "when", "zone", "url"], &[("target", "call"), ("step", "save")]);
    let answer = send(&app, "POST", "/schedules/hook/edit", &form).await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text);
    assert_eq!(store.call_secret(&key("hook")).await.unwrap(), Some(format!("whsec_{secret}")));
    let form = posted(
        &page,
        &["version", "zone", "url"],
        &[("target", "call"), ("when", "@daily"), ("rotate", "on"), ("step", "save")],
    );
    let answer = send(&app, "POST", "/schedules/hook/edit", &form).await;
    let answer = follow(&app, &answer).await;
    assert!(answer.text.contains("whsec_") && !answer.text.contains(&secret), "{}", answer.text);
}

#[tokio::test]
async fn a_backfill_that_was_tried_fires_nothing_and_the_one_that_is_done_fires_what_it_said() {
    let store = Memory::new();
    let app = open(&store).await;
    set(&store, r#"{"name": "a", "when": "every 1m", "target": {"task": {"queue": "q"}}}"#).await;
    let ticks =
        async || store.ticks(&TickFilter { key: key("a"), before_ms: None, limit: 1000 }).await.unwrap();
    let trial = get(&app, "/schedules/a/backfill?from=2026-01-01T00:00&to=2026-01-01T01:00").await;
    assert!(trial.contains("Nothing is done yet") && trial.contains("Fire 60 ticks"), "{trial}");
    assert!(ticks().await.is_empty());
    let form = format!("from_ms={}&to_ms={}", hidden(&trial, "from_ms"), hidden(&trial, "to_ms"));
    let answer = send(&app, "POST", "/schedules/a/backfill", &form).await;
    assert_eq!(answer.headers[LOCATION], "/schedules/a?namespace=default", "{}", answer.text);
    assert_eq!(told(&answer), "backfill");
    assert_eq!(ticks().await.len(), 60);
    // Once more, and none fires twice.
    let answer = send(&app, "POST", "/schedules/a/backfill", &form).await;
    assert_eq!(told(&answer), "nothing");
    assert_eq!(ticks().await.len(), 60);
    // More than one deed does: what was not looked at is not done, either.
    let trial = get(&app, "/schedules/a/backfill?from=2025-01-01T00:00&to=2025-02-01T00:00").await;
    assert!(trial.contains("Fire 10000 ticks") && trial.contains("34,640"), "{trial}");
    let until: i64 = hidden(&trial, "to_ms").parse().unwrap();
    assert_eq!(until, 1_735_689_600_000 + 9_999 * 60_000 + 1);
    for wrong in
        ["from=&to=2026-01-01T00:00", "from=soon&to=later", "from=2026-01-02T00:00&to=2026-01-01T00:00"]
    {
        let answer = send(&app, "GET", &format!("/schedules/a/backfill?{wrong}"), "").await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{wrong}: {}", answer.text);
    }
}

#[tokio::test]
async fn nothing_that_people_say_of_schedules_becomes_markup() {
    let store = Memory::new();
    let app = open(&store).await;
    store
        .set_topic(&TopicKey::new(Name::default_namespace(), "t".parse().unwrap()), &TopicSettings::default())
        .await
        .unwrap();
    set(&store, &format!(r#"{{"name": "a", "when": "every 1m", "target": {{"event": {{"topic": "t", "key": "{SCRIPT}"}}}}, "payload": {{"x": "{SCRIPT}"}}}}"#)).await;
    let reason = format!("reason={}", SCRIPT.replace('<', "%3C").replace('>', "%3E"));
    assert_eq!(send(&app, "POST", "/schedules/a/pause", &reason).await.status, StatusCode::SEE_OTHER);
    assert_eq!(send(&app, "POST", "/schedules/a/trigger", "payload=").await.status, StatusCode::SEE_OTHER);
    for path in [
        "/schedules",
        "/schedules?q=%3Cscript%3Ealert(1)%3C/script%3E",
        "/schedules?after=default/%3Cscript%3E",
        "/schedules/a",
        "/schedules/a/edit",
        "/schedules/a/resume",
        "/schedules/a/delete",
        "/audit",
        "/",
    ] {
        let page = get(&app, path).await;
        assert!(!page.contains(SCRIPT) && !page.contains("style="), "{path}: {page}");
    }
    let wrong = "name=%3Cscript%3Ealert(1)%3C/script%3E&when=%3Cscript%3Ealert(1)%3C/script%3E&zone=%3Cscript%3Ealert(1)%3C/script%3E&target=task&queue=q&step=check";
    assert!(!send(&app, "POST", "/schedules/new", wrong).await.text.contains(SCRIPT));
}

#[tokio::test]
async fn a_list_of_many_is_read_in_pieces() {
    let store = Memory::new();
    let app = open(&store).await;
    for n in 0..250 {
        set(
            &store,
            &format!(
                r#"{{"name": "s-{n:03}", "when": "every 1h", "target": {{"task": {{"queue": "q{n}"}}}}}}"#
            ),
        )
        .await;
    }
    let rows = |page: &str| page.matches("data-key=\"schedule-default/").count();
    let first = get(&app, "/schedules").await;
    assert_eq!((rows(&first), first.contains("after=default%2Fs-099")), (100, true), "{first}");
    let second = get(&app, "/schedules?after=default%2Fs-099").await;
    assert!(
        rows(&second) == 100 && second.contains(">s-100<") && second.contains("after=default%2Fs-199"),
        "{second}"
    );
    let last = get(&app, "/schedules?after=default%2Fs-199").await;
    assert!(rows(&last) == 50 && !last.contains(">More<"), "{last}");
    let found = get(&app, "/schedules?q=q249").await;
    assert!(rows(&found) == 1 && found.contains(">s-249<"), "{found}");
}

#[tokio::test]
async fn whoever_is_nobody_sees_no_schedule() {
    let store = Memory::new();
    set(&store, r#"{"name": "a", "when": "every 1m", "target": {"task": {"queue": "q"}}}"#).await;
    let store: Arc<dyn tenure::port::Backend> = Arc::new(store);
    let access = Access::guarded(store.clone(), Arc::new(System)).await.unwrap();
    let app = App::new(store, access, Arc::new(System));
    for path in ["/schedules", "/schedules/a", "/schedules/new", "/schedules/a/edit"] {
        assert_eq!(send(&app, "GET", path, "").await.status, StatusCode::SEE_OTHER, "{path}");
    }
    for path in ["/schedules/new", "/schedules/a/edit", "/schedules/a/trigger", "/schedules/a/backfill"] {
        let status = send(&app, "POST", path, "step=check").await.status;
        assert!(status == StatusCode::UNAUTHORIZED || status == StatusCode::SEE_OTHER, "{path} {status}");
    }
}

#[tokio::test]
async fn whoever_may_see_one_namespace_sees_its_schedules_and_no_buttons() {
    let store = Memory::new();
    for (namespace, name) in [("billing", "theirs"), ("default", "ours"), ("zoo", "theirs-too")] {
        let json =
            format!(r#"{{"name": "{name}", "when": "every 1m", "target": {{"task": {{"queue": "q"}}}}}}"#);
        let set = SetSchedule {
            namespace: namespace.parse().unwrap(),
            definition: serde_json::from_str(&json).unwrap(),
            secret: None,
            expect: Expect::New,
            source: None,
            by: "ada".into(),
        };
        store.set_schedule(&set).await.unwrap();
    }
    let token = Token::generate(tenure::runtime::random);
    let credential = Credential {
        id: token.id.clone(),
        name: "reader".into(),
        proof: Proof::Token { digest: token.digest.clone() },
        grants: vec!["default:read".parse().unwrap()],
        created_at_ms: 0,
        created_by: "test".into(),
        expires_at_ms: None,
        revoked_at_ms: None,
    };
    store.put_credential(&credential).await.unwrap();
    let store: Arc<dyn tenure::port::Backend> = Arc::new(store);
    let access = Access::guarded(store.clone(), Arc::new(System)).await.unwrap();
    let app = App::new(store, access, Arc::new(System));
    let ask = async |path: &str| {
        let request = Request::builder()
            .uri(path)
            .header("host", "localhost")
            .header("accept", "text/html")
            .header(AUTHORIZATION, format!("Bearer {}", token.text))
            .body(Body::empty())
            .unwrap();
        let response = app.router().oneshot(request).await.unwrap();
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    };
    for path in ["/schedules", "/schedules?namespace=default", "/schedules?after=default%2Fa", "/"] {
        let (status, page) = ask(path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {page}");
        assert!(path == "/" || page.contains(">ours<"), "{path}: {page}");
        assert!(!page.contains("theirs") && !page.contains("data-confirm"), "{path}: {page}");
    }
    let (_, page) = ask("/schedules/ours").await;
    assert!(
        page.contains("What is ahead") && !page.contains("data-confirm") && !page.contains("/edit"),
        "{page}"
    );
    for path in ["/schedules?namespace=zoo", "/schedules/theirs?namespace=billing"] {
        let (_, page) = ask(path).await;
        assert!(!page.contains(">theirs"), "{path}: {page}");
    }
    assert_eq!(ask("/schedules/ours/pause").await.0, StatusCode::FORBIDDEN);
}
