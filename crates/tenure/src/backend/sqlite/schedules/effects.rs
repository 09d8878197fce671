//! What ticks do: the events and tasks of many, gathered first and then written together.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sqlx::Row;
use tenure_core::Token;
use tenure_core::claim::check_of_tick;
use tenure_core::event::{check_events, no_such_topic, weight};
use tenure_core::port::{
    Cause, Effect, NewEvent, NewTask, PUBLISH_MAX, QueueKey, READ_BYTES, StoreError, Submission, TickState,
    TopicKey, Wake,
};

use super::super::change::{Change, number as token_number, of_key};
use super::super::claims::submit_with;
use super::super::connection::query;
use super::super::events::publish_with;
use super::super::rows::{portions, repeated};
use super::{Failed, json, number};

/// A tick as it is to be written.
pub(super) struct Tick {
    pub(super) schedule: i64,
    pub(super) at_ms: i64,
    pub(super) due_ms: i64,
    pub(super) cause: Cause,
    pub(super) state: TickState,
    pub(super) tracked: bool,
    pub(super) event: Option<i64>,
    pub(super) task: Option<i64>,
}

impl Tick {
    pub(super) fn new(schedule: i64, at_ms: i64, due_ms: i64, cause: Cause) -> Tick {
        let (state, tracked) = (TickState::Fired, false);
        Tick { schedule, at_ms, due_ms, cause, state, tracked, event: None, task: None }
    }
}

/// The topics that effects name, and how long a payload each of them takes; `None`: it is not there.
#[derive(Default)]
pub(super) struct Topics(HashMap<TopicKey, Option<u64>>);

impl Topics {
    /// Refuses what can not be.
    pub(super) fn check(&self, effect: &Effect) -> Result<(), StoreError> {
        match effect {
            Effect::Event { topic, event } => match self.0.get(topic).copied().flatten() {
                Some(max_bytes) => Ok(check_events(std::slice::from_ref(event.as_ref()), max_bytes)?),
                None => Err(no_such_topic(topic)),
            },
            Effect::Task { queue, task } => {
                let tasks = vec![task.as_ref().clone()];
                Ok(check_of_tick(&Submission { queue: queue.clone(), tasks })?)
            }
        }
    }
}

/// What ticks do, by topic and queue; each knows the place of its tick.
#[derive(Default)]
pub(super) struct Effects {
    events: BTreeMap<TopicKey, (Vec<usize>, Vec<NewEvent>)>,
    tasks: BTreeMap<QueueKey, (Vec<usize>, Vec<NewTask>)>,
}

impl Effects {
    pub(super) fn add(&mut self, place: usize, effect: &Effect) {
        match effect {
            Effect::Event { topic, event } => {
                let (places, events) = self.events.entry(topic.clone()).or_default();
                places.push(place);
                events.push(event.as_ref().clone());
            }
            Effect::Task { queue, task } => {
                let (places, tasks) = self.tasks.entry(queue.clone()).or_default();
                places.push(place);
                tasks.push(task.as_ref().clone());
            }
        }
    }
}

impl Change<'_> {
    /// The topics that these name.
    pub(super) async fn topics_of<'e>(
        &mut self,
        effects: impl Iterator<Item = &'e Effect>,
    ) -> Result<Topics, Failed> {
        let named = |effect: &'e Effect| match effect {
            Effect::Event { topic, .. } => Some(topic),
            Effect::Task { .. } => None,
        };
        let mut topics = Topics::default();
        for topic in effects.filter_map(named).collect::<BTreeSet<&TopicKey>>() {
            let row = self.transaction.one(of_key!(self.store, "topic_find", topic)).await?;
            let max_bytes = row.map(|row| row.try_get::<i64, _>("max_bytes")).transpose()?;
            topics.0.insert(topic.clone(), max_bytes.map(i64::cast_unsigned));
        }
        Ok(topics)
    }

    /// Publishes and submits; the ticks know afterwards what came of them. Rings for who sleeps.
    pub(super) async fn perform(&mut self, effects: Effects, ticks: &mut [Tick]) -> Result<(), Failed> {
        for (topic, (places, events)) in effects.events {
            let (mut rest, mut places, mut dozing) = (&events[..], places.into_iter(), false);
            while !rest.is_empty() {
                let (events, others) = rest.split_at(together(rest));
                rest = others;
                let connection = self.transaction.connection();
                let put = publish_with(&self.store.queries, connection, &topic, events, self.wall_ms).await?;
                for (published, place) in put.published.iter().zip(&mut places) {
                    ticks[place].event = Some(number(published.id.0));
                }
                dozing |= put.dozing;
            }
            if dozing {
                self.transaction.execute(of_key!(self.store, "topic_wake", topic)).await?;
                self.wakes.push(Wake::Events(topic));
            }
        }
        // All queues at once: there may be as many as ticks.
        let (mut places, mut submissions) = (Vec::new(), Vec::with_capacity(effects.tasks.len()));
        for (queue, (its, tasks)) in effects.tasks {
            places.push(its);
            submissions.push(Submission { queue, tasks });
        }
        if submissions.is_empty() {
            return Ok(());
        }
        let connection = self.transaction.connection();
        let puts = submit_with(&self.store.queries, connection, &submissions, self.wall_ms).await?;
        for (place, submitted) in places.iter().flatten().zip(puts.iter().flat_map(|put| &put.submitted)) {
            ticks[*place].task = Some(number(submitted.id.0));
        }
        self.wake(&puts.iter().filter(|put| put.ready).map(|put| put.queue).collect()).await
    }

    /// Writes ticks, decided about just now.
    pub(super) async fn put_ticks(
        &mut self,
        ticks: &[Tick],
        token: Option<Token>,
        by: &str,
    ) -> Result<(), Failed> {
        let token = token.map(token_number);
        for rows in portions(ticks) {
            let statement = repeated(self.store.queries.get("tick_put"), rows.len());
            let mut put = query(&statement);
            for tick in rows {
                put = put
                    .bind(tick.schedule)
                    .bind(tick.at_ms)
                    .bind(tick.cause == Cause::Trigger)
                    .bind(tick.state.as_str())
                    .bind(tick.cause.as_str())
                    .bind(tick.due_ms)
                    .bind(self.wall_ms)
                    .bind(token)
                    .bind(by)
                    .bind(tick.event)
                    .bind(tick.task)
                    .bind(tick.tracked);
            }
            self.transaction.execute(put).await?;
        }
        Ok(())
    }

    /// Which of these, each a schedule and its tick, were decided about before: their places.
    pub(super) async fn known_ticks(&mut self, ticks: &[(i64, i64)]) -> Result<BTreeSet<usize>, Failed> {
        if ticks.is_empty() {
            return Ok(BTreeSet::new());
        }
        let known = query(self.store.queries.get("tick_known")).bind(json(&ticks)?);
        let rows = self.transaction.all(known).await?;
        let place = |row: &sqlx::sqlite::SqliteRow| row.try_get::<i64, _>("place");
        let places = rows.iter().map(place).collect::<sqlx::Result<Vec<i64>>>()?;
        Ok(places.into_iter().filter_map(|place| usize::try_from(place).ok()).collect())
    }
}

/// How many of these, from the first on, may be published in one call.
fn together(events: &[NewEvent]) -> usize {
    let mut bytes = 0;
    let fits = events.iter().take(PUBLISH_MAX).take_while(|event| {
        bytes += weight(event);
        bytes <= READ_BYTES
    });
    fits.count().max(1)
}
