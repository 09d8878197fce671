//! Commits of partitions. A commit takes effect only under the token of the partition lease.

use std::collections::BTreeMap;

use serde::Serialize;
use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection, Row};
use tenure_core::port::{CommitResult, EventId, Offset, ParkedEventState, PartitionCommit, StoreError};
use tenure_core::rules::event::{parked_event_missing, validate_commit};
use tenure_core::rules::work::clip;

use super::super::SqliteStore;
use super::super::connection::query;
use super::super::guard::STATEMENTS;
use super::super::write_transaction::number as token_number;
use super::views::u64_column;
use super::{CallError, ExplainResult, invalid_request, json, ms, number};
use crate::runtime;
use crate::store::queries::Queries;

/// Commit a partition in the transaction of the caller on `conn`, if the partition is still held under the token of the commit.
/// [`CommitResult::LeaseLost`] means that it is not and that nothing changed. Roll back the transaction then, and after an error.
///
/// The call takes the write lock of the file with an `UPDATE` that compares the token. SQLite has one writer at a time, so no session
/// can take the partition before the commit. If the transaction has read before an earlier takeover, its snapshot is old, and SQLite
/// rejects the write (`SQLITE_BUSY_SNAPSHOT`): roll back and retry. A transaction that starts with `BEGIN IMMEDIATE` avoids this
/// error. Fails if no transaction is open.
pub async fn commit_partition(
    conn: &mut SqliteConnection,
    commit: &PartitionCommit,
) -> Result<CommitResult, StoreError> {
    commit_with(&STATEMENTS, conn, commit).await
}

pub(in super::super) async fn commit_with(
    queries: &Queries,
    conn: &mut SqliteConnection,
    commit: &PartitionCommit,
) -> Result<CommitResult, StoreError> {
    if !conn.is_in_transaction() {
        let message = "committing a partition needs the transaction of the handler; begin one first";
        return Err(invalid_request(message));
    }
    let committed = async {
        validate_commit(commit)?;
        let group = &commit.group;
        let held = query(queries.get("partition_lease_guard"))
            .bind(group.topic.namespace.as_str())
            .bind(group.topic.name.as_str())
            .bind(group.name.as_str())
            .bind(commit.partition)
            .bind(token_number(commit.token))
            .bind(commit.offset.map(number))
            .fetch_optional(&mut *conn)
            .await?;
        let Some(row) = held else { return Ok(CommitResult::LeaseLost) };
        // Most commits only move the offset.
        let named = commit.processed.len() + commit.parked.len() + commit.parked_results.len();
        if named == 0 && !row.try_get::<bool, _>("passes_processed")? {
            return Ok(CommitResult::Committed);
        }
        let committed = put(queries, conn, std::slice::from_ref(commit), runtime::wall_ms()).await?;
        Ok(committed.into_iter().next().unwrap_or(CommitResult::LeaseLost))
    };
    committed.await.with_user_context("committing a partition")
}

impl SqliteStore {
    pub(super) async fn commit_all(
        &self,
        commits: &[PartitionCommit],
    ) -> Result<Vec<CommitResult>, CallError> {
        if commits.is_empty() {
            return Ok(Vec::new());
        }
        commits.iter().try_for_each(validate_commit)?;
        let mut tx = self.begin_write().await?;
        let now = tx.wall_ms;
        let committed = put(&self.queries, tx.transaction.connection(), commits, now).await?;
        tx.commit().await?;
        Ok(committed)
    }
}

/// The rows to write; each list is for one statement.
#[derive(Default)]
struct Writes {
    /// The committed offset by group and partition.
    offsets: BTreeMap<(i64, u32), i64>,
    processed: Vec<ProcessedEventRow>,
    parked: Vec<ParkedEventRow>,
    settled: Vec<SettledRow>,
    unparked: Vec<UnparkedEventRow>,
}

/// Group, topic, partition, event and offset.
type ProcessedEventRow = (i64, i64, u32, i64, i64);

/// Group, topic, partition, event, offset, dead, attempts, retry delay and error.
type ParkedEventRow = (i64, i64, u32, i64, i64, u8, u32, Option<i64>, String);

/// Group, partition, event, dead, attempts, retry delay and error.
type SettledRow = (i64, u32, i64, u8, u32, Option<i64>, String);

/// Group, partition and event.
type UnparkedEventRow = (i64, u32, i64);

