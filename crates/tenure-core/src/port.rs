//! What a store must be able to do.
//!
//! The store owns the truth: who holds what, under which token, and which sessions live. A backend implements two
//! traits. [`Store`] is the path of the machine: few calls, each one atomic, each either done, refused, or of unknown
//! outcome. [`Directory`] is the path of people: it reads, and it leaves requests that a leader will find.
//!
//! A call that returns [`StoreError`] may or may not have happened. The machine is written for that: nothing it
//! concludes from an error ever extends trust, and everything it repeats is guarded by a compare-and-swap.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{ElectionKey, Name, SessionId, Token};

/// A session to be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSession {
    /// Its identity, never used before.
    pub id: SessionId,
    /// What people call the process: `NODE_ID`, or host and process number.
    pub name: String,
    /// How long it must be silent before others may expire it.
    pub lease: Duration,
    /// How others learn of its death.
    pub takeover: Takeover,
}

/// How the death of a session is established.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Takeover {
    /// Its beat was seen to stand still for its lease (or the kernel knows that the process is gone).
    #[default]
    Lease,
    /// Also when its connection to the store ends. Faster after a crash and *weaker*: a broken connection is not a
    /// dead process, so two may believe for up to two thirds of a lease. Tokens still fence.
    Connection,
}

/// What came of opening a session or of a beat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pulse {
    /// The session lives.
    Alive {
        /// The store's timeline. When it changes, a standby was promoted and what we held may be lost.
        timeline: u32,
        /// What is asked of this session.
        asks: Vec<Ask>,
    },
    /// The session has ended or was expired. All that it held is lost, and it can never come back.
    Gone,
}

/// A request to the holder of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Which election.
    pub election: ElectionKey,
    /// Which of its slots.
    pub slot: u32,
    /// Which term: a request never reaches a later holder.
    pub token: Token,
    /// What is asked.
    pub kind: AskKind,
    /// Who asks, for people.
    pub by: String,
}

/// What may be asked of a leader. In each case it finishes, then releases.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "kind", content = "to")]
pub enum AskKind {
    /// A candidate of higher priority would lead.
    Preempt(SessionId),
    /// An operator wants this candidate to lead.
    Transfer(SessionId),
    /// An operator wants somebody else to lead.
    Resign,
    /// An operator wants nobody to lead until the election is resumed.
    Pause,
}

impl AskKind {
    /// Who shall lead next, if that was said.
    pub fn successor(&self) -> Option<&SessionId> {
        match self {
            AskKind::Preempt(to) | AskKind::Transfer(to) => Some(to),
            AskKind::Resign | AskKind::Pause => None,
        }
    }

    /// How the next term will have come about.
    pub fn via(&self) -> Via {
        match self {
            AskKind::Preempt(_) => Via::Preempt,
            AskKind::Transfer(_) => Via::Transfer,
            AskKind::Resign => Via::Resign,
            AskKind::Pause => Via::Release,
        }
    }

    /// The word for it, in stores and for people.
    pub fn word(&self) -> &'static str {
        match self {
            AskKind::Preempt(_) => "preempt",
            AskKind::Transfer(_) => "transfer",
            AskKind::Resign => "resign",
            AskKind::Pause => "pause",
        }
    }
}

/// How a term came about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Via {
    /// The lease was free: never held, or released.
    #[default]
    Release,
    /// The last holder died or fell silent.
    Takeover,
    /// A candidate of higher priority asked for it.
    Preempt,
    /// An operator moved it.
    Transfer,
    /// An operator made the last holder resign.
    Resign,
}

impl Via {
    /// Whether priority must not undo it: what an operator did stands until the next change.
    pub fn is_pinned(self) -> bool {
        matches!(self, Via::Transfer | Via::Resign)
    }

    /// The word for it, in stores and for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Via::Release => "release",
            Via::Takeover => "takeover",
            Via::Preempt => "preempt",
            Via::Transfer => "transfer",
            Via::Resign => "resign",
        }
    }

    /// The value for a word of [`as_str`](Self::as_str); what is not known counts as a release.
    pub fn from_word(word: &str) -> Via {
        [Via::Takeover, Via::Preempt, Via::Transfer, Via::Resign]
            .into_iter()
            .find(|via| via.as_str() == word)
            .unwrap_or_default()
    }
}

