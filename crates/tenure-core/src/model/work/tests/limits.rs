//! Matching and limits of claims.

use super::*;
use crate::port::{NewWorker, RateLimit};

use TaskState::{Blocked, Claimed, Ready};

#[test]
fn a_worker_claims_only_matching_tasks() {
    let mut fixture = TestQueue::new();
    let ids = fixture.submit(vec![
        NewTask { required_tags: words(&["gpu"]), ..task() },
        NewTask { allowed_workers: words(&["v"]), ..task() },
        NewTask { allowed_workers: words(&["*"]), ..NewTask::new("other") },
        NewTask::new(""),
    ]);
    let knows = WorkerProfile { task_kinds: words(&["k"]), ..worker("w", &[]) };
    let got = fixture.claim_as(ClaimRequest { worker: knows, ..claim_request(9) }).0;
    assert_eq!(got.iter().map(|it| it.id).collect::<Vec<_>>(), [ids[3]]);
    let got = fixture.claim_as(ClaimRequest { worker: worker("v", &["gpu"]), ..claim_request(9) }).0;
    assert_eq!(got.iter().map(|it| it.id).collect::<Vec<_>>(), ids[..3]);
}

#[test]
fn requests_are_served_in_order_and_never_exceed_their_limits() {
    let mut fixture = TestQueue::new();
    let ids = fixture.submit(vec![task(); 5]);
    let ClaimBatchResponse::Served { tasks, next_in } = fixture.claim_batch(
        ClaimAuthority::Direct,
        vec![claim_request(2), claim_request(0), claim_request(2), claim_request(2)],
    ) else {
        panic!("refused")
    };
    let got: Vec<Vec<TaskId>> =
        tasks.iter().map(|claim_request| claim_request.iter().map(|it| it.id).collect()).collect();
    assert_eq!(got, [&ids[..2], &[], &ids[2..4], &ids[4..]]);
    assert_eq!(next_in, None);
}

#[test]
fn preferred_workers_claim_first_during_the_preference_window() {
    let mut fixture = TestQueue::new();
    let id = fixture.submit_one(NewTask { preferred_tags: words(&["near", "fast"]), ..task() });
    let plain = fixture.submit_one(task());
    fixture.now += 1_000;
    let (got, next_in) = fixture.claim_as(claim_request(9));
    assert_eq!((got.len(), got[0].id), (1, plain));
    assert_eq!(next_in, Some(Duration::from_secs(4)));
    let fast = ClaimRequest { worker: worker("f", &["fast"]), ..claim_request(1) };
    assert_eq!(fixture.claim_as(fast).0[0].id, id);
    let other = fixture.submit_one(NewTask { preferred_tags: words(&["near"]), ..task() });
    fixture.now += 4_999;
    assert_eq!(fixture.claim(1), []);
    fixture.now += 1;
    assert_eq!(fixture.claim_one().id, other);
}

#[test]
fn a_task_at_its_key_limit_is_blocked_until_a_claim_ends() {
    let mut fixture = TestQueue::new();
    let ids = fixture.submit(vec![keyed("t", 2); 4]);
    let plain = fixture.submit_one(task());
    let claims = fixture.claim(9);
    assert_eq!(claims.iter().map(|it| it.id).collect::<Vec<_>>(), [ids[0], ids[1], plain]);
    assert_eq!(fixture.states(&ids), [Claimed, Claimed, Blocked, Blocked]);
    assert!(fixture.notifies(|fixture| fixture.complete(&claims[0])));
    assert_eq!(fixture.states(&ids[2..]), [Ready, Blocked], "one claim ended, one task is unblocked");
    assert_eq!(fixture.claimed_ids(9), [ids[2]]);
}

#[test]
fn every_end_of_a_claim_unblocks_the_next_task() {
    type End = fn(&mut TestQueue, &ClaimedTask);
    let ends: [(&str, End); 6] = [
        ("completed", |fixture, claim| assert_ne!(fixture.complete(claim), SettleResult::ClaimLost)),
        ("failed", |fixture, claim| assert_ne!(fixture.fail(claim, true, 9_000), SettleResult::ClaimLost)),
        ("dead", |fixture, claim| assert_ne!(fixture.fail(claim, false, 0), SettleResult::ClaimLost)),
        ("released", |fixture, claim| {
            assert_ne!(fixture.settle(claim, ClaimOutcome::Release), SettleResult::ClaimLost)
        }),
        ("cancelled", |fixture, claim| {
            assert_eq!(fixture.apply_action(&[claim.id], TaskAction::Cancel), [claim.id])
        }),
        ("lost", |fixture, _| {
            fixture.now += 60_001;
            assert_eq!(fixture.maintain().recovered, 1);
        }),
    ];
    for (how, end) in ends {
        let mut fixture = TestQueue::new();
        let ids = fixture.submit(vec![keyed("t", 1); 2]);
        let claims = fixture.claim(9);
        assert_eq!(fixture.states(&ids), [Claimed, Blocked]);
        end(&mut fixture, &claims[0]);
        assert_eq!(fixture.state(ids[1]), Ready, "{how}");
    }
}

