//! Pools: who gets what, for how long, and who may give it back.

use super::*;
use crate::port::{
    Handle, Mode, NewRequest, NewResource, Pause, PoolMatch, PoolSettings, RequestId, RequestState,
    RequestView, Trouble,
};

fn request(key: &str) -> NewRequest {
    NewRequest {
        key: key.into(),
        owner: "ada".into(),
        requires: vec![],
        prefers: vec![],
        base: 100,
        session: None,
        hold_ms: Some(1_000),
        max_wait_ms: None,
    }
}

fn resource(text: &str, tags: &[&str]) -> NewResource {
    NewResource { name: name(text), tags: words(tags), enabled: true }
}

impl Yard {
    /// With a pool of these resources.
    fn with(resources: &[NewResource], settings: PoolSettings) -> Yard {
        let mut yard = Yard::new();
        yard.ledger.set_pool(&pool(), &settings).unwrap();
        yard.ledger.add_resources(&pool(), resources).unwrap();
        yard
    }

    fn request(&mut self, request: &NewRequest) -> RequestId {
        self.ledger.request(&pool(), request, self.now).unwrap().id
    }

    fn matched(&mut self, authority: Authority, request: Option<RequestId>) -> Vec<RequestView> {
        let ask = PoolMatch { pool: pool(), authority, request };
        self.ledger.match_pool(&ask, &self.book, self.now).unwrap()
    }

    fn get(&mut self, request: &NewRequest) -> Option<RequestView> {
        let id = self.request(request);
        self.matched(Authority::Direct, Some(id)).pop()
    }

    fn seen(&self, id: RequestId) -> RequestView {
        self.ledger.pool_request(&Name::default_namespace(), id, self.now).unwrap()
    }

    fn handle(&mut self, id: RequestId, owner: &str, token: Option<Token>, handle: Handle) -> bool {
        self.ledger.handle_request(&Name::default_namespace(), id, owner, token, handle, self.now)
    }
}

fn exclusive() -> PoolSettings {
    PoolSettings { mode: Mode::Exclusive, ..PoolSettings::default() }
}

#[test]
fn a_request_gets_a_resource_a_token_and_a_deadline() {
    let mut yard = Yard::with(&[resource("a", &[]), resource("b", &["ssd"])], PoolSettings::default());
    yard.ledger.drain_wakes();
    let got = yard.get(&NewRequest { requires: words(&["ssd"]), ..request("k") }).unwrap();
    assert_eq!((got.state, got.resource.clone()), (RequestState::Granted, Some(name("b"))));
    assert_eq!((got.token, got.deadline_ms), (Some(Token::from_u64(1)), Some(START + 1_000)));
    assert_eq!(yard.ledger.drain_wakes(), [Wake::Pool(pool())]);
    let view = yard.ledger.pool(&pool(), yard.now).unwrap();
    assert_eq!(view.resources[1].holder.as_ref().map(|it| it.id), Some(got.id));
    let none = yard.get(&NewRequest { requires: words(&["ssd"]), ..request("l") });
    assert_eq!(none, None, "there is one of them");
}

#[test]
fn the_same_key_is_the_same_request_and_somebody_elses_is_refused() {
    let mut yard = Yard::with(&[resource("a", &[])], PoolSettings::default());
    let id = yard.request(&request("k"));
    assert_eq!(yard.request(&request("k")), id);
    let got = yard.matched(Authority::Direct, Some(id)).remove(0);
    let again = yard.ledger.request(&pool(), &request("k"), yard.now).unwrap();
    assert_eq!((again.id, again.token), (id, got.token), "granted, it is the same claim");
    let theirs = NewRequest { owner: "bob".into(), ..request("k") };
    let error = yard.ledger.request(&pool(), &theirs, yard.now).unwrap_err();
    assert_eq!(error.kind, Trouble::Request);
    assert!(error.message.contains("somebody else's"), "{error}");
    assert!(yard.handle(id, "ada", got.token, Handle::Release));
    assert_ne!(yard.request(&theirs), id, "what is over is no matter");
}

