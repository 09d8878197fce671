//! What this process tells whoever measures it, through the [`metrics`] facade: nothing, and at no cost, unless a recorder
//! is installed.
//!
//! | name | kind | labels | what |
//! |---|---|---|---|
//! | `tenure_leader` | gauge | namespace, election | how many slots of the election this process leads |
//! | `tenure_leader_transitions_total` | counter | namespace, election, kind | `elected`, `released` or `lost` |
//! | `tenure_leadership_duration_seconds` | histogram | namespace, election | how long each term lasted |
//! | `tenure_renewals_total` | counter | result | beats: `counted`, `gone` or `failed` |
//! | `tenure_renewal_duration_seconds` | histogram | – | from sending a beat to its answer |
//! | `tenure_trust_remaining_seconds` | gauge | – | for how long all that is led is trusted, after the last answer |
//! | `tenure_store_errors_total` | counter | kind | troubles with the store |
//! | `tenure_callback_panics_total` | counter | callback | panics in callbacks and handlers of the program: `on_elected`, `on_lost`, `task handler`, `event handler`, `singleton`, `name resolver` |
//! | `tenure_claims_total` | counter | namespace, queue, path, result | claims by the way they went (`direct`, `leader`, `delegated`, `fallback`): `claimed`, `empty`, `refused` or `error` |
//! | `tenure_claim_duration_seconds` | histogram | path | of one call for tasks |
//! | `tenure_claims_in_flight` | gauge | queue | who waits for tasks in this process |
//! | `tenure_tasks_settled_total` | counter | namespace, outcome | words about claims: `completed`, `failed`, `released`, `progress` or `lost` |
//! | `tenure_task_run_seconds` | histogram | queue | how long handlers ran |
//! | `tenure_task_wait_seconds` | histogram | queue | from submission to claim, by two clocks |
//! | `tenure_claim_leader_events_total` | counter | event | `started_leading`, `stopped_leading`, `new_leader` |
//! | `tenure_tasks_recovered_total` | counter | – | claims that this process, as the keeper, returned to their queues |
//! | `tenure_events_published_total` | counter | namespace, topic | events that this process published, or put into a transaction |
//! | `tenure_events_consumed_total` | counter | namespace, topic, group | events whose handling counts |
//! | `tenure_events_failed_total` | counter | namespace, topic, group | attempts at one event that failed |
//! | `tenure_events_dead_total` | counter | namespace, topic, group | events that failed for good, and whose keys were parked |
//! | `tenure_event_commits_stale_total` | counter | namespace, topic, group | words about slots that the store refused, since they had changed hands |
//! | `tenure_event_slots_taken_total` | counter | namespace, topic, group | slots that this process took |
//! | `tenure_event_slots` | gauge | namespace, topic, group, member | slots that this process has |
//! | `tenure_event_batch_seconds` | histogram | namespace, topic, group | from taking a batch in hand to its last commit |
//! | `tenure_event_delay_seconds` | histogram | namespace, topic, group | from publishing an event to its being done, by two clocks; of each batch, the oldest |
//! | `tenure_events_pruned_total` | counter | – | events that this process, as the keeper, forgot |
//! | `tenure_ticks_total` | counter | namespace, state | ticks about which this process decided as the one that fires: `fired`, `skipped` or `overlapped` |
//! | `tenure_tick_lateness_seconds` | histogram | namespace | how much later ticks fired than they were due, by the store's clock |
//! | `tenure_firings_total` | counter | result | firings of this process: `counted`, `stale` or `refused` |
//! | `tenure_fire_seconds` | histogram | – | how long one call to fire took, whatever came of it |
//! | `tenure_schedule_looks_total` | counter | result | looks at what is due: `due` or `idle` |
//! | `tenure_ticks_pruned_total` | counter | – | ticks that this process forgot, as they were old |
//! | `tenure_names` | gauge | footing | names that this process has: `strict` or `soft` |
//! | `tenure_name_conflicts_total` | counter | outcome | soft names that this process and another had: `kept` or `lost` |
//! | `tenure_singletons` | gauge | footing | singletons that this process runs |
//! | `tenure_singleton_ends_total` | counter | footing, how | runs of singletons that ended: `asked`, `lost`, `returned` or `panicked` |
//! | `tenure_handoffs_total` | counter | footing, result | states of singletons: `given`, `received`, `unclaimed` or `failed` |
//! | `tenure_gossip_members` | gauge | cluster, presence | members of the cluster as seen from here: `live`, `silent` or `left` |
//! | `tenure_gossip_messages_total` | counter | result | messages of gossip: `sent`, `received`, `unsent` or `too_long` |
//! | `tenure_gossip_dropped_total` | counter | reason | datagrams that were not believed: `forged`, `foreign`, `replayed`, `oversized` or `malformed` |
//! | `tenure_soft_leader` | gauge | namespace, election | whether this process leads the soft election |
//! | `tenure_soft_transitions_total` | counter | namespace, election, kind | `elected` or `lost` |
//! | `tenure_soft_dual_milliseconds_total` | counter | namespace, election | how long this process led beside another, as far as it saw |

