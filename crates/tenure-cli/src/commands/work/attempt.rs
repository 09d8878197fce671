//! One attempt of a task: runs the command and reports its result.

use tenure::TaskContext;
use tenure::port::{ClaimedTask, RawJson};

use crate::child::{ChildExit, SpawnError};
use crate::commands::handler_command::{CommandInput, CommandSpec, VARIABLE_MAX};
use crate::output::span;

/// What all attempts have in common.
pub(super) struct AttemptContext {
    pub(super) program: CommandSpec,
    /// Worker name.
    pub(super) worker: String,
    pub(super) namespace: String,
}

/// Result of an attempt.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AttemptResult {
    /// Exit code 0, with the result of the task.
    Completed(Option<RawJson>),
    /// The attempt failed with this error.
    Failed(String),
    /// The command was stopped: the lease ran out, or a signal arrived.
    Ended,
}

impl AttemptContext {
    /// Runs the command for a task. Stops it before another worker can claim the task, and when `over` completes.
    pub(super) async fn attempt(
        &self,
        context: &TaskContext,
        keep: Option<std::os::fd::OwnedFd>,
        over: impl Future<Output = ()>,
    ) -> Result<AttemptResult, SpawnError> {
        let task = context.task();
        // The earlier of the lease deadline and the maximum run time.
        let deadline = || {
            let trusted = context.trusted_until();
            context.run_until().map_or(trusted, |until| until.min(trusted)).as_nanos()
        };
        let with =
            CommandInput { variables: self.environment(task), input: task.payload.as_str().as_bytes(), keep };
        let run = match self.program.run(with, &deadline, over).await {
            Err(SpawnError::TrustEnded) => return Ok(AttemptResult::Ended),
            run => run?,
        };
        Ok(match run.ending {
            _ if run.stopped => AttemptResult::Ended,
            ChildExit::Exited(0) => AttemptResult::Completed(run.captured.result()),
            ChildExit::EndedForTrust => match context.run_until() {
                Some(until) if until <= context.trusted_until() => {
                    let longest = span(task.max_run_ms.unwrap_or_default());
                    AttemptResult::Failed(format!("stopped: it exceeded its maximum run time of {longest}"))
                }
                _ => AttemptResult::Ended,
            },
            _ => AttemptResult::Failed(run.error_text()),
        })
    }

    fn environment(&self, task: &ClaimedTask) -> Vec<(&'static str, String)> {
        let results = serde_json::to_string(&task.parent_results).unwrap_or_default();
        let mut variables = vec![
            ("TENURE_TASK_ID", task.id.to_string()),
            ("TENURE_TOKEN", task.token.as_u64().to_string()),
            ("TENURE_TASK_ATTEMPT", task.attempt.to_string()),
            ("TENURE_TASK_MAX_ATTEMPTS", task.max_attempts.to_string()),
            ("TENURE_TASK_QUEUE", task.queue.to_string()),
            ("TENURE_TASK_KIND", task.kind.clone()),
            ("TENURE_NAMESPACE", self.namespace.clone()),
            ("TENURE_NAME", self.worker.clone()),
        ];
        if let Some(key) = &task.idempotency_key {
            variables.push(("TENURE_TASK_IDEMPOTENCY_KEY", key.clone()));
        }
        if !task.parent_results.is_empty() && results.len() <= VARIABLE_MAX {
            variables.push(("TENURE_TASK_PARENT_RESULTS", results));
        }
        variables
    }
}