/// A candidacy: one session's wish to lead one election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidacy {
    /// The session.
    pub session: SessionId,
    /// The election.
    pub election: ElectionKey,
    /// What people call the candidate. It need not be unique, and no rule depends on it but the order of equals.
    pub id: String,
    /// Higher leads first.
    pub priority: i32,
    /// Watches, and never leads.
    pub observer: bool,
    /// What this candidate can do.
    pub capabilities: Vec<String>,
    /// What a leader of this election must be able to do.
    pub requires: Vec<String>,
    /// How many may lead at once.
    pub slots: u32,
    /// What people want to know about it: version, zone, address.
    pub metadata: BTreeMap<String, String>,
}

/// What came of joining an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Joined {
    /// The candidate stands.
    Standing,
    /// The session is gone; nothing was written.
    Gone,
    /// Others campaign for another number of slots; nothing was written.
    SlotsDiffer {
        /// The election's number of slots.
        slots: u32,
    },
}

/// An election as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElectionView {
    /// Which.
    #[serde(flatten)]
    pub key: ElectionKey,
    /// How many may lead at once.
    pub slots: u32,
    /// What a leader must be able to do.
    pub requires: Vec<String>,
    /// Set while nobody may lead.
    pub paused: Option<Pause>,
    /// One for each slot.
    pub leases: Vec<LeaseView>,
    /// All who stand, observers included.
    pub candidates: Vec<CandidateView>,
}

impl ElectionView {
    /// The holders, by slot.
    pub fn holders(&self) -> impl Iterator<Item = (&LeaseView, &SessionView)> {
        self.leases.iter().filter_map(|lease| lease.holder.as_ref().filter(|h| h.live).map(|h| (lease, h)))
    }

    /// The slots that this session holds, and under which tokens.
    pub fn held_by(&self, session: &SessionId) -> impl Iterator<Item = (u32, Token)> {
        self.holders()
            .filter(move |(_, holder)| holder.id == *session)
            .map(|(lease, _)| (lease.slot, lease.token))
    }

    /// The candidate of this session.
    pub fn candidate(&self, session: &SessionId) -> Option<&CandidateView> {
        self.candidates.iter().find(|c| &c.session.id == session)
    }
}

/// Why nobody may lead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// Who paused it.
    pub by: String,
    /// Their reason, possibly empty.
    pub reason: String,
    /// When, by the store's wall clock; for people.
    pub at_ms: i64,
}

/// One slot's lease as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseView {
    /// Which slot.
    pub slot: u32,
    /// The token of the last grant.
    pub token: Token,
    /// Who holds it.
    pub holder: Option<SessionView>,
    /// Whom the last holder named as its successor, while the lease is free.
    pub reserved: Option<SessionId>,
    /// How the term came about; of a free lease, how the next one will.
    pub via: Via,
    /// When it was granted, by the store's wall clock; for people.
    pub granted_at_ms: Option<i64>,
}

impl LeaseView {
    /// Nobody holds it, or its session has ended.
    pub fn is_free(&self) -> bool {
        self.holder.as_ref().is_none_or(|h| !h.live)
    }
}

/// A session as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionView {
    /// Which.
    pub id: SessionId,
    /// What people call the process.
    pub name: String,
    /// How often it has beaten.
    pub beat: u64,
    /// Its lease, in milliseconds.
    pub lease_ms: u64,
    /// Whether the store counts it as living.
    pub live: bool,
    /// When it last beat, by the store's wall clock; for people.
    pub beat_at_ms: i64,
}

impl SessionView {
    /// Its lease.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }
}

/// A candidate as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CandidateView {
    /// What people call it.
    pub id: String,
    /// Its session.
    pub session: SessionView,
    /// Higher leads first.
    pub priority: i32,
    /// Watches, and never leads.
    pub observer: bool,
    /// What it can do.
    pub capabilities: Vec<String>,
    /// What people want to know about it.
    pub metadata: BTreeMap<String, String>,
    /// When it joined, by the store's wall clock; for people.
    pub joined_at_ms: i64,
}

/// What an observation covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The elections in which the session stands and holds nothing: a follower's look.
    Contested,
    /// All in which it stands: a leader's occasional look.
    Standing,
    /// These.
    Only(Vec<ElectionKey>),
}

/// What the store looked like at one moment between the request and its answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// The store's timeline.
    pub timeline: u32,
    /// The elections in scope.
    pub elections: Vec<ElectionView>,
    /// Leases that the session holds in elections where it does not stand: left over from a take whose answer was
    /// lost while its candidate went away. To be released.
    pub strays: Vec<(ElectionKey, u32, Token)>,
}

