//! Registered names and singletons, with their holders.

use axum::extract::{Query, State};
use axum::response::Response;
use maud::{Markup, html};
use tenure::Name;
use tenure::cluster::{NAMES, RegisteredName, Registry, SINGLETONS};
use tenure::port::Permission;

use super::extract::PageParams;
use super::layout::{PageContext, page, problem_page};
use super::queues::QueuesPageQuery;
use super::{components, format};
use crate::App;

/// Maximum number of rows; the filter narrows the list.
const SHOWN: usize = 200;

/// A registered name and the URL of its election.
type Row = (Option<String>, RegisteredName);

pub(super) async fn show(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Query(filter)): PageParams<Query<QueuesPageQuery>>,
) -> Response {
    let snapshot = match app.elections.ready().await {
        Ok(snapshot) => snapshot,
        Err(error) => return problem_page(&ctx, &error.into()),
    };
    let matches = |namespace: &Name, view: &RegisteredName| {
        let names = [view.name.as_str(), view.holder.as_str()];
        let metadata = view.metadata.iter().flat_map(|(key, value)| [key.as_str(), value.as_str()]);
        filter.matches(namespace, names.into_iter().chain(metadata))
    };
    let of = |namespace: &str| -> Vec<Row> {
        let here = snapshot.elections.values().filter(|entry| entry.key.namespace.as_str() == namespace);
        let mine = here.filter(|entry| ctx.may(Permission::Read, Some(&entry.key.namespace)));
        let named = mine.filter_map(|entry| Some((entry, RegisteredName::of(entry)?)));
        let found = named.filter(|(entry, view)| matches(&entry.key.namespace, view));
        found.map(|(entry, view)| (Some(components::href(&entry.key, "")), view)).collect()
    };
    let (names, singletons) = (of(NAMES), of(SINGLETONS));
    let namespace = crate::api::names_namespace();
    let soft = match app.gossip.as_ref().filter(|_| ctx.may(Permission::Read, Some(&namespace))) {
        Some(gossip) => Some(Registry::soft(gossip).list().await.unwrap_or_default()),
        None => None,
    };
    let soft: Option<Vec<Row>> = soft.map(|all| {
        all.into_iter().filter(|view| matches(&namespace, view)).map(|view| (None, view)).collect()
    });
    let wall = app.runtime.wall_ms();
    let content = html! {
        div.head { div {
            h1 { "Registered names" }
            p { "Registered names and singletons with the process that holds each. One holder at a time, under a growing token." }
        } }
        div #names data-live {
            (card("all", &format::count(names.len(), "name"), &names, &filter, wall, html! {
                "No registered names yet. " code { "tenure names register printer --metadata address=10.0.0.7:631" }
            }))
        }
        div #singletons data-live {
            (card("run", &format::count(singletons.len(), "singleton"), &singletons, &filter, wall, html! {
                "No singletons. Start one with " code { "Supervisor::strict(&tenure).singleton(…)" } "."
            }))
        }
        @if let Some(soft) = soft {
            div #soft data-live {
                (card("gossip", &format!("{} over gossip", format::count(soft.len(), "name")), &soft, &filter, wall, html! {
                    "No registered names in the gossip cluster. They have no token; each side of a network split may have a holder."
                }))
            }
        }
        noscript { p { a href=(ctx.path) { "Refresh" } } }
    };
    page(&ctx, "Registered names", "Registered names", content)
}

fn card(id: &str, title: &str, found: &[Row], filter: &QueuesPageQuery, wall: i64, first: Markup) -> Markup {
    html! {
        section.card aria-labelledby=(id) {
            header {
                h2 id=(id) { (title) }
                @if id == "all" { (filter.form("/names", "Search by name, process or metadata", &Default::default())) }
            }
            @if found.is_empty() && filter.is_empty() { p.empty { (first) } }
            @else if found.is_empty() { p.empty { "No matches. " a href="/names" { "Clear filter" } } }
            @else { (table(&found[..found.len().min(SHOWN)], wall)) }
            @if found.len() > SHOWN { p.empty { (found.len() - SHOWN) " more; use the filter." } }
        }
    }
}

fn table(found: &[Row], wall: i64) -> Markup {
    html! {
        table.stack {
            thead { tr {
                th scope="col" { "Name" } th scope="col" { "Holder" } th scope="col" { "Token" }
                th scope="col" { "Held since" } th scope="col" { "Metadata" }
            } }
            tbody { @for (href, view) in found {
                tr data-key=(format!("name-{}", view.name)) {
                    th scope="row" { @match href { Some(href) => a href=(href) { (view.name) }, None => (view.name) } }
                    td data-label="Holder" { (view.holder) }
                    td data-label="Token" { @if let Some(token) = view.token { (token) } }
                    td data-label="Held since" { @if let Some(since) = view.since_at_ms { (format::ago(since, wall)) } }
                    td data-label="Metadata" {
                        (components::chips(&view.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>()))
                    }
                }
            } }
        }
    }
}
