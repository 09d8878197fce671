//! Pages about events without a browser: what is refused, what is meant, and what is escaped.

use http::StatusCode;
use http::header::LOCATION;
use tenure::Name;
use tenure::backend::memory::Memory;
use tenure::port::{
    Aside, AsideFilter, AsideView, Begin, Bureau, Committed, Events, GroupKey, GroupSettings, Join, NewEvent,
    NewSession, Push, ReadAsk, SetAside, ShareCommit, Store, TakeShares, Takeover, TopicKey, TopicSettings,
};
use tenure::{SessionId, Token};
use tenure_server::App;

use crate::work::hidden;
use crate::{open, send, told};

const SCRIPT: &str = "<script>alert(1)</script>";

fn topic() -> TopicKey {
    TopicKey::new(Name::default_namespace(), "orders".parse().unwrap())
}

fn billing() -> GroupKey {
    GroupKey::new(topic(), "billing".parse().unwrap())
}

async fn get(app: &App, path: &str) -> String {
    let answer = send(app, "GET", path, "").await;
    assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text);
    answer.text
}

/// A topic of one slot, a group, and a member that has it.
pub(crate) async fn made(store: &Memory) -> Token {
    let settings = TopicSettings { slots: 1, ..TopicSettings::default() };
    store.set_topic(&topic(), &settings).await.unwrap();
    let session = SessionId::from_stored(&format!("{:032x}", 7));
    let opened = NewSession {
        id: session.clone(),
        name: "m".into(),
        lease: std::time::Duration::from_secs(600),
        takeover: Takeover::Lease,
        owner: None,
    };
    store.open(&opened).await.unwrap();
    let join =
        Join { group: billing(), session: session.clone(), member: SCRIPT.into(), from: Begin::Earliest };
    let look = store.join_group(&join).await.unwrap();
    let take = TakeShares { group: billing(), session, slots: vec![(0, look.shares[0].token)] };
    store.take_shares(&take).await.unwrap()[0].token
}

/// Events that are published, read, and dead.
pub(crate) async fn die(store: &Memory, token: Token, count: u64, error: &str) {
    let events: Vec<_> =
        (0..count).map(|n| NewEvent { key: Some(format!("k{n}")), ..NewEvent::new(SCRIPT) }).collect();
    let before = store.slot_ends(&topic()).await.unwrap().unwrap()[0].latest;
    store.publish(&topic(), &events).await.unwrap();
    let read = ReadAsk { topic: topic(), after: vec![(0, before)], limit: 10_000 };
    let read = store.read_events(&read).await.unwrap();
    let how = || Aside::Dead { attempts: 3, error: error.into() };
    let set_aside =
        read.iter().map(|event| SetAside { event: event.id, position: event.position, how: how() }).collect();
    let commit = ShareCommit {
        group: billing(),
        slot: 0,
        token,
        position: read.last().map(|event| event.position),
        done: Vec::new(),
        set_aside,
        settled: Vec::new(),
    };
    assert_eq!(store.commit_shares(&[commit]).await.unwrap(), [Committed::Yes]);
}

async fn dead(store: &Memory) -> Vec<AsideView> {
    let filter =
        AsideFilter { group: billing(), dead: true, slot: None, key: None, after: None, limit: 10_000 };
    store.aside(&filter).await.unwrap()
}

#[tokio::test]
async fn many_dead_events_are_dropped_but_none_that_died_after_the_question() {
    let store = Memory::new();
    let app = open(&store).await;
    let token = made(&store).await;
    // More than one batch.
    die(&store, token, 303, "old").await;
    let question = get(&app, "/topics/orders/groups/billing/dead/drop").await;
    assert!(question.contains("Drop 303 dead events?"), "{question}");
    let form = format!("until={}&last={}&key=", hidden(&question, "until"), hidden(&question, "last"));
    // So that the clock has moved.
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    die(&store, token, 2, "young").await;
    let answer = send(&app, "POST", "/topics/orders/groups/billing/dead/drop", &form).await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text);
    assert_eq!(answer.headers[LOCATION], "/topics/orders/groups/billing?namespace=default#aside");
    assert_eq!(told(&answer), "drop");
    let left = dead(&store).await;
    assert_eq!(left.iter().map(|aside| aside.error.as_str()).collect::<Vec<_>>(), ["young", "young"]);
    // Once more, and nobody is left to be meant.
    let answer = send(&app, "POST", "/topics/orders/groups/billing/dead/drop", &form).await;
    assert_eq!(told(&answer), "nothing");
    assert_eq!(dead(&store).await.len(), 2);
    // All are in the audit.
    let page = get(&app, "/topics/orders/groups/billing").await;
    assert_eq!(page.matches("dead.drop").count(), 4, "{page}");
}

