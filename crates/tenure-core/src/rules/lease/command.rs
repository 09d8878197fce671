//! Inputs and outputs of the lease machine.

use std::collections::BTreeMap;

use crate::port::{
    Candidacy, ElectionView, ElectionsObservation, ExpireSessionRequest, HeartbeatResponse,
    JoinElectionResponse, LeaderRequest, LeaderRequestKind, Notification, ObserveScope, OpenSessionRequest,
    ReleaseLeaseRequest, StoreError, TakeLeaseRequest,
};
use crate::{BootInstant, ElectionKey, SessionId, Token};

/// Id that relates a response to its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub(super) u64);

/// A store call that the driver must make. Every command except [`StoreCommand::Watch`] needs a
/// [`LeaseInput::Response`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreCommand {
    /// [`ElectionStore::open_session`](crate::port::ElectionStore::open_session)
    Open(OpenSessionRequest),
    /// [`ElectionStore::heartbeat`](crate::port::ElectionStore::heartbeat)
    Heartbeat(SessionId),
    /// [`ElectionStore::end_session`](crate::port::ElectionStore::end_session)
    End(SessionId),
    /// [`ElectionStore::join_election`](crate::port::ElectionStore::join_election)
    Join(Candidacy),
    /// [`ElectionStore::leave_election`](crate::port::ElectionStore::leave_election)
    Leave(SessionId, ElectionKey),
    /// [`ElectionStore::observe`](crate::port::ElectionStore::observe)
    Observe(SessionId, ObserveScope),
    /// [`ElectionStore::take_lease`](crate::port::ElectionStore::take_lease)
    Take(TakeLeaseRequest),
    /// [`ElectionStore::release_lease`](crate::port::ElectionStore::release_lease)
    Release(ReleaseLeaseRequest),
    /// [`ElectionStore::expire_session`](crate::port::ElectionStore::expire_session)
    Expire(ExpireSessionRequest),
    /// [`ElectionStore::request_leader`](crate::port::ElectionStore::request_leader)
    RequestLeader(LeaderRequest),
    /// [`ElectionStore::watch_sessions`](crate::port::ElectionStore::watch_sessions)
    Watch(Vec<SessionId>),
}

/// The store's response. An error, including a timeout, means that the outcome is *unknown*.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreResponse {
    /// Response to [`StoreCommand::Open`] and [`StoreCommand::Heartbeat`].
    Heartbeat(Result<HeartbeatResponse, StoreError>),
    /// Response to [`StoreCommand::Join`].
    Joined(Result<JoinElectionResponse, StoreError>),
    /// Response to [`StoreCommand::Observe`].
    Observed(Result<ElectionsObservation, StoreError>),
    /// Response to [`StoreCommand::Take`].
    Taken(Result<Option<Token>, StoreError>),
    /// Response to [`StoreCommand::End`], [`StoreCommand::Leave`], [`StoreCommand::Release`] and
    /// [`StoreCommand::Expire`].
    Done(Result<(), StoreError>),
    /// Response to [`StoreCommand::RequestLeader`].
    LeaderRequested(Result<bool, StoreError>),
}

/// Options of this process as a candidate in one election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidateOptions {
    /// Election to campaign in.
    pub election: ElectionKey,
    /// Display name of the candidate.
    pub name: String,
    /// Priority; the highest live candidate leads.
    pub priority: i32,
    /// Whether the candidate only observes and never leads.
    pub observer: bool,
    /// Capabilities of the candidate.
    pub capabilities: Vec<String>,
    /// Capabilities that a leader needs.
    pub required_capabilities: Vec<String>,
    /// Number of slots of the election.
    pub slots: u32,
    /// Free-form metadata for display.
    pub metadata: BTreeMap<String, String>,
}

impl CandidateOptions {
    /// Default options for an election with one slot.
    pub fn new(election: ElectionKey, id: impl Into<String>) -> Self {
        CandidateOptions {
            election,
            name: id.into(),
            priority: 0,
            observer: false,
            capabilities: Vec::new(),
            required_capabilities: Vec::new(),
            slots: 1,
            metadata: BTreeMap::new(),
        }
    }
}

/// An input of the lease machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseInput {
    /// Open the session.
    Start,
    /// Start to campaign in an election.
    Campaign(CandidateOptions),
    /// Stop the campaign. If the process leads, the driver ends the work and sends [`LeaseInput::Finished`].
    Withdraw(ElectionKey),
    /// Release leadership but remain a candidate. The driver ends the work and sends [`LeaseInput::Finished`].
    Resign(ElectionKey),
    /// All work of the current term has ended.
    Finished(ElectionKey),
    /// The store responded, or the call failed.
    Response {
        /// Command that was answered.
        id: CommandId,
        /// Clock reading from *before* the command was sent, so that a slow response does not extend trust.
        sent_at: BootInstant,
        /// The response.
        answer: StoreResponse,
    },
    /// The store sent a notification.
    Notification(Notification),
    /// Time has passed.
    Tick,
    /// End the session. All work has already ended.
    Stop,
}

/// An output of the lease machine that the process must handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseEvent {
    /// A session was opened.
    Opened(SessionId),
    /// The store confirmed the candidate.
    Joined(ElectionKey),
    /// The election has another number of slots than requested, so the process is not a candidate.
    Rejected {
        /// The election.
        election: ElectionKey,
        /// Number of slots of the election.
        slots: u32,
    },
    /// This process leads while its trust lasts.
    Elected {
        /// The election.
        election: ElectionKey,
        /// Slot number.
        slot: u32,
        /// Token of the term.
        token: Token,
    },
    /// The leader is asked to finish. It still leads; send [`LeaseInput::Finished`] when the work has ended.
    Requested {
        /// The election.
        election: ElectionKey,
        /// Requested action.
        kind: LeaderRequestKind,
    },
    /// Leadership was lost. The work must stop now; send [`LeaseInput::Finished`] when it has.
    Lost {
        /// The election.
        election: ElectionKey,
        /// Token of the lost term.
        token: Token,
        /// Reason of the loss.
        why: LossReason,
    },
    /// The lease was released.
    Released {
        /// The election.
        election: ElectionKey,
        /// Token under which the lease was held.
        token: Token,
    },
    /// The candidate left the election.
    Withdrawn(ElectionKey),
    /// The observed state of the election changed.
    Observed(ElectionView),
    /// A store call failed; the machine retries it.
    StoreFailed(StoreError),
    /// The session has ended; the machine does nothing more.
    Stopped,
}

/// Why leadership was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// No heartbeat was confirmed in time: the store was unavailable or this process was suspended.
    TrustExpired,
    /// The store reports that the session has ended.
    SessionEnded,
    /// The epoch of the store changed, so earlier grants may be lost.
    EpochChanged,
    /// The connection that the session depends on was lost.
    ConnectionLost,
    /// The lease was changed outside Tenure.
    EditedExternally,
}

impl LossReason {
    /// Description of the reason.
    pub fn as_str(self) -> &'static str {
        match self {
            LossReason::TrustExpired => "no heartbeat was confirmed in time",
            LossReason::SessionEnded => "the session expired",
            LossReason::EpochChanged => "the epoch of the store changed",
            LossReason::ConnectionLost => "the connection of the session was lost",
            LossReason::EditedExternally => "the lease was changed outside Tenure",
        }
    }
}
