//! The PostgreSQL store on real servers.
#![cfg(feature = "postgres")]

mod claims;
mod claims_locks;
mod claims_plans;
mod claims_sql;
mod closed_connections;
mod connection;
mod controls;
mod doctor;
mod errors;
mod events;
mod events_commits;
mod events_order;
mod events_plans;
mod events_sql;
mod failover;
mod guard;
mod maintenance;
mod migrating;
mod model;
mod notifications;
mod old_snapshots;
mod pooler;
mod publisher;
mod races;
mod requirements;
mod restores;
mod roles;
mod schedules;
mod schedules_firing;
mod schedules_plans;
mod schema;
mod secrets;
mod statement_arguments;
mod support;
