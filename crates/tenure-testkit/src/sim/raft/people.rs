//! Those who use a cluster: candidates of elections, and who writes and reads values.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure::backend::raft::Raft;
use tenure::backend::raft::ground::Ground;
use tenure::runtime::Runtime as _;
use tenure::{Elector, Leadership, Tenure};

use super::computer::Computer;
use super::oracle::Oracle;
use super::plan::{Plan, RaftMistake};
use super::time::Time;
use super::wire::{Net, Port};

/// How many values are written and read.
const KEYS: u64 = 2;

/// What everybody shares.
#[derive(Clone)]
pub(super) struct Stage {
    pub(super) time: Time,
    pub(super) net: Net,
    pub(super) oracle: Oracle,
    pub(super) plan: Arc<Plan>,
    /// Where members are, or may come to be.
    pub(super) places: Arc<BTreeMap<u64, String>>,
}

impl Stage {
    pub(super) fn ground(&self, at: &str, computer: &Arc<Computer>) -> Ground {
        let port = Port { net: self.net.clone(), at: at.to_owned(), computer: computer.clone() };
        Ground { runtime: computer.clone(), network: Arc::new(port) }
    }

    pub(super) fn client(&self, at: &str, computer: &Arc<Computer>) -> Raft {
        Raft::client(self.ground(at, computer), self.places.as_ref().clone())
    }
}

/// One run of a client that stands for all elections.
pub(super) async fn stand(stage: Stage, name: String, computer: Arc<Computer>) {
    let raft = stage.client(&name, &computer);
    let tenure = loop {
        let builder = Tenure::builder().store(raft.clone()).name(name.clone()).lease(stage.plan.lease);
        match builder.runtime(computer.clone()).open().await {
            Ok(tenure) => break tenure,
            Err(_) => nap(&computer, 100, 1_000).await,
        }
    };
    for election in 0..stage.plan.elections {
        let (stage, tenure, raft) = (stage.clone(), tenure.clone(), raft.clone());
        tokio::spawn(campaign(stage, tenure, raft, election, name.clone(), computer.clone()));
    }
    write_and_read(stage, name, raft, computer, None).await;
}

async fn campaign(
    stage: Stage,
    tenure: Tenure,
    raft: Raft,
    election: usize,
    name: String,
    computer: Arc<Computer>,
) {
    let elector = loop {
        match tenure.elector(format!("e{election}")).start().await {
            Ok(elector) => break Arc::new(elector),
            Err(_) => nap(&computer, 100, 1_000).await,
        }
    };
    stage.oracle.stands(election, computer.clone(), elector.clone());
    while let Ok(leadership) = elector.elected().await {
        computer.awake().await;
        if !leadership.is_leader() {
            continue;
        }
        stage.oracle.elected(election, &name, leadership.token());
        let working = work(&stage, &raft, election, &leadership, &elector, &computer);
        tokio::select! {
            biased;
            _ = leadership.lost() => {}
            _ = leadership.asked() => {}
            () = working => {}
        }
    }
}

/// Writes under the lease, until it has had enough.
async fn work(
    stage: &Stage,
    raft: &Raft,
    election: usize,
    leadership: &Leadership,
    elector: &Elector,
    computer: &Computer,
) {
    let (token, key) = (leadership.token(), format!("by-e{election}"));
    loop {
        nap(computer, 100, 1_500).await;
        let before = stage.oracle.fenced_by_now(election);
        let under = Some((leadership.election(), leadership.slot(), token));
        if raft.put(&key, Some(&token.to_string()), under).await.is_ok() {
            stage.oracle.fenced(election, token, before);
        }
        if computer.random().is_multiple_of(30) {
            let _ = elector.resign();
            return;
        }
    }
}

/// Writes values that nobody else writes, and reads whatever is there.
pub(super) async fn write_and_read(
    stage: Stage,
    who: String,
    raft: Raft,
    computer: Arc<Computer>,
    member: Option<u64>,
) {
    let mut heard: BTreeMap<String, Option<String>> = BTreeMap::new();
    // Another run of the same machine writes other values.
    let run = computer.random() % 1_000_000;
    for number in 0_u64.. {
        nap(&computer, 50, 1_200).await;
        let key = format!("k{}", computer.random() % KEYS);
        let begun = stage.time.now();
        let answered = if computer.random().is_multiple_of(2) {
            let value = format!("{who}/{run}/{number}");
            let deed = stage.oracle.begins(&who, &key, Some(value.clone()));
            let written = raft.put(&key, Some(&value), None).await.is_ok();
            computer.awake().await;
            if written {
                stage.oracle.wrote(deed);
            }
            written
        } else {
            let deed = stage.oracle.begins(&who, &key, None);
            let value = match (stage.plan.mistake, heard.get(&key)) {
                (Some(RaftMistake::AnswersFromMemory), Some(known))
                    if computer.random().is_multiple_of(3) =>
                {
                    Ok(known.clone())
                }
                _ => raft.get(&key).await,
            };
            computer.awake().await;
            if let Ok(value) = &value {
                stage.oracle.read(deed, value.clone());
                heard.insert(key, value.clone());
            }
            value.is_ok()
        };
        if let Some(member) = member {
            stage.oracle.asked(member, begun, answered);
        }
    }
}

/// Between so many milliseconds, on its own clock.
pub(super) async fn nap(computer: &Computer, least: u64, most: u64) {
    let lasts = Duration::from_millis(least + computer.random() % (most - least));
    computer.sleep_until(computer.now() + lasts).await;
}
