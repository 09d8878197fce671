//! Claims about handing out tasks.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_core::port::{
    Authority, Backoff, CLAIM_BYTES, ClaimAnswer, ClaimRefusal, Json, NewTask, Outcome, Parent, Profile,
    QueueSettings, Seat, Settled, TaskState,
};

use super::floor::{
    Floor, HOUR_MS, failure, ids, ordinary, profile, seat, seat_of, seat_on, served, strings, tagged,
};
use super::{Subject, new_id};

/// A queue that nobody has used is as good as an empty one.
pub async fn an_unused_queue_hands_out_nothing(subject: &Subject) {
    let floor = Floor::of(subject).await;
    assert_eq!(floor.claim_all().await, []);
    let answer = floor.ask(Authority::Direct, vec![seat("a", 1), seat("b", 1)]).await;
    assert_eq!(served(answer), [vec![], vec![]]);
}

/// A worker gets all that it needs to begin, and the store remembers who has it.
pub async fn what_is_handed_out_is_whole(subject: &Subject) {
    let (floor, actor) = (Floor::of(subject).await, subject.actor("a").await);
    let task = NewTask {
        kind: "send".into(),
        payload: r#"{"to":"o'neil"}"#.parse().expect("JSON"),
        priority: 3,
        max_run_ms: Some(2 * HOUR_MS),
        max_attempts: 5,
        backoff: Backoff { first_ms: 17, most_ms: 18 },
        leader_token: Some(tenure_core::Token::from_u64(9)),
        ..NewTask::default()
    };
    let id = floor.submit_one(task.clone()).await;
    let wish = Seat { session: Some(actor.id.clone()), hold_ms: Some(HOUR_MS), ..seat_of(profile("w'1"), 5) };
    let claimed = floor.claim(wish).await.remove(0);
    assert_eq!((claimed.id, &claimed.queue, &claimed.kind), (id, &floor.key.name, &task.kind));
    assert_eq!((&claimed.payload, claimed.inputs.len(), claimed.backoff), (&task.payload, 0, task.backoff));
    assert_eq!((claimed.attempt, claimed.max_attempts, claimed.priority), (1, 5, 3));
    assert_eq!((claimed.max_run_ms, claimed.leader_token), (task.max_run_ms, task.leader_token));
    assert_eq!(claimed.turn, None, "nobody counts turns in a distributed queue");
    let view = floor.task(id).await;
    assert_eq!((view.state, view.attempt, view.token), (TaskState::Claimed, 1, claimed.token));
    assert_eq!((view.worker.as_deref(), view.session), (Some("w'1"), Some(actor.id.clone())));
    assert_eq!((claimed.enqueued_at_ms, claimed.deadline_ms), (view.enqueued_at_ms, view.deadline_ms));
    assert!(view.claimed_at_ms >= view.ready_at_ms && view.ready_at_ms.is_some());
    assert_eq!(floor.claim_all().await, []);
}

/// Each point of priority overtakes a minute; between equals, who came first.
pub async fn priority_goes_first_and_then_age(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let with = |priority, tag: &str| NewTask {
        priority,
        requires: if tag.is_empty() { vec![] } else { strings(&[tag]) },
        ..NewTask::new(format!("kind-{}", priority.rem_euclid(3)))
    };
    // Of several demands, so that a store that keeps them apart must merge them.
    let priorities = [0, 5, -3, 5, 0, 7, -1_000_000, 1_000_000];
    let tags = ["", "x", "", "", "y", "x", "y", ""];
    let numbers =
        floor.submit(priorities.iter().zip(tags).map(|(priority, tag)| with(*priority, tag)).collect()).await;
    let mut expected: Vec<usize> = (0..numbers.len()).collect();
    expected.sort_by_key(|n| (-priorities[*n], *n));
    let expected: Vec<_> = expected.into_iter().map(|n| numbers[n]).collect();
    let reader = floor.again(subject).await;
    let first = reader.claim(seat_of(tagged("w", &["x", "y"]), 3)).await;
    let rest = reader.claim(seat_of(tagged("w", &["x", "y"]), 100)).await;
    assert_eq!([ids(&first), ids(&rest)].concat(), expected);
}

/// Not even with more asked for together than is there.
pub async fn never_more_than_asked_for(subject: &Subject) {
    let floor = Floor::of(subject).await;
    floor.submit(ordinary(30)).await;
    for limit in [1, 3, 0, 7] {
        assert_eq!(floor.claim(seat("w", limit)).await.len(), limit as usize);
    }
    let wishes = vec![seat("a", 2), seat("b", 0), seat("c", 5), seat("a", 1)];
    let lists = served(floor.ask(Authority::Direct, wishes).await);
    assert_eq!(lists.iter().map(Vec::len).collect::<Vec<_>>(), [2, 0, 5, 1]);
    assert_eq!(floor.view().await.count(TaskState::Claimed), 19);
    assert_eq!(floor.claim(seat("w", 1000)).await.len(), 11);
    assert_eq!(floor.claim(seat("w", 1000)).await.len(), 0);
}

