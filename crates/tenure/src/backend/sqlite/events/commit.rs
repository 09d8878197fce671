//! What members say about their shares: under their tokens, or not at all.

use std::collections::BTreeMap;

use serde::Serialize;
use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection, Row};
use tenure_core::claim::clip;
use tenure_core::event::{check_commit, nothing_to_set_aside};
use tenure_core::port::{Aside, Committed, EventId, Position, ShareCommit, StoreError};

use super::super::Sqlite;
use super::super::change::number as token_number;
use super::super::connection::query;
use super::super::guard::PRISTINE;
use super::views::position;
use super::{Failed, Told, json, ms, nonsense, number};
use crate::backend::queries::Queries;
use crate::runtime;

/// Says how far a slot has been read, in the caller's own transaction on `conn`, if the slot is still held under the commit's
/// token. [`Committed::Stale`]: it is not, and nothing was changed; roll back what the handler did. After an error, roll back too.
///
/// It takes the file's write lock, by an `UPDATE` that compares the token. That is enough: SQLite has one writer at a time, so from
/// here to the commit nobody can take the slot. And had the transaction begun by reading, before somebody took it, its snapshot is
/// old, and SQLite refuses to let it write (`SQLITE_BUSY_SNAPSHOT`): roll back, and try again. Begin with `BEGIN IMMEDIATE` and
/// that can not happen.
pub async fn commit_share(
    conn: &mut SqliteConnection,
    commit: &ShareCommit,
) -> Result<Committed, StoreError> {
    commit_with(&PRISTINE, conn, commit).await
}

pub(in super::super) async fn commit_with(
    queries: &Queries,
    conn: &mut SqliteConnection,
    commit: &ShareCommit,
) -> Result<Committed, StoreError> {
    if !conn.is_in_transaction() {
        let message =
            "how far a slot has been read is said in the transaction of what was done; begin one first";
        return Err(nonsense(message));
    }
    let committed = async {
        check_commit(commit)?;
        let group = &commit.group;
        let held = query(queries.get("share_guard"))
            .bind(group.topic.namespace.as_str())
            .bind(group.topic.name.as_str())
            .bind(group.name.as_str())
            .bind(commit.slot)
            .bind(token_number(commit.token))
            .bind(commit.position.map(number))
            .fetch_optional(&mut *conn)
            .await?;
        let Some(row) = held else { return Ok(Committed::Stale) };
        // Mostly that is all.
        let named = commit.done.len() + commit.set_aside.len() + commit.settled.len();
        if named == 0 && !row.try_get::<bool, _>("passes")? {
            return Ok(Committed::Yes);
        }
        let committed = put(queries, conn, std::slice::from_ref(commit), runtime::wall_ms()).await?;
        Ok(committed.into_iter().next().unwrap_or(Committed::Stale))
    };
    committed.await.told_user("committing a share")
}

impl Sqlite {
    pub(super) async fn commit_all(&self, commits: &[ShareCommit]) -> Result<Vec<Committed>, Failed> {
        if commits.is_empty() {
            return Ok(Vec::new());
        }
        commits.iter().try_for_each(check_commit)?;
        let mut change = self.change().await?;
        let now = change.wall_ms;
        let committed = put(&self.queries, change.transaction.connection(), commits, now).await?;
        change.commit().await?;
        Ok(committed)
    }
}

/// What is to be written, each list for one statement.
#[derive(Default)]
struct Writes {
    /// By group and slot: up to where it is read.
    positions: BTreeMap<(i64, u32), i64>,
    done: Vec<DoneRow>,
    aside: Vec<AsideRow>,
    settled: Vec<SettledRow>,
    gone: Vec<GoneRow>,
}

/// Group, topic, slot, event and its position.
type DoneRow = (i64, i64, u32, i64, i64);

/// Group, topic, slot, event, its position, and how it stands.
type AsideRow = (i64, i64, u32, i64, i64, u8, u32, Option<i64>, String);

/// Group, slot, event, and how it stands.
type SettledRow = (i64, u32, i64, u8, u32, Option<i64>, String);

/// Group, slot and event.
type GoneRow = (i64, u32, i64);

