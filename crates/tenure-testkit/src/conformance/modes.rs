//! Assignment modes: authority and order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure_core::Token;
use tenure_core::port::{
    AssignmentMode, BrokerEndpoint, BrokerFallback, ClaimAuthority, ClaimBatchResponse, ClaimOutcome,
    ClaimRefusal, NewTask, QueueSettings, TaskId, TaskState, broker_election,
};

use super::StoreUnderTest;
use super::test_queue::{
    TestMaintenance, TestQueue, claim_request, ids, only_request, ordinary, refusal, strings, tagged,
};

/// Settings of an exclusive queue.
pub fn exclusive(fallback: BrokerFallback) -> QueueSettings {
    QueueSettings { mode: AssignmentMode::Exclusive, fallback, ..QueueSettings::default() }
}

/// Checks each authority with each mode and fallback.
pub async fn the_mode_determines_which_authority_may_claim(subject: &StoreUnderTest) {
    let (test_queue, maintenance) = (TestQueue::of(subject).await, TestMaintenance::of(subject).await);
    let leader = maintenance.authority();
    let wrong = |mode| Some(ClaimRefusal::Mode(mode));
    let distributed = QueueSettings::default();
    let cases = [
        (distributed, ClaimAuthority::Direct, None),
        (distributed, leader.clone(), wrong(AssignmentMode::Distributed)),
        (distributed, ClaimAuthority::Fallback, None),
        (exclusive(BrokerFallback::None), ClaimAuthority::Direct, wrong(AssignmentMode::Exclusive)),
        (exclusive(BrokerFallback::None), leader.clone(), None),
        (exclusive(BrokerFallback::None), ClaimAuthority::Fallback, wrong(AssignmentMode::Exclusive)),
        (exclusive(BrokerFallback::Distributed), ClaimAuthority::Direct, wrong(AssignmentMode::Exclusive)),
        (exclusive(BrokerFallback::Distributed), leader, None),
        (exclusive(BrokerFallback::Distributed), ClaimAuthority::Fallback, None),
    ];
    for (settings, authority, expected) in cases {
        test_queue.set(settings).await;
        test_queue.submit_one(NewTask::default()).await;
        let response = test_queue.claim_batch(authority.clone(), vec![claim_request("w", 9)]).await;
        let what = format!("{authority:?} at {:?} with {:?}", settings.mode, settings.fallback);
        match expected {
            Some(expected) => assert_eq!(refusal(response), expected, "{what}"),
            None => assert!(!only_request(response).is_empty(), "{what}"),
        }
    }
}

/// The claim sequence counts the claims of the broker without gaps, in queue order, also after a leader change.
pub async fn order_is_strict_over_leaders(subject: &StoreUnderTest) {
    let (test_queue, first) = (TestQueue::of(subject).await, TestMaintenance::of(subject).await);
    test_queue.set(exclusive(BrokerFallback::None)).await;
    let with = |priority: i32| NewTask { priority, ..NewTask::default() };
    let numbers = test_queue.submit([0, 3, -2, 9, 3, 0].map(with).into()).await;
    let expected: Vec<_> = [3, 1, 4, 0, 5, 2].map(|n| numbers[n]).into();
    let take = async |maintenance: &TestMaintenance, limit| {
        let test_queue = TestQueue { store: maintenance.session.store.clone(), key: test_queue.key.clone() };
        only_request(test_queue.claim_batch(maintenance.authority(), vec![claim_request("w", limit)]).await)
    };
    let mut handed = take(&first, 2).await;
    handed.extend(take(&first, 1).await);
    let second = first.after(subject).await;
    handed.extend(take(&second, 1).await);
    handed.extend(take(&second, 9).await);
    assert_eq!(ids(&handed), expected);
    let turns: Vec<_> = handed.iter().map(|task| task.claim_seq.expect("the broker counts claims")).collect();
    assert!(turns.windows(2).all(|pair| pair[1] == pair[0] + 1), "{turns:?}");
    for task in &handed {
        assert_eq!(test_queue.task(task.id).await.claim_seq, task.claim_seq);
    }
}

