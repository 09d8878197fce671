//! `tenure tasks`.

use std::io::Write;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::World;
use crate::{output_text, refused};

pub fn task(world: &World, id: &str) -> Value {
    world.json(&["tasks", "show", id, "-o", "json"])
}

/// Submits a task. Returns its id.
pub fn submit(world: &World, args: &[&str]) -> String {
    let printed = world.ok(&[&["tasks", "submit"], args].concat());
    let id = printed.trim().to_owned();
    assert!(id.parse::<u64>().is_ok(), "only the id: {printed:?}");
    id
}

/// Claims a task. Returns its id and token.
pub fn claim(world: &World, args: &[&str]) -> (String, String) {
    let task = world.json(&[&["tasks", "claim"], args, &["-o", "json"]].concat());
    (task["id"].to_string(), task["token"].to_string())
}

pub fn options_set_the_fields_of_a_task(world: &World) {
    assert!(world.ok(&["tasks", "list"]).contains("tenure tasks submit"), "an empty list shows an example");
    let parent = submit(world, &["mail"]);
    let id = submit(
        world,
        &[
            "mail",
            "--kind",
            "welcome",
            "--payload",
            r#"{"to": "ada"}"#,
            "--priority",
            "-5",
            "--required-tag",
            "gpu",
            "--required-tag",
            "eu",
            "--preferred-tag",
            "fast",
            "--allowed-worker",
            "box-1",
            "--run-at",
            "2100-01-31T09:30:00+02:00",
            "--max-wait",
            "1h",
            "--max-run",
            "5m",
            "--max-attempts",
            "3",
            "--parent",
            &parent,
            "--idempotency-key",
            "k",
            "--concurrency-key",
            "tenant:7:2",
        ],
    );
    let made = task(world, &id);
    for (field, value) in [
        ("queue", json!("mail")),
        ("kind", json!("welcome")),
        ("state", json!("waiting")),
        ("payload", json!({"to": "ada"})),
        ("priority", json!(-5)),
        ("required_tags", json!(["gpu", "eu"])),
        ("preferred_tags", json!(["fast"])),
        ("allowed_workers", json!(["box-1"])),
        ("run_at_ms", json!(4_105_063_800_000_u64)),
        ("max_wait_ms", json!(3_600_000)),
        ("max_run_ms", json!(300_000)),
        ("max_attempts", json!(3)),
        ("parents", json!([parent.parse::<u64>().unwrap()])),
        ("idempotency_key", json!("k")),
        ("concurrency_key", json!("tenant:7")),
        ("concurrency_limit", json!(2)),
    ] {
        assert_eq!(sorted(made[field].clone()), sorted(value), "{field} of {made}");
    }
    // The same idempotency key returns the same task.
    let again = world.run(&["tasks", "submit", "mail", "--idempotency-key", "k"]);
    assert_eq!(String::from_utf8_lossy(&again.stdout).trim(), id);
    assert!(output_text(&again).contains("already exists"), "{}", output_text(&again));
    let again = world.json(&["tasks", "submit", "mail", "--idempotency-key", "k", "-o", "json"]);
    assert_eq!(again, json!({"id": id.parse::<u64>().unwrap(), "created": false}));
    // From the standard input, and from a file.
    let mut piped = world.command(&["tasks", "submit", "mail", "--payload", "-"]);
    let mut piped = piped.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("tenure runs");
    piped.stdin.take().expect("its input").write_all(b"[1, 2]\n").expect("it reads");
    let piped = piped.wait_with_output().expect("it ends");
    let id = String::from_utf8(piped.stdout).expect("text");
    assert_eq!(task(world, id.trim())["payload"], json!([1, 2]));
    std::fs::write(world.path("letter.json"), "{\"to\": \"bob\"}\n").expect("a file");
    let id = submit(world, &["mail", "--payload", &format!("@{}", world.path("letter.json").display())]);
    assert_eq!(task(world, &id)["payload"], json!({"to": "bob"}));
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Array(mut list) => {
            list.sort_by_key(Value::to_string);
            Value::Array(list)
        }
        value => value,
    }
}

