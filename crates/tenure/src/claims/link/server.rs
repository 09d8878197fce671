//! The leader's end.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::Token;
use tenure_core::port::{ClaimedTask, StoreError, Trouble};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

use super::draw;
use super::message::{ANSWER_ABOUT, Answer, Op, REQUEST_MAX, Reply, Request};
use crate::admission::{Admission, Admitted, ConnectionLimits};
use crate::claims::hub::{Hub, locked};
use crate::claims::line::{Asker, Lane, Line, Outcome};
use crate::open_files;
use crate::seal::{self, Seal, Seals};

/// The most requests of one connection that wait.
const REQUESTS_AT_ONCE: usize = 4_096;

/// How long an asker may take to show that it knows the secret.
const HANDSHAKE_MAX: Duration = Duration::from_secs(2);

/// How long writing an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long an asker may be silent. It pings much more often.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// How long connections stay after the term, so that whoever waits is told that it is over, and nothing breaks off half said.
const FAREWELL: Duration = Duration::from_secs(1);

/// How many bytes of answers go out at once, about: what is behind them has not been sent, and can be taken back.
const WRITE_ABOUT: usize = 1 << 20;

/// How many bytes of them have to move within [`PATIENCE`].
const PIECE: usize = 64 << 10;

/// The longest first word, of somebody who has not shown yet that it may be there.
const HELLO_MAX: usize = 4 << 10;

/// The longest wait of one request; askers ask again.
const WAIT_MAX: Duration = Duration::from_secs(3_600);

/// Serves whoever knows the secret. Dropped, nobody new is let in, and a little later every connection is closed. What was not
/// sent by then goes back.
pub(crate) async fn serve(hub: Arc<Hub>, listener: TcpListener, secret: [u8; 32], token: Token) {
    let limits = ConnectionLimits::for_open_files(open_files::limit());
    let admission = Admission::new("broker", limits, hub.runtime.clone());
    let (_term, over) = watch::channel(());
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, most likely: others must end first.
                tracing::warn!("claims: can not accept a connection: {error}");
                hub.pause(Duration::from_millis(100)).await;
                continue;
            }
        };
        let mut admitted = admission.admit(from.ip()).await;
        let (ours, over) = (hub.clone(), over.clone());
        hub.handle.spawn(async move {
            if let Err(error) = connection(ours, stream, secret, token, over, &mut admitted).await {
                tracing::debug!("claims: a connection ended: {error}");
            }
        });
    }
}

/// The stream of an asker that has shown that it knows the secret, and the seals for it.
struct Authenticated {
    read: BufReader<OwnedReadHalf>,
    write: OwnedWriteHalf,
    from_asker: Seal,
    from_leader: Seal,
    name: String,
}

/// First their word, then ours: who does not know the secret learns nothing, not even that we do.
async fn authenticate(hub: &Hub, mut stream: TcpStream, secret: &[u8; 32]) -> io::Result<Authenticated> {
    stream.set_nodelay(true)?;
    let ours = draw(hub.runtime.as_ref());
    let theirs = seal::exchange(&mut stream, &ours).await?;
    let Seals { mut from_asker, from_leader } = Seals::derive(secret, &theirs, &ours)?;
    let (read, write) = stream.into_split();
    let mut read = BufReader::with_capacity(64 << 10, read);
    match request(&mut read, &mut from_asker, HELLO_MAX).await? {
        Some(Request { op: Op::Hello { name }, .. }) => {
            Ok(Authenticated { read, write, from_asker, from_leader, name })
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "no hello")),
    }
}

async fn connection(
    hub: Arc<Hub>,
    stream: TcpStream,
    secret: [u8; 32],
    token: Token,
    over: watch::Receiver<()>,
    admitted: &mut Admitted,
) -> io::Result<()> {
    let handshake = admitted.handshake(HANDSHAKE_MAX, authenticate(&hub, stream, &secret));
    let Authenticated { read, mut write, from_asker, mut from_leader, name } = handshake.await?;
    let mut bytes = Vec::new();
    put(&mut from_leader, &Reply { id: 0, answer: Answer::Hello { token } }, &mut bytes)?;
    within(&hub, PATIENCE, write.write_all(&bytes)).await?;
    tracing::debug!(asker = name, "claims: an asker is connected");

    let (outgoing, answers) = mpsc::unbounded_channel();
    let desk = Arc::new(Waiting::default());
    let reading = read_requests(&hub, read, from_asker, &desk, outgoing);
    let writing = write_answers(&hub, write, from_leader, &desk, answers);
    let ended = tokio::select! {
        ended = reading => ended,
        ended = writing => ended,
        () = farewell(&hub, over) => Ok(()),
    };
    desk.all_gone();
    ended
}

