//! A `tenure serve` process.

use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::load::RawConnection;
use crate::BenchError;

pub(crate) struct ServerProcess {
    child: Child,
    address: String,
}

impl ServerProcess {
    /// Start the server on a free port without rate limits.
    pub(crate) async fn start(program: &Path, store: &str) -> Result<ServerProcess, BenchError> {
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
        let lost = || BenchError::Helper("the server ended before it printed its address".into());
        let mut lines = BufReader::new(child.stdout.take().ok_or_else(lost)?).lines();
        while let Some(line) = lines.next_line().await? {
            if let Some(at) = line.find("http://") {
                let address = line[at + 7..].split(['"', '/', ' ']).next().unwrap_or_default().to_owned();
                tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
                return Ok(ServerProcess { child, address });
            }
        }
        Err(lost())
    }

    /// Listen address.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Open a connection.
    pub(crate) async fn connect(&self) -> Result<RawConnection, BenchError> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        Ok(RawConnection::new(stream))
    }

    /// Resident memory in MiB.
    pub(crate) fn resident_mib(&self) -> Result<f64, BenchError> {
        let id = self.child.id().ok_or_else(|| BenchError::Helper("the server has ended".into()))?;
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
