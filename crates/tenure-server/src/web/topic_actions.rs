//! Actions on a topic, with confirmation: create, settings, delete, create a group, publish an event.

use std::collections::BTreeMap;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{
    ErrorKind, GroupKey, GroupSettings, NewEvent, PARTITIONS_MAX, Payload, Permission, StartOffset, TopicKey,
    TopicSettings, TopicView,
};
use tenure_core::rules::event::{validate_events, validate_group, validate_topic};

use super::components::{self, ConfirmDialog, FormErrors};
use super::election::with_timeout;
use super::extract::{FormBody, PageParams};
use super::format;
use super::group_actions;
use super::layout::{PageContext, go, problem_page};
use super::queue_actions::{digest, invalid_field, parse_duration};
use super::queues::{NamespaceQuery, no_such_action};
use crate::App;
use crate::api::no_such_topic;
use crate::problem::Problem;
use crate::quota::{self, Object};

pub(super) const NAME: &str = r"[A-Za-z0-9][A-Za-z0-9._:\-]{0,127}";

const ACTIONS: &str = "publish, group, settings or delete";

/// The form of an action.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TopicActionForm {
    name: String,
    expected_digest: String,
    partitions: String,
    retention: String,
    unread_retention: String,
    max_payload_bytes: String,
    from: String,
    max_attempts: String,
    initial_backoff: String,
    max_backoff: String,
}

/// A text field of a form.
pub(super) fn text(id: &str, label: &str, value: &str, help: &str) -> Markup {
    html! { div.field { label for=(id) { (label) } input id=(id) name=(id) value=(value) autocomplete="off"; small { (help) } } }
}

