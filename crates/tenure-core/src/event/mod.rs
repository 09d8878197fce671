//! Events: into which slot, who reads which, what becomes of a failure.

mod slot;

pub use self::slot::slot_of;
