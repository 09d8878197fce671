//! Consumer groups: members, and leases of partitions.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_core::port::{
    ErrorKind, ExpireSessionRequest, GroupMember, GroupSettings, JoinGroupRequest, MaintenanceRequest,
    NewEvent, Offset, Payload, StartOffset, TakePartitionsRequest, TakenPartition,
};
use tenure_core::{SessionId, Token};

use super::StoreUnderTest;
use super::test_topic::{
    PARTITIONS, TestMember, TestTopic, expect_nothing, joining, keyed, keys_in, numbered, refused, topic,
};

/// The first join creates the group with default settings and one free lease per partition.
pub async fn a_group_is_created_by_its_first_member(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let session = subject.session("a").await;
    let group = test_topic.group("g");
    assert_eq!(session.store.group_assignment(&group).await, Ok(None));
    assert_eq!(session.store.group(&group).await, Ok(None));
    let look = session.store.join_group(&joining(&session, &group, "a 'b' \"c\"")).await.unwrap();
    assert_eq!(look.members, [GroupMember { session: session.id.clone(), name: "a 'b' \"c\"".into() }]);
    assert_eq!((look.settings, look.paused), (GroupSettings::default(), None));
    assert_eq!(
        look.partition_leases.iter().map(|lease| lease.partition).collect::<Vec<_>>(),
        (0..PARTITIONS).collect::<Vec<_>>()
    );
    for lease in &look.partition_leases {
        assert_eq!(
            (lease.holder.as_ref(), lease.last_member.as_str(), lease.committed_offset),
            (None, "", 0)
        );
    }
    assert_eq!(test_topic.view().await.groups, std::slice::from_ref(&group.name));
    let other =
        test_topic.reopen(subject).await.store.group_assignment(&group).await.unwrap().expect("it exists");
    assert_eq!((other.members, other.partition_leases), (look.members, look.partition_leases));
}

/// A new group starts at the first event, after the last event, after an offset, or at an instant.
pub async fn a_group_starts_at_the_requested_offset(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let session = subject.session("a").await;
    let key = keys_in(1, 1).remove(0);
    test_topic.publish(vec![numbered(&key, 0), numbered(&key, 1)]).await;
    let first = test_topic.end_offset(1).await;
    test_topic.publish(vec![numbered(&key, 2)]).await;
    let before = test_topic.all().await.last().expect("three").published_at_ms;
    test_topic.wait_past(before).await;
    test_topic.publish(vec![numbered(&key, 3)]).await;
    let last = test_topic.all().await.pop().expect("four");
    let cases = [
        ("earliest", StartOffset::Earliest, 4),
        ("latest", StartOffset::Latest, 0),
        ("position", StartOffset::Offset(first), 2),
        ("beyond", StartOffset::Offset(i64::MAX as u64), 0),
        ("time", StartOffset::PublishedAtMs(last.published_at_ms), 1),
        ("past", StartOffset::PublishedAtMs(0), 4),
        ("future", StartOffset::PublishedAtMs(last.published_at_ms + 3_600_000), 0),
    ];
    for (name, from, expected) in cases {
        let join = JoinGroupRequest { from, ..joining(&session, &test_topic.group(name), "a") };
        let look = session.store.join_group(&join).await.unwrap();
        let lease = &look.partition_leases[1];
        assert_eq!(test_topic.read(&[(1, lease.committed_offset)], 100).await.len(), expected, "{name}");
        assert!(lease.committed_offset <= last.offset, "{name}: no future event is skipped");
        let set = test_topic.group(&format!("set-{name}"));
        assert_eq!(test_topic.store.set_group(&set, &GroupSettings::default(), from).await, Ok(true));
        let view = test_topic.store.group(&set).await.unwrap().expect("it exists");
        assert_eq!(view.partitions[1].partition_lease.committed_offset, lease.committed_offset, "{name}");
        // A repeated join does not change the start offset.
        let again = JoinGroupRequest { from: StartOffset::Earliest, ..join };
        assert_eq!(
            session.store.join_group(&again).await.unwrap().partition_leases[1].committed_offset,
            lease.committed_offset
        );
    }
    test_topic.publish(vec![numbered(&key, 4)]).await;
    for name in ["latest", "beyond", "future"] {
        let view = test_topic.store.group(&test_topic.group(name)).await.unwrap().expect("it exists");
        assert_eq!(
            test_topic.read(&[(1, view.partitions[1].partition_lease.committed_offset)], 100).await.len(),
            1,
            "{name}"
        );
    }
}

