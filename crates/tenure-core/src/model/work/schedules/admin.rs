//! Administrative operations on schedules.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::{
    RedactedSecret, ScheduleRecord, SchedulesState, SkippedTicksRecord, TickHistoryEntry, TickRecord, Work,
};
use crate::Name;
use crate::port::{
    Notification, Pause, Precondition, ScheduleFilter, ScheduleKey, ScheduleStats, ScheduleView,
    SetScheduleOutcome, SetScheduleRequest, StoreError, TickCause, TickFilter, TickOutcome, TickView,
};
use crate::rules::schedule::{RevisedSchedule, due_ms, effect, revise};

impl Work {
    /// See [`ScheduleAdmin::schedules`](crate::port::ScheduleAdmin::schedules).
    pub fn schedules(&self, filter: &ScheduleFilter) -> Vec<ScheduleView> {
        let from = filter.after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let all = self.schedules_state.schedules.range((from, Bound::Unbounded));
        let matches_filter = |(key, schedule): &(&ScheduleKey, &ScheduleRecord)| {
            filter.namespace.as_ref().is_none_or(|namespace| key.namespace == *namespace)
                && filter.source.as_ref().is_none_or(|source| schedule.source.as_ref() == Some(source))
        };
        let limit = if filter.limit == 0 { usize::MAX } else { filter.limit as usize };
        all.filter(matches_filter).take(limit).map(|(key, schedule)| schedule.view(&key.namespace)).collect()
    }

    /// See [`ScheduleAdmin::schedule`](crate::port::ScheduleAdmin::schedule).
    pub fn schedule(&self, key: &ScheduleKey) -> Option<ScheduleView> {
        Some(self.schedules_state.schedules.get(key)?.view(&key.namespace))
    }

    /// See [`ScheduleAdmin::set_schedule`](crate::port::ScheduleAdmin::set_schedule).
    pub fn set_schedule(
        &mut self,
        set: &SetScheduleRequest,
        now_ms: i64,
    ) -> Result<SetScheduleOutcome, StoreError> {
        let key = ScheduleKey::new(set.namespace.clone(), set.definition.name.clone());
        let stored = self.schedules_state.schedules.get(&key);
        let version = stored.map(|stored| stored.version);
        let as_expected = match set.precondition {
            Precondition::Any => true,
            Precondition::New => version.is_none(),
            Precondition::Version(expected) => version == Some(expected),
        };
        if !as_expected {
            return Ok(SetScheduleOutcome::Conflict(version));
        }
        let is_paused = stored.is_some_and(|stored| stored.paused.is_some());
        let before = stored.map(|stored| (&stored.definition, stored.progress));
        let revised = revise(&set.namespace, &set.definition, before, is_paused, now_ms)?;
        // Report an error of the target now, while the caller can correct it, and not at the first tick.
        self.check_effect(&effect(&key, &revised.definition, now_ms, TickCause::Schedule, None, None))?;
        let secret = set.secret.clone().map(RedactedSecret);
        match self.schedules_state.schedules.get_mut(&key) {
            None => {
                let due_ms = revised.due_ms;
                let version = self.schedules_state.max_deleted_version + 1;
                self.schedules_state
                    .schedules
                    .insert(key.clone(), ScheduleRecord::new(version, revised, set, now_ms));
                self.schedules_state.put_due(&key, due_ms);
                self.notifications.push(Notification::SchedulesChanged);
                Ok(SetScheduleOutcome::Created(version))
            }
            Some(stored) => {
                let secret = secret.or_else(|| stored.secret.clone());
                if stored.definition == revised.definition
                    && stored.source == set.source
                    && stored.secret == secret
                {
                    return Ok(SetScheduleOutcome::Unchanged(stored.version));
                }
                stored.secret = secret;
                stored.change(&revised, set, now_ms);
                let version = stored.version;
                self.schedules_state.put_due(&key, revised.due_ms);
                self.notifications.push(Notification::SchedulesChanged);
                Ok(SetScheduleOutcome::Updated(version))
            }
        }
    }

