//! Singletons on a store in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tenure::cluster::{StrictBackend, Supervisor, SupervisorBuilder, SupervisorError};
use tenure_core::rules::cluster::owner;
use tenure_testkit::block_on;

use crate::support::*;

const JOBS: [&str; 8] = ["a1", "b2", "c3", "d4", "e5", "f6", "g7", "h8"];

/// Each job runs until it is told to stop, and hands over its state.
fn working(process: &Process, log: &Log, jobs: &[&'static str]) -> SupervisorBuilder<StrictBackend> {
    jobs.iter().fold(Supervisor::strict(&process.tenure), |builder, job| {
        let (log, node) = (log.clone(), process.tenure.name().to_owned());
        builder.singleton(*job, move |singleton| {
            let (log, node) = (log.clone(), node.clone());
            async move {
                let running = log.begin(&singleton, &node);
                assert!(singleton.leadership().is_leader());
                singleton.stop_requested().await;
                singleton.set_handoff(format!("left by {node}")).unwrap();
                drop(running);
            }
        })
    })
}

fn expected(nodes: &[&str]) -> BTreeMap<String, Vec<String>> {
    let index = |job: &&str| owner(job, nodes.iter().map(|node| (*node, 1))).expect("the list is not empty");
    JOBS.iter().map(|job| (job.to_string(), vec![index(job).to_owned()])).collect()
}

#[test]
fn each_singleton_runs_once_on_its_owner_and_the_minimum_moves_with_its_state() {
    block_on(async {
        let (world, log) = (World::new(), Log::default());
        let (a, b, c) = (world.process("a").await, world.process("b").await, world.process("c").await);
        let _on_a = working(&a, &log, &JOBS).start().await.unwrap();
        let on_b = working(&b, &log, &JOBS).start().await.unwrap();
        world.clock.advance(10 * SECOND).await;
        assert_eq!(log.running(), expected(&["a", "b"]));

        let before = log.starts().len();
        let _on_c = working(&c, &log, &JOBS).start().await.unwrap();
        world.clock.advance(10 * SECOND).await;
        assert_eq!(log.running(), expected(&["a", "b", "c"]));
        let moved = log.starts().split_off(before);
        assert!(!moved.is_empty());
        for start in &moved {
            assert_eq!(start.node, "c", "singletons move only to the new process");
            let from = &expected(&["a", "b"])[&start.name][0];
            assert_eq!(start.state.as_deref(), Some(format!("left by {from}").as_str()), "{start:?}");
        }

        let before = log.starts().len();
        let leaving = tokio::spawn(on_b.leave());
        world.clock.advance(10 * SECOND).await;
        leaving.await.unwrap();
        assert_eq!(log.running(), expected(&["a", "c"]));
        let moved = log.starts().split_off(before);
        let of_b = expected(&["a", "b", "c"]).into_values().filter(|nodes| nodes[0] == "b").count();
        assert_eq!(moved.len(), of_b, "only its own singletons moved");
        assert!(moved.iter().all(|start| start.state.as_deref() == Some("left by b")), "{moved:?}");
        assert_eq!(log.overlaps(), 0);
    });
}

#[test]
fn a_leaving_singleton_is_handed_over_in_milliseconds() {
    block_on(async {
        let (world, log) = (World::new(), Log::default());
        let (a, b) = (world.process("a").await, world.process("b").await);
        let on_a = working(&a, &log, &JOBS[..1]).start().await.unwrap();
        world.clock.settle().await;
        assert_eq!(log.running()["a1"], ["a"]);
        let _on_b = working(&b, &log, &JOBS[..1]).start().await.unwrap();
        world.clock.advance(5 * SECOND).await;
        let (runs, rests) = if log.running()["a1"] == ["a"] { ("a", "b") } else { ("b", "a") };
        if runs == "b" {
            // The singleton has already moved to b, so a has nothing to hand over.
            drop(on_a);
            world.clock.advance(SECOND).await;
            assert_eq!(log.running()["a1"], ["b"]);
            return;
        }
        let leaving = tokio::spawn(on_a.leave());
        world.clock.settle().await;
        assert_eq!(log.running()["a1"], [rests]);
        leaving.await.unwrap();
    });
}

/// Regression: a process handed a state over, and its successor handed the next state back before the process
/// read the election again. The process kept waiting for an acknowledgement that was no longer published, and
/// missed the state that was handed back.
#[test]
fn a_process_that_handed_a_state_over_can_take_it_back_at_once() {
    block_on(async {
        let (world, log) = (World::new(), Log::default());
        let (a, b) = (world.process("a").await, world.process("b").await);
        let heavier = owner("job", [("a", 1), ("b", 1)]).unwrap();
        let (first, second) = if heavier == "a" { (&b, &a) } else { (&a, &b) };
        let _on_first = working_as(first, &log).start().await.unwrap();
        world.clock.advance(SECOND).await;
        first.link.fail_observations(true);
        let on_second = working_as(second, &log).start().await.unwrap();
        world.clock.advance(5 * SECOND).await;
        assert_eq!(log.running()["job"], [heavier]);
        let leaving = tokio::spawn(on_second.leave());
        world.clock.settle().await;
        first.link.fail_observations(false);
        world.clock.advance(2 * SECOND).await;
        let name = first.tenure.name();
        assert_eq!(log.running()["job"], [name]);
        let left = |by: &str| Some(format!("left by {by}"));
        let states: Vec<_> = log.starts().into_iter().map(|start| start.state).collect();
        assert_eq!(states, [None, left(name), left(second.tenure.name())]);
        world.clock.advance(SECOND).await;
        leaving.await.unwrap();
    });
}

#[test]
fn after_a_crash_a_singleton_starts_elsewhere_without_state_and_never_twice() {
    block_on(async {
        let (world, log) = (World::new(), Log::default());
        let (a, b) = (world.process("a").await, world.process("b").await);
        let _on_a = working(&a, &log, &JOBS).start().await.unwrap();
        let _on_b = working(&b, &log, &JOBS).start().await.unwrap();
        world.clock.advance(10 * SECOND).await;
        assert_eq!(log.running(), expected(&["a", "b"]));
        let before = log.starts().len();
        a.link.cut(true);
        world.advance(30 * SECOND, || assert_eq!(log.overlaps(), 0)).await;
        assert!(log.running().values().all(|nodes| *nodes == ["b"]), "{:?}", log.running());
        let moved = log.starts().split_off(before);
        assert!(moved.iter().all(|start| start.state.is_none()), "{moved:?}");
        a.link.cut(false);
        world.advance(30 * SECOND, || assert_eq!(log.overlaps(), 0)).await;
        assert_eq!(log.running(), expected(&["a", "b"]), "the returning process gets back its singletons");
    });
}

#[test]
fn a_singleton_that_panics_or_returns_restarts_and_moves_if_it_keeps_failing() {
    block_on(async {
        let (world, log) = (World::new(), Log::default());
        let (a, b) = (world.process("a").await, world.process("b").await);
        let tries = Arc::new(AtomicU32::new(0));
        let worst = owner("job", [("a", 1), ("b", 1)]).unwrap();
        let mut supervisors = Vec::new();
        for process in [&a, &b] {
            let (log, tries, node) = (log.clone(), tries.clone(), process.tenure.name().to_owned());
            let bad = node == worst;
            let builder = Supervisor::strict(&process.tenure).singleton("job", move |singleton| {
                let (log, tries, node) = (log.clone(), tries.clone(), node.clone());
                async move {
                    let _running = log.begin(&singleton, &node);
                    if !bad {
                        return singleton.stop_requested().await;
                    }
                    if tries.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) {
                        panic!("this machine is broken");
                    }
                }
            });
            supervisors.push(builder.start().await.unwrap());
        }
        world.clock.advance(30 * SECOND).await;
        assert!(tries.load(Ordering::SeqCst) >= 5, "it was tried on its owner");
        let good = if worst == "a" { "b" } else { "a" };
        assert_eq!(log.running()["job"], [good]);
        assert_eq!(log.overlaps(), 0);
    });
}

