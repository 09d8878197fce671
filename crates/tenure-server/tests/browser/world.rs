//! A server on a store in memory, with elections in every state that a page can show.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tenure::backend::memory::Memory;
use tenure::port::{
    Backend, Candidacy, Credential, Directory, ElectionView, NewSession, Office, Pause, Proof, Release,
    Store, Take, Takeover, Via,
};
use tenure::runtime::{Runtime, System};
use tenure::{ElectionKey, Elector, Moment, SessionId, Tenure, Token};
use tenure_server::Server;
use tenure_server::settings::{Address, Settings};
use tenure_testkit::Cuttable;

/// The machine's clocks, but for a wall clock that can be set back: to live through hours that are over.
#[derive(Clone, Default)]
pub(crate) struct Clock(Arc<AtomicI64>);

impl Clock {
    pub(crate) fn set_back(&self, by: Duration) {
        self.0.store(-(by.as_millis() as i64), Ordering::Relaxed);
    }
}

impl Runtime for Clock {
    fn now(&self) -> Moment {
        System.now()
    }

    fn wall_ms(&self) -> i64 {
        System.wall_ms() + self.0.load(Ordering::Relaxed)
    }

    fn sleep_until<'a>(&'a self, at: Moment) -> futures_core::future::BoxFuture<'a, ()> {
        System.sleep_until(at)
    }

    fn random(&self) -> u64 {
        System.random()
    }
}

/// A server, its store, and whoever stands.
pub(crate) struct World {
    pub(crate) store: Memory,
    /// The server's way to the store. It can be cut.
    pub(crate) link: Cuttable<Memory>,
    pub(crate) server: Server,
    pub(crate) url: String,
    clock: Clock,
    standing: Vec<(Tenure, Elector)>,
    sessions: Vec<Tenure>,
}

pub(crate) fn key(text: &str) -> ElectionKey {
    let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
    ElectionKey::new(namespace.parse().unwrap(), name.parse().unwrap())
}

impl World {
    /// A server and nothing else.
    pub(crate) async fn empty() -> World {
        World::with(|_| {}).await
    }

    /// A server that fires nothing by itself.
    pub(crate) async fn quiet() -> World {
        World::with(|settings| settings.scheduler = false).await
    }

    /// A server that is set up in another way.
    pub(crate) async fn with(change: impl FnOnce(&mut Settings)) -> World {
        let clock = Clock::default();
        let store = Memory::with_runtime(Arc::new(clock.clone()));
        let mut settings = Settings {
            listen: vec![Address::Tcp("127.0.0.1:0".into())],
            name: "tenure-a".into(),
            priority: 100,
            ..Settings::default()
        };
        change(&mut settings);
        let link = Cuttable::new(store.clone());
        let server = Server::start(settings, Arc::new(link.clone())).await.expect("a server");
        let url = server.addresses()[0].url();
        World { store, link, server, url, clock, standing: Vec::new(), sessions: Vec::new() }
    }

    /// Lives through a time that is over.
    pub(crate) fn set_back(&self, by: Duration) {
        self.clock.set_back(by);
    }

    /// The store's wall clock.
    pub(crate) fn store_ms(&self) -> i64 {
        self.clock.wall_ms()
    }

    /// Keeps a session alive.
    pub(crate) fn keep(&mut self, tenure: Tenure) {
        self.sessions.push(tenure);
    }

    /// A token with these grants, as `tenure token create` makes it.
    pub(crate) async fn token(&self, name: &str, grants: &[&str]) -> String {
        let token = tenure_server::access::token::Token::generate(tenure::runtime::random);
        let credential = Credential {
            id: token.id.clone(),
            name: name.into(),
            proof: Proof::Token { digest: token.digest.clone() },
            grants: grants.iter().map(|grant| grant.parse().unwrap()).collect(),
            created_at_ms: tenure::runtime::wall_ms(),
            created_by: "test".into(),
            expires_at_ms: None,
            revoked_at_ms: None,
        };
        self.store.put_credential(&credential).await.unwrap();
        token.text
    }

