//! What an operator does to a pool: put resources in, take them out, set it, and take a resource back from whoever has it.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{Handle, NewResource, PoolKey, PoolSettings, PoolView, RequestId, RequestState};

use super::election::within;
use super::frame::{Visit, trouble};
use super::given::{Got, Posted};
use super::parts::{self, Question};
use super::pool::unknown;
use super::queue_act::{chosen, digest, modes, span, wrong};
use super::queues::{Where, no_such_action};
use super::submit::list;
use super::words;
use crate::App;
use crate::problem::Problem;
use crate::quota::{self, Object};

/// A form with a resource and, if the pool is not known from the address, the pool's name.
fn resource_form(pool: Option<&Name>) -> Markup {
    const NAME: &str = r"[A-Za-z0-9][A-Za-z0-9._:\-]{0,127}";
    html! {
        @if pool.is_none() {
            div.field { label for="pool" { "Pool" } input #pool name="pool" required autocomplete="off" placeholder="hosts" pattern=(NAME); small { "Made, if it is not there." } }
        }
        div.field { label for="name" { "Resource" } input #name name="name" required autocomplete="off" placeholder="host-1" pattern=(NAME); small { "One that is there already is changed." } }
        div.field { label for="tags" { "Tags" } input #tags name="tags" autocomplete="off" placeholder="ssd, eu"; small { "What requests may ask for." } }
    }
}

pub(super) async fn new(visit: Visit, Got(Query(at)): Got<Query<Where>>) -> Response {
    let question = Question {
        title: "Add a resource".into(),
        to: format!("/pools/new?namespace={}", parts::escape(at.namespace.as_str())),
        back: "/pools".into(),
        button: "Add",
        danger: false,
        body: html! { p { "To a pool of " span.strong { (at.namespace) } "." } (resource_form(None)) },
    };
    question.page(&visit, "Pools")
}

/// The form of a resource.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Wanted {
    pool: String,
    name: String,
    tags: String,
    seen: String,
    mode: String,
    cool_down: String,
    priority: String,
    keep: String,
}

fn name(field: &str, text: &str) -> Result<Name, Problem> {
    text.trim().parse().map_err(|error: tenure::NameError| wrong(field, format!("{field}: {error}")))
}

pub(super) async fn make(
    State(app): State<App>,
    visit: Visit,
    Got(Query(at)): Got<Query<Where>>,
    Posted(wanted): Posted<Wanted>,
) -> Response {
    let made = async {
        let key = PoolKey::new(at.namespace.clone(), name("pool", &wanted.pool)?);
        let done = put(&app, &visit, &key, &wanted).await?;
        Ok(visit.tell(&parts::pool_href(&key, ""), done))
    };
    made.await.unwrap_or_else(|problem: Problem| trouble(&visit, &problem))
}

/// Puts a resource in, or changes the one that is there.
async fn put(app: &App, visit: &Visit, key: &PoolKey, wanted: &Wanted) -> Result<&'static str, Problem> {
    let name = name("name", &wanted.name)?;
    let before = within(app.store.pool(key)).await?;
    let known = before.as_ref().and_then(|view| view.resources.iter().find(|r| r.resource.name == name));
    let enabled = known.is_none_or(|known| known.resource.enabled);
    let resource = NewResource { name, tags: list(&wanted.tags), enabled };
    set(app, key, &resource).await?;
    let done = if known.is_some() { "change" } else { "add" };
    record(app, visit, key, "resource.put", Some(resource.name.as_str()), resource.tags.join(" ")).await;
    Ok(done)
}

async fn set(app: &App, key: &PoolKey, resource: &NewResource) -> Result<(), Problem> {
    let resources = std::slice::from_ref(resource);
    tenure_core::claim::check_resources(resources).map_err(|error| wrong("resource", error.to_string()))?;
    quota::check(app, Object::Pool(key)).await?;
    Ok(within(app.store.add_resources(key, resources)).await?)
}

/// Writes down what was done to a pool, or to something in it.
async fn record(app: &App, visit: &Visit, key: &PoolKey, deed: &str, within: Option<&str>, detail: String) {
    let target = within.map_or_else(|| key.name.to_string(), |one| format!("{}/{one}", key.name));
    visit.record(app, deed, Some(&key.namespace), &target, detail).await;
    app.floor.changed().await;
}

async fn find(app: &App, key: &PoolKey) -> Result<PoolView, Problem> {
    within(app.store.pool(key)).await?.ok_or_else(|| unknown(key))
}

pub(super) async fn question(
    State(app): State<App>,
    visit: Visit,
    Got(Path((pool, action))): Got<Path<(Name, String)>>,
    Got(Query(at)): Got<Query<Where>>,
) -> Response {
    let key = PoolKey::new(at.namespace, pool);
    let asked = async {
        let view = find(&app, &key).await?;
        let (to, back) = (parts::pool_href(&key, &action), parts::pool_href(&key, ""));
        let (title, button, body) = match action.as_str() {
            "add" => (format!("Add a resource to {}", key.name), "Add", resource_form(Some(&key.name))),
            "settings" => (format!("Settings of {}", key.name), "Set", settings_form(&view.settings)),
            other => return Err(no_such_action(other, "a pool", "add and settings")),
        };
        Ok(Question { title, to, back, button, danger: false, body })
    };
    match asked.await {
        Ok(question) => question.page(&visit, "Pools"),
        Err(problem) => trouble(&visit, &problem),
    }
}

fn settings_form(settings: &PoolSettings) -> Markup {
    let text = |id: &str, label: &str, value: &str, help: &str| {
        html! { div.field { label for=(id) { (label) } input id=(id) name=(id) required value=(value) autocomplete="off"; small { (help) } } }
    };
    html! {
        input type="hidden" name="seen" value=(digest(settings));
        (modes(settings.mode, settings.fallback))
        (text("priority", "Priority of a request", &settings.priority, "An expression over base, age_minutes, simple (1 if no tags are asked for), requires and prefers (how many)."))
        div.across {
            (text("cool_down", "Rest after use", &words::duration(settings.cool_down_ms), "Such as 0s, 30s, 5min."))
            (text("keep", "Keep requests for", &words::duration(settings.keep_ms), "After their end."))
        }
    }
}

pub(super) async fn act(
    State(app): State<App>,
    visit: Visit,
    Got(Path((pool, action))): Got<Path<(Name, String)>>,
    Got(Query(at)): Got<Query<Where>>,
    Posted(wanted): Posted<Wanted>,
) -> Response {
    let key = PoolKey::new(at.namespace, pool);
    let done = async {
        let view = find(&app, &key).await?;
        match action.as_str() {
            "add" => put(&app, &visit, &key, &wanted).await,
            "settings" => {
                if wanted.seen != digest(&view.settings) {
                    let detail = format!("somebody has set {key} anew since you looked; nothing was changed");
                    return Err(Problem::new(StatusCode::CONFLICT, "settings-changed", detail)
                        .remedy("look again, then decide"));
                }
                let (mode, fallback) = chosen(&wanted.mode)?;
                let settings = PoolSettings {
                    mode,
                    fallback,
                    cool_down_ms: span("cool_down", &wanted.cool_down)?,
                    priority: wanted.priority.trim().into(),
                    keep_ms: span("keep", &wanted.keep)?,
                };
                tenure_core::claim::check_pool(&settings)
                    .map_err(|error| wrong("settings", error.to_string()))?;
                if settings == view.settings {
                    return Ok("already");
                }
                within(app.store.set_pool(&key, &settings)).await?;
                let detail = serde_json::to_string(&settings).unwrap_or_default();
                record(&app, &visit, &key, "pool.set", None, detail).await;
                Ok("settings")
            }
            other => Err(no_such_action(other, "a pool", "add and settings")),
        }
    };
    finish(&visit, &key, done.await)
}

fn finish(visit: &Visit, key: &PoolKey, done: Result<&str, Problem>) -> Response {
    match done {
        Ok(done) => visit.tell(&parts::pool_href(key, ""), done),
        Err(problem) => trouble(visit, &problem),
    }
}

/// What can be done to a resource.
fn resource_action(action: &str) -> Result<&'static str, Problem> {
    let all = ["enable", "disable", "remove"];
    all.into_iter()
        .find(|known| *known == action)
        .ok_or_else(|| no_such_action(action, "a resource", "enable, disable and remove"))
}

