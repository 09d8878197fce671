//! The page of one pool: resources, holders, waiting requests and settings.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{AuditEntry, Permission, PoolKey, PoolRequestView, PoolView, ResourceView};

use super::extract::PageParams;
use super::layout::{PageContext, page, problem_page};
use super::pools::{self, ResourceStatus};
use super::{audit, components, format, queue};
use crate::App;
use crate::problem::Problem;

/// Maximum number of rows.
const SHOWN: usize = 300;

/// The query of a pool's page.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PoolPageQuery {
    #[serde(default = "Name::default_namespace")]
    namespace: Name,
}

/// The problem: no such pool.
pub(super) fn unknown(key: &PoolKey) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no-such-pool", format!("no such pool: {key}"))
        .remedy("See Pools for the list. Adding a resource creates a pool.")
}

pub(super) async fn show(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path(pool)): PageParams<Path<Name>>,
    PageParams(Query(query)): PageParams<Query<PoolPageQuery>>,
) -> Response {
    let key = PoolKey::new(query.namespace, pool);
    let found = match app.queues.pool(&key).await {
        Ok(found) => found,
        Err(error) => return problem_page(&ctx, &error.into()),
    };
    let Some(view) = found.first() else { return problem_page(&ctx, &unknown(&key)) };
    let entries = app.queues.audit_entries(&key.namespace).await;
    let wall = app.runtime.wall_ms();
    let content = html! {
        (head(view, &ctx, wall))
        @if let Some(message) = ctx.message().and_then(message_text) { (components::notice("good", html! { p { (message) } })) }
        div #pause data-live {
            @if let Some(pause) = &view.paused { (components::paused(pause, "The namespace is paused: no resources are granted; held resources remain held.", wall)) }
        }
        div #resources data-live { (resources(view, &ctx, wall)) }
        div #waiting data-live { (waiting(view, &ctx, wall)) }
        div #settings data-live { (settings(view)) }
        div #activity data-live { (audit::of(entries.as_deref(), |entry| is_about(entry, &key), wall)) }
        noscript { p { a href=(ctx.path) { "Refresh" } } }
    };
    page(&ctx, key.name.as_str(), "Pools", content)
}

/// Whether an audit entry is about this pool, its resources or its requests.
fn is_about(entry: &AuditEntry, key: &PoolKey) -> bool {
    match audit::resource(entry) {
        "pool" => entry.target == key.name.as_str(),
        "resource" | "request" => {
            entry.target.split_once('/').is_some_and(|(pool, _)| pool == key.name.as_str())
        }
        _ => false,
    }
}

/// The text of a one-time message. Unknown words show nothing, because the cookie is not signed.
fn message_text(message: &str) -> Option<&'static str> {
    Some(match message {
        "add" => "Resource added.",
        "change" => "Resource updated.",
        "enable" => "Resource enabled.",
        "disable" => "Resource disabled. The current holder keeps it until release.",
        "remove" => "Resource removed.",
        "release" => "Claim revoked. The former holder's token is rejected.",
        "cancel" => "Request cancelled.",
        "settings" => "Settings saved. They apply to new grants.",
        "already" => "No change: already in that state.",
        _ => return None,
    })
}

fn head(view: &PoolView, ctx: &PageContext, wall: i64) -> Markup {
    let key = &view.key;
    html! {
        div.head {
            div {
                p.crumb { a href="/pools" { "Pools" } " / " (key.namespace) }
                div.title {
                    h1 { (key.name) }
                    div #state data-live { (pools::state(view, wall)) }
                }
            }
            @if ctx.may(Permission::Admin, Some(&key.namespace)) {
                div #actions .buttons data-live role="group" aria-label="Actions" {
                    a.button data-key="add" data-confirm href=(components::pool_href(key, "add")) { "Add resource…" }
                    a.button data-key="settings" data-confirm href=(components::pool_href(key, "settings")) { "Settings…" }
                }
            }
        }
    }
}

