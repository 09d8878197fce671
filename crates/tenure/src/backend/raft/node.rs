//! A member: it keeps the log, votes, and answers who asks.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use openraft::error::{CheckIsLeaderError, ClientWriteError, RaftError};
use openraft::{BasicNode, ChangeMembers, Config, SnapshotPolicy};
use tenure_core::port::{StoreError, Trouble, Wake};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;

use super::log::Log;
use super::machine::Machine;
use super::net::{GREETING_LIMIT, Greeting, Line, Lines, Question, within};
use super::peer::{Heard, Network};
use super::types::{Change, Entry, Folder, Look, NodeId, Outcome, Raft};
use crate::runtime;

/// How often a leader is heard of, and how long it may be silent: between the two numbers.
const HEARTBEAT_MS: u64 = 100;
const SILENCE_MS: (u64, u64) = (500, 1_000);

/// How long who asks waits for somebody to lead.
const LEADER_LIMIT: Duration = Duration::from_secs(3);

/// How long the leader, or a majority, may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// How long a member that starts waits for the others.
const GATHERING_LIMIT: Duration = Duration::from_secs(60);

/// How long a change of the members may take: a new one learns everything first.
const MEMBERS_LIMIT: Duration = Duration::from_secs(60);

/// How long a member that starts waits for the greeting of another.
const STAND_LIMIT: Duration = Duration::from_secs(1);

/// How long another member may take to lead.
const TRANSFER_LIMIT: Duration = Duration::from_secs(15);

/// After how many entries the state is written down and the log cut.
const SNAPSHOT_EVERY: u64 = 5_000;

/// How many entries are left for members that are a little behind.
const ENTRIES_LEFT: u64 = 1_000;

/// How a member starts.
pub(super) struct Start {
    pub(super) folder: PathBuf,
    pub(super) id: NodeId,
    pub(super) peers: BTreeMap<NodeId, String>,
    pub(super) listen: Option<String>,
    pub(super) snapshot: Option<u64>,
    pub(super) secret: Vec<u8>,
}

/// A member.
pub(super) struct Node {
    id: NodeId,
    /// The members as they were given.
    peers: BTreeMap<NodeId, String>,
    raft: Raft,
    machine: Machine,
    log: Log,
    lines: Lines,
    /// Whether it takes part: it remembers all that it promised, as far as the others know.
    is_fit: Arc<AtomicBool>,
    /// What the others have said that they have.
    heard: Heard,
    pub(super) wakes: broadcast::Sender<Wake>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    /// Held for as long as the process uses the folder.
    lock: Option<File>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner).iter().for_each(JoinHandle::abort);
        let (raft, lock) = (self.raft.clone(), self.lock.take());
        if let Ok(handle) = tokio::runtime::Handle::try_current() {
            // The folder is ours until nothing is written to it any more.
            handle.spawn(async move {
                let _ = raft.shutdown().await;
                drop(lock);
            });
        }
    }
}

impl Node {
    /// Starts the member of a folder; alone if it has no peers.
    pub(super) async fn start(start: Start) -> Result<Arc<Node>, StoreError> {
        let Start { folder, id, peers, listen, snapshot, secret } = start;
        let (folder, every) = (folder.as_path(), snapshot.unwrap_or(SNAPSHOT_EVERY));
        let lock = lock(folder)?;
        let wakes = broadcast::channel(1024).0;
        let log = Log::open(Some(folder))?;
        let machine = Machine::open(Some(folder), wakes.clone())?;
        let lines = Lines::new(Some(id), &secret);
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
        let network = Network::new(lines.clone(), is_fit.clone(), heard.clone());
        let raft = Raft::new(id, Arc::new(config), network, log.clone(), machine.clone())
            .await
            .map_err(|error| unfit(format!("raft can not begin: {error}")))?;
        let bound = match peers.get(&id) {
            Some(place) => {
                let place = listen.as_deref().unwrap_or(place);
                let bound = TcpListener::bind(place).await;
                Some(bound.map_err(|error| unfit(format!("node {id} can not listen on {place}: {error}")))?)
            }
            None => None,
        };
        let (lock, given, tasks) = (Some(lock), peers.clone(), Mutex::default());
        let node =
            Arc::new(Node { id, peers: given, raft, machine, log, lines, is_fit, heard, wakes, tasks, lock });
        let me = Arc::downgrade(&node);
        let mut tasks = vec![tokio::spawn(begin(me.clone(), id, peers.clone()))];
        tasks.extend(bound.map(|listener| tokio::spawn(serve(me, listener, secret.into()))));
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
        let limit = runtime::now() + LEADER_LIMIT;
        loop {
            let (id, place) = self.leader().await?;
            let outcome = match question {
                Question::Lead(entry) if id == self.id => self.lead(entry.as_ref().clone()).await?,
                Question::See(look) if id == self.id => self.see(look).await?,
                _ => self.pass_on(id, &place, question).await?,
            };
            if !outcome.is_not_leading() || runtime::now() >= limit {
                return Ok(outcome);
            }
            runtime::sleep_until(runtime::now() + Duration::from_millis(20)).await;
        }
    }

