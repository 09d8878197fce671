//! Outer middleware: headers, request ids and unknown routes.

use http_body_util::Full;

use crate::support::{guarded, settings, test_server};

#[tokio::test]
async fn every_response_has_a_request_id_and_security_headers() {
    let fixture = test_server(settings()).await;
    for path in ["/healthz", "/", "/v1/elections", "/nowhere", "/v1/elections/unknown"] {
        let answer = fixture.get(path).await;
        for (name, part) in [
            ("content-security-policy", "default-src 'none'"),
            ("content-security-policy", "frame-ancestors 'none'"),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", ""),
            ("x-request-id", ""),
        ] {
            assert!(answer.headers.contains_key(name), "{path} has no {name}");
            assert!(answer.header(name).contains(part), "{path}: {name} is {}", answer.header(name));
        }
        assert_eq!(answer.header("content-length"), answer.body.len().to_string(), "{path}");
        assert!(!answer.headers.contains_key("strict-transport-security"), "only TLS responses set it");
    }
}

#[tokio::test]
async fn a_valid_request_id_is_echoed_and_an_invalid_one_is_replaced() {
    let fixture = test_server(settings()).await;
    let ask = async |id: &str| {
        let request = fixture.request("GET", "/healthz").header("x-request-id", id);
        fixture
            .send(request.body(Full::default()).expect("a request"))
            .await
            .header("x-request-id")
            .to_owned()
    };
    assert_eq!(ask("trace-1:a.b_c").await, "trace-1:a.b_c");
    for odd in ["", "with space", "<script>", "\u{e9}", &"x".repeat(129)] {
        let id = ask(odd).await;
        assert!(id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{odd:?} became {id:?}");
    }
}

#[tokio::test]
async fn unknown_routes_and_methods_are_problems() {
    let fixture = test_server(settings()).await;
    let nowhere = fixture.get("/v1/nowhere").await;
    assert_eq!((nowhere.status, nowhere.code().as_str()), (404, "no-such-route"));
    let method = fixture.post("/healthz", "{}").await;
    assert_eq!((method.status, method.code().as_str()), (405, "method-not-allowed"));
    assert!(method.header("allow").contains("GET"));
}

#[tokio::test]
async fn an_unknown_method_is_not_a_metric_label() {
    let fixture = test_server(settings()).await;
    let request = fixture.request("BREW", "/v1/elections").body(Full::default()).expect("a request");
    assert_eq!(fixture.send(request).await.code(), "method-not-allowed");
    let metrics = fixture.get("/metrics").await.text();
    assert!(metrics.contains(r#"method="other""#) && !metrics.contains("BREW"), "{metrics}");
}

#[tokio::test]
async fn unknown_routes_reveal_nothing_to_unauthenticated_clients() {
    let fixture = guarded().await;
    assert_eq!(fixture.get("/v1/nowhere").await.code(), "no-such-route");
    assert_eq!(fixture.get("/v1/elections").await.code(), "unauthenticated");
}
