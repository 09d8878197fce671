//! Explains why a task is not claimed.

use tenure::port::{TaskState, TaskView, WaitReason};

use crate::args::parsers::format_instant;
use crate::output::{TextStyle, ago, paint, plain, span};

pub(super) fn explain(task: &TaskView, reasons: &[WaitReason], now_ms: i64) -> String {
    let mut text = format!("{}\n", paint(&headline(task, reasons), TextStyle::Bold));
    for reason in reasons {
        let (sentence, remedy) = sentence(task, reason, now_ms);
        text.push_str(&format!("{} {}\n", paint("●", style(reason)), plain(&sentence)));
        if !remedy.is_empty() {
            text.push_str(&format!("  {}\n", paint(&plain(&remedy), TextStyle::Dim)));
        }
    }
    text
}

fn headline(task: &TaskView, reasons: &[WaitReason]) -> String {
    let (id, queue) = (task.id, &task.queue);
    match reasons {
        [WaitReason::NotPending { state }, ..] => format!("task {id} of {queue} is {}", state.as_str()),
        [WaitReason::Claimable { .. }, ..] => format!("task {id} of {queue} can be claimed"),
        _ => format!("task {id} of {queue} is {} and is not claimed, because", task.state.as_str()),
    }
}

fn style(reason: &WaitReason) -> TextStyle {
    match reason {
        WaitReason::Claimable { .. } | WaitReason::NotPending { .. } => TextStyle::Green,
        WaitReason::NotDue { .. } | WaitReason::PendingParents { .. } | WaitReason::RateLimit { .. } => {
            TextStyle::Plain
        }
        WaitReason::ConcurrencyLimit { .. } | WaitReason::QueueLimit { .. } | WaitReason::Paused { .. } => {
            TextStyle::Yellow
        }
        _ => TextStyle::Red,
    }
}

/// Explanation of a reason, and the command that resolves it.
fn sentence(task: &TaskView, reason: &WaitReason, now_ms: i64) -> (String, String) {
    let queue = &task.queue;
    let none = String::new();
    match reason {
        WaitReason::Claimable { matching_workers, tasks_ahead } => {
            let fit = match matching_workers {
                0 => "no worker has claimed it yet".to_owned(),
                1 => "one matching worker is online; it is busy or has not claimed yet".to_owned(),
                n => format!("{n} matching workers are online; they are busy or have not claimed yet"),
            };
            let before = match tasks_ahead {
                0 => "it is the next task".to_owned(),
                1 => "one task is ahead of it".to_owned(),
                n => format!("{n} tasks are ahead of it"),
            };
            (format!("{fit}; {before}"), none)
        }
        WaitReason::NotPending { state } => not_waiting(task, *state, now_ms),
        WaitReason::Paused { pause } => {
            let reason = if pause.reason.is_empty() { none } else { format!(": {}", pause.reason) };
            (
                format!(
                    "the queue or its namespace was paused by {} {} ago{reason}",
                    pause.paused_by,
                    ago(pause.paused_at_ms, now_ms)
                ),
                format!("tenure queues resume {queue}  (or --all)"),
            )
        }
        WaitReason::NotDue { run_at_ms } => (
            format!("it is scheduled: due in {}, at {}", ago(now_ms, *run_at_ms), format_instant(*run_at_ms)),
            format!("to run it now: tenure tasks retry {}", task.id),
        ),
        WaitReason::PendingParents { tasks } => {
            let ids: Vec<_> = tasks.iter().map(ToString::to_string).collect();
            let first = ids.first().cloned().unwrap_or_default();
            match ids.len() {
                1 => (format!("its parent {first} is not completed"), format!("tenure tasks why {first}")),
                _ => (
                    format!("its parents {} are not completed", and(&ids)),
                    format!("tenure tasks why {first}"),
                ),
            }
        }
        WaitReason::ConcurrencyLimit { key, limit: 1 } => {
            (format!("the limit of 1 claimed task for the concurrency key {key} is reached"), none)
        }
        WaitReason::ConcurrencyLimit { key, limit } => {
            (format!("the limit of {limit} claimed tasks for the concurrency key {key} is reached"), none)
        }
        WaitReason::QueueLimit { limit } => (
            format!("the limit of {limit} claimed tasks of the queue is reached"),
            format!("tenure queues set {queue} --max-claimed {}", u64::from(*limit) * 2),
        ),
        WaitReason::RateLimit { next_in_ms } => (
            format!(
                "the rate limit of the queue is reached; the next claim is possible in {}",
                span(*next_in_ms)
            ),
            format!("tenure queues set {queue} --rate none"),
        ),
        WaitReason::NoWorkers => (
            format!("no worker of {queue} is online"),
            format!("tenure work {queue} -- COMMAND  (or see `tenure workers list`)"),
        ),
        WaitReason::NoWorkerWithTags { tags } => (
            format!("no online worker of {queue} has the tags {}", and(tags)),
            format!("tenure work {queue} --tag {} -- COMMAND", tags.join(" --tag ")),
        ),
        WaitReason::NoWorkerForKind { kind } => (
            format!("no online worker of {queue} accepts the kind {kind}"),
            "see `tenure workers list`".to_owned(),
        ),
        WaitReason::AllowedWorkersOffline { matching_workers: workers } => (
            format!("only {} may claim it, and none is online", or(workers)),
            "see `tenure workers list`".to_owned(),
        ),
        WaitReason::NoApprovedWorker { unapproved_workers: pending } => {
            let first = pending.first().cloned().unwrap_or_default();
            (
                format!("the queue requires approval, and no matching worker is approved: {}", and(pending)),
                format!("tenure workers approve {first}"),
            )
        }
        WaitReason::NoBroker => (
            format!("{queue} is exclusive, and there is no broker (election tenure/broker)"),
            "start a worker or a server; or: tenure queues mode … --fallback distributed".to_owned(),
        ),
    }
}

