//! Suite for topics, groups and parked events.

/// Creates one test per conformance function about topics, groups and parked events, as
/// [`conformance_tests!`](crate::conformance_tests) does for elections. `through a server` omits what a server does
/// itself: maintenance and webhooks.
#[macro_export]
macro_rules! events_conformance_tests {
    ($name:ident, $subject:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::events_conformance_tests! { @all $subject }
            $crate::conformance_tests! { @tests $subject;
                events_groups::old_events_are_pruned_after_they_are_read,
                events_groups::unread_events_are_pruned_after_their_retention,
                events_groups::an_empty_partition_keeps_its_offset,
                events_parked::a_parked_event_outlives_its_original,
                event_admin::servers_can_list_webhooks_with_secrets,
                events_differential::random_event_calls_match_the_model,
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
            events_publish::a_published_event_keeps_all_fields,
            events_publish::publish_receipts_are_in_request_order,
            events_publish::an_idempotency_key_identifies_an_event,
            events_publish::of_concurrent_publications_with_one_idempotency_key_one_is_stored,
            events_publish::an_unknown_topic_is_rejected_by_name,
            events_publish::invalid_events_are_rejected_by_name,
            events_publish::events_without_a_key_are_distributed_over_partitions,
            events_publish::a_key_is_read_in_the_order_of_its_publication,
            events_publish::a_commit_batch_is_read_together,
            events_publish::a_large_publication_is_split_into_batches,
            events_publish::every_partition_is_served_in_turn,
            events_publish::the_size_of_a_read_is_limited,
            events_publish::concurrent_publications_lose_nothing,
            events_publish::topics_of_two_namespaces_are_independent,
            events_publish::invalid_reads_are_rejected,
            events_groups::a_group_is_created_by_its_first_member,
            events_groups::a_group_starts_at_the_requested_offset,
            events_groups::an_invalid_join_is_rejected,
            events_groups::joining_again_changes_the_name,
            events_groups::a_free_partition_is_taken,
            events_groups::a_held_partition_is_not_taken,
            events_groups::a_take_of_a_partition_compares_its_token,
            events_groups::a_session_that_is_no_member_takes_no_partition,
            events_groups::of_concurrent_takes_of_a_partition_one_wins,
            events_groups::the_partitions_of_a_dead_session_are_free,
            events_groups::a_leaving_member_releases_its_partitions,
            events_groups::a_partition_is_released_under_its_token,
            events_groups::tokens_of_a_partition_lease_only_grow,
            events_groups::rebalanced_partitions_are_counted_by_name,
            events_groups::the_rebalance_delay_restarts_after_a_group_was_empty,
            events_groups::partitions_are_distributed_evenly,
            events_commits::a_commit_moves_the_offset,
            events_commits::a_stale_commit_changes_nothing,
            events_commits::commit_results_are_in_request_order,
            events_commits::a_commit_and_a_takeover_exclude_each_other,
            events_commits::events_processed_ahead_are_remembered,
            events_commits::groups_read_independently,
            events_commits::invalid_commits_are_rejected,
            events_parked::a_failed_event_is_parked,
            events_parked::parked_keys_are_listed_by_their_first_event,
            events_parked::waiting_events_follow_in_order,
            events_parked::several_parked_events_are_settled_together,
            events_parked::a_dead_letter_keeps_its_key_parked,
            events_parked::a_member_cannot_settle_a_dead_letter,
            events_parked::a_dead_letter_can_be_replayed,
            events_parked::a_dead_letter_can_be_dropped,
            events_parked::parked_events_are_filtered_and_paged,
            events_parked::an_unknown_event_is_not_parked,
            events_parked::an_event_is_parked_once,
            events_parked::a_reset_deletes_parked_events_that_are_read_again,
            event_admin::a_topic_keeps_all_settings,
            event_admin::another_number_of_partitions_is_rejected,
            event_admin::invalid_settings_are_rejected,
            event_admin::topics_are_listed_by_namespace,
            event_admin::a_topic_can_be_deleted,
            event_admin::a_group_keeps_all_settings,
            event_admin::groups_are_listed_by_namespace,
            event_admin::the_number_of_groups_of_a_topic_is_limited,
            event_admin::a_group_can_be_deleted,
            event_admin::lag_is_shown_by_partition,
            event_admin::a_long_lag_is_counted_up_to_a_limit,
            event_admin::a_group_can_be_reset,
            event_admin::a_group_can_be_paused,
            event_admin::a_webhook_is_shown_without_its_secret,
            event_admin::a_read_returns_only_events_of_its_topic,
            topic_waiters::a_publication_notifies_a_waiter_once,
            topic_waiters::a_topic_waiter_is_not_notified_without_events,
            topic_waiters::an_empty_read_keeps_the_waiter_registered,
            topic_waiters::changes_of_a_group_are_notified,
            topic_waiters::the_end_of_a_member_is_notified,
        }
    };
}
