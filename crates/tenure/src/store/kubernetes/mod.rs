//! Kubernetes store: `k8s:NAMESPACE`, or `k8s:` for the namespace of the pod or of the kubeconfig.
//!
//! # Objects
//!
//! The store uses only Leases of `coordination.k8s.io/v1` and never deletes one.
//!
//! | Lease | `spec` | annotations |
//! |---|---|---|
//! | of an election slot, named after the election (`names.rs`) | as client-go writes and reads it | state without a client-go field: pause, leader requests, successor, last terms, the holder's session |
//! | of a session, `tenure--session--…` | likewise: holder, duration, times | name, candidacies, granted leases, highest tokens seen |
//!
//! A Go controller and Tenure can therefore compete for one Lease. Every writer replaces the whole object under the
//! `resourceVersion` that it read.
//!
//! # Changes
//!
//! One list by label (`tenure.dev/election-id`) reads the Leases and sessions of an election at one version. If a
//! session holds another Lease, which tells whether the session lives, all objects of Tenure are read. The reference
//! implementation ([`Elections`](tenure_core::model::Elections)) computes a change from the objects; it is written
//! object by object, each only if unchanged, otherwise the change is computed again. Kubernetes has no transactions
//! over several objects, so the order of the writes matters:
//!
//! - *The holder* of a slot is only what the election's Lease says. Candidates wait for the lease duration even if the
//!   session in it has ended.
//! - *A grant* is written to the Lease first, then to the session object. If the session has ended by then, the Lease
//!   is released and the grant is never returned. Otherwise a process that wants to expire the session conflicts, reads
//!   again, and finds the grant.
//! - *A release* is written in the opposite order, so that a concurrent heartbeat does not miss the released Lease.
//! - *An expiry* frees the Leases first, each only if it was not renewed since the read, and then marks the session as
//!   ended.
//!
//! # Trust
//!
//! A leader trusts its lease for two thirds of the lease duration after a heartbeat, on its own clock. A candidate
//! takes over after it has seen no new heartbeat for a whole lease duration, on its own clock. A session without Leases
//! renews its session object; a session with Leases renews all of them, and the heartbeat succeeds only if every
//! renewal succeeds (`heartbeat.rs`). With `?timing=client-go`, lease, trust and heartbeat interval are client-go's
//! default LeaseDuration, RenewDeadline and RetryPeriod.
//!
//! # Token
//!
//! The token is `leaseTransitions + 1`. A deleted Lease is recreated above the highest token that any session has
//! recorded, once the trust of its last holder has expired. If all Leases of Tenure are deleted, tokens start again,
//! and fences must be reset.
//!
//! # Notifications
//!
//! A watch with bookmarks covers the elections that this process uses (`watch_scope.rs`). It only speeds up reactions;
//! correctness does not depend on it.

mod address;
mod admin;
mod api;
mod cache;
mod decode;
mod encode;
mod heartbeat;
mod leader_label;
mod names;
mod object;
mod record;
mod sessions;
mod store;
mod take;
mod watch;
mod watch_scope;

pub use self::admin::GUARANTEES;

use std::sync::Arc;

use futures_core::future::BoxFuture;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tenure_core::Timing;
use tenure_core::port::{
    AccessStore, ErrorKind, EventAdmin, EventStore, PoolStore, ScheduleAdmin, ScheduleStore, Store,
    StoreError, TaskAdmin, TaskStore,
};

use self::address::Address;
use self::api::Api;
use self::cache::LeaseCache;
use self::leader_label::LeaderLabel;
use self::watch_scope::WatchScopeSender;
use super::StoreOptions;
use crate::runtime;

/// User agent.
const AGENT: &str = concat!("tenure/", env!("CARGO_PKG_VERSION"));

/// The Kubernetes store. It supports elections only. Clones share the connection.
///
/// ```no_run
/// # async fn example() -> Result<(), tenure::Error> {
/// // In a pod, or with a kubeconfig; with the timing of client-go.
/// let tenure = tenure::Tenure::builder().url("k8s:prod?timing=client-go").open().await?;
/// let elector = tenure.elector("my-controller").start().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct KubernetesStore {
    api: Arc<Api>,
    cache: Arc<LeaseCache>,
    watch_scope: Arc<WatchScopeSender>,
    leader_label: Arc<LeaderLabel>,
    /// Prefix of `holderIdentity`: the name of the pod.
    host: String,
    timing: Option<Timing>,
}

impl KubernetesStore {
    /// Connect to the API server and check the permission to list Leases.
    pub async fn connect(options: &StoreOptions) -> Result<KubernetesStore, StoreError> {
        let address: Address = options.url.parse()?;
        let timing = address.timing();
        let mut config = config(&address).await?;
        // Callers decide which requests may be retried.
        config.default_retry = false;
        // Shown in the server's audit log and in `managedFields`.
        config.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static(AGENT)));
        let namespace = address.namespace.unwrap_or_else(|| config.default_namespace.clone());
        // Another part of the program may have installed a provider already; any provider works.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = kube::Client::try_from(config).map_err(|error| {
            StoreError::new(ErrorKind::Misconfigured, format!("cannot create a Kubernetes client: {error}"))
        })?;
        let host = runtime::host_name();
        let name =
            std::env::var("POD_NAME").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| host.clone());
        let leader_label = Arc::new(LeaderLabel::new(address.leader_label_key, name));
        let api = Arc::new(Api::new(client, namespace));
        api.check_access().await?;
        Ok(KubernetesStore {
            api,
            cache: Arc::default(),
            watch_scope: Arc::default(),
            leader_label,
            host,
            timing,
        })
    }
}

/// Find the API server: by the kubeconfig of the URL, or by `$KUBECONFIG`, `~/.kube/config`, or the service account of
/// the pod.
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
        let remedy = "in a pod, mount a service account token; elsewhere, set $KUBECONFIG or use k8s:NAMESPACE?kubeconfig=FILE";
        StoreError::new(ErrorKind::Misconfigured, format!("no Kubernetes configuration found ({error}); {remedy}"))
    })
}

impl AccessStore for KubernetesStore {}
impl TaskStore for KubernetesStore {
    fn supports_work(&self) -> bool {
        false
    }
}

impl TaskAdmin for KubernetesStore {}
impl PoolStore for KubernetesStore {}
impl EventStore for KubernetesStore {}
impl EventAdmin for KubernetesStore {}
impl ScheduleStore for KubernetesStore {}
impl ScheduleAdmin for KubernetesStore {}

/// Open the store for the registry.
pub(super) fn open_url(options: &StoreOptions) -> BoxFuture<'_, Result<Arc<dyn Store>, StoreError>> {
    Box::pin(async { Ok(Arc::new(KubernetesStore::connect(options).await?) as Arc<dyn Store>) })
}
