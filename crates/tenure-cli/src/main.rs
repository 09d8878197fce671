//! The `tenure` binary: one file per command.

mod args;
mod child;
mod commands;
mod exit;
mod memory;
mod output;
mod store;
#[cfg_attr(feature = "otel", path = "telemetry/on.rs")]
#[cfg_attr(not(feature = "otel"), path = "telemetry/off.rs")]
mod telemetry;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    // Before any thread exists: the watchdog is this same program.
    child::watchdog_main_if_asked();
    if let Some(code) = commands::end_sessions::main_if_asked() {
        return code;
    }
    let mut cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no failures; whoever closed the pipe does not want to know.
            let _ = error.print();
            if let Some(tip) = args::tip(&error, std::env::args()) {
                output::err_line(format_args!("\n  tip: {tip}"));
            }
            return ExitCode::from(if error.use_stderr() { exit::USAGE } else { 0 });
        }
    };
    // While there is one thread.
    commands::environment::hide_typed_passwords(&cli.global, cli.addresses());
    if let Err(failure) = store::read_file(&mut cli.global) {
        failure.report();
        return ExitCode::from(failure.code);
    }
    memory::one_heap();
    output::init(&cli.global, output::Log::of(&cli.command));
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::err_line(format_args!("tenure: cannot start: {error}"));
            return ExitCode::from(exit::OWN_FAILURE);
        }
    };
    let outcome = runtime.block_on(dispatch(cli));
    telemetry::flush();
    // Whatever still blocks in a thread of ours (a kernel lock being waited for) must not hold up the exit.
    runtime.shutdown_background();
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.report();
            ExitCode::from(failure.code)
        }
    }
}

async fn dispatch(cli: Cli) -> Result<u8, exit::Failure> {
    let global = cli.global;
    store::check(&global, cli.command.uses_work())?;
    match cli.command {
        Command::Run(args) => commands::run::run(&global, args).await,
        Command::Elect(args) => commands::elect::run(&global, args).await,
        Command::Watch(args) => commands::watch::run(&global, args).await,
        Command::Serve(args) => commands::serve::run(&global, args).await,
        Command::Leader(args) => commands::leader::run(&global, args).await,
        Command::Members(args) => commands::members::run(&global, args).await,
        Command::Names(args) => commands::names::run(&global, args).await,
        Command::Tasks(args) => commands::tasks::run(&global, args).await,
        Command::Work(args) => commands::work::run(&global, args).await,
        Command::Queue(args) => commands::queue::run(&global, args).await,
        Command::Workers(args) => commands::workers::run(&global, args).await,
        Command::Pool(args) => commands::pool::run(&global, args).await,
        Command::Events(args) => commands::events::run(&global, args).await,
        Command::Schedule(args) => commands::schedule::run(&global, args).await,
        Command::Epoch(args) => commands::epoch::run(&global, args).await,
        Command::Migrate(args) => commands::migrate::run(&global, args).await,
        Command::Token(args) => commands::token::run(&global, args).await,
        Command::Raft(args) => commands::raft::run(&global, args).await,
        Command::Advise(args) => commands::advise::run(&global, args),
        Command::Doctor(args) => commands::doctor::run(&global, args).await,
        Command::Bench(args) => commands::bench::run(&global, args).await,
        Command::Completions { shell } => commands::shell::completions(shell),
        Command::Man => commands::shell::man(),
    }
}
