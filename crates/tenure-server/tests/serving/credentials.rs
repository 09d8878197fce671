//! Credentials over HTTP, and their audit entries.

use crate::support::{guarded, json};

#[tokio::test]
async fn access_tokens_are_created_shown_once_rotated_and_revoked() {
    let fixture = guarded().await;
    let admin = fixture.principal("ops", &["*:admin"]).await.text;
    let created =
        r#"{"name":"worker","grants":[{"namespace":"prod","permissions":["read"]}],"expires_in_ms":3600000}"#;
    let created = fixture.post_as(&admin, "/v1/credentials", created).await;
    assert_eq!(created.status, 201, "{created:?}");
    let (text, id) = (
        created.json()["access_token"].as_str().expect("an access token").to_owned(),
        created.json()["id"].clone(),
    );
    let id = id.as_str().expect("an id");
    assert_eq!(fixture.get_as(&text, "/v1/elections?namespace=prod").await.status, 200);
    assert_eq!(fixture.get_as(&text, "/v1/credentials").await.code(), "forbidden");

    let list = fixture.get_as(&admin, "/v1/credentials").await;
    assert!(list.text().contains(id) && list.text().contains("ops"));
    let secret = &text[text.len() - 64..];
    assert!(!list.text().contains(secret) && !list.text().contains("digest"), "{}", list.text());

    let rotated =
        fixture.post_as(&admin, &format!("/v1/credentials/{id}/rotate"), r#"{"grace_period_ms":0}"#).await;
    assert_eq!(rotated.status, 201, "{rotated:?}");
    let fresh = rotated.json()["access_token"].as_str().expect("an access token").to_owned();
    assert_eq!(fixture.get_as(&fresh, "/v1/elections?namespace=prod").await.status, 200);
    assert_eq!(fixture.get_as(&text, "/v1/elections?namespace=prod").await.code(), "expired");
    assert_eq!(
        fixture.post_as(&admin, &format!("/v1/credentials/{id}/rotate"), "").await.code(),
        "credential-not-rotatable"
    );

    let id = rotated.json()["id"].as_str().expect("an id").to_owned();
    let revoke = || {
        fixture
            .request("DELETE", &format!("/v1/credentials/{id}"))
            .header("authorization", format!("Bearer {admin}"))
    };
    assert_eq!(fixture.send(json(revoke(), "")).await.json()["valid"], false);
    assert_eq!(fixture.get_as(&fresh, "/v1/elections?namespace=prod").await.code(), "revoked");

    // The access token itself identifies its credential.
    let lost = fixture.principal("lost", &["prod:read"]).await;
    let whole = fixture
        .request("DELETE", &format!("/v1/credentials/{}", lost.text))
        .header("authorization", format!("Bearer {admin}"));
    let ended = fixture.send(json(whole, "")).await;
    assert_eq!((ended.status, ended.json()["id"].as_str()), (200, Some(&*lost.id)), "{ended:?}");

    let audit = fixture.get_as(&admin, "/v1/audit").await;
    assert!(!audit.text().contains(&lost.text), "{}", audit.text());
    let actions: Vec<_> = audit.json()["entries"]
        .as_array()
        .expect("entries")
        .iter()
        .map(|entry| entry["action"].clone())
        .collect();
    assert_eq!(actions, ["credential.revoke", "credential.revoke", "credential.rotate", "credential.create"]);
    let text = audit.text();
    assert!(text.contains("ops") && !text.contains(secret));
}

#[tokio::test]
async fn invalid_credentials_are_rejected_with_the_field() {
    let fixture = guarded().await;
    let admin = fixture.principal("ops", &["*:admin"]).await.text;
    for (body, field) in [
        (r#"{"name":"","grants":[{"namespace":"a","permissions":["read"]}]}"#, "name"),
        (r#"{"name":"local","grants":[{"namespace":"a","permissions":["read"]}]}"#, "name"),
        (r#"{"name":"anonymous-1","grants":[{"namespace":"a","permissions":["read"]}]}"#, "name"),
        (r#"{"name":"x","grants":[]}"#, "grants"),
        (
            r#"{"name":"x","grants":[{"namespace":"a","permissions":["read"]}],"expires_in_ms":0}"#,
            "expires_in_ms",
        ),
        (
            r#"{"name":"x","grants":[{"namespace":"a","permissions":["read"]}],"expires_in_ms":99999999999999}"#,
            "expires_in_ms",
        ),
        (
            r#"{"name":"x","grants":[{"namespace":"a","permissions":["read"]}],"expires_in_ms":9,"no_expiry":true}"#,
            "no_expiry",
        ),
    ] {
        let answer = fixture.post_as(&admin, "/v1/credentials", body).await;
        assert_eq!(
            (answer.status, answer.json()["field"].as_str()),
            (422, Some(field)),
            "{body}: {}",
            answer.text()
        );
    }
    assert_eq!(
        fixture.post_as(&admin, "/v1/credentials/unknown/rotate", "").await.code(),
        "no-such-credential"
    );
}

#[tokio::test]
async fn the_audit_log_of_a_namespace_requires_read() {
    let fixture = guarded().await;
    let token = fixture.principal("reader", &["prod:read"]).await.text;
    assert_eq!(fixture.get_as(&token, "/v1/audit?namespace=prod").await.status, 200);
    assert_eq!(fixture.get_as(&token, "/v1/audit?namespace=dev").await.code(), "forbidden");
    assert_eq!(fixture.get_as(&token, "/v1/audit").await.code(), "forbidden");
}
