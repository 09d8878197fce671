//! What can be typed about events.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use tenure::port::Begin;

use super::claims::{Limit, Listing, limited};
use super::values::{begin, bytes, token};
use super::{KILL_AFTER, LEASE, duration, key_value};

pub(crate) const EXAMPLES: &str = "\
Exit codes:
  64   what was asked makes no sense
  69   the store cannot be used

Examples:
  tenure events topics create orders
  tenure events publish orders --type order.paid --key order-7 --payload '{\"cents\":4200}'
  tenure events tail orders --from earliest
  tenure events consume orders --group mailer -- ./send.sh
  tenure events groups show orders mailer -w
  tenure events reset orders mailer --to 2h --dry-run
  tenure events dead list orders mailer";

// Paragraphs are one line each: they are wrapped where they are shown.
const PUBLISH_EXAMPLES: &str = "\
Events with the same key are read in the order in which they were published; those without one in any order. A payload is JSON: \
as it is, `-` for the standard input, or @FILE; --bytes takes a file as it is. The number of the event is printed.

With -f, each line of the file is an event, a JSON object with any of these: type, key, payload or payload_base64, headers, \
idempotency_key. What the options say is for lines that do not. Up to 10000 lines and 8 MiB are published all or none, more in \
portions of that size. With -o json the numbers are printed, one object per line.

Examples:
  tenure events publish orders --type order.paid --key order-7 --payload '{\"cents\":4200}'
  tenure events publish orders --type order.paid --key order-7 --payload @order.json --idempotency-key pay-7
  tenure events publish scans --type page --bytes page.png --header content-type=image/png
  generate | tenure events publish orders --type order.made -f -";

const TAIL_EXAMPLES: &str = "\
It only looks: no group learns of it, nothing is committed. Events of one key come in order; those of different keys nearly so. \
With -o json: one object per line and event.

Where to begin, at --from: `earliest`, `latest`, a position, a moment such as 2030-01-31T09:30:00Z, or a time such as 2h, which \
means: that long ago.

Examples:
  tenure events tail orders
  tenure events tail orders --from 2h --type order.paid
  tenure events tail orders --key order-7 --from earliest --no-follow
  tenure events tail orders --from latest --count 1 -o json   wait for the next one";

const TOPICS_EXAMPLES: &str = "\
Examples:
  tenure events topics                                 all of them
  tenure events topics create orders                   64 slots, kept for 7 days and until every group has read them
  tenure events topics create audit --slots 8 --keep 90d
  tenure events topics set orders --keep-unread 30d    what nobody has read by then is forgotten
  tenure events topics show orders -w                  and the transaction that blocks a slot, if one does";

const GROUPS_EXAMPLES: &str = "\
Examples:
  tenure events groups -w                              all of them, live
  tenure events groups show orders mailer              slot by slot: offset, end, lag, member
  tenure events groups set orders mailer --max-attempts 5 --backoff 1s
  tenure events groups set orders audit --from latest  made beforehand, it begins with what comes from now on
  tenure events groups pause orders mailer --reason 'provider is down'";

const RESET_EXAMPLES: &str = "\
Whatever is being handled at that moment is refused when it commits: the members begin anew at the new place. Events that are \
set aside after it are forgotten, for they are read again. Nothing is published again, and no other group is touched.

Where to, at --to: `earliest`, `latest`, a position (as OFFSET in `groups show`), a moment such as 2030-01-31T09:30:00Z, or a time \
such as 2h, which means: that long ago.

Examples:
  tenure events reset orders mailer --to earliest --dry-run
  tenure events reset orders mailer --to 2h
  tenure events reset orders mailer --to 2030-01-31T09:30:00Z
  tenure events reset orders mailer --slot 7 --to 4711";

const DEAD_EXAMPLES: &str = "\
An event that failed as often as it may is dead, and its key parked: those that follow wait behind it, in order. Both `replay` and \
`drop` let them go on; other keys never waited.

Examples:
  tenure events dead list orders mailer
  tenure events dead list orders mailer --waiting      also what is tried again, and what waits behind
  tenure events dead show orders mailer 4711
  tenure events dead replay orders mailer 4711
  tenure events dead replay orders mailer --all
  tenure events dead drop orders mailer --key order-7";

const PUSH_EXAMPLES: &str = "\
The servers (`tenure serve`) consume the group, and POST each event with the headers of Standard Webhooks: webhook-id, \
webhook-timestamp and webhook-signature. Any 2xx means: done. A secret never stands on the command line, where everybody on the \
machine could read it; it is kept in the store, and not shown again.

Examples:
  tenure events push set orders mailer --url https://mail.example.com/hooks     makes a secret, and prints it this once
  tenure events push set orders mailer --url https://mail.example.com/hooks --secret-file hook.secret
  tenure events push unset orders mailer";

