//! Schedules as people type them: with real processes, on both stores, and through a server.

#![allow(unreachable_pub, dead_code)]

#[path = "schedules/apply.rs"]
mod apply;
#[path = "schedules/define.rs"]
mod define;
#[path = "schedules/firing.rs"]
mod firing;
#[path = "schedules/hand.rs"]
mod hand;
#[path = "schedules/readme.rs"]
mod readme;
#[path = "support/readme.rs"]
mod readme_blocks;
#[macro_use]
mod support;

use apply::{a_file_is_applied_once_and_again, what_a_file_no_longer_has_is_pruned_on_request};
use define::{
    schedules_are_made_changed_and_deleted, the_next_ticks_are_told_on_their_wall_clock,
    two_who_change_a_schedule_do_not_overwrite_each_other,
};
use firing::{
    a_killed_leader_is_followed_by_another_and_no_tick_is_lost_or_doubled, what_is_due_fires_with_its_token,
};
use hand::{a_pause_says_who_and_why, a_schedule_is_triggered_by_hand, past_ticks_are_filled_in_once};
use support::{World, refused, said};

on_every_store!(
    schedules_are_made_changed_and_deleted,
    two_who_change_a_schedule_do_not_overwrite_each_other,
    the_next_ticks_are_told_on_their_wall_clock,
    a_pause_says_who_and_why,
    a_schedule_is_triggered_by_hand,
    past_ticks_are_filled_in_once,
    a_file_is_applied_once_and_again,
    what_a_file_no_longer_has_is_pruned_on_request,
    what_is_due_fires_with_its_token,
);

/// Through a server nobody fires but the servers.
mod databases {
    use super::{World, a_killed_leader_is_followed_by_another_and_no_tick_is_lost_or_doubled as followed};

    #[test]
    fn a_killed_leader_is_followed_by_another_on_sqlite() {
        followed(&World::sqlite());
    }

    #[test]
    fn a_killed_leader_is_followed_by_another_on_postgres() {
        followed(&World::postgres());
    }
}

/// `tenure schedule …`, to success.
fn ok(world: &World, args: &[&str]) -> String {
    world.ok(&[&["schedule"], args].concat())
}

/// The same, as JSON.
fn json(world: &World, args: &[&str]) -> serde_json::Value {
    world.json(&[&["schedule"], args, &["-o", "json"]].concat())
}

/// What became of the ticks of a schedule, the newest first.
fn history(world: &World, name: &str) -> Vec<serde_json::Value> {
    let ticks = json(world, &["history", name, "-n", "10000"]);
    ticks.as_array().expect("a list").clone()
}

