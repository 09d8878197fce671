//! Offset reset of a consumer group in three steps: choose the new offsets, preview the changes by partition,
//! apply them.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{GroupKey, GroupView, OffsetChange, StartOffset, TopicKey, TopicView};
use tenure_core::rules::event::validate_start_offset;

use super::components;
use super::election::with_timeout;
use super::extract::{FormBody, PageParams};
use super::format;
use super::group_actions::{find, record};
use super::layout::{PageContext, page, problem_page};
use super::queue_actions::{invalid_field, parse_duration};
use super::queues::NamespaceQuery;
use super::topic_actions::number;
use crate::App;
use crate::api::reset_detail;
use crate::problem::Problem;

/// Maximum number of partitions in the preview.
const SHOWN: usize = 64;

/// The new offsets: the query of the preview and the form of the action.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ResetForm {
    /// Part of the query; the access middleware checks it.
    namespace: Option<Name>,
    to: String,
    offset: String,
    published_at_ms: String,
    age: String,
    partition: String,
}

impl ResetForm {
    /// Parse the new offset and the partition; `None` means all partitions.
    fn parse(&self, wall: i64) -> Result<(StartOffset, Option<u32>), Problem> {
        let to = match self.to.as_str() {
            "earliest" => StartOffset::Earliest,
            "latest" => StartOffset::Latest,
            "offset" => StartOffset::Offset(number("offset", &self.offset)?),
            // Convert the age to an instant, so that preview and action use the same offset.
            "time" if self.published_at_ms.is_empty() => {
                let age = i64::try_from(parse_duration("age", &self.age)?).unwrap_or(i64::MAX);
                StartOffset::PublishedAtMs(wall.saturating_sub(age).max(0))
            }
            "time" => StartOffset::PublishedAtMs(number("published_at_ms", &self.published_at_ms)?),
            other => return Err(invalid_field("to", format!("Invalid offset: {other:?}"))),
        };
        validate_start_offset(&to).map_err(|error| invalid_field("to", error.to_string()))?;
        let partition = Some(self.partition.trim()).filter(|text| !text.is_empty());
        Ok((to, partition.map(|text| number("partition", text)).transpose()?))
    }
}

/// A description of the new offset.
fn describe(to: StartOffset) -> String {
    match to {
        StartOffset::Earliest => "the earliest retained event".into(),
        StartOffset::Latest => "the end, so that only new events are read".into(),
        StartOffset::Offset(offset) => format!("offset {offset}"),
        StartOffset::PublishedAtMs(at_ms) => format!("the first event since {}", format::utc(at_ms)),
    }
}

pub(super) async fn confirm(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((topic, group))): PageParams<Path<(Name, Name)>>,
    PageParams(Query(form)): PageParams<Query<ResetForm>>,
) -> Response {
    let namespace = form.namespace.clone().unwrap_or_else(Name::default_namespace);
    let key = GroupKey::new(TopicKey::new(namespace, topic), group);
    let shown = async {
        let view = find(&app, &key).await?;
        if form.to.is_empty() {
            return Ok(html! { section.card.narrow { div.body { (offsets_form(&view)) } } });
        }
        let (to, partition) = form.parse(app.runtime.wall_ms())?;
        let moved = with_timeout(app.store.reset_group(&key, to, partition, true)).await?;
        let topic = with_timeout(app.store.topic(&key.topic)).await?;
        Ok(preview(&view, topic.as_ref(), to, partition, &moved))
    };
    match shown.await {
        Ok(content) => page(&ctx, &format!("Reset {}", key.name), "Events", content),
        Err(problem) => problem_page(&ctx, &problem),
    }
}

/// The form for the new offsets. It leads to the preview and changes nothing.
fn offsets_form(view: &GroupView) -> Markup {
    let key = &view.key;
    let choices = [
        ("earliest", "Earliest", "read all retained events again"),
        ("latest", "Latest", "skip all existing events"),
    ];
    html! {
        form #confirm .confirm method="get" action={ "/topics/" (components::escape(key.topic.name.as_str())) "/groups/" (components::escape(key.name.as_str())) "/reset" } {
            h1 #confirm-title { "Reset the offsets of " (key.name) }
            p { "Choose the new offsets. The next page previews the change." }
            input type="hidden" name="namespace" value=(key.topic.namespace);
            fieldset.field {
                legend { "New offset" }
                div.choices {
                    @for (at, (value, name, means)) in choices.into_iter().enumerate() {
                        label { input type="radio" name="to" required value=(value) checked[at == 0]; span.choice-text { span.strong { (name) } span.soft.small { (means) } } }
                    }
                    label {
                        input type="radio" name="to" required value="time"; span.choice-text { span.strong { "By time" } span.soft.small { "events published since" } }
                        span.meta { input name="age" value="1h" size="7" autocomplete="off" aria-label="Age"; " ago" }
                    }
                    label {
                        input type="radio" name="to" required value="offset"; span.choice-text { span.strong { "By offset" } span.soft.small { "see the partition table" } }
                        span.meta { input name="offset" value="0" size="9" inputmode="numeric" autocomplete="off" aria-label="Offset"; }
                    }
                }
            }
            div.field { label for="partition" { "Partition" } input #partition name="partition" type="number" min="0" max=(view.partitions.len().saturating_sub(1)); small { "Empty: all." } }
            div.buttons {
                button.button.main { "Preview" }
                a.button data-cancel href=(components::group_href(key, "")) { "Cancel" }
            }
        }
    }
}

