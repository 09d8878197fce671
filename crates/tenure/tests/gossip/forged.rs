//! Whom nobody believes.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::backend::gossip::{Dropped, Gossip, Presence};
use tokio::net::UdpSocket;

use super::{cluster, live, options, until};

/// Waits until a member has dropped so many for this reason.
async fn dropped(member: &Gossip, why: Dropped, least: u64) {
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
async fn noise_is_dropped_and_counted() {
    let members = cluster(&["a", "b"]).await;
    let (stranger, at) = (socket().await, members[0].address());
    stranger.send_to(b"hello", at).await.unwrap();
    stranger.send_to(&[0; 200], at).await.unwrap();
    stranger.send_to(&vec![b'T'; 30_000], at).await.unwrap();
    dropped(&members[0], Dropped::Malformed, 2).await;
    dropped(&members[0], Dropped::Oversized, 1).await;
    assert_eq!(live(&members[0]), ["a", "b"]);
}

#[tokio::test]
async fn who_does_not_know_the_secret_is_not_heard() {
    let a = Gossip::join(options("a")).await.unwrap();
    let stranger = options("mallory").secret("another secret entirely").seed(a.address().to_string());
    let stranger = Gossip::join(stranger).await.unwrap();
    dropped(&a, Dropped::Forged, 5).await;
    assert_eq!((live(&a), live(&stranger)), (vec!["a".to_owned()], vec!["mallory".to_owned()]));
}

#[tokio::test]
async fn members_of_another_cluster_are_not_heard() {
    let a = Gossip::join(options("a")).await.unwrap();
    let other = options("b").cluster("staging").seed(a.address().to_string());
    let other = Gossip::join(other).await.unwrap();
    dropped(&a, Dropped::Foreign, 5).await;
    assert_eq!((live(&a), live(&other)), (vec!["a".to_owned()], vec!["b".to_owned()]));
}

/// Passes on what comes for a member, and keeps it.
struct Tap {
    address: SocketAddr,
    kept: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Tap {
    async fn before(member: SocketAddr) -> Tap {
        let (outside, inside) = (socket().await, socket().await);
        let address = outside.local_addr().unwrap();
        let kept: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let keep = kept.clone();
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
        Tap { address, kept }
    }
}

#[tokio::test]
async fn what_was_recorded_moves_nobody_and_brings_nobody_back() {
    let a = Gossip::join(options("a")).await.unwrap();
    let tap = Tap::before(a.address()).await;
    let b = Gossip::join(options("b").seed(tap.address.to_string())).await.unwrap();
    let id = b.id().to_owned();
    until(&a, |seen| live(seen) == ["a", "b"]).await;
    b.set("says", "something").await.unwrap();
    until(&a, |seen| seen.entries("says").len() == 1).await;
    b.set("says", "something else").await.unwrap();
    until(&a, |seen| seen.entries("says")[0].value == "something else").await;
    // It talks to us directly by now, too; let there be a good many through the tap.
    while tap.kept.lock().unwrap().len() < 20 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(b);
    until(&a, |seen| seen.roster().member(&id).is_none_or(|member| member.presence == Presence::Silent))
        .await;

    let recorded = tap.kept.lock().unwrap().clone();
    let thief = socket().await;
    for datagram in &recorded {
        thief.send_to(datagram, a.address()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    dropped(&a, Dropped::Replayed, 10).await;
    assert_eq!(live(&a), ["a"]);

    // Nor to one that never heard of it, and can not know its numbers.
    let c = Gossip::join(options("c")).await.unwrap();
    for datagram in &recorded {
        thief.send_to(datagram, c.address()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    dropped(&c, Dropped::Replayed, 10).await;
    assert_eq!(live(&c), ["c"]);
    assert!(c.roster().member(&id).is_none());
}
