//! Metrics of this process, reported through the [`metrics`] facade. Without an installed recorder they cost nothing.
//!
//! | name | kind | labels | meaning |
//! |---|---|---|---|
//! | `tenure_leadership_slots` | gauge | namespace, election | slots of the election held by this process |
//! | `tenure_leadership_transitions_total` | counter | namespace, election, transition | `elected`, `released` or `lost` |
//! | `tenure_leadership_duration_seconds` | histogram | namespace, election | duration of each term |
//! | `tenure_session_heartbeats_total` | counter | result | session heartbeats: `ok`, `session_ended` or `error` |
//! | `tenure_session_heartbeat_duration_seconds` | histogram | – | duration of one session heartbeat |
//! | `tenure_lease_remaining_seconds` | gauge | – | lease time remaining after the last successful heartbeat |
//! | `tenure_store_errors_total` | counter | kind | store errors |
//! | `tenure_callback_panics_total` | counter | callback | panics in callbacks and handlers: `on_elected`, `on_lost`, `task handler`, `event handler`, `singleton`, `conflict rule` |
//! | `tenure_claim_requests_total` | counter | namespace, queue, route, result | claim requests by route (`direct`, `local_broker`, `remote_broker`, `fallback`) and result (`claimed`, `empty`, `rejected`, `error`) |
//! | `tenure_claim_duration_seconds` | histogram | route | duration of one claim request |
//! | `tenure_claim_requests_waiting` | gauge | namespace, queue | claim requests that wait for a task |
//! | `tenure_tasks_settled_total` | counter | namespace, outcome | settlements: `completed`, `failed`, `released`, `heartbeat` or `lost` |
//! | `tenure_task_run_duration_seconds` | histogram | namespace, queue | run time of handlers |
//! | `tenure_task_wait_duration_seconds` | histogram | namespace, queue | time from submission (store clock) to claim (local clock) |
//! | `tenure_broker_transitions_total` | counter | transition | `started`, `stopped` or `changed` |
//! | `tenure_tasks_recovered_total` | counter | – | lost claims that this process returned to their queues during maintenance |
//! | `tenure_events_published_total` | counter | namespace, topic | events published by this process, or added to a transaction |
//! | `tenure_events_processed_total` | counter | namespace, topic, group | processed and committed events |
//! | `tenure_event_attempts_failed_total` | counter | namespace, topic, group | failed attempts of single events |
//! | `tenure_dead_letters_total` | counter | namespace, topic, group | events that became dead letters |
//! | `tenure_partition_commits_rejected_total` | counter | namespace, topic, group | commits rejected because the partition has another holder |
//! | `tenure_partitions_acquired_total` | counter | namespace, topic, group | partitions acquired by this process |
//! | `tenure_partitions_assigned` | gauge | namespace, topic, group, member | partitions held by this process |
//! | `tenure_event_batch_duration_seconds` | histogram | namespace, topic, group | time from the start of a batch to its last commit |
//! | `tenure_event_latency_seconds` | histogram | namespace, topic, group | time from publication (store clock) to commit (local clock) of the oldest event of each batch |
//! | `tenure_events_pruned_total` | counter | – | events pruned by this process during maintenance |
//! | `tenure_ticks_total` | counter | namespace, outcome | ticks decided by this process: `fired`, `skipped` or `overlapped` |
//! | `tenure_tick_lateness_seconds` | histogram | namespace | time from due to fired, by the store clock |
//! | `tenure_schedule_fires_total` | counter | result | schedules fired by this process: `ok`, `stale` or `rejected` |
//! | `tenure_fire_batch_duration_seconds` | histogram | – | duration of one fire call |
//! | `tenure_scheduler_polls_total` | counter | result | polls for due schedules: `due` or `idle` |
//! | `tenure_ticks_pruned_total` | counter | – | old ticks pruned by this process |
//! | `tenure_registered_names` | gauge | guarantee | names held by this process: `fenced` or `soft` |
//! | `tenure_registered_name_conflicts_total` | counter | outcome | conflicts about soft names: `kept` or `lost` |
//! | `tenure_singletons` | gauge | guarantee | singletons that run in this process |
//! | `tenure_singleton_exits_total` | counter | guarantee, reason | ended singleton runs: `stopped`, `lost`, `returned` or `panicked` |
//! | `tenure_singleton_handoffs_total` | counter | guarantee, result | handoff states: `sent`, `received`, `unclaimed`, `superseded` or `failed` |
//! | `tenure_gossip_members` | gauge | cluster, state | members of the cluster as observed by this process: `live`, `failed` or `left` |
//! | `tenure_gossip_messages_total` | counter | result | gossip messages: `sent`, `received`, `send_failed` or `oversized` |
//! | `tenure_gossip_messages_dropped_total` | counter | reason | rejected datagrams: `forged`, `foreign`, `replayed`, `oversized` or `malformed` |
//! | `tenure_soft_election_leader` | gauge | namespace, election | 1 if this process leads the soft election |
//! | `tenure_soft_election_transitions_total` | counter | namespace, election, transition | `elected` or `lost` |
//! | `tenure_soft_election_conflict_seconds_total` | counter | namespace, election | time during which this process and another one both led, as observed |

