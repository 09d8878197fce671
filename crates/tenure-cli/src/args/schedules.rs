//! What can be typed about schedules.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use tenure::schedule::{Fold, Gap, Misfire, Overlap, When, WhenError, Zone};

use super::claims::{Limit, Listing, limited};
use super::point::{Point, point};
use super::values::{Concurrency, concurrency, priority};
use super::{LEASE, duration};

pub(crate) const EXAMPLES: &str = "\
Schedules fire where somebody is elected to fire them: beside every `tenure serve`, in `tenure schedule run`, and in programs with \
a scheduler of their own. One of all of them does it.

Exit codes:
  64   what was asked makes no sense
  69   the store cannot be used
  75   somebody else has changed it meanwhile; nothing was done

Examples:
  tenure schedule create nightly '30 2 * * *' --zone Europe/Berlin --task reports
  tenure schedule create beat 'every 30s' --event beats
  tenure schedule next nightly                          the next ten, on its wall clock
  tenure schedule list -w
  tenure schedule pause nightly --reason 'database upgrade'
  tenure schedule trigger nightly                       once, now
  tenure schedule backfill nightly --from 2026-11-01 --to 2026-11-08 --dry-run
  tenure schedule history nightly
  tenure schedule apply -f schedules.toml --dry-run
  tenure schedule run                                   fire what is due, without a server";

// Paragraphs are one line each: they are wrapped where they are shown.
const CREATE_EXAMPLES: &str = "\
When: a cron expression (minute, hour, day of month, month, day of week; with six fields seconds come first; names, ranges, steps, \
L, W, # and @daily work), or an interval such as 'every 90s', 'every 1h30m' or 'every 2d', counted from 1970 or, with \
'from start', from --start. Hours and less are elapsed time; days are days of the calendar in the zone.

What a tick does: it publishes an event (--event), submits a task (--task), or calls an address by POST, signed (--call), which the \
servers do. All carry the tick and the token of the leader that fired it.

Missed ticks, at --misfire: skip, fire_once (one for all: the usual), fire_all(100), within(15m). Times that a wall clock jumps over \
or shows twice: --dst-gap shift|skip, --dst-overlap first|both; unless said, every hour's work skips and counts both, and anything \
else shifts and counts the first.

Moments, at --start and --end: 2030-01-31T09:30:00Z, or in the zone of the schedule 2030-01-31T09:30 or 2030-01-31.

Examples:
  tenure schedule create nightly '30 2 * * MON-FRI' --zone Europe/Berlin --task reports --kind nightly --overlap skip
  tenure schedule create beat 'every 30s' --event beats --payload '{\"from\":\"cron\"}'
  tenure schedule create payday '0 9 LW * *' --zone America/New_York --call https://pay.example.com/hooks
  tenure schedule create sweep @hourly --task sweep --jitter 5m --misfire 'within(2h)' --end 2030-01-01";

const SET_EXAMPLES: &str = "\
What is not named stays as it is. `none` takes --start and --end away. If the times change, what was missed by the old ones is \
forgotten, and it goes on with the first tick by the new ones; otherwise it goes on where it is. Two who change it at once do not \
overwrite each other: the second is refused (exit code 75). Who has looked at it earlier says at which version: --if-version.

Examples:
  tenure schedule set nightly --when '0 3 * * *'
  tenure schedule set nightly --misfire 'fire_all(24)' --if-version 3
  tenure schedule set nightly --end none";

const NEXT_EXAMPLES: &str = "\
Examples:
  tenure schedule next nightly
  tenure schedule next nightly -n 50 --from 2027-03-25 -o json
  tenure schedule next --when '30 2 * * *' --zone Europe/Berlin      try it out, without a store";

const TRIGGER_EXAMPLES: &str = "\
It fires at once, by your own hand: nobody need lead, a pause does not matter, and neither do the ticks to come.

Examples:
  tenure schedule trigger nightly
  tenure schedule trigger nightly --payload '{\"full\":true}'";

