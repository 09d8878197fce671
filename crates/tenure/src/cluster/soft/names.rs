//! Registered names on gossip.
//!
//! A claim is an entry of the member that makes it. The name counts as registered when the claim has existed
//! for as long as all members need to receive it. From then on its task observes every change, and gives the
//! name up if the conflict policy assigns it to another member.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use tenure_core::rules::cluster::{
    ConflictDecision, ConflictPolicy, ConflictRuling, Metadata, NameClaim, NameClaimRef, NameClaimant,
    NameEntry, NameMap, RegisteredName, holder, resolve_conflict,
};
use tenure_core::{BootInstant, Name, SessionId};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::SoftBackend;
use super::entries::{NAME, decode, publish, remove};
use crate::cluster::registry::{Registration, RegistrationCommand, RegistrationEnd, RegistryError};
use crate::store::gossip::Gossip;
use crate::{Error, callback, metrics, runtime};

/// How long a member publishes the resolution of a conflict, as a multiple of the silence limit.
const RULING_SILENCE_LIMITS: u32 = 10;

/// Names that tasks of this process hold or claim; each once.
static LOCAL_NAMES: LazyLock<Mutex<BTreeSet<(String, Name)>>> = LazyLock::new(Mutex::default);

/// Wakes tasks that wait for a name that another task of this process holds.
static NAME_FREED: Notify = Notify::const_new();

struct LocalNameGuard(String, Name);

impl LocalNameGuard {
    /// Waits until no other task of this process holds the name, at most until `until`.
    async fn wait_for(member: &str, name: &Name, until: BootInstant) -> Option<LocalNameGuard> {
        loop {
            let mut freed = pin!(NAME_FREED.notified());
            freed.as_mut().enable();
            let guard = LocalNameGuard::take(member, name);
            if guard.is_some() || runtime::now() >= until {
                return guard;
            }
            tokio::select! {
                () = freed => {}
                () = runtime::sleep_until(until) => {}
            }
        }
    }

    fn take(member: &str, name: &Name) -> Option<LocalNameGuard> {
        let key = (member.to_owned(), name.clone());
        let new = LOCAL_NAMES.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
        new.then(|| LocalNameGuard(member.to_owned(), name.clone()))
    }
}

impl Drop for LocalNameGuard {
    fn drop(&mut self) {
        let key = (std::mem::take(&mut self.0), self.1.clone());
        LOCAL_NAMES.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        NAME_FREED.notify_waiters();
    }
}

/// All claims published by live members.
fn published_claims(gossip: &Gossip) -> NameMap {
    let mut map = NameMap::default();
    for published in gossip.entries(NAME) {
        let name = published.key.strip_prefix(NAME).and_then(|name| name.parse().ok());
        if let (Some(name), Some(entry)) = (name, decode::<NameEntry>(&published)) {
            let by = NameClaimant { member: published.member.name.clone(), id: published.member.id.clone() };
            map.apply(name, by, NameEntry { version: published.version, ..entry });
        }
    }
    map
}

/// The holder of each name.
pub(super) fn all(gossip: &Gossip, resolver: ConflictPolicy) -> BTreeMap<Name, RegisteredName> {
    let map = published_claims(gossip);
    let each = |name: &Name| {
        let (by, claim) = holder(resolver, &map, name, |_| true)?;
        Some((name.clone(), view(name, by, claim)))
    };
    map.names().filter_map(each).collect()
}

fn view(name: &Name, by: &NameClaimant, claim: &NameClaim) -> RegisteredName {
    RegisteredName {
        name: name.clone(),
        holder: by.member.clone(),
        session: SessionId::from_stored(&by.id),
        token: None,
        metadata: claim.metadata.clone(),
        since_at_ms: Some(claim.since_ms),
    }
}

