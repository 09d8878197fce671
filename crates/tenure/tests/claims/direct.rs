//! One process, one queue: shared statements, long polls, and answers that were lost.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tenure::Claimed;
use tenure::port::*;
use tenure_testkit::block_on;

use crate::spy::Fault;
use crate::support::*;

#[test]
fn claims_at_the_same_time_share_statements_and_each_gets_its_own() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail) = (tenure.claims(), queue("mail"));
        claims.submit(&mail, many(100)).await.unwrap();
        store.fault("claim", Some(Fault::Waits));
        let asking = (0..100).map(|n| {
            let (claims, mail, seat) = (claims.clone(), mail.clone(), seat(&tenure, &format!("w{n}"), 1));
            tokio::spawn(async move { tasks(claims.claim(&mail, seat, Duration::ZERO).await.unwrap()) })
        });
        let asking: Vec<_> = asking.collect();
        clock.settle().await;
        assert!(store.calls("claim") <= 2, "two are under way at most, and all others wait for them");
        store.fault("claim", None);
        let got: Vec<TaskId> =
            join_all(asking).await.into_iter().flat_map(|got| got.unwrap()).map(|task| task.id).collect();
        let distinct: std::collections::BTreeSet<_> = got.iter().collect();
        assert_eq!((got.len(), distinct.len()), (100, 100));
        assert!(store.calls("claim") <= 4, "{} statements for 100 claims", store.calls("claim"));
    });
}

#[test]
fn settlements_and_single_submissions_at_the_same_time_share_statements() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail) = (tenure.claims(), queue("mail"));
        let submitted = join_all(many(200).into_iter().map(|task| claims.submit(&mail, vec![task]))).await;
        assert!(submitted.iter().all(|one| one.as_ref().unwrap().len() == 1));
        assert!(store.calls("submit") <= 4, "{} statements for 200 tasks", store.calls("submit"));
        let got = tasks(claims.claim(&mail, seat(&tenure, "w", 1000), Duration::ZERO).await.unwrap());
        assert_eq!(got.len(), 200);
        let settled = join_all(got.iter().map(|task| claims.settle(complete(task)))).await;
        assert!(settled.iter().all(|one| *one.as_ref().unwrap() == Settled::Now(TaskState::Completed)));
        assert!(store.calls("settle") <= 4, "{} statements for 200 settlements", store.calls("settle"));
    });
}

#[test]
fn a_task_that_is_refused_refuses_no_other_that_was_submitted_at_the_same_time() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail) = (tenure.claims(), queue("mail"));
        store.fault("submit", Some(Fault::Waits));
        let submitting = (0..10).map(|n| {
            let (claims, mail) = (claims.clone(), mail.clone());
            let orphan = NewTask { parents: vec![Parent::Task(TaskId(4711))], ..NewTask::new("k") };
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
fn who_waits_is_woken_by_a_submission_at_once() {
    block_on(async {
        let (clock, store) = hand_driven();
        let (asker, submitter) = (process(&clock, &store, "a").await, process(&clock, &store, "b").await);
        let (mail, wish) = (queue("mail"), seat(&asker, "w", 1));
        let waiting = tokio::spawn({
            let (claims, mail) = (asker.claims(), mail.clone());
            async move { tasks(claims.claim(&mail, wish, 60 * SECOND).await.unwrap()) }
        });
        clock.advance(20 * SECOND).await;
        assert!(!waiting.is_finished());
        submitter.claims().submit(&mail, many(1)).await.unwrap();
        clock.settle().await;
        assert!(waiting.is_finished(), "no time has passed, and it has its task");
        assert_eq!(waiting.await.unwrap().len(), 1);
    });
}

/// The lost wake-up: a submission between the look that finds nothing and the word that we sleep. Here the word is held up in
/// between; whoever looked before saying it, and not after, would sleep on.
#[test]
fn what_is_submitted_just_before_it_falls_asleep_is_found_by_the_look_after() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail, wish) = (tenure.claims(), queue("mail"), seat(&tenure, "w", 1));
        store.fault("doze", Some(Fault::Waits));
        let waiting = tokio::spawn({
            let (claims, mail) = (claims.clone(), mail.clone());
            async move { tasks(claims.claim(&mail, wish, 60 * SECOND).await.unwrap()) }
        });
        clock.settle().await;
        assert_eq!(
            (store.calls("claim"), store.calls("doze")),
            (1, 1),
            "it has looked, and is about to sleep"
        );
        claims.submit(&mail, many(1)).await.unwrap();
        store.fault("doze", None);
        clock.settle().await;
        assert!(waiting.is_finished(), "it looked again after it said that it sleeps");
        waiting.await.unwrap();
    });
}

