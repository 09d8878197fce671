//! Forms without a browser: one-time messages, rejected forms and response headers.

use std::io::Read as _;

use axum::body::Body;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, LOCATION};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use tenure::port::{
    AccessStore, ClaimAuthority, ClaimOutcome, EventAdmin, NewTask, PoolMatchRequest, PoolStore, Settlement,
    TaskAdmin, TaskStore, TopicKey, TopicSettings,
};
use tenure::store::memory::MemoryStore;
use tenure::{Name, port};
use tower::ServiceExt as _;

use crate::queues::{claim, grant, hosts, mail, pool_request, submit};
use crate::schedules::set;
use crate::{follow, message, open, send, send_with};

async fn topic(store: &MemoryStore, name: &str) {
    let key = TopicKey::new(Name::default_namespace(), name.parse().unwrap());
    store.set_topic(&key, &TopicSettings::default()).await.unwrap();
}

/// Regression: A link with `?done=cancel` showed every visitor that a task was cancelled.
#[tokio::test]
async fn the_result_of_a_form_is_shown_once_and_only_to_its_sender() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    let id = submit(&store, vec![NewTask::new("a")]).await[0];
    let page = format!("/tasks/{id}?namespace=default");
    let answer =
        send(&app, "POST", &format!("/tasks/{id}/cancel?namespace=default"), "expected_state=ready").await;
    assert_eq!(
        (answer.headers[LOCATION].to_str().unwrap(), message(&answer).as_str()),
        (page.as_str(), "cancel")
    );
    let shown = follow(&app, &answer).await;
    assert!(shown.text.contains("notice good") && shown.text.contains("Cancelled, with"), "{}", shown.text);
    // The response deletes the message. Without the cookie, and with a link, the page shows none.
    assert!(
        shown.headers.get_all("set-cookie").iter().any(|set| set.to_str().unwrap().contains("Max-Age=0"))
    );
    for link in [page.clone(), format!("{page}&done=cancel")] {
        let again = send(&app, "GET", &link, "").await;
        assert!(!again.text.contains("Cancelled, with"), "{link}: {}", again.text);
    }
    // Another page and a refresh by the script show none.
    let cookie = crate::cookies(&answer);
    let queue = send_with(&app, "GET", "/queues/mail", "", &[("cookie", &cookie)]).await;
    assert!(
        !queue.text.contains("notice good") && !queue.headers.contains_key("set-cookie"),
        "{}",
        queue.text
    );
    let refresh = [("cookie", cookie.as_str()), ("x-tenure-refresh", "1")];
    let refreshed = send_with(&app, "GET", &page, "", &refresh).await;
    assert!(!refreshed.text.contains("notice good") && !refreshed.headers.contains_key("set-cookie"));
}

