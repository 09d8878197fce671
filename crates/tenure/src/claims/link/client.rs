//! The asker's end.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::port::{ClaimRefusal, PoolKey, Post, QueueKey, Seat, StoreError};
use tenure_core::{Moment, Name};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, mpsc, oneshot};

use super::draw;
use super::message::{ANSWER_MAX, Answer, Op, Reply, Request};
use super::server::within;
use crate::claims::holdings::Handed;
use crate::claims::hub::{Hub, locked};
use crate::seal::{self, Seal, Seals};

/// How long the leader may take to accept, and to greet.
const GREETING_MAX: Duration = Duration::from_secs(2);

/// For how long nobody tries again after it was in vain, unless there is a hint that the leader is another.
const RESPITE: Duration = Duration::from_millis(50);

/// The connection of this process to the leader, if there is one.
#[derive(Default)]
pub(crate) struct Client {
    current: Mutex<Option<Arc<Connection>>>,
    /// Held while one looks for the leader; the others wait for what it finds.
    seeking: tokio::sync::Mutex<Respite>,
    called_off: Arc<CalledOff>,
}

/// Claims that nobody here waits for any more, and of which the leader has not said yet that nothing comes of them. On all connections.
#[derive(Default)]
struct CalledOff {
    open: Mutex<BTreeSet<u64>>,
    next: AtomicU64,
    one_is_over: Notify,
}

impl CalledOff {
    fn add(self: &Arc<Self>) -> OneCalledOff {
        let mut open = locked(&self.open);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        open.insert(number);
        OneCalledOff { all: self.clone(), number }
    }

    /// Waits until those that are open now are over.
    async fn are_over(&self) {
        let next = self.next.load(Ordering::Relaxed);
        loop {
            let over = self.one_is_over.notified();
            tokio::pin!(over);
            over.as_mut().enable();
            if locked(&self.open).first().is_none_or(|first| *first >= next) {
                return;
            }
            over.await;
        }
    }
}

/// One of them. Over when dropped: the leader has said so, or the connection is gone.
struct OneCalledOff {
    all: Arc<CalledOff>,
    number: u64,
}

impl Drop for OneCalledOff {
    fn drop(&mut self) {
        locked(&self.all.open).remove(&self.number);
        self.all.one_is_over.notify_waiters();
    }
}

/// What came of the last tries.
#[derive(Default)]
struct Respite {
    /// Until when it is not worth another.
    until: Option<Moment>,
    /// How often in a row the leader did not answer.
    in_vain: u32,
}

/// How often in a row, before it is worth a warning: a leader that has just left does not answer either.
const IN_VAIN_MAX: u32 = 5;

/// What the leader says.
pub(crate) enum Told {
    Tasks(Handed),
    Refused(ClaimRefusal),
    Matched,
    Failed(StoreError),
    /// The connection broke. What became of the request is not known.
    Lost,
}

impl Client {
    /// The leader, if it can be reached.
    pub(crate) async fn leader(&self, hub: &Arc<Hub>) -> Option<Arc<Connection>> {
        if let Some(connection) = self.open() {
            return Some(connection);
        }
        let mut respite = self.seeking.lock().await;
        if let Some(connection) = self.open() {
            return Some(connection);
        }
        if respite.until.is_some_and(|until| hub.runtime.now() < until) {
            return None;
        }
        let found = seek(hub, &mut respite.in_vain).await;
        respite.until = found.is_none().then(|| hub.runtime.now() + RESPITE);
        *locked(&self.current) = found.clone();
        found
    }

    fn open(&self) -> Option<Arc<Connection>> {
        let mut current = locked(&self.current);
        if current.as_ref().is_some_and(|connection| connection.outgoing.is_closed()) {
            *current = None;
        }
        current.clone()
    }

    /// Waits until the leader has said of every claim that was called off here that nothing comes of it any more: what it had handed out for them
    /// is on its way back then.
    pub(crate) async fn called_off_are_over(&self) {
        self.called_off.are_over().await;
    }

    /// Whoever is at the other end leads no longer, as it says itself.
    pub(crate) fn leave(&self, connection: &Arc<Connection>) {
        let mut current = locked(&self.current);
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            *current = None;
        }
    }
}

