//! From notes and tasks to a verdict on one stage.

use std::collections::HashMap;

use tenure::port::{TaskState, TaskView};

use super::notes::{self, Note};
use super::operator::Operator;
use super::oracles::{
    Acknowledged, Holding, Overlap, Recovery, claims_past_the_mode, holdings, recoveries, shared_keys,
    shared_tasks, stale_settlements, strict_order,
};
use super::plan::{Done, ORDERS, Plan};
use crate::Failed;
use crate::crew::Crew;
use crate::oracles::{Gap, Injected, to_blame};
use crate::report::Outcome;
use crate::verdict::logs;

/// What came of a stage.
#[derive(Default)]
struct Verdict {
    processes: usize,
    submitted: usize,
    completed: usize,
    dead: usize,
    cancelled: usize,
    unfinished: usize,
    runs: usize,
    lost: usize,
    overlap_ns: u64,
    key_overlap_ns: u64,
    epochs: usize,
    turns: usize,
    out_of_order: usize,
    past_the_mode: usize,
    stale_accepted: usize,
    stale_refused: usize,
    violations: Vec<String>,
}

/// Reads everything and judges it.
pub(crate) async fn judge(
    stage: &'static str,
    crew: &Crew<Plan>,
    operator: &Operator,
    faults: &[Injected],
    lease_ns: u64,
) -> Result<Outcome, Failed> {
    let mut verdict = Verdict::default();
    let (mut all_notes, mut all) = (Vec::new(), Vec::new());
    for (hand, path) in logs(crew)? {
        let notes = notes::read(&path)?;
        all.extend(holdings(hand, &notes));
        all_notes.extend(notes);
        verdict.processes += 1;
    }
    let tasks = operator.tasks().await?;
    let acknowledged = verdict.judge_submissions(&all_notes, &tasks);
    verdict.judge_tasks(&tasks, &all);
    verdict.judge_holdings(operator, &all, &acknowledged);
    verdict.judge_stale(&all_notes, &tasks);
    verdict.judge_whether_enough_happened();
    verdict.violations.extend(crew.fallen("processes"));
    let gaps = blamed(recoveries(&all), faults, lease_ns);
    let (figures, stale_refused) = (verdict.figures(), verdict.stale_refused);
    Ok(Outcome { figures, stale_refused, gaps, ..Outcome::new(stage, faults, verdict.violations) })
}

impl Verdict {
    /// What was acknowledged is there, once.
    fn judge_submissions(&mut self, notes: &[Note], tasks: &[TaskView]) -> Acknowledged {
        let there: HashMap<&str, u64> =
            tasks.iter().filter_map(|task| Some((task.key.as_deref()?, task.id.0))).collect();
        let mut acknowledged = Acknowledged::new();
        for note in notes {
            let Note::Submitted { key, task, at_ms } = note else { continue };
            acknowledged.entry(*task).and_modify(|known| *known = (*known).min(*at_ms)).or_insert(*at_ms);
            match there.get(key.as_str()) {
                Some(id) if id == task => {}
                Some(id) => self.violations.push(format!("key {key} was task {task} and is task {id}")),
                None => self.violations.push(format!("task {task} was acknowledged and is not there")),
            }
        }
        if there.len() < tasks.len() {
            let doubled = tasks.len() - there.len();
            self.violations.push(format!("{doubled} tasks have a key that another one has, too"));
        }
        acknowledged
    }

    /// Everything came to an end, and to the right one.
    fn judge_tasks(&mut self, tasks: &[TaskView], all: &[Holding]) {
        self.submitted = tasks.len();
        let states: HashMap<u64, TaskState> = tasks.iter().map(|task| (task.id.0, task.state)).collect();
        for task in tasks {
            match task.state {
                TaskState::Completed => {
                    self.completed += 1;
                    self.judge_completed(task, &states);
                }
                TaskState::Dead => {
                    self.dead += 1;
                    if task.reason.is_none() {
                        self.violations.push(format!("task {} is dead, and nobody knows why", task.id));
                    }
                }
                TaskState::Cancelled => self.cancelled += 1,
                _ => {
                    self.unfinished += 1;
                    self.violations.push(unfinished(task, all));
                }
            }
        }
    }

    fn judge_completed(&mut self, task: &TaskView, states: &HashMap<u64, TaskState>) {
        let done: Option<Done> = task.output.as_ref().and_then(|output| output.parse().ok());
        if done.is_none_or(|done| done.token != task.token.as_u64()) {
            let (id, output) = (task.id, &task.output);
            self.violations.push(format!("task {id} was done under {}, but says {output:?}", task.token));
        }
        for parent in &task.parents {
            if states.get(&parent.0) != Some(&TaskState::Completed) {
                self.violations.push(format!("task {} was done before its parent {parent}", task.id));
            }
        }
    }

