//! Events for a member: due parked events first, then new ones.

use std::collections::{BTreeMap, HashSet};

use tenure::port::{
    CommitResult, Event, EventId, GroupAssignment, GroupKey, JoinGroupRequest, Offset, PUBLISH_MAX,
    ParkEventRequest, ParkedEvent, ParkedEventFilter, ParkedEventState, ParkedKey, PartitionCommit,
    PartitionLease, ReadEventsRequest, StoreError, TakenPartition,
};
use tenure_core::rules::event::ParkedKeys;

use super::{DeliveredEvent, PulledPartition, RetriedEvent};
use crate::App;
use crate::api::events::{ANSWER_MAX, limit_size};
use crate::problem::Problem;

/// Events found for a pull.
#[derive(Default)]
pub(super) struct GatheredEvents {
    pub(super) deliveries: Vec<DeliveredEvent>,
    pub(super) partition_leases: Vec<PulledPartition>,
    /// Delay until the next parked event is due.
    pub(super) due_in_ms: Option<u64>,
    /// Whether a partition only had events that were parked now; a further read may find more.
    pub(super) again: bool,
}

/// Collect the events to deliver to a member: first the due parked events of its partitions, then new events,
/// up to `max` in total. Events behind a parked event of their key are parked in the store, not delivered.
pub(super) async fn read_events(
    app: &App,
    join: &JoinGroupRequest,
    assignment: &GroupAssignment,
    max: u32,
) -> Result<GatheredEvents, Problem> {
    let group = &join.group;
    let held: Vec<&PartitionLease> = assignment
        .partition_leases
        .iter()
        .filter(|lease| lease.holder.as_ref() == Some(&join.session))
        .collect();
    let mut found = GatheredEvents::default();
    if held.is_empty() {
        return Ok(found);
    }
    let partitions: Vec<u32> = held.iter().map(|lease| lease.partition).collect();
    let parked = parked_keys(app, group, &partitions).await?;
    let mut leases: BTreeMap<u32, PulledPartition> = BTreeMap::new();
    let entry = |lease: &PartitionLease| PulledPartition {
        partition: lease.partition,
        token: lease.token,
        offset: None,
        retried: Vec::new(),
        parked_event_ids: Vec::new(),
        event_count: 0,
    };
    for lease in &held {
        for parked in parked.get(&lease.partition).into_iter().flatten() {
            let Some(due_in_ms) = parked.retry_in_ms else { continue };
            if due_in_ms > 0 {
                found.due_in_ms = Some(found.due_in_ms.map_or(due_in_ms, |soonest| soonest.min(due_in_ms)));
            } else if found.deliveries.len() < max as usize
                && let Some(view) = view_of(app, group, lease.partition, parked.event_id).await?
            {
                let attempt = view.attempts.saturating_add(1);
                found.deliveries.push(DeliveredEvent { event: view.event, attempt, token: lease.token });
                let delivered = leases.entry(lease.partition).or_insert_with(|| entry(lease));
                delivered.retried.push(RetriedEvent { event_id: parked.event_id, attempt });
                delivered.event_count += 1;
            }
        }
    }
    let remaining = max.saturating_sub(u32::try_from(found.deliveries.len()).unwrap_or(max));
    if remaining > 0 {
        let after = held.iter().map(|lease| (lease.partition, lease.committed_offset)).collect();
        let ask = ReadEventsRequest { topic: group.topic.clone(), after, limit: remaining };
        let _large = app.limits.large_response().await?;
        let read = limit_size(app.store.read_events(&ask).await?, ANSWER_MAX);
        let mut parts = Vec::new();
        for events in read.chunk_by(|a, b| a.partition == b.partition) {
            let Some(lease) = held.iter().find(|lease| lease.partition == events[0].partition) else {
                continue;
            };
            let known = parked.get(&lease.partition).map(Vec::as_slice).unwrap_or_default();
            let (parked, already) = (ParkedKeys::of(known), firsts(known));
            let (behind, new): (Vec<&Event>, _) = events
                .iter()
                .filter(|event| !already.contains(&event.id))
                .partition(|event| parked.has(event));
            let offset = events[events.len() - 1].offset;
            // Park events that wait behind others now: the client does not know them, and their key may be
            // free by the time of the acknowledgement. The committed offset advances to just before the first
            // delivered event.
            let parked_events =
                behind.into_iter().map(|event| park(event, ParkedEventState::Waiting)).collect();
            let first_delivered = new.first().map_or(Offset::MAX, |event| event.offset);
            let passed = events.iter().map(|event| event.offset).rfind(|offset| *offset < first_delivered);
            let commit = PartitionCommit {
                offset: passed,
                parked: parked_events,
                ..empty_commit(group, lease.partition, lease.token)
            };
            let go: HashSet<EventId> = new.iter().map(|event| event.id).collect();
            let withheld: Vec<EventId> = events
                .iter()
                .filter(|event| event.offset >= first_delivered && !go.contains(&event.id))
                .map(|event| event.id)
                .collect();
            parts.push((*lease, offset, new, withheld, commit));
        }
        let says = |commit: &&PartitionCommit| commit.offset.is_some() || !commit.parked.is_empty();
        let commits: Vec<PartitionCommit> =
            parts.iter().map(|(.., commit)| commit).filter(says).cloned().collect();
        let committed = match commits.is_empty() {
            true => Vec::new(),
            false => app.store.commit_partitions(&commits).await?,
        };
        let lost = |partition: u32| {
            let how = commits
                .iter()
                .position(|commit| commit.partition == partition)
                .and_then(|n| committed.get(n));
            how.is_some_and(|how| *how != CommitResult::Committed)
        };
        for (lease, offset, new, withheld, _) in
            parts.into_iter().filter(|(lease, ..)| !lost(lease.partition))
        {
            if new.is_empty() {
                found.again = true;
                continue;
            }
            let delivery =
                |event: &Event| DeliveredEvent { event: event.clone(), attempt: 1, token: lease.token };
            let delivered = leases.entry(lease.partition).or_insert_with(|| entry(lease));
            delivered.event_count += u32::try_from(new.len()).unwrap_or(u32::MAX);
            found.deliveries.extend(new.into_iter().map(delivery));
            (delivered.offset, delivered.parked_event_ids) = (Some(offset), withheld);
        }
    }
    found.partition_leases = leases.into_values().collect();
    Ok(found)
}

