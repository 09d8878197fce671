//! Registered names and singletons through the public API.

#[cfg(feature = "postgres")]
mod cut_off;
mod names;
#[cfg(any(feature = "gossip", feature = "postgres"))]
mod namespace_thread;
#[cfg(feature = "gossip")]
mod network_partition;
#[path = "../real/mod.rs"]
mod on_stores;
mod real;
mod singletons;
#[cfg(feature = "gossip")]
mod soft;
mod support;
