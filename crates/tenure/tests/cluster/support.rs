//! What the tests of names and singletons share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::Tenure;
use tenure::backend::memory::Memory;
use tenure::cluster::{Footing, Singleton};
use tenure_testkit::{Clock, Cuttable};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// The lease of every process here: shorter than the usual one, so that a test need not drive the clock as far.
pub(crate) const LEASE: Duration = Duration::from_secs(10);

/// A process whose link to the store can be cut.
pub(crate) struct Process {
    pub(crate) tenure: Tenure,
    pub(crate) link: Cuttable<Memory>,
}

/// Processes on one store in memory and one hand-driven clock.
pub(crate) struct World {
    pub(crate) clock: Clock,
    memory: Memory,
}

impl World {
    pub(crate) fn new() -> World {
        let clock = Clock::new(7);
        let memory = Memory::with_runtime(Arc::new(clock.clone()));
        World { clock, memory }
    }

    pub(crate) async fn process(&self, name: &str) -> Process {
        let link = Cuttable::new(self.memory.clone());
        let builder = Tenure::builder()
            .store(link.clone())
            .name(name)
            .lease(LEASE)
            .runtime(Arc::new(self.clock.clone()));
        Process { tenure: builder.open().await.expect("a store in memory opens"), link }
    }

    /// Lets time pass in small steps, and looks at each.
    pub(crate) async fn pass(&self, time: Duration, mut look: impl FnMut()) {
        let step = Duration::from_millis(250);
        for _ in 0..time.as_millis() / step.as_millis() {
            self.clock.advance(step).await;
            look();
        }
    }
}

/// What ran where, as the singletons themselves say.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Book>>);

#[derive(Default)]
struct Book {
    running: BTreeMap<String, Vec<String>>,
    starts: Vec<Start>,
    overlaps: u32,
}

/// A start: which singleton, where, with what state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) name: String,
    pub(crate) node: String,
    pub(crate) state: Option<String>,
}

impl Log {
    /// Says that a singleton runs here, until it is dropped.
    pub(crate) fn begin<F: Footing>(&self, singleton: &Singleton<F>, node: &str) -> Running {
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

    /// Where each singleton runs now.
    pub(crate) fn running(&self) -> BTreeMap<String, Vec<String>> {
        let mut running = self.0.lock().unwrap().running.clone();
        running.retain(|_, nodes| !nodes.is_empty());
        running
    }

    /// Where each singleton runs now, as far as that is on these.
    pub(crate) fn running_on(&self, nodes: &[&str]) -> BTreeMap<String, Vec<String>> {
        let mut running = self.running();
        running.values_mut().for_each(|at| at.retain(|node| nodes.contains(&node.as_str())));
        running.retain(|_, at| !at.is_empty());
        running
    }

    pub(crate) fn starts(&self) -> Vec<Start> {
        self.0.lock().unwrap().starts.clone()
    }

    /// How often one began while another ran.
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
        let place = running.iter().position(|node| *node == self.node).expect("it ran");
        running.remove(place);
    }
}
