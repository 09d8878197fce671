//! The page of one consumer group: lag, partition assignment, members, parked events, settings and webhook.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{
    EventId, GroupKey, GroupSettings, GroupView, ParkedEventFilter, PartitionView, Permission, TopicKey,
};
use tenure_core::rules::event::partition_for_key;

use super::extract::PageParams;
use super::layout::{PageContext, page, problem_page};
use super::partition_assignment::{self, MemberColors};
use super::{audit, chart, components, format, parked, topic, topics};
use crate::App;
use crate::api::no_such_group;
use crate::problem::Problem;
use crate::snapshot::events::GroupHistory;

/// Number of partitions in the table, unless all are requested.
const PARTITIONS: usize = 16;
/// Maximum number of members in the table.
const MEMBERS: usize = 200;
/// Number of parked events per page.
pub(super) const PAGE: u32 = 20;

/// The query of a group's page.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GroupPageQuery {
    #[serde(default = "Name::default_namespace")]
    pub(super) namespace: Name,
    /// Find the partition of this key.
    #[serde(default)]
    find: String,
    /// `all`: show a row for every partition.
    #[serde(default)]
    partitions: String,
    /// `dead`: show only dead letters; `all`: show all parked events.
    #[serde(default)]
    parked: String,
    /// Show only parked events with this key.
    #[serde(default)]
    pub(super) key: String,
    /// Show parked events after this one.
    #[serde(default)]
    cursor: Option<u64>,
}

impl GroupPageQuery {
    /// Whether to show only dead letters. The default is yes, unless there are none but other parked events.
    fn only_dead(&self, view: &GroupView) -> Result<bool, Problem> {
        match self.parked.as_str() {
            "" => Ok(view.dead_letter_count > 0 || view.parked_event_count == 0),
            "dead" => Ok(true),
            "all" => Ok(false),
            other => {
                let detail = format!("Invalid filter: {other:?}");
                Err(Problem::new(StatusCode::BAD_REQUEST, "malformed-query", detail)
                    .field("parked")
                    .remedy("Use dead or all."))
            }
        }
    }
}

pub(super) async fn show(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((topic, group))): PageParams<Path<(Name, Name)>>,
    PageParams(Query(query)): PageParams<Query<GroupPageQuery>>,
) -> Response {
    let key = GroupKey::new(TopicKey::new(query.namespace.clone(), topic), group);
    let found = async {
        let (snapshot, track) = app.events.group(&key).await?.ok_or_else(|| no_such_group(&key))?;
        let only_dead = query.only_dead(&track.view)?;
        Ok::<_, Problem>((snapshot, track, only_dead))
    };
    let (snapshot, track, only_dead) = match found.await {
        Ok(found) => found,
        Err(problem) => return problem_page(&ctx, &problem),
    };
    let filter = ParkedEventFilter {
        group: key.clone(),
        dead: only_dead,
        partition: None,
        key: Some(query.key.clone()).filter(|key| !key.is_empty()),
        after: query.cursor.map(|cursor| EventId(cursor.min(i64::MAX as u64))),
        limit: PAGE + 1,
    };
    let parked_events = app.events.parked_events(&filter).await;
    let entries = app.queues.audit_entries(&key.topic.namespace).await;
    let (now, wall) = (app.runtime.now(), app.runtime.wall_ms());
    let target = format!("{}/{}", key.topic.name, key.name);
    let colors = MemberColors::of(&track.view);
    let content = html! {
        (head(&track, &ctx))
        @if let Some(message) = ctx.message().and_then(message_text) { (components::notice("good", html! { p { (message) } })) }
        @if let Some(secret) = ctx.secret() { (components::secret("Webhook signing secret.", secret)) }
        div #pause data-live {
            @if let Some(pause) = &track.view.paused {
                (components::paused(pause, "Members keep their partitions and finish events in progress.", wall))
            }
        }
        div #lock-holders data-live { @if let Some(view) = snapshot.topics.get(&key.topic) { (topic::lock_holders_card(view)) } }
        div #lag data-live { (lag_card(&track, now)) }
        (partitions_card(&track.view, &colors, &query))
        div #members data-live { (members(&track.view, &colors)) }
        div #parked data-live { (parked::list(&track.view, &filter, parked_events.as_deref(), &ctx, wall)) }
        div #settings .pair data-live { (settings(&track.view.settings)) (webhook_card(&track.view, &ctx)) }
        div #activity data-live { (audit::of(entries.as_deref(), |entry| matches!(audit::resource(entry), "group" | "dead_letter" | "webhook") && entry.target == target, wall)) }
        noscript { p { a href=(ctx.path) { "Refresh" } } }
    };
    page(&ctx, &format!("{} of {}", key.name, key.topic.name), "Events", content)
}

