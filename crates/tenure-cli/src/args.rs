//! Command-line arguments.

pub(crate) mod advise;
mod bench;
pub(crate) mod events;
pub(crate) mod parsers;
pub(crate) mod queues_and_pools;
pub(crate) mod raft;
pub(crate) mod schedules;
pub(crate) mod tasks;
pub(crate) mod time;
pub(crate) mod work;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use tenure::port::Grant;

use self::advise::AdviseArgs;
pub(crate) use self::bench::{BenchArgs, BenchCommand};
use self::events::EventsArgs;
use self::parsers::priority;
use self::queues_and_pools::{PoolsArgs, QueuesArgs, WorkersArgs};
use self::raft::RaftArgs;
use self::schedules::{SchedulesArgs, SchedulesCommand};
use self::tasks::TasksArgs;
use self::work::WorkArgs;
use crate::commands::epoch::{self, EpochArgs};
use crate::commands::gossip::{self, GossipArgs};
use crate::commands::names::{self, NamesArgs};
use crate::commands::serve::{self, ServeArgs};
use crate::error;

/// Coordinate the replicas of a service: elections, queues, events and schedules on one store.
#[derive(Parser, Debug)]
#[command(
    name = "tenure",
    version,
    about,
    long_about = "Tenure coordinates the replicas of a service on a database you already have.\n\nIt elects one leader among the replicas, assigns tasks and resources to many workers, delivers events in order and fires schedules. SQLite is the default store; use PostgreSQL in production.",
    after_help = "Examples:\n  tenure run nightly --once-per 1h -- ./report.sh   from cron on every machine: one runs it, once an hour\n  tenure run worker -- ./worker              run a command on the leader only; another replica takes over\n  tenure elections list -w                   show leaders live\n  tenure serve                               HTTP API and dashboard\n  tenure elections transfer nightly --to node-2   transfer leadership\n  tenure tasks submit mail --payload '{\"to\":\"ada\"}'   submit a task\n  tenure work mail -- ./send.sh              run a command for each task\n  tenure events consume orders --group mailer -- ./send.sh   run a command for each event, in order\n  tenure schedules create nightly '30 2 * * *' --time-zone Europe/Berlin --task reports   submit a task every night\n  tenure doctor                              check the store",
    propagate_version = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Command {
    /// Whether the command uses tasks, events or schedules. Stores that only elect leaders do not keep them.
    pub(crate) fn uses_work(&self) -> bool {
        match self {
            Command::Schedules(args) => !matches!(args.command, SchedulesCommand::Preview(_)),
            Command::Tasks(_)
            | Command::Work(_)
            | Command::Queues(_)
            | Command::Workers(_)
            | Command::Pools(_)
            | Command::Events(_) => true,
            _ => false,
        }
    }
}

impl Cli {
    /// The store URLs given on the command line.
    pub(crate) fn store_urls(&self) -> impl Iterator<Item = &str> {
        let candidate = match &self.command {
            Command::Run(args) => Some(&args.candidate),
            Command::Campaign(args) => Some(&args.candidate),
            _ => None,
        };
        let second_store = candidate.and_then(|candidate| candidate.second_store.as_ref());
        let global = &self.global;
        [global.store.as_ref(), global.election_store.as_ref(), global.direct_url.as_ref(), second_store]
            .into_iter()
            .flatten()
            .map(String::as_str)
    }
}

/// Advice for arguments that clap rejects without advice of its own.
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

/// The command whose name has the same letters in another order; clap's own similarity measure misses it.
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

/// Default lease duration: [`tenure::DEFAULT_LEASE`] as text.
pub(crate) const LEASE: &str = "30s";
/// Default time between SIGTERM and SIGKILL: [`tenure::DEFAULT_KILL_AFTER`] as text.
pub(crate) const KILL_AFTER: &str = "5s";

/// Help heading of the global options, printed after those of the command.
const GLOBAL_HEADING: &str = "Global options";

/// Options of every command.
#[derive(Args, Debug, Clone)]
pub(crate) struct GlobalArgs {
    /// Store URL: `sqlite:PATH`, `postgres://USER@HOST/DB`, `etcd://HOST:PORT`, `k8s:NAMESPACE`, `raft:…`, or a server
    /// `http://HOST:PORT` [default: $TENURE_STORE, $DATABASE_URL, or a SQLite file in the state directory]
    #[arg(long, global = true, help_heading = GLOBAL_HEADING, env = "TENURE_STORE", hide_env_values = true, value_name = "URL")]
    pub(crate) store: Option<String>,

