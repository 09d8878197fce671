//! Starts one cluster for many test processes, runs a command with its URL in `TENURE_TEST_PG`, and exits with the
//! command's exit code. The cluster is removed when this process ends, in any way.
//!
//! With `--durable` it syncs to disk as a production server does. Tests do not need that: their cluster is in memory
//! if there is enough of it, because creating and dropping a database per test mostly costs file operations.
//!
//! `cargo run -p tenure-testkit --example with-postgres -- cargo nextest run`

use std::process::{Command, ExitCode};

use tenure_testkit::rig::{PgCluster, RigError};

/// Required free memory: many times the size of the databases of all concurrent tests.
const PLENTY_MB: u64 = 8 << 10;

/// An in-memory directory with enough free space, if there is one.
fn in_memory() -> Option<&'static str> {
    let folder = "/dev/shm";
    let reported = Command::new("df").args(["--block-size=1M", "--output=avail", folder]).output().ok()?;
    let room = String::from_utf8_lossy(&reported.stdout).lines().nth(1)?.trim().parse::<u64>().ok()?;
    (room >= PLENTY_MB).then_some(folder)
}

fn main() -> Result<ExitCode, RigError> {
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
        // A command that was ended by a signal has no exit code.
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
