//! A member: it keeps the log, votes, and has whoever leads do what it is asked for.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openraft::error::{CheckIsLeaderError, ClientWriteError, Fatal, RaftError};
use openraft::{BasicNode, Config, RaftMetrics, SnapshotPolicy};
use tenure_core::port::{StoreError, Trouble, Wake};
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinHandle;

use super::answers::Desk;
use super::begin::begin;
use super::ground::{Disk, Ground, Seat};
use super::hosted::spawn;
use super::log::Log;
use super::machine::Machine;
use super::net::{Lines, Question, within};
use super::peer::{Heard, Network, adopt_later_votes};
use super::types::{Entry, Look, NodeId, Outcome, Raft};
use crate::runtime::Runtime;

/// How often a leader is heard of, and how long it may be silent: between the two numbers.
const HEARTBEAT_MS: u64 = 100;
pub(super) const SILENCE_MS: (u64, u64) = (500, 1_000);

/// How long who asks waits for somebody to lead.
const LEADER_LIMIT: Duration = Duration::from_secs(3);

/// How long the leader, or a majority, may take to answer.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// How long a member that starts waits for the others.
const GATHERING_LIMIT: Duration = Duration::from_secs(60);

/// How long a change of the members may take: a new one learns everything first.
pub(super) const MEMBERS_LIMIT: Duration = Duration::from_secs(60);

/// After how many entries the state is written down and the log cut.
const SNAPSHOT_EVERY: u64 = 5_000;

/// How many entries are left for members that are a little behind.
const ENTRIES_LEFT: u64 = 1_000;

type Metrics = RaftMetrics<NodeId, BasicNode>;

/// A member.
pub(super) struct Node {
    pub(super) id: NodeId,
    /// The members as they were given.
    peers: BTreeMap<NodeId, String>,
    pub(super) raft: Raft,
    pub(super) machine: Machine,
    pub(super) log: Log,
    pub(super) lines: Lines,
    pub(super) runtime: Arc<dyn Runtime>,
    /// Whether it takes part: it remembers all that it promised, as far as the others know.
    pub(super) is_fit: Arc<AtomicBool>,
    /// What the others have said that they have.
    pub(super) heard: Heard,
    pub(super) wakes: broadcast::Sender<Wake>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    /// Held until nothing is written to it any more.
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
    /// Starts a member; alone if it has no peers.
    pub(super) async fn start(ground: Ground, seat: Seat) -> Result<Arc<Node>, StoreError> {
        let Ground { runtime, network } = ground;
        let Seat { node: id, peers, listen, snapshot, disk, witness } = seat;
        let every = snapshot.unwrap_or(SNAPSHOT_EVERY);
        let wakes = broadcast::channel(1024).0;
        let machine = Machine::open(disk.clone(), wakes.clone(), witness)?;
        let log = Log::open(disk.clone(), machine.covered(), runtime.as_ref())?;
        let lines = Lines::new(Some(id), network.clone());
        let config = Config {
            cluster_name: "tenure".into(),
            heartbeat_interval: HEARTBEAT_MS,
            election_timeout_min: SILENCE_MS.0,
            election_timeout_max: SILENCE_MS.1,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(every),
            max_in_snapshot_log_to_keep: ENTRIES_LEFT.min(every / 5),
            // Until it takes part: a term of its own would hide that it has forgotten another.
            enable_elect: false,
            ..Config::default()
        };
        let config = config.validate().map_err(|error| unfit(format!("raft can not be set up: {error}")))?;
        let (is_fit, heard) = (Arc::new(AtomicBool::new(false)), Heard::default());
        let (later, later_votes) = mpsc::unbounded_channel();
        let others = Network::new(lines.clone(), is_fit.clone(), heard.clone(), later);
        let raft = Raft::new(id, Arc::new(config), others, log.clone(), machine.clone())
            .await
            .map_err(|error| unfit(format!("raft can not begin: {error}")))?;
        let place = peers.get(&id).map(|place| listen.unwrap_or_else(|| place.clone()));
        let (given, tasks, time) = (peers.clone(), Mutex::default(), runtime.clone());
        let node = Arc::new(Node {
            id,
            peers: given,
            raft,
            machine,
            log,
            lines,
            runtime,
            is_fit,
            heard,
            wakes,
            tasks,
            disk,
        });
        let me = Arc::downgrade(&node);
        let mut tasks = Vec::new();
        if let Some(place) = place {
            let served = network.serve(&place, Arc::new(Desk(me.clone()))).await;
            let served =
                served.map_err(|error| unfit(format!("node {id} can not listen on {place}: {error}")))?;
            tasks.push(spawn(served));
        }
        tasks.push(spawn(adopt_later_votes(id, node.raft.clone(), later_votes)));
        tasks.push(spawn(report_stop(id, node.raft.clone())));
        tasks.push(spawn(begin(me, time, id, peers)));
        *node.tasks.lock().unwrap_or_else(PoisonError::into_inner) = tasks;
        Ok(node)
    }