/// Apply commits whose partitions are held under their tokens, in a transaction with the write lock.
async fn put(
    queries: &Queries,
    conn: &mut SqliteConnection,
    commits: &[PartitionCommit],
    now: i64,
) -> Result<Vec<CommitResult>, CallError> {
    let requested: Vec<(&str, &str, &str, u32, i64)> = commits
        .iter()
        .map(|it| {
            let (topic, name) = (&it.group.topic, it.group.name.as_str());
            (topic.namespace.as_str(), topic.name.as_str(), name, it.partition, token_number(it.token))
        })
        .collect();
    let mut committed = vec![CommitResult::LeaseLost; commits.len()];
    let mut writes = Writes::default();
    for row in query(queries.get("partition_lease_get")).bind(json(&requested)?).fetch_all(&mut *conn).await?
    {
        let index = usize::try_from(row.try_get::<i64, _>("list_index")?).unwrap_or(usize::MAX);
        if let Some(commit) = commits.get(index) {
            committed[index] = CommitResult::Committed;
            writes.add(row.try_get("group_id")?, row.try_get("topic_id")?, commit);
        }
    }
    if !writes.parked.is_empty() {
        let missing = query(queries.get("parked_event_missing")).bind(json(&writes.parked)?);
        if let Some(row) = missing.fetch_optional(&mut *conn).await? {
            return Err(missing_parked_event(commits, EventId(u64_column(&row, "event_id")?)).into());
        }
    }
    writes.run(queries, conn, now).await?;
    Ok(committed)
}

impl Writes {
    fn add(&mut self, group: i64, topic: i64, commit: &PartitionCommit) {
        let partition = commit.partition;
        if let Some(offset) = commit.offset.map(number) {
            let known = self.offsets.entry((group, partition)).or_insert(offset);
            *known = offset.max(*known);
        }
        let mark =
            |(event, offset): &(EventId, Offset)| (group, topic, partition, number(event.0), number(*offset));
        self.processed.extend(commit.processed.iter().map(mark));
        for parked in &commit.parked {
            let (dead, attempts, due, error) = parked_columns(&parked.state);
            let (event, offset) = (number(parked.event_id.0), number(parked.offset));
            self.parked.push((group, topic, partition, event, offset, dead, attempts, due, error));
        }
        for (event, state) in &commit.parked_results {
            let event = number(event.0);
            if *state == ParkedEventState::Processed {
                self.unparked.push((group, partition, event));
                continue;
            }
            let (dead, attempts, due, error) = parked_columns(state);
            self.settled.push((group, partition, event, dead, attempts, due, error));
        }
    }

    async fn run(self, queries: &Queries, conn: &mut SqliteConnection, now: i64) -> Result<(), CallError> {
        let offsets: Vec<(i64, u32, i64)> =
            self.offsets.into_iter().map(|((group, partition), offset)| (group, partition, offset)).collect();
        let mut each = Statements { queries, conn, now };
        each.run("processed_event_put", &self.processed).await?;
        each.run("parked_event_put", &self.parked).await?;
        each.run("parked_event_settle", &self.settled).await?;
        each.run("parked_event_done", &self.unparked).await?;
        each.run("partition_commit_offset", &offsets).await?;
        each.run("processed_event_delete_committed", &offsets).await
    }
}

/// Executes statements with a list and the current time as parameters.
struct Statements<'a> {
    queries: &'a Queries,
    conn: &'a mut SqliteConnection,
    now: i64,
}

impl Statements<'_> {
    async fn run(&mut self, name: &str, rows: &[impl Serialize]) -> Result<(), CallError> {
        if !rows.is_empty() {
            let statement = query(self.queries.get(name)).bind(json(&rows)?).bind(self.now);
            statement.execute(&mut *self.conn).await?;
        }
        Ok(())
    }
}

/// The error for an event that cannot be parked.
fn missing_parked_event(commits: &[PartitionCommit], event: EventId) -> StoreError {
    let parks_event = |commit: &&PartitionCommit| commit.parked.iter().any(|parked| parked.event_id == event);
    match commits.iter().find(parks_event) {
        Some(commit) => parked_event_missing(&commit.group, commit.partition, event),
        None => invalid_request(format!("event {event} cannot be parked: it does not exist")),
    }
}

/// The columns of a parked event: dead, attempts, retry delay and error.
fn parked_columns(state: &ParkedEventState) -> (u8, u32, Option<i64>, String) {
    match state {
        ParkedEventState::Processed | ParkedEventState::Waiting => (0, 0, None, String::new()),
        ParkedEventState::Retry { attempts, retry_in_ms: after_ms, error } => {
            (0, *attempts, Some(ms(*after_ms)), clip(error))
        }
        ParkedEventState::Dead { attempts, error } => (1, *attempts, None, clip(error)),
    }
}
