//! `tenure events topics`.

use serde_json::json;

use crate::support::World;
use crate::{publish, refused, said};

pub fn topics_are_made_set_and_deleted(world: &World) {
    assert!(world.ok(&["events", "topics"]).contains("topics create"), "an empty list teaches");
    let made = world.json(&[
        "events",
        "topics",
        "create",
        "orders",
        "--slots",
        "8",
        "--keep",
        "1d",
        "--max-bytes",
        "64KiB",
        "-o",
        "json",
    ]);
    let wanted = json!({"slots": 8, "keep_ms": 86_400_000, "keep_unread_ms": null, "max_bytes": 65_536});
    assert_eq!(made["settings"], wanted);
    world.ok(&["events", "topics", "set", "orders", "--keep-unread", "30d"]);
    let set = world.json(&["events", "topics", "show", "orders", "-o", "json"]);
    let wanted =
        json!({"slots": 8, "keep_ms": 86_400_000, "keep_unread_ms": 2_592_000_000_u64, "max_bytes": 65_536});
    assert_eq!((&set["settings"], &set["events"]), (&wanted, &json!(0)), "what is not named stays");
    world.ok(&["events", "topics", "set", "orders", "--keep-unread", "none"]);
    let again = world.run(&[
        "events",
        "topics",
        "create",
        "orders",
        "--slots",
        "8",
        "--keep",
        "1d",
        "--max-bytes",
        "64KiB",
    ]);
    assert!(again.status.success() && said(&again).contains("already"), "{}", said(&again));

    publish(world, &["orders", "--type", "order.made"]);
    world.ok(&["events", "groups", "set", "orders", "mailer"]);
    let list = world.ok(&["events", "topics", "list"]);
    assert!(list.contains("orders") && list.contains("mailer"), "{list}");
    let shown = world.ok(&["events", "topics", "show", "orders"]);
    for words in [
        "1 event, the oldest",
        "8, for ever",
        "for 1d at least, and until every group has read them",
        "mailer",
    ] {
        assert!(shown.contains(words), "{words:?} in\n{shown}");
    }
    // Another namespace is another world.
    assert!(world.ok(&["events", "topics", "--namespace", "shop"]).contains("no topics"));
    assert!(world.ok(&["events", "topics", "-A", "--namespace", "shop"]).contains("orders"));

    refused(world, &["events", "topics", "delete", "orders"], 64, &["1 event and 1 group", "--force"]);
    world.ok(&["events", "topics", "delete", "orders", "--force"]);
    refused(world, &["events", "topics", "show", "orders"], 64, &["no topic orders"]);
}