    /// Somebody stands, and goes on to.
    pub(crate) async fn stand(&mut self, election: &str, id: &str, priority: i32) -> &mut World {
        self.stand_with(election, id, priority, |elector| elector).await
    }

    /// Somebody stands in another way.
    pub(crate) async fn stand_with(
        &mut self,
        election: &str,
        id: &str,
        priority: i32,
        how: impl FnOnce(tenure::ElectorBuilder) -> tenure::ElectorBuilder,
    ) -> &mut World {
        let key = key(election);
        let builder = Tenure::builder().store(self.store.clone()).name(id).lease(Duration::from_secs(9));
        let tenure = builder.open().await.unwrap();
        let elector = tenure.elector(key.name.as_str()).namespace(key.namespace.as_str()).id(id);
        let elector = how(elector.priority(priority)).start().await.unwrap();
        self.standing.push((tenure, elector));
        self
    }

    /// Somebody leads, and goes on to, however slow this machine is: its session, and its token.
    pub(crate) async fn leads(&mut self, election: &str, id: &str) -> (SessionId, Token) {
        let key = key(election);
        let builder = Tenure::builder().store(self.store.clone()).name(id).lease(Duration::from_secs(60));
        let tenure = builder.open().await.unwrap();
        let elector = tenure.elector(key.name.as_str()).namespace(key.namespace.as_str()).id(id);
        let elector = elector.start().await.unwrap();
        let token = elector.elected().await.unwrap().token();
        let session = tenure.session().expect("a session");
        self.standing.push((tenure, elector));
        (session, token)
    }

    /// The election as the store has it.
    pub(crate) async fn view(&self, election: &str) -> ElectionView {
        self.store.election(&key(election)).await.unwrap().expect(election)
    }

