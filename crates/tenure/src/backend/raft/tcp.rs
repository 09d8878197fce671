//! Members on the machines' own network.
//!
//! A connection is sealed under the secret of the cluster ([`crate::seal`]): who does not know it can neither read nor say anything. One question, one
//! answer, in turn; who wants more at once has more connections. Connections are limited ([`crate::admission`]): those that have not authenticated yet
//! have a small pool of their own.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_core::future::BoxFuture;
use futures_core::stream::BoxStream;
use futures_util::StreamExt;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::ground::{Answers, Network, Said};
use super::net::{Greeting, Question, within};
use super::types::NodeId;
use crate::admission::{Admission, Admitted, ConnectionLimits};
use crate::open_files;
use crate::runtime::{self, System};
use crate::seal::{self, Seal, Seals};
use crate::secrets::Secrets;

/// The longest message.
const MESSAGE_MAX: usize = 64 << 20;

/// The longest first message, of somebody who has not authenticated yet.
const HELLO_MAX: usize = 4 << 10;

/// How long a connection stays open on which nothing is asked. Who asks on one that was closed opens another.
const IDLE_LIMIT: Duration = Duration::from_secs(600);

/// How long to wait before accepting again, when the system has no room for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a member may take to accept a connection and to greet.
const GREETING_LIMIT: Duration = Duration::from_secs(2);

/// How many connections to one member are kept for the next question.
const IDLE_MAX: usize = 8;

/// One end of a connection.
struct Line {
    read: BufReader<OwnedReadHalf>,
    write: OwnedWriteHalf,
    ours: Seal,
    theirs: Seal,
}

impl Line {
    /// To a member.
    async fn to(place: &str, secret: &[u8]) -> io::Result<Line> {
        let opening = async {
            let mut stream = TcpStream::connect(place).await?;
            stream.set_nodelay(true)?;
            let ours = seal::draw(runtime::random);
            let theirs = seal::exchange(&mut stream, &ours).await?;
            let Seals { from_asker, from_leader } = Seals::derive(secret, &ours, &theirs)?;
            Ok(Line::of(stream, from_asker, from_leader))
        };
        within(&System, GREETING_LIMIT, opening).await
    }

    /// From somebody, and the first thing that it says: that shows that it knows a secret of the cluster.
    async fn accept(mut stream: TcpStream, secrets: &Secrets) -> io::Result<(Line, Vec<u8>)> {
        stream.set_nodelay(true)?;
        let ours = seal::draw(runtime::random);
        let theirs = seal::exchange(&mut stream, &ours).await?;
        let candidates = secrets.accepted().map(|secret| Seals::derive(secret, &theirs, &ours));
        let candidates = candidates.collect::<io::Result<Vec<Seals>>>()?;
        let (hello, seals) = seal::open_first(&mut stream, candidates, HELLO_MAX).await?;
        Ok((Line::of(stream, seals.from_leader, seals.from_asker), hello))
    }

    fn of(stream: TcpStream, ours: Seal, theirs: Seal) -> Line {
        let (read, write) = stream.into_split();
        Line { read: BufReader::with_capacity(64 << 10, read), write, ours, theirs }
    }

    async fn say(&mut self, message: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::new();
        seal::seal(&mut self.ours, message, &mut bytes)?;
        self.write.write_all(&bytes).await
    }

    /// `None` at the end.
    async fn hear(&mut self) -> io::Result<Option<Vec<u8>>> {
        seal::open(&mut self.read, &mut self.theirs, MESSAGE_MAX).await
    }

