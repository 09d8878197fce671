//! The broker end of a connection.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::Token;
use tenure_core::port::{ClaimedTask, ErrorKind, StoreError};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

use super::message::{ANSWER_BYTES, BrokerAnswer, BrokerMessage, BrokerOp, BrokerRequest, REQUEST_MAX};
use super::random_bytes;
use crate::admission::{Admission, Admitted, ConnectionLimits};
use crate::open_files;
use crate::queue::context::{ClientContext, locked};
use crate::queue::wait_queue::{ClaimOrigin, ClaimRoute, WaitQueue, WaitingClaimOutcome};
use crate::stream_cipher::{self, StreamCipher, StreamCiphers};

/// Maximum number of waiting requests of one connection.
const REQUESTS_MAX: usize = 4_096;

/// Time limit for a client to prove that it knows the secret.
const HANDSHAKE_MAX: Duration = Duration::from_secs(2);

/// Time limit for writing one piece of a reply.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum silence of a client. Clients ping much more often.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// How long connections stay open after the term, so that waiting clients are notified and no message is cut
/// off.
const CLOSE_DELAY: Duration = Duration::from_secs(1);

/// Approximate number of bytes written at once. Later replies have not been sent, and their tasks can be
/// released.
const WRITE_BYTES: usize = 1 << 20;

/// Number of bytes that must be written within [`WRITE_TIMEOUT`].
const WRITE_CHUNK: usize = 64 << 10;

/// Maximum frame size before authentication.
const UNAUTHENTICATED_FRAME_MAX: usize = 4 << 10;

/// Maximum wait of one request; clients repeat it.
const WAIT_MAX: Duration = Duration::from_secs(3_600);

/// Serves clients that know the secret. When dropped, the listener closes at once and all connections close a
/// little later. Tasks that were not sent by then are released.
pub(crate) async fn serve(ctx: Arc<ClientContext>, listener: TcpListener, secret: [u8; 32], token: Token) {
    let limits = ConnectionLimits::for_open_files(open_files::limit());
    let admission = Admission::new("broker", limits, ctx.runtime.clone());
    let (_term, term_ended) = watch::channel(());
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Probably out of file descriptors: other connections must end first.
                tracing::warn!("accepting a broker connection failed: {error}");
                ctx.pause(Duration::from_millis(100)).await;
                continue;
            }
        };
        let mut admitted = admission.admit(from.ip()).await;
        let (ours, term_ended) = (ctx.clone(), term_ended.clone());
        ctx.handle.spawn(async move {
            if let Err(error) = connection(ours, stream, secret, token, term_ended, &mut admitted).await {
                tracing::debug!("broker connection ended: {error}");
            }
        });
    }
}

/// An authenticated client connection with its ciphers.
struct Authenticated {
    read: BufReader<OwnedReadHalf>,
    write: OwnedWriteHalf,
    from_client: StreamCipher,
    from_server: StreamCipher,
    name: String,
}

