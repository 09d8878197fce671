//! Claims about what a server keeps for itself.

use tenure_core::port::{Credential, Deed, Proof, Trouble};

use super::{Subject, new_id};

/// A credential for a token, named after its id.
fn credential(id: &str) -> Credential {
    Credential {
        id: id.into(),
        name: format!("{id}'s \"name\""),
        proof: Proof::Token { digest: format!("digest of {id}") },
        grants: vec!["prod:read,lead".parse().expect("a grant"), "*:admin".parse().expect("a grant")],
        created_at_ms: 1_000,
        created_by: "ops\\x".into(),
        expires_at_ms: Some(9_000),
        revoked_at_ms: None,
    }
}

/// A deed at a time, in a namespace.
fn deed(at_ms: i64, namespace: Option<&str>) -> Deed {
    Deed {
        n: 0,
        at_ms,
        principal: "o'ps".into(),
        action: "pause".into(),
        namespace: namespace.map(|name| name.parse().expect("a name")),
        target: format!("e{at_ms}"),
        detail: "line\none \\ \"two\"".into(),
        request_id: new_id().to_string(),
    }
}

/// Nothing is lost on the way, and the newest is the first, whatever the clocks said.
pub async fn credentials_are_kept_whole_newest_first(subject: &Subject) {
    let (one, other) = (subject.client().await, subject.client().await);
    assert_eq!(one.credentials().await, Ok(Vec::new()));
    let token = credential("b");
    let subject = Proof::Certificate { subject: "CN=worker-1,O=acme".into() };
    let certificate = Credential {
        proof: subject,
        grants: vec![],
        created_at_ms: 500,
        expires_at_ms: None,
        revoked_at_ms: Some(7_001),
        ..credential("a")
    };
    one.put_credential(&token).await.unwrap();
    other.put_credential(&certificate).await.unwrap();
    assert_eq!(other.credentials().await, Ok(vec![certificate.clone(), token.clone()]));
    assert_eq!(one.credentials().await, Ok(vec![certificate, token]));
}

/// Who writes back an older view of a credential revives nothing: a revocation stays, and an expiry only comes nearer.
pub async fn a_credential_is_never_worth_more_than_it_was(subject: &Subject) {
    let store = subject.client().await;
    let fresh = credential("a");
    let with = |expires_at_ms, revoked_at_ms| Credential { expires_at_ms, revoked_at_ms, ..fresh.clone() };
    let steps = [
        (with(None, None), (None, None)),
        (with(Some(9_000), None), (Some(9_000), None)),
        (with(Some(5_000), None), (Some(5_000), None)),
        (with(Some(8_000), None), (Some(5_000), None)),
        (with(None, Some(4_000)), (Some(5_000), Some(4_000))),
        (with(Some(5_000), Some(6_000)), (Some(5_000), Some(4_000))),
        (with(None, None), (Some(5_000), Some(4_000))),
    ];
    for (n, (put, expected)) in steps.into_iter().enumerate() {
        store.put_credential(&put).await.unwrap();
        let kept = store.credentials().await.unwrap();
        let dates: Vec<_> = kept.iter().map(|it| (it.expires_at_ms, it.revoked_at_ms)).collect();
        assert_eq!(dates, [expected], "step {n}");
    }
}

/// Nor is it turned into another one.
pub async fn a_known_credential_keeps_its_name_proof_and_grants(subject: &Subject) {
    let store = subject.client().await;
    let known = credential("a");
    store.put_credential(&known).await.unwrap();
    let others = [
        Credential { name: "other".into(), ..known.clone() },
        Credential { proof: Proof::Token { digest: "other".into() }, ..known.clone() },
        Credential { proof: Proof::Certificate { subject: "digest of a".into() }, ..known.clone() },
        Credential { grants: vec!["*:read".parse().expect("a grant")], ..known.clone() },
    ];
    for other in others {
        let other = Credential { revoked_at_ms: Some(1), ..other };
        let refused = store.put_credential(&other).await.unwrap_err();
        assert_eq!(refused.kind, Trouble::Request, "{refused}");
        assert!(refused.message.contains("credential a"), "{refused}");
    }
    assert_eq!(store.credentials().await, Ok(vec![known]));
}

