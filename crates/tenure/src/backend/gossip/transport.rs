//! The way of chitchat's messages: sealed datagrams.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use chitchat::transport::{Socket, Transport};
use chitchat::{ChitchatMessage, Deserializable, Serializable};
use tokio::net::UdpSocket;

use super::drops::{Dropped, Drops};
use super::parts;
use super::seal::{DATAGRAM_MAX, Kind, NOBODY, Opened, Seal, Word};
use crate::secrets::Secrets;
use crate::{metrics, runtime};

/// How many addresses are remembered, with the word of who is there.
const PEERS_MAX: usize = 4096;

/// How long we leave a socket alone that has failed.
const PAUSE: Duration = Duration::from_millis(50);

/// A socket that is bound already, since its address is part of what a member is called. Opens once.
pub(super) struct Sealed(Mutex<Option<Post>>);

impl Sealed {
    pub(super) fn new(socket: UdpSocket, seal: Seal, drops: Arc<Drops>) -> Self {
        Sealed(Mutex::new(Some(Post { socket, seal, drops, peers: HashMap::new(), messages: 0 })))
    }
}

#[async_trait]
impl Transport for Sealed {
    async fn open(&self, _: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        let post = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(Box::new(post.ok_or_else(|| io::Error::other("this socket was opened before"))?))
    }
}

/// Sends and receives.
struct Post {
    socket: UdpSocket,
    seal: Seal,
    drops: Arc<Drops>,
    peers: HashMap<SocketAddr, Peer>,
    messages: u32,
}

/// Who is at an address.
#[derive(Default)]
struct Peer {
    word: Option<Word>,
    /// The newest message for it, until its word is known.
    waiting: Option<Vec<u8>>,
}

#[async_trait]
impl Socket for Post {
    /// A datagram may be lost anyway, so what can not be sent now is: gossip says everything again.
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        let message = message.serialize_to_vec();
        let peer = self.peer(to);
        match peer.word {
            Some(word) => self.send_message(to, &word, &message),
            None => {
                peer.waiting = Some(message);
                self.send_one(to, Kind::Ask, &NOBODY, &[]);
            }
        }
        Ok(())
    }

    /// Nothing is lost if this is given up while it waits: it waits for the next datagram only.
    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        let mut buffer = [0; DATAGRAM_MAX + 1];
        loop {
            let (length, from) = match self.socket.recv_from(&mut buffer).await {
                Ok(received) => received,
                // Nobody listens where we sent something to, or memory is short. It passes.
                Err(error) => {
                    tracing::debug!(%error, "a datagram could not be received");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            match self.receive(from, &buffer[..length]) {
                Ok(Some(message)) => return Ok((from, message)),
                Ok(None) => {}
                Err(why) => {
                    tracing::debug!(%from, length, why = why.as_str(), "a datagram was dropped");
                    self.drops.count(why);
                }
            }
        }
    }
}

impl Post {
    fn receive(&mut self, from: SocketAddr, datagram: &[u8]) -> Result<Option<ChitchatMessage>, Dropped> {
        match self.seal.open(datagram)? {
            Opened::Asked(word) => self.send_one(from, Kind::Tell, &word, &[]),
            Opened::Stale(word) => {
                // Who has not heard yet that we started anew is told; if it was a repetition, that helps nobody.
                self.send_one(from, Kind::Tell, &word, &[]);
                return Err(Dropped::Replayed);
            }
            Opened::Told(word) => self.learn(from, word),
            Opened::Part(word, message) => {
                self.learn(from, word);
                let Some(message) = message else { return Ok(None) };
                metrics::gossip_message("received");
                let mut rest = message.as_slice();
                let message = ChitchatMessage::deserialize(&mut rest).map_err(|_| Dropped::Malformed)?;
                return if rest.is_empty() { Ok(Some(message)) } else { Err(Dropped::Malformed) };
            }
        }
        Ok(None)
    }

    /// Whoever is at this address is known by this word now, and gets what waits for it.
    fn learn(&mut self, from: SocketAddr, word: Word) {
        let peer = self.peer(from);
        peer.word = Some(word);
        if let Some(message) = peer.waiting.take() {
            self.send_message(from, &word, &message);
        }
    }

    fn peer(&mut self, at: SocketAddr) -> &mut Peer {
        if self.peers.len() >= PEERS_MAX && !self.peers.contains_key(&at) {
            // Their words are asked for again.
            self.peers.clear();
        }
        self.peers.entry(at).or_default()
    }

    fn send_message(&mut self, to: SocketAddr, word: &Word, message: &[u8]) {
        self.messages = self.messages.wrapping_add(1);
        let Some(bodies) = parts::cut(self.messages, message) else {
            tracing::warn!(%to, length = message.len(), "a message is too long to be sent");
            metrics::gossip_message("too_long");
            return;
        };
        for body in bodies {
            self.send_one(to, Kind::Part, word, &body);
        }
        metrics::gossip_message("sent");
    }

    fn send_one(&mut self, to: SocketAddr, kind: Kind, word: &Word, body: &[u8]) {
        let sent =
            self.seal.seal(kind, word, body).and_then(|datagram| self.socket.try_send_to(&datagram, to));
        if let Err(error) = sent {
            tracing::debug!(%to, %error, "a datagram could not be sent");
            metrics::gossip_message("unsent");
        }
    }
}

/// The socket of a member.
pub(super) async fn bind(at: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(at).await?;
    // `try_send_to` goes by what the reactor has seen.
    socket.writable().await?;
    Ok(socket)
}

/// The address of ours from which `to` is reached. Sends nothing.
pub(super) async fn route(to: SocketAddr) -> io::Result<std::net::IpAddr> {
    let any: SocketAddr = if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(to).await?;
    Ok(socket.local_addr()?.ip())
}

/// A seal whose randomness is the machine's.
pub(super) fn seal(secrets: &Secrets, cluster: &str) -> io::Result<Seal> {
    Seal::new(secrets, cluster, runtime::random)
}