use std::time::Duration;

use metrics::{Label, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use tenure_core::port::{
    ClaimAnswer, ClaimedTask, Event, Firing, GroupKey, Outcome, Pulse, QueueKey, Settled, StoreError,
    TopicKey, Trouble,
};
use tenure_core::{ElectionKey, Name};

use crate::claims::line::Lane;
use crate::claims::link::Told;

/// The names.
pub mod names {
    #![allow(missing_docs)]
    pub const LEADER: &str = "tenure_leader";
    pub const TRANSITIONS: &str = "tenure_leader_transitions_total";
    pub const LEADERSHIP: &str = "tenure_leadership_duration_seconds";
    pub const RENEWALS: &str = "tenure_renewals_total";
    pub const RENEWAL: &str = "tenure_renewal_duration_seconds";
    pub const TRUST: &str = "tenure_trust_remaining_seconds";
    pub const STORE_ERRORS: &str = "tenure_store_errors_total";
    pub const CALLBACK_PANICS: &str = "tenure_callback_panics_total";
    pub const CLAIMS: &str = "tenure_claims_total";
    pub const CLAIM: &str = "tenure_claim_duration_seconds";
    pub const CLAIMS_IN_FLIGHT: &str = "tenure_claims_in_flight";
    pub const SETTLED: &str = "tenure_tasks_settled_total";
    pub const TASK_RUN: &str = "tenure_task_run_seconds";
    pub const TASK_WAIT: &str = "tenure_task_wait_seconds";
    pub const CLAIM_LEADER: &str = "tenure_claim_leader_events_total";
    pub const RECOVERED: &str = "tenure_tasks_recovered_total";
    pub const PUBLISHED: &str = "tenure_events_published_total";
    pub const CONSUMED: &str = "tenure_events_consumed_total";
    pub const EVENTS_FAILED: &str = "tenure_events_failed_total";
    pub const EVENTS_DEAD: &str = "tenure_events_dead_total";
    pub const COMMITS_STALE: &str = "tenure_event_commits_stale_total";
    pub const SLOTS_TAKEN: &str = "tenure_event_slots_taken_total";
    pub const EVENT_SLOTS: &str = "tenure_event_slots";
    pub const EVENT_BATCH: &str = "tenure_event_batch_seconds";
    pub const EVENT_DELAY: &str = "tenure_event_delay_seconds";
    pub const PRUNED: &str = "tenure_events_pruned_total";
    pub const TICKS: &str = "tenure_ticks_total";
    pub const TICK_LATENESS: &str = "tenure_tick_lateness_seconds";
    pub const FIRINGS: &str = "tenure_firings_total";
    pub const FIRE: &str = "tenure_fire_seconds";
    pub const SCHEDULE_LOOKS: &str = "tenure_schedule_looks_total";
    pub const TICKS_PRUNED: &str = "tenure_ticks_pruned_total";
    pub const NAMES: &str = "tenure_names";
    pub const NAME_CONFLICTS: &str = "tenure_name_conflicts_total";
    pub const SINGLETONS: &str = "tenure_singletons";
    pub const SINGLETON_ENDS: &str = "tenure_singleton_ends_total";
    pub const HANDOFFS: &str = "tenure_handoffs_total";
    pub const GOSSIP_MEMBERS: &str = "tenure_gossip_members";
    pub const GOSSIP_MESSAGES: &str = "tenure_gossip_messages_total";
    pub const GOSSIP_DROPPED: &str = "tenure_gossip_dropped_total";
    pub const SOFT_LEADER: &str = "tenure_soft_leader";
    pub const SOFT_TRANSITIONS: &str = "tenure_soft_transitions_total";
    pub const SOFT_DUAL: &str = "tenure_soft_dual_milliseconds_total";
}

/// Describes every metric to the recorder that is installed.
pub fn describe() {
    describe_gauge!(names::LEADER, "Slots of the election that this process leads.");
    describe_counter!(names::TRANSITIONS, "Terms of this process: elected, released, lost.");
    describe_histogram!(names::LEADERSHIP, Unit::Seconds, "How long each term of this process lasted.");
    describe_counter!(names::RENEWALS, "Beats of this process: counted, gone, failed.");
    describe_histogram!(names::RENEWAL, Unit::Seconds, "From sending a beat to its answer.");
    describe_gauge!(
        names::TRUST,
        Unit::Seconds,
        "For how long all that this process leads is trusted, as of the last answer to a beat."
    );
    describe_counter!(names::STORE_ERRORS, "Troubles of this process with its store, by kind.");
    describe_counter!(
        names::CALLBACK_PANICS,
        "Panics in callbacks and handlers of this program, by callback."
    );
    describe_counter!(names::CLAIMS, "Claims of this process, by the way they went and what came of them.");
    describe_histogram!(names::CLAIM, Unit::Seconds, "How long one call for tasks took, by the way it went.");
    describe_gauge!(names::CLAIMS_IN_FLIGHT, "Who waits for tasks of the queue in this process.");
    describe_counter!(
        names::SETTLED,
        "What this process said about claims: completed, failed, released, lost."
    );
    describe_histogram!(names::TASK_RUN, Unit::Seconds, "How long handlers of this process ran.");
    describe_histogram!(
        names::TASK_WAIT,
        Unit::Seconds,
        "From submission to claim, by the store's clock and ours."
    );
    describe_counter!(
        names::CLAIM_LEADER,
        "Claim coordination: started_leading, stopped_leading, new_leader."
    );
    describe_counter!(names::RECOVERED, "Claims that this process, as the keeper, returned to their queues.");
    describe_counter!(names::PUBLISHED, "Events that this process published, or put into a transaction.");
    describe_counter!(names::CONSUMED, "Events whose handling by this process counts.");
    describe_counter!(names::EVENTS_FAILED, "Attempts of this process at one event that failed.");
    describe_counter!(names::EVENTS_DEAD, "Events that failed for good here, and whose keys were parked.");
    describe_counter!(
        names::COMMITS_STALE,
        "What this process said about slots and the store refused, since they had changed hands."
    );
    describe_counter!(names::SLOTS_TAKEN, "Slots that this process took.");
    describe_gauge!(names::EVENT_SLOTS, "Slots that this process has.");
    describe_histogram!(names::EVENT_BATCH, Unit::Seconds, "From taking a batch in hand to its last commit.");
    describe_histogram!(
        names::EVENT_DELAY,
        Unit::Seconds,
        "From publishing an event to its being done, by the store's clock and ours; of each batch, the oldest."
    );
    describe_counter!(names::PRUNED, "Events that this process, as the keeper, forgot.");
    describe_counter!(names::TICKS, "Ticks about which this process decided: fired, skipped, overlapped.");
    describe_histogram!(
        names::TICK_LATENESS,
        Unit::Seconds,
        "How much later ticks fired than they were due, by the store's clock."
    );
    describe_counter!(names::FIRINGS, "Firings of this process: counted, stale, refused.");
    describe_histogram!(names::FIRE, Unit::Seconds, "How long one call to fire took.");
    describe_gauge!(names::NAMES, "Names that this process has.");
    describe_counter!(names::NAME_CONFLICTS, "Soft names that this process and another had: kept, lost.");
    describe_gauge!(names::SINGLETONS, "Singletons that this process runs.");
    describe_counter!(
        names::SINGLETON_ENDS,
        "Runs of singletons that ended: asked, lost, returned, panicked."
    );
    describe_counter!(names::HANDOFFS, "States of singletons: given, received, unclaimed, failed.");
    describe_counter!(names::SCHEDULE_LOOKS, "Looks of this process at what is due: due, idle.");
    describe_counter!(names::TICKS_PRUNED, "Ticks that this process forgot, as they were old.");
    describe_gauge!(names::GOSSIP_MEMBERS, "Members of the cluster as seen from here: live, silent, left.");
    describe_counter!(names::GOSSIP_MESSAGES, "Messages of gossip: sent, received, unsent, too_long.");
    describe_counter!(names::GOSSIP_DROPPED, "Datagrams that were not believed, by reason.");
    describe_gauge!(names::SOFT_LEADER, "Whether this process leads the soft election.");
    describe_counter!(names::SOFT_TRANSITIONS, "Soft terms of this process: elected, lost.");
    describe_counter!(
        names::SOFT_DUAL,
        Unit::Milliseconds,
        "How long this process led beside another, as far as it saw."
    );
    // Those that pagers wait for are there from the start: a rate needs a nought to grow from.
    for kind in [Trouble::Timeout, Trouble::Unreachable, Trouble::Unavailable] {
        counter!(names::STORE_ERRORS, "kind" => word(kind)).increment(0);
    }
    for result in ["counted", "gone", "failed"] {
        counter!(names::RENEWALS, "result" => result).increment(0);
    }
    for result in ["counted", "stale", "refused"] {
        counter!(names::FIRINGS, "result" => result).increment(0);
    }
}

pub(crate) fn callback_panicked(callback: &'static str) {
    counter!(names::CALLBACK_PANICS, "callback" => callback).increment(1);
}

pub(crate) fn elected(key: &ElectionKey) {
    gauge!(names::LEADER, labels(key)).increment(1.0);
    transition(key, "elected");
}

/// A term ended, after this long.
pub(crate) fn ended(key: &ElectionKey, kind: &'static str, lasted: Duration) {
    gauge!(names::LEADER, labels(key)).decrement(1.0);
    histogram!(names::LEADERSHIP, labels(key)).record(lasted);
    transition(key, kind);
}

pub(crate) fn renewed(result: &Result<Pulse, StoreError>, took: Duration) {
    let word = match result {
        Ok(Pulse::Alive { .. }) => "counted",
        Ok(Pulse::Gone) => "gone",
        Err(_) => "failed",
    };
    counter!(names::RENEWALS, "result" => word).increment(1);
    histogram!(names::RENEWAL).record(took);
}

pub(crate) fn trusted_for(left: Duration) {
    gauge!(names::TRUST).set(left);
}

pub(crate) fn trouble(error: &StoreError) {
    counter!(names::STORE_ERRORS, "kind" => word(error.kind)).increment(1);
}

fn word(kind: Trouble) -> String {
    kind.to_string().replace(' ', "_")
}

fn transition(key: &ElectionKey, kind: &'static str) {
    let mut labels = labels(key);
    labels.push(Label::from_static_parts("kind", kind));
    counter!(names::TRANSITIONS, labels).increment(1);
}

fn labels(key: &ElectionKey) -> Vec<Label> {
    vec![Label::new("namespace", key.namespace.to_string()), Label::new("election", key.name.to_string())]
}

// ---- claims

/// A look of a line is over.
pub(crate) fn looked(queue: &QueueKey, lane: Lane, result: &Result<ClaimAnswer, StoreError>, took: Duration) {
    let path = match lane {
        Lane::Direct => "direct",
        Lane::Leader => "leader",
        Lane::Fallback => "fallback",
    };
    match result {
        Ok(ClaimAnswer::Served { tasks, .. }) => {
            let claimed = tasks.iter().filter(|tasks| !tasks.is_empty()).count();
            claims(queue, path, "claimed", claimed);
            claims(queue, path, "empty", tasks.len() - claimed);
        }
        Ok(ClaimAnswer::Refused(_)) => claims(queue, path, "refused", 1),
        Err(_) => claims(queue, path, "error", 1),
    }
    histogram!(names::CLAIM, "path" => path).record(took);
}

/// A request through the leader is over.
pub(crate) fn delegated(queue: &QueueKey, told: &Told, took: Duration) {
    let result = match told {
        Told::Tasks(handed) if handed.tasks().is_empty() => "empty",
        Told::Tasks(_) | Told::Matched => "claimed",
        Told::Refused(_) => "refused",
        Told::Failed(_) | Told::Lost => "error",
    };
    claims(queue, "delegated", result, 1);
    histogram!(names::CLAIM, "path" => "delegated").record(took);
}

fn claims(queue: &QueueKey, path: &'static str, result: &'static str, count: usize) {
    if count > 0 {
        let labels = vec![
            Label::new("namespace", queue.namespace.to_string()),
            Label::new("queue", queue.name.to_string()),
            Label::from_static_parts("path", path),
            Label::from_static_parts("result", result),
        ];
        counter!(names::CLAIMS, labels).increment(count as u64);
    }
}

/// Somebody who waits for tasks, until dropped.
pub(crate) struct InFlight(metrics::Gauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

pub(crate) fn in_flight(queue: &QueueKey) -> InFlight {
    let gauge = gauge!(names::CLAIMS_IN_FLIGHT, "queue" => queue.to_string());
    gauge.increment(1.0);
    InFlight(gauge)
}

/// The word for what is said about a claim.
pub(crate) fn outcome(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Complete(_) => "completed",
        Outcome::Fail { .. } => "failed",
        Outcome::Release => "released",
        Outcome::Progress { .. } => "progress",
    }
}

pub(crate) fn settled(namespace: &Name, outcome: &'static str, settled: Settled) {
    let outcome = if settled == Settled::Lost { "lost" } else { outcome };
    counter!(names::SETTLED, "namespace" => namespace.to_string(), "outcome" => outcome).increment(1);
}

/// Tasks were claimed that were submitted a while ago.
pub(crate) fn waited(queue: &QueueKey, tasks: &[ClaimedTask], wall_ms: i64) {
    if tasks.is_empty() {
        return;
    }
    let histogram = histogram!(names::TASK_WAIT, "queue" => queue.to_string());
    for task in tasks {
        let waited = u64::try_from(wall_ms.saturating_sub(task.enqueued_at_ms)).unwrap_or(0);
        histogram.record(Duration::from_millis(waited));
    }
}

/// A handler is done.
pub(crate) fn ran(queue: &QueueKey, took: Duration) {
    histogram!(names::TASK_RUN, "queue" => queue.to_string()).record(took);
}

pub(crate) fn claim_leader(event: &'static str) {
    counter!(names::CLAIM_LEADER, "event" => event).increment(1);
}

pub(crate) fn recovered(count: u64) {
    counter!(names::RECOVERED).increment(count);
}

// ---- events

pub(crate) fn published(topic: &TopicKey, count: usize) {
    counter!(names::PUBLISHED, topic_labels(topic)).increment(count as u64);
}

/// Events are done.
pub(crate) fn consumed(group: &GroupKey, events: &[Event], wall_ms: i64) {
    counter!(names::CONSUMED, group_labels(group)).increment(events.len() as u64);
    if let Some(oldest_ms) = events.iter().map(|event| event.at_ms).min() {
        let delay = u64::try_from(wall_ms.saturating_sub(oldest_ms)).unwrap_or(0);
        histogram!(names::EVENT_DELAY, group_labels(group)).record(Duration::from_millis(delay));
    }
}

/// An event failed alone, perhaps for good.
pub(crate) fn failed(group: &GroupKey, dead: bool) {
    counter!(names::EVENTS_FAILED, group_labels(group)).increment(1);
    counter!(names::EVENTS_DEAD, group_labels(group)).increment(u64::from(dead));
}

pub(crate) fn stale(group: &GroupKey, slots: usize) {
    counter!(names::COMMITS_STALE, group_labels(group)).increment(slots as u64);
}

pub(crate) fn took(group: &GroupKey, slots: usize) {
    counter!(names::SLOTS_TAKEN, group_labels(group)).increment(slots as u64);
}

/// How many slots a member has.
pub(crate) fn slots(group: &GroupKey, member: &str, slots: usize) {
    let mut labels = group_labels(group);
    labels.push(Label::new("member", member.to_owned()));
    gauge!(names::EVENT_SLOTS, labels).set(slots as f64);
}

/// A batch is over.
pub(crate) fn delivered(group: &GroupKey, took: Duration) {
    histogram!(names::EVENT_BATCH, group_labels(group)).record(took);
}

pub(crate) fn pruned(count: u64) {
    counter!(names::PRUNED).increment(count);
}

// ---- schedules

/// What is due was looked at, and so much was found.
pub(crate) fn scheduler_looked(due: usize) {
    counter!(names::SCHEDULE_LOOKS, "result" => if due > 0 { "due" } else { "idle" }).increment(1);
}

/// A call to fire is over.
pub(crate) fn scheduler_called(took: Duration) {
    histogram!(names::FIRE).record(took);
}

/// A firing counts, about now by the store's clock.
pub(crate) fn fired(firing: &Firing, now_ms: i64) {
    firing_over("counted");
    let namespace = firing.key.namespace.as_str();
    let count = |state: &'static str, count: u64| {
        if count > 0 {
            counter!(names::TICKS, "namespace" => namespace.to_owned(), "state" => state).increment(count);
        }
    };
    let ran = firing.ticks.iter().filter(|tick| tick.effect.is_some());
    count("fired", ran.clone().count() as u64);
    count("overlapped", firing.ticks.iter().filter(|tick| tick.effect.is_none()).count() as u64);
    count("skipped", firing.skipped.map_or(0, |skipped| skipped.count));
    let lateness = histogram!(names::TICK_LATENESS, "namespace" => namespace.to_owned());
    for tick in ran {
        let late_ms = u64::try_from(now_ms.saturating_sub(tick.due_ms)).unwrap_or(0);
        lateness.record(Duration::from_millis(late_ms));
    }
}

