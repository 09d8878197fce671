//! `/metrics` for Prometheus.
//!
//! There are two sources: metrics of this process, through the `metrics` facade, and metrics of the store,
//! rendered from the snapshot at each scrape, so that a deleted election leaves no series behind. Every
//! replica exports the same store metrics: aggregate them with max, not sum.
//!
//! The number of series is limited ([`cardinality`]): the most active objects have their own series, and all
//! others share the series of the object `other` in the empty namespace.

mod cardinality;

use std::fmt::{Display, Write as _};
use std::sync::OnceLock;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::Method;
use http::header::CONTENT_TYPE;
use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use metrics_util::MetricKindMask;
use tenure::ElectionKey;
use tenure::port::{
    ElectionView, GroupKey, Permission, QueueKey, QueueView, ScheduleKey, ScheduleStats, ScheduleView,
    TaskState, TopicKey, TopicView,
};

use self::cardinality::{Bounded, Fold, Ranked};
use crate::App;
use crate::api::CANCELLED;
use crate::app::COORDINATOR_ELECTION;
use crate::route::{RequiredPermission, Routes};
use crate::snapshot::events::GroupHistory;

/// Names of the server's own metrics. See [`tenure::metrics::names`] for those of every process.
pub mod names {
    #![allow(missing_docs)]
    pub const REQUESTS: &str = "tenure_http_requests_total";
    pub const REQUEST_DURATION: &str = "tenure_http_request_duration_seconds";
    pub const IN_FLIGHT: &str = "tenure_http_requests_in_flight";
    pub const OPEN_CONNECTIONS: &str = "tenure_http_open_connections";
    pub const OPEN_STREAMS: &str = "tenure_http_open_streams";
    pub const REJECTED: &str = "tenure_http_rejected_total";
    pub const AUDIT_WRITE_FAILURES: &str = "tenure_audit_write_failures_total";
    pub const GROUP_WEBHOOK_REQUESTS: &str = "tenure_group_webhook_requests_total";
    pub const GROUP_WEBHOOK_DURATION: &str = "tenure_group_webhook_duration_seconds";
    pub const SCHEDULE_WEBHOOK_REQUESTS: &str = "tenure_schedule_webhook_requests_total";
    pub const SCHEDULE_WEBHOOK_DURATION: &str = "tenure_schedule_webhook_duration_seconds";
}

/// Interval at which measurements are folded into their buckets.
const UPKEEP: Duration = Duration::from_secs(5);

/// Bucket bounds of durations, in seconds.
const BUCKETS: [f64; 12] = [0.000_5, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0];

/// Bucket bounds of terms, which last from seconds to months.
const TERM_BUCKETS: [f64; 9] = [1.0, 10.0, 60.0, 600.0, 3600.0, 21_600.0, 86_400.0, 604_800.0, 2_592_000.0];

/// Bucket bounds of tick lateness, from milliseconds to long outages.
const LATE_BUCKETS: [f64; 12] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 300.0, 3600.0, 86_400.0];

/// Metrics recorder of this process, installed on first use. A process with another recorder keeps it and
/// exports only the store metrics here.
pub(crate) fn recorder() -> Option<&'static PrometheusHandle> {
    static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();
    let install = || {
        let full = |name: &str| metrics_exporter_prometheus::Matcher::Full(name.into());
        let (term, late) =
            (full(tenure::metrics::names::LEADERSHIP_DURATION), full(tenure::metrics::names::TICK_LATENESS));
        let builder = PrometheusBuilder::new()
            .set_buckets(&BUCKETS)
            .and_then(|builder| builder.set_buckets_for_metric(term, &TERM_BUCKETS))
            .and_then(|builder| builder.set_buckets_for_metric(late, &LATE_BUCKETS));
        // Gauges count up and down, so they must not be reset.
        let forgotten = MetricKindMask::COUNTER | MetricKindMask::HISTOGRAM;
        let builder = builder.ok()?.idle_timeout(forgotten, Some(cardinality::IDLE));
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        metrics::set_global_recorder(Bounded::new(recorder)).ok()?;
        tenure::metrics::describe();
        describe();
        Some(handle)
    };
    RECORDER.get_or_init(install).as_ref()
}

