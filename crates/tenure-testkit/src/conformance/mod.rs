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

pub mod adoption;
pub mod claims;
pub mod counted;
pub mod desk;
pub mod differential;
pub mod dozing;
pub mod elections;
pub mod events_aside;
pub mod events_commits;
pub mod events_differential;
pub mod events_groups;
pub mod events_hall;
pub mod events_people;
pub mod events_publish;
pub mod events_waking;
pub mod floor;
pub mod graphs;
pub mod leases;
pub mod limits;
pub mod modes;
pub mod office;
pub mod pools;
pub mod reasons;
pub mod recovery;
pub mod requests;
pub mod schedules_differential;
pub mod schedules_due;
pub mod schedules_firing;
pub mod schedules_hand;
pub mod schedules_people;
pub mod schedules_wall;
pub mod sessions;
pub mod settling;
pub mod tasks;
pub mod wakes;
pub mod work_differential;

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
/// hands: `conformance_tests!(http, subject().await, through a server)` leaves them out. A store that keeps nothing but elections is
/// held to these: `conformance_tests!(etcd, subject().await, elections only)`.
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
    ($name:ident, $subject:expr, elections only) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::conformance_tests! { @all $subject }
            $crate::conformance_tests! { @tests $subject;
                sessions::an_owner_is_kept_and_shown,
                sessions::an_owner_and_a_connection_do_not_go_together,
            }
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

