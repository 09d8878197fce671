//! What makes no sense in a submission, found before a store sees it.

use std::collections::HashMap;

use super::text::{TextError, check_text, check_word, shown};
use crate::port::{
    DEPTH_MAX, LIST_MAX, NewTask, PAYLOAD_MAX, PRIORITY_MAX, Parent, SUBMIT_MAX, StoreError, Submission,
    Trouble,
};
use crate::schedule::tick_of;

/// The longest time that can be asked for, in milliseconds: a hundred years, so that no sum overflows.
pub(crate) const LONGEST_MS: u64 = 3_155_760_000_000;

/// The last moment that can be asked for, in milliseconds since 1970: the end of the year 9999.
pub(crate) const LAST_MS: i64 = 253_402_300_799_999;

/// Why a submission was refused. Nothing was submitted. Places are counted from 0, as [`Parent::Index`] counts them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmissionError {
    /// Too many tasks.
    #[error("the submission has {0} tasks; at most {SUBMIT_MAX} go together: split it")]
    TooMany(usize),
    /// A payload is too long.
    #[error(
        "task {place}: its payload has {bytes} bytes; at most {PAYLOAD_MAX} are carried: keep the data elsewhere and give \
         its address"
    )]
    TooLarge {
        /// Which task.
        place: usize,
        /// How long the payload is.
        bytes: usize,
    },
    /// A payload is too deep.
    #[error(
        "task {place}: lists and objects in its payload lie {depth} deep in each other; at most {DEPTH_MAX} are carried"
    )]
    TooDeep {
        /// Which task.
        place: usize,
        /// How deep it is.
        depth: usize,
    },
    /// A list is too long.
    #[error("task {place}: it has {count} {what}; at most {LIST_MAX} are allowed")]
    TooLong {
        /// Which task.
        place: usize,
        /// Which list.
        what: &'static str,
        /// How long it is.
        count: usize,
    },
    /// A kind, tag, worker's name or key can not be used.
    #[error("task {place}: its {what} {shown} {problem}", shown = shown(value))]
    Text {
        /// Which task.
        place: usize,
        /// What it is.
        what: &'static str,
        /// The text.
        value: String,
        /// What is wrong with it.
        problem: TextError,
    },
    /// A number is out of range.
    #[error("task {place}: its {what} is {value}; it must be {range}")]
    Range {
        /// Which task.
        place: usize,
        /// What it is.
        what: &'static str,
        /// The number.
        value: i128,
        /// What it must be.
        range: &'static str,
    },
    /// The backoff begins with more than its most.
    #[error(
        "task {place}: its backoff begins with {first_ms} ms, which is more than its most of {most_ms} ms; raise `most_ms`"
    )]
    Backoff {
        /// Which task.
        place: usize,
        /// After the first attempt.
        first_ms: u64,
        /// At most.
        most_ms: u64,
    },
    /// A parent's place is none.
    #[error(
        "task {place}: its parent is at index {index}, but the submission has {tasks} tasks, counted from 0; a task that is \
         in the store already is named by its number"
    )]
    Index {
        /// Which task.
        place: usize,
        /// The index.
        index: u32,
        /// How many tasks there are.
        tasks: usize,
    },
    /// A key is that of a schedule's tick.
    #[error(
        "task {place}: its key {shown} is one by which a schedule submits the task of a tick; give it another",
        shown = shown(key)
    )]
    OfTick {
        /// Which task.
        place: usize,
        /// The key.
        key: String,
    },
    /// Tasks wait for each other.
    #[error("the tasks {} wait for each other in a circle; take out one of these dependencies", circle(.0))]
    Cycle(Vec<usize>),
}

impl From<SubmissionError> for StoreError {
    fn from(error: SubmissionError) -> StoreError {
        StoreError::new(Trouble::Request, error.to_string())
    }
}

