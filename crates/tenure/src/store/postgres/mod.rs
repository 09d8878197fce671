//! The PostgreSQL store.
//!
//! **State.** The tables in the schema `tenure` hold all state; a process keeps only connections and caches. Each call is
//! one message, one round trip and one transaction, and depends on no state of a connection, so that PgBouncer in
//! transaction mode works (see `message.rs`).
//!
//! **Decisions.** A session is `live`, `ended` or `expired`, and never becomes live again. A lease is free, or a session
//! holds it under a token. Every change compares the observed values with the stored ones: `(id, heartbeat_count)` of a
//! session, `(token, session)` of a lease. No decision depends on a clock; `timestamptz` columns are informational.
//!
//! **Locks.** A call that depends on several rows locks them first and then decides in a *later* statement, whose
//! snapshot is newer than the locks: a statement that has waited continues with its old snapshot and would miss the
//! changes that it waited for. A call that ends a session locks it `FOR UPDATE`. A call that takes a lease or joins an
//! election for a session locks the session `FOR KEY SHARE`. A heartbeat updates no key and waits only for the former. A
//! guard locks the lease `FOR SHARE`. A takeover locks the session that it expires, then the lease, then the election
//! (shared, against a pause), then its own session; this order prevents a deadlock of two candidates that take over from
//! the same session. If a deadlock still happens, the server aborts one transaction after a second, and it is retried.
//!
//! **Failures.** While the server is unreachable, every call fails with a [`StoreError`], and no conclusion is drawn. After
//! a promotion, the epoch that each heartbeat returns has changed. A token starts with the epoch, so that tokens grow even
//! over a promotion that lost the last grant.
//!
//! **Notifications** use `NOTIFY` in the same transaction and `LISTEN` on a separate connection (`listen.rs`), which tests
//! itself at the start. If a pooler drops notifications, polling continues.

mod access;
mod call_pool;
mod doctor;
mod election_admin;
mod error;
mod events;
mod guard;
mod listen;
mod message;
mod migrate;
mod open;
mod options;
mod schedules;
mod session_connection;
mod store;
mod value;
mod wire;
mod work;

use std::sync::{Arc, LazyLock};

use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tenure_core::port::{ErrorKind, StoreError};

pub use election_admin::GUARANTEES;
pub use events::{commit_partition, commit_partitions, publish};
pub use guard::{fence, guard};
pub use listen::ListenState;
pub(crate) use migrate::{roles, script};
pub(crate) use open::{migrator_for_url, open_url};
pub use options::PostgresOptions;
pub use work::submit;

use super::migrations::Schema;
use super::queries::Queries;
use super::schema;
use call_pool::{CallPool, Endpoint};
use error::{timed_out, unexpected_response};
use listen::NotifyListener;
use message::Message;
use session_connection::Connections;
use value::Value;
use wire::{Column, PgRow};

/// The statements of the query files.
static QUERIES: LazyLock<Arc<Queries>> = LazyLock::new(|| {
    Arc::new(Queries::parse(&[
        include_str!("queries/access.sql"),
        include_str!("queries/candidates.sql"),
        include_str!("queries/claims.sql"),
        include_str!("queries/elections.sql"),
        include_str!("queries/epoch.sql"),
        include_str!("queries/events.sql"),
        include_str!("queries/fences.sql"),
        include_str!("queries/groups.sql"),
        include_str!("queries/leader_requests.sql"),
        include_str!("queries/leases.sql"),
        include_str!("queries/maintenance.sql"),
        include_str!("queries/migrations.sql"),
        include_str!("queries/parked_events.sql"),
        include_str!("queries/partition_leases.sql"),
        include_str!("queries/pools.sql"),
        include_str!("queries/queues.sql"),
        include_str!("queries/roles.sql"),
        include_str!("queries/schedules.sql"),
        include_str!("queries/sessions.sql"),
        include_str!("queries/tasks.sql"),
        include_str!("queries/terms.sql"),
        include_str!("queries/ticks.sql"),
        include_str!("queries/topics.sql"),
        include_str!("queries/workers.sql"),
    ]))
});

/// Supported major versions of the server: the oldest, and the newest that is tested (`scripts/postgres-matrix`).
const SERVER_VERSIONS: std::ops::RangeInclusive<i32> = 14..=18;

/// Number of connections for heartbeats, so that one that waits for a lock does not delay the others. A process needs one
/// or two; a server with many sessions uses all of them, and their commits share disk writes.
const HEARTBEAT_CONNECTIONS: u32 = 8;

/// Number of connections for claims and settlements. Few, because each claim skips the rows that others have locked; calls
/// that wait for a connection join the next batch.
const CLAIM_CONNECTIONS: u32 = 3;

