//! `tenure events` with real processes, on SQLite and PostgreSQL and through a server.

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
    a_failing_key_is_parked_while_others_continue_and_a_replay_restores_its_order,
    a_first_signal_drains_and_a_second_one_releases_the_event,
    a_killed_member_leaves_no_orphan_and_its_event_is_processed_again,
    commands_for_different_keys_run_concurrently, two_members_divide_the_partitions,
};
use groups::{
    a_group_is_paused_and_resumed, a_reset_prints_the_offsets_before_and_after, a_webhook_keeps_its_secret,
    groups_are_shown_by_partition,
};
use publish::{a_file_of_events_is_published_in_order, options_set_the_fields_of_an_event};
use support::{World, output_text, refused};
use tail::{a_tail_follows, a_tail_starts_at_the_requested_offset};
use topics::topics_are_created_changed_and_deleted;

on_every_store!(
    topics_are_created_changed_and_deleted,
    options_set_the_fields_of_an_event,
    a_file_of_events_is_published_in_order,
    a_tail_starts_at_the_requested_offset,
    a_tail_follows,
    groups_are_shown_by_partition,
    a_group_is_paused_and_resumed,
    a_reset_prints_the_offsets_before_and_after,
    a_webhook_keeps_its_secret,
    a_command_runs_for_each_event_in_the_order_of_its_key,
    commands_for_different_keys_run_concurrently,
    a_failing_key_is_parked_while_others_continue_and_a_replay_restores_its_order,
    a_first_signal_drains_and_a_second_one_releases_the_event,
    a_killed_member_leaves_no_orphan_and_its_event_is_processed_again,
    two_members_divide_the_partitions,
);

/// Publishes an event. Returns its id.
fn publish(world: &World, args: &[&str]) -> String {
    let printed = world.ok(&[&["events", "publish"], args].concat());
    let id = printed.trim().to_owned();
    assert!(id.parse::<u64>().is_ok(), "only the id: {printed:?}");
    id
}

/// Parses NDJSON.
fn lines(text: &str) -> Vec<serde_json::Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// All events of a topic.
fn all(world: &World, topic: &str) -> Vec<serde_json::Value> {
    lines(&world.ok(&["events", "tail", topic, "--from", "earliest", "--no-follow", "-o", "json"]))
}

fn group(world: &World, topic: &str, name: &str) -> serde_json::Value {
    world.json(&["events", "groups", "show", topic, name, "-o", "json"])
}

#[test]
fn invalid_input_is_named_with_advice() {
    let world = World::sqlite();
    world.ok(&["events", "topics", "create", "orders", "--max-payload-bytes", "64"]);
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
        (&["publish", "nowhere", "--type", "a"], &["topic nowhere does not exist", "topics create nowhere"]),
        (&["publish", "orders"], &["--type"]),
        (&["publish", "two words", "--type", "a"], &["two words", "' '"]),
        (&["publish", "orders", "--type", "a", "--payload", "{to:"], &["--payload", "not JSON", "@FILE"]),
        (&["publish", "orders", "--type", "a", "--payload", &fits_not], &["66", "64", "max_payload_bytes"]),
        (&["publish", "orders", "--type", "a", "--payload", &format!("@{long}")], &["1048576", "elsewhere"]),
        (&["publish", "orders", "--type", "a\nb"], &["type", "control character"]),
        (&["publish", "orders", "--type", "a", "--header", "trace"], &["trace", "KEY=VALUE"]),
        (&["publish", "orders", "--type", "a", "--payload-file", "/no/such"], &["/no/such", "No such file"]),
        (&["publish", "orders", "-f", &bad], &["line 3", "kind", "--help"]),
        (&["publish", "orders", "-f", &control], &["line 2", "key", "control character"]),
        (&["publish", "orders", "-f", &both], &["line 1", "payload_base64"]),
        (&["tail", "nowhere"], &["topic nowhere does not exist"]),
        (&["tail", "orders", "--from", "noon"], &["noon", "earliest", "2030-01-31T09:30:00Z", "2h"]),
        (&["topics", "show", "nowhere"], &["topic nowhere does not exist", "topics create"]),
        (&["topics", "create", "other", "--partitions", "5000"], &["5000", "1024"]),
        (&["topics", "create", "orders", "--partitions", "8"], &["64 partitions"]),
        (&["topics", "create", "orders", "--retention", "1d"], &["already", "topics set orders"]),
        (&["topics", "set", "orders", "--unread-retention", "1h"], &["unread_retention_ms"]),
        (&["topics", "set", "orders", "--max-payload-bytes", "2MiB"], &["2097152", "1048576"]),
        (&["topics", "delete", "orders"], &["1 group", "--force"]),
        (
            &["groups", "show", "orders", "missing"],
            &["group orders/missing does not exist", "tenure events groups"],
        ),
        (&["groups", "show", "nowhere", "missing"], &["topic nowhere does not exist"]),
        (&["groups", "set", "orders", "mailer", "--max-attempts", "0"], &["0"]),
        (
            &["groups", "set", "orders", "mailer", "--initial-backoff", "1m", "--max-backoff", "1s"],
            &["60000", "max_ms"],
        ),
        (&["groups", "reset", "orders", "mailer"], &["--to"]),
        (
            &["groups", "reset", "orders", "missing", "--to", "earliest"],
            &["group orders/missing does not exist"],
        ),
        (&["groups", "reset", "orders", "mailer", "--to", "latest", "--partition", "64"], &["partition 64"]),
        (&["dead-letters", "show", "orders", "mailer", "4711"], &["4711", "dead-letters list orders mailer"]),
        (&["dead-letters", "replay", "orders", "mailer", "4711"], &["4711", "not dead"]),
        (&["dead-letters", "drop", "orders", "mailer"], &["--all"]),
        (&["webhook", "set", "orders", "mailer", "--url", "ftp://x"], &["ftp://x", "https://"]),
        (
            &["webhook", "set", "orders", "mailer", "--url", "http://x", "--secret-file", &secret],
            &["8 bytes", "16"],
        ),
        (&["webhook", "set", "orders", "mailer", "--url", "http://x", "--secret-file", &odd], &["base64"]),
        (
            &["consume", "nowhere", "--group", "g", "--", "true"],
            &["topic nowhere does not exist", "topics create"],
        ),
        (&["consume", "orders", "--", "true"], &["--group"]),
        (&["consume", "orders", "--group", "g", "--lease", "1ms", "--", "true"], &["lease"]),
    ];
    for (args, words) in cases {
        refused(&world, &[&["events"], *args].concat(), 64, words);
    }
    assert!(all(&world, "orders").is_empty(), "nothing was published");
    // The error does not print the secret.
    let output = world.run(&[
        "events",
        "webhook",
        "set",
        "orders",
        "mailer",
        "--url",
        "http://x",
        "--secret-file",
        &secret,
    ]);
    assert!(!output_text(&output).contains("tooshort"));
}
