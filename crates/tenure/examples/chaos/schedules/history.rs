//! Oracle of the tick history: compares the records of each schedule with its timetable and policies.
//!
//! Every tick from the creation of a schedule to its next tick must have been decided once. Every fired tick must have
//! had its effect once, under the token in its record. Tokens must not decrease. In each decision, the fired ticks must
//! be those that the misfire policy selects. Effects are read from the tasks and events, which name their tick.

use std::collections::{BTreeMap, BTreeSet};

use tenure::Token;
use tenure::port::{
    Offset, ReadEventsRequest, ScheduleFilter, ScheduleKey, ScheduleView, TaskFilter, TaskView, TickFilter,
    TickOutcome, TickView,
};
use tenure::rules::schedule::{MisfirePolicy, ON_TIME_MS, SCHEDULE_HEADER, TICK_HEADER, Timetable, tick_of};
use tenure::{Name, Tenure};

use super::clock::Clock;
use super::overlap;
use crate::Failed;

/// Topic of the event targets.
pub(super) const TOPIC: &str = "ticks";

/// Queue of the task targets without a worker.
pub(super) const QUEUE: &str = "work";

/// Queue of the tasks that take a while and must not overlap.
pub(super) const RUNS: &str = "runs";

/// Rows per request.
const PAGE: u32 = 1_000;

/// Maximum time between a decision and its record: the limit of a call.
pub(super) const CALL_MS: i64 = 20_000;

/// Result of the check.
#[derive(Debug, Default)]
pub(super) struct HistoryReport {
    pub(super) fired: u64,
    pub(super) skipped: u64,
    /// Ticks without a decision, or fired ticks without an effect.
    pub(super) missed: usize,
    /// Ticks with two decisions or two effects.
    pub(super) doubled: usize,
    /// Decisions that contradict the policy.
    pub(super) policy_violations: usize,
    /// Number of checked runs that must not overlap, and number of overlaps.
    pub(super) overlap_checks: usize,
    pub(super) overlapping: usize,
    pub(super) violations: Vec<String>,
    /// History of the clock.
    clock: Clock,
}

/// Effects of a schedule: their tokens, by tick.
pub(super) type Effects = BTreeMap<i64, Vec<Option<Token>>>;

/// Tasks of a schedule, by tick.
type Tasks = BTreeMap<i64, TaskView>;

/// Read and check all schedules of a store with this clock.
pub(super) async fn evaluate(tenure: &Tenure, clock: Clock) -> Result<HistoryReport, Failed> {
    let mut report = HistoryReport { clock, ..HistoryReport::default() };
    let (mut effects, mut tasks) = effects(tenure).await?;
    for view in tenure.store().schedules(&ScheduleFilter::default()).await? {
        let ticks = ticks(tenure, &view.key()).await?;
        let its = effects.remove(view.definition.name.as_str()).unwrap_or_default();
        report.check(&view, &ticks, &its);
        let its = tasks.remove(view.definition.name.as_str()).unwrap_or_default();
        let overlap = overlap::evaluate(&view, &ticks, &its, &report.clock);
        report.overlap_checks += overlap.checked;
        report.overlapping += overlap.violations.len();
        report.violations.extend(overlap.violations);
    }
    for name in effects.keys() {
        report.violations.push(format!("effects exist for the missing schedule {name}"));
    }
    Ok(report)
}

/// The whole tick history, oldest first.
async fn ticks(tenure: &Tenure, key: &ScheduleKey) -> Result<Vec<TickView>, Failed> {
    let mut filter = TickFilter { key: key.clone(), before_ms: None, limit: PAGE };
    let mut all = Vec::new();
    loop {
        let page = tenure.store().ticks(&filter).await?;
        let Some(last) = page.last() else { break };
        filter.before_ms = Some(last.tick_at_ms);
        all.extend(page);
    }
    all.reverse();
    Ok(all)
}