/// A join is rejected for an ended session, an unknown topic or an invalid name, and the error names the problem.
pub async fn an_invalid_join_is_rejected(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let (ended, here) = (subject.session("gone").await, subject.session("here").await);
    ended.store.end_session(&ended.id).await.unwrap();
    let group = test_topic.group("g");
    let error = test_topic.store.join_group(&joining(&ended, &group, "gone")).await.expect_err("has ended");
    assert!(matches!(error.kind, ErrorKind::Request | ErrorKind::Denied), "{error}");
    assert_eq!(test_topic.store.group(&group).await.unwrap().map_or(0, |view| view.members.len()), 0);
    let nowhere = tenure_core::port::GroupKey::new(topic("nowhere"), "g".parse().unwrap());
    let message = refused(here.store.join_group(&joining(&here, &nowhere, "a")).await);
    assert!(message.contains("nowhere") && message.contains("topics create"), "{message}");
    let message =
        refused(here.store.set_group(&nowhere, &GroupSettings::default(), StartOffset::Earliest).await);
    assert!(message.contains("nowhere"), "{message}");
    for bad in ["", "a\nb"] {
        assert!(refused(here.store.join_group(&joining(&here, &group, bad)).await).contains("member name"));
    }
}

/// Joining again replaces the name of the member and does not add a second member.
pub async fn joining_again_changes_the_name(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let a = TestMember::of(subject, &test_topic, "a").await;
    let b = TestMember::of(subject, &test_topic, "b").await;
    a.take(&[0]).await;
    let renamed = TestMember::by(a.session, a.group, "c").await;
    let look = b.assignment().await;
    let mut names: Vec<_> = look.members.iter().map(|member| member.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["b", "c"]);
    assert!(look.members.is_sorted_by_key(|member| &member.session), "by session");
    assert_eq!(look.partition_leases[0].holder, Some(renamed.session.id.clone()), "it keeps its partitions");
}

/// A take returns the token, the committed offset and the parked keys; other members see the new holder.
pub async fn a_free_partition_is_taken(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let (a, b) =
        (TestMember::of(subject, &test_topic, "a").await, TestMember::of(subject, &test_topic, "b").await);
    let before = b.assignment().await;
    let taken = a.take(&[0, 2]).await;
    assert_eq!(taken.iter().map(|it| it.partition).collect::<Vec<_>>(), [0, 2]);
    for it in &taken {
        assert!(it.token > before.partition_leases[it.partition as usize].token && it.token.grant() > 0);
        assert_eq!((it.offset, &it.processed_event_ids, &it.parked_keys), (0, &vec![], &vec![]));
        let lease = b.partition_lease(it.partition).await;
        assert_eq!(
            (lease.token, lease.holder, lease.last_member),
            (it.token, Some(a.session.id.clone()), "a".into())
        );
    }
    assert_eq!(b.partition_lease(1).await, before.partition_leases[1]);
    assert_eq!(taken[0].token.epoch(), a.session.epoch);
}

/// Neither another member nor the holder itself can take a held partition.
pub async fn a_held_partition_is_not_taken(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let (a, b) =
        (TestMember::of(subject, &test_topic, "a").await, TestMember::of(subject, &test_topic, "b").await);
    let taken = a.take_one(1).await;
    for member in [&a, &b] {
        assert_eq!(member.take(&[1]).await, []);
    }
    assert_eq!(b.partition_lease(1).await.token, taken.token);
    assert_eq!(b.take(&[0, 1, 2]).await.len(), 2, "the others are free");
}

