//! Suite for schedules and ticks.

/// Creates one test per conformance function about schedules, as [`conformance_tests!`](crate::conformance_tests)
/// does for elections. `through a server` omits what a server does itself: it leads the scheduler election and fires.
#[macro_export]
macro_rules! schedules_conformance_tests {
    ($name:ident, $subject:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::schedules_conformance_tests! { @all $subject }
            $crate::conformance_tests! { @tests $subject;
                schedule_admin::servers_can_read_the_webhook_secret,
                schedules_firing::a_session_that_does_not_lead_fires_nothing,
                schedules_firing::an_ended_session_fires_nothing,
                schedules_firing::a_firing_is_applied_completely,
                schedules_firing::an_event_is_published_with_its_tick,
                schedules_firing::a_repeated_firing_is_applied_once,
                schedules_firing::of_concurrent_firings_one_is_applied,
                schedules_firing::a_changed_schedule_does_not_fire,
                schedules_firing::a_decision_about_a_deleted_schedule_is_stale,
                schedules_firing::the_key_of_a_tick_is_reserved_for_the_scheduler,
                schedules_firing::an_invalid_firing_is_rejected_alone,
                schedules_firing::a_failed_firing_is_retried,
                schedules_firing::a_new_definition_clears_the_error,
                schedules_firing::missed_ticks_follow_the_misfire_policy,
                schedules_firing::millions_of_missed_ticks_are_one_range,
                schedules_firing::a_decided_tick_never_fires_again,
                schedules_firing::a_schedule_ends_after_its_last_tick,
                schedules_firing::many_fire_in_one_call,
                schedules_firing::invalid_firings_are_rejected,
                schedules_firing::a_firing_notifies_waiters,
                schedules_firing::overlapped_ticks_are_counted_separately,
                schedules_due::due_schedules_are_returned_in_order,
                schedules_due::a_paused_schedule_is_not_due,
                schedules_due::a_schedule_that_becomes_due_is_returned,
                schedules_due::a_run_is_unfinished_until_its_task_is_finished,
                schedules_due::runs_do_not_overlap_under_the_skip_policy,
                schedules_due::queued_runs_run_one_by_one,
                schedules_due::overlapping_runs_are_not_counted,
                schedules_due::manual_runs_are_counted,
                schedules_due::manual_runs_wait_for_unfinished_ones,
                schedules_differential::random_schedule_calls_match_the_model,
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
            schedule_admin::a_schedule_keeps_all_settings,
            schedule_admin::invalid_definitions_are_rejected,
            schedule_admin::a_schedule_with_an_unknown_topic_is_rejected,
            schedule_admin::the_same_definition_changes_nothing,
            schedule_admin::a_precondition_must_hold,
            schedule_admin::of_concurrent_editors_one_wins,
            schedule_admin::a_secret_is_kept_until_it_is_replaced,
            schedule_admin::only_a_new_expression_moves_the_next_tick,
            schedule_admin::an_interval_from_its_start_keeps_its_start,
            schedule_admin::a_schedule_without_ticks_is_never_due,
            schedule_admin::a_schedule_can_be_paused,
            schedule_admin::schedules_are_filtered_and_paged,
            schedule_admin::a_schedule_can_be_deleted,
            schedule_admin::schedules_of_two_namespaces_are_independent,
            schedule_admin::schedules_are_counted_by_namespace,
            schedule_admin::changes_of_schedules_are_notified,
            schedule_admin::a_tick_history_is_paged,
            schedule_admin::many_schedules_are_listed_completely,
            schedule_admin::too_many_manual_ticks_are_rejected,
            schedules_manual_fire::a_trigger_fires_one_tick_now,
            schedules_manual_fire::every_trigger_is_a_separate_tick,
            schedules_manual_fire::a_manual_fire_can_have_its_own_payload,
            schedules_manual_fire::past_ticks_can_be_fired_manually,
            schedules_manual_fire::future_ticks_do_not_fire_manually,
            schedules_manual_fire::a_dry_run_changes_nothing,
            schedules_manual_fire::of_concurrent_backfills_each_tick_fires_once,
            schedules_manual_fire::concurrent_triggers_all_fire,
            schedules_manual_fire::a_published_event_names_its_tick,
            schedules_manual_fire::a_webhook_call_waits_for_a_server,
            schedules_manual_fire::a_tick_that_its_target_rejects_does_not_fire,
        }
    };
}
