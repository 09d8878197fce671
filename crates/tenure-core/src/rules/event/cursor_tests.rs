//! Round trips of cursors, and invalid texts.

use proptest::prelude::*;

use super::super::commit_batches;
use super::*;
use crate::port::Payload;

fn event(id: u64, partition: u32, offset: u64) -> Event {
    Event {
        id: EventId(id),
        partition,
        offset,
        key: None,
        event_type: String::new(),
        payload: Payload::default(),
        headers: BTreeMap::new(),
        leader_token: None,
        published_at_ms: 0,
    }
}

fn offset() -> impl Strategy<Value = Offset> {
    prop_oneof![2 => Just(0), 4 => 1_000_000..1_100_000u64, 1 => 0..=i64::MAX as u64]
}

proptest! {
    #[test]
    fn a_cursor_round_trips(
        after in prop::collection::btree_map(0..PARTITIONS_MAX, offset(), 0..200),
        within in prop::option::of((0..PARTITIONS_MAX, 0..=i64::MAX as u64)),
    ) {
        let cursor = TopicCursor { after, within: within.map(|(partition, id)| (partition, EventId(id))) };
        let text = cursor.to_string();
        prop_assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)));
        prop_assert_eq!(text.parse(), Ok(cursor));
    }

    /// Every text is accepted or rejected without a panic, and an accepted one can be encoded again.
    #[test]
    fn any_text_is_parsed_or_rejected(text in "[A-Za-z0-9_-]{0,60}|\\PC{0,20}", bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let made = URL_SAFE_NO_PAD.encode([vec![FORM], bytes].concat());
        for text in [text, made] {
            if let Ok(cursor) = text.parse::<TopicCursor>() {
                prop_assert!(cursor.after.len() <= PARTITIONS_MAX as usize);
                prop_assert_eq!(cursor.to_string().parse(), Ok(cursor));
            }
        }
    }

    /// A stream that breaks after any event continues with the next one: no event is skipped or repeated.
    #[test]
    fn a_stream_continues_after_a_break(
        drafts in prop::collection::vec((0..3u32, 1..4u64), 1..20), breaks in prop::collection::vec(1..9usize, 0..20)
    ) {
        let (mut stored, mut id) = (Vec::new(), 0);
        for (offset, (partition, size)) in (1u64..).zip(&drafts) {
            for _ in 0..*size {
                id += 1;
                stored.push(event(id, *partition, offset));
            }
        }
        let (mut seen, mut breaks) = (Vec::new(), breaks.into_iter());
        let mut text = TopicCursor::new((0..3).map(|partition| (partition, 0))).to_string();
        loop {
            let mut cursor: TopicCursor = text.parse().unwrap();
            let after: BTreeMap<u32, Offset> = cursor.after().into_iter().collect();
            let unread: Vec<Event> = stored.iter().filter(|e| e.offset > after[&e.partition]).cloned().collect();
            let mut left = breaks.next().unwrap_or(usize::MAX);
            let mut broke = false;
            'stream: for batch in commit_batches(&unread) {
                for (n, event) in batch.iter().enumerate() {
                    if cursor.has_passed(event) {
                        continue;
                    }
                    if left == 0 {
                        broke = true;
                        break 'stream;
                    }
                    left -= 1;
                    seen.push(event.id.0);
                    cursor.pass(event, n + 1 == batch.len());
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
fn a_cursor_over_many_partitions_is_short() {
    let near = |partitions: u32| {
        TopicCursor::new(
            (0..partitions).map(|partition| (partition, 123_456_789_000 - u64::from(partition) * 97)),
        )
    };
    assert!(near(64).to_string().len() < 200, "{}", near(64));
    assert!(near(PARTITIONS_MAX).to_string().len() < 4_500);
    assert!(TopicCursor::new((0..PARTITIONS_MAX).map(|partition| (partition, 0))).to_string().len() < 12);
    // The longest possible cursor is still accepted.
    let far =
        |partition: u32| (partition, if partition == 0 { i64::MAX as u64 } else { u64::from(partition) });
    let longest = TopicCursor::new((0..PARTITIONS_MAX).map(far)).to_string();
    assert!(longest.len() <= CURSOR_MAX && longest.parse::<TopicCursor>().is_ok(), "{}", longest.len());
}

#[test]
fn invalid_cursors_are_rejected() {
    let error = "naïve".parse::<TopicCursor>().unwrap_err().to_string();
    assert!(error.starts_with("\"naïve\" is not a stream cursor; use the `id`"), "{error}");
    for text in ["", "42", &"A".repeat(CURSOR_MAX + 1), &URL_SAFE_NO_PAD.encode([2, 0, 0])] {
        assert!(text.parse::<TopicCursor>().is_err(), "{text}");
    }
    // A run over too many partitions, and an offset out of range.
    for bytes in [&[FORM, 9, 0, 1, 0xff, 0x7f][..], &[FORM, 9, 0, 40], &[FORM, 0xff, 0xff], &[FORM, 9, 0, 1]]
    {
        assert!(URL_SAFE_NO_PAD.encode(bytes).parse::<TopicCursor>().is_err(), "{bytes:?}");
    }
}
