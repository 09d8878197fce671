//! Shared fixtures of the name and singleton tests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::Tenure;
use tenure::cluster::{RegistryBackend, SingletonContext};
use tenure::store::memory::MemoryStore;
use tenure_testkit::{ManualClock, PartitionableStore};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// The lease of every process: shorter than the default, so that a test need not advance the clock as far.
pub(crate) const LEASE: Duration = Duration::from_secs(10);

/// A process whose connection to the store can be cut.
pub(crate) struct Process {
    pub(crate) tenure: Tenure,
    pub(crate) link: PartitionableStore<MemoryStore>,
}

/// Processes on one memory store and one manual clock.
pub(crate) struct World {
    pub(crate) clock: ManualClock,
    memory: MemoryStore,
}

impl World {
    pub(crate) fn new() -> World {
        let clock = ManualClock::new(7);
        let memory = MemoryStore::with_runtime(Arc::new(clock.clone()));
        World { clock, memory }
    }

    pub(crate) async fn process(&self, name: &str) -> Process {
        let link = PartitionableStore::new(self.memory.clone());
        let builder = Tenure::builder()
            .store(link.clone())
            .name(name)
            .lease(LEASE)
            .runtime(Arc::new(self.clock.clone()));
        Process { tenure: builder.open().await.expect("the memory store opens"), link }
    }

    /// Advances the clock in small steps, and calls `check` after each.
    pub(crate) async fn advance(&self, time: Duration, mut check: impl FnMut()) {
        let step = Duration::from_millis(250);
        for _ in 0..time.as_millis() / step.as_millis() {
            self.clock.advance(step).await;
            check();
        }
    }
}

/// Runs of singletons, as recorded by the singletons themselves.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<LogState>>);

#[derive(Default)]
struct LogState {
    running: BTreeMap<String, Vec<String>>,
    starts: Vec<Start>,
    overlaps: u32,
}

/// A start: singleton, node and received state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) name: String,
    pub(crate) node: String,
    pub(crate) state: Option<String>,
}

impl Log {
    /// Records a running singleton until the returned guard is dropped.
    pub(crate) fn begin<F: RegistryBackend>(&self, singleton: &SingletonContext<F>, node: &str) -> Running {
        let name = singleton.name().to_string();
        let state = singleton.state().map(|state| String::from_utf8_lossy(state).into_owned());
        let mut book = self.0.lock().unwrap();
        let running = book.running.entry(name.clone()).or_default();
        running.push(node.to_owned());
        let doubled = running.len() > 1;
        book.overlaps += u32::from(doubled);
        book.starts.push(Start { name: name.clone(), node: node.to_owned(), state });
        Running { log: self.clone(), name, node: node.to_owned() }
    }

    /// The nodes that run each singleton now.
    pub(crate) fn running(&self) -> BTreeMap<String, Vec<String>> {
        let mut running = self.0.lock().unwrap().running.clone();
        running.retain(|_, nodes| !nodes.is_empty());
        running
    }

    /// The nodes among these that run each singleton now.
    pub(crate) fn running_on(&self, nodes: &[&str]) -> BTreeMap<String, Vec<String>> {
        let mut running = self.running();
        running.values_mut().for_each(|at| at.retain(|node| nodes.contains(&node.as_str())));
        running.retain(|_, at| !at.is_empty());
        running
    }

    pub(crate) fn starts(&self) -> Vec<Start> {
        self.0.lock().unwrap().starts.clone()
    }

    /// How often a run started while another one existed.
    pub(crate) fn overlaps(&self) -> u32 {
        self.0.lock().unwrap().overlaps
    }
}

pub(crate) struct Running {
    log: Log,
    name: String,
    node: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut book = self.log.0.lock().unwrap();
        let running = book.running.entry(self.name.clone()).or_default();
        let index = running.iter().position(|node| *node == self.node).expect("the run is recorded");
        running.remove(index);
    }
}
