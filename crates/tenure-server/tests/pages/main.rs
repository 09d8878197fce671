//! The dashboard without a browser: rejected requests, permissions and caching.

mod events;
mod forms;
mod queues;
mod schedules;
mod states;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, LOCATION, SET_COOKIE};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use tenure::Tenure;
use tenure::port::{ElectionAdmin, ElectionView};
use tenure::runtime::SystemRuntime;
use tenure::store::memory::MemoryStore;
use tenure_server::App;
use tenure_server::access::AccessMode;
use tower::ServiceExt as _;

struct Answer {
    status: StatusCode,
    headers: http::HeaderMap,
    text: String,
}

async fn send(app: &App, method: &str, path: &str, form: &str) -> Answer {
    send_with(app, method, path, form, &[]).await
}

async fn send_with(app: &App, method: &str, path: &str, form: &str, headers: &[(&str, &str)]) -> Answer {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost")
        .header("accept", "text/html")
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let request = request.body(Body::from(form.to_owned())).unwrap();
    let response = app.router().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let text = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    Answer { status: parts.status, headers: parts.headers, text }
}

/// The cookies of a response, as a browser sends them back.
fn cookies(answer: &Answer) -> String {
    let set = answer.headers.get_all(SET_COOKIE).iter().map(|value| value.to_str().unwrap());
    set.map(|text| text.split(';').next().unwrap()).collect::<Vec<_>>().join("; ")
}

/// The one-time message of a form for the next page.
fn message(answer: &Answer) -> String {
    let cookies = cookies(answer);
    let done = cookies.split("; ").find_map(|pair| pair.strip_prefix("tenure_message="));
    done.unwrap_or_default().split('!').next().unwrap().to_owned()
}

/// Follow a redirect with its cookies.
async fn follow(app: &App, answer: &Answer) -> Answer {
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text);
    let to = answer.headers[LOCATION].to_str().unwrap().split('#').next().unwrap().to_owned();
    send_with(app, "GET", &to, "", &[("cookie", &cookies(answer))]).await
}

async fn open(store: &MemoryStore) -> App {
    App::new(Arc::new(store.clone()), AccessMode::Open, Arc::new(SystemRuntime))
}

async fn view(store: &MemoryStore) -> ElectionView {
    store
        .election(
            &"nightly"
                .parse()
                .map(|name| tenure::ElectionKey::new("default".parse().unwrap(), name))
                .unwrap(),
        )
        .await
        .unwrap()
        .unwrap()
}

/// The leader of `nightly` and a second candidate.
async fn two_candidates(store: &MemoryStore) -> [(Tenure, tenure::Elector); 2] {
    let stand = async |id: &str, priority| {
        let tenure = Tenure::builder()
            .store(store.clone())
            .name(id)
            .lease(Duration::from_secs(60))
            .open()
            .await
            .unwrap();
        let elector = tenure.elector("nightly").candidate_name(id).priority(priority).start().await.unwrap();
        (tenure, elector)
    };
    let first = stand("first", 2).await;
    first.1.elected().await.unwrap();
    [first, stand("second", 1).await]
}

#[tokio::test]
async fn an_action_never_applies_to_a_later_leader() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    let [(_a, first), (_b, second)] = two_candidates(&store).await;
    let before = view(&store).await;
    let (seen, to) = (
        before.leases[0].token.as_u64(),
        &before.candidates.iter().find(|c| c.name == "second").unwrap().session.id,
    );
    // The leader changes after the operator loaded the form.
    first.stop().await.unwrap();
    second.elected().await.unwrap();
    for (action, form) in
        [("resign", format!("expected_token={seen}")), ("transfer", format!("expected_token={seen}&to={to}"))]
    {
        let path = format!("/elections/nightly/{action}?namespace=default");
        let answer = send(&app, "POST", &path, &form).await;
        assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.text);
        assert!(answer.text.contains("has changed; no request was sent"), "{}", answer.text);
    }
    let after = view(&store).await;
    assert!(second.is_leader());
    // A reloaded form succeeds.
    let form = format!("expected_token={}", after.leases[0].token.as_u64());
    let answer = send(&app, "POST", "/elections/nightly/resign?namespace=default", &form).await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text);
    assert_eq!(answer.headers[LOCATION], "/elections/nightly?namespace=default");
    assert_eq!(message(&answer), "resign");
}

#[tokio::test]
async fn a_page_shows_no_text_from_a_forged_message() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    let _candidates = two_candidates(&store).await;
    for done in ["%3Cscript%3Ealert(1)%3C/script%3E", "You%20won", "pause%20"] {
        let answer = send(&app, "GET", &format!("/elections/nightly?done={done}"), "").await;
        assert!(
            !answer.text.contains("<script>a") && !answer.text.contains("notice good"),
            "{}",
            answer.text
        );
        let cookie = format!("tenure_message={done}!%2Felections%2Fnightly");
        let answer = send_with(&app, "GET", "/elections/nightly", "", &[("cookie", &cookie)]).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert!(!answer.text.contains("<script>a") && !answer.text.contains("You won"), "{}", answer.text);
        assert!(!answer.text.contains("notice good"), "{}", answer.text);
    }
    let answer = send(&app, "GET", "/?q=%22%3E%3Cscript%3Ealert(1)%3C/script%3E", "").await;
    assert!(
        answer.text.contains("&lt;script&gt;") && !answer.text.contains("<script>alert"),
        "{}",
        answer.text
    );
}

