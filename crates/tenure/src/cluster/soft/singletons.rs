//! The singletons of one member of a gossip cluster.
//!
//! One task observes every change of the members and their singletons and executes the plan of
//! [`plan_singletons`]. It starts a singleton assigned to this member that runs nowhere, once that has been so
//! for the hold-down, or at once if the last host published that it has stopped. It stops singletons assigned
//! to other members, and publishes their state among its entries until the next run has started.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use tenure_core::port::ErrorKind;
use tenure_core::rules::cluster::{RegisteredName, RunningSingleton, SingletonHost, plan_singletons};
use tenure_core::{BootInstant, Name, SessionId};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::SoftBackend;
use super::entries::{self, GossipHandoff, OFFERS, Offers, RUN, SingletonRunEntry, decode, publish, remove};
use crate::cluster::restarts::Restarts;
use crate::cluster::singleton::{SingletonFn, SingletonRun};
use crate::cluster::supervisor::{Settings, left};
use crate::store::gossip::Gossip;
use crate::{Error, metrics, runtime};

/// How long a leaving member waits until its states are taken.
const HANDOFF_WAIT: Duration = Duration::from_secs(3);

const GUARANTEE: &str = "soft";

pub(super) struct SoftSingletons {
    gossip: Gossip,
    programs: BTreeMap<Name, SingletonFn<SoftBackend>>,
    settings: Settings,
    leave: watch::Receiver<bool>,
    runs: BTreeMap<Name, SoftRun>,
    tasks: JoinSet<(Name, Option<Vec<u8>>)>,
    /// Since when each singleton should start on this member.
    due: BTreeMap<Name, BootInstant>,
    /// Run numbers of the states published by this member, until they are taken.
    handoffs: BTreeMap<Name, u64>,
    /// The highest run number seen per singleton. The entries of a disconnected or dead member are not visible,
    /// so the entries of live members alone could lead to a number being used twice.
    numbers: BTreeMap<String, u64>,
}

/// A singleton that runs on this member.
struct SoftRun {
    number: u64,
    finish: watch::Sender<bool>,
    /// Another member ran the singleton too when this run was told to stop: after a network partition the other
    /// run continues, so the state of this run must be discarded.
    superseded: bool,
}

/// Reads which member runs which singleton.
pub(super) fn all(gossip: &Gossip) -> BTreeMap<Name, RegisteredName> {
    let mut all: BTreeMap<Name, (u64, RegisteredName)> = BTreeMap::new();
    for entry in gossip.entries(RUN) {
        let name: Option<Name> = entry.key.strip_prefix(RUN).and_then(|name| name.parse().ok());
        let (Some(name), Some(runs)) = (name, decode::<SingletonRunEntry>(&entry)) else { continue };
        let view = RegisteredName {
            name: name.clone(),
            holder: entry.member.name.clone(),
            session: SessionId::from_stored(&entry.member.id),
            token: None,
            metadata: BTreeMap::new(),
            since_at_ms: Some(runs.since_ms),
        };
        // Of two runs, take the later one.
        if all.get(&name).is_none_or(|(number, _)| *number < runs.number) {
            all.insert(name, (runs.number, view));
        }
    }
    all.into_iter().map(|(name, (_, view))| (name, view)).collect()
}

impl SoftSingletons {
    pub(super) async fn begin(
        gossip: &Gossip,
        programs: BTreeMap<Name, SingletonFn<SoftBackend>>,
        settings: Settings,
        leave: watch::Receiver<bool>,
    ) -> Result<SoftSingletons, Error> {
        let offers = programs.keys().map(ToString::to_string).collect();
        publish(gossip, OFFERS, &Offers { capacity: settings.capacity, offers }).await?;
        Ok(SoftSingletons {
            gossip: gossip.clone(),
            programs,
            settings,
            leave,
            runs: BTreeMap::new(),
            tasks: JoinSet::new(),
            due: BTreeMap::new(),
            handoffs: BTreeMap::new(),
            numbers: BTreeMap::new(),
        })
    }

    pub(super) async fn run(mut self) {
        let mut rosters = self.gossip.watch();
        while !*self.leave.borrow() {
            if let Err(error) = self.observe().await {
                // A member that has left publishes nothing and runs nothing.
                tracing::warn!("singletons stopped on this member: {error}");
                return;
            }
            let next = self.due.values().min().map(|since| *since + self.gossip.timing().hold_down());
            tokio::select! {
                biased;
                () = left(&mut self.leave) => {}
                Some(ended) = self.tasks.join_next() => self.ended(ended.ok()).await,
                _ = rosters.next() => {}
                () = until(next) => {}
            }
        }
        self.leave().await;
    }

