//! The names: who has which; and the singletons: where each runs.

use axum::extract::{Query, State};
use axum::response::Response;
use maud::{Markup, html};
use tenure::Name;
use tenure::cluster::{NAMES, NameView, Registry, SINGLETONS};
use tenure::port::Verb;

use super::frame::{Visit, page, trouble};
use super::given::Got;
use super::queues::Filter;
use super::{parts, words};
use crate::App;

/// More than this are not read by anybody; the filter finds the others.
const SHOWN: usize = 200;

/// A name, and where more of it is shown.
type Row = (Option<String>, NameView);

pub(super) async fn show(
    State(app): State<App>,
    visit: Visit,
    Got(Query(filter)): Got<Query<Filter>>,
) -> Response {
    let seen = match app.board.known().await {
        Ok(seen) => seen,
        Err(error) => return trouble(&visit, &error.into()),
    };
    let fits = |namespace: &Name, view: &NameView| {
        let words = [view.name.as_str(), view.holder.as_str()];
        let said = view.metadata.iter().flat_map(|(key, value)| [key.as_str(), value.as_str()]);
        filter.lets_through(namespace, words.into_iter().chain(said))
    };
    let of = |namespace: &str| -> Vec<Row> {
        let here = seen.elections.values().filter(|entry| entry.key.namespace.as_str() == namespace);
        let mine = here.filter(|entry| visit.may(Verb::Read, Some(&entry.key.namespace)));
        let named = mine.filter_map(|entry| Some((entry, NameView::of(entry)?)));
        let found = named.filter(|(entry, view)| fits(&entry.key.namespace, view));
        found.map(|(entry, view)| (Some(parts::href(&entry.key, "")), view)).collect()
    };
    let (names, singletons) = (of(NAMES), of(SINGLETONS));
    let namespace = crate::api::names_namespace();
    let soft = match app.gossip.as_ref().filter(|_| visit.may(Verb::Read, Some(&namespace))) {
        Some(gossip) => Some(Registry::soft(gossip).list().await.unwrap_or_default()),
        None => None,
    };
    let soft: Option<Vec<Row>> = soft
        .map(|all| all.into_iter().filter(|view| fits(&namespace, view)).map(|view| (None, view)).collect());
    let wall = app.runtime.wall_ms();
    let content = html! {
        div.head { div {
            h1 { "Names" }
            p { "Which process has which name, and where each singleton runs. One process each, under a token that only grows." }
        } }
        div #names data-live {
            (card("all", &words::count(names.len(), "name"), &names, &filter, wall, html! {
                "Nobody has a name yet. " code { "tenure names register printer --meta address=10.0.0.7:631" }
            }))
        }
        div #singletons data-live {
            (card("run", &words::count(singletons.len(), "singleton"), &singletons, &filter, wall, html! {
                "No singleton runs. A process offers some with " code { "Supervisor::strict(&tenure).singleton(…)" } "."
            }))
        }
        @if let Some(soft) = soft {
            div #soft data-live {
                (card("gossip", &format!("{} by gossip", words::count(soft.len(), "name")), &soft, &filter, wall, html! {
                    "Nobody has a name in the cluster that this server hears. Names there have no token, and in a netsplit each side may have its own."
                }))
            }
        }
        noscript { p { a href=(visit.here) { "Refresh" } } }
    };
    page(&visit, "Names", "Names", content)
}

fn card(id: &str, title: &str, found: &[Row], filter: &Filter, wall: i64, first: Markup) -> Markup {
    html! {
        section.card aria-labelledby=(id) {
            header {
                h2 id=(id) { (title) }
                @if id == "all" { (filter.form("/names", "Name, process or what it says", &Default::default())) }
            }
            @if found.is_empty() && filter.is_empty() { p.empty { (first) } }
            @else if found.is_empty() { p.empty { "Nothing matches. " a href="/names" { "Show all" } } }
            @else { (table(&found[..found.len().min(SHOWN)], wall)) }
            @if found.len() > SHOWN { p.empty { (found.len() - SHOWN) " more are not shown; the filter finds them." } }
        }
    }
}

fn table(found: &[Row], wall: i64) -> Markup {
    html! {
        table.stack {
            thead { tr {
                th scope="col" { "Name" } th scope="col" { "Process" } th scope="col" { "Token" }
                th scope="col" { "Since" } th scope="col" { "Says" }
            } }
            tbody { @for (href, view) in found {
                tr data-key=(format!("name-{}", view.name)) {
                    th scope="row" { @match href { Some(href) => a href=(href) { (view.name) }, None => (view.name) } }
                    td data-label="Process" { (view.holder) }
                    td data-label="Token" { @if let Some(token) = view.token { (token) } }
                    td data-label="Since" { @if let Some(since) = view.since_ms { (words::ago(since, wall)) } }
                    td data-label="Says" {
                        (parts::chips(&view.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>()))
                    }
                }
            } }
        }
    }
}
