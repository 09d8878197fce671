//! What must always be true, and who is asked about it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::backend::raft::Status;
use tenure::{Elector, Token};

use super::computer::Computer;
use super::history::{self, Deed};
use super::stats::RaftStats;
use super::time::Time;
use crate::sim::failure::Diary;
use crate::sim::invariants::Violation;

/// Sees everything, and takes no part. Clones share it.
#[derive(Clone)]
pub(super) struct Oracle {
    pub(super) time: Time,
    inner: Arc<Mutex<Inner>>,
}

/// Who stands, and on which computer.
type Standing = (Arc<Computer>, Arc<Elector>);

struct Inner {
    violation: Option<(Violation, Duration)>,
    /// What was applied at each index, and where first.
    entries: BTreeMap<u64, (u64, u64)>,
    /// Which of its runs each member has registered.
    registered: BTreeMap<u64, u64>,
    /// Who led the cluster, and in which term.
    leaders: BTreeSet<(u64, u64)>,
    /// Who stands for each election, and where.
    candidates: BTreeMap<usize, Vec<Standing>>,
    /// The last token of each election, and whose it was.
    tokens: BTreeMap<usize, (Token, String)>,
    /// The greatest token under which a write was confirmed.
    fenced: BTreeMap<usize, Token>,
    deeds: Vec<Deed>,
    /// Members that can reach no majority, and since when.
    minority: Option<(u64, BTreeSet<u64>)>,
    stats: RaftStats,
    diary: Diary,
}

impl Oracle {
    pub(super) fn new(time: &Time) -> Oracle {
        let inner = Inner {
            violation: None,
            entries: BTreeMap::new(),
            registered: BTreeMap::new(),
            leaders: BTreeSet::new(),
            candidates: BTreeMap::new(),
            tokens: BTreeMap::new(),
            fenced: BTreeMap::new(),
            deeds: Vec::new(),
            minority: None,
            stats: RaftStats { days: 1, ..RaftStats::default() },
            diary: Diary::new(true),
        };
        Oracle { time: time.clone(), inner: Arc::new(Mutex::new(inner)) }
    }

