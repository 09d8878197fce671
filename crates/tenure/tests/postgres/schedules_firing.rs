//! A tick fires at most once: crashes, stale leaders, and concurrent firings.

use std::time::Duration;

use tenure::store::postgres::PostgresStore;
use tenure_core::Token;
use tenure_core::port::{
    ElectionAdmin, ElectionStore, ErrorKind, FireOutcome, FireRequest, ScheduleAdmin, ScheduleStore,
    SetScheduleOutcome, scheduler_election,
};
use tenure_core::rules::schedule::OverlapPolicy;
use tenure_testkit::rig::FreshDatabase;

use crate::claims_plans::inject_function_bug;
use crate::schedules::*;
use crate::support::*;

/// The number of rows in each table that a firing writes.
fn row_counts(database: &FreshDatabase) -> Vec<i64> {
    ["ticks", "skipped_ticks", "tracked_runs", "tasks", "events", "commit_batches"]
        .map(|it| count(database, it))
        .to_vec()
}

/// A firing of one tick without a target, as a leader with this token would send it.
fn fire_sql(session: &str, token: Token) -> String {
    let nulls = vec!["NULL"; 16].join(", ");
    format!(
        "SELECT * FROM tenure.fire_schedules('{session}', {}, '{{default}}', '{{one}}', '{{1}}', '{{3600000}}', '{{7200000}}', '{{3600000}}',
             '{{7200000}}', NULL, '{{0}}', '{{1}}', NULL, NULL, NULL, '{{1}}', '{{3600000}}', '{{3600000}}', NULL, {nulls})",
        token.as_u64()
    )
}

/// Whether another session could take the lease before a firing of the leader committed.
async fn taken_before_commit(database: &FreshDatabase, store: &PostgresStore) -> bool {
    let election = scheduler_election();
    let token = leading(store, "a", &election).await;
    joined(store, "b", &election).await;
    overdue(database, store, definition("one", TASK)).await;
    let mut tx = store.pool().begin().await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(fire_sql("a", token))).execute(&mut *tx).await.unwrap();
    let take = takeover("b", &election, token, "a", 0);
    let taken = tokio::select! {
        taken = store.take_lease(&take) => matches!(taken, Ok(Some(_))),
        () = until_blocked(database, 1) => false,
    };
    tx.commit().await.unwrap();
    assert_eq!(count(database, "ticks"), 1);
    taken
}

