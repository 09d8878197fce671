//! The one who breaks things while members gossip: processes and the network between them, one at a time or one of each.
//!
//! Mostly it is the leader that is hit. The network is cut between two sides that are drawn anew each time, both ways or one way, or
//! around the leader. What a process suffers in a cut network may be healed before the network is, or after.

use std::time::Duration;

use tenure_core::{Entropy, SplitMix};
use tenure_testkit::rig::{Switch, true_boottime_ns};

use super::member::MemberPlan;
use super::oracle::Cut;
use super::{HOLD_DOWN, PATIENCE, leading, settled};
use crate::Failed;
use crate::crew::Crew;
use crate::deck::{Deck, below, between, wait};
use crate::faults::Blow;
use crate::oracles::Injected;
use crate::report::Progress;

/// A way to break something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Leader(Blow),
    Other(Blow),
    Netsplit,
    LongNetsplit,
    OneWay,
    MuteLeader,
    DeafenLeader,
}

const ALL: [Fault; 10] = [
    Fault::Leader(Blow::Kill),
    Fault::Leader(Blow::Stop),
    Fault::Leader(Blow::End),
    Fault::Other(Blow::Kill),
    Fault::Other(Blow::Stop),
    Fault::Netsplit,
    Fault::LongNetsplit,
    Fault::OneWay,
    Fault::MuteLeader,
    Fault::DeafenLeader,
];

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Fault::Leader(blow) => ["kill -9 leader", "SIGSTOP leader", "SIGTERM leader"][blow as usize],
            Fault::Other(blow) => ["kill -9 anybody", "SIGSTOP anybody", "SIGTERM anybody"][blow as usize],
            Fault::Netsplit => "netsplit",
            Fault::LongNetsplit => "netsplit that lasts",
            Fault::OneWay => "netsplit one way",
            Fault::MuteLeader => "leader not heard",
            Fault::DeafenLeader => "leader hears nobody",
        }
    }

    fn is_cut(self) -> bool {
        self.is_split() || matches!(self, Fault::OneWay | Fault::MuteLeader | Fault::DeafenLeader)
    }

    /// Whether nothing gets across either way.
    fn is_split(self) -> bool {
        matches!(self, Fault::Netsplit | Fault::LongNetsplit)
    }
}

/// Breaks things for a while.
pub(super) struct Nemesis<'a> {
    pub(super) crew: &'a mut Crew<MemberPlan>,
    pub(super) entropy: &'a mut SplitMix,
    pub(super) progress: &'a mut Progress,
    pub(super) broken: Broken,
}

/// What was broken, and when.
#[derive(Default)]
pub(super) struct Broken {
    pub(super) cuts: Vec<Cut>,
    /// What processes suffered.
    pub(super) others: Vec<Injected>,
}

impl Broken {
    /// All of it.
    pub(super) fn all(&self) -> Vec<Injected> {
        let of_cut = |cut: &Cut| Injected {
            name: cut.name,
            // Whoever is alone on a side is hit; if nobody is, everybody.
            worker: (cut.here.len() == 1).then(|| cut.here[0]),
            from_ns: cut.from_ns,
            to_ns: cut.to_ns,
        };
        self.cuts.iter().map(of_cut).chain(self.others.iter().cloned()).collect()
    }
}

