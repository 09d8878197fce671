//! A folder of the machine.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use futures_core::future::BoxFuture;
use tenure_core::port::{StoreError, Trouble};

use super::ground::{Act, Disk, Sheet};
use crate::backend::private;

/// A folder that is ours for as long as this lives.
pub(super) struct Folder {
    path: PathBuf,
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
            Ok(()) => Ok(Folder { path: path.into(), _lock: file }),
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
        File::open(&self.path)?.sync_all()
    }
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
        let file = private::options().create(true).append(true).open(self.path.join(name))?;
        file.set_len(length)?;
        file.sync_all()?;
        self.sync()?;
        Ok(Box::new(file))
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let path = self.path.join(name);
        let beside = path.with_extension("new");
        let mut file = private::options().write(true).create(true).truncate(true).open(&beside)?;
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
