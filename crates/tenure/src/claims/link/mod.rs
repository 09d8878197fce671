//! The way to the leader, for what is exclusive.
//!
//! The leader listens, and says in the store where, and with what secret ([`Post`](tenure_core::port::Post)). Every other process
//! has at most one connection to it, made when it is first needed, and sends all its requests through it; answers come in
//! whatever order they are ready. The leader waits on behalf of who asks.
//!
//! **Truth** is in the store. A connection that breaks leaves requests in doubt: what was handed out for them goes back, by the
//! leader if it could not send the answer, by the asker if it does not know ([`dispel`](super::reconcile::dispel)). A connection
//! to somebody who leads no longer is of no harm: what it hands out is checked against the lease in the same transaction.
//!
//! **Bounds**: connections ([`crate::admission`]: in total, per address, and few that have not authenticated), requests per connection, the length of frames and messages, the time of a handshake, and the time
//! that a connection may be silent.

mod address;
mod client;
mod message;
mod server;

pub(crate) use self::address::bind;
pub(crate) use self::client::{Client, Connection, Told};
pub(crate) use self::server::{Remote, serve};

use crate::runtime::Runtime;
use crate::seal;

/// Fresh random bytes.
pub(crate) fn draw(runtime: &dyn Runtime) -> [u8; 32] {
    seal::draw(|| runtime.random())
}