/// A claim of this process as last published.
struct NameClaimTask {
    backend: SoftBackend,
    name: Name,
    me: NameClaimant,
    entry: NameEntry,
    /// Whether claims of other members were seen.
    disputed: bool,
    _guard: LocalNameGuard,
}

pub(super) async fn register(
    backend: &SoftBackend,
    name: Name,
    metadata: Metadata,
    max_wait: Duration,
) -> Result<Registration<SoftBackend>, RegistryError> {
    let gossip = &backend.gossip;
    let taken = |holder: &str| RegistryError::Taken { name: name.clone(), holder: holder.to_owned() };
    let until = runtime::now() + max_wait;
    let guard =
        LocalNameGuard::wait_for(gossip.id(), &name, until).await.ok_or_else(|| taken(gossip.name()))?;
    let mut rosters = gossip.watch();
    while let Some(other) = all(gossip, backend.resolver).get(&name) {
        if runtime::now() >= until {
            return Err(taken(&other.holder));
        }
        tokio::select! {
            _ = rosters.next() => {}
            () = runtime::sleep_until(until) => {}
        }
    }
    // Later than every claim seen so far, so that a claim that follows another one is younger.
    let since_ms = published_claims(gossip)
        .latest_ms()
        .map_or(i64::MIN, |latest| latest.saturating_add(1))
        .max(runtime::wall_ms());
    let me = NameClaimant { member: gossip.name().to_owned(), id: gossip.id().to_owned() };
    let entry = NameEntry { version: 0, claim: Some(NameClaim { since_ms, metadata }), ruling: None };
    let mut task = NameClaimTask {
        backend: backend.clone(),
        name: name.clone(),
        me,
        entry,
        disputed: false,
        _guard: guard,
    };
    task.publish().await?;
    let registered_at = runtime::now() + gossip.timing().settle();
    while runtime::now() < registered_at {
        if let Some(ended) = task.observe().await? {
            let holder = match ended {
                RegistrationEnd::Conflict { kept_by: Some(holder) } => holder,
                _ => "several members, none of which keeps it".to_owned(),
            };
            task.unpublish_later();
            return Err(taken(&holder));
        }
        tokio::select! {
            _ = rosters.next() => {}
            () = runtime::sleep_until(registered_at) => {}
        }
    }
    let (commands, inbox) = mpsc::unbounded_channel();
    let (end_sender, ended) = watch::channel(None);
    tokio::spawn(task.maintain(inbox, end_sender));
    Ok(Registration { name, data: (), ended, commands })
}

impl NameClaimTask {
    async fn publish(&self) -> Result<(), Error> {
        publish(&self.backend.gossip, &self.key(), &self.entry).await
    }

    fn key(&self) -> String {
        format!("{NAME}{}", self.name)
    }

    /// Observes the claims to the name and acts on them. Returns why the claim ended, if it has.
    async fn observe(&mut self) -> Result<Option<RegistrationEnd>, Error> {
        let gossip = &self.backend.gossip;
        if gossip.roster().me().is_some_and(|me| !me.is_live()) {
            return Ok(Some(RegistrationEnd::Requested));
        }
        let map = published_claims(gossip);
        let alone = map.claims(&self.name, |_| true).count() <= 1;
        self.disputed |= !alone;
        let (kept_by, ruling) =
            match resolve_conflict(self.backend.resolver, &map, &self.name, &self.me, |_| true) {
                ConflictDecision::Keep if self.disputed && alone => {
                    self.disputed = false;
                    metrics::name_conflict("kept");
                    return Ok(None);
                }
                ConflictDecision::Keep | ConflictDecision::Wait => return Ok(None),
                ConflictDecision::GiveUp { kept_by } => (kept_by, self.entry.ruling.clone()),
                ConflictDecision::StopAll(ruling) => (None, Some(ruling)),
                ConflictDecision::ApplyUserRule(of) => {
                    self.entry.ruling = Some(self.ask_rule(&map, of));
                    self.publish().await?;
                    // This member applies the published ruling at its next observation, like every other member.
                    return Ok(None);
                }
            };
        metrics::name_conflict("lost");
        self.entry = NameEntry { version: 0, claim: None, ruling };
        match self.entry.ruling {
            Some(_) => self.publish().await?,
            None => remove(gossip, &self.key()).await?,
        }
        Ok(Some(RegistrationEnd::Conflict { kept_by: kept_by.map(|kept| kept.member) }))
    }

