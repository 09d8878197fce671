//! Claims about pools.

use std::time::Duration;

use tenure_core::port::{
    Authority, ClaimRefusal, Fallback, Handle, Mode, NewRequest, NewResource, PoolKey, PoolMatch,
    PoolSettings, PoolView, RequestId, RequestState, RequestView, Trouble, Wake,
};
use tenure_core::{Name, Token};

use super::Subject;
use super::floor::{HOUR_MS, Keeper, hints_until, listening, pause, strings};

/// A pool, as one client works with it.
#[derive(Clone)]
struct Pool {
    store: std::sync::Arc<dyn tenure_core::port::Backend>,
    key: PoolKey,
}

impl Pool {
    async fn of(subject: &Subject) -> Pool {
        let key = PoolKey::new(Name::default_namespace(), "hosts".parse().unwrap());
        Pool { store: subject.client().await, key }
    }

    async fn add(&self, name: &str, tags: &[&str]) {
        self.store.add_resources(&self.key, &[resource(name, tags)]).await.expect("add_resources");
    }

    async fn request(&self, request: NewRequest) -> RequestView {
        self.store.request(&self.key, &request).await.expect("request")
    }

    async fn matched(
        &self,
        authority: Authority,
        request: Option<RequestId>,
    ) -> Result<Vec<RequestView>, ClaimRefusal> {
        let ask = PoolMatch { pool: self.key.clone(), authority, request };
        self.store.match_pool(&ask).await.expect("match_pool")
    }

    /// Asks, and takes what is free.
    async fn take(&self, request: NewRequest) -> RequestView {
        let id = self.request(request).await.id;
        self.matched(Authority::Direct, Some(id)).await.expect("a distributed pool hands out");
        self.seen(id).await
    }

    async fn seen(&self, id: RequestId) -> RequestView {
        let seen = self.store.pool_request(&self.key.namespace, id).await.expect("pool_request");
        seen.expect("there is such a request")
    }

    async fn view(&self) -> PoolView {
        self.store.pool(&self.key).await.expect("pool").expect("there is such a pool")
    }

    async fn handle(&self, request: &RequestView, handle: Handle) -> bool {
        let (id, owner) = (request.id, request.request.owner.as_str());
        let namespace = &self.key.namespace;
        self.store.handle_request(namespace, id, owner, request.token, handle).await.expect("handle")
    }

    async fn release(&self, request: &RequestView) {
        assert!(self.handle(request, Handle::Release).await);
    }

    async fn set(&self, settings: PoolSettings) {
        self.store.set_pool(&self.key, &settings).await.expect("set_pool");
    }

    fn holder(view: &PoolView, name: &str) -> Option<RequestId> {
        let resource = view.resources.iter().find(|it| it.resource.name.as_str() == name);
        resource.expect("it is there").holder.as_ref().map(|holder| holder.id)
    }
}

fn resource(name: &str, tags: &[&str]) -> NewResource {
    NewResource { name: name.parse().unwrap(), tags: strings(tags), enabled: true }
}

/// An ordinary request under this key.
fn wanting(key: &str) -> NewRequest {
    NewRequest {
        key: key.into(),
        owner: "o'wner".into(),
        requires: vec![],
        prefers: vec![],
        base: tenure_core::port::BASE_PRIORITY,
        session: None,
        hold_ms: Some(HOUR_MS),
        max_wait_ms: None,
    }
}

fn got(view: &RequestView) -> Option<&str> {
    view.resource.as_ref().map(Name::as_str)
}

