//! The simulated network: it delays, reorders, breaks connections, duplicates requests, and is cut in one or both
//! directions.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures_core::future::BoxFuture;
use futures_core::stream::BoxStream;
use futures_util::StreamExt;
use tenure::store::raft::env::{Network, RequestHandler, RequestReply, run_on_host};
use tenure_core::SplitMix;
use tokio::sync::{mpsc, oneshot};

use super::computer::Computer;
use super::stats::RaftStats;
use super::time::SimTime;
use crate::sim::network::RandomExt as _;

const MS: u64 = 1_000_000;

/// Connect timeout.
const CONNECT: u64 = 2_000 * MS;

/// Fault rates of the network, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RaftNetworkFaultRates {
    /// A message takes up to a second.
    pub(super) slow: u64,
    /// A connection breaks during the request or the response.
    pub(super) broken: u64,
    /// A request is delivered again later.
    pub(super) doubled: u64,
}

/// The network. Clones share it.
#[derive(Clone)]
pub(super) struct Net {
    time: SimTime,
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    rng: SplitMix,
    weather: RaftNetworkFaultRates,
    /// Directed links that are cut.
    cuts: BTreeSet<(String, String)>,
    listeners: BTreeMap<String, NetworkListener>,
    stats: RaftStats,
}

#[derive(Clone)]
struct NetworkListener {
    computer: Arc<Computer>,
    handler: Arc<dyn RequestHandler>,
}

impl Net {
    pub(super) fn new(time: &SimTime, seed: u64, weather: RaftNetworkFaultRates) -> Net {
        let inner = Inner {
            rng: SplitMix::new(seed),
            weather,
            cuts: BTreeSet::new(),
            listeners: BTreeMap::new(),
            stats: RaftStats::default(),
        };
        Net { time: time.clone(), inner: Arc::new(Mutex::new(inner)) }
    }

    pub(super) fn set_weather(&self, weather: RaftNetworkFaultRates) {
        self.locked().weather = weather;
    }

    /// Cuts the link from one address to another.
    pub(super) fn cut(&self, from: &str, to: &str) {
        self.locked().cuts.insert((from.into(), to.into()));
    }

    pub(super) fn heal(&self) {
        self.locked().cuts.clear();
    }

    pub(super) fn stats(&self) -> RaftStats {
        self.locked().stats.clone()
    }

    fn locked(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers one message or fails.
    async fn pass(&self, from: &str, to: &str) -> io::Result<()> {
        let (delay, outcome) = {
            let Inner { rng, weather, cuts, stats, .. } = &mut *self.locked();
            let slow = rng.chance(weather.slow);
            let delay = if slow { rng.between(MS, 1_000 * MS) } else { rng.between(MS / 5, 5 * MS) };
            let is_cut = cuts.contains(&(from.to_owned(), to.to_owned()));
            stats.messages += 1;
            match is_cut {
                true => {
                    stats.messages_cut += 1;
                    (CONNECT, Err(io::ErrorKind::TimedOut))
                }
                false if rng.chance(weather.broken) => {
                    stats.connections_broken += 1;
                    (delay, Err(io::ErrorKind::ConnectionReset))
                }
                false => (delay, Ok(())),
            }
        };
        self.time.sleep(delay).await;
        outcome.map_err(io::Error::from)
    }

    /// Sends a request to an address and returns the response.
    async fn carry(&self, from: &str, to: &str, request: Vec<u8>) -> io::Result<RequestReply> {
        self.pass(from, to).await?;
        let found = self.locked().listeners.get(to).filter(|listener| !listener.computer.is_over()).cloned();
        let Some(listener) = found else { return Err(io::ErrorKind::ConnectionRefused.into()) };
        let again = {
            let Inner { rng, weather, stats, .. } = &mut *self.locked();
            let again = rng.chance(weather.doubled).then(|| rng.between(MS, 2_000 * MS));
            stats.requests_duplicated += u64::from(again.is_some());
            again.map(|later| (later, request.clone()))
        };
        if let Some((later, request)) = again {
            let (time, listener) = (self.time.clone(), listener.clone());
            tokio::spawn(async move {
                time.sleep(later).await;
                let _ = listener.handle(request).await;
            });
        }
        tokio::select! {
            biased;
            result = listener.handle(request) => result,
            () = listener.computer.over() => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }
}

impl NetworkListener {
    /// Handles a request on the receiving machine; waits while that machine is suspended.
    async fn handle(&self, request: Vec<u8>) -> io::Result<RequestReply> {
        let (sender, receiver) = oneshot::channel();
        let handler = self.handler.clone();
        tokio::spawn(run_on_host(self.computer.clone(), async move {
            let _ = sender.send(handler.handle(request).await);
        }));
        receiver.await.map_err(|_| io::ErrorKind::ConnectionReset.into())
    }
}

/// The network as one machine uses it.
pub(super) struct Port {
    pub(super) net: Net,
    pub(super) at: String,
    pub(super) computer: Arc<Computer>,
}

impl Port {
    /// Sends a message that continues even if its sender ends.
    async fn send<T: Send + 'static>(
        &self,
        carry: impl Future<Output = io::Result<T>> + Send + 'static,
    ) -> io::Result<T> {
        self.computer.awake().await;
        let (sender, receiver) = oneshot::channel();
        tokio::spawn(async move {
            let _ = sender.send(carry.await);
        });
        let result = receiver.await.map_err(|_| io::Error::from(io::ErrorKind::ConnectionReset))?;
        self.computer.awake().await;
        result
    }
}

#[async_trait]
impl Network for Port {
    async fn request(&self, _: u64, address: &str, request: Vec<u8>) -> io::Result<Vec<u8>> {
        let (net, from, to) = (self.net.clone(), self.at.clone(), address.to_owned());
        let is_snapshot = request.starts_with(b"{\"install_snapshot\"");
        self.send(async move {
            match net.carry(&from, &to, request).await? {
                RequestReply::Message(response) => {
                    net.pass(&to, &from).await?;
                    net.locked().stats.snapshots += u64::from(is_snapshot);
                    Ok(response)
                }
                RequestReply::Stream(_) | RequestReply::NoReply => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        })
        .await
    }

    async fn subscribe(
        &self,
        _: u64,
        address: &str,
        request: Vec<u8>,
    ) -> io::Result<BoxStream<'static, io::Result<Vec<u8>>>> {
        let (net, from, to) = (self.net.clone(), self.at.clone(), address.to_owned());
        let (sender, receiver) = mpsc::unbounded_channel();
        self.send(async move {
            let RequestReply::Stream(mut stream) = net.carry(&from, &to, request).await? else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            tokio::spawn(async move {
                while let Some(message) = stream.next().await {
                    if net.pass(&to, &from).await.is_err() || sender.send(message).is_err() {
                        break;
                    }
                }
            });
            Ok(())
        })
        .await?;
        let computer = self.computer.clone();
        let received =
            futures_util::stream::unfold((receiver, computer), async |(mut receiver, computer)| {
                let message = receiver.recv().await?;
                computer.awake().await;
                Some((Ok(message), (receiver, computer)))
            });
        Ok(received.boxed())
    }

    async fn serve(
        &self,
        address: &str,
        handler: Arc<dyn RequestHandler>,
    ) -> io::Result<BoxFuture<'static, ()>> {
        let listener = NetworkListener { computer: self.computer.clone(), handler };
        self.net.locked().listeners.insert(address.to_owned(), listener);
        Ok(Box::pin(std::future::pending()))
    }
}
