//! The public API of elections, on a store in memory and a manual clock.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::port::ErrorKind;
use tenure::store::memory::MemoryStore;
use tenure::{ElectorStatus, Error, Tenure, TermEnd};
use tenure_testkit::{ElectionCluster, ManualClock, PartitionableStore, block_on};

const SECOND: Duration = Duration::from_secs(1);
/// Shorter than the default, so that a test need not advance the clock as far.
const LEASE: Duration = Duration::from_secs(10);

async fn tenure(clock: &ManualClock, memory: &MemoryStore, name: &str) -> Tenure {
    let builder =
        Tenure::builder().store(memory.clone()).name(name).lease(LEASE).runtime(Arc::new(clock.clone()));
    builder.open().await.expect("the memory store opens")
}

fn manual_clock() -> (ManualClock, MemoryStore) {
    let clock = ManualClock::new(7);
    let memory = MemoryStore::with_runtime(Arc::new(clock.clone()));
    (clock, memory)
}

/// Regression: with a short lease the request timeout is short, and a slow store was given up before any lease
/// was held.
#[test]
fn a_store_that_is_slow_at_first_is_waited_for_and_a_lasting_timeout_is_reported() {
    block_on(async {
        let (clock, memory) = manual_clock();
        let link = PartitionableStore::new(memory);
        let open = || {
            let builder = Tenure::builder().store(link.clone()).lease(3 * SECOND / 2);
            tokio::spawn(builder.runtime(Arc::new(clock.clone())).open())
        };
        link.hang(true);
        let opening = open();
        clock.advance(4 * SECOND).await;
        assert!(!opening.is_finished());
        link.hang(false);
        clock.advance(2 * SECOND).await;
        assert!(opening.await.unwrap().is_ok());
        link.hang(true);
        let opening = open();
        clock.advance(10 * SECOND).await;
        let refused = opening.await.unwrap().err();
        assert!(
            matches!(refused, Some(Error::Store(ref error)) if error.kind == ErrorKind::Timeout),
            "{refused:?}"
        );
        // A store that reports an error is given up sooner.
        link.hang(false);
        link.cut(true);
        let opening = open();
        clock.advance(2 * SECOND).await;
        assert!(opening.await.unwrap().is_err());
    });
}

#[test]
fn only_one_leader_exists() {
    block_on(async {
        let cluster = ElectionCluster::of("nightly", ["a", "b", "c"]).await;
        assert_eq!(cluster.leaders(), ["a"]);
    });
}

#[test]
fn a_new_leader_is_elected_on_failure() {
    block_on(async {
        let cluster = ElectionCluster::of("nightly", ["a", "b", "c"]).await;
        cluster.cut_off("a");
        for _ in 0..60 {
            cluster.advance(SECOND / 2).await;
            assert!(cluster.leaders().len() <= 1);
        }
        assert_eq!(cluster.leaders(), ["b"]);
    });
}

#[test]
fn a_disconnected_leader_steps_down_and_leads_again_after_reconnecting() {
    block_on(async {
        let cluster = ElectionCluster::of("nightly", ["a"]).await;
        let token = cluster.elector("a").leadership().expect("a leads").token();
        cluster.cut_off("a");
        cluster.advance(SECOND * 60).await;
        assert!(cluster.leaders().is_empty());
        cluster.reconnect("a");
        cluster.advance(SECOND * 5).await;
        assert!(cluster.elector("a").leadership().expect("a leads again").token() > token);
    });
}

#[test]
fn a_graceful_stop_hands_over_without_waiting() {
    block_on(async {
        let mut cluster = ElectionCluster::of("nightly", ["a", "b"]).await;
        cluster.stop("a").await;
        assert_eq!(cluster.leaders(), ["b"]);
    });
}

#[test]
fn the_live_candidate_with_the_highest_priority_leads() {
    block_on(async {
        let mut cluster =
            ElectionCluster::with_priorities("nightly", [("low", 10), ("mid", 50), ("top", 100)]).await;
        cluster.advance(SECOND * 3).await;
        assert_eq!(cluster.leaders(), ["top"]);
        cluster.stop("top").await;
        assert_eq!(cluster.leaders(), ["mid"]);
    });
}

