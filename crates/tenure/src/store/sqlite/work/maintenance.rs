//! Maintenance: recovery of lost claims, release of due tasks and pruning.

use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::port::{MaintenanceRequest, MaintenanceResponse, Notification, PoolKey, QueueKey, TaskId};
use tenure_core::{SessionId, Token};

use super::super::SqliteStore;
use super::super::connection::{parsed, query};
use super::super::write_transaction::{WriteTransaction, number as token_number};
use super::after_settle::SettleWrites;
use super::settle::claimed_row;
use super::views::token;
use super::{CallError, json};

/// How long a waiter stays registered. A session that still waits registers again.
const WAITER_RETENTION_MS: i64 = 10 * 60_000;

/// An instant before every stored instant, with room for subtraction.
const NEVER: i64 = i64::MIN / 2;

/// How long a worker is kept after it was last seen.
const WORKER_RETENTION_MS: i64 = 86_400_000;

impl SqliteStore {
    pub(super) async fn maintain_queues(
        &self,
        request: &MaintenanceRequest,
    ) -> Result<MaintenanceResponse, CallError> {
        let mut tx = self.begin_write().await?;
        let is_leader = query(self.queries.get("broker_is_leader"))
            .bind(request.session.as_str())
            .bind(token_number(request.token));
        if tx.transaction.one(is_leader).await?.is_none() {
            let store_now_at_ms = tx.wall_ms;
            tx.commit().await?;
            return Ok(MaintenanceResponse { store_now_at_ms, ..MaintenanceResponse::default() });
        }
        let mut pass = MaintenancePass {
            // The lower clock counts, so that a clock that was set forward expires nothing early. Without a trusted clock, nothing
            // expires by time.
            clock: request.clock_ms.map_or(NEVER, |clock| clock.min(tx.wall_ms)),
            limit: i64::from(request.limit.max(1)),
            response: MaintenanceResponse {
                is_leader: true,
                store_now_at_ms: tx.wall_ms,
                ..MaintenanceResponse::default()
            },
        };
        self.recover(&mut tx, &mut pass).await?;
        self.release_resources(&mut tx, &mut pass).await?;
        self.prune(&mut tx, &mut pass).await?;
        pass.response.next_in = self.next_due(&mut tx, pass.clock).await?;
        tx.commit().await?;
        Ok(pass.response)
    }

    /// When the next row becomes due or expires. A row expires one millisecond after its instant.
    async fn next_due(
        &self,
        tx: &mut WriteTransaction<'_>,
        clock: i64,
    ) -> Result<Option<Duration>, CallError> {
        let Some(row) = tx.transaction.one(query(self.queries.get("maintenance_next_due"))).await? else {
            return Ok(None);
        };
        let at = |column| row.try_get::<Option<i64>, _>(column);
        let (expired, due) = (
            at("next_expiry_at_ms")?.filter(|_| clock > NEVER).map(|at| at + 1 - clock),
            at("next_due_at_ms")?.map(|at| at - tx.wall_ms),
        );
        let next = expired.into_iter().chain(due).min();
        Ok(next.map(|ms| Duration::from_millis(ms.max(0).cast_unsigned())))
    }

    /// Recover lost claims, expire waits, and promote due tasks.
    async fn recover(
        &self,
        tx: &mut WriteTransaction<'_>,
        pass: &mut MaintenancePass,
    ) -> Result<(), CallError> {
        let (mut writes, now) = (SettleWrites::default(), tx.wall_ms);
        let lost = query(self.queries.get("claim_list_lost")).bind(pass.clock).bind(pass.query_limit());
        let rows = tx.transaction.all(lost).await?;
        let mut seen = BTreeSet::new();
        for row in pass.take(&rows) {
            let mut task = claimed_row(row)?;
            // A claim may be listed twice: its session ended and its time is over.
            if !seen.insert(task.id) {
                continue;
            }
            let (session_ended, max_run_exceeded): (bool, bool) =
                (row.try_get("session_ended")?, row.try_get("max_run_exceeded")?);
            let error = match (session_ended, max_run_exceeded) {
                (true, _) => "claim lost: session ended",
                (false, true) => "claim lost: max_run_ms exceeded",
                (false, false) => "claim lost: claim timeout exceeded",
            };
            writes.lose(&mut task, error, now)?;
            pass.response.recovered += 1;
        }
        let wait_expired =
            query(self.queries.get("task_list_wait_expired")).bind(pass.clock).bind(pass.query_limit());
        let wait_expired = tx.transaction.all(wait_expired).await?;
        if let Some(ids) = pass.ids(&wait_expired)? {
            let expire_wait = query(self.queries.get("task_expire_wait")).bind(ids).bind(now);
            for row in tx.transaction.all(expire_wait).await? {
                writes.end_children(row.try_get("id")?);
                writes.free_concurrency_key(row.try_get("concurrency_key")?);
                pass.response.dead += 1;
            }
        }
        let due = query(self.queries.get("task_list_due")).bind(now).bind(pass.query_limit());
        let due = tx.transaction.all(due).await?;
        if let Some(ids) = pass.ids(&due)? {
            let promote = query(self.queries.get("task_promote")).bind(ids).bind(now);
            for row in tx.transaction.all(promote).await? {
                writes.mark_ready(row.try_get("queue_id")?);
                pass.response.promoted += 1;
            }
        }
        let unblock = query(self.queries.get("blocked_rescue")).bind(pass.limit);
        for row in tx.transaction.all(unblock).await? {
            writes.mark_ready(row.try_get("queue_id")?);
        }
        pass.response.dead += tx.write_settled(writes).await?.len() as u64;
        Ok(())
    }

