//! `tenure work`, with real commands.

use std::fs::File;
use std::process::Stdio;

use serde_json::json;

use crate::support::{Candidate, World, lives, until};
use crate::tasks::{count, submit, task};
use crate::{output_text, refused};

/// A worker in the background.
fn worker(world: &World, name: &str, args: &[&str], script: &str) -> Candidate {
    let log = File::create(world.path(&format!("{name}.log"))).expect("a log");
    let mut command =
        world.command(&["work", "jobs", "--name", name, "--lease", "1500ms", "--kill-after", "300ms"]);
    command.args(args).args(["--", "bash", "-c", script]).env("PLACE", world.folder.path());
    command.stdout(Stdio::null()).stderr(log);
    Candidate { process: command.spawn().expect("tenure runs"), name: name.to_owned() }
}

fn state(world: &World, id: &str) -> String {
    task(world, id)["state"].as_str().expect("a state").to_owned()
}

fn until_state(world: &World, id: &str, wanted: &str) {
    until(&format!("task {id} is {wanted}"), || state(world, id) == wanted, || world.logs());
}

/// Waits until a worker reports that it drains.
fn until_finishing(world: &World, name: &str) {
    let said = || std::fs::read_to_string(world.path(&format!("{name}.log"))).unwrap_or_default();
    until(&format!("{name} finishes"), || said().contains("waiting for running commands"), || world.logs());
}

fn pid(world: &World, name: &str) -> u32 {
    let read = || std::fs::read_to_string(world.path(name)).unwrap_or_default();
    until(&format!("{name} holds a whole line"), || read().ends_with('\n'), || world.logs());
    read().trim().parse().expect("a process")
}

pub fn a_command_runs_for_each_task(world: &World) {
    let one = submit(world, &["jobs", "--kind", "welcome", "--payload", r#"{"to":"ada"}"#]);
    let two = submit(world, &["jobs", "--parent", &one]);
    let bad = submit(world, &["jobs", "--kind", "bad", "--max-attempts", "2", "--initial-backoff", "1ms"]);
    // The command gets the payload and variables; its output is the result if it is JSON.
    let script = r#"
        payload=$(cat)
        case $TENURE_TASK_KIND in
        bad) echo "no route to host" >&2; exit 3 ;;
        esac
        printf '{"payload":%s,"task_id":%s,"token":%s,"attempt":%s,"queue":"%s","name":"%s","parent_results":%s}' \
            "$payload" "$TENURE_TASK_ID" "$TENURE_TOKEN" "$TENURE_TASK_ATTEMPT" "$TENURE_TASK_QUEUE" "$TENURE_NAME" "${TENURE_TASK_PARENT_RESULTS-null}"
    "#;
    let mut worker = worker(world, "w", &["-n", "2"], script);
    until_state(world, &two, "completed");
    until_state(world, &bad, "dead");
    worker.signal("TERM");
    assert_eq!(worker.wait(), Some(0), "{}", world.logs());
    let done = task(world, &one);
    let wanted = json!({
        "payload": {"to": "ada"}, "task_id": one.parse::<u64>().unwrap(), "token": done["token"], "attempt": 1,
        "queue": "jobs", "name": "w", "parent_results": null,
    });
    assert_eq!(done["result"], wanted);
    assert_eq!(task(world, &two)["result"]["parent_results"][&one], wanted, "the result of a parent");
    let failures = task(world, &bad)["failures"].clone();
    assert_eq!(failures.as_array().map(Vec::len), Some(2), "{failures}");
    assert_eq!(failures[0]["error"], "exit code 3: no route to host");
    let known = world.json(&["workers", "list", "-o", "json"]);
    assert_eq!((&known[0]["name"], &known[0]["capacity"]), (&json!("w"), &json!(2)));
}

pub fn an_idle_worker_exits(world: &World) {
    let ids: Vec<_> = (0..5).map(|n| submit(world, &["jobs", "--payload", &n.to_string()])).collect();
    let done = world.run(&["work", "jobs", "-n", "3", "--exit-when-idle", "--", "cat"]);
    assert!(done.status.success(), "{}", output_text(&done));
    assert!(output_text(&done).contains("5 tasks completed, 0 failed"), "{}", output_text(&done));
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(task(world, id)["result"], json!(n));
    }
    // Output that is not JSON is no result, and is printed.
    let id = submit(world, &["jobs"]);
    assert_eq!(world.ok(&["work", "jobs", "--exit-when-idle", "--", "echo", "hello there"]), "hello there\n");
    assert_eq!(task(world, &id)["result"], json!(null));
    // A command that does not exist fails no task.
    let id = submit(world, &["jobs"]);
    refused(world, &["work", "jobs", "--", "/no/such/command"], 127, &["/no/such/command"]);
    refused(world, &["work", "jobs", "--", "/etc/passwd"], 126, &["/etc/passwd"]);
    until_state(world, &id, "ready");
    assert_eq!(task(world, &id)["attempt"], 0);
}

