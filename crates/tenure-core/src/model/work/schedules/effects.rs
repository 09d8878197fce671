//! Effects of ticks: events and tasks, validated first and then applied together.

use std::collections::BTreeMap;

use super::{TickRecord, Work};
use crate::port::{
    NewEvent, NewTask, PUBLISH_MAX, QueueKey, READ_BYTES, SUBMIT_MAX, ScheduleKey, StoreError, Submission,
    TickEffect, TopicKey,
};
use crate::rules::event::{no_such_topic, validate_events, weight};
use crate::rules::work::validate_tick_submission;

/// Ticks to record, and their effects grouped by topic and queue. Each effect has the index of its tick.
#[derive(Default)]
pub(super) struct TickEffects {
    pub(super) ticks: Vec<(ScheduleKey, i64, TickRecord)>,
    events: BTreeMap<TopicKey, (Vec<usize>, Vec<NewEvent>)>,
    tasks: BTreeMap<QueueKey, (Vec<usize>, Vec<NewTask>)>,
}

impl TickEffects {
    pub(super) fn add(
        &mut self,
        key: &ScheduleKey,
        at_ms: i64,
        tick: TickRecord,
        effect: Option<&TickEffect>,
    ) {
        let index = self.ticks.len();
        self.ticks.push((key.clone(), at_ms, tick));
        match effect {
            Some(TickEffect::Event { topic, event }) => {
                let (locations, events) = self.events.entry(topic.clone()).or_default();
                locations.push(index);
                events.push(event.as_ref().clone());
            }
            Some(TickEffect::Task { queue, task }) => {
                let (locations, tasks) = self.tasks.entry(queue.clone()).or_default();
                locations.push(index);
                tasks.push(task.as_ref().clone());
            }
            None => {}
        }
    }
}

impl Work {
    /// Rejects an effect that cannot be applied: the topic does not exist, the event is too large, the task is
    /// invalid.
    pub(super) fn check_effect(&self, effect: &TickEffect) -> Result<(), StoreError> {
        match effect {
            TickEffect::Event { topic, event } => {
                let settings = self.topic_settings(topic).ok_or_else(|| no_such_topic(topic))?;
                Ok(validate_events(std::slice::from_ref(event.as_ref()), settings.max_payload_bytes)?)
            }
            TickEffect::Task { queue, task } => {
                let tasks = vec![task.as_ref().clone()];
                Ok(validate_tick_submission(&Submission { queue: queue.clone(), tasks })?)
            }
        }
    }

    /// Publishes the events, submits the tasks and records the ticks with their event and task ids. The effects must be
    /// validated, so that no call fails after others were applied.
    pub(super) fn perform(
        &mut self,
        effects: TickEffects,
        now_ms: i64,
    ) -> Result<Vec<(i64, TickRecord)>, StoreError> {
        let TickEffects { mut ticks, events, tasks } = effects;
        for (topic, (locations, events)) in events {
            let (mut rest, mut locations) = (&events[..], locations.into_iter());
            while !rest.is_empty() {
                let (events, others) = rest.split_at(together(rest));
                rest = others;
                for (published, index) in self.publish(&topic, events, now_ms)?.iter().zip(&mut locations) {
                    ticks[index].2.event = Some(published.id);
                }
            }
        }
        for (queue, (locations, tasks)) in tasks {
            for (locations, tasks) in locations.chunks(SUBMIT_MAX).zip(tasks.chunks(SUBMIT_MAX)) {
                let submission = Submission { queue: queue.clone(), tasks: tasks.to_vec() };
                for (submitted, index) in self.enter(&submission, now_ms)?.iter().zip(locations) {
                    ticks[*index].2.task = Some(submitted.id);
                }
            }
        }
        let keep = |(key, at_ms, tick): (ScheduleKey, i64, TickRecord)| {
            self.schedules_state.put_tick(&key, at_ms, tick.clone());
            (at_ms, tick)
        };
        Ok(ticks.into_iter().map(keep).collect())
    }
}

/// The number of events, counted from the first, that fit into one publish call.
fn together(events: &[NewEvent]) -> usize {
    let mut bytes = 0;
    let fits = events.iter().take(PUBLISH_MAX).take_while(|event| {
        bytes += weight(event);
        bytes <= READ_BYTES
    });
    fits.count().max(1)
}
