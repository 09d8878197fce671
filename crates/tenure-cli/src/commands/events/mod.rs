//! `tenure events`: publish, read in groups, see how far those are, and mend what failed.

mod consume;
mod dead;
mod groups;
mod publish;
mod push;
mod reset;
mod tail;
mod topics;

use tenure::port::{Backend, GroupKey, GroupView};

use crate::args::Global;
use crate::args::events::{EventsArgs, EventsCommand, WhichGroup};
use crate::exit::Failure;
use crate::store;

pub(crate) async fn run(global: &Global, args: EventsArgs) -> Result<u8, Failure> {
    match args.command {
        EventsCommand::Publish(args) => publish::run(global, args).await,
        EventsCommand::Tail(args) => tail::run(global, args).await,
        EventsCommand::Consume(args) => consume::run(global, args).await,
        EventsCommand::Topics { command, listing } => topics::run(global, command, listing).await,
        EventsCommand::Groups { command, listing } => groups::run(global, command, listing).await,
        EventsCommand::Reset(args) => reset::run(global, args).await,
        EventsCommand::Dead { command } => dead::run(global, command).await,
        EventsCommand::Push { command } => push::run(global, command).await,
    }
}

impl WhichGroup {
    fn key(&self, global: &Global) -> Result<GroupKey, Failure> {
        store::group(global, &self.topic, &self.group)
    }
}

/// A group that is there.
async fn group(store: &dyn Backend, key: &GroupKey) -> Result<GroupView, Failure> {
    match store.group(key).await? {
        Some(view) => Ok(view),
        // It may be the topic that is wrong.
        None if store.topic(&key.topic).await?.is_none() => Err(topics::no_such(&key.topic)),
        None => Err(tenure::event::no_such_group(key).into()),
    }
}
