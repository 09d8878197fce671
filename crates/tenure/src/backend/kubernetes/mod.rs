//! Kubernetes: `k8s:NAMESPACE`, or `k8s:` for the namespace of the pod or of the kubeconfig.
//!
//! # What is kept
//!
//! Leases of `coordination.k8s.io/v1`, and nothing else; none is ever deleted.
//!
//! | Lease | `spec` | annotations |
//! |---|---|---|
//! | of an election, by its name (`names.rs`) | what client-go writes and reads, field for field | what client-go has no field for: pause, requests, successor, last terms, the session of the holder |
//! | of a session, `tenure--session--…` | likewise: who, for how long, since when | its name, its candidacies, what it was granted, the tokens that it has seen |
//!
//! So a Go controller and Tenure can compete for one Lease: whoever writes it replaces it whole, with the `resourceVersion` under which it was read.
//!
//! # How it changes
//!
//! What there is about an election, its Leases and the sessions that have to do with it, is read by one list, by a label (`tenure.dev/about`): what it looked like at one
//! moment. Where a session holds something else, whose Lease says whether it lives, all our objects are read. A change is worked out by the reference store
//! ([`Book`](tenure_core::book::Book)) on what was read, and written Lease by Lease, each only if it is still what was read; else it is worked out anew. There are no
//! transactions over several objects, so the order of the writes matters:
//!
//! - *Who holds* is what the Lease of the election says, alone. A session that is over, and yet stands in one, is waited out like any other.
//! - *A grant* is written into the Lease first, then into the session's own object. If that is over by then, the Lease is given back: nobody ever
//!   believes in it. If it is not, whoever wanted to expire the session has to look again, and finds that it holds something.
//! - *A release* is the other way round, so that a beat at the same time does not miss what is being given back.
//! - *An expiry* frees the Leases first, each only if it was not renewed since, and then notes that the session is over.
//!
//! # Trust
//!
//! As everywhere: a holder trusts its beat for two thirds of its lease by its own clock, and a candidate takes over after it has watched the beat stand still for
//! a whole lease by its own. Who holds nothing beats in its session's object; who holds something renews what it holds, and the beat counts only if all of it could
//! be renewed (`beat.rs`). With client-go's pace (`?pace=client-go`) lease, trust and beat are its LeaseDuration, RenewDeadline and RetryPeriod.
//!
//! # Token
//!
//! `leaseTransitions + 1`. A Lease that was deleted is made anew above the greatest token that any session noted, once its last holder must have
//! stopped; if all Leases of Tenure are deleted, tokens begin anew, and fences must forget.
//!
//! # Hints
//!
//! A watch with bookmarks, of what this process has to do with (`interest.rs`), says sooner what a look would find; nothing depends on it.

mod address;
mod api;
mod beat;
mod directory;
mod granting;
mod hints;
mod interest;
mod memo;
mod names;
mod object;
mod pod;
mod reading;
mod record;
mod sessions;
mod store;
mod writing;

pub use self::directory::PROMISES;

use std::sync::Arc;

use futures_core::future::BoxFuture;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tenure_core::Timing;
use tenure_core::port::{
    Backend, Bureau, Calendar, Desk, Events, Office, Pools, Scheduling, StoreError, Tasks, Trouble,
};

use self::address::Address;
use self::api::Api;
use self::interest::Interest;
use self::memo::Memo;
use self::pod::Pod;
use super::StoreOptions;
use crate::runtime;

/// How we introduce ourselves.
const AGENT: &str = concat!("tenure/", env!("CARGO_PKG_VERSION"));

/// The Leases of a namespace, for elections. Clones share it.
///
/// ```no_run
/// # async fn example() -> Result<(), tenure::Error> {
/// // In a pod, or with a kubeconfig; at client-go's pace.
/// let tenure = tenure::Tenure::builder().url("k8s:prod?pace=client-go").open().await?;
/// let elector = tenure.elector("my-controller").start().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Kubernetes {
    api: Arc<Api>,
    memo: Arc<Memo>,
    interest: Arc<Interest>,
    pod: Arc<Pod>,
    /// What `holderIdentity` begins with: the pod's name.
    host: String,
    pace: Option<Timing>,
}

impl Kubernetes {
    /// Finds the API server, and looks whether it lets us in.
    pub async fn connect(options: &StoreOptions) -> Result<Kubernetes, StoreError> {
        let address: Address = options.url.parse()?;
        let pace = address.pace();
        let mut config = config(&address).await?;
        // A call is repeated by whoever knows what it means.
        config.default_retry = false;
        // For the server's audit, and for whoever looks at `managedFields`.
        config.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static(AGENT)));
        let namespace = address.namespace.unwrap_or_else(|| config.default_namespace.clone());
        // Another part of the program may have chosen already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = kube::Client::try_from(config).map_err(|error| {
            StoreError::new(Trouble::Unfit, format!("the access to Kubernetes can not be used: {error}"))
        })?;
        let host = runtime::host_name();
        let name =
            std::env::var("POD_NAME").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| host.clone());
        let pod = Arc::new(Pod::new(address.label_leader, name));
        let api = Arc::new(Api::new(client, namespace));
        api.knock().await?;
        Ok(Kubernetes { api, memo: Arc::default(), interest: Arc::default(), pod, host, pace })
    }
}

/// How to reach the API server: by the kubeconfig that is named, or else by `$KUBECONFIG`, `~/.kube/config`, or as a pod.
async fn config(address: &Address) -> Result<kube::Config, StoreError> {
    let options = KubeConfigOptions { context: address.context.clone(), ..KubeConfigOptions::default() };
    let found = match (&address.kubeconfig, &address.context) {
        (Some(file), _) => match Kubeconfig::read_from(file) {
            Ok(file) => kube::Config::from_custom_kubeconfig(file, &options).await.map_err(|e| e.to_string()),
            Err(error) => Err(format!("{}: {error}", file.display())),
        },
        (None, Some(_)) => kube::Config::from_kubeconfig(&options).await.map_err(|e| e.to_string()),
        (None, None) => kube::Config::infer().await.map_err(|error| error.to_string()),
    };
    found.map_err(|error| {
        let remedy = "in a pod, it needs a service account whose token is mounted; elsewhere, set $KUBECONFIG or name a file: k8s:NAMESPACE?kubeconfig=FILE";
        StoreError::new(Trouble::Unfit, format!("no way to the API server is known ({error}); {remedy}"))
    })
}

impl Office for Kubernetes {}
impl Tasks for Kubernetes {
    fn keeps_work(&self) -> bool {
        false
    }
}

impl Desk for Kubernetes {}
impl Pools for Kubernetes {}
impl Events for Kubernetes {}
impl Bureau for Kubernetes {}
impl Scheduling for Kubernetes {}
impl Calendar for Kubernetes {}

/// For the registry.
pub(super) fn open_url(options: &StoreOptions) -> BoxFuture<'_, Result<Arc<dyn Backend>, StoreError>> {
    Box::pin(async { Ok(Arc::new(Kubernetes::connect(options).await?) as Arc<dyn Backend>) })
}
