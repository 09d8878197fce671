//! Requests of a node, and how it handles responses.

use crate::rules::{Bug, LEASE, Rules};
use crate::state::{Answer, Envelope, Flight, Node, Request, View};

/// All requests that this node may send now. It waits for one response at a time.
pub(crate) fn may_send(node: &Node, rules: &Rules) -> Vec<Request> {
    if node.flight.is_some() {
        return Vec::new();
    }
    let mut requests = Vec::new();
    if let Some(held) = node.held {
        requests.push(Request::Beat);
        let busy = node.transaction.is_some() || node.working;
        if !busy || rules.has_bug(Bug::ReleaseBeforeWorkEnded) {
            requests.push(Request::Release { token: held.token });
        }
    } else {
        requests.push(Request::Observe);
        if let Some(take) = node.view.and_then(|view| take(node, rules, view)) {
            // Earlier heartbeats of a candidate do not matter: trust from a later one lasts longer.
            requests.extend([Request::Beat, take]);
        }
    }
    requests
}

/// The takeover rule: at once if the lease is free, or after it was unchanged for a lease.
fn take(node: &Node, rules: &Rules, view: View) -> Option<Request> {
    let free = view.is_free_for(node.session, rules);
    let expire = view.live && view.holder != Some(node.session);
    let remembered = node.remembered;
    (free || node.watched >= LEASE).then_some(Request::Take { view, expire, remembered })
}

pub(crate) fn send(node: &mut Node, rules: &Rules, request: Request) {
    match request {
        Request::Take { .. } => forget_view(node),
        // It does not lead from here on, whatever happens to the request.
        Request::Release { .. } => {
            node.held = None;
            node.working &= rules.has_bug(Bug::ReleaseBeforeWorkEnded);
        }
        Request::Beat | Request::Observe | Request::End => {}
    }
    let envelope = Envelope { session: node.session, request };
    node.flight = Some(Flight { envelope, age: 0, answer: None });
}

/// A timeout: the outcome of the request is unknown, and it may still arrive. A late read does not matter.
pub(crate) fn give_up(node: &mut Node) {
    if let Some(Flight { envelope, answer: None, .. }) = node.flight.take()
        && envelope.request != Request::Observe
    {
        node.orphan = Some(envelope);
    }
}

/// A new process on the same machine. Only messages on the wire outlive the old one.
pub(crate) fn restart(node: &mut Node, session: u8, gracefully: bool) {
    let mut after = Node::new(session);
    after.epoch = node.epoch;
    let end = gracefully.then_some(Envelope { session: node.session, request: Request::End });
    give_up(node);
    after.orphan = end.or(node.orphan);
    after.write = node.write;
    *node = after;
}

/// Handles the response of the request in flight.
pub(crate) fn receive(node: &mut Node, rules: &Rules) {
    let Some(Flight { envelope, age, answer: Some((epoch, answer)) }) = node.flight.take() else { return };
    if epoch != node.epoch {
        node.epoch = epoch;
        if !rules.has_bug(Bug::HeartbeatIgnoresEpoch) {
            node.lose();
            node.trust = 0;
            forget_view(node);
        }
    }
    match (envelope.request, answer) {
        (Request::Beat, Answer::Done) => {
            let spent = if rules.has_bug(Bug::ClockReadAfterResponse) { 0 } else { age };
            node.trust = node.trust.max(rules.trust() - spent);
        }
        (Request::Beat, _) => {
            node.lose();
            node.trust = 0;
        }
        (_, Answer::Observed(view)) => see(node, rules, view, age),
        (_, Answer::Granted(grant)) => {
            node.held = Some(grant);
            node.remembered = if rules.has_bug(Bug::TokenFromMemoryOnly) { grant.token } else { 0 };
            if rules.has_bug(Bug::TakeExtendsTrust) {
                node.trust = rules.trust();
            }
        }
        _ => {}
    }
}

/// The wait starts when the first read has returned, and restarts with every change.
fn see(node: &mut Node, rules: &Rules, view: View, age: u8) {
    if rules.has_bug(Bug::AdoptsOwnLeaseAsFound) && view.holder == Some(node.session) && view.live {
        node.held = Some(view.lease);
        return forget_view(node);
    }
    // Releasing a lease and taking it again is no heartbeat: the same heartbeat continues the wait.
    let same = node.view.is_some_and(|before| {
        (before.epoch, before.holder, before.live, before.beat)
            == (view.epoch, view.holder, view.live, view.beat)
    });
    if !same {
        node.watched = if rules.has_bug(Bug::ExpiryCountedFromBeforeRead) { age } else { 0 };
    }
    node.view = Some(view);
}

fn forget_view(node: &mut Node) {
    node.view = None;
    node.watched = 0;
}