/// The field for the name of a new object.
pub(super) fn name_field(label: &str, placeholder: &str) -> Markup {
    html! { div.field { label for="name" { (label) } input #name name="name" required autocomplete="off" placeholder=(placeholder) pattern=(NAME); } }
}

/// Parse the name of a form.
pub(super) fn name(text: &str) -> Result<Name, Problem> {
    text.trim().parse().map_err(|error: tenure::NameError| invalid_field("name", error.to_string()))
}

/// Parse a number of a form.
pub(super) fn number<T: std::str::FromStr>(field: &str, text: &str) -> Result<T, Problem> {
    let text = text.trim();
    text.parse().map_err(|_| invalid_field(field, format!("{field}: invalid number {text:?}")))
}

fn form(settings: &TopicSettings) -> Markup {
    let unread = settings.unread_retention_ms.map(format::duration).unwrap_or_default();
    html! {
        div.across {
            (text("retention", "Retention", &format::duration(settings.retention_ms), "Minimum, for example 90m, 24h, 7d."))
            (text("unread_retention", "Retention of unread events", &unread, "Empty: until every group has read them."))
            (text("max_payload_bytes", "Maximum payload size", &settings.max_payload_bytes.to_string(), "In bytes."))
        }
    }
}

impl TopicActionForm {
    fn topic(&self, partitions: u32) -> Result<TopicSettings, Problem> {
        let unread = Some(self.unread_retention.trim()).filter(|text| !text.is_empty());
        let settings = TopicSettings {
            partitions,
            retention_ms: parse_duration("retention", &self.retention)?,
            unread_retention_ms: unread.map(|text| parse_duration("unread_retention", text)).transpose()?,
            max_payload_bytes: number("max_payload_bytes", &self.max_payload_bytes)?,
        };
        validate_topic(&settings).map_err(|error| invalid_field("settings", error.to_string()))?;
        Ok(settings)
    }

    fn group(&self) -> Result<GroupSettings, Problem> {
        let settings =
            group_actions::settings_of(&self.max_attempts, &self.initial_backoff, &self.max_backoff)?;
        validate_group(&settings).map_err(|error| invalid_field("settings", error.to_string()))?;
        Ok(settings)
    }
}

pub(super) async fn new(
    ctx: PageContext,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
) -> Response {
    let usual = TopicSettings::default();
    let dialog = ConfirmDialog {
        title: "Create topic".into(),
        to: format!("/new-topic?namespace={}", components::escape(at.namespace.as_str())),
        back: "/topics".into(),
        button: "Create",
        danger: false,
        body: html! {
            p { "Namespace " span.strong { (at.namespace) } "." }
            (name_field("Topic", "orders"))
            div.field {
                label for="partitions" { "Partitions" }
                input #partitions name="partitions" type="number" required min="1" max=(PARTITIONS_MAX) value=(usual.partitions);
                small { "Maximum number of active members per group. It cannot change later." }
            }
            (form(&usual))
        },
    };
    dialog.page(&ctx, "Events")
}

pub(super) async fn create(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
    FormBody(form): FormBody<TopicActionForm>,
) -> Response {
    let made = async {
        let key = TopicKey::new(at.namespace.clone(), name(&form.name)?);
        let settings = form.topic(number("partitions", &form.partitions)?)?;
        if with_timeout(app.store.topic(&key)).await?.is_some() {
            let detail = format!("Topic {key} exists; nothing was changed.");
            return Err(Problem::new(StatusCode::CONFLICT, "topic-exists", detail)
                .field("name")
                .remedy("Choose another name or edit the existing one."));
        }
        quota::check(&app, Object::Topic(&key)).await?;
        with_timeout(app.store.set_topic(&key, &settings)).await?;
        record(&app, &ctx, "topic.set", &key, serde_json::to_string(&settings).unwrap_or_default()).await;
        Ok(ctx.redirect_with_message(&components::topic_href(&key, ""), "new"))
    };
    made.await.unwrap_or_else(|problem: Problem| problem_page(&ctx, &problem))
}

/// Write an audit entry about a topic.
async fn record(app: &App, ctx: &PageContext, action: &str, key: &TopicKey, detail: String) {
    ctx.record(app, action, Some(&key.namespace), key.name.as_str(), detail).await;
    // Refresh the snapshots, so that the next page shows the change.
    app.events.invalidate().await;
    app.queues.invalidate().await;
}

async fn find(app: &App, key: &TopicKey) -> Result<TopicView, Problem> {
    with_timeout(app.store.topic(key)).await?.ok_or_else(|| no_such_topic(key))
}

pub(super) async fn confirm(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((topic, action))): PageParams<Path<(Name, String)>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
) -> Response {
    let key = TopicKey::new(at.namespace, topic);
    let dialog = async {
        let view = find(&app, &key).await?;
        let (to, back) = (components::topic_href(&key, &action), components::topic_href(&key, ""));
        let dialog =
            |title: String, button, danger, body| ConfirmDialog { title, to, back, button, danger, body };
        Ok(match action.as_str() {
            "settings" => dialog(
                format!("Settings of {}", key.name),
                "Save",
                false,
                html! {
                    input type="hidden" name="expected_digest" value=(digest(&view.settings));
                    p.soft { (format::count(view.settings.partitions as usize, "partition")) ". The number is fixed because a change would break the order of keys." }
                    (form(&view.settings))
                },
            ),
            "group" => dialog(
                format!("Create a group of {}", key.name),
                "Create",
                false,
                html! {
                    p { "The first member creates its group. Use this form to choose the start offset or to add a webhook." }
                    (name_field("Group", "billing"))
                    (start_offset_field())
                    (group_actions::form(&GroupSettings::default()))
                },
            ),
            "delete" => dialog(
                format!("Delete {}?", key.name),
                "Delete permanently",
                true,
                html! {
                    p {
                        "Deletes " span.strong { (format::number(view.event_count)) " events" } " and " span.strong { (format::count(view.groups.len(), "group")) }
                        ". Publishing to it fails afterwards. This cannot be undone. A topic with active members cannot be deleted."
                    }
                    (name_confirmation_field(key.name.as_str()))
                },
            ),
            other => return Err(no_such_action(other, "a topic", ACTIONS)),
        })
    };
    match dialog.await {
        Ok(dialog) => dialog.page(&ctx, "Events"),
        Err(problem) => problem_page(&ctx, &problem),
    }
}

/// A field that must repeat the name, before an irreversible action.
pub(super) fn name_confirmation_field(name: &str) -> Markup {
    html! {
        div.field {
            label for="name" { "Type the name to confirm" }
            input #name name="name" required autocomplete="off" spellcheck="false" pattern=(regex_of(name)) title=(name);
        }
    }
}

/// A pattern that matches only this name. Of the characters of a name only the dot is special. Browsers
/// compile patterns with the `v` flag, where an escaped hyphen outside of brackets is an error that disables
/// the whole pattern.
fn regex_of(name: &str) -> String {
    name.replace('.', r"\.")
}

/// Reject a confirmation with another name.
pub(super) fn check_name_confirmation(given: &str, name: &Name) -> Result<(), Problem> {
    if given.trim() == name.as_str() {
        return Ok(());
    }
    Err(invalid_field("name", "The name does not match; nothing was deleted."))
}

/// The field for the start offset of a group.
fn start_offset_field() -> Markup {
    html! {
        fieldset.field {
            legend { "Start offset" }
            div.choices {
                label { input type="radio" name="from" required value="earliest" checked; span.choice-text { span.strong { "Earliest" } span.soft.small { "all retained events" } } }
                label { input type="radio" name="from" required value="latest"; span.choice-text { span.strong { "Latest" } span.soft.small { "new events only" } } }
            }
        }
    }
}

pub(super) async fn apply(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((topic, action))): PageParams<Path<(Name, String)>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
    FormBody(form): FormBody<TopicActionForm>,
) -> Response {
    let key = TopicKey::new(at.namespace, topic);
    match perform(&app, &ctx, &key, &action, &form).await {
        Ok((to, message)) => ctx.redirect_with_message(&to, message),
        Err(problem) => problem_page(&ctx, &problem),
    }
}

