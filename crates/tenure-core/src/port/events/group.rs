//! Groups: who reads what, how far, and under which token.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Event, EventId, Position, TopicKey};
use crate::port::{Backoff, Pause};
use crate::{Name, SessionId, Token};

/// Which group: a name within a topic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GroupKey {
    /// Of which topic.
    pub topic: TopicKey,
    /// The group's name.
    pub name: Name,
}

impl GroupKey {
    /// The group `name` of `topic`.
    pub fn new(topic: TopicKey, name: Name) -> Self {
        GroupKey { topic, name }
    }
}

impl fmt::Display for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.name)
    }
}

/// Where a new group begins, and where `reset` puts one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Begin {
    /// With the oldest event that is kept.
    #[default]
    Earliest,
    /// With the next event to come.
    Latest,
    /// After this position.
    Position(Position),
    /// With the first event at or after this moment, in milliseconds since 1970.
    Time(i64),
}

/// How a group is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct GroupSettings {
    /// How often an event is tried before it is dead and its key parked.
    pub max_attempts: u32,
    /// How long to wait before the next attempt.
    pub backoff: Backoff,
}

impl Default for GroupSettings {
    fn default() -> Self {
        GroupSettings { max_attempts: 10, backoff: Backoff { first_ms: 500, most_ms: 60_000 } }
    }
}

/// A member that joins a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Join {
    /// Which group. Made with the usual settings if it is not there; the topic must be.
    pub group: GroupKey,
    /// On whose beat the member's shares live. Refused (`Trouble::Request`) if it is not live.
    pub session: SessionId,
    /// What the member is called: shares go back to the same name after a restart.
    pub member: String,
    /// Where the group begins, if it is new.
    #[serde(default)]
    pub from: Begin,
}

/// A group as its members see it: who there is, and who has which slot. One look, one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GroupLook {
    /// Its members whose sessions live, by session. Whoever is not among them has no say.
    pub members: Vec<Member>,
    /// The slots, all of them, by number.
    pub shares: Vec<Share>,
    /// How it is set.
    pub settings: GroupSettings,
    /// Set while nothing is to be read.
    pub paused: Option<Pause>,
    /// For how long the group has had members without a break, in milliseconds by the store's clock: while it gathers, slots
    /// are left for those who had them.
    pub gathered_ms: u64,
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Member {
    /// Its session.
    pub session: SessionId,
    /// Its name.
    pub name: String,
}

/// A slot of a group: a lease, and how far it has been read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Share {
    /// Which slot.
    pub slot: u32,
    /// The token under which it was last held: greater with every taking, and with every reset.
    pub token: Token,
    /// Who has it: a session that lives. `None`: it is free.
    pub holder: Option<SessionId>,
    /// The name of who had it last, or has it. Empty: nobody ever did.
    pub last: String,
    /// Everything up to here is read.
    pub position: Position,
}

/// Slots to be taken. Each by compare-and-swap: it is free, and its token is the one that was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TakeShares {
    /// Of which group.
    pub group: GroupKey,
    /// For which session: live, and a member.
    pub session: SessionId,
    /// Which slots, under which tokens they were seen.
    pub slots: Vec<(u32, Token)>,
}

/// A slot that was taken: what its new holder must know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Taken {
    /// Which.
    pub slot: u32,
    /// The new token.
    pub token: Token,
    /// Everything up to here is read.
    pub position: Position,
    /// Events after it that are done already (see [`ShareCommit::done`]).
    pub done: Vec<EventId>,
    /// The keys that are set aside in it, each by the first of its events.
    pub aside: Vec<AsideKey>,
}

/// A wish to read slots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReadAsk {
    /// Of which topic.
    pub topic: TopicKey,
    /// Each slot, and after which position.
    pub after: Vec<(u32, Position)>,
    /// How many events at most, of all slots together. What was published together is never cut, so it may be up to
    /// [`UNIT_MAX`](super::UNIT_MAX) more.
    pub limit: u32,
}

/// What a member says about a slot. All of it counts, or nothing: in one transaction with what the handler did, if it did it in
/// this store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ShareCommit {
    /// Of which group.
    pub group: GroupKey,
    /// Which slot.
    pub slot: u32,
    /// Under which token. Refused if the slot was taken, or the group reset, since.
    pub token: Token,
    /// Everything up to here is read now, or done, or set aside. `None`: that is unchanged.
    #[serde(default)]
    pub position: Option<Position>,
    /// Events after the position that are done, and where each lies, which is what the store finds it by: keys that were worked on
    /// beside one another. Forgotten as the position passes them; one that does not lie there is not remembered.
    #[serde(default)]
    pub done: Vec<(EventId, Position)>,
    /// Events that are set aside now: they failed, or their key waits.
    #[serde(default)]
    pub set_aside: Vec<SetAside>,
    /// What became of events that were aside before.
    #[serde(default)]
    pub settled: Vec<(EventId, Aside)>,
}

/// An event that is set aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SetAside {
    /// Which; the store keeps a copy of it, so that retention does not matter.
    pub event: EventId,
    /// Where it lies: what the store finds it by.
    pub position: Position,
    /// How it stands.
    pub how: Aside,
}

