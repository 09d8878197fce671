//! Gossip: processes that know of each other and tell each other what they like, and nothing that they all agree on.
//!
//! `gossip:HOST:PORT?seed=HOST:PORT,HOST:PORT&cluster=NAME` joins a cluster. Members exchange what they know by
//! [chitchat](https://docs.rs/chitchat), in datagrams that are sealed under the secret in `$TENURE_GOSSIP_SECRET`, or in the
//! file that `$TENURE_GOSSIP_SECRET_FILE` names.
//!
//! **This is not a store.** There is no place where two processes must meet, so nobody can be kept from leading beside somebody else,
//! and there is no token. What there is:
//!
//! - *membership*: who is there ([`Gossip::roster`], [`Gossip::watch`]). A member counts as silent when its beat was not seen to move for
//!   the [patience](tenure_core::soft::Pace) of whoever looks, by its own clock; views differ, and agree again when the network does;
//! - *entries*: each member's own keys and values ([`Gossip::set`], [`Gossip::delete`], [`Gossip::entries`]), which all others come to see,
//!   later or sooner, in the order in which they were written;
//! - *soft leadership* ([`Gossip::elector`]): one leader for each part of the network that is in one piece. In a netsplit, several.
//!
//! Where it must be one, use a store: `raft:` needs nothing else either.
//!
//! ```
//! use tenure::backend::gossip::{Gossip, GossipOptions};
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

mod drops;
mod limits;
mod options;
mod parts;
mod roster;
mod seal;
mod soft;
mod transport;
mod window;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chitchat::{Chitchat, ChitchatConfig, ChitchatHandle, FailureDetectorConfig, spawn_chitchat};
use futures_core::Stream;
use futures_core::future::BoxFuture;
use tenure_core::port::{Backend, StoreError, Trouble};
use tenure_core::soft::Pace;
use tenure_core::{ElectionKey, Moment};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::WatchStream;

pub use self::drops::Dropped;
use self::drops::Drops;
pub use self::options::{GossipOptions, SECRET_ENV};
use self::roster::Keeper;
pub use self::roster::{Entry, Member, Presence, Roster};
pub use self::soft::{
    SoftElectionView, SoftElector, SoftElectorBuilder, SoftLeadership, SoftOver, SoftStanding,
};
use self::transport::Sealed;
use super::StoreOptions;
use crate::{metrics, runtime};

/// How long those who are silent are remembered. A netsplit that lasts longer heals through the seeds.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// How long it is remembered that an entry was deleted.
const DELETED: Duration = Duration::from_secs(600);

/// A member of a cluster. Clones share it; when the last is dropped, it falls silent ([`leave`](Gossip::leave) says goodbye).
#[derive(Clone)]
pub struct Gossip {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    handle: ChitchatHandle,
    keeping: JoinHandle<()>,
}

/// What the tasks of a member share with its handles.
pub(crate) struct Shared {
    chitchat: Arc<tokio::sync::Mutex<Chitchat>>,
    keeper: Mutex<Keeper>,
    roster: watch::Sender<Arc<Roster>>,
    /// When the roster was last looked at: `None` when this member is over.
    looks: watch::Sender<Option<Moment>>,
    drops: Arc<Drops>,
    /// In which soft elections this member stands, and how it is made to stand no longer.
    standing: Mutex<HashMap<ElectionKey, soft::Withdraw>>,
    id: String,
    name: String,
    generation: u64,
    address: SocketAddr,
    cluster: String,
    pace: Pace,
}

impl Gossip {
    /// Joins. Completes when this process listens; whom it finds is seen in the [roster](Self::roster).
    pub async fn join(options: GossipOptions) -> Result<Gossip, StoreError> {
        options.check()?;
        let bind = resolve(&options.bind).await?;
        let socket = transport::bind(bind).await.map_err(|error| unreachable(&options.bind, &error))?;
        let bound = socket.local_addr().map_err(|error| unreachable(&options.bind, &error))?;
        let address = advertised(&options, bound).await?;
        let secrets = options.read_secrets(address)?;
        let seal =
            transport::seal(&secrets, &options.cluster).map_err(|error| unreachable("the secret", &error))?;
        let drops = Arc::new(Drops::default());
        let transport = Sealed::new(socket, seal, drops.clone());

        let id = format!("{:016x}", runtime::random());
        let generation = u64::try_from(runtime::wall_ms()).unwrap_or(0);
        let config = ChitchatConfig {
            chitchat_id: roster::identity(&id, &options.name, generation, address),
            cluster_id: options.cluster.clone(),
            gossip_interval: options.pace.round(),
            listen_addr: bound,
            seed_nodes: options.seeds.clone(),
            failure_detector_config: detector(&options.pace),
            marked_for_deletion_grace_period: DELETED,
            catchup_callback: None,
            extra_liveness_predicate: None,
        };
        let words = roster::first_words(&options.metadata, options.guest);
        let handle = spawn_chitchat(config, words, &transport)
            .await
            .map_err(|error| StoreError::new(Trouble::Other, format!("gossip does not start: {error}")))?;
        let shared = Arc::new(Shared {
            chitchat: handle.chitchat(),
            keeper: Mutex::new(Keeper::new(&id, &options.pace)),
            roster: watch::Sender::default(),
            looks: watch::Sender::new(Some(runtime::now())),
            drops,
            standing: Mutex::default(),
            id,
            name: options.name,
            generation,
            address,
            cluster: options.cluster,
            pace: options.pace,
        });
        shared.look().await;
        let keeping = tokio::spawn(keep(shared.clone(), handle.termination_watcher()));
        Ok(Gossip { inner: Arc::new(Inner { shared, handle, keeping }) })
    }

