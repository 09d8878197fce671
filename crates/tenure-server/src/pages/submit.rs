//! A task, submitted by hand.

use axum::extract::{Query, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{Json, NewTask, Parent, QueueKey, Submission, TaskId, Verb};

use super::election::within;
use super::frame::{Visit, go, page, trouble};
use super::given::{Got, Posted};
use super::parts::{self, Mistake};
use super::queue_act::{span, wrong};
use super::queues::Where;
use super::topic_act::NAME;
use crate::App;
use crate::problem::Problem;
use crate::quota::{self, Object};

/// What the address of the form may say.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct About {
    #[serde(default = "Name::default_namespace")]
    namespace: Name,
    #[serde(default)]
    queue: String,
}

pub(super) async fn show(visit: Visit, Got(Query(about)): Got<Query<About>>) -> Response {
    let wanted =
        Wanted { queue: about.queue, priority: "0".into(), payload: "{}".into(), ..Wanted::default() };
    shown(&visit, &about.namespace, &wanted, None)
}

fn shown(visit: &Visit, namespace: &Name, wanted: &Wanted, problem: Option<&Problem>) -> Response {
    let content = html! {
        div.head { div {
            p.crumb { a href="/queues" { "Queues" } " / " (namespace) }
            h1 { "Submit a task" }
            p { "By hand, into the namespace " span.strong { (namespace) } ". Programs do it with the library, the command line, SQL or the API." }
        } }
        section.card aria-label="The task" { div.body { (form(namespace, wanted, Mistake(problem))) } }
    };
    page(visit, "Submit a task", "Queues", content)
}

/// The fields below which a mistake is told.
const FIELDS: [&str; 15] = [
    "queue",
    "kind",
    "priority",
    "payload",
    "requires",
    "prefers",
    "workers",
    "after",
    "max_wait",
    "max_run",
    "attempts",
    "parents",
    "key",
    "concurrency_key",
    "concurrency_limit",
];

fn form(namespace: &Name, wanted: &Wanted, mistake: Mistake<'_>) -> Markup {
    let text = |id: &str, label: &str, value: &str, placeholder: &str, help: &str| {
        html! { div.field { label for=(id) { (label) } input id=(id) name=(id) value=(value) autocomplete="off" placeholder=(placeholder) aria-invalid=[mistake.marks(id)]; (mistake.below(id)) small { (help) } } }
    };
    let usual = Wanted {
        queue: wanted.queue.clone(),
        kind: wanted.kind.clone(),
        priority: wanted.priority.clone(),
        payload: wanted.payload.clone(),
        ..Wanted::default()
    };
    html! {
        form.form method="post" action={ "/tasks/new?namespace=" (parts::escape(namespace.as_str())) } {
            (mistake.above(&FIELDS))
            div.across {
                div.field {
                    label for="queue" { "Queue" }
                    input #queue name="queue" required autocomplete="off" value=(wanted.queue) placeholder="mail" pattern=(NAME) aria-invalid=[mistake.marks("queue")];
                    (mistake.below("queue"))
                    small { "Created if missing." }
                }
                (text("kind", "Kind", &wanted.kind, "welcome", "What is to be done. Empty: any worker of the queue."))
                div.field {
                    label for="priority" { "Priority" }
                    input #priority name="priority" type="number" value=(wanted.priority) aria-invalid=[mistake.marks("priority")];
                    (mistake.below("priority"))
                    small { "Each point is worth a minute of waiting." }
                }
            }
            div.field {
                label for="payload" { "Payload" }
                textarea #payload .mono name="payload" rows="6" spellcheck="false" aria-invalid=[mistake.marks("payload")] aria-describedby=[mistake.marks("payload").map(|_| "payload-mistake")] { (wanted.payload) }
                (mistake.below("payload"))
                small { "JSON." }
            }
            details #more open[*wanted != usual] {
                summary { "Tags, times, attempts, parents, keys" }
                div.across.more {
                    (text("requires", "Required tags", &wanted.requires, "gpu, eu", "A worker must have all of them."))
                    (text("prefers", "Preferred tags", &wanted.prefers, "", "A worker had better have one."))
                    (text("workers", "Meant for", &wanted.workers, "worker-1", "Workers by name. Empty: any."))
                    (text("after", "Not before", &wanted.after, "10min", "From now on. Empty: at once."))
                    (text("max_wait", "Longest wait", &wanted.max_wait, "", "Dead, if nobody claims it for so long."))
                    (text("max_run", "Longest run", &wanted.max_run, "", "Back to the queue, if an attempt takes longer."))
                    (text("attempts", "Attempts", &wanted.attempts, "20", "At most."))
                    (text("parents", "Parents", &wanted.parents, "12, 14", "Tasks whose outputs it needs."))
                    (text("key", "Idempotency key", &wanted.key, "", "The same key again: the same task."))
                    (text("concurrency_key", "Concurrency key", &wanted.concurrency_key, "", "Of all tasks with this key ..."))
                    (text("concurrency_limit", "at once", &wanted.concurrency_limit, "1", "... so many are claimed at most."))
                }
            }
            div.buttons { button.button.main { "Submit" } a.button href="/queues" { "Cancel" } }
        }
    }
}

