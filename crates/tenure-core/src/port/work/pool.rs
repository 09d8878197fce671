//! Pools, resources and pool requests.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{AssignmentMode, BrokerFallback, ClaimAuthority};
use crate::port::Pause;
use crate::{Name, SessionId, Token};

/// Identity of a pool: a name in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PoolKey {
    /// Namespace.
    pub namespace: Name,
    /// Name of the pool.
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

/// Settings of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct PoolSettings {
    /// How resources are assigned.
    pub mode: AssignmentMode,
    /// What happens in exclusive mode while the broker cannot be reached.
    pub fallback: BrokerFallback,
    /// Cooldown: how long a released resource stays unavailable.
    pub cooldown_ms: u64,
    /// Formula of a request's priority over `base_priority`, `age_minutes`, `simple` (1 if the request has no tags,
    /// else 0), `required_tags` and `preferred_tags` (numbers of tags). See [`Formula`](crate::rules::work::Formula).
    pub priority_formula: String,
    /// Retention of ended requests.
    pub request_retention_ms: u64,
}

impl Default for PoolSettings {
    fn default() -> Self {
        PoolSettings {
            mode: AssignmentMode::Distributed,
            fallback: BrokerFallback::None,
            cooldown_ms: 0,
            priority_formula: "base_priority + age_minutes + 50 * simple".into(),
            request_retention_ms: 86_400_000,
        }
    }
}

/// Default base priority of a request.
pub const BASE_PRIORITY: i32 = 100;

/// A pool as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PoolView {
    /// Namespace and name.
    #[serde(flatten)]
    pub key: PoolKey,
    /// Settings.
    pub settings: PoolSettings,
    /// Set while the namespace is paused and nothing is granted.
    pub paused: Option<Pause>,
    /// Resources, ordered by name.
    pub resources: Vec<ResourceView>,
    /// Waiting requests, the next one first.
    pub waiting_requests: Vec<PoolRequestView>,
}

/// A resource to add to a pool, or the new state of an existing one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewResource {
    /// Name in the pool.
    pub name: Name,
    /// Tags of the resource.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Whether the resource may be granted. Disabling does not end a current grant.
    #[serde(default = "yes")]
    pub enabled: bool,
}

fn yes() -> bool {
    true
}

/// A resource as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ResourceView {
    /// Name, tags and whether it is enabled.
    #[serde(flatten)]
    pub resource: NewResource,
    /// Token of the latest grant.
    pub token: Token,
    /// Request that holds the resource.
    pub held_by: Option<PoolRequestView>,
    /// End of the cooldown, by the store's wall clock, in milliseconds since 1970.
    pub cooldown_until_at_ms: Option<i64>,
}

/// Id of a pool request, unique in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(value_type = u64, example = 7))]
pub struct PoolRequestId(pub u64);

impl fmt::Display for PoolRequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A request for a resource of a pool. With a session, the grant lasts while the session sends heartbeats; with a claim
/// timeout, it lasts for that time. With both, it ends when the first of them ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PoolRequest {
    /// Idempotency key. While a request with this key is waiting or granted, another call with the key returns it.
    pub idempotency_key: String,
    /// Principal or process that owns the request. Another owner cannot use the same key.
    pub owner: String,
    /// Tags that the resource must have.
    #[serde(default)]
    pub required_tags: Vec<String>,
    /// Preferred tags: among the free resources that qualify, the one with the most of them is granted.
    #[serde(default)]
    pub preferred_tags: Vec<String>,
    /// Base priority; [`BASE_PRIORITY`] by default.
    #[serde(default = "base")]
    pub base_priority: i32,
    /// Session whose heartbeats keep the request and the grant.
    #[serde(default)]
    pub session: Option<SessionId>,
    /// Claim timeout: how long the grant lasts without a heartbeat of the request. Required without a session.
    #[serde(default)]
    pub claim_timeout_ms: Option<u64>,
    /// Maximum wait: the request expires if nothing is granted for this long.
    #[serde(default)]
    pub max_wait_ms: Option<u64>,
}

fn base() -> i32 {
    BASE_PRIORITY
}

/// State of a pool request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum PoolRequestState {
    /// It waits for a resource.
    Waiting,
    /// It holds a resource.
    Granted,
    /// It released the resource.
    Released,
    /// Its owner or an operator cancelled it.
    Cancelled,
    /// Its time ran out or its session ended, while it waited or held a resource.
    Expired,
}

impl PoolRequestState {
    /// All states.
    pub const ALL: [PoolRequestState; 5] = [
        PoolRequestState::Waiting,
        PoolRequestState::Granted,
        PoolRequestState::Released,
        PoolRequestState::Cancelled,
        PoolRequestState::Expired,
    ];

    /// Name of the state, as stored and displayed.
    pub fn as_str(self) -> &'static str {
        match self {
            PoolRequestState::Waiting => "waiting",
            PoolRequestState::Granted => "granted",
            PoolRequestState::Released => "released",
            PoolRequestState::Cancelled => "cancelled",
            PoolRequestState::Expired => "expired",
        }
    }

    /// Parses a name from [`as_str`](Self::as_str).
    pub fn from_name(word: &str) -> Option<PoolRequestState> {
        PoolRequestState::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

/// A pool request as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PoolRequestView {
    /// Request id.
    pub id: PoolRequestId,
    /// The request as made.
    #[serde(flatten)]
    pub request: PoolRequest,
    /// State.
    pub state: PoolRequestState,
    /// Granted resource.
    pub resource: Option<Name>,
    /// Token of the grant.
    pub token: Option<Token>,
    /// Priority at the time of reading, while it waits.
    pub priority: Option<i64>,
    /// Time of creation. This and the following times are by the store's wall clock, in milliseconds since 1970.
    pub created_at_ms: i64,
    /// Time of the grant.
    pub granted_at_ms: Option<i64>,
    /// When the grant ends without a heartbeat of the request.
    pub expires_at_ms: Option<i64>,
    /// When the request ended.
    pub ended_at_ms: Option<i64>,
}

/// A request to grant the free resources of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolMatchRequest {
    /// Pool to match.
    pub pool: PoolKey,
    /// Authority of the caller. [`ClaimAuthority::Leader`] matches all waiting requests in strict order of priority.
    /// The others match only `request`.
    pub authority: ClaimAuthority,
    /// Request to match, unless the broker matches all.
    pub request: Option<PoolRequestId>,
}

/// An owner's action on a pool request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolRequestAction {
    /// Release the resource, or cancel the request if it still waits.
    Release,
    /// A heartbeat: extend the grant to this many milliseconds from now.
    Heartbeat(u64),
}
