//! Why a task is not claimed, in plain sentences.

use tenure::port::{TaskState, TaskView, Why};

use crate::args::values::stamp;
use crate::output::{Ink, ago, paint, plain, span};

pub(super) fn tell(task: &TaskView, reasons: &[Why], now_ms: i64) -> String {
    let mut text = format!("{}\n", paint(&headline(task, reasons), Ink::Bold));
    for reason in reasons {
        let (sentence, remedy) = sentence(task, reason, now_ms);
        text.push_str(&format!("{} {}\n", paint("●", ink(reason)), plain(&sentence)));
        if !remedy.is_empty() {
            text.push_str(&format!("  {}\n", paint(&plain(&remedy), Ink::Dim)));
        }
    }
    text
}

fn headline(task: &TaskView, reasons: &[Why]) -> String {
    let (id, queue) = (task.id, &task.queue);
    match reasons {
        [Why::NotWaiting { state }, ..] => format!("task {id} of {queue} is {}", state.as_str()),
        [Why::Claimable { .. }, ..] => format!("task {id} of {queue} can be claimed"),
        _ => format!("task {id} of {queue} is {} and is not claimed, because", task.state.as_str()),
    }
}

fn ink(reason: &Why) -> Ink {
    match reason {
        Why::Claimable { .. } | Why::NotWaiting { .. } => Ink::Green,
        Why::NotDue { .. } | Why::Parents { .. } | Why::Rate { .. } => Ink::Plain,
        Why::Concurrency { .. } | Why::QueueLimit { .. } | Why::Paused { .. } => Ink::Yellow,
        _ => Ink::Red,
    }
}

/// What is so, and what can be done about it.
fn sentence(task: &TaskView, reason: &Why, now_ms: i64) -> (String, String) {
    let queue = &task.queue;
    let none = String::new();
    match reason {
        Why::Claimable { workers, ahead } => {
            let fit = match workers {
                0 => "nobody has asked for it yet".to_owned(),
                1 => "one live worker fits; it has not asked yet, or is busy".to_owned(),
                n => format!("{n} live workers fit; none has asked yet, or all are busy"),
            };
            let before = match ahead {
                0 => "it is the next one".to_owned(),
                1 => "one task stands before it".to_owned(),
                n => format!("{n} tasks stand before it"),
            };
            (format!("{fit}; {before}"), none)
        }
        Why::NotWaiting { state } => not_waiting(task, *state, now_ms),
        Why::Paused { pause } => {
            let reason = if pause.reason.is_empty() { none } else { format!(": {}", pause.reason) };
            (
                format!(
                    "the queue or its namespace was paused by {} {} ago{reason}",
                    pause.by,
                    ago(pause.at_ms, now_ms)
                ),
                format!("tenure queue resume {queue}  (or --everything)"),
            )
        }
        Why::NotDue { run_at_ms } => (
            format!(
                "its time has not come: it is due in {}, at {}",
                ago(now_ms, *run_at_ms),
                stamp(*run_at_ms)
            ),
            format!("to have it now: tenure tasks retry {}", task.id),
        ),
        Why::Parents { tasks } => {
            let ids: Vec<_> = tasks.iter().map(ToString::to_string).collect();
            let first = ids.first().cloned().unwrap_or_default();
            match ids.len() {
                1 => (format!("it waits for its parent {first}"), format!("tenure tasks why {first}")),
                _ => (format!("it waits for its parents {}", and(&ids)), format!("tenure tasks why {first}")),
            }
        }
        Why::Concurrency { key, limit: 1 } => (
            format!("another task with the concurrency key {key} is claimed, and only one may be at once"),
            none,
        ),
        Why::Concurrency { key, limit } => (
            format!("{limit} tasks with the concurrency key {key} are claimed, and no more may be at once"),
            none,
        ),
        Why::QueueLimit { limit } => (
            format!("{limit} of the queue are claimed, and no more may be at once"),
            format!("tenure queue set {queue} --max-claimed {}", u64::from(*limit) * 2),
        ),
        Why::Rate { next_in_ms } => (
            format!("the queue's rate is used up; the next may begin in {}", span(*next_in_ms)),
            format!("tenure queue set {queue} --rate none"),
        ),
        Why::NoWorkers => (
            format!("no live worker works on {queue}"),
            format!("tenure work {queue} -- CMD  (or see `tenure workers list`)"),
        ),
        Why::NoWorkerWithTags { tags } => (
            format!("no live worker of {queue} has {}", and(tags)),
            format!("tenure work {queue} --tag {} -- CMD", tags.join(" --tag ")),
        ),
        Why::NoWorkerForKind { kind } => (
            format!("no live worker of {queue} knows the kind {kind}"),
            "see `tenure workers list`".to_owned(),
        ),
        Why::NamedWorkersAway { workers } => (
            format!("it is meant for {}, and none of them lives", or(workers)),
            "see `tenure workers list`".to_owned(),
        ),
        Why::NoApprovedWorker { pending } => {
            let first = pending.first().cloned().unwrap_or_default();
            (
                format!("the queue asks for approval, and no worker that fits has it: {} wait", and(pending)),
                format!("tenure workers approve {first}"),
            )
        }
        Why::NoLeader => (
            format!("{queue} is exclusive, and nobody leads the election tenure/claims"),
            "start a worker or a server; or: tenure queue mode … --fallback distributed".to_owned(),
        ),
    }
}

