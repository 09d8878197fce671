//! What this process is doing in one election.

use crate::lease::Stand;
use crate::port::{AskKind, CandidateView, ElectionView, Via};
use crate::{Moment, SessionId, Token};

/// One election in which this process stands.
#[derive(Clone, Debug)]
pub(super) struct Campaign {
    pub(super) stand: Stand,
    pub(super) phase: Phase,
    /// Whether the store has this candidate.
    pub(super) standing: bool,
    /// Whether the process wants out.
    pub(super) withdrawing: bool,
    /// How it will stand again once it has left.
    pub(super) again: Option<Stand>,
    /// A command about this election was sent or answered at this step of the machine. An observation asked for before
    /// that shows the past: believing it would resurrect a lease that was just released.
    pub(super) touched: u64,
    pub(super) view: Option<ElectionView>,
    /// Who released the lease that is now free: it does not contend for it.
    pub(super) released_by: Option<SessionId>,
    /// Since when each slot was seen free, under which token.
    pub(super) free: Vec<FreeSlot>,
    /// No take before this: after resigning, or after one that failed.
    pub(super) hold_off: Moment,
    /// The term that was asked to make way, and when.
    pub(super) preempted: Option<(Token, Moment)>,
}

/// A slot that may be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FreeSlot {
    pub(super) slot: u32,
    pub(super) token: Token,
    pub(super) since: Moment,
    /// A random number drawn once, so that repeated reckonings of one turn agree.
    pub(super) draw: u64,
}

/// Where a campaign stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Somebody else leads, or nobody.
    Following,
    /// A take is under way.
    Taking,
    /// This process leads, as long as it is trusted. `asked`: it is to finish.
    Leading { term: Held, asked: Option<AskKind> },
    /// Leadership is lost, and the work has not yet ended. `held`: what is to be given back afterwards.
    Ending { held: Option<Held> },
    /// The work has ended and the lease is being given back, again and again until the store confirms it.
    Releasing { held: Held, successor: Option<SessionId>, via: Via },
    /// The process wants out, holds nothing, and the store is being told.
    Leaving,
}

/// A lease held by a session of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) slot: u32,
    pub(super) token: Token,
    pub(super) session: SessionId,
}

impl Campaign {
    /// Whether the store has this candidate as it wants to stand.
    pub(super) fn stands_as(&self, candidate: &CandidateView) -> bool {
        let Stand { id, priority, observer, capabilities, .. } = &self.stand;
        (id, *priority, *observer, capabilities)
            == (&candidate.id, candidate.priority, candidate.observer, &candidate.capabilities)
    }

    /// A campaign that begins at this step of the machine: observations asked for earlier show the past.
    pub(super) fn new(stand: Stand, step: u64) -> Self {
        Campaign {
            stand,
            phase: Phase::Following,
            standing: false,
            withdrawing: false,
            again: None,
            touched: step,
            view: None,
            released_by: None,
            free: Vec::new(),
            hold_off: Moment::ZERO,
            preempted: None,
        }
    }
}
