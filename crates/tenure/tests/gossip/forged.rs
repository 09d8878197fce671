//! Datagrams and members that must be rejected.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::store::gossip::{DropReason, Gossip, GossipMemberState};
use tokio::net::UdpSocket;

use super::{cluster, live, options, until};

/// Wait until a member has dropped this many datagrams for a reason.
async fn dropped(member: &Gossip, why: DropReason, least: u64) {
    let waiting = async {
        while member.dropped(why) < least {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await;
    assert!(waited.is_ok(), "{} {}", member.dropped(why), why.as_str());
}

async fn socket() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").await.unwrap()
}

#[tokio::test]
async fn invalid_datagrams_are_dropped_and_counted() {
    let members = cluster(&["a", "b"]).await;
    let (outsider, at) = (socket().await, members[0].address());
    outsider.send_to(b"hello", at).await.unwrap();
    outsider.send_to(&[0; 200], at).await.unwrap();
    outsider.send_to(&vec![b'T'; 30_000], at).await.unwrap();
    dropped(&members[0], DropReason::Malformed, 2).await;
    dropped(&members[0], DropReason::Oversized, 1).await;
    assert_eq!(live(&members[0]), ["a", "b"]);
}

#[tokio::test]
async fn a_member_without_the_secret_is_ignored() {
    let a = Gossip::join(options("a")).await.unwrap();
    let outsider = options("mallory").secret("another secret entirely").seed(a.address().to_string());
    let outsider = Gossip::join(outsider).await.unwrap();
    dropped(&a, DropReason::Forged, 5).await;
    assert_eq!((live(&a), live(&outsider)), (vec!["a".to_owned()], vec!["mallory".to_owned()]));
}

#[tokio::test]
async fn members_of_another_cluster_are_ignored() {
    let a = Gossip::join(options("a")).await.unwrap();
    let other = options("b").cluster("staging").seed(a.address().to_string());
    let other = Gossip::join(other).await.unwrap();
    dropped(&a, DropReason::Foreign, 5).await;
    assert_eq!((live(&a), live(&other)), (vec!["a".to_owned()], vec!["b".to_owned()]));
}

/// Forwards the datagrams for a member, and records them.
struct RecordingProxy {
    address: SocketAddr,
    recorded_datagrams: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl RecordingProxy {
    async fn before(member: SocketAddr) -> RecordingProxy {
        let (outside, inside) = (socket().await, socket().await);
        let address = outside.local_addr().unwrap();
        let recorded_datagrams: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let keep = recorded_datagrams.clone();
        tokio::spawn(async move {
            let (mut there, mut here, mut back) = ([0; 2000], [0; 2000], None);
            loop {
                tokio::select! {
                    Ok((length, from)) = outside.recv_from(&mut there) => {
                        keep.lock().unwrap().push(there[..length].to_vec());
                        back = Some(from);
                        let _ = inside.send_to(&there[..length], member).await;
                    }
                    Ok((length, _)) = inside.recv_from(&mut here) => if let Some(back) = back {
                        let _ = outside.send_to(&here[..length], back).await;
                    },
                }
            }
        });
        RecordingProxy { address, recorded_datagrams }
    }
}

#[tokio::test]
async fn replayed_datagrams_have_no_effect() {
    let a = Gossip::join(options("a")).await.unwrap();
    let proxy = RecordingProxy::before(a.address()).await;
    let b = Gossip::join(options("b").seed(proxy.address.to_string())).await.unwrap();
    let id = b.id().to_owned();
    until(&a, |gossip| live(gossip) == ["a", "b"]).await;
    b.set("says", "something").await.unwrap();
    until(&a, |gossip| gossip.entries("says").len() == 1).await;
    b.set("says", "something else").await.unwrap();
    until(&a, |gossip| gossip.entries("says")[0].value == "something else").await;
    // The member also uses a direct connection by now; wait for enough datagrams through the proxy.
    while proxy.recorded_datagrams.lock().unwrap().len() < 20 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(b);
    until(&a, |gossip| {
        gossip.roster().member(&id).is_none_or(|member| member.state == GossipMemberState::Failed)
    })
    .await;

    let recorded = proxy.recorded_datagrams.lock().unwrap().clone();
    let attacker = socket().await;
    for datagram in &recorded {
        attacker.send_to(datagram, a.address()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    dropped(&a, DropReason::Replayed, 10).await;
    assert_eq!(live(&a), ["a"]);

    // A process that never received these numbers drops them too.
    let c = Gossip::join(options("c")).await.unwrap();
    for datagram in &recorded {
        attacker.send_to(datagram, c.address()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    dropped(&c, DropReason::Replayed, 10).await;
    assert_eq!(live(&c), ["c"]);
    assert!(c.roster().member(&id).is_none());
}
