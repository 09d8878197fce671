//! Comparison of events in a store with the model, call by call.
//!
//! A seed determines a sequence of calls. Each goes to the store and to a memory store, and the responses must be
//! equal except for wall-clock times and numbers: an event is identified by its index of publication, an offset by
//! the number of commit batches up to it, and a token by the number of grants. The resulting state is compared too.
//! Nothing depends on the clock: delays are one hour. `TENURE_SEED` selects another seed.

mod admin;
mod members;
mod side;

use std::fmt::Debug;
use std::sync::Arc;

use tenure::store::memory::MemoryStore;
use tenure_core::port::{
    GroupKey, GroupView, NewEvent, Payload, PublishReceipt, RawJson, Store, TopicKey, TopicSettings,
};
use tenure_core::{Entropy, SessionId, SplitMix, Token};

use self::side::EventSide;
use super::test_topic::{everything, topic};
use super::{StoreUnderTest, new_id, new_session, seeded};

/// Number of calls.
const CALLS: u32 = 350;

/// See the module documentation.
pub async fn random_event_calls_match_the_model(subject: &StoreUnderTest) {
    let (seed, rng) = seeded(0x7e_0005);
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let sides = [EventSide::of(subject.client().await).await, EventSide::of(memory).await];
    let mut pair = EventDifferential { sides, rng, sessions: Vec::new(), seed, call: 0 };
    for (key, partitions) in [(topic("t"), 3), (topic("u"), 1)] {
        pair.set_topic(&key, partitions).await;
    }
    for _ in 0..3 {
        pair.open().await;
    }
    while pair.call < CALLS {
        pair.call += 1;
        pair.step().await;
        if pair.call.is_multiple_of(4) || pair.call == CALLS {
            pair.compare().await;
        }
    }
}

struct EventDifferential {
    sides: [EventSide; 2],
    rng: SplitMix,
    sessions: Vec<SessionId>,
    seed: u64,
    call: u32,
}

impl EventDifferential {
    async fn step(&mut self) {
        match self.roll(100) {
            0..20 => self.publish().await,
            20..31 => self.join().await,
            31..33 => self.leave().await,
            33..50 => self.take().await,
            50..54 => self.free().await,
            54..80 => self.commit().await,
            80..85 => self.order_dead().await,
            85..87 => self.reset().await,
            87..89 => self.pause().await,
            89..91 => self.set_group().await,
            91..92 => self.delete_group().await,
            92..93 => self.set_webhook().await,
            93..95 => self.open().await,
            95..97 => self.end().await,
            _ => self.prune().await,
        }
    }

    fn same<T: PartialEq + Debug>(&self, what: &str, responses: Vec<T>) {
        let [store, memory] = <[T; 2]>::try_from(responses).unwrap_or_else(|_| unreachable!("two sides"));
        assert_eq!(
            store, memory,
            "left: store, right: model: {what}, call {}, TENURE_SEED={}",
            self.call, self.seed
        );
    }

    async fn set_topic(&mut self, key: &TopicKey, partitions: u32) {
        for side in &self.sides {
            let settings = TopicSettings { partitions, ..TopicSettings::default() };
            assert_eq!(side.store.set_topic(key, &settings).await, Ok(true));
        }
    }

    async fn open(&mut self) {
        let id = new_id();
        for side in &self.sides {
            side.store.open_session(&new_session(&id, "s")).await.expect("open");
        }
        self.sessions.push(id);
        if self.sessions.len() > 5 {
            self.sessions.remove(0);
        }
    }

    async fn end(&mut self) {
        let id = self.session();
        for side in &self.sides {
            side.store.end_session(&id).await.expect("end");
        }
    }

