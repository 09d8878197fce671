//! Requirements of a task, and how workers match them.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::port::{NewTask, WorkerProfile};

/// What a task requires of a worker, normalized: lists are sorted without duplicates, and "any worker" is the empty
/// list. Many tasks share few distinct requirements. A store therefore keeps each distinct requirements once, and a
/// claim reads only the first tasks of those that the worker matches.
///
/// ```
/// use std::time::Duration;
/// use tenure_core::rules::work::Requirements;
/// use tenure_core::port::{NewTask, WorkerProfile};
///
/// let task = NewTask { required_tags: vec!["gpu".into()], allowed_workers: vec!["*".into()], ..NewTask::new("train") };
/// let requirements = Requirements::of(&task);
/// let mut worker = WorkerProfile { name: "w1".into(), task_kinds: vec!["train".into()], tags: vec![] };
/// let (ready_for, prefer) = (Duration::ZERO, Duration::from_secs(5));
/// assert!(!requirements.matches_now(&worker, ready_for, prefer));
/// worker.tags.push("gpu".into());
/// assert!(requirements.matches_now(&worker, ready_for, prefer));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requirements {
    /// Kind of the task. Empty matches every worker.
    pub kind: String,
    /// Tags that the worker must have.
    pub required_tags: Vec<String>,
    /// Tags of which the worker should have at least one.
    pub preferred_tags: Vec<String>,
    /// Names of allowed workers. Empty allows all.
    pub allowed_workers: Vec<String>,
}

impl Requirements {
    /// The requirements of a task.
    pub fn of(task: &NewTask) -> Requirements {
        let any_worker = task.allowed_workers.iter().any(|name| name == "*");
        Requirements {
            kind: task.kind.clone(),
            required_tags: in_order(&task.required_tags),
            preferred_tags: in_order(&task.preferred_tags),
            allowed_workers: if any_worker { Vec::new() } else { in_order(&task.allowed_workers) },
        }
    }

    /// Whether this worker may ever claim such a task, regardless of preferences.
    pub fn may_match(&self, worker: &WorkerProfile) -> bool {
        let knows =
            self.kind.is_empty() || worker.task_kinds.is_empty() || worker.task_kinds.contains(&self.kind);
        let has = self.required_tags.iter().all(|tag| worker.tags.contains(tag));
        let meant = self.allowed_workers.is_empty() || self.allowed_workers.contains(&worker.name);
        knows && has && meant
    }

    /// Whether the worker has a preferred tag, or no tags are preferred.
    pub fn is_preferred(&self, worker: &WorkerProfile) -> bool {
        self.preferred_tags.is_empty() || self.preferred_tags.iter().any(|tag| worker.tags.contains(tag))
    }

    /// Whether this worker may claim such a task now. `ready_for` is how long the task has been ready; `prefer` is
    /// the preference window of the queue.
    pub fn matches_now(&self, worker: &WorkerProfile, ready_for: Duration, prefer: Duration) -> bool {
        self.may_match(worker) && (self.is_preferred(worker) || ready_for >= prefer)
    }

    /// A text that is unique for these requirements, for hashing and lookup in a store.
    pub fn signature(&self) -> String {
        serde_json::json!([self.kind, self.required_tags, self.preferred_tags, self.allowed_workers])
            .to_string()
    }
}

/// Sorted, without duplicates.
fn in_order(words: &[String]) -> Vec<String> {
    words.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words() -> impl Strategy<Value = Vec<String>> {
        prop::collection::vec("[abc]", 0..4)
    }

    fn any_task() -> impl Strategy<Value = NewTask> {
        let names = prop::collection::vec("[wvx*]", 0..3);
        ("[kl]?", words(), words(), names).prop_map(|(kind, requires, prefers, workers)| NewTask {
            required_tags: requires,
            preferred_tags: prefers,
            allowed_workers: workers,
            ..NewTask::new(kind)
        })
    }

    fn any_worker() -> impl Strategy<Value = WorkerProfile> {
        ("[wv]", prop::collection::vec("[kl]", 0..2), words()).prop_map(|(name, kinds, tags)| WorkerProfile {
            name,
            task_kinds: kinds,
            tags,
        })
    }

    proptest! {
        /// Matching agrees with the task's own fields, in any order and with duplicates.
        #[test]
        fn matching_agrees_with_the_fields_of_the_task(task in any_task(), worker in any_worker(), ready in 0..10u64, prefer in 0..10u64) {
            let kind = task.kind.is_empty() || worker.task_kinds.is_empty() || worker.task_kinds.contains(&task.kind);
            let tags = task.required_tags.iter().filter(|tag| !worker.tags.contains(tag)).count() == 0;
            let named = task.allowed_workers.is_empty() || task.allowed_workers.iter().any(|n| n == "*" || *n == worker.name);
            let liked = task.preferred_tags.is_empty() || task.preferred_tags.iter().any(|tag| worker.tags.contains(tag));
            let fits = Requirements::of(&task).matches_now(&worker, Duration::from_millis(ready), Duration::from_millis(prefer));
            prop_assert_eq!(fits, kind && tags && named && (liked || ready >= prefer));
        }

        #[test]
        fn order_and_duplicates_do_not_change_requirements(task in any_task()) {
            let mut other = task.clone();
            other.required_tags.reverse();
            other.preferred_tags.extend(task.preferred_tags.clone());
            other.allowed_workers.reverse();
            prop_assert_eq!(Requirements::of(&task), Requirements::of(&other));
        }

        #[test]
        fn equal_requirements_have_equal_signatures(a in any_task(), b in any_task()) {
            let (a, b) = (Requirements::of(&a), Requirements::of(&b));
            prop_assert_eq!(a == b, a.signature() == b.signature());
        }

        /// An additional tag never makes a worker match fewer tasks.
        #[test]
        fn more_tags_never_reduce_matches(task in any_task(), worker in any_worker(), more in words()) {
            let requirements = Requirements::of(&task);
            let mut richer = worker.clone();
            richer.tags.extend(more);
            prop_assert!(!requirements.may_match(&worker) || requirements.may_match(&richer));
        }
    }
}
