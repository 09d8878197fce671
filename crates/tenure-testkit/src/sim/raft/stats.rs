//! What happened on many days.

use crate::sim::stats::stats;

stats! {
    /// Counts of what happened to clusters.
    RaftStats:
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
