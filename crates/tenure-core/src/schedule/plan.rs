//! From what is stored to what is done: the whole decision of the leader about one schedule, and what a change of its
//! definition means for the ticks to come. Every store and the driver call these, so there is one place to get it right.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::definition::{Definition, DefinitionError};
use super::misfire::{Progress, decide};
use super::overlap::{Admission, Load, Overlap};
use super::target::Target;
use super::zone::Zone;
use crate::port::{
    Cause, DueSchedule, Effect, Firing, FiringTick, Json, NewEvent, NewTask, Payload, QueueKey, ScheduleKey,
    TopicKey, calls_queue,
};
use crate::{Name, Token};

/// The shortest and the longest wait before a firing that was refused is tried again.
const RETRY_MS: (i64, i64) = (1_000, 300_000);

/// The kind of the tasks that are calls.
pub const CALL_KIND: &str = "call";

/// The header in which an event says which schedule published it.
pub const SCHEDULE_HEADER: &str = "tenure-schedule";

/// The header in which it says for which tick, as text in UTC.
pub const TICK_HEADER: &str = "tenure-tick";

/// Decides about a schedule that is due at `now_ms`, by the store's clock, on behalf of the leader under `token`.
pub fn plan(due: &DueSchedule, token: Token, now_ms: i64) -> Firing {
    plan_some(due, token, now_ms, usize::MAX)
}

/// As [`plan`], but of the ticks that fire only the oldest, at most so many and at least one. The others stay due, and are decided
/// about again: so what is fired at once has a bound, and the policy's number holds all the same.
pub fn plan_some(due: &DueSchedule, token: Token, now_ms: i64, most: usize) -> Firing {
    let definition = &due.definition;
    let timetable = definition.timetable(&due.key.namespace);
    let mut decision = decide(&timetable, definition.misfire, due.progress, now_ms);
    if let Some(&next_at_ms) = decision.fire.get(most.max(1)) {
        decision.fire.truncate(most.max(1));
        decision.progress = Some(Progress { next_at_ms, last_at_ms: decision.fire.last().copied() });
        decision.wake_at_ms = Some(timetable.due_at(next_at_ms));
    }
    let mut load = due.load;
    let tracked = definition.overlap != Overlap::Allow;
    let ticks = decision.fire.iter().map(|&at_ms| {
        let effect = match definition.overlap.admit(&mut load) {
            // What waits does so in its queue, by its concurrency key.
            Admission::Run | Admission::Wait => {
                Some(effect(&due.key, definition, at_ms, Cause::Clock, None, Some(token)))
            }
            Admission::Skip => None,
        };
        FiringTick { at_ms, due_ms: timetable.due_at(at_ms), tracked: tracked && effect.is_some(), effect }
    });
    Firing {
        key: due.key.clone(),
        version: due.version,
        next_at_ms: due.progress.next_at_ms,
        ticks: ticks.collect(),
        skipped: decision.skipped,
        progress: decision.progress,
        due_ms: decision.wake_at_ms,
        trouble: None,
    }
}

/// What becomes of a schedule that could not fire: it is tried again later, from where it is, so that nothing is lost.
pub fn put_off(due: &DueSchedule, trouble: &str, now_ms: i64) -> Firing {
    let wait_ms = (RETRY_MS.0 << due.strikes.min(16)).min(RETRY_MS.1);
    Firing {
        key: due.key.clone(),
        version: due.version,
        next_at_ms: due.progress.next_at_ms,
        ticks: Vec::new(),
        skipped: None,
        progress: Some(due.progress),
        due_ms: Some(now_ms.saturating_add(wait_ms)),
        trouble: Some(trouble.into()),
    }
}

