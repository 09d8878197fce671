//! Chitchat transport over encrypted datagrams.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use chitchat::transport::{Socket, Transport};
use chitchat::{ChitchatMessage, Deserializable, Serializable};
use tokio::net::UdpSocket;

use super::cipher::{DATAGRAM_MAX, DatagramCipher, Kind, OpenedDatagram, ProcessNonce, UNKNOWN_NONCE};
use super::drops::{DropReason, Drops};
use super::fragments;
use crate::secrets::Secrets;
use crate::{metrics, runtime};

/// Maximum number of remembered peer addresses.
const PEERS_MAX: usize = 4096;

/// Delay after a socket error.
const ERROR_DELAY: Duration = Duration::from_millis(50);

/// A transport with a socket that is already bound, because the address is part of the member's id. Opens once.
pub(super) struct EncryptedTransport(Mutex<Option<EncryptedSocket>>);

impl EncryptedTransport {
    pub(super) fn new(socket: UdpSocket, cipher: DatagramCipher, drops: Arc<Drops>) -> Self {
        EncryptedTransport(Mutex::new(Some(EncryptedSocket {
            socket,
            cipher,
            drops,
            peers: HashMap::new(),
            messages: 0,
        })))
    }
}

#[async_trait]
impl Transport for EncryptedTransport {
    async fn open(&self, _: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        let socket = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(Box::new(socket.ok_or_else(|| io::Error::other("the gossip socket is already open"))?))
    }
}

/// Sends and receives encrypted datagrams.
struct EncryptedSocket {
    socket: UdpSocket,
    cipher: DatagramCipher,
    drops: Arc<Drops>,
    peers: HashMap<SocketAddr, Peer>,
    messages: u32,
}

/// The process at an address.
#[derive(Default)]
struct Peer {
    nonce: Option<ProcessNonce>,
    /// Newest message for the peer, until its nonce is known.
    waiting: Option<Vec<u8>>,
}

#[async_trait]
impl Socket for EncryptedSocket {
    /// A message that cannot be sent now is dropped, like a lost datagram: gossip repeats everything.
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        let message = message.serialize_to_vec();
        let peer = self.peer(to);
        match peer.nonce {
            Some(nonce) => self.send_message(to, &nonce, &message),
            None => {
                peer.waiting = Some(message);
                self.send_one(to, Kind::NonceRequest, &UNKNOWN_NONCE, &[]);
            }
        }
        Ok(())
    }

    /// Cancel safe: it waits only for the next datagram.
    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        let mut buffer = [0; DATAGRAM_MAX + 1];
        loop {
            let (length, from) = match self.socket.recv_from(&mut buffer).await {
                Ok(received) => received,
                // No process listens at a contacted address, or memory is short. Both are transient.
                Err(error) => {
                    tracing::debug!(%error, "gossip datagram not received");
                    tokio::time::sleep(ERROR_DELAY).await;
                    continue;
                }
            };
            match self.receive(from, &buffer[..length]) {
                Ok(Some(message)) => return Ok((from, message)),
                Ok(None) => {}
                Err(why) => {
                    tracing::debug!(%from, length, why = why.as_str(), "gossip datagram dropped");
                    self.drops.count(why);
                }
            }
        }
    }
}

impl EncryptedSocket {
    fn receive(&mut self, from: SocketAddr, datagram: &[u8]) -> Result<Option<ChitchatMessage>, DropReason> {
        match self.cipher.open(datagram)? {
            OpenedDatagram::NonceRequested(nonce) => self.send_one(from, Kind::NonceReply, &nonce, &[]),
            OpenedDatagram::Stale(nonce) => {
                // Send the current nonce to a sender that has not noticed our restart. If the datagram was a replay,
                // the reply is useless to an attacker.
                self.send_one(from, Kind::NonceReply, &nonce, &[]);
                return Err(DropReason::Replayed);
            }
            OpenedDatagram::NonceReceived(nonce) => self.learn_nonce(from, nonce),
            OpenedDatagram::Fragment(nonce, message) => {
                self.learn_nonce(from, nonce);
                let Some(message) = message else { return Ok(None) };
                metrics::gossip_message("received");
                let mut rest = message.as_slice();
                let message = ChitchatMessage::deserialize(&mut rest).map_err(|_| DropReason::Malformed)?;
                return if rest.is_empty() { Ok(Some(message)) } else { Err(DropReason::Malformed) };
            }
        }
        Ok(None)
    }

    /// Store the nonce of the process at an address and send the message that waits for it.
    fn learn_nonce(&mut self, from: SocketAddr, nonce: ProcessNonce) {
        let peer = self.peer(from);
        peer.nonce = Some(nonce);
        if let Some(message) = peer.waiting.take() {
            self.send_message(from, &nonce, &message);
        }
    }

    fn peer(&mut self, at: SocketAddr) -> &mut Peer {
        if self.peers.len() >= PEERS_MAX && !self.peers.contains_key(&at) {
            // The nonces will be requested again.
            self.peers.clear();
        }
        self.peers.entry(at).or_default()
    }

    fn send_message(&mut self, to: SocketAddr, nonce: &ProcessNonce, message: &[u8]) {
        self.messages = self.messages.wrapping_add(1);
        let Some(bodies) = fragments::split(self.messages, message) else {
            tracing::warn!(%to, length = message.len(), "gossip message not sent, too long");
            metrics::gossip_message("oversized");
            return;
        };
        for body in bodies {
            self.send_one(to, Kind::Fragment, nonce, &body);
        }
        metrics::gossip_message("sent");
    }

    fn send_one(&mut self, to: SocketAddr, kind: Kind, nonce: &ProcessNonce, body: &[u8]) {
        let sent = self
            .cipher
            .encrypt(kind, nonce, body)
            .and_then(|datagram| self.socket.try_send_to(&datagram, to));
        if let Err(error) = sent {
            tracing::debug!(%to, %error, "gossip datagram not sent");
            metrics::gossip_message("send_failed");
        }
    }
}

/// Bind the socket of a member.
pub(super) async fn bind(at: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(at).await?;
    // `try_send_to` relies on the readiness that the reactor has seen.
    socket.writable().await?;
    Ok(socket)
}

/// Local address from which `to` is reached. Sends no datagram.
pub(super) async fn route(to: SocketAddr) -> io::Result<std::net::IpAddr> {
    let any: SocketAddr = if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(to).await?;
    Ok(socket.local_addr()?.ip())
}

/// Create a cipher with the system's random numbers.
pub(super) fn new_cipher(secrets: &Secrets, cluster: &str) -> io::Result<DatagramCipher> {
    DatagramCipher::new(secrets, cluster, runtime::random)
}