fn not_waiting(task: &TaskView, state: TaskState, now_ms: i64) -> (String, String) {
    let worker = task.worker.as_deref().unwrap_or("a worker");
    match state {
        TaskState::Claimed => {
            let since = task.claimed_at_ms.map(|at| format!(" for {}", ago(at, now_ms))).unwrap_or_default();
            (format!("{worker} has claimed it{since} under token {}", task.token), String::new())
        }
        TaskState::Completed => (format!("{worker} completed it under token {}", task.token), String::new()),
        TaskState::Dead | TaskState::Cancelled => {
            let last = task.failures.last().map(|failure| failure.error.clone());
            let reason = task.end_reason.clone().or(last).unwrap_or_else(|| "no reason was given".to_owned());
            (reason, format!("to retry: tenure tasks retry {}", task.id))
        }
        state => (format!("it is {}", state.as_str()), String::new()),
    }
}

fn and(words: &[String]) -> String {
    joined(words, "and")
}

fn or(words: &[String]) -> String {
    joined(words, "or")
}

fn joined(words: &[String], last: &str) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [rest @ .., end] => format!("{} {last} {end}", rest.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use tenure::port::{Pause, TaskId};

    use super::super::view::sample;
    use super::*;

    #[test]
    fn lists_are_joined_with_commas() {
        let words: Vec<String> = ["a", "b", "c"].map(String::from).into();
        assert_eq!(and(&words), "a, b and c");
        assert_eq!(or(&words[..2]), "a or b");
        assert_eq!(and(&words[..1]), "a");
    }

    #[test]
    fn every_reason_has_an_explanation() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let pause = Pause { paused_by: "ada".into(), reason: "on fire".into(), paused_at_ms: 0 };
        let task = sample(TaskState::Ready);
        let cases = [
            (
                WaitReason::Claimable { matching_workers: 2, tasks_ahead: 1 },
                "2 matching workers are online",
                "",
            ),
            (WaitReason::Claimable { matching_workers: 1, tasks_ahead: 0 }, "it is the next task", ""),
            (WaitReason::Paused { pause }, "paused by ada 10s ago: on fire", "tenure queues resume mail"),
            (
                WaitReason::NotDue { run_at_ms: 70_000 },
                "due in 1m00s, at 1970-01-01 00:01:10",
                "tasks retry 42",
            ),
            (WaitReason::PendingParents { tasks: vec![TaskId(7)] }, "its parent 7", "tasks why 7"),
            (
                WaitReason::PendingParents { tasks: vec![TaskId(7), TaskId(8)] },
                "its parents 7 and 8 are",
                "tasks why 7",
            ),
            (
                WaitReason::ConcurrencyLimit { key: "k".into(), limit: 1 },
                "limit of 1 claimed task for the concurrency key k",
                "",
            ),
            (
                WaitReason::ConcurrencyLimit { key: "k".into(), limit: 3 },
                "limit of 3 claimed tasks for the concurrency key k",
                "",
            ),
            (
                WaitReason::QueueLimit { limit: 8 },
                "limit of 8 claimed tasks of the queue",
                "--max-claimed 16",
            ),
            (WaitReason::RateLimit { next_in_ms: 250 }, "in 250ms", "--rate none"),
            (WaitReason::NoWorkers, "no worker of mail is online", "tenure work mail"),
            (
                WaitReason::NoWorkerWithTags { tags: words(&["gpu", "eu"]) },
                "has the tags gpu and eu",
                "--tag gpu --tag eu",
            ),
            (WaitReason::NoWorkerForKind { kind: "resize".into() }, "kind resize", "workers list"),
            (
                WaitReason::AllowedWorkersOffline { matching_workers: words(&["a", "b"]) },
                "only a or b may",
                "workers list",
            ),
            (
                WaitReason::NoApprovedWorker { unapproved_workers: words(&["a"]) },
                "no matching worker is approved: a",
                "approve a",
            ),
            (WaitReason::NoBroker, "there is no broker", "--fallback distributed"),
            (
                WaitReason::NotPending { state: TaskState::Claimed },
                "box-1 has claimed it for 8s under token 1.7",
                "",
            ),
            (WaitReason::NotPending { state: TaskState::Dead }, "no route", "tasks retry 42"),
        ];
        for (reason, expected, remedy) in cases {
            let text = explain(&task, std::slice::from_ref(&reason), 10_000);
            assert!(text.contains(expected) && text.contains(remedy), "{reason:?}\n{text}");
            assert_eq!(text.lines().count(), if remedy.is_empty() { 2 } else { 3 }, "{text}");
        }
    }
}
