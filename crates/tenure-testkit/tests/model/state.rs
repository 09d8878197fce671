//! A state of the model: a store, its standby, the nodes and the messages on the wire.
//!
//! No state has an absolute time. A deadline is stored as the remaining time, a wait as the elapsed time, and both
//! are bounded, so the state space is finite although time is not.

use crate::rules::{Bug, EPOCH_BIT, LEASE, Rules};

pub(crate) const MAX_NODES: usize = 3;
pub(crate) const MAX_SESSIONS: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Life {
    Unknown,
    Live,
    Expired,
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Session {
    pub(crate) life: Life,
    pub(crate) beat: u8,
}

/// A token, and the number of its grant in the order of all grants, which no store knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Grant {
    pub(crate) token: u8,
    pub(crate) serial: u8,
}

impl Grant {
    pub(crate) fn epoch(self) -> u8 {
        self.token >> EPOCH_BIT
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    pub(crate) epoch: u8,
    pub(crate) lease: Grant,
    pub(crate) holder: Option<u8>,
    pub(crate) sessions: [Session; MAX_SESSIONS],
}

impl Store {
    pub(crate) fn is_live(&self, session: u8) -> bool {
        self.sessions[usize::from(session)].life == Life::Live
    }
}

/// The result of one read of the lease and its holder's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct View {
    pub(crate) epoch: u8,
    pub(crate) lease: Grant,
    pub(crate) holder: Option<u8>,
    pub(crate) live: bool,
    pub(crate) beat: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Request {
    Beat,
    Observe,
    /// Take the lease as observed; with `expire`, its live session is expired in the same step.
    Take {
        view: View,
        expire: bool,
        remembered: u8,
    },
    Release {
        token: u8,
    },
    End,
}

/// A request on the wire, with the session that sent it, whose process may be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Envelope {
    pub(crate) session: u8,
    pub(crate) request: Request,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    /// One row changed.
    Done,
    /// No row changed: the condition did not hold.
    Refused,
    Observed(View),
    Granted(Grant),
}

/// A request whose response its node waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flight {
    pub(crate) envelope: Envelope,
    /// How long ago the clock was read before sending. Counted only where a rule uses it.
    pub(crate) age: u8,
    /// Once served: the epoch it was served in, and the response.
    pub(crate) answer: Option<(u8, Answer)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub(crate) session: u8,
    /// The epoch of the last response.
    pub(crate) epoch: u8,
    /// The grant that this node knows.
    pub(crate) held: Option<Grant>,
    /// Remaining trust from the last confirmed heartbeat.
    pub(crate) trust: u8,
    pub(crate) working: bool,
    pub(crate) view: Option<View>,
    /// How long the observation was unchanged, counted from when its first read returned.
    pub(crate) watched: u8,
    pub(crate) flight: Option<Flight>,
    /// A request whose response is no longer awaited and that may still arrive.
    pub(crate) orphan: Option<Envelope>,
    /// An open transaction that has passed the guard.
    pub(crate) transaction: Option<Grant>,
    /// A write on its way to another database.
    pub(crate) write: Option<Grant>,
    /// A token counter in the process, used by one bug only.
    pub(crate) remembered: u8,
}

impl Node {
    pub(crate) fn new(session: u8) -> Self {
        Self {
            session,
            epoch: 0,
            held: None,
            trust: 0,
            working: false,
            view: None,
            watched: 0,
            flight: None,
            orphan: None,
            transaction: None,
            write: None,
            remembered: 0,
        }
    }

    /// `is_leader()`: a comparison at every call.
    pub(crate) fn believes(&self, rules: &Rules) -> bool {
        self.held.is_some() && (self.trust > 0 || rules.has_bug(Bug::TrustIsAFlag))
    }

    pub(crate) fn lose(&mut self) {
        self.held = None;
        self.working = false;
    }

    /// Advances local time; work ends with its trust.
    pub(crate) fn advance(&mut self, rules: &Rules, rate: u8) {
        let (deadline, wait) = rules.advance(rate);
        let believed = self.believes(rules);
        self.trust = self.trust.saturating_sub(deadline);
        if believed && !self.believes(rules) {
            self.working = false;
        }
        if self.view.is_some_and(|view| !view.is_free_for(self.session, rules)) {
            self.watched = (self.watched + wait).min(LEASE);
        }
        if let Some(flight) = &mut self.flight {
            match flight.envelope.request {
                Request::Beat => flight.age = (flight.age + deadline).min(rules.trust()),
                Request::Observe if rules.has_bug(Bug::ExpiryCountedFromBeforeRead) => {
                    flight.age = (flight.age + wait).min(LEASE);
                }
                _ => {}
            }
        }
    }
}