/// A request for a lease, by compare-and-swap on what was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    /// Who wants it. Refused if this session is not live.
    pub session: SessionId,
    /// The timeline on which this was seen. Refused if the store is on another: what was seen may be undone.
    pub timeline: u32,
    /// Which election.
    pub election: ElectionKey,
    /// Which slot.
    pub slot: u32,
    /// The token that was seen. Refused if another is there.
    pub token: Token,
    /// The holder that was seen. Refused if another is there, or if it lives and is not expired by `expire`.
    pub holder: Option<SessionId>,
    /// The session to expire first, in the same transaction.
    pub expire: Option<Expire>,
}

/// A session to be declared dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expire {
    /// Which.
    pub session: SessionId,
    /// The timeline on which its silence was seen. Refused if the store is on another: beats may repeat.
    pub timeline: u32,
    /// The beat that was seen to stand still: refused if it has moved. `None` only when the store itself said that
    /// the session's process is gone ([`Wake::Died`]).
    pub beat: Option<u64>,
}

/// A lease to be given back, by compare-and-swap on `(session, token)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Who holds it.
    pub session: SessionId,
    /// Which election.
    pub election: ElectionKey,
    /// Which slot.
    pub slot: u32,
    /// Under which token. Nothing happens if it is not held under it.
    pub token: Token,
    /// Who shall have it next.
    pub successor: Option<SessionId>,
    /// How the next term will have come about.
    pub via: Via,
    /// Whether the candidate leaves the election too.
    pub leave: bool,
}

/// Something happened in the store, said sooner than polling would find it. May be lost, doubled or false: a hint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wake {
    /// A lease was released.
    Released {
        /// Which election.
        election: ElectionKey,
        /// Which slot.
        slot: u32,
        /// The token under which it was held.
        token: Token,
        /// By whom.
        by: SessionId,
        /// Who shall have it next.
        successor: Option<SessionId>,
        /// How the next term will have come about.
        via: Via,
    },
    /// Something else about this election changed: a candidate, a pause, a new leader.
    Changed(ElectionKey),
    /// Something is asked of this session.
    Asked(SessionId),
    /// This session ended by itself, and all that it held is free.
    Ended(SessionId),
    /// The store knows for certain that this session's process, or in mode [`Takeover::Connection`] its connection, is
    /// gone. Never sent from one process to another.
    Died(SessionId),
    /// Our own connection in mode [`Takeover::Connection`] broke: others may have taken over. Never sent from one
    /// process to another.
    Severed(SessionId),
    /// Hints may have been missed: look at everything.
    Resync,
}

/// Why the store did not answer as hoped. Whether the call happened is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StoreError {
    /// What kind of trouble.
    pub kind: Trouble,
    /// What failed, on what, and what to do.
    pub message: String,
}

impl StoreError {
    /// An error of this kind.
    pub fn new(kind: Trouble, message: impl Into<String>) -> Self {
        StoreError { kind, message: message.into() }
    }
}

/// Kinds of trouble with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Trouble {
    /// The address makes no sense: unknown scheme, missing part.
    Address,
    /// Nobody answers there. May pass.
    Unreachable,
    /// No answer in time. May pass.
    Timeout,
    /// The credentials or rights do not suffice.
    Denied,
    /// The tables are missing: run `tenure migrate up`.
    SchemaMissing,
    /// The tables are of another version than this program's.
    SchemaVersion,
    /// The store can not be used safely as it is: network file system, read-only server.
    Unfit,
    /// The store is full, read-only or broken for now. May pass.
    Unavailable,
    /// What was asked makes no sense to the store: no such election or candidate.
    Request,
    /// Anything else.
    Other,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Trouble::Address => "bad address",
            Trouble::Unreachable => "unreachable",
            Trouble::Timeout => "timed out",
            Trouble::Denied => "access denied",
            Trouble::SchemaMissing => "schema missing",
            Trouble::SchemaVersion => "schema version",
            Trouble::Unfit => "unfit store",
            Trouble::Unavailable => "unavailable",
            Trouble::Request => "bad request",
            Trouble::Other => "error",
        })
    }
}

/// What a backend promises; printed, tested, never overstated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Promises {
    /// The backend's name.
    pub backend: &'static str,
    /// Where at most one leader is promised.
    pub at_most_one: &'static str,
    /// What happens in a netsplit.
    pub netsplit: &'static str,
    /// How soon the next leader comes after a crash.
    pub after_crash: &'static str,
}

