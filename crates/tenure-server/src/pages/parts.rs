//! Small pieces that several pages show.

use std::time::Duration;

use maud::{Markup, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tenure::cluster::{NAMES, SINGLETONS};
use tenure::port::{
    ElectionView, EventId, GroupKey, LeaseView, Pause, PoolKey, QueueKey, ScheduleKey, SessionView,
    StoreError, TaskId, TaskState, TopicKey,
};
use tenure::{ElectionKey, Moment, Name};

use super::frame::Visit;
use super::words;
use crate::board::Seen;
use crate::problem::Problem;

/// What needs no escape in a path or query of ours.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');

/// The text, fit to stand in an address.
pub(super) fn escape(text: &str) -> String {
    utf8_percent_encode(text, PLAIN).to_string()
}

/// The text that was made fit to stand in an address; `None` if it is no text.
pub(super) fn unescape(text: &str) -> Option<String> {
    percent_encoding::percent_decode_str(text).decode_utf8().ok().map(Into::into)
}

/// Whether an election is shown on a page of its own: what servers and workers elect among themselves, names and singletons.
pub(super) fn is_shown_elsewhere(key: &ElectionKey) -> bool {
    let own = [NAMES, SINGLETONS].contains(&key.namespace.as_str());
    own || key.namespace == crate::app::SERVERS.namespace
}

/// The page of an election, or of an action on it.
pub(super) fn href(key: &ElectionKey, action: &str) -> String {
    let slash = if action.is_empty() { "" } else { "/" };
    let (name, namespace) = (escape(key.name.as_str()), escape(key.namespace.as_str()));
    format!("/elections/{name}{slash}{action}?namespace={namespace}")
}

/// The page of a queue, or of an action on it.
pub(super) fn queue_href(key: &QueueKey, action: &str) -> String {
    place("queues", key.name.as_str(), action, &key.namespace)
}

/// The page of a task, or of an action on it.
pub(super) fn task_href(namespace: &Name, id: TaskId, action: &str) -> String {
    place("tasks", &id.to_string(), action, namespace)
}

/// The page of a pool, or of an action on it.
pub(super) fn pool_href(key: &PoolKey, action: &str) -> String {
    place("pools", key.name.as_str(), action, &key.namespace)
}

/// The page of a topic, or of an action on it.
pub(super) fn topic_href(key: &TopicKey, action: &str) -> String {
    place("topics", key.name.as_str(), action, &key.namespace)
}

/// The page of an event.
pub(super) fn event_href(topic: &TopicKey, id: EventId) -> String {
    topic_href(topic, &format!("events/{id}"))
}

/// The page of a group, or of an action on it.
pub(super) fn group_href(key: &GroupKey, action: &str) -> String {
    let slash = if action.is_empty() { "" } else { "/" };
    topic_href(&key.topic, &format!("groups/{}{slash}{action}", escape(key.name.as_str())))
}

/// The page of an event that is aside, or of an action on it.
pub(super) fn aside_href(key: &GroupKey, id: EventId, action: &str) -> String {
    let slash = if action.is_empty() { "" } else { "/" };
    group_href(key, &format!("aside/{id}{slash}{action}"))
}

/// The page of a schedule, or of an action on it.
pub(super) fn schedule_href(key: &ScheduleKey, action: &str) -> String {
    place("schedules", key.name.as_str(), action, &key.namespace)
}

/// Where a tick of a schedule stands in its history: first, with those before it.
pub(super) fn tick_href(key: &ScheduleKey, at_ms: i64) -> String {
    format!("{}&at={at_ms}#history", schedule_href(key, ""))
}

/// The page of something in a namespace, or of an action on it.
pub(super) fn place(what: &str, name: &str, action: &str, namespace: &Name) -> String {
    let slash = if action.is_empty() { "" } else { "/" };
    format!("/{what}/{}{slash}{action}?namespace={}", escape(name), escape(namespace.as_str()))
}

/// Where a task stands: its shape, and the word for it.
pub(super) fn task_state(at: TaskState) -> Markup {
    let kind = match at {
        TaskState::Waiting => "idle",
        TaskState::Scheduled => "later",
        TaskState::Ready => "next",
        TaskState::Held => "warn",
        TaskState::Claimed => "good",
        TaskState::Completed => "done",
        TaskState::Dead => "bad",
        TaskState::Cancelled => "off",
    };
    state(kind, at.as_str())
}

/// That something is paused, by whom and why.
pub(super) fn paused(pause: &Pause, means: &str, wall: i64) -> Markup {
    notice(
        "warn",
        html! {
            p { span.strong { "Paused by " (pause.by) } ", " (words::ago(pause.at_ms, wall)) ". " (means) }
            @if !pause.reason.is_empty() { p { "“" (pause.reason) "”" } }
        },
    )
}

/// That a part of a page can not be shown now.
pub(super) fn unread(what: &str, error: &StoreError) -> Markup {
    html! { div.body { (notice("warn", html! { p { (what) " can not be read now: " (error.kind) "." } })) } }
}

/// A question, before something is done: a form that posts to where it is asked. The script shows it in a dialog.
pub(super) struct Question {
    pub(super) title: String,
    /// Where the question is asked, and the deed is done.
    pub(super) to: String,
    /// Where whoever thinks better of it goes.
    pub(super) back: String,
    pub(super) button: &'static str,
    pub(super) danger: bool,
    pub(super) body: Markup,
}

impl Question {
    /// The question on a page of its own.
    pub(super) fn page(self, visit: &Visit, tab: &str) -> axum::response::Response {
        let class = if self.danger { "button danger" } else { "button main" };
        let content = html! { section.card.narrow { div.body {
            form #confirm .confirm method="post" action=(self.to) {
                h1 #confirm-title { (self.title) }
                (self.body)
                div.buttons {
                    button class=(class) { (self.button) }
                    a.button data-cancel href=(self.back) { "Cancel" }
                }
            }
        } } };
        super::frame::page(visit, &self.title, tab, content)
    }
}

