//! `tenure pools`.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::{Candidate, World, until};
use crate::{output_text, refused};

fn request(world: &World, args: &[&str]) -> Value {
    world.json(&[&["pools", "request", "hosts"], args, &["-o", "json"]].concat())
}

pub fn a_pool_grants_matching_resources(world: &World) {
    assert!(
        world.ok(&["pools", "list"]).contains("tenure pools add-resource"),
        "an empty list shows an example"
    );
    world.ok(&["pools", "add-resource", "hosts", "node-1", "--tag", "gpu", "--tag", "eu"]);
    world.ok(&["pools", "add-resource", "hosts", "node-2", "node-3", "--tag", "eu"]);
    world.ok(&["pools", "add-resource", "hosts", "node-3", "--tag", "eu", "--disabled"]);
    let got = request(
        world,
        &["--required-tag", "gpu", "--owner", "ci", "--idempotency-key", "build-7", "--claim-timeout", "1h"],
    );
    assert_eq!((&got["state"], &got["resource"]), (&json!("granted"), &json!("node-1")));
    let again = request(world, &["--required-tag", "gpu", "--owner", "ci", "--idempotency-key", "build-7"]);
    assert_eq!(
        (&again["id"], &again["token"]),
        (&got["id"], &got["token"]),
        "the same idempotency key returns the same request"
    );
    refused(
        world,
        &["pools", "request", "hosts", "--required-tag", "gpu"],
        75,
        &["no matching resource", "cancelled"],
    );
    refused(
        world,
        &["pools", "request", "hosts", "--required-tag", "gpu", "--wait", "200ms"],
        75,
        &["in time"],
    );
    let shown = world.ok(&["pools", "show", "hosts"]);
    for word in ["node-1", "held", "ci", "free", "disabled", "base_priority + age_minutes"] {
        assert!(shown.contains(word), "{word} in\n{shown}");
    }
    assert!(!shown.contains("WAITING"), "cancelled requests do not wait: {shown}");
    assert!(world.ok(&["pools", "list"]).contains("hosts"));

    let (id, token) = (got["id"].to_string(), got["token"].to_string());
    refused(
        world,
        &["pools", "release", &id, "--token", &token, "--owner", "mallory"],
        76,
        &["belongs to ci", "mallory"],
    );
    refused(world, &["pools", "release", &id, "--owner", "ci"], 76, &["--token"]);
    refused(world, &["pools", "remove-resource", "hosts", "node-1"], 64, &["node-1"]);
    world.ok(&["pools", "heartbeat", &id, "--token", &token, "--owner", "ci", "--claim-timeout", "2h"]);
    world.ok(&[
        "pools",
        "set",
        "hosts",
        "--cooldown",
        "1h",
        "--priority-formula",
        "base_priority + 2 * age_minutes",
    ]);
    world.ok(&["pools", "release", &id, "--token", &token, "--owner", "ci"]);
    refused(world, &["pools", "release", &id, "--token", &token, "--owner", "ci"], 76, &["released"]);
    refused(world, &["pools", "request", "hosts", "--required-tag", "gpu"], 75, &[]);
    assert!(world.ok(&["pools", "show", "hosts"]).contains("cooldown"));
    world.ok(&["pools", "remove-resource", "hosts", "node-2"]);
    refused(
        world,
        &["pools", "remove-resource", "hosts", "node-2"],
        64,
        &["resource node-2 does not exist", "pools show"],
    );
    refused(world, &["pools", "release", "4711"], 64, &["4711"]);
}

pub fn a_request_can_stay_in_the_pool(world: &World) {
    world.ok(&["pools", "add-resource", "hosts", "node-1"]);
    let first = request(world, &["--owner", "a", "--claim-timeout", "1h"]);
    let left = world.run(&[
        "pools",
        "request",
        "hosts",
        "--owner",
        "b",
        "--idempotency-key",
        "mine",
        "--max-wait",
        "1h",
    ]);
    assert_eq!(left.status.code(), Some(75), "{}", output_text(&left));
    assert!(output_text(&left).contains("--idempotency-key mine"), "{}", output_text(&left));
    let shown = world.ok(&["pools", "show", "hosts"]);
    assert!(shown.contains("WAITING") && shown.contains('b'), "{shown}");
    let (id, token) = (first["id"].to_string(), first["token"].to_string());
    world.ok(&["pools", "release", &id, "--token", &token, "--owner", "a"]);
    let got = request(world, &["--owner", "b", "--idempotency-key", "mine", "--wait", "30s"]);
    assert_eq!((&got["resource"], &got["state"]), (&json!("node-1"), &json!("granted")));
}

pub fn a_signal_cancels_a_waiting_request(world: &World) {
    world.ok(&["pools", "add-resource", "hosts", "node-1"]);
    request(world, &["--owner", "a", "--claim-timeout", "1h"]);
    let mut command = world.command(&["pools", "request", "hosts", "--owner", "b", "--wait", "1h"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut waits = Candidate { process: command.spawn().expect("tenure runs"), name: "b".into() };
    let shown = || world.ok(&["pools", "show", "hosts"]);
    until("b waits", || shown().contains("WAITING"), shown);
    waits.signal("INT");
    assert_eq!(waits.wait(), Some(130));
    assert!(!shown().contains("WAITING"), "{}", shown());
}
