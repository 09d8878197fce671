//! Schedules and their ticks.

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
