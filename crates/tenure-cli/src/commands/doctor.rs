//! `tenure doctor`: is this store fit, and how fast is it?

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;
use tenure::backend::{self, StoreOptions};
use tenure::port::{
    Backend, Finding, GroupView, Promises, QueueView, ScheduleFilter, TaskState, TopicView, Trouble, Verdict,
    claims_election, scheduler_election,
};
use tenure::runtime::{now, random};
use tenure::{ElectionKey, Name, Tenure};

use crate::args::{DoctorArgs, Format, Global};
use crate::exit::{self, Failure};
use crate::output::{self, Ink, Table, counted, paint};
use crate::store;

/// How long the clocks are compared.
const CLOCK_WINDOW: Duration = Duration::from_secs(1);
/// How many round trips are timed.
const ROUND_TRIPS: usize = 21;

/// How often the leader's heartbeat is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// The longest time that is waited for a leader's heartbeat.
const BEAT_MAX: Duration = Duration::from_secs(60);

pub(crate) async fn run(global: &Global, args: DoctorArgs) -> Result<u8, Failure> {
    // Nothing is created and nothing is migrated.
    let options = StoreOptions { existing_only: true, ..store::options(global)? };
    if options.url.starts_with("sqlite:")
        && backend::migrator(&options).await?.schema_status().await?.found.is_none()
    {
        let message = format!(
            "{0} has no Tenure tables yet; create them with `tenure migrate up --store {0}`",
            options.url
        );
        return Err(Failure::new(exit::STORE, message));
    }
    let store = match backend::open(&options).await {
        Err(error) if error.kind == Trouble::Unfit => {
            let finding = Finding::new("store", error.message, Verdict::Bad, "");
            return Ok(report(global, None, &[finding]));
        }
        opened => opened?,
    };
    output::note(global, Ink::Dim, "looking, this takes a few seconds");
    let mut findings = vec![round_trip(store.as_ref()).await?];
    findings.extend(super::advise::check(&args.wishes, &store.promises()));
    findings.extend(clock_rate(store.as_ref()).await?);
    findings.extend(store.examine().await?);
    findings.extend(maintenance(store.as_ref()).await?);
    findings.extend(scheduling(store.as_ref()).await?);
    findings.extend(events(store.as_ref()).await);
    findings.push(hand_over(&options, args.rounds).await?);
    Ok(report(global, Some(&store.promises()), &findings))
}

/// Prints the findings. Returns the exit code: 1 if one of them is bad.
fn report(global: &Global, promises: Option<&Promises>, findings: &[Finding]) -> u8 {
    if global.output == Format::Json {
        output::print_json(&json!({"promises": promises, "findings": findings}));
    } else {
        if let Some(promises) = promises {
            let mut table = Table::new(&["promise", ""]);
            for (what, value) in [
                ("backend", promises.backend),
                ("at most one leader", promises.at_most_one),
                ("in a netsplit", promises.netsplit),
                ("after a crash", promises.after_crash),
            ] {
                table.row(vec![(what.to_owned(), Ink::Bold), (value.to_owned(), Ink::Plain)]);
            }
            output::print_line(&table.render());
        }
        output::print_text(&render(findings));
    }
    u8::from(findings.iter().any(|finding| finding.verdict == Verdict::Bad))
}

fn render(findings: &[Finding]) -> String {
    let mut table = Table::new(&["check", "found", ""]);
    for finding in findings {
        let (mark, ink) = match finding.verdict {
            Verdict::Good => ("✓", Ink::Green),
            Verdict::Fair => ("!", Ink::Yellow),
            Verdict::Bad => ("✗", Ink::Red),
        };
        table.row(vec![
            (format!("{mark} {}", finding.check), ink),
            (finding.value.clone(), Ink::Plain),
            (finding.advice.clone(), Ink::Dim),
        ]);
    }
    let bad = findings.iter().filter(|finding| finding.verdict == Verdict::Bad).count();
    let verdict =
        if bad == 0 { paint("fit", Ink::Green) } else { paint(&format!("{bad} to mend"), Ink::Red) };
    format!("{}\n{verdict}\n", table.render())
}

async fn round_trip(store: &dyn Backend) -> Result<Finding, Failure> {
    let nobody = Name::default_namespace();
    let key = tenure::ElectionKey::new(nobody.clone(), nobody);
    let mut times = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let start = now();
        store.election(&key).await?;
        times.push(now().since(start));
    }
    times.sort();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    let slow = median > Duration::from_millis(500);
    let advice = if slow { "choose a lease of at least 30 times this" } else { "" };
    let verdict = if slow { Verdict::Fair } else { Verdict::Good };
    Ok(Finding::new("round trip", format!("{median:.1?} median, {worst:.1?} worst"), verdict, advice))
}

