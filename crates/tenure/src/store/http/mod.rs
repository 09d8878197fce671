//! A Tenure server as a store: `http://`, `https://`, and `http+unix:` for a socket on this machine.
//!
//! All state is in the server's own store, and the guarantees are those of that store. One call is one
//! request. Any replica can serve any call, so several may be given (`http://a:8368,b:8368`), and replicas
//! that the servers report are used too. A replica that does not respond is tried last from then on; the
//! failed call goes to the next replica at once, where a repetition is safe:
//!
//! | call | repetition when the outcome is unknown |
//! |---|---|
//! | heartbeats, `end_session`, `leave_election`, `expire_session`, `observe`, all reads | idempotent |
//! | `open_session` | the second response is *session ended*, because the id was used: a heartbeat then tells whether the first call succeeded |
//! | `join_election` | the last call wins, and both are equal |
//! | `take_lease` | compare-and-swap on the observed token: at most one of two calls succeeds. If that was the one with the lost response, the second reports *changed*; the lease machine then finds the lease under its own session and releases it before it campaigns again |
//! | `release_lease` | compare-and-swap on session and token: the second call has no effect |
//! | `request_leader` | bound to a term; a repeated request is one request |
//! | `put_credential` | the last call wins, and both are equal |
//! | `set_election_paused`, `set_queue_paused`, `set_worker_approval`, `apply_task_action` | *not* repeated: the response "unchanged" would be wrong |
//! | `submit` | only if every task has an idempotency key: the second call finds the first tasks |
//! | `claim` | *not* repeated: the worker looks up what the first call claimed ([`held_claims`](tenure_core::port::TaskStore::held_claims)) |
//! | `settle` | a second completion under one token succeeds; any other repeated settlement reports a lost claim and changes nothing |
//! | `create_pool_request` | the idempotency key returns the same request |
//! | `publish` | only if every event has an idempotency key: the second call finds the first events |
//! | `join_group`, `leave_group`, `release_partitions`, `register_topic_waiter`, `set_topic`, `set_group`, `set_webhook` | idempotent |
//! | `take_partitions` | compare-and-swap on the observed token: at most one of two calls succeeds. If that was the one with the lost response, the assignment shows the partition under the session with an unknown token: the member releases it and takes it again |
//! | `commit_partitions` | a repeated offset is harmless; with anything else in it, *not* repeated |
//! | `set_schedule` | only without a precondition: the last call wins, and both are equal |
//! | `delete_schedule` | idempotent |
//! | `set_schedule_paused`, `fire_manually` | *not* repeated: the result of the first call would be lost, and *now* would be another tick |
//! | `reset_group`, `apply_dead_letter_action`, `set_group_paused` | *not* repeated: the result of the first call would be lost |
//!
//! The server routes claims: for the client every queue and pool looks distributed.
//!
//! To the lease machine, a repeated call is one call: it reads the clock before the first attempt, so a
//! second attempt never extends the lease.
//!
//! There is no transaction to guard over HTTP: see [`fence`](crate::fence) for writes to your own database,
//! or use the token itself.

mod access;
mod access_token;
mod address;
mod client;
mod election_admin;
mod elections;
mod events;
mod notifications;
mod pools;
mod response;
mod schedules;
mod task_admin;
mod tasks;

pub use self::election_admin::GUARANTEES;

use std::sync::Arc;

use futures_core::future::BoxFuture;
use tenure_core::port::{Store, StoreError};

use self::address::Address;
use self::client::ServerClient;
use super::StoreOptions;

/// Version of the internal protocol of this client. The server reports its own in the handshake.
const PROTOCOL: u32 = 1;

/// Client of one Tenure server, or of several on one store.
#[derive(Clone)]
pub struct HttpStore {
    client: Arc<ServerClient>,
}

impl HttpStore {
    /// Connect to a server with a compatible protocol.
    pub async fn connect(options: &StoreOptions) -> Result<HttpStore, StoreError> {
        let address: Address = options.url.parse()?;
        let client = Arc::new(ServerClient::new(&address, &options.access)?);
        client.handshake_servers().await?;
        Ok(HttpStore { client })
    }
}

/// Constructor for the store registry.
pub(super) fn open_url(options: &StoreOptions) -> BoxFuture<'_, Result<Arc<dyn Store>, StoreError>> {
    Box::pin(async { Ok(Arc::new(HttpStore::connect(options).await?) as Arc<dyn Store>) })
}
