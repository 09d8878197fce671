//! Arguments of `tenure events`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use tenure::port::StartOffset;

use super::parsers::{bytes, start_offset, token};
use super::queues_and_pools::{ListArgs, OptionalLimit, limited};
use super::{KILL_AFTER, LEASE, duration, key_value};

pub(crate) const EXAMPLES: &str = "\
Exit codes:
  64   usage error
  69   the store is unavailable

Examples:
  tenure events topics create orders
  tenure events publish orders --type order.paid --key order-7 --payload '{\"cents\":4200}'
  tenure events tail orders --from earliest
  tenure events consume orders --group mailer -- ./send.sh
  tenure events groups show orders mailer -w
  tenure events groups reset orders mailer --to 2h --dry-run
  tenure events dead-letters list orders mailer";

// One line per paragraph: clap wraps them to the width of the terminal.
const PUBLISH_EXAMPLES: &str = "\
Events with the same key are processed in commit order; events without a key in any order. A payload is JSON: literal, `-` \
for standard input, or @FILE; --payload-file sends a file as bytes. Prints the event id.

With -f, the file is NDJSON: each object may have type, key, payload or payload_base64, headers and idempotency_key. Options \
set defaults for objects without the field. Up to 10000 objects and 8 MiB are published atomically; larger files are \
published in batches of that size. With -o json the ids are printed as NDJSON.

Examples:
  tenure events publish orders --type order.paid --key order-7 --payload '{\"cents\":4200}'
  tenure events publish orders --type order.paid --key order-7 --payload @order.json --idempotency-key pay-7
  tenure events publish scans --type page --payload-file page.png --header content-type=image/png
  generate | tenure events publish orders --type order.made -f -";

const TAIL_EXAMPLES: &str = "\
Reads without a group and commits nothing. Events of one key are printed in order; events of different keys nearly so. With \
-o json the output is NDJSON.

--from takes `earliest`, `latest`, an offset, an instant such as 2030-01-31T09:30:00Z, or an age such as 2h.

Examples:
  tenure events tail orders
  tenure events tail orders --from 2h --type order.paid
  tenure events tail orders --key order-7 --from earliest --no-follow
  tenure events tail orders --from latest --limit 1 -o json   wait for the next event";

const TOPICS_EXAMPLES: &str = "\
Examples:
  tenure events topics                                 list topics
  tenure events topics create orders                   64 partitions, kept for 7 days and until every group has read them
  tenure events topics create audit --partitions 8 --retention 90d
  tenure events topics set orders --unread-retention 30d   prune unread events after 30 days
  tenure events topics show orders -w                  includes transactions that hold a partition lock";

const GROUPS_EXAMPLES: &str = "\
Examples:
  tenure events groups -w                              list groups live
  tenure events groups show orders mailer              by partition: offset, end, lag, member
  tenure events groups set orders mailer --max-attempts 5 --initial-backoff 1s
  tenure events groups set orders audit --from latest  create a group that starts with new events
  tenure events groups reset orders mailer --to 2h     read the last two hours again
  tenure events groups pause orders mailer --reason 'provider is down'";

const RESET_EXAMPLES: &str = "\
Commits of events in progress are rejected; the members continue from the new offsets. Parked events after the new offset \
are deleted because they are read again. Nothing is published again and no other group is affected.

--to takes `earliest`, `latest`, an offset (see `groups show`), an instant such as 2030-01-31T09:30:00Z, or an age such as 2h.

Examples:
  tenure events groups reset orders mailer --to earliest --dry-run
  tenure events groups reset orders mailer --to 2h
  tenure events groups reset orders mailer --to 2030-01-31T09:30:00Z
  tenure events groups reset orders mailer --partition 7 --to 4711";

const DEAD_LETTERS_EXAMPLES: &str = "\
An event that used all attempts becomes a dead letter and its key is parked: later events of the key wait behind it in \
order. `replay` and `drop` release them. Other keys are not affected.

