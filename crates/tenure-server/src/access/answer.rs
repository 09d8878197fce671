//! Sending a response: the permit of its request, and the bytes that the client has not read yet.
//!
//! A response is passed to the connection in pieces, so it ends when the client has read nearly all of it,
//! not when it was queued. Until then its bytes are charged to the principal.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as _, Frame, SizeHint};

use super::RequestPermitHandle;
use crate::limits;
use crate::metrics::{RejectReason, rejected};
use crate::problem::Problem;

/// Size of one piece.
const PIECE: usize = 32 * 1024;
/// Complete responses up to this size are not charged: the number of requests limits them.
const SMALL: u64 = 8 * 1024;

/// Response body that holds the permit of its request.
pub(super) struct PermitBody {
    inner: Body,
    /// Rest of the last frame.
    rest: Bytes,
    queued: limits::Bytes,
    /// Whether each frame is charged when it arrives. A complete response is charged at the start.
    each: bool,
    _permit: RequestPermitHandle,
}

impl PermitBody {
    /// Body of a complete response. If the request is safe to repeat, the response is rejected for a client
    /// with too many unread bytes.
    pub(super) fn whole(
        inner: Body,
        permit: RequestPermitHandle,
        mut queued: limits::Bytes,
        repeatable: bool,
    ) -> Result<PermitBody, Problem> {
        let size = inner.size_hint().exact();
        match size {
            Some(..=SMALL) | None => {}
            Some(size) if repeatable => queued.grow(usize::try_from(size).unwrap_or(usize::MAX))?,
            Some(size) => queued.grow_anyway(usize::try_from(size).unwrap_or(usize::MAX)),
        }
        Ok(PermitBody { inner, rest: Bytes::new(), queued, each: size.is_none(), _permit: permit })
    }

    /// Body of a stream. It ends if the client has too many unread bytes.
    pub(super) fn stream(inner: Body, permit: RequestPermitHandle, queued: limits::Bytes) -> PermitBody {
        PermitBody { inner, rest: Bytes::new(), queued, each: true, _permit: permit }
    }
}

impl hyper::body::Body for PermitBody {
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
                rejected(RejectReason::Unread);
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
