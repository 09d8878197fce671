//! `tenure events push`: let servers push a group's events to a webhook.

use std::path::Path;
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
        PushCommand::Set { which, url, secret_file, timeout } => {
            set(global, &which.key(global)?, url, secret_file.as_deref(), timeout).await
        }
        PushCommand::Unset { which } => unset(global, &which.key(global)?).await,
    }
}

async fn set(
    global: &Global,
    key: &GroupKey,
    url: String,
    secret_file: Option<&Path>,
    timeout: Duration,
) -> Result<u8, Failure> {
    let (secret, made) = match secret_file {
        Some(path) => (secret::read(path)?, false),
        None => (secret::generated(), true),
    };
    let push = Push { url, secret, timeout_ms: millis(timeout) };
    tenure::event::check_push(&push).map_err(|error| Failure::usage(error.to_string()))?;
    let store = store::open(global).await?;
    group(store.as_ref(), key).await?;
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
