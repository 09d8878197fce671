//! Operations of operators: define, pause, resume and delete schedules.

use tenure_core::port::{
    Pause, Precondition, ScheduleKey, SetScheduleOutcome, SetScheduleRequest, StoreError, TickCause,
    TickEffect,
};
use tenure_core::rules::event::no_such_topic;
use tenure_core::rules::schedule::{
    OverlapPolicy, ScheduleDefinition, ScheduleTickState, due_ms, effect, revise,
};

use super::super::error::unexpected_response;
use super::super::message::Message;
use super::super::store::{int, number};
use super::super::value::Value;
use super::super::work::json_text;
use super::super::{PostgresStore, from_json, get};
use super::ticks::check_effect;
use super::{MAX_ATTEMPTS, keeps_changing, key_of};

/// Maximum number of orphaned ticks that one transaction deletes.
const PRUNE_BATCH: u32 = 10_000;

/// The stored state of a schedule from which a change is computed.
pub(super) struct StoredSchedule {
    pub(super) version: u64,
    pub(super) definition: ScheduleDefinition,
    pub(super) now_at_ms: i64,
    next_tick_at_ms: Option<i64>,
    last_tick_at_ms: Option<i64>,
    paused: bool,
    source: Option<String>,
    secret: Option<String>,
}

impl StoredSchedule {
    /// Whether the schedule has this version and next tick, and is not paused.
    pub(super) fn is_current(&self, version: u64, next_tick_at_ms: i64) -> bool {
        self.version == version && self.next_tick_at_ms == Some(next_tick_at_ms) && !self.paused
    }

    fn tick_state(&self) -> Option<ScheduleTickState> {
        self.next_tick_at_ms.map(|next_tick_at_ms| ScheduleTickState {
            next_tick_at_ms,
            last_tick_at_ms: self.last_tick_at_ms,
        })
    }
}