/// Effects by schedule, from tasks and events; and the tasks.
async fn effects(tenure: &Tenure) -> Result<(BTreeMap<String, Effects>, BTreeMap<String, Tasks>), Failed> {
    let (mut all, mut tasks) = (BTreeMap::<String, Effects>::new(), BTreeMap::<String, Tasks>::new());
    let mut add = |schedule: String, at_ms: i64, token| {
        all.entry(schedule).or_default().entry(at_ms).or_default().push(token);
    };
    let mut filter =
        TaskFilter { namespace: Some(Name::default_namespace()), limit: PAGE, ..TaskFilter::default() };
    loop {
        let page = tenure.store().tasks(&filter).await?;
        let Some(last) = page.last() else { break };
        filter.before = Some(last.id);
        for task in page {
            let (key, at_ms) =
                task.idempotency_key.as_deref().and_then(tick_of).ok_or("a task does not name its tick")?;
            add(key.name.to_string(), at_ms, task.leader_token);
            tasks.entry(key.name.to_string()).or_default().insert(at_ms, task);
        }
    }
    let topic = tenure.topic(TOPIC)?;
    let partitions =
        tenure.store().topic(&topic).await?.ok_or("the topic does not exist")?.settings.partitions;
    let mut after: Vec<(u32, Offset)> =
        (0..partitions).map(|partition| (partition, Offset::default())).collect();
    loop {
        let read = ReadEventsRequest { topic: topic.clone(), after: after.clone(), limit: PAGE };
        let events = tenure.store().read_events(&read).await?;
        if events.is_empty() {
            return Ok((all, tasks));
        }
        for event in events {
            let header =
                |name: &str| event.headers.get(name).cloned().ok_or("an event does not name its tick");
            let (schedule, at) = (header(SCHEDULE_HEADER)?, header(TICK_HEADER)?);
            let (_, at_ms) = tick_of(&format!("default/{schedule}@{at}")).ok_or("an invalid tick name")?;
            add(schedule, at_ms, event.leader_token);
            let offset = &mut after[event.partition as usize].1;
            *offset = event.offset.max(*offset);
        }
    }
}

impl HistoryReport {
    /// Check one schedule.
    pub(super) fn check(&mut self, view: &ScheduleView, ticks: &[TickView], effects: &Effects) {
        let name = &view.definition.name;
        let timetable = view.definition.timetable(&view.namespace);
        let until = view.tick_state.map_or(i64::MAX, |progress| progress.next_tick_at_ms);
        // The first tick is the first after the store read its clock, which was shortly before it wrote the schedule.
        let first = ticks.first().map(|tick| tick.first_tick_at_ms.unwrap_or(tick.tick_at_ms));
        let made = view.created_at_ms - CALL_MS..view.created_at_ms;
        let from = first.filter(|first| made.contains(first)).unwrap_or(view.created_at_ms);
        let mut decided: BTreeMap<i64, usize> =
            timetable.ticks_between(from, until).map(|at| (at, 0)).collect();
        for tick in ticks {
            let those: Vec<i64> = match tick.first_tick_at_ms {
                Some(first) => timetable.ticks_between(first, tick.tick_at_ms + 1).collect(),
                None => vec![tick.tick_at_ms],
            };
            if those.len() as u64 != tick.tick_count {
                self.violations.push(format!(
                    "{name}: a range of {} ticks has the count {}",
                    those.len(),
                    tick.tick_count
                ));
            }
            match tick.state {
                TickOutcome::Skipped => self.skipped += tick.tick_count,
                _ => self.fired += 1,
            }
            for at in those {
                match decided.get_mut(&at) {
                    Some(times) => *times += 1,
                    None => self
                        .violations
                        .push(format!("{name}: {at} has a decision but is not a tick of the schedule")),
                }
            }
        }
        self.count(name, "has no decision", "has two decisions", &decided);
        self.check_effects(name, ticks, effects);
        if !ticks.iter().filter_map(|tick| tick.token).is_sorted() {
            self.violations.push(format!("{name}: an old leader fired after a new one"));
            self.policy_violations += 1;
        }
        let misfire = view.definition.misfire_policy;
        let mut excused = BTreeSet::new();
        for decision in decisions(ticks) {
            if let Err(why) = check_policy(misfire, &timetable, &decision) {
                // At most one decision per step can be made before the step and written after it, because the next
                // decision is based on that record.
                let before = excused_by_step(misfire, &timetable, &decision, &self.clock);
                if before.is_some_and(|step| excused.insert(step)) {
                    continue;
                }
                self.policy_violations += 1;
                self.violations.push(format!("{name}: {why}: {decision:?}"));
            }
        }
    }

    fn count(&mut self, name: &Name, never: &str, twice: &str, times: &BTreeMap<i64, usize>) {
        for (at, times) in times {
            match times {
                0 => {
                    self.missed += 1;
                    self.violations.push(format!("{name}: {at} {never}"));
                }
                1 => {}
                _ => {
                    self.doubled += 1;
                    self.violations.push(format!("{name}: {at} {twice}"));
                }
            }
        }
    }