    /// Observes members and runs, and executes this member's part of the plan.
    async fn observe(&mut self) -> Result<(), Error> {
        if self.gossip.roster().me().is_some_and(|me| !me.is_live()) {
            return Err(Error::Closed);
        }
        let running = self.running();
        let plan = plan_singletons(self.gossip.id(), &self.members(), &running);
        for name in names(&plan.stop) {
            let elsewhere =
                |run: &RunningSingleton| run.singleton == name.as_str() && run.member != self.gossip.id();
            let superseded = running.iter().any(elsewhere);
            if let Some(run) = self.runs.get_mut(&name) {
                run.superseded |= superseded;
                run.finish.send_replace(true);
            }
        }
        let start: Vec<Name> = names(&plan.start)
            .filter(|name| self.programs.contains_key(name) && !self.runs.contains_key(name))
            .collect();
        self.due.retain(|name, _| start.contains(name));
        let now = runtime::now();
        for name in start {
            let since = *self.due.entry(name.clone()).or_insert(now);
            let handoff = entries::handoff(&self.gossip, &name);
            let last = self.last_number(&name);
            // The last host published that it has stopped: no hold-down is needed.
            let handoff = handoff.filter(|handoff| handoff.number == last);
            if handoff.is_some() || now.since(since) >= self.gossip.timing().hold_down() {
                match self.start(name.clone(), last.saturating_add(1), handoff).await {
                    // This member's gossip entries are full: retry later.
                    Err(Error::Store(error)) if error.kind == ErrorKind::Request => {
                        tracing::warn!(singleton = %name, "singleton not started: {error}");
                    }
                    started => started?,
                }
            }
        }
        self.remove_taken_handoffs().await;
        Ok(())
    }

    fn members(&self) -> Vec<SingletonHost> {
        let offers = self.gossip.entries(OFFERS);
        let member = |entry: &crate::store::gossip::GossipEntry| {
            let Offers { capacity, offers } = decode(entry)?;
            Some(SingletonHost {
                id: entry.member.id.clone(),
                name: entry.member.name.clone(),
                capacity,
                offers,
            })
        };
        offers.iter().filter_map(member).collect()
    }

    /// Lists the runs that live members publish. Remembers the run numbers.
    fn running(&mut self) -> Vec<RunningSingleton> {
        let mut running = Vec::new();
        for entry in self.gossip.entries(RUN) {
            let Some(singleton) = entry.key.strip_prefix(RUN) else { continue };
            if let Some(SingletonRunEntry { number, .. }) = decode(&entry) {
                let last = self.numbers.entry(singleton.to_owned()).or_default();
                *last = number.max(*last);
            }
            running
                .push(RunningSingleton { singleton: singleton.to_owned(), member: entry.member.id.clone() });
        }
        running
    }

    /// The highest run number of this singleton that this member has seen.
    fn last_number(&self, name: &Name) -> u64 {
        let seen = self.numbers.get(name.as_str()).copied().unwrap_or_default();
        entries::last_number(&self.gossip, name).max(seen)
    }

    async fn start(&mut self, name: Name, number: u64, handoff: Option<GossipHandoff>) -> Result<(), Error> {
        let Some(program) = self.programs.get(&name).cloned() else { return Ok(()) };
        publish(
            &self.gossip,
            &format!("{RUN}{name}"),
            &SingletonRunEntry { number, since_ms: runtime::wall_ms() },
        )
        .await?;
        self.due.remove(&name);
        self.handoffs.remove(&name);
        let state = handoff.and_then(|handoff| handoff.state);
        if state.is_some() {
            metrics::handoff(GUARANTEE, "received");
        }
        let (finish, stop) = watch::channel(false);
        self.tasks.spawn(run(name.clone(), program, state, stop, self.settings.grace));
        self.numbers.insert(name.to_string(), number);
        self.runs.insert(name, SoftRun { number, finish, superseded: false });
        Ok(())
    }

