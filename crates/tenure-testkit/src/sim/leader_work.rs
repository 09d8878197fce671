//! Work of leaders: guarded writes and fenced writes.

use super::InjectedBug;
use super::invariants;
use super::network::RandomExt as _;
use super::node::SimWork;
use super::simulation::{CheckResult, ElectionSimulation, SimStep};

impl ElectionSimulation {
    pub(super) fn write_as_leader(&mut self, node: usize) {
        for election in 0..self.keys.len() {
            let believes =
                self.nodes[node].trusts_leadership(election, &self.keys[election], self.now, self.bug);
            if believes.is_none() || !self.rng.chance(400) {
                continue;
            }
            let Some(work) = self.nodes[node].works[election].clone() else { continue };
            let delay = self.plan.weather.delay(&mut self.rng, &self.plan.timing);
            let what = if self.rng.chance(500) { SimStep::GuardedWrite } else { SimStep::FencedWrite };
            self.at(self.now + delay, what(Box::new(work)));
        }
    }

    pub(super) fn guarded_write(&mut self, work: SimWork) -> CheckResult {
        let key = &self.keys[work.place.election];
        if !self.store_up || !self.store.holds(key, work.place.slot, work.token, &work.session) {
            self.stats.guarded_refused += 1;
            return Ok(());
        }
        if self.bug == Some(InjectedBug::GuardTakesNoLock) {
            let later = self.now + self.plan.weather.delay(&mut self.rng, &self.plan.timing);
            self.at(later, SimStep::Commit(Box::new(work)));
            return Ok(());
        }
        self.commit(&work)
    }

    pub(super) fn commit(&mut self, work: &SimWork) -> CheckResult {
        self.stats.guarded_writes += 1;
        invariants::guarded_writes_only_by_the_holder::check(self, work)
    }

    pub(super) fn fenced_write(&mut self, work: &SimWork) -> CheckResult {
        if !self.resource.write(work.place, work.token) {
            self.stats.stale_refused += 1;
            return Ok(());
        }
        self.stats.fenced_writes += 1;
        invariants::no_stale_write_accepted::check(self, work)
    }
}
