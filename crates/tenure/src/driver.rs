//! One task per session: it feeds the pure machine and does what it says.
//!
//! The machine owns the protocol; this task owns the clock, the store and the handles given to users. It ends a term
//! in two steps: the term's flag is set (so that `is_leader` is false at once), and only when the work under it has
//! ended is the machine told [`Input::Finished`], upon which the lease is given back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tenure_core::lease::{Answer, Command, CommandId, Event, Input, Machine, Stand};
use tenure_core::port::{AskKind, Backend, StoreError, Trouble, Wake};
use tenure_core::{ElectionKey, Moment, SessionId, Timing, Token};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::claims::bells::Bells;
use crate::elector::{Change, Seat};
use crate::leadership::{Over, Term, TermState, Trust};
use crate::outage::{OutageLog, log_failure, log_recovery};
use crate::runtime::{Draw, Runtime};
use crate::{Error, backend::no_hints, metrics};

/// How many calls to the store may be under way at once, beats not counted.
const CALLS_AT_ONCE: usize = 8;

/// What the driver is told.
pub(crate) enum Message {
    Campaign {
        stand: Stand,
        seat: Arc<Seat>,
        reply: oneshot::Sender<Result<(), Error>>,
    },
    /// Who stands already stands otherwise from now on.
    Restand {
        stand: Stand,
        seat: Arc<Seat>,
        reply: oneshot::Sender<Result<(), Error>>,
    },
    Withdraw {
        seat: Arc<Seat>,
        reply: Option<oneshot::Sender<()>>,
    },
    /// Of one term, if it is said which.
    Resign(ElectionKey, Option<Token>),
    WorkEnded(ElectionKey, Token),
    Answer {
        id: CommandId,
        sent_at: Moment,
        answer: Answer,
    },
    /// The store does not let this process stand.
    Refused(ElectionKey, StoreError),
    Close(Option<oneshot::Sender<()>>),
    /// Whoever closes has waited long enough: end the session if nothing runs any more.
    CloseNow,
}

/// What the driver shares with handles.
pub(crate) struct Shared {
    pub(crate) trust: Arc<Trust>,
    pub(crate) session: watch::Sender<Option<SessionId>>,
    pub(crate) trouble: Mutex<Option<StoreError>>,
    /// Who waits for hints about work.
    pub(crate) bells: Bells,
    /// Wakes every task that waits until this process may stand in an election again.
    pub(crate) withdrawn: tokio::sync::Notify,
}

pub(crate) struct Driver {
    machine: Machine,
    store: Arc<dyn Backend>,
    runtime: Arc<dyn Runtime>,
    timing: Timing,
    shared: Arc<Shared>,
    inbox: mpsc::UnboundedReceiver<Message>,
    sender: mpsc::UnboundedSender<Message>,
    calls: Arc<Semaphore>,
    seats: BTreeMap<ElectionKey, Place>,
    /// When the patience with somebody's work ends.
    limits: BTreeSet<(Moment, ElectionKey)>,
    closing: Vec<oneshot::Sender<()>>,
    stopping: bool,
    stopped: bool,
    inputs: VecDeque<Input>,
    stepping: bool,
    outages: OutageLog,
}

/// An election in which this process stands.
struct Place {
    seat: Arc<Seat>,
    term: Option<Arc<Term>>,
    /// Since when it is led, for those who measure.
    since: Option<Moment>,
    limit: Option<Moment>,
    standing: Option<oneshot::Sender<Result<(), Error>>>,
    /// Who waits until the store has the candidate as it stands now.
    restanding: Vec<oneshot::Sender<Result<(), Error>>>,
    leaving: Vec<oneshot::Sender<()>>,
    asked_slots: u32,
}

