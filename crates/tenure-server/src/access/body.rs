//! Reading a request body with limits on size, time and rate.
//!
//! The body is read before the request takes a permit, so a slow client blocks no other. Its bytes are
//! charged to the principal from arrival until the request is answered.

use std::time::Duration;

use axum::body::Body;
use bytes::BytesMut;
use http::StatusCode;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http_body_util::BodyExt as _;
use hyper::body::Body as _;

use std::sync::Arc;

use crate::App;
use crate::limits::{Bytes, LargeBody, RequestLane, Side};
use crate::problem::Problem;
use crate::route::RouteAccess;

/// Resources that a body holds until its request is answered.
#[derive(Debug, Default)]
pub(super) struct Kept {
    _bytes: Option<Bytes>,
    _large: Option<LargeBody>,
}

/// Read the complete body of a request.
pub(super) async fn read(
    app: &App,
    guard: RouteAccess,
    lane: RequestLane,
    name: &Arc<str>,
    parts: &Parts,
    body: Body,
) -> Result<(Body, Kept), Problem> {
    if body.is_end_stream() {
        return Ok((body, Kept::default()));
    }
    let most = match (lane, guard.large) {
        (RequestLane::Unauthenticated, _) => app.bodies.unauthenticated.min(app.bodies.small),
        (_, true) => app.bodies.small.max(app.bodies.large),
        (_, false) => app.bodies.small,
    };
    let received =
        parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if received.is_some_and(|received| received > most as u64) {
        return Err(too_large(most));
    }
    let _reading = app.limits.body(name, app.runtime.now())?;
    let pace = Pace::new(app, lane);
    let mut kept = app.limits.bytes(name, Side::Request);
    let mut large = None;
    let mut read = BytesMut::new();
    let mut body = std::pin::pin!(body);
    while let Some(frame) = pace.within(app, read.len(), body.frame()).await? {
        let frame = frame.map_err(|error| {
            let detail = format!("reading the body failed: {error}");
            Problem::new(StatusCode::BAD_REQUEST, "malformed-body", detail)
                .remedy("send as many bytes as content-length declares")
        })?;
        let Ok(data) = frame.into_data() else { continue };
        let length = read.len() + data.len();
        if length > most {
            return Err(too_large(most));
        }
        if length > app.bodies.small && large.is_none() {
            // Reserve only now: an announced body that never arrives takes no permit.
            large = Some(app.limits.large_body(name, app.runtime.now()).await?);
        }
        kept.grow(data.len())?;
        // Copy the data: a small chunk would keep its whole buffer alive.
        read.extend_from_slice(&data);
    }
    Ok((Body::from(read.freeze()), Kept { _bytes: Some(kept), _large: large }))
}

/// Deadlines for the bytes of a body.
struct Pace {
    began: tenure::BootInstant,
    whole: Duration,
    start: Duration,
    rate: usize,
}

impl Pace {
    fn new(app: &App, lane: RequestLane) -> Pace {
        let whole = match lane {
            RequestLane::Unauthenticated => app.timeouts.unauthenticated_body.min(app.timeouts.body),
            _ => app.timeouts.body,
        };
        let (start, rate) = (app.timeouts.body_start, app.bodies.rate.max(1));
        Pace { began: app.runtime.now(), whole, start, rate }
    }

    /// Deadline for the next bytes once `received` bytes have arrived, counted from the start of the body.
    fn due(&self, received: usize) -> Duration {
        let earned = Duration::from_secs_f64(received as f64 / self.rate as f64);
        (self.start + earned).min(self.whole)
    }

    async fn within<T>(
        &self,
        app: &App,
        received: usize,
        next: impl Future<Output = T>,
    ) -> Result<T, Problem> {
        let due = self.due(received);
        let left = due.saturating_sub(app.runtime.now().since(self.began));
        tokio::time::timeout(left, next).await.map_err(|_| {
            let detail = if due < self.whole {
                format!(
                    "{received} bytes of the body arrived in {due:?}; the minimum rate is {} bytes per second",
                    self.rate
                )
            } else {
                format!("the body did not arrive within {:?}", self.whole)
            };
            Problem::new(StatusCode::REQUEST_TIMEOUT, "body-timeout", detail).remedy("send it faster")
        })
    }
}

fn too_large(most: usize) -> Problem {
    let detail = format!("the body exceeds {most} bytes");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", detail).remedy("send a smaller body")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_must_keep_the_minimum_rate_after_the_start() {
        let (start, whole) = (Duration::from_secs(3), Duration::from_secs(15));
        let pace = Pace { began: tenure::BootInstant::ZERO, whole, start, rate: 1000 };
        assert_eq!(pace.due(0), start);
        assert_eq!(pace.due(2000), Duration::from_secs(5));
        assert_eq!(pace.due(1_000_000), whole);
    }
}
