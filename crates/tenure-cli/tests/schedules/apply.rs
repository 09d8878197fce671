//! `tenure schedules apply`.

use serde_json::{Value, json};

use crate::support::World;
use crate::{json, ok, refused};

const FILE: &str = r#"
source = "billing"

[defaults]
time_zone = "Europe/Berlin"

[[schedule]]
name = "nightly"
expression = "30 2 * * *"
payload = { of = "yesterday", deep = { list = [1, 2] } }
task = { queue = "reports", kind = "report", max_run = "1h" }

[[schedule]]
name = "beat"
expression = "every 1h from start"
event = { topic = "beats" }
"#;

fn actions(applied: &Value) -> Vec<(String, String)> {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let steps = applied["schedules"].as_array().expect("a list");
    steps.iter().map(|step| (word(&step["name"]), word(&step["action"]))).collect()
}

fn pair(name: &str, act: &str) -> (String, String) {
    (name.into(), act.into())
}

pub fn a_file_is_applied_twice(world: &World) {
    world.ok(&["events", "topics", "create", "beats"]);
    let path = world.path("schedules.toml").display().to_string();
    std::fs::write(&path, FILE).expect("a file");
    let apply = ["apply", "-f", &path];
    let dry = json(world, &["apply", "-f", &path, "--dry-run"]);
    assert_eq!(actions(&dry), [pair("nightly", "create"), pair("beat", "create")]);
    assert_eq!(json(world, &["list"]), json!([]), "nothing was changed");
    assert_eq!(actions(&json(world, &apply)), [pair("nightly", "create"), pair("beat", "create")]);
    let versions = |world: &World| -> Vec<Value> {
        json(world, &["list"]).as_array().unwrap().iter().map(|view| view["version"].clone()).collect()
    };
    let before = versions(world);
    assert_eq!(
        actions(&json(world, &apply)),
        [pair("nightly", "unchanged"), pair("beat", "unchanged")],
        "the second application changes nothing"
    );
    assert_eq!(versions(world), before);

    std::fs::write(&path, FILE.replace("30 2 * * *", "0 3 * * *")).expect("a file");
    let diff = ok(world, &["apply", "-f", &path, "--dry-run"]);
    assert!(diff.contains("~  nightly  expression  30 2 * * * → 0 3 * * *"), "{diff}");
    assert!(!diff.contains("beat"), "{diff}");
    assert_eq!(actions(&json(world, &apply)), [pair("nightly", "update"), pair("beat", "unchanged")]);
    let view = json(world, &["show", "nightly"]);
    assert_eq!((&view["version"], &view["source"]), (&json!(2), &json!("billing")), "{view}");
    assert_eq!(view["definition"]["expression"], json!("0 3 * * *"));
}

pub fn prune_deletes_schedules_missing_from_the_file(world: &World) {
    world.ok(&["events", "topics", "create", "beats"]);
    ok(world, &["create", "by-hand", "@daily", "--task", "reports"]);
    let path = world.path("schedules.toml").display().to_string();
    std::fs::write(&path, FILE).expect("a file");
    ok(world, &["apply", "-f", &path]);
    let (kept, _) = FILE.split_once("\n[[schedule]]\nname = \"beat\"").expect("two schedules");
    std::fs::write(&path, kept).expect("a file");
    assert_eq!(
        actions(&json(world, &["apply", "-f", &path])),
        [pair("nightly", "unchanged")],
        "only with --prune"
    );
    let diff = ok(world, &["apply", "-f", &path, "--prune", "--dry-run"]);
    assert!(diff.contains("-  beat  deleted"), "{diff}");
    let pruned = json(world, &["apply", "-f", &path, "--prune"]);
    assert_eq!(actions(&pruned), [pair("nightly", "unchanged"), pair("beat", "delete")]);
    let left = json(world, &["list"]);
    let names: Vec<_> =
        left.as_array().unwrap().iter().map(|view| view["definition"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["by-hand", "nightly"], "schedules of other sources are kept");
    std::fs::write(&path, "source = \"billing\"\n").expect("a file");
    refused(world, &["schedules", "apply", "-f", &path, "--prune"], 64, &["has no schedules", "by name"]);
    std::fs::write(&path, kept.replace("source = \"billing\"", "")).expect("a file");
    refused(world, &["schedules", "apply", "-f", &path, "--prune"], 64, &["sets none", "--source"]);
}
