//! Tests of the SQLite store only: kernel locks, FIFOs and guards. No test depends on durations. To show that something does not happen,
//! a test requests it and the store must refuse.
#![cfg(feature = "sqlite")]

#[path = "sqlite/child.rs"]
mod child;
#[path = "sqlite/claims.rs"]
mod claims;
#[path = "sqlite/controls.rs"]
mod controls;
#[path = "sqlite/events.rs"]
mod events;
#[path = "sqlite/events_plans.rs"]
mod events_plans;
#[path = "sqlite/events_view.rs"]
mod events_view;
#[path = "sqlite/faults.rs"]
mod faults;
#[path = "sqlite/guards.rs"]
mod guards;
#[path = "sqlite/migrating.rs"]
mod migrating;
#[path = "sqlite/partition_leases.rs"]
mod partition_leases;
#[path = "sqlite/restores.rs"]
mod restores;
#[path = "sqlite/schedules.rs"]
mod schedules;
#[path = "sqlite/schedules_manual_fire.rs"]
mod schedules_manual_fire;
#[path = "sqlite/schedules_safety.rs"]
mod schedules_safety;

use std::sync::Arc;

use child::{Child, open, signal_to};
use tenure_core::port::{
    BoxNotificationSource, Candidacy, ElectionStore, ExpireSessionRequest, Notification, ReleaseLeaseRequest,
    StartReason, TakeLeaseRequest,
};
use tenure_core::{SessionId, Token};
use tenure_testkit::conformance::{TestSession, candidacy, election};

/// The request of a candidate that believes the holder to be dead.
async fn takeover_request(successor: &TestSession) -> TakeLeaseRequest {
    let bid = successor.take_request(&election("e"), 0).await;
    let expire =
        bid.holder.clone().map(|session| ExpireSessionRequest { session, epoch: 0, heartbeat_count: None });
    TakeLeaseRequest { expire, ..bid }
}

/// Take the lease of a dead holder.
async fn take_over_lease(successor: &TestSession) -> Token {
    if let Some(token) = successor.store.take_lease(&takeover_request(successor).await).await.unwrap() {
        return token;
    }
    // Opening a session also expires dead sessions. If that came first, the observation is outdated.
    let lease = successor.lease(&election("e"), 0).await;
    assert!(
        lease.holder.is_none() && lease.start_reason == StartReason::Takeover,
        "refused, but the holder did not expire: {lease:?}"
    );
    successor.take(&election("e"), 0).await
}

/// Wait until the death of the child is detected: by a watcher, or by a new session that expired it first. In the second case the
/// election changes, and the watcher finds the lock file removed.
async fn wait_for_death(scenario: &mut Scenario) {
    let session = SessionId::from_stored(scenario.session());
    loop {
        match scenario.notifications.next().await.expect("notifications") {
            Notification::SessionExpired(died) if died == session => return,
            Notification::ElectionChanged(key)
                if scenario.successor.view(&key).await.candidate(&session).is_none() =>
            {
                return;
            }
            _ => {}
        }
    }
}

struct Scenario {
    child: Child,
    output: String,
    successor: TestSession,
    notifications: BoxNotificationSource,
    _dir: tempfile::TempDir,
}

impl Scenario {
    /// The session of the child.
    fn session(&self) -> &str {
        self.output.split(' ').next().unwrap()
    }
}