fn resources(view: &PoolView, ctx: &PageContext, wall: i64) -> Markup {
    let operator = ctx.may(Permission::Admin, Some(&view.key.namespace));
    html! {
        section.card aria-labelledby="has" {
            header { h2 #has { (format::count(view.resources.len(), "resource")) } }
            @if view.resources.is_empty() { p.empty { "No resources. Requests wait until one is added." } }
            @else {
                table.stack {
                    thead { tr {
                        th scope="col" { "Resource" } th scope="col" { "State" } th scope="col" { "Held by" } th scope="col" { "Held since" }
                        th scope="col" { "Expires" } th scope="col" { "Token" } th scope="col" { "Tags" }
                        @if operator { th scope="col" { span.hidden { "Action" } } }
                    } }
                    tbody { @for resource in view.resources.iter().take(SHOWN) { (row(&view.key, resource, operator, wall)) } }
                }
                @if view.resources.len() > SHOWN { p.empty { (view.resources.len() - SHOWN) " more." } }
            }
        }
    }
}

fn row(key: &PoolKey, resource: &ResourceView, operator: bool, wall: i64) -> Markup {
    let name = &resource.resource.name;
    let holder = resource.held_by.as_ref();
    let cooling = resource.cooldown_until_at_ms.filter(|until| *until > wall && holder.is_none());
    let to = |action: &str| {
        components::pool_href(key, &format!("resources/{}/{action}", components::escape(name.as_str())))
    };
    html! {
        tr data-key=(format!("resource-{name}")) .inactive[!resource.resource.enabled && holder.is_none()] {
            th scope="row" { (name) }
            td data-label="State" {
                (ResourceStatus::of(resource, wall).shown())
                @if holder.is_some() && !resource.resource.enabled { span.soft.small { " disabled" } }
            }
            td.none[holder.is_none()] data-label="Held by" {
                @match holder { Some(held) => span { span.strong { (held.request.owner) } " " span.soft.small { (held.request.idempotency_key) } }, None => span.soft { "–" } }
            }
            td.nowrap.none[holder.is_none()] data-label="Held since" {
                @match holder.and_then(|held| held.granted_at_ms) { Some(at) => (format::ago(at, wall)), None => span.soft { "–" } }
            }
            td.none[holder.is_none() && cooling.is_none()] data-label="Expires" {
                @match (holder, cooling) {
                    (Some(held), _) => @match held.expires_at_ms { Some(at) => (format::until(at, wall)), None => "with its session" },
                    (None, Some(at)) => span { "cooldown, free " (format::until(at, wall)) },
                    (None, None) => span.soft { "–" },
                }
            }
            td.none[resource.token == tenure::Token::ZERO] data-label="Token" {
                @if resource.token == tenure::Token::ZERO { span.soft { "–" } } @else { span.token { (resource.token) } }
            }
            td.wide data-label="Tags" { (components::chips(&resource.resource.tags)) }
            @if operator {
                td.num.whole {
                    div.buttons {
                        @if let Some(held) = holder { (revoke_link(key, held, "Revoke claim…")) }
                        @if resource.resource.enabled { a.button.slim data-key="disable" data-confirm href=(to("disable")) { "Disable…" span.hidden { " " (name) } } }
                        @else { a.button.slim data-key="enable" data-confirm href=(to("enable")) { "Enable…" span.hidden { " " (name) } } }
                        @if holder.is_none() { a.button.slim data-key="remove" data-confirm href=(to("remove")) { "Remove…" span.hidden { " " (name) } } }
                    }
                }
            }
        }
    }
}

fn revoke_link(key: &PoolKey, request: &PoolRequestView, word: &str) -> Markup {
    html! {
        a.button.slim data-key="release" data-confirm href=(components::pool_href(key, &format!("requests/{}/release", request.id))) {
            (word) span.hidden { " of " (request.request.owner) }
        }
    }
}

fn waiting(view: &PoolView, ctx: &PageContext, wall: i64) -> Markup {
    let operator = ctx.may(Permission::Admin, Some(&view.key.namespace));
    html! {
        section.card aria-labelledby="wait" {
            header { h2 #wait { "Waiting requests" } span.soft.small { (view.waiting_requests.len()) ", next first" } }
            @if view.waiting_requests.is_empty() { p.empty { "No waiting requests." } }
            @else {
                table.stack {
                    thead { tr {
                        th scope="col" { "Owner" } th.num scope="col" { "Priority" } th scope="col" { "Required tags" } th scope="col" { "Preferred tags" }
                        th scope="col" { "Waiting for" } th scope="col" { "Reason" }
                        @if operator { th scope="col" { span.hidden { "Action" } } }
                    } }
                    tbody {
                        @for request in view.waiting_requests.iter().take(SHOWN) {
                            tr data-key=(format!("request-{}", request.id)) {
                                th scope="row" { span { (request.request.owner) " " span.soft.small { (request.request.idempotency_key) } } }
                                td.num data-label="Priority" { @match request.priority { Some(priority) => (priority), None => span.soft { "–" } } }
                                td data-label="Required tags" { (components::chips(&request.request.required_tags)) }
                                td.none[request.request.preferred_tags.is_empty()] data-label="Preferred tags" { (components::chips(&request.request.preferred_tags)) }
                                td.nowrap data-label="Waiting for" { (format::elapsed(wall - request.created_at_ms)) }
                                td.wide data-label="Reason" { (wait_reason(view, request, wall)) }
                                @if operator { td.num.whole { (revoke_link(&view.key, request, "Cancel…")) } }
                            }
                        }
                    }
                }
                @if view.waiting_requests.len() > SHOWN { p.empty { (view.waiting_requests.len() - SHOWN) " more." } }
            }
        }
    }
}

/// The reason why a request waits.
fn wait_reason(view: &PoolView, request: &PoolRequestView, wall: i64) -> String {
    let requires = &request.request.required_tags;
    let fitting: Vec<_> =
        view.resources.iter().filter(|r| requires.iter().all(|tag| r.resource.tags.contains(tag))).collect();
    let count = |status| fitting.iter().filter(|r| ResourceStatus::of(r, wall) == status).count();
    let (held, cooling) = (count(ResourceStatus::Held), count(ResourceStatus::Cooldown));
    let rested = fitting.iter().filter_map(|r| r.cooldown_until_at_ms).filter(|until| *until > wall).min();
    if view.paused.is_some() {
        "the namespace is paused".into()
    } else if view.resources.is_empty() {
        "the pool is empty".into()
    } else if fitting.is_empty() {
        let lacking: Vec<_> = requires
            .iter()
            .filter(|tag| !view.resources.iter().any(|r| r.resource.tags.contains(tag)))
            .map(String::as_str)
            .collect();
        match lacking.as_slice() {
            [] => format!("no resource has all of the tags {}", requires.join(", ")),
            [tag] => format!("no resource has the tag {tag}"),
            lacking => format!("no resource has any of the tags {}", lacking.join(", ")),
        }
    } else if count(ResourceStatus::Free) > 0 {
        "a matching resource is free and will be granted in order".into()
    } else if held + cooling == 0 {
        format!("{} disabled", matches_text(fitting.len()))
    } else if let (0, Some(until)) = (held, rested) {
        format!(
            "{} in cooldown, the first for {}",
            matches_text(cooling),
            format::span((until - wall).max(0) as u64)
        )
    } else {
        format!("{} held", matches_text(held))
    }
}

fn matches_text(n: usize) -> String {
    if n == 1 { "the only match is".into() } else { format!("all {n} matches are") }
}

fn settings(view: &PoolView) -> Markup {
    let settings = &view.settings;
    html! {
        section.card aria-labelledby="set" {
            header { h2 #set { "Settings" } }
            div.body {
                dl.facts {
                    div { dt { "Assignment mode" } dd { (queue::mode(settings.mode, settings.fallback)) } }
                    div { dt { "Cooldown" } dd { (format::duration(settings.cooldown_ms)) } }
                    div { dt { "Priority formula" } dd { code { (settings.priority_formula) } } }
                    div { dt { "Request retention" } dd { (format::duration(settings.request_retention_ms)) } }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure::port::{NewResource, PoolRequest, PoolRequestId, PoolRequestState};

    use super::*;

    fn request(requires: &[&str]) -> PoolRequestView {
        let request = PoolRequest {
            idempotency_key: "k".into(),
            owner: "o".into(),
            required_tags: requires.iter().map(|tag| (*tag).to_owned()).collect(),
            preferred_tags: Vec::new(),
            base_priority: 100,
            session: None,
            claim_timeout_ms: None,
            max_wait_ms: None,
        };
        PoolRequestView {
            id: PoolRequestId(1),
            request,
            state: PoolRequestState::Waiting,
            resource: None,
            token: None,
            priority: Some(1),
            created_at_ms: 0,
            granted_at_ms: None,
            expires_at_ms: None,
            ended_at_ms: None,
        }
    }

    fn resource(name: &str, tags: &[&str]) -> ResourceView {
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        let resource = NewResource { name: name.parse().expect("a name"), tags, enabled: true };
        ResourceView { resource, token: tenure::Token::ZERO, held_by: None, cooldown_until_at_ms: None }
    }

    #[test]
    fn a_waiting_request_shows_its_reason() {
        let key = PoolKey::new("a".parse().expect("a name"), "b".parse().expect("a name"));
        let mut view = PoolView {
            key,
            settings: Default::default(),
            paused: None,
            resources: vec![],
            waiting_requests: vec![],
        };
        assert_eq!(wait_reason(&view, &request(&[]), 0), "the pool is empty");
        view.resources = vec![resource("x", &["ssd"]), resource("y", &["gpu"])];
        assert_eq!(wait_reason(&view, &request(&["tape"]), 0), "no resource has the tag tape");
        assert_eq!(
            wait_reason(&view, &request(&["ssd", "gpu"]), 0),
            "no resource has all of the tags ssd, gpu"
        );
        assert_eq!(
            wait_reason(&view, &request(&["ssd"]), 0),
            "a matching resource is free and will be granted in order"
        );
        view.resources[0].cooldown_until_at_ms = Some(5000);
        assert_eq!(
            wait_reason(&view, &request(&["ssd"]), 0),
            "the only match is in cooldown, the first for 5.0 s"
        );
        assert_eq!(
            wait_reason(&view, &request(&["ssd"]), 6000),
            "a matching resource is free and will be granted in order"
        );
        view.resources[0].held_by = Some(request(&[]));
        view.resources[1].held_by = Some(request(&[]));
        assert_eq!(wait_reason(&view, &request(&["ssd"]), 0), "the only match is held");
        assert_eq!(wait_reason(&view, &request(&[]), 0), "all 2 matches are held");
        view.resources[0].held_by = None;
        view.resources[0].cooldown_until_at_ms = None;
        view.resources[0].resource.enabled = false;
        assert_eq!(wait_reason(&view, &request(&["ssd"]), 0), "the only match is disabled");
    }
}
