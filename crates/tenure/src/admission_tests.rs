use std::net::Ipv4Addr;

use futures_util::FutureExt;

use super::*;
use crate::runtime::SystemRuntime;

const LIMITS: ConnectionLimits = ConnectionLimits { total: 8, per_address: 3, handshakes: 4 };

fn admission() -> Arc<Admission> {
    Admission::new("test", LIMITS, Arc::new(SystemRuntime))
}

fn host(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, number))
}

/// A silent connection. The task returns the error kind it is closed with.
fn silent(mut admitted: Admitted) -> tokio::task::JoinHandle<io::ErrorKind> {
    tokio::spawn(async move {
        let silence = std::future::pending::<io::Result<()>>();
        admitted.handshake(Duration::from_secs(3_600), silence).await.unwrap_err().kind()
    })
}

async fn authenticated(admission: &Arc<Admission>, from: IpAddr) -> io::Result<Admitted> {
    let mut admitted = admission.admit(from).await;
    admitted.handshake(Duration::from_secs(3_600), async { Ok(()) }).await.map(|()| admitted)
}

#[tokio::test]
async fn a_full_pool_evicts_the_oldest_connection_of_the_address_with_the_most() {
    let admission = admission();
    let mut all = vec![silent(admission.admit(host(1)).await)];
    for _ in 0..3 {
        all.push(silent(admission.admit(host(2)).await));
    }
    // The pool is full. A connection from host 3 and another one from host 2 each evict one of host 2.
    all.push(silent(admission.admit(host(3)).await));
    all.push(silent(admission.admit(host(2)).await));
    let over: Vec<bool> = all.iter().map(|connection| connection.is_finished()).collect();
    assert_eq!(over, [false, true, true, false, false, false]);
    assert_eq!(all.remove(1).await.unwrap(), io::ErrorKind::ConnectionAborted);
}

#[tokio::test]
async fn a_client_that_authenticates_connects_during_a_flood_of_silent_ones() {
    let admission = admission();
    let mut silent_ones = Vec::new();
    let mut open = Vec::new();
    for round in 0..100 {
        silent_ones.push(silent(admission.admit(host(1)).await));
        if round % 40 == 0 {
            open.push(authenticated(&admission, host(1)).await.unwrap());
        }
    }
    assert_eq!(open.len(), 3);
    assert!(silent_ones.iter().filter(|connection| !connection.is_finished()).count() <= LIMITS.handshakes);
}

#[tokio::test]
async fn a_place_is_free_only_after_its_connection_is_closed() {
    let admission = admission();
    let mut held: Vec<Admitted> = Vec::new();
    for _ in 0..LIMITS.handshakes {
        held.push(admission.admit(host(1)).await);
    }
    let mut next = std::pin::pin!(admission.admit(host(1)));
    assert!((&mut next).now_or_never().is_none(), "the oldest was notified and is still open");
    held.remove(0);
    assert!(next.now_or_never().is_some());
}

#[tokio::test]
async fn authenticated_connections_are_limited_per_address_and_in_total() {
    let admission = admission();
    let mut open = Vec::new();
    for _ in 0..LIMITS.per_address {
        open.push(authenticated(&admission, host(1)).await.unwrap());
    }
    let refused = authenticated(&admission, host(1)).await.map(drop).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    // `total` includes the handshakes: there is room for one more.
    open.push(authenticated(&admission, host(2)).await.unwrap());
    assert!(authenticated(&admission, host(3)).await.is_err());
    open.pop();
    assert!(authenticated(&admission, host(3)).await.is_ok());
}

#[tokio::test]
async fn a_handshake_that_times_out_frees_its_place() {
    let admission = admission();
    let mut admitted = admission.admit(host(1)).await;
    let late = admitted.handshake(Duration::ZERO, std::future::pending::<io::Result<()>>()).await;
    assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
    drop(admitted);
    assert!(admission.locked().handshakes.is_empty());
}

#[test]
fn all_addresses_of_an_ipv6_host_count_as_one() {
    let parse = |text: &str| network_of(text.parse().unwrap());
    assert_eq!(parse("2001:db8::1"), parse("2001:db8::ffff:2"));
    assert_ne!(parse("2001:db8::1"), parse("2001:db8:0:1::1"));
    assert_eq!(parse("::ffff:10.0.0.1"), host(1));
}

#[test]
fn the_limits_leave_half_of_the_files_for_other_uses() {
    let few = ConnectionLimits::for_open_files(256);
    assert_eq!(few, ConnectionLimits { total: 128, per_address: 96, handshakes: 16 });
    assert_eq!(ConnectionLimits::for_open_files(1 << 20).total, 1_024);
}
