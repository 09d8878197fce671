//! Claims about what the keeper does: what was lost comes back, once, and what is old goes.

use std::time::Duration;

use tenure_core::Token;
use tenure_core::port::{
    NewTask, Order, Outcome, Parent, QueueSettings, Seat, Settled, Submission, TaskState, Tend,
    claims_election,
};

use super::floor::{Floor, HOUR_MS, Keeper, failure, ids, ordinary, seat, seat_on};
use super::settling::progress;
use super::{Actor, Subject, election};

/// Nobody else returns anything.
pub async fn who_does_not_lead_tends_nothing(subject: &Subject) {
    let (floor, first) = (Floor::of(subject).await, Keeper::of(subject).await);
    let gone = lost_claim(subject, &floor).await;
    let second = first.after(subject).await;
    let right = second.tending();
    let wrong = [
        first.tending(),
        Tend { token: first.token, ..right.clone() },
        Tend { session: first.actor.id.clone(), ..right.clone() },
        Tend { token: Token::from_u64(second.token.as_u64() + 1), ..right.clone() },
        Tend { session: gone.id.clone(), ..right.clone() },
    ];
    for tend in wrong {
        let tended = floor.store.tend(&tend).await.unwrap();
        assert!(!tended.leads && tended.returned == 0, "{tend:?}: {tended:?}");
    }
    assert_eq!(floor.view().await.count(TaskState::Claimed), 1);
    assert_eq!(second.tend().await.returned, 1);
    second.actor.release(&claims_election(), 0, second.token).await;
    assert!(!floor.store.tend(&right).await.unwrap().leads);
}

/// Whether it ended or was declared dead; the attempt counts, and the late worker is refused.
pub async fn a_claim_of_a_dead_session_returns_once(subject: &Subject) {
    let (floor, keeper) = (Floor::of(subject).await, Keeper::of(subject).await);
    for expired in [false, true] {
        let (a, b, key) = (subject.actor("a").await, subject.actor("b").await, election("any"));
        a.stand(&key).await;
        b.stand(&key).await;
        let id = floor.submit_one(NewTask::default()).await;
        let lost = floor.claim(seat_on(&a, 1)).await.remove(0);
        assert_eq!(keeper.tend().await.returned, 0, "it lives");
        if expired {
            b.expire(&a, &key).await;
        } else {
            a.store.end(&a.id).await.unwrap();
        }
        assert_eq!((keeper.tend().await.returned, keeper.tend().await.returned), (1, 0));
        let view = floor.task(id).await;
        assert_eq!((view.state, view.attempt, view.failures.len()), (TaskState::Ready, 1, 1));
        assert!(view.failures[0].error.starts_with("lost: "), "{:?}", view.failures);
        assert_eq!((view.failures[0].attempt, view.failures[0].worker.as_str()), (1, "w"));
        for outcome in [Outcome::Complete(None), Outcome::Release, failure(true, Duration::ZERO)] {
            assert_eq!(floor.settle(&lost, outcome).await, Settled::Lost);
        }
        let next = floor.claim_one().await;
        assert!(next.id == id && next.token > lost.token && next.attempt == 2);
        assert_eq!(floor.settle(&lost, Outcome::Complete(None)).await, Settled::Lost);
        assert_eq!(keeper.tend().await.returned, 0);
        floor.complete(&next).await;
    }
}

/// Without a session, or over its longest run with one.
pub async fn a_claim_past_its_deadline_returns_once(subject: &Subject) {
    let (floor, keeper) = (Floor::of(subject).await, Keeper::of(subject).await);
    let actor = subject.actor("a").await;
    let ids = floor.submit(vec![NewTask { max_run_ms: Some(1), ..NewTask::default() }, NewTask::default()]);
    let ids = ids.await;
    let lasting = floor.claim(seat_on(&actor, 1)).await.remove(0);
    let short = floor.claim(Seat { hold_ms: Some(1), ..seat("w", 1) }).await.remove(0);
    assert_eq!(keeper.tend_until(|sum| sum.returned >= 2).await.returned, 2);
    assert_eq!(keeper.tend().await.returned, 0);
    assert_eq!(floor.states(&ids).await, [TaskState::Ready; 2]);
    // A claim whose worker died was once told as one that ran for too long.
    for (lost, error) in [(lasting, "lost: run time is over"), (short, "lost: its claim timed out")] {
        let view = floor.task(lost.id).await;
        assert_eq!((view.attempt, view.failures.len()), (1, 1));
        assert_eq!(view.failures[0].error, error);
        assert_eq!(floor.settle(&lost, Outcome::Complete(None)).await, Settled::Lost);
    }
}