    /// A change, made by whoever leads.
    pub(super) async fn change(&self, entry: Entry) -> Result<Outcome, StoreError> {
        self.by_leader(&Question::Lead(Box::new(entry))).await
    }

    /// A look, at what whoever leads has.
    pub(super) async fn look(&self, look: Look) -> Result<Outcome, StoreError> {
        self.by_leader(&Question::See(look)).await
    }

    /// Has whoever leads do it. Who does not lead does nothing, and then the next is asked.
    async fn by_leader(&self, question: &Question) -> Result<Outcome, StoreError> {
        let limit = self.runtime.now() + LEADER_LIMIT;
        loop {
            let (id, place) = self.leader().await?;
            let outcome = match question {
                Question::Lead(entry) if id == self.id => self.lead(entry.as_ref().clone()).await?,
                Question::See(look) if id == self.id => self.see(look).await?,
                _ => self.pass_on(id, &place, question).await?,
            };
            if !outcome.is_not_leading() || self.runtime.now() >= limit {
                return Ok(outcome);
            }
            self.runtime.sleep_until(self.runtime.now() + Duration::from_millis(20)).await;
        }
    }

    pub(super) async fn pass_on(
        &self,
        id: NodeId,
        place: &str,
        question: &Question,
    ) -> Result<Outcome, StoreError> {
        let limit = match question {
            // Its own word comes first.
            Question::Admit(..) | Question::Dismiss(_) | Question::Transfer(_) => {
                MEMBERS_LIMIT + ANSWER_LIMIT
            }
            _ => ANSWER_LIMIT,
        };
        within(self.runtime.as_ref(), limit, self.lines.ask(id, place, question)).await.map_err(|error| {
            StoreError::new(
                Trouble::Unavailable,
                format!("node {id} at {place}, which leads, does not answer: {error}"),
            )
        })
    }

