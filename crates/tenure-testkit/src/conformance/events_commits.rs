//! Partition commits: offsets, tokens and events processed ahead.

use std::collections::BTreeSet;

use tenure_core::Token;
use tenure_core::port::{CommitResult, EventId, PartitionCommit, StartOffset, TakenPartition};

use super::StoreUnderTest;
use super::test_topic::{
    PARTITIONS, TestMember, TestTopic, dead, event_ids, keyed, keys_in, numbered, park_request, retry,
};

/// All members and the next holder see the committed offset.
pub async fn a_commit_moves_the_offset(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let (a, b) =
        (TestMember::of(subject, &test_topic, "a").await, TestMember::of(subject, &test_topic, "b").await);
    let keys = keys_in(0, 2);
    test_topic.publish_each(&[&keys[0], &keys[1], &keys[0]]).await;
    let taken = a.take_one(0).await;
    let read = a.read(&taken).await;
    assert_eq!(read.len(), 3);
    assert_eq!(a.commit(a.read_to(&taken, read[1].offset)).await, CommitResult::Committed);
    let lease = b.partition_lease(0).await;
    assert_eq!((lease.committed_offset, lease.token), (read[1].offset, taken.token));
    assert_eq!(a.commit(a.empty_commit(&taken)).await, CommitResult::Committed, "nothing new");
    assert_eq!(b.partition_lease(0).await.committed_offset, read[1].offset);
    a.release(&[(0, taken.token)]).await;
    let next = b.take_one(0).await;
    assert_eq!(next.offset, read[1].offset);
    assert_eq!(event_ids(&b.read(&next).await), [read[2].id]);
    let others: Vec<_> =
        a.assignment().await.partition_leases.iter().map(|lease| lease.committed_offset).collect();
    assert_eq!(others[1..], [0, 0, 0]);
}

/// A member that lost a partition, in any way, cannot change it any more.
pub async fn a_stale_commit_changes_nothing(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let successor = TestMember::of(subject, &test_topic, "heir").await;
    let keys = keys_in(0, 2);
    let first = test_topic.publish_one(keyed(&keys[0])).await;
    test_topic.publish_each(&[&keys[1], &keys[0]]).await;
    for how in ["freed", "left", "taken over", "reset", "taken again", "guessed", "elsewhere"] {
        let a = TestMember::of(subject, &test_topic, "a").await;
        let mut taken = a.take_one(0).await;
        let read = a.read(&taken).await;
        assert_eq!(read[0].id, first, "{how}");
        let mut group = a.group.clone();
        match how {
            "freed" => a.release(&[(0, taken.token)]).await,
            "left" => a.leave().await,
            "taken over" => {
                a.session.store.end_session(&a.session.id).await.unwrap();
                successor.take_one(0).await;
            }
            "reset" => {
                test_topic.store.reset_group(&a.group, StartOffset::Earliest, Some(0), false).await.unwrap();
            }
            // The same member takes the partition again and holds it under a new token.
            "taken again" => {
                test_topic.store.reset_group(&a.group, StartOffset::Earliest, Some(0), false).await.unwrap();
                a.take_one(0).await;
            }
            "guessed" => taken.token = Token::from_u64(taken.token.as_u64() + 1),
            _ => group = test_topic.group("nowhere"),
        }
        let commit = PartitionCommit {
            group,
            processed: vec![(read[1].id, read[1].offset)],
            parked: vec![park_request(&read[0], retry(1, 0))],
            parked_results: vec![(read[2].id, dead(1))],
            ..a.read_to(&taken, read[2].offset)
        };
        let store = &successor.session.store;
        assert_eq!(store.commit_partitions(&[commit]).await, Ok(vec![CommitResult::LeaseLost]), "{how}");
        let lease = successor.partition_lease(0).await;
        assert_eq!(lease.committed_offset, 0, "{how}");
        assert_eq!(test_topic.parked_events().await, [], "{how}");
        // Whichever member holds the partition now releases it, so that the successor can take it.
        for member in [&successor, &a] {
            if lease.holder.as_ref() == Some(&member.session.id) {
                member.release(&[(0, lease.token)]).await;
            }
        }
        let next = successor.take_one(0).await;
        assert_eq!(
            (next.offset, &next.processed_event_ids, &next.parked_keys),
            (0, &vec![], &vec![]),
            "{how}"
        );
        successor.release(&[(0, next.token)]).await;
        a.leave().await;
    }
    let taken = successor.take_one(0).await;
    let nowhere = PartitionCommit { partition: 99, ..successor.read_to(&taken, 1) };
    assert_eq!(successor.commit(nowhere).await, CommitResult::LeaseLost, "no such partition");
}

