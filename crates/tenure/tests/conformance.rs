//! Every backend, held to the same claims.

use std::sync::Arc;

use tenure::backend::memory::Memory;
use tenure_testkit::conformance::Subject;
use tenure_testkit::{
    adoption_conformance_tests, claims_conformance_tests, conformance_tests, events_conformance_tests,
    schedules_conformance_tests,
};

conformance_tests!(memory, in_memory());
claims_conformance_tests!(memory_claims, in_memory());
events_conformance_tests!(memory_events, in_memory());
schedules_conformance_tests!(memory_schedules, in_memory());
adoption_conformance_tests!(memory_adoption, in_memory());

conformance_tests!(paired, apart());
claims_conformance_tests!(paired_claims, apart());
events_conformance_tests!(paired_events, apart());
schedules_conformance_tests!(paired_schedules, apart());

/// Elections in one store, all else in another.
fn apart() -> Subject {
    use tenure::backend::paired::Paired;
    let (elector, keeper) = (Memory::new(), Memory::new());
    Subject::new(move || {
        let paired = Paired::new(Arc::new(elector.clone()), Arc::new(keeper.clone())).unwrap();
        async move { Arc::new(paired) as _ }
    })
}

fn in_memory() -> Subject {
    let store = Memory::new();
    Subject::new(move || {
        let store = store.clone();
        async move { Arc::new(store) as _ }
    })
}

#[cfg(feature = "sqlite")]
conformance_tests!(sqlite, in_a_file());
#[cfg(feature = "sqlite")]
claims_conformance_tests!(sqlite_claims, in_a_file());
#[cfg(feature = "sqlite")]
events_conformance_tests!(sqlite_events, in_a_file());
#[cfg(feature = "sqlite")]
schedules_conformance_tests!(sqlite_schedules, in_a_file());
#[cfg(feature = "sqlite")]
adoption_conformance_tests!(sqlite_adoption, in_a_file());

#[cfg(feature = "sqlite")]
fn in_a_file() -> Subject {
    use tenure::backend::sqlite::{Sqlite, SqliteOptions};
    let folder = Arc::new(tempfile::tempdir().unwrap());
    Subject::new(move || {
        let folder = folder.clone();
        async move {
            let options = SqliteOptions::new(folder.path().join("tenure.db"));
            Arc::new(Sqlite::open(options.busy_timeout(std::time::Duration::from_secs(20))).await.unwrap())
                as _
        }
    })
}

#[cfg(feature = "postgres")]
conformance_tests!(postgres, on_a_server("tenure_server"));
#[cfg(feature = "postgres")]
claims_conformance_tests!(postgres_claims, on_a_server("tenure_runtime"));
#[cfg(feature = "postgres")]
events_conformance_tests!(postgres_events, on_a_server("tenure_runtime"));
#[cfg(feature = "postgres")]
schedules_conformance_tests!(postgres_schedules, on_a_server("tenure_runtime"));
#[cfg(feature = "postgres")]
adoption_conformance_tests!(postgres_adoption, on_a_server("tenure_runtime"));

#[cfg(feature = "postgres")]
fn on_a_server(role: &'static str) -> Subject {
    use tenure::backend::postgres::{Postgres, PostgresOptions};
    // As in production: one role owns the tables. Servers, which keep credentials, use another, and programs a third.
    let roles = tenure::backend::roles_sql("postgres:").unwrap();
    let tables = tenure::backend::migration_sql("postgres:").unwrap();
    let script = format!("{roles}\nSET ROLE tenure_owner;\n{tables}");
    let database = Arc::new(tenure_testkit::rig::prepared_database(&script).unwrap());
    Subject::new(move || {
        let database = database.clone();
        async move {
            let options = PostgresOptions::new(database.url_as(role));
            Arc::new(Postgres::connect(options).await.unwrap()) as _
        }
    })
}

#[cfg(feature = "etcd")]
conformance_tests!(etcd, on_etcd(), elections only);

#[cfg(feature = "etcd")]
fn on_etcd() -> Subject {
    use tenure::backend::StoreOptions;
    use tenure::backend::etcd::Etcd;
    use tenure_testkit::conformance::counted::{Counted, Grants};
    let cluster = Arc::new(tenure_testkit::rig::EtcdCluster::start().unwrap());
    let grants = Grants::default();
    Subject::new(move || {
        let (cluster, grants) = (cluster.clone(), grants.clone());
        async move {
            let options = StoreOptions { url: cluster.url(), ..StoreOptions::default() };
            Arc::new(Counted::new(Etcd::connect(&options).await.unwrap(), &grants)) as _
        }
    })
}

#[cfg(feature = "k8s")]
conformance_tests!(kubernetes, on_kubernetes(), elections only);

#[cfg(feature = "k8s")]
fn on_kubernetes() -> Subject {
    use tenure::backend::StoreOptions;
    use tenure::backend::kubernetes::Kubernetes;
    use tenure_testkit::rig::{KubeApi, real_kubernetes};
    let real = real_kubernetes().unwrap();
    let api = real.is_none().then(|| KubeApi::start().unwrap()).map(Arc::new);
    Subject::new(move || {
        let (real, api) = (real.clone(), api.clone());
        async move {
            let url = real.or(api.map(|api| api.url("prod"))).unwrap();
            let options = StoreOptions { url, ..StoreOptions::default() };
            Arc::new(Kubernetes::connect(&options).await.unwrap()) as _
        }
    })
}

#[cfg(feature = "raft")]
conformance_tests!(raft, among_three());

/// Three members in this process, and clients of them.
#[cfg(feature = "raft")]
fn among_three() -> Subject {
    use tenure::backend::StoreOptions;
    use tenure::backend::raft::Raft;
    use tenure_testkit::conformance::counted::{Counted, Grants};
    use tenure_testkit::rig::free_port;
    use tokio::sync::OnceCell;
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let peers: Vec<String> =
        (1..=3).map(|node| format!("{node}@127.0.0.1:{}", free_port().unwrap())).collect();
    let peers = peers.join(",");
    let members: Arc<OnceCell<Vec<Raft>>> = Arc::default();
    let grants = Grants::default();
    Subject::new(move || {
        let (folder, peers, members, grants) =
            (folder.clone(), peers.clone(), members.clone(), grants.clone());
        async move {
            let open = async |url: String| {
                Raft::connect(&StoreOptions { url, ..StoreOptions::default() }).await.unwrap()
            };
            members
                .get_or_init(async || {
                    let mut members: Vec<Raft> = Vec::new();
                    for node in 1..=3 {
                        let folder = folder.path().join(node.to_string());
                        let url = format!("raft:{}?node={node}&peers={peers}", folder.display());
                        members.push(open(url).await);
                    }
                    for member in &members {
                        member.gathered().await.unwrap();
                    }
                    members
                })
                .await;
            Arc::new(Counted::new(open(format!("raft:?peers={peers}")).await, &grants)) as _
        }
    })
}