/// A take with an outdated token is rejected; the member must read the assignment again.
pub async fn a_take_of_a_partition_compares_its_token(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let (a, b) =
        (TestMember::of(subject, &test_topic, "a").await, TestMember::of(subject, &test_topic, "b").await);
    let observed = b.take_request(&[0, 1]).await;
    let taken = a.take_one(0).await;
    a.release(&[(0, taken.token)]).await;
    let got = b.session.store.take_partitions(&observed).await.unwrap();
    assert_eq!(got.iter().map(|it| it.partition).collect::<Vec<_>>(), [1]);
    let never = TakePartitionsRequest {
        partitions: vec![(0, Token::from_u64(12_345)), (99, Token::ZERO)],
        ..observed
    };
    assert_eq!(b.session.store.take_partitions(&never).await, Ok(vec![]));
    assert_eq!(b.take_one(0).await.token, taken.token.next(b.session.epoch));
}

/// A session that never joined, has left or has ended cannot take a partition.
pub async fn a_session_that_is_no_member_takes_no_partition(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let a = TestMember::of(subject, &test_topic, "a").await;
    let stranger = subject.session("stranger").await;
    let bid = TakePartitionsRequest { session: stranger.id.clone(), ..a.take_request(&[0]).await };
    assert_eq!(stranger.store.take_partitions(&bid).await, Ok(vec![]));
    let left = TestMember::of(subject, &test_topic, "left").await;
    left.leave().await;
    assert_eq!(left.take(&[0]).await, []);
    let dead = TestMember::of(subject, &test_topic, "dead").await;
    let bid = dead.take_request(&[0]).await;
    dead.session.store.end_session(&dead.session.id).await.unwrap();
    match dead.session.store.take_partitions(&bid).await {
        Ok(taken) => assert_eq!(taken, []),
        Err(error) => assert!(matches!(error.kind, ErrorKind::Request | ErrorKind::Denied), "{error}"),
    }
    assert_eq!(a.partition_lease(0).await.holder, None);
    let nowhere = TakePartitionsRequest { group: test_topic.group("nowhere"), ..a.take_request(&[0]).await };
    expect_nothing(a.session.store.take_partitions(&nowhere).await, "nowhere");
}

/// If several members take the same partition at the same time, one of them gets it.
pub async fn of_concurrent_takes_of_a_partition_one_wins(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let mut tokens = BTreeSet::new();
    let mut members = Vec::new();
    for n in 0..6 {
        members.push(TestMember::of(subject, &test_topic, &format!("m{n}")).await);
    }
    for _ in 0..5 {
        let mut calls = tokio::task::JoinSet::new();
        for member in &members {
            let (store, bid) = (member.session.store.clone(), member.take_request(&[0, 1, 2, 3]).await);
            calls.spawn(async move { store.take_partitions(&bid).await.expect("take_shares") });
        }
        let taken: Vec<TakenPartition> = calls.join_all().await.concat();
        let mut partitions: Vec<_> = taken.iter().map(|it| it.partition).collect();
        partitions.sort_unstable();
        assert_eq!(partitions, [0, 1, 2, 3], "each by one");
        for it in &taken {
            assert!(tokens.insert((it.partition, it.token)), "never the same token twice");
        }
        members[0].release(&taken.iter().map(|it| (it.partition, it.token)).collect::<Vec<_>>()).await;
    }
}

/// When a session ends or is expired, it is no longer a member, and its partitions are free.
pub async fn the_partitions_of_a_dead_session_are_free(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let successor = TestMember::of(subject, &test_topic, "heir").await;
    for (partition, expired) in [(0, false), (1, true)] {
        let ended = TestMember::of(subject, &test_topic, "gone").await;
        let taken = ended.take_one(partition).await;
        if expired {
            let sessions = successor
                .session
                .store
                .sessions(Some(std::slice::from_ref(&ended.session.id)))
                .await
                .unwrap();
            let beat = Some(sessions[0].heartbeat_count);
            let expire = ExpireSessionRequest {
                session: ended.session.id.clone(),
                epoch: successor.session.epoch,
                heartbeat_count: beat,
            };
            successor.session.store.expire_session(&expire).await.unwrap();
        } else {
            ended.session.store.end_session(&ended.session.id).await.unwrap();
        }
        let look = successor.assignment().await;
        assert_eq!(look.members.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["heir"]);
        let lease = &look.partition_leases[partition as usize];
        assert_eq!(
            (lease.holder.as_ref(), lease.last_member.as_str(), lease.token),
            (None, "gone", taken.token)
        );
        assert!(successor.take_one(partition).await.token > taken.token);
        assert_eq!(test_topic.group_view().await.members.len(), 1);
    }
}

