//! Holders of plain locks, run as processes so that they can be killed.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use sqlx::postgres::PgConnection;
use sqlx::{Connection, Executor};

use crate::BenchError;

/// Line that a holder prints once it holds its lock.
pub const HELD: &str = "held";

/// Advisory lock of the baseline.
pub(crate) const ADVISORY_LOCK: &str = "SELECT pg_advisory_lock(7368421)";

/// Hold an advisory lock until killed.
pub async fn hold_advisory(url: &str) -> Result<(), BenchError> {
    let mut connection = PgConnection::connect(url).await?;
    connection.execute(ADVISORY_LOCK).await?;
    println!("{HELD}");
    std::future::pending().await
}

/// Hold a kernel lock until killed.
pub async fn hold_flock(path: &Path) -> Result<(), BenchError> {
    let _file = flock(path)?;
    println!("{HELD}");
    std::future::pending().await
}

/// Keep a store open until killed; used to run a Raft member as a process.
pub async fn hold_store(url: &str) -> Result<(), BenchError> {
    let options = tenure::store::StoreOptions { url: url.into(), ..Default::default() };
    let _store = tenure::store::open(&options).await?;
    println!("{HELD}");
    std::future::pending().await
}

/// Take a kernel lock; blocks until it is free.
pub(crate) fn flock(path: &Path) -> io::Result<File> {
    let file = File::options().create(true).append(true).open(path)?;
    // SAFETY: the descriptor is open while `file` exists.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}
