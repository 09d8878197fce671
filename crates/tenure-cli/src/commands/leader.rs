//! `tenure leader`: see and move leaders.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure::operator::{self, Asked, Refusal};
use tenure::port::{Backend, ElectionView, Pause};
use tenure::runtime::{now, wall_ms};
use tenure::{ElectionKey, Name, leaders};

use super::liveness::mark_dead;
use super::screen;
use super::view;
use super::watch::Changes;
use crate::args::{Format, Global, LeaderArgs, LeaderCommand};
use crate::exit::{self, Failure};
use crate::output::{self, Ink};
use crate::store;

pub(crate) async fn run(global: &Global, args: LeaderArgs) -> Result<u8, Failure> {
    match args.command {
        LeaderCommand::List { watch, all_namespaces } => list(global, watch, all_namespaces).await,
        LeaderCommand::Show { name, terms } => show(global, &name, terms).await,
        LeaderCommand::Resign { name, patience } => resign(global, &name, patience.wait).await,
        LeaderCommand::Transfer { name, to, patience } => transfer(global, &name, &to, patience.wait).await,
        LeaderCommand::Pause { name, reason, patience } => pause(global, &name, reason, patience.wait).await,
        LeaderCommand::Resume { name } => resume(global, &name).await,
    }
}

async fn list(global: &Global, watch: bool, all: bool) -> Result<u8, Failure> {
    let namespace = global.namespace.parse()?;
    let store = store::read(global).await?;
    screen::show(global, store.as_ref(), watch, async || {
        let mut views = store.elections((!all).then_some(&namespace)).await?;
        mark_dead(store.as_ref(), &mut views).await?;
        Ok(match global.output {
            Format::Json => screen::json(&views.iter().map(view::json_of).collect::<Vec<_>>()),
            Format::Table if views.is_empty() => nothing_in(store.as_ref(), &namespace).await?,
            Format::Table => view::list(&views, all, wall_ms()),
        })
    })
    .await
}

/// What to say of a namespace without elections. It may be mistyped, so those that have some are named.
async fn nothing_in(store: &dyn Backend, namespace: &Name) -> Result<String, Failure> {
    let others: BTreeSet<String> =
        store.elections(None).await?.into_iter().map(|view| view.key.namespace.to_string()).collect();
    if others.is_empty() {
        return Ok("nobody has stood for an election yet; try: tenure run demo -- sleep 60\n".to_owned());
    }
    let others: Vec<String> = others.into_iter().collect();
    Ok(format!("there is no election in namespace {namespace}; there are some in: {}\n", others.join(", ")))
}

async fn show(global: &Global, name: &str, terms: u32) -> Result<u8, Failure> {
    let key = store::key(global, name)?;
    let store = store::read(global).await?;
    let mut election = existing(store.as_ref(), &key).await?;
    mark_dead(store.as_ref(), std::slice::from_mut(&mut election)).await?;
    let terms = store.history(&key, terms).await?;
    if global.output == Format::Json {
        let mut value = serde_json::to_value(view::json_of(&election)).unwrap_or_default();
        value["terms"] = serde_json::to_value(&terms).unwrap_or_default();
        output::print_json(&value);
    } else {
        output::print_text(&view::show(&election, &terms, wall_ms()));
    }
    Ok(0)
}

async fn resign(global: &Global, name: &str, wait: Duration) -> Result<u8, Failure> {
    let key = store::key(global, name)?;
    let store = store::open(global).await?;
    let election = existing(store.as_ref(), &key).await?;
    let asked = operator::resign(store.as_ref(), &election, None, &whoami()).await?;
    until(global, store.as_ref(), &key, wait, "the leader has not resigned", &asked).await
}

async fn transfer(global: &Global, name: &str, to: &str, wait: Duration) -> Result<u8, Failure> {
    let key = store::key(global, name)?;
    let store = store::open(global).await?;
    let election = existing(store.as_ref(), &key).await?;
    let asked = match operator::transfer(store.as_ref(), &election, to, &whoami()).await {
        Err(already @ Refusal::LeadsAlready { .. }) => {
            output::note(global, Ink::Green, &already.to_string());
            return Ok(0);
        }
        asked => asked?,
    };
    until(global, store.as_ref(), &key, wait, "the leadership has not moved", &asked).await
}

async fn pause(global: &Global, name: &str, reason: String, wait: Duration) -> Result<u8, Failure> {
    let key = store::key(global, name)?;
    let store = store::open(global).await?;
    let pause = Pause { by: whoami(), reason, at_ms: wall_ms() };
    let Some(asked) = operator::pause(store.as_ref(), &key, &pause).await? else {
        output::note(global, Ink::Yellow, &format!("{name} was paused already"));
        return Ok(0);
    };
    until(global, store.as_ref(), &key, wait, "the leader has not stopped", &asked).await
}

async fn resume(global: &Global, name: &str) -> Result<u8, Failure> {
    let key = store::key(global, name)?;
    let store = store::open(global).await?;
    let was = operator::resume(store.as_ref(), &key).await?;
    let text = if was { "resumed" } else { "was not paused" };
    output::note(global, if was { Ink::Green } else { Ink::Yellow }, &format!("{name} {text}"));
    Ok(0)
}

async fn existing(store: &dyn Backend, key: &ElectionKey) -> Result<ElectionView, Failure> {
    store.election(key).await?.ok_or_else(|| {
        Failure::usage(format!("there is no election {key}; `tenure leader list` shows those that there are"))
    })
}

/// Waits until what was asked has happened, and shows it.
async fn until(
    global: &Global,
    store: &dyn Backend,
    key: &ElectionKey,
    wait: Duration,
    otherwise: &str,
    asked: &Asked,
) -> Result<u8, Failure> {
    let deadline = now() + wait;
    let mut changes = Changes::new(store);
    loop {
        let election = existing(store, key).await?;
        if asked.is_done(&election) {
            if global.output == Format::Json {
                output::print_json(&view::json_of(&election));
            } else {
                let led: Vec<_> = leaders(&election)
                    .iter()
                    .map(|leader| format!("{} leads {key} under token {}", leader.id, leader.token))
                    .collect();
                let text = if led.is_empty() { format!("nobody leads {key}") } else { led.join(", ") };
                output::note(global, Ink::Green, &text);
            }
            return Ok(0);
        }
        if now() >= deadline {
            let message = format!(
                "{otherwise} within {wait:?}; it was asked, and `tenure leader show {key}` will tell"
            );
            return Err(Failure::new(exit::NOT_ACQUIRED, message));
        }
        tokio::select! {
            () = changes.next() => {}
            () = tenure::runtime::sleep_until(deadline) => {}
        }
    }
}

/// Who asks, for the others: the user and the host.
pub(super) fn whoami() -> String {
    let user =
        std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_else(|_| "operator".into());
    let host = tenure::runtime::host_name();
    format!("{user}@{host}")
}