/// Leaving releases the partitions at once, and the session may join again.
pub async fn a_leaving_member_releases_its_partitions(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let (a, b) =
        (TestMember::of(subject, &test_topic, "a").await, TestMember::of(subject, &test_topic, "b").await);
    let taken = a.take(&[0, 1]).await;
    b.take_one(2).await;
    a.leave().await;
    a.leave().await;
    let look = b.assignment().await;
    assert_eq!(look.members.len(), 1);
    let holders: Vec<Option<SessionId>> =
        look.partition_leases.iter().map(|lease| lease.holder.clone()).collect();
    assert_eq!(holders, [None, None, Some(b.session.id.clone()), None]);
    assert_eq!(
        (look.partition_leases[0].last_member.as_str(), look.partition_leases[0].token),
        ("a", taken[0].token)
    );
    a.join().await.unwrap();
    assert!(a.take_one(0).await.token > taken[0].token);
    let never = subject.session("never").await;
    never.store.leave_group(&test_topic.group("nowhere"), &never.id).await.unwrap();
}

/// A release under another token has no effect.
pub async fn a_partition_is_released_under_its_token(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let (a, b) =
        (TestMember::of(subject, &test_topic, "a").await, TestMember::of(subject, &test_topic, "b").await);
    let taken = a.take_one(0).await;
    a.release(&[(0, Token::from_u64(taken.token.as_u64() + 1)), (1, taken.token), (99, taken.token)]).await;
    assert_eq!(b.partition_lease(0).await.holder, Some(a.session.id.clone()));
    a.release(&[(0, taken.token)]).await;
    assert_eq!(b.partition_lease(0).await.holder, None);
    let next = b.take_one(0).await;
    a.release(&[(0, taken.token)]).await;
    let lease = a.partition_lease(0).await;
    assert_eq!(
        (lease.holder, lease.token, lease.last_member),
        (Some(b.session.id.clone()), next.token, "b".into())
    );
    a.session.store.release_partitions(&test_topic.group("nowhere"), &[(0, taken.token)]).await.unwrap();
}

/// The token of a partition lease grows with every take and reset, also after a session was expired.
pub async fn tokens_of_a_partition_lease_only_grow(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let group = test_topic.group("g");
    let mut last = Token::ZERO;
    for n in 0..3 {
        let member = TestMember::of(subject, &test_topic, "m").await;
        let taken = member.take_one(0).await;
        assert!(taken.token > last, "taken {n}");
        last = taken.token;
        test_topic.store.reset_group(&group, StartOffset::Earliest, None, false).await.unwrap();
        let lease = member.partition_lease(0).await;
        assert!(lease.token > last && lease.holder.is_none(), "reset {n}");
        last = lease.token;
        let taken = member.take_one(0).await;
        assert!(taken.token > last);
        last = taken.token;
        member.session.store.end_session(&member.session.id).await.unwrap();
    }
}

/// The counter grows when a partition moves to another member name, not at its first take or when the same name takes
/// it again.
pub async fn rebalanced_partitions_are_counted_by_name(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let a = TestMember::of(subject, &test_topic, "a").await;
    let mine = a.take(&[0, 1]).await;
    assert_eq!(test_topic.group_view().await.rebalanced_partition_count, 0);
    a.leave().await;
    let again = TestMember::of(subject, &test_topic, "a").await;
    again.take(&[0]).await;
    assert_eq!(
        test_topic.group_view().await.rebalanced_partition_count,
        0,
        "another session with the same name"
    );
    let b = TestMember::of(subject, &test_topic, "b").await;
    b.take(&[0, 1, 2]).await;
    assert_eq!(test_topic.group_view().await.rebalanced_partition_count, 1, "slot 1 alone: {mine:?}");
}