fn no_such_resource(key: &PoolKey, name: &Name) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no-such-resource", format!("there is no {name} in the pool {key}"))
        .remedy("the pool's page lists what is in it")
}

pub(super) async fn resource_question(
    State(app): State<App>,
    visit: Visit,
    Got(Path((pool, resource, action))): Got<Path<(Name, Name, String)>>,
    Got(Query(at)): Got<Query<Where>>,
) -> Response {
    let key = PoolKey::new(at.namespace, pool);
    let asked = async {
        let action = resource_action(&action)?;
        let view = find(&app, &key).await?;
        let known = view.resources.iter().find(|r| r.resource.name == resource);
        let known = known.ok_or_else(|| no_such_resource(&key, &resource))?;
        let to = parts::pool_href(&key, &format!("resources/{}/{action}", parts::escape(resource.as_str())));
        let (title, button, body) = match action {
            "enable" => ("Enable", "Enable", html! { p { "It is handed out again." } }),
            "disable" => (
                "Disable",
                "Disable",
                html! { p {
                    "It is not handed out any more." @if let Some(holder) = &known.holder { " " span.strong { (holder.request.owner) } " has it, and keeps it until its claim ends." }
                } },
            ),
            _ => (
                "Remove",
                "Remove",
                html! { p { "It is taken out of the pool " span.strong { (key.name) } "." } },
            ),
        };
        let danger = action != "enable";
        Ok::<_, Problem>(Question {
            title: format!("{title} {resource}?"),
            to,
            back: parts::pool_href(&key, ""),
            button,
            danger,
            body,
        })
    };
    match asked.await {
        Ok(question) => question.page(&visit, "Pools"),
        Err(problem) => trouble(&visit, &problem),
    }
}

