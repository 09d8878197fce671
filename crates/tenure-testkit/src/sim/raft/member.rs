//! A simulated Raft member: its disk, which persists, and its machine, which restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use tenure::store::raft::RaftStore;
use tenure::store::raft::env::{MemberConfig, run_on_host};
use tenure_core::{Entropy as _, SplitMix};

use super::clients::{RaftScenarioContext, write_and_read};
use super::computer::Computer;
use super::disk::{MountedDisk, SimDisk};
use crate::sim::clock::SimClock;

pub(super) struct SimRaftMember {
    node: u64,
    peers: BTreeSet<u64>,
    clock: SimClock,
    rng: SplitMix,
    pub(super) platter: SimDisk,
    /// Whether the member lost acknowledged data and must not take part any more.
    pub(super) is_lost: bool,
    run: Option<Run>,
    /// Number of starts on its disk.
    pub(super) runs: u64,
    /// Copy of its disk before its last start.
    copy: Option<BTreeMap<String, Vec<u8>>>,
}

struct Run {
    computer: Arc<Computer>,
    raft: Arc<Mutex<Option<RaftStore>>>,
}

impl SimRaftMember {
    pub(super) fn new(
        node: u64,
        peers: BTreeSet<u64>,
        clock: SimClock,
        seed: u64,
        lies: bool,
    ) -> SimRaftMember {
        let mut rng = SplitMix::new(seed);
        let platter = SimDisk::new(rng.next_u64(), lies);
        SimRaftMember { node, peers, clock, rng, platter, is_lost: false, run: None, runs: 0, copy: None }
    }

    pub(super) fn start(&mut self, context: &RaftScenarioContext) {
        if self.run.is_some() {
            return;
        }
        self.copy = Some(self.platter.copy()).filter(|_| self.runs > 0);
        self.runs += 1;
        let (node, at) = (self.node, format!("m{}", self.node));
        let computer = Computer::new(&context.time, self.clock.clone(), self.rng.next_u64(), true);
        let raft: Arc<Mutex<Option<RaftStore>>> = Arc::default();
        self.run = Some(Run { computer: computer.clone(), raft: raft.clone() });
        let disk = MountedDisk {
            platter: self.platter.clone(),
            computer: computer.clone(),
            time: context.time.clone(),
        };
        let oracle = context.oracle.clone();
        let member_config = MemberConfig {
            node,
            peers: self.peers.iter().map(|peer| (*peer, format!("m{peer}"))).collect(),
            listen: None,
            snapshot: Some(context.plan.snapshot),
            disk: Arc::new(disk),
            observer: Some(Arc::new(move |index, entry: &[u8]| oracle.applied(node, index, entry))),
        };
        let (env, context) = (context.env(&at, &computer), context.clone());
        tokio::spawn(run_on_host(computer.clone(), async move {
            match RaftStore::member(env, member_config).await {
                Ok(member) => {
                    *raft.lock().unwrap_or_else(PoisonError::into_inner) = Some(member.clone());
                    write_and_read(context, at, member, computer, Some(node)).await;
                }
                // The power failed during the first write.
                Err(_) if computer.is_over() => {}
                Err(error) => context.oracle.broken("a_member_starts", format!("{at}: {error}")),
            }
        }));
    }

    /// The member, while its machine runs.
    pub(super) fn raft(&self) -> Option<RaftStore> {
        let run = self.run.as_ref().filter(|run| !run.computer.is_over())?;
        run.raft.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn computer(&self) -> Option<&Arc<Computer>> {
        self.run.as_ref().map(|run| &run.computer)
    }

    /// Whether its machine ended during a write.
    pub(super) fn has_failed(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.computer.is_over())
    }

    /// Ends its machine abruptly. Returns whether it was running.
    pub(super) fn crash(&mut self) -> bool {
        let Some(run) = self.run.take() else { return false };
        run.computer.end();
        self.platter.crash();
        true
    }

    /// Resets its disk to the copy before its last start, or empties it. Data that was acknowledged since is lost.
    pub(super) fn lose_disk(&mut self, all: bool) {
        self.crash();
        self.platter.put_back(self.copy.take().filter(|_| !all).unwrap_or_default());
        self.is_lost = true;
    }
}
