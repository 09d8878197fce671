//! Every backend, held to the same claims.

use std::sync::Arc;

use tenure::backend::memory::Memory;
use tenure_testkit::conformance::Subject;
use tenure_testkit::conformance_tests;

conformance_tests!(memory, {
    let store = Memory::new();
    Subject::new(move || {
        let store = store.clone();
        async move { Arc::new(store) as _ }
    })
});

#[cfg(feature = "sqlite")]
conformance_tests!(sqlite, {
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
});

#[cfg(feature = "postgres")]
conformance_tests!(postgres, {
    use tenure::backend::migrations::Migrate;
    use tenure::backend::postgres::{Postgres, PostgresOptions};
    let database = Arc::new(tenure_testkit::rig::fresh_database().unwrap());
    Subject::new(move || {
        let database = database.clone();
        async move {
            let options = PostgresOptions::new(database.url());
            Postgres::connect_unchecked(options.clone()).await.unwrap().migrate().await.unwrap();
            Arc::new(Postgres::connect(options).await.unwrap()) as _
        }
    })
});
