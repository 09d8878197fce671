//! Actions on a consumer group, with confirmation: pause, resume, settings, webhook, delete.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{Backoff, ErrorKind, GroupKey, GroupSettings, GroupView, Pause, StartOffset, TopicKey};
use tenure_core::rules::event::validate_group;

use super::components::{self, ConfirmDialog};
use super::election::with_timeout;
use super::extract::{FormBody, PageParams};
use super::format;
use super::layout::{PageContext, problem_page};
use super::queue_actions::{digest, invalid_field, parse_duration};
use super::queues::{NamespaceQuery, no_such_action};
use super::topic_actions::{check_name_confirmation, name_confirmation_field, number, text};
use crate::App;
use crate::api::{self, AuditActor, PutWebhookRequest, no_such_group, set_webhook};
use crate::problem::Problem;

const ACTIONS: &str = "pause, resume, reset, settings, webhook, webhook-delete or delete";
/// Default timeout of a webhook request.
const TIMEOUT_MS: u64 = 10_000;

/// The fields of the group settings.
pub(super) fn form(settings: &GroupSettings) -> Markup {
    html! {
        div.across {
            (text("max_attempts", "Maximum attempts", &settings.max_attempts.to_string(), "Then the event is a dead letter and its key is parked."))
            (text("initial_backoff", "Initial backoff", &format::duration(settings.backoff.initial_ms), "Doubles with each failure."))
            (text("max_backoff", "Maximum backoff", &format::duration(settings.backoff.max_ms), "For example 500ms, 30s, 5m."))
        }
    }
}

/// Parse the fields of the group settings.
pub(super) fn settings_of(
    max_attempts: &str,
    initial_backoff: &str,
    max_backoff: &str,
) -> Result<GroupSettings, Problem> {
    let backoff = Backoff {
        initial_ms: parse_duration("initial_backoff", initial_backoff)?,
        max_ms: parse_duration("max_backoff", max_backoff)?,
    };
    Ok(GroupSettings { max_attempts: number("max_attempts", max_attempts)?, backoff })
}

/// Write an audit entry about a group.
pub(super) async fn record(app: &App, ctx: &PageContext, action: &str, key: &GroupKey, detail: String) {
    let target = format!("{}/{}", key.topic.name, key.name);
    ctx.record(app, action, Some(&key.topic.namespace), &target, detail).await;
    // Refresh the snapshots, so that the next page shows the change.
    app.events.invalidate().await;
    app.queues.invalidate().await;
}

/// Load a group from the store.
pub(super) async fn find(app: &App, key: &GroupKey) -> Result<GroupView, Problem> {
    with_timeout(app.store.group(key)).await?.ok_or_else(|| no_such_group(key))
}

pub(super) async fn confirm(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((topic, group, action))): PageParams<Path<(Name, Name, String)>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
) -> Response {
    let key = GroupKey::new(TopicKey::new(at.namespace, topic), group);
    let dialog = async { confirmation(&find(&app, &key).await?, &action) };
    match dialog.await {
        Ok(dialog) => dialog.page(&ctx, "Events"),
        Err(problem) => problem_page(&ctx, &problem),
    }
}

