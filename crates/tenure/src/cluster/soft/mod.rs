//! Names and singletons on gossip: each member publishes what it holds, and a conflict policy resolves
//! duplicates after a network partition.
//!
//! There is no token and no guarantee of exclusiveness: `Registration<SoftBackend>` and
//! `SingletonContext<SoftBackend>` have neither `token()` nor `leadership()`, so code that needs them does not
//! compile.
//!
//! ```compile_fail
//! # async fn on(gossip: tenure::store::gossip::Gossip) -> Result<(), tenure::cluster::RegistryError> {
//! use tenure::cluster::Registry;
//!
//! let name = Registry::soft(&gossip).register("printer", [("zone", "a")]).await?;
//! let token = name.token(); // there is none
//! # Ok(()) }
//! ```

mod entries;
mod names;
mod singletons;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_core::Stream;
use futures_util::StreamExt as _;
use tenure_core::Name;
use tenure_core::rules::cluster::{ConflictPolicy, Metadata, RegisteredName};
use tokio::sync::watch;

use super::registry::sealed;
use super::registry::{Registration, Registry, RegistryBackend, RegistryError};
use super::supervisor::{Supervisor, SupervisorBuilder, SupervisorError};
use crate::store::gossip::{Gossip, Roster};

/// User function for conflicts: from the holders of a name, lowest first, it selects the one that keeps it, or
/// none.
type Rule = Arc<dyn Fn(&[RegisteredName]) -> Option<usize> + Send + Sync>;

/// Backend on gossip: fast, without a store, and not exclusive. Each side of a network partition may have a
/// holder until they reconnect.
#[derive(Clone)]
pub struct SoftBackend {
    gossip: Gossip,
    resolver: ConflictPolicy,
    rule: Option<Rule>,
    about: SoftNamespace,
}

/// Which entries a backend reads: registered names or singletons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SoftNamespace {
    Names,
    Singletons,
}

impl RegistryBackend for SoftBackend {}

#[async_trait]
impl sealed::RegistryBackend for SoftBackend {
    type RegistrationData = ();
    type RunLease = ();
    type Changes = Pin<Box<dyn Stream<Item = Arc<Roster>> + Send>>;

    async fn register(
        &self,
        name: Name,
        metadata: Metadata,
        max_wait: Duration,
    ) -> Result<Registration<SoftBackend>, RegistryError> {
        names::register(self, name, metadata, max_wait).await
    }

    async fn whereis(&self, name: &Name) -> Result<Option<RegisteredName>, RegistryError> {
        Ok(self.list().await?.remove(name))
    }

    async fn list(&self) -> Result<BTreeMap<Name, RegisteredName>, RegistryError> {
        Ok(match self.about {
            SoftNamespace::Names => names::all(&self.gossip, self.resolver),
            SoftNamespace::Singletons => singletons::all(&self.gossip),
        })
    }

    fn subscribe(&self) -> Self::Changes {
        Box::pin(self.gossip.watch())
    }

    async fn wait_for_change(&self, changes: &mut Self::Changes) -> bool {
        changes.next().await.is_some()
    }
}

impl SoftBackend {
    fn new(gossip: &Gossip, about: SoftNamespace) -> SoftBackend {
        SoftBackend { gossip: gossip.clone(), resolver: ConflictPolicy::default(), rule: None, about }
    }
}

impl Registry<SoftBackend> {
    /// The registered names of a gossip cluster. **Not exclusive**: during a network partition both sides may
    /// hold a name; afterwards a [`ConflictPolicy`] selects the one that keeps it.
    ///
    /// ```
    /// use tenure::store::gossip::{Gossip, GossipOptions};
    /// use tenure::cluster::{ConflictPolicy, Registry};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let gossip = Gossip::join(GossipOptions::new("127.0.0.1:0").name("a")).await?;
    /// let registry = Registry::soft(&gossip).conflict_policy(ConflictPolicy::KeepOlder);
    /// let printer = registry.register("printer", [("address", "10.0.0.7:631")]).await?;
    /// assert_eq!(registry.whereis("printer").await?.unwrap().holder, "a");
    /// printer.unregister().await?;
    /// # gossip.leave().await; Ok(()) }
    /// ```
    pub fn soft(gossip: &Gossip) -> Registry<SoftBackend> {
        Registry { backend: SoftBackend::new(gossip, SoftNamespace::Names) }
    }

    /// Sets the conflict policy; the older claim wins unless set. All members must use the same policy,
    /// otherwise both sides may keep a name, or neither.
    #[must_use]
    pub fn conflict_policy(mut self, resolver: ConflictPolicy) -> Registry<SoftBackend> {
        self.backend.resolver = resolver;
        self
    }

    /// Sets a user function for conflicts. It receives all holders of a name, lowest first, and returns the one
    /// that keeps it, or `None` for no holder. It runs on the lowest holder, and the others follow its
    /// decision.
    #[must_use]
    pub fn conflict_rule(
        mut self,
        rule: impl Fn(&[RegisteredName]) -> Option<usize> + Send + Sync + 'static,
    ) -> Registry<SoftBackend> {
        self.backend.resolver = ConflictPolicy::UserRule;
        self.backend.rule = Some(Arc::new(rule));
        self
    }
}

impl Registration<SoftBackend> {
    /// Whether this process holds the name, as far as it knows. Another process may hold it too.
    pub fn is_registered(&self) -> bool {
        self.ended.borrow().is_none()
    }
}

impl Supervisor<SoftBackend> {
    /// Singletons of a gossip cluster. **Not exclusive**: during a network partition each side runs each of
    /// them; afterwards one of the two is told to stop.
    pub fn soft(gossip: &Gossip) -> SupervisorBuilder<SoftBackend> {
        SupervisorBuilder::new(SoftBackend::new(gossip, SoftNamespace::Singletons))
    }
}

impl SupervisorBuilder<SoftBackend> {
    /// Publishes the singletons that this process offers to run, and starts those assigned to it.
    pub async fn start(self) -> Result<Supervisor<SoftBackend>, SupervisorError> {
        let programs = self.checked()?;
        let (leave, leaving) = watch::channel(false);
        let singletons =
            singletons::SoftSingletons::begin(&self.backend.gossip, programs, self.settings, leaving).await?;
        Ok(Supervisor { backend: self.backend, leave, tasks: vec![tokio::spawn(singletons.run())] })
    }
}
