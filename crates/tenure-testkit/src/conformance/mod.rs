//! One suite for every store: what [`Book`](tenure_core::book::Book) does, each backend must do.
//!
//! A claim is a function that takes a [`Subject`], a store that is empty at first, and panics when the claim does not
//! hold. [`conformance_tests!`](crate::conformance_tests) makes one test of each:
//!
//! ```
//! use std::sync::Arc;
//! use tenure::backend::memory::Memory;
//! use tenure_testkit::conformance::{Subject, sessions};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let store = Memory::new();
//! let subject = Subject::new(move || {
//!     let store = store.clone();
//!     async move { Arc::new(store) as _ }
//! });
//! sessions::an_ended_session_never_comes_back(&subject).await;
//! # });
//! ```
//!
//! No claim waits for time to pass: a hint is awaited for as long as it takes, and nothing is concluded from silence.

mod actor;
pub mod adoption;
pub mod claims;
pub mod counted;
pub mod desk;
pub mod differential;
pub mod dozing;
pub mod elections;
pub mod events_aside;
pub mod events_commits;
pub mod events_differential;
pub mod events_groups;
pub mod events_hall;
pub mod events_people;
pub mod events_publish;
pub mod events_waking;
pub mod floor;
pub mod graphs;
pub mod leases;
pub mod limits;
pub mod modes;
pub mod office;
pub mod pools;
pub mod reasons;
pub mod recovery;
pub mod requests;
pub mod restores;
pub mod schedules_differential;
pub mod schedules_due;
pub mod schedules_firing;
pub mod schedules_hand;
pub mod schedules_people;
pub mod schedules_wall;
pub mod sessions;
pub mod settling;
mod suites;
pub mod tasks;
pub mod wakes;
pub mod work_differential;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tenure_core::port::Backend;

pub use actor::{Actor, ask, candidacy, election, new_id, new_session, seeded};

type Connecting = Pin<Box<dyn Future<Output = Arc<dyn Backend>> + Send>>;

/// A store under test, and how to become a further client of it.
pub struct Subject {
    connect: Box<dyn Fn() -> Connecting + Send + Sync>,
}

impl Subject {
    /// A store, empty at first, to which each call of `connect` opens another client.
    pub fn new<F>(connect: impl Fn() -> F + Send + Sync + 'static) -> Subject
    where
        F: Future<Output = Arc<dyn Backend>> + Send + 'static,
    {
        Subject { connect: Box::new(move || Box::pin(connect())) }
    }

    /// Another client.
    pub async fn client(&self) -> Arc<dyn Backend> {
        (self.connect)().await
    }

    /// Another client with a live session.
    pub async fn actor(&self, name: &str) -> Actor {
        Actor::open(self.client().await, name).await
    }
}
