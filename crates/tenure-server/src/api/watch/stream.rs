//! One hearer's stream.
//!
//! Those who watch many elections are told how things stand in pieces. The next piece is made from what the server knows
//! when the client has taken the last one, so that a client that does not read costs one piece, however many elections
//! there are.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use futures_util::stream;
use tenure::port::{StoreError, Verb};
use tenure::{ElectionKey, Name};
use tokio::sync::broadcast::error::RecvError;

use super::{frame, id, id_of_many, told, whole};
use crate::access::Principal;
use crate::board::{Board, Ear, Entry, Mark, Seen};
use crate::limits;

/// How long nothing is said at most.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// What is said then.
const STILL_HERE: Bytes = Bytes::from_static(b": still here\n\n");
/// What is said first.
const WELCOME: &[u8] = b"retry: 1000\n: welcome\n\n";
/// How large a piece is, unless one election alone is larger.
const PIECE: usize = 16 * 1024;
/// Of how many elections the missed terms are looked up, when one hearer comes back.
const LOOKED_UP_MAX: usize = 200;

/// What is watched, and how far it was heard.
pub(super) enum Watched {
    One(ElectionKey, Option<Mark>),
    Many { namespace: Option<Name>, principal: Principal, last: Option<Mark> },
}

/// One who hears.
pub(super) struct Hearing {
    board: Arc<Board>,
    ear: Ear,
    watched: Watched,
    /// What is about to be said.
    next: VecDeque<Bytes>,
    /// The bytes of it, on the account of the client.
    unread: limits::Bytes,
    /// What was seen up to here has been said.
    number: u64,
    /// What is still to be said of how things stand.
    snapshot: Option<Snapshot>,
    /// The parts of how things stand that were said, by the last election of each (`None`: all that there are), and the
    /// number of what was seen by then. Updates up to there are old news.
    pieces: Vec<(Option<ElectionKey>, u64)>,
}

/// How far a hearer was told how things stand.
struct Snapshot {
    /// The missed terms since this time are said first, all of them: the events of elections have ids, and whoever
    /// comes back with one is taken to know of all terms before it.
    terms_since: Option<i64>,
    /// Of how many elections they were looked up.
    looked_up: usize,
    /// The last election that was said.
    after: Option<ElectionKey>,
    /// The id of the events.
    id: String,
}

impl Hearing {
    /// One who begins to hear, or comes back.
    pub(super) async fn new(
        board: Arc<Board>,
        ear: Ear,
        watched: Watched,
        unread: limits::Bytes,
        seen: &Seen,
    ) -> Result<Hearing, StoreError> {
        let next = VecDeque::from([Bytes::from_static(WELCOME)]);
        let (number, snapshot, pieces) = (0, None, Vec::new());
        let mut hearing = Hearing { board, ear, watched, next, unread, number, snapshot, pieces };
        hearing.catch_up(seen).await?;
        Ok(hearing)
    }

    /// The stream.
    pub(super) fn into_stream(self) -> impl Stream<Item = Result<Bytes, Infallible>> {
        stream::unfold(Box::new(self), |mut hearing| async move {
            let said = hearing.next().await?;
            Some((Ok(said), hearing))
        })
    }

