//! The lease machine: the session and all campaigns of one process.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::command::{CommandId, LeaseEvent, LeaseInput, LossReason, StoreCommand, StoreResponse};
use super::heartbeat_tracker::HeartbeatTracker;
use super::phase::{Campaign, CampaignPhase};
use super::timers::{Timer, Timers};
use crate::port::{ElectionView, LeaderRequest, LeaderRequestKind, Notification, ObserveScope, TakeoverMode};
use crate::{BootInstant, ElectionKey, Entropy, SessionId, Timing, Token};

/// Number of attempts to end a session before it is left to expire.
pub(super) const END_TRIES: u32 = 3;

/// Configuration of the lease machine.
#[derive(Clone, Debug)]
pub struct LeaseMachineConfig {
    /// Display name of the process.
    pub name: String,
    /// Lease and heartbeat interval.
    pub timing: Timing,
    /// How other processes establish that the session is dead.
    pub takeover: TakeoverMode,
}

/// The state machine of one process: its session and its part in any number of elections.
///
/// ```
/// use tenure_core::rules::lease::{LeaseInput, LeaseMachine, LeaseMachineConfig, StoreCommand};
/// use tenure_core::{BootInstant, SplitMix};
///
/// let mut machine = LeaseMachine::new(LeaseMachineConfig { name: "a".into(), timing: Default::default(), takeover: Default::default() });
/// machine.handle(BootInstant::ZERO, LeaseInput::Start, &mut SplitMix::new(1));
/// let (_, command) = machine.poll_command().unwrap();
/// assert!(matches!(command, StoreCommand::Open(session) if session.name == "a"));
/// ```
#[derive(Clone, Debug)]
pub struct LeaseMachine {
    pub(super) config: LeaseMachineConfig,
    pub(super) session: SessionState,
    pub(super) campaigns: BTreeMap<ElectionKey, Campaign>,
    pub(super) tracker: HeartbeatTracker,
    pub(super) timers: Timers,
    pub(super) commands: VecDeque<(CommandId, StoreCommand)>,
    pub(super) events: VecDeque<LeaseEvent>,
    pub(super) pending: BTreeMap<CommandId, PendingCommand>,
    /// Number of inputs so far; orders observations and commands.
    pub(super) step: u64,
    pub(super) next_command: u64,
    pub(super) reading: bool,
    /// Last election of the previous partial read: one entry for the reads of followers, one for those of leaders.
    pub(super) read_until: [Option<ElectionKey>; 2],
    /// Elections to read as soon as no other read is in progress.
    pub(super) to_read: BTreeSet<ElectionKey>,
    /// Sessions whose expiry was requested, with the heartbeat count that stayed unchanged.
    pub(super) expiring: BTreeSet<(SessionId, u64)>,
    pub(super) watched: Vec<SessionId>,
}

#[derive(Clone, Debug)]
pub(super) enum SessionState {
    Closed,
    Opening,
    Live(LiveSession),
    Ending { id: SessionId, tries: u32 },
    Ended,
}

#[derive(Clone, Debug)]
pub(super) struct LiveSession {
    pub(super) id: SessionId,
    pub(super) epoch: u32,
    /// Everything held is trusted before this instant, and no longer at it.
    pub(super) deadline: BootInstant,
    pub(super) is_untrusted: bool,
    pub(super) beating: bool,
    pub(super) heartbeat_again: bool,
}

#[derive(Clone, Debug)]
pub(super) enum PendingCommand {
    Open(SessionId),
    Heartbeat(SessionId),
    End,
    Join(SessionId, ElectionKey),
    Leave(ElectionKey),
    Read {
        session: SessionId,
        scope: ObserveScope,
        step: u64,
    },
    Take {
        session: SessionId,
        election: ElectionKey,
        slot: u32,
    },
    Release(ElectionKey, u32, Token),
    Expire(SessionId, u64),
    /// The response is ignored.
    Nothing,
}

impl LeaseMachine {
    /// Creates a machine that has not started.
    pub fn new(config: LeaseMachineConfig) -> Self {
        LeaseMachine {
            config,
            session: SessionState::Closed,
            campaigns: BTreeMap::new(),
            tracker: HeartbeatTracker::default(),
            timers: Timers::default(),
            commands: VecDeque::new(),
            events: VecDeque::new(),
            pending: BTreeMap::new(),
            step: 0,
            next_command: 0,
            reading: false,
            read_until: [None, None],
            to_read: BTreeSet::new(),
            expiring: BTreeSet::new(),
            watched: Vec::new(),
        }
    }

