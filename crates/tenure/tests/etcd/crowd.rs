//! What is read does not grow with what others keep, and survives that etcd forgets.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use tenure::port::Scope;
use tenure_testkit::conformance::{Actor, election};
use tenure_testkit::rig::EtcdCluster;

use crate::proxy::Proxy;
use crate::{actor, client};

/// What each call has etcd answer, in bytes.
async fn costs(proxy: &Proxy, round: u32) -> Vec<(&'static str, u64)> {
    let [a, b] = [actor(&proxy.url(), "a").await, actor(&proxy.url(), "b").await];
    let key = election(&format!("mine{round}"));
    let mut costs = vec![
        ("join", proxy.answered(a.stand(&key)).await),
        ("join", proxy.answered(b.stand(&key)).await),
        ("beat", proxy.answered(a.lives()).await),
        ("observe", proxy.answered(b.store.observe(&b.id, &Scope::Contested)).await),
        ("sessions", proxy.answered(b.store.sessions(Some(std::slice::from_ref(&a.id)))).await),
    ];
    let bid = a.bid(&key, 0).await;
    costs.push(("take", proxy.answered(a.store.take(&bid)).await));
    let overbid = b.overbid(&key, 0).await;
    costs.push(("expire", proxy.answered(b.store.expire(overbid.expire.as_ref().unwrap())).await));
    let token = b.take(&key, 0).await;
    costs.push(("release", proxy.answered(b.release(&key, 0, token)).await));
    costs.push(("end", proxy.answered(b.store.end(&b.id)).await));
    assert!(!a.lives().await);
    costs
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_reads_what_it_does_not_need() {
    let cluster = EtcdCluster::start().unwrap();
    let proxy = Proxy::to(cluster.port(0), Arc::new(|_| {})).await;
    let alone = costs(&proxy, 0).await;
    let direct = Arc::new(client(&cluster.url()).await);
    for number in 0..120 {
        let stranger = Actor::open(direct.clone(), "stranger").await;
        stranger.stand(&election(&format!("theirs{}", number % 40))).await;
    }
    let crowded = costs(&proxy, 1).await;
    for ((what, alone), (_, crowded)) in alone.into_iter().zip(crowded) {
        assert!(
            crowded < alone + 2_000,
            "{what} has etcd answer {crowded} bytes among strangers, and {alone} alone"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_compacted_away_while_it_is_read_is_read_again() {
    let cluster = Arc::new(EtcdCluster::start().unwrap());
    let (moments, forget) = (Arc::new(AtomicU32::new(0)), Arc::new(OnceLock::<()>::new()));
    let proxy = {
        let (port, cluster) = (cluster.port(0), cluster.clone());
        let (moments, forget) = (moments.clone(), forget.clone());
        // Whoever is new in an election is read at the revision at which the election was: which is gone by then.
        let look = move |asked: &[u8]| {
            let old = asked.windows(11).any(|window| window == b"\"revision\":");
            if old && forget.get().is_some() && moments.fetch_add(1, Ordering::SeqCst) == 0 {
                cluster.etcdctl(&["put", "another", "thing"]).unwrap();
                compact(&cluster);
            }
        };
        Proxy::to(port, Arc::new(look)).await
    };
    let (a, b) = (actor(&proxy.url(), "a").await, actor(&cluster.url(), "b").await);
    let key = election("e");
    a.stand(&key).await;
    b.stand(&key).await;
    forget.set(()).unwrap();
    let view = a.view(&key).await;
    assert_eq!(view.candidates.len(), 2);
    assert!(moments.load(Ordering::SeqCst) >= 1, "nothing was compacted");
}

#[tokio::test(flavor = "multi_thread")]
async fn elections_go_on_while_etcd_forgets() {
    let cluster = EtcdCluster::start().unwrap();
    let [a, b] = [actor(&cluster.url(), "a").await, actor(&cluster.url(), "b").await];
    let key = election("e");
    let mut hints = b.store.wakes();
    assert_eq!(hints.next().await, Some(tenure::port::Wake::Resync));
    let mut last = tenure::Token::ZERO;
    for round in 0..6 {
        let who = [&a, &b][round % 2];
        who.stand(&key).await;
        compact(&cluster);
        let token = who.take(&key, 0).await;
        assert!(token > last, "{token} after {last}");
        last = token;
        compact(&cluster);
        assert!(a.lives().await && b.lives().await);
        who.release(&key, 0, token).await;
    }
    cluster.etcdctl(&["defrag"]).unwrap();
    // And hints still come.
    a.stand(&key).await;
    let token = a.take(&key, 0).await;
    a.release(&key, 0, token).await;
    let released = |wake: &tenure::port::Wake| matches!(wake, tenure::port::Wake::Released { token: of, .. } if *of == token);
    while !released(&hints.next().await.unwrap()) {}
}

/// Has etcd forget all revisions but the last.
fn compact(cluster: &EtcdCluster) {
    let status = cluster.etcdctl(&["endpoint", "status", "-w", "fields"]).unwrap();
    let revision = status.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).unwrap();
    // Already forgotten is as good.
    let _ = cluster.etcdctl(&["compaction", revision, "--physical"]);
}
