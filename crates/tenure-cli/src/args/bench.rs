//! Arguments of `tenure bench`.

use std::time::Duration;

use clap::{Args, Subcommand};
use tenure::port::AssignmentMode;

use super::duration;

#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// Do not ask for confirmation if the store is in use
    #[arg(long, global = true)]
    pub(crate) yes: bool,

    #[command(subcommand)]
    pub(crate) command: BenchCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum BenchCommand {
    /// Measure handover, crash takeover and the cost of holding many elections
    Elections {
        /// Number of handovers and crashes to measure
        #[arg(long, default_value_t = 15)]
        rounds: u32,
        /// Numbers of elections that one process holds, each measured separately
        #[arg(long, value_delimiter = ',', default_value = "1,100,10000", value_name = "N,N,…")]
        elections: Vec<u32>,
        /// Measurement window for the cost of holding
        #[arg(long, default_value = "20s", value_parser = duration, value_name = "DURATION")]
        window: Duration,
    },
    /// Compare all stores: handover, crash takeover and requests per held election
    #[command(
        after_help = "Starts and measures a memory store, SQLite, a server on SQLite, a Raft cluster and, if installed, etcd. Also measures --store if it is a PostgreSQL URL, and every --extra-store.\n\nExamples:\n  tenure bench stores\n  tenure bench stores --store postgres://app@db/app --extra-store k8s:default\n  tenure bench stores --rounds 3 --crashes 1 --window 5s -o json"
    )]
    Stores {
        /// Additional store URL (repeatable)
        #[arg(long, value_name = "URL")]
        extra_store: Vec<String>,
        /// Number of handovers to measure
        #[arg(long, default_value_t = 15)]
        rounds: u32,
        /// Number of crashes to measure
        #[arg(long, default_value_t = 3)]
        crashes: u32,
        /// Numbers of elections that one process holds, each measured separately
        #[arg(long, value_delimiter = ',', default_value = "1,10,100", value_name = "N,N,…")]
        elections: Vec<std::num::NonZeroU32>,
        /// Measurement window for the cost of holding
        #[arg(long, default_value = "20s", value_parser = duration, value_name = "DURATION")]
        window: Duration,
        /// Lease duration of all candidates
        #[arg(long, default_value = "5s", value_parser = duration, value_name = "DURATION")]
        lease: Duration,
        /// Skip the crash test of `etcdctl elect`, which takes one minute
        #[arg(long)]
        no_etcdctl_crash: bool,
    },
    /// Compare HTTP reads and heartbeats with plain SQL statements; measure idle streams and startup
    Server {
        /// Number of concurrent connections
        #[arg(long, default_value_t = 16)]
        connections: usize,
        /// Measurement window
        #[arg(long, default_value = "5s", value_parser = duration, value_name = "DURATION")]
        window: Duration,
        /// Number of idle streams
        #[arg(long, default_value_t = 1000)]
        streams: usize,
        /// Number of server starts
        #[arg(long, default_value_t = 5)]
        starts: u32,
    },
    /// Measure the cost of strict order: claim the same tasks in both modes
    #[command(
        after_help = "Examples:\n  tenure bench claim-modes --store postgres://app@db/app\n  tenure bench claim-modes --replicas 1,3 --tasks 2000 --svg claim-modes.svg"
    )]
    ClaimModes {
        /// Numbers of replicas
        #[arg(long, value_delimiter = ',', default_value = "1,3,5,7,9", value_name = "N,N,…")]
        replicas: Vec<std::num::NonZeroUsize>,
        /// Modes to measure
        #[arg(long, value_delimiter = ',', default_value = "exclusive,distributed", value_name = "MODE,…", value_parser = mode)]
        modes: Vec<AssignmentMode>,
        /// Number of tasks
        #[arg(long, default_value_t = 10_000)]
        tasks: u64,
        /// Number of callers, divided among the replicas
        #[arg(long, default_value_t = 36)]
        callers: usize,
        /// Output file for the chart
        #[arg(long, default_value = "claim-modes.svg", value_name = "FILE")]
        svg: std::path::PathBuf,
    },
    /// Compare queue throughput with a plain job table
    #[command(
        after_help = "Examples:\n  tenure bench queues --store postgres://app@db/app\n  tenure bench queues --tasks 20000 --backlogs 10000 --open-transaction 0s"
    )]
    Queues {
        /// Number of tasks that one worker processes
        #[arg(long, default_value_t = 100_000)]
        tasks: u64,
        /// Number of tasks that the worker runs at once; also the number of callers that claim one task at a time
        #[arg(long, default_value_t = 32)]
        concurrency: usize,
        /// Backlog sizes; each run processes as many tasks as the smallest backlog has
        #[arg(long, value_delimiter = ',', default_value = "10000,100000,1000000", value_name = "N,N,…")]
        backlogs: Vec<u64>,
        /// How long a second transaction is kept open during the run
        #[arg(long, default_value = "60s", value_parser = duration, value_name = "DURATION")]
        open_transaction: Duration,
        /// Number of tasks whose time from submission to start is measured
        #[arg(long, default_value_t = 25)]
        rounds: u32,
    },
    /// Compare publishing with plain inserts and consuming with plain scans; vary partitions and members
    #[command(
        after_help = "Examples:\n  tenure bench events --store postgres://app@db/app\n  tenure bench events --events 20000 --window 2s --repeats 1 -o json"
    )]
    Events {
        /// Numbers of concurrent publishers
        #[arg(long, value_delimiter = ',', default_value = "1,16", value_name = "N,N,…")]
        writers: Vec<std::num::NonZeroUsize>,
        /// Measurement window for the publish rate
        #[arg(long, default_value = "5s", value_parser = duration, value_name = "DURATION")]
        window: Duration,
        /// Number of repetitions; the median counts
        #[arg(long, default_value_t = 3)]
        repeats: u32,
        /// Number of events to consume
        #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
        events: u64,
        /// Numbers of partitions
        #[arg(long, value_delimiter = ',', default_value = "1,8,64", value_name = "N,N,…", value_parser = clap::value_parser!(u32).range(1..=i64::from(tenure::port::PARTITIONS_MAX)))]
        partitions: Vec<u32>,
        /// Numbers of members
        #[arg(long, value_delimiter = ',', default_value = "1,2,4,8", value_name = "N,N,…")]
        members: Vec<std::num::NonZeroUsize>,
        /// Number of events whose time from publication to handler is measured
        #[arg(long, default_value_t = 50)]
        rounds: u32,
    },
    /// Compare firing many schedules in one second with plain inserts; measure lateness and idle cost
    #[command(
        after_help = "Use an otherwise idle store: another scheduler on it would fire the schedules too.\n\nExamples:\n  tenure bench schedules --store postgres://app@db/app\n  tenure bench schedules --schedules 10000 --due 1000 --window 5s --repeats 1 -o json"
    )]
    Schedules {
        /// Number of schedules
        #[arg(long, default_value_t = 100_000, value_name = "N")]
        schedules: u64,
        /// Number of additional schedules that are due in the same second
        #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..), value_name = "N")]
        due: u64,
        /// Number of repetitions; the median counts
        #[arg(long, default_value_t = 3)]
        repeats: u32,
        /// Steady rate in ticks per second
        #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
        rate: u32,
        /// Measurement window for the steady rate and for idling
        #[arg(long, default_value = "20s", value_parser = duration, value_name = "DURATION")]
        window: Duration,
    },
    /// Claim tasks as one replica
    #[command(hide = true)]
    Replica {
        /// Queue name
        #[arg(long)]
        queue: String,
        /// Number of concurrent callers
        #[arg(long)]
        callers: usize,
    },
    /// Hold a plain advisory lock until killed
    #[command(hide = true)]
    HoldAdvisory,
    /// Keep the store open until killed
    #[command(hide = true)]
    HoldStore,
    /// Hold a plain kernel lock until killed
    #[command(hide = true)]
    HoldFlock {
        /// Lock file
        path: std::path::PathBuf,
    },
}

fn mode(text: &str) -> Result<AssignmentMode, String> {
    [AssignmentMode::Exclusive, AssignmentMode::Distributed]
        .into_iter()
        .find(|mode| mode.as_str() == text)
        .ok_or_else(|| format!("invalid mode {text:?}: use distributed or exclusive"))
}
