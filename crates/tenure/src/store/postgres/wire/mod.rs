//! A small PostgreSQL client for Tenure's own connections.
//!
//! Why not an existing driver: a call must be one flush and one round trip, with every value in a `Bind` message and none in the
//! text of a statement, because the server logs the text of each statement that fails. sqlx needs two round trips for a
//! statement that it has not prepared, and names its prepared statements in a way that breaks behind a pooler.
//! tokio-postgres plans a statement at each call unless the statement is prepared in a round trip of its own. This client
//! sends `Parse` (only if the statement is not prepared yet), `Bind`, `Execute`, …, `Sync` in one flush.
//!
//! [`Connection`] has no background task: dropping it closes the socket at once.
//! `postgres-protocol` encodes and decodes the messages and does SCRAM.

mod connect;
mod connection;
mod row;
mod stream;
mod tls;

pub(super) use connect::connect;
pub(super) use connection::{Connection, Statement};
pub(super) use row::{Column, ColumnError, PgRow};
