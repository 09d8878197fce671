//! Evaluation of a queue scenario from logs and tasks.

use std::collections::HashMap;

use tenure::port::{TaskState, TaskView};

use super::notes::{self, Note};
use super::operator::Operator;
use super::oracles::{
    Acknowledged, Holding, Overlap, Recovery, claims_against_mode, holdings, recoveries, shared_keys,
    shared_tasks, stale_settlements, strict_order,
};
use super::plan::{ORDERS, Plan, TaskResult};
use crate::Failed;
use crate::evaluation::logs;
use crate::oracles::{Gap, Injected, cause_of};
use crate::report::Outcome;
use crate::worker_processes::WorkerProcesses;

/// Figures and violations of a scenario.
#[derive(Default)]
struct Evaluation {
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
    claims_checked: usize,
    out_of_order: usize,
    against_mode: usize,
    stale_accepted: usize,
    stale_refused: usize,
    violations: Vec<String>,
}

/// Read the logs and tasks and evaluate them.
pub(crate) async fn evaluate(
    scenario: &'static str,
    workers: &WorkerProcesses<Plan>,
    operator: &Operator,
    faults: &[Injected],
    lease_ns: u64,
) -> Result<Outcome, Failed> {
    let mut evaluation = Evaluation::default();
    let (mut all_notes, mut all) = (Vec::new(), Vec::new());
    for (process, path) in logs(workers)? {
        let notes = notes::read(&path)?;
        all.extend(holdings(process, &notes));
        all_notes.extend(notes);
        evaluation.processes += 1;
    }
    let tasks = operator.tasks().await?;
    let acknowledged = evaluation.judge_submissions(&all_notes, &tasks);
    evaluation.judge_tasks(&tasks, &all);
    evaluation.judge_holdings(operator, &all, &acknowledged);
    evaluation.judge_stale(&all_notes, &tasks);
    evaluation.judge_whether_enough_happened();
    evaluation.violations.extend(workers.unexpected_exits("processes"));
    let gaps = blamed(recoveries(&all), faults, lease_ns);
    let (figures, stale_refused) = (evaluation.figures(), evaluation.stale_refused);
    Ok(Outcome { figures, stale_refused, gaps, ..Outcome::new(scenario, faults, evaluation.violations) })
}

impl Evaluation {
    /// Every confirmed task exists once.
    fn judge_submissions(&mut self, notes: &[Note], tasks: &[TaskView]) -> Acknowledged {
        let there: HashMap<&str, u64> =
            tasks.iter().filter_map(|task| Some((task.idempotency_key.as_deref()?, task.id.0))).collect();
        let mut acknowledged = Acknowledged::new();
        for note in notes {
            let Note::Submitted { key, task, at_ms } = note else { continue };
            acknowledged.entry(*task).and_modify(|known| *known = (*known).min(*at_ms)).or_insert(*at_ms);
            match there.get(key.as_str()) {
                Some(id) if id == task => {}
                Some(id) => {
                    self.violations.push(format!("key {key} was confirmed as task {task}, but is task {id}"))
                }
                None => self.violations.push(format!("task {task} was confirmed but does not exist")),
            }
        }
        if there.len() < tasks.len() {
            let doubled = tasks.len() - there.len();
            self.violations.push(format!("{doubled} tasks have a duplicate key"));
        }
        acknowledged
    }

    /// Every task has ended in the expected state.
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
                    if task.end_reason.is_none() {
                        self.violations.push(format!("task {} is dead without a reason", task.id));
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
        let done: Option<TaskResult> = task.result.as_ref().and_then(|output| output.parse().ok());
        if done.is_none_or(|done| done.token != task.token.as_u64()) {
            let (id, output) = (task.id, &task.result);
            self.violations
                .push(format!("task {id} was completed under {}, but its result is {output:?}", task.token));
        }
        for parent in &task.parents {
            if states.get(&parent.0) != Some(&TaskState::Completed) {
                self.violations.push(format!("task {} was completed before its parent {parent}", task.id));
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
        let past = claims_against_mode(ORDERS, operator.epochs(), all);
        self.against_mode = past.len();
        self.violations.extend(past);
        let order = strict_order(ORDERS, all, acknowledged);
        (self.claims_checked, self.out_of_order) = (order.claims_checked, order.violations.len());
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
            if let Note::WithoutParentResults { task } = note {
                self.violations.push(format!("task {task} began without the results of its parents"));
            }
        }
    }

    fn judge_whether_enough_happened(&mut self) {
        if self.completed < 100 || self.lost == 0 || self.claims_checked < 20 {
            let figures = format!(
                "{} completed, {} lost, {} exclusive claims",
                self.completed, self.lost, self.claims_checked
            );
            self.violations.push(format!("too few events for a meaningful result: {figures}"));
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
            ("  other states (must be 0)", self.unfinished.to_string()),
            ("runs", self.runs.to_string()),
            ("  with a lost claim", self.lost.to_string()),
            ("task claimed twice, ms (must be 0)", ms(self.overlap_ns)),
            ("key claimed twice, ms (must be 0)", ms(self.key_overlap_ns)),
            ("periods in exclusive mode", self.epochs.to_string()),
            ("  claims checked", self.claims_checked.to_string()),
            ("  out of order (must be 0)", self.out_of_order.to_string()),
            ("claims against the mode (must be 0)", self.against_mode.to_string()),
            ("stale settlements applied (must be 0)", self.stale_accepted.to_string()),
            ("stale settlements rejected (must be > 0)", self.stale_refused.to_string()),
        ]
    }
}

/// Describe a task that did not end.
fn unfinished(task: &TaskView, all: &[Holding]) -> String {
    let TaskView { id, queue, state, attempt, worker, .. } = task;
    let run = all.iter().find(|it| it.run.task == id.0 && it.run.token == task.token.as_u64());
    let run = match run {
        None => "its run never began",
        Some(run) if run.ended => "its run ended by itself",
        Some(_) => "its run was stopped",
    };
    let worker = worker.as_deref().unwrap_or("no worker");
    let failures: Vec<_> = task.failures.iter().map(|it| it.error.as_str()).collect();
    format!(
        "task {id} of {queue} is still {state:?} after all faults were healed: attempt {attempt}, by {worker}, {run}; {failures:?}"
    )
}

/// Attribute each recovery to the fault that caused the loss.
fn blamed(recoveries: Vec<Recovery>, faults: &[Injected], lease_ns: u64) -> Vec<Gap> {
    let blame = |lost: &Recovery| {
        let after = cause_of(faults, lost.process, lost.lost_ns, lease_ns).unwrap_or("no fault");
        Gap { after, ns: lost.ns }
    };
    recoveries.iter().map(blame).collect()
}
