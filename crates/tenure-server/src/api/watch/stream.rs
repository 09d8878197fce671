//! One hearer's stream.

use std::collections::VecDeque;
use std::convert::Infallible;
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

/// How long nothing is said at most.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// What is said then.
const STILL_HERE: Bytes = Bytes::from_static(b": still here\n\n");
/// What is said first.
const WELCOME: &[u8] = b"retry: 1000\n: welcome\n\n";
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
    /// What was seen up to here has been said.
    number: u64,
}

impl Hearing {
    /// One who begins to hear, or comes back.
    pub(super) async fn new(
        board: Arc<Board>,
        ear: Ear,
        watched: Watched,
        seen: &Seen,
    ) -> Result<Hearing, StoreError> {
        let next = VecDeque::from([Bytes::from_static(WELCOME)]);
        let mut hearing = Hearing { board, ear, watched, next, number: 0 };
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
                return Some(next);
            }
            // A queue that was long once is not kept.
            self.next = VecDeque::new();
            match tokio::time::timeout(KEEP_ALIVE, self.ear.recv()).await {
                Err(_) => return Some(STILL_HERE),
                Ok(Ok(update)) => {
                    if update.number > self.number && self.hears(&update.entry) {
                        return Some(self.hear(&update));
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
                frame(update, true)
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
            Watched::Many { namespace, principal, last } => {
                let readable = |key: &ElectionKey| match &namespace {
                    Some(namespace) => key.namespace == *namespace,
                    None => principal.may(Verb::Read, Some(&key.namespace)),
                };
                let entries = || seen.elections.iter().filter(|(key, _)| readable(key));
                if let Some(Mark::Time(at)) = &*last {
                    let moved = |entry: &Entry| {
                        entry.leases.iter().any(|lease| {
                            lease
                                .granted_at_ms
                                .is_some_and(|granted| granted >= *at || lease.holder.is_none())
                        })
                    };
                    for (key, entry) in entries().filter(|(_, entry)| moved(entry)).take(LOOKED_UP_MAX) {
                        let terms = self.board.terms(entry).await?;
                        self.next.push_back(told(key, &Mark::Time(*at).news(&terms)).into());
                    }
                }
                let id = id_of_many(mark_ms);
                self.next.extend(entries().map(|(_, entry)| Bytes::from(whole(entry, &id))));
                *last = Some(Mark::Time(mark_ms));
            }
        }
        self.next.retain(|said| !said.is_empty());
        Ok(())
    }
}