    /// Read the store URL from a file, or from standard input (`-`), so that its password does not appear in the process
    /// list; replaces --store
    #[arg(long, global = true, help_heading = GLOBAL_HEADING, env = "TENURE_STORE_FILE", value_name = "FILE|-")]
    pub(crate) store_file: Option<PathBuf>,

    /// Separate store for elections: `etcd://…`, `raft:…` or any other store URL; writes to --store are fenced by the
    /// tokens granted there
    #[arg(long, global = true, help_heading = GLOBAL_HEADING, env = "TENURE_ELECTION_STORE", hide_env_values = true, value_name = "URL")]
    pub(crate) election_store: Option<String>,

    /// Direct URL of the same database, if --store points to a connection pooler
    #[arg(long, global = true, help_heading = GLOBAL_HEADING, env = "TENURE_DIRECT_URL", hide_env_values = true, value_name = "URL")]
    pub(crate) direct_url: Option<String>,

    /// File with the secrets of the cluster in --store or --election-store (raft:, gossip:), one per line; the first one is
    /// sent, all are accepted
    #[arg(long, global = true, help_heading = GLOBAL_HEADING, env = "TENURE_CLUSTER_SECRET_FILE", value_name = "FILE")]
    pub(crate) cluster_secret_file: Option<std::path::PathBuf>,

    /// Require synchronous replication: a grant counts only after a synchronous standby has confirmed it
    #[arg(long, global = true, help_heading = GLOBAL_HEADING, env = "TENURE_SYNC_REPLICATION")]
    pub(crate) sync_replication: bool,

    /// Namespace
    #[arg(long, global = true, help_heading = GLOBAL_HEADING, env = "TENURE_NAMESPACE", default_value = "default", value_name = "NAME")]
    pub(crate) namespace: String,

    /// Output format
    #[arg(short, long, global = true, help_heading = GLOBAL_HEADING, default_value = "table", value_name = "FORMAT")]
    pub(crate) output: OutputFormat,

    /// Increase verbosity (repeat for trace)
    #[arg(short, long, global = true, help_heading = GLOBAL_HEADING, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputFormat {
    Table,
    Json,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run a command while this process is the leader
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Campaign in an election without a command and print every change
    #[command(
        after_help = "Examples:\n  tenure campaign nightly --priority 100\n  tenure campaign nightly --duration 10s -o json\n  tenure campaign nightly --observer"
    )]
    Campaign(CampaignArgs),
    /// Start the server: HTTP API and dashboard
    #[command(after_help = serve::EXAMPLES)]
    Serve(ServeArgs),
    /// Inspect leaders, transfer or resign leadership
    #[command(
        after_help = "Examples:\n  tenure elections list -w\n  tenure elections watch nightly\n  tenure elections show nightly\n  tenure elections transfer nightly --to node-2\n  tenure elections pause nightly --reason 'database upgrade'"
    )]
    Elections(ElectionsArgs),
    /// List the members of a gossip cluster
    #[command(after_help = gossip::EXAMPLES)]
    Gossip(GossipArgs),
    /// Register names and look up their holders
    #[command(after_help = names::EXAMPLES)]
    Names(NamesArgs),
    /// Submit, claim, complete and inspect tasks
    #[command(after_help = tasks::EXAMPLES)]
    Tasks(TasksArgs),
    /// Start a worker that runs a command for each task of a queue
    #[command(after_help = work::EXAMPLES)]
    Work(WorkArgs),
    /// Inspect and configure queues
    #[command(after_help = queues_and_pools::QUEUES_EXAMPLES)]
    Queues(QueuesArgs),
    /// Inspect and approve workers
    #[command(after_help = queues_and_pools::WORKERS_EXAMPLES)]
    Workers(WorkersArgs),
    /// Manage pools of resources and requests for them
    #[command(after_help = queues_and_pools::POOLS_EXAMPLES)]
    Pools(PoolsArgs),
    /// Publish and consume events; manage topics and groups
    #[command(after_help = events::EXAMPLES)]
    Events(EventsArgs),
    /// Manage schedules and fire them
    #[command(after_help = schedules::EXAMPLES)]
    Schedules(SchedulesArgs),
    /// Create or upgrade the database schema
    #[command(
        after_help = "Examples:\n  tenure migrate up --store postgres://owner@db/app\n  tenure migrate status\n  tenure migrate sql --store postgres: > tenure.sql\n  tenure migrate sql --store postgres: --roles | psql app"
    )]
    Migrate(MigrateArgs),
    /// Show the epoch of the store, or raise it after a restore that the store cannot detect
    #[command(after_help = epoch::EXAMPLES)]
    Epoch(EpochArgs),
    /// Manage access tokens and client certificates
    #[command(after_help = CREDENTIALS_EXAMPLES)]
    Credentials(CredentialsArgs),
    /// Inspect and change the members of a Raft cluster
    #[command(after_help = raft::EXAMPLES)]
    Raft(RaftArgs),
    /// Recommend a store and a queue mode
    #[command(after_help = advise::EXAMPLES)]
    Advise(AdviseArgs),
    /// Check the store and measure its latency
    #[command(
        after_help = "Examples:\n  tenure doctor\n  tenure doctor --store postgres://app@db/app -o json"
    )]
    Doctor(DoctorArgs),
    /// Benchmark the store (writes test data)
    #[command(
        after_help = "Examples:\n  tenure bench elections\n  tenure bench elections --store postgres://app@db/app --elections 1,100,10000"
    )]
    Bench(BenchArgs),
    /// Print shell completions
    #[command(after_help = "Example:\n  tenure completions bash > /etc/bash_completion.d/tenure")]
    Completions {
        /// Shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page of a command
    #[command(
        after_help = "Examples:\n  tenure man | man -l -\n  tenure man events consume | man -l -\n  tenure man --all /usr/local/share/man/man1"
    )]
    Man {
        /// Command, such as `events consume` [default: tenure itself]
        #[arg(value_name = "COMMAND")]
        command: Vec<String>,
        /// Write the manual pages of all commands to this directory
        #[arg(long, value_name = "DIR", conflicts_with = "command")]
        all: Option<PathBuf>,
    },
}

