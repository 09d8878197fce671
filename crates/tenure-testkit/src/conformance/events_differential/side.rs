//! One of the two stores and its numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use tenure_core::port::{
    Event, EventId, GroupView, MaintenanceRequest, Offset, ParkedEvent, ParkedKey, PartitionLease,
    PublishReceipt, ReadEventsRequest, Store, StoreError, TakenPartition, TopicKey, broker_election,
};
use tenure_core::{SessionId, Token};

use super::super::TestSession;

/// One of the two stores.
pub(super) struct EventSide {
    pub(super) store: Arc<dyn Store>,
    /// Event ids by index of publication.
    pub(super) ids: Vec<EventId>,
    /// Offsets of the commit batches of each partition, pruned or not.
    pub(super) batches: BTreeMap<(TopicKey, u32), BTreeSet<Offset>>,
    pub(super) maintenance: (SessionId, Token),
    pub(super) epoch: u32,
}

/// When a parked event is due: now, later, or neither.
fn due(in_ms: Option<u64>) -> &'static str {
    match in_ms {
        None => "never",
        Some(0) => "now",
        Some(_) => "later",
    }
}

pub(super) fn without_numbers(error: &StoreError) -> impl PartialEq + Debug + use<> {
    error.kind
}

impl EventSide {
    pub(super) async fn of(store: Arc<dyn Store>) -> EventSide {
        let session = TestSession::open(store.clone(), "keeper").await;
        session.join(&broker_election()).await;
        let token = session.take(&broker_election(), 0).await;
        let (epoch, maintenance) = (session.epoch, (session.id, token));
        EventSide { store, ids: Vec::new(), batches: BTreeMap::new(), maintenance, epoch }
    }

    pub(super) fn place(&self, id: EventId) -> usize {
        self.ids.iter().position(|it| *it == id).expect("an event that was published here")
    }

    /// Number of commit batches up to this offset.
    pub(super) fn rank(&self, topic: &TopicKey, partition: u32, offset: Offset) -> usize {
        let batches = self.batches.get(&(topic.clone(), partition));
        batches.map_or(0, |batches| batches.range(..=offset).count())
    }

    /// The offset of the n-th commit batch.
    pub(super) fn offset(&self, topic: &TopicKey, partition: u32, rank: usize) -> Offset {
        let batches = self.batches.get(&(topic.clone(), partition));
        let nth = rank.checked_sub(1).and_then(|n| batches?.iter().nth(n));
        nth.copied().unwrap_or(0)
    }

    /// The token with this number of grants.
    pub(super) fn token(&self, grant: u64) -> Token {
        match grant {
            0 => Token::ZERO,
            grant => Token::from_u64(Token::first(self.epoch).as_u64() + grant),
        }
    }

    pub(super) fn event(&self, topic: &TopicKey, event: &Event) -> impl PartialEq + Debug + use<> {
        let rank = self.rank(topic, event.partition, event.offset);
        (
            (self.place(event.id), event.partition, rank, event.key.clone(), event.event_type.clone()),
            (event.payload.clone(), event.headers.clone(), event.leader_token),
        )
    }

    pub(super) fn partition_lease(
        &self,
        topic: &TopicKey,
        lease: &PartitionLease,
    ) -> impl PartialEq + Debug + use<> {
        let rank = self.rank(topic, lease.partition, lease.committed_offset);
        (lease.partition, lease.token.grant(), lease.holder.clone(), lease.last_member.clone(), rank)
    }

    pub(super) fn parked_key(&self, key: &ParkedKey) -> impl PartialEq + Debug + use<> {
        (key.key.clone(), self.place(key.event_id), key.attempts, due(key.retry_in_ms))
    }

    pub(super) fn parked_events(
        &self,
        topic: &TopicKey,
        view: &ParkedEvent,
    ) -> impl PartialEq + Debug + use<> {
        let how = (
            view.dead,
            view.attempts,
            view.last_error.clone(),
            due(view.retry_in_ms),
            view.waiting_behind_count,
        );
        (self.event(topic, &view.event), how)
    }

    pub(super) fn taken(&self, topic: &TopicKey, taken: &TakenPartition) -> impl PartialEq + Debug + use<> {
        let rank = self.rank(topic, taken.partition, taken.offset);
        let done: BTreeSet<usize> = taken.processed_event_ids.iter().map(|id| self.place(*id)).collect();
        let parked: Vec<_> = taken.parked_keys.iter().map(|key| self.parked_key(key)).collect();
        (taken.partition, taken.token.grant(), rank, done, parked)
    }

    pub(super) fn group(&self, view: &GroupView) -> impl PartialEq + Debug + use<> {
        let topic = &view.key.topic;
        let partition = |partition: &tenure_core::port::PartitionView| {
            let lease = self.partition_lease(topic, &partition.partition_lease);
            (
                lease,
                self.rank(topic, partition.partition_lease.partition, partition.end_offset),
                partition.lag_events,
                partition.lag_exact,
            )
        };
        (
            (view.key.clone(), view.settings, view.paused.clone(), view.members.clone()),
            view.partitions.iter().map(partition).collect::<Vec<_>>(),
            (
                view.parked_event_count,
                view.dead_letter_count,
                view.rebalanced_partition_count,
                view.webhook.clone(),
            ),
        )
    }

    /// Records the ids and offsets of new events.
    pub(super) async fn learn(&mut self, topic: &TopicKey, published: &[PublishReceipt]) {
        for it in published.iter().filter(|it| it.created) {
            self.ids.push(it.id);
            let event = self.store.event(topic, it.id).await.expect("event").expect("it exists");
            self.batches.entry((topic.clone(), it.partition)).or_default().insert(event.offset);
        }
    }

    /// Removes pruned events from the list: a store may or may not remember that a pruned, unread event was processed.
    pub(super) async fn keep_kept(&self, topic: &TopicKey, events: &mut Vec<EventId>) {
        for id in std::mem::take(events) {
            if self.store.event(topic, id).await.expect("event").is_some() {
                events.push(id);
            }
        }
    }

    pub(super) async fn read(&self, topic: &TopicKey, partition: u32, after: Offset) -> Vec<Event> {
        let request =
            ReadEventsRequest { topic: topic.clone(), after: vec![(partition, after)], limit: 10_000 };
        self.store.read_events(&request).await.expect("read_events")
    }

    pub(super) fn maintenance_request(&self, limit: u32) -> MaintenanceRequest {
        let (session, token) = self.maintenance.clone();
        MaintenanceRequest { session, token, clock_ms: Some(i64::MAX), limit }
    }
}
