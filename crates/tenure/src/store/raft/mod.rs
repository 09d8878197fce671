//! Raft store: a few processes that replicate the election state among themselves, without a database.
//!
//! `raft:DIRECTORY?node=1&peers=1@HOST:PORT,2@HOST:PORT,3@HOST:PORT` starts a member, `raft:?peers=…` connects to a
//! cluster as a client, and `raft:DIRECTORY` is a cluster of one member. A member keeps its log in its directory.
//! Members encrypt their traffic with the secret in `$TENURE_RAFT_SECRET`, or in the file named by
//! `$TENURE_RAFT_SECRET_FILE` ([`StoreOptions::cluster_secret_file`]). A secret file may list several secrets, one per
//! line, for rotation. A member writes a snapshot and truncates its log every `&snapshot=N` entries (default 5000).
//!
//! The replicated state machine is the reference implementation ([`Elections`](tenure_core::model::Elections)).
//! Openraft orders its writes, so members that applied the same entries have the same state, and the cluster gives the
//! guarantees of the reference implementation:
//!
//! - A write succeeds once a majority has it on disk. A heartbeat is a write: the heartbeats of a leader that cannot
//!   reach the majority fail, and it stops trusting its lease at two thirds of the lease duration, before another
//!   session may take over.
//! - The Raft leader answers a read after a majority confirms that it still leads. A read therefore shows every write
//!   that was acknowledged before it.
//! - The *token* of a grant is the log index of its entry.
//! - The minority side of a network split has no Raft leader. It grants no lease and answers no read.
//!
//! A member that lost its disk, or whose disk was restored from a backup, has forgotten its votes and its
//! acknowledgements. It must not vote again under its node id, so it stays passive and logs an error. Remove it and add
//! it under a new node id.
//!
//! A member whose Raft core has stopped (for example because its disk failed) answers no requests, and every call on it
//! fails at once. [`ElectionAdmin::failed`](tenure_core::port::ElectionAdmin::failed) completes with the reason.
//! Restart the process to recover.

mod address;
mod disk;
pub mod env;
mod journal;
mod log;
mod members;
mod node;
mod peer;
mod protocol;
mod request_handler;
mod sim_runtime;
mod startup;
mod state_machine;
mod store;
mod tcp;
mod types;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_core::future::BoxFuture;
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use tenure_core::port::{
    ErrorKind, EventAdmin, EventStore, Notification, PoolStore, ScheduleAdmin, ScheduleStore, Store,
    StoreError, TaskAdmin, TaskStore,
};
use tenure_core::{ElectionKey, Token};
use tokio::sync::mpsc;

use self::address::{Address, SECRET_ENV};
use self::disk::DataDirectory;
use self::env::{Env, MemberConfig};
use self::node::Node;
use self::protocol::{RaftClient, RaftRequest};
pub use self::store::GUARANTEES;
use self::tcp::Tcp;
use self::types::{NodeId, PutValue, RaftRead, RaftResponse, RaftWrite, TimedWrite};
use super::StoreOptions;
use super::host_port::is_here;
use crate::open_files;
use crate::runtime::{Runtime, SystemRuntime};
use crate::secrets::{self, Secrets};
pub use tenure_core::port::{RaftMember, RaftStatus};

/// Delay before a client reopens its notification stream.
const RECONNECT_DELAY: Duration = Duration::from_millis(200);

/// A Raft cluster, used as a member or as a client. Clones share the connection.
#[derive(Clone)]
pub struct RaftStore {
    role: RaftRole,
    runtime: Arc<dyn Runtime>,
}

#[derive(Clone)]
enum RaftRole {
    Member(Arc<Node>),
    Client { client: RaftClient, peers: Arc<BTreeMap<NodeId, String>>, first: Arc<AtomicUsize> },
}

