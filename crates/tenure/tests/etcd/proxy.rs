//! Stands between a client and etcd: counts what etcd answers, and does something at the right moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(crate) struct Proxy {
    port: u16,
    answered: Arc<AtomicU64>,
}

/// Is shown each piece of what is asked, before it is passed on.
pub(crate) type Look = Arc<dyn Fn(&[u8]) + Send + Sync>;

impl Proxy {
    pub(crate) async fn to(server: u16, look: Look) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let answered = Arc::new(AtomicU64::new(0));
        let counter = answered.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, server, look.clone(), counter.clone()));
            }
        });
        Proxy { port, answered }
    }

    pub(crate) fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.port)
    }

    /// How many bytes etcd answered while something was done.
    pub(crate) async fn answered<T>(&self, doing: impl Future<Output = T>) -> u64 {
        let before = self.answered.load(Ordering::SeqCst);
        doing.await;
        self.answered.load(Ordering::SeqCst) - before
    }
}

async fn pass(client: TcpStream, server: u16, look: Look, answered: Arc<AtomicU64>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    let ((mut asks, mut hears), (mut answers, mut told)) = (client.into_split(), server.into_split());
    let asking = async {
        let mut piece = vec![0; 64 << 10];
        while let Ok(n @ 1..) = asks.read(&mut piece).await {
            tokio::task::block_in_place(|| look(&piece[..n]));
            if told.write_all(&piece[..n]).await.is_err() {
                return;
            }
        }
    };
    let answering = async {
        let mut piece = vec![0; 64 << 10];
        while let Ok(n @ 1..) = answers.read(&mut piece).await {
            answered.fetch_add(n as u64, Ordering::SeqCst);
            if hears.write_all(&piece[..n]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = asking => {}
        () = answering => {}
    }
}