/// The client sends first: a client without the secret learns nothing about the broker.
async fn authenticate(
    ctx: &ClientContext,
    mut stream: TcpStream,
    secret: &[u8; 32],
) -> io::Result<Authenticated> {
    stream.set_nodelay(true)?;
    let ours = random_bytes(ctx.runtime.as_ref());
    let theirs = stream_cipher::exchange_nonces(&mut stream, &ours).await?;
    let StreamCiphers { mut from_client, from_server } = StreamCiphers::derive(secret, &theirs, &ours)?;
    let (read, write) = stream.into_split();
    let mut read = BufReader::with_capacity(64 << 10, read);
    match read_request(&mut read, &mut from_client, UNAUTHENTICATED_FRAME_MAX).await? {
        Some(BrokerRequest { op: BrokerOp::Hello { name }, .. }) => {
            Ok(Authenticated { read, write, from_client, from_server, name })
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the first message is not a hello")),
    }
}

async fn connection(
    ctx: Arc<ClientContext>,
    stream: TcpStream,
    secret: [u8; 32],
    token: Token,
    term_ended: watch::Receiver<()>,
    admitted: &mut Admitted,
) -> io::Result<()> {
    let handshake = admitted.handshake(HANDSHAKE_MAX, authenticate(&ctx, stream, &secret));
    let Authenticated { read, mut write, from_client, mut from_server, name } = handshake.await?;
    let mut bytes = Vec::new();
    encrypt_message(
        &mut from_server,
        &BrokerMessage { id: 0, answer: BrokerAnswer::Hello { token } },
        &mut bytes,
    )?;
    within(&ctx, WRITE_TIMEOUT, write.write_all(&bytes)).await?;
    tracing::debug!(client = name, "broker client connected");

    let (outgoing, answers) = mpsc::unbounded_channel();
    let waiting = Arc::new(ConnectionRequests::default());
    let reading = read_requests(&ctx, read, from_client, &waiting, outgoing);
    let writing = write_answers(&ctx, write, from_server, &waiting, answers);
    let ended = tokio::select! {
        ended = reading => ended,
        ended = writing => ended,
        () = wait_close_delay(&ctx, term_ended) => Ok(()),
    };
    waiting.cancel_all();
    ended
}

/// Completes a little after the term ends. The channel carries no messages and closes with its sender.
async fn wait_close_delay(ctx: &ClientContext, mut term_ended: watch::Receiver<()>) {
    while term_ended.changed().await.is_ok() {}
    ctx.pause(CLOSE_DELAY).await;
}

/// Waiting requests of one connection.
#[derive(Default)]
struct ConnectionRequests {
    requests: Mutex<HashMap<u64, ConnectionRequest>>,
}

struct ConnectionRequest {
    cancelled: Arc<AtomicBool>,
    wait_queue: Option<Arc<WaitQueue>>,
}

impl ConnectionRequest {
    /// Cancels the request. Returns its wait queue, if any.
    fn cancel(self) -> Option<Arc<WaitQueue>> {
        self.cancelled.store(true, Ordering::Release);
        self.wait_queue.inspect(|wait_queue| wait_queue.caller_left())
    }
}

impl ConnectionRequests {
    /// Adds a request. Returns `None` if there are too many, or one with this number.
    fn add(&self, id: u64, wait_queue: Option<Arc<WaitQueue>>) -> Option<Arc<AtomicBool>> {
        let mut requests = locked(&self.requests);
        if requests.len() >= REQUESTS_MAX || requests.contains_key(&id) {
            return None;
        }
        let cancelled = Arc::new(AtomicBool::new(false));
        requests.insert(id, ConnectionRequest { cancelled: cancelled.clone(), wait_queue });
        Some(cancelled)
    }

    fn done(&self, id: u64) {
        locked(&self.requests).remove(&id);
    }

    /// Cancels a request. Returns its wait queue, if any.
    fn cancel(&self, id: u64) -> Option<Arc<WaitQueue>> {
        let request = locked(&self.requests).remove(&id);
        request.and_then(ConnectionRequest::cancel)
    }

    fn cancel_all(&self) {
        let requests = std::mem::take(&mut *locked(&self.requests));
        requests.into_values().for_each(|request| drop(request.cancel()));
    }
}

impl Drop for ConnectionRequests {
    fn drop(&mut self) {
        self.cancel_all();
    }
}

/// A waiting claim of another process.
pub(crate) struct RemoteClaim {
    id: u64,
    cancelled: Arc<AtomicBool>,
    outgoing: mpsc::UnboundedSender<(u64, OutgoingMessage)>,
}

/// A message to send. Tasks that are not sent are released.
enum OutgoingMessage {
    Claimed(WaitingClaimOutcome),
    Other(BrokerAnswer),
}

impl RemoteClaim {
    pub(crate) fn is_abandoned(&self) -> bool {
        self.cancelled.load(Ordering::Acquire) || self.outgoing.is_closed()
    }

    pub(crate) fn reply(self, outcome: WaitingClaimOutcome) {
        // Tasks are sent even after a cancellation: the client releases them itself and can wait for that. A
        // closed connection drops them, and they are released here.
        if matches!(outcome, WaitingClaimOutcome::Tasks(_)) || !self.is_abandoned() {
            let _ = self.outgoing.send((self.id, OutgoingMessage::Claimed(outcome)));
        }
    }
}

async fn read_requests(
    ctx: &Arc<ClientContext>,
    mut read: BufReader<OwnedReadHalf>,
    mut cipher: StreamCipher,
    waiting: &Arc<ConnectionRequests>,
    outgoing: mpsc::UnboundedSender<(u64, OutgoingMessage)>,
) -> io::Result<()> {
    while let Some(BrokerRequest { id, op }) =
        within(ctx, SILENCE_MAX, read_request(&mut read, &mut cipher, REQUEST_MAX)).await?
    {
        let send = |message| drop(outgoing.send((id, message)));
        match op {
            BrokerOp::Hello { .. } | BrokerOp::Ping => send(OutgoingMessage::Other(BrokerAnswer::Pong)),
            BrokerOp::Cancel => {
                let (wait_queue, outgoing) = (waiting.cancel(id), outgoing.clone());
                tokio::spawn(async move {
                    if let Some(wait_queue) = wait_queue {
                        // Tasks that a running poll finds for this claim are sent before the poll ends.
                        wait_queue.polls_finished().await;
                    }
                    let _ = outgoing.send((id, OutgoingMessage::Other(BrokerAnswer::Cancelled)));
                });
            }
            BrokerOp::Claim { queue, request, wait_ms } => {
                let wait_queue = ctx.wait_queue(&queue, ClaimRoute::Broker);
                let Some(cancelled) = waiting.add(id, Some(wait_queue.clone())) else {
                    send(OutgoingMessage::Other(busy()));
                    continue;
                };
                let wait = Duration::from_millis(wait_ms).min(WAIT_MAX);
                let remote = RemoteClaim { id, cancelled, outgoing: outgoing.clone() };
                tracing::debug!(%queue, worker = request.worker.name, "processing claim as broker");
                wait_queue.join(ctx, request, ctx.runtime.now() + wait, ClaimOrigin::Remote(remote));
            }
            BrokerOp::Match { pool } => {
                let Some(cancelled) = waiting.add(id, None) else {
                    send(OutgoingMessage::Other(busy()));
                    continue;
                };
                let (ctx, outgoing) = (ctx.clone(), outgoing.clone());
                tokio::spawn(async move {
                    let answer = match ctx.match_as_broker(&pool).await {
                        Ok(Ok(())) => BrokerAnswer::Matched,
                        Ok(Err(refusal)) => BrokerAnswer::Refused(refusal),
                        Err(error) => error.into(),
                    };
                    if !cancelled.load(Ordering::Acquire) {
                        let _ = outgoing.send((id, OutgoingMessage::Other(answer)));
                    }
                });
            }
        }
    }
    Ok(())
}

fn busy() -> BrokerAnswer {
    let message = format!("the broker already has {REQUESTS_MAX} requests of this process; retry later");
    StoreError::new(ErrorKind::Unavailable, message).into()
}

async fn write_answers(
    ctx: &ClientContext,
    mut write: OwnedWriteHalf,
    mut cipher: StreamCipher,
    waiting: &ConnectionRequests,
    mut answers: mpsc::UnboundedReceiver<(u64, OutgoingMessage)>,
) -> io::Result<()> {
    let (mut messages, mut bytes) = (Vec::new(), Vec::new());
    while answers.recv_many(&mut messages, 64).await > 0 {
        let mut messages = messages.drain(..).peekable();
        while messages.peek().is_some() {
            bytes.clear();
            while bytes.len() < WRITE_BYTES
                && let Some((id, message)) = messages.next()
            {
                write_message(ctx, &mut cipher, id, &message, &mut bytes)?;
                waiting.done(id);
                // From here on the client may read the tasks and work on them, whatever happens to the
                // connection, so the broker must not release them. If the response is lost, the client finds
                // the claims in the store and releases them. Later replies were not sent; if the connection
                // breaks, they are dropped and released.
                if let OutgoingMessage::Claimed(WaitingClaimOutcome::Tasks(claimed)) = message {
                    drop(claimed.take());
                }
            }
            // The time limit applies to each piece: a large reply may take long as long as it progresses.
            for chunk in bytes.chunks(WRITE_CHUNK) {
                within(ctx, WRITE_TIMEOUT, write.write_all(chunk)).await?;
            }
        }
        bytes.shrink_to(1 << 20);
    }
    Ok(())
}

fn write_message(
    ctx: &ClientContext,
    cipher: &mut StreamCipher,
    id: u64,
    message: &OutgoingMessage,
    to: &mut Vec<u8>,
) -> io::Result<()> {
    let claimed = match message {
        OutgoingMessage::Claimed(WaitingClaimOutcome::Tasks(claimed)) => claimed,
        OutgoingMessage::Claimed(WaitingClaimOutcome::Refused(refusal)) => {
            return encrypt_message(
                cipher,
                &BrokerMessage { id, answer: BrokerAnswer::Refused(refusal.clone()) },
                to,
            );
        }
        OutgoingMessage::Claimed(WaitingClaimOutcome::Failed(error)) => {
            return encrypt_message(cipher, &BrokerMessage { id, answer: error.clone().into() }, to);
        }
        OutgoingMessage::Other(answer) => {
            return encrypt_message(cipher, &BrokerMessageRef { id, answer }, to);
        }
    };
    let (mut rest, namespace) = (claimed.tasks(), claimed.namespace().clone());
    let age_us = u64::try_from(ctx.runtime.now().since(claimed.since()).as_micros()).unwrap_or(u64::MAX);
    loop {
        let (now, later) = rest.split_at(tasks_per_message(rest));
        let (namespace, tasks) = (namespace.clone(), now.to_vec());
        rest = later;
        if rest.is_empty() {
            return encrypt_message(
                cipher,
                &BrokerMessage { id, answer: BrokerAnswer::Tasks { namespace, tasks, age_us } },
                to,
            );
        }
        encrypt_message(
            cipher,
            &BrokerMessage { id, answer: BrokerAnswer::Part { namespace, tasks, age_us } },
            to,
        )?;
    }
}

#[derive(serde::Serialize)]
struct BrokerMessageRef<'a> {
    id: u64,
    answer: &'a BrokerAnswer,
}