/// What a tick does.
pub fn effect(
    key: &ScheduleKey,
    definition: &Definition,
    at_ms: i64,
    cause: Cause,
    payload: Option<&Json>,
    token: Option<Token>,
) -> Effect {
    let payload = payload.unwrap_or(&definition.payload).clone();
    match &definition.target {
        Target::Event { topic, key: event_key } => {
            let topic = TopicKey::new(key.namespace.clone(), topic.clone());
            let event = NewEvent {
                key: Some(event_key.clone().unwrap_or_else(|| key.name.to_string())),
                kind: key.name.to_string(),
                payload: Payload::Json(payload),
                headers: BTreeMap::from([
                    (SCHEDULE_HEADER.into(), key.name.to_string()),
                    (TICK_HEADER.into(), in_utc(at_ms)),
                ]),
                idempotency_key: None,
                leader_token: token,
            };
            Effect::Event { topic, event: Box::new(event) }
        }
        Target::Task { queue, task } => {
            let queue = QueueKey::new(key.namespace.clone(), queue.clone());
            let task = NewTask { payload, ..task.as_ref().clone() };
            Effect::Task { queue, task: Box::new(marked(task, key, definition.overlap, at_ms, cause, token)) }
        }
        Target::Call { url } => {
            let call = Call { key: key.clone(), tick_ms: at_ms, cause, token, url: url.clone(), payload };
            let payload = Json::of(&call).expect("a call is text, numbers and JSON");
            let task = NewTask { payload, ..NewTask::new(CALL_KIND) };
            let task = marked(task, key, definition.overlap, at_ms, cause, token);
            Effect::Task { queue: calls_queue(), task: Box::new(task) }
        }
    }
}

/// A call that waits in [`calls_queue`] for a server that makes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Which schedule wants it.
    #[serde(flatten)]
    pub key: ScheduleKey,
    /// For which tick.
    pub tick_ms: i64,
    /// Why.
    pub cause: Cause,
    /// Under which leader's token. `None`: by hand.
    pub token: Option<Token>,
    /// To where.
    pub url: String,
    /// With what.
    pub payload: Json,
}

/// What a tick's task is known by: `nightly@2026-11-15T02:00:00Z`, in the queue of calls with the namespace before it. A trigger's
/// is not the clock's.
pub fn task_key(key: &ScheduleKey, at_ms: i64, cause: Cause) -> String {
    let by_hand = if cause == Cause::Trigger { "!" } else { "" };
    format!("{}/{}@{}{by_hand}", key.namespace, key.name, in_utc(at_ms))
}

/// An instant as programs write it: `2026-11-15T02:00:00Z`.
pub fn in_utc(at_ms: i64) -> String {
    // No tick lies beyond what can be written; what does is told as it is shown.
    jiff::Timestamp::from_millisecond(at_ms).map_or_else(|_| Zone::utc().shown(at_ms), |at| at.to_string())
}

/// The tick that a task's key names, in milliseconds since 1970; `None` if no schedule has made it.
pub fn tick_of(task_key: &str) -> Option<(ScheduleKey, i64)> {
    let (name, at) = task_key.trim_end_matches('!').rsplit_once('@')?;
    let (namespace, name) = name.split_once('/')?;
    let at: jiff::Timestamp = at.parse().ok()?;
    Some((ScheduleKey::new(namespace.parse().ok()?, name.parse().ok()?), at.as_millisecond()))
}

fn marked(
    task: NewTask,
    key: &ScheduleKey,
    overlap: Overlap,
    at_ms: i64,
    cause: Cause,
    token: Option<Token>,
) -> NewTask {
    let mut task = NewTask { key: Some(task_key(key, at_ms, cause)), leader_token: token, ..task };
    // Whoever fires it and whenever: the store itself keeps the runs apart.
    if overlap != Overlap::Allow && task.concurrency_key.is_none() {
        task.concurrency_key = Some(format!("schedule/{}/{}", key.namespace, key.name));
        task.concurrency_limit = 1;
    }
    task
}

/// A schedule as it is to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revised {
    /// What it is.
    pub definition: Definition,
    /// How far it is. `None`: no tick is left.
    pub progress: Option<Progress>,
    /// When its next tick is due; what is paused is not.
    pub due_ms: Option<i64>,
}