async fn perform(
    app: &App,
    ctx: &PageContext,
    key: &TopicKey,
    action: &str,
    form: &TopicActionForm,
) -> Result<(String, &'static str), Problem> {
    let view = find(app, key).await?;
    let here = |message: &'static str| (components::topic_href(key, ""), message);
    match action {
        "settings" => {
            if form.expected_digest != digest(&view.settings) {
                let detail = format!("{key} changed since you loaded the form; nothing was saved.");
                return Err(Problem::new(StatusCode::CONFLICT, "settings-changed", detail)
                    .remedy("Reload the page and try again."));
            }
            let settings = form.topic(view.settings.partitions)?;
            if settings == view.settings {
                return Ok(here("already"));
            }
            with_timeout(app.store.set_topic(key, &settings)).await?;
            let detail = serde_json::to_string(&settings).unwrap_or_default();
            record(app, ctx, "topic.set", key, detail).await;
            Ok(here("set"))
        }
        "group" => {
            let group = GroupKey::new(key.clone(), name(&form.name)?);
            let settings = form.group()?;
            let from = match form.from.as_str() {
                "earliest" => StartOffset::Earliest,
                "latest" => StartOffset::Latest,
                other => return Err(invalid_field("from", format!("Invalid start offset: {other:?}"))),
            };
            if view.groups.contains(&group.name) {
                let detail = format!("Group {group} exists; nothing was changed.");
                return Err(Problem::new(StatusCode::CONFLICT, "group-exists", detail)
                    .field("name")
                    .remedy("Choose another name or edit the existing one."));
            }
            quota::check(app, Object::Group(&group)).await?;
            with_timeout(app.store.set_group(&group, &settings, from)).await?;
            group_actions::record(
                app,
                ctx,
                "group.set",
                &group,
                serde_json::to_string(&settings).unwrap_or_default(),
            )
            .await;
            Ok((components::group_href(&group, ""), "new"))
        }
        "delete" => {
            check_name_confirmation(&form.name, &key.name)?;
            match with_timeout(app.store.delete_topic(key)).await {
                // The store rejects the request only if the topic has active members.
                Err(error) if error.kind == ErrorKind::Request => {
                    return Err(Problem::from_message(StatusCode::CONFLICT, "topic-in-use", &error.message));
                }
                other => other?,
            };
            record(app, ctx, "topic.delete", key, String::new()).await;
            Ok((format!("/topics?namespace={}", components::escape(key.namespace.as_str())), "delete"))
        }
        other => Err(no_such_action(other, "a topic", ACTIONS)),
    }
}

/// The form of a new event.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PublishForm {
    #[serde(rename = "type")]
    kind: String,
    key: String,
    payload: String,
    headers: String,
    idempotency_key: String,
}