/// How an event that is aside stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Aside {
    /// It is done. Only for what was aside before.
    Done,
    /// It waits behind another of its key.
    Behind,
    /// It failed, and is tried again.
    Retry {
        /// How often it was tried.
        attempts: u32,
        /// In how long, in milliseconds. The caller has drawn the jitter.
        after_ms: u64,
        /// What went wrong.
        error: String,
    },
    /// It failed for good: its key is parked until somebody replays or drops it.
    Dead {
        /// How often it was tried.
        attempts: u32,
        /// What went wrong.
        error: String,
    },
}

/// A key that is set aside in a slot, by the first of its events. An event without a key stands for itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AsideKey {
    /// The key.
    pub key: Option<String>,
    /// The first event of it that is aside.
    pub event: EventId,
    /// How often that one was tried.
    pub attempts: u32,
    /// In how long it is due, in milliseconds; 0: it is. `None`: it is dead, and the key parked.
    pub due_in_ms: Option<u64>,
}

/// What came of a [`ShareCommit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Committed {
    /// It counts.
    Yes,
    /// The slot is not held under this token: nothing was changed.
    Stale,
}

/// An event that is aside, as people see it and as a member retries it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(try_from = "super::wire::AsideIn")]
pub struct AsideView {
    /// The event.
    #[serde(flatten)]
    pub event: Event,
    /// Whether it is dead: tried for the last time, its key parked.
    pub dead: bool,
    /// How often it was tried.
    pub attempts: u32,
    /// What went wrong last. Empty: it waits behind another.
    pub error: String,
    /// When it was set aside, or failed last, by the store's wall clock.
    pub failed_at_ms: i64,
    /// In how long it is tried again, in milliseconds. `None`: it is dead, or waits behind another.
    pub due_in_ms: Option<u64>,
    /// How many of its key wait behind it, counted up to a thousand.
    pub behind: u64,
}

/// Which events that are aside to show, in the order of their numbers; those of one key in the order in which they are to be
/// handled, which is that of their positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsideFilter {
    /// Of which group.
    pub group: GroupKey,
    /// Only the dead.
    pub dead: bool,
    /// Only of this slot.
    pub slot: Option<u32>,
    /// Only of this key.
    pub key: Option<String>,
    /// After this number, for the next page.
    pub after: Option<EventId>,
    /// How many at most.
    pub limit: u32,
}

impl AsideFilter {
    /// The first that is aside at or after this one: they go by their numbers, and 0 is before all of them.
    pub fn from(group: GroupKey, event: EventId) -> AsideFilter {
        let after = event.0.checked_sub(1).map(EventId);
        AsideFilter { group, dead: false, slot: None, key: None, after, limit: 1 }
    }
}

/// What an operator wants with dead events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum DeadOrder {
    /// Try it again, as often as at first; those behind it follow in order.
    Replay,
    /// Forget it; those behind it follow in order.
    Drop,
}

/// A group as people see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GroupView {
    /// Which.
    #[serde(flatten)]
    pub key: GroupKey,
    /// How it is set.
    pub settings: GroupSettings,
    /// Set while nothing is to be read.
    pub paused: Option<Pause>,
    /// Its members whose sessions live.
    pub members: Vec<Member>,
    /// Its slots, by number.
    pub slots: Vec<SlotView>,
    /// How many events are tried again or wait behind one that is.
    pub aside: u64,
    /// How many are dead.
    pub dead: u64,
    /// How many slots ever changed hands from one name to another.
    pub moves: u64,
    /// Where a server pushes its events to, if it does.
    pub push: Option<PushView>,
}

impl GroupView {
    /// How many events are unread in all slots, and whether that is exact.
    pub fn lag(&self) -> (u64, bool) {
        self.slots.iter().fold((0, true), |(sum, exact), slot| (sum + slot.lag, exact && slot.lag_exact))
    }

    /// As it is shown to whoever may look: where it is pushed to without the query, which may be a secret.
    pub fn shown(mut self) -> GroupView {
        if let Some(push) = &mut self.push {
            push.url = push.shown();
        }
        self
    }
}

/// A slot of a group, as people see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SlotView {
    /// The lease.
    #[serde(flatten)]
    pub share: Share,
    /// The position of the slot's last event.
    pub end: Position,
    /// How many events are unread.
    pub lag: u64,
    /// Whether that was counted to the end; a long lag is counted up to [`LAG_COUNTED`] and not further.
    pub lag_exact: bool,
    /// For how long the oldest unread event has waited, in milliseconds by the store's clock.
    pub lag_ms: u64,
}

/// The most groups of a topic. Whoever may read makes one by naming it, and each keeps what it has not read from being forgotten.
pub const GROUPS_MAX: usize = 256;

/// Up to how many unread events of a slot are counted.
pub const LAG_COUNTED: u64 = 10_000;

/// Where a server pushes a group's events to.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Push {
    /// By `POST`, one event each.
    pub url: String,
    /// What the signatures are made with. Never shown again.
    pub secret: String,
    /// How long an answer may take.
    pub timeout_ms: u64,
}

/// The same, without the secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PushView {
    /// By `POST`, one event each.
    pub url: String,
    /// How long an answer may take.
    pub timeout_ms: u64,
}

impl PushView {
    /// The address as it is shown to whoever may look: without the query, which may be a secret.
    pub fn shown(&self) -> String {
        match self.url.split_once(['?', '#']) {
            Some((plain, _)) => format!("{plain}?…"),
            None => self.url.clone(),
        }
    }
}

/// What `reset` did, or would do, to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Moved {
    /// Which slot.
    pub slot: u32,
    /// Where it was.
    pub from: Position,
    /// Where it is now.
    pub to: Position,
}
