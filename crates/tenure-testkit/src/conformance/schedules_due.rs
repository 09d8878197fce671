//! Claims about what a leader is shown: what is due, and the runs that are under way.

use tenure_core::port::{DueLook, Firing, Order, TaskId, TaskState};
use tenure_core::schedule::{Load, Overlap, load_of, plan};

use super::Subject;
use super::floor::{Floor, pause, queue};
use super::schedules_wall::{
    Chief, FAR_MS, HOUR_MS, Wall, exclusive, hourly, key, now, over, task, task_of, then,
};

/// The longest due first, as many as asked for; what is not due is told by when it will be.
pub async fn what_is_due_is_shown_in_order(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let look = wall.due(10).await;
    assert_eq!((look.schedules.len(), look.more, look.next_due_ms), (0, false, None));
    assert!(look.store_ms > 1_577_836_800_000, "the store's wall clock");
    for (name, due_ms) in [("c", 30), ("a", 10), ("d", 40), ("b", 20)] {
        let view = wall.make(hourly(name, task())).await;
        chief.fire_one(Firing { due_ms: Some(due_ms), ..chief.plan(&view, FAR_MS) }).await;
    }
    wall.make(hourly("far", task())).await;
    wall.make(over("over", task())).await;
    let all = wall.due(10).await;
    assert_eq!(names(&all), ["a", "b", "c", "d"]);
    assert_eq!((all.more, all.next_due_ms), (false, Some(FAR_MS)));
    let some = wall.due(2).await;
    assert_eq!((names(&some), some.more, some.next_due_ms), (vec!["a", "b"], true, Some(30)));
    let exactly = wall.due(4).await;
    assert_eq!((names(&exactly).len(), exactly.more, exactly.next_due_ms), (4, false, Some(FAR_MS)));
    let view = wall.view(&key("a")).await;
    let due = &all.schedules[0];
    assert_eq!((&due.key, due.version, &due.definition), (&view.key(), view.version, &view.definition));
    assert_eq!((Some(due.progress), due.load, due.strikes), (view.progress, Load::default(), 0));
    let stats = &wall.store.schedule_stats().await.unwrap()[0];
    assert_eq!((stats.schedules, stats.overdue), (6, 4));
    assert!(stats.overdue_ms > 1_577_836_800_000, "since 1970: {}", stats.overdue_ms);
}

/// Until it is resumed; and a deleted one never.
pub async fn what_is_paused_is_not_due(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let view = wall.make(hourly("n", task())).await;
    chief.run_and_come_back(&view, FAR_MS).await;
    assert_eq!(names(&wall.due(10).await), ["n"]);
    wall.store.set_schedule_paused(&key("n"), Some(&pause())).await.unwrap();
    let look = wall.due(10).await;
    assert_eq!((names(&look).len(), look.next_due_ms), (0, None));
    wall.store.set_schedule_paused(&key("n"), None).await.unwrap();
    assert_eq!(wall.due(10).await.next_due_ms, Some(FAR_MS + HOUR_MS));
    wall.store.delete_schedule(&key("n"), None).await.unwrap();
    assert_eq!(wall.due(10).await.next_due_ms, None);
}

/// From the first tick on, by the store's clock, with nobody's help.
pub async fn what_falls_due_is_shown(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let mut definition = over("n", task());
    definition.when = "every 1ms".parse().unwrap();
    (definition.start_ms, definition.end_ms) = (None, None);
    wall.make(definition).await;
    let look = loop {
        let look = wall.due(10).await;
        if !look.schedules.is_empty() {
            break look;
        }
    };
    let due = &look.schedules[0];
    assert!(due.progress.next_at_ms <= look.store_ms);
    let firing = plan(due, chief.token, look.store_ms);
    let last = firing.ticks.last().unwrap().at_ms;
    assert!(last <= look.store_ms && firing.progress.unwrap().next_at_ms > look.store_ms);
    chief.fire_one(firing).await;
    assert_eq!(wall.view(&key("n")).await.progress.unwrap().last_at_ms, Some(last));
}

/// A run is under way until its task is completed, dead or cancelled.
pub async fn a_run_is_under_way_until_its_task_is_over(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let floor = Floor { store: wall.store.clone(), key: queue("q") };
    let mut view = wall.make(exclusive("n", Overlap::Skip)).await;
    for (n, end) in (0..).zip(["complete", "kill", "cancel"]) {
        chief.run_and_come_back(&view, FAR_MS + n * HOUR_MS).await;
        assert_eq!(load(&wall, "n").await, Some(load_of(1)), "{end}: it waits");
        let claimed = floor.claim_one().await;
        assert_eq!(load(&wall, "n").await, Some(load_of(1)), "{end}: it runs");
        match end {
            "complete" => floor.complete(&claimed).await,
            "kill" => floor.kill(&claimed).await,
            _ => {
                let namespace = &floor.key.namespace;
                floor.store.order(namespace, &[claimed.id], Order::Cancel).await.unwrap();
                assert_eq!(wall.task(claimed.id).await.state, TaskState::Cancelled);
            }
        }
        assert_eq!(load(&wall, "n").await, Some(load_of(0)), "{end}: it is over");
        view = wall.view(&key("n")).await;
    }
}

