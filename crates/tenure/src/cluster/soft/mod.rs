//! On gossip: each member says what it has, and a resolver settles what a netsplit left.
//!
//! There is no token and no promise that there is one: `Registered<Soft>` and `Singleton<Soft>` have neither `token()` nor
//! `leadership()`, so what needs them does not compile.
//!
//! ```compile_fail
//! # async fn on(gossip: tenure::backend::gossip::Gossip) -> Result<(), tenure::cluster::RegistryError> {
//! use tenure::cluster::Registry;
//!
//! let name = Registry::soft(&gossip).register("printer", [("zone", "a")]).await?;
//! let token = name.token(); // there is none
//! # Ok(()) }
//! ```

mod duty;
mod names;
mod said;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_core::Stream;
use futures_util::StreamExt as _;
use tenure_core::Name;
use tenure_core::cluster::{Metadata, NameView, Resolver};
use tokio::sync::watch;

use super::registry::sealed;
use super::registry::{Footing, Registered, Registry, RegistryError};
use super::supervisor::{Supervisor, SupervisorBuilder, SupervisorError};
use crate::backend::gossip::{Gossip, Roster};

/// The user's rule: of these who have a name, lowest first, which one keeps it; `None`: nobody.
type Rule = Arc<dyn Fn(&[NameView]) -> Option<usize> + Send + Sync>;

/// On gossip: quick, without a store, and not exclusive. Two sides of a netsplit may each have one, until they meet.
#[derive(Clone)]
pub struct Soft {
    gossip: Gossip,
    resolver: Resolver,
    rule: Option<Rule>,
    about: About,
}

/// What a footing is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    Names,
    Singletons,
}

impl Footing for Soft {}

#[async_trait]
impl sealed::Footing for Soft {
    type Hold = ();
    type Grip = ();
    type Ears = Pin<Box<dyn Stream<Item = Arc<Roster>> + Send>>;

    async fn register(
        &self,
        name: Name,
        metadata: Metadata,
        patience: Duration,
    ) -> Result<Registered<Soft>, RegistryError> {
        names::register(self, name, metadata, patience).await
    }

    async fn whereis(&self, name: &Name) -> Result<Option<NameView>, RegistryError> {
        Ok(self.list().await?.remove(name))
    }

    async fn list(&self) -> Result<BTreeMap<Name, NameView>, RegistryError> {
        Ok(match self.about {
            About::Names => names::all(&self.gossip, self.resolver),
            About::Singletons => duty::all(&self.gossip),
        })
    }

    fn listen(&self) -> Self::Ears {
        Box::pin(self.gossip.watch())
    }

    async fn hear(&self, ears: &mut Self::Ears) -> bool {
        ears.next().await.is_some()
    }
}

impl Soft {
    fn new(gossip: &Gossip, about: About) -> Soft {
        Soft { gossip: gossip.clone(), resolver: Resolver::default(), rule: None, about }
    }
}

impl Registry<Soft> {
    /// The names of a cluster that gossips. **Not exclusive**: after a netsplit a [`Resolver`] settles who keeps a name that both sides
    /// have, until then both have it.
    ///
    /// ```
    /// use tenure::backend::gossip::{Gossip, GossipOptions};
    /// use tenure::cluster::{Registry, Resolver};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let gossip = Gossip::join(GossipOptions::new("127.0.0.1:0").name("a")).await?;
    /// let registry = Registry::soft(&gossip).resolver(Resolver::KeepOlder);
    /// let printer = registry.register("printer", [("address", "10.0.0.7:631")]).await?;
    /// assert_eq!(registry.whereis("printer").await?.unwrap().holder, "a");
    /// printer.unregister().await?;
    /// # gossip.leave().await; Ok(()) }
    /// ```
    pub fn soft(gossip: &Gossip) -> Registry<Soft> {
        Registry { footing: Soft::new(gossip, About::Names) }
    }

    /// How a name that several have is settled; the older keeps it unless set. All members must be set alike, or two sides may both
    /// keep a name, or neither.
    #[must_use]
    pub fn resolver(mut self, resolver: Resolver) -> Registry<Soft> {
        self.footing.resolver = resolver;
        self
    }

    /// A rule of your own: given all who have a name, lowest first, it says which one keeps it; `None`: nobody. It is asked at one of
    /// those who have the name, the lowest, and the others do what it says.
    #[must_use]
    pub fn ask(
        mut self,
        rule: impl Fn(&[NameView]) -> Option<usize> + Send + Sync + 'static,
    ) -> Registry<Soft> {
        self.footing.resolver = Resolver::Ask;
        self.footing.rule = Some(Arc::new(rule));
        self
    }
}

impl Registered<Soft> {
    /// Whether this process has the name, as far as it knows. Somebody else may have it too.
    pub fn is_registered(&self) -> bool {
        self.ended.borrow().is_none()
    }
}

impl Supervisor<Soft> {
    /// Singletons of a cluster that gossips. **Not exclusive**: in a netsplit each side runs each of them, and after it one of the two
    /// is told to finish.
    pub fn soft(gossip: &Gossip) -> SupervisorBuilder<Soft> {
        SupervisorBuilder::new(Soft::new(gossip, About::Singletons))
    }
}

impl SupervisorBuilder<Soft> {
    /// Takes part.
    pub async fn start(self) -> Result<Supervisor<Soft>, SupervisorError> {
        let programs = self.checked()?;
        let (leave, left) = watch::channel(false);
        let duty = duty::Duty::begin(&self.footing.gossip, programs, self.settings, left).await?;
        Ok(Supervisor { footing: self.footing, leave, crew: vec![tokio::spawn(duty.run())] })
    }
}
