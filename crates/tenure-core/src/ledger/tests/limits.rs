//! Who fits, and how many at once.

use super::*;
use crate::port::{NewWorker, RateLimit};

use TaskState::{Claimed, Held, Ready};

#[test]
fn a_worker_gets_what_it_fits_and_nothing_else() {
    let mut yard = Yard::new();
    let ids = yard.submit(vec![
        NewTask { requires: words(&["gpu"]), ..task() },
        NewTask { workers: words(&["v"]), ..task() },
        NewTask { workers: words(&["*"]), ..NewTask::new("other") },
        NewTask::new(""),
    ]);
    let knows = Profile { kinds: words(&["k"]), ..worker("w", &[]) };
    let got = yard.claim_as(Seat { worker: knows, ..seat(9) }).0;
    assert_eq!(got.iter().map(|it| it.id).collect::<Vec<_>>(), [ids[3]]);
    let got = yard.claim_as(Seat { worker: worker("v", &["gpu"]), ..seat(9) }).0;
    assert_eq!(got.iter().map(|it| it.id).collect::<Vec<_>>(), ids[..3]);
}

#[test]
fn no_more_is_handed_out_than_was_asked_for_and_seats_go_in_their_order() {
    let mut yard = Yard::new();
    let ids = yard.submit(vec![task(); 5]);
    let ClaimAnswer::Served { tasks, next_in } =
        yard.ask(Authority::Direct, vec![seat(2), seat(0), seat(2), seat(2)])
    else {
        panic!("refused")
    };
    let got: Vec<Vec<TaskId>> = tasks.iter().map(|seat| seat.iter().map(|it| it.id).collect()).collect();
    assert_eq!(got, [&ids[..2], &[], &ids[2..4], &ids[4..]]);
    assert_eq!(next_in, None);
}

#[test]
fn for_a_while_only_preferred_workers_are_offered_a_task() {
    let mut yard = Yard::new();
    let id = yard.submit_one(NewTask { prefers: words(&["near", "fast"]), ..task() });
    let plain = yard.submit_one(task());
    yard.now += 1_000;
    let (got, next_in) = yard.claim_as(seat(9));
    assert_eq!((got.len(), got[0].id), (1, plain));
    assert_eq!(next_in, Some(Duration::from_secs(4)));
    let fast = Seat { worker: worker("f", &["fast"]), ..seat(1) };
    assert_eq!(yard.claim_as(fast).0[0].id, id);
    let other = yard.submit_one(NewTask { prefers: words(&["near"]), ..task() });
    yard.now += 4_999;
    assert_eq!(yard.claim(1), []);
    yard.now += 1;
    assert_eq!(yard.claim_one().id, other);
}

#[test]
fn one_with_a_full_key_is_held_until_a_claim_with_it_ends() {
    let mut yard = Yard::new();
    let ids = yard.submit(vec![keyed("t", 2); 4]);
    let plain = yard.submit_one(task());
    let claims = yard.claim(9);
    assert_eq!(claims.iter().map(|it| it.id).collect::<Vec<_>>(), [ids[0], ids[1], plain]);
    assert_eq!(yard.states(&ids), [Claimed, Claimed, Held, Held]);
    assert!(yard.rings(|yard| yard.complete(&claims[0])));
    assert_eq!(yard.states(&ids[2..]), [Ready, Held], "one place, one is let in");
    assert_eq!(yard.claimed_ids(9), [ids[2]]);
}

#[test]
fn however_a_claim_ends_the_next_is_let_in() {
    type End = fn(&mut Yard, &ClaimedTask);
    let ends: [(&str, End); 6] = [
        ("completed", |yard, claim| assert_ne!(yard.complete(claim), Settled::Lost)),
        ("failed", |yard, claim| assert_ne!(yard.fail(claim, true, 9_000), Settled::Lost)),
        ("dead", |yard, claim| assert_ne!(yard.fail(claim, false, 0), Settled::Lost)),
        ("released", |yard, claim| assert_ne!(yard.settle(claim, Outcome::Release), Settled::Lost)),
        ("cancelled", |yard, claim| assert_eq!(yard.order(&[claim.id], Order::Cancel), [claim.id])),
        ("lost", |yard, _| {
            yard.now += 60_001;
            assert_eq!(yard.tend().returned, 1);
        }),
    ];
    for (how, end) in ends {
        let mut yard = Yard::new();
        let ids = yard.submit(vec![keyed("t", 1); 2]);
        let claims = yard.claim(9);
        assert_eq!(yard.states(&ids), [Claimed, Held]);
        end(&mut yard, &claims[0]);
        assert_eq!(yard.state(ids[1]), Ready, "{how}");
    }
}

