//! Ticks with what they do, as the functions of the database read them.

use std::collections::HashMap;
use std::hash::Hash;

use serde::Serialize;
use tenure_core::claim::{Demand, check_of_tick};
use tenure_core::event::check_events;
use tenure_core::port::{
    EVENT_BYTES_MAX, Effect, FiringTick, NewEvent, NewTask, QueueKey, StoreError, Submission, TopicKey,
    Trouble,
};

use super::super::claims::{Asked, Row, json_text, texts};
use super::super::events::{Columns, numbers, some_numbers};
use super::super::value::Value;

/// Ticks, their events and their tasks. Places are counted from 1, as arrays are in SQL.
#[derive(Default)]
pub(super) struct Ticks<'a> {
    firings: Vec<i64>,
    ats: Vec<i64>,
    dues: Vec<i64>,
    tracked: Vec<bool>,
    event_places: Vec<Option<i64>>,
    task_places: Vec<Option<i64>>,
    topics: Register<&'a TopicKey>,
    event_topics: Vec<i64>,
    events: Vec<&'a NewEvent>,
    queues: Register<&'a QueueKey>,
    /// The demands of each queue.
    demands: Vec<Register<Demand>>,
    task_queues: Vec<i64>,
    tasks: Vec<(&'a NewTask, usize)>,
}

impl<'a> Ticks<'a> {
    /// One more, of the firing at this place.
    pub(super) fn push(&mut self, firing: i64, tick: &'a FiringTick) {
        self.firings.push(firing);
        self.ats.push(tick.at_ms);
        self.dues.push(tick.due_ms);
        self.tracked.push(tick.tracked);
        let (mut event_place, mut task_place) = (None, None);
        match &tick.effect {
            Some(Effect::Event { topic, event }) => {
                self.event_topics.push(self.topics.place(topic));
                self.events.push(event);
                event_place = Some(place(self.events.len()));
            }
            Some(Effect::Task { queue, task }) => {
                let queue = self.queues.place(queue);
                self.demands.resize_with(self.queues.all.len(), Register::default);
                // As tenure.submit_all counts them, from 0.
                let demand = self.demands[queue as usize - 1].place(Demand::of(task)) - 1;
                self.task_queues.push(queue);
                self.tasks.push((task, demand as usize));
                task_place = Some(place(self.tasks.len()));
            }
            None => {}
        }
        self.event_places.push(event_place);
        self.task_places.push(task_place);
    }

    /// The topic and the event at this place.
    pub(super) fn event(&self, place: usize) -> Option<(&'a TopicKey, &'a NewEvent)> {
        let at = place.checked_sub(1)?;
        let topic = usize::try_from(*self.event_topics.get(at)?).ok()?.checked_sub(1)?;
        Some((self.topics.all.get(topic)?, self.events.get(at)?))
    }

    /// As literals.
    pub(super) fn written(&self) -> Result<Written, StoreError> {
        let any_event = !self.events.is_empty();
        let any_task = !self.tasks.is_empty();
        let topics: Vec<_> = self.topics.all.iter().map(|key| Named::of(&key.namespace, &key.name)).collect();
        let mut queues = Vec::with_capacity(self.queues.all.len());
        for (key, demands) in self.queues.all.iter().zip(&self.demands) {
            let demands = demands.all.iter().map(Asked::of).collect();
            queues.push(Queue { named: Named::of(&key.namespace, &key.name), demands });
        }
        let rows: Vec<_> = self.tasks.iter().map(|(task, demand)| Row::of(task, *demand)).collect();
        let payloads = self.tasks.iter().map(|(task, _)| Some(task.payload.as_str()));
        Ok(Written {
            firings: ints(&self.firings),
            ats: ints(&self.ats),
            dues: ints(&self.dues),
            tracked: self.tracked.contains(&true).then(|| bools(&self.tracked)),
            event_places: some_numbers(self.event_places.iter().copied()),
            task_places: some_numbers(self.task_places.iter().copied()),
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

/// The same, as it is sent.
pub(super) struct Written {
    firings: String,
    ats: String,
    dues: String,
    tracked: Option<String>,
    event_places: Option<String>,
    task_places: Option<String>,
    topics: Option<String>,
    event_topics: Option<String>,
    events: Option<Columns>,
    queues: Option<String>,
    task_queues: Option<String>,
    tasks: Option<String>,
    payloads: Option<String>,
}

impl Written {
    /// The place of each tick's firing.
    pub(super) fn firings(&self) -> Value<'_> {
        self.firings.as_str().into()
    }

    /// All else, in the order in which the functions take it.
    pub(super) fn values(&self) -> Vec<Value<'_>> {
        let events = match &self.events {
            Some(events) => events.values(),
            None => [const { Value::Null }; 8],
        };
        let mut values = vec![
            self.ats.as_str().into(),
            self.dues.as_str().into(),
            self.tracked.as_deref().into(),
            self.event_places.as_deref().into(),
            self.task_places.as_deref().into(),
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

/// Refuses an effect that makes no sense, as far as that can be seen from it; `max_bytes` is the longest payload of its topic, if that
/// is known.
pub(super) fn check_effect(effect: &Effect, max_bytes: Option<u64>) -> Result<(), StoreError> {
    match effect {
        Effect::Event { event, .. } => {
            let max_bytes = max_bytes.unwrap_or(EVENT_BYTES_MAX as u64);
            Ok(check_events(std::slice::from_ref(event.as_ref()), max_bytes)?)
        }
        Effect::Task { task, .. } if !task.parents.is_empty() => Err(StoreError::new(
            Trouble::Request,
            "the task of a tick can not wait for others; submit what depends on it from its worker",
        )),
        Effect::Task { queue, task } => {
            let submission = Submission { queue: queue.clone(), tasks: vec![task.as_ref().clone()] };
            Ok(check_of_tick(&submission)?)
        }
    }
}

/// Different things, each with a place.
struct Register<T> {
    places: HashMap<T, i64>,
    all: Vec<T>,
}

impl<T> Default for Register<T> {
    fn default() -> Self {
        Register { places: HashMap::new(), all: Vec::new() }
    }
}

impl<T: Clone + Eq + Hash> Register<T> {
    fn place(&mut self, thing: T) -> i64 {
        if let Some(place) = self.places.get(&thing) {
            return *place;
        }
        self.all.push(thing.clone());
        let new = place(self.all.len());
        self.places.insert(thing, new);
        new
    }
}

#[derive(Serialize)]
struct Named<'a> {
    namespace: &'a str,
    name: &'a str,
}

impl<'a> Named<'a> {
    fn of(namespace: &'a tenure_core::Name, name: &'a tenure_core::Name) -> Self {
        Named { namespace: namespace.as_str(), name: name.as_str() }
    }
}

#[derive(Serialize)]
struct Queue<'a> {
    #[serde(flatten)]
    named: Named<'a>,
    demands: Vec<Asked<'a>>,
}

fn place(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn ints(all: &[i64]) -> String {
    numbers(all.iter().map(|n| Some(*n)))
}

fn bools(all: &[bool]) -> String {
    let words: Vec<_> = all.iter().map(|yes| if *yes { "t" } else { "f" }).collect();
    format!("{{{}}}", words.join(","))
}
