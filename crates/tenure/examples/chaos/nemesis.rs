//! The one who breaks things: faults, one or two at a time, drawn from a seeded deck, each healed again.
//!
//! A second fault never hits what the first one did. What could not be injected (the server was still down, nobody led) is not counted.

use std::time::Duration;

use tenure_core::{Entropy, SplitMix};
use tenure_testkit::rig::true_boottime_ns;

use crate::Failed;
use crate::crew::Crew;
use crate::deck::{Deck, below, between, undo, wait};
use crate::faults::{Blow, Outage};
use crate::oracles::Injected;
use crate::report::Progress;
use crate::servers::Servers;
use crate::worker::{DALLY, DALLYING};

/// Cuts that leave a member without the others.
pub(crate) const ISOLATED: &str = "cut off both ways";
pub(crate) const MUTED: &str = "cut off: not heard";
pub(crate) const DEAFENED: &str = "cut off: hears nobody";

/// A way to break something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Worker(Blow),
    SkewWorker,
    StopInTransaction,
    Server(Outage),
    CutAnswers,
    WithholdAnswers,
    Isolate,
    Mute,
    Deafen,
    Resign,
    Transfer,
    Pause,
    FillDisk,
}

/// What a fault hits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Realm {
    Worker,
    Server,
    Network,
    Operator,
}

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Fault::Worker(blow) => ["kill -9 worker", "SIGSTOP worker", "SIGTERM worker"][blow as usize],
            Fault::SkewWorker => "clock skew",
            Fault::StopInTransaction => "SIGSTOP in transaction",
            Fault::Server(outage) => outage.name(),
            Fault::CutAnswers => "one-way cut",
            Fault::WithholdAnswers => "answers withheld",
            Fault::Isolate => ISOLATED,
            Fault::Mute => MUTED,
            Fault::Deafen => DEAFENED,
            Fault::Resign => "operator: resign",
            Fault::Transfer => "operator: transfer",
            Fault::Pause => "operator: pause",
            Fault::FillDisk => "full disk",
        }
    }

    fn realm(self) -> Realm {
        match self {
            Fault::Worker(_) | Fault::SkewWorker | Fault::StopInTransaction => Realm::Worker,
            Fault::CutAnswers | Fault::WithholdAnswers | Fault::Isolate | Fault::Mute | Fault::Deafen => {
                Realm::Network
            }
            Fault::Resign | Fault::Transfer | Fault::Pause => Realm::Operator,
            Fault::Server(_) | Fault::FillDisk => Realm::Server,
        }
    }

    /// Operators need a server that answers, and a fault of the same realm may hit the same thing.
    fn goes_with(self, other: Fault) -> bool {
        let realms = [self.realm(), other.realm()];
        realms[0] != realms[1] && !(realms.contains(&Realm::Server) && realms.contains(&Realm::Operator))
    }
}

/// Breaks things for a while.
pub(crate) struct Nemesis<'a> {
    pub(crate) crew: &'a mut Crew,
    pub(crate) servers: Option<&'a Servers>,
    pub(crate) entropy: &'a mut SplitMix,
    pub(crate) progress: &'a mut Progress,
    pub(crate) lease: Duration,
    deck: Deck<Fault>,
    injected: Vec<Injected>,
}

/// A fault that is not healed yet.
struct Open {
    fault: Fault,
    worker: Option<usize>,
    record: usize,
}

impl<'a> Nemesis<'a> {
    pub(crate) fn new(
        crew: &'a mut Crew,
        servers: Option<&'a Servers>,
        entropy: &'a mut SplitMix,
        progress: &'a mut Progress,
        lease: Duration,
        kinds: Vec<Fault>,
    ) -> Self {
        Self { crew, servers, entropy, progress, lease, deck: Deck::new(kinds), injected: Vec::new() }
    }

    /// Breaks and heals until this moment, and tells what was broken when.
    pub(crate) fn rage(mut self, until_ns: u64) -> Result<Vec<Injected>, Failed> {
        self.wait(self.lease.mul_f64(1.5));
        while true_boottime_ns() < until_ns {
            let first = self.draw(None);
            let first = first.and_then(|fault| self.inject(fault));
            let second = if self.entropy.next_u64().is_multiple_of(3) {
                self.wait_between(0, 400);
                let second = self.draw(first.as_ref().map(|it| it.fault));
                second.and_then(|fault| self.inject(fault))
            } else {
                None
            };
            for open in [second, first].into_iter().flatten() {
                let hold = self.hold(open.fault);
                self.wait(hold);
                self.heal(open)?;
            }
            self.wait_between(200, 1200);
        }
        Ok(self.injected)
    }

    fn draw(&mut self, with: Option<Fault>) -> Option<Fault> {
        self.deck.draw(self.entropy, |fault| with.is_none_or(|with| with.goes_with(*fault)))
    }

    fn inject(&mut self, fault: Fault) -> Option<Open> {
        self.progress.doing(fault.name());
        let from_ns = true_boottime_ns();
        let worker = match self.try_inject(fault) {
            Ok(worker) => worker,
            Err(why) => {
                self.progress.note(&format!("could not inject {}: {why}", fault.name()));
                return None;
            }
        };
        // A cut is judged by what comes after it, so it counts from when it was complete.
        let is_cut = matches!(fault, Fault::Isolate | Fault::Mute | Fault::Deafen);
        let from_ns = if is_cut { true_boottime_ns() } else { from_ns };
        self.injected.push(Injected { name: fault.name(), worker, from_ns, to_ns: u64::MAX });
        Some(Open { fault, worker, record: self.injected.len() - 1 })
    }

