//! Topics, groups, and what is aside.

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
