//! One pool: its resources, who holds what until when, and who waits for what, in their order.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{Deed, PoolKey, PoolView, RequestView, ResourceView, Verb};

use super::frame::{Visit, page, trouble};
use super::given::Got;
use super::pools::{self, Standing};
use super::{audit, parts, queue, words};
use crate::App;
use crate::problem::Problem;

/// More than this are not read by anybody.
const SHOWN: usize = 300;

/// What the address of a pool's page may say.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    #[serde(default = "Name::default_namespace")]
    namespace: Name,
}

/// There is no such pool.
pub(super) fn unknown(key: &PoolKey) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no-such-pool", format!("there is no pool {key}"))
        .remedy("the list of pools has those that there are; the first resource makes one")
}

pub(super) async fn show(
    State(app): State<App>,
    visit: Visit,
    Got(Path(pool)): Got<Path<Name>>,
    Got(Query(asked)): Got<Query<Asked>>,
) -> Response {
    let key = PoolKey::new(asked.namespace, pool);
    let found = match app.floor.pool(&key).await {
        Ok(found) => found,
        Err(error) => return trouble(&visit, &error.into()),
    };
    let Some(view) = found.first() else { return trouble(&visit, &unknown(&key)) };
    let deeds = app.floor.deeds(&key.namespace).await;
    let wall = app.runtime.wall_ms();
    let content = html! {
        (head(view, &visit, wall))
        @if let Some(done) = visit.done().and_then(outcome) { (parts::notice("good", html! { p { (done) } })) }
        div #pause data-live {
            @if let Some(pause) = &view.paused { (parts::paused(pause, "Nothing is handed out in this namespace; what is held stays held.", wall)) }
        }
        div #resources data-live { (resources(view, &visit, wall)) }
        div #waiting data-live { (waiting(view, &visit, wall)) }
        div #settings data-live { (settings(view)) }
        div #deeds data-live { (audit::of(deeds.as_deref(), |deed| is_about(deed, &key), wall)) }
        noscript { p { a href=(visit.here) { "Refresh" } } }
    };
    page(&visit, key.name.as_str(), "Pools", content)
}

/// Whether a deed was done to this pool, or to something in it.
fn is_about(deed: &Deed, key: &PoolKey) -> bool {
    match audit::sort(deed) {
        "pool" => deed.target == key.name.as_str(),
        "resource" => deed.target.split_once('/').is_some_and(|(pool, _)| pool == key.name.as_str()),
        _ => false,
    }
}

/// What came of a deed. Only what is written here is ever shown.
fn outcome(done: &str) -> Option<&'static str> {
    Some(match done {
        "add" => "Added. It is handed out from now on.",
        "change" => "Changed.",
        "enable" => "Enabled. It is handed out again.",
        "disable" => "Disabled. It is not handed out any more; whoever has it keeps it.",
        "remove" => "Removed.",
        "release" => "Taken back. The former holder is refused from now on.",
        "call-off" => "Request called off. It held no resource.",
        "settings" => "Set. It counts for whatever is handed out from now on.",
        "already" => "Nothing to do: it was so already.",
        _ => return None,
    })
}

fn head(view: &PoolView, visit: &Visit, wall: i64) -> Markup {
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
            @if visit.may(Verb::Admin, Some(&key.namespace)) {
                div #actions .buttons data-live role="group" aria-label="What an operator can do" {
                    a.button data-key="add" data-confirm href=(parts::pool_href(key, "add")) { "Add a resource…" }
                    a.button data-key="settings" data-confirm href=(parts::pool_href(key, "settings")) { "Settings…" }
                }
            }
        }
    }
}

