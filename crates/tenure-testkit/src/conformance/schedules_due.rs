//! Due schedules and unfinished runs.

use tenure_core::port::{DueResponse, ScheduleFiring, TaskAction, TaskId, TaskState};
use tenure_core::rules::schedule::{OverlapPolicy, UnfinishedRuns, plan, unfinished_runs};

use super::StoreUnderTest;
use super::test_queue::{TestQueue, pause, queue};
use super::test_schedules::{
    FAR_MS, HOUR_MS, TestScheduler, TestSchedules, exclusive, hourly, key, now, over, task, task_of, then,
};

/// The longest overdue schedules come first, up to the limit; the response has the due time of the next other schedule.
pub async fn due_schedules_are_returned_in_order(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let look = test_schedules.due(10).await;
    assert_eq!((look.schedules.len(), look.has_more, look.next_due_at_ms), (0, false, None));
    assert!(look.store_now_at_ms > 1_577_836_800_000, "the store's wall clock");
    for (name, due_ms) in [("c", 30), ("a", 10), ("d", 40), ("b", 20)] {
        let view = test_schedules.make(hourly(name, task())).await;
        scheduler.fire_one(ScheduleFiring { due_at_ms: Some(due_ms), ..scheduler.plan(&view, FAR_MS) }).await;
    }
    test_schedules.make(hourly("far", task())).await;
    test_schedules.make(over("over", task())).await;
    let all = test_schedules.due(10).await;
    assert_eq!(names(&all), ["a", "b", "c", "d"]);
    assert_eq!((all.has_more, all.next_due_at_ms), (false, Some(FAR_MS)));
    let some = test_schedules.due(2).await;
    assert_eq!((names(&some), some.has_more, some.next_due_at_ms), (vec!["a", "b"], true, Some(30)));
    let exactly = test_schedules.due(4).await;
    assert_eq!((names(&exactly).len(), exactly.has_more, exactly.next_due_at_ms), (4, false, Some(FAR_MS)));
    let view = test_schedules.view(&key("a")).await;
    let due = &all.schedules[0];
    assert_eq!((&due.key, due.version, &due.definition), (&view.key(), view.version, &view.definition));
    assert_eq!(
        (Some(due.tick_state), due.unfinished_runs, due.consecutive_failures),
        (view.tick_state, UnfinishedRuns::default(), 0)
    );
    let stats = &test_schedules.store.schedule_stats().await.unwrap()[0];
    assert_eq!((stats.schedule_count, stats.overdue_count), (6, 4));
    assert!(stats.max_overdue_ms > 1_577_836_800_000, "since 1970: {}", stats.max_overdue_ms);
}

/// A paused schedule is not due until it is resumed; a deleted schedule is never due.
pub async fn a_paused_schedule_is_not_due(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let view = test_schedules.make(hourly("n", task())).await;
    scheduler.run_and_stay_due(&view, FAR_MS).await;
    assert_eq!(names(&test_schedules.due(10).await), ["n"]);
    test_schedules.store.set_schedule_paused(&key("n"), Some(&pause())).await.unwrap();
    let look = test_schedules.due(10).await;
    assert_eq!((names(&look).len(), look.next_due_at_ms), (0, None));
    test_schedules.store.set_schedule_paused(&key("n"), None).await.unwrap();
    assert_eq!(test_schedules.due(10).await.next_due_at_ms, Some(FAR_MS + HOUR_MS));
    test_schedules.store.delete_schedule(&key("n"), None).await.unwrap();
    assert_eq!(test_schedules.due(10).await.next_due_at_ms, None);
}

