//! Registered names.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use async_trait::async_trait;
use futures_core::Stream;
use futures_util::stream;
use tenure_core::rules::cluster::{
    Metadata, MetadataError, NameChange, RegisteredName, changes, is_reserved, validate_metadata,
};
use tenure_core::rules::lease::LossReason;
use tenure_core::{Name, NameError};
use tokio::sync::{mpsc, oneshot, watch};

use crate::Error;

/// Backend of names and singletons: [`StrictBackend`](super::StrictBackend) or, on gossip, `SoftBackend`.
/// Sealed.
pub trait RegistryBackend: sealed::RegistryBackend {}

pub(crate) mod sealed {
    use super::*;

    /// Operations that a registry needs from its backend.
    #[async_trait]
    pub trait RegistryBackend: Clone + Send + Sync + Sized + 'static {
        /// Data of a registration on this backend.
        type RegistrationData: Send + Sync + 'static;
        /// Data of a singleton run on this backend.
        type RunLease: Clone + Send + Sync + 'static;
        /// Subscription to changes of names.
        type Changes: Send + 'static;

        /// Registers a name. Waits up to `max_wait` if the name is held.
        async fn register(
            &self,
            name: Name,
            metadata: Metadata,
            max_wait: Duration,
        ) -> Result<Registration<Self>, RegistryError>
        where
            Self: super::RegistryBackend;

        /// Reads the holder of a name.
        async fn whereis(&self, name: &Name) -> Result<Option<RegisteredName>, RegistryError>;

        /// Reads all names.
        async fn list(&self) -> Result<BTreeMap<Name, RegisteredName>, RegistryError>;

        /// Subscribes to changes. Call it before the first read.
        fn subscribe(&self) -> Self::Changes;

        /// Waits until names may have changed. Returns `false` at the end of the subscription.
        async fn wait_for_change(&self, changes: &mut Self::Changes) -> bool;
    }
}

/// A registry operation failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// Another process holds the name. Nothing was changed.
    #[error("{name} is registered by {holder}; wait for it with `register_within`, or choose another name")]
    Taken {
        /// The name.
        name: Name,
        /// Name of the process that holds it.
        holder: String,
    },
    /// No holder was seen, and the name was not granted in time. Nothing is registered.
    #[error(
        "{0} was not granted within {1:?}: the store is slow, several processes want the name, or it is paused"
    )]
    NotGranted(Name, Duration),
    /// The name is reserved for Tenure. Nothing was changed.
    #[error("name {0} is reserved: names that begin with \"tenure:\" belong to Tenure; choose another name")]
    Reserved(Name),
    /// The name is invalid. Nothing was changed.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The metadata is invalid. Nothing was changed.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The name is no longer registered by this process. Nothing was changed.
    #[error("{0} is no longer registered by this process")]
    NotRegistered(Name),
    /// The session or the store failed.
    #[error(transparent)]
    Tenure(#[from] Error),
}

/// Why a registration ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegistrationEnd {
    /// It was unregistered, or its handle was dropped.
    Unregistered,
    /// An operator requested it, or the session was closed.
    Requested,
    /// The session of this process is no longer trusted, or the lease was lost.
    Lost(LossReason),
    /// After a network partition another member held the name too, and this one does not keep it.
    Conflict {
        /// Name of the member that keeps it; `None` if no member does.
        kept_by: Option<String>,
    },
}

/// The registered names of a cluster.
///
/// ```
/// # use tenure::{Tenure, store::memory::MemoryStore};
/// use tenure::cluster::{Registry, RegistryError};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let memory = MemoryStore::new();
/// # let tenure = Tenure::builder().store(memory.clone()).name("a").open().await?;
/// # let other = Tenure::builder().store(memory).name("b").open().await?;
/// let registry = Registry::strict(&tenure);
/// let billing = registry.register("billing", [("address", "10.0.0.7:8080")]).await?;
/// println!("registered under token {}", billing.token());
///
/// // Another process:
/// let registry = Registry::strict(&other);
/// let found = registry.whereis("billing").await?.expect("the name is registered");
/// assert_eq!((found.holder.as_str(), found.metadata["address"].as_str()), ("a", "10.0.0.7:8080"));
/// let refused = registry.register("billing", [("address", "10.0.0.8:8080")]).await;
/// assert!(matches!(refused, Err(RegistryError::Taken { holder, .. }) if holder == "a"));
///
/// billing.unregister().await?;
/// assert!(registry.whereis("billing").await?.is_none());
/// # tenure.close().await?; other.close().await?; Ok(()) }
/// ```
#[derive(Clone)]
pub struct Registry<F: RegistryBackend> {
    pub(super) backend: F,
}

