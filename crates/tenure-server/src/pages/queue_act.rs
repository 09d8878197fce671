//! What an operator does to a queue: pause, resume, set, and cancel or retry many tasks at once. The question, then the
//! deed.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tenure::Name;
use tenure::port::{
    Fallback, Mode, Order, Pause, QueueKey, QueueSettings, QueueView, RateLimit, StoreError, TaskId,
    TaskState, Trouble,
};

use super::election::within;
use super::frame::{Visit, trouble};
use super::given::{Got, Posted};
use super::parts::{self, Question};
use super::queue::{Asked, Which, unknown};
use super::queues::{Where, no_such_action};
use super::words;
use crate::App;
use crate::api::{CANCELLED, RETRIED};
use crate::problem::Problem;

/// How many tasks are dealt with in one call, and how many calls one deed makes.
const BATCH: (u32, u32) = (500, 40);

/// How many batches are counted before a bulk order is confirmed.
const COUNTED: u32 = 4;

const ACTIONS: &str = "pause, resume, settings, cancel and retry";

pub(super) async fn question(
    State(app): State<App>,
    visit: Visit,
    Got(Path((queue, action))): Got<Path<(Name, String)>>,
    Got(Query(asked)): Got<Query<Asked>>,
) -> Response {
    let key = QueueKey::new(asked.namespace.clone(), queue);
    let question = async {
        let view = within(app.store.queue(&key)).await?.ok_or_else(|| unknown(&key))?;
        ask(&app, &view, &action, &Which::of(&asked.state, &asked.kind, &asked.worker)?).await
    };
    match question.await {
        Ok(question) => question.page(&visit, "Queues"),
        Err(problem) => trouble(&visit, &problem),
    }
}

async fn ask(app: &App, view: &QueueView, action: &str, which: &Which) -> Result<Question, Problem> {
    let key = &view.key;
    let (to, back) = (parts::queue_href(key, action), parts::queue_href(key, ""));
    let question = |title: String, button, danger, body| Question { title, to, back, button, danger, body };
    Ok(match action {
        "pause" => question(
            format!("Pause {}?", key.name),
            "Pause",
            true,
            html! {
                p { "Nothing is handed out until somebody resumes it. What is claimed goes on, and can be finished." }
                (parts::reason_field())
            },
        ),
        "resume" => question(
            format!("Resume {}?", key.name),
            "Resume",
            false,
            html! {
                p {
                    @if let Some(pause) = &view.paused { "Paused by " span.strong { (pause.by) } @if !pause.reason.is_empty() { ": “" (pause.reason) "”" } ". " }
                    "Workers get its tasks again at once."
                }
            },
        ),
        "settings" => question(format!("Settings of {}", key.name), "Set", false, form(&view.settings)),
        "cancel" => many(app, view, which, Order::Cancel).await?.ask(question),
        "retry" => many(app, view, which, Order::Retry).await?.ask(question),
        other => return Err(no_such_action(other, "a queue", ACTIONS)),
    })
}

/// Tasks that are to be cancelled or retried together.
struct Many {
    order: Order,
    states: Vec<TaskState>,
    which: Which,
    /// How many there are; with `more`, at least.
    count: u64,
    more: bool,
    /// Tasks that come after the question are not meant.
    before: u64,
}

async fn many(app: &App, view: &QueueView, which: &Which, order: Order) -> Result<Many, Problem> {
    let states = meant(order, which.state)?;
    let newest = within(app.store.tasks(&which.filter(&view.key, states.clone(), None, 1))).await?;
    let before = newest.first().map_or(0, |task| task.id.0 + 1);
    let (count, more) = match which.kind.is_none() && which.worker.is_none() {
        true => (states.iter().map(|state| view.count(*state)).sum(), false),
        false => count(app, &view.key, which, &states, before).await?,
    };
    Ok(Many { order, states, which: which.clone(), count, more, before })
}

/// How many tasks a filter means, and whether there are more than were counted. The store counts by state only.
async fn count(
    app: &App,
    key: &QueueKey,
    which: &Which,
    states: &[TaskState],
    before: u64,
) -> Result<(u64, bool), Problem> {
    let (mut count, mut before) = (0, Some(TaskId(before)));
    for _ in 0..COUNTED {
        let batch = within(app.store.tasks(&which.filter(key, states.to_vec(), before, BATCH.0))).await?;
        count += batch.len() as u64;
        if batch.len() < BATCH.0 as usize {
            return Ok((count, false));
        }
        before = batch.last().map(|task| task.id);
    }
    Ok((count, true))
}

