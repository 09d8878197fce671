//! One process and one queue: shared statements, waiting claims, and lost responses.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tenure::ClaimResult;
use tenure::port::*;
use tenure_testkit::block_on;

use crate::instrumented_store::Fault;
use crate::support::*;

#[test]
fn concurrent_claims_share_statements_and_each_gets_its_own_tasks() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail) = (tenure.tasks(), queue("mail"));
        claims.submit(&mail, many(100)).await.unwrap();
        store.fault("claim", Some(Fault::Waits));
        let claiming = (0..100).map(|n| {
            let (claims, mail, request) =
                (claims.clone(), mail.clone(), claim_request(&tenure, &format!("w{n}"), 1));
            tokio::spawn(async move { tasks(claims.claim(&mail, request, Duration::ZERO).await.unwrap()) })
        });
        let claiming: Vec<_> = claiming.collect();
        clock.settle().await;
        assert!(store.calls("claim") <= 2, "at most two run, and all others wait for them");
        store.fault("claim", None);
        let claimed: Vec<TaskId> = join_all(claiming)
            .await
            .into_iter()
            .flat_map(|claimed| claimed.unwrap())
            .map(|task| task.id)
            .collect();
        let distinct: std::collections::BTreeSet<_> = claimed.iter().collect();
        assert_eq!((claimed.len(), distinct.len()), (100, 100));
        assert!(store.calls("claim") <= 4, "{} statements for 100 claims", store.calls("claim"));
    });
}

#[test]
fn concurrent_settlements_and_single_submissions_share_statements() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail) = (tenure.tasks(), queue("mail"));
        let submitted = join_all(many(200).into_iter().map(|task| claims.submit(&mail, vec![task]))).await;
        assert!(submitted.iter().all(|one| one.as_ref().unwrap().len() == 1));
        assert!(store.calls("submit") <= 4, "{} statements for 200 tasks", store.calls("submit"));
        let claimed =
            tasks(claims.claim(&mail, claim_request(&tenure, "w", 1000), Duration::ZERO).await.unwrap());
        assert_eq!(claimed.len(), 200);
        let settled = join_all(claimed.iter().map(|task| claims.settle(complete(task)))).await;
        assert!(
            settled.iter().all(|one| *one.as_ref().unwrap() == SettleResult::Applied(TaskState::Completed))
        );
        assert!(store.calls("settle") <= 4, "{} statements for 200 settlements", store.calls("settle"));
    });
}

#[test]
fn a_rejected_task_does_not_fail_concurrent_submissions() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail) = (tenure.tasks(), queue("mail"));
        store.fault("submit", Some(Fault::Waits));
        let submitting = (0..10).map(|n| {
            let (claims, mail) = (claims.clone(), mail.clone());
            let orphan = NewTask { parents: vec![ParentRef::Task(TaskId(4711))], ..NewTask::new("k") };
            let task = if n == 5 { orphan } else { NewTask::new("k") };
            tokio::spawn(async move { claims.submit(&mail, vec![task]).await.is_ok() })
        });
        let submitting: Vec<_> = submitting.collect();
        clock.settle().await;
        store.fault("submit", None);
        let good: Vec<bool> = join_all(submitting).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(good, [true, true, true, true, true, false, true, true, true, true]);
    });
}

#[test]
fn a_waiting_claim_is_notified_of_a_submission_at_once() {
    block_on(async {
        let (clock, store) = manual_clock();
        let (claimer, submitter) = (process(&clock, &store, "a").await, process(&clock, &store, "b").await);
        let (mail, request) = (queue("mail"), claim_request(&claimer, "w", 1));
        let waiting = tokio::spawn({
            let (claims, mail) = (claimer.tasks(), mail.clone());
            async move { tasks(claims.claim(&mail, request, 60 * SECOND).await.unwrap()) }
        });
        clock.advance(20 * SECOND).await;
        assert!(!waiting.is_finished());
        submitter.tasks().submit(&mail, many(1)).await.unwrap();
        clock.settle().await;
        assert!(waiting.is_finished(), "the task arrives without delay");
        assert_eq!(waiting.await.unwrap().len(), 1);
    });
}

/// The lost wake-up: a task is submitted between the poll that finds nothing and the registration as waiter.
/// Here the registration is delayed; a poller that polls only before it would miss the task.
#[test]
fn a_task_submitted_just_before_registration_is_found_by_the_next_poll() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail, request) = (tenure.tasks(), queue("mail"), claim_request(&tenure, "w", 1));
        store.fault("register_queue_waiter", Some(Fault::Waits));
        let waiting = tokio::spawn({
            let (claims, mail) = (claims.clone(), mail.clone());
            async move { tasks(claims.claim(&mail, request, 60 * SECOND).await.unwrap()) }
        });
        clock.settle().await;
        assert_eq!(
            (store.calls("claim"), store.calls("register_queue_waiter")),
            (1, 1),
            "it has polled and is about to register"
        );
        claims.submit(&mail, many(1)).await.unwrap();
        store.fault("register_queue_waiter", None);
        clock.settle().await;
        assert!(waiting.is_finished(), "it polled again after it registered");
        waiting.await.unwrap();
    });
}