/// Fold measurements into their buckets regularly, so that they do not accumulate without scrapes.
pub(crate) async fn upkeep() {
    loop {
        tokio::time::sleep(UPKEEP).await;
        register_alert_series();
        recorder().inspect(|recorder| recorder.run_upkeep());
    }
}

/// Register the series that alerts depend on, so that they exist from the start and are never dropped: a rate
/// needs an initial zero.
fn register_alert_series() {
    counter!(names::AUDIT_WRITE_FAILURES).increment(0);
    for reason in RejectReason::ALL {
        counter!(names::REJECTED, "reason" => reason.label()).increment(0);
    }
}

fn describe() {
    describe_counter!(names::REQUESTS, "HTTP requests by method, route and status.");
    describe_histogram!(
        names::REQUEST_DURATION,
        Unit::Seconds,
        "Time from request arrival to response headers."
    );
    describe_gauge!(names::IN_FLIGHT, "Requests in progress.");
    describe_gauge!(names::OPEN_CONNECTIONS, "Open connections.");
    describe_gauge!(names::OPEN_STREAMS, "Open server-sent event streams.");
    describe_counter!(names::REJECTED, "Connections and requests rejected, by reason.");
    describe_counter!(names::AUDIT_WRITE_FAILURES, "Audit entries that could not be written.");
    describe_counter!(names::GROUP_WEBHOOK_REQUESTS, "Webhook requests of groups, by group and result.");
    describe_histogram!(
        names::GROUP_WEBHOOK_DURATION,
        Unit::Seconds,
        "Duration of one webhook request of a group."
    );
    describe_counter!(
        names::SCHEDULE_WEBHOOK_REQUESTS,
        "Webhook requests of schedules, by namespace, schedule and result."
    );
    describe_histogram!(
        names::SCHEDULE_WEBHOOK_DURATION,
        Unit::Seconds,
        "Duration of one webhook request of a schedule."
    );
    register_alert_series();
    for gauge in [names::IN_FLIGHT, names::OPEN_CONNECTIONS, names::OPEN_STREAMS] {
        gauge!(gauge).increment(0.0);
    }
}

/// Count an answered request.
pub(crate) fn answered(method: &Method, route: &str, status: http::StatusCode, took: Duration) {
    let (method, route) = (known(method), route.to_owned());
    let status = status.as_str().to_owned();
    counter!(names::REQUESTS, "method" => method, "route" => route.clone(), "status" => status).increment(1);
    histogram!(names::REQUEST_DURATION, "method" => method, "route" => route).record(took);
}

/// Method as a label. Unknown methods share one label, because clients can invent any number of them.
fn known(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::PATCH => "PATCH",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

/// Reason of a rejection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RejectReason {
    /// Too many connections.
    Connections,
    /// Rate limit.
    Rate,
    /// Too many concurrent requests.
    Overload,
    /// A principal has reached one of its limits.
    Principal,
    /// Too many streams.
    Streams,
    /// A client did not read a stream.
    Unread,
}

impl RejectReason {
    const ALL: [RejectReason; 6] = [
        RejectReason::Connections,
        RejectReason::Rate,
        RejectReason::Overload,
        RejectReason::Principal,
        RejectReason::Streams,
        RejectReason::Unread,
    ];

    fn label(self) -> &'static str {
        match self {
            RejectReason::Connections => "connection_limit",
            RejectReason::Rate => "rate_limit",
            RejectReason::Overload => "overload",
            RejectReason::Principal => "principal_limit",
            RejectReason::Streams => "stream_limit",
            RejectReason::Unread => "unread",
        }
    }
}

/// Count a rejection.
pub(crate) fn rejected(reason: RejectReason) {
    counter!(names::REJECTED, "reason" => reason.label()).increment(1);
}

/// Result of a webhook request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WebhookResult {
    /// The receiver accepted it.
    Delivered,
    /// The receiver responded with another status.
    Rejected,
    /// The receiver did not respond in time.
    Timeout,
    /// The receiver was unreachable.
    Unreachable,
}

