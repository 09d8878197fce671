//! Comparison of a store with the election model, call by call.
//!
//! A seed determines a sequence of calls. Each goes to the store and to the [`Elections`] model, and the responses
//! must be equal except for wall-clock times and the order of requests. The resulting state is compared too.
//! `TENURE_SEED` selects another seed.

use std::sync::Arc;

use tenure_core::model::elections::Elections;
use tenure_core::port::{
    Candidacy, ElectionView, ElectionsObservation, ExpireSessionRequest, HeartbeatResponse, LeaderRequest,
    LeaderRequestKind, ObserveScope, Pause, ReleaseLeaseRequest, SessionView, StartReason, Store,
    TakeLeaseRequest, Term,
};
use tenure_core::{ElectionKey, Entropy, SessionId, SplitMix, Token};

use super::{StoreUnderTest, candidacy, election, new_session, seeded};

/// Number of calls.
const CALLS: u32 = 600;

/// See the module documentation.
pub async fn random_calls_match_the_election_model(subject: &StoreUnderTest) {
    let (seed, rng) = seeded(0x7e_0001);
    let mut pair = ElectionDifferential {
        store: subject.client().await,
        model: Elections::default(),
        epoch: 0,
        rng,
        sessions: Vec::new(),
        elections: ["a", "b", "c"].map(election).into(),
        seed,
        call: 0,
    };
    for _ in 0..3 {
        pair.open().await;
    }
    while pair.call < CALLS {
        pair.call += 1;
        pair.step().await;
        pair.compare().await;
    }
}

struct ElectionDifferential {
    store: Arc<dyn Store>,
    model: Elections,
    epoch: u32,
    rng: SplitMix,
    sessions: Vec<SessionId>,
    elections: Vec<ElectionKey>,
    seed: u64,
    call: u32,
}

impl ElectionDifferential {
    async fn step(&mut self) {
        match self.rng.next_u64() % 100 {
            0..4 => self.open().await,
            4..14 => self.heartbeat().await,
            14..16 => self.end().await,
            16..20 => self.expire().await,
            20..40 => self.join().await,
            40..44 => self.leave().await,
            44..54 => self.observe().await,
            54..78 => self.take().await,
            78..88 => self.release().await,
            88..95 => self.request_leader().await,
            _ => self.pause().await,
        }
    }

    fn same<T: PartialEq + std::fmt::Debug>(&self, what: &str, store: T, model: T) {
        assert_eq!(
            store, model,
            "left: store, right: model: {what}, call {}, TENURE_SEED={}",
            self.call, self.seed
        );
    }

    async fn open(&mut self) {
        let id = match self.chance(20) {
            true if !self.sessions.is_empty() => self.session(),
            _ => SessionId::generate(&mut self.rng),
        };
        let session = new_session(&id, "s");
        let response = self.store.open_session(&session).await.unwrap();
        if let (true, HeartbeatResponse::Live { epoch, .. }) =
            (self.call == 0 && self.sessions.is_empty(), &response)
        {
            // From here on the model grants the same tokens as a store in this epoch.
            (0..*epoch).for_each(|_| self.model.promote());
            self.epoch = *epoch;
        }
        let expected = self.model.open_session(&session, 0);
        self.same("open", leader_requests_of(response), leader_requests_of(expected));
        // Few sessions, so that they interact.
        self.sessions.retain(|other| *other != id);
        self.sessions.push(id);
        if self.sessions.len() > 6 {
            self.sessions.remove(0);
        }
    }

    async fn heartbeat(&mut self) {
        let id = self.session();
        let response = self.store.heartbeat(&id).await.unwrap();
        let expected = self.model.heartbeat(&id, 0);
        self.same("heartbeat", leader_requests_of(response), leader_requests_of(expected));
    }

    async fn end(&mut self) {
        let id = self.session();
        self.store.end_session(&id).await.unwrap();
        self.model.end_session(&id, 0);
    }

    async fn expire(&mut self) {
        let expire = self.some_expire();
        self.store.expire_session(&expire).await.unwrap();
        self.model.expire_session(&expire, 0);
    }