/// A retried task keeps its position in the queue, and a task with a higher priority goes before it.
pub async fn order_is_strict_over_attempts(subject: &StoreUnderTest) {
    let (test_queue, maintenance) = (TestQueue::of(subject).await, TestMaintenance::of(subject).await);
    test_queue.set(exclusive(BrokerFallback::None)).await;
    let numbers = test_queue.submit(ordinary(4)).await;
    let take = async |limit| {
        only_request(test_queue.claim_batch(maintenance.authority(), vec![claim_request("w", limit)]).await)
    };
    let handed = take(2).await;
    assert_eq!(ids(&handed), numbers[..2]);
    test_queue.settle(&handed[0], ClaimOutcome::Release).await;
    let urgent = test_queue.submit_one(NewTask { priority: 1, ..NewTask::default() }).await;
    assert_eq!(ids(&take(1).await), [urgent]);
    assert_eq!(ids(&take(2).await), [numbers[0], numbers[2]]);
    test_queue.settle(&handed[1], super::test_queue::failure(true, std::time::Duration::ZERO)).await;
    let picky = NewTask { priority: 5, required_tags: strings(&["gpu"]), ..NewTask::default() };
    let picky = test_queue.submit_one(picky).await;
    assert_eq!(ids(&take(1).await), [numbers[1]]);
    let request = super::test_queue::claim_request_of(tagged("w", &["gpu"]), 9);
    assert_eq!(
        ids(&only_request(test_queue.claim_batch(maintenance.authority(), vec![request]).await)),
        [picky, numbers[3]]
    );
}

/// The store rejects assignments of a broker that lost its lease, even before the broker knows of the loss.
pub async fn a_former_broker_assigns_nothing(subject: &StoreUnderTest) {
    let (test_queue, first) = (TestQueue::of(subject).await, TestMaintenance::of(subject).await);
    test_queue.set(exclusive(BrokerFallback::None)).await;
    test_queue.submit(ordinary(3)).await;
    let second = first.after(subject).await;
    let leader = |session: &TestMaintenance, token| ClaimAuthority::Leader {
        session: session.session.id.clone(),
        token,
    };
    let wrong = [
        first.authority(),
        leader(&second, first.token),
        leader(&first, second.token),
        leader(&second, Token::ZERO),
        leader(&second, Token::from_u64(second.token.as_u64() + 1)),
    ];
    for authority in wrong {
        let response = test_queue.claim_batch(authority.clone(), vec![claim_request("w", 9)]).await;
        assert_eq!(refusal(response), ClaimRefusal::NotLeader, "{authority:?}");
    }
    assert_eq!(test_queue.view().await.count(TaskState::Ready), 3);
    second.session.release(&broker_election(), 0, second.token).await;
    let response = test_queue.claim_batch(second.authority(), vec![claim_request("w", 9)]).await;
    assert_eq!(refusal(response), ClaimRefusal::NotLeader, "it released the lease");
}

