//! Test data: queues, tasks, workers and pools in every state that a page can show.

use std::time::Duration;

use tenure::port::{
    AssignmentMode, BrokerFallback, ClaimAuthority, ClaimBatchRequest, ClaimBatchResponse, ClaimOutcome,
    ClaimRequest, ClaimedTask, NewResource, NewTask, NewWorker, ParentRef, Pause, PoolKey, PoolMatchRequest,
    PoolRequest, PoolRequestView, PoolSettings, PoolStore, QueueKey, QueueSettings, QueueView, RateLimit,
    Settlement, Submission, TaskAdmin, TaskFilter, TaskId, TaskState, TaskStore, TaskView, WorkerProfile,
};
use tenure::{Name, SessionId, Tenure};

use crate::fixture::Fixture;

pub(crate) fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub(crate) fn queue(text: &str) -> QueueKey {
    let (namespace, queue) = text.split_once('/').unwrap_or(("default", text));
    QueueKey::new(name(namespace), name(queue))
}

pub(crate) fn pool(text: &str) -> PoolKey {
    let QueueKey { namespace, name } = queue(text);
    PoolKey::new(namespace, name)
}

/// A worker profile with these tags.
fn profile(worker: &str, tags: &[&str]) -> WorkerProfile {
    WorkerProfile {
        name: worker.into(),
        task_kinds: Vec::new(),
        tags: tags.iter().map(|tag| (*tag).into()).collect(),
    }
}

fn about(kind: &str, payload: &str) -> NewTask {
    NewTask { payload: payload.parse().unwrap(), ..NewTask::new(kind) }
}

impl Fixture {
    pub(crate) async fn submit(&self, to: &str, tasks: Vec<NewTask>) -> Vec<TaskId> {
        let submitted = self.store.submit(&Submission { queue: queue(to), tasks }).await.unwrap();
        submitted.into_iter().map(|one| one.id).collect()
    }

    pub(crate) async fn claim(
        &self,
        from: &str,
        worker: &str,
        limit: u32,
        session: Option<SessionId>,
    ) -> Vec<ClaimedTask> {
        let claim_timeout_ms = session.is_none().then_some(600_000);
        let requests =
            vec![ClaimRequest { worker: profile(worker, &["eu"]), limit, session, claim_timeout_ms }];
        let request = ClaimBatchRequest { queue: queue(from), authority: ClaimAuthority::Direct, requests };
        match self.store.claim(&request).await.unwrap() {
            ClaimBatchResponse::Served { tasks, .. } => tasks.into_iter().flatten().collect(),
            ClaimBatchResponse::Refused(refusal) => panic!("{refusal:?}"),
        }
    }

    pub(crate) async fn settle(&self, of: &str, task: &ClaimedTask, outcome: ClaimOutcome) {
        let namespace = queue(of).namespace;
        let settlement = Settlement { namespace, task: task.id, token: task.token, outcome };
        self.store.settle(&[settlement]).await.unwrap();
    }

    pub(crate) async fn task(&self, namespace: &str, id: TaskId) -> TaskView {
        self.store.task(&name(namespace), id).await.unwrap().expect("a task")
    }

    pub(crate) async fn queue(&self, text: &str) -> QueueView {
        self.store.queue(&queue(text)).await.unwrap().expect("a queue")
    }

    /// The tasks of a queue in a state, newest first.
    pub(crate) async fn tasks(&self, of: &str, state: TaskState) -> Vec<TaskView> {
        let key = queue(of);
        let filter = TaskFilter {
            namespace: Some(key.namespace),
            queue: Some(key.name),
            states: vec![state],
            limit: 1000,
            ..TaskFilter::default()
        };
        self.store.tasks(&filter).await.unwrap()
    }

    /// Add a worker that stays online.
    async fn worker(
        &mut self,
        worker: &str,
        kinds: &[&str],
        tags: &[&str],
        queues: &[&str],
        capacity: u32,
    ) -> SessionId {
        let builder = Tenure::builder().store(self.store.clone()).name(worker).lease(Duration::from_secs(60));
        let tenure = builder.open().await.unwrap();
        let session = tenure.session().expect("a session");
        let text = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        let new = NewWorker {
            name: worker.into(),
            description: "tenure work".into(),
            tags: text(tags),
            task_kinds: text(kinds),
            queues: queues.iter().map(|queue| name(queue)).collect(),
            location: "rack 4, eu-1a".into(),
            capacity,
            session: Some(session.clone()),
        };
        self.store.register_worker(&Name::default_namespace(), &new).await.unwrap();
        self.keep(tenure);
        session
    }

