//! Pools.

use std::time::Duration;

use tenure_core::port::{
    AssignmentMode, BrokerFallback, ClaimAuthority, ClaimRefusal, ErrorKind, NewResource, Notification,
    PoolKey, PoolMatchRequest, PoolRequest, PoolRequestAction, PoolRequestId, PoolRequestState,
    PoolRequestView, PoolSettings, PoolView,
};
use tenure_core::{Name, Token};

use super::StoreUnderTest;
use super::test_queue::{HOUR_MS, TestMaintenance, listening, notifications_until, pause, strings};

/// A pool as one client uses it.
#[derive(Clone)]
struct TestPool {
    store: std::sync::Arc<dyn tenure_core::port::Store>,
    key: PoolKey,
}

impl TestPool {
    async fn of(subject: &StoreUnderTest) -> TestPool {
        let key = PoolKey::new(Name::default_namespace(), "hosts".parse().unwrap());
        TestPool { store: subject.client().await, key }
    }

    async fn add(&self, name: &str, tags: &[&str]) {
        self.store.add_resources(&self.key, &[resource(name, tags)]).await.expect("add_resources");
    }

    async fn request(&self, request: PoolRequest) -> PoolRequestView {
        self.store.create_pool_request(&self.key, &request).await.expect("request")
    }

    async fn matched(
        &self,
        authority: ClaimAuthority,
        request: Option<PoolRequestId>,
    ) -> Result<Vec<PoolRequestView>, ClaimRefusal> {
        let query = PoolMatchRequest { pool: self.key.clone(), authority, request };
        self.store.match_pool(&query).await.expect("match_pool")
    }

    /// Creates a request and matches it.
    async fn take(&self, request: PoolRequest) -> PoolRequestView {
        let id = self.request(request).await.id;
        self.matched(ClaimAuthority::Direct, Some(id)).await.expect("a distributed pool grants");
        self.observed(id).await
    }

    async fn observed(&self, id: PoolRequestId) -> PoolRequestView {
        let observed = self.store.pool_request(&self.key.namespace, id).await.expect("pool_request");
        observed.expect("the request exists")
    }

    async fn view(&self) -> PoolView {
        self.store.pool(&self.key).await.expect("pool").expect("the pool exists")
    }

    async fn handle(&self, request: &PoolRequestView, handle: PoolRequestAction) -> bool {
        let (id, owner) = (request.id, request.request.owner.as_str());
        let namespace = &self.key.namespace;
        self.store.update_pool_request(namespace, id, owner, request.token, handle).await.expect("handle")
    }

    async fn release(&self, request: &PoolRequestView) {
        assert!(self.handle(request, PoolRequestAction::Release).await);
    }

    async fn set(&self, settings: PoolSettings) {
        self.store.set_pool(&self.key, &settings).await.expect("set_pool");
    }

    fn holder(view: &PoolView, name: &str) -> Option<PoolRequestId> {
        let resource = view.resources.iter().find(|it| it.resource.name.as_str() == name);
        resource.expect("it exists").held_by.as_ref().map(|holder| holder.id)
    }
}

fn resource(name: &str, tags: &[&str]) -> NewResource {
    NewResource { name: name.parse().unwrap(), tags: strings(tags), enabled: true }
}

/// A request with default options and this key.
fn wanting(key: &str) -> PoolRequest {
    PoolRequest {
        idempotency_key: key.into(),
        owner: "o'wner".into(),
        required_tags: vec![],
        preferred_tags: vec![],
        base_priority: tenure_core::port::BASE_PRIORITY,
        session: None,
        claim_timeout_ms: Some(HOUR_MS),
        max_wait_ms: None,
    }
}

fn got(view: &PoolRequestView) -> Option<&str> {
    view.resource.as_ref().map(Name::as_str)
}

