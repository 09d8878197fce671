//! What is due, and firing.

use super::effects::Volley;
use super::{Agenda, Ledger, Schedule, Skip, Tick};
use crate::Token;
use crate::claim::clip;
use crate::ledger::Witness;
use crate::port::{
    Cause, DUE_MAX, DueLook, DueSchedule, Fire, Fired, Firing, FiringTick, ScheduleKey, StoreError, TaskId,
    TickState,
};
use crate::schedule::{Load, Overlap, check_fire, load_of};

impl Ledger {
    /// See [`Scheduling::due`](crate::port::Scheduling::due).
    pub fn due(&self, limit: u32, now_ms: i64) -> DueLook {
        let limit = limit.clamp(1, DUE_MAX) as usize;
        let is_due = |(due_ms, _): &&(i64, ScheduleKey)| *due_ms <= now_ms;
        let due = self.agenda.due.iter().take_while(is_due).take(limit);
        let these: Vec<&ScheduleKey> = due.map(|(_, key)| key).collect();
        let next = self.agenda.due.iter().nth(these.len()).map(|(due_ms, _)| *due_ms);
        DueLook {
            more: next.is_some_and(|due_ms| due_ms <= now_ms),
            schedules: these.into_iter().filter_map(|key| self.due_schedule(key)).collect(),
            store_ms: now_ms,
            next_due_ms: next,
        }
    }

    fn due_schedule(&self, key: &ScheduleKey) -> Option<DueSchedule> {
        let schedule = self.agenda.schedules.get(key)?;
        Some(DueSchedule {
            key: key.clone(),
            version: schedule.version,
            definition: schedule.definition.clone(),
            progress: schedule.progress?,
            load: self.load(schedule),
            strikes: schedule.strikes,
        })
    }

    fn load(&self, schedule: &Schedule) -> Load {
        if schedule.definition.overlap == Overlap::Allow {
            return Load::default();
        }
        let under_way = schedule.under_way.iter().filter(|task| self.is_under_way(**task));
        load_of(under_way.count() as u64)
    }

    /// See [`Scheduling::fire`](crate::port::Scheduling::fire).
    pub fn fire(
        &mut self,
        fire: &Fire,
        witness: &dyn Witness,
        now_ms: i64,
    ) -> Result<Option<Vec<Fired>>, StoreError> {
        check_fire(fire)?;
        let Some(by) = witness.scheduler(&fire.session, fire.token) else { return Ok(None) };
        let mut volley = Volley::default();
        let mut fired = Vec::with_capacity(fire.firings.len());
        for firing in &fire.firings {
            // Nothing of what is gathered is done yet, and no schedule is named twice: each is judged as all of them are seen.
            fired.push(self.judge(firing));
            if fired.last() == Some(&Fired::Yes) {
                self.agenda.advance(firing, fire.token, &by, now_ms, &mut volley);
                self.forget_what_is_over(&firing.key);
            }
        }
        self.perform(volley, now_ms)?;
        Ok(Some(fired))
    }

    fn judge(&self, firing: &Firing) -> Fired {
        if !self.agenda.schedules.get(&firing.key).is_some_and(|schedule| schedule.stands(firing)) {
            return Fired::Stale;
        }
        let effects = firing.ticks.iter().filter_map(|tick| tick.effect.as_ref());
        let refused = effects.map(|effect| self.check_effect(effect)).find_map(Result::err);
        match refused.filter(|_| firing.trouble.is_none()) {
            Some(error) => Fired::Refused(error.message),
            None => Fired::Yes,
        }
    }

    /// What is over need not be asked about again.
    fn forget_what_is_over(&mut self, key: &ScheduleKey) {
        let Some(schedule) = self.agenda.schedules.get(key) else { return };
        let over = schedule.under_way.iter().filter(|task| !self.is_under_way(**task));
        let over: Vec<TaskId> = over.copied().collect();
        if let Some(schedule) = self.agenda.schedules.get_mut(key) {
            over.iter().for_each(|task| {
                schedule.under_way.remove(task);
            });
        }
    }
}

impl Schedule {
    /// Whether it is as the leader has seen it.
    fn stands(&self, firing: &Firing) -> bool {
        let next = self.progress.map(|progress| progress.next_at_ms);
        self.version == firing.version && next == Some(firing.next_at_ms) && self.paused.is_none()
    }
}

impl Agenda {
    /// Does to a schedule what was decided about it; the ticks are gathered.
    fn advance(&mut self, firing: &Firing, token: Token, by: &str, now_ms: i64, volley: &mut Volley) {
        let Some(schedule) = self.schedules.get_mut(&firing.key) else { return };
        if let Some(trouble) = &firing.trouble {
            schedule.trouble = Some(clip(trouble));
            schedule.strikes = schedule.strikes.saturating_add(1);
            self.put_due(&firing.key, firing.due_ms);
            return;
        }
        (schedule.trouble, schedule.strikes) = (None, 0);
        schedule.progress = firing.progress;
        for tick in &firing.ticks {
            // What was decided about before is over, whatever is stored about the next tick.
            if schedule.knows(tick.at_ms) {
                continue;
            }
            let row = decided(tick, token, by, now_ms);
            match row.state {
                TickState::Fired => {
                    schedule.fired += 1;
                    schedule.last_fired_ms = Some(now_ms);
                }
                _ => schedule.overlapped += 1,
            }
            volley.add(&firing.key, tick.at_ms, row, tick.effect.as_ref());
        }
        if let Some(range) = firing.skipped {
            schedule.skipped = schedule.skipped.saturating_add(range.count);
            self.put_skip(&firing.key, Skip { range, decided_ms: now_ms, token, by: by.into() });
        }
        self.put_due(&firing.key, firing.due_ms);
    }
}

fn decided(tick: &FiringTick, token: Token, by: &str, now_ms: i64) -> Tick {
    Tick {
        state: if tick.effect.is_some() { TickState::Fired } else { TickState::Overlapped },
        cause: Cause::Clock,
        due_ms: tick.due_ms,
        decided_ms: now_ms,
        token: Some(token),
        by: by.into(),
        event: None,
        task: None,
        tracked: tick.tracked && tick.effect.is_some(),
    }
}
