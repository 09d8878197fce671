//! Servers that are asked over HTTP, as more than one backend does.

mod base;
mod endpoint;
mod ring;
pub(super) mod tls;

pub(super) use self::base::Base;
pub(super) use self::endpoint::{Call, Endpoint, Miss, Reply};
pub(super) use self::ring::{Ring, rotated};

/// A variable that is set to something.
pub(super) fn set(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
