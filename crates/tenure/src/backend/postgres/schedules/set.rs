//! The path of people: schedules are set, paused, resumed and deleted.

use tenure_core::event::no_such_topic;
use tenure_core::port::{Cause, Effect, Expect, Pause, ScheduleKey, ScheduleSet, SetSchedule, StoreError};
use tenure_core::schedule::{Definition, Overlap, Progress, due_ms, effect, revise};

use super::super::claims::json_text;
use super::super::error::garbled;
use super::super::message::Message;
use super::super::store::{int, number};
use super::super::value::Value;
use super::super::{Postgres, from_json, get};
use super::ticks::check_effect;
use super::{TRIES, key_of, restless};

/// How many ticks of deleted schedules are deleted at once.
const CLEARED: u32 = 10_000;

/// A schedule, as a change is decided from it.
pub(super) struct Stored {
    pub(super) version: u64,
    pub(super) definition: Definition,
    pub(super) now_ms: i64,
    next_at_ms: Option<i64>,
    last_at_ms: Option<i64>,
    paused: bool,
    source: Option<String>,
    secret: Option<String>,
}

impl Stored {
    /// Whether it is of this version, with this tick as its next, and not paused.
    pub(super) fn stands(&self, version: u64, next_at_ms: i64) -> bool {
        self.version == version && self.next_at_ms == Some(next_at_ms) && !self.paused
    }

    fn progress(&self) -> Option<Progress> {
        self.next_at_ms.map(|next_at_ms| Progress { next_at_ms, last_at_ms: self.last_at_ms })
    }
}

