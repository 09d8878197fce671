//! Pools: grants, timeouts and releases.

use super::*;
use crate::port::{
    AssignmentMode, ErrorKind, NewResource, Pause, PoolMatchRequest, PoolRequest, PoolRequestAction,
    PoolRequestId, PoolRequestState, PoolRequestView, PoolSettings,
};

fn request(key: &str) -> PoolRequest {
    PoolRequest {
        idempotency_key: key.into(),
        owner: "ada".into(),
        required_tags: vec![],
        preferred_tags: vec![],
        base_priority: 100,
        session: None,
        claim_timeout_ms: Some(1_000),
        max_wait_ms: None,
    }
}

fn resource(text: &str, tags: &[&str]) -> NewResource {
    NewResource { name: name(text), tags: words(tags), enabled: true }
}

impl TestQueue {
    /// A store with a pool of these resources.
    fn with(resources: &[NewResource], settings: PoolSettings) -> TestQueue {
        let mut fixture = TestQueue::new();
        fixture.work.set_pool(&pool(), &settings).unwrap();
        fixture.work.add_resources(&pool(), resources).unwrap();
        fixture
    }

    fn request(&mut self, request: &PoolRequest) -> PoolRequestId {
        self.work.create_pool_request(&pool(), request, self.now).unwrap().id
    }

    fn matched(&mut self, authority: ClaimAuthority, request: Option<PoolRequestId>) -> Vec<PoolRequestView> {
        let query = PoolMatchRequest { pool: pool(), authority, request };
        self.work.match_pool(&query, &self.elections, self.now).unwrap()
    }

    fn get(&mut self, request: &PoolRequest) -> Option<PoolRequestView> {
        let id = self.request(request);
        self.matched(ClaimAuthority::Direct, Some(id)).pop()
    }

    fn request_view(&self, id: PoolRequestId) -> PoolRequestView {
        self.work.pool_request(&Name::default_namespace(), id, self.now).unwrap()
    }

    fn handle(
        &mut self,
        id: PoolRequestId,
        owner: &str,
        token: Option<Token>,
        handle: PoolRequestAction,
    ) -> bool {
        self.work.update_pool_request(&Name::default_namespace(), id, owner, token, handle, self.now)
    }
}

fn exclusive() -> PoolSettings {
    PoolSettings { mode: AssignmentMode::Exclusive, ..PoolSettings::default() }
}

#[test]
fn a_request_gets_a_resource_a_token_and_an_expiry() {
    let mut fixture =
        TestQueue::with(&[resource("a", &[]), resource("b", &["ssd"])], PoolSettings::default());
    fixture.work.drain_notifications();
    let got = fixture.get(&PoolRequest { required_tags: words(&["ssd"]), ..request("k") }).unwrap();
    assert_eq!((got.state, got.resource.clone()), (PoolRequestState::Granted, Some(name("b"))));
    assert_eq!((got.token, got.expires_at_ms), (Some(Token::from_u64(1)), Some(START + 1_000)));
    assert_eq!(fixture.work.drain_notifications(), [Notification::PoolChanged(pool())]);
    let view = fixture.work.pool(&pool(), fixture.now).unwrap();
    assert_eq!(view.resources[1].held_by.as_ref().map(|it| it.id), Some(got.id));
    let none = fixture.get(&PoolRequest { required_tags: words(&["ssd"]), ..request("l") });
    assert_eq!(none, None, "one resource");
}

#[test]
fn an_idempotency_key_identifies_a_request_of_its_owner() {
    let mut fixture = TestQueue::with(&[resource("a", &[])], PoolSettings::default());
    let id = fixture.request(&request("k"));
    assert_eq!(fixture.request(&request("k")), id);
    let got = fixture.matched(ClaimAuthority::Direct, Some(id)).remove(0);
    let again = fixture.work.create_pool_request(&pool(), &request("k"), fixture.now).unwrap();
    assert_eq!((again.id, again.token), (id, got.token), "the granted request is returned");
    let theirs = PoolRequest { owner: "bob".into(), ..request("k") };
    let error = fixture.work.create_pool_request(&pool(), &theirs, fixture.now).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Request);
    assert!(error.message.contains("of another owner"), "{error}");
    assert!(fixture.handle(id, "ada", got.token, PoolRequestAction::Release));
    assert_ne!(fixture.request(&theirs), id, "an ended request does not matter");
}

