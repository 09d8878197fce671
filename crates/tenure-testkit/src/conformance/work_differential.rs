//! Work in memory and work in the store, call by call.
//!
//! A seed makes a sequence of calls; each goes to the store and to a [`Memory`], and the answers must be equal but for wall
//! times and numbers: a task is the n-th that was submitted, whatever each store calls it, and a token counts grants. What a
//! call left behind is compared too. Nothing in it hangs on the clock: what is for later is for an hour later.
//! `TENURE_SEED` chooses another seed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use tenure::backend::memory::Memory;
use tenure_core::port::{
    Authority, Backend, ClaimAnswer, ClaimAsk, ClaimedTask, Fallback, Json, Mode, NewTask, NewWorker, Order,
    Outcome, Parent, QueueKey, QueueSettings, QueueView, RateLimit, Seat, Settlement, Submission, Submitted,
    TaskFilter, TaskId, TaskState, TaskView, Tend, Why, WorkerView, claims_election,
};
use tenure_core::{Entropy, Name, SessionId, SplitMix, Token};

use super::floor::{HOUR_MS, pause, profile, queue, strings};
use super::{Actor, Subject, new_id, new_session, seeded};

/// How many calls a sequence has.
const CALLS: u32 = 300;

/// See the module.
pub async fn random_work_goes_as_it_goes_in_memory(subject: &Subject) {
    let (seed, dice) = seeded(0x7e_0004);
    let memory: Arc<dyn Backend> = Arc::new(Memory::new());
    let mut pair = Pair {
        subject,
        sides: [Side::of(subject.client().await).await, Side::of(memory).await],
        dice,
        sessions: Vec::new(),
        tasks: 0,
        claims: Vec::new(),
        seed,
        call: 0,
    };
    pair.lead().await;
    for _ in 0..3 {
        pair.open().await;
    }
    while pair.call < CALLS {
        pair.call += 1;
        pair.step().await;
        if pair.call.is_multiple_of(3) || pair.call == CALLS {
            pair.compare().await;
        }
        if pair.call.is_multiple_of(12) {
            pair.compare_more().await;
        }
    }
}

/// One of the two stores.
struct Side {
    store: Arc<dyn Backend>,
    /// What the store calls the n-th task.
    ids: Vec<TaskId>,
    /// How far into the future an hour is, by its clock when it began.
    later_ms: i64,
    keeper: Option<(SessionId, Token)>,
    epoch: u32,
}

impl Side {
    async fn of(store: Arc<dyn Backend>) -> Side {
        let key = QueueKey::new("clock".parse().expect("a name"), "clock".parse().expect("a name"));
        let submission = Submission { queue: key.clone(), tasks: vec![NewTask::default()] };
        let id = store.submit(&submission).await.expect("submit")[0].id;
        let view = store.task(&key.namespace, id).await.expect("task").expect("it is there");
        let later_ms = view.enqueued_at_ms + HOUR_MS.cast_signed();
        Side { store, ids: Vec::new(), later_ms, keeper: None, epoch: 0 }
    }

    fn place(&self, id: TaskId) -> usize {
        self.ids.iter().position(|it| *it == id).expect("a task that was submitted here")
    }

    fn places(&self, ids: &[TaskId]) -> Vec<usize> {
        let mut places: Vec<_> = ids.iter().map(|id| self.place(*id)).collect();
        places.sort_unstable();
        places
    }

    /// Which task a claimed one is, and everything about it that is no time.
    fn claimed(&self, task: &ClaimedTask) -> impl PartialEq + Debug + use<> {
        let inputs: Vec<_> = task.inputs.iter().map(|(id, json)| (self.place(*id), json.clone())).collect();
        (
            (self.place(task.id), task.token.grant(), task.queue.clone(), task.kind.clone()),
            (task.payload.clone(), inputs, task.attempt, task.max_attempts),
            (task.priority, task.max_run_ms, task.deadline_ms.is_some(), task.turn),
        )
    }

