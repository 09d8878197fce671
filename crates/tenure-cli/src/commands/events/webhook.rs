//! `tenure events webhook`: delivery of the events of a group to a webhook.

use std::time::Duration;

use serde_json::json;
use tenure::port::{GroupKey, WebhookSettings};

use super::group;
use crate::args::events::WebhookCommand;
use crate::args::parsers::millis;
use crate::args::{GlobalArgs, OutputFormat};
use crate::commands::signing_secret;
use crate::error::CliError;
use crate::output::{self, TextStyle};
use crate::store;

pub(super) async fn run(global: &GlobalArgs, command: WebhookCommand) -> Result<u8, CliError> {
    match command {
        WebhookCommand::Set { which, url, secret_file, rotate_secret, timeout } => {
            let secret = match secret_file {
                Some(path) => SecretChoice::FromFile(signing_secret::read(&path)?),
                None if rotate_secret => SecretChoice::New,
                None => SecretChoice::Kept,
            };
            set(global, &which.key(global)?, url, secret, timeout).await
        }
        WebhookCommand::Delete { which } => delete(global, &which.key(global)?).await,
    }
}

/// Signing secret of a webhook.
enum SecretChoice {
    /// The secret from a file.
    FromFile(String),
    /// A generated secret.
    New,
    /// The current secret; a generated one if there is none.
    Kept,
}

async fn set(
    global: &GlobalArgs,
    key: &GroupKey,
    url: String,
    which: SecretChoice,
    timeout: Duration,
) -> Result<u8, CliError> {
    let (given, keeps) = match which {
        SecretChoice::FromFile(secret) => (Some(secret), false),
        SecretChoice::New => (None, false),
        SecretChoice::Kept => (None, true),
    };
    let mut webhook = WebhookSettings {
        url,
        secret: given.clone().unwrap_or_else(signing_secret::generated),
        timeout_ms: millis(timeout),
    };
    tenure::rules::event::validate_webhook(&webhook).map_err(|error| CliError::usage(error.to_string()))?;
    let store = store::open(global).await?;
    let has_webhook = group(store.as_ref(), key).await?.webhook.is_some();
    let kept = keeps && has_webhook;
    if kept {
        // A server never returns a secret. It keeps its own if the request has none.
        let known = store.webhooks().await?.into_iter().find(|(its, _)| its == key);
        webhook.secret = known.map(|(_, webhook)| webhook.secret).unwrap_or_default();
    }
    let generated = given.is_none() && !kept;
    store.set_webhook(key, Some(&webhook)).await?;
    let shown = generated.then_some(&webhook.secret);
    match global.output {
        OutputFormat::Json => output::print_json(
            &json!({"group": key, "url": webhook.url, "timeout_ms": webhook.timeout_ms, "secret": shown}),
        ),
        OutputFormat::Table => {
            if let Some(secret) = shown {
                output::print_line(secret);
            }
        }
    }
    output::note(
        global,
        TextStyle::Green,
        &format!("servers deliver the events of {key} to {}", webhook.url),
    );
    if tenure_server::host_is_private(&webhook.url) {
        let text = "this is a private or loopback address: only servers with --allow-private-webhooks deliver to it, others fail each \
                    event";
        output::note(global, TextStyle::Yellow, text);
    }
    if generated {
        output::note(global, TextStyle::Yellow, "save the signing secret now: it is not shown again");
    }
    Ok(0)
}

async fn delete(global: &GlobalArgs, key: &GroupKey) -> Result<u8, CliError> {
    let store = store::open(global).await?;
    let before = group(store.as_ref(), key).await?.webhook;
    store.set_webhook(key, None).await?;
    if global.output == OutputFormat::Json {
        output::print_json(&json!({"group": key, "changed": before.is_some()}));
    }
    let (style, text) = match before {
        Some(_) => (TextStyle::Green, "has no webhook now; its offsets are kept"),
        None => (TextStyle::Yellow, "had no webhook"),
    };
    output::note(global, style, &format!("group {key} {text}"));
    Ok(0)
}
