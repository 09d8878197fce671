//! Stores whose identity changed: restored from a copy, copied, promoted or upgraded.
//!
//! A test starts with [`RestoreCheck::begin`], makes its copy, calls [`RestoreCheck::go_on`] to grant what the copy does not
//! know, starts the copy and calls [`GrantsBeforeRestore::is_exceeded_by`].

use std::sync::Arc;

use tenure_core::port::{
    GroupKey, HeartbeatResponse, JoinGroupRequest, NewEvent, StartOffset, Store, TakeLeaseRequest,
    TakePartitionsRequest, TopicKey, TopicSettings,
};
use tenure_core::{ElectionKey, Token};

use super::{TestSession, election};

/// A store with data, before the copy.
pub struct RestoreCheck {
    a: TestSession,
    key: ElectionKey,
    topic: TopicKey,
    group: GroupKey,
    last: Token,
    events: u64,
}

/// The greatest token and ids that the store granted, including those after the copy was made.
pub struct GrantsBeforeRestore {
    key: ElectionKey,
    topic: TopicKey,
    group: GroupKey,
    /// Epoch of the store at the time of the grants.
    pub epoch: u32,
    /// Greatest lease token.
    pub token: Token,
    /// Greatest token of a partition lease.
    pub partition_token: Token,
    /// Greatest event id.
    pub event: u64,
    observed: TakeLeaseRequest,
}

impl RestoreCheck {
    /// Grants a lease, a partition lease and some event ids.
    pub async fn begin(store: Arc<dyn Store>) -> RestoreCheck {
        let (a, key) = (TestSession::open(store, "a").await, election("nightly"));
        let topic = TopicKey::new(key.namespace.clone(), "orders".parse().expect("a name"));
        let settings = TopicSettings { partitions: 1, ..TopicSettings::default() };
        a.store.set_topic(&topic, &settings).await.expect("a topic");
        let group = GroupKey::new(topic.clone(), "mailer".parse().expect("a name"));
        let join = JoinGroupRequest {
            group: group.clone(),
            session: a.id.clone(),
            member: "a".into(),
            from: StartOffset::Earliest,
        };
        a.store.join_group(&join).await.expect("the member joins");
        a.join(&key).await;
        let last = a.take(&key, 0).await;
        let mut before = RestoreCheck { a, key, topic, group, last, events: 0 };
        before.events = publish(&before.a, &before.topic).await;
        before
    }

    /// Continues through another client.
    #[must_use]
    pub fn through(mut self, store: Arc<dyn Store>) -> RestoreCheck {
        self.a.store = store;
        self
    }

    /// Grants another lease, partition lease and event ids, which the copy does not know.
    pub async fn go_on(self) -> GrantsBeforeRestore {
        let RestoreCheck { a, key, topic, group, mut last, events } = self;
        let observed = a.take_request(&key, 0).await;
        for _ in 0..3 {
            a.release(&key, 0, last).await;
            last = a.take(&key, 0).await;
        }
        let mut partition_token = Token::ZERO;
        for _ in 0..2 {
            partition_token = take_partition(&a, &group, partition_token).await;
            a.store.release_partitions(&group, &[(0, partition_token)]).await.expect("the lease is released");
        }
        let event = publish(&a, &topic).await;
        assert!(event > events);
        GrantsBeforeRestore {
            epoch: a.epoch,
            token: last,
            partition_token,
            event,
            observed,
            key,
            topic,
            group,
        }
    }
}

impl GrantsBeforeRestore {
    /// Checks the started copy: it has another epoch, it rejects earlier observations, and everything it grants is
    /// greater than everything granted before.
    pub async fn is_exceeded_by(&self, store: Arc<dyn Store>) {
        let b = TestSession::open(store, "b").await;
        assert!(b.epoch > self.epoch, "epoch {} after {}", b.epoch, self.epoch);
        b.join(&self.key).await;
        let stale = TakeLeaseRequest { session: b.id.clone(), holder: None, ..self.observed.clone() };
        assert_eq!(
            b.store.take_lease(&stale).await,
            Ok(None),
            "an observation of another epoch does not count"
        );
        let lease = b.lease(&self.key, 0).await;
        let bid = if lease.holder.is_some_and(|holder| holder.live) {
            b.takeover_request(&self.key, 0).await
        } else {
            b.take_request(&self.key, 0).await
        };
        let token = b.store.take_lease(&bid).await.expect("take").expect("the lease is free");
        assert!(token > self.token, "{token} after {}", self.token);
        assert_eq!(token.epoch(), b.epoch);
        let join = JoinGroupRequest {
            group: self.group.clone(),
            session: b.id.clone(),
            member: "b".into(),
            from: StartOffset::Earliest,
        };
        b.store.join_group(&join).await.expect("the member joins");
        let look =
            b.store.group_assignment(&self.group).await.expect("an observation").expect("the group exists");
        let partition_token = take_partition(&b, &self.group, look.partition_leases[0].token).await;
        assert!(partition_token > self.partition_token, "{partition_token} after {}", self.partition_token);
        let event = publish(&b, &self.topic).await;
        assert!(event > self.event, "event {event} after {}", self.event);
        // The copy stays in its new epoch.
        assert!(
            matches!(b.store.heartbeat(&b.id).await, Ok(HeartbeatResponse::Live { epoch, .. }) if epoch == b.epoch)
        );
    }
}

async fn publish(session: &TestSession, topic: &TopicKey) -> u64 {
    let event = NewEvent { key: Some("k".into()), ..NewEvent::default() };
    let published =
        session.store.publish(topic, &[event.clone(), event]).await.expect("the event is published");
    published[published.len() - 1].id.0
}

async fn take_partition(session: &TestSession, group: &GroupKey, observed: Token) -> Token {
    let take = TakePartitionsRequest {
        group: group.clone(),
        session: session.id.clone(),
        partitions: vec![(0, observed)],
    };
    let taken = session.store.take_partitions(&take).await.expect("a partition lease");
    taken.first().expect("it is free").token
}
