//! TCP transport between members and clients.
//!
//! Every connection is encrypted and authenticated with the secret of the cluster ([`crate::stream_cipher`]). A connection
//! carries one request at a time; concurrent requests use further connections. The number of connections is limited
//! ([`crate::admission`]); connections that have not authenticated yet have a small limit of their own.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_core::future::BoxFuture;
use futures_core::stream::BoxStream;
use futures_util::StreamExt;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::env::{Network, RequestHandler, RequestReply};
use super::protocol::{HelloReply, RaftRequest, within};
use super::types::NodeId;
use crate::admission::{Admission, Admitted, ConnectionLimits};
use crate::open_files;
use crate::runtime::{self, SystemRuntime};
use crate::secrets::Secrets;
use crate::stream_cipher::{self, StreamCipher, StreamCiphers};

/// Maximum message size.
const MESSAGE_MAX: usize = 64 << 20;

/// Maximum message size before authentication.
const UNAUTHENTICATED_MESSAGE_MAX: usize = 4 << 10;

/// Time after which an idle connection is closed. The next request opens a new one.
const IDLE_LIMIT: Duration = Duration::from_secs(600);

/// Delay before the next accept after an accept failed.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Time limit for connecting and for the `Hello` reply.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(2);

/// Maximum number of idle connections kept per member.
const IDLE_MAX: usize = 8;

/// One end of an encrypted connection.
struct EncryptedStream {
    read: BufReader<OwnedReadHalf>,
    write: OwnedWriteHalf,
    ours: StreamCipher,
    theirs: StreamCipher,
}

impl EncryptedStream {
    /// Connect to a member.
    async fn to(address: &str, secret: &[u8]) -> io::Result<EncryptedStream> {
        let opening = async {
            let mut stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let ours = stream_cipher::nonce(runtime::random);
            let theirs = stream_cipher::exchange_nonces(&mut stream, &ours).await?;
            let StreamCiphers { from_client, from_server } = StreamCiphers::derive(secret, &ours, &theirs)?;
            Ok(EncryptedStream::of(stream, from_client, from_server))
        };
        within(&SystemRuntime, HANDSHAKE_LIMIT, opening).await
    }

    /// Accept a connection and its first message, which proves that the peer knows a secret of the cluster.
    async fn accept(mut stream: TcpStream, secrets: &Secrets) -> io::Result<(EncryptedStream, Vec<u8>)> {
        stream.set_nodelay(true)?;
        let ours = stream_cipher::nonce(runtime::random);
        let theirs = stream_cipher::exchange_nonces(&mut stream, &ours).await?;
        let candidates = secrets.accepted().map(|secret| StreamCiphers::derive(secret, &theirs, &ours));
        let candidates = candidates.collect::<io::Result<Vec<StreamCiphers>>>()?;
        let (hello, ciphers) =
            stream_cipher::read_first_message(&mut stream, candidates, UNAUTHENTICATED_MESSAGE_MAX).await?;
        Ok((EncryptedStream::of(stream, ciphers.from_server, ciphers.from_client), hello))
    }

    fn of(stream: TcpStream, ours: StreamCipher, theirs: StreamCipher) -> EncryptedStream {
        let (read, write) = stream.into_split();
        EncryptedStream { read: BufReader::with_capacity(64 << 10, read), write, ours, theirs }
    }

