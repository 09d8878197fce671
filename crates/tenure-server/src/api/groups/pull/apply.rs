//! Conversion of acknowledgements and failures into partition commits.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use http::StatusCode;
use tenure::port::{
    EventId, GroupAssignment, GroupKey, GroupSettings, Offset, ParkedEventState, ParkedKey, PartitionCommit,
    PartitionLease,
};
use tenure::runtime::RuntimeEntropy;
use tenure::{SessionId, Token};
use tenure_core::rules::event::{ParkedKeys, after_failure};
use tenure_core::rules::work::clip;

use super::ack::{AckPartition, FailedEvent, NackResponse, SPAN_MAX};
use super::read::{after_in, empty_commit, firsts, park, parked_keys};
use super::read_assignment;
use crate::App;
use crate::access::Principal;
use crate::api::session_owner::require_owned_session;
use crate::api::sessions::invalid_value;
use crate::metrics;
use crate::problem::Problem;

/// State that an acknowledgement needs.
pub(super) struct AckContext<'a> {
    app: &'a App,
    group: &'a GroupKey,
    look: GroupAssignment,
    /// Offset of the last event of each partition.
    ends: BTreeMap<u32, Offset>,
    parked_events: BTreeMap<u32, Vec<ParkedKey>>,
    /// Sessions that hold the named partitions.
    holders: BTreeSet<SessionId>,
}

