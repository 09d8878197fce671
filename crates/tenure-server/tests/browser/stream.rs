//! Topics and groups in every state that a page can show.

use std::time::Duration;

use tenure::port::{
    Aside, AsideFilter, AsideView, Begin, Bureau, Event, Events, GroupKey, GroupSettings, GroupView, Join,
    NewEvent, Pause, Payload, Push, ReadAsk, SetAside, ShareCommit, TakeShares, Taken, TopicKey,
    TopicSettings,
};
use tenure::{SessionId, Tenure};

use crate::work::{name, queue};
use crate::world::World;

pub(crate) fn topic(text: &str) -> TopicKey {
    let key = queue(text);
    TopicKey::new(key.namespace, key.name)
}

/// `orders/billing`, or `prod/ledger/audit`.
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

impl World {
    pub(crate) async fn topic(&self, text: &str, slots: u32) {
        let settings = TopicSettings { slots, ..TopicSettings::default() };
        self.store.set_topic(&topic(text), &settings).await.unwrap();
    }

    pub(crate) async fn publish(&self, to: &str, events: &[NewEvent]) {
        self.store.publish(&topic(to), events).await.unwrap();
    }

    pub(crate) async fn group(&self, text: &str) -> GroupView {
        self.store.group(&group(text)).await.unwrap().expect("a group")
    }

    /// Everything that is in a topic.
    pub(crate) async fn events(&self, of: &str) -> Vec<Event> {
        let ends = self.store.slot_ends(&topic(of)).await.unwrap().unwrap();
        let after = ends.iter().map(|end| (end.slot, end.earliest)).collect();
        self.store.read_events(&ReadAsk { topic: topic(of), after, limit: 10_000 }).await.unwrap()
    }

    pub(crate) async fn asides(&self, of: &str, dead: bool) -> Vec<AsideView> {
        let filter = AsideFilter { group: group(of), dead, slot: None, key: None, after: None, limit: 1000 };
        self.store.aside(&filter).await.unwrap()
    }

    /// Members that live, each with its share.
    async fn members(&mut self, of: &str, names: &[&str], keep_free: u32) -> Vec<(SessionId, Taken)> {
        let mut sessions = Vec::new();
        for member in names {
            let builder =
                Tenure::builder().store(self.store.clone()).name(*member).lease(Duration::from_secs(60));
            let tenure = builder.open().await.unwrap();
            let session = tenure.session().expect("a session");
            let join = Join {
                group: group(of),
                session: session.clone(),
                member: (*member).into(),
                from: Begin::Earliest,
            };
            self.store.join_group(&join).await.unwrap();
            self.keep(tenure);
            sessions.push(session);
        }
        let look = self.store.look_group(&group(of)).await.unwrap().unwrap();
        let taken = look.shares.len() as u32 - keep_free;
        let mut all = Vec::new();
        for (at, session) in sessions.iter().enumerate() {
            let own = |slot: u32| slot < taken && (slot / 3 + slot / 7) as usize % sessions.len() == at;
            let slots =
                look.shares.iter().filter(|share| own(share.slot)).map(|share| (share.slot, share.token));
            let take = TakeShares { group: group(of), session: session.clone(), slots: slots.collect() };
            let taken = self.store.take_shares(&take).await.unwrap();
            all.extend(taken.into_iter().map(|taken| (session.clone(), taken)));
        }
        all
    }

    async fn commit(&self, of: &str, taken: &Taken, position: u64, set_aside: Vec<SetAside>) {
        let commit = ShareCommit {
            group: group(of),
            slot: taken.slot,
            token: taken.token,
            position: Some(position),
            done: Vec::new(),
            set_aside,
            settled: Vec::new(),
        };
        assert_eq!(self.store.commit_shares(&[commit]).await.unwrap(), [tenure::port::Committed::Yes]);
    }

    /// Events, and those who read them, in every state.
    pub(crate) async fn eventful() -> World {
        let mut world = World::empty().await;
        world.orders().await;
        world.billing().await;
        world.wide().await;
        world
    }

