//! What the tests share.

use std::time::Duration;

use tenure::backend::migrations::Migrate;
use tenure::backend::postgres::{Postgres, PostgresOptions};
use tenure_core::port::{Candidacy, Expire, Joined, NewSession, Pulse, Store, Take, Takeover};
use tenure_core::{ElectionKey, Name, SessionId, Token};
use tenure_testkit::rig::{FreshDatabase, prepared_database};

pub(crate) const LEASE: Duration = Duration::from_secs(10);

/// Far longer than anything takes. What is not there by then never comes.
pub(crate) const HANG: Duration = Duration::from_secs(60);

/// An empty database with the tables in it, and a store on it.
pub(crate) async fn fresh() -> (FreshDatabase, Postgres) {
    let tables = tenure::backend::migration_sql("postgres:").unwrap();
    let database = prepared_database(&tables).unwrap();
    let store = Postgres::connect(PostgresOptions::new(database.url())).await.unwrap();
    (database, store)
}

/// A store on this database, after it was migrated.
pub(crate) async fn migrated(url: &str) -> Postgres {
    Postgres::connect_unchecked(PostgresOptions::new(url)).await.unwrap().migrate().await.unwrap();
    Postgres::connect(PostgresOptions::new(url)).await.unwrap()
}

pub(crate) fn id(name: &str) -> SessionId {
    SessionId::from_stored(name)
}

pub(crate) fn election(name: &str) -> ElectionKey {
    ElectionKey::new(Name::default_namespace(), name.parse().unwrap())
}

pub(crate) fn new_session(name: &str, lease: Duration, takeover: Takeover) -> NewSession {
    NewSession { id: id(name), name: name.into(), lease, takeover, owner: None }
}

pub(crate) fn candidacy(session: &str, key: &ElectionKey) -> Candidacy {
    Candidacy {
        session: id(session),
        election: key.clone(),
        id: session.into(),
        priority: 0,
        observer: false,
        capabilities: vec![],
        requires: vec![],
        slots: 1,
        metadata: Default::default(),
    }
}

pub(crate) async fn opened(store: &Postgres, session: &str) {
    opened_for(store, session, LEASE).await;
}

pub(crate) async fn opened_for(store: &Postgres, session: &str, lease: Duration) {
    let pulse = store.open(&new_session(session, lease, Takeover::Lease)).await.unwrap();
    assert!(matches!(pulse, Pulse::Alive { .. }));
}

/// Opens a session and lets it stand.
pub(crate) async fn standing(store: &Postgres, session: &str, key: &ElectionKey) {
    opened(store, session).await;
    assert_eq!(store.join(&candidacy(session, key)).await.unwrap(), Joined::Standing);
}

pub(crate) fn free_take(session: &str, key: &ElectionKey, token: Token) -> Take {
    Take { session: id(session), epoch: 1, election: key.clone(), slot: 0, token, holder: None, expire: None }
}

/// A take-over from a holder whose beat was seen to stand still.
pub(crate) fn take_over(session: &str, key: &ElectionKey, token: Token, holder: &str, beat: u64) -> Take {
    let expire = Some(Expire { session: id(holder), epoch: 1, beat: Some(beat) });
    Take { holder: Some(id(holder)), expire, ..free_take(session, key, token) }
}

/// Opens a session, lets it stand, and makes it leader.
pub(crate) async fn leading(store: &Postgres, session: &str, key: &ElectionKey) -> Token {
    standing(store, session, key).await;
    let token = tenure_core::port::Directory::election(store, key).await.unwrap().unwrap().leases[0].token;
    store.take(&free_take(session, key, token)).await.unwrap().unwrap()
}

/// How many sessions of this database wait for a lock.
pub(crate) fn blocked(database: &FreshDatabase) -> usize {
    let waiting = "SELECT count(*) FROM pg_stat_activity \
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
    database.psql(waiting).unwrap().trim().parse().unwrap()
}

/// Waits until so many do. Only a hang makes this fail.
pub(crate) async fn until_blocked(database: &FreshDatabase, wanted: usize) {
    while blocked(database) < wanted {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
