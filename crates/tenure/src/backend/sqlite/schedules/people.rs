//! Schedules, as people set and see them.

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::Name;
use tenure_core::port::{
    Cause, Expect, Pause, ScheduleFilter, ScheduleKey, ScheduleSet, ScheduleStats, ScheduleView, SetSchedule,
    TickFilter, TickView, Wake,
};
use tenure_core::schedule::{Definition, Progress, due_ms, effect, revise};

use super::super::Sqlite;
use super::super::change::{Change, of_key};
use super::super::connection::query;
use super::super::directory::json as read_json;
use super::views::{progress, schedule_stats, schedule_view, tick_view};
use super::{Failed, json, number};
use crate::runtime;

/// How many ticks of a deleted schedule are deleted at once.
const CLEARED: u32 = 10_000;

/// A schedule as it is stored.
struct Stored {
    id: i64,
    version: u64,
    definition: Definition,
    progress: Option<Progress>,
    paused: bool,
    source: Option<String>,
    secret: Option<String>,
}

impl Sqlite {
    pub(super) async fn schedule_views(&self, filter: &ScheduleFilter) -> Result<Vec<ScheduleView>, Failed> {
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

    pub(super) async fn show_schedule(&self, key: &ScheduleKey) -> Result<Option<ScheduleView>, Failed> {
        let row = of_key!(self, "schedule_show", key).fetch_optional(&self.inner.pools.reads).await?;
        Ok(row.as_ref().map(schedule_view).transpose()?)
    }

    pub(super) async fn keep_schedule(&self, set: &SetSchedule) -> Result<ScheduleSet, Failed> {
        let key = ScheduleKey::new(set.namespace.clone(), set.definition.name.clone());
        let mut change = self.change().await?;
        let stored = change.stored_schedule(&key).await?;
        let version = stored.as_ref().map(|stored| stored.version);
        let as_expected = match set.expect {
            Expect::Any => true,
            Expect::New => version.is_none(),
            Expect::Version(expected) => version == Some(expected),
        };
        if !as_expected {
            change.commit().await?;
            return Ok(ScheduleSet::Conflict(version));
        }
        let before = stored.as_ref().map(|stored| (&stored.definition, stored.progress));
        let paused = stored.as_ref().is_some_and(|stored| stored.paused);
        let revised = revise(&set.namespace, &set.definition, before, paused, change.wall_ms)?;
        // What its first tick would be refused for is refused now, while somebody is there who can mend it.
        let first = effect(&key, &revised.definition, change.wall_ms, Cause::Clock, None, None);
        change.topics_of([&first].into_iter()).await?.check(&first)?;
        let (next_at, last_at) = (
            revised.progress.map(|progress| progress.next_at_ms),
            revised.progress.and_then(|progress| progress.last_at_ms),
        );
        let definition = json(&revised.definition)?;
        let Some(stored) = stored else {
            let make = of_key!(self, "schedule_make", key)
                .bind(next_at)
                .bind(last_at)
                .bind(revised.due_ms)
                .bind(change.wall_ms)
                .bind(&set.by)
                .bind(set.source.as_deref())
                .bind(set.secret.as_deref())
                .bind(definition);
            let made = change.transaction.one(make).await?.ok_or(sqlx::Error::RowNotFound)?;
            change.wakes.push(Wake::Schedules);
            change.commit().await?;
            return Ok(ScheduleSet::Created(made.try_get::<i64, _>("version")?.cast_unsigned()));
        };
        let secret = set.secret.as_ref().or(stored.secret.as_ref());
        let same = stored.definition == revised.definition
            && stored.source == set.source
            && stored.secret.as_ref() == secret;
        if same {
            change.commit().await?;
            return Ok(ScheduleSet::Same(stored.version));
        }
        let update = query(self.queries.get("schedule_change"))
            .bind(stored.id)
            .bind(next_at)
            .bind(last_at)
            .bind(revised.due_ms)
            .bind(change.wall_ms)
            .bind(&set.by)
            .bind(set.source.as_deref())
            .bind(secret)
            .bind(definition);
        change.transaction.execute(update).await?;
        change.wakes.push(Wake::Schedules);
        change.commit().await?;
        Ok(ScheduleSet::Changed(stored.version + 1))
    }

    pub(super) async fn drop_schedule(
        &self,
        key: &ScheduleKey,
        expect: Option<u64>,
    ) -> Result<Option<bool>, Failed> {
        let mut change = self.change().await?;
        let row = change.transaction.one(of_key!(self, "schedule_show", key)).await?;
        let found = row.map(|row| Ok((row.try_get("id")?, row.try_get::<i64, _>("version")?)));
        let Some((id, version)): Option<(i64, i64)> =
            found.transpose().map_err(|error: sqlx::Error| error)?
        else {
            change.commit().await?;
            return Ok(None);
        };
        if expect.is_some_and(|expected| number(expected) != version) {
            change.commit().await?;
            return Ok(Some(false));
        }
        for (name, value) in [("schedule_delete", id), ("stray_put", id), ("schedule_floor", version)] {
            change.transaction.execute(query(self.queries.get(name)).bind(value)).await?;
        }
        change.wakes.push(Wake::Schedules);
        change.commit().await?;
        // What is long keeps nobody waiting. Should this process end before it is through, the leader goes on.
        while self.clear_stray(id, CLEARED).await? == u64::from(CLEARED) {}
        Ok(Some(true))
    }

    pub(super) async fn pause_schedule(
        &self,
        key: &ScheduleKey,
        pause: Option<&Pause>,
    ) -> Result<Option<bool>, Failed> {
        let mut change = self.change().await?;
        let Some(stored) = change.stored_schedule(key).await? else {
            change.commit().await?;
            return Ok(None);
        };
        if stored.paused == pause.is_some() {
            change.commit().await?;
            return Ok(Some(false));
        }
        let statement = match pause {
            Some(pause) => query(self.queries.get("schedule_pause"))
                .bind(stored.id)
                .bind(&pause.by)
                .bind(&pause.reason)
                .bind(pause.at_ms),
            None => query(self.queries.get("schedule_resume")).bind(stored.id).bind(due_ms(
                &key.namespace,
                &stored.definition,
                stored.progress,
            )),
        };
        change.transaction.execute(statement).await?;
        change.wakes.push(Wake::Schedules);
        change.commit().await?;
        Ok(Some(true))
    }

    pub(super) async fn tick_views(&self, filter: &TickFilter) -> Result<Vec<TickView>, Failed> {
        let list = of_key!(self, "tick_list", filter.key)
            .bind(filter.before_ms.unwrap_or(i64::MAX))
            .bind(filter.limit);
        let rows = list.fetch_all(&self.inner.pools.reads).await?;
        Ok(rows.iter().map(tick_view).collect::<sqlx::Result<_>>()?)
    }

    pub(super) async fn count_schedules(&self) -> Result<Vec<ScheduleStats>, Failed> {
        let now = runtime::wall_ms();
        let rows =
            query(self.queries.get("schedule_counts")).bind(now).fetch_all(&self.inner.pools.reads).await?;
        Ok(rows.iter().map(|row| schedule_stats(row, now)).collect::<sqlx::Result<_>>()?)
    }

    pub(super) async fn secret_of(&self, key: &ScheduleKey) -> Result<Option<String>, Failed> {
        let row = of_key!(self, "schedule_secret", key).fetch_optional(&self.inner.pools.reads).await?;
        Ok(row.map_or(Ok(None), |row| row.try_get(0))?)
    }
}

impl Change<'_> {
    async fn stored_schedule(&mut self, key: &ScheduleKey) -> Result<Option<Stored>, Failed> {
        let row = self.transaction.one(of_key!(self.store, "schedule_show", key)).await?;
        Ok(row.as_ref().map(stored).transpose()?)
    }
}

fn stored(row: &SqliteRow) -> sqlx::Result<Stored> {
    Ok(Stored {
        id: row.try_get("id")?,
        version: row.try_get::<i64, _>("version")?.cast_unsigned(),
        definition: read_json(row, "definition")?,
        progress: progress(row)?,
        paused: row.try_get::<Option<i64>, _>("paused_at")?.is_some(),
        source: row.try_get("source")?,
        secret: row.try_get("secret")?,
    })
}