/// Regression: `--exit-when-idle` never exited while a ready task was for another worker.
pub fn an_idle_worker_exits_despite_tasks_for_other_workers(world: &World) {
    let mine = submit(world, &["jobs"]);
    let others = [
        submit(world, &["jobs", "--allowed-worker", "other"]),
        submit(world, &["jobs", "--required-tag", "gpu"]),
    ];
    let done = world.run(&["work", "jobs", "--name", "w", "--exit-when-idle", "--", "true"]);
    assert!(done.status.success(), "{}", output_text(&done));
    assert_eq!(task(world, &mine)["state"], "completed");
    for other in &others {
        assert_eq!(task(world, other)["state"], "ready");
    }
    let done = world.run(&["work", "jobs", "--name", "w", "--tag", "gpu", "--exit-when-idle", "--", "true"]);
    assert!(done.status.success(), "{}", output_text(&done));
    assert_eq!(task(world, &others[1])["state"], "completed", "this worker claims what it can");
}

pub fn a_first_signal_drains_and_a_second_one_releases_the_task(world: &World) {
    let script = r#"
        echo $$ >"$PLACE/pid.$TENURE_TASK_ID.tmp"; mv "$PLACE/pid.$TENURE_TASK_ID.tmp" "$PLACE/pid.$TENURE_TASK_ID"
        while [ ! -e "$PLACE/go" ]; do sleep 0.02; done
    "#;
    let first = submit(world, &["jobs"]);
    let second = submit(world, &["jobs"]);
    let mut one = worker(world, "one", &[], script);
    pid(world, &format!("pid.{first}"));
    one.signal("TERM");
    until_finishing(world, "one");
    std::fs::write(world.path("go"), "").expect("a mark");
    assert_eq!(one.wait(), Some(0), "{}", world.logs());
    assert_eq!(state(world, &first), "completed", "a started task is finished");
    assert_eq!(state(world, &second), "ready", "no new task is started");
    std::fs::remove_file(world.path("go")).expect("a mark");

    let mut two = worker(world, "two", &[], script);
    let child = pid(world, &format!("pid.{second}"));
    two.signal("TERM");
    until_finishing(world, "two");
    two.signal("INT");
    assert_eq!(two.wait(), Some(0), "{}", world.logs());
    assert!(!lives(child), "no process of the command is left");
    let back = task(world, &second);
    assert_eq!(
        (&back["state"], &back["attempt"]),
        (&json!("ready"), &json!(0)),
        "released without counting the attempt"
    );
}

pub fn a_killed_worker_leaves_no_orphan_and_its_task_returns(world: &World) {
    let script = r#"
        echo $$ >"$PLACE/pid.$TENURE_TASK_ATTEMPT.tmp"; mv "$PLACE/pid.$TENURE_TASK_ATTEMPT.tmp" "$PLACE/pid.$TENURE_TASK_ATTEMPT"
        while [ ! -e "$PLACE/go" ]; do sleep 0.02; done; echo "\"$TENURE_NAME\""
    "#;
    let id = submit(world, &["jobs"]);
    let mut first = worker(world, "first", &[], script);
    let child = pid(world, "pid.1");
    let mut second = worker(world, "second", &[], script);
    first.signal("KILL");
    first.wait();
    pid(world, "pid.2");
    assert!(!lives(child), "the command of a killed worker is gone before the next one starts");
    std::fs::write(world.path("go"), "").expect("a mark");
    until_state(world, &id, "completed");
    let done = task(world, &id);
    assert_eq!((&done["result"], &done["attempt"]), (&json!("second"), &json!(2)));
    assert!(done["failures"][0]["error"].as_str().is_some_and(|error| error.contains("lost")), "{done}");
    second.signal("TERM");
    assert_eq!(second.wait(), Some(0));
}

pub fn a_command_stops_when_its_task_is_cancelled_or_runs_too_long(world: &World) {
    let script = r#"
        echo $$ >"$PLACE/pid.$TENURE_TASK_ID.tmp"; mv "$PLACE/pid.$TENURE_TASK_ID.tmp" "$PLACE/pid.$TENURE_TASK_ID"
        sleep 1000 & wait
    "#;
    let cancelled = submit(world, &["jobs"]);
    let mut one = worker(world, "one", &[], script);
    let child = pid(world, &format!("pid.{cancelled}"));
    world.ok(&["tasks", "cancel", &cancelled]);
    until("the command is stopped", || !lives(child), || world.logs());
    let slow = submit(world, &["jobs", "--max-run", "1s", "--max-attempts", "1"]);
    let child = pid(world, &format!("pid.{slow}"));
    until_state(world, &slow, "dead");
    assert!(!lives(child), "the command is gone before the task is dead");
    let error = task(world, &slow)["failures"][0]["error"].clone();
    assert!(error.as_str().is_some_and(|error| error.contains("run")), "{error}");
    assert_eq!(count(world, "jobs", "cancelled"), 1);
    one.signal("TERM");
    assert_eq!(one.wait(), Some(0), "{}", world.logs());
}
