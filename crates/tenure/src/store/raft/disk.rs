//! The data directory of a member, on the file system.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_core::future::BoxFuture;
use tenure_core::port::{ErrorKind, StoreError};

use super::env::{AppendFile, Disk, DiskOperation};
use crate::open_files;
use crate::runtime::block_for;
use crate::store::private;

/// Delay between attempts, and number of attempts, of an operation that fails because no file descriptor is free.
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(50);
const DESCRIPTOR_TRIES: u32 = 200;

/// The data directory of a member, locked while this value exists.
pub(super) struct DataDirectory {
    path: PathBuf,
    /// Handle of the directory, needed to sync it.
    handle: File,
    _lock: File,
}

impl DataDirectory {
    /// Lock a directory. Two members with the same log would vote twice under one node id.
    pub(super) fn lock(path: &Path) -> Result<DataDirectory, StoreError> {
        let failed = |error: io::Error| {
            StoreError::new(
                ErrorKind::Misconfigured,
                format!("cannot use the data directory {}: {error}", path.display()),
            )
        };
        private::create_directory(path).map_err(failed)?;
        let file = private::options()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path.join("lock"))
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {
                let handle = File::open(path).map_err(failed)?;
                Ok(DataDirectory { path: path.into(), handle, _lock: file })
            }
            Err(_) => Err(StoreError::new(
                ErrorKind::Misconfigured,
                format!(
                    "another process runs the Raft member in {}; connect to it instead with --store raft:?peers=… or http://…",
                    path.display()
                ),
            )),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.handle.sync_all()
    }
}

/// Retry an operation that fails because no file descriptor is free. Openraft treats a failed operation as a failed
/// disk and stops the member.
fn retry_without_descriptor<T>(mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for tried in 0..DESCRIPTOR_TRIES {
        match act() {
            Err(error) if open_files::are_exhausted(&error) => {
                if tried == 0 {
                    tracing::warn!("raft file open failed, retrying: {error}");
                }
                block_for(DESCRIPTOR_PAUSE);
            }
            done => return done,
        }
    }
    act()
}

impl Disk for DataDirectory {
    fn display_path(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        match std::fs::read(self.path.join(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn open(&self, name: &str, length: u64) -> io::Result<Box<dyn AppendFile>> {
        let path = self.path.join(name);
        let file = retry_without_descriptor(|| private::options().create(true).append(true).open(&path))?;
        file.set_len(length)?;
        file.sync_all()?;
        self.sync()?;
        Ok(Box::new(file))
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let path = self.path.join(name);
        let temporary = path.with_extension("new");
        let mut file = retry_without_descriptor(|| {
            private::options().write(true).create(true).truncate(true).open(&temporary)
        })?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        self.sync()
    }

    fn remove(&self, names: &[String]) -> io::Result<()> {
        names.iter().try_for_each(|name| std::fs::remove_file(self.path.join(name)))?;
        self.sync()
    }

    fn run_blocking(&self, act: DiskOperation) -> BoxFuture<'static, io::Result<()>> {
        let done = tokio::task::spawn_blocking(act);
        Box::pin(async { done.await.unwrap_or_else(|error| Err(io::Error::other(error))) })
    }
}

impl AppendFile for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: a snapshot failed because no file descriptor was free for a moment, and the member stopped
    /// permanently.
    #[test]
    fn only_an_operation_without_a_free_descriptor_is_retried() {
        let (mut tries, mut failures) = (0, 0);
        let done = retry_without_descriptor(|| {
            tries += 1;
            if tries < 3 { Err(io::Error::from_raw_os_error(libc::EMFILE)) } else { Ok(tries) }
        });
        assert_eq!(done.unwrap(), 3);
        let failed = retry_without_descriptor(|| {
            failures += 1;
            Err::<(), _>(io::Error::from_raw_os_error(libc::EIO))
        });
        assert_eq!((failed.unwrap_err().raw_os_error(), failures), (Some(libc::EIO), 1));
    }
}