Examples:
  tenure events dead-letters list orders mailer
  tenure events dead-letters list orders mailer --all   include parked events that are not dead
  tenure events dead-letters show orders mailer 4711
  tenure events dead-letters replay orders mailer 4711
  tenure events dead-letters replay orders mailer --all
  tenure events dead-letters drop orders mailer --key order-7";

const WEBHOOK_EXAMPLES: &str = "\
The servers (`tenure serve`) consume the group and send each event as a POST with the Standard Webhooks headers webhook-id, \
webhook-timestamp and webhook-signature. Any 2xx response acknowledges the event. Pass the secret in a file, not as an \
argument; it is stored and never shown again.

Examples:
  tenure events webhook set orders mailer --url https://mail.example.com/hooks   creates a secret and prints it once
  tenure events webhook set orders mailer --url https://mail.example.com/hooks --secret-file hook.secret
  tenure events webhook delete orders mailer";

const CONSUME_EXAMPLES: &str = "\
The command runs once per event. It gets the payload on standard input, and TENURE_EVENT_ID, TENURE_EVENT_TYPE, \
TENURE_EVENT_KEY (if any), TENURE_EVENT_TOPIC, TENURE_EVENT_GROUP, TENURE_EVENT_PARTITION, TENURE_EVENT_OFFSET, \
TENURE_EVENT_ATTEMPT, TENURE_EVENT_PUBLISHED_AT_MS, TENURE_EVENT_HEADERS (a JSON object), TENURE_TOKEN (the fencing token of \
the partition), TENURE_NAMESPACE and TENURE_NAME (the member name).

Exit code 0 acknowledges the event. Any other code, or a signal, fails the attempt: the event is parked and retried after \
the backoff of the group, while other keys continue. After the last attempt it is a dead letter (`tenure events \
dead-letters`).

Every event is processed at least once. It is processed again if this process dies after the command and before the commit; \
use TENURE_EVENT_ID to detect it. Commands for the same key never run concurrently. Before another member can take the \
partition, tenure stops the command with its process group, even if tenure itself is stopped or killed.

Members with the same --group divide the partitions of the topic. Each group receives all events.

On SIGTERM or Ctrl-C no new events are started and running commands finish. A second signal stops them and releases their \
events to another member.

Exit codes:
  0    stopped by a signal, or idle (--exit-when-idle)
  64   usage error
  69   the store is unavailable
  125  internal error of tenure
  126  the command cannot be executed
  127  the command was not found

Examples:
  tenure events consume orders --group mailer -- ./send.sh
  tenure events consume orders --group mailer -n 8 -- ./send.sh     eight keys at once
  tenure events consume orders --group audit --from latest -- ./audit.py
  tenure events consume orders --group report --exit-when-idle -- ./report.sh   from cron";

#[derive(Args, Debug)]
pub(crate) struct EventsArgs {
    #[command(subcommand)]
    pub(crate) command: EventsCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum EventsCommand {
    /// Publish one event, or all events of a file
    #[command(after_help = PUBLISH_EXAMPLES)]
    Publish(PublishArgs),
    /// Print events as they are published
    #[command(after_help = TAIL_EXAMPLES)]
    Tail(TailArgs),
    /// Join a group and run a command for each event
    #[command(after_help = CONSUME_EXAMPLES)]
    Consume(ConsumeArgs),
    /// Inspect, create and configure topics
    #[command(after_help = TOPICS_EXAMPLES)]
    Topics {
        #[command(subcommand)]
        command: Option<TopicsCommand>,
        #[command(flatten)]
        listing: ListArgs,
    },
    /// Inspect and configure consumer groups: partitions, offsets and lag
    #[command(after_help = GROUPS_EXAMPLES)]
    Groups {
        #[command(subcommand)]
        command: Option<GroupsCommand>,
        #[command(flatten)]
        listing: ListArgs,
    },
    /// Inspect, replay and drop dead letters
    #[command(after_help = DEAD_LETTERS_EXAMPLES)]
    DeadLetters {
        #[command(subcommand)]
        command: DeadLettersCommand,
    },
    /// Deliver a group's events to a webhook
    #[command(after_help = WEBHOOK_EXAMPLES)]
    Webhook {
        #[command(subcommand)]
        command: WebhookCommand,
    },
}

/// A group of a topic.
#[derive(Args, Debug, Clone)]
pub(crate) struct GroupSelector {
    /// Topic name
    pub(crate) topic: String,
    /// Group name
    pub(crate) group: String,
}

#[derive(Args, Debug)]
pub(crate) struct PublishArgs {
    /// Topic name; create it first with `tenure events topics create`
    pub(crate) topic: String,

