//! What an operator does to a group: pause, resume, set, push, delete. The question, then the deed.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{Backoff, Begin, GroupKey, GroupSettings, GroupView, Pause, TopicKey, Trouble};
use tenure_core::event::check_group;

use super::election::within;
use super::frame::{Visit, trouble};
use super::given::{Got, Posted};
use super::parts::{self, Question};
use super::queue_act::{digest, span, wrong};
use super::queues::{Where, no_such_action};
use super::topic_act::{is_named, number, text, type_the_name};
use super::words;
use crate::App;
use crate::api::{self, By, PushWish, no_such_group, set_push};
use crate::problem::Problem;

const ACTIONS: &str = "pause, resume, reset, settings, push, unset and delete";
/// How long an answer to a push may take, unless somebody says otherwise.
const TIMEOUT_MS: u64 = 10_000;

/// How a group is set, as a form.
pub(super) fn form(settings: &GroupSettings) -> Markup {
    html! {
        div.across {
            (text("max_attempts", "Try at most", &settings.max_attempts.to_string(), "Times. Then the event is dead, and its key parked."))
            (text("first", "Again after", &words::duration(settings.backoff.first_ms), "The first time, and twice as long each time ..."))
            (text("most", "at most after", &words::duration(settings.backoff.most_ms), "... up to this. Such as 500ms, 30s, 5min."))
        }
    }
}

/// How a group is to be set, as a form said it.
pub(super) fn settings_of(max_attempts: &str, first: &str, most: &str) -> Result<GroupSettings, Problem> {
    let backoff = Backoff { first_ms: span("first", first)?, most_ms: span("most", most)? };
    Ok(GroupSettings { max_attempts: number("max_attempts", max_attempts)?, backoff })
}

/// Writes down what was done to a group.
pub(super) async fn record(app: &App, visit: &Visit, action: &str, key: &GroupKey, detail: String) {
    let target = format!("{}/{}", key.topic.name, key.name);
    visit.record(app, action, Some(&key.topic.namespace), &target, detail).await;
    // So that the page that comes next shows it.
    app.gauge.changed().await;
    app.floor.changed().await;
}

/// A group, as the store has it.
pub(super) async fn find(app: &App, key: &GroupKey) -> Result<GroupView, Problem> {
    within(app.store.group(key)).await?.ok_or_else(|| no_such_group(key))
}

pub(super) async fn question(
    State(app): State<App>,
    visit: Visit,
    Got(Path((topic, group, action))): Got<Path<(Name, Name, String)>>,
    Got(Query(at)): Got<Query<Where>>,
) -> Response {
    let key = GroupKey::new(TopicKey::new(at.namespace, topic), group);
    let asked = async { ask(&find(&app, &key).await?, &action) };
    match asked.await {
        Ok(question) => question.page(&visit, "Events"),
        Err(problem) => trouble(&visit, &problem),
    }
}

fn ask(view: &GroupView, action: &str) -> Result<Question, Problem> {
    let key = &view.key;
    let (to, back) = (parts::group_href(key, action), parts::group_href(key, ""));
    let question = |title: String, button, danger, body| Question { title, to, back, button, danger, body };
    Ok(match action {
        "pause" => question(
            format!("Pause {}?", key.name),
            "Pause",
            true,
            html! {
                p { "Nothing more is read until somebody resumes it. Its members keep their slots, and finish what they have; what is published waits." }
                (parts::reason_field())
            },
        ),
        "resume" => question(
            format!("Resume {}?", key.name),
            "Resume",
            false,
            html! {
                p {
                    @if let Some(pause) = &view.paused { "Paused by " span.strong { (pause.by) } @if !pause.reason.is_empty() { ": “" (pause.reason) "”" } ". " }
                    "It goes on from where it was."
                }
            },
        ),
        "settings" => question(
            format!("Settings of {}", key.name),
            "Set",
            false,
            html! { input type="hidden" name="seen" value=(digest(&view.settings)); (form(&view.settings)) },
        ),
        "unset" => question(
            format!("Stop pushing {}?", key.name),
            "Stop",
            true,
            html! { p { "The servers leave the group, and its secret is forgotten. How far it was read stays; what is published waits for members." } },
        ),
        "delete" => question(
            format!("Delete {}?", key.name),
            "Delete for good",
            true,
            html! {
                p {
                    "How far it has read is forgotten, and " span.strong { (words::count((view.aside + view.dead) as usize, "event")) }
                    " that " @if view.aside + view.dead == 1 { "is" } @else { "are" } " aside in it. The topic stays, with all its events. While it has members, it is not done."
                }
                (type_the_name(key.name.as_str()))
            },
        ),
        other => return Err(no_such_action(other, "a group", ACTIONS)),
    })
}

/// The form of a deed.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Deed {
    reason: String,
    seen: String,
    name: String,
    max_attempts: String,
    first: String,
    most: String,
}

pub(super) async fn act(
    State(app): State<App>,
    visit: Visit,
    Got(Path((topic, group, action))): Got<Path<(Name, Name, String)>>,
    Got(Query(at)): Got<Query<Where>>,
    Posted(deed): Posted<Deed>,
) -> Response {
    let key = GroupKey::new(TopicKey::new(at.namespace, topic), group);
    match done(&app, &visit, &key, &action, &deed).await {
        Ok("delete") => visit.tell(&parts::topic_href(&key.topic, ""), "group-delete"),
        Ok(done) => visit.tell(&parts::group_href(&key, ""), done),
        Err(problem) => trouble(&visit, &problem),
    }
}

