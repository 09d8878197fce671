//! Registered names on a store in memory.

use std::time::Duration;

use futures_util::StreamExt;
use tenure::cluster::{NameChange, Registration, RegistrationEnd, Registry, RegistryError, StrictBackend};
use tenure::{ElectionKey, election::operator};
use tenure_testkit::block_on;
use tokio::task::JoinHandle;

use crate::support::*;

const NOTHING: [(&str, &str); 0] = [];

fn registry(process: &Process) -> Registry<StrictBackend> {
    Registry::strict(&process.tenure)
}

/// Spawns a task in which a process registers the name "printer" and waits up to `max_wait`.
fn waits_for_the_printer(
    process: &Process,
    max_wait: Duration,
) -> JoinHandle<Result<Registration<StrictBackend>, RegistryError>> {
    let registry = registry(process);
    tokio::spawn(async move { registry.register_within("printer", NOTHING, max_wait).await })
}

async fn names(process: &Process) -> Vec<String> {
    registry(process).list().await.unwrap().into_iter().map(|view| view.name.to_string()).collect()
}

#[test]
fn of_many_processes_one_gets_a_name_and_the_others_learn_the_holder() {
    block_on(async {
        let world = World::new();
        let mut attempts = Vec::new();
        for name in ["a", "b", "c", "d", "e"] {
            let process = world.process(name).await;
            attempts.push(tokio::spawn(async move {
                let registered = registry(&process).register("printer", [("at", name)]).await;
                (process, registered)
            }));
        }
        world.clock.advance(15 * SECOND).await;
        let mut outcomes = Vec::new();
        for attempt in attempts {
            outcomes.push(attempt.await.unwrap());
        }
        let winner =
            outcomes.iter().find(|(_, outcome)| outcome.is_ok()).expect("one process holds the name");
        assert!(winner.1.as_ref().unwrap().is_registered());
        for (process, outcome) in &outcomes {
            let found = registry(process).whereis("printer").await.unwrap().unwrap();
            assert_eq!(found.holder, winner.0.tenure.name());
            assert_eq!(found.metadata["at"], found.holder);
            match outcome {
                Ok(_) => assert_eq!(process.tenure.name(), found.holder),
                Err(RegistryError::Taken { holder, .. }) => assert_eq!(*holder, found.holder),
                Err(other) => panic!("{other}"),
            }
        }
    });
}

#[test]
fn a_released_or_dropped_name_is_free_at_once_and_its_token_grows() {
    block_on(async {
        let world = World::new();
        let (a, b) = (world.process("a").await, world.process("b").await);
        let first = registry(&a).register("printer", NOTHING).await.unwrap();
        let waiting = waits_for_the_printer(&b, 60 * SECOND);
        world.clock.advance(SECOND).await;
        assert!(!waiting.is_finished());
        let token = first.token();
        first.unregister().await.unwrap();
        world.clock.advance(Duration::from_millis(100)).await;
        let second = waiting.await.unwrap().unwrap();
        assert!(second.token() > token);
        drop(second);
        world.clock.settle().await;
        assert!(registry(&a).whereis("printer").await.unwrap().is_none());
        assert!(registry(&a).register("printer", NOTHING).await.unwrap().token() > token.next(0));
    });
}

#[test]
fn register_within_stops_waiting_in_time() {
    block_on(async {
        let world = World::new();
        let (a, b) = (world.process("a").await, world.process("b").await);
        let _held = registry(&a).register("printer", NOTHING).await.unwrap();
        let waiting = waits_for_the_printer(&b, 30 * SECOND);
        world.clock.advance(29 * SECOND).await;
        assert!(!waiting.is_finished());
        world.clock.advance(2 * SECOND).await;
        assert!(matches!(waiting.await.unwrap(), Err(RegistryError::Taken { .. })));
        let view = b.tenure.election_admin().election(&key("printer")).await.unwrap().unwrap();
        assert_eq!(view.candidates.len(), 1, "the rejected process left the election");
    });
}

fn key(name: &str) -> ElectionKey {
    ElectionKey::new("names".parse().unwrap(), name.parse().unwrap())
}

/// No other process is a candidate for the names. Processes that use the registry still detect the silence.
#[test]
fn names_of_a_silent_process_are_freed_without_a_waiting_process() {
    block_on(async {
        let world = World::new();
        let (a, b) = (world.process("a").await, world.process("b").await);
        let lost = registry(&a).register("printer", NOTHING).await.unwrap();
        let _other = registry(&b).register("scanner", NOTHING).await.unwrap();
        world.clock.advance(5 * SECOND).await;
        a.link.cut(true);
        world.clock.advance(10 * SECOND).await;
        assert!(!lost.is_registered());
        assert!(matches!(lost.ended().await, RegistrationEnd::Lost(_)));
        assert_eq!(names(&b).await, ["printer", "scanner"], "the process may still be alive");
        world.clock.advance(20 * SECOND).await;
        assert_eq!(names(&b).await, ["scanner"]);
        assert!(registry(&b).register("printer", NOTHING).await.unwrap().is_registered());
    });
}

