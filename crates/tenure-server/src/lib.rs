//! Tenure over HTTP: `tenure serve`.
//!
//! A server has no truth of its own. Everything that it says comes from the store, so any replica can answer anything,
//! and a replica that dies takes nothing with it.
//!
//! | module | what it does |
//! |---|---|
//! | [`Server`] | a running one: its sockets, its replica, its end |
//! | [`settings`] | how it is set up, and its bounds |
//! | [`listen`] | sockets, TLS, time-outs, shutting down |
//! | [`access`] | who asks, and whether they may: one gate for every route |
//! | [`board`] | what the store looks like, watched and kept in memory |
//! | [`api`] | `/v1`, and the document that describes it |
//! | [`pages`] | the dashboard |
//! | [`problem`] | what went wrong, for programs and for people |
//! | [`route`] | the table of all routes, each with what it needs |

pub mod access;
mod agenda;
pub mod api;
mod app;
mod audit;
pub mod board;
mod bounded;
mod calendar;
mod compress;
mod envelope;
mod floor;
mod gauge;
mod health;
mod limits;
pub mod listen;
pub mod metrics;
pub mod pages;
pub mod problem;
pub mod quota;
pub mod replica;
pub mod route;
mod server;
pub mod settings;
mod tails;
mod webhooks;

pub use crate::app::App;
pub use crate::envelope::RequestId;
pub use crate::server::{Server, StartError};
pub use crate::settings::Settings;
pub use crate::webhooks::host_is_private;
