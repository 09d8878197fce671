//! Membership in a consumer group under one session, from joining until the session is lost or the consumer
//! stops.
//!
//! The membership task reads the group after every notification and at least once per heartbeat interval. It
//! releases partitions that are no longer assigned to this member and takes those that are
//! ([`plan_rebalance`]). There is no coordinator: all members see the same data and compute the same plan. A
//! partition is released only when its running deliveries have finished and committed, so the next holder
//! continues at that offset.
//!
//! While the store fails, no partition moves, and held events are delivered until the session is no longer
//! trusted.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tenure_core::SessionId;
use tenure_core::port::{
    GroupAssignment, GroupKey, JoinGroupRequest, StartOffset, StoreError, TakePartitionsRequest,
};
use tenure_core::rules::event::plan_rebalance;
use tokio::sync::{Notify, watch};

use super::assigned_partitions::AssignedPartitions;
use super::handler::EventHandler;
use crate::metrics;
use crate::outage::{OutageLog, log_failure, log_recovery};
use crate::queue::context::{ClientContext, locked};

/// Rounds between reads of the parked events without a notification: there may be very many keys.
const PARKED_ROUNDS: u32 = 16;

/// Whether a consumer runs, drains or stops at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopMode {
    /// The consumer runs.
    No,
    /// The consumer finishes running deliveries, then stops.
    Drain,
    /// The consumer drops running deliveries and stops.
    Now,
}

/// Settings and control channels of a consumer.
pub(super) struct ConsumerConfig {
    pub(super) ctx: Arc<ClientContext>,
    pub(super) group: Arc<GroupKey>,
    pub(super) member: String,
    pub(super) from: StartOffset,
    pub(super) batch: usize,
    pub(super) concurrency: usize,
    pub(super) limit: Duration,
    pub(super) handler: Arc<dyn EventHandler>,
    pub(super) stop: watch::Sender<StopMode>,
    /// Partitions held now.
    pub(super) partitions: watch::Sender<Vec<u32>>,
}

pub(super) struct Membership<'a> {
    pub(super) config: &'a ConsumerConfig,
    pub(super) ctx: &'a Arc<ClientContext>,
    pub(super) session: SessionId,
    partition_leases: Mutex<AssignedPartitions>,
    /// Wakes the membership task: a partition must be released.
    pub(super) release_needed: Notify,
    /// Wakes the reader: the buffers have room.
    pub(super) room: Notify,
    /// Wakes the reader: there are new partitions.
    pub(super) new_partitions: Notify,
    /// Wakes the delivery task: events were read, or partitions were lost or resumed.
    pub(super) work: Notify,
    /// Consecutive transient failures without a success.
    pub(super) transient: AtomicU32,
}

impl<'a> Membership<'a> {
    pub(super) fn new(config: &'a ConsumerConfig, session: SessionId) -> Membership<'a> {
        Membership {
            config,
            ctx: &config.ctx,
            session,
            partition_leases: Mutex::default(),
            release_needed: Notify::new(),
            room: Notify::new(),
            new_partitions: Notify::new(),
            work: Notify::new(),
            transient: AtomicU32::new(0),
        }
    }

    pub(super) fn assigned(&self) -> MutexGuard<'_, AssignedPartitions> {
        locked(&self.partition_leases)
    }

    pub(super) fn is_draining(&self) -> bool {
        *self.config.stop.borrow() != StopMode::No
    }

    /// The request to join the group.
    pub(super) fn join(&self) -> JoinGroupRequest {
        JoinGroupRequest {
            group: (*self.config.group).clone(),
            session: self.session.clone(),
            member: self.config.member.clone(),
            from: self.config.from,
        }
    }

    /// Maintains the membership until dropped. `assignment` is the assignment returned by the join, if any.
    pub(super) async fn maintain(&self, mut assignment: Option<GroupAssignment>) {
        let channel = self.ctx.shared.notifier.group(&self.config.group);
        let mut notifications = channel.subscribe();
        let (mut rounds, mut outages): (u32, _) = (0, OutageLog::default());
        loop {
            // Before the read: later changes are notified.
            notifications.mark_unchanged();
            rounds += 1;
            if rounds.is_multiple_of(PARKED_ROUNDS) {
                self.assigned().mark_parked_outdated();
            }
            let wait = match self.round(assignment.take()).await {
                Ok(wait) => {
                    let (now, group) = (self.ctx.runtime.now(), &self.config.group);
                    log_recovery!(outages, now, %group, "group membership recovered");
                    wait
                }
                Err(error) => {
                    let (now, group) = (self.ctx.runtime.now(), &self.config.group);
                    log_failure!(outages, now, %group, "maintaining group membership failed: {error}");
                    self.ctx.timing.retry()
                }
            };
            tokio::select! {
                // The channel outlives its subscribers. It is also signalled when operators change parked
                // events.
                _ = notifications.changed() => self.assigned().mark_parked_outdated(),
                () = self.release_needed.notified() => {}
                () = self.ctx.pause(wait) => {}
            }
        }
    }

