//! What an onlooker lets those do who cannot watch for themselves.

use std::time::Duration;

use crate::book::Book;
use crate::lease::{Bar, Onlooker, Turn};
use crate::port::{AskKind, Candidacy, ElectionView, NewSession, Scope};
use crate::{ElectionKey, Moment, Name, SessionId, SplitMix, Token};

const LEASE: Duration = Duration::from_secs(10);

struct World {
    book: Book,
    onlooker: Onlooker,
    entropy: SplitMix,
    now: Moment,
    key: ElectionKey,
}

impl World {
    fn new() -> World {
        let key = ElectionKey::new(Name::default_namespace(), "nightly".parse().unwrap());
        let (book, onlooker) = (Book::default(), Onlooker::default());
        World { book, onlooker, entropy: SplitMix::new(7), now: Moment::ZERO, key }
    }

    fn candidate(&mut self, id: &str, priority: i32) -> SessionId {
        let session = SessionId::generate(&mut self.entropy);
        let new = NewSession {
            id: session.clone(),
            name: id.into(),
            lease: LEASE,
            takeover: Default::default(),
            owner: Some("somebody".into()),
        };
        self.book.open(&new, 0);
        let candidacy = Candidacy::new(session.clone(), self.key.clone());
        self.book.join(&Candidacy { id: id.into(), priority, ..candidacy }, 0);
        session
    }

    fn look(&mut self) -> ElectionView {
        let seen = self.book.observe(&SessionId::from_stored("nobody"), &Scope::All);
        self.onlooker.saw(&seen, self.now, true);
        seen.elections.into_iter().next().unwrap()
    }

    fn turn(&mut self, session: &SessionId) -> Turn {
        let view = self.look();
        self.onlooker.turn(&view, session, self.now, &mut self.entropy)
    }

    fn take(&mut self, session: &SessionId) -> Option<Token> {
        match self.turn(session) {
            Turn::Take(take) => self.book.take(&take, 0),
            turn => panic!("no take, but {turn:?}"),
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
    }
}

#[test]
fn a_free_lease_is_for_the_best_and_later_for_the_next() {
    let mut world = World::new();
    let (first, second) = (world.candidate("a", 10), world.candidate("b", 0));
    let Turn::Wait { until: Some(at), .. } = world.turn(&second) else { panic!("the better one goes first") };
    assert!(matches!(world.turn(&first), Turn::Take(_)));
    // A favourite that never asks costs a fraction of a second.
    world.now = at;
    assert!(world.take(&second).is_some());
    assert!(matches!(world.turn(&second), Turn::Holds { slot: 0, .. }));
}

#[test]
fn nothing_is_taken_from_a_holder_that_was_not_seen_silent_for_its_lease() {
    let mut world = World::new();
    let (holder, next) = (world.candidate("a", 0), world.candidate("b", 0));
    let token = world.take(&holder).unwrap();
    world.pass(LEASE * 3);
    // However long it may have been silent: this onlooker sees its beat for the first time in a while.
    world.onlooker = Onlooker::default();
    let Turn::Wait { until: Some(at), ask: None } = world.turn(&next) else {
        panic!("it was not watched yet")
    };
    assert!(at >= world.now + LEASE);
    world.pass(LEASE);
    world.book.beat(&holder, 0);
    assert!(matches!(world.turn(&next), Turn::Wait { .. }), "a beat starts the waiting anew");
    world.pass(LEASE + LEASE / 10);
    assert!(world.take(&next).unwrap() > token);
}

#[test]
fn a_beat_between_look_and_take_keeps_the_lease() {
    let mut world = World::new();
    let (holder, next) = (world.candidate("a", 0), world.candidate("b", 0));
    world.take(&holder).unwrap();
    world.look();
    world.pass(LEASE * 2);
    let Turn::Take(take) = world.turn(&next) else { panic!("it was silent for two leases") };
    world.book.beat(&holder, 0);
    assert_eq!(world.book.take(&take, 0), None);
}

#[test]
fn who_is_known_to_be_dead_is_not_waited_for() {
    let mut world = World::new();
    let (holder, next) = (world.candidate("a", 0), world.candidate("b", 0));
    world.take(&holder).unwrap();
    world.look();
    world.onlooker.died(holder);
    assert!(world.take(&next).is_some());
}

#[test]
fn a_higher_priority_asks_once_per_term() {
    let mut world = World::new();
    let holder = world.candidate("a", 0);
    let token = world.take(&holder).unwrap();
    let better = world.candidate("b", 10);
    let Turn::Wait { ask: Some(ask), .. } = world.turn(&better) else { panic!("it may ask") };
    assert_eq!((ask.token, ask.kind), (token, AskKind::Preempt(better.clone())));
    assert!(matches!(world.turn(&better), Turn::Wait { ask: None, .. }));
    world.pass(LEASE);
    assert!(matches!(world.turn(&better), Turn::Wait { ask: Some(_), .. }));
}

#[test]
fn after_a_promotion_nothing_is_taken_for_a_lease() {
    let mut world = World::new();
    let next = world.candidate("a", 0);
    world.look();
    world.book.promote();
    let Turn::Wait { until: Some(at), .. } = world.turn(&next) else { panic!("the last grant may be lost") };
    world.now = at;
    assert!(world.take(&next).is_some());
}

#[test]
fn who_cannot_lead_is_told_why() {
    let mut world = World::new();
    let candidate = world.candidate("a", 0);
    assert_eq!(world.turn(&SessionId::from_stored("nobody")), Turn::Barred(Bar::NotStanding));
    let observer = Candidacy { observer: true, ..Candidacy::new(candidate.clone(), world.key.clone()) };
    world.book.join(&observer, 0);
    assert_eq!(world.turn(&candidate), Turn::Barred(Bar::Observer));
    let incapable =
        Candidacy { requires: vec!["gpu".into()], ..Candidacy::new(candidate.clone(), world.key.clone()) };
    world.book.join(&incapable, 0);
    assert_eq!(world.turn(&candidate), Turn::Barred(Bar::Incapable));
}
