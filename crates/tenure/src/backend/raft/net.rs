//! How members, and those who use them, speak with each other.
//!
//! A connection is sealed under the secret of the cluster ([`crate::seal`]): who does not know it can neither read nor say anything. One question, one
//! answer, in turn; who wants more at once has more connections. The first thing that is said names the member that is meant, so that a place that
//! now belongs to another is not mistaken for it.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openraft::raft::{AppendEntriesRequest, InstallSnapshotRequest, VoteRequest};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::types::{Entry, Folder, Look, NodeId, Types};
use crate::runtime;
use crate::seal::{self, Seal, Seals};

/// The longest message.
pub(super) const MESSAGE_MAX: usize = 64 << 20;

/// How long a member may take to accept a connection and to greet.
pub(super) const GREETING_LIMIT: Duration = Duration::from_secs(2);

/// How many connections to one member are kept for the next question.
const IDLE_MAX: usize = 8;

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

/// One end of a connection.
pub(super) struct Line {
    read: BufReader<OwnedReadHalf>,
    write: OwnedWriteHalf,
    ours: Seal,
    theirs: Seal,
}

impl Line {
    /// To a member.
    pub(super) async fn to(place: &str, secret: &[u8]) -> io::Result<Line> {
        let opening = async {
            let mut stream = TcpStream::connect(place).await?;
            stream.set_nodelay(true)?;
            let ours = seal::draw(runtime::random);
            let theirs = seal::exchange(&mut stream, &ours).await?;
            let Seals { from_asker, from_leader } = Seals::derive(secret, &ours, &theirs)?;
            Ok(Line::of(stream, from_asker, from_leader))
        };
        within(GREETING_LIMIT, opening).await
    }

    /// From somebody.
    pub(super) async fn from(mut stream: TcpStream, secret: &[u8]) -> io::Result<Line> {
        stream.set_nodelay(true)?;
        let ours = seal::draw(runtime::random);
        let theirs = within(GREETING_LIMIT, seal::exchange(&mut stream, &ours)).await?;
        let Seals { from_asker, from_leader } = Seals::derive(secret, &theirs, &ours)?;
        Ok(Line::of(stream, from_leader, from_asker))
    }

    fn of(stream: TcpStream, ours: Seal, theirs: Seal) -> Line {
        let (read, write) = stream.into_split();
        Line { read: BufReader::with_capacity(64 << 10, read), write, ours, theirs }
    }

    pub(super) async fn say(&mut self, message: &impl Serialize) -> io::Result<()> {
        let mut bytes = Vec::new();
        seal::seal(&mut self.ours, &serde_json::to_vec(message)?, &mut bytes)?;
        self.write.write_all(&bytes).await
    }

    /// `None` at the end.
    pub(super) async fn hear<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let heard = seal::open(&mut self.read, &mut self.theirs, MESSAGE_MAX).await?;
        heard.map(|bytes| serde_json::from_slice(&bytes).map_err(io::Error::other)).transpose()
    }

    pub(super) async fn ask<T: DeserializeOwned>(&mut self, question: &Question) -> io::Result<T> {
        self.say(question).await?;
        self.hear().await?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// Connections to members.
#[derive(Clone)]
pub(super) struct Lines {
    me: Option<NodeId>,
    secret: Arc<[u8]>,
    idle: Arc<Mutex<HashMap<String, Vec<Line>>>>,
}

impl Lines {
    pub(super) fn new(me: Option<NodeId>, secret: &[u8]) -> Lines {
        Lines { me, secret: secret.into(), idle: Arc::default() }
    }

    /// A new connection to a member, greeted.
    pub(super) async fn open(&self, node: NodeId, place: &str) -> io::Result<(Line, Greeting)> {
        let greeting = async {
            let mut line = Line::to(place, &self.secret).await?;
            let greeting: Greeting = line.ask(&Question::Hello(node, self.me)).await?;
            Ok((line, greeting))
        };
        let (line, greeting) = within(GREETING_LIMIT * 2, greeting).await?;
        if greeting.node != node {
            let told = format!("{place} is node {} and not {node}", greeting.node);
            return Err(io::Error::new(io::ErrorKind::InvalidData, told));
        }
        Ok((line, greeting))
    }

    /// One question. A connection that was kept and is broken by now is not blamed on the member: it is asked again on a new one.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        node: NodeId,
        place: &str,
        question: &Question,
    ) -> io::Result<T> {
        let kept = self.locked().get_mut(place).and_then(Vec::pop);
        if let Some(mut line) = kept {
            if let Ok(answer) = line.ask(question).await {
                self.keep(place, line);
                return Ok(answer);
            }
            // Those that were kept with it are likely as broken.
            self.locked().remove(place);
        }
        let (mut line, _) = self.open(node, place).await?;
        let answer = line.ask(question).await?;
        self.keep(place, line);
        Ok(answer)
    }

    fn keep(&self, place: &str, line: Line) {
        let mut idle = self.locked();
        let kept = idle.entry(place.to_owned()).or_default();
        if kept.len() < IDLE_MAX {
            kept.push(line);
        }
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, HashMap<String, Vec<Line>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) async fn within<T>(
    limit: Duration,
    doing: impl std::future::Future<Output = io::Result<T>>,
) -> io::Result<T> {
    tokio::select! {
        done = doing => done,
        () = runtime::sleep_until(runtime::now() + limit) => Err(io::ErrorKind::TimedOut.into()),
    }
}
