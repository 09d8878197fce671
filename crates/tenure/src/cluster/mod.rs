//! Registered names and singletons.
//!
//! A [`Registry`] registers unique names of processes, so that others can find their address. A [`Supervisor`]
//! distributes named singletons among the processes that offer to run them. It moves the minimum number when
//! processes come and go, hands over their state when they stop in an orderly way, and starts them elsewhere
//! when a process dies.
//!
//! Both run on one of two backends, which is part of their type:
//!
//! | | [`StrictBackend`]: any store | `SoftBackend`: gossip |
//! |---|---|---|
//! | two holders at once | never | during a network partition, and until its sides have reconnected |
//! | token | yes: fences and guards | none, by type |
//! | while the store cannot be reached | no holder | there is no store |
//! | takeover after a crash | after a lease; on SQLite and in memory at once | after the failure detector's delay |
//! | requires | a store (also `memory:`, for singletons of one process) | that members reach each other |
//!
//! The only authority is the leases in the store, or the gossip entries of each member. When the store cannot be
//! reached, a registration ends when trust ends: [`Registration::ended`] completes, and the future of a singleton
//! is dropped.

mod registry;
mod restarts;
mod singleton;
#[cfg(feature = "gossip")]
mod soft;
mod strict;
mod supervisor;

pub use tenure_core::rules::cluster::{
    CAPACITY_MAX, ConflictPolicy, HANDOFF_MAX, HandoffTooLarge, Metadata, MetadataError, NameChange,
    RegisteredName,
};

pub use self::registry::{Registration, RegistrationEnd, Registry, RegistryBackend, RegistryError};
pub use self::singleton::SingletonContext;
#[cfg(feature = "gossip")]
pub use self::soft::SoftBackend;
pub use self::strict::StrictBackend;
pub use self::supervisor::{Supervisor, SupervisorBuilder, SupervisorError};

/// Default namespace of the elections for registered names.
pub const NAMES: &str = "names";

/// Default namespace of the elections for singletons.
pub const SINGLETONS: &str = "singletons";
