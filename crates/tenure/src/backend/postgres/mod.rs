//! PostgreSQL: elections on the database that is already there.
//!
//! **Who owns the truth.** The tables in the schema `tenure`. A process keeps nothing but connections; each call is one
//! message, one round trip and one transaction, with no state of a connection behind it, so PgBouncer in transaction
//! mode may stand in between (see `message.rs`).
//!
//! **What decides.** A session is `live`, `ended` or `expired`, and never comes back. A lease is free or held by a
//! session under a token. Every change compares what was seen with what is: `(id, beat)` of a session, `(token, session)` of
//! a lease. No clock takes part, the server's included; `timestamptz` columns are for people.
//!
//! **Locks.** A call that depends on several rows locks them first and then decides in a *later* statement, whose
//! snapshot is newer than the locks: a statement that has waited goes on with the snapshot that it began with, and would
//! miss what it waited for. Whoever closes a session locks it `FOR UPDATE`; whoever takes a lease or stands for an
//! election in its name locks it `FOR KEY SHARE`; a beat updates no key, and so waits for the first only. A guard locks the
//! lease `FOR SHARE`. A take locks the session that it expires, then the lease, then the election (shared, against a
//! pause), then its own session; the order keeps two takers of one dead session from meeting head-on. Where two still
//! do, the server ends one after a second, and it tries again.
//!
//! **When the server is away**, every call fails with a [`StoreError`] and nothing is concluded from it. When a standby was
//! promoted, the epoch that each beat brings back has changed. A token begins with the epoch, so that it grows
//! even over a promotion that lost the last grant.
//!
//! **Waking** is by `NOTIFY` in the same transaction and `LISTEN` on a connection of its own (`listen.rs`). It is tested
//! when it is set up; where a pooler swallows it, polling carries on.

mod claims;
mod connection;
mod directory;
mod error;
mod events;
mod examine;
mod guard;
mod lane;
mod listen;
mod message;
mod migrate;
mod office;
mod options;
mod schedules;
mod store;
mod value;
mod wire;
mod wiring;

use std::sync::{Arc, LazyLock};

use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tenure_core::port::{StoreError, Trouble};

pub use claims::submit;
pub use directory::PROMISES;
pub use events::{commit_share, commit_shares, publish};
pub use guard::{fence, guard};
pub use listen::ListenState;
pub(crate) use migrate::{roles, script};
pub use options::PostgresOptions;
pub(crate) use wiring::{migrator_for_url, open_url};

use super::migrations::Schema;
use super::queries::Queries;
use super::schema;
use connection::Connections;
use error::{garbled, timed_out};
use lane::{Endpoint, Lane};
use listen::Ears;
use message::Message;
use value::Value;
use wire::{Column, PgRow};

/// The statements, as they are in the files.
static QUERIES: LazyLock<Arc<Queries>> = LazyLock::new(|| {
    Arc::new(Queries::parse(&[
        include_str!("queries/candidates.sql"),
        include_str!("queries/claims.sql"),
        include_str!("queries/elections.sql"),
        include_str!("queries/events.sql"),
        include_str!("queries/fences.sql"),
        include_str!("queries/groups.sql"),
        include_str!("queries/leases.sql"),
        include_str!("queries/migrations.sql"),
        include_str!("queries/office.sql"),
        include_str!("queries/pools.sql"),
        include_str!("queries/queues.sql"),
        include_str!("queries/requests.sql"),
        include_str!("queries/roles.sql"),
        include_str!("queries/schedules.sql"),
        include_str!("queries/sessions.sql"),
        include_str!("queries/tasks.sql"),
        include_str!("queries/terms.sql"),
        include_str!("queries/topics.sql"),
        include_str!("queries/workers.sql"),
    ]))
});

/// The oldest major version of servers that is supported, and the newest that the tests have run on
/// (`scripts/postgres-matrix`).
const SERVER_VERSIONS: std::ops::RangeInclusive<i32> = 14..=18;

/// How many connections beats have for themselves, so that one that waits for a lock does not hold up another's. A process
/// needs one of them, or two; a server that beats for many uses them all, and they share the waits for the disk.
const BEAT_CONNECTIONS: u32 = 8;

/// How many connections claims and settlements have for themselves. Few: each claimer walks over what the others have locked, and
/// what waits for a connection meanwhile goes with the next batch.
const CLAIM_CONNECTIONS: u32 = 3;

