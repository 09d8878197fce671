//! Pages of events without a browser: rejected requests, concurrent changes and escaping.

use http::StatusCode;
use http::header::LOCATION;
use tenure::Name;
use tenure::port::{
    CommitResult, ElectionStore, EventAdmin, EventStore, GroupKey, GroupSettings, JoinGroupRequest, NewEvent,
    OpenSessionRequest, ParkEventRequest, ParkedEvent, ParkedEventFilter, ParkedEventState, PartitionCommit,
    ReadEventsRequest, StartOffset, TakePartitionsRequest, TakeoverMode, TopicKey, TopicSettings,
    WebhookSettings,
};
use tenure::store::memory::MemoryStore;
use tenure::{SessionId, Token};
use tenure_server::App;

use crate::queues::hidden;
use crate::{message, open, send};

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

/// Create a topic with one partition, a group, and a member that holds the partition. Returns its token.
pub(crate) async fn topic_with_member(store: &MemoryStore) -> Token {
    let settings = TopicSettings { partitions: 1, ..TopicSettings::default() };
    store.set_topic(&topic(), &settings).await.unwrap();
    let session = SessionId::from_stored(&format!("{:032x}", 7));
    let opened = OpenSessionRequest {
        id: session.clone(),
        name: "m".into(),
        lease: std::time::Duration::from_secs(600),
        takeover: TakeoverMode::Lease,
        owner: None,
    };
    store.open_session(&opened).await.unwrap();
    let join = JoinGroupRequest {
        group: billing(),
        session: session.clone(),
        member: SCRIPT.into(),
        from: StartOffset::Earliest,
    };
    let assignment = store.join_group(&join).await.unwrap();
    let take = TakePartitionsRequest {
        group: billing(),
        session,
        partitions: vec![(0, assignment.partition_leases[0].token)],
    };
    store.take_partitions(&take).await.unwrap()[0].token
}

/// Publish events and make them dead letters.
pub(crate) async fn publish_dead_letters(store: &MemoryStore, token: Token, count: u64, error: &str) {
    let events: Vec<_> =
        (0..count).map(|n| NewEvent { key: Some(format!("k{n}")), ..NewEvent::new(SCRIPT) }).collect();
    let before = store.partition_offsets(&topic()).await.unwrap().unwrap()[0].end_offset;
    store.publish(&topic(), &events).await.unwrap();
    let read = ReadEventsRequest { topic: topic(), after: vec![(0, before)], limit: 10_000 };
    let read = store.read_events(&read).await.unwrap();
    let how = || ParkedEventState::Dead { attempts: 3, error: error.into() };
    let parked = read
        .iter()
        .map(|event| ParkEventRequest { event_id: event.id, offset: event.offset, state: how() })
        .collect();
    let commit = PartitionCommit {
        group: billing(),
        partition: 0,
        token,
        offset: read.last().map(|event| event.offset),
        processed: Vec::new(),
        parked,
        parked_results: Vec::new(),
    };
    assert_eq!(store.commit_partitions(&[commit]).await.unwrap(), [CommitResult::Committed]);
}

async fn dead(store: &MemoryStore) -> Vec<ParkedEvent> {
    let filter = ParkedEventFilter {
        group: billing(),
        dead: true,
        partition: None,
        key: None,
        after: None,
        limit: 10_000,
    };
    store.parked_events(&filter).await.unwrap()
}

#[tokio::test]
async fn a_bulk_drop_spares_dead_letters_that_came_after_the_confirmation() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    let token = topic_with_member(&store).await;
    // More than one batch.
    publish_dead_letters(&store, token, 303, "old").await;
    let question = get(&app, "/topics/orders/groups/billing/dead-letters/drop").await;
    assert!(question.contains("Drop 303 dead letters?"), "{question}");
    let form = format!(
        "max_failed_at_ms={}&max_event_id={}&key=",
        hidden(&question, "max_failed_at_ms"),
        hidden(&question, "max_event_id")
    );
    // Let the clock advance.
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    publish_dead_letters(&store, token, 2, "young").await;
    let answer = send(&app, "POST", "/topics/orders/groups/billing/dead-letters/drop", &form).await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text);
    assert_eq!(answer.headers[LOCATION], "/topics/orders/groups/billing?namespace=default#parked");
    assert_eq!(message(&answer), "drop");
    let left = dead(&store).await;
    assert_eq!(left.iter().map(|parked| parked.last_error.as_str()).collect::<Vec<_>>(), ["young", "young"]);
    // A second request finds no matching dead letters.
    let answer = send(&app, "POST", "/topics/orders/groups/billing/dead-letters/drop", &form).await;
    assert_eq!(message(&answer), "nothing");
    assert_eq!(dead(&store).await.len(), 2);
    // All are in the audit log.
    let page = get(&app, "/topics/orders/groups/billing").await;
    assert_eq!(page.matches("dead_<wbr>letter.<wbr>drop").count(), 4, "{page}");
}

