//! Administration of topics and groups: settings, lag, resets, pauses, webhooks.

use tenure_core::Name;
use tenure_core::port::{
    Backoff, CommitResult, GROUPS_MAX, GroupKey, GroupSettings, JoinGroupRequest, OffsetChange,
    PartitionCommit, StartOffset, TopicKey, TopicSettings, Webhook, WebhookSettings,
};

use super::StoreUnderTest;
use super::test_queue::pause;
use super::test_topic::{
    PARTITIONS, TestMember, TestTopic, dead, event_ids, keyed, keys_in, park_request, refused, retry, topic,
};

/// The number of groups is limited, because a reader creates a group by naming it and every group costs storage and
/// delays pruning.
pub async fn the_number_of_groups_of_a_topic_is_limited(subject: &StoreUnderTest) {
    let test_topic =
        TestTopic::with(subject, TopicSettings { partitions: 1, ..TopicSettings::default() }).await;
    let settings = GroupSettings::default();
    for n in 0..GROUPS_MAX {
        let made = test_topic
            .store
            .set_group(&test_topic.group(&format!("g{n}")), &settings, StartOffset::Earliest)
            .await;
        assert_eq!(made, Ok(true), "{n}");
    }
    let message = refused(
        test_topic.store.set_group(&test_topic.group("more"), &settings, StartOffset::Earliest).await,
    );
    assert!(message.contains("256 groups") && message.contains("cannot create group"), "{message}");
    let more = test_topic.group("more");
    let member = TestMember::by(subject.session("m").await, test_topic.group("g0"), "m").await;
    refused(test_topic.store.join_group(&JoinGroupRequest { group: more.clone(), ..member.joining() }).await);
    assert_eq!(test_topic.store.group(&more).await, Ok(None));
    assert!(member.join().await.is_ok(), "existing groups still work");
    assert_eq!(
        test_topic.store.set_group(&test_topic.group("g1"), &settings, StartOffset::Earliest).await,
        Ok(false)
    );
    assert_eq!(test_topic.store.delete_group(&test_topic.group("g1")).await, Ok(true));
    assert_eq!(test_topic.store.set_group(&more, &settings, StartOffset::Earliest).await, Ok(true));
}

/// All settings are kept and can be changed, except the number of partitions.
pub async fn a_topic_keeps_all_settings(subject: &StoreUnderTest) {
    let settings = TopicSettings {
        partitions: 7,
        retention_ms: 1_000,
        unread_retention_ms: Some(2_000),
        max_payload_bytes: 512,
    };
    let test_topic = TestTopic::with(subject, settings).await;
    let other = test_topic.reopen(subject).await;
    let view = other.view().await;
    assert_eq!((view.key, view.settings), (test_topic.key.clone(), settings));
    assert_eq!((view.event_count, view.oldest_published_at_ms, view.newest_published_at_ms), (0, None, None));
    assert_eq!((view.groups, view.lock_holders), (vec![], vec![]));
    let again =
        TopicSettings { retention_ms: 5_000, unread_retention_ms: None, max_payload_bytes: 9, ..settings };
    assert_eq!(test_topic.store.set_topic(&test_topic.key, &again).await, Ok(false));
    assert_eq!(other.view().await.settings, again);
    let ends = test_topic.partition_offsets().await;
    assert_eq!(ends.iter().map(|it| it.partition).collect::<Vec<_>>(), (0..7).collect::<Vec<_>>());
    assert!(ends.iter().all(|it| it.start_offset == 0 && it.end_offset == 0));
}

/// The error contains both numbers of partitions.
pub async fn another_number_of_partitions_is_rejected(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let more = TopicSettings { partitions: PARTITIONS + 1, ..TopicSettings::default() };
    let message = refused(test_topic.store.set_topic(&test_topic.key, &more).await);
    assert!(message.contains(&format!("{PARTITIONS} partitions")) && message.contains('t'), "{message}");
    assert_eq!(test_topic.view().await.settings.partitions, PARTITIONS);
}

