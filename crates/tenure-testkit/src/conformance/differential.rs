//! The book and the store, call by call.
//!
//! A seed makes a sequence of calls; each goes to the store and to a [`Book`], and the answers must be equal but for wall
//! times and the order of asks. What a call left behind is compared too. `TENURE_SEED` chooses another seed.

use std::sync::Arc;

use tenure_core::book::Book;
use tenure_core::port::{
    Ask, AskKind, Backend, Candidacy, ElectionView, Expire, Observation, Pause, Pulse, Release, Scope,
    SessionView, Take, Term, Via,
};
use tenure_core::{ElectionKey, Entropy, SessionId, SplitMix, Token};

use super::{Subject, candidacy, election, new_session, seeded};

/// How many calls a sequence has.
const CALLS: u32 = 600;

/// See the module.
pub async fn random_calls_are_answered_as_the_book_answers(subject: &Subject) {
    let (seed, dice) = seeded(0x7e_0001);
    let mut pair = Pair {
        store: subject.client().await,
        book: Book::default(),
        epoch: 0,
        dice,
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

struct Pair {
    store: Arc<dyn Backend>,
    book: Book,
    epoch: u32,
    dice: SplitMix,
    sessions: Vec<SessionId>,
    elections: Vec<ElectionKey>,
    seed: u64,
    call: u32,
}

impl Pair {
    async fn step(&mut self) {
        match self.dice.next_u64() % 100 {
            0..4 => self.open().await,
            4..14 => self.beat().await,
            14..16 => self.end().await,
            16..20 => self.expire().await,
            20..40 => self.join().await,
            40..44 => self.leave().await,
            44..54 => self.observe().await,
            54..78 => self.take().await,
            78..88 => self.release().await,
            88..95 => self.ask().await,
            _ => self.pause().await,
        }
    }

    fn same<T: PartialEq + std::fmt::Debug>(&self, what: &str, store: T, book: T) {
        assert_eq!(
            store, book,
            "left the store, right the book: {what}, call {}, TENURE_SEED={}",
            self.call, self.seed
        );
    }

    async fn open(&mut self) {
        let id = match self.chance(20) {
            true if !self.sessions.is_empty() => self.session(),
            _ => SessionId::generate(&mut self.dice),
        };
        let session = new_session(&id, "s");
        let answer = self.store.open(&session).await.unwrap();
        if let (true, Pulse::Alive { epoch, .. }) = (self.call == 0 && self.sessions.is_empty(), &answer) {
            // From here on, the book grants the tokens that a store of this epoch grants.
            (0..*epoch).for_each(|_| self.book.promote());
            self.epoch = *epoch;
        }
        let expected = self.book.open(&session, 0);
        self.same("open", pulse(answer), pulse(expected));
        // A few, so that they meet.
        self.sessions.retain(|other| *other != id);
        self.sessions.push(id);
        if self.sessions.len() > 6 {
            self.sessions.remove(0);
        }
    }

    async fn beat(&mut self) {
        let id = self.session();
        let answer = self.store.beat(&id).await.unwrap();
        let expected = self.book.beat(&id, 0);
        self.same("beat", pulse(answer), pulse(expected));
    }

    async fn end(&mut self) {
        let id = self.session();
        self.store.end(&id).await.unwrap();
        self.book.end(&id, 0);
    }

    async fn expire(&mut self) {
        let expire = self.some_expire();
        self.store.expire(&expire).await.unwrap();
        self.book.expire(&expire, 0);
    }

    async fn join(&mut self) {
        let (id, key) = (self.session(), self.election());
        let candidacy = Candidacy {
            id: format!("c{}", self.roll(3)),
            priority: i32::try_from(self.roll(5)).unwrap() - 2,
            observer: self.chance(20),
            capabilities: (0..self.roll(3)).map(|n| format!("can'{n}\"")).collect(),
            requires: (0..self.roll(2)).map(|n| format!("must{n}")).collect(),
            slots: if self.chance(80) { 2 } else { 1 + u32::try_from(self.roll(3)).unwrap() },
            metadata: (0..self.roll(3)).map(|n| (format!("k{n}"), "v\\\n".repeat(n as usize))).collect(),
            ..candidacy(&id, &key)
        };
        let answer = self.store.join(&candidacy).await.unwrap();
        let expected = self.book.join(&candidacy, 0);
        self.same("join", answer, expected);
    }

    async fn leave(&mut self) {
        let (id, key) = (self.session(), self.election());
        self.store.leave(&id, &key).await.unwrap();
        self.book.leave(&id, &key);
    }

    async fn observe(&mut self) {
        let (id, keys) = (self.session(), [self.election(), self.election()]);
        for scope in [Scope::Contested, Scope::Standing, Scope::Only(keys.into()), Scope::All] {
            let answer = self.store.observe(&id, &scope).await.unwrap();
            self.same("observe", observation(answer), observation(self.book.observe(&id, &scope)));
        }
    }

    async fn take(&mut self) {
        let (session, key, slot) = (self.session(), self.election(), u32::try_from(self.roll(3)).unwrap());
        let lease = self.book.election(&key).and_then(|view| view.leases.get(slot as usize).cloned());
        let (mut token, mut holder) = (Token::ZERO, None);
        let mut expire = self.chance(20).then(|| self.some_expire());
        if let Some(lease) = lease {
            token = lease.token;
            holder = lease.holder.as_ref().map(|holder| holder.id.clone());
            if let Some(seen) = lease.holder.filter(|_| self.chance(40)) {
                expire = Some(Expire {
                    session: seen.id,
                    epoch: self.epoch,
                    beat: Some(seen.beat - u64::from(seen.beat > 0 && self.chance(20))),
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
        let take = Take { session, epoch, election: key, slot, token, holder, expire };
        let answer = self.store.take(&take).await.unwrap();
        let expected = self.book.take(&take, 0);
        self.same("take", answer, expected);
    }

    async fn release(&mut self) {
        let (key, slot) = (self.election(), u32::try_from(self.roll(3)).unwrap());
        let lease = self.book.election(&key).and_then(|view| view.leases.get(slot as usize).cloned());
        let holder = lease.as_ref().and_then(|lease| lease.holder.as_ref()).map(|holder| holder.id.clone());
        let release = Release {
            session: holder.filter(|_| self.chance(80)).unwrap_or_else(|| self.session()),
            election: key,
            slot,
            token: lease.map(|lease| lease.token).filter(|_| self.chance(80)).unwrap_or_default(),
            successor: self.chance(50).then(|| self.session()),
            via: [Via::Release, Via::Preempt, Via::Transfer, Via::Resign]
                [usize::try_from(self.roll(4)).unwrap()],
            leave: self.chance(30),
        };
        self.store.release(&release).await.unwrap();
        self.book.release(&release, 0);
    }

    async fn ask(&mut self) {
        let (key, slot) = (self.election(), u32::try_from(self.roll(3)).unwrap());
        let lease = self.book.election(&key).and_then(|view| view.leases.get(slot as usize).cloned());
        let kind = match self.roll(4) {
            0 => AskKind::Resign,
            1 => AskKind::Transfer(self.session()),
            2 => AskKind::Pause,
            _ => AskKind::Preempt(self.session()),
        };
        let token = lease.map(|lease| lease.token).filter(|_| self.chance(90)).unwrap_or_default();
        let ask = Ask { election: key, slot, token, kind, by: format!("by{}", self.roll(9)) };
        let answer = self.store.ask(&ask).await.unwrap();
        let expected = self.book.ask(&ask);
        self.same("ask", answer, expected);
    }

    async fn pause(&mut self) {
        let key = self.election();
        let pause = self.chance(40).then(|| Pause { by: "ops".into(), reason: "r".into(), at_ms: 5 });
        let answer = self.store.set_paused(&key, pause.as_ref()).await.ok();
        let expected = self.book.set_paused(&key, pause.as_ref());
        self.same("set_paused", answer, expected);
    }

    /// Everything that can be seen.
    async fn compare(&mut self) {
        let views = self.store.elections(None).await.unwrap();
        self.same("elections", elections(views), elections(self.book.elections(None)));
        let ids = self.sessions.clone();
        let views = self.store.sessions(Some(&ids)).await.unwrap();
        self.same("sessions", sessions(views), sessions(self.book.sessions(Some(&ids))));
        let live = self.store.sessions(None).await.unwrap();
        self.same("live sessions", sessions(live), sessions(self.book.sessions(None)));
        if self.call.is_multiple_of(10) || self.call == CALLS {
            for key in &self.elections {
                let store = self.store.history(key, 1000).await.unwrap();
                self.same("history", terms(store), terms(self.book.history(key, 1000)));
                let one = self.store.election(key).await.unwrap().into_iter().collect();
                self.same(
                    "election",
                    elections(one),
                    elections(self.book.election(key).into_iter().collect()),
                );
            }
        }
    }

    fn some_expire(&mut self) -> Expire {
        let session = self.session();
        let beat = self.book.session(&session).map_or(0, |session| session.beat);
        let epoch = self.epoch + u32::from(self.chance(5));
        Expire { session, epoch, beat: Some(if self.chance(60) { beat } else { beat + 1 }) }
    }

    fn session(&mut self) -> SessionId {
        let n = self.dice.next_u64() as usize % self.sessions.len();
        self.sessions[n].clone()
    }

    fn election(&mut self) -> ElectionKey {
        let n = self.dice.next_u64() as usize % self.elections.len();
        self.elections[n].clone()
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.dice.next_u64() % sides
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }
}

fn pulse(pulse: Pulse) -> Option<Vec<Ask>> {
    match pulse {
        Pulse::Alive { mut asks, .. } => {
            asks.sort_by(|a, b| (&a.election, a.slot).cmp(&(&b.election, b.slot)));
            Some(asks)
        }
        Pulse::Gone => None,
    }
}

fn observation(seen: Observation) -> Observation {
    Observation { elections: elections(seen.elections), ..seen }
}

/// Without the times for people, which are the store's own, and the owner, which is the server's to say where there is
/// one.
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
    (session.beat_at_ms, session.owner) = (0, None);
}

fn terms(mut terms: Vec<Term>) -> Vec<Term> {
    for term in &mut terms {
        term.began_at_ms = 0;
        term.ended_at_ms = term.ended_at_ms.map(|_| 0);
    }
    terms
}
