//! Manual firing, administration and pruning of schedules.

use tenure_core::port::*;
use tenure_core::{Name, Token};

use super::events::all_events;
use super::schedules::{
    EVENT, HOUR_MS, TASK, TestScheduler, count, fresh, history, hourly, key, overdue, set_request, view,
};

fn manual_fire(name: &str, ticks: Option<Vec<i64>>) -> ManualFire {
    ManualFire { key: key(name), ticks, payload: None, requested_by: "ada".into(), dry_run: false }
}

#[tokio::test]
async fn a_schedule_can_be_triggered_several_times() {
    let (store, _dir) = fresh().await;
    overdue(&store, &hourly("a", EVENT), 0).await;
    let before = view(&store, "a").await;
    for payload in ["1", "2", "3"] {
        let manual_fire = ManualFire { payload: Some(payload.parse().unwrap()), ..manual_fire("a", None) };
        let fired = store.fire_manually(&manual_fire).await.unwrap().unwrap();
        assert!(
            matches!(fired[0].outcome, ManualFireOutcome::Fired { event_id: Some(_), task_id: None }),
            "{fired:?}"
        );
    }
    let payloads: Vec<_> = all_events(&store, 1).await.into_iter().map(|event| event.payload).collect();
    let json = |text: &str| Payload::Json(text.parse().unwrap());
    assert_eq!(payloads, [json("1"), json("2"), json("3")]);
    let ticks = history(&store, "a").await;
    assert_eq!(ticks.len(), 3, "each has its own instant");
    assert!(
        ticks
            .iter()
            .all(|tick| tick.cause == TickCause::Trigger && tick.token.is_none() && tick.decided_by == "ada")
    );
    let after = view(&store, "a").await;
    assert_eq!(
        (after.tick_state, after.due_at_ms, after.fired_count),
        (before.tick_state, before.due_at_ms, 3)
    );
    // A manual tick does not replace the next tick of the schedule.
    assert_eq!(TestScheduler::of(&store).await.fire().await, [FireOutcome::Fired]);
    assert_eq!(view(&store, "a").await.fired_count, 4);
    assert_eq!(store.fire_manually(&manual_fire("missing", None)).await.unwrap(), None);
}

#[tokio::test]
async fn a_backfill_fires_each_past_tick_once() {
    let (store, _dir) = fresh().await;
    let first = overdue(&store, &hourly("a", TASK), 2).await;
    assert_eq!(TestScheduler::of(&store).await.fire().await, [FireOutcome::Fired]);
    // Only the last of three missed ticks fired.
    let at = |n: i64| first + n * HOUR_MS;
    let ticks = vec![at(-1), at(0), at(0) + 1, at(1), at(2), at(3), at(1)];
    let dry = ManualFire { dry_run: true, ..manual_fire("a", Some(ticks.clone())) };
    let would = store.fire_manually(&dry).await.unwrap().unwrap();
    assert_eq!(
        (history(&store, "a").await.len(), count(&store, "tenure_tasks").await),
        (2, 1),
        "a dry run changes nothing"
    );
    let fired = store.fire_manually(&manual_fire("a", Some(ticks.clone()))).await.unwrap().unwrap();
    let codes = |fired: &[ManualFireResult]| -> String {
        let code = |it: &ManualFireResult| match it.outcome {
            ManualFireOutcome::Fired { .. } => 'f',
            ManualFireOutcome::AlreadyFired => 'a',
            ManualFireOutcome::InFuture => 'i',
            ManualFireOutcome::NotATick => 'n',
            ManualFireOutcome::Pruned => 'p',
        };
        fired.iter().map(code).collect()
    };
    assert_eq!((codes(&would).as_str(), codes(&fired).as_str()), ("ffnfaia", "ffnfaia"));
    let task_id = |it: &ManualFireResult| match it.outcome {
        ManualFireOutcome::Fired { task_id, .. } => task_id,
        _ => None,
    };
    let tasks: Vec<TaskId> = fired.iter().filter_map(task_id).collect();
    assert_eq!(tasks, [TaskId(2), TaskId(3), TaskId(4)]);
    let again = store.fire_manually(&manual_fire("a", Some(ticks))).await.unwrap().unwrap();
    assert_eq!(codes(&again), "aanaaia");
    assert_eq!(count(&store, "tenure_tasks").await, 4);
}

#[tokio::test]
async fn a_precondition_prevents_lost_updates() {
    let (store, _dir) = fresh().await;
    let set = |expression: &str, precondition| {
        let mut definition = hourly("a", TASK);
        definition.expression = expression.parse().unwrap();
        SetScheduleRequest { precondition, ..set_request(&definition) }
    };
    let call = async |set: SetScheduleRequest| store.set_schedule(&set).await.unwrap();
    assert_eq!(call(set("every 1h", Precondition::Version(1))).await, SetScheduleOutcome::Conflict(None));
    assert_eq!(call(set("every 1h", Precondition::New)).await, SetScheduleOutcome::Created(1));
    assert_eq!(call(set("every 1h", Precondition::New)).await, SetScheduleOutcome::Conflict(Some(1)));
    assert_eq!(call(set("every 1h", Precondition::Any)).await, SetScheduleOutcome::Unchanged(1));
    assert_eq!(call(set("every 2h", Precondition::Version(1))).await, SetScheduleOutcome::Updated(2));
    assert_eq!(call(set("every 3h", Precondition::Version(1))).await, SetScheduleOutcome::Conflict(Some(2)));
    let sourced = SetScheduleRequest { source: Some("file".into()), ..set("every 2h", Precondition::Any) };
    assert_eq!(call(sourced.clone()).await, SetScheduleOutcome::Updated(3));
    let signed = SetScheduleRequest { secret: Some("0123456789abcdef".into()), ..sourced.clone() };
    assert_eq!(call(signed).await, SetScheduleOutcome::Updated(4));
    assert_eq!(
        call(sourced).await,
        SetScheduleOutcome::Unchanged(4),
        "a request without a secret keeps the stored one"
    );
    assert_eq!(store.webhook_secret(&key("a")).await.unwrap().as_deref(), Some("0123456789abcdef"));
    assert!(view(&store, "a").await.webhook_signed);
}

