//! What an operator does to a topic: make it, set it, delete it, add a group; and an event, published by hand. The question,
//! then the deed.

use std::collections::BTreeMap;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{
    Begin, GroupKey, GroupSettings, NewEvent, Payload, SLOTS_MAX, TopicKey, TopicSettings, TopicView,
    Trouble, Verb,
};
use tenure_core::event::{check_events, check_group, check_topic};

use super::election::within;
use super::frame::{Visit, go, trouble};
use super::given::{Got, Posted};
use super::group_act;
use super::parts::{self, Mistake, Question};
use super::queue_act::{digest, span, wrong};
use super::queues::{Where, no_such_action};
use super::words;
use crate::App;
use crate::api::no_such_topic;
use crate::problem::Problem;
use crate::quota::{self, Object};

pub(super) const NAME: &str = r"[A-Za-z0-9][A-Za-z0-9._:\-]{0,127}";

const ACTIONS: &str = "publish, group, settings and delete";

/// The form of a deed.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Deed {
    name: String,
    seen: String,
    slots: String,
    keep: String,
    keep_unread: String,
    max_bytes: String,
    from: String,
    max_attempts: String,
    first: String,
    most: String,
}

/// A line of a form.
pub(super) fn text(id: &str, label: &str, value: &str, help: &str) -> Markup {
    html! { div.field { label for=(id) { (label) } input id=(id) name=(id) value=(value) autocomplete="off"; small { (help) } } }
}

