//! Claims about who stands for what, and what people see.

use std::collections::BTreeMap;

use super::{Subject, candidacy, election, new_id};
use tenure_core::port::{Candidacy, Joined, Scope, Take, Via};
use tenure_core::{ElectionKey, Token};

/// An election is there once somebody stood for it.
pub async fn nobody_stood_for_an_unknown_election(subject: &Subject) {
    let (a, key) = (subject.actor("a").await, election("never"));
    assert_eq!(a.store.election(&key).await, Ok(None));
    assert_eq!(a.store.elections(None).await, Ok(Vec::new()));
    assert_eq!(a.store.history(&key, 10).await, Ok(Vec::new()));
    let seen = a.store.observe(&a.id, &Scope::Only(vec![key.clone()])).await.unwrap();
    assert!(seen.elections.is_empty() && seen.strays.is_empty());
    a.store.leave(&a.id, &key).await.unwrap();
    a.release(&key, 0, Token::from_u64(1)).await;
    assert_eq!(a.store.election(&key).await, Ok(None), "none of that made it");
}

/// Nothing is written for who is gone.
pub async fn a_dead_session_joins_nothing(subject: &Subject) {
    let (a, key) = (subject.actor("a").await, election("e"));
    assert_eq!(a.store.join(&candidacy(&new_id(), &key)).await, Ok(Joined::Gone));
    a.store.end(&a.id).await.unwrap();
    assert_eq!(a.store.join(&candidacy(&a.id, &key)).await, Ok(Joined::Gone));
    assert_eq!(a.store.election(&key).await, Ok(None));
}

/// One session is one candidate of an election.
pub async fn joining_again_changes_how_one_stands(subject: &Subject) {
    let (a, key) = (subject.actor("a").await, election("e"));
    a.stand(&key).await;
    let joined = a.view(&key).await.candidates[0].joined_at_ms;
    let token = a.take(&key, 0).await;
    let again = Candidacy {
        id: "other".into(),
        priority: -7,
        observer: true,
        capabilities: vec!["gpu".into()],
        requires: vec!["disk".into()],
        ..candidacy(&a.id, &key)
    };
    assert_eq!(a.store.join(&again).await, Ok(Joined::Standing));
    let view = a.view(&key).await;
    assert_eq!((view.candidates.len(), view.requires.as_slice()), (1, ["disk".to_owned()].as_slice()));
    let candidate = &view.candidates[0];
    assert_eq!((candidate.id.as_str(), candidate.priority, candidate.observer), ("other", -7, true));
    assert_eq!(
        (candidate.capabilities.as_slice(), candidate.joined_at_ms),
        (["gpu".to_owned()].as_slice(), joined)
    );
    assert_eq!(view.leases[0].token, token, "and holds what it held");
}

/// A lease outlives its candidacy: the two are given up one by one.
pub async fn leaving_removes_the_candidate_and_nothing_else(subject: &Subject) {
    let (a, b, key) = (subject.actor("a").await, subject.actor("b").await, election("e"));
    a.stand(&key).await;
    b.stand(&key).await;
    let token = a.take(&key, 0).await;
    a.store.leave(&a.id, &key).await.unwrap();
    a.store.leave(&a.id, &key).await.unwrap();
    let view = b.view(&key).await;
    assert_eq!(view.candidates.len(), 1);
    assert_eq!(view.leases[0].holder.as_ref().map(|holder| &holder.id), Some(&a.id));
    assert_eq!(view.leases[0].token, token);
}

/// Text is text: nothing that people write is lost or bent on its way through SQL and JSON.
pub async fn everything_a_candidate_says_is_kept(subject: &Subject) {
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
        let (a, key) = (subject.actor(text).await, election(&format!("A.b_c:d-{n}")));
        let candidacy = Candidacy {
            id: (*text).into(),
            priority: if n % 2 == 0 { i32::MIN } else { i32::MAX },
            observer: n % 2 == 0,
            capabilities: vec![(*text).into(), "x".into(), (*text).into()],
            requires: vec![(*text).into()],
            metadata: BTreeMap::from([((*text).into(), (*text).into()), ("k".into(), String::new())]),
            ..candidacy(&a.id, &key)
        };
        assert_eq!(a.store.join(&candidacy).await, Ok(Joined::Standing), "{text:?}");
        let view = a.view(&key).await;
        let seen = &view.candidates[0];
        assert_eq!((&seen.id, &seen.session.name), (&candidacy.id, &candidacy.id));
        assert_eq!((seen.priority, seen.observer), (candidacy.priority, candidacy.observer));
        assert_eq!((&seen.capabilities, &seen.metadata), (&candidacy.capabilities, &candidacy.metadata));
        assert_eq!((&view.requires, &view.key), (&candidacy.requires, &key));
        a.take(&key, 0).await;
        assert_eq!(a.store.history(&key, 1).await.unwrap()[0].id, *text);
    }
}

/// n holders, each with a token of its own slot.
pub async fn slots_make_a_semaphore(subject: &Subject) {
    let key = election("e");
    let mut actors = Vec::new();
    for n in 0..4 {
        let actor = subject.actor(&format!("a{n}")).await;
        actor.stand_for(&key, 3).await;
        actors.push(actor);
    }
    for (actor, slot) in actors.iter().zip(0..3) {
        actor.take(&key, slot).await;
    }
    let last = &actors[3];
    for slot in 0..3 {
        assert_eq!(last.store.take(&last.bid(&key, slot).await).await, Ok(None));
    }
    assert_eq!(last.view(&key).await.holders().count(), 3);
    let beyond = Take { slot: 3, token: Token::ZERO, holder: None, ..last.bid(&key, 0).await };
    assert_eq!(last.store.take(&beyond).await, Ok(None), "there is no fourth");
    let token = actors[1].lease(&key, 1).await.token;
    actors[1].release(&key, 1, token).await;
    assert!(last.take(&key, 1).await > token);
}

