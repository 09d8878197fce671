//! What can be typed.

pub(crate) mod advise;
mod bench;
pub(crate) mod claims;
pub(crate) mod events;
pub(crate) mod point;
pub(crate) mod raft;
pub(crate) mod schedules;
pub(crate) mod tasks;
pub(crate) mod values;
pub(crate) mod work;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use tenure::port::Grant;

use self::advise::AdviseArgs;
pub(crate) use self::bench::{BenchArgs, BenchCommand};
use self::claims::{PoolArgs, QueueArgs, WorkersArgs};
use self::events::EventsArgs;
use self::raft::RaftArgs;
use self::schedules::{ScheduleArgs, ScheduleCommand};
use self::tasks::TasksArgs;
use self::values::priority;
use self::work::WorkArgs;
use crate::commands::epoch::{self, EpochArgs};
use crate::commands::members::{self, MembersArgs};
use crate::commands::names::{self, NamesArgs};
use crate::commands::serve::{self, ServeArgs};
use crate::exit;

/// One leads, many share: run one of many.
#[derive(Parser, Debug)]
#[command(
    name = "tenure",
    version,
    about,
    long_about = "One leads, many share.\n\nElects exactly one leader among the replicas of a service, on the database you already have:\nembedded SQLite by default, PostgreSQL in production. And hands out work and resources to many, and events to all who want them in order, and lets things happen at their times, in the same store.",
    after_help = "Examples:\n  tenure run nightly --once-per 1h -- ./report.sh   from cron on every machine: one runs it, once an hour\n  tenure run worker -- ./worker              run it on one machine of many, and on another when that one dies\n  tenure leader list -w                      who leads, live\n  tenure serve                               elections over HTTP, and a page in the browser\n  tenure leader transfer nightly --to node-2 move the leadership\n  tenure tasks submit mail --payload '{\"to\":\"ada\"}'   put work into a queue\n  tenure work mail -- ./send.sh              run a command for each task\n  tenure events consume orders --group mailer -- ./send.sh   run it for each event, in order\n  tenure schedule create nightly '30 2 * * *' --zone Europe/Berlin --task reports   each tick once, whoever dies\n  tenure doctor                              is this store fit, and how fast?",
    propagate_version = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Command {
    /// Whether it uses tasks, events or schedules, which a store that only elects does not keep.
    pub(crate) fn uses_work(&self) -> bool {
        match self {
            Command::Schedule(args) => !matches!(args.command, ScheduleCommand::Next(_)),
            Command::Tasks(_)
            | Command::Work(_)
            | Command::Queue(_)
            | Command::Workers(_)
            | Command::Pool(_)
            | Command::Events(_) => true,
            _ => false,
        }
    }
}

impl Cli {
    /// The addresses that can be typed.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &str> {
        let standing = match &self.command {
            Command::Run(args) => Some(&args.standing),
            Command::Elect(args) => Some(&args.standing),
            _ => None,
        };
        let and_store = standing.and_then(|standing| standing.and_store.as_ref());
        let global = &self.global;
        [global.store.as_ref(), global.elect.as_ref(), global.direct_url.as_ref(), and_store]
            .into_iter()
            .flatten()
            .map(String::as_str)
    }
}

/// What to do about arguments that were not understood, where clap itself has no advice.
pub(crate) fn tip(error: &clap::Error, arguments: impl Iterator<Item = String>) -> Option<String> {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    let arguments: Vec<String> = arguments.skip(1).collect();
    if error.kind() == ErrorKind::InvalidSubcommand && error.get(ContextKind::SuggestedSubcommand).is_none() {
        let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return None };
        return similar_command(word).map(|name| format!("a similar command exists: '{name}'"));
    }
    let runs_a_command =
        ["run", "work", "consume"].iter().any(|name| arguments.iter().take(3).any(|word| word == name));
    if error.kind() != ErrorKind::UnknownArgument
        || !runs_a_command
        || arguments.iter().any(|word| word == "--")
    {
        return None;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return None };
    let at = arguments.iter().position(|argument| argument == word)?;
    let (ours, command) = arguments.split_at(at);
    (!word.starts_with('-'))
        .then(|| format!("put `--` before the command: tenure {} -- {}", ours.join(" "), command.join(" ")))
}

