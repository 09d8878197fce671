//! Recovery and pruning by maintenance.

use super::*;

use TaskState::{Claimed, Dead, Ready};

#[test]
fn only_the_leader_runs_maintenance() {
    let mut fixture = TestQueue::new();
    fixture.submit_one(task());
    fixture.claim_one();
    fixture.now += 60_001;
    let old = fixture.leader.clone();
    fixture.elect_leader();
    let new = std::mem::replace(&mut fixture.leader, old);
    assert_eq!(
        fixture.maintain(),
        MaintenanceResponse { store_now_at_ms: fixture.now, ..MaintenanceResponse::default() }
    );
    fixture.leader = new;
    let response = fixture.maintain();
    assert_eq!((response.is_leader, response.recovered), (true, 1));
    assert_eq!(fixture.maintain().recovered, 0, "it is safe to repeat");
}

#[test]
fn a_claim_of_an_ended_session_is_recovered_and_counts_as_an_attempt() {
    let mut fixture = TestQueue::new();
    let session = fixture.session();
    let id = fixture.submit_one(NewTask { max_attempts: 2, ..task() });
    let hang = ClaimRequest { session: Some(session.clone()), claim_timeout_ms: None, ..claim_request(1) };
    let claim = fixture.claim_as(hang.clone()).0.remove(0);
    assert_eq!(fixture.work.held_claims(&session), [(id, claim.token)]);
    fixture.now += 1_000_000_000;
    assert_eq!(fixture.maintain().recovered, 0, "the session's heartbeats keep it");
    fixture.elections.end_session(&session, fixture.now);
    assert_eq!(fixture.maintain().recovered, 1);
    let view = fixture.view(id);
    assert_eq!((view.state, view.attempt), (Ready, 1));
    assert_eq!(view.failures[0].error, "claim lost: session ended");
    assert_eq!(fixture.complete(&claim), SettleResult::ClaimLost);
    assert_eq!(fixture.refusal(ClaimAuthority::Direct, hang), Some(ClaimRefusal::SessionEnded(session)));
}

#[test]
fn a_claim_past_its_timeout_is_recovered_once_and_the_last_attempt_is_dead() {
    let mut fixture = TestQueue::new();
    let id = fixture.submit_one(NewTask { max_attempts: 2, max_run_ms: Some(100), ..task() });
    let child = fixture.submit_one(after(&[id]));
    for (attempt, state) in [(1, Ready), (2, Dead)] {
        fixture.claim_one();
        fixture.now += 100;
        assert_eq!(fixture.maintain().recovered, 0, "its claim timeout is not over");
        assert_eq!(fixture.maintain().next_in, Some(Duration::from_millis(1)));
        fixture.now += 1;
        let response = fixture.maintain();
        assert_eq!((response.recovered, response.dead), (1, u64::from(attempt == 2)));
        assert_eq!((fixture.state(id), fixture.view(id).attempt), (state, attempt));
    }
    assert_eq!(
        fixture.view(id).end_reason.as_deref(),
        Some("attempt 2 of 2 failed: claim lost: max_run_ms exceeded")
    );
    assert_eq!(fixture.state(child), Dead);
}

#[test]
fn a_clock_step_expires_nothing() {
    let mut fixture = TestQueue::new();
    let id = fixture.submit_one(NewTask { max_wait_ms: Some(1_000), ..task() });
    let claim = fixture.claim_one();
    let waits = fixture.submit_one(NewTask { max_wait_ms: Some(1_000), ..task() });
    fixture.now += 3_600_000;
    let response = fixture.maintain_by(Some(START + 10), 1_000);
    assert_eq!((response.recovered, response.dead), (0, 0));
    assert_eq!(fixture.states(&[id, waits]), [Claimed, Ready]);
    assert_eq!(
        fixture.maintain_by(Some(i64::MAX), 1_000).recovered,
        1,
        "the lesser of the two clocks counts"
    );
    assert_eq!(fixture.complete(&claim), SettleResult::ClaimLost);
}

#[test]
fn a_task_past_its_maximum_wait_is_dead_with_its_children() {
    let mut fixture = TestQueue::new();
    let expiring_waits = NewTask { max_wait_ms: Some(100), ..task() };
    let id = fixture.submit_one(expiring_waits.clone());
    let child = fixture.submit_one(after(&[id]));
    let later = fixture.submit_one(NewTask { run_at_ms: Some(START + 50), ..expiring_waits.clone() });
    fixture.now += 101;
    let response = fixture.maintain();
    assert_eq!((response.dead, response.promoted), (2, 1));
    assert_eq!(fixture.states(&[id, child, later]), [Dead, Dead, Ready]);
    assert!(fixture.view(id).end_reason.unwrap().contains("max_wait_ms (100 ms)"));
    // After its claim is lost, a task starts a new maximum wait.
    let claim = fixture.claim_one();
    assert_eq!(claim.id, later);
    fixture.now += 1_000;
    fixture.settle(&claim, ClaimOutcome::Release);
    assert_eq!(fixture.maintain().dead, 0);
    fixture.now += 101;
    assert_eq!(fixture.maintain().dead, 1);
}

