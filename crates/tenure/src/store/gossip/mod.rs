//! Gossip: membership, published entries and soft elections among processes, without a store.
//!
//! `gossip:HOST:PORT?seed=HOST:PORT,HOST:PORT&cluster=NAME` joins a cluster. Members exchange their state by
//! [chitchat](https://docs.rs/chitchat), in datagrams that are encrypted with the secret in `$TENURE_GOSSIP_SECRET`, or
//! in the file named by `$TENURE_GOSSIP_SECRET_FILE`.
//!
//! **Gossip is not a store.** Members share no single point of decision, so two processes can lead at the same time,
//! and there is no token. Gossip provides:
//!
//! - *membership*: the members of the cluster ([`Gossip::roster`], [`Gossip::watch`]). An observing member considers
//!   another one failed when its heartbeat did not advance for the [silence limit](tenure_core::rules::soft::GossipTiming) on
//!   the observer's clock. The views of members may differ and converge again once the network is intact;
//! - *entries*: the keys and values of each member ([`Gossip::set`], [`Gossip::delete`], [`Gossip::entries`]). Every
//!   other member eventually sees them, in the order in which they were written;
//! - *soft leadership* ([`Gossip::elector`]): one leader for each connected part of the network. A network split has
//!   several leaders.
//!
//! If exactly one leader is required, use a store; `raft:` needs no database either.
//!
//! ```
//! use tenure::store::gossip::{Gossip, GossipOptions};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
//! let gossip = Gossip::join(GossipOptions::new("127.0.0.1:0").name("a").metadata("zone", "1")).await?;
//! gossip.set("load", "0.3").await?;
//! let roster = gossip.roster();
//! let names: Vec<_> = roster.live().map(|member| member.name.as_str()).collect();
//! assert_eq!(names, ["a"]);
//! assert_eq!(gossip.entries("lo")[0].value, "0.3");
//! gossip.leave().await;
//! # Ok(()) }
//! ```

mod cipher;
mod drops;
mod fragments;
mod limits;
mod options;
mod replay_window;
mod roster;
mod soft;
mod transport;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chitchat::{Chitchat, ChitchatConfig, ChitchatHandle, FailureDetectorConfig, spawn_chitchat};
use futures_core::Stream;
use futures_core::future::BoxFuture;
use tenure_core::port::{ErrorKind, Store, StoreError};
use tenure_core::rules::soft::GossipTiming;
use tenure_core::{BootInstant, ElectionKey};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::WatchStream;

pub use self::drops::DropReason;
use self::drops::Drops;
pub use self::options::{GossipOptions, SECRET_ENV};
use self::roster::RosterUpdater;
pub use self::roster::{GossipEntry, GossipMember, GossipMemberState, Roster};
pub use self::soft::{
    SoftCandidateView, SoftElectionView, SoftElector, SoftElectorBuilder, SoftLeadership, SoftTermEnd,
};
use self::transport::EncryptedTransport;
use super::StoreOptions;
use crate::{metrics, runtime};

/// How long failed members are remembered. A longer network split heals through the seeds.
const FAILED_RETENTION: Duration = Duration::from_secs(3600);

/// How long the deletion of an entry is remembered.
const DELETION_RETENTION: Duration = Duration::from_secs(600);

/// A member of a gossip cluster. Clones share the membership. When the last clone is dropped, the member falls silent;
/// [`leave`](Gossip::leave) announces the departure.
#[derive(Clone)]
pub struct Gossip {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    handle: ChitchatHandle,
    update_task: JoinHandle<()>,
}

/// State shared by the tasks of a member and its handles.
pub(crate) struct Shared {
    chitchat: Arc<tokio::sync::Mutex<Chitchat>>,
    updater: Mutex<RosterUpdater>,
    roster: watch::Sender<Arc<Roster>>,
    /// Time of the last roster update; `None` once this member has ended.
    updates: watch::Sender<Option<BootInstant>>,
    drops: Arc<Drops>,
    /// Soft elections in which this member is a candidate, with the handles to withdraw from them.
    candidacies: Mutex<HashMap<ElectionKey, soft::SoftWithdrawHandle>>,
    id: String,
    name: String,
    generation: u64,
    address: SocketAddr,
    cluster: String,
    timing: GossipTiming,
}

