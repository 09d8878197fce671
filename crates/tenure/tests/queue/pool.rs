//! Pool requests and resource leases.

use std::time::Duration;

use tenure::port::*;
use tenure::store::memory::MemoryStore;
use tenure::{ClaimLossReason, Error, Name, Tenure};
use tenure_testkit::block_on;

use crate::instrumented_store::{Fault, InstrumentedStore};
use crate::support::*;

fn pool_key() -> PoolKey {
    PoolKey::new(Name::default_namespace(), "hosts".parse().unwrap())
}

#[test]
fn a_request_waits_for_a_release_and_the_same_key_returns_the_same_lease() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let hosts = tenure.pool("hosts").unwrap();
        hosts.add("h1", ["gpu"]).await.unwrap();
        let first = hosts
            .request()
            .required_tag("gpu")
            .idempotency_key("job-7")
            .wait(Duration::ZERO)
            .await
            .unwrap()
            .unwrap();
        let again = hosts
            .request()
            .required_tag("gpu")
            .idempotency_key("job-7")
            .wait(Duration::ZERO)
            .await
            .unwrap()
            .unwrap();
        assert_eq!((first.token(), first.request().id), (again.token(), again.request().id));
        assert!(hosts.request().required_tag("tpu").wait(Duration::ZERO).await.unwrap().is_none());
        let waiting = tokio::spawn(hosts.request().preferred_tag("ssd").wait(60 * SECOND));
        clock.advance(10 * SECOND).await;
        assert!(!waiting.is_finished());
        let token = first.token();
        first.release().await.unwrap();
        clock.settle().await;
        assert!(waiting.is_finished(), "the notification was enough");
        let next = waiting.await.unwrap().unwrap().unwrap();
        assert!(next.token() > token);
        assert!(matches!(again.release().await, Err(Error::ResourceLeaseLost(_))), "it was already released");
        assert!(next.is_held());
    });
}

#[test]
fn a_dropped_request_or_lease_leaves_nothing_behind() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let hosts = tenure.pool("hosts").unwrap();
        hosts.add("h1", ["gpu"]).await.unwrap();
        let lease = hosts.request().wait(Duration::ZERO).await.unwrap().unwrap();
        let waiting = tokio::spawn(hosts.request().wait(60 * SECOND));
        clock.settle().await;
        assert_eq!(hosts.view().await.unwrap().unwrap().waiting_requests.len(), 1);
        waiting.abort();
        drop(lease);
        clock.settle().await;
        let view = hosts.view().await.unwrap().unwrap();
        assert!(view.waiting_requests.is_empty() && view.resources[0].held_by.is_none(), "{view:?}");
    });
}

/// The release by the first caller runs when the second one requests under the same key: it must not end the
/// second one's lease.
#[test]
fn a_repeated_request_under_a_key_keeps_its_lease() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let hosts = tenure.pool("hosts").unwrap();
        hosts.add("h1", ["gpu"]).await.unwrap();
        let other = hosts.request().wait(Duration::ZERO).await.unwrap().unwrap();
        let first = tokio::spawn(hosts.request().idempotency_key("k").wait(60 * SECOND));
        clock.settle().await;
        store.fault("pool_request", Some(Fault::Waits));
        first.abort();
        clock.settle().await;
        let second = tokio::spawn(hosts.request().idempotency_key("k").wait(60 * SECOND));
        clock.settle().await;
        other.release().await.unwrap();
        clock.settle().await;
        store.fault("pool_request", None);
        clock.settle().await;
        let second = second.await.unwrap().unwrap().unwrap();
        clock.advance(30 * SECOND).await;
        let holder = |view: PoolView| view.resources[0].held_by.as_ref().map(|holder| holder.id);
        let view = hosts.view().await.unwrap().unwrap();
        assert_eq!(holder(view), Some(second.request().id), "the second caller keeps it");
        // Two callers share the request: the last one releases it.
        let third = hosts.request().idempotency_key("k").wait(Duration::ZERO).await.unwrap().unwrap();
        assert_eq!(third.token(), second.token());
        drop(second);
        clock.settle().await;
        assert!(holder(hosts.view().await.unwrap().unwrap()).is_some());
        drop(third);
        clock.settle().await;
        assert_eq!(holder(hosts.view().await.unwrap().unwrap()), None);
    });
}

#[test]
fn a_failed_release_is_retried() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let hosts = tenure.pool("hosts").unwrap();
        hosts.add("h1", ["gpu"]).await.unwrap();
        let lease = hosts.request().wait(Duration::ZERO).await.unwrap().unwrap();
        store.fault("update_pool_request", Some(Fault::Fails));
        drop(lease);
        clock.advance(10 * SECOND).await;
        store.fault("update_pool_request", None);
        clock.advance(10 * SECOND).await;
        let view = hosts.view().await.unwrap().unwrap();
        assert!(view.resources[0].held_by.is_none(), "{view:?}");
        // The request is created and the response is lost: the client does not know its identifier.
        store.fault("create_pool_request", Some(Fault::ResponseLost));
        hosts.request().wait(600 * SECOND).await.unwrap_err();
        assert_eq!(hosts.view().await.unwrap().unwrap().waiting_requests.len(), 1);
        store.fault("create_pool_request", None);
        clock.advance(10 * SECOND).await;
        let view = hosts.view().await.unwrap().unwrap();
        assert!(view.waiting_requests.is_empty() && view.resources[0].held_by.is_none(), "{view:?}");
    });
}

