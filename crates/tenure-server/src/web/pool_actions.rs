//! Actions on a pool, with confirmation: add, enable, disable and remove resources, settings, revoke a claim,
//! cancel a request.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{
    NewResource, PoolKey, PoolRequestAction, PoolRequestId, PoolRequestState, PoolSettings, PoolView,
};

use super::components::{self, ConfirmDialog};
use super::election::with_timeout;
use super::extract::{FormBody, PageParams};
use super::format;
use super::layout::{PageContext, problem_page};
use super::pool::unknown;
use super::queue_actions::{digest, invalid_field, mode_field, parse_duration, parse_mode};
use super::queues::{NamespaceQuery, no_such_action};
use super::submit::split_list;
use crate::App;
use crate::problem::Problem;
use crate::quota::{self, Object};

/// The fields of a resource and, if the URL does not name the pool, of the pool.
fn resource_form(pool: Option<&Name>) -> Markup {
    const NAME: &str = r"[A-Za-z0-9][A-Za-z0-9._:\-]{0,127}";
    html! {
        @if pool.is_none() {
            div.field { label for="pool" { "Pool" } input #pool name="pool" required autocomplete="off" placeholder="hosts" pattern=(NAME); small { "Created if missing." } }
        }
        div.field { label for="name" { "Resource" } input #name name="name" required autocomplete="off" placeholder="host-1" pattern=(NAME); small { "An existing resource is updated." } }
        div.field { label for="tags" { "Tags" } input #tags name="tags" autocomplete="off" placeholder="ssd, eu"; small { "Matched against the required and preferred tags of requests." } }
    }
}

pub(super) async fn new(
    ctx: PageContext,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
) -> Response {
    let dialog = ConfirmDialog {
        title: "Add resource".into(),
        to: format!("/pools/new?namespace={}", components::escape(at.namespace.as_str())),
        back: "/pools".into(),
        button: "Add",
        danger: false,
        body: html! { p { "Pool in namespace " span.strong { (at.namespace) } "." } (resource_form(None)) },
    };
    dialog.page(&ctx, "Pools")
}

/// The form of a resource or of the settings.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PoolForm {
    pool: String,
    name: String,
    tags: String,
    expected_digest: String,
    mode: String,
    cooldown: String,
    priority_formula: String,
    request_retention: String,
}

fn name(field: &str, text: &str) -> Result<Name, Problem> {
    text.trim().parse().map_err(|error: tenure::NameError| invalid_field(field, format!("{field}: {error}")))
}

pub(super) async fn create(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
    FormBody(form): FormBody<PoolForm>,
) -> Response {
    let made = async {
        let key = PoolKey::new(at.namespace.clone(), name("pool", &form.pool)?);
        let message = put(&app, &ctx, &key, &form).await?;
        Ok(ctx.redirect_with_message(&components::pool_href(&key, ""), message))
    };
    made.await.unwrap_or_else(|problem: Problem| problem_page(&ctx, &problem))
}

/// Add or update a resource.
async fn put(app: &App, ctx: &PageContext, key: &PoolKey, form: &PoolForm) -> Result<&'static str, Problem> {
    let name = name("name", &form.name)?;
    let before = with_timeout(app.store.pool(key)).await?;
    let known = before.as_ref().and_then(|view| view.resources.iter().find(|r| r.resource.name == name));
    let enabled = known.is_none_or(|known| known.resource.enabled);
    let resource = NewResource { name, tags: split_list(&form.tags), enabled };
    set(app, key, &resource).await?;
    let message = if known.is_some() { "change" } else { "add" };
    record(app, ctx, key, "resource.put", Some(resource.name.as_str()), resource.tags.join(" ")).await;
    Ok(message)
}

async fn set(app: &App, key: &PoolKey, resource: &NewResource) -> Result<(), Problem> {
    let resources = std::slice::from_ref(resource);
    tenure_core::rules::work::validate_resources(resources)
        .map_err(|error| invalid_field("resource", error.to_string()))?;
    quota::check(app, Object::Pool(key)).await?;
    Ok(with_timeout(app.store.add_resources(key, resources)).await?)
}

/// Write an audit entry about a pool or an object in it.
async fn record(
    app: &App,
    ctx: &PageContext,
    key: &PoolKey,
    action: &str,
    object: Option<&str>,
    detail: String,
) {
    let target = object.map_or_else(|| key.name.to_string(), |one| format!("{}/{one}", key.name));
    ctx.record(app, action, Some(&key.namespace), &target, detail).await;
    app.queues.invalidate().await;
}

async fn find(app: &App, key: &PoolKey) -> Result<PoolView, Problem> {
    with_timeout(app.store.pool(key)).await?.ok_or_else(|| unknown(key))
}

pub(super) async fn confirm(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((pool, action))): PageParams<Path<(Name, String)>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
) -> Response {
    let key = PoolKey::new(at.namespace, pool);
    let dialog = async {
        let view = find(&app, &key).await?;
        let (to, back) = (components::pool_href(&key, &action), components::pool_href(&key, ""));
        let (title, button, body) = match action.as_str() {
            "add" => (format!("Add resource to {}", key.name), "Add", resource_form(Some(&key.name))),
            "settings" => (format!("Settings of {}", key.name), "Save", settings_form(&view.settings)),
            other => return Err(no_such_action(other, "a pool", "add or settings")),
        };
        Ok(ConfirmDialog { title, to, back, button, danger: false, body })
    };
    match dialog.await {
        Ok(dialog) => dialog.page(&ctx, "Pools"),
        Err(problem) => problem_page(&ctx, &problem),
    }
}