#[test]
fn only_the_owner_releases_and_only_under_its_token() {
    let mut fixture = TestQueue::with(&[resource("a", &[])], PoolSettings::default());
    let got = fixture.get(&request("k")).unwrap();
    assert!(!fixture.handle(got.id, "bob", got.token, PoolRequestAction::Release));
    assert!(!fixture.handle(got.id, "ada", None, PoolRequestAction::Release));
    assert!(!fixture.handle(got.id, "ada", Some(Token::from_u64(9)), PoolRequestAction::Release));
    let id = got.id;
    assert!(!fixture.work.update_pool_request(
        &name("other"),
        id,
        "ada",
        got.token,
        PoolRequestAction::Release,
        fixture.now
    ));
    assert!(fixture.handle(got.id, "ada", got.token, PoolRequestAction::Release));
    assert!(!fixture.handle(got.id, "ada", got.token, PoolRequestAction::Release), "it is no longer held");
    assert_eq!(fixture.request_view(got.id).state, PoolRequestState::Released);
    let next = fixture.get(&request("l")).unwrap();
    assert!(next.token > got.token);
    let waits = fixture.request(&request("m"));
    assert!(!fixture.handle(waits, "ada", None, PoolRequestAction::Heartbeat(1)));
    assert!(fixture.handle(waits, "ada", None, PoolRequestAction::Release));
    assert_eq!(fixture.request_view(waits).state, PoolRequestState::Cancelled);
}

#[test]
fn a_resource_has_a_cooldown_and_waiters_are_notified_after_it() {
    let cool = PoolSettings { cooldown_ms: 500, ..PoolSettings::default() };
    let mut fixture = TestQueue::with(&[resource("a", &[])], cool);
    let got = fixture.get(&request("k")).unwrap();
    fixture.handle(got.id, "ada", got.token, PoolRequestAction::Release);
    let view = fixture.work.pool(&pool(), fixture.now).unwrap();
    assert_eq!(view.resources[0].cooldown_until_at_ms, Some(START + 500));
    assert_eq!(fixture.get(&request("l")), None);
    assert_eq!(fixture.maintain().next_in, Some(Duration::from_millis(500)));
    fixture.now += 500;
    fixture.work.drain_notifications();
    fixture.maintain();
    assert_eq!(fixture.work.drain_notifications(), [Notification::PoolChanged(pool())]);
    assert!(fixture.get(&request("l")).is_some());
}

#[test]
fn the_broker_serves_waiting_requests_in_order_of_priority() {
    let mut fixture = TestQueue::with(&[resource("a", &[]), resource("b", &["ssd"])], exclusive());
    let tagged = PoolRequest { preferred_tags: words(&["ssd"]), ..request("tagged") };
    let (tagged, simple) = (fixture.request(&tagged), fixture.request(&request("simple")));
    let low = fixture.request(&PoolRequest { base_priority: 0, ..request("low") });
    let view = fixture.work.pool(&pool(), fixture.now).unwrap();
    let order: Vec<_> = view.waiting_requests.iter().map(|it| (it.id, it.priority)).collect();
    assert_eq!(order, [(simple, Some(150)), (tagged, Some(100)), (low, Some(50))]);
    let assigned = fixture.matched(fixture.leader(), None);
    let assigned: Vec<_> = assigned.iter().map(|it| (it.id, it.resource.clone().unwrap())).collect();
    assert_eq!(assigned, [(simple, name("a")), (tagged, name("b"))]);
    assert_eq!(fixture.request_view(simple).priority, None);
    assert_eq!(fixture.matched(fixture.leader(), None), [], "nothing is free");
}

#[test]
fn age_overtakes_priority_at_one_point_per_minute() {
    let mut fixture = TestQueue::with(&[resource("a", &[])], exclusive());
    let old = fixture.request(&PoolRequest {
        required_tags: vec![],
        preferred_tags: words(&["x"]),
        ..request("old")
    });
    fixture.now += 50 * 60_000;
    let new = fixture.request(&request("new"));
    assert_eq!(fixture.request_view(old).priority, fixture.request_view(new).priority);
    assert_eq!(fixture.matched(fixture.leader(), None)[0].id, old, "the first of equals");
}

#[test]
fn a_direct_match_serves_one_request() {
    let mut fixture = TestQueue::with(&[resource("a", &[]), resource("b", &[])], PoolSettings::default());
    let (first, second) = (fixture.request(&request("1")), fixture.request(&request("2")));
    let got = fixture.matched(ClaimAuthority::Direct, Some(second));
    assert_eq!((got.len(), got[0].id), (1, second));
    assert_eq!(fixture.matched(ClaimAuthority::Direct, None), []);
    assert_eq!(fixture.request_view(first).state, PoolRequestState::Waiting);
}

