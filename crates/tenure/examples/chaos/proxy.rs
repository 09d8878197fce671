//! A small TCP proxy: a fixed address in front of a changing server, which can withhold responses.
//!
//! *Withholding*: client data still reaches the server, and server data waits in the proxy until responses are
//! forwarded again. *Redirecting*: every open connection ends, and new ones lead to the new server. Needs no root.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Forwards connections until it is dropped.
pub(crate) struct Proxy {
    port: u16,
    cable: Arc<Cable>,
    listening: tokio::task::JoinHandle<()>,
}

struct Cable {
    /// Current target. A change ends the open connections.
    target: watch::Sender<SocketAddr>,
    withheld: watch::Sender<bool>,
}

impl Proxy {
    /// Listen on a free port of 127.0.0.1.
    pub(crate) fn to(port: u16, runtime: &Handle) -> std::io::Result<Self> {
        let cable =
            Arc::new(Cable { target: watch::Sender::new(local(port)), withheld: watch::Sender::new(false) });
        let listener = runtime.block_on(TcpListener::bind(local(0)))?;
        let port = listener.local_addr()?.port();
        let shared = cable.clone();
        let listening = runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(shared.clone().carry(client));
            }
        });
        Ok(Self { port, cable, listening })
    }

    pub(crate) fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Redirect: end open connections; new ones lead to this port.
    pub(crate) fn point_to(&self, port: u16) {
        self.cable.target.send_replace(local(port));
    }

    /// Set whether responses are withheld.
    pub(crate) fn withhold_responses(&self, withheld: bool) {
        self.cable.withheld.send_replace(withheld);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl Cable {
    async fn carry(self: Arc<Self>, client: TcpStream) {
        let mut target = self.target.subscribe();
        let address = *target.borrow_and_update();
        let Ok(server) = TcpStream::connect(address).await else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        let answers = async {
            let mut withheld = self.withheld.subscribe();
            let mut buffer = vec![0; 16_384];
            loop {
                let length = from_server.read(&mut buffer).await.unwrap_or(0);
                // Checked after the read, so that a response in transit is withheld too.
                if withheld.wait_for(|withheld| !withheld).await.is_err() || length == 0 {
                    return;
                }
                if to_client.write_all(&buffer[..length]).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            _ = copy(&mut from_client, &mut to_server) => {}
            () = answers => {}
            _ = target.changed() => {}
        }
    }
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}