/// What a definition is to be stored as, given what is stored so far, at `now_ms` by the store's clock.
///
/// A new schedule begins with the first tick from now on. One whose times have changed goes on with the first tick by the new
/// times from now on, and what was missed by the old ones is forgotten. One whose times are as they were stays where it is: how late
/// they fall due (its jitter), and until when there are any (its end), are no other times.
pub fn revise(
    namespace: &Name,
    definition: &Definition,
    stored: Option<(&Definition, Option<Progress>)>,
    is_paused: bool,
    now_ms: i64,
) -> Result<Revised, DefinitionError> {
    // An interval that counts from its creation goes on counting from there.
    let began = stored.and_then(|(old, _)| old.start_ms).filter(|_| definition.start_ms.is_none());
    let same_when = stored.is_some_and(|(old, _)| old.when == definition.when);
    let definition = definition.clone().started(began.filter(|_| same_when).unwrap_or(now_ms));
    definition.check()?;
    let timetable = definition.timetable(namespace);
    let progress = match stored {
        Some((old, progress)) if old.rule() == definition.rule() => progress,
        Some((old, Some(progress))) if old.has_times_of(&definition) => {
            let next = timetable.first_from(progress.next_at_ms);
            next.map(|next_at_ms| Progress { next_at_ms, ..progress })
        }
        other => {
            let last_at_ms =
                other.and_then(|(_, progress)| progress).and_then(|progress| progress.last_at_ms);
            let from = last_at_ms.map_or(now_ms, |last| now_ms.max(last.saturating_add(1)));
            timetable.first_from(from).map(|next_at_ms| Progress { next_at_ms, last_at_ms })
        }
    };
    let due_ms = due_ms(namespace, &definition, progress).filter(|_| !is_paused);
    Ok(Revised { definition, progress, due_ms })
}

/// When a schedule that is not paused is due.
pub fn due_ms(namespace: &Name, definition: &Definition, progress: Option<Progress>) -> Option<i64> {
    let progress = progress?;
    let timetable = definition.timetable(namespace);
    timetable.settle(progress.next_at_ms, progress.last_at_ms).map(|next| timetable.due_at(next))
}

