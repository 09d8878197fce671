//! The books by which events are judged: what writers committed, what handlers did, and what of it is amiss.
//!
//! Each key has a *chain*: its events are numbered, and each carries a hash over the one before. A writer goes on with the chain
//! in the transaction in which it publishes, so what is in the table `chain` is what was committed, in its order. A handler goes on
//! with the same chain in the table `seen`, in the transaction in which its group says how far it has read, and writes down one
//! effect for each event. An event that does not follow the one before it was reordered, or one was lost; when nothing is left to be
//! read, a key whose chains differ has lost events; and an event with two effects was doubled.
//!
//! Writers of one chain wait for one another at its row, so the order in which they publish is the order in which they commit, whatever
//! Tenure does. Some keys therefore have a chain for each writer: there transactions of one key overlap, and nothing but Tenure
//! keeps them in order.
//!
//! The same words in both dialects, once for each: the types of the driver are not the same.

use serde::{Deserialize, Serialize};
use tenure::port::TopicKey;
use tenure::{Name, NameError};

/// The topic.
pub(crate) const TOPIC: &str = "deeds";
/// The group.
pub(crate) const GROUP: &str = "books";
/// How many slots it has: few, so that keys share them.
pub(crate) const SLOTS: u32 = 16;
/// How many keys there are, and how many more that writers share without waiting for one another.
const KEYS: u64 = 48;
const FREE_KEYS: u64 = 12;

pub(crate) fn topic() -> Result<TopicKey, NameError> {
    Ok(TopicKey::new(Name::default_namespace(), TOPIC.parse()?))
}

/// The key of a chain's events: that of the chain, but for those that writers share.
fn key_of(chain: &str) -> &str {
    chain.split_once('/').map_or(chain, |(key, _)| key)
}

/// A link of a chain: what an event carries.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Link {
    /// Whose chain of the key it is, if each writer has one.
    writer: Option<u64>,
    n: i64,
    before: i64,
    hash: i64,
}

impl Link {
    /// The link number `n`, which follows one with this hash.
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

/// What the books say in the end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Judged {
    /// How many events were committed.
    pub(crate) published: u64,
    /// How many never came.
    pub(crate) lost: u64,
    /// How many did not follow the one before.
    pub(crate) reordered: u64,
    /// How many had more than one effect.
    pub(crate) doubled: u64,
    /// The first of what is amiss.
    pub(crate) amiss: Vec<String>,
}

const TABLES: [&str; 4] = [
    "CREATE TABLE chain (key TEXT PRIMARY KEY, n BIGINT NOT NULL, hash BIGINT NOT NULL)",
    "CREATE TABLE seen (key TEXT PRIMARY KEY, n BIGINT NOT NULL, hash BIGINT NOT NULL)",
    "CREATE TABLE effects (event BIGINT NOT NULL, key TEXT NOT NULL, n BIGINT NOT NULL, member TEXT NOT NULL)",
    "CREATE TABLE amiss (what TEXT NOT NULL)",
];

