//! `tenure completions` and `tenure man`.

use std::path::Path;

use clap::CommandFactory;

use crate::args::Cli;
use crate::error::{self, CliError};
use crate::output;

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<u8, CliError> {
    // Through a buffer: clap_complete panics if stdout is closed.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tenure", &mut script);
    output::print_text(&String::from_utf8_lossy(&script));
    Ok(0)
}

/// Prints the manual page of a command, such as `["events", "consume"]`; of `tenure` itself without one.
pub(crate) fn man(names: &[String]) -> Result<u8, CliError> {
    let root = built();
    let mut command = &root;
    for name in names {
        let known = command.find_subcommand(name).filter(|sub| has_page(sub));
        command = known.ok_or_else(|| {
            CliError::usage(format!(
                "the command `tenure {}` does not exist; list the commands with `tenure --help`",
                names.join(" ")
            ))
        })?;
    }
    output::print_text(&String::from_utf8_lossy(&page(command)?));
    Ok(0)
}

/// Writes one manual page per command to a directory: `tenure.1`, `tenure-events-consume.1` and so on.
pub(crate) fn man_all(directory: &Path) -> Result<u8, CliError> {
    let failed = |error: std::io::Error| {
        CliError::new(error::INTERNAL_ERROR, format!("cannot write to {}: {error}", directory.display()))
    };
    std::fs::create_dir_all(directory).map_err(failed)?;
    let root = built();
    for command in with_subcommands(&root) {
        let file = directory.join(format!("{}.1", display_name(command)));
        std::fs::write(file, page(command)?).map_err(failed)?;
    }
    Ok(0)
}

/// The command line with the full names of all subcommands.
fn built() -> clap::Command {
    let mut command = Cli::command();
    command.build();
    command
}

fn display_name(command: &clap::Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// Whether a command has a manual page: hidden commands and `help` have none.
fn has_page(command: &clap::Command) -> bool {
    !command.is_hide_set() && command.get_name() != "help"
}

/// A command and all its subcommands that have a manual page.
fn with_subcommands(command: &clap::Command) -> Vec<&clap::Command> {
    let below = command.get_subcommands().filter(|sub| has_page(sub)).flat_map(with_subcommands);
    std::iter::once(command).chain(below).collect()
}

fn page(command: &clap::Command) -> Result<Vec<u8>, CliError> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_its_own_manual_page() {
        let root = built();
        let names: Vec<&str> = with_subcommands(&root).into_iter().map(display_name).collect();
        for name in
            ["tenure", "tenure-run", "tenure-events-consume", "tenure-events-groups-reset", "tenure-man"]
        {
            assert!(names.contains(&name), "{name} in {names:?}");
        }
        assert!(!names.contains(&"tenure-bench-replica"), "hidden commands have no page");
        for command in with_subcommands(&root) {
            let page = String::from_utf8(page(command).unwrap()).unwrap();
            assert_eq!(page.matches("\n.TH ").count(), 1, "{}", display_name(command));
            assert!(page.lines().count() < 1_000, "{}", display_name(command));
        }
    }

    #[test]
    fn an_unknown_command_has_no_manual_page() {
        let error = man(&["events".to_owned(), "dead".to_owned()]).unwrap_err();
        assert!(error.message().contains("tenure events dead"), "{error:?}");
    }
}
