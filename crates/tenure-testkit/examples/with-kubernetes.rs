//! Starts the API server of the tests, runs a command with its address as a store in `TENURE_TEST_K8S`, and ends with the command's
//! exit code. It keeps Leases in memory and nothing else: what is measured there is what Tenure asks of it, not how fast a cluster answers.
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
    // A command that a signal ended has no code.
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