/// Completes a little after the term: nobody sends anything there, it ends with its sender.
async fn farewell(hub: &Hub, mut over: watch::Receiver<()>) {
    while over.changed().await.is_ok() {}
    hub.pause(FAREWELL).await;
}

/// Requests of one connection that wait.
#[derive(Default)]
struct Waiting {
    requests: Mutex<HashMap<u64, Place>>,
}

struct Place {
    gone: Arc<AtomicBool>,
    line: Option<Arc<Line>>,
}

impl Place {
    /// The line that it was in, if any.
    fn leave(self) -> Option<Arc<Line>> {
        self.gone.store(true, Ordering::Release);
        self.line.inspect(|line| line.somebody_left())
    }
}

impl Waiting {
    /// A place for a request; `None` if there are too many, or one of that number.
    fn add(&self, id: u64, line: Option<Arc<Line>>) -> Option<Arc<AtomicBool>> {
        let mut requests = locked(&self.requests);
        if requests.len() >= REQUESTS_AT_ONCE || requests.contains_key(&id) {
            return None;
        }
        let gone = Arc::new(AtomicBool::new(false));
        requests.insert(id, Place { gone: gone.clone(), line });
        Some(gone)
    }

    fn done(&self, id: u64) {
        locked(&self.requests).remove(&id);
    }

    /// Calls a request off. Returns the line that it was in, if any.
    fn cancel(&self, id: u64) -> Option<Arc<Line>> {
        let place = locked(&self.requests).remove(&id);
        place.and_then(Place::leave)
    }

    fn all_gone(&self) {
        let places = std::mem::take(&mut *locked(&self.requests));
        places.into_values().for_each(|place| drop(place.leave()));
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.all_gone();
    }
}

/// Somebody at the other end who waits for a claim.
pub(crate) struct Remote {
    id: u64,
    gone: Arc<AtomicBool>,
    outgoing: mpsc::UnboundedSender<(u64, Word)>,
}

/// What is to be said: the tasks are ours to give back until they may have been sent.
enum Word {
    Claimed(Outcome),
    Other(Answer),
}

impl Remote {
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire) || self.outgoing.is_closed()
    }

    pub(crate) fn answer(self, outcome: Outcome) {
        // Tasks are sent to who has cancelled as well: it gives them back itself, and can wait for that. A connection that is gone drops
        // them, and they go back from here.
        if matches!(outcome, Outcome::Tasks(_)) || !self.is_gone() {
            let _ = self.outgoing.send((self.id, Word::Claimed(outcome)));
        }
    }
}

async fn read_requests(
    hub: &Arc<Hub>,
    mut read: BufReader<OwnedReadHalf>,
    mut seal: Seal,
    waiting: &Arc<Waiting>,
    outgoing: mpsc::UnboundedSender<(u64, Word)>,
) -> io::Result<()> {
    while let Some(Request { id, op }) =
        within(hub, SILENCE_MAX, request(&mut read, &mut seal, REQUEST_MAX)).await?
    {
        let say = |word| drop(outgoing.send((id, word)));
        match op {
            Op::Hello { .. } | Op::Ping => say(Word::Other(Answer::Pong)),
            Op::Cancel => {
                let (line, outgoing) = (waiting.cancel(id), outgoing.clone());
                tokio::spawn(async move {
                    if let Some(line) = line {
                        // What such a look finds for it is sent before the look is over.
                        line.looks_over().await;
                    }
                    let _ = outgoing.send((id, Word::Other(Answer::Cancelled)));
                });
            }
            Op::Claim { queue, seat, wait_ms } => {
                let line = hub.line(&queue, Lane::Leader);
                let Some(gone) = waiting.add(id, Some(line.clone())) else {
                    say(Word::Other(busy()));
                    continue;
                };
                let wait = Duration::from_millis(wait_ms).min(WAIT_MAX);
                let remote = Remote { id, gone, outgoing: outgoing.clone() };
                tracing::debug!(%queue, worker = seat.worker.name, "processing claim as leader");
                line.join(hub, seat, hub.runtime.now() + wait, Asker::There(remote));
            }
            Op::Match { pool } => {
                let Some(gone) = waiting.add(id, None) else {
                    say(Word::Other(busy()));
                    continue;
                };
                let (hub, outgoing) = (hub.clone(), outgoing.clone());
                tokio::spawn(async move {
                    let answer = match hub.match_here(&pool).await {
                        Ok(Ok(())) => Answer::Matched,
                        Ok(Err(refusal)) => Answer::Refused(refusal),
                        Err(error) => error.into(),
                    };
                    if !gone.load(Ordering::Acquire) {
                        let _ = outgoing.send((id, Word::Other(answer)));
                    }
                });
            }
        }
    }
    Ok(())
}

