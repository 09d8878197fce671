//! Output of tasks: tables, and the details of one task.

use tenure::port::{KindStats, Percentiles, QueueKey, TaskFilter, TaskId, TaskState, TaskView};

use crate::args::parsers::format_instant;
use crate::output::{Table, TextStyle, ago, clipped, paint, plain, span};

/// Maximum printed length of a payload or result.
const SHOWN: usize = 2000;

pub(super) fn list(tasks: &[TaskView], filter: &TaskFilter, now_ms: i64) -> String {
    if tasks.is_empty() {
        return empty_message(filter);
    }
    let (namespaces, queues) = (filter.namespace.is_none(), filter.queue.is_none());
    let mut header = vec!["task", "kind", "state", "priority", "attempt", "age", "worker", "details"];
    if queues {
        header.insert(1, "queue");
    }
    if namespaces {
        header.insert(0, "namespace");
    }
    let mut table = Table::new(&header).right(&["task", "priority", "attempt", "age"]);
    for task in tasks {
        let mut row = vec![
            (task.id.to_string(), TextStyle::Bold),
            (or_dash(&task.kind), TextStyle::Plain),
            (task.state.as_str().to_owned(), style(task.state)),
            (task.priority.to_string(), if task.priority == 0 { TextStyle::Dim } else { TextStyle::Plain }),
            (format!("{}/{}", task.attempt, task.max_attempts), TextStyle::Plain),
            (ago(task.submitted_at_ms, now_ms), TextStyle::Plain),
            (task.worker.as_deref().map_or_else(|| "–".to_owned(), or_dash), TextStyle::Plain),
            (details(task, now_ms), TextStyle::Dim),
        ];
        if queues {
            row.insert(1, (task.queue.to_string(), TextStyle::Plain));
        }
        if namespaces {
            row.insert(0, (task.namespace.to_string(), TextStyle::Dim));
        }
        table.row(row);
    }
    let more = match tasks.last() {
        Some(last) if tasks.len() >= filter.limit as usize => {
            paint(&format!("… more: --cursor {}", last.id), TextStyle::Dim) + "\n"
        }
        _ => String::new(),
    };
    table.render() + &more
}

fn empty_message(filter: &TaskFilter) -> String {
    let narrow = filter.queue.is_some()
        || !filter.states.is_empty()
        || filter.kind.is_some()
        || filter.worker.is_some()
        || filter.before.is_some();
    match narrow {
        true => "no matching tasks\n".to_owned(),
        false => {
            "there are no tasks; try: tenure tasks submit mail --payload '{\"to\":\"ada\"}'\n".to_owned()
        }
    }
}

pub(super) fn style(state: TaskState) -> TextStyle {
    match state {
        TaskState::Claimed => TextStyle::Green,
        TaskState::Waiting | TaskState::Scheduled | TaskState::Blocked => TextStyle::Yellow,
        TaskState::Dead => TextStyle::Red,
        TaskState::Completed | TaskState::Cancelled => TextStyle::Dim,
        TaskState::Ready => TextStyle::Plain,
    }
}

/// Short details of a task by state.
fn details(task: &TaskView, now_ms: i64) -> String {
    let last_error = || task.failures.last().map(|failure| failure.error.clone());
    match task.state {
        TaskState::Waiting => match task.parents.as_slice() {
            [parent] => format!("for parent {parent}"),
            parents => format!("for {} parents", parents.len()),
        },
        TaskState::Scheduled => {
            let due = task.run_at_ms.map(|at| format!("in {}", ago(now_ms, at)));
            let error = last_error().map(|error| format!("after: {error}"));
            [due, error].into_iter().flatten().collect::<Vec<_>>().join(" ")
        }
        TaskState::Ready => last_error().map(|error| format!("retry after: {error}")).unwrap_or_default(),
        TaskState::Blocked => {
            format!("limit of key {} reached", task.concurrency_key.as_deref().unwrap_or_default())
        }
        TaskState::Claimed => {
            let since = task.claimed_at_ms.map(|at| format!("for {}", ago(at, now_ms)));
            let left = task.claim_expires_at_ms.map(|at| match at > now_ms {
                true => format!("{} left", ago(now_ms, at)),
                false => "overdue".to_owned(),
            });
            [since, left, task.progress.clone()].into_iter().flatten().collect::<Vec<_>>().join(", ")
        }
        TaskState::Completed => match (task.claimed_at_ms, task.finished_at_ms) {
            (Some(from), Some(to)) => format!("in {}", span((to - from).max(0).unsigned_abs())),
            _ => String::new(),
        },
        TaskState::Dead | TaskState::Cancelled => {
            task.end_reason.clone().or_else(last_error).unwrap_or_default()
        }
    }
}

pub(super) fn show(task: &TaskView, now_ms: i64) -> String {
    let what = if task.kind.is_empty() { "task".to_owned() } else { task.kind.clone() };
    let mut text = format!(
        "{} {}  {}\n\n",
        paint(&format!("{}/{}", task.queue, task.id), TextStyle::Bold),
        plain(&what),
        paint(&status(task, now_ms), style(task.state))
    );
    text.push_str(&timeline(task, now_ms));
    text.push('\n');
    text.push_str(&facts(task));
    text
}

