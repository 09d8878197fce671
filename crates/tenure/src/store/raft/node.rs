//! A Raft member: keeps the log, votes, and executes requests through the Raft leader.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openraft::error::{CheckIsLeaderError, ClientWriteError, Fatal, RaftError};
use openraft::{BasicNode, Config, RaftMetrics, SnapshotPolicy};
use tenure_core::port::{ErrorKind, Notification, StoreError};
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinHandle;

use super::env::{Disk, Env, MemberConfig};
use super::log::Log;
use super::peer::{AckedLogs, PeerNetwork, adopt_later_votes};
use super::protocol::{RaftClient, RaftRequest, within};
use super::request_handler::NodeRequestHandler;
use super::sim_runtime::spawn;
use super::startup::start_member;
use super::state_machine::StateMachine;
use super::types::{NodeId, Raft, RaftRead, RaftResponse, TimedWrite};
use crate::runtime::Runtime;

/// Interval of Raft heartbeats, and the range of the election timeout.
const HEARTBEAT_MS: u64 = 100;
pub(super) const ELECTION_TIMEOUT_MS: (u64, u64) = (500, 1_000);

/// Time limit for finding a Raft leader.
const LEADER_LIMIT: Duration = Duration::from_secs(3);

/// Time limit for an answer of the Raft leader or of a majority.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// Time limit for the first leader after a start.
const STARTUP_LIMIT: Duration = Duration::from_secs(60);

/// Time limit of a membership change; a new member first receives the whole state.
pub(super) const MEMBERS_LIMIT: Duration = Duration::from_secs(60);

/// Default number of entries between snapshots.
const SNAPSHOT_EVERY: u64 = 5_000;

/// Number of entries kept after a snapshot for members that lag a little.
const ENTRIES_KEPT: u64 = 1_000;

type Metrics = RaftMetrics<NodeId, BasicNode>;

/// A running Raft member.
pub(super) struct Node {
    pub(super) id: NodeId,
    /// Configured members.
    peers: BTreeMap<NodeId, String>,
    pub(super) raft: Raft,
    pub(super) machine: StateMachine,
    pub(super) log: Log,
    pub(super) client: RaftClient,
    pub(super) runtime: Arc<dyn Runtime>,
    /// Whether the member takes part: as far as the other members know, it has forgotten nothing.
    pub(super) takes_part: Arc<AtomicBool>,
    /// Last log entry that each member acknowledged.
    pub(super) acked: AckedLogs,
    pub(super) notifications: broadcast::Sender<Notification>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    /// Kept locked until the last write has finished.
    disk: Arc<dyn Disk>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner).iter().for_each(JoinHandle::abort);
        let (raft, disk) = (self.raft.clone(), self.disk.clone());
        if tokio::runtime::Handle::try_current().is_ok() {
            spawn(async move {
                let _ = raft.shutdown().await;
                drop(disk);
            });
        }
    }
}

impl Node {
    /// Start a member; without peers it forms a cluster of one.
    pub(super) async fn start(env: Env, config: MemberConfig) -> Result<Arc<Node>, StoreError> {
        let Env { runtime, network } = env;
        let MemberConfig { node: id, peers, listen, snapshot, disk, observer: witness } = config;
        let every = snapshot.unwrap_or(SNAPSHOT_EVERY);
        let notifications = broadcast::channel(1024).0;
        let machine = StateMachine::open(disk.clone(), notifications.clone(), witness)?;
        let log = Log::open(disk.clone(), machine.covered(), runtime.as_ref())?;
        let client = RaftClient::new(Some(id), network.clone());
        let config = Config {
            cluster_name: "tenure".into(),
            heartbeat_interval: HEARTBEAT_MS,
            election_timeout_min: ELECTION_TIMEOUT_MS.0,
            election_timeout_max: ELECTION_TIMEOUT_MS.1,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(every),
            max_in_snapshot_log_to_keep: ENTRIES_KEPT.min(every / 5),
            // Elections stay disabled until the member takes part: a term of its own would hide that it has forgotten
            // another term.
            enable_elect: false,
            ..Config::default()
        };
        let config = config
            .validate()
            .map_err(|error| misconfigured(format!("invalid Raft configuration: {error}")))?;
        let (takes_part, acked) = (Arc::new(AtomicBool::new(false)), AckedLogs::default());
        let (later, later_votes) = mpsc::unbounded_channel();
        let others = PeerNetwork::new(client.clone(), takes_part.clone(), acked.clone(), later);
        let raft = Raft::new(id, Arc::new(config), others, log.clone(), machine.clone())
            .await
            .map_err(|error| misconfigured(format!("cannot start Raft: {error}")))?;
        let address = peers.get(&id).map(|address| listen.unwrap_or_else(|| address.clone()));
        let (configured, tasks, clock) = (peers.clone(), Mutex::default(), runtime.clone());
        let node = Arc::new(Node {
            id,
            peers: configured,
            raft,
            machine,
            log,
            client,
            runtime,
            takes_part,
            acked,
            notifications,
            tasks,
            disk,
        });
        let me = Arc::downgrade(&node);
        let mut tasks = Vec::new();
        if let Some(address) = address {
            let served = network.serve(&address, Arc::new(NodeRequestHandler(me.clone()))).await;
            let served = served
                .map_err(|error| misconfigured(format!("node {id} cannot listen on {address}: {error}")))?;
            tasks.push(spawn(served));
        }
        tasks.push(spawn(adopt_later_votes(id, node.raft.clone(), later_votes)));
        tasks.push(spawn(report_stop(id, node.raft.clone())));
        tasks.push(spawn(start_member(me, clock, id, peers)));
        *node.tasks.lock().unwrap_or_else(PoisonError::into_inner) = tasks;
        Ok(node)
    }

