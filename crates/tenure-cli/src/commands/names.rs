//! `tenure names`: registers names and looks up their holders, on a store or over gossip.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Args, Subcommand};
use futures_util::StreamExt;
use serde_json::json;
use tenure::cluster::{
    NAMES, NameChange, RegisteredName, Registration, RegistrationEnd, Registry, RegistryBackend,
    RegistryError, SoftBackend, StrictBackend,
};
use tenure::runtime::wall_ms;
use tenure::store::gossip::{Gossip, GossipOptions};
use tenure::{ElectionKey, Name, Tenure};

use super::gossip::gathered;
use super::signals::Signals;
use super::watch_screen;
use crate::args::{GlobalArgs, LEASE, OutputFormat, duration, key_value};
use crate::error::{self, CliError};
use crate::output::{self, Table, TextStyle, ago, paint};
use crate::store;

pub(crate) const EXAMPLES: &str = "\
On a store, a name is an election in the namespace `names` (or --namespace): one process holds it at a time, and each new \
holder gets a greater token. Over gossip there is no token, and each side of a network split may have a holder.

Examples:
  tenure names list -w
  tenure names show printer -o json | jq -r .metadata.address
  tenure names register printer --metadata address=10.0.0.7:631   hold the name while this command runs
  tenure names register printer --wait 1m                         wait until the name is free
  tenure names watch --store gossip:10.0.0.1:8370";

#[derive(Args, Debug)]
pub(crate) struct NamesArgs {
    #[command(subcommand)]
    pub(crate) command: NamesCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum NamesCommand {
    /// List registered names and their holders
    List {
        /// Refresh the list continuously
        #[arg(short, long)]
        watch: bool,
    },
    /// Show the holder of a name and its metadata
    Show {
        /// Registered name
        name: String,
    },
    /// Register a name while this command runs
    Register(RegisterArgs),
    /// Print the current names, then every change
    Watch,
}

#[derive(Args, Debug)]
pub(crate) struct RegisterArgs {
    /// Registered name
    pub(crate) name: String,

    /// Metadata for other processes (repeatable)
    #[arg(long, value_parser = key_value, value_name = "KEY=VALUE")]
    pub(crate) metadata: Vec<(String, String)>,

    /// Maximum time to wait if the name is taken
    #[arg(long, default_value = "0s", value_parser = duration, value_name = "DURATION")]
    pub(crate) wait: Duration,

    /// Name of this process [default: host name and process id]
    #[arg(long = "name", env = "TENURE_NAME", value_name = "NAME")]
    pub(crate) process_name: Option<String>,

    /// Lease duration of the name
    #[arg(long, default_value = LEASE, value_parser = duration, value_name = "DURATION")]
    pub(crate) lease: Duration,

    /// Release the name after this duration
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) duration: Option<Duration>,
}

pub(crate) async fn run(global: &GlobalArgs, args: NamesArgs) -> Result<u8, CliError> {
    let url = store::options(global)?.url;
    match url.starts_with("gossip:") {
        true => on_gossip(global, store::gossip(global, &url)?, args.command).await,
        false => on_store(global, args.command).await,
    }
}

/// Namespace of the registry.
fn namespace(global: &GlobalArgs) -> Result<Name, CliError> {
    let given = if global.namespace == "default" { NAMES } else { &global.namespace };
    Ok(given.parse()?)
}

async fn on_store(global: &GlobalArgs, command: NamesCommand) -> Result<u8, CliError> {
    let namespace = namespace(global)?;
    match command {
        NamesCommand::List { watch } => {
            let store = store::read(global).await?;
            watch_screen::show(global, store.as_ref(), watch, async || {
                let elections = store.elections(Some(&namespace)).await?;
                let names: Vec<_> = elections.iter().filter_map(RegisteredName::of).collect();
                Ok(render_list(global, &names))
            })
            .await
        }
        NamesCommand::Show { name } => {
            let key = ElectionKey::new(namespace, name.parse()?);
            let election = store::read(global).await?.election(&key).await?;
            show(global, &name, election.as_ref().and_then(RegisteredName::of))
        }
        NamesCommand::Watch => {
            let tenure = store::session_without_candidate(global).await?;
            let watched = watch(global, &Registry::strict(&tenure).in_namespace(namespace)).await;
            tenure.close().await?;
            watched
        }
        NamesCommand::Register(args) => {
            let tenure = session(global, &args).await?;
            let registry = Registry::strict(&tenure).in_namespace(namespace);
            let token = |held: &Registration<StrictBackend>| Some(held.token().to_string());
            let code = register(global, &registry, &args, token).await;
            tenure.close().await?;
            code
        }
    }
}

