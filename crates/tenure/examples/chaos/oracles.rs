//! Invariants of the logs and tables, independent of the injected faults.
//!
//! A *term* is the belief of one process under one token: from the first to the last sample in which `is_leader()` was
//! true. A call that returned true compared the clock between the time before it and the time after it, so the term
//! certainly lasted from the *after* of the first sample to the *before* of the last: every overlap found here is real,
//! and a process that was stopped within a call causes no false alarm. All functions are pure.

use std::collections::BTreeMap;

use crate::log::{Kind, Record};

/// The lease of one slot of one election.
pub(crate) type Lease = (u8, u16);

/// The belief of one process under one token.
#[derive(Clone, Debug)]
pub(crate) struct Term {
    /// Number of the process; each start of a worker is another process.
    pub(crate) process: usize,
    pub(crate) worker: usize,
    pub(crate) lease: Lease,
    pub(crate) token: u64,
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
}

/// Terms in the log of one process. A term that was interrupted and resumed counts as two, which is a violation.
pub(crate) fn terms(process: usize, worker: usize, records: &[Record]) -> Vec<Term> {
    let mut open: BTreeMap<Lease, Term> = BTreeMap::new();
    let mut terms = Vec::new();
    for record in records {
        let lease = (record.election, record.slot);
        match record.kind {
            Kind::Believes => match open.get_mut(&lease) {
                Some(term) if term.token == record.token => term.to_ns = term.to_ns.max(record.before),
                _ => {
                    let (token, from_ns) = (record.token, record.after);
                    let term = Term { process, worker, lease, token, from_ns, to_ns: from_ns };
                    terms.extend(open.insert(lease, term));
                }
            },
            Kind::StopsBelieving => terms.extend(open.remove(&lease)),
            _ => {}
        }
    }
    terms.extend(open.into_values());
    terms
}

/// Terms of each lease by start time.
pub(crate) fn by_lease(terms: &[Term]) -> BTreeMap<Lease, Vec<Term>> {
    let mut leases: BTreeMap<Lease, Vec<Term>> = BTreeMap::new();
    for term in terms {
        leases.entry(term.lease).or_default().push(term.clone());
    }
    leases.values_mut().for_each(|terms| terms.sort_by_key(|term| term.from_ns));
    leases
}

/// An overlap of two processes' belief in the same lease.
#[derive(Clone, Debug)]
pub(crate) struct Overlap {
    pub(crate) lease: Lease,
    pub(crate) ns: u64,
    pub(crate) what: String,
}

/// All overlapping pairs of terms of different processes.
pub(crate) fn overlaps(terms: &[Term]) -> Vec<Overlap> {
    let mut found = Vec::new();
    for (lease, terms) in by_lease(terms) {
        for (n, one) in terms.iter().enumerate() {
            for other in &terms[n + 1..] {
                let ns = one.to_ns.min(other.to_ns).saturating_sub(one.from_ns.max(other.from_ns));
                if ns > 0 && one.process != other.process {
                    let what = format!(
                        "worker {} under {} and worker {} under {}",
                        one.worker,
                        tenure::Token::from_u64(one.token),
                        other.worker,
                        tenure::Token::from_u64(other.token)
                    );
                    found.push(Overlap { lease, ns, what });
                }
            }
        }
    }
    found
}

/// Tokens must strictly increase from term to term of a lease, so an ended term must not resume either.
pub(crate) fn tokens_that_did_not_grow(terms: &[Term]) -> Vec<String> {
    let mut found = Vec::new();
    for (lease, terms) in by_lease(terms) {
        for pair in terms.windows(2).filter(|pair| pair[1].token <= pair[0].token) {
            let token = tenure::Token::from_u64;
            found.push(format!(
                "{lease:?}: worker {} believed under token {} after worker {} under token {}",
                pair[1].worker,
                token(pair[1].token),
                pair[0].worker,
                token(pair[0].token)
            ));
        }
    }
    found
}

/// Rows in commit order whose token is lower than an earlier one of the lease: accepted stale writes.
pub(crate) fn stale_rows(rows: &[(String, u64)]) -> Vec<String> {
    let mut highest: BTreeMap<&str, u64> = BTreeMap::new();
    let mut found = Vec::new();
    for (row, (lease, token)) in rows.iter().enumerate() {
        let highest = highest.entry(lease).or_default();
        if token < highest {
            let token = |it: u64| tenure::Token::from_u64(it);
            found.push(format!("row {row} of {lease}: {} after {}", token(rows[row].1), token(*highest)));
        }
        *highest = (*highest).max(*token);
    }
    found
}

/// An injected fault and its time.
#[derive(Clone, Debug)]
pub(crate) struct Injected {
    pub(crate) name: &'static str,
    /// The affected worker; `None` means all.
    pub(crate) worker: Option<usize>,
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
}

/// Time in which no process believed that it led, and the fault that caused it.
#[derive(Clone, Debug)]
pub(crate) struct Gap {
    pub(crate) after: &'static str,
    pub(crate) ns: u64,
}

/// The latest fault that affected this worker, or all workers, before a loss.
pub(crate) fn cause_of(
    faults: &[Injected],
    worker: usize,
    lost_ns: u64,
    lease_ns: u64,
) -> Option<&'static str> {
    let hit = |it: &&Injected| it.worker.is_none_or(|hit| hit == worker);
    let before = |it: &&Injected| it.from_ns <= lost_ns + 50_000_000 && lost_ns <= it.to_ns + lease_ns;
    Some(faults.iter().filter(hit).filter(before).max_by_key(|it| it.from_ns)?.name)
}

/// Gaps between terms, with the fault that caused each.
pub(crate) fn gaps(terms: &[Term], faults: &[Injected], lease_ns: u64) -> Vec<Gap> {
    let mut gaps = Vec::new();
    for terms in by_lease(terms).values() {
        for pair in terms.windows(2) {
            let (lost_ns, led) = (pair[0].to_ns, pair[0].worker);
            let after = cause_of(faults, led, lost_ns, lease_ns).unwrap_or("handover");
            gaps.push(Gap { after, ns: pair[1].from_ns.saturating_sub(lost_ns) });
        }
    }
    gaps
}

/// Time in which a process believed that it led, and total time from the first belief to the end.
pub(crate) fn led_and_total(terms: &[Term], end_ns: u64) -> (u64, u64) {
    let (mut led, mut total) = (0, 0);
    for terms in by_lease(terms).values() {
        led += terms.iter().map(|term| term.to_ns - term.from_ns).sum::<u64>();
        total += end_ns.saturating_sub(terms.first().map_or(end_ns, |term| term.from_ns));
    }
    (led.min(total), total)
}