/// Who says in time that it goes on keeps what it has.
pub async fn an_extended_claim_is_kept(subject: &Subject) {
    let (floor, keeper) = (Floor::of(subject).await, Keeper::of(subject).await);
    floor.submit(ordinary(2)).await;
    let tasks = floor.claim(Seat { hold_ms: Some(20), ..seat("w", 2) }).await;
    let longer = progress(None, Some(Duration::from_millis(HOUR_MS)));
    // Nobody tends meanwhile, so it counts, however slow this is.
    assert_eq!(floor.settle(&tasks[1], longer).await, Settled::Now(TaskState::Claimed));
    keeper.tend_until(|sum| sum.returned >= 1).await;
    assert_eq!(floor.states(&ids(&tasks)).await, [TaskState::Ready, TaskState::Claimed]);
    floor.complete(&tasks[1]).await;
}

/// A claim lives until it is taken away: work that was done in the meantime counts.
pub async fn what_was_done_before_it_was_taken_away_counts(subject: &Subject) {
    let (floor, keeper) = (Floor::of(subject).await, Keeper::of(subject).await);
    let actor = subject.actor("a").await;
    floor.submit(ordinary(1)).await;
    let task = floor.claim(seat_on(&actor, 1)).await.remove(0);
    actor.store.end(&actor.id).await.unwrap();
    assert_eq!(floor.settle(&task, Outcome::Complete(None)).await, Settled::Now(TaskState::Completed));
    assert_eq!(keeper.tend().await.returned, 0);
}

