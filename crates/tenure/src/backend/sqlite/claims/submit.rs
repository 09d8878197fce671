//! Submissions: all of it, or nothing.

use std::collections::{BTreeSet, HashMap};

use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection, Row};
use tenure_core::claim::{Demand, check, effective_at};
use tenure_core::ledger::{hopeless_parent, no_such_parent};
use tenure_core::port::{NewTask, Parent, StoreError, Submission, Submitted, TaskId, TaskState};

use super::super::Sqlite;
use super::super::connection::query;
use super::super::guard::PRISTINE;
use super::super::rows::{portions, repeated};
use super::{Failed, Told, json, ms, nonsense, number};
use crate::backend::queries::Queries;
use crate::runtime;

/// How much goes into one statement, in bytes of payload: enough to make trips few, and far below what SQLite takes.
const CHUNK_BYTES: usize = 4 << 20;

/// How many tasks go into one statement.
const CHUNK_TASKS: usize = 1_000;

/// A task's row.
struct TaskRow<'a> {
    id: i64,
    queue: i64,
    demand: i64,
    state: TaskState,
    parents: usize,
    concurrency: Option<String>,
    task: &'a NewTask,
}

/// What a submission came to.
pub(in super::super) struct Put {
    pub(in super::super) queue: i64,
    /// Whether a worker could claim one of them now.
    pub(in super::super) ready: bool,
    pub(in super::super) submitted: Vec<Submitted>,
}

/// Submits in the caller's own transaction on `conn`: the tasks are there if it commits, and were never there if it does not.
///
/// It takes the file's write lock. Nobody is rung for, since only the caller knows when it has committed: a worker that sleeps
/// finds the tasks when it polls next.
pub async fn submit(
    conn: &mut SqliteConnection,
    submission: &Submission,
) -> Result<Vec<Submitted>, StoreError> {
    if !conn.is_in_transaction() {
        let message = "tasks are submitted in a transaction, or some might be there without the others; begin one first";
        return Err(nonsense(message));
    }
    check(submission)?;
    let put = put(&PRISTINE, conn, submission, runtime::wall_ms()).await.told_user("submitting tasks")?;
    Ok(put.submitted)
}

impl Sqlite {
    pub(super) async fn submit_tasks(&self, submission: &Submission) -> Result<Vec<Submitted>, Failed> {
        // Before anybody has to wait for it.
        check(submission)?;
        let mut change = self.change().await?;
        let now = change.wall_ms;
        let put = put(&self.queries, change.transaction.connection(), submission, now).await?;
        if put.ready {
            change.wake(&BTreeSet::from([put.queue])).await?;
        }
        change.commit().await?;
        Ok(put.submitted)
    }
}

/// Submits what was checked on a connection whose transaction has begun; whoever calls this rings.
async fn put(
    queries: &Queries,
    conn: &mut SqliteConnection,
    submission: &Submission,
    now: i64,
) -> Result<Put, Failed> {
    let mut puts = put_all(queries, conn, std::slice::from_ref(submission), now).await?;
    puts.pop().ok_or_else(|| sqlx::Error::RowNotFound.into())
}