pub fn a_claim_is_settled_once_and_only_under_its_token(world: &World) {
    refused(world, &["tasks", "claim", "mail"], 75, &["no task to claim", "mail"]);
    refused(world, &["tasks", "claim", "mail", "--wait", "200ms"], 75, &["no task to claim"]);
    let first = submit(world, &["mail", "--kind", "welcome", "--payload", r#"{"to":"ada"}"#]);
    let (id, token) = claim(world, &["mail", "--name", "box-1", "--claim-timeout", "1h"]);
    assert_eq!(id, first);
    let held = task(world, &id);
    assert_eq!(
        (&held["state"], &held["worker"], &held["attempt"]),
        (&json!("claimed"), &json!("box-1"), &json!(1))
    );
    assert!(
        held["session"].is_null() && held["claim_expires_at_ms"].is_i64(),
        "a claim without a session has a timeout: {held}"
    );
    refused(world, &["tasks", "claim", "mail"], 75, &[]);

    let wrong = (token.parse::<u64>().expect("a number") + 1).to_string();
    refused(world, &["tasks", "complete", &id, "--token", &wrong], 76, &["claim lost", "box-1"]);
    let extended = world.json(&[
        "tasks",
        "heartbeat",
        &id,
        "--token",
        &token,
        "--claim-timeout",
        "2h",
        "--progress",
        "half",
        "-o",
        "json",
    ]);
    assert_eq!(extended["state"], "claimed");
    let later = task(world, &id);
    assert_eq!(later["progress"], "half");
    assert!(later["claim_expires_at_ms"].as_i64() > held["claim_expires_at_ms"].as_i64());
    // The printed form of a token is accepted too.
    let shown: u64 = token.parse().expect("a number");
    let shown = format!("{}.{}", shown >> 40, shown & ((1 << 40) - 1));
    world.ok(&["tasks", "complete", &id, "--token", &shown, "--result", r#"{"sent":true}"#]);
    let done = task(world, &id);
    assert_eq!((&done["state"], &done["result"]), (&json!("completed"), &json!({"sent": true})));
    // The same completion may be repeated; another outcome is rejected.
    world.ok(&["tasks", "complete", &id, "--token", &token]);
    refused(world, &["tasks", "fail", &id, "--token", &token, "--error", "no"], 76, &["completed"]);

    let id = submit(world, &["mail", "--max-attempts", "2"]);
    let (_, token) = claim(world, &["mail"]);
    world.ok(&["tasks", "release", &id, "--token", &token]);
    assert_eq!(task(world, &id)["attempt"], 0, "a release does not count as an attempt");
    let (_, token) = claim(world, &["mail"]);
    world.ok(&["tasks", "fail", &id, "--token", &token, "--error", "no route", "--retry-in", "0s"]);
    let (_, token) = claim(world, &["mail", "--wait", "30s"]);
    world.ok(&["tasks", "fail", &id, "--token", &token, "--error", "still no route"]);
    let dead = task(world, &id);
    assert_eq!((&dead["state"], &dead["failures"][0]["error"]), (&json!("dead"), &json!("no route")));
    let once = submit(world, &["mail"]);
    let (_, token) = claim(world, &["mail"]);
    world.ok(&["tasks", "fail", &once, "--token", &token, "--error", "never", "--no-retry"]);
    assert_eq!(task(world, &once)["state"], "dead");
    // Without --retry-in the backoff of the task applies.
    let later = submit(world, &["mail", "--initial-backoff", "1h"]);
    let (_, token) = claim(world, &["mail"]);
    world.ok(&["tasks", "fail", &later, "--token", &token, "--error", "busy"]);
    let later = task(world, &later);
    assert_eq!(later["state"], "scheduled");
    let wait = later["run_at_ms"].as_i64().unwrap() - later["failures"][0]["failed_at_ms"].as_i64().unwrap();
    assert!((2_800_000..=4_400_000).contains(&wait), "an hour, and up to a fifth more or less: {wait}");
}

pub fn a_file_of_tasks_is_submitted_with_its_dependencies(world: &World) {
    let lines = [
        r#"{"kind":"join","parents":[{"index":1},{"index":2}],"payload":{"n":0}}"#,
        "",
        r#"{"payload":{"n":1},"priority":3}"#,
        r#"{"payload":{"n":2}}"#,
    ];
    std::fs::write(world.path("graph.jsonl"), lines.join("\n")).expect("a file");
    let file = world.path("graph.jsonl").display().to_string();
    let printed = world.ok(&[
        "tasks",
        "submit",
        "steps",
        "-f",
        &file,
        "--kind",
        "step",
        "--priority",
        "1",
        "-o",
        "json",
    ]);
    let ids: Vec<u64> = printed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["id"].as_u64().expect("a number"))
        .collect();
    assert_eq!(ids.len(), 3);
    let join = task(world, &ids[0].to_string());
    assert_eq!(
        (&join["kind"], &join["state"], &join["priority"]),
        (&json!("join"), &json!("waiting"), &json!(1))
    );
    assert_eq!(sorted(join["parents"].clone()), sorted(json!([ids[1], ids[2]])));
    let step = task(world, &ids[1].to_string());
    assert_eq!(
        (&step["kind"], &step["priority"]),
        (&json!("step"), &json!(3)),
        "an object overrides the options"
    );
    // Both parents are completed; the child gets their results.
    let printed = world.ok(&["tasks", "claim", "steps", "-n", "10", "-o", "json"]);
    let claimed: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(claimed.len(), 2, "{printed}");
    for task in &claimed {
        let (id, token) = (task["id"].to_string(), task["token"].to_string());
        world.ok(&["tasks", "complete", &id, "--token", &token, "--result", &format!("{{\"was\":{id}}}")]);
    }
    let join = world.json(&["tasks", "claim", "steps", "-o", "json"]);
    assert_eq!(join["id"], ids[0]);
    assert_eq!(join["parent_results"][ids[1].to_string()], json!({"was": ids[1]}));
    assert!(world.ok(&["tasks", "list"]).contains("join"));
}

pub fn all_tasks_of_a_queue_are_cancelled_and_retried(world: &World) {
    let lines: String = (0..1500).map(|n| format!("{{\"payload\":{n}}}\n")).collect();
    std::fs::write(world.path("many.jsonl"), lines).expect("a file");
    let file = world.path("many.jsonl").display().to_string();
    let done = world.run(&["tasks", "submit", "bulk", "-f", &file]);
    assert!(output_text(&done).contains("1500 tasks"), "{}", output_text(&done));
    let (claimed, token) = claim(world, &["bulk"]);
    let moved = world.json(&["tasks", "cancel", "--queue", "bulk", "--state", "ready", "-o", "json"]);
    assert_eq!(moved["task_ids"].as_array().map(Vec::len), Some(1499));
    assert_eq!(count(world, "bulk", "cancelled"), 1499);
    let moved = world.run(&["tasks", "retry", "--queue", "bulk", "--state", "cancelled,dead"]);
    assert!(output_text(&moved).contains("1499 tasks"), "{}", output_text(&moved));
    assert_eq!((count(world, "bulk", "ready"), count(world, "bulk", "claimed")), (1499, 1));
    // A claimed task can be cancelled; its worker loses the claim.
    world.ok(&["tasks", "cancel", &claimed]);
    refused(world, &["tasks", "complete", &claimed, "--token", &token], 76, &["cancelled"]);
    let again = world.run(&["tasks", "cancel", &claimed]);
    assert!(again.status.success() && output_text(&again).contains("already"), "{}", output_text(&again));
    refused(world, &["tasks", "retry", "4711000"], 64, &["4711000"]);
}

pub fn count(world: &World, queue: &str, state: &str) -> u64 {
    world.json(&["queues", "show", queue, "-o", "json"])["counts"][state].as_u64().unwrap_or(0)
}

pub fn tasks_are_listed_shown_and_measured(world: &World) {
    let id = submit(world, &["mail", "--kind", "welcome", "--payload", r#"{"to":"ada"}"#, "--priority", "7"]);
    submit(world, &["other", "--delay", "1h"]);
    let (_, token) = claim(world, &["mail", "--name", "box-1"]);
    world.ok(&["tasks", "fail", &id, "--token", &token, "--error", "no route", "--retry-in", "0s"]);
    let (_, token) = claim(world, &["mail", "--name", "box-2", "--wait", "30s"]);
    let list = world.ok(&["tasks", "list"]);
    for word in ["TASK", "mail", "welcome", "claimed", "2/20", "box-2", "other", "scheduled", "in 59m"] {
        assert!(list.contains(word), "{word} in\n{list}");
    }
    let list =
        world.ok(&["tasks", "list", "--queue", "mail", "--state", "claimed,dead", "--worker", "box-2"]);
    assert!(list.contains("welcome") && !list.contains("other") && !list.contains("QUEUE"), "{list}");
    assert!(world.ok(&["tasks", "list", "--kind", "nothing"]).contains("no matching tasks"));
    assert!(world.ok(&["tasks", "list", "-n", "1"]).contains("--cursor 2"), "the next page");
    world.ok(&["tasks", "complete", &id, "--token", &token, "--result", r#"{"sent":true}"#]);
    let story = world.ok(&["tasks", "show", &id]);
    let words = [
        "welcome",
        "completed by box-2",
        "submitted",
        "attempt 1 failed on box-1: no route",
        "✓ ",
        "sent",
        "priority",
    ];
    for word in words {
        assert!(story.contains(word), "{word} in\n{story}");
    }
    let stats = world.json(&["tasks", "stats", "mail", "-o", "json"]);
    assert_eq!((&stats[0]["kind"], &stats[0]["completed"]), (&json!("welcome"), &json!(1)));
    let stats = world.ok(&["tasks", "stats", "mail"]);
    assert!(stats.contains("welcome") && stats.contains("P95"), "{stats}");
    assert!(world.ok(&["tasks", "stats", "other"]).contains("other has no finished tasks"));
}

pub fn why_explains_each_reason(world: &World) {
    let why = |id: &str| world.ok(&["tasks", "why", id]);
    let plain = submit(world, &["mail"]);
    assert!(why(&plain).contains("no worker of mail is online"), "{}", why(&plain));
    let later = submit(world, &["mail", "--delay", "1h"]);
    assert!(why(&later).contains("due in 59m"), "{}", why(&later));
    let child = submit(world, &["mail", "--parent", &plain]);
    assert!(why(&child).contains(&format!("its parent {plain} is not completed")), "{}", why(&child));
    let picky = submit(world, &["gpus", "--required-tag", "gpu"]);
    // An online worker without the tag.
    refused(world, &["tasks", "claim", "gpus", "--name", "box-1", "--tag", "cpu"], 75, &[]);
    assert!(why(&picky).contains("no online worker of gpus has the tags gpu"), "{}", why(&picky));
    let reasons = world.json(&["tasks", "why", &picky, "-o", "json"]);
    assert_eq!(reasons["reasons"][0], json!({"reason": "no_worker_with_tags", "tags": ["gpu"]}));
    world.ok(&["queues", "pause", "gpus", "--reason", "on fire"]);
    assert!(why(&picky).contains("on fire"), "{}", why(&picky));
    let (id, token) = claim(world, &["mail", "--name", "box-1"]);
    assert!(why(&id).contains("box-1 has claimed it"), "{}", why(&id));
    world.ok(&["tasks", "fail", &id, "--token", &token, "--error", "no such address", "--no-retry"]);
    let text = why(&id);
    assert!(text.contains("no such address") && text.contains("tasks retry"), "{text}");
    assert!(why(&child).contains(&format!("parent {id}")), "{}", why(&child));
}