    async fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::new();
        stream_cipher::encrypt(&mut self.ours, message, &mut bytes)?;
        self.write.write_all(&bytes).await
    }

    /// Receive one message; `None` at the end of the stream.
    async fn receive(&mut self) -> io::Result<Option<Vec<u8>>> {
        stream_cipher::read_message(&mut self.read, &mut self.theirs, MESSAGE_MAX).await
    }

    async fn call(&mut self, request: &[u8]) -> io::Result<Vec<u8>> {
        self.send(request).await?;
        self.receive().await?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// TCP connections to members and from them.
pub(super) struct Tcp {
    me: Option<NodeId>,
    secrets: Secrets,
    idle: Mutex<HashMap<String, Vec<EncryptedStream>>>,
}

impl Tcp {
    pub(super) fn new(me: Option<NodeId>, secrets: Secrets) -> Tcp {
        Tcp { me, secrets, idle: Mutex::default() }
    }

    /// Open a connection to a member and check its node id.
    async fn open(&self, node: NodeId, address: &str) -> io::Result<EncryptedStream> {
        let hello = serde_json::to_vec(&RaftRequest::Hello(node, self.me))?;
        let reply = async {
            let mut stream = EncryptedStream::to(address, self.secrets.sent()).await?;
            let reply = stream.call(&hello).await?;
            Ok((stream, reply))
        };
        let (stream, reply) = within(&SystemRuntime, HANDSHAKE_LIMIT * 2, reply).await?;
        let reply: HelloReply = serde_json::from_slice(&reply).map_err(io::Error::other)?;
        reply.check(node, address).map(|()| stream)
    }

    fn keep_idle(&self, address: &str, stream: EncryptedStream) {
        let mut idle = self.locked();
        let kept = idle.entry(address.to_owned()).or_default();
        if kept.len() < IDLE_MAX {
            kept.push(stream);
        }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<String, Vec<EncryptedStream>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Network for Tcp {
    /// A kept connection may be broken without the member being down, so the request is retried on a new connection.
    async fn request(&self, node: NodeId, address: &str, request: Vec<u8>) -> io::Result<Vec<u8>> {
        let kept = self.locked().get_mut(address).and_then(Vec::pop);
        if let Some(mut stream) = kept {
            if let Ok(answer) = stream.call(&request).await {
                self.keep_idle(address, stream);
                return Ok(answer);
            }
            // The other kept connections to this address are probably broken too.
            self.locked().remove(address);
        }
        let mut stream = self.open(node, address).await?;
        let answer = stream.call(&request).await?;
        self.keep_idle(address, stream);
        Ok(answer)
    }

    async fn subscribe(
        &self,
        node: NodeId,
        address: &str,
        request: Vec<u8>,
    ) -> io::Result<BoxStream<'static, io::Result<Vec<u8>>>> {
        let mut stream = self.open(node, address).await?;
        stream.send(&request).await?;
        let messages = futures_util::stream::unfold(stream, async |mut stream| {
            let message = stream.receive().await.transpose()?;
            Some((message, stream))
        });
        Ok(messages.boxed())
    }

    async fn serve(
        &self,
        address: &str,
        handler: Arc<dyn RequestHandler>,
    ) -> io::Result<BoxFuture<'static, ()>> {
        let listener = TcpListener::bind(address).await?;
        Ok(Box::pin(serve(listener, handler, self.secrets.clone())))
    }
}

/// Accept connections and answer their requests.
async fn serve(listener: TcpListener, handler: Arc<dyn RequestHandler>, secrets: Secrets) {
    let limits = ConnectionLimits::for_open_files(open_files::limit());
    let admission = Admission::new("raft", limits, Arc::new(SystemRuntime));
    // Dropping the sender ends the open connections when the member ends.
    let (_end_on_drop, ended) = watch::channel(());
    let mut is_exhausted = false;
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // The process is probably out of file descriptors until other connections close.
                if !std::mem::replace(&mut is_exhausted, true) {
                    tracing::warn!("raft accept failed, retrying: {error}");
                }
                runtime::sleep_until(runtime::now() + ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        is_exhausted = false;
        let mut admitted = admission.admit(from.ip()).await;
        let (handler, secrets, mut ended) = (handler.clone(), secrets.clone(), ended.clone());
        tokio::spawn(async move {
            tokio::select! {
                _ = ended.changed() => {}
                done = serve_connection(handler.as_ref(), stream, &secrets, &mut admitted) => if let Err(error) = done {
                    tracing::debug!(%from, "raft connection ended: {error}");
                },
            }
        });
    }
}

async fn serve_connection(
    handler: &dyn RequestHandler,
    stream: TcpStream,
    secrets: &Secrets,
    admitted: &mut Admitted,
) -> io::Result<()> {
    let (mut stream, hello) =
        admitted.handshake(HANDSHAKE_LIMIT, EncryptedStream::accept(stream, secrets)).await?;
    let mut next = Some(hello);
    while let Some(request) = next {
        match handler.handle(request).await {
            RequestReply::Message(answer) => stream.send(&answer).await?,
            RequestReply::Stream(mut messages) => {
                while let Some(message) = messages.next().await {
                    stream.send(&message).await?;
                }
                return Ok(());
            }
            RequestReply::NoReply => return Ok(()),
        }
        next = within(&SystemRuntime, IDLE_LIMIT, stream.receive()).await?;
    }
    Ok(())
}
