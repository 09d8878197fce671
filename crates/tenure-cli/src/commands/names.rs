//! `tenure names`: which process has which name, on a store or as gossip tells.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Args, Subcommand};
use futures_util::StreamExt;
use serde_json::json;
use tenure::backend::gossip::{Gossip, GossipOptions};
use tenure::cluster::{
    Ended, Footing, NAMES, NameChange, NameView, Registered, Registry, RegistryError, Soft, Strict,
};
use tenure::runtime::wall_ms;
use tenure::{ElectionKey, Name, Tenure};

use super::members::gathered;
use super::screen;
use super::signals::Signals;
use crate::args::{Format, Global, LEASE, duration, key_value};
use crate::exit::{self, Failure};
use crate::output::{self, Ink, Table, ago, paint};
use crate::store;

pub(crate) const EXAMPLES: &str = "\
On a store a name is an election of the namespace `names` (or of --namespace): never do two processes have one, and each change of who
has it is a greater token. On gossip there is no token, and two sides of a netsplit may each have one until they meet.

Examples:
  tenure names list -w
  tenure names show printer -o json | jq -r .metadata.address
  tenure names register printer --meta address=10.0.0.7:631     have it for as long as this runs
  tenure names register printer --wait 1m                       wait until it is free
  tenure names watch --store gossip:10.0.0.1:8370";

#[derive(Args, Debug)]
pub(crate) struct NamesArgs {
    #[command(subcommand)]
    pub(crate) command: NamesCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum NamesCommand {
    /// All names, and who has them
    List {
        /// Keep the list on the screen, up to date
        #[arg(short, long)]
        watch: bool,
    },
    /// Who has a name, and what it says of itself
    Show {
        /// The name
        name: String,
    },
    /// Have a name for as long as this runs
    Register(RegisterArgs),
    /// Say what changes, line by line: first all that there is
    Watch,
}

#[derive(Args, Debug)]
pub(crate) struct RegisterArgs {
    /// The name
    pub(crate) name: String,

    /// Something that others are to know about it (repeatable)
    #[arg(long = "meta", value_parser = key_value, value_name = "KEY=VALUE")]
    pub(crate) metadata: Vec<(String, String)>,

    /// How long to wait for it if somebody has it
    #[arg(long, default_value = "0s", value_parser = duration, value_name = "TIME")]
    pub(crate) wait: Duration,

    /// What people call this process [default: host name and process number]
    #[arg(long, env = "NODE_ID", value_name = "ID")]
    pub(crate) id: Option<String>,

    /// How long a silent process keeps the name, on a store
    #[arg(long, default_value = LEASE, value_parser = duration, value_name = "TIME")]
    pub(crate) lease: Duration,

