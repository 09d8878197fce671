//! Names and singletons as users have them.

#[cfg(feature = "postgres")]
mod cut_off;
#[cfg(any(feature = "gossip", feature = "postgres"))]
mod island;
mod names;
#[cfg(feature = "gossip")]
mod netsplit;
#[path = "../real/mod.rs"]
mod on_stores;
mod real;
mod singletons;
#[cfg(feature = "gossip")]
mod soft;
mod support;