fn settings_form(settings: &PoolSettings) -> Markup {
    let text = |id: &str, label: &str, value: &str, help: &str| {
        html! { div.field { label for=(id) { (label) } input id=(id) name=(id) required value=(value) autocomplete="off"; small { (help) } } }
    };
    html! {
        input type="hidden" name="expected_digest" value=(digest(settings));
        (mode_field(settings.mode, settings.fallback))
        (text("priority_formula", "Priority formula", &settings.priority_formula, "Expression over base_priority, age_minutes, simple (1 if no tags are required), required_tags and preferred_tags (counts)."))
        div.across {
            (text("cooldown", "Cooldown", &format::duration(settings.cooldown_ms), "For example 0s, 30s, 5m."))
            (text("request_retention", "Request retention", &format::duration(settings.request_retention_ms), "Counted from the end of a request."))
        }
    }
}

pub(super) async fn apply(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((pool, action))): PageParams<Path<(Name, String)>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
    FormBody(form): FormBody<PoolForm>,
) -> Response {
    let key = PoolKey::new(at.namespace, pool);
    let message = async {
        let view = find(&app, &key).await?;
        match action.as_str() {
            "add" => put(&app, &ctx, &key, &form).await,
            "settings" => {
                if form.expected_digest != digest(&view.settings) {
                    let detail = format!("{key} changed since you loaded the form; nothing was saved.");
                    return Err(Problem::new(StatusCode::CONFLICT, "settings-changed", detail)
                        .remedy("Reload the page and try again."));
                }
                let (mode, fallback) = parse_mode(&form.mode)?;
                let settings = PoolSettings {
                    mode,
                    fallback,
                    cooldown_ms: parse_duration("cooldown", &form.cooldown)?,
                    priority_formula: form.priority_formula.trim().into(),
                    request_retention_ms: parse_duration("request_retention", &form.request_retention)?,
                };
                tenure_core::rules::work::validate_pool(&settings)
                    .map_err(|error| invalid_field("settings", error.to_string()))?;
                if settings == view.settings {
                    return Ok("already");
                }
                with_timeout(app.store.set_pool(&key, &settings)).await?;
                let detail = serde_json::to_string(&settings).unwrap_or_default();
                record(&app, &ctx, &key, "pool.set", None, detail).await;
                Ok("settings")
            }
            other => Err(no_such_action(other, "a pool", "add or settings")),
        }
    };
    finish(&ctx, &key, message.await)
}

fn finish(ctx: &PageContext, key: &PoolKey, message: Result<&str, Problem>) -> Response {
    match message {
        Ok(message) => ctx.redirect_with_message(&components::pool_href(key, ""), message),
        Err(problem) => problem_page(ctx, &problem),
    }
}

/// Parse an action on a resource.
fn resource_action(action: &str) -> Result<&'static str, Problem> {
    let all = ["enable", "disable", "remove"];
    all.into_iter()
        .find(|known| *known == action)
        .ok_or_else(|| no_such_action(action, "a resource", "enable, disable or remove"))
}

fn no_such_resource(key: &PoolKey, name: &Name) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no-such-resource", format!("no such resource: {name} in pool {key}"))
        .remedy("See the pool for the list.")
}

pub(super) async fn confirm_resource(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((pool, resource, action))): PageParams<Path<(Name, Name, String)>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
) -> Response {
    let key = PoolKey::new(at.namespace, pool);
    let dialog = async {
        let action = resource_action(&action)?;
        let view = find(&app, &key).await?;
        let known = view.resources.iter().find(|r| r.resource.name == resource);
        let known = known.ok_or_else(|| no_such_resource(&key, &resource))?;
        let to = components::pool_href(
            &key,
            &format!("resources/{}/{action}", components::escape(resource.as_str())),
        );
        let (title, button, body) = match action {
            "enable" => ("Enable", "Enable", html! { p { "The resource can be granted again." } }),
            "disable" => (
                "Disable",
                "Disable",
                html! { p {
                    "The resource is not granted any more." @if let Some(holder) = &known.held_by { " " span.strong { (holder.request.owner) } " holds it until the claim ends." }
                } },
            ),
            _ => (
                "Remove",
                "Remove",
                html! { p { "The resource is removed from pool " span.strong { (key.name) } "." } },
            ),
        };
        let danger = action != "enable";
        Ok::<_, Problem>(ConfirmDialog {
            title: format!("{title} {resource}?"),
            to,
            back: components::pool_href(&key, ""),
            button,
            danger,
            body,
        })
    };
    match dialog.await {
        Ok(dialog) => dialog.page(&ctx, "Pools"),
        Err(problem) => problem_page(&ctx, &problem),
    }
}

