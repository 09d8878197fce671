//! `tenure events topics`.

use serde_json::json;

use crate::support::World;
use crate::{output_text, publish, refused};

pub fn topics_are_created_changed_and_deleted(world: &World) {
    assert!(world.ok(&["events", "topics"]).contains("topics create"), "an empty list shows an example");
    let made = world.json(&[
        "events",
        "topics",
        "create",
        "orders",
        "--partitions",
        "8",
        "--retention",
        "1d",
        "--max-payload-bytes",
        "64KiB",
        "-o",
        "json",
    ]);
    let wanted = json!({"partitions": 8, "retention_ms": 86_400_000, "unread_retention_ms": null, "max_payload_bytes": 65_536});
    assert_eq!(made["settings"], wanted);
    world.ok(&["events", "topics", "set", "orders", "--unread-retention", "30d"]);
    let set = world.json(&["events", "topics", "show", "orders", "-o", "json"]);
    let wanted = json!({"partitions": 8, "retention_ms": 86_400_000, "unread_retention_ms": 2_592_000_000_u64, "max_payload_bytes": 65_536});
    assert_eq!(
        (&set["settings"], &set["event_count"]),
        (&wanted, &json!(0)),
        "settings without an option keep their values"
    );
    world.ok(&["events", "topics", "set", "orders", "--unread-retention", "none"]);
    let again = world.run(&[
        "events",
        "topics",
        "create",
        "orders",
        "--partitions",
        "8",
        "--retention",
        "1d",
        "--max-payload-bytes",
        "64KiB",
    ]);
    assert!(again.status.success() && output_text(&again).contains("already"), "{}", output_text(&again));

    publish(world, &["orders", "--type", "order.made"]);
    world.ok(&["events", "groups", "set", "orders", "mailer"]);
    let list = world.ok(&["events", "topics", "list"]);
    assert!(list.contains("orders") && list.contains("mailer"), "{list}");
    let shown = world.ok(&["events", "topics", "show", "orders"]);
    for words in ["1 event, oldest", "8, fixed", "at least 1d, and until every group has read them", "mailer"]
    {
        assert!(shown.contains(words), "{words:?} in\n{shown}");
    }
    // Namespaces are isolated.
    assert!(world.ok(&["events", "topics", "--namespace", "shop"]).contains("no topics"));
    assert!(world.ok(&["events", "topics", "-A", "--namespace", "shop"]).contains("orders"));

    refused(world, &["events", "topics", "delete", "orders"], 64, &["1 event and 1 group", "--force"]);
    world.ok(&["events", "topics", "delete", "orders", "--force"]);
    refused(world, &["events", "topics", "show", "orders"], 64, &["topic orders does not exist"]);
}