/// Each commit of a call is applied or rejected on its own; the results are in the order of the commits.
pub async fn commit_results_are_in_request_order(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let a = TestMember::of(subject, &test_topic, "a").await;
    for partition in 0..PARTITIONS {
        test_topic.publish_one(keyed(&keys_in(partition, 1)[0])).await;
    }
    let taken = a.take(&[0, 1, 2, 3]).await;
    let mut commits = Vec::new();
    for it in &taken {
        commits.push(a.read_to(it, test_topic.end_offset(it.partition).await));
    }
    commits[2].token = Token::from_u64(commits[2].token.as_u64() + 7);
    let committed = a.commit_all(&commits).await;
    assert_eq!(
        committed,
        [CommitResult::Committed, CommitResult::Committed, CommitResult::LeaseLost, CommitResult::Committed]
    );
    let lags: Vec<_> =
        test_topic.group_view().await.partitions.iter().map(|partition| partition.lag_events).collect();
    assert_eq!(lags, [0, 0, 1, 0]);
    assert_eq!(a.commit_all(&[]).await, []);
}

/// A commit that runs concurrently with a takeover is either applied, and the next holder continues after it, or
/// rejected.
pub async fn a_commit_and_a_takeover_exclude_each_other(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let successor = TestMember::of(subject, &test_topic, "heir").await;
    let key = keys_in(0, 1).remove(0);
    for n in 0..15 {
        let a = TestMember::of(subject, &test_topic, "a").await;
        let taken = a.take_one(0).await;
        test_topic.publish_one(numbered(&key, n)).await;
        let offset = test_topic.end_offset(0).await;
        let bid = successor.take_request(&[0]).await;
        let commit = a.read_to(&taken, offset);
        let (store, id) = (a.session.store.clone(), a.session.id.clone());
        let late = tokio::spawn(async move { store.commit_partitions(&[commit]).await.expect("commit")[0] });
        let taking = successor.session.store.clone();
        let next = tokio::spawn(async move {
            taking.end_session(&id).await.expect("end");
            taking.take_partitions(&bid).await.expect("take").remove(0)
        });
        let (committed, next) = (late.await.expect("commit"), next.await.expect("take"));
        let expected = if committed == CommitResult::Committed { offset } else { taken.offset };
        assert_eq!(next.offset, expected, "{committed:?}, round {n}");
        assert_eq!(successor.partition_lease(0).await.committed_offset, expected, "{committed:?}, round {n}");
        successor.commit(successor.read_to(&next, offset)).await;
        successor.release(&[(0, next.token)]).await;
    }
}

