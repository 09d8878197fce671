//! Notifications: advisory messages that make processes react sooner than polling.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{GroupKey, PoolKey, QueueKey, StartReason, TopicKey};
use crate::{ElectionKey, SessionId, Token};

/// An advisory message that something changed in the store. It may be lost, duplicated or wrong; receivers read the
/// store before they act.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Notification {
    /// A lease was released.
    LeaseReleased {
        /// Election of the lease.
        election: ElectionKey,
        /// Slot number.
        slot: u32,
        /// Token under which the lease was held.
        token: Token,
        /// Session that released it.
        released_by: SessionId,
        /// Session that gets the next term.
        successor: Option<SessionId>,
        /// Start reason of the next term.
        start_reason: StartReason,
    },
    /// Something else changed in this election: a candidate, a pause or the leader.
    ElectionChanged(ElectionKey),
    /// A request to this session as leader was stored.
    LeaderRequested(SessionId),
    /// This session ended regularly and released everything it held.
    SessionEnded(SessionId),
    /// The store is certain that the process of this session has exited or, in mode
    /// [`TakeoverMode::Connection`](super::TakeoverMode::Connection), that its connection has ended. Each client
    /// creates this notification locally; processes never send it to each other.
    SessionExpired(SessionId),
    /// The connection of this client's own session, in mode
    /// [`TakeoverMode::Connection`](super::TakeoverMode::Connection), was lost, so another process may have taken over.
    /// Each client creates this notification locally; processes never send it to each other.
    ConnectionLost(SessionId),
    /// This queue has ready tasks. Sent only if a session is registered as a waiter.
    QueueReady(QueueKey),
    /// Claims of this session were cancelled. The session must compare its claims with the store.
    ClaimCancelled(SessionId),
    /// A resource of this pool was granted or released.
    PoolChanged(PoolKey),
    /// This topic has new events. Sent only if a session is registered as a waiter.
    TopicPublished(TopicKey),
    /// Something changed in this group: a member, a partition lease, a pause or a parked event.
    GroupChanged(GroupKey),
    /// Schedules were set, resumed or deleted. The scheduler must read the due schedules again.
    SchedulesChanged,
    /// Notifications may have been missed. Receivers must read everything again.
    Resync,
}

/// A receiver of store notifications.
#[async_trait]
pub trait NotificationSource: Send + 'static {
    /// The next notification. `None` when the stream has ended.
    async fn next(&mut self) -> Option<Notification>;
}

/// A boxed [`NotificationSource`].
pub type BoxNotificationSource = Box<dyn NotificationSource>;
