//! What the README says about work, as it is written, each from an empty folder.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::readme_blocks::{block, runs_as_written};
use crate::support::{Server, World, until};

/// The README's program, letter by letter.
mod example {
    include!("example.rs");

    pub fn run() -> Result<(), Box<dyn std::error::Error>> {
        main()
    }
}

const SECTION: &str = "Hand out work";

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
    let line = lines.find(|line| line.contains("welcome"));
    assert!(line.is_some_and(|line| line.contains("welcome \"ada\", under token 1")));
    let told = Command::new("kill").args(["-INT", &program.id().to_string()]).status();
    assert!(told.expect("kill runs").success());
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
    let mut world = World::sqlite();
    world.store = format!("sqlite:{}", folder.path().join("tenure.db").display());
    let task = world.json(&["tasks", "show", "1", "-o", "json"]);
    assert_eq!(
        (task["state"].as_str(), task["output"].as_str()),
        (Some("completed"), Some("sent")),
        "{task}"
    );
}