async fn session(global: &GlobalArgs, args: &RegisterArgs) -> Result<Tenure, CliError> {
    let mut builder = store::builder(global)?.lease(args.lease);
    if let Some(name) = &args.process_name {
        builder = builder.name(name);
    }
    Ok(builder.open().await?)
}

async fn on_gossip(
    global: &GlobalArgs,
    options: GossipOptions,
    command: NamesCommand,
) -> Result<u8, CliError> {
    let options = match &command {
        NamesCommand::Register(RegisterArgs { process_name: Some(name), .. }) => options.name(name),
        NamesCommand::Register(_) => options,
        _ => options.temporary_observer(),
    };
    let gossip = Gossip::join(options).await?;
    gathered(&gossip).await;
    let registry = Registry::soft(&gossip);
    let done = match command {
        NamesCommand::List { watch: false } => registry.list().await.map_err(cli_error).map(|names| {
            output::print_text(&render_list(global, &names));
            0
        }),
        NamesCommand::List { watch: true } => watch_list(global, &registry).await,
        NamesCommand::Show { name } => match registry.whereis(&name).await {
            Ok(found) => show(global, &name, found),
            Err(error) => Err(cli_error(error)),
        },
        NamesCommand::Watch => watch(global, &registry).await,
        NamesCommand::Register(args) => register(global, &registry, &args, |_| None).await,
    };
    gossip.leave().await;
    done
}

/// Redraws the list on every change.
async fn watch_list(global: &GlobalArgs, registry: &Registry<SoftBackend>) -> Result<u8, CliError> {
    let mut signals = Signals::ending()?;
    let mut changes = registry.watch();
    loop {
        let picture = render_list(global, &registry.list().await.map_err(cli_error)?);
        match global.output {
            OutputFormat::Json => output::print_text(&picture),
            OutputFormat::Table => output::redraw(&picture),
        }
        if !output::stdout_open() {
            return Ok(0);
        }
        tokio::select! {
            change = changes.next() => if change.is_none() { return Ok(0) },
            _ = signals.next() => return Ok(0),
        }
    }
}

async fn watch<F: RegistryBackend>(global: &GlobalArgs, registry: &Registry<F>) -> Result<u8, CliError> {
    let mut signals = Signals::ending()?;
    let mut changes = registry.watch();
    while output::stdout_open() {
        tokio::select! {
            change = changes.next() => match change {
                Some(change) => print_change(global, &change),
                None => return Ok(0),
            },
            _ = signals.next() => return Ok(0),
        }
    }
    Ok(0)
}

fn print_change(global: &GlobalArgs, change: &NameChange) {
    if global.output == OutputFormat::Json {
        let mut line = serde_json::to_value(change).unwrap_or_default();
        line["observed_at_ms"] = json!(wall_ms());
        output::print_json(&line);
        return;
    }
    let (word, style, view) = match change {
        NameChange::Registered(view) => ("registered", TextStyle::Green, view),
        NameChange::Updated(view) => ("updated", TextStyle::Plain, view),
        NameChange::Moved { to, .. } => ("moved", TextStyle::Yellow, to),
        NameChange::Unregistered(view) => ("unregistered", TextStyle::Dim, view),
        _ => return,
    };
    let token = view.token.map(|token| format!(" under token {token}")).unwrap_or_default();
    let name = paint(view.name.as_str(), TextStyle::Bold);
    let metadata = format_metadata(&view.metadata);
    let line = format!(
        "{} {name} {}{token} {metadata}",
        paint(&format!("{word:>12}"), style),
        output::plain(&view.holder)
    );
    output::print_line(line.trim_end());
}

