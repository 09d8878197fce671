//! Schedules, as far as they are PostgreSQL's own.

use tenure::backend::postgres::{Postgres, PostgresOptions};
use tenure_core::port::{
    Bureau, Calendar, Expect, Fire, Fired, Hand, HandOutcome, NewTask, Pause, ScheduleFilter, ScheduleKey,
    ScheduleSet, Scheduling, SetSchedule, Tasks, TickFilter, TickState, TickView, TopicSettings, Trouble,
    Wake, scheduler_election,
};
use tenure_core::schedule::{Definition, Overlap, When, plan, tick_of};
use tenure_core::{Name, Token};
use tenure_testkit::rig::FreshDatabase;

use crate::claims::{claimed, completed, seat, submission};
use crate::events::{all, topic};
use crate::support::*;
use crate::wakes::{hearing, until};

pub(crate) const TASK: &str = r#"{"task":{"queue":"q","task":{"kind":"work"}}}"#;
pub(crate) const EVENT: &str = r#"{"event":{"topic":"t"}}"#;

pub(crate) fn key(name: &str) -> ScheduleKey {
    ScheduleKey::new(Name::default_namespace(), name.parse().unwrap())
}

pub(crate) fn definition(name: &str, target: &str) -> Definition {
    let target = serde_json::from_str(target).unwrap();
    Definition::new(name.parse().unwrap(), "every 1h".parse::<When>().unwrap(), target)
}

pub(crate) fn set(definition: Definition) -> SetSchedule {
    SetSchedule {
        namespace: Name::default_namespace(),
        definition,
        secret: None,
        expect: Expect::Any,
        source: None,
        by: "ops".into(),
    }
}

/// Makes a schedule whose tick at one o'clock of the first day of 1970 is due, and all after it.
pub(crate) async fn overdue(database: &FreshDatabase, store: &Postgres, definition: Definition) {
    let name = definition.name.to_string();
    store.set_schedule(&set(definition)).await.unwrap();
    database
        .psql(&format!(
            "UPDATE tenure.schedule_progress p SET next_at_ms = 3600000, due_ms = 3600000
             FROM tenure.schedules s WHERE s.id = p.schedule AND s.name = '{name}'"
        ))
        .unwrap();
}

/// What the leader of this token would have fire.
pub(crate) async fn planned(store: &Postgres, session: &str, token: Token) -> Fire {
    let look = store.due(10_000).await.unwrap();
    let firings = look.schedules.iter().map(|due| plan(due, token, look.store_ms)).collect();
    Fire { session: id(session), token, firings }
}

pub(crate) fn count(database: &FreshDatabase, table: &str) -> i64 {
    database.psql(&format!("SELECT count(*) FROM tenure.{table}")).unwrap().parse().unwrap()
}

async fn history(store: &Postgres, name: &str) -> Vec<TickView> {
    store.ticks(&TickFilter { key: key(name), before_ms: None, limit: 100 }).await.unwrap()
}

/// The token of the leader is on the tick, on the event and on the task, and the key of the task names the tick.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_goes_all_the_way() {
    let (database, store) = crate::events::with_topic(4).await;
    opened(&store, "s").await;
    overdue(&database, &store, definition("report", TASK)).await;
    overdue(&database, &store, definition("beep", EVENT)).await;
    let token = leading(&store, "a", &scheduler_election()).await;
    let fire = planned(&store, "a", token).await;
    assert_eq!(store.fire(&fire).await.unwrap(), Some(vec![Fired::Yes, Fired::Yes]));
    let (report, beep) = (history(&store, "report").await, history(&store, "beep").await);
    assert_eq!((report[0].token, report[0].by.as_str()), (Some(token), "a"));
    // One fires for all that were missed: these are a range.
    assert_eq!((report.len(), report[1].state, report[1].first_ms), (2, TickState::Skipped, Some(3_600_000)));
    let event = all(&store, 4).await.remove(0);
    assert_eq!((event.leader_token, beep[0].event), (Some(token), Some(event.id)));
    let work = claimed(&store, "q", seat("s", 5)).await;
    assert_eq!((work.len(), work[0].leader_token, report[0].task), (1, Some(token), Some(work[0].id)));
    let tick = work[0].key.as_deref().and_then(tick_of);
    assert_eq!(tick, Some((key("report"), report[0].at_ms)));
    let shown = "SELECT schedule, state, cause, by, count > 1, late > interval '0' FROM tenure.tick_records
                 WHERE schedule = 'report' ORDER BY at DESC";
    assert_eq!(database.psql(shown).unwrap(), "report|fired|clock|a|f|t\nreport|skipped|clock|a|t|t");
}

