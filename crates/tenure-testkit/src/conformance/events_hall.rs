//! What the claims about events are said with: a topic as one client works on it, and the members of a group.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::event::assign;
use tenure_core::port::{
    Aside, AsideFilter, AsideKey, AsideView, Backend, Begin, Committed, Event, EventId, GroupKey, GroupLook,
    GroupView, Join, Json, NewEvent, Payload, Position, Published, ReadAsk, SetAside, Share, ShareCommit,
    SlotEnds, StoreError, TakeShares, Taken, Tend, TopicKey, TopicSettings, TopicView, Trouble,
};
use tenure_core::{Name, Token};

use super::floor::Keeper;
use super::{Actor, Subject};

/// How many slots the topics of these claims have, unless they say otherwise.
pub const SLOTS: u32 = 4;

/// A topic, as one client works on it.
#[derive(Clone)]
pub struct Hall {
    /// The client.
    pub store: Arc<dyn Backend>,
    /// The topic.
    pub key: TopicKey,
}

impl Hall {
    /// The topic `t` of the default namespace with a few slots, through a new client.
    pub async fn of(subject: &Subject) -> Hall {
        Hall::with(subject, TopicSettings { slots: SLOTS, ..TopicSettings::default() }).await
    }

    /// The topic `t` of the default namespace, set like this, through a new client.
    pub async fn with(subject: &Subject, settings: TopicSettings) -> Hall {
        let hall = Hall { store: subject.client().await, key: topic("t") };
        assert_eq!(hall.store.set_topic(&hall.key, &settings).await, Ok(true));
        hall
    }

    /// Another topic with a few slots, through the same client.
    pub async fn beside(&self, key: TopicKey) -> Hall {
        let hall = Hall { store: self.store.clone(), key };
        let settings = TopicSettings { slots: SLOTS, ..TopicSettings::default() };
        hall.store.set_topic(&hall.key, &settings).await.expect("set_topic");
        hall
    }

    /// The same topic, through a new client.
    pub async fn again(&self, subject: &Subject) -> Hall {
        Hall { store: subject.client().await, key: self.key.clone() }
    }

    /// Publishes, all together.
    pub async fn publish(&self, events: Vec<NewEvent>) -> Vec<Published> {
        let published = self.store.publish(&self.key, &events).await.expect("publish");
        assert_eq!(published.len(), events.len(), "one result for each");
        published
    }

    /// Publishes one.
    pub async fn publish_one(&self, event: NewEvent) -> EventId {
        self.publish(vec![event]).await[0].id
    }

    /// Publishes events of these keys, each by itself, and tells their numbers.
    pub async fn publish_each(&self, keys: &[&str]) -> Vec<EventId> {
        let mut numbers = Vec::new();
        for key in keys {
            numbers.push(self.publish_one(keyed(key)).await);
        }
        numbers
    }

    /// Publishes what must be refused, and tells what was said.
    pub async fn refused(&self, events: Vec<NewEvent>) -> String {
        refused(self.store.publish(&self.key, &events).await)
    }

    /// Reads slots, each after a position.
    pub async fn read(&self, after: &[(u32, Position)], limit: u32) -> Vec<Event> {
        let ask = ReadAsk { topic: self.key.clone(), after: after.to_vec(), limit };
        self.store.read_events(&ask).await.expect("read_events")
    }

    /// Everything that there is, slot by slot.
    pub async fn all(&self) -> Vec<Event> {
        let mut reader = Reader::new(self.view().await.settings.slots);
        let mut all = Vec::new();
        loop {
            let events = reader.read(self, 10_000).await;
            if events.is_empty() {
                all.sort_by_key(|event: &Event| (event.slot, event.position, event.id));
                return all;
            }
            all.extend(events);
        }
    }

    /// The topic, as this client sees it.
    pub async fn view(&self) -> TopicView {
        self.store.topic(&self.key).await.expect("topic").expect("there is such a topic")
    }

    /// The ends of its slots.
    pub async fn ends(&self) -> Vec<SlotEnds> {
        self.store.slot_ends(&self.key).await.expect("slot_ends").expect("there is such a topic")
    }

    /// The end of a slot.
    pub async fn latest(&self, slot: u32) -> Position {
        self.ends().await[slot as usize].latest
    }

    /// A group of this topic.
    pub fn group(&self, name: &str) -> GroupKey {
        GroupKey::new(self.key.clone(), name.parse().expect("a name"))
    }

    /// The group `g`, as people see it.
    pub async fn group_view(&self) -> GroupView {
        let key = self.group("g");
        self.store.group(&key).await.expect("group").expect("there is such a group")
    }

    /// What of the group `g` is aside.
    pub async fn aside(&self) -> Vec<AsideView> {
        self.store.aside(&everything(&self.group("g"))).await.expect("aside")
    }

