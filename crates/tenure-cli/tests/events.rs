//! Events as people type them: with real processes, on both stores, and through a server.

#![allow(unreachable_pub, dead_code)]

#[path = "events/consume.rs"]
mod consume;
#[path = "events/groups.rs"]
mod groups;
#[path = "events/publish.rs"]
mod publish;
#[path = "events/readme.rs"]
mod readme;
#[path = "support/readme.rs"]
mod readme_blocks;
#[macro_use]
mod support;
#[path = "events/tail.rs"]
mod tail;
#[path = "events/topics.rs"]
mod topics;

use consume::{
    a_command_runs_for_each_event_in_the_order_of_its_key,
    a_failing_key_waits_while_the_others_go_on_and_a_replay_restores_its_order,
    a_killed_member_leaves_no_orphan_and_its_event_is_handled_again, commands_of_different_keys_run_at_once,
    told_once_it_finishes_and_told_twice_it_gives_back, two_members_share_the_slots,
};
use groups::{
    a_group_is_paused_and_resumed, a_push_keeps_its_secret, a_reset_shows_before_and_after,
    groups_are_shown_slot_by_slot,
};
use publish::{a_file_of_events_is_published_in_order, events_are_published_as_the_options_say};
use support::{World, refused, said};
use tail::{a_tail_begins_where_it_is_told, a_tail_follows};
use topics::topics_are_made_set_and_deleted;

on_every_store!(
    topics_are_made_set_and_deleted,
    events_are_published_as_the_options_say,
    a_file_of_events_is_published_in_order,
    a_tail_begins_where_it_is_told,
    a_tail_follows,
    groups_are_shown_slot_by_slot,
    a_group_is_paused_and_resumed,
    a_reset_shows_before_and_after,
    a_push_keeps_its_secret,
    a_command_runs_for_each_event_in_the_order_of_its_key,
    commands_of_different_keys_run_at_once,
    a_failing_key_waits_while_the_others_go_on_and_a_replay_restores_its_order,
    told_once_it_finishes_and_told_twice_it_gives_back,
    a_killed_member_leaves_no_orphan_and_its_event_is_handled_again,
    two_members_share_the_slots,
);

/// Publishes; the number of the event.
fn publish(world: &World, args: &[&str]) -> String {
    let printed = world.ok(&[&["events", "publish"], args].concat());
    let id = printed.trim().to_owned();
    assert!(id.parse::<u64>().is_ok(), "the number, and nothing else: {printed:?}");
    id
}

/// Lines of JSON.
fn lines(text: &str) -> Vec<serde_json::Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// Everything in a topic.
fn all(world: &World, topic: &str) -> Vec<serde_json::Value> {
    lines(&world.ok(&["events", "tail", topic, "--from", "earliest", "--no-follow", "-o", "json"]))
}

fn group(world: &World, topic: &str, name: &str) -> serde_json::Value {
    world.json(&["events", "groups", "show", topic, name, "-o", "json"])
}