    /// Waits until the store says so.
    pub(crate) async fn until(&self, election: &str, what: impl Fn(&ElectionView) -> bool) -> ElectionView {
        let deadline = tenure::runtime::now() + Duration::from_secs(60);
        loop {
            let view = self.view(election).await;
            if what(&view) {
                return view;
            }
            assert!(tenure::runtime::now() < deadline, "never so: {view:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until this one leads.
    pub(crate) async fn led_by(&self, election: &str, id: &str) -> ElectionView {
        self.until(election, |view| tenure::leaders(view).iter().any(|leader| leader.id == id)).await
    }

    /// Terms of hours that are over: who led, for how many minutes, and how it ended.
    pub(crate) async fn past(&self, election: &str, terms: &[(&str, u64, &str)]) {
        let election = key(election);
        let mut left: u64 = terms.iter().map(|(_, minutes, _)| minutes).sum();
        for (id, minutes, end) in terms {
            self.clock.set_back(Duration::from_secs(left * 60));
            left -= minutes;
            let session = SessionId::from_stored(&format!("{:032x}", tenure::runtime::random()));
            let opened = NewSession {
                id: session.clone(),
                name: (*id).into(),
                lease: Duration::from_secs(9),
                takeover: Takeover::Lease,
                owner: None,
            };
            self.store.open(&opened).await.unwrap();
            self.store.join(&candidacy(&session, &election, id)).await.unwrap();
            let token = self.take(&session, &election).await;
            // A little before the next one begins, so that there is a gap.
            self.clock.set_back(Duration::from_secs(left * 60 + minutes * 4));
            match *end {
                "expired" => {
                    let expire = tenure::port::Expire { session: session.clone(), epoch: 0, beat: None };
                    self.store.expire(&expire).await.unwrap();
                }
                _ => {
                    let release = Release {
                        session: session.clone(),
                        election: election.clone(),
                        slot: 0,
                        token,
                        successor: None,
                        via: Via::from_word(end),
                        leave: true,
                    };
                    self.store.release(&release).await.unwrap();
                }
            }
            self.store.end(&session).await.unwrap();
        }
        self.clock.set_back(Duration::ZERO);
    }

    async fn take(&self, session: &SessionId, election: &ElectionKey) -> Token {
        let view = self.store.election(election).await.unwrap().unwrap();
        let lease = &view.leases[0];
        let take = Take {
            session: session.clone(),
            epoch: 0,
            election: election.clone(),
            slot: lease.slot,
            token: lease.token,
            holder: lease.holder.as_ref().map(|holder| holder.id.clone()),
            expire: None,
        };
        self.store.take(&take).await.unwrap().expect("a free lease")
    }

    /// A leader that never beats again.
    pub(crate) async fn silent(&self, election: &str, id: &str) {
        let election = key(election);
        let session = SessionId::from_stored(&format!("{:032x}", tenure::runtime::random()));
        let opened = NewSession {
            id: session.clone(),
            name: id.into(),
            lease: Duration::from_millis(300),
            takeover: Takeover::Lease,
            owner: Some("billing".into()),
        };
        self.store.open(&opened).await.unwrap();
        self.store.join(&candidacy(&session, &election, id)).await.unwrap();
        self.take(&session, &election).await;
    }

    /// Elections in every state.
    pub(crate) async fn full() -> World {
        let mut world = World::empty().await;
        let past = [
            ("node-a", 34, "release"),
            ("node-b", 12, "expired"),
            ("node-a", 9, "transfer"),
            ("node-c", 21, "release"),
            ("node-b", 45, "expired"),
            ("node-a", 6, "resign"),
            ("node-c", 18, "release"),
        ];
        world.past("nightly", &past).await;
        let about = |zone: &'static str| {
            move |elector: tenure::ElectorBuilder| elector.metadata("zone", zone).metadata("version", "4.2.1")
        };
        world.stand_with("nightly", "node-a", 100, about("eu-1a")).await;
        world.led_by("nightly", "node-a").await;
        world.stand_with("nightly", "node-b", 50, about("eu-1b")).await;
        world.stand_with("nightly", "node-c", 50, about("eu-1c")).await;
        world.stand_with("nightly", "watcher", 0, |elector| elector.observer(true)).await;

        for n in 1..=5 {
            let able = |elector: tenure::ElectorBuilder| elector.slots(3).requires(["gpu"]);
            let gpu = move |elector| if n == 4 { able(elector) } else { able(elector).capabilities(["gpu"]) };
            world.stand_with("prod/render-farm", &format!("render-{n}"), 10 * n, gpu).await;
        }
        world.until("prod/render-farm", |view| view.holders().count() == 3).await;

        world.stand("prod/ledger", "ledger-1", 0).await;
        world.led_by("prod/ledger", "ledger-1").await;
        let pause = Pause { by: "ada".into(), reason: "moving to the new database".into(), at_ms: 0 };
        let pause = Pause { at_ms: tenure::runtime::wall_ms() - 240_000, ..pause };
        world.store.set_paused(&key("prod/ledger"), Some(&pause)).await.unwrap();
        world.until("prod/ledger", |view| view.holders().next().is_none()).await;

        world.stand("cache-warmer", "warmer-eu", 0).await;
        world.led_by("cache-warmer", "warmer-eu").await;
        world.silent("staging/import", "import-7").await;
        world.past("staging/clean-up", &[("sweeper", 3, "release")]).await;
        for (name, priority) in [("tenure-b", 50), ("tenure-c", 10)] {
            let address = format!("http://127.0.0.1:{}", 8368 + priority);
            let how = move |elector: tenure::ElectorBuilder| {
                elector.metadata("address", address).metadata("version", env!("CARGO_PKG_VERSION"))
            };
            world.stand_with("tenure/servers", name, priority, how).await;
        }
        world
    }

    /// The audit, the newest first.
    pub(crate) async fn deeds(&self) -> Vec<String> {
        let store: &dyn Backend = &self.store;
        let deeds = store.deeds(None, None, 50).await.unwrap();
        deeds
            .iter()
            .map(|deed| format!("{} {} {} {}", deed.principal, deed.action, deed.target, deed.detail))
            .collect()
    }
}

fn candidacy(session: &SessionId, election: &ElectionKey, id: &str) -> Candidacy {
    Candidacy {
        session: session.clone(),
        election: election.clone(),
        id: id.into(),
        priority: 0,
        observer: false,
        capabilities: Vec::new(),
        requires: Vec::new(),
        slots: 1,
        metadata: Default::default(),
    }
}
