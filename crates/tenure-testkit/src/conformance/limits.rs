//! Claims about what holds tasks back: concurrency, rate, pauses, approval.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_core::port::{
    Authority, ClaimAnswer, ClaimRefusal, ClaimedTask, Fallback, NewTask, Order, Outcome, QueueKey,
    QueueSettings, RateLimit, Seat, TaskState,
};

use super::Subject;
use super::floor::{
    Floor, HOUR_MS, Keeper, failure, ids, one_seat, ordinary, pause, queue, refusal, seat, seat_of, seat_on,
    strings, tagged,
};
use super::modes::exclusive;

/// A task with a concurrency key.
fn keyed(limit: u32) -> NewTask {
    NewTask { concurrency_key: Some("cust'omer".into()), concurrency_limit: limit, ..NewTask::default() }
}

/// As many with a key as may be; the others are out of the way of the rest.
pub async fn a_concurrency_key_limits_what_is_claimed(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let numbers = floor.submit(vec![keyed(2); 4]).await;
    let plain = floor.submit_one(NewTask::default()).await;
    let got = floor.claim(seat("w", 9)).await;
    assert_eq!(ids(&got), [numbers[0], numbers[1], plain]);
    use TaskState::{Claimed, Held};
    assert_eq!(floor.states(&numbers).await, [Claimed, Claimed, Held, Held]);
    floor.complete(&got[2]).await;
    assert_eq!(floor.claim_all().await, []);
    floor.complete(&got[1]).await;
    assert_eq!(floor.claim_all().await, [numbers[2]]);
    assert_eq!(floor.claim_all().await, []);
}

/// However a claim ends, the next one may begin.
pub async fn every_end_of_a_claim_frees_its_key(subject: &Subject) {
    let floor = Floor::of(subject).await;
    type End = fn(&ClaimedTask) -> Option<Outcome>;
    let ends: [End; 6] = [
        |_| Some(Outcome::Complete(None)),
        |_| Some(failure(false, Duration::ZERO)),
        |_| Some(failure(true, Duration::ZERO)),
        |_| Some(failure(true, Duration::from_millis(HOUR_MS))),
        |_| Some(Outcome::Release),
        |_| None,
    ];
    for (n, end) in ends.into_iter().enumerate() {
        let floor = floor.beside(QueueKey::new(format!("n{n}").parse().unwrap(), "q".parse().unwrap()));
        let numbers = floor.submit(vec![keyed(1); 2]).await;
        let task = floor.claim_one().await;
        assert_eq!(floor.states(&numbers).await, [TaskState::Claimed, TaskState::Held]);
        match end(&task) {
            Some(outcome) => drop(floor.settle(&task, outcome).await),
            None => drop(floor.order(task.id, Order::Cancel).await),
        }
        assert_eq!(floor.claim_all().await.len(), 1, "end {n}: exactly one begins");
    }
}

/// Also when the worker was lost.
pub async fn a_lost_claim_frees_its_key(subject: &Subject) {
    let (floor, keeper) = (Floor::of(subject).await, Keeper::of(subject).await);
    let actor = subject.actor("a").await;
    let last = NewTask { max_attempts: 1, ..keyed(1) };
    let numbers = floor.submit(vec![last, keyed(1)]).await;
    assert_eq!(ids(&floor.claim(seat_on(&actor, 9)).await), [numbers[0]]);
    actor.store.end(&actor.id).await.unwrap();
    keeper.tend().await;
    assert_eq!(floor.states(&numbers).await[0], TaskState::Dead);
    assert_eq!(floor.claim_all().await, [numbers[1]]);
}

/// The next is the first that waits, of each sort: one that nobody can take must not stand in the way.
pub async fn the_next_of_a_key_is_the_first_of_each_sort(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let picky = NewTask { requires: strings(&["gpu"]), ..keyed(1) };
    let numbers = floor.submit(vec![keyed(1), picky, keyed(1), keyed(1)]).await;
    // A worker that could take any has looked at all of them, so that all but the first are held.
    let able = || seat_of(tagged("w", &["gpu"]), 9);
    let first = floor.claim(able()).await.remove(0);
    assert_eq!(floor.claim(able()).await, []);
    assert_eq!(floor.states(&numbers[1..]).await, [TaskState::Held; 3]);
    floor.complete(&first).await;
    assert_eq!(floor.claim_all().await, [numbers[2]], "for who has no gpu");
    assert_eq!(floor.claim(able()).await, []);
}

/// The key is of the namespace, whichever queues it is used in.
pub async fn a_concurrency_key_spans_queues(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let other = floor.beside(queue("other"));
    let foreign = floor.beside(QueueKey::new("else".parse().unwrap(), "q".parse().unwrap()));
    for floor in [&floor, &other, &foreign] {
        floor.submit(vec![keyed(1)]).await;
    }
    let first = floor.claim_one().await;
    assert_eq!(other.claim_all().await, []);
    assert_eq!(foreign.claim_all().await.len(), 1);
    floor.complete(&first).await;
    assert_eq!(other.claim_all().await.len(), 1);
}

