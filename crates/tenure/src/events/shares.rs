//! The shares that a member holds: what it has read of them, and what is to become of them.
//!
//! Three tasks meet here: the one that *attends* the group takes and gives up shares, the one that *reads* fills their buffers, and
//! the one that *delivers* empties them and moves their positions. Nothing here is the truth. The store has that, and whatever is
//! said under a token that is not the share's any more changes nothing.
//!
//! A share is *held*, *busy* while something of it is delivered, *leaving* from when it is to be given up until it is not busy
//! any more, and then *to be freed*. When it is not known what of it counts, it is freed, too, and taken anew if it is still ours:
//! the store then says how far it is read.

use std::collections::{BTreeMap, HashSet, VecDeque};

use tenure_core::event::{Parked, Sorted, sort_out};
use tenure_core::port::{AsideKey, Event, EventId, GroupSettings, Position, ShareCommit, Taken};
use tenure_core::{Moment, Token};

use super::waits::{Waiting, Waits};

/// A share.
pub(super) struct Held {
    pub(super) token: Token,
    /// Everything up to here is read, or done, or set aside, and the store knows it.
    pub(super) position: Position,
    /// Everything up to here is in hand.
    read_to: Position,
    /// Everything up to here was taken out of the buffer to be delivered.
    delivered_to: Position,
    /// What is in hand and not yet delivered, in order, in whole units.
    buffer: Vec<Event>,
    /// Events after the position that are done.
    done: HashSet<EventId>,
    parked: Parked,
    /// The first of each key that is aside.
    aside: Waits,
    /// People may have replayed or dropped some of it since it was looked at.
    look_aside: bool,
    /// Counts changes to what is aside: what the store said before one is old.
    version: u64,
    leaving: bool,
}

/// What was read of one slot, and is to be delivered.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    pub(super) slot: u32,
    pub(super) token: Token,
    /// The position of its last event.
    pub(super) to: Position,
    pub(super) events: Vec<Event>,
}

/// After which positions to read.
pub(super) struct Cursors {
    pub(super) after: Vec<(u32, Position)>,
    /// They are those of all slots.
    pub(super) all: bool,
}

/// What is to be delivered next.
pub(super) enum Job {
    Batch(Vec<Chunk>),
    /// An event that was set aside, and those of its key behind it.
    Aside {
        slot: u32,
        token: Token,
        waiting: Waiting,
    },
}

#[derive(Default)]
pub(super) struct Shares {
    held: BTreeMap<u32, Held>,
    busy: BTreeMap<u32, Token>,
    to_free: Vec<(u32, Token)>,
    /// Something that is busy was lost.
    cancelled: bool,
    /// Where the next read begins, so that every slot is the first at times.
    turn: u32,
    /// Slots that had more than a read of all took: they are read a few at a time before the next read of all.
    backlog: VecDeque<u32>,
    /// Whether the last job was a batch.
    batch_last: bool,
    pub(super) paused: bool,
    pub(super) settings: GroupSettings,
}

impl Shares {
    // ---- for who attends the group

    pub(super) fn take(&mut self, taken: Taken, now: Moment) {
        let held = Held {
            token: taken.token,
            position: taken.position,
            read_to: taken.position,
            delivered_to: taken.position,
            buffer: Vec::new(),
            done: taken.done.into_iter().collect(),
            parked: Parked::of(&taken.aside),
            aside: Waits::of(&taken.aside, now),
            look_aside: false,
            version: 0,
            leaving: false,
        };
        self.held.insert(taken.slot, held);
    }

    pub(super) fn token(&self, slot: u32) -> Option<Token> {
        self.held.get(&slot).map(|held| held.token)
    }

    pub(super) fn slots(&self) -> Vec<u32> {
        self.held.keys().copied().collect()
    }

    /// Gives a share up: at once, or when it is not busy any more.
    pub(super) fn give_up(&mut self, slot: u32) {
        if self.busy.contains_key(&slot) {
            self.held.entry(slot).and_modify(|held| held.leaving = true);
        } else if let Some(held) = self.held.remove(&slot) {
            self.to_free.push((slot, held.token));
        }
    }