#[test]
fn a_disabled_resource_is_not_granted_and_a_held_one_stays_held() {
    let mut fixture = TestQueue::with(&[resource("a", &[])], PoolSettings::default());
    let got = fixture.get(&request("k")).unwrap();
    let off = NewResource { enabled: false, ..resource("a", &["new"]) };
    fixture.work.add_resources(&pool(), &[off]).unwrap();
    let error = fixture.work.remove_resource(&pool(), &name("a")).unwrap_err();
    assert!(error.message.contains(&format!("held by request {}", got.id)), "{error}");
    fixture.handle(got.id, "ada", got.token, PoolRequestAction::Release);
    assert_eq!(fixture.get(&request("l")), None);
    assert_eq!(fixture.work.remove_resource(&pool(), &name("a")), Ok(true));
    assert_eq!(fixture.work.remove_resource(&pool(), &name("a")), Ok(false));
}

#[test]
fn expired_claims_and_waits_release_their_resource() {
    let mut fixture = TestQueue::with(&[resource("a", &[]), resource("b", &[])], PoolSettings::default());
    let session = fixture.session();
    let held = fixture.get(&request("held")).unwrap();
    let hangs = PoolRequest { session: Some(session.clone()), claim_timeout_ms: None, ..request("hangs") };
    let hangs = fixture.get(&hangs).unwrap();
    let waits = fixture.request(&PoolRequest { max_wait_ms: Some(100), ..request("waits") });
    let extend = PoolRequestAction::Heartbeat(5_000);
    assert!(fixture.handle(held.id, "ada", held.token, extend));
    fixture.now += 1_001;
    assert_eq!(fixture.maintain().released, 0);
    assert_eq!(fixture.request_view(waits).state, PoolRequestState::Expired);
    fixture.elections.end_session(&session, fixture.now);
    assert_eq!(fixture.maintain().released, 1);
    assert_eq!(fixture.request_view(hangs.id).state, PoolRequestState::Expired);
    fixture.now += 4_000;
    assert_eq!(fixture.maintain().released, 1);
    assert!(!fixture.handle(held.id, "ada", held.token, PoolRequestAction::Release));
    fixture.now += PoolSettings::default().request_retention_ms as i64 + 1;
    fixture.maintain();
    assert_eq!(fixture.work.pool_request(&Name::default_namespace(), held.id, fixture.now), None);
}

#[test]
fn a_request_of_an_ended_session_gets_nothing() {
    let mut fixture = TestQueue::with(&[resource("a", &[])], exclusive());
    let session = fixture.session();
    fixture.request(&PoolRequest { session: Some(session.clone()), claim_timeout_ms: None, ..request("k") });
    fixture.elections.end_session(&session, fixture.now);
    assert_eq!(fixture.matched(fixture.leader(), None), []);
}

#[test]
fn invalid_input_is_rejected_with_a_remedy() {
    let mut fixture = TestQueue::with(&[], PoolSettings::default());
    let error = fixture
        .work
        .create_pool_request(&pool(), &PoolRequest { claim_timeout_ms: None, ..request("k") }, 0)
        .unwrap_err();
    assert!(error.message.contains("give one of them"), "{error}");
    let nowhere = PoolKey::new(Name::default_namespace(), name("nowhere"));
    let error = fixture.work.create_pool_request(&nowhere, &request("k"), 0).unwrap_err();
    assert!(error.message.contains("tenure pools add-resource nowhere"), "{error}");
    let settings = PoolSettings { priority_formula: "1 +".into(), ..PoolSettings::default() };
    assert!(fixture.work.set_pool(&pool(), &settings).unwrap_err().message.contains("position 4"));
}

#[test]
fn a_paused_namespace_grants_no_resources() {
    let mut fixture = TestQueue::with(&[resource("a", &[])], PoolSettings::default());
    let pause = Pause { paused_by: "ada".into(), reason: String::new(), paused_at_ms: 0 };
    let id = fixture.request(&request("k"));
    fixture.work.set_queue_paused(&Name::default_namespace(), None, Some(&pause));
    let query = PoolMatchRequest { pool: pool(), authority: ClaimAuthority::Direct, request: Some(id) };
    let refused = fixture.work.match_pool(&query, &fixture.elections, fixture.now);
    assert_eq!(refused, Err(ClaimRefusal::Paused));
    assert_eq!(fixture.work.pool(&pool(), fixture.now).unwrap().paused, Some(pause));
    fixture.work.drain_notifications();
    fixture.work.set_queue_paused(&Name::default_namespace(), None, None);
    assert_eq!(fixture.work.drain_notifications(), [Notification::PoolChanged(pool())]);
}
