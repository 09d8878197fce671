//! Names that members claim.
//!
//! A claim is an entry of the member that makes it. It counts as registered when it has stood for as long as all need to hear of it.
//! From then on its keeper looks at every change: whoever finds that the name is another's gives it up.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use tenure_core::cluster::{
    Claim, ClaimId, Entry, Metadata, NameMap, NameView, Resolver, Ruling, Verdict, Which, holder, settle,
};
use tenure_core::{Moment, Name, SessionId};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::Soft;
use super::said::{NAME, heard, hush, say};
use crate::backend::gossip::Gossip;
use crate::cluster::registry::{Ended, Order, Registered, RegistryError};
use crate::{Error, callback, metrics, runtime};

/// How many times its patience a member remembers for the others how a conflict was settled.
const RULING_KEPT: u32 = 10;

/// Names that members of this process have or are about to: each once.
static HELD: LazyLock<Mutex<BTreeSet<(String, Name)>>> = LazyLock::new(Mutex::default);

/// Wakes every task that waits for a name that another task of this process has.
static FREED: Notify = Notify::const_new();

struct Held(String, Name);

impl Held {
    /// Waits until no other task of this process has the name, until then at most.
    async fn wait_for(member: &str, name: &Name, until: Moment) -> Option<Held> {
        loop {
            let mut freed = pin!(FREED.notified());
            freed.as_mut().enable();
            let held = Held::take(member, name);
            if held.is_some() || runtime::now() >= until {
                return held;
            }
            tokio::select! {
                () = freed => {}
                () = runtime::sleep_until(until) => {}
            }
        }
    }

    fn take(member: &str, name: &Name) -> Option<Held> {
        let key = (member.to_owned(), name.clone());
        let new = HELD.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
        new.then(|| Held(member.to_owned(), name.clone()))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let key = (std::mem::take(&mut self.0), self.1.clone());
        HELD.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        FREED.notify_waiters();
    }
}

/// All that those who live say about names.
fn heard_of(gossip: &Gossip) -> NameMap {
    let mut map = NameMap::default();
    for entry in gossip.entries(NAME) {
        let name = entry.key.strip_prefix(NAME).and_then(|name| name.parse().ok());
        if let (Some(name), Some(said)) = (name, heard::<Entry>(&entry)) {
            let by = ClaimId { member: entry.member.name.clone(), id: entry.member.id.clone() };
            map.say(name, by, Entry { version: entry.version, ..said });
        }
    }
    map
}

/// Who has which name.
pub(super) fn all(gossip: &Gossip, resolver: Resolver) -> BTreeMap<Name, NameView> {
    let map = heard_of(gossip);
    let each = |name: &Name| {
        let (by, claim) = holder(resolver, &map, name, |_| true)?;
        Some((name.clone(), view(name, by, claim)))
    };
    map.names().filter_map(each).collect()
}

fn view(name: &Name, by: &ClaimId, claim: &Claim) -> NameView {
    NameView {
        name: name.clone(),
        holder: by.member.clone(),
        session: SessionId::from_stored(&by.id),
        token: None,
        metadata: claim.metadata.clone(),
        since_ms: Some(claim.since_ms),
    }
}

/// A claim of this process, as it was last said.
struct Claiming {
    on: Soft,
    name: Name,
    me: ClaimId,
    said: Entry,
    /// Whether others were seen to claim it too.
    disputed: bool,
    _held: Held,
}

pub(super) async fn register(
    on: &Soft,
    name: Name,
    metadata: Metadata,
    patience: Duration,
) -> Result<Registered<Soft>, RegistryError> {
    let gossip = &on.gossip;
    let taken = |holder: &str| RegistryError::Taken { name: name.clone(), holder: holder.to_owned() };
    let until = runtime::now() + patience;
    let held = Held::wait_for(gossip.id(), &name, until).await.ok_or_else(|| taken(gossip.name()))?;
    let mut rosters = gossip.watch();
    while let Some(other) = all(gossip, on.resolver).get(&name) {
        if runtime::now() >= until {
            return Err(taken(&other.holder));
        }
        tokio::select! {
            _ = rosters.next() => {}
            () = runtime::sleep_until(until) => {}
        }
    }
    // More than all that was seen: what follows from something is younger than it.
    let since_ms = heard_of(gossip)
        .latest_ms()
        .map_or(i64::MIN, |latest| latest.saturating_add(1))
        .max(runtime::wall_ms());
    let me = ClaimId { member: gossip.name().to_owned(), id: gossip.id().to_owned() };
    let said = Entry { version: 0, claim: Some(Claim { since_ms, metadata }), ruling: None };
    let mut claiming =
        Claiming { on: on.clone(), name: name.clone(), me, said, disputed: false, _held: held };
    claiming.say().await?;
    let stands_at = runtime::now() + gossip.pace().settle();
    while runtime::now() < stands_at {
        if let Some(ended) = claiming.look().await? {
            let holder = match ended {
                Ended::Conflict { kept_by: Some(holder) } => holder,
                _ => "several, of whom none keeps it".to_owned(),
            };
            claiming.forget_later();
            return Err(taken(&holder));
        }
        tokio::select! {
            _ = rosters.next() => {}
            () = runtime::sleep_until(stands_at) => {}
        }
    }
    let (orders, inbox) = mpsc::unbounded_channel();
    let (over, ended) = watch::channel(None);
    tokio::spawn(claiming.keep(inbox, over));
    Ok(Registered { name, hold: (), ended, orders })
}

