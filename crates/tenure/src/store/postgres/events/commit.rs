//! Commits of partitions, in the transaction of the handler or of the library.

use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::PgConnection;
use tenure_core::port::{CommitResult, EventId, ParkedEventState, PartitionCommit, StoreError};
use tenure_core::rules::event::validate_commit;
use tenure_core::rules::work::{bounded_ms, clip};

use super::super::error::{explain, unexpected_response};
use super::super::message::{Message, REQUIRE_SYNC_STANDBY};
use super::super::store::int;
use super::super::value::Value;
use super::super::wire::PgRow;
use super::super::work::{array, texts};
use super::super::{PostgresStore, QUERIES, get};
use super::group as key_of;
use super::publish::numbers;

/// Commit a partition in the transaction on this connection, together with everything else in it. After
/// [`CommitResult::LeaseLost`] roll back: another member may process these events.
///
/// The lease stays locked until the transaction ends, and no other member takes it before. The rest of the transaction is
/// limited to the lease duration, as after a [`guard`](super::guard): a member that stops in the middle must not block the
/// next one for longer.
pub async fn commit_partition(
    conn: &mut PgConnection,
    commit: &PartitionCommit,
    lease: Duration,
) -> Result<CommitResult, StoreError> {
    let committed = commit_partitions(conn, std::slice::from_ref(commit), lease).await?;
    committed.into_iter().next().ok_or_else(|| unexpected_response("a commit", "no result"))
}

/// Commit several partitions, with one result for each.
pub async fn commit_partitions(
    conn: &mut PgConnection,
    commits: &[PartitionCommit],
    lease: Duration,
) -> Result<Vec<CommitResult>, StoreError> {
    // At least a millisecond: zero means "no limit".
    let lease_ms = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX).max(1);
    let message =
        Message::for_user(&QUERIES).then("lease_limit_transaction_time", &[Value::Int(lease_ms)])?;
    let (message, form) = commit_message(message, commits)?;
    let answers = message.run_on(conn).await.map_err(|error| explain(&error, "this connection"))?;
    form.read(&answers)
}

impl PostgresStore {
    pub(super) async fn commit_all(
        &self,
        commits: &[PartitionCommit],
    ) -> Result<Vec<CommitResult>, StoreError> {
        if commits.is_empty() {
            return Ok(Vec::new());
        }
        let message = Message::fresh(&self.queries).plain(REQUIRE_SYNC_STANDBY, self.shared.sync_replication);
        let (message, form) = commit_message(message, commits)?;
        form.read(&self.shared.events.run_all(message).await?)
    }
}

/// How the commits of a message were sent, which determines how to read the response.
enum CommitForm {
    /// One statement for each commit. The list has the index of the commit of each statement.
    OneByOne(Vec<usize>),
    /// One statement for all commits; the value is their number.
    Together(usize),
}

impl CommitForm {
    /// The results, in the order of the commits.
    fn read(self, answers: &[Vec<PgRow>]) -> Result<Vec<CommitResult>, StoreError> {
        let committed = |row: &PgRow| {
            Ok(if get(row, "committed")? { CommitResult::Committed } else { CommitResult::LeaseLost })
        };
        match self {
            CommitForm::OneByOne(order) => results_in_order(answers, order),
            CommitForm::Together(count) => {
                let rows = answers.last().map(Vec::as_slice).unwrap_or_default();
                if rows.len() != count {
                    return Err(unexpected_response("commits", format!("{} results", rows.len())));
                }
                rows.iter().map(committed).collect()
            }
        }
    }
}

/// The message of some commits. Commits of one group with only an offset, the usual case, go in one statement.
fn commit_message<'q>(
    message: Message<'q>,
    commits: &[PartitionCommit],
) -> Result<(Message<'q>, CommitForm), StoreError> {
    let offsets: Option<Vec<u64>> = commits.iter().map(only_offset).collect();
    let together = commits.len() > 1 && commits.iter().all(|commit| commit.group == commits[0].group);
    let partitions: BTreeSet<u32> = commits.iter().map(|commit| commit.partition).collect();
    let Some(offsets) = offsets.filter(|_| together && partitions.len() == commits.len()) else {
        let (message, order) = in_order(message, commits)?;
        return Ok((message, CommitForm::OneByOne(order)));
    };
    commits.iter().try_for_each(validate_commit)?;
    let [namespace, topic, name] = key_of(&commits[0].group);
    let partitions = array(commits.iter().map(|commit| commit.partition.into()));
    let tokens = array(commits.iter().map(|commit| commit.token.as_u64()));
    let offsets = array(offsets.into_iter());
    let values =
        [namespace, topic, name, partitions.as_str().into(), tokens.as_str().into(), offsets.as_str().into()];
    Ok((message.then("partition_commit_offsets", &values)?, CommitForm::Together(commits.len())))
}

/// The offset of a commit that has nothing else.
fn only_offset(commit: &PartitionCommit) -> Option<u64> {
    let nothing_else =
        commit.processed.is_empty() && commit.parked.is_empty() && commit.parked_results.is_empty();
    commit.offset.filter(|_| nothing_else)
}

