//! Submissions that make no sense, and those that do.

use proptest::prelude::*;

use super::*;
use crate::port::{Backoff, Json, QueueKey, TaskId};
use crate::{Name, Token};

fn checked(tasks: Vec<NewTask>) -> Result<(), SubmissionError> {
    check(&Submission { queue: QueueKey::new(Name::default_namespace(), "q".parse().unwrap()), tasks })
}

/// What is said of the second of two tasks, the first being an ordinary one.
fn refusal(task: NewTask) -> String {
    checked(vec![NewTask::new("ordinary"), task]).unwrap_err().to_string()
}

fn after(parents: &[u32]) -> NewTask {
    NewTask { parents: parents.iter().map(|i| Parent::Index(*i)).collect(), ..NewTask::default() }
}

#[test]
fn an_ordinary_task_is_accepted_and_so_is_none() {
    assert_eq!(checked(vec![NewTask::new("mail")]), Ok(()));
    assert_eq!(checked(vec![]), Ok(()));
    let everything = NewTask {
        requires: vec!["gpu".into()],
        workers: vec!["*".into()],
        run_at_ms: Some(0),
        max_wait_ms: Some(0),
        parents: vec![Parent::Task(TaskId(7)), Parent::Index(0)],
        key: Some("once".into()),
        concurrency_key: Some("tenant-1".into()),
        ..NewTask::new("")
    };
    assert_eq!(checked(vec![NewTask::new("a"), everything]), Ok(()));
}

/// Or somebody could be a tick's task before the tick comes, with any payload.
#[test]
fn the_key_of_a_tick_is_for_schedules_alone() {
    let with = |key: &str| NewTask { key: Some(key.into()), ..NewTask::new("report") };
    for key in ["default/nightly@2026-11-15T02:00:00Z", "default/nightly@2026-11-15T02:00:00.25Z!"] {
        let told = refusal(with(key));
        assert!(told.contains("task 1") && told.contains(key) && told.contains("another"), "{told}");
        let queue = QueueKey::new(Name::default_namespace(), "q".parse().unwrap());
        assert_eq!(check_of_tick(&Submission { queue, tasks: vec![with(key)] }), Ok(()));
    }
    for key in ["a@b.example", "default/nightly", "x/y@2026", "2026-11-15T02:00:00Z"] {
        assert_eq!(checked(vec![with(key)]), Ok(()), "{key}");
    }
}

#[test]
fn each_refusal_names_the_task_the_input_and_the_remedy() {
    let many = vec!["t".to_string(); 65];
    let long = Json::of(&"x".repeat(PAYLOAD_MAX)).unwrap();
    let cases = [
        (NewTask { payload: long, ..NewTask::default() }, "payload has 1048578 bytes; at most 1048576"),
        (NewTask { requires: many.clone(), ..NewTask::default() }, "65 required tags; at most 64"),
        (NewTask { prefers: many.clone(), ..NewTask::default() }, "65 preferred tags"),
        (NewTask { workers: many, ..NewTask::default() }, "65 named workers"),
        (after(&[0; 65]), "65 parents"),
        (NewTask::new("a\0b"), r#"kind "a\0b" has the control character"#),
        (NewTask { requires: vec!["".into()], ..NewTask::default() }, "required tag \"\" is empty"),
        (NewTask { workers: vec!["a\tb".into()], ..NewTask::default() }, "named worker"),
        (NewTask { key: Some("k".repeat(300)), ..NewTask::default() }, "300 bytes; at most 256"),
        (NewTask { concurrency_key: Some("".into()), ..NewTask::default() }, "concurrency key"),
        (NewTask { priority: 1_000_001, ..NewTask::default() }, "priority is 1000001"),
        (NewTask { priority: -1_000_001, ..NewTask::default() }, "between -1000000 and 1000000"),
        (NewTask { max_attempts: 0, ..NewTask::default() }, "number of attempts is 0"),
        (NewTask { concurrency_limit: 0, ..NewTask::default() }, "concurrency limit is 0"),
        (NewTask { run_at_ms: Some(i64::MAX), ..NewTask::default() }, "run_at"),
        (NewTask { max_run_ms: Some(u64::MAX), ..NewTask::default() }, "longest run"),
        (NewTask { max_wait_ms: Some(u64::MAX), ..NewTask::default() }, "longest wait"),
        (NewTask { leader_token: Some(Token::from_u64(u64::MAX)), ..NewTask::default() }, "token"),
        (
            NewTask { backoff: Backoff { first_ms: 9, most_ms: 8 }, ..NewTask::default() },
            "backoff begins with 9 ms",
        ),
        (NewTask { backoff: Backoff { first_ms: 9, most_ms: u64::MAX }, ..NewTask::default() }, "backoff"),
        (after(&[2]), "index 2, but the submission has 2 tasks"),
    ];
    for (task, said) in cases {
        let message = refusal(task);
        assert!(message.starts_with("task 1: ") && message.contains(said), "{message:?} should say {said:?}");
    }
}

#[test]
fn too_many_tasks_are_refused() {
    assert_eq!(checked(vec![NewTask::default(); SUBMIT_MAX + 1]), Err(SubmissionError::TooMany(10_001)));
}

#[test]
fn a_circle_is_named_in_its_order() {
    assert_eq!(checked(vec![after(&[0])]), Err(SubmissionError::Cycle(vec![0])));
    let tasks = vec![after(&[1]), after(&[3]), after(&[]), after(&[2, 1])];
    let error = checked(tasks).unwrap_err();
    assert_eq!(error, SubmissionError::Cycle(vec![1, 3]));
    assert!(error.to_string().contains("tasks 1 → 3 → 1 wait"), "{error}");
}

#[test]
fn a_circle_through_one_key_for_two_is_found() {
    let keyed = |task: NewTask| NewTask { key: Some("k".into()), ..task };
    assert_eq!(checked(vec![keyed(after(&[1])), keyed(after(&[]))]), Err(SubmissionError::Cycle(vec![0])));
    // The second of a key is not submitted at all: what it would wait for is no matter.
    assert_eq!(checked(vec![keyed(after(&[])), keyed(after(&[0]))]), Ok(()));
}

#[test]
fn the_longest_chain_and_the_widest_fan_are_checked_quickly() {
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
    /// Against the plain way: take away who waits for nobody that is left, until nothing changes.
    #[test]
    fn a_circle_is_found_exactly_when_there_is_one(graph in any_graph()) {
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
