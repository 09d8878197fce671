//! The API, driven in memory and over real sockets.

mod calls;
mod campaign;
mod claims;
mod events;
mod failover;
mod fuzz;
mod names;
mod operate;
mod reads;
mod schedules;
mod session;
mod stream;
mod support;
mod tally;
mod trouble;
mod watch;
mod webhooks;
