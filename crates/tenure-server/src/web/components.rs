//! Components shared by several pages.

use std::time::Duration;

use maud::{Markup, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tenure::cluster::{NAMES, SINGLETONS};
use tenure::port::{
    ElectionView, EventId, GroupKey, LeaseView, Pause, PoolKey, QueueKey, ScheduleKey, SessionView,
    StoreError, TaskId, TaskState, TopicKey,
};
use tenure::{BootInstant, ElectionKey, Name};

use super::format;
use super::layout::PageContext;
use crate::problem::Problem;
use crate::snapshot::elections::ElectionsSnapshot;

/// Characters that need no escape in our paths and queries.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');

/// Percent-encode a text for a URL.
pub(super) fn escape(text: &str) -> String {
    utf8_percent_encode(text, PLAIN).to_string()
}

/// Decode a percent-encoded text; `None` if it is not UTF-8.
pub(super) fn unescape(text: &str) -> Option<String> {
    percent_encoding::percent_decode_str(text).decode_utf8().ok().map(Into::into)
}

/// Whether an election is shown on another page: elections of servers and workers, registered names and singletons.
pub(super) fn is_shown_elsewhere(key: &ElectionKey) -> bool {
    let own = [NAMES, SINGLETONS].contains(&key.namespace.as_str());
    own || key.namespace == crate::app::COORDINATOR_ELECTION.namespace
}

/// The URL of an election, or of an action on it.
pub(super) fn href(key: &ElectionKey, action: &str) -> String {
    let slash = if action.is_empty() { "" } else { "/" };
    let (name, namespace) = (escape(key.name.as_str()), escape(key.namespace.as_str()));
    format!("/elections/{name}{slash}{action}?namespace={namespace}")
}

/// The URL of a queue, or of an action on it.
pub(super) fn queue_href(key: &QueueKey, action: &str) -> String {
    object_href("queues", key.name.as_str(), action, &key.namespace)
}

/// The URL of a task, or of an action on it.
pub(super) fn task_href(namespace: &Name, id: TaskId, action: &str) -> String {
    object_href("tasks", &id.to_string(), action, namespace)
}

/// The URL of a pool, or of an action on it.
pub(super) fn pool_href(key: &PoolKey, action: &str) -> String {
    object_href("pools", key.name.as_str(), action, &key.namespace)
}

/// The URL of a topic, or of an action on it.
pub(super) fn topic_href(key: &TopicKey, action: &str) -> String {
    object_href("topics", key.name.as_str(), action, &key.namespace)
}

/// The URL of an event.
pub(super) fn event_href(topic: &TopicKey, id: EventId) -> String {
    topic_href(topic, &format!("events/{id}"))
}

/// The URL of a consumer group, or of an action on it.
pub(super) fn group_href(key: &GroupKey, action: &str) -> String {
    let slash = if action.is_empty() { "" } else { "/" };
    topic_href(&key.topic, &format!("groups/{}{slash}{action}", escape(key.name.as_str())))
}

/// The URL of a parked event, or of an action on it.
pub(super) fn parked_href(key: &GroupKey, id: EventId, action: &str) -> String {
    let slash = if action.is_empty() { "" } else { "/" };
    group_href(key, &format!("parked-events/{id}{slash}{action}"))
}

/// The URL of a schedule, or of an action on it.
pub(super) fn schedule_href(key: &ScheduleKey, action: &str) -> String {
    object_href("schedules", key.name.as_str(), action, &key.namespace)
}

/// The URL of a schedule's history that starts with this tick.
pub(super) fn tick_href(key: &ScheduleKey, at_ms: i64) -> String {
    format!("{}&tick_at_ms={at_ms}#history", schedule_href(key, ""))
}

/// The URL of an object in a namespace, or of an action on it.
pub(super) fn object_href(what: &str, name: &str, action: &str, namespace: &Name) -> String {
    let slash = if action.is_empty() { "" } else { "/" };
    format!("/{what}/{}{slash}{action}?namespace={}", escape(name), escape(namespace.as_str()))
}

/// The state of a task: icon and word.
pub(super) fn task_state(at: TaskState) -> Markup {
    let kind = match at {
        TaskState::Waiting => "idle",
        TaskState::Scheduled => "later",
        TaskState::Ready => "next",
        TaskState::Blocked => "warn",
        TaskState::Claimed => "good",
        TaskState::Completed => "done",
        TaskState::Dead => "bad",
        TaskState::Cancelled => "off",
    };
    state(kind, at.as_str())
}

/// A notice that something is paused, with principal and reason. `means` describes the effect.
pub(super) fn paused(pause: &Pause, means: &str, wall: i64) -> Markup {
    notice(
        "warn",
        html! {
            p { span.strong { "Paused by " (pause.paused_by) } ", " (format::ago(pause.paused_at_ms, wall)) ". " (means) }
            @if !pause.reason.is_empty() { p { "“" (pause.reason) "”" } }
        },
    )
}

/// A notice that a part of the page could not be loaded.
pub(super) fn load_error(what: &str, error: &StoreError) -> Markup {
    html! { div.body { (notice("warn", html! { p { "Could not load " (what) ": " (error.kind) "." } })) } }
}

/// A confirmation form before an action. It posts to its own URL; the script shows it in a dialog.
pub(super) struct ConfirmDialog {
    pub(super) title: String,
    /// The URL of the form and of the action.
    pub(super) to: String,
    /// The URL of the Cancel link.
    pub(super) back: String,
    pub(super) button: &'static str,
    pub(super) danger: bool,
    pub(super) body: Markup,
}

impl ConfirmDialog {
    /// Render the form as a page.
    pub(super) fn page(self, ctx: &PageContext, tab: &str) -> axum::response::Response {
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
        super::layout::page(ctx, &self.title, tab, content)
    }
}

/// The field for a reason.
pub(super) fn reason_field() -> Markup {
    html! {
        div.field {
            label for="reason" { "Reason" }
            input #reason name="reason" maxlength="500" autocomplete="off" placeholder="For example: database upgrade until noon";
            small { "Shown to other operators." }
        }
    }
}

/// A kind, type or address. A long text may wrap after dots, slashes and colons.
pub(super) fn breakable(text: &str) -> Markup {
    const SHORT: usize = 14;
    html! {
        @if text.len() <= SHORT { (text) }
        @else { @for part in text.split_inclusive(['.', '/', ':', '_', '@']) { (part) wbr; } }
    }
}

/// A list of tags or similar words.
pub(super) fn chips(all: &[String]) -> Markup {
    html! { @if all.is_empty() { span.soft { "–" } } @else { div.chips { @for one in all { span.chip { (one) } } } } }
}

/// The display name of the holder of a lease.
pub(super) fn holder_name<'v>(view: &'v ElectionView, holder: &'v SessionView) -> &'v str {
    view.candidate(&holder.id).map_or(&holder.name, |candidate| &candidate.name)
}

/// The state of an election in a sentence, for tables, titles and screen readers.
pub(super) fn announcement(view: &ElectionView) -> String {
    let key = &view.key;
    if let Some(pause) = &view.paused {
        return format!("{key} is paused by {}", pause.paused_by);
    }
    let leaders: Vec<_> = view
        .holders()
        .map(|(lease, holder)| format!("{} with token {}", holder_name(view, holder), lease.token))
        .collect();
    if leaders.is_empty() {
        format!("{key} has no leader")
    } else {
        format!("Leader of {key}: {}", leaders.join(" and "))
    }
}

/// A state: icon and word.
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

/// The state of an election. A leader without heartbeats within its lease counts as unresponsive.
pub(super) fn election_state(view: &ElectionView, snapshot: &ElectionsSnapshot, now: BootInstant) -> Markup {
    let leaders = view.holders().count();
    let unresponsive =
        view.holders().filter(|(_, holder)| lease_remaining(holder, snapshot, now).is_zero()).count();
    match (&view.paused, leaders) {
        (Some(_), 0) => state("warn", "Paused"),
        (Some(_), _) => state("warn", "Pausing"),
        (None, 0) if view.candidates.is_empty() => state("idle", "No candidates"),
        // Observers never lead, so a missing leader is not a fault.
        (None, 0) if view.candidates.iter().all(|candidate| candidate.observer) => {
            state("idle", "Only observers")
        }
        (None, 0) => state("bad", "No leader"),
        // While this server cannot read the store, missing heartbeats prove nothing.
        (None, _) if unresponsive == leaders && snapshot.error.is_some() => state("idle", "Unknown"),
        (None, _) if unresponsive == leaders => state("bad", "Leader unresponsive"),
        (None, _) if view.slots > 1 => {
            state("good", format!("{} of {} slots held", leaders - unresponsive, view.slots))
        }
        (None, _) => state("good", "Has leader"),
    }
}

/// The lease remaining of a holder. A session without an observed heartbeat counts as just opened.
pub(super) fn lease_remaining(
    holder: &SessionView,
    snapshot: &ElectionsSnapshot,
    now: BootInstant,
) -> Duration {
    snapshot
        .lease_remaining(&holder.id, now)
        .unwrap_or_else(|| if holder.live { holder.lease() * 2 / 3 } else { Duration::ZERO })
}

/// The lease remaining as a bar that the script counts down.
pub(super) fn lease_bar(
    remaining: Duration,
    total: Duration,
    of: &str,
    snapshot: &ElectionsSnapshot,
) -> Markup {
    let (remaining_ms, total_ms) = (remaining.as_millis() as u64, total.as_millis() as u64);
    let disconnected = snapshot.error.is_some();
    let class = match remaining_ms {
        0 if disconnected => "lease",
        0 => "lease none",
        remaining if remaining * 3 < total_ms => "lease low",
        _ => "lease",
    };
    html! {
        span class=(class) data-remaining-ms=(remaining_ms) data-total-ms=(total_ms) data-disconnected[disconnected] {
            progress max=(total_ms) value=(remaining_ms) aria-label={ "Lease remaining of " (of) } {}
            output { @if remaining_ms == 0 && disconnected { "unknown" } @else { (format::seconds(remaining_ms)) } }
        }
    }
}

/// The token of a lease; a dash if it was never granted.
pub(super) fn token(lease: &LeaseView) -> Markup {
    html! { @if lease.token == tenure::Token::ZERO { span.soft { "–" } } @else { span.token { (lease.token) } } }
}

/// A notice of kind `good`, `warn` or `bad`.
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

/// A command with a Copy button, which the script shows.
pub(super) fn command(id: &str, text: &str) -> Markup {
    html! {
        div.command {
            pre #(id) tabindex="0" { (text) }
            button.button.slim type="button" data-copy=(id) { "Copy" }
        }
    }
}

/// A new secret, shown once.
pub(super) fn secret(what: &str, text: &str) -> Markup {
    notice(
        "good",
        html! {
            p { span.strong { (what) } " Copy it now; it is not shown again." }
            (command("secret", text))
        },
    )
}

/// The validation error of a form that is shown again with its values.
#[derive(Clone, Copy)]
pub(super) struct FormErrors<'p>(pub(super) Option<&'p Problem>);