/// A schedule is returned from its first tick on, by the store's clock.
pub async fn a_schedule_that_becomes_due_is_returned(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let mut definition = over("n", task());
    definition.expression = "every 1ms".parse().unwrap();
    (definition.start_at_ms, definition.end_at_ms) = (None, None);
    test_schedules.make(definition).await;
    let look = loop {
        let look = test_schedules.due(10).await;
        if !look.schedules.is_empty() {
            break look;
        }
    };
    let due = &look.schedules[0];
    assert!(due.tick_state.next_tick_at_ms <= look.store_now_at_ms);
    let firing = plan(due, scheduler.token, look.store_now_at_ms);
    let last = firing.ticks.last().unwrap().tick_at_ms;
    assert!(
        last <= look.store_now_at_ms && firing.tick_state.unwrap().next_tick_at_ms > look.store_now_at_ms
    );
    scheduler.fire_one(firing).await;
    assert_eq!(test_schedules.view(&key("n")).await.tick_state.unwrap().last_tick_at_ms, Some(last));
}

/// A run is unfinished until its task is completed, dead or cancelled.
pub async fn a_run_is_unfinished_until_its_task_is_finished(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let test_queue = TestQueue { store: test_schedules.store.clone(), key: queue("q") };
    let mut view = test_schedules.make(exclusive("n", OverlapPolicy::Skip)).await;
    for (n, end) in (0..).zip(["complete", "kill", "cancel"]) {
        scheduler.run_and_stay_due(&view, FAR_MS + n * HOUR_MS).await;
        assert_eq!(load(&test_schedules, "n").await, Some(unfinished_runs(1)), "{end}: it waits");
        let claimed = test_queue.claim_one().await;
        assert_eq!(load(&test_schedules, "n").await, Some(unfinished_runs(1)), "{end}: it runs");
        match end {
            "complete" => test_queue.complete(&claimed).await,
            "kill" => test_queue.kill(&claimed).await,
            _ => {
                let namespace = &test_queue.key.namespace;
                test_queue
                    .store
                    .apply_task_action(namespace, &[claimed.id], TaskAction::Cancel)
                    .await
                    .unwrap();
                assert_eq!(test_schedules.task(claimed.id).await.state, TaskState::Cancelled);
            }
        }
        assert_eq!(load(&test_schedules, "n").await, Some(unfinished_runs(0)), "{end}: it is finished");
        view = test_schedules.view(&key("n")).await;
    }
}

/// A tick during an unfinished run has no effect and is recorded as overlapped; the next tick after the run fires.
pub async fn runs_do_not_overlap_under_the_skip_policy(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let test_queue = TestQueue { store: test_schedules.store.clone(), key: queue("q") };
    let view = test_schedules.make(exclusive("n", OverlapPolicy::Skip)).await;
    // Three missed ticks fire together: the first one runs and is unfinished for the other two.
    scheduler.run_and_stay_due(&view, FAR_MS + 2 * HOUR_MS).await;
    let after = test_schedules.view(&key("n")).await;
    assert_eq!((after.fired_count, after.overlapped_count, test_schedules.tasks().await), (1, 2, 1));
    decide(&test_schedules, &scheduler, FAR_MS + 3 * HOUR_MS).await;
    let after = test_schedules.view(&key("n")).await;
    assert_eq!((after.fired_count, after.overlapped_count, test_schedules.tasks().await), (1, 3, 1));
    test_queue.complete(&test_queue.claim_one().await).await;
    decide(&test_schedules, &scheduler, FAR_MS + 4 * HOUR_MS).await;
    let after = test_schedules.view(&key("n")).await;
    assert_eq!((after.fired_count, after.overlapped_count, test_schedules.tasks().await), (2, 3, 2));
}

/// The tasks of queued runs wait in their queue and run one after the other.
pub async fn queued_runs_run_one_by_one(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let test_queue = TestQueue { store: test_schedules.store.clone(), key: queue("q") };
    let view = test_schedules.make(exclusive("n", OverlapPolicy::Queue)).await;
    scheduler.run_and_stay_due(&view, FAR_MS + 2 * HOUR_MS).await;
    assert_eq!(load(&test_schedules, "n").await, Some(unfinished_runs(3)));
    for n in 0..3 {
        let claimed = test_queue.claim_one().await;
        assert_eq!(
            claimed.idempotency_key.as_deref(),
            Some(format!("default/n@2100-01-01T0{n}:00:00Z").as_str())
        );
        test_queue.complete(&claimed).await;
        assert_eq!(load(&test_schedules, "n").await, Some(unfinished_runs(2 - n)));
    }
    let after = test_schedules.view(&key("n")).await;
    assert_eq!((after.fired_count, after.overlapped_count), (3, 0));
}