#[tokio::test]
async fn what_is_not_dead_is_neither_replayed_nor_dropped() {
    let store = Memory::new();
    let app = open(&store).await;
    let token = made(&store).await;
    die(&store, token, 1, "once").await;
    let id = dead(&store).await[0].event.id;
    let path = format!("/topics/orders/groups/billing/aside/{id}/replay");
    assert_eq!(send(&app, "POST", &path, "").await.status, StatusCode::SEE_OTHER);
    // It is aside still, and due.
    let answer = send(&app, "GET", &format!("/topics/orders/groups/billing/aside/{id}/drop"), "").await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.text);
    let answer = send(&app, "POST", &format!("/topics/orders/groups/billing/aside/{id}/drop"), "").await;
    assert_eq!(told(&answer), "nothing");
    for (path, status) in [
        ("/topics/orders/groups/billing/aside/999", StatusCode::NOT_FOUND),
        ("/topics/orders/groups/billing/aside/999/drop", StatusCode::NOT_FOUND),
        ("/topics/orders/groups/none", StatusCode::NOT_FOUND),
        ("/topics/orders/groups/none/aside/1", StatusCode::NOT_FOUND),
        ("/topics/orders/groups/none/dead/drop", StatusCode::NOT_FOUND),
        ("/topics/orders/groups/billing/explode", StatusCode::NOT_FOUND),
        ("/topics/orders/groups/billing/dead/explode", StatusCode::NOT_FOUND),
        ("/topics/orders/groups/billing?aside=some", StatusCode::BAD_REQUEST),
        ("/topics/orders/groups/billing/reset?to=nowhere", StatusCode::UNPROCESSABLE_ENTITY),
        ("/topics/orders/groups/billing/reset?to=position&position=-1", StatusCode::UNPROCESSABLE_ENTITY),
        ("/topics/orders/groups/billing/reset?to=earliest&slot=9", StatusCode::UNPROCESSABLE_ENTITY),
        ("/topics/none", StatusCode::NOT_FOUND),
        ("/topics/none/publish", StatusCode::NOT_FOUND),
        ("/topics/orders/explode", StatusCode::NOT_FOUND),
        ("/topics/orders/events/18446744073709551615", StatusCode::NOT_FOUND),
    ] {
        let answer = send(&app, "GET", path, "").await;
        assert_eq!(answer.status, status, "{path}: {}", answer.text);
    }
}

#[tokio::test]
async fn settings_of_events_that_have_changed_since_somebody_looked_are_left_alone() {
    let store = Memory::new();
    let app = open(&store).await;
    made(&store).await;
    let seen = hidden(&get(&app, "/topics/orders/settings").await, "seen");
    let changed = TopicSettings { slots: 1, keep_ms: 5000, ..TopicSettings::default() };
    store.set_topic(&topic(), &changed).await.unwrap();
    let form = format!("seen={seen}&keep=1d&keep_unread=&max_bytes=100");
    let answer = send(&app, "POST", "/topics/orders/settings", &form).await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.text);
    assert_eq!(store.topic(&topic()).await.unwrap().unwrap().settings, changed);

    let seen = hidden(&get(&app, "/topics/orders/groups/billing/settings").await, "seen");
    let changed = GroupSettings { max_attempts: 2, ..GroupSettings::default() };
    store.set_group(&billing(), &changed, Begin::Earliest).await.unwrap();
    let form = format!("seen={seen}&max_attempts=5&first=1s&most=5s");
    let answer = send(&app, "POST", "/topics/orders/groups/billing/settings", &form).await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.text);
    assert_eq!(store.group(&billing()).await.unwrap().unwrap().settings, changed);

    // One that is there is not made again, nor deleted by who can not say its name, or while it is read.
    let form = "name=orders&slots=8&keep=1d&keep_unread=&max_bytes=100";
    assert_eq!(send(&app, "POST", "/new-topic", form).await.status, StatusCode::CONFLICT);
    for name in ["", "order", "orders"] {
        let answer = send(&app, "POST", "/topics/orders/delete", &format!("name={name}")).await;
        let status = if name == "orders" { StatusCode::CONFLICT } else { StatusCode::UNPROCESSABLE_ENTITY };
        assert_eq!(answer.status, status, "{}", answer.text);
    }
    assert!(store.topic(&topic()).await.unwrap().is_some());
}

