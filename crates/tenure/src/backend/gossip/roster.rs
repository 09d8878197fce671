//! Who is there, and what each says.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use chitchat::{Chitchat, ChitchatId, NodeState};
use tenure_core::Moment;
use tenure_core::soft::{Pace, Pulses};

/// What is ours among the entries of a member.
pub(crate) const OURS: &str = "tenure/";
const METADATA: &str = "tenure/meta/";
const LEFT: &str = "tenure/left";
const GUEST: &str = "tenure/guest";

/// Whether a member is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Presence {
    /// Its beat moves.
    Live,
    /// Its beat was not seen to move for too long: it is dead, stopped or cut off, and nobody can tell which.
    Silent,
    /// It said goodbye.
    Left,
}

impl Presence {
    /// In a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Presence::Live => "live",
            Presence::Silent => "silent",
            Presence::Left => "left",
        }
    }
}

/// A process that takes part, as it is seen from here.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Drawn anew whenever a process joins: never two of one, whatever people call them.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// When it joined, in milliseconds since 1970 by its own clock: of two with one name, the greater is the newer.
    pub generation: u64,
    /// Where it is reached.
    pub address: SocketAddr,
    /// Whether it is there.
    pub presence: Presence,
    /// It only watches.
    pub guest: bool,
    /// What it wants to be known of it.
    pub metadata: BTreeMap<String, String>,
    pub(super) values: BTreeMap<String, (String, u64)>,
}

impl Member {
    /// What it says under a key.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(|(value, _)| value.as_str())
    }

    /// Whether it is there.
    pub fn is_live(&self) -> bool {
        self.presence == Presence::Live
    }
}

/// What a member says under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Who says so.
    pub member: Arc<Member>,
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
    /// Counts up with every change of that member's entries.
    pub version: u64,
}

/// All who are known, as they are seen from here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    me: String,
    members: BTreeMap<String, Arc<Member>>,
}

impl Roster {
    /// This process.
    pub fn me(&self) -> Option<&Arc<Member>> {
        self.members.get(&self.me)
    }

    /// One of them.
    pub fn member(&self, id: &str) -> Option<&Arc<Member>> {
        self.members.get(id)
    }

    /// All, those who are silent or left included, for as long as they are remembered.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.members.values()
    }

    /// Those who are there, guests included.
    pub fn live(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.all().filter(|member| member.is_live())
    }

    /// What those who are there say under keys that begin so.
    pub fn entries(&self, prefix: &str) -> Vec<Entry> {
        let of = |member: &Arc<Member>| {
            let said = member.values.range(prefix.to_owned()..);
            let said = said.take_while(|(key, _)| key.starts_with(prefix));
            let entry = |(key, (value, version)): (&String, &(String, u64))| Entry {
                member: member.clone(),
                key: key.clone(),
                value: value.clone(),
                version: *version,
            };
            said.map(entry).collect::<Vec<_>>()
        };
        self.live().flat_map(of).collect()
    }
}

/// What a process is called in the cluster.
pub(super) fn identity(id: &str, name: &str, generation: u64, address: SocketAddr) -> ChitchatId {
    ChitchatId::new(format!("{id}.{name}"), generation, address)
}

/// What a member says when it joins.
pub(super) fn first_words(metadata: &BTreeMap<String, String>, guest: bool) -> Vec<(String, String)> {
    let metadata = metadata.iter().map(|(key, value)| (format!("{METADATA}{key}"), value.clone()));
    metadata.chain(guest.then(|| (GUEST.to_owned(), "1".to_owned()))).collect()
}

/// What a member says last.
pub(super) fn last_word() -> (&'static str, &'static str) {
    (LEFT, "1")
}

/// Keeps the roster: looks at what gossip has brought, again and again.
pub(super) struct Keeper {
    me: String,
    pulses: Pulses,
    known: BTreeMap<String, Known>,
}

/// A member, and of which state that was made.
struct Known {
    made_of: (u64, u64, bool),
    member: Arc<Member>,
}

impl Keeper {
    pub(super) fn new(me: &str, pace: &Pace) -> Self {
        Keeper { me: me.to_owned(), pulses: Pulses::new(pace.patience()), known: BTreeMap::new() }
    }

    pub(super) fn look(&mut self, now: Moment, chitchat: &Chitchat) -> Roster {
        let states = || chitchat.node_states().iter().filter_map(|(id, state)| Some((parts(id)?, id, state)));
        self.pulses.observe(now, states().map(|((id, _), _, state)| (id, beat(state))));
        let mut known = BTreeMap::new();
        for ((id, name), node, state) in states() {
            let live = id == self.me || self.pulses.is_live(id);
            let made_of = (state.max_version(), state.last_gc_version(), live);
            let member = match self.known.remove(id) {
                Some(old) if old.made_of == made_of => old.member,
                _ => Arc::new(member(id, name, node, state, live)),
            };
            known.insert(id.to_owned(), Known { made_of, member });
        }
        self.known = known;
        let members = self.known.iter().map(|(id, known)| (id.clone(), known.member.clone()));
        Roster { me: self.me.clone(), members: members.collect() }
    }
}

fn parts(id: &ChitchatId) -> Option<(&str, &str)> {
    id.node_id.split_once('.')
}

fn beat(state: &NodeState) -> u64 {
    state.heartbeat().into()
}

fn member(id: &str, name: &str, node: &ChitchatId, state: &NodeState, live: bool) -> Member {
    let left = state.get(LEFT).is_some();
    let metadata = state
        .iter_prefix(METADATA)
        .filter_map(|(key, value)| Some((key.strip_prefix(METADATA)?.to_owned(), value.value.clone())));
    let values = state
        .key_values_including_deleted()
        .filter(|(key, value)| !value.is_deleted() && !key.starts_with(METADATA))
        .map(|(key, value)| (key.to_owned(), (value.value.clone(), value.version)));
    Member {
        id: id.to_owned(),
        name: name.to_owned(),
        generation: node.generation_id,
        address: node.gossip_advertise_addr,
        presence: match (left, live) {
            (true, _) => Presence::Left,
            (false, true) => Presence::Live,
            (false, false) => Presence::Silent,
        },
        guest: state.get(GUEST).is_some(),
        metadata: metadata.collect(),
        values: values.collect(),
    }
}