    /// A share is to stay after all.
    pub(super) fn keep(&mut self, slot: u32) {
        self.held.entry(slot).and_modify(|held| held.leaving = false);
    }

    /// The store says that a share is not ours any more.
    pub(super) fn lose(&mut self, slot: u32) {
        if self.held.remove(&slot).is_some() && self.busy.contains_key(&slot) {
            self.cancelled = true;
        }
    }

    /// Shares that the store takes for ours, and we do not know how far they are read.
    pub(super) fn strays(&mut self, strays: Vec<(u32, Token)>) {
        let new = strays.into_iter().filter(|stray| !self.to_free.contains(stray));
        self.to_free.extend(new.collect::<Vec<_>>());
    }

    /// What is to be freed.
    pub(super) fn to_free(&self) -> Vec<(u32, Token)> {
        self.to_free.clone()
    }

    /// It is freed.
    pub(super) fn freed(&mut self, freed: &[(u32, Token)]) {
        self.to_free.retain(|share| !freed.contains(share));
    }

    /// People may have replayed or dropped something.
    pub(super) fn look_aside(&mut self) {
        self.held.values_mut().for_each(|held| held.look_aside = !held.aside.is_empty());
    }

    /// Slots for a look at how what is aside stands, each with what the look must not be older than. Those that are busy come later.
    pub(super) fn with_aside(&self) -> Vec<(u32, Token, u64)> {
        let idle = self.held.iter().filter(|(slot, held)| !self.busy.contains_key(slot) && held.look_aside);
        idle.map(|(slot, held)| (*slot, held.token, held.version)).collect()
    }

    /// How what is aside stands, as the store said after `version`.
    pub(super) fn set_aside(
        &mut self,
        slot: u32,
        token: Token,
        version: u64,
        aside: &[AsideKey],
        now: Moment,
    ) {
        if let Some(held) = self.held.get_mut(&slot)
            && held.token == token
            && held.version == version
        {
            (held.parked, held.aside) = (Parked::of(aside), Waits::of(aside, now));
            held.look_aside = false;
            held.version += 1;
        }
    }

    // ---- for who reads

    /// After which positions to read: of all slots, each once the first; or of `few` that are known to have more. A batch of few slots
    /// is one of few shares, each with much of it, and what a share costs is paid that much less often.
    pub(super) fn cursors(&mut self, few: usize) -> Cursors {
        let cursor = |(slot, held): (&u32, &Held)| (*slot, held.read_to);
        let backlog = self.backlog.drain(..few.min(self.backlog.len()));
        let staying =
            backlog.filter_map(|slot| self.held.get_key_value(&slot)).filter(|(_, held)| !held.leaving);
        let after: Vec<_> = staying.map(cursor).collect();
        if !after.is_empty() {
            return Cursors { after, all: false };
        }
        self.backlog.clear();
        let staying = self.held.iter().filter(|(_, held)| !held.leaving);
        let (before, mut after): (Vec<_>, Vec<_>) =
            staying.map(cursor).partition(|(slot, _)| *slot < self.turn);
        after.extend(before);
        self.turn = after.first().map_or(0, |(slot, _)| slot + 1);
        Cursors { after, all: true }
    }

    /// A read of all slots took as much as it may of these.
    pub(super) fn have_more(&mut self, events: &[Event]) {
        self.backlog = events.chunk_by(|a, b| a.slot == b.slot).map(|slot| slot[0].slot).collect();
    }

    /// How many events are in hand and not delivered, and how many bytes.
    pub(super) fn buffered(&self) -> (usize, usize) {
        let events = self.held.values().flat_map(|held| &held.buffer);
        events.fold((0, 0), |(count, bytes), event| (count + 1, bytes + event.payload.len()))
    }