    /// A task's view without times, in numbers of ours.
    fn view(&self, view: &TaskView) -> impl PartialEq + Debug + use<> {
        let some = |at: Option<i64>| at.is_some();
        let failures: Vec<_> =
            view.failures.iter().map(|it| (it.attempt, it.worker.clone(), it.error.clone())).collect();
        (
            (self.place(view.id), view.queue.clone(), view.kind.clone(), view.state, view.payload.clone()),
            (view.output.clone(), view.attempt, view.token.grant(), view.turn, view.worker.clone()),
            (view.session.clone(), view.progress.clone(), failures, view.reason.as_deref().map(numberless)),
            (self.places(&view.parents), self.places(&view.children), view.key.clone()),
            (view.effective_at_ms - view.enqueued_at_ms, some(view.run_at_ms), some(view.ready_at_ms)),
            (some(view.claimed_at_ms), some(view.deadline_ms), some(view.finished_at_ms)),
        )
    }

    fn why(&self, why: Why) -> Why {
        match why {
            Why::Parents { tasks } => {
                let places = self.places(&tasks);
                Why::Parents { tasks: places.into_iter().map(|place| TaskId(place as u64)).collect() }
            }
            Why::NotDue { .. } => Why::NotDue { run_at_ms: 0 },
            Why::Rate { .. } => Why::Rate { next_in_ms: 0 },
            why => why,
        }
    }
}

/// Numbers of tasks are each store's own.
fn numberless(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect::<String>().replace("##", "#")
}

fn queue_view(view: QueueView) -> impl PartialEq + Debug {
    let counts: Vec<_> = view.counts.into_iter().filter(|(_, count)| *count > 0).collect();
    let paused = view.paused.map(|pause| (pause.by, pause.reason));
    (view.key, view.settings, paused, counts, view.oldest_ready_ms.is_some())
}

fn worker_view(view: WorkerView) -> impl PartialEq + Debug {
    (view.worker, view.approved_by, view.live, view.claimed)
}

struct Pair<'a> {
    subject: &'a Subject,
    sides: [Side; 2],
    dice: SplitMix,
    sessions: Vec<SessionId>,
    /// How many tasks there are.
    tasks: usize,
    /// Claims that were made, over or not: place and token's count.
    claims: Vec<(usize, u64)>,
    seed: u64,
    call: u32,
}

