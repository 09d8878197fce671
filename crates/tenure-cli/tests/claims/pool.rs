//! `tenure pool`.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::{Candidate, World, until};
use crate::{refused, said};

fn request(world: &World, args: &[&str]) -> Value {
    world.json(&[&["pool", "request", "hosts"], args, &["-o", "json"]].concat())
}

pub fn a_pool_hands_out_what_fits_and_takes_it_back(world: &World) {
    assert!(world.ok(&["pool", "list"]).contains("tenure pool add"), "an empty list teaches");
    world.ok(&["pool", "add", "hosts", "node-1", "--tag", "gpu", "--tag", "eu"]);
    world.ok(&["pool", "add", "hosts", "node-2", "node-3", "--tag", "eu"]);
    world.ok(&["pool", "add", "hosts", "node-3", "--tag", "eu", "--disabled"]);
    let got = request(world, &["--require", "gpu", "--owner", "ci", "--key", "build-7", "--hold", "1h"]);
    assert_eq!((&got["state"], &got["resource"]), (&json!("granted"), &json!("node-1")));
    let again = request(world, &["--require", "gpu", "--owner", "ci", "--key", "build-7"]);
    assert_eq!((&again["id"], &again["token"]), (&got["id"], &got["token"]), "the same key, the same claim");
    refused(world, &["pool", "request", "hosts", "--require", "gpu"], 75, &["nothing fitting", "called off"]);
    refused(world, &["pool", "request", "hosts", "--require", "gpu", "--wait", "200ms"], 75, &["in time"]);
    let shown = world.ok(&["pool", "show", "hosts"]);
    for word in ["node-1", "held", "ci", "free", "off", "base + age_minutes"] {
        assert!(shown.contains(word), "{word} in\n{shown}");
    }
    assert!(!shown.contains("WAITS"), "those that gave up do not wait: {shown}");
    assert!(world.ok(&["pool", "list"]).contains("hosts"));

    let (id, token) = (got["id"].to_string(), got["token"].to_string());
    refused(
        world,
        &["pool", "release", &id, "--token", &token, "--owner", "mallory"],
        76,
        &["ci's", "mallory"],
    );
    refused(world, &["pool", "release", &id, "--owner", "ci"], 76, &["--token"]);
    refused(world, &["pool", "remove", "hosts", "node-1"], 64, &["node-1"]);
    world.ok(&["pool", "extend", &id, "--token", &token, "--owner", "ci", "--hold", "2h"]);
    world.ok(&["pool", "set", "hosts", "--cool-down", "1h", "--priority", "base + 2 * age_minutes"]);
    world.ok(&["pool", "release", &id, "--token", &token, "--owner", "ci"]);
    refused(world, &["pool", "release", &id, "--token", &token, "--owner", "ci"], 76, &["released"]);
    refused(world, &["pool", "request", "hosts", "--require", "gpu"], 75, &[]);
    assert!(world.ok(&["pool", "show", "hosts"]).contains("resting"));
    world.ok(&["pool", "remove", "hosts", "node-2"]);
    refused(world, &["pool", "remove", "hosts", "node-2"], 64, &["no node-2", "pool show"]);
    refused(world, &["pool", "release", "4711"], 64, &["4711"]);
}

pub fn a_request_can_be_left_waiting(world: &World) {
    world.ok(&["pool", "add", "hosts", "node-1"]);
    let first = request(world, &["--owner", "a", "--hold", "1h"]);
    let left =
        world.run(&["pool", "request", "hosts", "--owner", "b", "--key", "mine", "--keep-waiting", "1h"]);
    assert_eq!(left.status.code(), Some(75), "{}", said(&left));
    assert!(said(&left).contains("--key mine"), "{}", said(&left));
    let shown = world.ok(&["pool", "show", "hosts"]);
    assert!(shown.contains("WAITS") && shown.contains('b'), "{shown}");
    let (id, token) = (first["id"].to_string(), first["token"].to_string());
    world.ok(&["pool", "release", &id, "--token", &token, "--owner", "a"]);
    let got = request(world, &["--owner", "b", "--key", "mine", "--wait", "30s"]);
    assert_eq!((&got["resource"], &got["state"]), (&json!("node-1"), &json!("granted")));
}

pub fn a_request_ends_with_who_waits_for_it(world: &World) {
    world.ok(&["pool", "add", "hosts", "node-1"]);
    request(world, &["--owner", "a", "--hold", "1h"]);
    let mut command = world.command(&["pool", "request", "hosts", "--owner", "b", "--wait", "1h"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut waits = Candidate { process: command.spawn().expect("tenure runs"), name: "b".into() };
    let shown = || world.ok(&["pool", "show", "hosts"]);
    until("b waits", || shown().contains("WAITS"), shown);
    waits.signal("INT");
    assert_eq!(waits.wait(), Some(130));
    assert!(!shown().contains("WAITS"), "{}", shown());
}