#[test]
fn work_is_dropped_at_loss_and_run_again() {
    block_on(async {
        let (clock, memory) = manual_clock();
        let link = tenure_testkit::PartitionableStore::new(memory);
        let tenure = Tenure::builder()
            .store(link.clone())
            .lease(LEASE)
            .runtime(Arc::new(clock.clone()))
            .open()
            .await
            .unwrap();
        let elector = tenure.elector("nightly").start().await.unwrap();
        let runs = Arc::new(AtomicU32::new(0));
        let seen = runs.clone();
        let work = tokio::spawn(elector.run_while_leader(move |leadership| {
            let run = seen.fetch_add(1, Ordering::SeqCst);
            async move {
                if run == 0 {
                    std::future::pending::<()>().await;
                }
                leadership.token()
            }
        }));
        clock.settle().await;
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        link.cut(true);
        clock.advance(SECOND * 10).await;
        link.cut(false);
        clock.advance(SECOND * 10).await;
        assert_eq!(work.await.unwrap().unwrap().as_u64(), 2);
    });
}

#[test]
fn a_lease_is_released_only_after_the_work_has_ended() {
    block_on(async {
        let (clock, memory) = manual_clock();
        let (a, b) = (tenure(&clock, &memory, "a").await, tenure(&clock, &memory, "b").await);
        let first = a.elector("nightly").start().await.unwrap();
        let leadership = first.elected().await.unwrap();
        let second = b.elector("nightly").start().await.unwrap();
        first.resign().unwrap();
        clock.advance(SECOND).await;
        assert!(leadership.is_leader(), "it still leads after a leader request");
        assert!(!second.is_leader());
        drop(leadership);
        clock.settle().await;
        assert!(!first.is_leader());
        clock.advance(SECOND).await;
        assert!(second.is_leader());
    });
}

#[test]
fn a_leader_that_does_not_finish_is_ended_after_its_grace() {
    block_on(async {
        let (clock, memory) = manual_clock();
        let tenure = tenure(&clock, &memory, "a").await;
        let elector = tenure.elector("nightly").grace(SECOND * 2).start().await.unwrap();
        let leadership = elector.elected().await.unwrap();
        elector.resign().unwrap();
        clock.advance(SECOND).await;
        assert!(leadership.is_leader());
        clock.advance(SECOND * 2).await;
        assert!(!leadership.is_leader());
        assert_eq!(leadership.lost().await, TermEnd::Released);
    });
}

#[test]
fn a_term_that_was_lost_stays_lost_when_the_session_is_trusted_again() {
    block_on(async {
        let cluster = ElectionCluster::of("nightly", ["a"]).await;
        let leadership = cluster.elector("a").leadership().expect("a leads");
        cluster.cut_off("a");
        cluster.advance(SECOND * 7).await;
        cluster.reconnect("a");
        cluster.advance(SECOND * 3).await;
        assert!(!leadership.is_leader());
    });
}

/// Regression: a command that was told to finish ended, and was at once started again under the same token.
#[test]
fn work_does_not_start_under_a_term_that_must_finish() {
    block_on(async {
        let (clock, memory) = manual_clock();
        let tenure = tenure(&clock, &memory, "a").await;
        let elector = tenure.elector("nightly").start().await.unwrap();
        let leadership = elector.elected().await.unwrap();
        let token = leadership.token();
        elector.resign().unwrap();
        leadership.leader_request().await;
        tokio::select! {
            biased;
            started = elector.elected() => panic!("started again under token {:?}", started.map(|l| l.token())),
            () = std::future::ready(()) => {}
        }
        drop(leadership);
        let next = tokio::spawn(async move { elector.elected().await.unwrap().token() });
        clock.advance(SECOND * 5).await;
        assert!(next.await.unwrap() > token);
    });
}

