//! `tenure events groups`, `reset` and `push`.

use std::process::Output;

use serde_json::json;

use crate::support::World;
use crate::{all, group, publish, refused, said};

/// Reads all that is unread, each time as the same member.
fn read_all(world: &World) -> Output {
    let read = world.run(&[
        "events",
        "consume",
        "orders",
        "-g",
        "mailer",
        "--member",
        "m",
        "--until-end",
        "--",
        "true",
    ]);
    assert!(read.status.success(), "{}", said(&read));
    read
}

/// Positions of a group, slot by slot.
fn positions(world: &World) -> Vec<u64> {
    let view = group(world, "orders", "mailer");
    let slots = view["slots"].as_array().expect("slots");
    slots.iter().map(|slot| slot["position"].as_u64().expect("a position")).collect()
}

fn fill(world: &World) {
    world.ok(&["events", "topics", "create", "orders", "--slots", "4"]);
    for n in 0..20 {
        publish(
            world,
            &["orders", "--type", "made", "--key", &format!("key-{n}"), "--payload", &n.to_string()],
        );
    }
}

pub fn groups_are_shown_slot_by_slot(world: &World) {
    assert!(world.ok(&["events", "groups"]).contains("events consume"), "an empty list teaches");
    fill(world);
    world.ok(&["events", "groups", "set", "orders", "mailer", "--max-attempts", "3", "--backoff", "2m"]);
    let view = group(world, "orders", "mailer");
    assert_eq!(
        view["settings"],
        json!({"max_attempts": 3, "backoff": {"first_ms": 120_000, "most_ms": 120_000}})
    );
    world.ok(&["events", "groups", "set", "orders", "mailer", "--max-attempts", "7"]);
    assert_eq!(
        group(world, "orders", "mailer")["settings"]["backoff"]["first_ms"],
        json!(120_000),
        "what is not named stays"
    );
    let unread: u64 =
        view["slots"].as_array().expect("slots").iter().filter_map(|slot| slot["lag"].as_u64()).sum();
    assert_eq!(unread, 20);
    let list = world.ok(&["events", "groups", "list"]);
    for words in ["orders", "mailer", "20", "nobody reads"] {
        assert!(list.contains(words), "{words:?} in\n{list}");
    }
    read_all(world);
    let shown = world.ok(&["events", "groups", "show", "orders", "mailer"]);
    let header = "SLOT  OFFSET  END  LAG  BEHIND  TOKEN  MEMBER".split_whitespace().collect::<Vec<_>>();
    assert!(shown.lines().any(|line| line.split_whitespace().collect::<Vec<_>>() == header), "{shown}");
    assert!(shown.contains("nothing unread"), "{shown}");
    assert!(!world.ok(&["events", "groups", "show", "orders", "mailer", "--lagging"]).contains("SLOT"));
    // A group that is made beforehand begins with what comes.
    world.ok(&["events", "groups", "set", "orders", "audit", "--from", "latest"]);
    assert!(world.ok(&["events", "groups", "show", "orders", "audit"]).contains("nothing unread"));
    world.ok(&["events", "groups", "delete", "orders", "audit"]);
    refused(world, &["events", "groups", "show", "orders", "audit"], 64, &["no group orders/audit"]);
}

pub fn a_group_is_paused_and_resumed(world: &World) {
    fill(world);
    world.ok(&["events", "groups", "set", "orders", "mailer"]);
    world.ok(&["events", "groups", "pause", "orders", "mailer", "--reason", "provider is down"]);
    assert!(said(&world.run(&["events", "groups", "pause", "orders", "mailer"])).contains("already"));
    assert!(world.ok(&["events", "groups", "show", "orders", "mailer"]).contains("provider is down"));
    assert!(world.ok(&["events", "groups"]).contains("paused"));
    world.ok(&["events", "groups", "resume", "orders", "mailer"]);
    assert!(said(&world.run(&["events", "groups", "resume", "orders", "mailer"])).contains("not paused"));
    read_all(world);
}