/// Invalid settings are rejected before anything is created.
pub async fn invalid_settings_are_rejected(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let usual = TopicSettings::default;
    for (bad, expected) in [
        (TopicSettings { partitions: 0, ..usual() }, "partitions is 0"),
        (TopicSettings { partitions: 1_025, ..usual() }, "partitions is 1025"),
        (TopicSettings { max_payload_bytes: 1 << 21, ..usual() }, "max_payload_bytes"),
        (TopicSettings { retention_ms: 10, unread_retention_ms: Some(9), ..usual() }, "unread_retention_ms"),
    ] {
        let message = refused(test_topic.store.set_topic(&topic("bad"), &bad).await);
        assert!(message.contains(expected), "{message}");
    }
    assert_eq!(test_topic.store.topic(&topic("bad")).await, Ok(None));
    let group = test_topic.group("g");
    let backoff = Backoff { initial_ms: 2, max_ms: 1 };
    for bad in [
        GroupSettings { max_attempts: 0, ..GroupSettings::default() },
        GroupSettings { backoff, ..GroupSettings::default() },
    ] {
        refused(test_topic.store.set_group(&group, &bad, StartOffset::Earliest).await);
    }
    refused(
        test_topic.store.set_group(&group, &GroupSettings::default(), StartOffset::Offset(u64::MAX)).await,
    );
    assert_eq!(test_topic.store.group(&group).await, Ok(None));
}

/// A list covers one namespace or all, and shows the number of events of each topic.
pub async fn topics_are_listed_by_namespace(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let namespace: Name = "else".parse().unwrap();
    let other = test_topic.other_topic(TopicKey::new(namespace.clone(), "a".parse().unwrap())).await;
    test_topic.other_topic(topic("a")).await;
    test_topic.publish_each(&["a", "b"]).await;
    other.publish_each(&["a"]).await;
    let names = |views: Vec<tenure_core::port::TopicView>| {
        views.into_iter().map(|view| (view.key.to_string(), view.event_count)).collect::<Vec<_>>()
    };
    let here = names(test_topic.store.topics(Some(&test_topic.key.namespace)).await.unwrap());
    assert_eq!(here, [("a".to_owned(), 0), ("t".to_owned(), 2)]);
    assert_eq!(names(test_topic.store.topics(Some(&namespace)).await.unwrap()), [("else/a".to_owned(), 1)]);
    let mut all = names(test_topic.store.topics(None).await.unwrap());
    all.sort();
    assert_eq!(all.len(), 3);
    let (view, events) = (test_topic.view().await, test_topic.all().await);
    let times = || events.iter().map(|event| event.published_at_ms);
    assert_eq!((view.oldest_published_at_ms, view.newest_published_at_ms), (times().min(), times().max()));
}

/// Deleting a topic deletes its events and groups, and a new topic with the same name is empty. The call fails while a
/// group has live members.
pub async fn a_topic_can_be_deleted(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    assert_eq!(test_topic.store.delete_topic(&topic("nowhere")).await, Ok(false));
    let id = test_topic.publish_one(keyed("a")).await;
    let member = TestMember::of(subject, &test_topic, "a").await;
    let message = refused(test_topic.store.delete_topic(&test_topic.key).await);
    assert!(message.contains('t') && message.contains("live member"), "{message}");
    member.leave().await;
    assert_eq!(test_topic.store.delete_topic(&test_topic.key).await, Ok(true));
    assert_eq!(test_topic.store.topic(&test_topic.key).await, Ok(None));
    assert_eq!(test_topic.store.group(&member.group).await, Ok(None));
    assert_eq!(test_topic.store.event(&test_topic.key, id).await, Ok(None));
    assert!(test_topic.refused(vec![keyed("a")]).await.contains("topics create"));
    let settings = TopicSettings { partitions: 2, ..TopicSettings::default() };
    assert_eq!(test_topic.store.set_topic(&test_topic.key, &settings).await, Ok(true));
    assert_eq!(test_topic.all().await, []);
    assert_eq!(test_topic.view().await.groups, []);
    member.join().await.unwrap();
    assert_eq!(member.assignment().await.partition_leases.len(), 2);
}

/// A group keeps all its settings; changing them does not move its offsets.
pub async fn a_group_keeps_all_settings(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let group = test_topic.group("g");
    let backoff = Backoff { initial_ms: 7, max_ms: 9 };
    let settings = GroupSettings { max_attempts: 3, backoff };
    test_topic.publish_each(&["a"]).await;
    assert_eq!(test_topic.store.set_group(&group, &settings, StartOffset::Latest).await, Ok(true));
    let view = test_topic.reopen(subject).await.group_view().await;
    assert_eq!((view.key, view.settings, view.paused), (group.clone(), settings, None));
    assert_eq!(
        (
            view.members,
            view.parked_event_count,
            view.dead_letter_count,
            view.rebalanced_partition_count,
            view.webhook
        ),
        (vec![], 0, 0, 0, None)
    );
    assert_eq!(view.partitions.iter().map(|it| it.lag_events).sum::<u64>(), 0);
    let offsets: Vec<_> = view.partitions.iter().map(|it| it.partition_lease.committed_offset).collect();
    assert_eq!(
        test_topic.store.set_group(&group, &GroupSettings::default(), StartOffset::Earliest).await,
        Ok(false)
    );
    let view = test_topic.group_view().await;
    assert_eq!(view.settings, GroupSettings::default());
    assert_eq!(
        view.partitions.iter().map(|it| it.partition_lease.committed_offset).collect::<Vec<_>>(),
        offsets
    );
}