    async fn pass_on(&self, id: NodeId, place: &str, question: &Question) -> Result<Outcome, StoreError> {
        let limit = match question {
            Question::Admit(..) | Question::Dismiss(_) | Question::Transfer(_) => MEMBERS_LIMIT,
            _ => ANSWER_LIMIT,
        };
        within(limit, self.lines.ask(id, place, question)).await.map_err(|error| {
            StoreError::new(
                Trouble::Unavailable,
                format!("node {id} at {place}, which leads, does not answer: {error}"),
            )
        })
    }

    /// Made here: we lead, or it is refused. That a majority has it is known before this returns; without one, whether it happens is not.
    async fn lead(&self, entry: Entry) -> Result<Outcome, StoreError> {
        match bounded(self.raft.client_write(entry)).await? {
            Ok(written) => Ok(written.data),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) => Ok(Outcome::not_leading()),
            Err(error) => {
                Err(StoreError::new(Trouble::Unavailable, format!("raft could not write: {error}")))
            }
        }
    }

    /// Looked at here, once a majority has said that we still lead: so nothing that was written before is missing.
    async fn see(&self, look: &Look) -> Result<Outcome, StoreError> {
        match bounded(self.raft.ensure_linearizable()).await? {
            Ok(_) => Ok(self.machine.look(look)),
            Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(_))) => Ok(Outcome::not_leading()),
            Err(error) => Err(StoreError::new(Trouble::Unavailable, format!("raft could not look: {error}"))),
        }
    }

    /// Who leads, and where; waits a little for somebody to.
    async fn leader(&self) -> Result<(NodeId, String), StoreError> {
        let mut metrics = self.raft.metrics();
        let limit = runtime::now() + LEADER_LIMIT;
        loop {
            {
                let seen = metrics.borrow_and_update();
                if let Some(leader) = seen.current_leader {
                    // Who has just come has heard of the leader before it hears who the members are.
                    let told = seen.membership_config.membership().get_node(&leader).map(|node| &node.addr);
                    return Ok((leader, told.or(self.peers.get(&leader)).cloned().unwrap_or_default()));
                }
            }
            tokio::select! {
                changed = metrics.changed() => if changed.is_err() { return Err(StoreError::new(Trouble::Unavailable, "raft has ended")) },
                () = runtime::sleep_until(limit) => return Err(StoreError::new(
                    Trouble::Unavailable,
                    format!("node {} knows no leader: fewer than half of the members can be reached, or they are just electing", self.id),
                )),
            }
        }
    }

    /// Waits until the cluster has a leader: the other members may be on their way.
    pub(super) async fn wait_for_leader(&self) -> Result<(), StoreError> {
        let limit = runtime::now() + GATHERING_LIMIT;
        loop {
            match self.leader().await {
                Ok(_) => return Ok(()),
                Err(error) if runtime::now() >= limit => return Err(error),
                Err(_) => tracing::info!(node = self.id, "waiting for a majority of the members"),
            }
        }
    }

    /// Who leads, and who the members are.
    pub(super) fn status(&self) -> Status {
        let metrics = self.raft.metrics().borrow().clone();
        let membership = metrics.membership_config.membership();
        let voters: Vec<NodeId> = membership.voter_ids().collect();
        let members = membership.nodes().map(|(id, node)| Member {
            node: *id,
            place: node.addr.clone(),
            votes: voters.contains(id),
            behind: metrics.replication.as_ref().and_then(|all| all.get(id)).map(|seen| {
                metrics.last_log_index.unwrap_or(0).saturating_sub(seen.map_or(0, |seen| seen.index))
            }),
        });
        Status {
            node: self.id,
            leader: metrics.current_leader,
            term: metrics.current_term,
            index: metrics.last_log_index.unwrap_or(0),
            members: members.collect(),
        }
    }

    /// Takes a member in: it learns first, and votes when it has caught up.
    async fn admit(&self, id: NodeId, place: &str) -> Result<(), StoreError> {
        let failed = |error: String| {
            StoreError::new(Trouble::Unavailable, format!("node {id} could not be taken in: {error}"))
        };
        self.raft
            .add_learner(id, BasicNode::new(place), true)
            .await
            .map_err(|error| failed(error.to_string()))?;
        let voters = ChangeMembers::AddVoterIds([id].into());
        self.raft.change_membership(voters, true).await.map_err(|error| failed(error.to_string()))?;
        Ok(())
    }

    /// Lets a member go.
    async fn dismiss(&self, id: NodeId) -> Result<(), StoreError> {
        let failed = |error: String| {
            StoreError::new(Trouble::Unavailable, format!("node {id} could not be let go: {error}"))
        };
        let voters = ChangeMembers::RemoveVoters([id].into());
        self.raft.change_membership(voters, false).await.map_err(|error| failed(error.to_string()))?;
        Ok(())
    }

    /// Has another member stand, again and again until it leads: the others vote for nobody while they have just heard of a leader, and hear
    /// of none once it stands.
    async fn transfer(&self, id: NodeId) -> Result<(), StoreError> {
        let status = self.status();
        let member = status.members.iter().find(|member| member.node == id && member.votes);
        let Some(place) = member.map(|member| member.place.clone()) else {
            let voters =
                status.members.iter().filter(|member| member.votes).map(|member| member.node.to_string());
            let voters = voters.collect::<Vec<_>>().join(", ");
            return Err(StoreError::new(
                Trouble::Request,
                format!("node {id} is no member that votes; choose among {voters}"),
            ));
        };
        let limit = runtime::now() + TRANSFER_LIMIT;
        let mut metrics = self.raft.metrics();
        while metrics.borrow_and_update().current_leader != Some(id) {
            if runtime::now() >= limit {
                return Err(StoreError::new(
                    Trouble::Request,
                    format!(
                        "node {id} was not elected within {TRANSFER_LIMIT:?}: it can not be reached, or is behind; try again"
                    ),
                ));
            }
            if id != self.id {
                let _: io::Result<Outcome> =
                    within(ANSWER_LIMIT, self.lines.ask(id, &place, &Question::Elect)).await;
            }
            tokio::select! {
                _ = metrics.changed() => {}
                () = runtime::sleep_until(runtime::now() + Duration::from_millis(SILENCE_MS.0 / 2)) => {}
            }
        }
        Ok(())
    }

    /// Has the leader do something about the members; if that is us, we do.
    pub(super) async fn manage(&self, question: Question) -> Result<Outcome, StoreError> {
        let (leader, place) = self.leader().await?;
        if leader != self.id {
            return self.pass_on(leader, &place, &question).await;
        }
        let done = match question {
            Question::Admit(id, place) => self.admit(id, &place).await,
            Question::Dismiss(id) => self.dismiss(id).await,
            Question::Transfer(id) => self.transfer(id).await,
            _ => Err(StoreError::new(Trouble::Request, "that is nothing to do about members")),
        };
        done.map(|()| Outcome::nothing())
    }

    async fn elect(&self) -> Outcome {
        if !self.is_fit.load(Ordering::Acquire) {
            let message = format!("node {} takes no part yet", self.id);
            return Outcome::refused(StoreError::new(Trouble::Unavailable, message));
        }
        match self.raft.trigger().elect().await {
            Ok(()) => Outcome::nothing(),
            Err(error) => Outcome::refused(StoreError::new(Trouble::Unavailable, error.to_string())),
        }
    }
}

