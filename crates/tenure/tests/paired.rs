//! Elections in etcd or Raft, data in PostgreSQL: the database rejects a former leader.

#![cfg(all(feature = "etcd", feature = "raft", feature = "postgres", feature = "sqlite"))]

use std::sync::Arc;
use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tenure::port::{AdoptLeaseRequest, ElectionAdmin, ElectionStore, ErrorKind, HeartbeatResponse, Store};
use tenure::store::etcd::EtcdStore;
use tenure::store::migrations::SchemaMigrator;
use tenure::store::paired::PairedStore;
use tenure::store::postgres::{PostgresOptions, PostgresStore, guard};
use tenure::store::raft::RaftStore;
use tenure::store::sqlite::{SqliteOptions, SqliteStore};
use tenure::store::{self, StoreOptions};
use tenure::{GuardError, Tenure, Token};
use tenure_testkit::conformance::{TestSession, candidacy, election, new_id, new_session};
use tenure_testkit::rig::{EtcdCluster, FreshDatabase, fresh_database};

const LEASE: Duration = Duration::from_secs(3600);

async fn migrated() -> (FreshDatabase, PostgresStore) {
    let database = fresh_database().unwrap();
    let options = || PostgresOptions::new(database.url());
    PostgresStore::connect_unchecked(options()).await.unwrap().migrate().await.unwrap();
    let store = PostgresStore::connect(options()).await.unwrap();
    (database, store)
}

async fn etcd(cluster: &EtcdCluster) -> EtcdStore {
    EtcdStore::connect(&StoreOptions { url: cluster.url(), ..StoreOptions::default() }).await.unwrap()
}

fn paired(election_store: impl Store, data_store: impl Store) -> PairedStore {
    PairedStore::new(Arc::new(election_store), Arc::new(data_store)).unwrap()
}

