//! A process of this stage: one of those who would fire.
//!
//! And one that is careless on purpose: whenever it has led, and another does since, it says under its old token that a schedule is
//! to stay as it is. That changes nothing even if it counts, and must be refused all the same.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::time::Duration;

use tenure::port::{Fire, Firing, ScheduleKey, scheduler_election};
use tenure::{Name, Scheduler, SessionId, TaskContext, Tenure, Token};
use tokio::signal::unix::{SignalKind, signal};

use super::history::RUNS;
use super::plan::{SchedulePlan, definitions, name_of};
use crate::Failed;

/// What a log says of what was said under an old token.
pub(super) const REFUSED: &str = "refused";
pub(super) const ACCEPTED: &str = "accepted";

/// Lives the life of a process.
pub(crate) fn work(plan: &str) -> Result<(), Failed> {
    let plan: SchedulePlan = serde_json::from_str(plan)?;
    // The I/O driver is what lets timers work under a faked clock.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(live(plan))
}

async fn live(plan: SchedulePlan) -> Result<(), Failed> {
    std::thread::spawn(|| {
        // Our parent holds the other end: it closes however the parent ends.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(3);
    });
    // There from the start: it counts as a process that lived.
    let log = OpenOptions::new().create(true).append(true).open(&plan.log)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let lease = Duration::from_millis(plan.lease_ms);
    let start = async {
        let tenure = open(&plan.url, &name_of(plan.hand), lease).await;
        loop {
            match tenure.scheduler().start().await {
                Ok(scheduler) => break (tenure, scheduler),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    };
    let (tenure, scheduler) = tokio::select! {
        started = start => started,
        _ = terminate.recv() => return Ok(()),
    };
    let runs = tokio::spawn(runs(tenure.clone()));
    tokio::select! {
        _ = terminate.recv() => {}
        careless = careless(&tenure, &scheduler, log) => careless?,
    }
    runs.abort();
    let leave = async {
        let _ = scheduler.stop().await;
        let _ = tenure.close().await;
    };
    let _ = tokio::time::timeout(Duration::from_secs(3), leave).await;
    Ok(())
}

/// Does the tasks that take a while, as soon as that is possible. A process that is hit leaves them in the middle.
async fn runs(tenure: Tenure) {
    let work = |task: TaskContext| async move {
        tokio::time::sleep(Duration::from_millis(100 + task.id().0 * 37 % 900)).await;
    };
    loop {
        match tenure.worker(RUNS).concurrency(2).prefetch(0).kind("run", work).start().await {
            Ok(_worker) => std::future::pending::<()>().await,
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Opens a session, as often as it takes: the server may be down just now.
pub(super) async fn open(url: &str, name: &str, lease: Duration) -> Tenure {
    loop {
        match Tenure::builder().url(url).name(name).lease(lease).open().await {
            Ok(tenure) => return tenure,
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
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
                writeln!(log, "{}", if accepted { ACCEPTED } else { REFUSED })?;
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
