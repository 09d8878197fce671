//! The stores that Tenure can stand on, each behind a feature.
//!
//! A backend implements [`Store`](tenure_core::port::Store) and [`Directory`](tenure_core::port::Directory). Backends
//! know neither each other nor the drivers.

mod access;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "gossip")]
pub mod gossip;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "k8s")]
pub mod kubernetes;
pub mod memory;
pub mod migrations;
pub mod paired;
#[cfg(any(feature = "gossip", feature = "raft"))]
mod place;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "raft", feature = "sqlite"))]
mod private;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod queries;
#[cfg(feature = "raft")]
pub mod raft;
mod registry;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod schema;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(feature = "etcd", feature = "http", feature = "k8s", feature = "raft"))]
mod told;
#[cfg(feature = "wire")]
mod wire;

pub use access::ServerAccess;
pub(crate) use registry::{Heard, no_hints};
pub use registry::{StoreOptions, check_scheme, migration_sql, migrator, open, roles_sql};
