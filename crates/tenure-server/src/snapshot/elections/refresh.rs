//! What to refresh next.

use std::collections::BTreeSet;

use tenure::port::Notification;
use tenure::{ElectionKey, SessionId};

use super::ElectionsSnapshot;

/// What to refresh next: notifications and requests collected while a read is in progress.
#[derive(Debug, Default)]
pub(super) struct RefreshRequest {
    /// Everything.
    pub(super) all: bool,
    /// These elections.
    pub(super) elections: BTreeSet<ElectionKey>,
    /// Sessions that the store reports as expired.
    pub(super) expired: Vec<SessionId>,
    /// Round that will contain the refresh.
    pub(super) round: u64,
}

impl RefreshRequest {
    /// Initial request: everything.
    pub(super) fn everything() -> RefreshRequest {
        RefreshRequest { all: true, round: 1, ..RefreshRequest::default() }
    }

    /// Whether there is nothing to refresh.
    pub(super) fn is_empty(&self) -> bool {
        !self.all && self.elections.is_empty() && self.expired.is_empty()
    }

    /// Take the request; later requests belong to the next round.
    pub(super) fn take(&mut self) -> RefreshRequest {
        let next = RefreshRequest { round: self.round + 1, ..RefreshRequest::default() };
        std::mem::replace(self, next)
    }

    /// Add the elections that a notification concerns.
    pub(super) fn add_notification(&mut self, notification: Notification, snapshot: &ElectionsSnapshot) {
        match notification {
            Notification::LeaseReleased { election, .. } | Notification::ElectionChanged(election) => {
                self.elections.insert(election);
            }
            Notification::SessionEnded(session) => self.elections.extend(snapshot.elections_of(&session)),
            Notification::SessionExpired(session) => {
                self.elections.extend(snapshot.elections_of(&session));
                self.expired.push(session);
            }
            Notification::Resync => self.all = true,
            Notification::LeaderRequested(_)
            | Notification::ConnectionLost(_)
            | Notification::QueueReady(_)
            | Notification::ClaimCancelled(_)
            | Notification::PoolChanged(_)
            | Notification::TopicPublished(_)
            | Notification::GroupChanged(_)
            | Notification::SchedulesChanged => {}
        }
    }
}

impl ElectionsSnapshot {
    /// Elections that a session takes part in or leads.
    pub(super) fn elections_of(&self, session: &SessionId) -> impl Iterator<Item = ElectionKey> {
        let there = |entry: &super::CachedElection| {
            entry.candidate(session).is_some() || entry.held_by(session).next().is_some()
        };
        self.elections.iter().filter(move |(_, entry)| there(entry)).map(|(key, _)| key.clone())
    }
}