async fn done(
    app: &App,
    visit: &Visit,
    key: &GroupKey,
    action: &str,
    deed: &Deed,
) -> Result<&'static str, Problem> {
    let view = find(app, key).await?;
    match action {
        "pause" | "resume" => {
            let reason = deed.reason.trim().to_owned();
            api::short("reason", &reason)?;
            let pause =
                Pause { by: visit.name().into(), reason: reason.clone(), at_ms: app.runtime.wall_ms() };
            let pause = (action == "pause").then_some(pause);
            if !within(app.store.set_group_paused(key, pause.as_ref())).await? {
                return Ok("already");
            }
            record(app, visit, &format!("group.{action}"), key, reason).await;
            Ok(if action == "pause" { "pause" } else { "resume" })
        }
        "settings" => {
            if deed.seen != digest(&view.settings) {
                let detail = format!("somebody has set {key} anew since you looked; nothing was changed");
                return Err(Problem::new(StatusCode::CONFLICT, "settings-changed", detail)
                    .remedy("look again, then decide"));
            }
            let settings = settings_of(&deed.max_attempts, &deed.first, &deed.most)?;
            check_group(&settings).map_err(|error| wrong("settings", error.to_string()))?;
            if settings == view.settings {
                return Ok("already");
            }
            // Where it begins matters only to one that is new.
            within(app.store.set_group(key, &settings, Begin::default())).await?;
            record(app, visit, "group.set", key, serde_json::to_string(&settings).unwrap_or_default()).await;
            Ok("settings")
        }
        "unset" => {
            let Some(push) = view.push else { return Ok("already") };
            within(app.store.set_push(key, None)).await?;
            record(app, visit, "push.unset", key, api::push_address(&push.url).unwrap_or_default()).await;
            Ok("unset")
        }
        "delete" => {
            is_named(&deed.name, &key.name)?;
            match within(app.store.delete_group(key)).await {
                // The one thing that a store has against it.
                Err(error) if error.kind == Trouble::Request => {
                    return Err(Problem::told(StatusCode::CONFLICT, "group-in-use", &error.message));
                }
                other => other?,
            };
            record(app, visit, "group.delete", key, String::new()).await;
            Ok("delete")
        }
        other => Err(no_such_action(other, "a group", ACTIONS)),
    }
}

pub(super) async fn push_question(
    State(app): State<App>,
    visit: Visit,
    Got(Path((topic, group))): Got<Path<(Name, Name)>>,
    Got(Query(at)): Got<Query<Where>>,
) -> Response {
    let key = GroupKey::new(TopicKey::new(at.namespace, topic), group);
    let view = match find(&app, &key).await {
        Ok(view) => view,
        Err(problem) => return trouble(&visit, &problem),
    };
    let timeout = view.push.as_ref().map_or(TIMEOUT_MS, |push| push.timeout_ms);
    let question = Question {
        title: format!("Push {}", key.name),
        to: parts::group_href(&key, "push"),
        back: parts::group_href(&key, ""),
        button: "Push",
        danger: false,
        body: html! {
            p { "The servers consume the group from now on, and " code { "POST" } " every event to this address, signed as Standard Webhooks are. Any " code { "2xx" } " says that it is done." }
            div.field {
                label for="url" { "Address" }
                input #url name="url" type="url" required autocomplete="off" placeholder="https://example.org/hooks/orders" value=[view.push.as_ref().map(|push| push.url.as_str())];
            }
            div.across {
                (text("timeout", "An answer may take", &words::duration(timeout), "Such as 5s. Later is too late: it failed, and is tried again."))
                div.field {
                    label for="secret" { "Secret" }
                    input #secret name="secret" type="password" autocomplete="off";
                    small { @if view.push.is_some() { "Empty: it stays as it is." } @else { "Empty: one is made, and shown once." } }
                }
            }
            @if view.push.is_some() {
                div.verbs { label { input type="checkbox" name="rotate" value="on"; "Make a new secret, and show it once" } }
            }
        },
    };
    question.page(&visit, "Events")
}

/// The form of a push.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Target {
    url: String,
    #[serde(default)]
    timeout: String,
    #[serde(default)]
    secret: String,
    rotate: Option<String>,
}

pub(super) async fn push(
    State(app): State<App>,
    visit: Visit,
    by: By,
    Got(Path((topic, group))): Got<Path<(Name, Name)>>,
    Got(Query(at)): Got<Query<Where>>,
    Posted(target): Posted<Target>,
) -> Response {
    let key = GroupKey::new(TopicKey::new(at.namespace, topic), group);
    match pushed(&app, &by, &key, target).await {
        Ok(None) => visit.tell(&parts::group_href(&key, ""), "push"),
        Ok(Some(secret)) => visit.tell_secret(&parts::group_href(&key, ""), "push", &secret),
        Err(problem) => trouble(&visit, &problem),
    }
}

/// Sets where a group is pushed to. The secret, if one was made.
async fn pushed(app: &App, by: &By, key: &GroupKey, target: Target) -> Result<Option<String>, Problem> {
    let wish = PushWish {
        url: target.url.trim().into(),
        // Left empty, it stays as it is.
        secret: Some(target.secret).filter(|secret| !secret.is_empty()),
        rotate: target.rotate.is_some(),
        timeout_ms: Some(span("timeout", &target.timeout)?),
    };
    let (_, made) = set_push(app, by, key, wish).await?;
    app.gauge.changed().await;
    app.floor.changed().await;
    Ok(made)
}