impl Gossip {
    /// Join a cluster. Completes when this process listens; other members appear in the [roster](Self::roster) as they
    /// are discovered.
    pub async fn join(options: GossipOptions) -> Result<Gossip, StoreError> {
        options.check()?;
        let bind = resolve(&options.bind).await?;
        let socket = transport::bind(bind).await.map_err(|error| cannot_use(&options.bind, &error))?;
        let bound = socket.local_addr().map_err(|error| cannot_use(&options.bind, &error))?;
        let address = advertised(&options, bound).await?;
        let secrets = options.read_secrets(address)?;
        let cipher = transport::new_cipher(&secrets, &options.cluster)
            .map_err(|error| cannot_use("the secret", &error))?;
        let drops = Arc::new(Drops::default());
        let transport = EncryptedTransport::new(socket, cipher, drops.clone());

        let id = format!("{:016x}", runtime::random());
        let generation = u64::try_from(runtime::wall_ms()).unwrap_or(0);
        let config = ChitchatConfig {
            chitchat_id: roster::identity(&id, &options.name, generation, address),
            cluster_id: options.cluster.clone(),
            gossip_interval: options.timing.round(),
            listen_addr: bound,
            seed_nodes: options.seeds.clone(),
            failure_detector_config: detector(&options.timing),
            marked_for_deletion_grace_period: DELETION_RETENTION,
            catchup_callback: None,
            extra_liveness_predicate: None,
        };
        let entries = roster::initial_entries(&options.metadata, options.observer);
        let handle = spawn_chitchat(config, entries, &transport)
            .await
            .map_err(|error| StoreError::new(ErrorKind::Other, format!("cannot start gossip: {error}")))?;
        let shared = Arc::new(Shared {
            chitchat: handle.chitchat(),
            updater: Mutex::new(RosterUpdater::new(&id, &options.timing)),
            roster: watch::Sender::default(),
            updates: watch::Sender::new(Some(runtime::now())),
            drops,
            candidacies: Mutex::default(),
            id,
            name: options.name,
            generation,
            address,
            cluster: options.cluster,
            timing: options.timing,
        });
        shared.update_roster().await;
        let update_task = tokio::spawn(keep_updated(shared.clone(), handle.termination_watcher()));
        Ok(Gossip { inner: Arc::new(Inner { shared, handle, update_task }) })
    }

    /// Id of this member.
    pub fn id(&self) -> &str {
        &self.shared().id
    }

    /// Name of this member.
    pub fn name(&self) -> &str {
        &self.shared().name
    }

    /// Address at which other members reach this member.
    pub fn address(&self) -> SocketAddr {
        self.shared().address
    }

    /// Name of the cluster.
    pub fn cluster(&self) -> &str {
        &self.shared().cluster
    }

    /// Timing of gossip.
    pub fn timing(&self) -> GossipTiming {
        self.shared().timing
    }

    /// The members as this process currently sees them.
    pub fn roster(&self) -> Arc<Roster> {
        self.shared().roster.borrow().clone()
    }

    /// Stream of rosters: the current one, then one after each change. A slow receiver skips intermediate rosters.
    pub fn watch(&self) -> impl Stream<Item = Arc<Roster>> + Send + Unpin + use<> {
        WatchStream::new(self.shared().roster.subscribe())
    }

    /// Publish an entry. This process sees it at once, other members eventually. Keys that start with `tenure/` are
    /// reserved.
    pub async fn set(&self, key: &str, value: &str) -> Result<(), StoreError> {
        check_unreserved(key)?;
        self.shared().put(key, value).await
    }

    /// Delete a published entry.
    pub async fn delete(&self, key: &str) -> Result<(), StoreError> {
        check_unreserved(key)?;
        self.shared().remove(key).await
    }

    /// Entries of all live members, including this one, whose keys start with `prefix`.
    pub fn entries(&self, prefix: &str) -> Vec<GossipEntry> {
        self.shared().roster.borrow().entries(prefix)
    }

