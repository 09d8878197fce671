//! Unique names.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use async_trait::async_trait;
use futures_core::Stream;
use futures_util::stream;
use tenure_core::cluster::{
    Metadata, MetadataError, NameChange, NameView, changes, check_metadata, is_reserved,
};
use tenure_core::lease::Loss;
use tenure_core::{Name, NameError};
use tokio::sync::{mpsc, oneshot, watch};

use crate::Error;

/// What names and singletons stand on. There are two, [`Strict`](super::Strict) and, on gossip, `Soft`; nobody else makes one.
pub trait Footing: sealed::Footing {}

pub(crate) mod sealed {
    use super::*;

    /// What a registry needs of its footing.
    #[async_trait]
    pub trait Footing: Clone + Send + Sync + Sized + 'static {
        /// What only a registration of this footing has.
        type Hold: Send + Sync + 'static;
        /// What only a singleton of this footing has.
        type Grip: Clone + Send + Sync + 'static;
        /// Rings when names may have changed.
        type Ears: Send + 'static;

        /// Registers a name, waiting for at most so long if somebody has it.
        async fn register(
            &self,
            name: Name,
            metadata: Metadata,
            patience: Duration,
        ) -> Result<Registered<Self>, RegistryError>
        where
            Self: super::Footing;

        /// Who has a name.
        async fn whereis(&self, name: &Name) -> Result<Option<NameView>, RegistryError>;

        /// All names.
        async fn list(&self) -> Result<BTreeMap<Name, NameView>, RegistryError>;

        /// Begins to listen, before the first look.
        fn listen(&self) -> Self::Ears;

        /// Waits until it is worth another look. `false` when there is nothing more to come.
        async fn hear(&self, ears: &mut Self::Ears) -> bool;
    }
}

/// Why something could not be done in a registry.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// Somebody has the name. Nothing was changed.
    #[error("{name} is registered by {holder}; wait for it with `register_within`, or choose another name")]
    Taken {
        /// Which name.
        name: Name,
        /// What people call the process that has it.
        holder: String,
    },
    /// Nobody was seen to have the name, and it was not granted in time. Nothing is registered.
    #[error(
        "{0} was not granted within {1:?}: the store is slow, several want it, or an operator has paused it"
    )]
    NotGranted(Name, Duration),
    /// The name is one of Tenure's own. Nothing was done.
    #[error("names that begin with \"tenure:\" are kept for Tenure itself; {0} is one of them")]
    Reserved(Name),
    /// The name is not allowed. Nothing was done.
    #[error(transparent)]
    Name(#[from] NameError),
    /// This can not be said about a name. Nothing was done.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The name is not registered here any more. Nothing was done.
    #[error("{0} is not registered here any more")]
    Over(Name),
    /// The session or the store failed.
    #[error(transparent)]
    Tenure(#[from] Error),
}

/// How a registration ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// It was given up: unregistered, or its handle was dropped.
    Unregistered,
    /// An operator asked for it, or the session was closed.
    Asked,
    /// It is not trusted any more.
    Lost(Loss),
    /// After a netsplit somebody else had the name too, and this side is not to keep it.
    Conflict {
        /// What people call the member that keeps it; `None` if nobody does.
        kept_by: Option<String>,
    },
}

/// Unique names of a cluster.
///
/// ```
/// # use tenure::{Tenure, backend::memory::Memory};
/// use tenure::cluster::{Registry, RegistryError};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let memory = Memory::new();
/// # let tenure = Tenure::builder().store(memory.clone()).name("a").open().await?;
/// # let other = Tenure::builder().store(memory).name("b").open().await?;
/// let registry = Registry::strict(&tenure);
/// let billing = registry.register("billing", [("address", "10.0.0.7:8080")]).await?;
/// println!("ours, under token {}", billing.token());
///
/// // Somebody else:
/// let registry = Registry::strict(&other);
/// let found = registry.whereis("billing").await?.expect("somebody has it");
/// assert_eq!((found.holder.as_str(), found.metadata["address"].as_str()), ("a", "10.0.0.7:8080"));
/// let refused = registry.register("billing", [("address", "10.0.0.8:8080")]).await;
/// assert!(matches!(refused, Err(RegistryError::Taken { holder, .. }) if holder == "a"));
///
/// billing.unregister().await?;
/// assert!(registry.whereis("billing").await?.is_none());
/// # tenure.close().await?; other.close().await?; Ok(()) }
/// ```
#[derive(Clone)]
pub struct Registry<F: Footing> {
    pub(super) footing: F,
}

