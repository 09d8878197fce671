//! The singletons of one member of a cluster that gossips.
//!
//! One task looks at every change of who is there and what runs where, and does what [`duties`] says: it starts what is its own and
//! runs nowhere, once that has been so for the hold-down, or at once where whoever ran it last says that it has stopped; it stops what
//! is another's, and leaves the state among its entries until the next one runs.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use tenure_core::cluster::{Member, NameView, Running, duties};
use tenure_core::port::Trouble;
use tenure_core::{Moment, Name, SessionId};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Soft;
use super::said::{self, Left, OFFERS, Offers, RUN, Runs, heard, hush, say};
use crate::backend::gossip::Gossip;
use crate::cluster::restarts::Restarts;
use crate::cluster::singleton::{Program, Run};
use crate::cluster::supervisor::{Settings, left};
use crate::{Error, metrics, runtime};

/// For how long who leaves waits until its states are taken.
const HANDOFF_WAIT: Duration = Duration::from_secs(3);

const FOOTING: &str = "soft";

pub(super) struct Duty {
    gossip: Gossip,
    programs: BTreeMap<Name, Program<Soft>>,
    settings: Settings,
    left: watch::Receiver<bool>,
    runs: BTreeMap<Name, Underway>,
    tasks: JoinSet<(Name, Option<Vec<u8>>)>,
    /// Since when each singleton is to be started here.
    due: BTreeMap<Name, Moment>,
    /// What was left here, and under which number, until it is taken.
    leaving: BTreeMap<Name, u64>,
    /// The greatest run number seen per singleton. A member that is cut off or dead takes its entries along, so the entries
    /// of live members alone would let a number be used twice.
    numbers: BTreeMap<String, u64>,
}

/// A singleton that runs here.
struct Underway {
    number: u64,
    finish: watch::Sender<bool>,
    /// Another member ran the singleton too when this run was told to stop: the network had split, the other run goes on,
    /// and the state of this run must reach nobody.
    superseded: bool,
}

/// Who runs what.
pub(super) fn all(gossip: &Gossip) -> BTreeMap<Name, NameView> {
    let mut all: BTreeMap<Name, (u64, NameView)> = BTreeMap::new();
    for entry in gossip.entries(RUN) {
        let name: Option<Name> = entry.key.strip_prefix(RUN).and_then(|name| name.parse().ok());
        let (Some(name), Some(runs)) = (name, heard::<Runs>(&entry)) else { continue };
        let view = NameView {
            name: name.clone(),
            holder: entry.member.name.clone(),
            session: SessionId::from_stored(&entry.member.id),
            token: None,
            metadata: BTreeMap::new(),
            since_ms: Some(runs.since_ms),
        };
        // Of two, the later one.
        if all.get(&name).is_none_or(|(number, _)| *number < runs.number) {
            all.insert(name, (runs.number, view));
        }
    }
    all.into_iter().map(|(name, (_, view))| (name, view)).collect()
}

impl Duty {
    pub(super) async fn begin(
        gossip: &Gossip,
        programs: BTreeMap<Name, Program<Soft>>,
        settings: Settings,
        left: watch::Receiver<bool>,
    ) -> Result<Duty, Error> {
        let offers = programs.keys().map(ToString::to_string).collect();
        say(gossip, OFFERS, &Offers { capacity: settings.capacity, offers }).await?;
        Ok(Duty {
            gossip: gossip.clone(),
            programs,
            settings,
            left,
            runs: BTreeMap::new(),
            tasks: JoinSet::new(),
            due: BTreeMap::new(),
            leaving: BTreeMap::new(),
            numbers: BTreeMap::new(),
        })
    }

    pub(super) async fn run(mut self) {
        let mut rosters = self.gossip.watch();
        while !*self.left.borrow() {
            if let Err(error) = self.look().await {
                // A member that has left says nothing any more, and runs nothing.
                tracing::warn!("singletons do not run here any more: {error}");
                return;
            }
            let next = self.due.values().min().map(|since| *since + self.gossip.pace().hold_down());
            tokio::select! {
                biased;
                () = left(&mut self.left) => {}
                Some(ended) = self.tasks.join_next() => self.ended(ended.ok()).await,
                _ = rosters.next() => {}
                () = until(next) => {}
            }
        }
        self.leave().await;
    }