fn resources(view: &PoolView, visit: &Visit, wall: i64) -> Markup {
    let operator = visit.may(Verb::Admin, Some(&view.key.namespace));
    html! {
        section.card aria-labelledby="has" {
            header { h2 #has { (words::count(view.resources.len(), "resource")) } }
            @if view.resources.is_empty() { p.empty { "There is nothing in it. Requests wait until there is." } }
            @else {
                table.stack {
                    thead { tr {
                        th scope="col" { "Resource" } th scope="col" { "State" } th scope="col" { "Held by" } th scope="col" { "Since" }
                        th scope="col" { "Until" } th scope="col" { "Token" } th scope="col" { "Tags" }
                        @if operator { th scope="col" { span.hidden { "Action" } } }
                    } }
                    tbody { @for resource in view.resources.iter().take(SHOWN) { (row(&view.key, resource, operator, wall)) } }
                }
                @if view.resources.len() > SHOWN { p.empty { (view.resources.len() - SHOWN) " more are not shown." } }
            }
        }
    }
}

fn row(key: &PoolKey, resource: &ResourceView, operator: bool, wall: i64) -> Markup {
    let name = &resource.resource.name;
    let holder = resource.holder.as_ref();
    let cooling = resource.cooling_until_ms.filter(|until| *until > wall && holder.is_none());
    let to =
        |action: &str| parts::pool_href(key, &format!("resources/{}/{action}", parts::escape(name.as_str())));
    html! {
        tr data-key=(format!("resource-{name}")) .gone[!resource.resource.enabled && holder.is_none()] {
            th scope="row" { (name) }
            td data-label="State" {
                (Standing::of(resource, wall).shown())
                @if holder.is_some() && !resource.resource.enabled { span.soft.small { " disabled" } }
            }
            td.none[holder.is_none()] data-label="Held by" {
                @match holder { Some(held) => span { span.strong { (held.request.owner) } " " span.soft.small { (held.request.key) } }, None => span.soft { "–" } }
            }
            td.nowrap.none[holder.is_none()] data-label="Since" {
                @match holder.and_then(|held| held.granted_at_ms) { Some(at) => (words::ago(at, wall)), None => span.soft { "–" } }
            }
            td.none[holder.is_none() && cooling.is_none()] data-label="Until" {
                @match (holder, cooling) {
                    (Some(held), _) => @match held.deadline_ms { Some(at) => (words::until(at, wall)), None => "its session ends" },
                    (None, Some(at)) => span { "rests, free " (words::until(at, wall)) },
                    (None, None) => span.soft { "–" },
                }
            }
            td.none[resource.token == tenure::Token::ZERO] data-label="Token" {
                @if resource.token == tenure::Token::ZERO { span.soft { "–" } } @else { span.token { (resource.token) } }
            }
            td.wide data-label="Tags" { (parts::chips(&resource.resource.tags)) }
            @if operator {
                td.num.whole {
                    div.buttons {
                        @if let Some(held) = holder { (take_back(key, held, "Take back…")) }
                        @if resource.resource.enabled { a.button.slim data-key="disable" data-confirm href=(to("disable")) { "Disable…" span.hidden { " " (name) } } }
                        @else { a.button.slim data-key="enable" data-confirm href=(to("enable")) { "Enable…" span.hidden { " " (name) } } }
                        @if holder.is_none() { a.button.slim data-key="remove" data-confirm href=(to("remove")) { "Remove…" span.hidden { " " (name) } } }
                    }
                }
            }
        }
    }
}

fn take_back(key: &PoolKey, request: &RequestView, word: &str) -> Markup {
    html! {
        a.button.slim data-key="release" data-confirm href=(parts::pool_href(key, &format!("requests/{}/release", request.id))) {
            (word) span.hidden { " from " (request.request.owner) }
        }
    }
}

fn waiting(view: &PoolView, visit: &Visit, wall: i64) -> Markup {
    let operator = visit.may(Verb::Admin, Some(&view.key.namespace));
    html! {
        section.card aria-labelledby="wait" {
            header { h2 #wait { (words::count(view.waiting.len(), "request")) " waiting" } span.soft.small { "the next one first" } }
            @if view.waiting.is_empty() { p.empty { "Nobody waits." } }
            @else {
                table.stack {
                    thead { tr {
                        th scope="col" { "Who" } th.num scope="col" { "Priority" } th scope="col" { "Required tags" } th scope="col" { "Preferred tags" }
                        th scope="col" { "For" } th scope="col" { "Why it waits" }
                        @if operator { th scope="col" { span.hidden { "Action" } } }
                    } }
                    tbody {
                        @for request in view.waiting.iter().take(SHOWN) {
                            tr data-key=(format!("request-{}", request.id)) {
                                th scope="row" { span { (request.request.owner) " " span.soft.small { (request.request.key) } } }
                                td.num data-label="Priority" { @match request.priority { Some(priority) => (priority), None => span.soft { "–" } } }
                                td data-label="Required tags" { (parts::chips(&request.request.requires)) }
                                td.none[request.request.prefers.is_empty()] data-label="Preferred tags" { (parts::chips(&request.request.prefers)) }
                                td.nowrap data-label="For" { (words::lasted(wall - request.created_at_ms)) }
                                td.wide data-label="Why it waits" { (holdup(view, request, wall)) }
                                @if operator { td.num.whole { (take_back(&view.key, request, "Call off…")) } }
                            }
                        }
                    }
                }
                @if view.waiting.len() > SHOWN { p.empty { (view.waiting.len() - SHOWN) " more are not shown." } }
            }
        }
    }
}

/// Why a request waits, in plain words.
fn holdup(view: &PoolView, request: &RequestView, wall: i64) -> String {
    let requires = &request.request.requires;
    let fitting: Vec<_> =
        view.resources.iter().filter(|r| requires.iter().all(|tag| r.resource.tags.contains(tag))).collect();
    let so = |standing| fitting.iter().filter(|r| Standing::of(r, wall) == standing).count();
    let (held, cooling) = (so(Standing::Held), so(Standing::Cooling));
    let rested = fitting.iter().filter_map(|r| r.cooling_until_ms).filter(|until| *until > wall).min();
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
            [] => format!("no resource has all of {}", requires.join(", ")),
            lacking => format!("no resource has {}", lacking.join(", ")),
        }
    } else if so(Standing::Free) > 0 {
        "one that fits is free, and is handed out in order".into()
    } else if held + cooling == 0 {
        format!("{} disabled", are(fitting.len()))
    } else if let (0, Some(until)) = (held, rested) {
        format!("{} resting, the first for {} more", are(cooling), words::span((until - wall).max(0) as u64))
    } else {
        format!("{} held", are(held))
    }
}

