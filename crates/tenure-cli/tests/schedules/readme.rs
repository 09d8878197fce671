//! What the README says about schedules, as it is written, each from an empty folder.

use crate::readme_blocks::{Program, block, runs_as_written};
use crate::support::until;

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
    let mut program = Program::start(SECTION, include_str!("example.rs"));
    assert!(program.line_with("pulse of pulse").is_some(), "a tick came");
    until(
        "it has set the other schedule",
        || program.world.run(&["schedule", "show", "nightly"]).status.success(),
        String::new,
    );
    program.end();
}
