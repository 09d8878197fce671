//! Invariants of the Raft simulation and their checks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::store::raft::RaftStatus;
use tenure::{Elector, Token};

use super::computer::Computer;
use super::history::{self, HistoryOp};
use super::stats::RaftStats;
use super::time::SimTime;
use crate::sim::failure::TraceLog;
use crate::sim::invariants::Violation;

/// Records what members and clients do and checks the invariants. It does not influence the run. Clones share it.
#[derive(Clone)]
pub(super) struct Oracle {
    pub(super) time: SimTime,
    inner: Arc<Mutex<Inner>>,
}

/// A running candidate and its machine.
type RunningCandidate = (Arc<Computer>, Arc<Elector>);

struct Inner {
    violation: Option<(Violation, Duration)>,
    /// The entry applied at each index, and the member that applied it first.
    entries: BTreeMap<u64, (u64, u64)>,
    /// The registered start of each member.
    registered: BTreeMap<u64, u64>,
    /// Raft leaders with their terms.
    leaders: BTreeSet<(u64, u64)>,
    /// Running candidates per election.
    candidates: BTreeMap<usize, Vec<RunningCandidate>>,
    /// Last token of each election, and its holder.
    tokens: BTreeMap<usize, (Token, String)>,
    /// Greatest token of a confirmed write, per election.
    fenced: BTreeMap<usize, Token>,
    ops: Vec<HistoryOp>,
    /// Members without a majority, and since when.
    minority: Option<(u64, BTreeSet<u64>)>,
    stats: RaftStats,
    trace_log: TraceLog,
}

impl Oracle {
    pub(super) fn new(time: &SimTime) -> Oracle {
        let inner = Inner {
            violation: None,
            entries: BTreeMap::new(),
            registered: BTreeMap::new(),
            leaders: BTreeSet::new(),
            candidates: BTreeMap::new(),
            tokens: BTreeMap::new(),
            fenced: BTreeMap::new(),
            ops: Vec::new(),
            minority: None,
            stats: RaftStats { run_count: 1, ..RaftStats::default() },
            trace_log: TraceLog::new(true),
        };
        Oracle { time: time.clone(), inner: Arc::new(Mutex::new(inner)) }
    }

    pub(super) fn note(&self, line: impl FnOnce() -> String) {
        let now = self.time.now();
        self.locked().trace_log.note(now, line);
    }

    pub(super) fn count(&self, act: impl FnOnce(&mut RaftStats)) {
        act(&mut self.locked().stats);
    }

    pub(super) fn broken(&self, invariant: &'static str, what: String) {
        let at = Duration::from_nanos(self.time.now());
        self.locked().violation.get_or_insert((Violation { invariant, what }, at));
    }

    pub(super) fn is_broken(&self) -> bool {
        self.locked().violation.is_some()
    }

    /// Returns the violation, the statistics and the last steps.
    pub(super) fn verdict(&self) -> (Option<(Violation, Duration)>, RaftStats, Vec<String>) {
        let mut inner = self.locked();
        let lines = std::mem::take(&mut inner.trace_log).into_lines();
        (inner.violation.clone(), inner.stats.clone(), lines)
    }

    /// Checks log agreement: no two members apply different entries at the same index.
    pub(super) fn applied(&self, node: u64, index: u64, entry: &[u8]) {
        let digest = entry.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let other = {
            let inner = &mut *self.locked();
            inner.stats.applied += 1;
            if let Some((member, started)) = registration(entry) {
                let known = inner.registered.entry(member).or_default();
                *known = started.max(*known);
            }
            let (kept, first) = *inner.entries.entry(index).or_insert((digest, node));
            (kept != digest).then_some(first)
        };
        if let Some(other) = other {
            let entry = String::from_utf8_lossy(entry);
            self.broken(
                "logs_agree",
                format!("node {other} applied another entry at {index} than node {node}: {entry}"),
            );
        }
    }

    /// The registered number of starts of a member.
    pub(super) fn registered(&self, node: u64) -> u64 {
        self.locked().registered.get(&node).copied().unwrap_or(0)
    }

    /// Records the Raft leader. openraft allows a greater node id to follow a smaller one in the same term, so node id
    /// and term together identify a leader.
    pub(super) fn status(&self, status: &RaftStatus) {
        if status.leader == Some(status.reported_by) {
            let inner = &mut *self.locked();
            inner.stats.leaders += u64::from(inner.leaders.insert((status.term, status.reported_by)));
        }
    }

    pub(super) fn stands(&self, election: usize, computer: Arc<Computer>, elector: Arc<Elector>) {
        let inner = &mut *self.locked();
        let all = inner.candidates.entry(election).or_default();
        all.retain(|(computer, _)| !computer.is_over());
        all.push((computer, elector));
    }

