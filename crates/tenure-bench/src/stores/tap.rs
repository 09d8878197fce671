//! Between us and a server: what goes to it is passed on, and requests of HTTP are counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::BenchError;

/// A tap on the way to a server; closed on drop.
pub(super) struct Tap {
    pub(super) port: u16,
    requests: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Tap {
    pub(super) async fn to(server: String) -> Result<Tap, BenchError> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let requests = Arc::new(AtomicU64::new(0));
        let counter = requests.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, server.clone(), counter.clone()));
            }
        });
        Ok(Tap { port, requests, task })
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

async fn pass(client: TcpStream, server: String, requests: Arc<AtomicU64>) {
    let Ok(server) = TcpStream::connect(&server).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((mut asks, mut hears), (mut answers, mut told)) = (client.into_split(), server.into_split());
    let asking = async {
        let mut piece = vec![0; 64 << 10];
        while let Ok(n @ 1..) = asks.read(&mut piece).await {
            // A request is sent when the one before is answered, so each begins a piece.
            if [&b"GET "[..], b"POST ", b"PUT ", b"PATCH ", b"DELETE "].iter().any(|it| piece.starts_with(it))
            {
                requests.fetch_add(1, Ordering::Relaxed);
            }
            if told.write_all(&piece[..n]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = asking => {}
        _ = tokio::io::copy(&mut answers, &mut hears) => {}
    }
}
