//! A tiny TCP forwarder: one address that workers keep while the server behind it changes, and a cable to cut.
//!
//! *Answers withheld*: what clients send still arrives, and what the server says waits here until answers flow again.
//! *Pointed elsewhere*: every open connection ends, and new ones lead to the new server. It needs no root.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Forwards connections for as long as it lives.
pub(crate) struct Forwarder {
    port: u16,
    cable: Arc<Cable>,
    listening: tokio::task::JoinHandle<()>,
}

struct Cable {
    /// Where connections lead now. A change ends those that are open.
    target: watch::Sender<SocketAddr>,
    withheld: watch::Sender<bool>,
}

impl Forwarder {
    /// Listens on a free port of 127.0.0.1.
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

    /// Ends what is open; new connections lead to this port.
    pub(crate) fn point_to(&self, port: u16) {
        self.cable.target.send_replace(local(port));
    }

    /// Whether answers wait here instead of reaching the clients.
    pub(crate) fn withhold_answers(&self, withheld: bool) {
        self.cable.withheld.send_replace(withheld);
    }
}

impl Drop for Forwarder {
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
                // After the read: an answer that was on its way waits too.
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