impl Nemesis<'_> {
    /// Breaks and heals until this moment, and tells what was broken when.
    pub(super) fn rage(mut self, until_ns: u64) -> Result<Broken, Failed> {
        let mut deck = Deck::new(ALL.to_vec());
        while true_boottime_ns() < until_ns {
            let Some(first) = deck.draw(self.entropy, |_| true) else { continue };
            // One that lasts is to be seen in peace.
            let alone = first == Fault::LongNetsplit || !first.is_cut();
            let second = match !alone && self.entropy.next_u64().is_multiple_of(2) {
                true => deck.draw(self.entropy, |fault| !fault.is_cut()),
                false => None,
            };
            self.break_and_heal(first, second)?;
            let pause = between(self.entropy, (200, 2_500));
            wait(self.progress, pause);
        }
        Ok(self.broken)
    }

    fn break_and_heal(&mut self, first: Fault, second: Option<Fault>) -> Result<(), Failed> {
        if !first.is_cut() {
            let hit = self.hit(first)?;
            let hold = self.hold(first);
            wait(self.progress, hold);
            return self.mend(hit);
        }
        self.cut(first)?;
        let hold = self.hold(first);
        let before = hold.mul_f64(below(self.entropy, 100) as f64 / 100.0);
        wait(self.progress, before);
        let hit = second.map(|fault| self.hit(fault)).transpose()?;
        wait(self.progress, hold - before);
        let first_the_process = self.entropy.next_u64().is_multiple_of(2);
        match hit {
            Some(hit) if first_the_process => {
                self.mend(hit)?;
                self.heal()
            }
            Some(hit) => {
                self.heal()?;
                let hold = between(self.entropy, (100, 1_500));
                wait(self.progress, hold);
                self.mend(hit)
            }
            None => self.heal(),
        }
    }

    /// Hits a process; tells which fault of them it is.
    fn hit(&mut self, fault: Fault) -> Result<usize, Failed> {
        self.progress.doing(fault.name());
        let anybody = below(self.entropy, self.crew.hands.len());
        let (blow, member) = match fault {
            Fault::Leader(blow) => (blow, self.leader()?.unwrap_or(anybody)),
            Fault::Other(blow) => (blow, anybody),
            _ => return Err(format!("{} hits no process", fault.name()).into()),
        };
        let from_ns = true_boottime_ns();
        blow.hit(self.crew, member, "member", self.progress);
        let injected = Injected { name: fault.name(), worker: Some(member), from_ns, to_ns: u64::MAX };
        self.broken.others.push(injected);
        Ok(self.broken.others.len() - 1)
    }

    fn mend(&mut self, hit: usize) -> Result<(), Failed> {
        if let Some(member) = self.broken.others[hit].worker {
            self.crew.bring_back(member)?;
        }
        self.broken.others[hit].to_ns = true_boottime_ns();
        Ok(())
    }

    /// Cuts the network in two.
    fn cut(&mut self, fault: Fault) -> Result<(), Failed> {
        self.progress.doing(fault.name());
        let members = self.crew.hands.len();
        let leader = self.leader()?.unwrap_or_else(|| below(self.entropy, members));
        let here = match fault {
            Fault::MuteLeader | Fault::DeafenLeader => vec![leader],
            _ => {
                // One of the others or more, but not all.
                let drawn = 1 + below(self.entropy, (1 << members) - 2);
                (0..members).filter(|member| drawn & (1 << member) != 0).collect()
            }
        };
        let both_ways = fault.is_split();
        let switch = self.switch()?;
        let from_ns = true_boottime_ns();
        for a in &here {
            for b in (0..members).filter(|member| !here.contains(member)) {
                if fault != Fault::DeafenLeader {
                    switch.cut(*a, b)?;
                }
                if fault == Fault::DeafenLeader || both_ways {
                    switch.cut(b, *a)?;
                }
            }
        }
        let (mending_ns, to_ns) = (u64::MAX, u64::MAX);
        self.broken.cuts.push(Cut { name: fault.name(), here, both_ways, from_ns, mending_ns, to_ns });
        Ok(())
    }

    fn heal(&mut self) -> Result<(), Failed> {
        let mending_ns = true_boottime_ns();
        self.switch()?.heal()?;
        if let Some(cut) = self.broken.cuts.last_mut() {
            (cut.mending_ns, cut.to_ns) = (mending_ns, true_boottime_ns());
        }
        Ok(())
    }

    fn switch(&self) -> Result<&Switch, Failed> {
        Ok(self.crew.switch.as_ref().ok_or("there is no switch")?)
    }

    /// Who leads just now; of several, any.
    fn leader(&mut self) -> Result<Option<usize>, Failed> {
        let leading = leading(self.crew)?;
        Ok((!leading.is_empty()).then(|| leading[below(self.entropy, leading.len())]))
    }

    /// How long a fault lasts: some are over before anybody has noticed, some are long enough that all have come to terms with them.
    fn hold(&mut self, fault: Fault) -> Duration {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(1000);
        let followed = ms(PATIENCE + HOLD_DOWN);
        let bounds = match fault {
            Fault::Leader(Blow::Stop) | Fault::Other(Blow::Stop) => (ms(PATIENCE) / 2, followed * 2),
            Fault::Leader(_) | Fault::Other(_) => (100, followed),
            Fault::LongNetsplit => (ms(settled()) * 11 / 10, ms(settled()) * 14 / 10),
            _ => (followed / 2, followed * 2),
        };
        between(self.entropy, bounds)
    }
}