/// Park the unprocessed events of a partition whose previous holder processed some events out of order. The
/// store returns the processed events only when the partition is taken. The parked events are due at once.
pub(super) async fn recover(app: &App, group: &GroupKey, taken: &TakenPartition) -> Result<(), Problem> {
    if taken.processed_event_ids.is_empty() {
        return Ok(());
    }
    let done: HashSet<EventId> = taken.processed_event_ids.iter().copied().collect();
    let already = firsts(&taken.parked_keys);
    let (mut left, mut after) = (done.len(), taken.offset);
    let mut part: Vec<Event> = Vec::new();
    while left > 0 {
        let read = after_in(app, group, taken.partition, after, Offset::MAX).await?;
        let Some(last) = read.last() else { break };
        after = last.offset;
        left = left.saturating_sub(read.iter().filter(|event| done.contains(&event.id)).count());
        part.extend(read);
    }
    let Some(end) = part.iter().rfind(|event| done.contains(&event.id)).map(|event| event.offset) else {
        return Ok(());
    };
    let open = part
        .iter()
        .filter(|event| event.offset <= end && !done.contains(&event.id) && !already.contains(&event.id));
    let parked_events = open.map(|event| park(event, ParkedEventState::Waiting)).collect();
    let commit = PartitionCommit {
        offset: Some(end),
        parked: parked_events,
        ..empty_commit(group, taken.partition, taken.token)
    };
    // If the lease is lost, the next holder does the same.
    app.store.commit_partitions(&[commit]).await?;
    Ok(())
}

/// Read the parked keys of these partitions.
pub(super) async fn parked_keys(
    app: &App,
    group: &GroupKey,
    partitions: &[u32],
) -> Result<BTreeMap<u32, Vec<ParkedKey>>, StoreError> {
    if partitions.is_empty() {
        Ok(BTreeMap::new())
    } else {
        app.store.parked_keys_in(group, partitions).await
    }
}

/// Read the events of a partition after one offset and up to another: at least one commit batch, limited in
/// size.
pub(super) async fn after_in(
    app: &App,
    group: &GroupKey,
    partition: u32,
    after: Offset,
    up_to: Offset,
) -> Result<Vec<Event>, StoreError> {
    let limit = u32::try_from(PUBLISH_MAX).unwrap_or(1);
    let ask = ReadEventsRequest { topic: group.topic.clone(), after: vec![(partition, after)], limit };
    let mut read = app.store.read_events(&ask).await?;
    read.retain(|event| event.offset <= up_to);
    Ok(read)
}

/// First events of the parked keys.
pub(super) fn firsts(parked: &[ParkedKey]) -> HashSet<EventId> {
    parked.iter().map(|parked| parked.event_id).collect()
}

pub(super) fn park(event: &Event, how: ParkedEventState) -> ParkEventRequest {
    ParkEventRequest { event_id: event.id, offset: event.offset, state: how }
}

/// Empty commit for a partition.
pub(super) fn empty_commit(group: &GroupKey, partition: u32, token: tenure::Token) -> PartitionCommit {
    PartitionCommit {
        group: group.clone(),
        partition,
        token,
        offset: None,
        processed: Vec::new(),
        parked: Vec::new(),
        parked_results: Vec::new(),
    }
}

/// Read a parked event.
async fn view_of(
    app: &App,
    group: &GroupKey,
    partition: u32,
    event: EventId,
) -> Result<Option<ParkedEvent>, StoreError> {
    let filter =
        ParkedEventFilter { partition: Some(partition), ..ParkedEventFilter::from(group.clone(), event) };
    Ok(app.store.parked_events(&filter).await?.into_iter().find(|view| view.event.id == event))
}
