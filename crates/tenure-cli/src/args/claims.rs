//! What can be typed about queues, workers and pools.

use std::time::Duration;

use clap::{Args, Subcommand};
use tenure::port::{Fallback, Mode, RateLimit};

use super::duration;
use super::values::{fallback, mode, priority, rate};

pub(crate) const QUEUE_EXAMPLES: &str = "\
Examples:
  tenure queue list -w                               every queue, live
  tenure queue mode mail exclusive                   strict order, through the leader
  tenure queue mode mail exclusive --fallback distributed
  tenure queue set mail --rate 100/s --max-claimed 8
  tenure queue set mail --approval on                only approved workers get tasks
  tenure queue pause mail --reason 'provider is down'
  tenure queue pause --everything                    all queues and pools of the namespace";

pub(crate) const WORKERS_EXAMPLES: &str = "\
Approval is of a name, and whoever may claim in the namespace can work under it: it keeps out what was started by mistake. To
keep somebody out, give them another namespace.

Examples:
  tenure workers list -w
  tenure workers approve box-1
  tenure workers disapprove box-1";

pub(crate) const POOL_EXAMPLES: &str = "\
Exit codes:
  64   what was asked makes no sense
  69   the store cannot be used
  75   not acquired: nothing fitting was free in time
  76   the resource is not held under that token (any more)

Examples:
  tenure pool add hosts node-1 node-2 --tag gpu --tag eu
  tenure pool request hosts --require gpu --owner ci --hold 10m --wait 1m
  tenure pool extend 7 --token 3 --owner ci --hold 10m
  tenure pool release 7 --token 3 --owner ci
  tenure pool set hosts --cool-down 30s --priority 'base + 2 * age_minutes'
  tenure pool show hosts -w";

/// A list that may stay on the screen.
#[derive(Args, Debug, Clone, Copy)]
pub(crate) struct Listing {
    /// Keep it on the screen, up to date
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// Of all namespaces
    #[arg(short = 'A', long)]
    pub(crate) all_namespaces: bool,
}

#[derive(Args, Debug)]
pub(crate) struct QueueArgs {
    #[command(subcommand)]
    pub(crate) command: QueueCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum QueueCommand {
    /// All queues, and how many tasks stand where
    List {
        #[command(flatten)]
        listing: Listing,
    },
    /// One queue: how it is set, and what is in it
    Show {
        /// The queue
        queue: String,
        /// Keep it on the screen, up to date
        #[arg(short, long)]
        watch: bool,
    },
    /// Set a queue; what is not named stays as it is
    #[command(
        after_help = "Examples:\n  tenure queue set mail --rate 100/s\n  tenure queue set mail --rate none --max-claimed 8\n  tenure queue set mail --keep 7d --keep-dead 90d"
    )]
    Set(QueueSet),
    /// How tasks are handed out: `distributed`, by anybody, or `exclusive`, by the leader in strict order
    #[command(
        after_help = "Nothing is lost or doubled when the mode changes, and nothing is handed out in the old one once this returns.\n\nExamples:\n  tenure queue mode mail exclusive\n  tenure queue mode mail exclusive --fallback distributed\n  tenure queue mode mail distributed"
    )]
    Mode {
        /// The queue
        queue: String,
        /// `distributed` or `exclusive`
        #[arg(value_parser = mode)]
        mode: Mode,
        /// When the leader cannot be reached: `none` ("not now", order is kept) or `distributed` (work goes on)
        #[arg(long, value_parser = fallback, value_name = "FALLBACK")]
        fallback: Option<Fallback>,
    },
    /// Hand out nothing until resumed; what is claimed goes on
    Pause {
        #[command(flatten)]
        which: WhichQueue,
        /// Why, for the others
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Hand out again
    Resume {
        #[command(flatten)]
        which: WhichQueue,
    },
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct WhichQueue {
    /// The queue
    pub(crate) queue: Option<String>,
    /// All queues and pools of the namespace
    #[arg(long)]
    pub(crate) everything: bool,
}

#[derive(Args, Debug)]
pub(crate) struct QueueSet {
    /// The queue; made, if it is not there
    pub(crate) queue: String,
    /// How tasks are handed out: `distributed` or `exclusive`
    #[arg(long, value_parser = mode, value_name = "MODE")]
    pub(crate) mode: Option<Mode>,
    /// What happens in exclusive mode when the leader cannot be reached: `none` or `distributed`
    #[arg(long, value_parser = fallback, value_name = "FALLBACK")]
    pub(crate) fallback: Option<Fallback>,
    /// Whether workers must be approved (`tenure workers approve`)
    #[arg(long, value_name = "on|off", value_parser = on_off)]
    pub(crate) approval: Option<bool>,
    /// How fast claims may begin, such as 100/s, 5/10s or 1000/1h; `none` for no limit
    #[arg(long, value_parser = limited(rate), value_name = "N/TIME")]
    pub(crate) rate: Option<Limit<RateLimit>>,
    /// How many may be claimed at once; `none` for no limit
    #[arg(long, value_parser = limited(count), value_name = "N")]
    pub(crate) max_claimed: Option<Limit<u32>>,
    /// For how long a task that prefers some tags is offered only to workers that have one
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub(crate) prefer: Option<Duration>,
    /// For how long completed and cancelled tasks are remembered
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub(crate) keep: Option<Duration>,
    /// For how long dead tasks are remembered
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub(crate) keep_dead: Option<Duration>,
}

/// A limit, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit<T>(pub(crate) Option<T>);

pub(crate) fn limited<T: 'static>(
    read: fn(&str) -> Result<T, String>,
) -> impl Fn(&str) -> Result<Limit<T>, String> + Clone {
    move |text| if text == "none" { Ok(Limit(None)) } else { read(text).map(|value| Limit(Some(value))) }
}

