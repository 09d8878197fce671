//! The task that runs one session: it feeds the pure lease machine and executes its commands.
//!
//! The machine owns the protocol. This task owns the clock, the store and the handles of users. It ends a term
//! in two steps. First it sets the flag of the term, so that `is_leader` is false at once. When the work under
//! the term has ended, it passes [`LeaseInput::Finished`] to the machine, which then releases the lease.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tenure_core::port::{ErrorKind, LeaderRequestKind, Notification, Store, StoreError};
use tenure_core::rules::lease::{
    CandidateOptions, CommandId, LeaseEvent, LeaseInput, LeaseMachine, StoreCommand, StoreResponse,
};
use tenure_core::{BootInstant, ElectionKey, SessionId, Timing, Token};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::election::elector::{CandidateHandle, ElectionChange};
use crate::election::leadership::{ActiveTerm, ActiveTermState, SessionTrust, TermEnd};
use crate::outage::{OutageLog, log_failure, log_recovery};
use crate::queue::notifier::Notifier;
use crate::runtime::{Runtime, RuntimeEntropy};
use crate::{Error, metrics, store::no_notifications};

/// Maximum number of concurrent store calls, not counting heartbeats.
const CONCURRENT_CALLS: usize = 8;

/// A message to the session driver.
pub(crate) enum DriverMessage {
    Campaign {
        options: CandidateOptions,
        handle: Arc<CandidateHandle>,
        reply: oneshot::Sender<Result<(), Error>>,
    },
    /// Changes the options of a candidate.
    ChangeOptions {
        options: CandidateOptions,
        handle: Arc<CandidateHandle>,
        reply: oneshot::Sender<Result<(), Error>>,
    },
    Withdraw {
        handle: Arc<CandidateHandle>,
        reply: Option<oneshot::Sender<()>>,
    },
    /// Ends the current term, or only the term with this token.
    Resign(ElectionKey, Option<Token>),
    WorkEnded(ElectionKey, Token),
    Answer {
        id: CommandId,
        sent_at: BootInstant,
        answer: StoreResponse,
    },
    /// The store rejects the candidate.
    Refused(ElectionKey, StoreError),
    Close(Option<oneshot::Sender<()>>),
    /// The grace of `close` is over: end the session if no work runs.
    CloseNow,
}

/// State that the driver shares with handles.
pub(crate) struct SessionShared {
    pub(crate) trust: Arc<SessionTrust>,
    pub(crate) session: watch::Sender<Option<SessionId>>,
    pub(crate) last_error: Mutex<Option<StoreError>>,
    /// Passes store notifications on to waiters.
    pub(crate) notifier: Notifier,
    /// Wakes tasks that wait until this process may join an election again.
    pub(crate) withdrawn: tokio::sync::Notify,
}

pub(crate) struct Driver {
    machine: LeaseMachine,
    store: Arc<dyn Store>,
    runtime: Arc<dyn Runtime>,
    timing: Timing,
    shared: Arc<SessionShared>,
    inbox: mpsc::UnboundedReceiver<DriverMessage>,
    sender: mpsc::UnboundedSender<DriverMessage>,
    calls: Arc<Semaphore>,
    candidates: BTreeMap<ElectionKey, DriverCandidate>,
    /// Deadlines for running work.
    limits: BTreeSet<(BootInstant, ElectionKey)>,
    closing: Vec<oneshot::Sender<()>>,
    stopping: bool,
    stopped: bool,
    inputs: VecDeque<LeaseInput>,
    stepping: bool,
    outages: OutageLog,
}

/// An election in which this process is a candidate.
struct DriverCandidate {
    handle: Arc<CandidateHandle>,
    term: Option<Arc<ActiveTerm>>,
    /// Start of the current term, for metrics.
    since: Option<BootInstant>,
    limit: Option<BootInstant>,
    join_reply: Option<oneshot::Sender<Result<(), Error>>>,
    /// Callers that wait until the store has the current options.
    option_replies: Vec<oneshot::Sender<Result<(), Error>>>,
    leave_replies: Vec<oneshot::Sender<()>>,
    requested_slots: u32,
}

