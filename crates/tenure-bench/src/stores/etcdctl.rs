//! `etcdctl elect`: what etcd's own tool needs for the same.

use std::process::Stdio;
use std::time::Duration;

use tenure::runtime::now;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::{BenchError, median_ms};

/// A candidate of `etcdctl`.
struct Candidate {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Candidate {
    fn stand(place: &str, election: &str) -> Result<Candidate, BenchError> {
        let mut child = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", place, "elect", election, "candidate"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| BenchError::Helper("etcdctl says nothing".into()))?;
        Ok(Candidate { child, lines: BufReader::new(stdout).lines() })
    }

    /// It says so when it leads: the key, and then its value.
    async fn elected(&mut self) -> Result<(), BenchError> {
        let said = self.lines.next_line().await?;
        said.map(drop).ok_or_else(|| BenchError::Helper("etcdctl elect ended before it led".into()))
    }

    fn interrupt(&self) -> Result<(), BenchError> {
        let gone = || BenchError::Helper("etcdctl elect is gone".into());
        let pid = self.child.id().and_then(|pid| libc::pid_t::try_from(pid).ok()).ok_or_else(gone)?;
        signal(pid, libc::SIGINT);
        Ok(())
    }
}

#[allow(unsafe_code)]
fn signal(pid: libc::pid_t, number: libc::c_int) {
    // SAFETY: kill(2) touches no memory of ours; the process is a child that was not reaped.
    unsafe { libc::kill(pid, number) };
}

/// From the interruption of the leader to the word of the next, as a median.
pub(super) async fn hand_over_ms(place: &str, rounds: u32) -> Result<f64, BenchError> {
    let mut times = Vec::new();
    for round in 0..rounds {
        let election = format!("bench-{}-{round}", std::process::id());
        let mut first = Candidate::stand(place, &election)?;
        first.elected().await?;
        let mut second = Candidate::stand(place, &election)?;
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

/// From `kill -9` of the leader to the word of the next, once: its lease is a minute, and can not be chosen.
pub(super) async fn crash_ms(place: String) -> Result<f64, BenchError> {
    let election = format!("bench-crash-{}", std::process::id());
    let mut first = Candidate::stand(&place, &election)?;
    first.elected().await?;
    let mut second = Candidate::stand(&place, &election)?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let start = now();
    first.child.kill().await?;
    second.elected().await?;
    let time = now().since(start);
    second.child.kill().await?;
    Ok(median_ms(vec![time]))
}
