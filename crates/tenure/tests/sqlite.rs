//! What only the SQLite backend does: kernel locks, FIFOs, guards. No test here depends on how long something takes; where
//! something must *not* happen, the store is asked to do it and must refuse.
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
#[path = "sqlite/events_shares.rs"]
mod events_shares;
#[path = "sqlite/events_view.rs"]
mod events_view;
#[path = "sqlite/faults.rs"]
mod faults;
#[path = "sqlite/guards.rs"]
mod guards;
#[path = "sqlite/migrating.rs"]
mod migrating;
#[path = "sqlite/restores.rs"]
mod restores;
#[path = "sqlite/schedules.rs"]
mod schedules;
#[path = "sqlite/schedules_hand.rs"]
mod schedules_hand;
#[path = "sqlite/schedules_safety.rs"]
mod schedules_safety;

use std::sync::Arc;

use child::{Child, open, signal_to};
use tenure_core::port::{Candidacy, Expire, Release, Store, Take, Via, Wake, Wakes};
use tenure_core::{SessionId, Token};
use tenure_testkit::conformance::{Actor, candidacy, election};

/// What a candidate says that was told of the holder's death.
async fn inherit(heir: &Actor) -> Take {
    let bid = heir.bid(&election("e"), 0).await;
    let expire = bid.holder.clone().map(|session| Expire { session, epoch: 0, beat: None });
    Take { expire, ..bid }
}

/// Takes the lease of a holder that is known dead.
async fn succeed(heir: &Actor) -> Token {
    if let Some(token) = heir.store.take(&inherit(heir).await).await.unwrap() {
        return token;
    }
    // A session that opens looks for the dead too, and ours may have been quicker: then what we saw is no longer so.
    let lease = heir.lease(&election("e"), 0).await;
    assert!(
        lease.holder.is_none() && lease.via == Via::Takeover,
        "refused, and not expired either: {lease:?}"
    );
    heir.take(&election("e"), 0).await
}

/// Waits until a session is known dead: a watcher says so, or the look for the dead that every new session begins with
/// was quicker and has expired it. Then its election has changed, and the watcher finds its lock file gone.
async fn death(scene: &mut Scene) {
    let session = SessionId::from_stored(scene.session());
    loop {
        match scene.hints.next().await.expect("hints") {
            Wake::Died(died) if died == session => return,
            Wake::Changed(key) if scene.heir.view(&key).await.candidate(&session).is_none() => return,
            _ => {}
        }
    }
}

struct Scene {
    child: Child,
    said: String,
    heir: Actor,
    hints: Wakes,
    _dir: tempfile::TempDir,
}

impl Scene {
    /// The child's session.
    fn session(&self) -> &str {
        self.said.split(' ').next().unwrap()
    }
}