    /// Publish the events in this NDJSON file (one JSON object each); `-` for standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Event type, such as order.paid
    #[arg(long = "type", value_name = "TYPE", required_unless_present = "file")]
    pub(crate) kind: Option<String>,

    /// Event key; events with the same key are processed in order
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,

    /// Payload: JSON, `-` for standard input, or @FILE [default: {}]
    #[arg(long, value_name = "JSON|-|@FILE", allow_hyphen_values = true, conflicts_with = "file")]
    pub(crate) payload: Option<String>,

    /// Binary payload: a file, or `-` for standard input
    #[arg(long, value_name = "FILE|-", conflicts_with_all = ["payload", "file"])]
    pub(crate) payload_file: Option<PathBuf>,

    /// Header (repeatable)
    #[arg(long = "header", value_parser = key_value, value_name = "NAME=VALUE")]
    pub(crate) headers: Vec<(String, String)>,

    /// Idempotency key; a repeated publication returns the first event
    #[arg(long, value_name = "KEY", conflicts_with = "file")]
    pub(crate) idempotency_key: Option<String>,

    /// Fencing token of the publishing leader, such as $TENURE_TOKEN; stored with the event
    #[arg(long, value_parser = token, value_name = "TOKEN", conflicts_with = "file")]
    pub(crate) leader_token: Option<tenure::Token>,
}

#[derive(Args, Debug)]
pub(crate) struct TailArgs {
    /// Topic name
    pub(crate) topic: String,

    /// Start: `earliest`, `latest`, an offset, an instant, or an age such as 2h
    #[arg(long, value_parser = start_offset, value_name = "START", conflicts_with = "last")]
    pub(crate) from: Option<StartOffset>,

    /// Start with the last N events
    #[arg(short = 'n', long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(..=10_000), value_name = "N")]
    pub(crate) last: u32,

    /// Only events with this key
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,

    /// Only events of this type (repeatable)
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) kinds: Vec<String>,

    /// Exit after N events
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..), value_name = "N")]
    pub(crate) limit: Option<u64>,

    /// Exit at the end of the topic instead of waiting for more
    #[arg(long)]
    pub(crate) no_follow: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ConsumeArgs {
    /// Topic name
    pub(crate) topic: String,

    /// Group name; created if missing
    #[arg(short, long, value_name = "GROUP")]
    pub(crate) group: String,

    /// Number of commands that run at once, each for a different key
    #[arg(short = 'n', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "N")]
    pub(crate) concurrency: u32,

    /// Member name; after a restart the member of this name gets the same partitions back [default: host name and process
    /// id]
    #[arg(long, env = "TENURE_NAME", value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Start of a new group: `earliest`, `latest`, an offset, an instant, or an age such as 2h
    #[arg(long, default_value = "earliest", value_parser = start_offset, value_name = "START")]
    pub(crate) from: StartOffset,

    /// Lease duration
    #[arg(long, default_value = LEASE, value_parser = duration, value_name = "DURATION")]
    pub(crate) lease: Duration,

    /// Timeout of one command; then it is stopped and counts as failed [default: none]
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) timeout: Option<Duration>,

    /// Time between SIGTERM and SIGKILL when the command is stopped
    #[arg(long, default_value = KILL_AFTER, value_parser = duration, value_name = "DURATION")]
    pub(crate) kill_after: Duration,

    /// Exit when all events are processed and no retry is pending
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

