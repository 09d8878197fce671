//! Arguments of `tenure schedules`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use tenure::rules::schedule::{
    DstGapPolicy, DstOverlapPolicy, MisfirePolicy, OverlapPolicy, ScheduleExpression,
    ScheduleExpressionError, Zone,
};

use super::parsers::{ConcurrencyArg, concurrency, priority};
use super::queues_and_pools::{ListArgs, OptionalLimit, limited};
use super::time::{TimeArg, time_arg};
use super::{LEASE, duration};

pub(crate) const EXAMPLES: &str = "\
One elected scheduler fires all schedules. Candidates are every `tenure serve`, `tenure schedules run`, and programs that \
run a scheduler.

Exit codes:
  64   usage error
  69   the store is unavailable
  75   conflict: the schedule changed since it was read; nothing was changed

Examples:
  tenure schedules create nightly '30 2 * * *' --time-zone Europe/Berlin --task reports
  tenure schedules create beat 'every 30s' --event beats
  tenure schedules preview nightly                      the next ten ticks, in its time zone
  tenure schedules list -w
  tenure schedules pause nightly --reason 'database upgrade'
  tenure schedules trigger nightly                      fire once, now
  tenure schedules backfill nightly --from 2026-11-01 --to 2026-11-08 --dry-run
  tenure schedules history nightly
  tenure schedules apply -f schedules.toml --dry-run
  tenure schedules run                                  fire due schedules without a server";

// One line per paragraph: clap wraps them to the width of the terminal.
const CREATE_EXAMPLES: &str = "\
EXPRESSION is a cron expression (minute, hour, day of month, month, day of week; six fields start with seconds; names, \
ranges, steps, L, W, # and @daily are supported), or an interval such as 'every 90s', 'every 1h30m' or 'every 2d'. Intervals \
count from 1970 or, with 'from start', from --start-at. Hours and smaller are elapsed time; days are local days in the time \
zone.

A tick publishes an event (--event), submits a task (--task) or sends a signed webhook from a server (--webhook). Each \
carries the tick and the token of the leader that fired it.

--misfire-policy: skip, fire_once (default), fire_all(100) or within(15m). --dst-gap: shift or skip. --dst-overlap: first or \
both. By default hourly expressions skip gaps and fire in both halves of an overlap; others shift and fire once.

--start-at and --end-at take 2030-01-31T09:30:00Z, or in the time zone of the schedule 2030-01-31T09:30 or 2030-01-31.

Examples:
  tenure schedules create nightly '30 2 * * MON-FRI' --time-zone Europe/Berlin --task reports --kind nightly --overlap-policy skip
  tenure schedules create beat 'every 30s' --event beats --payload '{\"from\":\"cron\"}'
  tenure schedules create payday '0 9 LW * *' --time-zone America/New_York --webhook https://pay.example.com/hooks
  tenure schedules create sweep @hourly --task sweep --jitter 5m --misfire-policy 'within(2h)' --end-at 2030-01-01";

const SET_EXAMPLES: &str = "\
Unnamed settings keep their values; `none` removes --start-at and --end-at. If the expression changes, missed ticks of the \
old one are discarded and the schedule continues with the first new tick. Concurrent changes conflict: the second one exits \
with 75. Use --if-version to require the version you read.

Examples:
  tenure schedules set nightly --expression '0 3 * * *'
  tenure schedules set nightly --misfire-policy 'fire_all(24)' --if-version 3
  tenure schedules set nightly --end-at none";

const PREVIEW_EXAMPLES: &str = "\
Examples:
  tenure schedules preview nightly
  tenure schedules preview nightly -n 50 --from 2027-03-25 -o json
  tenure schedules preview --expression '30 2 * * *' --time-zone Europe/Berlin      test an expression without a store";

const TRIGGER_EXAMPLES: &str = "\
Fires at once without a leader, even if the schedule is paused. Scheduled ticks are not affected.

Examples:
  tenure schedules trigger nightly
  tenure schedules trigger nightly --payload '{\"full\":true}'";

const BACKFILL_EXAMPLES: &str = "\
Fires past ticks that have not fired: from an outage, a pause, or before the schedule existed. A fired tick never fires \
again, so an interrupted backfill can be repeated. Future ticks are ignored.

