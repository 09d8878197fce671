//! What the README says, as it is written.

use std::path::Path;
use std::process::{Command, Stdio};

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
