//! Definitions that make no sense, and those that do.

use super::*;
use crate::Name;
use crate::port::{Json, NewTask, PAYLOAD_MAX, Parent, TaskId};

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn event() -> Target {
    Target::Event { topic: name("reports"), key: None }
}

fn definition(when: &str) -> Definition {
    Definition::new(name("nightly"), when.parse::<When>().unwrap(), event())
}

fn task(task: NewTask) -> Definition {
    let target = Target::Task { queue: name("reports"), task: Box::new(task) };
    Definition { target, ..definition("@daily") }
}

fn call(url: &str) -> Definition {
    Definition { target: Target::Call { url: url.into() }, ..definition("@daily") }
}

#[test]
fn ordinary_definitions_are_accepted() {
    for fine in [
        definition("@daily"),
        definition("every 5m"),
        Definition { start_ms: Some(0), end_ms: Some(1), ..definition("every 1h") },
        definition("every 1h from start").started(1_700_000_000_000),
        task(NewTask::new("nightly")),
        call("https://example.com/hook?x=1"),
        call("http://127.0.0.1:8080"),
    ] {
        assert_eq!(fine.check(), Ok(()), "{fine:?}");
    }
}

#[test]
fn each_refusal_names_the_field_the_input_and_the_remedy() {
    let daily = || definition("@daily");
    let key = |key: &str| Target::Event { topic: name("t"), key: Some(key.into()) };
    let cases = [
        (Definition { start_ms: Some(-1), ..daily() }, "start_ms", "is -1; it must be between 0 and"),
        (Definition { end_ms: Some(i64::MAX), ..daily() }, "end_ms", "is 9223372036854775807"),
        (
            Definition { start_ms: Some(5), end_ms: Some(5), ..daily() },
            "end_ms",
            "not after `start_ms`, 5; exchange them",
        ),
        (definition("every 90s from start"), "start_ms", "give one, or say every 1m30s"),
        (
            Definition { start_ms: Some(1), end_ms: Some(86_400_000), ..daily() },
            "when",
            "\"@daily\", which never comes from `start_ms` until `end_ms` (1970-01-01T00:00:00.001+00:00 until \
             1970-01-02T00:00:00+00:00); move one of them",
        ),
        (
            Definition { jitter_ms: JITTER_MAX_MS + 1, ..daily() },
            "jitter_ms",
            "is 86400001; it must be between 0 and 86400000",
        ),
        (Definition { misfire: Misfire::FireAll { cap: 0 }, ..daily() }, "misfire", "between 1 and 10000"),
        (
            Definition { misfire: Misfire::Within { grace_ms: 0 }, ..daily() },
            "misfire",
            "between 1ms and 100 years",
        ),
        (
            Definition { payload: Json::of(&"x".repeat(PAYLOAD_MAX)).unwrap(), ..daily() },
            "payload",
            "has 1048578 bytes; at most 1048576 are carried",
        ),
        (Definition { target: key(""), ..daily() }, "target.event.key", "is empty"),
        (Definition { target: key("a\nb"), ..daily() }, "target.event.key", "control character"),
        (
            Definition { target: key(&"k".repeat(300)), ..daily() },
            "target.event.key",
            "300 bytes; at most 256",
        ),
        (
            task(NewTask { max_attempts: 0, ..NewTask::default() }),
            "target.task.task",
            "number of attempts is 0",
        ),
        (
            task(NewTask { payload: "[]".parse().unwrap(), ..NewTask::default() }),
            "target.task.task.payload",
            "own `payload`",
        ),
        (
            task(NewTask { run_at_ms: Some(1), ..NewTask::default() }),
            "target.task.task.run_at_ms",
            "the tick is its time",
        ),
        (
            task(NewTask { key: Some("k".into()), ..NewTask::default() }),
            "target.task.task.key",
            "the tick is its key",
        ),
        (
            task(NewTask { parents: vec![Parent::Task(TaskId(1))], ..NewTask::default() }),
            "target.task.task.parents",
            "from its worker",
        ),
        (
            task(NewTask { leader_token: Some(crate::Token::ZERO), ..NewTask::default() }),
            "target.task.task.leader_token",
            "the leader that fires",
        ),
        (call("example.com"), "target.call.url", "\"example.com\" does not begin with http:// or https://"),
        (call("https:///x"), "target.call.url", "names no host"),
        (call("https://a b/"), "target.call.url", "write it as %20"),
        (call("https://ada:secret@example.com/"), "target.call.url", "leave them out"),
        (call(&format!("https://{}", "x".repeat(3_000))), "target.call.url", "more than 2048 bytes"),
    ];
    for (wrong, field, problem) in cases {
        let error = wrong.check().unwrap_err();
        assert!(error.to_string().contains(problem), "{error}");
        assert!(error.to_string().contains(&format!("`{field}`")) && error.field() == field, "{error}");
    }
}