    /// Takes in what was read after these positions. How many events that were.
    pub(super) fn store(&mut self, after: &[(u32, Position)], events: Vec<Event>) -> usize {
        let mut count = 0;
        let mut events = events.into_iter().peekable();
        while let Some(slot) = events.peek().map(|event| event.slot) {
            let read: Vec<Event> =
                std::iter::from_fn(|| events.next_if(|event| event.slot == slot)).collect();
            let asked = after.iter().find(|(asked, _)| *asked == slot).map(|(_, after)| *after);
            let (Some(held), Some(last)) = (self.held.get_mut(&slot), read.last()) else { continue };
            // Lost and taken anew meanwhile, it was read from elsewhere.
            if Some(held.read_to) == asked {
                count += read.len();
                held.read_to = last.position;
                held.buffer.extend(read);
            }
        }
        count
    }

    // ---- for who delivers

    /// What to deliver now, if anything; batches and what is aside take turns. Its slots are busy from here on.
    pub(super) fn next(&mut self, now: Moment) -> Option<Job> {
        if self.paused {
            return None;
        }
        let job = match self.batch_last {
            true => self.aside(now).or_else(|| self.batch()),
            false => self.batch().or_else(|| self.aside(now)),
        }?;
        self.cancelled = false;
        self.batch_last = matches!(job, Job::Batch(_));
        self.busy = match &job {
            Job::Batch(chunks) => chunks.iter().map(|chunk| (chunk.slot, chunk.token)).collect(),
            Job::Aside { slot, token, .. } => BTreeMap::from([(*slot, *token)]),
        };
        // The job parks keys before the store knows: a look that was under way before it began must not take them out again.
        for slot in self.busy.keys() {
            self.held.entry(*slot).and_modify(|held| held.version += 1);
        }
        Some(job)
    }

    fn batch(&mut self) -> Option<Job> {
        let full = self.held.iter_mut().filter(|(_, held)| !held.leaving && !held.buffer.is_empty());
        let chunk = |(slot, held): (&u32, &mut Held)| {
            held.delivered_to = held.read_to;
            let events = std::mem::take(&mut held.buffer);
            Chunk { slot: *slot, token: held.token, to: held.read_to, events }
        };
        let chunks: Vec<Chunk> = full.map(chunk).collect();
        (!chunks.is_empty()).then_some(Job::Batch(chunks))
    }

    fn aside(&self, now: Moment) -> Option<Job> {
        let staying = self.held.iter().filter(|(_, held)| !held.leaving);
        let due = staying.filter_map(|(slot, held)| {
            held.aside.next().map(|(due, waiting)| (due, *slot, held.token, waiting))
        });
        let (due, slot, token, waiting) = due.min_by_key(|(due, ..)| *due)?;
        (due <= now).then(|| Job::Aside { slot, token, waiting: waiting.clone() })
    }

    /// When something that is aside is due.
    pub(super) fn next_due(&self) -> Option<Moment> {
        if self.paused {
            return None;
        }
        self.held.values().filter_map(|held| held.aside.next()).map(|(due, _)| due).min()
    }

    /// The slots of the job.
    pub(super) fn busy(&self) -> Vec<(u32, Token)> {
        self.busy.iter().map(|(slot, token)| (*slot, *token)).collect()
    }