/// A child that plays a part, and a candidate here that watches it.
async fn scene(part: &str) -> Scene {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let mut child = Child::play(part, &path);
    let said = child.says();
    let heir = Actor::open(Arc::new(open(&path).await), "heir").await;
    heir.stand(&election("e")).await;
    let hints = heir.store.wakes();
    heir.store.watch(&[SessionId::from_stored(said.split(' ').next().unwrap())]);
    Scene { child, said, heir, hints, _dir: dir }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_is_known_dead_and_its_lease_taken_at_once() {
    let mut scene = scene("leader").await;
    assert_eq!(scene.heir.store.take(&inherit(&scene.heir).await).await, Ok(None), "it lives");
    scene.child.kill();
    death(&mut scene).await;
    let heir = &scene.heir;
    let token = succeed(heir).await;
    assert!(token > heir.store.history(&election("e"), 2).await.unwrap()[1].token);
    let lease = heir.lease(&election("e"), 0).await;
    assert_eq!(lease.via, Via::Takeover);
    let left = std::fs::read_dir(scene._dir.path().join("t.db.tenure")).unwrap().flatten();
    let names: Vec<_> = left.map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert!(!names.contains(&format!("{}.lock", scene.said)), "its lock file is cleared away: {names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_leader_is_not_dead() {
    let scene = scene("leader").await;
    let heir = &scene.heir;
    scene.child.signal("STOP");
    for _ in 0..20 {
        assert_eq!(heir.store.take(&inherit(heir).await).await, Ok(None), "the hint alone is not believed");
    }
    let expire = inherit(heir).await.expire.unwrap();
    heir.store.expire(&expire).await.unwrap();
    assert!(heir.lease(&election("e"), 0).await.holder.is_some_and(|holder| holder.live));
    // By its beat it can be waited out.
    let bid = heir.overbid(&election("e"), 0).await;
    assert!(heir.store.take(&bid).await.unwrap().is_some());
    scene.child.signal("CONT");
}

/// What a server opened for somebody does not die with the server: its owner goes on through another.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_an_owner_outlives_the_process_that_opened_it() {
    let mut scene = scene("server").await;
    let (heir, id) = (&scene.heir, SessionId::from_stored(scene.session()));
    scene.child.kill();
    assert_eq!(heir.store.take(&inherit(heir).await).await, Ok(None), "nobody knows that it is dead");
    let expire = Expire { session: id.clone(), epoch: 0, beat: None };
    heir.store.expire(&expire).await.unwrap();
    assert!(heir.store.kernel_lock(&id).is_none());
    // Every new session begins with a look for the dead. It runs on its own, so one that is known dead and one that is
    // owned are put before it: when the former is gone, the latter was passed over.
    let path = scene._dir.path().join("t.db");
    let mut leader = Child::play("candidate", &path);
    let dead = SessionId::from_stored(&leader.says());
    leader.kill();
    let _next = Actor::open(Arc::new(open(&path).await), "next").await;
    while heir.view(&election("e")).await.candidate(&dead).is_some() {
        tokio::task::yield_now().await;
    }
    // The owner, through another process.
    let other = Actor { store: Arc::new(open(&path).await), id: id.clone(), epoch: 0 };
    assert!(other.lives().await);
    drop(other);
    let holder = heir.lease(&election("e"), 0).await.holder.expect("it holds what it held");
    assert_eq!((holder.id, holder.live, holder.beat, holder.owner.as_deref()), (id, true, 1, Some("ci")));
    // By its beat it can be waited out.
    let bid = heir.overbid(&election("e"), 0).await;
    assert!(heir.store.take(&bid).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_a_child_inherited_keeps_a_killed_leader_alive() {
    let mut scene = scene("leader with a watchdog").await;
    scene.child.kill();
    for _ in 0..20 {
        assert_eq!(scene.heir.store.take(&inherit(&scene.heir).await).await, Ok(None), "its watchdog runs");
    }
    signal_to(scene.said.split_once(' ').unwrap().1.parse().unwrap(), "KILL");
    death(&mut scene).await;
    succeed(&scene.heir).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_candidates_are_cleared_away_when_the_next_one_starts() {
    let mut scene = scene("candidate").await;
    let dead = SessionId::from_stored(&scene.said);
    assert!(scene.heir.view(&election("e")).await.candidate(&dead).is_some());
    scene.child.kill();
    let path = scene._dir.path().join("t.db");
    let _next = Actor::open(Arc::new(open(&path).await), "next").await;
    while scene.heir.view(&election("e")).await.candidate(&dead).is_some() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_lock_file_a_session_is_not_known_dead() {
    let mut scene = scene("leader").await;
    let heir = &scene.heir;
    std::fs::remove_file(scene._dir.path().join(format!("t.db.tenure/{}.lock", scene.said))).unwrap();
    assert_eq!(heir.store.take(&inherit(heir).await).await, Ok(None));
    scene.child.kill();
    assert_eq!(heir.store.take(&inherit(heir).await).await, Ok(None), "it has to be waited out");
    let bid = heir.overbid(&election("e"), 0).await;
    assert!(heir.store.take(&bid).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_processes_open_a_new_file_at_once() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let path = dir.path().join(format!("t{round}.db"));
        let mut children: Vec<_> = (0..10).map(|_| Child::play("opener", &path)).collect();
        for child in &mut children {
            assert_eq!(child.says(), "ready");
        }
        children.iter_mut().for_each(|child| child.tell("go"));
        for child in &mut children {
            assert_eq!(child.says(), "done");
        }
        let mode: (String,) =
            sqlx::query_as("PRAGMA journal_mode").fetch_one(open(&path).await.pool()).await.unwrap();
        assert_eq!(mode.0, "wal");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_heard_by_another_process() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let mut listener = Child::play("listener", &path);
    assert_eq!(listener.says(), "listening");
    let (a, key) = (Actor::open(Arc::new(open(&path).await), "a").await, election("e"));
    a.stand(&key).await;
    let token = a.take(&key, 0).await;
    a.store.release(&Release { leave: true, ..a.giving(&key, 0, token) }).await.unwrap();
    assert_eq!(listener.says(), format!("{} released {token}", a.id));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_listener_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let mut listener = Child::play("listener", &path);
    assert_eq!(listener.says(), "listening");
    listener.signal("STOP");
    let (a, key) = (Actor::open(Arc::new(open(&path).await), "a").await, election("e"));
    // More than its FIFO holds.
    for _ in 0..1_500 {
        a.stand(&key).await;
    }
    listener.signal("CONT");
}

#[tokio::test]
async fn two_names_of_one_file_share_their_locks() {
    let dir = tempfile::tempdir().unwrap();
    let (path, link) = (dir.path().join("t.db"), dir.path().join("link.db"));
    let a = Actor::open(Arc::new(open(&path).await), "a").await;
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let b = Actor::open(Arc::new(open(&link).await), "b").await;
    b.store.expire(&Expire { session: a.id.clone(), epoch: 0, beat: None }).await.unwrap();
    assert!(a.lives().await, "its lock is seen through the link");
    assert!(!dir.path().join("link.db.tenure").exists());
}

#[tokio::test]
async fn a_store_dropped_without_an_end_is_not_dead() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let (a, key) = (Actor::open(Arc::new(open(&path).await), "a").await, election("e"));
    a.stand(&key).await;
    a.take(&key, 0).await;
    drop(a);
    let heir = Actor::open(Arc::new(open(&path).await), "heir").await;
    heir.stand(&key).await;
    assert_eq!(
        heir.store.take(&inherit(&heir).await).await,
        Ok(None),
        "somebody here may still believe in it"
    );
}

#[tokio::test]
async fn the_view_shows_candidates_as_node_records() {
    let dir = tempfile::tempdir().unwrap();
    let (store, key) = (open(&dir.path().join("t.db")).await, election("e"));
    let records = async || -> Vec<(String, String, i64)> {
        let select = "SELECT id, status, term FROM tenure_node_records ORDER BY id";
        sqlx::query_as(select).fetch_all(store.pool()).await.unwrap()
    };
    let mut actors = Vec::new();
    for (id, observer) in [("a", false), ("b", false), ("c", true)] {
        let actor = Actor::open(Arc::new(store.clone()), id).await;
        let candidacy = Candidacy { id: id.into(), observer, ..candidacy(&actor.id, &key) };
        actor.store.join(&candidacy).await.unwrap();
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

/// Prints what things cost: `cargo test --release --test sqlite -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures, and asserts nothing"]
async fn costs() {
    let dir =
        tempfile::tempdir_in(std::env::var_os("TENURE_TEST_FOLDER").unwrap_or("/var/tmp".into())).unwrap();
    let path = dir.path().join("t.db");
    let (a, key) = (Actor::open(Arc::new(open(&path).await), "a").await, election("e"));
    a.stand(&key).await;
    let (mut beats, mut takes, mut releases, mut looks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut hints, mut heard) = (open(&path).await.wakes(), Vec::new());
    for _ in 0..1_000 {
        beats.push(timed(a.store.beat(&a.id)).await);
        looks.push(timed(a.store.observe(&a.id, &tenure_core::port::Scope::Standing)).await);
        let bid = a.bid(&key, 0).await;
        takes.push(timed(a.store.take(&bid)).await);
        let token = a.lease(&key, 0).await.token;
        let before = tenure::runtime::now();
        releases.push(timed(a.store.release(&a.giving(&key, 0, token))).await);
        while !matches!(hints.next().await, Some(Wake::Released { .. })) {}
        heard.push(tenure::runtime::now().since(before));
    }
    let mut crashes = Vec::new();
    let mut takeovers = Vec::new();
    for _ in 0..30 {
        let mut scene = scene("leader").await;
        let before = tenure::runtime::now();
        scene.child.kill_now();
        death(&mut scene).await;
        crashes.push(tenure::runtime::now().since(before));
        succeed(&scene.heir).await;
        takeovers.push(tenure::runtime::now().since(before));
    }
    for (what, times) in [
        ("beat", beats),
        ("look", looks),
        ("take", takes),
        ("release", releases),
        ("release until heard", heard),
        ("kill -9 until known", crashes),
        ("kill -9 until taken over", takeovers),
    ] {
        print(what, times);
    }
}

async fn timed<T>(call: impl Future<Output = T>) -> std::time::Duration {
    let before = tenure::runtime::now();
    call.await;
    tenure::runtime::now().since(before)
}

fn print(what: &str, mut times: Vec<std::time::Duration>) {
    times.sort();
    let at = |part: usize| times[(times.len() - 1) * part / 100];
    println!("{what}: p50 {:?}, p95 {:?}, max {:?}", at(50), at(95), at(100));
}
