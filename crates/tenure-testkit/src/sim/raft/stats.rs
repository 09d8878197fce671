//! What happened on many days.

use std::fmt;

macro_rules! stats {
    ($($name:ident: $words:literal,)*) => {
        /// Counts of what happened to clusters.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct RaftStats {
            $(#[doc = $words] pub $name: u64,)*
        }

        impl RaftStats {
            /// Adds another day's counts.
            pub fn add(&mut self, other: &RaftStats) {
                $(self.$name += other.$name;)*
            }

            /// Each count with what it counts.
            pub fn rows(&self) -> Vec<(&'static str, u64)> {
                vec![$(($words, self.$name),)*]
            }
        }
    };
}

stats! {
    days: "days lived",
    virtual_ms: "virtual milliseconds",
    messages: "messages",
    messages_cut: "messages that a cut kept back",
    connections_broken: "connections broken",
    questions_doubled: "questions heard twice",
    cuts_both_ways: "cuts, both ways",
    cuts_one_way: "cuts, one way",
    pauses: "members stopped",
    crashes: "members crashed",
    writes_torn: "members whose power failed in a write",
    blackouts: "times that all members crashed at once",
    users_paused: "clients stopped",
    users_crashed: "clients crashed",
    admitted: "members admitted",
    dismissed: "members dismissed",
    transfers: "leaderships of the cluster transferred",
    disks_lost: "disks lost or put back as they once were",
    applied: "entries applied, on all members",
    snapshots: "snapshots installed",
    leaders: "leaders of clusters",
    elected: "terms begun by clients",
    writes: "writes that were confirmed",
    writes_unknown: "writes that nobody knows of",
    fenced: "writes under a lease that were confirmed",
    reads: "reads",
    refused: "reads and writes that a minority did not answer",
}

impl fmt::Display for RaftStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rows().iter().try_for_each(|(words, count)| writeln!(f, "{words:<48} {count:>14}"))
    }
}
