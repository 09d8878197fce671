//! Names that one process of all has, and singletons that run in one of them.
//!
//! A [`Registry`] gives unique names to processes: an address book that can not hold two entries of one name. A [`Supervisor`]
//! spreads named singletons over the processes that offer to run them, moves as few as can be when processes come and go, hands
//! their state on when they move in good order, and starts them elsewhere when a process dies.
//!
//! Both stand on one of two footings, and which one is in their type:
//!
//! | | [`Strict`]: any store | `Soft`: gossip |
//! |---|---|---|
//! | two at once | never | while a netsplit lasts, and until its two sides have met |
//! | token | yes: fences and guards | none, by type |
//! | where the store can not be reached | nobody has it | there is no store |
//! | after a crash | a lease; on SQLite and in memory, at once | the failure detector's time |
//! | needs | a store (`memory:` too: singletons of one process) | that members reach each other |
//!
//! **Truth** is in the store's leases, or in what each member says of itself. When the store is away, what a process has is over when
//! its trust runs out; whoever registered is told ([`Registered::ended`]), and a singleton is dropped.

mod registry;
mod restarts;
mod singleton;
#[cfg(feature = "gossip")]
mod soft;
mod strict;
mod supervisor;

pub use tenure_core::cluster::{
    CAPACITY_MAX, HANDOFF_MAX, Metadata, MetadataError, NameChange, NameView, Resolver, TooLarge,
};

pub use self::registry::{Ended, Footing, Registered, Registry, RegistryError};
pub use self::singleton::Singleton;
#[cfg(feature = "gossip")]
pub use self::soft::Soft;
pub use self::strict::Strict;
pub use self::supervisor::{Supervisor, SupervisorBuilder, SupervisorError};

/// The namespace of the elections that names are, unless another is chosen.
pub const NAMES: &str = "names";

/// The namespace of the elections that singletons are, unless another is chosen.
pub const SINGLETONS: &str = "singletons";