/// The states that an order is about.
fn meant(order: Order, only: Option<TaskState>) -> Result<Vec<TaskState>, Problem> {
    let (all, word): (&[TaskState], _) = match order {
        Order::Cancel => (&CANCELLED, "called off"),
        Order::Retry => (&RETRIED, "tried again"),
    };
    match only {
        // Those that are scheduled are well; to hurry all of them has to be said.
        None => Ok(all.iter().copied().filter(|state| order == Order::Cancel || state.is_final()).collect()),
        Some(state) if all.contains(&state) => Ok(vec![state]),
        Some(state) => {
            let detail = format!("a task that is {} can not be {word}", state.as_str());
            Err(Problem::new(StatusCode::CONFLICT, "not-so", detail).remedy("choose another state"))
        }
    }
}

impl Many {
    fn ask(&self, question: impl FnOnce(String, &'static str, bool, Markup) -> Question) -> Question {
        let words: Vec<_> = self.states.iter().map(|state| state.as_str()).collect();
        let how_many = match self.count {
            1 if !self.more => "One task".to_owned(),
            count => format!("{}{} tasks", if self.more { "More than " } else { "" }, words::number(count)),
        };
        let many = if how_many == "One task" { "one task".to_owned() } else { how_many.to_lowercase() };
        let about = html! {
            p {
                span.strong { (how_many) } " that are " (words.join(", "))
                @if let Some(kind) = &self.which.kind { ", of kind " span.strong { (kind) } }
                @if let Some(worker) = &self.which.worker { ", of worker " span.strong { (worker) } }
                @match self.order {
                    Order::Cancel => ": they are called off, and with them all that wait for them. Workers that have one are told, and refused if they go on. ",
                    Order::Retry => ": each gets another attempt at once, with as many to follow as it had at first. ",
                }
                "Tasks that are submitted from now on are not meant."
            }
            input type="hidden" name="before" value=(self.before);
            @if let Some(state) = self.which.state { input type="hidden" name="state" value=(state.as_str()); }
            @if let Some(kind) = &self.which.kind { input type="hidden" name="kind" value=(kind); }
            @if let Some(worker) = &self.which.worker { input type="hidden" name="worker" value=(worker); }
        };
        match self.order {
            Order::Cancel => question(format!("Cancel {many}?"), "Cancel the tasks", true, about),
            Order::Retry => question(format!("Retry {many}?"), "Retry", false, about),
        }
    }
}

fn form(settings: &QueueSettings) -> Markup {
    let number = |n: Option<u32>| n.map(|n| n.to_string()).unwrap_or_default();
    let text = |id: &str, label: &str, value: String, help: &str| {
        html! { div.field { label for=(id) { (label) } input id=(id) name=(id) value=(value) autocomplete="off"; small { (help) } } }
    };
    html! {
        input type="hidden" name="seen" value=(digest(settings));
        (modes(settings.mode, settings.fallback))
        div.across {
            (text("rate", "Begin at most", number(settings.rate.map(|rate| rate.count)), "Empty: any number."))
            (text("per", "in", settings.rate.map_or_else(|| "1s".into(), |rate| words::duration(rate.per_ms)), "Such as 1s, 5min, 24h."))
            (text("max_claimed", "Claimed at once", number(settings.max_claimed), "Empty: any number."))
            (text("prefer", "Preferred tags count for", words::duration(settings.prefer_ms), "Then any worker will do."))
            (text("keep", "Keep finished ones for", words::duration(settings.keep_ms), "Completed and cancelled."))
            (text("keep_dead", "Keep dead ones for", words::duration(settings.keep_dead_ms), ""))
        }
        div.verbs { label { input type="checkbox" name="approval" value="on" checked[settings.approval]; "Only approved workers get tasks" } }
    }
}

/// The choice between the modes.
pub(super) fn modes(mode: Mode, fallback: Fallback) -> Markup {
    let choices = [
        (
            "distributed",
            Mode::Distributed,
            Fallback::None,
            "Distributed",
            "any process hands out, in about the right order",
        ),
        ("exclusive", Mode::Exclusive, Fallback::None, "Exclusive", "the leader alone, in strict order"),
        (
            "fallback",
            Mode::Exclusive,
            Fallback::Distributed,
            "Exclusive, or distributed",
            "while the leader can not be reached",
        ),
    ];
    html! {
        fieldset.field {
            legend { "Handed out" }
            div.choices {
                @for (value, m, f, name, means) in choices {
                    label {
                        input type="radio" name="mode" required value=(value) checked[m == mode && (m == Mode::Distributed || f == fallback)];
                        span.says { span.strong { (name) } span.soft.small { (means) } }
                    }
                }
            }
        }
    }
}

/// The mode that was chosen.
pub(super) fn chosen(mode: &str) -> Result<(Mode, Fallback), Problem> {
    match mode {
        "distributed" => Ok((Mode::Distributed, Fallback::None)),
        "exclusive" => Ok((Mode::Exclusive, Fallback::None)),
        "fallback" => Ok((Mode::Exclusive, Fallback::Distributed)),
        other => Err(wrong("mode", format!("{other:?} is no mode"))),
    }
}

/// A field of a form makes no sense.
pub(super) fn wrong(field: &str, detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "unfit", detail)
        .field(field)
        .remedy("go back, and fill in the form once more")
}

