//! Replay and drop of dead letters, with confirmation: of one event, or of all that existed when the
//! confirmation was shown.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{
    DeadLetterAction, ErrorKind, EventId, GroupKey, ParkedEvent, ParkedEventFilter, StoreError, TopicKey,
};

use super::components::{self, ConfirmDialog};
use super::election::with_timeout;
use super::extract::{FormBody, PageParams};
use super::format;
use super::layout::{PageContext, problem_page};
use super::parked::{find, not_parked};
use super::queues::{NamespaceQuery, no_such_action};
use crate::App;
use crate::api::{AuditActor, order_dead};
use crate::problem::Problem;

/// Number of events per read, and maximum number of reads. A bulk action covers at most their product; the
/// operator repeats it for the rest.
const BATCH: (u32, usize) = (100, 20);

const ACTIONS: &str = "replay or drop";

fn parse_action(action: &str) -> Result<DeadLetterAction, Problem> {
    match action {
        "replay" => Ok(DeadLetterAction::Replay),
        "drop" => Ok(DeadLetterAction::Drop),
        other => Err(no_such_action(other, "a dead letter", ACTIONS)),
    }
}

/// The effect of the action, as a sentence fragment.
fn effect(order: DeadLetterAction, behind: u64) -> Markup {
    html! {
        @match order {
            DeadLetterAction::Replay => "retried at once with all attempts restored",
            DeadLetterAction::Drop => "dropped for this group, as if processed",
        }
        @if behind > 0 { "; the " (format::count(behind as usize, "event")) @if behind == 1 { " behind it follows" } @else { " behind it follow" } " in order" }
        "."
    }
}

pub(super) async fn confirm(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((topic, group, event, action))): PageParams<Path<(Name, Name, u64, String)>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
) -> Response {
    let key = GroupKey::new(TopicKey::new(at.namespace, topic), group);
    let id = EventId(event.min(i64::MAX as u64));
    let dialog = async {
        let order = parse_action(&action)?;
        let set = find(&app, &key, id).await?;
        if !set.parked.dead {
            return Err(not_dead(&key, id));
        }
        let (title, button, danger) = match order {
            DeadLetterAction::Replay => (format!("Replay event {id}?"), "Replay", false),
            DeadLetterAction::Drop => (format!("Drop event {id}?"), "Drop", true),
        };
        let body = html! {
            p {
                "The event " @if !set.parked.event.event_type.is_empty() { "(" span.strong { (set.parked.event.event_type) } ") " } "failed "
                (format::count(set.parked.attempts as usize, "time")) ". It is " (effect(order, set.parked.waiting_behind_count))
            }
            pre.error-text { (set.parked.last_error) }
        };
        let (to, back) = (components::parked_href(&key, id, &action), components::group_href(&key, ""));
        Ok(ConfirmDialog { title, to, back, button, danger, body })
    };
    match dialog.await {
        Ok(dialog) => dialog.page(&ctx, "Events"),
        Err(problem) => problem_page(&ctx, &problem),
    }
}

fn not_dead(key: &GroupKey, id: EventId) -> Problem {
    let detail = format!("event {id} is parked in {key} but not dead; it is retried automatically");
    Problem::new(http::StatusCode::CONFLICT, "state-changed", detail)
        .remedy("Wait for the retry, or pause the group.")
}

/// A form without fields.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EmptyForm {}

pub(super) async fn apply(
    State(app): State<App>,
    ctx: PageContext,
    by: AuditActor,
    PageParams(Path((topic, group, event, action))): PageParams<Path<(Name, Name, u64, String)>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
    FormBody(EmptyForm {}): FormBody<EmptyForm>,
) -> Response {
    let key = GroupKey::new(TopicKey::new(at.namespace, topic), group);
    let id = EventId(event.min(i64::MAX as u64));
    let message = async {
        let order = parse_action(&action)?;
        let applied = !order_dead(&app, &by, &key, vec![id], order).await?.is_empty();
        if !applied && with_timeout(app.store.group(&key)).await?.is_none() {
            return Err(not_parked(&key, id));
        }
        changed(&app).await;
        Ok(if applied { action.as_str() } else { "nothing" })
    };
    match message.await {
        Ok(message) => {
            ctx.redirect_with_message(&format!("{}#parked", components::group_href(&key, "")), message)
        }
        Err(problem) => problem_page(&ctx, &problem),
    }
}

/// Refresh the snapshots, so that the next page shows the change.
async fn changed(app: &App) {
    app.events.invalidate().await;
    app.queues.invalidate().await;
}

/// The query of the confirmation of a bulk action.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeadLetterActionQuery {
    #[serde(default = "Name::default_namespace")]
    namespace: Name,
    #[serde(default)]
    key: String,
}

/// The form of a bulk action: selects the dead letters that existed when the confirmation was shown.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct DeadLetterActionForm {
    key: String,
    /// Upper bound of the last failure, by the store's clock.
    max_failed_at_ms: i64,
    /// Upper bound of the event id.
    max_event_id: u64,
}