    /// Execute a write through the Raft leader.
    pub(super) async fn write(&self, entry: TimedWrite) -> Result<RaftResponse, StoreError> {
        self.via_leader(&RaftRequest::LeaderWrite(Box::new(entry))).await
    }

    /// Execute a read through the Raft leader.
    pub(super) async fn read(&self, read: RaftRead) -> Result<RaftResponse, StoreError> {
        self.via_leader(&RaftRequest::LeaderRead(read)).await
    }

    /// Send a request to the Raft leader. A member that does not lead does nothing; the request is then retried with
    /// the next leader.
    async fn via_leader(&self, request: &RaftRequest) -> Result<RaftResponse, StoreError> {
        let limit = self.runtime.now() + LEADER_LIMIT;
        loop {
            let (id, address) = self.leader().await?;
            let outcome = match request {
                RaftRequest::LeaderWrite(entry) if id == self.id => {
                    self.write_as_leader(entry.as_ref().clone()).await?
                }
                RaftRequest::LeaderRead(read) if id == self.id => self.read_as_leader(read).await?,
                _ => self.forward(id, &address, request).await?,
            };
            if !outcome.is_not_leading() || self.runtime.now() >= limit {
                return Ok(outcome);
            }
            self.runtime.sleep_until(self.runtime.now() + Duration::from_millis(20)).await;
        }
    }

    pub(super) async fn forward(
        &self,
        id: NodeId,
        address: &str,
        request: &RaftRequest,
    ) -> Result<RaftResponse, StoreError> {
        let limit = match request {
            // The leader's own time limit must expire first.
            RaftRequest::AddMember(..) | RaftRequest::RemoveMember(_) | RaftRequest::TransferLeader(_) => {
                MEMBERS_LIMIT + ANSWER_LIMIT
            }
            _ => ANSWER_LIMIT,
        };
        within(self.runtime.as_ref(), limit, self.client.call(id, address, request)).await.map_err(|error| {
            StoreError::new(
                ErrorKind::Unavailable,
                format!("the Raft leader, node {id} at {address}, does not answer: {error}"),
            )
        })
    }

