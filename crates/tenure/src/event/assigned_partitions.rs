//! The partitions that a consumer holds: buffered events, offsets and parked keys.
//!
//! Three tasks share this state: the membership task takes and releases partitions, the reader fills their
//! buffers, and the delivery task empties them and advances their offsets. The store is the authority: a commit
//! under an old token changes nothing.
//!
//! A partition is *held*, *busy* while its events are delivered, *leaving* when it must be released as soon as
//! it is not busy, and then *to be released*. If the outcome of a delivery is unknown, the partition is
//! released, too, and taken again if it is still assigned to this member: the store then returns the committed
//! offset.

use std::collections::{BTreeMap, HashSet, VecDeque};

use tenure_core::port::{Event, EventId, GroupSettings, Offset, ParkedKey, PartitionCommit, TakenPartition};
use tenure_core::rules::event::{DeliveryPlan, ParkedKeys, plan_delivery};
use tenure_core::{BootInstant, Token};

use super::parked_keys::{ParkedKeyQueue, ParkedKeyRetry};

/// A held partition.
pub(super) struct AssignedPartition {
    pub(super) token: Token,
    /// Offset up to which all events are processed or parked, and committed.
    pub(super) offset: Offset,
    /// Offset up to which events were read.
    read_to: Offset,
    /// Offset up to which events were taken out of the buffer for delivery.
    delivered_to: Offset,
    /// Events that were read and not delivered, in order, in whole commit batches.
    buffer: Vec<Event>,
    /// Processed events after the committed offset.
    done: HashSet<EventId>,
    parked: ParkedKeys,
    /// The first event of each parked key.
    retry_queue: ParkedKeyQueue,
    /// Operators may have replayed or dropped parked events since the last read.
    parked_outdated: bool,
    /// Counts changes of the parked events: store data read before a change is outdated.
    version: u64,
    leaving: bool,
}

/// Events of one partition to deliver.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    pub(super) partition: u32,
    pub(super) token: Token,
    /// Offset of the last event.
    pub(super) to: Offset,
    pub(super) events: Vec<Event>,
}

/// Offsets after which to read.
pub(super) struct ReadOffsets {
    pub(super) after: Vec<(u32, Offset)>,
    /// Whether `after` contains all partitions that are not leaving.
    pub(super) all: bool,
}

/// What to deliver next.
pub(super) enum DeliveryJob {
    Batch(Vec<Chunk>),
    /// A parked event, and later ones of its key.
    Parked {
        partition: u32,
        token: Token,
        retry: ParkedKeyRetry,
    },
}

#[derive(Default)]
pub(super) struct AssignedPartitions {
    held: BTreeMap<u32, AssignedPartition>,
    busy: BTreeMap<u32, Token>,
    to_release: Vec<(u32, Token)>,
    /// A busy partition was lost.
    cancelled: bool,
    /// Partition at which the next read of all partitions starts. It rotates, so that none is always last.
    turn: u32,
    /// Partitions that may have more events than the last read of all partitions returned. They are read a few at
    /// a time before the next read of all partitions.
    backlog: VecDeque<u32>,
    /// Whether the last job was a batch.
    last_was_batch: bool,
    pub(super) paused: bool,
    pub(super) settings: GroupSettings,
}

impl AssignedPartitions {
    // ---- for the membership task

    pub(super) fn take(&mut self, taken: TakenPartition, now: BootInstant) {
        let held = AssignedPartition {
            token: taken.token,
            offset: taken.offset,
            read_to: taken.offset,
            delivered_to: taken.offset,
            buffer: Vec::new(),
            done: taken.processed_event_ids.into_iter().collect(),
            parked: ParkedKeys::of(&taken.parked_keys),
            retry_queue: ParkedKeyQueue::of(&taken.parked_keys, now),
            parked_outdated: false,
            version: 0,
            leaving: false,
        };
        self.held.insert(taken.partition, held);
    }

    pub(super) fn token(&self, partition: u32) -> Option<Token> {
        self.held.get(&partition).map(|held| held.token)
    }

    pub(super) fn partitions(&self) -> Vec<u32> {
        self.held.keys().copied().collect()
    }

    /// Releases a partition: at once, or when it is not busy any more.
    pub(super) fn release(&mut self, partition: u32) {
        if self.busy.contains_key(&partition) {
            self.held.entry(partition).and_modify(|held| held.leaving = true);
        } else if let Some(held) = self.held.remove(&partition) {
            self.to_release.push((partition, held.token));
        }
    }

