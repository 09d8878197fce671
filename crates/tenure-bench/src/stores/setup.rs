//! Stores that the benchmark starts itself: etcd and Raft, in the directory of the run.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

use crate::BenchError;
use crate::baseline::BenchDirectory;
use crate::crash::helper;
use crate::lock_holder;

/// A private etcd with one member.
pub(super) struct EtcdServer {
    pub(super) address: String,
    _child: Child,
}

impl EtcdServer {
    /// Start etcd; `None` if it is not installed.
    pub(super) async fn start(directory: &BenchDirectory) -> Result<Option<EtcdServer>, BenchError> {
        let [client, peer] = [free_port().await?, free_port().await?];
        let (clients, peers) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        let started = Command::new("etcd")
            .arg("--data-dir")
            .arg(directory.path("etcd"))
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("default={peers}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        let child = match started {
            Ok(child) => child,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let address = format!("127.0.0.1:{client}");
        for _ in 0..200 {
            if TcpStream::connect(&address).await.is_ok() {
                return Ok(Some(EtcdServer { address, _child: child }));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(BenchError::Helper("etcd does not answer".into()))
    }
}

/// Three Raft members as processes.
pub(super) struct RaftProcesses {
    pub(super) url: String,
    _children: Vec<Child>,
}

impl RaftProcesses {
    pub(super) async fn start(
        program: &Path,
        directory: &BenchDirectory,
    ) -> Result<RaftProcesses, BenchError> {
        let mut peers = Vec::new();
        for node in 1..=3 {
            peers.push(format!("{node}@127.0.0.1:{}", free_port().await?));
        }
        let peers = peers.join(",");
        let stores: Vec<String> = (1..=3)
            .map(|node| {
                let directory = directory.path(&format!("raft-{node}"));
                format!("raft:{}?node={node}&peers={peers}", directory.display())
            })
            .collect();
        // Started together, because none is ready without the others.
        let starting =
            stores.iter().map(|store| helper(program, &["bench", "hold-store"], store, lock_holder::HELD));
        let mut children = Vec::new();
        for started in futures_util::future::join_all(starting).await {
            children.push(started?);
        }
        Ok(RaftProcesses { url: format!("raft:?peers={peers}"), _children: children })
    }
}

async fn free_port() -> Result<u16, BenchError> {
    Ok(TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port())
}
