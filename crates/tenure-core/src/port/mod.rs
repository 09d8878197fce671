//! Ports: the operations that a store implements.
//!
//! The store keeps all state: sessions, leases and their tokens, tasks, events and schedules. A store implements ten
//! traits. [`ElectionStore`] serves sessions and elections, and [`ElectionAdmin`] their administration.
//! [`AccessStore`] keeps credentials and the audit log of a server. [`TaskStore`], [`TaskAdmin`] and [`PoolStore`]
//! serve queues and pools, [`EventStore`] and [`EventAdmin`] topics and groups, [`ScheduleStore`] and
//! [`ScheduleAdmin`] schedules. [`Store`] is all of them together.
//!
//! Every call is atomic: the store applies it or rejects it. A call that returns [`StoreError`] may or may not have
//! been applied. The lease machine allows for that: it never extends trust because of an error, and a compare-and-swap
//! guards every call that it repeats.

mod access;
mod election;
mod epoch;
mod error;
mod events;
mod forward;
mod guarantees;
mod leader_request;
mod lease_request;
mod notification;
mod raft_members;
mod schedules;
mod session;
mod work;

use std::os::fd::OwnedFd;

use async_trait::async_trait;

pub use self::access::{
    AccessStore, AuditEntry, Credential, CredentialVerifier, Grant, GrantError, GrantScope, Permission,
};
pub use self::election::{
    Candidacy, CandidateView, ElectionView, ElectionsObservation, JoinElectionResponse, LeaseView,
    ObserveScope, Pause, Term,
};
pub use self::epoch::{EpochBump, EpochView};
pub use self::error::{ErrorKind, StoreError};
pub use self::events::{
    COMMIT_BATCH_MAX, CommitResult, DEFAULT_PARTITIONS, DeadLetterAction, EVENT_BYTES_MAX, Event, EventAdmin,
    EventId, EventStore, GROUPS_MAX, GroupAssignment, GroupKey, GroupMember, GroupSettings, GroupView,
    HEADERS_MAX, JoinGroupRequest, KEY_MAX, LAG_COUNT_MAX, NewEvent, Offset, OffsetChange, PARTITIONS_MAX,
    PUBLISH_MAX, ParkEventRequest, ParkedEvent, ParkedEventFilter, ParkedEventState, ParkedKey,
    PartitionCommit, PartitionLease, PartitionOffsets, PartitionView, Payload, PublishReceipt, READ_BYTES,
    ReadEventsRequest, StartOffset, TakePartitionsRequest, TakenPartition, TopicKey, TopicLockHolder,
    TopicSettings, TopicView, Webhook, WebhookSettings,
};
pub use self::guarantees::{Finding, FindingStatus, StoreGuarantees};
pub use self::leader_request::{LeaderRequest, LeaderRequestKind, StartReason};
pub use self::lease_request::{AdoptLeaseRequest, ReleaseLeaseRequest, TakeLeaseRequest};
pub use self::notification::{BoxNotificationSource, Notification, NotificationSource};
pub use self::raft_members::{RaftMember, RaftMemberAction, RaftStatus};
pub use self::schedules::{
    DUE_MAX, DueResponse, DueSchedule, FireOutcome, FireRequest, FiringTick, ManualFire, ManualFireOutcome,
    ManualFireResult, Precondition, ScheduleAdmin, ScheduleFilter, ScheduleFiring, ScheduleKey,
    ScheduleStats, ScheduleStore, ScheduleView, SetScheduleOutcome, SetScheduleRequest, TICK_RETENTION_MS,
    TickCause, TickEffect, TickFilter, TickOutcome, TickView, WEBHOOK_TIMEOUT_MS, scheduler_election,
    webhook_queue,
};
pub use self::session::{
    ExpireSessionRequest, HeartbeatResponse, OpenSessionRequest, SessionView, TakeoverMode,
};
pub use self::work::{
    AssignmentMode, AttemptFailure, BASE_PRIORITY, Backoff, BrokerEndpoint, BrokerFallback, CLAIM_BYTES,
    CLAIM_MAX, ClaimAuthority, ClaimBatchRequest, ClaimBatchResponse, ClaimOutcome, ClaimRefusal,
    ClaimRequest, ClaimedTask, DEPTH_MAX, FAILURES_MAX, FinishedTask, KindStats, LIST_MAX,
    MaintenanceRequest, MaintenanceResponse, NewResource, NewTask, NewWorker, PAYLOAD_MAX, PRIORITY_MAX,
    PRIORITY_STEP_MS, ParentRef, Percentiles, PoolKey, PoolMatchRequest, PoolRequest, PoolRequestAction,
    PoolRequestId, PoolRequestState, PoolRequestView, PoolSettings, PoolStore, PoolView, QueueKey,
    QueueSettings, QueueView, RateLimit, RawJson, ResourceView, SUBMIT_MAX, SettleResult, Settlement,
    Submission, SubmitReceipt, TaskAction, TaskAdmin, TaskFilter, TaskId, TaskState, TaskStore, TaskView,
    WaitReason, WorkerProfile, WorkerView, broker_election,
};
use crate::{ElectionKey, Name, SessionId, Timing, Token};

