//! The client end of a broker connection.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::port::{BrokerEndpoint, ClaimRefusal, ClaimRequest, PoolKey, QueueKey, StoreError};
use tenure_core::{BootInstant, Name};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, mpsc, oneshot};

use super::message::{ANSWER_MAX, BrokerAnswer, BrokerMessage, BrokerOp, BrokerRequest};
use super::random_bytes;
use super::server::within;
use crate::queue::context::{ClientContext, locked};
use crate::queue::held_claims::ClaimedBatch;
use crate::stream_cipher::{self, StreamCipher, StreamCiphers};

/// Time limit for connecting and for each step of the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);

/// Delay after a failed connection attempt.
const CONNECT_BACKOFF: Duration = Duration::from_millis(50);

/// This process's connection to the broker, if any.
#[derive(Default)]
pub(crate) struct BrokerClient {
    current: Mutex<Option<Arc<BrokerConnection>>>,
    /// Held by the caller that looks for the broker; other callers wait for its result.
    connecting: tokio::sync::Mutex<ConnectBackoff>,
    cancelled: Arc<CancelledClaims>,
}

/// Cancelled claims that the broker has not yet confirmed, on all connections.
#[derive(Default)]
struct CancelledClaims {
    open: Mutex<BTreeSet<u64>>,
    next: AtomicU64,
    confirmed: Notify,
}

impl CancelledClaims {
    fn add(self: &Arc<Self>) -> CancelledClaim {
        let mut open = locked(&self.open);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        open.insert(number);
        CancelledClaim { all: self.clone(), number }
    }

    /// Waits until the claims that are open now are confirmed.
    async fn wait_confirmed(&self) {
        let next = self.next.load(Ordering::Relaxed);
        loop {
            let ended = self.confirmed.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if locked(&self.open).first().is_none_or(|first| *first >= next) {
                return;
            }
            ended.await;
        }
    }
}

/// One cancelled claim. Ends when dropped: the broker confirmed it, or the connection ended.
struct CancelledClaim {
    all: Arc<CancelledClaims>,
    number: u64,
}

impl Drop for CancelledClaim {
    fn drop(&mut self) {
        locked(&self.all.open).remove(&self.number);
        self.all.confirmed.notify_waiters();
    }
}

/// Back-off between connection attempts.
#[derive(Default)]
struct ConnectBackoff {
    /// Time before which no attempt is made.
    until: Option<BootInstant>,
    /// Number of consecutive failed attempts.
    failures: u32,
}

/// Failed attempts before a warning: a broker that has just stopped does not respond either.
const CONNECT_FAILURES_WARN: u32 = 5;

/// Reply of the broker.
pub(crate) enum BrokerReply {
    Tasks(ClaimedBatch),
    Refused(ClaimRefusal),
    Matched,
    Failed(StoreError),
    /// The connection broke. The outcome of the request is unknown.
    Lost,
}

impl BrokerClient {
    /// Returns a connection to the broker, if it can be reached.
    pub(crate) async fn connection(&self, ctx: &Arc<ClientContext>) -> Option<Arc<BrokerConnection>> {
        if let Some(connection) = self.current() {
            return Some(connection);
        }
        let mut backoff = self.connecting.lock().await;
        if let Some(connection) = self.current() {
            return Some(connection);
        }
        if backoff.until.is_some_and(|until| ctx.runtime.now() < until) {
            return None;
        }
        let found = find_broker(ctx, &mut backoff.failures).await;
        backoff.until = found.is_none().then(|| ctx.runtime.now() + CONNECT_BACKOFF);
        *locked(&self.current) = found.clone();
        found
    }

    fn current(&self) -> Option<Arc<BrokerConnection>> {
        let mut current = locked(&self.current);
        if current.as_ref().is_some_and(|connection| connection.outgoing.is_closed()) {
            *current = None;
        }
        current.clone()
    }

    /// Waits until the broker has confirmed every claim cancelled in this process. The release of tasks that the
    /// broker had claimed for them has started by then.
    pub(crate) async fn cancellations_confirmed(&self) {
        self.cancelled.wait_confirmed().await;
    }

    /// Closes a connection whose other end is no longer the broker.
    pub(crate) fn disconnect(&self, connection: &Arc<BrokerConnection>) {
        let mut current = locked(&self.current);
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            *current = None;
        }
    }
}

