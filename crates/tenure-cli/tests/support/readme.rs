//! What the README says, as it is written.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

use crate::support::{Candidate, World};

/// A block of code, and what it prints.
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
            Some(("json", prints)) => blocks.last_mut().expect("nothing prints that").prints = prints,
            Some((language, code)) => blocks.push(Block { language, code, prints: "" }),
            None => {}
        }
    }
    blocks
}

/// The block of this language in which this word stands.
pub fn block(section: &str, language: &str, word: &str) -> Block {
    let mut fitting: Vec<_> = blocks(section)
        .into_iter()
        .filter(|block| block.language == language && block.code.contains(word))
        .collect();
    assert_eq!(fitting.len(), 1, "one block of {language} with {word:?}");
    fitting.remove(0)
}

/// A program that finds `tenure`, and nothing of ours in its environment.
pub fn outside(program: &str, folder: &Path) -> Command {
    let binary = Path::new(env!("CARGO_BIN_EXE_tenure")).parent().expect("a folder").display().to_string();
    let mut command = Command::new(program);
    command.current_dir(folder).stdin(Stdio::null());
    for (name, _) in std::env::vars() {
        if name.starts_with("TENURE_") || name == "DATABASE_URL" || name == "NODE_ID" {
            command.env_remove(name);
        }
    }
    command.env("PATH", format!("{binary}:{}", std::env::var("PATH").unwrap_or_default()));
    command
}

/// Runs a block by a shell, with these variables besides; it prints what the README says that it prints.
pub fn runs_as_written(block: &Block, folder: &Path, variables: &[(&str, &str)]) {
    let mut shell = outside("bash", folder);
    shell.args(["-euo", "pipefail", "-c", block.code]).envs(variables.iter().copied());
    let output = shell.output().expect("this test needs bash, curl, jq, psql and sqlite3");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), block.prints, "{}\n{errors}", block.code);
    assert!(output.status.success(), "{errors}");
}

/// A section's program in Rust, as a process of its own in an empty folder: the test `readme::example_role` is its `main`.
pub struct Program {
    process: Candidate,
    lines: Lines<BufReader<ChildStdout>>,
    /// Its folder, and its store there.
    pub world: World,
}

impl Program {
    /// Starts it; what is tested is what the README has.
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

    /// The next line that it prints with this word.
    pub fn line_with(&mut self, word: &str) -> Option<String> {
        self.lines.by_ref().map_while(Result::ok).find(|line| line.contains(word))
    }

    /// Waits until it has ended by itself, well; what it leaves behind.
    #[allow(dead_code, reason = "not every example ends by itself")]
    pub fn wait(self) -> World {
        let Program { mut process, lines, world } = self;
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        assert_eq!(process.wait(), Some(0));
        world
    }

    /// Tells it to end, and it ends well; what it leaves behind.
    pub fn end(self) -> World {
        let Program { mut process, lines, world } = self;
        process.signal("INT");
        // What it prints while it ends must not keep it from ending.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        assert_eq!(process.wait(), Some(0));
        world
    }
}
