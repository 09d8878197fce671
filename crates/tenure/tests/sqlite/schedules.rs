//! Schedules in a file: what the suite that all stores share does not see.

use std::sync::Arc;

use tenure::backend::sqlite::Sqlite;
use tenure_core::port::*;
use tenure_core::schedule::{Definition, Misfire, Overlap, When, plan, put_off, tick_of};
use tenure_core::{Name, Token};
use tenure_testkit::conformance::Actor;

use super::child::open;
use super::claims::{claim, direct, queue, seat};
use super::events::{everything, topic};

pub(crate) const HOUR_MS: i64 = 3_600_000;

/// What is published to the topic of the tests, and what is submitted to its queue.
pub(crate) const EVENT: &str = r#"{"event":{"topic":"t"}}"#;
pub(crate) const TASK: &str = r#"{"task":{"queue":"q"}}"#;

pub(crate) async fn fresh() -> (Sqlite, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("t.db")).await;
    let settings = TopicSettings { slots: 1, ..TopicSettings::default() };
    assert!(store.set_topic(&topic(), &settings).await.unwrap());
    (store, dir)
}

pub(crate) fn key(name: &str) -> ScheduleKey {
    ScheduleKey::new(Name::default_namespace(), name.parse().unwrap())
}

pub(crate) fn hourly(name: &str, target: &str) -> Definition {
    let when: When = "every 1h".parse().unwrap();
    Definition::new(name.parse().unwrap(), when, serde_json::from_str(target).unwrap())
}

pub(crate) fn wish(definition: &Definition) -> SetSchedule {
    SetSchedule {
        namespace: Name::default_namespace(),
        definition: definition.clone(),
        secret: None,
        expect: Expect::Any,
        source: None,
        by: "ada".into(),
    }
}

/// Sets a schedule, and puts its next tick back by so many hours: so many are due, and one.
pub(crate) async fn overdue(store: &Sqlite, definition: &Definition, hours: i64) -> i64 {
    store.set_schedule(&wish(definition)).await.unwrap();
    let back = "UPDATE tenure_schedules SET next_at = next_at - ?2, due_at = due_at - ?2 WHERE name = ?1";
    let back = sqlx::query(back).bind(definition.name.as_str()).bind((hours + 1) * HOUR_MS);
    back.execute(store.pool()).await.unwrap();
    view(store, definition.name.as_str()).await.progress.unwrap().next_at_ms
}

pub(crate) async fn view(store: &Sqlite, name: &str) -> ScheduleView {
    store.schedule(&key(name)).await.unwrap().expect("the schedule")
}

pub(crate) async fn history(store: &Sqlite, name: &str) -> Vec<TickView> {
    store.ticks(&TickFilter { key: key(name), before_ms: None, limit: 1_000 }).await.unwrap()
}

pub(crate) async fn count(store: &Sqlite, table: &str) -> i64 {
    let select = format!("SELECT count(*) FROM {table}");
    sqlx::query_scalar(sqlx::AssertSqlSafe(select)).fetch_one(store.pool()).await.unwrap()
}

/// Who fires.
pub(crate) struct Leader {
    pub(crate) actor: Actor,
    pub(crate) token: Token,
}

impl Leader {
    pub(crate) async fn of(store: &Sqlite) -> Leader {
        let actor = Actor::open(Arc::new(store.clone()), "leader").await;
        actor.stand(&scheduler_election()).await;
        let token = actor.take(&scheduler_election(), 0).await;
        Leader { actor, token }
    }

    /// What it decides about all that is due.
    pub(crate) async fn plan(&self) -> Fire {
        let look = self.actor.store.due(DUE_MAX).await.unwrap();
        let firings = look.schedules.iter().map(|due| plan(due, self.token, look.store_ms)).collect();
        Fire { session: self.actor.id.clone(), token: self.token, firings }
    }

    /// Decides about all that is due, and fires it.
    pub(crate) async fn fire(&self) -> Vec<Fired> {
        let fire = self.plan().await;
        self.actor.store.fire(&fire).await.unwrap().expect("it leads")
    }
}

