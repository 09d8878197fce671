//! Arguments of `tenure tasks`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use tenure::Token;
use tenure::port::TaskState;

use super::duration;
use super::parsers::{ConcurrencyArg, concurrency, instant, priority, state, token};

pub(crate) const EXAMPLES: &str = "\
Exit codes:
  64   usage error
  69   the store is unavailable
  75   not acquired: no task in time, or the queue does not assign tasks now
  76   claim lost: the task is not claimed under that token

Examples:
  tenure tasks submit mail --kind welcome --payload '{\"to\":\"ada\"}'
  tenure tasks claim mail --wait 30s -o json
  tenure tasks complete 42 --token 7 --result '{\"sent\":true}'
  tenure tasks list --queue mail --state ready,claimed -w
  tenure tasks why 42
  tenure tasks retry --queue mail --state dead";

// One line per paragraph: clap wraps them to the width of the terminal.
const SUBMIT_EXAMPLES: &str = "\
A payload is JSON: literal, `-` for standard input, or @FILE. Prints the task id.

With -f, the file is NDJSON: each object may have kind, payload, priority, required_tags, preferred_tags, allowed_workers, \
run_at_ms, max_wait_ms, max_run_ms, max_attempts, backoff, parents, idempotency_key, concurrency_key and concurrency_limit. \
Options set defaults for objects without the field. A parent is {\"task\":ID}, or {\"index\":N} for another task of the \
file, counted from 0. Up to 10000 objects and 8 MiB are submitted atomically; larger files are submitted in batches of that \
size. With -o json the ids are printed as NDJSON.

Examples:
  tenure tasks submit mail --kind welcome --payload '{\"to\":\"ada\"}' --priority 5
  tenure tasks submit mail --payload @letter.json --delay 10m --idempotency-key welcome-ada
  tenure tasks submit thumbnails --required-tag gpu --max-run 5m --max-attempts 3
  tenure tasks submit reports --concurrency-key tenant-7:2
  tenure tasks submit reports --parent 41 --parent 42
  generate | tenure tasks submit mail -f -";

const CLAIM_EXAMPLES: &str = "\
The claim lasts for --claim-timeout unless a heartbeat extends it; then the task returns to the queue. Pass the printed \
token to complete, fail, release and heartbeat. With -o json the output is NDJSON.

Exit codes:
  75   no task in time, or the queue does not assign tasks now (paused, worker not approved, no broker)

Examples:
  tenure tasks claim mail
  tenure tasks claim mail -n 10 --wait 30s -o json | while read -r task; do …; done
  tenure tasks claim thumbnails --name box-1 --tag gpu --kind resize --claim-timeout 5m";

const SETTLE_CODES: &str = "\
Exit codes:
  76   claim lost: the task is not claimed under that token; nothing was changed";

const ACTION_EXAMPLES: &str = "\
Examples:
  tenure tasks retry 42 43
  tenure tasks retry --queue mail --state dead
  tenure tasks cancel 42                                   and all tasks that depend on it
  tenure tasks cancel --queue mail --state ready,scheduled";

const LIST_EXAMPLES: &str = "\
Examples:
  tenure tasks list -w
  tenure tasks list --queue mail --state dead
  tenure tasks list --worker box-1 --state claimed -o json";

#[derive(Args, Debug)]
pub(crate) struct TasksArgs {
    #[command(subcommand)]
    pub(crate) command: TasksCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum TasksCommand {
    /// Submit one task, or all tasks of a file
    #[command(after_help = SUBMIT_EXAMPLES)]
    Submit(Box<SubmitArgs>),
    /// Claim tasks from a queue
    #[command(after_help = CLAIM_EXAMPLES)]
    Claim(ClaimArgs),
    /// Complete a claimed task
    #[command(after_help = SETTLE_CODES)]
    Complete {
        #[command(flatten)]
        claim: ClaimTokenArgs,
        /// Result: JSON, `-` for standard input, or @FILE
        #[arg(long, value_name = "JSON|-|@FILE", allow_hyphen_values = true)]
        result: Option<String>,
    },
    /// Fail the current attempt of a claimed task
    #[command(after_help = SETTLE_CODES)]
    Fail {
        #[command(flatten)]
        claim: ClaimTokenArgs,
        /// Error message
        #[arg(long, value_name = "TEXT")]
        error: String,
        /// Do not retry; the task is dead
        #[arg(long)]
        no_retry: bool,
        /// Delay before the next attempt [default: the backoff of the task]
        #[arg(long, value_parser = duration, value_name = "DURATION", conflicts_with = "no_retry")]
        retry_in: Option<Duration>,
    },
    /// Release a claimed task without counting the attempt
    #[command(after_help = SETTLE_CODES)]
    Release {
        #[command(flatten)]
        claim: ClaimTokenArgs,
    },
    /// Send a heartbeat for a claimed task and report progress
    #[command(after_help = SETTLE_CODES)]
    Heartbeat {
        #[command(flatten)]
        claim: ClaimTokenArgs,
        /// New claim timeout, counted from now
        #[arg(long, default_value = "60s", value_parser = duration, value_name = "DURATION")]
        claim_timeout: Duration,
        /// Progress message
        #[arg(long, value_name = "TEXT")]
        progress: Option<String>,
    },
    /// List tasks, newest first
    #[command(after_help = LIST_EXAMPLES)]
    List(TaskListArgs),
    /// Show a task: state, timeline and payload
    Show {
        /// Task id
        task_id: u64,
    },
    /// Cancel tasks and all tasks that depend on them
    #[command(after_help = ACTION_EXAMPLES)]
    Cancel(TaskActionArgs),
    /// Retry tasks at once: dead, cancelled and scheduled ones
    #[command(after_help = ACTION_EXAMPLES)]
    Retry(TaskActionArgs),
    /// Explain why a task is not claimed
    Why {
        /// Task id
        task_id: u64,
    },
    /// Show wait and run times of recently finished tasks, by kind
    Stats {
        /// Queue name
        queue: String,
        /// Maximum number of tasks to examine
        #[arg(long, default_value_t = 10_000, value_name = "N")]
        limit: u32,
        /// Refresh continuously
        #[arg(short, long)]
        watch: bool,
    },
}

#[derive(Args, Debug)]
pub(crate) struct SubmitArgs {
    /// Queue name; created if missing
    pub(crate) queue: String,

    /// Submit the tasks in this NDJSON file (one JSON object each); `-` for standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Task kind
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Option<String>,

    /// Payload: JSON, `-` for standard input, or @FILE
    #[arg(long, value_name = "JSON|-|@FILE", allow_hyphen_values = true)]
    pub(crate) payload: Option<String>,

    /// Priority; each point equals one minute of waiting
    #[arg(long, allow_negative_numbers = true, value_parser = priority, value_name = "N")]
    pub(crate) priority: Option<i32>,

    /// Tag that a worker must have (repeatable)
    #[arg(long = "required-tag", value_name = "TAG")]
    pub(crate) required_tags: Vec<String>,

    /// Tag that a worker should have (repeatable)
    #[arg(long = "preferred-tag", value_name = "TAG")]
    pub(crate) preferred_tags: Vec<String>,

    /// Worker that may claim the task (repeatable) [default: any]
    #[arg(long = "allowed-worker", value_name = "NAME")]
    pub(crate) allowed_workers: Vec<String>,

    /// Earliest start as an instant, such as 2030-01-31T09:30:00Z or 2030-01-31T09:30:00+02:00
    #[arg(long, value_parser = instant, value_name = "INSTANT", conflicts_with = "delay")]
    pub(crate) run_at: Option<i64>,

    /// Earliest start as a delay from now, such as 10m
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) delay: Option<Duration>,

    /// Maximum wait for a claim; then the task is dead
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) max_wait: Option<Duration>,

    /// Maximum run time of an attempt; then the task returns to the queue
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) max_run: Option<Duration>,

    /// Maximum number of attempts [default: 20]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    pub(crate) max_attempts: Option<u32>,

    /// Backoff after the first failed attempt; doubles with each failure [default: 1s]
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) initial_backoff: Option<Duration>,

    /// Parent task that must complete first (repeatable)
    #[arg(long = "parent", value_name = "TASK_ID")]
    pub(crate) parents: Vec<u64>,

    /// Idempotency key; a repeated submission returns the first task
    #[arg(long, value_name = "KEY", conflicts_with = "file")]
    pub(crate) idempotency_key: Option<String>,

    /// Concurrency key and limit: at most LIMIT tasks with this key are claimed at once [default limit: 1]
    #[arg(long, value_parser = concurrency, value_name = "KEY[:LIMIT]")]
    pub(crate) concurrency_key: Option<ConcurrencyArg>,
}

