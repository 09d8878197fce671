//! Valid and invalid definitions.

use super::*;
use crate::Name;
use crate::port::{NewTask, PAYLOAD_MAX, ParentRef, RawJson, TaskId};

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn event() -> ScheduleTarget {
    ScheduleTarget::Event { topic: name("reports"), key: None }
}

fn definition(expression: &str) -> ScheduleDefinition {
    ScheduleDefinition::new(name("nightly"), expression.parse::<ScheduleExpression>().unwrap(), event())
}

fn task(task: NewTask) -> ScheduleDefinition {
    let target = ScheduleTarget::Task { queue: name("reports"), task: Box::new(task) };
    ScheduleDefinition { target, ..definition("@daily") }
}

fn call(url: &str) -> ScheduleDefinition {
    ScheduleDefinition { target: ScheduleTarget::Webhook { url: url.into() }, ..definition("@daily") }
}

#[test]
fn valid_definitions_are_accepted() {
    for fine in [
        definition("@daily"),
        definition("every 5m"),
        ScheduleDefinition { start_at_ms: Some(0), end_at_ms: Some(1), ..definition("every 1h") },
        definition("every 1h from start").started(1_700_000_000_000),
        task(NewTask::new("nightly")),
        call("https://example.com/hook?x=1"),
        call("http://127.0.0.1:8080"),
    ] {
        assert_eq!(fine.check(), Ok(()), "{fine:?}");
    }
}

#[test]
fn each_error_names_the_field_the_input_and_the_remedy() {
    let daily = || definition("@daily");
    let key = |key: &str| ScheduleTarget::Event { topic: name("t"), key: Some(key.into()) };
    let cases = [
        (
            ScheduleDefinition { start_at_ms: Some(-1), ..daily() },
            "start_at_ms",
            "is -1; it must be between 0 and",
        ),
        (ScheduleDefinition { end_at_ms: Some(i64::MAX), ..daily() }, "end_at_ms", "is 9223372036854775807"),
        (
            ScheduleDefinition { start_at_ms: Some(5), end_at_ms: Some(5), ..daily() },
            "end_at_ms",
            "not after `start_at_ms`, 5; swap them",
        ),
        (definition("every 90s from start"), "start_at_ms", "give it, or use every 1m30s"),
        (
            ScheduleDefinition { start_at_ms: Some(1), end_at_ms: Some(86_400_000), ..daily() },
            "expression",
            "\"@daily\", which has no tick between `start_at_ms` and `end_at_ms` \
             (1970-01-01T00:00:00.001+00:00 until 1970-01-02T00:00:00+00:00); move one of them",
        ),
        (
            ScheduleDefinition { jitter_ms: JITTER_MAX_MS + 1, ..daily() },
            "jitter_ms",
            "is 86400001; it must be between 0 and 86400000",
        ),
        (
            ScheduleDefinition { misfire_policy: MisfirePolicy::FireAll { cap: 0 }, ..daily() },
            "misfire_policy",
            "use 1 to 10000",
        ),
        (
            ScheduleDefinition { misfire_policy: MisfirePolicy::Within { grace_ms: 0 }, ..daily() },
            "misfire_policy",
            "use 1ms to 100 years",
        ),
        (
            ScheduleDefinition { payload: RawJson::of(&"x".repeat(PAYLOAD_MAX)).unwrap(), ..daily() },
            "payload",
            "has 1048578 bytes, more than the maximum of 1048576",
        ),
        (ScheduleDefinition { target: key(""), ..daily() }, "target.event.key", "is empty"),
        (ScheduleDefinition { target: key("a\nb"), ..daily() }, "target.event.key", "control character"),
        (
            ScheduleDefinition { target: key(&"k".repeat(300)), ..daily() },
            "target.event.key",
            "300 bytes; the maximum is 256",
        ),
        (task(NewTask { max_attempts: 0, ..NewTask::default() }), "target.task.task", "max_attempts is 0"),
        (
            task(NewTask { payload: "[]".parse().unwrap(), ..NewTask::default() }),
            "target.task.task.payload",
            "own `payload`",
        ),
        (
            task(NewTask { run_at_ms: Some(1), ..NewTask::default() }),
            "target.task.task.run_at_ms",
            "the tick is its start time",
        ),
        (
            task(NewTask { idempotency_key: Some("k".into()), ..NewTask::default() }),
            "target.task.task.idempotency_key",
            "the tick is its key",
        ),
        (
            task(NewTask { parents: vec![ParentRef::Task(TaskId(1))], ..NewTask::default() }),
            "target.task.task.parents",
            "from its worker",
        ),
        (
            task(NewTask { leader_token: Some(crate::Token::ZERO), ..NewTask::default() }),
            "target.task.task.leader_token",
            "the leader that fires",
        ),
        (
            call("example.com"),
            "target.webhook.url",
            "\"example.com\" does not start with http:// or https://",
        ),
        (call("https:///x"), "target.webhook.url", "has no host"),
        (call("https://a b/"), "target.webhook.url", "use %20"),
        (call("https://ada:secret@example.com/"), "target.webhook.url", "remove them"),
        (call(&format!("https://{}", "x".repeat(3_000))), "target.webhook.url", "more than 2048 bytes"),
    ];
    for (wrong, field, problem) in cases {
        let error = wrong.check().unwrap_err();
        assert!(error.to_string().contains(problem), "{error}");
        assert!(error.to_string().contains(&format!("`{field}`")) && error.field() == field, "{error}");
    }
}

