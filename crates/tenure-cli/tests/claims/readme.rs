//! What the README says about work, as it is written, each from an empty folder.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Server, World, until};

/// The README's program, letter by letter.
mod example {
    include!("example.rs");

    pub fn run() -> Result<(), Box<dyn std::error::Error>> {
        main()
    }
}

/// A block of code, and what it prints.
struct Block<'a> {
    language: &'a str,
    code: &'a str,
    prints: &'a str,
}

fn blocks() -> Vec<Block<'static>> {
    let text = include_str!("../../../../README.md");
    let (_, text) = text.split_once("\n## Hand out work\n").expect("the section on work");
    let (text, _) = text.split_once("\n## ").expect("the next section");
    let mut blocks: Vec<Block<'_>> = Vec::new();
    for (n, part) in text.split("```").enumerate() {
        match part.split_once('\n').filter(|_| n % 2 == 1) {
            Some(("json", prints)) => blocks.last_mut().expect("nothing prints that").prints = prints,
            Some((language, code)) => blocks.push(Block { language, code, prints: "" }),
            None => {}
        }
    }
    blocks
}

fn block(language: &str, word: &str) -> Block<'static> {
    let mut fitting: Vec<_> = blocks()
        .into_iter()
        .filter(|block| block.language == language && block.code.contains(word))
        .collect();
    assert_eq!(fitting.len(), 1, "one block of {language} with {word:?}");
    fitting.remove(0)
}

/// Runs a block by a shell that finds `tenure`, and nothing of ours in its environment.
fn runs_as_written(block: &Block<'_>, folder: &Path, address: Option<&str>) {
    let binary = Path::new(env!("CARGO_BIN_EXE_tenure")).parent().expect("a folder").display().to_string();
    let path = format!("{binary}:{}", std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", block.code]).current_dir(folder).stdin(Stdio::null());
    for (name, _) in std::env::vars() {
        if name.starts_with("TENURE_") || name == "DATABASE_URL" || name == "NODE_ID" {
            shell.env_remove(name);
        }
    }
    shell.env("PATH", path).envs(address.map(|address| ("T", address)));
    let output = shell.output().expect("this test needs bash, curl, jq and sqlite3");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), block.prints, "{}\n{errors}", block.code);
    assert!(output.status.success(), "{errors}");
}

#[test]
fn the_shell_of_the_readme_runs_as_written() {
    let folder = tempfile::tempdir().expect("a folder");
    runs_as_written(&block("sh", "tenure work"), folder.path(), None);
}

#[test]
fn the_curl_of_the_readme_runs_as_written() {
    let world = World::sqlite();
    let server = Server::start(&world, "server");
    runs_as_written(&block("sh", "curl"), world.folder.path(), Some(&server.url));
}

#[test]
fn the_sql_of_the_readme_runs_as_written() {
    let folder = tempfile::tempdir().expect("a folder");
    runs_as_written(&block("sh", "sqlite3"), folder.path(), None);
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
        block("rust", "main").code,
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
