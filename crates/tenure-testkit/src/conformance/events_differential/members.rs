//! Calls of members: join, take, commit, leave.

use std::collections::BTreeSet;

use tenure_core::port::{
    Event, EventId, JoinGroupRequest, Offset, ParkEventRequest, ParkedEventFilter, ParkedEventState,
    PartitionCommit, StartOffset, TakePartitionsRequest,
};

use super::EventDifferential;
use super::side::without_numbers;
use crate::conformance::test_queue::HOUR_MS;
use crate::conformance::test_topic::everything;

impl EventDifferential {
    pub(super) async fn join(&mut self) {
        let from = if self.chance(70) { StartOffset::Earliest } else { StartOffset::Latest };
        let (group, session) = (self.group(), self.session());
        let join = JoinGroupRequest { group, session, member: format!("m{}", self.roll(3)), from };
        let mut responses = Vec::new();
        for side in &self.sides {
            let look = side.store.join_group(&join).await;
            responses.push(match &look {
                Ok(look) => {
                    let leases: Vec<_> = look
                        .partition_leases
                        .iter()
                        .map(|lease| side.partition_lease(&join.group.topic, lease))
                        .collect();
                    Ok((look.members.clone(), leases, look.settings, look.paused.clone()))
                }
                Err(error) => Err(without_numbers(error)),
            });
        }
        self.same(&format!("{join:?}"), responses);
    }

    pub(super) async fn leave(&mut self) {
        let (group, session) = (self.group(), self.session());
        for side in &self.sides {
            side.store.leave_group(&group, &session).await.expect("leave_group");
        }
    }

    pub(super) async fn take(&mut self) {
        let (group, session) = (self.group(), self.session());
        let mut expected = Vec::new();
        for partition in 0..self.partitions(&group.topic) {
            if self.chance(60) {
                expected.push((partition, u64::from(self.chance(5))));
            }
        }
        let mut responses = Vec::new();
        for side in &self.sides {
            let Some(look) = side.store.group_assignment(&group).await.expect("look_group") else { continue };
            let observed = |(partition, off): &(u32, u64)| {
                (*partition, side.token(look.partition_leases[*partition as usize].token.grant() + off))
            };
            let partitions = expected.iter().map(observed).collect();
            let take = TakePartitionsRequest { group: group.clone(), session: session.clone(), partitions };
            let mut taken = side.store.take_partitions(&take).await.expect("take_shares");
            taken.sort_by_key(|it| it.partition);
            for it in &mut taken {
                side.keep_kept(&group.topic, &mut it.processed_event_ids).await;
            }
            responses.push(taken.iter().map(|it| side.taken(&group.topic, it)).collect::<Vec<_>>());
        }
        if !responses.is_empty() {
            self.same(&format!("take of {expected:?} in {group}"), responses);
        }
    }

    pub(super) async fn free(&mut self) {
        let group = self.group();
        let partition = u32::try_from(self.roll(self.partitions(&group.topic).into())).expect("small");
        for side in &self.sides {
            let Some(look) = side.store.group_assignment(&group).await.expect("look_group") else { return };
            let token = look.partition_leases[partition as usize].token;
            side.store.release_partitions(&group, &[(partition, token)]).await.expect("free_shares");
        }
    }

    /// A commit, usually by the current holder.
    pub(super) async fn commit(&mut self) {
        if self.chance(30) {
            return self.commit_offsets().await;
        }
        let group = self.group();
        let partition = u32::try_from(self.roll(self.partitions(&group.topic).into())).expect("small");
        let Some(look) = self.sides[1].store.group_assignment(&group).await.expect("look_group") else {
            return;
        };
        let mut lease = look.partition_leases[partition as usize].clone();
        if lease.holder.is_none() && self.chance(70) {
            let held = look.partition_leases.iter().find(|lease| lease.holder.is_some());
            lease = held.cloned().unwrap_or(lease);
        }
        let rank = self.sides[1].rank(&group.topic, lease.partition, lease.committed_offset);
        let (mut unread, mut parked_list) = (Vec::new(), Vec::new());
        for side in &self.sides {
            let after = side.offset(&group.topic, lease.partition, rank);
            unread.push(side.read(&group.topic, lease.partition, after).await);
            let filter = ParkedEventFilter { partition: Some(lease.partition), ..everything(&group) };
            parked_list.push(side.store.parked_events(&filter).await.expect("parked events"));
        }
        let reported = |n: usize| {
            let side = &self.sides[n];
            unread[n].iter().map(|event| side.event(&group.topic, event)).collect::<Vec<_>>()
        };
        self.same(&format!("read of {group} {}", lease.partition), vec![reported(0), reported(1)]);
        let draft = self.commit_draft(unread[0].len(), parked_list[0].len());
        let grant = lease.token.grant() + u64::from(self.chance(6));
        let mut responses = Vec::new();
        for (n, side) in self.sides.iter().enumerate() {
            let commit = PartitionCommit {
                group: group.clone(),
                partition: lease.partition,
                token: side.token(grant),
                offset: draft.upto.map(|place| unread[n][place].offset),
                processed: draft.done.iter().map(|place| mark(&unread[n][*place])).collect(),
                parked: draft.to_park.iter().map(|(place, how)| to_park(&unread[n][*place], how)).collect(),
                parked_results: draft
                    .settled
                    .iter()
                    .map(|(n_th, how)| (parked_list[n][*n_th].event.id, how.clone()))
                    .collect(),
            };
            responses.push(side.store.commit_partitions(&[commit]).await.map_err(|error| error.message));
        }
        self.same(&format!("commit of {draft:?} to {group} {}", lease.partition), responses);
    }

