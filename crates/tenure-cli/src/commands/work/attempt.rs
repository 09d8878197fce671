//! One attempt at a task: the command, and what came of it.

use tenure::TaskContext;
use tenure::port::{ClaimedTask, Json};

use crate::child::{Ending, SpawnError};
use crate::commands::program::{Circumstances, Program, VARIABLE_MAX};
use crate::output::span;

/// What is run for every task.
pub(super) struct Bench {
    pub(super) program: Program,
    /// What people call this worker.
    pub(super) worker: String,
    pub(super) namespace: String,
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

impl Bench {
    /// Runs the command for a task. It is ended before the claim can be another's, and when `over` completes.
    pub(super) async fn attempt(
        &self,
        context: &TaskContext,
        keep: Option<std::os::fd::OwnedFd>,
        over: impl Future<Output = ()>,
    ) -> Result<Verdict, SpawnError> {
        let task = context.task();
        // Whichever comes first: nobody heard of us, or it took too long.
        let deadline = || {
            let trusted = context.trusted_until();
            context.run_until().map_or(trusted, |until| until.min(trusted)).as_nanos()
        };
        let with = Circumstances {
            variables: self.environment(task),
            input: task.payload.as_str().as_bytes(),
            keep,
        };
        let run = match self.program.run(with, &deadline, over).await {
            Err(SpawnError::TrustEnded) => return Ok(Verdict::Ended),
            run => run?,
        };
        Ok(match run.ending {
            _ if run.stopped => Verdict::Ended,
            Ending::Exited(0) => Verdict::Completed(run.said.output()),
            Ending::EndedForTrust => match context.run_until() {
                Some(until) if until <= context.trusted_until() => {
                    let longest = span(task.max_run_ms.unwrap_or_default());
                    Verdict::Failed(format!("it was ended: its longest run of {longest} was over"))
                }
                _ => Verdict::Ended,
            },
            _ => Verdict::Failed(run.words()),
        })
    }

    fn environment(&self, task: &ClaimedTask) -> Vec<(&'static str, String)> {
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
        if let Some(key) = &task.key {
            variables.push(("TENURE_TASK_KEY", key.clone()));
        }
        if !task.inputs.is_empty() && inputs.len() <= VARIABLE_MAX {
            variables.push(("TENURE_INPUTS", inputs));
        }
        variables
    }
}
