//! A member: its disk, which stays, and its machine, which comes and goes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use tenure::backend::raft::Raft;
use tenure::backend::raft::ground::{Seat, hosted};
use tenure_core::{Entropy as _, SplitMix};

use super::computer::Computer;
use super::disk::{Mount, Platter};
use super::people::{Stage, write_and_read};
use crate::sim::clock::Clock;

pub(super) struct Member {
    node: u64,
    peers: BTreeSet<u64>,
    clock: Clock,
    rng: SplitMix,
    pub(super) platter: Platter,
    /// Whether it has lost what it promised, and must take no part any more.
    pub(super) is_lost: bool,
    run: Option<Run>,
    /// How often it was started on its disk.
    pub(super) runs: u64,
    /// Its disk as it was before its last start.
    copy: Option<BTreeMap<String, Vec<u8>>>,
}

struct Run {
    computer: Arc<Computer>,
    raft: Arc<Mutex<Option<Raft>>>,
}

impl Member {
    pub(super) fn new(node: u64, peers: BTreeSet<u64>, clock: Clock, seed: u64, lies: bool) -> Member {
        let mut rng = SplitMix::new(seed);
        let platter = Platter::new(rng.next_u64(), lies);
        Member { node, peers, clock, rng, platter, is_lost: false, run: None, runs: 0, copy: None }
    }

    pub(super) fn start(&mut self, stage: &Stage) {
        if self.run.is_some() {
            return;
        }
        self.copy = Some(self.platter.copy()).filter(|_| self.runs > 0);
        self.runs += 1;
        let (node, at) = (self.node, format!("m{}", self.node));
        let computer = Computer::new(&stage.time, self.clock.clone(), self.rng.next_u64(), true);
        let raft: Arc<Mutex<Option<Raft>>> = Arc::default();
        self.run = Some(Run { computer: computer.clone(), raft: raft.clone() });
        let disk =
            Mount { platter: self.platter.clone(), computer: computer.clone(), time: stage.time.clone() };
        let oracle = stage.oracle.clone();
        let seat = Seat {
            node,
            peers: self.peers.iter().map(|peer| (*peer, format!("m{peer}"))).collect(),
            listen: None,
            snapshot: Some(stage.plan.snapshot),
            disk: Arc::new(disk),
            witness: Some(Arc::new(move |index, entry: &[u8]| oracle.applied(node, index, entry))),
        };
        let (ground, stage) = (stage.ground(&at, &computer), stage.clone());
        tokio::spawn(hosted(computer.clone(), async move {
            match Raft::member(ground, seat).await {
                Ok(member) => {
                    *raft.lock().unwrap_or_else(PoisonError::into_inner) = Some(member.clone());
                    write_and_read(stage, at, member, computer, Some(node)).await;
                }
                // In the middle of its first write.
                Err(_) if computer.is_over() => {}
                Err(error) => stage.oracle.broken("a_member_starts", format!("{at}: {error}")),
            }
        }));
    }

    /// The member, while its machine runs.
    pub(super) fn raft(&self) -> Option<Raft> {
        let run = self.run.as_ref().filter(|run| !run.computer.is_over())?;
        run.raft.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn computer(&self) -> Option<&Arc<Computer>> {
        self.run.as_ref().map(|run| &run.computer)
    }

    /// Whether its machine has ended by itself.
    pub(super) fn has_failed(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.computer.is_over())
    }

    /// Ends its machine, in the middle of whatever it does; whether there was one.
    pub(super) fn crash(&mut self) -> bool {
        let Some(run) = self.run.take() else { return false };
        run.computer.end();
        self.platter.crash();
        true
    }

    /// Its disk is as it was before its last start, or empty: what it promised since is forgotten.
    pub(super) fn lose_disk(&mut self, all: bool) {
        self.crash();
        self.platter.put_back(self.copy.take().filter(|_| !all).unwrap_or_default());
        self.is_lost = true;
    }
}
