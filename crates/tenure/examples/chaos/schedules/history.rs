//! The oracle: what the store tells of each schedule against what its timetable and its policy say.
//!
//! Every tick from the schedule's creation to its next one must have been decided about, once; every tick that fired must have had
//! its effect, once, under the token that is written on it; tokens must not fall; and of each decision, the ticks that fired must be
//! those that the policy names. The effects are read from the tasks and events themselves, by what they say of their tick.

use std::collections::{BTreeMap, BTreeSet};

use tenure::Token;
use tenure::port::{
    Position, ReadAsk, ScheduleFilter, ScheduleKey, ScheduleView, TaskFilter, TaskView, TickFilter,
    TickState, TickView,
};
use tenure::schedule::{Misfire, ON_TIME_MS, SCHEDULE_HEADER, TICK_HEADER, Timetable, tick_of};
use tenure::{Name, Tenure};

use super::apart;
use super::clock::Clock;
use crate::Failed;

/// Where events go.
pub(super) const TOPIC: &str = "ticks";

/// Where tasks go that nobody does.
pub(super) const QUEUE: &str = "work";

/// Where those go that take a while, and may not overlap.
pub(super) const RUNS: &str = "runs";

/// How many rows are asked for at once.
const PAGE: u32 = 1_000;

/// By how much the clock of a decision and that of its being written may differ: what a call takes at most.
pub(super) const CALL_MS: i64 = 20_000;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Judged {
    pub(super) fired: u64,
    pub(super) skipped: u64,
    /// Ticks that nobody decided about, or that fired without an effect.
    pub(super) missed: usize,
    /// Ticks that were decided about twice, or had two effects.
    pub(super) doubled: usize,
    /// Decisions that are not as the policy says.
    pub(super) astray: usize,
    /// How many runs that may not overlap could be judged, and were not kept apart.
    pub(super) apart: usize,
    pub(super) overlapping: usize,
    pub(super) amiss: Vec<String>,
    /// What the clock showed when.
    clock: Clock,
}

/// A schedule's effects: under which tokens, by tick.
pub(super) type Effects = BTreeMap<i64, Vec<Option<Token>>>;

/// A schedule's tasks, by tick.
type Tasks = BTreeMap<i64, TaskView>;

/// Reads and judges all schedules, of a store with this clock.
pub(super) async fn judge(tenure: &Tenure, clock: Clock) -> Result<Judged, Failed> {
    let mut judged = Judged { clock, ..Judged::default() };
    let (mut effects, mut tasks) = effects(tenure).await?;
    for view in tenure.store().schedules(&ScheduleFilter::default()).await? {
        let ticks = ticks(tenure, &view.key()).await?;
        let its = effects.remove(view.definition.name.as_str()).unwrap_or_default();
        judged.hear(&view, &ticks, &its);
        let its = tasks.remove(view.definition.name.as_str()).unwrap_or_default();
        let apart = apart::judge(&view, &ticks, &its, &judged.clock);
        judged.apart += apart.judged;
        judged.overlapping += apart.amiss.len();
        judged.amiss.extend(apart.amiss);
    }
    for name in effects.keys() {
        judged.amiss.push(format!("there are effects of a schedule {name} that is not there"));
    }
    Ok(judged)
}

/// The whole history, the oldest first.
async fn ticks(tenure: &Tenure, key: &ScheduleKey) -> Result<Vec<TickView>, Failed> {
    let mut filter = TickFilter { key: key.clone(), before_ms: None, limit: PAGE };
    let mut all = Vec::new();
    loop {
        let page = tenure.store().ticks(&filter).await?;
        let Some(last) = page.last() else { break };
        filter.before_ms = Some(last.at_ms);
        all.extend(page);
    }
    all.reverse();
    Ok(all)
}