    /// Looks at who is there and what runs where, and does its part.
    async fn look(&mut self) -> Result<(), Error> {
        if self.gossip.roster().me().is_some_and(|me| !me.is_live()) {
            return Err(Error::Closed);
        }
        let running = self.running();
        let duties = duties(self.gossip.id(), &self.members(), &running);
        for name in names(&duties.stop) {
            let elsewhere = |run: &Running| run.singleton == name.as_str() && run.member != self.gossip.id();
            let superseded = running.iter().any(elsewhere);
            if let Some(run) = self.runs.get_mut(&name) {
                run.superseded |= superseded;
                run.finish.send_replace(true);
            }
        }
        let start: Vec<Name> = names(&duties.start)
            .filter(|name| self.programs.contains_key(name) && !self.runs.contains_key(name))
            .collect();
        self.due.retain(|name, _| start.contains(name));
        let now = runtime::now();
        for name in start {
            let since = *self.due.entry(name.clone()).or_insert(now);
            let handed = said::left(&self.gossip, &name);
            let last = self.last_number(&name);
            // Whoever ran it last says that it has stopped: nobody needs to be waited for.
            let handed = handed.filter(|handed| handed.number == last);
            if handed.is_some() || now.since(since) >= self.gossip.pace().hold_down() {
                match self.start(name.clone(), last.saturating_add(1), handed).await {
                    // This member says as much as it may: another time.
                    Err(Error::Store(error)) if error.kind == Trouble::Request => {
                        tracing::warn!(singleton = %name, "not started: {error}");
                    }
                    started => started?,
                }
            }
        }
        self.forget_what_was_taken().await;
        Ok(())
    }

    fn members(&self) -> Vec<Member> {
        let offers = self.gossip.entries(OFFERS);
        let member = |entry: &crate::backend::gossip::Entry| {
            let Offers { capacity, offers } = heard(entry)?;
            Some(Member { id: entry.member.id.clone(), name: entry.member.name.clone(), capacity, offers })
        };
        offers.iter().filter_map(member).collect()
    }

    /// Which live member says that it runs what. Remembers the run numbers.
    fn running(&mut self) -> Vec<Running> {
        let mut running = Vec::new();
        for entry in self.gossip.entries(RUN) {
            let Some(singleton) = entry.key.strip_prefix(RUN) else { continue };
            if let Some(Runs { number, .. }) = heard(&entry) {
                let last = self.numbers.entry(singleton.to_owned()).or_default();
                *last = number.max(*last);
            }
            running.push(Running { singleton: singleton.to_owned(), member: entry.member.id.clone() });
        }
        running
    }

    /// The greatest number of any run of this singleton that this member ever saw.
    fn last_number(&self, name: &Name) -> u64 {
        let seen = self.numbers.get(name.as_str()).copied().unwrap_or_default();
        said::last_number(&self.gossip, name).max(seen)
    }

    async fn start(&mut self, name: Name, number: u64, handed: Option<Left>) -> Result<(), Error> {
        let Some(program) = self.programs.get(&name).cloned() else { return Ok(()) };
        say(&self.gossip, &format!("{RUN}{name}"), &Runs { number, since_ms: runtime::wall_ms() }).await?;
        self.due.remove(&name);
        self.leaving.remove(&name);
        let state = handed.and_then(|handed| handed.state);
        if state.is_some() {
            metrics::handoff(FOOTING, "received");
        }
        let (finish, told) = watch::channel(false);
        self.tasks.spawn(run(name.clone(), program, state, told, self.settings.grace));
        self.numbers.insert(name.to_string(), number);
        self.runs.insert(name, Underway { number, finish, superseded: false });
        Ok(())
    }

