//! The one who breaks things while schedules fire: one fault at a time, drawn from a seeded deck, each healed again.
//!
//! Mostly it is the leader that is hit. The clock is the exception to healing: a step ahead stays, since a clock that is set back
//! brings an hour of silence, in which nothing would be proved; so a step back is followed, after a while, by one ahead.

use std::time::Duration;

use tenure::Tenure;
use tenure::port::{Pause, ScheduleSet, SetSchedule, scheduler_election};
use tenure_core::{Entropy, SplitMix};
use tenure_testkit::rig::{PgCluster, SettableClock, true_boottime_ns};
use tokio::runtime::Handle;

use super::clock::Clock;
use super::plan::{Plan, definitions, hand_of};
use crate::Failed;
use crate::crew::Crew;
use crate::deck::{Deck, MORE, below, between, wait};
use crate::oracles::Injected;
use crate::process::Heard;
use crate::report::Progress;

/// By how much the clock is stepped.
const STEP_S: i64 = 3_600;

/// A way to break something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    KillLeader,
    StopLeader,
    EndLeader,
    KillOther,
    ClockAhead,
    ClockBack,
    Pause,
    Change,
    RestartServer,
    KillServer,
    FreezeServer,
    EndConnections,
}

/// What can be broken everywhere.
const EVERYWHERE: [Fault; 9] = [
    Fault::KillLeader,
    Fault::KillLeader,
    Fault::StopLeader,
    Fault::StopLeader,
    Fault::StopLeader,
    Fault::EndLeader,
    Fault::KillOther,
    Fault::Pause,
    Fault::Change,
];

/// What libfaketime adds.
const OF_CLOCK: [Fault; 2] = [Fault::ClockAhead, Fault::ClockBack];

/// What a server adds.
const OF_SERVER: [Fault; 4] =
    [Fault::RestartServer, Fault::KillServer, Fault::FreezeServer, Fault::EndConnections];

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Fault::KillLeader => "kill -9 leader",
            Fault::StopLeader => "SIGSTOP leader",
            Fault::EndLeader => "SIGTERM leader",
            Fault::KillOther => "kill -9 anybody",
            Fault::ClockAhead => "clock an hour ahead",
            Fault::ClockBack => "clock an hour back",
            Fault::Pause => "operator: pause",
            Fault::Change => "operator: change",
            Fault::RestartServer => "restart server",
            Fault::KillServer => "kill -9 server",
            Fault::FreezeServer => "freeze server",
            Fault::EndConnections => "end connections",
        }
    }
}

/// Breaks things for a while.
pub(super) struct Nemesis<'a> {
    pub(super) crew: &'a mut Crew<Plan>,
    pub(super) cluster: Option<&'a PgCluster>,
    pub(super) clock: Option<&'a SettableClock>,
    pub(super) operator: &'a Tenure,
    pub(super) runtime: &'a Handle,
    pub(super) entropy: &'a mut SplitMix,
    pub(super) progress: &'a mut Progress,
    pub(super) lease: Duration,
    /// How far the clock is ahead, and when it was so how far.
    pub(super) offset_s: i64,
    pub(super) shown: Clock,
    pub(super) injected: Vec<Injected>,
}

