//! Claims about commits: how far a slot is read, under which token, and what of it was done beforehand.

use std::collections::BTreeSet;

use tenure_core::Token;
use tenure_core::port::{Begin, Committed, EventId, ShareCommit, Taken};

use super::Subject;
use super::events_hall::{Guest, Hall, SLOTS, aside, dead, event_ids, keyed, keys_in, numbered, retry};

/// For all to see, and for who takes it next.
pub async fn a_commit_moves_the_position(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let (a, b) = (Guest::of(subject, &hall, "a").await, Guest::of(subject, &hall, "b").await);
    let keys = keys_in(0, 2);
    hall.publish_each(&[&keys[0], &keys[1], &keys[0]]).await;
    let taken = a.take_one(0).await;
    let read = a.read(&taken).await;
    assert_eq!(read.len(), 3);
    assert_eq!(a.commit(a.read_to(&taken, read[1].position)).await, Committed::Yes);
    let share = b.share(0).await;
    assert_eq!((share.position, share.token), (read[1].position, taken.token));
    assert_eq!(a.commit(a.about(&taken)).await, Committed::Yes, "nothing new");
    assert_eq!(b.share(0).await.position, read[1].position);
    a.free(&[(0, taken.token)]).await;
    let next = b.take_one(0).await;
    assert_eq!(next.position, read[1].position);
    assert_eq!(event_ids(&b.read(&next).await), [read[2].id]);
    let others: Vec<_> = a.look().await.shares.iter().map(|share| share.position).collect();
    assert_eq!(others[1..], [0, 0, 0]);
}

/// Whoever lost a share, however it did, changes nothing of it any more.
pub async fn a_stale_commit_changes_nothing(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let heir = Guest::of(subject, &hall, "heir").await;
    let keys = keys_in(0, 2);
    let first = hall.publish_one(keyed(&keys[0])).await;
    hall.publish_each(&[&keys[1], &keys[0]]).await;
    for how in ["freed", "left", "taken over", "reset", "taken again", "guessed", "elsewhere"] {
        let a = Guest::of(subject, &hall, "a").await;
        let mut taken = a.take_one(0).await;
        let read = a.read(&taken).await;
        assert_eq!(read[0].id, first, "{how}");
        let mut group = a.group.clone();
        match how {
            "freed" => a.free(&[(0, taken.token)]).await,
            "left" => a.leave().await,
            "taken over" => {
                a.actor.store.end(&a.actor.id).await.unwrap();
                heir.take_one(0).await;
            }
            "reset" => {
                hall.store.reset_group(&a.group, Begin::Earliest, Some(0), false).await.unwrap();
            }
            // It is the same one that has it now, and not the same time.
            "taken again" => {
                hall.store.reset_group(&a.group, Begin::Earliest, Some(0), false).await.unwrap();
                a.take_one(0).await;
            }
            "guessed" => taken.token = Token::from_u64(taken.token.as_u64() + 1),
            _ => group = hall.group("nowhere"),
        }
        let commit = ShareCommit {
            group,
            done: vec![(read[1].id, read[1].position)],
            set_aside: vec![aside(&read[0], retry(1, 0))],
            settled: vec![(read[2].id, dead(1))],
            ..a.read_to(&taken, read[2].position)
        };
        let store = &heir.actor.store;
        assert_eq!(store.commit_shares(&[commit]).await, Ok(vec![Committed::Stale]), "{how}");
        let share = heir.share(0).await;
        assert_eq!(share.position, 0, "{how}");
        assert_eq!(hall.aside().await, [], "{how}");
        // Nobody has it now, but for the heir or the one that guessed.
        for guest in [&heir, &a] {
            if share.holder.as_ref() == Some(&guest.actor.id) {
                guest.free(&[(0, share.token)]).await;
            }
        }
        let next = heir.take_one(0).await;
        assert_eq!((next.position, &next.done, &next.aside), (0, &vec![], &vec![]), "{how}");
        heir.free(&[(0, next.token)]).await;
        a.leave().await;
    }
    let taken = heir.take_one(0).await;
    let nowhere = ShareCommit { slot: 99, ..heir.read_to(&taken, 1) };
    assert_eq!(heir.commit(nowhere).await, Committed::Stale, "no such slot");
}

/// Those that count do, whatever the others are.
pub async fn many_commits_are_answered_in_their_order(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let a = Guest::of(subject, &hall, "a").await;
    for slot in 0..SLOTS {
        hall.publish_one(keyed(&keys_in(slot, 1)[0])).await;
    }
    let taken = a.take(&[0, 1, 2, 3]).await;
    let mut commits = Vec::new();
    for it in &taken {
        commits.push(a.read_to(it, hall.latest(it.slot).await));
    }
    commits[2].token = Token::from_u64(commits[2].token.as_u64() + 7);
    let committed = a.commit_all(&commits).await;
    assert_eq!(committed, [Committed::Yes, Committed::Yes, Committed::Stale, Committed::Yes]);
    let lags: Vec<_> = hall.group_view().await.slots.iter().map(|slot| slot.lag).collect();
    assert_eq!(lags, [0, 0, 1, 0]);
    assert_eq!(a.commit_all(&[]).await, []);
}