/// Number of tasks that make up about one message.
fn tasks_per_message(tasks: &[ClaimedTask]) -> usize {
    let mut bytes = 0;
    let fits = tasks.iter().take_while(|task| {
        bytes += task.payload.as_str().len()
            + task.parent_results.values().map(|input| input.as_str().len()).sum::<usize>();
        bytes <= ANSWER_BYTES
    });
    fits.count().max(1).min(tasks.len())
}

fn encrypt_message(
    cipher: &mut StreamCipher,
    message: &impl serde::Serialize,
    to: &mut Vec<u8>,
) -> io::Result<()> {
    stream_cipher::encrypt(cipher, &serde_json::to_vec(message)?, to)
}

async fn read_request(
    read: &mut BufReader<OwnedReadHalf>,
    cipher: &mut StreamCipher,
    max_len: usize,
) -> io::Result<Option<BrokerRequest>> {
    match stream_cipher::read_message(read, cipher, max_len).await? {
        Some(message) => Ok(Some(serde_json::from_slice(&message)?)),
        None => Ok(None),
    }
}

/// Runs `what` with a time limit.
pub(super) async fn within<T>(
    ctx: &ClientContext,
    limit: Duration,
    what: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    tokio::select! {
        biased;
        result = what => result,
        () = ctx.runtime.sleep_until(ctx.runtime.now() + limit) => Err(io::ErrorKind::TimedOut.into()),
    }
}
