//! One suite for every store: what [`Book`](tenure_core::book::Book) does, each backend must do.
//!
//! A claim is a function that takes a [`Subject`], a store that is empty at first, and panics when the claim does not
//! hold. [`conformance_tests!`](crate::conformance_tests) makes one test of each:
//!
//! ```
//! use std::sync::Arc;
//! use tenure::backend::memory::Memory;
//! use tenure_testkit::conformance::{Subject, sessions};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let store = Memory::new();
//! let subject = Subject::new(move || {
//!     let store = store.clone();
//!     async move { Arc::new(store) as _ }
//! });
//! sessions::an_ended_session_never_comes_back(&subject).await;
//! # });
//! ```
//!
//! No claim waits for time to pass: a hint is awaited for as long as it takes, and nothing is concluded from silence.

pub mod differential;
pub mod elections;
pub mod leases;
pub mod office;
pub mod requests;
pub mod sessions;
pub mod wakes;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::port::{
    Ask, AskKind, Backend, Candidacy, ElectionView, Expire, Joined, LeaseView, NewSession, Pulse, Release,
    Take, Takeover, Via,
};
use tenure_core::{ElectionKey, Entropy, Name, SessionId, SplitMix, Token};

type Connecting = Pin<Box<dyn Future<Output = Arc<dyn Backend>> + Send>>;

/// A store under test, and how to become a further client of it.
pub struct Subject {
    connect: Box<dyn Fn() -> Connecting + Send + Sync>,
}

impl Subject {
    /// A store, empty at first, to which each call of `connect` opens another client.
    pub fn new<F>(connect: impl Fn() -> F + Send + Sync + 'static) -> Subject
    where
        F: Future<Output = Arc<dyn Backend>> + Send + 'static,
    {
        Subject { connect: Box::new(move || Box::pin(connect())) }
    }

    /// Another client.
    pub async fn client(&self) -> Arc<dyn Backend> {
        (self.connect)().await
    }

    /// Another client with a live session.
    pub async fn actor(&self, name: &str) -> Actor {
        Actor::open(self.client().await, name).await
    }
}

/// One session and the client it was opened through.
pub struct Actor {
    /// The client.
    pub store: Arc<dyn Backend>,
    /// The session.
    pub id: SessionId,
    /// The store's timeline.
    pub timeline: u32,
}

impl Actor {
    /// Opens a new session.
    pub async fn open(store: Arc<dyn Backend>, name: &str) -> Actor {
        let id = new_id();
        let pulse = store.open(&new_session(&id, name)).await.expect("open");
        let Pulse::Alive { timeline, .. } = pulse else { panic!("a new session lives") };
        Actor { store, id, timeline }
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
            timeline: self.timeline,
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
        let expire = Some(Expire { session: holder.id, timeline: self.timeline, beat: Some(holder.beat) });
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
        let expire = Expire { session: other.id.clone(), timeline: self.timeline, beat: Some(beat) };
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

/// Makes one test of each claim: `conformance_tests!(memory, subject().await)`, where the expression is evaluated anew in
/// each test and yields a [`Subject`](crate::conformance::Subject).
///
/// Some claims are about what a server keeps for itself, and a client of a server does not have these things in its own
/// hands: `conformance_tests!(http, subject().await, through a server)` leaves them out.
#[macro_export]
macro_rules! conformance_tests {
    ($name:ident, $subject:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::conformance_tests! { @all $subject }
            $crate::conformance_tests! { @tests $subject;
                sessions::an_owner_is_kept_and_shown,
                sessions::an_owner_and_a_connection_do_not_go_together,
                office::credentials_are_kept_whole_newest_first,
                office::a_credential_is_never_worth_more_than_it_was,
                office::a_known_credential_keeps_its_name_proof_and_grants,
                office::deeds_are_recorded_whole,
                office::deeds_are_read_page_by_page,
                office::deeds_of_a_namespace_are_only_those,
                office::what_is_long_past_is_forgotten,
            }
        }
    };
    ($name:ident, $subject:expr, through a server) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::conformance_tests! { @all $subject }
        }
    };
    (@all $subject:expr) => {
            $crate::conformance_tests! { @tests $subject;
                sessions::a_new_session_lives_and_beats,
                sessions::an_id_is_used_once,
                sessions::an_unknown_session_is_gone,
                sessions::an_ended_session_never_comes_back,
                sessions::an_expired_session_never_comes_back,
                sessions::a_session_that_beat_since_is_not_expired,
                sessions::an_end_frees_everything_and_removes_the_candidates,
                sessions::an_expiry_frees_everything_and_removes_the_candidates,
                sessions::an_expiry_leaves_the_others_alone,
                sessions::sessions_are_shown_whether_they_stand_or_not,
                leases::a_free_lease_is_taken,
                leases::a_held_lease_is_not_taken,
                leases::what_was_seen_must_still_be_so,
                leases::a_silent_holder_is_taken_over,
                leases::a_holder_that_beat_since_is_not_taken_over,
                leases::a_dead_session_takes_nothing,
                leases::who_does_not_stand_takes_nothing,
                leases::of_concurrent_takers_one_wins,
                leases::of_concurrent_take_overs_one_wins,
                leases::tokens_grow_over_everything,
                leases::tokens_grow_over_reopening,
                leases::a_release_under_the_wrong_token_does_nothing,
                leases::a_release_names_its_successor,
                leases::a_release_can_leave_too,
                leases::strays_are_seen_by_their_holder,
                elections::nobody_stood_for_an_unknown_election,
                elections::a_dead_session_joins_nothing,
                elections::joining_again_changes_how_one_stands,
                elections::leaving_removes_the_candidate_and_nothing_else,
                elections::everything_a_candidate_says_is_kept,
                elections::slots_make_a_semaphore,
                elections::another_number_of_slots_is_refused_while_others_stand,
                elections::a_slot_that_went_away_keeps_its_token,
                elections::scopes_cover_what_they_say,
                elections::elections_are_listed_by_namespace,
                elections::history_tells_how_terms_came_and_went,
                elections::history_keeps_the_last_hundred_terms,
                requests::an_ask_reaches_its_holder_until_it_releases,
                requests::an_ask_of_a_former_term_reaches_nobody,
                requests::an_operators_ask_replaces_a_candidates,
                requests::every_kind_of_ask_arrives_whole,
                requests::a_paused_election_grants_nothing,
                requests::pausing_asks_every_holder,
                requests::pausing_twice_is_said,
                requests::pausing_what_is_not_there_is_refused,
                wakes::a_release_is_heard_by_another_client,
                wakes::an_end_is_heard_by_another_client,
                wakes::an_ask_is_heard_by_its_holder,
                wakes::changes_of_an_election_are_heard,
                differential::random_calls_are_answered_as_the_book_answers,
            }
    };
    (@tests $subject:expr; $($file:ident :: $claim:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $claim() {
                let subject: $crate::conformance::Subject = $subject;
                $crate::conformance::$file::$claim(&subject).await;
            }
        )*
    };
}