impl Pair<'_> {
    async fn step(&mut self) {
        match self.roll(100) {
            0..18 => self.submit().await,
            18..48 => self.claim().await,
            48..72 => self.settle().await,
            72..76 => self.order().await,
            76..82 => self.tend().await,
            82..85 => self.open().await,
            85..89 => self.end().await,
            89..93 => self.set().await,
            93..95 => self.pause().await,
            95..97 => self.register().await,
            97..98 => self.approve().await,
            _ => self.forget().await,
        }
    }

    fn same<T: PartialEq + Debug>(&self, what: &str, answers: [T; 2]) {
        let [store, memory] = answers;
        assert_eq!(
            store, memory,
            "left the store, right the memory: {what}, call {}, TENURE_SEED={}",
            self.call, self.seed
        );
    }

    /// Opens the keeper's session on both sides.
    async fn lead(&mut self) {
        for side in &mut self.sides {
            let actor = Actor::open(side.store.clone(), "keeper").await;
            actor.stand(&claims_election()).await;
            let token = actor.take(&claims_election(), 0).await;
            side.epoch = actor.epoch;
            side.keeper = Some((actor.id, token));
        }
    }

    async fn open(&mut self) {
        let id = new_id();
        for side in &self.sides {
            side.store.open(&new_session(&id, "s")).await.expect("open");
        }
        self.sessions.push(id);
        if self.sessions.len() > 4 {
            self.sessions.remove(0);
        }
    }

    async fn end(&mut self) {
        let id = self.session();
        for side in &self.sides {
            side.store.end(&id).await.expect("end");
        }
    }

    async fn submit(&mut self) {
        let count = 1 + self.roll(5);
        let mut drafts = Vec::new();
        for n in 0..count {
            drafts.push(self.draft(n, count));
        }
        let key = self.queue();
        let mut answers = Vec::new();
        for side in &mut self.sides {
            let tasks = drafts.iter().map(|draft| draft.on(side)).collect();
            let answer = side.store.submit(&Submission { queue: key.clone(), tasks }).await;
            answers.push(answer.map_err(|error| (error.kind, numberless(&error.message))));
        }
        if let [Ok(store), Ok(memory)] = &answers[..] {
            let new = |answer: &[Submitted]| answer.iter().map(|it| it.new).collect::<Vec<_>>();
            self.same("submit: new", [new(store), new(memory)]);
            for (store, memory) in store.iter().zip(memory) {
                if store.new {
                    self.sides[0].ids.push(store.id);
                    self.sides[1].ids.push(memory.id);
                    self.tasks += 1;
                } else {
                    let places = [self.sides[0].place(store.id), self.sides[1].place(memory.id)];
                    self.same("submit: known", places);
                }
            }
        }
        let outcome = |n: usize| answers[n].as_ref().map(|_| ()).map_err(Clone::clone);
        self.same("submit", [outcome(0), outcome(1)]);
    }

    fn draft(&mut self, n: u64, count: u64) -> Draft {
        let some = |this: &mut Self, percent, words: &[&str]| match this.chance(percent) {
            true => vec![words[this.roll(words.len() as u64) as usize].to_owned()],
            false => vec![],
        };
        let mut parents = Vec::new();
        while self.chance(15) && parents.len() < 3 {
            // Later ones of the submission only, so that there is no cycle.
            parents.push(match self.chance(50) {
                true if n + 1 < count => {
                    let later = n + 1 + self.roll(count - n - 1);
                    DraftParent::Index(u32::try_from(later).expect("a few"))
                }
                _ if self.tasks > 0 => DraftParent::Place(self.roll(self.tasks as u64) as usize),
                _ => break,
            });
        }
        let task = NewTask {
            kind: ["", "a", "b"][self.roll(3) as usize].into(),
            payload: Json::of(&self.roll(1000)).expect("a number"),
            priority: i32::try_from(self.roll(7)).expect("small") - 3,
            requires: some(self, 30, &["x", "y"]),
            prefers: some(self, 20, &["x", "z"]),
            workers: some(self, 15, &["w0", "w1", "*"]),
            max_attempts: 1 + u32::try_from(self.roll(3)).expect("small"),
            max_run_ms: self.chance(20).then_some(HOUR_MS),
            key: self.chance(20).then(|| format!("k{}", self.roll(6))),
            concurrency_key: self.chance(25).then(|| format!("c{}", self.roll(2))),
            concurrency_limit: 2,
            ..NewTask::default()
        };
        Draft { task, parents, later: self.chance(10), past: self.chance(10) }
    }

    async fn claim(&mut self) {
        let (key, exclusive) = (self.queue(), self.chance(60));
        let authority = |side: &Side| match (exclusive, &side.keeper) {
            (true, Some((session, token))) => Authority::Leader { session: session.clone(), token: *token },
            _ => Authority::Direct,
        };
        let mut seats = Vec::new();
        for _ in 0..=self.roll(3) {
            seats.push(self.seat());
        }
        // A client that has claimed before may begin where it ended: in a distributed queue, order is approximate.
        let fresh = if exclusive { self.sides[0].store.clone() } else { self.subject.client().await };
        let mut answers = Vec::new();
        for (n, side) in self.sides.iter().enumerate() {
            let store = if n == 0 { &fresh } else { &side.store };
            let ask = ClaimAsk { queue: key.clone(), authority: authority(side), seats: seats.clone() };
            answers.push(store.claim(&ask).await.expect("claim"));
        }
        let mut told = Vec::new();
        for (side, answer) in self.sides.iter().zip(&answers) {
            told.push(match answer {
                ClaimAnswer::Served { tasks, .. } => {
                    let seats = tasks.iter().map(|seat| seat.iter().map(|it| side.claimed(it)).collect());
                    Ok(seats.collect::<Vec<Vec<_>>>())
                }
                ClaimAnswer::Refused(refusal) => Err(refusal.clone()),
            });
        }
        let [store, memory]: [_; 2] = told.try_into().unwrap_or_else(|_| unreachable!("two sides"));
        self.same(&format!("claim of {key} for {seats:?}"), [store, memory]);
        if let ClaimAnswer::Served { tasks, .. } = &answers[1] {
            for task in tasks.iter().flatten() {
                self.claims.push((self.sides[1].place(task.id), task.token.grant()));
            }
        }
    }

    fn seat(&mut self) -> Seat {
        let mut worker = profile(&format!("w{}", self.roll(3)));
        if self.chance(50) {
            worker.tags = strings([&["x"][..], &["y"], &["x", "y"], &["z"]][self.roll(4) as usize]);
        }
        if self.chance(30) {
            worker.kinds = strings([&["a"][..], &["b"], &["a", "b"]][self.roll(3) as usize]);
        }
        let session = self.chance(60).then(|| self.session());
        let hold_ms = (session.is_none() || self.chance(30)).then_some(HOUR_MS);
        Seat { worker, limit: u32::try_from(self.roll(4)).expect("small"), session, hold_ms }
    }

    async fn settle(&mut self) {
        if self.claims.is_empty() {
            return;
        }
        let mut drafts = Vec::new();
        for _ in 0..=self.roll(3) {
            // Mostly the last claims, which are likely to stand.
            let back = self.roll(self.claims.len().min(12) as u64) as usize;
            let (place, mut grant) = self.claims[self.claims.len() - 1 - back];
            if self.chance(8) {
                grant += 1;
            }
            drafts.push((place, grant, self.outcome()));
        }
        let mut answers = Vec::new();
        for side in &self.sides {
            let settlements: Vec<_> = drafts
                .iter()
                .map(|(place, grant, outcome)| Settlement {
                    namespace: Name::default_namespace(),
                    task: side.ids[*place],
                    token: Token::from_u64(Token::first(side.epoch).as_u64() + grant),
                    outcome: outcome.clone(),
                })
                .collect();
            answers.push(side.store.settle(&settlements).await.expect("settle"));
        }
        let [store, memory]: [_; 2] = answers.try_into().unwrap_or_else(|_| unreachable!("two sides"));
        self.same(&format!("settle of {drafts:?}"), [store, memory]);
    }

    fn outcome(&mut self) -> Outcome {
        match self.roll(10) {
            0..5 => Outcome::Complete(self.chance(50).then(|| Json::of(&self.roll(9)).expect("a number"))),
            5..8 => Outcome::Fail {
                error: format!("e{}", self.roll(3)),
                retry: self.chance(70),
                after: if self.chance(50) { Duration::ZERO } else { Duration::from_millis(HOUR_MS) },
            },
            8 => Outcome::Release,
            _ => Outcome::Progress {
                note: self.chance(50).then(|| format!("n{}", self.roll(3))),
                hold: self.chance(50).then(|| Duration::from_millis(HOUR_MS)),
            },
        }
    }

    async fn order(&mut self) {
        if self.tasks == 0 {
            return;
        }
        let order = if self.chance(40) { Order::Cancel } else { Order::Retry };
        let places: BTreeSet<usize> =
            (0..=self.roll(2)).map(|_| self.roll(self.tasks as u64) as usize).collect();
        let mut answers = Vec::new();
        for side in &self.sides {
            let ids: Vec<_> = places.iter().map(|place| side.ids[*place]).collect();
            let done = side.store.order(&Name::default_namespace(), &ids, order).await.expect("order");
            answers.push(side.places(&done));
        }
        let [store, memory]: [_; 2] = answers.try_into().unwrap_or_else(|_| unreachable!("two sides"));
        self.same(&format!("{order:?} of {places:?}"), [store, memory]);
    }

    async fn tend(&mut self) {
        let mut answers = Vec::new();
        for side in &self.sides {
            let (session, token) = side.keeper.clone().expect("it leads");
            let tend = Tend { session, token, clock_ms: Some(i64::MAX), limit: 1000 };
            let tended = side.store.tend(&tend).await.expect("tend");
            answers.push((tended.leads, tended.returned, tended.dead, tended.due, tended.forgotten));
        }
        let [store, memory]: [_; 2] = answers.try_into().unwrap_or_else(|_| unreachable!("two sides"));
        self.same("tend", [store, memory]);
    }

    /// What is finished is not remembered for a moment longer: the only call that waits for the clock.
    async fn forget(&mut self) {
        let key = self.queue();
        for side in &self.sides {
            let Some(view) = side.store.queue(&key).await.expect("queue") else { return };
            let (mut settings, kept) = (view.settings, view.settings);
            (settings.keep_ms, settings.keep_dead_ms) = (0, 0);
            side.store.set_queue(&key, &settings).await.expect("set_queue");
            tokio::time::sleep(Duration::from_millis(2)).await;
            let (session, token) = side.keeper.clone().expect("it leads");
            let tend = Tend { session, token, clock_ms: Some(i64::MAX), limit: 1000 };
            while side.store.tend(&tend).await.expect("tend").forgotten > 0 {}
            side.store.set_queue(&key, &kept).await.expect("set_queue");
        }
    }

    async fn set(&mut self) {
        let settings = QueueSettings {
            mode: if self.chance(60) { Mode::Exclusive } else { Mode::Distributed },
            fallback: Fallback::None,
            approval: self.chance(15),
            rate: self.chance(10).then_some(RateLimit { count: 3, per_ms: HOUR_MS }),
            max_claimed: self.chance(25).then_some(6),
            prefer_ms: if self.chance(50) { 0 } else { HOUR_MS },
            ..QueueSettings::default()
        };
        let key = self.queue();
        for side in &self.sides {
            side.store.set_queue(&key, &settings).await.expect("set_queue");
        }
    }

    async fn pause(&mut self) {
        let key = self.queue();
        let (name, on) = (self.chance(70).then_some(&key.name), self.chance(30).then(pause));
        let mut answers = Vec::new();
        for side in &self.sides {
            let set = side.store.set_queue_paused(&key.namespace, name, on.as_ref()).await;
            answers.push(set.expect("set_queue_paused"));
        }
        self.same("set_queue_paused", [answers[0], answers[1]]);
        // Not for long, or nothing happens any more.
        if on.is_some() && self.chance(80) {
            for side in &self.sides {
                side.store.set_queue_paused(&key.namespace, name, None).await.expect("set_queue_paused");
            }
        }
    }

    async fn register(&mut self) {
        let worker = NewWorker {
            name: format!("w{}", self.roll(3)),
            kind: "k".into(),
            tags: if self.chance(50) { strings(&["x"]) } else { vec![] },
            kinds: if self.chance(30) { strings(&["a"]) } else { vec![] },
            queues: vec![self.queue().name],
            location: String::new(),
            capacity: 3,
            session: Some(self.session()),
        };
        for side in &self.sides {
            side.store.register(&Name::default_namespace(), &worker).await.expect("register");
        }
    }

    async fn approve(&mut self) {
        let (name, by) = (format!("w{}", self.roll(3)), self.chance(70).then_some("ops"));
        let mut answers = Vec::new();
        for side in &self.sides {
            answers.push(side.store.approve(&Name::default_namespace(), &name, by).await.expect("approve"));
        }
        self.same("approve", [answers[0], answers[1]]);
    }

    /// Everything that can be seen.
    async fn compare(&mut self) {
        let namespace = Name::default_namespace();
        let mut queues = Vec::new();
        let mut tasks = Vec::new();
        for side in &self.sides {
            let views = side.store.queues(Some(&namespace)).await.expect("queues");
            // One that was asked about and never used may be there, or not.
            let used = |view: &QueueView| {
                view.settings != QueueSettings::default()
                    || view.paused.is_some()
                    || view.counts.values().any(|count| *count > 0)
            };
            let views: BTreeMap<_, _> =
                views.into_iter().filter(used).map(|view| (view.key.clone(), queue_view(view))).collect();
            queues.push(views);
            let filter = TaskFilter { namespace: Some(namespace.clone()), limit: 1000, ..Default::default() };
            let views = side.store.tasks(&filter).await.expect("tasks");
            tasks.push(views.iter().map(|view| side.view(view)).collect::<Vec<_>>());
        }
        let [store, memory]: [_; 2] = tasks.try_into().unwrap_or_else(|_| unreachable!("two sides"));
        self.same("tasks", [store, memory]);
        let [store, memory]: [_; 2] = queues.try_into().unwrap_or_else(|_| unreachable!("two sides"));
        self.same("queues", [store, memory]);
    }

    async fn compare_more(&mut self) {
        let namespace = Name::default_namespace();
        let (mut workers, mut held, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
        for side in &self.sides {
            let views = side.store.workers(Some(&namespace)).await.expect("workers");
            let views: BTreeMap<_, _> =
                views.into_iter().map(|view| (view.worker.name.clone(), worker_view(view))).collect();
            workers.push(views);
            let mut all = Vec::new();
            for session in &self.sessions {
                let mut held: Vec<_> = side.store.held(session).await.expect("held");
                held.sort_unstable();
                all.push(held.iter().map(|(id, token)| (side.place(*id), token.grant())).collect::<Vec<_>>());
            }
            held.push(all);
            let states = [TaskState::Waiting, TaskState::Scheduled, TaskState::Ready, TaskState::Held];
            let filter = TaskFilter {
                namespace: Some(namespace.clone()),
                states: states.into(),
                limit: 12,
                ..Default::default()
            };
            let mut whys = Vec::new();
            for view in side.store.tasks(&filter).await.expect("tasks") {
                let why = side.store.why(&namespace, view.id).await.expect("why").expect("it is there");
                let why: Vec<_> = why.into_iter().map(|why| side.why(why)).collect();
                whys.push((side.place(view.id), why));
            }
            reasons.push(whys);
        }
        let [store, memory]: [_; 2] = workers.try_into().unwrap_or_else(|_| unreachable!("two sides"));
        self.same("workers", [store, memory]);
        let [store, memory]: [_; 2] = held.try_into().unwrap_or_else(|_| unreachable!("two sides"));
        self.same("held", [store, memory]);
        let [store, memory]: [_; 2] = reasons.try_into().unwrap_or_else(|_| unreachable!("two sides"));
        self.same("why", [store, memory]);
    }

    fn queue(&mut self) -> QueueKey {
        queue(["q", "r"][self.roll(2) as usize])
    }

    fn session(&mut self) -> SessionId {
        let n = self.roll(self.sessions.len() as u64) as usize;
        self.sessions[n].clone()
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.dice.next_u64() % sides.max(1)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }
}

/// A task to be submitted to both.
struct Draft {
    task: NewTask,
    parents: Vec<DraftParent>,
    later: bool,
    past: bool,
}

enum DraftParent {
    Place(usize),
    Index(u32),
}

impl Draft {
    fn on(&self, side: &Side) -> NewTask {
        let parent = |parent: &DraftParent| match parent {
            DraftParent::Place(place) => Parent::Task(side.ids[*place]),
            DraftParent::Index(index) => Parent::Index(*index),
        };
        let run_at_ms = match (self.later, self.past) {
            (true, _) => Some(side.later_ms),
            (false, true) => Some(1_000),
            (false, false) => None,
        };
        NewTask { parents: self.parents.iter().map(parent).collect(), run_at_ms, ..self.task.clone() }
    }
}
