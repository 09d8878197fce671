//! Members of the cluster and their entries.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use chitchat::{Chitchat, ChitchatId, NodeState};
use tenure_core::BootInstant;
use tenure_core::rules::soft::{GossipHeartbeatTracker, GossipTiming};

/// Prefix of the reserved keys.
pub(crate) const RESERVED_PREFIX: &str = "tenure/";
const METADATA: &str = "tenure/meta/";
const LEFT: &str = "tenure/left";
const OBSERVER: &str = "tenure/observer";

/// State of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GossipMemberState {
    /// Its heartbeat advances.
    Live,
    /// Its heartbeat did not advance for the silence limit: the member crashed, is paused or is unreachable.
    Failed,
    /// It announced its departure.
    Left,
}

impl GossipMemberState {
    /// Name of the state.
    pub fn as_str(self) -> &'static str {
        match self {
            GossipMemberState::Live => "live",
            GossipMemberState::Failed => "failed",
            GossipMemberState::Left => "left",
        }
    }
}

/// A gossip member as this process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GossipMember {
    /// Random id, chosen at each join; unique.
    pub id: String,
    /// Name.
    pub name: String,
    /// Time of joining in milliseconds since 1970 on the member's clock. Of two members with one name, the newer has
    /// the greater value.
    pub generation: u64,
    /// Address.
    pub address: SocketAddr,
    /// State of the member.
    pub state: GossipMemberState,
    /// Whether the member only watches.
    pub observer: bool,
    /// Published metadata.
    pub metadata: BTreeMap<String, String>,
    pub(super) values: BTreeMap<String, (String, u64)>,
}

impl GossipMember {
    /// Value that the member published under a key.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(|(value, _)| value.as_str())
    }

    /// Whether the member is live.
    pub fn is_live(&self) -> bool {
        self.state == GossipMemberState::Live
    }
}

/// An entry that a member published.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GossipEntry {
    /// The publishing member.
    pub member: Arc<GossipMember>,
    /// Key.
    pub key: String,
    /// Value.
    pub value: String,
    /// Version of the member's entries; grows with every change.
    pub version: u64,
}

/// All known members as this process sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    me: String,
    members: BTreeMap<String, Arc<GossipMember>>,
}

impl Roster {
    /// This process.
    pub fn me(&self) -> Option<&Arc<GossipMember>> {
        self.members.get(&self.me)
    }

    /// A member by id.
    pub fn member(&self, id: &str) -> Option<&Arc<GossipMember>> {
        self.members.get(id)
    }

    /// All members, including failed and departed ones while they are remembered.
    pub fn all(&self) -> impl Iterator<Item = &Arc<GossipMember>> {
        self.members.values()
    }

    /// Live members, including observers.
    pub fn live(&self) -> impl Iterator<Item = &Arc<GossipMember>> {
        self.all().filter(|member| member.is_live())
    }

    /// Entries of live members whose keys start with `prefix`.
    pub fn entries(&self, prefix: &str) -> Vec<GossipEntry> {
        let of = |member: &Arc<GossipMember>| {
            let prefixed = member.values.range(prefix.to_owned()..);
            let prefixed = prefixed.take_while(|(key, _)| key.starts_with(prefix));
            let entry = |(key, (value, version)): (&String, &(String, u64))| GossipEntry {
                member: member.clone(),
                key: key.clone(),
                value: value.clone(),
                version: *version,
            };
            prefixed.map(entry).collect::<Vec<_>>()
        };
        self.live().flat_map(of).collect()
    }
}

/// Chitchat id of a process.
pub(super) fn identity(id: &str, name: &str, generation: u64, address: SocketAddr) -> ChitchatId {
    ChitchatId::new(format!("{id}.{name}"), generation, address)
}

/// Entries that a member publishes when it joins.
pub(super) fn initial_entries(metadata: &BTreeMap<String, String>, observer: bool) -> Vec<(String, String)> {
    let metadata = metadata.iter().map(|(key, value)| (format!("{METADATA}{key}"), value.clone()));
    metadata.chain(observer.then(|| (OBSERVER.to_owned(), "1".to_owned()))).collect()
}

/// Entry that a member publishes when it leaves.
pub(super) fn leave_entry() -> (&'static str, &'static str) {
    (LEFT, "1")
}

/// Updates the roster from gossip.
pub(super) struct RosterUpdater {
    me: String,
    heartbeats: GossipHeartbeatTracker,
    cached: BTreeMap<String, RosterCacheEntry>,
}

/// A member and the gossip state it was built from.
struct RosterCacheEntry {
    built_from: (u64, u64, bool),
    member: Arc<GossipMember>,
}

impl RosterUpdater {
    pub(super) fn new(me: &str, timing: &GossipTiming) -> Self {
        RosterUpdater {
            me: me.to_owned(),
            heartbeats: GossipHeartbeatTracker::new(timing.silence_limit()),
            cached: BTreeMap::new(),
        }
    }

    pub(super) fn update(&mut self, now: BootInstant, chitchat: &Chitchat) -> Roster {
        let states =
            || chitchat.node_states().iter().filter_map(|(id, state)| Some((id_and_name(id)?, id, state)));
        self.heartbeats.observe(now, states().map(|((id, _), _, state)| (id, heartbeat(state))));
        let mut cached = BTreeMap::new();
        for ((id, name), node, state) in states() {
            let live = id == self.me || self.heartbeats.is_live(id);
            let built_from = (state.max_version(), state.last_gc_version(), live);
            let member = match self.cached.remove(id) {
                Some(old) if old.built_from == built_from => old.member,
                _ => Arc::new(member(id, name, node, state, live)),
            };
            cached.insert(id.to_owned(), RosterCacheEntry { built_from, member });
        }
        self.cached = cached;
        let members = self.cached.iter().map(|(id, cached)| (id.clone(), cached.member.clone()));
        Roster { me: self.me.clone(), members: members.collect() }
    }
}

fn id_and_name(id: &ChitchatId) -> Option<(&str, &str)> {
    id.node_id.split_once('.')
}

fn heartbeat(state: &NodeState) -> u64 {
    state.heartbeat().into()
}

fn member(id: &str, name: &str, node: &ChitchatId, state: &NodeState, live: bool) -> GossipMember {
    let left = state.get(LEFT).is_some();
    let metadata = state
        .iter_prefix(METADATA)
        .filter_map(|(key, value)| Some((key.strip_prefix(METADATA)?.to_owned(), value.value.clone())));
    let values = state
        .key_values_including_deleted()
        .filter(|(key, value)| !value.is_deleted() && !key.starts_with(METADATA))
        .map(|(key, value)| (key.to_owned(), (value.value.clone(), value.version)));
    GossipMember {
        id: id.to_owned(),
        name: name.to_owned(),
        generation: node.generation_id,
        address: node.gossip_advertise_addr,
        state: match (left, live) {
            (true, _) => GossipMemberState::Left,
            (false, true) => GossipMemberState::Live,
            (false, false) => GossipMemberState::Failed,
        },
        observer: state.get(OBSERVER).is_some(),
        metadata: metadata.collect(),
        values: values.collect(),
    }
}