    /// The id of this member.
    pub fn id(&self) -> &str {
        &self.shared().id
    }

    /// What people call this member.
    pub fn name(&self) -> &str {
        &self.shared().name
    }

    /// Where others reach this member.
    pub fn address(&self) -> SocketAddr {
        self.shared().address
    }

    /// The cluster's name.
    pub fn cluster(&self) -> &str {
        &self.shared().cluster
    }

    /// How fast gossip goes.
    pub fn pace(&self) -> Pace {
        self.shared().pace
    }

    /// Who is there, as it is seen now.
    pub fn roster(&self) -> Arc<Roster> {
        self.shared().roster.borrow().clone()
    }

    /// Who is there, and what they say, now and after each change. A slow watcher misses what lies between.
    pub fn watch(&self) -> impl Stream<Item = Arc<Roster>> + Send + Unpin + use<> {
        WatchStream::new(self.shared().roster.subscribe())
    }

    /// Says something, to all. What we say, we see at once; others come to see it. Keys that begin with `tenure/` are Tenure's.
    pub async fn set(&self, key: &str, value: &str) -> Result<(), StoreError> {
        own(key)?;
        self.shared().put(key, value).await
    }

    /// Says it no longer.
    pub async fn delete(&self, key: &str) -> Result<(), StoreError> {
        own(key)?;
        self.shared().remove(key).await
    }

    /// What those who are there say under keys that begin so, ourselves included.
    pub fn entries(&self, prefix: &str) -> Vec<Entry> {
        self.shared().roster.borrow().entries(prefix)
    }

    /// A candidate of a soft election. **Not exclusive**: see [`SoftLeadership`].
    pub fn elector(&self, name: impl Into<String>) -> SoftElectorBuilder {
        SoftElectorBuilder::new(self.clone(), name.into())
    }

    /// All soft elections that somebody stands in, as they are seen from here.
    pub fn elections(&self) -> Vec<SoftElectionView> {
        soft::elections(&self.roster())
    }

    /// How many datagrams were not believed, and why.
    pub fn dropped(&self, why: Dropped) -> u64 {
        self.shared().drops.of(why)
    }

