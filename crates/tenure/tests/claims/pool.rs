//! Resources of pools, asked for and given back.

use std::time::Duration;

use tenure::backend::memory::Memory;
use tenure::port::*;
use tenure::{Error, Name, Stop, Tenure};
use tenure_testkit::block_on;

use crate::spy::{Fault, Spy};
use crate::support::*;

fn pool_key() -> PoolKey {
    PoolKey::new(Name::default_namespace(), "hosts".parse().unwrap())
}

#[test]
fn a_request_waits_until_one_is_given_back_and_the_same_key_is_the_same_grant() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let hosts = tenure.pool("hosts").unwrap();
        hosts.add("h1", ["gpu"]).await.unwrap();
        let first = hosts.request().require("gpu").key("job-7").wait(Duration::ZERO).await.unwrap().unwrap();
        let again = hosts.request().require("gpu").key("job-7").wait(Duration::ZERO).await.unwrap().unwrap();
        assert_eq!((first.token(), first.request().id), (again.token(), again.request().id));
        assert!(hosts.request().require("tpu").wait(Duration::ZERO).await.unwrap().is_none());
        let waiting = tokio::spawn(hosts.request().prefer("ssd").wait(60 * SECOND));
        clock.advance(10 * SECOND).await;
        assert!(!waiting.is_finished());
        let token = first.token();
        first.release().await.unwrap();
        clock.settle().await;
        assert!(waiting.is_finished(), "the hint was enough");
        let next = waiting.await.unwrap().unwrap().unwrap();
        assert!(next.token() > token);
        assert!(matches!(again.release().await, Err(Error::GrantLost(_))), "it was given back already");
        assert!(next.is_held());
    });
}

#[test]
fn who_stops_waiting_and_who_drops_a_grant_leaves_nothing_behind() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let hosts = tenure.pool("hosts").unwrap();
        hosts.add("h1", ["gpu"]).await.unwrap();
        let grant = hosts.request().wait(Duration::ZERO).await.unwrap().unwrap();
        let waiting = tokio::spawn(hosts.request().wait(60 * SECOND));
        clock.settle().await;
        assert_eq!(hosts.view().await.unwrap().unwrap().waiting.len(), 1);
        waiting.abort();
        drop(grant);
        clock.settle().await;
        let view = hosts.view().await.unwrap().unwrap();
        assert!(view.waiting.is_empty() && view.resources[0].holder.is_none(), "{view:?}");
    });
}

/// The first caller's give-back is under way when the second asks under the same key: it must not take the second's grant.
#[test]
fn who_asks_again_under_a_key_keeps_what_it_gets() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let hosts = tenure.pool("hosts").unwrap();
        hosts.add("h1", ["gpu"]).await.unwrap();
        let other = hosts.request().wait(Duration::ZERO).await.unwrap().unwrap();
        let first = tokio::spawn(hosts.request().key("k").wait(60 * SECOND));
        clock.settle().await;
        store.fault("pool_request", Some(Fault::Waits));
        first.abort();
        clock.settle().await;
        let second = tokio::spawn(hosts.request().key("k").wait(60 * SECOND));
        clock.settle().await;
        other.release().await.unwrap();
        clock.settle().await;
        store.fault("pool_request", None);
        clock.settle().await;
        let second = second.await.unwrap().unwrap().unwrap();
        clock.advance(30 * SECOND).await;
        let holder = |view: PoolView| view.resources[0].holder.as_ref().map(|holder| holder.id);
        let view = hosts.view().await.unwrap().unwrap();
        assert_eq!(holder(view), Some(second.request().id), "it is the second's, and stays so");
        // Two at once: the last one gives it back.
        let third = hosts.request().key("k").wait(Duration::ZERO).await.unwrap().unwrap();
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
fn what_can_not_be_given_back_at_once_is_given_back_later() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let hosts = tenure.pool("hosts").unwrap();
        hosts.add("h1", ["gpu"]).await.unwrap();
        let grant = hosts.request().wait(Duration::ZERO).await.unwrap().unwrap();
        store.fault("handle_request", Some(Fault::Fails));
        drop(grant);
        clock.advance(10 * SECOND).await;
        store.fault("handle_request", None);
        clock.advance(10 * SECOND).await;
        let view = hosts.view().await.unwrap().unwrap();
        assert!(view.resources[0].holder.is_none(), "{view:?}");
        // Made, and the answer is lost: nobody knows its number.
        store.fault("request", Some(Fault::AnswerLost));
        hosts.request().wait(600 * SECOND).await.unwrap_err();
        assert_eq!(hosts.view().await.unwrap().unwrap().waiting.len(), 1);
        store.fault("request", None);
        clock.advance(10 * SECOND).await;
        let view = hosts.view().await.unwrap().unwrap();
        assert!(view.waiting.is_empty() && view.resources[0].holder.is_none(), "{view:?}");
    });
}

fn request_of(tenure: &Tenure) -> NewRequest {
    NewRequest {
        key: "k".into(),
        owner: "ada".into(),
        requires: Vec::new(),
        prefers: Vec::new(),
        base: BASE_PRIORITY,
        session: tenure.session(),
        hold_ms: None,
        max_wait_ms: None,
    }
}

