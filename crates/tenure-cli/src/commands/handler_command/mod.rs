//! Runs a command for each task or event, under the watchdog of [`crate::child`].

mod pipes;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(crate) use self::pipes::{CapturedOutput, OutputMode};
use self::pipes::{ErrorOutput, Pipes};
use crate::child::{Child, ChildExit, ChildSpec, SpawnError};
use crate::output::clipped;

/// Maximum length of a variable value. The kernel allows 128 KiB including the name.
pub(crate) const VARIABLE_MAX: usize = 100 << 10;

/// Maximum length of the last error line in a message.
const ERROR_LINE_MAX: usize = 500;

/// The command to run.
pub(crate) struct CommandSpec {
    pub(crate) argv: Vec<OsString>,
    pub(crate) kill_after: Duration,
    /// Interval at which the watchdog gets the deadline.
    pub(crate) tick: Duration,
    /// Destination of standard output.
    pub(crate) output: OutputMode,
    /// Variables that the command does not inherit.
    pub(crate) withheld: Vec<OsString>,
}

/// Variables and input of one run.
pub(crate) struct CommandInput<'a> {
    pub(crate) variables: Vec<(&'static str, String)>,
    /// Standard input.
    pub(crate) input: &'a [u8],
    /// Kernel lock of the session, kept open until no process of the command is left.
    pub(crate) keep: Option<OwnedFd>,
}

/// A finished run; no process of the command is left.
pub(crate) struct CommandRun {
    pub(crate) ending: ChildExit,
    /// Whether tenure stopped the command.
    pub(crate) stopped: bool,
    pub(crate) captured: CapturedOutput,
}

impl CommandSpec {
    /// Runs the command. Stops it before `deadline` (nanoseconds of `CLOCK_BOOTTIME`, read repeatedly) and when `over`
    /// completes.
    pub(crate) async fn run(
        &self,
        input: CommandInput<'_>,
        deadline: &impl Fn() -> u64,
        over: impl Future<Output = ()>,
    ) -> Result<CommandRun, SpawnError> {
        let (streams, pipes) = Pipes::new(self.output).map_err(SpawnError::Watchdog)?;
        let spec = ChildSpec {
            argv: self.argv.clone(),
            env: input.variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
            withheld: self.withheld.clone(),
            keep: input.keep.into_iter().collect(),
            streams,
            deadline_ns: deadline(),
            kill_after: self.kill_after,
            orphan_cleanup: Vec::new(),
        };
        let child = Child::spawn(spec).await?;
        tracing::debug!(pid = child.pid(), watchdog = child.watchdog_pid(), "command started");
        let (captured, (ending, stopped)) =
            tokio::join!(pipes.carry(input.input), self.watch(&child, deadline, over));
        Ok(CommandRun { ending, stopped, captured })
    }

    /// Waits until no process of the command is left. Returns whether `over` stopped it.
    async fn watch(
        &self,
        child: &Child,
        deadline: &impl Fn() -> u64,
        over: impl Future<Output = ()>,
    ) -> (ChildExit, bool) {
        let mut tick = tokio::time::interval(self.tick);
        let mut stopped = false;
        tokio::pin!(over);
        loop {
            tokio::select! {
                ending = child.wait() => return (ending, stopped),
                // Also while the command stops: its grace period ends with the deadline.
                _ = tick.tick() => child.extend(deadline()),
                () = &mut over, if !stopped => {
                    stopped = true;
                    child.stop();
                }
            }
        }
    }
}

/// Counts running commands, also if a future is dropped.
pub(crate) struct RunningCounter<'a>(&'a AtomicU64);

impl<'a> RunningCounter<'a> {
    pub(crate) fn start(running: &'a AtomicU64) -> Self {
        running.fetch_add(1, Ordering::Relaxed);
        RunningCounter(running)
    }
}

impl Drop for RunningCounter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl CommandRun {
    /// Error message of a failed run.
    pub(crate) fn error_text(&self) -> String {
        error_text(self.ending, self.captured.error_output())
    }
}

/// Error message: exit code or signal and the last line of standard error; below, the end of standard error.
fn error_text(ending: ChildExit, error_output: Option<ErrorOutput>) -> String {
    let how = match ending {
        ChildExit::Signalled(signal) => format!("killed by signal {signal}"),
        ChildExit::WatchdogDied => return "the watchdog was killed, and the command with it".to_owned(),
        ending => format!("exit code {}", ending.exit_code()),
    };
    match error_output {
        Some(ErrorOutput { line, tail: None }) => format!("{how}: {}", clipped(&line, ERROR_LINE_MAX)),
        Some(ErrorOutput { line, tail: Some(tail) }) => {
            format!("{how}: {}\n\n{tail}", clipped(&line, ERROR_LINE_MAX))
        }
        None => how,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_end_of_standard_error() {
        let error_output = |line: &str, tail: Option<&str>| {
            Some(ErrorOutput { line: line.into(), tail: tail.map(Into::into) })
        };
        assert_eq!(error_text(ChildExit::Exited(3), error_output("no route", None)), "exit code 3: no route");
        // Regression: only the last line of a stack trace was kept.
        assert_eq!(
            error_text(ChildExit::Exited(1), error_output("boom", Some("Traceback:\n  main\nboom"))),
            "exit code 1: boom\n\nTraceback:\n  main\nboom"
        );
        assert_eq!(error_text(ChildExit::Signalled(9), None), "killed by signal 9");
    }
}