#[cfg(feature = "gossip")]
use std::collections::BTreeMap;
#[cfg(feature = "gossip")]
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use metrics::{Label, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use tenure_core::port::{
    ClaimBatchResponse, ClaimOutcome, ClaimedTask, ErrorKind, Event, GroupKey, HeartbeatResponse, QueueKey,
    ScheduleFiring, SettleResult, StoreError, TopicKey,
};
use tenure_core::{ElectionKey, Name};

use crate::queue::broker::BrokerReply;
use crate::queue::wait_queue::ClaimRoute;

/// Names of the metrics.
pub mod names {
    #![allow(missing_docs)]
    pub const LEADERSHIP_SLOTS: &str = "tenure_leadership_slots";
    pub const LEADERSHIP_TRANSITIONS: &str = "tenure_leadership_transitions_total";
    pub const LEADERSHIP_DURATION: &str = "tenure_leadership_duration_seconds";
    pub const HEARTBEATS: &str = "tenure_session_heartbeats_total";
    pub const HEARTBEAT_DURATION: &str = "tenure_session_heartbeat_duration_seconds";
    pub const LEASE_REMAINING: &str = "tenure_lease_remaining_seconds";
    pub const STORE_ERRORS: &str = "tenure_store_errors_total";
    pub const CALLBACK_PANICS: &str = "tenure_callback_panics_total";
    pub const CLAIM_REQUESTS: &str = "tenure_claim_requests_total";
    pub const CLAIM_DURATION: &str = "tenure_claim_duration_seconds";
    pub const CLAIM_REQUESTS_WAITING: &str = "tenure_claim_requests_waiting";
    pub const TASKS_SETTLED: &str = "tenure_tasks_settled_total";
    pub const TASK_RUN_DURATION: &str = "tenure_task_run_duration_seconds";
    pub const TASK_WAIT_DURATION: &str = "tenure_task_wait_duration_seconds";
    pub const BROKER_TRANSITIONS: &str = "tenure_broker_transitions_total";
    pub const TASKS_RECOVERED: &str = "tenure_tasks_recovered_total";
    pub const EVENTS_PUBLISHED: &str = "tenure_events_published_total";
    pub const EVENTS_PROCESSED: &str = "tenure_events_processed_total";
    pub const EVENT_ATTEMPTS_FAILED: &str = "tenure_event_attempts_failed_total";
    pub const DEAD_LETTERS: &str = "tenure_dead_letters_total";
    pub const PARTITION_COMMITS_REJECTED: &str = "tenure_partition_commits_rejected_total";
    pub const PARTITIONS_ACQUIRED: &str = "tenure_partitions_acquired_total";
    pub const PARTITIONS_ASSIGNED: &str = "tenure_partitions_assigned";
    pub const EVENT_BATCH_DURATION: &str = "tenure_event_batch_duration_seconds";
    pub const EVENT_LATENCY: &str = "tenure_event_latency_seconds";
    pub const EVENTS_PRUNED: &str = "tenure_events_pruned_total";
    pub const TICKS: &str = "tenure_ticks_total";
    pub const TICK_LATENESS: &str = "tenure_tick_lateness_seconds";
    pub const SCHEDULE_FIRES: &str = "tenure_schedule_fires_total";
    pub const FIRE_BATCH_DURATION: &str = "tenure_fire_batch_duration_seconds";
    pub const SCHEDULER_POLLS: &str = "tenure_scheduler_polls_total";
    pub const TICKS_PRUNED: &str = "tenure_ticks_pruned_total";
    pub const REGISTERED_NAMES: &str = "tenure_registered_names";
    pub const REGISTERED_NAME_CONFLICTS: &str = "tenure_registered_name_conflicts_total";
    pub const SINGLETONS: &str = "tenure_singletons";
    pub const SINGLETON_EXITS: &str = "tenure_singleton_exits_total";
    pub const SINGLETON_HANDOFFS: &str = "tenure_singleton_handoffs_total";
    pub const GOSSIP_MEMBERS: &str = "tenure_gossip_members";
    pub const GOSSIP_MESSAGES: &str = "tenure_gossip_messages_total";
    pub const GOSSIP_MESSAGES_DROPPED: &str = "tenure_gossip_messages_dropped_total";
    pub const SOFT_ELECTION_LEADER: &str = "tenure_soft_election_leader";
    pub const SOFT_ELECTION_TRANSITIONS: &str = "tenure_soft_election_transitions_total";
    pub const SOFT_ELECTION_CONFLICT: &str = "tenure_soft_election_conflict_seconds_total";
}

/// Describes every metric to the installed recorder.
pub fn describe() {
    describe_gauge!(names::LEADERSHIP_SLOTS, "Slots of the election held by this process.");
    describe_counter!(
        names::LEADERSHIP_TRANSITIONS,
        "Leadership transitions of this process, by transition."
    );
    describe_histogram!(names::LEADERSHIP_DURATION, Unit::Seconds, "Duration of each term of this process.");
    describe_counter!(names::HEARTBEATS, "Session heartbeats of this process, by result.");
    describe_histogram!(names::HEARTBEAT_DURATION, Unit::Seconds, "Duration of one session heartbeat.");
    describe_gauge!(
        names::LEASE_REMAINING,
        Unit::Seconds,
        "Lease time remaining after the last successful heartbeat."
    );
    describe_counter!(names::STORE_ERRORS, "Store errors of this process, by kind.");
    describe_counter!(
        names::CALLBACK_PANICS,
        "Panics in callbacks and handlers of this process, by callback."
    );
    describe_counter!(names::CLAIM_REQUESTS, "Claim requests of this process, by route and result.");
    describe_histogram!(names::CLAIM_DURATION, Unit::Seconds, "Duration of one claim request, by route.");
    describe_gauge!(names::CLAIM_REQUESTS_WAITING, "Claim requests of this process that wait for a task.");
    describe_counter!(names::TASKS_SETTLED, "Settlements of claims by this process, by outcome.");
    describe_histogram!(
        names::TASK_RUN_DURATION,
        Unit::Seconds,
        "Run time of task handlers of this process."
    );
    describe_histogram!(
        names::TASK_WAIT_DURATION,
        Unit::Seconds,
        "Time from submission (store clock) to claim (local clock)."
    );
    describe_counter!(names::BROKER_TRANSITIONS, "Broker transitions seen by this process.");
    describe_counter!(
        names::TASKS_RECOVERED,
        "Lost claims that this process returned to their queues during maintenance."
    );
    describe_counter!(
        names::EVENTS_PUBLISHED,
        "Events published by this process, or added to a transaction."
    );
    describe_counter!(names::EVENTS_PROCESSED, "Events processed and committed by this process.");
    describe_counter!(names::EVENT_ATTEMPTS_FAILED, "Failed attempts of single events in this process.");
    describe_counter!(names::DEAD_LETTERS, "Events that became dead letters in this process.");
    describe_counter!(
        names::PARTITION_COMMITS_REJECTED,
        "Partition commits rejected because the partition has another holder."
    );
    describe_counter!(names::PARTITIONS_ACQUIRED, "Partitions acquired by this process.");
    describe_gauge!(names::PARTITIONS_ASSIGNED, "Partitions held by this process.");
    describe_histogram!(
        names::EVENT_BATCH_DURATION,
        Unit::Seconds,
        "Time from the start of an event batch to its last commit."
    );
    describe_histogram!(
        names::EVENT_LATENCY,
        Unit::Seconds,
        "Time from publication (store clock) to commit (local clock) of the oldest event of each batch."
    );
    describe_counter!(names::EVENTS_PRUNED, "Events pruned by this process during maintenance.");
    describe_counter!(names::TICKS, "Ticks decided by this process, by outcome.");
    describe_histogram!(names::TICK_LATENESS, Unit::Seconds, "Time from due to fired, by the store clock.");
    describe_counter!(names::SCHEDULE_FIRES, "Schedules fired by this process, by result.");
    describe_histogram!(names::FIRE_BATCH_DURATION, Unit::Seconds, "Duration of one fire call.");
    describe_gauge!(names::REGISTERED_NAMES, "Names held by this process, by guarantee.");
    describe_counter!(names::REGISTERED_NAME_CONFLICTS, "Conflicts about soft names, by outcome.");
    describe_gauge!(names::SINGLETONS, "Singletons that run in this process, by guarantee.");
    describe_counter!(names::SINGLETON_EXITS, "Ended singleton runs of this process, by reason.");
    describe_counter!(names::SINGLETON_HANDOFFS, "Handoff states of singletons, by result.");
    describe_counter!(names::SCHEDULER_POLLS, "Polls of the scheduler for due schedules, by result.");
    describe_counter!(names::TICKS_PRUNED, "Old ticks pruned by this process.");
    describe_gauge!(names::GOSSIP_MEMBERS, "Gossip members as observed by this process, by state.");
    describe_counter!(names::GOSSIP_MESSAGES, "Gossip messages of this process, by result.");
    describe_counter!(names::GOSSIP_MESSAGES_DROPPED, "Rejected gossip datagrams, by reason.");
    describe_gauge!(names::SOFT_ELECTION_LEADER, "1 if this process leads the soft election.");
    describe_counter!(
        names::SOFT_ELECTION_TRANSITIONS,
        "Soft leadership transitions of this process, by transition."
    );
    describe_counter!(
        names::SOFT_ELECTION_CONFLICT,
        Unit::Seconds,
        "Time during which this process and another one both led, as observed."
    );
    // Counters used by alerts start at zero, so that a rate can be computed from the first increment.
    for kind in [ErrorKind::Timeout, ErrorKind::Unreachable, ErrorKind::Unavailable] {
        counter!(names::STORE_ERRORS, "kind" => label(kind)).increment(0);
    }
    for result in ["ok", "session_ended", "error"] {
        counter!(names::HEARTBEATS, "result" => result).increment(0);
    }
    for result in ["ok", "stale", "rejected"] {
        counter!(names::SCHEDULE_FIRES, "result" => result).increment(0);
    }
}

pub(crate) fn callback_panicked(callback: &'static str) {
    counter!(names::CALLBACK_PANICS, "callback" => callback).increment(1);
}

pub(crate) fn term_started(key: &ElectionKey) {
    gauge!(names::LEADERSHIP_SLOTS, labels(key)).increment(1.0);
    transition(key, "elected");
}

/// Records the end of a term and its duration.
pub(crate) fn term_ended(key: &ElectionKey, kind: &'static str, lasted: Duration) {
    gauge!(names::LEADERSHIP_SLOTS, labels(key)).decrement(1.0);
    histogram!(names::LEADERSHIP_DURATION, labels(key)).record(lasted);
    transition(key, kind);
}

pub(crate) fn heartbeat_sent(result: &Result<HeartbeatResponse, StoreError>, took: Duration) {
    let label = match result {
        Ok(HeartbeatResponse::Live { .. }) => "ok",
        Ok(HeartbeatResponse::SessionEnded) => "session_ended",
        Err(_) => "error",
    };
    counter!(names::HEARTBEATS, "result" => label).increment(1);
    histogram!(names::HEARTBEAT_DURATION).record(took);
}

pub(crate) fn lease_remaining(left: Duration) {
    gauge!(names::LEASE_REMAINING).set(left);
}

pub(crate) fn store_error(error: &StoreError) {
    counter!(names::STORE_ERRORS, "kind" => label(error.kind)).increment(1);
}

fn label(kind: ErrorKind) -> String {
    kind.to_string().replace(' ', "_")
}

fn transition(key: &ElectionKey, kind: &'static str) {
    let mut labels = labels(key);
    labels.push(Label::from_static_parts("transition", kind));
    counter!(names::LEADERSHIP_TRANSITIONS, labels).increment(1);
}

fn labels(key: &ElectionKey) -> Vec<Label> {
    vec![Label::new("namespace", key.namespace.to_string()), Label::new("election", key.name.to_string())]
}

// ---- tasks

/// Records a poll of a wait queue.
pub(crate) fn polled(
    queue: &QueueKey,
    route: ClaimRoute,
    result: &Result<ClaimBatchResponse, StoreError>,
    took: Duration,
) {
    let route_label = match route {
        ClaimRoute::Direct => "direct",
        ClaimRoute::Broker => "local_broker",
        ClaimRoute::Fallback => "fallback",
    };
    match result {
        Ok(ClaimBatchResponse::Served { tasks, .. }) => {
            let claimed = tasks.iter().filter(|tasks| !tasks.is_empty()).count();
            claim_requests(queue, route_label, "claimed", claimed);
            claim_requests(queue, route_label, "empty", tasks.len() - claimed);
        }
        Ok(ClaimBatchResponse::Refused(_)) => claim_requests(queue, route_label, "rejected", 1),
        Err(_) => claim_requests(queue, route_label, "error", 1),
    }
    histogram!(names::CLAIM_DURATION, "route" => route_label).record(took);
}

/// Records a claim request sent to the broker.
pub(crate) fn sent_to_broker(queue: &QueueKey, reply: &BrokerReply, took: Duration) {
    let result = match reply {
        BrokerReply::Tasks(claimed) if claimed.tasks().is_empty() => "empty",
        BrokerReply::Tasks(_) | BrokerReply::Matched => "claimed",
        BrokerReply::Refused(_) => "rejected",
        BrokerReply::Failed(_) | BrokerReply::Lost => "error",
    };
    claim_requests(queue, "remote_broker", result, 1);
    histogram!(names::CLAIM_DURATION, "route" => "remote_broker").record(took);
}

fn claim_requests(queue: &QueueKey, route_label: &'static str, result: &'static str, count: usize) {
    if count > 0 {
        let mut labels = queue_labels(queue);
        labels.push(Label::from_static_parts("route", route_label));
        labels.push(Label::from_static_parts("result", result));
        counter!(names::CLAIM_REQUESTS, labels).increment(count as u64);
    }
}

/// Counts a waiting claim while it exists.
pub(crate) struct WaitingClaimMetric(metrics::Gauge);

impl Drop for WaitingClaimMetric {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

pub(crate) fn waiting_claim(queue: &QueueKey) -> WaitingClaimMetric {
    let gauge = gauge!(names::CLAIM_REQUESTS_WAITING, queue_labels(queue));
    gauge.increment(1.0);
    WaitingClaimMetric(gauge)
}

/// The outcome label of a settlement.
pub(crate) fn settlement_outcome(outcome: &ClaimOutcome) -> &'static str {
    match outcome {
        ClaimOutcome::Complete(_) => "completed",
        ClaimOutcome::Fail { .. } => "failed",
        ClaimOutcome::Release => "released",
        ClaimOutcome::Heartbeat { .. } => "heartbeat",
    }
}

pub(crate) fn task_settled(namespace: &Name, outcome: &'static str, settled: SettleResult) {
    let outcome = if settled == SettleResult::ClaimLost { "lost" } else { outcome };
    counter!(names::TASKS_SETTLED, "namespace" => namespace.to_string(), "outcome" => outcome).increment(1);
}

/// Records how long claimed tasks waited.
pub(crate) fn tasks_waited(queue: &QueueKey, tasks: &[ClaimedTask], wall_ms: i64) {
    if tasks.is_empty() {
        return;
    }
    let histogram = histogram!(names::TASK_WAIT_DURATION, queue_labels(queue));
    for task in tasks {
        let waited = u64::try_from(wall_ms.saturating_sub(task.submitted_at_ms)).unwrap_or(0);
        histogram.record(Duration::from_millis(waited));
    }
}

/// Records the run time of a handler.
pub(crate) fn task_ran(queue: &QueueKey, took: Duration) {
    histogram!(names::TASK_RUN_DURATION, queue_labels(queue)).record(took);
}

pub(crate) fn broker_transition(event: &'static str) {
    counter!(names::BROKER_TRANSITIONS, "transition" => event).increment(1);
}

pub(crate) fn tasks_recovered(count: u64) {
    counter!(names::TASKS_RECOVERED).increment(count);
}

// ---- events

pub(crate) fn events_published(topic: &TopicKey, count: usize) {
    counter!(names::EVENTS_PUBLISHED, topic_labels(topic)).increment(count as u64);
}

/// Records processed events.
pub(crate) fn events_processed(group: &GroupKey, events: &[Event], wall_ms: i64) {
    counter!(names::EVENTS_PROCESSED, group_labels(group)).increment(events.len() as u64);
    if let Some(oldest_ms) = events.iter().map(|event| event.published_at_ms).min() {
        let delay = u64::try_from(wall_ms.saturating_sub(oldest_ms)).unwrap_or(0);
        histogram!(names::EVENT_LATENCY, group_labels(group)).record(Duration::from_millis(delay));
    }
}

/// Records a failed attempt of one event.
pub(crate) fn attempt_failed(group: &GroupKey, dead: bool) {
    counter!(names::EVENT_ATTEMPTS_FAILED, group_labels(group)).increment(1);
    counter!(names::DEAD_LETTERS, group_labels(group)).increment(u64::from(dead));
}

pub(crate) fn commits_rejected(group: &GroupKey, partitions: usize) {
    counter!(names::PARTITION_COMMITS_REJECTED, group_labels(group)).increment(partitions as u64);
}

pub(crate) fn partitions_acquired(group: &GroupKey, partitions: usize) {
    counter!(names::PARTITIONS_ACQUIRED, group_labels(group)).increment(partitions as u64);
}

/// Sets the number of partitions that a member holds.
pub(crate) fn partitions_assigned(group: &GroupKey, member: &str, partitions: usize) {
    let mut labels = group_labels(group);
    labels.push(Label::new("member", member.to_owned()));
    gauge!(names::PARTITIONS_ASSIGNED, labels).set(partitions as f64);
}

/// Records the duration of a batch.
pub(crate) fn batch_delivered(group: &GroupKey, took: Duration) {
    histogram!(names::EVENT_BATCH_DURATION, group_labels(group)).record(took);
}

pub(crate) fn events_pruned(count: u64) {
    counter!(names::EVENTS_PRUNED).increment(count);
}

// ---- schedules

/// Records a poll for due schedules.
pub(crate) fn scheduler_polled(due: usize) {
    counter!(names::SCHEDULER_POLLS, "result" => if due > 0 { "due" } else { "idle" }).increment(1);
}

/// Records the duration of a fire call.
pub(crate) fn scheduler_called(took: Duration) {
    histogram!(names::FIRE_BATCH_DURATION).record(took);
}

/// Records an accepted firing; `now_ms` is the store clock.
pub(crate) fn schedule_fired(firing: &ScheduleFiring, now_ms: i64) {
    firing_finished("ok");
    let namespace = firing.key.namespace.as_str();
    let count = |state: &'static str, count: u64| {
        if count > 0 {
            counter!(names::TICKS, "namespace" => namespace.to_owned(), "outcome" => state).increment(count);
        }
    };
    let ran = firing.ticks.iter().filter(|tick| tick.effect.is_some());
    count("fired", ran.clone().count() as u64);
    count("overlapped", firing.ticks.iter().filter(|tick| tick.effect.is_none()).count() as u64);
    count("skipped", firing.skipped.map_or(0, |skipped| skipped.tick_count));
    let lateness = histogram!(names::TICK_LATENESS, "namespace" => namespace.to_owned());
    for tick in ran {
        let late_ms = u64::try_from(now_ms.saturating_sub(tick.due_at_ms)).unwrap_or(0);
        lateness.record(Duration::from_millis(late_ms));
    }
}