/// Two deployments that disagree must not each count to their own number.
pub async fn another_number_of_slots_is_refused_while_others_stand(subject: &Subject) {
    let (a, b, key) = (subject.actor("a").await, subject.actor("b").await, election("e"));
    a.stand_for(&key, 2).await;
    let three = Candidacy { slots: 3, requires: vec!["x".into()], ..candidacy(&b.id, &key) };
    assert_eq!(b.store.join(&three).await, Ok(Joined::SlotsDiffer { slots: 2 }));
    let view = a.view(&key).await;
    assert_eq!((view.slots, view.leases.len(), view.candidates.len()), (2, 2, 1));
    assert!(view.requires.is_empty(), "nothing was written");
    a.stand_for(&key, 3).await;
    assert_eq!(b.store.join(&three).await, Ok(Joined::Standing), "alone, one may change it");
    a.store.end(&a.id).await.unwrap();
    b.stand_for(&key, 1).await;
    assert_eq!(b.view(&key).await.leases.len(), 1);
}

/// A smaller election keeps the tokens of the slots that it no longer has.
pub async fn a_slot_that_went_away_keeps_its_token(subject: &Subject) {
    let (a, key) = (subject.actor("a").await, election("e"));
    a.stand_for(&key, 2).await;
    let token = a.take(&key, 1).await;
    a.stand_for(&key, 1).await;
    let view = a.view(&key).await;
    assert_eq!((view.slots, view.leases.len()), (1, 1));
    a.release(&key, 1, token).await;
    let gone = Take { slot: 1, token, holder: None, ..a.bid(&key, 0).await };
    assert_eq!(a.store.take(&gone).await, Ok(None));
    a.stand_for(&key, 2).await;
    assert!(a.take(&key, 1).await > token);
}

/// A follower's look, a leader's look, and a look at some.
pub async fn scopes_cover_what_they_say(subject: &Subject) {
    let (a, b) = (subject.actor("a").await, subject.actor("b").await);
    let keys: Vec<_> = ["led", "lost", "elsewhere"].map(election).into();
    for key in &keys[..2] {
        a.stand(key).await;
    }
    b.stand(&keys[2]).await;
    a.take(&keys[0], 0).await;
    let names = |seen: tenure_core::port::Observation| -> Vec<ElectionKey> {
        seen.elections.into_iter().map(|view| view.key).collect()
    };
    let look = async |scope: Scope| names(a.store.observe(&a.id, &scope).await.unwrap());
    assert_eq!(look(Scope::Contested).await, [keys[1].clone()]);
    assert_eq!(look(Scope::Standing).await, [keys[0].clone(), keys[1].clone()]);
    let some = vec![keys[2].clone(), election("none"), keys[0].clone(), keys[2].clone()];
    assert_eq!(look(Scope::Only(some)).await, [keys[2].clone(), keys[0].clone()]);
    assert!(look(Scope::Only(Vec::new())).await.is_empty());
    assert_eq!(look(Scope::All).await.len(), keys.len());
}

/// By namespace, then by name.
pub async fn elections_are_listed_by_namespace(subject: &Subject) {
    let a = subject.actor("a").await;
    let key =
        |namespace: &str, name: &str| ElectionKey::new(namespace.parse().unwrap(), name.parse().unwrap());
    let keys = [key("a", "x"), key("b", "A"), key("b", "Z"), key("b", "a"), key("c", "x")];
    for n in [3, 0, 4, 2, 1] {
        a.stand(&keys[n]).await;
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

/// Newest first: who, how it came about, how it ended.
pub async fn history_tells_how_terms_came_and_went(subject: &Subject) {
    let (a, b, key) = (subject.actor("a").await, subject.actor("b").await, election("e"));
    a.stand(&key).await;
    b.stand(&key).await;
    let first = a.take(&key, 0).await;
    a.release(&key, 0, first).await;
    a.take(&key, 0).await;
    let bid = b.overbid(&key, 0).await;
    b.store.take(&bid).await.unwrap().expect("taken over");
    b.store.end(&b.id).await.unwrap();
    let c = subject.actor("c").await;
    c.stand(&key).await;
    c.take(&key, 0).await;
    let terms = c.store.history(&key, 10).await.unwrap();
    let told: Vec<_> = terms.iter().map(|term| (&term.session, term.via, term.end.as_deref())).collect();
    let expected = [
        (&c.id, Via::Release, None),
        (&b.id, Via::Takeover, Some("ended")),
        (&a.id, Via::Release, Some("expired")),
        (&a.id, Via::Release, Some("released")),
    ];
    assert_eq!(told, expected);
    assert!(terms.is_sorted_by(|newer, older| newer.token > older.token));
    assert!(
        terms.iter().all(|term| term.ended_at_ms.is_some() == term.end.is_some() && term.began_at_ms > 0)
    );
    assert_eq!(c.store.history(&key, 2).await.unwrap(), terms[..2]);
    assert!(c.store.history(&key, 0).await.unwrap().is_empty());
}

/// And no more.
pub async fn history_keeps_the_last_hundred_terms(subject: &Subject) {
    let (a, key) = (subject.actor("a").await, election("e"));
    a.stand(&key).await;
    for _ in 0..103 {
        let token = a.take(&key, 0).await;
        a.release(&key, 0, token).await;
    }
    let terms = a.store.history(&key, 1000).await.unwrap();
    assert_eq!((terms.len(), terms[0].token), (100, a.lease(&key, 0).await.token));
}