/// Many claim at once.
pub async fn a_concurrency_limit_holds_against_all(subject: &Subject) {
    let floor = Floor::of(subject).await;
    floor.submit(vec![keyed(2); 24]).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(floor.again(subject).await);
    }
    let mut done = BTreeSet::new();
    while done.len() < 24 {
        let claims: Vec<_> = clients
            .iter()
            .cloned()
            .map(|floor| tokio::spawn(async move { floor.claim(seat("w", 5)).await }))
            .collect();
        let mut got = Vec::new();
        for claim in claims {
            got.extend(claim.await.expect("no panic"));
        }
        assert!(got.len() <= 2, "{} of one key at once", got.len());
        assert!(floor.view().await.count(TaskState::Claimed) <= 2);
        for task in got {
            assert!(done.insert(task.id), "each once");
            floor.complete(&task).await;
        }
    }
}

/// Of a queue, whoever asks.
pub async fn a_queue_limits_what_is_claimed(subject: &Subject) {
    let floor = Floor::of(subject).await;
    floor.set(QueueSettings { max_claimed: Some(3), ..QueueSettings::default() }).await;
    let numbers = floor.submit(ordinary(6)).await;
    let got = floor.claim(seat("a", 2)).await;
    let lists = super::floor::served(floor.ask(Authority::Direct, vec![seat("b", 2), seat("c", 2)]).await);
    assert_eq!(lists.iter().map(Vec::len).collect::<Vec<_>>(), [1, 0]);
    assert_eq!(floor.claim(seat("a", 2)).await, []);
    floor.complete(&got[0]).await;
    assert_eq!(floor.claim(seat("a", 9)).await.len(), 1);
    floor.set(QueueSettings::default()).await;
    assert_eq!(ids(&floor.claim(seat("a", 9)).await), numbers[4..]);
}

/// Many claim at once.
pub async fn a_queues_limit_holds_against_all(subject: &Subject) {
    let floor = Floor::of(subject).await;
    floor.set(QueueSettings { max_claimed: Some(3), ..QueueSettings::default() }).await;
    floor.submit(ordinary(40)).await;
    let mut claims = Vec::new();
    for _ in 0..5 {
        let floor = floor.again(subject).await;
        claims.push(tokio::spawn(async move { floor.claim(seat("w", 2)).await.len() }));
    }
    let mut got = 0;
    for claim in claims {
        got += claim.await.expect("no panic");
    }
    assert_eq!(floor.view().await.count(TaskState::Claimed), got as u64);
    assert!(got <= 3, "{got} at once");
    assert_eq!(got + floor.claim(seat("w", 9)).await.len(), 3);
}

/// As many at once after a rest, then as fast as it says; who comes too early is told when.
pub async fn a_rate_is_kept(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let rate =
        |count, per_ms| QueueSettings { rate: Some(RateLimit { count, per_ms }), ..Default::default() };
    floor.set(rate(3, HOUR_MS)).await;
    floor.submit(ordinary(9)).await;
    assert_eq!(floor.claim(seat("a", 2)).await.len(), 2);
    let ClaimAnswer::Served { tasks, next_in } = floor.ask(Authority::Direct, vec![seat("b", 2)]).await
    else {
        panic!("nobody is refused")
    };
    assert_eq!(tasks[0].len(), 1);
    let next_in = next_in.expect("the next one's time is known");
    assert!(next_in > Duration::ZERO && next_in <= Duration::from_millis(HOUR_MS / 3 + 1), "{next_in:?}");
    assert_eq!(floor.claim(seat("b", 1)).await, []);
    floor.set(rate(1, 5)).await;
    while floor.claim(seat("b", 9)).await.is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    floor.set(QueueSettings::default()).await;
    assert_eq!(floor.view().await.count(TaskState::Ready), 5);
    assert_eq!(floor.claim(seat("b", 9)).await.len(), 5);
}

/// Nothing is handed out; what is out may be finished, and more may come.
pub async fn a_paused_queue_hands_out_nothing(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let (namespace, name) = (floor.key.namespace.clone(), floor.key.name.clone());
    let other = floor.beside(queue("other"));
    floor.submit(ordinary(2)).await;
    other.submit(ordinary(1)).await;
    let task = floor.claim(seat("w", 1)).await.remove(0);
    let set = |on: bool| {
        let (floor, namespace, name) = (&floor, &namespace, &name);
        async move {
            let pause = on.then(pause);
            floor.store.set_queue_paused(namespace, Some(name), pause.as_ref()).await.unwrap()
        }
    };
    assert!(!set(false).await, "it was not paused");
    assert!(set(true).await);
    assert!(!set(true).await, "it was so already");
    let said = floor.view().await.paused.expect("paused");
    assert_eq!((said.by.as_str(), said.reason.as_str()), ("o'ps", "to \"see\""));
    assert_eq!(floor.claim_refused(seat("w", 9)).await, ClaimRefusal::Paused);
    floor.submit(ordinary(1)).await;
    floor.complete(&task).await;
    assert_eq!(other.claim_all().await.len(), 1);
    assert!(set(false).await);
    assert_eq!(floor.view().await.paused, None);
    assert_eq!(floor.claim_all().await.len(), 2);
}

