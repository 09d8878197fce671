//! The HTTP store passes the same conformance suite as the store behind the server.

#[path = "remote/access.rs"]
mod access;
#[path = "remote/events.rs"]
mod events;
#[path = "remote/schedules.rs"]
mod schedules;
mod support;
#[path = "remote/tasks.rs"]
mod tasks;
#[path = "remote/tls.rs"]
mod tls;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::{Kept, Replica, http};
use tenure_testkit::conformance::StoreUnderTest;
use tenure_testkit::{
    claims_conformance_tests, conformance_tests, events_conformance_tests, schedules_conformance_tests,
};

conformance_tests!(over_memory, served(support::memory()).await, through a server);

conformance_tests!(over_sqlite, served(support::sqlite().await).await, through a server);

conformance_tests!(over_postgres, served(support::postgres().await).await, through a server);

claims_conformance_tests!(claims_over_memory, served(support::memory()).await, through a server);

claims_conformance_tests!(claims_over_sqlite, served(support::sqlite().await).await, through a server);

claims_conformance_tests!(claims_over_postgres, served(support::postgres().await).await, through a server);

events_conformance_tests!(events_over_memory, served(support::memory()).await, through a server);

events_conformance_tests!(events_over_sqlite, served(support::sqlite().await).await, through a server);

events_conformance_tests!(events_over_postgres, served(support::postgres().await).await, through a server);

schedules_conformance_tests!(schedules_over_memory, served(support::memory()).await, through a server);

schedules_conformance_tests!(schedules_over_sqlite, served(support::sqlite().await).await, through a server);

schedules_conformance_tests!(schedules_over_postgres, served(support::postgres().await).await, through a server);

/// Two servers on one store, with clients of each in turn.
async fn served(store: Kept) -> StoreUnderTest {
    let replicas = [Replica::start(store.backend()).await, Replica::start(store.backend()).await];
    let served = Arc::new((replicas, store));
    let turn = AtomicUsize::new(0);
    StoreUnderTest::new(move || {
        let n = turn.fetch_add(1, Ordering::Relaxed);
        let served = served.clone();
        async move { http(&served.0[n % 2].url()).await }
    })
}