/// A child in a role, and a candidate in this process that watches it.
async fn scenario(role: &str) -> Scenario {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let mut child = Child::spawn(role, &path);
    let output = child.read_line();
    let successor = TestSession::open(Arc::new(open(&path).await), "successor").await;
    successor.join(&election("e")).await;
    let notifications = successor.store.notifications();
    successor.store.watch_sessions(&[SessionId::from_stored(output.split(' ').next().unwrap())]);
    Scenario { child, output, successor, notifications, _dir: dir }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_of_a_killed_leader_is_taken_at_once() {
    let mut scenario = scenario("leader").await;
    assert_eq!(
        scenario.successor.store.take_lease(&takeover_request(&scenario.successor).await).await,
        Ok(None),
        "the leader is alive"
    );
    scenario.child.kill();
    wait_for_death(&mut scenario).await;
    let successor = &scenario.successor;
    let token = take_over_lease(successor).await;
    assert!(token > successor.store.term_history(&election("e"), 2).await.unwrap()[1].token);
    let lease = successor.lease(&election("e"), 0).await;
    assert_eq!(lease.start_reason, StartReason::Takeover);
    let left = std::fs::read_dir(scenario._dir.path().join("t.db.tenure")).unwrap().flatten();
    let names: Vec<_> = left.map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert!(!names.contains(&format!("{}.lock", scenario.output)), "the lock file is removed: {names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_leader_keeps_its_lease_until_it_expires() {
    let scenario = scenario("leader").await;
    let successor = &scenario.successor;
    scenario.child.signal("STOP");
    for _ in 0..20 {
        assert_eq!(
            successor.store.take_lease(&takeover_request(successor).await).await,
            Ok(None),
            "the claim alone does not count"
        );
    }
    let expire = takeover_request(successor).await.expire.unwrap();
    successor.store.expire_session(&expire).await.unwrap();
    assert!(successor.lease(&election("e"), 0).await.holder.is_some_and(|holder| holder.live));
    // It expires by its heartbeat count.
    let bid = successor.takeover_request(&election("e"), 0).await;
    assert!(successor.store.take_lease(&bid).await.unwrap().is_some());
    scenario.child.signal("CONT");
}

/// A session that a server opened for a client survives the server: the client continues through another server.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_an_owner_survives_the_server_process() {
    let mut scenario = scenario("server").await;
    let (successor, id) = (&scenario.successor, SessionId::from_stored(scenario.session()));
    scenario.child.kill();
    assert_eq!(
        successor.store.take_lease(&takeover_request(successor).await).await,
        Ok(None),
        "its death cannot be detected"
    );
    let expire = ExpireSessionRequest { session: id.clone(), epoch: 0, heartbeat_count: None };
    successor.store.expire_session(&expire).await.unwrap();
    assert!(successor.store.kernel_lock(&id).is_none());
    // Every new session expires dead sessions in the background. When it has expired a dead candidate, it has also checked the
    // session with an owner.
    let path = scenario._dir.path().join("t.db");
    let mut leader = Child::spawn("candidate", &path);
    let dead = SessionId::from_stored(&leader.read_line());
    leader.kill();
    let _next = TestSession::open(Arc::new(open(&path).await), "next").await;
    while successor.view(&election("e")).await.candidate(&dead).is_some() {
        tokio::task::yield_now().await;
    }
    // The client continues through another process.
    let other = TestSession { store: Arc::new(open(&path).await), id: id.clone(), epoch: 0 };
    assert!(other.is_live().await);
    drop(other);
    let holder = successor.lease(&election("e"), 0).await.holder.expect("it still holds the lease");
    assert_eq!(
        (holder.id, holder.live, holder.heartbeat_count, holder.owner.as_deref()),
        (id, true, 1, Some("ci"))
    );
    // It expires by its heartbeat count.
    let bid = successor.takeover_request(&election("e"), 0).await;
    assert!(successor.store.take_lease(&bid).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inherited_lock_keeps_the_session_of_a_killed_leader() {
    let mut scenario = scenario("leader with a watchdog").await;
    scenario.child.kill();
    for _ in 0..20 {
        assert_eq!(
            scenario.successor.store.take_lease(&takeover_request(&scenario.successor).await).await,
            Ok(None),
            "its watchdog is running"
        );
    }
    signal_to(scenario.output.split_once(' ').unwrap().1.parse().unwrap(), "KILL");
    wait_for_death(&mut scenario).await;
    take_over_lease(&scenario.successor).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_session_removes_dead_candidates() {
    let mut scenario = scenario("candidate").await;
    let dead = SessionId::from_stored(&scenario.output);
    assert!(scenario.successor.view(&election("e")).await.candidate(&dead).is_some());
    scenario.child.kill();
    let path = scenario._dir.path().join("t.db");
    let _next = TestSession::open(Arc::new(open(&path).await), "next").await;
    while scenario.successor.view(&election("e")).await.candidate(&dead).is_some() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_lock_file_a_session_expires_only_after_its_lease() {
    let mut scenario = scenario("leader").await;
    let successor = &scenario.successor;
    std::fs::remove_file(scenario._dir.path().join(format!("t.db.tenure/{}.lock", scenario.output))).unwrap();
    assert_eq!(successor.store.take_lease(&takeover_request(successor).await).await, Ok(None));
    scenario.child.kill();
    assert_eq!(
        successor.store.take_lease(&takeover_request(successor).await).await,
        Ok(None),
        "it expires only after its lease"
    );
    let bid = successor.takeover_request(&election("e"), 0).await;
    assert!(successor.store.take_lease(&bid).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_processes_open_a_new_file_at_once() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let path = dir.path().join(format!("t{round}.db"));
        let mut children: Vec<_> = (0..10).map(|_| Child::spawn("opener", &path)).collect();
        for child in &mut children {
            assert_eq!(child.read_line(), "ready");
        }
        children.iter_mut().for_each(|child| child.write_line("go"));
        for child in &mut children {
            assert_eq!(child.read_line(), "done");
        }
        let mode: (String,) =
            sqlx::query_as("PRAGMA journal_mode").fetch_one(open(&path).await.pool()).await.unwrap();
        assert_eq!(mode.0, "wal");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_notifies_another_process() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let mut listener = Child::spawn("listener", &path);
    assert_eq!(listener.read_line(), "listening");
    let (a, key) = (TestSession::open(Arc::new(open(&path).await), "a").await, election("e"));
    a.join(&key).await;
    let token = a.take(&key, 0).await;
    a.store
        .release_lease(&ReleaseLeaseRequest { leave: true, ..a.release_request(&key, 0, token) })
        .await
        .unwrap();
    assert_eq!(listener.read_line(), format!("{} released {token}", a.id));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_listener_does_not_block_writers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let mut listener = Child::spawn("listener", &path);
    assert_eq!(listener.read_line(), "listening");
    listener.signal("STOP");
    let (a, key) = (TestSession::open(Arc::new(open(&path).await), "a").await, election("e"));
    // More notifications than the FIFO holds.
    for _ in 0..1_500 {
        a.join(&key).await;
    }
    listener.signal("CONT");
}

#[tokio::test]
async fn two_paths_of_one_file_share_their_locks() {
    let dir = tempfile::tempdir().unwrap();
    let (path, link) = (dir.path().join("t.db"), dir.path().join("link.db"));
    let a = TestSession::open(Arc::new(open(&path).await), "a").await;
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let b = TestSession::open(Arc::new(open(&link).await), "b").await;
    b.store
        .expire_session(&ExpireSessionRequest { session: a.id.clone(), epoch: 0, heartbeat_count: None })
        .await
        .unwrap();
    assert!(a.is_live().await, "the lock is visible through the link");
    assert!(!dir.path().join("link.db.tenure").exists());
}

#[tokio::test]
async fn dropping_a_store_keeps_its_sessions() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let (a, key) = (TestSession::open(Arc::new(open(&path).await), "a").await, election("e"));
    a.join(&key).await;
    a.take(&key, 0).await;
    drop(a);
    let successor = TestSession::open(Arc::new(open(&path).await), "successor").await;
    successor.join(&key).await;
    assert_eq!(
        successor.store.take_lease(&takeover_request(&successor).await).await,
        Ok(None),
        "this process may still rely on the lease"
    );
}

#[tokio::test]
async fn the_candidate_status_view_shows_roles_and_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let (store, key) = (open(&dir.path().join("t.db")).await, election("e"));
    let records = async || -> Vec<(String, String, i64)> {
        let select = "SELECT name, role, token FROM tenure_candidate_status ORDER BY name";
        sqlx::query_as(select).fetch_all(store.pool()).await.unwrap()
    };
    let mut actors = Vec::new();
    for (id, observer) in [("a", false), ("b", false), ("c", true)] {
        let actor = TestSession::open(Arc::new(store.clone()), id).await;
        let candidacy = Candidacy { name: id.into(), observer, ..candidacy(&actor.id, &key) };
        actor.store.join_election(&candidacy).await.unwrap();
        actors.push(actor);
    }
    let row = |id: &str, status: &str, term: i64| (id.to_owned(), status.to_owned(), term);
    assert_eq!(
        records().await,
        [row("a", "candidate", 0), row("b", "candidate", 0), row("c", "observer", 0)]
    );
    actors[1].take(&key, 0).await;
    assert_eq!(records().await, [row("a", "follower", 1), row("b", "leader", 1), row("c", "observer", 1)]);
}

/// Print latencies: `cargo test --release --test sqlite -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures only"]
async fn latencies() {
    let dir =
        tempfile::tempdir_in(std::env::var_os("TENURE_TEST_DIRECTORY").unwrap_or("/var/tmp".into())).unwrap();
    let path = dir.path().join("t.db");
    let (a, key) = (TestSession::open(Arc::new(open(&path).await), "a").await, election("e"));
    a.join(&key).await;
    let (mut heartbeats, mut takes, mut releases, mut observations) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut notifications, mut notified) = (open(&path).await.notifications(), Vec::new());
    for _ in 0..1_000 {
        heartbeats.push(timed(a.store.heartbeat(&a.id)).await);
        observations.push(timed(a.store.observe(&a.id, &tenure_core::port::ObserveScope::Own)).await);
        let bid = a.take_request(&key, 0).await;
        takes.push(timed(a.store.take_lease(&bid)).await);
        let token = a.lease(&key, 0).await.token;
        let before = tenure::runtime::now();
        releases.push(timed(a.store.release_lease(&a.release_request(&key, 0, token))).await);
        while !matches!(notifications.next().await, Some(Notification::LeaseReleased { .. })) {}
        notified.push(tenure::runtime::now().since(before));
    }
    let mut crashes = Vec::new();
    let mut takeovers = Vec::new();
    for _ in 0..30 {
        let mut scenario = scenario("leader").await;
        let before = tenure::runtime::now();
        scenario.child.kill_now();
        wait_for_death(&mut scenario).await;
        crashes.push(tenure::runtime::now().since(before));
        take_over_lease(&scenario.successor).await;
        takeovers.push(tenure::runtime::now().since(before));
    }
    for (name, times) in [
        ("heartbeat", heartbeats),
        ("observe", observations),
        ("take", takes),
        ("release", releases),
        ("release until notified", notified),
        ("kill -9 until detected", crashes),
        ("kill -9 until taken over", takeovers),
    ] {
        print_percentiles(name, times);
    }
}

async fn timed<T>(call: impl Future<Output = T>) -> std::time::Duration {
    let before = tenure::runtime::now();
    call.await;
    tenure::runtime::now().since(before)
}

fn print_percentiles(name: &str, mut times: Vec<std::time::Duration>) {
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!("{name}: p50 {:?}, p95 {:?}, max {:?}", at(50), at(95), at(100));
}