/// A queue may be paused before anybody has used it.
pub async fn a_queue_can_be_paused_before_its_first_task(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let (namespace, name) = (&floor.key.namespace, &floor.key.name);
    assert_eq!(floor.store.set_queue_paused(namespace, Some(name), Some(&pause())).await, Ok(true));
    floor.submit(ordinary(1)).await;
    assert_eq!(floor.claim_refused(seat("w", 1)).await, ClaimRefusal::Paused);
}

/// All queues of the namespace, those to come as well, and no other.
pub async fn a_paused_namespace_hands_out_nothing(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let (later, namespace) = (floor.beside(queue("later")), floor.key.namespace.clone());
    let foreign = floor.beside(QueueKey::new("else".parse().unwrap(), "q".parse().unwrap()));
    floor.submit(ordinary(1)).await;
    foreign.submit(ordinary(1)).await;
    assert_eq!(floor.store.set_queue_paused(&namespace, None, Some(&pause())).await, Ok(true));
    assert_eq!(floor.store.set_queue_paused(&namespace, None, Some(&pause())).await, Ok(false));
    later.submit(ordinary(1)).await;
    for floor in [&floor, &later] {
        assert_eq!(floor.claim_refused(seat("w", 9)).await, ClaimRefusal::Paused);
        assert!(floor.view().await.paused.is_some());
    }
    assert_eq!(foreign.claim_all().await.len(), 1);
    assert_eq!(foreign.view().await.paused, None);
    assert_eq!(floor.store.set_queue_paused(&namespace, None, None).await, Ok(true));
    assert_eq!(floor.claim_all().await.len() + later.claim_all().await.len(), 2);
}

/// The leader is no exception.
pub async fn a_paused_exclusive_queue_hands_out_nothing(subject: &Subject) {
    let (floor, keeper) = (Floor::of(subject).await, Keeper::of(subject).await);
    floor.set(exclusive(Fallback::Distributed)).await;
    floor.submit(ordinary(1)).await;
    let (namespace, name) = (&floor.key.namespace, &floor.key.name);
    floor.store.set_queue_paused(namespace, Some(name), Some(&pause())).await.unwrap();
    for authority in [keeper.authority(), Authority::Fallback] {
        let answer = floor.ask(authority.clone(), vec![seat("w", 9)]).await;
        assert_eq!(refusal(answer), ClaimRefusal::Paused, "{authority:?}");
    }
    floor.store.set_queue_paused(namespace, Some(name), None).await.unwrap();
    assert_eq!(one_seat(floor.ask(keeper.authority(), vec![seat("w", 9)]).await).len(), 1);
}

/// Where a queue asks for it, a worker waits until somebody has approved it.
pub async fn a_worker_waits_for_its_approval(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let namespace = floor.key.namespace.clone();
    floor.submit(ordinary(4)).await;
    assert_eq!(floor.claim(seat("new", 1)).await.len(), 1, "nobody asked for approval yet");
    floor.set(QueueSettings { approval: true, ..QueueSettings::default() }).await;
    let refused = ClaimRefusal::NotApproved("new".into());
    assert_eq!(floor.claim_refused(seat("new", 1)).await, refused);
    assert_eq!(floor.store.approve(&namespace, "new", Some("o'ps")).await, Ok(true));
    assert_eq!(floor.store.approve(&namespace, "new", Some("ops")).await, Ok(false));
    assert_eq!(floor.claim(seat("new", 1)).await.len(), 1);
    assert_eq!(floor.claim_refused(seat("newer", 1)).await, ClaimRefusal::NotApproved("newer".into()));
    assert_eq!(floor.store.approve(&namespace, "new", None).await, Ok(true));
    assert_eq!(floor.store.approve(&namespace, "new", None).await, Ok(false));
    assert_eq!(floor.claim_refused(seat("new", 1)).await, refused);
    let elsewhere = "else".parse().unwrap();
    floor.store.approve(&elsewhere, "new", Some("ops")).await.unwrap();
    assert_eq!(floor.claim_refused(seat("new", 1)).await, refused, "approval is of a namespace");
}

/// What a limit held back is not lost with the worker's claim: a seat that got nothing got nothing.
pub async fn what_is_held_back_keeps_its_place(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let numbers = floor.submit(vec![keyed(1), keyed(1), keyed(1)]).await;
    for id in numbers {
        let wish = Seat { limit: 9, ..seat("w", 9) };
        let task = floor.claim(wish).await;
        assert_eq!(ids(&task), [id]);
        floor.complete(&task[0]).await;
    }
}
