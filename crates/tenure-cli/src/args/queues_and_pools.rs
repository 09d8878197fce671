//! Arguments of `tenure queues`, `tenure workers` and `tenure pools`.

use std::time::Duration;

use clap::{Args, Subcommand};
use tenure::port::{AssignmentMode, BrokerFallback, RateLimit};

use super::duration;
use super::parsers::{fallback, mode, priority, rate};

pub(crate) const QUEUES_EXAMPLES: &str = "\
Examples:
  tenure queues list -w                              all queues, live
  tenure queues mode mail exclusive                  strict order, through the broker
  tenure queues mode mail exclusive --fallback distributed
  tenure queues set mail --rate 100/s --max-claimed 8
  tenure queues set mail --require-approval on       only approved workers claim
  tenure queues pause mail --reason 'provider is down'
  tenure queues pause --all                          all queues and pools of the namespace";

pub(crate) const WORKERS_EXAMPLES: &str = "\
Approval applies to a name. Any client with the permission claim in the namespace can use that name, so approval prevents \
mistakes, not abuse. To separate clients, use separate namespaces.

Examples:
  tenure workers list -w
  tenure workers approve box-1
  tenure workers revoke-approval box-1";

pub(crate) const POOLS_EXAMPLES: &str = "\
Exit codes:
  64   usage error
  69   the store is unavailable
  75   not acquired: no matching resource became free in time
  76   claim lost: the resource is not held under that token

Examples:
  tenure pools add-resource hosts node-1 node-2 --tag gpu --tag eu
  tenure pools request hosts --required-tag gpu --owner ci --claim-timeout 10m --wait 1m
  tenure pools heartbeat 7 --token 3 --owner ci --claim-timeout 10m
  tenure pools release 7 --token 3 --owner ci
  tenure pools set hosts --cooldown 30s --priority-formula 'base_priority + 2 * age_minutes'
  tenure pools show hosts -w";

/// Options of a list command.
#[derive(Args, Debug, Clone, Copy)]
pub(crate) struct ListArgs {
    /// Refresh continuously
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// Include all namespaces
    #[arg(short = 'A', long)]
    pub(crate) all_namespaces: bool,
}

#[derive(Args, Debug)]
pub(crate) struct QueuesArgs {
    #[command(subcommand)]
    pub(crate) command: QueuesCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum QueuesCommand {
    /// List queues with task counts by state
    List {
        #[command(flatten)]
        listing: ListArgs,
    },
    /// Show a queue: settings and contents
    Show {
        /// Queue name
        queue: String,
        /// Refresh continuously
        #[arg(short, long)]
        watch: bool,
    },
    /// Change the settings of a queue; settings without an option keep their values
    #[command(
        after_help = "Examples:\n  tenure queues set mail --rate 100/s\n  tenure queues set mail --rate none --max-claimed 8\n  tenure queues set mail --retention 7d --dead-retention 90d"
    )]
    Set(QueueSetArgs),
    /// Set how tasks are assigned: `distributed` (any process) or `exclusive` (the broker, in strict order)
    #[command(
        after_help = "The change loses and duplicates no task. After the command returns, no task is assigned in the old mode.\n\nExamples:\n  tenure queues mode mail exclusive\n  tenure queues mode mail exclusive --fallback distributed\n  tenure queues mode mail distributed"
    )]
    Mode {
        /// Queue name
        queue: String,
        /// Mode: `distributed` or `exclusive`
        #[arg(value_parser = mode)]
        mode: AssignmentMode,
        /// Fallback while the broker is unreachable: `none` (keep order, assign nothing) or `distributed` (keep
        /// assigning)
        #[arg(long, value_parser = fallback, value_name = "FALLBACK")]
        fallback: Option<BrokerFallback>,
    },
    /// Pause a queue; claimed tasks continue
    Pause {
        #[command(flatten)]
        which: QueueSelector,
        /// Reason, shown to other operators
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Resume a queue
    Resume {
        #[command(flatten)]
        which: QueueSelector,
    },
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct QueueSelector {
    /// Queue name
    pub(crate) queue: Option<String>,
    /// Apply to all queues and pools of the namespace
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Args, Debug)]
pub(crate) struct QueueSetArgs {
    /// Queue name; created if missing
    pub(crate) queue: String,
    /// Assignment mode: `distributed` or `exclusive`
    #[arg(long, value_parser = mode, value_name = "MODE")]
    pub(crate) mode: Option<AssignmentMode>,
    /// Fallback in exclusive mode while the broker is unreachable: `none` or `distributed`
    #[arg(long, value_parser = fallback, value_name = "FALLBACK")]
    pub(crate) fallback: Option<BrokerFallback>,
    /// Require approval of workers (`tenure workers approve`)
    #[arg(long, value_name = "on|off", value_parser = on_off)]
    pub(crate) require_approval: Option<bool>,
    /// Rate limit for claims, such as 100/s, 5/10s or 1000/1h; `none` for no limit
    #[arg(long, value_parser = limited(rate), value_name = "N/DURATION")]
    pub(crate) rate: Option<OptionalLimit<RateLimit>>,
    /// Maximum number of claimed tasks; `none` for no limit
    #[arg(long, value_parser = limited(count), value_name = "N")]
    pub(crate) max_claimed: Option<OptionalLimit<u32>>,
    /// How long a task with preferred tags is reserved for workers that have one of them
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) preference_window: Option<Duration>,
    /// Retention of completed and cancelled tasks
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) retention: Option<Duration>,
    /// Retention of dead tasks
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) dead_retention: Option<Duration>,
}

