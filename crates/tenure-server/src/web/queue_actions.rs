//! Actions on a queue, with confirmation: pause, resume, settings, and bulk cancel or retry of tasks.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tenure::Name;
use tenure::port::{
    AssignmentMode, BrokerFallback, ErrorKind, Pause, QueueKey, QueueSettings, QueueView, RateLimit,
    StoreError, TaskAction, TaskId, TaskState,
};

use super::components::{self, ConfirmDialog};
use super::election::with_timeout;
use super::extract::{FormBody, PageParams};
use super::format;
use super::layout::{PageContext, problem_page};
use super::queue::{QueuePageQuery, TaskListFilter, unknown};
use super::queues::{NamespaceQuery, no_such_action};
use crate::App;
use crate::api::{CANCELLED, RETRIED};
use crate::problem::Problem;

/// Number of tasks per store call, and maximum number of calls per bulk action.
const BATCH: (u32, u32) = (500, 40);

/// Maximum number of batches that are counted for the confirmation of a bulk action.
const COUNTED: u32 = 4;

const ACTIONS: &str = "pause, resume, settings, cancel or retry";

pub(super) async fn confirm(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((queue, action))): PageParams<Path<(Name, String)>>,
    PageParams(Query(query)): PageParams<Query<QueuePageQuery>>,
) -> Response {
    let key = QueueKey::new(query.namespace.clone(), queue);
    let dialog = async {
        let view = with_timeout(app.store.queue(&key)).await?.ok_or_else(|| unknown(&key))?;
        confirmation(&app, &view, &action, &TaskListFilter::of(&query.state, &query.kind, &query.worker)?)
            .await
    };
    match dialog.await {
        Ok(dialog) => dialog.page(&ctx, "Queues"),
        Err(problem) => problem_page(&ctx, &problem),
    }
}

async fn confirmation(
    app: &App,
    view: &QueueView,
    action: &str,
    selection: &TaskListFilter,
) -> Result<ConfirmDialog, Problem> {
    let key = &view.key;
    let (to, back) = (components::queue_href(key, action), components::queue_href(key, ""));
    let dialog =
        |title: String, button, danger, body| ConfirmDialog { title, to, back, button, danger, body };
    Ok(match action {
        "pause" => dialog(
            format!("Pause {}?", key.name),
            "Pause",
            true,
            html! {
                p { "No tasks are assigned until the queue is resumed. Claimed tasks can finish." }
                (components::reason_field())
            },
        ),
        "resume" => dialog(
            format!("Resume {}?", key.name),
            "Resume",
            false,
            html! {
                p {
                    @if let Some(pause) = &view.paused { "Paused by " span.strong { (pause.paused_by) } @if !pause.reason.is_empty() { ": “" (pause.reason) "”" } ". " }
                    "Workers claim its tasks again at once."
                }
            },
        ),
        "settings" => dialog(format!("Settings of {}", key.name), "Save", false, form(&view.settings)),
        "cancel" => bulk_action(app, view, selection, TaskAction::Cancel).await?.confirmation(dialog),
        "retry" => bulk_action(app, view, selection, TaskAction::Retry).await?.confirmation(dialog),
        other => return Err(no_such_action(other, "a queue", ACTIONS)),
    })
}

/// The tasks of a bulk action.
struct BulkTaskAction {
    order: TaskAction,
    states: Vec<TaskState>,
    selection: TaskListFilter,
    /// Number of tasks; a lower bound if `more` is set.
    count: u64,
    more: bool,
    /// Upper bound of the task ids: later tasks are not affected.
    cursor: u64,
}

async fn bulk_action(
    app: &App,
    view: &QueueView,
    selection: &TaskListFilter,
    order: TaskAction,
) -> Result<BulkTaskAction, Problem> {
    let states = affected_states(order, selection.state)?;
    let newest = with_timeout(app.store.tasks(&selection.filter(&view.key, states.clone(), None, 1))).await?;
    let cursor = newest.first().map_or(0, |task| task.id.0 + 1);
    let (count, more) = match selection.kind.is_none() && selection.worker.is_none() {
        true => (states.iter().map(|state| view.count(*state)).sum(), false),
        false => count(app, &view.key, selection, &states, cursor).await?,
    };
    Ok(BulkTaskAction { order, states, selection: selection.clone(), count, more, cursor })
}