/// Switching to exclusive mode waits for direct claims in progress; afterwards no task is claimed directly.
pub async fn a_mode_switch_waits_for_claims_in_progress(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    test_queue.submit(ordinary(1000)).await;
    for _ in 0..4 {
        test_queue.set(QueueSettings::default()).await;
        let over = Arc::new(AtomicBool::new(false));
        let mut claimers = Vec::new();
        for _ in 0..3 {
            let (test_queue, over) = (test_queue.reopen(subject).await, over.clone());
            claimers.push(tokio::spawn(async move {
                let (mut got, mut refused) = (Vec::new(), 0);
                while !over.load(Ordering::SeqCst) || refused == 0 {
                    match test_queue.claim_batch(ClaimAuthority::Direct, vec![claim_request("w", 2)]).await {
                        ClaimBatchResponse::Served { tasks, .. } => got.extend(tasks.into_iter().flatten()),
                        ClaimBatchResponse::Refused(refusal) => {
                            assert_eq!(refusal, ClaimRefusal::Mode(AssignmentMode::Exclusive));
                            refused += 1;
                        }
                    }
                }
                got
            }));
        }
        while test_queue.view().await.count(TaskState::Claimed) == 0 {
            tokio::task::yield_now().await;
        }
        test_queue.set(exclusive(BrokerFallback::None)).await;
        let at_the_switch = test_queue.view().await.count(TaskState::Claimed);
        over.store(true, Ordering::SeqCst);
        let mut got = Vec::new();
        for claimer in claimers {
            got.extend(claimer.await.expect("no panic"));
        }
        assert_eq!(
            test_queue.view().await.count(TaskState::Claimed),
            at_the_switch,
            "claimed after the switch"
        );
        let distinct: std::collections::BTreeSet<TaskId> = got.iter().map(|task| task.id).collect();
        assert_eq!(
            (distinct.len(), got.len() as u64),
            (got.len(), at_the_switch),
            "nothing is lost or duplicated"
        );
        for task in got {
            test_queue.settle(&task, ClaimOutcome::Release).await;
        }
    }
}

/// No task is lost or duplicated by switching back and forth.
pub async fn tasks_survive_a_mode_switch(subject: &StoreUnderTest) {
    let (test_queue, maintenance) = (TestQueue::of(subject).await, TestMaintenance::of(subject).await);
    let numbers = test_queue.submit(ordinary(6)).await;
    let mut handed = test_queue.claim(claim_request("w", 2)).await;
    test_queue.set(exclusive(BrokerFallback::None)).await;
    handed.extend(only_request(
        test_queue.claim_batch(maintenance.authority(), vec![claim_request("w", 2)]).await,
    ));
    test_queue.set(QueueSettings::default()).await;
    handed.extend(test_queue.claim(claim_request("w", 9)).await);
    assert_eq!(ids(&handed), numbers);
    let turns: Vec<_> = handed.iter().map(|task| task.claim_seq.is_some()).collect();
    assert_eq!(turns, [false, false, true, true, false, false]);
    for task in &handed {
        test_queue.complete(task).await;
    }
}

/// All processes can read the endpoint of the broker while it leads.
pub async fn the_broker_endpoint_is_readable_while_it_leads(subject: &StoreUnderTest) {
    let (reader, first) = (subject.client().await, TestMaintenance::of(subject).await);
    assert!(reader.broker_endpoint().await.unwrap().is_none());
    let post = |maintenance: &TestMaintenance, address: &str| BrokerEndpoint {
        token: maintenance.token,
        session: maintenance.session.id.clone(),
        address: address.into(),
        secret: vec![0, 1, 255, b'\'', b'\\'],
    };
    let mine = post(&first, "10.0.0.7:4711");
    assert_eq!(first.session.store.publish_broker_endpoint(&mine).await, Ok(true));
    assert!(reader.broker_endpoint().await.unwrap() == Some(mine.clone()));
    let second = first.after(subject).await;
    assert!(reader.broker_endpoint().await.unwrap().is_none(), "its writer does not lead");
    assert_eq!(first.session.store.publish_broker_endpoint(&mine).await, Ok(false));
    let stale = BrokerEndpoint { token: first.token, ..post(&second, "x:1") };
    assert_eq!(second.session.store.publish_broker_endpoint(&stale).await, Ok(false));
    let ours = post(&second, "[::1]:80");
    assert_eq!(second.session.store.publish_broker_endpoint(&ours).await, Ok(true));
    assert!(reader.broker_endpoint().await.unwrap() == Some(ours.clone()));
    let moved = post(&second, "o'host:80");
    assert_eq!(second.session.store.publish_broker_endpoint(&moved).await, Ok(true));
    assert!(reader.broker_endpoint().await.unwrap() == Some(moved));
    second.session.release(&broker_election(), 0, second.token).await;
    assert!(reader.broker_endpoint().await.unwrap().is_none());
}
