//! The complete decision about one schedule, and the effect of a changed definition on its ticks. The scheduler and
//! every store share these functions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::definition::{ScheduleDefinition, ScheduleDefinitionError};
use super::misfire::{ScheduleTickState, decide};
use super::overlap::{OverlapDecision, OverlapPolicy, UnfinishedRuns};
use super::target::ScheduleTarget;
use super::zone::Zone;
use crate::port::{
    DueSchedule, FiringTick, NewEvent, NewTask, Payload, QueueKey, RawJson, ScheduleFiring, ScheduleKey,
    TickCause, TickEffect, TopicKey, webhook_queue,
};
use crate::{Name, Token};

/// Minimum and maximum delay before a rejected firing is retried.
const RETRY_MS: (i64, i64) = (1_000, 300_000);

/// Kind of webhook tasks.
pub const WEBHOOK_TASK_KIND: &str = "webhook";

/// Event header with the schedule that published the event.
pub const SCHEDULE_HEADER: &str = "tenure-schedule";

/// Event header with the tick, as text in UTC.
pub const TICK_HEADER: &str = "tenure-tick";

/// Decides about a schedule that is due at `now_ms` by the store's clock, for the leader with this token.
pub fn plan(due: &DueSchedule, token: Token, now_ms: i64) -> ScheduleFiring {
    plan_at_most(due, token, now_ms, usize::MAX)
}

/// Decides as [`plan`] does, but fires only the oldest ticks, at most `most` and at least one. The others stay due for
/// the next decision. This bounds the size of a firing without changing the policy.
pub fn plan_at_most(due: &DueSchedule, token: Token, now_ms: i64, most: usize) -> ScheduleFiring {
    let definition = &due.definition;
    let timetable = definition.timetable(&due.key.namespace);
    let mut decision = decide(&timetable, definition.misfire_policy, due.tick_state, now_ms);
    if let Some(&next_at_ms) = decision.fire.get(most.max(1)) {
        decision.fire.truncate(most.max(1));
        decision.tick_state = Some(ScheduleTickState {
            next_tick_at_ms: next_at_ms,
            last_tick_at_ms: decision.fire.last().copied(),
        });
        decision.next_due_at_ms = Some(timetable.due_at(next_at_ms));
    }
    let mut load = due.unfinished_runs;
    let tracked = definition.overlap_policy != OverlapPolicy::Allow;
    let ticks = decision.fire.iter().map(|&at_ms| {
        let effect = match definition.overlap_policy.admit(&mut load) {
            // A run that must wait is submitted too; its concurrency key makes its task wait in the queue.
            OverlapDecision::Run | OverlapDecision::Wait => {
                Some(effect(&due.key, definition, at_ms, TickCause::Schedule, None, Some(token)))
            }
            OverlapDecision::Skip => None,
        };
        FiringTick {
            tick_at_ms: at_ms,
            due_at_ms: timetable.due_at(at_ms),
            tracked: tracked && effect.is_some(),
            effect,
        }
    });
    ScheduleFiring {
        key: due.key.clone(),
        version: due.version,
        next_tick_at_ms: due.tick_state.next_tick_at_ms,
        ticks: ticks.collect(),
        skipped: decision.skipped,
        tick_state: decision.tick_state,
        due_at_ms: decision.next_due_at_ms,
        error: None,
    }
}

/// Postpones a schedule that failed to fire. It is retried later from the same tick, so no tick is lost.
pub fn postpone(due: &DueSchedule, error: &str, now_ms: i64) -> ScheduleFiring {
    let wait_ms = (RETRY_MS.0 << due.consecutive_failures.min(16)).min(RETRY_MS.1);
    ScheduleFiring {
        key: due.key.clone(),
        version: due.version,
        next_tick_at_ms: due.tick_state.next_tick_at_ms,
        ticks: Vec::new(),
        skipped: None,
        tick_state: Some(due.tick_state),
        due_at_ms: Some(now_ms.saturating_add(wait_ms)),
        error: Some(error.into()),
    }
}

