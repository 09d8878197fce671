//! `/metrics`, for Prometheus.
//!
//! Two sources: what this process counts, through the `metrics` facade; and what the store looks like, rendered from the
//! board at each scrape, so that an election that is gone leaves no figure behind. Every replica shows the same of the
//! latter: take the maximum over them, not the sum.
//!
//! How many series there are is bounded ([`cardinality`]): the most active objects have series of their own, and all
//! others share those of the object `other` in the empty namespace.

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
    ElectionView, GroupKey, QueueKey, QueueView, ScheduleKey, ScheduleStats, ScheduleView, TaskState,
    TopicKey, TopicView, Verb,
};

use self::cardinality::{Bounded, Fold, Ranked};
use crate::App;
use crate::api::CANCELLED;
use crate::app::SERVERS;
use crate::gauge::Track;
use crate::route::{Need, Routes};

/// The names of what the server itself counts. See [`tenure::metrics::names`] for those of every process.
pub mod names {
    #![allow(missing_docs)]
    pub const REQUESTS: &str = "tenure_http_requests_total";
    pub const REQUEST: &str = "tenure_http_request_duration_seconds";
    pub const IN_FLIGHT: &str = "tenure_http_requests_in_flight";
    pub const CONNECTIONS: &str = "tenure_http_connections";
    pub const STREAMS: &str = "tenure_http_streams";
    pub const REFUSED: &str = "tenure_http_refused_total";
    pub const AUDIT_FAILURES: &str = "tenure_audit_failures_total";
    pub const PUSHES: &str = "tenure_pushes_total";
    pub const PUSH: &str = "tenure_push_duration_seconds";
    pub const CALLS: &str = "tenure_calls_total";
    pub const CALL: &str = "tenure_call_duration_seconds";
}

/// How often measurements are folded into their buckets.
const UPKEEP: Duration = Duration::from_secs(5);

/// Where the buckets of every duration end, in seconds.
const BUCKETS: [f64; 12] = [0.000_5, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0];

/// Terms last from seconds to months.
const TERM_BUCKETS: [f64; 9] = [1.0, 10.0, 60.0, 600.0, 3600.0, 21_600.0, 86_400.0, 604_800.0, 2_592_000.0];

/// Ticks are late by milliseconds, or by as long as nobody was there to fire them.
const LATE_BUCKETS: [f64; 12] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 300.0, 3600.0, 86_400.0];

/// The recorder of this process. Whoever asks first installs it; a process that has another one already keeps it, and shows
/// only the board here.
pub(crate) fn recorder() -> Option<&'static PrometheusHandle> {
    static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();
    let install = || {
        let full = |name: &str| metrics_exporter_prometheus::Matcher::Full(name.into());
        let (term, late) =
            (full(tenure::metrics::names::LEADERSHIP), full(tenure::metrics::names::TICK_LATENESS));
        let builder = PrometheusBuilder::new()
            .set_buckets(&BUCKETS)
            .and_then(|builder| builder.set_buckets_for_metric(term, &TERM_BUCKETS))
            .and_then(|builder| builder.set_buckets_for_metric(late, &LATE_BUCKETS));
        // Gauges are kept: they count up and down, and would begin anew at nought.
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

/// Folds what was measured into its buckets now and then: nobody may ever ask for it, and it must not pile up.
pub(crate) async fn upkeep() {
    loop {
        tokio::time::sleep(UPKEEP).await;
        always_there();
        recorder().inspect(|recorder| recorder.run_upkeep());
    }
}

/// Uses the series that pagers wait for, so that they are there from the start and are never forgotten: a rate needs a
/// nought to grow from.
fn always_there() {
    counter!(names::AUDIT_FAILURES).increment(0);
    for reason in Reason::ALL {
        counter!(names::REFUSED, "reason" => reason.label()).increment(0);
    }
}

fn describe() {
    describe_counter!(names::REQUESTS, "Requests answered, by method, route and status.");
    describe_histogram!(names::REQUEST, Unit::Seconds, "From a request's arrival to the head of its answer.");
    describe_gauge!(names::IN_FLIGHT, "Requests being answered.");
    describe_gauge!(names::CONNECTIONS, "Connections that are open.");
    describe_gauge!(names::STREAMS, "Streams of server-sent events that are open.");
    describe_counter!(names::REFUSED, "Connections and requests refused, by reason.");
    describe_counter!(names::AUDIT_FAILURES, "Deeds that could not be recorded.");
    describe_counter!(
        names::PUSHES,
        "Events that were pushed to a receiver, by group and by what came of it."
    );
    describe_histogram!(names::PUSH, Unit::Seconds, "From sending an event to its receiver to the answer.");
    describe_counter!(
        names::CALLS,
        "Calls of schedules that were made, by namespace, schedule and by what came of it."
    );
    describe_histogram!(names::CALL, Unit::Seconds, "From making a call of a schedule to the answer.");
    always_there();
    for gauge in [names::IN_FLIGHT, names::CONNECTIONS, names::STREAMS] {
        gauge!(gauge).increment(0.0);
    }
}

/// A request was answered.
pub(crate) fn answered(method: &Method, route: &str, status: http::StatusCode, took: Duration) {
    let (method, route) = (known(method), route.to_owned());
    let status = status.as_str().to_owned();
    counter!(names::REQUESTS, "method" => method, "route" => route.clone(), "status" => status).increment(1);
    histogram!(names::REQUEST, "method" => method, "route" => route).record(took);
}

/// A method as a label. Anybody may make up methods, and every label is kept for ever: those made up are all one.
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

/// Why something was refused.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reason {
    /// There are too many connections.
    Connections,
    /// Somebody asks too often.
    Rate,
    /// Too much is under way.
    Overload,
    /// One principal has too much at once.
    Principal,
    /// There are too many streams.
    Streams,
    /// A stream was not read.
    Unread,
}