    /// Handles an input. `now` must never go backwards.
    pub fn handle(&mut self, now: BootInstant, input: LeaseInput, entropy: &mut dyn Entropy) {
        self.step += 1;
        // Apply expired trust before the input, so that no decision relies on it.
        self.expire_trust(now);
        match input {
            LeaseInput::Start => self.open(entropy),
            LeaseInput::Campaign(options) => self.campaign(options),
            LeaseInput::Withdraw(key) => self.withdraw(&key, now, entropy),
            LeaseInput::Resign(key) => self.request(&key, None, LeaderRequestKind::Resign),
            LeaseInput::Finished(key) => self.finished(&key, now, entropy),
            LeaseInput::Response { id, sent_at, answer } => self.answer(id, sent_at, answer, now, entropy),
            LeaseInput::Notification(notification) => self.notification(notification, now, entropy),
            LeaseInput::Tick => {}
            LeaseInput::Stop => self.stop(),
        }
        while let Some(timer) = self.timers.pop_due(now) {
            self.due(timer, now, entropy);
        }
        self.read_pending();
    }

    /// The next store call to make.
    pub fn poll_command(&mut self) -> Option<(CommandId, StoreCommand)> {
        self.commands.pop_front()
    }

    /// The next event for the process.
    pub fn poll_event(&mut self) -> Option<LeaseEvent> {
        self.events.pop_front()
    }

    /// When to call [`handle`](Self::handle) with [`LeaseInput::Tick`] if no other input arrives earlier.
    pub fn poll_timeout(&self) -> Option<BootInstant> {
        self.timers.next()
    }

    /// Everything led is trusted before this instant. [`BootInstant::ZERO`] means that nothing is trusted.
    pub fn trusted_until(&self) -> BootInstant {
        match &self.session {
            SessionState::Live(live) => live.deadline,
            _ => BootInstant::ZERO,
        }
    }

    /// The token under which this process leads the election at `now`. Compares `now` with the deadline and does not
    /// rely on a flag.
    pub fn leads(&self, key: &ElectionKey, now: BootInstant) -> Option<Token> {
        match &self.campaigns.get(key)?.phase {
            CampaignPhase::Leading { term, .. } if now < self.trusted_until() => Some(term.token),
            _ => None,
        }
    }

    /// The live session.
    pub fn session(&self) -> Option<&SessionId> {
        match &self.session {
            SessionState::Live(live) => Some(&live.id),
            _ => None,
        }
    }

    /// The last observed state of the election.
    pub fn view(&self, key: &ElectionKey) -> Option<&ElectionView> {
        self.campaigns.get(key)?.view.as_ref()
    }

    // Notifications and timers

    fn notification(&mut self, notification: Notification, now: BootInstant, entropy: &mut dyn Entropy) {
        match notification {
            Notification::LeaseReleased {
                election,
                slot,
                token,
                released_by: by,
                successor,
                start_reason,
            } => {
                let me = self.session().cloned();
                let Some(campaign) = self.campaigns.get_mut(&election) else { return };
                if Some(&by) == me.as_ref() || campaign.phase != CampaignPhase::Following {
                    return;
                }
                // The notification may be wrong. It only leads to a take, which is a compare-and-swap.
                let lease = campaign.view.as_mut().and_then(|v| v.leases.iter_mut().find(|l| l.slot == slot));
                if let Some(lease) = lease.filter(|lease| lease.token == token) {
                    (lease.holder, lease.reserved_for, lease.start_reason) = (None, successor, start_reason);
                    campaign.released_by = Some(by);
                    self.consider(&election, now, entropy);
                }
                self.read_unless_taking(election);
            }
            Notification::ElectionChanged(election) => {
                if self.campaigns.contains_key(&election) {
                    self.to_read.insert(election);
                }
            }
            Notification::LeaderRequested(session) => {
                if self.session() == Some(&session) {
                    self.send_heartbeat();
                }
            }
            // These notifications concern queues, pools, topics and schedules, not leases.
            Notification::QueueReady(_)
            | Notification::ClaimCancelled(_)
            | Notification::PoolChanged(_)
            | Notification::TopicPublished(_)
            | Notification::GroupChanged(_)
            | Notification::SchedulesChanged => {}
            // The store has already released everything that the session held.
            Notification::SessionEnded(session) => self.holder_ended(&session, now, entropy, |campaign| {
                let leases = campaign.view.iter_mut().flat_map(|view| view.leases.iter_mut());
                for lease in leases.filter(|l| l.holder.as_ref().is_some_and(|h| h.id == session)) {
                    lease.holder = None;
                }
                campaign.released_by = Some(session.clone());
            }),
            Notification::SessionExpired(session) => {
                self.tracker.heartbeats.died(session.clone());
                self.holder_ended(&session, now, entropy, |_| {});
            }
            Notification::ConnectionLost(session) => {
                if self.session() == Some(&session) {
                    self.lose_session(LossReason::ConnectionLost, entropy);
                }
            }
            Notification::Resync => self.timers.no_later_than(Timer::LeaderPoll, now),
        }
    }

    fn holder_ended(
        &mut self,
        session: &SessionId,
        now: BootInstant,
        entropy: &mut dyn Entropy,
        mark: impl Fn(&mut Campaign),
    ) {
        let mut affected = Vec::new();
        for (key, campaign) in &mut self.campaigns {
            if campaign.view.iter().any(|view| view.held_by(session).next().is_some()) {
                mark(campaign);
                affected.push(key.clone());
            }
        }
        for key in affected {
            self.consider(&key, now, entropy);
            self.read_unless_taking(key);
        }
    }

