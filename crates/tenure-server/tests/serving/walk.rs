//! Every route × every principal × every namespace.
//!
//! Nothing here names a route: the table is walked, and what must come of each request is worked out from the route's
//! [`Need`] and the principal's grants alone. A route that is added tomorrow is walked tomorrow; one that gets past the
//! table can not be added.

use std::time::Duration;

use axum::body::Body;
use http::Request;
use tenure::SessionId;
use tenure::port::{Grant, NewSession, Store as _, Takeover, Verb};
use tenure::runtime::random;
use tenure_server::access::Principal;
use tenure_server::route::{Entry, Need};
use tower::ServiceExt as _;

use crate::support::{House, guarded, within};

/// Somebody, or nobody.
struct Caller {
    name: String,
    grant: Option<Grant>,
    token: Option<String>,
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_lets_through_exactly_whom_its_need_allows() {
    let house = guarded().await;
    let callers = callers(&house).await;
    let app = house.server.app();
    let (router, routes) = (app.router(), app.routes());
    let table = routes.table();
    assert!(table.len() > 30, "the table has only {} routes", table.len());
    let mut asked = 0;
    for entry in table {
        for caller in &callers {
            for namespace in ["a", "b"] {
                // Whether the session in the path is the caller's own matters only where there is one.
                let owners: &[bool] =
                    if entry.path.contains("{session}") { &[true, false] } else { &[false] };
                for own in owners {
                    let owner = if *own { caller.name.as_str() } else { "somebody else" };
                    let request = request(&house, entry, caller, namespace, owner).await;
                    let response = within(router.clone().oneshot(request)).await.expect("infallible");
                    let expected =
                        may(entry.need, caller.grant.as_ref(), caller.token.is_some(), namespace, *own);
                    let what = format!(
                        "{} {} in {namespace} as {} (owner: {own}), which needs {:?}: {}",
                        entry.method,
                        entry.path,
                        caller.name,
                        entry.need,
                        response.status()
                    );
                    // Only what the gate let through carries its principal.
                    let passed = response.extensions().get::<Principal>().is_some();
                    if entry.need == Need::Nothing {
                        assert!(!matches!(response.status().as_u16(), 401 | 429), "{what}");
                        assert_eq!(passed, caller.token.is_some(), "{what}");
                    } else {
                        assert_eq!(passed, expected, "{what}");
                        if !expected {
                            let status = if caller.token.is_some() { 403 } else { 401 };
                            assert_eq!(response.status().as_u16(), status, "{what}");
                            assert_eq!(
                                response.headers()["content-type"],
                                "application/problem+json",
                                "{what}"
                            );
                            assert_eq!(
                                response.headers().contains_key("www-authenticate"),
                                status == 401,
                                "{what}"
                            );
                        }
                    }
                    asked += 1;
                }
            }
        }
    }
    assert!(asked >= table.len() * callers.len() * 2);
}

/// What the need says, spelled out a second time and from nothing else.
fn may(need: Need, grant: Option<&Grant>, known: bool, namespace: &str, own: bool) -> bool {
    let has = |verb: Verb, place: &str| {
        grant.is_some_and(|grant| {
            let realm = grant.realm.to_string();
            (realm == "*" || realm == place) && grant.verbs.iter().any(|v| *v == verb || *v == Verb::Admin)
        })
    };
    match need {
        Need::Nothing => true,
        Need::Known => known,
        Need::In(verb) => has(verb, namespace),
        Need::InAny(verbs) => verbs.iter().any(|verb| has(*verb, namespace)),
        Need::Over(verb) => has(verb, "*"),
        Need::Session => known && own,
        Need::Stand => has(Verb::Lead, namespace),
        Need::SessionIn(verb) => own && has(verb, namespace),
    }
}

/// Nobody, and one principal for each verb in each realm.
async fn callers(house: &House) -> Vec<Caller> {
    let mut callers = vec![Caller { name: "nobody".into(), grant: None, token: None }];
    for verb in Verb::ALL {
        for realm in ["a", "b", "*"] {
            let text = format!("{realm}:{verb}");
            let token = house.principal(&text, &[&text]).await;
            let grant = Some(text.parse().expect("a grant"));
            callers.push(Caller { name: text, grant, token: Some(token.text) });
        }
    }
    callers
}

async fn request(
    house: &House,
    entry: &Entry,
    caller: &Caller,
    namespace: &str,
    owner: &str,
) -> Request<Body> {
    let mut path = entry.path.clone();
    if path.contains("{session}") {
        let id = SessionId::from(format!("{:016x}{:016x}", random(), random()));
        let session = NewSession {
            id: id.clone(),
            name: "walked".into(),
            lease: Duration::from_secs(60),
            takeover: Takeover::Lease,
            owner: Some(owner.into()),
        };
        house.store.open(&session).await.expect("opened");
        path = path.replace("{session}", id.as_str());
    }
    while let (Some(from), Some(to)) = (path.find('{'), path.find('}')) {
        path.replace_range(from..=to, "x");
    }
    let builder = Request::builder()
        .method(entry.method.clone())
        .uri(format!("{path}?namespace={namespace}"))
        .header("content-type", "application/json");
    let builder = match &caller.token {
        Some(token) => builder.header("authorization", format!("Bearer {token}")),
        None => builder,
    };
    builder.body(Body::empty()).expect("a request")
}