async fn find_broker(ctx: &Arc<ClientContext>, failures: &mut u32) -> Option<Arc<BrokerConnection>> {
    let endpoint = match ctx.bounded(ctx.store.broker_endpoint()).await {
        Ok(endpoint) => endpoint?,
        Err(error) => {
            tracing::debug!("reading the broker endpoint failed: {error}");
            return None;
        }
    };
    if Some(&endpoint.session) == ctx.session().as_ref() {
        // The endpoint is that of this process: its broker term has just ended or is about to start.
        return None;
    }
    match connect(ctx, &endpoint).await {
        Ok(connection) => {
            *failures = 0;
            tracing::debug!(broker = endpoint.address, "connected to broker");
            Some(connection)
        }
        Err(error) => {
            *failures += 1;
            tracing::debug!(broker = endpoint.address, "connecting to broker failed: {error}");
            if *failures == CONNECT_FAILURES_WARN {
                tracing::warn!(
                    broker = endpoint.address,
                    "connecting to broker failed: {error}; set $TENURE_BROKER_ADVERTISE on the broker to an \
                 address that this process can reach"
                );
            }
            None
        }
    }
}

async fn connect(ctx: &Arc<ClientContext>, endpoint: &BrokerEndpoint) -> io::Result<Arc<BrokerConnection>> {
    let mut stream = within(ctx, HANDSHAKE_TIMEOUT, TcpStream::connect(&endpoint.address)).await?;
    stream.set_nodelay(true)?;
    let ours = random_bytes(ctx.runtime.as_ref());
    let theirs = within(ctx, HANDSHAKE_TIMEOUT, stream_cipher::exchange_nonces(&mut stream, &ours)).await?;
    let StreamCiphers { mut from_client, mut from_server } =
        StreamCiphers::derive(&endpoint.secret, &ours, &theirs)?;
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::with_capacity(64 << 10, read);
    let mut bytes = Vec::new();
    encrypt_request(
        &mut from_client,
        &BrokerRequest { id: 0, op: BrokerOp::Hello { name: ctx.name.clone() } },
        &mut bytes,
    )?;
    within(ctx, HANDSHAKE_TIMEOUT, write.write_all(&bytes)).await?;
    let hello =
        within(ctx, HANDSHAKE_TIMEOUT, stream_cipher::read_message(&mut read, &mut from_server, ANSWER_MAX))
            .await?;
    let hello: BrokerMessage = serde_json::from_slice(&hello.ok_or(io::ErrorKind::UnexpectedEof)?)?;
    if !matches!(hello.answer, BrokerAnswer::Hello { token } if token == endpoint.token) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the broker has a different token"));
    }
    let (outgoing, requests) = mpsc::unbounded_channel();
    let connection = Arc::new(BrokerConnection {
        ctx: Arc::downgrade(ctx),
        next: AtomicU64::new(1),
        pending: Mutex::default(),
        cancelled: Mutex::new(Some(HashMap::new())),
        all_cancelled: ctx.broker_client.cancelled.clone(),
        namespaces: Mutex::default(),
        outgoing,
    });
    let (ctx, ours) = (ctx.clone(), connection.clone());
    ctx.handle.clone().spawn(async move {
        let ended = tokio::select! {
            ended = receive(&ctx, &ours, read, from_server) => ended,
            ended = send_requests(&ctx, write, from_client, requests) => ended,
            () = ctx.closed() => Ok(()),
        };
        if let Err(error) = ended {
            tracing::debug!("broker connection lost: {error}");
        }
        // Waiting callers learn that the connection ended. Without the receiver of requests, no caller uses it
        // any more.
        locked(&ours.pending).clear();
        // Cancelled claims end as well: the broker releases tasks that it has not sent.
        drop(locked(&ours.cancelled).take());
        // Responses in transit are lost, also those of cancelled claims.
        let namespaces = std::mem::take(&mut *locked(&ours.namespaces));
        namespaces.iter().for_each(|namespace| ctx.mark_uncertain(namespace));
    });
    Ok(connection)
}

/// An open connection to the broker.
pub(crate) struct BrokerConnection {
    ctx: std::sync::Weak<ClientContext>,
    next: AtomicU64,
    pending: Mutex<HashMap<u64, PendingReply>>,
    /// Cancelled claims; `None` once the connection has ended.
    cancelled: Mutex<Option<HashMap<u64, CancelledClaim>>>,
    all_cancelled: Arc<CancelledClaims>,
    /// Namespaces of the claims sent on this connection.
    namespaces: Mutex<BTreeSet<Name>>,
    outgoing: mpsc::UnboundedSender<BrokerRequest>,
}

struct PendingReply {
    reply: oneshot::Sender<BrokerReply>,
    parts: Vec<ClaimedBatch>,
}

impl BrokerConnection {
    /// Claims tasks. The broker waits; if the future is dropped, the request is cancelled.
    pub(crate) async fn claim(&self, queue: &QueueKey, request: ClaimRequest, wait: Duration) -> BrokerReply {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        locked(&self.namespaces).insert(queue.namespace.clone());
        self.send(BrokerOp::Claim { queue: queue.clone(), request, wait_ms }).await
    }

    /// Asks the broker to match the requests of a pool.
    pub(crate) async fn match_pool(&self, pool: &PoolKey) -> BrokerReply {
        self.send(BrokerOp::Match { pool: pool.clone() }).await
    }

