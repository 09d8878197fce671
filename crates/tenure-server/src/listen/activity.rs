//! What a connection waits for, and since when.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame, SizeHint};
use tenure::Moment;
use tenure::runtime::Runtime;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

use crate::settings::Timeouts;

/// How many bytes a client has to take in the time for writing, on average, while there is more for it.
const PIECE: u64 = 128 * 1024;

/// What a connection is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Word {
    /// Go on.
    On,
    /// Answer what was asked, and end.
    Finish,
    /// End now.
    Stop,
}

/// What a connection waits for. Moments are nanoseconds of the runtime's clock; 0 is none.
pub(crate) struct Activity {
    runtime: Arc<dyn Runtime>,
    /// When the last answer was given, or the connection came.
    idle_since: AtomicU64,
    /// When the first byte after that came.
    head_since: AtomicU64,
    /// Since when there are bytes that the system did not take for the client at once, if there are.
    blocked_since: AtomicU64,
    /// How many bytes it took since then.
    taken: AtomicU64,
    /// HTTP/2 says things between requests, too.
    multiplexed: AtomicBool,
    /// As many as there are exchanges, to be read without the lock.
    busy: AtomicUsize,
    exchanges: Mutex<Vec<Arc<Exchange>>>,
    word: watch::Sender<Word>,
}

/// A request and its answer. Says since when the client does not take what it was sent; 0: it took everything.
#[derive(Default)]
struct Exchange {
    untaken_since: AtomicU64,
}

impl Activity {
    pub(crate) fn new(runtime: Arc<dyn Runtime>) -> Arc<Activity> {
        let idle_since = AtomicU64::new(runtime.now().as_nanos());
        Arc::new(Activity {
            runtime,
            idle_since,
            head_since: AtomicU64::new(0),
            blocked_since: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            multiplexed: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
            exchanges: Mutex::default(),
            word: watch::Sender::new(Word::On),
        })
    }

    /// What this connection is told, and when that changes.
    pub(crate) fn words(&self) -> watch::Receiver<Word> {
        self.word.subscribe()
    }

    /// Tells it. What was said before is not taken back.
    pub(crate) fn tell(&self, word: Word) {
        self.word.send_if_modified(|told| {
            let news = word > *told;
            *told = word.max(*told);
            news
        });
    }

    /// Ends a connection that waits too long for its client.
    pub(crate) fn judge(&self, now: Moment, limits: &Timeouts) {
        let over = |since: u64, limit| since != 0 && now.since(Moment::from_nanos(since)) > limit;
        // A client that takes a little now and then has to keep up a rate.
        let pieces = u32::try_from(self.taken.load(Ordering::Relaxed) / PIECE).unwrap_or(u32::MAX);
        if over(
            self.blocked_since.load(Ordering::Relaxed),
            limits.write.saturating_mul(pieces.saturating_add(1)),
        ) {
            return self.tell(Word::Stop);
        }
        let exchanges = self.exchanges.lock().unwrap_or_else(PoisonError::into_inner);
        if !exchanges.is_empty() {
            // Within HTTP/2 a client can refuse to take one answer while it takes others.
            if exchanges.iter().any(|e| over(e.untaken_since.load(Ordering::Relaxed), limits.write)) {
                self.tell(Word::Stop);
            }
            return;
        }
        drop(exchanges);
        if over(self.head_since.load(Ordering::Relaxed), limits.header) {
            return self.tell(Word::Stop);
        }
        let idle_since = self.idle_since.load(Ordering::Relaxed);
        if over(idle_since, limits.idle + limits.write) {
            self.tell(Word::Stop);
        } else if over(idle_since, limits.idle) {
            self.tell(Word::Finish);
        }
    }

    /// A request came, whose answer will be taken through [`Answer`].
    pub(crate) fn begin(self: &Arc<Self>, multiplexed: bool) -> Ongoing {
        let exchange = Arc::new(Exchange::default());
        self.exchanges.lock().unwrap_or_else(PoisonError::into_inner).push(exchange.clone());
        self.busy.fetch_add(1, Ordering::Relaxed);
        self.head_since.store(0, Ordering::Relaxed);
        self.multiplexed.store(multiplexed, Ordering::Relaxed);
        Ongoing { activity: self.clone(), exchange }
    }

    /// Notes whether the system took bytes, and how many.
    fn wrote(&self, polled: &Poll<std::io::Result<usize>>) {
        match polled {
            Poll::Ready(Ok(bytes)) if self.blocked_since.load(Ordering::Relaxed) != 0 => {
                self.taken.fetch_add(*bytes as u64, Ordering::Relaxed);
            }
            Poll::Ready(_) => {}
            Poll::Pending => self.blocked(),
        }
    }

    /// Notes whether everything that was to be sent is sent. A connection is flushed when it has nothing left to write.
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

/// A request that is being answered.
pub(crate) struct Ongoing {
    activity: Arc<Activity>,
    exchange: Arc<Exchange>,
}

impl Drop for Ongoing {
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

/// The body of an answer, seen as it is taken.
pub(crate) struct Answer {
    pub(crate) inner: UnsyncBoxBody<Bytes, axum::Error>,
    pub(crate) ongoing: Ongoing,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // Asked for more: the client took what there was.
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

/// A stream that notes when its first byte after an answer comes, and when it takes no more.
pub(crate) struct Noted<S> {
    pub(crate) inner: S,
    pub(crate) activity: Arc<Activity>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Noted<S> {
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

impl<S: AsyncWrite + Unpin> AsyncWrite for Noted<S> {
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
