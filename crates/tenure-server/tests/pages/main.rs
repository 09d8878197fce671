//! The dashboard without a browser: what is refused, what is shown to whom, and what may be kept.

mod events;
mod forms;
mod schedules;
mod states;
mod work;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, LOCATION, SET_COOKIE};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use tenure::Tenure;
use tenure::backend::memory::Memory;
use tenure::port::{Directory, ElectionView};
use tenure::runtime::System;
use tenure_server::App;
use tenure_server::access::Access;
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

/// The cookies that an answer sets, as a browser sends them back.
fn cookies(answer: &Answer) -> String {
    let set = answer.headers.get_all(SET_COOKIE).iter().map(|value| value.to_str().unwrap());
    set.map(|text| text.split(';').next().unwrap()).collect::<Vec<_>>().join("; ")
}

/// The word for what a form did, which the next page is told.
fn told(answer: &Answer) -> String {
    let cookies = cookies(answer);
    let done = cookies.split("; ").find_map(|pair| pair.strip_prefix("tenure_done="));
    done.unwrap_or_default().split('!').next().unwrap().to_owned()
}

/// The page that a redirect leads to, as a browser that keeps cookies sees it.
async fn follow(app: &App, answer: &Answer) -> Answer {
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text);
    let to = answer.headers[LOCATION].to_str().unwrap().split('#').next().unwrap().to_owned();
    send_with(app, "GET", &to, "", &[("cookie", &cookies(answer))]).await
}

async fn open(store: &Memory) -> App {
    App::new(Arc::new(store.clone()), Access::Open, Arc::new(System))
}

async fn view(store: &Memory) -> ElectionView {
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

/// Somebody who leads `nightly`, and somebody who would.
async fn led(store: &Memory) -> [(Tenure, tenure::Elector); 2] {
    let stand = async |id: &str, priority| {
        let tenure = Tenure::builder()
            .store(store.clone())
            .name(id)
            .lease(Duration::from_secs(60))
            .open()
            .await
            .unwrap();
        let elector = tenure.elector("nightly").id(id).priority(priority).start().await.unwrap();
        (tenure, elector)
    };
    let first = stand("first", 2).await;
    first.1.elected().await.unwrap();
    [first, stand("second", 1).await]
}

#[tokio::test]
async fn a_deed_never_reaches_a_later_leader() {
    let store = Memory::new();
    let app = open(&store).await;
    let [(_a, first), (_b, second)] = led(&store).await;
    let before = view(&store).await;
    let (seen, to) = (
        before.leases[0].token.as_u64(),
        &before.candidates.iter().find(|c| c.id == "second").unwrap().session.id,
    );
    // An operator looks, and while they think, the leader changes.
    first.stop().await.unwrap();
    second.elected().await.unwrap();
    for (action, form) in [("resign", format!("seen={seen}")), ("transfer", format!("seen={seen}&to={to}"))] {
        let path = format!("/elections/nightly/{action}?namespace=default");
        let answer = send(&app, "POST", &path, &form).await;
        assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.text);
        assert!(answer.text.contains("has changed since you looked"), "{}", answer.text);
    }
    let after = view(&store).await;
    assert!(second.is_leader());
    // Who looks again is obeyed.
    let form = format!("seen={}", after.leases[0].token.as_u64());
    let answer = send(&app, "POST", "/elections/nightly/resign?namespace=default", &form).await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text);
    assert_eq!(answer.headers[LOCATION], "/elections/nightly?namespace=default");
    assert_eq!(told(&answer), "resign");
}