/// The command whose name has the same letters in another order, which clap's own measure finds too different.
fn similar_command(word: &str) -> Option<String> {
    let letters = |text: &str| {
        let mut letters: Vec<char> = text.chars().collect();
        letters.sort_unstable();
        letters
    };
    let cli = <Cli as clap::CommandFactory>::command();
    let mut names = cli.get_subcommands().map(|command| command.get_name().to_owned());
    names.find(|name| letters(name) == letters(word))
}

/// The lease unless it is set: [`tenure::DEFAULT_LEASE`], as it is typed.
pub(crate) const LEASE: &str = "30s";
/// The time between SIGTERM and SIGKILL unless it is set: [`tenure::DEFAULT_KILL_AFTER`], as it is typed.
pub(crate) const KILL_AFTER: &str = "5s";

/// The options that every command takes stand together, after its own.
const EVERYWHERE: &str = "For every command";

/// What every command takes.
#[derive(Args, Debug, Clone)]
pub(crate) struct Global {
    /// Where the truth is: `sqlite:PATH`, `postgres://USER@HOST/DB`, `etcd://HOST:PORT`, `raft:…`, or a server, `http://HOST:PORT`. Else $TENURE_STORE, $DATABASE_URL, or a file in
    /// your state folder
    #[arg(long, global = true, help_heading = EVERYWHERE, env = "TENURE_STORE", hide_env_values = true, value_name = "URL")]
    pub(crate) store: Option<String>,

    /// Read the store's address from a file, or from the standard input (`-`), so that its password is not seen in the list of
    /// processes; takes the place of --store
    #[arg(long, global = true, help_heading = EVERYWHERE, env = "TENURE_STORE_FILE", value_name = "FILE|-")]
    pub(crate) store_file: Option<PathBuf>,

    /// Where elections live, if not in --store: `etcd://…`, `raft:…`, or any other address. What the store keeps is then fenced by
    /// the tokens that are granted there
    #[arg(long, global = true, help_heading = EVERYWHERE, env = "TENURE_ELECT", hide_env_values = true, value_name = "URL")]
    pub(crate) elect: Option<String>,

    /// A direct address of the same database, where --store leads through a pooler
    #[arg(long, global = true, help_heading = EVERYWHERE, env = "TENURE_DIRECT_URL", hide_env_values = true, value_name = "URL")]
    pub(crate) direct_url: Option<String>,

    /// File with the secret of the cluster that --store or --elect names (raft:, gossip:); one per line, the first is sent, all are accepted
    #[arg(long, global = true, help_heading = EVERYWHERE, env = "TENURE_CLUSTER_SECRET_FILE", value_name = "FILE")]
    pub(crate) cluster_secret_file: Option<std::path::PathBuf>,

    /// Count a grant only when a synchronous standby has it too
    #[arg(long, global = true, help_heading = EVERYWHERE, env = "TENURE_STRICT")]
    pub(crate) strict: bool,

    /// The tenant
    #[arg(long, global = true, help_heading = EVERYWHERE, env = "TENURE_NAMESPACE", default_value = "default", value_name = "NAME")]
    pub(crate) namespace: String,

    /// For people, or for scripts
    #[arg(short, long, global = true, help_heading = EVERYWHERE, default_value = "table", value_name = "FORMAT")]
    pub(crate) output: Format,