/// The name of something new.
pub(super) fn name_field(label: &str, placeholder: &str) -> Markup {
    html! { div.field { label for="name" { (label) } input #name name="name" required autocomplete="off" placeholder=(placeholder) pattern=(NAME); } }
}

/// A name that a form gave.
pub(super) fn name(text: &str) -> Result<Name, Problem> {
    text.trim().parse().map_err(|error: tenure::NameError| wrong("name", error.to_string()))
}

/// A number that a form gave.
pub(super) fn number<T: std::str::FromStr>(field: &str, text: &str) -> Result<T, Problem> {
    let text = text.trim();
    text.parse().map_err(|_| wrong(field, format!("{field}: {text:?} is no number that fits")))
}

fn form(settings: &TopicSettings) -> Markup {
    let unread = settings.keep_unread_ms.map(words::duration).unwrap_or_default();
    html! {
        div.across {
            (text("keep", "Keep events for", &words::duration(settings.keep_ms), "At least, whoever has read them. Such as 90min, 24h, 7d."))
            (text("keep_unread", "Unread ones", &unread, "Empty: until every group has read them. Else they are lost to who is slower."))
            (text("max_bytes", "Carry at most", &settings.max_bytes.to_string(), "Bytes of one event."))
        }
    }
}

impl Deed {
    fn topic(&self, slots: u32) -> Result<TopicSettings, Problem> {
        let unread = Some(self.keep_unread.trim()).filter(|text| !text.is_empty());
        let settings = TopicSettings {
            slots,
            keep_ms: span("keep", &self.keep)?,
            keep_unread_ms: unread.map(|text| span("keep_unread", text)).transpose()?,
            max_bytes: number("max_bytes", &self.max_bytes)?,
        };
        check_topic(&settings).map_err(|error| wrong("settings", error.to_string()))?;
        Ok(settings)
    }

    fn group(&self) -> Result<GroupSettings, Problem> {
        let settings = group_act::settings_of(&self.max_attempts, &self.first, &self.most)?;
        check_group(&settings).map_err(|error| wrong("settings", error.to_string()))?;
        Ok(settings)
    }
}

pub(super) async fn new(visit: Visit, Got(Query(at)): Got<Query<Where>>) -> Response {
    let usual = TopicSettings::default();
    let question = Question {
        title: "Make a topic".into(),
        to: format!("/new-topic?namespace={}", parts::escape(at.namespace.as_str())),
        back: "/topics".into(),
        button: "Make",
        danger: false,
        body: html! {
            p { "In the namespace " span.strong { (at.namespace) } "." }
            (name_field("Topic", "orders"))
            div.field {
                label for="slots" { "Slots" }
                input #slots name="slots" type="number" required min="1" max=(SLOTS_MAX) value=(usual.slots);
                small { "Into so many its keys are spread, and so many members share a group's work at most. Fixed from now on." }
            }
            (form(&usual))
        },
    };
    question.page(&visit, "Events")
}

pub(super) async fn make(
    State(app): State<App>,
    visit: Visit,
    Got(Query(at)): Got<Query<Where>>,
    Posted(deed): Posted<Deed>,
) -> Response {
    let made = async {
        let key = TopicKey::new(at.namespace.clone(), name(&deed.name)?);
        let settings = deed.topic(number("slots", &deed.slots)?)?;
        if within(app.store.topic(&key)).await?.is_some() {
            let detail = format!("there is a topic {key} already; nothing was changed");
            return Err(Problem::new(StatusCode::CONFLICT, "topic-exists", detail)
                .field("name")
                .remedy("choose another name, or set the one that is there"));
        }
        quota::check(&app, Object::Topic(&key)).await?;
        within(app.store.set_topic(&key, &settings)).await?;
        record(&app, &visit, "topic.set", &key, serde_json::to_string(&settings).unwrap_or_default()).await;
        Ok(visit.tell(&parts::topic_href(&key, ""), "new"))
    };
    made.await.unwrap_or_else(|problem: Problem| trouble(&visit, &problem))
}

/// Writes down what was done to a topic.
async fn record(app: &App, visit: &Visit, action: &str, key: &TopicKey, detail: String) {
    visit.record(app, action, Some(&key.namespace), key.name.as_str(), detail).await;
    // So that the page that comes next shows it.
    app.gauge.changed().await;
    app.floor.changed().await;
}

async fn find(app: &App, key: &TopicKey) -> Result<TopicView, Problem> {
    within(app.store.topic(key)).await?.ok_or_else(|| no_such_topic(key))
}

pub(super) async fn question(
    State(app): State<App>,
    visit: Visit,
    Got(Path((topic, action))): Got<Path<(Name, String)>>,
    Got(Query(at)): Got<Query<Where>>,
) -> Response {
    let key = TopicKey::new(at.namespace, topic);
    let asked = async {
        let view = find(&app, &key).await?;
        let (to, back) = (parts::topic_href(&key, &action), parts::topic_href(&key, ""));
        let question =
            |title: String, button, danger, body| Question { title, to, back, button, danger, body };
        Ok(match action.as_str() {
            "settings" => question(
                format!("Settings of {}", key.name),
                "Set",
                false,
                html! {
                    input type="hidden" name="seen" value=(digest(&view.settings));
                    p.soft { "It has " (words::count(view.settings.slots as usize, "slot")) ", and keeps them: another number would move keys past what is in them." }
                    (form(&view.settings))
                },
            ),
            "group" => question(
                format!("Add a group to {}", key.name),
                "Add",
                false,
                html! {
                    p { "The first member makes one by itself; this is for groups that are to begin somewhere else, or to be pushed." }
                    (name_field("Group", "billing"))
                    (begins())
                    (group_act::form(&GroupSettings::default()))
                },
            ),
            "delete" => question(
                format!("Delete {}?", key.name),
                "Delete for good",
                true,
                html! {
                    p {
                        span.strong { (words::number(view.events)) " events" } " and " span.strong { (words::count(view.groups.len(), "group")) }
                        " are gone with it, read or not, and whoever publishes to it is refused. This can not be undone. While a group has members, it is not done."
                    }
                    (type_the_name(key.name.as_str()))
                },
            ),
            other => return Err(no_such_action(other, "a topic", ACTIONS)),
        })
    };
    match asked.await {
        Ok(question) => question.page(&visit, "Events"),
        Err(problem) => trouble(&visit, &problem),
    }
}

/// What can not be undone is done by who can say its name.
pub(super) fn type_the_name(name: &str) -> Markup {
    html! {
        div.field {
            label for="name" { "To be sure, its name" }
            input #name name="name" required autocomplete="off" spellcheck="false" pattern=(regex_of(name)) title=(name);
        }
    }
}

/// A pattern that only this name matches. Of the characters of names, only the dot means something there; browsers read patterns
/// as Unicode sets, where an escaped hyphen outside of brackets is a mistake that turns the whole pattern off.
fn regex_of(name: &str) -> String {
    name.replace('.', r"\.")
}

/// Refuses a name that is not the one that is meant.
pub(super) fn is_named(given: &str, name: &Name) -> Result<(), Problem> {
    if given.trim() == name.as_str() {
        return Ok(());
    }
    Err(wrong("name", format!("{given:?} is not {name}; nothing was deleted")))
}

/// The choice where a group begins.
fn begins() -> Markup {
    html! {
        fieldset.field {
            legend { "Begins" }
            div.choices {
                label { input type="radio" name="from" required value="earliest" checked; span.says { span.strong { "With the oldest" } span.soft.small { "that is kept" } } }
                label { input type="radio" name="from" required value="latest"; span.says { span.strong { "With the next" } span.soft.small { "to come: all that is there is passed over" } } }
            }
        }
    }
}

pub(super) async fn act(
    State(app): State<App>,
    visit: Visit,
    Got(Path((topic, action))): Got<Path<(Name, String)>>,
    Got(Query(at)): Got<Query<Where>>,
    Posted(deed): Posted<Deed>,
) -> Response {
    let key = TopicKey::new(at.namespace, topic);
    match done(&app, &visit, &key, &action, &deed).await {
        Ok((to, done)) => visit.tell(&to, done),
        Err(problem) => trouble(&visit, &problem),
    }
}

async fn done(
    app: &App,
    visit: &Visit,
    key: &TopicKey,
    action: &str,
    deed: &Deed,
) -> Result<(String, &'static str), Problem> {
    let view = find(app, key).await?;
    let here = |done: &'static str| (parts::topic_href(key, ""), done);
    match action {
        "settings" => {
            if deed.seen != digest(&view.settings) {
                let detail = format!("somebody has set {key} anew since you looked; nothing was changed");
                return Err(Problem::new(StatusCode::CONFLICT, "settings-changed", detail)
                    .remedy("look again, then decide"));
            }
            let settings = deed.topic(view.settings.slots)?;
            if settings == view.settings {
                return Ok(here("already"));
            }
            within(app.store.set_topic(key, &settings)).await?;
            let detail = serde_json::to_string(&settings).unwrap_or_default();
            record(app, visit, "topic.set", key, detail).await;
            Ok(here("set"))
        }
        "group" => {
            let group = GroupKey::new(key.clone(), name(&deed.name)?);
            let settings = deed.group()?;
            let from = match deed.from.as_str() {
                "earliest" => Begin::Earliest,
                "latest" => Begin::Latest,
                other => return Err(wrong("from", format!("{other:?} is no place to begin"))),
            };
            if view.groups.contains(&group.name) {
                let detail = format!("there is a group {group} already; nothing was changed");
                return Err(Problem::new(StatusCode::CONFLICT, "group-exists", detail)
                    .field("name")
                    .remedy("choose another name, or set the one that is there"));
            }
            quota::check(app, Object::Group(&group)).await?;
            within(app.store.set_group(&group, &settings, from)).await?;
            group_act::record(
                app,
                visit,
                "group.set",
                &group,
                serde_json::to_string(&settings).unwrap_or_default(),
            )
            .await;
            Ok((parts::group_href(&group, ""), "new"))
        }
        "delete" => {
            is_named(&deed.name, &key.name)?;
            match within(app.store.delete_topic(key)).await {
                // The one thing that a store has against it.
                Err(error) if error.kind == Trouble::Request => {
                    return Err(Problem::told(StatusCode::CONFLICT, "topic-in-use", &error.message));
                }
                other => other?,
            };
            record(app, visit, "topic.delete", key, String::new()).await;
            Ok((format!("/topics?namespace={}", parts::escape(key.namespace.as_str())), "delete"))
        }
        other => Err(no_such_action(other, "a topic", ACTIONS)),
    }
}

/// The form of an event.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Wanted {
    #[serde(rename = "type")]
    kind: String,
    key: String,
    payload: String,
    headers: String,
    idempotency_key: String,
}

impl Wanted {
    fn event(&self) -> Result<NewEvent, Problem> {
        let some = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let payload = some(&self.payload).unwrap_or_else(|| "{}".into());
        let payload = payload.parse().map_err(|error| wrong("payload", format!("Invalid JSON: {error}")))?;
        let mut headers = BTreeMap::new();
        for line in self.headers.lines().filter(|line| !line.trim().is_empty()) {
            let (name, value) = line.split_once(':').ok_or_else(|| {
                wrong("headers", format!("{line:?} is no header; write one in each line, such as trace: 42"))
            })?;
            headers.insert(name.trim().into(), value.trim().into());
        }
        Ok(NewEvent {
            key: some(&self.key),
            kind: self.kind.trim().into(),
            payload: Payload::Json(payload),
            headers,
            idempotency_key: some(&self.idempotency_key),
            leader_token: None,
        })
    }
}

pub(super) async fn event(
    State(app): State<App>,
    visit: Visit,
    Got(Path(topic)): Got<Path<Name>>,
    Got(Query(at)): Got<Query<Where>>,
) -> Response {
    let key = TopicKey::new(at.namespace, topic);
    if let Err(problem) = find(&app, &key).await {
        return trouble(&visit, &problem);
    }
    event_form(&visit, &key, &Wanted { payload: "{}".into(), ..Wanted::default() }, None)
}

fn event_form(visit: &Visit, key: &TopicKey, wanted: &Wanted, problem: Option<&Problem>) -> Response {
    let mistake = Mistake(problem);
    let area = |id: &str, rows: u8, value: &str, placeholder: &str| {
        html! { textarea id=(id) .mono name=(id) rows=(rows) spellcheck="false" placeholder=(placeholder) aria-invalid=[mistake.marks(id)] aria-describedby=[mistake.marks(id).map(|_| format!("{id}-mistake"))] { (value) } }
    };
    let question = Question {
        title: format!("Publish to {}", key.name),
        to: parts::topic_href(key, "publish"),
        // Whoever may not look goes back to where they may.
        back: if visit.may(Verb::Read, Some(&key.namespace)) {
            parts::topic_href(key, "")
        } else {
            "/".into()
        },
        button: "Publish",
        danger: false,
        body: html! {
            (mistake.above(&["payload", "headers"]))
            p { "One event, by hand: every group of the topic gets it, as any other." }
            div.across {
                (text("type", "Type", &wanted.kind, "What happened: order.paid"))
                (text("key", "Key", &wanted.key, "Events of one key are read in order. Empty: in any."))
            }
            div.field { label for="payload" { "Payload" } (area("payload", 5, &wanted.payload, "")) (mistake.below("payload")) small { "JSON." } }
            details #more open[!wanted.headers.is_empty() || !wanted.idempotency_key.is_empty()] {
                summary { "Headers, idempotency key" }
                div.across.more {
                    div.field { label for="headers" { "Headers" } (area("headers", 2, &wanted.headers, "trace: 42")) (mistake.below("headers")) small { "One in each line." } }
                    (text("idempotency_key", "Idempotency key", &wanted.idempotency_key, "The same key again: the same event."))
                }
            }
        },
    };
    question.page(visit, "Events")
}