fn request_of(tenure: &Tenure) -> PoolRequest {
    PoolRequest {
        idempotency_key: "k".into(),
        owner: "ada".into(),
        required_tags: Vec::new(),
        preferred_tags: Vec::new(),
        base_priority: BASE_PRIORITY,
        session: tenure.session(),
        claim_timeout_ms: None,
        max_wait_ms: None,
    }
}

/// Regression: a free resource was assigned to a request without a waiting process only at the next poll.
#[test]
fn a_free_resource_is_granted_at_once_to_a_request_without_a_waiting_caller() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        tenure.tasks().campaign_for_maintenance().await.unwrap();
        clock.advance(15 * SECOND).await;
        let pool = tenure.pool("hosts").unwrap();
        pool.set(&PoolSettings::default()).await.unwrap();
        let made = store.store.create_pool_request(pool.key(), &request_of(&tenure)).await.unwrap();
        clock.advance(15 * SECOND).await;
        pool.add("h1", ["gpu"]).await.unwrap();
        clock.advance(Duration::from_millis(100)).await;
        let now = store.store.pool_request(&pool.key().namespace, made.id).await.unwrap().unwrap();
        assert_eq!(now.state, PoolRequestState::Granted);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn maintenance_grants_a_request_without_a_waiting_caller() {
    let store = InstrumentedStore::new(MemoryStore::new());
    let tenure = real_process(&store, "a").await;
    tenure.tasks().campaign_for_maintenance().await.unwrap();
    for (name, mode) in [("shared", AssignmentMode::Distributed), ("strict", AssignmentMode::Exclusive)] {
        let pool = tenure.pool(name).unwrap();
        pool.set(&PoolSettings { mode, ..PoolSettings::default() }).await.unwrap();
        let request = request_of(&tenure);
        let made = store.store.create_pool_request(pool.key(), &request).await.unwrap();
        pool.add("h1", ["gpu"]).await.unwrap();
        until("the request is granted", async || {
            let now = store.store.pool_request(&pool.key().namespace, made.id).await.unwrap().unwrap();
            now.state == PoolRequestState::Granted
        })
        .await;
    }
    tenure.close().await.unwrap();
}

#[test]
fn a_resource_lease_ends_by_timeout_session_loss_or_operator() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let hosts = tenure.pool("hosts").unwrap();
        hosts.add("h1", ["gpu"]).await.unwrap();

        let short = hosts.request().claim_timeout(5 * SECOND).wait(Duration::ZERO).await.unwrap().unwrap();
        short.heartbeat(20 * SECOND).await.unwrap();
        clock.advance(15 * SECOND).await;
        assert!(short.is_held());
        clock.advance(6 * SECOND).await;
        assert_eq!(short.lost().await, ClaimLossReason::RunTimeExceeded);
        drop(short);
        clock.settle().await;

        let cancelled = hosts.request().wait(Duration::ZERO).await.unwrap().unwrap();
        let (id, token) = (cancelled.request().id, cancelled.token());
        let lost = tokio::spawn(async move { (cancelled.lost().await, cancelled) });
        clock.settle().await;
        assert!(!lost.is_finished());
        let (namespace, owner) = (Name::default_namespace(), "a");
        store
            .store
            .update_pool_request(&namespace, id, owner, Some(token), PoolRequestAction::Release)
            .await
            .unwrap();
        clock.settle().await;
        assert_eq!(lost.await.unwrap().0, ClaimLossReason::Cancelled);

        let cut_off = hosts.request().wait(Duration::ZERO).await.unwrap().unwrap();
        store.fault("heartbeat", Some(Fault::Fails));
        clock.advance(10 * SECOND).await;
        assert!(!cut_off.is_held());
        assert_eq!(cut_off.lost().await, ClaimLossReason::SessionLost);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_exclusive_mode_the_broker_assigns_resources_for_every_process() {
    let memory = MemoryStore::new();
    let (one, two) = (InstrumentedStore::new(memory.clone()), InstrumentedStore::new(memory));
    let (a, b) = (real_process(&one, "a").await, real_process(&two, "b").await);
    a.tasks().campaign_for_maintenance().await.unwrap();
    until("the first is broker", async || one.store.broker_endpoint().await.unwrap().is_some()).await;
    let exclusive = PoolSettings { mode: AssignmentMode::Exclusive, ..PoolSettings::default() };
    let (here, there) = (a.pool("hosts").unwrap(), b.pool("hosts").unwrap());
    here.set(&exclusive).await.unwrap();
    here.add("h1", ["gpu"]).await.unwrap();
    here.add("h2", ["gpu"]).await.unwrap();
    let first = there.request().required_tag("gpu").wait(60 * SECOND).await.unwrap().unwrap();
    let second = here.request().required_tag("gpu").wait(60 * SECOND).await.unwrap().unwrap();
    assert_ne!(first.resource(), second.resource());
    let (plain, urgent) = (
        tokio::spawn(there.request().required_tag("gpu").wait(60 * SECOND)),
        tokio::spawn(here.request().required_tag("gpu").base_priority(500).wait(60 * SECOND)),
    );
    let waiting = async || here.view().await.unwrap().unwrap().waiting_requests.len() == 2;
    until("both requests wait", waiting).await;
    first.release().await.unwrap();
    let urgent = urgent.await.unwrap().unwrap().unwrap();
    assert!(!plain.is_finished(), "the request of higher priority was first");
    urgent.release().await.unwrap();
    assert!(plain.await.unwrap().unwrap().is_some());
    assert_eq!(one.store.pool(&pool_key()).await.unwrap().unwrap().settings.mode, AssignmentMode::Exclusive);
    second.release().await.unwrap();
    b.close().await.unwrap();
    a.close().await.unwrap();
}
