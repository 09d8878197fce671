//! Candidates and views of elections.

use std::collections::BTreeMap;

use super::{StoreUnderTest, candidacy, election, new_id};
use tenure_core::port::{Candidacy, JoinElectionResponse, ObserveScope, StartReason, TakeLeaseRequest};
use tenure_core::{ElectionKey, Token};

/// An election exists once it had a candidate.
pub async fn an_election_without_a_candidate_does_not_exist(subject: &StoreUnderTest) {
    let (a, key) = (subject.session("a").await, election("never"));
    assert_eq!(a.store.election(&key).await, Ok(None));
    assert_eq!(a.store.elections(None).await, Ok(Vec::new()));
    assert_eq!(a.store.term_history(&key, 10).await, Ok(Vec::new()));
    let observed = a.store.observe(&a.id, &ObserveScope::Listed(vec![key.clone()])).await.unwrap();
    assert!(observed.elections.is_empty() && observed.orphaned_leases.is_empty());
    a.store.leave_election(&a.id, &key).await.unwrap();
    a.release(&key, 0, Token::from_u64(1)).await;
    assert_eq!(a.store.election(&key).await, Ok(None), "none of these calls created it");
}

/// Joining with an ended session writes nothing.
pub async fn a_dead_session_joins_nothing(subject: &StoreUnderTest) {
    let (a, key) = (subject.session("a").await, election("e"));
    assert_eq!(
        a.store.join_election(&candidacy(&new_id(), &key)).await,
        Ok(JoinElectionResponse::SessionEnded)
    );
    a.store.end_session(&a.id).await.unwrap();
    assert_eq!(a.store.join_election(&candidacy(&a.id, &key)).await, Ok(JoinElectionResponse::SessionEnded));
    assert_eq!(a.store.election(&key).await, Ok(None));
}

/// A session has at most one candidate per election; joining again updates it.
pub async fn joining_again_changes_the_candidate(subject: &StoreUnderTest) {
    let (a, key) = (subject.session("a").await, election("e"));
    a.join(&key).await;
    let joined = a.view(&key).await.candidates[0].joined_at_ms;
    let token = a.take(&key, 0).await;
    let again = Candidacy {
        name: "other".into(),
        priority: -7,
        observer: true,
        capabilities: vec!["gpu".into()],
        required_capabilities: vec!["disk".into()],
        ..candidacy(&a.id, &key)
    };
    assert_eq!(a.store.join_election(&again).await, Ok(JoinElectionResponse::Joined));
    let view = a.view(&key).await;
    assert_eq!(
        (view.candidates.len(), view.required_capabilities.as_slice()),
        (1, ["disk".to_owned()].as_slice())
    );
    let candidate = &view.candidates[0];
    assert_eq!((candidate.name.as_str(), candidate.priority, candidate.observer), ("other", -7, true));
    assert_eq!(
        (candidate.capabilities.as_slice(), candidate.joined_at_ms),
        (["gpu".to_owned()].as_slice(), joined)
    );
    assert_eq!(view.leases[0].token, token, "and it keeps its lease");
}

/// Leaving an election removes the candidate but does not release its lease.
pub async fn leaving_removes_only_the_candidate(subject: &StoreUnderTest) {
    let (a, b, key) = (subject.session("a").await, subject.session("b").await, election("e"));
    a.join(&key).await;
    b.join(&key).await;
    let token = a.take(&key, 0).await;
    a.store.leave_election(&a.id, &key).await.unwrap();
    a.store.leave_election(&a.id, &key).await.unwrap();
    let view = b.view(&key).await;
    assert_eq!(view.candidates.len(), 1);
    assert_eq!(view.leases[0].holder.as_ref().map(|holder| &holder.id), Some(&a.id));
    assert_eq!(view.leases[0].token, token);
}