    /// Does it, and tells whom it hit.
    fn try_inject(&mut self, fault: Fault) -> Result<Option<usize>, Failed> {
        let worker = self.below(self.crew.hands.len());
        let election = ["orders", "pool", "hasty"][self.below(3)];
        match (fault, self.servers) {
            (Fault::Worker(blow), _) => blow.hit(self.crew, worker, "worker", self.progress),
            (Fault::SkewWorker, _) => {
                // At most 1.08 to 0.92: within the promised ratio of 1.2.
                self.crew.hands[worker].rate = Some([0.92, 0.96, 1.0, 1.04, 1.08][self.below(5)]);
                self.crew.kill(worker);
                self.crew.start(worker)?;
            }
            (Fault::StopInTransaction, _) => return self.stop_in_transaction().map(Some),
            (Fault::Server(outage), Some(servers)) => outage.begin(&servers.cluster)?,
            (Fault::CutAnswers, _) => {
                self.crew.namespace.as_ref().ok_or("there is no namespace")?.cut_one_way()?;
                return Ok(self.crew.hands.iter().position(|hand| hand.inside));
            }
            (Fault::Isolate | Fault::Mute | Fault::Deafen, _) => {
                let switch = self.crew.switch.as_ref().ok_or("there is no switch")?;
                match fault {
                    Fault::Mute => switch.mute(worker)?,
                    Fault::Deafen => switch.deafen(worker)?,
                    _ => switch.isolate(worker)?,
                }
                return Ok(Some(worker));
            }
            (Fault::WithholdAnswers, Some(servers)) => {
                servers.forwarder.withhold_answers(true);
                return Ok(Some(servers.behind_forwarder));
            }
            (Fault::Resign, Some(servers)) => servers.operator.resign(election)?,
            (Fault::Transfer, Some(servers)) => servers.operator.transfer(election, self.entropy)?,
            (Fault::Pause, Some(servers)) => servers.operator.pause("orders", true)?,
            (Fault::FillDisk, Some(servers)) => servers.disk.as_ref().ok_or("no small disk")?.fill()?,
            (_, None) => return Err("there is no server here".into()),
        }
        Ok((fault.realm() == Realm::Worker).then_some(worker))
    }

    /// Waits for a leader to stop itself between its guard and its commit.
    fn stop_in_transaction(&mut self) -> Result<usize, Failed> {
        let folder = self.crew.workplace.path().to_owned();
        let _ = std::fs::remove_file(folder.join(DALLYING));
        std::fs::write(folder.join(DALLY), "")?;
        for _ in 0..100 {
            std::thread::sleep(Duration::from_millis(20));
            let dallying = std::fs::read_to_string(folder.join(DALLYING)).unwrap_or_default();
            if let Ok(worker) = dallying.parse() {
                return Ok(worker);
            }
        }
        let _ = std::fs::remove_file(folder.join(DALLY));
        Err("nobody led within two seconds".into())
    }

    fn heal(&mut self, open: Open) -> Result<(), Failed> {
        if let Some(worker) = open.worker {
            self.crew.bring_back(worker)?;
        }
        match (open.fault, self.servers) {
            (Fault::Server(outage), Some(servers)) => outage.end(&servers.cluster)?,
            (Fault::CutAnswers, _) => self.crew.namespace.as_ref().map_or(Ok(()), |it| it.heal())?,
            (Fault::WithholdAnswers, Some(servers)) => servers.forwarder.withhold_answers(false),
            (Fault::Isolate | Fault::Mute | Fault::Deafen, _) => {
                self.crew.switch.as_ref().map_or(Ok(()), |it| it.heal())?;
            }
            (Fault::Pause, Some(servers)) => undo(|| servers.operator.pause("orders", false))?,
            (Fault::FillDisk, Some(servers)) => servers.empty_disk()?,
            _ => {}
        }
        self.injected[open.record].to_ns = true_boottime_ns();
        Ok(())
    }

    /// How long a fault lasts.
    fn hold(&mut self, fault: Fault) -> Duration {
        let lease = u64::try_from(self.lease.as_millis()).unwrap_or(1000);
        let (least, most) = match fault {
            Fault::Worker(Blow::Stop) | Fault::StopInTransaction => (lease * 6 / 5, lease * 2),
            Fault::Worker(Blow::Kill | Blow::End) => (100, lease * 3 / 2),
            Fault::Server(outage) => outage.hold(),
            Fault::CutAnswers | Fault::WithholdAnswers => (lease / 2, lease * 2),
            Fault::Isolate | Fault::Mute | Fault::Deafen => (lease * 3 / 2, lease * 5 / 2),
            Fault::Pause | Fault::FillDisk => (500, lease),
            _ => (50, 300),
        };
        between(self.entropy, (least, most))
    }

    fn below(&mut self, bound: usize) -> usize {
        below(self.entropy, bound)
    }

    fn wait_between(&mut self, least_ms: u64, most_ms: u64) {
        let time = between(self.entropy, (least_ms, most_ms));
        self.wait(time);
    }

    fn wait(&mut self, time: Duration) {
        wait(self.progress, time);
    }
}
