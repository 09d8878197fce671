//! What the keeper does: recovers what was lost, and prunes what is old.

use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::port::{PoolKey, QueueKey, TaskId, Tend, Tended, Wake};
use tenure_core::{SessionId, Token};

use super::super::Sqlite;
use super::super::change::{Change, number as token_number};
use super::super::connection::{parsed, query};
use super::follow::Ends;
use super::settle::standing;
use super::views::token;
use super::{Failed, json};

/// For how long a sleeper is believed: it says so again, if it still sleeps.
const DOZE_MS: i64 = 10 * 60_000;

/// Before any time that is written: with room to subtract from it.
const NEVER: i64 = i64::MIN / 2;

/// For how long a worker is remembered that nobody sees.
const WORKER_MS: i64 = 86_400_000;

impl Sqlite {
    pub(super) async fn tend_all(&self, tend: &Tend) -> Result<Tended, Failed> {
        let mut change = self.change().await?;
        let leads = query(self.queries.get("claims_leader"))
            .bind(tend.session.as_str())
            .bind(token_number(tend.token));
        if change.transaction.one(leads).await?.is_none() {
            let store_ms = change.wall_ms;
            change.commit().await?;
            return Ok(Tended { store_ms, ..Tended::default() });
        }
        let mut round = Round {
            // A clock that was put forward ends nothing before its time; without a reckoning of it, nothing goes by it.
            clock: tend.clock_ms.map_or(NEVER, |clock| clock.min(change.wall_ms)),
            limit: i64::from(tend.limit.max(1)),
            tended: Tended { leads: true, store_ms: change.wall_ms, ..Tended::default() },
        };
        self.recover(&mut change, &mut round).await?;
        self.free_resources(&mut change, &mut round).await?;
        self.prune(&mut change, &mut round).await?;
        round.tended.next_in = self.next_due(&mut change, round.clock).await?;
        change.commit().await?;
        Ok(round.tended)
    }

    /// In how long something falls due. What ends does so when its moment is past: one millisecond later.
    async fn next_due(&self, change: &mut Change<'_>, clock: i64) -> Result<Option<Duration>, Failed> {
        let Some(row) = change.transaction.one(query(self.queries.get("tend_next"))).await? else {
            return Ok(None);
        };
        let at = |column| row.try_get::<Option<i64>, _>(column);
        let (over, due) = (
            at("over_at")?.filter(|_| clock > NEVER).map(|at| at + 1 - clock),
            at("due_at")?.map(|at| at - change.wall_ms),
        );
        let next = over.into_iter().chain(due).min();
        Ok(next.map(|ms| Duration::from_millis(ms.max(0).cast_unsigned())))
    }

    /// Returns lost claims, ends waits that took too long, and makes ready what is due.
    async fn recover(&self, change: &mut Change<'_>, round: &mut Round) -> Result<(), Failed> {
        let (mut ends, now) = (Ends::default(), change.wall_ms);
        let lost = query(self.queries.get("claims_lost")).bind(round.clock).bind(round.reach());
        let rows = change.transaction.all(lost).await?;
        let mut seen = BTreeSet::new();
        for row in round.take(&rows) {
            let mut task = standing(row)?;
            // It may be lost in both ways.
            if !seen.insert(task.id) {
                continue;
            }
            let (session_over, run_over): (bool, bool) =
                (row.try_get("session_over")?, row.try_get("run_over")?);
            let error = match (session_over, run_over) {
                (true, _) => "lost: its session ended",
                (false, true) => "lost: run time is over",
                (false, false) => "lost: its claim timed out",
            };
            ends.lose(&mut task, error, now)?;
            round.tended.returned += 1;
        }
        let overdue = query(self.queries.get("tasks_overdue")).bind(round.clock).bind(round.reach());
        let overdue = change.transaction.all(overdue).await?;
        if let Some(ids) = round.ids(&overdue)? {
            let give_up = query(self.queries.get("task_give_up")).bind(ids).bind(now);
            for row in change.transaction.all(give_up).await? {
                ends.doom(row.try_get("id")?);
                ends.made_way(row.try_get("concurrency")?);
                round.tended.dead += 1;
            }
        }
        let due = query(self.queries.get("tasks_due")).bind(now).bind(round.reach());
        let due = change.transaction.all(due).await?;
        if let Some(ids) = round.ids(&due)? {
            let make_ready = query(self.queries.get("task_make_ready")).bind(ids).bind(now);
            for row in change.transaction.all(make_ready).await? {
                ends.made_ready(row.try_get("queue")?);
                round.tended.due += 1;
            }
        }
        let rescue = query(self.queries.get("held_rescue")).bind(round.limit);
        for row in change.transaction.all(rescue).await? {
            ends.made_ready(row.try_get("queue")?);
        }
        round.tended.dead += change.write_ends(ends).await?.len() as u64;
        Ok(())
    }

