//! Tests of the HTTP API, in memory and over sockets.

mod campaign;
mod claims;
mod counting_store;
mod election_actions;
mod events;
mod failover;
mod fuzz;
mod group_webhooks;
mod names;
mod reads;
mod schedule_webhooks;
mod schedules;
mod session;
mod store_errors;
mod stream;
mod support;
mod watch;