/// The text of a one-time message. Unknown words show nothing, because the cookie is not signed.
fn message_text(message: &str) -> Option<&'static str> {
    Some(match message {
        "new" => "Group created. Partitions are assigned when members join.",
        "pause" => "Paused. Members finish events in progress.",
        "resume" => "Resumed from the committed offsets.",
        "settings" => "Settings saved. They apply to new failures.",
        "reset" => "Offsets reset. Members reacquire their partitions; uncommitted work is rejected.",
        "replay" => "Replayed with all attempts restored. Events behind them follow in order.",
        "drop" => "Dropped. Events behind them follow in order.",
        "webhook" => "Webhook saved. The servers deliver the events of this group.",
        "webhook-delete" => "Webhook deleted. The committed offsets are kept.",
        "nothing" => "No matching dead letters.",
        "already" => "No change: already in that state.",
        _ => return None,
    })
}

fn head(track: &GroupHistory, ctx: &PageContext) -> Markup {
    let key = &track.view.key;
    let to = |action: &str| components::group_href(key, action);
    html! {
        div.head {
            div {
                p.crumb { a href="/topics" { "Events" } " / " (key.topic.namespace) " / " a href=(components::topic_href(&key.topic, "")) { (key.topic.name) } }
                div.title {
                    h1 { (key.name) }
                    div #state data-live data-announce=(topics::group_announcement(track)) { (topics::group_state(track)) }
                }
            }
            @if ctx.may(Permission::Admin, Some(&key.topic.namespace)) {
                div #actions .buttons data-live role="group" aria-label="Actions" {
                    @if track.view.paused.is_some() { a.button.main data-key="resume" data-confirm href=(to("resume")) { "Resume…" } }
                    @else { a.button data-key="pause" data-confirm href=(to("pause")) { "Pause…" } }
                    a.button data-key="reset" data-confirm href=(to("reset")) { "Reset…" }
                    a.button data-key="settings" data-confirm href=(to("settings")) { "Settings…" }
                    a.button data-key="delete" data-confirm href=(to("delete")) { "Delete…" }
                }
            }
        }
    }
}

fn lag_card(track: &GroupHistory, now: tenure::BootInstant) -> Markup {
    let (view, lag) = (&track.view, &track.lag);
    let held = view.partitions.iter().filter(|partition| partition.partition_lease.holder.is_some()).count();
    html! {
        section.card aria-labelledby="lagging" {
            header { h2 #lagging { "Lag" } }
            div.body {
                dl.facts.counts {
                    div { dt { "Lag (events)" } dd { (topics::lag_events(lag)) } }
                    div { dt { "Lag (age)" } dd { @if lag.ms == 0 { "–" } @else { (format::span(lag.ms)) } } }
                    div { dt { "Lagging partitions" } dd { (lag.partitions) span.soft.small { " of " (view.partitions.len()) } } }
                    div { dt { "Assigned partitions" } dd { (held) span.soft.small { " of " (view.partitions.len()) } } }
                    div { dt { "Members" } dd { (view.members.len()) } }
                    div { dt { "Parked" } dd { (format::number(view.parked_event_count)) } }
                    div { dt { "Dead letters" } dd { (format::number(view.dead_letter_count)) } }
                    div { dt { "Rebalanced partitions" } dd { (format::number(view.rebalanced_partition_count)) } }
                }
                (chart::lag(track, now))
            }
        }
    }
}

/// The partition assignment as a chart and as a table.
fn partitions_card(view: &GroupView, colors: &MemberColors<'_>, query: &GroupPageQuery) -> Markup {
    let here = (!query.find.is_empty() && !view.partitions.is_empty())
        .then(|| partition_for_key(&query.find, u32::try_from(view.partitions.len()).unwrap_or(u32::MAX)));
    let back = components::group_href(&view.key, "");
    html! {
        section #partitions .card aria-labelledby="assignment" {
            header {
                h2 #assignment { "Partition assignment" }
                form.filter method="get" action={ "/topics/" (components::escape(view.key.topic.name.as_str())) "/groups/" (components::escape(view.key.name.as_str())) "#partitions" } role="search" {
                    input type="hidden" name="namespace" value=(view.key.topic.namespace);
                    label.hidden for="find" { "Find the partition of a key" }
                    input #find type="search" name="find" value=(query.find) placeholder="Key";
                    button.button { "Find" }
                }
            }
            div #found data-live { @if let Some(partition) = here.and_then(|partition| view.partitions.get(partition as usize)) { (found(partition, colors, &query.find, view)) } }
            div #map .body data-live { (partition_assignment::chart(view, colors, here)) }
            div #by-partition data-live { (by_partition(view, colors, query.partitions == "all", &back)) }
        }
    }
}

