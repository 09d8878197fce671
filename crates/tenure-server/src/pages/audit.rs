//! Who did what.

use axum::extract::{Query, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::port::{Deed, GroupKey, PoolKey, QueueKey, ScheduleKey, StoreError, TaskId, TopicKey, Verb};
use tenure::{ElectionKey, Name};

use super::election::within;
use super::frame::{Visit, page, trouble};
use super::given::Got;
use super::{parts, words};
use crate::App;

/// How many deeds are on a page.
const PAGE: u32 = 50;
/// How many are read at once, for those who may not see all.
const READ: u32 = 200;
/// And how many times, for one page.
const READS: u32 = 5;

/// Which page of the audit.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    #[serde(default)]
    before: Option<i64>,
}

pub(super) async fn show(
    State(app): State<App>,
    visit: Visit,
    Got(Query(which)): Got<Query<Which>>,
) -> Response {
    let mut deeds: Vec<Deed> = Vec::new();
    let mut before = which.before;
    let mut more = true;
    // A visitor of one namespace sees that one's deeds; those in between are passed over.
    for _ in 0..READS {
        if !more || deeds.len() >= PAGE as usize {
            break;
        }
        match within(app.store.deeds(None, before, READ)).await {
            Err(error) => return trouble(&visit, &error.into()),
            Ok(read) => {
                more = read.len() == READ as usize;
                before = read.last().map(|deed| deed.n).or(before);
                deeds.extend(read.into_iter().filter(|deed| visit.may(Verb::Read, deed.namespace.as_ref())));
            }
        }
    }
    if deeds.len() > PAGE as usize {
        deeds.truncate(PAGE as usize);
        more = true;
        before = deeds.last().map(|deed| deed.n);
    }
    let wall = app.runtime.wall_ms();
    let shown: Vec<_> = deeds.iter().collect();
    let content = html! {
        div.head { div {
            h1 { "Audit" }
            p { "Who did what, the newest first. What leaders and candidates do by themselves is in the terms of each election." }
        } }
        section.card aria-label="Deeds" {
            div #audit data-live=[which.before.is_none().then_some("")] {
                @if shown.is_empty() {
                    p.empty { "Nobody has done anything yet. What operators do with the buttons, the API or the command line's " code { "--store http" } " is written down here." }
                } @else { (table(&shown, wall)) }
            }
            @if more || which.before.is_some() {
                nav.pager aria-label="Pages of the audit" {
                    @if which.before.is_some() { a.button.slim href="/audit" { "Newest" } }
                    @if let Some(before) = before.filter(|_| more) { a.button.slim href={ "/audit?before=" (before) } { "Older" } }
                }
            }
        }
    };
    page(&visit, "Audit", "Audit", content)
}

/// Deeds as a table.
pub(super) fn table(deeds: &[&Deed], wall: i64) -> Markup {
    html! {
        table.stack {
            thead { tr {
                th scope="col" { "Who" } th scope="col" { "Did" } th scope="col" { "To" } th scope="col" { "Detail" }
                th scope="col" { "When" }
            } }
            tbody {
                @for deed in deeds {
                    tr data-key=(format!("deed-{}", deed.n)) {
                        th scope="row" { (deed.principal) }
                        td data-label="Did" { span.chip { (parts::breakable(&deed.action)) } }
                        td data-label="To" { span { (target(deed)) } }
                        td.wide.none[deed.detail.is_empty()] data-label="Detail" { @if deed.detail.is_empty() { span.soft { "–" } } @else { (deed.detail) } }
                        td.wide data-label="When" { span { (words::ago(deed.at_ms, wall)) " " span.soft.small { (words::utc(deed.at_ms)) } } }
                    }
                }
            }
        }
    }
}

/// The last deeds that were done to one thing, if there were any.
pub(super) fn of(deeds: Result<&[Deed], &StoreError>, here: impl Fn(&Deed) -> bool, wall: i64) -> Markup {
    const SHOWN: usize = 8;
    let here: Vec<_> = deeds.unwrap_or_default().iter().filter(|deed| here(deed)).take(SHOWN).collect();
    html! {
        @if !here.is_empty() {
            section.card aria-labelledby="did" {
                header { h2 #did { "Who did what here" } a.small href="/audit" { "The whole audit" } }
                (table(&here, wall))
            }
        }
    }
}

/// Deeds to elections go by one word; all others by what they are done to: `queue.pause`.
pub(super) fn sort(deed: &Deed) -> &str {
    deed.action.split_once('.').map_or("", |(sort, _)| sort)
}

fn target(deed: &Deed) -> Markup {
    html! {
        @match page_of(deed) {
            Some((href, name)) => a href=(href) { (name) },
            None => code { (deed.target) },
        }
    }
}

/// The page of what a deed was done to, and its name.
fn page_of(deed: &Deed) -> Option<(String, String)> {
    let namespace = deed.namespace.clone()?;
    let name = || deed.target.parse::<Name>().ok();
    Some(match sort(deed) {
        "" => {
            let key = ElectionKey::new(namespace, name()?);
            (parts::href(&key, ""), key.to_string())
        }
        "queue" => {
            let key = QueueKey::new(namespace, name()?);
            (parts::queue_href(&key, ""), key.to_string())
        }
        "pool" => {
            let key = PoolKey::new(namespace, name()?);
            (parts::pool_href(&key, ""), key.to_string())
        }
        "resource" => {
            let (pool, _) = deed.target.split_once('/')?;
            let key = PoolKey::new(namespace, pool.parse().ok()?);
            (parts::pool_href(&key, ""), deed.target.clone())
        }
        "task" => {
            let id = TaskId(deed.target.parse().ok()?);
            (parts::task_href(&namespace, id, ""), format!("task {id}"))
        }
        "topic" => {
            let key = TopicKey::new(namespace, name()?);
            (parts::topic_href(&key, ""), key.to_string())
        }
        "group" | "dead" | "push" => {
            let (topic, group) = deed.target.split_once('/')?;
            let key = GroupKey::new(TopicKey::new(namespace, topic.parse().ok()?), group.parse().ok()?);
            (parts::group_href(&key, ""), key.to_string())
        }
        "schedule" => {
            let key = ScheduleKey::new(namespace, name()?);
            (parts::schedule_href(&key, ""), key.to_string())
        }
        "worker" => ("/workers".into(), deed.target.clone()),
        "namespace" => {
            (format!("/queues?namespace={}", parts::escape(namespace.as_str())), deed.target.clone())
        }
        _ => return None,
    })
}
