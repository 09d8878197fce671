//! What goes into the machine and what comes out, as values.

use std::collections::BTreeMap;

use crate::port::{
    Ask, AskKind, Candidacy, ElectionView, Expire, Joined, NewSession, Observation, Pulse, Release, Scope,
    StoreError, Take, Wake,
};
use crate::{ElectionKey, Moment, SessionId, Token};

/// Which command an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub(super) u64);

/// A call that the driver must make to the store. All but [`Command::Watch`] are answered by [`Input::Answer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// [`Store::open`](crate::port::Store::open)
    Open(NewSession),
    /// [`Store::beat`](crate::port::Store::beat)
    Beat(SessionId),
    /// [`Store::end`](crate::port::Store::end)
    End(SessionId),
    /// [`Store::join`](crate::port::Store::join)
    Join(Candidacy),
    /// [`Store::leave`](crate::port::Store::leave)
    Leave(SessionId, ElectionKey),
    /// [`Store::observe`](crate::port::Store::observe)
    Observe(SessionId, Scope),
    /// [`Store::take`](crate::port::Store::take)
    Take(Take),
    /// [`Store::release`](crate::port::Store::release)
    Release(Release),
    /// [`Store::expire`](crate::port::Store::expire)
    Expire(Expire),
    /// [`Store::ask`](crate::port::Store::ask)
    Ask(Ask),
    /// [`Store::watch`](crate::port::Store::watch)
    Watch(Vec<SessionId>),
}

/// What the store said. An error, a timeout included, means *unknown*: it may or may not have happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To [`Command::Open`] and [`Command::Beat`].
    Pulse(Result<Pulse, StoreError>),
    /// To [`Command::Join`].
    Joined(Result<Joined, StoreError>),
    /// To [`Command::Observe`].
    Observed(Result<Observation, StoreError>),
    /// To [`Command::Take`].
    Taken(Result<Option<Token>, StoreError>),
    /// To [`Command::End`], [`Command::Leave`], [`Command::Release`] and [`Command::Expire`].
    Done(Result<(), StoreError>),
    /// To [`Command::Ask`].
    Asked(Result<bool, StoreError>),
}

/// How this process stands in an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stand {
    /// Which election.
    pub election: ElectionKey,
    /// What people call this candidate.
    pub id: String,
    /// Higher leads first.
    pub priority: i32,
    /// Watches, and never leads.
    pub observer: bool,
    /// What this candidate can do.
    pub capabilities: Vec<String>,
    /// What a leader must be able to do.
    pub requires: Vec<String>,
    /// How many may lead at once.
    pub slots: u32,
    /// What people want to know about it.
    pub metadata: BTreeMap<String, String>,
}

impl Stand {
    /// An ordinary candidate for the one place of `election`.
    pub fn new(election: ElectionKey, id: impl Into<String>) -> Self {
        Stand {
            election,
            id: id.into(),
            priority: 0,
            observer: false,
            capabilities: Vec::new(),
            requires: Vec::new(),
            slots: 1,
            metadata: BTreeMap::new(),
        }
    }
}

/// Something that happened to the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Open the session.
    Start,
    /// Stand for an election.
    Campaign(Stand),
    /// Stand no longer. If it leads, the driver ends the work and says [`Input::Finished`].
    Withdraw(ElectionKey),
    /// Step down and let others lead, but go on standing. The driver ends the work and says [`Input::Finished`].
    Resign(ElectionKey),
    /// The work under the current term has ended: nothing of it runs any more.
    Finished(ElectionKey),
    /// The store answered, or failed to.
    Answer {
        /// To what.
        id: CommandId,
        /// The clock as it was read *before* the command was sent. The answer's delay must not lengthen trust.
        sent_at: Moment,
        /// What it said.
        answer: Answer,
    },
    /// The store gave a hint.
    Wake(Wake),
    /// Time has passed.
    Tick,
    /// End the session. All work has ended already.
    Stop,
}

/// Something that the process should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A session lives.
    Opened(SessionId),
    /// The candidate stands in the store.
    Standing(ElectionKey),
    /// The election has another number of slots than this candidate asked for; it does not stand.
    Rejected {
        /// Which election.
        election: ElectionKey,
        /// Its number of slots.
        slots: u32,
    },
    /// This process leads, as long as it is trusted.
    Elected {
        /// Which election.
        election: ElectionKey,
        /// Which of its slots.
        slot: u32,
        /// Under which token.
        token: Token,
    },
    /// The leader is asked to finish. It still leads; say [`Input::Finished`] when the work has ended.
    Asked {
        /// Which election.
        election: ElectionKey,
        /// What was asked.
        kind: AskKind,
    },
    /// This process leads no longer. The work must stop now; say [`Input::Finished`] when it has.
    Lost {
        /// Which election.
        election: ElectionKey,
        /// Under which token it led.
        token: Token,
        /// Why.
        why: Loss,
    },
    /// The lease was given back.
    Released {
        /// Which election.
        election: ElectionKey,
        /// Under which token it was held.
        token: Token,
    },
    /// The candidate stands no longer.
    Withdrawn(ElectionKey),
    /// The election looks different than before.
    Seen(ElectionView),
    /// The store is in trouble; the machine goes on trying.
    Trouble(StoreError),
    /// The session has ended; the machine does nothing more.
    Stopped,
}

/// Why leadership was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// No beat was counted in time: the store may have been away, or this process stopped.
    Doubt,
    /// The store says that the session is over.
    SessionGone,
    /// A standby was promoted: what the old server granted may be lost.
    EpochChanged,
    /// The connection that the session is tied to broke.
    Severed,
    /// Somebody edited the lease by hand.
    Overruled,
}

impl Loss {
    /// The reason in words.
    pub fn as_str(self) -> &'static str {
        match self {
            Loss::Doubt => "no beat was counted in time",
            Loss::SessionGone => "the session was expired",
            Loss::EpochChanged => "the store's epoch changed",
            Loss::Severed => "the session's connection broke",
            Loss::Overruled => "the lease was changed by hand",
        }
    }
}
