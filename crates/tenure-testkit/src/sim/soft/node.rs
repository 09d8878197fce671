//! One process, and all that it has heard.

use std::collections::BTreeMap;

use tenure_core::Moment;
use tenure_core::soft::{Pulses, Rank, Rival, SoftCandidate, SoftSight, Stance};

use super::plan::{Plan, SoftMistake};

/// What is known of a process: the greater beat and the greater version are the newer.
#[derive(Clone, Debug)]
pub(super) struct Word {
    pub(super) at: usize,
    pub(super) beat: u64,
    pub(super) version: u64,
    pub(super) rank: Rank,
    /// `None`: it has left.
    pub(super) stance: Option<Stance>,
}

/// One start of a process.
pub(super) struct Node {
    pub(super) candidate: SoftCandidate,
    pub(super) heard: BTreeMap<String, Word>,
    pulses: Pulses,
    pub(super) paused_until: u64,
    /// How fast its clock goes, in millionths.
    rate: u64,
    mistake: Option<SoftMistake>,
}

impl Node {
    pub(super) fn new(
        plan: &Plan,
        at: usize,
        rank: Rank,
        rate: u64,
        now: u64,
        mistake: Option<SoftMistake>,
    ) -> Self {
        let word = Word { at, beat: 1, version: 1, rank: rank.clone(), stance: Some(Stance::Standing) };
        Node {
            candidate: SoftCandidate::new(rank.clone(), plan.believed, local(now, rate)),
            heard: [(rank.id, word)].into(),
            pulses: Pulses::new(plan.pace.patience()),
            paused_until: 0,
            rate,
            mistake,
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.candidate.rank().id
    }

    /// Whether it believes that it leads, at this moment of true time.
    pub(super) fn believes(&self, now: u64) -> bool {
        match (self.candidate.trusted_until(), self.mistake) {
            (until, Some(SoftMistake::TrustKeptAsAFlag)) => until.is_some(),
            (until, _) => until.is_some_and(|until| local(now, self.rate) < until),
        }
    }

    /// Its own beat, before a round.
    pub(super) fn beat(&mut self) {
        self.mine(|word| word.beat += 1);
    }

    pub(super) fn leave(&mut self) {
        self.mine(|word| (word.version, word.stance) = (word.version + 1, None));
    }

    pub(super) fn hear(&mut self, words: &BTreeMap<String, Word>) {
        let me = self.id().to_owned();
        for (id, word) in words.iter().filter(|(id, _)| **id != me) {
            let known = self.heard.entry(id.clone()).or_insert_with(|| word.clone());
            known.beat = known.beat.max(word.beat);
            if word.version > known.version {
                (known.version, known.stance) = (word.version, word.stance);
            }
        }
    }

    /// Looks at what it has heard. Whether it has just begun to lead.
    pub(super) fn look(&mut self, now: u64) -> bool {
        let now = local(now, self.rate);
        let me = self.id().to_owned();
        self.pulses.observe(now, self.heard.iter().map(|(id, word)| (id.as_str(), word.beat)));
        let mut sight = SoftSight::default();
        for (id, word) in self.heard.iter().filter(|(id, _)| **id != me) {
            match word.stance {
                None => {
                    sight.parted.insert(id.clone());
                }
                Some(stance) if self.counts_as_live(id) => {
                    sight.rivals.insert(id.clone(), Rival { rank: word.rank.clone(), stance });
                }
                Some(_) => {}
            }
        }
        let before = self.candidate.stance();
        let stance = self.candidate.observe(now, sight);
        if before != stance {
            self.mine(|word| (word.version, word.stance) = (word.version + 1, Some(stance)));
        }
        before != Stance::Leading && stance == Stance::Leading
    }

    /// Where those are whom it may gossip with: alive, and not.
    pub(super) fn peers(&self) -> (Vec<usize>, Vec<usize>) {
        let others = self.heard.iter().filter(|(id, word)| *id != self.id() && word.stance.is_some());
        let (live, dead): (Vec<_>, Vec<_>) = others.partition(|(id, _)| self.pulses.is_live(id));
        let at = |found: Vec<(&String, &Word)>| found.into_iter().map(|(_, word)| word.at).collect();
        (at(live), at(dead))
    }

    fn counts_as_live(&self, id: &str) -> bool {
        let never_moved = self.pulses.moved(id).is_none();
        self.pulses.is_live(id) || (self.mistake == Some(SoftMistake::AnyBeatIsLife) && never_moved)
    }

    fn mine(&mut self, change: impl FnOnce(&mut Word)) {
        let me = self.id().to_owned();
        if let Some(word) = self.heard.get_mut(&me) {
            change(word);
        }
    }
}

/// What a clock of this rate shows.
fn local(now: u64, rate: u64) -> Moment {
    Moment::from_nanos((u128::from(now) * u128::from(rate) / 1_000_000) as u64)
}