/// Counts a firing by result.
pub(crate) fn firing_finished(result: &'static str) {
    counter!(names::SCHEDULE_FIRES, "result" => result).increment(1);
}

pub(crate) fn ticks_pruned(count: u64) {
    counter!(names::TICKS_PRUNED).increment(count);
}

/// Sets the number of gossip members by state.
#[cfg(feature = "gossip")]
pub(crate) fn gossip_members(cluster: &str, roster: &crate::store::gossip::Roster) {
    use crate::store::gossip::GossipMemberState;
    for presence in [GossipMemberState::Live, GossipMemberState::Failed, GossipMemberState::Left] {
        let count = roster.all().filter(|member| member.state == presence && !member.observer).count();
        gauge!(names::GOSSIP_MEMBERS, "cluster" => cluster.to_owned(), "state" => presence.as_str())
            .set(count as f64);
    }
}

#[cfg(feature = "gossip")]
pub(crate) fn gossip_message(result: &'static str) {
    counter!(names::GOSSIP_MESSAGES, "result" => result).increment(1);
}

#[cfg(feature = "gossip")]
pub(crate) fn gossip_dropped(reason: &'static str) {
    counter!(names::GOSSIP_MESSAGES_DROPPED, "reason" => reason).increment(1);
}

/// Records that this process started or stopped leading a soft election.
#[cfg(feature = "gossip")]
pub(crate) fn soft_leads(key: &ElectionKey, leads: bool) {
    gauge!(names::SOFT_ELECTION_LEADER, labels(key)).set(if leads { 1.0 } else { 0.0 });
    let mut labels = labels(key);
    labels.push(Label::new("transition", if leads { "elected" } else { "lost" }));
    counter!(names::SOFT_ELECTION_TRANSITIONS, labels).increment(1);
}

