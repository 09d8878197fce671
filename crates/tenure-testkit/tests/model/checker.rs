//! All steps of the model, and the properties checked after each.

use stateright::{Model, Property};

use crate::node;
use crate::rules::{Bug, Clocks, FAST, Rules, SLOW};
use crate::state::{Envelope, Life, MAX_NODES, Node, Request, Session, World};
use crate::store;

/// What happens to a request, as its node knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Answered,
    /// It was applied, and the node does not know.
    AnswerLost,
    /// It was not applied when the node gave up, and may still be.
    Late,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Real time advances, and each local clock by its rate.
    Tick([u8; MAX_NODES]),
    /// A request that is decided in this step.
    Ask(usize, Request, Fate),
    /// A request that takes time.
    Send(usize, Request),
    Serve(usize),
    Receive(usize),
    /// A timeout: before the request was served, or after it with the response lost.
    GiveUp(usize),
    /// A request that was given up arrives late. If this never happens, it was lost.
    ServeLate(usize),
    Crash(usize),
    Leave(usize),
    StartWork(usize),
    EndWork(usize),
    Guard(usize),
    Commit(usize),
    Abort(usize),
    Write(usize),
    DeliverWrite(usize),
    /// From here on the standby receives nothing.
    StandbyLags,
    /// The primary is gone, and with it everything the standby had not received.
    Promote,
}

impl Rules {
    fn ticks(&self) -> Vec<Step> {
        if self.clocks != Clocks::AnyRate {
            return vec![Step::Tick([0; MAX_NODES])];
        }
        let rate = |bits: usize, n: usize| if bits >> n & 1 == 1 { FAST } else { SLOW };
        (0..1 << self.nodes).map(|bits| Step::Tick(std::array::from_fn(|n| rate(bits, n)))).collect()
    }

    fn steps_of(&self, world: &World, n: usize, steps: &mut Vec<Step>) {
        let node = &world.nodes[n];
        let blocked = |envelope: &Envelope| store::is_blocked(world, self, envelope);
        // Nodes start identical, so the first one that is granted the lease is called node 0.
        let may_take = world.granted.serial < self.grants && (world.granted.serial > 0 || n == 0);
        for request in node::may_send(node, self) {
            if may_take || !matches!(request, Request::Take { .. }) {
                let blocked = blocked(&Envelope { session: node.session, request });
                self.send(n, request, blocked, steps);
            }
        }
        if let Some(flight) = &node.flight {
            steps.push(Step::GiveUp(n));
            match flight.answer {
                Some(_) => steps.push(Step::Receive(n)),
                None if !blocked(&flight.envelope) => steps.push(Step::Serve(n)),
                None => {}
            }
        }
        if node.orphan.as_ref().is_some_and(|orphan| !blocked(orphan)) {
            steps.push(Step::ServeLate(n));
        }
        if usize::from(world.next_session) < self.nodes + usize::from(self.restarts) {
            steps.push(Step::Crash(n));
            if node.transaction.is_none() && !node.working {
                steps.push(Step::Leave(n));
            }
        }
        self.work_of(world, n, steps);
    }

    fn send(&self, n: usize, request: Request, blocked: bool, steps: &mut Vec<Step>) {
        let query = |outcome| Step::Ask(n, request, outcome);
        match request {
            Request::Beat if self.slow.beats => steps.push(Step::Send(n, request)),
            Request::Observe if self.slow.reads => steps.push(Step::Send(n, request)),
            Request::Take { .. } if self.slow.takes => steps.push(Step::Send(n, request)),
            Request::Beat => steps.extend([query(Fate::Answered), query(Fate::AnswerLost)]),
            Request::Observe => steps.push(query(Fate::Answered)),
            Request::Take { .. } if blocked => steps.push(query(Fate::Late)),
            Request::Take { .. } => {
                steps.extend([query(Fate::Answered), query(Fate::AnswerLost), query(Fate::Late)]);
            }
            // The nodes do not wait for these responses.
            Request::Release { .. } | Request::End => steps.push(query(Fate::Late)),
        }
    }