impl FormErrors<'_> {
    /// The `aria-invalid` attribute of a field.
    pub(super) fn aria_invalid(self, field: &str) -> Option<&'static str> {
        self.is_in(field).then_some("true")
    }

    fn is_in(self, field: &str) -> bool {
        self.0.and_then(|problem| problem.field.as_deref()) == Some(field)
    }

    /// The error of a field, rendered below it.
    pub(super) fn below(self, field: &str) -> Markup {
        html! {
            @if let Some(problem) = self.0.filter(|_| self.is_in(field)) {
                small.field-error id={ (field) "-error" } role="alert" { (problem.detail) }
            }
        }
    }

    /// An error of none of these fields, rendered above the form.
    pub(super) fn above(self, fields: &[&str]) -> Markup {
        html! {
            @if let Some(problem) = self.0.filter(|_| !fields.iter().any(|field| self.is_in(field))) {
                (notice("bad", html! { p { (problem.detail) } }))
            }
        }
    }
}

/// Whether the form is shown again with its error, because the user can correct it.
pub(super) fn is_correctable(problem: &Problem) -> bool {
    matches!(
        problem.status,
        http::StatusCode::UNPROCESSABLE_ENTITY
            | http::StatusCode::CONFLICT
            | http::StatusCode::PAYLOAD_TOO_LARGE
    )
}

/// Set the status of a problem on the page that shows a rejected form again.
pub(super) fn rejected(mut page: axum::response::Response, problem: &Problem) -> axum::response::Response {
    *page.status_mut() = problem.status;
    page
}
