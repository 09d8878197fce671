//! The stores that Tenure can stand on, each behind a feature.
//!
//! A backend implements [`Store`](tenure_core::port::Store) and [`Directory`](tenure_core::port::Directory). Backends
//! know neither each other nor the drivers.

pub mod memory;
pub mod migrations;
#[cfg(feature = "postgres")]
pub mod postgres;
mod queries;
#[cfg(feature = "sqlite")]
pub mod sqlite;
