//! Tasks as tables, and one of them as a story.

use tenure::port::{KindStats, QueueKey, Spread, TaskFilter, TaskId, TaskState, TaskView};

use crate::args::values::stamp;
use crate::output::{Ink, Table, ago, clipped, paint, plain, span};

/// How much of a payload or an output is shown to people.
const SHOWN: usize = 2000;

pub(super) fn list(tasks: &[TaskView], filter: &TaskFilter, now_ms: i64) -> String {
    if tasks.is_empty() {
        return nothing(filter);
    }
    let (namespaces, queues) = (filter.namespace.is_none(), filter.queue.is_none());
    let mut header = vec!["task", "kind", "state", "pri", "try", "age", "worker", "about"];
    if queues {
        header.insert(1, "queue");
    }
    if namespaces {
        header.insert(0, "namespace");
    }
    let mut table = Table::new(&header).right(&["task", "pri", "try", "age"]);
    for task in tasks {
        let mut row = vec![
            (task.id.to_string(), Ink::Bold),
            (or_dash(&task.kind), Ink::Plain),
            (task.state.as_str().to_owned(), ink(task.state)),
            (task.priority.to_string(), if task.priority == 0 { Ink::Dim } else { Ink::Plain }),
            (format!("{}/{}", task.attempt, task.max_attempts), Ink::Plain),
            (ago(task.enqueued_at_ms, now_ms), Ink::Plain),
            (task.worker.as_deref().map_or_else(|| "–".to_owned(), or_dash), Ink::Plain),
            (about(task, now_ms), Ink::Dim),
        ];
        if queues {
            row.insert(1, (task.queue.to_string(), Ink::Plain));
        }
        if namespaces {
            row.insert(0, (task.namespace.to_string(), Ink::Dim));
        }
        table.row(row);
    }
    let more = match tasks.last() {
        Some(last) if tasks.len() >= filter.limit as usize => {
            paint(&format!("… older ones: --before {}", last.id), Ink::Dim) + "\n"
        }
        _ => String::new(),
    };
    table.render() + &more
}

fn nothing(filter: &TaskFilter) -> String {
    let narrow = filter.queue.is_some()
        || !filter.states.is_empty()
        || filter.kind.is_some()
        || filter.worker.is_some()
        || filter.before.is_some();
    match narrow {
        true => "there are no such tasks\n".to_owned(),
        false => {
            "there are no tasks yet; try: tenure tasks submit mail --payload '{\"to\":\"ada\"}'\n".to_owned()
        }
    }
}

pub(super) fn ink(state: TaskState) -> Ink {
    match state {
        TaskState::Claimed => Ink::Green,
        TaskState::Waiting | TaskState::Scheduled | TaskState::Held => Ink::Yellow,
        TaskState::Dead => Ink::Red,
        TaskState::Completed | TaskState::Cancelled => Ink::Dim,
        TaskState::Ready => Ink::Plain,
    }
}

/// What is most worth knowing of it, in a few words.
fn about(task: &TaskView, now_ms: i64) -> String {
    let last_error = || task.failures.last().map(|failure| failure.error.clone());
    match task.state {
        TaskState::Waiting => match task.parents.as_slice() {
            [parent] => format!("for task {parent}"),
            parents => format!("for {} parents", parents.len()),
        },
        TaskState::Scheduled => {
            let due = task.run_at_ms.map(|at| format!("in {}", ago(now_ms, at)));
            let error = last_error().map(|error| format!("after: {error}"));
            [due, error].into_iter().flatten().collect::<Vec<_>>().join(" ")
        }
        TaskState::Ready => last_error().map(|error| format!("again after: {error}")).unwrap_or_default(),
        TaskState::Held => format!("key {} is full", task.concurrency_key.as_deref().unwrap_or_default()),
        TaskState::Claimed => {
            let since = task.claimed_at_ms.map(|at| format!("for {}", ago(at, now_ms)));
            let left = task.deadline_ms.map(|at| match at > now_ms {
                true => format!("{} left", ago(now_ms, at)),
                false => "overdue".to_owned(),
            });
            [since, left, task.progress.clone()].into_iter().flatten().collect::<Vec<_>>().join(", ")
        }
        TaskState::Completed => match (task.claimed_at_ms, task.finished_at_ms) {
            (Some(from), Some(to)) => format!("in {}", span((to - from).max(0).unsigned_abs())),
            _ => String::new(),
        },
        TaskState::Dead | TaskState::Cancelled => task.reason.clone().or_else(last_error).unwrap_or_default(),
    }
}

pub(super) fn show(task: &TaskView, now_ms: i64) -> String {
    let what = if task.kind.is_empty() { "task".to_owned() } else { task.kind.clone() };
    let mut text = format!(
        "{} {}  {}\n\n",
        paint(&format!("{}/{}", task.queue, task.id), Ink::Bold),
        plain(&what),
        paint(&standing(task, now_ms), ink(task.state))
    );
    text.push_str(&timeline(task, now_ms));
    text.push('\n');
    text.push_str(&facts(task));
    text
}

