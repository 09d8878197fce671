//! Names and singletons on a store: each is an election.

mod names;
mod singleton;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::rules::cluster::{Metadata, RegisteredName};
use tenure_core::{ElectionKey, Name, Token};
use tokio::sync::watch;

pub(super) use self::singleton::StrictSingleton;
use super::registry::{Registration, Registry, RegistryBackend, RegistryError, sealed};
use super::singleton::SingletonContext;
use super::{NAMES, SINGLETONS};
use crate::election::leadership::ActiveTerm;
use crate::queue::notifier::NotifyChannel;
use crate::{Error, Leadership, Tenure};

/// Backend on a store: exclusive, each holder under a token.
#[derive(Clone)]
pub struct StrictBackend {
    pub(super) tenure: Tenure,
    pub(super) namespace: Name,
}

impl RegistryBackend for StrictBackend {}

/// Notifications about the elections of a namespace.
pub struct NameNotifications {
    channel: watch::Receiver<()>,
    // Signals arrive only while this handle exists.
    _channel: Arc<NotifyChannel>,
}

/// The term behind a strict registration. It does not count as work under the term.
pub struct RegistrationTerm(pub(super) Arc<ActiveTerm>);

#[async_trait]
impl sealed::RegistryBackend for StrictBackend {
    type RegistrationData = RegistrationTerm;
    type RunLease = Leadership;
    type Changes = NameNotifications;

    async fn register(
        &self,
        name: Name,
        metadata: Metadata,
        max_wait: Duration,
    ) -> Result<Registration<StrictBackend>, RegistryError> {
        names::register(self, name, metadata, max_wait).await
    }

    async fn whereis(&self, name: &Name) -> Result<Option<RegisteredName>, RegistryError> {
        let key = ElectionKey::new(self.namespace.clone(), name.clone());
        let election = self.tenure.election_admin().election(&key).await.map_err(Error::from)?;
        Ok(election.as_ref().and_then(RegisteredName::of))
    }

    async fn list(&self) -> Result<BTreeMap<Name, RegisteredName>, RegistryError> {
        let elections =
            self.tenure.election_admin().elections(Some(&self.namespace)).await.map_err(Error::from)?;
        Ok(elections.iter().filter_map(RegisteredName::of).map(|view| (view.name.clone(), view)).collect())
    }

    fn subscribe(&self) -> NameNotifications {
        let channel = self.tenure.ctx().shared.notifier.namespace(&self.namespace);
        NameNotifications { channel: channel.subscribe(), _channel: channel }
    }

    async fn wait_for_change(&self, changes: &mut NameNotifications) -> bool {
        let runtime = self.tenure.runtime();
        tokio::select! {
            () = self.tenure.closed() => false,
            changed = changes.channel.changed() => changed.is_ok(),
            // Notifications may be lost, so read at least once per heartbeat interval.
            () = runtime.sleep_until(runtime.now() + self.tenure.timing().heartbeat_interval()) => true,
        }
    }
}

impl Registry<StrictBackend> {
    /// The registered names of a store: elections of the namespace [`NAMES`].
    pub fn strict(tenure: &Tenure) -> Registry<StrictBackend> {
        let namespace = NAMES.parse().unwrap_or_else(|_| Name::default_namespace());
        Registry { backend: StrictBackend { tenure: tenure.clone(), namespace } }
    }

    /// Uses the elections of this namespace, separate from all others.
    #[must_use]
    pub fn in_namespace(mut self, namespace: Name) -> Registry<StrictBackend> {
        self.backend.namespace = namespace;
        self
    }
}

impl StrictBackend {
    /// The singletons of a store.
    pub(super) fn singletons(tenure: &Tenure) -> StrictBackend {
        let namespace = SINGLETONS.parse().unwrap_or_else(|_| Name::default_namespace());
        StrictBackend { tenure: tenure.clone(), namespace }
    }
}

impl Registration<StrictBackend> {
    /// Whether this process holds the name *now*. Every call compares the clock.
    pub fn is_registered(&self) -> bool {
        self.data.0.is_leader()
    }

    /// The fencing token. It grows with every change of the holder.
    pub fn token(&self) -> Token {
        self.data.0.token
    }

    /// Leadership behind the name, to guard transactions. Holding it counts as work: the name is released only
    /// after it is dropped. `None` if this process no longer holds the name.
    pub fn leadership(&self) -> Option<Leadership> {
        self.data.0.lead()
    }
}

impl SingletonContext<StrictBackend> {
    /// Leadership under which the singleton runs, to guard transactions and to compare the clock.
    pub fn leadership(&self) -> &Leadership {
        &self.lease
    }

    /// The fencing token. It grows with every start.
    pub fn token(&self) -> Token {
        self.lease.token()
    }
}