/// All settings are kept.
pub async fn a_pool_keeps_all_settings(subject: &StoreUnderTest) {
    let pool = TestPool::of(subject).await;
    assert_eq!(pool.store.pool(&pool.key).await, Ok(None));
    assert_eq!(pool.store.pools(None).await, Ok(vec![]));
    pool.add("b", &["gpu", "o'x"]).await;
    let settings = PoolSettings {
        mode: AssignmentMode::Exclusive,
        fallback: BrokerFallback::Distributed,
        cooldown_ms: 17,
        priority_formula: "base_priority * 2 + age_minutes".into(),
        request_retention_ms: 18,
    };
    pool.set(settings.clone()).await;
    let off = NewResource { enabled: false, ..resource("a", &[]) };
    pool.store.add_resources(&pool.key, std::slice::from_ref(&off)).await.unwrap();
    let view = pool.view().await;
    assert_eq!(
        (view.key.clone(), view.settings.clone(), view.paused.clone()),
        (pool.key.clone(), settings, None)
    );
    let resources: Vec<_> = view.resources.iter().map(|it| it.resource.clone()).collect();
    assert_eq!(resources, [off, resource("b", &["gpu", "o'x"])]);
    assert!(view.resources.iter().all(|it| it.held_by.is_none() && it.cooldown_until_at_ms.is_none()));
    pool.add("b", &["cpu"]).await;
    assert_eq!(pool.view().await.resources[1].resource.tags, ["cpu"]);
    assert_eq!(pool.store.pools(Some(&pool.key.namespace)).await.unwrap(), [pool.view().await]);
    assert_eq!(pool.store.pools(Some(&"else".parse().unwrap())).await, Ok(vec![]));
}

/// A granted request has a resource, a token and an expiry.
pub async fn a_request_gets_a_resource(subject: &StoreUnderTest) {
    let pool = TestPool::of(subject).await;
    pool.add("h1", &[]).await;
    let waiting = pool.request(wanting("k1")).await;
    assert_eq!((waiting.state, got(&waiting), waiting.token), (PoolRequestState::Waiting, None, None));
    assert!(waiting.priority.is_some());
    let reported = pool.matched(ClaimAuthority::Direct, Some(waiting.id)).await.unwrap();
    let granted = pool.observed(waiting.id).await;
    assert_eq!(reported, std::slice::from_ref(&granted));
    assert_eq!((granted.state, got(&granted)), (PoolRequestState::Granted, Some("h1")));
    assert_eq!(granted.request, wanting("k1"));
    let lasts = granted.expires_at_ms.unwrap() - granted.granted_at_ms.unwrap();
    assert!((lasts - HOUR_MS.cast_signed()).abs() <= 1, "{lasts}");
    let view = pool.view().await;
    assert_eq!(TestPool::holder(&view, "h1"), Some(granted.id));
    assert_eq!(Some(view.resources[0].token), granted.token);
    assert_eq!(view.waiting_requests, []);
    assert_eq!(pool.matched(ClaimAuthority::Direct, Some(waiting.id)).await.unwrap(), []);
}

/// A request for an unknown pool is an error.
pub async fn a_request_for_an_unknown_pool_is_rejected(subject: &StoreUnderTest) {
    let pool = TestPool::of(subject).await;
    let error =
        pool.store.create_pool_request(&pool.key, &wanting("1")).await.expect_err("the pool does not exist");
    assert!(error.kind == ErrorKind::Request && error.message.contains("hosts"), "{error}");
    let query = PoolMatchRequest { pool: pool.key.clone(), authority: ClaimAuthority::Direct, request: None };
    assert_eq!(pool.store.match_pool(&query).await, Ok(Ok(vec![])));
    assert_eq!(pool.store.pool(&pool.key).await, Ok(None));
}

