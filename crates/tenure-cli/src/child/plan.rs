//! When the group is asked to stop, and when it is killed: arithmetic on moments that the caller reads, and no effects.
//!
//! The phases go one way: *working*, *ending* (SIGTERM is due or was sent), *killing*.
//!
//! ```text
//!   deadline arrives                      term                       kill    deadline
//!        |--------- work ------------------|------ grace -------------|-margin-|
//!        |<------------------------- window ---------------------------------->|
//! ```
//!
//! `window` is what was left of trust when the deadline arrived, `margin = min(100 ms, window / 10)` is for dying, and
//! `grace = min(kill_after, window / 3)`. So a grace that is long compared to trust cannot eat the trust: at least 56 %
//! of every window (for windows over a second two thirds, less the margin) is for work, and a supervisor that
//! renews when half of the window has gone never meets the grace.
//!
//! A later deadline moves all three moments, until the SIGTERM for trust has been sent: it cannot be unsent, so the
//! ending is finished, whatever comes. Deadlines never move back; who wants less trust asks for an end.
//!
//! An end that was asked for, or that follows the end of the main process or of the supervisor, has the grace it was
//! given, but never goes past `kill`. A second one can only shorten the first.

/// A process needs time to die, and the watchdog to be scheduled.
const MARGIN_MAX_NS: u64 = 100_000_000;

#[derive(Debug)]
pub(super) struct Plan {
    kill_after_ns: u64,
    deadline_ns: u64,
    term_at_ns: u64,
    kill_at_ns: u64,
    phase: Phase,
    main_ended: bool,
    for_trust: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Working,
    Ending { termed: bool, until_ns: u64 },
    Killing,
}

impl Plan {
    pub(super) fn new(now_ns: u64, deadline_ns: u64, kill_after_ns: u64) -> Self {
        let mut plan = Self {
            kill_after_ns,
            deadline_ns: 0,
            term_at_ns: 0,
            kill_at_ns: 0,
            phase: Phase::Working,
            main_ended: false,
            for_trust: false,
        };
        plan.extend(now_ns, deadline_ns);
        plan
    }

    /// A newer deadline. Older ones, and those that come too late, change nothing.
    pub(super) fn extend(&mut self, now_ns: u64, deadline_ns: u64) {
        if self.for_trust || self.phase == Phase::Killing || deadline_ns <= self.deadline_ns {
            return;
        }
        let window_ns = deadline_ns.saturating_sub(now_ns);
        self.deadline_ns = deadline_ns;
        self.kill_at_ns = deadline_ns - MARGIN_MAX_NS.min(window_ns / 10);
        self.term_at_ns = self.kill_at_ns - self.kill_after_ns.min(window_ns / 3);
    }

    /// The group is to end within `grace_ns`, sooner if trust says so.
    pub(super) fn end(&mut self, now_ns: u64, grace_ns: u64) {
        let asked_ns = now_ns.saturating_add(grace_ns);
        self.phase = match self.phase {
            Phase::Working => Phase::Ending { termed: false, until_ns: asked_ns },
            Phase::Ending { termed, until_ns } => Phase::Ending { termed, until_ns: until_ns.min(asked_ns) },
            Phase::Killing => Phase::Killing,
        };
    }

    /// As `end`, with the grace the plan was made with.
    pub(super) fn end_in_time(&mut self, now_ns: u64) {
        self.end(now_ns, self.kill_after_ns);
    }

    /// The main process is gone: so is, in time, what it left behind.
    pub(super) fn main_ended(&mut self, now_ns: u64) {
        self.main_ended = true;
        self.end_in_time(now_ns);
    }

    /// Whether SIGKILL is due. Once true it has begun, and stays true.
    pub(super) fn kill_due(&mut self, now_ns: u64) -> bool {
        let asked_ns = match self.phase {
            Phase::Working => u64::MAX,
            Phase::Ending { until_ns, .. } => until_ns,
            Phase::Killing => return true,
        };
        if now_ns < asked_ns.min(self.kill_at_ns) {
            return false;
        }
        // Its own end, and one that was asked for and had its full grace, are not trust's doing.
        self.for_trust |= !self.main_ended && self.kill_at_ns < asked_ns;
        self.phase = Phase::Killing;
        true
    }

    /// Whether SIGTERM is due. True once.
    pub(super) fn term_due(&mut self, now_ns: u64) -> bool {
        match &mut self.phase {
            Phase::Working if now_ns >= self.term_at_ns => {
                self.for_trust = true;
                self.phase = Phase::Ending { termed: true, until_ns: self.kill_at_ns };
                true
            }
            Phase::Ending { termed, .. } => !std::mem::replace(termed, true),
            Phase::Working | Phase::Killing => false,
        }
    }

