//! Tenure and client-go compete for one Lease; at most one of them leads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tenure::{Elector, Tenure, runtime};
use tenure_core::{BootInstant, Entropy};
use tenure_testkit::rig::{KubeApi, KubeFault};

use super::client_go::{Config, Elector as Theirs};
use super::{NAMESPACE, api, lease};

/// As short as the whole seconds of a Lease allow.
const LEASE_SECONDS: u64 = 1;
const NAME: &str = "shared";

/// A Go controller: its elector in a thread, and the time until which it believes to lead.
struct Controller {
    belief: Arc<Mutex<Belief>>,
    runs: Arc<AtomicBool>,
    /// Paused as by SIGSTOP: it neither renews nor releases.
    hangs: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Belief {
    until: Option<BootInstant>,
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
                    // It retries after its period, until its deadline.
                    let trust = elector.config.retry_period + elector.config.renew_deadline;
                    belief.until = Some(runtime::now() + trust);
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

    /// Token under which the controller believes to lead.
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

/// Wait for a condition, and check all the time that at most one side leads.
async fn until(theirs: &Controller, elector: &Elector, mut done: impl FnMut() -> bool) {
    while !done() {
        // The same answer before and after the other read proves an overlap.
        let (before, between, after) = (theirs.leads(), leads(elector), theirs.leads());
        assert!(
            before.is_none() || before != after || between.is_none(),
            "both lead: {before:?}, {between:?}"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenure_and_client_go_exchange_one_lease_and_never_both_lead() {
    let api = api();
    let mut theirs = Controller::start(&api, "go-1");
    while theirs.leads().is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (tenure, elector) = ours(&api).await;
    // Released by client-go: Tenure takes over at once with a greater token. A lost response may cause one more grant.
    let last = theirs.leads().expect("the controller renews");
    theirs.stop();
    until(&theirs, &elector, || leads(&elector).is_some()).await;
    assert!(leads(&elector) > Some(last));
    // Released by Tenure, whose candidate withdraws: client-go takes over.
    let mut theirs = Controller::start(&api, "go-2");
    elector.resign().unwrap();
    let closing = tokio::spawn(async move { tenure.close().await });
    until(&theirs, &elector, || theirs.leads().is_some()).await;
    closing.await.unwrap().unwrap();
    let last = theirs.leads().expect("the controller renews");
    assert!(lease(&api, NAME)["spec"]["holderIdentity"] == "go-2" && last > 2);
    // Paused while it leads: Tenure takes over after a lease duration on its own clock.
    let (tenure, elector) = ours(&api).await;
    theirs.hangs.store(true, Ordering::SeqCst);
    until(&theirs, &elector, || leads(&elector).is_some()).await;
    assert!(leads(&elector) > Some(last));
    // The resumed controller finds that it lost the Lease, and follows.
    theirs.hangs.store(false, Ordering::SeqCst);
    let last = leads(&elector).expect("the session has heartbeats");
    // No request of Tenure is answered: it must stop before client-go takes over.
    api.fail("*", "", KubeFault::Hang, u32::MAX);
    until(&theirs, &elector, || theirs.leads().is_some()).await;
    assert_eq!(leads(&elector), None);
    assert!(theirs.leads() > Some(last));
    theirs.stop();
    api.clear_faults();
    drop(tenure);
}

/// Under random faults of the API server. There is only one client-go controller: two of them compare times by the
/// second and would need a longer lease to be safe from each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenure_and_client_go_never_both_lead_under_faults() {
    let api = api();
    let (seed, mut rng) = tenure_testkit::conformance::seeded(0x1ea5e);
    let mut theirs = Controller::start(&api, "go-1");
    let (one, two) = (ours(&api).await, ours(&api).await);
    let mut roll = move |sides: u64| rng.next_u64() % sides;
    let mut terms = std::collections::BTreeSet::new();
    let mut rounds = 0;
    // Until leadership has changed often enough, without a time limit.
    while terms.len() < 12 {
        rounds += 1;
        let beliefs = || [theirs.leads(), leads(&one.1), leads(&two.1)];
        let (before, after) = (beliefs(), beliefs());
        // The same answer in both reads means continuous belief in between.
        let believe: Vec<u64> = before.iter().zip(after).filter_map(|(a, b)| a.filter(|_| *a == b)).collect();
        assert!(believe.len() <= 1, "several lead, TENURE_SEED={seed}: {before:?}, {after:?}");
        terms.extend(believe);
        if rounds % 40 == 0 {
            match roll(8) {
                0 => api.fail("update", NAME, KubeFault::Reject(500), 3),
                1 => api.fail("update", NAME, KubeFault::LoseResponse(500), 2),
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
