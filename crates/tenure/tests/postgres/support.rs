//! Helpers of the tests.

use std::time::Duration;

use tenure::store::migrations::SchemaMigrator;
use tenure::store::postgres::{PostgresOptions, PostgresStore};
use tenure_core::port::{
    Candidacy, ElectionStore, ExpireSessionRequest, HeartbeatResponse, JoinElectionResponse,
    OpenSessionRequest, TakeLeaseRequest, TakeoverMode,
};
use tenure_core::{ElectionKey, Name, SessionId, Token};
use tenure_testkit::rig::{FreshDatabase, prepared_database};

pub(crate) const LEASE: Duration = Duration::from_secs(10);

/// Far longer than any operation takes.
pub(crate) const HANG: Duration = Duration::from_secs(60);

/// An empty database with the tables, and a store on it.
pub(crate) async fn fresh() -> (FreshDatabase, PostgresStore) {
    let tables = tenure::store::migration_sql("postgres:").unwrap();
    let database = prepared_database(&tables).unwrap();
    let store = PostgresStore::connect(PostgresOptions::new(database.url())).await.unwrap();
    (database, store)
}

/// Migrates this database and opens a store on it.
pub(crate) async fn migrated(url: &str) -> PostgresStore {
    PostgresStore::connect_unchecked(PostgresOptions::new(url)).await.unwrap().migrate().await.unwrap();
    PostgresStore::connect(PostgresOptions::new(url)).await.unwrap()
}

pub(crate) fn id(name: &str) -> SessionId {
    SessionId::from_stored(name)
}

pub(crate) fn election(name: &str) -> ElectionKey {
    ElectionKey::new(Name::default_namespace(), name.parse().unwrap())
}

pub(crate) fn new_session(name: &str, lease: Duration, takeover: TakeoverMode) -> OpenSessionRequest {
    OpenSessionRequest { id: id(name), name: name.into(), lease, takeover, owner: None }
}

pub(crate) fn candidacy(session: &str, key: &ElectionKey) -> Candidacy {
    Candidacy {
        session: id(session),
        election: key.clone(),
        name: session.into(),
        priority: 0,
        observer: false,
        capabilities: vec![],
        required_capabilities: vec![],
        slots: 1,
        metadata: Default::default(),
    }
}

pub(crate) async fn opened(store: &PostgresStore, session: &str) {
    opened_for(store, session, LEASE).await;
}

pub(crate) async fn opened_for(store: &PostgresStore, session: &str, lease: Duration) {
    let response = store.open_session(&new_session(session, lease, TakeoverMode::Lease)).await.unwrap();
    assert!(matches!(response, HeartbeatResponse::Live { .. }));
}

/// Opens a session that joins an election.
pub(crate) async fn joined(store: &PostgresStore, session: &str, key: &ElectionKey) {
    opened(store, session).await;
    assert_eq!(store.join_election(&candidacy(session, key)).await.unwrap(), JoinElectionResponse::Joined);
}

pub(crate) fn free_take(session: &str, key: &ElectionKey, token: Token) -> TakeLeaseRequest {
    TakeLeaseRequest {
        session: id(session),
        epoch: 1,
        election: key.clone(),
        slot: 0,
        token,
        holder: None,
        expire: None,
    }
}

/// A takeover from a holder whose heartbeat count did not change.
pub(crate) fn takeover(
    session: &str,
    key: &ElectionKey,
    token: Token,
    holder: &str,
    heartbeat_count: u64,
) -> TakeLeaseRequest {
    let expire =
        Some(ExpireSessionRequest { session: id(holder), epoch: 1, heartbeat_count: Some(heartbeat_count) });
    TakeLeaseRequest { holder: Some(id(holder)), expire, ..free_take(session, key, token) }
}

/// Opens a session that joins an election and leads it.
pub(crate) async fn leading(store: &PostgresStore, session: &str, key: &ElectionKey) -> Token {
    joined(store, session, key).await;
    let token =
        tenure_core::port::ElectionAdmin::election(store, key).await.unwrap().unwrap().leases[0].token;
    store.take_lease(&free_take(session, key, token)).await.unwrap().unwrap()
}

/// Number of connections of this database that wait for a lock.
pub(crate) fn blocked(database: &FreshDatabase) -> usize {
    let waiting = "SELECT count(*) FROM pg_stat_activity \
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
    database.psql(waiting).unwrap().trim().parse().unwrap()
}

/// Waits until this number of connections wait for a lock. Fails only by a hang.
pub(crate) async fn until_blocked(database: &FreshDatabase, wanted: usize) {
    while blocked(database) < wanted {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
