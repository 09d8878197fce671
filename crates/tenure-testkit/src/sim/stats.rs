//! What happened on one day, or on many.

/// A structure of counts, each with the words for it.
macro_rules! stats {
    ($(#[$about:meta])* $Stats:ident: $($name:ident: $words:literal,)*) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $Stats {
            $(#[doc = $words] pub $name: u64,)*
        }

        impl $Stats {
            /// Adds another day's counts.
            pub fn add(&mut self, other: &$Stats) {
                $(self.$name += other.$name;)*
            }

            /// Each count with what it counts.
            pub fn rows(&self) -> Vec<(&'static str, u64)> {
                vec![$(($words, self.$name),)*]
            }
        }

        impl std::fmt::Display for $Stats {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.rows().iter().try_for_each(|(words, count)| writeln!(f, "{words:<48} {count:>14}"))
            }
        }
    };
}
pub(super) use stats;

stats! {
    /// Counts of what happened.
    Stats:
    days: "days lived",
    virtual_ms: "virtual milliseconds",
    steps: "steps of machines",
    commands: "calls to the store",
    requests_lost: "requests lost",
    answers_lost: "answers lost",
    applied_late: "requests applied after their time-out",
    hints_lost: "hints lost",
    cuts: "processes cut off",
    pauses: "processes stopped or suspended",
    crashes: "crashes",
    restarts: "starts after a crash or an end",
    ends: "orderly ends",
    outages: "store outages",
    promotions: "promotions of an older copy",
    operator_asks: "operators' requests",
    withdrawals: "withdrawals and changes of candidacy",
    elected: "terms begun",
    granted_late: "leases granted after their take timed out",
    takeovers: "take-overs from the silent",
    sessions_expired: "sessions expired",
    lost: "terms lost",
    asked: "leaders asked to finish",
    released: "leases released",
    guarded_writes: "guarded writes committed",
    guarded_refused: "guarded writes refused",
    fenced_writes: "fenced writes accepted",
    stale_refused: "stale writes refused",
}
