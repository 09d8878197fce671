//! Detection of dead sessions that own claims.

use crate::port::{ExpireSessionRequest, SessionView};
use crate::rules::lease::HeartbeatTracker;
use crate::{BootInstant, SessionId};

/// Watches the sessions that own claims, for maintenance. These sessions need not be candidates in any election, so no
/// candidate would detect their death.
///
/// It applies the same rule as candidates: a session may be expired after its heartbeat count was *observed* to be
/// unchanged for its whole lease, on the observer's own clock and in one epoch of the store. Losing the observations
/// only delays the detection.
///
/// ```
/// use tenure_core::rules::work::SessionMonitor;
/// use tenure_core::port::SessionView;
/// use tenure_core::{BootInstant, SessionId, SplitMix};
///
/// let at = |seconds: u64| BootInstant::from_nanos(seconds * 1_000_000_000);
/// let id = SessionId::generate(&mut SplitMix::new(1));
/// let view = SessionView {
///     id, name: "w1".into(), heartbeat_count: 3, lease_ms: 10_000, live: true, heartbeat_at_ms: 0, owner: None,
/// };
/// let mut monitor = SessionMonitor::default();
/// assert!(monitor.observe(&[view.clone()], 1, at(0)).is_empty());
/// assert!(monitor.observe(&[view.clone()], 1, at(10)).is_empty(), "a little longer than the lease");
/// assert_eq!(monitor.observe(&[view.clone()], 1, at(11))[0].heartbeat_count, Some(3));
/// ```
#[derive(Clone, Debug, Default)]
pub struct SessionMonitor {
    tracker: HeartbeatTracker,
}

impl SessionMonitor {
    /// Records all watched live sessions, from a read in this epoch that returned at `now`. Returns the sessions to
    /// expire.
    pub fn observe(
        &mut self,
        sessions: &[SessionView],
        epoch: u32,
        now: BootInstant,
    ) -> Vec<ExpireSessionRequest> {
        self.tracker.note_epoch(epoch, now);
        self.tracker.heartbeats.note_sessions(sessions, now);
        let silent = |session: &&SessionView| session.live && self.tracker.heartbeats.is_silent(session, now);
        let expire = |session: &SessionView| ExpireSessionRequest {
            session: session.id.clone(),
            epoch,
            heartbeat_count: (!self.tracker.heartbeats.is_dead(&session.id))
                .then_some(session.heartbeat_count),
        };
        sessions.iter().filter(silent).map(expire).collect()
    }

    /// Records that the store knows for certain that this session's process has exited.
    pub fn died(&mut self, session: SessionId) {
        self.tracker.heartbeats.died(session);
    }

    /// When the first of these sessions may be expired if its heartbeat stays unchanged.
    pub fn next_at(&self, sessions: &[SessionView]) -> Option<BootInstant> {
        sessions.iter().filter_map(|session| self.tracker.heartbeats.silent_at(session)).min()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn session(id: &str, beat: u64) -> SessionView {
        let (name, owner) = (id.to_string(), None);
        let id = SessionId::from_stored(id);
        SessionView {
            id,
            name,
            heartbeat_count: beat,
            lease_ms: 1_000,
            live: true,
            heartbeat_at_ms: 0,
            owner,
        }
    }

    fn ms(ms: u64) -> BootInstant {
        BootInstant::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn a_new_heartbeat_restarts_the_wait() {
        let mut watch = SessionMonitor::default();
        assert_eq!(watch.observe(&[session("a", 1)], 1, ms(0)), []);
        assert_eq!(watch.observe(&[session("a", 2)], 1, ms(1_050)), []);
        assert_eq!(watch.next_at(&[session("a", 2)]), Some(ms(2_100)));
        assert_eq!(watch.observe(&[session("a", 2)], 1, ms(2_099)), []);
        let expire =
            ExpireSessionRequest { session: SessionId::from_stored("a"), epoch: 1, heartbeat_count: Some(2) };
        assert_eq!(watch.observe(&[session("a", 2)], 1, ms(2_100)), [expire]);
    }

    #[test]
    fn a_new_epoch_restarts_the_wait() {
        let mut watch = SessionMonitor::default();
        watch.observe(&[session("a", 1)], 1, ms(0));
        assert_eq!(watch.observe(&[session("a", 1)], 2, ms(5_000)), []);
        assert_eq!(watch.observe(&[session("a", 1)], 2, ms(6_050)).len(), 1);
    }

    #[test]
    fn a_session_reported_dead_is_expired_at_once() {
        let mut watch = SessionMonitor::default();
        watch.observe(&[session("a", 1), session("b", 1)], 1, ms(0));
        watch.died(SessionId::from_stored("a"));
        let expire = watch.observe(&[session("a", 2), session("b", 1)], 1, ms(1));
        assert_eq!(
            expire,
            [ExpireSessionRequest { session: SessionId::from_stored("a"), epoch: 1, heartbeat_count: None }]
        );
    }

    #[test]
    fn an_unobserved_session_is_removed() {
        let mut watch = SessionMonitor::default();
        watch.observe(&[session("a", 1)], 1, ms(0));
        watch.observe(&[], 1, ms(500));
        assert_eq!(watch.observe(&[session("a", 1)], 1, ms(1_500)), []);
    }

    proptest! {
        /// A session that sends heartbeats within its lease is never expired, however the reads are spaced.
        #[test]
        fn a_session_with_heartbeats_is_not_expired(passes in prop::collection::vec(1..1_000u64, 1..50)) {
            let (mut watch, mut now) = (SessionMonitor::default(), 0);
            for pass in passes {
                now += pass;
                // One heartbeat per second.
                prop_assert_eq!(watch.observe(&[session("a", now / 1_000)], 1, ms(now)), []);
            }
        }

        /// No session is expired before its heartbeat was unchanged for a whole lease.
        #[test]
        fn no_session_is_expired_early(passes in prop::collection::vec((1..700u64, any::<bool>()), 1..50)) {
            let (mut watch, mut now, mut beat, mut since) = (SessionMonitor::default(), 0, 0, 0);
            for (pass, beats) in passes {
                now += pass;
                if beats || since == 0 {
                    (beat, since) = (beat + 1, now);
                }
                let expired = !watch.observe(&[session("a", beat)], 1, ms(now)).is_empty();
                prop_assert_eq!(expired, now - since >= 1_050);
            }
        }
    }
}
