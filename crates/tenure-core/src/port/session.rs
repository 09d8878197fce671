//! Sessions: one run of one process, kept live by heartbeats.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ErrorKind, LeaderRequest, StoreError};
use crate::SessionId;

/// A request to open a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct OpenSessionRequest {
    /// Random id, never used before.
    pub id: SessionId,
    /// Display name of the process: the node name, or host and process id.
    pub name: String,
    /// Lease duration: how long the session must be silent before another process may expire it.
    #[serde(rename = "lease_ms", with = "millis")]
    #[cfg_attr(feature = "schema", schema(value_type = u64))]
    pub lease: Duration,
    /// How other processes establish that the session is dead.
    #[serde(default)]
    pub takeover: TakeoverMode,
    /// Principal for which a server opened the session. `None` if the process uses the store directly.
    ///
    /// Such a session does not end with the server process: its owner can continue at another server. It expires only
    /// after it was silent for its whole lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

impl OpenSessionRequest {
    /// Rejects options that no store supports.
    pub fn check(&self) -> Result<(), StoreError> {
        match (&self.owner, self.takeover) {
            (Some(owner), TakeoverMode::Connection) => Err(StoreError::new(
                ErrorKind::Request,
                format!(
                    "a session that a server opens for {owner} cannot use the takeover mode `connection`, \
                     because it outlives the connections of the server; use `lease`"
                ),
            )),
            _ => Ok(()),
        }
    }
}

/// How other processes establish that a session is dead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TakeoverMode {
    /// After a whole lease without a new heartbeat, or when the kernel reports that the process has exited.
    #[default]
    Lease,
    /// As in mode `Lease`, and also when the session's connection to the store ends. A takeover after a crash is
    /// faster, but the guarantee is *weaker*: a lost connection does not prove that the process is dead, so two
    /// processes may act as leader for up to two thirds of a lease. Fencing tokens still reject the writes of the
    /// former leader.
    Connection,
}

/// The result of opening a session or of a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum HeartbeatResponse {
    /// The session is live.
    Live {
        /// Epoch of the store. If it changes, the store was promoted, restored or copied, and leases held before may
        /// be lost.
        epoch: u32,
        /// Pending requests to this session as leader.
        leader_requests: Vec<LeaderRequest>,
    },
    /// The session ended or was expired. It lost everything it held and cannot be reopened.
    SessionEnded,
}

/// A session as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionView {
    /// Session id.
    pub id: SessionId,
    /// Display name of the process.
    pub name: String,
    /// Number of heartbeats received.
    pub heartbeat_count: u64,
    /// Lease duration in milliseconds.
    pub lease_ms: u64,
    /// Whether the session is live.
    pub live: bool,
    /// Time of the last heartbeat, by the store's wall clock. For display only.
    pub heartbeat_at_ms: i64,
    /// Principal for which a server opened the session. `None` if the process uses the store directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

impl SessionView {
    /// Lease duration.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }
}

/// A request to expire a silent session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ExpireSessionRequest {
    /// Session to expire.
    pub session: SessionId,
    /// Epoch in which the silence was observed. Rejected in another epoch, because heartbeat counts may repeat there.
    pub epoch: u32,
    /// The heartbeat count that stayed unchanged. Rejected if the count differs. `None` only if the store itself
    /// reported that the process is gone ([`Notification::SessionExpired`](super::Notification::SessionExpired)).
    pub heartbeat_count: Option<u64>,
}

/// Durations serialized as milliseconds.
mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}
