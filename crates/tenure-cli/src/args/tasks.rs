//! What can be typed about tasks.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use tenure::Token;
use tenure::port::TaskState;

use super::duration;
use super::values::{Concurrency, concurrency, priority, state, time, token};

pub(crate) const EXAMPLES: &str = "\
Exit codes:
  64   what was asked makes no sense
  69   the store cannot be used
  75   not acquired: nothing to be had in time, or nothing is handed out now
  76   the claim was lost: the task is not claimed under that token (any more)

Examples:
  tenure tasks submit mail --kind welcome --payload '{\"to\":\"ada\"}'
  tenure tasks claim mail --wait 30s -o json
  tenure tasks complete 42 --token 7 --result '{\"sent\":true}'
  tenure tasks list --queue mail --state ready,claimed -w
  tenure tasks why 42
  tenure tasks retry --queue mail --state dead";

// Paragraphs are one line each: they are wrapped where they are shown.
const SUBMIT_EXAMPLES: &str = "\
A payload is JSON: as it is, `-` for the standard input, or @FILE. The number of the task is printed.

With -f, each line of the file is a task, a JSON object with any of these: kind, payload, priority, requires, prefers, \
workers, run_at_ms, max_wait_ms, max_run_ms, max_attempts, backoff, parents, key, concurrency_key, concurrency_limit. \
What the options say is for lines that do not. A parent is {\"task\":ID}, or {\"index\":N}: another task of the file, \
counted from 0. Up to 10000 lines and 8 MiB are submitted all or none, more in portions of that size. With -o json the numbers are \
printed, one object per line.

Examples:
  tenure tasks submit mail --kind welcome --payload '{\"to\":\"ada\"}' --priority 5
  tenure tasks submit mail --payload @letter.json --in 10m --key welcome-ada
  tenure tasks submit thumbnails --require gpu --max-run 5m --attempts 3
  tenure tasks submit reports --concurrency tenant-7:2
  tenure tasks submit reports --parent 41 --parent 42
  generate | tenure tasks submit mail -f -";

const CLAIM_EXAMPLES: &str = "\
The claim lasts for --hold unless it is extended; then the task returns to its queue. Completing, failing, releasing \
and extending name the token that is printed here. With -o json: one object per line and task.

Exit codes:
  75   nothing to be had in time, or nothing is handed out now (paused, not approved, no leader)

Examples:
  tenure tasks claim mail
  tenure tasks claim mail -n 10 --wait 30s -o json | while read -r task; do …; done
  tenure tasks claim thumbnails --worker box-1 --tag gpu --kind resize --hold 5m";

const SETTLE_CODES: &str = "\
Exit codes:
  76   the claim was lost: the task is not claimed under that token (any more). Nothing was changed";

const ORDER_EXAMPLES: &str = "\
Examples:
  tenure tasks retry 42 43
  tenure tasks retry --queue mail --state dead
  tenure tasks cancel 42                                   and all that wait for it
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
    /// Put a task into a queue, or a file of them
    #[command(after_help = SUBMIT_EXAMPLES)]
    Submit(Box<SubmitArgs>),
    /// Take tasks out of a queue, for a while
    #[command(after_help = CLAIM_EXAMPLES)]
    Claim(ClaimArgs),
    /// Say that a claimed task is done
    #[command(after_help = SETTLE_CODES)]
    Complete {
        #[command(flatten)]
        claim: TaskClaim,
        /// What came of it: JSON, `-` for the standard input, or @FILE
        #[arg(long, value_name = "JSON|-|@FILE", allow_hyphen_values = true)]
        result: Option<String>,
    },
    /// Say that a claimed task failed
    #[command(after_help = SETTLE_CODES)]
    Fail {
        #[command(flatten)]
        claim: TaskClaim,
        /// What went wrong
        #[arg(long, value_name = "TEXT")]
        error: String,
        /// Give it up: no more attempts
        #[arg(long)]
        no_retry: bool,
        /// When it may be tried again [default: as the task's backoff says]
        #[arg(long, value_parser = duration, value_name = "TIME", conflicts_with = "no_retry")]
        after: Option<Duration>,
    },
    /// Give a claimed task back as if it had not been claimed
    #[command(after_help = SETTLE_CODES)]
    Release {
        #[command(flatten)]
        claim: TaskClaim,
    },
    /// Keep a claimed task for longer, and say how far it is
    #[command(after_help = SETTLE_CODES)]
    Extend {
        #[command(flatten)]
        claim: TaskClaim,
        /// For how long from now
        #[arg(long, default_value = "60s", value_parser = duration, value_name = "TIME")]
        hold: Duration,
        /// How far it is, for people
        #[arg(long, value_name = "TEXT")]
        note: Option<String>,
    },
    /// Tasks, the newest first
    #[command(after_help = LIST_EXAMPLES)]
    List(ListArgs),
    /// One task: where it stands, what happened to it, with what
    Show {
        /// The task's number
        id: u64,
    },
    /// Call tasks off, and all that wait for them
    #[command(after_help = ORDER_EXAMPLES)]
    Cancel(OrderArgs),
    /// Give tasks another attempt at once: dead and cancelled ones come back, scheduled ones need not wait
    #[command(after_help = ORDER_EXAMPLES)]
    Retry(OrderArgs),
    /// What keeps a task from being claimed
    Why {
        /// The task's number
        id: u64,
    },
    /// How long the last finished tasks of a queue waited and ran, by kind
    Stats {
        /// The queue
        queue: String,
        /// How many are looked at, at most
        #[arg(long, default_value_t = 10_000, value_name = "N")]
        last: u32,
        /// Keep it on the screen, up to date
        #[arg(short, long)]
        watch: bool,
    },
}