    /// Asks the user function about these claims.
    fn ask_rule(&self, map: &NameMap, of: Vec<NameClaimRef>) -> ConflictRuling {
        let claims: BTreeMap<&NameClaimant, &NameClaim> = map.claims(&self.name, |_| true).collect();
        let views: Vec<RegisteredName> = of
            .iter()
            .filter_map(|claim_ref| Some(view(&self.name, &claim_ref.by, claims.get(&claim_ref.by)?)))
            .collect();
        let chosen = self
            .backend
            .rule
            .as_ref()
            .and_then(|rule| callback::contained("conflict rule", || rule(&views)).flatten());
        ConflictRuling { keep: chosen.and_then(|at| of.get(at).cloned()), of }
    }

    async fn maintain(
        mut self,
        mut commands: mpsc::UnboundedReceiver<RegistrationCommand>,
        end_sender: watch::Sender<Option<RegistrationEnd>>,
    ) {
        let counted = metrics::ActiveMetric::name("soft");
        let (ended, confirm) = self.run(&mut commands).await;
        drop(counted);
        let removed = match &ended {
            RegistrationEnd::Conflict { .. } => Ok(()),
            _ => remove(&self.backend.gossip, &self.key()).await,
        };
        self.unpublish_later();
        end_sender.send_replace(Some(ended));
        confirm.into_iter().for_each(|confirm| drop(confirm.send(removed.clone().map_err(Into::into))));
    }

    async fn run(
        &mut self,
        commands: &mut mpsc::UnboundedReceiver<RegistrationCommand>,
    ) -> (RegistrationEnd, Option<oneshot::Sender<Result<(), RegistryError>>>) {
        let mut rosters = self.backend.gossip.watch();
        loop {
            match self.observe().await {
                Ok(Some(ended)) => return (ended, None),
                Ok(None) => {}
                // A member that cannot publish has left.
                Err(_) => return (RegistrationEnd::Requested, None),
            }
            tokio::select! {
                biased;
                command = commands.recv() => match command {
                    None => return (RegistrationEnd::Unregistered, None),
                    Some(RegistrationCommand::Unregister(confirm)) => return (RegistrationEnd::Unregistered, Some(confirm)),
                    Some(RegistrationCommand::Update(metadata, confirm)) => {
                        self.entry.claim.iter_mut().for_each(|claim| claim.metadata = metadata.clone());
                        let _ = confirm.send(self.publish().await.map_err(Into::into));
                    }
                },
                changed = rosters.next() => if changed.is_none() { return (RegistrationEnd::Requested, None) },
            }
        }
    }

    /// Keeps publishing the resolution of a conflict for a while.
    fn unpublish_later(self) {
        if self.entry.claim.is_some() || self.entry.ruling.is_none() {
            return;
        }
        let NameClaimTask { backend, name, entry, .. } = self;
        tokio::spawn(async move {
            let pause = backend.gossip.timing().silence_limit() * RULING_SILENCE_LIMITS;
            runtime::sleep_until(runtime::now() + pause).await;
            let key = format!("{NAME}{name}");
            let same = |published: &crate::store::gossip::GossipEntry| {
                published.member.id == backend.gossip.id()
                    && published.key == key
                    && decode::<NameEntry>(published).as_ref() == Some(&entry)
            };
            if backend.gossip.entries(&key).iter().any(same) {
                let _ = remove(&backend.gossip, &key).await;
            }
        });
    }
}