    fn check_effects(&mut self, name: &Name, ticks: &[TickView], effects: &Effects) {
        let fired: BTreeMap<i64, Option<Token>> = ticks
            .iter()
            .filter(|tick| tick.state == TickOutcome::Fired)
            .map(|tick| (tick.tick_at_ms, tick.token))
            .collect();
        let times = fired.keys().map(|at| (*at, effects.get(at).map_or(0, Vec::len))).collect();
        self.count(name, "fired without an effect", "had two effects", &times);
        for (at, tokens) in effects {
            match fired.get(at) {
                None => {
                    self.doubled += 1;
                    self.violations.push(format!("{name}: {at} had an effect but did not fire"));
                }
                Some(token) if tokens.iter().any(|its| its != token) => {
                    self.violations
                        .push(format!("{name}: the effect of {at} has another token than its tick"));
                }
                Some(_) => {}
            }
        }
    }
}

/// One decision: the fired ticks, and the last skipped one.
#[derive(Clone, Debug, Default)]
struct Decision {
    decided_ms: i64,
    fired: Vec<i64>,
    skipped: Option<i64>,
}

fn decisions(ticks: &[TickView]) -> Vec<Decision> {
    let mut all = Vec::<Decision>::new();
    let mut last = None;
    for tick in ticks {
        let by = (tick.decided_at_ms, tick.token);
        if last != Some(by) || tick.state == TickOutcome::Skipped {
            all.push(Decision { decided_ms: tick.decided_at_ms, ..Decision::default() });
        }
        last = Some(by);
        let Some(decision) = all.last_mut() else { continue };
        match tick.state {
            TickOutcome::Skipped => decision.skipped = Some(tick.tick_at_ms),
            _ => decision.fired.push(tick.tick_at_ms),
        }
    }
    all
}

/// Independent implementation of the misfire policies.
fn check_policy(
    misfire: MisfirePolicy,
    timetable: &Timetable,
    decision: &Decision,
) -> Result<(), &'static str> {
    let late = |at: i64| decision.decided_ms - timetable.due_at(at);
    // The decision was made up to one call before it was written.
    let too_late =
        |at: i64, most: u64| late(at) > i64::try_from(most).unwrap_or(i64::MAX - CALL_MS) + CALL_MS;
    let in_time = |at: i64, most: u64| late(at) <= i64::try_from(most).unwrap_or(i64::MAX);
    let (fired, skipped) = (&decision.fired, decision.skipped);
    match misfire {
        MisfirePolicy::FireOnce if fired.len() != 1 => Err("fire_once did not fire exactly one tick"),
        MisfirePolicy::FireAll { cap } if fired.len() > cap as usize => {
            Err("more ticks fired than the limit")
        }
        MisfirePolicy::FireAll { cap } if skipped.is_some() && fired.len() < cap as usize => {
            Err("ticks were skipped although fewer fired than the limit")
        }
        MisfirePolicy::Skip if fired.len() > 1 => Err("a missed tick fired"),
        MisfirePolicy::Skip if fired.iter().any(|at| too_late(*at, ON_TIME_MS)) => Err("a tick fired late"),
        MisfirePolicy::Skip if fired.is_empty() && skipped.is_some_and(|at| in_time(at, ON_TIME_MS)) => {
            Err("the newest tick was on time but was skipped")
        }
        MisfirePolicy::Within { grace_ms } if fired.iter().any(|at| too_late(*at, grace_ms)) => {
            Err("a tick fired after the grace period")
        }
        MisfirePolicy::Within { grace_ms } if skipped.is_some_and(|at| in_time(at, grace_ms)) => {
            Err("a tick was skipped within the grace period")
        }
        _ => Ok(()),
    }
}

/// The clock step that explains a decision which seems wrong: the clock was set between the decision and its record,
/// and the decision is correct by the time before the step. Returns the index of the step.
fn excused_by_step(
    misfire: MisfirePolicy,
    timetable: &Timetable,
    decision: &Decision,
    clock: &Clock,
) -> Option<usize> {
    let as_shown = |by_ms: i64| Decision { decided_ms: decision.decided_ms + by_ms, ..decision.clone() };
    let earlier = clock.earlier(decision.decided_ms, CALL_MS).into_iter();
    let mut fits = earlier.filter(|it| check_policy(misfire, timetable, &as_shown(it.by_ms)).is_ok());
    fits.next().map(|it| it.steps)
}

#[cfg(test)]
mod tests {
    use tenure::port::TickCause;
    use tenure::rules::schedule::ScheduleTickState;

    use super::*;

    fn view(misfire: &str, next_s: i64) -> ScheduleView {
        let definition =
            tenure::ScheduleBuilder::new("x", "every 1s").misfire_policy(misfire.parse().unwrap());
        ScheduleView {
            namespace: Name::default_namespace(),
            version: 1,
            definition: definition.task("work", "tick").build().unwrap(),
            tick_state: Some(ScheduleTickState { next_tick_at_ms: next_s * 1_000, last_tick_at_ms: None }),
            due_at_ms: None,
            paused: None,
            last_error: None,
            fired_count: 0,
            skipped_count: 0,
            overlapped_count: 0,
            last_fired_at_ms: None,
            source: None,
            webhook_signed: false,
            created_at_ms: 500,
            updated_at_ms: 0,
            updated_by: String::new(),
        }
    }