/// Writes in a transaction guarded by this token. Returns whether the transaction commits.
async fn writes(database: &FreshDatabase, actor: &TestSession, token: Token) -> bool {
    let mut connection = PgConnection::connect(database.url()).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    match guard(&mut transaction, &election("nightly"), 0, token, &actor.id, LEASE).await {
        Ok(()) => transaction.commit().await.is_ok(),
        Err(GuardError::NotHeld { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

/// The election store grants a lease to a leader that stalls before the data store adopts the lease. The next
/// leader is elected and writes. Then the first leader continues. Returns whether its write is rejected.
async fn a_late_leader_is_rejected(
    election_store: impl Store + Clone,
    data_store: PostgresStore,
    database: &FreshDatabase,
) -> bool {
    let key = election("nightly");
    let store: Arc<dyn Store> = Arc::new(paired(election_store.clone(), data_store.clone()));
    let (late, next) =
        (TestSession::open(store.clone(), "late").await, TestSession::open(store, "next").await);
    late.join(&key).await;
    next.join(&key).await;
    // The first half of PairedStore::take_lease.
    let bid = late.take_request(&key, 0).await;
    let old = election_store.take_lease(&bid).await.unwrap().expect("the lease is free");
    let new = {
        let bid = next.takeover_request(&key, 0).await;
        next.store.take_lease(&bid).await.unwrap().expect("the holder was silent for a lease")
    };
    assert!(new > old);
    assert!(writes(database, &next, new).await, "the leader writes");
    // The second half of take_lease arrives late. The data store may not know that the session has ended.
    let by = election_store.identity().await.unwrap();
    let revived = TestSession::open(Arc::new(data_store.clone()), "late").await;
    let adopt =
        AdoptLeaseRequest { session: revived.id.clone(), election: key, slot: 0, token: old, granted_by: by };
    let adopted = data_store.adopt_lease(&adopt).await.unwrap();
    let rejected = !adopted && !writes(database, &revived, old).await && !writes(database, &late, old).await;
    rejected && writes(database, &next, new).await
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_rejects_a_stopped_leader_of_etcd() {
    let (cluster, (database, data_store)) = (EtcdCluster::start().unwrap(), migrated().await);
    assert!(a_late_leader_is_rejected(etcd(&cluster).await, data_store, &database).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_rejects_a_stopped_leader_of_raft() {
    let (directory, (database, data_store)) = (tempfile::tempdir().unwrap(), migrated().await);
    let url = format!("raft:{}", directory.path().display());
    let raft = RaftStore::connect(&StoreOptions { url, ..StoreOptions::default() }).await.unwrap();
    raft.wait_for_leader().await.unwrap();
    assert!(a_late_leader_is_rejected(raft, data_store, &database).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adoption_that_ignores_tokens_is_detected() {
    let (cluster, (database, mut data_store)) = (EtcdCluster::start().unwrap(), migrated().await);
    data_store.inject_bug("lease_adopt", "AND $4 > coalesce(a.token, 0)", "");
    assert!(!a_late_leader_is_rejected(etcd(&cluster).await, data_store, &database).await);
}

/// A guarded transaction blocks the next adoption, as it blocks a takeover.
#[tokio::test(flavor = "multi_thread")]
async fn an_adoption_waits_for_a_guarded_transaction() {
    let (database, data_store) = migrated().await;
    let store: Arc<dyn Store> = Arc::new(data_store);
    let (a, b, key) = (
        TestSession::open(store.clone(), "a").await,
        TestSession::open(store.clone(), "b").await,
        election("nightly"),
    );
    let granted = |actor: &TestSession, token| AdoptLeaseRequest {
        session: actor.id.clone(),
        election: key.clone(),
        slot: 0,
        token: Token::from_u64(token),
        granted_by: "one".into(),
    };
    assert_eq!(store.adopt_lease(&granted(&a, 1)).await, Ok(true));
    let mut connection = PgConnection::connect(database.url()).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    guard(&mut transaction, &key, 0, Token::from_u64(1), &a.id, LEASE).await.unwrap();
    let adoption = tokio::spawn({
        let (store, adopt) = (store.clone(), granted(&b, 2));
        async move { store.adopt_lease(&adopt).await }
    });
    // Wait until the adoption waits for the lock.
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
    while database.psql(waiting).unwrap().trim() != "1" {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!adoption.is_finished());
    transaction.commit().await.unwrap();
    assert_eq!(adoption.await.unwrap(), Ok(true));
}

/// A process that cannot reach the data store sends no heartbeat to the election store.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_live_only_if_both_stores_agree() {
    let directory = tempfile::tempdir().unwrap();
    let open =
        async |name: &str| SqliteStore::open(SqliteOptions::new(directory.path().join(name))).await.unwrap();
    let (election_store, data_store) = (open("elections.db").await, open("data.db").await);
    let store = paired(election_store.clone(), data_store.clone());
    let heartbeat_count = async |id: &tenure::SessionId| {
        election_store.sessions(Some(std::slice::from_ref(id))).await.unwrap()[0].heartbeat_count
    };
    for over in ["data store", "election store"] {
        let id = new_id();
        assert!(matches!(
            store.open_session(&new_session(&id, "a")).await,
            Ok(HeartbeatResponse::Live { .. })
        ));
        assert!(matches!(store.heartbeat(&id).await, Ok(HeartbeatResponse::Live { .. })));
        let before = heartbeat_count(&id).await;
        match over {
            "data store" => data_store.end_session(&id).await.unwrap(),
            _ => election_store.end_session(&id).await.unwrap(),
        }
        assert_eq!(store.heartbeat(&id).await, Ok(HeartbeatResponse::SessionEnded), "ended in the {over}");
        assert_eq!(heartbeat_count(&id).await, before, "the election store counts no heartbeat");
    }
}

/// A session that ended in the election store ends in the data store, at the latest when it is expired.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_ended_in_the_election_store_ends_in_the_data_store() {
    use tenure::store::memory::MemoryStore;
    let (election_store, data_store) = (MemoryStore::new(), MemoryStore::new());
    let store: Arc<dyn Store> = Arc::new(paired(election_store.clone(), data_store.clone()));
    let (a, b) = (TestSession::open(store.clone(), "a").await, TestSession::open(store.clone(), "b").await);
    let key = election("nightly");
    election_store.join_election(&candidacy(&a.id, &key)).await.unwrap();
    // The two stores count heartbeats separately. The paired store reports the count of the election store.
    data_store.heartbeat(&a.id).await.unwrap();
    data_store.heartbeat(&a.id).await.unwrap();
    b.expire(&a, &key).await;
    let seen = data_store.sessions(Some(std::slice::from_ref(&a.id))).await.unwrap();
    assert!(!seen[0].live, "its claims are recovered");
    // A session that only the data store knows has the heartbeat count of the data store.
    let worker = TestSession::open(Arc::new(data_store.clone()), "worker").await;
    data_store.heartbeat(&worker.id).await.unwrap();
    let shown = store.sessions(None).await.unwrap().into_iter().find(|view| view.id == worker.id).unwrap();
    assert_eq!(shown.heartbeat_count, 1);
    let expire = |heartbeat| tenure::port::ExpireSessionRequest {
        session: worker.id.clone(),
        epoch: b.epoch,
        heartbeat_count: Some(heartbeat),
    };
    store.expire_session(&expire(0)).await.unwrap();
    assert!(worker.is_live().await, "it sent a heartbeat since");
    store.expire_session(&expire(2)).await.unwrap();
    assert!(!worker.is_live().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_elects_in_one_store_and_works_in_the_other() {
    let (cluster, (database, data_store)) = (EtcdCluster::start().unwrap(), migrated().await);
    let open = async |name: &str| {
        Tenure::builder().url(database.url()).election_store(cluster.url()).name(name).open().await.unwrap()
    };
    let (a, b) = (open("a").await, open("b").await);
    let first = a.elector("nightly").start().await.unwrap();
    let leadership = first.elected().await.unwrap();
    let second = b.elector("nightly").start().await.unwrap();
    let mut connection = PgConnection::connect(database.url()).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    leadership.guard(&mut *transaction).await.unwrap();
    transaction.commit().await.unwrap();
    assert!(data_store.elections(None).await.unwrap().is_empty(), "the data store has no candidates");
    let claim = leadership.guarded_lease();
    leadership.resign().await.unwrap();
    let next = second.elected().await.unwrap();
    assert!(next.token() > claim.token);
    let mut transaction = connection.begin().await.unwrap();
    let rejected = guard(&mut transaction, &claim.election, 0, claim.token, &claim.session, LEASE).await;
    assert!(matches!(rejected, Err(GuardError::NotHeld { .. })), "{rejected:?}");
    drop(transaction);
    // Tasks are in the data store, and etcd elected its broker.
    let worker = b.worker("mail").kind("hello", |_| async {}).start().await.unwrap();
    let queue = b.queue("mail").unwrap();
    let ids = a.tasks().submit(&queue, vec![tenure::port::NewTask::new("hello")]).await.unwrap();
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
async fn an_invalid_pair_is_rejected_with_a_reason() {
    let open = async |elect: &str, url: &str| {
        let options =
            StoreOptions { url: url.into(), election_store: Some(elect.into()), ..StoreOptions::default() };
        store::open(&options).await.err().expect("opening fails")
    };
    let error = open("memory:", "memory:").await;
    assert_eq!((error.kind, error.message.contains("leave it out")), (ErrorKind::Address, true));
    let error = open("nonsense:", "memory:").await;
    assert!(error.message.contains("unknown store"), "{error}");
    let directory = tempfile::tempdir().unwrap();
    let error = open("memory:", &format!("raft:{}", directory.path().display())).await;
    assert_eq!(error.kind, ErrorKind::Request);
    assert!(error.message.contains("sqlite: or postgres:"), "{error}");
}