/// Count the tasks of a filter, up to a limit; the flag tells whether more exist. The store has counts by
/// state only.
async fn count(
    app: &App,
    key: &QueueKey,
    selection: &TaskListFilter,
    states: &[TaskState],
    before: u64,
) -> Result<(u64, bool), Problem> {
    let (mut count, mut before) = (0, Some(TaskId(before)));
    for _ in 0..COUNTED {
        let batch =
            with_timeout(app.store.tasks(&selection.filter(key, states.to_vec(), before, BATCH.0))).await?;
        count += batch.len() as u64;
        if batch.len() < BATCH.0 as usize {
            return Ok((count, false));
        }
        before = batch.last().map(|task| task.id);
    }
    Ok((count, true))
}

/// The states to which a bulk action applies.
fn affected_states(order: TaskAction, only: Option<TaskState>) -> Result<Vec<TaskState>, Problem> {
    let (all, word): (&[TaskState], _) = match order {
        TaskAction::Cancel => (&CANCELLED, "cancelled"),
        TaskAction::Retry => (&RETRIED, "retried"),
    };
    match only {
        // Scheduled tasks are retried only if the operator selects that state.
        None => {
            Ok(all.iter().copied().filter(|state| order == TaskAction::Cancel || state.is_final()).collect())
        }
        Some(state) if all.contains(&state) => Ok(vec![state]),
        Some(state) => {
            let detail = format!("A task in state {} cannot be {word}.", state.as_str());
            Err(Problem::new(StatusCode::CONFLICT, "state-changed", detail).remedy("Choose another state."))
        }
    }
}

