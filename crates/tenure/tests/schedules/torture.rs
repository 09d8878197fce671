//! Random faults from a seed on a manual clock: leaders that come and go, late, silent or broken stores, clock
//! changes. In the end no tick is missing, and none fired twice.

use std::time::Duration;

use tenure::port::*;
use tenure::rules::schedule::MisfirePolicy;
use tenure::runtime::Runtime;
use tenure::store::memory::MemoryStore;
use tenure::{Scheduler, Tenure};
use tenure_core::{Entropy, SplitMix};
use tenure_testkit::{ManualClock, block_on};

use crate::instrumented_store::{Fault, InstrumentedStore};
use crate::support::*;

const SEEDS: u64 = 8;
const STEPS: usize = 40;

struct World {
    clock: ManualClock,
    store: MemoryStore,
    processes: Vec<(Tenure, InstrumentedStore, Option<Scheduler>)>,
    dice: SplitMix,
    born: usize,
}

impl World {
    async fn new(seed: u64) -> World {
        let (clock, store) = manual_clock();
        let mut world = World { clock, store, processes: Vec::new(), dice: SplitMix::new(seed), born: 0 };
        for _ in 0..3 {
            world.join().await;
        }
        world
    }

    async fn join(&mut self) {
        self.born += 1;
        let (tenure, instrumented) = process(&self.clock, &self.store, &format!("p{}", self.born)).await;
        let scheduler = tenure.scheduler().start().await.expect("the scheduler starts");
        self.processes.push((tenure, instrumented, Some(scheduler)));
    }

    /// Starts a scheduler. Returns `None` if its session is lost or the store does not respond within 20 seconds.
    async fn started(&self, tenure: Tenure) -> Option<Scheduler> {
        let start = tokio::spawn(async move { tenure.scheduler().start().await.ok() });
        for _ in 0..20 {
            if start.is_finished() {
                return start.await.ok().flatten();
            }
            self.clock.advance(SECOND).await;
        }
        start.abort();
        None
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.dice.next_u64() % bound
    }

    async fn step(&mut self) {
        let whom = self.below(self.processes.len() as u64) as usize;
        let call = ["due_schedules", "fire", "fire", "heartbeat"][self.below(4) as usize];
        match self.below(9) {
            0..=3 => {
                let faults = [Fault::Fails, Fault::ResponseLost, Fault::Waits, Fault::TakesEffectLate];
                let fault = faults[self.below(4) as usize];
                self.processes[whom].1.fault(call, Some(fault));
            }
            4 | 5 => heal(&self.processes[whom].1),
            6 => {
                let by_ms = self.below(7_200_000) as i64 - 3_600_000;
                self.clock.step_wall(by_ms);
            }
            7 => {
                // A process stops gracefully or crashes, and another process joins.
                let (tenure, instrumented, scheduler) = self.processes.swap_remove(whom);
                let good = self.below(2) == 0;
                let session = tenure.session();
                if good {
                    tokio::spawn(async move {
                        if let Some(scheduler) = scheduler {
                            let _ = scheduler.stop().await;
                        }
                        let _ = tenure.close().await;
                        heal(&instrumented);
                    });
                } else {
                    drop(scheduler);
                    if let Some(session) = session {
                        expire(&self.store, &session).await;
                    }
                }
                self.join().await;
            }
            _ => {
                if let Some(scheduler) = self.processes[whom].2.take() {
                    drop(scheduler);
                    self.clock.advance(SECOND).await;
                    let tenure = self.processes[whom].0.clone();
                    self.processes[whom].2 = self.started(tenure).await;
                }
            }
        }
        let wait = Duration::from_millis(self.below(20_000));
        self.clock.advance(wait).await;
    }
}

fn heal(instrumented: &InstrumentedStore) {
    for call in ["due_schedules", "fire", "heartbeat"] {
        instrumented.fault(call, None);
    }
}

#[test]
fn under_random_faults_no_tick_is_lost_or_fired_twice() {
    for seed in 0..SEEDS {
        println!("seed {seed}");
        block_on(lived(seed));
    }
}

async fn lived(seed: u64) {
    let mut world = World::new(seed).await;
    let schedules = world.processes[0].0.schedules();
    for (name, expression) in [("often", "every 5s"), ("minutely", "* * * * *"), ("odd", "every 77s")] {
        let schedule = tasks(name, expression).misfire_policy(MisfirePolicy::FireAll { cap: 10_000 });
        schedules.set(schedule).await.unwrap();
    }
    for _ in 0..STEPS {
        world.step().await;
    }
    world.processes.iter().for_each(|(_, instrumented, _)| heal(instrumented));
    // The clock may have been set back before the first ticks: set it to at least half an hour after the start. Then
    // wait long enough for a candidate to lead.
    world.clock.step_wall((start_ms() + 1_800_000 - world.clock.wall_ms()).max(0));
    world.clock.advance(5 * MINUTE).await;
    for name in ["often", "minutely", "odd"] {
        let view = view(&world.store, name).await;
        let timetable = view.definition.timetable(&view.namespace);
        let fired: Vec<i64> =
            ticks(&world.store, name, TickOutcome::Fired).await.iter().map(|tick| tick.tick_at_ms).collect();
        let last = *fired.last().expect("a tick fired");
        let due: Vec<i64> = timetable.ticks_between(start_ms() + 1, last + 1).collect();
        assert_eq!(view.last_error, None, "seed {seed}: {name}");
        assert!(fired == due, "seed {seed}: {name} has {} ticks of {}", fired.len(), due.len());
        assert!(submitted(&world.store, name).await == due, "seed {seed}: tasks of {name}");
        assert_eq!(view.skipped_count, 0, "seed {seed}: {name}");
    }
}
