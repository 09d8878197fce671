//! Administration of schedules.

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::Name;
use tenure_core::port::{
    Notification, Pause, Precondition, ScheduleFilter, ScheduleKey, ScheduleStats, ScheduleView,
    SetScheduleOutcome, SetScheduleRequest, TickCause, TickFilter, TickView,
};
use tenure_core::rules::schedule::{ScheduleDefinition, ScheduleTickState, due_ms, effect, revise};

use super::super::SqliteStore;
use super::super::connection::query;
use super::super::election_admin::json as read_json;
use super::super::write_transaction::{WriteTransaction, of_key};
use super::views::{schedule_stats, schedule_view, tick_state, tick_view};
use super::{CallError, json, number};
use crate::runtime;

/// How many ticks of a deleted schedule one transaction deletes.
const DELETE_BATCH: u32 = 10_000;

/// The stored state of a schedule.
struct StoredSchedule {
    id: i64,
    version: u64,
    definition: ScheduleDefinition,
    tick_state: Option<ScheduleTickState>,
    paused: bool,
    source: Option<String>,
    secret: Option<String>,
}

impl SqliteStore {
    pub(super) async fn schedule_views(
        &self,
        filter: &ScheduleFilter,
    ) -> Result<Vec<ScheduleView>, CallError> {
        let after = filter.after.as_ref();
        let list = query(self.queries.get("schedule_list"))
            .bind(filter.namespace.as_ref().map(Name::as_str))
            .bind(filter.source.as_deref())
            .bind(after.map(|key| key.namespace.as_str()))
            .bind(after.map(|key| key.name.as_str()))
            .bind(if filter.limit == 0 { -1 } else { i64::from(filter.limit) });
        let rows = list.fetch_all(&self.inner.pools.reads).await?;
        Ok(rows.iter().map(schedule_view).collect::<sqlx::Result<_>>()?)
    }

    pub(super) async fn get_schedule(&self, key: &ScheduleKey) -> Result<Option<ScheduleView>, CallError> {
        let row = of_key!(self, "schedule_get", key).fetch_optional(&self.inner.pools.reads).await?;
        Ok(row.as_ref().map(schedule_view).transpose()?)
    }

    pub(super) async fn put_schedule(
        &self,
        request: &SetScheduleRequest,
    ) -> Result<SetScheduleOutcome, CallError> {
        let key = ScheduleKey::new(request.namespace.clone(), request.definition.name.clone());
        let mut tx = self.begin_write().await?;
        let stored = tx.stored_schedule(&key).await?;
        let version = stored.as_ref().map(|stored| stored.version);
        let precondition_holds = match request.precondition {
            Precondition::Any => true,
            Precondition::New => version.is_none(),
            Precondition::Version(expected) => version == Some(expected),
        };
        if !precondition_holds {
            tx.commit().await?;
            return Ok(SetScheduleOutcome::Conflict(version));
        }
        let before = stored.as_ref().map(|stored| (&stored.definition, stored.tick_state));
        let paused = stored.as_ref().is_some_and(|stored| stored.paused);
        let revised = revise(&request.namespace, &request.definition, before, paused, tx.wall_ms)?;
        // Check the target now, so that the caller sees the error instead of the first tick.
        let first = effect(&key, &revised.definition, tx.wall_ms, TickCause::Schedule, None, None);
        tx.topics_of([&first].into_iter()).await?.check(&first)?;
        let (next_tick_at_ms, last_tick_at_ms) = (
            revised.tick_state.map(|progress| progress.next_tick_at_ms),
            revised.tick_state.and_then(|progress| progress.last_tick_at_ms),
        );
        let definition = json(&revised.definition)?;
        let Some(stored) = stored else {
            let create = of_key!(self, "schedule_create", key)
                .bind(next_tick_at_ms)
                .bind(last_tick_at_ms)
                .bind(revised.due_ms)
                .bind(tx.wall_ms)
                .bind(&request.updated_by)
                .bind(request.source.as_deref())
                .bind(definition);
            let created = tx.transaction.one(create).await?.ok_or(sqlx::Error::RowNotFound)?;
            tx.set_webhook_secret(created.try_get("id")?, request.secret.as_deref()).await?;
            tx.notifications.push(Notification::SchedulesChanged);
            tx.commit().await?;
            return Ok(SetScheduleOutcome::Created(created.try_get::<i64, _>("version")?.cast_unsigned()));
        };
        let secret = request.secret.as_ref().or(stored.secret.as_ref());
        let unchanged = stored.definition == revised.definition
            && stored.source == request.source
            && stored.secret.as_ref() == secret;
        if unchanged {
            tx.commit().await?;
            return Ok(SetScheduleOutcome::Unchanged(stored.version));
        }
        let update = query(self.queries.get("schedule_update"))
            .bind(stored.id)
            .bind(next_tick_at_ms)
            .bind(last_tick_at_ms)
            .bind(revised.due_ms)
            .bind(tx.wall_ms)
            .bind(&request.updated_by)
            .bind(request.source.as_deref())
            .bind(definition);
        tx.transaction.execute(update).await?;
        tx.set_webhook_secret(stored.id, request.secret.as_deref()).await?;
        tx.notifications.push(Notification::SchedulesChanged);
        tx.commit().await?;
        Ok(SetScheduleOutcome::Updated(stored.version + 1))
    }

