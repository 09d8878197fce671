//! What must be true of notes and tasks, whatever was broken meanwhile. Pure functions of what was read.
//!
//! A *holding* is one process's belief that a claim is its own: from the first moment at which that was surely so to the last.
//! It was asked between the time before and the time after, so an overlap found here is a real one.

use std::collections::{BTreeMap, HashMap};

use super::notes::{Note, Run};

/// One process's belief in one claim.
#[derive(Clone, Debug)]
pub(crate) struct Holding {
    /// Which hand it was.
    pub(crate) hand: usize,
    pub(crate) run: Run,
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
    /// It ended by itself, neither killed nor stopped.
    pub(crate) ended: bool,
}

/// The holdings in one process's notes.
pub(crate) fn holdings(hand: usize, notes: &[Note]) -> Vec<Holding> {
    let mut all: Vec<Holding> = Vec::new();
    let mut places: HashMap<(u64, u64), usize> = HashMap::new();
    for note in notes {
        match note {
            Note::Begins { run, after, .. } => {
                places.insert((run.task, run.token), all.len());
                let (from_ns, to_ns) = (*after, *after);
                all.push(Holding { hand, run: run.clone(), from_ns, to_ns, ended: false });
            }
            Note::Holds { task, token, before, .. } => {
                if let Some(place) = places.get(&(*task, *token)) {
                    all[*place].to_ns = all[*place].to_ns.max(*before);
                }
            }
            Note::Ends { task, token, stopped } => {
                if let Some(place) = places.get(&(*task, *token)) {
                    all[*place].ended = !stopped;
                }
            }
            _ => {}
        }
    }
    all
}

/// Two claims that were both believed in at once, and must not be.
#[derive(Clone, Debug)]
pub(crate) struct Overlap {
    pub(crate) ns: u64,
    pub(crate) what: String,
}

/// Pairs of claims of one task that overlap.
pub(crate) fn shared_tasks(holdings: &[Holding]) -> Vec<Overlap> {
    overlaps(holdings, |it| Some(format!("task {}", it.run.task)))
}

/// Pairs of claims with one concurrency key that overlap.
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
        // The one that lasts longest so far is the one that a later one would overlap.
        let mut longest: Option<&Holding> = None;
        for next in all {
            if let Some(last) = longest.filter(|last| last.to_ns > next.from_ns) {
                let ns = last.to_ns.min(next.to_ns).saturating_sub(next.from_ns);
                let what = format!(
                    "{group}: process {} under {} and process {} under {}",
                    last.hand,
                    tenure::Token::from_u64(last.run.token),
                    next.hand,
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

/// A time during which a queue was surely in one mode: the switch to it had returned, and the next was not yet sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epoch {
    pub(crate) exclusive: bool,
    pub(crate) from_ms: i64,
    pub(crate) to_ms: i64,
}

/// Claims that were made past the mode that the queue was in.
pub(crate) fn claims_past_the_mode(queue: &str, epochs: &[Epoch], holdings: &[Holding]) -> Vec<String> {
    let mut found = Vec::new();
    for holding in holdings.iter().filter(|it| it.run.queue == queue) {
        let Some(at_ms) = holding.run.claimed_at_ms else { continue };
        // The wall clock has a grain.
        let within = |epoch: &&Epoch| epoch.from_ms + 1 < at_ms && at_ms + 1 < epoch.to_ms;
        let Some(epoch) = epochs.iter().find(within) else { continue };
        if epoch.exclusive != holding.run.turn.is_some() {
            let mode = if epoch.exclusive { "directly in exclusive" } else { "by the leader in distributed" };
            found.push(format!("task {} was claimed {mode} mode", holding.run.task));
        }
    }
    found
}

/// What is known of when a task could first be claimed: its submission had been acknowledged then.
pub(crate) type Acknowledged = HashMap<u64, i64>;

/// How many pairs of turns were compared, and those that are out of order.
#[derive(Default)]
pub(crate) struct Order {
    pub(crate) turns: usize,
    pub(crate) violations: Vec<String>,
}

/// How long a claim may have been under way before the time that it is dated with.
const MARGIN_MS: i64 = 250;

/// Looks for a task that was handed out although another with a better place had been there before, and came later.
///
/// Judged are first claims only: one that was claimed before may have been away when the other was handed out.
pub(crate) fn strict_order(queue: &str, holdings: &[Holding], acknowledged: &Acknowledged) -> Order {
    let mut turns: Vec<&Run> =
        holdings.iter().map(|it| &it.run).filter(|run| run.queue == queue && run.turn.is_some()).collect();
    turns.sort_by_key(|run| run.turn);
    let mut order = Order { turns: turns.len(), violations: Vec::new() };
    for pair in turns.windows(2).filter(|pair| pair[0].turn == pair[1].turn) {
        if (pair[0].task, pair[0].token) != (pair[1].task, pair[1].token) {
            order.violations.push(format!("turn {:?} was given to two", pair[0].turn));
        }
    }
    for (n, late) in turns.iter().enumerate() {
        let first = tenure::Token::from_u64(late.token).grant() == 1;
        let Some(ready_ms) = acknowledged.get(&late.task).filter(|_| first) else { continue };
        for early in turns[..n].iter().rev() {
            let Some(claimed_ms) = early.claimed_at_ms else { continue };
            if claimed_ms + 10_000 < *ready_ms {
                break;
            }
            if claimed_ms > ready_ms + MARGIN_MS && early.effective_at_ms > late.effective_at_ms {
                order.violations.push(format!(
                    "task {} had turn {:?}, task {} turn {:?}, and should have been first",
                    early.task, early.turn, late.task, late.turn
                ));
                break;
            }
        }
    }
    order
}

/// What was said under a token that was not the task's last one, and was taken.
pub(crate) fn stale_settlements(notes: &[Note], last: &HashMap<u64, u64>) -> Vec<String> {
    let mut found = Vec::new();
    for note in notes {
        if let Note::Stale { task, token, accepted: true } = note
            && last.get(task) != Some(token)
        {
            let token = tenure::Token::from_u64(*token);
            found.push(format!("task {task} was completed under {token}, which was lost"));
        }
    }
    found
}

/// From the last moment of a claim that was lost to the next run of its task.
pub(crate) struct Recovery {
    pub(crate) hand: usize,
    pub(crate) lost_ns: u64,
    pub(crate) ns: u64,
}

/// How long each task that was lost waited for its next run.
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
            found.push(Recovery { hand: pair[0].hand, lost_ns: pair[0].to_ns, ns });
        }
    }
    found
}
