//! Ticks with their events and tasks, in the form that the functions of the database read.

use std::collections::HashMap;
use std::hash::Hash;

use serde::Serialize;
use tenure_core::port::{
    EVENT_BYTES_MAX, ErrorKind, FiringTick, NewEvent, NewTask, QueueKey, StoreError, Submission, TickEffect,
    TopicKey,
};
use tenure_core::rules::event::validate_events;
use tenure_core::rules::work::{Requirements, validate_tick_submission};

use super::super::events::{Columns, numbers, some_numbers};
use super::super::value::Value;
use super::super::work::{RequirementsArg, TaskArg, json_text, texts};

/// Ticks, their events and their tasks as columns. Indexes count from 1, as in SQL.
#[derive(Default)]
pub(super) struct TickColumns<'a> {
    firings: Vec<i64>,
    tick_times: Vec<i64>,
    due_times: Vec<i64>,
    tracked: Vec<bool>,
    event_indexes: Vec<Option<i64>>,
    task_indexes: Vec<Option<i64>>,
    topics: Interner<&'a TopicKey>,
    event_topics: Vec<i64>,
    events: Vec<&'a NewEvent>,
    queues: Interner<&'a QueueKey>,
    /// The requirements of each queue.
    requirements: Vec<Interner<Requirements>>,
    task_queues: Vec<i64>,
    tasks: Vec<(&'a NewTask, usize)>,
}

impl<'a> TickColumns<'a> {
    /// Add a tick of the firing with this index.
    pub(super) fn push(&mut self, firing: i64, tick: &'a FiringTick) {
        self.firings.push(firing);
        self.tick_times.push(tick.tick_at_ms);
        self.due_times.push(tick.due_at_ms);
        self.tracked.push(tick.tracked);
        let (mut event_index, mut task_index) = (None, None);
        match &tick.effect {
            Some(TickEffect::Event { topic, event }) => {
                self.event_topics.push(self.topics.index_of(topic));
                self.events.push(event);
                event_index = Some(count_as_index(self.events.len()));
            }
            Some(TickEffect::Task { queue, task }) => {
                let queue = self.queues.index_of(queue);
                self.requirements.resize_with(self.queues.all.len(), Interner::default);
                // tenure.submit_tasks counts them from 0.
                let index = self.requirements[queue as usize - 1].index_of(Requirements::of(task)) - 1;
                self.task_queues.push(queue);
                self.tasks.push((task, index as usize));
                task_index = Some(count_as_index(self.tasks.len()));
            }
            None => {}
        }
        self.event_indexes.push(event_index);
        self.task_indexes.push(task_index);
    }

    /// The topic and the event with this index.
    pub(super) fn event(&self, index: usize) -> Option<(&'a TopicKey, &'a NewEvent)> {
        let at = index.checked_sub(1)?;
        let topic = usize::try_from(*self.event_topics.get(at)?).ok()?.checked_sub(1)?;
        Some((self.topics.all.get(topic)?, self.events.get(at)?))
    }

    /// Encode the columns as array literals.
    pub(super) fn encode(&self) -> Result<TickArgs, StoreError> {
        let any_event = !self.events.is_empty();
        let any_task = !self.tasks.is_empty();
        let topics: Vec<_> =
            self.topics.all.iter().map(|key| QualifiedName::of(&key.namespace, &key.name)).collect();
        let mut queues = Vec::with_capacity(self.queues.all.len());
        for (key, requirements) in self.queues.all.iter().zip(&self.requirements) {
            let requirements = requirements.all.iter().map(RequirementsArg::of).collect();
            queues.push(QueueTasks { named: QualifiedName::of(&key.namespace, &key.name), requirements });
        }
        let rows: Vec<_> =
            self.tasks.iter().map(|(task, requirements)| TaskArg::of(task, *requirements)).collect();
        let payloads = self.tasks.iter().map(|(task, _)| Some(task.payload.as_str()));
        Ok(TickArgs {
            firings: ints(&self.firings),
            tick_times: ints(&self.tick_times),
            due_times: ints(&self.due_times),
            tracked: self.tracked.contains(&true).then(|| bools(&self.tracked)),
            event_indexes: some_numbers(self.event_indexes.iter().copied()),
            task_indexes: some_numbers(self.task_indexes.iter().copied()),
            topics: any_event.then(|| json_text(&topics)).transpose()?,
            event_topics: any_event.then(|| ints(&self.event_topics)),
            events: any_event.then(|| Columns::of(self.events.iter().copied())),
            queues: any_task.then(|| json_text(&queues)).transpose()?,
            task_queues: any_task.then(|| ints(&self.task_queues)),
            tasks: any_task.then(|| json_text(&rows)).transpose()?,
            payloads: any_task.then(|| texts(payloads)),
        })
    }
}