    /// See [`ScheduleAdmin::delete_schedule`](crate::port::ScheduleAdmin::delete_schedule).
    pub fn delete_schedule(&mut self, key: &ScheduleKey, expect: Option<u64>) -> Option<bool> {
        let schedule = self.schedules_state.schedules.get(key)?;
        if expect.is_some_and(|expected| expected != schedule.version) {
            return Some(false);
        }
        self.schedules_state.delete(key);
        self.notifications.push(Notification::SchedulesChanged);
        Some(true)
    }

    /// See [`ScheduleAdmin::set_schedule_paused`](crate::port::ScheduleAdmin::set_schedule_paused).
    pub fn set_schedule_paused(&mut self, key: &ScheduleKey, pause: Option<&Pause>) -> Option<bool> {
        let schedule = self.schedules_state.schedules.get_mut(key)?;
        if schedule.paused.is_some() == pause.is_some() {
            return Some(false);
        }
        schedule.paused = pause.cloned();
        let due_ms = match pause {
            Some(_) => None,
            None => {
                schedule.consecutive_failures = 0;
                due_ms(&key.namespace, &schedule.definition, schedule.progress)
            }
        };
        self.schedules_state.put_due(key, due_ms);
        self.notifications.push(Notification::SchedulesChanged);
        Some(true)
    }

    /// See [`ScheduleAdmin::ticks`](crate::port::ScheduleAdmin::ticks).
    pub fn ticks(&self, filter: &TickFilter) -> Vec<TickView> {
        let Some(schedule) = self.schedules_state.schedules.get(&filter.key) else { return Vec::new() };
        let (before, limit) = (filter.before_ms.unwrap_or(i64::MAX), filter.limit as usize);
        let ticks = schedule.ticks.range(..(before, false)).rev().take(limit);
        let skips = schedule.skips.range(..before).rev().take(limit);
        let mut views: Vec<TickView> = ticks.map(|((at_ms, _), tick)| tick.view(*at_ms)).collect();
        views.extend(skips.map(|(_, skip)| skip.view()));
        views.sort_by_key(|view| {
            std::cmp::Reverse((view.tick_at_ms, view.cause == TickCause::Trigger, view.decided_at_ms))
        });
        views.truncate(limit);
        views
    }

    /// See [`ScheduleAdmin::schedule_stats`](crate::port::ScheduleAdmin::schedule_stats).
    pub fn schedule_stats(&self, now_ms: i64) -> Vec<ScheduleStats> {
        let mut stats: BTreeMap<&Name, ScheduleStats> = BTreeMap::new();
        for (key, schedule) in &self.schedules_state.schedules {
            let of = stats.entry(&key.namespace).or_insert_with(|| nothing(&key.namespace));
            of.schedule_count += 1;
            of.paused_count += u64::from(schedule.paused.is_some());
            of.failing_count += u64::from(schedule.last_error.is_some());
            if let Some(due_ms) = schedule.due_ms.filter(|due_ms| *due_ms <= now_ms) {
                of.overdue_count += 1;
                of.max_overdue_ms = of.max_overdue_ms.max(now_ms.abs_diff(due_ms));
            }
            of.last_fired_at_ms = of.last_fired_at_ms.max(schedule.last_fired_ms);
        }
        stats.into_values().collect()
    }

    /// See [`ScheduleAdmin::webhook_secret`](crate::port::ScheduleAdmin::webhook_secret).
    pub fn webhook_secret(&self, key: &ScheduleKey) -> Option<String> {
        self.schedules_state.schedules.get(key)?.secret.as_ref().map(|secret| secret.0.clone())
    }
}

