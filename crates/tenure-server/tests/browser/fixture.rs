//! The test fixture: a server on a memory store, with elections in every state that a page can show.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tenure::port::{
    AccessStore, Candidacy, Credential, CredentialVerifier, ElectionAdmin, ElectionStore, ElectionView,
    OpenSessionRequest, Pause, ReleaseLeaseRequest, StartReason, Store, TakeLeaseRequest, TakeoverMode,
};
use tenure::runtime::{Runtime, SystemRuntime};
use tenure::store::memory::MemoryStore;
use tenure::{BootInstant, ElectionKey, Elector, SessionId, Tenure, Token};
use tenure_server::Server;
use tenure_server::settings::{ListenAddress, Settings};
use tenure_testkit::PartitionableStore;

/// The system clocks with an adjustable wall clock, to create history.
#[derive(Clone, Default)]
pub(crate) struct Clock(Arc<AtomicI64>);

impl Clock {
    pub(crate) fn set_back(&self, by: Duration) {
        self.0.store(-(by.as_millis() as i64), Ordering::Relaxed);
    }
}

impl Runtime for Clock {
    fn now(&self) -> BootInstant {
        SystemRuntime.now()
    }

    fn wall_ms(&self) -> i64 {
        SystemRuntime.wall_ms() + self.0.load(Ordering::Relaxed)
    }

    fn sleep_until<'a>(&'a self, at: BootInstant) -> futures_core::future::BoxFuture<'a, ()> {
        SystemRuntime.sleep_until(at)
    }

    fn random(&self) -> u64 {
        SystemRuntime.random()
    }
}

/// A server, its store and its candidates.
pub(crate) struct Fixture {
    pub(crate) store: MemoryStore,
    /// The connection of the server to the store; tests can cut it.
    pub(crate) link: PartitionableStore<MemoryStore>,
    pub(crate) server: Server,
    pub(crate) url: String,
    clock: Clock,
    candidates: Vec<(Tenure, Elector)>,
    sessions: Vec<Tenure>,
}

pub(crate) fn key(text: &str) -> ElectionKey {
    let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
    ElectionKey::new(namespace.parse().unwrap(), name.parse().unwrap())
}

impl Fixture {
    /// A server on an empty store.
    pub(crate) async fn empty() -> Fixture {
        Fixture::with(|_| {}).await
    }

    /// A server without a scheduler.
    pub(crate) async fn without_scheduler() -> Fixture {
        Fixture::with(|settings| settings.scheduler = false).await
    }

    /// A server with changed settings.
    pub(crate) async fn with(change: impl FnOnce(&mut Settings)) -> Fixture {
        let clock = Clock::default();
        let store = MemoryStore::with_runtime(Arc::new(clock.clone()));
        let mut settings = Settings {
            listen: vec![ListenAddress::Tcp("127.0.0.1:0".into())],
            name: "tenure-a".into(),
            priority: 100,
            ..Settings::default()
        };
        change(&mut settings);
        let link = PartitionableStore::new(store.clone());
        let server = Server::start(settings, Arc::new(link.clone())).await.expect("a server");
        let url = server.addresses()[0].url();
        Fixture { store, link, server, url, clock, candidates: Vec::new(), sessions: Vec::new() }
    }

    /// Set the wall clock back.
    pub(crate) fn set_back(&self, by: Duration) {
        self.clock.set_back(by);
    }

    /// The store's wall clock.
    pub(crate) fn store_ms(&self) -> i64 {
        self.clock.wall_ms()
    }

    /// Keep a session open until the end of the test.
    pub(crate) fn keep(&mut self, tenure: Tenure) {
        self.sessions.push(tenure);
    }

    /// Create an access token with these grants.
    pub(crate) async fn token(&self, name: &str, grants: &[&str]) -> String {
        let token = tenure_server::access::access_token::AccessToken::generate(tenure::runtime::random);
        let credential = Credential {
            id: token.id.clone(),
            name: name.into(),
            verifier: CredentialVerifier::AccessToken { digest: token.digest.clone() },
            grants: grants.iter().map(|grant| grant.parse().unwrap()).collect(),
            created_at_ms: tenure::runtime::wall_ms(),
            created_by: "test".into(),
            expires_at_ms: None,
            revoked_at_ms: None,
        };
        self.store.put_credential(&credential).await.unwrap();
        token.text
    }

