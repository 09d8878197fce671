//! Valid and invalid submissions.

use proptest::prelude::*;

use super::*;
use crate::port::{Backoff, QueueKey, RawJson, TaskId};
use crate::{Name, Token};

fn checked(tasks: Vec<NewTask>) -> Result<(), SubmissionError> {
    validate_submission(&Submission {
        queue: QueueKey::new(Name::default_namespace(), "q".parse().unwrap()),
        tasks,
    })
}

/// The error for the second of two tasks; the first has default options.
fn refusal(task: NewTask) -> String {
    checked(vec![NewTask::new("ordinary"), task]).unwrap_err().to_string()
}

fn after(parents: &[u32]) -> NewTask {
    NewTask { parents: parents.iter().map(|i| ParentRef::Index(*i)).collect(), ..NewTask::default() }
}

#[test]
fn a_valid_task_and_an_empty_list_are_accepted() {
    assert_eq!(checked(vec![NewTask::new("mail")]), Ok(()));
    assert_eq!(checked(vec![]), Ok(()));
    let everything = NewTask {
        required_tags: vec!["gpu".into()],
        allowed_workers: vec!["*".into()],
        run_at_ms: Some(0),
        max_wait_ms: Some(0),
        parents: vec![ParentRef::Task(TaskId(7)), ParentRef::Index(0)],
        idempotency_key: Some("once".into()),
        concurrency_key: Some("tenant-1".into()),
        ..NewTask::new("")
    };
    assert_eq!(checked(vec![NewTask::new("a"), everything]), Ok(()));
}

/// Without this rule a caller could submit a task in place of a tick's task before the tick fires.
#[test]
fn the_key_of_a_tick_is_reserved_for_schedules() {
    let with = |key: &str| NewTask { idempotency_key: Some(key.into()), ..NewTask::new("report") };
    for key in ["default/nightly@2026-11-15T02:00:00Z", "default/nightly@2026-11-15T02:00:00.25Z!"] {
        let message = refusal(with(key));
        assert!(
            message.contains("task 1") && message.contains(key) && message.contains("another"),
            "{message}"
        );
        let queue = QueueKey::new(Name::default_namespace(), "q".parse().unwrap());
        assert_eq!(validate_tick_submission(&Submission { queue, tasks: vec![with(key)] }), Ok(()));
    }
    for key in ["a@b.example", "default/nightly", "x/y@2026", "2026-11-15T02:00:00Z"] {
        assert_eq!(checked(vec![with(key)]), Ok(()), "{key}");
    }
}

