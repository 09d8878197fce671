//! Holders of bare locks, run as processes of their own so that they can be killed.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use sqlx::postgres::PgConnection;
use sqlx::{Connection, Executor};

use crate::BenchError;

/// What a holder prints when it holds.
pub const HELD: &str = "held";

/// The lock that both sides of the comparison use.
pub(crate) const ADVISORY_LOCK: &str = "SELECT pg_advisory_lock(7368421)";

/// Holds an advisory lock until killed.
pub async fn hold_advisory(url: &str) -> Result<(), BenchError> {
    let mut connection = PgConnection::connect(url).await?;
    connection.execute(ADVISORY_LOCK).await?;
    println!("{HELD}");
    std::future::pending().await
}

/// Holds a kernel lock until killed.
pub async fn hold_flock(path: &Path) -> Result<(), BenchError> {
    let _file = flock(path)?;
    println!("{HELD}");
    std::future::pending().await
}

/// Has a store open until killed: so a member of a cluster is a process of its own.
pub async fn hold_store(url: &str) -> Result<(), BenchError> {
    let options = tenure::backend::StoreOptions { url: url.into(), ..Default::default() };
    let _store = tenure::backend::open(&options).await?;
    println!("{HELD}");
    std::future::pending().await
}

/// Takes a kernel lock, waiting for it.
pub(crate) fn flock(path: &Path) -> io::Result<File> {
    let file = File::options().create(true).append(true).open(path)?;
    // SAFETY: the descriptor is open for as long as `file` lives.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}
