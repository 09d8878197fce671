//! Delivering: what was read goes to the handler, and what comes of it to the store.
//!
//! A batch goes whole, in as many *lanes* beside one another as are wanted, each in a transaction of its own. If a lane fails,
//! what is not done goes unit by unit, and a unit that fails event by event; so in the end it is one event that fails. That is set
//! aside, those of its key that follow are set aside behind it, and the slot goes on. When it is due it is tried again, and when it is
//! done those behind it follow, in order.
//!
//! What passes (a deadlock, a server that restarts) is tried again in place. If it does not pass while others get through, it is the
//! event's after all: it goes aside as well, with its key, so that it stands in nobody's way, and is tried for as long as it takes,
//! never dead. Where nothing gets through, nothing goes aside. What is stale is dropped: the store has refused it. And where it is not known what counts, the share is given up and taken anew ([`Shares::doubt`]).
//!
//! [`Shares::doubt`]: super::shares::Shares::doubt

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_core::event::{Sorted, after_failure, units};
use tenure_core::port::{Aside, AsideFilter, AsideView, Event, EventId, SetAside, ShareCommit, StoreError};
use tenure_core::{Moment, Token};
use tokio::task::JoinSet;

use super::batch::Batch;
use super::handler::{Delivered, TROUBLE, say};
use super::lanes::split;
use super::report::{HandlerError, Kind};
use super::shares::{Chunk, Job};
use super::stay::{Halt, Stay};
use super::waits::Waiting;
use crate::metrics;
use crate::runtime::Draw;

/// The most events of a key that follow one another in one job.
const CHAIN_MAX: usize = 500;

/// How often what passes is tried again in place before it is seen whether others get through.
const PATIENCE: u32 = 3;

/// After so many events that pass, and none that got through, none is expected to.
const HOPELESS: usize = 16;

/// What is to become of a job.
enum Step {
    /// This part is through.
    Done,
    /// The handler failed on it.
    Failed,
    /// Some of it was refused, or nobody knows whether it counts: what is left of it, and ours, goes again. Nothing may be said
    /// about the rest in the meantime as if this part were through.
    Again,
    /// The job is over: slots were lost, or the consumer stops.
    Over,
}

impl Step {
    /// What weighs more: nothing hides that something is not through.
    fn and(self, other: Step) -> Step {
        match (self, other) {
            (Step::Over, _) | (_, Step::Over) => Step::Over,
            (Step::Again, _) | (_, Step::Again) => Step::Again,
            (Step::Failed, _) | (_, Step::Failed) => Step::Failed,
            (Step::Done, Step::Done) => Step::Done,
        }
    }
}

/// What became of a key that was aside.
enum Followed {
    /// All of it is done.
    Through,
    /// This one is its first now, and waits.
    Waits(Waiting),
    /// It is to be looked at.
    Unknown,
}

/// Events that are handled together in one transaction, and what is said about them in it.
struct Lane {
    events: Arc<[Event]>,
    commits: Vec<ShareCommit>,
}

/// What one job knows of failures: events that failed alone, which need not be tried alone once more.
#[derive(Default)]
struct Failures(HashMap<EventId, HandlerError>);

