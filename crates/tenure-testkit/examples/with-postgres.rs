//! Starts one cluster for many test processes, runs a command with its address in `TENURE_TEST_PG`, and ends with the
//! command's exit code. The cluster goes when this process does, however that happens.
//!
//! With `--durable` it waits for the disk as a server in production does. Tests do without: their cluster lives in memory
//! where there is plenty of it, since most of what a database costs that is made and dropped for each of them is files.
//!
//! `cargo run -p tenure-testkit --example with-postgres -- cargo nextest run`

use std::process::{Command, ExitCode};

use tenure_testkit::rig::{Error, PgCluster};

/// How much room there must be in memory: many times what the databases of all tests that run at once take.
const PLENTY_MB: u64 = 8 << 10;

/// A folder in memory, if there is one with plenty of room.
fn in_memory() -> Option<&'static str> {
    let folder = "/dev/shm";
    let told = Command::new("df").args(["--block-size=1M", "--output=avail", folder]).output().ok()?;
    let room = String::from_utf8_lossy(&told.stdout).lines().nth(1)?.trim().parse::<u64>().ok()?;
    (room >= PLENTY_MB).then_some(folder)
}

fn main() -> Result<ExitCode, Error> {
    let mut words = std::env::args_os().skip(1).peekable();
    let durable = words.next_if(|word| word == "--durable").is_some();
    let Some(program) = words.next() else {
        eprintln!("usage: with-postgres [--durable] COMMAND [ARGUMENT ...]");
        return Ok(ExitCode::from(2));
    };
    let builder = PgCluster::builder().settings(&[("max_connections", "300")]);
    let builder = match in_memory() {
        _ if durable => builder.durable(),
        Some(folder) => builder.inside(folder),
        None => builder,
    };
    let cluster = builder.start()?;
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
