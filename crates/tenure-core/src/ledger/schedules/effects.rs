//! What ticks do: the events and tasks of many, checked first and then done together.

use std::collections::BTreeMap;

use super::{Ledger, Tick};
use crate::claim::check_of_tick;
use crate::event::{check_events, no_such_topic, weight};
use crate::port::{
    Effect, NewEvent, NewTask, PUBLISH_MAX, QueueKey, READ_BYTES, SUBMIT_MAX, ScheduleKey, StoreError,
    Submission, TopicKey,
};

/// Ticks that are to be kept, and what they do, by topic and queue; each effect knows the place of its tick.
#[derive(Default)]
pub(super) struct Volley {
    pub(super) ticks: Vec<(ScheduleKey, i64, Tick)>,
    events: BTreeMap<TopicKey, (Vec<usize>, Vec<NewEvent>)>,
    tasks: BTreeMap<QueueKey, (Vec<usize>, Vec<NewTask>)>,
}

impl Volley {
    pub(super) fn add(&mut self, key: &ScheduleKey, at_ms: i64, tick: Tick, effect: Option<&Effect>) {
        let place = self.ticks.len();
        self.ticks.push((key.clone(), at_ms, tick));
        match effect {
            Some(Effect::Event { topic, event }) => {
                let (places, events) = self.events.entry(topic.clone()).or_default();
                places.push(place);
                events.push(event.as_ref().clone());
            }
            Some(Effect::Task { queue, task }) => {
                let (places, tasks) = self.tasks.entry(queue.clone()).or_default();
                places.push(place);
                tasks.push(task.as_ref().clone());
            }
            None => {}
        }
    }
}

impl Ledger {
    /// Refuses what can not be: a topic that is not there, an event that is too long for it, a task that makes no sense.
    pub(super) fn check_effect(&self, effect: &Effect) -> Result<(), StoreError> {
        match effect {
            Effect::Event { topic, event } => {
                let settings = self.topic_settings(topic).ok_or_else(|| no_such_topic(topic))?;
                Ok(check_events(std::slice::from_ref(event.as_ref()), settings.max_bytes)?)
            }
            Effect::Task { queue, task } => {
                let tasks = vec![task.as_ref().clone()];
                Ok(check_of_tick(&Submission { queue: queue.clone(), tasks })?)
            }
        }
    }

    /// Publishes, submits, and keeps the ticks, which know then what came of them. All of it was checked: nothing fails half-way.
    pub(super) fn perform(&mut self, volley: Volley, now_ms: i64) -> Result<Vec<(i64, Tick)>, StoreError> {
        let Volley { mut ticks, events, tasks } = volley;
        for (topic, (places, events)) in events {
            let (mut rest, mut places) = (&events[..], places.into_iter());
            while !rest.is_empty() {
                let (events, others) = rest.split_at(together(rest));
                rest = others;
                for (published, place) in self.publish(&topic, events, now_ms)?.iter().zip(&mut places) {
                    ticks[place].2.event = Some(published.id);
                }
            }
        }
        for (queue, (places, tasks)) in tasks {
            for (places, tasks) in places.chunks(SUBMIT_MAX).zip(tasks.chunks(SUBMIT_MAX)) {
                let submission = Submission { queue: queue.clone(), tasks: tasks.to_vec() };
                for (submitted, place) in self.enter(&submission, now_ms)?.iter().zip(places) {
                    ticks[*place].2.task = Some(submitted.id);
                }
            }
        }
        let keep = |(key, at_ms, tick): (ScheduleKey, i64, Tick)| {
            self.agenda.put_tick(&key, at_ms, tick.clone());
            (at_ms, tick)
        };
        Ok(ticks.into_iter().map(keep).collect())
    }
}

/// How many of these, from the first on, are published in one call.
fn together(events: &[NewEvent]) -> usize {
    let mut bytes = 0;
    let fits = events.iter().take(PUBLISH_MAX).take_while(|event| {
        bytes += weight(event);
        bytes <= READ_BYTES
    });
    fits.count().max(1)
}