    /// Offsets of several partitions in one call; each is applied on its own.
    async fn commit_offsets(&mut self) {
        let group = self.group();
        let Some(look) = self.sides[1].store.group_assignment(&group).await.expect("look_group") else {
            return;
        };
        let mut drafts = Vec::new();
        for lease in &look.partition_leases {
            let batches =
                self.sides[1].batches.get(&(group.topic.clone(), lease.partition)).map_or(0, BTreeSet::len);
            let rank = self.roll(batches as u64 + 1) as usize;
            if self.chance(70) {
                drafts.push((lease.partition, lease.token.grant() + u64::from(self.chance(10)), rank));
            }
        }
        let mut responses = Vec::new();
        for side in &self.sides {
            let commit = |(partition, grant, rank): &(u32, u64, usize)| PartitionCommit {
                group: group.clone(),
                partition: *partition,
                token: side.token(*grant),
                offset: Some(side.offset(&group.topic, *partition, *rank)),
                processed: Vec::new(),
                parked: Vec::new(),
                parked_results: Vec::new(),
            };
            let commits: Vec<_> = drafts.iter().map(commit).collect();
            responses.push(side.store.commit_partitions(&commits).await.map_err(|error| error.message));
        }
        self.same(&format!("commits of {drafts:?} to {group}"), responses);
    }

    fn commit_draft(&mut self, unread: usize, parked_list: usize) -> CommitDraft {
        let upto = (unread > 0 && self.chance(60)).then(|| self.roll(unread as u64) as usize);
        let mut draft = CommitDraft { upto, ..CommitDraft::default() };
        for place in 0..unread.min(6) {
            match self.roll(10) {
                0..2 => draft.done.push(place),
                2..4 => {
                    let how = self.how(true);
                    draft.to_park.push((place, how));
                }
                _ => {}
            }
        }
        for place in 0..parked_list.min(6) {
            if self.chance(25) {
                let how = self.how(false);
                draft.settled.push((place, how));
            }
        }
        // A commit must not name an event twice, and an event to park may already be parked by an earlier commit.
        if !draft.to_park.is_empty() || !draft.done.is_empty() {
            draft.settled.clear();
        }
        draft
    }

    fn how(&mut self, new: bool) -> ParkedEventState {
        let attempts = 1 + u32::try_from(self.roll(5)).expect("small");
        let error = format!("e{}", self.roll(3));
        match self.roll(4) {
            0 if new => ParkedEventState::Waiting,
            0 => ParkedEventState::Processed,
            1 => ParkedEventState::Dead { attempts, error },
            2 => ParkedEventState::Retry { attempts, retry_in_ms: 0, error },
            _ => ParkedEventState::Retry { attempts, retry_in_ms: HOUR_MS, error },
        }
    }
}

/// A commit for both sides: indexes of unread events and of parked ones.
#[derive(Debug, Default)]
struct CommitDraft {
    upto: Option<usize>,
    done: Vec<usize>,
    to_park: Vec<(usize, ParkedEventState)>,
    settled: Vec<(usize, ParkedEventState)>,
}

fn mark(event: &Event) -> (EventId, Offset) {
    (event.id, event.offset)
}

fn to_park(event: &Event, how: &ParkedEventState) -> ParkEventRequest {
    ParkEventRequest { event_id: event.id, offset: event.offset, state: how.clone() }
}
