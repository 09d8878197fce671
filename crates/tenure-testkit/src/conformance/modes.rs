//! Claims about modes: who may hand out, and in which order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure_core::Token;
use tenure_core::port::{
    Authority, ClaimAnswer, ClaimRefusal, Fallback, Mode, NewTask, Outcome, Post, QueueSettings, TaskId,
    TaskState, claims_election,
};

use super::Subject;
use super::floor::{Floor, Keeper, ids, one_seat, ordinary, refusal, seat, strings, tagged};

/// How a queue is set that hands out by its leader.
pub fn exclusive(fallback: Fallback) -> QueueSettings {
    QueueSettings { mode: Mode::Exclusive, fallback, ..QueueSettings::default() }
}

/// Each sort of asker, at each sort of queue.
pub async fn the_mode_decides_who_hands_out(subject: &Subject) {
    let (floor, keeper) = (Floor::of(subject).await, Keeper::of(subject).await);
    let leader = keeper.authority();
    let wrong = |mode| Some(ClaimRefusal::Mode(mode));
    let distributed = QueueSettings::default();
    let cases = [
        (distributed, Authority::Direct, None),
        (distributed, leader.clone(), wrong(Mode::Distributed)),
        (distributed, Authority::Fallback, None),
        (exclusive(Fallback::None), Authority::Direct, wrong(Mode::Exclusive)),
        (exclusive(Fallback::None), leader.clone(), None),
        (exclusive(Fallback::None), Authority::Fallback, wrong(Mode::Exclusive)),
        (exclusive(Fallback::Distributed), Authority::Direct, wrong(Mode::Exclusive)),
        (exclusive(Fallback::Distributed), leader, None),
        (exclusive(Fallback::Distributed), Authority::Fallback, None),
    ];
    for (settings, authority, expected) in cases {
        floor.set(settings).await;
        floor.submit_one(NewTask::default()).await;
        let answer = floor.ask(authority.clone(), vec![seat("w", 9)]).await;
        let what = format!("{authority:?} at {:?} with {:?}", settings.mode, settings.fallback);
        match expected {
            Some(expected) => assert_eq!(refusal(answer), expected, "{what}"),
            None => assert!(!one_seat(answer).is_empty(), "{what}"),
        }
    }
}

/// Turns count what the leader hands out, one by one, in the order of the queue, whoever leads.
pub async fn order_is_strict_over_leaders(subject: &Subject) {
    let (floor, first) = (Floor::of(subject).await, Keeper::of(subject).await);
    floor.set(exclusive(Fallback::None)).await;
    let with = |priority: i32| NewTask { priority, ..NewTask::default() };
    let numbers = floor.submit([0, 3, -2, 9, 3, 0].map(with).into()).await;
    let expected: Vec<_> = [3, 1, 4, 0, 5, 2].map(|n| numbers[n]).into();
    let take = async |keeper: &Keeper, limit| {
        let floor = Floor { store: keeper.actor.store.clone(), key: floor.key.clone() };
        one_seat(floor.ask(keeper.authority(), vec![seat("w", limit)]).await)
    };
    let mut handed = take(&first, 2).await;
    handed.extend(take(&first, 1).await);
    let second = first.after(subject).await;
    handed.extend(take(&second, 1).await);
    handed.extend(take(&second, 9).await);
    assert_eq!(ids(&handed), expected);
    let turns: Vec<_> = handed.iter().map(|task| task.turn.expect("the leader counts turns")).collect();
    assert!(turns.windows(2).all(|pair| pair[1] == pair[0] + 1), "{turns:?}");
    for task in &handed {
        assert_eq!(floor.task(task.id).await.turn, task.turn);
    }
}

/// A task that comes back takes its old place, and one that is worth more goes before it.
pub async fn order_is_strict_over_attempts(subject: &Subject) {
    let (floor, keeper) = (Floor::of(subject).await, Keeper::of(subject).await);
    floor.set(exclusive(Fallback::None)).await;
    let numbers = floor.submit(ordinary(4)).await;
    let take = async |limit| one_seat(floor.ask(keeper.authority(), vec![seat("w", limit)]).await);
    let handed = take(2).await;
    assert_eq!(ids(&handed), numbers[..2]);
    floor.settle(&handed[0], Outcome::Release).await;
    let urgent = floor.submit_one(NewTask { priority: 1, ..NewTask::default() }).await;
    assert_eq!(ids(&take(1).await), [urgent]);
    assert_eq!(ids(&take(2).await), [numbers[0], numbers[2]]);
    floor.settle(&handed[1], super::floor::failure(true, std::time::Duration::ZERO)).await;
    let picky = NewTask { priority: 5, requires: strings(&["gpu"]), ..NewTask::default() };
    let picky = floor.submit_one(picky).await;
    assert_eq!(ids(&take(1).await), [numbers[1]]);
    let wish = super::floor::seat_of(tagged("w", &["gpu"]), 9);
    assert_eq!(ids(&one_seat(floor.ask(keeper.authority(), vec![wish]).await)), [picky, numbers[3]]);
}

