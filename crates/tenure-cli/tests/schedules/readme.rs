//! Code blocks of the README about schedules, each in an empty folder.

use crate::readme_blocks::{Program, block, runs_as_written};
use crate::support::until;

const SECTION: &str = "Schedules";

/// The program of the README, verbatim.
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
    runs_as_written(&block(SECTION, "sh", "schedules apply"), folder.path(), &[]);
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
    assert!(program.line_with("pulse of pulse").is_some(), "a tick fired");
    until(
        "it has set the other schedule",
        || program.world.run(&["schedules", "show", "nightly"]).status.success(),
        String::new,
    );
    program.end();
}
