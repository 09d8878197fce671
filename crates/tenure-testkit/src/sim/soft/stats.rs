//! What happened on many days.

use std::fmt;
use std::time::Duration;

/// What happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SoftStats {
    /// Days lived.
    pub days: u64,
    /// Times that somebody began to lead.
    pub elected: u64,
    /// Times that the network was cut.
    pub splits: u64,
    /// Crashes, stops and goodbyes.
    pub ends: u64,
    /// How long two or more led at once while the network was cut.
    pub dual_cut: Duration,
    /// Likewise after it had healed.
    pub dual_healed: Duration,
    /// The longest of those.
    pub dual_healed_most: Duration,
    /// The same in rounds of gossip.
    pub dual_healed_rounds: u64,
    /// The longest time without a leader after faults had ended.
    pub vacant_most: Duration,
}

impl SoftStats {
    /// Adds a day.
    pub fn add(&mut self, day: &SoftStats) {
        self.days += day.days;
        self.elected += day.elected;
        self.splits += day.splits;
        self.ends += day.ends;
        self.dual_cut += day.dual_cut;
        self.dual_healed += day.dual_healed;
        self.dual_healed_most = self.dual_healed_most.max(day.dual_healed_most);
        self.dual_healed_rounds = self.dual_healed_rounds.max(day.dual_healed_rounds);
        self.vacant_most = self.vacant_most.max(day.vacant_most);
    }
}

impl fmt::Display for SoftStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} elected, {} cuts, {} crashes, stops and goodbyes",
            self.elected, self.splits, self.ends
        )?;
        writeln!(f, "two at once while cut: {:.1}s in all", self.dual_cut.as_secs_f64())?;
        write!(
            f,
            "two at once after healing: {:.3}s in all, at most {} ms or {} rounds; nobody for at most {} ms",
            self.dual_healed.as_secs_f64(),
            self.dual_healed_most.as_millis(),
            self.dual_healed_rounds,
            self.vacant_most.as_millis()
        )
    }
}