const CREDENTIALS_EXAMPLES: &str = "\
A grant is NAMESPACE:PERMISSION,PERMISSION. The namespace may be '*'; the permissions are read, lead, publish, claim and \
admin.

An access token has the form tenure_<id>_<secret>; the store keeps only the SHA-256 digest of the secret.

The permission `claim` in a namespace allows settling every claim in it, under any worker name.

Examples:
  tenure credentials create --name ci --grant prod:read,lead > ci.token
  tenure credentials create --name ops --grant '*:admin' --expires-in 8h
  tenure credentials create --name worker-1 --grant prod:lead --certificate-subject 'CN=worker-1,O=acme'
  tenure credentials list
  tenure credentials rotate ci --grace-period 1h > ci.token
  tenure credentials revoke ci";

const RUN_EXAMPLES: &str = "\
The command gets TENURE_ELECTION, TENURE_TOKEN (the fencing token as a number), TENURE_NAME, TENURE_NAMESPACE, TENURE_SLOT \
and TENURE_SESSION; with --second-store also TENURE_SECOND_TOKEN. Before another candidate can lead, tenure stops the \
command with its whole process group, even if tenure itself is stopped or killed.

Examples:
  tenure run nightly -- ./report.sh                    one replica runs it, the others wait
  tenure run nightly --no-wait -- ./report.sh          exit with 75 if another candidate leads
  tenure run nightly --once-per 1h -- ./report.sh      from cron on every machine: one of them runs it, once an hour
  tenure run web --priority 100 -- ./server            the live candidate with the highest priority leads
  tenure run importers -n 3 -- ./import.sh             three leaders at once
  tenure run nightly --lease 3s --kill-after 1s -- ./job.sh
  tenure run warm --soft --store 'gossip:10.0.0.3?seed=10.0.0.1' -- ./warm-caches   two leaders are tolerable";

#[derive(Args, Debug, Clone)]
pub(crate) struct CandidateArgs {
    /// Name of this process [default: host name and process id]
    #[arg(long, env = "TENURE_NAME", value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Priority; the live candidate with the highest priority leads
    #[arg(long, env = "TENURE_PRIORITY", default_value_t = 0, allow_negative_numbers = true, value_parser = priority, value_name = "N")]
    pub(crate) priority: i32,

    /// Number of candidates that may lead at once
    #[arg(short = 'n', long, default_value_t = 1, value_name = "SLOTS")]
    pub(crate) slots: u32,

    /// Lease duration [default: 30s, or as set in the store URL]
    #[arg(long, visible_alias = "lease-duration", value_parser = duration, value_name = "DURATION")]
    pub(crate) lease: Option<Duration>,

    /// Heartbeat interval [default: one fifth of the lease, at most 2s; one fifteenth of a lease longer than 30s]
    #[arg(long, visible_alias = "retry-period", value_parser = duration, value_name = "DURATION")]
    pub(crate) heartbeat_interval: Option<Duration>,