async fn seek(hub: &Arc<Hub>, in_vain: &mut u32) -> Option<Arc<Connection>> {
    let post = match hub.bounded(hub.store.post()).await {
        Ok(post) => post?,
        Err(error) => {
            tracing::debug!("claims: can not ask where the leader is: {error}");
            return None;
        }
    };
    if Some(&post.session) == hub.session().as_ref() {
        // Ours, from before we lost it, or before we know that we lead.
        return None;
    }
    match connect(hub, &post).await {
        Ok(connection) => {
            *in_vain = 0;
            tracing::debug!(leader = post.address, "claims: connected to the leader");
            Some(connection)
        }
        Err(error) => {
            *in_vain += 1;
            tracing::debug!(leader = post.address, "claims: the leader does not answer: {error}");
            if *in_vain == IN_VAIN_MAX {
                tracing::warn!(
                    leader = post.address,
                    "claims: the leader does not answer: {error}; set $TENURE_BROKER_ADVERTISE where it runs to an \
                 address that is reached from here"
                );
            }
            None
        }
    }
}

async fn connect(hub: &Arc<Hub>, post: &Post) -> io::Result<Arc<Connection>> {
    let mut stream = within(hub, GREETING_MAX, TcpStream::connect(&post.address)).await?;
    stream.set_nodelay(true)?;
    let ours = draw(hub.runtime.as_ref());
    let theirs = within(hub, GREETING_MAX, seal::exchange(&mut stream, &ours)).await?;
    let Seals { mut from_asker, mut from_leader } = Seals::derive(&post.secret, &ours, &theirs)?;
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::with_capacity(64 << 10, read);
    let mut bytes = Vec::new();
    put(&mut from_asker, &Request { id: 0, op: Op::Hello { name: hub.name.clone() } }, &mut bytes)?;
    within(hub, GREETING_MAX, write.write_all(&bytes)).await?;
    let hello = within(hub, GREETING_MAX, seal::open(&mut read, &mut from_leader, ANSWER_MAX)).await?;
    let hello: Reply = serde_json::from_slice(&hello.ok_or(io::ErrorKind::UnexpectedEof)?)?;
    if !matches!(hello.answer, Answer::Hello { token } if token == post.token) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it leads under another token"));
    }
    let (outgoing, requests) = mpsc::unbounded_channel();
    let connection = Arc::new(Connection {
        hub: Arc::downgrade(hub),
        next: AtomicU64::new(1),
        pending: Mutex::default(),
        called_off: Mutex::new(Some(HashMap::new())),
        all_called_off: hub.link.called_off.clone(),
        namespaces: Mutex::default(),
        outgoing,
    });
    let (hub, ours) = (hub.clone(), connection.clone());
    hub.handle.clone().spawn(async move {
        let ended = tokio::select! {
            ended = hear(&hub, &ours, read, from_leader) => ended,
            ended = speak(&hub, write, from_asker, requests) => ended,
            () = hub.closed() => Ok(()),
        };
        if let Err(error) = ended {
            tracing::debug!("claims: the connection to the leader broke: {error}");
        }
        // Whoever waits learns that it is over. With the requests' receiver gone, nobody asks through it any more.
        locked(&ours.pending).clear();
        // Nothing comes of those that were called off either: what the leader has not sent goes back from there.
        drop(locked(&ours.called_off).take());
        // What was on its way is lost, also for those who had called it off and do not wait any more.
        let namespaces = std::mem::take(&mut *locked(&ours.namespaces));
        namespaces.iter().for_each(|namespace| hub.doubt(namespace));
    });
    Ok(connection)
}

/// A connection to the leader.
pub(crate) struct Connection {
    hub: std::sync::Weak<Hub>,
    next: AtomicU64,
    pending: Mutex<HashMap<u64, Pending>>,
    /// Claims that were called off; `None` once the connection is gone.
    called_off: Mutex<Option<HashMap<u64, OneCalledOff>>>,
    all_called_off: Arc<CalledOff>,
    /// From which tasks were asked for.
    namespaces: Mutex<BTreeSet<Name>>,
    outgoing: mpsc::UnboundedSender<Request>,
}

struct Pending {
    reply: oneshot::Sender<Told>,
    parts: Vec<Handed>,
}

impl Connection {
    /// Asks for tasks. The leader waits; dropped, the request is called off.
    pub(crate) async fn claim(&self, queue: &QueueKey, seat: Seat, wait: Duration) -> Told {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        locked(&self.namespaces).insert(queue.namespace.clone());
        self.ask(Op::Claim { queue: queue.clone(), seat, wait_ms }).await
    }

