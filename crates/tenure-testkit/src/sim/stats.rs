//! Statistics of simulation runs.

/// A struct of counters, each with a description.
macro_rules! stats {
    ($(#[$about:meta])* $Stats:ident: $($name:ident: $words:literal,)*) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $Stats {
            $(#[doc = $words] pub $name: u64,)*
        }

        impl $Stats {
            /// Adds the counters of another run.
            pub fn add(&mut self, other: &$Stats) {
                $(self.$name += other.$name;)*
            }

            /// Each counter with its description.
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
    /// Counters of election simulations.
    Stats:
    run_count: "runs",
    virtual_ms: "virtual milliseconds",
    steps: "steps of lease machines",
    commands: "store calls",
    requests_lost: "requests lost",
    answers_lost: "responses lost",
    applied_late: "requests applied after their timeout",
    notifications_lost: "notifications lost",
    cuts: "processes cut off from the store",
    pauses: "processes suspended",
    crashes: "crashes",
    restarts: "restarts",
    ends: "graceful shutdowns",
    outages: "store outages",
    promotions: "promotions of a lagging standby",
    operator_requests: "operators' requests",
    withdrawals: "withdrawals and changes of candidates",
    elected: "terms started",
    granted_late: "leases granted after their take timed out",
    takeovers: "takeovers from silent leaders",
    sessions_expired: "sessions expired",
    lost: "terms lost",
    leader_requests: "requests to leaders",
    released: "leases released",
    guarded_writes: "guarded writes committed",
    guarded_refused: "guarded writes rejected",
    fenced_writes: "fenced writes accepted",
    stale_refused: "stale writes rejected",
}