/// A span of time that a form gave.
pub(super) fn span(field: &str, text: &str) -> Result<u64, Problem> {
    words::milliseconds(text).ok_or_else(|| {
        wrong(
            field,
            format!(
                "{field}: {text:?} is no span of time; write a number and ms, s, min, h or d, such as 90s"
            ),
        )
    })
}

/// What settings somebody saw, in short.
pub(super) fn digest(settings: &impl Serialize) -> String {
    let bytes = serde_json::to_vec(settings).unwrap_or_default();
    Sha256::digest(bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The form of a deed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Deed {
    #[serde(default)]
    reason: String,
    #[serde(default)]
    before: u64,
    #[serde(default)]
    state: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    worker: String,
    #[serde(default)]
    seen: String,
    #[serde(default)]
    mode: String,
    #[serde(default)]
    rate: String,
    #[serde(default)]
    per: String,
    #[serde(default)]
    max_claimed: String,
    #[serde(default)]
    prefer: String,
    #[serde(default)]
    keep: String,
    #[serde(default)]
    keep_dead: String,
    approval: Option<String>,
}

impl Deed {
    fn settings(&self) -> Result<QueueSettings, Problem> {
        let (mode, fallback) = chosen(&self.mode)?;
        let number = |field: &str, text: &str| match text.trim() {
            "" => Ok(None),
            text => text
                .parse::<u32>()
                .map(Some)
                .map_err(|_| wrong(field, format!("{field}: {text:?} is no number"))),
        };
        let count = number("rate", &self.rate)?;
        let rate = count.map(|count| Ok::<_, Problem>(RateLimit { count, per_ms: span("per", &self.per)? }));
        Ok(QueueSettings {
            mode,
            fallback,
            approval: self.approval.is_some(),
            rate: rate.transpose()?,
            max_claimed: number("max_claimed", &self.max_claimed)?,
            prefer_ms: span("prefer", &self.prefer)?,
            keep_ms: span("keep", &self.keep)?,
            keep_dead_ms: span("keep_dead", &self.keep_dead)?,
        })
    }
}

pub(super) async fn act(
    State(app): State<App>,
    visit: Visit,
    Got(Path((queue, action))): Got<Path<(Name, String)>>,
    Got(Query(at)): Got<Query<Where>>,
    Posted(deed): Posted<Deed>,
) -> Response {
    let key = QueueKey::new(at.namespace, queue);
    match done(&app, &visit, &key, &action, &deed).await {
        Ok((done, which)) => visit.tell(&format!("{}{}", parts::queue_href(&key, ""), which.query()), done),
        Err(problem) => trouble(&visit, &problem),
    }
}

async fn done(
    app: &App,
    visit: &Visit,
    key: &QueueKey,
    action: &str,
    deed: &Deed,
) -> Result<(&'static str, Which), Problem> {
    let view = within(app.store.queue(key)).await?.ok_or_else(|| unknown(key))?;
    let (done, detail) = match action {
        "pause" | "resume" => {
            let reason = deed.reason.trim().to_owned();
            crate::api::short("reason", &reason)?;
            let pause =
                Pause { by: visit.name().into(), reason: reason.clone(), at_ms: app.runtime.wall_ms() };
            let pause = (action == "pause").then_some(pause);
            let set = app.store.set_queue_paused(&key.namespace, Some(&key.name), pause.as_ref());
            match (within(set).await?, action) {
                (false, _) => ("already", reason),
                (true, "pause") => ("pause", reason),
                (true, _) => ("resume", reason),
            }
        }
        "settings" => {
            if deed.seen != digest(&view.settings) {
                let detail = format!("somebody has set {key} anew since you looked; nothing was changed");
                return Err(Problem::new(StatusCode::CONFLICT, "settings-changed", detail)
                    .remedy("look again, then decide"));
            }
            let settings = deed.settings()?;
            tenure_core::claim::check_queue(&settings)
                .map_err(|error| wrong("settings", error.to_string()))?;
            if settings == view.settings {
                ("already", String::new())
            } else {
                within(app.store.set_queue(key, &settings)).await?;
                ("settings", changes(&view.settings, &settings))
            }
        }
        "cancel" => return orders(app, visit, key, deed, Order::Cancel).await,
        "retry" => return orders(app, visit, key, deed, Order::Retry).await,
        other => return Err(no_such_action(other, "a queue", ACTIONS)),
    };
    if done != "already" {
        let deed = format!("queue.{}", if done == "settings" { "set" } else { done });
        visit.record(app, &deed, Some(&key.namespace), key.name.as_str(), detail).await;
    }
    // So that the page that comes next shows it.
    app.floor.changed().await;
    Ok((done, Which::default()))
}

/// What is set otherwise, for the audit.
fn changes(before: &QueueSettings, after: &QueueSettings) -> String {
    let fields = |settings: &QueueSettings| match serde_json::to_value(settings) {
        Ok(serde_json::Value::Object(fields)) => fields,
        _ => Default::default(),
    };
    let before = fields(before);
    let changed = fields(after).into_iter().filter(|(name, value)| before.get(name) != Some(value));
    changed.map(|(name, value)| format!("{name} = {value}")).collect::<Vec<_>>().join(", ")
}

/// Cancels or retries all that were meant when it was asked, a batch at a time.
async fn orders(
    app: &App,
    visit: &Visit,
    key: &QueueKey,
    deed: &Deed,
    order: Order,
) -> Result<(&'static str, Which), Problem> {
    let which = Which::of(&deed.state, &deed.kind, &deed.worker)?;
    let states = meant(order, which.state)?;
    let (app, visit, key, before) = (app.clone(), visit.clone(), key.clone(), deed.before);
    // To its end, and into the audit, also if the browser does not wait for it.
    let ordering = tokio::spawn(async move {
        let mut count = 0;
        let ended = batches(&app, &key, &which, &states, before, order, &mut count).await;
        let word = match order {
            Order::Cancel => "cancel",
            Order::Retry => "retry",
        };
        if count > 0 {
            let of: Vec<_> = states.iter().map(|state| state.as_str()).collect();
            let detail = format!("{} of those that were {}", words::count(count, "task"), of.join(", "));
            let (action, name) = (format!("queue.{word}"), key.name.as_str());
            visit.record(&app, &action, Some(&key.namespace), name, detail).await;
        }
        app.floor.changed().await;
        // Whatever became of the rest, what was done was done, and is written down.
        ended.map(|()| (if count > 0 { word } else { "nothing" }, which))
    });
    ordering
        .await
        .unwrap_or_else(|_| Err(StoreError::new(Trouble::Other, "an order to tasks broke off").into()))
}

async fn batches(
    app: &App,
    key: &QueueKey,
    which: &Which,
    states: &[TaskState],
    before: u64,
    order: Order,
    count: &mut usize,
) -> Result<(), Problem> {
    let mut before = Some(TaskId(before));
    for _ in 0..BATCH.1 {
        let batch = within(app.store.tasks(&which.filter(key, states.to_vec(), before, BATCH.0))).await?;
        let ids: Vec<_> = batch.iter().map(|task| task.id).collect();
        let Some(last) = ids.last() else { break };
        before = Some(*last);
        *count += within(app.store.order(&key.namespace, &ids, order)).await?.len();
        if ids.len() < BATCH.0 as usize {
            break;
        }
    }
    Ok(())
}
