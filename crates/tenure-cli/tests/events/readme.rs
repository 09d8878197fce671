//! Code blocks of the README about events, each in an empty folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::all;
use crate::readme_blocks::{Program, block, outside, runs_as_written};
use crate::support::World;

const SECTION: &str = "Events";

/// Python package for the README, installed from PyPI into a folder under the target directory.
const PSYCOPG: &str = "psycopg[binary]==3.3.8";

/// The program of the README, verbatim.
mod example {
    include!("example.rs");

    pub fn run() -> Result<(), Box<dyn std::error::Error>> {
        main()
    }
}

#[test]
fn the_shell_of_the_readme_runs_as_written() {
    let folder = tempfile::tempdir().expect("a folder");
    runs_as_written(&block(SECTION, "sh", "events consume"), folder.path(), &[]);
}

#[test]
fn the_psql_of_the_readme_runs_as_written() {
    let world = World::empty_postgres();
    psql_runs(&world);
}

/// With the variables of the preceding blocks.
fn psql_runs(world: &World) {
    let known = [("TENURE_STORE", "sqlite:tenure.db"), ("DATABASE_URL", &world.store)];
    runs_as_written(&block(SECTION, "sh", "psql"), world.folder.path(), &known);
}

/// Asserts that the events of the README are published.
fn the_orders_are_there(world: &World, keys: &[&str]) {
    let events = all(world, "orders");
    assert_eq!(events.len(), keys.len(), "{events:?}");
    for key in keys {
        let event = events.iter().find(|event| event["key"] == *key).expect("it was published");
        for (field, value) in [("type", json!("order.paid")), ("payload", json!({"cents": 4200}))] {
            assert_eq!(event[field], value, "{field} of {event}");
        }
    }
}

fn python_runs(python: &Path, world: &World, code: &str) {
    let output = outside(&python.display().to_string(), world.folder.path())
        .args(["-c", code])
        .env("TENURE_STORE", &world.store)
        .output()
        .expect("this test needs python3");
    assert!(output.status.success(), "{code}\n{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_python_of_the_readme_runs_as_written_on_sqlite() {
    let world = World::sqlite();
    world.ok(&["events", "topics", "create", "orders"]);
    let code = block(SECTION, "python", "sqlite3").code;
    python_runs(Path::new("python3"), &world, code);
    the_orders_are_there(&world, &["order-7"]);
    // The second run fails because order 7 exists, and publishes no event.
    let again = outside("python3", world.folder.path()).args(["-c", code]).output().expect("python3");
    assert!(!again.status.success());
    the_orders_are_there(&world, &["order-7"]);
}

/// After the preceding block of the README, in the same database.
#[test]
fn the_python_of_the_readme_runs_as_written_on_postgres() {
    let world = World::empty_postgres();
    psql_runs(&world);
    let code = block(SECTION, "python", "psycopg").code;
    let python = python_with_psycopg();
    python_runs(&python, &world, code);
    the_orders_are_there(&world, &["order-7", "order-8"]);
    let again = outside(&python.display().to_string(), world.folder.path())
        .args(["-c", code])
        .env("TENURE_STORE", &world.store)
        .output();
    assert!(!again.expect("python").status.success());
    the_orders_are_there(&world, &["order-7", "order-8"]);
}

/// A Python with `psycopg`: that of the machine, or a virtual environment that is created once.
fn python_with_psycopg() -> PathBuf {
    let has = |python: &Path| {
        let import = Command::new(python).args(["-c", "import psycopg"]).output();
        import.is_ok_and(|output| output.status.success())
    };
    if has(Path::new("python3")) {
        return "python3".into();
    }
    let target = Path::new(env!("CARGO_BIN_EXE_tenure")).ancestors().nth(2).expect("the target folder");
    let venv = target.join(PSYCOPG.replace(['[', ']', '='], "-"));
    let python = venv.join("bin/python");
    if !has(&python) {
        let make = |program: &Path, args: &[&str]| {
            let output =
                Command::new(program).args(args).output().expect("this test needs python3 with venv");
            assert!(
                output.status.success(),
                "{program:?} {args:?}, which needs the network the first time: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        };
        make(Path::new("python3"), &["-m", "venv", "--clear", &venv.display().to_string()]);
        make(&venv.join("bin/pip"), &["install", "--quiet", "--disable-pip-version-check", PSYCOPG]);
    }
    python
}

/// Runs the program in a separate process until SIGINT.
#[test]
fn example_role() {
    if std::env::var_os("README_EXAMPLE").is_some() {
        example::run().expect("it runs");
    }
}

#[test]
fn the_rust_of_the_readme_runs_as_written() {
    let mut program = Program::start(SECTION, include_str!("example.rs"));
    assert!(
        program.line_with("order.paid").is_some_and(|line| line.contains("order.paid of Some(\"order-7\")"))
    );
    let world = program.end();
    let group = world.json(&["events", "groups", "show", "orders", "books", "-o", "json"]);
    let unread: u64 = group["partitions"]
        .as_array()
        .expect("partitions")
        .iter()
        .filter_map(|it| it["lag_events"].as_u64())
        .sum();
    assert_eq!(
        (unread, &group["dead_letter_count"], &group["members"]),
        (0, &json!(0), &json!([])),
        "{group}"
    );
}
