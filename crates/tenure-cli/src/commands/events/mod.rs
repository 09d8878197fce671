//! `tenure events`: publish and consume events; manage topics, groups, dead letters and webhooks.

mod consume;
mod dead_letters;
mod groups;
mod publish;
mod reset;
mod tail;
mod topics;
mod webhook;

use tenure::port::{GroupKey, GroupView, Store};

use crate::args::GlobalArgs;
use crate::args::events::{EventsArgs, EventsCommand, GroupSelector};
use crate::error::CliError;
use crate::store;

pub(crate) async fn run(global: &GlobalArgs, args: EventsArgs) -> Result<u8, CliError> {
    match args.command {
        EventsCommand::Publish(args) => publish::run(global, args).await,
        EventsCommand::Tail(args) => tail::run(global, args).await,
        EventsCommand::Consume(args) => consume::run(global, args).await,
        EventsCommand::Topics { command, listing } => topics::run(global, command, listing).await,
        EventsCommand::Groups { command, listing } => groups::run(global, command, listing).await,
        EventsCommand::DeadLetters { command } => dead_letters::run(global, command).await,
        EventsCommand::Webhook { command } => webhook::run(global, command).await,
    }
}

impl GroupSelector {
    fn key(&self, global: &GlobalArgs) -> Result<GroupKey, CliError> {
        store::group(global, &self.topic, &self.group)
    }
}

/// Reads a group; fails if it does not exist.
async fn group(store: &dyn Store, key: &GroupKey) -> Result<GroupView, CliError> {
    match store.group(key).await? {
        Some(view) => Ok(view),
        // The topic may be wrong rather than the group.
        None if store.topic(&key.topic).await?.is_none() => Err(topics::no_such(&key.topic)),
        None => Err(tenure::rules::event::no_such_group(key).into()),
    }
}