    /// The store refused what the job said about a share, and the job goes on without it.
    pub(super) fn drop_stale(&mut self, slot: u32, token: Token) {
        if self.token(slot) == Some(token) {
            self.held.remove(&slot);
        }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    /// The share, if it is held under this token and stays.
    pub(super) fn ours(&self, slot: u32, token: Token) -> Option<&Held> {
        self.held.get(&slot).filter(|held| held.token == token && !held.leaving)
    }

    /// How far a share is read and committed, if it is held under this token.
    pub(super) fn position(&self, slot: u32, token: Token) -> Option<Position> {
        self.held.get(&slot).filter(|held| held.token == token).map(|held| held.position)
    }

    /// What is to be done with these events of a slot, in their order. What is not behind its position any more was done or set aside by
    /// this job, unit by unit, and is not marked: nothing is.
    pub(super) fn sort_out(&self, slot: u32, token: Token, events: &[Event]) -> Sorted {
        let Some(held) = self.held.get(&slot).filter(|held| held.token == token) else {
            return Sorted::default();
        };
        let past = events.partition_point(|event| event.position <= held.position);
        let mut sorted = sort_out(&events[past..], &held.parked, &held.done);
        for place in sorted.go.iter_mut().chain(&mut sorted.behind).chain(&mut sorted.done) {
            *place += past;
        }
        sorted
    }

    /// What was said counts.
    pub(super) fn committed(&mut self, commits: &[ShareCommit]) {
        for commit in commits {
            let Some(held) = self.held.get_mut(&commit.slot).filter(|held| held.token == commit.token) else {
                continue;
            };
            held.done.extend(commit.done.iter().map(|(event, _)| event));
            if let Some(position) = commit.position {
                held.position = held.position.max(position);
            }
            if !commit.set_aside.is_empty() || !commit.settled.is_empty() {
                held.version += 1;
            }
        }
    }

    /// From now on, events of its key wait behind this one.
    pub(super) fn park(&mut self, token: Token, event: &Event) {
        if let Some(held) = self.held.get_mut(&event.slot).filter(|held| held.token == token) {
            held.parked.add(event);
        }
    }

    /// Nothing waits behind this one after all.
    pub(super) fn unpark(&mut self, token: Token, event: &Event) {
        let held = self.held.get_mut(&event.slot).filter(|held| held.token == token);
        if let (Some(held), Some(key)) = (held, &event.key) {
            held.parked.remove(key);
        }
    }

    /// These events are aside, until they are due.
    pub(super) fn set_aside_now(&mut self, token: Token, aside: &[(&Event, Option<Moment>)]) {
        for (event, due) in aside {
            if let Some(held) = self.held.get_mut(&event.slot).filter(|held| held.token == token) {
                held.aside.add(Waiting { key: event.key.clone(), event: event.id, due: *due });
            }
        }
    }

    /// What was the first of its key is done, and this one is now, or the same is due at another time; `None`: its key flows again.
    pub(super) fn follows(&mut self, slot: u32, token: Token, first: &Waiting, next: Option<Waiting>) {
        let Some(held) = self.held.get_mut(&slot).filter(|held| held.token == token) else { return };
        held.aside.remove(first.event);
        match (next, &first.key) {
            (Some(next), _) => held.aside.add(next),
            (None, Some(key)) => held.parked.remove(key),
            (None, None) => {}
        }
        held.version += 1;
    }

    /// Something that is aside is not to be tried before this.
    pub(super) fn put_off(&mut self, slot: u32, event: EventId, until: Moment) {
        if let Some(held) = self.held.get_mut(&slot) {
            held.aside.put_off(event, until);
        }
    }

    pub(super) fn version(&self, slot: u32) -> u64 {
        self.held.get(&slot).map_or(0, |held| held.version)
    }

    /// It is not known what of these slots counts, or nothing of what was taken for delivery does: they are freed, and taken anew.
    pub(super) fn doubt(&mut self, shares: &[(u32, Token)]) {
        for share in shares {
            if self.token(share.0) == Some(share.1) {
                self.held.remove(&share.0);
                self.to_free.push(*share);
            }
        }
    }

    /// These events of a slot are behind its position: nobody asks for them again.
    pub(super) fn passed(&mut self, slot: u32, events: &[Event]) {
        if let Some(held) = self.held.get_mut(&slot).filter(|held| !held.done.is_empty()) {
            for event in events {
                held.done.remove(&event.id);
            }
        }
    }

    /// The job is over. What was to leave when it is, leaves; what of it was not delivered is to be read again. Whether there is such.
    pub(super) fn over(&mut self) -> bool {
        let mut again = false;
        for slot in std::mem::take(&mut self.busy).into_keys() {
            let Some(held) = self.held.get_mut(&slot) else { continue };
            if held.position < held.delivered_to {
                held.buffer.clear();
                (held.read_to, held.delivered_to) = (held.position, held.position);
                again = true;
            }
            if held.leaving {
                self.give_up(slot);
            }
        }
        again
    }
}