/// The rebalance delay is counted from the time at which the group last had no members.
pub async fn the_rebalance_delay_restarts_after_a_group_was_empty(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let a = TestMember::of(subject, &test_topic, "a").await;
    let mut gathered = 0;
    while gathered < 500 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        gathered = a.assignment().await.active_ms;
    }
    let b = TestMember::of(subject, &test_topic, "b").await;
    assert!(b.assignment().await.active_ms >= gathered, "a later member changes nothing");
    assert!(a.join().await.unwrap().active_ms >= gathered, "nor does a repeated join");
    a.leave().await;
    assert!(b.assignment().await.active_ms >= gathered, "nor does a leaving member while another is present");
    // `a` has left; now the session of `b` ends.
    b.session.store.end_session(&b.session.id).await.unwrap();
    assert_eq!(a.assignment().await.active_ms, 0);
    assert!(a.join().await.unwrap().active_ms < gathered);
}

/// Members that follow their plans distribute the partitions with the minimum number of moves.
pub async fn partitions_are_distributed_evenly(subject: &StoreUnderTest) {
    let settings = tenure_core::port::TopicSettings { partitions: 13, ..Default::default() };
    let test_topic = TestTopic::with(subject, settings).await;
    let mut members = Vec::new();
    let mut moves = 0;
    for (name, must) in [("a", 0), ("b", 6), ("c", 4)] {
        members.push(TestMember::of(subject, &test_topic, name).await);
        settle(&members).await;
        moves += must;
        assert_eq!(test_topic.group_view().await.rebalanced_partition_count, moves, "{name} comes");
    }
    assert_eq!(loads(&members).await, [5, 4, 4]);
    let ended = members.remove(0);
    ended.session.store.end_session(&ended.session.id).await.unwrap();
    settle(&members).await;
    assert_eq!(
        test_topic.group_view().await.rebalanced_partition_count,
        moves + 5,
        "those of the dead member"
    );
    let mut now = loads(&members).await;
    now.sort_unstable();
    assert_eq!(now, [6, 7]);
}

async fn settle(members: &[TestMember]) {
    loop {
        let mut busy = false;
        for member in members.iter().rev() {
            busy |= member.balance().await;
        }
        if !busy {
            return;
        }
    }
}

async fn loads(members: &[TestMember]) -> Vec<usize> {
    let look = members[0].assignment().await;
    let load = |member: &TestMember| {
        look.partition_leases.iter().filter(|lease| lease.holder.as_ref() == Some(&member.session.id)).count()
    };
    members.iter().map(load).collect()
}

/// Maintenance prunes events that every group has read, once their retention is over.
pub async fn old_events_are_pruned_after_they_are_read(subject: &StoreUnderTest) {
    let maintenance = super::test_queue::TestMaintenance::of(subject).await;
    let settings =
        tenure_core::port::TopicSettings { partitions: PARTITIONS, retention_ms: 0, ..Default::default() };
    let test_topic = TestTopic::with(subject, settings).await;
    let key = keys_in(1, 1).remove(0);
    let once = NewEvent { idempotency_key: Some("once".into()), ..keyed(&key) };
    test_topic.publish(vec![once.clone(), keyed(&key)]).await;
    test_topic.publish(vec![keyed(&key)]).await;
    let (a, b) = (TestMember::of(subject, &test_topic, "a").await, subject.session("b").await);
    let slow = TestMember::by(b, test_topic.group("slow"), "b").await;
    let last = test_topic.all().await.pop().expect("three");
    test_topic.wait_past(last.published_at_ms).await;
    let request = maintenance.request();
    assert_eq!(test_topic.prune(&request).await, (0, false), "no group has read anything");
    let taken = a.take_one(1).await;
    a.commit(a.read_to(&taken, last.offset)).await;
    assert_eq!(test_topic.prune(&request).await, (0, false), "one group has not");
    let first = test_topic.all().await[0].clone();
    let taken = slow.take_one(1).await;
    slow.commit(slow.read_to(&taken, first.offset)).await;
    for refused in [
        MaintenanceRequest { token: Token::from_u64(maintenance.token.as_u64() + 1), ..request.clone() },
        MaintenanceRequest { session: a.session.id.clone(), ..request.clone() },
        MaintenanceRequest { clock_ms: None, ..request.clone() },
        MaintenanceRequest { clock_ms: Some(first.published_at_ms), ..request.clone() },
    ] {
        assert_eq!(test_topic.prune(&refused).await, (0, false), "{refused:?}");
    }
    test_topic.prune_until(&maintenance, 2).await;
    assert_eq!(test_topic.all().await.len(), 1);
    assert_eq!(test_topic.view().await.event_count, 1);
    assert_eq!(test_topic.store.event(&test_topic.key, first.id).await, Ok(None));
    let ends = test_topic.partition_offsets().await[1];
    assert!(ends.start_offset >= first.offset && ends.start_offset < last.offset, "{ends:?}");
    assert_eq!(ends.end_offset, last.offset);
    assert!(test_topic.publish(vec![once]).await[0].created, "its idempotency key is removed with it");
    let late = test_topic.group("late");
    test_topic.store.set_group(&late, &GroupSettings::default(), StartOffset::Earliest).await.unwrap();
    let begins = test_topic.store.group(&late).await.unwrap().expect("it exists").partitions[1].clone();
    assert_eq!((begins.partition_lease.committed_offset, begins.lag_events), (ends.start_offset, 2));
}