/// The effect of a tick.
pub fn effect(
    key: &ScheduleKey,
    definition: &ScheduleDefinition,
    at_ms: i64,
    cause: TickCause,
    payload: Option<&RawJson>,
    token: Option<Token>,
) -> TickEffect {
    let payload = payload.unwrap_or(&definition.payload).clone();
    match &definition.target {
        ScheduleTarget::Event { topic, key: event_key } => {
            let topic = TopicKey::new(key.namespace.clone(), topic.clone());
            let event = NewEvent {
                key: Some(event_key.clone().unwrap_or_else(|| key.name.to_string())),
                event_type: key.name.to_string(),
                payload: Payload::Json(payload),
                headers: BTreeMap::from([
                    (SCHEDULE_HEADER.into(), key.name.to_string()),
                    (TICK_HEADER.into(), to_rfc3339(at_ms)),
                ]),
                idempotency_key: None,
                leader_token: token,
            };
            TickEffect::Event { topic, event: Box::new(event) }
        }
        ScheduleTarget::Task { queue, task } => {
            let queue = QueueKey::new(key.namespace.clone(), queue.clone());
            let task = NewTask { payload, ..task.as_ref().clone() };
            TickEffect::Task {
                queue,
                task: Box::new(marked(task, key, definition.overlap_policy, at_ms, cause, token)),
            }
        }
        ScheduleTarget::Webhook { url } => {
            let call =
                WebhookCall { key: key.clone(), tick_at_ms: at_ms, cause, token, url: url.clone(), payload };
            let payload = RawJson::of(&call).expect("a webhook call serializes to JSON");
            let task = NewTask { payload, ..NewTask::new(WEBHOOK_TASK_KIND) };
            let task = marked(task, key, definition.overlap_policy, at_ms, cause, token);
            TickEffect::Task { queue: webhook_queue(), task: Box::new(task) }
        }
    }
}

/// A webhook call that waits in [`webhook_queue`] for a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookCall {
    /// Schedule of the tick.
    #[serde(flatten)]
    pub key: ScheduleKey,
    /// Instant of the tick.
    pub tick_at_ms: i64,
    /// Why the tick fired.
    pub cause: TickCause,
    /// Token of the leader that fired it. `None` if it was fired manually.
    pub token: Option<Token>,
    /// URL to call.
    pub url: String,
    /// Payload.
    pub payload: RawJson,
}

/// Idempotency key of a tick's task: `default/nightly@2026-11-15T02:00:00Z`. A triggered tick has another key than a
/// tick of the timetable.
pub fn task_key(key: &ScheduleKey, at_ms: i64, cause: TickCause) -> String {
    let suffix = if cause == TickCause::Trigger { "!" } else { "" };
    format!("{}/{}@{}{suffix}", key.namespace, key.name, to_rfc3339(at_ms))
}

/// An instant in RFC 3339: `2026-11-15T02:00:00Z`.
pub fn to_rfc3339(at_ms: i64) -> String {
    // Ticks are always in the supported range; other instants use the display format.
    jiff::Timestamp::from_millisecond(at_ms)
        .map_or_else(|_| Zone::utc().format_local(at_ms), |at| at.to_string())
}

/// The tick that the key of a task identifies, in milliseconds since 1970. `None` if the key does not belong to a
/// schedule.
pub fn tick_of(task_key: &str) -> Option<(ScheduleKey, i64)> {
    let (name, at) = task_key.trim_end_matches('!').rsplit_once('@')?;
    let (namespace, name) = name.split_once('/')?;
    let at: jiff::Timestamp = at.parse().ok()?;
    Some((ScheduleKey::new(namespace.parse().ok()?, name.parse().ok()?), at.as_millisecond()))
}

fn marked(
    task: NewTask,
    key: &ScheduleKey,
    overlap: OverlapPolicy,
    at_ms: i64,
    cause: TickCause,
    token: Option<Token>,
) -> NewTask {
    let mut task =
        NewTask { idempotency_key: Some(task_key(key, at_ms, cause)), leader_token: token, ..task };
    // The concurrency key keeps runs from overlapping, whether they are scheduled or fired manually.
    if overlap != OverlapPolicy::Allow && task.concurrency_key.is_none() {
        task.concurrency_key = Some(format!("schedule/{}/{}", key.namespace, key.name));
        task.concurrency_limit = 1;
    }
    task
}

/// A schedule as it will be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevisedSchedule {
    /// Definition.
    pub definition: ScheduleDefinition,
    /// Tick state. `None` if no tick is left.
    pub tick_state: Option<ScheduleTickState>,
    /// When its next tick is due; `None` if it is paused.
    pub due_ms: Option<i64>,
}