    /// Keeps a partition that was about to be released.
    pub(super) fn keep(&mut self, partition: u32) {
        self.held.entry(partition).and_modify(|held| held.leaving = false);
    }

    /// Removes a partition that has another holder in the store.
    pub(super) fn lose(&mut self, partition: u32) {
        if self.held.remove(&partition).is_some() && self.busy.contains_key(&partition) {
            self.cancelled = true;
        }
    }

    /// Partitions that the store assigns to this session but whose offset is unknown here; they are released.
    pub(super) fn unknown_leases(&mut self, unknown_leases: Vec<(u32, Token)>) {
        let new = unknown_leases.into_iter().filter(|lease| !self.to_release.contains(lease));
        self.to_release.extend(new.collect::<Vec<_>>());
    }

    /// The partitions to release.
    pub(super) fn to_release(&self) -> Vec<(u32, Token)> {
        self.to_release.clone()
    }

    /// Removes released partitions.
    pub(super) fn released(&mut self, released: &[(u32, Token)]) {
        self.to_release.retain(|lease| !released.contains(lease));
    }

    /// Operators may have replayed or dropped parked events: read them again.
    pub(super) fn mark_parked_outdated(&mut self) {
        self.held.values_mut().for_each(|held| held.parked_outdated = !held.retry_queue.is_empty());
    }

    /// Partitions whose parked events must be read again, each with its current version. Busy partitions come
    /// later.
    pub(super) fn outdated_parked(&self) -> Vec<(u32, Token, u64)> {
        let idle = self
            .held
            .iter()
            .filter(|(partition, held)| !self.busy.contains_key(partition) && held.parked_outdated);
        idle.map(|(partition, held)| (*partition, held.token, held.version)).collect()
    }

    /// Replaces the parked events with those that the store returned for `version`.
    pub(super) fn replace_parked(
        &mut self,
        partition: u32,
        token: Token,
        version: u64,
        parked: &[ParkedKey],
        now: BootInstant,
    ) {
        if let Some(held) = self.held.get_mut(&partition)
            && held.token == token
            && held.version == version
        {
            (held.parked, held.retry_queue) = (ParkedKeys::of(parked), ParkedKeyQueue::of(parked, now));
            held.parked_outdated = false;
            held.version += 1;
        }
    }

    // ---- for the reader

    /// Returns the offsets after which to read: of up to `few` partitions with a backlog, or else of all
    /// partitions, starting with another one each time. Reading few partitions gives batches with many events of
    /// each, so fewer partition leases are committed per event.
    pub(super) fn cursors(&mut self, few: usize) -> ReadOffsets {
        let cursor = |(partition, held): (&u32, &AssignedPartition)| (*partition, held.read_to);
        let backlog = self.backlog.drain(..few.min(self.backlog.len()));
        let staying = backlog
            .filter_map(|partition| self.held.get_key_value(&partition))
            .filter(|(_, held)| !held.leaving);
        let after: Vec<_> = staying.map(cursor).collect();
        if !after.is_empty() {
            return ReadOffsets { after, all: false };
        }
        self.backlog.clear();
        let staying = self.held.iter().filter(|(_, held)| !held.leaving);
        let (before, mut after): (Vec<_>, Vec<_>) =
            staying.map(cursor).partition(|(partition, _)| *partition < self.turn);
        after.extend(before);
        self.turn = after.first().map_or(0, |(partition, _)| partition + 1);
        ReadOffsets { after, all: true }
    }

    /// Records a backlog for the partitions of these events, after a read of all partitions filled its limit.
    pub(super) fn have_more(&mut self, events: &[Event]) {
        self.backlog = events
            .chunk_by(|a, b| a.partition == b.partition)
            .map(|partition| partition[0].partition)
            .collect();
    }

    /// Number and bytes of events that were read and not delivered.
    pub(super) fn buffered(&self) -> (usize, usize) {
        let events = self.held.values().flat_map(|held| &held.buffer);
        events.fold((0, 0), |(count, bytes), event| (count + 1, bytes + event.payload.len()))
    }

