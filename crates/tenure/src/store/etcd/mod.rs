//! etcd store: `etcd://HOST:PORT`, several members as `etcd://A:2379,B:2379,C:2379`, and `etcds://…` for TLS.
//!
//! # Keys
//!
//! | key | value | lifetime |
//! |---|---|---|
//! | `/tenure/sessions/ID` | a session with its heartbeat counter | while the session lives; attached to an etcd lease |
//! | `/tenure/ended/ID` | an ended session | about a minute, on the same etcd lease; a session id is never reused |
//! | `/tenure/elections/NAMESPACE/NAME` | the whole state of an election, one document | permanent, because its tokens must not repeat |
//! | `/tenure/leases/NAMESPACE/NAME/SLOT` | the leader of a slot | while it leads |
//! | `/tenure/candidacies/ID/NAMESPACE/NAME` | a session takes part in an election | while it does, on its etcd lease |
//! | `/tenure/min-token` | minimum revision for new tokens | permanent, once etcd was restored from a backup |
//! | `/tenure/leader-requests/ID/NAMESPACE/NAME/SLOT` | a request to a leader | until the term ends |
//!
//! # Changes
//!
//! The reference implementation ([`Elections`](tenure_core::model::Elections)) computes a change from the keys that
//! were read. One etcd transaction writes the result; it compares the revisions of all changed keys and checks that the
//! acting session still exists. If a comparison fails, the change is read and computed again. The etcd store therefore
//! makes the same decisions as the reference implementation, one change at a time.
//!
//! # Token
//!
//! The token of a grant is the revision of the transaction that granted it, which only grows. The lease key has it as
//! its `mod_revision`. An application that writes to the same etcd cluster can therefore make etcd reject the writes of
//! a former leader by one comparison in its transaction:
//!
//! ```text
//! mod("/tenure/leases/default/nightly/0") = "TOKEN"
//! ```
//!
//! The revisions decrease when etcd is restored from a backup. A process that used the cluster before detects this:
//! trust ends at once, no lease is granted until the trust of all earlier leaders has expired, and revisions are
//! consumed until they exceed all revisions seen before the restore.
//!
//! # Trust
//!
//! A leader trusts its lease for two thirds of the lease duration after a heartbeat, on its own clock. A candidate
//! takes over after it has seen no new heartbeat for a whole lease duration, on its own clock. The clock of etcd is not
//! used. The etcd lease of a session is much longer and only removes keys of processes that disappeared without a
//! successor.
//!
//! # JSON gateway
//!
//! The store uses the JSON gateway that every etcd member has. It shares the HTTP client with the Tenure server client
//! and needs no code generator and no `protoc` at build time.

mod address;
mod admin;
mod cache;
mod gateway;
mod message;
mod read;
mod records;
mod store;
mod watch;

use std::sync::Arc;

use futures_core::future::BoxFuture;
use tenure_core::port::{
    AccessStore, EventAdmin, EventStore, PoolStore, ScheduleAdmin, ScheduleStore, Store, StoreError,
    TaskAdmin, TaskStore,
};

use self::address::Address;
pub use self::admin::GUARANTEES;
use self::cache::EtcdCache;
use self::gateway::Gateway;
use super::StoreOptions;

/// The etcd store. It supports elections only.
#[derive(Clone)]
pub struct EtcdStore {
    gateway: Arc<Gateway>,
    cache: Arc<EtcdCache>,
}

impl EtcdStore {
    /// Connect to a member that answers.
    pub async fn connect(options: &StoreOptions) -> Result<EtcdStore, StoreError> {
        let address: Address = options.url.parse()?;
        let gateway = Arc::new(Gateway::new(&address, &options.access)?);
        gateway.check_access().await?;
        Ok(EtcdStore { gateway, cache: Arc::default() })
    }
}

impl AccessStore for EtcdStore {}
impl TaskStore for EtcdStore {
    fn supports_work(&self) -> bool {
        false
    }
}

impl TaskAdmin for EtcdStore {}
impl PoolStore for EtcdStore {}
impl EventStore for EtcdStore {}
impl EventAdmin for EtcdStore {}
impl ScheduleStore for EtcdStore {}
impl ScheduleAdmin for EtcdStore {}

/// Open the store for the registry.
pub(super) fn open_url(options: &StoreOptions) -> BoxFuture<'_, Result<Arc<dyn Store>, StoreError>> {
    Box::pin(async { Ok(Arc::new(EtcdStore::connect(options).await?) as Arc<dyn Store>) })
}