/// A resource that became free reached a request that no process waits on only at the next poll.
#[test]
fn a_free_resource_reaches_a_request_that_nobody_waits_on_at_once() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        tenure.claims().stand().await.unwrap();
        clock.advance(15 * SECOND).await;
        let pool = tenure.pool("hosts").unwrap();
        pool.set(&PoolSettings::default()).await.unwrap();
        let made = store.store.request(pool.key(), &request_of(&tenure)).await.unwrap();
        clock.advance(15 * SECOND).await;
        pool.add("h1", ["gpu"]).await.unwrap();
        clock.advance(Duration::from_millis(100)).await;
        let now = store.store.pool_request(&pool.key().namespace, made.id).await.unwrap().unwrap();
        assert_eq!(now.state, RequestState::Granted);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_nobody_waits_on_is_granted_by_the_keeper() {
    let store = Spy::new(Memory::new());
    let tenure = real_process(&store, "a").await;
    tenure.claims().stand().await.unwrap();
    for (name, mode) in [("shared", Mode::Distributed), ("strict", Mode::Exclusive)] {
        let pool = tenure.pool(name).unwrap();
        pool.set(&PoolSettings { mode, ..PoolSettings::default() }).await.unwrap();
        let request = request_of(&tenure);
        let made = store.store.request(pool.key(), &request).await.unwrap();
        pool.add("h1", ["gpu"]).await.unwrap();
        until("it is granted", async || {
            let now = store.store.pool_request(&pool.key().namespace, made.id).await.unwrap().unwrap();
            now.state == RequestState::Granted
        })
        .await;
    }
    tenure.close().await.unwrap();
}

#[test]
fn a_grant_is_lost_with_its_time_its_session_or_by_an_operator() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let hosts = tenure.pool("hosts").unwrap();
        hosts.add("h1", ["gpu"]).await.unwrap();

        let short = hosts.request().hold(5 * SECOND).wait(Duration::ZERO).await.unwrap().unwrap();
        short.extend(20 * SECOND).await.unwrap();
        clock.advance(15 * SECOND).await;
        assert!(short.is_held());
        clock.advance(6 * SECOND).await;
        assert_eq!(short.lost().await, Stop::RunOver);
        drop(short);
        clock.settle().await;

        let recalled = hosts.request().wait(Duration::ZERO).await.unwrap().unwrap();
        let (id, token) = (recalled.request().id, recalled.token());
        let lost = tokio::spawn(async move { (recalled.lost().await, recalled) });
        clock.settle().await;
        assert!(!lost.is_finished());
        let (namespace, owner) = (Name::default_namespace(), "a");
        store.store.handle_request(&namespace, id, owner, Some(token), Handle::Release).await.unwrap();
        clock.settle().await;
        assert_eq!(lost.await.unwrap().0, Stop::CalledOff);

        let cut_off = hosts.request().wait(Duration::ZERO).await.unwrap().unwrap();
        store.fault("beat", Some(Fault::Fails));
        clock.advance(10 * SECOND).await;
        assert!(!cut_off.is_held());
        assert_eq!(cut_off.lost().await, Stop::SessionLost);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_exclusive_mode_the_leader_hands_out_wherever_it_is_asked() {
    let memory = Memory::new();
    let (one, two) = (Spy::new(memory.clone()), Spy::new(memory));
    let (a, b) = (real_process(&one, "a").await, real_process(&two, "b").await);
    a.claims().stand().await.unwrap();
    until("the first leads", async || one.store.post().await.unwrap().is_some()).await;
    let exclusive = PoolSettings { mode: Mode::Exclusive, ..PoolSettings::default() };
    let (here, there) = (a.pool("hosts").unwrap(), b.pool("hosts").unwrap());
    here.set(&exclusive).await.unwrap();
    here.add("h1", ["gpu"]).await.unwrap();
    here.add("h2", ["gpu"]).await.unwrap();
    let first = there.request().require("gpu").wait(60 * SECOND).await.unwrap().unwrap();
    let second = here.request().require("gpu").wait(60 * SECOND).await.unwrap().unwrap();
    assert_ne!(first.resource(), second.resource());
    let (plain, urgent) = (
        tokio::spawn(there.request().require("gpu").wait(60 * SECOND)),
        tokio::spawn(here.request().require("gpu").base(500).wait(60 * SECOND)),
    );
    let waiting = async || here.view().await.unwrap().unwrap().waiting.len() == 2;
    until("both wait", waiting).await;
    first.release().await.unwrap();
    let urgent = urgent.await.unwrap().unwrap().unwrap();
    assert!(!plain.is_finished(), "the one of higher priority was first");
    urgent.release().await.unwrap();
    assert!(plain.await.unwrap().unwrap().is_some());
    assert_eq!(one.store.pool(&pool_key()).await.unwrap().unwrap().settings.mode, Mode::Exclusive);
    second.release().await.unwrap();
    b.close().await.unwrap();
    a.close().await.unwrap();
}
