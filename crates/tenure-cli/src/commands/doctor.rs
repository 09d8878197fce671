//! `tenure doctor`: checks the store and measures its latency.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;
use tenure::port::{
    ErrorKind, Finding, FindingStatus, GroupView, QueueView, ScheduleFilter, Store, StoreGuarantees,
    TaskState, TopicView, broker_election, scheduler_election,
};
use tenure::runtime::{now, random};
use tenure::store::StoreOptions;
use tenure::{ElectionKey, Name, Tenure};

use crate::args::{DoctorArgs, GlobalArgs, OutputFormat};
use crate::error::{self, CliError};
use crate::output::{self, Table, TextStyle, counted, paint};
use crate::store;

/// Duration of the clock comparison.
const CLOCK_WINDOW: Duration = Duration::from_secs(1);
/// Number of measured round trips.
const ROUND_TRIPS: usize = 21;

/// Poll interval for the heartbeat of a leader.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum time to wait for the heartbeat of a leader.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) async fn run(global: &GlobalArgs, args: DoctorArgs) -> Result<u8, CliError> {
    // Create no file and run no migration.
    let options = StoreOptions { existing_only: true, ..store::options(global)? };
    if options.url.starts_with("sqlite:")
        && tenure::store::migrator(&options).await?.schema_status().await?.found.is_none()
    {
        let message = format!(
            "{0} has no Tenure tables; create them with `tenure migrate up --store {0}`",
            options.url
        );
        return Err(CliError::new(error::STORE, message));
    }
    let store = match tenure::store::open(&options).await {
        Err(error) if error.kind == ErrorKind::Misconfigured => {
            let finding = Finding::new("store", error.message, FindingStatus::Error, "");
            return Ok(report(global, None, &[finding]));
        }
        opened => opened?,
    };
    output::note(global, TextStyle::Dim, "checking; this takes a few seconds");
    let mut findings = vec![round_trip(store.as_ref()).await?];
    findings.extend(super::advise::check(&args.answers, &store.guarantees()));
    findings.extend(clock_rate(store.as_ref()).await?);
    findings.extend(store.diagnose().await?);
    findings.extend(maintenance(store.as_ref()).await?);
    findings.extend(scheduling(store.as_ref()).await?);
    findings.extend(events(store.as_ref()).await);
    findings.push(measure_handover(&options, args.rounds).await?);
    Ok(report(global, Some(&store.guarantees()), &findings))
}

/// Prints the findings. Returns the exit code: 1 if a finding is an error.
fn report(global: &GlobalArgs, guarantees: Option<&StoreGuarantees>, findings: &[Finding]) -> u8 {
    if global.output == OutputFormat::Json {
        output::print_json(&json!({"guarantees": guarantees, "findings": findings}));
    } else {
        if let Some(guarantees) = guarantees {
            let mut table = Table::new(&["guarantee", ""]);
            for (what, value) in [
                ("store", guarantees.backend),
                ("at most one leader", guarantees.at_most_one),
                ("in a network split", guarantees.netsplit),
                ("after a crash", guarantees.after_crash),
            ] {
                table.row(vec![(what.to_owned(), TextStyle::Bold), (value.to_owned(), TextStyle::Plain)]);
            }
            output::print_line(&table.render());
        }
        output::print_text(&render(findings));
    }
    u8::from(findings.iter().any(|finding| finding.status == FindingStatus::Error))
}

fn render(findings: &[Finding]) -> String {
    let mut table = Table::new(&["check", "found", "advice"]);
    for finding in findings {
        let (mark, style) = match finding.status {
            FindingStatus::Ok => ("✓", TextStyle::Green),
            FindingStatus::Warning => ("!", TextStyle::Yellow),
            FindingStatus::Error => ("✗", TextStyle::Red),
        };
        table.row(vec![
            (format!("{mark} {}", finding.check), style),
            (finding.value.clone(), TextStyle::Plain),
            (finding.advice.clone(), TextStyle::Dim),
        ]);
    }
    let error_count = findings.iter().filter(|finding| finding.status == FindingStatus::Error).count();
    let status = if error_count == 0 {
        paint("ok", TextStyle::Green)
    } else {
        paint(&counted(error_count, "error"), TextStyle::Red)
    };
    format!("{}\n{status}\n", table.render())
}