    /// Renew deadline, for compatibility with client-go: always two thirds of the lease; a shorter value is rejected
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) renew_deadline: Option<Duration>,

    /// Takeover mode: `lease`, or `connection` (PostgreSQL only). `connection` detects a crash faster and is weaker,
    /// because a broken connection does not prove a dead process; fences still reject writes with an old token
    #[arg(long, default_value = "lease", value_name = "MODE")]
    pub(crate) takeover: TakeoverArg,

    /// Lead only while also leading in this second store (for a migration between stores, see docs/MOVING.md)
    #[arg(long, env = "TENURE_SECOND_STORE", hide_env_values = true, value_name = "URL")]
    pub(crate) second_store: Option<String>,

    /// Capability of this candidate (repeatable)
    #[arg(long = "capability", value_name = "CAPABILITY")]
    pub(crate) capabilities: Vec<String>,

    /// Capability that a leader must have (repeatable)
    #[arg(long = "required-capability", value_name = "CAPABILITY")]
    pub(crate) required_capabilities: Vec<String>,

    /// Metadata of this candidate (repeatable)
    #[arg(long, value_parser = key_value, value_name = "KEY=VALUE")]
    pub(crate) metadata: Vec<(String, String)>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakeoverArg {
    Lease,
    Connection,
}

#[derive(Args, Debug)]
#[command(after_long_help = error::HELP)]
pub(crate) struct RunArgs {
    /// Election name
    pub(crate) election: String,

    #[command(flatten)]
    pub(crate) candidate: CandidateArgs,

    /// Allow a soft election over gossip (--store gossip:…): no token, and one leader on each side of a network split
    #[arg(long)]
    pub(crate) soft: bool,

    /// Exit with 75 if not leading after this duration
    #[arg(long, value_parser = duration, value_name = "DURATION", conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,

    /// Exit with 75 at once if another candidate leads
    #[arg(long)]
    pub(crate) no_wait: bool,

    /// Run at most once per period on all machines together: the leader reads from the store when the command last started,
    /// and exits with 0 if that is less than this duration ago
    #[arg(long, value_parser = duration, value_name = "DURATION", conflicts_with_all = ["soft", "slots", "second_store", "once"])]
    pub(crate) once_per: Option<Duration>,

    /// Time between SIGTERM and SIGKILL when the command is stopped
    #[arg(long, default_value = KILL_AFTER, value_parser = duration, value_name = "DURATION")]
    pub(crate) kill_after: Duration,

    /// Shell command to run after leadership was lost and the command has stopped
    #[arg(long, value_name = "COMMAND")]
    pub(crate) on_lost: Option<String>,

    /// Pass this variable to the command although it holds a secret: a URL with a password, an access token or a cluster
    /// secret (repeatable)
    #[arg(long = "pass-env", value_name = "NAME")]
    pub(crate) pass_env: Vec<String>,

    /// Exit with 76 when leadership is lost instead of campaigning again
    #[arg(long)]
    pub(crate) once: bool,

    /// Command and arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct CampaignArgs {
    /// Election name
    pub(crate) election: String,

    #[command(flatten)]
    pub(crate) candidate: CandidateArgs,

    /// Allow a soft election over gossip (--store gossip:…): no token, and one leader on each side of a network split
    #[arg(long)]
    pub(crate) soft: bool,

    /// Watch only; never lead
    #[arg(long)]
    pub(crate) observer: bool,

