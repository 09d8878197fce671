//! What the README says about schedules, as it is written, each from an empty folder.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::readme_blocks::{block, runs_as_written};
use crate::support::{World, until};

const SECTION: &str = "Let it happen on time";

/// The README's program, letter by letter.
mod example {
    include!("example.rs");

    pub fn run() -> Result<(), Box<dyn std::error::Error>> {
        main()
    }
}

#[test]
fn a_schedule_an_event_and_its_consumer_run_as_written() {
    let folder = tempfile::tempdir().expect("a folder");
    runs_as_written(&block(SECTION, "sh", "events consume"), folder.path(), &[]);
}

#[test]
fn a_schedule_a_task_and_its_worker_run_as_written() {
    let folder = tempfile::tempdir().expect("a folder");
    runs_as_written(&block(SECTION, "sh", "tenure work"), folder.path(), &[]);
}

#[test]
fn a_file_of_schedules_is_applied_as_written() {
    let folder = tempfile::tempdir().expect("a folder");
    runs_as_written(&block(SECTION, "sh", "schedule apply"), folder.path(), &[]);
}

/// In a process of its own: the program, until it is told to end.
#[test]
fn example_role() {
    if std::env::var_os("README_EXAMPLE").is_some() {
        example::run().expect("it runs");
    }
}

#[test]
fn the_rust_of_the_readme_runs_as_written() {
    assert_eq!(
        block(SECTION, "rust", "main").code,
        include_str!("example.rs"),
        "the README and the program that is tested"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let mut program = Command::new(std::env::current_exe().expect("this test"));
    program.args(["readme::example_role", "--exact", "--nocapture", "--test-threads=1"]);
    program.env("README_EXAMPLE", "1").current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut program = program.spawn().expect("it runs");
    let mut lines = BufReader::new(program.stdout.take().expect("its output")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("pulse of pulse")), "a tick came");
    let mut world = World::sqlite();
    world.store = format!("sqlite:{}", folder.path().join("tenure.db").display());
    until(
        "it has set the other schedule",
        || world.run(&["schedule", "show", "nightly"]).status.success(),
        String::new,
    );
    let told = Command::new("kill").args(["-INT", &program.id().to_string()]).status();
    assert!(told.expect("kill runs").success());
    // What it prints while it ends must not keep it from ending.
    std::thread::spawn(move || lines.for_each(drop));
    let mut code = None;
    until(
        "it ends",
        || {
            code = program.try_wait().expect("waiting");
            code.is_some()
        },
        String::new,
    );
    assert!(code.is_some_and(|code| code.success()));
}
