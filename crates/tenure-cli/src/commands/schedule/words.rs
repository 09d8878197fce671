//! Schedules in words.

use serde_json::Value;
use tenure::port::{Backoff, NewTask, ScheduleView};
use tenure::schedule::{Definition, Target, Timetable, When, Zone};

use crate::output::{Ink, plain, span};

const WEEKDAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];

/// A number that is easy to read: `1,234,567`.
pub(super) fn number(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 tick`, `1,234 ticks`.
pub(super) fn numbered(count: u64, thing: &str) -> String {
    format!("{} {thing}{}", number(count), if count == 1 { "" } else { "s" })
}

/// A moment on a wall clock: `Sun 2026-03-29 03:30:00+02:00`.
pub(super) fn on_clock(zone: &Zone, at_ms: i64) -> String {
    let local = at_ms.saturating_add(zone.offset_ms(at_ms));
    let weekday = (local.div_euclid(86_400_000) + 4).rem_euclid(7);
    let mut clock = zone.shown(at_ms).replacen('T', " ", 1);
    if zone.as_str() == "UTC" {
        clock = clock.replace("+00:00", "Z");
    }
    format!("{} {clock}", WEEKDAYS[weekday as usize])
}

/// `30 2 * * * in Europe/Berlin`; what knows no zone names none.
pub(super) fn times(definition: &Definition) -> String {
    match (&definition.when, definition.zone.as_str()) {
        (When::Every(every), _) if !every.to_string().contains('d') => definition.when.to_string(),
        (when, "UTC") => when.to_string(),
        (when, zone) => format!("{when} in {zone}"),
    }
}

/// `event beats`, `task reports`, `POST https://…`.
pub(super) fn target(target: &Target) -> String {
    match target {
        Target::Event { topic, .. } => format!("event to {topic}"),
        Target::Task { queue, .. } => format!("task in {queue}"),
        Target::Call { url } => format!("POST {url}"),
        _ => "something newer than this program".to_owned(),
    }
}

/// What else there is to say about it.
pub(super) fn details(target: &Target) -> Vec<(&'static str, String)> {
    match target {
        Target::Event { key: Some(key), .. } => vec![("key", key.clone())],
        Target::Task { task, .. } => task_details(task),
        _ => Vec::new(),
    }
}

fn task_details(task: &NewTask) -> Vec<(&'static str, String)> {
    let usual = NewTask::default();
    let mut details = Vec::new();
    let mut tell = |is_usual: bool, name: &'static str, value: String| {
        if !is_usual {
            details.push((name, value));
        }
    };
    tell(task.kind.is_empty(), "kind", task.kind.clone());
    tell(task.priority == usual.priority, "priority", task.priority.to_string());
    for (name, list) in [("requires", &task.requires), ("prefers", &task.prefers), ("workers", &task.workers)]
    {
        tell(list.is_empty(), name, list.join(" "));
    }
    for (name, time) in [("longest wait", task.max_wait_ms), ("longest run", task.max_run_ms)] {
        tell(time.is_none(), name, span(time.unwrap_or_default()));
    }
    tell(task.max_attempts == usual.max_attempts, "attempts", task.max_attempts.to_string());
    let Backoff { first_ms, most_ms } = task.backoff;
    tell(
        task.backoff == usual.backoff,
        "tried again",
        format!("after {} to {}", span(first_ms), span(most_ms)),
    );
    if let Some(key) = &task.concurrency_key {
        details.push(("at once", format!("{} of {key}", task.concurrency_limit)));
    }
    details
}

/// How it stands, in a word or two.
pub(super) fn state(view: &ScheduleView, now_ms: i64) -> (String, Ink) {
    match (&view.paused, &view.trouble, &view.progress) {
        (Some(_), ..) => ("paused".to_owned(), Ink::Yellow),
        (None, Some(_), _) => ("cannot fire".to_owned(), Ink::Red),
        (None, None, None) => ("over".to_owned(), Ink::Dim),
        (None, None, Some(_)) => match overdue(view, now_ms) {
            Some(late) => (format!("overdue for {}", span(late)), Ink::Red),
            None => ("on".to_owned(), Ink::Green),
        },
    }
}

/// How long a tick has been waiting to fire, if that is longer than it takes where somebody leads.
fn overdue(view: &ScheduleView, now_ms: i64) -> Option<u64> {
    let late = now_ms.saturating_sub(view.due_ms?);
    (late > OVERDUE_MS).then(|| late.unsigned_abs() / 1_000 * 1_000)
}

/// Clocks of different machines differ, and a leader that is being replaced is away for a lease.
const OVERDUE_MS: i64 = 15_000;

/// What the wall clock did between two ticks, if it was set: `+1h`.
pub(super) fn jump(zone: &Zone, before_ms: i64, at_ms: i64) -> Option<String> {
    let by = zone.offset_ms(at_ms) - zone.offset_ms(before_ms);
    let sign = if by > 0 { "ahead" } else { "back" };
    (by != 0).then(|| format!("the clock was set {sign} by {}", span(by.unsigned_abs())))
}

/// What becomes of times that the wall clock jumps over or shows twice.
pub(super) fn jumps(timetable: &Timetable) -> String {
    let (gap, fold) = timetable.policies();
    let word = |value: Value| value.as_str().unwrap_or_default().to_owned();
    let [gap, fold] =
        [serde_json::to_value(gap), serde_json::to_value(fold)].map(|it| word(it.unwrap_or_default()));
    format!("left out: {gap}, shown twice: {fold}")
}

/// A payload, short.
pub(super) fn payload(definition: &Definition, width: usize) -> String {
    crate::output::clipped(&plain(definition.payload.as_str()), width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_easy_to_read() {
        let cases = [
            (0, "0"),
            (7, "7"),
            (999, "999"),
            (1_000, "1,000"),
            (12_345, "12,345"),
            (1_234_567, "1,234,567"),
        ];
        for (count, text) in cases {
            assert_eq!(number(count), text);
        }
        assert_eq!((numbered(1, "tick"), numbered(2_000, "tick")), ("1 tick".into(), "2,000 ticks".into()));
    }

    #[test]
    fn a_moment_is_told_on_its_wall_clock_and_so_is_its_jump() {
        let zone: Zone = "Europe/Berlin".parse().unwrap();
        let spring = 1_774_747_800_000;
        assert_eq!(on_clock(&zone, spring), "Sun 2026-03-29 03:30:00+02:00");
        assert_eq!(on_clock(&Zone::utc(), 0), "Thu 1970-01-01 00:00:00Z");
        assert_eq!(
            jump(&zone, spring - 86_400_000, spring).as_deref(),
            Some("the clock was set ahead by 1h")
        );
        assert_eq!(jump(&zone, spring, spring + 1), None);
    }
}