fn filter(group: &GroupKey, key: &str) -> ParkedEventFilter {
    let key = Some(key.to_owned()).filter(|key| !key.is_empty());
    ParkedEventFilter { group: group.clone(), dead: true, partition: None, key, after: None, limit: BATCH.0 }
}

/// Visit the dead letters in batches. Returns whether all were visited.
async fn for_each_dead_letter(
    app: &App,
    mut filter: ParkedEventFilter,
    mut each: impl FnMut(&ParkedEvent),
) -> Result<bool, Problem> {
    for _ in 0..BATCH.1 {
        let batch = with_timeout(app.store.parked_events(&filter)).await?;
        batch.iter().for_each(&mut each);
        // A batch of large events may be shorter than the limit, so only an empty one is the end.
        let Some(last) = batch.iter().map(|parked| parked.event.id).max() else { return Ok(true) };
        filter.after = Some(last);
    }
    Ok(false)
}

pub(super) async fn confirm_all(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((topic, group, action))): PageParams<Path<(Name, Name, String)>>,
    PageParams(Query(query)): PageParams<Query<DeadLetterActionQuery>>,
) -> Response {
    let key = GroupKey::new(TopicKey::new(query.namespace, topic), group);
    let dialog = async {
        let order = parse_action(&action)?;
        super::group_actions::find(&app, &key).await?;
        let (mut count, mut behind, mut selection) =
            (0, 0, DeadLetterActionForm { key: query.key.clone(), ..DeadLetterActionForm::default() });
        let all_visited = for_each_dead_letter(&app, filter(&key, &query.key), |parked| {
            count += 1;
            behind += parked.waiting_behind_count;
            selection.max_failed_at_ms = selection.max_failed_at_ms.max(parked.last_failed_at_ms);
            selection.max_event_id = selection.max_event_id.max(parked.event.id.0);
        })
        .await?;
        let events = format::count(count, "dead letter");
        let (title, button, danger) = match order {
            DeadLetterAction::Replay => (format!("Replay {events}?"), "Replay", false),
            DeadLetterAction::Drop => (format!("Drop {events}?"), "Drop", true),
        };
        let body = html! {
            p { @if count == 1 { "It is " } @else { "Each is " } (effect(order, behind)) @if !query.key.is_empty() { " Only events with key " code { (query.key) } " are affected." } }
            p.soft { @if !all_visited { "More remain; repeat the action for them. " } "Later dead letters are not affected." }
            input type="hidden" name="key" value=(selection.key);
            input type="hidden" name="max_failed_at_ms" value=(selection.max_failed_at_ms);
            input type="hidden" name="max_event_id" value=(selection.max_event_id);
        };
        let (to, back) = (
            components::group_href(&key, &format!("dead-letters/{action}")),
            components::group_href(&key, ""),
        );
        Ok(ConfirmDialog { title, to, back, button, danger, body })
    };
    match dialog.await {
        Ok(dialog) => dialog.page(&ctx, "Events"),
        Err(problem) => problem_page(&ctx, &problem),
    }
}

pub(super) async fn apply_all(
    State(app): State<App>,
    ctx: PageContext,
    by: AuditActor,
    PageParams(Path((topic, group, action))): PageParams<Path<(Name, Name, String)>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
    FormBody(selection): FormBody<DeadLetterActionForm>,
) -> Response {
    let key = GroupKey::new(TopicKey::new(at.namespace, topic), group);
    let back = components::group_href(&key, "");
    let task = async {
        let order = parse_action(&action)?;
        super::group_actions::find(&app, &key).await?;
        // Spawned, so that it finishes even if the browser disconnects.
        let app = app.clone();
        let task = tokio::spawn(async move {
            let result = apply_to_all(&app, &by, &key, &selection, order).await;
            changed(&app).await;
            result
        });
        task.await.unwrap_or_else(|_| {
            Err(StoreError::new(ErrorKind::Other, "bulk action on dead letters was interrupted").into())
        })
    };
    match task.await {
        Ok(0) => ctx.redirect_with_message(&format!("{back}#parked"), "nothing"),
        Ok(_) => ctx.redirect_with_message(&format!("{back}#parked"), &action),
        Err(problem) => problem_page(&ctx, &problem),
    }
}

async fn apply_to_all(
    app: &App,
    by: &AuditActor,
    key: &GroupKey,
    selection: &DeadLetterActionForm,
    order: DeadLetterAction,
) -> Result<usize, Problem> {
    let mut ids = Vec::new();
    for_each_dead_letter(app, filter(key, &selection.key), |parked| {
        if parked.last_failed_at_ms <= selection.max_failed_at_ms
            && parked.event.id.0 <= selection.max_event_id
        {
            ids.push(parked.event.id);
        }
    })
    .await?;
    let mut count = 0;
    for some in ids.chunks(BATCH.0 as usize) {
        count += order_dead(app, by, key, some.to_vec(), order).await?.len();
    }
    Ok(count)
}
