//! `tenure elections`: inspect elections, transfer or resign leadership.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure::election::operator::{self, OperatorError, OperatorRequest};
use tenure::port::{ElectionView, Pause, Store};
use tenure::runtime::{now, wall_ms};
use tenure::{ElectionKey, Name, leaders};

use super::election_output;
use super::liveness::mark_dead;
use super::watch::ChangeWaiter;
use super::watch_screen;
use crate::args::{ElectionsArgs, ElectionsCommand, GlobalArgs, OutputFormat};
use crate::error::{self, CliError};
use crate::output::{self, TextStyle};
use crate::store;

pub(crate) async fn run(global: &GlobalArgs, args: ElectionsArgs) -> Result<u8, CliError> {
    match args.command {
        ElectionsCommand::List { watch, all_namespaces } => list(global, watch, all_namespaces).await,
        ElectionsCommand::Watch(args) => super::watch::run(global, args).await,
        ElectionsCommand::Show { election, terms } => show(global, &election, terms).await,
        ElectionsCommand::Resign { election, wait } => resign(global, &election, wait.wait).await,
        ElectionsCommand::Transfer { election, to, wait } => {
            transfer(global, &election, &to, wait.wait).await
        }
        ElectionsCommand::Pause { election, reason, wait } => {
            pause(global, &election, reason, wait.wait).await
        }
        ElectionsCommand::Resume { election } => resume(global, &election).await,
    }
}

async fn list(global: &GlobalArgs, watch: bool, all: bool) -> Result<u8, CliError> {
    let namespace = global.namespace.parse()?;
    let store = store::read(global).await?;
    watch_screen::show(global, store.as_ref(), watch, async || {
        let mut views = store.elections((!all).then_some(&namespace)).await?;
        mark_dead(store.as_ref(), &mut views).await?;
        Ok(match global.output {
            OutputFormat::Json => {
                watch_screen::json(&views.iter().map(election_output::json_of).collect::<Vec<_>>())
            }
            OutputFormat::Table if views.is_empty() => no_elections_in(store.as_ref(), &namespace).await?,
            OutputFormat::Table => election_output::list(&views, all, wall_ms()),
        })
    })
    .await
}

/// Message for a namespace without elections. The name may be mistyped, so it lists the namespaces that have some.
async fn no_elections_in(store: &dyn Store, namespace: &Name) -> Result<String, CliError> {
    let others: BTreeSet<String> =
        store.elections(None).await?.into_iter().map(|view| view.key.namespace.to_string()).collect();
    if others.is_empty() {
        return Ok("there are no elections; try: tenure run demo -- sleep 60\n".to_owned());
    }
    let others: Vec<String> = others.into_iter().collect();
    Ok(format!(
        "there are no elections in namespace {namespace}; namespaces with elections: {}\n",
        others.join(", ")
    ))
}

async fn show(global: &GlobalArgs, name: &str, terms: u32) -> Result<u8, CliError> {
    let key = store::key(global, name)?;
    let store = store::read(global).await?;
    let mut election = existing(store.as_ref(), &key).await?;
    mark_dead(store.as_ref(), std::slice::from_mut(&mut election)).await?;
    let terms = store.term_history(&key, terms).await?;
    if global.output == OutputFormat::Json {
        let mut value = serde_json::to_value(election_output::json_of(&election)).unwrap_or_default();
        value["terms"] = serde_json::to_value(&terms).unwrap_or_default();
        output::print_json(&value);
    } else {
        output::print_text(&election_output::show(&election, &terms, wall_ms()));
    }
    Ok(0)
}

async fn resign(global: &GlobalArgs, name: &str, wait: Duration) -> Result<u8, CliError> {
    let key = store::key(global, name)?;
    let store = store::open(global).await?;
    let election = existing(store.as_ref(), &key).await?;
    let request = operator::resign(store.as_ref(), &election, None, &whoami()).await?;
    wait_until(global, store.as_ref(), &key, wait, "the leader has not resigned", &request).await
}

async fn transfer(global: &GlobalArgs, name: &str, to: &str, wait: Duration) -> Result<u8, CliError> {
    let key = store::key(global, name)?;
    let store = store::open(global).await?;
    let election = existing(store.as_ref(), &key).await?;
    let request = match operator::transfer(store.as_ref(), &election, to, &whoami()).await {
        Err(already @ OperatorError::AlreadyLeads { .. }) => {
            output::note(global, TextStyle::Green, &already.to_string());
            return Ok(0);
        }
        request => request?,
    };
    wait_until(global, store.as_ref(), &key, wait, "leadership was not transferred", &request).await
}

async fn pause(global: &GlobalArgs, name: &str, reason: String, wait: Duration) -> Result<u8, CliError> {
    let key = store::key(global, name)?;
    let store = store::open(global).await?;
    let pause = Pause { paused_by: whoami(), reason, paused_at_ms: wall_ms() };
    let Some(request) = operator::pause(store.as_ref(), &key, &pause).await? else {
        output::note(global, TextStyle::Yellow, &format!("{name} is already paused"));
        return Ok(0);
    };
    wait_until(global, store.as_ref(), &key, wait, "the leader has not stopped", &request).await
}

async fn resume(global: &GlobalArgs, name: &str) -> Result<u8, CliError> {
    let key = store::key(global, name)?;
    let store = store::open(global).await?;
    let was = operator::resume(store.as_ref(), &key).await?;
    let text = if was { "is resumed" } else { "was not paused" };
    output::note(global, if was { TextStyle::Green } else { TextStyle::Yellow }, &format!("{name} {text}"));
    Ok(0)
}

async fn existing(store: &dyn Store, key: &ElectionKey) -> Result<ElectionView, CliError> {
    store.election(key).await?.ok_or_else(|| {
        CliError::usage(format!(
            "election {key} does not exist; list the elections with `tenure elections list`"
        ))
    })
}

/// Waits until the request is fulfilled, and prints the result.
async fn wait_until(
    global: &GlobalArgs,
    store: &dyn Store,
    key: &ElectionKey,
    wait: Duration,
    otherwise: &str,
    request: &OperatorRequest,
) -> Result<u8, CliError> {
    let deadline = now() + wait;
    let mut changes = ChangeWaiter::new(store);
    loop {
        let election = existing(store, key).await?;
        if request.is_done(&election) {
            if global.output == OutputFormat::Json {
                output::print_json(&election_output::json_of(&election));
            } else {
                let led: Vec<_> = leaders(&election)
                    .iter()
                    .map(|leader| format!("{} leads {key} under token {}", leader.name, leader.token))
                    .collect();
                let text = if led.is_empty() { format!("{key} has no leader") } else { led.join(", ") };
                output::note(global, TextStyle::Green, &text);
            }
            return Ok(0);
        }
        if now() >= deadline {
            let message = format!(
                "{otherwise} within {wait:?}; the request remains in effect; check with `tenure elections show {}`",
                key.name
            );
            return Err(CliError::new(error::NOT_ACQUIRED, message));
        }
        tokio::select! {
            () = changes.next() => {}
            () = tenure::runtime::sleep_until(deadline) => {}
        }
    }
}

/// Principal of this command: `user@host`.
pub(super) fn whoami() -> String {
    let user =
        std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_else(|_| "operator".into());
    let host = tenure::runtime::host_name();
    format!("{user}@{host}")
}
