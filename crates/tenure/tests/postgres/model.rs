//! The store and the reference, side by side: the same calls, the same answers.

use std::time::Duration;

use tenure::backend::postgres::Postgres;
use tenure_core::book::Book;
use tenure_core::port::{
    Ask, AskKind, Candidacy, Directory, ElectionView, Expire, NewSession, Observation, Pause, Release, Scope,
    Store, Take, Takeover, Term, Via,
};
use tenure_core::{ElectionKey, Entropy, SessionId, SplitMix, Token};

use crate::support::*;

const SESSIONS: [&str; 5] = ["a", "B", "c", "it's \\ $1", "é"];
const ELECTIONS: [&str; 3] = ["x", "Y", "z-1"];

struct Pair {
    store: Postgres,
    book: Book,
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

    /// One of a few at a time. An identity never comes back, so that the walk goes on to new ones as the old die.
    fn session(&mut self) -> SessionId {
        let (name, generation) = (self.pick(&SESSIONS), self.steps / 40 + self.below(2));
        id(&format!("{name}{generation}"))
    }

    fn key(&mut self) -> ElectionKey {
        election(self.pick(&ELECTIONS))
    }

    /// What is there, or sometimes something else.
    fn seen(&mut self, key: &ElectionKey) -> (u32, Token, Option<SessionId>) {
        let slot = self.below(3) as u32;
        let view = self.book.election(key);
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

    fn expire(&mut self, session: SessionId) -> Expire {
        let beat = self.book.session(&session).map_or(0, |session| session.beat) + u64::from(self.chance(10));
        Expire { session, epoch: 1 + u32::from(self.chance(5)), beat: self.chance(80).then_some(beat) }
    }

    async fn step(&mut self) {
        let (session, key) = (self.session(), self.key());
        match self.below(16) {
            0..=1 => {
                let new = NewSession {
                    id: session,
                    name: "n".into(),
                    lease: Duration::from_secs(5),
                    takeover: Takeover::Lease,
                    owner: None,
                };
                assert_eq!(self.store.open(&new).await.unwrap(), self.book.open(&new, 0));
            }
            2..=3 => assert_eq!(self.store.beat(&session).await.unwrap(), self.book.beat(&session, 0)),
            4 if self.chance(40) => {
                self.store.end(&session).await.unwrap();
                self.book.end(&session, 0);
            }
            5 if self.chance(40) => {
                let expire = self.expire(session.clone());
                self.store.expire(&expire).await.unwrap();
                self.book.expire(&expire, 0);
            }
            4..=7 => {
                let candidacy = Candidacy {
                    session,
                    election: key,
                    id: self.pick(&["id", "it's", "\\'"]).into(),
                    priority: self.below(7) as i32 - 3,
                    observer: self.chance(10),
                    capabilities: vec!["gpu\"'".into()],
                    requires: if self.chance(50) { vec![] } else { vec!["gpu\"'".into()] },
                    slots: if self.chance(90) { 2 } else { 1 + self.below(3) as u32 },
                    metadata: [("zone'".to_owned(), "$1 \\ \u{1f600}".to_owned())].into(),
                };
                assert_eq!(self.store.join(&candidacy).await.unwrap(), self.book.join(&candidacy, 0));
            }
            8 => {
                self.store.leave(&session, &key).await.unwrap();
                self.book.leave(&session, &key);
            }
            9..=12 => {
                let (slot, token, holder) = self.seen(&key);
                let dead = holder.clone().filter(|_| self.chance(60));
                let expire = dead.map(|dead| self.expire(dead));
                let epoch = 1 + u32::from(self.chance(5));
                let take = Take { session, epoch, election: key, slot, token, holder, expire };
                assert_eq!(self.store.take(&take).await.unwrap(), self.book.take(&take, 0), "{take:?}");
            }
            13 => {
                let (slot, token, holder) = self.seen(&key);
                let via = self.pick(&[Via::Release, Via::Transfer, Via::Resign, Via::Preempt]);
                let successor = self.chance(50).then(|| self.session());
                let session = holder.unwrap_or(session);
                let leave = self.chance(30);
                let release = Release { session, election: key, slot, token, successor, via, leave };
                self.store.release(&release).await.unwrap();
                self.book.release(&release, 0);
            }
            14 => {
                let (slot, token, _) = self.seen(&key);
                let kind = self.pick(&[
                    AskKind::Resign,
                    AskKind::Preempt(session.clone()),
                    AskKind::Transfer(session.clone()),
                    AskKind::Pause,
                ]);
                let ask = Ask { election: key, slot, token, kind, by: "o'p".into() };
                assert_eq!(self.store.ask(&ask).await.unwrap(), self.book.ask(&ask));
            }
            _ => {
                let pause = Pause { by: "op".into(), reason: "why'".into(), at_ms: 1_700_000_000_123 };
                let pause = self.chance(40).then_some(&pause);
                assert_eq!(self.store.set_paused(&key, pause).await.ok(), self.book.set_paused(&key, pause));
            }
        }
        self.compare().await;
    }

    async fn compare(&mut self) {
        assert_eq!(views(self.store.elections(None).await.unwrap()), views(self.book.elections(None)));
        let (session, key) = (self.session(), self.key());
        let scope =
            self.pick(&[Scope::Contested, Scope::Standing, Scope::Only(vec![key.clone(), key.clone()])]);
        let seen = self.store.observe(&session, &scope).await.unwrap();
        assert_eq!(observation(seen), observation(self.book.observe(&session, &scope)), "{scope:?}");
        assert_eq!(terms(self.store.history(&key, 100).await.unwrap()), terms(self.book.history(&key, 100)));
        assert_eq!(
            self.store.election(&key).await.unwrap().map(|view| view.slots),
            self.book.election(&key).map(|view| view.slots)
        );
    }
}

/// Without the times, which are for people.
fn views(mut views: Vec<ElectionView>) -> Vec<ElectionView> {
    for view in &mut views {
        for lease in &mut view.leases {
            lease.granted_at_ms = lease.granted_at_ms.map(|_| 0);
            lease.holder.iter_mut().for_each(|holder| holder.beat_at_ms = 0);
        }
        for candidate in &mut view.candidates {
            (candidate.joined_at_ms, candidate.session.beat_at_ms) = (0, 0);
        }
    }
    views
}

fn observation(seen: Observation) -> Observation {
    Observation { elections: views(seen.elections), ..seen }
}

fn terms(mut terms: Vec<Term>) -> Vec<Term> {
    for term in &mut terms {
        (term.began_at_ms, term.ended_at_ms) = (0, term.ended_at_ms.map(|_| 0));
    }
    terms
}

#[tokio::test(flavor = "multi_thread")]
async fn a_random_walk_agrees_with_the_reference() {
    let seed = std::env::var("TENURE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(8368_u64);
    for seed in seed..seed + 6 {
        println!("TENURE_SEED={seed}");
        let (_database, store) = fresh().await;
        let mut book = Book::default();
        // A server's first epoch is 1.
        book.promote();
        let mut pair = Pair { store, book, entropy: SplitMix::new(seed), steps: 0 };
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
        let release = Release {
            session: id("a"),
            election: key.clone(),
            slot: 0,
            token,
            successor: None,
            via: Via::Release,
            leave: false,
        };
        store.release(&release).await.unwrap();
        token = store.take(&free_take("a", &key, token)).await.unwrap().unwrap();
    }
    let history = store.history(&key, 1000).await.unwrap();
    assert_eq!((history.len(), history[0].token), (100, token));
    assert!(history.windows(2).all(|pair| pair[0].token > pair[1].token));
    // It is pruned now and then.
    let rows: usize = database.psql("SELECT count(*) FROM tenure.terms").unwrap().trim().parse().unwrap();
    assert!((100..120).contains(&rows), "{rows}");
}