#[test]
fn only_its_owner_gives_a_claim_back_and_only_under_its_token() {
    let mut yard = Yard::with(&[resource("a", &[])], PoolSettings::default());
    let got = yard.get(&request("k")).unwrap();
    assert!(!yard.handle(got.id, "bob", got.token, Handle::Release));
    assert!(!yard.handle(got.id, "ada", None, Handle::Release));
    assert!(!yard.handle(got.id, "ada", Some(Token::from_u64(9)), Handle::Release));
    let id = got.id;
    assert!(!yard.ledger.handle_request(&name("other"), id, "ada", got.token, Handle::Release, yard.now));
    assert!(yard.handle(got.id, "ada", got.token, Handle::Release));
    assert!(!yard.handle(got.id, "ada", got.token, Handle::Release), "it is not held any more");
    assert_eq!(yard.seen(got.id).state, RequestState::Released);
    let next = yard.get(&request("l")).unwrap();
    assert!(next.token > got.token);
    let waits = yard.request(&request("m"));
    assert!(!yard.handle(waits, "ada", None, Handle::Extend(1)));
    assert!(yard.handle(waits, "ada", None, Handle::Release));
    assert_eq!(yard.seen(waits).state, RequestState::Cancelled);
}

#[test]
fn a_resource_rests_after_it_was_given_back_and_who_waits_is_woken_then() {
    let cool = PoolSettings { cool_down_ms: 500, ..PoolSettings::default() };
    let mut yard = Yard::with(&[resource("a", &[])], cool);
    let got = yard.get(&request("k")).unwrap();
    yard.handle(got.id, "ada", got.token, Handle::Release);
    let view = yard.ledger.pool(&pool(), yard.now).unwrap();
    assert_eq!(view.resources[0].cooling_until_ms, Some(START + 500));
    assert_eq!(yard.get(&request("l")), None);
    assert_eq!(yard.tend().next_in, Some(Duration::from_millis(500)));
    yard.now += 500;
    yard.ledger.drain_wakes();
    yard.tend();
    assert_eq!(yard.ledger.drain_wakes(), [Wake::Pool(pool())]);
    assert!(yard.get(&request("l")).is_some());
}

#[test]
fn the_leader_serves_all_that_wait_in_the_order_of_their_priority() {
    let mut yard = Yard::with(&[resource("a", &[]), resource("b", &["ssd"])], exclusive());
    let tagged = NewRequest { prefers: words(&["ssd"]), ..request("tagged") };
    let (tagged, simple) = (yard.request(&tagged), yard.request(&request("simple")));
    let low = yard.request(&NewRequest { base: 0, ..request("low") });
    let view = yard.ledger.pool(&pool(), yard.now).unwrap();
    let order: Vec<_> = view.waiting.iter().map(|it| (it.id, it.priority)).collect();
    assert_eq!(order, [(simple, Some(150)), (tagged, Some(100)), (low, Some(50))]);
    let given = yard.matched(yard.leader(), None);
    let given: Vec<_> = given.iter().map(|it| (it.id, it.resource.clone().unwrap())).collect();
    assert_eq!(given, [(simple, name("a")), (tagged, name("b"))]);
    assert_eq!(yard.seen(simple).priority, None);
    assert_eq!(yard.matched(yard.leader(), None), [], "nothing is free");
}

#[test]
fn age_overtakes_at_a_point_a_minute() {
    let mut yard = Yard::with(&[resource("a", &[])], exclusive());
    let old = yard.request(&NewRequest { requires: vec![], prefers: words(&["x"]), ..request("old") });
    yard.now += 50 * 60_000;
    let new = yard.request(&request("new"));
    assert_eq!(yard.seen(old).priority, yard.seen(new).priority);
    assert_eq!(yard.matched(yard.leader(), None)[0].id, old, "of equals, the first");
}

#[test]
fn a_direct_look_serves_one_request_alone() {
    let mut yard = Yard::with(&[resource("a", &[]), resource("b", &[])], PoolSettings::default());
    let (first, second) = (yard.request(&request("1")), yard.request(&request("2")));
    let got = yard.matched(Authority::Direct, Some(second));
    assert_eq!((got.len(), got[0].id), (1, second));
    assert_eq!(yard.matched(Authority::Direct, None), []);
    assert_eq!(yard.seen(first).state, RequestState::Waiting);
}

