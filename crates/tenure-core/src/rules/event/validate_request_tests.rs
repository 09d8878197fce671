//! Valid and invalid requests.

use super::*;
use crate::port::{Backoff, EventId, GroupKey, ParkEventRequest, TopicKey};
use crate::{Name, SessionId, Token};

fn group() -> GroupKey {
    let name = |name: &str| name.parse::<Name>().unwrap();
    GroupKey::new(TopicKey::new(Name::default_namespace(), name("t")), name("g"))
}

fn commit() -> PartitionCommit {
    PartitionCommit {
        group: group(),
        partition: 0,
        token: Token::from_u64(1),
        offset: Some(9),
        processed: vec![(EventId(1), 5)],
        parked: vec![ParkEventRequest { event_id: EventId(2), offset: 2, state: ParkedEventState::Waiting }],
        parked_results: vec![(EventId(3), ParkedEventState::Processed)],
    }
}

fn retry(attempts: u32) -> ParkedEventState {
    ParkedEventState::Retry { attempts, retry_in_ms: u64::MAX, error: "\0".into() }
}

fn error_of<T: std::fmt::Debug>(result: Result<T, EventRequestError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn topics_are_bounded() {
    let usual = TopicSettings::default;
    assert_eq!(validate_topic(&usual()), Ok(()));
    assert!(
        validate_topic(&TopicSettings { partitions: PARTITIONS_MAX, max_payload_bytes: 1, ..usual() })
            .is_ok()
    );
    assert_eq!(
        error_of(validate_topic(&TopicSettings { partitions: 0, ..usual() })),
        "partitions is 0; it must be between 1 and 1024"
    );
    for bad in [
        TopicSettings { partitions: PARTITIONS_MAX + 1, ..usual() },
        TopicSettings { retention_ms: u64::MAX, ..usual() },
        TopicSettings { unread_retention_ms: Some(u64::MAX), ..usual() },
        TopicSettings { max_payload_bytes: 0, ..usual() },
        TopicSettings { max_payload_bytes: EVENT_BYTES_MAX as u64 + 1, ..usual() },
    ] {
        assert!(matches!(validate_topic(&bad), Err(EventRequestError::Range { .. })), "{bad:?}");
    }
    let shorter = TopicSettings { retention_ms: 10, unread_retention_ms: Some(9), ..usual() };
    assert!(error_of(validate_topic(&shorter)).contains("raise it, or omit it"));
    assert!(validate_topic(&TopicSettings { unread_retention_ms: Some(10), ..shorter }).is_ok());
}

#[test]
fn groups_are_bounded() {
    let usual = GroupSettings::default;
    assert_eq!(validate_group(&usual()), Ok(()));
    assert!(validate_group(&GroupSettings { max_attempts: 0, ..usual() }).is_err());
    assert!(validate_group(&GroupSettings { max_attempts: u32::MAX, ..usual() }).is_err());
    let backoff = Backoff { initial_ms: 2, max_ms: 1 };
    assert!(
        error_of(validate_group(&GroupSettings { backoff, ..usual() })).contains("raise `backoff.max_ms`")
    );
}

#[test]
fn the_name_and_start_offset_of_a_member_are_validated() {
    let join = |member: &str, from| JoinGroupRequest {
        group: group(),
        session: SessionId::from_stored("s"),
        member: member.into(),
        from,
    };
    for from in
        [StartOffset::Earliest, StartOffset::Latest, StartOffset::Offset(0), StartOffset::PublishedAtMs(0)]
    {
        assert_eq!(validate_join(&join("host:1", from)), Ok(()));
    }
    for bad in ["", "a\nb", &"x".repeat(257)] {
        assert!(error_of(validate_join(&join(bad, StartOffset::Earliest))).contains("1 to 256 bytes"));
    }
    for bad in
        [StartOffset::Offset(u64::MAX), StartOffset::PublishedAtMs(-1), StartOffset::PublishedAtMs(i64::MAX)]
    {
        assert!(validate_join(&join("m", bad)).is_err(), "{bad:?}");
    }
}

#[test]
fn partitions_are_named_once() {
    let take = |partitions: &[u32]| TakePartitionsRequest {
        group: group(),
        session: SessionId::from_stored("s"),
        partitions: partitions.iter().map(|partition| (*partition, Token::ZERO)).collect(),
    };
    assert_eq!(validate_take(&take(&[0, 2, 1_023])), Ok(()));
    assert_eq!(error_of(validate_take(&take(&[7, 7]))), "partition 7 occurs twice; name it once");
    assert!(validate_take(&take(&[1_024])).is_err());
    let read = |after: &[(u32, u64)], limit| ReadEventsRequest {
        topic: group().topic,
        after: after.to_vec(),
        limit,
    };
    assert_eq!(validate_read(&read(&[(1, 0), (0, 5)], 10_000)), Ok(()));
    assert_eq!(validate_read(&read(&[], 1)), Ok(()));
    for bad in
        [read(&[(1, 0)], 0), read(&[(1, 0)], 10_001), read(&[(1, 0), (1, 2)], 1), read(&[(1, u64::MAX)], 1)]
    {
        assert!(validate_read(&bad).is_err(), "{bad:?}");
    }
}

#[test]
fn a_commit_names_each_event_once() {
    assert_eq!(validate_commit(&commit()), Ok(()));
    let parked = |how| ParkEventRequest { event_id: EventId(2), offset: 2, state: how };
    let long = PartitionCommit { parked: vec![parked(retry(1))], ..commit() };
    assert_eq!(validate_commit(&long), Ok(()), "long delays and odd errors are shortened, not rejected");
    let cases = [
        (
            PartitionCommit { processed: vec![(EventId(1), 5), (EventId(1), 6)], ..commit() },
            "event 1 occurs twice",
        ),
        (
            PartitionCommit { parked_results: vec![(EventId(2), ParkedEventState::Processed)], ..commit() },
            "event 2 occurs twice",
        ),
        (PartitionCommit { parked: vec![parked(ParkedEventState::Processed)], ..commit() }, "in `processed`"),
        (
            PartitionCommit { parked_results: vec![(EventId(9), ParkedEventState::Waiting)], ..commit() },
            "omit it",
        ),
        (
            PartitionCommit { parked_results: vec![(EventId(9), retry(0))], ..commit() },
            "count the failed attempt",
        ),
        (
            PartitionCommit { parked_results: vec![(EventId(9), retry(u32::MAX))], ..commit() },
            "the number of attempts is",
        ),
        (PartitionCommit { offset: Some(u64::MAX), ..commit() }, "the offset is"),
        (PartitionCommit { processed: vec![(EventId(1), u64::MAX)], ..commit() }, "the offset is"),
        (PartitionCommit { token: Token::from_u64(u64::MAX), ..commit() }, "the token is"),
        (
            PartitionCommit {
                processed: (10..).map(|n| (EventId(n), n)).take(COMMIT_MAX).collect(),
                ..commit()
            },
            "split them",
        ),
    ];
    for (commit, expected) in cases {
        let message = error_of(validate_commit(&commit));
        assert!(message.contains(expected), "{message}\n{expected}");
    }
}

#[test]
fn a_webhook_is_validated_without_repeating_its_secret() {
    let webhook = |url: &str, secret: &str, timeout_ms| WebhookSettings {
        url: url.into(),
        secret: secret.into(),
        timeout_ms,
    };
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    assert_eq!(validate_webhook(&webhook("https://example.org/hook?a=1", secret, 10_000)), Ok(()));
    assert_eq!(validate_webhook(&webhook("http://127.0.0.1:9/", secret, 1)), Ok(()));
    for url in ["", "example.org", "ftp://example.org", "https://", "https:///x", "https://a b/"] {
        assert!(
            matches!(validate_webhook(&webhook(url, secret, 1)), Err(EventRequestError::Url(_))),
            "{url}"
        );
    }
    let known = error_of(validate_webhook(&webhook("https://ada:geheim@example.org/", secret, 1)));
    assert!(known.contains("example.org") && !known.contains("geheim"), "{known}");
    let short = error_of(validate_webhook(&webhook("https://example.org", "geheim", 1)));
    assert!(short.contains("a key of 6 bytes") && !short.contains("geheim"));
    for timeout_ms in [0, 300_001] {
        assert!(validate_webhook(&webhook("https://example.org", secret, timeout_ms)).is_err());
    }
}