fn not_waiting(task: &TaskView, state: TaskState, now_ms: i64) -> (String, String) {
    let worker = task.worker.as_deref().unwrap_or("somebody");
    match state {
        TaskState::Claimed => {
            let since = task.claimed_at_ms.map(|at| format!(" for {}", ago(at, now_ms))).unwrap_or_default();
            (format!("{worker} has it{since}, under token {}", task.token), String::new())
        }
        TaskState::Completed => (format!("{worker} completed it under token {}", task.token), String::new()),
        TaskState::Dead | TaskState::Cancelled => {
            let last = task.failures.last().map(|failure| failure.error.clone());
            let reason = task.reason.clone().or(last).unwrap_or_else(|| "nobody said why".to_owned());
            (reason, format!("to try again: tenure tasks retry {}", task.id))
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
    fn lists_read_as_people_say_them() {
        let words: Vec<String> = ["a", "b", "c"].map(String::from).into();
        assert_eq!(and(&words), "a, b and c");
        assert_eq!(or(&words[..2]), "a or b");
        assert_eq!(and(&words[..1]), "a");
    }

    #[test]
    fn every_reason_is_a_sentence_with_a_remedy_where_there_is_one() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let pause = Pause { by: "ada".into(), reason: "on fire".into(), at_ms: 0 };
        let task = sample(TaskState::Ready);
        let cases = [
            (Why::Claimable { workers: 2, ahead: 1 }, "2 live workers fit", ""),
            (Why::Claimable { workers: 1, ahead: 0 }, "it is the next one", ""),
            (Why::Paused { pause }, "paused by ada 10s ago: on fire", "tenure queue resume mail"),
            (Why::NotDue { run_at_ms: 70_000 }, "due in 1m00s, at 1970-01-01 00:01:10", "tasks retry 42"),
            (Why::Parents { tasks: vec![TaskId(7)] }, "its parent 7", "tasks why 7"),
            (Why::Parents { tasks: vec![TaskId(7), TaskId(8)] }, "its parents 7 and 8", "tasks why 7"),
            (Why::Concurrency { key: "k".into(), limit: 1 }, "key k is claimed, and only one", ""),
            (Why::Concurrency { key: "k".into(), limit: 3 }, "3 tasks with the concurrency key k", ""),
            (Why::QueueLimit { limit: 8 }, "8 of the queue", "--max-claimed 16"),
            (Why::Rate { next_in_ms: 250 }, "in 250ms", "--rate none"),
            (Why::NoWorkers, "no live worker works on mail", "tenure work mail"),
            (Why::NoWorkerWithTags { tags: words(&["gpu", "eu"]) }, "has gpu and eu", "--tag gpu --tag eu"),
            (Why::NoWorkerForKind { kind: "resize".into() }, "kind resize", "workers list"),
            (Why::NamedWorkersAway { workers: words(&["a", "b"]) }, "for a or b", "workers list"),
            (Why::NoApprovedWorker { pending: words(&["a"]) }, "no worker that fits has it", "approve a"),
            (Why::NoLeader, "nobody leads", "--fallback distributed"),
            (Why::NotWaiting { state: TaskState::Claimed }, "box-1 has it for 8s, under token 1.7", ""),
            (Why::NotWaiting { state: TaskState::Dead }, "no route", "tasks retry 42"),
        ];
        for (reason, said, remedy) in cases {
            let told = tell(&task, std::slice::from_ref(&reason), 10_000);
            assert!(told.contains(said) && told.contains(remedy), "{reason:?}\n{told}");
            assert_eq!(told.lines().count(), if remedy.is_empty() { 2 } else { 3 }, "{told}");
        }
    }
}
