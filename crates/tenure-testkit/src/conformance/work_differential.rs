//! Comparison of tasks and queues in a store with the model, call by call.
//!
//! A seed determines a sequence of calls. Each goes to the store and to a memory store, and the responses must be
//! equal except for wall-clock times and numbers: a task is identified by its index of submission, and a token by the
//! number of grants. The resulting state is compared too. Nothing depends on the clock: delays are one hour.
//! `TENURE_SEED` selects another seed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use tenure::store::memory::MemoryStore;
use tenure_core::port::{
    AssignmentMode, BrokerFallback, ClaimAuthority, ClaimBatchRequest, ClaimBatchResponse, ClaimOutcome,
    ClaimRequest, ClaimedTask, MaintenanceRequest, NewTask, NewWorker, ParentRef, QueueKey, QueueSettings,
    QueueView, RateLimit, RawJson, Settlement, Store, Submission, SubmitReceipt, TaskAction, TaskFilter,
    TaskId, TaskState, TaskView, WaitReason, WorkerView, broker_election,
};
use tenure_core::{Entropy, Name, SessionId, SplitMix, Token};

use super::test_queue::{HOUR_MS, pause, profile, queue, strings};
use super::{StoreUnderTest, TestSession, new_id, new_session, seeded};

/// Number of calls.
const CALLS: u32 = 300;