/// Makes one test of each claim about tasks, workers and pools, as [`conformance_tests!`](crate::conformance_tests) does of
/// those about elections. `through a server` leaves out what a server does by itself: it leads, tends, and asks the leader
/// where a queue wants that.
#[macro_export]
macro_rules! claims_conformance_tests {
    ($name:ident, $subject:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::claims_conformance_tests! { @all $subject }
            $crate::conformance_tests! { @tests $subject;
                // A server bounds them itself.
                settling::the_longest_times_are_taken,
                limits::a_lost_claim_frees_its_key,
                limits::a_paused_exclusive_queue_hands_out_nothing,
                modes::the_mode_decides_who_hands_out,
                modes::order_is_strict_over_leaders,
                modes::order_is_strict_over_attempts,
                modes::a_leader_that_was_followed_hands_out_nothing,
                modes::a_switch_of_mode_waits_for_who_claims,
                modes::tasks_survive_a_switch_of_mode,
                modes::the_leaders_post_is_found_while_it_leads,
                recovery::who_does_not_lead_tends_nothing,
                recovery::a_claim_of_a_dead_session_returns_once,
                recovery::a_claim_past_its_deadline_returns_once,
                recovery::an_extended_claim_is_kept,
                recovery::what_was_done_before_it_was_taken_away_counts,
                recovery::a_step_of_the_stores_clock_expires_nothing,
                recovery::without_a_reckoning_nothing_goes_by_the_clock,
                recovery::the_last_attempt_that_is_lost_is_dead,
                recovery::what_waited_too_long_is_dead,
                recovery::what_was_claimed_in_time_has_not_waited_too_long,
                recovery::what_is_due_becomes_ready,
                recovery::finished_tasks_are_forgotten_in_time,
                recovery::a_parent_is_remembered_for_its_children,
                recovery::a_key_is_free_when_its_task_is_forgotten,
                recovery::what_is_much_is_tended_in_parts,
                recovery::of_concurrent_tendings_each_claim_returns_once,
                reasons::a_missing_leader_is_a_reason,
                dozing::whatever_lets_a_queue_go_on_wakes_a_sleeper,
                dozing::what_the_keeper_makes_ready_wakes_a_sleeper,
                pools::the_leader_matches_in_order_of_priority,
                pools::the_mode_decides_who_matches,
                pools::what_nobody_lives_for_goes_back,
                pools::what_is_over_is_forgotten,
                work_differential::random_work_goes_as_it_goes_in_memory,
            }
        }
    };
    ($name:ident, $subject:expr, through a server) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::claims_conformance_tests! { @all $subject }
        }
    };
    (@all $subject:expr) => {
        $crate::conformance_tests! { @tests $subject;
            tasks::a_submitted_task_is_kept_whole,
            tasks::priority_moves_a_task_by_minutes,
            tasks::a_queue_is_made_by_its_first_submission,
            tasks::results_come_in_the_order_of_the_tasks,
            tasks::the_same_key_is_the_same_task,
            tasks::a_key_is_of_its_queue,
            tasks::of_concurrent_submissions_with_one_key_one_counts,
            tasks::an_unknown_parent_is_refused_by_name,
            tasks::a_dead_or_cancelled_parent_is_refused,
            tasks::a_completed_parent_is_no_hindrance,
            tasks::what_is_for_later_is_scheduled,
            tasks::a_task_is_of_its_namespace,
            claims::an_unused_queue_hands_out_nothing,
            claims::what_is_handed_out_is_whole,
            claims::priority_goes_first_and_then_age,
            claims::never_more_than_asked_for,
            claims::seats_are_served_in_their_order,
            claims::concurrent_claims_never_share_a_task,
            claims::tokens_grow_over_claims,
            claims::a_worker_gets_only_kinds_that_it_knows,
            claims::a_worker_gets_only_what_its_tags_allow,
            claims::a_task_that_is_meant_for_somebody_waits_for_it,
            claims::who_is_preferred_is_asked_first,
            claims::a_preference_does_not_last,
            claims::a_session_that_is_gone_is_served_nothing,
            claims::what_is_not_due_is_not_handed_out,
            claims::what_falls_due_is_handed_out,
            claims::a_claim_ends_when_it_must,
            claims::a_session_is_told_what_it_has,
            claims::one_call_hands_out_what_can_be_carried,
            claims::inputs_weigh_as_well_as_payloads,
            settling::a_completed_task_keeps_its_output,
            settling::the_same_completion_may_be_said_again,
            settling::a_failed_task_is_tried_again,
            settling::a_task_keeps_its_place_over_attempts,
            settling::a_failure_for_good_is_the_end,
            settling::the_last_attempt_is_the_last,
            settling::the_last_failures_are_remembered,
            settling::a_released_task_was_not_tried,
            settling::progress_is_noted_and_extends_the_claim,
            settling::progress_does_not_outlast_the_longest_run,
            settling::a_stale_token_changes_nothing,
            settling::many_settlements_are_answered_in_their_order,
            settling::what_is_said_of_one_claim_is_heard_in_its_order,
            settling::of_concurrent_settlements_one_counts,
            graphs::children_wait_for_all_their_parents,
            graphs::outputs_are_inputs,
            graphs::a_dead_parent_takes_its_descendants_with_it,
            graphs::cancelling_a_task_cancels_what_waits_for_it,
            graphs::retrying_a_task_brings_back_what_waits_for_it,
            graphs::a_child_comes_back_only_when_all_parents_do,
            graphs::children_may_be_added_while_a_task_runs,
            graphs::a_child_waits_for_its_time_too,
            graphs::a_parent_that_is_named_twice_counts_once,
            graphs::parents_that_end_together_free_their_child,
            graphs::a_child_is_not_lost_while_its_parent_ends,
            graphs::a_graph_spans_queues,
            limits::a_concurrency_key_limits_what_is_claimed,
            limits::every_end_of_a_claim_frees_its_key,
            limits::the_next_of_a_key_is_the_first_of_each_sort,
            limits::a_concurrency_key_spans_queues,
            limits::a_concurrency_limit_holds_against_all,
            limits::a_queue_limits_what_is_claimed,
            limits::a_queues_limit_holds_against_all,
            limits::a_rate_is_kept,
            limits::a_paused_queue_hands_out_nothing,
            limits::a_queue_can_be_paused_before_its_first_task,
            limits::a_paused_namespace_hands_out_nothing,
            limits::a_worker_waits_for_its_approval,
            limits::what_is_held_back_keeps_its_place,
            desk::settings_are_kept_whole,
            desk::queues_are_listed_by_namespace,
            desk::a_queue_counts_its_tasks_by_state,
            desk::tasks_are_listed_as_asked_for,
            desk::a_listed_task_is_the_task,
            desk::whatever_is_not_over_can_be_cancelled,
            desk::what_is_over_can_be_retried,
            desk::what_is_under_way_is_not_retried,
            desk::finished_tasks_tell_how_long_they_took,
            desk::a_worker_is_shown_as_it_says,
            desk::a_worker_lives_with_its_session,
            desk::an_approval_is_shown,
            reasons::what_can_be_claimed_says_so,
            reasons::what_does_not_wait_says_so,
            reasons::a_pause_is_a_reason,
            reasons::a_time_to_come_is_a_reason,
            reasons::parents_are_a_reason,
            reasons::limits_are_reasons,
            reasons::missing_workers_are_reasons,
            reasons::a_missing_approval_is_a_reason,
            dozing::a_submission_wakes_a_sleeper_once,
            dozing::who_looks_and_finds_nothing_sleeps_on,
            dozing::who_finds_something_by_itself_sleeps_on,
            dozing::nobody_is_woken_for_nothing,
            dozing::whatever_makes_a_task_ready_wakes_a_sleeper,
            dozing::a_cancelled_claim_is_recalled,
            pools::a_pool_is_kept_whole,
            pools::a_request_gets_a_resource,
            pools::a_request_of_an_unknown_pool_is_refused,
            pools::the_same_key_is_the_same_request,
            pools::another_owner_is_refused,
            pools::a_request_gets_the_best_fit,
            pools::a_resource_that_is_off_is_not_handed_out,
            pools::a_resource_is_removed_when_it_is_free,
            pools::a_resource_that_comes_back_goes_on_with_its_token,
            pools::a_resource_is_given_back_under_its_token,
            pools::a_request_that_waits_can_be_called_off,
            pools::a_claim_of_a_resource_can_be_extended,
            pools::a_resource_rests_after_use,
            pools::a_paused_pool_hands_out_nothing,
            pools::concurrent_requests_never_share_a_resource,
            pools::what_is_handed_out_or_given_back_is_heard,
        }
    };
}