/// Computes the stored form of a new definition from the stored schedule, if there is one, at `now_ms` by the store's
/// clock.
///
/// A new schedule starts with the first tick from now on. A schedule whose ticks changed continues with the first new
/// tick from now on, and its missed old ticks are dropped. A schedule with unchanged ticks keeps its state; a change
/// of its jitter or end does not change its ticks.
pub fn revise(
    namespace: &Name,
    definition: &ScheduleDefinition,
    stored: Option<(&ScheduleDefinition, Option<ScheduleTickState>)>,
    is_paused: bool,
    now_ms: i64,
) -> Result<RevisedSchedule, ScheduleDefinitionError> {
    // An interval that counts from its creation keeps its start when the schedule is set again.
    let began = stored.and_then(|(old, _)| old.start_at_ms).filter(|_| definition.start_at_ms.is_none());
    let same_when = stored.is_some_and(|(old, _)| old.expression == definition.expression);
    let definition = definition.clone().started(began.filter(|_| same_when).unwrap_or(now_ms));
    definition.check()?;
    let timetable = definition.timetable(namespace);
    let progress = match stored {
        Some((old, progress)) if old.rule() == definition.rule() => progress,
        Some((old, Some(progress))) if old.has_times_of(&definition) => {
            let next = timetable.first_from(progress.next_tick_at_ms);
            next.map(|next_at_ms| ScheduleTickState { next_tick_at_ms: next_at_ms, ..progress })
        }
        other => {
            let last_at_ms =
                other.and_then(|(_, progress)| progress).and_then(|progress| progress.last_tick_at_ms);
            let from = last_at_ms.map_or(now_ms, |last| now_ms.max(last.saturating_add(1)));
            timetable.first_from(from).map(|next_at_ms| ScheduleTickState {
                next_tick_at_ms: next_at_ms,
                last_tick_at_ms: last_at_ms,
            })
        }
    };
    let due_ms = due_ms(namespace, &definition, progress).filter(|_| !is_paused);
    Ok(RevisedSchedule { definition, tick_state: progress, due_ms })
}

/// When a schedule that is not paused is due.
pub fn due_ms(
    namespace: &Name,
    definition: &ScheduleDefinition,
    progress: Option<ScheduleTickState>,
) -> Option<i64> {
    let progress = progress?;
    let timetable = definition.timetable(namespace);
    timetable
        .revalidate(progress.next_tick_at_ms, progress.last_tick_at_ms)
        .map(|next| timetable.due_at(next))
}