const BACKFILL_EXAMPLES: &str = "\
Fires ticks of the past that have not fired: of the time when nobody led, of a pause, or from before the schedule was made. A tick \
that has fired does not fire again, so it may be begun anew after an interruption. Those that are yet to come are left to come.

Moments: 2030-01-31T09:30:00Z, or in the zone of the schedule 2030-01-31T09:30 or 2030-01-31, or how long ago, such as 2h.

Examples:
  tenure schedule backfill nightly --from 2026-11-01 --to 2026-11-08 --dry-run
  tenure schedule backfill nightly --from 12h";

const HISTORY_EXAMPLES: &str = "\
Late is how much later than it was due a tick was fired. Ticks that were missed and did not fire are told as ranges.

Examples:
  tenure schedule history nightly
  tenure schedule history nightly -n 500 -o json
  tenure schedule history nightly --before 2026-11-01";

pub(crate) const APPLY_EXAMPLES: &str = "\
The file says what is to be, and applying it again changes nothing:

  source = \"billing\"              # who --prune asks for; optional otherwise

  [defaults]                       # zone, misfire, overlap, jitter, dst
  zone = \"Europe/Berlin\"

  [[schedule]]
  name = \"nightly\"
  when = \"30 2 * * MON-FRI\"
  misfire = \"within(2h)\"
  overlap = \"skip\"
  payload = { full = true }
  task = { queue = \"reports\", kind = \"nightly\", max_run = \"1h\" }

  [[schedule]]
  name = \"beat\"
  when = \"every 30s\"
  event = { topic = \"beats\" }

  [[schedule]]
  name = \"payday\"
  when = \"0 9 LW * *\"
  start = 2027-01-01
  call = { url = \"https://pay.example.com/hooks\", secret_file = \"payday.secret\" }

All of the file is checked before anything is changed. Each schedule is then set by itself, and only if it is as it was when the \
differences were shown. With --prune, schedules that came from the same source and are not in the file any more are deleted.

Examples:
  tenure schedule apply -f schedules.toml --dry-run
  tenure schedule apply -f schedules.toml --prune
  generate | tenure schedule apply -f - --source billing";

const RUN_EXAMPLES: &str = "\
One of all that run this (and of all servers, and programs with a scheduler) is elected, and fires what is due; when it ends or dies \
another goes on from what is stored. Calls to addresses wait for a server. It needs the store itself: servers fire by themselves.

SIGTERM or Ctrl-C: it finishes what it fires, and gives its leadership to another.

Examples:
  tenure schedule run
  tenure schedule run --priority 100 -o json
  tenure schedule run --until-idle               from cron";

#[derive(Args, Debug)]
pub(crate) struct ScheduleArgs {
    #[command(subcommand)]
    pub(crate) command: ScheduleCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ScheduleCommand {
    /// Make a schedule
    #[command(after_help = CREATE_EXAMPLES)]
    Create(Box<CreateArgs>),
    /// Change a schedule
    #[command(mut_args = unchanged)]
    #[command(after_help = SET_EXAMPLES)]
    Set(Box<SetArgs>),
    /// All schedules, when they fire next, and what became of the last ticks
    List {
        #[command(flatten)]
        listing: Listing,
        /// Only those from this file or program
        #[arg(long, value_name = "NAME")]
        source: Option<String>,
        /// After the schedule of this name: the next page
        #[arg(long, value_name = "NAME")]
        after: Option<String>,
        /// How many at most
        #[arg(short = 'n', long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000), value_name = "N")]
        limit: u32,
    },
    /// One schedule: what it is, where it stands, what is next and what was last
    Show {
        /// The schedule
        name: String,
        /// Keep it on the screen, up to date
        #[arg(short, long)]
        watch: bool,
    },
    /// The next ticks, on its wall clock
    #[command(after_help = NEXT_EXAMPLES)]
    Next(NextArgs),
    /// Let it not fire until it is resumed
    Pause {
        /// The schedule
        name: String,
        /// Why, for the others
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Let it fire again; what it missed follows its policy
    Resume {
        /// The schedule
        name: String,
    },
    /// Fire once, now
    #[command(after_help = TRIGGER_EXAMPLES)]
    Trigger {
        /// The schedule
        name: String,
        /// Instead of the schedule's own: JSON, `-` for the standard input, or @FILE
        #[arg(long, value_name = "JSON|-|@FILE", allow_hyphen_values = true)]
        payload: Option<String>,
    },
    /// Fire ticks of the past that did not
    #[command(after_help = BACKFILL_EXAMPLES)]
    Backfill(BackfillArgs),
    /// What became of the last ticks, the newest first
    #[command(after_help = HISTORY_EXAMPLES)]
    History(HistoryArgs),
    /// Delete a schedule with its history; what it has published or submitted stays
    Delete {
        /// The schedule
        name: String,
        /// Only if it is of this version
        #[arg(long, value_name = "N")]
        if_version: Option<u64>,
    },
    /// Make the store's schedules what a file says
    #[command(after_help = APPLY_EXAMPLES)]
    Apply(ApplyArgs),
    /// Fire what is due, when elected to: without a server
    #[command(after_help = RUN_EXAMPLES)]
    Run(ScheduleRunArgs),
}

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("does").required(true).args(["event", "task", "call"]))]
pub(crate) struct CreateArgs {
    /// The schedule
    pub(crate) name: String,

    /// A cron expression, or an interval such as 'every 90s'
    #[arg(value_parser = when, value_name = "WHEN")]
    pub(crate) when: When,

    #[command(flatten)]
    pub(crate) target: TargetArgs,

    #[command(flatten)]
    pub(crate) task: TaskOptions,

    #[command(flatten)]
    pub(crate) fields: FieldArgs,
}

/// The help of an option of `set`. What is left out stays as it is; the defaults in the text are those of `create`.
fn unchanged(option: clap::Arg) -> clap::Arg {
    let help = option.get_help().map(ToString::to_string).unwrap_or_default();
    match help.split_once(" [default: ") {
        Some((text, _)) => option.help(format!("{text} [default: unchanged]")),
        None => option,
    }
}

#[derive(Args, Debug)]
pub(crate) struct SetArgs {
    /// The schedule
    pub(crate) name: String,

    /// A cron expression, or an interval such as 'every 90s'
    #[arg(long, value_parser = when, value_name = "WHEN")]
    pub(crate) when: Option<When>,

    #[command(flatten)]
    pub(crate) target: TargetArgs,

    #[command(flatten)]
    pub(crate) task: TaskOptions,

    #[command(flatten)]
    pub(crate) fields: FieldArgs,

    /// Only if it is of this version, as `show` tells it
    #[arg(long, value_name = "N")]
    pub(crate) if_version: Option<u64>,
}

/// What a tick does.
#[derive(Args, Debug, Clone)]
#[group(multiple = false)]
pub(crate) struct TargetArgs {
    /// A tick publishes an event to this topic
    #[arg(long, value_name = "TOPIC")]
    pub(crate) event: Option<String>,

    /// A tick submits a task to this queue
    #[arg(long, value_name = "QUEUE")]
    pub(crate) task: Option<String>,

    /// A tick calls this address, by POST
    #[arg(long, value_name = "URL")]
    pub(crate) call: Option<String>,
}

/// What belongs to one sort of target only.
#[derive(Args, Debug, Default)]
pub(crate) struct TaskOptions {
    /// The event's key [default: the schedule's name]
    #[arg(long, value_name = "KEY", help_heading = "Of an event")]
    pub(crate) key: Option<String>,

    /// A file with the secret that calls are signed with; `-` for the standard input [default: a new one, printed this once]
    #[arg(long, value_name = "FILE|-", help_heading = "Of a call")]
    pub(crate) secret_file: Option<PathBuf>,

    /// What is to be done, as workers know it
    #[arg(long, value_name = "KIND", help_heading = OF_A_TASK)]
    pub(crate) kind: Option<String>,

    /// Higher goes first; a point is worth a minute of waiting
    #[arg(long, allow_negative_numbers = true, value_parser = priority, value_name = "N", help_heading = OF_A_TASK)]
    pub(crate) priority: Option<i32>,

    /// A tag that a worker must have (repeatable)
    #[arg(long = "require", value_name = "TAG", help_heading = OF_A_TASK)]
    pub(crate) requires: Vec<String>,

    /// A tag that a worker had better have (repeatable)
    #[arg(long = "prefer", value_name = "TAG", help_heading = OF_A_TASK)]
    pub(crate) prefers: Vec<String>,

    /// A worker that it is meant for (repeatable) [default: any]
    #[arg(long = "worker", value_name = "NAME", help_heading = OF_A_TASK)]
    pub(crate) workers: Vec<String>,

    /// Dead if nobody has claimed it for this long
    #[arg(long, value_parser = duration, value_name = "TIME", help_heading = OF_A_TASK)]
    pub(crate) max_wait: Option<Duration>,

    /// Back into the queue if an attempt takes longer
    #[arg(long, value_parser = duration, value_name = "TIME", help_heading = OF_A_TASK)]
    pub(crate) max_run: Option<Duration>,

    /// How many attempts at most [default: 20]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), value_name = "N", help_heading = OF_A_TASK)]
    pub(crate) attempts: Option<u32>,

    /// How long to wait after the first failed attempt; doubles with each [default: 1s]
    #[arg(long, value_parser = duration, value_name = "TIME", help_heading = OF_A_TASK)]
    pub(crate) backoff: Option<Duration>,

    /// Of all tasks with this key, at most N (one, unless said) are claimed at once
    #[arg(long, value_parser = concurrency, value_name = "KEY[:N]", help_heading = OF_A_TASK)]
    pub(crate) concurrency: Option<Concurrency>,
}

const OF_A_TASK: &str = "Of a task";

/// What every schedule has.
#[derive(Args, Debug, Default)]
pub(crate) struct FieldArgs {
    /// On which wall clock, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE")]
    pub(crate) zone: Option<Zone>,

    /// With what: JSON, `-` for the standard input, or @FILE [default: {}]
    #[arg(long, value_name = "JSON|-|@FILE", allow_hyphen_values = true)]
    pub(crate) payload: Option<String>,

    /// What becomes of missed ticks: skip, fire_once, fire_all(100) or within(15m) [default: fire_once]
    #[arg(long, value_name = "POLICY")]
    pub(crate) misfire: Option<Misfire>,

    /// While an earlier tick's task is not finished: allow, skip or queue [default: allow]
    #[arg(long, value_parser = overlap, value_name = "POLICY")]
    pub(crate) overlap: Option<Overlap>,

    /// Each tick is due later by up to this, always the same for the same tick
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub(crate) jitter: Option<Duration>,

    /// No tick before this; `none`
    #[arg(long, value_parser = limited(point), value_name = "MOMENT")]
    pub(crate) start: Option<Limit<Point>>,

    /// No tick from this on; `none`
    #[arg(long, value_parser = limited(point), value_name = "MOMENT")]
    pub(crate) end: Option<Limit<Point>>,

    /// A time that the wall clock jumps over: shift or skip
    #[arg(long, value_parser = gap, value_name = "POLICY")]
    pub(crate) dst_gap: Option<Gap>,

    /// A time that the wall clock shows twice: first or both
    #[arg(long, value_parser = fold, value_name = "POLICY")]
    pub(crate) dst_overlap: Option<Fold>,
}

#[derive(Args, Debug)]
pub(crate) struct NextArgs {
    /// The schedule
    #[arg(required_unless_present = "when", conflicts_with_all = ["when", "zone"])]
    pub(crate) name: Option<String>,

    /// Instead of a schedule: a cron expression, or an interval
    #[arg(long, value_parser = when, value_name = "WHEN")]
    pub(crate) when: Option<When>,

    /// Of --when: on which wall clock [default: UTC]
    #[arg(long, value_name = "ZONE", requires = "when")]
    pub(crate) zone: Option<Zone>,

    /// How many
    #[arg(short = 'n', long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "N")]
    pub(crate) count: u32,

    /// From this moment on [default: as it stands, what was missed included]
    #[arg(long, value_parser = point, value_name = "MOMENT")]
    pub(crate) from: Option<Point>,
}

#[derive(Args, Debug)]
pub(crate) struct BackfillArgs {
    /// The schedule
    pub(crate) name: String,

    /// The first tick may be at this moment
    #[arg(long, value_parser = point, value_name = "MOMENT")]
    pub(crate) from: Point,

    /// All ticks are before this moment
    #[arg(long, default_value = "now", value_parser = point, value_name = "MOMENT")]
    pub(crate) to: Point,

    /// Only say what would fire
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Refuse if there are more ticks than this
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    pub(crate) most: u64,

    /// Instead of the schedule's own: JSON, `-` for the standard input, or @FILE
    #[arg(long, value_name = "JSON|-|@FILE", allow_hyphen_values = true)]
    pub(crate) payload: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct HistoryArgs {
    /// The schedule
    pub(crate) name: String,

    /// How many at most
    #[arg(short = 'n', long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "N")]
    pub(crate) limit: u32,

    /// Before this tick: the next page
    #[arg(long, value_parser = point, value_name = "MOMENT")]
    pub(crate) before: Option<Point>,

    /// Keep it on the screen, up to date
    #[arg(short, long)]
    pub(crate) watch: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ApplyArgs {
    /// The file; `-` for the standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Only show what would change
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Delete what came from the same source and is not in the file any more
    #[arg(long)]
    pub(crate) prune: bool,

    /// Where the schedules come from [default: `source` in the file, or the file's name]
    #[arg(long, value_name = "NAME")]
    pub(crate) source: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct ScheduleRunArgs {
    /// What people call this candidate [default: host name and process number]
    #[arg(long, env = "NODE_ID", value_name = "ID")]
    pub(crate) id: Option<String>,

    /// The highest priority alive fires
    #[arg(long, env = "NODE_PRIORITY", default_value_t = 0, allow_negative_numbers = true, value_parser = priority, value_name = "N")]
    pub(crate) priority: i32,

    /// How long a silent process keeps what it holds
    #[arg(long, default_value = LEASE, value_parser = duration, value_name = "TIME")]
    pub(crate) lease: Duration,

    /// End when nothing is due any more
    #[arg(long)]
    pub(crate) until_idle: bool,
}

/// What is wrong with it is pointed at.
fn when(text: &str) -> Result<When, String> {
    text.parse().map_err(|error: WhenError| match error {
        WhenError::Cron(error) => {
            let pointed = error.pointed().replace('\n', "\n  ");
            format!("{}\n\n  {pointed}", error.problem)
        }
        error => error.to_string(),
    })
}

pub(crate) fn overlap(text: &str) -> Result<Overlap, String> {
    match text {
        "allow" => Ok(Overlap::Allow),
        "skip" => Ok(Overlap::Skip),
        "queue" => Ok(Overlap::Queue),
        _ => Err(format!("{text:?} is no policy for overlapping runs; say allow, skip or queue")),
    }
}

pub(crate) fn gap(text: &str) -> Result<Gap, String> {
    match text {
        "shift" => Ok(Gap::Shift),
        "skip" => Ok(Gap::Skip),
        _ => Err(format!("{text:?} is no policy for times that are left out; say shift or skip")),
    }
}

pub(crate) fn fold(text: &str) -> Result<Fold, String> {
    match text {
        "first" => Ok(Fold::First),
        "both" => Ok(Fold::Both),
        _ => Err(format!("{text:?} is no policy for times that are shown twice; say first or both")),
    }
}