/// A limit, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OptionalLimit<T>(pub(crate) Option<T>);

pub(crate) fn limited<T: 'static>(
    read: fn(&str) -> Result<T, String>,
) -> impl Fn(&str) -> Result<OptionalLimit<T>, String> + Clone {
    move |text| {
        if text == "none" {
            Ok(OptionalLimit(None))
        } else {
            read(text).map(|value| OptionalLimit(Some(value)))
        }
    }
}

fn count(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|&number| number > 0);
    number.ok_or_else(|| format!("invalid number {text:?}: use a whole number from 1, or none"))
}

fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" | "yes" | "true" => Ok(true),
        "off" | "no" | "false" => Ok(false),
        _ => Err(format!("invalid value {text:?}: use on or off")),
    }
}

#[derive(Args, Debug)]
pub(crate) struct WorkersArgs {
    #[command(subcommand)]
    pub(crate) command: WorkersCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum WorkersCommand {
    /// List workers with their state and claims
    List {
        #[command(flatten)]
        listing: ListArgs,
    },
    /// Approve a worker name for queues that require approval
    Approve {
        /// Worker name
        worker: String,
    },
    /// Revoke the approval of a worker name; claimed tasks may finish
    RevokeApproval {
        /// Worker name
        worker: String,
    },
}

#[derive(Args, Debug)]
pub(crate) struct PoolsArgs {
    #[command(subcommand)]
    pub(crate) command: PoolsCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum PoolsCommand {
    /// Add resources to a pool, or update them
    AddResource {
        /// Pool name; created if missing
        pool: String,
        /// Resource names, such as hosts, devices or licenses
        #[arg(required = true, value_name = "RESOURCE")]
        resources: Vec<String>,
        /// Tag of the resources (repeatable)
        #[arg(long = "tag", value_name = "TAG")]
        tags: Vec<String>,
        /// Disable the resources; a held resource remains held until released
        #[arg(long)]
        disabled: bool,
    },
    /// Change the settings of a pool; settings without an option keep their values
    Set {
        /// Pool name; created if missing
        pool: String,
        /// Assignment mode: `distributed` or `exclusive`
        #[arg(long, value_parser = mode, value_name = "MODE")]
        mode: Option<AssignmentMode>,
        /// Fallback in exclusive mode while the broker is unreachable: `none` or `distributed`
        #[arg(long, value_parser = fallback, value_name = "FALLBACK")]
        fallback: Option<BrokerFallback>,
        /// Cooldown of a resource after its release
        #[arg(long, value_parser = duration, value_name = "DURATION")]
        cooldown: Option<Duration>,
        /// Formula for the priority of a request, with the variables base_priority, age_minutes, simple (1 if no tags are
        /// required), required_tags and preferred_tags (numbers of tags)
        #[arg(long, value_name = "FORMULA")]
        priority_formula: Option<String>,
        /// Retention of ended requests
        #[arg(long, value_parser = duration, value_name = "DURATION")]
        request_retention: Option<Duration>,
    },
    /// List pools with the number of free resources
    List {
        #[command(flatten)]
        listing: ListArgs,
    },
    /// Show a pool: resources, holders and waiting requests
    Show {
        /// Pool name
        pool: String,
        /// Refresh continuously
        #[arg(short, long)]
        watch: bool,
    },
    /// Request a resource and wait for it
    Request(PoolRequestArgs),
    /// Send a heartbeat for a held resource
    Heartbeat {
        #[command(flatten)]
        claim: HeldResourceArgs,
        /// New claim timeout, counted from now
        #[arg(long, default_value = "60s", value_parser = duration, value_name = "DURATION")]
        claim_timeout: Duration,
    },
    /// Release a resource; without --token, cancel a waiting request
    Release {
        #[command(flatten)]
        claim: HeldResourceArgs,
    },
    /// Remove a resource from a pool
    RemoveResource {
        /// Pool name
        pool: String,
        /// Resource name
        resource: String,
    },
}

#[derive(Args, Debug)]
pub(crate) struct PoolRequestArgs {
    /// Pool name
    pub(crate) pool: String,
    /// Tag that the resource must have (repeatable)
    #[arg(long = "required-tag", value_name = "TAG")]
    pub(crate) required_tags: Vec<String>,
    /// Tag that the resource should have (repeatable)
    #[arg(long = "preferred-tag", value_name = "TAG")]
    pub(crate) preferred_tags: Vec<String>,
    /// Owner of the request [default: user@host]
    #[arg(long, value_name = "NAME")]
    pub(crate) owner: Option<String>,
    /// Idempotency key: while the first request with this key is open, return it [default: random]
    #[arg(long, value_name = "KEY")]
    pub(crate) idempotency_key: Option<String>,
    /// Base priority of the request
    #[arg(long, default_value_t = tenure::port::BASE_PRIORITY, allow_negative_numbers = true, value_parser = priority, value_name = "N")]
    pub(crate) base_priority: i32,
    /// Claim timeout without a heartbeat
    #[arg(long, default_value = "60s", value_parser = duration, value_name = "DURATION")]
    pub(crate) claim_timeout: Duration,
    /// Maximum time to wait for a resource
    #[arg(long, default_value = "0s", value_parser = duration, value_name = "DURATION")]
    pub(crate) wait: Duration,
    /// How long the request stays in the pool, also after this command has stopped waiting; run the command again with
    /// the same idempotency key to get the resource
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) max_wait: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct HeldResourceArgs {
    /// Request id
    pub(crate) request_id: u64,
    /// Token of the claim, as printed by `pools request`
    #[arg(long, value_parser = super::parsers::token, value_name = "TOKEN")]
    pub(crate) token: Option<tenure::Token>,
    /// Owner of the request [default: user@host]
    #[arg(long, value_name = "NAME")]
    pub(crate) owner: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_parsed_or_named_in_the_error() {
        let read = limited(count);
        assert_eq!(read("none"), Ok(OptionalLimit(None)));
        assert_eq!(read("8"), Ok(OptionalLimit(Some(8))));
        for text in ["0", "-1", "many", ""] {
            assert!(read(text).is_err_and(|error| error.contains(text)));
        }
        assert_eq!((on_off("on"), on_off("off")), (Ok(true), Ok(false)));
        assert!(on_off("maybe").is_err_and(|error| error.contains("maybe")));
    }
}