#[test]
fn callbacks_report_election_and_loss() {
    block_on(async {
        let (clock, memory) = manual_clock();
        let tenure = tenure(&clock, &memory, "a").await;
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let (elected, lost) = (log.clone(), log.clone());
        let elector = tenure
            .elector("nightly")
            .on_elected(move |leadership| {
                elected.lock().unwrap().push(format!("elected {}", leadership.token()))
            })
            .on_lost(move |end| lost.lock().unwrap().push(format!("lost {end:?}")))
            .start()
            .await
            .unwrap();
        clock.settle().await;
        elector.resign().unwrap();
        clock.advance(SECOND * 5).await;
        assert_eq!(*log.lock().unwrap(), ["elected 1", "lost Released", "elected 2"]);
    });
}

/// Regression: a panic in `on_elected` ended the task of the callbacks, so the candidate led forever without
/// working.
#[test]
fn a_panic_in_on_elected_resigns_and_the_next_term_calls_it_again() {
    block_on(async {
        let (clock, memory) = manual_clock();
        let tenure = tenure(&clock, &memory, "a").await;
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let (elected, lost) = (log.clone(), log.clone());
        let _elector = tenure
            .elector("nightly")
            .on_elected(move |leadership| {
                let token = leadership.token();
                elected.lock().unwrap().push(format!("elected {token}"));
                assert!(token.as_u64() > 2, "deliberate panic");
            })
            .on_lost(move |end| {
                lost.lock().unwrap().push(format!("lost {end:?}"));
                panic!("deliberate panic");
            })
            .start()
            .await
            .unwrap();
        clock.advance(SECOND * 5).await;
        assert_eq!(
            *log.lock().unwrap(),
            ["elected 1", "lost Released", "elected 2", "lost Released", "elected 3"]
        );
    });
}

#[test]
fn a_candidate_whose_on_elected_panics_lets_another_lead() {
    block_on(async {
        let (clock, memory) = manual_clock();
        let (a, b) = (tenure(&clock, &memory, "a").await, tenure(&clock, &memory, "b").await);
        let _panics = a.elector("nightly").on_elected(|_| panic!("deliberate panic")).start().await.unwrap();
        clock.settle().await;
        let other = b.elector("nightly").start().await.unwrap();
        clock.advance(SECOND * 5).await;
        assert!(other.is_leader());
    });
}

/// The panic reaches the caller, and the candidate must not remain a leader that does nothing.
#[test]
fn a_panic_in_run_while_leader_reaches_the_caller_and_lets_another_lead() {
    block_on(async {
        let (clock, memory) = manual_clock();
        let (a, b) = (tenure(&clock, &memory, "a").await, tenure(&clock, &memory, "b").await);
        let panics = a.elector("nightly").start().await.unwrap();
        clock.settle().await;
        let other = b.elector("nightly").start().await.unwrap();
        let work = panics.run_while_leader(|_| async { panic!("deliberate panic") });
        let ended: Result<Result<(), Error>, _> = tokio::spawn(work).await;
        assert!(ended.unwrap_err().is_panic());
        clock.advance(SECOND * 5).await;
        assert!(other.is_leader());
    });
}

#[test]
fn several_elections_share_one_session() {
    block_on(async {
        let (clock, memory) = manual_clock();
        let tenure = tenure(&clock, &memory, "a").await;
        let one = tenure.elector("one").start().await.unwrap();
        let two = tenure.elector("two").namespace("other").start().await.unwrap();
        clock.settle().await;
        let (one, two) = (one.leadership().unwrap(), two.leadership().unwrap());
        assert_eq!(one.session(), two.session());
    });
}

#[test]
fn a_second_candidate_of_one_process_is_rejected() {
    block_on(async {
        let (clock, memory) = manual_clock();
        let tenure = tenure(&clock, &memory, "a").await;
        let _first = tenure.elector("nightly").start().await.unwrap();
        let second = tenure.elector("nightly").start().await;
        assert!(matches!(second, Err(Error::AlreadyCandidate(_))));
        clock.settle().await;
        assert!(_first.is_leader(), "the rejected candidate did not replace the first one");
    });
}

