//! Registered names and singletons of a cluster.
//!
//! There are two variants. With a store, a name is an election, and a singleton is an election whose candidates have
//! their [weights](priority) as priorities; the store guarantees a single holder. In a *soft* cluster, where members
//! only gossip, each member publishes its claims. Members that received the same claims have the same [map](NameMap),
//! and a [policy](ConflictPolicy) resolves conflicts after a network split.
//!
//! | module | purpose |
//! |---|---|
//! | `rendezvous` | which member owns a singleton, with few moves when members join or leave |
//! | `singletons` | what a member must start, stop and wait for |
//! | `name_map` | merged claims of all members, independent of order and repetition |
//! | `conflict` | which claim is kept if a name has several |
//! | `view` | changes between two observations of the names |
//! | `handoff` | a small state passed in the metadata of a candidate |

mod conflict;
mod handoff;
mod metadata;
mod name_map;
mod rendezvous;
mod singletons;
mod view;

pub use self::conflict::{ConflictDecision, ConflictPolicy, holder, resolve_conflict};
pub use self::handoff::{
    HANDOFF_MAX, Handoff, HandoffTooLarge, acknowledge_handoff, decoded, encoded, incoming_handoff,
};
pub use self::metadata::{
    METADATA_MAX, Metadata, MetadataError, REGISTRY_MEMBERS_ELECTION, is_reserved, validate_metadata,
};
pub use self::name_map::{ConflictRuling, NameClaim, NameClaimRef, NameClaimant, NameEntry, NameMap};
pub use self::rendezvous::{CAPACITY_MAX, owner, priority, weight};
pub use self::singletons::{RunningSingleton, SingletonHost, SingletonPlan, plan_singletons};
pub use self::view::{NameChange, RegisteredName, changes};