/// Negative control: the lease is compared without a lock.
#[tokio::test(flavor = "multi_thread")]
async fn without_its_lock_a_stale_leader_fires() {
    let (database, store) = fresh().await;
    assert!(!taken_before_commit(&database, &store).await);
    for weak in ["", "FOR KEY SHARE"] {
        let (database, store) = fresh().await;
        inject_function_bug(&database, "tenure.fire_schedules", &[("FOR SHARE", weak)]);
        assert!(taken_before_commit(&database, &store).await, "{weak:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_leader_fires_nothing() {
    let (database, store) = fresh().await;
    let election = scheduler_election();
    let old = leading(&store, "a", &election).await;
    joined(&store, "b", &election).await;
    overdue(&database, &store, definition("one", TASK)).await;
    let fire = planned(&store, "a", old).await;
    let new = store.take_lease(&takeover("b", &election, old, "a", 0)).await.unwrap().unwrap();
    assert_eq!(store.fire(&fire).await.unwrap(), None);
    assert_eq!(row_counts(&database), [0; 6]);
    // The token and the session must both match.
    let mismatch = FireRequest { token: new, ..fire.clone() };
    assert_eq!(store.fire(&mismatch).await.unwrap(), None);
    let mismatch = FireRequest { session: id("b"), ..fire };
    assert_eq!(store.fire(&mismatch).await.unwrap(), None);
    assert_eq!(row_counts(&database), [0; 6]);
    let fire = planned(&store, "b", new).await;
    assert_eq!(store.fire(&fire).await.unwrap(), Some(vec![FireOutcome::Fired]));
}

/// If the backend is terminated between any two statements of a firing, nothing is written, and a retry fires once.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_two_statements_leaves_no_rows() {
    let statements = [
        ("tenure.fire_schedules", "    IF cardinality(tick_firings) > 0 THEN"),
        ("tenure.fire_schedules", "    IF skipped IS NOT NULL THEN"),
        ("tenure.fire_schedules", "    IF tracking_ids IS NOT NULL THEN"),
        ("tenure.fire_schedules", "    RETURN NEXT;\nEND"),
        ("tenure.record_ticks", "    IF event_indexes IS NOT NULL THEN"),
        ("tenure.record_ticks", "    INSERT INTO tenure.ticks"),
        ("tenure.record_ticks", "    IF tracked IS NOT NULL"),
        ("tenure.assign_offsets_on_commit", "        IF has_waiter THEN"),
    ];
    for (function, statement) in statements {
        let (database, store) = crate::events::with_topic(4).await;
        let mut tracked = definition("tracked", TASK);
        tracked.overlap_policy = OverlapPolicy::Skip;
        overdue(&database, &store, tracked).await;
        overdue(&database, &store, definition("beep", EVENT)).await;
        let token = leading(&store, "a", &scheduler_election()).await;
        let fire = planned(&store, "a", token).await;
        let original = database.psql(&format!("SELECT pg_get_functiondef('{function}'::regproc)")).unwrap();
        let crash =
            format!("    PERFORM pg_terminate_backend(pg_backend_pid()), pg_sleep(3600);\n{statement}");
        inject_function_bug(&database, function, &[(statement, &crash)]);
        store.fire(&fire).await.unwrap_err();
        assert_eq!(row_counts(&database), [0; 6], "{function}: {statement}");
        let due = store.due_schedules(10).await.unwrap().schedules;
        assert!(
            due.iter().all(|due| due.tick_state.next_tick_at_ms == 3_600_000) && due.len() == 2,
            "{statement}"
        );

        database.psql(&original).unwrap();
        assert_eq!(
            store.fire(&fire).await.unwrap(),
            Some(vec![FireOutcome::Fired; 2]),
            "{function}: {statement}"
        );
        assert_eq!(row_counts(&database), [2, 2, 1, 1, 1, 1], "{function}: {statement}");
        // A request sent again, as if the response had been lost.
        assert_eq!(store.fire(&fire).await.unwrap(), Some(vec![FireOutcome::Stale; 2]));
        assert_eq!(row_counts(&database), [2, 2, 1, 1, 1, 1], "{function}: {statement}");
    }
}

/// Sends the same firing four times concurrently. Returns how many calls fired, and the number of ticks.
async fn fire_concurrently(database: &FreshDatabase, store: &PostgresStore) -> (usize, i64) {
    overdue(database, store, definition("one", TASK)).await;
    let token = leading(store, "a", &scheduler_election()).await;
    let fire = planned(store, "a", token).await;
    let all = futures_util::future::join_all((0..4).map(|_| store.fire(&fire))).await;
    let fired = all.into_iter().filter(|fired| *fired == Ok(Some(vec![FireOutcome::Fired]))).count();
    (fired, count(database, "ticks"))
}

#[tokio::test(flavor = "multi_thread")]
async fn of_concurrent_firings_one_succeeds() {
    let (database, store) = fresh().await;
    assert_eq!(fire_concurrently(&database, &store).await, (1, 1));
    // Negative control: a firing is not compared with the stored state. Even then, no tick is recorded twice.
    let (database, store) = fresh().await;
    inject_function_bug(
        &database,
        "tenure.advance_schedules",
        &[("AND p.next_tick_at_ms = g.next_tick", "")],
    );
    let (fired, ticks) = fire_concurrently(&database, &store).await;
    assert!(fired > 1, "the control has no effect");
    assert_eq!((ticks, count(&database, "tasks")), (1, 1));
}

/// The scheduler does not fire a tick again that an operator fired manually.
#[tokio::test(flavor = "multi_thread")]
async fn a_tick_does_not_fire_again() {
    let (database, store) = fresh().await;
    let mut all = definition("one", TASK);
    all.misfire_policy = "fire_all(3)".parse().unwrap();
    overdue(&database, &store, all).await;
    let token = leading(&store, "a", &scheduler_election()).await;
    let fire = planned(&store, "a", token).await;
    let at_ms = fire.firings[0].ticks[1].tick_at_ms;
    let manual = format!(
        "INSERT INTO tenure.ticks (schedule_id, manual, tick_at_ms, due_at_ms, decided_at_ms, decided_by)
         SELECT id, false, {at_ms}, {at_ms}, 1, 'ops' FROM tenure.schedules"
    );
    database.psql(&manual).unwrap();
    assert_eq!(store.fire(&fire).await.unwrap(), Some(vec![FireOutcome::Fired]));
    assert_eq!((count(&database, "ticks"), count(&database, "tasks")), (3, 2));
    assert_eq!(store.schedule(&key("one")).await.unwrap().unwrap().fired_count, 2);
}

/// A change of a schedule waits for a concurrent firing, and then continues from the new state.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_after_a_concurrent_tick_uses_the_new_state() {
    let (database, store) = fresh().await;
    overdue(&database, &store, definition("one", TASK)).await;
    let token = leading(&store, "a", &scheduler_election()).await;
    let mut tx = store.pool().begin().await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(fire_sql("a", token))).execute(&mut *tx).await.unwrap();
    let mut other = definition("one", TASK);
    other.misfire_policy = "skip".parse().unwrap();
    let request = set(other);
    let setting = store.set_schedule(&request);
    let committing = async {
        until_blocked(&database, 1).await;
        tx.commit().await.unwrap();
    };
    let (set, ()) = tokio::join!(setting, committing);
    assert_eq!(set.unwrap(), SetScheduleOutcome::Updated(2));
    // The tick times did not change: the next tick is the one after the tick that fired.
    let view = store.schedule(&key("one")).await.unwrap().unwrap();
    assert_eq!((view.tick_state.unwrap().next_tick_at_ms, view.overlapped_count), (7_200_000, 1));
}

/// A leader suspended in its transaction blocks others no longer than its lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_firing_takes_no_longer_than_the_lease() {
    let (database, store) = fresh().await;
    let election = scheduler_election();
    opened_for(&store, "a", Duration::from_millis(300)).await;
    store.join_election(&candidacy("a", &election)).await.unwrap();
    let seen = ElectionAdmin::election(&store, &election).await.unwrap().unwrap().leases[0].token;
    let token = store.take_lease(&free_take("a", &election, seen)).await.unwrap().unwrap();
    overdue(&database, &store, definition("one", TASK)).await;
    let fire = planned(&store, "a", token).await;
    inject_function_bug(
        &database,
        "tenure.fire_schedules",
        &[("    RETURN NEXT;\nEND", "    PERFORM pg_sleep(3600);\n    RETURN NEXT;\nEND")],
    );
    let error = store.fire(&fire).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Timeout, "{error}");
    assert_eq!(row_counts(&database), [0; 6]);
}