#[test]
fn a_definition_round_trips() {
    let everything = ScheduleDefinition {
        time_zone: "Europe/Berlin".parse().unwrap(),
        start_at_ms: Some(1),
        end_at_ms: Some(2_000_000_000_000),
        jitter_ms: 30_000,
        dst: DstPolicy { gap: Some(DstGapPolicy::Skip), overlap: None },
        misfire_policy: MisfirePolicy::Within { grace_ms: 900_000 },
        overlap_policy: OverlapPolicy::Queue,
        payload: r#"{"of":[1,2]}"#.parse().unwrap(),
        ..task(NewTask { priority: 5, ..NewTask::new("nightly") })
    };
    for definition in [everything, definition("every 3d from start"), call("https://example.com/")] {
        let text = serde_json::to_string(&definition).unwrap();
        assert_eq!(serde_json::from_str::<ScheduleDefinition>(&text).unwrap(), definition, "{text}");
    }
    let text = serde_json::to_string(&definition("*/5 * * * *")).unwrap();
    let expected = r#"{"name":"nightly","expression":"*/5 * * * *","time_zone":"UTC","jitter_ms":0,"misfire_policy":"fire_once","overlap_policy":"allow","target":{"event":{"topic":"reports"}},"payload":{}}"#;
    assert_eq!(text, expected);
}

#[test]
fn each_field_is_validated_when_parsed() {
    let read = |field: &str| {
        let text =
            format!(r#"{{"name":"n","expression":"@daily","target":{{"event":{{"topic":"t"}}}}{field}}}"#);
        serde_json::from_str::<ScheduleDefinition>(&text).map_err(|error| error.to_string())
    };
    assert!(read("").is_ok());
    for (field, problem) in [
        (r#","time_zone":"Europe/Belrin""#, "did you mean Europe/Berlin?"),
        (r#","misfire_policy":"sometimes""#, "use skip, fire_once"),
        (r#","overlap_policy":"maybe""#, "unknown variant `maybe`"),
        (r#","dst":{"gap":"jump"}"#, "unknown variant `jump`"),
        (r#","dst":{"hap":"shift"}"#, "unknown field `hap`"),
        (r#","jiter_ms":5"#, "unknown field `jiter_ms`"),
        (r#","jitter_ms":-5"#, "invalid value"),
    ] {
        let error = read(field).unwrap_err();
        assert!(error.contains(problem), "{error}");
    }
    let error = serde_json::from_str::<ScheduleExpression>(r#""0 25 * * *""#).unwrap_err().to_string();
    assert!(error.contains("at position 3: the hour 25 is out of range"), "{error}");
    assert_eq!("every 0s".parse::<ScheduleExpression>().unwrap_err().position(), 7);
}

#[test]
fn jitter_differs_between_namespaces_and_names() {
    let of = |namespace: &str, it: &ScheduleDefinition| it.timetable(&name(namespace)).due_at(86_400_000);
    let nightly = ScheduleDefinition { jitter_ms: 3_600_000, ..definition("@daily") };
    let weekly = ScheduleDefinition { name: name("weekly"), ..nightly.clone() };
    assert_eq!(of("default", &nightly), of("default", &nightly.clone()));
    assert_ne!(of("default", &nightly), of("other", &nightly));
    assert_ne!(of("default", &nightly), of("default", &weekly));
}

#[test]
fn queued_runs_need_a_concurrency_limit_of_one() {
    let with = |overlap: &str, limit: u32| {
        let target = format!(
            r#"{{"task":{{"queue":"q","task":{{"concurrency_key":"k","concurrency_limit":{limit}}}}}}}"#
        );
        let text = format!(
            r#"{{"name":"n","expression":"every 1m","overlap_policy":"{overlap}","target":{target}}}"#
        );
        serde_json::from_str::<ScheduleDefinition>(&text).unwrap().check().map_err(|error| error.field())
    };
    assert_eq!((with("queue", 2), with("queue", 1)), (Err("overlap_policy"), Ok(())));
    assert_eq!((with("skip", 2), with("allow", 2)), (Ok(()), Ok(())));
}