/// Any text in the fields of a candidate survives the encoding in SQL and JSON.
pub async fn a_candidate_keeps_all_fields(subject: &StoreUnderTest) {
    let odd = [
        "plain",
        "",
        " ",
        "'",
        "\"",
        "''; DROP TABLE leases; --",
        "\\",
        "\\n",
        "line\nbreak\r\n",
        "tab\t",
        "ünïcödé",
        "日本語",
        "🦀",
        "a\u{301}",
        "{\"json\": [1]}",
        "%s $1 ?1 :a @b",
        "\u{202e}right to left",
        "null",
        "\u{7f}",
    ];
    for (n, text) in odd.iter().enumerate() {
        let (a, key) = (subject.session(text).await, election(&format!("A.b_c:d-{n}")));
        let candidacy = Candidacy {
            name: (*text).into(),
            priority: if n % 2 == 0 { i32::MIN } else { i32::MAX },
            observer: n % 2 == 0,
            capabilities: vec![(*text).into(), "x".into(), (*text).into()],
            required_capabilities: vec![(*text).into()],
            metadata: BTreeMap::from([((*text).into(), (*text).into()), ("k".into(), String::new())]),
            ..candidacy(&a.id, &key)
        };
        assert_eq!(a.store.join_election(&candidacy).await, Ok(JoinElectionResponse::Joined), "{text:?}");
        let view = a.view(&key).await;
        let observed = &view.candidates[0];
        assert_eq!((&observed.name, &observed.session.name), (&candidacy.name, &candidacy.name));
        assert_eq!((observed.priority, observed.observer), (candidacy.priority, candidacy.observer));
        assert_eq!(
            (&observed.capabilities, &observed.metadata),
            (&candidacy.capabilities, &candidacy.metadata)
        );
        assert_eq!((&view.required_capabilities, &view.key), (&candidacy.required_capabilities, &key));
        a.take(&key, 0).await;
        assert_eq!(a.store.term_history(&key, 1).await.unwrap()[0].candidate_name, *text);
    }
}

/// Each slot has its own holder and token.
pub async fn several_slots_have_several_leaders(subject: &StoreUnderTest) {
    let key = election("e");
    let mut actors = Vec::new();
    for n in 0..4 {
        let session = subject.session(&format!("a{n}")).await;
        session.join_with_slots(&key, 3).await;
        actors.push(session);
    }
    for (session, slot) in actors.iter().zip(0..3) {
        session.take(&key, slot).await;
    }
    let last = &actors[3];
    for slot in 0..3 {
        assert_eq!(last.store.take_lease(&last.take_request(&key, slot).await).await, Ok(None));
    }
    assert_eq!(last.view(&key).await.holders().count(), 3);
    let beyond =
        TakeLeaseRequest { slot: 3, token: Token::ZERO, holder: None, ..last.take_request(&key, 0).await };
    assert_eq!(last.store.take_lease(&beyond).await, Ok(None), "there is no fourth slot");
    let token = actors[1].lease(&key, 1).await.token;
    actors[1].release(&key, 1, token).await;
    assert!(last.take(&key, 1).await > token);
}

/// Two deployments with different numbers of slots must not both elect leaders.
pub async fn another_number_of_slots_is_rejected_while_candidates_exist(subject: &StoreUnderTest) {
    let (a, b, key) = (subject.session("a").await, subject.session("b").await, election("e"));
    a.join_with_slots(&key, 2).await;
    let three = Candidacy { slots: 3, required_capabilities: vec!["x".into()], ..candidacy(&b.id, &key) };
    assert_eq!(b.store.join_election(&three).await, Ok(JoinElectionResponse::SlotsDiffer { slots: 2 }));
    let view = a.view(&key).await;
    assert_eq!((view.slots, view.leases.len(), view.candidates.len()), (2, 2, 1));
    assert!(view.required_capabilities.is_empty(), "nothing was written");
    a.join_with_slots(&key, 3).await;
    assert_eq!(
        b.store.join_election(&three).await,
        Ok(JoinElectionResponse::Joined),
        "a lone candidate may change it"
    );
    a.store.end_session(&a.id).await.unwrap();
    b.join_with_slots(&key, 1).await;
    assert_eq!(b.view(&key).await.leases.len(), 1);
}

/// A removed slot keeps its token.
pub async fn a_removed_slot_keeps_its_token(subject: &StoreUnderTest) {
    let (a, key) = (subject.session("a").await, election("e"));
    a.join_with_slots(&key, 2).await;
    let token = a.take(&key, 1).await;
    a.join_with_slots(&key, 1).await;
    let view = a.view(&key).await;
    assert_eq!((view.slots, view.leases.len()), (1, 1));
    a.release(&key, 1, token).await;
    let ended = TakeLeaseRequest { slot: 1, token, holder: None, ..a.take_request(&key, 0).await };
    assert_eq!(a.store.take_lease(&ended).await, Ok(None));
    a.join_with_slots(&key, 2).await;
    assert!(a.take(&key, 1).await > token);
}

