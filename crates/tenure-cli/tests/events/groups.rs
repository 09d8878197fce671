//! `tenure events groups` and `webhook`.

use std::process::Output;

use serde_json::json;

use crate::support::World;
use crate::{all, group, output_text, publish, refused};

/// Consumes all unread events as the same member.
fn read_all(world: &World) -> Output {
    let read = world.run(&[
        "events",
        "consume",
        "orders",
        "-g",
        "mailer",
        "--name",
        "m",
        "--exit-when-idle",
        "--",
        "true",
    ]);
    assert!(read.status.success(), "{}", output_text(&read));
    read
}

/// Committed offsets of a group by partition.
fn offsets(world: &World) -> Vec<u64> {
    let view = group(world, "orders", "mailer");
    let partitions = view["partitions"].as_array().expect("partitions");
    partitions.iter().map(|it| it["committed_offset"].as_u64().expect("an offset")).collect()
}

fn fill(world: &World) {
    world.ok(&["events", "topics", "create", "orders", "--partitions", "4"]);
    for n in 0..20 {
        publish(
            world,
            &["orders", "--type", "made", "--key", &format!("key-{n}"), "--payload", &n.to_string()],
        );
    }
}

pub fn groups_are_shown_by_partition(world: &World) {
    assert!(world.ok(&["events", "groups"]).contains("events consume"), "an empty list shows an example");
    fill(world);
    world.ok(&[
        "events",
        "groups",
        "set",
        "orders",
        "mailer",
        "--max-attempts",
        "3",
        "--initial-backoff",
        "2m",
    ]);
    let view = group(world, "orders", "mailer");
    assert_eq!(
        view["settings"],
        json!({"max_attempts": 3, "backoff": {"initial_ms": 120_000, "max_ms": 120_000}})
    );
    world.ok(&["events", "groups", "set", "orders", "mailer", "--max-attempts", "7"]);
    assert_eq!(
        group(world, "orders", "mailer")["settings"]["backoff"]["initial_ms"],
        json!(120_000),
        "settings without an option keep their values"
    );
    let unread: u64 = view["partitions"]
        .as_array()
        .expect("partitions")
        .iter()
        .filter_map(|it| it["lag_events"].as_u64())
        .sum();
    assert_eq!(unread, 20);
    let list = world.ok(&["events", "groups", "list"]);
    for words in ["orders", "mailer", "20", "no members"] {
        assert!(list.contains(words), "{words:?} in\n{list}");
    }
    read_all(world);
    let shown = world.ok(&["events", "groups", "show", "orders", "mailer"]);
    let header = "PARTITION  OFFSET  END  LAG  LAG AGE  TOKEN  MEMBER".split_whitespace().collect::<Vec<_>>();
    assert!(shown.lines().any(|line| line.split_whitespace().collect::<Vec<_>>() == header), "{shown}");
    assert!(shown.contains("no lag"), "{shown}");
    assert!(!world.ok(&["events", "groups", "show", "orders", "mailer", "--lagging"]).contains("PARTITION"));
    // A group created with --from latest starts with new events.
    world.ok(&["events", "groups", "set", "orders", "audit", "--from", "latest"]);
    assert!(world.ok(&["events", "groups", "show", "orders", "audit"]).contains("no lag"));
    world.ok(&["events", "groups", "delete", "orders", "audit"]);
    refused(
        world,
        &["events", "groups", "show", "orders", "audit"],
        64,
        &["group orders/audit does not exist"],
    );
}

pub fn a_group_is_paused_and_resumed(world: &World) {
    fill(world);
    world.ok(&["events", "groups", "set", "orders", "mailer"]);
    world.ok(&["events", "groups", "pause", "orders", "mailer", "--reason", "provider is down"]);
    assert!(output_text(&world.run(&["events", "groups", "pause", "orders", "mailer"])).contains("already"));
    assert!(world.ok(&["events", "groups", "show", "orders", "mailer"]).contains("provider is down"));
    assert!(world.ok(&["events", "groups"]).contains("paused"));
    world.ok(&["events", "groups", "resume", "orders", "mailer"]);
    assert!(
        output_text(&world.run(&["events", "groups", "resume", "orders", "mailer"])).contains("not paused")
    );
    read_all(world);
}

