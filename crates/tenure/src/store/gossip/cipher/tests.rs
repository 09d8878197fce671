use std::cell::Cell;

use super::*;

const SECRET: &str = "a secret of thirty-two bytes!!!!";

fn secrets(text: &str) -> Secrets {
    Secrets::parse(text).unwrap()
}

thread_local!(static DRAWN: Cell<u64> = const { Cell::new(0) });

fn draw() -> u64 {
    DRAWN.with(|drawn| drawn.replace(drawn.get() + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(7))
}

fn member() -> DatagramCipher {
    DatagramCipher::new(&secrets(SECRET), "prod", draw).unwrap()
}

fn part(cipher: &mut DatagramCipher, to: &ProcessNonce, message: &[u8]) -> Vec<u8> {
    cipher.encrypt(Kind::Fragment, to, &super::super::fragments::split(1, message).unwrap()[0]).unwrap()
}

#[test]
fn a_requested_nonce_is_sent_and_then_accepted() {
    let (mut a, mut b) = (member(), member());
    let request = a.encrypt(Kind::NonceRequest, &UNKNOWN_NONCE, &[]).unwrap();
    assert_eq!(b.open(&request), Ok(OpenedDatagram::NonceRequested(a.process_nonce)));
    let reply = b.encrypt(Kind::NonceReply, &a.process_nonce, &[]).unwrap();
    assert_eq!(a.open(&reply), Ok(OpenedDatagram::NonceReceived(b.process_nonce)));
    let datagram = part(&mut a, &b.process_nonce, b"hello");
    assert_eq!(b.open(&datagram), Ok(OpenedDatagram::Fragment(a.process_nonce, Some(b"hello".to_vec()))));
}

#[test]
fn a_changed_byte_anywhere_is_dropped() {
    let (mut a, mut b) = (member(), member());
    let datagram = part(&mut a, &b.process_nonce, b"hello");
    for at in 0..datagram.len() {
        let mut forged = datagram.clone();
        forged[at] ^= 1;
        let expected = match at {
            0..4 => DropReason::Malformed,
            4..8 => DropReason::Foreign,
            _ => DropReason::Forged,
        };
        assert_eq!(b.open(&forged), Err(expected), "byte {at}");
    }
}

#[test]
fn a_replayed_datagram_is_dropped_by_every_process() {
    let (mut a, mut b, mut c) = (member(), member(), member());
    let datagram = part(&mut a, &b.process_nonce, b"hello");
    assert!(b.open(&datagram).is_ok());
    assert_eq!(b.open(&datagram), Err(DropReason::Replayed));
    assert_eq!(c.open(&datagram), Ok(OpenedDatagram::Stale(a.process_nonce)));
    assert_eq!(a.open(&datagram), Err(DropReason::Replayed));
    // A restarted process drops it too.
    assert_eq!(member().open(&datagram), Ok(OpenedDatagram::Stale(a.process_nonce)));
}

#[test]
fn a_replayed_nonce_reply_is_dropped() {
    let (a, mut b, mut other) = (member(), member(), member());
    let reply = b.encrypt(Kind::NonceReply, &a.process_nonce, &[]).unwrap();
    assert_eq!(other.open(&reply), Err(DropReason::Replayed));
}

#[test]
fn a_process_that_forgets_senders_chooses_a_new_nonce() {
    let mut b = member();
    let first = b.process_nonce;
    let mut recorded = Vec::new();
    for _ in 0..=SENDERS_MAX {
        let datagram = part(&mut member(), &first, b"hello");
        let opened = b.open(&datagram);
        if b.process_nonce == first {
            assert!(matches!(opened, Ok(OpenedDatagram::Fragment(..))));
            recorded.push(datagram);
        }
    }
    assert_ne!(b.process_nonce, first);
    for datagram in recorded {
        assert!(matches!(b.open(&datagram), Ok(OpenedDatagram::Stale(_))));
    }
}

#[test]
fn other_secrets_and_other_clusters_are_dropped() {
    let mut b = member();
    let mut other_cluster = DatagramCipher::new(&secrets("another secret"), "prod", draw).unwrap();
    let mut foreign = DatagramCipher::new(&secrets(SECRET), "staging", draw).unwrap();
    assert_eq!(b.open(&part(&mut other_cluster, &b.process_nonce.clone(), b"x")), Err(DropReason::Forged));
    assert_eq!(b.open(&part(&mut foreign, &b.process_nonce.clone(), b"x")), Err(DropReason::Foreign));
    // With our cluster mark it is dropped too, because its key was derived from another cluster name.
    foreign.cluster = b.cluster;
    assert_eq!(b.open(&part(&mut foreign, &b.process_nonce.clone(), b"x")), Err(DropReason::Forged));
}

#[test]
fn a_datagram_of_wrong_size_is_dropped() {
    let mut b = member();
    assert_eq!(b.open(&[7; DATAGRAM_MAX + 1]), Err(DropReason::Oversized));
    for length in 0..HEADER {
        assert_eq!(b.open(&b"TNG1".repeat(10)[..length]), Err(DropReason::Malformed));
    }
}

#[test]
fn the_longest_fragment_fits_into_a_datagram() {
    let (mut a, b) = (member(), member());
    let message = vec![1; super::super::fragments::MESSAGE_MAX];
    for body in super::super::fragments::split(1, &message).unwrap() {
        assert!(a.encrypt(Kind::Fragment, &b.process_nonce, &body).unwrap().len() <= DATAGRAM_MAX);
    }
}

#[test]
fn a_member_with_two_secrets_accepts_both_and_encrypts_with_the_first() {
    let with = |text: &str| DatagramCipher::new(&secrets(text), "prod", draw).unwrap();
    let (mut old, mut new, mut both) = (with("old"), with("new"), with("new\nold"));
    for one in [&mut old, &mut new] {
        for _ in 0..2 {
            let datagram = part(one, &both.process_nonce.clone(), b"hello");
            assert_eq!(
                both.open(&datagram),
                Ok(OpenedDatagram::Fragment(one.process_nonce, Some(b"hello".to_vec())))
            );
        }
    }
    assert!(matches!(
        new.open(&part(&mut both, &new.process_nonce.clone(), b"hello")),
        Ok(OpenedDatagram::Fragment(..))
    ));
    assert_eq!(old.open(&part(&mut both, &old.process_nonce.clone(), b"hello")), Err(DropReason::Forged));
    assert_eq!(
        both.open(&part(&mut with("a third"), &both.process_nonce.clone(), b"x")),
        Err(DropReason::Forged)
    );
}