/// Only *rates* matter: how fast the store's clock runs against ours says how well kept ours is.
async fn clock_rate(store: &dyn Backend) -> Result<Option<Finding>, Failure> {
    // Each reading of the store's clock lies between two of ours.
    async fn reading(store: &dyn Backend) -> Result<Option<(f64, f64, f64)>, Failure> {
        let before = now();
        let Some(theirs) = store.clock_seconds().await? else { return Ok(None) };
        let after = now();
        Ok(Some((theirs, seconds(before), seconds(after))))
    }
    fn seconds(at: tenure::Moment) -> f64 {
        Duration::from_nanos(at.as_nanos()).as_secs_f64()
    }
    let Some((their_start, _, our_start)) = reading(store).await? else { return Ok(None) };
    tokio::time::sleep(CLOCK_WINDOW).await;
    let Some((their_end, our_end, _)) = reading(store).await? else { return Ok(None) };
    let rate = (their_end - their_start) / (our_end - our_start).max(f64::EPSILON);
    let verdict = match rate {
        0.95..=1.05 => Verdict::Good,
        0.84..=1.19 => Verdict::Fair,
        _ => Verdict::Bad,
    };
    let advice =
        if verdict == Verdict::Good { "" } else { "clock rates must stay within 1.2× of one another" };
    Ok(Some(Finding::new("clock rate", format!("the store's runs at {rate:.4} of ours"), verdict, advice)))
}

/// Whether a process runs maintenance, where there are tasks to recover. A store that keeps no tasks needs none.
async fn maintenance(store: &dyn Backend) -> Result<Option<Finding>, Failure> {
    let Ok(queues) = store.queues(None).await else { return Ok(None) };
    let unfinished = |queue: &QueueView| {
        let finished = |state: &TaskState| state.is_final();
        queue.counts.iter().any(|(state, count)| *count > 0 && !finished(state))
    };
    if !queues.iter().any(unfinished) {
        return Ok(None);
    }
    Ok(Some(match beating_leader(store, &claims_election()).await? {
        Ok(leader) => Finding::new("maintenance", format!("{leader} recovers lost tasks"), Verdict::Good, ""),
        Err(why) => Finding::new(
            "maintenance",
            format!("there are unfinished tasks, and no process recovers lost ones: {why}"),
            Verdict::Fair,
            "start a worker (tenure work) or a server (tenure serve)",
        ),
    }))
}

/// Whether a process fires the schedules, where there are any.
async fn scheduling(store: &dyn Backend) -> Result<Option<Finding>, Failure> {
    let Ok(schedules) = store.schedules(&ScheduleFilter::default()).await else { return Ok(None) };
    if schedules.is_empty() {
        return Ok(None);
    }
    Ok(Some(match beating_leader(store, &scheduler_election()).await? {
        Ok(leader) => Finding::new("schedules", format!("{leader} fires them"), Verdict::Good, ""),
        Err(why) => Finding::new(
            "schedules",
            format!("there are schedules, and no process fires them: {why}"),
            Verdict::Fair,
            "start a scheduler (tenure schedule run) or a server (tenure serve)",
        ),
    }))
}

/// The leader of an election whose heartbeat was seen to advance, or why there is none. A lease that is held says little: it
/// stays held after its process has died, until another candidate takes it.
async fn beating_leader(
    store: &dyn Backend,
    election: &ElectionKey,
) -> Result<Result<String, String>, Failure> {
    let Some(view) = store.election(election).await? else { return Ok(Err("no process leads".to_owned())) };
    let Some((_, holder)) = view.holders().next() else { return Ok(Err("no process leads".to_owned())) };
    let (start, limit) = (now(), holder.lease().min(BEAT_MAX));
    loop {
        let seen = store.sessions(Some(std::slice::from_ref(&holder.id))).await?;
        match seen.first().filter(|session| session.live) {
            None => return Ok(Err(format!("{} has ended", holder.name))),
            Some(session) if session.beat != holder.beat => return Ok(Ok(holder.name.clone())),
            Some(_) if now().since(start) > limit => {
                let silent = format!("{} leads and has sent no heartbeat for {limit:?}", holder.name);
                return Ok(Err(silent));
            }
            Some(_) => tokio::time::sleep(LOOK).await,
        }
    }
}

/// Where there are topics: is a slot blocked, is something dead, does nobody read? Who may not look at them is told nothing.
async fn events(store: &dyn Backend) -> Vec<Finding> {
    let (Ok(topics), Ok(groups)) = (store.topics(None).await, store.groups(None).await) else {
        return Vec::new();
    };
    if topics.is_empty() { Vec::new() } else { judged(&topics, &groups) }
}

