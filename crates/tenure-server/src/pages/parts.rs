//! Small pieces that several pages show.

use std::time::Duration;

use maud::{Markup, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tenure::port::{ElectionView, LeaseView, SessionView, Verb};
use tenure::{ElectionKey, Moment};

use super::frame::Visit;
use super::words;
use crate::board::Seen;

/// What needs no escape in a path or query of ours.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');

/// The text, fit to stand in an address.
pub(super) fn escape(text: &str) -> String {
    utf8_percent_encode(text, PLAIN).to_string()
}

/// The page of an election, or of an action on it.
pub(super) fn href(key: &ElectionKey, action: &str) -> String {
    let slash = if action.is_empty() { "" } else { "/" };
    let (name, namespace) = (escape(key.name.as_str()), escape(key.namespace.as_str()));
    format!("/elections/{name}{slash}{action}?namespace={namespace}")
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

/// That the store does not answer, if so. What it said is for those who look after it.
pub(super) fn store_trouble(seen: &Seen, now: Moment, visit: &Visit) -> Markup {
    html! {
        @if let Some(error) = &seen.trouble {
            (notice("bad", html! {
                p { span.strong { "The store does not answer." } " What you see is " (words::lasted(seen.age(now).as_millis() as i64)) " old." }
                @if visit.may(Verb::Admin, None) { p { (error) } }
            }))
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
            button.button.slim type="button" data-copy=(id) hidden { "Copy" }
        }
    }
}