    /// Checks that at most one client trusts its lease. Trust starts at a step and expires as clocks advance, so this
    /// check runs whenever time advances.
    pub(super) fn trusting_leaders(&self) {
        let two = {
            let inner = self.locked();
            inner.candidates.iter().find_map(|(election, candidates)| {
                let believes = |(computer, elector): &&(Arc<Computer>, Arc<Elector>)| {
                    !computer.is_over() && elector.is_leader()
                };
                let held = candidates.iter().filter(believes).count();
                (held > 1).then(|| format!("{held} clients trust that they lead e{election}"))
            })
        };
        if let Some(what) = two {
            self.broken("at_most_one_trusted_leader", what);
        }
    }

    /// Whether an election has a leader.
    pub(super) fn is_led(&self, election: usize) -> bool {
        let inner = self.locked();
        let candidates = inner.candidates.get(&election).into_iter().flatten();
        candidates.filter(|(computer, _)| !computer.is_over()).any(|(_, elector)| elector.is_leader())
    }

    /// Checks that tokens grow strictly.
    pub(super) fn elected(&self, election: usize, who: &str, token: Token) {
        let last = {
            let inner = &mut *self.locked();
            let last = inner.tokens.insert(election, (token, who.to_owned()));
            match &last {
                // The client continues in the same term.
                Some((before, whom)) if *before == token && whom == who => return,
                _ => inner.stats.elected += 1,
            }
            last
        };
        self.note(|| format!("{who} leads e{election} under {token}"));
        if let Some((before, whom)) = last.filter(|(before, _)| *before >= token) {
            let what = format!("{who} was granted {token} after {whom} was granted {before}");
            self.broken("tokens_only_grow", what);
        }
    }

    /// The greatest token of a confirmed write so far.
    pub(super) fn fenced_by_now(&self, election: usize) -> Option<Token> {
        self.locked().fenced.get(&election).copied()
    }

    /// Records a confirmed write under a token. `before` is the greatest token of a confirmed write when this write
    /// started.
    pub(super) fn fenced(&self, election: usize, token: Token, before: Option<Token>) {
        {
            let inner = &mut *self.locked();
            inner.stats.fenced += 1;
            let most = inner.fenced.entry(election).or_insert(token);
            *most = token.max(*most);
        }
        if before.is_some_and(|before| before > token) {
            self.broken(
                "no_stale_write_accepted",
                format!("{token} wrote to e{election} after {before:?} had"),
            );
        }
    }

    /// Sets the members that have no majority from now on; `None` if all have one.
    pub(super) fn set_minority(&self, members: Option<BTreeSet<u64>>) {
        let now = self.time.now();
        self.locked().minority = members.filter(|members| !members.is_empty()).map(|members| (now, members));
    }

    /// Records whether a member responded to a call on its own machine. Members without a majority must not respond.
    pub(super) fn record_request(&self, node: u64, begun: u64, answered: bool) {
        let wrong = {
            let inner = &mut *self.locked();
            let minority = inner.minority.as_ref();
            let cut_off = minority.is_some_and(|(since, all)| *since <= begun && all.contains(&node));
            inner.stats.refused += u64::from(cut_off && !answered);
            cut_off && answered
        };
        if wrong {
            let what = format!("node {node} responded to a request sent at {} ms", begun / 1_000_000);
            self.broken("the_minority_answers_nothing", what);
        }
    }

    /// Records the start of a write or read. Its outcome is unknown until it is reported, also if its machine ends.
    pub(super) fn begins(&self, who: &str, key: &str, value: Option<String>) -> usize {
        let (begun, is_write) = (self.time.now(), value.is_some());
        let inner = &mut *self.locked();
        inner.stats.writes_unknown += u64::from(is_write);
        inner.ops.push(HistoryOp { who: who.into(), key: key.into(), value, is_write, begun, done: None });
        inner.ops.len() - 1
    }

    /// Records that the write was confirmed.
    pub(super) fn wrote(&self, op: usize) {
        let done = Some(self.time.now());
        let inner = &mut *self.locked();
        (inner.stats.writes, inner.stats.writes_unknown) =
            (inner.stats.writes + 1, inner.stats.writes_unknown - 1);
        inner.ops[op].done = done;
    }

    /// Records that the read returned this value.
    pub(super) fn read(&self, op: usize, value: Option<String>) {
        let done = Some(self.time.now());
        let inner = &mut *self.locked();
        inner.stats.reads += 1;
        (inner.ops[op].value, inner.ops[op].done) = (value, done);
    }

    /// Checks that no confirmed write is lost and no read is stale.
    pub(super) fn history(&self) {
        let checked = history::check(&self.locked().ops);
        if let Err(what) = checked {
            self.broken("reads_are_linearizable", what);
        }
    }

    fn locked(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The member that an entry registers, and its number of starts.
fn registration(entry: &[u8]) -> Option<(u64, u64)> {
    let entry = std::str::from_utf8(entry).ok().filter(|entry| entry.contains("\"register\""))?;
    let entry: serde_json::Value = serde_json::from_str(entry).ok()?;
    let register = entry.pointer("/payload/Normal/change/register")?;
    Some((register.get(0)?.as_u64()?, register.get(1)?.get("started")?.as_u64()?))
}
