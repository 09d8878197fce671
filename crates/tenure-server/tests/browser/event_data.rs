//! Test data: topics and groups in every state that a page can show.

use std::time::Duration;

use tenure::port::{
    Event, EventAdmin, EventStore, GroupKey, GroupSettings, GroupView, JoinGroupRequest, NewEvent,
    ParkEventRequest, ParkedEvent, ParkedEventFilter, ParkedEventState, PartitionCommit, Pause, Payload,
    ReadEventsRequest, StartOffset, TakePartitionsRequest, TakenPartition, TopicKey, TopicSettings,
    WebhookSettings,
};
use tenure::{SessionId, Tenure};

use crate::fixture::Fixture;
use crate::queue_data::{name, queue};

pub(crate) fn topic(text: &str) -> TopicKey {
    let key = queue(text);
    TopicKey::new(key.namespace, key.name)
}

/// `orders/billing`, or `prod/accounting/audit`.
pub(crate) fn group(text: &str) -> GroupKey {
    let (of, group) = text.rsplit_once('/').unwrap();
    GroupKey::new(topic(of), name(group))
}

pub(crate) fn event(kind: &str, key: &str, payload: &str) -> NewEvent {
    NewEvent {
        key: Some(key.into()).filter(|key: &String| !key.is_empty()),
        payload: Payload::Json(payload.parse().unwrap()),
        ..NewEvent::new(kind)
    }
}

impl Fixture {
    pub(crate) async fn topic(&self, text: &str, partitions: u32) {
        let settings = TopicSettings { partitions, ..TopicSettings::default() };
        self.store.set_topic(&topic(text), &settings).await.unwrap();
    }

    pub(crate) async fn publish(&self, to: &str, events: &[NewEvent]) {
        self.store.publish(&topic(to), events).await.unwrap();
    }

    pub(crate) async fn group(&self, text: &str) -> GroupView {
        self.store.group(&group(text)).await.unwrap().expect("a group")
    }

    /// All events of a topic.
    pub(crate) async fn events(&self, of: &str) -> Vec<Event> {
        let ends = self.store.partition_offsets(&topic(of)).await.unwrap().unwrap();
        let after = ends.iter().map(|end| (end.partition, end.start_offset)).collect();
        self.store.read_events(&ReadEventsRequest { topic: topic(of), after, limit: 10_000 }).await.unwrap()
    }

    pub(crate) async fn parked_events(&self, of: &str, dead: bool) -> Vec<ParkedEvent> {
        let filter = ParkedEventFilter {
            group: group(of),
            dead,
            partition: None,
            key: None,
            after: None,
            limit: 1000,
        };
        self.store.parked_events(&filter).await.unwrap()
    }

    /// Add members and divide the partitions among them, except the last `keep_free`.
    async fn members(
        &mut self,
        of: &str,
        names: &[&str],
        keep_free: u32,
    ) -> Vec<(SessionId, TakenPartition)> {
        let mut sessions = Vec::new();
        for member in names {
            let builder =
                Tenure::builder().store(self.store.clone()).name(*member).lease(Duration::from_secs(60));
            let tenure = builder.open().await.unwrap();
            let session = tenure.session().expect("a session");
            let join = JoinGroupRequest {
                group: group(of),
                session: session.clone(),
                member: (*member).into(),
                from: StartOffset::Earliest,
            };
            self.store.join_group(&join).await.unwrap();
            self.keep(tenure);
            sessions.push(session);
        }
        let assignment = self.store.group_assignment(&group(of)).await.unwrap().unwrap();
        let taken = assignment.partition_leases.len() as u32 - keep_free;
        let mut all = Vec::new();
        for (at, session) in sessions.iter().enumerate() {
            let own = |partition: u32| {
                partition < taken && (partition / 3 + partition / 7) as usize % sessions.len() == at
            };
            let partitions = assignment
                .partition_leases
                .iter()
                .filter(|lease| own(lease.partition))
                .map(|lease| (lease.partition, lease.token));
            let take = TakePartitionsRequest {
                group: group(of),
                session: session.clone(),
                partitions: partitions.collect(),
            };
            let taken = self.store.take_partitions(&take).await.unwrap();
            all.extend(taken.into_iter().map(|taken| (session.clone(), taken)));
        }
        all
    }

    async fn commit(&self, of: &str, taken: &TakenPartition, offset: u64, parked: Vec<ParkEventRequest>) {
        let commit = PartitionCommit {
            group: group(of),
            partition: taken.partition,
            token: taken.token,
            offset: Some(offset),
            processed: Vec::new(),
            parked,
            parked_results: Vec::new(),
        };
        assert_eq!(
            self.store.commit_partitions(&[commit]).await.unwrap(),
            [tenure::port::CommitResult::Committed]
        );
    }

    /// A server with topics and groups in every state.
    pub(crate) async fn with_events() -> Fixture {
        let mut fixture = Fixture::empty().await;
        fixture.orders().await;
        fixture.billing().await;
        fixture.wide().await;
        fixture
    }

