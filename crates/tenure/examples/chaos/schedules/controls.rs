//! Negative controls for schedules: each known mistake must be reported by the oracle, and without it the history must be in order.

use std::time::Duration;

use tenure::backend::postgres::{Postgres, PostgresOptions};
use tenure::port::{
    DueSchedule, Effect, Events, Fire, Fired, Firing, Scheduling, Store, TopicSettings, scheduler_election,
};
use tenure::schedule::{Load, Overlap, plan};
use tenure::{ScheduleBuilder, Tenure};
use tokio::runtime::Handle;

use super::clock::Clock;
use super::history::{self, RUNS, TOPIC};
use crate::Failed;
use crate::report::Progress;
use crate::script::{Actor, lead, stand, take_over};
use crate::theatre::{Control, Theatre};

/// How far apart the ticks are.
const EVERY_MS: i64 = 100;

/// Plays all controls.
pub(super) fn run(progress: &mut Progress, runtime: &Handle) -> Result<Vec<Control>, Failed> {
    let mut theatre = Theatre::open(progress, runtime)?;
    let no_lease = ("fire", "AND l.token = in_token AND l.session = in_session", "");
    let no_swap =
        ("advance", "AND p.version = g.version AND p.next_at_ms = g.next AND p.paused_at IS NULL", "");
    Ok(vec![
        theatre.control("a firing that does not ask who leads", &[no_lease], judged(old_leader))?,
        theatre.control("a firing without compare-and-swap", &[no_swap], judged(late_decision))?,
        theatre.control("a next tick written after the effect", &[], judged(effect_apart))?,
        theatre.control("a next tick counted from now", &[], judged(from_now))?,
        theatre.control("a run that does not ask for the one before", &[], judged(beside))?,
    ])
}

/// A script, and then a look at the history.
fn judged(
    script: impl AsyncFn(&Scene, bool) -> Result<(), Failed>,
) -> impl AsyncFn(&str, bool) -> Result<bool, Failed> {
    async move |url, wrong| {
        let scene = Scene::open(url).await?;
        script(&scene, wrong).await?;
        let judged = history::judge(&scene.tenure, Clock::default()).await?;
        scene.tenure.close().await?;
        Ok(judged.missed + judged.doubled + judged.astray + judged.overlapping > 0)
    }
}

/// A database with a topic, and leaders who act at the port, step by step.
struct Scene {
    tenure: Tenure,
    store: Postgres,
}

impl Scene {
    async fn open(url: &str) -> Result<Scene, Failed> {
        let tenure = Tenure::builder().url(url).name("judge").open().await?;
        let settings = TopicSettings { slots: 1, ..TopicSettings::default() };
        tenure.store().set_topic(&tenure.topic(TOPIC)?, &settings).await?;
        Ok(Scene { tenure, store: Postgres::connect(PostgresOptions::new(url)).await? })
    }

    async fn set(&self, misfire: &str) -> Result<(), Failed> {
        let schedule = ScheduleBuilder::new("x", format!("every {EVERY_MS}ms")).misfire(misfire.parse()?);
        self.tenure.schedules().set(schedule.event(TOPIC)).await?;
        Ok(())
    }

    /// The schedule, when at least so many of its ticks are due; and what the store's clock shows then.
    async fn due(&self, ticks: i64) -> Result<(DueSchedule, i64), Failed> {
        loop {
            let look = self.store.due(10).await?;
            let enough =
                |due: &DueSchedule| look.store_ms >= due.progress.next_at_ms + (ticks - 1) * EVERY_MS;
            if let Some(due) = look.schedules.into_iter().find(enough) {
                return Ok((due, look.store_ms));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Fires as this leader; whether it counted.
    async fn fire(&self, leader: &Actor, firing: Firing) -> Result<bool, Failed> {
        let fire = Fire { session: leader.session.clone(), token: leader.token, firings: vec![firing] };
        let fired = self.store.fire(&fire).await?;
        Ok(fired.is_some_and(|fired| fired == [Fired::Yes]))
    }

    async fn leader(&self, name: &str) -> Result<Actor, Failed> {
        lead(&self.store, name, &scheduler_election()).await
    }

    async fn next_leader(&self, name: &str, last: &Actor) -> Result<Actor, Failed> {
        let election = scheduler_election();
        let actor = stand(&self.store, name, &election).await?;
        let take = take_over(&self.store, &actor, last, &election).await?;
        let token = self.store.take(&take).await?.ok_or("the take-over was refused")?;
        Ok(Actor { token, ..actor })
    }
}

/// A leader that was stopped goes on when another has led for a while, and looks before it fires.
async fn old_leader(scene: &Scene, _: bool) -> Result<(), Failed> {
    scene.set("fire_all(100)").await?;
    let old = scene.leader("old").await?;
    let new = scene.next_leader("new", &old).await?;
    let (due, now_ms) = scene.due(1).await?;
    scene.fire(&new, plan(&due, new.token, now_ms)).await?;
    let (due, now_ms) = scene.due(1).await?;
    scene.fire(&old, plan(&due, old.token, now_ms)).await?;
    Ok(())
}

/// What was decided from one look is done twice: first by who saw less of it, and then by who saw more.
async fn late_decision(scene: &Scene, _: bool) -> Result<(), Failed> {
    scene.set("fire_once").await?;
    let leader = scene.leader("one").await?;
    let (due, now_ms) = scene.due(4).await?;
    let (soon, late) = (plan(&due, leader.token, due.progress.next_at_ms), plan(&due, leader.token, now_ms));
    scene.fire(&leader, soon).await?;
    scene.fire(&leader, late).await?;
    Ok(())
}

/// A leader dies between what a tick does and saying that it did.
async fn effect_apart(scene: &Scene, wrong: bool) -> Result<(), Failed> {
    scene.set("fire_all(100)").await?;
    let first = scene.leader("first").await?;
    let (due, now_ms) = scene.due(2).await?;
    if wrong {
        for tick in plan(&due, first.token, now_ms).ticks {
            if let Some(Effect::Event { topic, event }) = tick.effect {
                scene.store.publish(&topic, &[*event]).await?;
            }
        }
    }
    let second = scene.next_leader("second", &first).await?;
    scene.fire(&second, plan(&due, second.token, now_ms)).await?;
    Ok(())
}

/// A leader was away for a few ticks, and goes on with the newest.
async fn from_now(scene: &Scene, wrong: bool) -> Result<(), Failed> {
    scene.set("fire_all(100)").await?;
    let leader = scene.leader("one").await?;
    let (due, now_ms) = scene.due(4).await?;
    let mut firing = plan(&due, leader.token, now_ms);
    if wrong {
        firing.ticks.drain(..firing.ticks.len() - 1);
    }
    scene.fire(&leader, firing).await?;
    Ok(())
}

/// A run is under way, and a leader does not look for it.
async fn beside(scene: &Scene, wrong: bool) -> Result<(), Failed> {
    let schedule = ScheduleBuilder::new("x", format!("every {EVERY_MS}ms")).misfire("fire_once".parse()?);
    scene.tenure.schedules().set(schedule.overlap(Overlap::Skip).task(RUNS, "run")).await?;
    let leader = scene.leader("one").await?;
    for _ in 0..2 {
        let (mut due, now_ms) = scene.due(1).await?;
        if wrong {
            due.load = Load::default();
        }
        scene.fire(&leader, plan(&due, leader.token, now_ms)).await?;
    }
    Ok(())
}