/// What tasks and events say of themselves, by schedule; and the tasks.
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
            let (key, at_ms) = task.key.as_deref().and_then(tick_of).ok_or("a task without a tick")?;
            add(key.name.to_string(), at_ms, task.leader_token);
            tasks.entry(key.name.to_string()).or_default().insert(at_ms, task);
        }
    }
    let topic = tenure.topic(TOPIC)?;
    let slots = tenure.store().topic(&topic).await?.ok_or("the topic is gone")?.settings.slots;
    let mut after: Vec<(u32, Position)> = (0..slots).map(|slot| (slot, Position::default())).collect();
    loop {
        let read = ReadAsk { topic: topic.clone(), after: after.clone(), limit: PAGE };
        let events = tenure.store().read_events(&read).await?;
        if events.is_empty() {
            return Ok((all, tasks));
        }
        for event in events {
            let header = |name: &str| event.headers.get(name).cloned().ok_or("an event without a tick");
            let (schedule, at) = (header(SCHEDULE_HEADER)?, header(TICK_HEADER)?);
            let (_, at_ms) = tick_of(&format!("default/{schedule}@{at}")).ok_or("a tick that is none")?;
            add(schedule, at_ms, event.leader_token);
            let place = &mut after[event.slot as usize].1;
            *place = event.position.max(*place);
        }
    }
}

impl Judged {
    /// Judges one schedule.
    pub(super) fn hear(&mut self, view: &ScheduleView, ticks: &[TickView], effects: &Effects) {
        let name = &view.definition.name;
        let timetable = view.definition.timetable(&view.namespace);
        let until = view.progress.map_or(i64::MAX, |progress| progress.next_at_ms);
        // It began with the first tick after the store looked at its clock, which was a moment before it wrote it down.
        let first = ticks.first().map(|tick| tick.first_ms.unwrap_or(tick.at_ms));
        let made = view.created_ms - CALL_MS..view.created_ms;
        let from = first.filter(|first| made.contains(first)).unwrap_or(view.created_ms);
        let mut decided: BTreeMap<i64, usize> =
            timetable.ticks_between(from, until).map(|at| (at, 0)).collect();
        for tick in ticks {
            let those: Vec<i64> = match tick.first_ms {
                Some(first) => timetable.ticks_between(first, tick.at_ms + 1).collect(),
                None => vec![tick.at_ms],
            };
            if those.len() as u64 != tick.count {
                self.amiss.push(format!("{name}: a range of {} ticks says {}", those.len(), tick.count));
            }
            match tick.state {
                TickState::Skipped => self.skipped += tick.count,
                _ => self.fired += 1,
            }
            for at in those {
                match decided.get_mut(&at) {
                    Some(times) => *times += 1,
                    None => {
                        self.amiss.push(format!("{name}: {at} was decided about, and is none of its ticks"))
                    }
                }
            }
        }
        self.count(name, "was never decided about", "was decided about twice", &decided);
        self.check_effects(name, ticks, effects);
        if !ticks.iter().filter_map(|tick| tick.token).is_sorted() {
            self.amiss.push(format!("{name}: an old leader fired after a new one"));
            self.astray += 1;
        }
        let misfire = view.definition.misfire;
        let mut excused = BTreeSet::new();
        for decision in decisions(ticks) {
            if let Err(why) = as_the_policy_says(misfire, &timetable, &decision) {
                // Of what was decided before the clock was set, and written after it, there is one at most: whoever decides next has
                // seen that.
                let before = but_for_a_step(misfire, &timetable, &decision, &self.clock);
                if before.is_some_and(|step| excused.insert(step)) {
                    continue;
                }
                self.astray += 1;
                self.amiss.push(format!("{name}: {why}: {decision:?}"));
            }
        }
    }

    fn count(&mut self, name: &Name, never: &str, twice: &str, times: &BTreeMap<i64, usize>) {
        for (at, times) in times {
            match times {
                0 => {
                    self.missed += 1;
                    self.amiss.push(format!("{name}: {at} {never}"));
                }
                1 => {}
                _ => {
                    self.doubled += 1;
                    self.amiss.push(format!("{name}: {at} {twice}"));
                }
            }
        }
    }

    fn check_effects(&mut self, name: &Name, ticks: &[TickView], effects: &Effects) {
        let fired: BTreeMap<i64, Option<Token>> = ticks
            .iter()
            .filter(|tick| tick.state == TickState::Fired)
            .map(|tick| (tick.at_ms, tick.token))
            .collect();
        let times = fired.keys().map(|at| (*at, effects.get(at).map_or(0, Vec::len))).collect();
        self.count(name, "fired, and had no effect", "had two effects", &times);
        for (at, tokens) in effects {
            match fired.get(at) {
                None => {
                    self.doubled += 1;
                    self.amiss.push(format!("{name}: {at} had an effect, and did not fire"));
                }
                Some(token) if tokens.iter().any(|its| its != token) => {
                    self.amiss.push(format!("{name}: {at} does not carry the token of its tick"));
                }
                Some(_) => {}
            }
        }
    }
}