impl RaftStore {
    /// Start the member that the URL names, or connect to the cluster as a client.
    pub async fn connect(options: &StoreOptions) -> Result<RaftStore, StoreError> {
        let address: Address = options.url.parse()?;
        let secrets = Secrets::read(options.cluster_secret_file.as_deref(), SECRET_ENV)?;
        match address {
            Address::Member { directory, node, peers, listen, snapshot } => {
                check_secrets(&secrets, &peers)?;
                // A member that cannot open files cannot write its log or its snapshots.
                open_files::raise_limit();
                let disk = Arc::new(DataDirectory::lock(&directory)?);
                let config = MemberConfig { node, peers, listen, snapshot, disk, observer: None };
                let network = Arc::new(Tcp::new(Some(node), secrets));
                RaftStore::member(Env { runtime: Arc::new(SystemRuntime), network }, config).await
            }
            Address::Client { peers } => {
                check_secrets(&secrets, &peers)?;
                let network = Arc::new(Tcp::new(None, secrets));
                let raft = RaftStore::client(Env { runtime: Arc::new(SystemRuntime), network }, peers);
                raft.status().await?;
                Ok(raft)
            }
        }
    }

    /// Start a member in the given environment.
    pub async fn member(env: Env, config: MemberConfig) -> Result<RaftStore, StoreError> {
        let runtime = env.runtime.clone();
        Ok(RaftStore { role: RaftRole::Member(Node::start(env, config).await?), runtime })
    }

    /// Create a client of the given members in the given environment. Sends no request yet.
    pub fn client(env: Env, peers: BTreeMap<u64, String>) -> RaftStore {
        let Env { runtime, network } = env;
        let (client, peers, first) = (RaftClient::new(None, network), Arc::new(peers), Arc::default());
        RaftStore { role: RaftRole::Client { client, peers, first }, runtime }
    }

    /// Wait until the cluster has a leader, for at most one minute. A client returns at once.
    pub async fn wait_for_leader(&self) -> Result<(), StoreError> {
        match &self.role {
            RaftRole::Member(node) => node.wait_for_leader().await,
            RaftRole::Client { .. } => Ok(()),
        }
    }

    /// Store or delete a small value. With a lease, the write succeeds only while that lease is held under that token.
    pub async fn put(
        &self,
        key: &str,
        value: Option<&str>,
        lease: Option<(&ElectionKey, u32, Token)>,
    ) -> Result<(), StoreError> {
        let lease = lease.map(|(key, slot, token)| (key.clone(), slot, token));
        let (value, write_id) = (value.map(Into::into), self.runtime.random());
        let put = PutValue { key: key.into(), value, write_id, lease };
        self.execute_write(RaftWrite::Put(put)).await?.read()
    }

    /// Return a stored value.
    pub async fn get(&self, key: &str) -> Result<Option<String>, StoreError> {
        self.execute_read(RaftRead::Get(key.into())).await?.read()
    }

    async fn execute_write(&self, change: RaftWrite) -> Result<RaftResponse, StoreError> {
        let entry = TimedWrite { change, wall_ms: self.runtime.wall_ms() };
        match &self.role {
            RaftRole::Member(node) => node.write(entry).await,
            RaftRole::Client { .. } => self.send(&RaftRequest::Write(Box::new(entry))).await,
        }
    }

    async fn execute_read(&self, read: RaftRead) -> Result<RaftResponse, StoreError> {
        match &self.role {
            RaftRole::Member(node) => node.read(read).await,
            RaftRole::Client { .. } => self.send(&RaftRequest::Read(read)).await,
        }
    }

    async fn manage(&self, request: RaftRequest) -> Result<(), StoreError> {
        match &self.role {
            RaftRole::Member(node) => node.manage(request).await?.read(),
            RaftRole::Client { .. } => self.send(&request).await?.read(),
        }
    }

    /// Send a request to any member. If the member reports that it knows no leader or reaches no majority, the next
    /// request goes to another member.
    async fn send(&self, request: &RaftRequest) -> Result<RaftResponse, StoreError> {
        let outcome: RaftResponse = self.send_to_any(request).await?;
        if let RaftRole::Client { first, .. } = &self.role
            && outcome.is_unavailable()
        {
            first.fetch_add(1, Ordering::Relaxed);
        }
        Ok(outcome)
    }

