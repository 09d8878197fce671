//! Events in memory and events in the store, call by call.
//!
//! A seed makes a sequence of calls; each goes to the store and to a [`Memory`], and the answers must be equal but for wall times
//! and numbers: an event is the n-th that was published, a position is how many units of its slot it has passed, and a token counts
//! grants. What a call left behind is compared too. Nothing in it hangs on the clock: what is for later is for an hour later.
//! `TENURE_SEED` chooses another seed.

mod members;
mod people;
mod side;

use std::fmt::Debug;
use std::sync::Arc;

use tenure::backend::memory::Memory;
use tenure_core::port::{
    Backend, GroupKey, GroupView, Json, NewEvent, Payload, Published, TopicKey, TopicSettings,
};
use tenure_core::{Entropy, SessionId, SplitMix, Token};

use self::side::Side;
use super::events_hall::{everything, topic};
use super::{Subject, new_id, new_session, seeded};

/// How many calls a sequence has.
const CALLS: u32 = 350;

/// See the module.
pub async fn random_events_go_as_they_go_in_memory(subject: &Subject) {
    let (seed, dice) = seeded(0x7e_0005);
    let memory: Arc<dyn Backend> = Arc::new(Memory::new());
    let sides = [Side::of(subject.client().await).await, Side::of(memory).await];
    let mut pair = Pair { sides, dice, sessions: Vec::new(), seed, call: 0 };
    for (key, slots) in [(topic("t"), 3), (topic("u"), 1)] {
        pair.set_topic(&key, slots).await;
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

struct Pair {
    sides: [Side; 2],
    dice: SplitMix,
    sessions: Vec<SessionId>,
    seed: u64,
    call: u32,
}

impl Pair {
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
            92..93 => self.push().await,
            93..95 => self.open().await,
            95..97 => self.end().await,
            _ => self.prune().await,
        }
    }

    fn same<T: PartialEq + Debug>(&self, what: &str, answers: Vec<T>) {
        let [store, memory] = <[T; 2]>::try_from(answers).unwrap_or_else(|_| unreachable!("two sides"));
        assert_eq!(
            store, memory,
            "left the store, right the memory: {what}, call {}, TENURE_SEED={}",
            self.call, self.seed
        );
    }

    async fn set_topic(&mut self, key: &TopicKey, slots: u32) {
        for side in &self.sides {
            let settings = TopicSettings { slots, ..TopicSettings::default() };
            assert_eq!(side.store.set_topic(key, &settings).await, Ok(true));
        }
    }

    async fn open(&mut self) {
        let id = new_id();
        for side in &self.sides {
            side.store.open(&new_session(&id, "s")).await.expect("open");
        }
        self.sessions.push(id);
        if self.sessions.len() > 5 {
            self.sessions.remove(0);
        }
    }

    async fn end(&mut self) {
        let id = self.session();
        for side in &self.sides {
            side.store.end(&id).await.expect("end");
        }
    }

    async fn publish(&mut self) {
        let key = self.topic();
        let mut events = Vec::new();
        for _ in 0..=self.roll(4) {
            events.push(self.draft(&key));
        }
        let mut answers = Vec::new();
        for side in &mut self.sides {
            let published = side.store.publish(&key, &events).await.expect("publish");
            side.learn(&key, &published).await;
            let told = |it: &Published| (side.place(it.id), it.slot, it.new);
            answers.push(published.iter().map(told).collect::<Vec<_>>());
        }
        self.same(&format!("publish of {events:?}"), answers);
    }

    /// Without a key only where there is one slot: elsewhere the slot hangs on the number.
    fn draft(&mut self, topic: &TopicKey) -> NewEvent {
        let keyless = topic.name.as_str() == "u" && self.chance(30);
        NewEvent {
            key: (!keyless).then(|| format!("k{}", self.roll(6))),
            kind: ["", "a", "b"][self.roll(3) as usize].into(),
            payload: match self.chance(80) {
                true => Payload::Json(Json::of(&self.roll(1_000)).expect("a number")),
                false => Payload::Bytes(vec![7; self.roll(4) as usize]),
            },
            headers: (0..self.roll(3)).map(|n| (format!("h{n}"), "v".into())).collect(),
            idempotency_key: self.chance(15).then(|| format!("i{}", self.roll(9))),
            leader_token: self.chance(10).then(|| Token::from_u64(self.roll(9))),
        }
    }

    /// Everything that can be seen.
    async fn compare(&mut self) {
        let (mut topics, mut groups, mut events) = (Vec::new(), Vec::new(), Vec::new());
        let (mut asides, mut firsts) = (Vec::new(), Vec::new());
        for side in &self.sides {
            let (mut ends, mut all, mut aside, mut keys) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            let views = side.store.topics(None).await.expect("topics");
            for view in &views {
                for it in side.store.slot_ends(&view.key).await.expect("slot_ends").expect("it is there") {
                    let rank = |position| side.rank(&view.key, it.slot, position);
                    ends.push((it.slot, rank(it.earliest), rank(it.latest)));
                    let read = side.read(&view.key, it.slot, 0).await;
                    all.extend(read.iter().map(|event| side.event(&view.key, event)));
                }
            }
            let seen = |view: &tenure_core::port::TopicView| {
                (
                    view.key.clone(),
                    view.settings,
                    view.events,
                    view.oldest_at_ms.is_some(),
                    view.groups.clone(),
                )
            };
            topics.push((views.iter().map(seen).collect::<Vec<_>>(), ends));
            events.push(all);
            let views = side.store.groups(None).await.expect("groups");
            for GroupView { key, slots, .. } in &views {
                let list = side.store.aside(&everything(key)).await.expect("aside");
                aside.extend(list.iter().map(|view| side.aside(&key.topic, view)));
                for slot in 0..u32::try_from(slots.len()).expect("a few") {
                    let list = side.store.aside_keys(key, slot).await.expect("aside_keys");
                    keys.extend(list.iter().map(|key| side.aside_key(key)));
                }
            }
            groups.push(views.iter().map(|view| side.group(view)).collect::<Vec<_>>());
            asides.push(aside);
            firsts.push(keys);
        }
        self.same("topics", topics);
        self.same("events", events);
        self.same("groups", groups);
        self.same("aside", asides);
        self.same("keys that are aside", firsts);
    }

    fn topic(&mut self) -> TopicKey {
        topic(["t", "t", "u"][self.roll(3) as usize])
    }

    fn slots(&self, topic: &TopicKey) -> u32 {
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
        self.dice.next_u64() % sides.max(1)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }
}
