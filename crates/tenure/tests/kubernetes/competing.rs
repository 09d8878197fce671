//! Tenure and client-go, for one Lease: never two.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tenure::{Elector, Tenure, runtime};
use tenure_core::{Entropy, Moment};
use tenure_testkit::rig::{KubeApi, KubeFault};

use super::client_go::{Config, Elector as Theirs};
use super::{NAMESPACE, api, lease};

/// As short as the seconds of a Lease allow.
const LEASE_SECONDS: u64 = 1;
const NAME: &str = "shared";

/// A Go controller: its elector, in a thread of its own, and until when it believes that it leads.
struct Controller {
    belief: Arc<Mutex<Belief>>,
    runs: Arc<AtomicBool>,
    /// It is stopped, as by SIGSTOP: it neither renews nor releases.
    hangs: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Belief {
    until: Option<Moment>,
    transitions: i64,
}

impl Controller {
    /// `LeaderElector.Run`: acquires, renews until its deadline, releases on cancel.
    fn start(api: &Arc<KubeApi>, identity: &str) -> Controller {
        let config = Config::of(identity, NAME, LEASE_SECONDS);
        let mut elector = Theirs::new(api.clone(), NAMESPACE, config);
        let controller = Controller {
            belief: Arc::default(),
            runs: Arc::new(AtomicBool::new(true)),
            hangs: Arc::default(),
            thread: None,
        };
        let (belief, runs, hangs) =
            (controller.belief.clone(), controller.runs.clone(), controller.hangs.clone());
        let thread = std::thread::spawn(move || {
            while runs.load(Ordering::SeqCst) {
                if hangs.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                }
                if elector.try_acquire_or_renew() {
                    let mut belief = locked(&belief);
                    // It tries again after its period, for as long as its deadline.
                    let patience = elector.config.retry_period + elector.config.renew_deadline;
                    belief.until = Some(runtime::now() + patience);
                    belief.transitions = elector.transitions();
                } else if !elector.is_leader() {
                    locked(&belief).until = None;
                }
                std::thread::sleep(elector.config.retry_period);
            }
            locked(&belief).until = None;
            elector.release();
        });
        Controller { thread: Some(thread), ..controller }
    }

    /// The token under which it believes to lead.
    fn leads(&self) -> Option<u64> {
        let belief = locked(&self.belief);
        let token = u64::try_from(belief.transitions).unwrap() + 1;
        belief.until.is_some_and(|until| runtime::now() < until).then_some(token)
    }

    fn stop(&mut self) {
        self.runs.store(false, Ordering::SeqCst);
        self.thread.take().into_iter().for_each(|thread| thread.join().unwrap());
    }
}

fn locked(belief: &Mutex<Belief>) -> MutexGuard<'_, Belief> {
    belief.lock().unwrap()
}

fn leads(elector: &Elector) -> Option<u64> {
    elector.leadership().filter(|term| term.is_leader()).map(|term| term.token().as_u64())
}

async fn ours(api: &KubeApi) -> (Tenure, Elector) {
    let tenure = Tenure::builder()
        .url(api.url(NAMESPACE))
        .lease(Duration::from_secs(LEASE_SECONDS))
        .open()
        .await
        .unwrap();
    let elector = tenure.elector(NAME).start().await.unwrap();
    (tenure, elector)
}

/// Waits for something, and looks all the while that no two believe at one moment.
async fn until(theirs: &Controller, elector: &Elector, mut done: impl FnMut() -> bool) {
    while !done() {
        // One of them before and after the other: then both at once.
        let (before, between, after) = (theirs.leads(), leads(elector), theirs.leads());
        assert!(
            before.is_none() || before != after || between.is_none(),
            "both lead: {before:?}, {between:?}"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenure_and_client_go_hand_one_lease_to_each_other_and_never_both_lead() {
    let api = api();
    let mut theirs = Controller::start(&api, "go-1");
    while theirs.leads().is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (tenure, elector) = ours(&api).await;
    // Released by client-go: ours at once, and counted on; from a grant whose answer was late, once more.
    let last = theirs.leads().expect("it renews");
    theirs.stop();
    until(&theirs, &elector, || leads(&elector).is_some()).await;
    assert!(leads(&elector) > Some(last));
    // Released by Tenure, whose candidate goes: theirs.
    let mut theirs = Controller::start(&api, "go-2");
    elector.resign().unwrap();
    let closing = tokio::spawn(async move { tenure.close().await });
    until(&theirs, &elector, || theirs.leads().is_some()).await;
    closing.await.unwrap().unwrap();
    let last = theirs.leads().expect("it renews");
    assert!(lease(&api, NAME)["spec"]["holderIdentity"] == "go-2" && last > 2);
    // Stopped while it leads: waited out by our own clock.
    let (tenure, elector) = ours(&api).await;
    theirs.hangs.store(true, Ordering::SeqCst);
    until(&theirs, &elector, || leads(&elector).is_some()).await;
    assert!(leads(&elector) > Some(last));
    // It wakes up, finds that it was taken over, and follows.
    theirs.hangs.store(false, Ordering::SeqCst);
    let last = leads(&elector).expect("it beats");
    // Now nothing that Tenure asks is answered: it must have stopped before client-go takes over.
    api.fail("*", "", KubeFault::Hang, u32::MAX);
    until(&theirs, &elector, || theirs.leads().is_some()).await;
    assert_eq!(leads(&elector), None);
    assert!(theirs.leads() > Some(last));
    theirs.stop();
    api.heal();
    drop(tenure);
}

/// On an API server that has one bad moment after the other. Of client-go there is one: two that compare by the second need a longer lease to be safe from each
/// other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_ours_and_one_of_theirs_never_both_lead_whatever_goes_wrong() {
    let api = api();
    let (seed, mut dice) = tenure_testkit::conformance::seeded(0x1ea5e);
    let mut theirs = Controller::start(&api, "go-1");
    let (one, two) = (ours(&api).await, ours(&api).await);
    let mut roll = move |sides: u64| dice.next_u64() % sides;
    let mut terms = std::collections::BTreeSet::new();
    let mut rounds = 0;
    // Until leadership has changed often enough, however long that takes.
    while terms.len() < 12 {
        rounds += 1;
        let looks = || [theirs.leads(), leads(&one.1), leads(&two.1)];
        let (before, after) = (looks(), looks());
        // Who says the same twice believed all the while.
        let believe: Vec<u64> = before.iter().zip(after).filter_map(|(a, b)| a.filter(|_| *a == b)).collect();
        assert!(believe.len() <= 1, "several lead, TENURE_SEED={seed}: {before:?}, {after:?}");
        terms.extend(believe);
        if rounds % 40 == 0 {
            match roll(8) {
                0 => api.fail("update", NAME, KubeFault::Refuse(500), 3),
                1 => api.fail("update", NAME, KubeFault::Forget(500), 2),
                2 => api.fail("*", "", KubeFault::Hang, 4),
                3 => api.close_watches(),
                4 | 5 => theirs.hangs.store(roll(2) == 0, Ordering::SeqCst),
                6 => drop(one.1.resign()),
                _ => {
                    drop(two.1.resign());
                    api.compact();
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    theirs.stop();
}