impl<F: Footing> Registry<F> {
    /// Registers a name, with what others are to know about it. At once or not at all: if somebody has it, that is the answer.
    ///
    /// A process that died keeps its names until it is found dead: use [`register_within`](Self::register_within) to wait for that.
    pub async fn register<K: Into<String>, V: Into<String>>(
        &self,
        name: &str,
        metadata: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Registered<F>, RegistryError> {
        self.register_within(name, metadata, Duration::ZERO).await
    }

    /// Registers a name, waiting for at most so long until whoever has it gives it up or is found dead.
    pub async fn register_within<K: Into<String>, V: Into<String>>(
        &self,
        name: &str,
        metadata: impl IntoIterator<Item = (K, V)>,
        patience: Duration,
    ) -> Result<Registered<F>, RegistryError> {
        let (name, metadata) = (checked(name)?, said(metadata)?);
        self.footing.register(name, metadata, patience).await
    }

    /// Who has a name, and what it says of itself; `None` if nobody has.
    pub async fn whereis(&self, name: &str) -> Result<Option<NameView>, RegistryError> {
        self.footing.whereis(&checked(name)?).await
    }

    /// All names that somebody has, in their order.
    pub async fn list(&self) -> Result<Vec<NameView>, RegistryError> {
        Ok(self.footing.list().await?.into_values().collect())
    }

    /// What changes: first all that there is, then everything that is seen to change. What comes and goes between two looks is not
    /// seen. While the names can not be read, nothing is told; it goes on when they can.
    ///
    /// ```
    /// # use tenure::{Tenure, backend::memory::Memory};
    /// use futures_util::StreamExt;
    /// use tenure::cluster::{NameChange, Registry};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let tenure = Tenure::builder().store(Memory::new()).open().await?;
    /// let registry = Registry::strict(&tenure);
    /// let mut changes = registry.watch();
    /// let billing = registry.register("billing", [("zone", "a")]).await?;
    /// assert!(matches!(changes.next().await, Some(NameChange::Registered(view)) if view.name.as_str() == "billing"));
    /// billing.update([("zone", "b")]).await?;
    /// assert!(matches!(changes.next().await, Some(NameChange::Updated(view)) if view.metadata["zone"] == "b"));
    /// # drop(billing); tenure.close().await?; Ok(()) }
    /// ```
    pub fn watch(&self) -> impl Stream<Item = NameChange> + Send + Unpin + use<F> {
        let watching = Watching {
            ears: self.footing.listen(),
            footing: self.footing.clone(),
            known: BTreeMap::new(),
            told: VecDeque::new(),
            fresh: true,
        };
        Box::pin(stream::unfold(watching, async |mut watching| {
            let change = watching.next().await?;
            Some((change, watching))
        }))
    }
}

/// Somebody who is told what changes.
struct Watching<F: Footing> {
    footing: F,
    ears: F::Ears,
    known: BTreeMap<Name, NameView>,
    told: VecDeque<NameChange>,
    fresh: bool,
}

impl<F: Footing> Watching<F> {
    async fn next(&mut self) -> Option<NameChange> {
        loop {
            if let Some(change) = self.told.pop_front() {
                return Some(change);
            }
            if !std::mem::take(&mut self.fresh) && !self.footing.hear(&mut self.ears).await {
                return None;
            }
            match self.footing.list().await {
                Ok(now) => {
                    self.told.extend(changes(&self.known, &now));
                    self.known = now;
                }
                Err(error) => tracing::debug!("names: can not be read: {error}"),
            }
        }
    }
}

/// A name that this process has, until it is given up or lost. Dropped, it is given up.
///
/// ```
/// # use tenure::{Tenure, backend::memory::Memory, cluster::{Ended, Registry}};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let tenure = Tenure::builder().store(Memory::new()).open().await?;
/// let name = Registry::strict(&tenure).register("billing", [("zone", "a")]).await?;
/// assert!(name.is_registered());
/// tenure.close().await?;
/// assert_eq!(name.ended().await, Ended::Asked);
/// assert!(!name.is_registered());
/// # Ok(()) }
/// ```
pub struct Registered<F: Footing> {
    pub(super) name: Name,
    pub(super) hold: F::Hold,
    pub(super) ended: watch::Receiver<Option<Ended>>,
    pub(super) orders: mpsc::UnboundedSender<Order>,
}

/// What whoever keeps a registration is told.
pub(super) enum Order {
    Update(Metadata, oneshot::Sender<Result<(), RegistryError>>),
    Unregister(oneshot::Sender<Result<(), RegistryError>>),
}

impl<F: Footing> Registered<F> {
    /// Which name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Says something else about it from now on, in place of all that was said.
    pub async fn update<K: Into<String>, V: Into<String>>(
        &self,
        metadata: impl IntoIterator<Item = (K, V)>,
    ) -> Result<(), RegistryError> {
        let metadata = said(metadata)?;
        self.order(|reply| Order::Update(metadata, reply)).await
    }

    /// Gives the name up. Completes when others can have it.
    pub async fn unregister(self) -> Result<(), RegistryError> {
        self.order(Order::Unregister).await
    }

    /// Completes when this process has the name no longer, and says why.
    pub async fn ended(&self) -> Ended {
        let mut ended = self.ended.clone();
        let over = ended.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
        over.unwrap_or(Ended::Asked)
    }

    async fn order(
        &self,
        order: impl FnOnce(oneshot::Sender<Result<(), RegistryError>>) -> Order,
    ) -> Result<(), RegistryError> {
        let over = || RegistryError::Over(self.name.clone());
        let (reply, done) = oneshot::channel();
        self.orders.send(order(reply)).map_err(|_| over())?;
        done.await.map_err(|_| over())?
    }
}

impl<F: Footing> std::fmt::Debug for Registered<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registered").field("name", &self.name).finish_non_exhaustive()
    }
}

fn checked(name: &str) -> Result<Name, RegistryError> {
    let name: Name = name.parse()?;
    if is_reserved(&name) { Err(RegistryError::Reserved(name)) } else { Ok(name) }
}

fn said<K: Into<String>, V: Into<String>>(
    metadata: impl IntoIterator<Item = (K, V)>,
) -> Result<Metadata, RegistryError> {
    let metadata: Metadata = metadata.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
    check_metadata(&metadata)?;
    Ok(metadata)
}