    /// Add a candidate that stays until the end of the test.
    pub(crate) async fn join(&mut self, election: &str, id: &str, priority: i32) -> &mut Fixture {
        self.join_with(election, id, priority, |elector| elector).await
    }

    /// Add a candidate with other options.
    pub(crate) async fn join_with(
        &mut self,
        election: &str,
        id: &str,
        priority: i32,
        how: impl FnOnce(tenure::ElectorBuilder) -> tenure::ElectorBuilder,
    ) -> &mut Fixture {
        let key = key(election);
        let builder = Tenure::builder().store(self.store.clone()).name(id).lease(Duration::from_secs(9));
        let tenure = builder.open().await.unwrap();
        let elector = tenure.elector(key.name.as_str()).namespace(key.namespace.as_str()).candidate_name(id);
        let elector = how(elector.priority(priority)).start().await.unwrap();
        self.candidates.push((tenure, elector));
        self
    }

    /// Add a leader with a long lease. Returns its session and token.
    pub(crate) async fn add_leader(&mut self, election: &str, id: &str) -> (SessionId, Token) {
        let key = key(election);
        let builder = Tenure::builder().store(self.store.clone()).name(id).lease(Duration::from_secs(60));
        let tenure = builder.open().await.unwrap();
        let elector = tenure.elector(key.name.as_str()).namespace(key.namespace.as_str()).candidate_name(id);
        let elector = elector.start().await.unwrap();
        let token = elector.elected().await.unwrap().token();
        let session = tenure.session().expect("a session");
        self.candidates.push((tenure, elector));
        (session, token)
    }

    /// Read an election from the store.
    pub(crate) async fn view(&self, election: &str) -> ElectionView {
        self.store.election(&key(election)).await.unwrap().expect(election)
    }