    /// Say more; twice for everything
    #[arg(short, long, global = true, help_heading = EVERYWHERE, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Table,
    Json,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run a command while leading: on one machine of many
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Stand for an election without a command, and say what happens
    #[command(
        after_help = "Examples:\n  tenure elect nightly --priority 100\n  tenure elect nightly --for 10s -o json\n  tenure elect nightly --observer"
    )]
    Elect(ElectArgs),
    /// Say what changes in elections, line by line
    #[command(after_help = "Examples:\n  tenure watch\n  tenure watch nightly -o json | jq .leader")]
    Watch(WatchArgs),
    /// Serve elections over HTTP, and a page in the browser
    #[command(after_help = serve::EXAMPLES)]
    Serve(ServeArgs),
    /// See and move leaders
    #[command(
        after_help = "Examples:\n  tenure leader list -w\n  tenure leader show nightly\n  tenure leader transfer nightly --to node-2\n  tenure leader pause nightly --reason 'database upgrade'"
    )]
    Leader(LeaderArgs),
    /// Who is there, as gossip tells
    #[command(after_help = members::EXAMPLES)]
    Members(MembersArgs),
    /// Which process has which name
    #[command(after_help = names::EXAMPLES)]
    Names(NamesArgs),
    /// Put work into queues, take it out, see and move it
    #[command(after_help = tasks::EXAMPLES)]
    Tasks(TasksArgs),
    /// Run a command for each task of a queue
    #[command(after_help = work::EXAMPLES)]
    Work(WorkArgs),
    /// See and set queues
    #[command(after_help = claims::QUEUE_EXAMPLES)]
    Queue(QueueArgs),
    /// See and approve workers
    #[command(after_help = claims::WORKERS_EXAMPLES)]
    Workers(WorkersArgs),
    /// Hosts, devices, licences: who has which, and who waits for one
    #[command(after_help = claims::POOL_EXAMPLES)]
    Pool(PoolArgs),
    /// Publish events, read them in groups, see how far those are
    #[command(after_help = events::EXAMPLES)]
    Events(EventsArgs),
    /// Let things happen at their times, each once: see, make and move schedules
    #[command(after_help = schedules::EXAMPLES)]
    Schedule(ScheduleArgs),
    /// Create or upgrade the tables
    #[command(
        after_help = "Examples:\n  tenure migrate up --store postgres://owner@db/app\n  tenure migrate status\n  tenure migrate sql --store postgres: > tenure.sql\n  tenure migrate sql --store postgres: --roles | psql app"
    )]
    Migrate(MigrateArgs),
    /// Show the epoch of the store, or begin a new one after a restore that it cannot notice
    #[command(after_help = epoch::EXAMPLES)]
    Epoch(EpochArgs),
    /// Make, list and take back tokens: who may do what at a server
    #[command(after_help = TOKEN_EXAMPLES)]
    Token(TokenArgs),
    /// See and change the members of a Raft cluster
    #[command(after_help = raft::EXAMPLES)]
    Raft(RaftArgs),
    /// Which store, which mode, and what it promises: by a few questions, or flags
    #[command(after_help = advise::EXAMPLES)]
    Advise(AdviseArgs),
    /// Is this store fit, and how fast is it?
    #[command(
        after_help = "Examples:\n  tenure doctor\n  tenure doctor --store postgres://app@db/app -o json"
    )]
    Doctor(DoctorArgs),
    /// Measure, beside the bare database, as ratios
    #[command(
        after_help = "Examples:\n  tenure bench election\n  tenure bench election --store postgres://app@db/app --held 1,100,10000"
    )]
    Bench(BenchArgs),
    /// Print completions for a shell
    #[command(after_help = "Example:\n  tenure completions bash > /etc/bash_completion.d/tenure")]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    #[command(after_help = "Example:\n  tenure man | man -l -")]
    Man,
}

const TOKEN_EXAMPLES: &str = "\
A grant is NAMESPACE:VERB,VERB: the namespace may be '*', the verbs are read, lead, publish, claim and admin.
A token reads tenure_<id>_<secret>; the store keeps a SHA-256 of the secret only.
Whoever has `claim` in a namespace can settle every claim of a task in it, under whatever worker's name.

