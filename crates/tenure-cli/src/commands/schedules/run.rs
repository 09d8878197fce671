//! `tenure schedules run`: campaigns for the scheduler role and fires due schedules, without a server.

use std::time::Duration;

use serde_json::json;
use tenure::port::{Store, scheduler_election};
use tenure::runtime::wall_ms;
use tenure::{Scheduler, Tenure, Token, leaders};

use crate::args::schedules::ScheduleRunArgs;
use crate::args::{GlobalArgs, OutputFormat};
use crate::commands::signals::Signals;
use crate::commands::watch::ChangeWaiter;
use crate::error::CliError;
use crate::output::{self, TextStyle};
use crate::store;

/// Poll interval of `--exit-when-idle`.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(super) async fn run(global: &GlobalArgs, args: ScheduleRunArgs) -> Result<u8, CliError> {
    let mut signals = Signals::ending()?;
    let tenure = session(global, &args).await?;
    if tenure.store().routes_to_broker() {
        let message = "`tenure schedules run` needs a database store; servers run their own scheduler";
        return Err(CliError::usage(message));
    }
    let scheduler = tenure.scheduler().priority(args.priority).start().await?;
    let name = tenure.name().to_owned();
    output::note(global, TextStyle::Dim, &format!("{name} campaigns for the scheduler role"));
    tokio::select! {
        _ = signals.next() => {}
        printed = print_changes(global, &tenure, &scheduler) => printed?,
        idle = until_idle(tenure.store().as_ref(), args.exit_when_idle) => idle?,
    }
    let ended = async {
        scheduler.stop().await?;
        tenure.close().await
    };
    tokio::select! {
        ended = ended => ended?,
        // A second signal: exit at once without releasing the lease.
        _ = signals.next() => {}
    }
    Ok(0)
}

async fn session(global: &GlobalArgs, args: &ScheduleRunArgs) -> Result<Tenure, CliError> {
    tenure::Timing::new(args.lease, None).map_err(tenure::Error::from)?;
    let mut builder = store::builder(global)?.lease(args.lease);
    if let Some(name) = &args.name {
        builder = builder.name(name);
    }
    Ok(builder.open().await?)
}

/// Prints whenever this process becomes or stops being the scheduler.
async fn print_changes(global: &GlobalArgs, tenure: &Tenure, scheduler: &Scheduler) -> Result<(), CliError> {
    let store = tenure.store().as_ref();
    let mut changes = ChangeWaiter::new(store);
    let mut before = None;
    loop {
        let fires = scheduler.is_leader();
        if before != Some(fires) {
            let token = if fires { token(store, tenure.name()).await } else { None };
            print_change(global, tenure.name(), fires, token, before.is_some());
            before = Some(fires);
        }
        changes.next().await;
    }
}

/// Token of the scheduler role, for output only.
async fn token(store: &dyn Store, name: &str) -> Option<Token> {
    let view = store.election(&scheduler_election()).await.ok()??;
    leaders(&view).into_iter().find(|leader| leader.name == name).map(|leader| leader.token)
}

fn print_change(global: &GlobalArgs, name: &str, fires: bool, token: Option<Token>, again: bool) {
    if global.output == OutputFormat::Json {
        return output::print_json(
            &json!({"name": name, "leading": fires, "token": token, "observed_at_ms": wall_ms()}),
        );
    }
    let under = token.map(|token| format!(" under token {token}")).unwrap_or_default();
    match (fires, again) {
        (true, _) => output::note(global, TextStyle::Green, &format!("{name} is the scheduler{under}")),
        (false, true) => {
            output::note(global, TextStyle::Yellow, &format!("{name} is no longer the scheduler"))
        }
        (false, false) => {}
    }
}

/// Completes when no schedule is due. If `wanted` is false, never completes.
async fn until_idle(store: &dyn Store, wanted: bool) -> Result<(), CliError> {
    if !wanted {
        std::future::pending::<()>().await;
    }
    loop {
        match store.schedule_stats().await {
            Ok(stats) if stats.iter().all(|stats| stats.overdue_count == 0) => return Ok(()),
            Ok(_) => {}
            Err(error) => tracing::warn!("cannot read the schedules: {error}"),
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