impl Driver {
    pub(crate) fn new(
        machine: Machine,
        timing: Timing,
        store: Arc<dyn Backend>,
        runtime: Arc<dyn Runtime>,
        shared: Arc<Shared>,
    ) -> (Driver, mpsc::UnboundedSender<Message>) {
        let (sender, inbox) = mpsc::unbounded_channel();
        let driver = Driver {
            machine,
            store,
            runtime,
            timing,
            shared,
            inbox,
            sender: sender.clone(),
            calls: Arc::new(Semaphore::new(CALLS_AT_ONCE)),
            seats: BTreeMap::new(),
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
        let mut wakes = self.store.wakes();
        self.step(Input::Start);
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
                wake = wakes.next() => match wake {
                    Some(wake) => self.hear(wake),
                    None => wakes = no_hints(),
                },
                () = sleep => self.step(Input::Tick),
            }
            self.enforce_limits();
        }
        self.shared.trust.set(Moment::ZERO);
        self.closing.drain(..).for_each(confirm);
    }

    fn hear(&mut self, wake: Wake) {
        self.shared.bells.ring(&wake, self.machine.session());
        self.step(Input::Wake(wake));
    }

    fn receive(&mut self, message: Message) {
        match message {
            Message::Campaign { stand, seat, reply } => self.campaign(stand, seat, reply),
            Message::Restand { stand, seat, reply } => self.restand(stand, &seat, reply),
            // Of an elector that stands no longer, whoever stands by that name now.
            Message::Withdraw { seat, reply } if !self.stands(&seat) => reply.into_iter().for_each(confirm),
            Message::Withdraw { seat, reply } => self.withdraw(seat.key.clone(), reply),
            Message::Resign(election, token) => self.resign(election, token),
            Message::WorkEnded(election, token) => self.work_ended(&election, token),
            Message::Answer { id, sent_at, answer } => self.answered(id, sent_at, answer),
            Message::Refused(election, error) => self.refused(election, error),
            Message::Close(reply) => self.close(reply),
            Message::CloseNow => self.close_now(),
        }
    }

    fn answered(&mut self, id: CommandId, sent_at: Moment, answer: Answer) {
        let now = self.runtime.now();
        let beat = if let Answer::Pulse(pulse) = &answer {
            metrics::renewed(pulse, now.since(sent_at));
            if pulse.is_ok() {
                log_recovery!(self.outages, now, "the store answers again");
            }
            true
        } else {
            false
        };
        self.step(Input::Answer { id, sent_at, answer });
        if beat {
            metrics::trusted_for(self.machine.trusted_until().since(now));
        }
    }

    /// One step of the machine, and all that follows from it. What is said while it goes on is queued behind it.
    fn step(&mut self, input: Input) {
        self.inputs.push_back(input);
        if std::mem::replace(&mut self.stepping, true) {
            return;
        }
        while let Some(input) = self.inputs.pop_front() {
            let now = self.runtime.now();
            self.machine.handle(now, input, &mut Draw(self.runtime.as_ref()));
            while let Some(event) = self.machine.poll_event() {
                self.tell(event, now);
            }
        }
        // After the events: a term that was lost must be over before a counted beat moves the deadline on.
        self.shared.trust.set(self.machine.trusted_until());
        while let Some((id, command)) = self.machine.poll_command() {
            self.call(id, command);
        }
        self.stepping = false;
    }

    // ---- what users want

    fn campaign(&mut self, stand: Stand, seat: Arc<Seat>, reply: oneshot::Sender<Result<(), Error>>) {
        if self.stopping {
            let _ = reply.send(Err(Error::Closed));
            return;
        }
        let key = stand.election.clone();
        if self.seats.contains_key(&key) {
            let _ = reply.send(Err(Error::AlreadyStanding(key)));
            return;
        }
        let place = Place {
            seat,
            term: None,
            since: None,
            limit: None,
            standing: Some(reply),
            restanding: Vec::new(),
            leaving: Vec::new(),
            asked_slots: stand.slots,
        };
        self.seats.insert(key, place);
        self.step(Input::Campaign(stand));
    }

    fn restand(&mut self, stand: Stand, seat: &Arc<Seat>, reply: oneshot::Sender<Result<(), Error>>) {
        let stands = self.stands(seat) && !self.stopping;
        match self.seats.get_mut(&seat.key).filter(|place| stands && place.leaving.is_empty()) {
            Some(place) => {
                place.restanding.push(reply);
                self.step(Input::Campaign(stand));
            }
            None => drop(reply.send(Err(Error::Closed))),
        }
    }

    fn withdraw(&mut self, election: ElectionKey, reply: Option<oneshot::Sender<()>>) {
        let Some(place) = self.seats.get_mut(&election) else {
            reply.into_iter().for_each(confirm);
            return;
        };
        place.leaving.extend(reply);
        if let Some(term) = &place.term {
            // Whoever works is to finish, as if asked by somebody else.
            term.state.send_if_modified(|state| state.asked.replace(AskKind::Resign).is_none());
        }
        self.step(Input::Withdraw(election.clone()));
        self.begin_finish(&election);
    }

    /// Whoever waits to stand for the first time is told; who stood before goes on trying.
    fn refused(&mut self, election: ElectionKey, error: StoreError) {
        let Some(place) = self.seats.get_mut(&election) else { return };
        place.restanding.drain(..).for_each(|reply| drop(reply.send(Err(Error::Store(error.clone())))));
        let waiting = place.standing.take();
        if let Some(reply) = waiting {
            let _ = reply.send(Err(Error::Store(error)));
            self.withdraw(election, None);
        }
    }

    fn stands(&self, seat: &Arc<Seat>) -> bool {
        self.seats.get(&seat.key).is_some_and(|place| Arc::ptr_eq(&place.seat, seat))
    }

    fn resign(&mut self, election: ElectionKey, token: Option<Token>) {
        let term = self.seats.get(&election).and_then(|place| place.term.as_ref());
        if term.is_some_and(|term| token.is_none_or(|token| term.token == token)) {
            self.step(Input::Resign(election));
        }
    }

    fn close_now(&mut self) {
        let works = |place: &Place| place.term.as_ref().is_some_and(|term| term.has_workers());
        if !self.stopped && !self.seats.values().any(works) {
            self.step(Input::Stop);
        }
    }

    fn close(&mut self, reply: Option<oneshot::Sender<()>>) {
        self.closing.extend(reply);
        if self.stopping {
            return;
        }
        self.stopping = true;
        let keys: Vec<_> = self.seats.keys().cloned().collect();
        keys.into_iter().for_each(|key| self.withdraw(key, None));
        self.stop_if_empty();
    }

    fn stop_if_empty(&mut self) {
        if self.stopping && self.seats.is_empty() && !self.stopped {
            self.step(Input::Stop);
        }
    }

    // ---- the end of a term

    /// The leader is to finish: when its work has ended, or after the grace, the term is over.
    fn begin_finish(&mut self, key: &ElectionKey) {
        let now = self.runtime.now();
        let Some(place) = self.seats.get_mut(key) else { return };
        let Some(term) = place.term.clone() else { return };
        if !term.has_workers() {
            self.end_term(key, Over::GivenUp);
        } else if place.limit.is_none() {
            let limit = now + place.seat.grace;
            place.limit = Some(limit);
            self.limits.insert((limit, key.clone()));
        }
    }

    /// The term is over for the process. The lease is given back when nobody works under it any more.
    fn end_term(&mut self, key: &ElectionKey, over: Over) {
        let now = self.runtime.now();
        let Some(place) = self.seats.get_mut(key) else { return };
        let Some(term) = &place.term else { return };
        term.end(over);
        if let Some(since) = place.since.take() {
            let kind = if matches!(over, Over::Lost(_)) { "lost" } else { "released" };
            metrics::ended(key, kind, now.since(since));
        }
        place.seat.publish_term(None);
        if let Some(limit) = place.limit.take() {
            self.limits.remove(&(limit, key.clone()));
        }
        if term.has_workers() {
            let limit = now + self.timing.trust();
            place.limit = Some(limit);
            self.limits.insert((limit, key.clone()));
        } else {
            place.term = None;
            self.step(Input::Finished(key.clone()));
        }
    }

    fn work_ended(&mut self, key: &ElectionKey, token: Token) {
        let Some(place) = self.seats.get(key) else { return };
        let Some(term) = place.term.as_ref().filter(|term| term.token == token && !term.has_workers()) else {
            return;
        };
        let state = term.state.borrow().clone();
        match state.over {
            Some(over) => self.end_term(key, over),
            // Asked to finish, and it has. A leader whom nobody asked goes on leading without a worker.
            None if state.asked.is_some() || place.limit.is_some() => self.end_term(key, Over::GivenUp),
            None => {}
        }
    }

    fn enforce_limits(&mut self) {
        let now = self.runtime.now();
        while let Some((at, key)) = self.limits.first().cloned()
            && at <= now
        {
            self.limits.pop_first();
            let Some(place) = self.seats.get_mut(&key) else { continue };
            place.limit = None;
            let Some(term) = place.term.clone() else { continue };
            let over = term.state.borrow().over;
            match over {
                None => self.end_term(&key, Over::GivenUp),
                // The lease is not given back while its work may run. Others lead once it is free or we fall silent.
                Some(_) => {
                    tracing::warn!(election = %key, token = %term.token, "work outlives its leadership");
                    let limit = now + self.timing.trust();
                    place.limit = Some(limit);
                    self.limits.insert((limit, key));
                }
            }
        }
    }

    // ---- what the machine says

    fn tell(&mut self, event: Event, now: Moment) {
        match event {
            Event::Opened(session) => {
                tracing::debug!(session = session.short(), "session opened");
                *self.shared.trouble.lock().unwrap_or_else(|e| e.into_inner()) = None;
                self.shared.session.send_replace(Some(session));
            }
            Event::Standing(key) => {
                let Some(place) = self.seats.get_mut(&key) else { return };
                place.restanding.drain(..).for_each(|reply| drop(reply.send(Ok(()))));
                let reply = place.standing.take();
                if reply.is_some_and(|reply| reply.send(Ok(())).is_err()) {
                    self.withdraw(key, None);
                }
            }
            Event::Rejected { election, slots } => self.rejected(election, slots),
            Event::Elected { election, slot, token } => self.elected(election, slot, token),
            Event::Asked { election, kind } => {
                let Some(place) = self.seats.get_mut(&election) else { return };
                tracing::info!(%election, ask = kind.word(), "asked to finish");
                if let Some(term) = &place.term {
                    term.state.send_modify(|state| state.asked = Some(kind.clone()));
                }
                place.seat.changed(Change::Asked(kind));
                self.begin_finish(&election);
            }
            Event::Lost { election, token, why } => {
                tracing::warn!(%election, %token, reason = why.as_str(), "leadership lost");
                let Some(place) = self.seats.get_mut(&election) else { return };
                place.seat.changed(Change::Lost { token, why });
                self.end_term(&election, Over::Lost(why));
            }
            Event::Released { election, token } => {
                tracing::debug!(%election, %token, "released");
                if let Some(place) = self.seats.get_mut(&election) {
                    place.seat.changed(Change::Released { token });
                }
            }
            Event::Withdrawn(election) => {
                if let Some(place) = self.seats.remove(&election) {
                    place.leaving.into_iter().for_each(confirm);
                    place.standing.into_iter().for_each(|reply| drop(reply.send(Err(Error::Closed))));
                    self.shared.withdrawn.notify_waiters();
                }
                self.stop_if_empty();
            }
            Event::Seen(view) => {
                if let Some(place) = self.seats.get_mut(&view.key) {
                    place.seat.seen(view);
                }
            }
            Event::Trouble(error) => {
                let trusted_for = self.machine.trusted_until().since(now);
                log_failure!(self.outages, now, ?trusted_for, "the store failed: {error}");
                metrics::trouble(&error);
                *self.shared.trouble.lock().unwrap_or_else(|e| e.into_inner()) = Some(error);
            }
            Event::Stopped => self.stopped = true,
        }
    }

    /// The election was changed while this candidate was away. It can not go on; its work, if any, is ended first.
    fn rejected(&mut self, election: ElectionKey, slots: u32) {
        let Some(place) = self.seats.get_mut(&election) else { return };
        let error = Error::Slots { election: election.clone(), slots, asked: place.asked_slots };
        tracing::warn!(%election, "{error}");
        place.seat.fail(error.clone());
        place.standing.take().into_iter().for_each(|reply| drop(reply.send(Err(error.clone()))));
        if place.term.is_some() {
            self.begin_finish(&election);
        } else if let Some(place) = self.seats.remove(&election) {
            place.leaving.into_iter().for_each(confirm);
            self.shared.withdrawn.notify_waiters();
            self.stop_if_empty();
        }
    }

    fn elected(&mut self, election: ElectionKey, slot: u32, token: Token) {
        let Some(session) = self.machine.session().cloned() else { return };
        let Some(place) = self.seats.get_mut(&election) else { return };
        tracing::info!(%election, %token, "elected");
        let term = Arc::new(Term {
            election,
            slot,
            token,
            session,
            timing: self.timing,
            trust: self.shared.trust.clone(),
            ended: AtomicBool::new(false),
            state: watch::Sender::new(TermState::default()),
            work: Mutex::new(Weak::new()),
            inbox: self.sender.clone(),
        });
        metrics::elected(&term.election);
        place.since = Some(self.runtime.now());
        place.term = Some(term.clone());
        place.seat.publish_term(Some(term));
        place.seat.changed(Change::Elected { token, slot });
    }

    // ---- calls to the store

    fn call(&self, id: CommandId, command: Command) {
        if let Command::Watch(sessions) = &command {
            self.store.watch(sessions);
            return;
        }
        let (store, runtime, inbox) = (self.store.clone(), self.runtime.clone(), self.sender.clone());
        let (calls, timeout) = (self.calls.clone(), self.timing.request_timeout());
        let urgent = matches!(command, Command::Beat(_) | Command::Open(_) | Command::End(_));
        tokio::spawn(async move {
            // A beat never queues behind other calls.
            let _permit = if urgent { None } else { calls.acquire().await.ok() };
            // Read before sending: the answer's delay must not lengthen trust.
            let sent_at = runtime.now();
            let panicked = unanswered(&command);
            let joins =
                if let Command::Join(candidacy) = &command { Some(candidacy.election.clone()) } else { None };
            let call = async move {
                perform(store.as_ref(), command, runtime.as_ref(), sent_at + timeout, timeout).await
            };
            // A call that panics is one whose outcome is unknown, and must not be waited for for ever.
            let answer = tokio::spawn(call).await.unwrap_or(panicked);
            let refusal = match (joins, &answer) {
                // What no later try will change.
                (Some(election), Answer::Joined(Err(error)))
                    if matches!(error.kind, Trouble::Denied | Trouble::Request) =>
                {
                    Some(Message::Refused(election, error.clone()))
                }
                _ => None,
            };
            // A driver that is gone needs no answer.
            let _ = inbox.send(Message::Answer { id, sent_at, answer });
            refusal.into_iter().for_each(|refusal| drop(inbox.send(refusal)));
        });
    }
}

