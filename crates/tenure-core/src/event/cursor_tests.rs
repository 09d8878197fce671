//! Cursors that come back as they went, and texts that are none.

use proptest::prelude::*;

use super::super::units;
use super::*;
use crate::port::Payload;

fn event(id: u64, slot: u32, position: u64) -> Event {
    Event {
        id: EventId(id),
        slot,
        position,
        key: None,
        kind: String::new(),
        payload: Payload::default(),
        headers: BTreeMap::new(),
        leader_token: None,
        at_ms: 0,
    }
}

fn position() -> impl Strategy<Value = Position> {
    prop_oneof![2 => Just(0), 4 => 1_000_000..1_100_000u64, 1 => 0..=i64::MAX as u64]
}

proptest! {
    #[test]
    fn a_cursor_comes_back_as_it_went(
        after in prop::collection::btree_map(0..SLOTS_MAX, position(), 0..200),
        within in prop::option::of((0..SLOTS_MAX, 0..=i64::MAX as u64)),
    ) {
        let cursor = Cursor { after, within: within.map(|(slot, id)| (slot, EventId(id))) };
        let text = cursor.to_string();
        prop_assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)));
        prop_assert_eq!(text.parse(), Ok(cursor));
    }

    /// Whatever somebody sends, it is read or refused, and what is read can be written again.
    #[test]
    fn any_text_is_read_or_refused(text in "[A-Za-z0-9_-]{0,60}|\\PC{0,20}", bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let made = URL_SAFE_NO_PAD.encode([vec![FORM], bytes].concat());
        for text in [text, made] {
            if let Ok(cursor) = text.parse::<Cursor>() {
                prop_assert!(cursor.after.len() <= SLOTS_MAX as usize);
                prop_assert_eq!(cursor.to_string().parse(), Ok(cursor));
            }
        }
    }

    /// A stream that breaks off after any event goes on with the next: nothing is skipped, nothing comes twice.
    #[test]
    fn a_stream_goes_on_where_it_broke_off(
        drafts in prop::collection::vec((0..3u32, 1..4u64), 1..20), breaks in prop::collection::vec(1..9usize, 0..20)
    ) {
        let (mut stored, mut id) = (Vec::new(), 0);
        for (position, (slot, size)) in (1u64..).zip(&drafts) {
            for _ in 0..*size {
                id += 1;
                stored.push(event(id, *slot, position));
            }
        }
        let (mut seen, mut breaks) = (Vec::new(), breaks.into_iter());
        let mut text = Cursor::new((0..3).map(|slot| (slot, 0))).to_string();
        loop {
            let mut cursor: Cursor = text.parse().unwrap();
            let after: BTreeMap<u32, Position> = cursor.after().into_iter().collect();
            let unread: Vec<Event> = stored.iter().filter(|e| e.position > after[&e.slot]).cloned().collect();
            let mut left = breaks.next().unwrap_or(usize::MAX);
            let mut broke = false;
            'stream: for unit in units(&unread) {
                for (n, event) in unit.iter().enumerate() {
                    if cursor.has_passed(event) {
                        continue;
                    }
                    if left == 0 {
                        broke = true;
                        break 'stream;
                    }
                    left -= 1;
                    seen.push(event.id.0);
                    cursor.pass(event, n + 1 == unit.len());
                    text = cursor.to_string();
                }
            }
            if !broke {
                break;
            }
        }
        prop_assert_eq!(seen, (1..=id).collect::<Vec<_>>());
    }
}

#[test]
fn a_cursor_over_many_slots_is_short() {
    let near =
        |slots: u32| Cursor::new((0..slots).map(|slot| (slot, 123_456_789_000 - u64::from(slot) * 97)));
    assert!(near(64).to_string().len() < 200, "{}", near(64));
    assert!(near(SLOTS_MAX).to_string().len() < 4_500);
    assert!(Cursor::new((0..SLOTS_MAX).map(|slot| (slot, 0))).to_string().len() < 12);
    // The longest of all is still read.
    let far = |slot: u32| (slot, if slot == 0 { i64::MAX as u64 } else { u64::from(slot) });
    let longest = Cursor::new((0..SLOTS_MAX).map(far)).to_string();
    assert!(longest.len() <= CURSOR_MAX && longest.parse::<Cursor>().is_ok(), "{}", longest.len());
}

#[test]
fn what_is_no_cursor_is_refused_by_name() {
    let error = "naïve".parse::<Cursor>().unwrap_err().to_string();
    assert!(error.starts_with("\"naïve\" is not a place in a stream; take the `id`"), "{error}");
    for text in ["", "42", &"A".repeat(CURSOR_MAX + 1), &URL_SAFE_NO_PAD.encode([2, 0, 0])] {
        assert!(text.parse::<Cursor>().is_err(), "{text}");
    }
    // A run over more slots than there can be, and a position beyond what is stored.
    for bytes in [&[FORM, 9, 0, 1, 0xff, 0x7f][..], &[FORM, 9, 0, 40], &[FORM, 0xff, 0xff], &[FORM, 9, 0, 1]]
    {
        assert!(URL_SAFE_NO_PAD.encode(bytes).parse::<Cursor>().is_err(), "{bytes:?}");
    }
}