#[test]
fn each_error_names_the_task_the_input_and_the_remedy() {
    let many = vec!["t".to_string(); 65];
    let long = RawJson::of(&"x".repeat(PAYLOAD_MAX)).unwrap();
    let cases = [
        (
            NewTask { payload: long, ..NewTask::default() },
            "payload has 1048578 bytes, more than the maximum of 1048576",
        ),
        (
            NewTask { required_tags: many.clone(), ..NewTask::default() },
            "65 required tags exceed the maximum of 64",
        ),
        (NewTask { preferred_tags: many.clone(), ..NewTask::default() }, "65 preferred tags"),
        (NewTask { allowed_workers: many, ..NewTask::default() }, "65 allowed workers"),
        (after(&[0; 65]), "65 parents"),
        (NewTask::new("a\0b"), r#"kind "a\0b" has the control character"#),
        (NewTask { required_tags: vec!["".into()], ..NewTask::default() }, "required tag \"\" is empty"),
        (NewTask { allowed_workers: vec!["a\tb".into()], ..NewTask::default() }, "allowed worker"),
        (
            NewTask { idempotency_key: Some("k".repeat(300)), ..NewTask::default() },
            "300 bytes; the maximum is 256",
        ),
        (NewTask { concurrency_key: Some("".into()), ..NewTask::default() }, "concurrency key"),
        (NewTask { priority: 1_000_001, ..NewTask::default() }, "priority is 1000001"),
        (NewTask { priority: -1_000_001, ..NewTask::default() }, "between -1000000 and 1000000"),
        (NewTask { max_attempts: 0, ..NewTask::default() }, "max_attempts is 0"),
        (NewTask { concurrency_limit: 0, ..NewTask::default() }, "concurrency_limit is 0"),
        (NewTask { run_at_ms: Some(i64::MAX), ..NewTask::default() }, "run_at"),
        (NewTask { max_run_ms: Some(u64::MAX), ..NewTask::default() }, "max_run_ms"),
        (NewTask { max_wait_ms: Some(u64::MAX), ..NewTask::default() }, "max_wait_ms"),
        (NewTask { leader_token: Some(Token::from_u64(u64::MAX)), ..NewTask::default() }, "token"),
        (
            NewTask { backoff: Backoff { initial_ms: 9, max_ms: 8 }, ..NewTask::default() },
            "initial backoff of 9 ms",
        ),
        (NewTask { backoff: Backoff { initial_ms: 9, max_ms: u64::MAX }, ..NewTask::default() }, "backoff"),
        (after(&[2]), "parent index 2 is out of range; the submission has 2 tasks"),
    ];
    for (task, expected) in cases {
        let message = refusal(task);
        assert!(
            message.starts_with("task 1: ") && message.contains(expected),
            "{message:?} should contain {expected:?}"
        );
    }
}

#[test]
fn too_many_tasks_are_refused() {
    assert_eq!(checked(vec![NewTask::default(); SUBMIT_MAX + 1]), Err(SubmissionError::TooMany(10_001)));
}

#[test]
fn a_cycle_is_reported_in_order() {
    assert_eq!(checked(vec![after(&[0])]), Err(SubmissionError::Cycle(vec![0])));
    let tasks = vec![after(&[1]), after(&[3]), after(&[]), after(&[2, 1])];
    let error = checked(tasks).unwrap_err();
    assert_eq!(error, SubmissionError::Cycle(vec![1, 3]));
    assert!(error.to_string().contains("tasks 1 → 3 → 1 depend"), "{error}");
}

#[test]
fn a_cycle_through_a_shared_key_is_found() {
    let keyed = |task: NewTask| NewTask { idempotency_key: Some("k".into()), ..task };
    assert_eq!(checked(vec![keyed(after(&[1])), keyed(after(&[]))]), Err(SubmissionError::Cycle(vec![0])));
    // The second task with the same key is not submitted, so its parents are ignored.
    assert_eq!(checked(vec![keyed(after(&[])), keyed(after(&[0]))]), Ok(()));
}

#[test]
fn long_chains_and_wide_fans_are_checked_quickly() {
    let n = SUBMIT_MAX as u32;
    let chain: Vec<NewTask> = (0..n).map(|i| if i + 1 < n { after(&[i + 1]) } else { after(&[]) }).collect();
    assert_eq!(checked(chain), Ok(()));
    let fan: Vec<NewTask> = (0..n).map(|i| after(&(i + 1..n.min(i + 60)).collect::<Vec<_>>())).collect();
    assert_eq!(checked(fan), Ok(()));
    let ring: Vec<NewTask> = (0..n).map(|i| after(&[(i + 1) % n])).collect();
    let error = checked(ring).unwrap_err();
    assert!(matches!(&error, SubmissionError::Cycle(c) if c.len() == n as usize));
    assert!(error.to_string().len() < 300);
}

fn any_graph() -> impl Strategy<Value = Vec<Vec<u32>>> {
    (1..8usize).prop_flat_map(|n| {
        let parents = prop::collection::vec(0..n as u32, 0..3);
        prop::collection::vec(parents, n)
    })
}

proptest! {
    /// Compares with a naive algorithm: remove tasks without remaining parents until nothing changes.
    #[test]
    fn a_cycle_is_found_exactly_when_there_is_one(graph in any_graph()) {
        let tasks: Vec<NewTask> = graph.iter().map(|parents| after(parents)).collect();
        let mut left: Vec<usize> = (0..graph.len()).collect();
        loop {
            let waits = |i: &usize| graph[*i].iter().any(|p| left.contains(&(*p as usize)));
            let rest: Vec<usize> = left.iter().copied().filter(|i| waits(i)).collect();
            if rest.len() == left.len() { break }
            left = rest;
        }
        match checked(tasks) {
            Ok(()) => prop_assert!(left.is_empty()),
            Err(SubmissionError::Cycle(cycle)) => {
                let next = |i: usize| cycle[(i + 1) % cycle.len()] as u32;
                prop_assert!(cycle.iter().enumerate().all(|(i, task)| graph[*task].contains(&next(i))));
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}
