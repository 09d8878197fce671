//! Conformance suite: every store must behave like the reference models in [`tenure_core::model`].
//!
//! A conformance test is a function that takes an empty [`StoreUnderTest`] and panics if the store misbehaves.
//! [`conformance_tests!`](crate::conformance_tests) creates one test per function:
//!
//! ```
//! use std::sync::Arc;
//! use tenure::store::memory::MemoryStore;
//! use tenure_testkit::conformance::{StoreUnderTest, sessions};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let store = MemoryStore::new();
//! let subject = StoreUnderTest::new(move || {
//!     let store = store.clone();
//!     async move { Arc::new(store) as _ }
//! });
//! sessions::an_ended_session_stays_ended(&subject).await;
//! # });
//! ```
//!
//! No test waits for time to pass. A test waits for a notification without a timeout of its own, and never treats a
//! missing notification as a result.

pub mod access;
pub mod adoption;
pub mod claims;
pub mod dependencies;
pub mod differential;
pub mod elections;
pub mod event_admin;
pub mod events_commits;
pub mod events_differential;
pub mod events_groups;
pub mod events_parked;
pub mod events_publish;
pub mod leader_requests;
pub mod leases;
pub mod limits;
pub mod modes;
pub mod notifications;
pub mod pools;
pub mod queue_waiters;
pub mod recovery;
pub mod restores;
pub mod schedule_admin;
pub mod schedules_differential;
pub mod schedules_due;
pub mod schedules_firing;
pub mod schedules_manual_fire;
pub mod sessions;
pub mod settle;
mod suites;
pub mod task_admin;
pub mod tasks;
pub mod test_queue;
pub mod test_schedules;
mod test_session;
pub mod test_topic;
pub mod token_check;
pub mod topic_waiters;
pub mod wait_reasons;
pub mod work_differential;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tenure_core::port::Store;

pub use test_session::{TestSession, candidacy, election, leader_request, new_id, new_session, seeded};

type ConnectFuture = Pin<Box<dyn Future<Output = Arc<dyn Store>> + Send>>;

/// A store under test, and a way to open further clients.
pub struct StoreUnderTest {
    connect: Box<dyn Fn() -> ConnectFuture + Send + Sync>,
}

impl StoreUnderTest {
    /// Creates a test subject from an initially empty store. Each call of `connect` opens another client of that store.
    pub fn new<F>(connect: impl Fn() -> F + Send + Sync + 'static) -> StoreUnderTest
    where
        F: Future<Output = Arc<dyn Store>> + Send + 'static,
    {
        StoreUnderTest { connect: Box::new(move || Box::pin(connect())) }
    }

    /// Another client.
    pub async fn client(&self) -> Arc<dyn Store> {
        (self.connect)().await
    }

    /// Another client with a live session.
    pub async fn session(&self, name: &str) -> TestSession {
        TestSession::open(self.client().await, name).await
    }
}