    /// Leave the election after this duration
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) duration: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct WatchArgs {
    /// Election name [default: all elections of the namespace]
    pub(crate) election: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct ElectionsArgs {
    #[command(subcommand)]
    pub(crate) command: ElectionsCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ElectionsCommand {
    /// List elections and their leaders
    List {
        /// Refresh the list continuously
        #[arg(short, long)]
        watch: bool,
        /// Include all namespaces
        #[arg(short = 'A', long)]
        all_namespaces: bool,
    },
    /// Print changes of elections as they happen
    #[command(
        after_help = "Examples:\n  tenure elections watch\n  tenure elections watch nightly -o json | jq .leader"
    )]
    Watch(WatchArgs),
    /// Show an election: leader, candidates and recent terms
    Show {
        /// Election name
        election: String,
        /// Number of past terms
        #[arg(long, default_value_t = 10)]
        terms: u32,
    },
    /// Ask the leader to finish and resign
    Resign {
        /// Election name
        election: String,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Ask the leader to finish and transfer leadership to a candidate, regardless of priority
    Transfer {
        /// Election name
        election: String,
        /// Candidate name, or prefix of its session id
        #[arg(long, value_name = "CANDIDATE")]
        to: String,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Pause an election: ask the leader to finish, and elect none until resumed
    Pause {
        /// Election name
        election: String,
        /// Reason, shown to other operators
        #[arg(long, default_value = "")]
        reason: String,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Resume an election
    Resume {
        /// Election name
        election: String,
    },
}

#[derive(Args, Debug, Clone, Copy)]
pub(crate) struct WaitArgs {
    /// Maximum time to wait for the change
    #[arg(long, default_value = "30s", value_parser = duration, value_name = "DURATION")]
    pub(crate) wait: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct MigrateArgs {
    #[command(subcommand)]
    pub(crate) command: MigrateCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum MigrateCommand {
    /// Apply pending migrations; safe to run concurrently
    Up {
        /// Give up without changes if the table locks are not free within this duration
        #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
        timeout: Duration,
    },
    /// Show the schema version and pending migrations
    Status,
    /// Print all migrations as SQL without connecting
    Sql {
        /// Print the roles instead: owner, server, runtime, publisher and reader (PostgreSQL)
        #[arg(long)]
        roles: bool,
    },
}

#[derive(Args, Debug)]
pub(crate) struct CredentialsArgs {
    #[command(subcommand)]
    pub(crate) command: CredentialsCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum CredentialsCommand {
    /// Create an access token and print it once
    Create {
        /// Principal name; several credentials may have the same name
        #[arg(long)]
        name: String,
        /// Permissions in a namespace, such as prod:read,lead or '*:admin' (repeatable)
        #[arg(long = "grant", required = true, value_name = "NAMESPACE:PERMISSIONS")]
        grants: Vec<Grant>,
        #[command(flatten)]
        expiry: ExpiryArgs,
        /// Authenticate by this client certificate subject instead of an access token
        #[arg(long, value_name = "SUBJECT")]
        certificate_subject: Option<String>,
    },
    /// List credentials and their validity
    List,
    /// Revoke a credential, or all credentials of a name
    Revoke {
        /// Credential id or principal name
        #[arg(value_name = "ID|NAME")]
        credential: String,
    },
    /// Create a new access token with the same grants and expire the old ones after a grace period
    Rotate {
        /// Principal name
        name: String,
        /// How long the old access tokens remain valid
        #[arg(long, default_value = "1h", value_parser = duration, value_name = "DURATION")]
        grace_period: Duration,
        #[command(flatten)]
        expiry: ExpiryArgs,
    },
}

#[derive(Args, Debug, Clone, Copy)]
pub(crate) struct ExpiryArgs {
    /// Time until expiry [default: 90d; for `rotate`: that of the old access token]
    #[arg(long, value_parser = duration, value_name = "DURATION", conflicts_with = "no_expiry")]
    pub(crate) expires_in: Option<Duration>,

    /// Never expire
    #[arg(long)]
    pub(crate) no_expiry: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Number of leader handovers to measure
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: u32,

    #[command(flatten)]
    pub(crate) answers: advise::AdviseAnswers,
}

/// Parses a duration: `250ms`, `10s`, `2m` (or `2min`), `1h`, `1h30m`, `90d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let hint = || format!("invalid duration {text:?}: use for example 250ms, 10s, 2m, 1h30m or 90d");
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
            "m" | "min" => 60.0,
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
        _ => Err(format!("invalid value {text:?}: use KEY=VALUE")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_valid() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn default_durations_match_the_library() {
        assert_eq!(duration(LEASE), Ok(tenure::DEFAULT_LEASE));
        assert_eq!(duration(KILL_AFTER), Ok(tenure::DEFAULT_KILL_AFTER));
    }

    #[test]
    fn durations_are_parsed() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2min"), duration("2m"));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
    }

    proptest::proptest! {
        #[test]
        fn no_duration_text_panics(text in r"[0-9.]{0,25}(ms|s|m|h|d)?.{0,8}") {
            if let Err(error) = duration(&text) {
                proptest::prop_assert!(!error.is_empty());
            }
        }

        #[test]
        fn a_formatted_duration_is_parsed(ms in 0u64..1_000_000_000) {
            proptest::prop_assert_eq!(duration(&format!("{ms}ms")), Ok(Duration::from_millis(ms)));
        }
    }

    #[test]
    fn an_invalid_duration_is_named_in_the_error() {
        for text in ["", "10", "s", "10 parsecs", "1e9s", "-1s", "1s2"] {
            let error = duration(text).expect_err(text);
            assert!(error.contains(text), "{error}");
        }
    }
}
