//! What this process is doing in one election.

use crate::lease::Stand;
use crate::port::{AskKind, ElectionView, Via};
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
    pub(super) fn new(stand: Stand) -> Self {
        Campaign {
            stand,
            phase: Phase::Following,
            standing: false,
            withdrawing: false,
            touched: 0,
            view: None,
            released_by: None,
            free: Vec::new(),
            hold_off: Moment::ZERO,
            preempted: None,
        }
    }
}