    /// A server with queues, workers and pools in every state.
    pub(crate) async fn with_queues() -> Fixture {
        let mut fixture = Fixture::empty().await;
        let mail =
            fixture.worker("mail-1", &["welcome", "receipt"], &["eu", "smtp"], &["mail", "etl"], 8).await;
        fixture.worker("mail-2", &[], &["us"], &["mail"], 4).await;
        fixture.worker("render-cpu", &["frame"], &["cpu"], &["render"], 2).await;
        fixture.mail(&mail).await;
        fixture.graph().await;
        fixture.others().await;
        fixture.hosts(&mail).await;
        fixture
    }

    /// A queue with finished, dead, scheduled, ready, blocked and claimed tasks.
    async fn mail(&self, session: &SessionId) {
        for n in 0..60u64 {
            self.set_back(Duration::from_secs(4000 - n * 60));
            let kind = if n % 3 == 0 { "receipt" } else { "welcome" };
            self.submit("mail", vec![about(kind, r#"{"to":"ada"}"#)]).await;
            self.set_back(Duration::from_millis((4000 - n * 60) * 1000 - 40 * n));
            let claimed = self.claim("mail", "mail-1", 1, None).await;
            self.set_back(Duration::from_millis((4000 - n * 60) * 1000 - 40 * n - 300 - n * n * 7));
            let output = ClaimOutcome::Complete(Some(r#"{"sent":true}"#.parse().unwrap()));
            self.settle("mail", &claimed[0], output).await;
        }
        self.set_back(Duration::from_secs(900));
        let fragile = NewTask {
            max_attempts: 3,
            ..about("welcome", r#"{"to":"missing@example.org","template":"hello"}"#)
        };
        self.submit("mail", vec![fragile.clone(), fragile]).await;
        for attempt in 0..3u64 {
            self.set_back(Duration::from_secs(800 - attempt * 200));
            for task in self.claim("mail", "mail-1", 2, None).await {
                let error = format!("550 5.1.1 <missing@example.org>: user unknown (try {})", attempt + 1);
                self.settle(
                    "mail",
                    &task,
                    ClaimOutcome::Fail { error, retry: true, retry_in: Duration::from_secs(20) },
                )
                .await;
            }
        }
        self.set_back(Duration::from_secs(300));
        let later = self.store_ms() + 7_500_000;
        self.submit("mail", vec![NewTask { run_at_ms: Some(later), ..about("digest", r#"{"week":46}"#) }])
            .await;
        let ready = |n: u64| NewTask {
            priority: (n % 4) as i32,
            ..about("welcome", &format!(r#"{{"to":"user-{n}"}}"#))
        };
        self.set_back(Duration::from_secs(45));
        self.submit("mail", (0..70).map(ready).collect()).await;
        let keyed = NewTask {
            concurrency_key: Some("customer-7".into()),
            priority: 9,
            ..about("receipt", r#"{"order":4711}"#)
        };
        self.submit("mail", vec![keyed.clone(), keyed]).await;
        self.set_back(Duration::from_secs(12));
        let claimed = self.claim("mail", "mail-1", 5, Some(session.clone())).await;
        let progress =
            ClaimOutcome::Heartbeat { progress: Some("3 of 8 addresses <done>".into()), claim_timeout: None };
        self.settle("mail", &claimed[1], progress).await;
        self.set_back(Duration::ZERO);
    }

    /// Tasks with dependencies: `extract` is completed, `clean` is claimed, the others wait.
    async fn graph(&self) {
        let parent = |at: u32| ParentRef::Index(at);
        let tasks = vec![
            about("extract", r#"{"source":"s3://bucket/day=15","rows":[1,2,3],"big":12345678901234567890}"#),
            NewTask { parents: vec![parent(0)], ..about("clean", r#"{"strict":true}"#) },
            NewTask { parents: vec![parent(0)], ..about("enrich", "{}") },
            NewTask { parents: vec![parent(1), parent(2)], ..about("load", r#"{"table":"facts"}"#) },
            NewTask { parents: vec![parent(3)], ..about("report-to-the-board", "{}") },
            NewTask { parents: vec![parent(3)], ..about("notify", "{}") },
        ];
        self.set_back(Duration::from_secs(120));
        self.submit("etl", tasks).await;
        self.set_back(Duration::from_secs(110));
        let first = self.claim("etl", "mail-1", 1, None).await;
        self.set_back(Duration::from_secs(80));
        let output = r#"{"rows":[{"id":1,"name":"Ada <script>alert(1)</script>"},{"id":2,"name":"Grace"}],"took_ms":29871}"#;
        self.settle("etl", &first[0], ClaimOutcome::Complete(Some(output.parse().unwrap()))).await;
        self.set_back(Duration::from_secs(15));
        self.claim("etl", "mail-1", 1, None).await;
        self.set_back(Duration::ZERO);
    }

    async fn others(&self) {
        let exclusive = QueueSettings {
            mode: AssignmentMode::Exclusive,
            fallback: BrokerFallback::Distributed,
            require_approval: true,
            rate: Some(RateLimit { count: 10, per_ms: 60_000 }),
            max_claimed: Some(4),
            ..QueueSettings::default()
        };
        self.store.set_queue(&queue("render"), &exclusive).await.unwrap();
        let frame = |n: u32| NewTask {
            required_tags: vec!["gpu".into(), "cuda-12".into()],
            ..about("frame", &format!(r#"{{"frame":{n}}}"#))
        };
        self.submit("render", (0..12).map(frame).collect()).await;
        self.submit("prod/accounting", vec![about("book", "{}"), about("book", "{}")]).await;
        let pause = Pause {
            paused_by: "ada".into(),
            reason: "moving to the <new> database".into(),
            paused_at_ms: self.store_ms() - 240_000,
        };
        self.store.set_queue_paused(&name("prod"), Some(&name("accounting")), Some(&pause)).await.unwrap();
        self.store.set_queue(&queue("reports"), &QueueSettings::default()).await.unwrap();
        let gone = NewWorker {
            name: "mail-0".into(),
            description: "curl".into(),
            tags: Vec::new(),
            task_kinds: Vec::new(),
            queues: vec![name("mail")],
            location: String::new(),
            capacity: 0,
            session: None,
        };
        self.set_back(Duration::from_secs(7200));
        self.store.register_worker(&Name::default_namespace(), &gone).await.unwrap();
        self.set_back(Duration::ZERO);
        self.store.set_worker_approval(&Name::default_namespace(), "mail-1", Some("ada")).await.unwrap();
    }

    /// Request a resource and grant it if one is free.
    pub(crate) async fn request(&self, of: &str, request: PoolRequest) -> PoolRequestView {
        let key = pool(of);
        let created = self.store.create_pool_request(&key, &request).await.unwrap();
        let request = PoolMatchRequest {
            pool: key.clone(),
            authority: ClaimAuthority::Direct,
            request: Some(created.id),
        };
        self.store.match_pool(&request).await.unwrap().unwrap();
        self.store.pool_request(&key.namespace, created.id).await.unwrap().expect("a request")
    }

    async fn hosts(&self, session: &SessionId) {
        let hosts = pool("hosts");
        let settings = PoolSettings { cooldown_ms: 600_000, ..PoolSettings::default() };
        self.store.set_pool(&hosts, &settings).await.unwrap();
        let resource = |host: &str, tags: &[&str]| NewResource {
            name: name(host),
            tags: tags.iter().map(|tag| (*tag).into()).collect(),
            enabled: host != "host-5",
        };
        let all = [
            resource("host-1", &["ssd", "eu"]),
            resource("host-2", &["ssd", "us"]),
            resource("host-3", &["disk", "eu"]),
            resource("host-4", &["gpu"]),
            resource("host-5", &["ssd"]),
        ];
        self.store.add_resources(&hosts, &all).await.unwrap();
        self.store
            .add_resources(&pool("prod/licenses"), &[resource("seat-1", &[]), resource("seat-2", &[])])
            .await
            .unwrap();
        self.set_back(Duration::from_secs(400));
        self.request("hosts", pool_request("build-41", "ada", &["ssd"], None, Some(900_000))).await;
        self.request("hosts", pool_request("bench", "grace", &["ssd"], Some(session.clone()), None)).await;
        let tried = self.request("hosts", pool_request("try", "linus", &["gpu"], None, Some(900_000))).await;
        self.set_back(Duration::from_secs(60));
        let released = self.store.update_pool_request(
            &hosts.namespace,
            tried.id,
            "linus",
            tried.token,
            tenure::port::PoolRequestAction::Release,
        );
        assert!(released.await.unwrap());
        self.set_back(Duration::from_secs(200));
        self.request("hosts", pool_request("build-42", "ada", &["ssd"], None, Some(60_000))).await;
        self.request("hosts", pool_request("tape-1", "barbara", &["tape", "eu"], None, Some(60_000))).await;
        self.set_back(Duration::ZERO);
        self.request("hosts", pool_request("gpu-1", "edsger", &["gpu"], None, Some(60_000))).await;
    }
}

/// A request for a resource.
pub(crate) fn pool_request(
    key: &str,
    owner: &str,
    requires: &[&str],
    session: Option<SessionId>,
    claim_timeout_ms: Option<u64>,
) -> PoolRequest {
    PoolRequest {
        idempotency_key: key.into(),
        owner: owner.into(),
        required_tags: requires.iter().map(|tag| (*tag).into()).collect(),
        preferred_tags: vec!["eu".into()],
        base_priority: 100,
        session,
        claim_timeout_ms,
        max_wait_ms: None,
    }
}
