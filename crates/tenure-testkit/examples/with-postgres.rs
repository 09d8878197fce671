//! Starts one cluster for many test processes, runs a command with its address in `TENURE_TEST_PG`, and ends with the
//! command's exit code. The cluster goes when this process does, however that happens.
//!
//! With `--durable` it waits for the disk as a server in production does; tests do without.
//!
//! `cargo run -p tenure-testkit --example with-postgres -- cargo nextest run`

use std::process::{Command, ExitCode};

use tenure_testkit::rig::{Error, PgCluster};

fn main() -> Result<ExitCode, Error> {
    let mut words = std::env::args_os().skip(1).peekable();
    let durable = words.next_if(|word| word == "--durable").is_some();
    let Some(program) = words.next() else {
        eprintln!("usage: with-postgres [--durable] COMMAND [ARGUMENT ...]");
        return Ok(ExitCode::from(2));
    };
    let builder = PgCluster::builder().settings(&[("max_connections", "300")]);
    let cluster = if durable { builder.durable() } else { builder }.start()?;
    let mut command = Command::new(&program);
    cluster.share_with(command.args(words));
    match command.status() {
        // A command that a signal ended has no code.
        Ok(status) => Ok(status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .map_or(ExitCode::FAILURE, ExitCode::from)),
        Err(error) => {
            eprintln!("cannot run {}: {error}", program.display());
            Ok(ExitCode::from(127))
        }
    }
}
