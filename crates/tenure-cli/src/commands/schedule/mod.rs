//! `tenure schedule`: let things happen at their times, see and move schedules.

mod apply;
mod backfill;
mod define;
mod diff;
mod file;
mod history;
mod list;
mod next;
mod operate;
mod run;
mod show;
mod words;

use tenure::port::{Backend, ScheduleKey, ScheduleView};

use crate::args::Global;
use crate::args::schedules::{ScheduleArgs, ScheduleCommand};
use crate::exit::{self, Failure};

pub(crate) async fn run(global: &Global, args: ScheduleArgs) -> Result<u8, Failure> {
    match args.command {
        ScheduleCommand::Create(args) => define::create(global, *args).await,
        ScheduleCommand::Set(args) => define::set(global, *args).await,
        ScheduleCommand::List { listing, source, after, limit } => {
            list::run(global, listing, source, after.as_deref(), limit).await
        }
        ScheduleCommand::Show { name, watch } => show::run(global, &name, watch).await,
        ScheduleCommand::Next(args) => next::run(global, args).await,
        ScheduleCommand::Pause { name, reason } => operate::pause(global, &name, Some(reason)).await,
        ScheduleCommand::Resume { name } => operate::pause(global, &name, None).await,
        ScheduleCommand::Trigger { name, payload } => {
            operate::trigger(global, &name, payload.as_deref()).await
        }
        ScheduleCommand::Backfill(args) => backfill::run(global, args).await,
        ScheduleCommand::History(args) => history::run(global, args).await,
        ScheduleCommand::Delete { name, if_version } => operate::delete(global, &name, if_version).await,
        ScheduleCommand::Apply(args) => apply::run(global, args).await,
        ScheduleCommand::Run(args) => run::run(global, args).await,
    }
}

async fn existing(store: &dyn Backend, key: &ScheduleKey) -> Result<ScheduleView, Failure> {
    store.schedule(key).await?.ok_or_else(|| no_such(key))
}

fn no_such(key: &ScheduleKey) -> Failure {
    Failure::usage(format!("there is no schedule {key}; `tenure schedule list` shows those that there are"))
}

/// Somebody else was faster. Nothing was changed.
fn conflict(key: &ScheduleKey, found: Option<u64>) -> Failure {
    let how = match found {
        Some(version) => format!("is of version {version} by now"),
        None => "is not there any more".to_owned(),
    };
    let message = format!(
        "the schedule {key} {how}: somebody else has changed it, and nothing was done; look at it (tenure schedule show {}), and \
         try again",
        key.name
    );
    Failure::new(exit::NOT_ACQUIRED, message)
}
