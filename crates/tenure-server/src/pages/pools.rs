//! The pools: how much of each is free, and how many wait.

use std::collections::BTreeSet;

use axum::extract::{Query, State};
use axum::response::Response;
use maud::{Markup, html};
use tenure::Name;
use tenure::port::{PoolView, ResourceView, Verb};

use super::frame::{Visit, page, trouble};
use super::given::Got;
use super::queues::Filter;
use super::{first, parts, words};
use crate::App;

/// More than this are not read by anybody; the filter finds the others.
const SHOWN: usize = 200;

/// How a resource stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Held,
    Free,
    Cooling,
    Disabled,
}

impl Standing {
    const ALL: [Standing; 4] = [Standing::Held, Standing::Free, Standing::Cooling, Standing::Disabled];

    pub(super) fn of(resource: &ResourceView, wall: i64) -> Standing {
        match (&resource.holder, resource.resource.enabled) {
            (Some(_), _) => Standing::Held,
            (None, false) => Standing::Disabled,
            (None, true) if resource.cooling_until_ms.is_some_and(|until| until > wall) => Standing::Cooling,
            (None, true) => Standing::Free,
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Standing::Held => "held",
            Standing::Free => "free",
            Standing::Cooling => "cooling",
            Standing::Disabled => "disabled",
        }
    }

    pub(super) fn shown(self) -> Markup {
        let kind = match self {
            Standing::Held => "good",
            Standing::Free => "next",
            Standing::Cooling => "later",
            Standing::Disabled => "off",
        };
        parts::state(kind, self.word())
    }
}

pub(super) async fn show(
    State(app): State<App>,
    visit: Visit,
    Got(Query(filter)): Got<Query<Filter>>,
) -> Response {
    let all = match app.floor.pools().await {
        Ok(all) => all,
        Err(error) => return trouble(&visit, &error.into()),
    };
    let visible: Vec<_> =
        all.iter().filter(|view| visit.may(Verb::Read, Some(&view.key.namespace))).collect();
    let namespace = filter.namespace.parse().unwrap_or_else(|_| Name::default_namespace());
    let content = html! {
        div.head {
            div {
                h1 { "Pools" }
                p { "Resources that are few, who has them, and who waits for one." }
            }
            @if visit.may(Verb::Admin, Some(&namespace)) {
                div.buttons {
                    a.button data-key="new" data-confirm href={ "/pools/new?namespace=" (parts::escape(namespace.as_str())) } { "Add a resource…" }
                }
            }
        }
        div #pools data-live {
            @if visible.is_empty() { (first::pools(&visit)) } @else { (table(&visible, &filter, app.runtime.wall_ms())) }
        }
        noscript { p { a href=(visit.here) { "Refresh" } } }
    };
    page(&visit, "Pools", "Pools", content)
}

fn table(visible: &[&PoolView], filter: &Filter, wall: i64) -> Markup {
    let namespaces: BTreeSet<_> = visible.iter().map(|view| &view.key.namespace).collect();
    let several = namespaces.len() > 1;
    let found: Vec<_> = visible
        .iter()
        .filter(|view| filter.lets_through(&view.key.namespace, [view.key.name.as_str()]))
        .collect();
    html! {
        section.card aria-labelledby="all" {
            header {
                h2 #all { @if filter.is_empty() { "All pools" } @else { (found.len()) " of " (words::count(visible.len(), "pool")) } }
                (filter.form("/pools", "Pool", &namespaces))
            }
            @if found.is_empty() { p.empty { "No pool matches. " a href="/pools" { "Show all" } } }
            @else {
                table.stack {
                    thead { tr {
                        th scope="col" { "Pool" } th scope="col" { "State" } th scope="col" { "Mode" } th scope="col" { "Resources" }
                        th.num scope="col" { "Waiting" }
                    } }
                    tbody { @for view in found.iter().take(SHOWN) { (row(view, several, wall)) } }
                }
                @if found.len() > SHOWN { p.empty { (found.len() - SHOWN) " more are not shown; the filter finds them." } }
            }
        }
    }
}

fn row(view: &PoolView, several: bool, wall: i64) -> Markup {
    html! {
        tr data-key=(format!("pool-{}/{}", view.key.namespace, view.key.name)) {
            th scope="row" {
                span {
                    a href=(parts::pool_href(&view.key, "")) { (view.key.name) }
                    @if several { " " span.chip { (view.key.namespace) } }
                }
            }
            td data-label="State" { (state(view, wall)) }
            td data-label="Mode" { (view.settings.mode.as_str()) }
            td.wide.deep data-label="Resources" { (bar(view, wall)) }
            td.num data-label="Waiting" { (words::number(view.waiting.len() as u64)) }
        }
    }
}

/// How a pool is, in a word.
pub(super) fn state(view: &PoolView, wall: i64) -> Markup {
    let count = |standing| view.resources.iter().filter(|r| Standing::of(r, wall) == standing).count();
    match (&view.paused, count(Standing::Free), view.waiting.len()) {
        (Some(_), _, _) => parts::state("warn", "paused"),
        (None, 0, 0) if view.resources.is_empty() => parts::state("idle", "empty"),
        (None, 0, 0) if count(Standing::Disabled) == view.resources.len() => {
            parts::state("off", "all disabled")
        }
        (None, 0, 0) => parts::state("late", "none free"),
        (None, 0, waiting) => parts::state("bad", format!("none free, {waiting} waiting")),
        (None, free, _) => parts::state("next", format!("{free} free")),
    }
}

/// What of a pool is held, free, cooling and disabled, as a bar with its numbers.
fn bar(view: &PoolView, wall: i64) -> Markup {
    let parts: Vec<_> = Standing::ALL
        .into_iter()
        .map(|standing| {
            (standing, view.resources.iter().filter(|r| Standing::of(r, wall) == standing).count())
        })
        .filter(|(_, n)| *n > 0)
        .collect();
    let whole = view.resources.len().max(1) as f64;
    let mut x = 0.0;
    let said: Vec<_> = parts.iter().map(|(standing, n)| format!("{n} {}", standing.word())).collect();
    html! {
        @if parts.is_empty() { span.soft { "none" } }
        @else {
            div.depth {
                svg.stacked width="100%" height="10" role="img" aria-label=(said.join(", ")) {
                    @for (standing, n) in &parts {
                        @let width = *n as f64 / whole * 100.0;
                        rect class={ "r-" (standing.word()) } x={ (format!("{x:.2}")) "%" } width={ (format!("{width:.2}")) "%" } height="10" { title { (n) " " (standing.word()) } }
                        ({ x += width; "" })
                    }
                }
                span.small { @for (at, (standing, n)) in parts.iter().enumerate() { @if at > 0 { span.soft { " · " } } span.nowrap { (n) " " span.soft { (standing.word()) } } } }
            }
        }
    }
}
