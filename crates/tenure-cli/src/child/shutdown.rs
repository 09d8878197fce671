//! Computes when a process group gets SIGTERM and SIGKILL. The caller passes the clock values; there are no side
//! effects.
//!
//! The phases go one way: *working*, *ending* (SIGTERM is due or was sent), *killing*.
//!
//! ```text
//!   deadline arrives                      term                       kill    deadline
//!        |--------- work ------------------|------ grace -------------|-margin-|
//!        |<------------------------- window ---------------------------------->|
//! ```
//!
//! `window` is the time from the arrival of a deadline to the deadline, `margin = min(100 ms, window / 10)` is the time
//! for processes to die, and `grace = min(kill_after, window / 3)`. So a long grace period cannot use up the window: at
//! least 56 % of every window (for windows over a second two thirds, less the margin) is for work, and a supervisor
//! that renews after half of the window never reaches the grace period.
//!
//! A later deadline moves `term`, `kill` and `deadline`, unless the plan has already sent SIGTERM because of the
//! deadline: a sent SIGTERM cannot be undone, so the shutdown is completed. Deadlines never move back; to stop earlier,
//! request an end.
//!
//! A requested end has its own grace period, but never goes past `kill`. The exit of the main process or of the
//! supervisor counts as such a request. A second request can only shorten the grace period of the first.

/// Time for processes to die and for the watchdog to be scheduled.
const MARGIN_MAX_NS: u64 = 100_000_000;

#[derive(Debug)]
pub(super) struct ShutdownPlan {
    kill_after_ns: u64,
    deadline_ns: u64,
    term_at_ns: u64,
    kill_at_ns: u64,
    phase: ShutdownPhase,
    main_ended: bool,
    at_deadline: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShutdownPhase {
    Working,
    Ending { termed: bool, until_ns: u64 },
    Killing,
}

impl ShutdownPlan {
    pub(super) fn new(now_ns: u64, deadline_ns: u64, kill_after_ns: u64) -> Self {
        let mut plan = Self {
            kill_after_ns,
            deadline_ns: 0,
            term_at_ns: 0,
            kill_at_ns: 0,
            phase: ShutdownPhase::Working,
            main_ended: false,
            at_deadline: false,
        };
        plan.extend(now_ns, deadline_ns);
        plan
    }

    /// Sets a later deadline. An earlier deadline has no effect, nor has any deadline after SIGTERM was sent because of
    /// the previous one.
    pub(super) fn extend(&mut self, now_ns: u64, deadline_ns: u64) {
        if self.at_deadline || self.phase == ShutdownPhase::Killing || deadline_ns <= self.deadline_ns {
            return;
        }
        let window_ns = deadline_ns.saturating_sub(now_ns);
        self.deadline_ns = deadline_ns;
        self.kill_at_ns = deadline_ns - MARGIN_MAX_NS.min(window_ns / 10);
        self.term_at_ns = self.kill_at_ns - self.kill_after_ns.min(window_ns / 3);
    }

    /// Requests the end of the group within `grace_ns`, or sooner at the deadline.
    pub(super) fn end(&mut self, now_ns: u64, grace_ns: u64) {
        let asked_ns = now_ns.saturating_add(grace_ns);
        self.phase = match self.phase {
            ShutdownPhase::Working => ShutdownPhase::Ending { termed: false, until_ns: asked_ns },
            ShutdownPhase::Ending { termed, until_ns } => {
                ShutdownPhase::Ending { termed, until_ns: until_ns.min(asked_ns) }
            }
            ShutdownPhase::Killing => ShutdownPhase::Killing,
        };
    }

    /// As `end`, with the grace period of the plan.
    pub(super) fn end_in_time(&mut self, now_ns: u64) {
        self.end(now_ns, self.kill_after_ns);
    }

    /// Records the exit of the main process and requests the end of its descendants.
    pub(super) fn main_ended(&mut self, now_ns: u64) {
        self.main_ended = true;
        self.end_in_time(now_ns);
    }

    /// Whether SIGKILL is due. Once true, it stays true.
    pub(super) fn kill_due(&mut self, now_ns: u64) -> bool {
        let asked_ns = match self.phase {
            ShutdownPhase::Working => u64::MAX,
            ShutdownPhase::Ending { until_ns, .. } => until_ns,
            ShutdownPhase::Killing => return true,
        };
        if now_ns < asked_ns.min(self.kill_at_ns) {
            return false;
        }
        // This does not count as stopped at the deadline if the main process exited by itself, or if a requested end
        // had its full grace period.
        self.at_deadline |= !self.main_ended && self.kill_at_ns < asked_ns;
        self.phase = ShutdownPhase::Killing;
        true
    }

    /// Whether SIGTERM is due. Returns `true` once.
    pub(super) fn term_due(&mut self, now_ns: u64) -> bool {
        match &mut self.phase {
            ShutdownPhase::Working if now_ns >= self.term_at_ns => {
                self.at_deadline = true;
                self.phase = ShutdownPhase::Ending { termed: true, until_ns: self.kill_at_ns };
                true
            }
            ShutdownPhase::Ending { termed, .. } => !std::mem::replace(termed, true),
            ShutdownPhase::Working | ShutdownPhase::Killing => false,
        }
    }