/// Whichever way a task is handed out, its key goes with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_says_what_its_task_is_known_by() {
    let (_database, store) = fresh().await;
    let named = NewTask { key: Some("night@1".into()), ..NewTask::new("work") };
    store.submit(&submission("q", vec![named, NewTask::new("work")])).await.unwrap();
    opened(&store, "s").await;
    let keys: Vec<_> = claimed(&store, "q", seat("s", 2)).await.into_iter().map(|task| task.key).collect();
    assert_eq!(keys, [Some("night@1".into()), None]);
}

/// A firing that can not be, or that is decided from what is no longer so, is nothing to those beside it.
#[tokio::test(flavor = "multi_thread")]
async fn firings_do_not_mind_each_other() {
    let (database, store) = crate::events::with_topic(2).await;
    for name in ["gone", "small"] {
        let settings = TopicSettings { slots: 1, ..TopicSettings::default() };
        store.set_topic(&topic(name), &settings).await.unwrap();
    }
    let event = |name: &str, topic: &str| definition(name, &EVENT.replace("\"t\"", &format!("{topic:?}")));
    overdue(&database, &store, event("a-gone", "gone")).await;
    overdue(&database, &store, event("b-event", "t")).await;
    overdue(&database, &store, definition("c-changed", TASK)).await;
    overdue(&database, &store, definition("d-paused", TASK)).await;
    let mut large = event("e-large", "small");
    large.payload = "\"0123456789\"".parse().unwrap();
    overdue(&database, &store, large).await;
    overdue(&database, &store, definition("f-task", TASK)).await;
    let token = leading(&store, "a", &scheduler_election()).await;
    let fire = planned(&store, "a", token).await;
    assert_eq!(fire.firings.len(), 6);

    store.delete_topic(&topic("gone")).await.unwrap();
    let settings = TopicSettings { slots: 1, max_bytes: 10, ..TopicSettings::default() };
    store.set_topic(&topic("small"), &settings).await.unwrap();
    let mut changed = definition("c-changed", TASK);
    changed.misfire = "skip".parse().unwrap();
    assert_eq!(store.set_schedule(&set(changed)).await.unwrap(), ScheduleSet::Changed(2));
    let pause = Pause { by: "ops".into(), reason: "why not".into(), at_ms: 1 };
    assert_eq!(store.set_schedule_paused(&key("d-paused"), Some(&pause)).await.unwrap(), Some(true));

    let fired = store.fire(&fire).await.unwrap().unwrap();
    let Fired::Refused(gone) = &fired[0] else { panic!("{fired:?}") };
    assert!(gone.contains("`tenure events topics create gone`"), "{gone}");
    assert_eq!(fired[1..4], [Fired::Yes, Fired::Stale, Fired::Stale]);
    let Fired::Refused(large) = &fired[4] else { panic!("{fired:?}") };
    assert!(large.contains("12 bytes") && large.contains("10"), "{large}");
    assert_eq!(fired[5], Fired::Yes);
    assert_eq!((count(&database, "ticks"), count(&database, "tasks"), count(&database, "events")), (2, 1, 1));
    // What is refused stays where it is, and is stale like any other once it is elsewhere.
    assert_eq!(
        store.schedule(&key("a-gone")).await.unwrap().unwrap().progress.unwrap().next_at_ms,
        3_600_000
    );
    store.set_schedule_paused(&key("a-gone"), Some(&pause)).await.unwrap();
    let again = store.fire(&fire).await.unwrap().unwrap();
    assert_eq!((&again[0], &again[1], &again[4]), (&Fired::Stale, &Fired::Stale, &fired[4]));
}