#[test]
fn who_is_not_rung_for_finds_it_by_looking() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail, wish) = (tenure.claims(), queue("mail"), seat(&tenure, "w", 1));
        // The store never learns that anybody sleeps, so it never rings.
        store.fault("doze", Some(Fault::Ignored));
        let waiting = tokio::spawn({
            let (claims, mail) = (claims.clone(), mail.clone());
            async move { tasks(claims.claim(&mail, wish, 60 * SECOND).await.unwrap()) }
        });
        clock.advance(10 * SECOND).await;
        let looks = store.calls("claim");
        assert!((10..=20).contains(&looks), "a look a second, not {looks} in ten");
        claims.submit(&mail, many(1)).await.unwrap();
        clock.advance(2 * SECOND).await;
        assert!(waiting.is_finished());
        waiting.await.unwrap();
    });
}

#[test]
fn a_wait_that_is_over_ends_with_nothing_and_a_pause_says_so() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let (mail, wish) = (queue("mail"), seat(&tenure, "w", 1));
        let ask = |wish: Seat| {
            let (claims, mail) = (tenure.claims(), mail.clone());
            tokio::spawn(async move { claims.claim(&mail, wish, 5 * SECOND).await.unwrap() })
        };
        let waiting = ask(wish.clone());
        clock.advance(6 * SECOND).await;
        assert_eq!(waiting.await.unwrap(), Claimed::Tasks(Vec::new()));
        let pause = Pause { by: "ada".into(), reason: "lunch".into(), at_ms: 0 };
        store.store.set_queue_paused(&mail.namespace, Some(&mail.name), Some(&pause)).await.unwrap();
        let waiting = ask(wish);
        clock.advance(6 * SECOND).await;
        assert_eq!(waiting.await.unwrap(), Claimed::Refused(ClaimRefusal::Paused));
    });
}

#[test]
fn a_seat_whose_session_is_gone_spoils_nothing_for_the_others() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail) = (tenure.claims(), queue("mail"));
        claims.submit(&mail, many(3)).await.unwrap();
        let gone = Seat { session: Some(tenure::SessionId::from_stored("gone")), ..seat(&tenure, "x", 1) };
        let all = [seat(&tenure, "w1", 1), gone, seat(&tenure, "w2", 1)];
        let got = join_all(all.map(|seat| claims.claim(&mail, seat, Duration::ZERO))).await;
        let got: Vec<Claimed> = got.into_iter().map(Result::unwrap).collect();
        assert!(matches!(&got[1], Claimed::Refused(ClaimRefusal::Gone(_))), "{got:?}");
        assert!(
            matches!((&got[0], &got[2]), (Claimed::Tasks(a), Claimed::Tasks(b)) if a.len() + b.len() == 2),
            "{got:?}"
        );
    });
}

/// A sleeper that wants a thousand once filled every look of the leader's lane by itself, and who came later was never looked
/// after.
#[test]
fn who_waits_for_a_thousand_keeps_nobody_else_from_one() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail) = (tenure.claims(), queue("mail"));
        for mode in [Mode::Exclusive, Mode::Distributed] {
            set_mode(&store, &mail, mode, Fallback::None).await;
            claims.stand().await.unwrap();
            clock.advance(SECOND).await;
            let kind = |kind: &str, limit: u32| {
                let mut seat = seat(&tenure, kind, limit);
                seat.worker.kinds = vec![kind.into()];
                seat
            };
            let sleeper = tokio::spawn({
                let (claims, mail, seat) = (claims.clone(), mail.clone(), kind("never", 1000));
                async move { claims.claim(&mail, seat, 3600 * SECOND).await }
            });
            clock.settle().await;
            claims.submit(&mail, many(1)).await.unwrap();
            let got = tasks(claims.claim(&mail, kind("k", 1), Duration::ZERO).await.unwrap());
            assert_eq!(got.len(), 1, "{mode:?}");
            sleeper.abort();
        }
    });
}

#[test]
fn who_leaves_the_line_leaves_nothing_claimed() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail) = (tenure.claims(), queue("mail"));
        claims.submit(&mail, many(1)).await.unwrap();
        store.fault("claim", Some(Fault::Waits));
        let waiting = tokio::spawn({
            let (claims, mail, seat) = (claims.clone(), mail.clone(), seat(&tenure, "w", 1));
            async move { claims.claim(&mail, seat, 60 * SECOND).await }
        });
        clock.settle().await;
        waiting.abort();
        store.fault("claim", None);
        clock.settle().await;
        assert_eq!(counts(&store, &mail).await, [(TaskState::Ready, 1)].into());
        assert_eq!(store.calls("settle"), 1, "it was claimed, and given back");
    });
}

