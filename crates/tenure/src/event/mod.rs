//! Events: published in the publisher's own transaction, read in order by the members of consumer groups.
//!
//! The store is the authority on the events and their order, and on the holder, the token and the committed
//! offset of each partition of a group. This module is the client of one process. A [`Publisher`] combines
//! concurrent calls into one statement. A [`Consumer`] is a member of a group ([`membership`]), reads ahead
//! ([`reader`]), passes events to a handler ([`delivery`]) and tracks its partitions ([`assigned_partitions`]).
//!
//! A member stops when its session is no longer trusted, but correctness does not depend on that. Every commit
//! carries the token of the partition lease, and the store rejects it if the partition has another holder. If
//! the commit is part of the handler's own transaction ([`transactional`]), all effects of the handler are
//! rolled back with it.

mod assigned_partitions;
mod batch;
mod consumer;
mod delivery;
mod handler;
mod handler_error;
mod in_flight;
mod membership;
mod outbox;
mod parked_keys;
mod publisher;
mod reader;
#[cfg(not(any(feature = "postgres", feature = "sqlite")))]
#[path = "transient_error_stub.rs"]
mod sql;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod transactional;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod transient_error;

pub use self::batch::EventBatch;
pub use self::consumer::{Consumer, ConsumerBuilder};
pub use self::handler_error::{HandlerError, IntoHandlerError, IntoHandlerResult};
pub use self::outbox::Outbox;
pub use self::publisher::Publisher;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use self::transactional::{OutboxDatabase, Tx};
