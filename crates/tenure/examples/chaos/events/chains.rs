//! Hash chains that prove the delivery of events: the events that writers committed, the effects of handlers, and the
//! differences.
//!
//! Each key has a *chain*: its events are numbered, and each carries a hash over its predecessor. A writer extends the
//! chain in the transaction that publishes, so the table `chain` has the committed events in their order. A handler
//! extends the same chain in the table `seen`, in the transaction that commits the offset of its group, and records one
//! effect per event. An event that does not follow its predecessor was reordered, or one was lost. When nothing is left
//! to read, a key whose chains differ has lost events, and an event with two effects was processed twice.
//!
//! Writers of one chain wait for each other at its row, so they publish in the order in which they commit, whatever
//! Tenure does. Some keys therefore have a chain per writer: there, transactions of one key overlap, and only Tenure
//! keeps them in order.
//!
//! The statements are the same in both dialects; a macro generates the functions because the driver types differ.

use serde::{Deserialize, Serialize};
use tenure::port::TopicKey;
use tenure::{Name, NameError};

/// Topic of the chains.
pub(crate) const TOPIC: &str = "chains";
/// Consumer group that verifies the chains.
pub(crate) const GROUP: &str = "verifier";
/// Number of partitions: few, so that keys share them.
pub(crate) const PARTITIONS: u32 = 16;
/// Number of keys with one chain, and number of keys with a chain per writer.
const KEYS: u64 = 48;
const FREE_KEYS: u64 = 12;

pub(crate) fn topic() -> Result<TopicKey, NameError> {
    Ok(TopicKey::new(Name::default_namespace(), TOPIC.parse()?))
}

/// Event key of a chain; for keys with a chain per writer, without the writer.
fn key_of(chain: &str) -> &str {
    chain.split_once('/').map_or(chain, |(key, _)| key)
}

/// A link of a chain: the payload of an event.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Link {
    /// The writer of the chain, if each writer has one.
    writer: Option<u64>,
    n: i64,
    before: i64,
    hash: i64,
}

impl Link {
    /// The link number `n` after one with this hash.
    fn after(chain: &str, n: i64, before: i64) -> Link {
        let mut hash = before.cast_unsigned() ^ n.cast_unsigned().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for byte in chain.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        let writer = chain.split_once('/').and_then(|(_, writer)| writer.parse().ok());
        Link { writer, n, before, hash: (hash ^ (hash >> 29)).cast_signed() }
    }

    /// The chain of an event with this key.
    fn chain(&self, key: &str) -> String {
        self.writer.map_or_else(|| key.to_owned(), |writer| format!("{key}/{writer}"))
    }
}

/// Result of the comparison.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChainReport {
    /// Number of committed events.
    pub(crate) published: u64,
    /// Number of events without an effect.
    pub(crate) lost: u64,
    /// Number of events that did not follow their predecessor.
    pub(crate) reordered: u64,
    /// Number of events with more than one effect.
    pub(crate) doubled: u64,
    /// The first violations.
    pub(crate) violations: Vec<String>,
}

const TABLES: [&str; 4] = [
    "CREATE TABLE chain (key TEXT PRIMARY KEY, n BIGINT NOT NULL, hash BIGINT NOT NULL)",
    "CREATE TABLE seen (key TEXT PRIMARY KEY, n BIGINT NOT NULL, hash BIGINT NOT NULL)",
    "CREATE TABLE effects (event BIGINT NOT NULL, key TEXT NOT NULL, n BIGINT NOT NULL, member TEXT NOT NULL)",
    "CREATE TABLE violations (description TEXT NOT NULL)",
];