impl Stay<'_> {
    /// Delivers until the consumer stops.
    pub(super) async fn deliver(&self) {
        let mut halt = self.orders.halt.subscribe();
        while !self.is_draining() {
            let (job, due) = {
                let mut shares = self.shares();
                (shares.next(self.hub.runtime.now()), shares.next_due())
            };
            match job {
                Some(job) => self.perform(job).await,
                // What is notified before somebody waits is not forgotten.
                None => tokio::select! {
                    () = self.work.notified() => {}
                    () = self.until(due) => {}
                    _ = halt.wait_for(|halt| *halt != Halt::No) => {}
                },
            }
        }
    }

    async fn until(&self, due: Option<Moment>) {
        match due {
            Some(due) => self.hub.runtime.sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    async fn perform(&self, job: Job) {
        // There is room for the next batch.
        self.room.notify_one();
        let began = self.hub.runtime.now();
        let work = async {
            match job {
                Job::Batch(chunks) => self.batch(chunks).await,
                Job::Aside { slot, token, waiting } => self.retry(slot, token, waiting).await,
            }
        };
        tokio::select! {
            biased;
            () = self.cancelled() => {
                // Dropped in the middle: perhaps of a commit. What is left of it is taken anew.
                let mut shares = self.shares();
                let busy = shares.busy();
                shares.doubt(&busy);
            }
            () = work => {}
        }
        metrics::delivered(&self.orders.group, self.hub.runtime.now().since(began));
        let mut shares = self.shares();
        if shares.over() {
            self.new_slots.notify_one();
        }
        if !shares.to_free().is_empty() {
            self.leaving.notify_one();
        }
        drop(shares);
        self.room.notify_one();
    }

    /// Completes when something of the job was lost.
    async fn cancelled(&self) {
        while !self.shares().is_cancelled() {
            self.work.notified().await;
        }
    }

    // ---- batches

    async fn batch(&self, chunks: Vec<Chunk>) {
        let mut failures = Failures::default();
        let mut rounds = 0;
        loop {
            let left = self.left(&chunks);
            if left.is_empty() {
                return;
            }
            let step = match self.attempt(&left, self.orders.concurrency, &mut failures).await {
                Ok(Step::Failed) => self.unit_by_unit(&left, &mut failures).await,
                step => step,
            };
            match step {
                Ok(Step::Over) => return,
                Ok(_) => {}
                Err(passing) => {
                    rounds += 1;
                    if matches!(self.wait_out(&passing).await, Step::Over) {
                        return;
                    }
                    // If nothing gets through, it is read again, with what has come meanwhile: perhaps that does.
                    if rounds >= PATIENCE && !matches!(self.apart(&left, &mut failures).await, Step::Done) {
                        return;
                    }
                }
            }
        }
    }

    /// An error passes.
    async fn unit_by_unit(&self, chunks: &[&Chunk], failures: &mut Failures) -> Result<Step, HandlerError> {
        for chunk in chunks {
            for unit in units(&chunk.events) {
                let unit = Chunk { to: unit[0].position, events: unit.to_vec(), ..**chunk };
                while !self.left([&unit]).is_empty() {
                    let sole = self.sole(&unit);
                    let known = sole.is_some_and(|sole| failures.0.contains_key(&sole));
                    let step = if known { Step::Failed } else { self.attempt(&[&unit], 1, failures).await? };
                    let step = match step {
                        Step::Failed => self.event_by_event(&unit, failures).await?,
                        step => step,
                    };
                    if matches!(step, Step::Over) {
                        return Ok(Step::Over);
                    }
                }
                if self.shares().ours(chunk.slot, chunk.token).is_none() {
                    // Lost, or to be given up: what was done of it is committed.
                    break;
                }
            }
        }
        Ok(Step::Done)
    }

    /// Each alone. Those that fail are set aside, and those of their keys behind them, when the whole unit is read: until then it is
    /// there to be read again, by whoever has the slot then. An error passes, and nothing is set aside yet.
    async fn event_by_event(&self, unit: &Chunk, failures: &mut Failures) -> Result<Step, HandlerError> {
        let mut failed: Vec<(&Event, HandlerError)> = Vec::new();
        for event in &unit.events {
            loop {
                if self.sorted(unit, std::slice::from_ref(event)).go.is_empty() {
                    break;
                }
                if let Some(error) = failures.0.remove(&event.id) {
                    self.shares().park(unit.token, event);
                    failed.push((event, error));
                    break;
                }
                let step = match self.give(vec![self.alone(unit, event)], 1, failures).await {
                    Ok(step) => step,
                    Err(passing) => {
                        let mut shares = self.shares();
                        for (event, error) in failed {
                            shares.unpark(unit.token, event);
                            failures.0.insert(event.id, error);
                        }
                        return Err(passing);
                    }
                };
                if matches!(step, Step::Over) || self.left([unit]).is_empty() {
                    return Ok(step);
                }
            }
        }
        Ok(self.set_aside(unit, &failed).await)
    }

    /// Something passes, and does not pass by: each event alone, to see whether others get through. Those that do not are set aside,
    /// uncounted. `Failed`: none got through, and all is as it was.
    async fn apart(&self, chunks: &[&Chunk], failures: &mut Failures) -> Step {
        let (mut through, mut passed) = (false, 0);
        let mut stuck: Vec<(&Chunk, Vec<(&Event, HandlerError)>)> = Vec::new();
        for chunk in chunks {
            let (mut failed, mut keys): (Vec<(&Event, HandlerError)>, HashSet<&str>) = Default::default();
            for event in &chunk.events {
                if self.is_draining() {
                    return Step::Over;
                }
                let waits = event.key.as_deref().is_some_and(|key| keys.contains(key));
                if waits || self.sorted(chunk, std::slice::from_ref(event)).go.is_empty() {
                    continue;
                }
                let given = match failures.0.contains_key(&event.id) {
                    true => Ok(Step::Failed),
                    false => self.give(vec![self.alone(chunk, event)], 1, failures).await,
                };
                let error = match given {
                    Ok(Step::Over) => return Step::Over,
                    Ok(Step::Done) => {
                        through = true;
                        continue;
                    }
                    // It is not ours any more, or nobody knows.
                    Ok(Step::Again) => break,
                    Ok(Step::Failed) => {
                        through = true;
                        failures.0.remove(&event.id).unwrap_or_else(|| HandlerError::fail("it failed"))
                    }
                    Err(passing) => {
                        passed += 1;
                        passing
                    }
                };
                if !through && passed >= HOPELESS {
                    return Step::Failed;
                }
                keys.extend(event.key.as_deref());
                failed.push((event, error));
            }
            stuck.push((chunk, failed));
        }
        if !through {
            return Step::Failed;
        }
        for (chunk, failed) in stuck {
            if self.left([chunk]).is_empty() {
                continue;
            }
            failed.iter().for_each(|(event, _)| self.shares().park(chunk.token, event));
            if matches!(self.set_aside(chunk, &failed).await, Step::Over) {
                return Step::Over;
            }
        }
        Step::Done
    }

    /// An event, in a transaction of its own.
    fn alone(&self, chunk: &Chunk, event: &Event) -> Lane {
        let done = ShareCommit { done: vec![event.id], ..self.commit(chunk.slot, chunk.token) };
        Lane { events: Arc::new([event.clone()]), commits: vec![done] }
    }

    /// All of it is done, but these, which are parked already: they are set aside, and the slot goes on.
    async fn set_aside(&self, unit: &Chunk, failed: &[(&Event, HandlerError)]) -> Step {
        let (commit, aside) = self.aside_of(unit, failed);
        let step = self.tell_store(vec![commit]).await;
        let mut shares = self.shares();
        if shares.position(unit.slot, unit.token) == Some(unit.to) {
            shares.set_aside_now(unit.token, &aside);
            shares.passed(unit.slot, &unit.events);
            aside.iter().for_each(|(_, due)| metrics::failed(&self.orders.group, due.is_none()));
        }
        step
    }

    /// What is said about a unit some events of which failed; and when each of those is due.
    fn aside_of<'e>(
        &self,
        unit: &Chunk,
        failed: &[(&'e Event, HandlerError)],
    ) -> (ShareCommit, Vec<(&'e Event, Option<Moment>)>) {
        let (mut commit, mut aside) = (self.through(unit), Vec::new());
        commit.set_aside.retain(|behind| failed.iter().all(|(event, _)| event.id != behind.event));
        for (event, error) in failed {
            let (group, id, slot, key) = (&self.orders.group, event.id, event.slot, &event.key);
            tracing::info!(%group, event = %id, slot, key, "event set aside: {error}");
            let how = self.verdict(0, error);
            aside.push((*event, due_of(&how, self.hub.runtime.now())));
            commit.set_aside.push(SetAside { event: event.id, position: event.position, how });
        }
        (commit, aside)
    }

    /// What becomes of an event that was tried so often before, and failed.
    fn verdict(&self, attempts: u32, error: &HandlerError) -> Aside {
        if error.is_passing() {
            // Not one attempt more. That it was tried at all is what tells it from one that waits behind another.
            let after_ms = u64::try_from(self.hub.jittered(TROUBLE.1).as_millis()).unwrap_or(u64::MAX);
            return Aside::Retry { attempts: attempts.max(1), after_ms, error: error.message.clone() };
        }
        let settings = self.shares().settings;
        let how = after_failure(&settings, attempts, &error.message, &mut Draw(self.hub.runtime.as_ref()));
        match (how, error.kind) {
            (Aside::Retry { attempts, error, .. }, Kind::ForGood) => Aside::Dead { attempts, error },
            (Aside::Retry { attempts, error, .. }, Kind::RetryAfter(after)) => {
                let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                Aside::Retry { attempts, after_ms, error }
            }
            (how, _) => how,
        }
    }

    /// Those chunks, or what of them, that are ours and not yet through.
    fn left<'c>(&self, chunks: impl IntoIterator<Item = &'c Chunk>) -> Vec<&'c Chunk> {
        let shares = self.shares();
        let left = |chunk: &&Chunk| {
            shares.ours(chunk.slot, chunk.token).is_some_and(|held| held.position < chunk.to)
        };
        chunks.into_iter().filter(left).collect()
    }

    /// The only event of a chunk that is to be handled, if it is one.
    fn sole(&self, chunk: &Chunk) -> Option<EventId> {
        match *self.sorted(chunk, &chunk.events).go {
            [place] => Some(chunk.events[place].id),
            _ => None,
        }
    }

    /// Gives chunks to the handler, in lanes.
    async fn attempt(
        &self,
        chunks: &[&Chunk],
        most: usize,
        failures: &mut Failures,
    ) -> Result<Step, HandlerError> {
        let mut events = Vec::new();
        for chunk in chunks {
            let sorted = self.sorted(chunk, &chunk.events);
            events.extend(sorted.go.into_iter().map(|place| chunk.events[place].clone()));
        }
        let mut through: BTreeMap<u32, ShareCommit> =
            chunks.iter().map(|chunk| (chunk.slot, self.through(chunk))).collect();
        let mut lanes = Vec::new();
        for lane in split(events, most) {
            let mut commits = Vec::new();
            for (slot, events, whole) in lane.slots() {
                let Some(commit) = through.get(&slot) else { continue };
                commits.push(if whole {
                    commit.clone()
                } else {
                    ShareCommit { done: events, ..self.commit(slot, commit.token) }
                });
            }
            let wholes = lane.slots().into_iter().filter(|(_, _, whole)| *whole).map(|(slot, ..)| slot);
            wholes.for_each(|slot| drop(through.remove(&slot)));
            lanes.push(Lane { events: lane.events.into(), commits });
        }
        if let [lane] = lanes.as_mut_slice() {
            // Nothing is beside it: slots of which there is nothing to handle go with it.
            lane.commits.extend(std::mem::take(&mut through).into_values());
        }
        // Shares are locked in one order, by everybody.
        lanes.iter_mut().for_each(|lane| lane.commits.sort_by_key(|commit| commit.slot));
        if !lanes.is_empty() {
            match self.give(lanes, 1, failures).await? {
                Step::Done => {}
                step => return Ok(step),
            }
        }
        if !through.is_empty() {
            match self.tell_store(through.into_values().collect()).await {
                Step::Done => {}
                step => return Ok(step),
            }
        }
        let mut shares = self.shares();
        chunks.iter().for_each(|chunk| shares.passed(chunk.slot, &chunk.events));
        Ok(Step::Done)
    }

    /// What is said when everything of a chunk is done, except what is set aside behind others.
    fn through(&self, chunk: &Chunk) -> ShareCommit {
        let behind = self.sorted(chunk, &chunk.events).behind;
        let aside = |place: usize| {
            let event = &chunk.events[place];
            SetAside { event: event.id, position: event.position, how: Aside::Behind }
        };
        let set_aside = behind.into_iter().map(aside).collect();
        ShareCommit { position: Some(chunk.to), set_aside, ..self.commit(chunk.slot, chunk.token) }
    }

    /// What is to be done with events of a chunk.
    fn sorted(&self, chunk: &Chunk, events: &[Event]) -> Sorted {
        self.shares().sort_out(chunk.slot, chunk.token, events)
    }

    fn commit(&self, slot: u32, token: Token) -> ShareCommit {
        ShareCommit {
            group: (*self.orders.group).clone(),
            slot,
            token,
            position: None,
            done: Vec::new(),
            set_aside: Vec::new(),
            settled: Vec::new(),
        }
    }

    // ---- one call of the handler

    /// Gives lanes to the handler, beside one another, and takes in what comes of it. An error passes.
    async fn give(
        &self,
        lanes: Vec<Lane>,
        attempt: u32,
        failures: &mut Failures,
    ) -> Result<Step, HandlerError> {
        let mut under_way = JoinSet::new();
        for lane in lanes {
            let batch = self.batch_of(&lane, attempt);
            let (handler, limit) = (self.orders.handler.clone(), self.orders.limit);
            under_way.spawn(async move {
                let commits = lane.commits.clone();
                (handler.deliver(batch, commits, limit).await, lane)
            });
        }
        let (mut step, mut passing) = (Step::Done, None);
        while let Some(joined) = under_way.join_next().await {
            let Ok((delivered, lane)) = joined else {
                // A panic of our own, not of the handler's.
                step = Step::Over;
                continue;
            };
            match delivered {
                Delivered::Done => self.count(&lane),
                Delivered::Failed(error) if error.is_passing() => passing = Some(error),
                Delivered::Failed(error) => {
                    tracing::debug!(group = %self.orders.group, events = lane.events.len(), "handler failed: {error}");
                    if let [event] = &*lane.events {
                        failures.0.insert(event.id, error);
                    }
                    step = step.and(Step::Failed);
                }
                Delivered::Stale(slots) => step = step.and(self.stale(&lane.commits, &slots)),
                Delivered::Doubt(why) => step = step.and(self.doubt(&lane, &why)),
            }
        }
        match (step, passing) {
            (Step::Done | Step::Failed, Some(passing)) => Err(passing),
            (step, _) => Ok(step),
        }
    }

    fn batch_of(&self, lane: &Lane, attempt: u32) -> Batch {
        Batch {
            group: self.orders.group.clone(),
            events: lane.events.clone(),
            tokens: lane.commits.iter().map(|commit| (commit.slot, commit.token)).collect(),
            attempt,
        }
    }

    fn count(&self, lane: &Lane) {
        self.passing.store(0, Ordering::Relaxed);
        self.shares().committed(&lane.commits);
        metrics::consumed(&self.orders.group, &lane.events, self.hub.runtime.wall_ms());
    }

    fn stale(&self, commits: &[ShareCommit], slots: &[u32]) -> Step {
        let group = &self.orders.group;
        tracing::info!(%group, ?slots, "refused as stale: these slots are not ours any more");
        metrics::stale(group, slots.len());
        let stale = commits.iter().filter(|commit| slots.contains(&commit.slot));
        let mut shares = self.shares();
        // What was said in one breath with it was refused, too, and is said again without it.
        stale.for_each(|commit| shares.drop_stale(commit.slot, commit.token));
        drop(shares);
        // Whether it is ours under another token is seen by looking.
        self.leaving.notify_one();
        Step::Again
    }

    fn doubt(&self, lane: &Lane, why: &str) -> Step {
        let slots: Vec<_> = lane.commits.iter().map(|commit| (commit.slot, commit.token)).collect();
        tracing::warn!(group = %self.orders.group, ?slots, "not known whether it counts, taking the slots anew: {why}");
        self.shares().doubt(&slots);
        Step::Again
    }

    /// Says something that no handler has to do with.
    async fn tell_store(&self, commits: Vec<ShareCommit>) -> Step {
        match say(self.hub, &commits).await {
            Delivered::Stale(slots) => {
                // The others count.
                let counts: Vec<_> =
                    commits.iter().filter(|commit| !slots.contains(&commit.slot)).cloned().collect();
                self.shares().committed(&counts);
                self.stale(&commits, &slots)
            }
            Delivered::Doubt(why) => self.doubt(&Lane { events: Arc::new([]), commits }, &why),
            Delivered::Done | Delivered::Failed(_) => {
                self.shares().committed(&commits);
                Step::Done
            }
        }
    }

    /// Waits before something that passes is tried again, for longer each time until something gets through.
    async fn wait_out(&self, passing: &HandlerError) -> Step {
        tracing::warn!(group = %self.orders.group, "tried again, since it passes: {passing}");
        let rounds = self.passing.fetch_add(1, Ordering::Relaxed);
        let wait = TROUBLE.0.saturating_mul(1 << rounds.min(10)).min(TROUBLE.1);
        let mut halt = self.orders.halt.subscribe();
        tokio::select! {
            () = self.hub.pause(wait) => Step::Done,
            _ = halt.wait_for(|halt| *halt != Halt::No) => Step::Over,
        }
    }

    // ---- what is aside

    /// Tries the first of a key again, and when it is done those behind it, in order.
    async fn retry(&self, slot: u32, token: Token, waiting: Waiting) {
        let next = match self.follow(slot, token, &waiting).await {
            // Nobody else sets anything aside in this slot, so what we know is all that there is to know.
            Ok(Followed::Through) => return self.shares().follows(slot, token, &waiting, None),
            Ok(Followed::Waits(next)) => return self.shares().follows(slot, token, &waiting, Some(next)),
            Ok(Followed::Unknown) => Ok(()),
            Err(error) => Err(error),
        };
        let version = self.shares().version(slot);
        let look = async {
            next?;
            self.hub.bounded(self.hub.store.aside_keys(&self.orders.group, slot)).await
        };
        let aside = look.await;
        let now = self.hub.runtime.now();
        match aside {
            Ok(aside) => self.shares().set_aside(slot, token, version, &aside, now),
            Err(error) => {
                tracing::warn!(group = %self.orders.group, slot, "can not see what is aside: {error}");
                self.shares().put_off(slot, waiting.event, now + self.hub.jittered(TROUBLE.1));
            }
        }
    }

    async fn follow(&self, slot: u32, token: Token, waiting: &Waiting) -> Result<Followed, StoreError> {
        let (chain, whole) = self.chain(slot, waiting).await?;
        for view in chain {
            if view.dead || self.is_draining() || self.shares().ours(slot, token).is_none() {
                return Ok(Followed::Unknown);
            }
            let mut failures = Failures::default();
            let settled =
                |how| ShareCommit { settled: vec![(view.event.id, how)], ..self.commit(slot, token) };
            let lane = Lane { events: Arc::new([view.event.clone()]), commits: vec![settled(Aside::Done)] };
            let error = match self.give(vec![lane], view.attempts.saturating_add(1), &mut failures).await {
                Ok(Step::Done) => continue,
                Ok(_) => failures.0.remove(&view.event.id),
                // Others do not wait for it.
                Err(passing) => Some(passing),
            };
            let Some(error) = error else { return Ok(Followed::Unknown) };
            let how = self.verdict(view.attempts, &error);
            let (group, event) = (&self.orders.group, view.event.id);
            let dead = matches!(how, Aside::Dead { .. });
            tracing::info!(%group, %event, dead, "event failed again: {error}");
            metrics::failed(group, dead);
            let due = due_of(&how, self.hub.runtime.now());
            return Ok(match self.tell_store(vec![settled(how)]).await {
                Step::Done => Followed::Waits(Waiting { key: waiting.key.clone(), event, due }),
                _ => Followed::Unknown,
            });
        }
        Ok(if whole { Followed::Through } else { Followed::Unknown })
    }

    /// The event that waits, and those of its key behind it, in order; at most a batch. Whether that is all there is of the key.
    async fn chain(&self, slot: u32, waiting: &Waiting) -> Result<(Vec<AsideView>, bool), StoreError> {
        let most = if waiting.key.is_some() { self.orders.batch.min(CHAIN_MAX) } else { 1 };
        let filter = AsideFilter {
            group: (*self.orders.group).clone(),
            dead: false,
            slot: Some(slot),
            // Those of one key come in the order of their positions, all others in that of their numbers.
            key: waiting.key.clone(),
            after: if waiting.key.is_some() {
                None
            } else {
                Some(EventId(waiting.event.0.saturating_sub(1)))
            },
            limit: u32::try_from(most).unwrap_or(1),
        };
        let mut views = self.hub.bounded(self.hub.store.aside(&filter)).await?;
        // A list may end before its limit, where it grows too long: what is behind those is seen by looking.
        let behind = views.last().map_or(0, |last| last.behind);
        let whole = waiting.key.is_none() || views.len() < most && behind == 0;
        // Dropped meanwhile, it is not there, or another one is.
        views.retain(|view| waiting.key.is_some() || view.event.id == waiting.event);
        Ok((views, whole))
    }
}

/// When an event that was set aside so is due, on our own clock; `None`: it is dead.
fn due_of(how: &Aside, now: Moment) -> Option<Moment> {
    match how {
        Aside::Retry { after_ms, .. } => Some(now + Duration::from_millis(*after_ms)),
        Aside::Done | Aside::Behind | Aside::Dead { .. } => None,
    }
}
