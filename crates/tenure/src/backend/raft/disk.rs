//! A folder of the machine.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_core::future::BoxFuture;
use tenure_core::port::{StoreError, Trouble};

use super::ground::{Act, Disk, Sheet};
use crate::backend::private;
use crate::open_files;
use crate::runtime::block_for;

/// How long an operation is repeated that fails because there is no free file descriptor, and how often.
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(50);
const DESCRIPTOR_TRIES: u32 = 200;

/// A folder that is ours for as long as this lives.
pub(super) struct Folder {
    path: PathBuf,
    /// The folder itself, to sync it.
    itself: File,
    _lock: File,
}

impl Folder {
    /// Makes a folder ours: two members with one log would be two that vote as one.
    pub(super) fn lock(path: &Path) -> Result<Folder, StoreError> {
        let failed = |error: io::Error| {
            StoreError::new(Trouble::Unfit, format!("{} can not be used: {error}", path.display()))
        };
        private::create_folder(path).map_err(failed)?;
        let file = private::options()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path.join("lock"))
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {
                let itself = File::open(path).map_err(failed)?;
                Ok(Folder { path: path.into(), itself, _lock: file })
            }
            Err(_) => Err(StoreError::new(
                Trouble::Unfit,
                format!(
                    "another process is the member in {}; use the cluster through it: --store raft:?peers=… or http://…",
                    path.display()
                ),
            )),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.itself.sync_all()
    }
}

/// Repeats an operation for a while that fails because there is no free file descriptor: to Raft, an operation that fails is a disk that failed, and
/// ends the member.
fn repeated<T>(mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for tried in 0..DESCRIPTOR_TRIES {
        match act() {
            Err(error) if open_files::are_exhausted(&error) => {
                if tried == 0 {
                    tracing::warn!("raft: a file cannot be opened, and is tried again: {error}");
                }
                block_for(DESCRIPTOR_PAUSE);
            }
            done => return done,
        }
    }
    act()
}

impl Disk for Folder {
    fn place(&self, name: &str) -> String {
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

    fn open(&self, name: &str, length: u64) -> io::Result<Box<dyn Sheet>> {
        let path = self.path.join(name);
        let file = repeated(|| private::options().create(true).append(true).open(&path))?;
        file.set_len(length)?;
        file.sync_all()?;
        self.sync()?;
        Ok(Box::new(file))
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let path = self.path.join(name);
        let beside = path.with_extension("new");
        let mut file = repeated(|| private::options().write(true).create(true).truncate(true).open(&beside))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)?;
        self.sync()
    }

    fn remove(&self, names: &[String]) -> io::Result<()> {
        names.iter().try_for_each(|name| std::fs::remove_file(self.path.join(name)))?;
        self.sync()
    }

    fn during(&self, act: Act) -> BoxFuture<'static, io::Result<()>> {
        let done = tokio::task::spawn_blocking(act);
        Box::pin(async { done.await.unwrap_or_else(|error| Err(io::Error::other(error))) })
    }
}

impl Sheet for File {
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

    /// A snapshot that met a moment without a free descriptor ended the member for good.
    #[test]
    fn an_operation_is_repeated_while_there_is_no_free_descriptor_and_no_other_failure_is() {
        let (mut tries, mut failures) = (0, 0);
        let done = repeated(|| {
            tries += 1;
            if tries < 3 { Err(io::Error::from_raw_os_error(libc::EMFILE)) } else { Ok(tries) }
        });
        assert_eq!(done.unwrap(), 3);
        let failed = repeated(|| {
            failures += 1;
            Err::<(), _>(io::Error::from_raw_os_error(libc::EIO))
        });
        assert_eq!((failed.unwrap_err().raw_os_error(), failures), (Some(libc::EIO), 1));
    }
}
