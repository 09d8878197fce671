//! Soft elections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::Error;
use tenure::store::gossip::{Gossip, SoftElector, SoftTermEnd};

use super::{cluster, until};

async fn candidates(members: &[Gossip]) -> Vec<SoftElector> {
    let mut electors = Vec::new();
    for member in members {
        electors.push(member.elector("warm").start().await.unwrap());
    }
    electors
}

/// Index of the candidate that leads in its own view.
async fn leader(electors: &[SoftElector]) -> usize {
    loop {
        if let Some(at) = electors.iter().position(SoftElector::is_leader) {
            return at;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_candidates_leads_and_all_see_it() {
    let members = cluster(&["a", "b", "c"]).await;
    let electors = candidates(&members).await;
    let first = leader(&electors).await;
    assert_eq!(first, 0, "the longest-standing candidate leads");
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
async fn a_leaving_leader_is_replaced_and_two_never_lead_in_an_intact_network() {
    let members = cluster(&["a", "b", "c", "d"]).await;
    let mut electors = candidates(&members).await;
    let (dual, finished) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    assert_eq!(leader(&electors).await, 0);

    // The remaining candidates are polled continuously.
    let shared_electors: Vec<_> = electors.drain(..).map(Arc::new).collect();
    let watching = tokio::spawn({
        let (shared_electors, dual, finished) = (shared_electors.clone(), dual.clone(), finished.clone());
        async move {
            while !finished.load(Ordering::Relaxed) {
                let leaders = shared_electors.iter().filter(|elector| elector.is_leader()).count();
                dual.fetch_or(leaders > 1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    let wait_for = async |wanted: usize| {
        let waiting = async {
            while !shared_electors[wanted].is_leader() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap();
    };
    members[0].leave().await;
    wait_for(1).await;
    members[1].leave().await;
    wait_for(2).await;
    finished.store(true, Ordering::Relaxed);
    watching.await.unwrap();
    assert!(!dual.load(Ordering::Relaxed), "two led at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_higher_priority_takes_over_once_the_leader_has_stopped() {
    let members = cluster(&["a", "b"]).await;
    let low = members[0].elector("warm").start().await.unwrap();
    let leadership = low.elected().await.unwrap();
    let high = members[1].elector("warm").priority(10).start().await.unwrap();
    assert_eq!(leadership.lost().await, SoftTermEnd::Outranked);
    assert!(!leadership.is_leader());
    // Other members see this process as leader while its work is running.
    until(&members[1], |gossip| gossip.elections()[0].candidates.len() == 2).await;
    drop(leadership);
    let soft = high.elected().await.unwrap();
    assert!(soft.is_leader() && !low.is_leader());
    assert_eq!(soft.election().to_string(), "warm");
}

#[tokio::test]
async fn a_resigned_candidate_rejoins_behind_the_others() {
    let members = cluster(&["a", "b"]).await;
    let electors = candidates(&members).await;
    electors[0].elected().await.unwrap().resign().await.unwrap();
    let next = electors[1].elected().await.unwrap();
    assert!(!electors[0].is_leader());
    next.resign().await.unwrap();
    electors[0].elected().await.unwrap();
}

#[tokio::test]
async fn work_runs_while_leading_and_the_candidate_withdraws_at_its_end() {
    let members = cluster(&["a", "b"]).await;
    let electors = candidates(&members).await;
    let mut electors = electors.into_iter();
    let (first, second) = (electors.next().unwrap(), electors.next().unwrap());
    assert_eq!(first.run_while_leader(|soft| async move { soft.is_leader() }).await.ok(), Some(true));
    second.elected().await.unwrap();
    assert!(matches!(members[1].elector("warm").start().await, Err(Error::AlreadyCandidate(_))));
    second.stop().await;
    members[1].elector("warm").start().await.unwrap().elected().await.unwrap();
}

#[tokio::test]
async fn a_panic_in_the_work_reaches_the_caller_and_another_candidate_leads() {
    let members = cluster(&["a", "b"]).await;
    let mut electors = candidates(&members).await.into_iter();
    let (first, second) = (electors.next().unwrap(), electors.next().unwrap());
    let work = tokio::spawn(first.run_while_leader(|_| async { panic!("intended by the test") }));
    let ended: Result<Result<(), Error>, _> = work.await;
    assert!(ended.unwrap_err().is_panic());
    second.elected().await.unwrap();
}

#[tokio::test]
async fn a_member_that_has_left_does_not_lead() {
    let members = cluster(&["a", "b"]).await;
    let elector = members[0].elector("warm").start().await.unwrap();
    let soft = elector.elected().await.unwrap();
    members[0].leave().await;
    soft.lost().await;
    assert!(!soft.is_leader());
    assert!(matches!(elector.elected().await, Err(Error::Closed)));
}
