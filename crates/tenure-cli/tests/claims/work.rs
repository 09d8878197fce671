//! `tenure work`, with real commands.

use std::fs::File;
use std::process::Stdio;

use serde_json::json;

use crate::support::{Candidate, World, lives, until};
use crate::tasks::{count, submit, task};
use crate::{refused, said};

/// A worker of the test, in the background.
fn worker(world: &World, name: &str, args: &[&str], script: &str) -> Candidate {
    let log = File::create(world.path(&format!("{name}.log"))).expect("a log");
    let mut command =
        world.command(&["work", "jobs", "--worker", name, "--lease", "1500ms", "--kill-after", "300ms"]);
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

/// Until a worker has heard that it is to end.
fn until_finishing(world: &World, name: &str) {
    let said = || std::fs::read_to_string(world.path(&format!("{name}.log"))).unwrap_or_default();
    until(&format!("{name} finishes"), || said().contains("finishing what runs"), || world.logs());
}

fn pid(world: &World, name: &str) -> u32 {
    let read = || std::fs::read_to_string(world.path(name)).unwrap_or_default();
    until(&format!("{name} holds a whole line"), || read().ends_with('\n'), || world.logs());
    read().trim().parse().expect("a process")
}

pub fn a_command_runs_for_each_task(world: &World) {
    let one = submit(world, &["jobs", "--kind", "welcome", "--payload", r#"{"to":"ada"}"#]);
    let two = submit(world, &["jobs", "--parent", &one]);
    let bad = submit(world, &["jobs", "--kind", "bad", "--attempts", "2", "--backoff", "1ms"]);
    // It sees the payload and its own circumstances; what it says is the output, if it is JSON.
    let script = r#"
        payload=$(cat)
        case $TENURE_KIND in
        bad) echo "no route to host" >&2; exit 3 ;;
        esac
        printf '{"payload":%s,"task":%s,"token":%s,"attempt":%s,"queue":"%s","id":"%s","inputs":%s}' \
            "$payload" "$TENURE_TASK" "$TENURE_TOKEN" "$TENURE_ATTEMPT" "$TENURE_QUEUE" "$TENURE_ID" "${TENURE_INPUTS-null}"
    "#;
    let mut worker = worker(world, "w", &["-n", "2"], script);
    until_state(world, &two, "completed");
    until_state(world, &bad, "dead");
    worker.signal("TERM");
    assert_eq!(worker.wait(), Some(0), "{}", world.logs());
    let done = task(world, &one);
    let wanted = json!({
        "payload": {"to": "ada"}, "task": one.parse::<u64>().unwrap(), "token": done["token"], "attempt": 1,
        "queue": "jobs", "id": "w", "inputs": null,
    });
    assert_eq!(done["output"], wanted);
    assert_eq!(task(world, &two)["output"]["inputs"][&one], wanted, "a parent's output is an input");
    let failures = task(world, &bad)["failures"].clone();
    assert_eq!(failures.as_array().map(Vec::len), Some(2), "{failures}");
    assert_eq!(failures[0]["error"], "exit code 3: no route to host");
    let known = world.json(&["workers", "list", "-o", "json"]);
    assert_eq!((&known[0]["name"], &known[0]["capacity"]), (&json!("w"), &json!(2)));
}

pub fn it_ends_when_nothing_is_left(world: &World) {
    let ids: Vec<_> = (0..5).map(|n| submit(world, &["jobs", "--payload", &n.to_string()])).collect();
    let done = world.run(&["work", "jobs", "-n", "3", "--until-empty", "--", "cat"]);
    assert!(done.status.success(), "{}", said(&done));
    assert!(said(&done).contains("5 tasks completed, 0 failed"), "{}", said(&done));
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(task(world, id)["output"], json!(n));
    }
    // What is no JSON is not an output, and is passed on.
    let id = submit(world, &["jobs"]);
    assert_eq!(world.ok(&["work", "jobs", "--until-empty", "--", "echo", "hello there"]), "hello there\n");
    assert_eq!(task(world, &id)["output"], json!(null));
    // A command that does not exist fails no task.
    let id = submit(world, &["jobs"]);
    refused(world, &["work", "jobs", "--", "/no/such/command"], 127, &["/no/such/command"]);
    refused(world, &["work", "jobs", "--", "/etc/passwd"], 126, &["/etc/passwd"]);
    until_state(world, &id, "ready");
    assert_eq!(task(world, &id)["attempt"], 0);
}

/// `--until-empty` never ended while a ready task was meant for another worker.
pub fn it_ends_though_tasks_for_other_workers_are_left(world: &World) {
    let mine = submit(world, &["jobs"]);
    let others =
        [submit(world, &["jobs", "--worker", "somebody-else"]), submit(world, &["jobs", "--require", "gpu"])];
    let done = world.run(&["work", "jobs", "--worker", "w", "--until-empty", "--", "true"]);
    assert!(done.status.success(), "{}", said(&done));
    assert_eq!(task(world, &mine)["state"], "completed");
    for other in &others {
        assert_eq!(task(world, other)["state"], "ready");
    }
    let done = world.run(&["work", "jobs", "--worker", "w", "--tag", "gpu", "--until-empty", "--", "true"]);
    assert!(done.status.success(), "{}", said(&done));
    assert_eq!(task(world, &others[1])["state"], "completed", "what this worker can do, it does");
}

pub fn told_once_it_finishes_and_told_twice_it_gives_back(world: &World) {
    let script = r#"
        echo $$ >"$PLACE/pid.$TENURE_TASK.tmp"; mv "$PLACE/pid.$TENURE_TASK.tmp" "$PLACE/pid.$TENURE_TASK"
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
    assert_eq!(state(world, &first), "completed", "what was begun is finished");
    assert_eq!(state(world, &second), "ready", "what was not is left");
    std::fs::remove_file(world.path("go")).expect("a mark");

    let mut two = worker(world, "two", &[], script);
    let child = pid(world, &format!("pid.{second}"));
    two.signal("TERM");
    until_finishing(world, "two");
    two.signal("INT");
    assert_eq!(two.wait(), Some(0), "{}", world.logs());
    assert!(!lives(child), "nothing of it is left");
    let back = task(world, &second);
    assert_eq!(
        (&back["state"], &back["attempt"]),
        (&json!("ready"), &json!(0)),
        "given back, and it does not count"
    );
}

pub fn a_killed_worker_leaves_no_orphan_and_its_task_returns(world: &World) {
    let script = r#"
        echo $$ >"$PLACE/pid.$TENURE_ATTEMPT.tmp"; mv "$PLACE/pid.$TENURE_ATTEMPT.tmp" "$PLACE/pid.$TENURE_ATTEMPT"
        while [ ! -e "$PLACE/go" ]; do sleep 0.02; done; echo "\"$TENURE_ID\""
    "#;
    let id = submit(world, &["jobs"]);
    let mut first = worker(world, "first", &[], script);
    let child = pid(world, "pid.1");
    let mut second = worker(world, "second", &[], script);
    first.signal("KILL");
    first.wait();
    pid(world, "pid.2");
    assert!(!lives(child), "the command of a killed worker is gone before the next one begins");
    std::fs::write(world.path("go"), "").expect("a mark");
    until_state(world, &id, "completed");
    let done = task(world, &id);
    assert_eq!((&done["output"], &done["attempt"]), (&json!("second"), &json!(2)));
    assert!(done["failures"][0]["error"].as_str().is_some_and(|error| error.contains("lost")), "{done}");
    second.signal("TERM");
    assert_eq!(second.wait(), Some(0));
}

pub fn a_command_is_ended_when_its_task_is_called_off_or_takes_too_long(world: &World) {
    let script = r#"
        echo $$ >"$PLACE/pid.$TENURE_TASK.tmp"; mv "$PLACE/pid.$TENURE_TASK.tmp" "$PLACE/pid.$TENURE_TASK"
        sleep 1000 & wait
    "#;
    let called_off = submit(world, &["jobs"]);
    let mut one = worker(world, "one", &[], script);
    let child = pid(world, &format!("pid.{called_off}"));
    world.ok(&["tasks", "cancel", &called_off]);
    until("its command is ended", || !lives(child), || world.logs());
    let slow = submit(world, &["jobs", "--max-run", "1s", "--attempts", "1"]);
    let child = pid(world, &format!("pid.{slow}"));
    until_state(world, &slow, "dead");
    assert!(!lives(child), "it is gone before anybody is told");
    let error = task(world, &slow)["failures"][0]["error"].clone();
    assert!(error.as_str().is_some_and(|error| error.contains("run")), "{error}");
    assert_eq!(count(world, "jobs", "cancelled"), 1);
    one.signal("TERM");
    assert_eq!(one.wait(), Some(0), "{}", world.logs());
}