#[derive(Args, Debug)]
pub(crate) struct ClaimArgs {
    /// Queue name
    pub(crate) queue: String,

    /// Maximum number of tasks
    #[arg(short = 'n', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(tenure::port::CLAIM_MAX)), value_name = "N")]
    pub(crate) limit: u32,

    /// Worker name [default: user@host]
    #[arg(long, env = "TENURE_NAME", value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Tag of this worker (repeatable)
    #[arg(long = "tag", value_name = "TAG")]
    pub(crate) tags: Vec<String>,

    /// Task kind that this worker accepts (repeatable) [default: all]
    #[arg(long = "kind", value_name = "KIND")]
    pub(crate) kinds: Vec<String>,

    /// Claim timeout without a heartbeat
    #[arg(long, default_value = "60s", value_parser = duration, value_name = "DURATION")]
    pub(crate) claim_timeout: Duration,

    /// Maximum time to wait for the first task
    #[arg(long, default_value = "0s", value_parser = duration, value_name = "DURATION")]
    pub(crate) wait: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct ClaimTokenArgs {
    /// Task id
    pub(crate) task_id: u64,

    /// Token of the claim, as printed by `tasks claim`
    #[arg(long, value_parser = token, value_name = "TOKEN")]
    pub(crate) token: Token,
}

#[derive(Args, Debug)]
pub(crate) struct TaskListArgs {
    /// Only tasks of this queue
    #[arg(long, value_name = "QUEUE")]
    pub(crate) queue: Option<String>,