#[test]
fn a_claim_whose_answer_was_lost_goes_back_though_its_session_lives_on() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail) = (tenure.claims(), queue("mail"));
        claims.submit(&mail, many(2)).await.unwrap();
        let kept = tasks(claims.claim(&mail, seat(&tenure, "w", 1), Duration::ZERO).await.unwrap());
        store.fault("claim", Some(Fault::AnswerLost));
        assert!(claims.claim(&mail, seat(&tenure, "w", 1), Duration::ZERO).await.is_err());
        store.fault("claim", None);
        assert_eq!(counts(&store, &mail).await, [(TaskState::Claimed, 2)].into());
        clock.advance(60 * SECOND).await;
        assert_eq!(counts(&store, &mail).await, [(TaskState::Ready, 1), (TaskState::Claimed, 1)].into());
        assert_eq!(claims.settle(complete(&kept[0])).await.unwrap(), Settled::Now(TaskState::Completed));
    });
}

#[test]
fn a_failure_waits_as_its_backoff_says() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail) = (tenure.claims(), queue("mail"));
        let id = claims.submit(&mail, many(1)).await.unwrap()[0].id;
        let got = tasks(claims.claim(&mail, seat(&tenure, "w", 1), Duration::ZERO).await.unwrap());
        let settled = claims.fail(&mail.namespace, &got[0], "no paper", true).await.unwrap();
        assert_eq!(settled, Settled::Now(TaskState::Scheduled));
        let view = state_of(&store, id).await;
        let wait = view.run_at_ms.unwrap() - Arc::new(clock.clone()).wall();
        assert!((800..=1_200).contains(&wait), "{wait}");
    });
}

trait Wall {
    fn wall(&self) -> i64;
}

impl Wall for tenure_testkit::Clock {
    fn wall(&self) -> i64 {
        tenure::runtime::Runtime::wall_ms(self)
    }
}

/// A claim that was given up and is committed minutes later: no look that finds nothing ends the doubt.
#[test]
fn a_claim_that_happens_long_after_it_was_given_up_goes_back() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail) = (tenure.claims(), queue("mail"));
        let id = claims.submit(&mail, many(1)).await.unwrap()[0].id;
        store.fault("claim", Some(Fault::HappensLate));
        claims.claim(&mail, seat(&tenure, "w", 1), Duration::ZERO).await.unwrap_err();
        clock.advance(300 * SECOND).await;
        store.fault("claim", None);
        clock.settle().await;
        assert_eq!(state_of(&store, id).await.state, TaskState::Claimed);
        clock.advance(200 * SECOND).await;
        assert_eq!(state_of(&store, id).await.state, TaskState::Ready);
    });
}

/// A thousand who may not, and one who may, at the end of the line.
#[test]
fn who_may_not_claim_keeps_nobody_else_from_a_look() {
    block_on(async {
        let (clock, store) = hand_driven();
        let tenure = process(&clock, &store, "a").await;
        let (claims, mail) = (tenure.claims(), queue("mail"));
        let settings = QueueSettings { approval: true, ..QueueSettings::default() };
        store.store.set_queue(&mail, &settings).await.unwrap();
        store.store.approve(&mail.namespace, "good", Some("ada")).await.unwrap();
        claims.submit(&mail, many(1)).await.unwrap();
        store.fault("claim", Some(Fault::Waits));
        let ask = |name: String, session: Option<tenure::SessionId>| {
            let (claims, mail, wish) = (claims.clone(), mail.clone(), seat(&tenure, &name, 1));
            let wish = Seat { session: session.or(wish.session.clone()), ..wish };
            tokio::spawn(async move { claims.claim(&mail, wish, Duration::ZERO).await.unwrap() })
        };
        let mut bad = Vec::new();
        for n in 0..300 {
            bad.push((n, ask(format!("bad{n}"), None)));
            bad.push((n, ask("good".into(), Some(tenure::SessionId::from_stored(&format!("gone{n}"))))));
        }
        let good = ask("good".into(), None);
        clock.settle().await;
        store.fault("claim", None);
        assert_eq!(tasks(good.await.unwrap()).len(), 1);
        let calls = store.calls("claim");
        assert!(calls <= 12, "{calls} calls");
        for (n, one) in bad {
            let refused = one.await.unwrap();
            let named = ClaimRefusal::NotApproved(format!("bad{n}"));
            let gone = ClaimRefusal::Gone(tenure::SessionId::from_stored(&format!("gone{n}")));
            assert!([Claimed::Refused(named), Claimed::Refused(gone)].contains(&refused), "{refused:?}");
        }
    });
}