/// The same for several queues: as many trips as for one.
pub(in super::super) async fn put_all(
    queries: &Queries,
    conn: &mut SqliteConnection,
    submissions: &[Submission],
    now: i64,
) -> Result<Vec<Put>, Failed> {
    let queues = queues(queries, conn, submissions, now).await?;
    let mut puts = numbers(queries, conn, submissions, queues).await?;
    let mut families = Vec::with_capacity(submissions.len());
    for (submission, put) in submissions.iter().zip(&puts) {
        families.push(Family::of(queries, conn, submission, &put.submitted).await?);
    }
    let mut demands = demands(queries, conn, submissions, &puts).await?.into_iter();
    let (mut rows, mut bytes): (Vec<TaskRow<'_>>, usize) = (Vec::new(), 0);
    for ((submission, family), put) in submissions.iter().zip(&families).zip(&mut puts) {
        let namespace = &submission.queue.namespace;
        for (place, (task, submitted)) in submission.tasks.iter().zip(&put.submitted).enumerate() {
            let demand = demands.next().unwrap_or_default();
            if !submitted.new {
                continue;
            }
            let parents = &family.parents[place];
            let state = if parents.iter().any(|id| !family.completed.contains(id)) {
                TaskState::Waiting
            } else if task.run_at_ms.is_some_and(|at| at > now) {
                TaskState::Scheduled
            } else {
                put.ready = true;
                TaskState::Ready
            };
            if rows.len() == CHUNK_TASKS || bytes > CHUNK_BYTES {
                insert(queries, conn, now, &std::mem::take(&mut rows)).await?;
                bytes = 0;
            }
            bytes += task.payload.as_str().len();
            rows.push(TaskRow {
                id: number(submitted.id.0),
                queue: put.queue,
                demand,
                state,
                parents: parents.len(),
                concurrency: task.concurrency_key.as_ref().map(|key| format!("{namespace}/{key}")),
                task,
            });
        }
    }
    insert(queries, conn, now, &rows).await?;
    let mut edges: Vec<(i64, i64)> = Vec::new();
    for (family, put) in families.iter().zip(&puts) {
        for (parents, submitted) in family.parents.iter().zip(&put.submitted).filter(|(_, it)| it.new) {
            edges.extend(parents.iter().map(|parent| (*parent, number(submitted.id.0))));
        }
    }
    if !edges.is_empty() {
        query(queries.get("task_parents_put")).bind(json(&edges)?).execute(&mut *conn).await?;
    }
    Ok(puts)
}

/// The number of each submission's queue, which is made if it is not there.
async fn queues(
    queries: &Queries,
    conn: &mut SqliteConnection,
    submissions: &[Submission],
    now: i64,
) -> Result<Vec<i64>, Failed> {
    // A write, whatever it comes to: from here on nobody else does.
    if let [Submission { queue, .. }] = submissions {
        let (namespace, name) = (queue.namespace.as_str(), queue.name.as_str());
        query(queries.get("queue_make")).bind(namespace).bind(name).bind(now).execute(&mut *conn).await?;
        let find = query(queries.get("queue_id")).bind(namespace).bind(name);
        return Ok(vec![find.fetch_one(&mut *conn).await?.try_get(0)?]);
    }
    let names = submissions.iter().map(|it| (it.queue.namespace.as_str(), it.queue.name.as_str()));
    let names = json(&names.collect::<Vec<_>>())?;
    query(queries.get("queue_make_all")).bind(&names).bind(now).execute(&mut *conn).await?;
    let mut ids = vec![0; submissions.len()];
    for row in query(queries.get("queue_ids")).bind(&names).fetch_all(&mut *conn).await? {
        let place = usize::try_from(row.try_get::<i64, _>("place")?).unwrap_or(usize::MAX);
        if let Some(id) = ids.get_mut(place) {
            *id = row.try_get("id")?;
        }
    }
    Ok(ids)
}

/// Each task's number: that of the one that is there under the same key, or a new one.
async fn numbers(
    queries: &Queries,
    conn: &mut SqliteConnection,
    submissions: &[Submission],
    queues: Vec<i64>,
) -> Result<Vec<Put>, Failed> {
    let mut keys: HashMap<(i64, String), u64> = HashMap::new();
    let all =
        || submissions.iter().zip(&queues).flat_map(|(it, queue)| it.tasks.iter().map(|task| (*queue, task)));
    let asked: BTreeSet<(i64, &str)> =
        all().filter_map(|(queue, task)| Some((queue, task.key.as_deref()?))).collect();
    if !asked.is_empty() {
        let find = query(queries.get("submit_keys")).bind(json(&asked)?);
        for row in find.fetch_all(&mut *conn).await? {
            let key = (row.try_get("queue")?, row.try_get("key")?);
            keys.insert(key, row.try_get::<i64, _>("id")?.cast_unsigned());
        }
    }
    let next = query(queries.get("submit_next")).fetch_one(&mut *conn).await?;
    let mut next = next.try_get::<i64, _>(0)?.cast_unsigned();
    let mut puts = Vec::with_capacity(submissions.len());
    for (submission, queue) in submissions.iter().zip(queues) {
        let mut submitted = Vec::with_capacity(submission.tasks.len());
        for task in &submission.tasks {
            let key = task.key.as_ref().map(|key| (queue, key.clone()));
            if let Some(id) = key.as_ref().and_then(|key| keys.get(key)) {
                submitted.push(Submitted { id: TaskId(*id), new: false });
                continue;
            }
            keys.extend(key.map(|key| (key, next)));
            submitted.push(Submitted { id: TaskId(next), new: true });
            next += 1;
        }
        puts.push(Put { queue, ready: false, submitted });
    }
    Ok(puts)
}

/// Who depends on whom.
struct Family {
    /// By place: each task's parents, each once.
    parents: Vec<BTreeSet<i64>>,
    /// Those of them that are completed.
    completed: BTreeSet<i64>,
}

impl Family {
    async fn of(
        queries: &Queries,
        conn: &mut SqliteConnection,
        submission: &Submission,
        submitted: &[Submitted],
    ) -> Result<Family, Failed> {
        let id = |parent: &Parent| match *parent {
            Parent::Task(id) => number(id.0),
            Parent::Index(index) => number(submitted[index as usize].id.0),
        };
        let of = |task: &NewTask| task.parents.iter().map(id).collect::<BTreeSet<i64>>();
        let parents: Vec<BTreeSet<i64>> = submission.tasks.iter().map(of).collect();
        let new: BTreeSet<i64> = submitted.iter().filter(|it| it.new).map(|it| number(it.id.0)).collect();
        let of_new = parents.iter().zip(submitted).filter(|(_, it)| it.new).flat_map(|(parents, _)| parents);
        let there: BTreeSet<i64> = of_new.filter(|id| !new.contains(id)).copied().collect();
        let mut completed = BTreeSet::new();
        if !there.is_empty() {
            let namespace = &submission.queue.namespace;
            // The first new task that asks for it.
            let asks =
                |(place, it): (usize, &BTreeSet<i64>), id: i64| submitted[place].new && it.contains(&id);
            let place = |id: i64| parents.iter().enumerate().position(|it| asks(it, id)).unwrap_or_default();
            let look = query(queries.get("submit_parents")).bind(json(&there)?).bind(namespace.as_str());
            for row in look.fetch_all(&mut *conn).await? {
                let (id, state): (i64, Option<String>) = (row.try_get("id")?, row.try_get("state")?);
                match state.as_deref().and_then(TaskState::from_word) {
                    None => {
                        return Err(no_such_parent(place(id), TaskId(id.cast_unsigned()), namespace).into());
                    }
                    Some(TaskState::Completed) => drop(completed.insert(id)),
                    Some(state @ (TaskState::Dead | TaskState::Cancelled)) => {
                        return Err(hopeless_parent(place(id), TaskId(id.cast_unsigned()), state).into());
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(Family { parents, completed })
    }
}

/// The number of each new task's demand, of one submission after the other.
async fn demands(
    queries: &Queries,
    conn: &mut SqliteConnection,
    submissions: &[Submission],
    puts: &[Put],
) -> Result<Vec<i64>, Failed> {
    let mut known: HashMap<(i64, Demand), usize> = HashMap::new();
    let mut list: Vec<(i64, String, String, String, String)> = Vec::new();
    let mut places: Vec<Option<usize>> = Vec::new();
    for (submission, put) in submissions.iter().zip(puts) {
        for (task, submitted) in submission.tasks.iter().zip(&put.submitted) {
            if !submitted.new {
                places.push(None);
                continue;
            }
            let demand = (put.queue, Demand::of(task));
            places.push(Some(match known.get(&demand) {
                Some(index) => *index,
                None => {
                    let (queue, Demand { kind, requires, prefers, workers }) = &demand;
                    list.push((*queue, kind.clone(), json(requires)?, json(prefers)?, json(workers)?));
                    known.insert(demand, list.len() - 1);
                    list.len() - 1
                }
            }));
        }
    }
    let asked = json(&list)?;
    let mut ids = vec![0; list.len()];
    // They are mostly there; those that are not are made, and looked for again.
    for attempt in 0..2 {
        let rows = query(queries.get("demand_find")).bind(&asked).fetch_all(&mut *conn).await?;
        for row in &rows {
            let index = usize::try_from(row.try_get::<i64, _>("place")?).unwrap_or(usize::MAX);
            if let Some(id) = ids.get_mut(index) {
                *id = row.try_get("id")?;
            }
        }
        if attempt == 1 || rows.len() == list.len() {
            break;
        }
        query(queries.get("demand_make")).bind(&asked).execute(&mut *conn).await?;
    }
    let id = |place: Option<usize>| place.and_then(|index| ids.get(index)).copied().unwrap_or_default();
    Ok(places.into_iter().map(id).collect())
}

async fn insert(
    queries: &Queries,
    conn: &mut SqliteConnection,
    now: i64,
    rows: &[TaskRow<'_>],
) -> Result<(), Failed> {
    for rows in portions(rows) {
        let statement = repeated(queries.get("task_submit"), rows.len());
        let mut put = query(&statement);
        for row in rows {
            let task = row.task;
            let ready_at = (row.state == TaskState::Ready).then_some(now);
            let max_wait_ms = task.max_wait_ms.map(ms);
            put = put
                .bind(row.id)
                .bind(row.queue)
                .bind(row.demand)
                .bind(row.state.as_str())
                .bind(effective_at(now, task.priority))
                .bind(task.priority)
                .bind(task.max_attempts)
                .bind(number(row.parents as u64))
                .bind(row.concurrency.as_deref())
                .bind(task.concurrency_limit)
                .bind(task.key.as_deref())
                .bind(task.leader_token.map(|token| number(token.as_u64())))
                .bind(ms(task.backoff.first_ms))
                .bind(ms(task.backoff.most_ms))
                .bind(max_wait_ms)
                .bind(task.max_run_ms.map(ms))
                .bind(now)
                .bind(task.run_at_ms)
                .bind(ready_at)
                .bind(ready_at.zip(max_wait_ms).map(|(at, wait_ms)| at + wait_ms))
                .bind(task.payload.as_str());
        }
        put.execute(&mut *conn).await?;
    }
    Ok(())
}
