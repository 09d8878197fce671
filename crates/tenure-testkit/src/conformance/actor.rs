//! Sessions that say what a claim needs said, and what they say.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::port::{
    Ask, AskKind, Backend, Candidacy, ElectionView, Expire, Joined, LeaseView, NewSession, Pulse, Release,
    Take, Takeover, Via,
};
use tenure_core::{ElectionKey, Entropy, Name, SessionId, SplitMix, Token};

/// One session and the client it was opened through.
pub struct Actor {
    /// The client.
    pub store: Arc<dyn Backend>,
    /// The session.
    pub id: SessionId,
    /// The store's epoch.
    pub epoch: u32,
}

impl Actor {
    /// Opens a new session.
    pub async fn open(store: Arc<dyn Backend>, name: &str) -> Actor {
        let id = new_id();
        let pulse = store.open(&new_session(&id, name)).await.expect("open");
        let Pulse::Alive { epoch, .. } = pulse else { panic!("a new session lives") };
        Actor { store, id, epoch }
    }

    /// Stands for an election of one slot.
    pub async fn stand(&self, key: &ElectionKey) {
        self.stand_for(key, 1).await;
    }

    /// Stands for an election.
    pub async fn stand_for(&self, key: &ElectionKey, slots: u32) {
        let candidacy = Candidacy { slots, ..candidacy(&self.id, key) };
        assert_eq!(self.store.join(&candidacy).await, Ok(Joined::Standing));
    }

    /// The lease of a slot, as this client sees it.
    pub async fn lease(&self, key: &ElectionKey, slot: u32) -> LeaseView {
        self.view(key).await.leases[slot as usize].clone()
    }

    /// An election, as this client sees it.
    pub async fn view(&self, key: &ElectionKey) -> ElectionView {
        self.store.election(key).await.expect("election").expect("somebody stood for it")
    }

    /// What this session would say to take a slot as it is now.
    pub async fn bid(&self, key: &ElectionKey, slot: u32) -> Take {
        let lease = self.lease(key, slot).await;
        Take {
            session: self.id.clone(),
            epoch: self.epoch,
            election: key.clone(),
            slot,
            token: lease.token,
            holder: lease.holder.map(|holder| holder.id),
            expire: None,
        }
    }

    /// The same, declaring its holder dead at the beat that is seen now.
    pub async fn overbid(&self, key: &ElectionKey, slot: u32) -> Take {
        let holder = self.lease(key, slot).await.holder.expect("somebody holds it");
        let expire = Some(Expire { session: holder.id, epoch: self.epoch, beat: Some(holder.beat) });
        Take { expire, ..self.bid(key, slot).await }
    }

    /// Takes a slot that is free.
    pub async fn take(&self, key: &ElectionKey, slot: u32) -> Token {
        let bid = self.bid(key, slot).await;
        self.store.take(&bid).await.expect("take").expect("the lease is free")
    }

    /// Gives a slot back.
    pub async fn release(&self, key: &ElectionKey, slot: u32, token: Token) {
        self.store.release(&self.giving(key, slot, token)).await.expect("release");
    }

    /// What this session would say to give a slot back.
    pub fn giving(&self, key: &ElectionKey, slot: u32, token: Token) -> Release {
        Release {
            session: self.id.clone(),
            election: key.clone(),
            slot,
            token,
            successor: None,
            via: Via::Release,
            leave: false,
        }
    }

    /// What is asked of this session.
    pub async fn asks(&self) -> Vec<Ask> {
        match self.store.beat(&self.id).await.expect("beat") {
            Pulse::Alive { asks, .. } => asks,
            Pulse::Gone => panic!("the session is gone"),
        }
    }

    /// Whether the session lives.
    pub async fn lives(&self) -> bool {
        matches!(self.store.beat(&self.id).await.expect("beat"), Pulse::Alive { .. })
    }

    /// Declares a session dead at its beat as it is seen now, through a candidacy of it.
    pub async fn expire(&self, other: &Actor, key: &ElectionKey) {
        let view = self.view(key).await;
        let beat = view.candidate(&other.id).expect("it stands").session.beat;
        let expire = Expire { session: other.id.clone(), epoch: self.epoch, beat: Some(beat) };
        self.store.expire(&expire).await.expect("expire");
    }
}

/// An identity that was never used before.
pub fn new_id() -> SessionId {
    SessionId::generate(&mut Random)
}

struct Random;

impl Entropy for Random {
    fn next_u64(&mut self) -> u64 {
        tenure::runtime::random()
    }
}

/// An election in the default namespace.
pub fn election(name: &str) -> ElectionKey {
    ElectionKey::new(Name::default_namespace(), name.parse().expect("a name"))
}

/// A session to be opened, with a lease that no test waits out.
pub fn new_session(id: &SessionId, name: &str) -> NewSession {
    NewSession {
        id: id.clone(),
        name: name.into(),
        lease: Duration::from_secs(3600),
        takeover: Takeover::Lease,
        owner: None,
    }
}

/// An ordinary candidacy.
pub fn candidacy(session: &SessionId, key: &ElectionKey) -> Candidacy {
    Candidacy { id: "candidate".into(), ..Candidacy::new(session.clone(), key.clone()) }
}

/// An ask of the holder of slot 0.
pub fn ask(key: &ElectionKey, token: Token, kind: AskKind) -> Ask {
    Ask { election: key.clone(), slot: 0, token, kind, by: "somebody".into() }
}

/// A generator for a seed: `TENURE_SEED` if it is set.
pub fn seeded(default: u64) -> (u64, SplitMix) {
    let seed = std::env::var("TENURE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(default);
    (seed, SplitMix::new(seed))
}
