//! `tenure schedule create`, `set`, `show`, `list`, `next` and `delete`.

use serde_json::json;

use crate::support::World;
use crate::{json, ok, refused, said};

pub fn schedules_are_made_changed_and_deleted(world: &World) {
    assert!(ok(world, &["list"]).contains("schedule create"), "an empty list teaches");
    let create = [
        "create",
        "nightly",
        "30 2 * * MON-FRI",
        "--zone",
        "Europe/Berlin",
        "--task",
        "reports",
        "--kind",
        "report",
        "--payload",
        "{\"of\":\"yesterday\"}",
        "--misfire",
        "within(2h)",
        "--overlap",
        "skip",
        "--max-run",
        "1h",
        "--end",
        "2999-01-01",
    ];
    let made = json(world, &create);
    assert_eq!(
        (&made["version"], &made["definition"]["zone"]),
        (&json!(1), &json!("Europe/Berlin")),
        "{made}"
    );
    assert_eq!(made["definition"]["target"]["task"]["task"]["max_run_ms"], json!(3_600_000));
    assert_eq!(made["definition"]["payload"], json!({"of": "yesterday"}));
    assert!(made["due_ms"].is_i64() && made["paused"].is_null(), "{made}");

    let again = world.run(&[&["schedule"], &create[..]].concat());
    assert!(again.status.success() && said(&again).contains("was so already"), "{}", said(&again));

    let changed = json(world, &["set", "nightly", "--when", "0 3 * * *", "--end", "none", "--priority", "7"]);
    assert_eq!(
        (&changed["version"], &changed["definition"]["when"]),
        (&json!(2), &json!("0 3 * * *")),
        "{changed}"
    );
    assert!(changed["definition"]["end_ms"].is_null());
    let task = &changed["definition"]["target"]["task"]["task"];
    assert_eq!((&task["priority"], &task["kind"]), (&json!(7), &json!("report")), "what is not named stays");

    let list = ok(world, &["list"]);
    assert!(list.contains("0 3 * * * in Europe/Berlin") && list.contains("task in reports"), "{list}");
    let shown = ok(world, &["show", "nightly"]);
    for words in
        ["nightly  on  0 fired, 0 skipped", "within(2h)", "longest run", "03:00:00+0", "version", "2, by "]
    {
        assert!(shown.contains(words), "{words:?} in\n{shown}");
    }
    let shown = json(world, &["show", "nightly"]);
    assert_eq!(shown["next"].as_array().map(Vec::len), Some(5), "{shown}");

    let call = json(world, &["create", "ping", "@hourly", "--call", "https://example.com/hooks"]);
    let secret = call["secret"].as_str().expect("a secret, shown this once");
    assert!(secret.starts_with("whsec_") && call["signed"] == json!(true), "{call}");
    let kept = json(world, &["set", "ping", "--when", "@daily"]);
    assert!(kept["secret"].is_null() && kept["signed"] == json!(true), "it keeps its secret: {kept}");
    assert!(!ok(world, &["show", "ping", "-o", "json"]).contains(secret));

    assert_eq!(json(world, &["delete", "nightly"]), json!({"deleted": true}));
    refused(world, &["schedule", "show", "nightly"], 64, &["no schedule nightly"]);
    assert_eq!(json(world, &["list"]).as_array().map(Vec::len), Some(1));
}

pub fn two_who_change_a_schedule_do_not_overwrite_each_other(world: &World) {
    ok(world, &["create", "nightly", "30 2 * * *", "--task", "reports"]);
    ok(world, &["set", "nightly", "--when", "0 3 * * *", "--if-version", "1"]);
    let stale = ["schedule", "set", "nightly", "--when", "0 4 * * *", "--if-version", "1"];
    refused(world, &stale, 75, &["version 2 by now", "nothing was done", "schedule show nightly"]);
    refused(world, &["schedule", "delete", "nightly", "--if-version", "1"], 75, &["version 2 by now"]);
    let shown = json(world, &["show", "nightly"]);
    assert_eq!((&shown["version"], &shown["definition"]["when"]), (&json!(2), &json!("0 3 * * *")));
    let same = world.run(&["schedule", "set", "nightly", "--when", "0 3 * * *"]);
    assert!(said(&same).contains("was so already"), "{}", said(&same));
    assert_eq!(json(world, &["show", "nightly"])["version"], json!(2), "what changes nothing is no version");
}

pub fn the_next_ticks_are_told_on_their_wall_clock(world: &World) {
    ok(world, &["create", "nightly", "30 2 * * *", "--zone", "Europe/Berlin", "--task", "reports"]);
    let ticks = json(world, &["next", "nightly", "-n", "3", "--from", "2026-03-28"]);
    let clocks: Vec<_> =
        ticks.as_array().expect("a list").iter().map(|tick| tick["at"].as_str().unwrap()).collect();
    let wanted = ["2026-03-28T02:30:00+01:00", "2026-03-29T03:30:00+02:00", "2026-03-30T02:30:00+02:00"];
    assert_eq!(clocks, wanted);
    let preview =
        ["next", "--when", "30 2 * * *", "--zone", "Europe/Berlin", "-n", "3", "--from", "2026-03-28"];
    assert_eq!(json(world, &preview), ticks, "the same without a schedule");
    let text = ok(world, &["next", "nightly", "--from", "2026-03-28"]);
    assert!(text.contains("Sun 2026-03-29 03:30:00+02:00"), "{text}");
    assert!(text.contains("the clock was set ahead by 1h"), "{text}");
}
