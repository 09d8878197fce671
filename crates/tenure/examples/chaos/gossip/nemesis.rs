//! The fault injector of the gossip scenario: processes and the network, one fault at a time or one of each.
//!
//! Faults mostly affect the leader. A network fault separates two random sides, in both directions or in one, or
//! isolates the leader. A process fault during a network fault is healed before or after it.

use std::time::Duration;

use tenure_core::{Entropy, SplitMix};
use tenure_testkit::rig::{NetworkSwitch, true_boottime_ns};

use super::member::MemberPlan;
use super::oracle::NetworkFault;
use super::{HOLD_DOWN, SILENCE_LIMIT, leading, settled};
use crate::Failed;
use crate::fault_deck::{Deck, below, between, wait};
use crate::faults::ProcessFault;
use crate::oracles::Injected;
use crate::report::Progress;
use crate::worker_processes::WorkerProcesses;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Leader(ProcessFault),
    Other(ProcessFault),
    Split,
    LongSplit,
    OneWay,
    BlockLeaderSending,
    BlockLeaderReceiving,
}

const ALL: [Fault; 10] = [
    Fault::Leader(ProcessFault::Kill),
    Fault::Leader(ProcessFault::Stop),
    Fault::Leader(ProcessFault::End),
    Fault::Other(ProcessFault::Kill),
    Fault::Other(ProcessFault::Stop),
    Fault::Split,
    Fault::LongSplit,
    Fault::OneWay,
    Fault::BlockLeaderSending,
    Fault::BlockLeaderReceiving,
];

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Fault::Leader(process_fault) => {
                ["kill -9 leader", "SIGSTOP leader", "SIGTERM leader"][process_fault as usize]
            }
            Fault::Other(process_fault) => {
                ["kill -9 member", "SIGSTOP member", "SIGTERM member"][process_fault as usize]
            }
            Fault::Split => "network split",
            Fault::LongSplit => "long network split",
            Fault::OneWay => "one-way network split",
            Fault::BlockLeaderSending => "leader cannot send",
            Fault::BlockLeaderReceiving => "leader cannot receive",
        }
    }

    fn is_network_fault(self) -> bool {
        self.is_split()
            || matches!(self, Fault::OneWay | Fault::BlockLeaderSending | Fault::BlockLeaderReceiving)
    }

    /// Whether no datagram crosses in either direction.
    fn is_split(self) -> bool {
        matches!(self, Fault::Split | Fault::LongSplit)
    }
}

/// Injects faults for a while.
pub(super) struct Nemesis<'a> {
    pub(super) workers: &'a mut WorkerProcesses<MemberPlan>,
    pub(super) entropy: &'a mut SplitMix,
    pub(super) progress: &'a mut Progress,
    pub(super) broken: Broken,
}

/// The injected faults.
#[derive(Default)]
pub(super) struct Broken {
    pub(super) network_faults: Vec<NetworkFault>,
    /// Faults of processes.
    pub(super) others: Vec<Injected>,
}

impl Broken {
    /// All faults.
    pub(super) fn all(&self) -> Vec<Injected> {
        let of_network_fault = |separate: &NetworkFault| Injected {
            name: separate.name,
            // A member that is alone on its side is affected; otherwise all members are.
            worker: (separate.here.len() == 1).then(|| separate.here[0]),
            from_ns: separate.from_ns,
            to_ns: separate.to_ns,
        };
        self.network_faults.iter().map(of_network_fault).chain(self.others.iter().cloned()).collect()
    }
}

