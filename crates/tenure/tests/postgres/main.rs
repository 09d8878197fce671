//! The PostgreSQL store on real servers.
#![cfg(feature = "postgres")]

mod claims;
mod claims_care;
mod claims_demands;
mod claims_locks;
mod claims_plans;
mod claims_sql;
mod connection;
mod controls;
mod dead_connections;
mod errors;
mod events;
mod events_commits;
mod events_order;
mod events_plans;
mod events_sql;
mod examine;
mod failover;
mod guard;
mod held_snapshots;
mod literals;
mod migrating;
mod model;
mod pooler;
mod publisher;
mod races;
mod restores;
mod roles;
mod schedules;
mod schedules_firing;
mod schedules_plans;
mod schema;
mod secrets;
mod support;
mod wakes;
