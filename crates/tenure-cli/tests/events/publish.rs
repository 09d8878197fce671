//! `tenure events publish`.

use std::io::Write;
use std::process::Stdio;

use serde_json::json;

use crate::support::World;
use crate::{all, lines, output_text, publish, refused};

pub fn options_set_the_fields_of_an_event(world: &World) {
    world.ok(&["events", "topics", "create", "orders"]);
    let args = [
        "orders",
        "--type",
        "order.paid",
        "--key",
        "order-7",
        "--payload",
        r#"{"cents": 4200}"#,
        "--header",
        "trace=ab",
        "--header",
        "by=ada",
        "--idempotency-key",
        "pay-7",
        "--leader-token",
        "1.7",
    ];
    let id = publish(world, &args);
    assert_eq!(publish(world, &args), id, "the same idempotency key returns the first event");
    let again = world.run(&[&["events", "publish"], &args[..]].concat());
    assert!(output_text(&again).contains("already exists"), "{}", output_text(&again));
    std::fs::write(world.path("page.bin"), [0, 159, 146, 150]).expect("a file");
    publish(
        world,
        &["orders", "--type", "page", "--payload-file", &world.path("page.bin").display().to_string()],
    );
    let text = world.json(&["events", "publish", "orders", "--type", "plain", "-o", "json"]);
    assert_eq!(text["created"], json!(true));

    let mut events = all(world, "orders");
    events.sort_by_key(|event| event["id"].as_u64());
    let text = |event: &serde_json::Value| {
        let mut event = event.clone();
        for field in ["id", "partition", "offset", "published_at_ms"] {
            let _ = event.as_object_mut().and_then(|event| event.remove(field));
        }
        event
    };
    assert_eq!(
        events.iter().map(text).collect::<Vec<_>>(),
        [
            json!({"key": "order-7", "type": "order.paid", "payload": {"cents": 4200}, "headers": {"by": "ada", "trace": "ab"},
                   "leader_token": (1_u64 << 40) + 7}),
            json!({"key": null, "type": "page", "payload_base64": "AJ+Slg=="}),
            json!({"key": null, "type": "plain", "payload": {}}),
        ]
    );
}

pub fn a_file_of_events_is_published_in_order(world: &World) {
    world.ok(&["events", "topics", "create", "orders"]);
    // More than one batch; an object overrides the options.
    let mut text = String::new();
    for n in 0..12_000 {
        let kind = if n % 1_000 == 0 { ",\"type\":\"special\"" } else { "" };
        text.push_str(&format!("{{\"payload\":{n}{kind}}}\n"));
    }
    let mut command = world
        .command(&["events", "publish", "orders", "-f", "-", "--type", "made", "--key", "k", "-o", "json"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("tenure runs");
    let mut input = child.stdin.take().expect("its input");
    let feed = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = child.wait_with_output().expect("it ends");
    feed.join().expect("no panic").expect("it reads all");
    assert!(output.status.success(), "{}", output_text(&output));
    let text = lines(&String::from_utf8_lossy(&output.stdout));
    assert_eq!(text.len(), 12_000);
    let events = all(world, "orders");
    assert!(
        events.iter().enumerate().all(|(n, event)| event["payload"] == json!(n)),
        "in the order of the file"
    );
    assert_eq!(events.iter().filter(|event| event["type"] == "special").count(), 12);

    // The second batch is rejected: the first stays published, which the error states.
    let good = "{\"type\":\"a\"}\n".repeat(10_000);
    std::fs::write(world.path("half.jsonl"), format!("{good}{{\"type\":\"\\u0001\"}}\n")).expect("a file");
    let path = world.path("half.jsonl").display().to_string();
    let words = ["line 10001", "type", "10000 events before are published", "idempotency_key"];
    refused(world, &["events", "publish", "orders", "-f", &path], 64, &words);
}
