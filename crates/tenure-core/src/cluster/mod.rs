//! Names and singletons of a cluster: who has which name, and who runs what.
//!
//! Two footings share what is decided here. On a *strict* store a name is an election and a singleton is one whose candidates'
//! priorities are their [weights](priority): the store decides, and there are never two. On a *soft* one, where members only
//! gossip, each member says what it has, the [map](NameMap) of all that was said is the same wherever it was all heard, and a
//! [resolver](Resolver) settles what two sides of a netsplit did without each other.
//!
//! | module | what it decides |
//! |---|---|
//! | `rendezvous` | which member a singleton belongs to, so that little moves when members come and go |
//! | `duties` | what one member has to start, stop and wait for |
//! | `map` | what all members said, merged: in any order, any number of times, to the same end |
//! | `resolve` | who keeps a name that several have |
//! | `view` | what changed between two looks at the names |
//! | `handoff` | a small state as part of what a candidate says of itself |

mod check;
mod duties;
mod handoff;
mod map;
mod rendezvous;
mod resolve;
mod view;

pub use self::check::{MEMBERS_ELECTION, METADATA_MAX, Metadata, MetadataError, check_metadata, is_reserved};
pub use self::duties::{Duties, Member, Running, duties};
pub use self::handoff::{HANDOFF_MAX, Handoff, TooLarge, decoded, encoded, received, took};
pub use self::map::{Claim, ClaimId, Entry, NameMap, Ruling, Which};
pub use self::rendezvous::{CAPACITY_MAX, owner, priority, weight};
pub use self::resolve::{Resolver, Verdict, holder, settle};
pub use self::view::{NameChange, NameView, changes};