#[test]
fn a_task_without_a_notification_is_found_by_polling() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail, request) = (tenure.tasks(), queue("mail"), claim_request(&tenure, "w", 1));
        // The store has no waiter, so it never sends a notification.
        store.fault("register_queue_waiter", Some(Fault::Ignored));
        let waiting = tokio::spawn({
            let (claims, mail) = (claims.clone(), mail.clone());
            async move { tasks(claims.claim(&mail, request, 60 * SECOND).await.unwrap()) }
        });
        clock.advance(10 * SECOND).await;
        let polls = store.calls("claim");
        assert!((10..=20).contains(&polls), "about one poll per second, not {polls} in ten");
        claims.submit(&mail, many(1)).await.unwrap();
        clock.advance(2 * SECOND).await;
        assert!(waiting.is_finished());
        waiting.await.unwrap();
    });
}

#[test]
fn a_wait_that_ends_returns_no_task_and_reports_a_pause() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let (mail, request) = (queue("mail"), claim_request(&tenure, "w", 1));
        let start_claim = |request: ClaimRequest| {
            let (claims, mail) = (tenure.tasks(), mail.clone());
            tokio::spawn(async move { claims.claim(&mail, request, 5 * SECOND).await.unwrap() })
        };
        let waiting = start_claim(request.clone());
        clock.advance(6 * SECOND).await;
        assert_eq!(waiting.await.unwrap(), ClaimResult::Tasks(Vec::new()));
        let pause = Pause { paused_by: "ada".into(), reason: "lunch".into(), paused_at_ms: 0 };
        store.store.set_queue_paused(&mail.namespace, Some(&mail.name), Some(&pause)).await.unwrap();
        let waiting = start_claim(request);
        clock.advance(6 * SECOND).await;
        assert_eq!(waiting.await.unwrap(), ClaimResult::Refused(ClaimRefusal::Paused));
    });
}

#[test]
fn a_claim_of_an_ended_session_does_not_fail_the_others() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail) = (tenure.tasks(), queue("mail"));
        claims.submit(&mail, many(3)).await.unwrap();
        let ended = ClaimRequest {
            session: Some(tenure::SessionId::from_stored("gone")),
            ..claim_request(&tenure, "x", 1)
        };
        let all = [claim_request(&tenure, "w1", 1), ended, claim_request(&tenure, "w2", 1)];
        let claimed = join_all(all.map(|request| claims.claim(&mail, request, Duration::ZERO))).await;
        let claimed: Vec<ClaimResult> = claimed.into_iter().map(Result::unwrap).collect();
        assert!(matches!(&claimed[1], ClaimResult::Refused(ClaimRefusal::SessionEnded(_))), "{claimed:?}");
        assert!(
            matches!((&claimed[0], &claimed[2]), (ClaimResult::Tasks(a), ClaimResult::Tasks(b)) if a.len() + b.len() == 2),
            "{claimed:?}"
        );
    });
}

/// Regression: a waiting claim for a thousand tasks filled every poll of the broker by itself, so later claims
/// were never polled for.
#[test]
fn a_claim_for_a_thousand_tasks_does_not_starve_a_claim_for_one() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail) = (tenure.tasks(), queue("mail"));
        for mode in [AssignmentMode::Exclusive, AssignmentMode::Distributed] {
            set_mode(&store, &mail, mode, BrokerFallback::None).await;
            claims.campaign_for_maintenance().await.unwrap();
            clock.advance(SECOND).await;
            let kind = |kind: &str, limit: u32| {
                let mut request = claim_request(&tenure, kind, limit);
                request.worker.task_kinds = vec![kind.into()];
                request
            };
            let sleeper = tokio::spawn({
                let (claims, mail, request) = (claims.clone(), mail.clone(), kind("never", 1000));
                async move { claims.claim(&mail, request, 3600 * SECOND).await }
            });
            clock.settle().await;
            claims.submit(&mail, many(1)).await.unwrap();
            let claimed = tasks(claims.claim(&mail, kind("k", 1), Duration::ZERO).await.unwrap());
            assert_eq!(claimed.len(), 1, "{mode:?}");
            sleeper.abort();
        }
    });
}

#[test]
fn a_claim_that_leaves_the_wait_queue_leaves_nothing_claimed() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail) = (tenure.tasks(), queue("mail"));
        claims.submit(&mail, many(1)).await.unwrap();
        store.fault("claim", Some(Fault::Waits));
        let waiting = tokio::spawn({
            let (claims, mail, request) = (claims.clone(), mail.clone(), claim_request(&tenure, "w", 1));
            async move { claims.claim(&mail, request, 60 * SECOND).await }
        });
        clock.settle().await;
        waiting.abort();
        store.fault("claim", None);
        clock.settle().await;
        assert_eq!(counts(&store, &mail).await, [(TaskState::Ready, 1)].into());
        assert_eq!(store.calls("settle"), 1, "it was claimed and released");
    });
}

