//! Text descriptions of schedules.

use serde_json::Value;
use tenure::port::{Backoff, NewTask, ScheduleView};
use tenure::rules::schedule::{ScheduleDefinition, ScheduleExpression, ScheduleTarget, Timetable, Zone};

use crate::output::{TextStyle, plain, span};

const WEEKDAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];

/// Formats a number: `1,234,567`.
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

/// Formats an instant in a time zone: `Sun 2026-03-29 03:30:00+02:00`.
pub(super) fn format_instant(zone: &Zone, at_ms: i64) -> String {
    let local = at_ms.saturating_add(zone.offset_ms(at_ms));
    let weekday = (local.div_euclid(86_400_000) + 4).rem_euclid(7);
    let mut clock = zone.format_local(at_ms).replacen('T', " ", 1);
    if zone.as_str() == "UTC" {
        clock = clock.replace("+00:00", "Z");
    }
    format!("{} {clock}", WEEKDAYS[weekday as usize])
}

/// Expression with its time zone, where it matters: `30 2 * * * in Europe/Berlin`.
pub(super) fn expression(definition: &ScheduleDefinition) -> String {
    match (&definition.expression, definition.time_zone.as_str()) {
        (ScheduleExpression::Interval(every), _) if !every.to_string().contains('d') => {
            definition.expression.to_string()
        }
        (when, "UTC") => when.to_string(),
        (when, zone) => format!("{when} in {zone}"),
    }
}

/// Target of a schedule: `event to beats`, `task in reports`, `POST https://…`.
pub(super) fn target(target: &ScheduleTarget) -> String {
    match target {
        ScheduleTarget::Event { topic, .. } => format!("event to {topic}"),
        ScheduleTarget::Task { queue, .. } => format!("task in {queue}"),
        ScheduleTarget::Webhook { url } => format!("POST {url}"),
        _ => "unknown target".to_owned(),
    }
}

/// Settings of a target with their values.
pub(super) fn details(target: &ScheduleTarget) -> Vec<(&'static str, String)> {
    match target {
        ScheduleTarget::Event { key: Some(key), .. } => vec![("key", key.clone())],
        ScheduleTarget::Task { task, .. } => task_details(task),
        _ => Vec::new(),
    }
}

fn task_details(task: &NewTask) -> Vec<(&'static str, String)> {
    let default = NewTask::default();
    let mut details = Vec::new();
    let mut add = |is_default: bool, name: &'static str, value: String| {
        if !is_default {
            details.push((name, value));
        }
    };
    add(task.kind.is_empty(), "kind", task.kind.clone());
    add(task.priority == default.priority, "priority", task.priority.to_string());
    for (name, list) in [
        ("required tags", &task.required_tags),
        ("preferred tags", &task.preferred_tags),
        ("allowed workers", &task.allowed_workers),
    ] {
        add(list.is_empty(), name, list.join(" "));
    }
    for (name, time) in [("max wait", task.max_wait_ms), ("max run", task.max_run_ms)] {
        add(time.is_none(), name, span(time.unwrap_or_default()));
    }
    add(task.max_attempts == default.max_attempts, "max attempts", task.max_attempts.to_string());
    let Backoff { initial_ms, max_ms } = task.backoff;
    add(task.backoff == default.backoff, "backoff", format!("{} to {}", span(initial_ms), span(max_ms)));
    if let Some(key) = &task.concurrency_key {
        details.push(("concurrency key", format!("{key}, limit {}", task.concurrency_limit)));
    }
    details
}

/// State of a schedule in a few words.
pub(super) fn state(view: &ScheduleView, now_ms: i64) -> (String, TextStyle) {
    match (&view.paused, &view.last_error, &view.tick_state) {
        (Some(_), ..) => ("paused".to_owned(), TextStyle::Yellow),
        (None, Some(_), _) => ("failing".to_owned(), TextStyle::Red),
        (None, None, None) => ("ended".to_owned(), TextStyle::Dim),
        (None, None, Some(_)) => match overdue(view, now_ms) {
            Some(late) => (format!("overdue for {}", span(late)), TextStyle::Red),
            None => ("active".to_owned(), TextStyle::Green),
        },
    }
}

/// How long a tick is overdue, if longer than an elected scheduler needs.
fn overdue(view: &ScheduleView, now_ms: i64) -> Option<u64> {
    let late = now_ms.saturating_sub(view.due_at_ms?);
    (late > OVERDUE_MS).then(|| late.unsigned_abs() / 1_000 * 1_000)
}

/// Tolerance for clock differences and for the takeover of the scheduler role.
const OVERDUE_MS: i64 = 15_000;

/// Change of the UTC offset between two ticks, if any.
pub(super) fn offset_change(zone: &Zone, before_ms: i64, at_ms: i64) -> Option<String> {
    let by = zone.offset_ms(at_ms) - zone.offset_ms(before_ms);
    let sign = if by > 0 { "forward" } else { "back" };
    (by != 0).then(|| format!("the clock moves {sign} by {}", span(by.unsigned_abs())))
}

/// Describes the DST policies.
pub(super) fn dst_policies(timetable: &Timetable) -> String {
    let (gap, overlap) = timetable.policies();
    let word = |value: Value| value.as_str().unwrap_or_default().to_owned();
    let [gap, overlap] =
        [serde_json::to_value(gap), serde_json::to_value(overlap)].map(|it| word(it.unwrap_or_default()));
    format!("gap: {gap}, overlap: {overlap}")
}

/// A payload, cut to a width.
pub(super) fn payload(definition: &ScheduleDefinition, width: usize) -> String {
    crate::output::clipped(&plain(definition.payload.as_str()), width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_separators() {
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
    fn an_instant_is_formatted_in_its_time_zone() {
        let zone: Zone = "Europe/Berlin".parse().unwrap();
        let spring = 1_774_747_800_000;
        assert_eq!(format_instant(&zone, spring), "Sun 2026-03-29 03:30:00+02:00");
        assert_eq!(format_instant(&Zone::utc(), 0), "Thu 1970-01-01 00:00:00Z");
        assert_eq!(
            offset_change(&zone, spring - 86_400_000, spring).as_deref(),
            Some("the clock moves forward by 1h")
        );
        assert_eq!(offset_change(&zone, spring, spring + 1), None);
    }
}
