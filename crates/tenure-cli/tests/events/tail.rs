//! `tenure events tail`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::{Candidate, World};
use crate::{all, lines, publish};

fn tail(world: &World, args: &[&str]) -> Vec<Value> {
    let text = world.ok(&[&["events", "tail", "orders", "--no-follow", "-o", "json"], args].concat());
    lines(&text).iter().map(|event| event["payload"].clone()).collect()
}

pub fn a_tail_starts_at_the_requested_offset(world: &World) {
    world.ok(&["events", "topics", "create", "orders", "--partitions", "4"]);
    for n in 0..30 {
        let (key, kind) = (format!("key-{}", n % 7), if n % 3 == 0 { "fizz" } else { "plain" });
        publish(world, &["orders", "--type", kind, "--key", &key, "--payload", &n.to_string()]);
    }
    let numbers = |range: std::ops::Range<i32>| range.map(|n| json!(n)).collect::<Vec<_>>();
    assert_eq!(
        tail(world, &["--from", "earliest"]),
        numbers(0..30),
        "published one by one, so in this order"
    );
    assert_eq!(tail(world, &[]), numbers(20..30), "the last ten");
    assert_eq!(tail(world, &["-n", "3"]), numbers(27..30));
    assert_eq!(tail(world, &["-n", "100"]), numbers(0..30));
    assert_eq!(tail(world, &["-n", "0"]), numbers(0..0));
    assert_eq!(tail(world, &["--from", "latest"]), numbers(0..0));
    assert_eq!(tail(world, &["--from", "earliest", "--limit", "2"]), numbers(0..2));
    assert_eq!(tail(world, &["--from", "earliest", "--key", "key-3"]), [3, 10, 17, 24].map(|n| json!(n)));
    assert_eq!(tail(world, &["-n", "2", "--type", "fizz"]), [24, 27].map(|n| json!(n)));
    assert_eq!(tail(world, &["--from", "1h"]), numbers(0..30), "since an hour ago");
    assert_eq!(tail(world, &["--from", "2100-01-31T09:30:00Z"]), numbers(0..0));
    let events = all(world, "orders");
    let last = events[29]["offset"].to_string();
    assert_eq!(tail(world, &["--from", &last]), numbers(0..0), "after an offset");
    let before = (events[29]["offset"].as_u64().expect("an offset") - 1).to_string();
    assert_eq!(tail(world, &["--from", &before]), numbers(29..30));
    let people = world.ok(&["events", "tail", "orders", "--no-follow", "-n", "1"]);
    assert!(people.contains("key-1  plain  29"), "{people}");
}

pub fn a_tail_follows(world: &World) {
    world.ok(&["events", "topics", "create", "orders"]);
    publish(world, &["orders", "--type", "before"]);
    let mut command = world.command(&["events", "tail", "orders", "-o", "json"]);
    let mut process = command.stdout(Stdio::piped()).spawn().expect("tenure runs");
    let mut told = BufReader::new(process.stdout.take().expect("its output")).lines();
    let mut tail = Candidate { process, name: "tail".into() };
    let mut next = || {
        let line = told.next().expect("a line").expect("text");
        serde_json::from_str::<Value>(&line).expect("JSON")["type"].clone()
    };
    assert_eq!(next(), "before");
    for kind in ["one", "two"] {
        publish(world, &["orders", "--type", kind, "--key", "k"]);
        assert_eq!(next(), kind);
    }
    tail.signal("TERM");
    assert_eq!(tail.wait(), Some(0));
    assert_eq!(world.json(&["events", "groups", "-o", "json"]), json!([]), "it created no group");
}