#[test]
fn two_processes_never_hold_a_name_whichever_is_disconnected() {
    block_on(async {
        let world = World::new();
        let (a, b) = (world.process("a").await, world.process("b").await);
        let first = registry(&a).register("printer", NOTHING).await.unwrap();
        let waiting = waits_for_the_printer(&b, 60 * SECOND);
        world.clock.advance(3 * SECOND).await;
        a.link.cut(true);
        world.advance(8 * SECOND, || assert!(!waiting.is_finished() || !first.is_registered())).await;
        world.advance(20 * SECOND, || assert!(!waiting.is_finished() || !first.is_registered())).await;
        let second = waiting.await.unwrap().unwrap();
        assert!(second.is_registered() && !first.is_registered());
        a.link.cut(false);
        world
            .advance(20 * SECOND, || {
                assert!(second.is_registered());
                assert!(!first.is_registered(), "a lost registration stays lost");
            })
            .await;
    });
}

#[test]
fn watchers_see_the_current_names_and_then_each_change() {
    block_on(async {
        let world = World::new();
        let (a, b) = (world.process("a").await, world.process("b").await);
        let printer = registry(&a).register("printer", [("zone", "a")]).await.unwrap();
        let mut changes = registry(&b).watch();
        let mut next = async || {
            let change = tokio::select! {
                change = changes.next() => change.expect("the stream continues"),
                () = world.clock.advance(10 * SECOND) => panic!("no change was reported"),
            };
            match change {
                NameChange::Registered(view) => format!("+{} {:?}", view.name, view.metadata),
                NameChange::Updated(view) => format!("~{} {:?}", view.name, view.metadata),
                NameChange::Moved { from, to } => format!("{from}>{}", to.holder),
                NameChange::Unregistered(view) => format!("-{}", view.name),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(next().await, r#"+printer {"zone": "a"}"#);
        let token = printer.token();
        printer.update([("zone", "b")]).await.unwrap();
        assert_eq!(next().await, r#"~printer {"zone": "b"}"#);
        assert!(printer.is_registered());
        assert_eq!(printer.token(), token, "an update does not change the holder");
        printer.unregister().await.unwrap();
        assert_eq!(next().await, "-printer");
    });
}

#[test]
fn an_operator_can_revoke_a_name() {
    block_on(async {
        let world = World::new();
        let a = world.process("a").await;
        let printer = registry(&a).register("printer", NOTHING).await.unwrap();
        let view = a.tenure.election_admin().election(&key("printer")).await.unwrap().unwrap();
        operator::resign(a.tenure.store().as_ref(), &view, None, "ops").await.unwrap();
        world.clock.advance(3 * SECOND).await;
        assert_eq!(printer.ended().await, RegistrationEnd::Requested);
        assert!(names(&a).await.is_empty());
        assert!(matches!(printer.update(NOTHING).await, Err(RegistryError::NotRegistered(_))));
    });
}

#[test]
fn invalid_registrations_are_rejected_before_any_change() {
    block_on(async {
        let world = World::new();
        let a = world.process("a").await;
        let registry = registry(&a);
        let refused = registry.register("tenure:members", NOTHING).await.unwrap_err();
        assert!(matches!(refused, RegistryError::Reserved(_)), "{refused}");
        assert!(matches!(registry.register("two words", NOTHING).await, Err(RegistryError::Name(_))));
        let refused = registry.register("printer", [("tenure.x", "1")]).await;
        assert!(matches!(refused, Err(RegistryError::Metadata(_))));
        let held = registry.register("printer", NOTHING).await.unwrap();
        let again = registry.register("printer", NOTHING).await.unwrap_err();
        assert!(matches!(again, RegistryError::Taken { ref holder, .. } if holder == "a"), "{again}");
        assert!(held.is_registered(), "a second attempt does not affect the first");
        assert_eq!(names(&a).await, ["printer"]);
    });
}

/// Regression: `register_within` did not wait inside one process. A name that was just dropped, or that another
/// task held, was rejected at once as taken by the process itself.
#[test]
fn tasks_of_one_process_wait_for_the_same_name() {
    block_on(async {
        let world = World::new();
        let process = world.process("a").await;
        let first = waits_for_the_printer(&process, Duration::ZERO);
        world.clock.advance(15 * SECOND).await;
        let first = first.await.unwrap().unwrap();
        let refused = registry(&process).register("printer", NOTHING).await;
        assert!(matches!(refused, Err(RegistryError::Taken { .. })), "rejected without waiting: {refused:?}");
        let waiting = [(); 2].map(|()| waits_for_the_printer(&process, 60 * SECOND));
        world.clock.advance(5 * SECOND).await;
        assert!(waiting.iter().all(|task| !task.is_finished()), "the name is held");
        let token = first.token();
        drop(first);
        world.clock.advance(15 * SECOND).await;
        let (done, waiting): (Vec<_>, Vec<_>) = waiting.into_iter().partition(JoinHandle::is_finished);
        assert_eq!((done.len(), waiting.len()), (1, 1), "one of them holds the name now");
        for task in done {
            let second = task.await.unwrap().unwrap();
            assert!(second.is_registered() && second.token() > token);
        }
        world.clock.advance(15 * SECOND).await;
        for task in waiting {
            assert!(task.await.unwrap().unwrap().is_registered(), "then the other one holds it");
        }
    });
}
