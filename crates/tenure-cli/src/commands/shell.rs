//! `tenure completions` and `tenure man`.

use clap::CommandFactory;

use crate::args::Cli;
use crate::exit::Failure;

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<u8, Failure> {
    clap_complete::generate(shell, &mut Cli::command(), "tenure", &mut std::io::stdout());
    Ok(0)
}

/// The manual of `tenure` and of each of its commands, one after the other.
pub(crate) fn man() -> Result<u8, Failure> {
    let mut command = Cli::command();
    command.build();
    print_man(&command)?;
    Ok(0)
}

fn print_man(command: &clap::Command) -> Result<(), Failure> {
    clap_mangen::Man::new(command.clone()).render(&mut std::io::stdout())?;
    command.get_subcommands().filter(|sub| sub.get_name() != "help").try_for_each(print_man)
}