/// What one firing decided: the ticks that fired, and the last of those that did not.
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
        let by = (tick.decided_ms, tick.token);
        if last != Some(by) || tick.state == TickState::Skipped {
            all.push(Decision { decided_ms: tick.decided_ms, ..Decision::default() });
        }
        last = Some(by);
        let Some(decision) = all.last_mut() else { continue };
        match tick.state {
            TickState::Skipped => decision.skipped = Some(tick.at_ms),
            _ => decision.fired.push(tick.at_ms),
        }
    }
    all
}

/// The policy in other words than the rules have it.
fn as_the_policy_says(
    misfire: Misfire,
    timetable: &Timetable,
    decision: &Decision,
) -> Result<(), &'static str> {
    let late = |at: i64| decision.decided_ms - timetable.due_at(at);
    // It was decided a call before it was written.
    let too_late =
        |at: i64, most: u64| late(at) > i64::try_from(most).unwrap_or(i64::MAX - CALL_MS) + CALL_MS;
    let in_time = |at: i64, most: u64| late(at) <= i64::try_from(most).unwrap_or(i64::MAX);
    let (fired, skipped) = (&decision.fired, decision.skipped);
    match misfire {
        Misfire::FireOnce if fired.len() != 1 => Err("not one fired for all"),
        Misfire::FireAll { cap } if fired.len() > cap as usize => Err("more fired than the cap"),
        Misfire::FireAll { cap } if skipped.is_some() && fired.len() < cap as usize => {
            Err("fewer fired than the cap, and some were skipped")
        }
        Misfire::Skip if fired.len() > 1 => Err("a missed tick fired"),
        Misfire::Skip if fired.iter().any(|at| too_late(*at, ON_TIME_MS)) => Err("one fired late"),
        Misfire::Skip if fired.is_empty() && skipped.is_some_and(|at| in_time(at, ON_TIME_MS)) => {
            Err("the newest was on time, and was skipped")
        }
        Misfire::Within { grace_ms } if fired.iter().any(|at| too_late(*at, grace_ms)) => {
            Err("one fired after the grace")
        }
        Misfire::Within { grace_ms } if skipped.is_some_and(|at| in_time(at, grace_ms)) => {
            Err("one was skipped within the grace")
        }
        _ => Ok(()),
    }
}

/// The step of the clock, if it was set between the decision and its being written, and the policy says so by what it showed before.
fn but_for_a_step(
    misfire: Misfire,
    timetable: &Timetable,
    decision: &Decision,
    clock: &Clock,
) -> Option<usize> {
    let as_shown = |by_ms: i64| Decision { decided_ms: decision.decided_ms + by_ms, ..decision.clone() };
    let earlier = clock.earlier(decision.decided_ms, CALL_MS).into_iter();
    let mut fits = earlier.filter(|it| as_the_policy_says(misfire, timetable, &as_shown(it.by_ms)).is_ok());
    fits.next().map(|it| it.steps)
}

#[cfg(test)]
mod tests {
    use tenure::port::Cause;
    use tenure::schedule::Progress;

    use super::*;

    fn view(misfire: &str, next_s: i64) -> ScheduleView {
        let definition = tenure::ScheduleBuilder::new("x", "every 1s").misfire(misfire.parse().unwrap());
        ScheduleView {
            namespace: Name::default_namespace(),
            version: 1,
            definition: definition.task("work", "tick").build().unwrap(),
            progress: Some(Progress { next_at_ms: next_s * 1_000, last_at_ms: None }),
            due_ms: None,
            paused: None,
            trouble: None,
            fired: 0,
            skipped: 0,
            overlapped: 0,
            last_fired_ms: None,
            source: None,
            signed: false,
            created_ms: 500,
            updated_ms: 0,
            updated_by: String::new(),
        }
    }

