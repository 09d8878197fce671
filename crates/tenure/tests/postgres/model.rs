//! The store and the reference model get the same calls and must return the same results.

use std::time::Duration;

use tenure::store::postgres::PostgresStore;
use tenure_core::model::elections::Elections;
use tenure_core::port::{
    Candidacy, ElectionAdmin, ElectionStore, ElectionView, ElectionsObservation, ExpireSessionRequest,
    LeaderRequest, LeaderRequestKind, ObserveScope, OpenSessionRequest, Pause, ReleaseLeaseRequest,
    StartReason, TakeLeaseRequest, TakeoverMode, Term,
};
use tenure_core::{ElectionKey, Entropy, SessionId, SplitMix, Token};

use crate::support::*;

const SESSIONS: [&str; 5] = ["a", "B", "c", "it's \\ $1", "é"];
const ELECTIONS: [&str; 3] = ["x", "Y", "z-1"];

struct Pair {
    store: PostgresStore,
    model: Elections,
    entropy: SplitMix,
    steps: u64,
}

impl Pair {
    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }

    fn below(&mut self, n: u64) -> u64 {
        self.entropy.next_u64() % n
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of a few sessions. Ids are not reused, so that the walk continues with new sessions as old ones end.
    fn session(&mut self) -> SessionId {
        let (name, generation) = (self.pick(&SESSIONS), self.steps / 40 + self.below(2));
        id(&format!("{name}{generation}"))
    }

    fn key(&mut self) -> ElectionKey {
        election(self.pick(&ELECTIONS))
    }

    /// The current state of a lease, or sometimes a wrong one.
    fn expected_lease(&mut self, key: &ElectionKey) -> (u32, Token, Option<SessionId>) {
        let slot = self.below(3) as u32;
        let view = self.model.election(key);
        let lease = view.as_ref().and_then(|view| view.leases.iter().find(|lease| lease.slot == slot));
        let token = lease.map_or(Token::ZERO, |lease| lease.token);
        let holder = lease.and_then(|lease| lease.holder.clone()).map(|holder| holder.id);
        let wrong_token = self.chance(5);
        let wrong_holder = self.chance(5);
        (
            slot,
            if wrong_token { token.next(1) } else { token },
            if wrong_holder { Some(self.session()) } else { holder },
        )
    }

    fn expire(&mut self, session: SessionId) -> ExpireSessionRequest {
        let count = self.model.session(&session).map_or(0, |session| session.heartbeat_count)
            + u64::from(self.chance(10));
        ExpireSessionRequest {
            session,
            epoch: 1 + u32::from(self.chance(5)),
            heartbeat_count: self.chance(80).then_some(count),
        }
    }

    async fn step(&mut self) {
        let (session, key) = (self.session(), self.key());
        match self.below(16) {
            0..=1 => {
                let new = OpenSessionRequest {
                    id: session,
                    name: "n".into(),
                    lease: Duration::from_secs(5),
                    takeover: TakeoverMode::Lease,
                    owner: None,
                };
                assert_eq!(self.store.open_session(&new).await.unwrap(), self.model.open_session(&new, 0));
            }
            2..=3 => {
                assert_eq!(self.store.heartbeat(&session).await.unwrap(), self.model.heartbeat(&session, 0))
            }
            4 if self.chance(40) => {
                self.store.end_session(&session).await.unwrap();
                self.model.end_session(&session, 0);
            }
            5 if self.chance(40) => {
                let expire = self.expire(session.clone());
                self.store.expire_session(&expire).await.unwrap();
                self.model.expire_session(&expire, 0);
            }
            4..=7 => {
                let candidacy = Candidacy {
                    session,
                    election: key,
                    name: self.pick(&["id", "it's", "\\'"]).into(),
                    priority: self.below(7) as i32 - 3,
                    observer: self.chance(10),
                    capabilities: vec!["gpu\"'".into()],
                    required_capabilities: if self.chance(50) { vec![] } else { vec!["gpu\"'".into()] },
                    slots: if self.chance(90) { 2 } else { 1 + self.below(3) as u32 },
                    metadata: [("zone'".to_owned(), "$1 \\ \u{1f600}".to_owned())].into(),
                };
                assert_eq!(
                    self.store.join_election(&candidacy).await.unwrap(),
                    self.model.join_election(&candidacy, 0)
                );
            }
            8 => {
                self.store.leave_election(&session, &key).await.unwrap();
                self.model.leave_election(&session, &key);
            }
            9..=12 => {
                let (slot, token, holder) = self.expected_lease(&key);
                let dead = holder.clone().filter(|_| self.chance(60));
                let expire = dead.map(|dead| self.expire(dead));
                let epoch = 1 + u32::from(self.chance(5));
                let take = TakeLeaseRequest { session, epoch, election: key, slot, token, holder, expire };
                assert_eq!(
                    self.store.take_lease(&take).await.unwrap(),
                    self.model.take_lease(&take, 0),
                    "{take:?}"
                );
            }
            13 => {
                let (slot, token, holder) = self.expected_lease(&key);
                let start_reason = self.pick(&[
                    StartReason::Release,
                    StartReason::Transfer,
                    StartReason::Resign,
                    StartReason::Preempt,
                ]);
                let successor = self.chance(50).then(|| self.session());
                let session = holder.unwrap_or(session);
                let leave = self.chance(30);
                let release = ReleaseLeaseRequest {
                    session,
                    election: key,
                    slot,
                    token,
                    successor,
                    start_reason,
                    leave,
                };
                self.store.release_lease(&release).await.unwrap();
                self.model.release_lease(&release, 0);
            }
            14 => {
                let (slot, token, _) = self.expected_lease(&key);
                let kind = self.pick(&[
                    LeaderRequestKind::Resign,
                    LeaderRequestKind::Preempt(session.clone()),
                    LeaderRequestKind::Transfer(session.clone()),
                    LeaderRequestKind::Pause,
                ]);
                let request = LeaderRequest { election: key, slot, token, kind, requested_by: "o'p".into() };
                assert_eq!(
                    self.store.request_leader(&request).await.unwrap(),
                    self.model.request_leader(&request)
                );
            }
            _ => {
                let pause =
                    Pause { paused_by: "op".into(), reason: "why'".into(), paused_at_ms: 1_700_000_000_123 };
                let pause = self.chance(40).then_some(&pause);
                assert_eq!(
                    self.store.set_election_paused(&key, pause).await.ok(),
                    self.model.set_election_paused(&key, pause)
                );
            }
        }
        self.compare().await;
    }

    async fn compare(&mut self) {
        assert_eq!(views(self.store.elections(None).await.unwrap()), views(self.model.elections(None)));
        let (session, key) = (self.session(), self.key());
        let scope = self.pick(&[
            ObserveScope::Contested,
            ObserveScope::Own,
            ObserveScope::Listed(vec![key.clone(), key.clone()]),
        ]);
        let seen = self.store.observe(&session, &scope).await.unwrap();
        assert_eq!(observation(seen), observation(self.model.observe(&session, &scope)), "{scope:?}");
        assert_eq!(
            terms(self.store.term_history(&key, 100).await.unwrap()),
            terms(self.model.term_history(&key, 100))
        );
        assert_eq!(
            self.store.election(&key).await.unwrap().map(|view| view.slots),
            self.model.election(&key).map(|view| view.slots)
        );
    }
}

