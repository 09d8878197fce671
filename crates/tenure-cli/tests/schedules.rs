//! `tenure schedules` with real processes, on SQLite and PostgreSQL and through a server.

#![allow(unreachable_pub, dead_code)]

#[path = "schedules/apply.rs"]
mod apply;
#[path = "schedules/define.rs"]
mod define;
#[path = "schedules/firing.rs"]
mod firing;
#[path = "schedules/manual_fire.rs"]
mod manual_fire;
#[path = "schedules/readme.rs"]
mod readme;
#[path = "support/readme.rs"]
mod readme_blocks;
#[macro_use]
mod support;

use apply::{a_file_is_applied_twice, prune_deletes_schedules_missing_from_the_file};
use define::{
    a_concurrent_change_is_a_conflict, preview_prints_ticks_in_the_time_zone,
    schedules_are_created_changed_and_deleted,
};
use firing::{
    after_a_killed_leader_another_fires_and_no_tick_is_lost_or_doubled,
    due_schedules_fire_with_the_token_of_the_leader,
};
use manual_fire::{
    a_pause_has_a_principal_and_a_reason, a_trigger_fires_at_once, backfill_fires_past_ticks_once,
};
use support::{World, output_text, refused};

on_every_store!(
    schedules_are_created_changed_and_deleted,
    a_concurrent_change_is_a_conflict,
    preview_prints_ticks_in_the_time_zone,
    a_pause_has_a_principal_and_a_reason,
    a_trigger_fires_at_once,
    backfill_fires_past_ticks_once,
    a_file_is_applied_twice,
    prune_deletes_schedules_missing_from_the_file,
    due_schedules_fire_with_the_token_of_the_leader,
);

/// Not through a server: only servers fire there.
mod databases {
    use super::{World, after_a_killed_leader_another_fires_and_no_tick_is_lost_or_doubled as followed};

    #[test]
    fn a_killed_leader_is_followed_by_another_on_sqlite() {
        followed(&World::sqlite());
    }

    #[test]
    fn a_killed_leader_is_followed_by_another_on_postgres() {
        followed(&World::postgres());
    }
}

/// Runs `tenure schedules …`, which must succeed.
fn ok(world: &World, args: &[&str]) -> String {
    world.ok(&[&["schedules"], args].concat())
}

/// As [`ok`], with JSON output.
fn json(world: &World, args: &[&str]) -> serde_json::Value {
    world.json(&[&["schedules"], args, &["-o", "json"]].concat())
}

/// Ticks of a schedule, newest first.
fn history(world: &World, name: &str) -> Vec<serde_json::Value> {
    let ticks = json(world, &["history", name, "-n", "10000"]);
    ticks.as_array().expect("a list").clone()
}