    fn tick(at_s: i64, decided_s: i64, token: u64) -> TickView {
        TickView {
            at_ms: at_s * 1_000,
            state: TickState::Fired,
            cause: Cause::Clock,
            count: 1,
            first_ms: None,
            decided_ms: decided_s * 1_000,
            late_ms: 0,
            token: Some(Token::from_u64(token)),
            by: String::new(),
            event: None,
            task: None,
        }
    }

    fn skipped(first_s: i64, last_s: i64, decided_s: i64) -> TickView {
        let count = u64::try_from(last_s - first_s + 1).unwrap();
        let (state, first_ms) = (TickState::Skipped, Some(first_s * 1_000));
        TickView { state, count, first_ms, ..tick(last_s, decided_s, 1) }
    }

    fn judged(misfire: &str, next_s: i64, ticks: &[TickView]) -> Judged {
        let fired = ticks.iter().filter(|tick| tick.state == TickState::Fired);
        let effects = fired.map(|tick| (tick.at_ms, vec![tick.token])).collect();
        let mut judged = Judged::default();
        judged.hear(&view(misfire, next_s), ticks, &effects);
        judged
    }

    #[test]
    fn a_history_in_order_is_in_order() {
        let fine = [tick(1, 1, 1), tick(2, 2, 1), skipped(3, 8, 9), tick(9, 9, 1)];
        let fine = judged("fire_once", 10, &fine);
        assert!(fine.amiss.is_empty(), "{:?}", fine.amiss);
        assert_eq!((fine.fired, fine.skipped), (3, 6));
    }

    #[test]
    fn what_is_missing_doubled_or_out_of_order_is_found() {
        assert_eq!(judged("fire_all(9)", 4, &[tick(1, 1, 1), tick(3, 3, 1)]).missed, 1);
        assert_eq!(judged("fire_all(9)", 3, &[tick(1, 1, 1), tick(2, 2, 1), tick(2, 2, 1)]).doubled, 1);
        assert_eq!(judged("fire_all(9)", 3, &[tick(1, 1, 2), tick(2, 2, 1)]).astray, 1);
        let mut found = Judged::default();
        let two = Effects::from([(1_000, vec![Some(Token::from_u64(1)); 2])]);
        found.hear(&view("fire_all(9)", 2), &[tick(1, 1, 1)], &two);
        assert_eq!((found.doubled, found.missed), (1, 0));
        let mut found = Judged::default();
        found.hear(&view("fire_all(9)", 2), &[tick(1, 1, 1)], &Effects::new());
        assert_eq!(found.missed, 1);
    }

    #[test]
    fn what_the_policy_does_not_say_is_found() {
        assert_eq!(judged("fire_once", 3, &[tick(1, 5, 1), tick(2, 5, 1)]).astray, 1);
        assert_eq!(judged("fire_all(2)", 5, &[skipped(1, 3, 5), tick(4, 5, 1)]).astray, 1);
        assert_eq!(judged("skip", 5, &[skipped(1, 4, 5)]).astray, 1);
        assert_eq!(judged("within(10s)", 5, &[skipped(1, 3, 5), tick(4, 5, 1)]).astray, 1);
        assert_eq!(judged("within(10s)", 2, &[tick(1, 90_000, 1)]).astray, 1);
    }

    #[test]
    fn a_step_of_the_clock_excuses_one_decision_across_it_and_no_other() {
        // Ahead by an hour at 100 s.
        let mut clock = Clock::default();
        clock.set((100_000, 100_005), 3_600_000);
        let late = |decided_s: i64| {
            let mut judged = Judged { clock: clock.clone(), ..Judged::default() };
            let ticks = [tick(99, decided_s, 1)];
            let effects = Effects::from([(99_000, vec![ticks[0].token])]);
            let mut view = view("within(10s)", 100);
            view.created_ms = 98_500;
            judged.hear(&view, &ticks, &effects);
            judged.astray
        };
        assert_eq!(late(100), 0, "in time");
        assert_eq!(late(3_600 + 101), 0, "decided just before, written just after");
        assert_eq!(late(3_600 + 200), 1, "long after the step it is too late");
        assert_eq!(late(2 * 3_600 + 101), 1, "the clock was never set by so much");
    }
}