impl Nemesis<'_> {
    /// Inject and heal faults until this time; returns the injected faults.
    pub(super) fn run(mut self, until_ns: u64) -> Result<Broken, Failed> {
        let mut deck = Deck::new(ALL.to_vec());
        while true_boottime_ns() < until_ns {
            let Some(first) = deck.draw(self.entropy, |_| true) else { continue };
            // A long split runs without another fault.
            let alone = first == Fault::LongSplit || !first.is_network_fault();
            let second = match !alone && self.entropy.next_u64().is_multiple_of(2) {
                true => deck.draw(self.entropy, |fault| !fault.is_network_fault()),
                false => None,
            };
            self.break_and_heal(first, second)?;
            let pause = between(self.entropy, (200, 2_500));
            wait(self.progress, pause);
        }
        Ok(self.broken)
    }

    fn break_and_heal(&mut self, first: Fault, second: Option<Fault>) -> Result<(), Failed> {
        if !first.is_network_fault() {
            let process_fault_index = self.apply(first)?;
            let duration = self.duration(first);
            wait(self.progress, duration);
            return self.heal_process(process_fault_index);
        }
        self.separate(first)?;
        let duration = self.duration(first);
        let before = duration.mul_f64(below(self.entropy, 100) as f64 / 100.0);
        wait(self.progress, before);
        let process_fault_index = second.map(|fault| self.apply(fault)).transpose()?;
        wait(self.progress, duration - before);
        let first_the_process = self.entropy.next_u64().is_multiple_of(2);
        match process_fault_index {
            Some(process_fault_index) if first_the_process => {
                self.heal_process(process_fault_index)?;
                self.heal()
            }
            Some(process_fault_index) => {
                self.heal()?;
                let duration = between(self.entropy, (100, 1_500));
                wait(self.progress, duration);
                self.heal_process(process_fault_index)
            }
            None => self.heal(),
        }
    }

    /// Apply a process fault; returns its index.
    fn apply(&mut self, fault: Fault) -> Result<usize, Failed> {
        self.progress.doing(fault.name());
        let random_member = below(self.entropy, self.workers.slots.len());
        let (process_fault, member) = match fault {
            Fault::Leader(process_fault) => (process_fault, self.leader()?.unwrap_or(random_member)),
            Fault::Other(process_fault) => (process_fault, random_member),
            _ => return Err(format!("{} is not a process fault", fault.name()).into()),
        };
        let from_ns = true_boottime_ns();
        process_fault.apply(self.workers, member, "member", self.progress);
        let injected = Injected { name: fault.name(), worker: Some(member), from_ns, to_ns: u64::MAX };
        self.broken.others.push(injected);
        Ok(self.broken.others.len() - 1)
    }

    fn heal_process(&mut self, process_fault_index: usize) -> Result<(), Failed> {
        if let Some(member) = self.broken.others[process_fault_index].worker {
            self.workers.bring_back(member)?;
        }
        self.broken.others[process_fault_index].to_ns = true_boottime_ns();
        Ok(())
    }

    /// Separate the network into two sides.
    fn separate(&mut self, fault: Fault) -> Result<(), Failed> {
        self.progress.doing(fault.name());
        let members = self.workers.slots.len();
        let leader = self.leader()?.unwrap_or_else(|| below(self.entropy, members));
        let here = match fault {
            Fault::BlockLeaderSending | Fault::BlockLeaderReceiving => vec![leader],
            _ => {
                // A random non-empty proper subset.
                let drawn = 1 + below(self.entropy, (1 << members) - 2);
                (0..members).filter(|member| drawn & (1 << member) != 0).collect()
            }
        };
        let both_ways = fault.is_split();
        let switch = self.switch()?;
        let from_ns = true_boottime_ns();
        for a in &here {
            for b in (0..members).filter(|member| !here.contains(member)) {
                if fault != Fault::BlockLeaderReceiving {
                    switch.cut(*a, b)?;
                }
                if fault == Fault::BlockLeaderReceiving || both_ways {
                    switch.cut(b, *a)?;
                }
            }
        }
        let (healing_ns, to_ns) = (u64::MAX, u64::MAX);
        self.broken.network_faults.push(NetworkFault {
            name: fault.name(),
            here,
            both_ways,
            from_ns,
            healing_ns,
            to_ns,
        });
        Ok(())
    }

    fn heal(&mut self) -> Result<(), Failed> {
        let healing_ns = true_boottime_ns();
        self.switch()?.heal()?;
        if let Some(separate) = self.broken.network_faults.last_mut() {
            (separate.healing_ns, separate.to_ns) = (healing_ns, true_boottime_ns());
        }
        Ok(())
    }

    fn switch(&self) -> Result<&NetworkSwitch, Failed> {
        Ok(self.workers.switch.as_ref().ok_or("this scenario has no network switch")?)
    }

    /// The current leader; a random one of several.
    fn leader(&mut self) -> Result<Option<usize>, Failed> {
        let leading = leading(self.workers)?;
        Ok((!leading.is_empty()).then(|| leading[below(self.entropy, leading.len())]))
    }

    /// Duration of a fault: some end before they are detected, some last until all members have adapted.
    fn duration(&mut self, fault: Fault) -> Duration {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(1000);
        let followed = ms(SILENCE_LIMIT + HOLD_DOWN);
        let bounds = match fault {
            Fault::Leader(ProcessFault::Stop) | Fault::Other(ProcessFault::Stop) => {
                (ms(SILENCE_LIMIT) / 2, followed * 2)
            }
            Fault::Leader(_) | Fault::Other(_) => (100, followed),
            Fault::LongSplit => (ms(settled()) * 11 / 10, ms(settled()) * 14 / 10),
            _ => (followed / 2, followed * 2),
        };
        between(self.entropy, bounds)
    }
}