#[tokio::test]
async fn an_address_puts_no_words_into_our_mouth() {
    let store = Memory::new();
    let app = open(&store).await;
    let _standing = led(&store).await;
    for done in ["%3Cscript%3Ealert(1)%3C/script%3E", "You%20won", "pause%20"] {
        let answer = send(&app, "GET", &format!("/elections/nightly?done={done}"), "").await;
        assert!(
            !answer.text.contains("<script>a") && !answer.text.contains("notice good"),
            "{}",
            answer.text
        );
        let cookie = format!("tenure_done={done}!%2Felections%2Fnightly");
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
async fn nonsense_is_answered_with_a_page_that_names_it() {
    let store = Memory::new();
    let app = open(&store).await;
    let _standing = led(&store).await;
    let cases = [
        ("GET", "/elections/nonesuch", "", StatusCode::NOT_FOUND, "nonesuch"),
        ("GET", "/elections/a%20b", "", StatusCode::BAD_REQUEST, "position 2"),
        ("GET", "/elections/nightly?namespace=a%20b", "", StatusCode::BAD_REQUEST, "position 2"),
        ("GET", "/elections/nightly?namespace=a&namespace=b", "", StatusCode::BAD_REQUEST, "two namespaces"),
        ("GET", "/elections/nightly/explode", "", StatusCode::NOT_FOUND, "explode"),
        ("GET", "/audit?before=yesterday", "", StatusCode::BAD_REQUEST, "before"),
        ("POST", "/elections/nightly/pause", "", StatusCode::UNPROCESSABLE_ENTITY, "seen"),
        ("POST", "/elections/nightly/pause", "seen=x", StatusCode::UNPROCESSABLE_ENTITY, "seen"),
        ("POST", "/elections/nightly/pause", "seen=1&colour=red", StatusCode::UNPROCESSABLE_ENTITY, "colour"),
        ("POST", "/elections/nightly/resume", "seen=1&seen=2", StatusCode::UNPROCESSABLE_ENTITY, "seen"),
        (
            "POST",
            "/access",
            "name=a&namespace=b&lifetime=90d",
            StatusCode::UNPROCESSABLE_ENTITY,
            "do nothing",
        ),
        ("POST", "/access", "name=a&namespace=b&lifetime=9y&read=on", StatusCode::UNPROCESSABLE_ENTITY, "9y"),
        (
            "POST",
            "/access",
            "name=+&namespace=b&lifetime=90d&read=on",
            StatusCode::UNPROCESSABLE_ENTITY,
            "name",
        ),
        (
            "POST",
            "/access",
            "name=strangers-1&namespace=b&lifetime=90d&read=on",
            StatusCode::UNPROCESSABLE_ENTITY,
            "choose another",
        ),
        (
            "POST",
            "/access",
            "name=a&namespace=%2F&lifetime=90d&read=on",
            StatusCode::UNPROCESSABLE_ENTITY,
            "/",
        ),
        ("GET", "/access/nonesuch/revoke", "", StatusCode::NOT_FOUND, "nonesuch"),
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
async fn files_are_kept_for_ever_and_pages_never() {
    let app = open(&Memory::new()).await;
    let front = send(&app, "GET", "/", "").await;
    assert_eq!(front.headers[CACHE_CONTROL], "no-store");
    let style = front.text.split('"').find(|part| part.ends_with("app.css")).expect("a style sheet");
    let file = send(&app, "GET", style, "").await;
    assert_eq!(file.headers[CACHE_CONTROL], "public, max-age=31536000, immutable");
    assert!(file.headers[CONTENT_TYPE].to_str().unwrap().starts_with("text/css"));
    // A page that a replica of another version rendered gets ours, and does not keep it.
    let other = send(&app, "GET", "/assets/0123456789abcdef/app.css", "").await;
    assert_eq!((other.status, &other.headers[CACHE_CONTROL]), (StatusCode::OK, &"no-store".parse().unwrap()));
    assert_eq!(send(&app, "GET", "/assets/0123456789abcdef/secrets", "").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn nobody_is_sent_elsewhere() {
    let app = open(&Memory::new()).await;
    let answer = send(&app, "POST", "/theme", "theme=dark&next=https%3A%2F%2Fevil.example%2F").await;
    assert_eq!((answer.status, answer.headers[LOCATION].to_str().unwrap()), (StatusCode::SEE_OTHER, "/"));
    let store: Arc<dyn tenure::port::Backend> = Arc::new(Memory::new());
    let access = Access::guarded(store.clone(), Arc::new(System)).await.unwrap();
    let app = App::new(store, access, Arc::new(System));
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
async fn a_newcomer_is_not_called_silent() {
    let store = Memory::new();
    let app = open(&store).await;
    // The board has looked at the beats, and will do so again in a second only.
    send(&app, "GET", "/", "").await;
    let _standing = led(&store).await;
    let answer = loop {
        let answer = send(&app, "GET", "/elections/nightly", "").await;
        if answer.status == StatusCode::OK {
            break answer;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert!(!answer.text.contains("<span>silent") && !answer.text.contains("<span>gone"), "{}", answer.text);
}