impl Nemesis<'_> {
    /// Breaks and heals until this moment, and tells what was broken when, what the clock showed when, and how far ahead it is since.
    pub(super) fn rage(mut self, until_ns: u64) -> Result<(Vec<Injected>, Clock, i64), Failed> {
        let mut kinds = EVERYWHERE.to_vec();
        kinds.extend(self.clock.iter().flat_map(|_| OF_CLOCK));
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
            self.break_and_heal(Fault::StopLeader)?;
            self.breathe();
        }
        Ok((self.injected, self.shown, self.offset_s))
    }

    fn breathe(&mut self) {
        let pause = between(self.entropy, (150, 1_050));
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
        let no_server = "there is no server here";
        let anybody = self.below(self.crew.hands.len());
        let hand = match fault {
            Fault::KillLeader | Fault::StopLeader | Fault::EndLeader => {
                Some(self.leader().unwrap_or(anybody))
            }
            Fault::KillOther => Some(anybody),
            _ => None,
        };
        match (fault, hand) {
            (Fault::KillLeader | Fault::KillOther, Some(hand)) => self.crew.kill(hand),
            (Fault::StopLeader, Some(hand)) => self.crew.stop(hand),
            (Fault::EndLeader, Some(hand)) => {
                if !self.crew.end(hand) {
                    self.progress.note("a process did not end within 5 s of SIGTERM");
                }
            }
            (Fault::ClockAhead, _) => self.step(STEP_S)?,
            (Fault::ClockBack, _) => self.step(-STEP_S)?,
            (Fault::Pause, _) => self.pause(true)?,
            (Fault::Change, _) => self.change()?,
            (Fault::RestartServer, _) => self.cluster.ok_or(no_server)?.restart()?,
            (Fault::KillServer, _) => self.cluster.ok_or(no_server)?.kill9()?,
            (Fault::FreezeServer, _) => self.cluster.ok_or(no_server)?.freeze()?,
            (Fault::EndConnections, _) => {
                self.cluster.ok_or(no_server)?.terminate_backends("postgres")?;
            }
            (_, None) => return Err("there is nobody to hit".into()),
        }
        Ok(hand)
    }

    fn heal(&mut self, fault: Fault, hand: Option<usize>) -> Result<(), Failed> {
        if let Some(hand) = hand {
            self.crew.go_on(hand);
            self.crew.start(hand)?;
        }
        match (fault, self.cluster) {
            (Fault::KillServer, Some(cluster)) => cluster.start_again()?,
            (Fault::FreezeServer, Some(cluster)) => cluster.thaw()?,
            (Fault::ClockBack, _) => self.step(STEP_S)?,
            (Fault::Pause, _) => self.pause(false)?,
            _ => {}
        }
        Ok(())
    }

    fn step(&mut self, by_s: i64) -> Result<(), Failed> {
        self.offset_s += by_s;
        let before_ms = tenure::runtime::wall_ms();
        self.clock.ok_or("there is no clock to set here")?.set(self.offset_s)?;
        self.shown.set((before_ms, tenure::runtime::wall_ms()), self.offset_s * 1_000);
        Ok(())
    }

    /// Who fires, as far as the store can tell just now.
    fn leader(&self) -> Option<usize> {
        let store = self.operator.store();
        let (limit, election) = (Duration::from_secs(1), scheduler_election());
        let look = async { tokio::time::timeout(limit, store.election(&election)).await };
        let view = self.runtime.block_on(look).ok()?.ok()??;
        tenure::leaders(&view).first().and_then(|leader| hand_of(&leader.id))
    }

    /// Pauses or resumes every schedule, as often as it takes.
    fn pause(&mut self, pause: bool) -> Result<(), Failed> {
        let store = self.operator.store();
        let why = Pause { by: "chaos".into(), reason: String::new(), at_ms: tenure::runtime::wall_ms() };
        for definition in definitions()? {
            let key = self.operator.schedules().key(definition.name.as_str())?;
            self.insist(async || store.set_schedule_paused(&key, pause.then_some(&why)).await.map(drop))?;
        }
        Ok(())
    }

    /// Gives every schedule another payload: another version, and the same times.
    fn change(&mut self) -> Result<(), Failed> {
        let (store, number) = (self.operator.store(), self.entropy.next_u64());
        for mut definition in definitions()? {
            definition.payload = tenure::port::Json::of(&number)?;
            let wish = SetSchedule {
                namespace: tenure::Name::default_namespace(),
                definition,
                secret: None,
                expect: Default::default(),
                source: None,
                by: "chaos".into(),
            };
            self.insist(async || match store.set_schedule(&wish).await? {
                ScheduleSet::Changed(_) | ScheduleSet::Same(_) => Ok(()),
                other => panic!("{other:?}: the schedule was there"),
            })?;
        }
        Ok(())
    }

    /// As often as it takes: others write, too.
    fn insist(&self, act: impl AsyncFn() -> Result<(), tenure::port::StoreError>) -> Result<(), Failed> {
        self.runtime.block_on(async {
            let mut tries = 0;
            loop {
                tries += 1;
                match act().await {
                    Err(_) if tries < 50 => tokio::time::sleep(Duration::from_millis(100)).await,
                    done => break Ok(done?),
                }
            }
        })
    }

    /// How long a fault lasts.
    fn hold(&mut self, fault: Fault) -> Duration {
        let lease = u64::try_from(self.lease.as_millis()).unwrap_or(1000);
        let (least, most) = match fault {
            Fault::StopLeader => (lease * 6 / 5, lease * 2),
            Fault::KillLeader | Fault::EndLeader | Fault::KillOther => (100, lease),
            Fault::FreezeServer => (lease / 3, lease * 3 / 2),
            Fault::ClockAhead => (0, 1),
            Fault::ClockBack => (lease / 2, lease * 2),
            Fault::Pause => (500, 2_500),
            _ => (50, 300),
        };
        between(self.entropy, (least, most))
    }

    fn below(&mut self, bound: usize) -> usize {
        below(self.entropy, bound)
    }

    fn wait(&mut self, time: Duration) {
        wait(self.progress, time);
    }
}