impl Driver {
    pub(crate) fn new(
        machine: LeaseMachine,
        timing: Timing,
        store: Arc<dyn Store>,
        runtime: Arc<dyn Runtime>,
        shared: Arc<SessionShared>,
    ) -> (Driver, mpsc::UnboundedSender<DriverMessage>) {
        let (sender, inbox) = mpsc::unbounded_channel();
        let driver = Driver {
            machine,
            store,
            runtime,
            timing,
            shared,
            inbox,
            sender: sender.clone(),
            calls: Arc::new(Semaphore::new(CONCURRENT_CALLS)),
            candidates: BTreeMap::new(),
            limits: BTreeSet::new(),
            closing: Vec::new(),
            stopping: false,
            stopped: false,
            inputs: VecDeque::new(),
            stepping: false,
            outages: OutageLog::default(),
        };
        (driver, sender)
    }

    pub(crate) async fn run(mut self) {
        let mut notifications = self.store.notifications();
        self.step(LeaseInput::Start);
        while !self.stopped {
            let machine_due = self.machine.poll_timeout();
            let limit = self.limits.first().map(|(at, _)| *at);
            let due = machine_due.into_iter().chain(limit).min();
            let runtime = self.runtime.clone();
            let sleep = async {
                match due {
                    Some(at) => runtime.sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                message = self.inbox.recv() => match message {
                    Some(message) => self.receive(message),
                    None => break,
                },
                notification = notifications.next() => match notification {
                    Some(notification) => self.notified(notification),
                    None => notifications = no_notifications(),
                },
                () = sleep => self.step(LeaseInput::Tick),
            }
            self.enforce_limits();
        }
        self.shared.trust.set(BootInstant::ZERO);
        self.closing.drain(..).for_each(confirm);
    }

    fn notified(&mut self, notification: Notification) {
        self.shared.notifier.notify(&notification, self.machine.session());
        self.step(LeaseInput::Notification(notification));
    }

    fn receive(&mut self, message: DriverMessage) {
        match message {
            DriverMessage::Campaign { options, handle, reply } => self.campaign(options, handle, reply),
            DriverMessage::ChangeOptions { options, handle, reply } => {
                self.change_options(options, &handle, reply)
            }
            // The elector has left already; another one may be the candidate now.
            DriverMessage::Withdraw { handle, reply } if !self.is_candidate(&handle) => {
                reply.into_iter().for_each(confirm)
            }
            DriverMessage::Withdraw { handle, reply } => self.withdraw(handle.key.clone(), reply),
            DriverMessage::Resign(election, token) => self.resign(election, token),
            DriverMessage::WorkEnded(election, token) => self.work_ended(&election, token),
            DriverMessage::Answer { id, sent_at, answer } => self.answered(id, sent_at, answer),
            DriverMessage::Refused(election, error) => self.refused(election, error),
            DriverMessage::Close(reply) => self.close(reply),
            DriverMessage::CloseNow => self.close_now(),
        }
    }

    fn answered(&mut self, id: CommandId, sent_at: BootInstant, answer: StoreResponse) {
        let now = self.runtime.now();
        let is_heartbeat = if let StoreResponse::Heartbeat(pulse) = &answer {
            metrics::heartbeat_sent(pulse, now.since(sent_at));
            if pulse.is_ok() {
                log_recovery!(self.outages, now, "store recovered");
            }
            true
        } else {
            false
        };
        self.step(LeaseInput::Response { id, sent_at, answer });
        if is_heartbeat {
            metrics::lease_remaining(self.machine.trusted_until().since(now));
        }
    }

    /// Runs one step of the machine and its effects. Inputs that arrive during the step are queued.
    fn step(&mut self, input: LeaseInput) {
        self.inputs.push_back(input);
        if std::mem::replace(&mut self.stepping, true) {
            return;
        }
        while let Some(input) = self.inputs.pop_front() {
            let now = self.runtime.now();
            self.machine.handle(now, input, &mut RuntimeEntropy(self.runtime.as_ref()));
            while let Some(event) = self.machine.poll_event() {
                self.handle_event(event, now);
            }
        }
        // After the events: a lost term must have ended before a successful heartbeat extends the deadline.
        self.shared.trust.set(self.machine.trusted_until());
        while let Some((id, command)) = self.machine.poll_command() {
            self.call(id, command);
        }
        self.stepping = false;
    }

    // ---- requests of users

    fn campaign(
        &mut self,
        options: CandidateOptions,
        handle: Arc<CandidateHandle>,
        reply: oneshot::Sender<Result<(), Error>>,
    ) {
        if self.stopping {
            let _ = reply.send(Err(Error::Closed));
            return;
        }
        let key = options.election.clone();
        if self.candidates.contains_key(&key) {
            let _ = reply.send(Err(Error::AlreadyCandidate(key)));
            return;
        }
        let candidate = DriverCandidate {
            handle,
            term: None,
            since: None,
            limit: None,
            join_reply: Some(reply),
            option_replies: Vec::new(),
            leave_replies: Vec::new(),
            requested_slots: options.slots,
        };
        self.candidates.insert(key, candidate);
        self.step(LeaseInput::Campaign(options));
    }

    fn change_options(
        &mut self,
        options: CandidateOptions,
        handle: &Arc<CandidateHandle>,
        reply: oneshot::Sender<Result<(), Error>>,
    ) {
        let is_candidate = self.is_candidate(handle) && !self.stopping;
        match self
            .candidates
            .get_mut(&handle.key)
            .filter(|candidate| is_candidate && candidate.leave_replies.is_empty())
        {
            Some(candidate) => {
                candidate.option_replies.push(reply);
                self.step(LeaseInput::Campaign(options));
            }
            None => drop(reply.send(Err(Error::Closed))),
        }
    }

    fn withdraw(&mut self, election: ElectionKey, reply: Option<oneshot::Sender<()>>) {
        let Some(candidate) = self.candidates.get_mut(&election) else {
            reply.into_iter().for_each(confirm);
            return;
        };
        candidate.leave_replies.extend(reply);
        if let Some(term) = &candidate.term {
            // Work in progress must finish, as after a leader request.
            term.state
                .send_if_modified(|state| state.leader_request.replace(LeaderRequestKind::Resign).is_none());
        }
        self.step(LeaseInput::Withdraw(election.clone()));
        self.begin_finish(&election);
    }

    /// Reports the error to a caller that waits for its first join; a candidate that had joined keeps trying.
    fn refused(&mut self, election: ElectionKey, error: StoreError) {
        let Some(candidate) = self.candidates.get_mut(&election) else { return };
        candidate
            .option_replies
            .drain(..)
            .for_each(|reply| drop(reply.send(Err(Error::Store(error.clone())))));
        let waiting = candidate.join_reply.take();
        if let Some(reply) = waiting {
            let _ = reply.send(Err(Error::Store(error)));
            self.withdraw(election, None);
        }
    }

    fn is_candidate(&self, handle: &Arc<CandidateHandle>) -> bool {
        self.candidates.get(&handle.key).is_some_and(|candidate| Arc::ptr_eq(&candidate.handle, handle))
    }

    fn resign(&mut self, election: ElectionKey, token: Option<Token>) {
        let term = self.candidates.get(&election).and_then(|candidate| candidate.term.as_ref());
        if term.is_some_and(|term| token.is_none_or(|token| term.token == token)) {
            self.step(LeaseInput::Resign(election));
        }
    }

    fn close_now(&mut self) {
        let has_work =
            |candidate: &DriverCandidate| candidate.term.as_ref().is_some_and(|term| term.has_workers());
        if !self.stopped && !self.candidates.values().any(has_work) {
            self.step(LeaseInput::Stop);
        }
    }

    fn close(&mut self, reply: Option<oneshot::Sender<()>>) {
        self.closing.extend(reply);
        if self.stopping {
            return;
        }
        self.stopping = true;
        let keys: Vec<_> = self.candidates.keys().cloned().collect();
        keys.into_iter().for_each(|key| self.withdraw(key, None));
        self.stop_if_empty();
    }

    fn stop_if_empty(&mut self) {
        if self.stopping && self.candidates.is_empty() && !self.stopped {
            self.step(LeaseInput::Stop);
        }
    }

    // ---- end of a term

    /// Asks the leader to finish: the term ends when its work has ended, or after the grace.
    fn begin_finish(&mut self, key: &ElectionKey) {
        let now = self.runtime.now();
        let Some(candidate) = self.candidates.get_mut(key) else { return };
        let Some(term) = candidate.term.clone() else { return };
        if !term.has_workers() {
            self.end_term(key, TermEnd::Released);
        } else if candidate.limit.is_none() {
            let limit = now + candidate.handle.grace;
            candidate.limit = Some(limit);
            self.limits.insert((limit, key.clone()));
        }
    }

    /// Ends the term in this process. The lease is released when no work runs under it.
    fn end_term(&mut self, key: &ElectionKey, end: TermEnd) {
        let now = self.runtime.now();
        let Some(candidate) = self.candidates.get_mut(key) else { return };
        let Some(term) = &candidate.term else { return };
        term.finish(end);
        if let Some(since) = candidate.since.take() {
            let kind = if matches!(end, TermEnd::Lost(_)) { "lost" } else { "released" };
            metrics::term_ended(key, kind, now.since(since));
        }
        candidate.handle.publish_term(None);
        if let Some(limit) = candidate.limit.take() {
            self.limits.remove(&(limit, key.clone()));
        }
        if term.has_workers() {
            let limit = now + self.timing.trust();
            candidate.limit = Some(limit);
            self.limits.insert((limit, key.clone()));
        } else {
            candidate.term = None;
            self.step(LeaseInput::Finished(key.clone()));
        }
    }

    fn work_ended(&mut self, key: &ElectionKey, token: Token) {
        let Some(candidate) = self.candidates.get(key) else { return };
        let Some(term) = candidate.term.as_ref().filter(|term| term.token == token && !term.has_workers())
        else {
            return;
        };
        let state = term.state.borrow().clone();
        match state.end {
            Some(end) => self.end_term(key, end),
            // The leader finished after a request. Without a request it continues to lead without running work.
            None if state.leader_request.is_some() || candidate.limit.is_some() => {
                self.end_term(key, TermEnd::Released)
            }
            None => {}
        }
    }

    fn enforce_limits(&mut self) {
        let now = self.runtime.now();
        while let Some((at, key)) = self.limits.first().cloned()
            && at <= now
        {
            self.limits.pop_first();
            let Some(candidate) = self.candidates.get_mut(&key) else { continue };
            candidate.limit = None;
            let Some(term) = candidate.term.clone() else { continue };
            let end = term.state.borrow().end;
            match end {
                None => self.end_term(&key, TermEnd::Released),
                // Do not release the lease while work may still run under it. Other candidates take over only after
                // a release, or when the session is silent for a whole lease.
                Some(_) => {
                    tracing::warn!(election = %key, token = %term.token, "work still running after leadership ended");
                    let limit = now + self.timing.trust();
                    candidate.limit = Some(limit);
                    self.limits.insert((limit, key));
                }
            }
        }
    }

    // ---- events of the machine

    fn handle_event(&mut self, event: LeaseEvent, now: BootInstant) {
        match event {
            LeaseEvent::Opened(session) => {
                tracing::debug!(session = session.short(), "session opened");
                *self.shared.last_error.lock().unwrap_or_else(|e| e.into_inner()) = None;
                self.shared.session.send_replace(Some(session));
            }
            LeaseEvent::Joined(key) => {
                let Some(candidate) = self.candidates.get_mut(&key) else { return };
                candidate.option_replies.drain(..).for_each(|reply| drop(reply.send(Ok(()))));
                let reply = candidate.join_reply.take();
                if reply.is_some_and(|reply| reply.send(Ok(())).is_err()) {
                    self.withdraw(key, None);
                }
            }
            LeaseEvent::Rejected { election, slots } => self.rejected(election, slots),
            LeaseEvent::Elected { election, slot, token } => self.elected(election, slot, token),
            LeaseEvent::Requested { election, kind } => {
                let Some(candidate) = self.candidates.get_mut(&election) else { return };
                tracing::info!(%election, request = kind.as_str(), "leader request received");
                if let Some(term) = &candidate.term {
                    term.state.send_modify(|state| state.leader_request = Some(kind.clone()));
                }
                candidate.handle.changed(ElectionChange::LeaderRequest(kind));
                self.begin_finish(&election);
            }
            LeaseEvent::Lost { election, token, why } => {
                tracing::warn!(%election, %token, reason = why.as_str(), "leadership lost");
                let Some(candidate) = self.candidates.get_mut(&election) else { return };
                candidate.handle.changed(ElectionChange::Lost { token, why });
                self.end_term(&election, TermEnd::Lost(why));
            }
            LeaseEvent::Released { election, token } => {
                tracing::debug!(%election, %token, "lease released");
                if let Some(candidate) = self.candidates.get_mut(&election) {
                    candidate.handle.changed(ElectionChange::Released { token });
                }
            }
            LeaseEvent::Withdrawn(election) => {
                if let Some(candidate) = self.candidates.remove(&election) {
                    candidate.leave_replies.into_iter().for_each(confirm);
                    candidate.join_reply.into_iter().for_each(|reply| drop(reply.send(Err(Error::Closed))));
                    self.shared.withdrawn.notify_waiters();
                }
                self.stop_if_empty();
            }
            LeaseEvent::Observed(view) => {
                if let Some(candidate) = self.candidates.get_mut(&view.key) {
                    candidate.handle.observed(view);
                }
            }
            LeaseEvent::StoreFailed(error) => {
                let trusted_for = self.machine.trusted_until().since(now);
                log_failure!(self.outages, now, ?trusted_for, "store call failed: {error}");
                metrics::store_error(&error);
                *self.shared.last_error.lock().unwrap_or_else(|e| e.into_inner()) = Some(error);
            }
            LeaseEvent::Stopped => self.stopped = true,
        }
    }

    /// Fails a candidate whose election got a different number of slots while it was disconnected. If the
    /// candidate leads, its work ends first.
    fn rejected(&mut self, election: ElectionKey, slots: u32) {
        let Some(candidate) = self.candidates.get_mut(&election) else { return };
        let error = Error::Slots { election: election.clone(), slots, requested: candidate.requested_slots };
        tracing::warn!(%election, "{error}");
        candidate.handle.fail(error.clone());
        candidate.join_reply.take().into_iter().for_each(|reply| drop(reply.send(Err(error.clone()))));
        if candidate.term.is_some() {
            self.begin_finish(&election);
        } else if let Some(candidate) = self.candidates.remove(&election) {
            candidate.leave_replies.into_iter().for_each(confirm);
            self.shared.withdrawn.notify_waiters();
            self.stop_if_empty();
        }
    }

    fn elected(&mut self, election: ElectionKey, slot: u32, token: Token) {
        let Some(session) = self.machine.session().cloned() else { return };
        let Some(candidate) = self.candidates.get_mut(&election) else { return };
        tracing::info!(%election, %token, "leader elected");
        let term = Arc::new(ActiveTerm {
            election,
            slot,
            token,
            session,
            timing: self.timing,
            trust: self.shared.trust.clone(),
            ended: AtomicBool::new(false),
            state: watch::Sender::new(ActiveTermState::default()),
            work: Mutex::new(Weak::new()),
            inbox: self.sender.clone(),
        });
        metrics::term_started(&term.election);
        candidate.since = Some(self.runtime.now());
        candidate.term = Some(term.clone());
        candidate.handle.publish_term(Some(term));
        candidate.handle.changed(ElectionChange::Elected { token, slot });
    }

    // ---- store calls

    fn call(&self, id: CommandId, command: StoreCommand) {
        if let StoreCommand::Watch(sessions) = &command {
            self.store.watch_sessions(sessions);
            return;
        }
        let (store, runtime, inbox) = (self.store.clone(), self.runtime.clone(), self.sender.clone());
        let (calls, timeout) = (self.calls.clone(), self.timing.request_timeout());
        let urgent =
            matches!(command, StoreCommand::Heartbeat(_) | StoreCommand::Open(_) | StoreCommand::End(_));
        tokio::spawn(async move {
            // A heartbeat never queues behind other calls.
            let _permit = if urgent { None } else { calls.acquire().await.ok() };
            // Read the clock before sending: the delay of the response must not extend trust.
            let sent_at = runtime.now();
            let panicked = panic_response(&command);
            let joins = if let StoreCommand::Join(candidacy) = &command {
                Some(candidacy.election.clone())
            } else {
                None
            };
            let call = async move {
                perform(store.as_ref(), command, runtime.as_ref(), sent_at + timeout, timeout).await
            };
            // A panicked call has an unknown outcome; it must not leave the machine waiting forever.
            let answer = tokio::spawn(call).await.unwrap_or(panicked);
            let refusal = match (joins, &answer) {
                // The store rejected the candidate itself, so no retry can succeed.
                (Some(election), StoreResponse::Joined(Err(error)))
                    if matches!(error.kind, ErrorKind::Denied | ErrorKind::Request) =>
                {
                    Some(DriverMessage::Refused(election, error.clone()))
                }
                _ => None,
            };
            // A driver that has ended needs no response.
            let _ = inbox.send(DriverMessage::Answer { id, sent_at, answer });
            refusal.into_iter().for_each(|refusal| drop(inbox.send(refusal)));
        });
    }
}

/// The response to a call that panicked.
fn panic_response(command: &StoreCommand) -> StoreResponse {
    let error = StoreError::new(ErrorKind::Other, "a store call panicked");
    match command {
        StoreCommand::Open(_) | StoreCommand::Heartbeat(_) => StoreResponse::Heartbeat(Err(error)),
        StoreCommand::Join(_) => StoreResponse::Joined(Err(error)),
        StoreCommand::Observe(..) => StoreResponse::Observed(Err(error)),
        StoreCommand::Take(_) => StoreResponse::Taken(Err(error)),
        StoreCommand::RequestLeader(_) => StoreResponse::LeaderRequested(Err(error)),
        StoreCommand::End(_)
        | StoreCommand::Leave(..)
        | StoreCommand::Release(_)
        | StoreCommand::Expire(_)
        | StoreCommand::Watch(_) => StoreResponse::Done(Err(error)),
    }
}

/// Confirms to a caller that may have stopped waiting.
fn confirm(reply: oneshot::Sender<()>) {
    let _ = reply.send(());
}

async fn perform(
    store: &dyn Store,
    command: StoreCommand,
    runtime: &dyn Runtime,
    give_up_at: BootInstant,
    timeout: Duration,
) -> StoreResponse {
    macro_rules! bounded {
        ($wrap:path, $call:expr) => {
            tokio::select! {
                result = $call => $wrap(result),
                () = runtime.sleep_until(give_up_at) => $wrap(Err(StoreError::new(
                    ErrorKind::Timeout,
                    format!("the store did not respond within {timeout:?}"),
                ))),
            }
        };
    }
    match command {
        StoreCommand::Open(session) => bounded!(StoreResponse::Heartbeat, store.open_session(&session)),
        StoreCommand::Heartbeat(session) => bounded!(StoreResponse::Heartbeat, store.heartbeat(&session)),
        StoreCommand::End(session) => bounded!(StoreResponse::Done, store.end_session(&session)),
        StoreCommand::Join(candidacy) => bounded!(StoreResponse::Joined, store.join_election(&candidacy)),
        StoreCommand::Leave(session, key) => {
            bounded!(StoreResponse::Done, store.leave_election(&session, &key))
        }
        StoreCommand::Observe(session, scope) => {
            bounded!(StoreResponse::Observed, store.observe(&session, &scope))
        }
        StoreCommand::Take(take) => bounded!(StoreResponse::Taken, store.take_lease(&take)),
        StoreCommand::Release(release) => bounded!(StoreResponse::Done, store.release_lease(&release)),
        StoreCommand::Expire(expire) => bounded!(StoreResponse::Done, store.expire_session(&expire)),
        StoreCommand::RequestLeader(ask) => {
            bounded!(StoreResponse::LeaderRequested, store.request_leader(&ask))
        }
        StoreCommand::Watch(_) => StoreResponse::Done(Ok(())),
    }
}