Instants: 2030-01-31T09:30:00Z, or in the time zone of the schedule 2030-01-31T09:30 or 2030-01-31, or an age such as 2h.

Examples:
  tenure schedules backfill nightly --from 2026-11-01 --to 2026-11-08 --dry-run
  tenure schedules backfill nightly --from 12h";

const HISTORY_EXAMPLES: &str = "\
LATE is the lateness of a tick. Skipped ticks are listed as ranges.

Examples:
  tenure schedules history nightly
  tenure schedules history nightly -n 500 -o json
  tenure schedules history nightly --before 2026-11-01";

pub(crate) const APPLY_EXAMPLES: &str = "\
The file declares schedules; applying it twice changes nothing the second time:

  source = \"billing\"               # required by --prune

  [defaults]                       # time_zone, misfire_policy, overlap_policy, jitter, dst
  time_zone = \"Europe/Berlin\"

  [[schedule]]
  name = \"nightly\"
  expression = \"30 2 * * MON-FRI\"
  misfire_policy = \"within(2h)\"
  overlap_policy = \"skip\"
  payload = { full = true }
  task = { queue = \"reports\", kind = \"nightly\", max_run = \"1h\" }

  [[schedule]]
  name = \"beat\"
  expression = \"every 30s\"
  event = { topic = \"beats\" }

  [[schedule]]
  name = \"payday\"
  expression = \"0 9 LW * *\"
  start_at = 2027-01-01
  webhook = { url = \"https://pay.example.com/hooks\", secret_file = \"payday.secret\" }

The whole file is validated first. Each schedule is then updated on its own, only if it has not changed since the diff was \
shown. With --prune, schedules of the same source that are missing from the file are deleted.

Examples:
  tenure schedules apply -f schedules.toml --dry-run
  tenure schedules apply -f schedules.toml --prune
  generate | tenure schedules apply -f - --source billing";

const RUN_EXAMPLES: &str = "\
One of these processes, servers and programs with a scheduler is elected and fires due schedules; if it stops, another \
continues from the stored state. Webhooks are sent by servers only. Needs a database store; servers run their own scheduler.

On SIGTERM or Ctrl-C it finishes the current batch and releases leadership.

Examples:
  tenure schedules run
  tenure schedules run --priority 100 -o json
  tenure schedules run --exit-when-idle          from cron";

#[derive(Args, Debug)]
pub(crate) struct SchedulesArgs {
    #[command(subcommand)]
    pub(crate) command: SchedulesCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum SchedulesCommand {
    /// Create a schedule
    #[command(after_help = CREATE_EXAMPLES)]
    Create(Box<CreateArgs>),
    /// Change the settings of a schedule
    #[command(mut_args = unchanged)]
    #[command(after_help = SET_EXAMPLES)]
    Set(Box<SetArgs>),
    /// List schedules with their next and last ticks
    List {
        #[command(flatten)]
        listing: ListArgs,
        /// Only schedules from this source
        #[arg(long, value_name = "NAME")]
        source: Option<String>,
        /// Cursor of the next page
        #[arg(long, value_name = "CURSOR")]
        cursor: Option<String>,
        /// Maximum number of schedules
        #[arg(short = 'n', long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000), value_name = "N")]
        limit: u32,
    },
    /// Show a schedule: definition, state, upcoming and recent ticks
    Show {
        /// Schedule name
        schedule: String,
        /// Refresh continuously
        #[arg(short, long)]
        watch: bool,
    },
    /// Preview the next ticks in the time zone of the schedule
    #[command(after_help = PREVIEW_EXAMPLES)]
    Preview(PreviewArgs),
    /// Pause a schedule
    Pause {
        /// Schedule name
        schedule: String,
        /// Reason, shown to other operators
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Resume a schedule; missed ticks follow its misfire policy
    Resume {
        /// Schedule name
        schedule: String,
    },
    /// Fire a schedule once, now
    #[command(after_help = TRIGGER_EXAMPLES)]
    Trigger {
        /// Schedule name
        schedule: String,
        /// Payload for this run: JSON, `-` for standard input, or @FILE [default: the payload of the schedule]
        #[arg(long, value_name = "JSON|-|@FILE", allow_hyphen_values = true)]
        payload: Option<String>,
    },
    /// Fire past ticks that have not fired
    #[command(after_help = BACKFILL_EXAMPLES)]
    Backfill(BackfillArgs),
    /// List recent ticks, newest first
    #[command(after_help = HISTORY_EXAMPLES)]
    History(HistoryArgs),
    /// Delete a schedule and its history; published events and submitted tasks are kept
    Delete {
        /// Schedule name
        schedule: String,
        /// Only if the schedule has this version
        #[arg(long, value_name = "N")]
        if_version: Option<u64>,
    },
    /// Apply the schedules in a file to the store
    #[command(after_help = APPLY_EXAMPLES)]
    Apply(ApplyArgs),
    /// Campaign for the scheduler role and fire due schedules, without a server
    #[command(after_help = RUN_EXAMPLES)]
    Run(ScheduleRunArgs),
}

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("target").required(true).args(["event", "task", "webhook"]))]
pub(crate) struct CreateArgs {
    /// Schedule name
    pub(crate) schedule: String,

    /// Cron expression, or an interval such as 'every 90s'
    #[arg(value_parser = expression, value_name = "EXPRESSION")]
    pub(crate) expression: ScheduleExpression,

    #[command(flatten)]
    pub(crate) target: TargetArgs,

    #[command(flatten)]
    pub(crate) task: TargetOptionArgs,

    #[command(flatten)]
    pub(crate) fields: ScheduleFieldArgs,
}

/// Replaces the default in the help of an option: `set` shares its options with `create` and keeps
/// settings without an option.
fn unchanged(option: clap::Arg) -> clap::Arg {
    let help = option.get_help().map(ToString::to_string).unwrap_or_default();
    match help.split_once(" [default: ") {
        Some((text, _)) => option.help(format!("{text} [default: unchanged]")),
        None => option,
    }
}

#[derive(Args, Debug)]
pub(crate) struct SetArgs {
    /// Schedule name
    pub(crate) schedule: String,

    /// Cron expression, or an interval such as 'every 90s'
    #[arg(long, value_parser = expression, value_name = "EXPRESSION")]
    pub(crate) expression: Option<ScheduleExpression>,

    #[command(flatten)]
    pub(crate) target: TargetArgs,

    #[command(flatten)]
    pub(crate) task: TargetOptionArgs,

    #[command(flatten)]
    pub(crate) fields: ScheduleFieldArgs,

    /// Only if the schedule has this version, as printed by `show`
    #[arg(long, value_name = "N")]
    pub(crate) if_version: Option<u64>,
}

/// Target of a schedule.
#[derive(Args, Debug, Clone)]
#[group(multiple = false)]
pub(crate) struct TargetArgs {
    /// Target: publish an event to this topic
    #[arg(long, value_name = "TOPIC")]
    pub(crate) event: Option<String>,

    /// Target: submit a task to this queue
    #[arg(long, value_name = "QUEUE")]
    pub(crate) task: Option<String>,

    /// Target: send a webhook to this URL
    #[arg(long, value_name = "URL")]
    pub(crate) webhook: Option<String>,
}

/// Options that belong to one kind of target.
#[derive(Args, Debug, Default)]
pub(crate) struct TargetOptionArgs {
    /// Event key [default: the name of the schedule]
    #[arg(long, value_name = "KEY", help_heading = "Event target")]
    pub(crate) key: Option<String>,

    /// File with the webhook signing secret; `-` for standard input [default: a new one, printed once]
    #[arg(long, value_name = "FILE|-", help_heading = "Webhook target")]
    pub(crate) secret_file: Option<PathBuf>,

    /// Task kind
    #[arg(long, value_name = "KIND", help_heading = TASK_HEADING)]
    pub(crate) kind: Option<String>,

    /// Priority; each point equals one minute of waiting
    #[arg(long, allow_negative_numbers = true, value_parser = priority, value_name = "N", help_heading = TASK_HEADING)]
    pub(crate) priority: Option<i32>,

    /// Tag that a worker must have (repeatable)
    #[arg(long = "required-tag", value_name = "TAG", help_heading = TASK_HEADING)]
    pub(crate) required_tags: Vec<String>,

    /// Tag that a worker should have (repeatable)
    #[arg(long = "preferred-tag", value_name = "TAG", help_heading = TASK_HEADING)]
    pub(crate) preferred_tags: Vec<String>,

    /// Worker that may claim the task (repeatable) [default: any]
    #[arg(long = "allowed-worker", value_name = "NAME", help_heading = TASK_HEADING)]
    pub(crate) allowed_workers: Vec<String>,

    /// Maximum wait for a claim; then the task is dead
    #[arg(long, value_parser = duration, value_name = "DURATION", help_heading = TASK_HEADING)]
    pub(crate) max_wait: Option<Duration>,

    /// Maximum run time of an attempt; then the task returns to the queue
    #[arg(long, value_parser = duration, value_name = "DURATION", help_heading = TASK_HEADING)]
    pub(crate) max_run: Option<Duration>,

    /// Maximum number of attempts [default: 20]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), value_name = "N", help_heading = TASK_HEADING)]
    pub(crate) max_attempts: Option<u32>,

    /// Backoff after the first failed attempt; doubles with each failure [default: 1s]
    #[arg(long, value_parser = duration, value_name = "DURATION", help_heading = TASK_HEADING)]
    pub(crate) initial_backoff: Option<Duration>,

    /// Concurrency key and limit: at most LIMIT tasks with this key are claimed at once [default limit: 1]
    #[arg(long, value_parser = concurrency, value_name = "KEY[:LIMIT]", help_heading = TASK_HEADING)]
    pub(crate) concurrency_key: Option<ConcurrencyArg>,
}

const TASK_HEADING: &str = "Task target";

/// Options of every schedule.
#[derive(Args, Debug, Default)]
pub(crate) struct ScheduleFieldArgs {
    /// Time zone, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE")]
    pub(crate) time_zone: Option<Zone>,

    /// Payload: JSON, `-` for standard input, or @FILE [default: {}]
    #[arg(long, value_name = "JSON|-|@FILE", allow_hyphen_values = true)]
    pub(crate) payload: Option<String>,

    /// Misfire policy for missed ticks: skip, fire_once, fire_all(100) or within(15m) [default: fire_once]
    #[arg(long, value_name = "POLICY")]
    pub(crate) misfire_policy: Option<MisfirePolicy>,

    /// Overlap policy while the task of an earlier tick is unfinished: allow, skip or queue [default: allow]
    #[arg(long, value_parser = overlap_policy, value_name = "POLICY")]
    pub(crate) overlap_policy: Option<OverlapPolicy>,

    /// Maximum jitter: each tick is delayed by up to this duration, always by the same amount for the same tick
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) jitter: Option<Duration>,

    /// Earliest instant of a tick; `none` for no start
    #[arg(long, value_parser = limited(time_arg), value_name = "INSTANT")]
    pub(crate) start_at: Option<OptionalLimit<TimeArg>>,

    /// End of the schedule, exclusive; `none` for no end
    #[arg(long, value_parser = limited(time_arg), value_name = "INSTANT")]
    pub(crate) end_at: Option<OptionalLimit<TimeArg>>,

    /// DST gap policy for local times that do not exist: shift or skip
    #[arg(long, value_parser = dst_gap_policy, value_name = "POLICY")]
    pub(crate) dst_gap: Option<DstGapPolicy>,

    /// DST overlap policy for local times that occur twice: first or both
    #[arg(long, value_parser = dst_overlap_policy, value_name = "POLICY")]
    pub(crate) dst_overlap: Option<DstOverlapPolicy>,
}

#[derive(Args, Debug)]
pub(crate) struct PreviewArgs {
    /// Schedule name
    #[arg(required_unless_present = "expression", conflicts_with_all = ["expression", "time_zone"], value_name = "SCHEDULE")]
    pub(crate) schedule: Option<String>,

    /// Preview this expression instead of a stored schedule
    #[arg(long, value_parser = expression, value_name = "EXPRESSION")]
    pub(crate) expression: Option<ScheduleExpression>,

    /// Time zone for --expression [default: UTC]
    #[arg(long, value_name = "ZONE", requires = "expression")]
    pub(crate) time_zone: Option<Zone>,

    /// Number of ticks
    #[arg(short = 'n', long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "N")]
    pub(crate) limit: u32,

    /// Start of the preview [default: the next pending tick, missed ones included]
    #[arg(long, value_parser = time_arg, value_name = "INSTANT")]
    pub(crate) from: Option<TimeArg>,
}

#[derive(Args, Debug)]
pub(crate) struct BackfillArgs {
    /// Schedule name
    pub(crate) schedule: String,

    /// Start of the range, inclusive
    #[arg(long, value_parser = time_arg, value_name = "INSTANT")]
    pub(crate) from: TimeArg,

    /// End of the range, exclusive
    #[arg(long, default_value = "now", value_parser = time_arg, value_name = "INSTANT")]
    pub(crate) to: TimeArg,

    /// Print the ticks that would fire without firing them
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Reject ranges with more ticks than this
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    pub(crate) max_ticks: u64,

    /// Payload for this run: JSON, `-` for standard input, or @FILE [default: the payload of the schedule]
    #[arg(long, value_name = "JSON|-|@FILE", allow_hyphen_values = true)]
    pub(crate) payload: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct HistoryArgs {
    /// Schedule name
    pub(crate) schedule: String,

    /// Maximum number of ticks
    #[arg(short = 'n', long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "N")]
    pub(crate) limit: u32,

    /// Only ticks before this instant
    #[arg(long, value_parser = time_arg, value_name = "INSTANT")]
    pub(crate) before: Option<TimeArg>,

    /// Refresh continuously
    #[arg(short, long)]
    pub(crate) watch: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ApplyArgs {
    /// Schedule file; `-` for standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Print the changes without making them
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Delete schedules of the same source that are not in the file
    #[arg(long)]
    pub(crate) prune: bool,

    /// Source of the schedules [default: `source` in the file, or the file name]
    #[arg(long, value_name = "NAME")]
    pub(crate) source: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct ScheduleRunArgs {
    /// Name of this process [default: host name and process id]
    #[arg(long, env = "TENURE_NAME", value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Priority; the live candidate with the highest priority fires
    #[arg(long, env = "TENURE_PRIORITY", default_value_t = 0, allow_negative_numbers = true, value_parser = priority, value_name = "N")]
    pub(crate) priority: i32,

    /// Lease duration
    #[arg(long, default_value = LEASE, value_parser = duration, value_name = "DURATION")]
    pub(crate) lease: Duration,

    /// Exit when no schedule is due
    #[arg(long)]
    pub(crate) exit_when_idle: bool,
}

/// Parses an expression; an error marks the wrong part of a cron expression.
fn expression(text: &str) -> Result<ScheduleExpression, String> {
    text.parse().map_err(|error: ScheduleExpressionError| match error {
        ScheduleExpressionError::Cron(error) => {
            let pointed = error.pointed().replace('\n', "\n  ");
            format!("{}\n\n  {pointed}", error.problem)
        }
        error => error.to_string(),
    })
}

pub(crate) fn overlap_policy(text: &str) -> Result<OverlapPolicy, String> {
    match text {
        "allow" => Ok(OverlapPolicy::Allow),
        "skip" => Ok(OverlapPolicy::Skip),
        "queue" => Ok(OverlapPolicy::Queue),
        _ => Err(format!("invalid overlap policy {text:?}: use allow, skip or queue")),
    }
}

pub(crate) fn dst_gap_policy(text: &str) -> Result<DstGapPolicy, String> {
    match text {
        "shift" => Ok(DstGapPolicy::Shift),
        "skip" => Ok(DstGapPolicy::Skip),
        _ => Err(format!("invalid DST gap policy {text:?}: use shift or skip")),
    }
}

pub(crate) fn dst_overlap_policy(text: &str) -> Result<DstOverlapPolicy, String> {
    match text {
        "first" => Ok(DstOverlapPolicy::First),
        "both" => Ok(DstOverlapPolicy::Both),
        _ => Err(format!("invalid DST overlap policy {text:?}: use first or both")),
    }
}