#[test]
fn a_definition_is_the_same_after_it_was_written_and_read() {
    let everything = Definition {
        zone: "Europe/Berlin".parse().unwrap(),
        start_ms: Some(1),
        end_ms: Some(2_000_000_000_000),
        jitter_ms: 30_000,
        dst: Dst { gap: Some(Gap::Skip), overlap: None },
        misfire: Misfire::Within { grace_ms: 900_000 },
        overlap: Overlap::Queue,
        payload: r#"{"of":[1,2]}"#.parse().unwrap(),
        ..task(NewTask { priority: 5, ..NewTask::new("nightly") })
    };
    for definition in [everything, definition("every 3d from start"), call("https://example.com/")] {
        let text = serde_json::to_string(&definition).unwrap();
        assert_eq!(serde_json::from_str::<Definition>(&text).unwrap(), definition, "{text}");
    }
    let text = serde_json::to_string(&definition("*/5 * * * *")).unwrap();
    let expected = r#"{"name":"nightly","when":"*/5 * * * *","zone":"UTC","jitter_ms":0,"misfire":"fire_once","overlap":"allow","target":{"event":{"topic":"reports"}},"payload":{}}"#;
    assert_eq!(text, expected);
}

#[test]
fn what_is_read_is_checked_field_by_field() {
    let read = |field: &str| {
        let text = format!(r#"{{"name":"n","when":"@daily","target":{{"event":{{"topic":"t"}}}}{field}}}"#);
        serde_json::from_str::<Definition>(&text).map_err(|error| error.to_string())
    };
    assert!(read("").is_ok());
    for (field, problem) in [
        (r#","zone":"Europe/Belrin""#, "did you mean Europe/Berlin?"),
        (r#","misfire":"sometimes""#, "say skip, fire_once"),
        (r#","overlap":"maybe""#, "unknown variant `maybe`"),
        (r#","dst":{"gap":"jump"}"#, "unknown variant `jump`"),
        (r#","dst":{"hap":"shift"}"#, "unknown field `hap`"),
        (r#","jiter_ms":5"#, "unknown field `jiter_ms`"),
        (r#","jitter_ms":-5"#, "invalid value"),
    ] {
        let error = read(field).unwrap_err();
        assert!(error.contains(problem), "{error}");
    }
    let error = serde_json::from_str::<When>(r#""0 25 * * *""#).unwrap_err().to_string();
    assert!(error.contains("at position 3: the hour 25 does not exist"), "{error}");
    assert_eq!("every 0s".parse::<When>().unwrap_err().position(), 7);
}

#[test]
fn jitter_differs_between_namespaces_and_names() {
    let of = |namespace: &str, it: &Definition| it.timetable(&name(namespace)).due_at(86_400_000);
    let nightly = Definition { jitter_ms: 3_600_000, ..definition("@daily") };
    let weekly = Definition { name: name("weekly"), ..nightly.clone() };
    assert_eq!(of("default", &nightly), of("default", &nightly.clone()));
    assert_ne!(of("default", &nightly), of("other", &nightly));
    assert_ne!(of("default", &nightly), of("default", &weekly));
}

#[test]
fn what_stands_in_line_has_no_key_that_lets_two_run_at_once() {
    let with = |overlap: &str, limit: u32| {
        let target = format!(
            r#"{{"task":{{"queue":"q","task":{{"concurrency_key":"k","concurrency_limit":{limit}}}}}}}"#
        );
        let text = format!(r#"{{"name":"n","when":"every 1m","overlap":"{overlap}","target":{target}}}"#);
        serde_json::from_str::<Definition>(&text).unwrap().check().map_err(|error| error.field())
    };
    assert_eq!((with("queue", 2), with("queue", 1)), (Err("overlap"), Ok(())));
    assert_eq!((with("skip", 2), with("allow", 2)), (Ok(()), Ok(())));
}