impl SchedulesState {
    /// Deletes a schedule and all its ticks.
    fn delete(&mut self, key: &ScheduleKey) {
        self.put_due(key, None);
        let Some(schedule) = self.schedules.remove(key) else { return };
        self.max_deleted_version = self.max_deleted_version.max(schedule.version);
        for ((at_ms, manual), tick) in schedule.ticks {
            self.decided.remove(&(tick.decided_ms, key.clone(), TickHistoryEntry::Tick(at_ms, manual)));
        }
        for (last_ms, skip) in schedule.skips {
            self.decided.remove(&(skip.decided_ms, key.clone(), TickHistoryEntry::Skip(last_ms)));
        }
    }
}

impl ScheduleRecord {
    fn new(version: u64, revised: RevisedSchedule, set: &SetScheduleRequest, now_ms: i64) -> ScheduleRecord {
        ScheduleRecord {
            version,
            definition: revised.definition,
            progress: revised.tick_state,
            due_ms: None,
            paused: None,
            last_error: None,
            consecutive_failures: 0,
            fired: 0,
            skipped: 0,
            overlapped: 0,
            last_fired_ms: None,
            source: set.source.clone(),
            secret: set.secret.clone().map(RedactedSecret),
            created_ms: now_ms,
            updated_ms: now_ms,
            updated_by: set.updated_by.clone(),
            ticks: BTreeMap::new(),
            skips: BTreeMap::new(),
            pruned_until_ms: None,
            unfinished: Default::default(),
        }
    }

    /// Applies a new definition without changing the due time.
    fn change(&mut self, revised: &RevisedSchedule, set: &SetScheduleRequest, now_ms: i64) {
        self.version += 1;
        self.definition = revised.definition.clone();
        self.progress = revised.tick_state;
        self.source = set.source.clone();
        (self.updated_ms, self.updated_by) = (now_ms, set.updated_by.clone());
        // The change may have removed the cause of the error.
        (self.last_error, self.consecutive_failures) = (None, 0);
    }

    fn view(&self, namespace: &Name) -> ScheduleView {
        ScheduleView {
            namespace: namespace.clone(),
            version: self.version,
            definition: self.definition.clone(),
            tick_state: self.progress,
            due_at_ms: self.due_ms,
            paused: self.paused.clone(),
            last_error: self.last_error.clone(),
            fired_count: self.fired,
            skipped_count: self.skipped,
            overlapped_count: self.overlapped,
            last_fired_at_ms: self.last_fired_ms,
            source: self.source.clone(),
            webhook_signed: self.secret.is_some(),
            created_at_ms: self.created_ms,
            updated_at_ms: self.updated_ms,
            updated_by: self.updated_by.clone(),
        }
    }
}

impl TickRecord {
    fn view(&self, at_ms: i64) -> TickView {
        TickView {
            tick_at_ms: at_ms,
            state: self.state,
            cause: self.cause,
            tick_count: 1,
            first_tick_at_ms: None,
            decided_at_ms: self.decided_ms,
            lateness_ms: self.decided_ms.saturating_sub(self.due_ms),
            token: self.token,
            decided_by: self.by.clone(),
            event_id: self.event,
            task_id: self.task,
        }
    }
}

impl SkippedTicksRecord {
    fn view(&self) -> TickView {
        TickView {
            tick_at_ms: self.range.last_tick_at_ms,
            state: TickOutcome::Skipped,
            cause: TickCause::Schedule,
            tick_count: self.range.tick_count,
            first_tick_at_ms: Some(self.range.first_tick_at_ms),
            decided_at_ms: self.decided_ms,
            lateness_ms: self.decided_ms.saturating_sub(self.range.last_tick_at_ms),
            token: Some(self.token),
            decided_by: self.by.clone(),
            event_id: None,
            task_id: None,
        }
    }
}

fn nothing(namespace: &Name) -> ScheduleStats {
    ScheduleStats {
        namespace: namespace.clone(),
        schedule_count: 0,
        paused_count: 0,
        failing_count: 0,
        overdue_count: 0,
        max_overdue_ms: 0,
        last_fired_at_ms: None,
    }
}
