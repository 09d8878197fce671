//! Overlapping runs of a schedule.

use serde::{Deserialize, Serialize};

/// Maximum number of waiting runs of one schedule.
pub const WAIT_MAX: u32 = 1_000;

/// What happens to a tick while an earlier run is unfinished. Every tick is recorded in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OverlapPolicy {
    /// It runs in parallel.
    #[default]
    Allow,
    /// It does not run.
    Skip,
    /// It runs after the others; it does not run if [`WAIT_MAX`] runs already wait.
    Queue,
}

/// The unfinished runs of a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UnfinishedRuns {
    /// Number of running runs.
    pub running: u32,
    /// Number of waiting runs.
    pub waiting: u32,
}

/// What happens to a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OverlapDecision {
    /// It runs now.
    Run,
    /// It waits.
    Wait,
    /// It does not run.
    Skip,
}

impl OverlapPolicy {
    /// Decides about the next tick and updates the number of unfinished runs, so that several ticks that fire
    /// together, for example after an outage, are decided one after the other.
    ///
    /// ```
    /// use tenure_core::rules::schedule::{OverlapDecision, OverlapPolicy, UnfinishedRuns};
    ///
    /// let mut runs = UnfinishedRuns::default();
    /// assert_eq!(OverlapPolicy::Skip.admit(&mut runs), OverlapDecision::Run);
    /// assert_eq!(OverlapPolicy::Skip.admit(&mut runs), OverlapDecision::Skip);
    /// ```
    pub fn admit(self, load: &mut UnfinishedRuns) -> OverlapDecision {
        let is_idle = load.running == 0 && load.waiting == 0;
        let admission = match self {
            OverlapPolicy::Allow => OverlapDecision::Run,
            _ if is_idle => OverlapDecision::Run,
            OverlapPolicy::Queue if load.waiting < WAIT_MAX => OverlapDecision::Wait,
            OverlapPolicy::Queue | OverlapPolicy::Skip => OverlapDecision::Skip,
        };
        match admission {
            OverlapDecision::Run => load.running = load.running.saturating_add(1),
            OverlapDecision::Wait => load.waiting += 1,
            OverlapDecision::Skip => {}
        }
        admission
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(
        overlap: OverlapPolicy,
        mut load: UnfinishedRuns,
        ticks: usize,
    ) -> (Vec<OverlapDecision>, UnfinishedRuns) {
        ((0..ticks).map(|_| overlap.admit(&mut load)).collect(), load)
    }

    #[test]
    fn allow_runs_in_parallel() {
        let (all, load) = admitted(OverlapPolicy::Allow, UnfinishedRuns { running: 5, waiting: 0 }, 2);
        assert_eq!((all, load.running), (vec![OverlapDecision::Run; 2], 7));
    }

    #[test]
    fn skip_runs_one_at_a_time_and_drops_the_others() {
        let (all, load) = admitted(OverlapPolicy::Skip, UnfinishedRuns::default(), 3);
        assert_eq!(all, [OverlapDecision::Run, OverlapDecision::Skip, OverlapDecision::Skip]);
        assert_eq!(load, UnfinishedRuns { running: 1, waiting: 0 });
    }

    #[test]
    fn queue_keeps_the_order_and_is_bounded() {
        let (all, load) = admitted(OverlapPolicy::Queue, UnfinishedRuns::default(), WAIT_MAX as usize + 2);
        assert_eq!((all[0], all[1]), (OverlapDecision::Run, OverlapDecision::Wait));
        assert_eq!(all.last(), Some(&OverlapDecision::Skip));
        assert_eq!(load, UnfinishedRuns { running: 1, waiting: WAIT_MAX });
        // A new tick does not overtake waiting runs.
        let (all, _) = admitted(OverlapPolicy::Queue, UnfinishedRuns { running: 0, waiting: 1 }, 1);
        assert_eq!(all, [OverlapDecision::Wait]);
    }
}