impl<'a> AckContext<'a> {
    pub(super) async fn new(
        app: &'a App,
        group: &'a GroupKey,
        ack_partitions: &[AckPartition],
    ) -> Result<AckContext<'a>, Problem> {
        let assignment = read_assignment(app, group).await?;
        let ends = app.store.partition_offsets(&group.topic).await?.unwrap_or_default();
        let ends = ends.into_iter().map(|ends| (ends.partition, ends.end_offset)).collect();
        // The state of a lost partition is not needed: its acknowledgement is not committed.
        let held = |named: &AckPartition| {
            assignment.partition_leases.iter().find(|ack_partition| {
                ack_partition.partition == named.partition && ack_partition.token == named.token
            })
        };
        let held: Vec<&PartitionLease> = ack_partitions.iter().filter_map(held).collect();
        let partitions: Vec<u32> = held.iter().map(|ack_partition| ack_partition.partition).collect();
        let holders = held.into_iter().filter_map(|ack_partition| ack_partition.holder.clone()).collect();
        let parked = parked_keys(app, group, &partitions).await?;
        Ok(AckContext { app, group, look: assignment, ends, parked_events: parked, holders })
    }

    /// Reject partitions that another principal's session holds. `own_session` is the principal's own session.
    pub(super) async fn check_owner(
        &self,
        principal: &Principal,
        own_session: Option<&SessionId>,
    ) -> Result<(), Problem> {
        for holder in self.holders.iter().filter(|holder| Some(*holder) != own_session) {
            require_owned_session(self.app, principal, holder).await?;
        }
        Ok(())
    }

    /// The lease of the partition, if it is held under this token.
    pub(super) fn held(&self, partition: u32, token: Token) -> Result<Option<&PartitionLease>, Problem> {
        let Some(known) =
            self.look.partition_leases.iter().find(|ack_partition| ack_partition.partition == partition)
        else {
            return Err(invalid_value(
                "partition",
                format!("{} has no partition {partition}", self.group.topic),
            ));
        };
        Ok(Some(known).filter(|known| known.token == token && known.holder.is_some()))
    }

    fn parked_keys(&self, partition: u32) -> &[ParkedKey] {
        self.parked_events.get(&partition).map(Vec::as_slice).unwrap_or_default()
    }

    /// Convert the acknowledgement of a partition into a commit. Fails if the offset is beyond the end of the
    /// partition, or if a failed event was not pulled from it.
    pub(super) async fn commit(
        &self,
        known: &PartitionLease,
        ack_partition: AckPartition,
    ) -> Result<PartitionCommit, Problem> {
        let AckPartition {
            partition,
            token,
            offset,
            retried,
            parked_event_ids: withheld,
            failed,
            event_count: _,
        } = ack_partition;
        let mut commit = empty_commit(self.group, partition, token);
        let end = self.ends.get(&partition).copied().unwrap_or(0).max(known.committed_offset);
        if offset.is_some_and(|offset| offset > end) {
            // Events acknowledged before they are published would never be read.
            let detail = format!("partition {partition} ends at offset {end}");
            return Err(invalid_value("offset", detail).remedy("acknowledge the offset of the pull response"));
        }
        let parked_keys = self.parked_keys(partition);
        let mut already = firsts(parked_keys);
        already.extend(withheld);
        let failure = |event: &EventId| failed.iter().find(|failure| failure.event_id == *event);
        let again = |event: &EventId| retried.iter().find(|event_again| event_again.event_id == *event);
        // Only the first event of a key is delivered when it is due. Skip reports about earlier attempts, and
        // about events that were processed, dropped or became dead letters meanwhile.
        for first in parked_keys.iter().filter(|first| first.retry_in_ms == Some(0)) {
            if again(&first.event_id).is_some_and(|event_again| event_again.attempt > first.attempts) {
                let how = failure(&first.event_id)
                    .map_or(ParkedEventState::Processed, |failure| self.verdict(first.attempts, failure));
                commit.parked_results.push((first.event_id, how));
            }
        }
        let mut unmet: HashSet<EventId> = failed.iter().map(|failure| failure.event_id).collect();
        unmet.retain(|event| again(event).is_none() && !already.contains(event));
        commit.offset = offset;
        let mut parked = ParkedKeys::of(parked_keys);
        if parked.is_empty() && failed.is_empty() {
            return Ok(commit);
        }
        let (mut after, mut count) = (known.committed_offset, 0);
        while after < offset.unwrap_or(0) {
            let read = after_in(self.app, self.group, partition, after, offset.unwrap_or(0)).await?;
            let Some(last) = read.last() else { break };
            (after, count) = (last.offset, count + read.len());
            if count > SPAN_MAX {
                let detail =
                    format!("the committed offset of partition {partition} is {}", known.committed_offset);
                return Err(invalid_value("offset", detail).remedy("acknowledge only pulled events"));
            }
            for event in read.iter().filter(|event| !already.contains(&event.id)) {
                unmet.remove(&event.id);
                let how = match failure(&event.id) {
                    Some(failure) => self.verdict(0, failure),
                    None if parked.has(event) => ParkedEventState::Waiting,
                    None => continue,
                };
                parked.add(event);
                commit.parked.push(park(event, how));
            }
        }
        for event in unmet {
            self.check_reported(known, event).await?;
        }
        Ok(commit)
    }

    /// Count processed and failed events in the metrics. `pulled` is the number of delivered events as the
    /// client reports it. A repeated acknowledgement changes nothing and is not counted.
    pub(super) fn count(&self, commit: &PartitionCommit, pulled: u32) {
        let hows = commit
            .parked
            .iter()
            .map(|parked| &parked.state)
            .chain(commit.parked_results.iter().map(|(_, how)| how));
        let failed =
            hows.filter(|how| matches!(how, ParkedEventState::Retry { .. } | ParkedEventState::Dead { .. }));
        failed
            .clone()
            .for_each(|how| metrics::failed(self.group, matches!(how, ParkedEventState::Dead { .. })));
        let known = self
            .look
            .partition_leases
            .iter()
            .find(|ack_partition| ack_partition.partition == commit.partition);
        let moves =
            known.is_some_and(|known| commit.offset.is_some_and(|offset| offset > known.committed_offset));
        if moves || !commit.parked_results.is_empty() {
            let not_done = commit.parked.len()
                + commit.parked_results.iter().filter(|(_, how)| *how != ParkedEventState::Processed).count();
            let most = pulled.min(u32::try_from(2 * SPAN_MAX).unwrap_or(u32::MAX)) as usize;
            metrics::events_processed(self.group, most.saturating_sub(not_done));
        }
    }

    /// Reject a failure of an event that is not in this partition: ignoring it would mark the event as
    /// processed.
    async fn check_reported(&self, known: &PartitionLease, event: EventId) -> Result<(), Problem> {
        let found = self.app.store.event(&self.group.topic, event).await?;
        // The failure was reported before; the event is parked or processed.
        if found
            .is_some_and(|found| found.partition == known.partition && found.offset <= known.committed_offset)
        {
            return Ok(());
        }
        let detail = format!("event {event} was not pulled from partition {}", known.partition);
        Err(invalid_value("failed", detail).remedy("send it with its own partition and the pulled offset"))
    }

    /// Convert the failure of one event into commits, and return them with its resulting state. Returns no
    /// commit if the failure was reported before.
    pub(super) async fn failure(
        &self,
        known: &PartitionLease,
        offset: Offset,
        attempt: Option<u32>,
        failure: &FailedEvent,
    ) -> Result<(Vec<PartitionCommit>, NackResponse), Problem> {
        let (partition, event) = (known.partition, failure.event_id);
        let commit = || empty_commit(self.group, partition, known.token);
        if let Some(first) = self.parked_keys(partition).iter().find(|parked| parked.event_id == event) {
            if first.retry_in_ms == Some(0) && attempt.is_none_or(|attempt| attempt > first.attempts) {
                let how = self.verdict(first.attempts, failure);
                let nacked = NackResponse::new(event, &how);
                return Ok((
                    vec![PartitionCommit { parked_results: vec![(event, how)], ..commit() }],
                    nacked,
                ));
            }
            // The failure was reported before.
            let (attempts, retry_in_ms) = (first.attempts, first.retry_in_ms);
            return Ok((
                Vec::new(),
                NackResponse { event_id: event, attempts, dead: retry_in_ms.is_none(), retry_in_ms },
            ));
        }
        let commit_batch = match offset > known.committed_offset {
            true => after_in(self.app, self.group, partition, offset - 1, offset).await?,
            false => Vec::new(),
        };
        let Some(found) = commit_batch.iter().find(|found| found.id == event) else {
            let detail = format!(
                "event {event} is not at offset {offset} of partition {partition}, or is already processed"
            );
            return Err(Problem::new(StatusCode::NOT_FOUND, "no-such-event", detail)
                .field("event_id")
                .remedy("send event id, partition and offset as pulled"));
        };
        let how = self.verdict(0, failure);
        let nacked = NackResponse::new(event, &how);
        let parked_events = PartitionCommit { parked: vec![park(found, how)], ..commit() };
        // The committed offset stays, because the other events are still open. The next holder of the
        // partition learns that this event is processed.
        let mark = PartitionCommit { processed: vec![(event, found.offset)], ..commit() };
        Ok((vec![parked_events, mark], nacked))
    }

    fn verdict(&self, attempts: u32, failure: &FailedEvent) -> ParkedEventState {
        let mut draw = RuntimeEntropy(self.app.runtime.as_ref());
        let settings: &GroupSettings = &self.look.settings;
        let error = failure.error.replace('\0', "\u{fffd}");
        match after_failure(settings, attempts, &error, &mut draw) {
            ParkedEventState::Retry { attempts, error, .. } if !failure.retry => {
                ParkedEventState::Dead { attempts, error: clip(&error) }
            }
            ParkedEventState::Retry { attempts, retry_in_ms: after_ms, error } => {
                let after_ms = failure.retry_in_ms.unwrap_or(after_ms);
                ParkedEventState::Retry { attempts, retry_in_ms: after_ms, error }
            }
            how => how,
        }
    }
}
