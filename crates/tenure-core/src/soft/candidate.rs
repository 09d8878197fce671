//! One candidate of a soft election.

use std::collections::{BTreeMap, BTreeSet};

use super::pace::Pace;
use super::rank::{Rank, Rival, Stance};
use crate::Moment;

/// The others, as they are seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SoftSight {
    /// Those who are alive and stand, by id.
    pub rivals: BTreeMap<String, Rival>,
    /// Those who have said that they stand no longer, or that they leave. Who is in neither has gone silent, and may well lead where
    /// we do not hear it.
    pub parted: BTreeSet<String>,
}

/// One candidate: feed it what is seen, and it says what it is.
///
/// ```
/// use std::time::Duration;
/// use tenure_core::{Moment, soft::{Pace, Rank, SoftCandidate, SoftSight, Stance}};
///
/// let rank = Rank { priority: 0, generation: 1, id: "a".into() };
/// let mut alone = SoftCandidate::new(rank, Pace::default(), Moment::ZERO);
/// let mut now = Moment::ZERO;
/// while alone.observe(now, SoftSight::default()) != Stance::Leading {
///     now = alone.wake().unwrap();
/// }
/// assert_eq!(now, Moment::ZERO + Pace::default().hold_down() + Pace::default().settle());
/// ```
#[derive(Clone, Debug)]
pub struct SoftCandidate {
    rank: Rank,
    pace: Pace,
    stance: Stance,
    seen: SoftSight,
    /// When something was last in doubt.
    doubted: Moment,
    /// Since when it is ready, if nothing is in doubt.
    ready: Option<Moment>,
    /// Since when it ranks first among those who are ready.
    first: Option<Moment>,
    looked: Moment,
}

impl SoftCandidate {
    /// A candidate that has just come: whether somebody leads already, it has yet to hear.
    pub fn new(rank: Rank, pace: Pace, now: Moment) -> Self {
        SoftCandidate {
            rank,
            pace,
            stance: Stance::Standing,
            seen: SoftSight::default(),
            doubted: now,
            ready: None,
            first: None,
            looked: now,
        }
    }

    /// What it says of itself.
    pub fn stance(&self) -> Stance {
        self.stance
    }

    /// Its rank.
    pub fn rank(&self) -> &Rank {
        &self.rank
    }

    /// Until when it may be believed that it leads, if it does.
    pub fn trusted_until(&self) -> Option<Moment> {
        (self.stance == Stance::Leading).then(|| self.looked + self.pace.trust())
    }

    /// Looks. To be called whenever what is seen has changed, at [`wake`](Self::wake), and at least once a round.
    pub fn observe(&mut self, now: Moment, sight: SoftSight) -> Stance {
        if now.since(self.looked) > self.pace.trust() {
            // It was stopped, or its machine slept. Others may have followed it by now.
            (self.doubted, self.stance) = (now, Stance::Standing);
        }
        self.looked = now;
        if self.seen.rivals.values().any(|rival| self.is_missed(rival, &sight)) {
            self.doubted = now;
        }
        self.seen = sight;
        self.stance = self.decide(now);
        self.stance
    }

    /// When it is to look again, if nothing changes.
    pub fn wake(&self) -> Option<Moment> {
        match self.stance {
            Stance::Leading => None,
            Stance::Standing => Some(self.doubted + self.pace.hold_down()),
            Stance::Ready => self.turn(),
        }
    }

    fn decide(&mut self, now: Moment) -> Stance {
        let better = self.seen.rivals.values().any(|r| r.rank < self.rank && r.stance != Stance::Standing);
        if self.stance == Stance::Leading {
            if !better {
                return Stance::Leading;
            }
            self.ready = Some(now);
        }
        if now < self.doubted + self.pace.hold_down() {
            (self.ready, self.first) = (None, None);
            return Stance::Standing;
        }
        self.ready.get_or_insert(now);
        self.first = if better { None } else { self.first.or(Some(now)) };
        match self.turn() {
            Some(turn) if turn <= now => Stance::Leading,
            _ => Stance::Ready,
        }
    }

    /// When it leads, if nothing changes. All are to have heard that it is ready; and somebody worse who leads is to have stopped, unless
    /// it does not hear us at all.
    fn turn(&self) -> Option<Moment> {
        let (ready, first) = (self.ready?, self.first?);
        let settled = ready + self.pace.settle();
        Some(if self.is_contested() { settled.max(first + self.pace.hold_down()) } else { settled })
    }

    /// Whether somebody else says that it leads.
    fn is_contested(&self) -> bool {
        self.seen.rivals.values().any(|rival| rival.stance == Stance::Leading)
    }

    /// Whether one that was seen is gone without a word, and may lead elsewhere.
    fn is_missed(&self, rival: &Rival, sight: &SoftSight) -> bool {
        let matters = rival.rank < self.rank || rival.stance == Stance::Leading;
        matters && !sight.rivals.contains_key(&rival.rank.id) && !sight.parted.contains(&rival.rank.id)
    }
}
