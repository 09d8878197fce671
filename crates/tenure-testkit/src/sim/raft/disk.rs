//! Simulated disks. After a crash a disk has all synced data and possibly a part of the rest.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_core::future::BoxFuture;
use tenure::store::raft::env::{AppendFile, Disk, DiskOperation};
use tenure_core::SplitMix;

use super::computer::Computer;
use super::time::SimTime;
use crate::sim::network::RandomExt as _;

const MS: u64 = 1_000_000;

/// Contents of a disk, which outlives its machine. Clones share it.
#[derive(Clone)]
pub(super) struct SimDisk(Arc<Mutex<Files>>);

struct Files {
    files: BTreeMap<String, File>,
    rng: SplitMix,
    /// Number of writes in a thousand during which the power fails.
    fatal: u64,
    /// Whether a sync of entries has no effect.
    lies: bool,
}

#[derive(Clone, Default)]
struct File {
    bytes: Vec<u8>,
    /// Number of bytes that survive a crash.
    synced: usize,
}

impl SimDisk {
    pub(super) fn new(seed: u64, lies: bool) -> SimDisk {
        let files = Files { files: BTreeMap::new(), rng: SplitMix::new(seed), fatal: 0, lies };
        SimDisk(Arc::new(Mutex::new(files)))
    }

    /// Sets how many writes in a thousand end the machine halfway.
    pub(super) fn set_fatal(&self, permille: u64) {
        self.locked().fatal = permille;
    }

    /// Loses unsynced data, completely or in part.
    pub(super) fn crash(&self) {
        let Files { files, rng, .. } = &mut *self.locked();
        for file in files.values_mut() {
            let left = (file.bytes.len() - file.synced) as u64;
            file.bytes.truncate(file.synced + rng.below(left + 1) as usize);
            file.synced = file.bytes.len();
        }
    }

    /// A copy of the current contents.
    pub(super) fn copy(&self) -> BTreeMap<String, Vec<u8>> {
        self.locked().files.iter().map(|(name, file)| (name.clone(), file.bytes.clone())).collect()
    }

    /// Restores an earlier copy.
    pub(super) fn put_back(&self, copy: BTreeMap<String, Vec<u8>>) {
        let whole = |bytes: Vec<u8>| File { synced: bytes.len(), bytes };
        self.locked().files = copy.into_iter().map(|(name, bytes)| (name, whole(bytes))).collect();
    }

    fn locked(&self) -> MutexGuard<'_, Files> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A disk as one run of a machine uses it.
pub(super) struct MountedDisk {
    pub(super) platter: SimDisk,
    pub(super) computer: Arc<Computer>,
    pub(super) time: SimTime,
}

impl MountedDisk {
    fn files(&self) -> io::Result<MutexGuard<'_, Files>> {
        if self.computer.is_over() {
            return Err(io::Error::other("the machine is off"));
        }
        Ok(self.platter.locked())
    }
}

impl Disk for MountedDisk {
    fn display_path(&self, name: &str) -> String {
        format!("disk/{name}")
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.files()?.files.keys().cloned().collect())
    }

    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        Ok(self.files()?.files.get(name).map(|file| file.bytes.clone()))
    }

    fn open(&self, name: &str, length: u64) -> io::Result<Box<dyn AppendFile>> {
        let mut files = self.files()?;
        let file = files.files.entry(name.into()).or_default();
        file.bytes.truncate(length as usize);
        file.synced = file.bytes.len();
        Ok(Box::new(SimAppendFile {
            platter: self.platter.clone(),
            computer: self.computer.clone(),
            name: name.into(),
            has_entries: false,
        }))
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut files = self.files()?;
        if files.is_fatal() {
            drop(files);
            return Err(power_fails(&self.computer));
        }
        files.files.insert(name.into(), File { bytes: bytes.into(), synced: bytes.len() });
        Ok(())
    }

    fn remove(&self, names: &[String]) -> io::Result<()> {
        for name in names {
            let mut files = self.files()?;
            if files.is_fatal() {
                drop(files);
                return Err(power_fails(&self.computer));
            }
            files.files.remove(name);
        }
        Ok(())
    }

    fn run_blocking(&self, act: DiskOperation) -> BoxFuture<'static, io::Result<()>> {
        let (time, computer) = (self.time.clone(), self.computer.clone());
        let takes = {
            let rng = &mut self.platter.locked().rng;
            if rng.chance(20) { rng.between(MS, 300 * MS) } else { rng.between(MS / 10, 3 * MS) }
        };
        Box::pin(async move {
            time.sleep(takes).await;
            computer.awake().await;
            act()
        })
    }
}

impl Files {
    fn is_fatal(&mut self) -> bool {
        self.rng.chance(self.fatal)
    }
}

fn power_fails(computer: &Computer) -> io::Error {
    computer.end();
    io::Error::other("the power failed")
}

/// An append-only file.
struct SimAppendFile {
    platter: SimDisk,
    computer: Arc<Computer>,
    name: String,
    /// Whether the last write contained entries.
    has_entries: bool,
}

impl AppendFile for SimAppendFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut files = self.platter.locked();
        if self.computer.is_over() {
            return Err(io::Error::other("the machine is off"));
        }
        let fails = files.is_fatal();
        let written = if fails { files.rng.below(bytes.len() as u64 + 1) as usize } else { bytes.len() };
        files.files.entry(self.name.clone()).or_default().bytes.extend_from_slice(&bytes[..written]);
        self.has_entries = bytes.windows(9).any(|part| part == b"{\"append\"");
        drop(files);
        if fails { Err(power_fails(&self.computer)) } else { Ok(()) }
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut files = self.platter.locked();
        if !(files.lies && self.has_entries) {
            let file = files.files.entry(self.name.clone()).or_default();
            file.synced = file.bytes.len();
        }
        Ok(())
    }
}
