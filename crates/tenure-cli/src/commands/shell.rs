//! `tenure completions` and `tenure man`.

use clap::CommandFactory;

use crate::args::Cli;
use crate::exit::Failure;
use crate::output;

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<u8, Failure> {
    // Not to the standard output directly: clap_complete panics when nobody reads that any more.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tenure", &mut script);
    output::print_text(&String::from_utf8_lossy(&script));
    Ok(0)
}

/// The manual of `tenure` and of each of its commands, one after the other.
pub(crate) fn man() -> Result<u8, Failure> {
    let mut command = Cli::command();
    command.build();
    let mut pages = Vec::new();
    render(&command, &mut pages)?;
    output::print_text(&String::from_utf8_lossy(&pages));
    Ok(0)
}

fn render(command: &clap::Command, pages: &mut Vec<u8>) -> Result<(), Failure> {
    clap_mangen::Man::new(command.clone()).render(pages)?;
    command.get_subcommands().filter(|sub| sub.get_name() != "help").try_for_each(|sub| render(sub, pages))
}