/// If the store's wall clock jumped ahead of the keeper's reckoning, no deadline has passed because of that.
pub async fn a_step_of_the_stores_clock_expires_nothing(subject: &Subject) {
    let (floor, keeper) = (Floor::of(subject).await, Keeper::of(subject).await);
    floor.submit(ordinary(1)).await;
    let task = floor.claim(Seat { hold_ms: Some(1), ..seat("w", 1) }).await.remove(0);
    let deadline = floor.task(task.id).await.deadline_ms.expect("it has one");
    let careful = Tend { clock_ms: Some(deadline - 1), ..keeper.tending() };
    loop {
        let tended = keeper.actor.store.tend(&careful).await.unwrap();
        assert_eq!((tended.leads, tended.returned), (true, 0));
        if tended.store_ms > deadline + 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Nor does a reckoning that runs ahead of the store expire anything early.
    let late = Tend { clock_ms: Some(deadline + 10 * HOUR_MS.cast_signed()), ..keeper.tending() };
    floor.submit(ordinary(1)).await;
    let lasting = floor.claim_one().await;
    assert_eq!(keeper.actor.store.tend(&late).await.unwrap().returned, 1);
    assert_eq!(floor.states(&[task.id, lasting.id]).await, [TaskState::Ready, TaskState::Claimed]);
}

/// A keeper that has just begun does not know whether the clock was put forward: it returns what sessions left, no more.
pub async fn without_a_reckoning_nothing_goes_by_the_clock(subject: &Subject) {
    let (floor, keeper) = (Floor::of(subject).await, Keeper::of(subject).await);
    floor.set(QueueSettings { keep_ms: 0, ..QueueSettings::default() }).await;
    floor.submit(ordinary(2)).await;
    let done = floor.claim(seat("w", 1)).await.remove(0);
    floor.complete(&done).await;
    let short = floor.claim(Seat { hold_ms: Some(1), ..seat("w", 1) }).await.remove(0);
    let waits = floor.submit_one(NewTask { max_wait_ms: Some(1), ..NewTask::default() }).await;
    let deadline = floor.task(short.id).await.deadline_ms.expect("it has one");
    lost_claim(subject, &floor.beside(super::floor::queue("other"))).await;
    let unsure = Tend { clock_ms: None, ..keeper.tending() };
    let (mut returned, mut late) = (0, false);
    while !late {
        let tended = keeper.actor.store.tend(&unsure).await.unwrap();
        assert_eq!((tended.leads, tended.dead, tended.forgotten), (true, 0, 0));
        returned += tended.returned;
        late = tended.store_ms > deadline + 5;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(returned, 1, "the session's is lost, whatever the clock shows");
    let ids = [done.id, short.id, waits];
    assert_eq!(floor.states(&ids).await, [TaskState::Completed, TaskState::Claimed, TaskState::Ready]);
    let tended = keeper.tend_until(|sum| sum.returned + sum.dead + sum.forgotten >= 3).await;
    assert_eq!((tended.returned, tended.dead, tended.forgotten), (1, 1, 1));
}

/// A worker that dies on a task every time does so only so often.
pub async fn the_last_attempt_that_is_lost_is_dead(subject: &Subject) {
    let (floor, keeper) = (Floor::of(subject).await, Keeper::of(subject).await);
    let parent = floor.submit_one(NewTask { max_attempts: 2, ..NewTask::default() }).await;
    let child = NewTask { parents: vec![Parent::Task(parent)], ..NewTask::default() };
    let child = floor.submit_one(child).await;
    for state in [TaskState::Ready, TaskState::Dead] {
        let actor = subject.actor("a").await;
        assert_eq!(ids(&floor.claim(seat_on(&actor, 9)).await), [parent]);
        actor.store.end(&actor.id).await.unwrap();
        assert_eq!(keeper.tend().await.returned, 1);
        assert_eq!(floor.state(parent).await, state);
    }
    let view = floor.task(parent).await;
    assert_eq!((view.attempt, view.failures.len(), view.finished_at_ms.is_some()), (2, 2, true));
    assert!(view.reason.is_some());
    assert_eq!(floor.state(child).await, TaskState::Dead, "it shares its parent's fate");
}

/// Nobody came for it.
pub async fn what_waited_too_long_is_dead(subject: &Subject) {
    let (floor, keeper) = (Floor::of(subject).await, Keeper::of(subject).await);
    let patient = |max_wait_ms| NewTask { max_wait_ms, ..NewTask::default() };
    let numbers = floor.submit(vec![patient(Some(1)), patient(Some(HOUR_MS)), patient(None)]).await;
    let child = NewTask { parents: vec![Parent::Task(numbers[0])], ..NewTask::default() };
    let child = floor.submit_one(child).await;
    keeper.tend_until(|sum| sum.dead >= 1).await;
    use TaskState::{Dead, Ready};
    assert_eq!(floor.states(&numbers).await, [Dead, Ready, Ready]);
    let view = floor.task(numbers[0]).await;
    assert!(view.reason.is_some() && view.finished_at_ms.is_some() && view.attempt == 0);
    assert_eq!(floor.state(child).await, Dead);
    assert_eq!(floor.claim_all().await, numbers[1..]);
}

/// A wait is over when somebody claims it, and begins anew with the next attempt.
pub async fn what_was_claimed_in_time_has_not_waited_too_long(subject: &Subject) {
    let (floor, keeper) = (Floor::of(subject).await, Keeper::of(subject).await);
    let id = floor.submit_one(NewTask { max_wait_ms: Some(30), ..NewTask::default() }).await;
    let task = floor.claim_one().await;
    let ready_at = floor.task(id).await.ready_at_ms.expect("it was ready");
    while keeper.tend().await.store_ms < ready_at + 35 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(floor.state(id).await, TaskState::Claimed);
    floor.complete(&task).await;
}

/// Even if nobody asks.
pub async fn what_is_due_becomes_ready(subject: &Subject) {
    let (floor, keeper) = (Floor::of(subject).await, Keeper::of(subject).await);
    let now = floor.task(floor.submit_one(NewTask::default()).await).await.enqueued_at_ms;
    let at = |ms: i64| NewTask { run_at_ms: Some(now + ms), ..NewTask::default() };
    let numbers = floor.submit(vec![at(30), at(HOUR_MS.cast_signed())]).await;
    let mut due = 0;
    // It may have been due before it was submitted, on a slow machine: then it was ready at once.
    while floor.state(numbers[0]).await == TaskState::Scheduled {
        let tended = keeper.tend().await;
        due += tended.due;
        if tended.due == 0 {
            assert!(tended.next_in.is_some_and(|next| next <= Duration::from_millis(HOUR_MS)));
        }
    }
    assert!(due <= 1);
    assert_eq!(floor.states(&numbers).await, [TaskState::Ready, TaskState::Scheduled]);
}

/// What is finished is remembered for as long as the queue says, and then gone.
pub async fn finished_tasks_are_forgotten_in_time(subject: &Subject) {
    let (floor, keeper) = (Floor::of(subject).await, Keeper::of(subject).await);
    let numbers = floor.submit(ordinary(4)).await;
    let tasks = floor.claim(seat("w", 3)).await;
    floor.complete(&tasks[0]).await;
    floor.kill(&tasks[1]).await;
    floor.order(tasks[2].id, Order::Cancel).await;
    assert_eq!(keeper.tend().await.forgotten, 0);
    floor.set(QueueSettings { keep_ms: 0, ..QueueSettings::default() }).await;
    assert_eq!(keeper.tend_until(|sum| sum.forgotten >= 2).await.forgotten, 2);
    let left = |n: usize| floor.store.task(&floor.key.namespace, numbers[n]);
    assert_eq!((left(0).await, left(2).await), (Ok(None), Ok(None)));
    assert_eq!(floor.states(&[numbers[1], numbers[3]]).await, [TaskState::Dead, TaskState::Ready]);
    floor.set(QueueSettings { keep_dead_ms: 0, ..QueueSettings::default() }).await;
    assert_eq!(keeper.tend_until(|sum| sum.forgotten >= 1).await.forgotten, 1);
    assert_eq!(left(1).await, Ok(None));
    assert_eq!(floor.settle(&tasks[0], Outcome::Complete(None)).await, Settled::Lost);
    assert_eq!(floor.claim_all().await, [numbers[3]]);
}

/// Its output is an input of what is not done yet.
pub async fn a_parent_is_remembered_for_its_children(subject: &Subject) {
    let (floor, keeper) = (Floor::of(subject).await, Keeper::of(subject).await);
    floor.set(QueueSettings { keep_ms: 0, ..QueueSettings::default() }).await;
    let child = NewTask { parents: vec![Parent::Index(1)], ..NewTask::default() };
    let numbers = floor.submit(vec![child, NewTask::default(), NewTask::default()]).await;
    for task in floor.claim(seat("w", 9)).await {
        let output = tenure_core::port::Json::of(&task.id.0).unwrap();
        floor.settle(&task, Outcome::Complete(Some(output))).await;
    }
    assert_eq!(keeper.tend_until(|sum| sum.forgotten >= 1).await.forgotten, 1);
    assert_eq!(floor.state(numbers[1]).await, TaskState::Completed);
    let child = floor.claim_one().await;
    assert_eq!(child.inputs.keys().copied().collect::<Vec<_>>(), [numbers[1]]);
    floor.complete(&child).await;
    keeper.tend_until(|sum| sum.forgotten >= 2).await;
    assert_eq!(floor.view().await.counts.values().sum::<u64>(), 0);
}

/// A key is remembered with its task.
pub async fn a_key_is_free_when_its_task_is_forgotten(subject: &Subject) {
    let (floor, keeper) = (Floor::of(subject).await, Keeper::of(subject).await);
    floor.set(QueueSettings { keep_ms: 0, ..QueueSettings::default() }).await;
    let task = NewTask { key: Some("k".into()), ..NewTask::default() };
    let submission = Submission { queue: floor.key.clone(), tasks: vec![task] };
    let first = floor.store.submit(&submission).await.unwrap()[0];
    let claimed = floor.claim_one().await;
    floor.complete(&claimed).await;
    keeper.tend_until(|sum| sum.forgotten >= 1).await;
    let second = floor.store.submit(&submission).await.unwrap()[0];
    assert!(second.new && second.id != first.id, "{second:?} after {first:?}");
}

/// A little at a time, and it is said that there is more.
pub async fn what_is_much_is_tended_in_parts(subject: &Subject) {
    let (floor, keeper) = (Floor::of(subject).await, Keeper::of(subject).await);
    let actor = subject.actor("a").await;
    floor.submit(ordinary(5)).await;
    floor.claim(seat_on(&actor, 5)).await;
    actor.store.end(&actor.id).await.unwrap();
    let little = Tend { limit: 2, ..keeper.tending() };
    let mut returned = 0;
    for _ in 0..20 {
        let tended = keeper.actor.store.tend(&little).await.unwrap();
        assert!(tended.returned <= 2);
        returned += tended.returned;
        if returned < 5 {
            assert!(tended.more, "{returned} of 5 returned: {tended:?}");
        }
        if !tended.more {
            break;
        }
    }
    assert_eq!(returned, 5);
    assert_eq!(floor.view().await.count(TaskState::Ready), 5);
}

/// Also when the keeper sends its request twice, because the first answer was late.
pub async fn of_concurrent_tendings_each_claim_returns_once(subject: &Subject) {
    let (floor, keeper) = (Floor::of(subject).await, Keeper::of(subject).await);
    for _ in 0..4 {
        let actor = subject.actor("a").await;
        floor.submit(ordinary(20)).await;
        let lost = floor.claim(seat_on(&actor, 100)).await;
        actor.store.end(&actor.id).await.unwrap();
        let mut tendings = Vec::new();
        for _ in 0..3 {
            let (store, tend) = (subject.client().await, keeper.tending());
            tendings.push(tokio::spawn(async move { store.tend(&tend).await.expect("tend").returned }));
        }
        let mut returned = 0;
        for tending in tendings {
            returned += tending.await.expect("no panic");
        }
        assert_eq!(returned + keeper.tend().await.returned, lost.len() as u64);
        for task in &lost {
            let view = floor.task(task.id).await;
            assert_eq!(view.failures.len() as u32, view.attempt, "each loss is counted once: {view:?}");
        }
    }
}

/// A session that ended with one claim.
async fn lost_claim(subject: &Subject, floor: &Floor) -> Actor {
    let actor = subject.actor("gone").await;
    floor.submit(ordinary(1)).await;
    floor.claim(seat_on(&actor, 1)).await;
    actor.store.end(&actor.id).await.unwrap();
    actor
}