/// Each scope returns its elections: those a follower contests, those of a candidate, and the listed ones.
pub async fn observe_scopes_cover_the_right_elections(subject: &StoreUnderTest) {
    let (a, b) = (subject.session("a").await, subject.session("b").await);
    let keys: Vec<_> = ["led", "lost", "elsewhere"].map(election).into();
    for key in &keys[..2] {
        a.join(key).await;
    }
    b.join(&keys[2]).await;
    a.take(&keys[0], 0).await;
    let names = |observed: tenure_core::port::ElectionsObservation| -> Vec<ElectionKey> {
        observed.elections.into_iter().map(|view| view.key).collect()
    };
    let look = async |scope: ObserveScope| names(a.store.observe(&a.id, &scope).await.unwrap());
    assert_eq!(look(ObserveScope::Contested).await, [keys[1].clone()]);
    assert_eq!(look(ObserveScope::Own).await, [keys[0].clone(), keys[1].clone()]);
    let some = vec![keys[2].clone(), election("none"), keys[0].clone(), keys[2].clone()];
    assert_eq!(look(ObserveScope::Listed(some)).await, [keys[2].clone(), keys[0].clone()]);
    assert!(look(ObserveScope::Listed(Vec::new())).await.is_empty());
    assert_eq!(look(ObserveScope::All).await.len(), keys.len());
}

/// Elections are ordered by namespace, then by name.
pub async fn elections_are_listed_by_namespace(subject: &StoreUnderTest) {
    let a = subject.session("a").await;
    let key =
        |namespace: &str, name: &str| ElectionKey::new(namespace.parse().unwrap(), name.parse().unwrap());
    let keys = [key("a", "x"), key("b", "A"), key("b", "Z"), key("b", "a"), key("c", "x")];
    for n in [3, 0, 4, 2, 1] {
        a.join(&keys[n]).await;
    }
    let listed = async |namespace: Option<&str>| -> Vec<ElectionKey> {
        let namespace = namespace.map(|name| name.parse().unwrap());
        let views = a.store.elections(namespace.as_ref()).await.unwrap();
        views.into_iter().map(|view| view.key).collect()
    };
    assert_eq!(listed(None).await, keys);
    assert_eq!(listed(Some("b")).await, keys[1..4]);
    assert!(listed(Some("z")).await.is_empty());
}

/// Terms are listed newest first, with leader, start reason and end reason.
pub async fn term_history_has_start_and_end_reasons(subject: &StoreUnderTest) {
    let (a, b, key) = (subject.session("a").await, subject.session("b").await, election("e"));
    a.join(&key).await;
    b.join(&key).await;
    let first = a.take(&key, 0).await;
    a.release(&key, 0, first).await;
    a.take(&key, 0).await;
    let bid = b.takeover_request(&key, 0).await;
    b.store.take_lease(&bid).await.unwrap().expect("taken over");
    b.store.end_session(&b.id).await.unwrap();
    let c = subject.session("c").await;
    c.join(&key).await;
    c.take(&key, 0).await;
    let terms = c.store.term_history(&key, 10).await.unwrap();
    let reported: Vec<_> =
        terms.iter().map(|term| (&term.session, term.start_reason, term.end_reason.as_deref())).collect();
    let expected = [
        (&c.id, StartReason::Release, None),
        (&b.id, StartReason::Takeover, Some("ended")),
        (&a.id, StartReason::Release, Some("expired")),
        (&a.id, StartReason::Release, Some("released")),
    ];
    assert_eq!(reported, expected);
    assert!(terms.is_sorted_by(|newer, older| newer.token > older.token));
    assert!(
        terms
            .iter()
            .all(|term| term.ended_at_ms.is_some() == term.end_reason.is_some() && term.started_at_ms > 0)
    );
    assert_eq!(c.store.term_history(&key, 2).await.unwrap(), terms[..2]);
    assert!(c.store.term_history(&key, 0).await.unwrap().is_empty());
}

/// The store keeps the latest hundred terms of an election.
pub async fn history_keeps_the_last_hundred_terms(subject: &StoreUnderTest) {
    let (a, key) = (subject.session("a").await, election("e"));
    a.join(&key).await;
    for _ in 0..103 {
        let token = a.take(&key, 0).await;
        a.release(&key, 0, token).await;
    }
    let terms = a.store.term_history(&key, 1000).await.unwrap();
    assert_eq!((terms.len(), terms[0].token), (100, a.lease(&key, 0).await.token));
}
