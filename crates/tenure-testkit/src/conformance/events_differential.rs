//! Events in memory and events in the store, call by call.
//!
//! A seed makes a sequence of calls; each goes to the store and to a [`Memory`], and the answers must be equal but for wall times
//! and numbers: an event is the n-th that was published, a position is how many units of its slot it has passed, and a token counts
//! grants. What a call left behind is compared too. Nothing in it hangs on the clock: what is for later is for an hour later.
//! `TENURE_SEED` chooses another seed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use tenure::backend::memory::Memory;
use tenure_core::port::{
    Aside, AsideFilter, AsideKey, AsideView, Backend, Backoff, Begin, DeadOrder, Event, EventId, GroupKey,
    GroupSettings, GroupView, Join, Json, NewEvent, Payload, Position, Published, Push, ReadAsk, SetAside,
    Share, ShareCommit, StoreError, TakeShares, Taken, Tend, TopicKey, TopicSettings, claims_election,
};
use tenure_core::{Entropy, SessionId, SplitMix, Token};

use super::events_hall::{everything, topic};
use super::floor::{HOUR_MS, pause};
use super::{Actor, Subject, new_id, new_session, seeded};

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

/// One of the two stores.
struct Side {
    store: Arc<dyn Backend>,
    /// What the store calls the n-th event.
    ids: Vec<EventId>,
    /// The positions of each slot's units, forgotten or not.
    units: BTreeMap<(TopicKey, u32), BTreeSet<Position>>,
    keeper: (SessionId, Token),
    timeline: u32,
}

/// How an event that is aside stands, by the clock: due, later, or neither.
fn due(in_ms: Option<u64>) -> &'static str {
    match in_ms {
        None => "never",
        Some(0) => "now",
        Some(_) => "later",
    }
}

fn without_numbers(error: &StoreError) -> impl PartialEq + Debug + use<> {
    error.kind
}

impl Side {
    async fn of(store: Arc<dyn Backend>) -> Side {
        let actor = Actor::open(store.clone(), "keeper").await;
        actor.stand(&claims_election()).await;
        let token = actor.take(&claims_election(), 0).await;
        let (timeline, keeper) = (actor.timeline, (actor.id, token));
        Side { store, ids: Vec::new(), units: BTreeMap::new(), keeper, timeline }
    }

    fn place(&self, id: EventId) -> usize {
        self.ids.iter().position(|it| *it == id).expect("an event that was published here")
    }

    /// How many units of the slot lie up to this position.
    fn rank(&self, topic: &TopicKey, slot: u32, position: Position) -> usize {
        let units = self.units.get(&(topic.clone(), slot));
        units.map_or(0, |units| units.range(..=position).count())
    }

    /// The position of the n-th unit of the slot.
    fn position(&self, topic: &TopicKey, slot: u32, rank: usize) -> Position {
        let units = self.units.get(&(topic.clone(), slot));
        let nth = rank.checked_sub(1).and_then(|n| units?.iter().nth(n));
        nth.copied().unwrap_or(0)
    }

    /// A token by its count.
    fn token(&self, grant: u64) -> Token {
        match grant {
            0 => Token::ZERO,
            grant => Token::from_u64(Token::first(self.timeline).as_u64() + grant),
        }
    }

    fn event(&self, topic: &TopicKey, event: &Event) -> impl PartialEq + Debug + use<> {
        let rank = self.rank(topic, event.slot, event.position);
        (
            (self.place(event.id), event.slot, rank, event.key.clone(), event.kind.clone()),
            (event.payload.clone(), event.headers.clone(), event.leader_token),
        )
    }

    fn share(&self, topic: &TopicKey, share: &Share) -> impl PartialEq + Debug + use<> {
        let rank = self.rank(topic, share.slot, share.position);
        (share.slot, share.token.grant(), share.holder.clone(), share.last.clone(), rank)
    }

    fn aside_key(&self, key: &AsideKey) -> impl PartialEq + Debug + use<> {
        (key.key.clone(), self.place(key.event), key.attempts, due(key.due_in_ms))
    }

    fn aside(&self, topic: &TopicKey, view: &AsideView) -> impl PartialEq + Debug + use<> {
        let how = (view.dead, view.attempts, view.error.clone(), due(view.due_in_ms), view.behind);
        (self.event(topic, &view.event), how)
    }