    /// When something is due next; `None` when killing has begun.
    pub(super) fn wake_at_ns(&self) -> Option<u64> {
        match self.phase {
            Phase::Working => Some(self.term_at_ns),
            Phase::Ending { until_ns, .. } => Some(until_ns.min(self.kill_at_ns)),
            Phase::Killing => None,
        }
    }

    /// Whether the main process was ended because trust ran out.
    pub(super) fn ended_for_trust(&self) -> bool {
        self.for_trust
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_group_is_asked_then_killed_before_the_deadline() {
        let mut plan = Plan::new(0, 10 * SECOND, SECOND);
        assert_eq!(plan.wake_at_ns(), Some(10 * SECOND - MARGIN_MAX_NS - SECOND));
        assert!(!plan.term_due(8 * SECOND) && !plan.kill_due(8 * SECOND));
        assert!(plan.term_due(9 * SECOND), "asked");
        assert!(!plan.term_due(9 * SECOND), "once");
        assert_eq!(plan.wake_at_ns(), Some(10 * SECOND - MARGIN_MAX_NS));
        assert!(plan.kill_due(10 * SECOND - MARGIN_MAX_NS));
        assert!(plan.ended_for_trust());
    }

    #[test]
    fn a_long_grace_leaves_more_than_half_of_every_window_for_work() {
        for window in [1, 10, 1_000, SECOND / 10, SECOND, 10 * SECOND, 3600 * SECOND] {
            let plan = Plan::new(500, 500 + window, u64::MAX);
            let work = plan.term_at_ns - 500;
            assert!(work * 100 >= window * 56, "{work} of {window}");
            assert!(plan.term_at_ns <= plan.kill_at_ns && plan.kill_at_ns <= plan.deadline_ns);
        }
    }

    #[test]
    fn a_newer_deadline_moves_everything_until_sigterm_was_sent() {
        let mut plan = Plan::new(0, 10 * SECOND, SECOND);
        plan.extend(9 * SECOND, 19 * SECOND);
        assert!(!plan.term_due(10 * SECOND));
        plan.extend(10 * SECOND, 15 * SECOND);
        assert!(!plan.term_due(17 * SECOND), "deadlines never move back");
        assert!(plan.term_due(18 * SECOND));
        plan.extend(18 * SECOND, 28 * SECOND);
        assert!(plan.kill_due(19 * SECOND), "too late to unsend");
    }

    #[test]
    fn after_a_freeze_past_the_deadline_killing_comes_first() {
        let mut plan = Plan::new(0, 10 * SECOND, SECOND);
        assert!(plan.kill_due(3600 * SECOND));
        plan.extend(3600 * SECOND, 7200 * SECOND);
        assert!(plan.kill_due(3600 * SECOND) && !plan.term_due(3600 * SECOND));
        assert!(plan.ended_for_trust());
    }

    #[test]
    fn a_deadline_in_the_past_is_no_trust_at_all() {
        assert!(Plan::new(10, 10, SECOND).kill_due(10));
        assert!(Plan::new(10, 0, SECOND).kill_due(10));
    }

    #[test]
    fn an_end_keeps_its_grace_but_never_outlives_trust() {
        let mut plan = Plan::new(0, 10 * SECOND, SECOND);
        plan.end(0, 30 * SECOND);
        assert!(plan.term_due(0));
        assert_eq!(plan.wake_at_ns(), Some(10 * SECOND - MARGIN_MAX_NS));
        plan.extend(SECOND, 60 * SECOND);
        assert_eq!(plan.wake_at_ns(), Some(30 * SECOND), "trust went on, so the grace is whole again");
        plan.end(2 * SECOND, SECOND);
        assert_eq!(plan.wake_at_ns(), Some(3 * SECOND), "a second end is shorter");
        assert!(plan.kill_due(3 * SECOND));
        assert!(!plan.ended_for_trust());
    }

    #[test]
    fn an_end_that_trust_cuts_short_is_for_trust_unless_the_main_process_was_gone() {
        let mut cut = Plan::new(0, 10 * SECOND, SECOND);
        cut.end(0, 30 * SECOND);
        assert!(cut.kill_due(10 * SECOND) && cut.ended_for_trust());

        let mut gone = Plan::new(0, 10 * SECOND, 30 * SECOND);
        gone.main_ended(SECOND);
        assert!(gone.term_due(SECOND) && gone.kill_due(10 * SECOND) && !gone.ended_for_trust());
    }

    #[test]
    fn an_end_without_grace_kills_at_once() {
        let mut plan = Plan::new(0, 10 * SECOND, SECOND);
        plan.end(SECOND, 0);
        assert!(plan.kill_due(SECOND));
    }
}
