//! The ordering torture test: sixteen writers with transactions of random length, and eight members that join,
//! leave, die and stall.
//!
//! Each member runs on its own thread, so that it can die (its runtime is dropped with all its connections, at
//! any point) and stall (its thread sleeps for longer than its lease). In the end all committed events must
//! have been handled once and in order, and commits under old tokens must have been rejected. `scripts/chaos
//! events` runs the same with real processes and failing servers, for any duration.
//!
//! In the plain scenario all handlers succeed. The harsh scenario adds three faults at once:
//!
//! - Each member has fewer partitions than concurrent calls, so events are split by key and marked when processed.
//! - Handlers fail, panic and meet transient failures, so keys are parked and retried.
//! - Partitions are reset during the run. The test undoes the effects of such a partition, and its events must be
//!   handled again, once and in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure::port::{GroupKey, NewEvent, Pause, StartOffset, TopicSettings};
use tenure::{Consumer, EventBatch, Publisher, Tenure};
use tenure_core::{Entropy, SplitMix};
use tokio::sync::{mpsc, oneshot};

use crate::events::chains::{ChainReport, GROUP, PARTITIONS, topic};
use crate::events::reader::{HandlerBehaviour, StaleCommitCallback};

/// Number of writers, and of members.
const WRITERS: u64 = 16;
const MEMBERS: usize = 8;

/// The lease of all sessions: short, so that many fit into a run.
const LEASE: Duration = Duration::from_millis(800);

/// Minimum number of published events for a meaningful run.
const ENOUGH: i64 = 100;

/// Duration of the faults.
const FAULT_DURATION: Duration = Duration::from_secs(6);

/// Rounds of the control consumer without progress before the run counts as stuck: at least 15 seconds.
const STUCK_ROUNDS: u32 = 300;

/// Additional faults.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    partitions: u32,
    behaviour: HandlerBehaviour,
    /// Whether partitions are reset.
    resets: bool,
}

impl Scenario {
    fn plain(pause_ms: u64) -> Scenario {
        Scenario { partitions: PARTITIONS, behaviour: HandlerBehaviour::never_fails(pause_ms), resets: false }
    }

    fn harsh(pause_ms: u64) -> Scenario {
        Scenario {
            partitions: 4,
            behaviour: HandlerBehaviour { pause_ms, concurrency: 4, one_fails_in: 40 },
            resets: true,
        }
    }
}

fn group() -> GroupKey {
    GroupKey::new(topic().unwrap(), GROUP.parse().unwrap())
}

/// Outcomes of stale commits.
#[derive(Debug, Default)]
struct StaleCommits {
    accepted: AtomicU64,
    rejected: AtomicU64,
}

impl StaleCommits {
    fn counter(self: &Arc<Self>) -> StaleCommitCallback {
        let stale = self.clone();
        Arc::new(move |accepted| {
            let count = if accepted { &stale.accepted } else { &stale.rejected };
            count.fetch_add(1, Ordering::SeqCst);
        })
    }
}

/// What happens to a member.
#[derive(Clone, Copy, Debug)]
enum MemberFault {
    Leave,
    Crash,
    Stall(Duration),
}

/// A member on its thread.
struct MemberThread {
    fault: mpsc::UnboundedSender<MemberFault>,
    ended_receiver: oneshot::Receiver<()>,
}

impl MemberThread {
    fn has_ended(&mut self) -> bool {
        !matches!(self.ended_receiver.try_recv(), Err(oneshot::error::TryRecvError::Empty))
    }

    async fn ends(self, fault: MemberFault) {
        // The member may have ended already.
        let _ = self.fault.send(fault);
        let _ = self.ended_receiver.await;
    }
}

/// A consumer with its own topic and group, in the same store and at the same pace. On an overloaded machine
/// nothing progresses for a while; if the control consumer progresses and the torture does not, something is wrong.
struct ControlConsumer {
    publisher: Publisher,
    received: mpsc::UnboundedReceiver<()>,
    consumer: Consumer,
}

