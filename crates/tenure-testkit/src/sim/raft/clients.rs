//! Clients of the simulated cluster: candidates, and clients that write and read values.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure::runtime::Runtime as _;
use tenure::store::raft::RaftStore;
use tenure::store::raft::env::Env;
use tenure::{Elector, Leadership, Tenure};

use super::computer::Computer;
use super::network::{Net, Port};
use super::oracle::Oracle;
use super::plan::{RaftInjectedBug, RaftSimPlan};
use super::time::SimTime;

/// Number of keys written and read.
const KEYS: u64 = 2;

/// State shared by all clients.
#[derive(Clone)]
pub(super) struct RaftScenarioContext {
    pub(super) time: SimTime,
    pub(super) net: Net,
    pub(super) oracle: Oracle,
    pub(super) plan: Arc<RaftSimPlan>,
    /// Addresses of current and possible members.
    pub(super) places: Arc<BTreeMap<u64, String>>,
}

impl RaftScenarioContext {
    pub(super) fn env(&self, at: &str, computer: &Arc<Computer>) -> Env {
        let port = Port { net: self.net.clone(), at: at.to_owned(), computer: computer.clone() };
        Env { runtime: computer.clone(), network: Arc::new(port) }
    }

    pub(super) fn client(&self, at: &str, computer: &Arc<Computer>) -> RaftStore {
        RaftStore::client(self.env(at, computer), self.places.as_ref().clone())
    }
}

/// Runs a client that campaigns in all elections until its machine ends.
pub(super) async fn stand(context: RaftScenarioContext, name: String, computer: Arc<Computer>) {
    let raft = context.client(&name, &computer);
    let tenure = loop {
        let builder = Tenure::builder().store(raft.clone()).name(name.clone()).lease(context.plan.lease);
        match builder.runtime(computer.clone()).open().await {
            Ok(tenure) => break tenure,
            Err(_) => pause_for(&computer, 100, 1_000).await,
        }
    };
    for election in 0..context.plan.elections {
        let (context, tenure, raft) = (context.clone(), tenure.clone(), raft.clone());
        tokio::spawn(campaign(context, tenure, raft, election, name.clone(), computer.clone()));
    }
    write_and_read(context, name, raft, computer, None).await;
}

async fn campaign(
    context: RaftScenarioContext,
    tenure: Tenure,
    raft: RaftStore,
    election: usize,
    name: String,
    computer: Arc<Computer>,
) {
    let elector = loop {
        match tenure.elector(format!("e{election}")).start().await {
            Ok(elector) => break Arc::new(elector),
            Err(_) => pause_for(&computer, 100, 1_000).await,
        }
    };
    context.oracle.stands(election, computer.clone(), elector.clone());
    while let Ok(leadership) = elector.elected().await {
        computer.awake().await;
        if !leadership.is_leader() {
            continue;
        }
        context.oracle.elected(election, &name, leadership.token());
        let working = work(&context, &raft, election, &leadership, &elector, &computer);
        tokio::select! {
            biased;
            _ = leadership.lost() => {}
            _ = leadership.leader_request() => {}
            () = working => {}
        }
    }
}

/// Writes under the lease for a while.
async fn work(
    context: &RaftScenarioContext,
    raft: &RaftStore,
    election: usize,
    leadership: &Leadership,
    elector: &Elector,
    computer: &Computer,
) {
    let (token, key) = (leadership.token(), format!("by-e{election}"));
    loop {
        pause_for(computer, 100, 1_500).await;
        let before = context.oracle.fenced_by_now(election);
        let under = Some((leadership.election(), leadership.slot(), token));
        if raft.put(&key, Some(&token.to_string()), under).await.is_ok() {
            context.oracle.fenced(election, token, before);
        }
        if computer.random().is_multiple_of(30) {
            let _ = elector.resign();
            return;
        }
    }
}

/// Writes unique values and reads the current ones.
pub(super) async fn write_and_read(
    context: RaftScenarioContext,
    who: String,
    raft: RaftStore,
    computer: Arc<Computer>,
    member: Option<u64>,
) {
    let mut received: BTreeMap<String, Option<String>> = BTreeMap::new();
    // Another run of the same machine must write other values.
    let run = computer.random() % 1_000_000;
    for number in 0_u64.. {
        pause_for(&computer, 50, 1_200).await;
        let key = format!("k{}", computer.random() % KEYS);
        let begun = context.time.now();
        let answered = if computer.random().is_multiple_of(2) {
            let value = format!("{who}/{run}/{number}");
            let op = context.oracle.begins(&who, &key, Some(value.clone()));
            let written = raft.put(&key, Some(&value), None).await.is_ok();
            computer.awake().await;
            if written {
                context.oracle.wrote(op);
            }
            written
        } else {
            let op = context.oracle.begins(&who, &key, None);
            let value = match (context.plan.bug, received.get(&key)) {
                (Some(RaftInjectedBug::ResponsesFromMemory), Some(known))
                    if computer.random().is_multiple_of(3) =>
                {
                    Ok(known.clone())
                }
                _ => raft.get(&key).await,
            };
            computer.awake().await;
            if let Ok(value) = &value {
                context.oracle.read(op, value.clone());
                received.insert(key, value.clone());
            }
            value.is_ok()
        };
        if let Some(member) = member {
            context.oracle.record_request(member, begun, answered);
        }
    }
}

/// Sleeps for a random time between `least` and `most` milliseconds on the machine's own clock.
pub(super) async fn pause_for(computer: &Computer, least: u64, most: u64) {
    let lasts = Duration::from_millis(least + computer.random() % (most - least));
    computer.sleep_until(computer.now() + lasts).await;
}
