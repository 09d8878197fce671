//! Leading softly.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::Error;
use tenure::backend::gossip::{Gossip, SoftElector, SoftOver};

use super::{cluster, until};

async fn standing(members: &[Gossip]) -> Vec<SoftElector> {
    let mut electors = Vec::new();
    for member in members {
        electors.push(member.elector("warm").start().await.unwrap());
    }
    electors
}

/// Who leads, by itself.
async fn leader(electors: &[SoftElector]) -> usize {
    loop {
        if let Some(at) = electors.iter().position(SoftElector::is_leader) {
            return at;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_leads_and_all_see_who() {
    let members = cluster(&["a", "b", "c"]).await;
    let electors = standing(&members).await;
    let first = leader(&electors).await;
    assert_eq!(first, 0, "who stands for longest leads");
    for elector in &electors {
        let view = async {
            while elector.view().leaders().map(|leader| leader.member.name.clone()).collect::<Vec<_>>()
                != ["a"]
                || elector.view().candidates.len() != 3
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), view).await.unwrap();
    }
    assert_eq!(members[2].elections().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_is_followed_and_never_two_lead_while_the_network_holds() {
    let members = cluster(&["a", "b", "c", "d"]).await;
    let mut electors = standing(&members).await;
    let (dual, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    assert_eq!(leader(&electors).await, 0);

    // Those that live on are asked all the time.
    let asked: Vec<_> = electors.drain(..).map(Arc::new).collect();
    let watching = tokio::spawn({
        let (asked, dual, over) = (asked.clone(), dual.clone(), over.clone());
        async move {
            while !over.load(Ordering::Relaxed) {
                let leaders = asked.iter().filter(|elector| elector.is_leader()).count();
                dual.fetch_or(leaders > 1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    let wait_for = async |wanted: usize| {
        let waiting = async {
            while !asked[wanted].is_leader() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap();
    };
    members[0].leave().await;
    wait_for(1).await;
    members[1].leave().await;
    wait_for(2).await;
    over.store(true, Ordering::Relaxed);
    watching.await.unwrap();
    assert!(!dual.load(Ordering::Relaxed), "two led at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_higher_priority_takes_over_once_the_leader_has_stopped() {
    let members = cluster(&["a", "b"]).await;
    let low = members[0].elector("warm").start().await.unwrap();
    let held = low.elected().await.unwrap();
    let high = members[1].elector("warm").priority(10).start().await.unwrap();
    assert_eq!(held.lost().await, SoftOver::Outranked);
    assert!(!held.is_leader());
    // Others are told that we lead for as long as we work.
    until(&members[1], |seen| seen.elections()[0].candidates.len() == 2).await;
    drop(held);
    let soft = high.elected().await.unwrap();
    assert!(soft.is_leader() && !low.is_leader());
    assert_eq!(soft.election().to_string(), "warm");
}

#[tokio::test]
async fn who_resigns_queues_up_behind_the_others() {
    let members = cluster(&["a", "b"]).await;
    let electors = standing(&members).await;
    electors[0].elected().await.unwrap().resign().await.unwrap();
    let next = electors[1].elected().await.unwrap();
    assert!(!electors[0].is_leader());
    next.resign().await.unwrap();
    electors[0].elected().await.unwrap();
}

#[tokio::test]
async fn work_is_run_while_leading_and_the_candidate_withdraws_when_it_is_done() {
    let members = cluster(&["a", "b"]).await;
    let electors = standing(&members).await;
    let mut electors = electors.into_iter();
    let (first, second) = (electors.next().unwrap(), electors.next().unwrap());
    assert_eq!(first.run_while_leader(|soft| async move { soft.is_leader() }).await.ok(), Some(true));
    second.elected().await.unwrap();
    assert!(matches!(members[1].elector("warm").start().await, Err(Error::AlreadyStanding(_))));
    second.stop().await;
    members[1].elector("warm").start().await.unwrap().elected().await.unwrap();
}

#[tokio::test]
async fn a_panic_in_the_work_reaches_the_caller_and_leaves_the_lead_to_another() {
    let members = cluster(&["a", "b"]).await;
    let mut electors = standing(&members).await.into_iter();
    let (first, second) = (electors.next().unwrap(), electors.next().unwrap());
    let work = tokio::spawn(first.run_while_leader(|_| async { panic!("the test wants this") }));
    let ended: Result<Result<(), Error>, _> = work.await;
    assert!(ended.unwrap_err().is_panic());
    second.elected().await.unwrap();
}

#[tokio::test]
async fn a_member_that_has_left_leads_nothing() {
    let members = cluster(&["a", "b"]).await;
    let elector = members[0].elector("warm").start().await.unwrap();
    let soft = elector.elected().await.unwrap();
    members[0].leave().await;
    soft.lost().await;
    assert!(!soft.is_leader());
    assert!(matches!(elector.elected().await, Err(Error::Closed)));
}