/// Whoever lost the lease hands out nothing more, even if it does not know yet.
pub async fn a_leader_that_was_followed_hands_out_nothing(subject: &Subject) {
    let (floor, first) = (Floor::of(subject).await, Keeper::of(subject).await);
    floor.set(exclusive(Fallback::None)).await;
    floor.submit(ordinary(3)).await;
    let second = first.after(subject).await;
    let leader = |session: &Keeper, token| Authority::Leader { session: session.actor.id.clone(), token };
    let wrong = [
        first.authority(),
        leader(&second, first.token),
        leader(&first, second.token),
        leader(&second, Token::ZERO),
        leader(&second, Token::from_u64(second.token.as_u64() + 1)),
    ];
    for authority in wrong {
        let answer = floor.ask(authority.clone(), vec![seat("w", 9)]).await;
        assert_eq!(refusal(answer), ClaimRefusal::NotLeader, "{authority:?}");
    }
    assert_eq!(floor.view().await.count(TaskState::Ready), 3);
    second.actor.release(&claims_election(), 0, second.token).await;
    let answer = floor.ask(second.authority(), vec![seat("w", 9)]).await;
    assert_eq!(refusal(answer), ClaimRefusal::NotLeader, "it gave the lease back");
}

/// While claims are on the way: nothing is handed out directly any more once the switch has been made.
pub async fn a_switch_of_mode_waits_for_who_claims(subject: &Subject) {
    let floor = Floor::of(subject).await;
    floor.submit(ordinary(1000)).await;
    for _ in 0..4 {
        floor.set(QueueSettings::default()).await;
        let over = Arc::new(AtomicBool::new(false));
        let mut claimers = Vec::new();
        for _ in 0..3 {
            let (floor, over) = (floor.again(subject).await, over.clone());
            claimers.push(tokio::spawn(async move {
                let (mut got, mut refused) = (Vec::new(), 0);
                while !over.load(Ordering::SeqCst) || refused == 0 {
                    match floor.ask(Authority::Direct, vec![seat("w", 2)]).await {
                        ClaimAnswer::Served { tasks, .. } => got.extend(tasks.into_iter().flatten()),
                        ClaimAnswer::Refused(refusal) => {
                            assert_eq!(refusal, ClaimRefusal::Mode(Mode::Exclusive));
                            refused += 1;
                        }
                    }
                }
                got
            }));
        }
        while floor.view().await.count(TaskState::Claimed) == 0 {
            tokio::task::yield_now().await;
        }
        floor.set(exclusive(Fallback::None)).await;
        let at_the_switch = floor.view().await.count(TaskState::Claimed);
        over.store(true, Ordering::SeqCst);
        let mut got = Vec::new();
        for claimer in claimers {
            got.extend(claimer.await.expect("no panic"));
        }
        assert_eq!(floor.view().await.count(TaskState::Claimed), at_the_switch, "claimed after the switch");
        let distinct: std::collections::BTreeSet<TaskId> = got.iter().map(|task| task.id).collect();
        assert_eq!((distinct.len(), got.len() as u64), (got.len(), at_the_switch), "nothing lost or doubled");
        for task in got {
            floor.settle(&task, Outcome::Release).await;
        }
    }
}

/// Nothing is lost or doubled by going back and forth.
pub async fn tasks_survive_a_switch_of_mode(subject: &Subject) {
    let (floor, keeper) = (Floor::of(subject).await, Keeper::of(subject).await);
    let numbers = floor.submit(ordinary(6)).await;
    let mut handed = floor.claim(seat("w", 2)).await;
    floor.set(exclusive(Fallback::None)).await;
    handed.extend(one_seat(floor.ask(keeper.authority(), vec![seat("w", 2)]).await));
    floor.set(QueueSettings::default()).await;
    handed.extend(floor.claim(seat("w", 9)).await);
    assert_eq!(ids(&handed), numbers);
    let turns: Vec<_> = handed.iter().map(|task| task.turn.is_some()).collect();
    assert_eq!(turns, [false, false, true, true, false, false]);
    for task in &handed {
        floor.complete(task).await;
    }
}

/// The leader's address is to be had by all, for as long as it leads.
pub async fn the_leaders_post_is_found_while_it_leads(subject: &Subject) {
    let (reader, first) = (subject.client().await, Keeper::of(subject).await);
    assert!(reader.post().await.unwrap().is_none());
    let post = |keeper: &Keeper, address: &str| Post {
        token: keeper.token,
        session: keeper.actor.id.clone(),
        address: address.into(),
        secret: vec![0, 1, 255, b'\'', b'\\'],
    };
    let mine = post(&first, "10.0.0.7:4711");
    assert_eq!(first.actor.store.put_post(&mine).await, Ok(true));
    assert!(reader.post().await.unwrap() == Some(mine.clone()));
    let second = first.after(subject).await;
    assert!(reader.post().await.unwrap().is_none(), "who wrote it does not lead");
    assert_eq!(first.actor.store.put_post(&mine).await, Ok(false));
    let stale = Post { token: first.token, ..post(&second, "x:1") };
    assert_eq!(second.actor.store.put_post(&stale).await, Ok(false));
    let ours = post(&second, "[::1]:80");
    assert_eq!(second.actor.store.put_post(&ours).await, Ok(true));
    assert!(reader.post().await.unwrap() == Some(ours.clone()));
    let moved = post(&second, "o'host:80");
    assert_eq!(second.actor.store.put_post(&moved).await, Ok(true));
    assert!(reader.post().await.unwrap() == Some(moved));
    second.actor.release(&claims_election(), 0, second.token).await;
    assert!(reader.post().await.unwrap().is_none());
}
