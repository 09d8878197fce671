//! Fixtures for tests of queues: a queue as one client uses it, and the maintenance leader.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::port::{
    BoxNotificationSource, ClaimAuthority, ClaimBatchRequest, ClaimBatchResponse, ClaimOutcome, ClaimRefusal,
    ClaimRequest, ClaimedTask, ErrorKind, MaintenanceRequest, MaintenanceResponse, NewTask, Notification,
    Pause, QueueKey, QueueSettings, QueueView, SettleResult, Settlement, Store, Submission, TaskId,
    TaskState, TaskView, WorkerProfile, broker_election,
};
use tenure_core::{Name, Token};

use super::{StoreUnderTest, TestSession};

/// An hour in milliseconds, longer than any test.
pub const HOUR_MS: u64 = 3_600_000;

/// A queue as one client uses it.
#[derive(Clone)]
pub struct TestQueue {
    /// The client.
    pub store: Arc<dyn Store>,
    /// The queue.
    pub key: QueueKey,
}

impl TestQueue {
    /// The queue `q` of the default namespace, through a new client.
    pub async fn of(subject: &StoreUnderTest) -> TestQueue {
        TestQueue { store: subject.client().await, key: queue("q") }
    }

    /// Another queue, through the same client.
    pub fn other_queue(&self, key: QueueKey) -> TestQueue {
        TestQueue { store: self.store.clone(), key }
    }

    /// The same queue, through a new client.
    pub async fn reopen(&self, subject: &StoreUnderTest) -> TestQueue {
        TestQueue { store: subject.client().await, key: self.key.clone() }
    }

    /// Submits tasks and returns their ids in order.
    pub async fn submit(&self, tasks: Vec<NewTask>) -> Vec<TaskId> {
        let submission = Submission { queue: self.key.clone(), tasks };
        let submitted = self.store.submit(&submission).await.expect("submit");
        submitted.into_iter().map(|submitted| submitted.id).collect()
    }

    /// Submits one task.
    pub async fn submit_one(&self, task: NewTask) -> TaskId {
        self.submit(vec![task]).await[0]
    }

    /// Submits tasks that must be rejected and returns the error.
    pub async fn submit_rejected(&self, tasks: Vec<NewTask>) -> String {
        let submission = Submission { queue: self.key.clone(), tasks };
        let error = self.store.submit(&submission).await.expect_err("it is rejected");
        assert_eq!(error.kind, ErrorKind::Request, "{error}");
        error.message
    }

    /// Claims with this authority.
    pub async fn claim_batch(
        &self,
        authority: ClaimAuthority,
        requests: Vec<ClaimRequest>,
    ) -> ClaimBatchResponse {
        let query = ClaimBatchRequest { queue: self.key.clone(), authority, requests };
        self.store.claim(&query).await.expect("claim")
    }

    /// Claims directly, with one request.
    pub async fn claim(&self, request: ClaimRequest) -> Vec<ClaimedTask> {
        only_request(self.claim_batch(ClaimAuthority::Direct, vec![request]).await)
    }

    /// Claims directly with one request that must be refused, and returns the reason.
    pub async fn claim_refused(&self, request: ClaimRequest) -> ClaimRefusal {
        refusal(self.claim_batch(ClaimAuthority::Direct, vec![request]).await)
    }

    /// Claims the only task.
    pub async fn claim_one(&self) -> ClaimedTask {
        let tasks = self.claim(claim_request("w", 100)).await;
        assert_eq!(tasks.len(), 1, "one task can be claimed: {tasks:?}");
        tasks.into_iter().next().expect("one")
    }

    /// Claims all tasks that a plain worker can claim and returns their ids.
    pub async fn claim_all(&self) -> Vec<TaskId> {
        ids(&self.claim(claim_request("w", 100)).await)
    }

    /// Settles a claim.
    pub async fn settle(&self, task: &ClaimedTask, outcome: ClaimOutcome) -> SettleResult {
        self.settle_as(task.id, task.token, outcome).await
    }

