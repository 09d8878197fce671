//! Starts the fake API server of the tests, runs a command with its store URL in `TENURE_TEST_K8S`, and exits with
//! the command's exit code. It keeps only Leases, in memory: measurements with it show the calls of Tenure, not the
//! speed of a cluster.
//!
//! `cargo run -p tenure-testkit --example with-kubernetes -- sh -c 'tenure bench stores --also "$TENURE_TEST_K8S"'`

use std::process::{Command, ExitCode};

use tenure_testkit::rig::KubeApi;

fn main() -> std::io::Result<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    let Some(program) = words.next() else {
        eprintln!("usage: with-kubernetes COMMAND [ARGUMENT ...]");
        return Ok(ExitCode::from(2));
    };
    let api = KubeApi::start()?;
    let status = Command::new(&program).args(words).env("TENURE_TEST_K8S", api.url("default")).status()?;
    // A command that was ended by a signal has no exit code.
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
