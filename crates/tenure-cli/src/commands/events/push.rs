//! `tenure events push`: let servers push a group's events to a webhook.

use std::time::Duration;

use serde_json::json;
use tenure::port::{GroupKey, Push};

use super::group;
use crate::args::events::PushCommand;
use crate::args::values::millis;
use crate::args::{Format, Global};
use crate::commands::secret;
use crate::exit::Failure;
use crate::output::{self, Ink};
use crate::store;

pub(super) async fn run(global: &Global, command: PushCommand) -> Result<u8, Failure> {
    match command {
        PushCommand::Set { which, url, secret_file, new_secret, timeout } => {
            let secret = match secret_file {
                Some(path) => Secret::Given(secret::read(&path)?),
                None if new_secret => Secret::New,
                None => Secret::Kept,
            };
            set(global, &which.key(global)?, url, secret, timeout).await
        }
        PushCommand::Unset { which } => unset(global, &which.key(global)?).await,
    }
}

/// Which secret signatures are made with from now on.
enum Secret {
    /// This one.
    Given(String),
    /// One that is made here.
    New,
    /// The one that there is; if there is none, one that is made here.
    Kept,
}

async fn set(
    global: &Global,
    key: &GroupKey,
    url: String,
    which: Secret,
    timeout: Duration,
) -> Result<u8, Failure> {
    let (given, keeps) = match which {
        Secret::Given(secret) => (Some(secret), false),
        Secret::New => (None, false),
        Secret::Kept => (None, true),
    };
    let mut push =
        Push { url, secret: given.clone().unwrap_or_else(secret::generated), timeout_ms: millis(timeout) };
    tenure::event::check_push(&push).map_err(|error| Failure::usage(error.to_string()))?;
    let store = store::open(global).await?;
    let pushed = group(store.as_ref(), key).await?.push.is_some();
    let kept = keeps && pushed;
    if kept {
        // A server shows its secrets to nobody: it is told none, and keeps the one that it has.
        let known = store.pushes().await?.into_iter().find(|(its, _)| its == key);
        push.secret = known.map(|(_, push)| push.secret).unwrap_or_default();
    }
    let made = given.is_none() && !kept;
    store.set_push(key, Some(&push)).await?;
    let shown = made.then_some(&push.secret);
    match global.output {
        Format::Json => output::print_json(
            &json!({"group": key, "url": push.url, "timeout_ms": push.timeout_ms, "secret": shown}),
        ),
        Format::Table => {
            if let Some(secret) = shown {
                output::print_line(secret);
            }
        }
    }
    output::note(global, Ink::Green, &format!("the servers push {key} to {}", push.url));
    if tenure_server::host_is_private(&push.url) {
        let text = "this is an address of a private network, or of one machine: only servers with --push-private push there, others \
                    fail each event";
        output::note(global, Ink::Yellow, text);
    }
    if made {
        output::note(global, Ink::Yellow, "this is the secret of its signatures; it is not shown again");
    }
    Ok(0)
}

async fn unset(global: &Global, key: &GroupKey) -> Result<u8, Failure> {
    let store = store::open(global).await?;
    let before = group(store.as_ref(), key).await?.push;
    store.set_push(key, None).await?;
    if global.output == Format::Json {
        output::print_json(&json!({"group": key, "changed": before.is_some()}));
    }
    let (ink, text) = match before {
        Some(_) => (Ink::Green, "is pushed no more; how far it was read stays"),
        None => (Ink::Yellow, "was not pushed"),
    };
    output::note(global, ink, &format!("the group {key} {text}"));
    Ok(0)
}
