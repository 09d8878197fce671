//! Statistics of simulation runs.

use crate::sim::stats::stats;

stats! {
    /// Counters of Raft simulations.
    RaftStats:
    run_count: "runs",
    virtual_ms: "virtual milliseconds",
    messages: "messages",
    messages_cut: "messages dropped by a cut",
    connections_broken: "connections broken",
    requests_duplicated: "requests duplicated",
    cuts_both_ways: "cuts in both directions",
    cuts_one_way: "cuts in one direction",
    pauses: "members suspended",
    crashes: "members crashed",
    writes_torn: "power failures during a write",
    blackouts: "crashes of all members at once",
    users_paused: "clients suspended",
    users_crashed: "clients crashed",
    admitted: "members added",
    dismissed: "members removed",
    transfers: "Raft leadership transfers",
    disks_lost: "disks lost or replaced by an old copy",
    applied: "entries applied, on all members",
    snapshots: "snapshots installed",
    leaders: "Raft leaders",
    elected: "terms started by clients",
    writes: "writes confirmed",
    writes_unknown: "writes with unknown outcome",
    fenced: "writes confirmed under a lease",
    reads: "reads",
    refused: "calls not answered by a minority",
}