#[derive(Args, Debug)]
pub(crate) struct SubmitArgs {
    /// The queue; made, if it is not there
    pub(crate) queue: String,

    /// One task per line of this file, as a JSON object; `-` for the standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// What is to be done, as workers know it
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Option<String>,

    /// What it is to be done with: JSON, `-` for the standard input, or @FILE
    #[arg(long, value_name = "JSON|-|@FILE", allow_hyphen_values = true)]
    pub(crate) payload: Option<String>,

    /// Higher goes first; a point is worth a minute of waiting
    #[arg(long, allow_negative_numbers = true, value_parser = priority, value_name = "N")]
    pub(crate) priority: Option<i32>,

    /// A tag that a worker must have (repeatable)
    #[arg(long = "require", value_name = "TAG")]
    pub(crate) requires: Vec<String>,

    /// A tag that a worker had better have (repeatable)
    #[arg(long = "prefer", value_name = "TAG")]
    pub(crate) prefers: Vec<String>,

    /// A worker that it is meant for (repeatable) [default: any]
    #[arg(long = "worker", value_name = "NAME")]
    pub(crate) workers: Vec<String>,

    /// Not before this moment, such as 2030-01-31T09:30:00Z or 2030-01-31T09:30:00+02:00
    #[arg(long, value_parser = time, value_name = "MOMENT", conflicts_with = "delay")]
    pub(crate) run_at: Option<i64>,

    /// Not before this long from now, such as 10m
    #[arg(long = "in", id = "delay", value_parser = duration, value_name = "TIME")]
    pub(crate) delay: Option<Duration>,

    /// Dead if nobody has claimed it for this long
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub(crate) max_wait: Option<Duration>,

    /// Back into the queue if an attempt takes longer
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub(crate) max_run: Option<Duration>,

    /// How many attempts at most [default: 20]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    pub(crate) attempts: Option<u32>,

    /// How long to wait after the first failed attempt; doubles with each [default: 1s]
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub(crate) backoff: Option<Duration>,

    /// A task whose output it needs: it waits until that is completed (repeatable)
    #[arg(long = "parent", value_name = "ID")]
    pub(crate) parents: Vec<u64>,

    /// Submitted again under the same key: the first one
    #[arg(long, value_name = "KEY", conflicts_with = "file")]
    pub(crate) key: Option<String>,

    /// Of all tasks with this key, at most N (one, unless said) are claimed at once
    #[arg(long, value_parser = concurrency, value_name = "KEY[:N]")]
    pub(crate) concurrency: Option<Concurrency>,
}

#[derive(Args, Debug)]
pub(crate) struct ClaimArgs {
    /// The queue
    pub(crate) queue: String,

    /// How many at most
    #[arg(short = 'n', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(tenure::port::CLAIM_MAX)), value_name = "N")]
    pub(crate) limit: u32,

    /// What tasks and approvals call this worker [default: you, on this host]
    #[arg(long, env = "NODE_ID", value_name = "NAME")]
    pub(crate) worker: Option<String>,

    /// Something that this worker has (repeatable)
    #[arg(long = "tag", value_name = "TAG")]
    pub(crate) tags: Vec<String>,

    /// A kind of task that it knows (repeatable) [default: every kind]
    #[arg(long = "kind", value_name = "KIND")]
    pub(crate) kinds: Vec<String>,

    /// How long the claim lasts unless it is extended
    #[arg(long, default_value = "60s", value_parser = duration, value_name = "TIME")]
    pub(crate) hold: Duration,

    /// How long to wait for the first
    #[arg(long, default_value = "0s", value_parser = duration, value_name = "TIME")]
    pub(crate) wait: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct TaskClaim {
    /// The task's number
    pub(crate) id: u64,

    /// The claim's token, as `tasks claim` printed it
    #[arg(long, value_parser = token, value_name = "TOKEN")]
    pub(crate) token: Token,
}

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Of this queue
    #[arg(long, value_name = "QUEUE")]
    pub(crate) queue: Option<String>,

    /// In this state: waiting, scheduled, ready, held, claimed, completed, dead or cancelled (repeatable)
    #[arg(long = "state", value_parser = state, value_delimiter = ',', value_name = "STATE")]
    pub(crate) states: Vec<TaskState>,

    /// Of this kind
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Option<String>,

    /// Claimed, now or last, by this worker
    #[arg(long, value_name = "NAME")]
    pub(crate) worker: Option<String>,

    /// Before this number: the next page
    #[arg(long, value_name = "ID")]
    pub(crate) before: Option<u64>,

    /// How many at most
    #[arg(short = 'n', long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "N")]
    pub(crate) limit: u32,

    #[command(flatten)]
    pub(crate) listing: super::claims::Listing,
}

#[derive(Args, Debug)]
pub(crate) struct OrderArgs {
    /// The tasks' numbers
    #[arg(value_name = "ID", required_unless_present = "queue")]
    pub(crate) ids: Vec<u64>,

    /// All of this queue in the states that --state names
    #[arg(long, value_name = "QUEUE", conflicts_with = "ids", requires = "states")]
    pub(crate) queue: Option<String>,

    /// In this state (repeatable)
    #[arg(long = "state", value_parser = state, value_delimiter = ',', value_name = "STATE", requires = "queue")]
    pub(crate) states: Vec<TaskState>,
}
