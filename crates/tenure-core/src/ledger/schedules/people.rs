//! Schedules, as people set and see them.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::{Agenda, Entry, Ledger, Schedule, Sealed, Skip, Tick};
use crate::Name;
use crate::port::{
    Cause, Expect, Pause, ScheduleFilter, ScheduleKey, ScheduleSet, ScheduleStats, ScheduleView, SetSchedule,
    StoreError, TickFilter, TickState, TickView, Wake,
};
use crate::schedule::{Revised, due_ms, effect, revise};

impl Ledger {
    /// See [`Calendar::schedules`](crate::port::Calendar::schedules).
    pub fn schedules(&self, filter: &ScheduleFilter) -> Vec<ScheduleView> {
        let from = filter.after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let all = self.agenda.schedules.range((from, Bound::Unbounded));
        let wanted = |(key, schedule): &(&ScheduleKey, &Schedule)| {
            filter.namespace.as_ref().is_none_or(|namespace| key.namespace == *namespace)
                && filter.source.as_ref().is_none_or(|source| schedule.source.as_ref() == Some(source))
        };
        let limit = if filter.limit == 0 { usize::MAX } else { filter.limit as usize };
        all.filter(wanted).take(limit).map(|(key, schedule)| schedule.view(&key.namespace)).collect()
    }

    /// See [`Calendar::schedule`](crate::port::Calendar::schedule).
    pub fn schedule(&self, key: &ScheduleKey) -> Option<ScheduleView> {
        Some(self.agenda.schedules.get(key)?.view(&key.namespace))
    }

    /// See [`Calendar::set_schedule`](crate::port::Calendar::set_schedule).
    pub fn set_schedule(&mut self, set: &SetSchedule, now_ms: i64) -> Result<ScheduleSet, StoreError> {
        let key = ScheduleKey::new(set.namespace.clone(), set.definition.name.clone());
        let stored = self.agenda.schedules.get(&key);
        let version = stored.map(|stored| stored.version);
        let as_expected = match set.expect {
            Expect::Any => true,
            Expect::New => version.is_none(),
            Expect::Version(expected) => version == Some(expected),
        };
        if !as_expected {
            return Ok(ScheduleSet::Conflict(version));
        }
        let is_paused = stored.is_some_and(|stored| stored.paused.is_some());
        let before = stored.map(|stored| (&stored.definition, stored.progress));
        let revised = revise(&set.namespace, &set.definition, before, is_paused, now_ms)?;
        // What its first tick would be refused for is refused now, while somebody is there who can mend it.
        self.check_effect(&effect(&key, &revised.definition, now_ms, Cause::Clock, None, None))?;
        let secret = set.secret.clone().map(Sealed);
        match self.agenda.schedules.get_mut(&key) {
            None => {
                let due_ms = revised.due_ms;
                let version = self.agenda.floor + 1;
                self.agenda.schedules.insert(key.clone(), Schedule::new(version, revised, set, now_ms));
                self.agenda.put_due(&key, due_ms);
                self.wakes.push(Wake::Schedules);
                Ok(ScheduleSet::Created(version))
            }
            Some(stored) => {
                let secret = secret.or_else(|| stored.secret.clone());
                if stored.definition == revised.definition
                    && stored.source == set.source
                    && stored.secret == secret
                {
                    return Ok(ScheduleSet::Same(stored.version));
                }
                stored.secret = secret;
                stored.change(&revised, set, now_ms);
                let version = stored.version;
                self.agenda.put_due(&key, revised.due_ms);
                self.wakes.push(Wake::Schedules);
                Ok(ScheduleSet::Changed(version))
            }
        }
    }

    /// See [`Calendar::delete_schedule`](crate::port::Calendar::delete_schedule).
    pub fn delete_schedule(&mut self, key: &ScheduleKey, expect: Option<u64>) -> Option<bool> {
        let schedule = self.agenda.schedules.get(key)?;
        if expect.is_some_and(|expected| expected != schedule.version) {
            return Some(false);
        }
        self.agenda.delete(key);
        self.wakes.push(Wake::Schedules);
        Some(true)
    }

    /// See [`Calendar::set_schedule_paused`](crate::port::Calendar::set_schedule_paused).
    pub fn set_schedule_paused(&mut self, key: &ScheduleKey, pause: Option<&Pause>) -> Option<bool> {
        let schedule = self.agenda.schedules.get_mut(key)?;
        if schedule.paused.is_some() == pause.is_some() {
            return Some(false);
        }
        schedule.paused = pause.cloned();
        let due_ms = match pause {
            Some(_) => None,
            None => {
                schedule.strikes = 0;
                due_ms(&key.namespace, &schedule.definition, schedule.progress)
            }
        };
        self.agenda.put_due(key, due_ms);
        self.wakes.push(Wake::Schedules);
        Some(true)
    }

    /// See [`Calendar::ticks`](crate::port::Calendar::ticks).
    pub fn ticks(&self, filter: &TickFilter) -> Vec<TickView> {
        let Some(schedule) = self.agenda.schedules.get(&filter.key) else { return Vec::new() };
        let (before, limit) = (filter.before_ms.unwrap_or(i64::MAX), filter.limit as usize);
        let ticks = schedule.ticks.range(..(before, false)).rev().take(limit);
        let skips = schedule.skips.range(..before).rev().take(limit);
        let mut views: Vec<TickView> = ticks.map(|((at_ms, _), tick)| tick.view(*at_ms)).collect();
        views.extend(skips.map(|(_, skip)| skip.view()));
        views.sort_by_key(|view| {
            std::cmp::Reverse((view.at_ms, view.cause == Cause::Trigger, view.decided_ms))
        });
        views.truncate(limit);
        views
    }