/// The answer to a call that gave none.
fn unanswered(command: &Command) -> Answer {
    let error = StoreError::new(Trouble::Other, "a call to the store panicked");
    match command {
        Command::Open(_) | Command::Beat(_) => Answer::Pulse(Err(error)),
        Command::Join(_) => Answer::Joined(Err(error)),
        Command::Observe(..) => Answer::Observed(Err(error)),
        Command::Take(_) => Answer::Taken(Err(error)),
        Command::Ask(_) => Answer::Asked(Err(error)),
        Command::End(_)
        | Command::Leave(..)
        | Command::Release(_)
        | Command::Expire(_)
        | Command::Watch(_) => Answer::Done(Err(error)),
    }
}

/// Tells somebody who may have stopped waiting.
fn confirm(reply: oneshot::Sender<()>) {
    let _ = reply.send(());
}

async fn perform(
    store: &dyn Backend,
    command: Command,
    runtime: &dyn Runtime,
    give_up_at: Moment,
    timeout: Duration,
) -> Answer {
    macro_rules! bounded {
        ($wrap:path, $call:expr) => {
            tokio::select! {
                result = $call => $wrap(result),
                () = runtime.sleep_until(give_up_at) => $wrap(Err(StoreError::new(
                    Trouble::Timeout,
                    format!("the store did not answer within {timeout:?}"),
                ))),
            }
        };
    }
    match command {
        Command::Open(session) => bounded!(Answer::Pulse, store.open(&session)),
        Command::Beat(session) => bounded!(Answer::Pulse, store.beat(&session)),
        Command::End(session) => bounded!(Answer::Done, store.end(&session)),
        Command::Join(candidacy) => bounded!(Answer::Joined, store.join(&candidacy)),
        Command::Leave(session, key) => bounded!(Answer::Done, store.leave(&session, &key)),
        Command::Observe(session, scope) => bounded!(Answer::Observed, store.observe(&session, &scope)),
        Command::Take(take) => bounded!(Answer::Taken, store.take(&take)),
        Command::Release(release) => bounded!(Answer::Done, store.release(&release)),
        Command::Expire(expire) => bounded!(Answer::Done, store.expire(&expire)),
        Command::Ask(ask) => bounded!(Answer::Asked, store.ask(&ask)),
        Command::Watch(_) => Answer::Done(Ok(())),
    }
}