#[test]
fn a_claim_whose_response_was_lost_is_released_while_its_session_lives() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail) = (tenure.tasks(), queue("mail"));
        claims.submit(&mail, many(2)).await.unwrap();
        let first = tasks(claims.claim(&mail, claim_request(&tenure, "w", 1), Duration::ZERO).await.unwrap());
        store.fault("claim", Some(Fault::ResponseLost));
        assert!(claims.claim(&mail, claim_request(&tenure, "w", 1), Duration::ZERO).await.is_err());
        store.fault("claim", None);
        assert_eq!(counts(&store, &mail).await, [(TaskState::Claimed, 2)].into());
        clock.advance(60 * SECOND).await;
        assert_eq!(counts(&store, &mail).await, [(TaskState::Ready, 1), (TaskState::Claimed, 1)].into());
        assert_eq!(
            claims.settle(complete(&first[0])).await.unwrap(),
            SettleResult::Applied(TaskState::Completed)
        );
    });
}

#[test]
fn a_failed_task_waits_for_its_backoff() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail) = (tenure.tasks(), queue("mail"));
        let id = claims.submit(&mail, many(1)).await.unwrap()[0].id;
        let claimed =
            tasks(claims.claim(&mail, claim_request(&tenure, "w", 1), Duration::ZERO).await.unwrap());
        let settled = claims.fail(&mail.namespace, &claimed[0], "no paper", true).await.unwrap();
        assert_eq!(settled, SettleResult::Applied(TaskState::Scheduled));
        let view = state_of(&store, id).await;
        let wait = view.run_at_ms.unwrap() - Arc::new(clock.clone()).wall();
        assert!((800..=1_200).contains(&wait), "{wait}");
    });
}

trait WallClock {
    fn wall(&self) -> i64;
}

impl WallClock for tenure_testkit::ManualClock {
    fn wall(&self) -> i64 {
        tenure::runtime::Runtime::wall_ms(self)
    }
}

/// A claim that the client abandoned and that commits minutes later: reconciliation continues after a poll
/// without findings.
#[test]
fn an_abandoned_claim_that_commits_late_is_released() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail) = (tenure.tasks(), queue("mail"));
        let id = claims.submit(&mail, many(1)).await.unwrap()[0].id;
        store.fault("claim", Some(Fault::TakesEffectLate));
        claims.claim(&mail, claim_request(&tenure, "w", 1), Duration::ZERO).await.unwrap_err();
        clock.advance(300 * SECOND).await;
        store.fault("claim", None);
        clock.settle().await;
        assert_eq!(state_of(&store, id).await.state, TaskState::Claimed);
        clock.advance(200 * SECOND).await;
        assert_eq!(state_of(&store, id).await.state, TaskState::Ready);
    });
}

/// A thousand unapproved workers, and an approved one at the end of the wait queue.
#[test]
fn unapproved_workers_do_not_keep_others_from_being_polled() {
    block_on(async {
        let (clock, store) = manual_clock();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail) = (tenure.tasks(), queue("mail"));
        let settings = QueueSettings { require_approval: true, ..QueueSettings::default() };
        store.store.set_queue(&mail, &settings).await.unwrap();
        store.store.set_worker_approval(&mail.namespace, "good", Some("ada")).await.unwrap();
        claims.submit(&mail, many(1)).await.unwrap();
        store.fault("claim", Some(Fault::Waits));
        let start_claim = |name: String, session: Option<tenure::SessionId>| {
            let (claims, mail, request) = (claims.clone(), mail.clone(), claim_request(&tenure, &name, 1));
            let request = ClaimRequest { session: session.or(request.session.clone()), ..request };
            tokio::spawn(async move { claims.claim(&mail, request, Duration::ZERO).await.unwrap() })
        };
        let mut bad = Vec::new();
        for n in 0..300 {
            bad.push((n, start_claim(format!("bad{n}"), None)));
            bad.push((
                n,
                start_claim("good".into(), Some(tenure::SessionId::from_stored(&format!("gone{n}")))),
            ));
        }
        let good = start_claim("good".into(), None);
        clock.settle().await;
        store.fault("claim", None);
        assert_eq!(tasks(good.await.unwrap()).len(), 1);
        let calls = store.calls("claim");
        assert!(calls <= 12, "{calls} calls");
        for (n, one) in bad {
            let refused = one.await.unwrap();
            let named = ClaimRefusal::NotApproved(format!("bad{n}"));
            let ended = ClaimRefusal::SessionEnded(tenure::SessionId::from_stored(&format!("gone{n}")));
            assert!(
                [ClaimResult::Refused(named), ClaimResult::Refused(ended)].contains(&refused),
                "{refused:?}"
            );
        }
    });
}
