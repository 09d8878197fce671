//! The cost of reads is independent of unrelated data, and reads survive compaction.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use tenure::port::ObserveScope;
use tenure_testkit::conformance::{TestSession, election};
use tenure_testkit::rig::EtcdCluster;

use crate::proxy::Proxy;
use crate::{actor, client};

/// Response size of each call in bytes.
async fn costs(proxy: &Proxy, round: u32) -> Vec<(&'static str, u64)> {
    let [a, b] = [actor(&proxy.url(), "a").await, actor(&proxy.url(), "b").await];
    let key = election(&format!("mine{round}"));
    let mut costs = vec![
        ("join", proxy.answered(a.join(&key)).await),
        ("join", proxy.answered(b.join(&key)).await),
        ("beat", proxy.answered(a.is_live()).await),
        ("observe", proxy.answered(b.store.observe(&b.id, &ObserveScope::Contested)).await),
        ("sessions", proxy.answered(b.store.sessions(Some(std::slice::from_ref(&a.id)))).await),
    ];
    let bid = a.take_request(&key, 0).await;
    costs.push(("take", proxy.answered(a.store.take_lease(&bid)).await));
    let overbid = b.takeover_request(&key, 0).await;
    costs.push(("expire", proxy.answered(b.store.expire_session(overbid.expire.as_ref().unwrap())).await));
    let token = b.take(&key, 0).await;
    costs.push(("release", proxy.answered(b.release(&key, 0, token)).await));
    costs.push(("end", proxy.answered(b.store.end_session(&b.id)).await));
    assert!(!a.is_live().await);
    costs
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_reads_unrelated_data() {
    let cluster = EtcdCluster::start().unwrap();
    let proxy = Proxy::to(cluster.port(0), Arc::new(|_| {})).await;
    let alone = costs(&proxy, 0).await;
    let direct = Arc::new(client(&cluster.url()).await);
    for number in 0..120 {
        let unrelated = TestSession::open(direct.clone(), "other").await;
        unrelated.join(&election(&format!("theirs{}", number % 40))).await;
    }
    let with_others = costs(&proxy, 1).await;
    for ((what, alone), (_, with_others)) in alone.into_iter().zip(with_others) {
        assert!(
            with_others < alone + 2_000,
            "{what} reads {with_others} bytes with unrelated sessions, {alone} bytes without them"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_of_a_compacted_revision_is_retried() {
    let cluster = Arc::new(EtcdCluster::start().unwrap());
    let (moments, forget) = (Arc::new(AtomicU32::new(0)), Arc::new(OnceLock::<()>::new()));
    let proxy = {
        let (port, cluster) = (cluster.port(0), cluster.clone());
        let (moments, forget) = (moments.clone(), forget.clone());
        // A new candidate is read at the revision of the election, which is compacted by then.
        let callback = move |request: &[u8]| {
            let old = request.windows(11).any(|window| window == b"\"revision\":");
            if old && forget.get().is_some() && moments.fetch_add(1, Ordering::SeqCst) == 0 {
                cluster.etcdctl(&["put", "another", "thing"]).unwrap();
                compact(&cluster);
            }
        };
        Proxy::to(port, Arc::new(callback)).await
    };
    let (a, b) = (actor(&proxy.url(), "a").await, actor(&cluster.url(), "b").await);
    let key = election("e");
    a.join(&key).await;
    b.join(&key).await;
    forget.set(()).unwrap();
    let view = a.view(&key).await;
    assert_eq!(view.candidates.len(), 2);
    assert!(moments.load(Ordering::SeqCst) >= 1, "no revision was compacted during the read");
}

#[tokio::test(flavor = "multi_thread")]
async fn elections_continue_during_compaction() {
    let cluster = EtcdCluster::start().unwrap();
    let [a, b] = [actor(&cluster.url(), "a").await, actor(&cluster.url(), "b").await];
    let key = election("e");
    let mut notifications = b.store.notifications();
    assert_eq!(notifications.next().await, Some(tenure::port::Notification::Resync));
    let mut last = tenure::Token::ZERO;
    for round in 0..6 {
        let candidate = [&a, &b][round % 2];
        candidate.join(&key).await;
        compact(&cluster);
        let token = candidate.take(&key, 0).await;
        assert!(token > last, "{token} after {last}");
        last = token;
        compact(&cluster);
        assert!(a.is_live().await && b.is_live().await);
        candidate.release(&key, 0, token).await;
    }
    cluster.etcdctl(&["defrag"]).unwrap();
    // Notifications still arrive.
    a.join(&key).await;
    let token = a.take(&key, 0).await;
    a.release(&key, 0, token).await;
    let released = |notification: &tenure::port::Notification| matches!(notification, tenure::port::Notification::LeaseReleased { token: of, .. } if *of == token);
    while !released(&notifications.next().await.unwrap()) {}
}

/// Compact all revisions except the last.
fn compact(cluster: &EtcdCluster) {
    let status = cluster.etcdctl(&["endpoint", "status", "-w", "fields"]).unwrap();
    let revision = status.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).unwrap();
    // The revision may already be compacted.
    let _ = cluster.etcdctl(&["compaction", revision, "--physical"]);
}