/// Adds time during which this process and another one both led.
///
/// A counter takes whole units, so the fraction of a second is kept for the next call.
#[cfg(feature = "gossip")]
pub(crate) fn soft_conflict(key: &ElectionKey, time: Duration) {
    static FRACTIONS: Mutex<BTreeMap<ElectionKey, Duration>> = Mutex::new(BTreeMap::new());
    let mut fractions = FRACTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let fraction = fractions.entry(key.clone()).or_default();
    let total = *fraction + time;
    *fraction = Duration::from_nanos(u64::from(total.subsec_nanos()));
    counter!(names::SOFT_ELECTION_CONFLICT, labels(key)).increment(total.as_secs());
}

/// Counts an object in a gauge while it exists.
pub(crate) struct ActiveMetric(&'static str, &'static str);

impl ActiveMetric {
    /// Counts a registered name.
    pub(crate) fn name(guarantee: &'static str) -> ActiveMetric {
        ActiveMetric::one(names::REGISTERED_NAMES, guarantee)
    }

    /// Counts a running singleton.
    pub(crate) fn singleton(guarantee: &'static str) -> ActiveMetric {
        ActiveMetric::one(names::SINGLETONS, guarantee)
    }

    fn one(gauge: &'static str, guarantee: &'static str) -> ActiveMetric {
        gauge!(gauge, "guarantee" => guarantee).increment(1.0);
        ActiveMetric(gauge, guarantee)
    }
}

