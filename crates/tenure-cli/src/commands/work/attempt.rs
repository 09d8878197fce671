//! One attempt at a task: the command, under the watchdog of [`crate::child`].

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tenure::TaskContext;
use tenure::port::{ClaimedTask, Json};

use super::pipes::Pipes;
use crate::child::{Child, Ending, SpawnError, Spec};
use crate::output::{clipped, span};

/// The longest value of a variable: the kernel takes no more than 128 KiB, the name included.
const VARIABLE_MAX: usize = 100 << 10;

/// How much of a command's last words is kept with the task.
const COMPLAINT: usize = 500;

/// What is run for every task.
pub(super) struct Program {
    pub(super) argv: Vec<OsString>,
    /// What people call this worker.
    pub(super) worker: String,
    pub(super) namespace: String,
    pub(super) kill_after: Duration,
    /// How often the watchdog is told how long to trust us.
    pub(super) tick: Duration,
}

/// What came of an attempt.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Exit code 0, and this was put out.
    Completed(Option<Json>),
    /// It went wrong, in words.
    Failed(String),
    /// It was ended: trust ran out, or we were told to stop.
    Ended,
}

impl Program {
    /// Runs the command for a task. It is ended before the claim can be another's, and when `over` completes.
    pub(super) async fn attempt(
        &self,
        context: &TaskContext,
        keep: Option<OwnedFd>,
        over: impl Future<Output = ()>,
    ) -> Result<Verdict, SpawnError> {
        let task = context.task();
        // Whichever comes first: nobody heard of us, or it took too long.
        let deadline = || {
            let trusted = context.trusted_until();
            context.run_until().map_or(trusted, |until| until.min(trusted)).as_nanos()
        };
        let (streams, pipes) = Pipes::new().map_err(SpawnError::Watchdog)?;
        let spec = Spec {
            argv: self.argv.clone(),
            env: self.environment(task),
            keep: keep.into_iter().collect(),
            streams,
            deadline_ns: deadline(),
            kill_after: self.kill_after,
        };
        let child = match Child::spawn(spec).await {
            Err(SpawnError::TrustEnded) => return Ok(Verdict::Ended),
            child => child?,
        };
        tracing::debug!(
            task = task.id.0,
            pid = child.pid(),
            watchdog = child.watchdog_pid(),
            "the command runs"
        );
        let end = self.watch(&child, &deadline, over);
        let (said, (ending, stopped)) = tokio::join!(pipes.carry(task.payload.as_str()), end);
        Ok(match ending {
            _ if stopped => Verdict::Ended,
            Ending::Exited(0) => Verdict::Completed(said.output()),
            Ending::EndedForTrust => match context.run_until() {
                Some(until) if until <= context.trusted_until() => {
                    let longest = span(task.max_run_ms.unwrap_or_default());
                    Verdict::Failed(format!("it was ended: its longest run of {longest} was over"))
                }
                _ => Verdict::Ended,
            },
            Ending::WatchdogDied => {
                Verdict::Failed("its watchdog was killed, and the command with it".into())
            }
            ending => Verdict::Failed(words(ending, said.complaint())),
        })
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
                // While it ends, too: it has its grace for as long as the claim is ours.
                _ = tick.tick() => child.extend(deadline()),
                () = &mut over, if !stopped => {
                    stopped = true;
                    child.stop();
                }
            }
        }
    }

    fn environment(&self, task: &ClaimedTask) -> Vec<(OsString, OsString)> {
        let inputs = serde_json::to_string(&task.inputs).unwrap_or_default();
        let mut variables = vec![
            ("TENURE_TASK", task.id.to_string()),
            ("TENURE_TOKEN", task.token.as_u64().to_string()),
            ("TENURE_ATTEMPT", task.attempt.to_string()),
            ("TENURE_ATTEMPTS", task.max_attempts.to_string()),
            ("TENURE_QUEUE", task.queue.to_string()),
            ("TENURE_KIND", task.kind.clone()),
            ("TENURE_NAMESPACE", self.namespace.clone()),
            ("TENURE_ID", self.worker.clone()),
        ];
        if !task.inputs.is_empty() && inputs.len() <= VARIABLE_MAX {
            variables.push(("TENURE_INPUTS", inputs));
        }
        variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect()
    }
}

/// How a command failed.
fn words(ending: Ending, complaint: Option<String>) -> String {
    let how = match ending {
        Ending::Signalled(signal) => format!("ended by signal {signal}"),
        ending => format!("exit code {}", ending.exit_code()),
    };
    match complaint {
        Some(complaint) => format!("{how}: {}", clipped(&complaint, COMPLAINT)),
        None => how,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_with_its_last_words() {
        assert_eq!(words(Ending::Exited(3), Some("no route".into())), "exit code 3: no route");
        assert_eq!(words(Ending::Signalled(9), None), "ended by signal 9");
    }
}