fn found(partition: &PartitionView, colors: &MemberColors<'_>, key: &str, view: &GroupView) -> Markup {
    html! {
        div.body { p {
            "Key " code { (key) } " is in partition " span.strong { (partition.partition_lease.partition) } ", "
            @match colors.holder(partition) { Some(at) => { "assigned to " span.strong { (colors.members[at].name) } }, None => "unassigned" }
            @if partition.lag_events > 0 { "; lag " (format::number(partition.lag_events)) " events" } @else { "; up to date" } ". "
            a href={ (components::topic_href(&view.key.topic, "")) "&partition=" (partition.partition_lease.partition) "#events" } { "Recent events" }
            " · "
            a href={ (components::group_href(&view.key, "")) "&parked=all&key=" (components::escape(key)) "#parked" } { "Parked events" }
        } }
    }
}

/// A row per partition: the most lagging ones, unless all are requested.
fn by_partition(view: &GroupView, colors: &MemberColors<'_>, all: bool, back: &str) -> Markup {
    let mut partitions: Vec<_> = view.partitions.iter().collect();
    let whole = all || partitions.len() <= PARTITIONS;
    if !whole {
        partitions.sort_by_key(|partition| {
            (std::cmp::Reverse(partition.lag_events), partition.partition_lease.partition)
        });
        partitions.truncate(PARTITIONS);
    }
    html! {
        details #table open[all] {
            summary { @if whole { "Table view" } @else { "The " (PARTITIONS) " most lagging partitions" } }
            table.stack.figures {
                thead { tr {
                    th scope="col" { "Partition" } th scope="col" { "Member" } th.num scope="col" { "Committed offset" } th.num scope="col" { "End offset" }
                    th.num scope="col" { "Lag (events)" } th scope="col" { "Lag (age)" } th scope="col" { "Token" }
                } }
                tbody { @for partition in partitions { (partition_row(partition, colors)) } }
            }
            @if !whole { nav.pager aria-label="All partitions" { a.button.slim href={ (back) "&partitions=all#partitions" } { "All " (view.partitions.len()) " partitions" } } }
        }
    }
}

fn partition_row(partition: &PartitionView, colors: &MemberColors<'_>) -> Markup {
    let lease = &partition.partition_lease;
    html! {
        tr data-key=(format!("row-{}", lease.partition)) {
            th scope="row" { (lease.partition) }
            td data-label="Member" {
                @match colors.holder(partition) {
                    Some(at) => span.nowrap { (colors.mark(at)) " " (colors.members[at].name) },
                    None if lease.last_member.is_empty() => span.soft { "never assigned" },
                    None => span.soft { "unassigned, last " (lease.last_member) },
                }
            }
            td.num data-label="Committed offset" { span.token { (lease.committed_offset) } }
            td.num data-label="End offset" { span.token { (partition.end_offset) } }
            td.num data-label="Lag (events)" { (format::number(partition.lag_events)) @if !partition.lag_exact { "+" } }
            td.nowrap.none[partition.lag_events == 0] data-label="Lag (age)" { @if partition.lag_events == 0 { span.soft { "–" } } @else { (format::span(partition.lag_ms)) } }
            td.none[lease.token == tenure::Token::ZERO] data-label="Token" { @if lease.token == tenure::Token::ZERO { span.soft { "–" } } @else { span.token { (lease.token) } } }
        }
    }
}