#[tokio::test]
async fn a_tick_can_be_followed_from_the_clock_to_the_worker() {
    let (store, _dir) = fresh().await;
    let leader = Leader::of(&store).await;
    let at_ms = overdue(&store, &hourly("tidy", TASK), 0).await;
    let look = store.due(10).await.unwrap();
    assert_eq!((look.schedules.len(), look.more, look.next_due_ms), (1, false, None));
    assert_eq!(leader.fire().await, [Fired::Yes]);

    let claimed = claim(&store, &direct("q", seat("w", 5))).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].leader_token, Some(leader.token));
    assert_eq!(tick_of(claimed[0].key.as_deref().unwrap()), Some((key("tidy"), at_ms)));

    let ticks = history(&store, "tidy").await;
    assert_eq!(ticks.len(), 1);
    let tick = &ticks[0];
    assert_eq!((tick.at_ms, tick.state, tick.cause), (at_ms, TickState::Fired, Cause::Clock));
    assert_eq!((tick.token, tick.task, tick.event), (Some(leader.token), Some(claimed[0].id), None));
    assert_eq!(tick.late_ms, tick.decided_ms - at_ms);
    let view = view(&store, "tidy").await;
    assert_eq!((view.fired, view.last_fired_ms), (1, Some(tick.decided_ms)));
    let progress = view.progress.unwrap();
    assert_eq!((progress.next_at_ms, progress.last_at_ms), (at_ms + HOUR_MS, Some(at_ms)));
    assert_eq!(view.due_ms, Some(at_ms + HOUR_MS));
    assert!(store.due(10).await.unwrap().schedules.is_empty());
}

#[tokio::test]
async fn a_tick_can_be_followed_from_the_clock_to_the_event() {
    let (store, _dir) = fresh().await;
    let leader = Leader::of(&store).await;
    let at_ms = overdue(&store, &hourly("tell", EVENT), 0).await;
    assert_eq!(leader.fire().await, [Fired::Yes]);
    let events = everything(&store, 1).await;
    assert_eq!(events.len(), 1);
    assert_eq!((events[0].kind.as_str(), events[0].leader_token), ("tell", Some(leader.token)));
    let tick = &history(&store, "tell").await[0];
    assert_eq!((tick.at_ms, tick.event, tick.task), (at_ms, Some(events[0].id), None));
}