#[tokio::test]
async fn only_dead_letters_are_replayed_or_dropped() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    let token = topic_with_member(&store).await;
    publish_dead_letters(&store, token, 1, "once").await;
    let id = dead(&store).await[0].event.id;
    let path = format!("/topics/orders/groups/billing/parked-events/{id}/replay");
    assert_eq!(send(&app, "POST", &path, "").await.status, StatusCode::SEE_OTHER);
    // The event is still parked, and due.
    let answer =
        send(&app, "GET", &format!("/topics/orders/groups/billing/parked-events/{id}/drop"), "").await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.text);
    let answer =
        send(&app, "POST", &format!("/topics/orders/groups/billing/parked-events/{id}/drop"), "").await;
    assert_eq!(message(&answer), "nothing");
    for (path, status) in [
        ("/topics/orders/groups/billing/parked-events/999", StatusCode::NOT_FOUND),
        ("/topics/orders/groups/billing/parked-events/999/drop", StatusCode::NOT_FOUND),
        ("/topics/orders/groups/none", StatusCode::NOT_FOUND),
        ("/topics/orders/groups/none/parked-events/1", StatusCode::NOT_FOUND),
        ("/topics/orders/groups/none/dead-letters/drop", StatusCode::NOT_FOUND),
        ("/topics/orders/groups/billing/explode", StatusCode::NOT_FOUND),
        ("/topics/orders/groups/billing/dead-letters/explode", StatusCode::NOT_FOUND),
        ("/topics/orders/groups/billing?parked=some", StatusCode::BAD_REQUEST),
        ("/topics/orders/groups/billing/reset?to=nowhere", StatusCode::UNPROCESSABLE_ENTITY),
        ("/topics/orders/groups/billing/reset?to=offset&offset=-1", StatusCode::UNPROCESSABLE_ENTITY),
        ("/topics/orders/groups/billing/reset?to=earliest&partition=9", StatusCode::UNPROCESSABLE_ENTITY),
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
async fn a_stale_settings_form_of_a_topic_or_group_is_rejected() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    topic_with_member(&store).await;
    let seen = hidden(&get(&app, "/topics/orders/settings").await, "expected_digest");
    let changed = TopicSettings { partitions: 1, retention_ms: 5000, ..TopicSettings::default() };
    store.set_topic(&topic(), &changed).await.unwrap();
    let form = format!("expected_digest={seen}&retention=1d&unread_retention=&max_payload_bytes=100");
    let answer = send(&app, "POST", "/topics/orders/settings", &form).await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.text);
    assert_eq!(store.topic(&topic()).await.unwrap().unwrap().settings, changed);

    let seen = hidden(&get(&app, "/topics/orders/groups/billing/settings").await, "expected_digest");
    let changed = GroupSettings { max_attempts: 2, ..GroupSettings::default() };
    store.set_group(&billing(), &changed, StartOffset::Earliest).await.unwrap();
    let form = format!("expected_digest={seen}&max_attempts=5&initial_backoff=1s&max_backoff=5s");
    let answer = send(&app, "POST", "/topics/orders/groups/billing/settings", &form).await;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{}", answer.text);
    assert_eq!(store.group(&billing()).await.unwrap().unwrap().settings, changed);

    // An existing topic is not created again. Deleting requires its name and no active members.
    let form = "name=orders&partitions=8&retention=1d&unread_retention=&max_payload_bytes=100";
    assert_eq!(send(&app, "POST", "/new-topic", form).await.status, StatusCode::CONFLICT);
    for name in ["", "order", "orders"] {
        let answer = send(&app, "POST", "/topics/orders/delete", &format!("name={name}")).await;
        let status = if name == "orders" { StatusCode::CONFLICT } else { StatusCode::UNPROCESSABLE_ENTITY };
        assert_eq!(answer.status, status, "{}", answer.text);
    }
    assert!(store.topic(&topic()).await.unwrap().is_some());
}

#[tokio::test]
async fn a_reset_preview_changes_nothing_and_the_reset_applies_the_previewed_offsets() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    let token = topic_with_member(&store).await;
    publish_dead_letters(&store, token, 3, "old").await;
    let leases = async || store.group_assignment(&billing()).await.unwrap().unwrap().partition_leases;
    let before = leases().await;
    let trial = get(&app, "/topics/orders/groups/billing/reset?to=time&age=1h").await;
    assert!(trial.contains("Nothing has changed yet") && trial.contains("1 partition"), "{trial}");
    assert_eq!(leases().await, before);
    assert_eq!(dead(&store).await.len(), 3);
    // The form carries an instant, not an age, so the action applies the previewed offsets.
    let form = format!("to=time&published_at_ms={}", hidden(&trial, "published_at_ms"));
    let answer = send(&app, "POST", "/topics/orders/groups/billing/reset", &form).await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text);
    let after = leases().await;
    assert!(after[0].committed_offset < before[0].committed_offset && after[0].token > before[0].token);
    assert!(dead(&store).await.is_empty());
}

#[tokio::test]
async fn event_data_is_escaped_and_no_secret_is_shown() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    let token = topic_with_member(&store).await;
    publish_dead_letters(&store, token, 2, SCRIPT).await;
    let webhook = WebhookSettings {
        url: "https://h.example/x?k=hidden".into(),
        secret: "a secret of 16 bytes".into(),
        timeout_ms: 1000,
    };
    store.set_webhook(&billing(), Some(&webhook)).await.unwrap();
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
        "/topics/orders/groups/billing?parked=all&key=%3Cscript%3Ealert(1)%3C/script%3E&partitions=all"
            .into(),
        format!("/topics/orders/groups/billing/parked-events/{id}"),
        format!("/topics/orders/groups/billing/parked-events/{id}/drop"),
        "/topics/orders/groups/billing/resume".into(),
        "/audit".into(),
    ] {
        let page = get(&app, &path).await;
        assert!(!page.contains(SCRIPT) && !page.contains("style="), "{path}: {page}");
        assert!(!page.contains("a secret of 16 bytes") && !page.contains("k=hidden"), "{path}: {page}");
    }
}

#[tokio::test]
async fn the_webhook_form_rejects_the_same_urls_as_the_api() {
    let store = MemoryStore::new();
    let app = open(&store).await;
    topic_with_member(&store).await;
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
        let answer = send(&app, "POST", "/topics/orders/groups/billing/webhook", &form).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{url}: {}", answer.text);
    }
    assert!(store.webhooks().await.unwrap().is_empty());
}
