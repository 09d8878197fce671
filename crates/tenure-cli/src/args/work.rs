//! Arguments of `tenure work`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::{KILL_AFTER, LEASE, duration};

// One line per paragraph: clap wraps them to the width of the terminal.
pub(crate) const EXAMPLES: &str = "\
The command runs once per task. It gets the payload on standard input, and TENURE_TASK_ID, TENURE_TOKEN (the fencing token \
of the claim), TENURE_TASK_ATTEMPT, TENURE_TASK_MAX_ATTEMPTS, TENURE_TASK_QUEUE, TENURE_TASK_KIND, TENURE_NAMESPACE and \
TENURE_NAME (the worker name); TENURE_TASK_IDEMPOTENCY_KEY if the task has one (tasks of schedules: NAMESPACE/SCHEDULE@TICK \
in UTC); and TENURE_TASK_PARENT_RESULTS, a JSON object by parent id, if it fits into a variable.

Exit code 0 completes the task; standard output is its result if it is JSON. Any other code, or a signal, fails the attempt, \
and the task is retried after its backoff. Before another worker can claim the task, tenure stops the command with its \
process group, even if tenure itself is stopped or killed.

A worker connected to a database may be elected as broker for exclusive queues. It then listens on a free port of the \
address used to reach the store, or on $TENURE_BROKER_LISTEN; $TENURE_BROKER_ADVERTISE overrides the advertised address.

On SIGTERM or Ctrl-C no new tasks are started and running commands finish. A second signal stops them and releases their \
tasks.

Exit codes:
  0    stopped by a signal, or idle (--exit-when-idle)
  64   usage error
  69   the store is unavailable
  125  internal error of tenure
  126  the command cannot be executed
  127  the command was not found

Examples:
  tenure work mail -- ./send.sh                     one task at a time
  tenure work mail -n 8 -- ./send.sh                eight tasks at once
  tenure work thumbnails --tag gpu --kind resize -- ./resize.py
  tenure work mail --exit-when-idle -- ./send.sh    from cron";

#[derive(Args, Debug)]
pub(crate) struct WorkArgs {
    /// Queue name
    pub(crate) queue: String,

    /// Number of tasks that run at once
    #[arg(short = 'n', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "N")]
    pub(crate) concurrency: u32,

    /// Worker name [default: host name and process id]
    #[arg(long, env = "TENURE_NAME", value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Tag of this worker (repeatable)
    #[arg(long = "tag", value_name = "TAG")]
    pub(crate) tags: Vec<String>,

    /// Task kind that this worker accepts (repeatable) [default: all]
    #[arg(long = "kind", value_name = "KIND")]
    pub(crate) kinds: Vec<String>,

    /// Lease duration
    #[arg(long, default_value = LEASE, value_parser = duration, value_name = "DURATION")]
    pub(crate) lease: Duration,

    /// Time between SIGTERM and SIGKILL when the command is stopped
    #[arg(long, default_value = KILL_AFTER, value_parser = duration, value_name = "DURATION")]
    pub(crate) kill_after: Duration,

    /// Exit when no task of the queue is ready or claimed; scheduled tasks are ignored
    #[arg(long)]
    pub(crate) exit_when_idle: bool,

    /// Pass this variable to the command although it holds a secret: a URL with a password, an access token or a cluster
    /// secret (repeatable)
    #[arg(long = "pass-env", value_name = "NAME")]
    pub(crate) pass_env: Vec<String>,

    /// Command and arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}
