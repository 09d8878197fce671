//! The store through PgBouncer in transaction mode.

use std::time::Duration;

use tenure::store::migrations::SchemaMigrator;
use tenure::store::postgres::{ListenState, PostgresOptions, PostgresStore, guard};
use tenure_core::Token;
use tenure_core::port::{ElectionAdmin, ElectionStore, HeartbeatResponse, ReleaseLeaseRequest, StartReason};
use tenure_testkit::rig::{PgBouncer, PgCluster};

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn elections_work_through_a_pooler() {
    let cluster = PgCluster::start().unwrap();
    let pooler = PgBouncer::in_front_of(&cluster).unwrap();
    let options = PostgresOptions::new(pooler.url("postgres"));
    let migrations = (0..10).map(|_| async {
        PostgresStore::connect_unchecked(options.clone()).await.unwrap().migrate().await.unwrap()
    });
    let applied = futures_util::future::join_all(migrations).await;
    assert_eq!(applied.iter().filter(|applied| !applied.is_empty()).count(), 1);
    // Several concurrent clients, so that the pooler switches connections between them.
    let clients = (0..6).map(|n| {
        let options = options.clone();
        async move {
            let store = PostgresStore::connect(options).await.unwrap();
            let (name, key) = (format!("s{n}"), election(&format!("e{n}")));
            joined(&store, &name, &key).await;
            let mut token = Token::first(1);
            for round in 1..=30 {
                token = store.take_lease(&free_take(&name, &key, token)).await.unwrap().unwrap();
                assert_eq!(token.grant(), round);
                assert!(matches!(store.heartbeat(&id(&name)).await.unwrap(), HeartbeatResponse::Live { .. }));
                // The user's transactions: prepared statements of sqlx would fail here, the guard does not.
                let mut tx = store.pool().begin().await.unwrap();
                guard(&mut tx, &key, 0, token, &id(&name), LEASE).await.unwrap();
                tx.commit().await.unwrap();
                let view = store.election(&key).await.unwrap().unwrap();
                assert_eq!(view.leases[0].holder.as_ref().unwrap().id, id(&name));
                let release = ReleaseLeaseRequest {
                    session: id(&name),
                    election: key.clone(),
                    slot: 0,
                    token,
                    successor: None,
                    start_reason: StartReason::Release,
                    leave: false,
                };
                store.release_lease(&release).await.unwrap();
            }
            store.end_session(&id(&name)).await.unwrap();
        }
    });
    futures_util::future::join_all(clients).await;
    // No timeout of a guard or a lease call is left on a shared connection.
    let store = PostgresStore::connect(options).await.unwrap();
    let timeouts = "SELECT current_setting('lock_timeout') || current_setting('statement_timeout') \
                  || current_setting('idle_in_transaction_session_timeout')";
    for _ in 0..20 {
        let row = sqlx::raw_sql(timeouts).fetch_one(store.pool()).await.unwrap();
        assert_eq!(sqlx::Row::get::<String, _>(&row, 0), "000");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn notifications_need_a_direct_address_behind_a_pooler() {
    let cluster = PgCluster::start().unwrap();
    migrated(&cluster.url()).await;
    let pooler = PgBouncer::in_front_of(&cluster).unwrap();
    let mut options = PostgresOptions::new(pooler.url("postgres"));
    assert_eq!(tested_listen_state(&options).await, ListenState::Unavailable);
    options.direct_url = Some(cluster.url());
    assert_eq!(tested_listen_state(&options).await, ListenState::Active);
}

/// The listen state after the self-test.
async fn tested_listen_state(options: &PostgresOptions) -> ListenState {
    let store = PostgresStore::connect(options.clone()).await.unwrap();
    assert_eq!(store.listen_state(), ListenState::Off);
    let _notifications = store.notifications();
    while matches!(store.listen_state(), ListenState::Off | ListenState::Starting) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    store.listen_state()
}
