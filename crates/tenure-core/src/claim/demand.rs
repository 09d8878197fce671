//! What a task asks of a worker.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::port::{NewTask, Profile};

/// What a task asks of a worker, in one form: lists are sorted and have no doubles, "anybody" is the empty list. Many tasks
/// share few demands, so that a store keeps each once, and a worker looks only at the heads of those that it fits.
///
/// ```
/// use std::time::Duration;
/// use tenure_core::claim::Demand;
/// use tenure_core::port::{NewTask, Profile};
///
/// let task = NewTask { requires: vec!["gpu".into()], workers: vec!["*".into()], ..NewTask::new("train") };
/// let demand = Demand::of(&task);
/// let mut worker = Profile { name: "w1".into(), kinds: vec!["train".into()], tags: vec![] };
/// let (ready_for, prefer) = (Duration::ZERO, Duration::from_secs(5));
/// assert!(!demand.fits(&worker, ready_for, prefer));
/// worker.tags.push("gpu".into());
/// assert!(demand.fits(&worker, ready_for, prefer));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Demand {
    /// What the worker must know; empty: nothing in particular.
    pub kind: String,
    /// Tags that it must have, all of them.
    pub requires: Vec<String>,
    /// Tags of which it had better have one.
    pub prefers: Vec<String>,
    /// Names of which it must have one; empty: any.
    pub workers: Vec<String>,
}

impl Demand {
    /// What this task asks for.
    pub fn of(task: &NewTask) -> Demand {
        let anybody = task.workers.iter().any(|name| name == "*");
        Demand {
            kind: task.kind.clone(),
            requires: in_order(&task.requires),
            prefers: in_order(&task.prefers),
            workers: if anybody { Vec::new() } else { in_order(&task.workers) },
        }
    }

    /// Whether this worker may ever have such a task, its preferences aside.
    pub fn suits(&self, worker: &Profile) -> bool {
        let knows = self.kind.is_empty() || worker.kinds.is_empty() || worker.kinds.contains(&self.kind);
        let has = self.requires.iter().all(|tag| worker.tags.contains(tag));
        let meant = self.workers.is_empty() || self.workers.contains(&worker.name);
        knows && has && meant
    }

    /// Whether this worker is one of those that are preferred; everybody is, if nothing is.
    pub fn favours(&self, worker: &Profile) -> bool {
        self.prefers.is_empty() || self.prefers.iter().any(|tag| worker.tags.contains(tag))
    }

    /// Whether this worker may have such a task now, that has been ready for `ready_for`, in a queue where the preferred ones
    /// come first for as long as `prefer`.
    pub fn fits(&self, worker: &Profile, ready_for: Duration, prefer: Duration) -> bool {
        self.suits(worker) && (self.favours(worker) || ready_for >= prefer)
    }

    /// One text for one demand, and another for another: what a store may hash to find it again.
    pub fn signature(&self) -> String {
        serde_json::json!([self.kind, self.requires, self.prefers, self.workers]).to_string()
    }
}

/// Sorted, each once.
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
            requires,
            prefers,
            workers,
            ..NewTask::new(kind)
        })
    }

    fn any_worker() -> impl Strategy<Value = Profile> {
        ("[wv]", prop::collection::vec("[kl]", 0..2), words()).prop_map(|(name, kinds, tags)| Profile {
            name,
            kinds,
            tags,
        })
    }

    proptest! {
        /// The rule as the task's own fields say it, in whatever order and however often.
        #[test]
        fn matching_is_what_the_task_says(task in any_task(), worker in any_worker(), ready in 0..10u64, prefer in 0..10u64) {
            let kind = task.kind.is_empty() || worker.kinds.is_empty() || worker.kinds.contains(&task.kind);
            let tags = task.requires.iter().filter(|tag| !worker.tags.contains(tag)).count() == 0;
            let named = task.workers.is_empty() || task.workers.iter().any(|n| n == "*" || *n == worker.name);
            let liked = task.prefers.is_empty() || task.prefers.iter().any(|tag| worker.tags.contains(tag));
            let fits = Demand::of(&task).fits(&worker, Duration::from_millis(ready), Duration::from_millis(prefer));
            prop_assert_eq!(fits, kind && tags && named && (liked || ready >= prefer));
        }

        #[test]
        fn order_and_doubles_make_no_other_demand(task in any_task()) {
            let mut other = task.clone();
            other.requires.reverse();
            other.prefers.extend(task.prefers.clone());
            other.workers.reverse();
            prop_assert_eq!(Demand::of(&task), Demand::of(&other));
        }

        #[test]
        fn signatures_are_equal_as_demands_are(a in any_task(), b in any_task()) {
            let (a, b) = (Demand::of(&a), Demand::of(&b));
            prop_assert_eq!(a == b, a.signature() == b.signature());
        }

        /// More tags never lose a worker a task.
        #[test]
        fn a_worker_with_more_tags_fits_no_less(task in any_task(), worker in any_worker(), more in words()) {
            let demand = Demand::of(&task);
            let mut richer = worker.clone();
            richer.tags.extend(more);
            prop_assert!(!demand.suits(&worker) || demand.suits(&richer));
        }
    }
}
