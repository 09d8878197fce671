//! Events through a server with minimal permissions.

use std::sync::Arc;
use std::time::Duration;

use tenure::port::{
    CommitResult, DeadLetterAction, EventId, GroupKey, GroupSettings, JoinGroupRequest, NewEvent,
    ParkedEventFilter, PartitionCommit, ReadEventsRequest, StartOffset, Store, TakePartitionsRequest,
    TopicKey, TopicSettings, WebhookSettings,
};
use tenure::{HandlerError, Tenure, Token};

use super::access::{TestServer, denied};

fn topic(namespace: &str) -> TopicKey {
    TopicKey::new(namespace.parse().unwrap(), "orders".parse().unwrap())
}

fn group(namespace: &str) -> GroupKey {
    GroupKey::new(topic(namespace), "mailer".parse().unwrap())
}

/// Server with a topic in each of two namespaces.
async fn test_server() -> TestServer {
    let fixture = TestServer::new().await;
    for namespace in ["a", "b"] {
        fixture.backend().set_topic(&topic(namespace), &TopicSettings::default()).await.unwrap();
    }
    fixture
}

fn event(key: &str) -> NewEvent {
    NewEvent { key: Some(key.into()), ..NewEvent::new("t") }
}

fn commit(token: Token) -> PartitionCommit {
    PartitionCommit {
        group: group("a"),
        partition: 0,
        token,
        offset: Some(0),
        processed: Vec::new(),
        parked: Vec::new(),
        parked_results: Vec::new(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_needs_only_publish_and_a_consumer_only_claim() {
    let fixture = test_server().await;
    let publisher = fixture.client("shop", &["a:publish"]).await;
    let store: Arc<dyn Store> = fixture.client("mailer", &["a:claim"]).await;
    let tenure = Tenure::builder().shared_store(store).name("m-1").open().await.unwrap();
    let (text, mut received) = tokio::sync::mpsc::unbounded_channel();
    let settings = GroupSettings { max_attempts: 2, ..GroupSettings::default() };
    fixture.backend().set_group(&group("a"), &settings, StartOffset::Earliest).await.unwrap();
    let consumer = tenure.consumer("orders", "mailer").namespace("a").handler(move |batch| {
        let text = text.clone();
        async move {
            for event in &batch {
                if event.key.as_deref() == Some("bad") && batch.attempt() < 2 {
                    return Err(HandlerError::retry_in(Duration::ZERO, "not yet"));
                }
                let _ = text.send((event.key.clone().unwrap_or_default(), event.id));
            }
            Ok(())
        }
    });
    let consumer = consumer.start().await.unwrap();
    // Let the consumer register as a waiter.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let bad = publisher.publish(&topic("a"), &[event("bad"), event("bad")]).await.unwrap();
    let good = publisher.publish(&topic("a"), &[event("good")]).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let one =
            tokio::time::timeout(Duration::from_secs(60), received.recv()).await.expect("silence").unwrap();
        if !seen.contains(&one) {
            seen.push(one);
        }
    }
    let of = |key: &str| -> Vec<EventId> {
        seen.iter().filter(|(its, _)| its == key).map(|(_, id)| *id).collect()
    };
    assert_eq!(of("bad"), [bad[0].id, bad[1].id], "in order, although the first attempt failed");
    assert_eq!(of("good"), [good[0].id]);
    consumer.drain().await.unwrap();
    tenure.close().await.unwrap();
    let view = fixture.backend().group(&group("a")).await.unwrap().unwrap();
    assert_eq!(
        (view.lag(), view.parked_event_count, view.dead_letter_count, view.members.len()),
        ((0, true), 0, 0, 0)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_another_namespace_are_protected() {
    let fixture = test_server().await;
    let other = fixture.client("other", &["b:claim,read,publish,lead"]).await;
    let published = fixture.backend().publish(&topic("a"), &[event("k")]).await.unwrap();
    denied(other.publish(&topic("a"), &[event("k")]).await);
    let read = ReadEventsRequest { topic: topic("a"), after: vec![(0, 0)], limit: 9 };
    denied(other.read_events(&read).await);
    denied(other.event(&topic("a"), published[0].id).await);
    denied(other.topic(&topic("a")).await);
    denied(other.partition_offsets(&topic("a")).await);
    denied(other.group_assignment(&group("a")).await);
    denied(other.commit_partitions(&[commit(Token::from_u64(1))]).await);
    denied(other.release_partitions(&group("a"), &[(0, Token::from_u64(1))]).await);
    assert_eq!(other.topics(None).await.unwrap().len(), 1, "unreadable topics are not listed");
    assert_eq!(other.groups(None).await.unwrap().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_actions_require_admin() {
    let fixture = test_server().await;
    let user = fixture.client("user", &["a:claim,read,publish,lead"]).await;
    let (topic, group) = (topic("a"), group("a"));
    fixture.backend().set_group(&group, &GroupSettings::default(), StartOffset::Earliest).await.unwrap();
    denied(user.set_topic(&topic, &TopicSettings::default()).await);
    denied(user.delete_topic(&topic).await);
    denied(user.set_group(&group, &GroupSettings::default(), StartOffset::Earliest).await);
    denied(user.delete_group(&group).await);
    denied(user.set_group_paused(&group, None).await);
    denied(user.reset_group(&group, StartOffset::Earliest, None, true).await);
    denied(user.apply_dead_letter_action(&group, &[EventId(1)], DeadLetterAction::Replay).await);
    let webhook =
        WebhookSettings { url: "https://example.org/".into(), secret: "s".repeat(24), timeout_ms: 1000 };
    denied(user.set_webhook(&group, Some(&webhook)).await);
    let filter = ParkedEventFilter { group, dead: true, partition: None, key: None, after: None, limit: 9 };
    assert_eq!(user.parked_events(&filter).await, Ok(Vec::new()));
    // `read` does not allow consuming, and `claim` does not allow publishing.
    let reader = fixture.client("reader", &["a:read"]).await;
    denied(reader.publish(&topic, &[event("k")]).await);
    denied(reader.commit_partitions(&[commit(Token::from_u64(1))]).await);
    assert!(reader.topic(&topic).await.unwrap().is_some());
    let publisher = fixture.client("publisher", &["a:publish"]).await;
    let read = ReadEventsRequest { topic: topic.clone(), after: vec![(0, 0)], limit: 9 };
    denied(publisher.read_events(&read).await);
    // Signing secrets are never returned.
    fixture.backend().set_webhook(&filter.group, Some(&webhook)).await.unwrap();
    let admin = fixture.client("admin", &["*:admin"]).await;
    assert!(admin.webhooks().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_lease_cannot_use_another_principals_session() {
    let fixture = test_server().await;
    let alice = fixture.actor("alice", &["a:claim"]).await;
    let bob = fixture.client("bob", &["a:claim"]).await;
    let join = JoinGroupRequest {
        group: group("a"),
        session: alice.id.clone(),
        member: "m".into(),
        from: StartOffset::Earliest,
    };
    denied(bob.join_group(&join).await);
    let assignment = alice.store.join_group(&join).await.unwrap();
    let partitions = vec![(0, assignment.partition_leases[0].token)];
    let take = TakePartitionsRequest { group: group("a"), session: alice.id.clone(), partitions };
    denied(bob.take_partitions(&take).await);
    denied(bob.leave_group(&group("a"), &alice.id).await);
    denied(bob.register_topic_waiter(&alice.id, &topic("a")).await);
    denied(alice.store.register_topic_waiter(&alice.id, &topic("b")).await);
    let taken = alice.store.take_partitions(&take).await.unwrap();
    // Readers can see tokens, but not use them.
    denied(bob.commit_partitions(&[commit(taken[0].token)]).await);
    denied(bob.release_partitions(&group("a"), &[(0, taken[0].token)]).await);
    assert_eq!(
        bob.commit_partitions(&[commit(Token::from_u64(1 << 50))]).await,
        Ok(vec![CommitResult::LeaseLost])
    );
    assert_eq!(
        alice.store.commit_partitions(&[commit(taken[0].token)]).await,
        Ok(vec![CommitResult::Committed])
    );
    alice.store.leave_group(&group("a"), &alice.id).await.unwrap();
    assert_eq!(
        alice.store.commit_partitions(&[commit(taken[0].token)]).await,
        Ok(vec![CommitResult::LeaseLost])
    );
}