pub(super) async fn resource_act(
    State(app): State<App>,
    visit: Visit,
    Got(Path((pool, resource, action))): Got<Path<(Name, Name, String)>>,
    Got(Query(at)): Got<Query<Where>>,
    Posted(super::workers::Nothing {}): Posted<super::workers::Nothing>,
) -> Response {
    let key = PoolKey::new(at.namespace, pool);
    let done = async {
        let action = resource_action(&action)?;
        let view = find(&app, &key).await?;
        let known = view.resources.iter().find(|r| r.resource.name == resource);
        let known = known.ok_or_else(|| no_such_resource(&key, &resource))?;
        let happened = match action {
            "remove" => within(app.store.remove_resource(&key, &resource)).await?,
            _ => {
                let enabled = action == "enable";
                set(&app, &key, &NewResource { enabled, ..known.resource.clone() }).await?;
                known.resource.enabled != enabled
            }
        };
        if happened {
            let deed = if action == "remove" { "resource.remove" } else { "resource.put" };
            let detail = if action == "disable" { "disabled" } else { "" };
            record(&app, &visit, &key, deed, Some(resource.as_str()), detail.into()).await;
        }
        Ok(if happened { action } else { "already" })
    };
    finish(&visit, &key, done.await)
}

/// A request of this pool, or what is wrong with asking for it.
async fn request(app: &App, key: &PoolKey, id: u64) -> Result<tenure::port::RequestView, Problem> {
    let found = within(app.store.pool_request(&key.namespace, RequestId(id))).await?;
    found.ok_or_else(|| {
        Problem::new(
            StatusCode::NOT_FOUND,
            "no-such-request",
            format!("there is no request {id} in {}", key.namespace),
        )
        .remedy("the pool's page lists those that wait or hold something")
    })
}

pub(super) async fn request_question(
    State(app): State<App>,
    visit: Visit,
    Got(Path((pool, id))): Got<Path<(Name, u64)>>,
    Got(Query(at)): Got<Query<Where>>,
) -> Response {
    let key = PoolKey::new(at.namespace, pool);
    let view = match request(&app, &key, id).await {
        Ok(view) => view,
        Err(problem) => return trouble(&visit, &problem),
    };
    let owner = &view.request.owner;
    let title = match &view.resource {
        Some(resource) => format!("Take {resource} back from {owner}?"),
        None => format!("Call off the request of {owner}?"),
    };
    let body = html! {
        input type="hidden" name="seen" value=(view.token.map_or(0, |token| token.as_u64()));
        @match &view.resource {
            Some(resource) => p { span.strong { (owner) } " may still be using " (resource) ": from now on it is refused under its token, and the next in line gets the resource." },
            None => p { "It waits under the key " code { (view.request.key) } ". It will not be served." },
        }
    };
    let question = Question {
        title,
        to: parts::pool_href(&key, &format!("requests/{id}/release")),
        back: parts::pool_href(&key, ""),
        button: if view.resource.is_some() { "Take it back" } else { "Call it off" },
        danger: true,
        body,
    };
    question.page(&visit, "Pools")
}

/// The form of a deed to a request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Seen {
    /// The token of the grant that the operator saw, or 0.
    seen: u64,
}

pub(super) async fn request_act(
    State(app): State<App>,
    visit: Visit,
    Got(Path((pool, id))): Got<Path<(Name, u64)>>,
    Got(Query(at)): Got<Query<Where>>,
    Posted(deed): Posted<Seen>,
) -> Response {
    let key = PoolKey::new(at.namespace, pool);
    let done = async {
        let view = request(&app, &key, id).await?;
        if view.token.map_or(0, |token| token.as_u64()) != deed.seen {
            let detail =
                format!("request {id} is {} since you looked; nothing was done", view.state.as_str());
            return Err(Problem::new(StatusCode::CONFLICT, "request-changed", detail)
                .remedy("look again, then decide"));
        }
        // An operator speaks in its owner's name: the deed is under the very token that was seen.
        let owner = &view.request.owner;
        let token = view.token.filter(|_| view.state == RequestState::Granted);
        let handle = app.store.handle_request(&key.namespace, RequestId(id), owner, token, Handle::Release);
        let happened = within(handle).await?;
        if happened {
            let what = view.resource.as_ref().map_or("request", Name::as_str);
            let detail = match view.resource {
                Some(_) => format!("from {owner}"),
                None => format!("waiting request {id} of {owner} called off"),
            };
            record(&app, &visit, &key, "resource.release", Some(what), detail).await;
        }
        Ok(match (happened, &view.resource) {
            (false, _) => "already",
            (true, Some(_)) => "release",
            (true, None) => "call-off",
        })
    };
    finish(&visit, &key, done.await)
}
