//! What members, and those who use them, say to each other.
//!
//! One question, one answer. The first thing that is asked names the member that is meant, so that a place that now belongs to another is not mistaken for it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_core::stream::BoxStream;
use futures_util::StreamExt;
use openraft::raft::{AppendEntriesRequest, InstallSnapshotRequest, VoteRequest};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tenure_core::port::Wake;
use tokio::sync::Semaphore;

use super::ground::Network;
use super::types::{Entry, Folder, Look, NodeId, Types};
use crate::runtime::Runtime;

/// A question.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Question {
    /// Are you the first of these? And what do you know of the second, who asks, if that is a member?
    Hello(NodeId, Option<NodeId>),
    Append(Box<AppendEntriesRequest<Types>>),
    Vote(VoteRequest<NodeId>),
    Snapshot(Box<InstallSnapshotRequest<Types>>),
    /// A change; whoever is asked passes it on to the leader.
    Change(Box<Entry>),
    /// Likewise a look.
    Look(Look),
    /// A change to be made by who is asked: it leads, or refuses.
    Lead(Box<Entry>),
    /// Likewise a look.
    See(Look),
    /// Hints, from now on and without end.
    Wakes,
    /// Who leads, and who the members are.
    Status,
    /// To be done by the leader: takes a member in, or lets one go.
    Admit(NodeId, String),
    Dismiss(NodeId),
    /// To be done by the leader: has another member lead.
    Transfer(NodeId),
    /// Stand for election now.
    Elect,
}

/// What a member says to a greeting.
#[derive(Serialize, Deserialize)]
pub(super) struct Greeting {
    /// Who it is.
    pub(super) node: NodeId,
    /// Whether it never promised anything.
    pub(super) pristine: bool,
    /// The folder of who asks, as far as it has heard.
    pub(super) your_folder: Option<Folder>,
    /// In which term who asks last said to it, while it ran, that it has the log, and up to which index.
    pub(super) your_log: Option<(u64, u64)>,
}

impl Greeting {
    /// Whether it is who was meant.
    pub(super) fn check(&self, node: NodeId, place: &str) -> io::Result<()> {
        match self.node == node {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{place} is node {} and not {node}", self.node),
            )),
        }
    }
}

/// How many changes and looks this process asks of others at once: each has a connection, and who is asked limits those of one address. More wait here.
const FORWARDED_MAX: usize = 64;

/// The way to members.
#[derive(Clone)]
pub(super) struct Lines {
    me: Option<NodeId>,
    network: Arc<dyn Network>,
    forwarded: Arc<Semaphore>,
}

impl Lines {
    pub(super) fn new(me: Option<NodeId>, network: Arc<dyn Network>) -> Lines {
        Lines { me, network, forwarded: Arc::new(Semaphore::new(FORWARDED_MAX)) }
    }

    /// What a member says to a greeting.
    pub(super) async fn greet(&self, node: NodeId, place: &str) -> io::Result<Greeting> {
        let greeting: Greeting = self.ask(node, place, &Question::Hello(node, self.me)).await?;
        greeting.check(node, place).map(|()| greeting)
    }

    /// One question.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        node: NodeId,
        place: &str,
        question: &Question,
    ) -> io::Result<T> {
        // Raft's own questions, and those about members, never wait.
        let _turn = match question {
            Question::Change(_) | Question::Look(_) | Question::Lead(_) | Question::See(_) => {
                Some(self.forwarded.acquire().await)
            }
            _ => None,
        };
        let answer = self.network.ask(node, place, serde_json::to_vec(question)?).await?;
        serde_json::from_slice(&answer).map_err(io::Error::other)
    }

    /// The hints of a member.
    pub(super) async fn listen(
        &self,
        node: NodeId,
        place: &str,
    ) -> io::Result<BoxStream<'static, io::Result<Wake>>> {
        let said = self.network.listen(node, place, serde_json::to_vec(&Question::Wakes)?).await?;
        Ok(said.map(|wake| serde_json::from_slice(&wake?).map_err(io::Error::other)).boxed())
    }
}

/// Does something, and not for ever.
pub(super) async fn within<T>(
    runtime: &dyn Runtime,
    limit: Duration,
    doing: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    tokio::select! {
        biased;
        done = doing => done,
        () = runtime.sleep_until(runtime.now() + limit) => Err(io::ErrorKind::TimedOut.into()),
    }
}
