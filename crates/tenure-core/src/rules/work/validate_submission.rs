//! Validation of submissions, before a store receives them.

use std::collections::HashMap;

use super::text::{TextError, check_text, check_word, shown};
use crate::port::{
    DEPTH_MAX, ErrorKind, LIST_MAX, NewTask, PAYLOAD_MAX, PRIORITY_MAX, ParentRef, SUBMIT_MAX, StoreError,
    Submission,
};
use crate::rules::schedule::tick_of;

/// Maximum duration in milliseconds: 100 years, so that no sum overflows.
pub(crate) const LONGEST_MS: u64 = 3_155_760_000_000;

/// Latest accepted instant, in milliseconds since 1970: the end of the year 9999.
pub(crate) const LAST_MS: i64 = 253_402_300_799_999;

/// Why a submission is invalid. Nothing was submitted. Indexes count from 0, as in [`ParentRef::Index`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmissionError {
    /// Too many tasks.
    #[error("the submission has {0} tasks, more than the maximum of {SUBMIT_MAX}; split it")]
    TooMany(usize),
    /// A payload is too large.
    #[error(
        "task {place}: the payload has {bytes} bytes, more than the maximum of {PAYLOAD_MAX}; store the data \
         elsewhere and submit a reference"
    )]
    TooLarge {
        /// Index of the task.
        place: usize,
        /// Size of the payload.
        bytes: usize,
    },
    /// A payload is nested too deeply.
    #[error("task {place}: the payload is nested {depth} levels deep; the maximum is {DEPTH_MAX}")]
    TooDeep {
        /// Index of the task.
        place: usize,
        /// Nesting depth.
        depth: usize,
    },
    /// A list is too long.
    #[error("task {place}: {count} {what} exceed the maximum of {LIST_MAX}")]
    TooLong {
        /// Index of the task.
        place: usize,
        /// Name of the list.
        what: &'static str,
        /// Number of elements.
        count: usize,
    },
    /// A kind, tag, worker name or key is invalid.
    #[error("task {place}: {what} {shown} {problem}", shown = shown(value))]
    Text {
        /// Index of the task.
        place: usize,
        /// Name of the value.
        what: &'static str,
        /// The text.
        value: String,
        /// Problem with the text.
        problem: TextError,
    },
    /// A number is out of range.
    #[error("task {place}: {what} is {value}; it must be {range}")]
    Range {
        /// Index of the task.
        place: usize,
        /// Name of the value.
        what: &'static str,
        /// The number.
        value: i128,
        /// Allowed range.
        range: &'static str,
    },
    /// The initial backoff exceeds the maximum backoff.
    #[error(
        "task {place}: the initial backoff of {initial_ms} ms exceeds the maximum backoff of {max_ms} ms; \
         raise `backoff.max_ms`"
    )]
    Backoff {
        /// Index of the task.
        place: usize,
        /// Delay after the first attempt.
        initial_ms: u64,
        /// Maximum delay.
        max_ms: u64,
    },
    /// The index of a parent is out of range.
    #[error(
        "task {place}: parent index {index} is out of range; the submission has {tasks} tasks, counted from \
         0. Reference a stored task by its id"
    )]
    Index {
        /// Index of the task.
        place: usize,
        /// Index of the parent.
        index: u32,
        /// Number of tasks.
        tasks: usize,
    },
    /// An idempotency key is reserved for the tick of a schedule.
    #[error(
        "task {place}: the idempotency key {shown} is reserved for the tick of a schedule; use another key",
        shown = shown(key)
    )]
    OfTick {
        /// Index of the task.
        place: usize,
        /// The key.
        key: String,
    },
    /// Tasks depend on each other in a cycle.
    #[error("the tasks {} depend on each other in a cycle; remove one of these dependencies", circle(.0))]
    Cycle(Vec<usize>),
}

impl From<SubmissionError> for StoreError {
    fn from(error: SubmissionError) -> StoreError {
        StoreError::new(ErrorKind::Request, error.to_string())
    }
}

