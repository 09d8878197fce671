//! Rules of the work model, one claim per test, on a manual clock.

mod admin;
mod dependencies;
mod events;
mod lifecycle;
mod limits;
mod maintenance;
mod modes;
mod notify;
mod pools;
mod properties;
mod schedules;

use std::time::Duration;

use super::Work;
use crate::model::elections::Elections;
use crate::port::{
    Candidacy, ClaimAuthority, ClaimBatchRequest, ClaimBatchResponse, ClaimOutcome, ClaimRefusal,
    ClaimRequest, ClaimedTask, MaintenanceRequest, MaintenanceResponse, NewTask, Notification,
    OpenSessionRequest, ParentRef, PoolKey, QueueKey, QueueSettings, RawJson, SettleResult, Settlement,
    StoreError, Submission, SubmitReceipt, TakeLeaseRequest, TaskAction, TaskId, TaskState, TaskView,
    WorkerProfile, broker_election,
};
use crate::{Name, SessionId, SplitMix, Token};

/// A store with one queue and a manual clock.
struct TestQueue {
    work: Work,
    elections: Elections,
    now: i64,
    entropy: SplitMix,
    /// Session and token of the maintenance leader.
    leader: (SessionId, Token),
}

/// Start time of all tests.
const START: i64 = 1_000_000_000;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn queue() -> QueueKey {
    QueueKey::new(Name::default_namespace(), name("q"))
}

fn pool() -> PoolKey {
    PoolKey::new(Name::default_namespace(), name("p"))
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| word.to_string()).collect()
}

fn task() -> NewTask {
    NewTask::new("k")
}

fn after(parents: &[TaskId]) -> NewTask {
    NewTask { parents: parents.iter().map(|id| ParentRef::Task(*id)).collect(), ..task() }
}

/// A task with a concurrency key and its limit.
fn keyed(key: &str, limit: u32) -> NewTask {
    NewTask { concurrency_key: Some(key.into()), concurrency_limit: limit, ..task() }
}

fn worker(name: &str, tags: &[&str]) -> WorkerProfile {
    WorkerProfile { name: name.into(), task_kinds: Vec::new(), tags: words(tags) }
}

fn claim_request(limit: u32) -> ClaimRequest {
    ClaimRequest { worker: worker("w", &[]), limit, session: None, claim_timeout_ms: Some(60_000) }
}

impl TestQueue {
    fn new() -> TestQueue {
        let mut fixture = TestQueue {
            work: Work::default(),
            elections: Elections::default(),
            now: START,
            entropy: SplitMix::new(7),
            leader: (SessionId::from_stored("none"), Token::ZERO),
        };
        fixture.elect_leader();
        fixture
    }

    /// A live session.
    fn session(&mut self) -> SessionId {
        let id = SessionId::generate(&mut self.entropy);
        let (lease, takeover) = (Duration::from_secs(10), Default::default());
        let session = OpenSessionRequest { id: id.clone(), name: "s".into(), lease, takeover, owner: None };
        self.elections.open_session(&session, self.now);
        id
    }

    /// Elects a new maintenance leader.
    fn elect_leader(&mut self) {
        let old = self.leader.clone();
        self.elections.end_session(&old.0, self.now);
        let session = self.session();
        self.elections.join_election(&Candidacy::new(session.clone(), broker_election()), self.now);
        let token = self.elections.election(&broker_election()).unwrap().leases[0].token;
        let take = TakeLeaseRequest {
            session: session.clone(),
            epoch: self.elections.epoch(),
            election: broker_election(),
            slot: 0,
            token,
            holder: None,
            expire: None,
        };
        let token = self.elections.take_lease(&take, self.now).unwrap();
        self.leader = (session, token);
    }

    fn leader(&self) -> ClaimAuthority {
        ClaimAuthority::Leader { session: self.leader.0.clone(), token: self.leader.1 }
    }

    fn try_submit(&mut self, tasks: Vec<NewTask>) -> Result<Vec<SubmitReceipt>, StoreError> {
        self.work.submit(&Submission { queue: queue(), tasks }, self.now)
    }

    fn submit(&mut self, tasks: Vec<NewTask>) -> Vec<TaskId> {
        self.try_submit(tasks).unwrap().into_iter().map(|it| it.id).collect()
    }