    async fn send(&self, op: BrokerOp) -> BrokerReply {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (reply, response) = oneshot::channel();
        locked(&self.pending).insert(id, PendingReply { reply, parts: Vec::new() });
        let guard = CancelOnDrop { connection: self, id };
        if self.outgoing.send(BrokerRequest { id, op }).is_err() {
            return BrokerReply::Lost;
        }
        let response = response.await.unwrap_or(BrokerReply::Lost);
        drop(guard);
        response
    }

    /// Handles a reply. Tasks for a caller that has left are released when dropped.
    fn handle_reply(&self, id: u64, answer: BrokerAnswer) {
        let Some(ctx) = self.ctx.upgrade() else { return };
        let now = ctx.runtime.now();
        let claimed = |namespace: &Name, tasks, age_us| {
            ClaimedBatch::new(&ctx, namespace, tasks, now - Duration::from_micros(age_us))
        };
        let response = match answer {
            BrokerAnswer::Part { namespace, tasks, age_us } => {
                let part = claimed(&namespace, tasks, age_us);
                if let Some(pending) = locked(&self.pending).get_mut(&id) {
                    pending.parts.push(part);
                }
                return;
            }
            BrokerAnswer::Tasks { namespace, tasks, age_us } => {
                let parts =
                    locked(&self.pending).get_mut(&id).map(|pending| std::mem::take(&mut pending.parts));
                let last = claimed(&namespace, tasks, age_us);
                BrokerReply::Tasks(
                    parts.unwrap_or_default().into_iter().rev().fold(last, |rest, part| part.and(rest)),
                )
            }
            BrokerAnswer::Refused(refusal) => BrokerReply::Refused(refusal),
            BrokerAnswer::Matched => BrokerReply::Matched,
            BrokerAnswer::Error { kind, message } => BrokerReply::Failed(StoreError::new(kind, message)),
            BrokerAnswer::Cancelled => {
                let ended = locked(&self.cancelled).as_mut().and_then(|open| open.remove(&id));
                drop(ended);
                return;
            }
            BrokerAnswer::Hello { .. } | BrokerAnswer::Pong => return,
        };
        let pending = locked(&self.pending).remove(&id);
        if let Some(pending) = pending {
            let _ = pending.reply.send(response);
        }
    }
}

/// Cancels a request when its caller is dropped.
struct CancelOnDrop<'a> {
    connection: &'a BrokerConnection,
    id: u64,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let CancelOnDrop { connection, id } = *self;
        if locked(&connection.pending).remove(&id).is_some() {
            // Insert before the broker can reply.
            if let Some(open) = locked(&connection.cancelled).as_mut() {
                open.insert(id, connection.all_cancelled.add());
            }
            let _ = connection.outgoing.send(BrokerRequest { id, op: BrokerOp::Cancel });
        }
    }
}

/// Interval of pings, which detect a dead broker.
fn ping(ctx: &ClientContext) -> Duration {
    ctx.timing.heartbeat_interval().clamp(Duration::from_millis(100), Duration::from_secs(5))
}

async fn receive(
    ctx: &ClientContext,
    connection: &BrokerConnection,
    mut read: BufReader<OwnedReadHalf>,
    mut cipher: StreamCipher,
) -> io::Result<()> {
    loop {
        let received =
            within(ctx, ping(ctx) * 3, stream_cipher::read_message(&mut read, &mut cipher, ANSWER_MAX))
                .await?;
        let Some(message) = received else { return Ok(()) };
        let BrokerMessage { id, answer } = serde_json::from_slice(&message)?;
        connection.handle_reply(id, answer);
    }
}

async fn send_requests(
    ctx: &ClientContext,
    mut write: OwnedWriteHalf,
    mut cipher: StreamCipher,
    mut requests: mpsc::UnboundedReceiver<BrokerRequest>,
) -> io::Result<()> {
    let (mut outgoing, mut bytes) = (Vec::new(), Vec::new());
    let mut next_ping = ctx.runtime.now() + ping(ctx);
    loop {
        tokio::select! {
            biased;
            count = requests.recv_many(&mut outgoing, 256) => if count == 0 { return Ok(()) },
            () = ctx.runtime.sleep_until(next_ping) => {
                next_ping = ctx.runtime.now() + ping(ctx);
                outgoing.push(BrokerRequest { id: 0, op: BrokerOp::Ping });
            }
        }
        bytes.clear();
        for request in outgoing.drain(..) {
            encrypt_request(&mut cipher, &request, &mut bytes)?;
        }
        within(ctx, HANDSHAKE_TIMEOUT, write.write_all(&bytes)).await?;
    }
}

fn encrypt_request(cipher: &mut StreamCipher, request: &BrokerRequest, to: &mut Vec<u8>) -> io::Result<()> {
    stream_cipher::encrypt(cipher, &serde_json::to_vec(request)?, to)
}
