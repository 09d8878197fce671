//! The connection to the broker, for exclusive queues and pools.
//!
//! The broker listens and publishes its address and a secret in the store
//! ([`BrokerEndpoint`](tenure_core::port::BrokerEndpoint)). Every other process opens at most one connection to
//! it, on first use, and sends all its requests through it. Replies arrive in any order. The broker waits on
//! behalf of its clients.
//!
//! **Consistency.** The store is the authority. A broken connection leaves requests of unknown outcome. The
//! broker releases tasks that it could not send; the client finds and releases the others
//! ([`reconcile_claims`](super::reconcile::reconcile_claims)). A connection to a former broker is harmless: the
//! assigning transaction checks the lease.
//!
//! **Limits.** The broker limits the number of connections ([`crate::admission`]: in total, per address, and
//! unauthenticated), the requests per connection, the length of frames and messages, the duration of a handshake,
//! and the time that a connection may be silent.

mod address;
mod client;
mod message;
mod server;

pub(crate) use self::address::bind;
pub(crate) use self::client::{BrokerClient, BrokerConnection, BrokerReply};
pub(crate) use self::server::{RemoteClaim, serve};

use crate::runtime::Runtime;
use crate::stream_cipher;

/// 32 random bytes.
pub(crate) fn random_bytes(runtime: &dyn Runtime) -> [u8; 32] {
    stream_cipher::nonce(|| runtime.random())
}
