//! The form that submits a task.

use axum::extract::{Query, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{NewTask, ParentRef, Permission, QueueKey, RawJson, Submission, TaskId};

use super::components::{self, FormErrors};
use super::election::with_timeout;
use super::extract::{FormBody, PageParams};
use super::layout::{PageContext, go, page, problem_page};
use super::queue_actions::{invalid_field, parse_duration};
use super::queues::NamespaceQuery;
use super::topic_actions::NAME;
use crate::App;
use crate::problem::Problem;
use crate::quota::{self, Object};

/// The query of the form.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SubmitPageQuery {
    #[serde(default = "Name::default_namespace")]
    namespace: Name,
    #[serde(default)]
    queue: String,
}

pub(super) async fn show(
    ctx: PageContext,
    PageParams(Query(about)): PageParams<Query<SubmitPageQuery>>,
) -> Response {
    let form = SubmitForm {
        queue: about.queue,
        priority: "0".into(),
        payload: "{}".into(),
        ..SubmitForm::default()
    };
    shown(&ctx, &about.namespace, &form, None)
}

fn shown(ctx: &PageContext, namespace: &Name, form: &SubmitForm, problem: Option<&Problem>) -> Response {
    let content = html! {
        div.head { div {
            p.crumb { a href="/queues" { "Queues" } " / " (namespace) }
            h1 { "Submit task" }
            p { "Namespace " span.strong { (namespace) } ". Programs submit with the library, the CLI, SQL or the API." }
        } }
        section.card aria-label="Task" { div.body { (fields(namespace, form, FormErrors(problem))) } }
    };
    page(ctx, "Submit task", "Queues", content)
}

/// The fields that show their own error.
const FIELDS: [&str; 15] = [
    "queue",
    "kind",
    "priority",
    "payload",
    "required_tags",
    "preferred_tags",
    "allowed_workers",
    "delay",
    "max_wait",
    "max_run",
    "max_attempts",
    "parents",
    "idempotency_key",
    "concurrency_key",
    "concurrency_limit",
];

fn fields(namespace: &Name, form: &SubmitForm, errors: FormErrors<'_>) -> Markup {
    let text = |id: &str, label: &str, value: &str, placeholder: &str, help: &str| {
        html! { div.field { label for=(id) { (label) } input id=(id) name=(id) value=(value) autocomplete="off" placeholder=(placeholder) aria-invalid=[errors.aria_invalid(id)]; (errors.below(id)) small { (help) } } }
    };
    let default = SubmitForm {
        queue: form.queue.clone(),
        kind: form.kind.clone(),
        priority: form.priority.clone(),
        payload: form.payload.clone(),
        ..SubmitForm::default()
    };
    html! {
        form.form method="post" action={ "/tasks/new?namespace=" (components::escape(namespace.as_str())) } {
            (errors.above(&FIELDS))
            div.across {
                div.field {
                    label for="queue" { "Queue" }
                    input #queue name="queue" required autocomplete="off" value=(form.queue) placeholder="mail" pattern=(NAME) aria-invalid=[errors.aria_invalid("queue")];
                    (errors.below("queue"))
                    small { "Created if missing." }
                }
                (text("kind", "Kind", &form.kind, "welcome", "Tells the worker how to run the task. Empty: any worker of the queue."))
                div.field {
                    label for="priority" { "Priority" }
                    input #priority name="priority" type="number" value=(form.priority) aria-invalid=[errors.aria_invalid("priority")];
                    (errors.below("priority"))
                    small { "Each point equals one minute of waiting." }
                }
            }
            div.field {
                label for="payload" { "Payload" }
                textarea #payload .mono name="payload" rows="6" spellcheck="false" aria-invalid=[errors.aria_invalid("payload")] aria-describedby=[errors.aria_invalid("payload").map(|_| "payload-error")] { (form.payload) }
                (errors.below("payload"))
                small { "JSON." }
            }
            details #more open[*form != default] {
                summary { "More options" }
                div.across.more {
                    (text("required_tags", "Required tags", &form.required_tags, "gpu, eu", "The worker must have all of them."))
                    (text("preferred_tags", "Preferred tags", &form.preferred_tags, "", "Workers with one of them go first."))
                    (text("allowed_workers", "Allowed workers", &form.allowed_workers, "worker-1", "Worker names. Empty: any."))
                    (text("delay", "Earliest start", &form.delay, "10m", "Delay from now. Empty: at once."))
                    (text("max_wait", "Maximum wait", &form.max_wait, "", "The task is dead if not claimed in this time."))
                    (text("max_run", "Maximum run time", &form.max_run, "", "A longer attempt returns the task to the queue."))
                    (text("max_attempts", "Maximum attempts", &form.max_attempts, "20", ""))
                    (text("parents", "Parents", &form.parents, "12, 14", "Task ids that must complete first."))
                    (text("idempotency_key", "Idempotency key", &form.idempotency_key, "", "A repeated key returns the first task."))
                    (text("concurrency_key", "Concurrency key", &form.concurrency_key, "", "Limits the claimed tasks with this key."))
                    (text("concurrency_limit", "Concurrency limit", &form.concurrency_limit, "1", "Maximum number of claimed tasks with this key."))
                }
            }
            div.buttons { button.button.main { "Submit" } a.button href="/queues" { "Cancel" } }
        }
    }
}

