//! Work and resources as people type them: with real processes, on both stores, and through a server.

#![allow(unreachable_pub, dead_code)]

#[path = "claims/desk.rs"]
mod desk;
#[path = "claims/pool.rs"]
mod pool;
#[path = "claims/readme.rs"]
mod readme;
#[path = "support/readme.rs"]
mod readme_blocks;
#[macro_use]
mod support;
#[path = "claims/tasks.rs"]
mod tasks;
#[path = "claims/work.rs"]
mod work;

use desk::{
    modes_and_settings_change_and_the_rest_stays, paused_queues_hand_out_nothing_and_say_so,
    workers_wait_for_approval_where_it_is_asked_for,
};
use pool::{
    a_pool_hands_out_what_fits_and_takes_it_back, a_request_can_be_left_waiting,
    a_request_ends_with_who_waits_for_it,
};
use support::{World, refused, said};
use tasks::{
    a_claim_is_settled_once_and_only_under_its_token, a_file_of_tasks_is_submitted_with_its_graph,
    bulk_orders_move_a_queue, lists_and_stories_are_told, tasks_are_submitted_as_the_options_say,
    why_is_told_in_sentences,
};

use work::{
    a_command_is_ended_when_its_task_is_called_off_or_takes_too_long, a_command_runs_for_each_task,
    a_killed_worker_leaves_no_orphan_and_its_task_returns, it_ends_though_tasks_for_other_workers_are_left,
    it_ends_when_nothing_is_left, told_once_it_finishes_and_told_twice_it_gives_back,
};

on_every_store!(
    tasks_are_submitted_as_the_options_say,
    a_claim_is_settled_once_and_only_under_its_token,
    a_file_of_tasks_is_submitted_with_its_graph,
    bulk_orders_move_a_queue,
    lists_and_stories_are_told,
    why_is_told_in_sentences,
    paused_queues_hand_out_nothing_and_say_so,
    modes_and_settings_change_and_the_rest_stays,
    workers_wait_for_approval_where_it_is_asked_for,
    a_pool_hands_out_what_fits_and_takes_it_back,
    a_request_can_be_left_waiting,
    a_request_ends_with_who_waits_for_it,
    a_command_runs_for_each_task,
    it_ends_when_nothing_is_left,
    it_ends_though_tasks_for_other_workers_are_left,
    told_once_it_finishes_and_told_twice_it_gives_back,
    a_killed_worker_leaves_no_orphan_and_its_task_returns,
    a_command_is_ended_when_its_task_is_called_off_or_takes_too_long,
);

#[test]
fn bad_input_names_itself_and_the_remedy() {
    let world = World::sqlite();
    let long = format!("\"{}\"", "x".repeat(2 << 20));
    std::fs::write(world.path("long.json"), &long).expect("a file");
    std::fs::write(world.path("bad.jsonl"), "{\"kind\":\"a\"}\n\n{\"prio\":1}\n").expect("a file");
    std::fs::write(
        world.path("circle.jsonl"),
        "{\"parents\":[{\"index\":1}]}\n{\"parents\":[{\"index\":0}]}\n",
    )
    .expect("a file");
    std::fs::write(world.path("off.jsonl"), "{\"parents\":[{\"index\":7}]}\n").expect("a file");
    let at = |name: &str| world.path(name).display().to_string();
    let cases: [(&[&str], i32, &[&str]); 22] = [
        (&["tasks", "submit", ""], 64, &["empty"]),
        (&["tasks", "submit", "two words"], 64, &["two words", "' '"]),
        (&["tasks", "submit", "q", "--payload", "{to:"], 64, &["--payload", "{to:", "not JSON", "@FILE"]),
        (&["tasks", "submit", "q", "--payload", "@/no/such"], 64, &["/no/such", "No such file"]),
        (
            &["tasks", "submit", "q", "--payload", &format!("@{}", at("long.json"))],
            64,
            &["1048576", "elsewhere"],
        ),
        (&["tasks", "submit", "q", "--run-at", "noon"], 64, &["noon", "2030-01-31T09:30:00Z"]),
        (&["tasks", "submit", "q", "--in", "5"], 64, &["\"5\"", "10s"]),
        (&["tasks", "submit", "q", "--concurrency", "k:0"], 64, &["k:0", "KEY:N"]),
        (&["tasks", "submit", "q", "--parent", "4711"], 64, &["4711"]),
        (&["tasks", "submit", "q", "--priority", "2000000"], 64, &["2000000", "1000000"]),
        (&["tasks", "submit", "q", "-f", "/no/such"], 64, &["/no/such"]),
        (&["tasks", "submit", "q", "-f", &at("bad.jsonl")], 64, &["line 3", "prio", "--help"]),
        (&["tasks", "submit", "q", "-f", &at("circle.jsonl")], 64, &["circle"]),
        (&["tasks", "submit", "q", "-f", &at("off.jsonl")], 64, &["line 1", "{\"index\":7}", "1 task"]),
        (&["tasks", "complete", "1", "--token", "seven"], 64, &["seven", "1.7"]),
        (&["tasks", "complete", "4711", "--token", "7"], 64, &["no task 4711", "tasks list"]),
        (&["tasks", "list", "--state", "redy"], 64, &["redy", "ready"]),
        (&["tasks", "why", "4711"], 64, &["no task 4711"]),
        (&["queue", "show", "nowhere"], 64, &["nowhere", "queue list"]),
        (&["queue", "set", "q", "--rate", "fast"], 64, &["fast", "100/s"]),
        (&["pool", "show", "nowhere"], 64, &["nowhere", "pool list"]),
        (&["pool", "set", "p", "--priority", "base +"], 64, &["priority"]),
    ];
    for (args, code, words) in cases {
        refused(&world, args, code, words);
    }
    let queues = world.json(&["queue", "list", "-o", "json"]);
    assert_eq!(queues.as_array().map(Vec::len), Some(0), "nothing was begun: {queues}");
}
