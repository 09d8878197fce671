//! Names and singletons as users have them.

mod names;
mod real;
mod singletons;
#[cfg(feature = "gossip")]
mod soft;
mod support;
