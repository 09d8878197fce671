//! `tenure schedule run`: fire what is due, when elected to, without a server.

use std::time::Duration;

use serde_json::json;
use tenure::port::{Backend, scheduler_election};
use tenure::runtime::wall_ms;
use tenure::{Scheduler, Tenure, Token, leaders};

use crate::args::schedules::ScheduleRunArgs;
use crate::args::{Format, Global};
use crate::commands::signals::Signals;
use crate::commands::watch::Changes;
use crate::exit::Failure;
use crate::output::{self, Ink};
use crate::store;

/// How often it is looked whether something is still due.
const GLANCE: Duration = Duration::from_millis(100);

pub(super) async fn run(global: &Global, args: ScheduleRunArgs) -> Result<u8, Failure> {
    let mut signals = Signals::ending()?;
    let tenure = session(global, &args).await?;
    if tenure.store().routes_claims() {
        let message =
            "the servers fire what is due by themselves; leave this out, or give the store that they are on";
        return Err(Failure::usage(message));
    }
    let scheduler = tenure.scheduler().priority(args.priority).start().await?;
    let name = tenure.name().to_owned();
    output::note(global, Ink::Dim, &format!("{name} stands ready to fire what is due"));
    tokio::select! {
        _ = signals.next() => {}
        told = tell(global, &tenure, &scheduler) => told?,
        idle = until_idle(tenure.store().as_ref(), args.until_idle) => idle?,
    }
    let ended = async {
        scheduler.stop().await?;
        tenure.close().await
    };
    tokio::select! {
        ended = ended => ended?,
        // Told to end once more: the store gets no farewell, and waits for the lease.
        _ = signals.next() => {}
    }
    Ok(0)
}

async fn session(global: &Global, args: &ScheduleRunArgs) -> Result<Tenure, Failure> {
    tenure::Timing::new(args.lease, None).map_err(tenure::Error::from)?;
    let mut builder = store::builder(global)?.lease(args.lease);
    if let Some(id) = &args.id {
        builder = builder.name(id);
    }
    Ok(builder.open().await?)
}

/// Says whether it is this process that fires, whenever that changes.
async fn tell(global: &Global, tenure: &Tenure, scheduler: &Scheduler) -> Result<(), Failure> {
    let store = tenure.store().as_ref();
    let mut changes = Changes::new(store);
    let mut before = None;
    loop {
        let fires = scheduler.fires();
        if before != Some(fires) {
            let token = if fires { token(store, tenure.name()).await } else { None };
            say(global, tenure.name(), fires, token, before.is_some());
            before = Some(fires);
        }
        changes.next().await;
    }
}

/// Under which token it fires. For people: what it fires carries it anyhow.
async fn token(store: &dyn Backend, name: &str) -> Option<Token> {
    let view = store.election(&scheduler_election()).await.ok()??;
    leaders(&view).into_iter().find(|leader| leader.id == name).map(|leader| leader.token)
}

fn say(global: &Global, name: &str, fires: bool, token: Option<Token>, again: bool) {
    if global.output == Format::Json {
        return output::print_json(&json!({"id": name, "fires": fires, "token": token, "at_ms": wall_ms()}));
    }
    let under = token.map(|token| format!(", under token {token}")).unwrap_or_default();
    match (fires, again) {
        (true, _) => output::note(global, Ink::Green, &format!("{name} fires what is due{under}")),
        (false, true) => output::note(global, Ink::Yellow, &format!("{name} fires no more; another does")),
        (false, false) => {}
    }
}

/// Completes when nothing is due any more, if that is wanted.
async fn until_idle(store: &dyn Backend, wanted: bool) -> Result<(), Failure> {
    if !wanted {
        std::future::pending::<()>().await;
    }
    loop {
        match store.schedule_stats().await {
            Ok(stats) if stats.iter().all(|stats| stats.overdue == 0) => return Ok(()),
            Ok(_) => {}
            Err(error) => tracing::warn!("cannot see whether anything is due: {error}"),
        }
        tokio::time::sleep(GLANCE).await;
    }
}