    /// Give it up after this long
    #[arg(long = "for", value_parser = duration, value_name = "TIME")]
    pub(crate) for_time: Option<Duration>,
}

pub(crate) async fn run(global: &Global, args: NamesArgs) -> Result<u8, Failure> {
    let url = store::options(global)?.url;
    match url.starts_with("gossip:") {
        true => on_gossip(global, store::gossip(global, &url)?, args.command).await,
        false => on_store(global, args.command).await,
    }
}

/// The namespace of the registry.
fn namespace(global: &Global) -> Result<Name, Failure> {
    let given = if global.namespace == "default" { NAMES } else { &global.namespace };
    Ok(given.parse()?)
}

async fn on_store(global: &Global, command: NamesCommand) -> Result<u8, Failure> {
    let namespace = namespace(global)?;
    match command {
        NamesCommand::List { watch } => {
            let store = store::read(global).await?;
            screen::show(global, store.as_ref(), watch, async || {
                let elections = store.elections(Some(&namespace)).await?;
                let names: Vec<_> = elections.iter().filter_map(NameView::of).collect();
                Ok(listed(global, &names))
            })
            .await
        }
        NamesCommand::Show { name } => {
            let key = ElectionKey::new(namespace, name.parse()?);
            let election = store::read(global).await?.election(&key).await?;
            show(global, &name, election.as_ref().and_then(NameView::of))
        }
        NamesCommand::Watch => {
            let tenure = store::visitor(global).await?;
            let watched = watch(global, &Registry::strict(&tenure).in_namespace(namespace)).await;
            tenure.close().await?;
            watched
        }
        NamesCommand::Register(args) => {
            let tenure = session(global, &args).await?;
            let registry = Registry::strict(&tenure).in_namespace(namespace);
            let token = |held: &Registered<Strict>| Some(held.token().to_string());
            let code = register(global, &registry, &args, token).await;
            tenure.close().await?;
            code
        }
    }
}

async fn session(global: &Global, args: &RegisterArgs) -> Result<Tenure, Failure> {
    let mut builder = store::builder(global)?.lease(args.lease);
    if let Some(id) = &args.id {
        builder = builder.name(id);
    }
    Ok(builder.open().await?)
}

async fn on_gossip(global: &Global, options: GossipOptions, command: NamesCommand) -> Result<u8, Failure> {
    let options = match &command {
        NamesCommand::Register(RegisterArgs { id: Some(id), .. }) => options.name(id),
        NamesCommand::Register(_) => options,
        _ => options.visiting(),
    };
    let gossip = Gossip::join(options).await?;
    gathered(&gossip).await;
    let registry = Registry::soft(&gossip);
    let done = match command {
        NamesCommand::List { watch: false } => registry.list().await.map_err(failed).map(|names| {
            output::print_text(&listed(global, &names));
            0
        }),
        NamesCommand::List { watch: true } => redrawn(global, &registry).await,
        NamesCommand::Show { name } => match registry.whereis(&name).await {
            Ok(found) => show(global, &name, found),
            Err(error) => Err(failed(error)),
        },
        NamesCommand::Watch => watch(global, &registry).await,
        NamesCommand::Register(args) => register(global, &registry, &args, |_| None).await,
    };
    gossip.leave().await;
    done
}

/// Keeps the list on the screen.
async fn redrawn(global: &Global, registry: &Registry<Soft>) -> Result<u8, Failure> {
    let mut signals = Signals::ending()?;
    let mut changes = registry.watch();
    loop {
        let picture = listed(global, &registry.list().await.map_err(failed)?);
        match global.output {
            Format::Json => output::print_text(&picture),
            Format::Table => output::redraw(&picture),
        }
        if !output::is_read() {
            return Ok(0);
        }
        tokio::select! {
            change = changes.next() => if change.is_none() { return Ok(0) },
            _ = signals.next() => return Ok(0),
        }
    }
}

async fn watch<F: Footing>(global: &Global, registry: &Registry<F>) -> Result<u8, Failure> {
    let mut signals = Signals::ending()?;
    let mut changes = registry.watch();
    while output::is_read() {
        tokio::select! {
            change = changes.next() => match change {
                Some(change) => say(global, &change),
                None => return Ok(0),
            },
            _ = signals.next() => return Ok(0),
        }
    }
    Ok(0)
}

fn say(global: &Global, change: &NameChange) {
    if global.output == Format::Json {
        let mut line = serde_json::to_value(change).unwrap_or_default();
        line["at_ms"] = json!(wall_ms());
        output::print_json(&line);
        return;
    }
    let (word, ink, view) = match change {
        NameChange::Registered(view) => ("registered", Ink::Green, view),
        NameChange::Updated(view) => ("updated", Ink::Plain, view),
        NameChange::Moved { to, .. } => ("moved", Ink::Yellow, to),
        NameChange::Unregistered(view) => ("gone", Ink::Dim, view),
        _ => return,
    };
    let token = view.token.map(|token| format!(" under token {token}")).unwrap_or_default();
    let name = paint(view.name.as_str(), Ink::Bold);
    let said = said(&view.metadata);
    let line = format!(
        "{} {name} {}{token} {said}",
        paint(&format!("{word:>10}"), ink),
        output::plain(&view.holder)
    );
    output::print_line(line.trim_end());
}

/// Has a name until it is told to end, or does not have it any more.
async fn register<F: Footing>(
    global: &Global,
    registry: &Registry<F>,
    args: &RegisterArgs,
    token: impl Fn(&Registered<F>) -> Option<String>,
) -> Result<u8, Failure> {
    let mut signals = Signals::ending()?;
    let wanted = registry.register_within(&args.name, args.metadata.clone(), args.wait);
    let held = tokio::select! {
        held = wanted => held.map_err(failed)?,
        _ = signals.next() => return Ok(0),
    };
    let under = token(&held);
    if global.output == Format::Json {
        output::print_json(
            &json!({"name": args.name, "change": "registered", "token": under, "at_ms": wall_ms()}),
        );
    } else {
        let under = under.map(|token| format!(" under token {token}")).unwrap_or_default();
        output::print_line(&format!("{} {}{under}", paint("registered", Ink::Green), args.name));
    }
    let limit = async {
        match args.for_time {
            Some(time) => tokio::time::sleep(time).await,
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        ended = held.ended() => ended,
        _ = signals.next() => Ended::Unregistered,
        () = limit => Ended::Unregistered,
    };
    let why = match ended {
        Ended::Unregistered => return held.unregister().await.map(|()| 0).map_err(failed),
        Ended::Asked => "an operator asked for it".to_owned(),
        Ended::Lost(why) => why.as_str().to_owned(),
        Ended::Conflict { kept_by: Some(member) } => format!("{member} had it too, and keeps it"),
        Ended::Conflict { kept_by: None } => "others had it too, and nobody keeps it".to_owned(),
        other => format!("{other:?}"),
    };
    Err(Failure::new(exit::LOST, format!("{} is not ours any more: {why}", args.name)))
}

fn show(global: &Global, name: &str, found: Option<NameView>) -> Result<u8, Failure> {
    let Some(view) = found else {
        let told = format!("nobody has the name {name}; `tenure names list` shows those that somebody has");
        return Err(Failure::new(exit::NOT_ACQUIRED, told));
    };
    match global.output {
        Format::Json => output::print_json(&view),
        Format::Table => output::print_text(&table(&[view])),
    }
    Ok(0)
}

fn listed(global: &Global, names: &[NameView]) -> String {
    match global.output {
        Format::Json => screen::json(&json!({"names": names})),
        Format::Table if names.is_empty() => {
            "nobody has a name; try: tenure names register printer --meta address=10.0.0.7:631\n".to_owned()
        }
        Format::Table => table(names),
    }
}

fn table(names: &[NameView]) -> String {
    let mut table = Table::new(&["name", "process", "token", "since", "says"]);
    for view in names {
        let none = || ("–".to_owned(), Ink::Dim);
        table.row(vec![
            (view.name.to_string(), Ink::Bold),
            (output::plain(&view.holder), Ink::Green),
            view.token.map_or_else(none, |token| (token.to_string(), Ink::Plain)),
            view.since_ms.map_or_else(none, |since| (format!("{} ago", ago(since, wall_ms())), Ink::Plain)),
            (said(&view.metadata), Ink::Dim),
        ]);
    }
    table.render()
}

fn said(metadata: &BTreeMap<String, String>) -> String {
    let each: Vec<_> = metadata.iter().map(|(key, value)| output::plain(&format!("{key}={value}"))).collect();
    each.join(" ")
}

fn failed(error: RegistryError) -> Failure {
    match error {
        RegistryError::Tenure(error) => error.into(),
        RegistryError::Taken { .. } | RegistryError::NotGranted(..) => {
            Failure::new(exit::NOT_ACQUIRED, error.to_string())
        }
        refused => Failure::usage(refused.to_string()),
    }
}
