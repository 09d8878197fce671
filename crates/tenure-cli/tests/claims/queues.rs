//! `tenure queues` and `tenure workers`.

use serde_json::json;

use crate::support::World;
use crate::tasks::{claim, submit};
use crate::{output_text, refused};

pub fn paused_queues_assign_no_tasks(world: &World) {
    submit(world, &["mail"]);
    world.ok(&["queues", "pause", "mail", "--reason", "provider is down"]);
    let again = world.run(&["queues", "pause", "mail"]);
    assert!(output_text(&again).contains("already"), "{}", output_text(&again));
    refused(world, &["tasks", "claim", "mail"], 75, &["paused", "provider is down", "queues resume"]);
    let list = world.ok(&["queues", "list"]);
    assert!(list.contains("mail") && list.contains("paused"), "{list}");
    assert!(world.ok(&["queues", "show", "mail"]).contains("provider is down"));
    world.ok(&["queues", "resume", "mail"]);
    world.ok(&["queues", "pause", "--all"]);
    refused(world, &["tasks", "claim", "mail"], 75, &["paused"]);
    world.ok(&["queues", "resume", "--all"]);
    assert!(output_text(&world.run(&["queues", "resume", "--all"])).contains("not paused"));
    claim(world, &["mail"]);
}

pub fn a_queue_changes_only_the_named_settings(world: &World) {
    assert!(world.ok(&["queues", "list"]).contains("tenure tasks submit"), "an empty list shows an example");
    world.ok(&[
        "queues",
        "set",
        "mail",
        "--rate",
        "100/10s",
        "--max-claimed",
        "8",
        "--retention",
        "7d",
        "--preference-window",
        "1s",
    ]);
    world.ok(&["queues", "mode", "mail", "exclusive", "--fallback", "distributed"]);
    world.ok(&["queues", "set", "mail", "--max-claimed", "none", "--require-approval", "on"]);
    let set = &world.json(&["queues", "show", "mail", "-o", "json"])["settings"];
    let wanted = json!({
        "mode": "exclusive", "fallback": "distributed", "require_approval": true, "rate": {"count": 100, "per_ms": 10_000},
        "max_claimed": null, "preference_window_ms": 1000, "retention_ms": 604_800_000_u64,
        "dead_retention_ms": 2_592_000_000_u64,
    });
    assert_eq!(set, &wanted);
    let shown = world.ok(&["queues", "show", "mail"]);
    for word in ["strict order", "100 per 10s", "required", "7d, dead tasks 30d", "cancelled"] {
        assert!(shown.contains(word), "{word} in\n{shown}");
    }
    assert!(world.ok(&["queues", "list"]).contains("exclusive*"));
    // Strict order, without a worker and a server.
    world.ok(&["queues", "mode", "strict", "exclusive"]);
    let ids: Vec<_> =
        ["0", "5", "2"].iter().map(|priority| submit(world, &["strict", "--priority", priority])).collect();
    let turns: Vec<_> = (0..3).map(|_| world.json(&["tasks", "claim", "strict", "-o", "json"])).collect();
    let order: Vec<_> = turns.iter().map(|task| task["id"].to_string()).collect();
    assert_eq!(order, [ids[1].clone(), ids[2].clone(), ids[0].clone()]);
    assert_eq!(
        turns.iter().map(|task| task["claim_seq"].as_u64()).collect::<Vec<_>>(),
        [Some(1), Some(2), Some(3)]
    );
    refused(world, &["queues", "mode", "mail", "strict"], 64, &["strict", "distributed or exclusive"]);
}

pub fn a_queue_can_require_approved_workers(world: &World) {
    assert!(world.ok(&["workers", "list"]).contains("tenure work"), "an empty list shows an example");
    world.ok(&["queues", "set", "mail", "--require-approval", "on"]);
    let id = submit(world, &["mail"]);
    let ask = ["tasks", "claim", "mail", "--name", "box-1", "--tag", "gpu", "--kind", "welcome"];
    refused(world, &ask, 75, &["not approved", "tenure workers approve box-1"]);
    let list = world.ok(&["workers", "list"]);
    for word in ["box-1", "online", "gpu", "welcome", "mail"] {
        assert!(list.contains(word), "{word} in\n{list}");
    }
    assert!(world.ok(&["tasks", "why", &id]).contains("tenure workers approve box-1"));
    world.ok(&["workers", "approve", "box-1"]);
    assert!(output_text(&world.run(&["workers", "approve", "box-1"])).contains("already"));
    let listed = &world.json(&["workers", "list", "-o", "json"])[0];
    assert_eq!((&listed["name"], listed["approved_by"].is_string()), (&json!("box-1"), true));
    let (claimed, _) = claim(world, &["mail", "--name", "box-1"]);
    assert_eq!(claimed, id);
    world.ok(&["workers", "revoke-approval", "box-1"]);
    submit(world, &["mail"]);
    refused(world, &ask, 75, &["not approved"]);
}
