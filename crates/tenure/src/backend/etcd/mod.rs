//! etcd: `etcd://HOST:PORT`, several as `etcd://A:2379,B:2379,C:2379`, and `etcds://…` over TLS.
//!
//! # What is kept
//!
//! | key | value | lives |
//! |---|---|---|
//! | `/tenure/sessions/ID` | a session, its beat included | for as long as the session; on an etcd lease, so that none is left for ever |
//! | `/tenure/ended/ID` | a session that is over | for a minute or so, on the same lease: an id is used once |
//! | `/tenure/elections/NAMESPACE/NAME` | all that is known of an election, one document | for ever: its tokens must not be granted again |
//! | `/tenure/leases/NAMESPACE/NAME/SLOT` | who leads | as long as they lead |
//! | `/tenure/parts/ID/NAMESPACE/NAME` | that a session takes part in an election | as long as it does, on its etcd lease |
//! | `/tenure/floor` | below which no revision is a token | for ever, once etcd was restored from a backup |
//! | `/tenure/asks/ID/NAMESPACE/NAME/SLOT` | what is asked of a leader | until the term is over |
//!
//! # How it changes
//!
//! A change is worked out by the reference store ([`Book`](tenure_core::book::Book)) on what was read, and written in one etcd transaction that compares the
//! revisions of all that it changes, and that the session which acts is still there. If anything moved, it is read and worked out
//! anew. So whatever the reference store decides, this one does, one change after the other.
//!
//! # Token
//!
//! The token of a grant *is* the revision of the transaction that granted it: etcd's own number, which only ever grows. The key of
//! the lease has it as its `mod_revision`, so whoever writes to the same etcd can have etcd itself refuse what a former
//! leader writes, by one comparison in the transaction:
//!
//! ```text
//! mod("/tenure/leases/default/nightly/0") = "TOKEN"
//! ```
//!
//! etcd's revisions go back when it is restored from a backup. Whoever was there before notices: trust ends at once, nobody leads until
//! all leaders of before must have stopped, and revisions are used up until they are greater than all that was seen before.
//!
//! # Trust
//!
//! As everywhere: a holder trusts its beat for two thirds of its lease by its own clock, and a candidate takes over after it has watched the beat
//! stand still for a whole lease by its own. etcd's clock takes no part. The etcd lease under a session is much longer, and only sweeps up after
//! processes that nobody watched.
//!
//! # Why the gateway
//!
//! etcd is spoken to in JSON, through the gateway that every member has: the same client as for a Tenure server, no code generator and no
//! `protoc` on the machine that builds.

mod address;
mod directory;
mod gateway;
mod hints;
mod memo;
mod message;
mod read;
mod records;
mod store;

use std::sync::Arc;

use futures_core::future::BoxFuture;
use tenure_core::port::{
    Backend, Bureau, Calendar, Desk, Events, Office, Pools, Scheduling, StoreError, Tasks,
};

use self::address::Address;
pub use self::directory::PROMISES;
use self::gateway::Gateway;
use self::memo::Memo;
use super::StoreOptions;

/// An etcd cluster, for elections.
#[derive(Clone)]
pub struct Etcd {
    gateway: Arc<Gateway>,
    memo: Arc<Memo>,
}

impl Etcd {
    /// Finds a member that answers.
    pub async fn connect(options: &StoreOptions) -> Result<Etcd, StoreError> {
        let address: Address = options.url.parse()?;
        let gateway = Arc::new(Gateway::new(&address, &options.access)?);
        gateway.meet().await?;
        Ok(Etcd { gateway, memo: Arc::default() })
    }
}

impl Office for Etcd {}
impl Tasks for Etcd {
    fn keeps_work(&self) -> bool {
        false
    }
}

impl Desk for Etcd {}
impl Pools for Etcd {}
impl Events for Etcd {}
impl Bureau for Etcd {}
impl Scheduling for Etcd {}
impl Calendar for Etcd {}

/// For the registry.
pub(super) fn open_url(options: &StoreOptions) -> BoxFuture<'_, Result<Arc<dyn Backend>, StoreError>> {
    Box::pin(async { Ok(Arc::new(Etcd::connect(options).await?) as Arc<dyn Backend>) })
}