#[test]
fn invalid_input_is_named_with_advice() {
    let world = World::sqlite();
    ok(&world, &["create", "nightly", "30 2 * * *", "--task", "reports"]);
    let secret = world.path("short.secret").display().to_string();
    std::fs::write(&secret, "tooshort\n").expect("a file");
    let file = world.path("bad.toml").display().to_string();
    let text = "[[schedule]]\nname = \"a\"\nexpression = \"0 0 31 2 *\"\ntask = { queue = \"q\" }\n\
                [[schedule]]\nname = \"b\"\nexpression = \"every 1s\"\nevent = { topic = \"nowhere\" }\n";
    std::fs::write(&file, text).expect("a file");
    let topic = world.path("topic.toml").display().to_string();
    std::fs::write(
        &topic,
        "[[schedule]]\nname = \"b\"\nexpression = \"every 1s\"\nevent = { topic = \"nowhere\" }\n",
    )
    .expect("a file");
    let cases: &[(&[&str], &[&str])] = &[
        (&["create", "a", "0 25 * * *", "--task", "q"], &["25", "0 25 * * *\n", "  ^"]),
        (&["create", "a", "0 0 31 2 *", "--task", "q"], &["0 0 31 2 *"]),
        (&["create", "a", "every 0s", "--task", "q"], &["1ms"]),
        (&["create", "a", "every 1s"], &["--event", "--task", "--webhook"]),
        (&["create", "a", "every 1s", "--task", "q", "--event", "t"], &["cannot be used with"]),
        (
            &["create", "a", "every 1s", "--event", "nowhere"],
            &["nowhere", "tenure events topics create nowhere"],
        ),
        (&["create", "two words", "every 1s", "--task", "q"], &["two words"]),
        (
            &["create", "a", "every 1s", "--task", "q", "--time-zone", "Europe/Belrin"],
            &["did you mean Europe/Berlin?"],
        ),
        (
            &["create", "a", "every 1s", "--task", "q", "--misfire-policy", "never"],
            &["never", "fire_all(100)"],
        ),
        (
            &["create", "a", "every 1s", "--task", "q", "--overlap-policy", "no"],
            &["\"no\"", "allow, skip or queue"],
        ),
        (&["create", "a", "every 1s", "--event", "t", "--kind", "k"], &["--kind needs a task target"]),
        (&["create", "a", "every 1s", "--task", "q", "--key", "k"], &["--key needs an event target"]),
        (&["create", "a", "every 1s", "--task", "q", "--payload", "{to:"], &["--payload", "not JSON"]),
        (&["create", "a", "every 1s", "--task", "q", "--start-at", "noon"], &["noon", "2030-01-31T09:30"]),
        (
            &["create", "a", "every 1s", "--task", "q", "--start-at", "2030-01-02", "--end-at", "2030-01-01"],
            &["end_at_ms"],
        ),
        (&["create", "a", "every 1s", "--webhook", "ftp://x"], &["ftp://x", "https://"]),
        (&["create", "a", "every 1s", "--webhook", "http://x", "--secret-file", &secret], &["8 bytes", "16"]),
        (&["create", "nightly", "every 1s", "--task", "q"], &["already exists", "schedules set nightly"]),
        (
            &["set", "missing", "--expression", "every 1s"],
            &["schedule missing does not exist", "schedules list"],
        ),
        (&["set", "nightly", "--key", "k"], &["--key needs an event target"]),
        (&["show", "missing"], &["schedule missing does not exist"]),
        (&["preview"], &["<SCHEDULE>"]),
        (&["preview", "nightly", "--expression", "every 1s"], &["cannot be used with"]),
        (&["pause", "missing"], &["schedule missing does not exist"]),
        (&["trigger", "missing"], &["schedule missing does not exist"]),
        (&["trigger", "nightly", "--payload", "{"], &["not JSON"]),
        (&["backfill", "missing", "--from", "1h"], &["schedule missing does not exist"]),
        (&["backfill", "nightly", "--from", "1h", "--to", "2h"], &["--to", "after --from"]),
        (
            &["backfill", "nightly", "--from", "1971-01-01", "--to", "2021-01-01"],
            &["18,263 ticks", "--max-ticks 18263"],
        ),
        (&["history", "missing"], &["schedule missing does not exist"]),
        (&["delete", "missing"], &["schedule missing does not exist"]),
        (&["apply", "-f", "/no/such.toml"], &["/no/such.toml", "No such file"]),
        (&["apply", "-f", &file], &[":3:14: a: expression: ", "31", "nothing was changed"]),
        (
            &["apply", "-f", &topic],
            &[":4:9: b: event.topic: topic nowhere does not exist", "topics create nowhere"],
        ),
        (&["apply", "-f", &topic, "--prune"], &["source = \"billing\"", "--source"]),
        (&["run", "--lease", "1ms"], &["lease"]),
    ];
    for (args, words) in cases {
        refused(&world, &[&["schedules"], *args].concat(), 64, words);
    }
    let names: Vec<_> = json(&world, &["list"]).as_array().expect("a list").clone();
    assert_eq!(names.len(), 1, "nothing was created: {names:?}");
    // The error does not print the secret.
    let output = world.run(&[
        "schedules",
        "create",
        "a",
        "every 1s",
        "--webhook",
        "http://x",
        "--secret-file",
        &secret,
    ]);
    assert!(!output_text(&output).contains("tooshort"));
}