impl ControlConsumer {
    async fn begin(admin: &Tenure) -> ControlConsumer {
        let publisher = admin.publisher("control").unwrap();
        let settings = TopicSettings { partitions: 1, ..TopicSettings::default() };
        while publisher.create_topic(&settings).await.is_err() {}
        let (sender, received) = mpsc::unbounded_channel();
        let consumer = loop {
            let sender = sender.clone();
            let handler = move |_: EventBatch| {
                let _ = sender.send(());
                async {}
            };
            match admin.consumer("control", "control").handler(handler).start().await {
                Ok(consumer) => break consumer,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        ControlConsumer { publisher, received, consumer }
    }

    /// Waits until one of its events was published and handled.
    async fn round(&mut self) {
        while self.publisher.publish(NewEvent::new("round")).await.is_err() {}
        self.received.recv().await;
    }

    async fn end(self) {
        let _ = self.consumer.drain().await;
    }
}

async fn open(url: &str, name: &str) -> Tenure {
    loop {
        match Tenure::builder().url(url).name(name).lease(LEASE).open().await {
            Ok(tenure) => return tenure,
            // A transient failure, for example a locked SQLite file.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

fn print_seed() -> u64 {
    let seed = std::env::var("TENURE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| tenure::runtime::random() >> 32);
    println!("seed {seed}: TENURE_SEED={seed} repeats this run");
    seed
}

fn check(report: &ChainReport, stale: &StaleCommits) {
    let (accepted, rejected) = (stale.accepted.load(Ordering::SeqCst), stale.rejected.load(Ordering::SeqCst));
    println!("{report:?}; stale commits: {accepted} accepted, {rejected} rejected");
    assert_eq!((report.lost, report.reordered, report.doubled), (0, 0, 0), "{:#?}", report.violations);
    assert!(report.violations.is_empty(), "{:#?}", report.violations);
    assert_eq!(accepted, 0);
    assert!(rejected > 0, "no stale commit was rejected: the tokens were not tested");
    assert!(report.published > 100, "too few events for a meaningful run");
}

macro_rules! torture_on {
    ($dialect:ident, $patience_ms:literal) => {
        mod $dialect {
            use super::*;
            use crate::events::{chains::$dialect as chains, reader::$dialect as reader};

            type Db = <super::pools::$dialect as super::pools::Pools>::Db;

            /// Starts a member on its own thread. It consumes until it receives a fault.
            fn start_member(
                url: &str,
                name: String,
                late: &mpsc::UnboundedSender<EventBatch>,
                behaviour: HandlerBehaviour,
            ) -> MemberThread {
                let (fault, mut faults) = mpsc::unbounded_channel();
                let (ended, ended_receiver) = oneshot::channel();
                let (url, late) = (url.to_owned(), late.clone());
                std::thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    runtime.block_on(async {
                        let tenure = open(&url, &name).await;
                        let pool = super::pools::$dialect::connect(&url, 4).await;
                        let Ok(consumer) = reader::join(&tenure, &pool, late, behaviour).await else {
                            return;
                        };
                        while let Some(fault) = faults.recv().await {
                            match fault {
                                MemberFault::Leave => {
                                    let _ = consumer.drain().await;
                                    let _ = tenure.close().await;
                                    return;
                                }
                                // Returning drops the runtime at once, without a close or a drain.
                                MemberFault::Crash => return,
                                MemberFault::Stall(time) => std::thread::sleep(time),
                            }
                        }
                    });
                    drop(runtime);
                    let _ = ended.send(());
                });
                MemberThread { fault, ended_receiver }
            }

            pub(super) async fn run(url: &str, scenario: Scenario) {
                let mut dice = SplitMix::new(print_seed());
                let admin = open(url, "admin").await;
                let settings = TopicSettings { partitions: scenario.partitions, ..TopicSettings::default() };
                admin.store().set_topic(&topic().unwrap(), &settings).await.unwrap();
                let pool = super::pools::$dialect::connect(url, 20).await;
                chains::create(&pool).await.unwrap();
                let stale = Arc::new(StaleCommits::default());
                // Commits kept batches again once their tokens are old. It runs longer than the members that kept them.
                let (late, lost) = mpsc::unbounded_channel();
                tokio::spawn(reader::send_stale_commits(admin.clone(), pool.clone(), lost, stale.counter()));

                let (stop, stopped) = tokio::sync::watch::channel(false);
                let writers: Vec<_> = (0..WRITERS)
                    .map(|writer| {
                        let (mut dice, pool) = (SplitMix::new(dice.next_u64()), pool.clone());
                        let stopped = stopped.clone();
                        tokio::spawn(async move {
                            while !*stopped.borrow() {
                                // The outcome of a failed write is unknown; the oracle reads it from the tables.
                                let _ = chains::write(&pool, &mut dice, $patience_ms, writer).await;
                                tokio::time::sleep(Duration::from_millis(dice.next_u64() % 30)).await;
                            }
                        })
                    })
                    .collect();

                let mut members: Vec<MemberThread> = (0..MEMBERS)
                    .map(|n| start_member(url, format!("member-{n}"), &late, scenario.behaviour))
                    .collect();
                let until = tenure::runtime::now() + FAULT_DURATION;
                let mut resets = 0;
                // An overloaded machine needs longer than FAULT_DURATION for a meaningful run.
                loop {
                    let published = chains::counts(&pool).await.map_or(0, |(published, _)| published);
                    let is_meaningful = published > ENOUGH
                        && stale.rejected.load(Ordering::SeqCst) > 0
                        && (resets > 0 || !scenario.resets);
                    if is_meaningful && tenure::runtime::now() >= until {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(150 + dice.next_u64() % 300)).await;
                    if scenario.resets && dice.next_u64() % 5 == 0 {
                        let partition = u32::try_from(dice.next_u64()).unwrap_or(0) % scenario.partitions;
                        resets += u32::from(reset(&admin, &pool, partition, scenario.partitions).await);
                    }
                    let n = (dice.next_u64() % MEMBERS as u64) as usize;
                    if members[n].has_ended() {
                        members[n] = start_member(url, format!("member-{n}"), &late, scenario.behaviour);
                        continue;
                    }
                    let longer = LEASE.mul_f64(1.5) + Duration::from_millis(dice.next_u64() % 800);
                    let fault = [
                        MemberFault::Leave,
                        MemberFault::Crash,
                        MemberFault::Stall(longer),
                        MemberFault::Stall(longer),
                    ];
                    let _ = members[n].fault.send(fault[(dice.next_u64() % 4) as usize]);
                }
                stop.send(true).unwrap();
                for writer in writers {
                    writer.await.unwrap();
                }
                let restart = |n: usize| start_member(url, format!("member-{n}"), &late, scenario.behaviour);
                wait_until_handled(&admin, &pool, &mut members, restart).await;
                for member in members {
                    member.ends(MemberFault::Leave).await;
                }
                println!("{resets} resets");
                check(&chains::evaluate(&pool).await.unwrap(), &stale);
                admin.close().await.unwrap();
            }

            /// Resets a partition to its beginning and undoes its effects. While the group is paused, no new
            /// delivery starts; running ones are rejected, since the tokens are new. Returns whether the reset
            /// happened.
            async fn reset(admin: &Tenure, pool: &sqlx::Pool<Db>, partition: u32, partitions: u32) -> bool {
                let (store, group) = (admin.store(), group());
                let pause = Pause { paused_by: "torture".into(), reason: String::new(), paused_at_ms: 0 };
                if store.set_group_paused(&group, Some(&pause)).await.is_err() {
                    return false;
                }
                let reset = store.reset_group(&group, StartOffset::Earliest, Some(partition), false).await;
                println!("partition {partition} is reset: {reset:?}");
                let reset = reset.is_ok();
                // The partition is reset, so its effects must be undone.
                while reset && chains::delete_effects(pool, partition, partitions).await.is_err() {}
                while store.set_group_paused(&group, None).await.is_err() {}
                reset
            }

            /// Waits until all events are handled. Gives up if no event is handled while the control consumer
            /// progresses. Replaces members that end meanwhile because of an earlier fault.
            async fn wait_until_handled(
                admin: &Tenure,
                pool: &sqlx::Pool<Db>,
                members: &mut [MemberThread],
                restart: impl Fn(usize) -> MemberThread,
            ) {
                let mut control = ControlConsumer::begin(admin).await;
                let (mut last, mut idle) = (-1, 0);
                while idle < STUCK_ROUNDS {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    for (n, member) in members.iter_mut().enumerate() {
                        if member.has_ended() {
                            *member = restart(n);
                        }
                    }
                    let Ok((published, effects)) = chains::counts(pool).await else { continue };
                    if effects >= published {
                        control.end().await;
                        return;
                    }
                    control.round().await;
                    idle = if effects > last { 0 } else { idle + 1 };
                    last = effects;
                }
                println!("no progress: {:#?}", admin.store().group(&group()).await);
            }
        }
    };
}

/// Connection pools of the user.
mod pools {
    pub(super) trait Pools {
        type Db: sqlx::Database;
    }

    #[allow(non_camel_case_types)]
    pub(super) struct sqlite;

    impl Pools for sqlite {
        type Db = sqlx::Sqlite;
    }

    impl sqlite {
        pub(super) async fn connect(url: &str, most: u32) -> sqlx::SqlitePool {
            let options: sqlx::sqlite::SqliteConnectOptions = url.parse().unwrap();
            let options = options.busy_timeout(std::time::Duration::from_secs(5));
            sqlx::sqlite::SqlitePoolOptions::new().max_connections(most).connect_with(options).await.unwrap()
        }
    }

    #[allow(non_camel_case_types)]
    pub(super) struct postgres;

    impl Pools for postgres {
        type Db = sqlx::Postgres;
    }

    impl postgres {
        pub(super) async fn connect(url: &str, most: u32) -> sqlx::PgPool {
            sqlx::postgres::PgPoolOptions::new().max_connections(most).connect(url).await.unwrap()
        }
    }
}

torture_on!(sqlite, 2);
torture_on!(postgres, 20);

async fn on_sqlite(scenario: Scenario) {
    let folder = tempfile::tempdir().unwrap();
    sqlite::run(&format!("sqlite:{}", folder.path().join("torture.db").display()), scenario).await;
}

async fn on_postgres(scenario: Scenario) {
    let database = crate::support::migrated().await;
    postgres::run(database.url(), scenario).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_no_event_is_lost_reordered_or_handled_twice() {
    on_sqlite(Scenario::plain(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_no_event_is_lost_reordered_or_handled_twice() {
    on_postgres(Scenario::plain(40)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_with_failures_concurrency_and_resets_no_event_is_lost_reordered_or_handled_twice() {
    on_sqlite(Scenario::harsh(3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_with_failures_concurrency_and_resets_no_event_is_lost_reordered_or_handled_twice() {
    on_postgres(Scenario::harsh(20)).await;
}