/// The next holder learns which events after the committed offset are processed, until the offset passes them.
pub async fn events_processed_ahead_are_remembered(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let (a, b) =
        (TestMember::of(subject, &test_topic, "a").await, TestMember::of(subject, &test_topic, "b").await);
    let keys = keys_in(0, 3);
    test_topic.publish(vec![keyed(&keys[0]), keyed(&keys[1])]).await;
    test_topic.publish_each(&[&keys[2], &keys[0], &keys[1]]).await;
    let mut taken = a.take_one(0).await;
    let read = a.read(&taken).await;
    let done = |taken: &TakenPartition, places: &[usize]| PartitionCommit {
        processed: places.iter().map(|place| (read[*place].id, read[*place].offset)).collect(),
        ..a.empty_commit(taken)
    };
    assert_eq!(a.commit(done(&taken, &[1, 3])).await, CommitResult::Committed);
    assert_eq!(a.commit(done(&taken, &[3, 4])).await, CommitResult::Committed, "repeated");
    let set = |places: &[usize]| places.iter().map(|it| read[*it].id).collect::<BTreeSet<EventId>>();
    let reported = |done: &[EventId]| done.iter().copied().collect::<BTreeSet<EventId>>();
    a.release(&[(0, taken.token)]).await;
    taken = b.take_one(0).await;
    assert_eq!((taken.offset, reported(&taken.processed_event_ids)), (0, set(&[1, 3, 4])));
    // When the offset passes some of them, the others stay.
    b.commit(b.read_to(&taken, read[2].offset)).await;
    b.release(&[(0, taken.token)]).await;
    taken = a.take_one(0).await;
    assert_eq!(reported(&taken.processed_event_ids), set(&[3, 4]));
    // If one commit also moves the offset, processed events before the new offset need not be stored.
    let both = PartitionCommit { offset: Some(read[3].offset), ..done(&taken, &[3]) };
    assert_eq!(a.commit(both).await, CommitResult::Committed);
    a.release(&[(0, taken.token)]).await;
    taken = a.take_one(0).await;
    assert_eq!(reported(&taken.processed_event_ids), set(&[4]));
    a.commit(a.read_to(&taken, read[4].offset)).await;
    a.release(&[(0, taken.token)]).await;
    taken = a.take_one(0).await;
    assert_eq!(taken.processed_event_ids, []);
    // An event that is not at the given offset is ignored.
    test_topic.publish_each(&[&keys[0], &keys[1]]).await;
    let new = a.read(&taken).await;
    let nowhere = PartitionCommit { processed: vec![(new[0].id, new[1].offset)], ..a.empty_commit(&taken) };
    assert_eq!(a.commit(nowhere).await, CommitResult::Committed);
    a.release(&[(0, taken.token)]).await;
    assert_eq!(a.take_one(0).await.processed_event_ids, []);
    let other = TestMember::by(b.session, test_topic.group("other"), "b").await;
    assert_eq!(other.take_one(0).await.processed_event_ids, [], "each group has its own");
}

/// Each group has its own offsets.
pub async fn groups_read_independently(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let a = TestMember::of(subject, &test_topic, "a").await;
    let b = TestMember::by(subject.session("b").await, test_topic.group("other"), "b").await;
    test_topic.publish_one(keyed(&keys_in(0, 1)[0])).await;
    let (mine, theirs) = (a.take_one(0).await, b.take_one(0).await);
    a.commit(a.read_to(&mine, test_topic.end_offset(0).await)).await;
    assert_eq!(b.partition_lease(0).await.committed_offset, 0);
    assert_eq!(b.read(&theirs).await.len(), 1);
    let crossed =
        PartitionCommit { group: b.group.clone(), ..a.read_to(&mine, test_topic.end_offset(0).await) };
    let same = mine.token == theirs.token;
    let expected = if same { CommitResult::Committed } else { CommitResult::LeaseLost };
    assert_eq!(a.commit(crossed).await, expected, "a token belongs to its partition lease");
}

/// The error describes the problem, and nothing of the call is applied.
pub async fn invalid_commits_are_rejected(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let a = TestMember::of(subject, &test_topic, "a").await;
    test_topic.publish_one(keyed(&keys_in(0, 1)[0])).await;
    let taken = a.take_one(0).await;
    let event = a.read(&taken).await.remove(0);
    let commit = || a.read_to(&taken, event.offset);
    let cases = [
        (
            PartitionCommit { processed: vec![(event.id, event.offset), (event.id, 1)], ..commit() },
            "occurs twice",
        ),
        (
            PartitionCommit {
                parked: vec![park_request(&event, tenure_core::port::ParkedEventState::Processed)],
                ..commit()
            },
            "`processed`",
        ),
        (
            PartitionCommit { parked: vec![park_request(&event, retry(0, 1))], ..commit() },
            "count the failed attempt",
        ),
        (
            PartitionCommit {
                parked_results: vec![(event.id, tenure_core::port::ParkedEventState::Waiting)],
                ..commit()
            },
            "omit it",
        ),
        (PartitionCommit { offset: Some(u64::MAX), ..commit() }, "offset"),
    ];
    for (commit, expected) in cases {
        let message = a.commit_refused(commit).await;
        assert!(message.contains(expected), "{message}\n{expected}");
    }
    assert_eq!(a.partition_lease(0).await.committed_offset, 0);
}