fn standing(task: &TaskView, now_ms: i64) -> String {
    let attempt = format!("attempt {} of {}", task.attempt, task.max_attempts);
    let worker = task.worker.as_deref().map(plain).unwrap_or_default();
    let state = task.state.as_str();
    match (task.state, about(task, now_ms)) {
        (TaskState::Claimed, about) => {
            format!("claimed by {worker} under token {}, {attempt}, {about}", task.token)
        }
        (TaskState::Completed, _) => format!("completed by {worker} under token {}, {attempt}", task.token),
        (_, about) if about.is_empty() => state.to_owned(),
        (TaskState::Dead | TaskState::Cancelled, about) => format!("{state}: {}", plain(&about)),
        (_, about) => format!("{state} {}", plain(&about)),
    }
}

/// What happened to it, in order, from its submission.
fn timeline(task: &TaskView, now_ms: i64) -> String {
    let mut events: Vec<(i64, &str, String, Ink)> = Vec::new();
    let by_leader = task.leader_token.map(|token| format!(" by the leader under token {token}"));
    events.push((
        task.enqueued_at_ms,
        "●",
        format!("submitted{}", by_leader.unwrap_or_default()),
        Ink::Plain,
    ));
    for failure in &task.failures {
        let what = format!("attempt {} failed at {}: {}", failure.attempt, failure.worker, failure.error);
        events.push((failure.at_ms, "✗", what, Ink::Red));
    }
    if let Some(at) = task.ready_at_ms {
        events.push((at, "●", "ready".to_owned(), Ink::Plain));
    }
    if let Some(at) = task.claimed_at_ms {
        let turn = task.turn.map(|turn| format!(", turn {turn} of the queue")).unwrap_or_default();
        let worker = task.worker.as_deref().unwrap_or("somebody");
        let what = format!("claimed by {worker} under token {}{turn}", task.token);
        events.push((at, "●", what, if task.state == TaskState::Claimed { Ink::Green } else { Ink::Plain }));
    }
    if let Some(at) = task.finished_at_ms {
        let (mark, ink) = match task.state {
            TaskState::Completed => ("✓", Ink::Green),
            TaskState::Dead => ("✗", Ink::Red),
            _ => ("○", Ink::Yellow),
        };
        let reason = task.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        events.push((at, mark, format!("{}{reason}", task.state.as_str()), ink));
    }
    // A stable sort: what the store stamped with the same moment stays in the order of a task's life.
    events.sort_by_key(|event| event.0);
    if task.state == TaskState::Scheduled
        && let Some(at) = task.run_at_ms
    {
        events.push((at, "◌", format!("due in {}", ago(now_ms, at)), Ink::Yellow));
    }
    if task.state == TaskState::Claimed
        && let Some(at) = task.deadline_ms
    {
        let when = if at > now_ms { format!("in {}", ago(now_ms, at)) } else { "now".to_owned() };
        events.push((at, "◌", format!("the claim ends {when}, unless it is extended"), Ink::Yellow));
    }
    let mut table = Table::plain();
    for (at, mark, what, ink) in events {
        let after = match at - task.enqueued_at_ms {
            ..=0 => String::new(),
            ms => format!("+{}", span(ms.unsigned_abs())),
        };
        table.row(vec![
            (stamp(at), Ink::Dim),
            (format!("{after:>8}"), Ink::Dim),
            (mark.to_owned(), ink),
            (what, ink),
        ]);
    }
    table.render()
}

/// What it is, and what it asks for; what there is nothing to say about is left out.
fn facts(task: &TaskView) -> String {
    let numbers = |ids: &[TaskId]| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let millis = |ms: Option<u64>| ms.map(span).unwrap_or_default();
    let at_most = |key: &String| format!("{key}, at most {} at once", task.concurrency_limit);
    let facts = [
        ("priority", if task.priority == 0 { String::new() } else { task.priority.to_string() }),
        ("requires", task.requires.join(" ")),
        ("prefers", task.prefers.join(" ")),
        ("meant for", task.workers.join(" ")),
        ("parents", numbers(&task.parents)),
        ("children", numbers(&task.children)),
        ("key", task.key.clone().unwrap_or_default()),
        ("concurrency", task.concurrency_key.as_ref().map(at_most).unwrap_or_default()),
        ("longest wait", millis(task.max_wait_ms)),
        ("longest run", millis(task.max_run_ms)),
        ("progress", task.progress.clone().unwrap_or_default()),
        ("session", task.session.as_ref().map(|id| id.short().to_owned()).unwrap_or_default()),
        ("payload", task.payload.to_string()),
        ("output", task.output.as_ref().map(ToString::to_string).unwrap_or_default()),
    ];
    let told: Vec<_> = facts.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    let width = told.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, value): (&str, String)| {
        let rest = if value.chars().count() > SHOWN {
            paint(" (-o json shows all)", Ink::Dim)
        } else {
            String::new()
        };
        // Not cut to the screen, as a table would be: this is what somebody looks for.
        let (name, value) = (paint(&format!("{name:width$}"), Ink::Dim), plain(&clipped(&value, SHOWN)));
        format!("{name}  {value}{rest}\n")
    };
    told.into_iter().map(line).collect()
}

