//! Quotas of objects per namespace, and the number of metric series.

use tenure::Name;
use tenure::port::{QueueKey, QueueSettings, TaskAdmin as _};
use tenure_server::Settings;
use tenure_server::quota::Quotas;

use crate::support::{Answer, TestServer, json, settings, test_server, until};

async fn limited(quotas: &[&str]) -> TestServer {
    let mut all = Quotas::default();
    quotas.iter().for_each(|quota| all.set(quota.parse().expect("a quota")));
    test_server(Settings { quotas: all, ..settings() }).await
}

async fn put(fixture: &TestServer, path: &str, body: &str) -> Answer {
    fixture.send(json(fixture.request("PUT", path), body)).await
}

fn assert_quota_exceeded(answer: &Answer, field: &str) {
    assert_eq!((answer.status, answer.code().as_str()), (409, "quota-exceeded"), "{}", answer.text());
    assert_eq!(answer.json()["field"], field);
}

/// Regression: One client created 6000 queues and 6000 elections in a minute, and every server kept metrics
/// of each forever.
#[tokio::test]
async fn each_namespace_has_quotas_per_kind_of_object() {
    let quotas = ["elections=2", "queues=2", "topics=2", "groups=2", "schedules=2", "pools=2"];
    let fixture = limited(&quotas).await;
    let submit =
        async |queue: &str| fixture.post(&format!("/v1/queues/{queue}/tasks"), r#"{"kind":"k"}"#).await;
    for queue in ["a", "b", "a"] {
        assert_eq!(submit(queue).await.status, 201, "{queue}");
    }
    assert_quota_exceeded(&submit("c").await, "queue");
    assert_quota_exceeded(&put(&fixture, "/v1/queues/c", "{}").await, "queue");
    assert_eq!(put(&fixture, "/v1/queues/a", "{}").await.status, 200, "an existing one may be changed");
    let elsewhere = fixture.post("/v1/queues/c/tasks?namespace=other", r#"{"kind":"k"}"#).await;
    assert_eq!(elsewhere.status, 201, "another namespace has its own quota");

    let campaign =
        async |name: &str| fixture.post(&format!("/v1/elections/{name}/campaign"), r#"{"name":"me"}"#).await;
    for name in ["a", "b", "a"] {
        assert_eq!(campaign(name).await.status, 200, "{name}");
    }
    assert_quota_exceeded(&campaign("c").await, "election");

    for topic in ["a", "b"] {
        assert_eq!(put(&fixture, &format!("/v1/topics/{topic}"), "{}").await.status, 201);
        assert_eq!(put(&fixture, &format!("/v1/topics/{topic}/groups/g"), "{}").await.status, 201);
    }
    assert_quota_exceeded(&put(&fixture, "/v1/topics/c", "{}").await, "topic");
    assert_quota_exceeded(&put(&fixture, "/v1/topics/a/groups/h", "{}").await, "group");

    for pool in ["a", "b"] {
        assert_eq!(put(&fixture, &format!("/v1/pools/{pool}"), "{}").await.status, 200);
    }
    assert_quota_exceeded(&put(&fixture, "/v1/pools/c", "{}").await, "pool");
    assert_quota_exceeded(&put(&fixture, "/v1/pools/c/resources/r", "{}").await, "pool");

    let schedule = r#"{"expression":"@hourly","target":{"task":{"queue":"a","task":{"kind":"k"}}}}"#;
    for name in ["a", "b"] {
        let set = put(&fixture, &format!("/v1/schedules/{name}"), schedule).await;
        assert!(set.status < 300, "{}", set.text());
    }
    assert_quota_exceeded(&put(&fixture, "/v1/schedules/c", schedule).await, "schedule");
    let again = put(&fixture, "/v1/schedules/a", schedule).await;
    assert!(again.status < 300, "{}", again.text());
}

#[tokio::test]
async fn the_most_active_objects_have_their_own_series() {
    let fixture = test_server(settings()).await;
    for n in 0..600 {
        let name: Name = format!("q{n}").parse().expect("a name");
        let key = QueueKey::new(Name::default_namespace(), name);
        fixture.store.set_queue(&key, &QueueSettings::default()).await.expect("made");
    }
    assert_eq!(fixture.post("/v1/queues/q599/tasks", r#"{"kind":"k"}"#).await.status, 201);
    let busy = r#"tenure_queue_tasks{namespace="default",queue="q599",state="ready"} 1"#;
    // The snapshot may still be older than the queues.
    until("the most active has series of its own", async || {
        fixture.get("/metrics").await.text().lines().any(|line| line == busy)
    })
    .await;
    let text = fixture.get("/metrics").await.text();
    let series: Vec<_> = text.lines().filter(|line| line.starts_with("tenure_queue_paused{")).collect();
    assert_eq!(series.len(), 501);
    assert!(series.contains(&r#"tenure_queue_paused{namespace="",queue="other"} 0"#), "{series:?}");
}
