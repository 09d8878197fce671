//! Whether a run begins while another of the same schedule is under way.

use serde::{Deserialize, Serialize};

/// How many runs of one schedule wait at most.
pub const WAIT_MAX: u32 = 1_000;

/// What becomes of a tick that fires while an earlier one's run is under way. Every tick is recorded, whatever becomes of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Overlap {
    /// It runs as well.
    #[default]
    Allow,
    /// It does not run.
    Skip,
    /// It runs when the others have; not at all if [`WAIT_MAX`] wait already.
    Queue,
}

/// The runs of a schedule that are not over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Load {
    /// How many are under way.
    pub running: u32,
    /// How many wait.
    pub waiting: u32,
}

/// What becomes of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Admission {
    /// It runs now.
    Run,
    /// It waits for its turn.
    Wait,
    /// It does not run.
    Skip,
}

impl Overlap {
    /// What becomes of the next tick; the load is from then on what it becomes by that. So ticks that fire together, as
    /// after an outage, are decided one after the other, and the first that runs is under way for the second.
    ///
    /// ```
    /// use tenure_core::schedule::{Admission, Load, Overlap};
    ///
    /// let mut load = Load::default();
    /// assert_eq!(Overlap::Skip.admit(&mut load), Admission::Run);
    /// assert_eq!(Overlap::Skip.admit(&mut load), Admission::Skip);
    /// ```
    pub fn admit(self, load: &mut Load) -> Admission {
        let is_idle = load.running == 0 && load.waiting == 0;
        let admission = match self {
            Overlap::Allow => Admission::Run,
            _ if is_idle => Admission::Run,
            Overlap::Queue if load.waiting < WAIT_MAX => Admission::Wait,
            Overlap::Queue | Overlap::Skip => Admission::Skip,
        };
        match admission {
            Admission::Run => load.running = load.running.saturating_add(1),
            Admission::Wait => load.waiting += 1,
            Admission::Skip => {}
        }
        admission
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(overlap: Overlap, mut load: Load, ticks: usize) -> (Vec<Admission>, Load) {
        ((0..ticks).map(|_| overlap.admit(&mut load)).collect(), load)
    }

    #[test]
    fn allow_runs_whatever_else_runs() {
        let (all, load) = admitted(Overlap::Allow, Load { running: 5, waiting: 0 }, 2);
        assert_eq!((all, load.running), (vec![Admission::Run; 2], 7));
    }

    #[test]
    fn skip_runs_one_at_a_time_and_forgets_the_others() {
        let (all, load) = admitted(Overlap::Skip, Load::default(), 3);
        assert_eq!(all, [Admission::Run, Admission::Skip, Admission::Skip]);
        assert_eq!(load, Load { running: 1, waiting: 0 });
    }

    #[test]
    fn queue_keeps_the_order_and_is_bounded() {
        let (all, load) = admitted(Overlap::Queue, Load::default(), WAIT_MAX as usize + 2);
        assert_eq!((all[0], all[1]), (Admission::Run, Admission::Wait));
        assert_eq!(all.last(), Some(&Admission::Skip));
        assert_eq!(load, Load { running: 1, waiting: WAIT_MAX });
        // A new tick does not overtake those that wait.
        let (all, _) = admitted(Overlap::Queue, Load { running: 0, waiting: 1 }, 1);
        assert_eq!(all, [Admission::Wait]);
    }
}