    /// What is said next; `None` when there is nothing more to be said.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(next) = self.next.pop_front() {
                let left: usize = self.next.iter().map(Bytes::len).sum();
                self.unread.clear();
                // Whoever leaves too much unread comes back for it.
                self.unread.grow(left).ok()?;
                return Some(next);
            }
            // A queue that was long once is not kept.
            self.next = VecDeque::new();
            if let Some(snapshot) = self.snapshot.take() {
                // Whoever cannot be told what it missed comes back for it.
                self.go_on(snapshot).await.ok()?;
                continue;
            }
            match tokio::time::timeout(KEEP_ALIVE, self.ear.recv()).await {
                Err(_) => return Some(STILL_HERE),
                Ok(Ok(update)) => {
                    if update.number > self.number && self.hears(&update.entry) {
                        let said = self.hear(&update);
                        if !said.is_empty() {
                            return Some(said);
                        }
                    }
                }
                Ok(Err(RecvError::Lagged(_))) => {
                    let seen = self.board.seen();
                    // Whoever cannot be told what it missed comes back for it.
                    self.catch_up(&seen).await.ok()?;
                }
                Ok(Err(RecvError::Closed)) => return None,
            }
        }
    }

    fn hears(&self, entry: &Entry) -> bool {
        match &self.watched {
            Watched::One(key, _) => entry.key == *key,
            Watched::Many { namespace: Some(namespace), .. } => entry.key.namespace == *namespace,
            Watched::Many { principal, .. } => principal.may(Verb::Read, Some(&entry.key.namespace)),
        }
    }

    fn hear(&mut self, update: &crate::board::Update) -> Bytes {
        match &mut self.watched {
            Watched::One(_, last) => {
                *last = Some(Mark::of(&update.entry, update.mark_ms));
                frame(update, false)
            }
            Watched::Many { last, .. } => {
                *last = Some(Mark::Time(update.mark_ms));
                let key = &update.entry.key;
                let known = self.pieces.iter().find(|(to, _)| to.as_ref().is_none_or(|to| key <= to));
                match known {
                    // It was said how the election stood after this; of the terms nothing was said.
                    Some((_, number)) if update.number <= *number => told(key, &update.news).into(),
                    _ => frame(update, true),
                }
            }
        }
    }

    /// Prepares to say what was missed since it last heard something, if it ever did, and how things stand.
    async fn catch_up(&mut self, seen: &Seen) -> Result<(), StoreError> {
        self.number = seen.number;
        let mark_ms = self.board.mark_ms();
        match &mut self.watched {
            Watched::One(key, last) => {
                let Some(entry) = seen.elections.get(key) else { return Ok(()) };
                if let Some(last) = &*last {
                    let terms = self.board.terms(entry).await?;
                    self.next.push_back(told(key, &last.news(&terms)).into());
                }
                self.next.push_back(whole(entry, &id(entry, mark_ms)).into());
                *last = Some(Mark::of(entry, mark_ms));
            }
            Watched::Many { last, .. } => {
                let terms_since = match last {
                    Some(Mark::Time(at)) => Some(*at),
                    _ => None,
                };
                self.pieces.clear();
                let id = id_of_many(mark_ms);
                self.snapshot = Some(Snapshot { terms_since, looked_up: 0, after: None, id });
                *last = Some(Mark::Time(mark_ms));
            }
        }
        self.next.retain(|said| !said.is_empty());
        Ok(())
    }

    /// Says the next piece of how things stand, of many elections.
    async fn go_on(&mut self, mut snapshot: Snapshot) -> Result<(), StoreError> {
        // Asked for anew for each piece: what was seen is not kept for a client that does not read.
        let seen = self.board.seen();
        let from = snapshot.after.take().map_or(Bound::Unbounded, Bound::Excluded);
        let mut piece = Vec::new();
        for (key, entry) in seen.elections.range((from, Bound::Unbounded)) {
            if !self.hears(entry) {
                continue;
            }
            match snapshot.terms_since {
                Some(at) if snapshot.looked_up < LOOKED_UP_MAX => {
                    if moved_since(entry, at) {
                        let terms = self.board.terms(entry).await?;
                        piece.extend_from_slice(&told(key, &Mark::Time(at).news(&terms)));
                        snapshot.looked_up += 1;
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
                Some((to, number)) if *number == seen.number => *to = snapshot.after.clone(),
                _ => self.pieces.push((snapshot.after.clone(), seen.number)),
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

/// Whether a term of an election began or ended since a time.
fn moved_since(entry: &Entry, at: i64) -> bool {
    let moved = |granted: Option<i64>, held: bool| granted.is_some_and(|granted| granted >= at || !held);
    entry.leases.iter().any(|lease| moved(lease.granted_at_ms, lease.holder.is_some()))
}
