//! Disks that keep what was synced, and of the rest perhaps a part.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_core::future::BoxFuture;
use tenure::backend::raft::ground::{Act, Disk, Sheet};
use tenure_core::SplitMix;

use super::computer::Computer;
use super::time::Time;
use crate::sim::network::Draw as _;

const MS: u64 = 1_000_000;

/// What a disk has; it outlives the machine. Clones share it.
#[derive(Clone)]
pub(super) struct Platter(Arc<Mutex<Files>>);

struct Files {
    files: BTreeMap<String, File>,
    rng: SplitMix,
    /// In a thousand writes, so many are the last ones of the machine.
    fatal: u64,
    /// Whether a sync of entries is none.
    lies: bool,
}

#[derive(Clone, Default)]
struct File {
    bytes: Vec<u8>,
    /// So many of them survive a crash.
    synced: usize,
}

impl Platter {
    pub(super) fn new(seed: u64, lies: bool) -> Platter {
        let files = Files { files: BTreeMap::new(), rng: SplitMix::new(seed), fatal: 0, lies };
        Platter(Arc::new(Mutex::new(files)))
    }

    /// How many of a thousand writes end the machine in their middle.
    pub(super) fn set_fatal(&self, permille: u64) {
        self.locked().fatal = permille;
    }

    /// What was not synced is gone, or a part of it.
    pub(super) fn crash(&self) {
        let Files { files, rng, .. } = &mut *self.locked();
        for file in files.values_mut() {
            let left = (file.bytes.len() - file.synced) as u64;
            file.bytes.truncate(file.synced + rng.below(left + 1) as usize);
            file.synced = file.bytes.len();
        }
    }

    /// As it is now.
    pub(super) fn copy(&self) -> BTreeMap<String, Vec<u8>> {
        self.locked().files.iter().map(|(name, file)| (name.clone(), file.bytes.clone())).collect()
    }

    /// As it once was.
    pub(super) fn put_back(&self, copy: BTreeMap<String, Vec<u8>>) {
        let whole = |bytes: Vec<u8>| File { synced: bytes.len(), bytes };
        self.locked().files = copy.into_iter().map(|(name, bytes)| (name, whole(bytes))).collect();
    }

    fn locked(&self) -> MutexGuard<'_, Files> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A disk as one run of a machine has it.
pub(super) struct Mount {
    pub(super) platter: Platter,
    pub(super) computer: Arc<Computer>,
    pub(super) time: Time,
}

impl Mount {
    fn files(&self) -> io::Result<MutexGuard<'_, Files>> {
        if self.computer.is_over() {
            return Err(io::Error::other("the machine is off"));
        }
        Ok(self.platter.locked())
    }
}

impl Disk for Mount {
    fn place(&self, name: &str) -> String {
        format!("disk/{name}")
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.files()?.files.keys().cloned().collect())
    }

    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        Ok(self.files()?.files.get(name).map(|file| file.bytes.clone()))
    }

    fn open(&self, name: &str, length: u64) -> io::Result<Box<dyn Sheet>> {
        let mut files = self.files()?;
        let file = files.files.entry(name.into()).or_default();
        file.bytes.truncate(length as usize);
        file.synced = file.bytes.len();
        Ok(Box::new(Page {
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

    fn during(&self, act: Act) -> BoxFuture<'static, io::Result<()>> {
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

/// A file that is appended to.
struct Page {
    platter: Platter,
    computer: Arc<Computer>,
    name: String,
    /// Whether what was last written is of entries.
    has_entries: bool,
}

impl Sheet for Page {
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