    /// Handles the end of a run: publishes its state before it removes the run entry.
    async fn ended(&mut self, ended: Option<(Name, Option<Vec<u8>>)>) {
        let Some((name, state)) = ended else { return };
        let Some(run) = self.runs.remove(&name) else { return };
        if run.superseded {
            metrics::handoff(GUARANTEE, "superseded");
            tracing::info!(singleton = %name, "handoff state discarded, another member runs the singleton after a network partition");
            let _ = remove(&self.gossip, &format!("{RUN}{name}")).await;
            return;
        }
        let handoff = GossipHandoff { number: run.number, state };
        match entries::publish_handoff(&self.gossip, &name, &handoff).await {
            Ok(()) => drop(self.handoffs.insert(name.clone(), run.number)),
            Err(error) => {
                metrics::handoff(GUARANTEE, "failed");
                tracing::warn!(singleton = %name, "publishing handoff state failed: {error}");
            }
        }
        // A member that has left runs nothing.
        let _ = remove(&self.gossip, &format!("{RUN}{name}")).await;
    }

    /// Removes states of singletons that run again elsewhere.
    async fn remove_taken_handoffs(&mut self) {
        let mut taken = Vec::new();
        for (name, number) in &self.handoffs {
            if all(&self.gossip).contains_key(name) && self.last_number(name) > *number {
                taken.push(name.clone());
            }
        }
        for name in taken {
            self.handoffs.remove(&name);
            metrics::handoff(GUARANTEE, "sent");
            entries::remove_handoff(&self.gossip, &name).await;
        }
    }

    /// Withdraws its offers, stops all runs, and waits a short time until their states are taken.
    async fn leave(&mut self) {
        let nothing = Offers { capacity: self.settings.capacity, offers: Vec::new() };
        let _ = publish(&self.gossip, OFFERS, &nothing).await;
        for run in self.runs.values() {
            run.finish.send_replace(true);
        }
        while let Some(ended) = self.tasks.join_next().await {
            self.ended(ended.ok()).await;
        }
        let others = self.members().iter().any(|member| !member.offers.is_empty());
        let limit = runtime::now() + HANDOFF_WAIT;
        let mut rosters = self.gossip.watch();
        while others && !self.handoffs.is_empty() && runtime::now() < limit {
            self.remove_taken_handoffs().await;
            tokio::select! {
                _ = rosters.next() => {}
                () = runtime::sleep_until(limit) => {}
            }
        }
        for name in std::mem::take(&mut self.handoffs).into_keys() {
            metrics::handoff(GUARANTEE, "unclaimed");
            entries::remove_handoff(&self.gossip, &name).await;
        }
        let _ = remove(&self.gossip, OFFERS).await;
    }
}

/// Runs a singleton, again if it ends by itself, until it must stop. Returns the state that it left.
async fn run(
    name: Name,
    program: SingletonFn<SoftBackend>,
    mut state: Option<Vec<u8>>,
    mut stop: watch::Receiver<bool>,
    grace: Duration,
) -> (Name, Option<Vec<u8>>) {
    let _counted = metrics::ActiveMetric::singleton(GUARANTEE);
    let mut restarts = Restarts::default();
    loop {
        let began = runtime::now();
        let mut run = SingletonRun::begin(&program, name.clone(), (), state.take());
        let mut limit = None;
        let well = loop {
            tokio::select! {
                biased;
                well = run.ended() => break well,
                () = left(&mut stop), if limit.is_none() => {
                    limit = Some(runtime::now() + grace);
                    run.finish();
                }
                () = until(limit) => {
                    metrics::singleton_ended(GUARANTEE, "lost");
                    return (name, None);
                }
            }
        };
        let reason = match (well, *stop.borrow()) {
            (true, true) => "stopped",
            (true, false) => "returned",
            (false, _) => "panicked",
        };
        metrics::singleton_ended(GUARANTEE, reason);
        state = run.into_state();
        if *stop.borrow() {
            return (name, state);
        }
        let pause = restarts.ended(began, runtime::now());
        tracing::warn!(singleton = %name, reason, "singleton ended; restarting in {pause:?}");
        tokio::select! {
            biased;
            () = left(&mut stop) => return (name, state),
            () = until(Some(runtime::now() + pause)) => {}
        }
    }
}

fn names(texts: &[String]) -> impl Iterator<Item = Name> {
    texts.iter().filter_map(|text| text.parse().ok())
}

/// Completes at the given time; never for `None`.
async fn until(at: Option<BootInstant>) {
    match at {
        Some(at) => runtime::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