#[test]
fn one_task_is_unblocked_per_requirements() {
    let mut fixture = TestQueue::new();
    let gpu = NewTask { required_tags: words(&["gpu"]), ..keyed("t", 1) };
    let ids = fixture.submit(vec![keyed("t", 1), gpu.clone(), gpu, keyed("t", 1), keyed("t", 1)]);
    let all = ClaimRequest { worker: worker("g", &["gpu"]), ..claim_request(9) };
    let claim = fixture.claim_as(all).0.remove(0);
    assert_eq!(fixture.states(&ids), [Claimed, Blocked, Blocked, Blocked, Blocked]);
    fixture.complete(&claim);
    assert_eq!(fixture.states(&ids[1..]), [Ready, Blocked, Ready, Blocked]);
    // A worker without the tag `gpu` gets the next task and does not wait for a worker with that tag.
    assert_eq!(fixture.claimed_ids(9), [ids[3]]);
}

#[test]
fn cancelling_an_unblocked_task_unblocks_the_next() {
    let mut fixture = TestQueue::new();
    let ids = fixture.submit(vec![keyed("t", 1); 3]);
    let claims = fixture.claim(9);
    fixture.complete(&claims[0]);
    assert_eq!(fixture.states(&ids[1..]), [Ready, Blocked]);
    fixture.apply_action(&ids[1..2], TaskAction::Cancel);
    assert_eq!(fixture.state(ids[2]), Ready);
}

#[test]
fn a_concurrency_key_counts_in_its_namespace_only() {
    let mut fixture = TestQueue::new();
    fixture.submit_one(keyed("t", 1));
    fixture.claim_one();
    let claim = |fixture: &mut TestQueue, queue: QueueKey| {
        let tasks = vec![keyed("t", 1)];
        fixture.work.submit(&Submission { queue: queue.clone(), tasks }, fixture.now).unwrap();
        let claim_batch =
            ClaimBatchRequest { queue, authority: ClaimAuthority::Direct, requests: vec![claim_request(1)] };
        match fixture.work.claim(&claim_batch, &fixture.elections, fixture.now) {
            ClaimBatchResponse::Served { tasks, .. } => tasks[0].len(),
            ClaimBatchResponse::Refused(refusal) => panic!("{refusal:?}"),
        }
    };
    assert_eq!(claim(&mut fixture, QueueKey::new(Name::default_namespace(), name("r"))), 0);
    assert_eq!(claim(&mut fixture, QueueKey::new(name("other"), name("r"))), 1);
}

#[test]
fn claims_respect_the_rate_limit() {
    let mut fixture = TestQueue::new();
    fixture.set(QueueSettings { rate: Some(RateLimit { count: 2, per_ms: 1_000 }), ..Default::default() });
    fixture.submit(vec![task(); 9]);
    let (got, next_in) = fixture.claim_as(claim_request(9));
    assert_eq!((got.len(), next_in), (2, Some(Duration::from_millis(500))));
    fixture.now += 499;
    assert_eq!(fixture.claim(9).len(), 0);
    fixture.now += 1;
    assert_eq!(fixture.claim(9).len(), 1);
    fixture.now += 60_000;
    assert_eq!(fixture.claim(9).len(), 2, "an idle period saves no more than one burst");
}

#[test]
fn the_claim_limit_of_a_queue_is_respected() {
    let mut fixture = TestQueue::new();
    fixture.set(QueueSettings { max_claimed: Some(2), ..Default::default() });
    fixture.submit(vec![task(); 3]);
    let claims = fixture.claim(9);
    assert_eq!(claims.len(), 2);
    assert!(fixture.notifies(|fixture| fixture.complete(&claims[0])));
    assert_eq!(fixture.claim(9).len(), 1);
}

#[test]
fn a_queue_can_require_approved_workers() {
    let mut fixture = TestQueue::new();
    fixture.set(QueueSettings { require_approval: true, ..Default::default() });
    fixture.submit_one(task());
    let space = Name::default_namespace();
    let refused = Some(ClaimRefusal::NotApproved("w".into()));
    assert_eq!(fixture.refusal(ClaimAuthority::Direct, claim_request(1)), refused);
    assert!(fixture.notifies(|fixture| assert!(fixture.work.set_worker_approval(&space, "w", Some("ada")))));
    assert!(!fixture.work.set_worker_approval(&space, "w", Some("bob")), "unchanged");
    assert_eq!(fixture.refusal(ClaimAuthority::Direct, claim_request(0)), None);
    let known: NewWorker = serde_json::from_str(r#"{"name":"w"}"#).unwrap();
    fixture.work.register_worker(&space, &known, fixture.now);
    let view = &fixture.work.workers(Some(&space), &fixture.elections, fixture.now)[0];
    assert_eq!(view.approved_by.as_deref(), Some("ada"));
    assert!(fixture.work.set_worker_approval(&space, "w", None));
    assert_eq!(fixture.refusal(ClaimAuthority::Direct, claim_request(1)), refused);
}

#[test]
fn a_backward_clock_step_does_not_stop_a_rate_limit() {
    let mut fixture = TestQueue::new();
    let rate = Some(RateLimit { count: 1, per_ms: 1_000 });
    fixture.work.set_queue(&queue(), &QueueSettings { rate, ..QueueSettings::default() });
    fixture.submit(vec![task(); 3]);
    assert_eq!(fixture.claim(3).len(), 1);
    fixture.now -= 3_600_000;
    assert_eq!(fixture.claim(3).len(), 0, "the step adds nothing");
    fixture.now += 1_000;
    assert_eq!(fixture.claim(3).len(), 1);
}