/// A firing is over, in this way.
pub(crate) fn firing_over(result: &'static str) {
    counter!(names::FIRINGS, "result" => result).increment(1);
}

pub(crate) fn ticks_pruned(count: u64) {
    counter!(names::TICKS_PRUNED).increment(count);
}

/// Who is there, as seen from here.
#[cfg(feature = "gossip")]
pub(crate) fn gossip_members(cluster: &str, roster: &crate::backend::gossip::Roster) {
    use crate::backend::gossip::Presence;
    for presence in [Presence::Live, Presence::Silent, Presence::Left] {
        let count = roster.all().filter(|member| member.presence == presence && !member.guest).count();
        gauge!(names::GOSSIP_MEMBERS, "cluster" => cluster.to_owned(), "presence" => presence.as_str())
            .set(count as f64);
    }
}

#[cfg(feature = "gossip")]
pub(crate) fn gossip_message(result: &'static str) {
    counter!(names::GOSSIP_MESSAGES, "result" => result).increment(1);
}

#[cfg(feature = "gossip")]
pub(crate) fn gossip_dropped(reason: &'static str) {
    counter!(names::GOSSIP_DROPPED, "reason" => reason).increment(1);
}

/// This process leads a soft election, or does not any more.
#[cfg(feature = "gossip")]
pub(crate) fn soft_leads(key: &ElectionKey, leads: bool) {
    gauge!(names::SOFT_LEADER, labels(key)).set(if leads { 1.0 } else { 0.0 });
    let mut labels = labels(key);
    labels.push(Label::new("kind", if leads { "elected" } else { "lost" }));
    counter!(names::SOFT_TRANSITIONS, labels).increment(1);
}

