//! The audit log.

use axum::extract::{Query, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::port::{
    AuditEntry, GroupKey, Permission, PoolKey, QueueKey, ScheduleKey, StoreError, TaskId, TopicKey,
};
use tenure::{ElectionKey, Name};

use super::election::with_timeout;
use super::extract::PageParams;
use super::layout::{PageContext, page, problem_page};
use super::{components, format};
use crate::App;

/// Number of entries per page.
const PAGE: u32 = 50;
/// Number of entries per read. It is larger than a page, because entries that the principal may not see are
/// filtered out.
const READ: u32 = 200;
/// Maximum number of reads per page.
const READS: u32 = 5;

/// The query of the audit page.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditPageQuery {
    #[serde(default)]
    cursor: Option<i64>,
}

pub(super) async fn show(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Query(query)): PageParams<Query<AuditPageQuery>>,
) -> Response {
    let mut entries: Vec<AuditEntry> = Vec::new();
    let mut cursor = query.cursor;
    let mut more = true;
    // A principal sees only entries of namespaces that it may read; the others are skipped.
    for _ in 0..READS {
        if !more || entries.len() >= PAGE as usize {
            break;
        }
        match with_timeout(app.store.audit_entries(None, cursor, READ)).await {
            Err(error) => return problem_page(&ctx, &error.into()),
            Ok(read) => {
                more = read.len() == READ as usize;
                cursor = read.last().map(|entry| entry.seq).or(cursor);
                entries.extend(
                    read.into_iter().filter(|entry| ctx.may(Permission::Read, entry.namespace.as_ref())),
                );
            }
        }
    }
    if entries.len() > PAGE as usize {
        entries.truncate(PAGE as usize);
        more = true;
        cursor = entries.last().map(|entry| entry.seq);
    }
    let wall = app.runtime.wall_ms();
    let shown: Vec<_> = entries.iter().collect();
    let content = html! {
        div.head { div {
            h1 { "Audit log" }
            p { "Changes made by operators and clients, newest first. Automatic leader changes are listed as terms of each election." }
        } }
        section.card aria-label="Entries" {
            div #audit data-live=[query.cursor.is_none().then_some("")] {
                @if shown.is_empty() {
                    p.empty { "No entries yet. Changes made with the dashboard, the API or the CLI through a server are recorded here." }
                } @else { (table(&shown, wall)) }
            }
            @if more || query.cursor.is_some() {
                nav.pager aria-label="Audit log pages" {
                    @if query.cursor.is_some() { a.button.slim href="/audit" { "Newest" } }
                    @if let Some(cursor) = cursor.filter(|_| more) { a.button.slim href={ "/audit?cursor=" (cursor) } { "Older" } }
                }
            }
        }
    };
    page(&ctx, "Audit log", "Audit log", content)
}

/// A table of audit entries.
pub(super) fn table(entries: &[&AuditEntry], wall: i64) -> Markup {
    html! {
        table.stack {
            thead { tr {
                th scope="col" { "Principal" } th scope="col" { "Action" } th scope="col" { "Target" } th scope="col" { "Detail" }
                th scope="col" { "Time" }
            } }
            tbody {
                @for entry in entries {
                    tr data-key=(format!("entry-{}", entry.seq)) {
                        th scope="row" { (entry.principal) }
                        td data-label="Action" { span.chip { (components::breakable(&entry.action)) } }
                        td data-label="Target" { span { (target(entry)) } }
                        td.wide.none[entry.detail.is_empty()] data-label="Detail" { @if entry.detail.is_empty() { span.soft { "–" } } @else { (entry.detail) } }
                        td.wide data-label="Time" { span { (format::ago(entry.recorded_at_ms, wall)) " " span.soft.small { (format::utc(entry.recorded_at_ms)) } } }
                    }
                }
            }
        }
    }
}

/// The latest audit entries of one object; nothing if there are none.
pub(super) fn of(
    entries: Result<&[AuditEntry], &StoreError>,
    here: impl Fn(&AuditEntry) -> bool,
    wall: i64,
) -> Markup {
    const SHOWN: usize = 8;
    let here: Vec<_> = entries.unwrap_or_default().iter().filter(|entry| here(entry)).take(SHOWN).collect();
    html! {
        @if !here.is_empty() {
            section.card aria-labelledby="activity-title" {
                header { h2 #activity-title { "Activity" } a.small href="/audit" { "Audit log" } }
                (table(&here, wall))
            }
        }
    }
}

/// The resource of an action: `queue` of `queue.pause`.
pub(super) fn resource(entry: &AuditEntry) -> &str {
    entry.action.split_once('.').map_or("", |(resource, _)| resource)
}

fn target(entry: &AuditEntry) -> Markup {
    html! {
        @match page_of(entry) {
            Some((href, name)) => a href=(href) { (name) },
            None => code { (entry.target) },
        }
    }
}

/// The URL and the display name of the target of an entry.
fn page_of(entry: &AuditEntry) -> Option<(String, String)> {
    let namespace = entry.namespace.clone()?;
    let name = || entry.target.parse::<Name>().ok();
    Some(match resource(entry) {
        "election" => {
            let key = ElectionKey::new(namespace, name()?);
            (components::href(&key, ""), key.to_string())
        }
        "queue" => {
            let key = QueueKey::new(namespace, name()?);
            (components::queue_href(&key, ""), key.to_string())
        }
        "pool" => {
            let key = PoolKey::new(namespace, name()?);
            (components::pool_href(&key, ""), key.to_string())
        }
        "resource" | "request" => {
            let (pool, _) = entry.target.split_once('/')?;
            let key = PoolKey::new(namespace, pool.parse().ok()?);
            (components::pool_href(&key, ""), entry.target.clone())
        }
        "task" => {
            let id = TaskId(entry.target.parse().ok()?);
            (components::task_href(&namespace, id, ""), format!("task {id}"))
        }
        "topic" | "event" => {
            let key = TopicKey::new(namespace, name()?);
            (components::topic_href(&key, ""), key.to_string())
        }
        "group" | "dead_letter" | "webhook" => {
            let (topic, group) = entry.target.split_once('/')?;
            let key = GroupKey::new(TopicKey::new(namespace, topic.parse().ok()?), group.parse().ok()?);
            (components::group_href(&key, ""), key.to_string())
        }
        "schedule" => {
            let key = ScheduleKey::new(namespace, name()?);
            (components::schedule_href(&key, ""), key.to_string())
        }
        "worker" => ("/workers".into(), entry.target.clone()),
        "namespace" => {
            (format!("/queues?namespace={}", components::escape(namespace.as_str())), entry.target.clone())
        }
        _ => return None,
    })
}