    async fn join(&mut self) {
        let (id, key) = (self.session(), self.election());
        let candidacy = Candidacy {
            name: format!("c{}", self.roll(3)),
            priority: i32::try_from(self.roll(5)).unwrap() - 2,
            observer: self.chance(20),
            capabilities: (0..self.roll(3)).map(|n| format!("can'{n}\"")).collect(),
            required_capabilities: (0..self.roll(2)).map(|n| format!("must{n}")).collect(),
            slots: if self.chance(80) { 2 } else { 1 + u32::try_from(self.roll(3)).unwrap() },
            metadata: (0..self.roll(3)).map(|n| (format!("k{n}"), "v\\\n".repeat(n as usize))).collect(),
            ..candidacy(&id, &key)
        };
        let response = self.store.join_election(&candidacy).await.unwrap();
        let expected = self.model.join_election(&candidacy, 0);
        self.same("join", response, expected);
    }

    async fn leave(&mut self) {
        let (id, key) = (self.session(), self.election());
        self.store.leave_election(&id, &key).await.unwrap();
        self.model.leave_election(&id, &key);
    }

    async fn observe(&mut self) {
        let (id, keys) = (self.session(), [self.election(), self.election()]);
        for scope in
            [ObserveScope::Contested, ObserveScope::Own, ObserveScope::Listed(keys.into()), ObserveScope::All]
        {
            let response = self.store.observe(&id, &scope).await.unwrap();
            self.same("observe", observation(response), observation(self.model.observe(&id, &scope)));
        }
    }

    async fn take(&mut self) {
        let (session, key, slot) = (self.session(), self.election(), u32::try_from(self.roll(3)).unwrap());
        let lease = self.model.election(&key).and_then(|view| view.leases.get(slot as usize).cloned());
        let (mut token, mut holder) = (Token::ZERO, None);
        let mut expire = self.chance(20).then(|| self.some_expire());
        if let Some(lease) = lease {
            token = lease.token;
            holder = lease.holder.as_ref().map(|holder| holder.id.clone());
            if let Some(observed) = lease.holder.filter(|_| self.chance(40)) {
                expire = Some(ExpireSessionRequest {
                    session: observed.id,
                    epoch: self.epoch,
                    heartbeat_count: Some(
                        observed.heartbeat_count - u64::from(observed.heartbeat_count > 0 && self.chance(20)),
                    ),
                });
            }
        }
        if self.chance(10) {
            token = Token::from_u64(self.roll(5));
        }
        if self.chance(10) {
            holder = Some(self.session());
        }
        let epoch = self.epoch + u32::from(self.chance(3));
        let take = TakeLeaseRequest { session, epoch, election: key, slot, token, holder, expire };
        let response = self.store.take_lease(&take).await.unwrap();
        let expected = self.model.take_lease(&take, 0);
        self.same("take", response, expected);
    }

    async fn release(&mut self) {
        let (key, slot) = (self.election(), u32::try_from(self.roll(3)).unwrap());
        let lease = self.model.election(&key).and_then(|view| view.leases.get(slot as usize).cloned());
        let holder = lease.as_ref().and_then(|lease| lease.holder.as_ref()).map(|holder| holder.id.clone());
        let release = ReleaseLeaseRequest {
            session: holder.filter(|_| self.chance(80)).unwrap_or_else(|| self.session()),
            election: key,
            slot,
            token: lease.map(|lease| lease.token).filter(|_| self.chance(80)).unwrap_or_default(),
            successor: self.chance(50).then(|| self.session()),
            start_reason: [
                StartReason::Release,
                StartReason::Preempt,
                StartReason::Transfer,
                StartReason::Resign,
            ][usize::try_from(self.roll(4)).unwrap()],
            leave: self.chance(30),
        };
        self.store.release_lease(&release).await.unwrap();
        self.model.release_lease(&release, 0);
    }