/// What somebody did is there for everybody, the newest first.
pub async fn deeds_are_recorded_whole(subject: &Subject) {
    let (one, other) = (subject.client().await, subject.client().await);
    assert_eq!(one.deeds(None, None, 10).await, Ok(Vec::new()));
    let (first, second) = (deed(2_000, Some("prod")), deed(1_000, None));
    one.record(&first).await.unwrap();
    other.record(&second).await.unwrap();
    let seen = one.deeds(None, None, 10).await.unwrap();
    let (a, b) = (seen[1].n, seen[0].n);
    assert!(0 < a && a < b);
    assert_eq!(seen, [Deed { n: b, ..second }, Deed { n: a, ..first }]);
    assert_eq!(other.deeds(None, None, 10).await, Ok(seen));
}

/// Page by page, each deed is seen once, also while more are recorded.
pub async fn deeds_are_read_page_by_page(subject: &Subject) {
    let store = subject.client().await;
    for at in 1..=7 {
        store.record(&deed(at, Some(if at % 2 == 0 { "even" } else { "odd" }))).await.unwrap();
    }
    let mut seen = Vec::new();
    let mut before = None;
    loop {
        let page = store.deeds(None, before, 3).await.unwrap();
        let Some(last) = page.last() else { break };
        assert!(page.len() <= 3);
        before = Some(last.n);
        seen.extend(page.iter().map(|deed| deed.at_ms));
        store.record(&deed(100, Some("even"))).await.unwrap();
    }
    assert_eq!(seen, [7, 6, 5, 4, 3, 2, 1]);
    let even = "even".parse().expect("a name");
    let page = store.deeds(Some(&even), before.map(|n| n + 5), 2).await.unwrap();
    assert_eq!(page.iter().map(|deed| deed.at_ms).collect::<Vec<_>>(), [4, 2]);
    assert_eq!(store.deeds(None, None, 0).await, Ok(Vec::new()));
}

/// Who may see one namespace sees what was done there, and nothing of the others.
pub async fn deeds_of_a_namespace_are_only_those(subject: &Subject) {
    let store = subject.client().await;
    for (at, namespace) in [(1, Some("prod")), (2, Some("test")), (3, None), (4, Some("prod"))] {
        store.record(&deed(at, namespace)).await.unwrap();
    }
    let times = async |namespace: Option<&str>| {
        let namespace = namespace.map(|name| name.parse().expect("a name"));
        let deeds = store.deeds(namespace.as_ref(), None, 10).await.unwrap();
        deeds.iter().map(|deed| deed.at_ms).collect::<Vec<_>>()
    };
    assert_eq!(times(Some("prod")).await, [4, 1]);
    assert_eq!(times(Some("test")).await, [2]);
    assert!(times(Some("pro")).await.is_empty());
    assert_eq!(times(None).await, [4, 3, 2, 1]);
}

/// What is long past goes; what is worth something stays, and so does what was worth something until lately.
pub async fn what_is_long_past_is_forgotten(subject: &Subject) {
    let store = subject.client().await;
    let with = |id: &str, expires_at_ms, revoked_at_ms| Credential {
        expires_at_ms,
        revoked_at_ms,
        ..credential(id)
    };
    let all = [
        with("never", None, None),
        with("expired", Some(4_999), None),
        with("lately", Some(5_000), None),
        with("revoked", None, Some(4_999)),
        with("revoked-lately", Some(9_000), Some(5_000)),
        with("both", Some(9_000), Some(10)),
        with("later", Some(9_000), None),
    ];
    for credential in &all {
        store.put_credential(credential).await.unwrap();
    }
    for at in [4_998, 4_999, 5_000, 5_001] {
        store.record(&deed(at, None)).await.unwrap();
    }
    let newest = store.deeds(None, None, 1).await.unwrap()[0].n;
    store.forget(5_000).await.unwrap();
    let kept: Vec<_> = store.credentials().await.unwrap().into_iter().map(|it| it.id).collect();
    assert_eq!(kept, ["later", "revoked-lately", "lately", "never"]);
    let deeds = store.deeds(None, None, 10).await.unwrap();
    assert_eq!(deeds.iter().map(|deed| deed.at_ms).collect::<Vec<_>>(), [5_001, 5_000]);
    // A place is given once: whoever pages through the audit must not pass over what came later.
    store.forget(i64::from(u32::MAX)).await.unwrap();
    assert_eq!(store.deeds(None, None, 10).await, Ok(Vec::new()));
    store.record(&deed(9_000, None)).await.unwrap();
    assert!(store.deeds(None, None, 1).await.unwrap()[0].n > newest);
}
