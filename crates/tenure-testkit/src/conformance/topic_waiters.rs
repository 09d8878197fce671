//! Notifications of topic waiters and group members.

use tenure_core::port::{
    BoxNotificationSource, DeadLetterAction, NewEvent, Notification, PartitionCommit, StartOffset, TopicKey,
};

use super::test_queue::{listening, notifications_until, pause};
use super::test_topic::{TestMember, TestTopic, dead, keyed, keys_in, park_request, topic};
use super::{StoreUnderTest, TestSession};

/// A waiter, its notifications, and the topic.
struct TopicWaiterFixture {
    test_topic: TestTopic,
    other_topic: TestTopic,
    waiter: TestSession,
    notifications: BoxNotificationSource,
}

impl TopicWaiterFixture {
    async fn of(subject: &StoreUnderTest) -> TopicWaiterFixture {
        let waiter = subject.session("waiter").await;
        let notifications = listening(&waiter).await;
        let test_topic = TestTopic::of(subject).await;
        let other_topic = test_topic.other_topic(topic("marker")).await;
        TopicWaiterFixture { test_topic, other_topic, waiter, notifications }
    }

    async fn register(&self, key: &TopicKey) {
        self.waiter.store.register_topic_waiter(&self.waiter.id, key).await.expect("register");
    }

    /// Notifications since the last call.
    async fn received(&mut self) -> Vec<Notification> {
        self.register(&self.other_topic.key.clone()).await;
        self.other_topic.publish_one(keyed("ring")).await;
        notifications_until(
            &mut self.notifications,
            &Notification::TopicPublished(self.other_topic.key.clone()),
        )
        .await
    }

    /// Number of notifications of the topic since the last call.
    async fn notified(&mut self) -> usize {
        let events = Notification::TopicPublished(self.test_topic.key.clone());
        self.received().await.into_iter().filter(|wake| *wake == events).count()
    }
}

/// The first publication notifies the waiter; for later ones the waiter must register again.
pub async fn a_publication_notifies_a_waiter_once(subject: &StoreUnderTest) {
    let mut fixture = TopicWaiterFixture::of(subject).await;
    let (key, test_topic) = (fixture.test_topic.key.clone(), fixture.test_topic.clone());
    for _ in 0..3 {
        fixture.register(&key).await;
        for _ in 0..3 {
            test_topic.publish(vec![keyed("a"), keyed("b"), NewEvent::new("c")]).await;
        }
        assert_eq!(fixture.notified().await, 1);
    }
    test_topic.publish_one(keyed("a")).await;
    assert_eq!(fixture.notified().await, 0, "no waiter is registered");
}

/// No notification is sent without a registered waiter or without a new event.
pub async fn a_topic_waiter_is_not_notified_without_events(subject: &StoreUnderTest) {
    let mut fixture = TopicWaiterFixture::of(subject).await;
    let (key, test_topic) = (fixture.test_topic.key.clone(), fixture.test_topic.clone());
    let once = || NewEvent { idempotency_key: Some("once".into()), ..keyed("a") };
    test_topic.publish_one(once()).await;
    assert_eq!(fixture.notified().await, 0);
    fixture.register(&key).await;
    test_topic.publish_one(once()).await;
    test_topic.publish(vec![]).await;
    test_topic.refused(vec![keyed("")]).await;
    test_topic.other_topic(topic("other")).await.publish_one(keyed("a")).await;
    assert_eq!(fixture.notified().await, 0);
    test_topic.publish(vec![once(), keyed("a")]).await;
    assert_eq!(fixture.notified().await, 1);
}

/// A waiter registers and then reads once more. If that read finds nothing, the registration stays.
pub async fn an_empty_read_keeps_the_waiter_registered(subject: &StoreUnderTest) {
    let mut fixture = TopicWaiterFixture::of(subject).await;
    let (key, test_topic) = (fixture.test_topic.key.clone(), fixture.test_topic.clone());
    fixture.register(&key).await;
    let second_client = TestTopic { store: fixture.waiter.store.clone(), key };
    for _ in 0..3 {
        assert_eq!(second_client.read(&[(0, 0), (1, 0)], 10).await, []);
    }
    test_topic.publish_one(keyed("a")).await;
    assert_eq!(fixture.notified().await, 1);
}

/// Members are notified of a new member, a taken partition, a pause, a reset and a replay.
pub async fn changes_of_a_group_are_notified(subject: &StoreUnderTest) {
    let mut fixture = TopicWaiterFixture::of(subject).await;
    let test_topic = fixture.test_topic.clone();
    let changed = Notification::GroupChanged(test_topic.group("g"));
    let key = keys_in(0, 1).remove(0);
    test_topic.publish_one(keyed(&key)).await;
    let a = TestMember::of(subject, &test_topic, "a").await;
    notifications_until(&mut fixture.notifications, &changed).await;
    let taken = a.take_one(0).await;
    fixture.received().await;
    a.release(&[(0, taken.token)]).await;
    notifications_until(&mut fixture.notifications, &changed).await;
    test_topic.store.set_group_paused(&a.group, Some(&pause())).await.unwrap();
    notifications_until(&mut fixture.notifications, &changed).await;
    test_topic.store.set_group_paused(&a.group, None).await.unwrap();
    notifications_until(&mut fixture.notifications, &changed).await;
    test_topic.store.reset_group(&a.group, StartOffset::Earliest, None, true).await.unwrap();
    assert!(!fixture.received().await.contains(&changed), "it was a dry run");
    test_topic.store.reset_group(&a.group, StartOffset::Earliest, None, false).await.unwrap();
    notifications_until(&mut fixture.notifications, &changed).await;
    let taken = a.take_one(0).await;
    let event = a.read(&taken).await.remove(0);
    a.commit(PartitionCommit {
        parked: vec![park_request(&event, dead(1))],
        ..a.read_to(&taken, event.offset)
    })
    .await;
    fixture.received().await;
    test_topic.store.apply_dead_letter_action(&a.group, &[event.id], DeadLetterAction::Replay).await.unwrap();
    notifications_until(&mut fixture.notifications, &changed).await;
    a.leave().await;
    notifications_until(&mut fixture.notifications, &changed).await;
}

/// When a member's session ends, other members are notified of the end of the session.
pub async fn the_end_of_a_member_is_notified(subject: &StoreUnderTest) {
    let mut fixture = TopicWaiterFixture::of(subject).await;
    let a = TestMember::of(subject, &fixture.test_topic, "a").await;
    a.take_one(0).await;
    fixture.received().await;
    a.session.store.end_session(&a.session.id).await.unwrap();
    notifications_until(&mut fixture.notifications, &Notification::SessionEnded(a.session.id.clone())).await;
}