const CONSUME_EXAMPLES: &str = "\
The command runs once for each event. It reads the payload on its standard input, and sees TENURE_EVENT_ID, TENURE_EVENT_TYPE, \
TENURE_EVENT_KEY (if it has one), TENURE_EVENT_TOPIC, TENURE_EVENT_GROUP, TENURE_EVENT_SLOT, TENURE_EVENT_POSITION, \
TENURE_EVENT_ATTEMPT, TENURE_EVENT_AT_MS, TENURE_EVENT_HEADERS (a JSON object), TENURE_TOKEN (the slot's fencing token, as a \
number), TENURE_NAMESPACE and TENURE_ID (the member's name).

Exit code 0: it is done. Any other code, or a signal: it failed, and is tried again in a while, as the group is set; meanwhile \
those of its key wait, and the others go on. After the last attempt it is dead (`tenure events dead`).

Every event is handled at least once. It is handled again if this process dies after the command and before the store has \
heard of it: TENURE_EVENT_ID tells. Of one key, no two commands run at once. The command's process group is ended before the slot \
can be another's: also when tenure itself is stopped or killed.

Several share the topic's slots if they name the same group. Groups do not know of one another: each gets all events.

SIGTERM or Ctrl-C: no more events are begun, what runs is finished. Told again, it is ended, and given to another.

Exit codes:
  0    it was told to end, or everything was read (--until-end)
  64   what was asked makes no sense
  69   the store cannot be used
  125  tenure itself failed
  126  the command cannot be executed
  127  the command was not found

Examples:
  tenure events consume orders --group mailer -- ./send.sh
  tenure events consume orders --group mailer -n 8 -- ./send.sh     eight keys at once
  tenure events consume orders --group audit --from latest -- ./audit.py
  tenure events consume orders --group report --until-end -- ./report.sh   from cron";

#[derive(Args, Debug)]
pub(crate) struct EventsArgs {
    #[command(subcommand)]
    pub(crate) command: EventsCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum EventsCommand {
    /// Publish an event, or a file of them
    #[command(after_help = PUBLISH_EXAMPLES)]
    Publish(PublishArgs),
    /// Print events as they come
    #[command(after_help = TAIL_EXAMPLES)]
    Tail(TailArgs),
    /// Run a command for each event, as a member of a group
    #[command(after_help = CONSUME_EXAMPLES)]
    Consume(ConsumeArgs),
    /// See, make and set topics
    #[command(after_help = TOPICS_EXAMPLES)]
    Topics {
        #[command(subcommand)]
        command: Option<TopicsCommand>,
        #[command(flatten)]
        listing: Listing,
    },
    /// See and set groups: who reads which slot, and how far
    #[command(after_help = GROUPS_EXAMPLES)]
    Groups {
        #[command(subcommand)]
        command: Option<GroupsCommand>,
        #[command(flatten)]
        listing: Listing,
    },
    /// Put a group elsewhere: to read again, or to skip
    #[command(after_help = RESET_EXAMPLES)]
    Reset(ResetArgs),
    /// See, replay and drop events that failed for good
    #[command(after_help = DEAD_EXAMPLES)]
    Dead {
        #[command(subcommand)]
        command: DeadCommand,
    },
    /// Let servers push a group's events to a webhook
    #[command(after_help = PUSH_EXAMPLES)]
    Push {
        #[command(subcommand)]
        command: PushCommand,
    },
}

/// A group, as `groups` lists it.
#[derive(Args, Debug, Clone)]
pub(crate) struct WhichGroup {
    /// The topic
    pub(crate) topic: String,
    /// The group
    pub(crate) group: String,
}

#[derive(Args, Debug)]
pub(crate) struct PublishArgs {
    /// The topic; `tenure events topics create` makes it
    pub(crate) topic: String,

    /// One event per line of this file, as a JSON object; `-` for the standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// What happened, such as order.paid
    #[arg(long = "type", value_name = "TYPE", required_unless_present = "file")]
    pub(crate) kind: Option<String>,

    /// Events with the same key are read in order
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,

    /// With what: JSON, `-` for the standard input, or @FILE [default: {}]
    #[arg(long, value_name = "JSON|-|@FILE", allow_hyphen_values = true, conflicts_with = "file")]
    pub(crate) payload: Option<String>,

    /// With what, as it is: a file, or `-` for the standard input
    #[arg(long, value_name = "FILE|-", conflicts_with_all = ["payload", "file"])]
    pub(crate) bytes: Option<PathBuf>,

    /// Something more about it (repeatable)
    #[arg(long = "header", value_parser = key_value, value_name = "NAME=VALUE")]
    pub(crate) headers: Vec<(String, String)>,

    /// Published again under the same one: the first
    #[arg(long, value_name = "KEY", conflicts_with = "file")]
    pub(crate) idempotency_key: Option<String>,