/// This process has led beside another for so long.
#[cfg(feature = "gossip")]
pub(crate) fn soft_dual(key: &ElectionKey, time: Duration) {
    counter!(names::SOFT_DUAL, labels(key)).increment(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
}

/// Something that this process has for as long as this lives: it counts in a gauge.
pub(crate) struct Counted(&'static str, &'static str);

impl Counted {
    /// One more name.
    pub(crate) fn name(footing: &'static str) -> Counted {
        Counted::one(names::NAMES, footing)
    }

    /// One more singleton.
    pub(crate) fn singleton(footing: &'static str) -> Counted {
        Counted::one(names::SINGLETONS, footing)
    }

    fn one(gauge: &'static str, footing: &'static str) -> Counted {
        gauge!(gauge, "footing" => footing).increment(1.0);
        Counted(gauge, footing)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        gauge!(self.0, "footing" => self.1).decrement(1.0);
    }
}

/// A soft name was this process's and another's: kept, or lost.
#[cfg(feature = "gossip")]
pub(crate) fn name_conflict(outcome: &'static str) {
    counter!(names::NAME_CONFLICTS, "outcome" => outcome).increment(1);
}

/// A run of a singleton ended.
pub(crate) fn singleton_ended(footing: &'static str, how: &'static str) {
    counter!(names::SINGLETON_ENDS, "footing" => footing, "how" => how).increment(1);
}

/// Something became of a singleton's state.
pub(crate) fn handoff(footing: &'static str, result: &'static str) {
    counter!(names::HANDOFFS, "footing" => footing, "result" => result).increment(1);
}

fn topic_labels(topic: &TopicKey) -> Vec<Label> {
    vec![Label::new("namespace", topic.namespace.to_string()), Label::new("topic", topic.name.to_string())]
}

fn group_labels(group: &GroupKey) -> Vec<Label> {
    let mut labels = topic_labels(&group.topic);
    labels.push(Label::new("group", group.name.to_string()));
    labels
}
