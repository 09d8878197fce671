//! HTTP client shared by the etcd store and the HTTP store.

mod address;
mod endpoint;
mod server_list;
pub(super) mod tls;

pub(super) use self::address::ServerAddress;
pub(super) use self::endpoint::{Endpoint, HttpReply, HttpRequest, NoReply};
pub(super) use self::server_list::{ServerList, rotated};

/// Value of an environment variable, if it is set and not empty.
pub(super) fn set(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