/// While a request waits or holds a resource, its idempotency key returns it; afterwards the key can be used again.
pub async fn an_idempotency_key_identifies_a_request(subject: &StoreUnderTest) {
    let pool = TestPool::of(subject).await;
    pool.add("h1", &[]).await;
    let first = pool.request(wanting("k")).await;
    assert_eq!(pool.request(wanting("k")).await.id, first.id);
    let granted = pool.take(wanting("k")).await;
    assert_eq!((granted.id, granted.state), (first.id, PoolRequestState::Granted));
    assert_eq!(pool.request(wanting("k")).await, granted);
    pool.release(&granted).await;
    let next = pool.request(wanting("k")).await;
    assert!(next.id != first.id && next.state == PoolRequestState::Waiting);
    let elsewhere = PoolKey::new(pool.key.namespace.clone(), "other".parse().unwrap());
    pool.store.set_pool(&elsewhere, &PoolSettings::default()).await.unwrap();
    assert_ne!(pool.store.create_pool_request(&elsewhere, &wanting("k")).await.unwrap().id, next.id);
}

/// Another owner can neither use the idempotency key nor change the request.
pub async fn another_owner_is_rejected(subject: &StoreUnderTest) {
    let pool = TestPool::of(subject).await;
    pool.add("h1", &[]).await;
    let mine = pool.take(wanting("k")).await;
    let theirs = PoolRequest { owner: "eve".into(), ..wanting("k") };
    let error = pool.store.create_pool_request(&pool.key, &theirs).await.expect_err("it is rejected");
    assert_eq!(error.kind, ErrorKind::Request, "{error}");
    let (namespace, token) = (&pool.key.namespace, mine.token);
    for handle in [PoolRequestAction::Release, PoolRequestAction::Heartbeat(1)] {
        assert_eq!(pool.store.update_pool_request(namespace, mine.id, "eve", token, handle).await, Ok(false));
    }
    assert_eq!(pool.observed(mine.id).await, mine);
}

/// A resource must have all required tags; among those, the one with the most preferred tags is granted, then the first
/// by name.
pub async fn a_request_gets_the_best_matching_resource(subject: &StoreUnderTest) {
    let pool = TestPool::of(subject).await;
    for (name, tags) in [
        ("a", &[][..]),
        ("b", &["gpu"][..]),
        ("c", &["gpu", "near"][..]),
        ("d", &["gpu", "near", "big"][..]),
        ("e", &["gpu", "near", "big"][..]),
    ] {
        pool.add(name, tags).await;
    }
    let pool_request = |key: &str, requires: &[&str], prefers: &[&str]| PoolRequest {
        required_tags: strings(requires),
        preferred_tags: strings(prefers),
        ..wanting(key)
    };
    let cases = [
        (pool_request("1", &["gpu"], &["big", "near", "x"]), Some("d")),
        (pool_request("2", &["gpu"], &["near"]), Some("c")),
        (pool_request("3", &["gpu"], &[]), Some("b")),
        (pool_request("4", &["gpu", "x"], &[]), None),
        (pool_request("5", &[], &[]), Some("a")),
        (pool_request("6", &[], &["x"]), Some("e")),
        (pool_request("7", &[], &[]), None),
    ];
    for (request, expected) in cases {
        let view = pool.take(request.clone()).await;
        assert_eq!(got(&view), expected, "{request:?}");
    }
}

/// A disabled resource is not granted, and a held one stays held.
pub async fn a_disabled_resource_is_not_granted(subject: &StoreUnderTest) {
    let pool = TestPool::of(subject).await;
    pool.add("h1", &[]).await;
    let held = pool.take(wanting("1")).await;
    let off = NewResource { enabled: false, ..resource("h1", &[]) };
    pool.store.add_resources(&pool.key, &[off]).await.unwrap();
    assert_eq!(pool.observed(held.id).await.state, PoolRequestState::Granted);
    pool.release(&held).await;
    assert_eq!(pool.take(wanting("2")).await.state, PoolRequestState::Waiting);
    pool.add("h1", &[]).await;
    assert_eq!(got(&pool.take(wanting("2")).await), Some("h1"));
}

