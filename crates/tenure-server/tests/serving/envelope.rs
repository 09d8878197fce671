//! What is around every answer.

use http_body_util::Full;

use crate::support::{guarded, house, settings};

#[tokio::test]
async fn every_answer_has_an_id_and_headers_that_browsers_obey() {
    let house = house(settings()).await;
    for path in ["/healthz", "/", "/v1/elections", "/nowhere", "/v1/elections/nobody-stands-here"] {
        let answer = house.get(path).await;
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
        assert!(!answer.headers.contains_key("strict-transport-security"), "only TLS can promise TLS");
    }
}

#[tokio::test]
async fn a_sane_request_id_is_echoed_and_another_is_not() {
    let house = house(settings()).await;
    let ask = async |id: &str| {
        let request = house.request("GET", "/healthz").header("x-request-id", id);
        house.send(request.body(Full::default()).expect("a request")).await.header("x-request-id").to_owned()
    };
    assert_eq!(ask("trace-1:a.b_c").await, "trace-1:a.b_c");
    for odd in ["", "with space", "<script>", "\u{e9}", &"x".repeat(129)] {
        let id = ask(odd).await;
        assert!(id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{odd:?} became {id:?}");
    }
}

#[tokio::test]
async fn what_is_not_there_is_told_as_a_problem() {
    let house = house(settings()).await;
    let nowhere = house.get("/v1/nowhere").await;
    assert_eq!((nowhere.status, nowhere.code().as_str()), (404, "no-such-path"));
    let method = house.post("/healthz", "{}").await;
    assert_eq!((method.status, method.code().as_str()), (405, "no-such-method"));
    assert!(method.header("allow").contains("GET"));
}

#[tokio::test]
async fn a_method_that_somebody_made_up_is_no_label() {
    let house = house(settings()).await;
    let request = house.request("BREW", "/v1/elections").body(Full::default()).expect("a request");
    assert_eq!(house.send(request).await.code(), "no-such-method");
    let metrics = house.get("/metrics").await.text();
    assert!(metrics.contains(r#"method="other""#) && !metrics.contains("BREW"), "{metrics}");
}

#[tokio::test]
async fn a_stranger_learns_nothing_from_a_path_that_is_not_there() {
    let house = guarded().await;
    assert_eq!(house.get("/v1/nowhere").await.code(), "no-such-path");
    assert_eq!(house.get("/v1/elections").await.code(), "unauthenticated");
}
