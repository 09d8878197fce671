//! Sessions, leases and elections: the store's own, and those that another one granted.

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
                adoption::an_adoption_does_not_lower_the_stores_own_tokens,
                adoption::of_concurrent_adoptions_the_last_grant_stays,
                adoption::an_expiry_frees_what_was_adopted,
            }
        }
    };
}
