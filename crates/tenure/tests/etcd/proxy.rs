//! Proxy between a client and etcd: counts response bytes and runs a callback on request data.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(crate) struct Proxy {
    port: u16,
    answered: Arc<AtomicU64>,
}

/// Callback with each piece of request data, before it is forwarded.
pub(crate) type RequestCallback = Arc<dyn Fn(&[u8]) + Send + Sync>;

impl Proxy {
    pub(crate) async fn to(server: u16, callback: RequestCallback) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let answered = Arc::new(AtomicU64::new(0));
        let counter = answered.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, server, callback.clone(), counter.clone()));
            }
        });
        Proxy { port, answered }
    }

    pub(crate) fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.port)
    }

    /// Number of response bytes while a future runs.
    pub(crate) async fn answered<T>(&self, doing: impl Future<Output = T>) -> u64 {
        let before = self.answered.load(Ordering::SeqCst);
        doing.await;
        self.answered.load(Ordering::SeqCst) - before
    }
}

async fn pass(client: TcpStream, server: u16, callback: RequestCallback, answered: Arc<AtomicU64>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let requests = async {
        let mut piece = vec![0; 64 << 10];
        while let Ok(n @ 1..) = from_client.read(&mut piece).await {
            tokio::task::block_in_place(|| callback(&piece[..n]));
            if to_server.write_all(&piece[..n]).await.is_err() {
                return;
            }
        }
    };
    let responses = async {
        let mut piece = vec![0; 64 << 10];
        while let Ok(n @ 1..) = from_server.read(&mut piece).await {
            answered.fetch_add(n as u64, Ordering::SeqCst);
            if to_client.write_all(&piece[..n]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = requests => {}
        () = responses => {}
    }
}
