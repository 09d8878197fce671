//! Statistics of soft simulation runs.

use std::fmt;
use std::time::Duration;

/// Statistics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SoftStats {
    /// Number of runs.
    pub run_count: u64,
    /// Number of started leaderships.
    pub elected: u64,
    /// Number of cuts.
    pub splits: u64,
    /// Number of crashes, suspensions and departures.
    pub ends: u64,
    /// Time with two or more leaders while the network was cut.
    pub dual_cut: Duration,
    /// Time with two or more leaders after it had healed.
    pub dual_healed: Duration,
    /// The longest such period.
    pub dual_healed_most: Duration,
    /// The longest such period in gossip rounds.
    pub dual_healed_rounds: u64,
    /// The longest time without a leader after the faults.
    pub vacant_most: Duration,
}

impl SoftStats {
    /// Adds a run.
    pub fn add(&mut self, other: &SoftStats) {
        self.run_count += other.run_count;
        self.elected += other.elected;
        self.splits += other.splits;
        self.ends += other.ends;
        self.dual_cut += other.dual_cut;
        self.dual_healed += other.dual_healed;
        self.dual_healed_most = self.dual_healed_most.max(other.dual_healed_most);
        self.dual_healed_rounds = self.dual_healed_rounds.max(other.dual_healed_rounds);
        self.vacant_most = self.vacant_most.max(other.vacant_most);
    }
}

impl fmt::Display for SoftStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} elected, {} cuts, {} crashes, suspensions and departures",
            self.elected, self.splits, self.ends
        )?;
        writeln!(f, "two leaders while cut: {:.1}s in total", self.dual_cut.as_secs_f64())?;
        write!(
            f,
            "two leaders after healing: {:.3}s in total, at most {} ms or {} rounds; no leader for at most {} \
             ms",
            self.dual_healed.as_secs_f64(),
            self.dual_healed_most.as_millis(),
            self.dual_healed_rounds,
            self.vacant_most.as_millis()
        )
    }
}