    /// Settles a claim under any token.
    pub async fn settle_as(&self, task: TaskId, token: Token, outcome: ClaimOutcome) -> SettleResult {
        let settlement = self.settlement(task, token, outcome);
        let settled = self.store.settle(&[settlement]).await.expect("settle");
        assert_eq!(settled.len(), 1);
        settled[0]
    }

    /// A settlement.
    pub fn settlement(&self, task: TaskId, token: Token, outcome: ClaimOutcome) -> Settlement {
        Settlement { namespace: self.key.namespace.clone(), task, token, outcome }
    }

    /// Completes a claim.
    pub async fn complete(&self, task: &ClaimedTask) {
        let settled = self.settle(task, ClaimOutcome::Complete(None)).await;
        assert_eq!(settled, SettleResult::Applied(TaskState::Completed));
    }

    /// Fails a claim permanently.
    pub async fn kill(&self, task: &ClaimedTask) {
        assert_eq!(
            self.settle(task, failure(false, Duration::ZERO)).await,
            SettleResult::Applied(TaskState::Dead)
        );
    }

    /// A task as this client sees it.
    pub async fn task(&self, id: TaskId) -> TaskView {
        self.store.task(&self.key.namespace, id).await.expect("task").expect("the task exists")
    }

    /// State of a task.
    pub async fn state(&self, id: TaskId) -> TaskState {
        self.task(id).await.state
    }

    /// States of tasks.
    pub async fn states(&self, ids: &[TaskId]) -> Vec<TaskState> {
        let mut states = Vec::new();
        for id in ids {
            states.push(self.state(*id).await);
        }
        states
    }

    /// The queue as this client sees it.
    pub async fn view(&self) -> QueueView {
        self.store.queue(&self.key).await.expect("queue").expect("the queue exists")
    }

    /// Changes the settings of the queue.
    pub async fn set(&self, settings: QueueSettings) {
        self.store.set_queue(&self.key, &settings).await.expect("set_queue");
    }

    /// Cancels or retries one task and returns the changed ones, ordered by id.
    pub async fn apply_action(&self, task: TaskId, order: tenure_core::port::TaskAction) -> Vec<TaskId> {
        let mut done =
            self.store.apply_task_action(&self.key.namespace, &[task], order).await.expect("order");
        done.sort_unstable();
        done
    }
}

/// The leader of the broker election, which runs maintenance and assigns the tasks of exclusive queues.
pub struct TestMaintenance {
    /// Its session and client.
    pub session: TestSession,
    /// Its token.
    pub token: Token,
}

impl TestMaintenance {
    /// Elects the first leader.
    pub async fn of(subject: &StoreUnderTest) -> TestMaintenance {
        TestMaintenance::by(subject.session("keeper").await).await
    }

    /// Takes the free lease.
    pub async fn by(session: TestSession) -> TestMaintenance {
        session.join(&broker_election()).await;
        let token = session.take(&broker_election(), 0).await;
        TestMaintenance { session, token }
    }

    /// Takes the lease over from a silent leader.
    pub async fn after(&self, subject: &StoreUnderTest) -> TestMaintenance {
        let session = subject.session("heir").await;
        session.join(&broker_election()).await;
        let bid = session.takeover_request(&broker_election(), 0).await;
        let token = session.store.take_lease(&bid).await.expect("take").expect("its heartbeat is unchanged");
        TestMaintenance { session, token }
    }

    /// Its authority.
    pub fn authority(&self) -> ClaimAuthority {
        ClaimAuthority::Leader { session: self.session.id.clone(), token: self.token }
    }

    /// A maintenance request by the store's own clock.
    pub fn request(&self) -> MaintenanceRequest {
        MaintenanceRequest {
            session: self.session.id.clone(),
            token: self.token,
            clock_ms: Some(i64::MAX),
            limit: 1000,
        }
    }

    /// Runs maintenance once.
    pub async fn run(&self) -> MaintenanceResponse {
        let response = self.session.store.maintain(&self.request()).await.expect("maintain");
        assert!(response.is_leader, "it leads");
        response
    }