pub fn a_reset_prints_the_offsets_before_and_after(world: &World) {
    fill(world);
    read_all(world);
    let read = offsets(world);
    assert!(read.iter().all(|offset| *offset > 0));
    let dry = world.ok(&["events", "groups", "reset", "orders", "mailer", "--to", "earliest", "--dry-run"]);
    for words in
        ["BEFORE", "AFTER", "reads again", "4 partitions of orders/mailer would move", "nothing was changed"]
    {
        assert!(dry.contains(words), "{words:?} in\n{dry}");
    }
    assert_eq!(offsets(world), read, "a dry run changes nothing");
    let text = world.json(&[
        "events",
        "groups",
        "reset",
        "orders",
        "mailer",
        "--to",
        "earliest",
        "--partition",
        "2",
        "-o",
        "json",
    ]);
    assert_eq!(
        text,
        json!({
            "group": {"topic": {"namespace": "default", "name": "orders"}, "name": "mailer"}, "dry_run": false,
            "partitions": [{"partition": 2, "from_offset": read[2], "to_offset": 0}],
        })
    );
    assert_eq!(offsets(world), [read[0], read[1], 0, read[3]]);
    world.ok(&["events", "groups", "reset", "orders", "mailer", "--to", "latest"]);
    assert_eq!(offsets(world), read);
    world.ok(&["events", "groups", "reset", "orders", "mailer", "--to", "1h"]);
    assert_eq!(offsets(world), [0; 4], "an hour ago the topic was empty");
    let middle = all(world, "orders")[9]["offset"].as_u64().expect("an offset");
    world.ok(&["events", "groups", "reset", "orders", "mailer", "--to", &middle.to_string()]);
    assert!(offsets(world).iter().all(|offset| *offset <= middle), "{:?}", offsets(world));
    // Exactly the events after the new offsets are processed again.
    let unread: u64 = {
        let view = group(world, "orders", "mailer");
        view["partitions"]
            .as_array()
            .expect("partitions")
            .iter()
            .filter_map(|it| it["lag_events"].as_u64())
            .sum()
    };
    let output = read_all(world);
    assert!(
        output_text(&output).contains(&format!("{unread} events processed, 0 failed")),
        "{unread}: {}",
        output_text(&output)
    );
    let nothing = world.ok(&["events", "groups", "reset", "orders", "mailer", "--to", "latest"]);
    assert!(nothing.contains("no offset changes"), "{nothing}");
}

pub fn a_webhook_keeps_its_secret(world: &World) {
    world.ok(&["events", "topics", "create", "orders"]);
    world.ok(&["events", "groups", "set", "orders", "mailer"]);
    // No receiver is needed: no event is published.
    let made = world.ok(&[
        "events",
        "webhook",
        "set",
        "orders",
        "mailer",
        "--url",
        "https://hooks.invalid/hook",
        "--timeout",
        "2s",
    ]);
    let secret = made.trim().to_owned();
    assert!(secret.starts_with("whsec_") && secret.len() > 40, "{made}");
    let view = group(world, "orders", "mailer");
    assert_eq!(view["webhook"], json!({"url": "https://hooks.invalid/hook", "timeout_ms": 2000}));
    assert!(
        world
            .ok(&["events", "groups", "show", "orders", "mailer"])
            .contains("webhook https://hooks.invalid/hook")
    );
    // A change of another setting keeps the secret; otherwise the receiver would reject every event.
    let address = ["--url", "https://hooks.invalid/hook"];
    let set = |more: &[&str]| {
        world.ok(&[&["events", "webhook", "set", "orders", "mailer"], &address[..], more].concat())
    };
    assert_eq!(set(&["--timeout", "3s"]), "", "no new secret");
    assert_eq!(group(world, "orders", "mailer")["webhook"]["timeout_ms"], json!(3000));
    let kept = world.contents();
    let kept: Vec<_> = kept.match_indices("whsec_").map(|(at, _)| kept.get(at..at + secret.len())).collect();
    assert!(
        !kept.is_empty() && kept.iter().all(|it| *it == Some(&secret)),
        "the store has no other secret: {kept:?}"
    );
    let anew = set(&["--rotate-secret"]).trim().to_owned();
    assert!(anew.starts_with("whsec_") && anew != secret, "{anew}");
    std::fs::write(world.path("hook.secret"), "a secret of sixteen bytes\n").expect("a file");
    let path = world.path("hook.secret").display().to_string();
    let set = world.run(&[
        "events",
        "webhook",
        "set",
        "orders",
        "mailer",
        "--url",
        "https://hooks.invalid/",
        "--secret-file",
        &path,
    ]);
    assert!(
        set.status.success()
            && !output_text(&set).contains("sixteen")
            && !output_text(&set).contains("whsec_"),
        "{}",
        output_text(&set)
    );
    world.ok(&["events", "webhook", "delete", "orders", "mailer"]);
    assert_eq!(group(world, "orders", "mailer")["webhook"], json!(null));
    // The database accepts a private address; the command warns that servers reject it.
    let private = ["events", "webhook", "set", "orders", "mailer", "--url", "http://10.0.0.7/hook"];
    assert!(
        world.store.starts_with("http")
            || output_text(&world.run(&private)).contains("--allow-private-webhooks")
    );
    world.run(&["events", "webhook", "delete", "orders", "mailer"]);
    assert!(
        output_text(&world.run(&["events", "webhook", "delete", "orders", "mailer"]))
            .contains("had no webhook")
    );
}
