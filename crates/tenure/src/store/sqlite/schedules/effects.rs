//! Effects of ticks: events and tasks of many ticks, collected and then written together.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sqlx::Row;
use tenure_core::Token;
use tenure_core::port::{
    NewEvent, NewTask, Notification, PUBLISH_MAX, QueueKey, READ_BYTES, StoreError, Submission, TickCause,
    TickEffect, TickOutcome, TopicKey,
};
use tenure_core::rules::event::{no_such_topic, validate_events, weight};
use tenure_core::rules::work::validate_tick_submission;

use super::super::bulk::{portions, repeated};
use super::super::connection::query;
use super::super::events::publish_with;
use super::super::work::submit_all;
use super::super::write_transaction::{WriteTransaction, number as token_number, of_key};
use super::{CallError, json, number};

/// A row of tenure_ticks to insert.
pub(super) struct TickRow {
    pub(super) schedule: i64,
    pub(super) tick_at_ms: i64,
    pub(super) due_at_ms: i64,
    pub(super) cause: TickCause,
    pub(super) state: TickOutcome,
    pub(super) tracked: bool,
    pub(super) event_id: Option<i64>,
    pub(super) task_id: Option<i64>,
}

impl TickRow {
    pub(super) fn new(schedule: i64, tick_at_ms: i64, due_at_ms: i64, cause: TickCause) -> TickRow {
        let (state, tracked) = (TickOutcome::Fired, false);
        TickRow { schedule, tick_at_ms, due_at_ms, cause, state, tracked, event_id: None, task_id: None }
    }
}

/// The maximum payload size of each target topic; `None` if the topic does not exist.
#[derive(Default)]
pub(super) struct TopicLimits(HashMap<TopicKey, Option<u64>>);

impl TopicLimits {
    /// Check that the target accepts an effect.
    pub(super) fn check(&self, effect: &TickEffect) -> Result<(), StoreError> {
        match effect {
            TickEffect::Event { topic, event } => match self.0.get(topic).copied().flatten() {
                Some(max_payload_bytes) => {
                    Ok(validate_events(std::slice::from_ref(event.as_ref()), max_payload_bytes)?)
                }
                None => Err(no_such_topic(topic)),
            },
            TickEffect::Task { queue, task } => {
                let tasks = vec![task.as_ref().clone()];
                Ok(validate_tick_submission(&Submission { queue: queue.clone(), tasks })?)
            }
        }
    }
}

/// Events by topic and tasks by queue, each with the index of its tick.
#[derive(Default)]
pub(super) struct TickEffects {
    events: BTreeMap<TopicKey, (Vec<usize>, Vec<NewEvent>)>,
    tasks: BTreeMap<QueueKey, (Vec<usize>, Vec<NewTask>)>,
}

impl TickEffects {
    pub(super) fn add(&mut self, index: usize, effect: &TickEffect) {
        match effect {
            TickEffect::Event { topic, event } => {
                let (indexes, events) = self.events.entry(topic.clone()).or_default();
                indexes.push(index);
                events.push(event.as_ref().clone());
            }
            TickEffect::Task { queue, task } => {
                let (indexes, tasks) = self.tasks.entry(queue.clone()).or_default();
                indexes.push(index);
                tasks.push(task.as_ref().clone());
            }
        }
    }
}