/// Store operations of sessions and elections. Every call is atomic in the store.
#[async_trait]
pub trait ElectionStore: Send + Sync + 'static {
    /// Opens a session. Opening counts as its first heartbeat.
    async fn open_session(&self, session: &OpenSessionRequest) -> Result<HeartbeatResponse, StoreError>;

    /// Sends a heartbeat of the session. Extends its leases only if the session is live; returns the pending leader
    /// requests.
    async fn heartbeat(&self, session: &SessionId) -> Result<HeartbeatResponse, StoreError>;

    /// Ends the session: releases all its leases and claims, removes its candidates and notifies the other
    /// candidates.
    async fn end_session(&self, session: &SessionId) -> Result<(), StoreError>;

    /// Joins an election, or changes the options of the candidate.
    async fn join_election(&self, candidacy: &Candidacy) -> Result<JoinElectionResponse, StoreError>;

    /// Removes the candidate from the election.
    async fn leave_election(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError>;

    /// Reads the elections in `scope`.
    async fn observe(
        &self,
        session: &SessionId,
        scope: &ObserveScope,
    ) -> Result<ElectionsObservation, StoreError>;

    /// Takes a lease by compare-and-swap. Returns `None` if the lease changed since it was read.
    async fn take_lease(&self, take: &TakeLeaseRequest) -> Result<Option<Token>, StoreError>;

    /// Releases a lease and notifies the other candidates. Does nothing if the session does not hold the lease under
    /// that token.
    async fn release_lease(&self, release: &ReleaseLeaseRequest) -> Result<(), StoreError>;

    /// Expires a session if its heartbeat count is unchanged, and releases everything it holds.
    async fn expire_session(&self, expire: &ExpireSessionRequest) -> Result<(), StoreError>;

    /// Stores a request for the leader and notifies it. Returns `false` if that term is over.
    async fn request_leader(&self, request: &LeaderRequest) -> Result<bool, StoreError>;

    /// Whether the store supports [`adopt_lease`](Self::adopt_lease).
    fn supports_adoption(&self) -> bool {
        false
    }

    /// Holds a lease in this store that another store granted, so that guards in this store check it. Returns `false`
    /// if a later grant of the same granting store was adopted before, if the lease is held under a grant of a
    /// different store, or if the session has ended. Waits for transactions that an earlier holder runs under its
    /// guard.
    async fn adopt_lease(&self, adopt: &AdoptLeaseRequest) -> Result<bool, StoreError> {
        let message = format!(
            "this store cannot hold a lease granted by {}; keep the work in sqlite: or postgres:",
            adopt.granted_by
        );
        Err(StoreError::new(ErrorKind::Request, message))
    }

    /// Requests a notification, through [`notifications`](Self::notifications), when one of these sessions dies. A
    /// store that cannot detect this ignores the call.
    fn watch_sessions(&self, sessions: &[SessionId]) {
        let _ = sessions;
    }

    /// A file descriptor of a lock that proves that the session is live while any process keeps the descriptor open.
    /// `tenure run` passes it to the watchdog, so that the lease of a killed supervisor becomes free only after its
    /// child has exited. Returns `None` if the store has no such lock.
    fn kernel_lock(&self, session: &SessionId) -> Option<OwnedFd> {
        let _ = session;
        None
    }

    /// The notifications of this store. Each client calls this once when it opens. A store without notifications
    /// returns a source that never yields. The caller may drop the source at any time.
    fn notifications(&self) -> BoxNotificationSource;
}