/// Either it counts, and who comes next goes on behind it; or it does not.
pub async fn a_commit_and_a_take_over_exclude_each_other(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let heir = Guest::of(subject, &hall, "heir").await;
    let key = keys_in(0, 1).remove(0);
    for n in 0..15 {
        let a = Guest::of(subject, &hall, "a").await;
        let taken = a.take_one(0).await;
        hall.publish_one(numbered(&key, n)).await;
        let position = hall.latest(0).await;
        let bid = heir.bid(&[0]).await;
        let commit = a.read_to(&taken, position);
        let (store, id) = (a.actor.store.clone(), a.actor.id.clone());
        let late = tokio::spawn(async move { store.commit_shares(&[commit]).await.expect("commit")[0] });
        let taking = heir.actor.store.clone();
        let next = tokio::spawn(async move {
            taking.end(&id).await.expect("end");
            taking.take_shares(&bid).await.expect("take").remove(0)
        });
        let (committed, next) = (late.await.expect("commit"), next.await.expect("take"));
        let expected = if committed == Committed::Yes { position } else { taken.position };
        assert_eq!(next.position, expected, "{committed:?}, round {n}");
        assert_eq!(heir.share(0).await.position, expected, "{committed:?}, round {n}");
        heir.commit(heir.read_to(&next, position)).await;
        heir.free(&[(0, next.token)]).await;
    }
}

/// Known to who takes the slot next, until the position passes them.
pub async fn what_is_done_beforehand_is_remembered(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let (a, b) = (Guest::of(subject, &hall, "a").await, Guest::of(subject, &hall, "b").await);
    let keys = keys_in(0, 3);
    hall.publish(vec![keyed(&keys[0]), keyed(&keys[1])]).await;
    hall.publish_each(&[&keys[2], &keys[0], &keys[1]]).await;
    let mut taken = a.take_one(0).await;
    let read = a.read(&taken).await;
    let done = |taken: &Taken, places: &[usize]| ShareCommit {
        done: places.iter().map(|place| (read[*place].id, read[*place].position)).collect(),
        ..a.about(taken)
    };
    assert_eq!(a.commit(done(&taken, &[1, 3])).await, Committed::Yes);
    assert_eq!(a.commit(done(&taken, &[3, 4])).await, Committed::Yes, "said again");
    let set = |places: &[usize]| places.iter().map(|it| read[*it].id).collect::<BTreeSet<EventId>>();
    let told = |done: &[EventId]| done.iter().copied().collect::<BTreeSet<EventId>>();
    a.free(&[(0, taken.token)]).await;
    taken = b.take_one(0).await;
    assert_eq!((taken.position, told(&taken.done)), (0, set(&[1, 3, 4])));
    // As the position passes some, the others stay.
    b.commit(b.read_to(&taken, read[2].position)).await;
    b.free(&[(0, taken.token)]).await;
    taken = a.take_one(0).await;
    assert_eq!(told(&taken.done), set(&[3, 4]));
    // In one commit: what is done before the new position need not be remembered.
    let both = ShareCommit { position: Some(read[3].position), ..done(&taken, &[3]) };
    assert_eq!(a.commit(both).await, Committed::Yes);
    a.free(&[(0, taken.token)]).await;
    taken = a.take_one(0).await;
    assert_eq!(told(&taken.done), set(&[4]));
    a.commit(a.read_to(&taken, read[4].position)).await;
    a.free(&[(0, taken.token)]).await;
    taken = a.take_one(0).await;
    assert_eq!(taken.done, []);
    // One that does not lie where it is said to is nobody's.
    hall.publish_each(&[&keys[0], &keys[1]]).await;
    let new = a.read(&taken).await;
    let nowhere = ShareCommit { done: vec![(new[0].id, new[1].position)], ..a.about(&taken) };
    assert_eq!(a.commit(nowhere).await, Committed::Yes);
    a.free(&[(0, taken.token)]).await;
    assert_eq!(a.take_one(0).await.done, []);
    let other = Guest::by(b.actor, hall.group("other"), "b").await;
    assert_eq!(other.take_one(0).await.done, [], "each group has its own");
}

/// Each group for itself.
pub async fn groups_read_independently(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let a = Guest::of(subject, &hall, "a").await;
    let b = Guest::by(subject.actor("b").await, hall.group("other"), "b").await;
    hall.publish_one(keyed(&keys_in(0, 1)[0])).await;
    let (mine, theirs) = (a.take_one(0).await, b.take_one(0).await);
    a.commit(a.read_to(&mine, hall.latest(0).await)).await;
    assert_eq!(b.share(0).await.position, 0);
    assert_eq!(b.read(&theirs).await.len(), 1);
    let crossed = ShareCommit { group: b.group.clone(), ..a.read_to(&mine, hall.latest(0).await) };
    let same = mine.token == theirs.token;
    let expected = if same { Committed::Yes } else { Committed::Stale };
    assert_eq!(a.commit(crossed).await, expected, "a token is of its share");
}

/// By name, and nothing of the call counts.
pub async fn bad_commits_are_refused(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let a = Guest::of(subject, &hall, "a").await;
    hall.publish_one(keyed(&keys_in(0, 1)[0])).await;
    let taken = a.take_one(0).await;
    let event = a.read(&taken).await.remove(0);
    let commit = || a.read_to(&taken, event.position);
    let cases = [
        (ShareCommit { done: vec![(event.id, event.position), (event.id, 1)], ..commit() }, "is there twice"),
        (
            ShareCommit { set_aside: vec![aside(&event, tenure_core::port::Aside::Done)], ..commit() },
            "`done`",
        ),
        (ShareCommit { set_aside: vec![aside(&event, retry(0, 1))], ..commit() }, "count the attempt"),
        (
            ShareCommit { settled: vec![(event.id, tenure_core::port::Aside::Behind)], ..commit() },
            "leave it out",
        ),
        (ShareCommit { position: Some(u64::MAX), ..commit() }, "position"),
    ];
    for (commit, expected) in cases {
        let said = a.commit_refused(commit).await;
        assert!(said.contains(expected), "{said}\n{expected}");
    }
    assert_eq!(a.share(0).await.position, 0);
}