impl Postgres {
    pub(super) async fn stored(&self, key: &ScheduleKey) -> Result<Option<Stored>, StoreError> {
        let rows = self.call("schedule_look", &key_of(key)).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some(Stored {
            version: number(get::<i64>(row, "version")?, "a version")?,
            definition: from_json(row, "definition")?,
            now_ms: get(row, "now_ms")?,
            next_at_ms: get(row, "next_at_ms")?,
            last_at_ms: get(row, "last_at_ms")?,
            paused: get(row, "paused")?,
            source: get(row, "source")?,
            secret: get(row, "secret")?,
        }))
    }

    pub(super) async fn define(&self, set: &SetSchedule) -> Result<ScheduleSet, StoreError> {
        let key = ScheduleKey::new(set.namespace.clone(), set.definition.name.clone());
        for _ in 0..TRIES {
            let stored = self.stored(&key).await?;
            let version = stored.as_ref().map(|stored| stored.version);
            let expected = match set.expect {
                Expect::Any => true,
                Expect::New => version.is_none(),
                Expect::Version(expected) => version == Some(expected),
            };
            if !expected {
                return Ok(ScheduleSet::Conflict(version));
            }
            if let Some(done) = self.try_define(set, &key, stored).await? {
                return Ok(done);
            }
        }
        Err(restless(&key))
    }

    /// `None`: something else came first.
    async fn try_define(
        &self,
        set: &SetSchedule,
        key: &ScheduleKey,
        stored: Option<Stored>,
    ) -> Result<Option<ScheduleSet>, StoreError> {
        let now_ms = match &stored {
            Some(stored) => stored.now_ms,
            None => {
                let rows = self.call("schedule_clock", &[]).await?;
                get(rows.first().ok_or_else(|| garbled("its clock", "no row"))?, "now_ms")?
            }
        };
        let is_paused = stored.as_ref().is_some_and(|stored| stored.paused);
        let so_far = stored.as_ref().map(|stored| (&stored.definition, stored.progress()));
        let revised = revise(&key.namespace, &set.definition, so_far, is_paused, now_ms)?;
        self.check_target(key, &revised.definition, now_ms).await?;
        if let Some(stored) = &stored
            && stored.definition == revised.definition
            && stored.source == set.source
            && set.secret.as_ref().is_none_or(|secret| stored.secret.as_ref() == Some(secret))
        {
            return Ok(Some(ScheduleSet::Same(stored.version)));
        }
        let seen = stored.as_ref();
        let optional = |ms: Option<i64>| ms.map_or(Value::Null, Value::Int);
        let definition = json_text(&revised.definition)?;
        let [namespace, name] = key_of(key);
        let values = [
            namespace,
            name,
            seen.map_or(Value::Null, |stored| int(stored.version)),
            optional(seen.and_then(|stored| stored.next_at_ms)),
            optional(seen.and_then(|stored| stored.last_at_ms)),
            is_paused.into(),
            definition.as_str().into(),
            (revised.definition.overlap != Overlap::Allow).into(),
            optional(revised.progress.map(|progress| progress.next_at_ms)),
            optional(revised.progress.and_then(|progress| progress.last_at_ms)),
            optional(revised.due_ms),
            set.secret.as_deref().into(),
            set.source.as_deref().into(),
            set.by.as_str().into(),
            Value::Int(now_ms),
        ];
        let message = Message::fresh(&self.queries).then("schedule_set", &values)?;
        let rows = self.shared.calls.run(message).await?;
        let row = rows.first().ok_or_else(|| garbled("a schedule", "no row"))?;
        let Some(version) = get::<Option<i64>>(row, "version")? else { return Ok(None) };
        let version = number(version, "a version")?;
        Ok(Some(if seen.is_some() { ScheduleSet::Changed(version) } else { ScheduleSet::Created(version) }))
    }

    /// What its first tick would be refused for is refused now, while somebody is there who can mend it.
    async fn check_target(
        &self,
        key: &ScheduleKey,
        definition: &Definition,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let effect = effect(key, definition, now_ms, Cause::Clock, None, None);
        let Effect::Event { topic, .. } = &effect else { return check_effect(&effect, None) };
        let values = [topic.namespace.as_str().into(), topic.name.as_str().into()];
        let rows = self.call("schedule_topic", &values).await?;
        let row = rows.first().ok_or_else(|| no_such_topic(topic))?;
        check_effect(&effect, Some(number(get::<i64>(row, "max_bytes")?, "a length")?))
    }

    pub(super) async fn delete(
        &self,
        key: &ScheduleKey,
        expect: Option<u64>,
    ) -> Result<Option<bool>, StoreError> {
        let [namespace, name] = key_of(key);
        let values = [namespace, name, expect.map_or(Value::Null, int)];
        let message = Message::fresh(&self.queries).then("schedule_delete", &values)?;
        let rows = self.shared.calls.run(message).await?;
        let deleted = get(rows.first().ok_or_else(|| garbled("a deletion", "no row"))?, "deleted")?;
        if deleted == Some(true) {
            self.sweep().await;
        }
        Ok(deleted)
    }

    /// Clears away the ticks of what was deleted, in bites. It is deleted all the same: should this not come to its end, the leader goes
    /// on.
    async fn sweep(&self) {
        loop {
            let swept = async {
                let message = Message::fresh(&self.queries).then("tick_sweep", &[CLEARED.into()])?;
                let rows = self.shared.calls.run(message).await?;
                rows.first().map_or(Ok(0), |row| get::<i64>(row, "swept"))
            };
            match swept.await {
                Ok(swept) if swept >= i64::from(CLEARED) => {}
                Ok(_) => return,
                Err(error) => {
                    tracing::debug!("ticks of a deleted schedule are left to the leader: {error}");
                    return;
                }
            }
        }
    }

    pub(super) async fn pause(&self, key: &ScheduleKey, pause: &Pause) -> Result<Option<bool>, StoreError> {
        let Pause { by, reason, at_ms } = pause;
        let [namespace, name] = key_of(key);
        let values = [namespace, name, by.as_str().into(), reason.as_str().into(), Value::Int(*at_ms)];
        let rows = self.call("schedule_pause", &values).await?;
        rows.first().map(|row| get(row, "changed")).transpose()
    }

    pub(super) async fn resume(&self, key: &ScheduleKey) -> Result<Option<bool>, StoreError> {
        for _ in 0..TRIES {
            let Some(stored) = self.stored(key).await? else { return Ok(None) };
            if !stored.paused {
                return Ok(Some(false));
            }
            let due = due_ms(&key.namespace, &stored.definition, stored.progress());
            let optional = |ms: Option<i64>| ms.map_or(Value::Null, Value::Int);
            let [namespace, name] = key_of(key);
            let values = [
                namespace,
                name,
                int(stored.version),
                optional(stored.next_at_ms),
                optional(stored.last_at_ms),
                optional(due),
            ];
            if !self.call("schedule_resume", &values).await?.is_empty() {
                return Ok(Some(true));
            }
        }
        Err(restless(key))
    }
}