    /// Made here: we lead, or it is refused. That a majority has it is known before this returns; without one, whether it happens is not.
    pub(super) async fn lead(&self, entry: Entry) -> Result<Outcome, StoreError> {
        match self.bounded(self.raft.client_write(entry)).await? {
            Ok(written) => Ok(written.data),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) => Ok(Outcome::not_leading()),
            Err(error) => {
                Err(StoreError::new(Trouble::Unavailable, format!("raft could not write: {error}")))
            }
        }
    }

    /// Looked at here, once a majority has said that we still lead: so nothing that was written before is missing.
    pub(super) async fn see(&self, look: &Look) -> Result<Outcome, StoreError> {
        match self.bounded(self.raft.ensure_linearizable()).await? {
            Ok(_) => Ok(self.machine.look(look)),
            Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(_))) => Ok(Outcome::not_leading()),
            // A later term was the reason that no majority agreed.
            Err(RaftError::APIError(CheckIsLeaderError::QuorumNotEnough(_)))
                if self.raft.metrics().borrow().current_leader != Some(self.id) =>
            {
                Ok(Outcome::not_leading())
            }
            Err(error) => Err(StoreError::new(Trouble::Unavailable, format!("raft could not look: {error}"))),
        }
    }

    /// Who leads, and where; waits a little for somebody to.
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
                    // Who has just come has heard of the leader before it hears who the members are.
                    let told = seen.membership_config.membership().get_node(&leader).map(|node| &node.addr);
                    return Ok((leader, told.or(self.peers.get(&leader)).cloned().unwrap_or_default()));
                }
            }
            tokio::select! {
                biased;
                // An error says that it has stopped.
                _ = metrics.changed() => {}
                () = self.runtime.sleep_until(limit) => return Err(StoreError::new(
                    Trouble::Unavailable,
                    format!("node {} knows no leader: fewer than half of the members can be reached, or they are just electing", self.id),
                )),
            }
        }
    }

    /// Waits until the cluster has a leader: the other members may be on their way.
    pub(super) async fn wait_for_leader(&self) -> Result<(), StoreError> {
        let limit = self.runtime.now() + GATHERING_LIMIT;
        loop {
            match self.leader().await {
                Ok(_) => return Ok(()),
                Err(error) if self.runtime.now() >= limit || self.stopped().is_some() => return Err(error),
                Err(_) => tracing::info!(node = self.id, "waiting for a majority of the members"),
            }
        }
    }

    /// Why this member's Raft has stopped for good, if it has. It applies nothing any more then, and knows nothing of what the others do.
    pub(super) fn stopped(&self) -> Option<StoreError> {
        Stopped::of(&self.raft.metrics()).map(|stopped| self.has_stopped(&stopped))
    }

    /// Completes when [`stopped`](Self::stopped) does.
    pub(super) async fn until_stopped(&self) -> StoreError {
        self.has_stopped(&until_stopped(&self.raft).await)
    }

    fn has_stopped(&self, stopped: &Stopped) -> StoreError {
        let message = match stopped {
            Stopped::ShutDown => format!("the Raft member {} was shut down", self.id),
            Stopped::For(why) => {
                format!("the Raft member {} has stopped and must be restarted: {why}", self.id)
            }
        };
        StoreError::new(Trouble::Unavailable, message)
    }

    /// Waits for a majority, and not for ever.
    async fn bounded<T>(&self, doing: impl Future<Output = T>) -> Result<T, StoreError> {
        tokio::select! {
                    biased;
            done = doing => Ok(done),
            () = self.runtime.sleep_until(self.runtime.now() + ANSWER_LIMIT) => Err(StoreError::new(
                Trouble::Unavailable,
                "no majority of the cluster has answered in time: fewer than half of the members can be reached",
            )),
        }
    }
}

/// Logs it when Raft stops for good, which it does when it cannot read or write what it has to.
async fn report_stop(id: NodeId, raft: Raft) {
    if let Stopped::For(why) = until_stopped(&raft).await {
        tracing::error!(
            node = id,
            "this member has stopped: restart its process; until then it takes no part: {why}"
        );
    }
}

/// Why Raft runs no more.
enum Stopped {
    /// It was shut down.
    ShutDown,
    /// It could not go on.
    For(String),
}

impl Stopped {
    fn of(metrics: &watch::Receiver<Metrics>) -> Option<Stopped> {
        match &metrics.borrow().running_state {
            Err(Fatal::Stopped) => Some(Stopped::ShutDown),
            Err(why) => Some(Stopped::For(why.to_string())),
            // Its core is gone, and could not say why.
            Ok(()) if metrics.has_changed().is_err() => Some(Stopped::For("it panicked".into())),
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
        // An error says that it has stopped.
        let _ = metrics.changed().await;
    }
}

fn unfit(message: String) -> StoreError {
    StoreError::new(Trouble::Unfit, message)
}