Examples:
  tenure token create --name ci --grant prod:read,lead > ci.token
  tenure token create --name ops --grant '*:admin' --expires 8h
  tenure token create --name worker-1 --grant prod:lead --certificate-subject 'CN=worker-1,O=acme'
  tenure token list
  tenure token rotate ci --overlap 1h > ci.token
  tenure token revoke ci";

const RUN_EXAMPLES: &str = "\
The command sees TENURE_ELECTION, TENURE_TOKEN (the fencing token, as a number), TENURE_ID, TENURE_NAMESPACE and
TENURE_SLOT; with --and-store, TENURE_AND_TOKEN is the other store's. It is ended, with its whole process group, before leadership can be another's: also when tenure itself is
stopped or killed.

Examples:
  tenure run nightly -- ./report.sh                    one of many runs it, the others wait
  tenure run nightly --no-wait -- ./report.sh          exit with 75 if another candidate leads
  tenure run nightly --once-per 1h -- ./report.sh      from cron on every machine: one of them runs it, once an hour
  tenure run web --priority 100 -- ./server            the highest priority alive leads
  tenure run importers -n 3 -- ./import.sh             three of many at once
  tenure run nightly --lease 3s --kill-after 1s -- ./job.sh
  tenure run warm --soft --store 'gossip:10.0.0.3?seed=10.0.0.1' -- ./warm-caches   harmless if two do it for a while";

#[derive(Args, Debug, Clone)]
pub(crate) struct Standing {
    /// What people call this candidate [default: host name and process number]
    #[arg(long, env = "NODE_ID", value_name = "ID")]
    pub(crate) id: Option<String>,

    /// The highest priority alive leads
    #[arg(long, env = "NODE_PRIORITY", default_value_t = 0, allow_negative_numbers = true, value_parser = priority, value_name = "N")]
    pub(crate) priority: i32,

    /// How many may lead at once
    #[arg(short = 'n', long, default_value_t = 1, value_name = "SLOTS")]
    pub(crate) slots: u32,

    /// How long a silent process keeps what it holds [default: 30s, or as the store's address says]
    #[arg(long, visible_alias = "lease-duration", value_parser = duration, value_name = "TIME")]
    pub(crate) lease: Option<Duration>,

    /// How often it says that it lives [default: a fifth of the lease, at most 2s]
    #[arg(long, visible_alias = "retry-period", value_parser = duration, value_name = "TIME")]
    pub(crate) beat: Option<Duration>,

    /// How long a leader may go on without a beat that counts, as client-go says it: always two thirds of the lease, and refused if it should be
    /// less
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub(crate) renew_deadline: Option<Duration>,

    /// How others learn of a death: `lease`, or `connection` (PostgreSQL only): faster after a crash, and weaker, since a
    /// broken connection is not a dead process; tokens still fence
    #[arg(long, default_value = "lease", value_name = "MODE")]
    pub(crate) takeover: TakeoverMode,

    /// Lead only while leading there too: for candidates that move from one store to the other (see docs/MOVING.md)
    #[arg(long, env = "TENURE_AND_STORE", hide_env_values = true, value_name = "URL")]
    pub(crate) and_store: Option<String>,

    /// Something this candidate can do (repeatable)
    #[arg(long = "capability", value_name = "WORD")]
    pub(crate) capabilities: Vec<String>,

    /// Something a leader must be able to do (repeatable)
    #[arg(long = "requires", value_name = "WORD")]
    pub(crate) requires: Vec<String>,

    /// Something people want to know about this candidate (repeatable)
    #[arg(long = "meta", value_parser = key_value, value_name = "KEY=VALUE")]
    pub(crate) metadata: Vec<(String, String)>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakeoverMode {
    Lease,
    Connection,
}

#[derive(Args, Debug)]
#[command(after_long_help = exit::HELP)]
pub(crate) struct RunArgs {
    /// The election
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) standing: Standing,

