//! A process that says that it lives.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Ask, StoreError, Trouble};
use crate::SessionId;

/// A session to be opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewSession {
    /// Its identity, never used before.
    pub id: SessionId,
    /// What people call the process: `NODE_ID`, or host and process number.
    pub name: String,
    /// How long it must be silent before others may expire it.
    #[serde(rename = "lease_ms", with = "millis")]
    #[cfg_attr(feature = "schema", schema(value_type = u64))]
    pub lease: Duration,
    /// How others learn of its death.
    #[serde(default)]
    pub takeover: Takeover,
    /// On whose behalf a server opened it. `None`: by a process that has the store in its own hands.
    ///
    /// Such a session does not die with the process that opened it: its owner moves on to another server, and only
    /// silence for its lease expires it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

impl NewSession {
    /// Refuses what no store can do.
    pub fn check(&self) -> Result<(), StoreError> {
        match (&self.owner, self.takeover) {
            (Some(owner), Takeover::Connection) => Err(StoreError::new(
                Trouble::Request,
                format!(
                    "a session that a server opens for {owner} can not use the take-over mode `connection`: it outlives \
                     every connection of that server; use `lease`"
                ),
            )),
            _ => Ok(()),
        }
    }
}

/// How the death of a session is established.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum Pulse {
    /// The session lives.
    Alive {
        /// The store's epoch. When it changes, the store was promoted, restored or copied, and what we held may be lost.
        epoch: u32,
        /// What is asked of this session.
        asks: Vec<Ask>,
    },
    /// The session has ended or was expired. All that it held is lost, and it can never come back.
    Gone,
}

/// A session as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
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
    /// On whose behalf a server opened it; `None` if its process has the store in its own hands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

impl SessionView {
    /// Its lease.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }
}

/// A session to be declared dead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Expire {
    /// Which.
    pub session: SessionId,
    /// The epoch in which its silence was seen. Refused if the store is on another: beats may repeat.
    pub epoch: u32,
    /// The beat that was seen to stand still: refused if it has moved. `None` only when the store itself said that
    /// the session's process is gone ([`Wake::Died`]).
    pub beat: Option<u64>,
}

/// A duration as a number of milliseconds.
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