/// The preview of a reset. It changes nothing.
fn preview(
    view: &GroupView,
    topic: Option<&TopicView>,
    to: StartOffset,
    partition: Option<u32>,
    moved: &[OffsetChange],
) -> Markup {
    let key = &view.key;
    let back = moved.iter().filter(|one| one.to_offset < one.from_offset).count();
    let ahead = moved.iter().filter(|one| one.to_offset > one.from_offset).count();
    let shown: Vec<_> = moved.iter().filter(|one| one.to_offset != one.from_offset).collect();
    html! {
        div.head { div {
            p.crumb { a href="/topics" { "Events" } " / " (key.topic.namespace) " / " a href=(components::topic_href(&key.topic, "")) { (key.topic.name) } " / " a href=(components::group_href(key, "")) { (key.name) } }
            h1 { "Preview" }
            p { "To " (describe(to)) ", " @match partition { Some(partition) => { "partition " (partition) " only" }, None => "all partitions" } ". Nothing has changed yet." }
        } }
        div.tiles {
            dl.card.tile { dt { "Move back" } dd.big { (format::count(back, "partition")) } dd.note { "events are read again" } }
            dl.card.tile { dt { "Move forward" } dd.big { (format::count(ahead, "partition")) } dd.note { "events are skipped" } }
            dl.card.tile { dt { "Unchanged" } dd.big { (format::count(moved.len() - back - ahead, "partition")) } dd.note { @if let Some(topic) = topic { "topic with about " (format::number(topic.event_count)) " events" } } }
        }
        @if !view.members.is_empty() || view.parked_event_count + view.dead_letter_count > 0 {
            (components::notice("warn", html! {
                @if !view.members.is_empty() { p { (format::count(view.members.len(), "member")) @if view.members.len() == 1 { " reacquires its partitions." } @else { " reacquire their partitions." } " Uncommitted work is rejected." } }
                @if view.parked_event_count + view.dead_letter_count > 0 { p { "Of " (format::count((view.parked_event_count + view.dead_letter_count) as usize, "parked event")) ", those after the new offsets are deleted because they are read again." } }
            }))
        }
        form.confirm method="post" action=(components::group_href(key, "reset")) {
            (hidden(to, partition))
            div.buttons {
                button.button.danger data-key="do" { "Reset offsets" }
                a.button href=(components::group_href(key, "")) { "Cancel" }
            }
        }
        section.card aria-labelledby="by-partition" {
            header { h2 #by-partition { "By partition" } @if shown.len() > SHOWN { span.soft.small { "first " (SHOWN) " of " (shown.len()) " changes" } } }
            @if shown.is_empty() { p.empty { "No partition changes." } }
            @else {
                table.stack.figures {
                    thead { tr { th scope="col" { "Partition" } th.num scope="col" { "From" } th.num scope="col" { "To" } th scope="col" { "Direction" } } }
                    tbody {
                        @for one in shown.iter().take(SHOWN) {
                            tr data-key=(format!("moved-{}", one.partition)) {
                                th scope="row" { (one.partition) }
                                td.num data-label="From" { span.token { (one.from_offset) } }
                                td.num data-label="To" { span.token { (one.to_offset) } }
                                td data-label="Direction" { @if one.to_offset < one.from_offset { "← back" } @else { "forward →" } }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn hidden(to: StartOffset, partition: Option<u32>) -> Markup {
    let (word, field) = match to {
        StartOffset::Earliest => ("earliest", None),
        StartOffset::Latest => ("latest", None),
        StartOffset::Offset(offset) => ("offset", Some(("offset", offset.to_string()))),
        StartOffset::PublishedAtMs(at_ms) => ("time", Some(("published_at_ms", at_ms.to_string()))),
    };
    html! {
        input type="hidden" name="to" value=(word);
        @if let Some((name, value)) = field { input type="hidden" name=(name) value=(value); }
        @if let Some(partition) = partition { input type="hidden" name="partition" value=(partition); }
    }
}

pub(super) async fn apply(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((topic, group))): PageParams<Path<(Name, Name)>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
    FormBody(form): FormBody<ResetForm>,
) -> Response {
    let key = GroupKey::new(TopicKey::new(at.namespace, topic), group);
    let message = async {
        find(&app, &key).await?;
        let (to, partition) = form.parse(app.runtime.wall_ms())?;
        let moved = with_timeout(app.store.reset_group(&key, to, partition, false)).await?;
        if moved.is_empty() {
            return Ok("nothing");
        }
        record(&app, &ctx, "group.reset", &key, reset_detail(&to, partition)).await;
        Ok("reset")
    };
    match message.await {
        Ok(message) => ctx.redirect_with_message(&components::group_href(&key, ""), message),
        Err(problem) => problem_page(&ctx, &problem),
    }
}