/// A PostgreSQL server as a store. Clones share its connections.
///
/// ```no_run
/// use tenure::backend::migrations::Migrate;
/// use tenure::backend::postgres::{Postgres, PostgresOptions};
///
/// # async fn example() -> Result<(), tenure_core::port::StoreError> {
/// let options = PostgresOptions::new("postgres://app@localhost/app");
/// Postgres::connect_unchecked(options.clone()).await?.migrate().await?;
/// let store = Postgres::connect(options).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Postgres {
    shared: Arc<Shared>,
    queries: Arc<Queries>,
}

/// What clones share.
struct Shared {
    endpoint: Arc<Endpoint>,
    strict: bool,
    /// The direct address; the same as `endpoint` if none was given.
    direct: Arc<Endpoint>,
    /// The schema that this program was built for.
    schema: Schema,
    /// The most connections that one process opens.
    connections_max: u32,
    /// For all calls but beats.
    calls: Arc<Lane>,
    /// For beats alone: takes that wait for a guard must not keep a session from saying that it lives.
    beats: Arc<Lane>,
    /// For what workers do all the time: claims and settlements.
    claims: Arc<Lane>,
    /// For events: who waits for the lock of a slot keeps nobody else waiting.
    events: Arc<Lane>,
    floors: claims::Floors,
    /// The numbers of the schedules that were due when they were looked at last.
    numbers: schedules::Numbers,
    /// For the user.
    pool: PgPool,
    ears: Ears,
    connections: Connections,
}

impl Postgres {
    /// Connects, and checks that the server can be written to and that this program can run on the schema. Changes nothing.
    pub async fn connect(options: PostgresOptions) -> Result<Postgres, StoreError> {
        let store = Self::connect_unchecked(options).await?;
        let checked = async {
            store.check_server().await?;
            schema::check(&store.status().await?, &store.shared.endpoint.place)?;
            // Here, and not in the first transaction of a user: a new epoch is then not held up by it. A role that may only publish may
            // not look.
            match store.call("epoch_current", &[]).await {
                Err(error) if error.kind != Trouble::Denied => Err(error),
                _ => Ok(()),
            }
        };
        store.in_time(checked).await?;
        Ok(store)
    }

    /// Connects without a look at the tables: for [`Migrate`](super::migrations::Migrate).
    pub async fn connect_unchecked(options: PostgresOptions) -> Result<Postgres, StoreError> {
        let (address, direct) = (options.address()?, options.direct_address()?);
        let strict = options.strict || address.strict;
        let endpoint = Endpoint::new(address, options.connect_timeout);
        let direct = Endpoint::new(direct, options.connect_timeout);
        let lane = |size: u32| Lane::new(&endpoint, size);
        let calls = lane(options.max_connections);
        let pool = PgPoolOptions::new()
            .max_connections(options.max_connections.max(1))
            .acquire_timeout(endpoint.patience())
            .test_before_acquire(false)
            .connect_lazy_with(endpoint.pool_options());
        endpoint.lead(&pool);
        let ears = Ears::new(direct.clone(), calls.clone());
        let shared = Shared {
            strict,
            claims: lane(CLAIM_CONNECTIONS.min(options.max_connections)),
            events: lane(options.max_connections),
            direct: direct.clone(),
            schema: options.schema,
            // Calls, events and the user's pool; heartbeats; claims; LISTEN, and the session's own connection.
            connections_max: 3 * options.max_connections.max(1)
                + BEAT_CONNECTIONS
                + CLAIM_CONNECTIONS.min(options.max_connections)
                + 2,
            floors: claims::Floors::default(),
            numbers: schedules::Numbers::default(),
            beats: lane(BEAT_CONNECTIONS),
            connections: Connections::new(direct, calls.clone(), ears.hub()),
            endpoint,
            calls,
            pool,
            ears,
        };
        let store = Postgres { shared: Arc::new(shared), queries: QUERIES.clone() };
        // Here and now, so that a wrong address is told of at once.
        let version = Message::for_user(&QUERIES)
            .plain("SELECT pg_catalog.current_setting('server_version_num')::integer AS version", true);
        let rows = store.in_time(store.shared.calls.run(version)).await?;
        let version = get(rows.first().ok_or_else(|| garbled("its version", "no row"))?, "version")?;
        check_version(version, &store.shared.endpoint.place)?;
        Ok(store)
    }

