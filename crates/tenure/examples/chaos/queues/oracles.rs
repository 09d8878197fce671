//! Invariants of the logs and tasks, independent of the injected faults. All functions are pure.
//!
//! A *holding* is the belief of one process that it holds a claim: from the first to the last time at which that is
//! certain. The claim was checked between the time before and the time after, so every overlap found here is real.

use std::collections::{BTreeMap, HashMap};

use super::notes::{Note, Run};

/// The belief of one process in one claim.
#[derive(Clone, Debug)]
pub(crate) struct Holding {
    /// Number of the process slot.
    pub(crate) process: usize,
    pub(crate) run: Run,
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
    /// Whether the run ended by itself, neither killed nor stopped.
    pub(crate) ended: bool,
}

/// Holdings in the notes of one process.
pub(crate) fn holdings(process: usize, notes: &[Note]) -> Vec<Holding> {
    let mut all: Vec<Holding> = Vec::new();
    let mut indexes: HashMap<(u64, u64), usize> = HashMap::new();
    for note in notes {
        match note {
            Note::Begins { run, after, .. } => {
                indexes.insert((run.task, run.token), all.len());
                let (from_ns, to_ns) = (*after, *after);
                all.push(Holding { process, run: run.clone(), from_ns, to_ns, ended: false });
            }
            Note::Holds { task, token, before, .. } => {
                if let Some(index) = indexes.get(&(*task, *token)) {
                    all[*index].to_ns = all[*index].to_ns.max(*before);
                }
            }
            Note::Ends { task, token, stopped } => {
                if let Some(index) = indexes.get(&(*task, *token)) {
                    all[*index].ended = !stopped;
                }
            }
            _ => {}
        }
    }
    all
}

/// Two claims that overlap and must not.
#[derive(Clone, Debug)]
pub(crate) struct Overlap {
    pub(crate) ns: u64,
    pub(crate) what: String,
}

/// Overlapping claims of one task.
pub(crate) fn shared_tasks(holdings: &[Holding]) -> Vec<Overlap> {
    overlaps(holdings, |it| Some(format!("task {}", it.run.task)))
}

/// Overlapping claims with one concurrency key.
pub(crate) fn shared_keys(holdings: &[Holding]) -> Vec<Overlap> {
    overlaps(holdings, |it| it.run.key.as_ref().map(|key| format!("key {key}")))
}

fn overlaps(holdings: &[Holding], of: impl Fn(&Holding) -> Option<String>) -> Vec<Overlap> {
    let mut groups: BTreeMap<String, Vec<&Holding>> = BTreeMap::new();
    for holding in holdings {
        if let Some(group) = of(holding) {
            groups.entry(group).or_default().push(holding);
        }
    }
    let mut found = Vec::new();
    for (group, mut all) in groups {
        all.sort_by_key(|it| it.from_ns);
        // A later holding can only overlap the one that lasts longest so far.
        let mut longest: Option<&Holding> = None;
        for next in all {
            if let Some(last) = longest.filter(|last| last.to_ns > next.from_ns) {
                let ns = last.to_ns.min(next.to_ns).saturating_sub(next.from_ns);
                let what = format!(
                    "{group}: process {} under {} and process {} under {}",
                    last.process,
                    tenure::Token::from_u64(last.run.token),
                    next.process,
                    tenure::Token::from_u64(next.run.token)
                );
                if ns > 0 {
                    found.push(Overlap { ns, what });
                }
            }
            if longest.is_none_or(|last| next.to_ns > last.to_ns) {
                longest = Some(next);
            }
        }
    }
    found
}

/// A period in which the mode of a queue is certain: the switch to it has returned, and the next was not sent yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epoch {
    pub(crate) exclusive: bool,
    pub(crate) from_ms: i64,
    pub(crate) to_ms: i64,
}