    /// Return the reply of the first member that answers. A request may arrive twice: every write compares before it
    /// changes state.
    async fn send_to_any<T: DeserializeOwned>(&self, request: &RaftRequest) -> Result<T, StoreError> {
        let RaftRole::Client { client, peers, first } = &self.role else {
            return Err(StoreError::new(
                ErrorKind::Other,
                "a Raft member cannot send a client request to itself",
            ));
        };
        let mut last = String::new();
        for _ in 0..peers.len() {
            let failover = FailoverGuard { first, at: first.load(Ordering::Relaxed) };
            let Some((node, address)) = peers.iter().nth(failover.at % peers.len()) else { break };
            match client.call(*node, address, request).await {
                Ok(answer) => {
                    std::mem::forget(failover);
                    return Ok(answer);
                }
                Err(error) => last = format!("node {node} at {address}: {error}"),
            }
        }
        let remedy = "check that the members run, that the addresses are correct, and that the secret ($TENURE_RAFT_SECRET, $TENURE_RAFT_SECRET_FILE) matches";
        Err(StoreError::new(ErrorKind::Unreachable, format!("no Raft member answers ({last}); {remedy}")))
    }
}

/// A request in progress. Unless it is answered, the next request goes to another member, also if this one was
/// cancelled.
struct FailoverGuard<'a> {
    first: &'a AtomicUsize,
    at: usize,
}

impl Drop for FailoverGuard<'_> {
    fn drop(&mut self) {
        let _ = self.first.compare_exchange(
            self.at,
            self.at.wrapping_add(1),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }
}

impl TaskStore for RaftStore {
    fn supports_work(&self) -> bool {
        false
    }
}

impl TaskAdmin for RaftStore {}
impl PoolStore for RaftStore {}
impl EventStore for RaftStore {}
impl EventAdmin for RaftStore {}
impl ScheduleStore for RaftStore {}
impl ScheduleAdmin for RaftStore {}

/// Forward the notifications of any reachable member until the receiver is dropped.
fn follow(
    client: RaftClient,
    peers: Arc<BTreeMap<NodeId, String>>,
    runtime: Arc<dyn Runtime>,
) -> mpsc::Receiver<Notification> {
    let (sender, receiver) = mpsc::channel(256);
    tokio::spawn(async move {
        let listening = async {
            loop {
                for (node, address) in peers.iter() {
                    let Ok(mut messages) = client.listen(*node, address).await else { continue };
                    while let Some(Ok(notification)) = messages.next().await {
                        if sender.send(notification).await.is_err() {
                            return;
                        }
                    }
                }
                runtime.sleep_until(runtime.now() + RECONNECT_DELAY).await;
            }
        };
        tokio::select! {
            biased;
            () = sender.closed() => {}
            () = listening => {}
        }
    });
    receiver
}

/// Require a secret of sufficient length if any member is on another machine.
fn check_secrets(secrets: &Secrets, peers: &BTreeMap<NodeId, String>) -> Result<(), StoreError> {
    match peers.values().find(|address| !is_here(address)) {
        Some(address) if !secrets.are_long_enough() => {
            let message = format!(
                "the connection to the Raft member at {address} needs a secret; {}",
                secrets::remedy(SECRET_ENV)
            );
            Err(StoreError::new(ErrorKind::Denied, message))
        }
        _ => Ok(()),
    }
}

/// Open the store for the registry.
pub(super) fn open_url(options: &StoreOptions) -> BoxFuture<'_, Result<Arc<dyn Store>, StoreError>> {
    Box::pin(async {
        let raft = RaftStore::connect(options).await?;
        raft.wait_for_leader().await?;
        Ok(Arc::new(raft) as Arc<dyn Store>)
    })
}