impl WebhookResult {
    fn label(self) -> &'static str {
        match self {
            WebhookResult::Delivered => "delivered",
            WebhookResult::Rejected => "rejected",
            WebhookResult::Timeout => "timeout",
            WebhookResult::Unreachable => "unreachable",
        }
    }
}

/// Count a webhook request of a group.
pub(crate) fn group_webhook_sent(group: &GroupKey, result: WebhookResult, took: Duration) {
    let labels = labels_of(group);
    let mut with_result = labels.to_vec();
    with_result.push(("result", result.label().to_owned()));
    counter!(names::GROUP_WEBHOOK_REQUESTS, &with_result).increment(1);
    histogram!(names::GROUP_WEBHOOK_DURATION, &labels).record(took);
}

/// Count a webhook request of a schedule.
pub(crate) fn schedule_webhook_sent(key: &ScheduleKey, result: WebhookResult, took: Duration) {
    let labels = [("namespace", key.namespace.to_string()), ("schedule", key.name.to_string())];
    let mut with_result = labels.to_vec();
    with_result.push(("result", result.label().to_owned()));
    counter!(names::SCHEDULE_WEBHOOK_REQUESTS, &with_result).increment(1);
    histogram!(names::SCHEDULE_WEBHOOK_DURATION, &labels).record(took);
}

/// Count events published through this server.
pub(crate) fn published(topic: &TopicKey, count: usize) {
    let labels = [("namespace", topic.namespace.to_string()), ("topic", topic.name.to_string())];
    counter!(tenure::metrics::names::EVENTS_PUBLISHED, &labels).increment(count as u64);
}

/// Count processed events that were pulled through this server.
pub(crate) fn events_processed(group: &GroupKey, count: usize) {
    counter!(tenure::metrics::names::EVENTS_PROCESSED, &labels_of(group)).increment(count as u64);
}

/// Count a failed attempt of an event that was pulled through this server.
pub(crate) fn failed(group: &GroupKey, dead: bool) {
    let labels = labels_of(group);
    counter!(tenure::metrics::names::EVENT_ATTEMPTS_FAILED, &labels).increment(1);
    counter!(tenure::metrics::names::DEAD_LETTERS, &labels).increment(u64::from(dead));
}

/// Count commits that were rejected because the member had lost the partitions.
pub(crate) fn commits_rejected(group: &GroupKey, slots: usize) {
    if slots > 0 {
        counter!(tenure::metrics::names::PARTITION_COMMITS_REJECTED, &labels_of(group))
            .increment(slots as u64);
    }
}

