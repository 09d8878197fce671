//! The stores, each behind a feature.
//!
//! A store implements [`ElectionStore`](tenure_core::port::ElectionStore) and
//! [`ElectionAdmin`](tenure_core::port::ElectionAdmin), and optionally the ports for work, events and schedules. Stores
//! depend neither on each other nor on the drivers.

mod client_auth;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "gossip")]
pub mod gossip;
#[cfg(any(feature = "gossip", feature = "raft"))]
mod host_port;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "wire")]
mod http_client;
#[cfg(feature = "k8s")]
pub mod kubernetes;
pub mod memory;
pub mod migrations;
#[cfg(any(feature = "etcd", feature = "http", feature = "k8s", feature = "raft"))]
mod notification_channel;
pub mod paired;
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

pub use client_auth::ClientAuth;
pub(crate) use registry::{BroadcastNotificationSource, no_notifications};
pub use registry::{StoreOptions, check_scheme, migration_sql, migrator, open, roles_sql};