fn are(n: usize) -> String {
    if n == 1 { "the one that fits is".into() } else { format!("all {n} that fit are") }
}

fn settings(view: &PoolView) -> Markup {
    let settings = &view.settings;
    html! {
        section.card aria-labelledby="set" {
            header { h2 #set { "Settings" } }
            div.body {
                dl.facts {
                    div { dt { "Handed out" } dd { (queue::mode(settings.mode, settings.fallback)) } }
                    div { dt { "Rest after use" } dd { (words::duration(settings.cool_down_ms)) } }
                    div { dt { "Priority of a request" } dd { code { (settings.priority) } } }
                    div { dt { "Requests are kept for" } dd { (words::duration(settings.keep_ms)) } }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure::port::{NewRequest, NewResource, RequestId, RequestState};

    use super::*;

    fn request(requires: &[&str]) -> RequestView {
        let request = NewRequest {
            key: "k".into(),
            owner: "o".into(),
            requires: requires.iter().map(|tag| (*tag).to_owned()).collect(),
            prefers: Vec::new(),
            base: 100,
            session: None,
            hold_ms: None,
            max_wait_ms: None,
        };
        RequestView {
            id: RequestId(1),
            request,
            state: RequestState::Waiting,
            resource: None,
            token: None,
            priority: Some(1),
            created_at_ms: 0,
            granted_at_ms: None,
            deadline_ms: None,
            ended_at_ms: None,
        }
    }

    fn resource(name: &str, tags: &[&str]) -> ResourceView {
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        let resource = NewResource { name: name.parse().expect("a name"), tags, enabled: true };
        ResourceView { resource, token: tenure::Token::ZERO, holder: None, cooling_until_ms: None }
    }

    #[test]
    fn who_waits_is_told_why() {
        let key = PoolKey::new("a".parse().expect("a name"), "b".parse().expect("a name"));
        let mut view =
            PoolView { key, settings: Default::default(), paused: None, resources: vec![], waiting: vec![] };
        assert_eq!(holdup(&view, &request(&[]), 0), "the pool is empty");
        view.resources = vec![resource("x", &["ssd"]), resource("y", &["gpu"])];
        assert_eq!(holdup(&view, &request(&["tape"]), 0), "no resource has tape");
        assert_eq!(holdup(&view, &request(&["ssd", "gpu"]), 0), "no resource has all of ssd, gpu");
        assert_eq!(holdup(&view, &request(&["ssd"]), 0), "one that fits is free, and is handed out in order");
        view.resources[0].cooling_until_ms = Some(5000);
        assert_eq!(
            holdup(&view, &request(&["ssd"]), 0),
            "the one that fits is resting, the first for 5.0 s more"
        );
        assert_eq!(
            holdup(&view, &request(&["ssd"]), 6000),
            "one that fits is free, and is handed out in order"
        );
        view.resources[0].holder = Some(request(&[]));
        view.resources[1].holder = Some(request(&[]));
        assert_eq!(holdup(&view, &request(&["ssd"]), 0), "the one that fits is held");
        assert_eq!(holdup(&view, &request(&[]), 0), "all 2 that fit are held");
        view.resources[0].holder = None;
        view.resources[0].cooling_until_ms = None;
        view.resources[0].resource.enabled = false;
        assert_eq!(holdup(&view, &request(&["ssd"]), 0), "the one that fits is disabled");
    }
}