pub(super) fn stats(queue: &QueueKey, stats: &[KindStats]) -> String {
    if stats.is_empty() {
        return format!("nothing of {queue} is finished yet, or it is no longer remembered\n");
    }
    let header = ["kind", "done", "dead", "waited p50", "p95", "p99", "ran p50", "p95", "p99"];
    let mut table = Table::new(&header).right(&header[1..]);
    for kind in stats {
        let spread = |spread: Spread| [spread.p50, spread.p95, spread.p99].map(|ms| (span(ms), Ink::Plain));
        let mut row = vec![
            (or_dash(&kind.kind), Ink::Bold),
            (kind.completed.to_string(), Ink::Green),
            (kind.dead.to_string(), if kind.dead > 0 { Ink::Red } else { Ink::Dim }),
        ];
        row.extend(spread(kind.wait_ms).into_iter().chain(spread(kind.run_ms)));
        table.row(row);
    }
    table.render()
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "–".to_owned() } else { text.to_owned() }
}

/// A task that has lived.
#[cfg(test)]
pub(super) fn sample(state: TaskState) -> TaskView {
    let text = r#"{
        "id": 42, "namespace": "default", "queue": "mail", "kind": "welcome", "state": "ready",
        "payload": {"to": "ada"}, "output": null, "priority": 5, "requires": ["gpu"], "prefers": [], "workers": [],
        "attempt": 2, "max_attempts": 20, "backoff": {"first_ms": 1000, "most_ms": 60000}, "token": 1099511627783,
        "turn": null, "worker": "box-1", "session": null, "progress": null,
        "failures": [{"attempt": 1, "at_ms": 1500, "worker": "box-2", "error": "no route"}], "reason": null,
        "parents": [], "children": [43], "key": null, "concurrency_key": null, "concurrency_limit": 1,
        "leader_token": null, "max_wait_ms": null, "max_run_ms": null, "enqueued_at_ms": 1000,
        "effective_at_ms": 1000, "run_at_ms": null, "ready_at_ms": 1900, "claimed_at_ms": 2000, "deadline_ms": null,
        "finished_at_ms": null}"#;
    TaskView { state, ..serde_json::from_str(text).expect("a task") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_says_what_is_most_worth_knowing() {
        let at = |state| list(&[sample(state)], &TaskFilter { limit: 50, ..TaskFilter::default() }, 61_000);
        let header = "NAMESPACE  TASK  QUEUE  KIND     STATE    PRI   TRY    AGE  WORKER  ABOUT";
        assert_eq!(at(TaskState::Claimed).lines().next(), Some(header));
        assert!(at(TaskState::Claimed).contains("1m00s  box-1   for 59s"), "{}", at(TaskState::Claimed));
        assert!(at(TaskState::Dead).contains("no route"));
        assert!(at(TaskState::Ready).contains("again after: no route"));
        let page = list(&[sample(TaskState::Ready)], &TaskFilter { limit: 1, ..TaskFilter::default() }, 0);
        assert!(page.contains("--before 42"), "{page}");
    }

    #[test]
    fn a_life_is_told_in_order() {
        let task = TaskView {
            finished_at_ms: Some(3_250),
            output: Some("{\"sent\":true}".parse().expect("JSON")),
            ..sample(TaskState::Completed)
        };
        let told = show(&task, 61_000);
        let wanted = "\
mail/42 welcome  completed by box-1 under token 1.7, attempt 2 of 20

1970-01-01 00:00:01Z            ●  submitted
1970-01-01 00:00:01Z    +500ms  ✗  attempt 1 failed at box-2: no route
1970-01-01 00:00:01Z    +900ms  ●  ready
1970-01-01 00:00:02Z       +1s  ●  claimed by box-1 under token 1.7
1970-01-01 00:00:03Z     +2.2s  ✓  completed

priority  5
requires  gpu
children  43
payload   {\"to\": \"ada\"}
output    {\"sent\":true}
";
        assert_eq!(told, wanted);
    }

    #[test]
    fn what_a_terminal_would_obey_is_shown_as_what_it_is() {
        let task = TaskView {
            kind: "\u{1b}[2J".into(),
            payload: "\"\\u0007\u{7f}\"".parse().expect("JSON"),
            reason: Some("a\nb".into()),
            ..sample(TaskState::Dead)
        };
        let told = show(&task, 61_000);
        assert!(!told.contains(['\u{1b}', '\u{7f}']), "{told:?}");
        assert!(told.contains("a\\nb"));
    }
}