impl Drop for ActiveMetric {
    fn drop(&mut self) {
        gauge!(self.0, "guarantee" => self.1).decrement(1.0);
    }
}

/// Records a conflict about a soft name: kept or lost.
#[cfg(feature = "gossip")]
pub(crate) fn name_conflict(outcome: &'static str) {
    counter!(names::REGISTERED_NAME_CONFLICTS, "outcome" => outcome).increment(1);
}

/// Records the end of a singleton run.
pub(crate) fn singleton_ended(guarantee: &'static str, reason: &'static str) {
    counter!(names::SINGLETON_EXITS, "guarantee" => guarantee, "reason" => reason).increment(1);
}

/// Records the result of a handoff.
pub(crate) fn handoff(guarantee: &'static str, result: &'static str) {
    counter!(names::SINGLETON_HANDOFFS, "guarantee" => guarantee, "result" => result).increment(1);
}

fn queue_labels(queue: &QueueKey) -> Vec<Label> {
    vec![Label::new("namespace", queue.namespace.to_string()), Label::new("queue", queue.name.to_string())]
}

fn topic_labels(topic: &TopicKey) -> Vec<Label> {
    vec![Label::new("namespace", topic.namespace.to_string()), Label::new("topic", topic.name.to_string())]
}

fn group_labels(group: &GroupKey) -> Vec<Label> {
    let mut labels = topic_labels(&group.topic);
    labels.push(Label::new("group", group.name.to_string()));
    labels
}