/// How a cluster stands, as one of its members sees it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Status {
    /// Who says so.
    pub node: u64,
    /// Who leads.
    pub leader: Option<u64>,
    /// In which term.
    pub term: u64,
    /// The index of the last entry.
    pub index: u64,
    /// All members.
    pub members: Vec<Member>,
}

/// A member of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Member {
    /// Its number.
    pub node: u64,
    /// Where it is.
    pub place: String,
    /// Whether it votes; if not, it learns.
    pub votes: bool,
    /// How many entries it is behind, if the leader says so.
    pub behind: Option<u64>,
}

/// Waits for a majority, and not for ever.
async fn bounded<T>(doing: impl Future<Output = T>) -> Result<T, StoreError> {
    tokio::select! {
        done = doing => Ok(done),
        () = runtime::sleep_until(runtime::now() + ANSWER_LIMIT) => Err(StoreError::new(
            Trouble::Unavailable,
            "no majority of the cluster has answered in time: fewer than half of the members can be reached",
        )),
    }
}

fn unfit(message: String) -> StoreError {
    StoreError::new(Trouble::Unfit, message)
}

/// Makes a folder ours: two members with one log would be two that vote as one.
fn lock(folder: &Path) -> Result<File, StoreError> {
    let failed = |error: io::Error| unfit(format!("{} can not be used: {error}", folder.display()));
    std::fs::create_dir_all(folder).map_err(failed)?;
    let file = File::create(folder.join("lock")).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(_) => Err(unfit(format!(
            "another process is the member in {}; use the cluster through it: --store raft:?peers=… or http://…",
            folder.display()
        ))),
    }
}

