//! The `tenure` binary.

mod allocator;
mod args;
mod child;
mod commands;
mod error;
mod output;
mod store;
#[cfg_attr(feature = "otel", path = "telemetry/on.rs")]
#[cfg_attr(not(feature = "otel"), path = "telemetry/off.rs")]
mod telemetry;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    // Must run before any thread exists. The watchdog is this same program.
    child::watchdog_main_if_requested();
    if let Some(code) = commands::end_sessions::main_if_requested() {
        return code;
    }
    let mut cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Ignore write errors: the reader of the pipe may be gone.
            let _ = error.print();
            if let Some(tip) = args::tip(&error, std::env::args()) {
                output::err_line(format_args!("\n  tip: {tip}"));
            }
            return ExitCode::from(if error.use_stderr() { error::USAGE } else { 0 });
        }
    };
    // Must run while the process has one thread.
    commands::environment::hide_passwords_in_arguments(&cli.global, cli.store_urls());
    if let Err(failure) = store::read_file(&mut cli.global) {
        failure.report();
        return ExitCode::from(failure.code);
    }
    allocator::use_single_arena();
    output::init(&cli.global, output::LogOptions::of(&cli.command));
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::err_line(format_args!("tenure: cannot start: {error}"));
            return ExitCode::from(error::INTERNAL_ERROR);
        }
    };
    let outcome = runtime.block_on(dispatch(cli));
    telemetry::flush();
    // A thread that still blocks, for example on a kernel lock, must not delay the exit.
    runtime.shutdown_background();
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.report();
            ExitCode::from(failure.code)
        }
    }
}

async fn dispatch(cli: Cli) -> Result<u8, error::CliError> {
    let global = cli.global;
    store::check(&global, cli.command.uses_work())?;
    match cli.command {
        Command::Run(args) => commands::run::run(&global, args).await,
        Command::Campaign(args) => commands::campaign::run(&global, args).await,
        Command::Serve(args) => commands::serve::run(&global, args).await,
        Command::Elections(args) => commands::elections::run(&global, args).await,
        Command::Gossip(args) => commands::gossip::run(&global, args).await,
        Command::Names(args) => commands::names::run(&global, args).await,
        Command::Tasks(args) => commands::tasks::run(&global, args).await,
        Command::Work(args) => commands::work::run(&global, args).await,
        Command::Queues(args) => commands::queues::run(&global, args).await,
        Command::Workers(args) => commands::workers::run(&global, args).await,
        Command::Pools(args) => commands::pools::run(&global, args).await,
        Command::Events(args) => commands::events::run(&global, args).await,
        Command::Schedules(args) => commands::schedules::run(&global, args).await,
        Command::Epoch(args) => commands::epoch::run(&global, args).await,
        Command::Migrate(args) => commands::migrate::run(&global, args).await,
        Command::Credentials(args) => commands::credentials::run(&global, args).await,
        Command::Raft(args) => commands::raft::run(&global, args).await,
        Command::Advise(args) => commands::advise::run(&global, args),
        Command::Doctor(args) => commands::doctor::run(&global, args).await,
        Command::Bench(args) => commands::bench::run(&global, args).await,
        Command::Completions { shell } => commands::completions::completions(shell),
        Command::Man { all: Some(directory), .. } => commands::completions::man_all(&directory),
        Command::Man { command, all: None } => commands::completions::man(&command),
    }
}