/// The first seat has the first choice; each list is in the order of the queue, and knows whose it is.
pub async fn seats_are_served_in_their_order(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let picky = NewTask { requires: strings(&["gpu"]), ..NewTask::default() };
    let numbers = floor.submit([ordinary(2), vec![picky], ordinary(3)].concat()).await;
    let wishes = vec![seat("a", 3), seat_of(tagged("b", &["gpu"]), 2), seat("c", 9)];
    let lists = served(floor.ask(Authority::Direct, wishes).await);
    assert_eq!(ids(&lists[0]), [numbers[0], numbers[1], numbers[3]]);
    assert_eq!(ids(&lists[1]), [numbers[2], numbers[4]]);
    assert_eq!(ids(&lists[2]), [numbers[5]]);
    for (name, list) in ["a", "b", "c"].iter().zip(&lists) {
        for task in list {
            assert_eq!(floor.task(task.id).await.worker.as_deref(), Some(*name));
        }
    }
}

/// Many claim at once, each as much as it can.
pub async fn concurrent_claims_never_share_a_task(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let numbers = floor.submit(ordinary(160)).await;
    let mut claimers = Vec::new();
    for worker in 0..4 {
        let floor = floor.again(subject).await;
        claimers.push(tokio::spawn(async move {
            let mut got = Vec::new();
            loop {
                let name = format!("w{worker}");
                let lists = served(floor.ask(Authority::Direct, vec![seat(&name, 3), seat(&name, 2)]).await);
                assert!(lists[0].len() <= 3 && lists[1].len() <= 2, "no more than asked for");
                if lists.iter().all(Vec::is_empty) {
                    return got;
                }
                got.extend(lists.into_iter().flatten().map(|task| task.id));
            }
        }));
    }
    let mut all = Vec::new();
    for claimer in claimers {
        all.extend(claimer.await.expect("no panic"));
    }
    // A claimer may have found nothing because others had locked what was left: nothing of that is lost.
    all.extend(floor.claim(seat("last", 1000)).await.iter().map(|task| task.id));
    let distinct: BTreeSet<_> = all.iter().copied().collect();
    assert_eq!((distinct.len(), all.len()), (160, 160), "each task once");
    assert_eq!(distinct, numbers.into_iter().collect());
}

/// Whatever ended the claim before, the next one's token is greater.
pub async fn tokens_grow_over_claims(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let id = floor.submit_one(NewTask::default()).await;
    let mut last = floor.task(id).await.token;
    for n in 0..6 {
        let claimed = floor.claim_one().await;
        assert!(claimed.token > last, "{} after {last}", claimed.token);
        last = claimed.token;
        assert_eq!(floor.task(id).await.token, last);
        let outcome = if n % 2 == 0 { Outcome::Release } else { failure(true, Duration::ZERO) };
        assert_eq!(floor.settle(&claimed, outcome).await, Settled::Now(TaskState::Ready));
    }
}

/// A worker that knows some kinds gets these, and those of no kind.
pub async fn a_worker_gets_only_kinds_that_it_knows(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let numbers = floor.submit(["a", "b", "", "c"].map(NewTask::new).into()).await;
    let knows = |kinds: &[&str]| Profile { kinds: strings(kinds), ..profile("w") };
    assert_eq!(ids(&floor.claim(seat_of(knows(&["x"]), 9)).await), [numbers[2]]);
    assert_eq!(ids(&floor.claim(seat_of(knows(&["c", "b", "x"]), 9)).await), [numbers[1], numbers[3]]);
    assert_eq!(ids(&floor.claim(seat_of(knows(&[]), 9)).await), [numbers[0]]);
}

/// All that a task requires, at once.
pub async fn a_worker_gets_only_what_its_tags_allow(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let requires = |tags: &[&str]| NewTask { requires: strings(tags), ..NewTask::default() };
    let tasks = vec![requires(&["a"]), requires(&["a", "b"]), requires(&["b"]), requires(&["o'c"])];
    let numbers = floor.submit(tasks).await;
    let with = |tags: &[&str]| seat_of(tagged("w", tags), 9);
    assert_eq!(floor.claim(with(&[])).await, []);
    assert_eq!(floor.claim(with(&["x", "A"])).await, []);
    assert_eq!(ids(&floor.claim(with(&["b", "z"])).await), [numbers[2]]);
    assert_eq!(ids(&floor.claim(with(&["b", "a"])).await), [numbers[0], numbers[1]]);
    assert_eq!(ids(&floor.claim(with(&["o'c"])).await), [numbers[3]]);
}