    /// Build a candidate of a soft election. **Not exclusive**: see [`SoftLeadership`].
    pub fn elector(&self, name: impl Into<String>) -> SoftElectorBuilder {
        SoftElectorBuilder::new(self.clone(), name.into())
    }

    /// All soft elections with at least one candidate, as this process sees them.
    pub fn elections(&self) -> Vec<SoftElectionView> {
        soft::elections(&self.roster())
    }

    /// Number of datagrams dropped for the given reason.
    pub fn dropped(&self, why: DropReason) -> u64 {
        self.shared().drops.of(why)
    }

    /// Announce the departure and stop, for all clones. Members that receive the announcement need not wait for the
    /// silence limit. Soft leaderships are given up first; the call waits for their work up to the silence limit.
    pub async fn leave(&self) {
        let shared = self.shared();
        shared.withdraw().await;
        let (key, value) = roster::leave_entry();
        if shared.put(key, value).await.is_ok() {
            // Members that reply receive the new entry. Sent twice because datagrams may be lost.
            for _ in 0..2 {
                for member in shared.roster.borrow().live() {
                    let _ = self.inner.handle.gossip(member.address);
                }
                runtime::sleep_until(runtime::now() + shared.timing.round()).await;
            }
        }
        let _ = self.inner.handle.initiate_shutdown();
        shared.end();
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.update_task.abort();
        self.handle.abort();
        self.shared.end();
    }
}

impl std::fmt::Debug for Gossip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shared = self.shared();
        f.debug_struct("Gossip")
            .field("cluster", &shared.cluster)
            .field("name", &shared.name)
            .field("address", &shared.address)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Publish an entry, including reserved keys.
    pub(crate) async fn put(&self, key: &str, value: &str) -> Result<(), StoreError> {
        limits::entry(key, value)?;
        {
            let mut chitchat = self.active_chitchat().await?;
            let own_state = chitchat.self_node_state();
            let bytes: usize = own_state.key_values().map(|(key, value)| key.len() + value.len()).sum();
            let full = own_state.num_key_values() >= limits::ENTRIES_MAX
                || bytes + key.len() + value.len() > limits::BYTES_MAX;
            if full && own_state.get(key).is_none_or(|old| old.len() < value.len()) {
                return Err(limits::invalid(format!(
                    "this member publishes the maximum of {} entries or {} bytes; keep larger data in a store",
                    limits::ENTRIES_MAX,
                    limits::BYTES_MAX
                )));
            }
            own_state.set(key, value);
        }
        self.update_roster().await;
        Ok(())
    }

    /// Delete an entry, including reserved keys.
    pub(crate) async fn remove(&self, key: &str) -> Result<(), StoreError> {
        {
            let mut chitchat = self.active_chitchat().await?;
            let own_state = chitchat.self_node_state();
            if own_state.get(key).is_some() {
                own_state.delete(key);
            }
        }
        self.update_roster().await;
        Ok(())
    }

    /// Give up all soft leaderships, so that other members take over once they learn of the departure.
    async fn withdraw(&self) {
        let limit = runtime::now() + self.timing.silence_limit();
        loop {
            {
                let candidacies = self.candidacies.lock().unwrap_or_else(PoisonError::into_inner);
                if candidacies.is_empty() || runtime::now() >= limit {
                    return;
                }
                candidacies.values().for_each(soft::SoftWithdrawHandle::withdraw);
            }
            runtime::sleep_until(runtime::now() + self.timing.round() / 4).await;
        }
    }

    async fn active_chitchat(&self) -> Result<tokio::sync::MutexGuard<'_, Chitchat>, StoreError> {
        let chitchat = self.chitchat.lock().await;
        match *self.updates.borrow() {
            Some(_) => Ok(chitchat),
            None => Err(StoreError::new(ErrorKind::Unavailable, "this gossip member has left its cluster")),
        }
    }

    /// Update the roster from the received gossip.
    async fn update_roster(&self) {
        let chitchat = self.chitchat.lock().await;
        // Read before the update, so the data is at least as new as the timestamp.
        let now = runtime::now();
        let roster = self.updater.lock().unwrap_or_else(PoisonError::into_inner).update(now, &chitchat);
        // Published while the lock is held, so that an older roster never replaces a newer one.
        self.roster.send_if_modified(|old| {
            let changed = **old != roster;
            if changed {
                metrics::gossip_members(&self.cluster, &roster);
                *old = Arc::new(roster);
            }
            changed
        });
        self.updates.send_if_modified(|updated_at| {
            let on = updated_at.is_some();
            if on {
                *updated_at = Some(now);
            }
            on
        });
    }

    fn end(&self) {
        self.updates.send_replace(None);
    }
}

