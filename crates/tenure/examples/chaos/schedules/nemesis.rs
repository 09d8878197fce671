//! What is broken while schedules fire: mostly the leader, and the clock; and an operator pauses and changes.
//!
//! The clock is the exception to healing: a step ahead stays, since a clock that is set back brings an hour of silence, in which nothing
//! would be proved; so a step back is followed, after a while, by one ahead.

use std::time::Duration;

use tenure::Tenure;
use tenure::port::{Pause, ScheduleSet, SetSchedule, scheduler_election};
use tenure_core::{Entropy, SplitMix};
use tenure_testkit::rig::SettableClock;
use tokio::runtime::Handle;

use super::clock::Clock;
use super::plan::{Plan, definitions, hand_of};
use crate::Failed;
use crate::crew::Crew;
use crate::faults::{Blow, Fault, Hold, LEASE_MS, Mischief};
use crate::process::Heard;

/// By how much the clock is stepped.
const STEP_S: i64 = 3_600;

/// Who is hit.
#[derive(Clone, Copy)]
pub(super) enum Whom {
    Leader,
    Anybody,
}

/// What is done to the clock, and what the operator does.
#[derive(Clone, Copy)]
pub(super) enum Own {
    ClockAhead,
    ClockBack,
    Pause,
    Change,
}

/// Who sets the clock, and pauses and changes schedules.
pub(super) struct Operator<'a> {
    pub(super) tenure: &'a Tenure,
    pub(super) runtime: &'a Handle,
    /// The clock, if libfaketime is there.
    pub(super) clock: Option<&'a SettableClock>,
    /// How far the clock is ahead, and when it was so how far.
    pub(super) offset_s: i64,
    pub(super) shown: Clock,
}

impl Mischief for Operator<'_> {
    type Job = Plan;
    type Whom = Whom;
    type Own = Own;

    const PROCESS: &'static str = "process";
    const PAUSE: Hold = (150, 1_050);
    const TEST: Fault<Whom, Own> = Fault::Hit(Blow::Stop, Whom::Leader);

    fn kinds(&self) -> Vec<Fault<Whom, Own>> {
        let mut kinds = vec![
            Fault::Hit(Blow::Kill, Whom::Leader),
            Fault::Hit(Blow::Kill, Whom::Leader),
            Fault::Hit(Blow::Stop, Whom::Leader),
            Fault::Hit(Blow::Stop, Whom::Leader),
            Fault::Hit(Blow::Stop, Whom::Leader),
            Fault::Hit(Blow::End, Whom::Leader),
            Fault::Hit(Blow::Kill, Whom::Anybody),
            Fault::Own(Own::Pause),
            Fault::Own(Own::Change),
        ];
        kinds.extend(self.clock.iter().flat_map(|_| [Own::ClockAhead, Own::ClockBack].map(Fault::Own)));
        kinds
    }

    fn hits(whom: Whom) -> [&'static str; 3] {
        match whom {
            Whom::Leader => ["kill -9 leader", "SIGSTOP leader", "SIGTERM leader"],
            Whom::Anybody => ["kill -9 anybody", "SIGSTOP anybody", "SIGTERM anybody"],
        }
    }

    fn name(own: Own) -> &'static str {
        match own {
            Own::ClockAhead => "clock an hour ahead",
            Own::ClockBack => "clock an hour back",
            Own::Pause => "operator: pause",
            Own::Change => "operator: change",
        }
    }

    fn hold(fault: Fault<Whom, Own>) -> Hold {
        match fault {
            Fault::Own(Own::ClockAhead) => (0, 1),
            Fault::Own(Own::ClockBack) => (LEASE_MS / 2, LEASE_MS * 2),
            Fault::Own(Own::Pause) => (500, 2_500),
            other => other.hold(),
        }
    }

    fn find(&self, whom: Whom, crew: &Crew<Plan>, entropy: &mut SplitMix) -> Result<usize, Failed> {
        let leader = match whom {
            Whom::Leader => self.leader(),
            Whom::Anybody => None,
        };
        Ok(leader.unwrap_or_else(|| crew.someone(entropy, |_| true)))
    }

    fn begin(&mut self, own: Own, entropy: &mut SplitMix) -> Result<(), Failed> {
        match own {
            Own::ClockAhead => self.step(STEP_S),
            Own::ClockBack => self.step(-STEP_S),
            Own::Pause => self.pause(true),
            Own::Change => self.change(entropy.next_u64()),
        }
    }

    fn end(&mut self, own: Own) -> Result<(), Failed> {
        match own {
            Own::ClockBack => self.step(STEP_S),
            Own::Pause => self.pause(false),
            Own::ClockAhead | Own::Change => Ok(()),
        }
    }

    fn is_tested(&self, crew: &Crew<Plan>) -> Result<bool, Failed> {
        Ok(Heard::of(crew)?.refused > 0)
    }
}

impl Operator<'_> {
    fn step(&mut self, by_s: i64) -> Result<(), Failed> {
        self.offset_s += by_s;
        let before_ms = tenure::runtime::wall_ms();
        self.clock.ok_or("there is no clock to set here")?.set(self.offset_s)?;
        self.shown.set((before_ms, tenure::runtime::wall_ms()), self.offset_s * 1_000);
        Ok(())
    }

    /// Who fires, as far as the store can tell just now.
    fn leader(&self) -> Option<usize> {
        let store = self.tenure.store();
        let (limit, election) = (Duration::from_secs(1), scheduler_election());
        let look = async { tokio::time::timeout(limit, store.election(&election)).await };
        let view = self.runtime.block_on(look).ok()?.ok()??;
        tenure::leaders(&view).first().and_then(|leader| hand_of(&leader.id))
    }

    /// Pauses or resumes every schedule, as often as it takes.
    fn pause(&self, pause: bool) -> Result<(), Failed> {
        let store = self.tenure.store();
        let why = Pause { by: "chaos".into(), reason: String::new(), at_ms: tenure::runtime::wall_ms() };
        for definition in definitions()? {
            let key = self.tenure.schedules().key(definition.name.as_str())?;
            self.insist(async || store.set_schedule_paused(&key, pause.then_some(&why)).await.map(drop))?;
        }
        Ok(())
    }

    /// Gives every schedule another payload: another version, and the same times.
    fn change(&self, number: u64) -> Result<(), Failed> {
        let store = self.tenure.store();
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
}