    /// Buffers events that were read after these offsets. Returns the number of buffered events.
    pub(super) fn store(&mut self, after: &[(u32, Offset)], events: Vec<Event>) -> usize {
        let mut count = 0;
        let mut events = events.into_iter().peekable();
        while let Some(partition) = events.peek().map(|event| event.partition) {
            let read: Vec<Event> =
                std::iter::from_fn(|| events.next_if(|event| event.partition == partition)).collect();
            let expected = after.iter().find(|(expected, _)| *expected == partition).map(|(_, after)| *after);
            let (Some(held), Some(last)) = (self.held.get_mut(&partition), read.last()) else { continue };
            // Discard the events if the partition was lost and taken again meanwhile: its offset has changed.
            if Some(held.read_to) == expected {
                count += read.len();
                held.read_to = last.offset;
                held.buffer.extend(read);
            }
        }
        count
    }

    // ---- for the delivery task

    /// Returns what to deliver now, if anything. Batches and parked events alternate. The partitions are busy
    /// from here on.
    pub(super) fn next(&mut self, now: BootInstant) -> Option<DeliveryJob> {
        if self.paused {
            return None;
        }
        let job = match self.last_was_batch {
            true => self.parked_job(now).or_else(|| self.batch()),
            false => self.batch().or_else(|| self.parked_job(now)),
        }?;
        self.cancelled = false;
        self.last_was_batch = matches!(job, DeliveryJob::Batch(_));
        self.busy = match &job {
            DeliveryJob::Batch(chunks) => chunks.iter().map(|chunk| (chunk.partition, chunk.token)).collect(),
            DeliveryJob::Parked { partition, token, .. } => BTreeMap::from([(*partition, *token)]),
        };
        // The job parks keys before they are committed: a read of parked events that started earlier must not
        // remove them.
        for partition in self.busy.keys() {
            self.held.entry(*partition).and_modify(|held| held.version += 1);
        }
        Some(job)
    }

    fn batch(&mut self) -> Option<DeliveryJob> {
        let full = self.held.iter_mut().filter(|(_, held)| !held.leaving && !held.buffer.is_empty());
        let chunk = |(partition, held): (&u32, &mut AssignedPartition)| {
            held.delivered_to = held.read_to;
            let events = std::mem::take(&mut held.buffer);
            Chunk { partition: *partition, token: held.token, to: held.read_to, events }
        };
        let chunks: Vec<Chunk> = full.map(chunk).collect();
        (!chunks.is_empty()).then_some(DeliveryJob::Batch(chunks))
    }

    fn parked_job(&self, now: BootInstant) -> Option<DeliveryJob> {
        let staying = self.held.iter().filter(|(_, held)| !held.leaving);
        let due = staying.filter_map(|(partition, held)| {
            held.retry_queue.next().map(|(due, retry)| (due, *partition, held.token, retry))
        });
        let (due, partition, token, retry) = due.min_by_key(|(due, ..)| *due)?;
        (due <= now).then(|| DeliveryJob::Parked { partition, token, retry: retry.clone() })
    }

    /// When the next parked event is due.
    pub(super) fn next_due(&self) -> Option<BootInstant> {
        if self.paused {
            return None;
        }
        self.held.values().filter_map(|held| held.retry_queue.next()).map(|(due, _)| due).min()
    }

    /// The busy partitions.
    pub(super) fn busy(&self) -> Vec<(u32, Token)> {
        self.busy.iter().map(|(partition, token)| (*partition, *token)).collect()
    }

