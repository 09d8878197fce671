//! Fixtures: sessions and their requests.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::port::{
    Candidacy, ElectionView, ExpireSessionRequest, HeartbeatResponse, JoinElectionResponse, LeaderRequest,
    LeaderRequestKind, LeaseView, OpenSessionRequest, ReleaseLeaseRequest, StartReason, Store,
    TakeLeaseRequest, TakeoverMode,
};
use tenure_core::{ElectionKey, Entropy, Name, SessionId, SplitMix, Token};

/// A session and the client it was opened through.
pub struct TestSession {
    /// The client.
    pub store: Arc<dyn Store>,
    /// The session.
    pub id: SessionId,
    /// Epoch of the store.
    pub epoch: u32,
}

impl TestSession {
    /// Opens a new session.
    pub async fn open(store: Arc<dyn Store>, name: &str) -> TestSession {
        let id = new_id();
        let response = store.open_session(&new_session(&id, name)).await.expect("open");
        let HeartbeatResponse::Live { epoch, .. } = response else { panic!("a new session is live") };
        TestSession { store, id, epoch }
    }

    /// Joins an election with one slot.
    pub async fn join(&self, key: &ElectionKey) {
        self.join_with_slots(key, 1).await;
    }

    /// Joins an election.
    pub async fn join_with_slots(&self, key: &ElectionKey, slots: u32) {
        let candidacy = Candidacy { slots, ..candidacy(&self.id, key) };
        assert_eq!(self.store.join_election(&candidacy).await, Ok(JoinElectionResponse::Joined));
    }

    /// The lease of a slot as this client sees it.
    pub async fn lease(&self, key: &ElectionKey, slot: u32) -> LeaseView {
        self.view(key).await.leases[slot as usize].clone()
    }

    /// An election as this client sees it.
    pub async fn view(&self, key: &ElectionKey) -> ElectionView {
        self.store.election(key).await.expect("election").expect("the election had a candidate")
    }

    /// A request to take a slot as currently observed.
    pub async fn take_request(&self, key: &ElectionKey, slot: u32) -> TakeLeaseRequest {
        let lease = self.lease(key, slot).await;
        TakeLeaseRequest {
            session: self.id.clone(),
            epoch: self.epoch,
            election: key.clone(),
            slot,
            token: lease.token,
            holder: lease.holder.map(|holder| holder.id),
            expire: None,
        }
    }

    /// The same request that also expires the current holder.
    pub async fn takeover_request(&self, key: &ElectionKey, slot: u32) -> TakeLeaseRequest {
        let holder = self.lease(key, slot).await.holder.expect("a session holds it");
        let expire = Some(ExpireSessionRequest {
            session: holder.id,
            epoch: self.epoch,
            heartbeat_count: Some(holder.heartbeat_count),
        });
        TakeLeaseRequest { expire, ..self.take_request(key, slot).await }
    }

    /// Takes a free slot.
    pub async fn take(&self, key: &ElectionKey, slot: u32) -> Token {
        let bid = self.take_request(key, slot).await;
        self.store.take_lease(&bid).await.expect("take").expect("the lease is free")
    }

    /// Releases a slot.
    pub async fn release(&self, key: &ElectionKey, slot: u32, token: Token) {
        self.store.release_lease(&self.release_request(key, slot, token)).await.expect("release");
    }

    /// A request to release a slot.
    pub fn release_request(&self, key: &ElectionKey, slot: u32, token: Token) -> ReleaseLeaseRequest {
        ReleaseLeaseRequest {
            session: self.id.clone(),
            election: key.clone(),
            slot,
            token,
            successor: None,
            start_reason: StartReason::Release,
            leave: false,
        }
    }

    /// Leader requests to this session.
    pub async fn leader_requests(&self) -> Vec<LeaderRequest> {
        match self.store.heartbeat(&self.id).await.expect("beat") {
            HeartbeatResponse::Live { leader_requests: requests, .. } => requests,
            HeartbeatResponse::SessionEnded => panic!("the session has ended"),
        }
    }

    /// Whether the session is live.
    pub async fn is_live(&self) -> bool {
        matches!(self.store.heartbeat(&self.id).await.expect("beat"), HeartbeatResponse::Live { .. })
    }

    /// Expires another session with its current heartbeat count, found through its candidacy.
    pub async fn expire(&self, other: &TestSession, key: &ElectionKey) {
        let view = self.view(key).await;
        let beat = view.candidate(&other.id).expect("it is a candidate").session.heartbeat_count;
        let expire = ExpireSessionRequest {
            session: other.id.clone(),
            epoch: self.epoch,
            heartbeat_count: Some(beat),
        };
        self.store.expire_session(&expire).await.expect("expire");
    }
}

/// A new random id.
pub fn new_id() -> SessionId {
    SessionId::generate(&mut Random)
}

struct Random;

impl Entropy for Random {
    fn next_u64(&mut self) -> u64 {
        tenure::runtime::random()
    }
}

/// An election of the default namespace.
pub fn election(name: &str) -> ElectionKey {
    ElectionKey::new(Name::default_namespace(), name.parse().expect("a name"))
}

/// A request to open a session with a lease longer than any test.
pub fn new_session(id: &SessionId, name: &str) -> OpenSessionRequest {
    OpenSessionRequest {
        id: id.clone(),
        name: name.into(),
        lease: Duration::from_secs(3600),
        takeover: TakeoverMode::Lease,
        owner: None,
    }
}

/// A candidacy with default options.
pub fn candidacy(session: &SessionId, key: &ElectionKey) -> Candidacy {
    Candidacy { name: "candidate".into(), ..Candidacy::new(session.clone(), key.clone()) }
}

/// A request to the leader of slot 0.
pub fn leader_request(key: &ElectionKey, token: Token, kind: LeaderRequestKind) -> LeaderRequest {
    LeaderRequest { election: key.clone(), slot: 0, token, kind, requested_by: "alice".into() }
}

/// A generator for a seed: `TENURE_SEED` if it is set.
pub fn seeded(default: u64) -> (u64, SplitMix) {
    let seed = std::env::var("TENURE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(default);
    (seed, SplitMix::new(seed))
}
