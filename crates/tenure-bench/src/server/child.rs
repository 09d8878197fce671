//! The server, as a process of its own.

use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::load::Wire;
use crate::BenchError;

pub(crate) struct Served {
    child: Child,
    address: String,
}

impl Served {
    /// Starts it on a free port, without limits on how often anybody asks.
    pub(crate) async fn start(program: &Path, store: &str) -> Result<Served, BenchError> {
        let mut child = Command::new(program)
            .args([
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--max-rate-per-principal",
                "1000000000",
                "-o",
                "json",
            ])
            .env("TENURE_STORE", store)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let lost = || BenchError::Helper("the server ended before it said where it listens".into());
        let mut lines = BufReader::new(child.stdout.take().ok_or_else(lost)?).lines();
        while let Some(line) = lines.next_line().await? {
            if let Some(at) = line.find("http://") {
                let address = line[at + 7..].split(['"', '/', ' ']).next().unwrap_or_default().to_owned();
                tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
                return Ok(Served { child, address });
            }
        }
        Err(lost())
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// A new connection.
    pub(crate) async fn wire(&self) -> Result<Wire, BenchError> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        Ok(Wire::new(stream))
    }

    /// Resident memory, in MiB.
    pub(crate) fn resident_mib(&self) -> Result<f64, BenchError> {
        let id = self.child.id().ok_or_else(|| BenchError::Helper("the server is gone".into()))?;
        let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse::<f64>().ok());
        kib.map(|kib| kib / 1024.0).ok_or_else(|| BenchError::Helper("no VmRSS for the server".into()))
    }

    pub(crate) async fn stop(mut self) -> Result<(), BenchError> {
        self.child.kill().await?;
        Ok(())
    }
}