fn confirmation(view: &GroupView, action: &str) -> Result<ConfirmDialog, Problem> {
    let key = &view.key;
    let (to, back) = (components::group_href(key, action), components::group_href(key, ""));
    let dialog =
        |title: String, button, danger, body| ConfirmDialog { title, to, back, button, danger, body };
    Ok(match action {
        "pause" => dialog(
            format!("Pause {}?", key.name),
            "Pause",
            true,
            html! {
                p { "Members keep their partitions and finish events in progress. New events accumulate as lag until the group is resumed." }
                (components::reason_field())
            },
        ),
        "resume" => dialog(
            format!("Resume {}?", key.name),
            "Resume",
            false,
            html! {
                p {
                    @if let Some(pause) = &view.paused { "Paused by " span.strong { (pause.paused_by) } @if !pause.reason.is_empty() { ": “" (pause.reason) "”" } ". " }
                    "It continues from the committed offsets."
                }
            },
        ),
        "settings" => dialog(
            format!("Settings of {}", key.name),
            "Save",
            false,
            html! { input type="hidden" name="expected_digest" value=(digest(&view.settings)); (form(&view.settings)) },
        ),
        "webhook-delete" => dialog(
            format!("Delete the webhook of {}?", key.name),
            "Delete webhook",
            true,
            html! { p { "The servers leave the group and the secret is deleted. The committed offsets are kept; new events accumulate as lag." } },
        ),
        "delete" => dialog(
            format!("Delete {}?", key.name),
            "Delete permanently",
            true,
            html! {
                p {
                    "Deletes the committed offsets and " span.strong { (format::count((view.parked_event_count + view.dead_letter_count) as usize, "parked event")) }
                    ". The topic and its events are kept. A group with active members cannot be deleted."
                }
                (name_confirmation_field(key.name.as_str()))
            },
        ),
        other => return Err(no_such_action(other, "a group", ACTIONS)),
    })
}

/// The form of an action.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct GroupActionForm {
    reason: String,
    expected_digest: String,
    name: String,
    max_attempts: String,
    initial_backoff: String,
    max_backoff: String,
}

pub(super) async fn apply(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((topic, group, action))): PageParams<Path<(Name, Name, String)>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
    FormBody(form): FormBody<GroupActionForm>,
) -> Response {
    let key = GroupKey::new(TopicKey::new(at.namespace, topic), group);
    match perform(&app, &ctx, &key, &action, &form).await {
        Ok("delete") => ctx.redirect_with_message(&components::topic_href(&key.topic, ""), "group-delete"),
        Ok(message) => ctx.redirect_with_message(&components::group_href(&key, ""), message),
        Err(problem) => problem_page(&ctx, &problem),
    }
}

async fn perform(
    app: &App,
    ctx: &PageContext,
    key: &GroupKey,
    action: &str,
    form: &GroupActionForm,
) -> Result<&'static str, Problem> {
    let view = find(app, key).await?;
    match action {
        "pause" | "resume" => {
            let reason = form.reason.trim().to_owned();
            api::validate_display_text("reason", &reason)?;
            let pause = Pause {
                paused_by: ctx.name().into(),
                reason: reason.clone(),
                paused_at_ms: app.runtime.wall_ms(),
            };
            let pause = (action == "pause").then_some(pause);
            if !with_timeout(app.store.set_group_paused(key, pause.as_ref())).await? {
                return Ok("already");
            }
            record(app, ctx, &format!("group.{action}"), key, reason).await;
            Ok(if action == "pause" { "pause" } else { "resume" })
        }
        "settings" => {
            if form.expected_digest != digest(&view.settings) {
                let detail = format!("{key} changed since you loaded the form; nothing was saved.");
                return Err(Problem::new(StatusCode::CONFLICT, "settings-changed", detail)
                    .remedy("Reload the page and try again."));
            }
            let settings = settings_of(&form.max_attempts, &form.initial_backoff, &form.max_backoff)?;
            validate_group(&settings).map_err(|error| invalid_field("settings", error.to_string()))?;
            if settings == view.settings {
                return Ok("already");
            }
            // The start offset applies only to a new group.
            with_timeout(app.store.set_group(key, &settings, StartOffset::default())).await?;
            record(app, ctx, "group.set", key, serde_json::to_string(&settings).unwrap_or_default()).await;
            Ok("settings")
        }
        "webhook-delete" => {
            let Some(webhook) = view.webhook else { return Ok("already") };
            with_timeout(app.store.set_webhook(key, None)).await?;
            record(app, ctx, "webhook.delete", key, api::push_address(&webhook.url).unwrap_or_default())
                .await;
            Ok("webhook-delete")
        }
        "delete" => {
            check_name_confirmation(&form.name, &key.name)?;
            match with_timeout(app.store.delete_group(key)).await {
                // The store rejects the request only if the group has active members.
                Err(error) if error.kind == ErrorKind::Request => {
                    return Err(Problem::from_message(StatusCode::CONFLICT, "group-in-use", &error.message));
                }
                other => other?,
            };
            record(app, ctx, "group.delete", key, String::new()).await;
            Ok("delete")
        }
        other => Err(no_such_action(other, "a group", ACTIONS)),
    }
}