    /// Only tasks in this state: waiting, scheduled, ready, blocked, claimed, completed, dead or cancelled (repeatable)
    #[arg(long = "state", value_parser = state, value_delimiter = ',', value_name = "STATE")]
    pub(crate) states: Vec<TaskState>,

    /// Only tasks of this kind
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Option<String>,

    /// Only tasks claimed by this worker, now or last
    #[arg(long, value_name = "NAME")]
    pub(crate) worker: Option<String>,

    /// Cursor of the next page
    #[arg(long, value_name = "CURSOR")]
    pub(crate) cursor: Option<u64>,

    /// Maximum number of tasks
    #[arg(short = 'n', long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "N")]
    pub(crate) limit: u32,

    #[command(flatten)]
    pub(crate) listing: super::queues_and_pools::ListArgs,
}

#[derive(Args, Debug)]
pub(crate) struct TaskActionArgs {
    /// Task ids
    #[arg(value_name = "TASK_ID", required_unless_present = "queue")]
    pub(crate) task_ids: Vec<u64>,

    /// All tasks of this queue in the states of --state
    #[arg(long, value_name = "QUEUE", conflicts_with = "task_ids", requires = "states")]
    pub(crate) queue: Option<String>,

    /// Task state (repeatable)
    #[arg(long = "state", value_parser = state, value_delimiter = ',', value_name = "STATE", requires = "queue")]
    pub(crate) states: Vec<TaskState>,
}
