//! Credentials and audit log.

use tenure_core::port::{AuditEntry, Credential, CredentialVerifier, ErrorKind};

use super::{StoreUnderTest, new_id};

/// A credential for an access token, named after its id.
fn credential(id: &str) -> Credential {
    Credential {
        id: id.into(),
        name: format!("{id}'s \"name\""),
        verifier: CredentialVerifier::AccessToken { digest: format!("digest of {id}") },
        grants: vec!["prod:read,lead".parse().expect("a grant"), "*:admin".parse().expect("a grant")],
        created_at_ms: 1_000,
        created_by: "ops\\x".into(),
        expires_at_ms: Some(9_000),
        revoked_at_ms: None,
    }
}

/// An audit entry at a time, in a namespace.
fn entry(at_ms: i64, namespace: Option<&str>) -> AuditEntry {
    AuditEntry {
        seq: 0,
        recorded_at_ms: at_ms,
        principal: "o'ps".into(),
        action: "pause".into(),
        namespace: namespace.map(|name| name.parse().expect("a name")),
        target: format!("e{at_ms}"),
        detail: "line\none \\ \"two\"".into(),
        request_id: new_id().to_string(),
    }
}

/// All fields are kept, and the newest credential comes first, independent of clocks.
pub async fn credentials_keep_all_fields_and_are_listed_newest_first(subject: &StoreUnderTest) {
    let (one, other) = (subject.client().await, subject.client().await);
    assert_eq!(one.credentials().await, Ok(Vec::new()));
    let token = credential("b");
    let subject = CredentialVerifier::Certificate { certificate_subject: "CN=worker-1,O=acme".into() };
    let certificate = Credential {
        verifier: subject,
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

/// Writing an outdated copy of a credential reactivates nothing: a revocation stays, and an expiry only moves
/// earlier.
pub async fn a_credential_is_never_reactivated_or_prolonged(subject: &StoreUnderTest) {
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

/// A stored credential cannot be replaced by another one.
pub async fn a_stored_credential_keeps_its_name_verifier_and_grants(subject: &StoreUnderTest) {
    let store = subject.client().await;
    let known = credential("a");
    store.put_credential(&known).await.unwrap();
    let others = [
        Credential { name: "other".into(), ..known.clone() },
        Credential { verifier: CredentialVerifier::AccessToken { digest: "other".into() }, ..known.clone() },
        Credential {
            verifier: CredentialVerifier::Certificate { certificate_subject: "digest of a".into() },
            ..known.clone()
        },
        Credential { grants: vec!["*:read".parse().expect("a grant")], ..known.clone() },
    ];
    for other in others {
        let other = Credential { revoked_at_ms: Some(1), ..other };
        let refused = store.put_credential(&other).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Request, "{refused}");
        assert!(refused.message.contains("credential a"), "{refused}");
    }
    assert_eq!(store.credentials().await, Ok(vec![known]));
}

/// All fields of an audit entry are kept; the newest entry comes first.
pub async fn audit_entries_keep_all_fields(subject: &StoreUnderTest) {
    let (one, other) = (subject.client().await, subject.client().await);
    assert_eq!(one.audit_entries(None, None, 10).await, Ok(Vec::new()));
    let (first, second) = (entry(2_000, Some("prod")), entry(1_000, None));
    one.append_audit(&first).await.unwrap();
    other.append_audit(&second).await.unwrap();
    let observed = one.audit_entries(None, None, 10).await.unwrap();
    let (a, b) = (observed[1].seq, observed[0].seq);
    assert!(0 < a && a < b);
    assert_eq!(observed, [AuditEntry { seq: b, ..second }, AuditEntry { seq: a, ..first }]);
    assert_eq!(other.audit_entries(None, None, 10).await, Ok(observed));
}

/// Paging returns each entry once, even while entries are added.
pub async fn audit_entries_are_paged(subject: &StoreUnderTest) {
    let store = subject.client().await;
    for at in 1..=7 {
        store.append_audit(&entry(at, Some(if at % 2 == 0 { "even" } else { "odd" }))).await.unwrap();
    }
    let mut observed = Vec::new();
    let mut before = None;
    loop {
        let page = store.audit_entries(None, before, 3).await.unwrap();
        let Some(last) = page.last() else { break };
        assert!(page.len() <= 3);
        before = Some(last.seq);
        observed.extend(page.iter().map(|entry| entry.recorded_at_ms));
        store.append_audit(&entry(100, Some("even"))).await.unwrap();
    }
    assert_eq!(observed, [7, 6, 5, 4, 3, 2, 1]);
    let even = "even".parse().expect("a name");
    let page = store.audit_entries(Some(&even), before.map(|n| n + 5), 2).await.unwrap();
    assert_eq!(page.iter().map(|entry| entry.recorded_at_ms).collect::<Vec<_>>(), [4, 2]);
    assert_eq!(store.audit_entries(None, None, 0).await, Ok(Vec::new()));
}

/// A list for one namespace contains only its entries.
pub async fn audit_entries_are_filtered_by_namespace(subject: &StoreUnderTest) {
    let store = subject.client().await;
    for (at, namespace) in [(1, Some("prod")), (2, Some("test")), (3, None), (4, Some("prod"))] {
        store.append_audit(&entry(at, namespace)).await.unwrap();
    }
    let times = async |namespace: Option<&str>| {
        let namespace = namespace.map(|name| name.parse().expect("a name"));
        let entries = store.audit_entries(namespace.as_ref(), None, 10).await.unwrap();
        entries.iter().map(|entry| entry.recorded_at_ms).collect::<Vec<_>>()
    };
    assert_eq!(times(Some("prod")).await, [4, 1]);
    assert_eq!(times(Some("test")).await, [2]);
    assert!(times(Some("pro")).await.is_empty());
    assert_eq!(times(None).await, [4, 3, 2, 1]);
}

/// Old entries are pruned; valid and recently valid credentials stay.
pub async fn old_entries_and_credentials_are_pruned(subject: &StoreUnderTest) {
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
        store.append_audit(&entry(at, None)).await.unwrap();
    }
    let newest = store.audit_entries(None, None, 1).await.unwrap()[0].seq;
    store.prune_access(5_000).await.unwrap();
    let kept: Vec<_> = store.credentials().await.unwrap().into_iter().map(|it| it.id).collect();
    assert_eq!(kept, ["later", "revoked-lately", "lately", "never"]);
    let entries = store.audit_entries(None, None, 10).await.unwrap();
    assert_eq!(entries.iter().map(|entry| entry.recorded_at_ms).collect::<Vec<_>>(), [5_001, 5_000]);
    // A sequence number is never reused, so that paging does not skip later entries.
    store.prune_access(i64::from(u32::MAX)).await.unwrap();
    assert_eq!(store.audit_entries(None, None, 10).await, Ok(Vec::new()));
    store.append_audit(&entry(9_000, None)).await.unwrap();
    assert!(store.audit_entries(None, None, 1).await.unwrap()[0].seq > newest);
}
