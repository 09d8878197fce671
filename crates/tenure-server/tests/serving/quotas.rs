//! How many objects a namespace may have, and how many series they make.

use tenure::Name;
use tenure::port::{Desk as _, QueueKey, QueueSettings};
use tenure_server::Settings;
use tenure_server::quota::Quotas;

use crate::support::{Answer, House, house, json, settings, until};

async fn limited(quotas: &[&str]) -> House {
    let mut all = Quotas::default();
    quotas.iter().for_each(|quota| all.set(quota.parse().expect("a quota")));
    house(Settings { quotas: all, ..settings() }).await
}

async fn put(house: &House, path: &str, body: &str) -> Answer {
    house.send(json(house.request("PUT", path), body)).await
}

fn refused(answer: &Answer, field: &str) {
    assert_eq!((answer.status, answer.code().as_str()), (409, "quota-exceeded"), "{}", answer.text());
    assert_eq!(answer.json()["field"], field);
}

/// One token made 6,000 queues and 6,000 elections in a minute, and every server kept figures of each for ever.
#[tokio::test]
async fn a_namespace_has_so_many_objects_of_each_kind() {
    let quotas = ["elections=2", "queues=2", "topics=2", "groups=2", "schedules=2", "pools=2"];
    let house = limited(&quotas).await;
    let submit =
        async |queue: &str| house.post(&format!("/v1/queues/{queue}/tasks"), r#"{"kind":"k"}"#).await;
    for queue in ["a", "b", "a"] {
        assert_eq!(submit(queue).await.status, 201, "{queue}");
    }
    refused(&submit("c").await, "queue");
    refused(&put(&house, "/v1/queues/c", "{}").await, "queue");
    assert_eq!(put(&house, "/v1/queues/a", "{}").await.status, 200, "one that is there may be set");
    let elsewhere = house.post("/v1/queues/c/tasks?namespace=other", r#"{"kind":"k"}"#).await;
    assert_eq!(elsewhere.status, 201, "another namespace has its own");

    let campaign =
        async |name: &str| house.post(&format!("/v1/elections/{name}/campaign"), r#"{"id":"me"}"#).await;
    for name in ["a", "b", "a"] {
        assert_eq!(campaign(name).await.status, 200, "{name}");
    }
    refused(&campaign("c").await, "election");

    for topic in ["a", "b"] {
        assert_eq!(put(&house, &format!("/v1/topics/{topic}"), "{}").await.status, 201);
        assert_eq!(put(&house, &format!("/v1/topics/{topic}/groups/g"), "{}").await.status, 201);
    }
    refused(&put(&house, "/v1/topics/c", "{}").await, "topic");
    refused(&put(&house, "/v1/topics/a/groups/h", "{}").await, "group");

    for pool in ["a", "b"] {
        assert_eq!(put(&house, &format!("/v1/pools/{pool}"), "{}").await.status, 200);
    }
    refused(&put(&house, "/v1/pools/c", "{}").await, "pool");
    refused(&put(&house, "/v1/pools/c/resources/r", "{}").await, "pool");

    let schedule = r#"{"when":"@hourly","target":{"task":{"queue":"a","task":{"kind":"k"}}}}"#;
    for name in ["a", "b"] {
        let set = put(&house, &format!("/v1/schedules/{name}"), schedule).await;
        assert!(set.status < 300, "{}", set.text());
    }
    refused(&put(&house, "/v1/schedules/c", schedule).await, "schedule");
    let again = put(&house, "/v1/schedules/a", schedule).await;
    assert!(again.status < 300, "{}", again.text());
}

#[tokio::test]
async fn metrics_have_series_of_the_most_active_objects_and_one_of_all_others() {
    let house = house(settings()).await;
    for n in 0..600 {
        let name: Name = format!("q{n}").parse().expect("a name");
        let key = QueueKey::new(Name::default_namespace(), name);
        house.store.set_queue(&key, &QueueSettings::default()).await.expect("made");
    }
    assert_eq!(house.post("/v1/queues/q599/tasks", r#"{"kind":"k"}"#).await.status, 201);
    let busy = r#"tenure_queue_depth{namespace="default",queue="q599",state="ready"} 1"#;
    // What was seen before the queues were made is shown for a moment.
    until("the most active has series of its own", async || {
        house.get("/metrics").await.text().lines().any(|line| line == busy)
    })
    .await;
    let text = house.get("/metrics").await.text();
    let series: Vec<_> = text.lines().filter(|line| line.starts_with("tenure_queue_paused{")).collect();
    assert_eq!(series.len(), 501);
    assert!(series.contains(&r#"tenure_queue_paused{namespace="",queue="other"} 0"#), "{series:?}");
}
