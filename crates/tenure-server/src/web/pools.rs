//! The page of all pools.

use std::collections::BTreeSet;

use axum::extract::{Query, State};
use axum::response::Response;
use maud::{Markup, html};
use tenure::Name;
use tenure::port::{Permission, PoolView, ResourceView};

use super::extract::PageParams;
use super::layout::{PageContext, page, problem_page};
use super::queues::QueuesPageQuery;
use super::{components, format, getting_started};
use crate::App;

/// Maximum number of rows; the filter narrows the list.
const SHOWN: usize = 200;

/// The status of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResourceStatus {
    Held,
    Free,
    Cooldown,
    Disabled,
}

impl ResourceStatus {
    const ALL: [ResourceStatus; 4] =
        [ResourceStatus::Held, ResourceStatus::Free, ResourceStatus::Cooldown, ResourceStatus::Disabled];

    pub(super) fn of(resource: &ResourceView, wall: i64) -> ResourceStatus {
        match (&resource.held_by, resource.resource.enabled) {
            (Some(_), _) => ResourceStatus::Held,
            (None, false) => ResourceStatus::Disabled,
            (None, true) if resource.cooldown_until_at_ms.is_some_and(|until| until > wall) => {
                ResourceStatus::Cooldown
            }
            (None, true) => ResourceStatus::Free,
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            ResourceStatus::Held => "held",
            ResourceStatus::Free => "free",
            ResourceStatus::Cooldown => "cooldown",
            ResourceStatus::Disabled => "disabled",
        }
    }

    pub(super) fn shown(self) -> Markup {
        let kind = match self {
            ResourceStatus::Held => "good",
            ResourceStatus::Free => "next",
            ResourceStatus::Cooldown => "later",
            ResourceStatus::Disabled => "off",
        };
        components::state(kind, self.word())
    }
}

pub(super) async fn show(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Query(filter)): PageParams<Query<QueuesPageQuery>>,
) -> Response {
    let all = match app.queues.pools().await {
        Ok(all) => all,
        Err(error) => return problem_page(&ctx, &error.into()),
    };
    let visible: Vec<_> =
        all.iter().filter(|view| ctx.may(Permission::Read, Some(&view.key.namespace))).collect();
    let namespace = filter.namespace.parse().unwrap_or_else(|_| Name::default_namespace());
    let content = html! {
        div.head {
            div {
                h1 { "Pools" }
                p { "Pools of limited resources, their holders and waiting requests." }
            }
            @if ctx.may(Permission::Admin, Some(&namespace)) {
                div.buttons {
                    a.button data-key="new" data-confirm href={ "/pools/new?namespace=" (components::escape(namespace.as_str())) } { "Add resource…" }
                }
            }
        }
        div #pools data-live {
            @if visible.is_empty() { (getting_started::pools(&ctx)) } @else { (table(&visible, &filter, app.runtime.wall_ms())) }
        }
        noscript { p { a href=(ctx.path) { "Refresh" } } }
    };
    page(&ctx, "Pools", "Pools", content)
}

fn table(visible: &[&PoolView], filter: &QueuesPageQuery, wall: i64) -> Markup {
    let namespaces: BTreeSet<_> = visible.iter().map(|view| &view.key.namespace).collect();
    let several = namespaces.len() > 1;
    let found: Vec<_> =
        visible.iter().filter(|view| filter.matches(&view.key.namespace, [view.key.name.as_str()])).collect();
    html! {
        section.card aria-labelledby="all" {
            header {
                h2 #all { @if filter.is_empty() { "Pools" } @else { (found.len()) " of " (format::count(visible.len(), "pool")) } }
                (filter.form("/pools", "Search by pool", &namespaces))
            }
            @if found.is_empty() { p.empty { "No matching pools. " a href="/pools" { "Clear filter" } } }
            @else {
                table.stack {
                    thead { tr {
                        th scope="col" { "Pool" } th scope="col" { "State" } th scope="col" { "Mode" } th scope="col" { "Resources" }
                        th.num scope="col" { "Waiting" }
                    } }
                    tbody { @for view in found.iter().take(SHOWN) { (row(view, several, wall)) } }
                }
                @if found.len() > SHOWN { p.empty { (found.len() - SHOWN) " more; use the filter." } }
            }
        }
    }
}

fn row(view: &PoolView, several: bool, wall: i64) -> Markup {
    html! {
        tr data-key=(format!("pool-{}/{}", view.key.namespace, view.key.name)) {
            th scope="row" {
                span {
                    a href=(components::pool_href(&view.key, "")) { (view.key.name) }
                    @if several { " " span.chip { (view.key.namespace) } }
                }
            }
            td data-label="State" { (state(view, wall)) }
            td data-label="Mode" { (view.settings.mode.as_str()) }
            td.wide.deep data-label="Resources" { (bar(view, wall)) }
            td.num data-label="Waiting" { (format::number(view.waiting_requests.len() as u64)) }
        }
    }
}

/// The state of a pool.
pub(super) fn state(view: &PoolView, wall: i64) -> Markup {
    let count = |status| view.resources.iter().filter(|r| ResourceStatus::of(r, wall) == status).count();
    match (&view.paused, count(ResourceStatus::Free), view.waiting_requests.len()) {
        (Some(_), _, _) => components::state("warn", "Paused"),
        (None, 0, 0) if view.resources.is_empty() => components::state("idle", "Empty"),
        (None, 0, 0) if count(ResourceStatus::Disabled) == view.resources.len() => {
            components::state("off", "All disabled")
        }
        (None, 0, 0) => components::state("late", "Fully used"),
        (None, 0, waiting) => components::state("bad", format!("Fully used, {waiting} waiting")),
        (None, free, _) => components::state("next", format!("{free} free")),
    }
}

/// The resources of a pool by status, as a bar with numbers.
fn bar(view: &PoolView, wall: i64) -> Markup {
    let parts: Vec<_> = ResourceStatus::ALL
        .into_iter()
        .map(|status| {
            (status, view.resources.iter().filter(|r| ResourceStatus::of(r, wall) == status).count())
        })
        .filter(|(_, n)| *n > 0)
        .collect();
    let whole = view.resources.len().max(1) as f64;
    let mut x = 0.0;
    let texts: Vec<_> = parts.iter().map(|(status, n)| format!("{n} {}", status.word())).collect();
    html! {
        @if parts.is_empty() { span.soft { "none" } }
        @else {
            div.depth {
                svg.stacked width="100%" height="10" role="img" aria-label=(texts.join(", ")) {
                    @for (status, n) in &parts {
                        @let width = *n as f64 / whole * 100.0;
                        rect class={ "r-" (status.word()) } x={ (format!("{x:.2}")) "%" } width={ (format!("{width:.2}")) "%" } height="10" { title { (n) " " (status.word()) } }
                        ({ x += width; "" })
                    }
                }
                span.small { @for (at, (status, n)) in parts.iter().enumerate() { @if at > 0 { span.soft { " · " } } span.nowrap { (n) " " span.soft { (status.word()) } } } }
            }
        }
    }
}