#[tokio::test]
async fn one_that_can_not_be_keeps_none_of_the_others_back() {
    let (store, _dir) = fresh().await;
    let leader = Leader::of(&store).await;
    for (name, target) in [("a", TASK), ("b", r#"{"event":{"topic":"gone"}}"#), ("c", EVENT)] {
        if name == "b" {
            let missing = store.set_schedule(&wish(&hourly(name, target))).await.unwrap_err();
            assert!(missing.message.contains("tenure events topics create gone"), "{missing}");
            let gone = TopicKey::new(Name::default_namespace(), "gone".parse().unwrap());
            store.set_topic(&gone, &TopicSettings::default()).await.unwrap();
            overdue(&store, &hourly(name, target), 0).await;
            assert!(store.delete_topic(&gone).await.unwrap());
        } else {
            overdue(&store, &hourly(name, target), 0).await;
        }
    }
    let before = view(&store, "b").await;
    let fired = leader.fire().await;
    let Fired::Refused(why) = &fired[1] else { panic!("{fired:?}") };
    assert!(why.contains("tenure events topics create gone"), "{why}");
    assert_eq!((&fired[0], &fired[2]), (&Fired::Yes, &Fired::Yes));
    assert_eq!(view(&store, "b").await, before);
    assert!(history(&store, "b").await.is_empty());
    assert_eq!((count(&store, "tenure_ticks").await, everything(&store, 1).await.len()), (2, 1));

    // It is tried again later, from where it is.
    let look = store.due(10).await.unwrap();
    let later = put_off(&look.schedules[0], why, look.store_ms);
    let fire = Fire { session: leader.actor.id.clone(), token: leader.token, firings: vec![later] };
    assert_eq!(store.fire(&fire).await.unwrap(), Some(vec![Fired::Yes]));
    let after = view(&store, "b").await;
    assert_eq!((after.progress, after.trouble.as_ref()), (before.progress, Some(why)));
    assert!(after.due_ms > before.due_ms);
    let stats = store.schedule_stats().await.unwrap();
    assert_eq!((stats.len(), stats[0].schedules, stats[0].troubled, stats[0].overdue), (1, 3, 1, 0));
}

#[tokio::test]
async fn what_was_missed_is_kept_as_one_range_however_much_it_is() {
    let (store, _dir) = fresh().await;
    let leader = Leader::of(&store).await;
    let definition = Definition { misfire: Misfire::FireAll { cap: 2 }, ..hourly("late", TASK) };
    let first = overdue(&store, &definition, 4_999).await;
    assert_eq!(leader.fire().await, [Fired::Yes]);
    let ticks = history(&store, "late").await;
    let told: Vec<_> = ticks.iter().map(|tick| (tick.at_ms, tick.state, tick.count)).collect();
    let at = |n: i64| first + n * HOUR_MS;
    let fired = |n| (at(n), TickState::Fired, 1);
    assert_eq!(told, [fired(4_999), fired(4_998), (at(4_997), TickState::Skipped, 4_998)]);
    assert_eq!(ticks[2].first_ms, Some(first));
    let view = view(&store, "late").await;
    assert_eq!((view.fired, view.skipped), (2, 4_998));
    // Page by page.
    let page = TickFilter { key: key("late"), before_ms: Some(at(4_998)), limit: 5 };
    assert_eq!(store.ticks(&page).await.unwrap(), ticks[2..]);
}

#[tokio::test]
async fn a_run_is_under_way_until_its_task_is_over() {
    let (store, _dir) = fresh().await;
    let leader = Leader::of(&store).await;
    let mut definition = Definition { overlap: Overlap::Skip, ..hourly("alone", TASK) };
    definition.when = "every 1ms".parse().unwrap();
    store.set_schedule(&wish(&definition)).await.unwrap();
    for (finished, running) in [(0, 0), (0, 1), (0, 1), (1, 0), (0, 1)] {
        for task in claim(&store, &direct("q", seat("w", finished))).await {
            let (namespace, outcome) = (Name::default_namespace(), Outcome::Complete(None));
            let done = Settlement { namespace, task: task.id, token: task.token, outcome };
            assert_eq!(store.settle(&[done]).await.unwrap(), [Settled::Now(TaskState::Completed)]);
        }
        let due = loop {
            if let Some(due) = store.due(1).await.unwrap().schedules.pop() {
                break due;
            }
        };
        assert_eq!(due.load.running, running);
        assert_eq!(leader.fire().await, [Fired::Yes]);
    }
    let view = view(&store, "alone").await;
    assert_eq!((view.fired, view.overlapped), (2, 3));
    // What is over is not looked at again.
    assert_eq!(count(&store, "tenure_ticks WHERE tracked = 1").await, 1);
}

#[tokio::test]
async fn a_tick_that_was_decided_about_never_fires_again() {
    let (store, _dir) = fresh().await;
    let leader = Leader::of(&store).await;
    overdue(&store, &hourly("tell", EVENT), 0).await;
    assert_eq!(leader.fire().await, [Fired::Yes]);
    // As if somebody had put the clock back, and defined it anew.
    let back = "UPDATE tenure_schedules SET next_at = next_at - 3600000, due_at = due_at - 3600000";
    sqlx::query(back).execute(store.pool()).await.unwrap();
    assert_eq!(leader.fire().await, [Fired::Yes]);
    assert_eq!((everything(&store, 1).await.len(), view(&store, "tell").await.fired), (1, 1));
    assert!(view(&store, "tell").await.due_ms > Some(tenure::runtime::wall_ms()));
    // As if new rules of a zone had moved the next tick back to one that somebody has fired by hand.
    let moved = "UPDATE tenure_schedules SET next_at = last_at + 1000, due_at = last_at, last_at = NULL";
    sqlx::query(moved).execute(store.pool()).await.unwrap();
    let fire = leader.plan().await;
    assert!(fire.firings[0].ticks[0].at_ms < fire.firings[0].next_at_ms);
    assert_eq!(store.fire(&fire).await.unwrap(), Some(vec![Fired::Yes]));
    assert_eq!((everything(&store, 1).await.len(), view(&store, "tell").await.fired), (1, 1));
}

#[tokio::test]
async fn ten_thousand_fire_in_one_call() {
    let (store, _dir) = fresh().await;
    let leader = Leader::of(&store).await;
    fill(&store, 10_000, 10_000).await;
    let fire = leader.plan().await;
    assert_eq!(fire.firings.len(), 10_000);
    let fired = store.fire(&fire).await.unwrap().unwrap();
    assert!(fired.iter().all(|fired| *fired == Fired::Yes));
    let numbers = [
        count(&store, "tenure_ticks WHERE task IS NOT NULL OR event IS NOT NULL").await,
        count(&store, "tenure_tasks").await,
        count(&store, "tenure_events").await,
        count(&store, "tenure_schedules WHERE fired = 1 AND due_at > unixepoch() * 1000").await,
    ];
    assert_eq!(numbers, [10_000, 5_000, 5_000, 10_000]);
    let twice = store.fire(&fire).await.unwrap().unwrap();
    assert!(twice.iter().all(|fired| *fired == Fired::Stale));
    assert_eq!(count(&store, "tenure_ticks").await, 10_000);

    let again = Fire { firings: vec![fire.firings[0].clone(); 2], ..fire.clone() };
    assert_eq!(store.fire(&again).await.unwrap_err().kind, Trouble::Request);
}

/// Puts schedules into the file, every other one for an event, and so many of them due.
pub(crate) async fn fill(store: &Sqlite, schedules: u32, due: u32) {
    let first = overdue(store, &hourly("model", TASK), 0).await;
    overdue(store, &hourly("teller", EVENT), 0).await;
    let copy = r#"INSERT INTO tenure_schedules
            (namespace, name, version, next_at, last_at, due_at, created_at, updated_at, updated_by, definition)
        WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?1)
        SELECT 'default', 's' || n.n, 1, ?2 + iif(n.n > ?3, 360000000, 0), NULL, ?2 + iif(n.n > ?3, 360000000, 0), 0, 0, 'ada',
               json_set(s.definition, '$.name', 's' || n.n)
        FROM n JOIN tenure_schedules s ON s.name = iif(n.n % 2, 'model', 'teller')"#;
    let copy = sqlx::query(copy).bind(schedules).bind(first).bind(due);
    copy.execute(store.pool()).await.unwrap();
    for name in ["model", "teller"] {
        assert_eq!(store.delete_schedule(&key(name), None).await.unwrap(), Some(true));
    }
}