#[tokio::test]
async fn a_reset_that_was_tried_moves_nothing_and_the_one_that_is_done_goes_where_it_said() {
    let store = Memory::new();
    let app = open(&store).await;
    let token = made(&store).await;
    die(&store, token, 3, "old").await;
    let shares = async || store.look_group(&billing()).await.unwrap().unwrap().shares;
    let before = shares().await;
    let trial = get(&app, "/topics/orders/groups/billing/reset?to=time&ago=1h").await;
    assert!(trial.contains("Nothing is done yet") && trial.contains("1 slot"), "{trial}");
    assert_eq!(shares().await, before);
    assert_eq!(dead(&store).await.len(), 3);
    // A moment, not so long ago: what is done is what was shown, however long somebody thinks about it.
    let form = format!("to=time&time={}", hidden(&trial, "time"));
    let answer = send(&app, "POST", "/topics/orders/groups/billing/reset", &form).await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text);
    let after = shares().await;
    assert!(after[0].position < before[0].position && after[0].token > before[0].token);
    assert!(dead(&store).await.is_empty());
}

#[tokio::test]
async fn nothing_that_people_and_programs_say_of_events_becomes_markup_and_no_secret_is_shown() {
    let store = Memory::new();
    let app = open(&store).await;
    let token = made(&store).await;
    die(&store, token, 2, SCRIPT).await;
    let push = Push {
        url: "https://h.example/x?k=hidden".into(),
        secret: "a secret of 16 bytes".into(),
        timeout_ms: 1000,
    };
    store.set_push(&billing(), Some(&push)).await.unwrap();
    let id = dead(&store).await[0].event.id;
    let reason = format!("reason={}", SCRIPT.replace('<', "%3C").replace('>', "%3E"));
    assert_eq!(
        send(&app, "POST", "/topics/orders/groups/billing/pause", &reason).await.status,
        StatusCode::SEE_OTHER
    );
    for path in [
        "/topics".into(),
        "/topics?q=%3Cscript%3Ealert(1)%3C/script%3E".into(),
        "/topics/orders".into(),
        format!("/topics/orders/events/{id}"),
        "/topics/orders/groups/billing".into(),
        "/topics/orders/groups/billing?find=%3Cscript%3Ealert(1)%3C/script%3E".into(),
        "/topics/orders/groups/billing?aside=all&key=%3Cscript%3Ealert(1)%3C/script%3E&slots=all".into(),
        format!("/topics/orders/groups/billing/aside/{id}"),
        format!("/topics/orders/groups/billing/aside/{id}/drop"),
        "/topics/orders/groups/billing/resume".into(),
        "/audit".into(),
    ] {
        let page = get(&app, &path).await;
        assert!(!page.contains(SCRIPT) && !page.contains("style="), "{path}: {page}");
        assert!(!page.contains("a secret of 16 bytes") && !page.contains("k=hidden"), "{path}: {page}");
    }
}

#[tokio::test]
async fn a_page_pushes_nowhere_that_the_api_would_not() {
    let store = Memory::new();
    let app = open(&store).await;
    made(&store).await;
    for url in [
        "http://127.0.0.1:9/x",
        "http://169.254.169.254/latest",
        "http://localhost/x",
        "ftp://h.example/x",
        "https://u:p@h.example/",
    ] {
        let form = format!(
            "url={}&timeout=5s&secret=",
            url.replace(':', "%3A").replace('/', "%2F").replace('@', "%40")
        );
        let answer = send(&app, "POST", "/topics/orders/groups/billing/push", &form).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{url}: {}", answer.text);
    }
    assert!(store.pushes().await.unwrap().is_empty());
}
