//! Sending an answer: the slot of its request, and the bytes that its client has not taken yet.
//!
//! An answer is handed to the connection in pieces, so that it ends when its client has taken nearly all of it, and not
//! when it was queued. Until then its bytes are on the account of its principal.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as _, Frame, SizeHint};

use super::Slot;
use crate::limits;
use crate::metrics::{Reason, refused};
use crate::problem::Problem;

/// How much is handed to the connection at once.
const PIECE: usize = 32 * 1024;
/// Whole answers up to this size are not counted: their number is limited by that of the requests.
const SMALL: u64 = 8 * 1024;

/// The body of an answer, with the slot of its request.
pub(super) struct Held {
    inner: Body,
    /// What is left of the last frame.
    rest: Bytes,
    queued: limits::Bytes,
    /// Whether each frame is counted when it comes. A whole answer is counted from the beginning.
    each: bool,
    _slot: Slot,
}

impl Held {
    /// An answer that is complete. If it changes nothing to ask again, it is refused to a client that leaves too much
    /// unread.
    pub(super) fn whole(
        inner: Body,
        slot: Slot,
        mut queued: limits::Bytes,
        repeatable: bool,
    ) -> Result<Held, Problem> {
        let size = inner.size_hint().exact();
        match size {
            Some(..=SMALL) | None => {}
            Some(size) if repeatable => queued.grow(usize::try_from(size).unwrap_or(usize::MAX))?,
            Some(size) => queued.grow_anyway(usize::try_from(size).unwrap_or(usize::MAX)),
        }
        Ok(Held { inner, rest: Bytes::new(), queued, each: size.is_none(), _slot: slot })
    }

    /// An answer that goes on. It ends when its client leaves too much unread.
    pub(super) fn stream(inner: Body, slot: Slot, queued: limits::Bytes) -> Held {
        Held { inner, rest: Bytes::new(), queued, each: true, _slot: slot }
    }
}

impl hyper::body::Body for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        if this.rest.is_empty() {
            if this.each {
                this.queued.clear();
            }
            let data = match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                end => return Poll::Ready(end),
            };
            if this.each
                && let Err(problem) = this.queued.grow(data.len())
            {
                refused(Reason::Unread);
                return Poll::Ready(Some(Err(axum::Error::new(problem))));
            }
            this.rest = data;
        }
        let piece = this.rest.split_to(this.rest.len().min(PIECE));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let mut hint = self.inner.size_hint();
        let (lower, upper) = (hint.lower() + rest, hint.upper().map(|upper| upper + rest));
        match upper {
            Some(upper) => {
                hint.set_upper(upper);
                hint.set_lower(lower);
            }
            None => hint.set_lower(lower),
        }
        hint
    }
}