impl PostgresStore {
    pub(super) async fn stored(&self, key: &ScheduleKey) -> Result<Option<StoredSchedule>, StoreError> {
        let rows = self.call("schedule_state_get", &key_of(key)).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some(StoredSchedule {
            version: number(get::<i64>(row, "version")?, "a version")?,
            definition: from_json(row, "definition")?,
            now_at_ms: get(row, "now_at_ms")?,
            next_tick_at_ms: get(row, "next_tick_at_ms")?,
            last_tick_at_ms: get(row, "last_tick_at_ms")?,
            paused: get(row, "paused")?,
            source: get(row, "source")?,
            secret: get(row, "secret")?,
        }))
    }

    pub(super) async fn define(&self, set: &SetScheduleRequest) -> Result<SetScheduleOutcome, StoreError> {
        let key = ScheduleKey::new(set.namespace.clone(), set.definition.name.clone());
        for _ in 0..MAX_ATTEMPTS {
            let stored = self.stored(&key).await?;
            let version = stored.as_ref().map(|stored| stored.version);
            let expected = match set.precondition {
                Precondition::Any => true,
                Precondition::New => version.is_none(),
                Precondition::Version(expected) => version == Some(expected),
            };
            if !expected {
                return Ok(SetScheduleOutcome::Conflict(version));
            }
            if let Some(outcome) = self.try_define(set, &key, stored).await? {
                return Ok(outcome);
            }
        }
        Err(keeps_changing(&key))
    }

    /// One attempt to store a definition. `None` if the schedule changed meanwhile.
    async fn try_define(
        &self,
        set: &SetScheduleRequest,
        key: &ScheduleKey,
        stored: Option<StoredSchedule>,
    ) -> Result<Option<SetScheduleOutcome>, StoreError> {
        let now_at_ms = match &stored {
            Some(stored) => stored.now_at_ms,
            None => {
                let rows = self.call("schedule_clock", &[]).await?;
                get(rows.first().ok_or_else(|| unexpected_response("the clock", "no row"))?, "now_at_ms")?
            }
        };
        let is_paused = stored.as_ref().is_some_and(|stored| stored.paused);
        let current = stored.as_ref().map(|stored| (&stored.definition, stored.tick_state()));
        let revised = revise(&key.namespace, &set.definition, current, is_paused, now_at_ms)?;
        self.check_target(key, &revised.definition, now_at_ms).await?;
        if let Some(stored) = &stored
            && stored.definition == revised.definition
            && stored.source == set.source
            && set.secret.as_ref().is_none_or(|secret| stored.secret.as_ref() == Some(secret))
        {
            return Ok(Some(SetScheduleOutcome::Unchanged(stored.version)));
        }
        let seen = stored.as_ref();
        let optional = |ms: Option<i64>| ms.map_or(Value::Null, Value::Int);
        let definition = json_text(&revised.definition)?;
        let [namespace, name] = key_of(key);
        let values = [
            namespace,
            name,
            seen.map_or(Value::Null, |stored| int(stored.version)),
            optional(seen.and_then(|stored| stored.next_tick_at_ms)),
            optional(seen.and_then(|stored| stored.last_tick_at_ms)),
            is_paused.into(),
            definition.as_str().into(),
            (revised.definition.overlap_policy != OverlapPolicy::Allow).into(),
            optional(revised.tick_state.map(|progress| progress.next_tick_at_ms)),
            optional(revised.tick_state.and_then(|progress| progress.last_tick_at_ms)),
            optional(revised.due_ms),
            set.secret.as_deref().into(),
            set.source.as_deref().into(),
            set.updated_by.as_str().into(),
            Value::Int(now_at_ms),
        ];
        let message = Message::fresh(&self.queries).then("schedule_set", &values)?;
        let rows = self.shared.calls.run(message).await?;
        let row = rows.first().ok_or_else(|| unexpected_response("a schedule", "no row"))?;
        let Some(version) = get::<Option<i64>>(row, "version")? else { return Ok(None) };
        let version = number(version, "a version")?;
        Ok(Some(if seen.is_some() {
            SetScheduleOutcome::Updated(version)
        } else {
            SetScheduleOutcome::Created(version)
        }))
    }

    /// Reject a definition whose first tick the target would reject, while the operator can correct it.
    async fn check_target(
        &self,
        key: &ScheduleKey,
        definition: &ScheduleDefinition,
        now_at_ms: i64,
    ) -> Result<(), StoreError> {
        let effect = effect(key, definition, now_at_ms, TickCause::Schedule, None, None);
        let TickEffect::Event { topic, .. } = &effect else { return check_effect(&effect, None) };
        let values = [topic.namespace.as_str().into(), topic.name.as_str().into()];
        let rows = self.call("schedule_topic_limit", &values).await?;
        let row = rows.first().ok_or_else(|| no_such_topic(topic))?;
        check_effect(&effect, Some(number(get::<i64>(row, "max_payload_bytes")?, "a length")?))
    }

    pub(super) async fn delete(
        &self,
        key: &ScheduleKey,
        if_version: Option<u64>,
    ) -> Result<Option<bool>, StoreError> {
        let [namespace, name] = key_of(key);
        let values = [namespace, name, if_version.map_or(Value::Null, int)];
        let message = Message::fresh(&self.queries).then("schedule_delete", &values)?;
        let rows = self.shared.calls.run(message).await?;
        let deleted =
            get(rows.first().ok_or_else(|| unexpected_response("a deletion", "no row"))?, "deleted")?;
        if deleted == Some(true) {
            self.prune_orphaned_ticks().await;
        }
        Ok(deleted)
    }

    /// Delete the ticks of deleted schedules in batches. The schedule is deleted already: if this fails, the scheduler
    /// continues.
    async fn prune_orphaned_ticks(&self) {
        loop {
            let pruned = async {
                let message =
                    Message::fresh(&self.queries).then("orphaned_tick_prune", &[PRUNE_BATCH.into()])?;
                let rows = self.shared.calls.run(message).await?;
                rows.first().map_or(Ok(0), |row| get::<i64>(row, "deleted_count"))
            };
            match pruned.await {
                Ok(pruned) if pruned >= i64::from(PRUNE_BATCH) => {}
                Ok(_) => return,
                Err(error) => {
                    tracing::debug!(%error, "orphaned ticks not pruned; the scheduler prunes them later");
                    return;
                }
            }
        }
    }

    pub(super) async fn pause(&self, key: &ScheduleKey, pause: &Pause) -> Result<Option<bool>, StoreError> {
        let Pause { paused_by, reason, paused_at_ms } = pause;
        let [namespace, name] = key_of(key);
        let values =
            [namespace, name, paused_by.as_str().into(), reason.as_str().into(), Value::Int(*paused_at_ms)];
        let rows = self.call("schedule_pause", &values).await?;
        rows.first().map(|row| get(row, "changed")).transpose()
    }

    pub(super) async fn resume(&self, key: &ScheduleKey) -> Result<Option<bool>, StoreError> {
        for _ in 0..MAX_ATTEMPTS {
            let Some(stored) = self.stored(key).await? else { return Ok(None) };
            if !stored.paused {
                return Ok(Some(false));
            }
            let due = due_ms(&key.namespace, &stored.definition, stored.tick_state());
            let optional = |ms: Option<i64>| ms.map_or(Value::Null, Value::Int);
            let [namespace, name] = key_of(key);
            let values = [
                namespace,
                name,
                int(stored.version),
                optional(stored.next_tick_at_ms),
                optional(stored.last_tick_at_ms),
                optional(due),
            ];
            if !self.call("schedule_resume", &values).await?.is_empty() {
                return Ok(Some(true));
            }
        }
        Err(keeps_changing(key))
    }
}