/// Validates a submission.
///
/// ```
/// use tenure_core::rules::work::validate_submission;
/// use tenure_core::port::{NewTask, ParentRef, QueueKey, Submission};
/// use tenure_core::Name;
///
/// let queue = QueueKey::new(Name::default_namespace(), "mail".parse().unwrap());
/// let after = |parent| NewTask { parents: vec![ParentRef::Index(parent)], ..NewTask::new("step") };
/// let tasks = vec![after(1), after(2), after(0)];
/// let error = validate_submission(&Submission { queue, tasks }).unwrap_err();
/// assert!(error.to_string().contains("0 → 1 → 2 → 0"));
/// ```
pub fn validate_submission(submission: &Submission) -> Result<(), SubmissionError> {
    // A submitted task with the key of a tick would take the place of the task that the tick submits.
    let of_tick = |task: &NewTask| task.idempotency_key.clone().filter(|key| tick_of(key).is_some());
    let taken = submission.tasks.iter().enumerate().find_map(|(place, task)| Some((place, of_tick(task)?)));
    match taken {
        Some((place, key)) => Err(SubmissionError::OfTick { place, key }),
        None => validate_tick_submission(submission),
    }
}

/// Validates a submission of the scheduler, whose idempotency keys identify ticks.
pub fn validate_tick_submission(submission: &Submission) -> Result<(), SubmissionError> {
    let tasks = &submission.tasks;
    if tasks.len() > SUBMIT_MAX {
        return Err(SubmissionError::TooMany(tasks.len()));
    }
    tasks.iter().enumerate().try_for_each(|(place, task)| check_task(place, task, tasks.len()))?;
    match find_cycle(tasks) {
        Some(cycle) => Err(SubmissionError::Cycle(cycle)),
        None => Ok(()),
    }
}

fn check_task(place: usize, task: &NewTask, tasks: usize) -> Result<(), SubmissionError> {
    let bytes = task.payload.as_str().len();
    if bytes > PAYLOAD_MAX {
        return Err(SubmissionError::TooLarge { place, bytes });
    }
    let depth = task.payload.depth();
    if depth > DEPTH_MAX {
        return Err(SubmissionError::TooDeep { place, depth });
    }
    check_texts(place, task)?;
    check_numbers(place, task)?;
    if task.parents.len() > LIST_MAX {
        return Err(SubmissionError::TooLong { place, what: "parents", count: task.parents.len() });
    }
    let beyond = |parent: &ParentRef| match *parent {
        ParentRef::Index(index) if index as usize >= tasks => Some(index),
        _ => None,
    };
    match task.parents.iter().find_map(beyond) {
        Some(index) => Err(SubmissionError::Index { place, index, tasks }),
        None => Ok(()),
    }
}

fn check_texts(place: usize, task: &NewTask) -> Result<(), SubmissionError> {
    let refused = |what, value: &str| {
        let value = value.to_string();
        move |problem| SubmissionError::Text { place, what, value, problem }
    };
    check_text(&task.kind).map_err(refused("kind", &task.kind))?;
    let lists = [
        ("required tags", "required tag", &task.required_tags),
        ("preferred tags", "preferred tag", &task.preferred_tags),
        ("allowed workers", "allowed worker", &task.allowed_workers),
    ];
    for (what, one, list) in lists {
        if list.len() > LIST_MAX {
            return Err(SubmissionError::TooLong { place, what, count: list.len() });
        }
        list.iter().try_for_each(|word| check_word(word).map_err(refused(one, word)))?;
    }
    let keys = [("idempotency key", &task.idempotency_key), ("concurrency key", &task.concurrency_key)];
    for (what, key) in keys {
        key.iter().try_for_each(|key| check_word(key).map_err(refused(what, key)))?;
    }
    Ok(())
}