impl<F: RegistryBackend> Registry<F> {
    /// Registers a name with metadata for others. Fails with [`RegistryError::Taken`] if another process holds
    /// it.
    ///
    /// A dead process keeps its names until its death is detected; [`register_within`](Self::register_within)
    /// waits for that.
    pub async fn register<K: Into<String>, V: Into<String>>(
        &self,
        name: &str,
        metadata: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Registration<F>, RegistryError> {
        self.register_within(name, metadata, Duration::ZERO).await
    }

    /// Registers a name. Waits up to `max_wait` until the current holder releases it or is found dead.
    pub async fn register_within<K: Into<String>, V: Into<String>>(
        &self,
        name: &str,
        metadata: impl IntoIterator<Item = (K, V)>,
        max_wait: Duration,
    ) -> Result<Registration<F>, RegistryError> {
        let (name, metadata) = (checked(name)?, checked_metadata(metadata)?);
        self.backend.register(name, metadata, max_wait).await
    }

    /// Reads the holder of a name and its metadata; `None` if the name is free.
    pub async fn whereis(&self, name: &str) -> Result<Option<RegisteredName>, RegistryError> {
        self.backend.whereis(&checked(name)?).await
    }

    /// Reads all registered names, ordered by name.
    pub async fn list(&self) -> Result<Vec<RegisteredName>, RegistryError> {
        Ok(self.backend.list().await?.into_values().collect())
    }

    /// Stream of changes: first all current names, then every observed change. A change that is undone between
    /// two reads is not reported. While the names cannot be read, the stream is silent; it continues
    /// afterwards.
    ///
    /// ```
    /// # use tenure::{Tenure, store::memory::MemoryStore};
    /// use futures_util::StreamExt;
    /// use tenure::cluster::{NameChange, Registry};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let tenure = Tenure::builder().store(MemoryStore::new()).open().await?;
    /// let registry = Registry::strict(&tenure);
    /// let mut changes = registry.watch();
    /// let billing = registry.register("billing", [("zone", "a")]).await?;
    /// assert!(matches!(changes.next().await, Some(NameChange::Registered(view)) if view.name.as_str() == "billing"));
    /// billing.update([("zone", "b")]).await?;
    /// assert!(matches!(changes.next().await, Some(NameChange::Updated(view)) if view.metadata["zone"] == "b"));
    /// # drop(billing); tenure.close().await?; Ok(()) }
    /// ```
    pub fn watch(&self) -> impl Stream<Item = NameChange> + Send + Unpin + use<F> {
        let watching = NameWatch {
            changes: self.backend.subscribe(),
            backend: self.backend.clone(),
            known: BTreeMap::new(),
            pending: VecDeque::new(),
            fresh: true,
        };
        Box::pin(stream::unfold(watching, async |mut watching| {
            let change = watching.next().await?;
            Some((change, watching))
        }))
    }
}

/// State of a stream of name changes.
struct NameWatch<F: RegistryBackend> {
    backend: F,
    changes: F::Changes,
    known: BTreeMap<Name, RegisteredName>,
    pending: VecDeque<NameChange>,
    fresh: bool,
}

impl<F: RegistryBackend> NameWatch<F> {
    async fn next(&mut self) -> Option<NameChange> {
        loop {
            if let Some(change) = self.pending.pop_front() {
                return Some(change);
            }
            if !std::mem::take(&mut self.fresh) && !self.backend.wait_for_change(&mut self.changes).await {
                return None;
            }
            match self.backend.list().await {
                Ok(now) => {
                    self.pending.extend(changes(&self.known, &now));
                    self.known = now;
                }
                Err(error) => tracing::debug!("reading registered names failed: {error}"),
            }
        }
    }
}

/// A name held by this process until it is released or lost. Dropping it releases the name.
///
/// ```
/// # use tenure::{Tenure, store::memory::MemoryStore, cluster::{RegistrationEnd, Registry}};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let tenure = Tenure::builder().store(MemoryStore::new()).open().await?;
/// let name = Registry::strict(&tenure).register("billing", [("zone", "a")]).await?;
/// assert!(name.is_registered());
/// tenure.close().await?;
/// assert_eq!(name.ended().await, RegistrationEnd::Requested);
/// assert!(!name.is_registered());
/// # Ok(()) }
/// ```
pub struct Registration<F: RegistryBackend> {
    pub(super) name: Name,
    pub(super) data: F::RegistrationData,
    pub(super) ended: watch::Receiver<Option<RegistrationEnd>>,
    pub(super) commands: mpsc::UnboundedSender<RegistrationCommand>,
}

/// Command to the task that maintains a registration.
pub(super) enum RegistrationCommand {
    Update(Metadata, oneshot::Sender<Result<(), RegistryError>>),
    Unregister(oneshot::Sender<Result<(), RegistryError>>),
}

impl<F: RegistryBackend> Registration<F> {
    /// The name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Replaces the metadata of the name. Fails with [`RegistryError::NotRegistered`] if this process no longer holds
    /// the name.
    pub async fn update<K: Into<String>, V: Into<String>>(
        &self,
        metadata: impl IntoIterator<Item = (K, V)>,
    ) -> Result<(), RegistryError> {
        let metadata = checked_metadata(metadata)?;
        self.command(|reply| RegistrationCommand::Update(metadata, reply)).await
    }

    /// Releases the name. Completes when others can register it.
    pub async fn unregister(self) -> Result<(), RegistryError> {
        self.command(RegistrationCommand::Unregister).await
    }

    /// Completes when this process no longer holds the name, and returns the reason.
    pub async fn ended(&self) -> RegistrationEnd {
        let mut ended = self.ended.clone();
        let end = ended.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
        end.unwrap_or(RegistrationEnd::Requested)
    }

    async fn command(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<(), RegistryError>>) -> RegistrationCommand,
    ) -> Result<(), RegistryError> {
        let end = || RegistryError::NotRegistered(self.name.clone());
        let (reply, done) = oneshot::channel();
        self.commands.send(command(reply)).map_err(|_| end())?;
        done.await.map_err(|_| end())?
    }
}

impl<F: RegistryBackend> std::fmt::Debug for Registration<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registration").field("name", &self.name).finish_non_exhaustive()
    }
}

fn checked(name: &str) -> Result<Name, RegistryError> {
    let name: Name = name.parse()?;
    if is_reserved(&name) { Err(RegistryError::Reserved(name)) } else { Ok(name) }
}

fn checked_metadata<K: Into<String>, V: Into<String>>(
    metadata: impl IntoIterator<Item = (K, V)>,
) -> Result<Metadata, RegistryError> {
    let metadata: Metadata = metadata.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
    validate_metadata(&metadata)?;
    Ok(metadata)
}