/// Removes times, which differ between the store and the model.
fn views(mut views: Vec<ElectionView>) -> Vec<ElectionView> {
    for view in &mut views {
        for lease in &mut view.leases {
            lease.granted_at_ms = lease.granted_at_ms.map(|_| 0);
            lease.holder.iter_mut().for_each(|holder| holder.heartbeat_at_ms = 0);
        }
        for candidate in &mut view.candidates {
            (candidate.joined_at_ms, candidate.session.heartbeat_at_ms) = (0, 0);
        }
    }
    views
}

fn observation(seen: ElectionsObservation) -> ElectionsObservation {
    ElectionsObservation { elections: views(seen.elections), ..seen }
}

fn terms(mut terms: Vec<Term>) -> Vec<Term> {
    for term in &mut terms {
        (term.started_at_ms, term.ended_at_ms) = (0, term.ended_at_ms.map(|_| 0));
    }
    terms
}

#[tokio::test(flavor = "multi_thread")]
async fn a_random_walk_agrees_with_the_model() {
    let seed = std::env::var("TENURE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(8368_u64);
    for seed in seed..seed + 6 {
        println!("TENURE_SEED={seed}");
        let (_database, store) = fresh().await;
        let mut model = Elections::default();
        // The first epoch of a server is 1.
        model.promote();
        let mut pair = Pair { store, model, entropy: SplitMix::new(seed), steps: 0 };
        for _ in 0..150 {
            pair.step().await;
            pair.steps += 1;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_terms_are_kept() {
    let (database, store) = fresh().await;
    let key = election("e");
    let mut token = leading(&store, "a", &key).await;
    for _ in 0..120 {
        let release = ReleaseLeaseRequest {
            session: id("a"),
            election: key.clone(),
            slot: 0,
            token,
            successor: None,
            start_reason: StartReason::Release,
            leave: false,
        };
        store.release_lease(&release).await.unwrap();
        token = store.take_lease(&free_take("a", &key, token)).await.unwrap().unwrap();
    }
    let history = store.term_history(&key, 1000).await.unwrap();
    assert_eq!((history.len(), history[0].token), (100, token));
    assert!(history.windows(2).all(|pair| pair[0].token > pair[1].token));
    // Old terms are pruned from time to time.
    let rows: usize = database.psql("SELECT count(*) FROM tenure.terms").unwrap().trim().parse().unwrap();
    assert!((100..120).contains(&rows), "{rows}");
}