/// Makes one test of each claim about leases that another store granted, as [`conformance_tests!`](crate::conformance_tests) does of
/// those that the store grants itself. For stores that keep work.
#[macro_export]
macro_rules! adoption_conformance_tests {
    ($name:ident, $subject:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::conformance_tests! { @tests $subject;
                adoption::an_adopted_lease_is_held_under_its_token,
                adoption::an_older_grant_of_the_same_elector_is_refused,
                adoption::another_elector_waits_until_the_lease_is_free,
                adoption::a_dead_session_adopts_nothing,
                adoption::electing_here_and_elsewhere_exclude_each_other,
                adoption::of_concurrent_adoptions_the_last_grant_stays,
                adoption::an_expiry_frees_what_was_adopted,
            }
        }
    };
}

/// Makes one test of each claim about topics, groups and what is aside, as [`conformance_tests!`](crate::conformance_tests) does
/// of those about elections. `through a server` leaves out what a server does by itself: it keeps the store, and pushes.
#[macro_export]
macro_rules! events_conformance_tests {
    ($name:ident, $subject:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::events_conformance_tests! { @all $subject }
            $crate::conformance_tests! { @tests $subject;
                events_groups::old_events_are_forgotten_when_they_are_read,
                events_groups::unread_events_are_forgotten_if_that_is_wanted,
                events_groups::an_empty_slot_keeps_its_place,
                events_aside::what_is_aside_outlives_its_event,
                events_people::servers_are_told_where_to_push,
                events_differential::random_events_go_as_they_go_in_memory,
            }
        }
    };
    ($name:ident, $subject:expr, through a server) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::events_conformance_tests! { @all $subject }
        }
    };
    (@all $subject:expr) => {
        $crate::conformance_tests! { @tests $subject;
            events_publish::a_published_event_is_kept_whole,
            events_publish::published_events_are_told_in_their_order,
            events_publish::the_same_idempotency_key_is_the_same_event,
            events_publish::of_concurrent_publications_with_one_idempotency_key_one_counts,
            events_publish::an_unknown_topic_is_refused_by_name,
            events_publish::bad_events_are_refused_by_name,
            events_publish::events_without_a_key_are_spread,
            events_publish::a_key_is_read_in_the_order_of_its_publication,
            events_publish::what_is_published_together_is_read_together,
            events_publish::a_large_publication_is_cut,
            events_publish::every_slot_has_its_turn,
            events_publish::one_read_brings_what_can_be_carried,
            events_publish::concurrent_publications_lose_nothing,
            events_publish::a_topic_is_of_its_namespace,
            events_publish::bad_reads_are_refused,
            events_groups::a_group_is_made_by_its_first_member,
            events_groups::a_group_begins_where_it_wants,
            events_groups::who_can_not_join_is_refused,
            events_groups::joining_again_changes_the_name,
            events_groups::a_free_share_is_taken,
            events_groups::a_held_share_is_not_taken,
            events_groups::what_was_seen_of_a_share_must_still_be_so,
            events_groups::who_is_no_member_takes_nothing,
            events_groups::of_concurrent_takers_of_a_share_one_wins,
            events_groups::the_shares_of_a_dead_session_are_free,
            events_groups::who_leaves_frees_all_that_it_has,
            events_groups::a_share_is_freed_under_its_token,
            events_groups::tokens_of_a_share_only_grow,
            events_groups::moves_are_counted_by_name,
            events_groups::a_group_gathers_anew_after_it_was_empty,
            events_groups::members_share_the_slots_evenly,
            events_commits::a_commit_moves_the_position,
            events_commits::a_stale_commit_changes_nothing,
            events_commits::many_commits_are_answered_in_their_order,
            events_commits::a_commit_and_a_take_over_exclude_each_other,
            events_commits::what_is_done_beforehand_is_remembered,
            events_commits::groups_read_independently,
            events_commits::bad_commits_are_refused,
            events_aside::a_failed_event_is_kept_aside,
            events_aside::keys_are_aside_by_the_first_of_them,
            events_aside::those_behind_follow_in_order,
            events_aside::many_are_settled_together,
            events_aside::a_dead_event_parks_its_key,
            events_aside::the_dead_are_settled_by_no_member,
            events_aside::a_dead_event_can_be_replayed,
            events_aside::a_dead_event_can_be_dropped,
            events_aside::what_is_aside_is_listed_as_asked_for,
            events_aside::what_is_not_there_is_not_set_aside,
            events_aside::an_event_is_aside_once,
            events_aside::a_reset_forgets_what_is_read_again,
            events_people::a_topic_is_kept_whole,
            events_people::another_number_of_slots_is_refused,
            events_people::bad_settings_are_refused,
            events_people::topics_are_listed_by_namespace,
            events_people::a_topic_can_be_deleted,
            events_people::a_group_is_kept_whole,
            events_people::groups_are_listed_by_namespace,
            events_people::a_topic_has_so_many_groups_and_no_more,
            events_people::a_group_can_be_deleted,
            events_people::lag_is_shown_by_slot,
            events_people::a_long_lag_is_counted_in_part,
            events_people::a_group_can_be_reset,
            events_people::a_group_can_be_paused,
            events_people::a_push_is_shown_without_its_secret,
            events_people::a_topic_reads_only_its_own,
            events_waking::a_publication_wakes_a_sleeper_once,
            events_waking::nobody_is_woken_for_no_events,
            events_waking::who_reads_and_finds_nothing_sleeps_on,
            events_waking::changes_of_a_group_are_heard,
            events_waking::the_end_of_a_member_is_heard,
        }
    };
}

