//! The one who breaks things while work goes on: one fault at a time, drawn from a seeded deck, each healed again.

use std::time::Duration;

use tenure::port::Order;
use tenure_core::SplitMix;
use tenure_testkit::rig::{PgCluster, true_boottime_ns};

use super::notes;
use super::operator::Operator;
use super::oracles::holdings;
use super::plan::{MIXED, Plan, Role};
use crate::Failed;
use crate::crew::Crew;
use crate::deck::{Deck, MORE, below, between, wait};
use crate::oracles::Injected;
use crate::report::Progress;
use crate::verdict::logs;

/// A way to break something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    KillWorker,
    StopWorker,
    EndWorker,
    KillLeader,
    StopLeader,
    KillSubmitter,
    RestartServer,
    KillServer,
    FreezeServer,
    EndConnections,
    Flip,
    Pause,
    Cancel,
    Retry,
    Resign,
}

/// What can be broken without a server.
pub(crate) const WITHOUT_SERVER: [Fault; 14] = [
    Fault::Flip,
    Fault::KillWorker,
    Fault::StopWorker,
    Fault::Flip,
    Fault::EndWorker,
    Fault::KillLeader,
    Fault::StopLeader,
    Fault::Flip,
    Fault::KillSubmitter,
    Fault::Pause,
    Fault::Cancel,
    Fault::Cancel,
    Fault::Retry,
    Fault::Resign,
];

/// What a server adds.
pub(crate) const OF_SERVER: [Fault; 4] =
    [Fault::RestartServer, Fault::KillServer, Fault::FreezeServer, Fault::EndConnections];

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Fault::KillWorker => "kill -9 worker",
            Fault::StopWorker => "SIGSTOP worker",
            Fault::EndWorker => "SIGTERM worker",
            Fault::KillLeader => "kill -9 leader",
            Fault::StopLeader => "SIGSTOP leader",
            Fault::KillSubmitter => "kill -9 submitter",
            Fault::RestartServer => "restart server",
            Fault::KillServer => "kill -9 server",
            Fault::FreezeServer => "freeze server",
            Fault::EndConnections => "end connections",
            Fault::Flip => "operator: other mode",
            Fault::Pause => "operator: pause",
            Fault::Cancel => "operator: cancel",
            Fault::Retry => "operator: retry",
            Fault::Resign => "operator: resign",
        }
    }
}

/// Breaks things for a while.
pub(crate) struct Nemesis<'a> {
    pub(crate) crew: &'a mut Crew<Plan>,
    pub(crate) cluster: Option<&'a PgCluster>,
    pub(crate) operator: &'a mut Operator,
    pub(crate) entropy: &'a mut SplitMix,
    pub(crate) progress: &'a mut Progress,
    pub(crate) lease: Duration,
    pub(crate) injected: Vec<Injected>,
}