#[test]
fn a_blocked_task_also_waits() {
    let mut fixture = TestQueue::new();
    fixture.submit_one(keyed("t", 1));
    let held = fixture.submit_one(NewTask { max_wait_ms: Some(100), ..keyed("t", 1) });
    fixture.claim(9);
    assert_eq!(fixture.state(held), TaskState::Blocked);
    fixture.now += 101;
    assert_eq!(fixture.maintain().dead, 1);
    assert_eq!(fixture.state(held), Dead);
}

#[test]
fn a_due_task_becomes_ready_and_notifies() {
    let mut fixture = TestQueue::new();
    let id = fixture.submit_one(NewTask { run_at_ms: Some(START + 100), ..task() });
    assert_eq!(fixture.maintain().next_in, Some(Duration::from_millis(100)));
    fixture.now += 100;
    assert!(fixture.notifies(|fixture| assert_eq!(fixture.maintain().promoted, 1)));
    assert_eq!(fixture.state(id), Ready);
}

#[test]
fn finished_tasks_are_pruned_with_their_keys() {
    let mut fixture = TestQueue::new();
    fixture.set(QueueSettings { retention_ms: 100, dead_retention_ms: 200, ..Default::default() });
    let once = NewTask { idempotency_key: Some("k".into()), ..task() };
    let done = fixture.submit_one(once.clone());
    let claim = fixture.claim_one();
    fixture.complete(&claim);
    let dead = fixture.submit_one(task());
    fixture.kill_next();
    let cancelled = fixture.submit_one(task());
    fixture.apply_action(&[cancelled], TaskAction::Cancel);
    fixture.now += 100;
    assert_eq!(fixture.maintain().pruned, 0);
    fixture.now += 1;
    assert_eq!(fixture.maintain().pruned, 2);
    assert_eq!(fixture.work.task(&Name::default_namespace(), done), None);
    assert_eq!(fixture.state(dead), Dead);
    assert!(fixture.try_submit(vec![once]).unwrap()[0].created);
    fixture.now += 100;
    assert_eq!(fixture.maintain().pruned, 1);
}

#[test]
fn maintenance_respects_its_limit_and_reports_more() {
    let mut fixture = TestQueue::new();
    fixture.set(QueueSettings { dead_retention_ms: 0, ..Default::default() });
    let once = NewTask { max_attempts: 1, ..task() };
    fixture.submit(vec![once; 5]);
    fixture.claim(9);
    fixture.submit(vec![NewTask { run_at_ms: Some(START + 1), ..task() }; 5]);
    fixture.submit(vec![NewTask { max_wait_ms: Some(0), ..task() }; 5]);
    fixture.now += 60_001;
    let mut sums = (0, 0, 0, 0);
    for round in 0..20 {
        let it = fixture.maintain_by(Some(i64::MAX), 2);
        assert!(it.recovered <= 2 && it.dead <= 2 && it.promoted <= 2 && it.pruned <= 2);
        sums = (sums.0 + it.recovered, sums.1 + it.dead, sums.2 + it.promoted, sums.3 + it.pruned);
        if !it.has_more {
            assert!(round > 1);
            break;
        }
        fixture.now += 1;
    }
    fixture.now += 1;
    sums.3 += fixture.maintain().pruned;
    assert_eq!(sums, (5, 5, 5, 10));
}

#[test]
fn the_broker_endpoint_is_known_while_it_leads() {
    use crate::port::BrokerEndpoint;
    let mut fixture = TestQueue::new();
    let (session, token) = fixture.leader.clone();
    let post = BrokerEndpoint { token, session, address: "h:1".into(), secret: vec![1] };
    assert!(fixture.work.publish_broker_endpoint(&post, &fixture.elections));
    assert!(fixture.work.broker_endpoint(&fixture.elections) == Some(post.clone()));
    fixture.elect_leader();
    assert!(fixture.work.broker_endpoint(&fixture.elections).is_none());
    assert!(!fixture.work.publish_broker_endpoint(&post, &fixture.elections));
}