    /// The token under which its publisher leads, such as $TENURE_TOKEN, for whoever reads it
    #[arg(long, value_parser = token, value_name = "TOKEN", conflicts_with = "file")]
    pub(crate) leader_token: Option<tenure::Token>,
}

#[derive(Args, Debug)]
pub(crate) struct TailArgs {
    /// The topic
    pub(crate) topic: String,

    /// Where to begin: `earliest`, `latest`, a position, a moment, or how long ago
    #[arg(long, value_parser = begin, value_name = "PLACE", conflicts_with = "last")]
    pub(crate) from: Option<Begin>,

    /// Begin with the last N
    #[arg(short = 'n', long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(..=10_000), value_name = "N")]
    pub(crate) last: u32,

    /// Only this key
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,

    /// Only this type (repeatable)
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) kinds: Vec<String>,

    /// End after so many
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..), value_name = "N")]
    pub(crate) count: Option<u64>,

    /// End when everything is printed, instead of waiting for more
    #[arg(long)]
    pub(crate) no_follow: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ConsumeArgs {
    /// The topic
    pub(crate) topic: String,

    /// The group; made, if it is not there
    #[arg(short, long, value_name = "GROUP")]
    pub(crate) group: String,

    /// How many commands run at once, each on another key
    #[arg(short = 'n', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "N")]
    pub(crate) concurrency: u32,

    /// What the group calls this member: after a restart it gets its slots back by this name [default: host name and process number]
    #[arg(long, env = "NODE_ID", value_name = "NAME")]
    pub(crate) member: Option<String>,

    /// Where the group begins, if it is new: `earliest`, `latest`, a position, a moment, or how long ago
    #[arg(long, default_value = "earliest", value_parser = begin, value_name = "PLACE")]
    pub(crate) from: Begin,

    /// How long a silent process keeps its slots
    #[arg(long, default_value = LEASE, value_parser = duration, value_name = "TIME")]
    pub(crate) lease: Duration,

    /// How long a command may take; then it is ended, and has failed [default: for as long as it takes]
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub(crate) timeout: Option<Duration>,

    /// How long a command may take to end after SIGTERM, before SIGKILL
    #[arg(long, default_value = KILL_AFTER, value_parser = duration, value_name = "TIME")]
    pub(crate) kill_after: Duration,

    /// End when everything is read and nothing is to be tried again
    #[arg(long)]
    pub(crate) until_end: bool,

    /// Pass a variable to the command that it does not get otherwise: an address with a password, an access token, a cluster's
    /// secret (repeatable)
    #[arg(long = "pass-env", value_name = "NAME")]
    pub(crate) pass_env: Vec<String>,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum TopicsCommand {
    /// All topics, and how much is in them
    List {
        #[command(flatten)]
        listing: Listing,
    },
    /// One topic: how it is set, who reads it, and who blocks it
    Show {
        /// The topic
        topic: String,
        /// Keep it on the screen, up to date
        #[arg(short, long)]
        watch: bool,
    },
    /// Make a topic
    #[command(
        after_help = "The number of slots is fixed: at most so many members share a group's work, and each key stays in its slot.\n\nExamples:\n  tenure events topics create orders\n  tenure events topics create audit --slots 8 --keep 90d --max-bytes 64KiB"
    )]
    Create {
        /// The topic
        topic: String,
        /// Into how many slots its keys are spread
        #[arg(long, default_value_t = tenure::port::SLOTS, value_parser = clap::value_parser!(u32).range(1..=i64::from(tenure::port::SLOTS_MAX)), value_name = "N")]
        slots: u32,
        #[command(flatten)]
        set: TopicSet,
    },
    /// Set a topic; what is not named stays as it is
    #[command(
        after_help = "Examples:\n  tenure events topics set orders --keep 30d\n  tenure events topics set orders --keep-unread none"
    )]
    Set {
        /// The topic
        topic: String,
        #[command(flatten)]
        set: TopicSet,
    },
    /// Delete a topic, with its events and groups
    Delete {
        /// The topic
        topic: String,
        /// Also if there are events or groups in it
        #[arg(long)]
        force: bool,
    },
}