    /// Wait until an election matches.
    pub(crate) async fn until(&self, election: &str, what: impl Fn(&ElectionView) -> bool) -> ElectionView {
        let deadline = tenure::runtime::now() + Duration::from_secs(60);
        loop {
            let view = self.view(election).await;
            if what(&view) {
                return view;
            }
            assert!(tenure::runtime::now() < deadline, "no match: {view:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Wait until a candidate leads.
    pub(crate) async fn until_led_by(&self, election: &str, id: &str) -> ElectionView {
        self.until(election, |view| tenure::leaders(view).iter().any(|leader| leader.name == id)).await
    }

    /// Create past terms: candidate, minutes and end reason.
    pub(crate) async fn add_past_terms(&self, election: &str, terms: &[(&str, u64, &str)]) {
        let election = key(election);
        let mut left: u64 = terms.iter().map(|(_, minutes, _)| minutes).sum();
        for (id, minutes, end) in terms {
            self.clock.set_back(Duration::from_secs(left * 60));
            left -= minutes;
            let session = SessionId::from_stored(&format!("{:032x}", tenure::runtime::random()));
            let opened = OpenSessionRequest {
                id: session.clone(),
                name: (*id).into(),
                lease: Duration::from_secs(9),
                takeover: TakeoverMode::Lease,
                owner: None,
            };
            self.store.open_session(&opened).await.unwrap();
            self.store.join_election(&candidacy(&session, &election, id)).await.unwrap();
            let token = self.take(&session, &election).await;
            // End before the next term starts, so that there is a gap.
            self.clock.set_back(Duration::from_secs(left * 60 + minutes * 4));
            match *end {
                "expired" => {
                    let expire = tenure::port::ExpireSessionRequest {
                        session: session.clone(),
                        epoch: 0,
                        heartbeat_count: None,
                    };
                    self.store.expire_session(&expire).await.unwrap();
                }
                _ => {
                    let release = ReleaseLeaseRequest {
                        session: session.clone(),
                        election: election.clone(),
                        slot: 0,
                        token,
                        successor: None,
                        start_reason: StartReason::from_name(end),
                        leave: true,
                    };
                    self.store.release_lease(&release).await.unwrap();
                }
            }
            self.store.end_session(&session).await.unwrap();
        }
        self.clock.set_back(Duration::ZERO);
    }

    async fn take(&self, session: &SessionId, election: &ElectionKey) -> Token {
        let view = self.store.election(election).await.unwrap().unwrap();
        let lease = &view.leases[0];
        let take = TakeLeaseRequest {
            session: session.clone(),
            epoch: 0,
            election: election.clone(),
            slot: lease.slot,
            token: lease.token,
            holder: lease.holder.as_ref().map(|holder| holder.id.clone()),
            expire: None,
        };
        self.store.take_lease(&take).await.unwrap().expect("a free lease")
    }

    /// Add a leader that sends no heartbeats.
    pub(crate) async fn add_unresponsive_leader(&self, election: &str, id: &str) {
        let election = key(election);
        let session = SessionId::from_stored(&format!("{:032x}", tenure::runtime::random()));
        let opened = OpenSessionRequest {
            id: session.clone(),
            name: id.into(),
            lease: Duration::from_millis(300),
            takeover: TakeoverMode::Lease,
            owner: Some("billing".into()),
        };
        self.store.open_session(&opened).await.unwrap();
        self.store.join_election(&candidacy(&session, &election, id)).await.unwrap();
        self.take(&session, &election).await;
    }

    /// A server with elections in every state.
    pub(crate) async fn with_elections() -> Fixture {
        let mut fixture = Fixture::empty().await;
        let past = [
            ("node-a", 34, "release"),
            ("node-b", 12, "expired"),
            ("node-a", 9, "transfer"),
            ("node-c", 21, "release"),
            ("node-b", 45, "expired"),
            ("node-a", 6, "resign"),
            ("node-c", 18, "release"),
        ];
        fixture.add_past_terms("nightly", &past).await;
        let about = |zone: &'static str| {
            move |elector: tenure::ElectorBuilder| elector.metadata("zone", zone).metadata("version", "4.2.1")
        };
        fixture.join_with("nightly", "node-a", 100, about("eu-1a")).await;
        fixture.until_led_by("nightly", "node-a").await;
        fixture.join_with("nightly", "node-b", 50, about("eu-1b")).await;
        fixture.join_with("nightly", "node-c", 50, about("eu-1c")).await;
        fixture.join_with("nightly", "watcher", 0, |elector| elector.observer(true)).await;

        for n in 1..=5 {
            let able = |elector: tenure::ElectorBuilder| elector.slots(3).required_capabilities(["gpu"]);
            let gpu = move |elector| if n == 4 { able(elector) } else { able(elector).capabilities(["gpu"]) };
            fixture.join_with("prod/render-farm", &format!("render-{n}"), 10 * n, gpu).await;
        }
        fixture.until("prod/render-farm", |view| view.holders().count() == 3).await;

        fixture.join("prod/accounting", "accounting-1", 0).await;
        fixture.until_led_by("prod/accounting", "accounting-1").await;
        let pause =
            Pause { paused_by: "ada".into(), reason: "moving to the new database".into(), paused_at_ms: 0 };
        let pause = Pause { paused_at_ms: tenure::runtime::wall_ms() - 240_000, ..pause };
        fixture.store.set_election_paused(&key("prod/accounting"), Some(&pause)).await.unwrap();
        fixture.until("prod/accounting", |view| view.holders().next().is_none()).await;

        fixture.join("cache-warmer", "warmer-eu", 0).await;
        fixture.until_led_by("cache-warmer", "warmer-eu").await;
        fixture.add_unresponsive_leader("staging/import", "import-7").await;
        fixture.add_past_terms("staging/clean-up", &[("sweeper", 3, "release")]).await;
        for (name, priority) in [("tenure-b", 50), ("tenure-c", 10)] {
            let address = format!("http://127.0.0.1:{}", 8368 + priority);
            let how = move |elector: tenure::ElectorBuilder| {
                elector.metadata("address", address).metadata("version", env!("CARGO_PKG_VERSION"))
            };
            fixture.join_with("tenure/coordinator", name, priority, how).await;
        }
        fixture
    }

    /// The audit log, newest first.
    pub(crate) async fn audit_log(&self) -> Vec<String> {
        let store: &dyn Store = &self.store;
        let entries = store.audit_entries(None, None, 50).await.unwrap();
        entries
            .iter()
            .map(|entry| format!("{} {} {} {}", entry.principal, entry.action, entry.target, entry.detail))
            .collect()
    }
}

fn candidacy(session: &SessionId, election: &ElectionKey, id: &str) -> Candidacy {
    Candidacy {
        session: session.clone(),
        election: election.clone(),
        name: id.into(),
        priority: 0,
        observer: false,
        capabilities: Vec::new(),
        required_capabilities: Vec::new(),
        slots: 1,
        metadata: Default::default(),
    }
}
