//! Whose beat stands still, on our own clock.

use crate::lease::Eyes;
use crate::port::{Expire, SessionView};
use crate::{Moment, SessionId};

/// Watches the sessions on which claims hang, for the keeper: nobody stands for an election in their name, so nobody else
/// would find that they are dead.
///
/// It goes by the same rule as every candidate does: a session may be expired after its beat was *seen* to stand still for its
/// whole lease, on the watcher's own clock, and in one epoch of the store. To forget what was seen costs patience, and
/// nothing else.
///
/// ```
/// use tenure_core::claim::Deathwatch;
/// use tenure_core::port::SessionView;
/// use tenure_core::{Moment, SessionId, SplitMix};
///
/// let at = |seconds: u64| Moment::from_nanos(seconds * 1_000_000_000);
/// let id = SessionId::generate(&mut SplitMix::new(1));
/// let view = SessionView {
///     id, name: "w1".into(), beat: 3, lease_ms: 10_000, live: true, beat_at_ms: 0, owner: None,
/// };
/// let mut watch = Deathwatch::default();
/// assert!(watch.saw(&[view.clone()], 1, at(0)).is_empty());
/// assert!(watch.saw(&[view.clone()], 1, at(10)).is_empty(), "a little longer than the lease");
/// assert_eq!(watch.saw(&[view.clone()], 1, at(11))[0].beat, Some(3));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Deathwatch {
    eyes: Eyes,
}

impl Deathwatch {
    /// Takes in the live sessions, all that are watched, by a look that returned `now` in this epoch. Those to expire.
    pub fn saw(&mut self, sessions: &[SessionView], epoch: u32, now: Moment) -> Vec<Expire> {
        self.eyes.note_epoch(epoch, now);
        self.eyes.sightings.note_sessions(sessions, now);
        let silent = |session: &&SessionView| session.live && self.eyes.sightings.is_silent(session, now);
        let expire = |session: &SessionView| Expire {
            session: session.id.clone(),
            epoch,
            beat: (!self.eyes.sightings.is_dead(&session.id)).then_some(session.beat),
        };
        sessions.iter().filter(silent).map(expire).collect()
    }

    /// The store knows for certain that this session's process is gone.
    pub fn died(&mut self, session: SessionId) {
        self.eyes.sightings.died(session);
    }

    /// When the first of these sessions may be expired, if nothing more is heard of it.
    pub fn next_at(&self, sessions: &[SessionView]) -> Option<Moment> {
        sessions.iter().filter_map(|session| self.eyes.sightings.silent_at(session)).min()
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
        SessionView { id, name, beat, lease_ms: 1_000, live: true, beat_at_ms: 0, owner }
    }

    fn ms(ms: u64) -> Moment {
        Moment::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn a_beat_that_moves_starts_anew() {
        let mut watch = Deathwatch::default();
        assert_eq!(watch.saw(&[session("a", 1)], 1, ms(0)), []);
        assert_eq!(watch.saw(&[session("a", 2)], 1, ms(1_050)), []);
        assert_eq!(watch.next_at(&[session("a", 2)]), Some(ms(2_100)));
        assert_eq!(watch.saw(&[session("a", 2)], 1, ms(2_099)), []);
        let expire = Expire { session: SessionId::from_stored("a"), epoch: 1, beat: Some(2) };
        assert_eq!(watch.saw(&[session("a", 2)], 1, ms(2_100)), [expire]);
    }

    #[test]
    fn a_new_epoch_starts_anew() {
        let mut watch = Deathwatch::default();
        watch.saw(&[session("a", 1)], 1, ms(0));
        assert_eq!(watch.saw(&[session("a", 1)], 2, ms(5_000)), []);
        assert_eq!(watch.saw(&[session("a", 1)], 2, ms(6_050)).len(), 1);
    }

    #[test]
    fn who_is_known_to_be_dead_is_expired_at_once_whatever_its_beat() {
        let mut watch = Deathwatch::default();
        watch.saw(&[session("a", 1), session("b", 1)], 1, ms(0));
        watch.died(SessionId::from_stored("a"));
        let expire = watch.saw(&[session("a", 2), session("b", 1)], 1, ms(1));
        assert_eq!(expire, [Expire { session: SessionId::from_stored("a"), epoch: 1, beat: None }]);
    }

    #[test]
    fn who_is_not_seen_is_forgotten() {
        let mut watch = Deathwatch::default();
        watch.saw(&[session("a", 1)], 1, ms(0));
        watch.saw(&[], 1, ms(500));
        assert_eq!(watch.saw(&[session("a", 1)], 1, ms(1_500)), []);
    }

    proptest! {
        /// A session that beats within its lease, as its looks show it, is never expired, however the looks are spaced.
        #[test]
        fn who_beats_lives(looks in prop::collection::vec(1..1_000u64, 1..50)) {
            let (mut watch, mut now) = (Deathwatch::default(), 0);
            for pass in looks {
                now += pass;
                // One beat a second.
                prop_assert_eq!(watch.saw(&[session("a", now / 1_000)], 1, ms(now)), []);
            }
        }

        /// Nobody is expired before a whole lease of standing still was seen.
        #[test]
        fn nobody_is_expired_early(looks in prop::collection::vec((1..700u64, any::<bool>()), 1..50)) {
            let (mut watch, mut now, mut beat, mut since) = (Deathwatch::default(), 0, 0, 0);
            for (pass, beats) in looks {
                now += pass;
                if beats || since == 0 {
                    (beat, since) = (beat + 1, now);
                }
                let expired = !watch.saw(&[session("a", beat)], 1, ms(now)).is_empty();
                prop_assert_eq!(expired, now - since >= 1_050);
            }
        }
    }
}