    /// A run is over: what it left is said before it is said that it has stopped.
    async fn ended(&mut self, ended: Option<(Name, Option<Vec<u8>>)>) {
        let Some((name, state)) = ended else { return };
        let Some(run) = self.runs.remove(&name) else { return };
        if run.superseded {
            metrics::handoff(FOOTING, "superseded");
            tracing::info!(singleton = %name, "state discarded: another member kept running after the netsplit");
            let _ = hush(&self.gossip, &format!("{RUN}{name}")).await;
            return;
        }
        let left = Left { number: run.number, state };
        match said::leave(&self.gossip, &name, &left).await {
            Ok(()) => drop(self.leaving.insert(name.clone(), run.number)),
            Err(error) => {
                metrics::handoff(FOOTING, "failed");
                tracing::warn!(singleton = %name, "its state is not handed on: {error}");
            }
        }
        // A member that has left runs nothing.
        let _ = hush(&self.gossip, &format!("{RUN}{name}")).await;
    }

    /// What somebody runs again need not be left for it any longer.
    async fn forget_what_was_taken(&mut self) {
        let mut taken = Vec::new();
        for (name, number) in &self.leaving {
            if all(&self.gossip).contains_key(name) && self.last_number(name) > *number {
                taken.push(name.clone());
            }
        }
        for name in taken {
            self.leaving.remove(&name);
            metrics::handoff(FOOTING, "given");
            said::forget(&self.gossip, &name).await;
        }
    }

    /// Offers nothing any more, lets all that runs finish, and waits a little until it is taken.
    async fn leave(&mut self) {
        let nothing = Offers { capacity: self.settings.capacity, offers: Vec::new() };
        let _ = say(&self.gossip, OFFERS, &nothing).await;
        for run in self.runs.values() {
            run.finish.send_replace(true);
        }
        while let Some(ended) = self.tasks.join_next().await {
            self.ended(ended.ok()).await;
        }
        let others = self.members().iter().any(|member| !member.offers.is_empty());
        let limit = runtime::now() + HANDOFF_WAIT;
        let mut rosters = self.gossip.watch();
        while others && !self.leaving.is_empty() && runtime::now() < limit {
            self.forget_what_was_taken().await;
            tokio::select! {
                _ = rosters.next() => {}
                () = runtime::sleep_until(limit) => {}
            }
        }
        for name in std::mem::take(&mut self.leaving).into_keys() {
            metrics::handoff(FOOTING, "unclaimed");
            said::forget(&self.gossip, &name).await;
        }
        let _ = hush(&self.gossip, OFFERS).await;
    }
}

/// Runs a singleton, again if it ends by itself, until it is to finish. What it left.
async fn run(
    name: Name,
    program: Program<Soft>,
    mut state: Option<Vec<u8>>,
    mut told: watch::Receiver<bool>,
    grace: Duration,
) -> (Name, Option<Vec<u8>>) {
    let _counted = metrics::Counted::singleton(FOOTING);
    let mut restarts = Restarts::default();
    loop {
        let began = runtime::now();
        let mut run = Run::begin(&program, name.clone(), (), state.take());
        let mut limit = None;
        let well = loop {
            tokio::select! {
                biased;
                well = run.ended() => break well,
                () = left(&mut told), if limit.is_none() => {
                    limit = Some(runtime::now() + grace);
                    run.finish();
                }
                () = until(limit) => {
                    metrics::singleton_ended(FOOTING, "lost");
                    return (name, None);
                }
            }
        };
        let word = match (well, *told.borrow()) {
            (true, true) => "asked",
            (true, false) => "returned",
            (false, _) => "panicked",
        };
        metrics::singleton_ended(FOOTING, word);
        state = run.into_state();
        if *told.borrow() {
            return (name, state);
        }
        let pause = restarts.ended(began, runtime::now());
        tracing::warn!(singleton = %name, how = word, "ended by itself; again in {pause:?}");
        tokio::select! {
            biased;
            () = left(&mut told) => return (name, state),
            () = until(Some(runtime::now() + pause)) => {}
        }
    }
}

fn names(texts: &[String]) -> impl Iterator<Item = Name> {
    texts.iter().filter_map(|text| text.parse().ok())
}

/// Completes then; never without a moment.
async fn until(at: Option<Moment>) {
    match at {
        Some(at) => runtime::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
