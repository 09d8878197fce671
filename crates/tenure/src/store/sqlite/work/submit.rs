//! Submissions. A submission is atomic: it creates all of its tasks or none.

use std::collections::{BTreeSet, HashMap};

use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection, Row};
use tenure_core::model::work::{no_such_parent, unfulfillable_parent};
use tenure_core::port::{NewTask, ParentRef, StoreError, Submission, SubmitReceipt, TaskId, TaskState};
use tenure_core::rules::work::{Requirements, effective_at, validate_submission};

use super::super::SqliteStore;
use super::super::bulk::{portions, repeated};
use super::super::connection::query;
use super::super::guard::STATEMENTS;
use super::{CallError, ExplainResult, invalid_request, json, ms, number};
use crate::runtime;
use crate::store::queries::Queries;

/// Maximum payload bytes of one statement: few round trips, and far below the limit of SQLite.
const CHUNK_BYTES: usize = 4 << 20;

/// Maximum tasks of one statement.
const CHUNK_TASKS: usize = 1_000;

/// A row of tenure_tasks to insert.
struct TaskRow<'a> {
    id: i64,
    queue: i64,
    requirements_id: i64,
    state: TaskState,
    parents: usize,
    concurrency_key: Option<String>,
    task: &'a NewTask,
}

/// The result of a submission.
pub(in super::super) struct SubmitResult {
    pub(in super::super) queue: i64,
    /// Whether at least one of the tasks is ready.
    pub(in super::super) ready: bool,
    pub(in super::super) submitted: Vec<SubmitReceipt>,
}

/// Submit tasks in the transaction of the caller on `conn`. The tasks exist if and only if the transaction commits.
///
/// The call takes the write lock of the file. It does not notify waiters, because only the caller knows when the transaction commits;
/// waiting workers find the tasks at their next poll. Fails if no transaction is open.
pub async fn submit(
    conn: &mut SqliteConnection,
    submission: &Submission,
) -> Result<Vec<SubmitReceipt>, StoreError> {
    if !conn.is_in_transaction() {
        let message =
            "submitting tasks needs a transaction, so that the submission is atomic; begin one first";
        return Err(invalid_request(message));
    }
    validate_submission(submission)?;
    let result = submit_one(&STATEMENTS, conn, submission, runtime::wall_ms())
        .await
        .with_user_context("submitting tasks")?;
    Ok(result.submitted)
}

impl SqliteStore {
    pub(super) async fn submit_tasks(
        &self,
        submission: &Submission,
    ) -> Result<Vec<SubmitReceipt>, CallError> {
        // Validate before taking the write lock.
        validate_submission(submission)?;
        let mut tx = self.begin_write().await?;
        let now = tx.wall_ms;
        let result = submit_one(&self.queries, tx.transaction.connection(), submission, now).await?;
        if result.ready {
            tx.notify_queues(&BTreeSet::from([result.queue])).await?;
        }
        tx.commit().await?;
        Ok(result.submitted)
    }
}

/// Submit a validated submission on a connection with an open transaction. The caller notifies waiters.
async fn submit_one(
    queries: &Queries,
    conn: &mut SqliteConnection,
    submission: &Submission,
    now: i64,
) -> Result<SubmitResult, CallError> {
    let mut results = submit_all(queries, conn, std::slice::from_ref(submission), now).await?;
    results.pop().ok_or_else(|| sqlx::Error::RowNotFound.into())
}