async fn round_trip(store: &dyn Store) -> Result<Finding, CliError> {
    let name = Name::default_namespace();
    let key = tenure::ElectionKey::new(name.clone(), name);
    let mut times = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let start = now();
        store.election(&key).await?;
        times.push(now().since(start));
    }
    times.sort();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    let slow = median > Duration::from_millis(500);
    let advice = if slow { "use a lease of at least 30 times the median" } else { "" };
    let status = if slow { FindingStatus::Warning } else { FindingStatus::Ok };
    Ok(Finding::new("round trip", format!("{median:.1?} median, {worst:.1?} worst"), status, advice))
}

/// Compares the rate of the store's clock with the local clock. Leases depend on clock rates only, not on clock values.
async fn clock_rate(store: &dyn Store) -> Result<Option<Finding>, CliError> {
    // Each reading of the store's clock lies between two readings of the local clock.
    async fn reading(store: &dyn Store) -> Result<Option<(f64, f64, f64)>, CliError> {
        let before = now();
        let Some(theirs) = store.clock_seconds().await? else { return Ok(None) };
        let after = now();
        Ok(Some((theirs, seconds(before), seconds(after))))
    }
    fn seconds(at: tenure::BootInstant) -> f64 {
        Duration::from_nanos(at.as_nanos()).as_secs_f64()
    }
    let Some((their_start, _, our_start)) = reading(store).await? else { return Ok(None) };
    tokio::time::sleep(CLOCK_WINDOW).await;
    let Some((their_end, our_end, _)) = reading(store).await? else { return Ok(None) };
    let rate = (their_end - their_start) / (our_end - our_start).max(f64::EPSILON);
    let status = match rate {
        0.95..=1.05 => FindingStatus::Ok,
        0.84..=1.19 => FindingStatus::Warning,
        _ => FindingStatus::Error,
    };
    let advice =
        if status == FindingStatus::Ok { "" } else { "clock rates must differ by less than a factor of 1.2" };
    Ok(Some(Finding::new(
        "clock rate",
        format!("the clock of the store runs at {rate:.4} of the local rate"),
        status,
        advice,
    )))
}

/// Checks that a process runs maintenance if the store has unfinished tasks.
async fn maintenance(store: &dyn Store) -> Result<Option<Finding>, CliError> {
    let Ok(queues) = store.queues(None).await else { return Ok(None) };
    let unfinished = |queue: &QueueView| {
        let finished = |state: &TaskState| state.is_final();
        queue.counts.iter().any(|(state, count)| *count > 0 && !finished(state))
    };
    if !queues.iter().any(unfinished) {
        return Ok(None);
    }
    Ok(Some(match live_leader(store, &broker_election()).await? {
        Ok(leader) => {
            Finding::new("maintenance", format!("{leader} runs maintenance"), FindingStatus::Ok, "")
        }
        Err(why) => Finding::new(
            "maintenance",
            format!("there are unfinished tasks, and no process runs maintenance: {why}"),
            FindingStatus::Warning,
            "start a worker (tenure work) or a server (tenure serve)",
        ),
    }))
}

/// Checks that a process fires schedules if the store has any.
async fn scheduling(store: &dyn Store) -> Result<Option<Finding>, CliError> {
    let Ok(schedules) = store.schedules(&ScheduleFilter::default()).await else { return Ok(None) };
    if schedules.is_empty() {
        return Ok(None);
    }
    Ok(Some(match live_leader(store, &scheduler_election()).await? {
        Ok(leader) => Finding::new("schedules", format!("{leader} fires schedules"), FindingStatus::Ok, ""),
        Err(why) => Finding::new(
            "schedules",
            format!("there are schedules, and no process fires them: {why}"),
            FindingStatus::Warning,
            "start a scheduler (tenure schedules run) or a server (tenure serve)",
        ),
    }))
}

