//! A proxy in front of a server that counts HTTP requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::BenchError;

/// A proxy that counts HTTP requests; stopped on drop.
pub(super) struct CountingProxy {
    pub(super) port: u16,
    requests: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Drop for CountingProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl CountingProxy {
    pub(super) async fn to(server: String) -> Result<CountingProxy, BenchError> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let requests = Arc::new(AtomicU64::new(0));
        let counter = requests.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, server.clone(), counter.clone()));
            }
        });
        Ok(CountingProxy { port, requests, task })
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

async fn pass(client: TcpStream, server: String, requests: Arc<AtomicU64>) {
    let Ok(server) = TcpStream::connect(&server).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let forward_requests = async {
        let mut piece = vec![0; 64 << 10];
        while let Ok(n @ 1..) = from_client.read(&mut piece).await {
            // A connection has one request at a time, so each request starts a chunk.
            if [&b"GET "[..], b"POST ", b"PUT ", b"PATCH ", b"DELETE "].iter().any(|it| piece.starts_with(it))
            {
                requests.fetch_add(1, Ordering::Relaxed);
            }
            if to_server.write_all(&piece[..n]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = forward_requests => {}
        _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
    }
}