    /// Execute a write locally; fails unless this member leads. On success a majority has stored the write. After an
    /// error the write may still take effect.
    pub(super) async fn write_as_leader(&self, entry: TimedWrite) -> Result<RaftResponse, StoreError> {
        match self.within_limit(self.raft.client_write(entry)).await? {
            Ok(written) => Ok(written.data),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) => Ok(RaftResponse::not_leading()),
            Err(error) => Err(StoreError::new(ErrorKind::Unavailable, format!("Raft write failed: {error}"))),
        }
    }

    /// Execute a read locally after a majority confirms that this member still leads, so the result includes every
    /// earlier write.
    pub(super) async fn read_as_leader(&self, read: &RaftRead) -> Result<RaftResponse, StoreError> {
        match self.within_limit(self.raft.ensure_linearizable()).await? {
            Ok(_) => Ok(self.machine.read(read)),
            Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(_))) => {
                Ok(RaftResponse::not_leading())
            }
            // A later term prevented the majority from agreeing.
            Err(RaftError::APIError(CheckIsLeaderError::QuorumNotEnough(_)))
                if self.raft.metrics().borrow().current_leader != Some(self.id) =>
            {
                Ok(RaftResponse::not_leading())
            }
            Err(error) => Err(StoreError::new(ErrorKind::Unavailable, format!("Raft read failed: {error}"))),
        }
    }

    /// Return the node id and address of the Raft leader; wait for a leader up to the time limit.
    pub(super) async fn leader(&self) -> Result<(NodeId, String), StoreError> {
        let mut metrics = self.raft.metrics();
        let limit = self.runtime.now() + LEADER_LIMIT;
        loop {
            if let Some(stopped) = self.stopped() {
                return Err(stopped);
            }
            {
                let seen = metrics.borrow_and_update();
                if let Some(leader) = seen.current_leader {
                    // A new member learns of the leader before it receives the membership.
                    let address_in_membership =
                        seen.membership_config.membership().get_node(&leader).map(|node| &node.addr);
                    return Ok((
                        leader,
                        address_in_membership.or(self.peers.get(&leader)).cloned().unwrap_or_default(),
                    ));
                }
            }
            tokio::select! {
                biased;
                // An error means that Raft has stopped.
                _ = metrics.changed() => {}
                () = self.runtime.sleep_until(limit) => return Err(StoreError::new(
                    ErrorKind::Unavailable,
                    format!("node {} knows no Raft leader: no majority of the members is reachable, or an election is in progress", self.id),
                )),
            }
        }
    }

    /// Wait until the cluster has a leader. The other members may still be starting.
    pub(super) async fn wait_for_leader(&self) -> Result<(), StoreError> {
        let limit = self.runtime.now() + STARTUP_LIMIT;
        loop {
            match self.leader().await {
                Ok(_) => return Ok(()),
                Err(error) if self.runtime.now() >= limit || self.stopped().is_some() => return Err(error),
                Err(_) => tracing::info!(node = self.id, "raft member waits for a majority of the members"),
            }
        }
    }

    /// The reason why this member's Raft core has stopped permanently, if it has. A stopped core applies no entries and
    /// receives none.
    pub(super) fn stopped(&self) -> Option<StoreError> {
        Stopped::of(&self.raft.metrics()).map(|stopped| self.stop_error(&stopped))
    }

    /// Complete when [`stopped`](Self::stopped) returns a reason.
    pub(super) async fn until_stopped(&self) -> StoreError {
        self.stop_error(&until_stopped(&self.raft).await)
    }

    fn stop_error(&self, stopped: &Stopped) -> StoreError {
        let message = match stopped {
            Stopped::ShutDown => format!("Raft member {} was shut down", self.id),
            Stopped::Failed(why) => {
                format!("Raft member {} has stopped: {why}; restart its process", self.id)
            }
        };
        StoreError::new(ErrorKind::Unavailable, message)
    }

    /// Wait for a majority with a time limit.
    async fn within_limit<T>(&self, future: impl Future<Output = T>) -> Result<T, StoreError> {
        tokio::select! {
                    biased;
            done = future => Ok(done),
            () = self.runtime.sleep_until(self.runtime.now() + ANSWER_LIMIT) => Err(StoreError::new(
                ErrorKind::Unavailable,
                "no majority of the Raft members answered in time; check that the members run and can reach each other",
            )),
        }
    }
}

/// Log an error when Raft stops permanently, which happens when it cannot read or write its storage.
async fn report_stop(id: NodeId, raft: Raft) {
    if let Stopped::Failed(why) = until_stopped(&raft).await {
        tracing::error!(node = id, "raft member stopped, restart its process: {why}");
    }
}

/// Why the Raft core no longer runs.
enum Stopped {
    /// It was shut down.
    ShutDown,
    /// It failed.
    Failed(String),
}

impl Stopped {
    fn of(metrics: &watch::Receiver<Metrics>) -> Option<Stopped> {
        match &metrics.borrow().running_state {
            Err(Fatal::Stopped) => Some(Stopped::ShutDown),
            Err(why) => Some(Stopped::Failed(why.to_string())),
            // The core task ended without reporting a reason.
            Ok(()) if metrics.has_changed().is_err() => {
                Some(Stopped::Failed("the Raft core panicked".into()))
            }
            Ok(()) => None,
        }
    }
}

async fn until_stopped(raft: &Raft) -> Stopped {
    let mut metrics = raft.metrics();
    loop {
        metrics.mark_unchanged();
        if let Some(stopped) = Stopped::of(&metrics) {
            return stopped;
        }
        // An error means that Raft has stopped.
        let _ = metrics.changed().await;
    }
}

fn misconfigured(message: String) -> StoreError {
    StoreError::new(ErrorKind::Misconfigured, message)
}
