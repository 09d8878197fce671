//! `tenure schedules pause`, `resume`, `trigger` and `backfill`.

use serde_json::json;

use crate::support::World;
use crate::{history, json, ok, refused};

pub fn a_pause_has_a_principal_and_a_reason(world: &World) {
    ok(world, &["create", "nightly", "0 0 1 1 *", "--task", "reports"]);
    let paused = json(world, &["pause", "nightly", "--reason", "database upgrade"]);
    assert_eq!(paused, json!({"paused": true, "changed": true}));
    assert_eq!(json(world, &["pause", "nightly"]), json!({"paused": true, "changed": false}));
    let view = json(world, &["show", "nightly"]);
    assert_eq!(view["paused"]["reason"], json!("database upgrade"), "the first reason is kept: {view}");
    assert!(view["due_at_ms"].is_null(), "{view}");
    assert!(ok(world, &["show", "nightly"]).contains("ago: database upgrade"));
    assert!(ok(world, &["list"]).contains("paused"));
    assert_eq!(json(world, &["resume", "nightly"]), json!({"paused": false, "changed": true}));
    assert_eq!(json(world, &["resume", "nightly"]), json!({"paused": false, "changed": false}));
    let view = json(world, &["show", "nightly"]);
    assert!(view["paused"].is_null() && view["due_at_ms"].is_i64(), "{view}");
}

pub fn a_trigger_fires_at_once(world: &World) {
    world.ok(&["events", "topics", "create", "beats"]);
    ok(world, &["create", "beat", "0 0 1 1 *", "--event", "beats", "--payload", "{\"n\":1}"]);
    ok(world, &["pause", "beat"]);
    let fired = json(world, &["trigger", "beat"]);
    assert_eq!(fired["outcome"], json!("fired"), "even if the schedule is paused: {fired}");
    let event = json(world, &["trigger", "beat", "--payload", "{\"n\":2}"])["event_id"].clone();
    let tail = world.ok(&["events", "tail", "beats", "--from", "earliest", "--no-follow", "-o", "json"]);
    let events: Vec<serde_json::Value> =
        tail.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events.len(), 2, "{events:?}");
    assert_eq!((&events[0]["payload"], &events[1]["payload"]), (&json!({"n": 1}), &json!({"n": 2})));
    assert_eq!(events[1]["id"], event);
    assert_eq!(events[0]["headers"]["tenure-schedule"], json!("beat"));
    let ticks = history(world, "beat");
    assert_eq!(ticks.len(), 2, "{ticks:?}");
    for tick in &ticks {
        assert_eq!(
            (&tick["cause"], &tick["state"], &tick["token"]),
            (&json!("trigger"), &json!("fired"), &json!(null))
        );
        assert!(tick["decided_by"].as_str().is_some_and(|by| !by.is_empty()), "{tick}");
    }
    assert!(ok(world, &["history", "beat"]).contains("fired, trigger"));
}

pub fn backfill_fires_past_ticks_once(world: &World) {
    ok(world, &["create", "daily", "0 0 * * *", "--task", "reports"]);
    let range = ["backfill", "daily", "--from", "2020-01-01", "--to", "2020-01-11T00:00:00Z"];
    let dry = json(world, &[&range[..], &["--dry-run"]].concat());
    assert_eq!((&dry["fired_count"], &dry["dry_run"]), (&json!(10), &json!(true)), "{dry}");
    assert!(history(world, "daily").is_empty(), "a dry run fires nothing");
    assert!(ok(world, &[&range[..], &["--dry-run"]].concat()).contains("Wed 2020-01-01 00:00:00Z"));
    let short = ["backfill", "daily", "--from", "2020-01-03", "--to", "2020-01-04"];
    assert_eq!(json(world, &short)["fired_count"], json!(1));
    let filled = json(world, &range);
    assert_eq!((&filled["fired_count"], &filled["already_fired_count"]), (&json!(9), &json!(1)), "{filled}");
    let again = json(world, &range);
    assert_eq!((&again["fired_count"], &again["already_fired_count"]), (&json!(0), &json!(10)), "{again}");
    let ticks = history(world, "daily");
    assert_eq!(ticks.len(), 10);
    assert!(
        ticks.iter().all(|tick| tick["cause"] == json!("backfill") && tick["task_id"].is_u64()),
        "{ticks:?}"
    );
    let tasks = world.json(&["tasks", "list", "--queue", "reports", "-o", "json"]);
    let mut keys: Vec<_> =
        tasks.as_array().unwrap().iter().map(|task| task["idempotency_key"].as_str().unwrap()).collect();
    keys.sort_unstable();
    assert_eq!(keys.len(), 10);
    assert!(keys[0].starts_with("default/daily@2020-01-01T00:00:00"), "{keys:?}");
    refused(world, &["schedules", "backfill", "daily", "--from", "1980-01-01"], 64, &["--max-ticks"]);
}