#[test]
fn one_is_let_in_for_each_demand_so_that_any_worker_may_go_on() {
    let mut yard = Yard::new();
    let gpu = NewTask { requires: words(&["gpu"]), ..keyed("t", 1) };
    let ids = yard.submit(vec![keyed("t", 1), gpu.clone(), gpu, keyed("t", 1), keyed("t", 1)]);
    let all = Seat { worker: worker("g", &["gpu"]), ..seat(9) };
    let claim = yard.claim_as(all).0.remove(0);
    assert_eq!(yard.states(&ids), [Claimed, Held, Held, Held, Held]);
    yard.complete(&claim);
    assert_eq!(yard.states(&ids[1..]), [Ready, Held, Ready, Held]);
    // Who has no gpu need not wait for who has.
    assert_eq!(yard.claimed_ids(9), [ids[3]]);
}

#[test]
fn one_that_was_let_in_and_called_off_lets_in_the_next() {
    let mut yard = Yard::new();
    let ids = yard.submit(vec![keyed("t", 1); 3]);
    let claims = yard.claim(9);
    yard.complete(&claims[0]);
    assert_eq!(yard.states(&ids[1..]), [Ready, Held]);
    yard.order(&ids[1..2], Order::Cancel);
    assert_eq!(yard.state(ids[2]), Ready);
}

#[test]
fn a_key_counts_in_its_whole_namespace_and_in_no_other() {
    let mut yard = Yard::new();
    yard.submit_one(keyed("t", 1));
    yard.claim_one();
    let claim = |yard: &mut Yard, queue: QueueKey| {
        let tasks = vec![keyed("t", 1)];
        yard.ledger.submit(&Submission { queue: queue.clone(), tasks }, yard.now).unwrap();
        let ask = ClaimAsk { queue, authority: Authority::Direct, seats: vec![seat(1)] };
        match yard.ledger.claim(&ask, &yard.book, yard.now) {
            ClaimAnswer::Served { tasks, .. } => tasks[0].len(),
            ClaimAnswer::Refused(refusal) => panic!("{refusal:?}"),
        }
    };
    assert_eq!(claim(&mut yard, QueueKey::new(Name::default_namespace(), name("r"))), 0);
    assert_eq!(claim(&mut yard, QueueKey::new(name("other"), name("r"))), 1);
}

#[test]
fn claims_begin_no_faster_than_the_rate() {
    let mut yard = Yard::new();
    yard.set(QueueSettings { rate: Some(RateLimit { count: 2, per_ms: 1_000 }), ..Default::default() });
    yard.submit(vec![task(); 9]);
    let (got, next_in) = yard.claim_as(seat(9));
    assert_eq!((got.len(), next_in), (2, Some(Duration::from_millis(500))));
    yard.now += 499;
    assert_eq!(yard.claim(9).len(), 0);
    yard.now += 1;
    assert_eq!(yard.claim(9).len(), 1);
    yard.now += 60_000;
    assert_eq!(yard.claim(9).len(), 2, "a rest saves no more than the count");
}

#[test]
fn no_more_of_a_queue_are_claimed_than_may_be() {
    let mut yard = Yard::new();
    yard.set(QueueSettings { max_claimed: Some(2), ..Default::default() });
    yard.submit(vec![task(); 3]);
    let claims = yard.claim(9);
    assert_eq!(claims.len(), 2);
    assert!(yard.rings(|yard| yard.complete(&claims[0])));
    assert_eq!(yard.claim(9).len(), 1);
}

#[test]
fn a_queue_may_ask_for_approved_workers() {
    let mut yard = Yard::new();
    yard.set(QueueSettings { approval: true, ..Default::default() });
    yard.submit_one(task());
    let space = Name::default_namespace();
    let refused = Some(ClaimRefusal::NotApproved("w".into()));
    assert_eq!(yard.refusal(Authority::Direct, seat(1)), refused);
    assert!(yard.rings(|yard| assert!(yard.ledger.approve(&space, "w", Some("ada")))));
    assert!(!yard.ledger.approve(&space, "w", Some("bob")), "it was so already");
    assert_eq!(yard.refusal(Authority::Direct, seat(0)), None);
    let known: NewWorker = serde_json::from_str(r#"{"name":"w"}"#).unwrap();
    yard.ledger.register(&space, &known, yard.now);
    let view = &yard.ledger.workers(Some(&space), &yard.book, yard.now)[0];
    assert_eq!(view.approved_by.as_deref(), Some("ada"));
    assert!(yard.ledger.approve(&space, "w", None));
    assert_eq!(yard.refusal(Authority::Direct, seat(1)), refused);
}

#[test]
fn a_clock_that_was_put_back_does_not_stop_a_rate() {
    let mut yard = Yard::new();
    let rate = Some(RateLimit { count: 1, per_ms: 1_000 });
    yard.ledger.set_queue(&queue(), &QueueSettings { rate, ..QueueSettings::default() });
    yard.submit(vec![task(); 3]);
    assert_eq!(yard.claim(3).len(), 1);
    yard.now -= 3_600_000;
    assert_eq!(yard.claim(3).len(), 0, "nothing is brought by that");
    yard.now += 1_000;
    assert_eq!(yard.claim(3).len(), 1);
}
