//! Load generator: many connections, each with one request at a time.

use std::future::Future;
use std::time::Duration;

use serde::Serialize;
use tenure::runtime::now;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::child::ServerProcess;
use crate::BenchError;

/// Request rate and latencies.
#[derive(Clone, Debug, Serialize)]
pub struct LoadResult {
    /// Requests per second.
    pub per_second: f64,
    /// Median latency in milliseconds.
    pub p50_ms: f64,
    /// 99th percentile in milliseconds.
    pub p99_ms: f64,
}

/// Connections and duration of a load test.
pub(super) struct LoadSpec {
    pub(super) connections: usize,
    pub(super) window: Duration,
}

/// A request that can be repeated.
pub(super) trait LoadRequest: Send + 'static {
    fn send(&mut self) -> impl Future<Output = Result<(), BenchError>> + Send;
}

impl LoadSpec {
    /// Send requests to the server, one request per connection.
    pub(super) async fn requests(
        &self,
        served: &ServerProcess,
        request: impl Fn(usize) -> Vec<u8>,
    ) -> Result<LoadResult, BenchError> {
        let mut senders = Vec::new();
        for number in 0..self.connections {
            senders.push(RepeatedRequest { connection: served.connect().await?, request: request(number) });
        }
        self.run(senders).await
    }

    /// Send statements to the database, one statement per connection.
    pub(super) async fn statements<A: LoadRequest, F: Future<Output = Result<A, BenchError>>>(
        &self,
        open: impl Fn(usize) -> F,
    ) -> Result<LoadResult, BenchError> {
        let mut senders = Vec::new();
        for number in 0..self.connections {
            senders.push(open(number).await?);
        }
        self.run(senders).await
    }

    async fn run<A: LoadRequest>(&self, senders: Vec<A>) -> Result<LoadResult, BenchError> {
        let window = self.window;
        let tasks: Vec<_> = senders
            .into_iter()
            .map(|mut sender| {
                tokio::spawn(async move {
                    // The setup of the first requests is not measured.
                    for _ in 0..20 {
                        sender.send().await?;
                    }
                    let (start, mut times) = (now(), Vec::new());
                    let mut last = start;
                    while last.since(start) < window {
                        sender.send().await?;
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
            let index = (times.len() as f64 * part) as usize;
            times.get(index.min(times.len().saturating_sub(1))).map_or(f64::NAN, |t| t.as_secs_f64() * 1e3)
        };
        let per_second = times.len() as f64 / window.as_secs_f64();
        Ok(LoadResult { per_second, p50_ms: at(0.5), p99_ms: at(0.99) })
    }
}

struct RepeatedRequest {
    connection: RawConnection,
    request: Vec<u8>,
}

impl LoadRequest for RepeatedRequest {
    async fn send(&mut self) -> Result<(), BenchError> {
        self.connection.round(&self.request).await.map(drop)
    }
}

/// A hand-written HTTP connection: a client library would be measured together with the server.
pub(crate) struct RawConnection {
    stream: TcpStream,
    read: Vec<u8>,
}

impl RawConnection {
    pub(super) fn new(stream: TcpStream) -> RawConnection {
        RawConnection { stream, read: Vec::with_capacity(4096) }
    }

    /// Encode a request.
    pub(crate) fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
        let length = body.len();
        format!(
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        )
        .into_bytes()
    }

    pub(super) async fn get(&mut self, path: &str) -> Result<Vec<u8>, BenchError> {
        self.round(&RawConnection::request("GET", path, "")).await
    }

    pub(crate) async fn post(&mut self, path: &str, body: &str) -> Result<Vec<u8>, BenchError> {
        self.round(&RawConnection::request("POST", path, body)).await
    }

    /// Open a stream and leave it open.
    pub(super) async fn stream(&mut self, path: &str) -> Result<(), BenchError> {
        self.stream.write_all(&RawConnection::request("GET", path, "")).await?;
        let end = self.head().await?;
        self.read.drain(..end);
        Ok(())
    }

    /// Send a request and return the body of the response.
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

    /// Read the head of a successful response and return its length.
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