fn labels_of(group: &GroupKey) -> [(&'static str, String); 3] {
    [
        ("namespace", group.topic.namespace.to_string()),
        ("topic", group.topic.name.to_string()),
        ("group", group.name.to_string()),
    ]
}

/// Guard that counts an object in a gauge while it exists.
#[derive(Debug)]
pub(crate) struct ActiveMetric(&'static str);

impl ActiveMetric {
    pub(crate) fn new(name: &'static str) -> ActiveMetric {
        gauge!(name).increment(1.0);
        ActiveMetric(name)
    }
}

impl Drop for ActiveMetric {
    fn drop(&mut self) {
        gauge!(self.0).decrement(1.0);
    }
}

/// The route. It exports every namespace, so it requires `read` in `*`.
pub(crate) fn routes() -> Routes {
    Routes::new().page(RequiredPermission::InAll(Permission::Read), Method::GET, "/metrics", get(scrape))
}

async fn scrape(State(app): State<App>) -> Response {
    let mut text = recorder().map(PrometheusHandle::render).unwrap_or_default();
    export_elections(&app, &mut text);
    queues(&app, &mut text).await;
    topics(&app, &mut text).await;
    schedules(&app, &mut text).await;
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// Export the snapshot of elections.
fn export_elections(app: &App, text: &mut String) {
    let snapshot = app.elections.snapshot();
    let servers = snapshot.elections.get(&*COORDINATOR_ELECTION);
    let live = |view: &ElectionView| {
        view.candidates.iter().filter(|c| c.session.live && c.session.owner.is_none()).count()
    };
    let replicas = servers.map_or(0, |view| live(view));
    let age = app.runtime.now().since(snapshot.at).as_secs_f64();
    single(text, "tenure_build_info", "Version of this server.", "version", env!("CARGO_PKG_VERSION"));
    family(
        text,
        "tenure_store_up",
        "1 if the last store query succeeded.",
        [(String::new(), u8::from(snapshot.error.is_none()))],
    );
    family(text, "tenure_store_snapshot_age_seconds", "Age of the store snapshot.", [(String::new(), age)]);
    family(text, "tenure_replicas", "Live servers on this store.", [(String::new(), replicas)]);
    let elections = snapshot.elections.iter().filter(|(key, _)| **key != *COORDINATOR_ELECTION);
    let granted = |view: &ElectionView| view.leases.iter().filter_map(|lease| lease.granted_at_ms).max();
    let elections = Ranked::new(elections, |(_, view)| granted(view));
    let each = |fold, figure: fn(&ElectionView) -> f64| {
        elections.figures(|(key, _)| labels(key), OTHER_ELECTION, fold, |(_, view)| figure(view))
    };
    let slots = each(Fold::Sum, |view| view.slots.into());
    family(text, "tenure_election_slots", "Slots of the election.", slots);
    let led = each(Fold::Sum, |view| view.holders().count() as f64);
    family(text, "tenure_election_leaders", "Slots held by a live session.", led);
    let live = |view: &ElectionView| view.candidates.iter().filter(|c| c.session.live).count() as f64;
    let candidates = each(Fold::Sum, live);
    family(text, "tenure_election_candidates", "Live candidates, observers included.", candidates);
    let paused = each(Fold::Sum, |view| u8::from(view.paused.is_some()).into());
    family(text, "tenure_election_paused", "1 if paused.", paused);
    let token = each(Fold::Max, |view| {
        view.leases.iter().map(|lease| lease.token.as_u64()).max().unwrap_or(0) as f64
    });
    family(text, "tenure_election_token", "Highest granted token; grows with every change of leader.", token);
}

/// Export the queues. If the store cannot be read or has no queues, nothing is exported: old values would
/// look current.
async fn queues(app: &App, text: &mut String) {
    let snapshot = app.queues.queues().await.ok().filter(|snapshot| snapshot.error.is_none());
    let queues = snapshot.iter().flat_map(|snapshot| snapshot.queues.values().map(|history| &history.view));
    let unfinished = |view: &QueueView| CANCELLED.iter().map(|state| view.count(*state)).sum::<u64>();
    let queues = Ranked::new(queues, |view| unfinished(view));
    let depth = TaskState::ALL.into_iter().flat_map(|state| {
        let with_state = |labels: &str| format!("{labels},state=\"{}\"}}", state.as_str());
        let labels = |view: &&QueueView| with_state(&queue_labels(&view.key));
        queues.figures(labels, &with_state(OTHER_QUEUE), Fold::Sum, |view| view.count(state) as f64)
    });
    family(text, "tenure_queue_tasks", "Tasks of the queue, by state.", depth);
    let each = |fold, figure: fn(&QueueView) -> f64| {
        let labels = |view: &&QueueView| format!("{}}}", queue_labels(&view.key));
        queues.figures(labels, &format!("{OTHER_QUEUE}}}"), fold, |view| figure(view))
    };
    let oldest = each(Fold::Max, |view| seconds(view.oldest_ready_age_ms.unwrap_or(0)));
    let help = "Age of the oldest ready task; 0 if none.";
    family(text, "tenure_queue_oldest_ready_age_seconds", help, oldest);
    let paused = each(Fold::Sum, |view| u8::from(view.paused.is_some()).into());
    family(text, "tenure_queue_paused", "1 if the queue or its namespace is paused.", paused);
}

/// Export topics and groups. If the store cannot be read or has no topics, nothing is exported.
async fn topics(app: &App, text: &mut String) {
    let snapshot = app.events.all().await.ok().filter(|snapshot| snapshot.error.is_none());
    let topics = snapshot.iter().flat_map(|snapshot| snapshot.topics.values().map(AsRef::as_ref));
    let topics = Ranked::new(topics, |view: &&TopicView| view.event_count);
    let each = |fold, figure: fn(&TopicView) -> f64| {
        let labels = |view: &&TopicView| format!("{}}}", topic_labels(&view.key));
        topics.figures(labels, &format!("{OTHER_TOPIC}}}"), fold, |view| figure(view))
    };
    family(
        text,
        "tenure_topic_events",
        "Estimated number of retained events.",
        each(Fold::Sum, |view| view.event_count as f64),
    );
    let help = "Age of the oldest transaction that holds a partition lock; 0 if none.";
    let blocked = each(Fold::Max, |view| {
        seconds(view.lock_holders.iter().map(|blocker| blocker.open_ms).max().unwrap_or(0))
    });
    family(text, "tenure_topic_lock_held_seconds", help, blocked);
    let waiting = each(Fold::Sum, |view| {
        view.lock_holders.iter().map(|blocker| blocker.waiting_transactions).sum::<u64>() as f64
    });
    family(
        text,
        "tenure_topic_lock_waiting_transactions",
        "Transactions that wait for a partition lock.",
        waiting,
    );
    let groups = snapshot.iter().flat_map(|snapshot| snapshot.groups.values());
    let groups = Ranked::new(groups, |history| (history.view.members.len(), history.lag.events));
    let each = |fold, figure: fn(&GroupHistory) -> f64| {
        groups.figures(
            |history| group_labels(&history.view.key),
            OTHER_GROUP,
            fold,
            |history| figure(history),
        )
    };
    let lag = each(Fold::Sum, |history| history.lag.events as f64);
    family(
        text,
        "tenure_group_lag_events",
        "Unread events of the group, counted up to a limit per partition.",
        lag,
    );
    let exact = each(Fold::Min, |history| f64::from(u8::from(history.lag.exact)));
    let help =
        "1 if the lag count is exact; 0 if a partition exceeds the counting limit (use the lag in seconds).";
    family(text, "tenure_group_lag_exact", help, exact);
    let late = each(Fold::Max, |history| seconds(history.lag.ms));
    family(text, "tenure_group_lag_seconds", "Age of the oldest unread event.", late);
    let parked = each(Fold::Sum, |history| history.view.parked_event_count as f64);
    family(
        text,
        "tenure_group_parked_events",
        "Parked events: awaiting retry, or waiting behind an event of the same key.",
        parked,
    );
    family(
        text,
        "tenure_group_dead_letters",
        "Dead letters of the group.",
        each(Fold::Sum, |history| history.view.dead_letter_count as f64),
    );
    let members = each(Fold::Sum, |history| history.view.members.len() as f64);
    family(text, "tenure_group_members", "Live members of the group.", members);
    let paused = each(Fold::Sum, |history| f64::from(u8::from(history.view.paused.is_some())));
    family(text, "tenure_group_paused", "1 if paused.", paused);
    let moves = each(Fold::Sum, |history| history.view.rebalanced_partition_count as f64);
    family(
        text,
        "tenure_group_rebalanced_partitions_total",
        "Partitions moved between members by rebalances.",
        moves,
    );
}

/// Export schedules. If the store cannot be read or has no schedules, nothing is exported.
async fn schedules(app: &App, text: &mut String) {
    let snapshot = app.schedule_stats.snapshot().await.ok();
    let spaces = || snapshot.iter().flat_map(|snapshot| snapshot.namespaces.iter());
    let each = |figure: fn(&ScheduleStats) -> Option<f64>| {
        let shown = move |stats: &ScheduleStats| {
            figure(stats).map(|value| (format!("{{namespace=\"{}\"}}", stats.namespace), value))
        };
        spaces().filter_map(shown).collect::<Vec<_>>()
    };
    family(text, "tenure_schedules", "Number of schedules.", each(|stats| Some(stats.schedule_count as f64)));
    let paused = each(|stats| Some(stats.paused_count as f64));
    family(text, "tenure_schedules_paused", "Paused schedules.", paused);
    let troubled = each(|stats| Some(stats.failing_count as f64));
    family(text, "tenure_schedules_failing", "Schedules with a failed last firing.", troubled);
    let overdue = each(|stats| Some(stats.overdue_count as f64));
    family(text, "tenure_schedules_overdue", "Schedules that are overdue.", overdue);
    let late = each(|stats| Some(seconds(stats.max_overdue_ms)));
    let help = "How long the most overdue schedule has been due; 0 if none.";
    family(text, "tenure_schedules_max_overdue_seconds", help, late);
    let last = each(|stats| stats.last_fired_at_ms.map(|ms| ms as f64 / 1000.0));
    let help = "Unix time of the last firing of any schedule (store clock).";
    family(text, "tenure_schedules_last_fired_timestamp_seconds", help, last);
    let each = |figure: fn(&ScheduleView) -> Option<f64>| {
        let views = snapshot.iter().flat_map(|snapshot| snapshot.schedules.iter());
        views.filter_map(|view| figure(view).map(|value| (schedule_labels(view), value))).collect::<Vec<_>>()
    };
    let last = each(|view| view.last_fired_at_ms.map(|ms| ms as f64 / 1000.0));
    let help = "Unix time of the last firing (store clock). Per-schedule metrics are exported for at most 1000 schedules.";
    family(text, "tenure_schedule_last_fired_timestamp_seconds", help, last);
    let next = each(|view| view.due_at_ms.map(|ms| ms as f64 / 1000.0));
    let help = "Unix time of the next due tick; absent if paused or finished.";
    family(text, "tenure_schedule_next_due_timestamp_seconds", help, next);
    let fired = each(|view| Some(view.fired_count as f64));
    family(text, "tenure_schedule_ticks_fired_total", "Ticks that fired.", fired);
    let skipped = each(|view| Some(view.skipped_count as f64));
    family(text, "tenure_schedule_ticks_skipped_total", "Ticks skipped by the misfire policy.", skipped);
    let overlapped = each(|view| Some(view.overlapped_count as f64));
    let help = "Ticks skipped by the overlap policy.";
    family(text, "tenure_schedule_ticks_overlapped_total", help, overlapped);
    let error = each(|view| Some(f64::from(u8::from(view.last_error.is_some()))));
    family(text, "tenure_schedule_failing", "1 if the last firing failed.", error);
    let paused = each(|view| Some(f64::from(u8::from(view.paused.is_some()))));
    family(text, "tenure_schedule_paused", "1 if paused.", paused);
}

fn schedule_labels(view: &ScheduleView) -> String {
    format!("{{namespace=\"{}\",schedule=\"{}\"}}", view.namespace, view.definition.name)
}

fn seconds(ms: u64) -> f64 {
    Duration::from_millis(ms).as_secs_f64()
}

/// Labels of the series for all objects without their own. No namespace is empty, so they cannot collide.
const OTHER_ELECTION: &str = "{namespace=\"\",election=\"other\"}";
const OTHER_QUEUE: &str = "{namespace=\"\",queue=\"other\"";
const OTHER_TOPIC: &str = "{namespace=\"\",topic=\"other\"";
const OTHER_GROUP: &str = "{namespace=\"\",topic=\"other\",group=\"other\"}";

/// Start of the labels of a topic.
fn topic_labels(key: &TopicKey) -> String {
    format!("{{namespace=\"{}\",topic=\"{}\"", key.namespace, key.name)
}

fn group_labels(key: &GroupKey) -> String {
    format!("{},group=\"{}\"}}", topic_labels(&key.topic), key.name)
}

/// Start of the labels of a queue.
fn queue_labels(key: &QueueKey) -> String {
    format!("{{namespace=\"{}\",queue=\"{}\"", key.namespace, key.name)
}

fn labels(key: &ElectionKey) -> String {
    // Names contain no characters that need escaping.
    format!("{{namespace=\"{}\",election=\"{}\"}}", key.namespace, key.name)
}

fn single(text: &mut String, name: &str, help: &str, label: &str, value: &str) {
    family(text, name, help, [(format!("{{{label}=\"{value}\"}}"), 1)]);
}

fn family<V: Display>(
    text: &mut String,
    name: &str,
    help: &str,
    figures: impl IntoIterator<Item = (String, V)>,
) {
    // Writing to a string cannot fail.
    let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value) in figures {
        let _ = writeln!(text, "{name}{labels} {value}");
    }
}
