//! `tenure schedule pause`, `resume`, `trigger` and `backfill`.

use serde_json::json;

use crate::support::World;
use crate::{history, json, ok, refused};

pub fn a_pause_says_who_and_why(world: &World) {
    ok(world, &["create", "nightly", "0 0 1 1 *", "--task", "reports"]);
    let paused = json(world, &["pause", "nightly", "--reason", "database upgrade"]);
    assert_eq!(paused, json!({"paused": true, "changed": true}));
    assert_eq!(json(world, &["pause", "nightly"]), json!({"paused": true, "changed": false}));
    let view = json(world, &["show", "nightly"]);
    assert_eq!(view["paused"]["reason"], json!("database upgrade"), "the first reason stays: {view}");
    assert!(view["due_ms"].is_null(), "{view}");
    assert!(ok(world, &["show", "nightly"]).contains("ago: database upgrade"));
    assert!(ok(world, &["list"]).contains("paused"));
    assert_eq!(json(world, &["resume", "nightly"]), json!({"paused": false, "changed": true}));
    assert_eq!(json(world, &["resume", "nightly"]), json!({"paused": false, "changed": false}));
    let view = json(world, &["show", "nightly"]);
    assert!(view["paused"].is_null() && view["due_ms"].is_i64(), "{view}");
}

pub fn a_schedule_is_triggered_by_hand(world: &World) {
    world.ok(&["events", "topics", "create", "beats"]);
    ok(world, &["create", "beat", "0 0 1 1 *", "--event", "beats", "--payload", "{\"n\":1}"]);
    ok(world, &["pause", "beat"]);
    let fired = json(world, &["trigger", "beat"]);
    assert_eq!(fired["outcome"], json!("fired"), "a pause does not matter: {fired}");
    let event = json(world, &["trigger", "beat", "--payload", "{\"n\":2}"])["event"].clone();
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
        assert!(tick["by"].as_str().is_some_and(|by| !by.is_empty()), "{tick}");
    }
    assert!(ok(world, &["history", "beat"]).contains("fired, trigger"));
}

pub fn past_ticks_are_filled_in_once(world: &World) {
    ok(world, &["create", "daily", "0 0 * * *", "--task", "reports"]);
    let range = ["backfill", "daily", "--from", "2020-01-01", "--to", "2020-01-11T00:00:00Z"];
    let dry = json(world, &[&range[..], &["--dry-run"]].concat());
    assert_eq!((&dry["fired"], &dry["dry_run"]), (&json!(10), &json!(true)), "{dry}");
    assert!(history(world, "daily").is_empty(), "nothing was done");
    assert!(ok(world, &[&range[..], &["--dry-run"]].concat()).contains("Wed 2020-01-01 00:00:00Z"));
    let short = ["backfill", "daily", "--from", "2020-01-03", "--to", "2020-01-04"];
    assert_eq!(json(world, &short)["fired"], json!(1));
    let filled = json(world, &range);
    assert_eq!((&filled["fired"], &filled["already"]), (&json!(9), &json!(1)), "{filled}");
    let again = json(world, &range);
    assert_eq!((&again["fired"], &again["already"]), (&json!(0), &json!(10)), "{again}");
    let ticks = history(world, "daily");
    assert_eq!(ticks.len(), 10);
    assert!(
        ticks.iter().all(|tick| tick["cause"] == json!("backfill") && tick["task"].is_u64()),
        "{ticks:?}"
    );
    let tasks = world.json(&["tasks", "list", "--queue", "reports", "-o", "json"]);
    let mut keys: Vec<_> =
        tasks.as_array().unwrap().iter().map(|task| task["key"].as_str().unwrap()).collect();
    keys.sort_unstable();
    assert_eq!(keys.len(), 10);
    assert!(keys[0].starts_with("default/daily@2020-01-01T00:00:00"), "{keys:?}");
    refused(world, &["schedule", "backfill", "daily", "--from", "1980-01-01"], 64, &["--most"]);
}
