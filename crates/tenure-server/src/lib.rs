//! HTTP API and dashboard of Tenure: `tenure serve`.
//!
//! A server keeps no state of its own. Every response comes from the store, so any replica can serve any
//! request, and the loss of a replica loses nothing.
//!
//! | module | contents |
//! |---|---|
//! | [`Server`] | a running server: sockets, replica, shutdown |
//! | [`settings`] | settings and limits |
//! | [`listen`] | sockets, TLS, timeouts, shutdown |
//! | [`access`] | authentication and authorization of every route |
//! | [`snapshot`] | cached copies of the store |
//! | [`api`] | `/v1` and the OpenAPI document |
//! | [`web`] | the dashboard |
//! | [`problem`] | error responses |
//! | [`route`] | the table of all routes with their required permissions |

pub mod access;
pub mod api;
mod app;
mod audit;
mod compress;
mod health;
mod limits;
pub mod listen;
pub mod metrics;
mod middleware;
pub mod problem;
pub mod quota;
pub mod replica;
pub mod route;
mod server;
pub mod settings;
pub mod snapshot;
mod timeout_store;
mod topic_broadcast;
pub mod web;
mod webhooks;

pub use crate::app::App;
pub use crate::middleware::RequestId;
pub use crate::server::{Server, StartError};
pub use crate::settings::Settings;
pub use crate::webhooks::host_is_private;