    async fn ask(&mut self, question: &[u8]) -> io::Result<Vec<u8>> {
        self.say(question).await?;
        self.hear().await?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// Connections to members, and from them.
pub(super) struct Tcp {
    me: Option<NodeId>,
    secrets: Secrets,
    idle: Mutex<HashMap<String, Vec<Line>>>,
}

impl Tcp {
    pub(super) fn new(me: Option<NodeId>, secrets: Secrets) -> Tcp {
        Tcp { me, secrets, idle: Mutex::default() }
    }

    /// A new connection to a member, greeted.
    async fn open(&self, node: NodeId, place: &str) -> io::Result<Line> {
        let hello = serde_json::to_vec(&Question::Hello(node, self.me))?;
        let greeting = async {
            let mut line = Line::to(place, self.secrets.sent()).await?;
            let greeting = line.ask(&hello).await?;
            Ok((line, greeting))
        };
        let (line, greeting) = within(&System, GREETING_LIMIT * 2, greeting).await?;
        let greeting: Greeting = serde_json::from_slice(&greeting).map_err(io::Error::other)?;
        greeting.check(node, place).map(|()| line)
    }

    fn keep(&self, place: &str, line: Line) {
        let mut idle = self.locked();
        let kept = idle.entry(place.to_owned()).or_default();
        if kept.len() < IDLE_MAX {
            kept.push(line);
        }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<String, Vec<Line>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Network for Tcp {
    /// A connection that was kept and is broken by now is not blamed on the member: it is asked again on a new one.
    async fn ask(&self, node: NodeId, place: &str, question: Vec<u8>) -> io::Result<Vec<u8>> {
        let kept = self.locked().get_mut(place).and_then(Vec::pop);
        if let Some(mut line) = kept {
            if let Ok(answer) = line.ask(&question).await {
                self.keep(place, line);
                return Ok(answer);
            }
            // Those that were kept with it are likely as broken.
            self.locked().remove(place);
        }
        let mut line = self.open(node, place).await?;
        let answer = line.ask(&question).await?;
        self.keep(place, line);
        Ok(answer)
    }

    async fn listen(
        &self,
        node: NodeId,
        place: &str,
        question: Vec<u8>,
    ) -> io::Result<BoxStream<'static, io::Result<Vec<u8>>>> {
        let mut line = self.open(node, place).await?;
        line.say(&question).await?;
        let said = futures_util::stream::unfold(line, async |mut line| {
            let heard = line.hear().await.transpose()?;
            Some((heard, line))
        });
        Ok(said.boxed())
    }

    async fn serve(&self, place: &str, answers: Arc<dyn Answers>) -> io::Result<BoxFuture<'static, ()>> {
        let listener = TcpListener::bind(place).await?;
        Ok(Box::pin(serve(listener, answers, self.secrets.clone())))
    }
}

/// Answers who connects.
async fn serve(listener: TcpListener, answers: Arc<dyn Answers>, secrets: Secrets) {
    let limits = ConnectionLimits::for_open_files(open_files::limit());
    let admission = Admission::new("raft", limits, Arc::new(System));
    // Who is still connected when the member ends is told by the end of this.
    let (_over, ended) = watch::channel(());
    let mut is_exhausted = false;
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, most likely: others must be closed first.
                if !std::mem::replace(&mut is_exhausted, true) {
                    tracing::warn!("raft: cannot accept a connection, and goes on trying: {error}");
                }
                runtime::sleep_until(runtime::now() + ACCEPT_PAUSE).await;
                continue;
            }
        };
        is_exhausted = false;
        let mut admitted = admission.admit(from.ip()).await;
        let (answers, secrets, mut ended) = (answers.clone(), secrets.clone(), ended.clone());
        tokio::spawn(async move {
            tokio::select! {
                _ = ended.changed() => {}
                done = answer_all(answers.as_ref(), stream, &secrets, &mut admitted) => if let Err(error) = done {
                    tracing::debug!(%from, "raft: a connection ended: {error}");
                },
            }
        });
    }
}

async fn answer_all(
    answers: &dyn Answers,
    stream: TcpStream,
    secrets: &Secrets,
    admitted: &mut Admitted,
) -> io::Result<()> {
    let (mut line, hello) = admitted.handshake(GREETING_LIMIT, Line::accept(stream, secrets)).await?;
    let mut next = Some(hello);
    while let Some(question) = next {
        match answers.answer(question).await {
            Said::Once(answer) => line.say(&answer).await?,
            Said::Often(mut said) => {
                while let Some(word) = said.next().await {
                    line.say(&word).await?;
                }
                return Ok(());
            }
            Said::Nothing => return Ok(()),
        }
        next = within(&System, IDLE_LIMIT, line.hear()).await?;
    }
    Ok(())
}