/// Takes part, once that is safe, and says so to all.
///
/// A member whose folder is empty although it had another one has lost its disk, and one whose folder was put back as it once was has lost the last of
/// it: what it voted for, and what it said it had, is forgotten, so it must not take part under its number again. That is known from the others: each
/// member registers its folder, and how often it was started in it, in the state that is agreed on; and who leads knows what it was told.
/// A copy of the very run that ended last is found out only if somebody who led it meanwhile is still running.
async fn begin(me: Weak<Node>, id: NodeId, peers: BTreeMap<NodeId, String>) {
    let mut warned = false;
    loop {
        let Some(node) = me.upgrade() else { return };
        if node.is_fit.load(Ordering::Acquire) {
            break;
        }
        match node.stand(&peers).await {
            Stand::Takes => node.take_part(),
            Stand::Begins => {
                node.take_part();
                node.found(&peers).await;
            }
            Stand::Waits => {}
            Stand::Lost if warned => {}
            Stand::Lost => {
                // For good: those who know may be gone the next time.
                warned = node.log.forgot().await.is_ok();
                tracing::error!(
                    node = id,
                    "this member has another folder than it had, or an old copy of it, and has forgotten what it promised: it takes no part \
                     any more. Have it removed from the cluster, and added under another number"
                );
            }
        }
        drop(node);
        runtime::sleep_until(runtime::now() + Duration::from_millis(100)).await;
    }
    loop {
        let Some(node) = me.upgrade() else { return };
        let folder = Folder { made: node.log.folder(), started: node.log.started() };
        if node.machine.folder_of(id).is_some_and(|known| known.made != folder.made || known == folder) {
            return;
        }
        let change = Change::Register(id, folder);
        // Nobody leads yet, or we are not taken in yet: later, then.
        let _ = node.change(Entry { change, wall_ms: runtime::wall_ms() }).await;
        drop(node);
        runtime::sleep_until(runtime::now() + Duration::from_millis(200)).await;
    }
}

/// Whether a member takes part.
enum Stand {
    /// It remembers all that it promised; or it is new, and its cluster is there, or another one begins it.
    Takes,
    /// It begins the cluster: a majority of those who are to be its members has never promised anything, and nobody else has.
    Begins,
    /// Nobody knows yet.
    Waits,
    /// It has forgotten something.
    Lost,
}

impl Node {
    fn take_part(&self) {
        self.is_fit.store(true, Ordering::Release);
        self.raft.runtime_config().elect(true);
    }

    async fn stand(&self, peers: &BTreeMap<NodeId, String>) -> Stand {
        let is_new = self.log.is_pristine();
        // Who has been one of them knows better than its address who they are by now.
        let voters = if is_new { BTreeMap::new() } else { self.voters() };
        let peers = if voters.is_empty() { peers } else { &voters };
        let others = peers.iter().filter(|(other, _)| **other != self.id);
        let greetings = others.map(|(other, place)| within(STAND_LIMIT, self.lines.open(*other, place)));
        let greetings = futures_util::future::join_all(greetings).await;
        let heard: Vec<Greeting> = greetings.into_iter().filter_map(|heard| Some(heard.ok()?.1)).collect();
        // One may be behind the others, so a majority is asked.
        match (heard.len() + 1) * 2 > peers.len() {
            _ if self.log.has_forgotten() || heard.iter().any(|greeting| self.has_forgotten(greeting)) => {
                Stand::Lost
            }
            false => Stand::Waits,
            true if !is_new || heard.iter().any(|greeting| !greeting.pristine) => Stand::Takes,
            // One of them begins, so that they do not stand against each other.
            true if heard.iter().any(|greeting| greeting.node < self.id) => Stand::Takes,
            true => Stand::Begins,
        }
    }