/// The groups of one namespace, or of all.
pub async fn groups_are_listed_by_namespace(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let namespace: Name = "else".parse().unwrap();
    let other = test_topic.other_topic(TopicKey::new(namespace.clone(), "a".parse().unwrap())).await;
    for group in [test_topic.group("y"), test_topic.group("x"), other.group("z")] {
        test_topic.store.set_group(&group, &GroupSettings::default(), StartOffset::Earliest).await.unwrap();
    }
    let names = |views: Vec<tenure_core::port::GroupView>| {
        views.into_iter().map(|view| view.key.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(
        names(test_topic.store.groups(Some(&test_topic.key.namespace)).await.unwrap()),
        ["t/x", "t/y"]
    );
    assert_eq!(names(test_topic.store.groups(Some(&namespace)).await.unwrap()), ["else/a/z"]);
    assert_eq!(test_topic.store.groups(None).await.unwrap().len(), 3);
    assert_eq!(test_topic.view().await.groups.len(), 2);
}

/// Deleting a group deletes its offsets and parked events. The call fails while the group has live members.
pub async fn a_group_can_be_deleted(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    assert_eq!(test_topic.store.delete_group(&test_topic.group("nowhere")).await, Ok(false));
    test_topic.publish_one(keyed(&keys_in(0, 1)[0])).await;
    let member = TestMember::of(subject, &test_topic, "a").await;
    let taken = member.take_one(0).await;
    let event = member.read(&taken).await.remove(0);
    let commit = PartitionCommit {
        parked: vec![park_request(&event, dead(1))],
        ..member.read_to(&taken, event.offset)
    };
    assert_eq!(member.commit(commit).await, CommitResult::Committed);
    assert!(refused(test_topic.store.delete_group(&member.group).await).contains("live member"));
    member.session.store.end_session(&member.session.id).await.unwrap();
    assert_eq!(test_topic.store.delete_group(&member.group).await, Ok(true));
    assert_eq!(test_topic.store.group(&member.group).await, Ok(None));
    let new = TestMember::of(subject, &test_topic, "b").await;
    assert_eq!(test_topic.parked_events().await, []);
    let taken = new.take_one(0).await;
    assert_eq!((taken.offset, taken.parked_keys.len()), (0, 0), "a new group with its name has no state");
}

/// The view of a group shows, per partition, the number and age of unread events, the end offset and the holder.
pub async fn lag_is_shown_by_partition(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let (one, two) = (keys_in(1, 1).remove(0), keys_in(2, 1).remove(0));
    let member = TestMember::of(subject, &test_topic, "a").await;
    test_topic.publish(vec![keyed(&one), keyed(&one)]).await;
    test_topic.publish_each(&[&one, &two]).await;
    let taken = member.take_one(1).await;
    let first = member.read(&taken).await.remove(0);
    member.commit(member.read_to(&taken, first.offset)).await;
    test_topic
        .wait_past(test_topic.all().await.iter().map(|event| event.published_at_ms).max().expect("some"))
        .await;
    let view = test_topic.group_view().await;
    let lags: Vec<_> = view
        .partitions
        .iter()
        .map(|it| (it.partition_lease.partition, it.lag_events, it.lag_exact))
        .collect();
    assert_eq!(lags, [(0, 0, true), (1, 1, true), (2, 1, true), (3, 0, true)]);
    assert_eq!(view.lag(), (2, true));
    assert!(view.partitions[1].lag_ms > 0 && view.partitions[0].lag_ms == 0);
    for partition in &view.partitions {
        assert_eq!(partition.end_offset, test_topic.end_offset(partition.partition_lease.partition).await);
    }
    assert_eq!(view.partitions[1].partition_lease, member.partition_lease(1).await);
    assert_eq!(view.members, member.assignment().await.members);
}

/// Counting unread events stops at [`LAG_COUNT_MAX`](tenure_core::port::LAG_COUNT_MAX).
pub async fn a_long_lag_is_counted_up_to_a_limit(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let key = keys_in(0, 1).remove(0);
    TestMember::of(subject, &test_topic, "a").await;
    let counted = usize::try_from(tenure_core::port::LAG_COUNT_MAX).unwrap();
    test_topic.publish(vec![keyed(&key); counted]).await;
    let partition = &test_topic.group_view().await.partitions[0];
    assert_eq!((partition.lag_events, partition.lag_exact), (counted as u64, true));
    test_topic.publish(vec![keyed(&key); 3]).await;
    let partition = &test_topic.group_view().await.partitions[0];
    assert_eq!((partition.lag_events, partition.lag_exact), (counted as u64, false));
}

/// A reset moves the committed offsets under new tokens, so the current holders lose their partitions.
pub async fn a_group_can_be_reset(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let key = keys_in(1, 1).remove(0);
    let member = TestMember::of(subject, &test_topic, "a").await;
    test_topic.publish_each(&[&key, &key]).await;
    let before = test_topic.all().await.pop().expect("two").published_at_ms;
    test_topic.wait_past(before).await;
    test_topic.publish_each(&[&key, &keys_in(2, 1)[0]]).await;
    let taken = member.take_one(1).await;
    let events = member.read(&taken).await;
    let done = vec![(events[2].id, events[2].offset)];
    member.commit(PartitionCommit { processed: done, ..member.read_to(&taken, events[1].offset) }).await;
    let reset = |to, partition, dry_run| test_topic.store.reset_group(&member.group, to, partition, dry_run);
    let look = member.assignment().await;
    let dry = reset(StartOffset::Earliest, None, true).await.unwrap();
    assert_eq!(dry.iter().map(|it| it.partition).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!((dry[1].from_offset, dry[1].to_offset), (events[1].offset, 0));
    let unchanged = member.assignment().await;
    assert_eq!(
        (unchanged.partition_leases, unchanged.members),
        (look.partition_leases, look.members),
        "it was a dry run"
    );
    // Each start offset, with the number of events that are read from there.
    let cases = [
        (StartOffset::Earliest, 3),
        (StartOffset::Offset(events[0].offset), 2),
        (StartOffset::PublishedAtMs(events[2].published_at_ms), 1),
        (StartOffset::Latest, 0),
        (StartOffset::Offset(i64::MAX as u64), 0),
        (StartOffset::PublishedAtMs(0), 3),
    ];
    let mut token = taken.token;
    for (to, expected) in cases {
        let moved = reset(to, Some(1), false).await.unwrap();
        assert_eq!(moved.len(), 1, "{to:?}");
        let OffsetChange { partition: 1, to_offset: offset, .. } = moved[0] else { panic!("{moved:?}") };
        assert_eq!(test_topic.read(&[(1, offset)], 100).await.len(), expected, "{to:?}");
        let lease = member.partition_lease(1).await;
        assert_eq!((lease.committed_offset, lease.holder.as_ref()), (offset, None));
        assert!(lease.token > token && lease.last_member == "a", "{to:?}");
        let late = PartitionCommit { token, ..member.read_to(&taken, events[2].offset) };
        assert_eq!(member.commit(late).await, CommitResult::LeaseLost, "{to:?}");
        let again = member.take_one(1).await;
        assert_eq!((again.offset, &again.processed_event_ids), (offset, &vec![]), "{to:?}");
        token = again.token;
    }
    assert_eq!(member.partition_lease(2).await.committed_offset, 0, "the other partitions are unchanged");
    let all = reset(StartOffset::Latest, None, false).await.unwrap();
    assert_eq!(all.len(), PARTITIONS as usize);
    assert_eq!(test_topic.group_view().await.lag(), (0, true));
    let message = refused(reset(StartOffset::Latest, Some(PARTITIONS), false).await);
    assert!(message.contains(&format!("partition {PARTITIONS}")), "{message}");
    let unknown =
        test_topic.store.reset_group(&test_topic.group("nowhere"), StartOffset::Latest, None, true).await;
    assert!(refused(unknown).contains("nowhere"));
    refused(reset(StartOffset::PublishedAtMs(-1), None, true).await);
}

/// Members see which principal paused the group and why; their commits are still applied.
pub async fn a_group_can_be_paused(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let member = TestMember::of(subject, &test_topic, "a").await;
    let taken = member.take_one(0).await;
    let set = |pause| {
        let (store, group) = (test_topic.store.clone(), member.group.clone());
        async move { store.set_group_paused(&group, pause).await }
    };
    let pause = pause();
    assert_eq!(set(Some(&pause)).await, Ok(true));
    assert_eq!(set(Some(&pause)).await, Ok(false));
    assert_eq!(member.assignment().await.paused, Some(pause.clone()));
    assert_eq!(test_topic.group_view().await.paused, Some(pause.clone()));
    assert_eq!(
        member.commit(member.empty_commit(&taken)).await,
        CommitResult::Committed,
        "work in progress ends"
    );
    assert_eq!(set(None).await, Ok(true));
    assert_eq!(set(None).await, Ok(false));
    assert_eq!(member.assignment().await.paused, None);
    let unknown = test_topic.store.set_group_paused(&test_topic.group("nowhere"), None).await;
    assert!(refused(unknown).contains("nowhere"));
}

fn webhook(url: &str) -> WebhookSettings {
    WebhookSettings { url: url.into(), secret: "whsec_Zmlyc3QgZmlyc3QgZmlyc3Qh".into(), timeout_ms: 5_000 }
}

/// The view of a group shows the URL of its webhook and never the secret.
pub async fn a_webhook_is_shown_without_its_secret(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let group = test_topic.group("g");
    test_topic.store.set_group(&group, &GroupSettings::default(), StartOffset::Earliest).await.unwrap();
    let webhook = webhook("https://hooks.invalid/ho'ok");
    test_topic.store.set_webhook(&group, Some(&webhook)).await.unwrap();
    let view = test_topic.group_view().await;
    assert_eq!(view.webhook, Some(Webhook { url: webhook.url.clone(), timeout_ms: 5_000 }));
    let message = refused(test_topic.store.set_webhook(&test_topic.group("nowhere"), Some(&webhook)).await);
    assert!(message.contains("nowhere"), "{message}");
    for bad in [
        WebhookSettings { url: "ftp://a".into(), ..webhook.clone() },
        WebhookSettings { secret: "short".into(), ..webhook.clone() },
        WebhookSettings { timeout_ms: 0, ..webhook.clone() },
    ] {
        refused(test_topic.store.set_webhook(&group, Some(&bad)).await);
    }
    assert_eq!(test_topic.group_view().await.webhook.expect("unchanged").url, webhook.url);
    test_topic.store.set_webhook(&group, None).await.unwrap();
    assert_eq!(test_topic.group_view().await.webhook, None);
}

/// The list of webhooks for servers contains the secrets.
pub async fn servers_can_list_webhooks_with_secrets(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    assert_eq!(test_topic.store.webhooks().await.unwrap().len(), 0);
    let mut expected: Vec<(GroupKey, WebhookSettings)> = Vec::new();
    for name in ["x", "y", "z"] {
        let group = test_topic.group(name);
        test_topic.store.set_group(&group, &GroupSettings::default(), StartOffset::Earliest).await.unwrap();
        if name != "y" {
            let webhook = webhook(&format!("https://example.org/{name}"));
            test_topic.store.set_webhook(&group, Some(&webhook)).await.unwrap();
            expected.push((group, webhook));
        }
    }
    let mut found = test_topic.store.webhooks().await.unwrap();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(found == expected, "all webhooks with their secrets");
}

/// A read returns only events of its own topic, although events of other topics have ids in between.
pub async fn a_read_returns_only_events_of_its_topic(subject: &StoreUnderTest) {
    let test_topic = TestTopic::of(subject).await;
    let other = test_topic.other_topic(topic("other")).await;
    let mut own = Vec::new();
    for _ in 0..5 {
        own.push(test_topic.publish_one(keyed("a")).await);
        other.publish_one(keyed("a")).await;
    }
    assert_eq!(event_ids(&test_topic.all().await), own);
    let member = TestMember::of(subject, &test_topic, "a").await;
    let partition = tenure_core::rules::event::partition_for_key("a", PARTITIONS);
    let taken = member.take_one(partition).await;
    let events = member.read(&taken).await;
    let theirs = other.all().await.remove(0);
    let commit =
        PartitionCommit { parked: vec![park_request(&theirs, retry(1, 0))], ..member.empty_commit(&taken) };
    member.commit_refused(commit).await;
    assert_eq!(events.len(), 5);
}