    /// When the next signal is due; `None` after killing started.
    pub(super) fn wake_at_ns(&self) -> Option<u64> {
        match self.phase {
            ShutdownPhase::Working => Some(self.term_at_ns),
            ShutdownPhase::Ending { until_ns, .. } => Some(until_ns.min(self.kill_at_ns)),
            ShutdownPhase::Killing => None,
        }
    }

    /// Whether the main process was stopped at the deadline.
    pub(super) fn ended_at_deadline(&self) -> bool {
        self.at_deadline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_group_gets_sigterm_and_sigkill_before_the_deadline() {
        let mut plan = ShutdownPlan::new(0, 10 * SECOND, SECOND);
        assert_eq!(plan.wake_at_ns(), Some(10 * SECOND - MARGIN_MAX_NS - SECOND));
        assert!(!plan.term_due(8 * SECOND) && !plan.kill_due(8 * SECOND));
        assert!(plan.term_due(9 * SECOND), "SIGTERM is due");
        assert!(!plan.term_due(9 * SECOND), "only once");
        assert_eq!(plan.wake_at_ns(), Some(10 * SECOND - MARGIN_MAX_NS));
        assert!(plan.kill_due(10 * SECOND - MARGIN_MAX_NS));
        assert!(plan.ended_at_deadline());
    }

    #[test]
    fn a_long_grace_period_leaves_most_of_every_window_for_work() {
        for window in [1, 10, 1_000, SECOND / 10, SECOND, 10 * SECOND, 3600 * SECOND] {
            let plan = ShutdownPlan::new(500, 500 + window, u64::MAX);
            let work = plan.term_at_ns - 500;
            assert!(work * 100 >= window * 56, "{work} of {window}");
            assert!(plan.term_at_ns <= plan.kill_at_ns && plan.kill_at_ns <= plan.deadline_ns);
        }
    }

    #[test]
    fn a_later_deadline_moves_all_instants_until_sigterm_was_sent() {
        let mut plan = ShutdownPlan::new(0, 10 * SECOND, SECOND);
        plan.extend(9 * SECOND, 19 * SECOND);
        assert!(!plan.term_due(10 * SECOND));
        plan.extend(10 * SECOND, 15 * SECOND);
        assert!(!plan.term_due(17 * SECOND), "deadlines never move back");
        assert!(plan.term_due(18 * SECOND));
        plan.extend(18 * SECOND, 28 * SECOND);
        assert!(plan.kill_due(19 * SECOND), "a sent SIGTERM cannot be undone");
    }

    #[test]
    fn after_a_freeze_past_the_deadline_sigkill_comes_first() {
        let mut plan = ShutdownPlan::new(0, 10 * SECOND, SECOND);
        assert!(plan.kill_due(3600 * SECOND));
        plan.extend(3600 * SECOND, 7200 * SECOND);
        assert!(plan.kill_due(3600 * SECOND) && !plan.term_due(3600 * SECOND));
        assert!(plan.ended_at_deadline());
    }

    #[test]
    fn a_past_deadline_kills_at_once() {
        assert!(ShutdownPlan::new(10, 10, SECOND).kill_due(10));
        assert!(ShutdownPlan::new(10, 0, SECOND).kill_due(10));
    }

    #[test]
    fn an_end_keeps_its_grace_period_within_the_deadline() {
        let mut plan = ShutdownPlan::new(0, 10 * SECOND, SECOND);
        plan.end(0, 30 * SECOND);
        assert!(plan.term_due(0));
        assert_eq!(plan.wake_at_ns(), Some(10 * SECOND - MARGIN_MAX_NS));
        plan.extend(SECOND, 60 * SECOND);
        assert_eq!(plan.wake_at_ns(), Some(30 * SECOND), "a later deadline restores the grace period");
        plan.end(2 * SECOND, SECOND);
        assert_eq!(plan.wake_at_ns(), Some(3 * SECOND), "a second end is shorter");
        assert!(plan.kill_due(3 * SECOND));
        assert!(!plan.ended_at_deadline());
    }

    #[test]
    fn an_end_cut_short_by_the_deadline_is_reported_unless_the_main_process_exited() {
        let mut cut = ShutdownPlan::new(0, 10 * SECOND, SECOND);
        cut.end(0, 30 * SECOND);
        assert!(cut.kill_due(10 * SECOND) && cut.ended_at_deadline());

        let mut gone = ShutdownPlan::new(0, 10 * SECOND, 30 * SECOND);
        gone.main_ended(SECOND);
        assert!(gone.term_due(SECOND) && gone.kill_due(10 * SECOND) && !gone.ended_at_deadline());
    }

    #[test]
    fn an_end_without_grace_period_kills_at_once() {
        let mut plan = ShutdownPlan::new(0, 10 * SECOND, SECOND);
        plan.end(SECOND, 0);
        assert!(plan.kill_due(SECOND));
    }
}