/// The form of a new task.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SubmitForm {
    queue: String,
    kind: String,
    priority: String,
    payload: String,
    required_tags: String,
    preferred_tags: String,
    allowed_workers: String,
    delay: String,
    max_wait: String,
    max_run: String,
    max_attempts: String,
    parents: String,
    idempotency_key: String,
    concurrency_key: String,
    concurrency_limit: String,
}

impl SubmitForm {
    fn task(&self, wall: i64) -> Result<NewTask, Problem> {
        let default = NewTask::default();
        let payload = if self.payload.trim().is_empty() { "{}" } else { self.payload.trim() };
        let payload: RawJson =
            payload.parse().map_err(|error| invalid_field("payload", format!("Invalid JSON: {error}")))?;
        let duration =
            |field, text: &str| non_empty(text).map(|text| parse_duration(field, text)).transpose();
        let delay = duration("delay", &self.delay)?;
        let parents = split_list(&self.parents)
            .into_iter()
            .map(|id| number("parents", &id).map(|id| ParentRef::Task(TaskId(id))));
        Ok(NewTask {
            kind: self.kind.trim().into(),
            payload,
            priority: non_empty(&self.priority).map_or(Ok(0), |text| number("priority", text))?,
            required_tags: split_list(&self.required_tags),
            preferred_tags: split_list(&self.preferred_tags),
            allowed_workers: split_list(&self.allowed_workers),
            run_at_ms: delay.map(|ms| wall.saturating_add_unsigned(ms)),
            max_wait_ms: duration("max_wait", &self.max_wait)?,
            max_run_ms: duration("max_run", &self.max_run)?,
            max_attempts: non_empty(&self.max_attempts)
                .map_or(Ok(default.max_attempts), |text| number("max_attempts", text))?,
            parents: parents.collect::<Result<_, _>>()?,
            idempotency_key: non_empty(&self.idempotency_key).map(Into::into),
            concurrency_key: non_empty(&self.concurrency_key).map(Into::into),
            concurrency_limit: non_empty(&self.concurrency_limit)
                .map_or(Ok(1), |text| number("concurrency_limit", text))?,
            ..default
        })
    }
}

fn non_empty(text: &str) -> Option<&str> {
    Some(text.trim()).filter(|text| !text.is_empty())
}

/// Split a comma-separated list.
pub(super) fn split_list(text: &str) -> Vec<String> {
    text.split(',').filter_map(non_empty).map(Into::into).collect()
}

fn number<T: std::str::FromStr>(field: &str, text: &str) -> Result<T, Problem> {
    text.parse().map_err(|_| invalid_field(field, format!("{field}: invalid number {text:?}")))
}

pub(super) async fn create(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
    FormBody(form): FormBody<SubmitForm>,
) -> Response {
    let submitted = async {
        let queue: Name = form
            .queue
            .trim()
            .parse()
            .map_err(|error: tenure::NameError| invalid_field("queue", error.to_string()))?;
        let task = form.task(app.runtime.wall_ms())?;
        let submission = Submission { queue: QueueKey::new(at.namespace.clone(), queue), tasks: vec![task] };
        tenure_core::rules::work::validate_submission(&submission)
            .map_err(|error| invalid_field("task", error.to_string()))?;
        quota::check(&app, Object::Queue(&submission.queue)).await?;
        let submitted = with_timeout(app.store.submit(&submission)).await?;
        let one =
            submitted.first().copied().ok_or_else(|| invalid_field("task", "No task was submitted."))?;
        if one.created {
            let detail = format!("{} to {}", submission.tasks[0].kind, submission.queue.name);
            ctx.record(&app, "task.submit", Some(&at.namespace), &one.id.to_string(), detail).await;
        }
        app.queues.invalidate().await;
        // A principal without read permission cannot open the page of the task.
        if !ctx.may(Permission::Read, Some(&at.namespace)) {
            return Ok(go("/"));
        }
        let message = if one.created { "submit" } else { "known" };
        Ok(ctx.redirect_with_message(&components::task_href(&at.namespace, one.id, ""), message))
    };
    match submitted.await {
        Ok(response) => response,
        Err(problem) if components::is_correctable(&problem) => {
            components::rejected(shown(&ctx, &at.namespace, &form, Some(&problem)), &problem)
        }
        Err(problem) => problem_page(&ctx, &problem),
    }
}