#[test]
fn a_run_that_exceeds_the_grace_is_dropped_before_the_next_starts() {
    block_on(async {
        let (world, log) = (World::new(), Log::default());
        let (a, b) = (world.process("a").await, world.process("b").await);
        let stubborn = |process: &Process| {
            let (log, node) = (log.clone(), process.tenure.name().to_owned());
            Supervisor::strict(&process.tenure).grace(2 * SECOND).singleton("job", move |singleton| {
                let (log, node) = (log.clone(), node.clone());
                async move {
                    let _running = log.begin(&singleton, &node);
                    singleton.set_handoff("never handed on").unwrap();
                    std::future::pending::<()>().await;
                }
            })
        };
        let second = owner("job", [("a", 1), ("b", 1)]).unwrap();
        let (first, then) = if second == "a" { (&b, &a) } else { (&a, &b) };
        let _on_first = stubborn(first).start().await.unwrap();
        world.clock.advance(SECOND).await;
        let _on_second = stubborn(then).start().await.unwrap();
        world.advance(10 * SECOND, || assert_eq!(log.overlaps(), 0)).await;
        assert_eq!(log.running()["job"], [second]);
        assert_eq!(log.starts().last().unwrap().state, None);
    });
}

/// The lease is not released while any part of a run continues, even in a task of its own.
#[test]
fn a_task_left_by_a_run_delays_the_next_run() {
    block_on(async {
        let (world, log) = (World::new(), Log::default());
        let (a, b) = (world.process("a").await, world.process("b").await);
        let second = owner("job", [("a", 1), ("b", 1)]).unwrap();
        let (first, then) = if second == "a" { (&b, &a) } else { (&a, &b) };
        let done = Arc::new(AtomicBool::new(false));
        let release = done.clone();
        let (run_log, clock) = (log.clone(), world.clock.clone());
        let _on_first = Supervisor::strict(&first.tenure)
            .grace(SECOND)
            .singleton("job", move |singleton| {
                let (run_log, release, clock) = (run_log.clone(), release.clone(), clock.clone());
                async move {
                    let running = run_log.begin(&singleton, "first");
                    singleton.stop_requested().await;
                    tokio::spawn(async move {
                        while !release.load(Ordering::SeqCst) {
                            use tenure::runtime::Runtime;
                            clock.sleep_until(clock.now() + SECOND).await;
                        }
                        drop((running, singleton));
                    });
                }
            })
            .start()
            .await
            .unwrap();
        world.clock.advance(SECOND).await;
        let _on_second = working_as(then, &log).start().await.unwrap();
        world.clock.advance(20 * SECOND).await;
        assert_eq!(log.running()["job"], ["first"]);
        done.store(true, Ordering::SeqCst);
        world.clock.advance(10 * SECOND).await;
        assert_eq!(log.running()["job"], [second]);
        assert_eq!(log.overlaps(), 0);
    });
}

fn working_as(process: &Process, log: &Log) -> SupervisorBuilder<StrictBackend> {
    working(process, log, &["job"])
}

#[test]
fn invalid_supervisors_are_rejected() {
    block_on(async {
        let world = World::new();
        let a = world.process("a").await;
        let idle = |_| async {};
        let twice = Supervisor::strict(&a.tenure).singleton("x", idle).singleton("x", idle).start().await;
        assert!(matches!(twice, Err(SupervisorError::DuplicateName(_))));
        let none = Supervisor::strict(&a.tenure).capacity(0).start().await;
        assert!(matches!(none, Err(SupervisorError::Capacity(0))));
        let name = Supervisor::strict(&a.tenure).singleton("two words", idle).start().await;
        assert!(matches!(name, Err(SupervisorError::Name(_))));
    });
}