/// The form.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Wanted {
    queue: String,
    kind: String,
    priority: String,
    payload: String,
    requires: String,
    prefers: String,
    workers: String,
    after: String,
    max_wait: String,
    max_run: String,
    attempts: String,
    parents: String,
    key: String,
    concurrency_key: String,
    concurrency_limit: String,
}

impl Wanted {
    fn task(&self, wall: i64) -> Result<NewTask, Problem> {
        let usual = NewTask::default();
        let payload = if self.payload.trim().is_empty() { "{}" } else { self.payload.trim() };
        let payload: Json =
            payload.parse().map_err(|error| wrong("payload", format!("Invalid JSON: {error}")))?;
        let spanned = |field, text: &str| some(text).map(|text| span(field, text)).transpose();
        let after = spanned("after", &self.after)?;
        let parents = list(&self.parents)
            .into_iter()
            .map(|id| number("parents", &id).map(|id| Parent::Task(TaskId(id))));
        Ok(NewTask {
            kind: self.kind.trim().into(),
            payload,
            priority: some(&self.priority).map_or(Ok(0), |text| number("priority", text))?,
            requires: list(&self.requires),
            prefers: list(&self.prefers),
            workers: list(&self.workers),
            run_at_ms: after.map(|ms| wall.saturating_add_unsigned(ms)),
            max_wait_ms: spanned("max_wait", &self.max_wait)?,
            max_run_ms: spanned("max_run", &self.max_run)?,
            max_attempts: some(&self.attempts)
                .map_or(Ok(usual.max_attempts), |text| number("attempts", text))?,
            parents: parents.collect::<Result<_, _>>()?,
            key: some(&self.key).map(Into::into),
            concurrency_key: some(&self.concurrency_key).map(Into::into),
            concurrency_limit: some(&self.concurrency_limit)
                .map_or(Ok(1), |text| number("concurrency_limit", text))?,
            ..usual
        })
    }
}

fn some(text: &str) -> Option<&str> {
    Some(text.trim()).filter(|text| !text.is_empty())
}

/// What is set apart by commas.
pub(super) fn list(text: &str) -> Vec<String> {
    text.split(',').filter_map(some).map(Into::into).collect()
}

fn number<T: std::str::FromStr>(field: &str, text: &str) -> Result<T, Problem> {
    text.parse().map_err(|_| wrong(field, format!("{field}: {text:?} is no number that fits")))
}

pub(super) async fn act(
    State(app): State<App>,
    visit: Visit,
    Got(Query(at)): Got<Query<Where>>,
    Posted(wanted): Posted<Wanted>,
) -> Response {
    let submitted = async {
        let queue: Name = wanted
            .queue
            .trim()
            .parse()
            .map_err(|error: tenure::NameError| wrong("queue", error.to_string()))?;
        let task = wanted.task(app.runtime.wall_ms())?;
        let submission = Submission { queue: QueueKey::new(at.namespace.clone(), queue), tasks: vec![task] };
        tenure_core::claim::check(&submission).map_err(|error| wrong("task", error.to_string()))?;
        quota::check(&app, Object::Queue(&submission.queue)).await?;
        let submitted = within(app.store.submit(&submission)).await?;
        let one = submitted.first().copied().ok_or_else(|| wrong("task", "nothing was submitted"))?;
        if one.new {
            let detail = format!("{} to {}", submission.tasks[0].kind, submission.queue.name);
            visit.record(&app, "task.submit", Some(&at.namespace), &one.id.to_string(), detail).await;
        }
        app.floor.changed().await;
        // Whoever may not look goes back to where they may.
        if !visit.may(Verb::Read, Some(&at.namespace)) {
            return Ok(go("/"));
        }
        let done = if one.new { "submit" } else { "known" };
        Ok(visit.tell(&parts::task_href(&at.namespace, one.id, ""), done))
    };
    match submitted.await {
        Ok(response) => response,
        Err(problem) if parts::is_mendable(&problem) => {
            parts::refused(shown(&visit, &at.namespace, &wanted, Some(&problem)), &problem)
        }
        Err(problem) => trouble(&visit, &problem),
    }
}