/// Claims that contradict the mode of the queue.
pub(crate) fn claims_against_mode(queue: &str, epochs: &[Epoch], holdings: &[Holding]) -> Vec<String> {
    let mut found = Vec::new();
    for holding in holdings.iter().filter(|it| it.run.queue == queue) {
        let Some(at_ms) = holding.run.claimed_at_ms else { continue };
        // The wall clock has a resolution of one millisecond.
        let within = |epoch: &&Epoch| epoch.from_ms + 1 < at_ms && at_ms + 1 < epoch.to_ms;
        let Some(epoch) = epochs.iter().find(within) else { continue };
        if epoch.exclusive != holding.run.claim_seq.is_some() {
            let mode = if epoch.exclusive { "directly in exclusive" } else { "by the broker in distributed" };
            found.push(format!("task {} was claimed {mode} mode", holding.run.task));
        }
    }
    found
}

/// Time at which the submission of a task was confirmed.
pub(crate) type Acknowledged = HashMap<u64, i64>;

/// Number of checked claims, and the violations of strict order.
#[derive(Default)]
pub(crate) struct Order {
    pub(crate) claims_checked: usize,
    pub(crate) violations: Vec<String>,
}

/// Maximum time between the decision of a claim and its timestamp.
const MARGIN_MS: i64 = 250;

/// Find tasks that were claimed although a task with a better position was ready before and was claimed later.
///
/// Only first claims are checked: a task that was claimed before may not have been ready when the other was assigned.
pub(crate) fn strict_order(queue: &str, holdings: &[Holding], acknowledged: &Acknowledged) -> Order {
    let mut claims_checked: Vec<&Run> = holdings
        .iter()
        .map(|it| &it.run)
        .filter(|run| run.queue == queue && run.claim_seq.is_some())
        .collect();
    claims_checked.sort_by_key(|run| run.claim_seq);
    let mut order = Order { claims_checked: claims_checked.len(), violations: Vec::new() };
    for pair in claims_checked.windows(2).filter(|pair| pair[0].claim_seq == pair[1].claim_seq) {
        if (pair[0].task, pair[0].token) != (pair[1].task, pair[1].token) {
            order.violations.push(format!("claim sequence {:?} was assigned twice", pair[0].claim_seq));
        }
    }
    for (n, late) in claims_checked.iter().enumerate() {
        let first = tenure::Token::from_u64(late.token).grant() == 1;
        let Some(ready_ms) = acknowledged.get(&late.task).filter(|_| first) else { continue };
        for early in claims_checked[..n].iter().rev() {
            let Some(claimed_ms) = early.claimed_at_ms else { continue };
            if claimed_ms + 10_000 < *ready_ms {
                break;
            }
            if claimed_ms > ready_ms + MARGIN_MS && early.effective_at_ms > late.effective_at_ms {
                order.violations.push(format!(
                    "task {} has claim sequence {:?}, but task {} with claim sequence {:?} should have been first",
                    early.task, early.claim_seq, late.task, late.claim_seq
                ));
                break;
            }
        }
    }
    order
}

/// Settlements under an outdated token that were applied.
pub(crate) fn stale_settlements(notes: &[Note], last: &HashMap<u64, u64>) -> Vec<String> {
    let mut found = Vec::new();
    for note in notes {
        if let Note::Stale { task, token, accepted: true } = note
            && last.get(task) != Some(token)
        {
            let token = tenure::Token::from_u64(*token);
            found.push(format!("task {task} was completed under the lost token {token}"));
        }
    }
    found
}

/// Time from the loss of a claim to the next run of its task.
pub(crate) struct Recovery {
    pub(crate) process: usize,
    pub(crate) lost_ns: u64,
    pub(crate) ns: u64,
}

/// Recovery times of all lost claims.
pub(crate) fn recoveries(holdings: &[Holding]) -> Vec<Recovery> {
    let mut tasks: BTreeMap<u64, Vec<&Holding>> = BTreeMap::new();
    for holding in holdings {
        tasks.entry(holding.run.task).or_default().push(holding);
    }
    let mut found = Vec::new();
    for mut runs in tasks.into_values() {
        runs.sort_by_key(|it| it.run.token);
        for pair in runs.windows(2).filter(|pair| !pair[0].ended) {
            let ns = pair[1].from_ns.saturating_sub(pair[0].to_ns);
            found.push(Recovery { process: pair[0].process, lost_ns: pair[0].to_ns, ns });
        }
    }
    found
}