/// Takes in what is said of shares that are held under the tokens that are named, in a transaction that may write.
async fn put(
    queries: &Queries,
    conn: &mut SqliteConnection,
    commits: &[ShareCommit],
    now: i64,
) -> Result<Vec<Committed>, Failed> {
    let asked: Vec<(&str, &str, &str, u32, i64)> = commits
        .iter()
        .map(|it| {
            let (topic, name) = (&it.group.topic, it.group.name.as_str());
            (topic.namespace.as_str(), topic.name.as_str(), name, it.slot, token_number(it.token))
        })
        .collect();
    let mut committed = vec![Committed::Stale; commits.len()];
    let mut writes = Writes::default();
    for row in query(queries.get("share_held")).bind(json(&asked)?).fetch_all(&mut *conn).await? {
        let place = usize::try_from(row.try_get::<i64, _>("place")?).unwrap_or(usize::MAX);
        if let Some(commit) = commits.get(place) {
            committed[place] = Committed::Yes;
            writes.add(row.try_get("of_group")?, row.try_get("topic")?, commit);
        }
    }
    if !writes.aside.is_empty() {
        let missing = query(queries.get("aside_missing")).bind(json(&writes.aside)?);
        if let Some(row) = missing.fetch_optional(&mut *conn).await? {
            return Err(missing_aside(commits, EventId(position(&row, "event")?)).into());
        }
    }
    writes.run(queries, conn, now).await?;
    Ok(committed)
}

impl Writes {
    fn add(&mut self, group: i64, topic: i64, commit: &ShareCommit) {
        let slot = commit.slot;
        if let Some(position) = commit.position.map(number) {
            let known = self.positions.entry((group, slot)).or_insert(position);
            *known = position.max(*known);
        }
        let mark = |(event, position): &(EventId, Position)| {
            (group, topic, slot, number(event.0), number(*position))
        };
        self.done.extend(commit.done.iter().map(mark));
        for aside in &commit.set_aside {
            let (dead, attempts, due, error) = standing(&aside.how);
            let (event, position) = (number(aside.event.0), number(aside.position));
            self.aside.push((group, topic, slot, event, position, dead, attempts, due, error));
        }
        for (event, how) in &commit.settled {
            let event = number(event.0);
            if *how == Aside::Done {
                self.gone.push((group, slot, event));
                continue;
            }
            let (dead, attempts, due, error) = standing(how);
            self.settled.push((group, slot, event, dead, attempts, due, error));
        }
    }

    async fn run(self, queries: &Queries, conn: &mut SqliteConnection, now: i64) -> Result<(), Failed> {
        let positions: Vec<(i64, u32, i64)> =
            self.positions.into_iter().map(|((group, slot), position)| (group, slot, position)).collect();
        let mut each = Statements { queries, conn, now };
        each.run("done_put", &self.done).await?;
        each.run("aside_put", &self.aside).await?;
        each.run("aside_settle", &self.settled).await?;
        each.run("aside_done", &self.gone).await?;
        each.run("share_move", &positions).await?;
        each.run("done_pass", &positions).await
    }
}

/// Statements that take a list, and the time.
struct Statements<'a> {
    queries: &'a Queries,
    conn: &'a mut SqliteConnection,
    now: i64,
}

impl Statements<'_> {
    async fn run(&mut self, name: &str, rows: &[impl Serialize]) -> Result<(), Failed> {
        if !rows.is_empty() {
            let statement = query(self.queries.get(name)).bind(json(&rows)?).bind(self.now);
            statement.execute(&mut *self.conn).await?;
        }
        Ok(())
    }
}

/// What is said of an event that can not be set aside.
fn missing_aside(commits: &[ShareCommit], event: EventId) -> StoreError {
    let sets_aside = |commit: &&ShareCommit| commit.set_aside.iter().any(|aside| aside.event == event);
    match commits.iter().find(sets_aside) {
        Some(commit) => nothing_to_set_aside(&commit.group, commit.slot, event),
        None => nonsense(format!("event {event} can not be set aside: it is not there")),
    }
}

/// How an event that is aside stands: whether it is dead, how often it was tried, in how long it is due, and what went wrong.
fn standing(how: &Aside) -> (u8, u32, Option<i64>, String) {
    match how {
        Aside::Done | Aside::Behind => (0, 0, None, String::new()),
        Aside::Retry { attempts, after_ms, error } => (0, *attempts, Some(ms(*after_ms)), clip(error)),
        Aside::Dead { attempts, error } => (1, *attempts, None, clip(error)),
    }
}