fn judged(topics: &[TopicView], groups: &[GroupView]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find =
        |value: String, advice: String| findings.push(Finding::new("events", value, Verdict::Fair, advice));
    let blocked = |topic: &&TopicView| topic.blockers.iter().any(|blocker| blocker.waiting > 0);
    for topic in topics.iter().filter(blocked) {
        let pids: BTreeSet<_> = topic.blockers.iter().map(|blocker| blocker.pid.to_string()).collect();
        let pids: Vec<_> = pids.into_iter().collect();
        find(
            format!("others can not commit to {}: process {} holds its slots", topic.key, pids.join(", ")),
            format!("tenure events topics show {}", topic.key.name),
        );
    }
    for group in groups {
        let (topic, name) = (&group.key.topic.name, &group.key.name);
        if group.dead > 0 {
            find(
                format!("{} of {} dead, and their keys parked", group.dead, group.key),
                format!("tenure events dead list {topic} {name}"),
            );
        }
        if group.members.is_empty() && group.paused.is_none() && group.lag().0 > 0 {
            find(
                format!("nobody reads {}, and what it has not read is kept", group.key),
                format!("start its members, or: tenure events groups delete {topic} {name}"),
            );
        }
    }
    if findings.is_empty() {
        let found = format!("{}, {}", counted(topics.len(), "topic"), counted(groups.len(), "group"));
        findings.push(Finding::new("events", found, Verdict::Good, ""));
    }
    findings
}

/// Two candidates of our own hand a lease to and fro. Their rows are removed afterwards.
async fn hand_over(options: &StoreOptions, rounds: u32) -> Result<Finding, Failure> {
    let (first, second) = (backend::open(options).await?, backend::open(options).await?);
    let a = Tenure::builder().shared_store(first.clone()).name("doctor-a").open().await?;
    let b = Tenure::builder().shared_store(second).name("doctor-b").open().await?;
    let sessions: Vec<_> = [a.session(), b.session()].into_iter().flatten().collect();
    let election = format!("hand-over-{}-{:x}", std::process::id(), random());
    let measured = exchange(&a, &b, &election, rounds).await;
    let closed = tokio::join!(a.close(), b.close());
    first.remove_probe(&election.parse()?, &sessions).await?;
    let mut times = measured?;
    closed.0?;
    times.sort();
    let Some(median) = times.get(times.len() / 2) else {
        return Ok(Finding::new("hand-over", "not measured", Verdict::Good, ""));
    };
    let slow = *median > Duration::from_millis(250);
    let verdict = if slow { Verdict::Fair } else { Verdict::Good };
    let advice = if slow { "hints do not arrive: a pooler in between? give --direct-url" } else { "" };
    Ok(Finding::new("hand-over", format!("{median:.1?} median of {}", times.len()), verdict, advice))
}

/// Hands the lease over so many times, and returns how long each took.
async fn exchange(a: &Tenure, b: &Tenure, election: &str, rounds: u32) -> Result<Vec<Duration>, Failure> {
    let stand = |tenure: &Tenure| tenure.elector(election).namespace("tenure-doctor").start();
    let (first, second) = (stand(a).await?, stand(b).await?);
    let mut times = Vec::new();
    for _ in 0..rounds {
        let (leader, other, leadership) = tokio::select! {
            leadership = first.elected() => (&first, &second, leadership?),
            leadership = second.elected() => (&second, &first, leadership?),
        };
        // The next one must have seen who leads, as it would have in a real service.
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
        // It sits out for a moment after resigning.
        while leader.is_leader() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    // Not dropped: `stop` returns when the candidate has left.
    first.stop().await?;
    second.stop().await?;
    Ok(times)
}

#[cfg(test)]
mod tests {
    use tenure::port::{Blocker, TopicKey, TopicSettings};

    use super::*;

    #[test]
    fn what_is_wrong_with_events_is_found_with_its_remedy() {
        let key = TopicKey::new("default".parse().unwrap(), "orders".parse().unwrap());
        let blocker =
            Blocker { slot: 1, pid: 4711, who: "app".into(), doing: "idle".into(), since_ms: 9, waiting: 1 };
        let mut topic = TopicView {
            key,
            settings: TopicSettings::default(),
            events: 1,
            oldest_at_ms: None,
            newest_at_ms: None,
            groups: Vec::new(),
            blockers: Vec::new(),
        };
        let group = r#"{
            "topic": {"namespace": "default", "name": "orders"}, "name": "mailer", "settings": {}, "paused": null, "members": [],
            "slots": [{"slot": 0, "token": 0, "holder": null, "last": "", "position": 0, "end": 9, "lag": 1, "lag_exact": true,
                       "lag_ms": 5}],
            "aside": 0, "dead": 2, "moves": 0, "push": null}"#;
        let group: GroupView = serde_json::from_str(group).unwrap();
        let found = judged(std::slice::from_ref(&topic), &[]);
        assert_eq!(
            (found.len(), found[0].verdict, found[0].value.as_str()),
            (1, Verdict::Good, "1 topic, 0 groups")
        );
        topic.blockers.push(blocker);
        let found = judged(&[topic], &[group]);
        for (finding, (value, advice)) in found.iter().zip([
            ("process 4711 holds", "topics show orders"),
            ("2 of orders/mailer dead", "dead list orders mailer"),
            ("nobody reads orders/mailer", "groups delete orders mailer"),
        ]) {
            assert!(finding.value.contains(value) && finding.advice.contains(advice), "{finding:?}");
        }
        assert_eq!(found.len(), 3);
    }
}
