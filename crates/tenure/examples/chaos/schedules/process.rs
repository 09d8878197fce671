//! A process of the schedule scenarios, with a scheduler.
//!
//! A task sends stale firings on purpose: when this process has led and another one leads now, it writes the unchanged
//! state of a schedule under its old token. That would change nothing, but the store must reject it.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::time::Duration;

use tenure::port::{FireRequest, ScheduleFiring, ScheduleKey, scheduler_election};
use tenure::{Name, Scheduler, SessionId, TaskContext, Tenure, Token};
use tokio::signal::unix::Signal;

use super::history::RUNS;
use super::plan::{Plan, definitions, name_of};
use crate::Failed;
use crate::postgres::LEASE;
use crate::process::{open, outcome_line, retry};

/// Run a process.
pub(crate) async fn run_process(plan: Plan, mut terminate: Signal) -> Result<(), Failed> {
    // Created at the start, because the number of logs is the number of processes.
    let log = OpenOptions::new().create(true).append(true).open(&plan.log)?;
    let start = async {
        let tenure = open(&plan.url, &name_of(plan.process), LEASE).await;
        let scheduler = retry(async || tenure.scheduler().start().await).await;
        (tenure, scheduler)
    };
    let (tenure, scheduler) = tokio::select! {
        started = start => started,
        _ = terminate.recv() => return Ok(()),
    };
    tokio::select! {
        _ = terminate.recv() => {}
        () = runs(&tenure) => {}
        stale_firings = stale_firings(&tenure, &scheduler, log) => stale_firings?,
    }
    let leave = async {
        let _ = scheduler.stop().await;
        let _ = tenure.close().await;
    };
    let _ = tokio::time::timeout(Duration::from_secs(3), leave).await;
    Ok(())
}

/// Run the tasks that take a while. A process that is killed or stopped leaves them unfinished.
async fn runs(tenure: &Tenure) {
    let work = |task: TaskContext| async move {
        tokio::time::sleep(Duration::from_millis(100 + task.id().0 * 37 % 900)).await;
    };
    let start = async || tenure.worker(RUNS).concurrency(2).prefetch(0).kind("run", work).start().await;
    let _worker = retry(start).await;
    std::future::pending::<()>().await;
}

async fn stale_firings(tenure: &Tenure, scheduler: &Scheduler, mut log: File) -> Result<(), Failed> {
    let name = definitions()?.remove(0).name;
    let key = ScheduleKey::new(Name::default_namespace(), name);
    let mut led: Option<(SessionId, Token)> = None;
    loop {
        tokio::time::sleep(Duration::from_millis(40)).await;
        // The server may be down.
        let Ok(Some(view)) = tenure.store().election(&scheduler_election()).await else { continue };
        let Some(now) = view.leases.first() else { continue };
        let holder = now.holder.as_ref().map(|holder| holder.id.clone());
        match &led {
            Some((session, token)) if now.token > *token => {
                let Ok(Some(accepted)) = repeat(tenure, &key, session, *token).await else { continue };
                writeln!(log, "{}", outcome_line(accepted))?;
                led = None;
            }
            _ if scheduler.is_leader() && holder.is_some() && holder == tenure.session() => {
                led = holder.map(|session| (session, now.token));
            }
            _ => {}
        }
    }
}

/// Write the current state of a schedule under an old token. Returns whether the store accepted it, which must never
/// happen; `None` if there is nothing to write.
async fn repeat(
    tenure: &Tenure,
    key: &ScheduleKey,
    session: &SessionId,
    token: Token,
) -> Result<Option<bool>, Failed> {
    let Some(view) = tenure.store().schedule(key).await? else { return Ok(None) };
    let Some(progress) = view.tick_state else { return Ok(None) };
    let firing = ScheduleFiring {
        key: key.clone(),
        version: view.version,
        next_tick_at_ms: progress.next_tick_at_ms,
        ticks: Vec::new(),
        skipped: None,
        tick_state: Some(progress),
        due_at_ms: view.due_at_ms,
        error: None,
    };
    let fire = FireRequest { session: session.clone(), token, firings: vec![firing] };
    Ok(Some(tenure.store().fire(&fire).await?.is_some()))
}