/// Makes one test of each claim about schedules, as [`conformance_tests!`](crate::conformance_tests) does of those about elections.
/// `through a server` leaves out what a server does by itself: it leads the scheduler's election, and fires.
#[macro_export]
macro_rules! schedules_conformance_tests {
    ($name:ident, $subject:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::schedules_conformance_tests! { @all $subject }
            $crate::conformance_tests! { @tests $subject;
                schedules_people::servers_are_told_the_secret,
                schedules_firing::who_does_not_lead_fires_nothing,
                schedules_firing::who_is_gone_fires_nothing,
                schedules_firing::a_firing_does_all_of_it,
                schedules_firing::an_event_is_published_with_its_tick,
                schedules_firing::the_same_firing_counts_once,
                schedules_firing::of_concurrent_firings_one_counts,
                schedules_firing::what_is_not_as_it_was_seen_does_not_fire,
                schedules_firing::what_was_decided_from_a_deleted_schedule_does_not_fire,
                schedules_firing::nobody_else_submits_under_the_key_of_a_tick,
                schedules_firing::what_can_not_be_is_refused_alone,
                schedules_firing::what_could_not_fire_is_tried_again,
                schedules_firing::a_new_definition_ends_the_trouble,
                schedules_firing::missed_ticks_go_by_their_policy,
                schedules_firing::millions_of_missed_ticks_are_one_range,
                schedules_firing::a_tick_that_was_decided_about_fires_never_again,
                schedules_firing::the_last_tick_is_the_last,
                schedules_firing::many_fire_in_one_call,
                schedules_firing::bad_firings_are_refused,
                schedules_firing::a_firing_wakes_who_waits_for_it,
                schedules_firing::ticks_without_an_effect_are_counted_apart,
                schedules_due::what_is_due_is_shown_in_order,
                schedules_due::what_is_paused_is_not_due,
                schedules_due::what_falls_due_is_shown,
                schedules_due::a_run_is_under_way_until_its_task_is_over,
                schedules_due::runs_that_may_not_overlap_do_not,
                schedules_due::runs_that_stand_in_line_run_one_by_one,
                schedules_due::runs_that_may_overlap_are_not_counted,
                schedules_due::runs_by_hand_are_counted,
                schedules_due::runs_by_hand_wait_for_those_under_way,
                schedules_differential::random_schedules_go_as_they_go_in_memory,
            }
        }
    };
    ($name:ident, $subject:expr, through a server) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::schedules_conformance_tests! { @all $subject }
        }
    };
    (@all $subject:expr) => {
        $crate::conformance_tests! { @tests $subject;
            schedules_people::a_schedule_is_kept_whole,
            schedules_people::what_makes_no_sense_is_refused,
            schedules_people::a_schedule_of_an_unknown_topic_is_refused,
            schedules_people::the_same_definition_changes_nothing,
            schedules_people::what_is_expected_must_be_so,
            schedules_people::of_concurrent_editors_one_wins,
            schedules_people::a_secret_is_kept_until_there_is_another,
            schedules_people::only_new_times_move_the_next_tick,
            schedules_people::an_interval_from_its_start_keeps_it,
            schedules_people::what_is_over_is_never_due,
            schedules_people::a_schedule_can_be_paused,
            schedules_people::schedules_are_listed_as_asked_for,
            schedules_people::a_schedule_can_be_deleted,
            schedules_people::a_schedule_is_of_its_namespace,
            schedules_people::schedules_are_counted_by_namespace,
            schedules_people::changes_of_schedules_are_heard,
            schedules_people::a_history_is_read_page_by_page,
            schedules_people::many_schedules_are_listed_whole,
            schedules_people::too_many_ticks_by_hand_are_refused,
            schedules_hand::a_trigger_fires_once_now,
            schedules_hand::every_trigger_is_another_tick,
            schedules_hand::a_payload_can_be_given,
            schedules_hand::past_ticks_fire_after_all,
            schedules_hand::ticks_to_come_do_not_fire_by_hand,
            schedules_hand::a_dry_run_changes_nothing,
            schedules_hand::of_concurrent_backfills_each_tick_fires_once,
            schedules_hand::concurrent_triggers_all_fire,
            schedules_hand::an_event_names_its_tick,
            schedules_hand::a_call_waits_for_a_server,
            schedules_hand::what_its_target_refuses_does_not_fire,
        }
    };
}
