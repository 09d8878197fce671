//! Events: published in the publisher's own transaction, read in order by the members of groups.
//!
//! The store owns the truth: which events there are and in which order, who has which slot of a group, under which token, and how
//! far it is read. This module is how one process takes part: a [`Publisher`] whose calls at the same time share a statement, and a
//! [`Consumer`], which stays in a group for as long as it runs ([`stay`]), reads ahead ([`reader`]), gives what it read to a handler
//! ([`delivery`]) and remembers what it has in hand ([`shares`]).
//!
//! A member trusts that a share is its own while its session is trusted, and stops when it is not; but nothing hangs on that. What it
//! says carries the share's token, and the store refuses it if the share has changed hands; and if it is said in the handler's own
//! transaction ([`transactional`]), all that the handler did is refused with it.

mod batch;
mod consumer;
mod delivery;
mod handler;
mod lanes;
mod outbox;
mod publisher;
mod reader;
mod report;
mod shares;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod sql;
#[cfg(not(any(feature = "postgres", feature = "sqlite")))]
#[path = "no_sql.rs"]
mod sql;
mod stay;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod transactional;
mod waits;

pub use self::batch::Batch;
pub use self::consumer::{Consumer, ConsumerBuilder};
pub use self::outbox::Outbox;
pub use self::publisher::Publisher;
pub use self::report::{Cause, Handled, HandlerError};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use self::transactional::{OutboxDatabase, Tx};