pub fn a_reset_shows_before_and_after(world: &World) {
    fill(world);
    read_all(world);
    let read = positions(world);
    assert!(read.iter().all(|position| *position > 0));
    let dry = world.ok(&["events", "reset", "orders", "mailer", "--to", "earliest", "--dry-run"]);
    for words in
        ["BEFORE", "AFTER", "reads again", "4 slots of orders/mailer would move", "nothing was changed"]
    {
        assert!(dry.contains(words), "{words:?} in\n{dry}");
    }
    assert_eq!(positions(world), read, "a dry run changes nothing");
    let told =
        world.json(&["events", "reset", "orders", "mailer", "--to", "earliest", "--slot", "2", "-o", "json"]);
    assert_eq!(
        told,
        json!({
            "group": {"topic": {"namespace": "default", "name": "orders"}, "name": "mailer"}, "dry_run": false,
            "slots": [{"slot": 2, "from": read[2], "to": 0}],
        })
    );
    assert_eq!(positions(world), [read[0], read[1], 0, read[3]]);
    world.ok(&["events", "reset", "orders", "mailer", "--to", "latest"]);
    assert_eq!(positions(world), read);
    world.ok(&["events", "reset", "orders", "mailer", "--to", "1h"]);
    assert_eq!(positions(world), [0; 4], "an hour ago there was nothing yet");
    let middle = all(world, "orders")[9]["position"].as_u64().expect("a position");
    world.ok(&["events", "reset", "orders", "mailer", "--to", &middle.to_string()]);
    assert!(positions(world).iter().all(|position| *position <= middle), "{:?}", positions(world));
    // What is read again is run again, and only that.
    let unread: u64 = {
        let view = group(world, "orders", "mailer");
        view["slots"].as_array().expect("slots").iter().filter_map(|slot| slot["lag"].as_u64()).sum()
    };
    let output = read_all(world);
    assert!(
        said(&output).contains(&format!("{unread} events done, 0 failed")),
        "{unread}: {}",
        said(&output)
    );
    let nothing = world.ok(&["events", "reset", "orders", "mailer", "--to", "latest"]);
    assert!(nothing.contains("there already"), "{nothing}");
}

pub fn a_push_keeps_its_secret(world: &World) {
    world.ok(&["events", "topics", "create", "orders"]);
    world.ok(&["events", "groups", "set", "orders", "mailer"]);
    // Nobody is there; nothing is published either.
    let made = world.ok(&[
        "events",
        "push",
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
    assert_eq!(view["push"], json!({"url": "https://hooks.invalid/hook", "timeout_ms": 2000}));
    assert!(
        world
            .ok(&["events", "groups", "show", "orders", "mailer"])
            .contains("pushed to https://hooks.invalid/hook")
    );
    // To change something else is not to change the secret: the receiver would refuse all that comes.
    let address = ["--url", "https://hooks.invalid/hook"];
    let set = |more: &[&str]| {
        world.ok(&[&["events", "push", "set", "orders", "mailer"], &address[..], more].concat())
    };
    assert_eq!(set(&["--timeout", "3s"]), "", "no secret was made");
    assert_eq!(group(world, "orders", "mailer")["push"]["timeout_ms"], json!(3000));
    let kept = world.contents();
    let kept: Vec<_> = kept.match_indices("whsec_").map(|(at, _)| kept.get(at..at + secret.len())).collect();
    assert!(
        !kept.is_empty() && kept.iter().all(|it| *it == Some(&secret)),
        "and no other one was ever there: {kept:?}"
    );
    let anew = set(&["--new-secret"]).trim().to_owned();
    assert!(anew.starts_with("whsec_") && anew != secret, "{anew}");
    std::fs::write(world.path("hook.secret"), "a secret of sixteen bytes\n").expect("a file");
    let path = world.path("hook.secret").display().to_string();
    let set = world.run(&[
        "events",
        "push",
        "set",
        "orders",
        "mailer",
        "--url",
        "https://hooks.invalid/",
        "--secret-file",
        &path,
    ]);
    assert!(
        set.status.success() && !said(&set).contains("sixteen") && !said(&set).contains("whsec_"),
        "{}",
        said(&set)
    );
    world.ok(&["events", "push", "unset", "orders", "mailer"]);
    assert_eq!(group(world, "orders", "mailer")["push"], json!(null));
    // Straight in the database nobody refuses it, and only the log of a server told that it fails.
    let private = ["events", "push", "set", "orders", "mailer", "--url", "http://10.0.0.7/hook"];
    assert!(world.store.starts_with("http") || said(&world.run(&private)).contains("--push-private"));
    world.run(&["events", "push", "unset", "orders", "mailer"]);
    assert!(said(&world.run(&["events", "push", "unset", "orders", "mailer"])).contains("was not pushed"));
}