#[test]
fn a_disabled_resource_is_not_handed_out_and_a_held_one_not_taken_away() {
    let mut yard = Yard::with(&[resource("a", &[])], PoolSettings::default());
    let got = yard.get(&request("k")).unwrap();
    let off = NewResource { enabled: false, ..resource("a", &["new"]) };
    yard.ledger.add_resources(&pool(), &[off]).unwrap();
    let error = yard.ledger.remove_resource(&pool(), &name("a")).unwrap_err();
    assert!(error.message.contains(&format!("held by request {}", got.id)), "{error}");
    yard.handle(got.id, "ada", got.token, Handle::Release);
    assert_eq!(yard.get(&request("l")), None);
    assert_eq!(yard.ledger.remove_resource(&pool(), &name("a")), Ok(true));
    assert_eq!(yard.ledger.remove_resource(&pool(), &name("a")), Ok(false));
}

#[test]
fn claims_and_waits_that_are_over_expire_and_free_their_resource() {
    let mut yard = Yard::with(&[resource("a", &[]), resource("b", &[])], PoolSettings::default());
    let session = yard.session();
    let held = yard.get(&request("held")).unwrap();
    let hangs = NewRequest { session: Some(session.clone()), hold_ms: None, ..request("hangs") };
    let hangs = yard.get(&hangs).unwrap();
    let waits = yard.request(&NewRequest { max_wait_ms: Some(100), ..request("waits") });
    let extend = Handle::Extend(5_000);
    assert!(yard.handle(held.id, "ada", held.token, extend));
    yard.now += 1_001;
    assert_eq!(yard.tend().freed, 0);
    assert_eq!(yard.seen(waits).state, RequestState::Expired);
    yard.book.end(&session, yard.now);
    assert_eq!(yard.tend().freed, 1);
    assert_eq!(yard.seen(hangs.id).state, RequestState::Expired);
    yard.now += 4_000;
    assert_eq!(yard.tend().freed, 1);
    assert!(!yard.handle(held.id, "ada", held.token, Handle::Release));
    yard.now += PoolSettings::default().keep_ms as i64 + 1;
    yard.tend();
    assert_eq!(yard.ledger.pool_request(&Name::default_namespace(), held.id, yard.now), None);
}

#[test]
fn a_request_whose_session_is_over_gets_nothing() {
    let mut yard = Yard::with(&[resource("a", &[])], exclusive());
    let session = yard.session();
    yard.request(&NewRequest { session: Some(session.clone()), hold_ms: None, ..request("k") });
    yard.book.end(&session, yard.now);
    assert_eq!(yard.matched(yard.leader(), None), []);
}

#[test]
fn bad_input_is_refused_with_a_remedy() {
    let mut yard = Yard::with(&[], PoolSettings::default());
    let error = yard.ledger.request(&pool(), &NewRequest { hold_ms: None, ..request("k") }, 0).unwrap_err();
    assert!(error.message.contains("give one of them"), "{error}");
    let nowhere = PoolKey::new(Name::default_namespace(), name("nowhere"));
    let error = yard.ledger.request(&nowhere, &request("k"), 0).unwrap_err();
    assert!(error.message.contains("tenure pool add nowhere"), "{error}");
    let settings = PoolSettings { priority: "1 +".into(), ..PoolSettings::default() };
    assert!(yard.ledger.set_pool(&pool(), &settings).unwrap_err().message.contains("position 4"));
}

#[test]
fn a_paused_namespace_hands_out_no_resources() {
    let mut yard = Yard::with(&[resource("a", &[])], PoolSettings::default());
    let pause = Pause { by: "ada".into(), reason: String::new(), at_ms: 0 };
    let id = yard.request(&request("k"));
    yard.ledger.set_queue_paused(&Name::default_namespace(), None, Some(&pause));
    let ask = PoolMatch { pool: pool(), authority: Authority::Direct, request: Some(id) };
    let refused = yard.ledger.match_pool(&ask, &yard.book, yard.now);
    assert_eq!(refused, Err(ClaimRefusal::Paused));
    assert_eq!(yard.ledger.pool(&pool(), yard.now).unwrap().paused, Some(pause));
    yard.ledger.drain_wakes();
    yard.ledger.set_queue_paused(&Name::default_namespace(), None, None);
    assert_eq!(yard.ledger.drain_wakes(), [Wake::Pool(pool())]);
}