    /// End pool requests whose time is over or whose session ended, and end cooldowns.
    async fn release_resources(
        &self,
        tx: &mut WriteTransaction<'_>,
        pass: &mut MaintenancePass,
    ) -> Result<(), CallError> {
        let expired =
            query(self.queries.get("pool_request_list_expired")).bind(pass.clock).bind(pass.query_limit());
        let rows = tx.transaction.all(expired).await?;
        let (mut ids, mut pools) = (Vec::with_capacity(rows.len()), BTreeSet::new());
        for row in pass.take(&rows) {
            ids.push(row.try_get::<i64, _>("id")?);
            pools.insert(PoolKey::new(parsed(row, "namespace")?, parsed(row, "name")?));
            pass.response.released += u64::from(row.try_get::<Option<&str>, _>("resource")?.is_some());
        }
        if !ids.is_empty() {
            tx.end_requests(&ids, "expired").await?;
        }
        let end_cooldown = query(self.queries.get("resource_end_cooldown")).bind(tx.wall_ms);
        for row in tx.transaction.all(end_cooldown).await? {
            pools.insert(PoolKey::new(parsed(&row, "namespace")?, parsed(&row, "name")?));
        }
        tx.notifications.extend(pools.into_iter().map(Notification::PoolChanged));
        Ok(())
    }

    /// Prune old tasks, unused requirements, ended requests, workers and waiters.
    async fn prune(
        &self,
        tx: &mut WriteTransaction<'_>,
        pass: &mut MaintenancePass,
    ) -> Result<(), CallError> {
        let now = tx.wall_ms;
        let old = query(self.queries.get("task_list_old")).bind(pass.clock).bind(pass.query_limit());
        let old = tx.transaction.all(old).await?;
        if let Some(ids) = pass.ids(&old)? {
            for name in ["task_prune", "task_dependency_prune"] {
                tx.transaction.execute(query(self.queries.get(name)).bind(&ids)).await?;
            }
            pass.response.pruned += pass.take(&old).len() as u64;
        }
        let requirements = query(self.queries.get("requirements_prune")).bind(pass.limit);
        tx.transaction.execute(requirements).await?;
        let requests = query(self.queries.get("pool_request_prune")).bind(pass.clock).bind(pass.limit);
        tx.transaction.execute(requests).await?;
        let workers =
            query(self.queries.get("worker_prune")).bind(pass.clock - WORKER_RETENTION_MS).bind(pass.limit);
        tx.transaction.execute(workers).await?;
        for name in ["queue_waiter_prune", "topic_waiter_prune"] {
            tx.transaction.execute(query(self.queries.get(name)).bind(now - WAITER_RETENTION_MS)).await?;
        }
        Ok(())
    }

    pub(super) async fn put_queue_waiters(
        &self,
        session: &SessionId,
        queues: &[QueueKey],
    ) -> Result<(), CallError> {
        let keys: Vec<(&str, &str)> =
            queues.iter().map(|key| (key.namespace.as_str(), key.name.as_str())).collect();
        let mut tx = self.begin_write().await?;
        let put = query(self.queries.get("queue_waiter_register"));
        let put = put.bind(json(&keys)?).bind(session.as_str()).bind(tx.wall_ms);
        tx.transaction.execute(put).await?;
        Ok(tx.commit().await?)
    }

    pub(super) async fn held_claims_of(
        &self,
        session: &SessionId,
    ) -> Result<Vec<(TaskId, Token)>, CallError> {
        let select = query(self.queries.get("claim_list")).bind(session.as_str());
        let rows = select.fetch_all(&self.inner.pools.reads).await?;
        let claim = |row: &SqliteRow| {
            let id = row.try_get::<i64, _>("id")?.cast_unsigned();
            Ok((TaskId(id), token(row, "token")?))
        };
        Ok(rows.iter().map(claim).collect::<sqlx::Result<_>>()?)
    }
}

/// One maintenance pass.
struct MaintenancePass {
    /// The clock for expiry instants.
    clock: i64,
    limit: i64,
    response: MaintenanceResponse,
}

impl MaintenancePass {
    /// The limit of a query: one more than the pass handles, to learn whether there are more.
    fn query_limit(&self) -> i64 {
        self.limit + 1
    }

    fn take<'a>(&mut self, rows: &'a [SqliteRow]) -> &'a [SqliteRow] {
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        self.response.has_more |= rows.len() > limit;
        &rows[..rows.len().min(limit)]
    }

    /// The ids of the rows that this pass handles, as JSON.
    fn ids(&mut self, rows: &[SqliteRow]) -> Result<Option<String>, CallError> {
        let ids = self.take(rows).iter().map(|row| row.try_get(0)).collect::<sqlx::Result<Vec<i64>>>()?;
        Ok(if ids.is_empty() { None } else { Some(json(&ids)?) })
    }
}