/// A field for a line of text.
pub(super) fn reason_field() -> Markup {
    html! {
        div.field {
            label for="reason" { "Reason" }
            input #reason name="reason" maxlength="500" autocomplete="off" placeholder="Maintenance until noon";
            small { "For the others, who will wonder." }
        }
    }
}

/// A kind, a type or an address, which may be broken after its dots, slashes and colons if it is long.
pub(super) fn breakable(text: &str) -> Markup {
    const SHORT: usize = 14;
    html! {
        @if text.len() <= SHORT { (text) }
        @else { @for part in text.split_inclusive(['.', '/', ':', '_', '@']) { (part) wbr; } }
    }
}

/// Tags and the like.
pub(super) fn chips(all: &[String]) -> Markup {
    html! { @if all.is_empty() { span.soft { "–" } } @else { div.chips { @for one in all { span.chip { (one) } } } } }
}

/// What people call the holder of a lease.
pub(super) fn holder_id<'v>(view: &'v ElectionView, holder: &'v SessionView) -> &'v str {
    view.candidate(&holder.id).map_or(&holder.name, |candidate| &candidate.id)
}

/// The state of an election, in a sentence: for the table, for titles and for those who listen.
pub(super) fn says(view: &ElectionView) -> String {
    let key = &view.key;
    if let Some(pause) = &view.paused {
        return format!("{key} is paused by {}", pause.by);
    }
    let led: Vec<_> = view
        .holders()
        .map(|(lease, holder)| format!("{} under token {}", holder_id(view, holder), lease.token))
        .collect();
    if led.is_empty() {
        format!("nobody leads {key}")
    } else {
        format!("{key} is led by {}", led.join(" and "))
    }
}

/// A state: its shape, and the word for it.
pub(super) fn state(kind: &str, word: impl maud::Render) -> Markup {
    html! {
        span class={ "state " (kind) } {
            svg viewBox="0 0 12 12" aria-hidden="true" {
                @match kind {
                    "good" => circle cx="6" cy="6" r="5" {},
                    "warn" => { rect x="1.5" y="1" width="3.2" height="10" rx="1" {} rect x="7.3" y="1" width="3.2" height="10" rx="1" {} },
                    "bad" => { path d="M6 1 11 10.5H1z" stroke-width="1.6" stroke-linejoin="round" {} },
                    "done" => path d="M1.5 6.5 4.7 9.7 10.5 2.8" stroke-width="1.9" stroke-linecap="round" stroke-linejoin="round" {},
                    "next" => { circle cx="6" cy="6" r="4.6" stroke-width="1.6" {} circle.dot cx="6" cy="6" r="1.7" {} },
                    "later" | "late" => { circle cx="6" cy="6" r="4.8" stroke-width="1.4" {} path d="M6 3.2V6l2 1.4" stroke-width="1.4" stroke-linecap="round" {} },
                    "off" => path d="M2.5 2.5l7 7M9.5 2.5l-7 7" stroke-width="1.8" stroke-linecap="round" {},
                    _ => circle cx="6" cy="6" r="4.6" stroke-width="1.5" stroke-dasharray="2 1.6" {},
                }
            }
            span { (word) }
        }
    }
}

/// How an election is, in a word. A leader that has fallen silent leads on paper only.
pub(super) fn election_state(view: &ElectionView, seen: &Seen, now: Moment) -> Markup {
    let led = view.holders().count();
    let silent = view.holders().filter(|(_, holder)| trust_left(holder, seen, now).is_zero()).count();
    match (&view.paused, led) {
        (Some(_), 0) => state("warn", "paused"),
        (Some(_), _) => state("warn", "pausing"),
        (None, 0) if view.candidates.is_empty() => state("idle", "nobody stands"),
        // Observers do not want to lead: nothing is missing.
        (None, 0) if view.candidates.iter().all(|candidate| candidate.observer) => {
            state("idle", "only observers")
        }
        (None, 0) => state("bad", "nobody leads"),
        // Who hears nothing itself must not call others silent.
        (None, _) if silent == led && seen.trouble.is_some() => state("idle", "unknown"),
        (None, _) if silent == led => state("bad", "silent"),
        (None, _) if view.slots > 1 => state("good", format!("{} of {} led", led - silent, view.slots)),
        (None, _) => state("good", "led"),
    }
}