    /// Says goodbye, and stops: for all clones. Who hears it need not wait until we count as silent. What is led is given up first, and
    /// work under it is waited for as long as a silent member would be.
    pub async fn leave(&self) {
        let shared = self.shared();
        shared.withdraw().await;
        let (key, value) = roster::last_word();
        if shared.put(key, value).await.is_ok() {
            // Whoever answers gets what is new; twice, as datagrams are lost.
            for _ in 0..2 {
                for member in shared.roster.borrow().live() {
                    let _ = self.inner.handle.gossip(member.address);
                }
                runtime::sleep_until(runtime::now() + shared.pace.round()).await;
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
        self.keeping.abort();
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
    /// Says something, also under Tenure's own keys.
    pub(crate) async fn put(&self, key: &str, value: &str) -> Result<(), StoreError> {
        limits::entry(key, value)?;
        {
            let mut chitchat = self.speaking().await?;
            let mine = chitchat.self_node_state();
            let bytes: usize = mine.key_values().map(|(key, value)| key.len() + value.len()).sum();
            let full = mine.num_key_values() >= limits::ENTRIES_MAX
                || bytes + key.len() + value.len() > limits::BYTES_MAX;
            if full && mine.get(key).is_none_or(|old| old.len() < value.len()) {
                return Err(limits::refused(format!(
                    "this member says as much as a member may: {} entries, {} bytes; keep it in a store",
                    limits::ENTRIES_MAX,
                    limits::BYTES_MAX
                )));
            }
            mine.set(key, value);
        }
        self.look().await;
        Ok(())
    }

    /// Says something no longer, also under Tenure's own keys.
    pub(crate) async fn remove(&self, key: &str) -> Result<(), StoreError> {
        {
            let mut chitchat = self.speaking().await?;
            let mine = chitchat.self_node_state();
            if mine.get(key).is_some() {
                mine.delete(key);
            }
        }
        self.look().await;
        Ok(())
    }

    /// Leads nothing any more: others follow as soon as they hear that we leave.
    async fn withdraw(&self) {
        let limit = runtime::now() + self.pace.patience();
        loop {
            {
                let standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
                if standing.is_empty() || runtime::now() >= limit {
                    return;
                }
                standing.values().for_each(soft::Withdraw::ask);
            }
            runtime::sleep_until(runtime::now() + self.pace.round() / 4).await;
        }
    }

    async fn speaking(&self) -> Result<tokio::sync::MutexGuard<'_, Chitchat>, StoreError> {
        let chitchat = self.chitchat.lock().await;
        match *self.looks.borrow() {
            Some(_) => Ok(chitchat),
            None => Err(StoreError::new(Trouble::Unavailable, "this member has left its cluster")),
        }
    }

    /// Looks at what gossip has brought.
    async fn look(&self) {
        let chitchat = self.chitchat.lock().await;
        // Read before looking: what is seen is at least as new.
        let now = runtime::now();
        let roster = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).look(now, &chitchat);
        // Still under the lock, so that nothing older is published after something newer.
        self.roster.send_if_modified(|old| {
            let changed = **old != roster;
            if changed {
                metrics::gossip_members(&self.cluster, &roster);
                *old = Arc::new(roster);
            }
            changed
        });
        self.looks.send_if_modified(|looked| {
            let on = looked.is_some();
            if on {
                *looked = Some(now);
            }
            on
        });
    }

    fn end(&self) {
        self.looks.send_replace(None);
    }
}

/// What gossip does not promise, and what does.
pub const NOT_A_STORE: &str = "gossip is not a store: it has no token and does not keep a second leader from leading, in a netsplit each side has one. \
     Where two would do harm, use raft:, etcd:, k8s: or postgres:; where they would not, say so: `tenure run --soft`, `tenure elect --soft`, or \
     `Gossip::elector` in a program";

/// For the registry: there is nothing to open.
pub(super) fn refuse(_: &StoreOptions) -> BoxFuture<'_, Result<Arc<dyn Backend>, StoreError>> {
    Box::pin(async { Err(StoreError::new(Trouble::Unfit, NOT_A_STORE)) })
}

/// Looks twice a round, until this member is over.
async fn keep(shared: Arc<Shared>, ended: impl Future<Output = anyhow::Result<()>>) {
    let looking = async {
        loop {
            shared.look().await;
            runtime::sleep_until(runtime::now() + shared.pace.round() / 2).await;
        }
    };
    tokio::select! {
        () = looking => {}
        ended = ended => {
            if let Err(error) = ended {
                tracing::error!(%error, "gossip has failed; this member is over");
            }
        }
    }
    shared.end();
}

/// Whom to gossip with is chitchat's business, and who counts as live is ours: it may take its time.
fn detector(pace: &Pace) -> FailureDetectorConfig {
    FailureDetectorConfig {
        phi_threshold: 12.0,
        sampling_window_size: 100,
        max_interval: pace.patience(),
        initial_interval: pace.round(),
        dead_node_grace_period: REMEMBERED,
    }
}

/// Where others reach us: as said, as bound, or, bound to all addresses, the one that our first seed would see.
async fn advertised(options: &GossipOptions, bound: SocketAddr) -> Result<SocketAddr, StoreError> {
    if let Some(at) = &options.advertise {
        return resolve(at).await;
    }
    if !bound.ip().is_unspecified() {
        return Ok(bound);
    }
    let Some(seed) = options.seeds.first() else {
        let told = format!(
            "it is not said where others reach a member that listens on {bound}; bind to an address of this machine, or add \
             advertise=HOST:PORT"
        );
        return Err(StoreError::new(Trouble::Address, told));
    };
    let seed = resolve(seed).await?;
    let ip = transport::route(seed).await.map_err(|error| unreachable(&seed.to_string(), &error))?;
    Ok(SocketAddr::new(ip, bound.port()))
}

async fn resolve(place: &str) -> Result<SocketAddr, StoreError> {
    let mut found = tokio::net::lookup_host(place).await.map_err(|error| unreachable(place, &error))?;
    found.next().ok_or_else(|| StoreError::new(Trouble::Address, format!("{place} has no address")))
}

fn own(key: &str) -> Result<(), StoreError> {
    match key.starts_with(roster::OURS) {
        true => {
            Err(limits::refused(format!("{key:?}: keys that begin with {} are Tenure's own", roster::OURS)))
        }
        false => Ok(()),
    }
}

fn unreachable(what: &str, error: &std::io::Error) -> StoreError {
    StoreError::new(Trouble::Unreachable, format!("gossip can not use {what}: {error}"))
}