impl Nemesis<'_> {
    /// Breaks and heals until this moment, and tells what was broken when.
    pub(crate) fn rage(mut self, until_ns: u64) -> Result<Vec<Injected>, Failed> {
        let mut kinds = WITHOUT_SERVER.to_vec();
        kinds.extend(self.cluster.iter().flat_map(|_| OF_SERVER));
        let mut deck = Deck::new(kinds);
        self.wait(self.lease.mul_f64(1.5));
        while true_boottime_ns() < until_ns {
            if let Some(fault) = deck.draw(self.entropy, |_| true) {
                self.break_and_heal(fault)?;
            }
            self.breathe();
        }
        for _ in 0..MORE {
            if self.has_lost()? {
                break;
            }
            self.break_and_heal(Fault::KillWorker)?;
            self.breathe();
        }
        Ok(self.injected)
    }

    fn breathe(&mut self) {
        let pause = between(self.entropy, (150, 750));
        self.wait(pause);
    }

    /// Whether a process has died in the midst of a run.
    fn has_lost(&self) -> Result<bool, Failed> {
        for (hand, log) in logs(self.crew)? {
            let is_over = self.crew.hands[hand].plan.log != log;
            if is_over && holdings(hand, &notes::read(&log)?).iter().any(|it| !it.ended) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn break_and_heal(&mut self, fault: Fault) -> Result<(), Failed> {
        self.progress.doing(fault.name());
        let from_ns = true_boottime_ns();
        let hand = match self.inject(fault) {
            Ok(hand) => hand,
            Err(why) => {
                self.progress.note(&format!("could not inject {}: {why}", fault.name()));
                return Ok(());
            }
        };
        let hold = self.hold(fault);
        self.wait(hold);
        self.heal(fault, hand)?;
        self.injected.push(Injected { name: fault.name(), worker: hand, from_ns, to_ns: true_boottime_ns() });
        Ok(())
    }

    /// Does it, and tells whom it hit.
    fn inject(&mut self, fault: Fault) -> Result<Option<usize>, Failed> {
        let (worker, submitter) = (self.someone(Role::Works), self.someone(Role::Submits));
        let no_server = "there is no server here";
        match fault {
            Fault::KillWorker => self.crew.kill(worker),
            Fault::StopWorker => self.crew.stop(worker),
            Fault::EndWorker => {
                if !self.crew.end(worker) {
                    self.progress.note("a worker did not end within 5 s of SIGTERM");
                }
            }
            Fault::KillLeader | Fault::StopLeader => {
                let name = self.operator.leader()?;
                let hand = name.rsplit('-').next().and_then(|n| n.parse().ok()).ok_or("who is that?")?;
                if fault == Fault::KillLeader {
                    self.crew.kill(hand);
                } else {
                    self.crew.stop(hand);
                }
                return Ok(Some(hand));
            }
            Fault::KillSubmitter => {
                self.crew.kill(submitter);
                return Ok(Some(submitter));
            }
            Fault::RestartServer => self.cluster.ok_or(no_server)?.restart()?,
            Fault::KillServer => self.cluster.ok_or(no_server)?.kill9()?,
            Fault::FreezeServer => self.cluster.ok_or(no_server)?.freeze()?,
            Fault::EndConnections => drop(self.cluster.ok_or(no_server)?.terminate_backends("postgres")?),
            Fault::Flip => self.operator.flip()?,
            Fault::Pause => self.operator.pause(MIXED, true)?,
            Fault::Cancel => self.operator.order(Order::Cancel, self.entropy)?,
            Fault::Retry => self.operator.order(Order::Retry, self.entropy)?,
            Fault::Resign => self.operator.resign()?,
        }
        let one = matches!(fault, Fault::KillWorker | Fault::StopWorker | Fault::EndWorker);
        Ok(one.then_some(worker))
    }

    fn heal(&mut self, fault: Fault, hand: Option<usize>) -> Result<(), Failed> {
        if let Some(hand) = hand {
            self.crew.go_on(hand);
            self.crew.start(hand)?;
        }
        match (fault, self.cluster) {
            (Fault::KillServer, Some(cluster)) => cluster.start_again()?,
            (Fault::FreezeServer, Some(cluster)) => cluster.thaw()?,
            (Fault::Pause, _) => self.resume()?,
            _ => {}
        }
        Ok(())
    }

    fn resume(&mut self) -> Result<(), Failed> {
        let mut resumed = self.operator.pause(MIXED, false);
        for _ in 0..10 {
            if resumed.is_ok() {
                break;
            }
            resumed = self.operator.pause(MIXED, false);
        }
        resumed
    }

    /// How long a fault lasts.
    fn hold(&mut self, fault: Fault) -> Duration {
        let lease = u64::try_from(self.lease.as_millis()).unwrap_or(1000);
        let (least, most) = match fault {
            Fault::StopWorker | Fault::StopLeader => (lease * 6 / 5, lease * 2),
            Fault::KillWorker | Fault::EndWorker | Fault::KillLeader | Fault::KillSubmitter => (100, lease),
            Fault::FreezeServer => (lease / 3, lease * 3 / 2),
            Fault::Pause => (200, 600),
            // Long enough that there are turns to be judged.
            Fault::Flip => (600, 1500),
            _ => (50, 300),
        };
        between(self.entropy, (least, most))
    }

    fn someone(&mut self, role: Role) -> usize {
        let hands = self.crew.hands.iter().enumerate();
        let those: Vec<usize> = hands.filter(|(_, it)| it.plan.role == role).map(|(n, _)| n).collect();
        those[self.below(those.len())]
    }

    fn below(&mut self, bound: usize) -> usize {
        below(self.entropy, bound)
    }

    fn wait(&mut self, time: Duration) {
        wait(self.progress, time);
    }
}