/// A resource cannot be removed while a request holds it.
pub async fn a_resource_is_removed_when_it_is_free(subject: &StoreUnderTest) {
    let pool = TestPool::of(subject).await;
    pool.add("h1", &[]).await;
    let name: Name = "h1".parse().unwrap();
    let held = pool.take(wanting("1")).await;
    let error = pool.store.remove_resource(&pool.key, &name).await.expect_err("a request holds it");
    assert_eq!(error.kind, ErrorKind::Request, "{error}");
    pool.release(&held).await;
    assert_eq!(pool.store.remove_resource(&pool.key, &name).await, Ok(true));
    assert_eq!(pool.store.remove_resource(&pool.key, &name).await, Ok(false));
    assert_eq!(pool.take(wanting("2")).await.state, PoolRequestState::Waiting);
}

/// The token continues, so that a fence that has seen the last holder accepts the next one.
pub async fn a_resource_that_is_added_again_continues_with_its_token(subject: &StoreUnderTest) {
    let pool = TestPool::of(subject).await;
    let name: Name = "h1".parse().unwrap();
    let mut last = Token::ZERO;
    for n in 0..3 {
        pool.add("h1", &[]).await;
        let held = pool.take(wanting(&format!("k{n}"))).await;
        let token = held.token.expect("granted");
        assert!(token > last, "{token} after {last}");
        last = token;
        pool.release(&held).await;
        assert_eq!(pool.store.remove_resource(&pool.key, &name).await, Ok(true));
        assert_eq!(pool.view().await.resources, []);
    }
}

/// A resource is released or extended only under its token, and released only once.
pub async fn a_resource_is_released_under_its_token(subject: &StoreUnderTest) {
    let pool = TestPool::of(subject).await;
    pool.add("h1", &[]).await;
    let held = pool.take(wanting("1")).await;
    let token = held.token.expect("granted");
    let wrong = [None, Some(Token::ZERO), Some(Token::from_u64(token.as_u64() + 1))];
    for token in wrong {
        let view = PoolRequestView { token, ..held.clone() };
        assert!(!pool.handle(&view, PoolRequestAction::Release).await, "{token:?}");
        assert!(!pool.handle(&view, PoolRequestAction::Heartbeat(HOUR_MS)).await, "{token:?}");
    }
    assert_eq!(pool.observed(held.id).await, held);
    pool.release(&held).await;
    assert!(!pool.handle(&held, PoolRequestAction::Release).await);
    let over = pool.observed(held.id).await;
    assert_eq!((over.state, over.ended_at_ms.is_some()), (PoolRequestState::Released, true));
    assert_eq!(TestPool::holder(&pool.view().await, "h1"), None);
    let next = pool.take(wanting("2")).await;
    assert!(next.token > Some(token), "tokens grow with each grant");
    assert!(!pool.handle(&held, PoolRequestAction::Release).await, "that was another grant");
    assert_eq!(pool.observed(next.id).await.state, PoolRequestState::Granted);
}

/// A waiting request can be cancelled.
pub async fn a_waiting_request_can_be_cancelled(subject: &StoreUnderTest) {
    let pool = TestPool::of(subject).await;
    pool.set(PoolSettings::default()).await;
    let waiting = pool.request(wanting("1")).await;
    let as_granted = PoolRequestView { token: Some(Token::from_u64(1)), ..waiting.clone() };
    assert!(!pool.handle(&as_granted, PoolRequestAction::Release).await);
    pool.release(&waiting).await;
    assert_eq!(pool.observed(waiting.id).await.state, PoolRequestState::Cancelled);
    pool.add("h1", &[]).await;
    assert_eq!(pool.matched(ClaimAuthority::Direct, Some(waiting.id)).await.unwrap(), []);
    assert_eq!(got(&pool.take(wanting("2")).await), Some("h1"));
}