#[derive(Args, Debug)]
pub(crate) struct TopicSet {
    /// For how long events are kept, at least, whoever has read them [default of new ones: 7d]
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub(crate) keep: Option<Duration>,
    /// For how long what a group has not read is kept; `none`: until it has [default of new ones: none]
    #[arg(long, value_parser = limited(duration), value_name = "TIME")]
    pub(crate) keep_unread: Option<Limit<Duration>>,
    /// The longest payload, such as 4096 or 64KiB [default of new ones: 1MiB]
    #[arg(long, value_parser = bytes, value_name = "BYTES")]
    pub(crate) max_bytes: Option<u64>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum GroupsCommand {
    /// All groups, and how far they are behind
    List {
        #[command(flatten)]
        listing: Listing,
    },
    /// One group, slot by slot: offset, end, lag, member
    Show {
        #[command(flatten)]
        which: WhichGroup,
        /// Only slots in which something is unread
        #[arg(long)]
        lagging: bool,
        /// Keep it on the screen, up to date
        #[arg(short, long)]
        watch: bool,
    },
    /// Set a group; what is not named stays as it is. Makes it, if it is not there
    #[command(
        after_help = "Examples:\n  tenure events groups set orders mailer --max-attempts 5\n  tenure events groups set orders audit --from latest"
    )]
    Set {
        #[command(flatten)]
        which: WhichGroup,
        /// How often an event is tried before it is dead and its key parked [default of new ones: 10]
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
        max_attempts: Option<u32>,
        /// How long to wait after the first failed attempt; doubles with each [default of new ones: 500ms]
        #[arg(long, value_parser = duration, value_name = "TIME")]
        backoff: Option<Duration>,
        /// How long to wait at most [default of new ones: 1m]
        #[arg(long, value_parser = duration, value_name = "TIME")]
        max_backoff: Option<Duration>,
        /// Where it begins, if it is new: `earliest`, `latest`, a position, a moment, or how long ago
        #[arg(long, default_value = "earliest", value_parser = begin, value_name = "PLACE")]
        from: Begin,
    },
    /// Read nothing until resumed; what is begun is finished
    Pause {
        #[command(flatten)]
        which: WhichGroup,
        /// Why, for the others
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Read again
    Resume {
        #[command(flatten)]
        which: WhichGroup,
    },
    /// Delete a group, with how far it has read and what is dead
    Delete {
        #[command(flatten)]
        which: WhichGroup,
        /// Also if it has events that are dead, or tried again
        #[arg(long)]
        force: bool,
    },
}

#[derive(Args, Debug)]
pub(crate) struct ResetArgs {
    #[command(flatten)]
    pub(crate) which: WhichGroup,

    /// Where to: `earliest`, `latest`, a position, a moment, or how long ago
    #[arg(long, value_parser = begin, value_name = "PLACE")]
    pub(crate) to: Begin,

    /// Only this slot
    #[arg(long, value_name = "N")]
    pub(crate) slot: Option<u32>,

    /// Show what would be, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Subcommand, Debug)]
pub(crate) enum DeadCommand {
    /// Events that are dead
    List {
        #[command(flatten)]
        which: WhichGroup,
        /// Only of this key
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
        /// Also those that are tried again, or wait behind another of their key
        #[arg(long)]
        waiting: bool,
        /// After this number: the next page
        #[arg(long, value_name = "ID")]
        after: Option<u64>,
        /// How many at most
        #[arg(short = 'n', long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "N")]
        limit: u32,
        /// Keep it on the screen, up to date
        #[arg(short, long)]
        watch: bool,
    },
    /// One of them: what went wrong, and with what
    Show {
        #[command(flatten)]
        which: WhichGroup,
        /// The event's number
        id: u64,
    },
    /// Try again, as often as at first; those behind follow in order
    #[command(
        after_help = "Examples:\n  tenure events dead replay orders mailer 4711 4712\n  tenure events dead replay orders mailer --key order-7\n  tenure events dead replay orders mailer --all"
    )]
    Replay(DeadOrderArgs),
    /// Forget; those behind follow in order
    #[command(
        after_help = "Examples:\n  tenure events dead drop orders mailer 4711\n  tenure events dead drop orders mailer --key order-7"
    )]
    Drop(DeadOrderArgs),
}

#[derive(Args, Debug)]
pub(crate) struct DeadOrderArgs {
    #[command(flatten)]
    pub(crate) which: WhichGroup,

    #[command(flatten)]
    pub(crate) events: WhichDead,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct WhichDead {
    /// The events' numbers
    #[arg(value_name = "ID")]
    pub(crate) ids: Vec<u64>,
    /// Those of this key
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// All of the group
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Subcommand, Debug)]
pub(crate) enum PushCommand {
    /// Push to this address from now on
    Set {
        #[command(flatten)]
        which: WhichGroup,
        /// By POST, one event each
        #[arg(long, value_name = "URL")]
        url: String,
        /// A file with the secret that signatures are made with; `-` for the standard input [default: the one that it has; if it has none, a new one, printed this once]
        #[arg(long, value_name = "FILE|-")]
        secret_file: Option<PathBuf>,
        /// Make a new secret, printed this once; the one before is of no use from then on
        #[arg(long, conflicts_with = "secret_file")]
        new_secret: bool,
        /// How long an answer may take
        #[arg(long, default_value = "10s", value_parser = duration, value_name = "TIME")]
        timeout: Duration,
    },
    /// Push no more; how far it was read stays
    Unset {
        #[command(flatten)]
        which: WhichGroup,
    },
}