pub(super) async fn webhook_form(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((topic, group))): PageParams<Path<(Name, Name)>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
) -> Response {
    let key = GroupKey::new(TopicKey::new(at.namespace, topic), group);
    let view = match find(&app, &key).await {
        Ok(view) => view,
        Err(problem) => return problem_page(&ctx, &problem),
    };
    let timeout = view.webhook.as_ref().map_or(TIMEOUT_MS, |webhook| webhook.timeout_ms);
    let dialog = ConfirmDialog {
        title: format!("Webhook of {}", key.name),
        to: components::group_href(&key, "webhook"),
        back: components::group_href(&key, ""),
        button: "Save webhook",
        danger: false,
        body: html! {
            p { "The servers consume the group and " code { "POST" } " each event to this URL, signed according to Standard Webhooks. A " code { "2xx" } " response acknowledges the event." }
            div.field {
                label for="url" { "URL" }
                input #url name="url" type="url" required autocomplete="off" placeholder="https://example.org/hooks/orders" value=[view.webhook.as_ref().map(|webhook| webhook.url.as_str())];
            }
            div.across {
                (text("timeout", "Timeout", &format::duration(timeout), "For example 5s. A timeout counts as a failed attempt."))
                div.field {
                    label for="secret" { "Signing secret" }
                    input #secret name="secret" type="password" autocomplete="off";
                    small { @if view.webhook.is_some() { "Empty: keep the current one." } @else { "Empty: create one and show it once." } }
                }
            }
            @if view.webhook.is_some() {
                div.checkboxes { label { input type="checkbox" name="rotate_secret" value="on"; "Rotate the secret and show the new one once" } }
            }
        },
    };
    dialog.page(&ctx, "Events")
}

/// The form of a webhook.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WebhookForm {
    url: String,
    #[serde(default)]
    timeout: String,
    #[serde(default)]
    secret: String,
    rotate_secret: Option<String>,
}

pub(super) async fn save_webhook(
    State(app): State<App>,
    ctx: PageContext,
    by: AuditActor,
    PageParams(Path((topic, group))): PageParams<Path<(Name, Name)>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
    FormBody(form): FormBody<WebhookForm>,
) -> Response {
    let key = GroupKey::new(TopicKey::new(at.namespace, topic), group);
    match set_webhook_of(&app, &by, &key, form).await {
        Ok(None) => ctx.redirect_with_message(&components::group_href(&key, ""), "webhook"),
        Ok(Some(secret)) => ctx.redirect_with_secret(&components::group_href(&key, ""), "webhook", &secret),
        Err(problem) => problem_page(&ctx, &problem),
    }
}

/// Save the webhook of a group. Returns the secret if a new one was created.
async fn set_webhook_of(
    app: &App,
    by: &AuditActor,
    key: &GroupKey,
    form: WebhookForm,
) -> Result<Option<String>, Problem> {
    let request = PutWebhookRequest {
        url: form.url.trim().into(),
        // An empty field keeps the current secret.
        secret: Some(form.secret).filter(|secret| !secret.is_empty()),
        rotate_secret: form.rotate_secret.is_some(),
        timeout_ms: Some(parse_duration("timeout", &form.timeout)?),
    };
    let (_, made) = set_webhook(app, by, key, request).await?;
    app.events.invalidate().await;
    app.queues.invalidate().await;
    Ok(made)
}