/// Regression: Reloading the page that showed a new access token created another one.
#[tokio::test]
async fn a_new_access_token_is_shown_once_and_created_once() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    let made = send(&app, "POST", "/credentials", "name=ci&namespace=default&expiry=30d&read=on").await;
    assert_eq!(made.headers[LOCATION], "/credentials");
    assert!(!made.text.contains("tenure_"), "{}", made.text);
    let shown = follow(&app, &made).await;
    assert!(shown.text.contains("Access token for ci."), "{}", shown.text);
    assert!(shown.text.contains(r#"<pre id="secret" tabindex="0">tenure_"#), "{}", shown.text);
    let reloaded = send(&app, "GET", "/credentials", "").await;
    assert!(!reloaded.text.contains(r#"id="secret""#), "{}", reloaded.text);
    assert_eq!(store.credentials().await.unwrap().len(), 1);
}

/// Regression: Invalid JSON led to a page that showed only the error, and the input was lost.
#[tokio::test]
async fn a_rejected_form_keeps_its_input() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    topic(&store, "orders").await;
    set(&store, r#"{"name": "a", "expression": "every 1m", "target": {"task": {"queue": "q"}}}"#).await;
    let wrong = "%7B%22half%22%3A";
    for (path, form, kept) in [
        ("/tasks/new?namespace=default", format!("queue=mail&kind=welcome&payload={wrong}"), "welcome"),
        ("/topics/orders/publish", format!("type=order.paid&payload={wrong}"), "order.paid"),
        ("/schedules/a/trigger", format!("payload={wrong}"), "half"),
    ] {
        let answer = send(&app, "POST", path, &form).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{path}: {}", answer.text);
        let text = &answer.text;
        assert!(text.contains("<form") && text.contains(kept), "{path}: {text}");
        assert!(text.contains("{&quot;half&quot;:"), "{path}: {text}");
        let (_, field) = text.split_once(r#"id="payload""#).unwrap();
        assert!(
            field.starts_with(" class=\"mono\"") || field.contains("aria-invalid=\"true\""),
            "{path}: {text}"
        );
        let (_, below) = field.split_once("</textarea>").unwrap();
        assert!(
            below.starts_with(r#"<small class="field-error" id="payload-error" role="alert">Invalid JSON"#),
            "{path}: {below}"
        );
    }
    assert_eq!(store.tasks(&port::TaskFilter { limit: 9, ..Default::default() }).await.unwrap().len(), 0);
}

/// Regression: The preview of a schedule stayed empty until its name and its queue were filled in, although
/// they do not affect the ticks.
#[tokio::test]
async fn a_valid_expression_is_enough_for_the_preview_of_a_schedule() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    let preview = async |form: &str| {
        let page = send(&app, "POST", "/schedules/new?namespace=default", form).await.text;
        page.split_once(r#"id="preview""#).unwrap().1.to_owned()
    };
    for target in ["task", "event", "webhook"] {
        let shown = preview(&format!("expression=%40daily&time_zone=UTC&target={target}&step=preview")).await;
        assert!(
            shown.contains(r#"class="ticks"#) && !shown.contains("data-error-field"),
            "{target}: {shown}"
        );
    }
    // Errors in other fields are shown beside the ticks.
    let shown =
        preview("expression=%40daily&time_zone=UTC&target=task&queue=q&payload=%7B&step=preview").await;
    assert!(shown.contains(r#"class="ticks"#) && shown.contains(r#"data-error-field="payload""#), "{shown}");
    let shown = preview("expression=never&time_zone=UTC&target=task&step=preview").await;
    assert!(
        !shown.contains(r#"class="ticks"#) && shown.contains(r#"data-error-field="expression""#),
        "{shown}"
    );
    // Saving requires all fields.
    let answer =
        send(&app, "POST", "/schedules/new", "expression=%40daily&time_zone=UTC&target=task&step=save").await;
    assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", answer.text);
}

/// Regression: A browser that requested a missing path was shown raw JSON.
#[tokio::test]
async fn an_unknown_path_is_a_page_for_browsers_and_a_problem_for_programs() {
    let app = open(&MemoryStore::new()).await;
    let page = send(&app, "GET", "/nonesuch", "").await;
    assert_eq!(
        (page.status, page.headers[CONTENT_TYPE].to_str().unwrap()),
        (StatusCode::NOT_FOUND, "text/html; charset=utf-8")
    );
    assert!(page.text.contains("<main") && page.text.contains("no route matches /nonesuch"), "{}", page.text);
    let page = send(&app, "POST", "/audit", "").await;
    assert_eq!(
        (page.status, page.headers[CONTENT_TYPE].to_str().unwrap()),
        (StatusCode::METHOD_NOT_ALLOWED, "text/html; charset=utf-8")
    );
    for path in ["/v1/nonesuch", "/nonesuch"] {
        let accept = if path.starts_with("/v1") { "text/html" } else { "*/*" };
        let request = Request::get(path).header("host", "localhost").header("accept", accept);
        let answer = app.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(answer.headers()[CONTENT_TYPE], "application/problem+json", "{path}");
    }
}

/// Regression: After the cancellation of a waiting request the page said that a claim was revoked.
#[tokio::test]
async fn cancelling_a_waiting_request_shows_that_it_was_cancelled() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    store.add_resources(&hosts(), &[]).await.unwrap();
    let holds = store.create_pool_request(&hosts(), &pool_request("first")).await.unwrap().id;
    grant(&store, holds).await;
    let waits = store.create_pool_request(&hosts(), &pool_request("second")).await.unwrap().id;
    let none = PoolMatchRequest { pool: hosts(), authority: ClaimAuthority::Direct, request: Some(waits) };
    assert!(store.match_pool(&none).await.unwrap().is_ok_and(|granted| granted.is_empty()));
    let answer =
        send(&app, "POST", &format!("/pools/hosts/requests/{waits}/release"), "expected_token=0").await;
    let page = follow(&app, &answer).await.text;
    assert!(page.contains("Request cancelled.") && !page.contains("Claim revoked"), "{page}");
    assert!(page.contains("of ada cancelled"), "{page}");
    let token = store.pool_request(&Name::default_namespace(), holds).await.unwrap().unwrap().token.unwrap();
    let form = format!("expected_token={}", token.as_u64());
    let answer = send(&app, "POST", &format!("/pools/hosts/requests/{holds}/release"), &form).await;
    assert!(follow(&app, &answer).await.text.contains("Claim revoked."));
}

/// Regression: The audit log showed the times of a backfill and of a reset in milliseconds since 1970.
#[tokio::test]
async fn the_audit_log_shows_instants_in_rfc_3339() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    set(&store, r#"{"name": "a", "expression": "every 1h", "target": {"task": {"queue": "q"}}}"#).await;
    // 2026-01-01, from midnight to three.
    let form = "from_at_ms=1767225600000&to_at_ms=1767236400000";
    assert_eq!(send(&app, "POST", "/schedules/a/backfill", form).await.status, StatusCode::SEE_OTHER);
    let token = crate::events::topic_with_member(&store).await;
    crate::events::publish_dead_letters(&store, token, 1, "boom").await;
    let reset =
        send(&app, "POST", "/topics/orders/groups/billing/reset", "to=time&published_at_ms=1767225600000")
            .await;
    assert_eq!(message(&reset), "reset", "{}", reset.text);
    let audit = send(&app, "GET", "/audit", "").await.text;
    assert!(audit.contains("to 2026-01-01T00:00:00Z<"), "{audit}");
    assert!(audit.contains("3 ticks from 2026-01-01T00:00:00Z to 2026-01-01T02:00:00Z"), "{audit}");
    assert!(!audit.contains("17672"), "{audit}");
}

/// Regression: The confirmation of a bulk action did not show the number of tasks of a filtered list.
#[tokio::test]
async fn the_confirmation_of_a_bulk_action_shows_the_number_of_filtered_tasks() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    submit(&store, vec![NewTask::new("mine"); 1203]).await;
    submit(&store, vec![NewTask::new("other"); 5]).await;
    for (query, says) in
        [("kind=mine", "Cancel 1,203 tasks?"), ("kind=other", "Cancel 5 tasks?"), ("", "Cancel 1,208 tasks?")]
    {
        let question = send(&app, "GET", &format!("/queues/mail/cancel?{query}"), "").await.text;
        assert!(question.contains(says), "{query}: {question}");
    }
    submit(&store, vec![NewTask::new("mine"); 1000]).await;
    let question = send(&app, "GET", "/queues/mail/cancel?kind=mine", "").await.text;
    assert!(question.contains("Cancel more than 2,000 tasks?"), "{question}");
}

/// Regression: Full stack traces in the rows of a list made twenty rows fifteen screens high.
#[tokio::test]
async fn a_row_shows_the_first_line_of_an_error_and_the_task_page_all_of_it() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    let id = submit(&store, vec![NewTask::new("a")]).await[0];
    let claimed = claim(&store, 1).await;
    let trace = format!("exit code 1: boom\n\nTraceback:\n{}", "  at deep.rs\n".repeat(100));
    let outcome = ClaimOutcome::Fail { error: trace, retry: false, retry_in: std::time::Duration::ZERO };
    let settled = Settlement { namespace: mail().namespace, task: id, token: claimed[0].token, outcome };
    store.settle(&[settled]).await.unwrap();
    let list = send(&app, "GET", "/queues/mail", "").await.text;
    assert!(list.contains("exit code 1: boom …") && !list.contains("Traceback"), "{list}");
    assert!(send(&app, "GET", &format!("/tasks/{id}"), "").await.text.contains("at deep.rs"));
}

/// Regression: The pattern of the confirmation escaped the hyphen, which is an error in browsers: the pattern
/// was ignored.
#[tokio::test]
async fn the_pattern_of_a_name_confirmation_is_valid_in_browsers() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    topic(&store, "a-b.c").await;
    let question = send(&app, "GET", "/topics/a-b.c/delete", "").await.text;
    assert!(question.contains(r#"pattern="a-b\.c""#), "{question}");
}

#[tokio::test]
async fn a_page_is_compressed_on_request_unless_it_shows_a_secret() {
    let app = open(&MemoryStore::new()).await;
    let get = async |path: &str, cookie: &str| {
        let request = Request::get(path).header("host", "localhost").header("accept-encoding", "gzip, br");
        let request = request.header("accept", "text/html").header("cookie", cookie).body(Body::empty());
        app.router().oneshot(request.unwrap()).await.unwrap()
    };
    for path in ["/", "/openapi.json"] {
        let answer = get(path, "").await;
        assert_eq!(answer.headers()[CONTENT_ENCODING], "gzip", "{path}");
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        let mut text = String::new();
        flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text).unwrap();
        assert!(text.len() > bytes.len() * 2, "{path}: {} of {}", bytes.len(), text.len());
    }
    let made = send(&app, "POST", "/credentials", "name=ci&namespace=default&expiry=30d&read=on").await;
    let answer = get("/credentials", &crate::cookies(&made)).await;
    assert!(!answer.headers().contains_key(CONTENT_ENCODING));
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&text).contains("Access token for ci."));
}