impl PublishForm {
    fn event(&self) -> Result<NewEvent, Problem> {
        let some = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let payload = some(&self.payload).unwrap_or_else(|| "{}".into());
        let payload =
            payload.parse().map_err(|error| invalid_field("payload", format!("Invalid JSON: {error}")))?;
        let mut headers = BTreeMap::new();
        for line in self.headers.lines().filter(|line| !line.trim().is_empty()) {
            let (name, value) = line.split_once(':').ok_or_else(|| {
                invalid_field(
                    "headers",
                    format!("Invalid header {line:?}; use name: value, such as trace: 42"),
                )
            })?;
            headers.insert(name.trim().into(), value.trim().into());
        }
        Ok(NewEvent {
            key: some(&self.key),
            event_type: self.kind.trim().into(),
            payload: Payload::Json(payload),
            headers,
            idempotency_key: some(&self.idempotency_key),
            leader_token: None,
        })
    }
}

pub(super) async fn publish_form(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path(topic)): PageParams<Path<Name>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
) -> Response {
    let key = TopicKey::new(at.namespace, topic);
    if let Err(problem) = find(&app, &key).await {
        return problem_page(&ctx, &problem);
    }
    event_form(&ctx, &key, &PublishForm { payload: "{}".into(), ..PublishForm::default() }, None)
}

fn event_form(ctx: &PageContext, key: &TopicKey, form: &PublishForm, problem: Option<&Problem>) -> Response {
    let errors = FormErrors(problem);
    let area = |id: &str, rows: u8, value: &str, placeholder: &str| {
        html! { textarea id=(id) .mono name=(id) rows=(rows) spellcheck="false" placeholder=(placeholder) aria-invalid=[errors.aria_invalid(id)] aria-describedby=[errors.aria_invalid(id).map(|_| format!("{id}-error"))] { (value) } }
    };
    let dialog = ConfirmDialog {
        title: format!("Publish to {}", key.name),
        to: components::topic_href(key, "publish"),
        // A principal without read permission cannot open the page of the topic.
        back: if ctx.may(Permission::Read, Some(&key.namespace)) {
            components::topic_href(key, "")
        } else {
            "/".into()
        },
        button: "Publish",
        danger: false,
        body: html! {
            (errors.above(&["payload", "headers"]))
            p { "Publishes one event to all groups of the topic." }
            div.across {
                (text("type", "Type", &form.kind, "For example order.paid"))
                (text("key", "Key", &form.key, "Events with the same key are processed in order. Empty: any order."))
            }
            div.field { label for="payload" { "Payload" } (area("payload", 5, &form.payload, "")) (errors.below("payload")) small { "JSON." } }
            details #more open[!form.headers.is_empty() || !form.idempotency_key.is_empty()] {
                summary { "Headers, idempotency key" }
                div.across.more {
                    div.field { label for="headers" { "Headers" } (area("headers", 2, &form.headers, "trace: 42")) (errors.below("headers")) small { "One per row." } }
                    (text("idempotency_key", "Idempotency key", &form.idempotency_key, "A repeated key returns the first event."))
                }
            }
        },
    };
    dialog.page(ctx, "Events")
}

pub(super) async fn publish(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path(topic)): PageParams<Path<Name>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
    FormBody(form): FormBody<PublishForm>,
) -> Response {
    let key = TopicKey::new(at.namespace, topic);
    let published = async {
        let view = find(&app, &key).await?;
        let event = [form.event()?];
        validate_events(&event, view.settings.max_payload_bytes)
            .map_err(|error| invalid_field("event", error.to_string()))?;
        let published = with_timeout(app.store.publish(&key, &event)).await?;
        let one = published.first().ok_or_else(|| invalid_field("event", "No event was published."))?;
        if one.created {
            let detail = format!("event {} {}", one.id, event[0].event_type);
            record(&app, &ctx, "event.publish", &key, detail).await;
        }
        if !ctx.may(Permission::Read, Some(&key.namespace)) {
            return Ok(go("/"));
        }
        let message = if one.created { "publish" } else { "known" };
        Ok(ctx.redirect_with_message(&components::topic_href(&key, ""), message))
    };
    match published.await {
        Ok(response) => response,
        Err(problem) if components::is_correctable(&problem) => {
            components::rejected(event_form(&ctx, &key, &form, Some(&problem)), &problem)
        }
        Err(problem) => problem_page(&ctx, &problem),
    }
}