#[test]
fn bad_input_names_itself_and_the_remedy() {
    let world = World::sqlite();
    ok(&world, &["create", "nightly", "30 2 * * *", "--task", "reports"]);
    let secret = world.path("short.secret").display().to_string();
    std::fs::write(&secret, "tooshort\n").expect("a file");
    let file = world.path("bad.toml").display().to_string();
    let text = "[[schedule]]\nname = \"a\"\nwhen = \"0 0 31 2 *\"\ntask = { queue = \"q\" }\n\
                [[schedule]]\nname = \"b\"\nwhen = \"every 1s\"\nevent = { topic = \"nowhere\" }\n";
    std::fs::write(&file, text).expect("a file");
    let topic = world.path("topic.toml").display().to_string();
    std::fs::write(
        &topic,
        "[[schedule]]\nname = \"b\"\nwhen = \"every 1s\"\nevent = { topic = \"nowhere\" }\n",
    )
    .expect("a file");
    let cases: &[(&[&str], &[&str])] = &[
        (
            &["create", "a", "0 25 * * *", "--task", "q"],
            &["the hour 25 does not exist", "0 25 * * *\n", "  ^"],
        ),
        (&["create", "a", "0 0 31 2 *", "--task", "q"], &["0 0 31 2 *"]),
        (&["create", "a", "every 0s", "--task", "q"], &["interval of nothing", "1ms"]),
        (&["create", "a", "every 1s"], &["--event", "--task", "--call"]),
        (&["create", "a", "every 1s", "--task", "q", "--event", "t"], &["cannot be used with"]),
        (
            &["create", "a", "every 1s", "--event", "nowhere"],
            &["nowhere", "tenure events topics create nowhere"],
        ),
        (&["create", "two words", "every 1s", "--task", "q"], &["two words"]),
        (
            &["create", "a", "every 1s", "--task", "q", "--zone", "Europe/Belrin"],
            &["did you mean Europe/Berlin?"],
        ),
        (&["create", "a", "every 1s", "--task", "q", "--misfire", "never"], &["never", "fire_all(100)"]),
        (&["create", "a", "every 1s", "--task", "q", "--overlap", "no"], &["\"no\"", "allow, skip or queue"]),
        (&["create", "a", "every 1s", "--event", "t", "--kind", "k"], &["--kind belongs to a task"]),
        (&["create", "a", "every 1s", "--task", "q", "--key", "k"], &["--key belongs to an event"]),
        (&["create", "a", "every 1s", "--task", "q", "--payload", "{to:"], &["--payload", "not JSON"]),
        (&["create", "a", "every 1s", "--task", "q", "--start", "noon"], &["noon", "2030-01-31T09:30"]),
        (
            &["create", "a", "every 1s", "--task", "q", "--start", "2030-01-02", "--end", "2030-01-01"],
            &["end_ms", "exchange them"],
        ),
        (&["create", "a", "every 1s", "--call", "ftp://x"], &["ftp://x", "https://"]),
        (&["create", "a", "every 1s", "--call", "http://x", "--secret-file", &secret], &["8 bytes", "16"]),
        (&["create", "nightly", "every 1s", "--task", "q"], &["there already", "schedule set nightly"]),
        (&["set", "nobody", "--when", "every 1s"], &["no schedule nobody", "schedule list"]),
        (&["set", "nightly", "--key", "k"], &["--key belongs to an event"]),
        (&["show", "nobody"], &["no schedule nobody"]),
        (&["next"], &["<NAME>"]),
        (&["next", "nightly", "--when", "every 1s"], &["cannot be used with"]),
        (&["pause", "nobody"], &["no schedule nobody"]),
        (&["trigger", "nobody"], &["no schedule nobody"]),
        (&["trigger", "nightly", "--payload", "{"], &["not JSON"]),
        (&["backfill", "nobody", "--from", "1h"], &["no schedule nobody"]),
        (&["backfill", "nightly", "--from", "1h", "--to", "2h"], &["--to", "exchange them"]),
        (
            &["backfill", "nightly", "--from", "1971-01-01", "--to", "2021-01-01"],
            &["18,263 ticks", "--most 18263"],
        ),
        (&["history", "nobody"], &["no schedule nobody"]),
        (&["delete", "nobody"], &["no schedule nobody"]),
        (&["apply", "-f", "/no/such.toml"], &["/no/such.toml", "No such file"]),
        (&["apply", "-f", &file], &[":3:8: a: when: ", "31", "Nothing was changed"]),
        (
            &["apply", "-f", &topic],
            &[":4:9: b: event.topic: there is no topic nowhere", "topics create nowhere"],
        ),
        (&["apply", "-f", &topic, "--prune"], &["source = \"billing\"", "--source"]),
        (&["run", "--lease", "1ms"], &["lease"]),
    ];
    for (args, words) in cases {
        refused(&world, &[&["schedule"], *args].concat(), 64, words);
    }
    let names: Vec<_> = json(&world, &["list"]).as_array().expect("a list").clone();
    assert_eq!(names.len(), 1, "nothing was begun: {names:?}");
    // A key is told, a secret is not.
    let output =
        world.run(&["schedule", "create", "a", "every 1s", "--call", "http://x", "--secret-file", &secret]);
    assert!(!said(&output).contains("tooshort"));
}