pub(super) async fn publish(
    State(app): State<App>,
    visit: Visit,
    Got(Path(topic)): Got<Path<Name>>,
    Got(Query(at)): Got<Query<Where>>,
    Posted(wanted): Posted<Wanted>,
) -> Response {
    let key = TopicKey::new(at.namespace, topic);
    let published = async {
        let view = find(&app, &key).await?;
        let event = [wanted.event()?];
        check_events(&event, view.settings.max_bytes).map_err(|error| wrong("event", error.to_string()))?;
        let published = within(app.store.publish(&key, &event)).await?;
        let one = published.first().ok_or_else(|| wrong("event", "nothing was published"))?;
        if one.new {
            let detail = format!("event {} {}", one.id, event[0].kind);
            record(&app, &visit, "topic.publish", &key, detail).await;
        }
        if !visit.may(Verb::Read, Some(&key.namespace)) {
            return Ok(go("/"));
        }
        let done = if one.new { "publish" } else { "known" };
        Ok(visit.tell(&parts::topic_href(&key, ""), done))
    };
    match published.await {
        Ok(response) => response,
        Err(problem) if parts::is_mendable(&problem) => {
            parts::refused(event_form(&visit, &key, &wanted, Some(&problem)), &problem)
        }
        Err(problem) => trouble(&visit, &problem),
    }
}