/// By name; `*` is everybody.
pub async fn a_task_that_is_meant_for_somebody_waits_for_it(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let meant = |workers: &[&str]| NewTask { workers: strings(workers), ..NewTask::default() };
    let numbers = floor.submit(vec![meant(&["ada", "bob"]), meant(&["*"]), meant(&["cy"])]).await;
    assert_eq!(ids(&floor.claim(seat("eve", 9)).await), [numbers[1]]);
    assert_eq!(ids(&floor.claim(seat("bob", 9)).await), [numbers[0]]);
    assert_eq!(floor.claim(seat("ada", 9)).await, []);
    assert_eq!(ids(&floor.claim(seat("cy", 9)).await), [numbers[2]]);
}

/// Others get it only after the queue's time for that, and are told when.
pub async fn who_is_preferred_is_asked_first(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let prefers = || NewTask { prefers: strings(&["near", "big"]), ..NewTask::default() };
    floor.set(QueueSettings { prefer_ms: HOUR_MS, ..QueueSettings::default() }).await;
    let id = floor.submit_one(prefers()).await;
    let ClaimAnswer::Served { tasks, next_in } = floor.ask(Authority::Direct, vec![seat("far", 9)]).await
    else {
        panic!("nobody is refused")
    };
    assert_eq!(tasks, [vec![]]);
    let next_in = next_in.expect("the end of the preference is known");
    assert!(next_in > Duration::ZERO && next_in <= Duration::from_millis(HOUR_MS), "{next_in:?}");
    assert_eq!(ids(&floor.claim(seat_of(tagged("w", &["big", "x"]), 9)).await), [id]);
    floor.set(QueueSettings { prefer_ms: 0, ..QueueSettings::default() }).await;
    let id = floor.submit_one(prefers()).await;
    assert_eq!(ids(&floor.claim(seat("far", 9)).await), [id]);
}

