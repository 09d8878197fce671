//! `tenure schedules create`, `set`, `show`, `list`, `preview` and `delete`.

use serde_json::json;

use crate::support::World;
use crate::{json, ok, output_text, refused};

pub fn schedules_are_created_changed_and_deleted(world: &World) {
    assert!(ok(world, &["list"]).contains("schedules create"), "an empty list shows an example");
    let create = [
        "create",
        "nightly",
        "30 2 * * MON-FRI",
        "--time-zone",
        "Europe/Berlin",
        "--task",
        "reports",
        "--kind",
        "report",
        "--payload",
        "{\"of\":\"yesterday\"}",
        "--misfire-policy",
        "within(2h)",
        "--overlap-policy",
        "skip",
        "--max-run",
        "1h",
        "--end-at",
        "2999-01-01",
    ];
    let made = json(world, &create);
    assert_eq!(
        (&made["version"], &made["definition"]["time_zone"]),
        (&json!(1), &json!("Europe/Berlin")),
        "{made}"
    );
    assert_eq!(made["definition"]["target"]["task"]["task"]["max_run_ms"], json!(3_600_000));
    assert_eq!(made["definition"]["payload"], json!({"of": "yesterday"}));
    assert!(made["due_at_ms"].is_i64() && made["paused"].is_null(), "{made}");

    let again = world.run(&[&["schedules"], &create[..]].concat());
    assert!(
        again.status.success() && output_text(&again).contains("is unchanged"),
        "{}",
        output_text(&again)
    );

    let changed =
        json(world, &["set", "nightly", "--expression", "0 3 * * *", "--end-at", "none", "--priority", "7"]);
    assert_eq!(
        (&changed["version"], &changed["definition"]["expression"]),
        (&json!(2), &json!("0 3 * * *")),
        "{changed}"
    );
    assert!(changed["definition"]["end_at_ms"].is_null());
    let task = &changed["definition"]["target"]["task"]["task"];
    assert_eq!(
        (&task["priority"], &task["kind"]),
        (&json!(7), &json!("report")),
        "settings without an option keep their values"
    );

    let list = ok(world, &["list"]);
    assert!(list.contains("0 3 * * * in Europe/Berlin") && list.contains("task in reports"), "{list}");
    let shown = ok(world, &["show", "nightly"]);
    for words in
        ["nightly  active  0 fired, 0 skipped", "within(2h)", "max run", "03:00:00+0", "version", "2, by "]
    {
        assert!(shown.contains(words), "{words:?} in\n{shown}");
    }
    let shown = json(world, &["show", "nightly"]);
    assert_eq!(shown["upcoming"].as_array().map(Vec::len), Some(5), "{shown}");

    let call = json(world, &["create", "ping", "@hourly", "--webhook", "https://example.com/hooks"]);
    let secret = call["secret"].as_str().expect("a secret, printed once");
    assert!(secret.starts_with("whsec_") && call["webhook_signed"] == json!(true), "{call}");
    let kept = json(world, &["set", "ping", "--expression", "@daily"]);
    assert!(kept["secret"].is_null() && kept["webhook_signed"] == json!(true), "it keeps its secret: {kept}");
    assert!(!ok(world, &["show", "ping", "-o", "json"]).contains(secret));

    assert_eq!(json(world, &["delete", "nightly"]), json!({"deleted": true}));
    refused(world, &["schedules", "show", "nightly"], 64, &["schedule nightly does not exist"]);
    assert_eq!(json(world, &["list"]).as_array().map(Vec::len), Some(1));
}

pub fn a_concurrent_change_is_a_conflict(world: &World) {
    ok(world, &["create", "nightly", "30 2 * * *", "--task", "reports"]);
    ok(world, &["set", "nightly", "--expression", "0 3 * * *", "--if-version", "1"]);
    let stale = ["schedules", "set", "nightly", "--expression", "0 4 * * *", "--if-version", "1"];
    refused(
        world,
        &stale,
        75,
        &["conflict", "now has version 2", "nothing was changed", "schedules show nightly"],
    );
    refused(world, &["schedules", "delete", "nightly", "--if-version", "1"], 75, &["now has version 2"]);
    let shown = json(world, &["show", "nightly"]);
    assert_eq!((&shown["version"], &shown["definition"]["expression"]), (&json!(2), &json!("0 3 * * *")));
    let same = world.run(&["schedules", "set", "nightly", "--expression", "0 3 * * *"]);
    assert!(output_text(&same).contains("is unchanged"), "{}", output_text(&same));
    assert_eq!(
        json(world, &["show", "nightly"])["version"],
        json!(2),
        "an unchanged definition keeps its version"
    );
}

pub fn preview_prints_ticks_in_the_time_zone(world: &World) {
    ok(world, &["create", "nightly", "30 2 * * *", "--time-zone", "Europe/Berlin", "--task", "reports"]);
    let ticks = json(world, &["preview", "nightly", "-n", "3", "--from", "2026-03-28"]);
    let clocks: Vec<_> =
        ticks.as_array().expect("a list").iter().map(|tick| tick["local_time"].as_str().unwrap()).collect();
    let wanted = ["2026-03-28T02:30:00+01:00", "2026-03-29T03:30:00+02:00", "2026-03-30T02:30:00+02:00"];
    assert_eq!(clocks, wanted);
    let preview = [
        "preview",
        "--expression",
        "30 2 * * *",
        "--time-zone",
        "Europe/Berlin",
        "-n",
        "3",
        "--from",
        "2026-03-28",
    ];
    assert_eq!(json(world, &preview), ticks, "the same without a stored schedule");
    let text = ok(world, &["preview", "nightly", "--from", "2026-03-28"]);
    assert!(text.contains("Sun 2026-03-29 03:30:00+02:00"), "{text}");
    assert!(text.contains("the clock moves forward by 1h"), "{text}");
}