    /// Reads the group once and acts on it. Returns the delay before the next read.
    async fn round(&self, assignment: Option<GroupAssignment>) -> Result<Duration, StoreError> {
        self.release_due().await?;
        let assignment = match assignment {
            Some(assignment) => assignment,
            None => self.read_group().await?,
        };
        self.apply(&assignment);
        let plan = plan_rebalance(&assignment, &self.session);
        {
            let mut assigned = self.assigned();
            // Leases under unknown tokens: the response to a take was lost, or a lost partition was assigned
            // again.
            let known = |partition, token| assigned.token(partition) == Some(token);
            let unknown_leases = assignment
                .partition_leases
                .iter()
                .filter(|lease| lease.holder.as_ref() == Some(&self.session));
            let unknown_leases: Vec<_> = unknown_leases
                .map(|lease| (lease.partition, lease.token))
                .filter(|(partition, token)| !known(*partition, *token))
                .collect();
            assigned.unknown_leases(unknown_leases);
            let released: Vec<u32> = plan.release.iter().map(|(partition, _)| *partition).collect();
            for partition in assigned.partitions() {
                if released.contains(&partition) {
                    assigned.release(partition)
                } else {
                    assigned.keep(partition)
                }
            }
        }
        self.release_due().await?;
        if !plan.take.is_empty() && !self.is_draining() {
            self.take(plan.take).await?;
        }
        self.refresh_parked().await?;
        self.publish_partitions();
        let beat = self.ctx.timing.heartbeat_interval();
        Ok(plan.replan_in_ms.map_or(beat, |ms| beat.min(Duration::from_millis(ms))))
    }

    /// Reads the group. Joins again if this session is not a member.
    async fn read_group(&self) -> Result<GroupAssignment, StoreError> {
        let assignment = self.ctx.bounded(self.ctx.store.group_assignment(&self.config.group)).await?;
        let knows_us =
            |assignment: &GroupAssignment| assignment.members.iter().any(|it| it.session == self.session);
        match assignment.filter(knows_us) {
            Some(assignment) => Ok(assignment),
            None => self.ctx.bounded(self.ctx.store.join_group(&self.join())).await,
        }
    }

    /// Applies settings and the pause of the group, and removes lost partitions.
    fn apply(&self, assignment: &GroupAssignment) {
        let mut assigned = self.assigned();
        assigned.settings = assignment.settings;
        let resumed = assigned.paused && assignment.paused.is_none();
        assigned.paused = assignment.paused.is_some();
        let ours = |partition: u32, token| {
            let lease = assignment.partition_leases.iter().find(|lease| lease.partition == partition);
            lease.is_some_and(|lease| lease.token == token && lease.holder.as_ref() == Some(&self.session))
        };
        let lost: Vec<u32> = assigned
            .partitions()
            .into_iter()
            .filter(|partition| assigned.token(*partition).is_some_and(|token| !ours(*partition, token)))
            .collect();
        if !lost.is_empty() {
            tracing::info!(group = %self.config.group, member = self.config.member, partitions = ?lost, "partitions lost");
        }
        lost.iter().for_each(|partition| assigned.lose(*partition));
        drop(assigned);
        if resumed {
            self.room.notify_one();
        }
        if resumed || !lost.is_empty() {
            self.work.notify_one();
        }
    }

    /// Releases the partitions that must be released.
    async fn release_due(&self) -> Result<(), StoreError> {
        let to_release = self.assigned().to_release();
        if !to_release.is_empty() {
            self.ctx.bounded(self.ctx.store.release_partitions(&self.config.group, &to_release)).await?;
            self.assigned().released(&to_release);
            let partitions: Vec<u32> = to_release.iter().map(|(partition, _)| *partition).collect();
            tracing::debug!(group = %self.config.group, member = self.config.member, ?partitions, "partitions released");
            self.publish_partitions();
        }
        Ok(())
    }

    async fn take(&self, partitions: Vec<(u32, tenure_core::Token)>) -> Result<(), StoreError> {
        let take = TakePartitionsRequest {
            group: (*self.config.group).clone(),
            session: self.session.clone(),
            partitions,
        };
        let taken = self.ctx.bounded(self.ctx.store.take_partitions(&take)).await?;
        if taken.is_empty() {
            return Ok(());
        }
        metrics::partitions_acquired(&self.config.group, taken.len());
        let partitions: Vec<u32> = taken.iter().map(|taken| taken.partition).collect();
        tracing::debug!(group = %self.config.group, member = self.config.member, ?partitions, "partitions acquired");
        let (mut assigned, now) = (self.assigned(), self.ctx.runtime.now());
        taken.into_iter().for_each(|taken| assigned.take(taken, now));
        drop(assigned);
        self.new_partitions.notify_one();
        self.work.notify_one();
        Ok(())
    }

    /// Reads the parked events again: operators may have replayed or dropped some.
    async fn refresh_parked(&self) -> Result<(), StoreError> {
        let partitions = self.assigned().outdated_parked();
        for (partition, token, version) in partitions {
            let parked = self.ctx.bounded(self.ctx.store.parked_keys(&self.config.group, partition)).await?;
            self.assigned().replace_parked(partition, token, version, &parked, self.ctx.runtime.now());
            self.work.notify_one();
        }
        Ok(())
    }

    /// Publishes the held partitions.
    fn publish_partitions(&self) {
        let partitions = self.assigned().partitions();
        self.config.partitions.send_if_modified(|current| std::mem::replace(current, partitions) != *current);
        metrics::partitions_assigned(
            &self.config.group,
            &self.config.member,
            self.config.partitions.borrow().len(),
        );
    }
}