    /// The members that vote, as far as this one knows.
    fn voters(&self) -> BTreeMap<NodeId, String> {
        let members = self.status().members.into_iter().filter(|member| member.votes);
        members.map(|member| (member.node, member.place)).collect()
    }

    /// Whether another one knows more of this member than it does itself.
    fn has_forgotten(&self, greeting: &Greeting) -> bool {
        let (made, started) = (self.log.folder(), self.log.started());
        let of_folder =
            greeting.your_folder.as_ref().is_some_and(|it| it.made != made || it.started >= started);
        // In a later term it may have been told to cut its log, in the same one never.
        let (term, index) = self.log.reach();
        let has = (term, index.max(self.machine.applied()));
        of_folder
            || greeting.your_log.is_some_and(|heard| heard.0 > has.0 || (heard.0 == has.0 && heard.1 > has.1))
    }

    async fn found(&self, peers: &BTreeMap<NodeId, String>) {
        let members: BTreeMap<NodeId, BasicNode> = match peers.is_empty() {
            true => [(self.id, BasicNode::default())].into(),
            false => peers.iter().map(|(id, place)| (*id, BasicNode::new(place))).collect(),
        };
        match self.raft.initialize(members).await {
            Ok(()) => tracing::info!(node = self.id, "a cluster of {} begins", peers.len().max(1)),
            // Another one was quicker.
            Err(error) => tracing::debug!("not begun here: {error}"),
        }
    }
}

/// Answers who connects.
async fn serve(me: Weak<Node>, listener: TcpListener, secret: Arc<[u8]>) {
    // Who is still connected when the member ends is told by the end of this.
    let (_over, ended) = watch::channel(());
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let (me, secret, mut ended) = (me.clone(), secret.clone(), ended.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        _ = ended.changed() => {}
                        done = answer_all(me, stream, &secret) => if let Err(error) = done {
                            tracing::debug!(%from, "raft: a connection broke: {error}");
                        },
                    }
                });
            }
            Err(error) => {
                tracing::warn!("raft: can not accept: {error}");
                runtime::sleep_until(runtime::now() + Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer_all(me: Weak<Node>, stream: TcpStream, secret: &[u8]) -> io::Result<()> {
    let mut line = Line::from(stream, secret).await?;
    let mut greeted = false;
    loop {
        let heard = if greeted { line.hear().await } else { within(GREETING_LIMIT, line.hear()).await };
        let Some(question) = heard? else { return Ok(()) };
        greeted = true;
        let Some(node) = me.upgrade() else { return Ok(()) };
        match question {
            Question::Hello(_, who) => {
                let your_folder = who.and_then(|who| node.machine.folder_of(who));
                let your_log = who.and_then(|who| node.heard.of(who));
                let pristine = node.log.is_pristine();
                line.say(&Greeting { node: node.id, pristine, your_folder, your_log }).await?;
            }
            // Who takes no part promises nothing: to the others it is not there.
            Question::Append(_) | Question::Vote(_) | Question::Snapshot(_)
                if !node.is_fit.load(Ordering::Acquire) =>
            {
                return Ok(());
            }
            Question::Append(ask) => line.say(&node.raft.append_entries(*ask).await).await?,
            Question::Vote(ask) => line.say(&node.raft.vote(ask).await).await?,
            Question::Snapshot(ask) => line.say(&node.raft.install_snapshot(*ask).await).await?,
            Question::Change(entry) => line.say(&told(node.change(*entry).await)).await?,
            Question::Look(look) => line.say(&told(node.look(look).await)).await?,
            Question::Lead(entry) => line.say(&told(node.lead(*entry).await)).await?,
            Question::See(look) => line.say(&told(node.see(&look).await)).await?,
            Question::Status => line.say(&node.status()).await?,
            Question::Elect => line.say(&node.elect().await).await?,
            manage @ (Question::Admit(..) | Question::Dismiss(_) | Question::Transfer(_)) => {
                line.say(&told(node.manage(manage).await)).await?
            }
            Question::Wakes => {
                let mut wakes = node.wakes.subscribe();
                drop(node);
                line.say(&Wake::Resync).await?;
                loop {
                    let wake = match wakes.recv().await {
                        Ok(wake) => wake,
                        Err(broadcast::error::RecvError::Lagged(_)) => Wake::Resync,
                        Err(broadcast::error::RecvError::Closed) => return Ok(()),
                    };
                    line.say(&wake).await?;
                }
            }
        }
    }
}

fn told(outcome: Result<Outcome, StoreError>) -> Outcome {
    outcome.unwrap_or_else(Outcome::refused)
}