/// A heartbeat extends the grant to the given time from now.
pub async fn a_heartbeat_extends_the_claim_of_a_resource(subject: &StoreUnderTest) {
    let pool = TestPool::of(subject).await;
    pool.add("h1", &[]).await;
    let held = pool.take(wanting("1")).await;
    assert!(pool.handle(&held, PoolRequestAction::Heartbeat(9 * HOUR_MS)).await);
    let longer = pool.observed(held.id).await;
    assert!(longer.expires_at_ms >= held.expires_at_ms.map(|at| at + 8 * HOUR_MS.cast_signed() - 1));
    assert_eq!((longer.token, longer.state), (held.token, PoolRequestState::Granted));
}

/// A released resource is not granted again before its cooldown ends.
pub async fn a_resource_has_a_cooldown(subject: &StoreUnderTest) {
    let pool = TestPool::of(subject).await;
    pool.add("h1", &[]).await;
    pool.set(PoolSettings { cooldown_ms: HOUR_MS, ..PoolSettings::default() }).await;
    let held = pool.take(wanting("1")).await;
    assert_eq!(pool.view().await.resources[0].cooldown_until_at_ms, None);
    pool.release(&held).await;
    let rests = pool.view().await.resources[0].cooldown_until_at_ms.expect("it is in cooldown");
    let ended = pool.observed(held.id).await.ended_at_ms.expect("ended");
    assert!((rests - ended - HOUR_MS.cast_signed()).abs() <= 1000, "{rests} after {ended}");
    assert_eq!(pool.take(wanting("2")).await.state, PoolRequestState::Waiting);
    pool.add("h2", &[]).await;
    pool.set(PoolSettings { cooldown_ms: 3, ..PoolSettings::default() }).await;
    let second = pool.take(wanting("2")).await;
    assert_eq!(got(&second), Some("h2"));
    pool.release(&second).await;
    while pool.take(wanting("3")).await.state == PoolRequestState::Waiting {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The broker grants by the priority formula, then by age.
pub async fn the_broker_grants_in_order_of_priority(subject: &StoreUnderTest) {
    let (pool, maintenance) = (TestPool::of(subject).await, TestMaintenance::of(subject).await);
    pool.set(PoolSettings { mode: AssignmentMode::Exclusive, ..PoolSettings::default() }).await;
    let tags = |tags: &[&str]| strings(tags);
    let requests = [
        wanting("simple-1"),
        PoolRequest { required_tags: tags(&["gpu"]), ..wanting("gpu") },
        PoolRequest { base_priority: 101, ..wanting("urgent") },
        wanting("simple-2"),
        PoolRequest { base_priority: 149, required_tags: tags(&["gpu"]), ..wanting("gpu-too") },
    ];
    for request in requests {
        pool.request(request).await;
    }
    let waiting: Vec<_> =
        pool.view().await.waiting_requests.into_iter().map(|it| it.request.idempotency_key).collect();
    assert_eq!(waiting, ["urgent", "simple-1", "simple-2", "gpu-too", "gpu"]);
    pool.add("h1", &["gpu"]).await;
    pool.add("h2", &[]).await;
    let reported = pool.matched(maintenance.authority(), None).await.unwrap();
    let reported: Vec<_> = reported.iter().map(|it| (it.request.idempotency_key.as_str(), got(it))).collect();
    // Each request gets the matching resource with the fewest tags, so that the GPU stays free as long as possible.
    assert_eq!(reported, [("urgent", Some("h2")), ("simple-1", Some("h1"))]);
    pool.set(PoolSettings {
        mode: AssignmentMode::Exclusive,
        priority_formula: "required_tags * 1000 - base_priority".into(),
        ..PoolSettings::default()
    })
    .await;
    pool.add("h3", &["gpu"]).await;
    let reported = pool.matched(maintenance.authority(), None).await.unwrap();
    let reported: Vec<_> = reported.iter().map(|it| (it.request.idempotency_key.as_str(), got(it))).collect();
    assert_eq!(reported, [("gpu", Some("h3"))], "another formula, another order");
}

/// Checks each authority with each mode and fallback.
pub async fn the_mode_determines_which_authority_may_grant(subject: &StoreUnderTest) {
    let (pool, maintenance) = (TestPool::of(subject).await, TestMaintenance::of(subject).await);
    let successor = maintenance.after(subject).await;
    let wrong = |mode| Some(ClaimRefusal::Mode(mode));
    let cases = [
        (AssignmentMode::Distributed, BrokerFallback::None, ClaimAuthority::Direct, None),
        (
            AssignmentMode::Distributed,
            BrokerFallback::None,
            successor.authority(),
            wrong(AssignmentMode::Distributed),
        ),
        (AssignmentMode::Distributed, BrokerFallback::None, ClaimAuthority::Fallback, None),
        (
            AssignmentMode::Exclusive,
            BrokerFallback::None,
            ClaimAuthority::Direct,
            wrong(AssignmentMode::Exclusive),
        ),
        (
            AssignmentMode::Exclusive,
            BrokerFallback::None,
            maintenance.authority(),
            Some(ClaimRefusal::NotLeader),
        ),
        (AssignmentMode::Exclusive, BrokerFallback::None, successor.authority(), None),
        (
            AssignmentMode::Exclusive,
            BrokerFallback::None,
            ClaimAuthority::Fallback,
            wrong(AssignmentMode::Exclusive),
        ),
        (
            AssignmentMode::Exclusive,
            BrokerFallback::Distributed,
            ClaimAuthority::Direct,
            wrong(AssignmentMode::Exclusive),
        ),
        (AssignmentMode::Exclusive, BrokerFallback::Distributed, ClaimAuthority::Fallback, None),
    ];
    for (n, (mode, fallback, authority, refused)) in cases.into_iter().enumerate() {
        pool.set(PoolSettings { mode, fallback, ..PoolSettings::default() }).await;
        pool.add(&format!("h{n}"), &[]).await;
        let request = pool.request(wanting(&format!("k{n}"))).await;
        let what = format!("{authority:?} at {mode:?} with {fallback:?}");
        let response = pool.matched(authority, Some(request.id)).await;
        assert_eq!(response.as_ref().err(), refused.as_ref(), "{what}");
        let state = pool.observed(request.id).await.state;
        assert_eq!(state == PoolRequestState::Granted, refused.is_none(), "{what}");
        if refused.is_some() {
            pool.release(&pool.observed(request.id).await).await;
            pool.store.remove_resource(&pool.key, &format!("h{n}").parse().unwrap()).await.unwrap();
        }
    }
}

/// Pausing the namespace pauses its pools.
pub async fn a_paused_pool_grants_nothing(subject: &StoreUnderTest) {
    let pool = TestPool::of(subject).await;
    pool.add("h1", &[]).await;
    let namespace = &pool.key.namespace;
    pool.store.set_queue_paused(namespace, None, Some(&pause())).await.unwrap();
    let request = pool.request(wanting("1")).await;
    let refused = pool.matched(ClaimAuthority::Direct, Some(request.id)).await;
    assert_eq!(refused, Err(ClaimRefusal::Paused));
    assert!(pool.view().await.paused.is_some());
    pool.store.set_queue_paused(namespace, None, None).await.unwrap();
    assert_eq!(got(&pool.take(wanting("1")).await), Some("h1"));
}

/// Many concurrent requests compete for few resources; each resource is granted once.
pub async fn concurrent_requests_never_share_a_resource(subject: &StoreUnderTest) {
    let pool = TestPool::of(subject).await;
    for name in ["a", "b", "c"] {
        pool.add(name, &[]).await;
    }
    for round in 0..3 {
        let mut asking = Vec::new();
        for n in 0..6 {
            let pool = TestPool { store: subject.client().await, ..pool.clone() };
            asking.push(tokio::spawn(async move { pool.take(wanting(&format!("{round}-{n}"))).await }));
        }
        let mut held = Vec::new();
        let mut waiting = Vec::new();
        for query in asking {
            let view = query.await.expect("no panic");
            if view.state == PoolRequestState::Granted { held.push(view) } else { waiting.push(view) }
        }
        let names: std::collections::BTreeSet<_> = held.iter().map(|it| it.resource.clone()).collect();
        assert_eq!((names.len(), held.len()), (3, 3), "{held:?}");
        for view in held.iter().chain(&waiting) {
            pool.release(view).await;
        }
    }
}

/// Maintenance ends a waiting or granted request when its session has ended or its time is over.
pub async fn maintenance_ends_requests_of_ended_sessions(subject: &StoreUnderTest) {
    let (pool, maintenance) = (TestPool::of(subject).await, TestMaintenance::of(subject).await);
    let (a, b) = (subject.session("a").await, subject.session("b").await);
    pool.set(PoolSettings { cooldown_ms: HOUR_MS, ..PoolSettings::default() }).await;
    for name in ["h1", "h2", "h3"] {
        pool.add(name, &[]).await;
    }
    let of = |key: &str, session: &super::TestSession| PoolRequest {
        session: Some(session.id.clone()),
        claim_timeout_ms: None,
        ..wanting(key)
    };
    let lost = pool.take(of("1", &a)).await;
    let kept = pool.take(of("2", &b)).await;
    let short = pool.take(PoolRequest { claim_timeout_ms: Some(1), ..wanting("3") }).await;
    let orphan = pool.take(of("4", &a)).await;
    let hasty = pool.take(PoolRequest { max_wait_ms: Some(1), ..wanting("5") }).await;
    let patient = pool.take(wanting("6")).await;
    assert_eq!(lost.expires_at_ms, None);
    a.store.end_session(&a.id).await.unwrap();
    assert_eq!(maintenance.run_until(|sum| sum.released >= 2).await.released, 2);
    while pool.observed(hasty.id).await.state == PoolRequestState::Waiting {
        maintenance.run().await;
    }
    for (view, state) in [
        (&lost, PoolRequestState::Expired),
        (&kept, PoolRequestState::Granted),
        (&short, PoolRequestState::Expired),
        (&orphan, PoolRequestState::Expired),
        (&hasty, PoolRequestState::Expired),
        (&patient, PoolRequestState::Waiting),
    ] {
        assert_eq!(pool.observed(view.id).await.state, state, "{view:?}");
    }
    assert!(!pool.handle(&lost, PoolRequestAction::Heartbeat(HOUR_MS)).await, "a lost grant stays lost");
    let view = pool.view().await;
    assert_eq!(
        view.resources.iter().filter(|it| it.cooldown_until_at_ms.is_some()).count(),
        2,
        "they are in cooldown"
    );
    assert_eq!(maintenance.run().await.released, 0);
}

/// An ended request is pruned after its retention.
pub async fn ended_requests_are_pruned(subject: &StoreUnderTest) {
    let (pool, maintenance) = (TestPool::of(subject).await, TestMaintenance::of(subject).await);
    pool.set(PoolSettings { request_retention_ms: 0, ..PoolSettings::default() }).await;
    pool.add("h1", &[]).await;
    let held = pool.take(wanting("1")).await;
    let waiting = pool.take(wanting("2")).await;
    pool.release(&held).await;
    while pool.store.pool_request(&pool.key.namespace, held.id).await.unwrap().is_some() {
        maintenance.run().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(pool.observed(waiting.id).await.state, PoolRequestState::Waiting);
}

/// Waiting clients are notified.
pub async fn grants_and_releases_are_notified(subject: &StoreUnderTest) {
    let (pool, session) = (TestPool::of(subject).await, subject.session("a").await);
    let mut notifications = listening(&session).await;
    pool.add("h1", &[]).await;
    let held = pool.take(wanting("1")).await;
    notifications_until(&mut notifications, &Notification::PoolChanged(pool.key.clone())).await;
    pool.release(&held).await;
    notifications_until(&mut notifications, &Notification::PoolChanged(pool.key.clone())).await;
}
