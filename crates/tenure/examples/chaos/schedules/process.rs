//! A process of this stage: one of those who would fire.
//!
//! And one that is careless on purpose: whenever it has led, and another does since, it says under its old token that a schedule is
//! to stay as it is. That changes nothing even if it counts, and must be refused all the same.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::time::Duration;

use tenure::port::{Fire, Firing, ScheduleKey, scheduler_election};
use tenure::{Name, Scheduler, SessionId, TaskContext, Tenure, Token};
use tokio::signal::unix::Signal;

use super::history::RUNS;
use super::plan::{Plan, definitions, name_of};
use crate::Failed;
use crate::process::{insist, open, word};
use crate::servers::LEASE;

/// Lives the life of a process.
pub(crate) async fn live(plan: Plan, mut terminate: Signal) -> Result<(), Failed> {
    // There from the start: it counts as a process that lived.
    let log = OpenOptions::new().create(true).append(true).open(&plan.log)?;
    let start = async {
        let tenure = open(&plan.url, &name_of(plan.hand), LEASE).await;
        let scheduler = insist(async || tenure.scheduler().start().await).await;
        (tenure, scheduler)
    };
    let (tenure, scheduler) = tokio::select! {
        started = start => started,
        _ = terminate.recv() => return Ok(()),
    };
    tokio::select! {
        _ = terminate.recv() => {}
        () = runs(&tenure) => {}
        careless = careless(&tenure, &scheduler, log) => careless?,
    }
    let leave = async {
        let _ = scheduler.stop().await;
        let _ = tenure.close().await;
    };
    let _ = tokio::time::timeout(Duration::from_secs(3), leave).await;
    Ok(())
}

/// Does the tasks that take a while, as soon as that is possible. A process that is hit leaves them in the middle.
async fn runs(tenure: &Tenure) {
    let work = |task: TaskContext| async move {
        tokio::time::sleep(Duration::from_millis(100 + task.id().0 * 37 % 900)).await;
    };
    let start = async || tenure.worker(RUNS).concurrency(2).prefetch(0).kind("run", work).start().await;
    let _worker = insist(start).await;
    std::future::pending::<()>().await;
}

async fn careless(tenure: &Tenure, scheduler: &Scheduler, mut log: File) -> Result<(), Failed> {
    let name = definitions()?.remove(0).name;
    let key = ScheduleKey::new(Name::default_namespace(), name);
    let mut led: Option<(SessionId, Token)> = None;
    loop {
        tokio::time::sleep(Duration::from_millis(40)).await;
        // The server may be down just now.
        let Ok(Some(view)) = tenure.store().election(&scheduler_election()).await else { continue };
        let Some(now) = view.leases.first() else { continue };
        let holder = now.holder.as_ref().map(|holder| holder.id.clone());
        match &led {
            Some((session, token)) if now.token > *token => {
                let Ok(Some(accepted)) = repeat(tenure, &key, session, *token).await else { continue };
                writeln!(log, "{}", word(accepted))?;
                led = None;
            }
            _ if scheduler.fires() && holder.is_some() && holder == tenure.session() => {
                led = holder.map(|session| (session, now.token));
            }
            _ => {}
        }
    }
}

/// Says again, under an old token, what is so already; whether that counted, and `None` if there is nothing to say.
async fn repeat(
    tenure: &Tenure,
    key: &ScheduleKey,
    session: &SessionId,
    token: Token,
) -> Result<Option<bool>, Failed> {
    let Some(view) = tenure.store().schedule(key).await? else { return Ok(None) };
    let Some(progress) = view.progress else { return Ok(None) };
    let firing = Firing {
        key: key.clone(),
        version: view.version,
        next_at_ms: progress.next_at_ms,
        ticks: Vec::new(),
        skipped: None,
        progress: Some(progress),
        due_ms: view.due_ms,
        trouble: None,
    };
    let fire = Fire { session: session.clone(), token, firings: vec![firing] };
    Ok(Some(tenure.store().fire(&fire).await?.is_some()))
}
