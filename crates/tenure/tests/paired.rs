//! Elections in etcd or Raft, data in PostgreSQL: an older leader is refused by the database.

#![cfg(all(feature = "etcd", feature = "raft", feature = "postgres", feature = "sqlite"))]

use std::sync::Arc;
use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tenure::backend::etcd::Etcd;
use tenure::backend::migrations::Migrate;
use tenure::backend::paired::Paired;
use tenure::backend::postgres::{Postgres, PostgresOptions, guard};
use tenure::backend::raft::Raft;
use tenure::backend::sqlite::{Sqlite, SqliteOptions};
use tenure::backend::{self, StoreOptions};
use tenure::port::{Adopt, Backend, Directory, Pulse, Store, Trouble};
use tenure::{GuardError, Tenure, Token};
use tenure_testkit::conformance::{Actor, candidacy, election, new_id, new_session};
use tenure_testkit::rig::{EtcdCluster, FreshDatabase, fresh_database};

const LEASE: Duration = Duration::from_secs(3600);

async fn migrated() -> (FreshDatabase, Postgres) {
    let database = fresh_database().unwrap();
    let options = || PostgresOptions::new(database.url());
    Postgres::connect_unchecked(options()).await.unwrap().migrate().await.unwrap();
    let store = Postgres::connect(options()).await.unwrap();
    (database, store)
}

async fn etcd(cluster: &EtcdCluster) -> Etcd {
    Etcd::connect(&StoreOptions { url: cluster.url(), ..StoreOptions::default() }).await.unwrap()
}

fn paired(elector: impl Backend, keeper: impl Backend) -> Paired {
    Paired::new(Arc::new(elector), Arc::new(keeper)).unwrap()
}

