//! Everything through PgBouncer in transaction mode.

use std::time::Duration;

use tenure::backend::migrations::Migrate;
use tenure::backend::postgres::{ListenState, Postgres, PostgresOptions, guard};
use tenure_core::Token;
use tenure_core::port::{Directory, Pulse, Release, Store, Via};
use tenure_testkit::rig::{PgBouncer, PgCluster};

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn the_whole_lease_path_works_through_a_pooler() {
    let cluster = PgCluster::start().unwrap();
    let pooler = PgBouncer::in_front_of(&cluster).unwrap();
    let options = PostgresOptions::new(pooler.url("postgres"));
    let migrations = (0..10).map(|_| async {
        Postgres::connect_unchecked(options.clone()).await.unwrap().migrate().await.unwrap()
    });
    let applied = futures_util::future::join_all(migrations).await;
    assert_eq!(applied.iter().filter(|applied| !applied.is_empty()).count(), 1);
    // Several clients at once, so that the pooler has reason to mix their connections up.
    let clients = (0..6).map(|n| {
        let options = options.clone();
        async move {
            let store = Postgres::connect(options).await.unwrap();
            let (name, key) = (format!("s{n}"), election(&format!("e{n}")));
            standing(&store, &name, &key).await;
            let mut token = Token::first(1);
            for round in 1..=30 {
                token = store.take(&free_take(&name, &key, token)).await.unwrap().unwrap();
                assert_eq!(token.grant(), round);
                assert!(matches!(store.beat(&id(&name)).await.unwrap(), Pulse::Alive { .. }));
                // The user's own transactions: sqlx's prepared statements would break here, the guard does not.
                let mut tx = store.pool().begin().await.unwrap();
                guard(&mut tx, &key, 0, token, &id(&name), LEASE).await.unwrap();
                tx.commit().await.unwrap();
                let view = store.election(&key).await.unwrap().unwrap();
                assert_eq!(view.leases[0].holder.as_ref().unwrap().id, id(&name));
                let release = Release {
                    session: id(&name),
                    election: key.clone(),
                    slot: 0,
                    token,
                    successor: None,
                    via: Via::Release,
                    leave: false,
                };
                store.release(&release).await.unwrap();
            }
            store.end(&id(&name)).await.unwrap();
        }
    });
    futures_util::future::join_all(clients).await;
    // No limit of a guard or a take stayed behind on a connection that others use.
    let store = Postgres::connect(options).await.unwrap();
    let limits = "SELECT current_setting('lock_timeout') || current_setting('statement_timeout') \
                  || current_setting('idle_in_transaction_session_timeout')";
    for _ in 0..20 {
        let row = sqlx::raw_sql(limits).fetch_one(store.pool()).await.unwrap();
        assert_eq!(sqlx::Row::get::<String, _>(&row, 0), "000");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_swallows_hints_is_found_out_and_a_direct_address_helps() {
    let cluster = PgCluster::start().unwrap();
    migrated(&cluster.url()).await;
    let pooler = PgBouncer::in_front_of(&cluster).unwrap();
    let mut options = PostgresOptions::new(pooler.url("postgres"));
    assert_eq!(settled(&options).await, ListenState::Deaf);
    options.direct_url = Some(cluster.url());
    assert_eq!(settled(&options).await, ListenState::Hearing);
}

/// What listening comes to.
async fn settled(options: &PostgresOptions) -> ListenState {
    let store = Postgres::connect(options.clone()).await.unwrap();
    assert_eq!(store.listening(), ListenState::Off);
    let _wakes = store.wakes();
    while matches!(store.listening(), ListenState::Off | ListenState::Starting) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    store.listening()
}