/// The path of the machine. Every call is atomic in the store.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Opens a session; its first beat counts.
    async fn open(&self, session: &NewSession) -> Result<Pulse, StoreError>;

    /// Says that the session lives, *if it is live*, and brings back what is asked of it.
    async fn beat(&self, session: &SessionId) -> Result<Pulse, StoreError>;

    /// Ends the session: frees all that it holds, removes its candidates, wakes the others.
    async fn end(&self, session: &SessionId) -> Result<(), StoreError>;

    /// Stands for an election, or changes how it stands.
    async fn join(&self, candidacy: &Candidacy) -> Result<Joined, StoreError>;

    /// Stands no longer.
    async fn leave(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError>;

    /// Looks at elections.
    async fn observe(&self, session: &SessionId, scope: &Scope) -> Result<Observation, StoreError>;

    /// Takes a lease; `None` if what was seen is no longer so.
    async fn take(&self, take: &Take) -> Result<Option<Token>, StoreError>;

    /// Gives a lease back and wakes the others. Nothing happens if it is not held under that token.
    async fn release(&self, release: &Release) -> Result<(), StoreError>;

    /// Declares a session dead if its beat has not moved, and frees all that it held.
    async fn expire(&self, expire: &Expire) -> Result<(), StoreError>;

    /// Asks something of a holder, and wakes it. `false` if that term is over.
    async fn ask(&self, ask: &Ask) -> Result<bool, StoreError>;

    /// Asks to be told, through [`wakes`](Self::wakes), when one of these sessions dies, where the store can know.
    fn watch(&self, sessions: &[SessionId]) {
        let _ = sessions;
    }

    /// A descriptor that says "this session lives" for as long as it is open in any process, where the store has such a
    /// thing: `tenure run` hands it to the watchdog, so that a killed supervisor's lease is free only once its child is
    /// gone.
    fn kernel_lock(&self, session: &SessionId) -> Option<OwnedFd> {
        let _ = session;
        None
    }

    /// The hints of this store. Called once for each open client; a store with none returns a stream that never
    /// yields. The sender's end may be dropped at any time.
    fn wakes(&self) -> Wakes;
}

/// A receiver of hints.
#[async_trait]
pub trait WakeSource: Send + 'static {
    /// The next hint; `None` when there will be no more.
    async fn next(&mut self) -> Option<Wake>;
}

/// A boxed [`WakeSource`].
pub type Wakes = Box<dyn WakeSource>;

/// The path of people.
#[async_trait]
pub trait Directory: Send + Sync + 'static {
    /// What this store promises.
    fn promises(&self) -> Promises;

    /// All elections of a namespace, or of all namespaces.
    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError>;

    /// One election; `None` if nobody ever stood for it.
    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError>;

    /// The last terms of an election, newest first.
    async fn history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError>;

    /// Pauses (asking the holders to stop) or resumes an election. `false` if it was so already.
    async fn set_paused(&self, key: &ElectionKey, pause: Option<&Pause>) -> Result<bool, StoreError>;

    /// The store's own clock in seconds since some moment, where it has one: to compare clock *rates*.
    async fn clock_seconds(&self) -> Result<Option<f64>, StoreError> {
        Ok(None)
    }

    /// What there is to know about this store as it is set up, for `tenure doctor`.
    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        Ok(Vec::new())
    }
}

/// Something that an examination found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub check: String,
    /// How it is.
    pub value: String,
    /// What to think of it.
    pub verdict: Verdict,
    /// What it means and what to do; empty if nothing.
    pub advice: String,
}

/// What to think of a [`Finding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Works, and could be better.
    Fair,
    /// Will hurt.
    Bad,
}

impl Finding {
    /// A finding.
    pub fn new(check: &str, value: impl Into<String>, verdict: Verdict, advice: impl Into<String>) -> Self {
        Finding { check: check.into(), value: value.into(), verdict, advice: advice.into() }
    }
}

/// One holder's time in office.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Term {
    /// Which slot.
    pub slot: u32,
    /// Under which token.
    pub token: Token,
    /// What people call the holder.
    pub id: String,
    /// Its session.
    pub session: SessionId,
    /// How it came about.
    pub via: Via,
    /// When it began, by the store's wall clock; for people.
    pub began_at_ms: i64,
    /// When it ended, if it has.
    pub ended_at_ms: Option<i64>,
    /// How it ended: `released`, `expired` or `ended`.
    pub end: Option<String>,
}

/// A whole backend.
pub trait Backend: Store + Directory {}
impl<T: Store + Directory> Backend for T {}