fn status(task: &TaskView, now_ms: i64) -> String {
    let attempt = format!("attempt {} of {}", task.attempt, task.max_attempts);
    let worker = task.worker.as_deref().map(plain).unwrap_or_default();
    let state = task.state.as_str();
    match (task.state, details(task, now_ms)) {
        (TaskState::Claimed, details) => {
            format!("claimed by {worker} under token {}, {attempt}, {details}", task.token)
        }
        (TaskState::Completed, _) => format!("completed by {worker} under token {}, {attempt}", task.token),
        (_, details) if details.is_empty() => state.to_owned(),
        (TaskState::Dead | TaskState::Cancelled, details) => format!("{state}: {}", plain(&details)),
        (_, details) => format!("{state} {}", plain(&details)),
    }
}

/// Timeline of a task from its submission.
fn timeline(task: &TaskView, now_ms: i64) -> String {
    let mut events: Vec<(i64, &str, String, TextStyle)> = Vec::new();
    let by_leader = task.leader_token.map(|token| format!(" by the leader with token {token}"));
    events.push((
        task.submitted_at_ms,
        "●",
        format!("submitted{}", by_leader.unwrap_or_default()),
        TextStyle::Plain,
    ));
    for failure in &task.failures {
        let what = format!("attempt {} failed on {}: {}", failure.attempt, failure.worker, failure.error);
        events.push((failure.failed_at_ms, "✗", what, TextStyle::Red));
    }
    if let Some(at) = task.ready_at_ms {
        events.push((at, "●", "ready".to_owned(), TextStyle::Plain));
    }
    if let Some(at) = task.claimed_at_ms {
        let turn = task.claim_seq.map(|turn| format!(", claim sequence {turn}")).unwrap_or_default();
        let worker = task.worker.as_deref().unwrap_or("a worker");
        let what = format!("claimed by {worker} under token {}{turn}", task.token);
        events.push((
            at,
            "●",
            what,
            if task.state == TaskState::Claimed { TextStyle::Green } else { TextStyle::Plain },
        ));
    }
    if let Some(at) = task.finished_at_ms {
        let (mark, style) = match task.state {
            TaskState::Completed => ("✓", TextStyle::Green),
            TaskState::Dead => ("✗", TextStyle::Red),
            _ => ("○", TextStyle::Yellow),
        };
        let reason = task.end_reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        events.push((at, mark, format!("{}{reason}", task.state.as_str()), style));
    }
    // The sort is stable: entries with the same instant keep the order above.
    events.sort_by_key(|event| event.0);
    if task.state == TaskState::Scheduled
        && let Some(at) = task.run_at_ms
    {
        events.push((at, "◌", format!("due in {}", ago(now_ms, at)), TextStyle::Yellow));
    }
    if task.state == TaskState::Claimed
        && let Some(at) = task.claim_expires_at_ms
    {
        let when = if at > now_ms { format!("in {}", ago(now_ms, at)) } else { "now".to_owned() };
        events.push((at, "◌", format!("the claim expires {when} without a heartbeat"), TextStyle::Yellow));
    }
    let mut table = Table::plain();
    for (at, mark, what, style) in events {
        let after = match at - task.submitted_at_ms {
            ..=0 => String::new(),
            ms => format!("+{}", span(ms.unsigned_abs())),
        };
        table.row(vec![
            (format_instant(at), TextStyle::Dim),
            (format!("{after:>8}"), TextStyle::Dim),
            (mark.to_owned(), style),
            (what, style),
        ]);
    }
    table.render()
}

/// Properties of a task; empty ones are omitted.
fn facts(task: &TaskView) -> String {
    let numbers = |ids: &[TaskId]| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let millis = |ms: Option<u64>| ms.map(span).unwrap_or_default();
    let at_most = |key: &String| format!("{key}, limit {}", task.concurrency_limit);
    let facts = [
        ("priority", if task.priority == 0 { String::new() } else { task.priority.to_string() }),
        ("required tags", task.required_tags.join(" ")),
        ("preferred tags", task.preferred_tags.join(" ")),
        ("allowed workers", task.allowed_workers.join(" ")),
        ("parents", numbers(&task.parents)),
        ("children", numbers(&task.children)),
        ("idempotency key", task.idempotency_key.clone().unwrap_or_default()),
        ("concurrency key", task.concurrency_key.as_ref().map(at_most).unwrap_or_default()),
        ("max wait", millis(task.max_wait_ms)),
        ("max run", millis(task.max_run_ms)),
        ("progress", task.progress.clone().unwrap_or_default()),
        ("session", task.session.as_ref().map(|id| id.short().to_owned()).unwrap_or_default()),
        ("payload", task.payload.to_string()),
        ("result", task.result.as_ref().map(ToString::to_string).unwrap_or_default()),
    ];
    let shown: Vec<_> = facts.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    let width = shown.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, value): (&str, String)| {
        let rest = if value.chars().count() > SHOWN {
            paint(" (use -o json for the whole value)", TextStyle::Dim)
        } else {
            String::new()
        };
        // Not cut to the width of the terminal, unlike a table.
        let (name, value) =
            (paint(&format!("{name:width$}"), TextStyle::Dim), plain(&clipped(&value, SHOWN)));
        format!("{name}  {value}{rest}\n")
    };
    shown.into_iter().map(line).collect()
}

