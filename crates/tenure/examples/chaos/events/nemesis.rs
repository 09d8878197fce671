//! The one who breaks things while events flow: one fault at a time, drawn from a seeded deck, each healed again.

use std::time::Duration;

use tenure::port::{GroupKey, Pause};
use tenure_core::SplitMix;
use tenure_testkit::rig::{PgCluster, true_boottime_ns};
use tokio::runtime::Handle;

use super::books::{GROUP, topic};
use super::plan::{Plan, Role};
use crate::Failed;
use crate::crew::Crew;
use crate::deck::{Deck, MORE, below, between, wait};
use crate::oracles::Injected;
use crate::process::{Heard, open};
use crate::report::Progress;

/// A way to break something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    KillReader,
    StopReader,
    EndReader,
    KillWriter,
    StopWriter,
    RestartServer,
    KillServer,
    FreezeServer,
    EndConnections,
    Pause,
}

/// What can be broken without a server.
const WITHOUT_SERVER: [Fault; 9] = [
    Fault::KillReader,
    Fault::StopReader,
    Fault::EndReader,
    Fault::KillReader,
    Fault::StopReader,
    Fault::EndReader,
    Fault::KillWriter,
    Fault::StopWriter,
    Fault::Pause,
];

/// What a server adds.
const OF_SERVER: [Fault; 4] =
    [Fault::RestartServer, Fault::KillServer, Fault::FreezeServer, Fault::EndConnections];

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Fault::KillReader => "kill -9 member",
            Fault::StopReader => "SIGSTOP member",
            Fault::EndReader => "SIGTERM member",
            Fault::KillWriter => "kill -9 writers",
            Fault::StopWriter => "SIGSTOP writers",
            Fault::RestartServer => "restart server",
            Fault::KillServer => "kill -9 server",
            Fault::FreezeServer => "freeze server",
            Fault::EndConnections => "end connections",
            Fault::Pause => "operator: pause",
        }
    }
}

/// Breaks things for a while.
pub(super) struct Nemesis<'a> {
    pub(super) crew: &'a mut Crew<Plan>,
    pub(super) cluster: Option<&'a PgCluster>,
    pub(super) url: &'a str,
    pub(super) runtime: &'a Handle,
    pub(super) entropy: &'a mut SplitMix,
    pub(super) progress: &'a mut Progress,
    pub(super) lease: Duration,
    pub(super) injected: Vec<Injected>,
}

impl Nemesis<'_> {
    /// Breaks and heals until this moment, and tells what was broken when.
    pub(super) fn rage(mut self, until_ns: u64) -> Result<Vec<Injected>, Failed> {
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
            if Heard::of(self.crew)?.refused > 0 {
                break;
            }
            self.break_and_heal(Fault::StopReader)?;
            self.breathe();
        }
        Ok(self.injected)
    }

    fn breathe(&mut self) {
        let pause = between(self.entropy, (150, 750));
        self.wait(pause);
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
        let (reader, writer) =
            (self.someone(|role| role == Role::Reads), self.someone(|role| role != Role::Reads));
        let no_server = "there is no server here";
        match fault {
            Fault::KillReader => self.crew.kill(reader),
            Fault::StopReader => self.crew.stop(reader),
            Fault::EndReader => {
                if !self.crew.end(reader) {
                    self.progress.note("a member did not end within 5 s of SIGTERM");
                }
            }
            Fault::KillWriter => self.crew.kill(writer),
            Fault::StopWriter => self.crew.stop(writer),
            Fault::RestartServer => self.cluster.ok_or(no_server)?.restart()?,
            Fault::KillServer => self.cluster.ok_or(no_server)?.kill9()?,
            Fault::FreezeServer => self.cluster.ok_or(no_server)?.freeze()?,
            Fault::EndConnections => drop(self.cluster.ok_or(no_server)?.terminate_backends("postgres")?),
            Fault::Pause => self.pause(true)?,
        }
        Ok(match fault {
            Fault::KillReader | Fault::StopReader | Fault::EndReader => Some(reader),
            Fault::KillWriter | Fault::StopWriter => Some(writer),
            _ => None,
        })
    }

    fn heal(&mut self, fault: Fault, hand: Option<usize>) -> Result<(), Failed> {
        if let Some(hand) = hand {
            self.crew.go_on(hand);
            self.crew.start(hand)?;
        }
        match (fault, self.cluster) {
            (Fault::KillServer, Some(cluster)) => cluster.start_again()?,
            (Fault::FreezeServer, Some(cluster)) => cluster.thaw()?,
            (Fault::Pause, _) => self.pause(false)?,
            _ => {}
        }
        Ok(())
    }

    /// As often as it takes: others write, too.
    fn pause(&mut self, pause: bool) -> Result<(), Failed> {
        let group = GroupKey::new(topic()?, GROUP.parse()?);
        let why = Pause { by: "chaos".into(), reason: String::new(), at_ms: tenure::runtime::wall_ms() };
        let (url, lease) = (self.url, self.lease);
        self.runtime.block_on(async {
            let tenure = open(url, "operator", lease * 4).await;
            let mut tries = 0;
            let done = loop {
                tries += 1;
                match tenure.store().set_group_paused(&group, pause.then_some(&why)).await {
                    Err(_) if tries < 20 => tokio::time::sleep(Duration::from_millis(100)).await,
                    done => break done,
                }
            };
            let _ = tenure.close().await;
            Ok(done.map(drop)?)
        })
    }

    /// How long a fault lasts.
    fn hold(&mut self, fault: Fault) -> Duration {
        let lease = u64::try_from(self.lease.as_millis()).unwrap_or(1000);
        let (least, most) = match fault {
            Fault::StopReader => (lease * 6 / 5, lease * 2),
            Fault::KillReader | Fault::EndReader | Fault::KillWriter => (100, lease),
            Fault::StopWriter | Fault::FreezeServer => (lease / 3, lease * 3 / 2),
            Fault::Pause => (200, 600),
            _ => (50, 300),
        };
        between(self.entropy, (least, most))
    }

    fn someone(&mut self, does: impl Fn(Role) -> bool) -> usize {
        let hands = self.crew.hands.iter().enumerate();
        let those: Vec<usize> = hands.filter(|(_, it)| does(it.plan.role)).map(|(n, _)| n).collect();
        those[self.below(those.len())]
    }

    fn below(&mut self, bound: usize) -> usize {
        below(self.entropy, bound)
    }

    fn wait(&mut self, time: Duration) {
        wait(self.progress, time);
    }
}