impl Reason {
    const ALL: [Reason; 6] = [
        Reason::Connections,
        Reason::Rate,
        Reason::Overload,
        Reason::Principal,
        Reason::Streams,
        Reason::Unread,
    ];

    fn label(self) -> &'static str {
        match self {
            Reason::Connections => "connections",
            Reason::Rate => "rate",
            Reason::Overload => "overload",
            Reason::Principal => "principal",
            Reason::Streams => "streams",
            Reason::Unread => "unread",
        }
    }
}

/// Something was refused.
pub(crate) fn refused(reason: Reason) {
    counter!(names::REFUSED, "reason" => reason.label()).increment(1);
}

/// What came of pushing an event, or of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PushResult {
    /// The receiver took it.
    Done,
    /// It answered otherwise.
    Refused,
    /// It was not in time.
    Late,
    /// It could not be reached.
    Unreachable,
}

impl PushResult {
    fn label(self) -> &'static str {
        match self {
            PushResult::Done => "done",
            PushResult::Refused => "refused",
            PushResult::Late => "late",
            PushResult::Unreachable => "unreachable",
        }
    }
}

/// An event was pushed, or was not.
pub(crate) fn pushed(group: &GroupKey, result: PushResult, took: Duration) {
    let labels = labels_of(group);
    let mut with_result = labels.to_vec();
    with_result.push(("result", result.label().to_owned()));
    counter!(names::PUSHES, &with_result).increment(1);
    histogram!(names::PUSH, &labels).record(took);
}

/// A call of a schedule was made, or was not.
pub(crate) fn called(key: &ScheduleKey, result: PushResult, took: Duration) {
    let labels = [("namespace", key.namespace.to_string()), ("schedule", key.name.to_string())];
    let mut with_result = labels.to_vec();
    with_result.push(("result", result.label().to_owned()));
    counter!(names::CALLS, &with_result).increment(1);
    histogram!(names::CALL, &labels).record(took);
}

/// Events were published through this server.
pub(crate) fn published(topic: &TopicKey, count: usize) {
    let labels = [("namespace", topic.namespace.to_string()), ("topic", topic.name.to_string())];
    counter!(tenure::metrics::names::PUBLISHED, &labels).increment(count as u64);
}

/// Events that were pulled through this server are done.
pub(crate) fn consumed(group: &GroupKey, count: usize) {
    counter!(tenure::metrics::names::CONSUMED, &labels_of(group)).increment(count as u64);
}

/// An event that was pulled through this server failed, perhaps for good.
pub(crate) fn failed(group: &GroupKey, dead: bool) {
    let labels = labels_of(group);
    counter!(tenure::metrics::names::EVENTS_FAILED, &labels).increment(1);
    counter!(tenure::metrics::names::EVENTS_DEAD, &labels).increment(u64::from(dead));
}

/// Words about slots that a member had lost were refused.
pub(crate) fn stale(group: &GroupKey, slots: usize) {
    if slots > 0 {
        counter!(tenure::metrics::names::COMMITS_STALE, &labels_of(group)).increment(slots as u64);
    }
}

