//! `tenure schedules run`: due schedules fire once.

use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::support::{World, until};
use crate::{history, json, ok, refused};

/// A `tenure schedules run` process. Killed when dropped.
struct Runner(Child);

impl Runner {
    fn start(world: &World, id: &str) -> Runner {
        let log = std::fs::File::create(world.path(&format!("{id}.log"))).expect("a log");
        let mut command = world.command(&["schedules", "run", "--name", id, "--lease", "2s", "-v"]);
        Runner(command.stdout(Stdio::null()).stderr(log).spawn().expect("tenure runs"))
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// From a schedule to an event and its consumer, and to a task and its worker: all carry the token of the leader.
pub fn due_schedules_fire_with_the_token_of_the_leader(world: &World) {
    world.ok(&["events", "topics", "create", "beats"]);
    // Counts from its creation: the first tick is due at once, the second in an hour.
    ok(world, &["create", "beat", "every 1h from start", "--event", "beats", "--payload", "{\"n\":1}"]);
    ok(world, &["create", "report", "every 1h from start", "--task", "reports", "--overlap-policy", "skip"]);
    match world.store.starts_with("http") {
        true => refused(world, &["schedules", "run"], 64, &["servers run their own scheduler"]),
        false => drop(ok(world, &["run", "--exit-when-idle", "--lease", "2s"])),
    }
    until(
        "both have fired",
        || ["beat", "report"].iter().all(|name| history(world, name).len() == 1),
        || world.logs(),
    );
    let [beat, report] = ["beat", "report"].map(|name| history(world, name).remove(0));
    for tick in [&beat, &report] {
        assert_eq!((&tick["state"], &tick["cause"]), (&json!("fired"), &json!("schedule")), "{tick}");
        assert!(tick["token"].is_u64() && tick["lateness_ms"].as_i64() >= Some(0), "{tick}");
    }
    let consume = [
        "events",
        "consume",
        "beats",
        "--group",
        "g",
        "--exit-when-idle",
        "--",
        "sh",
        "-c",
        "cat; printenv TENURE_EVENT_HEADERS",
    ];
    let printed = world.ok(&consume);
    assert!(printed.contains("{\"n\":1}") && printed.contains("\"tenure-schedule\":\"beat\""), "{printed}");
    let tail = world.ok(&["events", "tail", "beats", "--from", "earliest", "--no-follow", "-o", "json"]);
    let event: Value = serde_json::from_str(tail.trim()).expect("one event");
    assert_eq!((&event["id"], &event["leader_token"]), (&beat["event_id"], &beat["token"]), "{event}");

    let work = [
        "work",
        "reports",
        "--exit-when-idle",
        "--",
        "sh",
        "-c",
        "printf '\"%s\"' \"$TENURE_TASK_IDEMPOTENCY_KEY\"",
    ];
    world.ok(&work);
    let task = world.json(&["tasks", "show", &report["task_id"].to_string(), "-o", "json"]);
    assert_eq!((&task["state"], &task["leader_token"]), (&json!("completed"), &report["token"]), "{task}");
    assert_eq!(task["result"], task["idempotency_key"], "the command got the tick: {task}");
    assert!(task["idempotency_key"].as_str().is_some_and(|key| key.starts_with("default/report@")), "{task}");
    let view = json(world, &["show", "beat"]);
    assert_eq!((&view["fired_count"], &view["skipped_count"]), (&json!(1), &json!(0)), "{view}");
}

/// Ten ticks per second, which must all fire: under the first leader, without a leader, and under the second.
pub fn after_a_killed_leader_another_fires_and_no_tick_is_lost_or_doubled(world: &World) {
    ok(world, &["create", "often", "every 100ms", "--task", "q", "--misfire-policy", "fire_all(10000)"]);
    let newest = || history(world, "often").first().and_then(|tick| tick["token"].as_u64()).unwrap_or(0);
    let first = Runner::start(world, "first");
    until("a tick has fired", || newest() > 0, || world.logs());
    let token = newest();
    let second = Runner::start(world, "second");
    drop(first);
    let fired = history(world, "often").len();
    // Through a server, the server may be the leader.
    let is_followed = || if world.store.starts_with("http") { true } else { newest() > token };
    until("another fires", || is_followed() && history(world, "often").len() > fired + 5, || world.logs());
    drop(second);
    let mut ticks: Vec<i64> =
        history(world, "often").iter().map(|tick| tick["tick_at_ms"].as_i64().unwrap()).collect();
    ticks.reverse();
    let wanted: Vec<i64> = (0..ticks.len() as i64).map(|n| ticks[0] + 100 * n).collect();
    assert_eq!(ticks, wanted, "every tick once");
    assert!(
        history(world, "often")
            .iter()
            .all(|tick| tick["state"] == json!("fired") && tick["task_id"].is_u64())
    );
}