fn check_numbers(place: usize, task: &NewTask) -> Result<(), SubmissionError> {
    const PRIORITIES: &str = "between -1000000 and 1000000";
    const TIMES: &str = "between 0 and 3155760000000 ms (100 years)";
    const COUNTS: &str = "between 1 and 2147483647";
    let within = |what, value: i128, least: i128, most: i128, range| {
        let fits = (least..=most).contains(&value);
        if fits { Ok(()) } else { Err(SubmissionError::Range { place, what, value, range }) }
    };
    let time = |what, ms: u64| within(what, ms.into(), 0, LONGEST_MS.into(), TIMES);
    let count = |what, n: u32| within(what, n.into(), 1, i32::MAX.into(), COUNTS);
    within("priority", task.priority.into(), -i128::from(PRIORITY_MAX), PRIORITY_MAX.into(), PRIORITIES)?;
    count("max_attempts", task.max_attempts)?;
    count("concurrency_limit", task.concurrency_limit)?;
    if let Some(at) = task.run_at_ms {
        within("run_at_ms", at.into(), 0, LAST_MS.into(), "in milliseconds since 1970, up to the year 9999")?;
    }
    task.max_wait_ms.map_or(Ok(()), |ms| time("max_wait_ms", ms))?;
    task.max_run_ms.map_or(Ok(()), |ms| time("max_run_ms", ms))?;
    if let Some(token) = task.leader_token {
        within("leader_token", token.as_u64().into(), 0, i64::MAX.into(), "a token that a store granted")?;
    }
    let (initial_ms, max_ms) = (task.backoff.initial_ms, task.backoff.max_ms);
    time("backoff.max_ms", max_ms)?;
    if initial_ms > max_ms {
        return Err(SubmissionError::Backoff { place, initial_ms, max_ms });
    }
    Ok(())
}

/// Finds tasks that depend on each other in a cycle: each depends on the next, and the last on the first. Two tasks
/// with the same idempotency key count as one, the first.
fn find_cycle(tasks: &[NewTask]) -> Option<Vec<usize>> {
    let mut firsts: HashMap<&str, usize> = HashMap::new();
    let first: Vec<usize> = tasks
        .iter()
        .enumerate()
        .map(|(i, task)| task.idempotency_key.as_deref().map_or(i, |key| *firsts.entry(key).or_insert(i)))
        .collect();
    let parent = |task: usize, nth: usize| {
        let place = |parent: &ParentRef| match *parent {
            ParentRef::Index(index) => Some(first[index as usize]),
            ParentRef::Task(_) => None,
        };
        tasks[task].parents.iter().filter_map(place).nth(nth)
    };
    let mut done = vec![false; tasks.len()];
    let kept = first.iter().enumerate().filter(|(i, first)| i == *first).map(|(i, _)| i);
    for start in kept {
        // Path from `start`: tasks, with the number of their parents already visited.
        let mut path: Vec<(usize, usize)> = vec![(start, 0)];
        let mut on_path: HashMap<usize, usize> = HashMap::from([(start, 0)]);
        while let Some((task, visited)) = path.last_mut() {
            let next = if done[*task] { None } else { parent(*task, *visited) };
            *visited += 1;
            match next {
                None => {
                    done[*task] = true;
                    on_path.remove(task);
                    path.pop();
                }
                Some(next) => match on_path.get(&next) {
                    Some(&at) => return Some(path[at..].iter().map(|(task, _)| *task).collect()),
                    None => {
                        on_path.insert(next, path.len());
                        path.push((next, 0));
                    }
                },
            }
        }
    }
    None
}

/// Formats a cycle as `0 → 1 → 2 → 0`, shortened if it is long.
fn circle(cycle: &[usize]) -> String {
    const SHOWN: usize = 20;
    let mut places: Vec<String> = cycle.iter().take(SHOWN).map(usize::to_string).collect();
    if cycle.len() > SHOWN {
        places.push("…".into());
    }
    places.extend(cycle.first().map(usize::to_string));
    places.join(" → ")
}

#[cfg(test)]
#[path = "validate_submission_tests.rs"]
mod tests;