fn labels_of(group: &GroupKey) -> [(&'static str, String); 3] {
    [
        ("namespace", group.topic.namespace.to_string()),
        ("topic", group.topic.name.to_string()),
        ("group", group.name.to_string()),
    ]
}

/// Counts something for as long as it is there.
#[derive(Debug)]
pub(crate) struct Gauged(&'static str);

impl Gauged {
    pub(crate) fn new(name: &'static str) -> Gauged {
        gauge!(name).increment(1.0);
        Gauged(name)
    }
}

impl Drop for Gauged {
    fn drop(&mut self) {
        gauge!(self.0).decrement(1.0);
    }
}

/// The route. It shows every namespace, so it needs a grant over all.
pub(crate) fn routes() -> Routes {
    Routes::new().page(Need::Over(Verb::Read), Method::GET, "/metrics", get(scrape))
}

async fn scrape(State(app): State<App>) -> Response {
    let mut text = recorder().map(PrometheusHandle::render).unwrap_or_default();
    board(&app, &mut text);
    queues(&app, &mut text).await;
    topics(&app, &mut text).await;
    schedules(&app, &mut text).await;
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// What the store looks like.
fn board(app: &App, text: &mut String) {
    let seen = app.board.seen();
    let servers = seen.elections.get(&*SERVERS);
    let live = |view: &ElectionView| {
        view.candidates.iter().filter(|c| c.session.live && c.session.owner.is_none()).count()
    };
    let replicas = servers.map_or(0, |view| live(view));
    let age = app.runtime.now().since(seen.at).as_secs_f64();
    single(text, "tenure_build_info", "The version that runs.", "version", env!("CARGO_PKG_VERSION"));
    family(
        text,
        "tenure_store_up",
        "Whether the last look at the store succeeded.",
        [(String::new(), u8::from(seen.trouble.is_none()))],
    );
    family(
        text,
        "tenure_store_seen_seconds",
        "How long ago the store was last seen.",
        [(String::new(), age)],
    );
    family(text, "tenure_replicas", "Servers on this store that are live.", [(String::new(), replicas)]);
    let elections = seen.elections.iter().filter(|(key, _)| **key != *SERVERS);
    let granted = |view: &ElectionView| view.leases.iter().filter_map(|lease| lease.granted_at_ms).max();
    let elections = Ranked::new(elections, |(_, view)| granted(view));
    let each = |fold, figure: fn(&ElectionView) -> f64| {
        elections.figures(|(key, _)| labels(key), OTHER_ELECTION, fold, |(_, view)| figure(view))
    };
    let slots = each(Fold::Sum, |view| view.slots.into());
    family(text, "tenure_election_slots", "How many may lead at once.", slots);
    let led = each(Fold::Sum, |view| view.holders().count() as f64);
    family(text, "tenure_election_led", "How many of the slots are held by a live session.", led);
    let live = |view: &ElectionView| view.candidates.iter().filter(|c| c.session.live).count() as f64;
    let candidates = each(Fold::Sum, live);
    family(text, "tenure_election_candidates", "Live sessions that stand, observers included.", candidates);
    let paused = each(Fold::Sum, |view| u8::from(view.paused.is_some()).into());
    family(text, "tenure_election_paused", "Whether an operator has paused it.", paused);
    let token = each(Fold::Max, |view| {
        view.leases.iter().map(|lease| lease.token.as_u64()).max().unwrap_or(0) as f64
    });
    family(
        text,
        "tenure_election_token",
        "The highest token granted; grows with every change of leader.",
        token,
    );
}

/// What stands in the queues. Of a store that can not be asked, or keeps none, nothing is said: old figures would pass for new.
async fn queues(app: &App, text: &mut String) {
    let seen = app.floor.queues().await.ok().filter(|seen| seen.trouble.is_none());
    let queues = seen.iter().flat_map(|seen| seen.queues.values().map(|track| &track.view));
    let unfinished = |view: &QueueView| CANCELLED.iter().map(|state| view.count(*state)).sum::<u64>();
    let queues = Ranked::new(queues, |view| unfinished(view));
    let depth = TaskState::ALL.into_iter().flat_map(|state| {
        let with_state = |labels: &str| format!("{labels},state=\"{}\"}}", state.as_str());
        let labels = |view: &&QueueView| with_state(&queue_labels(&view.key));
        queues.figures(labels, &with_state(OTHER_QUEUE), Fold::Sum, |view| view.count(state) as f64)
    });
    family(text, "tenure_queue_depth", "Tasks of the queue that stand there.", depth);
    let each = |fold, figure: fn(&QueueView) -> f64| {
        let labels = |view: &&QueueView| format!("{}}}", queue_labels(&view.key));
        queues.figures(labels, &format!("{OTHER_QUEUE}}}"), fold, |view| figure(view))
    };
    let oldest = each(Fold::Max, |view| seconds(view.oldest_ready_ms.unwrap_or(0)));
    let help = "For how long the oldest ready task has been ready; 0 if there is none.";
    family(text, "tenure_queue_oldest_ready_seconds", help, oldest);
    let paused = each(Fold::Sum, |view| u8::from(view.paused.is_some()).into());
    family(text, "tenure_queue_paused", "Whether an operator has paused it, or its namespace.", paused);
}

/// What is in the topics, and how far their groups are. Of a store that can not be asked, or keeps none, nothing is said.
async fn topics(app: &App, text: &mut String) {
    let seen = app.gauge.all().await.ok().filter(|seen| seen.trouble.is_none());
    let topics = seen.iter().flat_map(|seen| seen.topics.values().map(AsRef::as_ref));
    let topics = Ranked::new(topics, |view: &&TopicView| view.events);
    let each = |fold, figure: fn(&TopicView) -> f64| {
        let labels = |view: &&TopicView| format!("{}}}", topic_labels(&view.key));
        topics.figures(labels, &format!("{OTHER_TOPIC}}}"), fold, |view| figure(view))
    };
    family(
        text,
        "tenure_topic_events",
        "Events that the topic keeps, about.",
        each(Fold::Sum, |view| view.events as f64),
    );
    let help = "For how long the transaction that keeps others from committing to the topic has been open; 0 if none does.";
    let blocked = each(Fold::Max, |view| {
        seconds(view.blockers.iter().map(|blocker| blocker.since_ms).max().unwrap_or(0))
    });
    family(text, "tenure_topic_blocked_seconds", help, blocked);
    let waiting =
        each(Fold::Sum, |view| view.blockers.iter().map(|blocker| blocker.waiting).sum::<u64>() as f64);
    family(
        text,
        "tenure_topic_blocked_transactions",
        "Transactions that wait for one that holds a slot.",
        waiting,
    );
    let groups = seen.iter().flat_map(|seen| seen.groups.values());
    let groups = Ranked::new(groups, |track| (track.view.members.len(), track.lag.events));
    let each = |fold, figure: fn(&Track) -> f64| {
        groups.figures(|track| group_labels(&track.view.key), OTHER_GROUP, fold, |track| figure(track))
    };
    let lag = each(Fold::Sum, |track| track.lag.events as f64);
    family(
        text,
        "tenure_group_lag_events",
        "Events that the group has not read; of a long lag, a part.",
        lag,
    );
    let exact = each(Fold::Min, |track| f64::from(u8::from(track.lag.exact)));
    let help = "Whether that many; 0: it is more, of slots that are too far behind to be counted. Then go by the seconds.";
    family(text, "tenure_group_lag_exact", help, exact);
    let late = each(Fold::Max, |track| seconds(track.lag.ms));
    family(
        text,
        "tenure_group_lag_seconds",
        "For how long the oldest event that the group has not read has waited.",
        late,
    );
    let aside = each(Fold::Sum, |track| track.view.aside as f64);
    family(text, "tenure_group_aside", "Events that are tried again, or wait behind one that is.", aside);
    family(
        text,
        "tenure_group_dead",
        "Events that failed for good.",
        each(Fold::Sum, |track| track.view.dead as f64),
    );
    let members = each(Fold::Sum, |track| track.view.members.len() as f64);
    family(text, "tenure_group_members", "Live members of the group.", members);
    let paused = each(Fold::Sum, |track| f64::from(u8::from(track.view.paused.is_some())));
    family(text, "tenure_group_paused", "Whether an operator has paused it.", paused);
    let moves = each(Fold::Sum, |track| track.view.moves as f64);
    family(text, "tenure_group_moves", "How many slots ever changed hands from one name to another.", moves);
}

/// How it stands with schedules. Of a store that can not be asked, or keeps none, nothing is said.
async fn schedules(app: &App, text: &mut String) {
    let seen = app.calendar.seen().await.ok();
    let spaces = || seen.iter().flat_map(|seen| seen.namespaces.iter());
    let each = |figure: fn(&ScheduleStats) -> Option<f64>| {
        let shown = move |stats: &ScheduleStats| {
            figure(stats).map(|value| (format!("{{namespace=\"{}\"}}", stats.namespace), value))
        };
        spaces().filter_map(shown).collect::<Vec<_>>()
    };
    family(text, "tenure_schedules", "Schedules that there are.", each(|stats| Some(stats.schedules as f64)));
    let paused = each(|stats| Some(stats.paused as f64));
    family(text, "tenure_schedules_paused", "Schedules that an operator has paused.", paused);
    let troubled = each(|stats| Some(stats.troubled as f64));
    family(text, "tenure_schedules_troubled", "Schedules that could not fire the last time.", troubled);
    let overdue = each(|stats| Some(stats.overdue as f64));
    family(text, "tenure_schedules_overdue", "Schedules that are due by now and have not fired.", overdue);
    let late = each(|stats| Some(seconds(stats.overdue_ms)));
    let help = "For how long the longest of these has been due; 0 if none is.";
    family(text, "tenure_schedules_overdue_seconds", help, late);
    let last = each(|stats| stats.last_fired_ms.map(|ms| ms as f64 / 1000.0));
    let help = "When any of them fired last, in seconds since 1970, by the store's clock.";
    family(text, "tenure_schedules_last_fired_timestamp_seconds", help, last);
    let each = |figure: fn(&ScheduleView) -> Option<f64>| {
        let views = seen.iter().flat_map(|seen| seen.schedules.iter());
        views.filter_map(|view| figure(view).map(|value| (schedule_labels(view), value))).collect::<Vec<_>>()
    };
    let last = each(|view| view.last_fired_ms.map(|ms| ms as f64 / 1000.0));
    let help = "When it fired last, in seconds since 1970, by the store's clock. Of each schedule something is said \
                only while there are a thousand at most.";
    family(text, "tenure_schedule_last_fired_timestamp_seconds", help, last);
    let next = each(|view| view.due_ms.map(|ms| ms as f64 / 1000.0));
    let help = "When it is due next, in seconds since 1970; nothing if it is paused or over.";
    family(text, "tenure_schedule_next_due_timestamp_seconds", help, next);
    let fired = each(|view| Some(view.fired as f64));
    family(text, "tenure_schedule_ticks_fired", "Ticks of it that have fired.", fired);
    let skipped = each(|view| Some(view.skipped as f64));
    family(text, "tenure_schedule_ticks_skipped", "Ticks of it that were missed, and did not fire.", skipped);
    let overlapped = each(|view| Some(view.overlapped as f64));
    let help = "Ticks of it that did nothing, as an earlier run was under way.";
    family(text, "tenure_schedule_ticks_overlapped", help, overlapped);
    let trouble = each(|view| Some(f64::from(u8::from(view.trouble.is_some()))));
    family(text, "tenure_schedule_troubled", "Whether it could not fire the last time.", trouble);
    let paused = each(|view| Some(f64::from(u8::from(view.paused.is_some()))));
    family(text, "tenure_schedule_paused", "Whether an operator has paused it.", paused);
}

fn schedule_labels(view: &ScheduleView) -> String {
    format!("{{namespace=\"{}\",schedule=\"{}\"}}", view.namespace, view.definition.name)
}

fn seconds(ms: u64) -> f64 {
    Duration::from_millis(ms).as_secs_f64()
}

/// The labels of all objects that have no series of their own. No namespace is empty, so they are nobody's.
const OTHER_ELECTION: &str = "{namespace=\"\",election=\"other\"}";
const OTHER_QUEUE: &str = "{namespace=\"\",queue=\"other\"";
const OTHER_TOPIC: &str = "{namespace=\"\",topic=\"other\"";
const OTHER_GROUP: &str = "{namespace=\"\",topic=\"other\",group=\"other\"}";

/// The labels of a topic, to be gone on with.
fn topic_labels(key: &TopicKey) -> String {
    format!("{{namespace=\"{}\",topic=\"{}\"", key.namespace, key.name)
}

fn group_labels(key: &GroupKey) -> String {
    format!("{},group=\"{}\"}}", topic_labels(&key.topic), key.name)
}

/// The labels of a queue, to be gone on with.
fn queue_labels(key: &QueueKey) -> String {
    format!("{{namespace=\"{}\",queue=\"{}\"", key.namespace, key.name)
}

fn labels(key: &ElectionKey) -> String {
    // Names have no character that would need to be escaped.
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
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
    for (labels, value) in figures {
        let _ = writeln!(text, "{name}{labels} {value}");
    }
}
