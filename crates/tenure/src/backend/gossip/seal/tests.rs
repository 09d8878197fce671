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

fn member() -> Seal {
    Seal::new(&secrets(SECRET), "prod", draw).unwrap()
}

fn part(seal: &mut Seal, to: &Word, message: &[u8]) -> Vec<u8> {
    seal.seal(Kind::Part, to, &super::super::parts::cut(1, message).unwrap()[0]).unwrap()
}

#[test]
fn who_asks_for_a_word_is_told_and_then_heard() {
    let (mut a, mut b) = (member(), member());
    let ask = a.seal(Kind::Ask, &NOBODY, &[]).unwrap();
    assert_eq!(b.open(&ask), Ok(Opened::Asked(a.word)));
    let tell = b.seal(Kind::Tell, &a.word, &[]).unwrap();
    assert_eq!(a.open(&tell), Ok(Opened::Told(b.word)));
    let said = part(&mut a, &b.word, b"hello");
    assert_eq!(b.open(&said), Ok(Opened::Part(a.word, Some(b"hello".to_vec()))));
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
        assert_eq!(b.open(&forged), Err(expected), "byte {at}");
    }
}

#[test]
fn what_is_repeated_is_dropped_by_who_got_it_and_by_everybody_else() {
    let (mut a, mut b, mut c) = (member(), member(), member());
    let said = part(&mut a, &b.word, b"hello");
    assert!(b.open(&said).is_ok());
    assert_eq!(b.open(&said), Err(Dropped::Replayed));
    assert_eq!(c.open(&said), Ok(Opened::Stale(a.word)));
    assert_eq!(a.open(&said), Err(Dropped::Replayed));
    // And by the same process, started anew.
    assert_eq!(member().open(&said), Ok(Opened::Stale(a.word)));
}

#[test]
fn a_word_that_is_told_again_later_is_not_believed() {
    let (a, mut b, mut other) = (member(), member(), member());
    let tell = b.seal(Kind::Tell, &a.word, &[]).unwrap();
    assert_eq!(other.open(&tell), Err(Dropped::Replayed));
}

#[test]
fn who_forgets_senders_draws_a_new_word() {
    let mut b = member();
    let first = b.word;
    let mut recorded = Vec::new();
    for _ in 0..=SENDERS_MAX {
        let said = part(&mut member(), &first, b"hello");
        let opened = b.open(&said);
        if b.word == first {
            assert!(matches!(opened, Ok(Opened::Part(..))));
            recorded.push(said);
        }
    }
    assert_ne!(b.word, first);
    for said in recorded {
        assert!(matches!(b.open(&said), Ok(Opened::Stale(_))));
    }
}

#[test]
fn strangers_and_other_clusters_are_dropped() {
    let mut b = member();
    let mut stranger = Seal::new(&secrets("another secret"), "prod", draw).unwrap();
    let mut foreign = Seal::new(&secrets(SECRET), "staging", draw).unwrap();
    assert_eq!(b.open(&part(&mut stranger, &b.word.clone(), b"x")), Err(Dropped::Forged));
    assert_eq!(b.open(&part(&mut foreign, &b.word.clone(), b"x")), Err(Dropped::Foreign));
    // Also if it says that it is ours.
    foreign.cluster = b.cluster;
    assert_eq!(b.open(&part(&mut foreign, &b.word.clone(), b"x")), Err(Dropped::Forged));
}

#[test]
fn what_is_too_long_or_too_short_is_dropped() {
    let mut b = member();
    assert_eq!(b.open(&[7; DATAGRAM_MAX + 1]), Err(Dropped::Oversized));
    for length in 0..HEADER {
        assert_eq!(b.open(&b"TNG1".repeat(10)[..length]), Err(Dropped::Malformed));
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

#[test]
fn a_member_with_two_secrets_hears_those_with_either_and_speaks_under_the_first() {
    let with = |text: &str| Seal::new(&secrets(text), "prod", draw).unwrap();
    let (mut old, mut new, mut both) = (with("old"), with("new"), with("new\nold"));
    for one in [&mut old, &mut new] {
        for _ in 0..2 {
            let said = part(one, &both.word.clone(), b"hello");
            assert_eq!(both.open(&said), Ok(Opened::Part(one.word, Some(b"hello".to_vec()))));
        }
    }
    assert!(matches!(new.open(&part(&mut both, &new.word.clone(), b"hello")), Ok(Opened::Part(..))));
    assert_eq!(old.open(&part(&mut both, &old.word.clone(), b"hello")), Err(Dropped::Forged));
    assert_eq!(both.open(&part(&mut with("a third"), &both.word.clone(), b"x")), Err(Dropped::Forged));
}
