//! Named singletons, distributed among the processes that offer to run them.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::rules::cluster::{CAPACITY_MAX, RegisteredName};
use tenure_core::{Name, NameError};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::registry::{RegistryBackend, RegistryError};
use super::singleton::{SingletonContext, SingletonFn};
use super::strict::{StrictBackend, StrictSingleton};
use crate::{Error, Tenure};

/// Default time that a singleton has to stop.
const GRACE: Duration = Duration::from_secs(5);

/// The settings of a supervisor are invalid. Nothing was started.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SupervisorError {
    /// The name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Two singletons have the same name.
    #[error("singleton {0} was added twice")]
    DuplicateName(Name),
    /// The capacity is out of range.
    #[error("capacity {0} is out of range; use a number between 1 and {CAPACITY_MAX}")]
    Capacity(u32),
    /// The session or the store failed.
    #[error(transparent)]
    Tenure(#[from] Error),
}

/// Settings of a supervisor before it starts. See [`Supervisor`].
#[must_use = "singletons run only after `start`"]
pub struct SupervisorBuilder<F: RegistryBackend> {
    pub(super) backend: F,
    pub(super) programs: Vec<(String, SingletonFn<F>)>,
    pub(super) settings: Settings,
}

/// Settings that all singletons of a supervisor share.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) capacity: u32,
    pub(super) grace: Duration,
}

/// Runs singletons in this process, as assigned by the cluster.
///
/// Each process lists the singletons that it can run; each singleton runs in one of these processes. Rendezvous
/// hashing of names ([`weight`](tenure_core::cluster::weight)) selects the process: a new process takes over
/// its part and nothing else moves, and the singletons of a leaving process are distributed among the others.
/// Processes need distinct names ([`TenureBuilder::name`](crate::TenureBuilder::name)), otherwise their weights
/// are equal. A process that restarts under its name gets back the singletons it had.
///
/// When a singleton must move, [`SingletonContext::stop_requested`] completes, and the singleton returns within
/// the grace. The state set with [`SingletonContext::set_handoff`] is available to the next run. A singleton
/// that returns by itself or panics is restarted after a backoff, and on another process if that happens often.
/// When its process dies, it starts elsewhere without state.
///
/// ```
/// # use tenure::{Tenure, store::memory::MemoryStore};
/// use tenure::cluster::Supervisor;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let tenure = Tenure::builder().store(MemoryStore::new()).open().await?;
/// let supervisor = Supervisor::strict(&tenure)
///     .singleton("importer", |singleton| async move {
///         let from = singleton.state().map_or(0, |state| state.len());
///         println!("running from {from} under token {}", singleton.token());
///         singleton.stop_requested().await;
///         let _ = singleton.set_handoff("the cursor");
///     })
///     .start()
///     .await?;
/// // … when this process stops:
/// supervisor.leave().await;
/// # tenure.close().await?; Ok(()) }
/// ```
pub struct Supervisor<F: RegistryBackend> {
    pub(super) backend: F,
    pub(super) leave: watch::Sender<bool>,
    pub(super) tasks: Vec<JoinHandle<()>>,
}

impl<F: RegistryBackend> SupervisorBuilder<F> {
    pub(super) fn new(backend: F) -> Self {
        let settings = Settings { capacity: 1, grace: GRACE };
        SupervisorBuilder { backend, programs: Vec::new(), settings }
    }

    /// Adds a singleton that this process can run.
    pub fn singleton<Fut>(
        mut self,
        name: impl Into<String>,
        program: impl Fn(SingletonContext<F>) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.programs.push((name.into(), Arc::new(move |singleton| Box::pin(program(singleton)))));
        self
    }

    /// Capacity of this process; 1 unless set. With a capacity of 3 it runs three times as many singletons as
    /// with 1, on average.
    pub fn capacity(mut self, capacity: u32) -> Self {
        self.settings.capacity = capacity;
        self
    }

    /// How long a singleton may take to stop; five seconds unless set.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.settings.grace = grace;
        self
    }

    pub(super) fn checked(&self) -> Result<BTreeMap<Name, SingletonFn<F>>, SupervisorError> {
        if !(1..=CAPACITY_MAX).contains(&self.settings.capacity) {
            return Err(SupervisorError::Capacity(self.settings.capacity));
        }
        let mut checked = BTreeMap::new();
        for (name, program) in &self.programs {
            let name: Name = name.parse()?;
            if checked.insert(name.clone(), program.clone()).is_some() {
                return Err(SupervisorError::DuplicateName(name));
            }
        }
        Ok(checked)
    }
}

impl Supervisor<StrictBackend> {
    /// Singletons on a store: exclusive and fenced.
    pub fn strict(tenure: &Tenure) -> SupervisorBuilder<StrictBackend> {
        SupervisorBuilder::new(StrictBackend::singletons(tenure))
    }
}

impl SupervisorBuilder<StrictBackend> {
    /// Uses the elections of this namespace, separate from all others.
    pub fn in_namespace(mut self, namespace: Name) -> Self {
        self.backend.namespace = namespace;
        self
    }

    /// Joins the elections of all singletons. Completes when the store has this process as a candidate of each.
    pub async fn start(self) -> Result<Supervisor<StrictBackend>, SupervisorError> {
        let programs = self.checked()?;
        let (leave, leaving) = watch::channel(false);
        let mut singletons = Vec::with_capacity(programs.len());
        for (name, program) in programs {
            singletons.push(
                StrictSingleton::begin(&self.backend, name, program, self.settings.clone(), leaving.clone())
                    .await?,
            );
        }
        let tasks = singletons.into_iter().map(|task| tokio::spawn(task.run())).collect();
        Ok(Supervisor { backend: self.backend, leave, tasks })
    }
}

impl<F: RegistryBackend> Supervisor<F> {
    /// Reads which process runs which singleton.
    pub async fn placements(&self) -> Result<Vec<RegisteredName>, RegistryError> {
        Ok(self.backend.list().await?.into_values().collect())
    }

    /// Leaves in an orderly way: tells each singleton of this process to stop, hands its state to the next
    /// process, and runs no singletons any more.
    pub async fn leave(mut self) {
        self.leave.send_replace(true);
        for task in self.tasks.drain(..) {
            // A task that panicked has ended, too.
            let _ = task.await;
        }
    }
}

impl<F: RegistryBackend> Drop for Supervisor<F> {
    fn drop(&mut self) {
        self.leave.send_replace(true);
    }
}

/// Completes when the supervisor leaves.
pub(super) async fn left(leave: &mut watch::Receiver<bool>) {
    // A supervisor that is gone has left.
    let _ = leave.wait_for(|leave| *leave).await;
}