fn members(view: &GroupView, colors: &MemberColors<'_>) -> Markup {
    let counts = partition_assignment::partition_counts(view, colors);
    let all = view.partitions.len().max(1);
    html! {
        section.card aria-labelledby="reading" {
            header { h2 #reading { "Members" } span.soft.small { (format::count(colors.members.len(), "member")) } }
            @if colors.members.is_empty() {
                p.empty {
                    @if view.webhook.is_some() { "No members. The servers join to deliver the webhook." }
                    @else { "No members. Published events accumulate as lag." }
                }
            } @else {
                table.stack {
                    thead { tr { th scope="col" { "Member" } th scope="col" { "Share of all partitions" } th scope="col" { "Partitions" } th.num scope="col" { "Lag (events)" } th scope="col" { "Lag (age)" } th scope="col" { "Session" } } }
                    tbody {
                        @for (at, member) in colors.members.iter().enumerate().take(MEMBERS) {
                            @let own: Vec<_> = view.partitions.iter().filter(|partition| colors.holder(partition) == Some(at)).collect();
                            @let lag: u64 = own.iter().map(|partition| partition.lag_events).sum();
                            @let exact = own.iter().all(|partition| partition.lag_exact);
                            @let oldest = own.iter().map(|partition| partition.lag_ms).max().unwrap_or_default();
                            tr data-key=(format!("member-{}", member.session)) {
                                th scope="row" { span.nowrap { (colors.mark(at)) " " (member.name) } }
                                td.wide data-label="Share of all partitions" {
                                    span.load {
                                        progress max=(all) value=(counts[at]) aria-label={ "Partitions of " (member.name) } {}
                                        span.small.nowrap { (format::count(counts[at], "partition")) }
                                    }
                                }
                                td.wide.details-cell.none[own.is_empty()] data-label="Partitions" { span.small { (partition_assignment::ranges(own.iter().map(|partition| partition.partition_lease.partition), 12)) } }
                                td.num data-label="Lag (events)" { (format::number(lag)) @if !exact { "+" } }
                                td.nowrap.none[oldest == 0] data-label="Lag (age)" { @if oldest == 0 { span.soft { "–" } } @else { (format::span(oldest)) } }
                                td data-label="Session" { code { (member.session.short()) } }
                            }
                        }
                    }
                }
                @if colors.members.len() > MEMBERS { p.empty { (colors.members.len() - MEMBERS) " more." } }
            }
        }
    }
}

fn settings(settings: &GroupSettings) -> Markup {
    html! {
        section.card aria-labelledby="set" {
            header { h2 #set { "Settings" } }
            div.body {
                dl.facts {
                    div { dt { "Maximum attempts" } dd { (settings.max_attempts) ", then dead letter" } }
                    div { dt { "Initial backoff" } dd { (format::duration(settings.backoff.initial_ms)) } }
                    div { dt { "Maximum backoff" } dd { (format::duration(settings.backoff.max_ms)) } }
                }
            }
        }
    }
}

fn webhook_card(view: &GroupView, ctx: &PageContext) -> Markup {
    let key = &view.key;
    html! {
        section.card aria-labelledby="webhook" {
            header {
                h2 #webhook { "Webhook" }
                @if ctx.may(Permission::Admin, Some(&key.topic.namespace)) {
                    div.buttons role="group" aria-label="Webhook actions" {
                        a.button.slim data-key="webhook" data-confirm href=(components::group_href(key, "webhook")) { @if view.webhook.is_some() { "Edit webhook…" } @else { "Add webhook…" } }
                        @if view.webhook.is_some() { a.button.slim data-key="webhook-delete" data-confirm href=(components::group_href(key, "webhook-delete")) { "Delete webhook…" } }
                    }
                }
            }
            div.body {
                @match &view.webhook {
                    Some(webhook) => dl.facts {
                        div { dt { "URL" } dd { code { (webhook.redacted_url()) } } }
                        div { dt { "Timeout" } dd { (format::duration(webhook.timeout_ms)) } }
                        div { dt { "Signing secret" } dd { "set" } }
                    },
                    None => p.soft { "Members consume this group. Add a webhook to deliver its events from the servers, signed." },
                }
            }
        }
    }
}
