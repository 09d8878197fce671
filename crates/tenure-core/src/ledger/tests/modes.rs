//! In whose name tasks and resources are handed out.

use super::*;
use crate::port::{Fallback, Mode, Pause, PoolMatch, PoolSettings};

fn stranger() -> Authority {
    Authority::Leader { session: SessionId::from_stored("x"), token: Token::from_u64(1) }
}

#[test]
fn who_may_hand_out_is_a_matter_of_mode_and_fallback() {
    use ClaimRefusal::{Mode as Is, NotLeader};
    use Fallback::{Distributed as Falls, None as Strict};
    use Mode::{Distributed, Exclusive};
    let mut yard = Yard::new();
    let leader = yard.leader();
    let cases = [
        (Distributed, Strict, Authority::Direct, None),
        (Distributed, Strict, Authority::Fallback, None),
        (Distributed, Strict, leader.clone(), Some(Is(Distributed))),
        (Exclusive, Strict, Authority::Direct, Some(Is(Exclusive))),
        (Exclusive, Falls, Authority::Direct, Some(Is(Exclusive))),
        (Exclusive, Strict, Authority::Fallback, Some(Is(Exclusive))),
        (Exclusive, Falls, Authority::Fallback, None),
        (Exclusive, Strict, leader.clone(), None),
        (Exclusive, Falls, leader, None),
        (Exclusive, Strict, stranger(), Some(NotLeader)),
    ];
    for (mode, fallback, authority, expected) in cases {
        yard.set(QueueSettings { mode, fallback, ..Default::default() });
        let case = format!("{mode:?} {fallback:?} {authority:?}");
        assert_eq!(yard.refusal(authority.clone(), seat(0)), expected, "{case}");
        yard.ledger.set_pool(&pool(), &PoolSettings { mode, fallback, ..Default::default() }).unwrap();
        let ask = PoolMatch { pool: pool(), authority, request: None };
        assert_eq!(yard.ledger.match_pool(&ask, &yard.book, yard.now).err(), expected, "{case}");
    }
}

#[test]
fn a_former_leader_hands_out_nothing() {
    let mut yard = Yard::new();
    yard.set(QueueSettings { mode: Mode::Exclusive, ..Default::default() });
    yard.submit_one(task());
    let former = yard.leader();
    yard.elect();
    assert_eq!(yard.refusal(former, seat(1)), Some(ClaimRefusal::NotLeader));
    assert_eq!(yard.refusal(yard.leader(), seat(1)), None);
}

#[test]
fn turns_count_the_leaders_claims_one_by_one() {
    let mut yard = Yard::new();
    let ids = yard.submit(vec![task(); 4]);
    assert_eq!(yard.claim_one().turn, None);
    yard.set(QueueSettings { mode: Mode::Exclusive, ..Default::default() });
    let turns = |yard: &mut Yard, limit| {
        let ClaimAnswer::Served { tasks, .. } = yard.ask(yard.leader(), vec![seat(limit), seat(1)]) else {
            panic!("refused")
        };
        tasks.concat().iter().map(|it| (it.id, it.turn)).collect::<Vec<_>>()
    };
    assert_eq!(turns(&mut yard, 1), [(ids[1], Some(1)), (ids[2], Some(2))]);
    yard.elect();
    assert_eq!(turns(&mut yard, 9), [(ids[3], Some(3))]);
    assert_eq!(yard.view(ids[3]).turn, Some(3));
}

#[test]
fn a_mode_changes_at_run_time_with_nothing_lost_or_doubled() {
    let mut yard = Yard::new();
    let ids = yard.submit(vec![task(); 3]);
    let claim = yard.claim_one();
    assert!(yard.rings(|yard| yard.set(QueueSettings { mode: Mode::Exclusive, ..Default::default() })));
    assert_eq!(yard.complete(&claim), Settled::Now(TaskState::Completed));
    let ClaimAnswer::Served { tasks, .. } = yard.ask(yard.leader(), vec![seat(1)]) else { panic!("refused") };
    assert_eq!(tasks[0][0].id, ids[1]);
    yard.set(QueueSettings::default());
    assert_eq!(yard.claimed_ids(9), [ids[2]]);
}

#[test]
fn a_queue_that_is_not_there_has_nothing() {
    let mut yard = Yard::new();
    assert_eq!(yard.claim_as(seat(1)), (vec![], None));
    assert_eq!(yard.ledger.queue(&queue(), yard.now), None);
}

#[test]
fn a_pause_of_the_queue_or_its_namespace_stops_handing_out_and_nothing_else() {
    let mut yard = Yard::new();
    let pause = Pause { by: "ada".into(), reason: "deploy".into(), at_ms: 0 };
    let space = Name::default_namespace();
    yard.submit(vec![task(); 2]);
    let claim = yard.claim_one();
    for which in [Some(name("q")), None] {
        assert!(yard.ledger.set_queue_paused(&space, which.as_ref(), Some(&pause)));
        assert!(!yard.ledger.set_queue_paused(&space, which.as_ref(), Some(&pause)));
        assert_eq!(yard.refusal(Authority::Direct, seat(1)), Some(ClaimRefusal::Paused));
        assert_eq!(yard.ledger.queue(&queue(), yard.now).unwrap().paused, Some(pause.clone()));
        assert!(yard.rings(|yard| {
            assert!(yard.ledger.set_queue_paused(&space, which.as_ref(), None));
        }));
        assert_eq!(yard.refusal(Authority::Direct, seat(0)), None);
    }
    assert_eq!(yard.complete(&claim), Settled::Now(TaskState::Completed));
}