#[derive(Subcommand, Debug)]
pub(crate) enum TopicsCommand {
    /// List topics with their event counts
    List {
        #[command(flatten)]
        listing: ListArgs,
    },
    /// Show a topic: settings, groups and lock holders
    Show {
        /// Topic name
        topic: String,
        /// Refresh continuously
        #[arg(short, long)]
        watch: bool,
    },
    /// Create a topic
    #[command(
        after_help = "The number of partitions cannot change later. It is the maximum number of active members of a group, and each key keeps its partition.\n\nExamples:\n  tenure events topics create orders\n  tenure events topics create audit --partitions 8 --retention 90d --max-payload-bytes 64KiB"
    )]
    Create {
        /// Topic name
        topic: String,
        /// Number of partitions; it cannot change later
        #[arg(long, default_value_t = tenure::port::DEFAULT_PARTITIONS, value_parser = clap::value_parser!(u32).range(1..=i64::from(tenure::port::PARTITIONS_MAX)), value_name = "N")]
        partitions: u32,
        #[command(flatten)]
        set: TopicSetArgs,
    },
    /// Change the settings of a topic; settings without an option keep their values
    #[command(
        after_help = "Examples:\n  tenure events topics set orders --retention 30d\n  tenure events topics set orders --unread-retention none"
    )]
    Set {
        /// Topic name
        topic: String,
        #[command(flatten)]
        set: TopicSetArgs,
    },
    /// Delete a topic with its events and groups
    Delete {
        /// Topic name
        topic: String,
        /// Delete even if the topic has events or groups
        #[arg(long)]
        force: bool,
    },
}

#[derive(Args, Debug)]
pub(crate) struct TopicSetArgs {
    /// Minimum retention of events [default for a new topic: 7d]
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) retention: Option<Duration>,
    /// Maximum retention of unread events; `none` to keep them until every group has read them [default for a new topic:
    /// none]
    #[arg(long, value_parser = limited(duration), value_name = "DURATION")]
    pub(crate) unread_retention: Option<OptionalLimit<Duration>>,
    /// Maximum payload size, such as 4096 or 64KiB [default for a new topic: 1MiB]
    #[arg(long, value_parser = bytes, value_name = "BYTES")]
    pub(crate) max_payload_bytes: Option<u64>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum GroupsCommand {
    /// List groups with their lag
    List {
        #[command(flatten)]
        listing: ListArgs,
    },
    /// Show a group by partition: committed offset, end offset, lag and member
    Show {
        #[command(flatten)]
        which: GroupSelector,
        /// Only partitions with unread events
        #[arg(long)]
        lagging: bool,
        /// Refresh continuously
        #[arg(short, long)]
        watch: bool,
    },
    /// Change the settings of a group, or create it; settings without an option keep their values
    #[command(
        after_help = "Examples:\n  tenure events groups set orders mailer --max-attempts 5\n  tenure events groups set orders audit --from latest"
    )]
    Set {
        #[command(flatten)]
        which: GroupSelector,
        /// Attempts per event before it becomes a dead letter and its key is parked [default for a new group: 10]
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
        max_attempts: Option<u32>,
        /// Backoff after the first failed attempt; doubles with each failure [default for a new group: 500ms]
        #[arg(long, value_parser = duration, value_name = "DURATION")]
        initial_backoff: Option<Duration>,
        /// Maximum backoff [default for a new group: 1m]
        #[arg(long, value_parser = duration, value_name = "DURATION")]
        max_backoff: Option<Duration>,
        /// Start of a new group: `earliest`, `latest`, an offset, an instant, or an age such as 2h
        #[arg(long, default_value = "earliest", value_parser = start_offset, value_name = "START")]
        from: StartOffset,
    },
    /// Pause a group; events in progress are finished
    Pause {
        #[command(flatten)]
        which: GroupSelector,
        /// Reason, shown to other operators
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Resume a group
    Resume {
        #[command(flatten)]
        which: GroupSelector,
    },
    /// Move a group's offsets, to read events again or to skip them
    #[command(after_help = RESET_EXAMPLES)]
    Reset(ResetArgs),
    /// Delete a group with its offsets and dead letters
    Delete {
        #[command(flatten)]
        which: GroupSelector,
        /// Delete even if the group has parked events or dead letters
        #[arg(long)]
        force: bool,
    },
}