impl View {
    /// Whether this lease may be taken without waiting: it has no holder or a holder that is not live, or it is the
    /// candidate's own from a grant without a response.
    pub(crate) fn is_free_for(&self, session: u8, rules: &Rules) -> bool {
        let granted_since = self.lease.epoch() == self.epoch || !rules.promotion_waited_out;
        granted_since && (self.holder.is_none() || !self.live || self.holder == Some(session))
    }

    /// Whether the observed state is current, or may become current.
    fn may_hold(&self, store: &Store, reader: u8) -> bool {
        match self.holder {
            Some(holder) if self.live && holder != reader => {
                store.is_live(holder) && store.sessions[usize::from(holder)].beat <= self.beat
            }
            _ => store.lease.token == self.lease.token,
        }
    }
}

/// Violations, recorded once they occurred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Harm {
    pub(crate) token_did_not_grow: bool,
    pub(crate) stale_write_accepted: bool,
    pub(crate) commit_without_lease: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) store: Store,
    /// Data that an asynchronous standby has received, once it lags.
    pub(crate) standby: Option<Store>,
    pub(crate) nodes: [Node; MAX_NODES],
    pub(crate) next_session: u8,
    /// The last grant in any epoch.
    pub(crate) granted: Grant,
    /// The last write that the other database accepted.
    pub(crate) accepted: Grant,
    pub(crate) harm: Harm,
}

impl World {
    pub(crate) fn new(rules: &Rules) -> Self {
        let nothing = Grant { token: 0, serial: 0 };
        let mut sessions = [Session { life: Life::Unknown, beat: 0 }; MAX_SESSIONS];
        let mut nodes = [Node::new(0); MAX_NODES];
        for n in 0..rules.nodes {
            sessions[n].life = Life::Live;
            if !rules.has_bug(Bug::SameIdentityEverywhere) {
                nodes[n].session = n as u8;
            }
        }
        Self {
            store: Store { epoch: 0, lease: nothing, holder: None, sessions },
            standby: None,
            nodes,
            next_session: rules.nodes as u8,
            granted: nothing,
            accepted: nothing,
            harm: Harm::default(),
        }
    }

    /// Renumbers heartbeats, which otherwise grow without bound. Heartbeats are only compared for equality, so per
    /// session the values in use become 1, 2, … in order, and older values than any in a store become 0.
    pub(crate) fn rename_beats(&mut self) {
        for id in 0..self.next_session {
            let at = usize::from(id);
            let now = self.store.sessions[at].beat;
            let oldest = self.standby.map_or(now, |standby| standby.sessions[at].beat.min(now));
            let mut used = 0_u32;
            self.each_beat(id, |beat| used |= u32::from(*beat >= oldest) << *beat);
            // The new number of a heartbeat is the number of values in use up to it.
            self.each_beat(id, |beat| *beat = (used & ((2 << *beat) - 1)).count_ones() as u8);
        }
    }

    /// Removes what cannot have an effect any more: a late request whose comparison always fails, and an observation
    /// of an outdated heartbeat. Tokens and heartbeats never return, except from a standby.
    pub(crate) fn forget_hopeless(&mut self, rules: &Rules) {
        let compared = [
            Bug::TokenFromMemoryOnly,
            Bug::TokenForgetsEpoch,
            Bug::TakeWithoutCas,
            Bug::ExpireWithoutHeartbeatCas,
        ];
        if compared.into_iter().any(|bug| rules.has_bug(bug)) {
            return;
        }
        let stores = [Some(self.store), self.standby];
        let possible = |test: &dyn Fn(&Store) -> bool| stores.iter().flatten().any(test);
        for node in &mut self.nodes {
            node.orphan = node.orphan.filter(|orphan| match orphan.request {
                Request::Take { view, .. } => possible(&|store| store.lease.token == view.lease.token),
                Request::Release { token } => possible(&|store| store.lease.token == token),
                Request::Beat | Request::Observe | Request::End => {
                    possible(&|store| store.is_live(orphan.session))
                }
            });
            let session = node.session;
            if node.view.is_some_and(|view| !possible(&|store| view.may_hold(store, session))) {
                node.view = None;
                node.watched = 0;
            }
        }
    }

    fn each_beat(&mut self, id: u8, mut act: impl FnMut(&mut u8)) {
        act(&mut self.store.sessions[usize::from(id)].beat);
        if let Some(standby) = &mut self.standby {
            act(&mut standby.sessions[usize::from(id)].beat);
        }
        let mut see = |view: &mut View| {
            if view.holder == Some(id) {
                act(&mut view.beat);
            }
        };
        for node in &mut self.nodes {
            if let Some(view) = &mut node.view {
                see(view);
            }
            if let Some(Envelope { request: Request::Take { view, .. }, .. }) = &mut node.orphan {
                see(view);
            }
            if let Some(flight) = &mut node.flight {
                if let Request::Take { view, .. } = &mut flight.envelope.request {
                    see(view);
                }
                if let Some((_, Answer::Observed(view))) = &mut flight.answer {
                    see(view);
                }
            }
        }
    }
}