#[test]
fn an_election_with_two_slots_has_two_leaders() {
    block_on(async {
        let (clock, memory) = manual_clock();
        let mut electors = Vec::new();
        for name in ["a", "b", "c"] {
            let tenure = tenure(&clock, &memory, name).await;
            electors.push(tenure.elector("pair").slots(2).start().await.unwrap());
        }
        clock.advance(SECOND * 2).await;
        assert_eq!(electors.iter().filter(|elector| elector.is_leader()).count(), 2);
        let refused = tenure(&clock, &memory, "d").await.elector("pair").slots(3).start().await;
        assert!(matches!(refused, Err(Error::Slots { slots: 2, requested: 3, .. })));
    });
}

#[test]
fn status_reports_the_state_of_a_candidate() {
    block_on(async {
        let (clock, memory) = manual_clock();
        let (a, b) = (tenure(&clock, &memory, "a").await, tenure(&clock, &memory, "b").await);
        let leader = a.elector("nightly").start().await.unwrap();
        let follower = b.elector("nightly").observer(true).start().await.unwrap();
        clock.advance(SECOND).await;
        assert_eq!((leader.status(), follower.status()), (ElectorStatus::Leader, ElectorStatus::Observer));
        assert_eq!(follower.leader().await.unwrap().unwrap().name, "a");
        assert_eq!(leader.candidates().await.unwrap().len(), 2);
    });
}

/// Regression: the lease was released two thirds of a lease after the loss, although the work had not ended.
#[test]
fn work_that_does_not_end_keeps_the_lease_from_others() {
    block_on(async {
        let (clock, memory) = manual_clock();
        let (a, b) = (tenure(&clock, &memory, "a").await, tenure(&clock, &memory, "b").await);
        let first = a.elector("nightly").grace(SECOND).start().await.unwrap();
        let leadership = first.elected().await.unwrap();
        let second = b.elector("nightly").start().await.unwrap();
        first.resign().unwrap();
        clock.advance(SECOND * 60).await;
        assert!(!leadership.is_leader(), "the grace is over");
        assert!(!second.is_leader(), "but the work has not ended");
        drop(leadership);
        clock.advance(SECOND * 2).await;
        assert!(second.is_leader());
    });
}

/// Regression: a handle of an earlier term made the process resign its current term.
#[test]
fn an_old_handle_does_not_resign_a_new_term() {
    block_on(async {
        let (clock, memory) = manual_clock();
        let tenure = tenure(&clock, &memory, "a").await;
        let elector = tenure.elector("nightly").start().await.unwrap();
        let old = elector.elected().await.unwrap();
        let token = old.token();
        elector.resign().unwrap();
        let kept = old.clone();
        drop(old);
        let resigned = tokio::spawn(kept.resign());
        clock.advance(SECOND * 5).await;
        resigned.await.unwrap().unwrap();
        clock.advance(SECOND * 5).await;
        let now = elector.leadership().expect("a leads again");
        assert_eq!(now.token().as_u64(), token.as_u64() + 1, "it did not resign twice");
    });
}

/// Regression: dropping the elector of a candidate that had left withdrew the next candidate of that name.
#[test]
fn an_old_elector_does_not_withdraw_a_new_one() {
    block_on(async {
        let (clock, memory) = manual_clock();
        let tenure = tenure(&clock, &memory, "a").await;
        tenure.elector("nightly").start().await.unwrap().stop().await.unwrap();
        let next = tenure.elector("nightly").start().await.unwrap();
        clock.advance(SECOND).await;
        assert!(next.is_leader(), "the first one was dropped after it had stopped");
    });
}

/// Regression: callbacks were called only after the grace when the elector stopped.
#[test]
fn a_stop_with_callbacks_hands_over_without_waiting() {
    block_on(async {
        let (clock, memory) = manual_clock();
        let (a, b) = (tenure(&clock, &memory, "a").await, tenure(&clock, &memory, "b").await);
        let calls = Arc::new(AtomicU32::new(0));
        let lost = calls.clone();
        let first = a.elector("nightly").on_lost(move |_| {
            lost.fetch_add(1, Ordering::SeqCst);
        });
        let first = first.start().await.unwrap();
        clock.settle().await;
        let second = b.elector("nightly").start().await.unwrap();
        clock.advance(SECOND).await;
        drop(first);
        clock.settle().await;
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        assert!(second.is_leader());
    });
}

