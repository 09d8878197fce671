//! `tenure tasks`, `work`, `queues`, `workers` and `pools` with real processes, on SQLite and PostgreSQL and through a
//! server.

#![allow(unreachable_pub, dead_code)]

#[path = "claims/pools.rs"]
mod pools;
#[path = "claims/queues.rs"]
mod queues;
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

use pools::{
    a_pool_grants_matching_resources, a_request_can_stay_in_the_pool, a_signal_cancels_a_waiting_request,
};
use queues::{
    a_queue_can_require_approved_workers, a_queue_changes_only_the_named_settings,
    paused_queues_assign_no_tasks,
};
use support::{World, output_text, refused};
use tasks::{
    a_claim_is_settled_once_and_only_under_its_token, a_file_of_tasks_is_submitted_with_its_dependencies,
    all_tasks_of_a_queue_are_cancelled_and_retried, options_set_the_fields_of_a_task,
    tasks_are_listed_shown_and_measured, why_explains_each_reason,
};

use work::{
    a_command_runs_for_each_task, a_command_stops_when_its_task_is_cancelled_or_runs_too_long,
    a_first_signal_drains_and_a_second_one_releases_the_task,
    a_killed_worker_leaves_no_orphan_and_its_task_returns, an_idle_worker_exits,
    an_idle_worker_exits_despite_tasks_for_other_workers,
};

on_every_store!(
    options_set_the_fields_of_a_task,
    a_claim_is_settled_once_and_only_under_its_token,
    a_file_of_tasks_is_submitted_with_its_dependencies,
    all_tasks_of_a_queue_are_cancelled_and_retried,
    tasks_are_listed_shown_and_measured,
    why_explains_each_reason,
    paused_queues_assign_no_tasks,
    a_queue_changes_only_the_named_settings,
    a_queue_can_require_approved_workers,
    a_pool_grants_matching_resources,
    a_request_can_stay_in_the_pool,
    a_signal_cancels_a_waiting_request,
    a_command_runs_for_each_task,
    an_idle_worker_exits,
    an_idle_worker_exits_despite_tasks_for_other_workers,
    a_first_signal_drains_and_a_second_one_releases_the_task,
    a_killed_worker_leaves_no_orphan_and_its_task_returns,
    a_command_stops_when_its_task_is_cancelled_or_runs_too_long,
);

#[test]
fn invalid_input_is_named_with_advice() {
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
        (&["tasks", "submit", "q", "--delay", "5"], 64, &["\"5\"", "10s"]),
        (&["tasks", "submit", "q", "--concurrency-key", "k:0"], 64, &["k:0", "KEY:LIMIT"]),
        (&["tasks", "submit", "q", "--parent", "4711"], 64, &["4711"]),
        (&["tasks", "submit", "q", "--priority", "2000000"], 64, &["2000000", "1000000"]),
        (&["tasks", "submit", "q", "-f", "/no/such"], 64, &["/no/such"]),
        (&["tasks", "submit", "q", "-f", &at("bad.jsonl")], 64, &["line 3", "prio", "--help"]),
        (&["tasks", "submit", "q", "-f", &at("circle.jsonl")], 64, &["cycle"]),
        (&["tasks", "submit", "q", "-f", &at("off.jsonl")], 64, &["line 1", "{\"index\":7}", "1 task"]),
        (&["tasks", "complete", "1", "--token", "seven"], 64, &["seven", "1.7"]),
        (&["tasks", "complete", "4711", "--token", "7"], 64, &["task 4711 does not exist", "tasks list"]),
        (&["tasks", "list", "--state", "redy"], 64, &["redy", "ready"]),
        (&["tasks", "why", "4711"], 64, &["task 4711 does not exist"]),
        (&["queues", "show", "nowhere"], 64, &["nowhere", "queues list"]),
        (&["queues", "set", "q", "--rate", "fast"], 64, &["fast", "100/s"]),
        (&["pools", "show", "nowhere"], 64, &["nowhere", "pools list"]),
        (&["pools", "set", "p", "--priority-formula", "base_priority +"], 64, &["priority"]),
    ];
    for (args, code, words) in cases {
        refused(&world, args, code, words);
    }
    let queues = world.json(&["queues", "list", "-o", "json"]);
    assert_eq!(queues.as_array().map(Vec::len), Some(0), "nothing was created: {queues}");
}