    /// Lead over gossip (--store gossip:…), knowing what that does not promise: no token, and in a netsplit one leader on each side
    #[arg(long)]
    pub(crate) soft: bool,

    /// Give up (exit code 75) if not leading after this long
    #[arg(long, value_parser = duration, value_name = "TIME", conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,

    /// Give up at once (exit code 75) if somebody else leads
    #[arg(long)]
    pub(crate) no_wait: bool,

    /// Run at most once in each period, on all machines together: whoever leads looks up in the store when the command last
    /// started, and ends (exit code 0) if that is less than this long ago
    #[arg(long, value_parser = duration, value_name = "TIME", conflicts_with_all = ["soft", "slots", "and_store", "once"])]
    pub(crate) once_per: Option<Duration>,

    /// How long the command may take to end after SIGTERM, before SIGKILL
    #[arg(long, default_value = KILL_AFTER, value_parser = duration, value_name = "TIME")]
    pub(crate) kill_after: Duration,

    /// Run this by `sh -c` after leadership was lost and the command has ended
    #[arg(long, value_name = "CMD")]
    pub(crate) on_lost: Option<String>,

    /// Pass a variable to the command that it does not get otherwise: an address with a password, an access token, a cluster's
    /// secret (repeatable)
    #[arg(long = "pass-env", value_name = "NAME")]
    pub(crate) pass_env: Vec<String>,

    /// Exit (code 76) when leadership is lost, instead of campaigning again
    #[arg(long)]
    pub(crate) once: bool,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct ElectArgs {
    /// The election
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) standing: Standing,

    /// Lead over gossip (--store gossip:…), knowing what that does not promise: no token, and in a netsplit one leader on each side
    #[arg(long)]
    pub(crate) soft: bool,

    /// Only watch, never lead
    #[arg(long)]
    pub(crate) observer: bool,

