//! The conformance suite, run against every store.

use std::sync::Arc;

use tenure::store::memory::MemoryStore;
use tenure_testkit::conformance::StoreUnderTest;
use tenure_testkit::{
    adoption_conformance_tests, claims_conformance_tests, conformance_tests, events_conformance_tests,
    schedules_conformance_tests,
};

conformance_tests!(memory, memory());
claims_conformance_tests!(memory_claims, memory());
events_conformance_tests!(memory_events, memory());
schedules_conformance_tests!(memory_schedules, memory());
adoption_conformance_tests!(memory_adoption, memory());

conformance_tests!(paired, separate_stores());
claims_conformance_tests!(paired_claims, separate_stores());
events_conformance_tests!(paired_events, separate_stores());
schedules_conformance_tests!(paired_schedules, separate_stores());

/// Elections in one store, everything else in another.
fn separate_stores() -> StoreUnderTest {
    use tenure::store::paired::PairedStore;
    let (elector, work) = (MemoryStore::new(), MemoryStore::new());
    StoreUnderTest::new(move || {
        let paired = PairedStore::new(Arc::new(elector.clone()), Arc::new(work.clone())).unwrap();
        async move { Arc::new(paired) as _ }
    })
}

fn memory() -> StoreUnderTest {
    let store = MemoryStore::new();
    StoreUnderTest::new(move || {
        let store = store.clone();
        async move { Arc::new(store) as _ }
    })
}

#[cfg(feature = "sqlite")]
conformance_tests!(sqlite, sqlite());
#[cfg(feature = "sqlite")]
claims_conformance_tests!(sqlite_claims, sqlite());
#[cfg(feature = "sqlite")]
events_conformance_tests!(sqlite_events, sqlite());
#[cfg(feature = "sqlite")]
schedules_conformance_tests!(sqlite_schedules, sqlite());
#[cfg(feature = "sqlite")]
adoption_conformance_tests!(sqlite_adoption, sqlite());

#[cfg(feature = "sqlite")]
fn sqlite() -> StoreUnderTest {
    use tenure::store::sqlite::{SqliteOptions, SqliteStore};
    let folder = Arc::new(tempfile::tempdir().unwrap());
    StoreUnderTest::new(move || {
        let folder = folder.clone();
        async move {
            let options = SqliteOptions::new(folder.path().join("tenure.db"));
            Arc::new(
                SqliteStore::open(options.busy_timeout(std::time::Duration::from_secs(20))).await.unwrap(),
            ) as _
        }
    })
}

#[cfg(feature = "postgres")]
conformance_tests!(postgres, postgres("tenure_server"));
#[cfg(feature = "postgres")]
claims_conformance_tests!(postgres_claims, postgres("tenure_runtime"));
#[cfg(feature = "postgres")]
events_conformance_tests!(postgres_events, postgres("tenure_runtime"));
#[cfg(feature = "postgres")]
schedules_conformance_tests!(postgres_schedules, postgres("tenure_runtime"));
#[cfg(feature = "postgres")]
adoption_conformance_tests!(postgres_adoption, postgres("tenure_runtime"));

#[cfg(feature = "postgres")]
fn postgres(role: &'static str) -> StoreUnderTest {
    use tenure::store::postgres::{PostgresOptions, PostgresStore};
    // As in production: one role owns the tables, servers (which store credentials) use another one, and
    // programs a third.
    let roles = tenure::store::roles_sql("postgres:").unwrap();
    let tables = tenure::store::migration_sql("postgres:").unwrap();
    let script = format!("{roles}\nSET ROLE tenure_owner;\n{tables}");
    let database = Arc::new(tenure_testkit::rig::prepared_database(&script).unwrap());
    StoreUnderTest::new(move || {
        let database = database.clone();
        async move {
            let options = PostgresOptions::new(database.url_as(role));
            Arc::new(PostgresStore::connect(options).await.unwrap()) as _
        }
    })
}

#[cfg(feature = "etcd")]
conformance_tests!(etcd, etcd(), elections only);

#[cfg(feature = "etcd")]
fn etcd() -> StoreUnderTest {
    use tenure::store::StoreOptions;
    use tenure::store::etcd::EtcdStore;
    use tenure_testkit::conformance::token_check::{GrantLog, TokenCheckedStore};
    let cluster = Arc::new(tenure_testkit::rig::EtcdCluster::start().unwrap());
    let grants = GrantLog::default();
    StoreUnderTest::new(move || {
        let (cluster, grants) = (cluster.clone(), grants.clone());
        async move {
            let options = StoreOptions { url: cluster.url(), ..StoreOptions::default() };
            Arc::new(TokenCheckedStore::new(EtcdStore::connect(&options).await.unwrap(), &grants)) as _
        }
    })
}

#[cfg(feature = "k8s")]
conformance_tests!(kubernetes, kubernetes(), elections only);

#[cfg(feature = "k8s")]
fn kubernetes() -> StoreUnderTest {
    use tenure::store::StoreOptions;
    use tenure::store::kubernetes::KubernetesStore;
    use tenure_testkit::rig::{KubeApi, real_kubernetes};
    let real = real_kubernetes().unwrap();
    let api = real.is_none().then(|| KubeApi::start().unwrap()).map(Arc::new);
    StoreUnderTest::new(move || {
        let (real, api) = (real.clone(), api.clone());
        async move {
            let url = real.or(api.map(|api| api.url("prod"))).unwrap();
            let options = StoreOptions { url, ..StoreOptions::default() };
            Arc::new(KubernetesStore::connect(&options).await.unwrap()) as _
        }
    })
}

#[cfg(feature = "raft")]
conformance_tests!(raft, raft_cluster());

/// Three members in this process, and clients of them.
#[cfg(feature = "raft")]
fn raft_cluster() -> StoreUnderTest {
    use tenure::store::StoreOptions;
    use tenure::store::raft::RaftStore;
    use tenure_testkit::conformance::token_check::{GrantLog, TokenCheckedStore};
    use tenure_testkit::rig::free_port;
    use tokio::sync::OnceCell;
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let peers: Vec<String> =
        (1..=3).map(|node| format!("{node}@127.0.0.1:{}", free_port().unwrap())).collect();
    let peers = peers.join(",");
    let members: Arc<OnceCell<Vec<RaftStore>>> = Arc::default();
    let grants = GrantLog::default();
    StoreUnderTest::new(move || {
        let (folder, peers, members, grants) =
            (folder.clone(), peers.clone(), members.clone(), grants.clone());
        async move {
            let open = async |url: String| {
                RaftStore::connect(&StoreOptions { url, ..StoreOptions::default() }).await.unwrap()
            };
            members
                .get_or_init(async || {
                    let mut members: Vec<RaftStore> = Vec::new();
                    for node in 1..=3 {
                        let folder = folder.path().join(node.to_string());
                        let url = format!("raft:{}?node={node}&peers={peers}", folder.display());
                        members.push(open(url).await);
                    }
                    for member in &members {
                        member.wait_for_leader().await.unwrap();
                    }
                    members
                })
                .await;
            Arc::new(TokenCheckedStore::new(open(format!("raft:?peers={peers}")).await, &grants)) as _
        }
    })
}