impl BulkTaskAction {
    fn confirmation(
        &self,
        dialog: impl FnOnce(String, &'static str, bool, Markup) -> ConfirmDialog,
    ) -> ConfirmDialog {
        let words: Vec<_> = self.states.iter().map(|state| state.as_str()).collect();
        let how_many = match self.count {
            1 if !self.more => "One task".to_owned(),
            count => format!("{}{} tasks", if self.more { "More than " } else { "" }, format::number(count)),
        };
        let many = if how_many == "One task" { "one task".to_owned() } else { how_many.to_lowercase() };
        let about = html! {
            p {
                span.strong { (how_many) } " in state " (words.join(", "))
                @if let Some(kind) = &self.selection.kind { ", kind " span.strong { (kind) } }
                @if let Some(worker) = &self.selection.worker { ", worker " span.strong { (worker) } }
                @match self.order {
                    TaskAction::Cancel => ": they and all tasks that depend on them are cancelled. Workers that run one are notified; their results are rejected. ",
                    TaskAction::Retry => ": each is retried at once, with all attempts restored. ",
                }
                "Tasks submitted later are not affected."
            }
            input type="hidden" name="cursor" value=(self.cursor);
            @if let Some(state) = self.selection.state { input type="hidden" name="state" value=(state.as_str()); }
            @if let Some(kind) = &self.selection.kind { input type="hidden" name="kind" value=(kind); }
            @if let Some(worker) = &self.selection.worker { input type="hidden" name="worker" value=(worker); }
        };
        match self.order {
            TaskAction::Cancel => dialog(format!("Cancel {many}?"), "Cancel tasks", true, about),
            TaskAction::Retry => dialog(format!("Retry {many}?"), "Retry", false, about),
        }
    }
}

fn form(settings: &QueueSettings) -> Markup {
    let number = |n: Option<u32>| n.map(|n| n.to_string()).unwrap_or_default();
    let text = |id: &str, label: &str, value: String, help: &str| {
        html! { div.field { label for=(id) { (label) } input id=(id) name=(id) value=(value) autocomplete="off"; small { (help) } } }
    };
    html! {
        input type="hidden" name="expected_digest" value=(digest(settings));
        (mode_field(settings.mode, settings.fallback))
        div.across {
            (text("rate", "Rate limit", number(settings.rate.map(|rate| rate.count)), "Empty: no limit."))
            (text("per", "Rate period", settings.rate.map_or_else(|| "1s".into(), |rate| format::duration(rate.per_ms)), "For example 1s, 5m, 24h."))
            (text("max_claimed", "Concurrency limit", number(settings.max_claimed), "Empty: no limit."))
            (text("preference_window", "Preference window", format::duration(settings.preference_window_ms), "After that any worker may claim."))
            (text("retention", "Retention of finished tasks", format::duration(settings.retention_ms), "Completed and cancelled tasks."))
            (text("dead_retention", "Retention of dead tasks", format::duration(settings.dead_retention_ms), ""))
        }
        div.checkboxes { label { input type="checkbox" name="require_approval" value="on" checked[settings.require_approval]; "Require approval of workers" } }
    }
}

/// The field for the assignment mode.
pub(super) fn mode_field(mode: AssignmentMode, fallback: BrokerFallback) -> Markup {
    let choices = [
        (
            "distributed",
            AssignmentMode::Distributed,
            BrokerFallback::None,
            "Distributed",
            "any process claims, nearly in order",
        ),
        (
            "exclusive",
            AssignmentMode::Exclusive,
            BrokerFallback::None,
            "Exclusive",
            "the broker assigns, in strict order",
        ),
        (
            "fallback",
            AssignmentMode::Exclusive,
            BrokerFallback::Distributed,
            "Exclusive, with distributed fallback",
            "while the broker is unreachable",
        ),
    ];
    html! {
        fieldset.field {
            legend { "Assignment mode" }
            div.choices {
                @for (value, m, f, name, means) in choices {
                    label {
                        input type="radio" name="mode" required value=(value) checked[m == mode && (m == AssignmentMode::Distributed || f == fallback)];
                        span.choice-text { span.strong { (name) } span.soft.small { (means) } }
                    }
                }
            }
        }
    }
}

/// Parse the field for the assignment mode.
pub(super) fn parse_mode(mode: &str) -> Result<(AssignmentMode, BrokerFallback), Problem> {
    match mode {
        "distributed" => Ok((AssignmentMode::Distributed, BrokerFallback::None)),
        "exclusive" => Ok((AssignmentMode::Exclusive, BrokerFallback::None)),
        "fallback" => Ok((AssignmentMode::Exclusive, BrokerFallback::Distributed)),
        other => Err(invalid_field("mode", format!("Invalid mode: {other:?}"))),
    }
}

/// The problem: invalid form field.
pub(super) fn invalid_field(field: &str, detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-value", detail)
        .field(field)
        .remedy("Go back and correct the form.")
}

/// Parse the duration of a form field.
pub(super) fn parse_duration(field: &str, text: &str) -> Result<u64, Problem> {
    format::milliseconds(text).ok_or_else(|| {
        invalid_field(
            field,
            format!("{field}: invalid duration {text:?}; use a number and ms, s, m, h or d, such as 90s"),
        )
    })
}

/// A short digest of settings, to detect changes between loading and saving a form.
pub(super) fn digest(settings: &impl Serialize) -> String {
    let bytes = serde_json::to_vec(settings).unwrap_or_default();
    Sha256::digest(bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The form of an action.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QueueActionForm {
    #[serde(default)]
    reason: String,
    #[serde(default)]
    cursor: u64,
    #[serde(default)]
    state: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    worker: String,
    #[serde(default)]
    expected_digest: String,
    #[serde(default)]
    mode: String,
    #[serde(default)]
    rate: String,
    #[serde(default)]
    per: String,
    #[serde(default)]
    max_claimed: String,
    #[serde(default)]
    preference_window: String,
    #[serde(default)]
    retention: String,
    #[serde(default)]
    dead_retention: String,
    require_approval: Option<String>,
}

impl QueueActionForm {
    fn settings(&self) -> Result<QueueSettings, Problem> {
        let (mode, fallback) = parse_mode(&self.mode)?;
        let number = |field: &str, text: &str| match text.trim() {
            "" => Ok(None),
            text => text
                .parse::<u32>()
                .map(Some)
                .map_err(|_| invalid_field(field, format!("{field}: invalid number {text:?}"))),
        };
        let count = number("rate", &self.rate)?;
        let rate = count
            .map(|count| Ok::<_, Problem>(RateLimit { count, per_ms: parse_duration("per", &self.per)? }));
        Ok(QueueSettings {
            mode,
            fallback,
            require_approval: self.require_approval.is_some(),
            rate: rate.transpose()?,
            max_claimed: number("max_claimed", &self.max_claimed)?,
            preference_window_ms: parse_duration("preference_window", &self.preference_window)?,
            retention_ms: parse_duration("retention", &self.retention)?,
            dead_retention_ms: parse_duration("dead_retention", &self.dead_retention)?,
        })
    }
}

pub(super) async fn apply(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((queue, action))): PageParams<Path<(Name, String)>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
    FormBody(form): FormBody<QueueActionForm>,
) -> Response {
    let key = QueueKey::new(at.namespace, queue);
    match perform(&app, &ctx, &key, &action, &form).await {
        Ok((message, selection)) => ctx.redirect_with_message(
            &format!("{}{}", components::queue_href(&key, ""), selection.query()),
            message,
        ),
        Err(problem) => problem_page(&ctx, &problem),
    }
}

async fn perform(
    app: &App,
    ctx: &PageContext,
    key: &QueueKey,
    action: &str,
    form: &QueueActionForm,
) -> Result<(&'static str, TaskListFilter), Problem> {
    let view = with_timeout(app.store.queue(key)).await?.ok_or_else(|| unknown(key))?;
    let (message, detail) = match action {
        "pause" | "resume" => {
            let reason = form.reason.trim().to_owned();
            crate::api::validate_display_text("reason", &reason)?;
            let pause = Pause {
                paused_by: ctx.name().into(),
                reason: reason.clone(),
                paused_at_ms: app.runtime.wall_ms(),
            };
            let pause = (action == "pause").then_some(pause);
            let set = app.store.set_queue_paused(&key.namespace, Some(&key.name), pause.as_ref());
            match (with_timeout(set).await?, action) {
                (false, _) => ("already", reason),
                (true, "pause") => ("pause", reason),
                (true, _) => ("resume", reason),
            }
        }
        "settings" => {
            if form.expected_digest != digest(&view.settings) {
                let detail = format!("{key} changed since you loaded the form; nothing was saved.");
                return Err(Problem::new(StatusCode::CONFLICT, "settings-changed", detail)
                    .remedy("Reload the page and try again."));
            }
            let settings = form.settings()?;
            tenure_core::rules::work::validate_queue(&settings)
                .map_err(|error| invalid_field("settings", error.to_string()))?;
            if settings == view.settings {
                ("already", String::new())
            } else {
                with_timeout(app.store.set_queue(key, &settings)).await?;
                ("settings", changes(&view.settings, &settings))
            }
        }
        "cancel" => return apply_bulk(app, ctx, key, form, TaskAction::Cancel).await,
        "retry" => return apply_bulk(app, ctx, key, form, TaskAction::Retry).await,
        other => return Err(no_such_action(other, "a queue", ACTIONS)),
    };
    if message != "already" {
        let audit_action = format!("queue.{}", if message == "settings" { "set" } else { message });
        ctx.record(app, &audit_action, Some(&key.namespace), key.name.as_str(), detail).await;
    }
    // Refresh the snapshot, so that the next page shows the change.
    app.queues.invalidate().await;
    Ok((message, TaskListFilter::default()))
}

/// The changed settings, for the audit log.
fn changes(before: &QueueSettings, after: &QueueSettings) -> String {
    let fields = |settings: &QueueSettings| match serde_json::to_value(settings) {
        Ok(serde_json::Value::Object(fields)) => fields,
        _ => Default::default(),
    };
    let before = fields(before);
    let changed = fields(after).into_iter().filter(|(name, value)| before.get(name) != Some(value));
    changed.map(|(name, value)| format!("{name} = {value}")).collect::<Vec<_>>().join(", ")
}

/// Cancel or retry the tasks that existed when the confirmation was shown, in batches.
async fn apply_bulk(
    app: &App,
    ctx: &PageContext,
    key: &QueueKey,
    form: &QueueActionForm,
    order: TaskAction,
) -> Result<(&'static str, TaskListFilter), Problem> {
    let selection = TaskListFilter::of(&form.state, &form.kind, &form.worker)?;
    let states = affected_states(order, selection.state)?;
    let (app, ctx, key, before) = (app.clone(), ctx.clone(), key.clone(), form.cursor);
    // Spawned, so that it finishes and is audited even if the browser disconnects.
    let task = tokio::spawn(async move {
        let mut count = 0;
        let ended = batches(&app, &key, &selection, &states, before, order, &mut count).await;
        let word = match order {
            TaskAction::Cancel => "cancel",
            TaskAction::Retry => "retry",
        };
        if count > 0 {
            let of: Vec<_> = states.iter().map(|state| state.as_str()).collect();
            let detail = format!("{} in state {}", format::count(count, "task"), of.join(", "));
            let (action, name) = (format!("queue.{word}"), key.name.as_str());
            ctx.record(&app, &action, Some(&key.namespace), name, detail).await;
        }
        app.queues.invalidate().await;
        // After an error the completed batches are audited too.
        ended.map(|()| (if count > 0 { word } else { "nothing" }, selection))
    });
    task.await.unwrap_or_else(|_| {
        Err(StoreError::new(ErrorKind::Other, "bulk action on tasks was interrupted").into())
    })
}

async fn batches(
    app: &App,
    key: &QueueKey,
    selection: &TaskListFilter,
    states: &[TaskState],
    before: u64,
    order: TaskAction,
    count: &mut usize,
) -> Result<(), Problem> {
    let mut before = Some(TaskId(before));
    for _ in 0..BATCH.1 {
        let batch =
            with_timeout(app.store.tasks(&selection.filter(key, states.to_vec(), before, BATCH.0))).await?;
        let ids: Vec<_> = batch.iter().map(|task| task.id).collect();
        let Some(last) = ids.last() else { break };
        before = Some(*last);
        *count += with_timeout(app.store.apply_task_action(&key.namespace, &ids, order)).await?.len();
        if ids.len() < BATCH.0 as usize {
            break;
        }
    }
    Ok(())
}