/// The leader of an election whose heartbeat advances, or the reason why there is none. A held lease is no proof: it
/// remains held after its process died, until another candidate takes it over.
async fn live_leader(store: &dyn Store, election: &ElectionKey) -> Result<Result<String, String>, CliError> {
    let Some(view) = store.election(election).await? else { return Ok(Err("there is no leader".to_owned())) };
    let Some((_, holder)) = view.holders().next() else { return Ok(Err("there is no leader".to_owned())) };
    let (start, limit) = (now(), holder.lease().min(HEARTBEAT_TIMEOUT));
    loop {
        let seen = store.sessions(Some(std::slice::from_ref(&holder.id))).await?;
        match seen.first().filter(|session| session.live) {
            None => return Ok(Err(format!("the session of {} has ended", holder.name))),
            Some(session) if session.heartbeat_count != holder.heartbeat_count => {
                return Ok(Ok(holder.name.clone()));
            }
            Some(_) if now().since(start) > limit => {
                let silent = format!("{} is the leader and has sent no heartbeat for {limit:?}", holder.name);
                return Ok(Err(silent));
            }
            Some(_) => tokio::time::sleep(POLL_INTERVAL).await,
        }
    }
}

/// Checks topics for locked partitions, dead letters and groups without members. Returns nothing if the topics cannot
/// be read.
async fn events(store: &dyn Store) -> Vec<Finding> {
    let (Ok(topics), Ok(groups)) = (store.topics(None).await, store.groups(None).await) else {
        return Vec::new();
    };
    if topics.is_empty() { Vec::new() } else { event_findings(&topics, &groups) }
}

fn event_findings(topics: &[TopicView], groups: &[GroupView]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |value: String, advice: String| {
        findings.push(Finding::new("events", value, FindingStatus::Warning, advice))
    };
    let blocked =
        |topic: &&TopicView| topic.lock_holders.iter().any(|blocker| blocker.waiting_transactions > 0);
    for topic in topics.iter().filter(blocked) {
        let pids: BTreeSet<_> = topic.lock_holders.iter().map(|blocker| blocker.pid.to_string()).collect();
        let pids: Vec<_> = pids.into_iter().collect();
        find(
            format!(
                "transactions wait to commit to {}: process {} holds a partition lock",
                topic.key,
                pids.join(", ")
            ),
            format!("tenure events topics show {}", topic.key.name),
        );
    }
    for group in groups {
        let (topic, name) = (&group.key.topic.name, &group.key.name);
        if group.dead_letter_count > 0 {
            find(
                format!("{} dead letters in {}; their keys are parked", group.dead_letter_count, group.key),
                format!("tenure events dead-letters list {topic} {name}"),
            );
        }
        if group.members.is_empty() && group.paused.is_none() && group.lag().0 > 0 {
            find(
                format!("{} has no members, and its unread events are kept", group.key),
                format!("start a member, or: tenure events groups delete {topic} {name}"),
            );
        }
    }
    if findings.is_empty() {
        let found = format!("{}, {}", counted(topics.len(), "topic"), counted(groups.len(), "group"));
        findings.push(Finding::new("events", found, FindingStatus::Ok, ""));
    }
    findings
}

/// Measures handovers between two candidates of a probe election, and removes its rows afterwards.
async fn measure_handover(options: &StoreOptions, rounds: u32) -> Result<Finding, CliError> {
    let (first, second) = (tenure::store::open(options).await?, tenure::store::open(options).await?);
    let a = Tenure::builder().shared_store(first.clone()).name("doctor-a").open().await?;
    let b = Tenure::builder().shared_store(second).name("doctor-b").open().await?;
    let sessions: Vec<_> = [a.session(), b.session()].into_iter().flatten().collect();
    let election = format!("handover-{}-{:x}", std::process::id(), random());
    let measured = perform_handovers(&a, &b, &election, rounds).await;
    let closed = tokio::join!(a.close(), b.close());
    first.remove_probe(&election.parse()?, &sessions).await?;
    let mut times = measured?;
    closed.0?;
    times.sort();
    let Some(median) = times.get(times.len() / 2) else {
        return Ok(Finding::new("handover", "not measured", FindingStatus::Ok, ""));
    };
    let slow = *median > Duration::from_millis(250);
    let status = if slow { FindingStatus::Warning } else { FindingStatus::Ok };
    let advice = if slow {
        "notifications do not arrive; if --store points to a connection pooler, set --direct-url"
    } else {
        ""
    };
    Ok(Finding::new("handover", format!("{median:.1?} median of {}", times.len()), status, advice))
}

