//! One of the two stores, and what its numbers mean.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use tenure_core::port::{
    AsideKey, AsideView, Backend, Event, EventId, GroupView, Position, Published, ReadAsk, Share, StoreError,
    Taken, Tend, TopicKey, claims_election,
};
use tenure_core::{SessionId, Token};

use super::super::Actor;

/// One of the two stores.
pub(super) struct Side {
    pub(super) store: Arc<dyn Backend>,
    /// What the store calls the n-th event.
    pub(super) ids: Vec<EventId>,
    /// The positions of each slot's units, forgotten or not.
    pub(super) units: BTreeMap<(TopicKey, u32), BTreeSet<Position>>,
    pub(super) keeper: (SessionId, Token),
    pub(super) epoch: u32,
}

/// How an event that is aside stands, by the clock: due, later, or neither.
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

impl Side {
    pub(super) async fn of(store: Arc<dyn Backend>) -> Side {
        let actor = Actor::open(store.clone(), "keeper").await;
        actor.stand(&claims_election()).await;
        let token = actor.take(&claims_election(), 0).await;
        let (epoch, keeper) = (actor.epoch, (actor.id, token));
        Side { store, ids: Vec::new(), units: BTreeMap::new(), keeper, epoch }
    }

    pub(super) fn place(&self, id: EventId) -> usize {
        self.ids.iter().position(|it| *it == id).expect("an event that was published here")
    }

    /// How many units of the slot lie up to this position.
    pub(super) fn rank(&self, topic: &TopicKey, slot: u32, position: Position) -> usize {
        let units = self.units.get(&(topic.clone(), slot));
        units.map_or(0, |units| units.range(..=position).count())
    }

    /// The position of the n-th unit of the slot.
    pub(super) fn position(&self, topic: &TopicKey, slot: u32, rank: usize) -> Position {
        let units = self.units.get(&(topic.clone(), slot));
        let nth = rank.checked_sub(1).and_then(|n| units?.iter().nth(n));
        nth.copied().unwrap_or(0)
    }

    /// A token by its count.
    pub(super) fn token(&self, grant: u64) -> Token {
        match grant {
            0 => Token::ZERO,
            grant => Token::from_u64(Token::first(self.epoch).as_u64() + grant),
        }
    }

    pub(super) fn event(&self, topic: &TopicKey, event: &Event) -> impl PartialEq + Debug + use<> {
        let rank = self.rank(topic, event.slot, event.position);
        (
            (self.place(event.id), event.slot, rank, event.key.clone(), event.kind.clone()),
            (event.payload.clone(), event.headers.clone(), event.leader_token),
        )
    }

    pub(super) fn share(&self, topic: &TopicKey, share: &Share) -> impl PartialEq + Debug + use<> {
        let rank = self.rank(topic, share.slot, share.position);
        (share.slot, share.token.grant(), share.holder.clone(), share.last.clone(), rank)
    }

    pub(super) fn aside_key(&self, key: &AsideKey) -> impl PartialEq + Debug + use<> {
        (key.key.clone(), self.place(key.event), key.attempts, due(key.due_in_ms))
    }

    pub(super) fn aside(&self, topic: &TopicKey, view: &AsideView) -> impl PartialEq + Debug + use<> {
        let how = (view.dead, view.attempts, view.error.clone(), due(view.due_in_ms), view.behind);
        (self.event(topic, &view.event), how)
    }

    pub(super) fn taken(&self, topic: &TopicKey, taken: &Taken) -> impl PartialEq + Debug + use<> {
        let rank = self.rank(topic, taken.slot, taken.position);
        let done: BTreeSet<usize> = taken.done.iter().map(|id| self.place(*id)).collect();
        let aside: Vec<_> = taken.aside.iter().map(|key| self.aside_key(key)).collect();
        (taken.slot, taken.token.grant(), rank, done, aside)
    }

    pub(super) fn group(&self, view: &GroupView) -> impl PartialEq + Debug + use<> {
        let topic = &view.key.topic;
        let slot = |slot: &tenure_core::port::SlotView| {
            let share = self.share(topic, &slot.share);
            (share, self.rank(topic, slot.share.slot, slot.end), slot.lag, slot.lag_exact)
        };
        (
            (view.key.clone(), view.settings, view.paused.clone(), view.members.clone()),
            view.slots.iter().map(slot).collect::<Vec<_>>(),
            (view.aside, view.dead, view.moves, view.push.clone()),
        )
    }

    /// Learns what the store calls events that are new, and where it put them.
    pub(super) async fn learn(&mut self, topic: &TopicKey, published: &[Published]) {
        for it in published.iter().filter(|it| it.new) {
            self.ids.push(it.id);
            let event = self.store.event(topic, it.id).await.expect("event").expect("it is there");
            self.units.entry((topic.clone(), it.slot)).or_default().insert(event.position);
        }
    }

    /// Whether the store remembers of an event that it forgot unread that it was done is its own affair.
    pub(super) async fn keep_kept(&self, topic: &TopicKey, events: &mut Vec<EventId>) {
        for id in std::mem::take(events) {
            if self.store.event(topic, id).await.expect("event").is_some() {
                events.push(id);
            }
        }
    }

    pub(super) async fn read(&self, topic: &TopicKey, slot: u32, after: Position) -> Vec<Event> {
        let ask = ReadAsk { topic: topic.clone(), after: vec![(slot, after)], limit: 10_000 };
        self.store.read_events(&ask).await.expect("read_events")
    }

    pub(super) fn tend(&self, limit: u32) -> Tend {
        let (session, token) = self.keeper.clone();
        Tend { session, token, clock_ms: Some(i64::MAX), limit }
    }
}