/// Regression: a candidate whose election got a different number of slots while it was disconnected waited
/// forever.
#[test]
fn a_candidate_rejected_after_reconnecting_reports_the_error() {
    block_on(async {
        let (clock, memory) = manual_clock();
        let link = tenure_testkit::PartitionableStore::new(memory.clone());
        let away = Tenure::builder()
            .store(link.clone())
            .lease(LEASE)
            .runtime(Arc::new(clock.clone()))
            .open()
            .await
            .unwrap();
        let elector = away.elector("nightly").start().await.unwrap();
        clock.settle().await;
        link.cut(true);
        clock.advance(SECOND * 7).await;
        let other = tenure(&clock, &memory, "b").await;
        let watcher = other.elector("nightly").start().await.unwrap();
        clock.advance(SECOND * 60).await;
        assert!(watcher.is_leader());
        watcher.stop().await.unwrap();
        let _pair = other.elector("nightly").slots(2).start().await.unwrap();
        link.cut(false);
        let waiting =
            tokio::spawn(async move { elector.elected().await.map(|leadership| leadership.token()) });
        clock.advance(SECOND * 10).await;
        assert!(matches!(waiting.await.unwrap(), Err(Error::Slots { slots: 2, requested: 1, .. })));
    });
}

/// Regression: closing waited forever for a store that did not respond.
#[test]
fn closing_takes_bounded_time_when_the_store_is_unreachable() {
    block_on(async {
        let (clock, memory) = manual_clock();
        let link = tenure_testkit::PartitionableStore::new(memory);
        let tenure = Tenure::builder()
            .store(link.clone())
            .lease(LEASE)
            .runtime(Arc::new(clock.clone()))
            .open()
            .await
            .unwrap();
        let elector = tenure.elector("nightly").start().await.unwrap();
        drop(elector.elected().await.unwrap());
        link.cut(true);
        drop(elector);
        let closing = tokio::spawn(async move { tenure.close().await });
        clock.advance(SECOND * 60).await;
        closing.await.unwrap().unwrap();
    });
}

/// Log lines of level `INFO` and above.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(tracing::Level, String)>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= tracing::Level::INFO
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Message(String);
        impl tracing::field::Visit for Message {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!("{field}={value:?} ");
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push((*event.metadata().level(), message.0));
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

impl Log {
    fn of(&self, level: tracing::Level) -> Vec<String> {
        let about_the_store =
            |(its, line): &&(tracing::Level, String)| *its == level && line.contains("store");
        self.0.lock().unwrap().iter().filter(about_the_store).map(|(_, line)| line.clone()).collect()
    }
}

/// Regression: while a database was down, the same warning was printed 38 times in 12 seconds.
#[test]
fn a_store_outage_is_logged_with_backoff_and_so_is_its_end() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    block_on(async {
        let (clock, memory) = manual_clock();
        let link = PartitionableStore::new(memory);
        let builder = Tenure::builder().store(link.clone()).name("a").runtime(Arc::new(clock.clone()));
        let tenure = builder.open().await.unwrap();
        let _elector = tenure.elector("nightly");
        clock.advance(5 * SECOND).await;
        assert_eq!(log.of(tracing::Level::WARN), [""; 0]);
        link.cut(true);
        for _ in 0..60 {
            clock.advance(SECOND).await;
        }
        let warnings = log.of(tracing::Level::WARN);
        assert!((2..=4).contains(&warnings.len()), "at once, and after 10 and 30 seconds: {warnings:#?}");
        assert!(warnings[0].contains("unlogged=0 "), "{warnings:#?}");
        assert!(!warnings[1].contains("unlogged=0 "), "{warnings:#?}");
        assert_eq!(log.of(tracing::Level::INFO), [""; 0]);
        link.cut(false);
        clock.advance(20 * SECOND).await;
        assert_eq!(log.of(tracing::Level::WARN).len(), warnings.len());
        let again = log.of(tracing::Level::INFO);
        assert!(again.len() == 1 && again[0].contains("store recovered"), "{again:#?}");
    });
}
