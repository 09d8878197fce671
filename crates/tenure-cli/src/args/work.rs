//! What can be typed to work.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::{KILL_AFTER, LEASE, duration};

// Paragraphs are one line each: they are wrapped where they are shown.
pub(crate) const EXAMPLES: &str = "\
The command runs once for each task. It reads the payload on its standard input, and sees TENURE_TASK, TENURE_TOKEN (the \
claim's token, as a number), TENURE_ATTEMPT, TENURE_ATTEMPTS, TENURE_QUEUE, TENURE_KIND, TENURE_NAMESPACE and TENURE_ID (the \
worker's name); TENURE_TASK_KEY, if the task was submitted under a key, as those of schedules are: NAMESPACE/SCHEDULE@TICK, the \
tick in UTC. What the parents of the task put out is in TENURE_INPUTS, a JSON object by their numbers, if it fits into a \
variable.

Exit code 0 completes the task, with the standard output as its output if that is JSON. Any other code, or a signal, fails it: \
it is tried again in a while, as often as it may be. The command's process group is ended before the claim can be another's: \
also when tenure itself is stopped or killed.

A worker on a database, not on a server, may be elected to hand out what is exclusive. It listens for the others then, at a free \
port of the address by which it reaches the store, or at $TENURE_BROKER_LISTEN; they are told $TENURE_BROKER_ADVERTISE, if that is \
another.

SIGTERM or Ctrl-C: no more tasks are begun, those that run are finished. Told again, it ends them and gives them back.

Exit codes:
  0    it was told to end, or nothing was left (--until-empty)
  64   what was asked makes no sense
  69   the store cannot be used
  125  tenure itself failed
  126  the command cannot be executed
  127  the command was not found

Examples:
  tenure work mail -- ./send.sh                  one at a time
  tenure work mail -n 8 -- ./send.sh             eight at once
  tenure work thumbnails --tag gpu --kind resize -- ./resize.py
  tenure work mail --until-empty -- ./send.sh    from cron";

#[derive(Args, Debug)]
pub(crate) struct WorkArgs {
    /// The queue
    pub(crate) queue: String,

    /// How many run at once
    #[arg(short = 'n', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "N")]
    pub(crate) concurrency: u32,

    /// What tasks and approvals call this worker [default: host name and process number]
    #[arg(long, env = "NODE_ID", value_name = "NAME")]
    pub(crate) worker: Option<String>,

    /// Something that this worker has (repeatable)
    #[arg(long = "tag", value_name = "TAG")]
    pub(crate) tags: Vec<String>,

    /// A kind of task that it knows (repeatable) [default: every kind]
    #[arg(long = "kind", value_name = "KIND")]
    pub(crate) kinds: Vec<String>,

    /// How long a silent process keeps what it has claimed
    #[arg(long, default_value = LEASE, value_parser = duration, value_name = "TIME")]
    pub(crate) lease: Duration,

    /// How long a command may take to end after SIGTERM, before SIGKILL
    #[arg(long, default_value = KILL_AFTER, value_parser = duration, value_name = "TIME")]
    pub(crate) kill_after: Duration,

    /// End when nothing of the queue is ready or claimed; what is due later is left
    #[arg(long)]
    pub(crate) until_empty: bool,

    /// Pass a variable to the command that it does not get otherwise: an address with a password, an access token, a cluster's
    /// secret (repeatable)
    #[arg(long = "pass-env", value_name = "NAME")]
    pub(crate) pass_env: Vec<String>,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}