#[tokio::test]
async fn who_listens_hears_that_schedules_were_set() {
    let (store, _dir) = fresh().await;
    let mut hints = store.wakes();
    store.set_schedule(&wish(&hourly("a", TASK))).await.unwrap();
    while hints.next().await != Some(Wake::Schedules) {}
    let pause = Pause { by: "ada".into(), reason: "a break".into(), at_ms: 7 };
    assert_eq!(store.set_schedule_paused(&key("a"), Some(&pause)).await.unwrap(), Some(true));
    assert_eq!(store.set_schedule_paused(&key("a"), Some(&pause)).await.unwrap(), Some(false));
    let paused = view(&store, "a").await;
    assert_eq!((paused.paused, paused.due_ms), (Some(pause), None));
    while hints.next().await != Some(Wake::Schedules) {}
    assert_eq!(store.set_schedule_paused(&key("a"), None).await.unwrap(), Some(true));
    let resumed = view(&store, "a").await;
    assert_eq!((resumed.paused, resumed.due_ms), (None, resumed.progress.map(|it| it.next_at_ms)));
    while hints.next().await != Some(Wake::Schedules) {}
    assert_eq!(store.delete_schedule(&key("a"), Some(2)).await.unwrap(), Some(false));
    assert_eq!(store.delete_schedule(&key("a"), Some(1)).await.unwrap(), Some(true));
    assert_eq!(store.delete_schedule(&key("a"), None).await.unwrap(), None);
    while hints.next().await != Some(Wake::Schedules) {}
    // And so do sleepers, when there is something for them.
    let leader = Leader::of(&store).await;
    store.doze_topic(&leader.actor.id, &topic()).await.unwrap();
    store.doze(&leader.actor.id, &[queue("q")]).await.unwrap();
    overdue(&store, &hourly("b", TASK), 0).await;
    overdue(&store, &hourly("c", EVENT), 0).await;
    assert_eq!(leader.fire().await, [Fired::Yes, Fired::Yes]);
    let (mut work, mut events) = (false, false);
    while !(work && events) {
        match hints.next().await.unwrap() {
            Wake::Work(key) => work |= key == queue("q"),
            Wake::Events(key) => events |= key == topic(),
            _ => {}
        }
    }
}