/// See the module documentation.
pub async fn random_work_calls_match_the_model(subject: &StoreUnderTest) {
    let (seed, rng) = seeded(0x7e_0004);
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mut pair = WorkDifferential {
        subject,
        sides: [WorkSide::of(subject.client().await).await, WorkSide::of(memory).await],
        rng,
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
struct WorkSide {
    store: Arc<dyn Store>,
    /// Task ids by index of submission.
    ids: Vec<TaskId>,
    /// The store's time at the start plus one hour.
    later_ms: i64,
    maintenance: Option<(SessionId, Token)>,
    epoch: u32,
}

impl WorkSide {
    async fn of(store: Arc<dyn Store>) -> WorkSide {
        let key = QueueKey::new("clock".parse().expect("a name"), "clock".parse().expect("a name"));
        let submission = Submission { queue: key.clone(), tasks: vec![NewTask::default()] };
        let id = store.submit(&submission).await.expect("submit")[0].id;
        let view = store.task(&key.namespace, id).await.expect("task").expect("it exists");
        let later_ms = view.submitted_at_ms + HOUR_MS.cast_signed();
        WorkSide { store, ids: Vec::new(), later_ms, maintenance: None, epoch: 0 }
    }

    fn place(&self, id: TaskId) -> usize {
        self.ids.iter().position(|it| *it == id).expect("a task that was submitted here")
    }

    fn places(&self, ids: &[TaskId]) -> Vec<usize> {
        let mut places: Vec<_> = ids.iter().map(|id| self.place(*id)).collect();
        places.sort_unstable();
        places
    }

    /// The fields of a claimed task except times, with the index of the task instead of its id.
    fn claimed(&self, task: &ClaimedTask) -> impl PartialEq + Debug + use<> {
        let inputs: Vec<_> =
            task.parent_results.iter().map(|(id, json)| (self.place(*id), json.clone())).collect();
        (
            (self.place(task.id), task.token.grant(), task.queue.clone(), task.kind.clone()),
            (task.payload.clone(), inputs, task.attempt, task.max_attempts),
            (task.priority, task.max_run_ms, task.claim_expires_at_ms.is_some(), task.claim_seq),
        )
    }

    /// The fields of a task view except times, with indexes instead of ids.
    fn view(&self, view: &TaskView) -> impl PartialEq + Debug + use<> {
        let some = |at: Option<i64>| at.is_some();
        let failures: Vec<_> =
            view.failures.iter().map(|it| (it.attempt, it.worker.clone(), it.error.clone())).collect();
        (
            (self.place(view.id), view.queue.clone(), view.kind.clone(), view.state, view.payload.clone()),
            (view.result.clone(), view.attempt, view.token.grant(), view.claim_seq, view.worker.clone()),
            (
                view.session.clone(),
                view.progress.clone(),
                failures,
                view.end_reason.as_deref().map(numberless),
            ),
            (self.places(&view.parents), self.places(&view.children), view.idempotency_key.clone()),
            (view.effective_at_ms - view.submitted_at_ms, some(view.run_at_ms), some(view.ready_at_ms)),
            (some(view.claimed_at_ms), some(view.claim_expires_at_ms), some(view.finished_at_ms)),
        )
    }

    fn why(&self, why: WaitReason) -> WaitReason {
        match why {
            WaitReason::PendingParents { tasks } => {
                let places = self.places(&tasks);
                WaitReason::PendingParents {
                    tasks: places.into_iter().map(|place| TaskId(place as u64)).collect(),
                }
            }
            WaitReason::NotDue { .. } => WaitReason::NotDue { run_at_ms: 0 },
            WaitReason::RateLimit { .. } => WaitReason::RateLimit { next_in_ms: 0 },
            why => why,
        }
    }
}

/// Replaces numbers in a text, because task ids differ between stores.
fn numberless(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect::<String>().replace("##", "#")
}

fn queue_view(view: QueueView) -> impl PartialEq + Debug {
    let counts: Vec<_> = view.counts.into_iter().filter(|(_, count)| *count > 0).collect();
    let paused = view.paused.map(|pause| (pause.paused_by, pause.reason));
    (view.key, view.settings, paused, counts, view.oldest_ready_age_ms.is_some())
}

fn worker_view(view: WorkerView) -> impl PartialEq + Debug {
    (view.worker, view.approved_by, view.online, view.claimed_count)
}

struct WorkDifferential<'a> {
    subject: &'a StoreUnderTest,
    sides: [WorkSide; 2],
    rng: SplitMix,
    sessions: Vec<SessionId>,
    /// Number of tasks.
    tasks: usize,
    /// All claims so far, settled or not: index of the task and number of the token.
    claims: Vec<(usize, u64)>,
    seed: u64,
    call: u32,
}

impl WorkDifferential<'_> {
    async fn step(&mut self) {
        match self.roll(100) {
            0..18 => self.submit().await,
            18..48 => self.claim().await,
            48..72 => self.settle().await,
            72..76 => self.order().await,
            76..82 => self.maintain().await,
            82..85 => self.open().await,
            85..89 => self.end().await,
            89..93 => self.set().await,
            93..95 => self.pause().await,
            95..97 => self.register().await,
            97..98 => self.approve().await,
            _ => self.forget().await,
        }
    }

    fn same<T: PartialEq + Debug>(&self, what: &str, responses: [T; 2]) {
        let [store, memory] = responses;
        assert_eq!(
            store, memory,
            "left: store, right: model: {what}, call {}, TENURE_SEED={}",
            self.call, self.seed
        );
    }

    /// Opens the session of the maintenance leader on both sides.
    async fn lead(&mut self) {
        for side in &mut self.sides {
            let session = TestSession::open(side.store.clone(), "keeper").await;
            session.join(&broker_election()).await;
            let token = session.take(&broker_election(), 0).await;
            side.epoch = session.epoch;
            side.maintenance = Some((session.id, token));
        }
    }

    async fn open(&mut self) {
        let id = new_id();
        for side in &self.sides {
            side.store.open_session(&new_session(&id, "s")).await.expect("open");
        }
        self.sessions.push(id);
        if self.sessions.len() > 4 {
            self.sessions.remove(0);
        }
    }

    async fn end(&mut self) {
        let id = self.session();
        for side in &self.sides {
            side.store.end_session(&id).await.expect("end");
        }
    }

    async fn submit(&mut self) {
        let count = 1 + self.roll(5);
        let mut drafts = Vec::new();
        for n in 0..count {
            drafts.push(self.draft(n, count));
        }
        let key = self.queue();
        let mut responses = Vec::new();
        for side in &mut self.sides {
            let tasks = drafts.iter().map(|draft| draft.on(side)).collect();
            let reply = side.store.submit(&Submission { queue: key.clone(), tasks }).await;
            responses.push(reply.map_err(|error| (error.kind, numberless(&error.message))));
        }
        if let [Ok(store), Ok(memory)] = &responses[..] {
            let new = |reply: &[SubmitReceipt]| reply.iter().map(|it| it.created).collect::<Vec<_>>();
            self.same("submit: new", [new(store), new(memory)]);
            for (store, memory) in store.iter().zip(memory) {
                if store.created {
                    self.sides[0].ids.push(store.id);
                    self.sides[1].ids.push(memory.id);
                    self.tasks += 1;
                } else {
                    let places = [self.sides[0].place(store.id), self.sides[1].place(memory.id)];
                    self.same("submit: known", places);
                }
            }
        }
        let outcome = |n: usize| responses[n].as_ref().map(|_| ()).map_err(Clone::clone);
        self.same("submit", [outcome(0), outcome(1)]);
    }

    fn draft(&mut self, n: u64, count: u64) -> TaskPlan {
        let some = |this: &mut Self, percent, words: &[&str]| match this.chance(percent) {
            true => vec![words[this.roll(words.len() as u64) as usize].to_owned()],
            false => vec![],
        };
        let mut parents = Vec::new();
        while self.chance(15) && parents.len() < 3 {
            // Choose only later tasks of the submission as parents, so that there is no cycle.
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
            payload: RawJson::of(&self.roll(1000)).expect("a number"),
            priority: i32::try_from(self.roll(7)).expect("small") - 3,
            required_tags: some(self, 30, &["x", "y"]),
            preferred_tags: some(self, 20, &["x", "z"]),
            allowed_workers: some(self, 15, &["w0", "w1", "*"]),
            max_attempts: 1 + u32::try_from(self.roll(3)).expect("small"),
            max_run_ms: self.chance(20).then_some(HOUR_MS),
            idempotency_key: self.chance(20).then(|| format!("k{}", self.roll(6))),
            concurrency_key: self.chance(25).then(|| format!("c{}", self.roll(2))),
            concurrency_limit: 2,
            ..NewTask::default()
        };
        TaskPlan { task, parents, later: self.chance(10), past: self.chance(10) }
    }

    async fn claim(&mut self) {
        let (key, exclusive) = (self.queue(), self.chance(60));
        let authority = |side: &WorkSide| match (exclusive, &side.maintenance) {
            (true, Some((session, token))) => {
                ClaimAuthority::Leader { session: session.clone(), token: *token }
            }
            _ => ClaimAuthority::Direct,
        };
        let mut requests = Vec::new();
        for _ in 0..=self.roll(3) {
            requests.push(self.claim_request());
        }
        // Use a new client for a distributed queue. A client that has claimed before may continue after its last
        // position, because the order of such a queue is approximate.
        let fresh = if exclusive { self.sides[0].store.clone() } else { self.subject.client().await };
        let mut responses = Vec::new();
        for (n, side) in self.sides.iter().enumerate() {
            let store = if n == 0 { &fresh } else { &side.store };
            let query = ClaimBatchRequest {
                queue: key.clone(),
                authority: authority(side),
                requests: requests.clone(),
            };
            responses.push(store.claim(&query).await.expect("claim"));
        }
        let mut reported = Vec::new();
        for (side, reply) in self.sides.iter().zip(&responses) {
            reported.push(match reply {
                ClaimBatchResponse::Served { tasks, .. } => {
                    let requests = tasks
                        .iter()
                        .map(|claim_request| claim_request.iter().map(|it| side.claimed(it)).collect());
                    Ok(requests.collect::<Vec<Vec<_>>>())
                }
                ClaimBatchResponse::Refused(refusal) => Err(refusal.clone()),
            });
        }
        let [store, memory]: [_; 2] = reported.try_into().unwrap_or_else(|_| unreachable!("two sides"));
        self.same(&format!("claim of {key} for {requests:?}"), [store, memory]);
        if let ClaimBatchResponse::Served { tasks, .. } = &responses[1] {
            for task in tasks.iter().flatten() {
                self.claims.push((self.sides[1].place(task.id), task.token.grant()));
            }
        }
    }

    fn claim_request(&mut self) -> ClaimRequest {
        let mut worker = profile(&format!("w{}", self.roll(3)));
        if self.chance(50) {
            worker.tags = strings([&["x"][..], &["y"], &["x", "y"], &["z"]][self.roll(4) as usize]);
        }
        if self.chance(30) {
            worker.task_kinds = strings([&["a"][..], &["b"], &["a", "b"]][self.roll(3) as usize]);
        }
        let session = self.chance(60).then(|| self.session());
        let hold_ms = (session.is_none() || self.chance(30)).then_some(HOUR_MS);
        ClaimRequest {
            worker,
            limit: u32::try_from(self.roll(4)).expect("small"),
            session,
            claim_timeout_ms: hold_ms,
        }
    }

    async fn settle(&mut self) {
        if self.claims.is_empty() {
            return;
        }
        let mut drafts = Vec::new();
        for _ in 0..=self.roll(3) {
            // Usually choose one of the latest claims, which are likely to be held.
            let back = self.roll(self.claims.len().min(12) as u64) as usize;
            let (place, mut grant) = self.claims[self.claims.len() - 1 - back];
            if self.chance(8) {
                grant += 1;
            }
            drafts.push((place, grant, self.outcome()));
        }
        let mut responses = Vec::new();
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
            responses.push(side.store.settle(&settlements).await.expect("settle"));
        }
        let [store, memory]: [_; 2] = responses.try_into().unwrap_or_else(|_| unreachable!("two sides"));
        self.same(&format!("settle of {drafts:?}"), [store, memory]);
    }

    fn outcome(&mut self) -> ClaimOutcome {
        match self.roll(10) {
            0..5 => {
                ClaimOutcome::Complete(self.chance(50).then(|| RawJson::of(&self.roll(9)).expect("a number")))
            }
            5..8 => ClaimOutcome::Fail {
                error: format!("e{}", self.roll(3)),
                retry: self.chance(70),
                retry_in: if self.chance(50) { Duration::ZERO } else { Duration::from_millis(HOUR_MS) },
            },
            8 => ClaimOutcome::Release,
            _ => ClaimOutcome::Heartbeat {
                progress: self.chance(50).then(|| format!("n{}", self.roll(3))),
                claim_timeout: self.chance(50).then(|| Duration::from_millis(HOUR_MS)),
            },
        }
    }

    async fn order(&mut self) {
        if self.tasks == 0 {
            return;
        }
        let order = if self.chance(40) { TaskAction::Cancel } else { TaskAction::Retry };
        let places: BTreeSet<usize> =
            (0..=self.roll(2)).map(|_| self.roll(self.tasks as u64) as usize).collect();
        let mut responses = Vec::new();
        for side in &self.sides {
            let ids: Vec<_> = places.iter().map(|place| side.ids[*place]).collect();
            let done =
                side.store.apply_task_action(&Name::default_namespace(), &ids, order).await.expect("order");
            responses.push(side.places(&done));
        }
        let [store, memory]: [_; 2] = responses.try_into().unwrap_or_else(|_| unreachable!("two sides"));
        self.same(&format!("{order:?} of {places:?}"), [store, memory]);
    }

    async fn maintain(&mut self) {
        let mut responses = Vec::new();
        for side in &self.sides {
            let (session, token) = side.maintenance.clone().expect("it leads");
            let request = MaintenanceRequest { session, token, clock_ms: Some(i64::MAX), limit: 1000 };
            let response = side.store.maintain(&request).await.expect("maintain");
            responses.push((
                response.is_leader,
                response.recovered,
                response.dead,
                response.promoted,
                response.pruned,
            ));
        }
        let [store, memory]: [_; 2] = responses.try_into().unwrap_or_else(|_| unreachable!("two sides"));
        self.same("maintain", [store, memory]);
    }

    /// Sets the retention of finished tasks to zero and runs maintenance. This is the only call that waits for the
    /// clock.
    async fn forget(&mut self) {
        let key = self.queue();
        for side in &self.sides {
            let Some(view) = side.store.queue(&key).await.expect("queue") else { return };
            let (mut settings, kept) = (view.settings, view.settings);
            (settings.retention_ms, settings.dead_retention_ms) = (0, 0);
            side.store.set_queue(&key, &settings).await.expect("set_queue");
            tokio::time::sleep(Duration::from_millis(2)).await;
            let (session, token) = side.maintenance.clone().expect("it leads");
            let request = MaintenanceRequest { session, token, clock_ms: Some(i64::MAX), limit: 1000 };
            while side.store.maintain(&request).await.expect("maintain").pruned > 0 {}
            side.store.set_queue(&key, &kept).await.expect("set_queue");
        }
    }

    async fn set(&mut self) {
        let settings = QueueSettings {
            mode: if self.chance(60) { AssignmentMode::Exclusive } else { AssignmentMode::Distributed },
            fallback: BrokerFallback::None,
            require_approval: self.chance(15),
            rate: self.chance(10).then_some(RateLimit { count: 3, per_ms: HOUR_MS }),
            max_claimed: self.chance(25).then_some(6),
            preference_window_ms: if self.chance(50) { 0 } else { HOUR_MS },
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
        let mut responses = Vec::new();
        for side in &self.sides {
            let set = side.store.set_queue_paused(&key.namespace, name, on.as_ref()).await;
            responses.push(set.expect("set_queue_paused"));
        }
        self.same("set_queue_paused", [responses[0], responses[1]]);
        // Usually resume at once; otherwise most later calls would have no effect.
        if on.is_some() && self.chance(80) {
            for side in &self.sides {
                side.store.set_queue_paused(&key.namespace, name, None).await.expect("set_queue_paused");
            }
        }
    }

    async fn register(&mut self) {
        let worker = NewWorker {
            name: format!("w{}", self.roll(3)),
            description: "k".into(),
            tags: if self.chance(50) { strings(&["x"]) } else { vec![] },
            task_kinds: if self.chance(30) { strings(&["a"]) } else { vec![] },
            queues: vec![self.queue().name],
            location: String::new(),
            capacity: 3,
            session: Some(self.session()),
        };
        for side in &self.sides {
            side.store.register_worker(&Name::default_namespace(), &worker).await.expect("register");
        }
    }

    async fn approve(&mut self) {
        let (name, by) = (format!("w{}", self.roll(3)), self.chance(70).then_some("ops"));
        let mut responses = Vec::new();
        for side in &self.sides {
            responses.push(
                side.store.set_worker_approval(&Name::default_namespace(), &name, by).await.expect("approve"),
            );
        }
        self.same("approve", [responses[0], responses[1]]);
    }

    /// Compares the complete visible state.
    async fn compare(&mut self) {
        let namespace = Name::default_namespace();
        let mut queues = Vec::new();
        let mut tasks = Vec::new();
        for side in &self.sides {
            let views = side.store.queues(Some(&namespace)).await.expect("queues");
            // A queue that was read but never used may or may not exist.
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
                let mut held: Vec<_> = side.store.held_claims(session).await.expect("held");
                held.sort_unstable();
                all.push(held.iter().map(|(id, token)| (side.place(*id), token.grant())).collect::<Vec<_>>());
            }
            held.push(all);
            let states = [TaskState::Waiting, TaskState::Scheduled, TaskState::Ready, TaskState::Blocked];
            let filter = TaskFilter {
                namespace: Some(namespace.clone()),
                states: states.into(),
                limit: 12,
                ..Default::default()
            };
            let mut whys = Vec::new();
            for view in side.store.tasks(&filter).await.expect("tasks") {
                let why =
                    side.store.wait_reasons(&namespace, view.id).await.expect("why").expect("it exists");
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
        self.rng.next_u64() % sides.max(1)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }
}

/// A task to submit to both stores.
struct TaskPlan {
    task: NewTask,
    parents: Vec<DraftParent>,
    later: bool,
    past: bool,
}

enum DraftParent {
    Place(usize),
    Index(u32),
}

impl TaskPlan {
    fn on(&self, side: &WorkSide) -> NewTask {
        let parent = |parent: &DraftParent| match parent {
            DraftParent::Place(place) => ParentRef::Task(side.ids[*place]),
            DraftParent::Index(index) => ParentRef::Index(*index),
        };
        let run_at_ms = match (self.later, self.past) {
            (true, _) => Some(side.later_ms),
            (false, true) => Some(1_000),
            (false, false) => None,
        };
        NewTask { parents: self.parents.iter().map(parent).collect(), run_at_ms, ..self.task.clone() }
    }
}