/// One statement for each commit, in the order of groups and partitions, so that concurrent commits do not deadlock.
/// Returns that order, as indexes of the commits.
fn in_order<'q>(
    mut message: Message<'q>,
    commits: &[PartitionCommit],
) -> Result<(Message<'q>, Vec<usize>), StoreError> {
    let mut order: Vec<usize> = (0..commits.len()).collect();
    order.sort_by_key(|index| (&commits[*index].group, commits[*index].partition));
    for index in &order {
        message = add_commit(message, &commits[*index])?;
    }
    Ok((message, order))
}

/// The results, in the order of the commits.
fn results_in_order(answers: &[Vec<PgRow>], order: Vec<usize>) -> Result<Vec<CommitResult>, StoreError> {
    // Other statements of the message, such as settings, come before the commits.
    let answers = answers.get(answers.len().saturating_sub(order.len())..).unwrap_or_default();
    if answers.len() != order.len() {
        return Err(unexpected_response("commits", format!("{} results", answers.len())));
    }
    let mut committed = vec![CommitResult::LeaseLost; order.len()];
    for (index, rows) in order.into_iter().zip(answers) {
        committed[index] = commit_result(rows)?;
    }
    Ok(committed)
}

fn add_commit<'q>(message: Message<'q>, commit: &PartitionCommit) -> Result<Message<'q>, StoreError> {
    validate_commit(commit)?;
    let ids = |ids: &mut dyn Iterator<Item = EventId>| {
        let ids: Vec<u64> = ids.map(|id| id.0).collect();
        (!ids.is_empty()).then(|| array(ids.into_iter()))
    };
    let processed = ids(&mut commit.processed.iter().map(|(event, _)| *event));
    let processed_offsets =
        processed.as_ref().map(|_| array(commit.processed.iter().map(|(_, offset)| *offset)));
    let parked = ids(&mut commit.parked.iter().map(|parked| parked.event_id));
    let parked_offsets = parked.as_ref().map(|_| array(commit.parked.iter().map(|parked| parked.offset)));
    let parked_states = ParkedStateArg::of(commit.parked.iter().map(|parked| &parked.state));
    let settled = ids(&mut commit.parked_results.iter().map(|(event, _)| *event));
    let settled_states = ParkedStateArg::of(commit.parked_results.iter().map(|(_, state)| state));
    let [namespace, topic, name] = key_of(&commit.group);
    let values = [
        namespace,
        topic,
        name,
        commit.partition.into(),
        int(commit.token.as_u64()),
        commit.offset.map_or(Value::Null, int),
        processed.as_deref().into(),
        processed_offsets.as_deref().into(),
        parked.as_deref().into(),
        parked_offsets.as_deref().into(),
        parked.as_ref().map(|_| parked_states.attempts.as_str()).into(),
        parked.as_ref().map(|_| parked_states.retry_in_ms.as_str()).into(),
        parked.as_ref().map(|_| parked_states.errors.as_str()).into(),
        settled.as_deref().into(),
        settled.as_ref().map(|_| settled_states.attempts.as_str()).into(),
        settled.as_ref().map(|_| settled_states.retry_in_ms.as_str()).into(),
        settled.as_ref().map(|_| settled_states.errors.as_str()).into(),
    ];
    message.then("partition_commit", &values)
}

fn commit_result(rows: &[PgRow]) -> Result<CommitResult, StoreError> {
    let row = rows.first().ok_or_else(|| unexpected_response("a commit", "no row"))?;
    Ok(if get(row, "committed")? { CommitResult::Committed } else { CommitResult::LeaseLost })
}

/// States of parked events in the form that `tenure.commit_partition` reads.
struct ParkedStateArg {
    attempts: String,
    retry_in_ms: String,
    errors: String,
}

impl ParkedStateArg {
    fn of<'a>(all: impl Iterator<Item = &'a ParkedEventState>) -> ParkedStateArg {
        let (mut all_attempts, mut delays, mut errors) = (Vec::new(), Vec::new(), Vec::new());
        for state in all {
            let (attempts, delay, error) = match state {
                ParkedEventState::Processed => (None, None, None),
                ParkedEventState::Waiting => (Some(0), Some(0), None),
                ParkedEventState::Retry { attempts, retry_in_ms, error } => {
                    let delay = bounded_ms(Duration::from_millis(*retry_in_ms));
                    (Some(*attempts), i64::try_from(delay).ok(), Some(clip(error)))
                }
                ParkedEventState::Dead { attempts, error } => (Some(*attempts), None, Some(clip(error))),
            };
            all_attempts.push(attempts.map(i64::from));
            delays.push(delay);
            errors.push(error);
        }
        ParkedStateArg {
            attempts: numbers(all_attempts.into_iter()),
            retry_in_ms: numbers(delays.into_iter()),
            errors: texts(errors.iter().map(Option::as_deref)),
        }
    }
}