    /// The store's wall clock, as events show it: later than this event.
    pub async fn after_moment(&self, moment_ms: i64) {
        let clock = self.beside(topic("clock")).await;
        loop {
            let id = clock.publish_one(NewEvent::new("tick")).await;
            let event = clock.store.event(&clock.key, id).await.expect("event").expect("it is kept");
            if event.at_ms > moment_ms {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Forgets until so many are gone, for as long as it takes: a millisecond must pass, or not even that.
    pub async fn prune_until(&self, keeper: &Keeper, count: u64) {
        let mut sum = 0;
        while sum < count {
            sum += self.prune(&keeper.tending()).await.0;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(sum, count, "and no more");
    }

    /// Forgets once.
    pub async fn prune(&self, tend: &Tend) -> (u64, bool) {
        self.store.prune_events(tend).await.expect("prune_events")
    }
}

/// Who reads a topic from its beginning, without a group.
pub struct Reader {
    /// How far, by slot.
    pub after: BTreeMap<u32, Position>,
}

impl Reader {
    /// Before everything.
    pub fn new(slots: u32) -> Reader {
        Reader { after: (0..slots).map(|slot| (slot, 0)).collect() }
    }

    /// The next events, of all slots.
    pub async fn read(&mut self, hall: &Hall, limit: u32) -> Vec<Event> {
        let after: Vec<_> = self.after.iter().map(|(slot, position)| (*slot, *position)).collect();
        let events = hall.read(&after, limit).await;
        for event in &events {
            self.after.insert(event.slot, event.position);
        }
        events
    }
}

/// A member of the group `g`.
pub struct Guest {
    /// Its session and client.
    pub actor: Actor,
    /// The group.
    pub group: GroupKey,
    /// What it is called.
    pub name: String,
}

impl Guest {
    /// Joins the group `g` of a topic through a new client.
    pub async fn of(subject: &Subject, hall: &Hall, name: &str) -> Guest {
        Guest::by(subject.actor(name).await, hall.group("g"), name).await
    }

    /// Joins a group.
    pub async fn by(actor: Actor, group: GroupKey, name: &str) -> Guest {
        let guest = Guest { actor, group, name: name.into() };
        guest.join().await.expect("join_group");
        guest
    }

    /// Says that it is there.
    pub async fn join(&self) -> Result<GroupLook, StoreError> {
        self.actor.store.join_group(&self.joining()).await
    }

    /// What it would say.
    pub fn joining(&self) -> Join {
        joining(&self.actor, &self.group, &self.name)
    }

    /// The group, as its members see it.
    pub async fn look(&self) -> GroupLook {
        self.actor.store.look_group(&self.group).await.expect("look_group").expect("there is such a group")
    }

    /// A share, as its members see it.
    pub async fn share(&self, slot: u32) -> Share {
        self.look().await.shares[slot as usize].clone()
    }

    /// What it would say to take slots as they are now.
    pub async fn bid(&self, slots: &[u32]) -> TakeShares {
        let look = self.look().await;
        let slots = slots.iter().map(|slot| (*slot, look.shares[*slot as usize].token)).collect();
        TakeShares { group: self.group.clone(), session: self.actor.id.clone(), slots }
    }

    /// Takes slots, as far as they are to be had.
    pub async fn take(&self, slots: &[u32]) -> Vec<Taken> {
        let bid = self.bid(slots).await;
        let mut taken = self.actor.store.take_shares(&bid).await.expect("take_shares");
        taken.sort_by_key(|it| it.slot);
        taken
    }

    /// Takes one slot that is free.
    pub async fn take_one(&self, slot: u32) -> Taken {
        let mut taken = self.take(&[slot]).await;
        assert_eq!(taken.iter().map(|it| it.slot).collect::<Vec<_>>(), [slot], "it is free");
        taken.remove(0)
    }

    /// Gives slots back.
    pub async fn free(&self, shares: &[(u32, Token)]) {
        self.actor.store.free_shares(&self.group, shares).await.expect("free_shares");
    }

    /// Does what it has to do, so that slots are spread evenly; whether there was something to do. As if all had gathered: no
    /// test waits for that.
    pub async fn balance(&self) -> bool {
        let look = GroupLook { gathered_ms: u64::MAX, ..self.look().await };
        let balance = assign(&look, &self.actor.id);
        self.free(&balance.free).await;
        let bid = TakeShares {
            group: self.group.clone(),
            session: self.actor.id.clone(),
            slots: balance.take.clone(),
        };
        self.actor.store.take_shares(&bid).await.expect("take_shares");
        !(balance.free.is_empty() && balance.take.is_empty())
    }

    /// Says something about shares.
    pub async fn commit_all(&self, commits: &[ShareCommit]) -> Vec<Committed> {
        let committed = self.actor.store.commit_shares(commits).await.expect("commit_shares");
        assert_eq!(committed.len(), commits.len(), "one result for each");
        committed
    }

    /// Says something about a share.
    pub async fn commit(&self, commit: ShareCommit) -> Committed {
        self.commit_all(&[commit]).await[0]
    }

    /// Says what must be refused, and tells what was said.
    pub async fn commit_refused(&self, commit: ShareCommit) -> String {
        refused(self.actor.store.commit_shares(&[commit]).await)
    }

    /// What would be said about a share that was taken: nothing yet.
    pub fn about(&self, taken: &Taken) -> ShareCommit {
        ShareCommit {
            group: self.group.clone(),
            slot: taken.slot,
            token: taken.token,
            position: None,
            done: Vec::new(),
            set_aside: Vec::new(),
            settled: Vec::new(),
        }
    }

    /// That everything up to here is read.
    pub fn read_to(&self, taken: &Taken, position: Position) -> ShareCommit {
        ShareCommit { position: Some(position), ..self.about(taken) }
    }

    /// That this became of events which were aside.
    pub fn settling(&self, taken: &Taken, settled: Vec<(EventId, Aside)>) -> ShareCommit {
        ShareCommit { settled, ..self.about(taken) }
    }

    /// The keys that are aside in a slot.
    pub async fn aside_keys(&self, slot: u32) -> Vec<AsideKey> {
        self.actor.store.aside_keys(&self.group, slot).await.expect("aside_keys")
    }

    /// Reads a slot to its end after what was read when it was taken.
    pub async fn read(&self, taken: &Taken) -> Vec<Event> {
        let (topic, after) = (self.group.topic.clone(), vec![(taken.slot, taken.position)]);
        let ask = ReadAsk { topic, after, limit: 10_000 };
        self.actor.store.read_events(&ask).await.expect("read_events")
    }

    /// Leaves.
    pub async fn leave(&self) {
        self.actor.store.leave_group(&self.group, &self.actor.id).await.expect("leave_group");
    }
}

/// Somebody who would join a group.
pub fn joining(actor: &Actor, group: &GroupKey, name: &str) -> Join {
    Join { group: group.clone(), session: actor.id.clone(), member: name.into(), from: Begin::Earliest }
}

/// A topic of the default namespace.
pub fn topic(name: &str) -> TopicKey {
    TopicKey::new(Name::default_namespace(), name.parse().expect("a name"))
}

/// An event of a key.
pub fn keyed(key: &str) -> NewEvent {
    NewEvent { key: Some(key.into()), ..NewEvent::new("k") }
}

/// An event of a key that says which it is.
pub fn numbered(key: &str, number: u64) -> NewEvent {
    NewEvent { payload: Payload::Json(Json::of(&number).expect("a number")), ..keyed(key) }
}

/// What such an event says.
pub fn number(event: &Event) -> u64 {
    match &event.payload {
        Payload::Json(json) => json.as_str().parse().expect("a number"),
        Payload::Bytes(_) => panic!("{event:?} has no number"),
    }
}

/// Keys that lie in this slot.
pub fn keys_in(slot: u32, count: usize) -> Vec<String> {
    let keys = (0..).map(|n| format!("key-{n}"));
    keys.filter(|key| tenure_core::event::slot_of(key, SLOTS) == slot).take(count).collect()
}

/// An event, to be set aside.
pub fn aside(event: &Event, how: Aside) -> SetAside {
    SetAside { event: event.id, position: event.position, how }
}

/// It is tried again after so many milliseconds.
pub fn retry(attempts: u32, after_ms: u64) -> Aside {
    Aside::Retry { attempts, after_ms, error: "it broke".into() }
}

/// It failed for good.
pub fn dead(attempts: u32) -> Aside {
    Aside::Dead { attempts, error: "it broke".into() }
}

/// All that is aside in a group.
pub fn everything(group: &GroupKey) -> AsideFilter {
    AsideFilter { group: group.clone(), dead: false, slot: None, key: None, after: None, limit: 1_000 }
}

/// What was said by who refused.
pub fn refused<T: std::fmt::Debug>(result: Result<T, StoreError>) -> String {
    let error = result.expect_err("it is refused");
    assert_eq!(error.kind, Trouble::Request, "{error}");
    error.message
}

/// Nothing was to be had of what is not there, or so it was said by name.
pub fn nothing<T: std::fmt::Debug>(result: Result<Vec<T>, StoreError>, name: &str) {
    match result {
        Ok(list) => assert!(list.is_empty(), "{list:?}"),
        Err(error) => assert!(error.kind == Trouble::Request && error.message.contains(name), "{error}"),
    }
}

/// Their numbers.
pub fn event_ids(events: &[Event]) -> Vec<EventId> {
    events.iter().map(|event| event.id).collect()
}