macro_rules! books_on {
    ($dialect:ident, $database:ty, $begin:literal) => {
        pub(crate) mod $dialect {
            use std::time::Duration;

            use sqlx::{Connection, Pool, Row, Transaction};
            use tenure::port::{Event, Json, NewEvent, Payload};
            use tenure::{HandlerError, Outbox};
            use tenure_core::event::slot_of;
            use tenure_core::{Entropy, SplitMix};

            use super::{FREE_KEYS, KEYS, Judged, Link, TABLES, key_of, topic};

            type Trouble = Box<dyn std::error::Error + Send + Sync>;

            /// Makes the tables.
            pub(crate) async fn create(pool: &Pool<$database>) -> Result<(), Trouble> {
                for table in TABLES {
                    sqlx::query(table).execute(pool).await?;
                }
                Ok(())
            }

            /// One transaction of this writer, of random length, that may be rolled back in part or whole. How many events it committed.
            pub(crate) async fn write(
                pool: &Pool<$database>,
                dice: &mut SplitMix,
                patience_ms: u64,
                writer: u64,
            ) -> Result<u64, Trouble> {
                let mut tx = pool.begin_with($begin).await?;
                let mut keys: Vec<u64> = (0..1 + dice.next_u64() % 5).map(|_| dice.next_u64() % KEYS).collect();
                // In one order, so that writers wait for one another and are not killed as deadlocked.
                keys.sort_unstable();
                for key in &keys {
                    let key = match dice.next_u64() % 4 {
                        0 => format!("free-{}/{writer}", key % FREE_KEYS),
                        _ => format!("key-{key}"),
                    };
                    if dice.next_u64() % 8 == 0 {
                        let mut inner = (*tx).begin().await?;
                        publish(&mut inner, &key).await?;
                        inner.rollback().await?;
                    }
                    publish(&mut tx, &key).await?;
                    let pause = dice.next_u64() % (patience_ms * 2 + 1);
                    if pause > patience_ms {
                        tokio::time::sleep(Duration::from_millis(pause - patience_ms)).await;
                    }
                }
                if dice.next_u64() % 8 == 0 {
                    tx.rollback().await?;
                    return Ok(0);
                }
                tx.commit().await?;
                Ok(keys.len() as u64)
            }

            /// Goes on with the chain of a key, and publishes the next link.
            #[allow(dead_code)] // Outside of this file only where it is sabotaged.
            pub(crate) async fn publish(tx: &mut Transaction<'_, $database>, chain: &str) -> Result<(), Trouble> {
                let new = "INSERT INTO chain (key, n, hash) VALUES ($1, 1, 0) ON CONFLICT (key) DO UPDATE SET n = chain.n + 1 \
                           RETURNING n, hash";
                let row = sqlx::query(new).bind(chain).fetch_one(&mut **tx).await?;
                let link = Link::after(chain, row.try_get(0)?, row.try_get(1)?);
                let hash = "UPDATE chain SET hash = $2 WHERE key = $1";
                sqlx::query(hash).bind(chain).bind(link.hash).execute(&mut **tx).await?;
                let event = NewEvent {
                    key: Some(key_of(chain).to_owned()),
                    payload: Payload::Json(Json::of(&link)?),
                    ..NewEvent::new("deed")
                };
                Outbox::publish(tx, &topic()?, &[event]).await?;
                Ok(())
            }

            /// What a handler does.
            pub(crate) async fn keep(
                events: &[Event],
                conn: &mut <$database as sqlx::Database>::Connection,
                member: &str,
            ) -> Result<(), HandlerError> {
                for event in events {
                    let Payload::Json(json) = &event.payload else { return Err(HandlerError::fail("no link")) };
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
                        let what = format!("{member} was given number {n} of {key}, event {id}, after {seen:?}");
                        sqlx::query("INSERT INTO amiss (what) VALUES ($1)").bind(what).execute(&mut *conn).await?;
                    }
                    let set = "INSERT INTO seen (key, n, hash) VALUES ($1, $2, $3) \
                               ON CONFLICT (key) DO UPDATE SET n = excluded.n, hash = excluded.hash";
                    sqlx::query(set).bind(key).bind(n).bind(hash).execute(&mut *conn).await?;
                }
                Ok(())
            }

            /// What was done of a slot is undone, all of it: its group begins anew there.
            #[allow(dead_code)] // Nothing is reset in chaos.
            pub(crate) async fn forget(pool: &Pool<$database>, slot: u32, slots: u32) -> Result<(), Trouble> {
                let mut tx = pool.begin_with($begin).await?;
                let chains: Vec<String> =
                    sqlx::query_scalar("SELECT key FROM seen").fetch_all(&mut *tx).await?;
                for chain in chains.iter().filter(|chain| slot_of(key_of(chain), slots) == slot) {
                    for table in ["DELETE FROM seen WHERE key = $1", "DELETE FROM effects WHERE key = $1"] {
                        sqlx::query(table).bind(chain).execute(&mut *tx).await?;
                    }
                }
                Ok(tx.commit().await?)
            }

            /// How many events were committed, and how many effects there are.
            pub(crate) async fn counts(pool: &Pool<$database>) -> Result<(i64, i64), Trouble> {
                let published = "SELECT CAST(coalesce(sum(n), 0) AS BIGINT) FROM chain";
                let published: i64 = sqlx::query_scalar(published).fetch_one(pool).await?;
                let effects: i64 =
                    sqlx::query_scalar("SELECT count(DISTINCT event) FROM effects").fetch_one(pool).await?;
                Ok((published, effects))
            }

            /// What the books say.
            pub(crate) async fn judge(pool: &Pool<$database>) -> Result<Judged, Trouble> {
                let (published, _) = counts(pool).await?;
                let mut amiss: Vec<String> =
                    sqlx::query_scalar("SELECT what FROM amiss").fetch_all(pool).await?;
                let reordered = amiss.len() as u64;
                let differ = "SELECT chain.key, chain.n, coalesce(seen.n, 0) FROM chain LEFT JOIN seen \
                              ON seen.key = chain.key WHERE seen.n IS NULL OR seen.n <> chain.n OR seen.hash <> chain.hash";
                for row in sqlx::query(differ).fetch_all(pool).await? {
                    let (key, committed, seen): (String, i64, i64) =
                        (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
                    amiss.push(format!("of {key}, {committed} were committed and the last seen was {seen}"));
                }
                // By what was committed, link by link: an effect of something else does not stand for one that is missing.
                let there = "SELECT CAST(count(*) AS BIGINT) FROM (SELECT DISTINCT effects.key, effects.n FROM effects \
                             JOIN chain ON chain.key = effects.key AND effects.n BETWEEN 1 AND chain.n) there";
                let there: i64 = sqlx::query_scalar(there).fetch_one(pool).await?;
                let lost = u64::try_from(published - there).unwrap_or(0);
                let never = "SELECT effects.event FROM effects LEFT JOIN chain ON chain.key = effects.key \
                             WHERE chain.key IS NULL OR effects.n > chain.n";
                let never: Vec<i64> = sqlx::query_scalar(never).fetch_all(pool).await?;
                amiss.extend(never.iter().map(|event| format!("event {event} was never committed")));
                let twice = "SELECT max(event) FROM effects GROUP BY key, n HAVING count(*) > 1";
                let twice: Vec<i64> = sqlx::query_scalar(twice).fetch_all(pool).await?;
                for event in twice.iter().take(5) {
                    let by = "SELECT member FROM effects WHERE event = $1";
                    let by: Vec<String> = sqlx::query_scalar(by).bind(event).fetch_all(pool).await?;
                    amiss.insert(0, format!("event {event} had more than one effect: by {}", by.join("; by ")));
                }
                let doubled = twice.len() as u64;
                amiss.truncate(20);
                let published = u64::try_from(published).unwrap_or(0);
                Ok(Judged { published, lost, reordered, doubled, amiss })
            }
        }
    };
}

books_on!(sqlite, sqlx::Sqlite, "BEGIN IMMEDIATE");
books_on!(postgres, sqlx::Postgres, "BEGIN");