    /// See [`Calendar::schedule_stats`](crate::port::Calendar::schedule_stats).
    pub fn schedule_stats(&self, now_ms: i64) -> Vec<ScheduleStats> {
        let mut stats: BTreeMap<&Name, ScheduleStats> = BTreeMap::new();
        for (key, schedule) in &self.agenda.schedules {
            let of = stats.entry(&key.namespace).or_insert_with(|| nothing(&key.namespace));
            of.schedules += 1;
            of.paused += u64::from(schedule.paused.is_some());
            of.troubled += u64::from(schedule.trouble.is_some());
            if let Some(due_ms) = schedule.due_ms.filter(|due_ms| *due_ms <= now_ms) {
                of.overdue += 1;
                of.overdue_ms = of.overdue_ms.max(now_ms.abs_diff(due_ms));
            }
            of.last_fired_ms = of.last_fired_ms.max(schedule.last_fired_ms);
        }
        stats.into_values().collect()
    }

    /// See [`Calendar::call_secret`](crate::port::Calendar::call_secret).
    pub fn call_secret(&self, key: &ScheduleKey) -> Option<String> {
        self.agenda.schedules.get(key)?.secret.as_ref().map(|secret| secret.0.clone())
    }
}

impl Agenda {
    /// Forgets a schedule and all of its ticks.
    fn delete(&mut self, key: &ScheduleKey) {
        self.put_due(key, None);
        let Some(schedule) = self.schedules.remove(key) else { return };
        self.floor = self.floor.max(schedule.version);
        for ((at_ms, by_hand), tick) in schedule.ticks {
            self.decided.remove(&(tick.decided_ms, key.clone(), Entry::Tick(at_ms, by_hand)));
        }
        for (last_ms, skip) in schedule.skips {
            self.decided.remove(&(skip.decided_ms, key.clone(), Entry::Skip(last_ms)));
        }
    }
}

impl Schedule {
    fn new(version: u64, revised: Revised, set: &SetSchedule, now_ms: i64) -> Schedule {
        Schedule {
            version,
            definition: revised.definition,
            progress: revised.progress,
            due_ms: None,
            paused: None,
            trouble: None,
            strikes: 0,
            fired: 0,
            skipped: 0,
            overlapped: 0,
            last_fired_ms: None,
            source: set.source.clone(),
            secret: set.secret.clone().map(Sealed),
            created_ms: now_ms,
            updated_ms: now_ms,
            updated_by: set.by.clone(),
            ticks: BTreeMap::new(),
            skips: BTreeMap::new(),
            forgotten_ms: None,
            under_way: Default::default(),
        }
    }

    /// Becomes what it is to be; when it is due is said elsewhere.
    fn change(&mut self, revised: &Revised, set: &SetSchedule, now_ms: i64) {
        self.version += 1;
        self.definition = revised.definition.clone();
        self.progress = revised.progress;
        self.source = set.source.clone();
        (self.updated_ms, self.updated_by) = (now_ms, set.by.clone());
        // Whatever kept it from firing may be gone with it.
        (self.trouble, self.strikes) = (None, 0);
    }

    fn view(&self, namespace: &Name) -> ScheduleView {
        ScheduleView {
            namespace: namespace.clone(),
            version: self.version,
            definition: self.definition.clone(),
            progress: self.progress,
            due_ms: self.due_ms,
            paused: self.paused.clone(),
            trouble: self.trouble.clone(),
            fired: self.fired,
            skipped: self.skipped,
            overlapped: self.overlapped,
            last_fired_ms: self.last_fired_ms,
            source: self.source.clone(),
            signed: self.secret.is_some(),
            created_ms: self.created_ms,
            updated_ms: self.updated_ms,
            updated_by: self.updated_by.clone(),
        }
    }
}

impl Tick {
    fn view(&self, at_ms: i64) -> TickView {
        TickView {
            at_ms,
            state: self.state,
            cause: self.cause,
            count: 1,
            first_ms: None,
            decided_ms: self.decided_ms,
            late_ms: self.decided_ms.saturating_sub(self.due_ms),
            token: self.token,
            by: self.by.clone(),
            event: self.event,
            task: self.task,
        }
    }
}

impl Skip {
    fn view(&self) -> TickView {
        TickView {
            at_ms: self.range.last_ms,
            state: TickState::Skipped,
            cause: Cause::Clock,
            count: self.range.count,
            first_ms: Some(self.range.first_ms),
            decided_ms: self.decided_ms,
            late_ms: self.decided_ms.saturating_sub(self.range.last_ms),
            token: Some(self.token),
            by: self.by.clone(),
            event: None,
            task: None,
        }
    }
}

fn nothing(namespace: &Name) -> ScheduleStats {
    ScheduleStats {
        namespace: namespace.clone(),
        schedules: 0,
        paused: 0,
        troubled: 0,
        overdue: 0,
        overdue_ms: 0,
        last_fired_ms: None,
    }
}
