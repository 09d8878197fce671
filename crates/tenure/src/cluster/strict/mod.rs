//! On a store: a name is an election, a singleton is one too, and the store decides.

mod duty;
mod names;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::cluster::{Metadata, NameView};
use tenure_core::{ElectionKey, Name, Token};
use tokio::sync::watch;

pub(super) use self::duty::Duty;
use super::registry::{Footing, Registered, Registry, RegistryError, sealed};
use super::singleton::Singleton;
use super::{NAMES, SINGLETONS};
use crate::claims::bells::Bell;
use crate::leadership::Term;
use crate::{Error, Leadership, Tenure};

/// On a store: never two, each under a token.
#[derive(Clone)]
pub struct Strict {
    pub(super) tenure: Tenure,
    pub(super) namespace: Name,
}

impl Footing for Strict {}

/// The bell of the names' namespace.
pub struct Ears {
    bell: watch::Receiver<()>,
    // Rings only while somebody holds it.
    _held: Arc<Bell>,
}

/// What a strict registration holds: its term, without counting as work under it.
pub struct Hold(pub(super) Arc<Term>);

#[async_trait]
impl sealed::Footing for Strict {
    type Hold = Hold;
    type Grip = Leadership;
    type Ears = Ears;

    async fn register(
        &self,
        name: Name,
        metadata: Metadata,
        patience: Duration,
    ) -> Result<Registered<Strict>, RegistryError> {
        names::register(self, name, metadata, patience).await
    }

    async fn whereis(&self, name: &Name) -> Result<Option<NameView>, RegistryError> {
        let key = ElectionKey::new(self.namespace.clone(), name.clone());
        let election = self.tenure.directory().election(&key).await.map_err(Error::from)?;
        Ok(election.as_ref().and_then(NameView::of))
    }

    async fn list(&self) -> Result<BTreeMap<Name, NameView>, RegistryError> {
        let elections =
            self.tenure.directory().elections(Some(&self.namespace)).await.map_err(Error::from)?;
        Ok(elections.iter().filter_map(NameView::of).map(|view| (view.name.clone(), view)).collect())
    }

    fn listen(&self) -> Ears {
        let held = self.tenure.hub().shared.bells.namespace(&self.namespace);
        Ears { bell: held.subscribe(), _held: held }
    }

    async fn hear(&self, ears: &mut Ears) -> bool {
        let runtime = self.tenure.runtime();
        tokio::select! {
            () = self.tenure.closed() => false,
            rung = ears.bell.changed() => rung.is_ok(),
            // Hints may be lost: the floor.
            () = runtime.sleep_until(runtime.now() + self.tenure.timing().beat()) => true,
        }
    }
}

impl Registry<Strict> {
    /// The names of a store, as this process uses them: elections of the namespace [`NAMES`].
    pub fn strict(tenure: &Tenure) -> Registry<Strict> {
        let namespace = NAMES.parse().unwrap_or_else(|_| Name::default_namespace());
        Registry { footing: Strict { tenure: tenure.clone(), namespace } }
    }

    /// Names apart from all others: elections of this namespace.
    #[must_use]
    pub fn in_namespace(mut self, namespace: Name) -> Registry<Strict> {
        self.footing.namespace = namespace;
        self
    }
}

impl Strict {
    /// Where the singletons of a store are.
    pub(super) fn singletons(tenure: &Tenure) -> Strict {
        let namespace = SINGLETONS.parse().unwrap_or_else(|_| Name::default_namespace());
        Strict { tenure: tenure.clone(), namespace }
    }
}

impl Registered<Strict> {
    /// Whether this process has the name *now*. The clock is compared at every call; nothing is remembered.
    pub fn is_registered(&self) -> bool {
        self.hold.0.is_leader()
    }

    /// The fencing token: greater with every change of who has the name.
    pub fn token(&self) -> Token {
        self.hold.0.token
    }

    /// Having the name as leadership, to guard transactions with. Holding it counts as working: the name is another's only when it
    /// is dropped. `None` if the name is not ours any more.
    pub fn leadership(&self) -> Option<Leadership> {
        self.hold.0.lead()
    }
}

impl Singleton<Strict> {
    /// The leadership under which it runs: to guard transactions, and to compare the clock.
    pub fn leadership(&self) -> &Leadership {
        &self.grip
    }

    /// The fencing token: greater with every start.
    pub fn token(&self) -> Token {
        self.grip.token()
    }
}
