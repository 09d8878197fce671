//! Code blocks of the README about queues, each in an empty folder.

use crate::readme_blocks::{Program, block, runs_as_written};
use crate::support::{Server, World};

/// The program of the README, verbatim.
mod example {
    include!("example.rs");

    pub fn run() -> Result<(), Box<dyn std::error::Error>> {
        main()
    }
}

const SECTION: &str = "Queues";

#[test]
fn the_shell_of_the_readme_runs_as_written() {
    let folder = tempfile::tempdir().expect("a folder");
    runs_as_written(&block(SECTION, "sh", "tenure work"), folder.path(), &[]);
}

#[test]
fn the_curl_of_the_readme_runs_as_written() {
    let world = World::sqlite();
    let server = Server::start(&world, "server");
    runs_as_written(&block(SECTION, "sh", "curl"), world.folder.path(), &[("T", &server.url)]);
}

#[test]
fn the_sql_of_the_readme_runs_as_written() {
    let folder = tempfile::tempdir().expect("a folder");
    runs_as_written(&block(SECTION, "sh", "sqlite3"), folder.path(), &[]);
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
    assert!(program.line_with("welcome").is_some_and(|line| line.contains("welcome \"ada\", under token 1")));
    let world = program.end();
    let task = world.json(&["tasks", "show", "1", "-o", "json"]);
    assert_eq!(
        (task["state"].as_str(), task["result"].as_str()),
        (Some("completed"), Some("sent")),
        "{task}"
    );
}
