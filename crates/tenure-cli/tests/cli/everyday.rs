//! Regressions that new users found.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::support::{World, output_text, refused, until};

/// Runs a command whose stdout or stderr is a closed pipe.
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

/// Regression: `tenure completions bash | head` panicked.
#[test]
fn a_command_with_a_closed_stdout_exits_quietly() {
    let world = World::sqlite();
    world.ok(&["tasks", "submit", "mail"]);
    for args in
        [&["completions", "bash"][..], &["man"], &["--help"], &["elections", "list"], &["tasks", "list"]]
    {
        assert_eq!(unread(world.command(args), false), (Some(0), String::new()), "{args:?}");
    }
}

/// A closed stderr must not stop the command of `tenure run`.
#[test]
fn a_closed_stderr_does_not_stop_the_command() {
    let world = World::sqlite();
    let run = world.command(&["run", "nightly", "-vv", "--", "sh", "-c", "exit 7"]);
    assert_eq!(unread(run, true).0, Some(7));
}

#[test]
fn mistakes_are_reported_with_a_suggestion() {
    let world = World::sqlite();
    let cases: [(&[&str], &[&str]); 15] = [
        (&["run", "x", "./job.sh"], &["put `--` before the command", "tenure run x -- ./job.sh"]),
        (&["work", "mail", "./send.sh", "-v"], &["tenure work mail -- ./send.sh -v"]),
        (&["rnu"], &["similar", "'run'"]),
        (&["elections", "list", "--store", "tenure.db"], &["sqlite:tenure.db"]),
        (&["elections", "list", "--store", "./data/tenure"], &["sqlite:./data/tenure"]),
        (&["elections", "list", "--store", "127.0.0.1:8368"], &["http://127.0.0.1:8368"]),
        (&["elections", "list", "--store", "web-1:8368"], &["http://web-1:8368"]),
        (&["run", "x", "--priority", "high", "--", "true"], &["\"high\"", "whole number", "100"]),
        (&["tasks", "submit", "mail", "--priority", "high"], &["\"high\"", "whole number"]),
        (&["schedules", "create", "s", "* * *", "--task", "mail"], &["month is missing", "5 fields"]),
        (
            &["work", "mail", "--store", "etcd://127.0.0.1:1", "--", "true"],
            &["etcd only elects leaders", "postgres://"],
        ),
        (&["tasks", "list", "--store", "k8s:default"], &["Kubernetes only elects leaders"]),
        (&["elections", "list", "--namespace", ""], &["--namespace", "empty", "default"]),
        (&["elections", "list", "--namespace", "a b"], &["--namespace", "a b"]),
        (&["elections", "list", "--store-file", "/no/such/file"], &["--store-file", "/no/such/file"]),
    ];
    for (args, words) in cases {
        refused(&world, args, 64, words);
    }
    let foreign = world
        .command(&["elections", "list"])
        .env_remove("TENURE_STORE")
        .env("DATABASE_URL", "mysql://u:secret@h/d")
        .output();
    let foreign = foreign.expect("tenure runs");
    let text = output_text(&foreign);
    assert_eq!(foreign.status.code(), Some(64), "{text}");
    assert!(
        text.contains("$DATABASE_URL") && text.contains("TENURE_STORE") && !text.contains("secret"),
        "{text}"
    );
}

#[test]
fn a_namespace_without_elections_is_reported_with_the_others() {
    let world = World::sqlite();
    world.ok(&["run", "nightly", "--namespace", "prod", "--", "true"]);
    let shown = world.ok(&["elections", "list", "--namespace", "prdo"]);
    assert!(shown.contains("namespace prdo") && shown.contains("prod"), "{shown}");
}

/// Regression: a killed leader was shown as leading forever if no other process used the store.
fn a_dead_leader_is_shown_as_expired(world: World) {
    let mut command =
        world.command(&["campaign", "nightly", "--name", "gone", "--lease", "1s", "-o", "json"]);
    let mut process = command.stdout(Stdio::piped()).spawn().expect("tenure runs");
    let mut lines = BufReader::new(process.stdout.take().expect("its output")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("leading")));
    assert_eq!(world.leader().as_deref(), Some("gone"));
    process.kill().expect("it runs");
    process.wait().expect("it ends");
    until("the reader detects the dead session", || world.leader().is_none(), || world.logs());
    let shown = world.json(&["elections", "list", "-o", "json"]);
    assert_eq!(shown[0]["expired"][0]["name"], "gone", "{shown}");
    let table = world.ok(&["elections", "list"]);
    assert!(table.contains("expired") && !table.contains(" led"), "{table}");
    let shown = world.ok(&["elections", "show", "nightly"]);
    assert!(
        shown.contains("no leader: the session of gone ended under token") && !shown.contains(" leading\n"),
        "{shown}"
    );
}

#[test]
fn a_dead_leader_on_sqlite_is_shown_as_expired() {
    a_dead_leader_is_shown_as_expired(World::sqlite());
}

#[test]
fn a_dead_leader_on_postgres_is_shown_as_expired() {
    a_dead_leader_is_shown_as_expired(World::postgres());
}

/// Regression: `schedules set --help` printed the defaults of `create`, which `set` does not apply.
#[test]
fn the_help_of_set_prints_no_defaults() {
    let world = World::sqlite();
    let help = world.ok(&["schedules", "set", "--help"]);
    assert!(help.contains("[default: unchanged]") && !help.contains("[default: fire_once]"), "{help}");
    assert!(world.ok(&["schedules", "create", "--help"]).contains("[default: fire_once]"));
}

/// Regression: `bench` wrote to the default namespace of the configured store without confirmation.
#[test]
fn a_bench_uses_its_own_namespace_and_asks_before_it_uses_a_store_in_use() {
    let world = World::sqlite();
    let bench = [
        "bench",
        "claim-modes",
        "--replicas",
        "1",
        "--modes",
        "distributed",
        "--tasks",
        "20",
        "--callers",
        "2",
    ];
    let bench = |more: &[&str]| {
        let output =
            world.command(&bench).args(more).args(["--svg", "/dev/null"]).output().expect("tenure runs");
        (output.status.code(), output_text(&output))
    };
    let (code, text) = bench(&[]);
    assert_eq!(code, Some(0), "an empty store needs no confirmation: {text}");
    let (code, text) = bench(&[]);
    assert_eq!(code, Some(0), "data of a benchmark does not count as use: {text}");
    let queues = world.json(&["queues", "list", "-A", "-o", "json"]);
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
