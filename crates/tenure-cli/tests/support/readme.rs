//! Runs the code blocks of the README.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

use crate::support::{Candidate, World};

/// A code block and its expected output.
pub struct Block {
    pub language: &'static str,
    pub code: &'static str,
    pub prints: &'static str,
}

/// The blocks of a section of the README.
fn blocks(section: &str) -> Vec<Block> {
    let text = include_str!("../../../../README.md");
    let (_, text) = text.split_once(&format!("\n## {section}\n")).expect("the section");
    let (text, _) = text.split_once("\n## ").expect("the next section");
    let mut blocks: Vec<Block> = Vec::new();
    for (n, part) in text.split("```").enumerate() {
        match part.split_once('\n').filter(|_| n % 2 == 1) {
            Some(("json", prints)) => {
                blocks.last_mut().expect("a code block before the output").prints = prints
            }
            Some((language, code)) => blocks.push(Block { language, code, prints: "" }),
            None => {}
        }
    }
    blocks
}

/// The block of this language that contains this word.
pub fn block(section: &str, language: &str, word: &str) -> Block {
    let mut fitting: Vec<_> = blocks(section)
        .into_iter()
        .filter(|block| block.language == language && block.code.contains(word))
        .collect();
    assert_eq!(fitting.len(), 1, "one block of {language} with {word:?}");
    fitting.remove(0)
}

/// A program with `tenure` in its PATH and without tenure variables.
pub fn outside(program: &str, folder: &Path) -> Command {
    let binary = Path::new(env!("CARGO_BIN_EXE_tenure")).parent().expect("a folder").display().to_string();
    let mut command = Command::new(program);
    command.current_dir(folder).stdin(Stdio::null());
    for (name, _) in std::env::vars() {
        if name.starts_with("TENURE_") || name == "DATABASE_URL" {
            command.env_remove(name);
        }
    }
    command.env("PATH", format!("{binary}:{}", std::env::var("PATH").unwrap_or_default()));
    command
}

/// Runs a block in a shell with additional variables, and compares the output with the README.
pub fn runs_as_written(block: &Block, folder: &Path, variables: &[(&str, &str)]) {
    let mut shell = outside("bash", folder);
    shell.args(["-euo", "pipefail", "-c", block.code]).envs(variables.iter().copied());
    let output = shell.output().expect("this test needs bash, curl, jq, psql and sqlite3");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), block.prints, "{}\n{errors}", block.code);
    assert!(output.status.success(), "{errors}");
}

/// The Rust program of a section in a separate process and an empty folder; the test `readme::example_role` is its
/// `main`.
pub struct Program {
    process: Candidate,
    lines: Lines<BufReader<ChildStdout>>,
    /// Its folder and store.
    pub world: World,
}

impl Program {
    /// Starts the program, and checks that the README has the same code.
    pub fn start(section: &str, code: &str) -> Program {
        assert_eq!(block(section, "rust", "main").code, code, "the README and the program that is tested");
        let world = World::sqlite();
        let mut program = Command::new(std::env::current_exe().expect("this test"));
        program.args(["readme::example_role", "--exact", "--nocapture", "--test-threads=1"]);
        program.env("README_EXAMPLE", "1").current_dir(world.folder.path());
        let mut process = program.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it runs");
        let lines = BufReader::new(process.stdout.take().expect("its output")).lines();
        Program { process: Candidate { process, name: "the program".into() }, lines, world }
    }

    /// The next printed line with this word.
    pub fn line_with(&mut self, word: &str) -> Option<String> {
        self.lines.by_ref().map_while(Result::ok).find(|line| line.contains(word))
    }

    /// Waits for its successful exit. Returns its world.
    #[allow(dead_code, reason = "not every example ends by itself")]
    pub fn wait(self) -> World {
        let Program { mut process, lines, world } = self;
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        assert_eq!(process.wait(), Some(0));
        world
    }

    /// Sends SIGINT and waits for a successful exit. Returns its world.
    pub fn end(self) -> World {
        let Program { mut process, lines, world } = self;
        process.signal("INT");
        // Read its output, so that it does not block on a full pipe.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        assert_eq!(process.wait(), Some(0));
        world
    }
}
