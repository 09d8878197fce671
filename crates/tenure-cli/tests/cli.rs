//! `tenure run`, elections and credentials with real processes, on SQLite and PostgreSQL and through a server.

#![allow(unreachable_pub, dead_code)]

#[path = "cli/credentials.rs"]
mod credentials;
#[path = "cli/deploy.rs"]
mod deploy;
#[path = "cli/doctor.rs"]
mod doctor;
#[path = "cli/everyday.rs"]
mod everyday;
#[path = "cli/files.rs"]
mod files;
#[path = "cli/kubernetes.rs"]
mod leases;
#[path = "cli/migrate.rs"]
mod migrate;
#[path = "cli/once.rs"]
mod once;
#[path = "cli/readme.rs"]
mod readme;
#[path = "support/readme.rs"]
mod readme_blocks;
#[path = "cli/restart.rs"]
mod restart;
#[path = "cli/secrets.rs"]
mod secrets;
mod support;

use credentials::{
    a_secret_is_printed_once_and_stored_nowhere, certificates_are_identified_by_their_subject,
    credentials_are_created_listed_rotated_and_revoked, invalid_credentials_are_rejected_with_advice,
};
use once::one_of_many_candidates_runs_once_per_period;
use support::{Candidate, Sign, World, lives, until};

/// Defines one test per store.
macro_rules! on_both_stores {
    ($($claim:ident),* $(,)?) => {
        mod sqlite { $(#[test] fn $claim() { super::$claim(super::World::sqlite()); })* }
        mod postgres { $(#[test] fn $claim() { super::$claim(super::World::postgres()); })* }
        mod http { $(#[test] fn $claim() { super::$claim(super::World::http()); })* }
    };
}

on_both_stores!(
    a_killed_supervisor_leaves_no_orphan_and_another_takes_over,
    a_killed_supervisor_does_not_keep_its_lease,
    sigterm_releases_the_lease,
    a_stopped_leader_never_overlaps_with_the_next,
    tokens_grow_across_restarts_of_everything,
    operators_transfer_resign_pause_and_resume,
    the_live_candidate_with_the_highest_priority_leads,
    exit_codes_are_those_of_the_child_or_of_tenure,
    slots_allow_several_leaders,
    one_of_many_candidates_runs_once_per_period,
    credentials_are_created_listed_rotated_and_revoked,
    a_secret_is_printed_once_and_stored_nowhere,
    certificates_are_identified_by_their_subject,
    invalid_credentials_are_rejected_with_advice,
);

/// Defines one test per store that only elects leaders.
macro_rules! on_stores_that_elect {
    ($($claim:ident),* $(,)?) => {
        mod etcd { $(#[test] fn $claim() { super::$claim(super::World::etcd()); })* }
        mod raft { $(#[test] fn $claim() { super::$claim(super::World::raft()); })* }
        mod kubernetes { $(#[test] fn $claim() { super::$claim(super::World::kubernetes()); })* }
    };
}

on_stores_that_elect!(
    a_killed_supervisor_leaves_no_orphan_and_another_takes_over,
    a_killed_supervisor_does_not_keep_its_lease,
    sigterm_releases_the_lease,
    a_stopped_leader_never_overlaps_with_the_next,
    tokens_grow_across_restarts_of_everything,
    operators_transfer_resign_pause_and_resume,
    the_live_candidate_with_the_highest_priority_leads,
    slots_allow_several_leaders,
    one_of_many_candidates_runs_once_per_period,
);

/// Short lease, for tests that wait for its expiry. A busy machine may lose it at any time.
const QUICK: [&str; 2] = ["--lease", "1500ms"];

/// Long lease, for all other tests.
const PATIENT: [&str; 2] = ["--lease", "10s"];

fn three(world: &World, lease: &[&str]) -> Vec<Candidate> {
    let all = ["a", "b", "c"].map(|name| world.candidate(name, lease));
    world.until_token_after(0);
    until("all three are candidates", || candidate_count(world) == 3, || world.logs());
    all.into()
}

fn candidate_count(world: &World) -> usize {
    world.json(&["elections", "show", "nightly", "-o", "json"])["candidates"].as_array().map_or(0, Vec::len)
}

/// Waits for a leader whose child works. Returns the leader's name and the last sign of its child.
fn leader_and_sign(world: &World) -> (String, Sign) {
    let mut found = None;
    let works = || {
        let shown = world.json(&["elections", "show", "nightly", "-o", "json"]);
        let (leader, token) = (shown["leader"].as_str(), shown["leaders"][0]["token"].as_u64());
        let sign = world.signs().last().copied().filter(|sign| Some(sign.token) == token);
        found = leader.map(str::to_owned).zip(sign);
        found.is_some()
    };
    until("there is a leader and its child works", works, || world.logs());
    found.expect("it was found")
}

fn take(candidates: &mut Vec<Candidate>, name: &str) -> Candidate {
    let at = candidates.iter().position(|candidate| candidate.name == name).expect("it runs");
    candidates.remove(at)
}

fn a_killed_supervisor_leaves_no_orphan_and_another_takes_over(world: World) {
    let mut candidates = three(&world, &QUICK);
    for _ in 0..2 {
        let (leader, last) = leader_and_sign(&world);
        let mut killed = take(&mut candidates, &leader);
        killed.signal("KILL");
        killed.wait();
        world.until_token_after(last.token);
        assert!(!lives(last.pid), "the child of a killed supervisor is gone before the next one works");
    }
    world.assert_never_two();
}

/// Regression: after every crash of `tenure run` the next leader waited for the lease to expire.
fn a_killed_supervisor_does_not_keep_its_lease(world: World) {
    // Longer than any wait of this test.
    let mut candidates = three(&world, &["--lease", "5m"]);
    let (leader, last) = leader_and_sign(&world);
    let mut killed = take(&mut candidates, &leader);
    killed.signal("KILL");
    killed.wait();
    world.until_token_after(last.token);
    assert!(!lives(last.pid), "the child of a killed supervisor is gone before the next one works");
    world.assert_never_two();
}

fn sigterm_releases_the_lease(world: World) {
    let mut candidates = three(&world, &PATIENT);
    let (leader, Sign { token, .. }) = leader_and_sign(&world);
    let mut leader = take(&mut candidates, &leader);
    leader.signal("TERM");
    assert_eq!(leader.wait(), Some(128 + 15), "the exit code of the child");
    world.until_token_after(token);
    let shown = world.json(&["elections", "show", "nightly", "-o", "json"]);
    assert_eq!(shown["terms"][1]["end_reason"], "released", "the lease was released, not expired");
    world.assert_never_two();
}

fn a_stopped_leader_never_overlaps_with_the_next(world: World) {
    let mut candidates = three(&world, &QUICK);
    let (leader, last) = leader_and_sign(&world);
    let stopped = take(&mut candidates, &leader);
    stopped.signal("STOP");
    world.until_token_after(last.token);
    assert!(!lives(last.pid));
    stopped.signal("CONT");
    // It detects the loss and campaigns again.
    until("all three are candidates", || candidate_count(&world) == 3, || world.logs());
    world.assert_never_two();
}

fn tokens_grow_across_restarts_of_everything(world: World) {
    let mut token = 0;
    for _ in 0..3 {
        let mut candidate = world.candidate("a", &PATIENT);
        token = world.until_token_after(token);
        candidate.signal("TERM");
        candidate.wait();
    }
    world.assert_never_two();
}

fn operators_transfer_resign_pause_and_resume(world: World) {
    let mut candidates = three(&world, &PATIENT);
    let (first, _) = leader_and_sign(&world);
    let others: Vec<_> = candidates.iter().map(|c| c.name.clone()).filter(|name| *name != first).collect();
    world.ok(&["elections", "transfer", "nightly", "--to", &others[1]]);
    assert_eq!(world.leader().as_deref(), Some(others[1].as_str()));
    world.ok(&["elections", "resign", "nightly"]);
    until("another candidate leads", || world.leader().is_some_and(|now| now != others[1]), || world.logs());
    world.ok(&["elections", "pause", "nightly", "--reason", "a test"]);
    assert_eq!(world.leader(), None);
    let last = *world.signs().last().expect("a child");
    assert!(!lives(last.pid), "no child works while the election is paused");
    assert!(world.ok(&["elections", "show", "nightly"]).contains("a test"));
    world.ok(&["elections", "resume", "nightly"]);
    world.until_token_after(last.token);
    assert!(world.ok(&["elections", "list"]).contains("nightly"));
    candidates.clear();
    world.assert_never_two();
}

fn the_live_candidate_with_the_highest_priority_leads(world: World) {
    let _low = world.candidate("low", &["--priority", "10", "--lease", "10s"]);
    world.until_leader("low");
    let _middle = world.candidate("middle", &["--priority", "50", "--lease", "10s"]);
    world.until_leader("middle");
    let mut top = world.candidate("top", &["--priority", "100", "--lease", "10s"]);
    world.until_leader("top");
    top.signal("TERM");
    top.wait();
    world.until_leader("middle");
    world.assert_never_two();
}

fn exit_codes_are_those_of_the_child_or_of_tenure(world: World) {
    let code = |args: &[&str]| world.run(args).status.code();
    assert_eq!(code(&["run", "n", "--", "sh", "-c", "exit 7"]), Some(7));
    assert_eq!(code(&["run", "n", "--", "sh", "-c", "kill -9 $$"]), Some(128 + 9));
    assert_eq!(code(&["run", "n", "--", "/no/such/command"]), Some(127));
    assert_eq!(code(&["run", "n", "--", "/etc/passwd"]), Some(126));
    let _leader = world.candidate("a", &PATIENT);
    world.until_token_after(0);
    assert_eq!(code(&["run", "nightly", "--no-wait", "--", "true"]), Some(75));
    assert_eq!(code(&["run", "nightly", "--wait", "300ms", "--", "true"]), Some(75));
    let seen = world.ok(&[
        "run",
        "n",
        "--name",
        "me",
        "--",
        "sh",
        "-c",
        "echo $TENURE_ELECTION $TENURE_NAME $TENURE_TOKEN",
    ]);
    let words: Vec<_> = seen.split_whitespace().collect();
    assert_eq!(words[..2], ["n", "me"]);
    assert!(words[2].parse::<u64>().is_ok_and(|token| token > 0));
}

fn slots_allow_several_leaders(world: World) {
    let folder = world.path("places");
    std::fs::create_dir(&folder).expect("a folder");
    let script = "touch \"$PLACES/$TENURE_SLOT\"; sleep 1000";
    let spawn = |id: &str| {
        let mut command = world
            .command(&["run", "pair", "-n", "2", "--name", id, "--lease", "10s", "--", "sh", "-c", script]);
        command.env("PLACES", &folder);
        Candidate { process: command.spawn().expect("tenure runs"), name: id.to_owned() }
    };
    let _all = ["a", "b", "c"].map(spawn);
    let places = || std::fs::read_dir(&folder).expect("the folder").count();
    until("there are two leaders", || places() == 2, String::new);
    let shown = world.json(&["elections", "show", "pair", "-o", "json"]);
    assert_eq!(shown["leaders"].as_array().map(Vec::len), Some(2));
    let refused = world.run(&["run", "pair", "-n", "3", "--", "true"]);
    assert_eq!(refused.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("2 slots"));
}

#[test]
fn invalid_input_is_named_with_advice() {
    let world = World::sqlite();
    let cases: [(&[&str], i32, &[&str]); 9] = [
        (&["run", "", "--", "true"], 64, &["empty"]),
        (&["run", "two words", "--", "true"], 64, &["two words", "' '"]),
        (&["run", &"x".repeat(200), "--", "true"], 64, &["200", "128"]),
        (&["run", "n", "--lease", "1s", "--heartbeat-interval", "500ms", "--", "true"], 64, &["1.5s"]),
        (&["run", "n", "--lease", "1 parsec", "--", "true"], 64, &["parsec", "10s"]),
        (&["elections", "list", "--store", "mysql://u:secret@h/d"], 64, &["mysql", "sqlite:", "postgres:"]),
        (&["elections", "list", "--store", "postgres://u:secret@127.0.0.1:1/d"], 69, &["127.0.0.1:1"]),
        (&["elections", "list", "--store", "sqlite:/proc/nowhere/x.db"], 64, &["/proc/nowhere", "mkdir"]),
        (&["elections", "show", "missing"], 64, &["missing", "elections list"]),
    ];
    for (args, code, words) in cases {
        let output = world.run(args);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        for word in words {
            assert!(text.contains(word), "{args:?} should say {word:?}: {text}");
        }
        assert!(!text.contains("secret"), "a password was printed: {text}");
    }
}

#[test]
fn an_unusable_postgres_database_is_reported() {
    let database = tenure_testkit::rig::fresh_database().expect("a database");
    let world = World::sqlite();
    let missing = world.run(&["elections", "list", "--store", database.url()]);
    let text = String::from_utf8_lossy(&missing.stderr);
    assert_eq!(missing.status.code(), Some(69), "{text}");
    assert!(text.contains("tenure migrate up"), "{text}");
    world.ok(&["migrate", "up", "--store", database.url()]);
    database
        .psql("INSERT INTO tenure.migrations (version, name, oldest_compatible) VALUES (9999, 'from the future', 9999)")
        .expect("psql");
    let newer = world.run(&["elections", "list", "--store", database.url()]);
    let text = String::from_utf8_lossy(&newer.stderr);
    assert_eq!(newer.status.code(), Some(69), "{text}");
    assert!(text.contains("9999") && text.contains("Upgrade"), "{text}");
}

#[test]
fn doctor_reports_findings_with_their_status() {
    for world in [World::sqlite(), World::postgres(), World::http()] {
        if world.store.starts_with("sqlite:") {
            world.ok(&["migrate", "up"]);
        }
        // The PostgreSQL server of the tests does not sync to disk, which is an error.
        let output = world.run(&["doctor", "--rounds", "2", "-o", "json"]);
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let forgetful =
            found["findings"].as_array().is_some_and(|all| all.iter().any(|f| f["status"] == "error"));
        assert_eq!(
            (output.status.code(), forgetful),
            if world.is_postgres() { (Some(1), true) } else { (Some(0), false) }
        );
        let checks: Vec<_> =
            found["findings"].as_array().expect("findings").iter().map(|f| f["check"].as_str()).collect();
        assert!(checks.contains(&Some("handover")), "{found}");
        assert!(checks.contains(&Some("round trip")), "{found}");
    }
}

#[test]
fn completions_and_manual_pages_are_printed() {
    let world = World::sqlite();
    assert!(world.ok(&["completions", "bash"]).contains("_tenure"));
    // The page escapes hyphens.
    let page = |command: &[&str]| world.ok(&[&["man"], command].concat()).replace('\\', "");
    assert!(page(&[]).contains("tenure-elections"));
    let transfer = page(&["elections", "transfer"]);
    assert!(transfer.contains("tenure-elections-transfer") && !transfer.contains("tenure-run"), "{transfer}");
    let folder = world.path("man");
    world.ok(&["man", "--all", &folder.display().to_string()]);
    for name in ["tenure.1", "tenure-run.1", "tenure-events-dead-letters-replay.1"] {
        assert!(folder.join(name).is_file(), "{name}");
    }
    assert_eq!(world.run(&["man", "leader"]).status.code(), Some(64));
}
