//! A command that is run once for each piece of work, under the watchdog of [`crate::child`].

mod pipes;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use self::pipes::{Complaint, Pipes};
pub(crate) use self::pipes::{Output, Said};
use crate::child::{Child, Ending, SpawnError, Spec};
use crate::output::clipped;

/// The longest value of a variable: the kernel takes no more than 128 KiB, the name included.
pub(crate) const VARIABLE_MAX: usize = 100 << 10;

/// How much of a command's last words is kept.
const COMPLAINT: usize = 500;

/// What is run.
pub(crate) struct Program {
    pub(crate) argv: Vec<OsString>,
    pub(crate) kill_after: Duration,
    /// How often the watchdog is told how long to trust us.
    pub(crate) tick: Duration,
    /// Where its standard output goes.
    pub(crate) output: Output,
    /// Variables of our own environment that it does not get.
    pub(crate) withheld: Vec<OsString>,
}

/// What it is run with.
pub(crate) struct Circumstances<'a> {
    pub(crate) variables: Vec<(&'static str, String)>,
    /// On its standard input.
    pub(crate) input: &'a [u8],
    /// Open until nothing of it is left: the kernel lock of our session.
    pub(crate) keep: Option<OwnedFd>,
}

/// A run that is over; no process of it is left.
pub(crate) struct Run {
    pub(crate) ending: Ending,
    /// Whether it was ended by us.
    pub(crate) stopped: bool,
    pub(crate) said: Said,
}

impl Program {
    /// Runs it. It is ended before `deadline` (in nanoseconds of `CLOCK_BOOTTIME`, asked for again and again), and when `over`
    /// completes.
    pub(crate) async fn run(
        &self,
        with: Circumstances<'_>,
        deadline: &impl Fn() -> u64,
        over: impl Future<Output = ()>,
    ) -> Result<Run, SpawnError> {
        let (streams, pipes) = Pipes::new(self.output).map_err(SpawnError::Watchdog)?;
        let spec = Spec {
            argv: self.argv.clone(),
            env: with.variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
            withheld: self.withheld.clone(),
            keep: with.keep.into_iter().collect(),
            streams,
            deadline_ns: deadline(),
            kill_after: self.kill_after,
            orphan_cleanup: Vec::new(),
        };
        let child = Child::spawn(spec).await?;
        tracing::debug!(pid = child.pid(), watchdog = child.watchdog_pid(), "the command runs");
        let (said, (ending, stopped)) =
            tokio::join!(pipes.carry(with.input), self.watch(&child, deadline, over));
        Ok(Run { ending, stopped, said })
    }

    /// Until nothing of it is left; and whether it was ended by `over`.
    async fn watch(
        &self,
        child: &Child,
        deadline: &impl Fn() -> u64,
        over: impl Future<Output = ()>,
    ) -> (Ending, bool) {
        let mut tick = tokio::time::interval(self.tick);
        let mut stopped = false;
        tokio::pin!(over);
        loop {
            tokio::select! {
                ending = child.wait() => return (ending, stopped),
                // While it ends, too: it has its grace for as long as it is ours.
                _ = tick.tick() => child.extend(deadline()),
                () = &mut over, if !stopped => {
                    stopped = true;
                    child.stop();
                }
            }
        }
    }
}

/// Counts what runs, also if its future is dropped.
pub(crate) struct Running<'a>(&'a AtomicU64);

impl<'a> Running<'a> {
    pub(crate) fn begin(running: &'a AtomicU64) -> Self {
        running.fetch_add(1, Ordering::Relaxed);
        Running(running)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Run {
    /// How it failed.
    pub(crate) fn words(&self) -> String {
        words(self.ending, self.said.complaint())
    }
}

/// How a command failed: in the first line how it ended and the last line of its errors; below, the end of its errors.
fn words(ending: Ending, complaint: Option<Complaint>) -> String {
    let how = match ending {
        Ending::Signalled(signal) => format!("ended by signal {signal}"),
        Ending::WatchdogDied => return "its watchdog was killed, and the command with it".to_owned(),
        ending => format!("exit code {}", ending.exit_code()),
    };
    match complaint {
        Some(Complaint { line, tail: None }) => format!("{how}: {}", clipped(&line, COMPLAINT)),
        Some(Complaint { line, tail: Some(tail) }) => {
            format!("{how}: {}\n\n{tail}", clipped(&line, COMPLAINT))
        }
        None => how,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_with_its_last_words() {
        let complaint = |line: &str, tail: Option<&str>| {
            Some(Complaint { line: line.into(), tail: tail.map(Into::into) })
        };
        assert_eq!(words(Ending::Exited(3), complaint("no route", None)), "exit code 3: no route");
        // The bug: of a stack trace only the last line was kept.
        assert_eq!(
            words(Ending::Exited(1), complaint("boom", Some("Traceback:\n  main\nboom"))),
            "exit code 1: boom\n\nTraceback:\n  main\nboom"
        );
        assert_eq!(words(Ending::Signalled(9), None), "ended by signal 9");
    }
}
