//! Baseline: `etcdctl elect`.

use std::process::Stdio;
use std::time::Duration;

use tenure::runtime::now;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::{BenchError, median_ms};

/// A candidate run by `etcdctl elect`.
struct EtcdctlCandidate {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl EtcdctlCandidate {
    fn campaign(address: &str, election: &str) -> Result<EtcdctlCandidate, BenchError> {
        let mut child = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", address, "elect", election, "candidate"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let stdout =
            child.stdout.take().ok_or_else(|| BenchError::Helper("etcdctl has no standard output".into()))?;
        Ok(EtcdctlCandidate { child, lines: BufReader::new(stdout).lines() })
    }

    /// Wait until it leads; it then prints its key and its value.
    async fn elected(&mut self) -> Result<(), BenchError> {
        let output_text = self.lines.next_line().await?;
        output_text.map(drop).ok_or_else(|| BenchError::Helper("etcdctl elect ended before it led".into()))
    }

    fn interrupt(&self) -> Result<(), BenchError> {
        let gone = || BenchError::Helper("etcdctl elect has ended".into());
        let pid = self.child.id().and_then(|pid| libc::pid_t::try_from(pid).ok()).ok_or_else(gone)?;
        signal(pid, libc::SIGINT);
        Ok(())
    }
}

#[allow(unsafe_code)]
fn signal(pid: libc::pid_t, number: libc::c_int) {
    // SAFETY: kill(2) touches no memory of this process; the child was not reaped.
    unsafe { libc::kill(pid, number) };
}

/// Median time from the interruption of the leader until its successor leads.
pub(super) async fn handover_ms(address: &str, rounds: u32) -> Result<f64, BenchError> {
    let mut times = Vec::new();
    for round in 0..rounds {
        let election = format!("bench-{}-{round}", std::process::id());
        let mut first = EtcdctlCandidate::campaign(address, &election)?;
        first.elected().await?;
        let mut second = EtcdctlCandidate::campaign(address, &election)?;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let start = now();
        first.interrupt()?;
        second.elected().await?;
        times.push(now().since(start));
        first.child.wait().await?;
        second.child.kill().await?;
    }
    Ok(median_ms(times))
}

/// Time from `kill -9` of the leader until its successor leads, measured once: the lease of one minute cannot be
/// changed.
pub(super) async fn crash_ms(address: String) -> Result<f64, BenchError> {
    let election = format!("bench-crash-{}", std::process::id());
    let mut first = EtcdctlCandidate::campaign(&address, &election)?;
    first.elected().await?;
    let mut second = EtcdctlCandidate::campaign(&address, &election)?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let start = now();
    first.child.kill().await?;
    second.elected().await?;
    let time = now().since(start);
    second.child.kill().await?;
    Ok(median_ms(vec![time]))
}