/// Holds a name until a signal arrives or the name is lost.
async fn register<F: RegistryBackend>(
    global: &GlobalArgs,
    registry: &Registry<F>,
    args: &RegisterArgs,
    token: impl Fn(&Registration<F>) -> Option<String>,
) -> Result<u8, CliError> {
    let mut signals = Signals::ending()?;
    let wanted = registry.register_within(&args.name, args.metadata.clone(), args.wait);
    let held = tokio::select! {
        held = wanted => held.map_err(cli_error)?,
        _ = signals.next() => return Ok(0),
    };
    let under = token(&held);
    if global.output == OutputFormat::Json {
        output::print_json(
            &json!({"name": args.name, "change": "registered", "token": under, "observed_at_ms": wall_ms()}),
        );
    } else {
        let under = under.map(|token| format!(" under token {token}")).unwrap_or_default();
        output::print_line(&format!("{} {}{under}", paint("registered", TextStyle::Green), args.name));
    }
    let limit = async {
        match args.duration {
            Some(time) => tokio::time::sleep(time).await,
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        ended = held.ended() => ended,
        _ = signals.next() => RegistrationEnd::Unregistered,
        () = limit => RegistrationEnd::Unregistered,
    };
    let why = match ended {
        RegistrationEnd::Unregistered => return held.unregister().await.map(|()| 0).map_err(cli_error),
        RegistrationEnd::Requested => "an operator requested it".to_owned(),
        RegistrationEnd::Lost(why) => why.as_str().to_owned(),
        RegistrationEnd::Conflict { kept_by: Some(member) } => format!("{member} held it too, and keeps it"),
        RegistrationEnd::Conflict { kept_by: None } => {
            "other members held it too, and none keeps it".to_owned()
        }
        other => format!("{other:?}"),
    };
    Err(CliError::new(error::LOST, format!("lost the name {}: {why}", args.name)))
}

fn show(global: &GlobalArgs, name: &str, found: Option<RegisteredName>) -> Result<u8, CliError> {
    let Some(view) = found else {
        let message =
            format!("the name {name} is not registered; list the registered names with `tenure names list`");
        return Err(CliError::new(error::NOT_ACQUIRED, message));
    };
    match global.output {
        OutputFormat::Json => output::print_json(&view),
        OutputFormat::Table => output::print_text(&table(&[view])),
    }
    Ok(0)
}

fn render_list(global: &GlobalArgs, names: &[RegisteredName]) -> String {
    match global.output {
        OutputFormat::Json => watch_screen::json(&json!({"names": names})),
        OutputFormat::Table if names.is_empty() => {
            "there are no registered names; try: tenure names register printer --metadata address=10.0.0.7:631\n".to_owned()
        }
        OutputFormat::Table => table(names),
    }
}

fn table(names: &[RegisteredName]) -> String {
    let mut table = Table::new(&["name", "holder", "token", "since", "metadata"]);
    for view in names {
        let none = || ("–".to_owned(), TextStyle::Dim);
        table.row(vec![
            (view.name.to_string(), TextStyle::Bold),
            (output::plain(&view.holder), TextStyle::Green),
            view.token.map_or_else(none, |token| (token.to_string(), TextStyle::Plain)),
            view.since_at_ms
                .map_or_else(none, |since| (format!("{} ago", ago(since, wall_ms())), TextStyle::Plain)),
            (format_metadata(&view.metadata), TextStyle::Dim),
        ]);
    }
    table.render()
}

fn format_metadata(metadata: &BTreeMap<String, String>) -> String {
    let each: Vec<_> = metadata.iter().map(|(key, value)| output::plain(&format!("{key}={value}"))).collect();
    each.join(" ")
}

fn cli_error(error: RegistryError) -> CliError {
    match error {
        RegistryError::Tenure(error) => error.into(),
        RegistryError::Taken { .. } | RegistryError::NotGranted(..) => {
            CliError::new(error::NOT_ACQUIRED, error.to_string())
        }
        refused => CliError::usage(refused.to_string()),
    }
}