    pub(super) fn note(&self, line: impl FnOnce() -> String) {
        let now = self.time.now();
        self.locked().diary.note(now, line);
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

    /// What was broken, what happened, and the last steps.
    pub(super) fn verdict(&self) -> (Option<(Violation, Duration)>, RaftStats, Vec<String>) {
        let mut inner = self.locked();
        let lines = std::mem::take(&mut inner.diary).into_lines();
        (inner.violation.clone(), inner.stats.clone(), lines)
    }

    /// Logs agree: what one member has applied at an index, no other applies otherwise.
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
                format!("node {other} has applied something else at {index} than node {node}: {entry}"),
            );
        }
    }

    /// How often a member was started, as far as is agreed on.
    pub(super) fn registered(&self, node: u64) -> u64 {
        self.locked().registered.get(&node).copied().unwrap_or(0)
    }

    /// Who leads the cluster. In openraft a greater number may follow a smaller one in the same term, so who led is told by both.
    pub(super) fn status(&self, status: &Status) {
        if status.leader == Some(status.node) {
            let inner = &mut *self.locked();
            inner.stats.leaders += u64::from(inner.leaders.insert((status.term, status.node)));
        }
    }

    pub(super) fn stands(&self, election: usize, computer: Arc<Computer>, elector: Arc<Elector>) {
        let inner = &mut *self.locked();
        let all = inner.candidates.entry(election).or_default();
        all.retain(|(computer, _)| !computer.is_over());
        all.push((computer, elector));
    }

    /// At most one may trust its lease. Beliefs begin at a step and end by themselves as clocks go on: so this is asked whenever time goes on.
    pub(super) fn believers(&self) {
        let two = {
            let inner = self.locked();
            inner.candidates.iter().find_map(|(election, candidates)| {
                let believes = |(computer, elector): &&(Arc<Computer>, Arc<Elector>)| {
                    !computer.is_over() && elector.is_leader()
                };
                let held = candidates.iter().filter(believes).count();
                (held > 1).then(|| format!("{held} clients believe that they lead e{election}"))
            })
        };
        if let Some(what) = two {
            self.broken("at_most_one_believes", what);
        }
    }

    /// Whether somebody leads an election.
    pub(super) fn is_led(&self, election: usize) -> bool {
        let inner = self.locked();
        let candidates = inner.candidates.get(&election).into_iter().flatten();
        candidates.filter(|(computer, _)| !computer.is_over()).any(|(_, elector)| elector.is_leader())
    }

    /// Tokens grow strictly.
    pub(super) fn elected(&self, election: usize, who: &str, token: Token) {
        let last = {
            let inner = &mut *self.locked();
            let last = inner.tokens.insert(election, (token, who.to_owned()));
            match &last {
                // It worked for a while, and goes on in the same term.
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

    /// The greatest token under which a write was confirmed by now.
    pub(super) fn fenced_by_now(&self, election: usize) -> Option<Token> {
        self.locked().fenced.get(&election).copied()
    }

    /// A write under a token was confirmed, that was begun when others had been confirmed under `before`.
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

    /// These members can reach no majority from now on; or all can again.
    pub(super) fn set_minority(&self, members: Option<BTreeSet<u64>>) {
        let now = self.time.now();
        self.locked().minority = members.filter(|members| !members.is_empty()).map(|members| (now, members));
    }

    /// Somebody asked a member, on its own machine, and was answered or not. The minority answers nothing.
    pub(super) fn asked(&self, node: u64, begun: u64, answered: bool) {
        let wrong = {
            let inner = &mut *self.locked();
            let minority = inner.minority.as_ref();
            let cut_off = minority.is_some_and(|(since, all)| *since <= begun && all.contains(&node));
            inner.stats.refused += u64::from(cut_off && !answered);
            cut_off && answered
        };
        if wrong {
            let what = format!("node {node} has answered what it was asked at {} ms", begun / 1_000_000);
            self.broken("the_minority_answers_nothing", what);
        }
    }

    /// Somebody begins to write or read. Until it is told otherwise, nobody knows whether it was done: also if its machine ends.
    pub(super) fn begins(&self, who: &str, key: &str, value: Option<String>) -> usize {
        let (begun, is_write) = (self.time.now(), value.is_some());
        let inner = &mut *self.locked();
        inner.stats.writes_unknown += u64::from(is_write);
        inner.deeds.push(Deed { who: who.into(), key: key.into(), value, is_write, begun, done: None });
        inner.deeds.len() - 1
    }

    /// It was written.
    pub(super) fn wrote(&self, deed: usize) {
        let done = Some(self.time.now());
        let inner = &mut *self.locked();
        (inner.stats.writes, inner.stats.writes_unknown) =
            (inner.stats.writes + 1, inner.stats.writes_unknown - 1);
        inner.deeds[deed].done = done;
    }

    /// That was read.
    pub(super) fn read(&self, deed: usize, value: Option<String>) {
        let done = Some(self.time.now());
        let inner = &mut *self.locked();
        inner.stats.reads += 1;
        (inner.deeds[deed].value, inner.deeds[deed].done) = (value, done);
    }

    /// No write that was confirmed is lost, and nothing is read stale.
    pub(super) fn history(&self) {
        let checked = history::check(&self.locked().deeds);
        if let Err(what) = checked {
            self.broken("reads_are_linearizable", what);
        }
    }

    fn locked(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which member an entry registers, and how often that was started.
fn registration(entry: &[u8]) -> Option<(u64, u64)> {
    let entry = std::str::from_utf8(entry).ok().filter(|entry| entry.contains("\"register\""))?;
    let entry: serde_json::Value = serde_json::from_str(entry).ok()?;
    let register = entry.pointer("/payload/Normal/change/register")?;
    Some((register.get(0)?.as_u64()?, register.get(1)?.get("started")?.as_u64()?))
}