#[test]
fn bad_input_names_itself_and_the_remedy() {
    let world = World::sqlite();
    world.ok(&["events", "topics", "create", "orders", "--max-bytes", "64"]);
    world.ok(&["events", "groups", "set", "orders", "mailer"]);
    let write = |name: &str, text: &str| {
        std::fs::write(world.path(name), text).expect("a file");
        world.path(name).display().to_string()
    };
    let bad = write("bad.jsonl", "{\"type\":\"a\"}\n\n{\"kind\":\"a\"}\n");
    let control = write("control.jsonl", "{\"type\":\"a\"}\n{\"type\":\"a\",\"key\":\"a\\nb\"}\n");
    let both = write("both.jsonl", "{\"type\":\"a\",\"payload\":1,\"payload_base64\":\"AA==\"}\n");
    let long = write("long.json", &format!("\"{}\"", "x".repeat(2 << 20)));
    let fits_not = format!("\"{}\"", "x".repeat(64));
    let secret = write("short.secret", "tooshort\n");
    let odd = write("odd.secret", "whsec_not base64!\n");
    let cases: &[(&[&str], &[&str])] = &[
        (&["publish", "nowhere", "--type", "a"], &["no topic nowhere", "topics create nowhere"]),
        (&["publish", "orders"], &["--type"]),
        (&["publish", "two words", "--type", "a"], &["two words", "' '"]),
        (&["publish", "orders", "--type", "a", "--payload", "{to:"], &["--payload", "not JSON", "@FILE"]),
        (
            &["publish", "orders", "--type", "a", "--payload", &fits_not],
            &["66 bytes", "at most 64", "max_bytes"],
        ),
        (&["publish", "orders", "--type", "a", "--payload", &format!("@{long}")], &["1048576", "elsewhere"]),
        (&["publish", "orders", "--type", "a\nb"], &["type", "control character"]),
        (&["publish", "orders", "--type", "a", "--header", "trace"], &["trace", "KEY=VALUE"]),
        (&["publish", "orders", "--type", "a", "--bytes", "/no/such"], &["/no/such", "No such file"]),
        (&["publish", "orders", "-f", &bad], &["line 3", "kind", "--help"]),
        (&["publish", "orders", "-f", &control], &["line 2", "its key", "control character"]),
        (&["publish", "orders", "-f", &both], &["line 1", "payload_base64"]),
        (&["tail", "nowhere"], &["no topic nowhere"]),
        (&["tail", "orders", "--from", "noon"], &["noon", "earliest", "2030-01-31T09:30:00Z", "2h"]),
        (&["topics", "show", "nowhere"], &["no topic nowhere", "topics create"]),
        (&["topics", "create", "other", "--slots", "5000"], &["5000", "1024"]),
        (&["topics", "create", "orders", "--slots", "8"], &["64 slots", "keeps them"]),
        (&["topics", "create", "orders", "--keep", "1d"], &["already", "topics set orders"]),
        (&["topics", "set", "orders", "--keep-unread", "1h"], &["keep_unread_ms", "raise it"]),
        (&["topics", "set", "orders", "--max-bytes", "2MiB"], &["2097152", "1048576"]),
        (&["topics", "delete", "orders"], &["1 group", "--force"]),
        (&["groups", "show", "orders", "nobody"], &["no group orders/nobody", "tenure events groups"]),
        (&["groups", "show", "nowhere", "nobody"], &["no topic nowhere"]),
        (&["groups", "set", "orders", "mailer", "--max-attempts", "0"], &["0"]),
        (
            &["groups", "set", "orders", "mailer", "--backoff", "1m", "--max-backoff", "1s"],
            &["60000", "most_ms"],
        ),
        (&["reset", "orders", "mailer"], &["--to"]),
        (&["reset", "orders", "nobody", "--to", "earliest"], &["no group orders/nobody"]),
        (&["reset", "orders", "mailer", "--to", "latest", "--slot", "64"], &["no slot 64", "counted from 0"]),
        (&["dead", "show", "orders", "mailer", "4711"], &["4711", "dead list orders mailer"]),
        (&["dead", "replay", "orders", "mailer", "4711"], &["4711", "not dead"]),
        (&["dead", "drop", "orders", "mailer"], &["--all"]),
        (&["push", "set", "orders", "mailer", "--url", "ftp://x"], &["ftp://x", "https://"]),
        (
            &["push", "set", "orders", "mailer", "--url", "http://x", "--secret-file", &secret],
            &["8 bytes", "16"],
        ),
        (&["push", "set", "orders", "mailer", "--url", "http://x", "--secret-file", &odd], &["base64"]),
        (&["consume", "nowhere", "--group", "g", "--", "true"], &["no topic nowhere", "topics create"]),
        (&["consume", "orders", "--", "true"], &["--group"]),
        (&["consume", "orders", "--group", "g", "--lease", "1ms", "--", "true"], &["lease"]),
    ];
    for (args, words) in cases {
        refused(&world, &[&["events"], *args].concat(), 64, words);
    }
    assert!(all(&world, "orders").is_empty(), "nothing was begun");
    // A key is told, a secret is not.
    let output = world.run(&[
        "events",
        "push",
        "set",
        "orders",
        "mailer",
        "--url",
        "http://x",
        "--secret-file",
        &secret,
    ]);
    assert!(!said(&output).contains("tooshort"));
}