/// A PostgreSQL server as a store. Clones share its connections.
///
/// ```no_run
/// use tenure::store::migrations::SchemaMigrator;
/// use tenure::store::postgres::{PostgresOptions, PostgresStore};
///
/// # async fn example() -> Result<(), tenure_core::port::StoreError> {
/// let options = PostgresOptions::new("postgres://app@localhost/app");
/// PostgresStore::connect_unchecked(options.clone()).await?.migrate().await?;
/// let store = PostgresStore::connect(options).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct PostgresStore {
    shared: Arc<Shared>,
    queries: Arc<Queries>,
}

/// The state that clones share.
struct Shared {
    endpoint: Arc<Endpoint>,
    sync_replication: bool,
    /// The direct address; the same as `endpoint` if none was given.
    direct: Arc<Endpoint>,
    /// The schema that this program was built for.
    schema: Schema,
    /// Maximum number of connections of this process.
    connections_max: u32,
    /// For all other calls.
    calls: Arc<CallPool>,
    /// For heartbeats only: takeovers that wait for a guard must not delay heartbeats.
    heartbeats: Arc<CallPool>,
    /// For claims and settlements.
    claims: Arc<CallPool>,
    /// For events: a wait for the lock of a partition must not delay other calls.
    events: Arc<CallPool>,
    claim_cursors: work::ClaimCursors,
    /// Row ids of the schedules that were due at the last read.
    schedule_ids: schedules::ScheduleIds,
    /// For the statements of the user.
    pool: PgPool,
    listener: NotifyListener,
    connections: Connections,
}

impl PostgresStore {
    /// Connect, and check that the server is writable and that this program can run on the schema. Changes nothing.
    pub async fn connect(options: PostgresOptions) -> Result<PostgresStore, StoreError> {
        let store = Self::connect_unchecked(options).await?;
        let checked = async {
            store.check_server().await?;
            schema::check(&store.status().await?, &store.shared.endpoint.address)?;
            // Renew the epoch here if necessary. In the first transaction of the user, it would lock the row of the
            // epoch until that transaction ends. A role that may only publish may not read the epoch; that is no
            // error.
            match store.call("epoch_current", &[]).await {
                Err(error) if error.kind != ErrorKind::Denied => Err(error),
                _ => Ok(()),
            }
        };
        store.in_time(checked).await?;
        Ok(store)
    }

    /// Connect without a check of the tables, for [`SchemaMigrator`](super::migrations::SchemaMigrator).
    pub async fn connect_unchecked(options: PostgresOptions) -> Result<PostgresStore, StoreError> {
        let (address, direct) = (options.address()?, options.direct_address()?);
        let sync_replication = options.sync_replication || address.sync_replication;
        let endpoint = Endpoint::new(address, options.connect_timeout);
        let direct = Endpoint::new(direct, options.connect_timeout);
        let call_pool = |size: u32| CallPool::new(&endpoint, size);
        let calls = call_pool(options.max_connections);
        let pool = PgPoolOptions::new()
            .max_connections(options.max_connections.max(1))
            .acquire_timeout(endpoint.connect_timeout())
            .test_before_acquire(false)
            .connect_lazy_with(endpoint.pool_options());
        endpoint.follow_with(&pool);
        let listener = NotifyListener::new(direct.clone(), calls.clone());
        let shared = Shared {
            sync_replication,
            claims: call_pool(CLAIM_CONNECTIONS.min(options.max_connections)),
            events: call_pool(options.max_connections),
            direct: direct.clone(),
            schema: options.schema,
            // Calls, events and the user's pool; heartbeats; claims; LISTEN, and the session's own connection.
            connections_max: 3 * options.max_connections.max(1)
                + HEARTBEAT_CONNECTIONS
                + CLAIM_CONNECTIONS.min(options.max_connections)
                + 2,
            claim_cursors: work::ClaimCursors::default(),
            schedule_ids: schedules::ScheduleIds::default(),
            heartbeats: call_pool(HEARTBEAT_CONNECTIONS),
            connections: Connections::new(direct, calls.clone(), listener.sender()),
            endpoint,
            calls,
            pool,
            listener,
        };
        let store = PostgresStore { shared: Arc::new(shared), queries: QUERIES.clone() };
        // Connect at once, so that a wrong address fails here.
        let version = Message::for_user(&QUERIES)
            .plain("SELECT pg_catalog.current_setting('server_version_num')::integer AS version", true);
        let rows = store.in_time(store.shared.calls.run(version)).await?;
        let version =
            get(rows.first().ok_or_else(|| unexpected_response("the server version", "no row"))?, "version")?;
        check_version(version, &store.shared.endpoint.address)?;
        Ok(store)
    }