/// Many topics and queues in one call: each effect goes to its own, and each tick knows which is its.
#[tokio::test(flavor = "multi_thread")]
async fn each_effect_goes_where_it_belongs() {
    let (database, store) = fresh().await;
    for n in 0..5 {
        let settings = TopicSettings { slots: 3, ..TopicSettings::default() };
        store.set_topic(&topic(&format!("t{n}")), &settings).await.unwrap();
    }
    for n in 0..20 {
        let target = match n % 2 {
            0 => format!(r#"{{"event":{{"topic":"t{}"}}}}"#, n % 5),
            _ => format!(r#"{{"task":{{"queue":"q{}","task":{{"kind":"k{}"}}}}}}"#, n % 3, n % 7),
        };
        overdue(&database, &store, definition(&format!("s{n}"), &target)).await;
    }
    let token = leading(&store, "a", &scheduler_election()).await;
    let mut fire = planned(&store, "a", token).await;
    // Some of them are stale, so that places are not all the same.
    for firing in fire.firings.iter_mut().step_by(6) {
        firing.version += 1;
    }
    let fired = store.fire(&fire).await.unwrap().unwrap();
    assert_eq!(fired.iter().filter(|fired| **fired == Fired::Yes).count(), 16);
    let wrong = "SELECT s.name FROM tenure.ticks k JOIN tenure.schedules s ON s.id = k.schedule
                 LEFT JOIN tenure.events e ON e.id = k.event LEFT JOIN tenure.topics t ON t.id = e.topic
                 LEFT JOIN tenure.tasks a ON a.id = k.task LEFT JOIN tenure.queues q ON q.id = a.queue
                 LEFT JOIN tenure.demands d ON d.id = a.demand
                 WHERE coalesce(e.kind = s.name AND t.name = s.definition #>> '{target,event,topic}',
                                a.key LIKE 'default/' || s.name || '@%' AND q.name = s.definition #>> '{target,task,queue}'
                                AND d.kind = s.definition #>> '{target,task,task,kind}', false) IS NOT TRUE";
    assert_eq!(database.psql(wrong).unwrap(), "");
    assert_eq!(count(&database, "ticks"), 16);
}

/// Runs that are over are not asked about for ever.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_over_is_cleared_away() {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    let token = leading(&store, "a", &scheduler_election()).await;
    let mut one = definition("one", TASK);
    one.overlap = Overlap::Skip;
    overdue(&database, &store, one).await;
    let again = "UPDATE tenure.schedule_progress SET due_ms = next_at_ms - 86400000, next_at_ms = next_at_ms - 86400000,
                 last_at_ms = NULL; DELETE FROM tenure.ticks; DELETE FROM tenure.tick_skips";
    for round in 0..3 {
        let fire = planned(&store, "a", token).await;
        assert_eq!(store.fire(&fire).await.unwrap(), Some(vec![Fired::Yes]));
        assert_eq!(count(&database, "tick_runs"), 1, "{round}");
        assert_eq!(history(&store, "one").await[0].state, TickState::Fired);
        let work = claimed(&store, "q", seat("s", 5)).await;
        store.settle(&[completed(&work[0])]).await.unwrap();
        database.psql(again).unwrap();
        database.psql(&format!("UPDATE tenure.tasks SET key = key || '{round}'")).unwrap();
    }
}

/// Whoever makes a schedule first has made it; whoever comes later is told.
#[tokio::test(flavor = "multi_thread")]
async fn of_many_who_make_a_schedule_one_does() {
    let (_database, store) = fresh().await;
    let wish = SetSchedule { expect: Expect::New, ..set(definition("one", TASK)) };
    let wishes = (0..8).map(|_| store.set_schedule(&wish));
    let made = futures_util::future::try_join_all(wishes).await.unwrap();
    assert_eq!(made.iter().filter(|made| **made == ScheduleSet::Created(1)).count(), 1);
    assert_eq!(made.iter().filter(|made| **made == ScheduleSet::Conflict(Some(1))).count(), 7);
    let versions = (0..8u64).map(|n| {
        let mut other = definition("one", TASK);
        other.jitter_ms = n + 1;
        let wish = SetSchedule { expect: Expect::Version(1), ..set(other) };
        let store = store.clone();
        async move { store.set_schedule(&wish).await.unwrap() }
    });
    let set: Vec<_> = futures_util::future::join_all(versions).await;
    assert_eq!(set.iter().filter(|set| **set == ScheduleSet::Changed(2)).count(), 1);
    assert_eq!(set.iter().filter(|set| **set == ScheduleSet::Conflict(Some(2))).count(), 7);
}

/// However many want one now, each gets one of its own.
#[tokio::test(flavor = "multi_thread")]
async fn triggers_at_one_moment_are_as_many_ticks() {
    let (database, store) = fresh().await;
    store.set_schedule(&set(definition("one", TASK))).await.unwrap();
    let hand = Hand { key: key("one"), ticks: None, payload: None, by: "ops".into(), dry_run: false };
    let hands = futures_util::future::try_join_all((0..8).map(|_| store.fire_by_hand(&hand))).await.unwrap();
    assert!(hands.iter().flatten().flatten().all(|it| matches!(it.outcome, HandOutcome::Fired { .. })));
    assert_eq!((count(&database, "ticks"), count(&database, "tasks")), (8, 8));
    assert_eq!(store.schedule(&key("one")).await.unwrap().unwrap().fired, 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_sets_a_schedule_wakes_the_leader() {
    let (database, store) = fresh().await;
    let other = Postgres::connect(PostgresOptions::new(database.url())).await.unwrap();
    let mut wakes = hearing(&other).await;
    store.set_schedule(&set(definition("one", TASK))).await.unwrap();
    until(&mut wakes, &Wake::Schedules).await;
    let pause = Pause { by: "ops".into(), reason: String::new(), at_ms: 1 };
    store.set_schedule_paused(&key("one"), Some(&pause)).await.unwrap();
    until(&mut wakes, &Wake::Schedules).await;
    store.set_schedule_paused(&key("one"), None).await.unwrap();
    until(&mut wakes, &Wake::Schedules).await;
    store.delete_schedule(&key("one"), None).await.unwrap();
    until(&mut wakes, &Wake::Schedules).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_role_may_do_what_it_must() {
    let database = tenure_testkit::rig::fresh_database().unwrap();
    database.psql(&tenure::backend::roles_sql("postgres:").unwrap()).unwrap();
    migrated(&database.url_as("tenure_owner")).await;
    let store = Postgres::connect(PostgresOptions::new(database.url_as("tenure_runtime"))).await.unwrap();
    store.set_topic(&topic("t"), &TopicSettings::default()).await.unwrap();
    overdue(&database, &store, definition("beep", EVENT)).await;
    let mut one = definition("one", TASK);
    one.overlap = Overlap::Queue;
    overdue(&database, &store, one).await;
    let secret = Some("0123456789abcdef".to_owned());
    store.set_schedule(&SetSchedule { secret, ..set(definition("beep", EVENT)) }).await.unwrap();
    assert_eq!(store.call_secret(&key("beep")).await.unwrap().as_deref(), Some("0123456789abcdef"));
    let token = leading(&store, "a", &scheduler_election()).await;
    let fire = planned(&store, "a", token).await;
    assert_eq!(store.fire(&fire).await.unwrap(), Some(vec![Fired::Yes, Fired::Yes]));
    let hand = Hand { key: key("one"), ticks: None, payload: None, by: "ops".into(), dry_run: false };
    assert!(store.fire_by_hand(&hand).await.unwrap().is_some());

    let reader = Postgres::connect(PostgresOptions::new(database.url_as("tenure_reader"))).await.unwrap();
    let views = reader.schedules(&ScheduleFilter::default()).await.unwrap();
    assert_eq!(views.iter().map(|view| view.signed).collect::<Vec<_>>(), [true, false]);
    assert_eq!(history(&reader, "one").await.len(), 3);
    assert_eq!(reader.schedule_stats().await.unwrap()[0].schedules, 2);
    assert_eq!(reader.call_secret(&key("beep")).await.unwrap_err().kind, Trouble::Denied);
    assert_eq!(reader.fire(&fire).await.unwrap_err().kind, Trouble::Denied);
    assert_eq!(reader.fire_by_hand(&hand).await.unwrap_err().kind, Trouble::Denied);
    for history in ["UPDATE tenure.ticks SET token = 9", "UPDATE tenure.tick_skips SET count = 0"] {
        let refused = database.psql_as("tenure_runtime", history).unwrap_err().to_string();
        assert!(refused.contains("permission denied"), "{refused}");
    }

    database
        .psql("UPDATE tenure.ticks SET decided_ms = 0; UPDATE tenure.tick_skips SET decided_ms = 0")
        .unwrap();
    let ticks = u64::try_from(count(&database, "ticks") + count(&database, "tick_skips")).unwrap();
    assert_eq!(store.prune_ticks(&id("b"), token, 100).await.unwrap(), (0, false), "it does not lead");
    assert_eq!(store.prune_ticks(&id("a"), token, 2).await.unwrap(), (2, true));
    assert_eq!(store.prune_ticks(&id("a"), token, 100).await.unwrap(), (ticks - 2, false));
    let hand = Hand { ticks: Some(vec![3_600_000, 7_200_000]), ..hand };
    let told = store.fire_by_hand(&hand).await.unwrap().unwrap();
    assert!(told.iter().all(|it| it.outcome == HandOutcome::Forgotten), "they may have fired: {told:?}");
    for name in ["one", "beep"] {
        assert_eq!(store.delete_schedule(&key(name), None).await.unwrap(), Some(true));
    }
    for table in [
        "schedules",
        "schedule_progress",
        "schedule_secrets",
        "ticks",
        "tick_skips",
        "tick_runs",
        "tick_strays",
    ] {
        assert_eq!(count(&database, table), 0, "{table}");
    }
}

/// As when a newer program has written it, and an older one leads.
#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_that_can_not_be_read_keeps_none_of_the_others_waiting() {
    let (database, store) = fresh().await;
    for name in ["one", "strange", "two"] {
        overdue(&database, &store, definition(name, TASK)).await;
    }
    let strange =
        r#"UPDATE tenure.schedules SET definition = '{"when":"by the moon"}' WHERE name = 'strange'"#;
    database.psql(strange).unwrap();
    let look = store.due(10).await.unwrap();
    let names: Vec<_> = look.schedules.iter().map(|due| due.key.name.as_str()).collect();
    assert_eq!((names, look.more), (vec!["one", "two"], false));
}

/// Its ticks may be millions: whoever fires does not wait until they are gone.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_deleted_schedule_left_is_cleared_away_in_bites() {
    let (database, store) = fresh().await;
    store.set_schedule(&set(definition("old", TASK))).await.unwrap();
    store.set_schedule(&set(definition("other", TASK))).await.unwrap();
    let many = "INSERT INTO tenure.ticks (schedule, by_hand, at_ms, due_ms, decided_ms, by)
                SELECT s.id, false, n, n, tenure.now_ms(), 'x' FROM tenure.schedules s, generate_series(1, 12000) n";
    database.psql(many).unwrap();
    // As if the process had died before it was through.
    database.psql("SELECT tenure.delete_schedule('default', 'old', NULL)").unwrap();
    assert_eq!((count(&database, "ticks"), count(&database, "tick_strays")), (24_000, 1));
    let token = leading(&store, "a", &scheduler_election()).await;
    assert_eq!(store.prune_ticks(&id("a"), token, 10_000).await.unwrap(), (10_000, true));
    assert_eq!(store.prune_ticks(&id("a"), token, 10_000).await.unwrap(), (2_000, false));
    assert_eq!((count(&database, "ticks"), count(&database, "tick_strays")), (12_000, 0));
    assert_eq!(store.delete_schedule(&key("other"), None).await.unwrap(), Some(true));
    assert_eq!((count(&database, "ticks"), count(&database, "tick_strays")), (0, 0));
}
