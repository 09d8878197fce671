//! What must be true of the logs and tables, whatever was broken meanwhile.
//!
//! A *term* is one process's belief under one token: from the first sample in which `is_leader()` was true to the last.
//! A call that returned true compared the clock somewhere between the time before it and the time after it, so the term
//! surely lasted from the first sample's *after* to the last sample's *before*: an overlap found here is a real one, and
//! no process that was stopped within a call raises a false alarm. Everything here is a pure function of what was read.

use std::collections::BTreeMap;

use crate::log::{Kind, Record};

/// The lease of one slot of one election.
pub(crate) type Lease = (u8, u16);

/// One process's belief under one token.
#[derive(Clone, Debug)]
pub(crate) struct Term {
    /// Which process: each start of a worker is another.
    pub(crate) process: usize,
    pub(crate) worker: usize,
    pub(crate) lease: Lease,
    pub(crate) token: u64,
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
}

/// The terms in one process's log. A term that was doubted and believed again is two, and a violation.
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
            Kind::Doubts => terms.extend(open.remove(&lease)),
            _ => {}
        }
    }
    terms.extend(open.into_values());
    terms
}

/// Terms of one lease in the order in which they began.
pub(crate) fn by_lease(terms: &[Term]) -> BTreeMap<Lease, Vec<Term>> {
    let mut leases: BTreeMap<Lease, Vec<Term>> = BTreeMap::new();
    for term in terms {
        leases.entry(term.lease).or_default().push(term.clone());
    }
    leases.values_mut().for_each(|terms| terms.sort_by_key(|term| term.from_ns));
    leases
}

/// Two processes believed in the same lease at the same time, for this long.
#[derive(Clone, Debug)]
pub(crate) struct Overlap {
    pub(crate) lease: Lease,
    pub(crate) ns: u64,
    pub(crate) what: String,
}

/// Every pair of terms of different processes that overlaps.
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

/// Tokens must strictly grow from term to term of a lease; so a term that ended never comes back either.
pub(crate) fn tokens_that_did_not_grow(terms: &[Term]) -> Vec<String> {
    let mut found = Vec::new();
    for (lease, terms) in by_lease(terms) {
        for pair in terms.windows(2).filter(|pair| pair[1].token <= pair[0].token) {
            let token = tenure::Token::from_u64;
            found.push(format!(
                "{lease:?}: worker {} believed under {} after worker {} had under {}",
                pair[1].worker,
                token(pair[1].token),
                pair[0].worker,
                token(pair[0].token)
            ));
        }
    }
    found
}

/// Rows in commit order whose token is lower than one before, per lease: stale writes that were accepted.
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

/// Something that was broken, and when.
#[derive(Clone, Debug)]
pub(crate) struct Injected {
    pub(crate) name: &'static str,
    /// Whom it hit; everybody if nobody in particular.
    pub(crate) worker: Option<usize>,
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
}

/// How long a lease was without a believer, and after which fault.
#[derive(Clone, Debug)]
pub(crate) struct Gap {
    pub(crate) after: &'static str,
    pub(crate) ns: u64,
}

/// The latest fault that hit this worker, or everybody, before it lost something.
pub(crate) fn to_blame(
    faults: &[Injected],
    worker: usize,
    lost_ns: u64,
    lease_ns: u64,
) -> Option<&'static str> {
    let hit = |it: &&Injected| it.worker.is_none_or(|hit| hit == worker);
    let before = |it: &&Injected| it.from_ns <= lost_ns + 50_000_000 && lost_ns <= it.to_ns + lease_ns;
    Some(faults.iter().filter(hit).filter(before).max_by_key(|it| it.from_ns)?.name)
}

/// The gaps between terms, each put down to what is to blame for the loss.
pub(crate) fn gaps(terms: &[Term], faults: &[Injected], lease_ns: u64) -> Vec<Gap> {
    let mut gaps = Vec::new();
    for terms in by_lease(terms).values() {
        for pair in terms.windows(2) {
            let (lost_ns, led) = (pair[0].to_ns, pair[0].worker);
            let after = to_blame(faults, led, lost_ns, lease_ns).unwrap_or("hand-over");
            gaps.push(Gap { after, ns: pair[1].from_ns.saturating_sub(lost_ns) });
        }
    }
    gaps
}

/// How long leases were believed in, and how long they could have been: from the first belief to the end.
pub(crate) fn led_and_total(terms: &[Term], end_ns: u64) -> (u64, u64) {
    let (mut led, mut total) = (0, 0);
    for terms in by_lease(terms).values() {
        led += terms.iter().map(|term| term.to_ns - term.from_ns).sum::<u64>();
        total += end_ns.saturating_sub(terms.first().map_or(end_ns, |term| term.from_ns));
    }
    (led.min(total), total)
}