pub(super) async fn apply_resource(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((pool, resource, action))): PageParams<Path<(Name, Name, String)>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
    FormBody(super::workers::EmptyForm {}): FormBody<super::workers::EmptyForm>,
) -> Response {
    let key = PoolKey::new(at.namespace, pool);
    let message = async {
        let action = resource_action(&action)?;
        let view = find(&app, &key).await?;
        let known = view.resources.iter().find(|r| r.resource.name == resource);
        let known = known.ok_or_else(|| no_such_resource(&key, &resource))?;
        let applied = match action {
            "remove" => with_timeout(app.store.remove_resource(&key, &resource)).await?,
            _ => {
                let enabled = action == "enable";
                set(&app, &key, &NewResource { enabled, ..known.resource.clone() }).await?;
                known.resource.enabled != enabled
            }
        };
        if applied {
            let audit_action = if action == "remove" { "resource.remove" } else { "resource.put" };
            let detail = if action == "disable" { "disabled" } else { "" };
            record(&app, &ctx, &key, audit_action, Some(resource.as_str()), detail.into()).await;
        }
        Ok(if applied { action } else { "already" })
    };
    finish(&ctx, &key, message.await)
}

/// Load a request of this pool.
async fn request(app: &App, key: &PoolKey, id: u64) -> Result<tenure::port::PoolRequestView, Problem> {
    let found = with_timeout(app.store.pool_request(&key.namespace, PoolRequestId(id))).await?;
    found.ok_or_else(|| {
        Problem::new(
            StatusCode::NOT_FOUND,
            "no-such-request",
            format!("no such request: {id} in {}", key.namespace),
        )
        .remedy("See the pool for the list.")
    })
}

pub(super) async fn confirm_request(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((pool, id))): PageParams<Path<(Name, u64)>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
) -> Response {
    let key = PoolKey::new(at.namespace, pool);
    let view = match request(&app, &key, id).await {
        Ok(view) => view,
        Err(problem) => return problem_page(&ctx, &problem),
    };
    let owner = &view.request.owner;
    let title = match &view.resource {
        Some(resource) => format!("Revoke the claim of {owner} on {resource}?"),
        None => format!("Cancel the request of {owner}?"),
    };
    let body = html! {
        input type="hidden" name="expected_token" value=(view.token.map_or(0, |token| token.as_u64()));
        @match &view.resource {
            Some(resource) => p { span.strong { (owner) } " may still be using " (resource) ". Its token is rejected from now on and the next request gets the resource." },
            None => p { "The request with idempotency key " code { (view.request.idempotency_key) } " is cancelled." },
        }
    };
    let dialog = ConfirmDialog {
        title,
        to: components::pool_href(&key, &format!("requests/{id}/release")),
        back: components::pool_href(&key, ""),
        button: if view.resource.is_some() { "Revoke claim" } else { "Cancel request" },
        danger: true,
        body,
    };
    dialog.page(&ctx, "Pools")
}

/// The form of an action on a request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PoolRequestActionForm {
    /// The token of the grant that the operator saw, or 0.
    expected_token: u64,
}

pub(super) async fn apply_request(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((pool, id))): PageParams<Path<(Name, u64)>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
    FormBody(form): FormBody<PoolRequestActionForm>,
) -> Response {
    let key = PoolKey::new(at.namespace, pool);
    let message = async {
        let view = request(&app, &key, id).await?;
        if view.token.map_or(0, |token| token.as_u64()) != form.expected_token {
            let detail = format!("Request {id} is now {}; nothing was changed.", view.state.as_str());
            return Err(Problem::new(StatusCode::CONFLICT, "request-changed", detail)
                .remedy("Reload the page and try again."));
        }
        // The operator acts for the owner, with the token that the form showed.
        let owner = &view.request.owner;
        let token = view.token.filter(|_| view.state == PoolRequestState::Granted);
        let handle = app.store.update_pool_request(
            &key.namespace,
            PoolRequestId(id),
            owner,
            token,
            PoolRequestAction::Release,
        );
        let applied = with_timeout(handle).await?;
        if applied {
            let what = view.resource.as_ref().map_or("request", Name::as_str);
            let detail = match view.resource {
                Some(_) => format!("from {owner}"),
                None => format!("waiting request {id} of {owner} cancelled"),
            };
            record(&app, &ctx, &key, "request.release", Some(what), detail).await;
        }
        Ok(match (applied, &view.resource) {
            (false, _) => "already",
            (true, Some(_)) => "release",
            (true, None) => "cancel",
        })
    };
    finish(&ctx, &key, message.await)
}