    fn tick(at_s: i64, decided_s: i64, token: u64) -> TickView {
        TickView {
            tick_at_ms: at_s * 1_000,
            state: TickOutcome::Fired,
            cause: TickCause::Schedule,
            tick_count: 1,
            first_tick_at_ms: None,
            decided_at_ms: decided_s * 1_000,
            lateness_ms: 0,
            token: Some(Token::from_u64(token)),
            decided_by: String::new(),
            event_id: None,
            task_id: None,
        }
    }

    fn skipped(first_s: i64, last_s: i64, decided_s: i64) -> TickView {
        let count = u64::try_from(last_s - first_s + 1).unwrap();
        let (state, first_ms) = (TickOutcome::Skipped, Some(first_s * 1_000));
        TickView { state, tick_count: count, first_tick_at_ms: first_ms, ..tick(last_s, decided_s, 1) }
    }

    fn evaluated(misfire: &str, next_s: i64, ticks: &[TickView]) -> HistoryReport {
        let fired = ticks.iter().filter(|tick| tick.state == TickOutcome::Fired);
        let effects = fired.map(|tick| (tick.tick_at_ms, vec![tick.token])).collect();
        let mut report = HistoryReport::default();
        report.check(&view(misfire, next_s), ticks, &effects);
        report
    }

    #[test]
    fn a_correct_history_has_no_violations() {
        let fine = [tick(1, 1, 1), tick(2, 2, 1), skipped(3, 8, 9), tick(9, 9, 1)];
        let fine = evaluated("fire_once", 10, &fine);
        assert!(fine.violations.is_empty(), "{:?}", fine.violations);
        assert_eq!((fine.fired, fine.skipped), (3, 6));
    }

    #[test]
    fn missing_duplicate_and_unordered_ticks_are_found() {
        assert_eq!(evaluated("fire_all(9)", 4, &[tick(1, 1, 1), tick(3, 3, 1)]).missed, 1);
        assert_eq!(evaluated("fire_all(9)", 3, &[tick(1, 1, 1), tick(2, 2, 1), tick(2, 2, 1)]).doubled, 1);
        assert_eq!(evaluated("fire_all(9)", 3, &[tick(1, 1, 2), tick(2, 2, 1)]).policy_violations, 1);
        let mut found = HistoryReport::default();
        let two = Effects::from([(1_000, vec![Some(Token::from_u64(1)); 2])]);
        found.check(&view("fire_all(9)", 2), &[tick(1, 1, 1)], &two);
        assert_eq!((found.doubled, found.missed), (1, 0));
        let mut found = HistoryReport::default();
        found.check(&view("fire_all(9)", 2), &[tick(1, 1, 1)], &Effects::new());
        assert_eq!(found.missed, 1);
    }

    #[test]
    fn decisions_against_the_policy_are_found() {
        assert_eq!(evaluated("fire_once", 3, &[tick(1, 5, 1), tick(2, 5, 1)]).policy_violations, 1);
        assert_eq!(evaluated("fire_all(2)", 5, &[skipped(1, 3, 5), tick(4, 5, 1)]).policy_violations, 1);
        assert_eq!(evaluated("skip", 5, &[skipped(1, 4, 5)]).policy_violations, 1);
        assert_eq!(evaluated("within(10s)", 5, &[skipped(1, 3, 5), tick(4, 5, 1)]).policy_violations, 1);
        assert_eq!(evaluated("within(10s)", 2, &[tick(1, 90_000, 1)]).policy_violations, 1);
    }

    #[test]
    fn a_clock_step_excuses_one_decision_across_it_and_no_other() {
        // One hour ahead at 100 s.
        let mut clock = Clock::default();
        clock.set((100_000, 100_005), 3_600_000);
        let late = |decided_s: i64| {
            let mut report = HistoryReport { clock: clock.clone(), ..HistoryReport::default() };
            let ticks = [tick(99, decided_s, 1)];
            let effects = Effects::from([(99_000, vec![ticks[0].token])]);
            let mut view = view("within(10s)", 100);
            view.created_at_ms = 98_500;
            report.check(&view, &ticks, &effects);
            report.policy_violations
        };
        assert_eq!(late(100), 0, "on time");
        assert_eq!(late(3_600 + 101), 0, "decided just before the step, written just after it");
        assert_eq!(late(3_600 + 200), 1, "too late, long after the step");
        assert_eq!(late(2 * 3_600 + 101), 1, "the clock was never set by so much");
    }
}
