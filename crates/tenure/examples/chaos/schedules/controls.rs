//! Negative controls for schedules: each known bug must be reported by the oracle, and without it the history must be
//! correct.

use std::time::Duration;

use tenure::port::{
    DueSchedule, ElectionStore, EventStore, FireOutcome, FireRequest, ScheduleFiring, ScheduleStore,
    TickEffect, TopicSettings, scheduler_election,
};
use tenure::rules::schedule::{OverlapPolicy, UnfinishedRuns, plan};
use tenure::store::postgres::{PostgresOptions, PostgresStore};
use tenure::{ScheduleBuilder, Tenure};
use tokio::runtime::Handle;

use super::clock::Clock;
use super::history::{self, RUNS, TOPIC};
use crate::Failed;
use crate::control_runner::{Control, ControlRunner};
use crate::report::Progress;
use crate::script::{Actor, join, lead, takeover_request};

/// Interval of the ticks.
const EVERY_MS: i64 = 100;

/// Run all controls.
pub(super) fn run(progress: &mut Progress, runtime: &Handle) -> Result<Vec<Control>, Failed> {
    let mut runner = ControlRunner::open(progress, runtime)?;
    let no_lease = ("fire_schedules", "AND l.token = in_token AND l.session = in_session", "");
    let no_swap = (
        "advance_schedules",
        "AND p.version = g.version AND p.next_tick_at_ms = g.next_tick AND p.paused_at IS NULL",
        "",
    );
    Ok(vec![
        runner.control("a firing that does not check leadership", &[no_lease], evaluated(old_leader))?,
        runner.control("a firing without compare-and-swap", &[no_swap], evaluated(late_decision))?,
        runner.control("a next tick written after the effect", &[], evaluated(separate_effect))?,
        runner.control("a next tick counted from now", &[], evaluated(from_now))?,
        runner.control("a run that ignores the unfinished one", &[], evaluated(ignored_run))?,
    ])
}

/// Run a script, then check the history.
fn evaluated(
    script: impl AsyncFn(&ControlContext, bool) -> Result<(), Failed>,
) -> impl AsyncFn(&str, bool) -> Result<bool, Failed> {
    async move |url, buggy| {
        let control = ControlContext::open(url).await?;
        script(&control, buggy).await?;
        let report = history::evaluate(&control.tenure, Clock::default()).await?;
        control.tenure.close().await?;
        Ok(report.missed + report.doubled + report.policy_violations + report.overlapping > 0)
    }
}

/// A database with a topic, and leaders that act at the port step by step.
struct ControlContext {
    tenure: Tenure,
    store: PostgresStore,
}

impl ControlContext {
    async fn open(url: &str) -> Result<ControlContext, Failed> {
        let tenure = Tenure::builder().url(url).name("evaluation").open().await?;
        let settings = TopicSettings { partitions: 1, ..TopicSettings::default() };
        tenure.store().set_topic(&tenure.topic(TOPIC)?, &settings).await?;
        Ok(ControlContext { tenure, store: PostgresStore::connect(PostgresOptions::new(url)).await? })
    }

    async fn set(&self, misfire: &str) -> Result<(), Failed> {
        let schedule =
            ScheduleBuilder::new("x", format!("every {EVERY_MS}ms")).misfire_policy(misfire.parse()?);
        self.tenure.schedules().set(schedule.event(TOPIC)).await?;
        Ok(())
    }