    /// Does something within the time that people wait for a connection.
    async fn in_time<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let endpoint = &self.shared.endpoint;
        let limit = endpoint.patience() * 2;
        tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(timed_out(&endpoint.place)))
    }

    /// A pool on the same address for the user's own statements, such as transactions under a [`guard`]. It is made of
    /// connections of its own, opened when they are first used: a full pool never costs a leadership. Behind a pooler in
    /// transaction mode its prepared statements do not work; [`sqlx::raw_sql`] does.
    pub fn pool(&self) -> &PgPool {
        &self.shared.pool
    }

    /// Where the server is, without the password.
    pub fn place(&self) -> &str {
        &self.shared.endpoint.place
    }

    /// Whether hints arrive, for `tenure doctor`.
    pub fn listening(&self) -> ListenState {
        self.shared.ears.state()
    }

    /// Puts a known mistake back into a statement, for the negative controls.
    #[doc(hidden)]
    pub fn sabotage(&mut self, query: &str, from: &str, to: &str) {
        Arc::make_mut(&mut self.queries).sabotage(query, from, to);
    }

    /// Refuses a server that only reads, is too old, or does not replicate as strict mode needs.
    async fn check_server(&self) -> Result<(), StoreError> {
        let rows = self.call("server_facts", &[]).await?;
        let row = rows.first().ok_or_else(|| garbled("what it is", "no row"))?;
        let place = &self.shared.endpoint.place;
        let unfit =
            |why: String| Err(StoreError::new(Trouble::Unfit, format!("PostgreSQL at {place} {why}")));
        if get(row, "in_recovery")? {
            return unfit("is a standby, which only reads; give the address of the primary".into());
        }
        if get(row, "read_only")? {
            return unfit("only reads (default_transaction_read_only); give another role or server".into());
        }
        if self.shared.strict && get::<String>(row, "standbys")?.is_empty() {
            return Err(StoreError::new(
                Trouble::Unavailable,
                format!(
                    "strict mode needs a synchronous standby, and synchronous_standby_names is empty on {place}; \
                     set it there, or do without strict mode"
                ),
            ));
        }
        Ok(())
    }

    /// Runs one named statement on a connection for calls.
    async fn call(&self, name: &str, values: &[Value<'_>]) -> Result<Vec<PgRow>, StoreError> {
        self.shared.calls.run(Message::new(&self.queries).then(name, values)?).await
    }
}

/// Refuses a server that is too old, and warns of one that is newer than any that was tested. `version` is the server's
/// `server_version_num`.
fn check_version(version: i32, place: &str) -> Result<(), StoreError> {
    let (oldest, newest) = (SERVER_VERSIONS.start(), SERVER_VERSIONS.end());
    let (major, minor) = (version / 10_000, version % 10_000);
    if major < *oldest {
        let why = format!(
            "PostgreSQL at {place} is of version {major}.{minor}; Tenure supports versions {oldest} to {newest}; \
             upgrade the server"
        );
        return Err(StoreError::new(Trouble::Unfit, why));
    }
    if major > *newest {
        tracing::warn!(
            server = place,
            major,
            newest,
            "this server is newer than those that Tenure was tested on"
        );
    }
    Ok(())
}

/// A column of a row.
fn get<'r, T>(row: &'r PgRow, column: &str) -> Result<T, StoreError>
where
    T: Column<'r>,
{
    row.try_get(column).map_err(|error| garbled(column, error))
}

/// A column of JSON, in the form of a type of the port; nothing there is its default.
fn get_json<T: serde::de::DeserializeOwned + Default>(row: &PgRow, column: &str) -> Result<T, StoreError> {
    match get::<Option<&str>>(row, column)? {
        Some(json) => serde_json::from_str(json).map_err(|error| garbled(column, error)),
        None => Ok(T::default()),
    }
}

/// A column of JSON that is there.
fn from_json<T: serde::de::DeserializeOwned>(row: &PgRow, column: &str) -> Result<T, StoreError> {
    serde_json::from_str(get(row, column)?).map_err(|error| garbled(column, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Version 13 was accepted, and then every claim failed with advice that was wrong.
    #[test]
    fn a_server_that_is_too_old_is_refused_by_its_version() {
        for version in [90_624, 130_023] {
            let error = check_version(version, "here").unwrap_err();
            assert_eq!(error.kind, Trouble::Unfit);
            assert!(error.message.contains("supports versions 14 to 18"), "{error}");
        }
        for version in [140_000, 150_014, 180_004, 190_000] {
            check_version(version, "here").unwrap();
        }
    }

    #[test]
    fn every_statement_has_a_name_of_its_own() {
        assert!(QUERIES.names().count() > 20);
    }
}