    fn submit_one(&mut self, task: NewTask) -> TaskId {
        self.submit(vec![task])[0]
    }

    fn set(&mut self, settings: QueueSettings) {
        self.work.set_queue(&queue(), &settings);
    }

    fn claim_batch(
        &mut self,
        authority: ClaimAuthority,
        claim_requests: Vec<ClaimRequest>,
    ) -> ClaimBatchResponse {
        self.work.claim(
            &ClaimBatchRequest { queue: queue(), authority, requests: claim_requests },
            &self.elections,
            self.now,
        )
    }

    fn refusal(&mut self, authority: ClaimAuthority, claim_request: ClaimRequest) -> Option<ClaimRefusal> {
        match self.claim_batch(authority, vec![claim_request]) {
            ClaimBatchResponse::Served { .. } => None,
            ClaimBatchResponse::Refused(refusal) => Some(refusal),
        }
    }

    /// The tasks that one claim request gets, and when there may be more.
    fn claim_as(&mut self, claim_request: ClaimRequest) -> (Vec<ClaimedTask>, Option<Duration>) {
        match self.claim_batch(ClaimAuthority::Direct, vec![claim_request]) {
            ClaimBatchResponse::Served { mut tasks, next_in } => (tasks.remove(0), next_in),
            ClaimBatchResponse::Refused(refusal) => panic!("{refusal:?}"),
        }
    }

    fn claim(&mut self, limit: u32) -> Vec<ClaimedTask> {
        self.claim_as(claim_request(limit)).0
    }

    fn claim_one(&mut self) -> ClaimedTask {
        self.claim(1).pop().expect("there is a task to claim")
    }

    fn claimed_ids(&mut self, limit: u32) -> Vec<TaskId> {
        self.claim(limit).iter().map(|it| it.id).collect()
    }

    fn settle(&mut self, claim: &ClaimedTask, outcome: ClaimOutcome) -> SettleResult {
        let namespace = Name::default_namespace();
        let settlement = Settlement { namespace, task: claim.id, token: claim.token, outcome };
        self.work.settle(&[settlement], self.now)[0]
    }

    fn complete(&mut self, claim: &ClaimedTask) -> SettleResult {
        self.settle(claim, ClaimOutcome::Complete(None))
    }

    fn fail(&mut self, claim: &ClaimedTask, retry: bool, after_ms: u64) -> SettleResult {
        let after = Duration::from_millis(after_ms);
        self.settle(claim, ClaimOutcome::Fail { error: "boom".into(), retry, retry_in: after })
    }

    /// Claims the next task and makes it dead.
    fn kill_next(&mut self) -> TaskId {
        let claim = self.claim_one();
        assert_eq!(self.fail(&claim, false, 0), SettleResult::Applied(TaskState::Dead));
        claim.id
    }

    fn maintain_by(&mut self, clock_ms: Option<i64>, limit: u32) -> MaintenanceResponse {
        let (session, token) = self.leader.clone();
        self.work.maintain(&MaintenanceRequest { session, token, clock_ms, limit }, &self.elections, self.now)
    }

    fn maintain(&mut self) -> MaintenanceResponse {
        self.maintain_by(Some(i64::MAX), 1_000)
    }

    fn apply_action(&mut self, tasks: &[TaskId], order: TaskAction) -> Vec<TaskId> {
        self.work.apply_task_action(&Name::default_namespace(), tasks, order, self.now)
    }

    fn view(&self, id: TaskId) -> TaskView {
        self.work.task(&Name::default_namespace(), id).expect("the task is still stored")
    }

    fn state(&self, id: TaskId) -> TaskState {
        self.view(id).state
    }

    fn states(&self, ids: &[TaskId]) -> Vec<TaskState> {
        ids.iter().map(|id| self.state(*id)).collect()
    }

    /// Whether the action notifies a registered waiter of the queue.
    fn notifies<T>(&mut self, act: impl FnOnce(&mut TestQueue) -> T) -> bool {
        let waiter = self.session();
        self.work.register_queue_waiter(&waiter, &[queue()]);
        self.work.drain_notifications();
        act(self);
        self.work.drain_notifications().contains(&Notification::QueueReady(queue()))
    }
}

fn json(text: &str) -> RawJson {
    text.parse().unwrap()
}