    fn judge_holdings(&mut self, operator: &Operator, all: &[Holding], acknowledged: &Acknowledged) {
        self.runs = all.len();
        self.lost = all.iter().filter(|it| !it.ended).count();
        let worst = |overlaps: &[Overlap]| overlaps.iter().map(|it| it.ns).max().unwrap_or(0);
        let (tasks, keys) = (shared_tasks(all), shared_keys(all));
        (self.overlap_ns, self.key_overlap_ns) = (worst(&tasks), worst(&keys));
        for overlap in tasks.iter().chain(&keys) {
            let ms = overlap.ns as f64 / 1e6;
            self.violations.push(format!("two live claims for {ms:.3} ms: {}", overlap.what));
        }
        self.epochs = operator.epochs().iter().filter(|epoch| epoch.exclusive).count();
        let past = claims_past_the_mode(ORDERS, operator.epochs(), all);
        self.past_the_mode = past.len();
        self.violations.extend(past);
        let order = strict_order(ORDERS, all, acknowledged);
        (self.turns, self.out_of_order) = (order.turns, order.violations.len());
        self.violations.extend(order.violations);
    }

    fn judge_stale(&mut self, notes: &[Note], tasks: &[TaskView]) {
        let last: HashMap<u64, u64> = tasks.iter().map(|task| (task.id.0, task.token.as_u64())).collect();
        let accepted = stale_settlements(notes, &last);
        self.stale_accepted = accepted.len();
        self.stale_refused =
            notes.iter().filter(|note| matches!(note, Note::Stale { accepted: false, .. })).count();
        self.violations.extend(accepted);
        for note in notes {
            if let Note::WithoutInputs { task } = note {
                self.violations.push(format!("task {task} began without its parents' outputs"));
            }
        }
    }

    fn judge_whether_enough_happened(&mut self) {
        if self.completed < 100 || self.lost == 0 || self.turns < 20 {
            let figures = format!("{} completed, {} lost, {} turns", self.completed, self.lost, self.turns);
            self.violations.push(format!("too little happened to prove anything: {figures}"));
        }
    }

    fn figures(&self) -> Vec<(&'static str, String)> {
        let ms = |ns: u64| format!("{:.3}", ns as f64 / 1e6);
        vec![
            ("processes", self.processes.to_string()),
            ("tasks submitted", self.submitted.to_string()),
            ("  completed", self.completed.to_string()),
            ("  dead", self.dead.to_string()),
            ("  cancelled", self.cancelled.to_string()),
            ("  anything else (must be 0)", self.unfinished.to_string()),
            ("runs", self.runs.to_string()),
            ("  whose claim was lost on the way", self.lost.to_string()),
            ("one task in two hands, ms (must be 0)", ms(self.overlap_ns)),
            ("one key in two hands, ms (must be 0)", ms(self.key_overlap_ns)),
            ("times in exclusive mode", self.epochs.to_string()),
            ("  turns judged", self.turns.to_string()),
            ("  out of order (must be 0)", self.out_of_order.to_string()),
            ("claims past the mode (must be 0)", self.past_the_mode.to_string()),
            ("stale settlements taken (must be 0)", self.stale_accepted.to_string()),
            ("stale settlements refused (must be > 0)", self.stale_refused.to_string()),
        ]
    }
}

/// What is known of a task that did not come to its end.
fn unfinished(task: &TaskView, all: &[Holding]) -> String {
    let TaskView { id, queue, state, attempt, worker, .. } = task;
    let run = all.iter().find(|it| it.run.task == id.0 && it.run.token == task.token.as_u64());
    let run = match run {
        None => "whose run never began",
        Some(run) if run.ended => "whose run said that it was done",
        Some(_) => "whose run was stopped",
    };
    let worker = worker.as_deref().unwrap_or("nobody");
    let failures: Vec<_> = task.failures.iter().map(|it| it.error.as_str()).collect();
    format!(
        "task {id} of {queue} is still {state:?} after everything was healed: attempt {attempt}, by {worker}, {run}; {failures:?}"
    )
}

/// Each recovery, put down to what is to blame for the loss.
fn blamed(recoveries: Vec<Recovery>, faults: &[Injected], lease_ns: u64) -> Vec<Gap> {
    let blame = |lost: &Recovery| {
        let after = to_blame(faults, lost.hand, lost.lost_ns, lease_ns).unwrap_or("otherwise");
        Gap { after, ns: lost.ns }
    };
    recoveries.iter().map(blame).collect()
}
