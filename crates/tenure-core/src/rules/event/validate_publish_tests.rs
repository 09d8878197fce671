//! Valid and invalid events.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::Token;
use crate::port::{KEY_MAX, RawJson};

const MOST: u64 = EVENT_BYTES_MAX as u64;

/// The error for the second of two events; the first has default options.
fn refusal(event: NewEvent) -> String {
    validate_events(&[NewEvent::new("ordinary"), event], MOST).unwrap_err().to_string()
}

fn headers(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

#[test]
fn a_valid_event_and_an_empty_list_are_accepted() {
    assert_eq!(validate_events(&[], MOST), Ok(()));
    let everything = NewEvent {
        key: Some("kunde-ß".into()),
        payload: Payload::Bytes(vec![0; EVENT_BYTES_MAX]),
        headers: headers(&[("trace", ""), ("long", &"x".repeat(KEY_MAX + 1))]),
        idempotency_key: Some("k".repeat(KEY_MAX)),
        leader_token: Some(Token::from_u64(7)),
        ..NewEvent::new("order.paid")
    };
    assert_eq!(validate_events(&[NewEvent::default(), everything], MOST), Ok(()));
}

#[test]
fn each_error_names_the_event_the_input_and_the_remedy() {
    let event = NewEvent::default;
    let many = (0..65).map(|n| (n.to_string(), String::new())).collect();
    let nested = ["[".repeat(DEPTH_MAX + 1), "]".repeat(DEPTH_MAX + 1)].concat();
    let cases = [
        (
            NewEvent { payload: Payload::Bytes(vec![0; EVENT_BYTES_MAX + 1]), ..event() },
            "allows at most 1048576",
        ),
        (NewEvent { payload: Payload::Json(nested.parse().unwrap()), ..event() }, "levels deep"),
        (NewEvent::new("a\0b"), r#"type "a\0b" has the control character"#),
        (NewEvent { key: Some("".into()), ..event() }, "key \"\" is empty; omit it"),
        (NewEvent { key: Some("k".repeat(KEY_MAX + 1)), ..event() }, "has 513 bytes; the maximum is 512"),
        (NewEvent { idempotency_key: Some("a\nb".into()), ..event() }, "idempotency key"),
        (NewEvent { headers: many, ..event() }, "65 headers exceed the maximum of 64"),
        (NewEvent { headers: headers(&[("", "x")]), ..event() }, "header name \"\" is empty"),
        (NewEvent { headers: headers(&[("a", "x\r\ny")]), ..event() }, "header value"),
        (
            NewEvent { headers: headers(&[("a", &"x".repeat(20_000))]), ..event() },
            "20001 bytes, more than the maximum of 16384",
        ),
        (NewEvent { leader_token: Some(Token::from_u64(u64::MAX)), ..event() }, "which no store granted"),
    ];
    for (event, expected) in cases {
        let message = refusal(event);
        assert!(message.starts_with("event 1: ") && message.contains(expected), "{message}\n{expected}");
    }
}

#[test]
fn a_topic_can_limit_payloads_further() {
    let event = NewEvent { payload: Payload::Json(RawJson::of(&"12345678").unwrap()), ..NewEvent::default() };
    assert_eq!(validate_events(std::slice::from_ref(&event), 10), Ok(()));
    let error = validate_events(&[event], 9).unwrap_err();
    assert_eq!(error, PublishError::TooLarge { place: 0, bytes: 10, most: 9 });
    assert!(error.to_string().contains("`max_payload_bytes`"));
}

#[test]
fn one_call_is_bounded() {
    assert_eq!(validate_events(&vec![NewEvent::new("a"); PUBLISH_MAX], MOST), Ok(()));
    let error = validate_events(&vec![NewEvent::new("a"); PUBLISH_MAX + 1], MOST).unwrap_err();
    assert!(error.to_string().contains("10001 events exceed the maximum of 10000"), "{error}");
    let large = NewEvent { payload: Payload::Bytes(vec![0; EVENT_BYTES_MAX]), ..NewEvent::default() };
    assert_eq!(validate_events(&vec![large.clone(); 16], MOST), Ok(()));
    assert_eq!(validate_events(&vec![large; 17], MOST), Err(PublishError::TooMuch(17 << 20)));
}

proptest! {
    #[test]
    fn accepted_definitions_have_a_tick(key in "\\PC{0,9}|.{0,9}", kind in ".{0,9}", value in ".{0,9}") {
        let event = NewEvent {
            key: Some(key.clone()), event_type: kind.clone(), headers: headers(&[("h", &value)]), ..NewEvent::default()
        };
        let accepted = validate_events(&[event], MOST).is_ok();
        prop_assert_eq!(accepted, !key.is_empty() && ![key, kind, value].concat().contains(char::is_control));
    }
}
