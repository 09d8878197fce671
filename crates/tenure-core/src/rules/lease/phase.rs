//! State of this process in one election.

use crate::port::{CandidateView, ElectionView, LeaderRequestKind, StartReason};
use crate::rules::lease::CandidateOptions;
use crate::{BootInstant, SessionId, Token};

/// The campaign of this process in one election.
#[derive(Clone, Debug)]
pub(super) struct Campaign {
    pub(super) options: CandidateOptions,
    pub(super) phase: CampaignPhase,
    /// Whether the store has this candidate.
    pub(super) joined: bool,
    /// Whether the campaign is being withdrawn.
    pub(super) withdrawing: bool,
    /// Options of the campaign that starts after the current one has left.
    pub(super) again: Option<CandidateOptions>,
    /// Step of the machine at which a command about this election was last sent or answered. An observation requested
    /// before that step is outdated; it could show a lease that was just released as still held.
    pub(super) touched: u64,
    pub(super) view: Option<ElectionView>,
    /// Session that released the free lease; it does not contend for it.
    pub(super) released_by: Option<SessionId>,
    /// Since when each slot was observed free, and under which token.
    pub(super) free: Vec<FreeSlot>,
    /// No take before this instant; set after a resignation or a failed take.
    pub(super) hold_off: BootInstant,
    /// Token of the term that this candidate asked to release, and the time of the request.
    pub(super) preempted: Option<(Token, BootInstant)>,
}

/// A slot that may be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FreeSlot {
    pub(super) slot: u32,
    pub(super) token: Token,
    pub(super) since: BootInstant,
    /// A random number drawn once, so that repeated calculations of the delay give the same result.
    pub(super) draw: u64,
}

/// The phase of a campaign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CampaignPhase {
    /// Another candidate leads, or no candidate does.
    Following,
    /// A take is in progress.
    Taking,
    /// This process leads while its trust lasts. `request` is a pending request to finish.
    Leading { term: HeldLease, request: Option<LeaderRequestKind> },
    /// Leadership is lost and the work has not ended yet. `held` is the lease to release afterwards.
    Ending { held: Option<HeldLease> },
    /// The work has ended and the lease is being released; repeated until the store confirms it.
    Releasing { held: HeldLease, successor: Option<SessionId>, start_reason: StartReason },
    /// The campaign is withdrawn, holds no lease and is leaving the election.
    Leaving,
}

/// A lease held by a session of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeldLease {
    pub(super) slot: u32,
    pub(super) token: Token,
    pub(super) session: SessionId,
}

impl Campaign {
    /// Whether the stored candidate has the options of this campaign.
    pub(super) fn is_stored_as(&self, candidate: &CandidateView) -> bool {
        let CandidateOptions { name: id, priority, observer, capabilities, .. } = &self.options;
        (id, *priority, *observer, capabilities)
            == (&candidate.name, candidate.priority, candidate.observer, &candidate.capabilities)
    }

    /// Starts a campaign at this step of the machine; observations requested earlier are outdated.
    pub(super) fn new(options: CandidateOptions, step: u64) -> Self {
        Campaign {
            options,
            phase: CampaignPhase::Following,
            joined: false,
            withdrawing: false,
            again: None,
            touched: step,
            view: None,
            released_by: None,
            free: Vec::new(),
            hold_off: BootInstant::ZERO,
            preempted: None,
        }
    }
}