    /// Runs maintenance until the sum of its results satisfies the condition. Expiries need up to a millisecond of
    /// store time.
    pub async fn run_until(&self, done: impl Fn(&MaintenanceResponse) -> bool) -> MaintenanceResponse {
        let mut sum = MaintenanceResponse::default();
        loop {
            let response = self.run().await;
            sum.recovered += response.recovered;
            sum.dead += response.dead;
            sum.promoted += response.promoted;
            sum.pruned += response.pruned;
            sum.released += response.released;
            if done(&sum) {
                return sum;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// A queue of the default namespace.
pub fn queue(name: &str) -> QueueKey {
    QueueKey::new(Name::default_namespace(), name.parse().expect("a name"))
}

/// A worker of all kinds without tags.
pub fn profile(name: &str) -> WorkerProfile {
    WorkerProfile { name: name.into(), ..WorkerProfile::default() }
}

/// A worker with tags.
pub fn tagged(name: &str, tags: &[&str]) -> WorkerProfile {
    WorkerProfile { tags: strings(tags), ..profile(name) }
}

/// A claim request of a plain worker with a timeout of one hour.
pub fn claim_request(worker: &str, limit: u32) -> ClaimRequest {
    claim_request_of(profile(worker), limit)
}

/// A claim request of a worker with a timeout of one hour.
pub fn claim_request_of(worker: WorkerProfile, limit: u32) -> ClaimRequest {
    ClaimRequest { worker, limit, session: None, claim_timeout_ms: Some(HOUR_MS) }
}

/// A claim request of a plain worker with a session.
pub fn claim_request_on(session: &TestSession, limit: u32) -> ClaimRequest {
    ClaimRequest { session: Some(session.id.clone()), claim_timeout_ms: None, ..claim_request("w", limit) }
}

/// This many tasks with default options.
pub fn ordinary(count: usize) -> Vec<NewTask> {
    vec![NewTask::default(); count]
}

/// A failure.
pub fn failure(retry: bool, after: Duration) -> ClaimOutcome {
    ClaimOutcome::Fail { error: "it broke".into(), retry, retry_in: after }
}

/// A pause.
pub fn pause() -> Pause {
    Pause { paused_by: "o'ps".into(), reason: "to \"see\"".into(), paused_at_ms: 5 }
}

/// The ids of claimed tasks.
pub fn ids(tasks: &[ClaimedTask]) -> Vec<TaskId> {
    tasks.iter().map(|task| task.id).collect()
}

/// Owned strings.
pub fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The tasks of each request.
pub fn served(reply: ClaimBatchResponse) -> Vec<Vec<ClaimedTask>> {
    match reply {
        ClaimBatchResponse::Served { tasks, .. } => tasks,
        ClaimBatchResponse::Refused(refusal) => panic!("refused: {refusal:?}"),
    }
}

/// The tasks of the only request.
pub fn only_request(reply: ClaimBatchResponse) -> Vec<ClaimedTask> {
    let lists = served(reply);
    assert_eq!(lists.len(), 1, "one list per request");
    lists.into_iter().next().expect("one request")
}

/// The reason for which nothing was claimed.
pub fn refusal(reply: ClaimBatchResponse) -> ClaimRefusal {
    match reply {
        ClaimBatchResponse::Refused(refusal) => refusal,
        ClaimBatchResponse::Served { tasks, .. } => panic!("served: {tasks:?}"),
    }
}

/// The notification source of a client, returned once the store delivers notifications to it.
pub async fn listening(session: &TestSession) -> BoxNotificationSource {
    let key = super::election("listening");
    let mut notifications = session.store.notifications();
    // Some stores need a moment until they listen, so send until a notification arrives.
    loop {
        session.join(&key).await;
        if tokio::time::timeout(Duration::from_millis(50), notifications.next()).await.is_ok() {
            return notifications;
        }
    }
}

/// Reads notifications until the given one arrives, and returns those before it.
pub async fn notifications_until(
    notifications: &mut BoxNotificationSource,
    expected: &Notification,
) -> Vec<Notification> {
    let mut before = Vec::new();
    loop {
        match notifications.next().await {
            Some(wake) if wake == *expected => return before,
            Some(wake) => before.push(wake),
            None => panic!("the notifications ended before {expected:?}"),
        }
    }
}