    fn taken(&self, topic: &TopicKey, taken: &Taken) -> impl PartialEq + Debug + use<> {
        let rank = self.rank(topic, taken.slot, taken.position);
        let done: BTreeSet<usize> = taken.done.iter().map(|id| self.place(*id)).collect();
        let aside: Vec<_> = taken.aside.iter().map(|key| self.aside_key(key)).collect();
        (taken.slot, taken.token.grant(), rank, done, aside)
    }

    fn group(&self, view: &GroupView) -> impl PartialEq + Debug + use<> {
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
    async fn learn(&mut self, topic: &TopicKey, published: &[Published]) {
        for it in published.iter().filter(|it| it.new) {
            self.ids.push(it.id);
            let event = self.store.event(topic, it.id).await.expect("event").expect("it is there");
            self.units.entry((topic.clone(), it.slot)).or_default().insert(event.position);
        }
    }

    /// Whether the store remembers of an event that it forgot unread that it was done is its own affair.
    async fn keep_kept(&self, topic: &TopicKey, events: &mut Vec<EventId>) {
        for id in std::mem::take(events) {
            if self.store.event(topic, id).await.expect("event").is_some() {
                events.push(id);
            }
        }
    }

    async fn read(&self, topic: &TopicKey, slot: u32, after: Position) -> Vec<Event> {
        let ask = ReadAsk { topic: topic.clone(), after: vec![(slot, after)], limit: 10_000 };
        self.store.read_events(&ask).await.expect("read_events")
    }

    fn tend(&self, limit: u32) -> Tend {
        let (session, token) = self.keeper.clone();
        Tend { session, token, clock_ms: Some(i64::MAX), limit }
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

    async fn join(&mut self) {
        let from = if self.chance(70) { Begin::Earliest } else { Begin::Latest };
        let (group, session) = (self.group(), self.session());
        let join = Join { group, session, member: format!("m{}", self.roll(3)), from };
        let mut answers = Vec::new();
        for side in &self.sides {
            let look = side.store.join_group(&join).await;
            answers.push(match &look {
                Ok(look) => {
                    let shares: Vec<_> =
                        look.shares.iter().map(|share| side.share(&join.group.topic, share)).collect();
                    Ok((look.members.clone(), shares, look.settings, look.paused.clone()))
                }
                Err(error) => Err(without_numbers(error)),
            });
        }
        self.same(&format!("{join:?}"), answers);
    }

    async fn leave(&mut self) {
        let (group, session) = (self.group(), self.session());
        for side in &self.sides {
            side.store.leave_group(&group, &session).await.expect("leave_group");
        }
    }

    async fn take(&mut self) {
        let (group, session) = (self.group(), self.session());
        let mut wanted = Vec::new();
        for slot in 0..self.slots(&group.topic) {
            if self.chance(60) {
                wanted.push((slot, u64::from(self.chance(5))));
            }
        }
        let mut answers = Vec::new();
        for side in &self.sides {
            let Some(look) = side.store.look_group(&group).await.expect("look_group") else { continue };
            let seen = |(slot, off): &(u32, u64)| {
                (*slot, side.token(look.shares[*slot as usize].token.grant() + off))
            };
            let slots = wanted.iter().map(seen).collect();
            let take = TakeShares { group: group.clone(), session: session.clone(), slots };
            let mut taken = side.store.take_shares(&take).await.expect("take_shares");
            taken.sort_by_key(|it| it.slot);
            for it in &mut taken {
                side.keep_kept(&group.topic, &mut it.done).await;
            }
            answers.push(taken.iter().map(|it| side.taken(&group.topic, it)).collect::<Vec<_>>());
        }
        if !answers.is_empty() {
            self.same(&format!("take of {wanted:?} in {group}"), answers);
        }
    }

    async fn free(&mut self) {
        let group = self.group();
        let slot = u32::try_from(self.roll(self.slots(&group.topic).into())).expect("small");
        for side in &self.sides {
            let Some(look) = side.store.look_group(&group).await.expect("look_group") else { return };
            let token = look.shares[slot as usize].token;
            side.store.free_shares(&group, &[(slot, token)]).await.expect("free_shares");
        }
    }

    /// Says something about a share: mostly who has it, as it is.
    async fn commit(&mut self) {
        let group = self.group();
        let slot = u32::try_from(self.roll(self.slots(&group.topic).into())).expect("small");
        let Some(look) = self.sides[1].store.look_group(&group).await.expect("look_group") else { return };
        let mut share = look.shares[slot as usize].clone();
        if share.holder.is_none() && self.chance(70) {
            let held = look.shares.iter().find(|share| share.holder.is_some());
            share = held.cloned().unwrap_or(share);
        }
        let rank = self.sides[1].rank(&group.topic, share.slot, share.position);
        let (mut unread, mut asides) = (Vec::new(), Vec::new());
        for side in &self.sides {
            let after = side.position(&group.topic, share.slot, rank);
            unread.push(side.read(&group.topic, share.slot, after).await);
            let filter = AsideFilter { slot: Some(share.slot), ..everything(&group) };
            asides.push(side.store.aside(&filter).await.expect("aside"));
        }
        let told = |n: usize| {
            let side = &self.sides[n];
            unread[n].iter().map(|event| side.event(&group.topic, event)).collect::<Vec<_>>()
        };
        self.same(&format!("read of {group} {}", share.slot), vec![told(0), told(1)]);
        let draft = self.commit_draft(unread[0].len(), asides[0].len());
        let grant = share.token.grant() + u64::from(self.chance(6));
        let mut answers = Vec::new();
        for (n, side) in self.sides.iter().enumerate() {
            let commit = ShareCommit {
                group: group.clone(),
                slot: share.slot,
                token: side.token(grant),
                position: draft.upto.map(|place| unread[n][place].position),
                done: draft.done.iter().map(|place| unread[n][*place].id).collect(),
                set_aside: draft
                    .set_aside
                    .iter()
                    .map(|(place, how)| set_aside(&unread[n][*place], how))
                    .collect(),
                settled: draft
                    .settled
                    .iter()
                    .map(|(n_th, how)| (asides[n][*n_th].event.id, how.clone()))
                    .collect(),
            };
            answers.push(side.store.commit_shares(&[commit]).await.map_err(|error| error.message));
        }
        self.same(&format!("commit of {draft:?} to {group} {}", share.slot), answers);
    }

    fn commit_draft(&mut self, unread: usize, asides: usize) -> CommitDraft {
        let upto = (unread > 0 && self.chance(60)).then(|| self.roll(unread as u64) as usize);
        let mut draft = CommitDraft { upto, ..CommitDraft::default() };
        for place in 0..unread.min(6) {
            match self.roll(10) {
                0..2 => draft.done.push(place),
                2..4 => {
                    let how = self.how(true);
                    draft.set_aside.push((place, how));
                }
                _ => {}
            }
        }
        for place in 0..asides.min(6) {
            if self.chance(25) {
                let how = self.how(false);
                draft.settled.push((place, how));
            }
        }
        // One that is unread and aside already, for it was said so before, is named once.
        if !draft.set_aside.is_empty() || !draft.done.is_empty() {
            draft.settled.clear();
        }
        draft
    }

    fn how(&mut self, new: bool) -> Aside {
        let attempts = 1 + u32::try_from(self.roll(5)).expect("small");
        let error = format!("e{}", self.roll(3));
        match self.roll(4) {
            0 if new => Aside::Behind,
            0 => Aside::Done,
            1 => Aside::Dead { attempts, error },
            2 => Aside::Retry { attempts, after_ms: 0, error },
            _ => Aside::Retry { attempts, after_ms: HOUR_MS, error },
        }
    }

    async fn order_dead(&mut self) {
        let group = self.group();
        let order = if self.chance(60) { DeadOrder::Replay } else { DeadOrder::Drop };
        let Ok(views) = self.sides[1].store.aside(&everything(&group)).await else { return };
        let mut places = Vec::new();
        for view in &views {
            if self.chance(50) {
                places.push(self.sides[1].place(view.event.id));
            }
        }
        let mut answers = Vec::new();
        for side in &self.sides {
            let ids: Vec<_> = places.iter().map(|place| side.ids[*place]).collect();
            let done = side.store.order_dead(&group, &ids, order).await.expect("order_dead");
            answers.push(done.iter().map(|id| side.place(*id)).collect::<BTreeSet<_>>());
        }
        self.same(&format!("{order:?} of {places:?}"), answers);
    }

    async fn reset(&mut self) {
        let group = self.group();
        let one = u32::try_from(self.roll(self.slots(&group.topic).into())).expect("small");
        let units = self.sides[1].units.get(&(group.topic.clone(), one)).map_or(0, BTreeSet::len);
        let rank = self.roll(units as u64 + 1) as usize;
        let (dry_run, what) = (self.chance(25), self.roll(5));
        let mut answers = Vec::new();
        for side in &self.sides {
            // Positions of one slot say nothing about those of another.
            let (to, slot) = match what {
                0 => (Begin::Earliest, None),
                1 => (Begin::Latest, Some(one)),
                2 => (Begin::Time(0), None),
                3 => (Begin::Time(4_000_000_000_000), Some(one)),
                _ => (Begin::Position(side.position(&group.topic, one, rank)), Some(one)),
            };
            let moved = side.store.reset_group(&group, to, slot, dry_run).await;
            let rank = |slot, position| side.rank(&group.topic, slot, position);
            answers.push(match &moved {
                Ok(moved) => Ok(moved
                    .iter()
                    .map(|it| (it.slot, rank(it.slot, it.from), rank(it.slot, it.to)))
                    .collect::<Vec<_>>()),
                Err(error) => Err(without_numbers(error)),
            });
        }
        self.same(&format!("reset {what} of {group} {one} to {rank}, dry: {dry_run}"), answers);
    }

    async fn pause(&mut self) {
        let (group, on) = (self.group(), self.chance(40).then(pause));
        let mut answers = Vec::new();
        for side in &self.sides {
            let set = side.store.set_group_paused(&group, on.as_ref()).await;
            answers.push(set.map_err(|error| error.kind));
        }
        self.same("set_group_paused", answers);
    }

    async fn set_group(&mut self) {
        let group = self.group();
        let max_attempts = 1 + u32::try_from(self.roll(5)).expect("small");
        let settings = GroupSettings { max_attempts, backoff: Backoff { first_ms: 1, most_ms: 9 } };
        let mut answers = Vec::new();
        for side in &self.sides {
            answers.push(side.store.set_group(&group, &settings, Begin::Earliest).await.expect("set_group"));
        }
        self.same("set_group", answers);
    }

    async fn delete_group(&mut self) {
        let group = self.group();
        let mut answers = Vec::new();
        for side in &self.sides {
            answers.push(side.store.delete_group(&group).await.map_err(|error| error.kind));
        }
        self.same("delete_group", answers);
    }

    async fn push(&mut self) {
        let (group, on) = (self.group(), self.chance(50));
        let (url, secret) = ("https://example.org/".to_owned(), "0123456789abcdef".to_owned());
        let push = Push { url, secret, timeout_ms: 1_000 };
        let mut answers = Vec::new();
        for side in &self.sides {
            answers.push(side.store.set_push(&group, on.then_some(&push)).await.map_err(|error| error.kind));
        }
        self.same("set_push", answers);
    }

    /// What is read is not kept for a moment longer: the only call that waits for the clock.
    async fn prune(&mut self) {
        let (key, unread) = (self.topic(), self.chance(20));
        let slots = self.slots(&key);
        let usual = TopicSettings { slots, ..TopicSettings::default() };
        let mut answers = Vec::new();
        for side in &self.sides {
            let keep_unread_ms = unread.then_some(0);
            let short = TopicSettings { keep_ms: 0, keep_unread_ms, ..usual };
            side.store.set_topic(&key, &short).await.expect("set_topic");
            tokio::time::sleep(Duration::from_millis(3)).await;
            let mut sum = 0;
            loop {
                let (forgotten, more) = side.store.prune_events(&side.tend(3)).await.expect("prune_events");
                sum += forgotten;
                if !more && forgotten == 0 {
                    break;
                }
            }
            answers.push(sum);
            side.store.set_topic(&key, &usual).await.expect("set_topic");
        }
        self.same(&format!("prune of {key}, unread: {unread}"), answers);
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

/// What is said about a share on both sides: places of events that are unread, and of those that are aside.
#[derive(Debug, Default)]
struct CommitDraft {
    upto: Option<usize>,
    done: Vec<usize>,
    set_aside: Vec<(usize, Aside)>,
    settled: Vec<(usize, Aside)>,
}

fn set_aside(event: &Event, how: &Aside) -> SetAside {
    SetAside { event: event.id, position: event.position, how: how.clone() }
}
