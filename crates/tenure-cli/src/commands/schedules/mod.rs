//! `tenure schedules`: manage schedules and fire them.

mod actions;
mod apply;
mod backfill;
mod define;
mod describe;
mod diff;
mod file;
mod history;
mod list;
mod preview;
mod run;
mod show;

use tenure::port::{ScheduleKey, ScheduleView, Store};

use crate::args::GlobalArgs;
use crate::args::schedules::{SchedulesArgs, SchedulesCommand};
use crate::error::{self, CliError};

pub(crate) async fn run(global: &GlobalArgs, args: SchedulesArgs) -> Result<u8, CliError> {
    match args.command {
        SchedulesCommand::Create(args) => define::create(global, *args).await,
        SchedulesCommand::Set(args) => define::set(global, *args).await,
        SchedulesCommand::List { listing, source, cursor, limit } => {
            list::run(global, listing, source, cursor.as_deref(), limit).await
        }
        SchedulesCommand::Show { schedule, watch } => show::run(global, &schedule, watch).await,
        SchedulesCommand::Preview(args) => preview::run(global, args).await,
        SchedulesCommand::Pause { schedule, reason } => actions::pause(global, &schedule, Some(reason)).await,
        SchedulesCommand::Resume { schedule } => actions::pause(global, &schedule, None).await,
        SchedulesCommand::Trigger { schedule, payload } => {
            actions::trigger(global, &schedule, payload.as_deref()).await
        }
        SchedulesCommand::Backfill(args) => backfill::run(global, args).await,
        SchedulesCommand::History(args) => history::run(global, args).await,
        SchedulesCommand::Delete { schedule, if_version } => {
            actions::delete(global, &schedule, if_version).await
        }
        SchedulesCommand::Apply(args) => apply::run(global, args).await,
        SchedulesCommand::Run(args) => run::run(global, args).await,
    }
}

async fn existing(store: &dyn Store, key: &ScheduleKey) -> Result<ScheduleView, CliError> {
    store.schedule(key).await?.ok_or_else(|| no_such(key))
}

fn no_such(key: &ScheduleKey) -> CliError {
    CliError::usage(format!("schedule {key} does not exist; list the schedules with `tenure schedules list`"))
}

/// Error for a schedule that changed since it was read.
fn conflict(key: &ScheduleKey, found: Option<u64>) -> CliError {
    let how = match found {
        Some(version) => format!("now has version {version}"),
        None => "was deleted".to_owned(),
    };
    let message = format!(
        "conflict: schedule {key} {how}; nothing was changed; check it with `tenure schedules show {}` and retry",
        key.name
    );
    CliError::new(error::NOT_ACQUIRED, message)
}