/// Whether the transaction of a leader commits.
async fn writes(database: &FreshDatabase, actor: &Actor, token: Token) -> bool {
    let mut connection = PgConnection::connect(database.url()).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    match guard(&mut transaction, &election("nightly"), 0, token, &actor.id, LEASE).await {
        Ok(()) => transaction.commit().await.is_ok(),
        Err(GuardError::NotHeld { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

/// One leader is granted by the elector and stopped before the database hears of it; the next one is elected and writes; then the first one
/// goes on. Whether the first one's write was refused.
async fn a_late_leader_is_refused(
    elector: impl Backend + Clone,
    keeper: Postgres,
    database: &FreshDatabase,
) -> bool {
    let key = election("nightly");
    let store: Arc<dyn Backend> = Arc::new(paired(elector.clone(), keeper.clone()));
    let (late, next) = (Actor::open(store.clone(), "late").await, Actor::open(store, "next").await);
    late.stand(&key).await;
    next.stand(&key).await;
    // The first half of what `Paired` does to take.
    let bid = late.bid(&key, 0).await;
    let old = elector.take(&bid).await.unwrap().expect("the lease is free");
    let new = {
        let bid = next.overbid(&key, 0).await;
        next.store.take(&bid).await.unwrap().expect("it was silent for a lease")
    };
    assert!(new > old);
    assert!(writes(database, &next, new).await, "who leads writes");
    // The other half, late. Its session may not even be known to be over where the data is.
    let by = elector.identity().await.unwrap();
    let revived = Actor::open(Arc::new(keeper.clone()), "late, and alive here").await;
    let adopt = Adopt { session: revived.id.clone(), election: key, slot: 0, token: old, by };
    let adopted = keeper.adopt(&adopt).await.unwrap();
    let refused = !adopted && !writes(database, &revived, old).await && !writes(database, &late, old).await;
    refused && writes(database, &next, new).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_etcd_elected_and_that_was_stopped_is_refused_by_postgres() {
    let (cluster, (database, keeper)) = (EtcdCluster::start().unwrap(), migrated().await);
    assert!(a_late_leader_is_refused(etcd(&cluster).await, keeper, &database).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_raft_elected_and_that_was_stopped_is_refused_by_postgres() {
    let (folder, (database, keeper)) = (tempfile::tempdir().unwrap(), migrated().await);
    let url = format!("raft:{}", folder.path().display());
    let raft = Raft::connect(&StoreOptions { url, ..StoreOptions::default() }).await.unwrap();
    raft.gathered().await.unwrap();
    assert!(a_late_leader_is_refused(raft, keeper, &database).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adoption_that_does_not_compare_is_found() {
    let (cluster, (database, mut keeper)) = (EtcdCluster::start().unwrap(), migrated().await);
    keeper.sabotage("lease_adopt", "AND $4 > coalesce(a.token, 0)", "");
    assert!(!a_late_leader_is_refused(etcd(&cluster).await, keeper, &database).await);
}

/// The guard of who leads holds up the next adoption until it is over, as it holds up a take-over.
#[tokio::test(flavor = "multi_thread")]
async fn an_adoption_waits_for_what_is_guarded() {
    let (database, keeper) = migrated().await;
    let store: Arc<dyn Backend> = Arc::new(keeper);
    let (a, b, key) =
        (Actor::open(store.clone(), "a").await, Actor::open(store.clone(), "b").await, election("nightly"));
    let granted = |actor: &Actor, token| Adopt {
        session: actor.id.clone(),
        election: key.clone(),
        slot: 0,
        token: Token::from_u64(token),
        by: "one".into(),
    };
    assert_eq!(store.adopt(&granted(&a, 1)).await, Ok(true));
    let mut connection = PgConnection::connect(database.url()).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    guard(&mut transaction, &key, 0, Token::from_u64(1), &a.id, LEASE).await.unwrap();
    let adoption = tokio::spawn({
        let (store, adopt) = (store.clone(), granted(&b, 2));
        async move { store.adopt(&adopt).await }
    });
    // It is waiting by now, and nothing but the lock keeps it.
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
    while database.psql(waiting).unwrap().trim() != "1" {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!adoption.is_finished());
    transaction.commit().await.unwrap();
    assert_eq!(adoption.await.unwrap(), Ok(true));
}

/// Both must say that the session lives, and whoever can not reach the data falls silent to the elector.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_lives_only_if_both_stores_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let open = async |name: &str| Sqlite::open(SqliteOptions::new(folder.path().join(name))).await.unwrap();
    let (elector, keeper) = (open("elector.db").await, open("keeper.db").await);
    let store = paired(elector.clone(), keeper.clone());
    let beats = async |id: &tenure::SessionId| {
        elector.sessions(Some(std::slice::from_ref(id))).await.unwrap()[0].beat
    };
    for over in ["keeper", "elector"] {
        let id = new_id();
        assert!(matches!(store.open(&new_session(&id, "a")).await, Ok(Pulse::Alive { .. })));
        assert!(matches!(store.beat(&id).await, Ok(Pulse::Alive { .. })));
        let before = beats(&id).await;
        match over {
            "keeper" => keeper.end(&id).await.unwrap(),
            _ => elector.end(&id).await.unwrap(),
        }
        assert_eq!(store.beat(&id).await, Ok(Pulse::Gone), "over for the {over}");
        assert_eq!(beats(&id).await, before, "the elector counts no beat of it");
    }
}

/// A session that is over for the elector is over where the work is, at the latest when somebody is told to expire it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_over_for_the_elector_is_over_where_the_work_is() {
    use tenure::backend::memory::Memory;
    let (elector, keeper) = (Memory::new(), Memory::new());
    let store: Arc<dyn Backend> = Arc::new(paired(elector.clone(), keeper.clone()));
    let (a, b) = (Actor::open(store.clone(), "a").await, Actor::open(store.clone(), "b").await);
    let key = election("nightly");
    elector.join(&candidacy(&a.id, &key)).await.unwrap();
    // Their beats differ, and those of the elector are the ones that are shown and compared.
    keeper.beat(&a.id).await.unwrap();
    keeper.beat(&a.id).await.unwrap();
    b.expire(&a, &key).await;
    let seen = keeper.sessions(Some(std::slice::from_ref(&a.id))).await.unwrap();
    assert!(!seen[0].live, "its tasks go back to their queues");
    // Of one that only has work, those where the work is.
    let worker = Actor::open(Arc::new(keeper.clone()), "worker").await;
    keeper.beat(&worker.id).await.unwrap();
    let shown = store.sessions(None).await.unwrap().into_iter().find(|view| view.id == worker.id).unwrap();
    assert_eq!(shown.beat, 1);
    let expire = |beat| tenure::port::Expire { session: worker.id.clone(), epoch: b.epoch, beat: Some(beat) };
    store.expire(&expire(0)).await.unwrap();
    assert!(worker.lives().await, "it has beaten since");
    store.expire(&expire(2)).await.unwrap();
    assert!(!worker.lives().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_process_elects_in_one_and_works_in_the_other() {
    let (cluster, (database, keeper)) = (EtcdCluster::start().unwrap(), migrated().await);
    let open = async |name: &str| {
        Tenure::builder().url(database.url()).elect(cluster.url()).name(name).open().await.unwrap()
    };
    let (a, b) = (open("a").await, open("b").await);
    let first = a.elector("nightly").start().await.unwrap();
    let leadership = first.elected().await.unwrap();
    let second = b.elector("nightly").start().await.unwrap();
    let mut connection = PgConnection::connect(database.url()).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    leadership.guard(&mut *transaction).await.unwrap();
    transaction.commit().await.unwrap();
    assert!(keeper.elections(None).await.unwrap().is_empty(), "nobody stands in the database");
    let claim = leadership.claim();
    leadership.resign().await.unwrap();
    let next = second.elected().await.unwrap();
    assert!(next.token() > claim.token);
    let mut transaction = connection.begin().await.unwrap();
    let refused = guard(&mut transaction, &claim.election, 0, claim.token, &claim.session, LEASE).await;
    assert!(matches!(refused, Err(GuardError::NotHeld { .. })), "{refused:?}");
    drop(transaction);
    // Work is in the database, and its keeper was elected by etcd.
    let worker = b.worker("mail").kind("hello", |_| async {}).start().await.unwrap();
    let queue = b.queue("mail").unwrap();
    let ids = a.claims().submit(&queue, vec![tenure::port::NewTask::new("hello")]).await.unwrap();
    while b.store().task(&queue.namespace, ids[0].id).await.unwrap().unwrap().state
        != tenure::port::TaskState::Completed
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    worker.drain().await.unwrap();
    drop((first, second, next));
    tokio::join!(a.close(), b.close()).0.unwrap();
}

#[tokio::test]
async fn what_can_not_be_paired_says_why() {
    let open = async |elect: &str, url: &str| {
        let options = StoreOptions { url: url.into(), elect: Some(elect.into()), ..StoreOptions::default() };
        backend::open(&options).await.err().expect("it is refused")
    };
    let error = open("memory:", "memory:").await;
    assert_eq!((error.kind, error.message.contains("leave out --elect")), (Trouble::Address, true));
    let error = open("nonsense:", "memory:").await;
    assert!(error.message.contains("unknown store"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let error = open("memory:", &format!("raft:{}", folder.path().display())).await;
    assert_eq!(error.kind, Trouble::Request);
    assert!(error.message.contains("sqlite: or postgres:"), "{error}");
}