fn count(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|&number| number > 0);
    number.ok_or_else(|| format!("{text:?} is not a number from 1; write for example 8, or none"))
}

fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" | "yes" | "true" => Ok(true),
        "off" | "no" | "false" => Ok(false),
        _ => Err(format!("{text:?} is neither on nor off")),
    }
}

#[derive(Args, Debug)]
pub(crate) struct WorkersArgs {
    #[command(subcommand)]
    pub(crate) command: WorkersCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum WorkersCommand {
    /// All workers, whether they live, and what they have
    List {
        #[command(flatten)]
        listing: Listing,
    },
    /// Let whoever works under this name, known yet or not, have tasks of queues that ask for approval
    Approve {
        /// The worker's name
        name: String,
    },
    /// Take the approval back; what it has claimed it may finish
    Disapprove {
        /// The worker's name
        name: String,
    },
}

#[derive(Args, Debug)]
pub(crate) struct PoolArgs {
    #[command(subcommand)]
    pub(crate) command: PoolCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum PoolCommand {
    /// Put resources into a pool, or change those that are there
    Add {
        /// The pool; made, if it is not there
        pool: String,
        /// The resources: hosts, devices, licences
        #[arg(required = true, value_name = "RESOURCE")]
        resources: Vec<String>,
        /// Something that they have (repeatable)
        #[arg(long = "tag", value_name = "TAG")]
        tags: Vec<String>,
        /// Do not hand them out; one that is held stays held
        #[arg(long)]
        disabled: bool,
    },
    /// Set a pool; what is not named stays as it is
    Set {
        /// The pool; made, if it is not there
        pool: String,
        /// How resources are handed out: `distributed` or `exclusive`
        #[arg(long, value_parser = mode, value_name = "MODE")]
        mode: Option<Mode>,
        /// What happens in exclusive mode when the leader cannot be reached: `none` or `distributed`
        #[arg(long, value_parser = fallback, value_name = "FALLBACK")]
        fallback: Option<Fallback>,
        /// How long a resource rests after it was given back
        #[arg(long, value_parser = duration, value_name = "TIME")]
        cool_down: Option<Duration>,
        /// A request's priority, over base, age_minutes, simple, requires and prefers
        #[arg(long, value_name = "FORMULA")]
        priority: Option<String>,
        /// For how long a request is remembered after its end
        #[arg(long, value_parser = duration, value_name = "TIME")]
        keep: Option<Duration>,
    },
    /// All pools, and how much of them is free
    List {
        #[command(flatten)]
        listing: Listing,
    },
    /// One pool: who has what, and who waits
    Show {
        /// The pool
        pool: String,
        /// Keep it on the screen, up to date
        #[arg(short, long)]
        watch: bool,
    },
    /// Ask for a resource, and wait for it
    Request(RequestArgs),
    /// Keep a resource for longer
    Extend {
        #[command(flatten)]
        claim: PoolClaim,
        /// For how long from now
        #[arg(long, default_value = "60s", value_parser = duration, value_name = "TIME")]
        hold: Duration,
    },
    /// Give a resource back; without --token, call off a request that waits
    Release {
        #[command(flatten)]
        claim: PoolClaim,
    },
    /// Take a resource out of a pool
    Remove {
        /// The pool
        pool: String,
        /// The resource
        resource: String,
    },
}

#[derive(Args, Debug)]
pub(crate) struct RequestArgs {
    /// The pool
    pub(crate) pool: String,
    /// Something that the resource must have (repeatable)
    #[arg(long = "require", value_name = "TAG")]
    pub(crate) requires: Vec<String>,
    /// Something that it had better have (repeatable)
    #[arg(long = "prefer", value_name = "TAG")]
    pub(crate) prefers: Vec<String>,
    /// Who asks [default: you, on this host]
    #[arg(long, value_name = "NAME")]
    pub(crate) owner: Option<String>,
    /// Asked again under the same key while the first lasts: the first one [default: a new one]
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// The base of its priority
    #[arg(long, default_value_t = tenure::port::BASE_PRIORITY, allow_negative_numbers = true, value_parser = priority, value_name = "N")]
    pub(crate) base: i32,
    /// How long it is ours unless extended
    #[arg(long, default_value = "60s", value_parser = duration, value_name = "TIME")]
    pub(crate) hold: Duration,
    /// How long to wait for one
    #[arg(long, default_value = "0s", value_parser = duration, value_name = "TIME")]
    pub(crate) wait: Duration,
    /// Leave the request in the pool when the wait is over, for this long; ask again under the same key
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub(crate) keep_waiting: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct PoolClaim {
    /// The request's number
    pub(crate) request: u64,
    /// The token of the grant, as `pool request` printed it
    #[arg(long, value_parser = super::values::token, value_name = "TOKEN")]
    pub(crate) token: Option<tenure::Token>,
    /// Who asked [default: you, on this host]
    #[arg(long, value_name = "NAME")]
    pub(crate) owner: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_or_named() {
        let read = limited(count);
        assert_eq!(read("none"), Ok(Limit(None)));
        assert_eq!(read("8"), Ok(Limit(Some(8))));
        for text in ["0", "-1", "many", ""] {
            assert!(read(text).is_err_and(|error| error.contains(text)));
        }
        assert_eq!((on_off("on"), on_off("off")), (Ok(true), Ok(false)));
        assert!(on_off("maybe").is_err_and(|error| error.contains("maybe")));
    }
}
