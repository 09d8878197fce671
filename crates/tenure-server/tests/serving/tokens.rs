//! Credentials over HTTP, and the audit of it.

use crate::support::{guarded, json};

#[tokio::test]
async fn tokens_are_made_shown_once_rotated_and_revoked() {
    let house = guarded().await;
    let admin = house.principal("ops", &["*:admin"]).await.text;
    let made = r#"{"name":"worker","grants":[{"namespace":"prod","verbs":["read"]}],"expires_in_s":3600}"#;
    let made = house.post_as(&admin, "/v1/tokens", made).await;
    assert_eq!(made.status, 201, "{made:?}");
    let (text, id) = (made.json()["token"].as_str().expect("a token").to_owned(), made.json()["id"].clone());
    let id = id.as_str().expect("an id");
    assert_eq!(house.get_as(&text, "/v1/elections?namespace=prod").await.status, 200);
    assert_eq!(house.get_as(&text, "/v1/tokens").await.code(), "denied");

    let list = house.get_as(&admin, "/v1/tokens").await;
    assert!(list.text().contains(id) && list.text().contains("ops"));
    let secret = &text[text.len() - 64..];
    assert!(!list.text().contains(secret) && !list.text().contains("digest"), "{}", list.text());

    let rotated = house.post_as(&admin, &format!("/v1/tokens/{id}/rotate"), r#"{"overlap_s":0}"#).await;
    assert_eq!(rotated.status, 201, "{rotated:?}");
    let fresh = rotated.json()["token"].as_str().expect("a token").to_owned();
    assert_eq!(house.get_as(&fresh, "/v1/elections?namespace=prod").await.status, 200);
    assert_eq!(house.get_as(&text, "/v1/elections?namespace=prod").await.code(), "expired");
    assert_eq!(house.post_as(&admin, &format!("/v1/tokens/{id}/rotate"), "").await.code(), "not-rotatable");

    let id = rotated.json()["id"].as_str().expect("an id").to_owned();
    let revoke = || {
        house
            .request("DELETE", &format!("/v1/tokens/{id}"))
            .header("authorization", format!("Bearer {admin}"))
    };
    assert_eq!(house.send(json(revoke(), "")).await.json()["valid"], false);
    assert_eq!(house.get_as(&fresh, "/v1/elections?namespace=prod").await.code(), "revoked");

    // Whoever has nothing but the token itself revokes it by that.
    let lost = house.principal("lost", &["prod:read"]).await;
    let whole = house
        .request("DELETE", &format!("/v1/tokens/{}", lost.text))
        .header("authorization", format!("Bearer {admin}"));
    let gone = house.send(json(whole, "")).await;
    assert_eq!((gone.status, gone.json()["id"].as_str()), (200, Some(&*lost.id)), "{gone:?}");

    let audit = house.get_as(&admin, "/v1/audit").await;
    assert!(!audit.text().contains(&lost.text), "{}", audit.text());
    let actions: Vec<_> =
        audit.json()["deeds"].as_array().expect("deeds").iter().map(|deed| deed["action"].clone()).collect();
    assert_eq!(actions, ["token.revoke", "token.revoke", "token.rotate", "token.create"]);
    let text = audit.text();
    assert!(text.contains("ops") && !text.contains(secret));
}

#[tokio::test]
async fn nonsense_is_refused_by_name() {
    let house = guarded().await;
    let admin = house.principal("ops", &["*:admin"]).await.text;
    for (body, field) in [
        (r#"{"name":"","grants":[{"namespace":"a","verbs":["read"]}]}"#, "name"),
        (r#"{"name":"local","grants":[{"namespace":"a","verbs":["read"]}]}"#, "name"),
        (r#"{"name":"strangers-1","grants":[{"namespace":"a","verbs":["read"]}]}"#, "name"),
        (r#"{"name":"x","grants":[]}"#, "grants"),
        (r#"{"name":"x","grants":[{"namespace":"a","verbs":["read"]}],"expires_in_s":0}"#, "expires_in_s"),
        (
            r#"{"name":"x","grants":[{"namespace":"a","verbs":["read"]}],"expires_in_s":99999999999}"#,
            "expires_in_s",
        ),
        (
            r#"{"name":"x","grants":[{"namespace":"a","verbs":["read"]}],"expires_in_s":9,"forever":true}"#,
            "forever",
        ),
    ] {
        let answer = house.post_as(&admin, "/v1/tokens", body).await;
        assert_eq!(
            (answer.status, answer.json()["field"].as_str()),
            (422, Some(field)),
            "{body}: {}",
            answer.text()
        );
    }
    assert_eq!(house.post_as(&admin, "/v1/tokens/nobody/rotate", "").await.code(), "no-such-token");
}

#[tokio::test]
async fn the_audit_of_a_namespace_is_for_those_who_read_it() {
    let house = guarded().await;
    let token = house.principal("reader", &["prod:read"]).await.text;
    assert_eq!(house.get_as(&token, "/v1/audit?namespace=prod").await.status, 200);
    assert_eq!(house.get_as(&token, "/v1/audit?namespace=dev").await.code(), "denied");
    assert_eq!(house.get_as(&token, "/v1/audit").await.code(), "denied");
}
