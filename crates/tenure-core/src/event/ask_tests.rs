//! What else makes no sense, and what does.

use super::*;
use crate::port::{Backoff, EventId, GroupKey, SetAside, TopicKey};
use crate::{Name, SessionId, Token};

fn group() -> GroupKey {
    let name = |name: &str| name.parse::<Name>().unwrap();
    GroupKey::new(TopicKey::new(Name::default_namespace(), name("t")), name("g"))
}

fn commit() -> ShareCommit {
    ShareCommit {
        group: group(),
        slot: 0,
        token: Token::from_u64(1),
        position: Some(9),
        done: vec![(EventId(1), 5)],
        set_aside: vec![SetAside { event: EventId(2), position: 2, how: Aside::Behind }],
        settled: vec![(EventId(3), Aside::Done)],
    }
}

fn retry(attempts: u32) -> Aside {
    Aside::Retry { attempts, after_ms: u64::MAX, error: "\0".into() }
}

fn said<T: std::fmt::Debug>(result: Result<T, GroupError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn topics_are_bounded() {
    let usual = TopicSettings::default;
    assert_eq!(check_topic(&usual()), Ok(()));
    assert!(check_topic(&TopicSettings { slots: SLOTS_MAX, max_bytes: 1, ..usual() }).is_ok());
    assert_eq!(
        said(check_topic(&TopicSettings { slots: 0, ..usual() })),
        "slots is 0; it must be between 1 and 1024"
    );
    for bad in [
        TopicSettings { slots: SLOTS_MAX + 1, ..usual() },
        TopicSettings { keep_ms: u64::MAX, ..usual() },
        TopicSettings { keep_unread_ms: Some(u64::MAX), ..usual() },
        TopicSettings { max_bytes: 0, ..usual() },
        TopicSettings { max_bytes: EVENT_BYTES_MAX as u64 + 1, ..usual() },
    ] {
        assert!(matches!(check_topic(&bad), Err(GroupError::Range { .. })), "{bad:?}");
    }
    let shorter = TopicSettings { keep_ms: 10, keep_unread_ms: Some(9), ..usual() };
    assert!(said(check_topic(&shorter)).contains("raise it, or leave it out"));
    assert!(check_topic(&TopicSettings { keep_unread_ms: Some(10), ..shorter }).is_ok());
}

#[test]
fn groups_are_bounded() {
    let usual = GroupSettings::default;
    assert_eq!(check_group(&usual()), Ok(()));
    assert!(check_group(&GroupSettings { max_attempts: 0, ..usual() }).is_err());
    assert!(check_group(&GroupSettings { max_attempts: u32::MAX, ..usual() }).is_err());
    let backoff = Backoff { first_ms: 2, most_ms: 1 };
    assert!(said(check_group(&GroupSettings { backoff, ..usual() })).contains("raise `most_ms`"));
}

#[test]
fn a_member_has_a_name_and_a_place_to_begin() {
    let join = |member: &str, from| Join {
        group: group(),
        session: SessionId::from_stored("s"),
        member: member.into(),
        from,
    };
    for from in [Begin::Earliest, Begin::Latest, Begin::Position(0), Begin::Time(0)] {
        assert_eq!(check_join(&join("host:1", from)), Ok(()));
    }
    for bad in ["", "a\nb", &"x".repeat(257)] {
        assert!(said(check_join(&join(bad, Begin::Earliest))).contains("1 to 256 bytes"));
    }
    for bad in [Begin::Position(u64::MAX), Begin::Time(-1), Begin::Time(i64::MAX)] {
        assert!(check_join(&join("m", bad)).is_err(), "{bad:?}");
    }
}

#[test]
fn slots_are_named_once() {
    let take = |slots: &[u32]| TakeShares {
        group: group(),
        session: SessionId::from_stored("s"),
        slots: slots.iter().map(|slot| (*slot, Token::ZERO)).collect(),
    };
    assert_eq!(check_take(&take(&[0, 2, 1_023])), Ok(()));
    assert_eq!(said(check_take(&take(&[7, 7]))), "slot 7 is there twice; name it once");
    assert!(check_take(&take(&[1_024])).is_err());
    let read = |after: &[(u32, u64)], limit| ReadAsk { topic: group().topic, after: after.to_vec(), limit };
    assert_eq!(check_read(&read(&[(1, 0), (0, 5)], 10_000)), Ok(()));
    assert_eq!(check_read(&read(&[], 1)), Ok(()));
    for bad in
        [read(&[(1, 0)], 0), read(&[(1, 0)], 10_001), read(&[(1, 0), (1, 2)], 1), read(&[(1, u64::MAX)], 1)]
    {
        assert!(check_read(&bad).is_err(), "{bad:?}");
    }
}

#[test]
fn a_commit_says_one_thing_about_each_event() {
    assert_eq!(check_commit(&commit()), Ok(()));
    let aside = |how| SetAside { event: EventId(2), position: 2, how };
    let long = ShareCommit { set_aside: vec![aside(retry(1))], ..commit() };
    assert_eq!(check_commit(&long), Ok(()), "long waits and odd errors are clipped, not refused");
    let cases = [
        (ShareCommit { done: vec![(EventId(1), 5), (EventId(1), 6)], ..commit() }, "event 1 is there twice"),
        (ShareCommit { settled: vec![(EventId(2), Aside::Done)], ..commit() }, "event 2 is there twice"),
        (ShareCommit { set_aside: vec![aside(Aside::Done)], ..commit() }, "goes into `done`"),
        (ShareCommit { settled: vec![(EventId(9), Aside::Behind)], ..commit() }, "leave it out"),
        (ShareCommit { settled: vec![(EventId(9), retry(0))], ..commit() }, "count the attempt"),
        (
            ShareCommit { settled: vec![(EventId(9), retry(u32::MAX))], ..commit() },
            "the number of attempts is",
        ),
        (ShareCommit { position: Some(u64::MAX), ..commit() }, "the position is"),
        (ShareCommit { done: vec![(EventId(1), u64::MAX)], ..commit() }, "the position is"),
        (ShareCommit { token: Token::from_u64(u64::MAX), ..commit() }, "the token is"),
        (
            ShareCommit { done: (10..).map(|n| (EventId(n), n)).take(COMMIT_MAX).collect(), ..commit() },
            "split them",
        ),
    ];
    for (commit, expected) in cases {
        let said = said(check_commit(&commit));
        assert!(said.contains(expected), "{said}\n{expected}");
    }
}

#[test]
fn a_push_has_an_address_and_a_secret_that_is_not_repeated() {
    let push =
        |url: &str, secret: &str, timeout_ms| Push { url: url.into(), secret: secret.into(), timeout_ms };
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    assert_eq!(check_push(&push("https://example.org/hook?a=1", secret, 10_000)), Ok(()));
    assert_eq!(check_push(&push("http://127.0.0.1:9/", secret, 1)), Ok(()));
    for url in ["", "example.org", "ftp://example.org", "https://", "https:///x", "https://a b/"] {
        assert!(matches!(check_push(&push(url, secret, 1)), Err(GroupError::Url(_))), "{url}");
    }
    let known = said(check_push(&push("https://ada:geheim@example.org/", secret, 1)));
    assert!(known.contains("example.org") && !known.contains("geheim"), "{known}");
    let short = said(check_push(&push("https://example.org", "geheim", 1)));
    assert!(short.contains("a key of 6 bytes") && !short.contains("geheim"));
    for timeout_ms in [0, 300_001] {
        assert!(check_push(&push("https://example.org", secret, timeout_ms)).is_err());
    }
}