/// How the runs of a schedule stand of which so many are not over.
pub fn load_of(unfinished: u64) -> Load {
    let unfinished = u32::try_from(unfinished).unwrap_or(u32::MAX);
    Load { running: unfinished.min(1), waiting: unfinished.saturating_sub(1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Misfire, When};

    fn key() -> ScheduleKey {
        ScheduleKey::new(Name::default_namespace(), "nightly".parse().unwrap())
    }

    fn definition(when: &str, target: &str) -> Definition {
        Definition::new(key().name, when.parse::<When>().unwrap(), serde_json::from_str(target).unwrap())
    }

    const TASK: &str = r#"{"task":{"queue":"reports"}}"#;

    fn due(definition: Definition, next_at_ms: i64, unfinished: u64) -> DueSchedule {
        DueSchedule {
            key: key(),
            version: 3,
            definition,
            progress: Progress { next_at_ms, last_at_ms: None },
            load: load_of(unfinished),
            strikes: 0,
        }
    }

    #[test]
    fn ticks_carry_their_token_and_name_themselves() {
        let firing = plan(&due(definition("every 1m", TASK), 60_000, 0), Token::from_u64(9), 60_005);
        assert_eq!((firing.next_at_ms, firing.due_ms), (60_000, Some(120_000)));
        let Some(Effect::Task { task, .. }) = &firing.ticks[0].effect else { panic!("no task") };
        assert_eq!(task.leader_token, Some(Token::from_u64(9)));
        assert_eq!(task.key.as_deref(), Some("default/nightly@1970-01-01T00:01:00Z"));
        assert_eq!(tick_of(task.key.as_deref().unwrap()), Some((key(), 60_000)));
    }

    #[test]
    fn what_may_not_overlap_is_left_out_or_stands_in_line() {
        let mut one = definition("every 1m", TASK);
        one.misfire = Misfire::FireAll { cap: 10 };
        one.overlap = Overlap::Skip;
        let effects = |due: &DueSchedule| -> Vec<bool> {
            plan(due, Token::from_u64(1), 180_000).ticks.iter().map(|tick| tick.effect.is_some()).collect()
        };
        assert_eq!(effects(&due(one.clone(), 60_000, 0)), [true, false, false]);
        assert_eq!(effects(&due(one.clone(), 60_000, 1)), [false, false, false]);
        // What somebody fires by hand beside them waits for them.
        let triggered = effect(&key(), &one, 70_000, Cause::Trigger, None, None);
        let Effect::Task { task, .. } = triggered else { panic!("no task") };
        assert_eq!(
            (task.concurrency_key.as_deref(), task.concurrency_limit),
            (Some("schedule/default/nightly"), 1)
        );
        one.overlap = Overlap::Queue;
        assert_eq!(effects(&due(one.clone(), 60_000, 1)), [true, true, true]);
        let Some(Effect::Task { task, .. }) =
            &plan(&due(one, 60_000, 1), Token::from_u64(1), 60_000).ticks[0].effect
        else {
            panic!("no task")
        };
        assert!(task.concurrency_key.is_some());
    }

    #[test]
    fn ticks_that_fire_by_and_by_are_those_that_would_fire_at_once() {
        let mut one = definition("every 1m", TASK);
        one.misfire = Misfire::FireAll { cap: 5 };
        let whole = plan(&due(one.clone(), 60_000, 0), Token::from_u64(1), 600_000);
        let (mut some, mut next, mut skipped) = (Vec::new(), due(one, 60_000, 0), 0);
        while next.progress.next_at_ms <= 600_000 {
            let firing = plan_some(&next, Token::from_u64(1), 600_000, 2);
            assert!((1..=2).contains(&firing.ticks.len()));
            some.extend(firing.ticks);
            skipped += firing.skipped.map_or(0, |skipped| skipped.count);
            next.progress = firing.progress.unwrap();
            assert_eq!(firing.due_ms, Some(next.progress.next_at_ms));
        }
        assert_eq!((some, Some(next.progress)), (whole.ticks, whole.progress));
        assert_eq!(skipped, whole.skipped.unwrap().count);
    }

    #[test]
    fn what_was_refused_is_tried_again_from_where_it_is() {
        let mut late = due(definition("every 1m", TASK), 60_000, 0);
        late.strikes = 40;
        let firing = put_off(&late, "there is no topic", 70_000);
        assert_eq!((firing.progress, firing.due_ms), (Some(late.progress), Some(370_000)));
    }

    #[test]
    fn a_change_of_times_begins_from_now_and_any_other_changes_none() {
        let namespace = Name::default_namespace();
        let old = definition("every 1h", TASK);
        let progress = Some(Progress { next_at_ms: 7_200_000, last_at_ms: Some(3_600_000) });
        let mut new = old.clone();
        new.misfire = Misfire::Skip;
        let same = revise(&namespace, &new, Some((&old, progress)), false, 99_000_000).unwrap();
        assert_eq!((same.progress, same.due_ms), (progress, Some(7_200_000)));
        let other = definition("every 1m", TASK);
        let moved = revise(&namespace, &other, Some((&old, progress)), false, 90_000_001).unwrap();
        assert_eq!(moved.progress, Some(Progress { next_at_ms: 90_060_000, last_at_ms: Some(3_600_000) }));
        let paused = revise(&namespace, &other, Some((&old, progress)), true, 90_000_001).unwrap();
        assert_eq!(paused.due_ms, None);
    }

    #[test]
    fn another_jitter_or_end_forgets_nothing_that_was_missed() {
        let namespace = Name::default_namespace();
        let old = definition("every 1h", TASK);
        let progress = Some(Progress { next_at_ms: 7_200_000, last_at_ms: Some(3_600_000) });
        let mut new = old.clone();
        (new.jitter_ms, new.end_ms) = (60_000, Some(200_000_000));
        let changed = revise(&namespace, &new, Some((&old, progress)), false, 99_000_000).unwrap();
        assert_eq!(changed.progress, progress);
        // An end before all that is left is the end.
        new.end_ms = Some(7_200_000);
        let ended = revise(&namespace, &new, Some((&old, progress)), false, 99_000_000).unwrap();
        assert_eq!((ended.progress, ended.due_ms), (None, None));
        // What is over goes on from now, should it get another end.
        let longer = revise(&namespace, &old, Some((&new, None)), false, 99_000_000).unwrap();
        assert_eq!(longer.progress.map(|progress| progress.next_at_ms), Some(100_800_000));
    }

    #[test]
    fn an_interval_goes_on_counting_from_its_creation() {
        let namespace = Name::default_namespace();
        let definition = definition("every 90s from start", TASK);
        let new = revise(&namespace, &definition, None, false, 1_000).unwrap();
        assert_eq!((new.definition.start_ms, new.due_ms), (Some(1_000), Some(1_000)));
        let again =
            revise(&namespace, &definition, Some((&new.definition, new.progress)), false, 50_000).unwrap();
        assert_eq!(again, new);
    }
}