    /// Leave after this long
    #[arg(long = "for", value_parser = duration, value_name = "TIME")]
    pub(crate) for_time: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct WatchArgs {
    /// The election; all of the namespace if none is given
    pub(crate) name: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct LeaderArgs {
    #[command(subcommand)]
    pub(crate) command: LeaderCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum LeaderCommand {
    /// All elections and who leads them
    List {
        /// Keep the list on the screen, up to date
        #[arg(short, long)]
        watch: bool,
        /// Of all namespaces
        #[arg(short = 'A', long)]
        all_namespaces: bool,
    },
    /// One election: leader, candidates, and the last terms
    Show {
        /// The election
        name: String,
        /// How many past terms
        #[arg(long, default_value_t = 10)]
        terms: u32,
    },
    /// Ask the leader to finish and let another lead
    Resign {
        /// The election
        name: String,
        #[command(flatten)]
        patience: Patience,
    },
    /// Ask the leader to finish and let this candidate lead; priority does not undo it
    Transfer {
        /// The election
        name: String,
        /// The candidate's id, or the beginning of its session
        #[arg(long, value_name = "ID")]
        to: String,
        #[command(flatten)]
        patience: Patience,
    },
    /// Ask the leader to finish and let nobody lead until resumed
    Pause {
        /// The election
        name: String,
        /// Why, for the others
        #[arg(long, default_value = "")]
        reason: String,
        #[command(flatten)]
        patience: Patience,
    },
    /// Let candidates lead again
    Resume {
        /// The election
        name: String,
    },
}

#[derive(Args, Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// How long to wait until it has happened
    #[arg(long, default_value = "30s", value_parser = duration, value_name = "TIME")]
    pub(crate) wait: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct MigrateArgs {
    #[command(subcommand)]
    pub(crate) command: MigrateCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum MigrateCommand {
    /// Apply the pending migrations; safe when many replicas do it at once
    Up {
        /// Give up and change nothing if the tables' locks are not free within this time
        #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
        timeout: Duration,
    },
    /// Show the version of the tables and the pending migrations
    Status,
    /// Print all migrations as SQL, without connecting
    Sql {
        /// Print the roles instead: an owner, one for programs and servers, and one that only looks (PostgreSQL)
        #[arg(long)]
        roles: bool,
    },
}

#[derive(Args, Debug)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    pub(crate) command: TokenCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum TokenCommand {
    /// Make a token, and print it this once
    Create {
        /// What people call whoever has it; several tokens may have one name
        #[arg(long)]
        name: String,
        /// What it may do, and where, such as prod:read,lead or '*:admin' (repeatable)
        #[arg(long = "grant", required = true, value_name = "NAMESPACE:VERBS")]
        grants: Vec<Grant>,
        #[command(flatten)]
        life: Life,
        /// No token: this subject of a client's certificate is the proof
        #[arg(long, value_name = "SUBJECT")]
        certificate_subject: Option<String>,
    },
    /// All tokens and certificates, and whether they are valid
    List,
    /// Make a token worth nothing from now on; by name, all of that name
    Revoke {
        /// The token's id, or a name
        #[arg(value_name = "ID|NAME")]
        which: String,
    },
    /// Make another token with the same grants; the old ones expire soon
    Rotate {
        /// The name
        name: String,
        /// How long the old ones are still good
        #[arg(long, default_value = "1h", value_parser = duration, value_name = "TIME")]
        overlap: Duration,
        #[command(flatten)]
        life: Life,
    },
}

#[derive(Args, Debug, Clone, Copy)]
pub(crate) struct Life {
    /// How long it is worth something [default: 90d; of a rotated one: as long as before]
    #[arg(long, value_parser = duration, value_name = "TIME", conflicts_with = "never_expires")]
    pub(crate) expires: Option<Duration>,

    /// Until it is revoked
    #[arg(long)]
    pub(crate) never_expires: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// How many hand-overs to measure
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: u32,

    #[command(flatten)]
    pub(crate) wishes: advise::Wishes,
}

/// Reads `250ms`, `10s`, `2m`, `1h`, `1h30m` or `90d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let hint = || format!("{text:?} is not a time; write for example 250ms, 10s, 2m, 1h30m or 90d");
    let mut rest = text.trim();
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return Err(hint());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(hint)?;
        let (number, tail) = rest.split_at(digits);
        let unit_end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let seconds = match unit.trim() {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return Err(hint()),
        };
        let amount: f64 = number.parse().map_err(|_| hint())?;
        total += Duration::try_from_secs_f64(amount * seconds).map_err(|_| hint())?;
        rest = tail;
    }
    Ok(total)
}

pub(crate) fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.into(), value.into())),
        _ => Err(format!("{text:?} is not of the form KEY=VALUE")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn the_defaults_are_those_of_the_library() {
        assert_eq!(duration(LEASE), Ok(tenure::DEFAULT_LEASE));
        assert_eq!(duration(KILL_AFTER), Ok(tenure::DEFAULT_KILL_AFTER));
    }

    #[test]
    fn times_are_read() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
    }

    proptest::proptest! {
        #[test]
        fn no_text_for_a_time_is_too_much(text in r"[0-9.]{0,25}(ms|s|m|h|d)?.{0,8}") {
            if let Err(error) = duration(&text) {
                proptest::prop_assert!(!error.is_empty());
            }
        }

        #[test]
        fn a_time_that_is_written_is_read(ms in 0u64..1_000_000_000) {
            proptest::prop_assert_eq!(duration(&format!("{ms}ms")), Ok(Duration::from_millis(ms)));
        }
    }

    #[test]
    fn nonsense_times_name_themselves() {
        for text in ["", "10", "s", "10 parsecs", "1e9s", "-1s", "1s2"] {
            let error = duration(text).expect_err(text);
            assert!(error.contains(text), "{error}");
        }
    }
}
