//! What new users ran into.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::support::{World, refused, said, until};

/// A command whose standard output, or errors, go into a pipe that nobody reads.
fn unread(mut command: Command, errors: bool) -> (Option<i32>, String) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    if errors {
        command.stdout(Stdio::null()).stderr(writer);
    } else {
        command.stdout(writer).stderr(Stdio::piped());
    }
    let output = command.output().expect("tenure runs");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// `tenure completions bash | head` once panicked.
#[test]
fn a_closed_pipe_ends_a_command_quietly() {
    let world = World::sqlite();
    world.ok(&["tasks", "submit", "mail"]);
    for args in [&["completions", "bash"][..], &["man"], &["--help"], &["leader", "list"], &["tasks", "list"]]
    {
        assert_eq!(unread(world.command(args), false), (Some(0), String::new()), "{args:?}");
    }
}

/// Whoever does not read what `tenure run` says must not end its command by that.
#[test]
fn errors_that_nobody_reads_end_nothing() {
    let world = World::sqlite();
    let run = world.command(&["run", "nightly", "-vv", "--", "sh", "-c", "exit 7"]);
    assert_eq!(unread(run, true).0, Some(7));
}

#[test]
fn mistakes_are_answered_with_what_was_meant() {
    let world = World::sqlite();
    let cases: [(&[&str], &[&str]); 15] = [
        (&["run", "x", "./job.sh"], &["put `--` before the command", "tenure run x -- ./job.sh"]),
        (&["work", "mail", "./send.sh", "-v"], &["tenure work mail -- ./send.sh -v"]),
        (&["rnu"], &["similar", "'run'"]),
        (&["leader", "list", "--store", "tenure.db"], &["sqlite:tenure.db"]),
        (&["leader", "list", "--store", "./data/tenure"], &["sqlite:./data/tenure"]),
        (&["leader", "list", "--store", "127.0.0.1:8368"], &["http://127.0.0.1:8368"]),
        (&["leader", "list", "--store", "web-1:8368"], &["http://web-1:8368"]),
        (&["run", "x", "--priority", "high", "--", "true"], &["\"high\"", "whole number", "100"]),
        (&["tasks", "submit", "mail", "--priority", "high"], &["\"high\"", "whole number"]),
        (&["schedule", "create", "s", "* * *", "--task", "mail"], &["month is missing", "5 fields"]),
        (
            &["work", "mail", "--store", "etcd://127.0.0.1:1", "--", "true"],
            &["etcd holds no tasks", "postgres://"],
        ),
        (&["tasks", "list", "--store", "k8s:default"], &["Kubernetes holds no tasks"]),
        (&["leader", "list", "--namespace", ""], &["--namespace", "empty", "default"]),
        (&["leader", "list", "--namespace", "a b"], &["--namespace", "a b"]),
        (&["leader", "list", "--store-file", "/no/such/file"], &["--store-file", "/no/such/file"]),
    ];
    for (args, words) in cases {
        refused(&world, args, 64, words);
    }
    let foreign = world
        .command(&["leader", "list"])
        .env_remove("TENURE_STORE")
        .env("DATABASE_URL", "mysql://u:secret@h/d")
        .output();
    let foreign = foreign.expect("tenure runs");
    let text = said(&foreign);
    assert_eq!(foreign.status.code(), Some(64), "{text}");
    assert!(
        text.contains("$DATABASE_URL") && text.contains("TENURE_STORE") && !text.contains("secret"),
        "{text}"
    );
}

#[test]
fn a_mistyped_namespace_is_answered_with_those_that_there_are() {
    let world = World::sqlite();
    world.ok(&["run", "nightly", "--namespace", "prod", "--", "true"]);
    let shown = world.ok(&["leader", "list", "--namespace", "prdo"]);
    assert!(shown.contains("namespace prdo") && shown.contains("prod"), "{shown}");
}

/// A leader that was killed was once shown as leading for ever, where no other process was on the store.
fn a_dead_leader_is_shown_as_expired(world: World) {
    let mut command = world.command(&["elect", "nightly", "--id", "gone", "--lease", "1s", "-o", "json"]);
    let mut process = command.stdout(Stdio::piped()).spawn().expect("tenure runs");
    let mut lines = BufReader::new(process.stdout.take().expect("its output")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("leading")));
    assert_eq!(world.leader().as_deref(), Some("gone"));
    process.kill().expect("it runs");
    process.wait().expect("it ends");
    until("the reader has seen that it is dead", || world.leader().is_none(), || world.logs());
    let shown = world.json(&["leader", "list", "-o", "json"]);
    assert_eq!(shown[0]["expired"][0]["id"], "gone", "{shown}");
    let table = world.ok(&["leader", "list"]);
    assert!(table.contains("expired") && !table.contains(" led"), "{table}");
    let shown = world.ok(&["leader", "show", "nightly"]);
    assert!(shown.contains("nobody leads: gone died under token") && !shown.contains(" leads\n"), "{shown}");
}

#[test]
fn a_dead_leader_on_sqlite_is_shown_as_expired() {
    a_dead_leader_is_shown_as_expired(World::sqlite());
}

#[test]
fn a_dead_leader_on_postgres_is_shown_as_expired() {
    a_dead_leader_is_shown_as_expired(World::postgres());
}

/// `schedule set --help` once named the defaults of `create`, which `set` does not apply.
#[test]
fn the_help_of_set_promises_no_defaults() {
    let world = World::sqlite();
    let help = world.ok(&["schedule", "set", "--help"]);
    assert!(help.contains("[default: unchanged]") && !help.contains("[default: fire_once]"), "{help}");
    assert!(world.ok(&["schedule", "create", "--help"]).contains("[default: fire_once]"));
}

/// `bench` once wrote into the default namespace of whatever store was configured, and asked nobody.
#[test]
fn a_bench_keeps_to_its_own_namespace_and_asks_on_a_store_that_is_in_use() {
    let world = World::sqlite();
    let bench =
        ["bench", "assign", "--replicas", "1", "--modes", "distributed", "--tasks", "20", "--callers", "2"];
    let bench = |more: &[&str]| {
        let output =
            world.command(&bench).args(more).args(["--svg", "/dev/null"]).output().expect("tenure runs");
        (output.status.code(), said(&output))
    };
    let (code, text) = bench(&[]);
    assert_eq!(code, Some(0), "an empty store needs no question: {text}");
    let (code, text) = bench(&[]);
    assert_eq!(code, Some(0), "what a bench left is no use: {text}");
    let queues = world.json(&["queue", "list", "-A", "-o", "json"]);
    let namespaces: Vec<_> =
        queues.as_array().expect("a list").iter().map(|queue| queue["namespace"].as_str()).collect();
    assert!(
        !namespaces.is_empty() && namespaces.iter().all(|name| *name == Some("tenure-bench")),
        "{queues}"
    );
    world.ok(&["tasks", "submit", "mail"]);
    let (code, text) = bench(&[]);
    assert_eq!(code, Some(64), "{text}");
    assert!(text.contains("in use") && text.contains("default") && text.contains("--yes"), "{text}");
    assert_eq!(bench(&["--yes"]).0, Some(0));
}
