//! `tenure bench`.

use std::time::Duration;

use clap::{Args, Subcommand};
use tenure::port::Mode;

use super::duration;

#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// Measure without asking on a store that is in use
    #[arg(long, global = true)]
    pub(crate) yes: bool,

    #[command(subcommand)]
    pub(crate) command: BenchCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum BenchCommand {
    /// Hand-over, crash take-over, and what it costs to hold many elections
    Election {
        /// How many hand-overs and crashes to time
        #[arg(long, default_value_t = 15)]
        rounds: u32,
        /// How many elections one process holds
        #[arg(long, value_delimiter = ',', default_value = "1,100,10000", value_name = "N,N,…")]
        held: Vec<u32>,
        /// How long the cost of holding is watched
        #[arg(long, default_value = "20s", value_parser = duration, value_name = "TIME")]
        window: Duration,
    },
    /// Every store in one run: hand-over, crash take-over, and requests for each election that is held
    #[command(
        after_help = "memory, SQLite, a server on it, Raft and, if it is installed, etcd are started here; --store postgres://… is measured as well.\n\nExamples:\n  tenure bench stores\n  tenure bench stores --store postgres://app@db/app --also k8s:default\n  tenure bench stores --rounds 3 --crashes 1 --window 5s -o json"
    )]
    Stores {
        /// Further stores
        #[arg(long, value_name = "ADDRESS")]
        also: Vec<String>,
        /// How many hand-overs to time
        #[arg(long, default_value_t = 15)]
        rounds: u32,
        /// How many crashes to time
        #[arg(long, default_value_t = 3)]
        crashes: u32,
        /// How many elections one process holds
        #[arg(long, value_delimiter = ',', default_value = "1,10,100", value_name = "N,N,…")]
        held: Vec<std::num::NonZeroU32>,
        /// How long the cost of holding is watched
        #[arg(long, default_value = "20s", value_parser = duration, value_name = "TIME")]
        window: Duration,
        /// The lease of all candidates
        #[arg(long, default_value = "5s", value_parser = duration, value_name = "TIME")]
        lease: Duration,
        /// Do not wait a minute for the crash of `etcdctl elect`
        #[arg(long)]
        no_etcdctl_crash: bool,
    },
    /// Reading and renewing over HTTP beside the statements behind it, idle watchers, start-up
    Server {
        /// How many connections ask at once, on both sides
        #[arg(long, default_value_t = 16)]
        connections: usize,
        /// For how long each side is measured
        #[arg(long, default_value = "5s", value_parser = duration, value_name = "TIME")]
        window: Duration,
        /// How many idle watchers there are
        #[arg(long, default_value_t = 1000)]
        watchers: usize,
        /// How often the server is started
        #[arg(long, default_value_t = 5)]
        starts: u32,
    },
    /// What strict order costs: the same tasks claimed through some replicas, in both modes
    #[command(
        after_help = "Examples:\n  tenure bench assign --store postgres://app@db/app\n  tenure bench assign --replicas 1,3 --tasks 2000 --svg assign.svg"
    )]
    Assign {
        /// How many replicas
        #[arg(long, value_delimiter = ',', default_value = "1,3,5,7,9", value_name = "N,N,…")]
        replicas: Vec<std::num::NonZeroUsize>,
        /// In which modes
        #[arg(long, value_delimiter = ',', default_value = "exclusive,distributed", value_name = "MODE,…", value_parser = mode)]
        modes: Vec<Mode>,
        /// How many tasks
        #[arg(long, default_value_t = 10_000)]
        tasks: u64,
        /// How many callers, shared out among the replicas
        #[arg(long, default_value_t = 36)]
        callers: usize,
        /// Where to draw the tables
        #[arg(long, default_value = "assign.svg", value_name = "FILE")]
        svg: std::path::PathBuf,
    },
    /// Queues, emptied by a worker and by callers one by one, beside a job table written by hand
    #[command(
        after_help = "Examples:\n  tenure bench drain --store postgres://app@db/app\n  tenure bench drain --tasks 20000 --backlogs 10000 --held-open 0s"
    )]
    Drain {
        /// How many tasks a worker drains
        #[arg(long, default_value_t = 100_000)]
        tasks: u64,
        /// How many tasks it runs at once, and how many callers claim one by one
        #[arg(long, default_value_t = 32)]
        concurrency: usize,
        /// Backlogs of which as many are drained as the shortest has
        #[arg(long, value_delimiter = ',', default_value = "10000,100000,1000000", value_name = "N,N,…")]
        backlogs: Vec<u64>,
        /// How long a transaction is held open beside the work
        #[arg(long, default_value = "60s", value_parser = duration, value_name = "TIME")]
        held_open: Duration,
        /// How many tasks are timed from submission to start
        #[arg(long, default_value_t = 25)]
        rounds: u32,
    },
    /// Publishing beside a bare insert, consuming beside a bare scan, the way of one event; and what slots and members change
    #[command(
        after_help = "Examples:\n  tenure bench events --store postgres://app@db/app\n  tenure bench events --events 20000 --window 2s --repeats 1 -o json"
    )]
    Events {
        /// How many writers publish at once
        #[arg(long, value_delimiter = ',', default_value = "1,16", value_name = "N,N,…")]
        writers: Vec<std::num::NonZeroUsize>,
        /// For how long a rate of publishing is measured, on both sides
        #[arg(long, default_value = "5s", value_parser = duration, value_name = "TIME")]
        window: Duration,
        /// How often, one side after the other; the median counts
        #[arg(long, default_value_t = 3)]
        repeats: u32,
        /// How many events are consumed
        #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
        events: u64,
        /// From how many slots
        #[arg(long, value_delimiter = ',', default_value = "1,8,64", value_name = "N,N,…", value_parser = clap::value_parser!(u32).range(1..=i64::from(tenure::port::SLOTS_MAX)))]
        slots: Vec<u32>,
        /// By how many members
        #[arg(long, value_delimiter = ',', default_value = "1,2,4,8", value_name = "N,N,…")]
        members: Vec<std::num::NonZeroUsize>,
        /// How many events are timed from their publication to their handler
        #[arg(long, default_value_t = 50)]
        rounds: u32,
    },
    /// Many schedules due in the same second beside a bare insert; how late ticks are at a steady rate; what waiting costs
    #[command(
        after_help = "The store should be the bench's own: another scheduler on it would fire as well.\n\nExamples:\n  tenure bench schedules --store postgres://app@db/app\n  tenure bench schedules --schedules 10000 --due 1000 --window 5s --repeats 1 -o json"
    )]
    Schedules {
        /// How many schedules there are
        #[arg(long, default_value_t = 100_000, value_name = "N")]
        schedules: u64,
        /// How many more are due in the same second
        #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..), value_name = "N")]
        due: u64,
        /// How often, one side after the other; the median counts
        #[arg(long, default_value_t = 3)]
        repeats: u32,
        /// How many ticks per second are steady
        #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
        rate: u32,
        /// For how long those are watched, and for how long nothing
        #[arg(long, default_value = "20s", value_parser = duration, value_name = "TIME")]
        window: Duration,
    },
    /// Claim tasks as one of the replicas
    #[command(hide = true)]
    Replica {
        /// Whose tasks
        #[arg(long)]
        queue: String,
        /// By how many at once
        #[arg(long)]
        callers: usize,
    },
    /// Hold a bare advisory lock until killed
    #[command(hide = true)]
    HoldAdvisory,
    /// Have the store open until killed
    #[command(hide = true)]
    HoldStore,
    /// Hold a bare kernel lock until killed
    #[command(hide = true)]
    HoldFlock {
        /// The file
        path: std::path::PathBuf,
    },
}

fn mode(text: &str) -> Result<Mode, String> {
    [Mode::Exclusive, Mode::Distributed]
        .into_iter()
        .find(|mode| mode.as_str() == text)
        .ok_or_else(|| format!("{text:?} is no mode; write exclusive or distributed"))
}
