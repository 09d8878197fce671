//! What people do with schedules, and what is forgotten.

use tenure_core::port::*;
use tenure_core::{Name, Token};

use super::events::everything;
use super::schedules::{
    EVENT, HOUR_MS, Leader, TASK, count, fresh, history, hourly, key, overdue, view, wish,
};

fn hand(name: &str, ticks: Option<Vec<i64>>) -> Hand {
    Hand { key: key(name), ticks, payload: None, by: "ada".into(), dry_run: false }
}

#[tokio::test]
async fn one_is_fired_now_as_often_as_somebody_wants_it() {
    let (store, _dir) = fresh().await;
    overdue(&store, &hourly("a", EVENT), 0).await;
    let before = view(&store, "a").await;
    for payload in ["1", "2", "3"] {
        let hand = Hand { payload: Some(payload.parse().unwrap()), ..hand("a", None) };
        let fired = store.fire_by_hand(&hand).await.unwrap().unwrap();
        assert!(matches!(fired[0].outcome, HandOutcome::Fired { event: Some(_), task: None }), "{fired:?}");
    }
    let payloads: Vec<_> = everything(&store, 1).await.into_iter().map(|event| event.payload).collect();
    let json = |text: &str| Payload::Json(text.parse().unwrap());
    assert_eq!(payloads, [json("1"), json("2"), json("3")]);
    let ticks = history(&store, "a").await;
    assert_eq!(ticks.len(), 3, "each has an instant of its own");
    assert!(
        ticks.iter().all(|tick| tick.cause == Cause::Trigger && tick.token.is_none() && tick.by == "ada")
    );
    let after = view(&store, "a").await;
    assert_eq!((after.progress, after.due_ms, after.fired), (before.progress, before.due_ms, 3));
    // It is none of the timetable's ticks: that one fires as well.
    assert_eq!(Leader::of(&store).await.fire().await, [Fired::Yes]);
    assert_eq!(view(&store, "a").await.fired, 4);
    assert_eq!(store.fire_by_hand(&hand("nobody", None)).await.unwrap(), None);
}

#[tokio::test]
async fn past_ticks_fire_once_each() {
    let (store, _dir) = fresh().await;
    let first = overdue(&store, &hourly("a", TASK), 2).await;
    assert_eq!(Leader::of(&store).await.fire().await, [Fired::Yes]);
    // Of three, the last fired for all.
    let at = |n: i64| first + n * HOUR_MS;
    let ticks = vec![at(-1), at(0), at(0) + 1, at(1), at(2), at(3), at(1)];
    let dry = Hand { dry_run: true, ..hand("a", Some(ticks.clone())) };
    let would = store.fire_by_hand(&dry).await.unwrap().unwrap();
    assert_eq!((history(&store, "a").await.len(), count(&store, "tenure_tasks").await), (2, 1), "only said");
    let fired = store.fire_by_hand(&hand("a", Some(ticks.clone()))).await.unwrap().unwrap();
    let words = |fired: &[HandFired]| -> String {
        let word = |it: &HandFired| match it.outcome {
            HandOutcome::Fired { .. } => 'f',
            HandOutcome::Already => 'a',
            HandOutcome::Ahead => 'h',
            HandOutcome::NoTick => 'n',
            HandOutcome::Forgotten => 'o',
        };
        fired.iter().map(word).collect()
    };
    assert_eq!((words(&would).as_str(), words(&fired).as_str()), ("ffnfaha", "ffnfaha"));
    let task = |it: &HandFired| match it.outcome {
        HandOutcome::Fired { task, .. } => task,
        _ => None,
    };
    let tasks: Vec<TaskId> = fired.iter().filter_map(task).collect();
    assert_eq!(tasks, [TaskId(2), TaskId(3), TaskId(4)]);
    let again = store.fire_by_hand(&hand("a", Some(ticks))).await.unwrap().unwrap();
    assert_eq!(words(&again), "aanaaha");
    assert_eq!(count(&store, "tenure_tasks").await, 4);
}

#[tokio::test]
async fn editors_do_not_overwrite_each_other() {
    let (store, _dir) = fresh().await;
    let set = |when: &str, expect| {
        let mut definition = hourly("a", TASK);
        definition.when = when.parse().unwrap();
        SetSchedule { expect, ..wish(&definition) }
    };
    let call = async |set: SetSchedule| store.set_schedule(&set).await.unwrap();
    assert_eq!(call(set("every 1h", Expect::Version(1))).await, ScheduleSet::Conflict(None));
    assert_eq!(call(set("every 1h", Expect::New)).await, ScheduleSet::Created(1));
    assert_eq!(call(set("every 1h", Expect::New)).await, ScheduleSet::Conflict(Some(1)));
    assert_eq!(call(set("every 1h", Expect::Any)).await, ScheduleSet::Same(1));
    assert_eq!(call(set("every 2h", Expect::Version(1))).await, ScheduleSet::Changed(2));
    assert_eq!(call(set("every 3h", Expect::Version(1))).await, ScheduleSet::Conflict(Some(2)));
    let sourced = SetSchedule { source: Some("file".into()), ..set("every 2h", Expect::Any) };
    assert_eq!(call(sourced.clone()).await, ScheduleSet::Changed(3));
    let signed = SetSchedule { secret: Some("0123456789abcdef".into()), ..sourced.clone() };
    assert_eq!(call(signed).await, ScheduleSet::Changed(4));
    assert_eq!(call(sourced).await, ScheduleSet::Same(4), "without a secret it keeps the one it has");
    assert_eq!(store.call_secret(&key("a")).await.unwrap().as_deref(), Some("0123456789abcdef"));
    assert!(view(&store, "a").await.signed);
}

