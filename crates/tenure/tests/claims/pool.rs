//! Resources of pools, asked for and given back.

use std::time::Duration;

use tenure::backend::memory::Memory;
use tenure::port::*;
use tenure::{Error, Name, Stop};
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