fn busy() -> Answer {
    let message =
        format!("the leader has {REQUESTS_AT_ONCE} requests of this process already; ask again later");
    StoreError::new(Trouble::Unavailable, message).into()
}

async fn write_answers(
    hub: &Hub,
    mut write: OwnedWriteHalf,
    mut seal: Seal,
    waiting: &Waiting,
    mut answers: mpsc::UnboundedReceiver<(u64, Word)>,
) -> io::Result<()> {
    let (mut words, mut bytes) = (Vec::new(), Vec::new());
    while answers.recv_many(&mut words, 64).await > 0 {
        let mut words = words.drain(..).peekable();
        while words.peek().is_some() {
            bytes.clear();
            while bytes.len() < WRITE_ABOUT
                && let Some((id, word)) = words.next()
            {
                write_word(hub, &mut seal, id, &word, &mut bytes)?;
                waiting.done(id);
                // From here on it may be read, and worked on, whatever becomes of the connection: it is not ours to give back any
                // more. The asker does, if it finds that the store holds it and nobody there knows of it. What is behind it was
                // not sent; if this breaks off, it is dropped, and goes back.
                if let Word::Claimed(Outcome::Tasks(handed)) = word {
                    drop(handed.take());
                }
            }
            // Patience with each piece: what is large may take long, as long as it moves.
            for piece in bytes.chunks(PIECE) {
                within(hub, PATIENCE, write.write_all(piece)).await?;
            }
        }
        bytes.shrink_to(1 << 20);
    }
    Ok(())
}

fn write_word(hub: &Hub, seal: &mut Seal, id: u64, word: &Word, to: &mut Vec<u8>) -> io::Result<()> {
    let handed = match word {
        Word::Claimed(Outcome::Tasks(handed)) => handed,
        Word::Claimed(Outcome::Refused(refusal)) => {
            return put(seal, &Reply { id, answer: Answer::Refused(refusal.clone()) }, to);
        }
        Word::Claimed(Outcome::Failed(error)) => {
            return put(seal, &Reply { id, answer: error.clone().into() }, to);
        }
        Word::Other(answer) => return put(seal, &Borrowed { id, answer }, to),
    };
    let (mut rest, namespace) = (handed.tasks(), handed.namespace().clone());
    let age_us = u64::try_from(hub.runtime.now().since(handed.since()).as_micros()).unwrap_or(u64::MAX);
    loop {
        let (now, later) = rest.split_at(about(rest));
        let (namespace, tasks) = (namespace.clone(), now.to_vec());
        rest = later;
        if rest.is_empty() {
            return put(seal, &Reply { id, answer: Answer::Tasks { namespace, tasks, age_us } }, to);
        }
        put(seal, &Reply { id, answer: Answer::Part { namespace, tasks, age_us } }, to)?;
    }
}

#[derive(serde::Serialize)]
struct Borrowed<'a> {
    id: u64,
    answer: &'a Answer,
}

/// How many tasks make about one message.
fn about(tasks: &[ClaimedTask]) -> usize {
    let mut bytes = 0;
    let fits = tasks.iter().take_while(|task| {
        bytes += task.payload.as_str().len()
            + task.inputs.values().map(|input| input.as_str().len()).sum::<usize>();
        bytes <= ANSWER_ABOUT
    });
    fits.count().max(1).min(tasks.len())
}

fn put(seal: &mut Seal, message: &impl serde::Serialize, to: &mut Vec<u8>) -> io::Result<()> {
    seal::seal(seal, &serde_json::to_vec(message)?, to)
}

async fn request(
    read: &mut BufReader<OwnedReadHalf>,
    seal: &mut Seal,
    most: usize,
) -> io::Result<Option<Request>> {
    match seal::open(read, seal, most).await? {
        Some(message) => Ok(Some(serde_json::from_slice(&message)?)),
        None => Ok(None),
    }
}

/// Something that has to end by then.
pub(super) async fn within<T>(
    hub: &Hub,
    limit: Duration,
    what: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    tokio::select! {
        biased;
        result = what => result,
        () = hub.runtime.sleep_until(hub.runtime.now() + limit) => Err(io::ErrorKind::TimedOut.into()),
    }
}
