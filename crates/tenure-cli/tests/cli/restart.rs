//! A restart of the database, under `tenure run` with its default settings.

use std::fs::File;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tenure::runtime::now;
use tenure_testkit::rig::PgCluster;

use crate::support::{Candidate, World, lives, signs_in, until};

/// Downtime of the database.
const DOWN: Duration = Duration::from_secs(10);

/// Runs a command that writes signs while it lives, with only these settings.
fn run(world: &World, election: &str, id: &str, settings: &[&str]) -> Candidate {
    let script = "while :; do echo \"$TENURE_TOKEN $$ $EPOCHREALTIME\" >> \"$SIGNS\"; sleep 0.1; done";
    let log = File::create(world.path(&format!("{id}.log"))).expect("a log");
    let mut command = world.command(&["run", election, "--name", id]);
    command.args(settings).args(["--", "bash", "-c", script]).env("SIGNS", world.path(election));
    command.stdout(Stdio::null()).stderr(log);
    Candidate { process: command.spawn().expect("tenure runs"), name: id.to_owned() }
}

fn shown(world: &World, election: &str) -> Value {
    world.json(&["elections", "show", election, "-o", "json"])
}

/// Regression: the child of `tenure run` got SIGTERM 2.3 s after PostgreSQL stopped, because the lease of 10 s was too
/// short for a restart.
#[test]
fn a_database_restart_of_ten_seconds_stops_no_command() {
    let cluster = PgCluster::start().expect("a server");
    let store = cluster.create_database("app").expect("a database");
    let world = World::at(store);
    world.ok(&["migrate", "up"]);
    let _three = ["a", "b", "c"].map(|id| run(&world, "nightly", id, &[]));
    // Control: with a lease of 10 s the same restart stops the command.
    let _short = run(&world, "short", "d", &["--lease", "10s"]);
    let signs = |election: &str| signs_in(&world.path(election));
    until(
        "both commands work",
        || !signs("nightly").is_empty() && !signs("short").is_empty(),
        || world.logs(),
    );
    let standing = || shown(&world, "nightly")["candidates"].as_array().map_or(0, Vec::len);
    until("all three are candidates", || standing() == 3, || world.logs());
    let before = shown(&world, "nightly");
    let first = signs("nightly")[0];
    let first_short = signs("short")[0];

    cluster.stop().expect("it stops");
    let stopped = now();
    std::thread::sleep(DOWN);
    cluster.start_again().expect("it starts again");

    // By now the command would have got SIGTERM if no heartbeat had succeeded since.
    let limit = tenure::DEFAULT_LEASE * 2 / 3 - tenure::DEFAULT_KILL_AFTER;
    std::thread::sleep(limit.saturating_sub(now().since(stopped)));
    let after = shown(&world, "nightly");
    assert_eq!(after["leaders"], before["leaders"], "{}", world.logs());
    assert_eq!(after["terms"].as_array().map(Vec::len), Some(1), "{after}");
    assert_eq!(standing(), 3, "every session survived the restart");
    assert!(lives(first.pid), "{}", world.logs());
    let (token, pid) = (first.token, first.pid);
    assert!(signs("nightly").iter().all(|sign| (sign.token, sign.pid) == (token, pid)));
    assert!(!lives(first_short.pid), "a lease of 10 s is too short for this restart");
}
