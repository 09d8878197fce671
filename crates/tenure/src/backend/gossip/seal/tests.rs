use std::cell::Cell;

use super::*;

const SECRET: &[u8] = b"a secret of thirty-two bytes!!!!";

thread_local!(static DRAWN: Cell<u64> = const { Cell::new(0) });

fn draw() -> u64 {
    DRAWN.with(|drawn| drawn.replace(drawn.get() + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(7))
}

fn member() -> Seal {
    Seal::new(SECRET, "prod", draw).unwrap()
}

fn part(seal: &mut Seal, to: &Word, message: &[u8]) -> Vec<u8> {
    seal.seal(Kind::Part, to, &super::super::parts::cut(1, message).unwrap()[0]).unwrap()
}

#[test]
fn who_asks_for_a_word_is_told_and_then_heard() {
    let (mut a, mut b) = (member(), member());
    let mut ask = a.seal(Kind::Ask, &NOBODY, &[]).unwrap();
    assert_eq!(b.open(&mut ask), Ok(Opened::Asked(a.word)));
    let mut tell = b.seal(Kind::Tell, &a.word, &[]).unwrap();
    assert_eq!(a.open(&mut tell), Ok(Opened::Told(b.word)));
    let mut said = part(&mut a, &b.word, b"hello");
    assert_eq!(b.open(&mut said), Ok(Opened::Part(a.word, Some(b"hello".to_vec()))));
}

#[test]
fn a_changed_byte_anywhere_is_dropped() {
    let (mut a, mut b) = (member(), member());
    let said = part(&mut a, &b.word, b"hello");
    for at in 0..said.len() {
        let mut forged = said.clone();
        forged[at] ^= 1;
        let expected = match at {
            0..4 => Dropped::Malformed,
            4..8 => Dropped::Foreign,
            _ => Dropped::Forged,
        };
        assert_eq!(b.open(&mut forged), Err(expected), "byte {at}");
    }
}

#[test]
fn what_is_repeated_is_dropped_by_who_got_it_and_by_everybody_else() {
    let (mut a, mut b, mut c) = (member(), member(), member());
    let said = part(&mut a, &b.word, b"hello");
    assert!(b.open(&mut said.clone()).is_ok());
    assert_eq!(b.open(&mut said.clone()), Err(Dropped::Replayed));
    assert_eq!(c.open(&mut said.clone()), Ok(Opened::Stale(a.word)));
    assert_eq!(a.open(&mut said.clone()), Err(Dropped::Replayed));
    // And by the same process, started anew.
    assert_eq!(member().open(&mut said.clone()), Ok(Opened::Stale(a.word)));
}

#[test]
fn a_word_that_is_told_again_later_is_not_believed() {
    let (a, mut b, mut other) = (member(), member(), member());
    let mut tell = b.seal(Kind::Tell, &a.word, &[]).unwrap();
    assert_eq!(other.open(&mut tell), Err(Dropped::Replayed));
}

#[test]
fn who_forgets_senders_draws_a_new_word() {
    let mut b = member();
    let first = b.word;
    let mut recorded = Vec::new();
    for _ in 0..=SENDERS_MAX {
        let said = part(&mut member(), &first, b"hello");
        let opened = b.open(&mut said.clone());
        if b.word == first {
            assert!(matches!(opened, Ok(Opened::Part(..))));
            recorded.push(said);
        }
    }
    assert_ne!(b.word, first);
    for mut said in recorded {
        assert!(matches!(b.open(&mut said), Ok(Opened::Stale(_))));
    }
}

#[test]
fn strangers_and_other_clusters_are_dropped() {
    let mut b = member();
    let mut stranger = Seal::new(b"another secret", "prod", draw).unwrap();
    let mut foreign = Seal::new(SECRET, "staging", draw).unwrap();
    assert_eq!(b.open(&mut part(&mut stranger, &b.word.clone(), b"x")), Err(Dropped::Forged));
    assert_eq!(b.open(&mut part(&mut foreign, &b.word.clone(), b"x")), Err(Dropped::Foreign));
    // Also if it says that it is ours.
    foreign.cluster = b.cluster;
    assert_eq!(b.open(&mut part(&mut foreign, &b.word.clone(), b"x")), Err(Dropped::Forged));
}

#[test]
fn what_is_too_long_or_too_short_is_dropped() {
    let mut b = member();
    assert_eq!(b.open(&mut [7; DATAGRAM_MAX + 1]), Err(Dropped::Oversized));
    for length in 0..HEADER {
        assert_eq!(b.open(&mut b"TNG1".repeat(10)[..length].to_vec()), Err(Dropped::Malformed));
    }
}

#[test]
fn the_longest_part_fits_into_a_datagram() {
    let (mut a, b) = (member(), member());
    let message = vec![1; super::super::parts::MESSAGE_MAX];
    for body in super::super::parts::cut(1, &message).unwrap() {
        assert!(a.seal(Kind::Part, &b.word, &body).unwrap().len() <= DATAGRAM_MAX);
    }
}