    /// Reads the election unless a take is in progress, because the read would be outdated when the take returns.
    fn read_unless_taking(&mut self, key: ElectionKey) {
        if self.campaigns.get(&key).is_some_and(|campaign| campaign.phase != CampaignPhase::Taking) {
            self.to_read.insert(key);
        }
    }

    fn due(&mut self, timer: Timer, now: BootInstant, entropy: &mut dyn Entropy) {
        let timing = self.config.timing;
        match timer {
            // `handle` has already applied expired trust.
            Timer::TrustExpiry => {}
            Timer::Open => self.open(entropy),
            Timer::Heartbeat => self.send_heartbeat(),
            Timer::Read => {
                let follows = |c: &Campaign| c.phase == CampaignPhase::Following;
                if self.reading {
                    self.timers.set(Timer::Read, now + entropy.jitter(timing.poll()));
                } else if self.campaigns.values().any(follows) {
                    self.read_scope(ObserveScope::Contested, follows);
                }
            }
            Timer::LeaderPoll => {
                self.timers.set(Timer::LeaderPoll, now + entropy.jitter(timing.leader_poll()));
                if self.reading {
                    self.timers.set(Timer::LeaderPoll, now + entropy.jitter(timing.retry()));
                } else {
                    self.read_scope(ObserveScope::Own, |_| true);
                }
            }
            Timer::End => {
                if let SessionState::Ending { id, tries } = &mut self.session {
                    *tries += 1;
                    let id = id.clone();
                    self.command(StoreCommand::End(id), PendingCommand::End);
                }
            }
            Timer::Election(key) => match self.campaigns.get(&key).map(|c| (&c.phase, c.joined)) {
                Some((CampaignPhase::Releasing { .. }, _)) => self.release(&key),
                Some((CampaignPhase::Leaving, _)) => self.leave(&key, now, entropy),
                Some((_, false)) => self.join(&key),
                Some((CampaignPhase::Following, true)) => self.consider(&key, now, entropy),
                _ => {}
            },
        }
    }

    fn answer(
        &mut self,
        id: CommandId,
        sent_at: BootInstant,
        answer: StoreResponse,
        now: BootInstant,
        entropy: &mut dyn Entropy,
    ) {
        let Some(pending) = self.pending.remove(&id) else { return };
        match (pending, answer) {
            (PendingCommand::Open(id), StoreResponse::Heartbeat(heartbeat_response)) => {
                self.opened(id, sent_at, heartbeat_response, now, entropy)
            }
            (PendingCommand::Heartbeat(id), StoreResponse::Heartbeat(heartbeat_response)) => {
                self.heartbeat_answered(id, sent_at, heartbeat_response, now, entropy)
            }
            (PendingCommand::End, StoreResponse::Done(result)) => self.end_answered(result, now, entropy),
            (PendingCommand::Join(id, key), StoreResponse::Joined(result)) => {
                self.joined(id, key, result, now, entropy)
            }
            (PendingCommand::Leave(key), StoreResponse::Done(Ok(()))) if self.leaves(&key) => {
                self.withdrawn(&key)
            }
            (PendingCommand::Read { session, scope, step }, StoreResponse::Observed(result))
                if self.session() == Some(&session) =>
            {
                self.observed(&scope, step, result, now, entropy);
            }
            (PendingCommand::Take { session, election, slot }, StoreResponse::Taken(result)) => {
                self.taken(session, election, slot, result, now, entropy);
            }
            (PendingCommand::Release(key, slot, token), StoreResponse::Done(result)) => {
                self.release_answered(key, (slot, token), result, now, entropy);
            }
            (PendingCommand::Expire(session, heartbeat_count), StoreResponse::Done(_)) => {
                self.expiring.remove(&(session, heartbeat_count));
            }
            _ => {}
        }
    }

    pub(super) fn command(&mut self, command: StoreCommand, pending: PendingCommand) {
        let id = CommandId(self.next_command);
        self.next_command += 1;
        if !matches!(command, StoreCommand::Watch(_)) {
            self.pending.insert(id, pending);
        }
        self.commands.push_back((id, command));
    }

    pub(super) fn send_take(&mut self, take: crate::port::TakeLeaseRequest) {
        let (session, election, slot) = (take.session.clone(), take.election.clone(), take.slot);
        if let Some(campaign) = self.campaigns.get_mut(&election) {
            campaign.phase = CampaignPhase::Taking;
            campaign.touched = self.step;
        }
        self.command(StoreCommand::Take(take), PendingCommand::Take { session, election, slot });
    }

    pub(super) fn send_leader_request(&mut self, leader_request: LeaderRequest) {
        self.command(StoreCommand::RequestLeader(leader_request), PendingCommand::Nothing);
    }
}