    /// Removes a partition whose commit the store rejected; the job continues without it.
    pub(super) fn drop_stale(&mut self, partition: u32, token: Token) {
        if self.token(partition) == Some(token) {
            self.held.remove(&partition);
        }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    /// The partition, if it is held under this token and not leaving.
    pub(super) fn ours(&self, partition: u32, token: Token) -> Option<&AssignedPartition> {
        self.held.get(&partition).filter(|held| held.token == token && !held.leaving)
    }

    /// The committed offset of a partition, if it is held under this token.
    pub(super) fn committed_offset(&self, partition: u32, token: Token) -> Option<Offset> {
        self.held.get(&partition).filter(|held| held.token == token).map(|held| held.offset)
    }

    /// Plans the delivery of these events of a partition, in order. Events up to the committed offset were
    /// processed or parked by this job, commit batch by commit batch, and need no mark.
    pub(super) fn plan_delivery(&self, partition: u32, token: Token, events: &[Event]) -> DeliveryPlan {
        let Some(held) = self.held.get(&partition).filter(|held| held.token == token) else {
            return DeliveryPlan::default();
        };
        let past = events.partition_point(|event| event.offset <= held.offset);
        let mut plan = plan_delivery(&events[past..], &held.parked, &held.done);
        for place in plan.deliver.iter_mut().chain(&mut plan.park).chain(&mut plan.done) {
            *place += past;
        }
        plan
    }

    /// Applies accepted commits.
    pub(super) fn committed(&mut self, commits: &[PartitionCommit]) {
        for commit in commits {
            let Some(held) = self.held.get_mut(&commit.partition).filter(|held| held.token == commit.token)
            else {
                continue;
            };
            held.done.extend(commit.processed.iter().map(|(event, _)| event));
            if let Some(offset) = commit.offset {
                held.offset = held.offset.max(offset);
            }
            if !commit.parked.is_empty() || !commit.parked_results.is_empty() {
                held.version += 1;
            }
        }
    }

    /// Parks the key of this event: later events of the key wait behind it.
    pub(super) fn park(&mut self, token: Token, event: &Event) {
        if let Some(held) = self.held.get_mut(&event.partition).filter(|held| held.token == token) {
            held.parked.add(event);
        }
    }

    /// Unparks the key of this event.
    pub(super) fn unpark(&mut self, token: Token, event: &Event) {
        let held = self.held.get_mut(&event.partition).filter(|held| held.token == token);
        if let (Some(held), Some(key)) = (held, &event.key) {
            held.parked.remove(key);
        }
    }

    /// Adds parked events with their due times.
    pub(super) fn add_parked(&mut self, token: Token, parked: &[(&Event, Option<BootInstant>)]) {
        for (event, due) in parked {
            if let Some(held) = self.held.get_mut(&event.partition).filter(|held| held.token == token) {
                held.retry_queue.add(ParkedKeyRetry { key: event.key.clone(), event: event.id, due: *due });
            }
        }
    }

    /// Replaces the first parked event of a key: by a later one, or by the same one with another due time.
    /// `None` unparks the key.
    pub(super) fn advance_key(
        &mut self,
        partition: u32,
        token: Token,
        first: &ParkedKeyRetry,
        next: Option<ParkedKeyRetry>,
    ) {
        let Some(held) = self.held.get_mut(&partition).filter(|held| held.token == token) else { return };
        held.retry_queue.remove(first.event);
        match (next, &first.key) {
            (Some(next), _) => held.retry_queue.add(next),
            (None, Some(key)) => held.parked.remove(key),
            (None, None) => {}
        }
        held.version += 1;
    }

    /// Delays a parked event.
    pub(super) fn postpone(&mut self, partition: u32, event: EventId, until: BootInstant) {
        if let Some(held) = self.held.get_mut(&partition) {
            held.retry_queue.postpone(event, until);
        }
    }

    pub(super) fn version(&self, partition: u32) -> u64 {
        self.held.get(&partition).map_or(0, |held| held.version)
    }

    /// Releases partitions whose outcome is unknown, or whose delivery was abandoned; they are taken again.
    pub(super) fn mark_uncertain(&mut self, assigned: &[(u32, Token)]) {
        for lease in assigned {
            if self.token(lease.0) == Some(lease.1) {
                self.held.remove(&lease.0);
                self.to_release.push(*lease);
            }
        }
    }

    /// Forgets processed events that are behind the committed offset.
    pub(super) fn forget_processed(&mut self, partition: u32, events: &[Event]) {
        if let Some(held) = self.held.get_mut(&partition).filter(|held| !held.done.is_empty()) {
            for event in events {
                held.done.remove(&event.id);
            }
        }
    }

    /// Ends the job: releases leaving partitions, and rewinds partitions with uncommitted events to the committed
    /// offset. Returns whether the reader must read such events again.
    pub(super) fn finish_job(&mut self) -> bool {
        let mut read_again = false;
        for partition in std::mem::take(&mut self.busy).into_keys() {
            let Some(held) = self.held.get_mut(&partition) else { continue };
            if held.offset < held.delivered_to {
                held.buffer.clear();
                (held.read_to, held.delivered_to) = (held.offset, held.offset);
                read_again = true;
            }
            if held.leaving {
                self.release(partition);
            }
        }
        read_again
    }
}