/// Refuses a submission that makes no sense.
///
/// ```
/// use tenure_core::claim::check;
/// use tenure_core::port::{NewTask, Parent, QueueKey, Submission};
/// use tenure_core::Name;
///
/// let queue = QueueKey::new(Name::default_namespace(), "mail".parse().unwrap());
/// let after = |parent| NewTask { parents: vec![Parent::Index(parent)], ..NewTask::new("step") };
/// let tasks = vec![after(1), after(2), after(0)];
/// let error = check(&Submission { queue, tasks }).unwrap_err();
/// assert!(error.to_string().contains("0 → 1 → 2 → 0"));
/// ```
pub fn check(submission: &Submission) -> Result<(), SubmissionError> {
    // Who submits under a tick's key before the tick does would be its task, with a payload that no schedule has written.
    let of_tick = |task: &NewTask| task.key.clone().filter(|key| tick_of(key).is_some());
    let taken = submission.tasks.iter().enumerate().find_map(|(place, task)| Some((place, of_tick(task)?)));
    match taken {
        Some((place, key)) => Err(SubmissionError::OfTick { place, key }),
        None => check_of_tick(submission),
    }
}

/// The same for what a schedule submits, whose keys are its ticks.
pub fn check_of_tick(submission: &Submission) -> Result<(), SubmissionError> {
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
    let beyond = |parent: &Parent| match *parent {
        Parent::Index(index) if index as usize >= tasks => Some(index),
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
        ("required tags", "required tag", &task.requires),
        ("preferred tags", "preferred tag", &task.prefers),
        ("named workers", "named worker", &task.workers),
    ];
    for (what, one, list) in lists {
        if list.len() > LIST_MAX {
            return Err(SubmissionError::TooLong { place, what, count: list.len() });
        }
        list.iter().try_for_each(|word| check_word(word).map_err(refused(one, word)))?;
    }
    let keys = [("key", &task.key), ("concurrency key", &task.concurrency_key)];
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
    count("number of attempts", task.max_attempts)?;
    count("concurrency limit", task.concurrency_limit)?;
    if let Some(at) = task.run_at_ms {
        within("run_at", at.into(), 0, LAST_MS.into(), "in milliseconds since 1970, up to the year 9999")?;
    }
    task.max_wait_ms.map_or(Ok(()), |ms| time("longest wait", ms))?;
    task.max_run_ms.map_or(Ok(()), |ms| time("longest run", ms))?;
    if let Some(token) = task.leader_token {
        within("leader's token", token.as_u64().into(), 0, i64::MAX.into(), "one that a store granted")?;
    }
    let (first_ms, most_ms) = (task.backoff.first_ms, task.backoff.most_ms);
    time("backoff's most", most_ms)?;
    if first_ms > most_ms {
        return Err(SubmissionError::Backoff { place, first_ms, most_ms });
    }
    Ok(())
}

/// Tasks that wait for each other, if there are some: each waits for the next, and the last for the first. Two tasks with one
/// idempotency key are one: the first.
fn find_cycle(tasks: &[NewTask]) -> Option<Vec<usize>> {
    let mut firsts: HashMap<&str, usize> = HashMap::new();
    let first: Vec<usize> = tasks
        .iter()
        .enumerate()
        .map(|(i, task)| task.key.as_deref().map_or(i, |key| *firsts.entry(key).or_insert(i)))
        .collect();
    let parent = |task: usize, nth: usize| {
        let place = |parent: &Parent| match *parent {
            Parent::Index(index) => Some(first[index as usize]),
            Parent::Task(_) => None,
        };
        tasks[task].parents.iter().filter_map(place).nth(nth)
    };
    let mut done = vec![false; tasks.len()];
    let kept = first.iter().enumerate().filter(|(i, first)| i == *first).map(|(i, _)| i);
    for start in kept {
        // The way down from `start`: tasks, and how many of each one's parents were looked at.
        let mut way: Vec<(usize, usize)> = vec![(start, 0)];
        let mut on_way: HashMap<usize, usize> = HashMap::from([(start, 0)]);
        while let Some((task, looked)) = way.last_mut() {
            let next = if done[*task] { None } else { parent(*task, *looked) };
            *looked += 1;
            match next {
                None => {
                    done[*task] = true;
                    on_way.remove(task);
                    way.pop();
                }
                Some(next) => match on_way.get(&next) {
                    Some(&at) => return Some(way[at..].iter().map(|(task, _)| *task).collect()),
                    None => {
                        on_way.insert(next, way.len());
                        way.push((next, 0));
                    }
                },
            }
        }
    }
    None
}

/// `0 → 1 → 2 → 0`, not all of them if there are many.
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
#[path = "check_tests.rs"]
mod tests;
