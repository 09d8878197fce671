//! Leader election with fencing tokens, task queues, events and schedules on the database you already have.
//!
//! ```
//! # use tenure::{Tenure, store::memory::MemoryStore};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
//! # let tenure = Tenure::builder().store(MemoryStore::new()).open().await?;
//! # let _ = || async {
//! let tenure = Tenure::open("sqlite:tenure.db").await?; // or postgres://…
//! # Ok::<_, tenure::Error>(()) };
//! tenure
//!     .elector("nightly")
//!     .start()
//!     .await?
//!     .run_while_leader(|leadership| async move {
//!         println!("this process leads under token {}", leadership.token());
//!     })
//!     .await?;
//! # tenure.close().await }
//! ```
//!
//! # Tasks
//!
//! Tasks wait in queues of the same store. A worker claims a task; the claim is a lease: it depends on the
//! heartbeats of the worker's session, carries a token, and ends by itself when the worker dies, so that the
//! task returns to its queue. See [`Worker`], [`TaskClient`] for operations on single tasks, and [`Pool`] for
//! resources that requests wait for.
//!
//! ```
//! # use tenure::{Tenure, store::memory::MemoryStore, port::NewTask};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
//! # let tenure = Tenure::builder().store(MemoryStore::new()).open().await?;
//! tenure.tasks().submit(&tenure.queue("mail")?, vec![NewTask::new("welcome")]).await?;
//! let worker = tenure
//!     .worker("mail")
//!     .kind("welcome", |task| async move { println!("attempt {} of {}", task.attempt(), task.id()) })
//!     .start()
//!     .await?;
//! worker.drain().await?;
//! # tenure.close().await }
//! ```
//!
//! # Events
//!
//! Events are published to topics of the same store, optionally in the publisher's own transaction. The members
//! of a consumer group divide the partitions of a topic among themselves and read each partition in order. See
//! [`Publisher`], [`Consumer`], and [`ConsumerBuilder::transactional`] for effects that happen exactly once.
//!
//! ```
//! # use tenure::{Tenure, store::memory::MemoryStore, port::{NewEvent, TopicSettings}};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
//! # let tenure = Tenure::builder().store(MemoryStore::new()).open().await?;
//! let orders = tenure.publisher("orders")?;
//! orders.create_topic(&TopicSettings::default()).await?;
//! orders.publish(NewEvent { key: Some("order-7".into()), ..NewEvent::new("order.paid") }).await?;
//! let mailer = tenure
//!     .consumer("orders", "mailer")
//!     .handler(|batch| async move { println!("{} events", batch.len()) })
//!     .start()
//!     .await?;
//! mailer.drain().await?;
//! # tenure.close().await }
//! ```
//!
//! # Schedules
//!
//! Schedules are kept in the same store. The processes that run a [`Scheduler`] elect one leader, which fires
//! each tick once: as an event, a task, a webhook or a call of a tick handler. This holds across crashes, clock
//! changes and daylight saving time. See [`ScheduleBuilder`] for the rule and the target of a schedule, and
//! [`Schedules`] to list and change schedules.
//!
//! ```
//! # use tenure::{ScheduleBuilder, Tenure, store::memory::MemoryStore};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
//! # let tenure = Tenure::builder().store(MemoryStore::new()).open().await?;
//! let scheduler = tenure
//!     .scheduler()
//!     .run("tidy", "*/5 * * * *", |tick| async move { println!("tidying up for {}", tick.at()) })
//!     .start()
//!     .await?;
//! let nightly = ScheduleBuilder::new("nightly", "30 2 * * MON-FRI").time_zone("Europe/Berlin");
//! scheduler.set(nightly.task("reports", "nightly")).await?;
//! scheduler.stop().await?;
//! # tenure.close().await }
//! ```
//!
//! # Names and singletons
//!
//! A registered name is held by one process of a cluster; a singleton runs in one process of a cluster. See
//! [`cluster`]. On a store they are elections and exclusive. On gossip they react quickly and need no store,
//! but each side of a network partition may have its own.
//!
//! ```
//! # use tenure::{Tenure, store::memory::MemoryStore, cluster::Registry};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let tenure = Tenure::builder().store(MemoryStore::new()).open().await?;
//! let registry = Registry::strict(&tenure);
//! let printer = registry.register("printer", [("address", "10.0.0.7:631")]).await?;
//! assert_eq!(registry.whereis("printer").await?.unwrap().metadata["address"], "10.0.0.7:631");
//! printer.unregister().await?;
//! # tenure.close().await?; Ok(()) }
//! ```
//!
//! # Guarantees
//!
//! At any moment, at most one process considers itself the leader. On SQLite all processes share the clock of one
//! machine, and the kernel reports which processes are dead. On PostgreSQL this holds while clock *rates* are
//! within 1.2× of one another. [`Leadership::is_leader`] compares the clock at every call. Every leadership carries
//! a [`Token`] that only grows. A transaction under [`Leadership::guard`] commits only while the lease is held,
//! and [`fence`] rejects old tokens on any other database.
//!
//! # Limits
//!
//! When leadership is lost, [`Elector::run_while_leader`] drops its future, and `tenure run` kills the process
//! group of its child. Tenure cannot stop any other code: such code must use the guard or the fence.
//!
//! # Two stores
//!
//! Elections can be in one store and tasks, events and schedules in another ([`TenureBuilder::election_store`],
//! [`store::paired`]): guards in the second store check the tokens of the first. [`DualElector`] moves
//! candidates from one store to another: during the move a candidate leads only while it leads in both stores,
//! so there are never two leaders.
//!
//! # Features
//!
//! `sqlite` and `postgres` (both on by default) compile those stores, `etcd` and `raft` compile stores that
//! hold elections only, and `http` compiles the client of a Tenure server. The `memory` store is always
//! available.