#[tokio::test]
async fn lists_go_on_after_the_last_of_a_page() {
    let (store, _dir) = fresh().await;
    for (namespace, name) in [("default", "b"), ("other", "a"), ("default", "a"), ("default", "c")] {
        let namespace: Name = namespace.parse().unwrap();
        let source = (name == "a").then(|| "file".into());
        let set = SetSchedule { namespace, source, ..wish(&hourly(name, TASK)) };
        assert_eq!(store.set_schedule(&set).await.unwrap(), ScheduleSet::Created(1));
    }
    let list = async |filter: ScheduleFilter| -> Vec<String> {
        let views = store.schedules(&filter).await.unwrap();
        views.iter().map(|view| format!("{}/{}", view.namespace, view.definition.name)).collect()
    };
    let all = ScheduleFilter::default;
    assert_eq!(list(all()).await, ["default/a", "default/b", "default/c", "other/a"]);
    let page = ScheduleFilter { after: Some(key("a")), limit: 2, ..all() };
    assert_eq!(list(page).await, ["default/b", "default/c"]);
    let file = ScheduleFilter { source: Some("file".into()), ..all() };
    assert_eq!(list(file.clone()).await, ["default/a", "other/a"]);
    let other = ScheduleFilter { namespace: Some("other".parse().unwrap()), ..file };
    assert_eq!(list(other).await, ["other/a"]);
}

#[tokio::test]
async fn old_ticks_are_forgotten_by_who_leads_and_bite_by_bite() {
    let (store, _dir) = fresh().await;
    let leader = Leader::of(&store).await;
    let mut definition = hourly("a", TASK);
    definition.misfire = "fire_all(3)".parse().unwrap();
    definition.overlap = tenure_core::schedule::Overlap::Queue;
    overdue(&store, &definition, 9).await;
    assert_eq!(leader.fire().await, [Fired::Yes]);
    overdue(&store, &hourly("deleted", TASK), 9).await;
    assert_eq!(leader.fire().await, [Fired::Yes]);
    for table in ["tenure_ticks", "tenure_tick_skips"] {
        let age = format!("UPDATE {table} SET decided_at = decided_at - {TICKS_KEPT_MS} - 1");
        sqlx::query(sqlx::AssertSqlSafe(age)).execute(store.pool()).await.unwrap();
    }
    // As if the process had died before it was through.
    let dead = "INSERT INTO tenure_tick_strays SELECT id FROM tenure_schedules WHERE name = 'deleted'";
    for sql in [dead, "DELETE FROM tenure_schedules WHERE name = 'deleted'"] {
        sqlx::query(sql).execute(store.pool()).await.unwrap();
    }
    let session = &leader.actor.id;
    let stale = Token::from_u64(leader.token.as_u64() + 1);
    assert_eq!(store.prune_ticks(session, stale, 100).await.unwrap(), (0, false));
    assert_eq!(store.prune_ticks(session, leader.token, 1).await.unwrap(), (1, true));
    assert_eq!(store.prune_ticks(session, leader.token, 100).await.unwrap(), (2, false));
    assert_eq!(store.prune_ticks(session, leader.token, 100).await.unwrap(), (0, false));
    assert_eq!(count(&store, "tenure_tick_skips").await, 0);
    assert_eq!(count(&store, "tenure_tick_strays").await, 0);
    assert_eq!(history(&store, "a").await.len(), 3, "these are under way, and count");
    let tasks: Vec<TaskId> = history(&store, "a").await.iter().filter_map(|tick| tick.task).collect();
    store.order(&Name::default_namespace(), &tasks, Order::Cancel).await.unwrap();
    let fired: Vec<i64> = history(&store, "a").await.iter().map(|tick| tick.at_ms).collect();
    assert_eq!(store.prune_ticks(session, leader.token, 100).await.unwrap(), (3, false));
    assert!(history(&store, "a").await.is_empty());
    // Nobody knows any more that they fired: so they do not fire again.
    let told = store.fire_by_hand(&hand("a", Some(fired))).await.unwrap().unwrap();
    assert!(told.iter().all(|it| it.outcome == HandOutcome::Forgotten), "{told:?}");
}

#[tokio::test]
async fn a_deleted_schedule_takes_its_history_along_and_nothing_else() {
    let (store, _dir) = fresh().await;
    let leader = Leader::of(&store).await;
    overdue(&store, &hourly("a", TASK), 9).await;
    assert_eq!(leader.fire().await, [Fired::Yes]);
    assert_eq!(store.delete_schedule(&key("a"), None).await.unwrap(), Some(true));
    for table in ["tenure_ticks", "tenure_tick_skips", "tenure_tick_strays"] {
        assert_eq!(count(&store, table).await, 0, "{table}");
    }
    assert_eq!(count(&store, "tenure_tasks").await, 1);
    assert_eq!(store.set_schedule(&wish(&hourly("a", TASK))).await.unwrap(), ScheduleSet::Created(2));
    assert!(history(&store, "a").await.is_empty());
}