/// Performs the handovers. Returns their durations.
async fn perform_handovers(
    a: &Tenure,
    b: &Tenure,
    election: &str,
    rounds: u32,
) -> Result<Vec<Duration>, CliError> {
    let stand = |tenure: &Tenure| tenure.elector(election).namespace("tenure-doctor").start();
    let (first, second) = (stand(a).await?, stand(b).await?);
    let mut times = Vec::new();
    for _ in 0..rounds {
        let (leader, other, leadership) = tokio::select! {
            leadership = first.elected() => (&first, &second, leadership?),
            leadership = second.elected() => (&second, &first, leadership?),
        };
        // The next leader must have observed the current one, as in a real service.
        while other
            .view()
            .is_none_or(|view| view.holders().next().is_none_or(|(l, _)| l.token != leadership.token()))
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let start = now();
        let resigned = leadership.resign();
        let (elected, resigned) = tokio::join!(other.elected(), resigned);
        let (_, ()) = (elected?, resigned?);
        times.push(now().since(start));
        // After resigning, a candidate waits briefly before it campaigns again.
        while leader.is_leader() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    // `stop`, unlike a drop, returns after the candidate has left.
    first.stop().await?;
    second.stop().await?;
    Ok(times)
}

#[cfg(test)]
mod tests {
    use tenure::port::{TopicKey, TopicLockHolder, TopicSettings};

    use super::*;

    #[test]
    fn event_problems_are_found_with_advice() {
        let key = TopicKey::new("default".parse().unwrap(), "orders".parse().unwrap());
        let blocker = TopicLockHolder {
            partition: 1,
            pid: 4711,
            client: "app".into(),
            activity: "idle".into(),
            open_ms: 9,
            waiting_transactions: 1,
        };
        let mut topic = TopicView {
            key,
            settings: TopicSettings::default(),
            event_count: 1,
            oldest_published_at_ms: None,
            newest_published_at_ms: None,
            groups: Vec::new(),
            lock_holders: Vec::new(),
        };
        let group = r#"{
            "topic": {"namespace": "default", "name": "orders"}, "name": "mailer", "settings": {}, "paused": null, "members": [],
            "partitions": [{"partition": 0, "token": 0, "holder": null, "last_member": "", "committed_offset": 0, "end_offset": 9,
                            "lag_events": 1, "lag_exact": true, "lag_ms": 5}],
            "parked_event_count": 0, "dead_letter_count": 2, "rebalanced_partition_count": 0, "webhook": null}"#;
        let group: GroupView = serde_json::from_str(group).unwrap();
        let found = event_findings(std::slice::from_ref(&topic), &[]);
        assert_eq!(
            (found.len(), found[0].status, found[0].value.as_str()),
            (1, FindingStatus::Ok, "1 topic, 0 groups")
        );
        topic.lock_holders.push(blocker);
        let found = event_findings(&[topic], &[group]);
        for (finding, (value, advice)) in found.iter().zip([
            ("process 4711 holds", "topics show orders"),
            ("2 dead letters in orders/mailer", "dead-letters list orders mailer"),
            ("orders/mailer has no members", "groups delete orders mailer"),
        ]) {
            assert!(finding.value.contains(value) && finding.advice.contains(advice), "{finding:?}");
        }
        assert_eq!(found.len(), 3);
    }
}
