//! Activity of a connection, for timeouts.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame, SizeHint};
use tenure::BootInstant;
use tenure::runtime::Runtime;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

use crate::settings::Timeouts;

/// Minimum number of bytes that a client must read per write timeout while more data is waiting.
const PIECE: u64 = 128 * 1024;

/// Command to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ConnectionCommand {
    /// Continue.
    On,
    /// Finish the current requests, then close.
    Finish,
    /// Close now.
    Stop,
}

/// Activity of a connection. Instants are nanoseconds of the runtime's clock; 0 means none.
pub(crate) struct ConnectionActivity {
    runtime: Arc<dyn Runtime>,
    /// End of the last response, or start of the connection.
    idle_since: AtomicU64,
    /// Arrival of the first byte after `idle_since`.
    head_since: AtomicU64,
    /// When the system stopped accepting all bytes for the client.
    blocked_since: AtomicU64,
    /// Bytes that the system accepted since `blocked_since`.
    taken: AtomicU64,
    /// Whether the connection uses HTTP/2, which also sends frames between requests.
    multiplexed: AtomicBool,
    /// Number of exchanges, readable without the lock.
    busy: AtomicUsize,
    exchanges: Mutex<Vec<Arc<Exchange>>>,
    word: watch::Sender<ConnectionCommand>,
}

/// Request and response in progress. `untaken_since` is when the client stopped reading; 0 means that it has
/// read everything.
#[derive(Default)]
struct Exchange {
    untaken_since: AtomicU64,
}

impl ConnectionActivity {
    pub(crate) fn new(runtime: Arc<dyn Runtime>) -> Arc<ConnectionActivity> {
        let idle_since = AtomicU64::new(runtime.now().as_nanos());
        Arc::new(ConnectionActivity {
            runtime,
            idle_since,
            head_since: AtomicU64::new(0),
            blocked_since: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            multiplexed: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
            exchanges: Mutex::default(),
            word: watch::Sender::new(ConnectionCommand::On),
        })
    }

    /// Subscribe to the commands of this connection.
    pub(crate) fn commands(&self) -> watch::Receiver<ConnectionCommand> {
        self.word.subscribe()
    }

    /// Send a command. Earlier commands are not revoked.
    pub(crate) fn send(&self, word: ConnectionCommand) {
        self.word.send_if_modified(|current| {
            let changed = word > *current;
            *current = word.max(*current);
            changed
        });
    }

    /// Close a connection that waits too long for its client.
    pub(crate) fn judge(&self, now: BootInstant, limits: &Timeouts) {
        let over = |since: u64, limit| since != 0 && now.since(BootInstant::from_nanos(since)) > limit;
        // A client that reads slowly must keep a minimum rate.
        let pieces = u32::try_from(self.taken.load(Ordering::Relaxed) / PIECE).unwrap_or(u32::MAX);
        if over(
            self.blocked_since.load(Ordering::Relaxed),
            limits.write.saturating_mul(pieces.saturating_add(1)),
        ) {
            return self.send(ConnectionCommand::Stop);
        }
        let exchanges = self.exchanges.lock().unwrap_or_else(PoisonError::into_inner);
        if !exchanges.is_empty() {
            // An HTTP/2 client can stop reading one response while it reads others.
            if exchanges.iter().any(|e| over(e.untaken_since.load(Ordering::Relaxed), limits.write)) {
                self.send(ConnectionCommand::Stop);
            }
            return;
        }
        drop(exchanges);
        if over(self.head_since.load(Ordering::Relaxed), limits.header) {
            return self.send(ConnectionCommand::Stop);
        }
        let idle_since = self.idle_since.load(Ordering::Relaxed);
        if over(idle_since, limits.idle + limits.write) {
            self.send(ConnectionCommand::Stop);
        } else if over(idle_since, limits.idle) {
            self.send(ConnectionCommand::Finish);
        }
    }

    /// Record the start of a request whose response is read through [`TrackedBody`].
    pub(crate) fn begin(self: &Arc<Self>, multiplexed: bool) -> ExchangeGuard {
        let exchange = Arc::new(Exchange::default());
        self.exchanges.lock().unwrap_or_else(PoisonError::into_inner).push(exchange.clone());
        self.busy.fetch_add(1, Ordering::Relaxed);
        self.head_since.store(0, Ordering::Relaxed);
        self.multiplexed.store(multiplexed, Ordering::Relaxed);
        ExchangeGuard { activity: self.clone(), exchange }
    }

    /// Record whether the system accepted bytes, and how many.
    fn wrote(&self, polled: &Poll<std::io::Result<usize>>) {
        match polled {
            Poll::Ready(Ok(bytes)) if self.blocked_since.load(Ordering::Relaxed) != 0 => {
                self.taken.fetch_add(*bytes as u64, Ordering::Relaxed);
            }
            Poll::Ready(_) => {}
            Poll::Pending => self.blocked(),
        }
    }

    /// Record whether everything was sent. A connection is flushed when it has nothing left to write.
    fn flushed(&self, polled: &Poll<std::io::Result<()>>) {
        match polled {
            Poll::Ready(_) => self.blocked_since.store(0, Ordering::Relaxed),
            Poll::Pending => self.blocked(),
        }
    }

    fn blocked(&self) {
        let (at, order) = (&self.blocked_since, Ordering::Relaxed);
        if at.compare_exchange(0, self.nanos(), order, order).is_ok() {
            self.taken.store(0, order);
        }
    }

    fn nanos(&self) -> u64 {
        self.runtime.now().as_nanos()
    }
}

/// Request that is being answered.
pub(crate) struct ExchangeGuard {
    activity: Arc<ConnectionActivity>,
    exchange: Arc<Exchange>,
}

impl Drop for ExchangeGuard {
    fn drop(&mut self) {
        let mut exchanges = self.activity.exchanges.lock().unwrap_or_else(PoisonError::into_inner);
        exchanges.retain(|exchange| !Arc::ptr_eq(exchange, &self.exchange));
        self.activity.busy.fetch_sub(1, Ordering::Relaxed);
        if exchanges.is_empty() {
            self.activity.head_since.store(0, Ordering::Relaxed);
            self.activity.idle_since.store(self.activity.nanos(), Ordering::Relaxed);
        }
    }
}

/// Response body that records when it is read.
pub(crate) struct TrackedBody {
    pub(crate) inner: UnsyncBoxBody<Bytes, axum::Error>,
    pub(crate) ongoing: ExchangeGuard,
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // Polled for more: the client has read the previous data.
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        let untaken = if polled.is_ready() { self.ongoing.activity.nanos() } else { 0 };
        self.ongoing.exchange.untaken_since.store(untaken, Ordering::Relaxed);
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Stream that records the first byte after a response, and blocked writes.
pub(crate) struct TrackedStream<S> {
    pub(crate) inner: S,
    pub(crate) activity: Arc<ConnectionActivity>,
}

impl<S: AsyncRead + Unpin> AsyncRead for TrackedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
        let activity = &self.activity;
        let waits = activity.busy.load(Ordering::Relaxed) == 0;
        if polled.is_ready() && waits && !activity.multiplexed.load(Ordering::Relaxed) {
            let _ = activity.head_since.compare_exchange(
                0,
                activity.nanos(),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TrackedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.activity.wrote(&polled);
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_flush(cx);
        self.activity.flushed(&polled);
        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.activity.wrote(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
