//! Suites for sessions, leases and elections, and for leases of other stores.

/// Creates one test per conformance function: `conformance_tests!(memory, subject().await)`. The expression is
/// evaluated in each test and yields a [`StoreUnderTest`](crate::conformance::StoreUnderTest).
///
/// Some functions test data that a server keeps for itself and that a client of a server cannot access:
/// `conformance_tests!(http, subject().await, through a server)` omits them. For a store that supports only elections
/// use `conformance_tests!(etcd, subject().await, elections only)`.
#[macro_export]
macro_rules! conformance_tests {
    ($name:ident, $subject:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::conformance_tests! { @all $subject }
            $crate::conformance_tests! { @tests $subject;
                sessions::an_owner_is_kept_and_shown,
                sessions::a_session_with_an_owner_cannot_use_connection_takeover,
                access::credentials_keep_all_fields_and_are_listed_newest_first,
                access::a_credential_is_never_reactivated_or_prolonged,
                access::a_stored_credential_keeps_its_name_verifier_and_grants,
                access::audit_entries_keep_all_fields,
                access::audit_entries_are_paged,
                access::audit_entries_are_filtered_by_namespace,
                access::old_entries_and_credentials_are_pruned,
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
                sessions::a_session_with_an_owner_cannot_use_connection_takeover,
            }
        }
    };
    (@all $subject:expr) => {
            $crate::conformance_tests! { @tests $subject;
                sessions::a_new_session_is_live_and_counts_heartbeats,
                sessions::a_session_id_is_used_once,
                sessions::an_unknown_session_counts_as_ended,
                sessions::an_ended_session_stays_ended,
                sessions::an_expired_session_stays_ended,
                sessions::a_session_with_a_newer_heartbeat_is_not_expired,
                sessions::an_end_releases_everything_and_removes_the_candidates,
                sessions::an_expiry_releases_everything_and_removes_the_candidates,
                sessions::an_expiry_affects_only_its_session,
                sessions::sessions_are_listed_with_and_without_candidates,
                leases::a_free_lease_is_taken,
                leases::a_held_lease_is_not_taken,
                leases::a_take_compares_token_and_holder,
                leases::a_silent_holder_is_taken_over,
                leases::a_holder_with_a_newer_heartbeat_is_not_taken_over,
                leases::a_dead_session_takes_nothing,
                leases::a_session_without_a_candidate_takes_nothing,
                leases::of_concurrent_takes_one_wins,
                leases::of_concurrent_takeovers_one_wins,
                leases::tokens_grow_over_everything,
                leases::tokens_grow_over_reopening,
                leases::a_release_under_the_wrong_token_does_nothing,
                leases::a_release_names_its_successor,
                leases::a_release_can_leave_the_election,
                leases::orphaned_leases_are_reported_to_their_session,
                elections::an_election_without_a_candidate_does_not_exist,
                elections::a_dead_session_joins_nothing,
                elections::joining_again_changes_the_candidate,
                elections::leaving_removes_only_the_candidate,
                elections::a_candidate_keeps_all_fields,
                elections::several_slots_have_several_leaders,
                elections::another_number_of_slots_is_rejected_while_candidates_exist,
                elections::a_removed_slot_keeps_its_token,
                elections::observe_scopes_cover_the_right_elections,
                elections::elections_are_listed_by_namespace,
                elections::term_history_has_start_and_end_reasons,
                elections::history_keeps_the_last_hundred_terms,
                leader_requests::a_leader_request_is_returned_until_the_release,
                leader_requests::a_leader_request_for_a_former_term_is_dropped,
                leader_requests::an_operators_request_replaces_a_candidates_request,
                leader_requests::every_kind_of_leader_request_keeps_all_fields,
                leader_requests::a_paused_election_grants_nothing,
                leader_requests::pausing_sends_a_request_to_every_leader,
                leader_requests::pausing_twice_reports_no_change,
                leader_requests::pausing_an_unknown_election_is_rejected,
                notifications::a_release_notifies_another_client,
                notifications::the_end_of_a_session_notifies_another_client,
                notifications::a_leader_request_notifies_the_leader,
                notifications::changes_of_an_election_are_notified,
                differential::random_calls_match_the_election_model,
            }
    };
    (@tests $subject:expr; $($file:ident :: $claim:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $claim() {
                let subject: $crate::conformance::StoreUnderTest = $subject;
                $crate::conformance::$file::$claim(&subject).await;
            }
        )*
    };
}

/// Creates one test per conformance function about leases that another store granted. For stores that support work.
#[macro_export]
macro_rules! adoption_conformance_tests {
    ($name:ident, $subject:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::conformance_tests! { @tests $subject;
                adoption::an_adopted_lease_is_held_under_its_token,
                adoption::an_older_grant_of_the_same_store_is_rejected,
                adoption::another_store_waits_until_the_lease_is_free,
                adoption::a_dead_session_adopts_nothing,
                adoption::own_and_adopted_leaders_exclude_each_other,
                adoption::an_adoption_does_not_lower_the_stores_own_tokens,
                adoption::of_concurrent_adoptions_the_greatest_token_wins,
                adoption::an_expiry_releases_adopted_leases,
            }
        }
    };
}
