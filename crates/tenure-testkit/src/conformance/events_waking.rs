//! Claims about hints of events: who sleeps until a topic has some is woken, once; members hear of what changes in their group.

use tenure_core::port::{Begin, DeadOrder, NewEvent, ShareCommit, TopicKey, Wake, Wakes};

use super::events_hall::{Guest, Hall, aside, dead, keyed, keys_in, topic};
use super::floor::{hints_until, listening, pause};
use super::{Actor, Subject};

/// A sleeper, what it hears, and the topic.
struct Scene {
    hall: Hall,
    bell: Hall,
    sleeper: Actor,
    hints: Wakes,
}

impl Scene {
    async fn of(subject: &Subject) -> Scene {
        let sleeper = subject.actor("sleeper").await;
        let hints = listening(&sleeper).await;
        let hall = Hall::of(subject).await;
        let bell = hall.beside(topic("bell")).await;
        Scene { hall, bell, sleeper, hints }
    }

    async fn doze(&self, key: &TopicKey) {
        self.sleeper.store.doze_topic(&self.sleeper.id, key).await.expect("doze_topic");
    }

    /// What was heard since the last time.
    async fn heard(&mut self) -> Vec<Wake> {
        self.doze(&self.bell.key.clone()).await;
        self.bell.publish_one(keyed("ring")).await;
        hints_until(&mut self.hints, &Wake::Events(self.bell.key.clone())).await
    }

    /// How often the topic rang since the last time.
    async fn rang(&mut self) -> usize {
        let events = Wake::Events(self.hall.key.clone());
        self.heard().await.into_iter().filter(|wake| *wake == events).count()
    }
}

/// The first publication rings, the next ones need not: whoever sleeps again says so again.
pub async fn a_publication_wakes_a_sleeper_once(subject: &Subject) {
    let mut scene = Scene::of(subject).await;
    let (key, hall) = (scene.hall.key.clone(), scene.hall.clone());
    for _ in 0..3 {
        scene.doze(&key).await;
        for _ in 0..3 {
            hall.publish(vec![keyed("a"), keyed("b"), NewEvent::new("c")]).await;
        }
        assert_eq!(scene.rang().await, 1);
    }
    hall.publish_one(keyed("a")).await;
    assert_eq!(scene.rang().await, 0, "nobody sleeps");
}

/// While nobody sleeps, or nothing came of it.
pub async fn nobody_is_woken_for_no_events(subject: &Subject) {
    let mut scene = Scene::of(subject).await;
    let (key, hall) = (scene.hall.key.clone(), scene.hall.clone());
    let once = || NewEvent { idempotency_key: Some("once".into()), ..keyed("a") };
    hall.publish_one(once()).await;
    assert_eq!(scene.rang().await, 0);
    scene.doze(&key).await;
    hall.publish_one(once()).await;
    hall.publish(vec![]).await;
    hall.refused(vec![keyed("")]).await;
    hall.beside(topic("other")).await.publish_one(keyed("a")).await;
    assert_eq!(scene.rang().await, 0);
    hall.publish(vec![once(), keyed("a")]).await;
    assert_eq!(scene.rang().await, 1);
}

/// Whoever goes to sleep says so, and then looks once more: that look must not take the word back.
pub async fn who_reads_and_finds_nothing_sleeps_on(subject: &Subject) {
    let mut scene = Scene::of(subject).await;
    let (key, hall) = (scene.hall.key.clone(), scene.hall.clone());
    scene.doze(&key).await;
    let looker = Hall { store: scene.sleeper.store.clone(), key };
    for _ in 0..3 {
        assert_eq!(looker.read(&[(0, 0), (1, 0)], 10).await, []);
    }
    hall.publish_one(keyed("a")).await;
    assert_eq!(scene.rang().await, 1);
}

/// A member, a share, a pause, a reset, a replay.
pub async fn changes_of_a_group_are_heard(subject: &Subject) {
    let mut scene = Scene::of(subject).await;
    let hall = scene.hall.clone();
    let changed = Wake::Group(hall.group("g"));
    let key = keys_in(0, 1).remove(0);
    hall.publish_one(keyed(&key)).await;
    let a = Guest::of(subject, &hall, "a").await;
    hints_until(&mut scene.hints, &changed).await;
    let taken = a.take_one(0).await;
    scene.heard().await;
    a.free(&[(0, taken.token)]).await;
    hints_until(&mut scene.hints, &changed).await;
    hall.store.set_group_paused(&a.group, Some(&pause())).await.unwrap();
    hints_until(&mut scene.hints, &changed).await;
    hall.store.set_group_paused(&a.group, None).await.unwrap();
    hints_until(&mut scene.hints, &changed).await;
    hall.store.reset_group(&a.group, Begin::Earliest, None, true).await.unwrap();
    assert!(!scene.heard().await.contains(&changed), "it was only asked");
    hall.store.reset_group(&a.group, Begin::Earliest, None, false).await.unwrap();
    hints_until(&mut scene.hints, &changed).await;
    let taken = a.take_one(0).await;
    let event = a.read(&taken).await.remove(0);
    a.commit(ShareCommit { set_aside: vec![aside(&event, dead(1))], ..a.read_to(&taken, event.position) })
        .await;
    scene.heard().await;
    hall.store.order_dead(&a.group, &[event.id], DeadOrder::Replay).await.unwrap();
    hints_until(&mut scene.hints, &changed).await;
    a.leave().await;
    hints_until(&mut scene.hints, &changed).await;
}

/// Its session alone tells.
pub async fn the_end_of_a_member_is_heard(subject: &Subject) {
    let mut scene = Scene::of(subject).await;
    let a = Guest::of(subject, &scene.hall, "a").await;
    a.take_one(0).await;
    scene.heard().await;
    a.actor.store.end(&a.actor.id).await.unwrap();
    hints_until(&mut scene.hints, &Wake::Ended(a.actor.id.clone())).await;
}
