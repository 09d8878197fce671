//! `tenure schedule run`: what is due fires, once.

use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::support::{World, until};
use crate::{history, json, ok, refused};

/// A `tenure schedule run` of the test. Killed when dropped.
struct Runner(Child);

impl Runner {
    fn start(world: &World, id: &str) -> Runner {
        let log = std::fs::File::create(world.path(&format!("{id}.log"))).expect("a log");
        let mut command = world.command(&["schedule", "run", "--id", id, "--lease", "2s", "-v"]);
        Runner(command.stdout(Stdio::null()).stderr(log).spawn().expect("tenure runs"))
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// From a schedule to an event and its consumer, and to a task and its worker: the token of the leader is on all of them.
pub fn what_is_due_fires_with_its_token(world: &World) {
    world.ok(&["events", "topics", "create", "beats"]);
    // Counted from its creation, so that its first tick is due at once, and its second in an hour.
    ok(world, &["create", "beat", "every 1h from start", "--event", "beats", "--payload", "{\"n\":1}"]);
    ok(world, &["create", "report", "every 1h from start", "--task", "reports", "--overlap", "skip"]);
    match world.store.starts_with("http") {
        true => refused(world, &["schedule", "run"], 64, &["the servers fire"]),
        false => drop(ok(world, &["run", "--until-idle", "--lease", "2s"])),
    }
    until(
        "both have fired",
        || ["beat", "report"].iter().all(|name| history(world, name).len() == 1),
        || world.logs(),
    );
    let [beat, report] = ["beat", "report"].map(|name| history(world, name).remove(0));
    for tick in [&beat, &report] {
        assert_eq!((&tick["state"], &tick["cause"]), (&json!("fired"), &json!("clock")), "{tick}");
        assert!(tick["token"].is_u64() && tick["late_ms"].as_i64() >= Some(0), "{tick}");
    }
    let consume = [
        "events",
        "consume",
        "beats",
        "--group",
        "g",
        "--until-end",
        "--",
        "sh",
        "-c",
        "cat; printenv TENURE_EVENT_HEADERS",
    ];
    let printed = world.ok(&consume);
    assert!(printed.contains("{\"n\":1}") && printed.contains("\"tenure-schedule\":\"beat\""), "{printed}");
    let tail = world.ok(&["events", "tail", "beats", "--from", "earliest", "--no-follow", "-o", "json"]);
    let event: Value = serde_json::from_str(tail.trim()).expect("one event");
    assert_eq!((&event["id"], &event["leader_token"]), (&beat["event"], &beat["token"]), "{event}");

    let work = ["work", "reports", "--until-empty", "--", "sh", "-c", "printf '\"%s\"' \"$TENURE_TASK_KEY\""];
    world.ok(&work);
    let task = world.json(&["tasks", "show", &report["task"].to_string(), "-o", "json"]);
    assert_eq!((&task["state"], &task["leader_token"]), (&json!("completed"), &report["token"]), "{task}");
    assert_eq!(task["output"], task["key"], "the command was told the tick: {task}");
    assert!(task["key"].as_str().is_some_and(|key| key.starts_with("default/report@")), "{task}");
    let view = json(world, &["show", "beat"]);
    assert_eq!((&view["fired"], &view["skipped"]), (&json!(1), &json!(0)), "{view}");
}

/// Ten ticks a second, all of which are to fire: under the first leader, while nobody leads, and under the second.
pub fn a_killed_leader_is_followed_by_another_and_no_tick_is_lost_or_doubled(world: &World) {
    ok(world, &["create", "often", "every 100ms", "--task", "q", "--misfire", "fire_all(10000)"]);
    let newest = || history(world, "often").first().and_then(|tick| tick["token"].as_u64()).unwrap_or(0);
    let first = Runner::start(world, "first");
    until("a tick has fired", || newest() > 0, || world.logs());
    let token = newest();
    let second = Runner::start(world, "second");
    drop(first);
    let fired = history(world, "often").len();
    // Through a server it may be the server that leads, and nobody need follow.
    let is_followed = || if world.store.starts_with("http") { true } else { newest() > token };
    until("another fires", || is_followed() && history(world, "often").len() > fired + 5, || world.logs());
    drop(second);
    let mut ticks: Vec<i64> =
        history(world, "often").iter().map(|tick| tick["at_ms"].as_i64().unwrap()).collect();
    ticks.reverse();
    let wanted: Vec<i64> = (0..ticks.len() as i64).map(|n| ticks[0] + 100 * n).collect();
    assert_eq!(ticks, wanted, "every tick once");
    assert!(
        history(world, "often").iter().all(|tick| tick["state"] == json!("fired") && tick["task"].is_u64())
    );
}
