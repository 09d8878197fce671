//! `tenure queue` and `tenure workers`.

use serde_json::json;

use crate::support::World;
use crate::tasks::{claim, submit};
use crate::{refused, said};

pub fn paused_queues_hand_out_nothing_and_say_so(world: &World) {
    submit(world, &["mail"]);
    world.ok(&["queue", "pause", "mail", "--reason", "provider is down"]);
    let again = world.run(&["queue", "pause", "mail"]);
    assert!(said(&again).contains("already"), "{}", said(&again));
    refused(world, &["tasks", "claim", "mail"], 75, &["paused", "provider is down", "queue resume"]);
    let list = world.ok(&["queue", "list"]);
    assert!(list.contains("mail") && list.contains("paused"), "{list}");
    assert!(world.ok(&["queue", "show", "mail"]).contains("provider is down"));
    world.ok(&["queue", "resume", "mail"]);
    world.ok(&["queue", "pause", "--everything"]);
    refused(world, &["tasks", "claim", "mail"], 75, &["paused"]);
    world.ok(&["queue", "resume", "--everything"]);
    assert!(said(&world.run(&["queue", "resume", "--everything"])).contains("not paused"));
    claim(world, &["mail"]);
}

pub fn modes_and_settings_change_and_the_rest_stays(world: &World) {
    assert!(world.ok(&["queue", "list"]).contains("tenure tasks submit"), "an empty list teaches");
    world.ok(&[
        "queue",
        "set",
        "mail",
        "--rate",
        "100/10s",
        "--max-claimed",
        "8",
        "--keep",
        "7d",
        "--prefer",
        "1s",
    ]);
    world.ok(&["queue", "mode", "mail", "exclusive", "--fallback", "distributed"]);
    world.ok(&["queue", "set", "mail", "--max-claimed", "none", "--approval", "on"]);
    let set = &world.json(&["queue", "show", "mail", "-o", "json"])["settings"];
    let wanted = json!({
        "mode": "exclusive", "fallback": "distributed", "approval": true, "rate": {"count": 100, "per_ms": 10_000},
        "max_claimed": null, "prefer_ms": 1000, "keep_ms": 604_800_000_u64, "keep_dead_ms": 2_592_000_000_u64,
    });
    assert_eq!(set, &wanted);
    let shown = world.ok(&["queue", "show", "mail"]);
    for word in ["strict order", "100 in 10s", "must be approved", "for 7d, dead ones for 30d", "cancelled"] {
        assert!(shown.contains(word), "{word} in\n{shown}");
    }
    assert!(world.ok(&["queue", "list"]).contains("exclusive*"));
    // In strict order, though no worker and no server is there.
    world.ok(&["queue", "mode", "strict", "exclusive"]);
    let ids: Vec<_> =
        ["0", "5", "2"].iter().map(|priority| submit(world, &["strict", "--priority", priority])).collect();
    let turns: Vec<_> = (0..3).map(|_| world.json(&["tasks", "claim", "strict", "-o", "json"])).collect();
    let order: Vec<_> = turns.iter().map(|task| task["id"].to_string()).collect();
    assert_eq!(order, [ids[1].clone(), ids[2].clone(), ids[0].clone()]);
    assert_eq!(
        turns.iter().map(|task| task["turn"].as_u64()).collect::<Vec<_>>(),
        [Some(1), Some(2), Some(3)]
    );
    refused(world, &["queue", "mode", "mail", "strict"], 64, &["strict", "distributed and exclusive"]);
}

pub fn workers_wait_for_approval_where_it_is_asked_for(world: &World) {
    assert!(world.ok(&["workers", "list"]).contains("tenure work"), "an empty list teaches");
    world.ok(&["queue", "set", "mail", "--approval", "on"]);
    let id = submit(world, &["mail"]);
    let ask = ["tasks", "claim", "mail", "--worker", "box-1", "--tag", "gpu", "--kind", "welcome"];
    refused(world, &ask, 75, &["not approved", "tenure workers approve box-1"]);
    let list = world.ok(&["workers", "list"]);
    for word in ["box-1", "live", "gpu", "welcome", "mail"] {
        assert!(list.contains(word), "{word} in\n{list}");
    }
    assert!(world.ok(&["tasks", "why", &id]).contains("tenure workers approve box-1"));
    world.ok(&["workers", "approve", "box-1"]);
    assert!(said(&world.run(&["workers", "approve", "box-1"])).contains("already"));
    let listed = &world.json(&["workers", "list", "-o", "json"])[0];
    assert_eq!((&listed["name"], listed["approved_by"].is_string()), (&json!("box-1"), true));
    let (claimed, _) = claim(world, &["mail", "--worker", "box-1"]);
    assert_eq!(claimed, id);
    world.ok(&["workers", "disapprove", "box-1"]);
    submit(world, &["mail"]);
    refused(world, &ask, 75, &["not approved"]);
}
