//! Stream of one watcher.
//!
//! The current state of many elections is sent in pieces. Each piece is built from the newest snapshot when
//! the client has read the previous one, so a slow client costs one piece of memory, however many elections
//! exist.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use futures_util::stream;
use tenure::port::{Permission, StoreError};
use tenure::{ElectionKey, Name};
use tokio::sync::broadcast::error::RecvError;

use super::{frame, id, id_of_many, term_frames, whole};
use crate::access::Principal;
use crate::limits;
use crate::snapshot::elections::{
    CachedElection, ElectionCache, ElectionReceiver, ElectionsSnapshot, TermMark,
};

/// Maximum time between two messages.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Comment that keeps an idle stream open.
const KEEP_ALIVE_COMMENT: Bytes = Bytes::from_static(b": keep-alive\n\n");
/// First chunk of every stream.
const PREAMBLE: &[u8] = b"retry: 1000\n: connected\n\n";
/// Maximum size of a piece, unless one election alone is larger.
const PIECE: usize = 16 * 1024;
/// Maximum number of elections whose missed terms are read when a client reconnects.
const TERMS_READ_MAX: usize = 200;

/// Watched elections and the position of the client.
pub(super) enum WatchTarget {
    One(ElectionKey, Option<TermMark>),
    Many { namespace: Option<Name>, principal: Principal, last: Option<TermMark> },
}

/// Watcher.
pub(super) struct ElectionWatcher {
    cache: Arc<ElectionCache>,
    receiver: ElectionReceiver,
    watched: WatchTarget,
    /// Chunks to send.
    next: VecDeque<Bytes>,
    /// Bytes of the chunks, charged to the client.
    unread: limits::Bytes,
    /// Number of the last snapshot that was sent.
    number: u64,
    /// Rest of the current state that must still be sent.
    snapshot: Option<Snapshot>,
    /// Pieces of the current state that were sent, by the last election of each (`None`: all), with the
    /// number of their snapshot. Updates up to that number are outdated.
    pieces: Vec<(Option<ElectionKey>, u64)>,
}

/// Progress of sending the current state.
struct Snapshot {
    /// Send the terms missed since this time before any event with an id: a client that reconnects with such
    /// an id is assumed to know all earlier terms. Only the first [`TERMS_READ_MAX`] changed elections are
    /// read.
    terms_since: Option<i64>,
    /// Number of elections whose terms were read.
    terms_read: usize,
    /// Last election that was sent.
    after: Option<ElectionKey>,
    /// Id of the events.
    id: String,
}

impl ElectionWatcher {
    /// Start or resume a watch.
    pub(super) async fn new(
        elections: Arc<ElectionCache>,
        receiver: ElectionReceiver,
        watched: WatchTarget,
        unread: limits::Bytes,
        current: &ElectionsSnapshot,
    ) -> Result<ElectionWatcher, StoreError> {
        let next = VecDeque::from([Bytes::from_static(PREAMBLE)]);
        let (number, snapshot, pieces) = (0, None, Vec::new());
        let mut watcher =
            ElectionWatcher { cache: elections, receiver, watched, next, unread, number, snapshot, pieces };
        watcher.catch_up(current).await?;
        Ok(watcher)
    }

    /// The stream of chunks.
    pub(super) fn into_stream(self) -> impl Stream<Item = Result<Bytes, Infallible>> {
        stream::unfold(Box::new(self), |mut watcher| async move {
            let sent = watcher.next().await?;
            Some((Ok(sent), watcher))
        })
    }