/// A tick that comes meanwhile does nothing, and says so; the next one after the run does.
pub async fn runs_that_may_not_overlap_do_not(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let floor = Floor { store: wall.store.clone(), key: queue("q") };
    let view = wall.make(exclusive("n", Overlap::Skip)).await;
    // Three missed ticks at once: the first runs, and is under way for the others.
    chief.run_and_come_back(&view, FAR_MS + 2 * HOUR_MS).await;
    let after = wall.view(&key("n")).await;
    assert_eq!((after.fired, after.overlapped, wall.tasks().await), (1, 2, 1));
    decide(&wall, &chief, FAR_MS + 3 * HOUR_MS).await;
    let after = wall.view(&key("n")).await;
    assert_eq!((after.fired, after.overlapped, wall.tasks().await), (1, 3, 1));
    floor.complete(&floor.claim_one().await).await;
    decide(&wall, &chief, FAR_MS + 4 * HOUR_MS).await;
    let after = wall.view(&key("n")).await;
    assert_eq!((after.fired, after.overlapped, wall.tasks().await), (2, 3, 2));
}

/// They wait in their queue, one after the other.
pub async fn runs_that_stand_in_line_run_one_by_one(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let floor = Floor { store: wall.store.clone(), key: queue("q") };
    let view = wall.make(exclusive("n", Overlap::Queue)).await;
    chief.run_and_come_back(&view, FAR_MS + 2 * HOUR_MS).await;
    assert_eq!(load(&wall, "n").await, Some(load_of(3)));
    for n in 0..3 {
        let claimed = floor.claim_one().await;
        assert_eq!(claimed.key.as_deref(), Some(format!("default/n@2100-01-01T0{n}:00:00Z").as_str()));
        floor.complete(&claimed).await;
        assert_eq!(load(&wall, "n").await, Some(load_of(2 - n)));
    }
    let after = wall.view(&key("n")).await;
    assert_eq!((after.fired, after.overlapped), (3, 0));
}

/// Not with those of the clock, and not with each other: the store itself keeps them apart.
pub async fn runs_by_hand_wait_for_those_under_way(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let floor = Floor { store: wall.store.clone(), key: queue("q") };
    let view = wall.make(exclusive("n", Overlap::Skip)).await;
    let firing = Firing { ticks: vec![], due_ms: Some(1), ..chief.plan(&view, FAR_MS + HOUR_MS) };
    chief.fire_one(firing).await;
    wall.hand(&then(&key("n"), &[FAR_MS, FAR_MS + HOUR_MS])).await;
    wall.hand(&now(&key("n"))).await;
    for left in [2, 1, 0] {
        let claimed = floor.claim_one().await;
        assert!(floor.claim_all().await.is_empty(), "one at a time; {left} wait");
        floor.complete(&claimed).await;
    }
}

/// Where they may, nothing is counted.
pub async fn runs_that_may_overlap_are_not_counted(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let view = wall.make(hourly("n", task())).await;
    chief.run_and_come_back(&view, FAR_MS + 2 * HOUR_MS).await;
    assert_eq!((load(&wall, "n").await, wall.tasks().await), (Some(Load::default()), 3));
}

/// What somebody fired by hand is under way, too.
pub async fn runs_by_hand_are_counted(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let view = wall.make(exclusive("n", Overlap::Skip)).await;
    let firing = Firing { ticks: vec![], due_ms: Some(1), ..chief.plan(&view, FAR_MS + HOUR_MS) };
    chief.fire_one(firing).await;
    assert_eq!(load(&wall, "n").await, Some(load_of(0)));
    let triggered: TaskId = task_of(&wall.hand(&now(&key("n"))).await[0]);
    assert_eq!(load(&wall, "n").await, Some(load_of(1)));
    wall.hand(&then(&key("n"), &[FAR_MS])).await;
    assert_eq!(load(&wall, "n").await, Some(load_of(2)));
    wall.store.order(&key("n").namespace, &[triggered], Order::Cancel).await.unwrap();
    assert_eq!(load(&wall, "n").await, Some(load_of(1)));
    decide(&wall, &chief, FAR_MS + 2 * HOUR_MS).await;
    assert_eq!(wall.view(&key("n")).await.overlapped, 1);
}

fn names(look: &DueLook) -> Vec<&str> {
    look.schedules.iter().map(|due| due.key.name.as_str()).collect()
}

/// The load of a schedule, if it is due.
async fn load(wall: &Wall, name: &str) -> Option<Load> {
    let look = wall.due(10).await;
    look.schedules.iter().find(|due| due.key == key(name)).map(|due| due.load)
}

/// Decides about the one that is due, as a leader does, as of a moment; and it is due again.
async fn decide(wall: &Wall, chief: &Chief, now_ms: i64) {
    let look = wall.due(10).await;
    assert_eq!(look.schedules.len(), 1);
    chief.fire_one(Firing { due_ms: Some(1), ..plan(&look.schedules[0], chief.token, now_ms) }).await;
}
