//! Raft: a few processes that agree with each other, and no database.
//!
//! `raft:FOLDER?node=1&peers=1@HOST:PORT,2@HOST:PORT,3@HOST:PORT` is a member, `raft:?peers=…` uses a cluster without being one of it, and
//! `raft:FOLDER` is a cluster of one. Members keep their log in their folder, and speak under the secret in `$TENURE_RAFT_SECRET`, or in the file that
//! `$TENURE_RAFT_SECRET_FILE` names ([`StoreOptions::cluster_secret_file`]; several secrets, one in each line, are for replacing one by another). With
//! `&snapshot=N` they write the state down, and cut the log, after every N entries (5000).
//!
//! What is agreed on is each change of the reference store ([`Book`](tenure_core::book::Book)), in one order (openraft). So a member that has applied the same
//! entries has the same state, and what the reference store promises, the cluster does:
//!
//! - A change counts when a majority has it on disk. A beat is a change: a holder that is cut off from the majority has its beats counted no
//!   more, and stops to trust at two thirds of its lease, before anybody else may take over.
//! - A look is answered by the leader, after a majority has said that it still leads: it shows every change that was told of before.
//! - The *token* of a grant is the index of its entry.
//! - The minority of a netsplit has no leader, grants nothing and answers nothing.
//!
//! A member whose disk is lost, or was put back as it once was, has forgotten what it voted for and what it said that it had, and must not vote again under
//! its number: it waits, and says so. Remove it, and add it under another number.
//!
//! A member whose Raft has stopped (its disk failed, for example) answers nobody any more, and every call on it fails at once.
//! [`Directory::failed`](tenure_core::port::Directory::failed) completes with the reason; the process has to be restarted then.

mod address;
mod answers;
mod begin;
mod disk;
pub mod ground;
mod hosted;
mod journal;
mod log;
mod machine;
mod members;
mod net;
mod node;
mod peer;
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
    Backend, Bureau, Calendar, Desk, Events, Pools, Scheduling, StoreError, Tasks, Trouble, Wake,
};
use tenure_core::{ElectionKey, Token};
use tokio::sync::mpsc;

use self::address::{Address, SECRET_ENV};
use self::disk::Folder;
use self::ground::{Ground, Seat};
pub use self::members::{Member, Status};
use self::net::{Lines, Question};
use self::node::Node;
pub use self::store::PROMISES;
use self::tcp::Tcp;
use self::types::{Change, Entry, Look, NodeId, Outcome, Put};
use super::StoreOptions;
use super::place::is_here;
use crate::open_files;
use crate::runtime::{Runtime, System};
use crate::secrets::{self, Secrets};

/// How long a client waits before it listens again.
const PAUSE: Duration = Duration::from_millis(200);

/// A cluster, as one of its members or as somebody who uses it. Clones share it.
#[derive(Clone)]
pub struct Raft {
    kind: Kind,
    runtime: Arc<dyn Runtime>,
}

#[derive(Clone)]
enum Kind {
    Member(Arc<Node>),
    Client { lines: Lines, peers: Arc<BTreeMap<NodeId, String>>, first: Arc<AtomicUsize> },
}

impl Raft {
    /// Becomes the member that the address names, or finds the cluster.
    pub async fn connect(options: &StoreOptions) -> Result<Raft, StoreError> {
        let address: Address = options.url.parse()?;
        let secrets = Secrets::read(options.cluster_secret_file.as_deref(), SECRET_ENV)?;
        match address {
            Address::Member { folder, node, peers, listen, snapshot } => {
                check_secrets(&secrets, &peers)?;
                // A member that can open no file cannot write its log or its snapshots.
                open_files::raise_limit();
                let disk = Arc::new(Folder::lock(&folder)?);
                let seat = Seat { node, peers, listen, snapshot, disk, witness: None };
                let network = Arc::new(Tcp::new(Some(node), secrets));
                Raft::member(Ground { runtime: Arc::new(System), network }, seat).await
            }
            Address::Client { peers } => {
                check_secrets(&secrets, &peers)?;
                let network = Arc::new(Tcp::new(None, secrets));
                let raft = Raft::client(Ground { runtime: Arc::new(System), network }, peers);
                raft.status().await?;
                Ok(raft)
            }
        }
    }

    /// Becomes a member on a ground of your own.
    pub async fn member(ground: Ground, seat: Seat) -> Result<Raft, StoreError> {
        let runtime = ground.runtime.clone();
        Ok(Raft { kind: Kind::Member(Node::start(ground, seat).await?), runtime })
    }

    /// Uses the cluster of these members, on a ground of your own. Nobody is asked yet.
    pub fn client(ground: Ground, peers: BTreeMap<u64, String>) -> Raft {
        let Ground { runtime, network } = ground;
        let (lines, peers, first) = (Lines::new(None, network), Arc::new(peers), Arc::default());
        Raft { kind: Kind::Client { lines, peers, first }, runtime }
    }

    /// Waits until the cluster has a leader; a minute at most.
    pub async fn gathered(&self) -> Result<(), StoreError> {
        match &self.kind {
            Kind::Member(node) => node.wait_for_leader().await,
            Kind::Client { .. } => Ok(()),
        }
    }