/// Error text for callers that need a store.
pub const NOT_A_STORE: &str = "gossip is not a store: it has no token, and in a network split each side may have a leader. \
     If two leaders would do harm, use raft:, etcd:, k8s: or postgres:. Otherwise allow it with `tenure run --soft`, `tenure campaign --soft`, or \
     `Gossip::elector` in a program";

/// Reject the URL for the registry: gossip has no store to open.
pub(super) fn refuse(_: &StoreOptions) -> BoxFuture<'_, Result<Arc<dyn Store>, StoreError>> {
    Box::pin(async { Err(StoreError::new(ErrorKind::Misconfigured, NOT_A_STORE)) })
}

/// Update the roster twice per round until this member ends.
async fn keep_updated(shared: Arc<Shared>, ended: impl Future<Output = anyhow::Result<()>>) {
    let updating = async {
        loop {
            shared.update_roster().await;
            runtime::sleep_until(runtime::now() + shared.timing.round() / 2).await;
        }
    };
    tokio::select! {
        () = updating => {}
        ended = ended => {
            if let Err(error) = ended {
                tracing::error!(%error, "gossip failed, this member has ended");
            }
        }
    }
    shared.end();
}

/// Chitchat's failure detector only selects gossip partners. Liveness is decided by the silence limit, so the detector
/// may be slow.
fn detector(timing: &GossipTiming) -> FailureDetectorConfig {
    FailureDetectorConfig {
        phi_threshold: 12.0,
        sampling_window_size: 100,
        max_interval: timing.silence_limit(),
        initial_interval: timing.round(),
        dead_node_grace_period: FAILED_RETENTION,
    }
}

/// Address for other members: the configured one, the bound one, or, if bound to all addresses, the local address of
/// the route to the first seed.
async fn advertised(options: &GossipOptions, bound: SocketAddr) -> Result<SocketAddr, StoreError> {
    if let Some(at) = &options.advertise {
        return resolve(at).await;
    }
    if !bound.ip().is_unspecified() {
        return Ok(bound);
    }
    let Some(seed) = options.seeds.first() else {
        let message = format!(
            "the address for other members is unknown because this member listens on {bound}; bind to an address of this machine, or add \
             advertise=HOST:PORT"
        );
        return Err(StoreError::new(ErrorKind::Address, message));
    };
    let seed = resolve(seed).await?;
    let ip = transport::route(seed).await.map_err(|error| cannot_use(&seed.to_string(), &error))?;
    Ok(SocketAddr::new(ip, bound.port()))
}

async fn resolve(address: &str) -> Result<SocketAddr, StoreError> {
    let mut addresses =
        tokio::net::lookup_host(address).await.map_err(|error| cannot_use(address, &error))?;
    addresses.next().ok_or_else(|| StoreError::new(ErrorKind::Address, format!("{address} has no address")))
}

fn check_unreserved(key: &str) -> Result<(), StoreError> {
    match key.starts_with(roster::RESERVED_PREFIX) {
        true => Err(limits::invalid(format!(
            "the key {key:?} is reserved: keys that start with {} belong to Tenure",
            roster::RESERVED_PREFIX
        ))),
        false => Ok(()),
    }
}

fn cannot_use(what: &str, error: &std::io::Error) -> StoreError {
    StoreError::new(ErrorKind::Unreachable, format!("gossip cannot use {what}: {error}"))
}