/// A manual run overlaps neither with scheduled runs nor with other manual runs: its concurrency key makes it wait.
pub async fn manual_runs_wait_for_unfinished_ones(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let test_queue = TestQueue { store: test_schedules.store.clone(), key: queue("q") };
    let view = test_schedules.make(exclusive("n", OverlapPolicy::Skip)).await;
    let firing =
        ScheduleFiring { ticks: vec![], due_at_ms: Some(1), ..scheduler.plan(&view, FAR_MS + HOUR_MS) };
    scheduler.fire_one(firing).await;
    test_schedules.fire_manually(&then(&key("n"), &[FAR_MS, FAR_MS + HOUR_MS])).await;
    test_schedules.fire_manually(&now(&key("n"))).await;
    for left in [2, 1, 0] {
        let claimed = test_queue.claim_one().await;
        assert!(test_queue.claim_all().await.is_empty(), "one at a time; {left} wait");
        test_queue.complete(&claimed).await;
    }
}

/// Runs that may overlap do not count as unfinished.
pub async fn overlapping_runs_are_not_counted(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let view = test_schedules.make(hourly("n", task())).await;
    scheduler.run_and_stay_due(&view, FAR_MS + 2 * HOUR_MS).await;
    assert_eq!(
        (load(&test_schedules, "n").await, test_schedules.tasks().await),
        (Some(UnfinishedRuns::default()), 3)
    );
}

/// Manual runs count as unfinished too.
pub async fn manual_runs_are_counted(subject: &StoreUnderTest) {
    let (test_schedules, scheduler) = (TestSchedules::of(subject).await, TestScheduler::of(subject).await);
    let view = test_schedules.make(exclusive("n", OverlapPolicy::Skip)).await;
    let firing =
        ScheduleFiring { ticks: vec![], due_at_ms: Some(1), ..scheduler.plan(&view, FAR_MS + HOUR_MS) };
    scheduler.fire_one(firing).await;
    assert_eq!(load(&test_schedules, "n").await, Some(unfinished_runs(0)));
    let triggered: TaskId = task_of(&test_schedules.fire_manually(&now(&key("n"))).await[0]);
    assert_eq!(load(&test_schedules, "n").await, Some(unfinished_runs(1)));
    test_schedules.fire_manually(&then(&key("n"), &[FAR_MS])).await;
    assert_eq!(load(&test_schedules, "n").await, Some(unfinished_runs(2)));
    test_schedules
        .store
        .apply_task_action(&key("n").namespace, &[triggered], TaskAction::Cancel)
        .await
        .unwrap();
    assert_eq!(load(&test_schedules, "n").await, Some(unfinished_runs(1)));
    decide(&test_schedules, &scheduler, FAR_MS + 2 * HOUR_MS).await;
    assert_eq!(test_schedules.view(&key("n")).await.overlapped_count, 1);
}

fn names(look: &DueResponse) -> Vec<&str> {
    look.schedules.iter().map(|due| due.key.name.as_str()).collect()
}

/// The unfinished runs of a schedule, if it is due.
async fn load(test_schedules: &TestSchedules, name: &str) -> Option<UnfinishedRuns> {
    let look = test_schedules.due(10).await;
    look.schedules.iter().find(|due| due.key == key(name)).map(|due| due.unfinished_runs)
}

/// Decides about the due schedule as of an instant and makes it due again.
async fn decide(test_schedules: &TestSchedules, scheduler: &TestScheduler, now_ms: i64) {
    let look = test_schedules.due(10).await;
    assert_eq!(look.schedules.len(), 1);
    scheduler
        .fire_one(ScheduleFiring { due_at_ms: Some(1), ..plan(&look.schedules[0], scheduler.token, now_ms) })
        .await;
}
