//! Claims about a store whose identity changed: it was restored from a copy, copied elsewhere, promoted or upgraded.
//!
//! A test begins with [`Before::begin`], makes its copy, has [`Before::go_on`] grant what the copy does not know, brings the copy into
//! service and asks [`Lost::is_exceeded_by`].

use std::sync::Arc;

use tenure_core::port::{
    Backend, Begin, GroupKey, Join, NewEvent, Pulse, Take, TakeShares, TopicKey, TopicSettings,
};
use tenure_core::{ElectionKey, Token};

use super::{Actor, election};

/// A store with something in it, before the copy.
pub struct Before {
    a: Actor,
    key: ElectionKey,
    topic: TopicKey,
    group: GroupKey,
    last: Token,
    events: u64,
}

/// What was granted after the copy, and before.
pub struct Lost {
    key: ElectionKey,
    topic: TopicKey,
    group: GroupKey,
    /// The store's epoch when it was granted.
    pub epoch: u32,
    /// The greatest lease token.
    pub token: Token,
    /// The greatest share token.
    pub share: Token,
    /// The greatest event number.
    pub event: u64,
    seen: Take,
}

impl Before {
    /// Grants a lease, a share of a group and some event numbers.
    pub async fn begin(store: Arc<dyn Backend>) -> Before {
        let (a, key) = (Actor::open(store, "a").await, election("nightly"));
        let topic = TopicKey::new(key.namespace.clone(), "orders".parse().expect("a name"));
        let settings = TopicSettings { slots: 1, ..TopicSettings::default() };
        a.store.set_topic(&topic, &settings).await.expect("a topic");
        let group = GroupKey::new(topic.clone(), "mailer".parse().expect("a name"));
        let join =
            Join { group: group.clone(), session: a.id.clone(), member: "a".into(), from: Begin::Earliest };
        a.store.join_group(&join).await.expect("it joins");
        a.stand(&key).await;
        let last = a.take(&key, 0).await;
        let mut before = Before { a, key, topic, group, last, events: 0 };
        before.events = publish(&before.a, &before.topic).await;
        before
    }

    /// Goes on through another client.
    #[must_use]
    pub fn through(mut self, store: Arc<dyn Backend>) -> Before {
        self.a.store = store;
        self
    }

    /// Grants more of everything, which the copy does not know.
    pub async fn go_on(self) -> Lost {
        let Before { a, key, topic, group, mut last, events } = self;
        let seen = a.bid(&key, 0).await;
        for _ in 0..3 {
            a.release(&key, 0, last).await;
            last = a.take(&key, 0).await;
        }
        let mut share = Token::ZERO;
        for _ in 0..2 {
            share = take_share(&a, &group, share).await;
            a.store.free_shares(&group, &[(0, share)]).await.expect("it is given back");
        }
        let event = publish(&a, &topic).await;
        assert!(event > events);
        Lost { epoch: a.epoch, token: last, share, event, seen, key, topic, group }
    }
}

impl Lost {
    /// The copy, in service: it is in another epoch, what was seen before does not count, and all that it grants is greater than
    /// everything that was granted before, known to it or not.
    pub async fn is_exceeded_by(&self, store: Arc<dyn Backend>) {
        let b = Actor::open(store, "b").await;
        assert!(b.epoch > self.epoch, "epoch {} after {}", b.epoch, self.epoch);
        b.stand(&self.key).await;
        let stale = Take { session: b.id.clone(), holder: None, ..self.seen.clone() };
        assert_eq!(b.store.take(&stale).await, Ok(None), "what was seen in another epoch does not count");
        let lease = b.lease(&self.key, 0).await;
        let bid = if lease.holder.is_some_and(|holder| holder.live) {
            b.overbid(&self.key, 0).await
        } else {
            b.bid(&self.key, 0).await
        };
        let token = b.store.take(&bid).await.expect("take").expect("it can be had");
        assert!(token > self.token, "{token} after {}", self.token);
        assert_eq!(token.epoch(), b.epoch);
        let join = Join {
            group: self.group.clone(),
            session: b.id.clone(),
            member: "b".into(),
            from: Begin::Earliest,
        };
        b.store.join_group(&join).await.expect("it joins");
        let look = b.store.look_group(&self.group).await.expect("a look").expect("the group is there");
        let share = take_share(&b, &self.group, look.shares[0].token).await;
        assert!(share > self.share, "{share} after {}", self.share);
        let event = publish(&b, &self.topic).await;
        assert!(event > self.event, "event {event} after {}", self.event);
        // And it stays in this epoch.
        assert!(matches!(b.store.beat(&b.id).await, Ok(Pulse::Alive { epoch, .. }) if epoch == b.epoch));
    }
}

async fn publish(actor: &Actor, topic: &TopicKey) -> u64 {
    let event = NewEvent { key: Some("k".into()), ..NewEvent::default() };
    let published = actor.store.publish(topic, &[event.clone(), event]).await.expect("it is published");
    published[published.len() - 1].id.0
}

async fn take_share(actor: &Actor, group: &GroupKey, seen: Token) -> Token {
    let take = TakeShares { group: group.clone(), session: actor.id.clone(), slots: vec![(0, seen)] };
    let taken = actor.store.take_shares(&take).await.expect("a share");
    taken.first().expect("it is free").token
}