    /// Next chunk; `None` at the end of the stream.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(next) = self.next.pop_front() {
                let left: usize = self.next.iter().map(Bytes::len).sum();
                self.unread.clear();
                // A client with too many unread bytes must reconnect.
                self.unread.grow(left).ok()?;
                return Some(next);
            }
            // Free the memory of a long backlog.
            self.next = VecDeque::new();
            if let Some(snapshot) = self.snapshot.take() {
                // If the missed terms cannot be read, the client must reconnect.
                self.send_next_piece(snapshot).await.ok()?;
                continue;
            }
            match tokio::time::timeout(KEEP_ALIVE, self.receiver.recv()).await {
                Err(_) => return Some(KEEP_ALIVE_COMMENT),
                Ok(Ok(update)) => {
                    if update.number > self.number && self.includes(&update.entry) {
                        let sent = self.receive(&update);
                        if !sent.is_empty() {
                            return Some(sent);
                        }
                    }
                }
                Ok(Err(RecvError::Lagged(_))) => {
                    let current = self.cache.snapshot();
                    // If the missed terms cannot be read, the client must reconnect.
                    self.catch_up(&current).await.ok()?;
                }
                Ok(Err(RecvError::Closed)) => return None,
            }
        }
    }

    fn includes(&self, entry: &CachedElection) -> bool {
        match &self.watched {
            WatchTarget::One(key, _) => entry.key == *key,
            WatchTarget::Many { namespace: Some(namespace), .. } => entry.key.namespace == *namespace,
            WatchTarget::Many { principal, .. } => {
                principal.may(Permission::Read, Some(&entry.key.namespace))
            }
        }
    }

    fn receive(&mut self, update: &crate::snapshot::elections::ElectionUpdate) -> Bytes {
        match &mut self.watched {
            WatchTarget::One(_, last) => {
                *last = Some(TermMark::of(&update.entry, update.mark_ms));
                frame(update, false)
            }
            WatchTarget::Many { last, .. } => {
                *last = Some(TermMark::Time(update.mark_ms));
                let key = &update.entry.key;
                let known = self.pieces.iter().find(|(to, _)| to.as_ref().is_none_or(|to| key <= to));
                match known {
                    // A newer state of the election was sent already; only the terms are new.
                    Some((_, number)) if update.number <= *number => {
                        term_frames(key, &update.transitions).into()
                    }
                    _ => frame(update, true),
                }
            }
        }
    }

    /// Queue the terms missed since the client's position, if it has one, and the current state.
    async fn catch_up(&mut self, current: &ElectionsSnapshot) -> Result<(), StoreError> {
        self.number = current.number;
        let mark_ms = self.cache.mark_ms();
        match &mut self.watched {
            WatchTarget::One(key, last) => {
                let Some(entry) = current.elections.get(key) else { return Ok(()) };
                if let Some(last) = &*last {
                    let terms = self.cache.terms(entry).await?;
                    self.next.push_back(term_frames(key, &last.transitions_after(&terms)).into());
                }
                self.next.push_back(whole(entry, &id(entry, mark_ms)).into());
                *last = Some(TermMark::of(entry, mark_ms));
            }
            WatchTarget::Many { last, .. } => {
                let terms_since = match last {
                    Some(TermMark::Time(at)) => Some(*at),
                    _ => None,
                };
                self.pieces.clear();
                let id = id_of_many(mark_ms);
                self.snapshot = Some(Snapshot { terms_since, terms_read: 0, after: None, id });
                *last = Some(TermMark::Time(mark_ms));
            }
        }
        self.next.retain(|sent| !sent.is_empty());
        Ok(())
    }

    /// Send the next piece of the current state of many elections.
    async fn send_next_piece(&mut self, mut snapshot: Snapshot) -> Result<(), StoreError> {
        // Use the newest snapshot for each piece, so that a slow client keeps no old one alive.
        let current = self.cache.snapshot();
        let from = snapshot.after.take().map_or(Bound::Unbounded, Bound::Excluded);
        let mut piece = Vec::new();
        for (key, entry) in current.elections.range((from, Bound::Unbounded)) {
            if !self.includes(entry) {
                continue;
            }
            match snapshot.terms_since {
                Some(at) if snapshot.terms_read < TERMS_READ_MAX => {
                    if moved_since(entry, at) {
                        let terms = self.cache.terms(entry).await?;
                        piece.extend_from_slice(&term_frames(
                            key,
                            &TermMark::Time(at).transitions_after(&terms),
                        ));
                        snapshot.terms_read += 1;
                    }
                }
                Some(_) => break,
                None => piece.extend_from_slice(&whole(entry, &snapshot.id)),
            }
            if piece.len() >= PIECE {
                snapshot.after = Some(key.clone());
                break;
            }
        }
        if snapshot.terms_since.is_none() {
            match self.pieces.last_mut() {
                Some((to, number)) if *number == current.number => *to = snapshot.after.clone(),
                _ => self.pieces.push((snapshot.after.clone(), current.number)),
            }
        }
        self.snapshot = match (snapshot.after.is_some(), snapshot.terms_since) {
            (true, _) => Some(snapshot),
            (false, Some(_)) => Some(Snapshot { terms_since: None, ..snapshot }),
            (false, None) => None,
        };
        if !piece.is_empty() {
            self.next.push_back(piece.into());
        }
        Ok(())
    }
}

/// Whether a term of an election started or ended since a time.
fn moved_since(entry: &CachedElection, at: i64) -> bool {
    let moved = |granted: Option<i64>, held: bool| granted.is_some_and(|granted| granted >= at || !held);
    entry.leases.iter().any(|lease| moved(lease.granted_at_ms, lease.holder.is_some()))
}