    pub(super) async fn remove_schedule(
        &self,
        key: &ScheduleKey,
        expected_version: Option<u64>,
    ) -> Result<Option<bool>, CallError> {
        let mut tx = self.begin_write().await?;
        let row = tx.transaction.one(of_key!(self, "schedule_get", key)).await?;
        let found = row.map(|row| Ok((row.try_get("id")?, row.try_get::<i64, _>("version")?)));
        let Some((id, version)): Option<(i64, i64)> =
            found.transpose().map_err(|error: sqlx::Error| error)?
        else {
            tx.commit().await?;
            return Ok(None);
        };
        if expected_version.is_some_and(|expected| number(expected) != version) {
            tx.commit().await?;
            return Ok(Some(false));
        }
        for (name, value) in [
            ("schedule_delete", id),
            ("schedule_webhook_secret_delete", id),
            ("orphaned_tick_put", id),
            ("schedule_max_deleted_version", version),
        ] {
            tx.transaction.execute(query(self.queries.get(name)).bind(value)).await?;
        }
        tx.notifications.push(Notification::SchedulesChanged);
        tx.commit().await?;
        // Delete the ticks in small transactions. Maintenance continues if this process ends.
        while self.delete_orphaned_ticks(id, DELETE_BATCH).await? == u64::from(DELETE_BATCH) {}
        Ok(Some(true))
    }

    pub(super) async fn pause_schedule(
        &self,
        key: &ScheduleKey,
        pause: Option<&Pause>,
    ) -> Result<Option<bool>, CallError> {
        let mut tx = self.begin_write().await?;
        let Some(stored) = tx.stored_schedule(key).await? else {
            tx.commit().await?;
            return Ok(None);
        };
        if stored.paused == pause.is_some() {
            tx.commit().await?;
            return Ok(Some(false));
        }
        let statement = match pause {
            Some(pause) => query(self.queries.get("schedule_pause"))
                .bind(stored.id)
                .bind(&pause.paused_by)
                .bind(&pause.reason)
                .bind(pause.paused_at_ms),
            None => query(self.queries.get("schedule_resume")).bind(stored.id).bind(due_ms(
                &key.namespace,
                &stored.definition,
                stored.tick_state,
            )),
        };
        tx.transaction.execute(statement).await?;
        tx.notifications.push(Notification::SchedulesChanged);
        tx.commit().await?;
        Ok(Some(true))
    }

    pub(super) async fn tick_views(&self, filter: &TickFilter) -> Result<Vec<TickView>, CallError> {
        let list = of_key!(self, "tick_list", filter.key)
            .bind(filter.before_ms.unwrap_or(i64::MAX))
            .bind(filter.limit);
        let rows = list.fetch_all(&self.inner.pools.reads).await?;
        Ok(rows.iter().map(tick_view).collect::<sqlx::Result<_>>()?)
    }

    pub(super) async fn count_schedules(&self) -> Result<Vec<ScheduleStats>, CallError> {
        let now = runtime::wall_ms();
        let rows =
            query(self.queries.get("schedule_stats")).bind(now).fetch_all(&self.inner.pools.reads).await?;
        Ok(rows.iter().map(|row| schedule_stats(row, now)).collect::<sqlx::Result<_>>()?)
    }

    pub(super) async fn get_webhook_secret(&self, key: &ScheduleKey) -> Result<Option<String>, CallError> {
        let row =
            of_key!(self, "schedule_webhook_secret_get", key).fetch_optional(&self.inner.pools.reads).await?;
        Ok(row.map_or(Ok(None), |row| row.try_get(0))?)
    }
}

impl WriteTransaction<'_> {
    async fn stored_schedule(&mut self, key: &ScheduleKey) -> Result<Option<StoredSchedule>, CallError> {
        let row = self.transaction.one(of_key!(self.store, "schedule_get", key)).await?;
        Ok(row.as_ref().map(stored).transpose()?)
    }

    /// Set the key that signs the webhook calls of a schedule. `None` keeps the current one.
    async fn set_webhook_secret(&mut self, schedule: i64, secret: Option<&str>) -> Result<(), CallError> {
        if let Some(secret) = secret {
            let statement =
                query(self.store.queries.get("schedule_webhook_secret_set")).bind(schedule).bind(secret);
            self.transaction.execute(statement).await?;
        }
        Ok(())
    }
}

fn stored(row: &SqliteRow) -> sqlx::Result<StoredSchedule> {
    Ok(StoredSchedule {
        id: row.try_get("id")?,
        version: row.try_get::<i64, _>("version")?.cast_unsigned(),
        definition: read_json(row, "definition")?,
        tick_state: tick_state(row)?,
        paused: row.try_get::<Option<i64>, _>("paused_at_ms")?.is_some(),
        source: row.try_get("source")?,
        secret: row.try_get("secret")?,
    })
}
