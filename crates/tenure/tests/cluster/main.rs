//! Names and singletons as users have them.

mod names;
#[path = "../real/mod.rs"]
mod on_stores;
mod real;
mod singletons;
#[cfg(feature = "gossip")]
mod soft;
mod support;
