//! *One leads, many share.* Elections with fencing tokens, on the database you already have.
//!
//! ```
//! # use tenure::{Tenure, backend::memory::Memory};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
//! # let tenure = Tenure::builder().store(Memory::new()).open().await?;
//! # let _ = || async {
//! let tenure = Tenure::open("sqlite:tenure.db").await?; // or postgres://…
//! # Ok::<_, tenure::Error>(()) };
//! tenure
//!     .elector("nightly")
//!     .start()
//!     .await?
//!     .run_while_leader(|leadership| async move {
//!         println!("only one of us is here, under token {}", leadership.token());
//!     })
//!     .await?;
//! # tenure.close().await }
//! ```
//!
//! # Work
//!
//! Tasks wait in queues of the same store; workers claim them, and a claim is a lease like any other: it lives on the worker's
//! session, carries a token, and returns to the queue by itself. See [`Worker`], [`Claims`] for the API one by one, and
//! [`Pool`] for resources that requests wait for.
//!
//! ```
//! # use tenure::{Tenure, backend::memory::Memory, port::NewTask};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
//! # let tenure = Tenure::builder().store(Memory::new()).open().await?;
//! tenure.claims().submit(&tenure.queue("mail")?, vec![NewTask::new("welcome")]).await?;
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
//! Events are published to topics of the same store, in the publisher's own transaction if it wants, and read in order by the
//! members of groups, who share a topic's slots. See [`Publisher`], [`Consumer`], and
//! [`ConsumerBuilder::transactional`] for effects that happen exactly once.
//!
//! ```
//! # use tenure::{Tenure, backend::memory::Memory, port::{NewEvent, TopicSettings}};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
//! # let tenure = Tenure::builder().store(Memory::new()).open().await?;
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
//! Schedules are kept in the same store, and fired by one process of all that run a [`Scheduler`]: each tick once, as an event, a
//! task, a call or a closure, through crashes, clocks that are set and daylight saving. See [`ScheduleBuilder`] for when and what,
//! and [`Schedules`] for those that there are.
//!
//! ```
//! # use tenure::{ScheduleBuilder, Tenure, backend::memory::Memory};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
//! # let tenure = Tenure::builder().store(Memory::new()).open().await?;
//! let scheduler = tenure
//!     .scheduler()
//!     .run("tidy", "*/5 * * * *", |tick| async move { println!("tidying up for {}", tick.at()) })
//!     .start()
//!     .await?;
//! let nightly = ScheduleBuilder::new("nightly", "30 2 * * MON-FRI").zone("Europe/Berlin");
//! scheduler.set(nightly.task("reports", "nightly")).await?;
//! scheduler.stop().await?;
//! # tenure.close().await }
//! ```
//!
//! # Names and singletons
//!
//! A name that one process of all has, and a task that runs in one of them: see [`cluster`]. On a store they are elections, and there
//! are never two; on gossip they are quick, need no store, and two sides of a netsplit may each have one.
//!
//! ```
//! # use tenure::{Tenure, backend::memory::Memory, cluster::Registry};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let tenure = Tenure::builder().store(Memory::new()).open().await?;
//! let registry = Registry::strict(&tenure);
//! let printer = registry.register("printer", [("address", "10.0.0.7:631")]).await?;
//! assert_eq!(registry.whereis("printer").await?.unwrap().metadata["address"], "10.0.0.7:631");
//! printer.unregister().await?;
//! # tenure.close().await?; Ok(()) }
//! ```
//!
//! # What it promises
//!
//! At most one process believes that it leads, at any moment: on SQLite because the kernel knows who is dead, on
//! PostgreSQL for clock *rates* within 1.2× of one another. Belief is a comparison with the clock at every call
//! ([`Leadership::is_leader`]), never a flag. Every leadership carries a [`Token`] that only ever grows; a transaction
//! under [`Leadership::guard`] can only commit while the lease is held, and [`fence`] refuses old tokens on any
//! other database.
//!
//! # What it does not promise
//!
//! Code that runs on after leadership was lost, and neither checks nor carries the token, is not stopped by magic:
//! [`Elector::run_while_leader`] drops its future, `tenure run` kills its child's whole process group, and everything
//! else needs the guard or the fence.
//!
//! # Two stores
//!
//! Elections can live in one store and work in another ([`TenureBuilder::elect`], [`backend::paired`]): what is guarded in the second is guarded by the tokens
//! of the first. And candidates move from one store to another, with no moment of two leaders, while they lead only where they lead in both ([`Moving`]).
//!
//! # Features
//!
//! `sqlite` and `postgres` (both on by default) compile those backends, `etcd` and `raft` those that only elect, `http` the one that uses a Tenure server;
//! `memory` is always there.

mod admission;
pub mod backend;
mod callback;
mod claims;
pub mod cluster;
mod driver;
mod elector;
mod error;
mod events;
mod guard;
mod leadership;
pub mod metrics;
mod moving;
pub mod open_files;
pub mod operator;
mod outage;
mod pool;
pub mod runtime;
mod scheduler;
mod seal;
#[cfg(any(feature = "gossip", feature = "raft"))]
mod secrets;
mod tenure;
mod worker;

pub use tenure_core::lease::Loss;
pub use tenure_core::pass_on_work;
pub use tenure_core::port;
pub use tenure_core::{
    DEFAULT_HEARTBEAT, DEFAULT_KILL_AFTER, DEFAULT_LEASE, ElectionKey, Moment, Name, NameError, SessionId,
    Timing, TimingError, Token, claim, election, event, schedule, soft,
};

pub use crate::claims::{Claimed, Claims, Stop};
pub use crate::elector::{Change, Elector, ElectorBuilder, Leader, SLOTS_MAX, Status, leaders};
pub use crate::error::{Error, FenceError, GuardError};
pub use crate::events::{Batch, Cause, Consumer, ConsumerBuilder, Handled, HandlerError, Outbox, Publisher};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use crate::events::{OutboxDatabase, Tx};
pub use crate::guard::{Claim, Fenced, Guarded, fence};
pub use crate::leadership::{Leadership, Over};
pub use crate::moving::{Both, Moving};
pub use crate::pool::{Grant, Pool, PoolRequest};
pub use crate::scheduler::{ScheduleBuilder, Scheduler, SchedulerBuilder, Schedules, Tick};
pub use crate::tenure::{Tenure, TenureBuilder};
pub use crate::worker::{Drained, Reason, Report, TaskContext, TaskError, Worker, WorkerBuilder};
