//! Events through a server, with no more rights than it takes.

use std::sync::Arc;
use std::time::Duration;

use tenure::port::{
    AsideFilter, Backend, Begin, Committed, DeadOrder, EventId, GroupKey, GroupSettings, Join, NewEvent,
    Push, ReadAsk, ShareCommit, TakeShares, TopicKey, TopicSettings,
};
use tenure::{HandlerError, Tenure, Token};

use super::access::{House, denied};

fn topic(namespace: &str) -> TopicKey {
    TopicKey::new(namespace.parse().unwrap(), "orders".parse().unwrap())
}

fn group(namespace: &str) -> GroupKey {
    GroupKey::new(topic(namespace), "mailer".parse().unwrap())
}

/// A house with a topic in each of two namespaces.
async fn house() -> House {
    let house = House::new().await;
    for namespace in ["a", "b"] {
        house.backend().set_topic(&topic(namespace), &TopicSettings::default()).await.unwrap();
    }
    house
}

fn event(key: &str) -> NewEvent {
    NewEvent { key: Some(key.into()), ..NewEvent::new("t") }
}

fn commit(token: Token) -> ShareCommit {
    ShareCommit {
        group: group("a"),
        slot: 0,
        token,
        position: Some(0),
        done: Vec::new(),
        set_aside: Vec::new(),
        settled: Vec::new(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_needs_nothing_but_publish_and_a_consumer_nothing_but_claim() {
    let house = house().await;
    let publisher = house.client("shop", &["a:publish"]).await;
    let store: Arc<dyn Backend> = house.client("mailer", &["a:claim"]).await;
    let tenure = Tenure::builder().shared_store(store).name("m-1").open().await.unwrap();
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let settings = GroupSettings { max_attempts: 2, ..GroupSettings::default() };
    house.backend().set_group(&group("a"), &settings, Begin::Earliest).await.unwrap();
    let consumer = tenure.consumer("orders", "mailer").namespace("a").handler(move |batch| {
        let told = told.clone();
        async move {
            for event in &batch {
                if event.key.as_deref() == Some("bad") && batch.attempt() < 2 {
                    return Err(HandlerError::retry_after(Duration::ZERO, "not yet"));
                }
                let _ = told.send((event.key.clone().unwrap_or_default(), event.id));
            }
            Ok(())
        }
    });
    let consumer = consumer.start().await.unwrap();
    // So that it sleeps, and has to be woken.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let bad = publisher.publish(&topic("a"), &[event("bad"), event("bad")]).await.unwrap();
    let good = publisher.publish(&topic("a"), &[event("good")]).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let one =
            tokio::time::timeout(Duration::from_secs(60), heard.recv()).await.expect("silence").unwrap();
        if !seen.contains(&one) {
            seen.push(one);
        }
    }
    let of = |key: &str| -> Vec<EventId> {
        seen.iter().filter(|(its, _)| its == key).map(|(_, id)| *id).collect()
    };
    assert_eq!(of("bad"), [bad[0].id, bad[1].id], "in order, though the first failed at first");
    assert_eq!(of("good"), [good[0].id]);
    consumer.drain().await.unwrap();
    tenure.close().await.unwrap();
    let view = house.backend().group(&group("a")).await.unwrap().unwrap();
    assert_eq!((view.lag(), view.aside, view.dead, view.members.len()), ((0, true), 0, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_touches_the_events_of_another_namespace() {
    let house = house().await;
    let other = house.client("other", &["b:claim,read,publish,lead"]).await;
    let published = house.backend().publish(&topic("a"), &[event("k")]).await.unwrap();
    denied(other.publish(&topic("a"), &[event("k")]).await);
    let read = ReadAsk { topic: topic("a"), after: vec![(0, 0)], limit: 9 };
    denied(other.read_events(&read).await);
    denied(other.event(&topic("a"), published[0].id).await);
    denied(other.topic(&topic("a")).await);
    denied(other.slot_ends(&topic("a")).await);
    denied(other.look_group(&group("a")).await);
    denied(other.commit_shares(&[commit(Token::from_u64(1))]).await);
    denied(other.free_shares(&group("a"), &[(0, Token::from_u64(1))]).await);
    assert_eq!(other.topics(None).await.unwrap().len(), 1, "what one may not read is not there");
    assert_eq!(other.groups(None).await.unwrap().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_operators_do_needs_an_operator() {
    let house = house().await;
    let user = house.client("user", &["a:claim,read,publish,lead"]).await;
    let (topic, group) = (topic("a"), group("a"));
    house.backend().set_group(&group, &GroupSettings::default(), Begin::Earliest).await.unwrap();
    denied(user.set_topic(&topic, &TopicSettings::default()).await);
    denied(user.delete_topic(&topic).await);
    denied(user.set_group(&group, &GroupSettings::default(), Begin::Earliest).await);
    denied(user.delete_group(&group).await);
    denied(user.set_group_paused(&group, None).await);
    denied(user.reset_group(&group, Begin::Earliest, None, true).await);
    denied(user.order_dead(&group, &[EventId(1)], DeadOrder::Replay).await);
    let push = Push { url: "https://example.org/".into(), secret: "s".repeat(24), timeout_ms: 1000 };
    denied(user.set_push(&group, Some(&push)).await);
    let filter = AsideFilter { group, dead: true, slot: None, key: None, after: None, limit: 9 };
    assert_eq!(user.aside(&filter).await, Ok(Vec::new()));
    // To look is not to consume, and to consume is not to publish.
    let reader = house.client("reader", &["a:read"]).await;
    denied(reader.publish(&topic, &[event("k")]).await);
    denied(reader.commit_shares(&[commit(Token::from_u64(1))]).await);
    assert!(reader.topic(&topic).await.unwrap().is_some());
    let publisher = house.client("publisher", &["a:publish"]).await;
    let read = ReadAsk { topic: topic.clone(), after: vec![(0, 0)], limit: 9 };
    denied(publisher.read_events(&read).await);
    // What is to be signed with is shown to nobody.
    house.backend().set_push(&filter.group, Some(&push)).await.unwrap();
    let admin = house.client("admin", &["*:admin"]).await;
    assert!(admin.pushes().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_lives_on_no_session_of_somebody_else() {
    let house = house().await;
    let alice = house.actor("alice", &["a:claim"]).await;
    let bob = house.client("bob", &["a:claim"]).await;
    let join =
        Join { group: group("a"), session: alice.id.clone(), member: "m".into(), from: Begin::Earliest };
    denied(bob.join_group(&join).await);
    let look = alice.store.join_group(&join).await.unwrap();
    let slots = vec![(0, look.shares[0].token)];
    let take = TakeShares { group: group("a"), session: alice.id.clone(), slots };
    denied(bob.take_shares(&take).await);
    denied(bob.leave_group(&group("a"), &alice.id).await);
    denied(bob.doze_topic(&alice.id, &topic("a")).await);
    denied(alice.store.doze_topic(&alice.id, &topic("b")).await);
    let taken = alice.store.take_shares(&take).await.unwrap();
    // Tokens are shown to whoever may look.
    denied(bob.commit_shares(&[commit(taken[0].token)]).await);
    denied(bob.free_shares(&group("a"), &[(0, taken[0].token)]).await);
    assert_eq!(bob.commit_shares(&[commit(Token::from_u64(1 << 50))]).await, Ok(vec![Committed::Stale]));
    assert_eq!(alice.store.commit_shares(&[commit(taken[0].token)]).await, Ok(vec![Committed::Yes]));
    alice.store.leave_group(&group("a"), &alice.id).await.unwrap();
    assert_eq!(alice.store.commit_shares(&[commit(taken[0].token)]).await, Ok(vec![Committed::Stale]));
}
