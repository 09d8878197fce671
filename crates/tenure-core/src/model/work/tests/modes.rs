//! Authority to assign tasks and resources.

use super::*;
use crate::port::{AssignmentMode, BrokerFallback, Pause, PoolMatchRequest, PoolSettings};

fn stranger() -> ClaimAuthority {
    ClaimAuthority::Leader { session: SessionId::from_stored("x"), token: Token::from_u64(1) }
}

#[test]
fn mode_and_fallback_determine_the_allowed_authority() {
    use AssignmentMode::{Distributed, Exclusive};
    use BrokerFallback::{Distributed as Falls, None as Strict};
    use ClaimRefusal::{Mode as Is, NotLeader};
    let mut fixture = TestQueue::new();
    let leader = fixture.leader();
    let cases = [
        (Distributed, Strict, ClaimAuthority::Direct, None),
        (Distributed, Strict, ClaimAuthority::Fallback, None),
        (Distributed, Strict, leader.clone(), Some(Is(Distributed))),
        (Exclusive, Strict, ClaimAuthority::Direct, Some(Is(Exclusive))),
        (Exclusive, Falls, ClaimAuthority::Direct, Some(Is(Exclusive))),
        (Exclusive, Strict, ClaimAuthority::Fallback, Some(Is(Exclusive))),
        (Exclusive, Falls, ClaimAuthority::Fallback, None),
        (Exclusive, Strict, leader.clone(), None),
        (Exclusive, Falls, leader, None),
        (Exclusive, Strict, stranger(), Some(NotLeader)),
    ];
    for (mode, fallback, authority, expected) in cases {
        fixture.set(QueueSettings { mode, fallback, ..Default::default() });
        let case = format!("{mode:?} {fallback:?} {authority:?}");
        assert_eq!(fixture.refusal(authority.clone(), claim_request(0)), expected, "{case}");
        fixture.work.set_pool(&pool(), &PoolSettings { mode, fallback, ..Default::default() }).unwrap();
        let match_request = PoolMatchRequest { pool: pool(), authority, request: None };
        assert_eq!(
            fixture.work.match_pool(&match_request, &fixture.elections, fixture.now).err(),
            expected,
            "{case}"
        );
    }
}

#[test]
fn a_former_broker_cannot_claim() {
    let mut fixture = TestQueue::new();
    fixture.set(QueueSettings { mode: AssignmentMode::Exclusive, ..Default::default() });
    fixture.submit_one(task());
    let former = fixture.leader();
    fixture.elect_leader();
    assert_eq!(fixture.refusal(former, claim_request(1)), Some(ClaimRefusal::NotLeader));
    assert_eq!(fixture.refusal(fixture.leader(), claim_request(1)), None);
}

#[test]
fn the_claim_sequence_counts_the_brokers_claims() {
    let mut fixture = TestQueue::new();
    let ids = fixture.submit(vec![task(); 4]);
    assert_eq!(fixture.claim_one().claim_seq, None);
    fixture.set(QueueSettings { mode: AssignmentMode::Exclusive, ..Default::default() });
    let turns = |fixture: &mut TestQueue, limit| {
        let ClaimBatchResponse::Served { tasks, .. } =
            fixture.claim_batch(fixture.leader(), vec![claim_request(limit), claim_request(1)])
        else {
            panic!("refused")
        };
        tasks.concat().iter().map(|it| (it.id, it.claim_seq)).collect::<Vec<_>>()
    };
    assert_eq!(turns(&mut fixture, 1), [(ids[1], Some(1)), (ids[2], Some(2))]);
    fixture.elect_leader();
    assert_eq!(turns(&mut fixture, 9), [(ids[3], Some(3))]);
    assert_eq!(fixture.view(ids[3]).claim_seq, Some(3));
}

#[test]
fn a_mode_switch_loses_and_duplicates_nothing() {
    let mut fixture = TestQueue::new();
    let ids = fixture.submit(vec![task(); 3]);
    let claim = fixture.claim_one();
    assert!(fixture.notifies(|fixture| {
        fixture.set(QueueSettings { mode: AssignmentMode::Exclusive, ..Default::default() })
    }));
    assert_eq!(fixture.complete(&claim), SettleResult::Applied(TaskState::Completed));
    let ClaimBatchResponse::Served { tasks, .. } =
        fixture.claim_batch(fixture.leader(), vec![claim_request(1)])
    else {
        panic!("refused")
    };
    assert_eq!(tasks[0][0].id, ids[1]);
    fixture.set(QueueSettings::default());
    assert_eq!(fixture.claimed_ids(9), [ids[2]]);
}

#[test]
fn an_unknown_queue_is_empty() {
    let mut fixture = TestQueue::new();
    assert_eq!(fixture.claim_as(claim_request(1)), (vec![], None));
    assert_eq!(fixture.work.queue(&queue(), fixture.now), None);
}

#[test]
fn a_pause_of_the_queue_or_its_namespace_stops_only_claims() {
    let mut fixture = TestQueue::new();
    let pause = Pause { paused_by: "ada".into(), reason: "deploy".into(), paused_at_ms: 0 };
    let space = Name::default_namespace();
    fixture.submit(vec![task(); 2]);
    let claim = fixture.claim_one();
    for which in [Some(name("q")), None] {
        assert!(fixture.work.set_queue_paused(&space, which.as_ref(), Some(&pause)));
        assert!(!fixture.work.set_queue_paused(&space, which.as_ref(), Some(&pause)));
        assert_eq!(fixture.refusal(ClaimAuthority::Direct, claim_request(1)), Some(ClaimRefusal::Paused));
        assert_eq!(fixture.work.queue(&queue(), fixture.now).unwrap().paused, Some(pause.clone()));
        assert!(fixture.notifies(|fixture| {
            assert!(fixture.work.set_queue_paused(&space, which.as_ref(), None));
        }));
        assert_eq!(fixture.refusal(ClaimAuthority::Direct, claim_request(0)), None);
    }
    assert_eq!(fixture.complete(&claim), SettleResult::Applied(TaskState::Completed));
}