impl Claiming {
    async fn say(&self) -> Result<(), Error> {
        say(&self.on.gossip, &self.key(), &self.said).await
    }

    fn key(&self) -> String {
        format!("{NAME}{}", self.name)
    }

    /// Looks at what is said about the name, and does what follows. How it ended, if it has.
    async fn look(&mut self) -> Result<Option<Ended>, Error> {
        let gossip = &self.on.gossip;
        if gossip.roster().me().is_some_and(|me| !me.is_live()) {
            return Ok(Some(Ended::Asked));
        }
        let map = heard_of(gossip);
        let alone = map.claims(&self.name, |_| true).count() <= 1;
        self.disputed |= !alone;
        let (kept_by, ruling) = match settle(self.on.resolver, &map, &self.name, &self.me, |_| true) {
            Verdict::Keep if self.disputed && alone => {
                self.disputed = false;
                metrics::name_conflict("kept");
                return Ok(None);
            }
            Verdict::Keep | Verdict::Wait => return Ok(None),
            Verdict::GiveUp { kept_by } => (kept_by, self.said.ruling.clone()),
            Verdict::StopAll(ruling) => (None, Some(ruling)),
            Verdict::Ask(of) => {
                self.said.ruling = Some(self.ask(&map, of));
                self.say().await?;
                // What follows from it is found at the next look, as everybody finds it.
                return Ok(None);
            }
        };
        metrics::name_conflict("lost");
        self.said = Entry { version: 0, claim: None, ruling };
        match self.said.ruling {
            Some(_) => self.say().await?,
            None => hush(gossip, &self.key()).await?,
        }
        Ok(Some(Ended::Conflict { kept_by: kept_by.map(|kept| kept.member) }))
    }

    /// What the user's rule says about these claims.
    fn ask(&self, map: &NameMap, of: Vec<Which>) -> Ruling {
        let claims: BTreeMap<&ClaimId, &Claim> = map.claims(&self.name, |_| true).collect();
        let views: Vec<NameView> =
            of.iter().filter_map(|which| Some(view(&self.name, &which.by, claims.get(&which.by)?))).collect();
        let chosen = self
            .on
            .rule
            .as_ref()
            .and_then(|rule| callback::contained("name resolver", || rule(&views)).flatten());
        Ruling { keep: chosen.and_then(|at| of.get(at).cloned()), of }
    }

    async fn keep(mut self, mut orders: mpsc::UnboundedReceiver<Order>, over: watch::Sender<Option<Ended>>) {
        let counted = metrics::Counted::name("soft");
        let (ended, confirm) = self.until_over(&mut orders).await;
        drop(counted);
        let gone = match &ended {
            Ended::Conflict { .. } => Ok(()),
            _ => hush(&self.on.gossip, &self.key()).await,
        };
        self.forget_later();
        over.send_replace(Some(ended));
        confirm.into_iter().for_each(|confirm| drop(confirm.send(gone.clone().map_err(Into::into))));
    }

    async fn until_over(
        &mut self,
        orders: &mut mpsc::UnboundedReceiver<Order>,
    ) -> (Ended, Option<oneshot::Sender<Result<(), RegistryError>>>) {
        let mut rosters = self.on.gossip.watch();
        loop {
            match self.look().await {
                Ok(Some(ended)) => return (ended, None),
                Ok(None) => {}
                // A member that says nothing any more has left.
                Err(_) => return (Ended::Asked, None),
            }
            tokio::select! {
                biased;
                order = orders.recv() => match order {
                    None => return (Ended::Unregistered, None),
                    Some(Order::Unregister(confirm)) => return (Ended::Unregistered, Some(confirm)),
                    Some(Order::Update(metadata, confirm)) => {
                        self.said.claim.iter_mut().for_each(|claim| claim.metadata = metadata.clone());
                        let _ = confirm.send(self.say().await.map_err(Into::into));
                    }
                },
                changed = rosters.next() => if changed.is_none() { return (Ended::Asked, None) },
            }
        }
    }

    /// How a conflict was settled is said for a while, and then no longer.
    fn forget_later(self) {
        if self.said.claim.is_some() || self.said.ruling.is_none() {
            return;
        }
        let Claiming { on, name, said, .. } = self;
        tokio::spawn(async move {
            let pause = on.gossip.pace().patience() * RULING_KEPT;
            runtime::sleep_until(runtime::now() + pause).await;
            let key = format!("{NAME}{name}");
            let same = |entry: &crate::backend::gossip::Entry| {
                entry.member.id == on.gossip.id()
                    && entry.key == key
                    && heard::<Entry>(entry).as_ref() == Some(&said)
            };
            if on.gossip.entries(&key).iter().any(same) {
                let _ = hush(&on.gossip, &key).await;
            }
        });
    }
}