    async fn request_leader(&mut self) {
        let (key, slot) = (self.election(), u32::try_from(self.roll(3)).unwrap());
        let lease = self.model.election(&key).and_then(|view| view.leases.get(slot as usize).cloned());
        let kind = match self.roll(4) {
            0 => LeaderRequestKind::Resign,
            1 => LeaderRequestKind::Transfer(self.session()),
            2 => LeaderRequestKind::Pause,
            _ => LeaderRequestKind::Preempt(self.session()),
        };
        let token = lease.map(|lease| lease.token).filter(|_| self.chance(90)).unwrap_or_default();
        let leader_request =
            LeaderRequest { election: key, slot, token, kind, requested_by: format!("by{}", self.roll(9)) };
        let response = self.store.request_leader(&leader_request).await.unwrap();
        let expected = self.model.request_leader(&leader_request);
        self.same("request_leader", response, expected);
    }

    async fn pause(&mut self) {
        let key = self.election();
        let pause =
            self.chance(40).then(|| Pause { paused_by: "ops".into(), reason: "r".into(), paused_at_ms: 5 });
        let response = self.store.set_election_paused(&key, pause.as_ref()).await.ok();
        let expected = self.model.set_election_paused(&key, pause.as_ref());
        self.same("set_paused", response, expected);
    }

    /// Compares the complete visible state.
    async fn compare(&mut self) {
        let views = self.store.elections(None).await.unwrap();
        self.same("elections", elections(views), elections(self.model.elections(None)));
        let ids = self.sessions.clone();
        let views = self.store.sessions(Some(&ids)).await.unwrap();
        self.same("sessions", sessions(views), sessions(self.model.sessions(Some(&ids))));
        let live = self.store.sessions(None).await.unwrap();
        self.same("live sessions", sessions(live), sessions(self.model.sessions(None)));
        if self.call.is_multiple_of(10) || self.call == CALLS {
            for key in &self.elections {
                let store = self.store.term_history(key, 1000).await.unwrap();
                self.same("history", terms(store), terms(self.model.term_history(key, 1000)));
                let one = self.store.election(key).await.unwrap().into_iter().collect();
                self.same(
                    "election",
                    elections(one),
                    elections(self.model.election(key).into_iter().collect()),
                );
            }
        }
    }

    fn some_expire(&mut self) -> ExpireSessionRequest {
        let session = self.session();
        let heartbeat = self.model.session(&session).map_or(0, |session| session.heartbeat_count);
        let epoch = self.epoch + u32::from(self.chance(5));
        ExpireSessionRequest {
            session,
            epoch,
            heartbeat_count: Some(if self.chance(60) { heartbeat } else { heartbeat + 1 }),
        }
    }

    fn session(&mut self) -> SessionId {
        let n = self.rng.next_u64() as usize % self.sessions.len();
        self.sessions[n].clone()
    }

    fn election(&mut self) -> ElectionKey {
        let n = self.rng.next_u64() as usize % self.elections.len();
        self.elections[n].clone()
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.rng.next_u64() % sides
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }
}

fn leader_requests_of(response: HeartbeatResponse) -> Option<Vec<LeaderRequest>> {
    match response {
        HeartbeatResponse::Live { mut leader_requests, .. } => {
            leader_requests.sort_by(|a, b| (&a.election, a.slot).cmp(&(&b.election, b.slot)));
            Some(leader_requests)
        }
        HeartbeatResponse::SessionEnded => None,
    }
}

fn observation(observed: ElectionsObservation) -> ElectionsObservation {
    ElectionsObservation { elections: elections(observed.elections), ..observed }
}

/// Clears the displayed times, which each store sets itself, and the owner, which a server sets.
fn elections(mut views: Vec<ElectionView>) -> Vec<ElectionView> {
    for view in &mut views {
        for lease in &mut view.leases {
            lease.granted_at_ms = lease.granted_at_ms.map(|_| 0);
            lease.holder.as_mut().map(timeless);
        }
        for candidate in &mut view.candidates {
            candidate.joined_at_ms = 0;
            timeless(&mut candidate.session);
        }
    }
    views
}

fn sessions(mut views: Vec<SessionView>) -> Vec<SessionView> {
    views.iter_mut().for_each(timeless);
    views
}

fn timeless(session: &mut SessionView) {
    (session.heartbeat_at_ms, session.owner) = (0, None);
}

fn terms(mut terms: Vec<Term>) -> Vec<Term> {
    for term in &mut terms {
        term.started_at_ms = 0;
        term.ended_at_ms = term.ended_at_ms.map(|_| 0);
    }
    terms
}