mod admission;
mod callback;
pub mod cluster;
pub mod election;
mod error;
mod event;
mod guard;
pub mod metrics;
pub mod open_files;
mod outage;
mod pool;
mod queue;
pub mod runtime;
mod schedule;
#[cfg(any(feature = "gossip", feature = "raft"))]
mod secrets;
pub(crate) mod session;
pub mod store;
mod stream_cipher;
mod tenure;
mod worker;

pub use tenure_core::pass_on_work;
pub use tenure_core::port;
pub use tenure_core::rules;
pub use tenure_core::rules::lease::LossReason;
pub use tenure_core::{
    BootInstant, DEFAULT_HEARTBEAT, DEFAULT_KILL_AFTER, DEFAULT_LEASE, ElectionKey, Name, NameError,
    SessionId, Timing, TimingError, Token,
};

pub use crate::election::dual::{DualElector, DualLeadership};
pub use crate::election::elector::{
    ElectionChange, Elector, ElectorBuilder, ElectorStatus, LeaderInfo, SLOTS_MAX, leaders,
};
pub use crate::election::leadership::{Leadership, TermEnd};
pub use crate::error::{Error, FenceError, GuardError};
pub use crate::event::{
    Consumer, ConsumerBuilder, EventBatch, HandlerError, IntoHandlerError, IntoHandlerResult, Outbox,
    Publisher,
};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use crate::event::{OutboxDatabase, Tx};
pub use crate::guard::{Fenceable, Guardable, GuardedLease, fence};
pub use crate::pool::{Pool, PoolRequestBuilder, ResourceLease};
pub use crate::queue::{ClaimLossReason, ClaimResult, TaskClient};
pub use crate::schedule::{ScheduleBuilder, Scheduler, SchedulerBuilder, Schedules, TickContext};
pub use crate::tenure::{Tenure, TenureBuilder};
pub use crate::worker::{
    DrainOutcome, IntoTaskError, IntoTaskResult, TaskContext, TaskError, Worker, WorkerBuilder,
};