#[derive(Args, Debug)]
pub(crate) struct ResetArgs {
    #[command(flatten)]
    pub(crate) which: GroupSelector,

    /// New offset: `earliest`, `latest`, an offset, an instant, or an age such as 2h
    #[arg(long, value_parser = start_offset, value_name = "START")]
    pub(crate) to: StartOffset,

    /// Only this partition
    #[arg(long, value_name = "N")]
    pub(crate) partition: Option<u32>,

    /// Print the changes without making them
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Subcommand, Debug)]
pub(crate) enum DeadLettersCommand {
    /// List dead letters
    List {
        #[command(flatten)]
        which: GroupSelector,
        /// Only events with this key
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
        /// Include parked events that are not dead
        #[arg(long)]
        all: bool,
        /// Cursor of the next page
        #[arg(long, value_name = "CURSOR")]
        cursor: Option<u64>,
        /// Maximum number of events
        #[arg(short = 'n', long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "N")]
        limit: u32,
        /// Refresh continuously
        #[arg(short, long)]
        watch: bool,
    },
    /// Show a parked event: error, attempts and payload
    Show {
        #[command(flatten)]
        which: GroupSelector,
        /// Event id
        event_id: u64,
    },
    /// Deliver dead letters again, with all attempts restored; events that wait behind them follow in order
    #[command(
        after_help = "Examples:\n  tenure events dead-letters replay orders mailer 4711 4712\n  tenure events dead-letters replay orders mailer --key order-7\n  tenure events dead-letters replay orders mailer --all"
    )]
    Replay(DeadLetterActionArgs),
    /// Drop dead letters; events behind them follow in order
    #[command(
        after_help = "Examples:\n  tenure events dead-letters drop orders mailer 4711\n  tenure events dead-letters drop orders mailer --key order-7"
    )]
    Drop(DeadLetterActionArgs),
}

#[derive(Args, Debug)]
pub(crate) struct DeadLetterActionArgs {
    #[command(flatten)]
    pub(crate) which: GroupSelector,

    #[command(flatten)]
    pub(crate) events: DeadLetterSelector,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct DeadLetterSelector {
    /// Event ids
    #[arg(value_name = "EVENT_ID")]
    pub(crate) event_ids: Vec<u64>,
    /// All dead letters with this key
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// All dead letters of the group
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Subcommand, Debug)]
pub(crate) enum WebhookCommand {
    /// Set the webhook of a group
    Set {
        #[command(flatten)]
        which: GroupSelector,
        /// URL that receives one POST per event
        #[arg(long, value_name = "URL")]
        url: String,
        /// File with the signing secret; `-` for standard input [default: the current secret, or a new one, printed once]
        #[arg(long, value_name = "FILE|-")]
        secret_file: Option<PathBuf>,
        /// Create a new signing secret and print it once; the old one stops working
        #[arg(long, conflicts_with = "secret_file")]
        rotate_secret: bool,
        /// Timeout of one webhook request
        #[arg(long, default_value = "10s", value_parser = duration, value_name = "DURATION")]
        timeout: Duration,
    },
    /// Delete the webhook; offsets are kept
    Delete {
        #[command(flatten)]
        which: GroupSelector,
    },
}