/// For how long a holder can still be trusted. Whose beat was not looked at yet has just come.
pub(super) fn trust_left(holder: &SessionView, seen: &Seen, now: Moment) -> Duration {
    seen.trust_left(&holder.id, now)
        .unwrap_or_else(|| if holder.live { holder.lease() * 2 / 3 } else { Duration::ZERO })
}

/// The trust that a holder has left, as a bar that the script counts down.
pub(super) fn trust(left: Duration, whole: Duration, of: &str, seen: &Seen) -> Markup {
    let (left_ms, whole_ms) = (left.as_millis() as u64, whole.as_millis() as u64);
    let deaf = seen.trouble.is_some();
    let class = match left_ms {
        0 if deaf => "trust",
        0 => "trust none",
        left if left * 3 < whole_ms => "trust low",
        _ => "trust",
    };
    html! {
        span class=(class) data-left-ms=(left_ms) data-of-ms=(whole_ms) data-deaf[deaf] {
            progress max=(whole_ms) value=(left_ms) aria-label={ "Trust left of " (of) } {}
            output { @if left_ms == 0 && deaf { "unknown" } @else { (words::left(left_ms)) } }
        }
    }
}

/// A token of a lease; nothing while it was never granted.
pub(super) fn token(lease: &LeaseView) -> Markup {
    html! { @if lease.token == tenure::Token::ZERO { span.soft { "–" } } @else { span.token { (lease.token) } } }
}

/// A remark of weight: `good`, `warn` or `bad`.
pub(super) fn notice(kind: &str, content: Markup) -> Markup {
    html! {
        div class={ "notice " (kind) } role=(if kind == "good" { "status" } else { "alert" }) {
            svg viewBox="0 0 20 20" aria-hidden="true" {
                @if kind == "good" {
                    path d="M10 1a9 9 0 1 0 0 18 9 9 0 0 0 0-18Zm4.6 6.9-5.3 6a1 1 0 0 1-1.5 0l-2.5-2.7a1 1 0 0 1 1.5-1.4l1.7 1.9 4.6-5.1a1 1 0 1 1 1.5 1.3Z" {}
                } @else {
                    path d="M8.7 2.3 1.2 15.6A1.6 1.6 0 0 0 2.6 18h14.8a1.6 1.6 0 0 0 1.4-2.4L11.3 2.3a1.5 1.5 0 0 0-2.6 0ZM9 7h2v5H9V7Zm0 6.5h2v2H9v-2Z" {}
                }
            }
            div { (content) }
        }
    }
}

/// A command that can be copied. The script shows the button.
pub(super) fn command(id: &str, text: &str) -> Markup {
    html! {
        div.command {
            pre #(id) tabindex="0" { (text) }
            button.button.slim type="button" data-copy=(id) { "Copy" }
        }
    }
}

/// A secret that was just created, shown this once.
pub(super) fn secret(what: &str, text: &str) -> Markup {
    notice(
        "good",
        html! {
            p { span.strong { (what) } " Copy it now; it is not shown again." }
            (command("secret", text))
        },
    )
}

/// What is wrong with a form that is shown again, as it was filled in.
#[derive(Clone, Copy)]
pub(super) struct Mistake<'p>(pub(super) Option<&'p Problem>);

impl Mistake<'_> {
    /// What `aria-invalid` says of a field.
    pub(super) fn marks(self, field: &str) -> Option<&'static str> {
        self.is_in(field).then_some("true")
    }

    fn is_in(self, field: &str) -> bool {
        self.0.and_then(|problem| problem.field.as_deref()) == Some(field)
    }

    /// What is wrong with a field, to stand below it.
    pub(super) fn below(self, field: &str) -> Markup {
        html! {
            @if let Some(problem) = self.0.filter(|_| self.is_in(field)) {
                small.mistake id={ (field) "-mistake" } role="alert" { (problem.detail) }
            }
        }
    }

    /// What is wrong with none of these fields, to stand above the form.
    pub(super) fn above(self, fields: &[&str]) -> Markup {
        html! {
            @if let Some(problem) = self.0.filter(|_| !fields.iter().any(|field| self.is_in(field))) {
                (notice("bad", html! { p { (problem.detail) } }))
            }
        }
    }
}

/// Whether a form is shown again with what is wrong with it: whoever filled it in can mend it.
pub(super) fn is_mendable(problem: &Problem) -> bool {
    matches!(
        problem.status,
        http::StatusCode::UNPROCESSABLE_ENTITY
            | http::StatusCode::CONFLICT
            | http::StatusCode::PAYLOAD_TOO_LARGE
    )
}

/// The same page, as the answer to a form that was refused.
pub(super) fn refused(mut page: axum::response::Response, problem: &Problem) -> axum::response::Response {
    *page.status_mut() = problem.status;
    page
}