/// Administrative operations on elections, sessions and the store.
#[async_trait]
pub trait ElectionAdmin: Send + Sync + 'static {
    /// The guarantees of this store.
    fn guarantees(&self) -> StoreGuarantees;

    /// The identity of this store among all stores that grant tokens. Tokens of one identity only grow; tokens of
    /// different identities cannot be compared.
    async fn identity(&self) -> Result<String, StoreError> {
        Ok(self.guarantees().backend.to_owned())
    }

    /// The epoch of the store, with its start. `None` if the store keeps no epoch.
    async fn epoch(&self) -> Result<Option<EpochView>, StoreError> {
        Ok(None)
    }

    /// Starts a new epoch. Every later token and event id is greater than all earlier ones. Current leaders lose
    /// their leases, and no leader is elected until all leaders of the old epoch must have stopped.
    async fn bump_epoch(&self, bump: &EpochBump) -> Result<EpochView, StoreError> {
        let _ = bump;
        let message = "this store keeps no epoch; pass the database itself with --store sqlite:PATH or \
             postgres://…";
        Err(StoreError::new(ErrorKind::Request, message))
    }

    /// The elections of one namespace, or of all namespaces.
    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError>;

    /// One election. `None` if it never had a candidate.
    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError>;

    /// The latest terms of an election, newest first.
    async fn term_history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError>;

    /// Pauses or resumes an election. A pause asks the leaders to stop. Returns `false` if the state is unchanged.
    async fn set_election_paused(&self, key: &ElectionKey, pause: Option<&Pause>)
    -> Result<bool, StoreError>;

    /// The listed sessions that the store still knows, live or ended; without a list, all live sessions. Ordered by
    /// id.
    async fn sessions(&self, which: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError>;

    /// Status of the Raft cluster. `None` if the store is not a Raft cluster.
    async fn raft_status(&self) -> Result<Option<RaftStatus>, StoreError> {
        Ok(None)
    }

    /// Changes the members of the Raft cluster and waits until the change is applied.
    async fn change_raft_members(&self, order: &RaftMemberAction) -> Result<(), StoreError> {
        let _ = order;
        let message = "this store is not a Raft cluster; pass one with --store raft:?peers=… or http://…";
        Err(StoreError::new(ErrorKind::Request, message))
    }

    /// The store's clock in seconds from an arbitrary origin, used to compare clock *rates*. `None` if the store has
    /// no clock.
    async fn clock_seconds(&self) -> Result<Option<f64>, StoreError> {
        Ok(None)
    }

    /// The timing that the store URL requests; used unless the caller sets a timing.
    fn default_timing(&self) -> Option<Timing> {
        None
    }

    /// Waits until this handle can never work again, and returns the reason. The process must then be restarted.
    ///
    /// Most stores recover from every failure, so the call never completes. A Raft member can fail permanently, for
    /// example when its disk fails.
    async fn failed(&self) -> StoreError {
        std::future::pending().await
    }

    /// Findings about the configuration of this store, for `tenure doctor`.
    async fn diagnose(&self) -> Result<Vec<Finding>, StoreError> {
        Ok(Vec::new())
    }

    /// Removes the data that `tenure doctor` created to measure a failover: an election of the namespace
    /// `tenure-doctor` and its ended sessions. A store that cannot do this keeps them.
    async fn remove_probe(&self, election: &Name, sessions: &[SessionId]) -> Result<(), StoreError> {
        let _ = (election, sessions);
        Ok(())
    }
}

/// A complete store: all ports together.
pub trait Store:
    ElectionStore
    + ElectionAdmin
    + AccessStore
    + TaskStore
    + TaskAdmin
    + PoolStore
    + EventStore
    + EventAdmin
    + ScheduleStore
    + ScheduleAdmin
{
}
impl<T> Store for T where
    T: ElectionStore
        + ElectionAdmin
        + AccessStore
        + TaskStore
        + TaskAdmin
        + PoolStore
        + EventStore
        + EventAdmin
        + ScheduleStore
        + ScheduleAdmin
{
}