/// Submit several validated submissions with the round trips of one. The caller notifies waiters.
pub(in super::super) async fn submit_all(
    queries: &Queries,
    conn: &mut SqliteConnection,
    submissions: &[Submission],
    now: i64,
) -> Result<Vec<SubmitResult>, CallError> {
    let queue_ids = queue_ids(queries, conn, submissions, now).await?;
    let mut results = assign_ids(queries, conn, submissions, queue_ids).await?;
    let mut dependencies = Vec::with_capacity(submissions.len());
    for (submission, result) in submissions.iter().zip(&results) {
        dependencies.push(TaskDependencies::of(queries, conn, submission, &result.submitted).await?);
    }
    let mut requirements_ids = requirements_ids(queries, conn, submissions, &results).await?.into_iter();
    let (mut rows, mut bytes): (Vec<TaskRow<'_>>, usize) = (Vec::new(), 0);
    for ((submission, task_dependencies), result) in submissions.iter().zip(&dependencies).zip(&mut results) {
        let namespace = &submission.queue.namespace;
        for (index, (task, submitted)) in submission.tasks.iter().zip(&result.submitted).enumerate() {
            let requirements_id = requirements_ids.next().unwrap_or_default();
            if !submitted.created {
                continue;
            }
            let parents = &task_dependencies.parents[index];
            let state = if parents.iter().any(|id| !task_dependencies.completed.contains(id)) {
                TaskState::Waiting
            } else if task.run_at_ms.is_some_and(|at| at > now) {
                TaskState::Scheduled
            } else {
                result.ready = true;
                TaskState::Ready
            };
            if rows.len() == CHUNK_TASKS || bytes > CHUNK_BYTES {
                insert(queries, conn, now, &std::mem::take(&mut rows)).await?;
                bytes = 0;
            }
            bytes += task.payload.as_str().len();
            rows.push(TaskRow {
                id: number(submitted.id.0),
                queue: result.queue,
                requirements_id,
                state,
                parents: parents.len(),
                concurrency_key: task.concurrency_key.as_ref().map(|key| format!("{namespace}/{key}")),
                task,
            });
        }
    }
    insert(queries, conn, now, &rows).await?;
    let mut dependency_rows: Vec<(i64, i64)> = Vec::new();
    for (task_dependencies, result) in dependencies.iter().zip(&results) {
        for (parents, submitted) in
            task_dependencies.parents.iter().zip(&result.submitted).filter(|(_, it)| it.created)
        {
            dependency_rows.extend(parents.iter().map(|parent| (*parent, number(submitted.id.0))));
        }
    }
    if !dependency_rows.is_empty() {
        query(queries.get("task_dependency_put")).bind(json(&dependency_rows)?).execute(&mut *conn).await?;
    }
    Ok(results)
}

/// The queue id of each submission. Creates missing queues.
async fn queue_ids(
    queries: &Queries,
    conn: &mut SqliteConnection,
    submissions: &[Submission],
    now: i64,
) -> Result<Vec<i64>, CallError> {
    // This statement takes the write lock, so no other transaction can assign ids until the commit.
    if let [Submission { queue, .. }] = submissions {
        let (namespace, name) = (queue.namespace.as_str(), queue.name.as_str());
        query(queries.get("queue_create")).bind(namespace).bind(name).bind(now).execute(&mut *conn).await?;
        let find = query(queries.get("queue_id")).bind(namespace).bind(name);
        return Ok(vec![find.fetch_one(&mut *conn).await?.try_get(0)?]);
    }
    let names = submissions.iter().map(|it| (it.queue.namespace.as_str(), it.queue.name.as_str()));
    let names = json(&names.collect::<Vec<_>>())?;
    query(queries.get("queue_create_all")).bind(&names).bind(now).execute(&mut *conn).await?;
    let mut ids = vec![0; submissions.len()];
    for row in query(queries.get("queue_id_list")).bind(&names).fetch_all(&mut *conn).await? {
        let index = usize::try_from(row.try_get::<i64, _>("list_index")?).unwrap_or(usize::MAX);
        if let Some(id) = ids.get_mut(index) {
            *id = row.try_get("id")?;
        }
    }
    Ok(ids)
}

/// The id of each task: that of the existing task with the same idempotency key, or a new one.
async fn assign_ids(
    queries: &Queries,
    conn: &mut SqliteConnection,
    submissions: &[Submission],
    queue_ids: Vec<i64>,
) -> Result<Vec<SubmitResult>, CallError> {
    let mut keys: HashMap<(i64, String), u64> = HashMap::new();
    let all = || {
        submissions.iter().zip(&queue_ids).flat_map(|(it, queue)| it.tasks.iter().map(|task| (*queue, task)))
    };
    let keys_to_find: BTreeSet<(i64, &str)> =
        all().filter_map(|(queue, task)| Some((queue, task.idempotency_key.as_deref()?))).collect();
    if !keys_to_find.is_empty() {
        let find = query(queries.get("submit_find_by_idempotency_key")).bind(json(&keys_to_find)?);
        for row in find.fetch_all(&mut *conn).await? {
            let key = (row.try_get("queue_id")?, row.try_get("idempotency_key")?);
            keys.insert(key, row.try_get::<i64, _>("id")?.cast_unsigned());
        }
    }
    let next = query(queries.get("submit_next_id")).fetch_one(&mut *conn).await?;
    let mut next = next.try_get::<i64, _>(0)?.cast_unsigned();
    let mut results = Vec::with_capacity(submissions.len());
    for (submission, queue) in submissions.iter().zip(queue_ids) {
        let mut submitted = Vec::with_capacity(submission.tasks.len());
        for task in &submission.tasks {
            let key = task.idempotency_key.as_ref().map(|key| (queue, key.clone()));
            if let Some(id) = key.as_ref().and_then(|key| keys.get(key)) {
                submitted.push(SubmitReceipt { id: TaskId(*id), created: false });
                continue;
            }
            keys.extend(key.map(|key| (key, next)));
            submitted.push(SubmitReceipt { id: TaskId(next), created: true });
            next += 1;
        }
        results.push(SubmitResult { queue, ready: false, submitted });
    }
    Ok(results)
}

/// The parents of the submitted tasks.
struct TaskDependencies {
    /// For each task: the ids of its parents.
    parents: Vec<BTreeSet<i64>>,
    /// The completed parents.
    completed: BTreeSet<i64>,
}

impl TaskDependencies {
    async fn of(
        queries: &Queries,
        conn: &mut SqliteConnection,
        submission: &Submission,
        submitted: &[SubmitReceipt],
    ) -> Result<TaskDependencies, CallError> {
        let id = |parent: &ParentRef| match *parent {
            ParentRef::Task(id) => number(id.0),
            ParentRef::Index(index) => number(submitted[index as usize].id.0),
        };
        let of = |task: &NewTask| task.parents.iter().map(id).collect::<BTreeSet<i64>>();
        let parents: Vec<BTreeSet<i64>> = submission.tasks.iter().map(of).collect();
        let new: BTreeSet<i64> = submitted.iter().filter(|it| it.created).map(|it| number(it.id.0)).collect();
        let of_new =
            parents.iter().zip(submitted).filter(|(_, it)| it.created).flat_map(|(parents, _)| parents);
        let existing: BTreeSet<i64> = of_new.filter(|id| !new.contains(id)).copied().collect();
        let mut completed = BTreeSet::new();
        if !existing.is_empty() {
            let namespace = &submission.queue.namespace;
            // The index of the first new task with this parent, for error messages.
            let has_parent =
                |(index, it): (usize, &BTreeSet<i64>), id: i64| submitted[index].created && it.contains(&id);
            let index =
                |id: i64| parents.iter().enumerate().position(|it| has_parent(it, id)).unwrap_or_default();
            let select =
                query(queries.get("submit_parent_states")).bind(json(&existing)?).bind(namespace.as_str());
            for row in select.fetch_all(&mut *conn).await? {
                let (id, state): (i64, Option<String>) = (row.try_get("id")?, row.try_get("state")?);
                match state.as_deref().and_then(TaskState::from_name) {
                    None => {
                        return Err(no_such_parent(index(id), TaskId(id.cast_unsigned()), namespace).into());
                    }
                    Some(TaskState::Completed) => drop(completed.insert(id)),
                    Some(state @ (TaskState::Dead | TaskState::Cancelled)) => {
                        return Err(unfulfillable_parent(index(id), TaskId(id.cast_unsigned()), state).into());
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(TaskDependencies { parents, completed })
    }
}

/// The requirements id of each task, in submission order; 0 for tasks that exist already.
async fn requirements_ids(
    queries: &Queries,
    conn: &mut SqliteConnection,
    submissions: &[Submission],
    results: &[SubmitResult],
) -> Result<Vec<i64>, CallError> {
    let mut known: HashMap<(i64, Requirements), usize> = HashMap::new();
    let mut list: Vec<(i64, String, String, String, String)> = Vec::new();
    let mut indexes: Vec<Option<usize>> = Vec::new();
    for (submission, result) in submissions.iter().zip(results) {
        for (task, submitted) in submission.tasks.iter().zip(&result.submitted) {
            if !submitted.created {
                indexes.push(None);
                continue;
            }
            let requirements = (result.queue, Requirements::of(task));
            indexes.push(Some(match known.get(&requirements) {
                Some(index) => *index,
                None => {
                    let (
                        queue,
                        Requirements {
                            kind,
                            required_tags: requires,
                            preferred_tags: prefers,
                            allowed_workers: workers,
                        },
                    ) = &requirements;
                    list.push((*queue, kind.clone(), json(requires)?, json(prefers)?, json(workers)?));
                    known.insert(requirements, list.len() - 1);
                    list.len() - 1
                }
            }));
        }
    }
    let list_json = json(&list)?;
    let mut ids = vec![0; list.len()];
    // Most requirements exist. Create the missing ones and search again.
    for attempt in 0..2 {
        let rows = query(queries.get("requirements_find")).bind(&list_json).fetch_all(&mut *conn).await?;
        for row in &rows {
            let index = usize::try_from(row.try_get::<i64, _>("list_index")?).unwrap_or(usize::MAX);
            if let Some(id) = ids.get_mut(index) {
                *id = row.try_get("id")?;
            }
        }
        if attempt == 1 || rows.len() == list.len() {
            break;
        }
        query(queries.get("requirements_create")).bind(&list_json).execute(&mut *conn).await?;
    }
    let id = |index: Option<usize>| index.and_then(|index| ids.get(index)).copied().unwrap_or_default();
    Ok(indexes.into_iter().map(id).collect())
}

async fn insert(
    queries: &Queries,
    conn: &mut SqliteConnection,
    now: i64,
    rows: &[TaskRow<'_>],
) -> Result<(), CallError> {
    for rows in portions(rows) {
        let statement = repeated(queries.get("task_submit"), rows.len());
        let mut insert = query(&statement);
        for row in rows {
            let task = row.task;
            let ready_at = (row.state == TaskState::Ready).then_some(now);
            let max_wait_ms = task.max_wait_ms.map(ms);
            insert = insert
                .bind(row.id)
                .bind(row.queue)
                .bind(row.requirements_id)
                .bind(row.state.as_str())
                .bind(effective_at(now, task.priority))
                .bind(task.priority)
                .bind(task.max_attempts)
                .bind(number(row.parents as u64))
                .bind(row.concurrency_key.as_deref())
                .bind(task.concurrency_limit)
                .bind(task.idempotency_key.as_deref())
                .bind(task.leader_token.map(|token| number(token.as_u64())))
                .bind(ms(task.backoff.initial_ms))
                .bind(ms(task.backoff.max_ms))
                .bind(max_wait_ms)
                .bind(task.max_run_ms.map(ms))
                .bind(now)
                .bind(task.run_at_ms)
                .bind(ready_at)
                .bind(ready_at.zip(max_wait_ms).map(|(at, wait_ms)| at + wait_ms))
                .bind(task.payload.as_str());
        }
        insert.execute(&mut *conn).await?;
    }
    Ok(())
}