    /// Run a future within twice the connect timeout.
    async fn in_time<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let endpoint = &self.shared.endpoint;
        let limit = endpoint.connect_timeout() * 2;
        tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(timed_out(&endpoint.address)))
    }

    /// A pool on the same address for the statements of the user, such as transactions under a [`guard`]. It has separate
    /// connections, opened on first use: a full pool never delays heartbeats. Behind a pooler in transaction mode its
    /// prepared statements do not work; [`sqlx::raw_sql`] does.
    pub fn pool(&self) -> &PgPool {
        &self.shared.pool
    }

    /// The address of the server, without the password.
    pub fn redacted_address(&self) -> &str {
        &self.shared.endpoint.address
    }

    /// Whether notifications arrive, for `tenure doctor`.
    pub fn listen_state(&self) -> ListenState {
        self.shared.listener.state()
    }

    /// Inject a known bug into a statement, for negative controls.
    #[doc(hidden)]
    pub fn inject_bug(&mut self, query: &str, from: &str, to: &str) {
        Arc::make_mut(&mut self.queries).inject_bug(query, from, to);
    }

    /// Reject a read-only server, and one without a synchronous standby if synchronous replication is required.
    async fn check_server(&self) -> Result<(), StoreError> {
        let rows = self.call("server_status", &[]).await?;
        let row = rows.first().ok_or_else(|| unexpected_response("the server status", "no row"))?;
        let address = &self.shared.endpoint.address;
        let misconfigured = |why: String| {
            Err(StoreError::new(ErrorKind::Misconfigured, format!("PostgreSQL at {address} {why}")))
        };
        if get(row, "in_recovery")? {
            return misconfigured("is a standby, which is read-only; use the address of the primary".into());
        }
        if get(row, "read_only")? {
            return misconfigured(
                "is read-only (default_transaction_read_only); use another role or server".into(),
            );
        }
        if self.shared.sync_replication && get::<String>(row, "standbys")?.is_empty() {
            return Err(StoreError::new(
                ErrorKind::Unavailable,
                format!(
                    "synchronous replication is required, but synchronous_standby_names is empty on {address}; \
                     set it there, or do not require synchronous replication"
                ),
            ));
        }
        Ok(())
    }

    /// Run one named statement in a transaction of its own.
    async fn call(&self, name: &str, values: &[Value<'_>]) -> Result<Vec<PgRow>, StoreError> {
        self.shared.calls.run(Message::new(&self.queries).then(name, values)?).await
    }
}

/// Reject a server that is too old, and warn about one that is newer than the tested versions. `version` is
/// `server_version_num`.
fn check_version(version: i32, address: &str) -> Result<(), StoreError> {
    let (oldest, newest) = (SERVER_VERSIONS.start(), SERVER_VERSIONS.end());
    let (major, minor) = (version / 10_000, version % 10_000);
    if major < *oldest {
        let why = format!(
            "PostgreSQL at {address} has version {major}.{minor}; Tenure supports versions {oldest} to {newest}; \
             upgrade the server"
        );
        return Err(StoreError::new(ErrorKind::Misconfigured, why));
    }
    if major > *newest {
        tracing::warn!(server = address, major, newest, "server is newer than the tested versions");
    }
    Ok(())
}

/// A column of a row.
fn get<'r, T>(row: &'r PgRow, column: &str) -> Result<T, StoreError>
where
    T: Column<'r>,
{
    row.try_get(column).map_err(|error| unexpected_response(column, error))
}

/// Decode a column of JSON; null gives the default.
fn get_json<T: serde::de::DeserializeOwned + Default>(row: &PgRow, column: &str) -> Result<T, StoreError> {
    match get::<Option<&str>>(row, column)? {
        Some(json) => serde_json::from_str(json).map_err(|error| unexpected_response(column, error)),
        None => Ok(T::default()),
    }
}

/// Decode a column of JSON that is not null.
fn from_json<T: serde::de::DeserializeOwned>(row: &PgRow, column: &str) -> Result<T, StoreError> {
    serde_json::from_str(get(row, column)?).map_err(|error| unexpected_response(column, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: PostgreSQL 13 was accepted, and then every claim failed with wrong advice.
    #[test]
    fn a_server_that_is_too_old_is_rejected() {
        for version in [90_624, 130_023] {
            let error = check_version(version, "here").unwrap_err();
            assert_eq!(error.kind, ErrorKind::Misconfigured);
            assert!(error.message.contains("supports versions 14 to 18"), "{error}");
        }
        for version in [140_000, 150_014, 180_004, 190_000] {
            check_version(version, "here").unwrap();
        }
    }

    #[test]
    fn statement_names_are_unique() {
        assert!(QUERIES.names().count() > 20);
    }
}
