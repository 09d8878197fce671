//! Pools: resources that requests wait for.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Authority, Fallback, Mode};
use crate::port::Pause;
use crate::{Name, SessionId, Token};

/// Which pool: a name within a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PoolKey {
    /// The tenant.
    pub namespace: Name,
    /// The pool's name in it.
    pub name: Name,
}

impl PoolKey {
    /// The pool `name` of `namespace`.
    pub fn new(namespace: Name, name: Name) -> Self {
        PoolKey { namespace, name }
    }
}

impl fmt::Display for PoolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "default" => write!(f, "{}", self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}

/// How a pool is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct PoolSettings {
    /// How its resources are handed out.
    pub mode: Mode,
    /// What happens in exclusive mode when the leader can not be reached.
    pub fallback: Fallback,
    /// How long a resource rests after it was given back.
    pub cool_down_ms: u64,
    /// A request's priority: an expression over `base`, `age_minutes`, `simple` (1 if no tags are asked for, else 0), `requires`
    /// and `prefers` (how many tags). See [`Formula`](crate::claim::Formula).
    pub priority: String,
    /// For how long a request is remembered after its end.
    pub keep_ms: u64,
}

impl Default for PoolSettings {
    fn default() -> Self {
        PoolSettings {
            mode: Mode::Distributed,
            fallback: Fallback::None,
            cool_down_ms: 0,
            priority: "base + age_minutes + 50 * simple".into(),
            keep_ms: 86_400_000,
        }
    }
}

/// The base of a request's priority, unless it says otherwise.
pub const BASE_PRIORITY: i32 = 100;

/// A pool as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PoolView {
    /// Which.
    #[serde(flatten)]
    pub key: PoolKey,
    /// How it is set.
    pub settings: PoolSettings,
    /// Set while nothing is handed out, by the namespace's pause.
    pub paused: Option<Pause>,
    /// Its resources, by name.
    pub resources: Vec<ResourceView>,
    /// Requests that wait, the next one first.
    pub waiting: Vec<RequestView>,
}

/// A resource to be put into a pool; or how one that is there shall be from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewResource {
    /// Its name in the pool.
    pub name: Name,
    /// What it has.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Whether it is handed out. A resource that is held stays held.
    #[serde(default = "yes")]
    pub enabled: bool,
}

fn yes() -> bool {
    true
}

/// A resource as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ResourceView {
    /// Its name, tags, and whether it is handed out.
    #[serde(flatten)]
    pub resource: NewResource,
    /// The token of the last grant.
    pub token: Token,
    /// Who has it.
    pub holder: Option<RequestView>,
    /// Until when it rests, by the store's wall clock, in milliseconds since 1970.
    pub cooling_until_ms: Option<i64>,
}

/// A request's number, given by the store, unique in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(value_type = u64, example = 7))]
pub struct RequestId(pub u64);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A request for a resource. Its claim lives on the beat of `session`, or for `hold_ms` at a time, or both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewRequest {
    /// Asked again under the same key, while the first is waiting or granted: the first one.
    pub key: String,
    /// Who asks. A request by another under the same key is refused.
    pub owner: String,
    /// Tags that the resource must have, all of them.
    #[serde(default)]
    pub requires: Vec<String>,
    /// Tags that it had better have: of the free ones that do, the one with the most.
    #[serde(default)]
    pub prefers: Vec<String>,
    /// The base of its priority; [`BASE_PRIORITY`] unless said.
    #[serde(default = "base")]
    pub base: i32,
    /// The session on whose beat the request and the claim live.
    #[serde(default)]
    pub session: Option<SessionId>,
    /// How long the claim lasts unless it is extended. Needed without a session.
    #[serde(default)]
    pub hold_ms: Option<u64>,
    /// Given up if nothing fits for this long.
    #[serde(default)]
    pub max_wait_ms: Option<u64>,
}

fn base() -> i32 {
    BASE_PRIORITY
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum RequestState {
    /// It waits.
    Waiting,
    /// It has a resource.
    Granted,
    /// It gave the resource back.
    Released,
    /// It was called off, by its owner or an operator.
    Cancelled,
    /// Its time ran out, or its session died: waiting or granted.
    Expired,
}

impl RequestState {
    /// All of them.
    pub const ALL: [RequestState; 5] = [
        RequestState::Waiting,
        RequestState::Granted,
        RequestState::Released,
        RequestState::Cancelled,
        RequestState::Expired,
    ];

    /// The word for it, in stores and for people.
    pub fn as_str(self) -> &'static str {
        match self {
            RequestState::Waiting => "waiting",
            RequestState::Granted => "granted",
            RequestState::Released => "released",
            RequestState::Cancelled => "cancelled",
            RequestState::Expired => "expired",
        }
    }

    /// The state for a word of [`as_str`](Self::as_str).
    pub fn from_word(word: &str) -> Option<RequestState> {
        RequestState::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

/// A request as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RequestView {
    /// Which.
    pub id: RequestId,
    /// What was asked for.
    #[serde(flatten)]
    pub request: NewRequest,
    /// Where it stands.
    pub state: RequestState,
    /// Which resource it got.
    pub resource: Option<Name>,
    /// Under which token.
    pub token: Option<Token>,
    /// Its priority when it was looked at, while it waits.
    pub priority: Option<i64>,
    /// When it was made. This and all below: by the store's wall clock, in milliseconds since 1970.
    pub created_at_ms: i64,
    /// When it got the resource.
    pub granted_at_ms: Option<i64>,
    /// When the claim ends unless it is extended.
    pub deadline_ms: Option<i64>,
    /// When it ended.
    pub ended_at_ms: Option<i64>,
}

/// Hands out what is free of one pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolMatch {
    /// Which pool.
    pub pool: PoolKey,
    /// In whose name. [`Authority::Leader`]: to all that wait, in strict order of priority. Otherwise: to `request` alone.
    pub authority: Authority,
    /// The request that is looked at, unless the leader looks at all.
    pub request: Option<RequestId>,
}

/// What is done with a claim of a resource, by who has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handle {
    /// Give it back; or call the request off, if it still waits.
    Release,
    /// Keep it for this long from now, in milliseconds.
    Extend(u64),
}