    /// Asks the leader to hand out what is free of a pool.
    pub(crate) async fn match_pool(&self, pool: &PoolKey) -> Told {
        self.ask(Op::Match { pool: pool.clone() }).await
    }

    async fn ask(&self, op: Op) -> Told {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (reply, told) = oneshot::channel();
        locked(&self.pending).insert(id, Pending { reply, parts: Vec::new() });
        let asked = Asked { connection: self, id };
        if self.outgoing.send(Request { id, op }).is_err() {
            return Told::Lost;
        }
        let told = told.await.unwrap_or(Told::Lost);
        drop(asked);
        told
    }

    /// An answer. Tasks for somebody who left go back by being dropped.
    fn answered(&self, id: u64, answer: Answer) {
        let Some(hub) = self.hub.upgrade() else { return };
        let now = hub.runtime.now();
        let handed = |namespace: &Name, tasks, age_us| {
            Handed::new(&hub, namespace, tasks, now - Duration::from_micros(age_us))
        };
        let told = match answer {
            Answer::Part { namespace, tasks, age_us } => {
                let part = handed(&namespace, tasks, age_us);
                if let Some(pending) = locked(&self.pending).get_mut(&id) {
                    pending.parts.push(part);
                }
                return;
            }
            Answer::Tasks { namespace, tasks, age_us } => {
                let parts =
                    locked(&self.pending).get_mut(&id).map(|pending| std::mem::take(&mut pending.parts));
                let last = handed(&namespace, tasks, age_us);
                Told::Tasks(
                    parts.unwrap_or_default().into_iter().rev().fold(last, |rest, part| part.and(rest)),
                )
            }
            Answer::Refused(refusal) => Told::Refused(refusal),
            Answer::Matched => Told::Matched,
            Answer::Error { kind, message } => Told::Failed(StoreError::new(kind, message)),
            Answer::Cancelled => {
                let over = locked(&self.called_off).as_mut().and_then(|open| open.remove(&id));
                drop(over);
                return;
            }
            Answer::Hello { .. } | Answer::Pong => return,
        };
        let pending = locked(&self.pending).remove(&id);
        if let Some(pending) = pending {
            let _ = pending.reply.send(told);
        }
    }
}

/// A request that is called off when who asked is dropped.
struct Asked<'a> {
    connection: &'a Connection,
    id: u64,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let Asked { connection, id } = *self;
        if locked(&connection.pending).remove(&id).is_some() {
            // Before the leader can answer.
            if let Some(open) = locked(&connection.called_off).as_mut() {
                open.insert(id, connection.all_called_off.add());
            }
            let _ = connection.outgoing.send(Request { id, op: Op::Cancel });
        }
    }
}

/// How often we say that we are there, so that a leader that is not is found out.
fn ping(hub: &Hub) -> Duration {
    hub.timing.beat().clamp(Duration::from_millis(100), Duration::from_secs(5))
}

async fn hear(
    hub: &Hub,
    connection: &Connection,
    mut read: BufReader<OwnedReadHalf>,
    mut seal: Seal,
) -> io::Result<()> {
    loop {
        let heard = within(hub, ping(hub) * 3, seal::open(&mut read, &mut seal, ANSWER_MAX)).await?;
        let Some(message) = heard else { return Ok(()) };
        let Reply { id, answer } = serde_json::from_slice(&message)?;
        connection.answered(id, answer);
    }
}

async fn speak(
    hub: &Hub,
    mut write: OwnedWriteHalf,
    mut seal: Seal,
    mut requests: mpsc::UnboundedReceiver<Request>,
) -> io::Result<()> {
    let (mut words, mut bytes) = (Vec::new(), Vec::new());
    let mut next_ping = hub.runtime.now() + ping(hub);
    loop {
        tokio::select! {
            biased;
            count = requests.recv_many(&mut words, 256) => if count == 0 { return Ok(()) },
            () = hub.runtime.sleep_until(next_ping) => {
                next_ping = hub.runtime.now() + ping(hub);
                words.push(Request { id: 0, op: Op::Ping });
            }
        }
        bytes.clear();
        for request in words.drain(..) {
            put(&mut seal, &request, &mut bytes)?;
        }
        within(hub, GREETING_MAX, write.write_all(&bytes)).await?;
    }
}

fn put(seal: &mut Seal, request: &Request, to: &mut Vec<u8>) -> io::Result<()> {
    seal::seal(seal, &serde_json::to_vec(request)?, to)
}
