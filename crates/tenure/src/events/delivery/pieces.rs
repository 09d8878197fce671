//! What failed, or does not pass, in pieces: unit by unit, event by event, until it is one event that stands in the way.

use std::collections::HashSet;
use std::sync::Arc;

use tenure_core::Moment;
use tenure_core::event::{after_failure, units};
use tenure_core::port::{Aside, Event, EventId, SetAside, ShareCommit};

use super::{Chunk, Failures, HandlerError, Lane, Stay, Step, due_of};
use crate::events::handler::TROUBLE;
use crate::events::report::Kind;
use crate::metrics;
use crate::runtime::Draw;

/// After so many events that pass, and none that got through, none is expected to.
const HOPELESS: usize = 16;

impl Stay<'_> {
    /// An error passes.
    pub(super) async fn unit_by_unit(
        &self,
        chunks: &[&Chunk],
        failures: &mut Failures,
    ) -> Result<Step, HandlerError> {
        for chunk in chunks {
            for unit in units(&chunk.events) {
                let unit = Chunk { to: unit[0].position, events: unit.to_vec(), ..**chunk };
                while !self.left([&unit]).is_empty() {
                    let sole = self.sole(&unit);
                    let known = sole.is_some_and(|sole| failures.0.contains_key(&sole));
                    let step = if known { Step::Failed } else { self.attempt(&[&unit], 1, failures).await? };
                    let step = match step {
                        Step::Failed => self.event_by_event(&unit, failures).await?,
                        step => step,
                    };
                    if matches!(step, Step::Over) {
                        return Ok(Step::Over);
                    }
                }
                if self.shares().ours(chunk.slot, chunk.token).is_none() {
                    // Lost, or to be given up: what was done of it is committed.
                    break;
                }
            }
        }
        Ok(Step::Done)
    }

    /// The only event of a chunk that is to be handled, if it is one.
    fn sole(&self, chunk: &Chunk) -> Option<EventId> {
        match *self.sorted(chunk, &chunk.events).go {
            [place] => Some(chunk.events[place].id),
            _ => None,
        }
    }

    /// Each alone. Those that fail are set aside, and those of their keys behind them, when the whole unit is read: until then it is
    /// there to be read again, by whoever has the slot then. An error passes, and nothing is set aside yet.
    async fn event_by_event(&self, unit: &Chunk, failures: &mut Failures) -> Result<Step, HandlerError> {
        let mut failed: Vec<(&Event, HandlerError)> = Vec::new();
        for event in &unit.events {
            loop {
                if self.sorted(unit, std::slice::from_ref(event)).go.is_empty() {
                    break;
                }
                if let Some(error) = failures.0.remove(&event.id) {
                    self.shares().park(unit.token, event);
                    failed.push((event, error));
                    break;
                }
                let step = match self.give(vec![self.alone(unit, event)], 1, failures).await {
                    Ok(step) => step,
                    Err(passing) => {
                        let mut shares = self.shares();
                        for (event, error) in failed {
                            shares.unpark(unit.token, event);
                            failures.0.insert(event.id, error);
                        }
                        return Err(passing);
                    }
                };
                if matches!(step, Step::Over) || self.left([unit]).is_empty() {
                    return Ok(step);
                }
            }
        }
        Ok(self.set_aside(unit, &failed).await)
    }

    /// Something passes, and does not pass by: each event alone, to see whether others get through. Those that do not are set aside,
    /// uncounted. `Failed`: none got through, and all is as it was.
    pub(super) async fn apart(&self, chunks: &[&Chunk], failures: &mut Failures) -> Step {
        let (mut through, mut passed) = (false, 0);
        let mut stuck: Vec<(&Chunk, Vec<(&Event, HandlerError)>)> = Vec::new();
        for chunk in chunks {
            let (mut failed, mut keys): (Vec<(&Event, HandlerError)>, HashSet<&str>) = Default::default();
            for event in &chunk.events {
                if self.is_draining() {
                    return Step::Over;
                }
                let waits = event.key.as_deref().is_some_and(|key| keys.contains(key));
                if waits || self.sorted(chunk, std::slice::from_ref(event)).go.is_empty() {
                    continue;
                }
                let given = match failures.0.contains_key(&event.id) {
                    true => Ok(Step::Failed),
                    false => self.give(vec![self.alone(chunk, event)], 1, failures).await,
                };
                let error = match given {
                    Ok(Step::Over) => return Step::Over,
                    Ok(Step::Done) => {
                        through = true;
                        continue;
                    }
                    // It is not ours any more, or nobody knows.
                    Ok(Step::Again) => break,
                    Ok(Step::Failed) => {
                        through = true;
                        failures.0.remove(&event.id).unwrap_or_else(|| HandlerError::fail("it failed"))
                    }
                    Err(passing) => {
                        passed += 1;
                        passing
                    }
                };
                if !through && passed >= HOPELESS {
                    return Step::Failed;
                }
                keys.extend(event.key.as_deref());
                failed.push((event, error));
            }
            stuck.push((chunk, failed));
        }
        if !through {
            return Step::Failed;
        }
        for (chunk, failed) in stuck {
            if self.left([chunk]).is_empty() {
                continue;
            }
            failed.iter().for_each(|(event, _)| self.shares().park(chunk.token, event));
            if matches!(self.set_aside(chunk, &failed).await, Step::Over) {
                return Step::Over;
            }
        }
        Step::Done
    }

    /// An event, in a transaction of its own.
    fn alone(&self, chunk: &Chunk, event: &Event) -> Lane {
        let done =
            ShareCommit { done: vec![(event.id, event.position)], ..self.commit(chunk.slot, chunk.token) };
        Lane { events: Arc::new([event.clone()]), commits: vec![done] }
    }

    /// All of it is done, but these, which are parked already: they are set aside, and the slot goes on.
    async fn set_aside(&self, unit: &Chunk, failed: &[(&Event, HandlerError)]) -> Step {
        let (commit, aside) = self.aside_of(unit, failed);
        let step = self.tell_store(vec![commit]).await;
        let mut shares = self.shares();
        if shares.position(unit.slot, unit.token) == Some(unit.to) {
            shares.set_aside_now(unit.token, &aside);
            shares.passed(unit.slot, &unit.events);
            aside.iter().for_each(|(_, due)| metrics::failed(&self.orders.group, due.is_none()));
        }
        step
    }

    /// What is said about a unit some events of which failed; and when each of those is due.
    fn aside_of<'e>(
        &self,
        unit: &Chunk,
        failed: &[(&'e Event, HandlerError)],
    ) -> (ShareCommit, Vec<(&'e Event, Option<Moment>)>) {
        let (mut commit, mut aside) = (self.through(unit), Vec::new());
        commit.set_aside.retain(|behind| failed.iter().all(|(event, _)| event.id != behind.event));
        for (event, error) in failed {
            let (group, id, slot, key) = (&self.orders.group, event.id, event.slot, &event.key);
            tracing::info!(%group, event = %id, slot, key, "event set aside: {error}");
            let how = self.verdict(0, error);
            aside.push((*event, due_of(&how, self.hub.runtime.now())));
            commit.set_aside.push(SetAside { event: event.id, position: event.position, how });
        }
        (commit, aside)
    }

    /// What becomes of an event that was tried so often before, and failed.
    pub(super) fn verdict(&self, attempts: u32, error: &HandlerError) -> Aside {
        if error.is_passing() {
            // Not one attempt more. That it was tried at all is what tells it from one that waits behind another.
            let after_ms = u64::try_from(self.hub.jittered(TROUBLE.1).as_millis()).unwrap_or(u64::MAX);
            return Aside::Retry { attempts: attempts.max(1), after_ms, error: error.message.clone() };
        }
        let settings = self.shares().settings;
        let how = after_failure(&settings, attempts, &error.message, &mut Draw(self.hub.runtime.as_ref()));
        match (how, error.kind) {
            (Aside::Retry { attempts, error, .. }, Kind::ForGood) => Aside::Dead { attempts, error },
            (Aside::Retry { attempts, error, .. }, Kind::RetryAfter(after)) => {
                let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                Aside::Retry { attempts, after_ms, error }
            }
            (how, _) => how,
        }
    }
}
