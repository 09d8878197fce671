//! Hints: what happened, said sooner than polling would find it.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{GroupKey, PoolKey, QueueKey, TopicKey, Via};
use crate::{ElectionKey, SessionId, Token};

/// Something happened in the store, said sooner than polling would find it. May be lost, doubled or false: a hint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
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
    /// This queue has work, said because a session that may want it sleeps.
    Work(QueueKey),
    /// Claims of this session were called off: it should look at what it holds.
    Recalled(SessionId),
    /// Something was handed out or given back in this pool.
    Pool(PoolKey),
    /// This topic has new events, said because a session that may want them sleeps.
    Events(TopicKey),
    /// Something about this group changed: a member, a share, a pause, something aside.
    Group(GroupKey),
    /// Schedules were set, resumed or deleted: their leader looks anew.
    Schedules,
    /// Hints may have been missed: look at everything.
    Resync,
}

/// A receiver of hints.
#[async_trait]
pub trait WakeSource: Send + 'static {
    /// The next hint; `None` when there will be no more.
    async fn next(&mut self) -> Option<Wake>;
}

/// A boxed [`WakeSource`].
pub type Wakes = Box<dyn WakeSource>;