/// The unfinished runs of a schedule with this number of unfinished tasks.
pub fn unfinished_runs(unfinished: u64) -> UnfinishedRuns {
    let unfinished = u32::try_from(unfinished).unwrap_or(u32::MAX);
    UnfinishedRuns { running: unfinished.min(1), waiting: unfinished.saturating_sub(1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::schedule::{MisfirePolicy, ScheduleExpression};

    fn key() -> ScheduleKey {
        ScheduleKey::new(Name::default_namespace(), "nightly".parse().unwrap())
    }

    fn definition(expression: &str, target: &str) -> ScheduleDefinition {
        ScheduleDefinition::new(
            key().name,
            expression.parse::<ScheduleExpression>().unwrap(),
            serde_json::from_str(target).unwrap(),
        )
    }

    const TASK: &str = r#"{"task":{"queue":"reports"}}"#;

    fn due(definition: ScheduleDefinition, next_at_ms: i64, unfinished: u64) -> DueSchedule {
        DueSchedule {
            key: key(),
            version: 3,
            definition,
            tick_state: ScheduleTickState { next_tick_at_ms: next_at_ms, last_tick_at_ms: None },
            unfinished_runs: unfinished_runs(unfinished),
            consecutive_failures: 0,
        }
    }

    #[test]
    fn effects_carry_the_token_and_the_tick() {
        let firing = plan(&due(definition("every 1m", TASK), 60_000, 0), Token::from_u64(9), 60_005);
        assert_eq!((firing.next_tick_at_ms, firing.due_at_ms), (60_000, Some(120_000)));
        let Some(TickEffect::Task { task, .. }) = &firing.ticks[0].effect else { panic!("no task") };
        assert_eq!(task.leader_token, Some(Token::from_u64(9)));
        assert_eq!(task.idempotency_key.as_deref(), Some("default/nightly@1970-01-01T00:01:00Z"));
        assert_eq!(tick_of(task.idempotency_key.as_deref().unwrap()), Some((key(), 60_000)));
    }

    #[test]
    fn overlapping_ticks_are_skipped_or_queued() {
        let mut one = definition("every 1m", TASK);
        one.misfire_policy = MisfirePolicy::FireAll { cap: 10 };
        one.overlap_policy = OverlapPolicy::Skip;
        let effects = |due: &DueSchedule| -> Vec<bool> {
            plan(due, Token::from_u64(1), 180_000).ticks.iter().map(|tick| tick.effect.is_some()).collect()
        };
        assert_eq!(effects(&due(one.clone(), 60_000, 0)), [true, false, false]);
        assert_eq!(effects(&due(one.clone(), 60_000, 1)), [false, false, false]);
        // A manually fired run waits for the others.
        let triggered = effect(&key(), &one, 70_000, TickCause::Trigger, None, None);
        let TickEffect::Task { task, .. } = triggered else { panic!("no task") };
        assert_eq!(
            (task.concurrency_key.as_deref(), task.concurrency_limit),
            (Some("schedule/default/nightly"), 1)
        );
        one.overlap_policy = OverlapPolicy::Queue;
        assert_eq!(effects(&due(one.clone(), 60_000, 1)), [true, true, true]);
        let Some(TickEffect::Task { task, .. }) =
            &plan(&due(one, 60_000, 1), Token::from_u64(1), 60_000).ticks[0].effect
        else {
            panic!("no task")
        };
        assert!(task.concurrency_key.is_some());
    }

    #[test]
    fn firing_in_parts_fires_the_same_ticks() {
        let mut one = definition("every 1m", TASK);
        one.misfire_policy = MisfirePolicy::FireAll { cap: 5 };
        let whole = plan(&due(one.clone(), 60_000, 0), Token::from_u64(1), 600_000);
        let (mut some, mut next, mut skipped) = (Vec::new(), due(one, 60_000, 0), 0);
        while next.tick_state.next_tick_at_ms <= 600_000 {
            let firing = plan_at_most(&next, Token::from_u64(1), 600_000, 2);
            assert!((1..=2).contains(&firing.ticks.len()));
            some.extend(firing.ticks);
            skipped += firing.skipped.map_or(0, |skipped| skipped.tick_count);
            next.tick_state = firing.tick_state.unwrap();
            assert_eq!(firing.due_at_ms, Some(next.tick_state.next_tick_at_ms));
        }
        assert_eq!((some, Some(next.tick_state)), (whole.ticks, whole.tick_state));
        assert_eq!(skipped, whole.skipped.unwrap().tick_count);
    }

    #[test]
    fn a_rejected_firing_is_retried_from_the_same_tick() {
        let mut late = due(definition("every 1m", TASK), 60_000, 0);
        late.consecutive_failures = 40;
        let firing = postpone(&late, "does not exist", 70_000);
        assert_eq!((firing.tick_state, firing.due_at_ms), (Some(late.tick_state), Some(370_000)));
    }

    #[test]
    fn a_new_expression_counts_from_now_and_other_changes_move_no_tick() {
        let namespace = Name::default_namespace();
        let old = definition("every 1h", TASK);
        let progress =
            Some(ScheduleTickState { next_tick_at_ms: 7_200_000, last_tick_at_ms: Some(3_600_000) });
        let mut new = old.clone();
        new.misfire_policy = MisfirePolicy::Skip;
        let same = revise(&namespace, &new, Some((&old, progress)), false, 99_000_000).unwrap();
        assert_eq!((same.tick_state, same.due_ms), (progress, Some(7_200_000)));
        let other = definition("every 1m", TASK);
        let moved = revise(&namespace, &other, Some((&old, progress)), false, 90_000_001).unwrap();
        assert_eq!(
            moved.tick_state,
            Some(ScheduleTickState { next_tick_at_ms: 90_060_000, last_tick_at_ms: Some(3_600_000) })
        );
        let paused = revise(&namespace, &other, Some((&old, progress)), true, 90_000_001).unwrap();
        assert_eq!(paused.due_ms, None);
    }

    #[test]
    fn a_change_of_jitter_or_end_keeps_missed_ticks() {
        let namespace = Name::default_namespace();
        let old = definition("every 1h", TASK);
        let progress =
            Some(ScheduleTickState { next_tick_at_ms: 7_200_000, last_tick_at_ms: Some(3_600_000) });
        let mut new = old.clone();
        (new.jitter_ms, new.end_at_ms) = (60_000, Some(200_000_000));
        let changed = revise(&namespace, &new, Some((&old, progress)), false, 99_000_000).unwrap();
        assert_eq!(changed.tick_state, progress);
        // An end before all remaining ticks ends the schedule.
        new.end_at_ms = Some(7_200_000);
        let ended = revise(&namespace, &new, Some((&old, progress)), false, 99_000_000).unwrap();
        assert_eq!((ended.tick_state, ended.due_ms), (None, None));
        // An ended schedule that gets a later end continues from now.
        let longer = revise(&namespace, &old, Some((&new, None)), false, 99_000_000).unwrap();
        assert_eq!(longer.tick_state.map(|progress| progress.next_tick_at_ms), Some(100_800_000));
    }

    #[test]
    fn an_interval_keeps_counting_from_its_creation() {
        let namespace = Name::default_namespace();
        let definition = definition("every 90s from start", TASK);
        let new = revise(&namespace, &definition, None, false, 1_000).unwrap();
        assert_eq!((new.definition.start_at_ms, new.due_ms), (Some(1_000), Some(1_000)));
        let again =
            revise(&namespace, &definition, Some((&new.definition, new.tick_state)), false, 50_000).unwrap();
        assert_eq!(again, new);
    }
}