/// Tick columns encoded for the statement.
pub(super) struct TickArgs {
    firings: String,
    tick_times: String,
    due_times: String,
    tracked: Option<String>,
    event_indexes: Option<String>,
    task_indexes: Option<String>,
    topics: Option<String>,
    event_topics: Option<String>,
    events: Option<Columns>,
    queues: Option<String>,
    task_queues: Option<String>,
    tasks: Option<String>,
    payloads: Option<String>,
}

impl TickArgs {
    /// The index of each tick's firing.
    pub(super) fn firings(&self) -> Value<'_> {
        self.firings.as_str().into()
    }

    /// All other columns, in the order of the arguments of the functions.
    pub(super) fn values(&self) -> Vec<Value<'_>> {
        let events = match &self.events {
            Some(events) => events.values(),
            None => [const { Value::Null }; 8],
        };
        let mut values = vec![
            self.tick_times.as_str().into(),
            self.due_times.as_str().into(),
            self.tracked.as_deref().into(),
            self.event_indexes.as_deref().into(),
            self.task_indexes.as_deref().into(),
            self.topics.as_deref().into(),
            self.event_topics.as_deref().into(),
        ];
        values.extend(events);
        values.extend([
            self.queues.as_deref().into(),
            self.task_queues.as_deref().into(),
            self.tasks.as_deref().into(),
            self.payloads.as_deref().into(),
        ]);
        values
    }
}

/// Reject an invalid effect. `max_bytes` is the payload limit of its topic, if known.
pub(super) fn check_effect(effect: &TickEffect, max_bytes: Option<u64>) -> Result<(), StoreError> {
    match effect {
        TickEffect::Event { event, .. } => {
            let max_bytes = max_bytes.unwrap_or(EVENT_BYTES_MAX as u64);
            Ok(validate_events(std::slice::from_ref(event.as_ref()), max_bytes)?)
        }
        TickEffect::Task { task, .. } if !task.parents.is_empty() => Err(StoreError::new(
            ErrorKind::Request,
            "the task of a tick cannot have parents; submit dependent tasks from its worker",
        )),
        TickEffect::Task { queue, task } => {
            let submission = Submission { queue: queue.clone(), tasks: vec![task.as_ref().clone()] };
            Ok(validate_tick_submission(&submission)?)
        }
    }
}

/// Assigns each distinct value an index.
struct Interner<T> {
    indexes: HashMap<T, i64>,
    all: Vec<T>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Interner { indexes: HashMap::new(), all: Vec::new() }
    }
}

impl<T: Clone + Eq + Hash> Interner<T> {
    fn index_of(&mut self, value: T) -> i64 {
        if let Some(index) = self.indexes.get(&value) {
            return *index;
        }
        self.all.push(value.clone());
        let new = count_as_index(self.all.len());
        self.indexes.insert(value, new);
        new
    }
}

#[derive(Serialize)]
struct QualifiedName<'a> {
    namespace: &'a str,
    name: &'a str,
}

impl<'a> QualifiedName<'a> {
    fn of(namespace: &'a tenure_core::Name, name: &'a tenure_core::Name) -> Self {
        QualifiedName { namespace: namespace.as_str(), name: name.as_str() }
    }
}

#[derive(Serialize)]
struct QueueTasks<'a> {
    #[serde(flatten)]
    named: QualifiedName<'a>,
    requirements: Vec<RequirementsArg<'a>>,
}

/// The index of the last of `count` elements.
fn count_as_index(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn ints(all: &[i64]) -> String {
    numbers(all.iter().map(|n| Some(*n)))
}

fn bools(all: &[bool]) -> String {
    let words: Vec<_> = all.iter().map(|yes| if *yes { "t" } else { "f" }).collect();
    format!("{{{}}}", words.join(","))
}