    /// The schedule once at least this many ticks are due, and the store's time.
    async fn due(&self, ticks: i64) -> Result<(DueSchedule, i64), Failed> {
        loop {
            let response = self.store.due_schedules(10).await?;
            let enough = |due: &DueSchedule| {
                response.store_now_at_ms >= due.tick_state.next_tick_at_ms + (ticks - 1) * EVERY_MS
            };
            if let Some(due) = response.schedules.into_iter().find(enough) {
                return Ok((due, response.store_now_at_ms));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Fire as this leader; returns whether it succeeded.
    async fn fire(&self, leader: &Actor, firing: ScheduleFiring) -> Result<bool, Failed> {
        let fire =
            FireRequest { session: leader.session.clone(), token: leader.token, firings: vec![firing] };
        let fired = self.store.fire(&fire).await?;
        Ok(fired.is_some_and(|fired| fired == [FireOutcome::Fired]))
    }

    async fn leader(&self, name: &str) -> Result<Actor, Failed> {
        lead(&self.store, name, &scheduler_election()).await
    }

    async fn next_leader(&self, name: &str, last: &Actor) -> Result<Actor, Failed> {
        let election = scheduler_election();
        let actor = join(&self.store, name, &election).await?;
        let take = takeover_request(&self.store, &actor, last, &election).await?;
        let token = self.store.take_lease(&take).await?.ok_or("the takeover was rejected")?;
        Ok(Actor { token, ..actor })
    }
}

/// A stopped leader resumes after another has led for a while. It reads the current state, then fires under its old
/// token.
async fn old_leader(control: &ControlContext, _: bool) -> Result<(), Failed> {
    control.set("fire_all(100)").await?;
    let old = control.leader("old").await?;
    let new = control.next_leader("new", &old).await?;
    let (due, now_ms) = control.due(1).await?;
    control.fire(&new, plan(&due, new.token, now_ms)).await?;
    let (due, now_ms) = control.due(1).await?;
    control.fire(&old, plan(&due, old.token, now_ms)).await?;
    Ok(())
}

/// Two decisions from one read are written: first one with fewer ticks, then one with more, whose read is outdated by
/// then.
async fn late_decision(control: &ControlContext, _: bool) -> Result<(), Failed> {
    control.set("fire_once").await?;
    let leader = control.leader("one").await?;
    let (due, now_ms) = control.due(4).await?;
    let (soon, late) =
        (plan(&due, leader.token, due.tick_state.next_tick_at_ms), plan(&due, leader.token, now_ms));
    control.fire(&leader, soon).await?;
    control.fire(&leader, late).await?;
    Ok(())
}

/// A leader dies, and the next one fires the same ticks. With the bug, the first leader published the effects before
/// recording the ticks.
async fn separate_effect(control: &ControlContext, buggy: bool) -> Result<(), Failed> {
    control.set("fire_all(100)").await?;
    let first = control.leader("first").await?;
    let (due, now_ms) = control.due(2).await?;
    if buggy {
        for tick in plan(&due, first.token, now_ms).ticks {
            if let Some(TickEffect::Event { topic, event }) = tick.effect {
                control.store.publish(&topic, &[*event]).await?;
            }
        }
    }
    let second = control.next_leader("second", &first).await?;
    control.fire(&second, plan(&due, second.token, now_ms)).await?;
    Ok(())
}

/// A leader was away for a few ticks. With the bug, it fires only the newest one and neither fires nor skips the
/// others.
async fn from_now(control: &ControlContext, buggy: bool) -> Result<(), Failed> {
    control.set("fire_all(100)").await?;
    let leader = control.leader("one").await?;
    let (due, now_ms) = control.due(4).await?;
    let mut firing = plan(&due, leader.token, now_ms);
    if buggy {
        firing.ticks.drain(..firing.ticks.len() - 1);
    }
    control.fire(&leader, firing).await?;
    Ok(())
}

/// A tick is due while an earlier run is unfinished, under the overlap policy `skip`. With the bug, the leader ignores
/// the run.
async fn ignored_run(control: &ControlContext, buggy: bool) -> Result<(), Failed> {
    let schedule =
        ScheduleBuilder::new("x", format!("every {EVERY_MS}ms")).misfire_policy("fire_once".parse()?);
    control.tenure.schedules().set(schedule.overlap_policy(OverlapPolicy::Skip).task(RUNS, "run")).await?;
    let leader = control.leader("one").await?;
    for _ in 0..2 {
        let (mut due, now_ms) = control.due(1).await?;
        if buggy {
            due.unfinished_runs = UnfinishedRuns::default();
        }
        control.fire(&leader, plan(&due, leader.token, now_ms)).await?;
    }
    Ok(())
}