    /// Keeps a small value in the cluster, or forgets it; with a lease, only while it is held under that token.
    pub async fn put(
        &self,
        key: &str,
        value: Option<&str>,
        under: Option<(&ElectionKey, u32, Token)>,
    ) -> Result<(), StoreError> {
        let under = under.map(|(key, slot, token)| (key.clone(), slot, token));
        let (value, once) = (value.map(Into::into), self.runtime.random());
        let put = Put { key: key.into(), value, once, under };
        self.change(Change::Put(put)).await?.read()
    }

    /// A value that is kept.
    pub async fn get(&self, key: &str) -> Result<Option<String>, StoreError> {
        self.look(Look::Get(key.into())).await?.read()
    }

    async fn change(&self, change: Change) -> Result<Outcome, StoreError> {
        let entry = Entry { change, wall_ms: self.runtime.wall_ms() };
        match &self.kind {
            Kind::Member(node) => node.change(entry).await,
            Kind::Client { .. } => self.ask_to(&Question::Change(Box::new(entry))).await,
        }
    }

    async fn look(&self, look: Look) -> Result<Outcome, StoreError> {
        match &self.kind {
            Kind::Member(node) => node.look(look).await,
            Kind::Client { .. } => self.ask_to(&Question::Look(look)).await,
        }
    }

    async fn manage(&self, question: Question) -> Result<(), StoreError> {
        match &self.kind {
            Kind::Member(node) => node.manage(question).await?.read(),
            Kind::Client { .. } => self.ask_to(&question).await?.read(),
        }
    }

    /// What comes of a question. A member that knows no leader, or reaches no majority, is not asked the next time: others may.
    async fn ask_to(&self, question: &Question) -> Result<Outcome, StoreError> {
        let outcome: Outcome = self.ask_any(question).await?;
        if let Kind::Client { first, .. } = &self.kind
            && outcome.is_unavailable()
        {
            first.fetch_add(1, Ordering::Relaxed);
        }
        Ok(outcome)
    }

    /// The answer of the first member that gives one. Every question may be asked twice, as over HTTP: what changes something compares.
    async fn ask_any<T: DeserializeOwned>(&self, question: &Question) -> Result<T, StoreError> {
        let Kind::Client { lines, peers, first } = &self.kind else {
            return Err(StoreError::new(Trouble::Other, "a member asks itself"));
        };
        let mut last = String::new();
        for _ in 0..peers.len() {
            let asked = Asked { first, at: first.load(Ordering::Relaxed) };
            let Some((node, place)) = peers.iter().nth(asked.at % peers.len()) else { break };
            match lines.ask(*node, place, question).await {
                Ok(answer) => {
                    std::mem::forget(asked);
                    return Ok(answer);
                }
                Err(error) => last = format!("node {node} at {place}: {error}"),
            }
        }
        let remedy = "check that the members run, that the addresses are right, and that the secret ($TENURE_RAFT_SECRET, $TENURE_RAFT_SECRET_FILE) is theirs";
        Err(StoreError::new(
            Trouble::Unreachable,
            format!("no member of the cluster answers ({last}); {remedy}"),
        ))
    }
}

/// A question that is under way: unless it is answered, the next one goes to another member, also if it was given up.
struct Asked<'a> {
    first: &'a AtomicUsize,
    at: usize,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let _ = self.first.compare_exchange(
            self.at,
            self.at.wrapping_add(1),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }
}

impl Tasks for Raft {
    fn keeps_work(&self) -> bool {
        false
    }
}

impl Desk for Raft {}
impl Pools for Raft {}
impl Events for Raft {}
impl Bureau for Raft {}
impl Scheduling for Raft {}
impl Calendar for Raft {}

/// Passes on what any member says, until nobody listens.
fn follow(
    lines: Lines,
    peers: Arc<BTreeMap<NodeId, String>>,
    runtime: Arc<dyn Runtime>,
) -> mpsc::Receiver<Wake> {
    let (sender, receiver) = mpsc::channel(256);
    tokio::spawn(async move {
        let listening = async {
            loop {
                for (node, place) in peers.iter() {
                    let Ok(mut said) = lines.listen(*node, place).await else { continue };
                    while let Some(Ok(wake)) = said.next().await {
                        if sender.send(wake).await.is_err() {
                            return;
                        }
                    }
                }
                runtime.sleep_until(runtime.now() + PAUSE).await;
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

/// What is said between machines is sealed under a secret that others do not know.
fn check_secrets(secrets: &Secrets, peers: &BTreeMap<NodeId, String>) -> Result<(), StoreError> {
    match peers.values().find(|place| !is_here(place)) {
        Some(place) if !secrets.are_long_enough() => {
            let message = format!(
                "members speak with {place} only under a secret that others do not know; {}",
                secrets::remedy(SECRET_ENV)
            );
            Err(StoreError::new(Trouble::Denied, message))
        }
        _ => Ok(()),
    }
}

/// For the registry.
pub(super) fn open_url(options: &StoreOptions) -> BoxFuture<'_, Result<Arc<dyn Backend>, StoreError>> {
    Box::pin(async {
        let raft = Raft::connect(options).await?;
        raft.gathered().await?;
        Ok(Arc::new(raft) as Arc<dyn Backend>)
    })
}
