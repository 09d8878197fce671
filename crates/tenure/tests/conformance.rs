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