impl WriteTransaction<'_> {
    /// Read the limits of the target topics of these effects.
    pub(super) async fn topics_of<'e>(
        &mut self,
        effects: impl Iterator<Item = &'e TickEffect>,
    ) -> Result<TopicLimits, CallError> {
        let topic_of = |effect: &'e TickEffect| match effect {
            TickEffect::Event { topic, .. } => Some(topic),
            TickEffect::Task { .. } => None,
        };
        let mut topics = TopicLimits::default();
        for topic in effects.filter_map(topic_of).collect::<BTreeSet<&TopicKey>>() {
            let row = self.transaction.one(of_key!(self.store, "topic_find", topic)).await?;
            let max_payload_bytes = row.map(|row| row.try_get::<i64, _>("max_payload_bytes")).transpose()?;
            topics.0.insert(topic.clone(), max_payload_bytes.map(i64::cast_unsigned));
        }
        Ok(topics)
    }

    /// Publish the events and submit the tasks, store their ids in the ticks, and notify waiters.
    pub(super) async fn apply_effects(
        &mut self,
        effects: TickEffects,
        ticks: &mut [TickRow],
    ) -> Result<(), CallError> {
        for (topic, (indexes, events)) in effects.events {
            let (mut rest, mut indexes, mut has_waiters) = (&events[..], indexes.into_iter(), false);
            while !rest.is_empty() {
                let (events, others) = rest.split_at(batch_length(rest));
                rest = others;
                let connection = self.transaction.connection();
                let result =
                    publish_with(&self.store.queries, connection, &topic, events, self.wall_ms).await?;
                for (published, index) in result.published.iter().zip(&mut indexes) {
                    ticks[index].event_id = Some(number(published.id.0));
                }
                has_waiters |= result.has_waiters;
            }
            if has_waiters {
                self.transaction.execute(of_key!(self.store, "topic_waiter_notify", topic)).await?;
                self.notifications.push(Notification::TopicPublished(topic));
            }
        }
        // Submit to all queues at once, because there may be as many queues as ticks.
        let (mut indexes, mut submissions) = (Vec::new(), Vec::with_capacity(effects.tasks.len()));
        for (queue, (tick_indexes, tasks)) in effects.tasks {
            indexes.push(tick_indexes);
            submissions.push(Submission { queue, tasks });
        }
        if submissions.is_empty() {
            return Ok(());
        }
        let connection = self.transaction.connection();
        let results = submit_all(&self.store.queries, connection, &submissions, self.wall_ms).await?;
        for (index, submitted) in
            indexes.iter().flatten().zip(results.iter().flat_map(|result| &result.submitted))
        {
            ticks[*index].task_id = Some(number(submitted.id.0));
        }
        self.notify_queues(&results.iter().filter(|result| result.ready).map(|result| result.queue).collect())
            .await
    }

    /// Insert the ticks that this transaction fires, skips or records as overlapped.
    pub(super) async fn put_ticks(
        &mut self,
        ticks: &[TickRow],
        token: Option<Token>,
        by: &str,
    ) -> Result<(), CallError> {
        let token = token.map(token_number);
        for rows in portions(ticks) {
            let statement = repeated(self.store.queries.get("tick_put"), rows.len());
            let mut put = query(&statement);
            for tick in rows {
                put = put
                    .bind(tick.schedule)
                    .bind(tick.tick_at_ms)
                    .bind(tick.cause == TickCause::Trigger)
                    .bind(tick.state.as_str())
                    .bind(tick.cause.as_str())
                    .bind(tick.due_at_ms)
                    .bind(self.wall_ms)
                    .bind(token)
                    .bind(by)
                    .bind(tick.event_id)
                    .bind(tick.task_id)
                    .bind(tick.tracked);
            }
            self.transaction.execute(put).await?;
        }
        Ok(())
    }

    /// The indexes of those ticks (schedule and instant) that already have a row: fired, skipped or overlapped.
    pub(super) async fn find_decided(&mut self, ticks: &[(i64, i64)]) -> Result<BTreeSet<usize>, CallError> {
        if ticks.is_empty() {
            return Ok(BTreeSet::new());
        }
        let find = query(self.store.queries.get("tick_find")).bind(json(&ticks)?);
        let rows = self.transaction.all(find).await?;
        let index = |row: &sqlx::sqlite::SqliteRow| row.try_get::<i64, _>("list_index");
        let indexes = rows.iter().map(index).collect::<sqlx::Result<Vec<i64>>>()?;
        Ok(indexes.into_iter().filter_map(|index| usize::try_from(index).ok()).collect())
    }
}

/// How many of the first events fit into one publish call.
fn batch_length(events: &[NewEvent]) -> usize {
    let mut bytes = 0;
    let fits = events.iter().take(PUBLISH_MAX).take_while(|event| {
        bytes += weight(event);
        bytes <= READ_BYTES
    });
    fits.count().max(1)
}