    /// Ends requests for resources whose time is over, or whose session is.
    async fn free_resources(&self, change: &mut Change<'_>, round: &mut Round) -> Result<(), Failed> {
        let over = query(self.queries.get("pool_request_over")).bind(round.clock).bind(round.reach());
        let rows = change.transaction.all(over).await?;
        let (mut ids, mut pools) = (Vec::with_capacity(rows.len()), BTreeSet::new());
        for row in round.take(&rows) {
            ids.push(row.try_get::<i64, _>("id")?);
            pools.insert(PoolKey::new(parsed(row, "namespace")?, parsed(row, "name")?));
            round.tended.freed += u64::from(row.try_get::<Option<&str>, _>("resource")?.is_some());
        }
        if !ids.is_empty() {
            change.end_requests(&ids, "expired").await?;
        }
        let rested = query(self.queries.get("resource_rested")).bind(change.wall_ms);
        for row in change.transaction.all(rested).await? {
            pools.insert(PoolKey::new(parsed(&row, "namespace")?, parsed(&row, "name")?));
        }
        change.wakes.extend(pools.into_iter().map(Wake::Pool));
        Ok(())
    }

    /// Forgets what was kept for as long as it should be, and what nobody uses.
    async fn prune(&self, change: &mut Change<'_>, round: &mut Round) -> Result<(), Failed> {
        let now = change.wall_ms;
        let old = query(self.queries.get("task_old")).bind(round.clock).bind(round.reach());
        let old = change.transaction.all(old).await?;
        if let Some(ids) = round.ids(&old)? {
            for name in ["task_forget", "task_forget_parents"] {
                change.transaction.execute(query(self.queries.get(name)).bind(&ids)).await?;
            }
            round.tended.forgotten += round.take(&old).len() as u64;
        }
        let demands = query(self.queries.get("demand_forget")).bind(round.limit);
        change.transaction.execute(demands).await?;
        let requests = query(self.queries.get("pool_request_forget")).bind(round.clock).bind(round.limit);
        change.transaction.execute(requests).await?;
        let workers =
            query(self.queries.get("worker_forget")).bind(round.clock - WORKER_MS).bind(round.limit);
        change.transaction.execute(workers).await?;
        for name in ["dozer_forget", "topic_doze_forget"] {
            change.transaction.execute(query(self.queries.get(name)).bind(now - DOZE_MS)).await?;
        }
        Ok(())
    }

    pub(super) async fn put_dozers(&self, session: &SessionId, queues: &[QueueKey]) -> Result<(), Failed> {
        let keys: Vec<(&str, &str)> =
            queues.iter().map(|key| (key.namespace.as_str(), key.name.as_str())).collect();
        let mut change = self.change().await?;
        let put = query(self.queries.get("dozer_put"));
        let put = put.bind(json(&keys)?).bind(session.as_str()).bind(change.wall_ms);
        change.transaction.execute(put).await?;
        Ok(change.commit().await?)
    }

    pub(super) async fn claims_of(&self, session: &SessionId) -> Result<Vec<(TaskId, Token)>, Failed> {
        let select = query(self.queries.get("claims_held")).bind(session.as_str());
        let rows = select.fetch_all(&self.inner.pools.reads).await?;
        let claim = |row: &SqliteRow| {
            let id = row.try_get::<i64, _>("id")?.cast_unsigned();
            Ok((TaskId(id), token(row, "token")?))
        };
        Ok(rows.iter().map(claim).collect::<sqlx::Result<_>>()?)
    }
}

/// One look after everything.
struct Round {
    /// What deadlines are compared with.
    clock: i64,
    limit: i64,
    tended: Tended,
}

impl Round {
    /// One more than is done shows whether there is more.
    fn reach(&self) -> i64 {
        self.limit + 1
    }

    fn take<'a>(&mut self, rows: &'a [SqliteRow]) -> &'a [SqliteRow] {
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        self.tended.more |= rows.len() > limit;
        &rows[..rows.len().min(limit)]
    }

    /// The numbers of these, as far as they are done now.
    fn ids(&mut self, rows: &[SqliteRow]) -> Result<Option<String>, Failed> {
        let ids = self.take(rows).iter().map(|row| row.try_get(0)).collect::<sqlx::Result<Vec<i64>>>()?;
        Ok(if ids.is_empty() { None } else { Some(json(&ids)?) })
    }
}