/// Maintenance prunes unread events only if the topic limits their retention.
pub async fn unread_events_are_pruned_after_their_retention(subject: &StoreUnderTest) {
    let maintenance = super::test_queue::TestMaintenance::of(subject).await;
    let settings = tenure_core::port::TopicSettings {
        partitions: 1,
        retention_ms: 0,
        unread_retention_ms: Some(0),
        ..Default::default()
    };
    let test_topic = TestTopic::with(subject, settings).await;
    let member = TestMember::of(subject, &test_topic, "a").await;
    for _ in 0..3 {
        test_topic.publish(vec![keyed("a"), keyed("b")]).await;
    }
    let last = test_topic.all().await.pop().expect("six");
    test_topic.wait_past(last.published_at_ms).await;
    let part = MaintenanceRequest { limit: 2, ..maintenance.request() };
    assert_eq!(
        test_topic.prune(&part).await,
        (4, true),
        "commit batches are pruned as a whole, at most so many at a time"
    );
    assert_eq!(test_topic.prune(&part).await, (2, false));
    let view = test_topic.group_view().await;
    assert_eq!((view.partitions[0].lag_events, view.lag()), (0, (0, true)));
    assert_eq!(test_topic.view().await.oldest_published_at_ms, None);
    test_topic.publish(vec![keyed("a")]).await;
    let taken = member.take_one(0).await;
    assert_eq!(member.read(&taken).await.len(), 1, "it continues after the pruned events");
}

/// Offsets are never reused, so a reset of an empty partition to its end does not move the offset back.
pub async fn an_empty_partition_keeps_its_offset(subject: &StoreUnderTest) {
    let maintenance = super::test_queue::TestMaintenance::of(subject).await;
    let settings = tenure_core::port::TopicSettings { partitions: 1, retention_ms: 0, ..Default::default() };
    let test_topic = TestTopic::with(subject, settings).await;
    let member = TestMember::of(subject, &test_topic, "a").await;
    test_topic.publish(vec![keyed("a"), keyed("b")]).await;
    let read = test_topic.all().await;
    let taken = member.take_one(0).await;
    let offset: Offset = read[1].offset;
    let parked = super::test_topic::park_request(&read[0], super::test_topic::dead(1));
    member
        .commit(tenure_core::port::PartitionCommit { parked: vec![parked], ..member.read_to(&taken, offset) })
        .await;
    test_topic.wait_past(read[1].published_at_ms).await;
    test_topic.prune_until(&maintenance, 2).await;
    let moved = test_topic.store.reset_group(&member.group, StartOffset::Latest, None, false).await.unwrap();
    assert_eq!((moved[0].from_offset, moved[0].to_offset >= offset), (offset, true), "{moved:?}");
    assert_eq!(
        test_topic.parked_events().await.len(),
        1,
        "a parked event that will not be read again is kept"
    );
    test_topic.publish(vec![NewEvent { payload: Payload::Bytes(vec![1]), ..keyed("a") }]).await;
    let taken = member.take_one(0).await;
    let read = member.read(&taken).await;
    assert!(read.len() == 1 && read[0].offset > offset);
}
