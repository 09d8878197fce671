//! A Tenure server as a store, held to the same claims as the store behind it.

#[path = "remote/access.rs"]
mod access;
#[path = "remote/claims.rs"]
mod claims;
#[path = "remote/events.rs"]
mod events;
#[path = "remote/schedules.rs"]
mod schedules;
mod support;
#[path = "remote/tls.rs"]
mod tls;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::{Kept, Replica, http};
use tenure_testkit::conformance::Subject;
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

/// Two servers on one store, and clients of either in turn.
async fn served(store: Kept) -> Subject {
    let replicas = [Replica::start(store.backend()).await, Replica::start(store.backend()).await];
    let served = Arc::new((replicas, store));
    let turn = AtomicUsize::new(0);
    Subject::new(move || {
        let n = turn.fetch_add(1, Ordering::Relaxed);
        let served = served.clone();
        async move { http(&served.0[n % 2].url()).await }
    })
}