#[tokio::test]
async fn invalid_requests_get_a_page_that_names_the_error() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    let _candidates = two_candidates(&store).await;
    let cases = [
        ("GET", "/elections/nonesuch", "", StatusCode::NOT_FOUND, "nonesuch"),
        ("GET", "/elections/a%20b", "", StatusCode::BAD_REQUEST, "position 2"),
        ("GET", "/elections/nightly?namespace=a%20b", "", StatusCode::BAD_REQUEST, "position 2"),
        ("GET", "/elections/nightly?namespace=a&namespace=b", "", StatusCode::BAD_REQUEST, "two namespaces"),
        ("GET", "/elections/nightly/explode", "", StatusCode::NOT_FOUND, "explode"),
        ("GET", "/audit?cursor=yesterday", "", StatusCode::BAD_REQUEST, "cursor"),
        ("POST", "/elections/nightly/pause", "", StatusCode::UNPROCESSABLE_ENTITY, "expected_token"),
        (
            "POST",
            "/elections/nightly/pause",
            "expected_token=x",
            StatusCode::UNPROCESSABLE_ENTITY,
            "expected_token",
        ),
        (
            "POST",
            "/elections/nightly/pause",
            "expected_token=1&colour=red",
            StatusCode::UNPROCESSABLE_ENTITY,
            "colour",
        ),
        (
            "POST",
            "/elections/nightly/resume",
            "expected_token=1&expected_token=2",
            StatusCode::UNPROCESSABLE_ENTITY,
            "expected_token",
        ),
        (
            "POST",
            "/credentials",
            "name=a&namespace=b&expiry=90d",
            StatusCode::UNPROCESSABLE_ENTITY,
            "at least one permission",
        ),
        (
            "POST",
            "/credentials",
            "name=a&namespace=b&expiry=9y&read=on",
            StatusCode::UNPROCESSABLE_ENTITY,
            "9y",
        ),
        (
            "POST",
            "/credentials",
            "name=+&namespace=b&expiry=90d&read=on",
            StatusCode::UNPROCESSABLE_ENTITY,
            "name",
        ),
        (
            "POST",
            "/credentials",
            "name=anonymous-1&namespace=b&expiry=90d&read=on",
            StatusCode::UNPROCESSABLE_ENTITY,
            "choose another",
        ),
        (
            "POST",
            "/credentials",
            "name=a&namespace=%2F&expiry=90d&read=on",
            StatusCode::UNPROCESSABLE_ENTITY,
            "/",
        ),
        ("GET", "/credentials/nonesuch/revoke", "", StatusCode::NOT_FOUND, "nonesuch"),
    ];
    for (method, path, form, status, word) in cases {
        let answer = send(&app, method, path, form).await;
        assert_eq!(answer.status, status, "{method} {path} {form}: {}", answer.text);
        assert!(answer.text.contains(word), "{method} {path} {form}: {}", answer.text);
        assert_eq!(answer.headers[CONTENT_TYPE], "text/html; charset=utf-8", "{path}");
        assert!(answer.text.contains("<main"), "{path}");
    }
    assert!(view(&store).await.paused.is_none());
}

#[tokio::test]
async fn assets_are_cached_without_limit_and_pages_are_not_cached() {
    let app = open(&MemoryStore::new()).await;
    let front = send(&app, "GET", "/", "").await;
    assert_eq!(front.headers[CACHE_CONTROL], "no-store");
    let style = front.text.split('"').find(|part| part.ends_with("app.css")).expect("a style sheet");
    let file = send(&app, "GET", style, "").await;
    assert_eq!(file.headers[CACHE_CONTROL], "public, max-age=31536000, immutable");
    assert!(file.headers[CONTENT_TYPE].to_str().unwrap().starts_with("text/css"));
    // A page of a replica of another version gets our file and must not cache it.
    let other = send(&app, "GET", "/assets/0123456789abcdef/app.css", "").await;
    assert_eq!((other.status, &other.headers[CACHE_CONTROL]), (StatusCode::OK, &"no-store".parse().unwrap()));
    assert_eq!(send(&app, "GET", "/assets/0123456789abcdef/secrets", "").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn redirects_stay_on_this_server() {
    let app = open(&MemoryStore::new()).await;
    let answer = send(&app, "POST", "/theme", "theme=dark&next=https%3A%2F%2Fevil.example%2F").await;
    assert_eq!((answer.status, answer.headers[LOCATION].to_str().unwrap()), (StatusCode::SEE_OTHER, "/"));
    let store: Arc<dyn tenure::port::Store> = Arc::new(MemoryStore::new());
    let access = AccessMode::guarded(store.clone(), Arc::new(SystemRuntime)).await.unwrap();
    let app = App::new(store, access, Arc::new(SystemRuntime));
    let answer = send(&app, "GET", "/login?next=%2F%2Fevil.example", "").await;
    assert!(
        answer.text.contains(
            r#"<form class="form" method="post" action="/login"><input type="hidden" name="next" value="/">"#
        ),
        "{}",
        answer.text
    );
    let answer = send(&app, "GET", "/elections/nightly?namespace=prod", "").await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER);
    let back = "/login?next=%2Felections%2Fnightly%3Fnamespace%3Dprod";
    assert_eq!(answer.headers[LOCATION], back);
    let answer = send(&app, "GET", back, "").await;
    assert!(
        answer.text.contains(r#"name="next" value="/elections/nightly?namespace=prod""#),
        "{}",
        answer.text
    );
}

#[tokio::test]
async fn a_new_leader_is_not_shown_as_unresponsive() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    // The snapshot has just been taken; the next one follows in a second.
    send(&app, "GET", "/", "").await;
    let _candidates = two_candidates(&store).await;
    let answer = loop {
        let answer = send(&app, "GET", "/elections/nightly", "").await;
        if answer.status == StatusCode::OK {
            break answer;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert!(
        !answer.text.contains("<span>Leader unresponsive") && !answer.text.contains("<span>Offline"),
        "{}",
        answer.text
    );
}