pub(super) fn stats(queue: &QueueKey, stats: &[KindStats]) -> String {
    if stats.is_empty() {
        return format!("{queue} has no finished tasks; they may have been pruned\n");
    }
    let header = ["kind", "completed", "dead", "wait p50", "p95", "p99", "run p50", "p95", "p99"];
    let mut table = Table::new(&header).right(&header[1..]);
    for kind in stats {
        let spread =
            |spread: Percentiles| [spread.p50, spread.p95, spread.p99].map(|ms| (span(ms), TextStyle::Plain));
        let mut row = vec![
            (or_dash(&kind.kind), TextStyle::Bold),
            (kind.completed.to_string(), TextStyle::Green),
            (kind.dead.to_string(), if kind.dead > 0 { TextStyle::Red } else { TextStyle::Dim }),
        ];
        row.extend(spread(kind.wait_ms).into_iter().chain(spread(kind.run_ms)));
        table.row(row);
    }
    table.render()
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "–".to_owned() } else { text.to_owned() }
}

/// A task with a history.
#[cfg(test)]
pub(super) fn sample(state: TaskState) -> TaskView {
    let text = r#"{
        "id": 42, "namespace": "default", "queue": "mail", "kind": "welcome", "state": "ready",
        "payload": {"to": "ada"}, "result": null, "priority": 5, "required_tags": ["gpu"], "preferred_tags": [],
        "allowed_workers": [],
        "attempt": 2, "max_attempts": 20, "backoff": {"initial_ms": 1000, "max_ms": 60000}, "token": 1099511627783,
        "claim_seq": null, "worker": "box-1", "session": null, "progress": null,
        "failures": [{"attempt": 1, "failed_at_ms": 1500, "worker": "box-2", "error": "no route"}], "end_reason": null,
        "parents": [], "children": [43], "idempotency_key": null, "concurrency_key": null, "concurrency_limit": 1,
        "leader_token": null, "max_wait_ms": null, "max_run_ms": null, "submitted_at_ms": 1000,
        "effective_at_ms": 1000, "run_at_ms": null, "ready_at_ms": 1900, "claimed_at_ms": 2000, "claim_expires_at_ms": null,
        "finished_at_ms": null}"#;
    TaskView { state, ..serde_json::from_str(text).expect("a task") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_shows_details_by_state() {
        let at = |state| list(&[sample(state)], &TaskFilter { limit: 50, ..TaskFilter::default() }, 61_000);
        let header = "NAMESPACE  TASK  QUEUE  KIND     STATE    PRIORITY  ATTEMPT    AGE  WORKER  DETAILS";
        assert_eq!(at(TaskState::Claimed).lines().next(), Some(header));
        assert!(at(TaskState::Claimed).contains("1m00s  box-1   for 59s"), "{}", at(TaskState::Claimed));
        assert!(at(TaskState::Dead).contains("no route"));
        assert!(at(TaskState::Ready).contains("retry after: no route"));
        let page = list(&[sample(TaskState::Ready)], &TaskFilter { limit: 1, ..TaskFilter::default() }, 0);
        assert!(page.contains("--cursor 42"), "{page}");
    }

    #[test]
    fn a_task_is_shown_with_its_timeline() {
        let task = TaskView {
            finished_at_ms: Some(3_250),
            result: Some("{\"sent\":true}".parse().expect("JSON")),
            ..sample(TaskState::Completed)
        };
        let shown = show(&task, 61_000);
        let wanted = "\
mail/42 welcome  completed by box-1 under token 1.7, attempt 2 of 20

1970-01-01 00:00:01Z            ●  submitted
1970-01-01 00:00:01Z    +500ms  ✗  attempt 1 failed on box-2: no route
1970-01-01 00:00:01Z    +900ms  ●  ready
1970-01-01 00:00:02Z       +1s  ●  claimed by box-1 under token 1.7
1970-01-01 00:00:03Z     +2.2s  ✓  completed

priority       5
required tags  gpu
children       43
payload        {\"to\": \"ada\"}
result         {\"sent\":true}
";
        assert_eq!(shown, wanted);
    }

    #[test]
    fn control_characters_are_escaped() {
        let task = TaskView {
            kind: "\u{1b}[2J".into(),
            payload: "\"\\u0007\u{7f}\"".parse().expect("JSON"),
            end_reason: Some("a\nb".into()),
            ..sample(TaskState::Dead)
        };
        let shown = show(&task, 61_000);
        assert!(!shown.contains(['\u{1b}', '\u{7f}']), "{shown:?}");
        assert!(shown.contains("a\\nb"));
    }
}
