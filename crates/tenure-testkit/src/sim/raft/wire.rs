//! The network: it delays, reorders, breaks connections, says things twice, and is cut, both ways and one way.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures_core::future::BoxFuture;
use futures_core::stream::BoxStream;
use futures_util::StreamExt;
use tenure::backend::raft::ground::{Answers, Network, Said, hosted};
use tenure_core::SplitMix;
use tokio::sync::{mpsc, oneshot};

use super::computer::Computer;
use super::stats::RaftStats;
use super::time::Time;
use crate::sim::network::Draw as _;

const MS: u64 = 1_000_000;

/// How long a connection is tried for.
const CONNECT: u64 = 2_000 * MS;

/// How bad the network is; chances in a thousand.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weather {
    /// A message takes up to a second.
    pub(super) slow: u64,
    /// A connection breaks before the question, or the answer, is through.
    pub(super) broken: u64,
    /// A question is heard again, later.
    pub(super) doubled: u64,
}

/// The network. Clones share it.
#[derive(Clone)]
pub(super) struct Net {
    time: Time,
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    rng: SplitMix,
    weather: Weather,
    /// From where to where nothing gets through.
    cuts: BTreeSet<(String, String)>,
    desks: BTreeMap<String, Desk>,
    stats: RaftStats,
}

#[derive(Clone)]
struct Desk {
    computer: Arc<Computer>,
    answers: Arc<dyn Answers>,
}

impl Net {
    pub(super) fn new(time: &Time, seed: u64, weather: Weather) -> Net {
        let inner = Inner {
            rng: SplitMix::new(seed),
            weather,
            cuts: BTreeSet::new(),
            desks: BTreeMap::new(),
            stats: RaftStats::default(),
        };
        Net { time: time.clone(), inner: Arc::new(Mutex::new(inner)) }
    }

    pub(super) fn set_weather(&self, weather: Weather) {
        self.locked().weather = weather;
    }

    /// Nothing gets through from one place to another.
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

    /// One message: through, or not.
    async fn pass(&self, from: &str, to: &str) -> io::Result<()> {
        let (takes, fate) = {
            let Inner { rng, weather, cuts, stats, .. } = &mut *self.locked();
            let slow = rng.chance(weather.slow);
            let takes = if slow { rng.between(MS, 1_000 * MS) } else { rng.between(MS / 5, 5 * MS) };
            let is_cut = cuts.contains(&(from.to_owned(), to.to_owned()));
            stats.messages += 1;
            match is_cut {
                true => {
                    stats.messages_cut += 1;
                    (CONNECT, Err(io::ErrorKind::TimedOut))
                }
                false if rng.chance(weather.broken) => {
                    stats.connections_broken += 1;
                    (takes, Err(io::ErrorKind::ConnectionReset))
                }
                false => (takes, Ok(())),
            }
        };
        self.time.sleep(takes).await;
        fate.map_err(io::Error::from)
    }

    /// Takes a question to a place, and brings what is said there.
    async fn carry(&self, from: &str, to: &str, question: Vec<u8>) -> io::Result<Said> {
        self.pass(from, to).await?;
        let found = self.locked().desks.get(to).filter(|desk| !desk.computer.is_over()).cloned();
        let Some(desk) = found else { return Err(io::ErrorKind::ConnectionRefused.into()) };
        let again = {
            let Inner { rng, weather, stats, .. } = &mut *self.locked();
            let again = rng.chance(weather.doubled).then(|| rng.between(MS, 2_000 * MS));
            stats.questions_doubled += u64::from(again.is_some());
            again.map(|later| (later, question.clone()))
        };
        if let Some((later, question)) = again {
            let (time, desk) = (self.time.clone(), desk.clone());
            tokio::spawn(async move {
                time.sleep(later).await;
                let _ = desk.answer(question).await;
            });
        }
        tokio::select! {
            biased;
            said = desk.answer(question) => said,
            () = desk.computer.over() => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }
}

impl Desk {
    /// What is said here; on the machine that it is, so not while that stands still.
    async fn answer(&self, question: Vec<u8>) -> io::Result<Said> {
        let (tell, told) = oneshot::channel();
        let answers = self.answers.clone();
        tokio::spawn(hosted(self.computer.clone(), async move {
            let _ = tell.send(answers.answer(question).await);
        }));
        told.await.map_err(|_| io::ErrorKind::ConnectionReset.into())
    }
}

/// The network as one machine has it.
pub(super) struct Port {
    pub(super) net: Net,
    pub(super) at: String,
    pub(super) computer: Arc<Computer>,
}

impl Port {
    /// Sends something on its way, which it goes on whatever becomes of who sent it.
    async fn send<T: Send + 'static>(
        &self,
        carry: impl Future<Output = io::Result<T>> + Send + 'static,
    ) -> io::Result<T> {
        self.computer.awake().await;
        let (tell, told) = oneshot::channel();
        tokio::spawn(async move {
            let _ = tell.send(carry.await);
        });
        let said = told.await.map_err(|_| io::Error::from(io::ErrorKind::ConnectionReset))?;
        self.computer.awake().await;
        said
    }
}

#[async_trait]
impl Network for Port {
    async fn ask(&self, _: u64, place: &str, question: Vec<u8>) -> io::Result<Vec<u8>> {
        let (net, from, to) = (self.net.clone(), self.at.clone(), place.to_owned());
        let is_snapshot = question.starts_with(b"{\"snapshot\"");
        self.send(async move {
            match net.carry(&from, &to, question).await? {
                Said::Once(answer) => {
                    net.pass(&to, &from).await?;
                    net.locked().stats.snapshots += u64::from(is_snapshot);
                    Ok(answer)
                }
                Said::Often(_) | Said::Nothing => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        })
        .await
    }

    async fn listen(
        &self,
        _: u64,
        place: &str,
        question: Vec<u8>,
    ) -> io::Result<BoxStream<'static, io::Result<Vec<u8>>>> {
        let (net, from, to) = (self.net.clone(), self.at.clone(), place.to_owned());
        let (tell, told) = mpsc::unbounded_channel();
        self.send(async move {
            let Said::Often(mut said) = net.carry(&from, &to, question).await? else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            tokio::spawn(async move {
                while let Some(word) = said.next().await {
                    if net.pass(&to, &from).await.is_err() || tell.send(word).is_err() {
                        break;
                    }
                }
            });
            Ok(())
        })
        .await?;
        let computer = self.computer.clone();
        let heard = futures_util::stream::unfold((told, computer), async |(mut told, computer)| {
            let word = told.recv().await?;
            computer.awake().await;
            Some((Ok(word), (told, computer)))
        });
        Ok(heard.boxed())
    }

    async fn serve(&self, place: &str, answers: Arc<dyn Answers>) -> io::Result<BoxFuture<'static, ()>> {
        let desk = Desk { computer: self.computer.clone(), answers };
        self.net.locked().desks.insert(place.to_owned(), desk);
        Ok(Box::pin(std::future::pending()))
    }
}