/// A preference ends by itself.
pub async fn a_preference_does_not_last(subject: &Subject) {
    let floor = Floor::of(subject).await;
    floor.set(QueueSettings { prefer_ms: 5, ..QueueSettings::default() }).await;
    floor.submit_one(NewTask { prefers: strings(&["near"]), ..NewTask::default() }).await;
    while floor.claim(seat("far", 1)).await.is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A session that is over claims nothing, for nobody in the same call.
pub async fn a_session_that_is_gone_is_served_nothing(subject: &Subject) {
    let (floor, gone) = (Floor::of(subject).await, subject.actor("gone").await);
    floor.submit(ordinary(2)).await;
    gone.store.end(&gone.id).await.unwrap();
    let stranger = new_id();
    for id in [gone.id.clone(), stranger] {
        let wish = Seat { session: Some(id.clone()), ..seat("w", 1) };
        assert_eq!(floor.claim_refused(wish).await, ClaimRefusal::Gone(id));
    }
    assert_eq!(floor.view().await.count(TaskState::Ready), 2);
}

/// What is not due is not handed out, and who asks is told when it will be.
pub async fn what_is_not_due_is_not_handed_out(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let now = floor.task(floor.submit_one(NewTask::default()).await).await.enqueued_at_ms;
    let at = |run_at_ms| NewTask { run_at_ms: Some(run_at_ms), ..NewTask::default() };
    floor.submit(vec![at(now + HOUR_MS.cast_signed()), at(now + 2 * HOUR_MS.cast_signed())]).await;
    let ClaimAnswer::Served { tasks, next_in } = floor.ask(Authority::Direct, vec![seat("w", 9)]).await
    else {
        panic!("nobody is refused")
    };
    assert_eq!(tasks[0].len(), 1);
    let next_in = next_in.expect("the next `run_at` is known");
    assert!(next_in > Duration::ZERO && next_in <= Duration::from_millis(HOUR_MS), "{next_in:?}");
}

/// It becomes ready by being asked for: nobody has to tend for that.
pub async fn what_falls_due_is_handed_out(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let now = floor.task(floor.submit_one(NewTask::default()).await).await.enqueued_at_ms;
    floor.claim_one().await;
    let id = floor.submit_one(NewTask { run_at_ms: Some(now + 20), ..NewTask::default() }).await;
    loop {
        let got = floor.claim(seat("w", 1)).await;
        if !got.is_empty() {
            assert_eq!(ids(&got), [id]);
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The nearer of what the worker asked for and what the task allows.
pub async fn a_claim_ends_when_it_must(subject: &Subject) {
    let (floor, actor) = (Floor::of(subject).await, subject.actor("a").await);
    let runs = |max_run_ms| NewTask { max_run_ms, ..NewTask::default() };
    let (hour, day) = (HOUR_MS, 24 * HOUR_MS);
    let cases = [
        (None, None, None),
        (None, Some(hour), Some(hour)),
        (Some(day), None, Some(day)),
        (Some(day), Some(hour), Some(hour)),
        (Some(hour), Some(day), Some(hour)),
    ];
    for (max_run, hold_ms, expected) in cases {
        floor.submit_one(runs(max_run)).await;
        let wish = Seat { hold_ms, ..seat_on(&actor, 9) };
        let claimed = floor.claim(wish).await.remove(0);
        let view = floor.task(claimed.id).await;
        let lasts = view.deadline_ms.map(|at| at - view.claimed_at_ms.expect("claimed"));
        let expected = expected.map(u64::cast_signed);
        assert!(
            lasts.zip(expected).map_or(lasts == expected, |(lasts, wanted)| (lasts - wanted).abs() <= 1),
            "max_run {max_run:?}, hold {hold_ms:?}: {lasts:?}, not {expected:?}"
        );
    }
}

/// A worker that lost count can ask.
pub async fn a_session_is_told_what_it_has(subject: &Subject) {
    let (floor, a, b) = (Floor::of(subject).await, subject.actor("a").await, subject.actor("b").await);
    let other = floor.beside(super::floor::queue("other"));
    floor.submit(ordinary(3)).await;
    other.submit(ordinary(1)).await;
    let mut mine = floor.claim(seat_on(&a, 2)).await;
    mine.extend(other.claim(seat_on(&a, 2)).await);
    floor.claim(seat_on(&b, 1)).await;
    let expected: BTreeSet<_> = mine.iter().map(|task| (task.id, task.token)).collect();
    let held = |held: Vec<_>| held.into_iter().collect::<BTreeSet<_>>();
    assert_eq!(held(a.store.held(&a.id).await.unwrap()), expected);
    floor.complete(&mine[0]).await;
    let expected: BTreeSet<_> = mine[1..].iter().map(|task| (task.id, task.token)).collect();
    assert_eq!(held(a.store.held(&a.id).await.unwrap()), expected);
    assert_eq!(a.store.held(&new_id()).await, Ok(vec![]));
}

/// Of what is large, a call hands out less; the rest comes with the next. In order, and each once.
pub async fn one_call_hands_out_what_can_be_carried(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let large = || NewTask { payload: heavy(), ..NewTask::default() };
    let mut numbers = Vec::new();
    for _ in 0..6 {
        numbers.extend(floor.submit(vec![large(); 5]).await);
    }
    let mut got = Vec::new();
    while got.len() < numbers.len() {
        let lists = served(floor.ask(Authority::Direct, vec![seat("a", 7), seat("b", 90)]).await);
        let tasks: Vec<_> = lists.into_iter().flatten().collect();
        let bytes: usize = tasks.iter().map(|task| task.payload.as_str().len()).sum();
        assert!(!tasks.is_empty() && bytes <= CLAIM_BYTES, "{} tasks, {bytes} bytes", tasks.len());
        got.extend(ids(&tasks));
    }
    assert_eq!(got, numbers);
}

/// A task with much to read is handed out alone, if it must be.
pub async fn inputs_weigh_as_well_as_payloads(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let parents = floor.submit(ordinary(12)).await;
    for task in floor.claim(seat("w", 12)).await {
        let settled = floor.settle(&task, Outcome::Complete(Some(heavy()))).await;
        assert_eq!(settled, Settled::Now(TaskState::Completed));
    }
    let parents: Vec<_> = parents.into_iter().map(Parent::Task).collect();
    let child = NewTask { parents, ..NewTask::default() };
    let children = floor.submit(vec![child; 3]).await;
    for child in children {
        let ClaimAnswer::Served { tasks, .. } = floor.ask(Authority::Direct, vec![seat("w", 9)]).await else {
            panic!("nobody is refused")
        };
        assert_eq!(ids(&tasks[0]), [child]);
        assert_eq!(tasks[0][0].inputs.len(), 12);
    }
}

/// As much as a payload may have, nearly; and nothing that could be compressed to nothing is left out of account.
fn heavy() -> Json {
    Json::of(&"x".repeat(1_000_000)).expect("JSON")
}