/// Whatever was said of it.
pub async fn a_pool_is_kept_whole(subject: &Subject) {
    let pool = Pool::of(subject).await;
    assert_eq!(pool.store.pool(&pool.key).await, Ok(None));
    assert_eq!(pool.store.pools(None).await, Ok(vec![]));
    pool.add("b", &["gpu", "o'x"]).await;
    let settings = PoolSettings {
        mode: Mode::Exclusive,
        fallback: Fallback::Distributed,
        cool_down_ms: 17,
        priority: "base * 2 + age_minutes".into(),
        keep_ms: 18,
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
    assert!(view.resources.iter().all(|it| it.holder.is_none() && it.cooling_until_ms.is_none()));
    pool.add("b", &["cpu"]).await;
    assert_eq!(pool.view().await.resources[1].resource.tags, ["cpu"]);
    assert_eq!(pool.store.pools(Some(&pool.key.namespace)).await.unwrap(), [pool.view().await]);
    assert_eq!(pool.store.pools(Some(&"else".parse().unwrap())).await, Ok(vec![]));
}

/// A token and a deadline with it.
pub async fn a_request_gets_a_resource(subject: &Subject) {
    let pool = Pool::of(subject).await;
    pool.add("h1", &[]).await;
    let waiting = pool.request(wanting("k1")).await;
    assert_eq!((waiting.state, got(&waiting), waiting.token), (RequestState::Waiting, None, None));
    assert!(waiting.priority.is_some());
    let told = pool.matched(Authority::Direct, Some(waiting.id)).await.unwrap();
    let granted = pool.seen(waiting.id).await;
    assert_eq!(told, std::slice::from_ref(&granted));
    assert_eq!((granted.state, got(&granted)), (RequestState::Granted, Some("h1")));
    assert_eq!(granted.request, wanting("k1"));
    let lasts = granted.deadline_ms.unwrap() - granted.granted_at_ms.unwrap();
    assert!((lasts - HOUR_MS.cast_signed()).abs() <= 1, "{lasts}");
    let view = pool.view().await;
    assert_eq!(Pool::holder(&view, "h1"), Some(granted.id));
    assert_eq!(Some(view.resources[0].token), granted.token);
    assert_eq!(view.waiting, []);
    assert_eq!(pool.matched(Authority::Direct, Some(waiting.id)).await.unwrap(), []);
}

/// Nobody waits for what nobody has heard of.
pub async fn a_request_of_an_unknown_pool_is_refused(subject: &Subject) {
    let pool = Pool::of(subject).await;
    let error = pool.store.request(&pool.key, &wanting("1")).await.expect_err("there is no such pool");
    assert!(error.kind == Trouble::Request && error.message.contains("hosts"), "{error}");
    let ask = PoolMatch { pool: pool.key.clone(), authority: Authority::Direct, request: None };
    assert_eq!(pool.store.match_pool(&ask).await, Ok(Ok(vec![])));
    assert_eq!(pool.store.pool(&pool.key).await, Ok(None));
}

/// While it waits or has something; then the key is free.
pub async fn the_same_key_is_the_same_request(subject: &Subject) {
    let pool = Pool::of(subject).await;
    pool.add("h1", &[]).await;
    let first = pool.request(wanting("k")).await;
    assert_eq!(pool.request(wanting("k")).await.id, first.id);
    let granted = pool.take(wanting("k")).await;
    assert_eq!((granted.id, granted.state), (first.id, RequestState::Granted));
    assert_eq!(pool.request(wanting("k")).await, granted);
    pool.release(&granted).await;
    let next = pool.request(wanting("k")).await;
    assert!(next.id != first.id && next.state == RequestState::Waiting);
    let elsewhere = PoolKey::new(pool.key.namespace.clone(), "other".parse().unwrap());
    pool.store.set_pool(&elsewhere, &PoolSettings::default()).await.unwrap();
    assert_ne!(pool.store.request(&elsewhere, &wanting("k")).await.unwrap().id, next.id);
}

/// Somebody else's key is somebody else's.
pub async fn another_owner_is_refused(subject: &Subject) {
    let pool = Pool::of(subject).await;
    pool.add("h1", &[]).await;
    let mine = pool.take(wanting("k")).await;
    let theirs = NewRequest { owner: "eve".into(), ..wanting("k") };
    let error = pool.store.request(&pool.key, &theirs).await.expect_err("it is refused");
    assert_eq!(error.kind, Trouble::Request, "{error}");
    let (namespace, token) = (&pool.key.namespace, mine.token);
    for handle in [Handle::Release, Handle::Extend(1)] {
        assert_eq!(pool.store.handle_request(namespace, mine.id, "eve", token, handle).await, Ok(false));
    }
    assert_eq!(pool.seen(mine.id).await, mine);
}

/// All tags that it requires, as many as there are that it prefers, then by name.
pub async fn a_request_gets_the_best_fit(subject: &Subject) {
    let pool = Pool::of(subject).await;
    for (name, tags) in [
        ("a", &[][..]),
        ("b", &["gpu"][..]),
        ("c", &["gpu", "near"][..]),
        ("d", &["gpu", "near", "big"][..]),
        ("e", &["gpu", "near", "big"][..]),
    ] {
        pool.add(name, tags).await;
    }
    let want = |key: &str, requires: &[&str], prefers: &[&str]| NewRequest {
        requires: strings(requires),
        prefers: strings(prefers),
        ..wanting(key)
    };
    let cases = [
        (want("1", &["gpu"], &["big", "near", "x"]), Some("d")),
        (want("2", &["gpu"], &["near"]), Some("c")),
        (want("3", &["gpu"], &[]), Some("b")),
        (want("4", &["gpu", "x"], &[]), None),
        (want("5", &[], &[]), Some("a")),
        (want("6", &[], &["x"]), Some("e")),
        (want("7", &[], &[]), None),
    ];
    for (request, expected) in cases {
        let view = pool.take(request.clone()).await;
        assert_eq!(got(&view), expected, "{request:?}");
    }
}

/// What is switched off is not handed out, and what is held stays held.
pub async fn a_resource_that_is_off_is_not_handed_out(subject: &Subject) {
    let pool = Pool::of(subject).await;
    pool.add("h1", &[]).await;
    let held = pool.take(wanting("1")).await;
    let off = NewResource { enabled: false, ..resource("h1", &[]) };
    pool.store.add_resources(&pool.key, &[off]).await.unwrap();
    assert_eq!(pool.seen(held.id).await.state, RequestState::Granted);
    pool.release(&held).await;
    assert_eq!(pool.take(wanting("2")).await.state, RequestState::Waiting);
    pool.add("h1", &[]).await;
    assert_eq!(got(&pool.take(wanting("2")).await), Some("h1"));
}

/// Not while somebody has it.
pub async fn a_resource_is_removed_when_it_is_free(subject: &Subject) {
    let pool = Pool::of(subject).await;
    pool.add("h1", &[]).await;
    let name: Name = "h1".parse().unwrap();
    let held = pool.take(wanting("1")).await;
    let error = pool.store.remove_resource(&pool.key, &name).await.expect_err("somebody has it");
    assert_eq!(error.kind, Trouble::Request, "{error}");
    pool.release(&held).await;
    assert_eq!(pool.store.remove_resource(&pool.key, &name).await, Ok(true));
    assert_eq!(pool.store.remove_resource(&pool.key, &name).await, Ok(false));
    assert_eq!(pool.take(wanting("2")).await.state, RequestState::Waiting);
}

/// A fence that has seen its last holder goes on to hold.
pub async fn a_resource_that_comes_back_goes_on_with_its_token(subject: &Subject) {
    let pool = Pool::of(subject).await;
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

/// Its owner, under its token, and only once.
pub async fn a_resource_is_given_back_under_its_token(subject: &Subject) {
    let pool = Pool::of(subject).await;
    pool.add("h1", &[]).await;
    let held = pool.take(wanting("1")).await;
    let token = held.token.expect("granted");
    let wrong = [None, Some(Token::ZERO), Some(Token::from_u64(token.as_u64() + 1))];
    for token in wrong {
        let view = RequestView { token, ..held.clone() };
        assert!(!pool.handle(&view, Handle::Release).await, "{token:?}");
        assert!(!pool.handle(&view, Handle::Extend(HOUR_MS)).await, "{token:?}");
    }
    assert_eq!(pool.seen(held.id).await, held);
    pool.release(&held).await;
    assert!(!pool.handle(&held, Handle::Release).await);
    let over = pool.seen(held.id).await;
    assert_eq!((over.state, over.ended_at_ms.is_some()), (RequestState::Released, true));
    assert_eq!(Pool::holder(&pool.view().await, "h1"), None);
    let next = pool.take(wanting("2")).await;
    assert!(next.token > Some(token), "tokens grow with each grant");
    assert!(!pool.handle(&held, Handle::Release).await, "that was another grant");
    assert_eq!(pool.seen(next.id).await.state, RequestState::Granted);
}

/// Who no longer wants it says so.
pub async fn a_request_that_waits_can_be_called_off(subject: &Subject) {
    let pool = Pool::of(subject).await;
    pool.set(PoolSettings::default()).await;
    let waiting = pool.request(wanting("1")).await;
    let as_granted = RequestView { token: Some(Token::from_u64(1)), ..waiting.clone() };
    assert!(!pool.handle(&as_granted, Handle::Release).await);
    pool.release(&waiting).await;
    assert_eq!(pool.seen(waiting.id).await.state, RequestState::Cancelled);
    pool.add("h1", &[]).await;
    assert_eq!(pool.matched(Authority::Direct, Some(waiting.id)).await.unwrap(), []);
    assert_eq!(got(&pool.take(wanting("2")).await), Some("h1"));
}

/// For as long as it says from now.
pub async fn a_claim_of_a_resource_can_be_extended(subject: &Subject) {
    let pool = Pool::of(subject).await;
    pool.add("h1", &[]).await;
    let held = pool.take(wanting("1")).await;
    assert!(pool.handle(&held, Handle::Extend(9 * HOUR_MS)).await);
    let longer = pool.seen(held.id).await;
    assert!(longer.deadline_ms >= held.deadline_ms.map(|at| at + 8 * HOUR_MS.cast_signed() - 1));
    assert_eq!((longer.token, longer.state), (held.token, RequestState::Granted));
}

/// It is not handed out again at once.
pub async fn a_resource_rests_after_use(subject: &Subject) {
    let pool = Pool::of(subject).await;
    pool.add("h1", &[]).await;
    pool.set(PoolSettings { cool_down_ms: HOUR_MS, ..PoolSettings::default() }).await;
    let held = pool.take(wanting("1")).await;
    assert_eq!(pool.view().await.resources[0].cooling_until_ms, None);
    pool.release(&held).await;
    let rests = pool.view().await.resources[0].cooling_until_ms.expect("it rests");
    let ended = pool.seen(held.id).await.ended_at_ms.expect("ended");
    assert!((rests - ended - HOUR_MS.cast_signed()).abs() <= 1000, "{rests} after {ended}");
    assert_eq!(pool.take(wanting("2")).await.state, RequestState::Waiting);
    pool.add("h2", &[]).await;
    pool.set(PoolSettings { cool_down_ms: 3, ..PoolSettings::default() }).await;
    let second = pool.take(wanting("2")).await;
    assert_eq!(got(&second), Some("h2"));
    pool.release(&second).await;
    while pool.take(wanting("3")).await.state == RequestState::Waiting {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// By the formula, then by age, whatever is free.
pub async fn the_leader_matches_in_order_of_priority(subject: &Subject) {
    let (pool, keeper) = (Pool::of(subject).await, Keeper::of(subject).await);
    pool.set(PoolSettings { mode: Mode::Exclusive, ..PoolSettings::default() }).await;
    let tags = |tags: &[&str]| strings(tags);
    let requests = [
        wanting("simple-1"),
        NewRequest { requires: tags(&["gpu"]), ..wanting("gpu") },
        NewRequest { base: 101, ..wanting("urgent") },
        wanting("simple-2"),
        NewRequest { base: 149, requires: tags(&["gpu"]), ..wanting("gpu-too") },
    ];
    for request in requests {
        pool.request(request).await;
    }
    let waiting: Vec<_> = pool.view().await.waiting.into_iter().map(|it| it.request.key).collect();
    assert_eq!(waiting, ["urgent", "simple-1", "simple-2", "gpu-too", "gpu"]);
    pool.add("h1", &["gpu"]).await;
    pool.add("h2", &[]).await;
    let told = pool.matched(keeper.authority(), None).await.unwrap();
    let told: Vec<_> = told.iter().map(|it| (it.request.key.as_str(), got(it))).collect();
    // The least capable that fits: the GPU stays free for as long as it can.
    assert_eq!(told, [("urgent", Some("h2")), ("simple-1", Some("h1"))]);
    pool.set(PoolSettings {
        mode: Mode::Exclusive,
        priority: "requires * 1000 - base".into(),
        ..PoolSettings::default()
    })
    .await;
    pool.add("h3", &["gpu"]).await;
    let told = pool.matched(keeper.authority(), None).await.unwrap();
    let told: Vec<_> = told.iter().map(|it| (it.request.key.as_str(), got(it))).collect();
    assert_eq!(told, [("gpu", Some("h3"))], "another formula, another order");
}

/// Each sort of asker, at each sort of pool.
pub async fn the_mode_decides_who_matches(subject: &Subject) {
    let (pool, keeper) = (Pool::of(subject).await, Keeper::of(subject).await);
    let heir = keeper.after(subject).await;
    let wrong = |mode| Some(ClaimRefusal::Mode(mode));
    let cases = [
        (Mode::Distributed, Fallback::None, Authority::Direct, None),
        (Mode::Distributed, Fallback::None, heir.authority(), wrong(Mode::Distributed)),
        (Mode::Distributed, Fallback::None, Authority::Fallback, None),
        (Mode::Exclusive, Fallback::None, Authority::Direct, wrong(Mode::Exclusive)),
        (Mode::Exclusive, Fallback::None, keeper.authority(), Some(ClaimRefusal::NotLeader)),
        (Mode::Exclusive, Fallback::None, heir.authority(), None),
        (Mode::Exclusive, Fallback::None, Authority::Fallback, wrong(Mode::Exclusive)),
        (Mode::Exclusive, Fallback::Distributed, Authority::Direct, wrong(Mode::Exclusive)),
        (Mode::Exclusive, Fallback::Distributed, Authority::Fallback, None),
    ];
    for (n, (mode, fallback, authority, refused)) in cases.into_iter().enumerate() {
        pool.set(PoolSettings { mode, fallback, ..PoolSettings::default() }).await;
        pool.add(&format!("h{n}"), &[]).await;
        let request = pool.request(wanting(&format!("k{n}"))).await;
        let what = format!("{authority:?} at {mode:?} with {fallback:?}");
        let answer = pool.matched(authority, Some(request.id)).await;
        assert_eq!(answer.as_ref().err(), refused.as_ref(), "{what}");
        let state = pool.seen(request.id).await.state;
        assert_eq!(state == RequestState::Granted, refused.is_none(), "{what}");
        if refused.is_some() {
            pool.release(&pool.seen(request.id).await).await;
            pool.store.remove_resource(&pool.key, &format!("h{n}").parse().unwrap()).await.unwrap();
        }
    }
}

/// Whatever is paused with its namespace.
pub async fn a_paused_pool_hands_out_nothing(subject: &Subject) {
    let pool = Pool::of(subject).await;
    pool.add("h1", &[]).await;
    let namespace = &pool.key.namespace;
    pool.store.set_queue_paused(namespace, None, Some(&pause())).await.unwrap();
    let request = pool.request(wanting("1")).await;
    let refused = pool.matched(Authority::Direct, Some(request.id)).await;
    assert_eq!(refused, Err(ClaimRefusal::Paused));
    assert!(pool.view().await.paused.is_some());
    pool.store.set_queue_paused(namespace, None, None).await.unwrap();
    assert_eq!(got(&pool.take(wanting("1")).await), Some("h1"));
}

/// Many ask at once for few.
pub async fn concurrent_requests_never_share_a_resource(subject: &Subject) {
    let pool = Pool::of(subject).await;
    for name in ["a", "b", "c"] {
        pool.add(name, &[]).await;
    }
    for round in 0..3 {
        let mut asking = Vec::new();
        for n in 0..6 {
            let pool = Pool { store: subject.client().await, ..pool.clone() };
            asking.push(tokio::spawn(async move { pool.take(wanting(&format!("{round}-{n}"))).await }));
        }
        let mut held = Vec::new();
        let mut waiting = Vec::new();
        for ask in asking {
            let view = ask.await.expect("no panic");
            if view.state == RequestState::Granted { held.push(view) } else { waiting.push(view) }
        }
        let names: std::collections::BTreeSet<_> = held.iter().map(|it| it.resource.clone()).collect();
        assert_eq!((names.len(), held.len()), (3, 3), "{held:?}");
        for view in held.iter().chain(&waiting) {
            pool.release(view).await;
        }
    }
}

/// With the session, or past its deadline, waiting or granted: the keeper sees to it.
pub async fn what_nobody_lives_for_goes_back(subject: &Subject) {
    let (pool, keeper) = (Pool::of(subject).await, Keeper::of(subject).await);
    let (a, b) = (subject.actor("a").await, subject.actor("b").await);
    pool.set(PoolSettings { cool_down_ms: HOUR_MS, ..PoolSettings::default() }).await;
    for name in ["h1", "h2", "h3"] {
        pool.add(name, &[]).await;
    }
    let of = |key: &str, session: &super::Actor| NewRequest {
        session: Some(session.id.clone()),
        hold_ms: None,
        ..wanting(key)
    };
    let lost = pool.take(of("1", &a)).await;
    let kept = pool.take(of("2", &b)).await;
    let short = pool.take(NewRequest { hold_ms: Some(1), ..wanting("3") }).await;
    let orphan = pool.take(of("4", &a)).await;
    let hasty = pool.take(NewRequest { max_wait_ms: Some(1), ..wanting("5") }).await;
    let patient = pool.take(wanting("6")).await;
    assert_eq!(lost.deadline_ms, None);
    a.store.end(&a.id).await.unwrap();
    assert_eq!(keeper.tend_until(|sum| sum.freed >= 2).await.freed, 2);
    while pool.seen(hasty.id).await.state == RequestState::Waiting {
        keeper.tend().await;
    }
    for (view, state) in [
        (&lost, RequestState::Expired),
        (&kept, RequestState::Granted),
        (&short, RequestState::Expired),
        (&orphan, RequestState::Expired),
        (&hasty, RequestState::Expired),
        (&patient, RequestState::Waiting),
    ] {
        assert_eq!(pool.seen(view.id).await.state, state, "{view:?}");
    }
    assert!(!pool.handle(&lost, Handle::Extend(HOUR_MS)).await, "what was lost is lost");
    let view = pool.view().await;
    assert_eq!(view.resources.iter().filter(|it| it.cooling_until_ms.is_some()).count(), 2, "they rest");
    assert_eq!(keeper.tend().await.freed, 0);
}

/// A request that is over is forgotten in time.
pub async fn what_is_over_is_forgotten(subject: &Subject) {
    let (pool, keeper) = (Pool::of(subject).await, Keeper::of(subject).await);
    pool.set(PoolSettings { keep_ms: 0, ..PoolSettings::default() }).await;
    pool.add("h1", &[]).await;
    let held = pool.take(wanting("1")).await;
    let waiting = pool.take(wanting("2")).await;
    pool.release(&held).await;
    while pool.store.pool_request(&pool.key.namespace, held.id).await.unwrap().is_some() {
        keeper.tend().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(pool.seen(waiting.id).await.state, RequestState::Waiting);
}

/// Who waits hears of it.
pub async fn what_is_handed_out_or_given_back_is_heard(subject: &Subject) {
    let (pool, actor) = (Pool::of(subject).await, subject.actor("a").await);
    let mut hints = listening(&actor).await;
    pool.add("h1", &[]).await;
    let held = pool.take(wanting("1")).await;
    hints_until(&mut hints, &Wake::Pool(pool.key.clone())).await;
    pool.release(&held).await;
    hints_until(&mut hints, &Wake::Pool(pool.key.clone())).await;
}
