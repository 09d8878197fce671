//! Many connections, each asking again as soon as it is answered.

use std::future::Future;
use std::time::Duration;

use serde::Serialize;
use tenure::runtime::now;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::child::Served;
use crate::BenchError;

/// A rate, and how long each took.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// How many were answered per second.
    pub per_second: f64,
    /// Half of them took no longer than this, in milliseconds.
    pub p50_ms: f64,
    /// All but one in a hundred.
    pub p99_ms: f64,
}

/// How to ask.
pub(super) struct Load {
    pub(super) connections: usize,
    pub(super) window: Duration,
}

/// Something that can be done again and again.
pub(super) trait Ask: Send + 'static {
    fn ask(&mut self) -> impl Future<Output = Result<(), BenchError>> + Send;
}

impl Load {
    /// Asks the server; each connection its own request.
    pub(super) async fn requests(
        &self,
        served: &Served,
        request: impl Fn(usize) -> Vec<u8>,
    ) -> Result<Measured, BenchError> {
        let mut askers = Vec::new();
        for number in 0..self.connections {
            askers.push(Repeated { wire: served.wire().await?, request: request(number) });
        }
        self.run(askers).await
    }

    /// Asks the database; each connection its own statement.
    pub(super) async fn statements<A: Ask, F: Future<Output = Result<A, BenchError>>>(
        &self,
        open: impl Fn(usize) -> F,
    ) -> Result<Measured, BenchError> {
        let mut askers = Vec::new();
        for number in 0..self.connections {
            askers.push(open(number).await?);
        }
        self.run(askers).await
    }

    async fn run<A: Ask>(&self, askers: Vec<A>) -> Result<Measured, BenchError> {
        let window = self.window;
        let tasks: Vec<_> = askers
            .into_iter()
            .map(|mut asker| {
                tokio::spawn(async move {
                    // Whatever the first ones set up is not what is measured.
                    for _ in 0..20 {
                        asker.ask().await?;
                    }
                    let (start, mut times) = (now(), Vec::new());
                    let mut last = start;
                    while last.since(start) < window {
                        asker.ask().await?;
                        let at = now();
                        times.push(at.since(last));
                        last = at;
                    }
                    Ok::<_, BenchError>(times)
                })
            })
            .collect();
        let mut times: Vec<Duration> = Vec::new();
        for task in tasks {
            times.extend(task.await.map_err(|error| BenchError::Helper(error.to_string()))??);
        }
        times.sort();
        let at = |part: f64| {
            let place = (times.len() as f64 * part) as usize;
            times.get(place.min(times.len().saturating_sub(1))).map_or(f64::NAN, |t| t.as_secs_f64() * 1e3)
        };
        let per_second = times.len() as f64 / window.as_secs_f64();
        Ok(Measured { per_second, p50_ms: at(0.5), p99_ms: at(0.99) })
    }
}

struct Repeated {
    wire: Wire,
    request: Vec<u8>,
}

impl Ask for Repeated {
    async fn ask(&mut self) -> Result<(), BenchError> {
        self.wire.round(&self.request).await.map(drop)
    }
}

/// One connection, spoken to by hand: a client library would be measured along with the server.
pub(crate) struct Wire {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Wire {
    pub(super) fn new(stream: TcpStream) -> Wire {
        Wire { stream, read: Vec::with_capacity(4096) }
    }

    /// A request, as it goes over the wire.
    pub(crate) fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
        let length = body.len();
        format!(
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        )
        .into_bytes()
    }

    pub(super) async fn get(&mut self, path: &str) -> Result<Vec<u8>, BenchError> {
        self.round(&Wire::request("GET", path, "")).await
    }

    pub(crate) async fn post(&mut self, path: &str, body: &str) -> Result<Vec<u8>, BenchError> {
        self.round(&Wire::request("POST", path, body)).await
    }

    /// Begins a stream, and leaves it there.
    pub(super) async fn stream(&mut self, path: &str) -> Result<(), BenchError> {
        self.stream.write_all(&Wire::request("GET", path, "")).await?;
        let end = self.head().await?;
        self.read.drain(..end);
        Ok(())
    }

    /// Sends a request and returns the body of its answer.
    pub(crate) async fn round(&mut self, request: &[u8]) -> Result<Vec<u8>, BenchError> {
        self.stream.write_all(request).await?;
        let end = self.head().await?;
        let length = content_length(&self.read[..end]);
        while self.read.len() < end + length {
            self.more().await?;
        }
        let body = self.read[end..end + length].to_vec();
        self.read.drain(..end + length);
        Ok(body)
    }

    /// Reads the head of an answer that is none of a failure, and says where it ends.
    async fn head(&mut self) -> Result<usize, BenchError> {
        let end = loop {
            if let Some(at) = self.read.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            self.more().await?;
        };
        if self.read.get(9) != Some(&b'2') {
            let text = String::from_utf8_lossy(&self.read).into_owned();
            return Err(BenchError::Helper(format!("the server answered: {text}")));
        }
        Ok(end)
    }

    async fn more(&mut self) -> Result<(), BenchError> {
        if self.stream.read_buf(&mut self.read).await? == 0 {
            return Err(BenchError::Helper("the server closed a connection".into()));
        }
        Ok(())
    }
}

fn content_length(head: &[u8]) -> usize {
    let head = String::from_utf8_lossy(head);
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    let found = lines.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    found.and_then(|(_, value)| value.trim().parse().ok()).unwrap_or(0)
}