#[tokio::test]
async fn lists_continue_after_the_last_item_of_a_page() {
    let (store, _dir) = fresh().await;
    for (namespace, name) in [("default", "b"), ("other", "a"), ("default", "a"), ("default", "c")] {
        let namespace: Name = namespace.parse().unwrap();
        let source = (name == "a").then(|| "file".into());
        let set = SetScheduleRequest { namespace, source, ..set_request(&hourly(name, TASK)) };
        assert_eq!(store.set_schedule(&set).await.unwrap(), SetScheduleOutcome::Created(1));
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
async fn the_scheduler_prunes_old_ticks_in_steps() {
    let (store, _dir) = fresh().await;
    let leader = TestScheduler::of(&store).await;
    let mut definition = hourly("a", TASK);
    definition.misfire_policy = "fire_all(3)".parse().unwrap();
    definition.overlap_policy = tenure_core::rules::schedule::OverlapPolicy::Queue;
    overdue(&store, &definition, 9).await;
    assert_eq!(leader.fire().await, [FireOutcome::Fired]);
    overdue(&store, &hourly("deleted", TASK), 9).await;
    assert_eq!(leader.fire().await, [FireOutcome::Fired]);
    for table in ["tenure_ticks", "tenure_skipped_ticks"] {
        let age = format!("UPDATE {table} SET decided_at_ms = decided_at_ms - {TICK_RETENTION_MS} - 1");
        sqlx::query(sqlx::AssertSqlSafe(age)).execute(store.pool()).await.unwrap();
    }
    // Like a process that crashed while it deleted the schedule.
    let dead = "INSERT INTO tenure_orphaned_ticks SELECT id FROM tenure_schedules WHERE name = 'deleted'";
    for sql in [dead, "DELETE FROM tenure_schedules WHERE name = 'deleted'"] {
        sqlx::query(sql).execute(store.pool()).await.unwrap();
    }
    let session = &leader.actor.id;
    let stale = Token::from_u64(leader.token.as_u64() + 1);
    assert_eq!(store.prune_ticks(session, stale, 100).await.unwrap(), (0, false));
    assert_eq!(store.prune_ticks(session, leader.token, 1).await.unwrap(), (1, true));
    assert_eq!(store.prune_ticks(session, leader.token, 100).await.unwrap(), (2, false));
    assert_eq!(store.prune_ticks(session, leader.token, 100).await.unwrap(), (0, false));
    assert_eq!(count(&store, "tenure_skipped_ticks").await, 0);
    assert_eq!(count(&store, "tenure_orphaned_ticks").await, 0);
    assert_eq!(history(&store, "a").await.len(), 3, "ticks with unfinished runs stay");
    let tasks: Vec<TaskId> = history(&store, "a").await.iter().filter_map(|tick| tick.task_id).collect();
    store.apply_task_action(&Name::default_namespace(), &tasks, TaskAction::Cancel).await.unwrap();
    let fired: Vec<i64> = history(&store, "a").await.iter().map(|tick| tick.tick_at_ms).collect();
    assert_eq!(store.prune_ticks(session, leader.token, 100).await.unwrap(), (3, false));
    assert!(history(&store, "a").await.is_empty());
    // Whether pruned ticks fired is unknown, so they do not fire again.
    let results = store.fire_manually(&manual_fire("a", Some(fired))).await.unwrap().unwrap();
    assert!(results.iter().all(|it| it.outcome == ManualFireOutcome::Pruned), "{results:?}");
}

#[tokio::test]
async fn deleting_a_schedule_deletes_its_ticks_only() {
    let (store, _dir) = fresh().await;
    let leader = TestScheduler::of(&store).await;
    overdue(&store, &hourly("a", TASK), 9).await;
    assert_eq!(leader.fire().await, [FireOutcome::Fired]);
    assert_eq!(store.delete_schedule(&key("a"), None).await.unwrap(), Some(true));
    for table in ["tenure_ticks", "tenure_skipped_ticks", "tenure_orphaned_ticks"] {
        assert_eq!(count(&store, table).await, 0, "{table}");
    }
    assert_eq!(count(&store, "tenure_tasks").await, 1);
    assert_eq!(
        store.set_schedule(&set_request(&hourly("a", TASK))).await.unwrap(),
        SetScheduleOutcome::Created(2)
    );
    assert!(history(&store, "a").await.is_empty());
}