    async fn orders(&self) {
        self.topic("orders", 64).await;
        // Old bulk imports, so that some partitions have a large lag.
        self.set_back(Duration::from_secs(9000));
        for (key, count) in [("import-1", 30), ("import-4", 200), ("import-9", 1200)] {
            self.publish("orders", &vec![event("order.imported", key, "{}"); count]).await;
        }
        let kinds = ["order.placed", "order.paid", "order.shipped", "invoice.sent"];
        for n in 0..240u64 {
            self.set_back(Duration::from_secs(7200 - n * 29));
            let customer = format!("customer-{}", n * n % 61);
            let payload = format!(
                r#"{{"order": {}, "customer": "{customer}", "total": {}.{:02}, "note": "<b>&amp; more</b>"}}"#,
                4700 + n,
                n * 7 % 190,
                n % 100
            );
            self.publish("orders", &[event(kinds[n as usize % 4], &customer, &payload)]).await;
        }
        // One transaction with headers, bytes and a large payload.
        self.set_back(Duration::from_secs(20));
        let mut traced = event(
            "order.paid",
            "customer-7",
            r#"{"order": 4990, "lines": [{"sku": "a-1", "n": 2}, {"sku": "b-7", "n": 1}]}"#,
        );
        traced.headers.insert("trace".into(), "00-4bf92f3577b34da6-01".into());
        let bytes = NewEvent {
            payload: Payload::Bytes(vec![0, 1, 2, 250, b'o', b'k']),
            ..NewEvent::new("order.scan")
        };
        let large = format!(r#"{{"rows": [{}0]}}"#, "12345, ".repeat(2000));
        self.publish("orders", &[traced, bytes, event("report.made", "", &large)]).await;
        self.set_back(Duration::ZERO);
    }

    /// A group with lag, dead letters and parked keys.
    async fn billing(&mut self) {
        let all = self.events("orders").await;
        let taken =
            self.members("orders/billing", &["billing-7f9c-a", "billing-7f9c-b", "billing-52d1-c"], 2).await;
        for (_, taken) in &taken {
            let mine: Vec<_> = all.iter().filter(|event| event.partition == taken.partition).collect();
            // Most partitions are up to date; some have a small lag, some a large one.
            let parked = |event: &&Event| {
                ["customer-12", "customer-13", "customer-36"].map(Some).contains(&event.key.as_deref())
            };
            let left = match taken.partition % 5 {
                _ if mine.iter().any(|event| event.event_type == "order.imported") => mine.len(),
                _ if mine.iter().any(parked) => 0,
                3 => 2,
                _ => 0,
            };
            let read = &mine[..mine.len() - left.min(mine.len())];
            let Some(last) = read.last() else { continue };
            let of =
                |key: &str| read.iter().filter(|event| event.key.as_deref() == Some(key)).collect::<Vec<_>>();
            let mut parked_events = Vec::new();
            let dead = |error: &str| ParkedEventState::Dead { attempts: 10, error: error.into() };
            for (key, first) in [
                ("customer-12", dead("402 Payment Required: the card <4242> was declined")),
                (
                    "customer-13",
                    dead(
                        "panicked at src/invoice.rs:88: attempt to divide by zero\nwhile order 4717 was billed",
                    ),
                ),
                (
                    "customer-36",
                    ParkedEventState::Retry {
                        attempts: 3,
                        retry_in_ms: 45_000,
                        error: "timed out after 30 s".into(),
                    },
                ),
            ] {
                let mut how = Some(first);
                for event in of(key).iter().rev().take(3).rev() {
                    let how = how.take().unwrap_or(ParkedEventState::Waiting);
                    parked_events.push(ParkEventRequest {
                        event_id: event.id,
                        offset: event.offset,
                        state: how,
                    });
                }
            }
            self.commit("orders/billing", taken, last.offset, parked_events).await;
        }
        let behind = GroupSettings { max_attempts: 3, ..GroupSettings::default() };
        self.store.set_group(&group("orders/search"), &behind, StartOffset::Earliest).await.unwrap();
        self.store
            .set_group(&group("orders/mailer"), &GroupSettings::default(), StartOffset::Latest)
            .await
            .unwrap();
        let pause = Pause {
            paused_by: "ada".into(),
            reason: "the <mail> provider is down".into(),
            paused_at_ms: self.store_ms() - 240_000,
        };
        self.store.set_group_paused(&group("orders/mailer"), Some(&pause)).await.unwrap();
    }

    /// Topics with other numbers of partitions.
    async fn wide(&mut self) {
        self.topic("clicks", 256).await;
        let clicks: Vec<_> = (0..900)
            .map(|n| event("click", &format!("visitor-{}", n % 311), r#"{"x": 3, "y": 4}"#))
            .collect();
        self.publish("clicks", &clicks).await;
        self.members("clicks/heatmap", &["heat-a", "heat-b", "heat-c", "heat-d", "heat-e"], 0).await;
        self.topic("prod/accounting", 1024).await;
        let bookings: Vec<_> =
            (0..5000u64).map(|n| event("booked", &format!("account-{}", n * n % 1801), "{}")).collect();
        self.publish("prod/accounting", &bookings).await;
        let many: Vec<_> = (1..=14).map(|n| format!("auditor-{n:02}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        let all = self.events("prod/accounting").await;
        for (_, taken) in self.members("prod/accounting/audit", &many, 9).await {
            let mine: Vec<_> = all.iter().filter(|event| event.partition == taken.partition).collect();
            if let Some(last) = mine.last().filter(|_| taken.partition % 5 != 0) {
                self.commit("prod/accounting/audit", &taken, last.offset, Vec::new()).await;
            }
        }
        self.topic("quiet", 8).await;
        self.store
            .set_group(&group("quiet/hooks"), &GroupSettings::default(), StartOffset::Latest)
            .await
            .unwrap();
        let webhook = WebhookSettings {
            url: "https://example.org/hooks/quiet?key=hidden-in-here".into(),
            secret: "whsec_c2VjcmV0IG9mIHRoZSBob29rcyE=".into(),
            timeout_ms: 10_000,
        };
        self.store.set_webhook(&group("quiet/hooks"), Some(&webhook)).await.unwrap();
        self.topic("empty", 1).await;
    }
}
