//! Named singletons, spread over the processes that offer to run them.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::cluster::{CAPACITY_MAX, NameView};
use tenure_core::{Name, NameError};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::registry::{Footing, RegistryError};
use super::singleton::{Program, Singleton};
use super::strict::{Duty, Strict};
use crate::{Error, Tenure};

/// How long a singleton that is to finish may go on, unless set.
const GRACE: Duration = Duration::from_secs(5);

/// Why a supervisor can not be as it was described. Nothing was started.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SupervisorError {
    /// The name is not allowed.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Two singletons have one name.
    #[error("{0} was given twice")]
    Twice(Name),
    /// The capacity makes no sense.
    #[error("a capacity of {0} is not possible; choose between 1 and {CAPACITY_MAX}")]
    Capacity(u32),
    /// The session or the store failed.
    #[error(transparent)]
    Tenure(#[from] Error),
}

/// Settings of a supervisor, before it starts. See [`Supervisor`].
#[must_use = "nothing runs before `start`"]
pub struct SupervisorBuilder<F: Footing> {
    pub(super) footing: F,
    pub(super) programs: Vec<(String, Program<F>)>,
    pub(super) settings: Settings,
}

/// What all singletons of a supervisor share.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) capacity: u32,
    pub(super) grace: Duration,
}

/// Runs its part of named singletons, for as long as it lives.
///
/// Each process gives the singletons that it can run; each of these runs in one of them. Which one is decided by rendezvous hashing of
/// names ([`weight`](tenure_core::cluster::weight)): a process that comes takes over its part and nothing else moves, and what a
/// process leaves behind is spread over the others. Processes need names of their own
/// ([`TenureBuilder::name`](crate::TenureBuilder::name)), or they weigh the same; a process that comes back under its name gets
/// back what it had.
///
/// A singleton that is to move is told ([`Singleton::leaving`]), returns within the grace, and what it left with
/// [`Singleton::hand_on`] is there for the next run. One that returns by itself or panics is started again after a pause, and
/// elsewhere if that happens often. When its process dies it is started elsewhere, without a state.
///
/// ```
/// # use tenure::{Tenure, backend::memory::Memory};
/// use tenure::cluster::Supervisor;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let tenure = Tenure::builder().store(Memory::new()).open().await?;
/// let supervisor = Supervisor::strict(&tenure)
///     .singleton("importer", |singleton| async move {
///         let from = singleton.state().map_or(0, |state| state.len());
///         println!("one of all is here, from {from}, under token {}", singleton.token());
///         singleton.leaving().await;
///         let _ = singleton.hand_on("the cursor");
///     })
///     .start()
///     .await?;
/// // … when this process is to end:
/// supervisor.leave().await;
/// # tenure.close().await?; Ok(()) }
/// ```
pub struct Supervisor<F: Footing> {
    pub(super) footing: F,
    pub(super) leave: watch::Sender<bool>,
    pub(super) crew: Vec<JoinHandle<()>>,
}

impl<F: Footing> SupervisorBuilder<F> {
    pub(super) fn new(footing: F) -> Self {
        let settings = Settings { capacity: 1, grace: GRACE };
        SupervisorBuilder { footing, programs: Vec::new(), settings }
    }

    /// A singleton that this process can run.
    pub fn singleton<Fut>(
        mut self,
        name: impl Into<String>,
        program: impl Fn(Singleton<F>) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.programs.push((name.into(), Arc::new(move |singleton| Box::pin(program(singleton)))));
        self
    }

    /// How much this process counts for: with a capacity of 3 it has three times as many singletons as one with 1, on average.
    pub fn capacity(mut self, capacity: u32) -> Self {
        self.settings.capacity = capacity;
        self
    }

    /// How long a singleton that is to finish may go on; five seconds unless set.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.settings.grace = grace;
        self
    }

    pub(super) fn checked(&self) -> Result<BTreeMap<Name, Program<F>>, SupervisorError> {
        if !(1..=CAPACITY_MAX).contains(&self.settings.capacity) {
            return Err(SupervisorError::Capacity(self.settings.capacity));
        }
        let mut checked = BTreeMap::new();
        for (name, program) in &self.programs {
            let name: Name = name.parse()?;
            if checked.insert(name.clone(), program.clone()).is_some() {
                return Err(SupervisorError::Twice(name));
            }
        }
        Ok(checked)
    }
}

impl Supervisor<Strict> {
    /// Singletons on a store: never two.
    pub fn strict(tenure: &Tenure) -> SupervisorBuilder<Strict> {
        SupervisorBuilder::new(Strict::singletons(tenure))
    }
}

impl SupervisorBuilder<Strict> {
    /// Singletons apart from all others: elections of this namespace.
    pub fn in_namespace(mut self, namespace: Name) -> Self {
        self.footing.namespace = namespace;
        self
    }

    /// Takes part. Completes when the store has this process as a candidate for all its singletons.
    pub async fn start(self) -> Result<Supervisor<Strict>, SupervisorError> {
        let programs = self.checked()?;
        let (leave, left) = watch::channel(false);
        let mut duties = Vec::with_capacity(programs.len());
        for (name, program) in programs {
            duties
                .push(Duty::begin(&self.footing, name, program, self.settings.clone(), left.clone()).await?);
        }
        let crew = duties.into_iter().map(|duty| tokio::spawn(duty.run())).collect();
        Ok(Supervisor { footing: self.footing, leave, crew })
    }
}

impl<F: Footing> Supervisor<F> {
    /// Who runs what, as far as this process sees.
    pub async fn placements(&self) -> Result<Vec<NameView>, RegistryError> {
        Ok(self.footing.list().await?.into_values().collect())
    }

    /// Leaves in good order: each singleton that runs here is told to finish, its state is handed to who runs it next, and this
    /// process runs none any more.
    pub async fn leave(mut self) {
        self.leave.send_replace(true);
        for duty in self.crew.drain(..) {
            // One that panicked has ended, too.
            let _ = duty.await;
        }
    }
}

impl<F: Footing> Drop for Supervisor<F> {
    fn drop(&mut self) {
        self.leave.send_replace(true);
    }
}

/// Completes when the supervisor leaves.
pub(super) async fn left(leave: &mut watch::Receiver<bool>) {
    // One that is gone has left.
    let _ = leave.wait_for(|leave| *leave).await;
}