    async fn publish(&mut self) {
        let key = self.topic();
        let mut events = Vec::new();
        for _ in 0..=self.roll(4) {
            events.push(self.draft(&key));
        }
        let mut responses = Vec::new();
        for side in &mut self.sides {
            let published = side.store.publish(&key, &events).await.expect("publish");
            side.learn(&key, &published).await;
            let reported = |it: &PublishReceipt| (side.place(it.id), it.partition, it.created);
            responses.push(published.iter().map(reported).collect::<Vec<_>>());
        }
        self.same(&format!("publish of {events:?}"), responses);
    }

    /// Creates an event. It has no key only if the topic has one partition; otherwise its partition would depend on its
    /// id.
    fn draft(&mut self, topic: &TopicKey) -> NewEvent {
        let keyless = topic.name.as_str() == "u" && self.chance(30);
        NewEvent {
            key: (!keyless).then(|| format!("k{}", self.roll(6))),
            event_type: ["", "a", "b"][self.roll(3) as usize].into(),
            payload: match self.chance(80) {
                true => Payload::Json(RawJson::of(&self.roll(1_000)).expect("a number")),
                false => Payload::Bytes(vec![7; self.roll(4) as usize]),
            },
            headers: (0..self.roll(3)).map(|n| (format!("h{n}"), "v".into())).collect(),
            idempotency_key: self.chance(15).then(|| format!("i{}", self.roll(9))),
            leader_token: self.chance(10).then(|| Token::from_u64(self.roll(9))),
        }
    }

    /// Compares the complete visible state.
    async fn compare(&mut self) {
        let (mut topics, mut groups, mut events) = (Vec::new(), Vec::new(), Vec::new());
        let (mut parked_list, mut firsts) = (Vec::new(), Vec::new());
        for side in &self.sides {
            let (mut ends, mut all, mut parked, mut keys) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            let views = side.store.topics(None).await.expect("topics");
            for view in &views {
                for it in
                    side.store.partition_offsets(&view.key).await.expect("slot_ends").expect("it exists")
                {
                    let rank = |offset| side.rank(&view.key, it.partition, offset);
                    ends.push((it.partition, rank(it.start_offset), rank(it.end_offset)));
                    let read = side.read(&view.key, it.partition, 0).await;
                    all.extend(read.iter().map(|event| side.event(&view.key, event)));
                }
            }
            let observed = |view: &tenure_core::port::TopicView| {
                (
                    view.key.clone(),
                    view.settings,
                    view.event_count,
                    view.oldest_published_at_ms.is_some(),
                    view.groups.clone(),
                )
            };
            topics.push((views.iter().map(observed).collect::<Vec<_>>(), ends));
            events.push(all);
            let views = side.store.groups(None).await.expect("groups");
            for GroupView { key, partitions, .. } in &views {
                let list = side.store.parked_events(&everything(key)).await.expect("parked events");
                parked.extend(list.iter().map(|view| side.parked_events(&key.topic, view)));
                for partition in 0..u32::try_from(partitions.len()).expect("a few") {
                    let list = side.store.parked_keys(key, partition).await.expect("parked keys");
                    keys.extend(list.iter().map(|key| side.parked_key(key)));
                }
            }
            groups.push(views.iter().map(|view| side.group(view)).collect::<Vec<_>>());
            parked_list.push(parked);
            firsts.push(keys);
        }
        self.same("topics", topics);
        self.same("events", events);
        self.same("groups", groups);
        self.same("parked events", parked_list);
        self.same("parked keys", firsts);
    }

    fn topic(&mut self) -> TopicKey {
        topic(["t", "t", "u"][self.roll(3) as usize])
    }

    fn partitions(&self, topic: &TopicKey) -> u32 {
        if topic.name.as_str() == "t" { 3 } else { 1 }
    }

    fn group(&mut self) -> GroupKey {
        let topic = self.topic();
        GroupKey::new(topic, ["g", "g", "h"][self.roll(3) as usize].parse().expect("a name"))
    }

    fn session(&mut self) -> SessionId {
        let n = self.roll(self.sessions.len() as u64) as usize;
        self.sessions[n].clone()
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.rng.next_u64() % sides.max(1)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }
}