    fn work_of(&self, world: &World, n: usize, steps: &mut Vec<Step>) {
        let node = &world.nodes[n];
        let leads = node.believes(self);
        match (self.work, node.working) {
            (_, true) => steps.push(Step::EndWork(n)),
            (true, false) if leads => steps.push(Step::StartWork(n)),
            _ => {}
        }
        if node.transaction.is_some() {
            steps.extend([Step::Commit(n), Step::Abort(n)]);
        } else if self.guarded && leads && holds(world, node) {
            steps.push(Step::Guard(n));
        }
        if node.write.is_some() {
            steps.push(Step::DeliverWrite(n));
        }
        if self.fenced && leads {
            steps.push(Step::Write(n));
        }
    }
}

/// Whether the store agrees that this node's session holds the lease under the node's token.
fn holds(world: &World, node: &Node) -> bool {
    world.store.holder == Some(node.session)
        && node.transaction.or(node.held).is_some_and(|grant| grant.token == world.store.lease.token)
}

fn serve(world: &mut World, rules: &Rules, n: usize) -> Option<()> {
    let envelope = world.nodes[n].flight?.envelope;
    let answer = store::serve(world, rules, &envelope);
    let epoch = world.store.epoch;
    world.nodes[n].flight.as_mut()?.answer = Some((epoch, answer));
    Some(())
}

fn start_again(world: &mut World, n: usize, gracefully: bool) {
    let session = world.next_session;
    world.next_session += 1;
    world.store.sessions[usize::from(session)] = Session { life: Life::Live, beat: 0 };
    node::restart(&mut world.nodes[n], session, gracefully);
}

fn deliver_write(world: &mut World, rules: &Rules, n: usize) {
    let Some(write) = world.nodes[n].write.take() else { return };
    if write.token >= world.accepted.token || rules.has_bug(Bug::NoFence) {
        world.harm.stale_write_accepted |= write.serial < world.accepted.serial;
        world.accepted = write;
    }
}

fn promote(world: &mut World) {
    let Some(standby) = world.standby.take() else { return };
    let epoch = world.store.epoch + 1;
    world.store = standby;
    world.store.epoch = epoch;
    for node in &mut world.nodes {
        node.transaction = None;
    }
}

impl Model for Rules {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        steps.extend(self.ticks());
        for n in 0..self.nodes {
            self.steps_of(world, n, steps);
        }
        if self.promotion && world.store.epoch == 0 {
            steps.push(if world.standby.is_none() { Step::StandbyLags } else { Step::Promote });
        }
    }

    fn next_state(&self, before: &World, step: Step) -> Option<World> {
        let mut world = *before;
        match step {
            Step::Tick(rates) => {
                for (node, rate) in world.nodes.iter_mut().zip(rates) {
                    node.advance(self, rate);
                }
            }
            Step::Ask(n, request, outcome) => {
                node::send(&mut world.nodes[n], self, request);
                if outcome != Fate::Late {
                    serve(&mut world, self, n)?;
                }
                match outcome {
                    Fate::Answered => node::receive(&mut world.nodes[n], self),
                    Fate::AnswerLost | Fate::Late => node::give_up(&mut world.nodes[n]),
                }
            }
            Step::Send(n, request) => node::send(&mut world.nodes[n], self, request),
            Step::Serve(n) => serve(&mut world, self, n)?,
            Step::Receive(n) => node::receive(&mut world.nodes[n], self),
            Step::GiveUp(n) => node::give_up(&mut world.nodes[n]),
            Step::ServeLate(n) => {
                let envelope = world.nodes[n].orphan.take()?;
                store::serve(&mut world, self, &envelope);
            }
            Step::Crash(n) => start_again(&mut world, n, false),
            Step::Leave(n) => start_again(&mut world, n, true),
            Step::StartWork(n) => world.nodes[n].working = true,
            Step::EndWork(n) => world.nodes[n].working = false,
            Step::Guard(n) => world.nodes[n].transaction = world.nodes[n].held,
            Step::Commit(n) => {
                world.harm.commit_without_lease |= !holds(&world, &world.nodes[n]);
                world.nodes[n].transaction = None;
            }
            Step::Abort(n) => world.nodes[n].transaction = None,
            Step::Write(n) => world.nodes[n].write = world.nodes[n].held,
            Step::DeliverWrite(n) => deliver_write(&mut world, self, n),
            Step::StandbyLags => world.standby = Some(world.store),
            Step::Promote => promote(&mut world),
        }
        world.rename_beats();
        world.forget_hopeless(self);
        (world != *before).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        crate::properties::all(self)
    }
}