macro_rules! chains_on {
    ($dialect:ident, $database:ty, $begin:literal) => {
        pub(crate) mod $dialect {
            use std::time::Duration;

            use sqlx::{Connection, Pool, Row, Transaction};
            use tenure::port::{Event, NewEvent, Payload, RawJson};
            use tenure::{HandlerError, Outbox};
            use tenure_core::rules::event::partition_for_key;
            use tenure_core::{Entropy, SplitMix};

            use super::{FREE_KEYS, KEYS, ChainReport, Link, TABLES, key_of, topic};

            type BoxError = Box<dyn std::error::Error + Send + Sync>;

            /// Create the tables.
            pub(crate) async fn create(pool: &Pool<$database>) -> Result<(), BoxError> {
                for table in TABLES {
                    sqlx::query(table).execute(pool).await?;
                }
                Ok(())
            }

            /// Run one transaction of this writer, of random length, possibly rolled back in part or completely.
            /// Returns the number of committed events.
            pub(crate) async fn write(
                pool: &Pool<$database>,
                rng: &mut SplitMix,
                pause_ms: u64,
                writer: u64,
            ) -> Result<u64, BoxError> {
                let mut tx = pool.begin_with($begin).await?;
                let mut keys: Vec<u64> = (0..1 + rng.next_u64() % 5).map(|_| rng.next_u64() % KEYS).collect();
                // Sorted, so that writers wait for each other instead of deadlocking.
                keys.sort_unstable();
                for key in &keys {
                    let key = match rng.next_u64() % 4 {
                        0 => format!("free-{}/{writer}", key % FREE_KEYS),
                        _ => format!("key-{key}"),
                    };
                    if rng.next_u64() % 8 == 0 {
                        let mut inner = (*tx).begin().await?;
                        publish(&mut inner, &key).await?;
                        inner.rollback().await?;
                    }
                    publish(&mut tx, &key).await?;
                    let pause = rng.next_u64() % (pause_ms * 2 + 1);
                    if pause > pause_ms {
                        tokio::time::sleep(Duration::from_millis(pause - pause_ms)).await;
                    }
                }
                if rng.next_u64() % 8 == 0 {
                    tx.rollback().await?;
                    return Ok(0);
                }
                tx.commit().await?;
                Ok(keys.len() as u64)
            }

            /// Extend the chain of a key and publish the next link.
            #[allow(dead_code)] // Used outside of this file only by negative controls.
            pub(crate) async fn publish(tx: &mut Transaction<'_, $database>, chain: &str) -> Result<(), BoxError> {
                let new = "INSERT INTO chain (key, n, hash) VALUES ($1, 1, 0) ON CONFLICT (key) DO UPDATE SET n = chain.n + 1 \
                           RETURNING n, hash";
                let row = sqlx::query(new).bind(chain).fetch_one(&mut **tx).await?;
                let link = Link::after(chain, row.try_get(0)?, row.try_get(1)?);
                let hash = "UPDATE chain SET hash = $2 WHERE key = $1";
                sqlx::query(hash).bind(chain).bind(link.hash).execute(&mut **tx).await?;
                let event = NewEvent {
                    key: Some(key_of(chain).to_owned()),
                    payload: Payload::Json(RawJson::of(&link)?),
                    ..NewEvent::new("link")
                };
                Outbox::publish(tx, &topic()?, &[event]).await?;
                Ok(())
            }

            /// Verify and record events, as a handler does.
            pub(crate) async fn record(
                events: &[Event],
                conn: &mut <$database as sqlx::Database>::Connection,
                member: &str,
            ) -> Result<(), HandlerError> {
                for event in events {
                    let Payload::Json(json) = &event.payload else { return Err(HandlerError::fail("the payload is not a link")) };
                    let link: Link = json.parse()?;
                    let key = link.chain(event.key.as_deref().unwrap_or_default());
                    let (key, Link { n, before, hash, .. }) = (key.as_str(), link);
                    let effect = "INSERT INTO effects (event, key, n, member) VALUES ($1, $2, $3, $4)";
                    let id = event.id.0.cast_signed();
                    sqlx::query(effect).bind(id).bind(key).bind(n).bind(member).execute(&mut *conn).await?;
                    let next = "UPDATE seen SET n = $2, hash = $3 WHERE key = $1 AND n = $2 - 1 AND hash = $4";
                    let next = sqlx::query(next).bind(key).bind(n).bind(hash).bind(before);
                    if next.execute(&mut *conn).await?.rows_affected() == 1 {
                        continue;
                    }
                    let seen: Option<i64> = sqlx::query_scalar("SELECT n FROM seen WHERE key = $1")
                        .bind(key)
                        .fetch_optional(&mut *conn)
                        .await?;
                    if n != 1 || seen.is_some() {
                        let what = format!("{member} received number {n} of {key}, event {id}, after {seen:?}");
                        sqlx::query("INSERT INTO violations (description) VALUES ($1)").bind(what).execute(&mut *conn).await?;
                    }
                    let set = "INSERT INTO seen (key, n, hash) VALUES ($1, $2, $3) \
                               ON CONFLICT (key) DO UPDATE SET n = excluded.n, hash = excluded.hash";
                    sqlx::query(set).bind(key).bind(n).bind(hash).execute(&mut *conn).await?;
                }
                Ok(())
            }

            /// Delete all effects of a partition, because its group starts again there.
            #[allow(dead_code)] // Chaos scenarios do not reset groups.
            pub(crate) async fn delete_effects(pool: &Pool<$database>, partition: u32, partitions: u32) -> Result<(), BoxError> {
                let mut tx = pool.begin_with($begin).await?;
                let chains: Vec<String> =
                    sqlx::query_scalar("SELECT key FROM seen").fetch_all(&mut *tx).await?;
                for chain in chains.iter().filter(|chain| partition_for_key(key_of(chain), partitions) == partition) {
                    for table in ["DELETE FROM seen WHERE key = $1", "DELETE FROM effects WHERE key = $1"] {
                        sqlx::query(table).bind(chain).execute(&mut *tx).await?;
                    }
                }
                Ok(tx.commit().await?)
            }

            /// Number of committed events, and number of events with effects.
            pub(crate) async fn counts(pool: &Pool<$database>) -> Result<(i64, i64), BoxError> {
                let published = "SELECT CAST(coalesce(sum(n), 0) AS BIGINT) FROM chain";
                let published: i64 = sqlx::query_scalar(published).fetch_one(pool).await?;
                let effects: i64 =
                    sqlx::query_scalar("SELECT count(DISTINCT event) FROM effects").fetch_one(pool).await?;
                Ok((published, effects))
            }

            /// Compare the chains and the effects.
            pub(crate) async fn evaluate(pool: &Pool<$database>) -> Result<ChainReport, BoxError> {
                let (published, _) = counts(pool).await?;
                let mut violations: Vec<String> =
                    sqlx::query_scalar("SELECT description FROM violations").fetch_all(pool).await?;
                let reordered = violations.len() as u64;
                let differ = "SELECT chain.key, chain.n, coalesce(seen.n, 0) FROM chain LEFT JOIN seen \
                              ON seen.key = chain.key WHERE seen.n IS NULL OR seen.n <> chain.n OR seen.hash <> chain.hash";
                for row in sqlx::query(differ).fetch_all(pool).await? {
                    let (key, committed, seen): (String, i64, i64) =
                        (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
                    violations.push(format!("{key}: {committed} events were committed, but the last one seen is number {seen}"));
                }
                // Counted per committed link: an effect of another event does not replace a missing one.
                let there = "SELECT CAST(count(*) AS BIGINT) FROM (SELECT DISTINCT effects.key, effects.n FROM effects \
                             JOIN chain ON chain.key = effects.key AND effects.n BETWEEN 1 AND chain.n) there";
                let there: i64 = sqlx::query_scalar(there).fetch_one(pool).await?;
                let lost = u64::try_from(published - there).unwrap_or(0);
                let never = "SELECT effects.event FROM effects LEFT JOIN chain ON chain.key = effects.key \
                             WHERE chain.key IS NULL OR effects.n > chain.n";
                let never: Vec<i64> = sqlx::query_scalar(never).fetch_all(pool).await?;
                violations.extend(never.iter().map(|event| format!("event {event} had an effect but was never committed")));
                let twice = "SELECT max(event) FROM effects GROUP BY key, n HAVING count(*) > 1";
                let twice: Vec<i64> = sqlx::query_scalar(twice).fetch_all(pool).await?;
                for event in twice.iter().take(5) {
                    let by = "SELECT member FROM effects WHERE event = $1";
                    let by: Vec<String> = sqlx::query_scalar(by).bind(event).fetch_all(pool).await?;
                    violations.insert(0, format!("event {event} had more than one effect: by {}", by.join("; by ")));
                }
                let doubled = twice.len() as u64;
                violations.truncate(20);
                let published = u64::try_from(published).unwrap_or(0);
                Ok(ChainReport { published, lost, reordered, doubled, violations })
            }
        }
    };
}

chains_on!(sqlite, sqlx::Sqlite, "BEGIN IMMEDIATE");
chains_on!(postgres, sqlx::Postgres, "BEGIN");