    async fn orders(&self) {
        self.topic("orders", 64).await;
        // Long ago, and much at once: where nobody has read it, slots are far behind.
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
        // A transaction with several, one with headers, and bytes.
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

    /// A group with a lag, with dead events, and with keys that wait.
    async fn billing(&mut self) {
        let all = self.events("orders").await;
        let taken =
            self.members("orders/billing", &["billing-7f9c-a", "billing-7f9c-b", "billing-52d1-c"], 2).await;
        for (_, taken) in &taken {
            let mine: Vec<_> = all.iter().filter(|event| event.slot == taken.slot).collect();
            // Most have read all, some lag by a few, some by many.
            let parked = |event: &&Event| {
                ["customer-12", "customer-13", "customer-36"].map(Some).contains(&event.key.as_deref())
            };
            let left = match taken.slot % 5 {
                _ if mine.iter().any(|event| event.kind == "order.imported") => mine.len(),
                _ if mine.iter().any(parked) => 0,
                3 => 2,
                _ => 0,
            };
            let read = &mine[..mine.len() - left.min(mine.len())];
            let Some(last) = read.last() else { continue };
            let of =
                |key: &str| read.iter().filter(|event| event.key.as_deref() == Some(key)).collect::<Vec<_>>();
            let mut aside = Vec::new();
            let dead = |error: &str| Aside::Dead { attempts: 10, error: error.into() };
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
                    Aside::Retry { attempts: 3, after_ms: 45_000, error: "timed out after 30 s".into() },
                ),
            ] {
                let mut how = Some(first);
                for event in of(key).iter().rev().take(3).rev() {
                    let how = how.take().unwrap_or(Aside::Behind);
                    aside.push(SetAside { event: event.id, position: event.position, how });
                }
            }
            self.commit("orders/billing", taken, last.position, aside).await;
        }
        let behind = GroupSettings { max_attempts: 3, ..GroupSettings::default() };
        self.store.set_group(&group("orders/search"), &behind, Begin::Earliest).await.unwrap();
        self.store
            .set_group(&group("orders/mailer"), &GroupSettings::default(), Begin::Latest)
            .await
            .unwrap();
        let pause = Pause {
            by: "ada".into(),
            reason: "the <mail> provider is down".into(),
            at_ms: self.store_ms() - 240_000,
        };
        self.store.set_group_paused(&group("orders/mailer"), Some(&pause)).await.unwrap();
    }

    /// Topics of other sizes.
    async fn wide(&mut self) {
        self.topic("clicks", 256).await;
        let clicks: Vec<_> = (0..900)
            .map(|n| event("click", &format!("visitor-{}", n % 311), r#"{"x": 3, "y": 4}"#))
            .collect();
        self.publish("clicks", &clicks).await;
        self.members("clicks/heatmap", &["heat-a", "heat-b", "heat-c", "heat-d", "heat-e"], 0).await;
        self.topic("prod/ledger", 1024).await;
        let bookings: Vec<_> =
            (0..5000u64).map(|n| event("booked", &format!("account-{}", n * n % 1801), "{}")).collect();
        self.publish("prod/ledger", &bookings).await;
        let many: Vec<_> = (1..=14).map(|n| format!("auditor-{n:02}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        let all = self.events("prod/ledger").await;
        for (_, taken) in self.members("prod/ledger/audit", &many, 9).await {
            let mine: Vec<_> = all.iter().filter(|event| event.slot == taken.slot).collect();
            if let Some(last) = mine.last().filter(|_| taken.slot % 5 != 0) {
                self.commit("prod/ledger/audit", &taken, last.position, Vec::new()).await;
            }
        }
        self.topic("quiet", 8).await;
        self.store.set_group(&group("quiet/hooks"), &GroupSettings::default(), Begin::Latest).await.unwrap();
        let push = Push {
            url: "https://example.org/hooks/quiet?key=hidden-in-here".into(),
            secret: "whsec_c2VjcmV0IG9mIHRoZSBob29rcyE=".into(),
            timeout_ms: 10_000,
        };
        self.store.set_push(&group("quiet/hooks"), Some(&push)).await.unwrap();
        self.topic("empty", 1).await;
    }
}
